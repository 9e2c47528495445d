//! Memory of the program that the device reads and writes: checks at registration, and copies.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;

use efa_sim::region::{KeyTable, Use};

use crate::abi::ibv_sge;
use crate::boundary::{Errno, INVALID, Outcome};
use crate::queue_pair::Locked;

/// Pages that one call of `mincore` reports on.
const PAGES: usize = 4096;

/// The size of a page in bytes, at least 4096.
fn page_size() -> usize {
    // SAFETY: `sysconf` has no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096).cast_unsigned() as usize
}

/// Fails with `EFAULT` unless all pages of the range are mapped and its first and last page can be
/// read, or written if the device `writes`. The kernel fails in the same way when it pins memory for
/// a real device. Here the first copy would crash instead.
pub(crate) fn check_accessible(base: NonNull<u8>, length: usize, writes: bool) -> Outcome<()> {
    let page = page_size();
    check_mapped(base, length, page)?;
    check_protection(base, length, page, writes)
}

fn check_mapped(base: NonNull<u8>, length: usize, page: usize) -> Outcome<()> {
    let mut states = [0_u8; PAGES];
    let (start, end) = (base.as_ptr().addr(), base.as_ptr().addr() + length);
    for at in (start - start % page..end).step_by(PAGES * page) {
        let count = (end - at).min(PAGES * page);
        // SAFETY: the kernel checks the range itself, and writes one byte per page of it: at most
        // `PAGES`, the length of `states`.
        let result = unsafe { libc::mincore(at as *mut c_void, count, states.as_mut_ptr()) };
        if result != 0 && last_errno() == Some(libc::ENOMEM) {
            return Err(Errno(libc::EFAULT));
        }
    }
    Ok(())
}

/// Asks for the first and the last page alone: populating them brings them into memory, and a program
/// may register far more than it uses.
fn check_protection(base: NonNull<u8>, length: usize, page: usize, writes: bool) -> Outcome<()> {
    let advice = if writes { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let refuses = |address: usize| {
        let at = (address - address % page) as *mut c_void;
        // SAFETY: this advice faults the page in as an access would and changes no content; the
        // kernel checks the address.
        let result = unsafe { libc::madvise(at, page, advice) };
        result != 0 && matches!(last_errno(), Some(libc::EINVAL | libc::EFAULT))
    };
    let (start, own) = (base.as_ptr().addr(), 0_u8);
    // A kernel before 5.14 doesn't know the advice, and refuses our own stack as well.
    if (refuses(start) || refuses(start + length - 1)) && !refuses((&raw const own).addr()) {
        return Err(Errno(libc::EFAULT));
    }
    Ok(())
}

fn last_errno() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}

/// A part of a file, mapped for the device. Dropping it unmaps it.
#[derive(Debug)]
pub(crate) struct MappedFile {
    mapping: NonNull<u8>,
    mapped: usize,
    /// Where the part begins in the mapping.
    at: usize,
}

impl MappedFile {
    /// Maps a part of a program's file by its descriptor, which the program keeps open during the call. Fails with
    /// `EBADF` for what is no descriptor, and otherwise as [`new`](Self::new).
    pub(crate) fn of_descriptor(
        file: c_int,
        offset: u64,
        length: usize,
        writes: bool,
    ) -> Outcome<Self> {
        if file < 0 {
            return Err(Errno(libc::EBADF));
        }
        // SAFETY: the caller keeps it open during the call. If it isn't open, the system says so.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        Self::new(file, offset, length, writes)
    }

