//! Registered memory, which others may read and write at any time, so that it is accessed by copies
//! only.
//!
//! Owned memory is kept as a raw pointer: another process has the kernel write it, which a reference
//! would not allow. Foreign memory stays mapped as long as its handle exists, and is copied by that handle.
//! Borrowed memory belongs to a C program, which may unmap it while it is registered; so the kernel copies it,
//! and returns an error where a plain copy would be a SIGSEGV. Lent memory belongs to a C program as well, which
//! leaves it mapped and doesn't touch it. A part of a file is mapped here and by other processes, which copy from it and
//! to it themselves.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use efa_device::{CopySource, CopyTarget, ForeignMemory, Lending, copy_apart};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::fork::Descriptor;
use crate::map::Map;
use crate::store::Store;

/// A range of memory.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    length: usize,
    owner: Owner,
}

#[derive(Debug)]
enum Owner {
    /// It is a leaked box, which this frees.
    This,
    /// It is foreign memory, of which this is a handle.
    Handle(ForeignMemory),
    /// It is mapped from a file.
    File(FilePart),
    /// A C program, which may unmap it.
    Program,
    /// A C program, which lent it and leaves it mapped; whether it may be written.
    Lender { may_write: bool },
    /// Nobody: it is never freed.
    Nobody,
}

/// A part of the file of a device's [keys](crate::keys), mapped; its storage is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct FilePart {
    map: Map,
    file: Arc<Descriptor>,
    at: u64,
}

impl FilePart {
    /// The `length` bytes from `at` on, a multiple of the size of a page that isn't 0. They have storage, and nobody
    /// else has them.
    pub(crate) fn new(file: &Arc<Descriptor>, at: u64, length: usize) -> Result<Self, Errno> {
        let start = usize::try_from(at).map_err(|_| Errno::FBIG)?;
        let map = Map::part(file, start, length)?;
        Ok(Self { map, file: Arc::clone(file), at })
    }

    /// Length in bytes.
    pub(crate) fn length(&self) -> usize {
        self.map.length()
    }
}

impl Drop for FilePart {
    fn drop(&mut self) {
        // In a forked child the descriptor is another, and this fails.
        discard(&*self.file, self.at, self.map.length());
    }
}

/// Gives the storage of a part of a file back.
pub(crate) fn discard(file: impl AsFd, at: u64, length: usize) {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Err(error) = fallocate(file, how, at, length as u64) {
        tracing::debug!(%error, "storage of a region is kept until the device is closed");
    }
}

/// A part of a region, under its lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    base: *mut c_void,
    length: usize,
    /// It is surely mapped, and so may be copied by this process.
    is_sure: bool,
}

impl Part {
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// For the kernel.
    pub(crate) fn iovec(&self) -> libc::iovec {
        self.rest(0, self.length)
    }

    /// `length` bytes from `at` on, for the kernel.
    pub(crate) fn rest(&self, at: usize, length: usize) -> libc::iovec {
        libc::iovec { iov_base: self.base.wrapping_byte_add(at), iov_len: length }
    }

    /// Whether the kernel can read all of it, and write it if the device `writes`: a C program may have unmapped its memory.
    #[cold]
    pub(crate) fn is_accessible(&self, writes: bool) -> bool {
        if self.is_sure {
            return true;
        }
        let mut scratch = Vec::new();
        let into = match writes {
            // Onto itself, so that the bytes stay.
            true => self.base,
            false => {
                scratch.resize(self.length, 0_u8);
                scratch.as_mut_ptr().cast()
            }
        };
        kernel_copy(into, self.base, self.length) == self.length
    }

    /// Copies all of it from a mapping of another process's region. Returns whether it did; a C program may have unmapped
    /// its memory.
    pub(crate) fn fill(&self, from: &Map, at: usize, store: Store) -> bool {
        let Self { base, length, is_sure } = *self;
        match is_sure {
            // SAFETY: the part is mapped for sure, and its region's lock is held.
            true => unsafe { from.copy_to(at, base.cast(), length, store) },
            false => return kernel_copy(base, from.pointer(at, length).cast(), length) == length,
        }
        true
    }

    /// Copies all of it to a mapping of another process's region. Returns whether it did.
    pub(crate) fn spill(&self, into: &Map, at: usize, store: Store) -> bool {
        let Self { base, length, is_sure } = *self;
        match is_sure {
            // SAFETY: the part is mapped for sure, and its region's lock is held.
            true => unsafe { into.copy_from(at, base.cast(), length, store) },
            false => return kernel_copy(into.pointer(at, length).cast(), base, length) == length,
        }
        true
    }
}

