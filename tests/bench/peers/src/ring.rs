//! A limit: two rings of cache lines in shared memory, one in each direction. A line is a message.
//!
//! ```text
//!   line   7 words of the message │ number of the message + 1, written last
//!   taken  messages that the receiver has taken, in a line of its own: the sender reads it when the ring looks full
//! ```

use std::fs::File;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::measure::{MAX_WINDOW, Point, SENT, Transport, UNSENT};
use crate::ours::PATIENCE;

/// Most bytes of a message.
pub(crate) const MOST: usize = (WORDS - 1) * 8;
const WORDS: usize = 8;
const LINES: usize = 1024;

#[repr(C, align(64))]
struct Line([AtomicU64; WORDS]);

#[repr(C)]
struct Lane {
    lines: [Line; LINES],
    taken: Line,
}

type Buffer = [u64; WORDS - 1];

/// A side of both rings.
pub(crate) struct Lanes {
    out: &'static Lane,
    into: &'static Lane,
    sent: u64,
    /// As last read.
    taken: u64,
    received: u64,
}

impl Lanes {
    pub(crate) fn open(directory: &Path, role: &str) -> Result<Self> {
        let path = directory.join("ring");
        let length = 2 * size_of::<Lane>();
        if role == "server" {
            let unfinished = directory.join("ring.new");
            std::fs::write(&unfinished, vec![0; length])?;
            std::fs::rename(unfinished, &path)?;
        }
        let begin = Instant::now();
        while !path.is_file() {
            ensure!(begin.elapsed() < PATIENCE, "no {}", path.display());
            std::thread::sleep(Duration::from_millis(2));
        }
        let file = File::options().read(true).write(true).open(&path)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses the place. The file has this length before it has its name.
        let base = unsafe { mmap(std::ptr::null_mut(), length, access, flags, &file, 0)? };
        let base = NonNull::new(base.cast::<Lane>()).context("a mapping at 0")?;
        // SAFETY: two lanes are mapped there, never unmapped, page-aligned; zeros are a lane, and both processes access
        // its words as atomics.
        let (first, second) = unsafe { (base.as_ref(), base.add(1).as_ref()) };
        let (out, into) = if role == "client" { (first, second) } else { (second, first) };
        Ok(Self { out, into, sent: 0, taken: 0, received: 0 })
    }

    /// Sends a line, waiting for room.
    pub(crate) fn put(&mut self, words: &[u64]) {
        while self.sent - self.taken >= LINES as u64 {
            self.taken = self.out.taken.0[0].load(Ordering::Acquire);
        }
        let line = &self.out.lines[self.sent as usize % LINES].0;
        for (to, from) in line.iter().zip(words) {
            to.store(*from, Ordering::Relaxed);
        }
        self.sent += 1;
        line[WORDS - 1].store(self.sent, Ordering::Release);
    }

    /// Waits for a line.
    pub(crate) fn take(&mut self, words: &mut [u64]) {
        let line = &self.into.lines[self.received as usize % LINES].0;
        while line[WORDS - 1].load(Ordering::Acquire) != self.received + 1 {
            std::hint::spin_loop();
        }
        for (to, from) in words.iter_mut().zip(line) {
            *to = from.load(Ordering::Relaxed);
        }
        self.received += 1;
        // Seldom, as each costs the sender a miss.
        if self.received.is_multiple_of(LINES as u64 / 4) {
            self.into.taken.0[0].store(self.received, Ordering::Release);
        }
    }
}

/// Messages that are lines.
pub(crate) struct Ring {
    lanes: Lanes,
    from: [Buffer; MAX_WINDOW],
    to: [Buffer; MAX_WINDOW],
}

impl Ring {
    pub(crate) fn open(directory: &Path, role: &str) -> Result<Self> {
        let from = [[u64::from_ne_bytes([SENT; 8]); WORDS - 1]; MAX_WINDOW];
        let to = [[u64::from_ne_bytes([UNSENT; 8]); WORDS - 1]; MAX_WINDOW];
        Ok(Self { lanes: Lanes::open(directory, role)?, from, to })
    }
}

fn buffer(point: Point, slot: usize) -> usize {
    if point.has_each { slot } else { 0 }
}

impl Transport for Ring {
    fn receive(&mut self, _point: Point, _slot: usize) -> Result<()> {
        Ok(())
    }

    fn send(&mut self, point: Point, slot: usize) -> Result<()> {
        let words = self.from[buffer(point, slot)];
        self.lanes.put(&words[..point.size.div_ceil(8)]);
        Ok(())
    }

    fn await_receive(&mut self, point: Point, slot: usize) -> Result<()> {
        let at = buffer(point, slot);
        let mut words = self.to[at];
        self.lanes.take(&mut words[..point.size.div_ceil(8)]);
        self.to[at] = words;
        Ok(())
    }

    fn await_send(&mut self, _slot: usize) -> Result<()> {
        Ok(())
    }

    fn tell(&mut self, number: u64) -> Result<()> {
        self.lanes.put(&[number]);
        Ok(())
    }

    fn hear(&mut self) -> Result<u64> {
        let mut words = [0];
        self.lanes.take(&mut words);
        Ok(words[0])
    }

    fn received_byte(&self, point: Point, slot: usize, at: usize) -> u8 {
        self.to[buffer(point, slot)][at / 8].to_ne_bytes()[at % 8]
    }

    fn forget(&mut self, point: Point, slot: usize) {
        self.to[buffer(point, slot)].fill(u64::from_ne_bytes([UNSENT; 8]));
    }
}
