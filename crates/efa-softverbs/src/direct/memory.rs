//! Memory that the device shares with the program.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::boundary::{Errno, FULL, Outcome};

/// Pages of zeros that the program reads and writes at any time. Here they are only atomics.
#[derive(Debug)]
pub(crate) struct Pages {
    base: NonNull<AtomicU64>,
    /// Words of 8 bytes.
    words: usize,
}

// SAFETY: the pages are mapped for all threads, and this value alone unmaps them.
unsafe impl Send for Pages {}
// SAFETY: they are read and written as atomics only.
unsafe impl Sync for Pages {}

impl Pages {
    /// At least `length` bytes.
    pub(crate) fn new(length: usize) -> Outcome<Self> {
        let length = length.max(1).checked_next_multiple_of(4096).ok_or(FULL)?;
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { libc::mmap(null_mut(), length, access, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            let errno = std::io::Error::last_os_error().raw_os_error();
            return Err(Errno(errno.unwrap_or(libc::ENOMEM)));
        }
        let base = NonNull::new(base.cast()).ok_or(FULL)?;
        Ok(Self { base, words: length / 8 })
    }

    /// For the program. The pages stay mapped until this value is dropped.
    pub(crate) fn address(&self) -> *mut u8 {
        self.base.as_ptr().cast()
    }

    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is aligned, has this many words and exists as long as `self`; zeros are a
        // value, and any bytes that the program writes are one.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    fn length(&self) -> usize {
        8 * self.words
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nothing borrows it any more. The program must not use it
        // after it has destroyed the object that it belongs to, as with the real library.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length()) };
    }
}

/// The doorbells of a queue pair: a page of its own.
#[derive(Debug)]
pub(crate) struct Doorbells(Pages);

/// Which of the doorbells of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doorbell {
    Send,
    Receive,
}

impl Doorbell {
    /// Offset in the page in bytes: in a cache line of its own.
    const fn offset(self) -> usize {
        match self {
            Self::Send => 0,
            Self::Receive => 128,
        }
    }
}

impl Doorbells {
    pub(crate) fn new() -> Outcome<Self> {
        Pages::new(4096).map(Self)
    }

    /// For the program.
    pub(crate) fn address(&self, which: Doorbell) -> *mut u32 {
        self.0.address().wrapping_add(which.offset()).cast()
    }

    fn cell(&self, which: Doorbell) -> &AtomicU32 {
        // SAFETY: the offset is within the page and aligned; any bytes are a value, and the page exists as
        // long as `self`. It is accessed as 32-bit atomics only, by this function.
        unsafe { &*self.address(which).cast::<AtomicU32>() }
    }

    /// What the program has written last. What it wrote to the ring before is visible after this.
    #[inline]
    pub(crate) fn rung(&self, which: Doorbell) -> u32 {
        self.cell(which).load(Ordering::Acquire)
    }
}
