//! Bytes that are copied at once, from and to memory that others may access.
//!
//! ```text
//!   a slice ─ From ─┐                            ┌─ as_slice: others don't access it
//!                   ├─► CopySource, CopyTarget ──┤
//!   raw ─ unsafe ───┘                            └─ copy_to, copy_from, as_ptr: they may
//! ```
//!
//! A device hands its memory out for the length of one call, such as a slot of a ring that another process has mapped.
//! No reference to such bytes may exist, so they are only copied: if others write them meanwhile, the copy has bytes of
//! unknown value.

#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Bytes of a device or a program, to be copied somewhere.
#[derive(Clone, Copy)]
pub struct CopySource<'a> {
    range: Range,
    _bytes: PhantomData<&'a [u8]>,
}

/// Space of a device or a program, for bytes to be copied into.
pub struct CopyTarget<'a> {
    range: Range,
    _bytes: PhantomData<&'a mut [u8]>,
}

/// Two words, so that it is passed in registers.
#[derive(Clone, Copy)]
struct Range {
    base: NonNull<u8>,
    /// Length in bytes, and [`SHARED`].
    length: usize,
}

/// Set if others may access the bytes. They are at most `isize::MAX`, as all memory is.
const SHARED: usize = 1 << (usize::BITS - 1);

impl Range {
    #[inline(always)]
    fn new(base: NonNull<u8>, length: usize, is_shared: bool) -> Self {
        debug_assert!(length < SHARED);
        Self { base, length: if is_shared { length | SHARED } else { length } }
    }

    #[inline(always)]
    fn length(self) -> usize {
        self.length & !SHARED
    }

    #[inline(always)]
    fn is_shared(self) -> bool {
        self.length & SHARED != 0
    }

    /// The first `length` bytes, of at most all.
    #[inline(always)]
    fn first(self, length: usize) -> Self {
        Self::new(self.base, self.length().min(length), self.is_shared())
    }

    /// The address of `length` bytes from `at` on.
    #[inline(always)]
    fn part(self, at: usize, length: usize) -> *mut u8 {
        if at.checked_add(length).is_none_or(|end| end > self.length()) {
            outside(at, length, self.length());
        }
        self.base.as_ptr().wrapping_add(at)
    }
}

impl<'a> CopySource<'a> {
    /// The `length` bytes from `base` on.
    ///
    /// # Safety
    /// As long as the result or a copy of it exists, the bytes are mapped and readable, no exclusive reference to them
    /// exists, and threads of this process write them only if that is no data race.
    #[inline(always)]
    #[must_use]
    pub unsafe fn from_raw(base: NonNull<u8>, length: usize) -> Self {
        Self { range: Range::new(base, length, true), _bytes: PhantomData }
    }

    /// Length in bytes.
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.length()
    }

    /// Whether there are no bytes.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.length() == 0
    }

    /// The first `length` bytes, of at most all.
    #[inline(always)]
    #[must_use]
    pub fn first(mut self, length: usize) -> Self {
        self.range = self.range.first(length);
        self
    }

    /// The bytes, if nobody writes them.
    #[inline(always)]
    #[must_use]
    pub fn as_slice(&self) -> Option<&'a [u8]> {
        let (base, length) = (self.range.base.as_ptr(), self.len());
        // SAFETY: what isn't shared was made of a slice with this lifetime and at least this length.
        (!self.range.is_shared()).then(|| unsafe { std::slice::from_raw_parts(base, length) })
    }

    /// The first byte.
    #[inline(always)]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.range.base.as_ptr()
    }

    /// Copies the bytes from `at` on to `into`.
    ///
    /// # Panics
    /// If `into` is longer than they are.
    #[inline(always)]
    pub fn copy_to(&self, at: usize, into: &mut [u8]) {
        let from = self.range.part(at, into.len());
        // SAFETY: the source is within the bytes, which are readable by `from_raw`, or a slice. `into` is an exclusive
        // reference, so the two don't overlap.
        unsafe { copy_apart(from, into.as_mut_ptr(), into.len()) };
    }
}

impl CopySource<'_> {
    /// Passes the bytes to `write`, with the offset among them: at once if nobody writes them, otherwise copies of some at a
    /// time. Ends early if `write` took fewer than it got. Returns the number of bytes that it took.
    #[inline]
    pub fn pass_to(&self, mut write: impl FnMut(usize, &[u8]) -> usize) -> usize {
        match self.as_slice() {
            Some(bytes) => write(0, bytes),
            None => self.pass_copies_to(write),
        }
    }

    #[cold]
    fn pass_copies_to(&self, mut write: impl FnMut(usize, &[u8]) -> usize) -> usize {
        in_chunks(self.len(), |at, chunk| {
            self.copy_to(at, chunk);
            write(at, chunk)
        })
    }
}