// SAFETY: the memory is valid in all threads of the process: owned memory is a leaked box that this
// value alone frees, a mapped file is accessed by its own type, which is `Send`, foreign memory is accessed by its handle, which is `Send`, lent memory is valid for the process,
// and borrowed memory is only accessed through the kernel. Writing takes `&mut self`.
unsafe impl Send for Memory {}

impl Memory {
    /// Memory that is freed with this.
    pub(crate) fn owned(memory: Box<[u8]>) -> Self {
        let length = memory.len();
        let base: NonNull<u8> = NonNull::from(Box::leak(memory)).cast();
        // Other processes have the kernel access it by its address.
        base.as_ptr().expose_provenance();
        Self { base, length, owner: Owner::This }
    }

    /// Memory that somebody else owns, and that this keeps mapped.
    pub(crate) fn foreign(memory: &ForeignMemory) -> Self {
        let base = memory.as_ptr();
        base.as_ptr().expose_provenance();
        Self { base, length: memory.len(), owner: Owner::Handle(memory.clone()) }
    }

    /// A part of a file.
    pub(crate) fn in_file(part: FilePart) -> Self {
        let length = part.length();
        let base = part.map.pointer(0, length);
        base.expose_provenance();
        // A mapping is at no address 0.
        let base = NonNull::new(base).unwrap_or(NonNull::dangling());
        Self { base, length, owner: Owner::File(part) }
    }

    /// Where it is in the file of the keys; 0 if it isn't there.
    pub(crate) fn offset_in_file(&self) -> u64 {
        match &self.owner {
            Owner::File(part) => part.at,
            _ => 0,
        }
    }

    /// Memory that was lent for an operation.
    pub(crate) fn lent(lending: Lending<'_>) -> Self {
        let base = lending.as_ptr();
        base.as_ptr().expose_provenance();
        let owner = Owner::Lender { may_write: lending.may_write() };
        Self { base, length: lending.len(), owner }
    }

    /// Memory that a C program owns.
    ///
    /// # Safety
    /// Until [`end`](Self::end) or the drop of this, the owner must allow that [`read`](Self::read) and
    /// [`write`](Self::write) read and write the memory, and that those do who got its address from
    /// [`part`](Self::part) or [`address`](Self::address). The owner may unmap it.
    pub(crate) unsafe fn borrowed(base: NonNull<u8>, length: usize) -> Self {
        Self { base, length, owner: Owner::Program }
    }

    /// Ends the access to memory of others.
    pub(crate) fn end(&mut self) {
        if self.is_of_others() {
            self.length = 0;
        }
    }

    /// Leaks owned memory and the handle of foreign memory: it is never freed. The latter isn't accessed any more, as the
    /// handle may keep nothing mapped.
    pub(crate) fn abandon(&mut self) {
        if let Owner::Program | Owner::Lender { .. } = self.owner {
            return;
        }
        let owner = std::mem::replace(&mut self.owner, Owner::Nobody);
        if let Owner::Handle(_) = owner {
            self.length = 0;
        }
        std::mem::forget(owner);
    }

    /// Whether [`take`](Self::take) returns it.
    pub(crate) fn is_owned(&self) -> bool {
        matches!(self.owner, Owner::This)
    }

    /// Whether it belongs neither to this nor to nobody.
    pub(crate) fn is_of_others(&self) -> bool {
        matches!(self.owner, Owner::Handle(_) | Owner::Program | Owner::Lender { .. })
    }

    /// Returns owned memory, and an empty box for other memory.
    pub(crate) fn take(&mut self) -> Box<[u8]> {
        if !self.is_owned() {
            return Box::default();
        }
        self.owner = Owner::Nobody;
        let length = std::mem::take(&mut self.length);
        let whole = std::ptr::slice_from_raw_parts_mut(self.base.as_ptr(), length);
        // SAFETY: base and length are those of the box that `owned` leaked: only `end` changes the
        // length, and not of owned memory. The owner is nobody and the length 0 from the lines above on, so
        // the box is made once and the memory not accessed through `self` any more.
        unsafe { Box::from_raw(whole) }
    }

    /// The address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// The `length` bytes from `offset` on; `None` if they are out of range.
    pub(crate) fn part(&self, offset: usize, length: usize) -> Option<Part> {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        let base = self.base.as_ptr().wrapping_add(offset).cast();
        let is_sure = !matches!(self.owner, Owner::Program);
        inside.then_some(Part { base, length, is_sure })
    }

