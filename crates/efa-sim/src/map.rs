//! Mapped memory that other processes may write at any time.
//!
//! A [`Map`] offers two things: 64-bit words as atomics, and copies of bytes, in and out. There is never
//! a reference to plain bytes of the mapping, so another process that writes them can't break a rule of
//! the language; the copy then has bytes of unknown value.
//!
//! # Truncated files
//!
//! Touching a page beyond the end of a file raises SIGBUS. The length is checked when a file is
//! mapped; afterwards only the owner of the directory (same user, mode 0700) could truncate it,
//! and no version of this code does. Storage is allocated before a file is mapped, so that a full
//! file system is an error of that call and not a SIGBUS.
//!
//! # Forks
//!
//! A forked child has zeros instead of the shared mappings of its parent (see [`crate::fork`]).

#![allow(unsafe_code)]

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use std::arch::asm;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use efa_device::{CopySource, CopyTarget};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::fork::Shared;
use crate::store::{LINE, Store};

/// A shared mapping of a part of a file, or anonymous memory, for reading and writing.
#[derive(Debug)]
pub(crate) struct Map {
    base: NonNull<u8>,
    length: usize,
    /// Of a shared mapping.
    shared: Option<Shared>,
}

/// A shared mapping of the front of a file, for reading only: the processor refuses a write to it.
#[derive(Debug)]
pub(crate) struct View(Map);

// SAFETY: a `View` reads its mapping by atomics only.
unsafe impl Sync for View {}

// SAFETY: a mapping is valid in all threads of the process, and this value alone unmaps it.
unsafe impl Send for Map {}

impl Map {
    /// Maps the first `length` bytes of `file`, which must have that length at least.
    pub(crate) fn new(file: impl AsFd, length: usize) -> Result<Self, Errno> {
        Self::part(file, 0, length)
    }