impl CopyTarget<'_> {
    /// Has `read` write the bytes, with the offset among them: at once if nobody else accesses them, otherwise some at a time,
    /// which are copied. Ends early if `read` wrote fewer than it should. Returns the number of bytes that it wrote.
    #[inline]
    pub fn fill_by(&mut self, mut read: impl FnMut(usize, &mut [u8]) -> usize) -> usize {
        match self.as_mut_slice() {
            Some(bytes) => read(0, bytes),
            None => self.fill_by_copies(read),
        }
    }

    #[cold]
    fn fill_by_copies(&mut self, mut read: impl FnMut(usize, &mut [u8]) -> usize) -> usize {
        in_chunks(self.len(), |at, chunk| {
            let count = read(at, chunk);
            self.copy_from(at, &chunk[..count]);
            count
        })
    }
}

/// Divides `length` bytes, until `handle` has handled fewer than it got.
fn in_chunks(length: usize, mut handle: impl FnMut(usize, &mut [u8]) -> usize) -> usize {
    let (mut chunk, mut done) = ([0; SHORT], 0);
    while done < length {
        let chunk = &mut chunk[..SHORT.min(length - done)];
        let count = handle(done, chunk);
        done += count;
        if count < chunk.len() {
            break;
        }
    }
    done
}

impl<'a> CopyTarget<'a> {
    /// The `length` bytes from `base` on.
    ///
    /// # Safety
    /// As long as the result exists, the bytes are mapped and writable, no reference to them exists, and threads of
    /// this process access them only if that is no data race.
    #[inline(always)]
    #[must_use]
    pub unsafe fn from_raw(base: NonNull<u8>, length: usize) -> Self {
        Self { range: Range::new(base, length, true), _bytes: PhantomData }
    }

    /// Length in bytes.
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.length()
    }

    /// Whether there is no space.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.length() == 0
    }

    /// The first `length` bytes, of at most all.
    #[inline(always)]
    #[must_use]
    pub fn first(mut self, length: usize) -> Self {
        self.range = self.range.first(length);
        self
    }

    /// The bytes, if nobody else accesses them.
    #[inline(always)]
    #[must_use]
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        let (base, length) = (self.range.base.as_ptr(), self.len());
        // SAFETY: what isn't shared was made of an exclusive slice of at least this length, which is borrowed for longer.
        (!self.range.is_shared()).then(|| unsafe { std::slice::from_raw_parts_mut(base, length) })
    }

    /// The same space, as long as it is borrowed.
    #[inline(always)]
    #[must_use]
    pub fn reborrow(&mut self) -> CopyTarget<'_> {
        CopyTarget { range: self.range, _bytes: PhantomData }
    }

    /// Sets the bytes from `at` on to 0.
    #[cold]
    pub fn clear_from(&mut self, at: usize) {
        let zeros = [0; SHORT];
        for at in (at..self.len()).step_by(SHORT) {
            self.copy_from(at, &zeros[..SHORT.min(self.len() - at)]);
        }
    }

    /// The first byte.
    #[inline(always)]
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.range.base.as_ptr()
    }

    /// Copies `from` to the bytes from `at` on.
    ///
    /// # Panics
    /// If `from` is longer than they are.
    #[inline(always)]
    pub fn copy_from(&mut self, at: usize, from: &[u8]) {
        let into = self.range.part(at, from.len());
        // SAFETY: the target is within the bytes, which are writable by `from_raw`, or an exclusive slice. `from` is a
        // reference, and none to the target exists, so the two don't overlap.
        unsafe { copy_apart(from.as_ptr(), into, from.len()) };
    }

    /// As [`copy_from`](Self::copy_from), faster from 512 bytes on if another processor has the cache lines of the target,
    /// and slower otherwise.
    ///
    /// # Panics
    /// As `copy_from`.
    #[inline]
    pub fn copy_lines_from(&mut self, at: usize, from: &[u8]) {
        let into = self.range.part(at, from.len());
        // SAFETY: as in `copy_from`.
        unsafe { copy_lines(from.as_ptr(), into, from.len()) };
    }
}

impl<'a> From<&'a [u8]> for CopySource<'a> {
    #[inline(always)]
    fn from(bytes: &'a [u8]) -> Self {
        let range = Range::new(NonNull::from(bytes).cast(), bytes.len(), false);
        Self { range, _bytes: PhantomData }
    }
}