    /// Copies bytes out, from `offset` on. Returns their number.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        self.copy_to(offset, into.into())
    }

    /// Copies bytes from `offset` on to `into`, as many as there are and fit. Returns their number.
    #[inline(always)]
    pub(crate) fn copy_to(&self, offset: usize, mut into: CopyTarget<'_>) -> usize {
        let count = into.len().min(self.length.saturating_sub(offset));
        if count == 0 {
            return 0;
        }
        let from = self.base.as_ptr().wrapping_add(offset);
        match &self.owner {
            Owner::This | Owner::Nobody | Owner::Lender { .. } | Owner::File(_) => {}
            Owner::Handle(memory) => return read_handle(memory, offset, into),
            Owner::Program => return kernel_copy(into.as_mut_ptr().cast(), from.cast(), count),
        }
        // SAFETY: `offset + count` is at most `length`, so the source is inside the leaked box or the mapping, or inside lent
        // memory, which is mapped until `end` or the drop of this. `into` has at least `count` bytes that may be written; it
        // is an exclusive slice or a device's own memory, and no reference to the source exists, so the two don't overlap. No thread of this
        // process writes the source now: `copy_from` takes `&mut self`, and parts are copied under
        // the region's lock. Writes of other processes are made by the kernel, or to a mapping of theirs, as `Map` has it.
        unsafe { copy_apart(from, into.as_mut_ptr(), count) };
        count
    }

    /// Copies bytes in, from `offset` on. Returns the number that fitted.
    pub(crate) fn write(&mut self, offset: usize, from: &[u8]) -> usize {
        self.copy_from(offset, from.into())
    }

    /// Copies `from` to `offset`, as many bytes as fit. Returns their number.
    #[inline(always)]
    pub(crate) fn copy_from(&mut self, offset: usize, from: CopySource<'_>) -> usize {
        let count = from.len().min(self.length.saturating_sub(offset));
        if count == 0 {
            return 0;
        }
        let into = self.base.as_ptr().wrapping_add(offset);
        match &self.owner {
            Owner::This | Owner::Nobody | Owner::Lender { may_write: true } | Owner::File(_) => {}
            Owner::Lender { may_write: false } => return 0,
            Owner::Handle(memory) => return write_handle(memory, offset, from),
            Owner::Program => {
                return kernel_copy(into.cast(), from.as_ptr().cast_mut().cast(), count);
            }
        }
        // SAFETY: `offset + count` is at most `length`, so the target is inside the leaked box, or inside memory that
        // was lent for writing, which is mapped until `end` or the drop of this. `from` has at least `count` bytes; it is a
        // slice or a device's own memory, and no reference to the target exists, so the two don't overlap. `&mut self` excludes other
        // accesses of this process; those of other processes are made by the kernel, or to a mapping of theirs.
        unsafe { copy_apart(from.as_ptr(), into, count) };
        count
    }

    /// Changes bytes from `offset` on, as [`Region::update`](efa_device::Region::update) does.
    pub(crate) fn update(
        &mut self,
        offset: usize,
        bytes: &mut [u8],
        mut change: impl FnMut(&mut [u8]) -> bool,
    ) -> usize {
        if let Owner::Handle(memory) = &self.owner {
            return memory.update(offset, bytes, change);
        }
        if self.read(offset, bytes) < bytes.len() {
            return 0;
        }
        if change(bytes) { self.write(offset, bytes) } else { bytes.len() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// Has the owner of foreign memory copy it out, from `offset` on. Returns the number of bytes copied.
#[inline(never)]
fn read_handle(memory: &ForeignMemory, offset: usize, mut into: CopyTarget<'_>) -> usize {
    into.fill_by(|at, slice| memory.read(offset.saturating_add(at), slice))
}

/// Has the owner of foreign memory copy to it, from `offset` on. Returns the number of bytes copied.
#[inline(never)]
fn write_handle(memory: &ForeignMemory, offset: usize, from: CopySource<'_>) -> usize {
    from.pass_to(|at, slice| memory.write(offset.saturating_add(at), slice))
}

/// Has the kernel copy within this process. Returns the number of bytes copied.
#[inline(never)]
fn kernel_copy(into: *mut c_void, from: *mut c_void, count: usize) -> usize {
    /// A seccomp filter denies the call, as some container runtimes have it.
    static IS_DENIED: AtomicBool = AtomicBool::new(false);
    if IS_DENIED.load(Ordering::Relaxed) {
        return pipe_copy(into, from, count);
    }
    let local = libc::iovec { iov_base: into, iov_len: count };
    let remote = libc::iovec { iov_base: from, iov_len: count };
    // SAFETY: the kernel checks both ranges and fails for unmapped ones. It writes `count` bytes at `into`:
    // from `copy_to` that is space of at least this length, as is the scratch memory of `Part::is_accessible`; otherwise
    // it is borrowed memory, which its owner allows to be written (`Memory::borrowed`).
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    if let Ok(copied) = usize::try_from(copied) {
        return copied;
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => {
            IS_DENIED.store(true, Ordering::Relaxed);
            pipe_copy(into, from, count)
        }
        _ => 0,
    }
}

/// Copies through a pipe, by calls that programs are never denied. Returns the number of bytes copied.
fn pipe_copy(into: *mut c_void, from: *mut c_void, count: usize) -> usize {
    /// A pipe takes so many bytes without a reader.
    const AT_ONCE: usize = 4096;
    let Ok((reader, writer)) = std::io::pipe() else { return 0 };
    let mut copied = 0;
    while copied < count {
        let (into, from) = (into.wrapping_byte_add(copied), from.wrapping_byte_add(copied));
        // SAFETY: the kernel checks both ranges, as for the copy above, and each call has at most the bytes that are left.
        let moved = unsafe {
            let written = libc::write(writer.as_raw_fd(), from, AT_ONCE.min(count - copied));
            let Ok(written) = usize::try_from(written) else { break };
            libc::read(reader.as_raw_fd(), into, written)
        };
        match usize::try_from(moved) {
            Ok(moved) if moved > 0 => copied += moved,
            _ => break,
        }
    }
    copied
}

/// Has the kernel copy words from the memory of a process, of this user.
pub(crate) fn read_process(
    process: libc::pid_t,
    address: u64,
    into: &mut [u64],
) -> Result<(), Errno> {
    let length = size_of_val(into);
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: length };
    let there = libc::iovec { iov_base: address as usize as *mut c_void, iov_len: length };
    // SAFETY: the kernel checks both ranges. It writes `length` bytes at `into`, which is an exclusive
    // reference to so many.
    let copied = unsafe { libc::process_vm_readv(process, &local, 1, &there, 1, 0) };
    match usize::try_from(copied) {
        Ok(copied) if copied == length => Ok(()),
        Ok(_) => Err(Errno::FAULT),
        Err(_) => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stop_at_the_end_of_memory() {
        let mut bytes = *b"....";
        let base = NonNull::from(&mut bytes).cast();
        // SAFETY: `bytes` outlives `borrowed` and is not accessed while that exists.
        let borrowed = unsafe { Memory::borrowed(base, 4) };
        for mut memory in [Memory::owned(vec![b'.'; 4].into()), borrowed] {
            assert_eq!(memory.write(2, b"abc"), 2);
            assert_eq!(memory.write(4, b"abc"), 0);
            assert_eq!(memory.write(usize::MAX, b"abc"), 0);
            let mut bytes = [9; 6];
            assert_eq!(memory.read(0, &mut bytes), 4);
            assert_eq!(&bytes, b"..ab\x09\x09");
            assert_eq!(memory.read(5, &mut bytes), 0);
            assert_eq!(memory.read(usize::MAX, &mut bytes), 0);
            assert!(memory.part(1, 3).is_some());
            assert!(memory.part(1, 4).is_none() && memory.part(usize::MAX, 2).is_none());
        }
        assert_eq!(&bytes, b"..ab");
    }

    #[test]
    fn unmapped_or_ended_borrowed_memory_copies_nothing() {
        // SAFETY: the first page is never mapped, so there is no owner to object.
        let mut nowhere =
            unsafe { Memory::borrowed(NonNull::without_provenance(8.try_into().unwrap()), 8) };
        assert_eq!((nowhere.read(0, &mut [0; 4]), nowhere.write(0, &[0; 4])), (0, 0));
        let mut bytes = [1; 4];
        // SAFETY: `bytes` outlives `memory` and is not accessed before `end`.
        let mut memory = unsafe { Memory::borrowed(NonNull::from(&mut bytes).cast(), 4) };
        memory.end();
        assert_eq!((memory.write(0, b"abcd"), memory.part(0, 1).is_none()), (0, true));
        assert_eq!(bytes, [1; 4]);
    }

    #[test]
    fn copy_through_a_pipe_moves_all_bytes_or_stops_at_unmapped_memory() {
        let from: Vec<u8> = (0..100_000_u32).map(|at| at as u8).collect();
        let mut into = vec![0; from.len()];
        let source = from.as_ptr().cast_mut().cast();
        assert_eq!(pipe_copy(into.as_mut_ptr().cast(), source, from.len()), from.len());
        assert_eq!(into, from);
        let nowhere = std::ptr::without_provenance_mut(8);
        assert_eq!(pipe_copy(into.as_mut_ptr().cast(), nowhere, 4), 0);
        assert_eq!(pipe_copy(nowhere, source, 4), 0);
        assert_eq!(pipe_copy(into.as_mut_ptr().cast(), source, 0), 0);
    }
}
