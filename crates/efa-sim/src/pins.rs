//! Which processes are about to write to the regions of a device.
//!
//! A process that writes to another's region *pins* its key for that time. The owner removes the key first
//! and then waits until it isn't pinned, so that no copy ends up in memory that was freed. Reads need no
//! pin: the reader checks the key after the copy.
//!
//! ```text
//!  0  pins of 32 bytes: process | address of the holder's word | key
//! ```
//!
//! All processes of the host write here. So the owner believes no pin: it asks the kernel for the holder's
//! [word](Word), which is in the memory of the process that the pin names. A pin that its process doesn't
//! confirm, or whose process has ended, counts for nothing.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::io::Errno;

use crate::map::Map;
use crate::memory::read_process;

const PIN: usize = 32;
/// Most copies at a time to the memory of one process.
const COUNT: usize = 128;
/// Bytes of the pins of a device.
pub(crate) const LENGTH: usize = PIN * COUNT;

/// The pins of a device, in this process or another.
#[derive(Debug)]
pub(crate) struct Pins {
    map: Map,
    /// This process.
    me: u32,
}

// SAFETY: `Pins` accesses its map through `Map::words` only, that is through atomics; it never calls
// `copy_in` and `copy_out`, which are plain copies.
unsafe impl Sync for Pins {}

/// What the holder of a pin has in its own memory: the owner's cookie and the key.
type Word = [AtomicU64; 2];

impl Pins {
    /// In `map`, which has [`LENGTH`] bytes.
    pub(crate) fn new(map: Map) -> Self {
        Self { map, me: std::process::id() }
    }

    fn pin(&self, at: usize) -> &[AtomicU64; 3] {
        self.map.words(at % COUNT * PIN)
    }

    /// Pins `key` of the owner with this cookie while `copy` runs. `None` if there are too many pins.
    ///
    /// `copy` must look at the key again: it may have been removed just before.
    pub(crate) fn hold<T>(&self, cookie: u64, key: u32, copy: impl FnOnce() -> T) -> Option<T> {
        let held: Word = [AtomicU64::new(cookie), AtomicU64::new(key.into())];
        let [process, address, pinned] = self.claim().or_else(|| self.take_over())?;
        address.store((&raw const held).expose_provenance() as u64, Ordering::Relaxed);
        pinned.store(key.into(), Ordering::Release);
        // Pairs with the fence in `Slots::clear`: either `copy` sees the removed key, or the owner sees
        // the pin.
        fence(Ordering::SeqCst);
        let result = copy();
        pinned.store(0, Ordering::Release);
        process.store(0, Ordering::Release);
        // No longer confirmed, even if another process restores the pin.
        held[1].store(0, Ordering::Relaxed);
        Some(result)
    }

    /// A free pin, which is then this process's.
    fn claim(&self) -> Option<&[AtomicU64; 3]> {
        // Processes begin at different pins.
        let (first, me) = (self.me as usize, u64::from(self.me));
        (first..first + COUNT).map(|at| self.pin(at)).find(|[process, ..]| {
            process.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })
    }

    /// A pin that an ended process left. One of a living process stays, whatever is in it: that process may be
    /// about to write to it.
    #[cold]
    fn take_over(&self) -> Option<&[AtomicU64; 3]> {
        (0..COUNT).map(|at| self.pin(at)).find(|[process, ..]| {
            let holder = process.load(Ordering::Acquire);
            let me = u64::from(self.me);
            // Nothing is at the address 0: the answer is about the process.
            look(holder, 0, &mut [0; 2]) == Err(Errno::SRCH)
                && process
                    .compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
        })
    }

    /// Whether a process may be copying to the region of a removed key of the device with this cookie.
    pub(crate) fn has(&self, cookie: u64, key: u32) -> bool {
        (0..COUNT).any(|at| {
            self.pin(at)[2].load(Ordering::Acquire) == u64::from(key)
                && self.is_confirmed(at, cookie, key)
        })
    }

    #[cold]
    fn is_confirmed(&self, at: usize, cookie: u64, key: u32) -> bool {
        let [process, address, _] = self.pin(at);
        let mut there = [0; 2];
        let (process, address) = (process.load(Ordering::Acquire), address.load(Ordering::Relaxed));
        match look(process, address, &mut there) {
            Ok(()) => there == [cookie, key.into()],
            Err(errno) => is_unknown(errno),
        }
    }
}

/// Whether the kernel doesn't tell what a process has in its memory: then its pin may be true.
fn is_unknown(errno: Errno) -> bool {
    matches!(errno, Errno::PERM | Errno::ACCESS | Errno::NOSYS)
}

fn look(process: u64, address: u64, into: &mut [u64; 2]) -> Result<(), Errno> {
    let process = libc::pid_t::try_from(process).map_err(|_| Errno::SRCH)?;
    read_process(process, address, into)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COOKIE: u64 = 77;

    fn pins() -> Pins {
        Pins::new(Map::anonymous(LENGTH).unwrap())
    }

    /// As another process may write it.
    fn write(pins: &Pins, at: usize, words: [u64; 3]) {
        for (word, value) in pins.pin(at).iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
    }

    #[test]
    fn key_is_pinned_during_the_copy_only() {
        let pins = pins();
        let seen = pins.hold(COOKIE, 5, || [pins.has(COOKIE, 5), pins.has(COOKIE, 6)]);
        assert_eq!(seen, Some([true, false]));
        assert!(!pins.has(COOKIE, 5));
        assert_eq!(pins.hold(COOKIE, 5, || pins.has(COOKIE + 1, 5)), Some(false));
    }

    #[test]
    fn pin_that_its_process_does_not_confirm_counts_for_nothing() {
        let pins = pins();
        let other = [COOKIE, 6];
        let me = std::process::id().into();
        let address = (&raw const other).expose_provenance() as u64;
        for words in [
            [me, address, 5],
            [me, 0, 5],
            [0x3fff_ffff, address, 5],
            [0, address, 5],
            [u64::MAX, u64::MAX, 5],
        ] {
            write(&pins, 3, words);
            assert!(!pins.has(COOKIE, 5), "{words:?}");
        }
        write(&pins, 3, [me, address, 6]);
        assert!(pins.has(COOKIE, 6), "a true one");
    }

    #[test]
    fn pins_of_ended_processes_are_taken_over_and_those_of_living_ones_are_not() {
        let pins = pins();
        for words in [[0x3fff_ffff, 0, 0], [0x3fff_ffff, 8, 5], [u64::MAX, 0, 0]] {
            (0..COUNT).for_each(|at| write(&pins, at, words));
            assert_eq!(pins.hold(COOKIE, 9, || pins.has(COOKIE, 9)), Some(true), "{words:?}");
        }
        let me = u64::from(std::process::id());
        for claimed in [[me, 0, 0], [me, 8, 0], [me, 8, 5]] {
            (0..COUNT).for_each(|at| write(&pins, at, claimed));
            assert_eq!(pins.hold(COOKIE, 9, || ()), None, "{claimed:?}");
        }
    }
}
