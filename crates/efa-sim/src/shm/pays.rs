//! From which length on a read by the kernel takes less time than packets, which differs between machines: on some the
//! kernel copies almost as fast as a program, on others at a third of that.
//!
//! | way | time of `n` bytes |
//! |---|---|
//! | packets | two copies, `MTU` bytes at a time, with the way between two caches, and the work of both sides for each packet |
//! | read | a call, the kernel's copy, the request for it and the answer |
//! | [shared](super::sharing) read | the same with half of the copy, and the request for the other half |
//!
//! The copies are measured when it is first asked for, in some 100 µs, once in a process. That is within one cache; how
//! long lines take between those of two processors can't be measured by one process, and on one machine it was seen to
//! be 0.01 to 0.06 ns for a byte.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::sharing::{LATER, SHARED_FROM};
use crate::memory::read_process;

/// The shortest and the longest length that is returned. The latter is from where on libfabric's provider reads.
pub(super) const SHORTEST: u64 = 12 << 10;
const LONGEST: u64 = 1 << 20;

/// Bytes of the copies that are measured.
const SHORT: usize = 1 << 12;
const LONG: usize = 1 << 16;
/// How often each is measured; the fastest counts.
const TIMES: usize = 6;

/// Bytes of a packet, and nanoseconds that it takes on both sides, without the copies.
const MTU: f64 = 8900.0;
const PACKET: f64 = 120.0;
/// Nanoseconds that a byte of a packet is on the way between two caches.
const CROSSING: f64 = 0.02;
/// Nanoseconds of the packets around a read.
const AROUND: f64 = 400.0;
/// Nanoseconds until a target has found the request to write its part, and checked it.
const ASKING: f64 = 700.0;

/// What copies cost in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// Of a byte that a program copies.
    copy: f64,
    /// Of a call that has the kernel read, and of a byte of it.
    call: f64,
    read: f64,
}

impl Costs {
    /// `None` if the kernel reads nothing.
    fn measure() -> Option<Self> {
        let from = vec![1_u64; LONG / size_of::<u64>()];
        let mut into = vec![0_u64; from.len()];
        let process = i32::try_from(std::process::id()).ok()?;
        let address = from.as_ptr().expose_provenance() as u64;
        let mut read = |length: usize| {
            let into = &mut into[..length / size_of::<u64>()];
            fastest(|| read_process(process, address, into).is_ok())
        };
        let (short, long) = (read(SHORT)?, read(LONG)?);
        let copy = fastest(|| {
            into.copy_from_slice(black_box(&from));
            black_box(&into);
            true
        })?;
        let read = ((long - short) / (LONG - SHORT) as f64).max(0.0);
        let call = (short - read * SHORT as f64).max(0.0);
        Some(Self { copy: copy / LONG as f64, call, read })
    }

    /// The shortest length from which on reads are faster.
    fn threshold(self) -> u64 {
        let pays = |&length: &u64| self.of_read(length) <= self.of_packets(length);
        lengths().find(pays).unwrap_or(LONGEST)
    }

    fn of_packets(self, length: u64) -> f64 {
        (2.0 * self.copy + CROSSING + PACKET / MTU) * length as f64
    }

    fn of_read(self, length: u64) -> f64 {
        let alone = self.read * length as f64;
        let shared = ASKING + self.read * (length + LATER as u64) as f64 / 2.0;
        let copy = if length < SHARED_FROM as u64 { alone } else { alone.min(shared) };
        AROUND + self.call + copy
    }
}

/// Powers of two, and one and a half times those.
fn lengths() -> impl Iterator<Item = u64> {
    (0..)
        .flat_map(|power| [SHORTEST << power, (SHORTEST / 3 * 4) << power])
        .take_while(|&n| n < LONGEST)
}

/// Nanoseconds of the fastest of some runs; `None` if one fails.
fn fastest(mut run: impl FnMut() -> bool) -> Option<f64> {
    let mut fastest = Duration::MAX;
    for _ in 0..TIMES {
        let begin = Instant::now();
        if !run() {
            return None;
        }
        fastest = fastest.min(begin.elapsed());
    }
    Some(fastest.as_nanos() as f64)
}

/// Bytes from which on a message is read by the kernel and not sent in packets, on this machine.
pub(super) fn reads_pay_from() -> u64 {
    /// 0 before. Not a lock: a child that is forked while a thread measures would wait for that thread.
    static MEASURED: AtomicU64 = AtomicU64::new(0);
    let known = MEASURED.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let costs = Costs::measure();
    let length = costs.map_or(LONGEST, Costs::threshold);
    tracing::debug!(?costs, length, "reads pay from this length on");
    // All of the process have what the first thread has measured.
    match MEASURED.compare_exchange(0, length, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => length,
        Err(first) => first,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_between_the_shortest_and_the_longest() {
        let lengths: Vec<u64> = lengths().collect();
        assert_eq!(lengths[..4], [12 << 10, 16 << 10, 24 << 10, 32 << 10]);
        assert_eq!(lengths.last(), Some(&(768 << 10)));
    }

    /// Two machines on which `cargo xtask bench peers` was run.
    #[test]
    fn reads_pay_late_where_the_kernel_copies_slowly_and_early_where_it_copies_as_programs_do() {
        let slow = Costs { copy: 0.009, call: 500.0, read: 0.062 };
        assert_eq!(slow.threshold(), 128 << 10);
        let fast = Costs { copy: 0.025, call: 400.0, read: 0.03 };
        assert_eq!(fast.threshold(), 16 << 10);
        let free = Costs { copy: 1.0, call: 0.0, read: 0.0 };
        assert_eq!(free.threshold(), SHORTEST);
    }

    #[test]
    fn measured_length_is_in_bounds_and_the_same_again() {
        let length = reads_pay_from();
        assert!((SHORTEST..=LONGEST).contains(&length), "{length}");
        assert_eq!(reads_pay_from(), length);
        let costs = Costs::measure().expect("a process may read itself");
        assert!(costs.copy > 0.0 && costs.call >= 0.0 && costs.read >= 0.0, "{costs:?}");
        println!("{costs:?} {length}");
    }
}
