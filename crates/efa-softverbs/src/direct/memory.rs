//! Memory that the device shares with the program.

use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::boundary::{Errno, FULL, INVALID, Outcome};
use crate::memory::MappedFile;
use crate::settings::DirectPath;

/// Bytes of a page of doorbells.
pub(crate) const PAGE: usize = 4096;

/// Memory that the program reads and writes at any time: pages of zeros, or a part of its file. Here it is only atomics.
#[derive(Debug)]
pub(crate) struct Pages {
    base: NonNull<AtomicU64>,
    /// Words of 8 bytes.
    words: usize,
    /// What keeps them mapped, if they are in a file of the program.
    file: Option<MappedFile>,
}

// SAFETY: the pages are mapped for all threads, and this value alone unmaps them.
unsafe impl Send for Pages {}
// SAFETY: they are read and written as atomics only.
unsafe impl Sync for Pages {}

impl Pages {
    /// At least `length` bytes.
    pub(crate) fn new(length: usize) -> Outcome<Self> {
        Self::with_flags(length, libc::MAP_PRIVATE)
    }

    /// A part of the program's file, of `length` bytes. Fails with `EINVAL` if it isn't made of whole words.
    pub(crate) fn in_file(file: MappedFile, length: usize) -> Outcome<Self> {
        let base: NonNull<AtomicU64> = NonNull::new(file.base().cast()).ok_or(INVALID)?;
        if !base.is_aligned() {
            return Err(INVALID);
        }
        Ok(Self { base, words: length / 8, file: Some(file) })
    }

    fn with_flags(length: usize, flags: c_int) -> Outcome<Self> {
        let length = length.max(1).checked_next_multiple_of(PAGE).ok_or(FULL)?;
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, flags | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { libc::mmap(null_mut(), length, access, flags, -1, 0) };
        Self::mapped(base, length)
    }

    /// The same memory at another address. It must be shared.
    fn again(&self) -> Outcome<Self> {
        let (base, length) = (self.base.as_ptr().cast(), self.length());
        // SAFETY: an old length of 0 leaves the old mapping as it is and makes a second one of a shared mapping,
        // at an address that the kernel chooses.
        let base = unsafe { libc::mremap(base, 0, length, libc::MREMAP_MAYMOVE) };
        Self::mapped(base, length)
    }

    fn mapped(base: *mut c_void, length: usize) -> Outcome<Self> {
        if base == libc::MAP_FAILED {
            return Err(last_errno());
        }
        let base = NonNull::new(base.cast()).ok_or(FULL)?;
        Ok(Self { base, words: length / 8, file: None })
    }

    /// Allows or forbids that the pages are written at this address.
    fn allow_writing(&self, allowed: bool) -> Outcome<()> {
        let access = libc::PROT_READ | if allowed { libc::PROT_WRITE } else { 0 };
        // SAFETY: the mapping is this value's. Where writing is forbidden, this library doesn't write: see
        // `Doorbells`.
        let result = unsafe { libc::mprotect(self.base.as_ptr().cast(), self.length(), access) };
        if result == 0 { Ok(()) } else { Err(last_errno()) }
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
        if self.file.is_some() {
            return;
        }
        // SAFETY: the mapping is this value's, and nothing borrows it any more. The program must not use it
        // after it has destroyed the object that it belongs to, as with the real library.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length()) };
    }
}

fn last_errno() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOMEM))
}

/// The doorbells of a queue pair, or the one of a completion queue: a page of its own.
#[derive(Debug)]
pub(crate) struct Doorbells {
    /// What the program has.
    page: Pages,
    /// The same memory for this library, if the program can't write the page.
    own: Option<Pages>,
}

/// Which of the doorbells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doorbell {
    Send,
    Receive,
    /// Of a completion queue.
    Completions,
}

impl Doorbell {
    const ALL: [Self; 3] = [Self::Send, Self::Receive, Self::Completions];

    /// Offset in the page in bytes: in a cache line of its own.
    const fn offset(self) -> usize {
        match self {
            Self::Send => 0,
            Self::Receive => 128,
            Self::Completions => 256,
        }
    }
}

impl Doorbells {
    fn new() -> Outcome<Self> {
        Ok(Self { page: Pages::new(PAGE)?, own: None })
    }

    /// As the settings want them.
    pub(crate) fn of(direct: DirectPath) -> Outcome<Self> {
        match direct {
            DirectPath::Trap => Self::that_trap(),
            DirectPath::Thread | DirectPath::Off => Self::new(),
        }
    }

    /// Doorbells at which the program's writes fault.
    fn that_trap() -> Outcome<Self> {
        let page = Pages::with_flags(PAGE, libc::MAP_SHARED)?;
        let own = page.again()?;
        page.allow_writing(false)?;
        Ok(Self { page, own: Some(own) })
    }

    /// Whether they were made so.
    pub(crate) fn trap(&self) -> bool {
        self.own.is_some()
    }

    /// Ends that writes fault.
    pub(crate) fn release(&self) -> Outcome<()> {
        self.page.allow_writing(true)
    }

    /// Sets them to 0.
    pub(crate) fn reset(&self) {
        for which in Doorbell::ALL {
            self.cell(which).store(0, Ordering::Release);
        }
    }

    /// Does a write of the program that has faulted.
    pub(crate) fn ring(&self, address: usize, count: u32) {
        for which in Doorbell::ALL {
            if self.address(which).addr() == address {
                self.cell(which).store(count, Ordering::Release);
            }
        }
    }

    /// Does such a write, but keeps these bits where they are set.
    pub(crate) fn replace(&self, which: Doorbell, word: u32, keep: u32) {
        let kept = |before| Some(word | before & keep);
        // Never fails, as `kept` always has a value.
        let _ = self.cell(which).fetch_update(Ordering::AcqRel, Ordering::Acquire, kept);
    }

    /// Address of the page.
    pub(crate) fn page_address(&self) -> usize {
        self.page.address().addr()
    }

    /// For the program.
    pub(crate) fn address(&self, which: Doorbell) -> *mut u32 {
        self.page.address().wrapping_add(which.offset()).cast()
    }

    fn cell(&self, which: Doorbell) -> &AtomicU32 {
        let page = self.own.as_ref().unwrap_or(&self.page);
        // SAFETY: the offset is within the page and aligned; any bytes are a value, and the page exists as
        // long as `self`. It is accessed as 32-bit atomics only, by this function.
        unsafe { &*page.address().wrapping_add(which.offset()).cast::<AtomicU32>() }
    }

    /// What the program has written last. What it wrote to the ring before is visible after this.
    #[inline]
    pub(crate) fn rung(&self, which: Doorbell) -> u32 {
        self.cell(which).load(Ordering::Acquire)
    }

    /// What the program has written last; clears these bits of it.
    pub(crate) fn take(&self, which: Doorbell, bits: u32) -> u32 {
        self.cell(which).fetch_and(!bits, Ordering::AcqRel)
    }
}