    /// Maps `length` bytes of `file` from `offset` on, a multiple of the size of a page. The file must
    /// reach to their end at least.
    pub(crate) fn part(file: impl AsFd, offset: usize, length: usize) -> Result<Self, Errno> {
        Self::with_access(file, offset, length, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn with_access(
        file: impl AsFd,
        offset: usize,
        length: usize,
        access: ProtFlags,
    ) -> Result<Self, Errno> {
        let size = usize::try_from(rustix::fs::fstat(&file)?.st_size).map_err(|_| Errno::INVAL)?;
        let end = offset.checked_add(length).ok_or(Errno::INVAL)?;
        if length == 0 || size < end {
            return Err(Errno::INVAL);
        }
        // SAFETY: the address is null, so the kernel chooses an unused range: no memory in use is
        // replaced.
        let base = unsafe {
            mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, file, offset as u64)?
        };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let shared = Some(Shared::mapping(base.addr().get(), length));
        Ok(Self { base, length, shared })
    }

    /// Anonymous private memory, all zero.
    pub(crate) fn anonymous(length: usize) -> Result<Self, Errno> {
        // SAFETY: the address is null, so the kernel chooses an unused range: no memory in use is
        // replaced.
        let base = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(std::ptr::null_mut(), length, access, MapFlags::PRIVATE)?
        };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, length, shared: None })
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    /// The `N` words from byte `offset` on.
    ///
    /// # Panics
    /// If the words are outside the mapping or not aligned. Offsets come from layouts that were checked
    /// against the length, never from another process.
    #[inline(always)]
    pub(crate) fn words<const N: usize>(&self, offset: usize) -> &[AtomicU64; N] {
        let room = self.length.checked_sub(N * 8);
        if room.is_none_or(|last| offset > last) || !offset.is_multiple_of(8) {
            self.no_words(offset, N * 8);
        }
        // SAFETY: the range is inside the mapping (checked above), which lasts as long as `self`. The
        // base is page aligned and the offset a multiple of 8. Every bit pattern is a valid AtomicU64.
        // Layouts keep words and bytes apart, so `copy_in` and `copy_out` never access these bytes.
        unsafe { self.base.add(offset).cast().as_ref() }
    }

    /// Copies bytes out, from `offset` on.
    ///
    /// If another process writes them meanwhile, in breach of the link's protocol, the copy may have old
    /// and new bytes.
    ///
    /// # Panics
    /// As [`words`](Self::words).
    #[inline]
    pub(crate) fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.take(offset, into.len(), |bytes| bytes.copy_to(0, into));
    }

    /// Copies bytes in, from `offset` on.
    ///
    /// # Panics
    /// As [`words`](Self::words).
    #[inline(always)]
    pub(crate) fn copy_in(&self, offset: usize, from: &[u8]) {
        self.target(offset, from.len()).copy_from(0, from);
    }

    /// As [`copy_in`](Self::copy_in), for bytes of many lines that another processor has.
    ///
    /// # Panics
    /// As [`words`](Self::words).
    #[inline(never)]
    pub(crate) fn copy_lines_in(&self, offset: usize, from: &[u8]) {
        self.fill(offset, from.len(), |mut bytes| bytes.copy_lines_from(0, from));
    }

    /// Calls `fill` with `length` bytes from `offset` on, to be written.
    ///
    /// # Panics
    /// As [`words`](Self::words).
    #[inline(always)]
    pub(crate) fn fill(&self, offset: usize, length: usize, fill: impl FnOnce(CopyTarget<'_>)) {
        fill(self.target(offset, length));
    }

    #[inline(always)]
    fn target(&self, offset: usize, length: usize) -> CopyTarget<'_> {
        self.check(offset, length);
        // SAFETY: the target is inside the mapping (checked above), which lasts as long as `self`. There is no reference
        // to bytes of it. In this process the ring's other end reads the target only after it was published or
        // acknowledged, which follows its use.
        unsafe { CopyTarget::from_raw(self.base.add(offset), length) }
    }

    /// Calls `take` with `length` bytes from `offset` on, to be copied.
    ///
    /// # Panics
    /// As [`words`](Self::words).
    #[inline(always)]
    pub(crate) fn take(&self, offset: usize, length: usize, take: impl FnOnce(CopySource<'_>)) {
        self.check(offset, length);
        // SAFETY: the source is inside the mapping (checked above), which lasts as long as `self`. There is no reference
        // to bytes of it. In this process only the ring's two ends write the source: the sender no slot that was not
        // acknowledged, the receiver none that was.
        take(unsafe { CopySource::from_raw(self.base.add(offset), length) });
    }

    /// Has the processor fetch the cache lines of `length` bytes from `offset` on, to be written soon. No more than a hint.
    pub(crate) fn expect_write(&self, offset: usize, length: usize) {
        for line in (offset..offset.saturating_add(length)).step_by(LINE) {
            self.expect_write_of_line(line);
        }
    }

    /// The same of one line.
    #[inline(always)]
    pub(crate) fn expect_write_of_line(&self, offset: usize) {
        let at = self.base.as_ptr().wrapping_add(offset);
        // SAFETY: these instructions access no memory, and raise nothing at any address. Processors without
        // `prefetchw` take it for no operation.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!("prefetchw [{}]", in(reg) at, options(readonly, nostack, preserves_flags));
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            asm!("prfm pstl1keep, [{}]", in(reg) at, options(readonly, nostack, preserves_flags));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = at;
    }

    /// Has the processor fetch the cache lines of `length` bytes from `offset` on, to be read soon. No more than a hint.
    #[inline(always)]
    pub(crate) fn expect_read(&self, offset: usize, length: usize) {
        for line in (offset..offset.saturating_add(length)).step_by(LINE) {
            let at = self.base.as_ptr().wrapping_add(line);
            // SAFETY: this instruction accesses no memory, and raises nothing at any address.
            #[cfg(target_arch = "x86_64")]
            unsafe {
                asm!("prefetcht0 [{}]", in(reg) at, options(readonly, nostack, preserves_flags));
            }
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            unsafe {
                asm!("prfm pldl1keep, [{}]", in(reg) at, options(readonly, nostack, preserves_flags));
            }
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            let _ = at;
        }
    }

    /// The address of the `length` bytes from `offset` on.
    ///
    /// # Panics
    /// As [`words`](Self::words).
    pub(crate) fn pointer(&self, offset: usize, length: usize) -> *mut u8 {
        self.check(offset, length);
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Copies `length` bytes out, from `offset` on. If another process writes them meanwhile, the copy may have old and
    /// new bytes.
    ///
    /// # Safety
    /// `into` has this length, and nobody else in this process accesses it.
    ///
    /// # Panics
    /// As [`words`](Self::words).
    pub(crate) unsafe fn copy_to(&self, offset: usize, into: *mut u8, length: usize, store: Store) {
        let from = self.pointer(offset, length);
        // SAFETY: the source is inside the mapping (checked above), the target what the caller promises. `copy` allows
        // that they overlap.
        unsafe { store.copy(from, into, length) };
    }

    /// Copies `length` bytes in, from `offset` on.
    ///
    /// # Safety
    /// `from` has this length, and nobody in this process writes it.
    ///
    /// # Panics
    /// As [`words`](Self::words).
    pub(crate) unsafe fn copy_from(
        &self,
        offset: usize,
        from: *const u8,
        length: usize,
        store: Store,
    ) {
        let into = self.pointer(offset, length);
        // SAFETY: as in `copy_to`, with source and target exchanged.
        unsafe { store.copy(from, into, length) };
    }

    #[cold]
    #[inline(never)]
    fn no_words(&self, offset: usize, length: usize) -> ! {
        self.check(offset, length);
        unaligned(offset)
    }

    #[inline]
    fn check(&self, offset: usize, length: usize) {
        if offset.checked_add(length).is_none_or(|end| end > self.length) {
            outside(offset, length, self.length);
        }
    }
}

/// A mapping, and a word of it that is read again and again, and is checked once.
#[derive(Debug)]
pub(crate) struct WatchedMap {
    map: Arc<Map>,
    word: NonNull<AtomicU64>,
}

/// A word of a mapping, which it keeps mapped.
#[derive(Debug)]
pub(crate) struct Word {
    map: Arc<Map>,
    word: NonNull<AtomicU64>,
}

// SAFETY: the word is one of the mapping, which is valid in all threads. Who else has the mapping, by a `Word`, accesses
// that word only.
unsafe impl Send for WatchedMap {}

// SAFETY: it accesses nothing but the word, by atomics. The last who has the mapping unmaps it.
unsafe impl Send for Word {}

impl Word {
    /// Becomes the word that a mapping watches now.
    pub(crate) fn follow(&mut self, watched: &WatchedMap) {
        if !Arc::ptr_eq(&self.map, &watched.map) {
            self.map = Arc::clone(&watched.map);
        }
        self.word = watched.word;
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> &AtomicU64 {
        // SAFETY: it is inside the mapping, which lasts as long as `self`.
        unsafe { self.word.as_ref() }
    }
}

impl WatchedMap {
    /// Watches the word at byte `offset`.
    ///
    /// # Panics
    /// As [`Map::words`].
    pub(crate) fn new(map: Map, offset: usize) -> Self {
        let [word] = map.words(offset);
        let word = NonNull::from(word);
        #[allow(clippy::arc_with_non_send_sync, reason = "others use the word only, see `Word`")]
        let map = Arc::new(map);
        Self { map, word }
    }

    /// The word that is watched now, for itself.
    pub(crate) fn handle(&self) -> Word {
        Word { map: Arc::clone(&self.map), word: self.word }
    }

    /// Watches another word.
    ///
    /// # Panics
    /// As [`Map::words`].
    #[inline(always)]
    pub(crate) fn watch(&mut self, offset: usize) {
        let [word] = self.map.words(offset);
        self.word = NonNull::from(word);
    }

    /// The word.
    #[inline(always)]
    pub(crate) fn word(&self) -> &AtomicU64 {
        // SAFETY: it is inside the mapping, which lasts as long as `self`.
        unsafe { self.word.as_ref() }
    }
}

impl Deref for WatchedMap {
    type Target = Map;

    #[inline(always)]
    fn deref(&self) -> &Map {
        &self.map
    }
}

impl View {
    /// Maps the first `length` bytes of `file`, which must have that length at least.
    pub(crate) fn new(file: impl AsFd, length: usize) -> Result<Self, Errno> {
        Map::with_access(file, 0, length, ProtFlags::READ).map(Self)
    }

    /// The word at byte `offset`, read with acquire order. The fence has it: an atomic load from memory that can't be
    /// written has to be a relaxed one.
    ///
    /// # Panics
    /// As [`Map::words`].
    #[inline]
    pub(crate) fn load(&self, offset: usize) -> u64 {
        let word = self.0.words::<1>(offset)[0].load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        word
    }
}

/// Apart from the check, so that only the check is inlined.
#[cold]
#[inline(never)]
fn outside(offset: usize, length: usize, of: usize) -> ! {
    panic!("{length} bytes at {offset} of a mapping of {of} bytes");
}

#[cold]
#[inline(never)]
fn unaligned(offset: usize) -> ! {
    panic!("an unaligned word at {offset}");
}

impl Drop for Map {
    fn drop(&mut self) {
        self.shared = None;
        // SAFETY: base and length are those that `new` or `anonymous` got from the kernel. References to
        // words borrow `self`, so none is left.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn two_mappings_of_a_file_have_the_same_content() {
        let file = memfd_create("efa-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 100).unwrap();
        let (a, b) = (Map::new(&file, 100).unwrap(), Map::new(&file, 64).unwrap());
        a.words::<2>(8)[1].store(7, Ordering::Release);
        assert_eq!(b.words::<1>(16)[0].load(Ordering::Acquire), 7);
        a.copy_in(61, b"abc");
        let mut bytes = [0; 3];
        b.copy_out(61, &mut bytes);
        assert_eq!(&bytes, b"abc");
    }

    #[test]
    fn view_shows_writes_through_a_map_of_the_same_file() {
        let file = memfd_create("efa-test", MemfdFlags::CLOEXEC).unwrap();
        let page = rustix::param::page_size();
        ftruncate(&file, 2 * page as u64).unwrap();
        let (front, back) = (View::new(&file, page).unwrap(), Map::part(&file, page, 8).unwrap());
        Map::new(&file, 16).unwrap().words::<2>(0)[1].store(5, Ordering::Release);
        back.words::<1>(0)[0].store(6, Ordering::Release);
        assert_eq!(front.load(8), 5);
        let whole = View::new(&file, 2 * page).unwrap();
        assert_eq!((whole.load(8), whole.load(page)), (5, 6));
        assert_eq!(Map::part(&file, page, page + 1).unwrap_err(), Errno::INVAL);
        assert_eq!(Map::part(&file, usize::MAX, 8).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn mapping_beyond_the_end_of_a_file_is_refused() {
        let file = memfd_create("efa-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 100).unwrap();
        assert_eq!(Map::new(&file, 101).unwrap_err(), Errno::INVAL);
        assert_eq!(Map::new(&file, 0).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn expecting_a_write_or_a_read_leaves_bytes_and_works_beyond_the_mapping() {
        let map = Map::anonymous(4096).unwrap();
        map.copy_in(60, &[7; 9]);
        map.expect_write(0, 4096);
        map.expect_write(63, 2);
        map.expect_write(4000, 1 << 16);
        map.expect_read(0, 1 << 16);
        let mut bytes = [0; 11];
        map.copy_out(59, &mut bytes);
        assert_eq!(bytes, [0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0]);
    }

    #[test]
    fn access_outside_a_mapping_panics() {
        let file = memfd_create("efa-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 64).unwrap();
        let map = Map::new(&file, 64).unwrap();
        let panics = |f: &dyn Fn()| catch_unwind(AssertUnwindSafe(f)).is_err();
        assert!(panics(&|| map.words::<2>(56)[1].store(0, Ordering::Relaxed)));
        assert!(panics(&|| map.words::<1>(4)[0].store(0, Ordering::Relaxed)));
        assert!(panics(&|| map.copy_in(64, b"a")));
        assert!(panics(&|| map.copy_out(usize::MAX, &mut [0; 2])));
        map.copy_in(64, b"");
    }
}