impl<'a> From<&'a mut [u8]> for CopyTarget<'a> {
    #[inline(always)]
    fn from(bytes: &'a mut [u8]) -> Self {
        let length = bytes.len();
        let range = Range::new(NonNull::from(bytes).cast(), length, false);
        Self { range, _bytes: PhantomData }
    }
}

impl fmt::Debug for CopySource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CopySource({} bytes at {:p})", self.len(), self.as_ptr())
    }
}

impl fmt::Debug for CopyTarget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CopyTarget({} bytes at {:p})", self.len(), self.range.base)
    }
}

/// Apart from the check, so that only the check is inlined.
#[cold]
#[inline(never)]
fn outside(at: usize, length: usize, of: usize) -> ! {
    panic!("{length} bytes at {at} of {of} bytes");
}

/// What a [slow](is_slow) copy is divided into: glibc 2.36 copies 2,112 bytes and more with `rep movsb`.
const SHORT: usize = 2048;

/// From this length on the system's library chooses how to copy; some copy less with other instructions than `rep movsb`.
const LONG: usize = 4096;

/// Copies bytes.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
#[inline(always)]
pub unsafe fn copy_apart(from: *const u8, into: *mut u8, length: usize) {
    if length < SHORT {
        // SAFETY: the caller's.
        return unsafe { std::ptr::copy_nonoverlapping(from, into, length) };
    }
    // SAFETY: the caller's.
    unsafe { copy_long(from, into, length) };
}

/// Copies [`SHORT`] bytes or more.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
#[inline(never)]
unsafe fn copy_long(from: *const u8, into: *mut u8, length: usize) {
    if length < LONG {
        // SAFETY: the caller's.
        return unsafe { copy_lines(from, into, length) };
    }
    let mut done = 0;
    if is_slow(from, into) {
        while length - done > SHORT {
            // SAFETY: the caller's; `done + SHORT` is less than `length`.
            unsafe { std::ptr::copy_nonoverlapping(from.add(done), into.add(done), SHORT) };
            done += SHORT;
        }
    }
    // SAFETY: the caller's; `done` is at most `length`.
    unsafe { std::ptr::copy_nonoverlapping(from.add(done), into.add(done), length - done) };
}

/// Copies bytes by the instruction `rep movsb`, where it is fast: it takes over lines of the target that another processor
/// has without fetching their bytes, and others store to them after a cache miss each. Where this processor has the lines
/// it takes some 10 ns more, and waits for earlier stores to the source.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
#[inline(always)]
unsafe fn copy_lines(from: *const u8, into: *mut u8, length: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("ermsb") && !is_slow(from, into) {
        // SAFETY: the instruction reads and writes what the caller promises, and nothing else: the direction flag is clear
        // where inline assembly begins.
        return unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rcx") length => _, inout("rsi") from => _, inout("rdi") into => _,
                options(nostack, preserves_flags),
            );
        };
    }
    // SAFETY: the caller's.
    unsafe { std::ptr::copy_nonoverlapping(from, into, length) };
}