    /// Maps `length` bytes from `offset` on. Fails with `EINVAL` for a part that is not in the file, and for what can't
    /// be mapped.
    pub(crate) fn new(
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        writes: bool,
    ) -> Outcome<Self> {
        let stat = rustix::fs::fstat(file)?;
        let size = u64::try_from(stat.st_size).map_err(|_| INVALID)?;
        let end = offset.checked_add(length as u64).ok_or(INVALID)?;
        // Buffers of drivers have no size here. Beyond the end of a file, an access would end the process.
        let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
        if length == 0 || (is_file && end > size) {
            return Err(INVALID);
        }
        let at = (offset % page_size() as u64) as usize;
        let start = libc::off_t::try_from(offset - at as u64).map_err(|_| INVALID)?;
        let mapped = length.checked_add(at).ok_or(INVALID)?;
        let access = libc::PROT_READ | if writes { libc::PROT_WRITE } else { 0 };
        let (anywhere, file) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: the kernel chooses the place, so no memory of the program is replaced.
        let mapping =
            unsafe { libc::mmap(anywhere, mapped, access, libc::MAP_SHARED, file, start) };
        if mapping == libc::MAP_FAILED {
            return Err(match last_errno() {
                Some(libc::ENODEV) | None => INVALID,
                Some(errno) => Errno(errno),
            });
        }
        let mapping = NonNull::new(mapping.cast()).ok_or(INVALID)?;
        Ok(Self { mapping, mapped, at })
    }

    /// The first byte of the part.
    pub(crate) fn base(&self) -> *mut c_void {
        self.mapping.as_ptr().wrapping_add(self.at).cast()
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's. The region of it was revoked, or never made.
        unsafe { libc::munmap(self.mapping.as_ptr().cast(), self.mapped) };
    }
}

/// The address of an entry's memory, if its key is registered, covers it, and allows `wanted`.
#[inline]
pub(crate) fn locate(keys: &KeyTable, entry: &ibv_sge, wanted: Use) -> Option<u64> {
    keys.locate(entry.lkey, entry.addr, entry.length.into(), wanted)
}

/// Copies an entry's memory into `into`, which is as long; `None` if the key doesn't allow that.
#[inline]
pub(crate) fn copy_from(
    _locked: &Locked,
    keys: &KeyTable,
    entry: &ibv_sge,
    into: &mut [u8],
) -> Option<()> {
    let from = locate(keys, entry, Use::LocalRead)?;
    let length = into.len().min(entry.length as usize);
    // SAFETY: the range is within a region that the program registered and has not deregistered:
    // `ibv_dereg_mr` waits for the lock whose holder `_locked` proves. `register_raw` requires that
    // the memory is readable until then, and the program doesn't write it while it posts.
    unsafe {
        let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
        std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), length);
    }
    Some(())
}

/// Copies `bytes` into the memory of entries, `offset` bytes from its start; `None` if a key doesn't allow that or the
/// entries are too short.
#[inline]
pub(crate) fn scatter(
    locked: &Locked,
    keys: &KeyTable,
    entries: &[ibv_sge],
    mut offset: usize,
    mut bytes: &[u8],
) -> Option<()> {
    for entry in entries {
        let length = entry.length as usize;
        let (now, rest) = bytes.split_at(length.saturating_sub(offset).min(bytes.len()));
        copy_into(locked, keys, entry, offset, now)?;
        offset = offset.saturating_sub(length);
        bytes = rest;
    }
    bytes.is_empty().then_some(())
}

/// Copies `bytes` into an entry's memory, `offset` bytes from its start; `None` if the key doesn't
/// allow that or the entry is too short.
#[inline]
fn copy_into(
    _locked: &Locked,
    keys: &KeyTable,
    entry: &ibv_sge,
    offset: usize,
    bytes: &[u8],
) -> Option<()> {
    if bytes.is_empty() {
        return Some(());
    }
    (entry.length as usize).checked_sub(offset)?.checked_sub(bytes.len())?;
    let into = locate(keys, entry, Use::LocalWrite)?;
    // SAFETY: the range is within a region that the program registered for local writing and has
    // not deregistered: `ibv_dereg_mr` waits for the lock whose holder `_locked` proves. The program
    // leaves a posted buffer to the device until its completion, which is made after this.
    unsafe {
        let into = std::ptr::with_exposed_provenance_mut::<u8>(into as usize).add(offset);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), into, bytes.len());
    }
    Some(())
}