/// Whether older releases of glibc, such as 2.36, may copy more than [`SHORT`] bytes with a tenth of their speed or less:
/// on AMD's processors they copy with `rep movsb`, which is slow on some where the target is a few bytes behind the
/// source, pages aside (sourceware bug 30994). That is so of a page and what `malloc` returns for long memory, 16 bytes
/// behind the begin of one.
#[inline(always)]
fn is_slow(from: *const u8, into: *const u8) -> bool {
    const PAGE: usize = 4096;
    const FEW: usize = 32;
    (1..FEW).contains(&(into.addr().wrapping_sub(from.addr()) % PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(length: u32) -> Vec<u8> {
        (0..length).map(|byte| (byte % 251) as u8).collect()
    }

    #[test]
    fn slices_come_back_and_raw_bytes_are_only_copied() {
        let mut bytes = numbered(10);
        let slice = CopySource::from(&bytes[2..]);
        assert_eq!((slice.len(), slice.as_slice()), (8, Some(&[2, 3, 4, 5, 6, 7, 8, 9][..])));
        let base = NonNull::from(&mut bytes[..]).cast();
        // SAFETY: `bytes` is not accessed while the two exist.
        let (raw, mut into) =
            unsafe { (CopySource::from_raw(base, 4), CopyTarget::from_raw(base.add(6), 4)) };
        assert!(raw.as_slice().is_none() && into.as_mut_slice().is_none());
        let mut copy = [0; 3];
        raw.copy_to(1, &mut copy);
        into.copy_from(1, &copy);
        assert_eq!(
            (copy, into.len(), raw.is_empty(), into.is_empty()),
            ([1, 2, 3], 4, false, false)
        );
        assert_eq!(bytes, [0, 1, 2, 3, 4, 5, 6, 1, 2, 3]);
        let mut whole = CopyTarget::from(&mut bytes[..]);
        whole.as_mut_slice().unwrap()[0] = 9;
        whole.copy_from(9, &[8]);
        assert_eq!((bytes[0], bytes[9]), (9, 8));
    }

    #[test]
    fn shared_bytes_pass_in_chunks_until_one_is_not_taken_whole() {
        let bytes = numbered(5000);
        let base = NonNull::from(&bytes[..]).cast();
        // SAFETY: `bytes` is only read meanwhile.
        let raw = unsafe { CopySource::from_raw(base, 5000) };
        let mut copy = Vec::new();
        let passed = raw.pass_to(|at, chunk| {
            assert_eq!(at, copy.len());
            copy.extend_from_slice(chunk);
            chunk.len()
        });
        assert_eq!((passed, &copy), (5000, &bytes));
        assert_eq!(raw.pass_to(|_, chunk| chunk.len().min(1000)), 1000);
        assert_eq!(CopySource::from(&bytes[..]).pass_to(|_, whole| whole.len()), 5000);

        let mut space = vec![0; 5000];
        let base = NonNull::from(&mut space[..]).cast();
        // SAFETY: `space` is not accessed while this exists.
        let mut into = unsafe { CopyTarget::from_raw(base, 5000) };
        let filled = into.fill_by(|at, chunk| {
            let count = chunk.len().min(4500 - at);
            chunk[..count].copy_from_slice(&bytes[at..at + count]);
            count
        });
        assert_eq!((filled, &space[..4500]), (4500, &bytes[..4500]));
        assert_eq!(space[4500..], [0; 500]);
    }

    #[test]
    fn copy_beyond_the_bytes_panics() {
        let panics = |f: &dyn Fn()| {
            let f = std::panic::AssertUnwindSafe(f);
            std::panic::catch_unwind(f).is_err()
        };
        let source = || CopySource::from(&[1, 2][..]);
        assert!(panics(&|| source().copy_to(1, &mut [0; 2])));
        assert!(panics(&|| source().copy_to(usize::MAX, &mut [0; 2])));
        assert!(panics(&|| CopyTarget::from(&mut [0; 2][..]).copy_from(2, &[1])));
        assert!(panics(&|| CopyTarget::from(&mut [0; 2][..]).copy_lines_from(2, &[1])));
        source().copy_to(2, &mut []);
    }

    #[test]
    fn copy_by_lines_writes_its_bytes_and_no_others_at_any_alignment_and_length() {
        let from = numbered(4200);
        for (at, to) in [(0, 0), (0, 60), (1, 0), (60, 3), (63, 64)] {
            for length in [0, 1, 63, 64, 65, 511, 512, 1000, SHORT, LONG] {
                let mut bytes = vec![255; 4200];
                let mut expected = bytes.clone();
                expected[to..to + length].copy_from_slice(&from[at..at + length]);
                CopyTarget::from(&mut bytes[..]).copy_lines_from(to, &from[at..at + length]);
                assert_eq!(bytes, expected, "{length} bytes from {at} to {to}");
            }
        }
    }

    #[test]
    fn copy_a_few_bytes_behind_its_source_apart_from_pages_copies_all_bytes_once() {
        for ahead in [0, 1, 16, 31, 32, 4095] {
            for length in [SHORT - 1, SHORT, LONG - 1, LONG, LONG + 1, 8192] {
                let mut bytes = numbered(1 << 15);
                let (from, into) = (3, 3 + 3 * 4096 + ahead);
                let mut expected = bytes.clone();
                expected.copy_within(from..from + length, into);
                let base = bytes.as_mut_ptr();
                // SAFETY: both ranges are in the vector, and 12 KiB apart.
                unsafe { copy_apart(base.add(from), base.add(into), length) };
                assert_eq!(bytes, expected, "{length} bytes from {from} to {into}");
            }
        }
        let at = |address| std::ptr::without_provenance_mut::<u8>(address);
        assert!(is_slow(at(4096), at(2 * 4096 + 16)));
        assert!(!is_slow(at(4096), at(2 * 4096)) && !is_slow(at(4096 + 16), at(4096)));
    }
}
