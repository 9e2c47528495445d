//! Bytes that others may read and write at any time, so that they are reached by copying alone.
//!
//! Memory of our own is kept as a raw pointer: another process has the kernel write to it, which
//! no reference of ours would expect. Memory of somebody else, that is of a program in C, may be
//! unmapped while it is registered; so the kernel copies it too, and refuses where a plain copy
//! would end the process.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::NonNull;

/// A range of memory.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    length: usize,
    owned: bool,
}

// SAFETY: memory belongs to the process and not to a thread, and is copied under the lock of who
// holds this.
unsafe impl Send for Memory {}

impl Memory {
    /// Takes memory over.
    pub(crate) fn owned(memory: Box<[u8]>) -> Self {
        let length = memory.len();
        let base: NonNull<u8> = NonNull::from(Box::leak(memory)).cast();
        // Others name it by its address.
        base.as_ptr().expose_provenance();
        Self { base, length, owned: true }
    }

    /// Memory of somebody else.
    ///
    /// # Safety
    /// Until [`end`](Self::end) or the drop of this, whoever owns it must put up with it being read
    /// and written by [`read`](Self::read) and [`write`](Self::write), and by whom it is told to.
    pub(crate) unsafe fn borrowed(base: NonNull<u8>, length: usize) -> Self {
        Self { base, length, owned: false }
    }

    /// Borrowed memory is not touched from now on.
    pub(crate) fn end(&mut self) {
        if !self.owned {
            self.length = 0;
        }
    }

    /// Memory that was taken over is nobody's from now on.
    pub(crate) fn abandon(&mut self) {
        self.owned = false;
    }

    /// Gives memory that was taken over back, and leaves none; borrowed memory is none of ours.
    pub(crate) fn take(&mut self) -> Box<[u8]> {
        if !std::mem::replace(&mut self.owned, false) {
            return Box::default();
        }
        let length = std::mem::take(&mut self.length);
        let whole = std::ptr::slice_from_raw_parts_mut(self.base.as_ptr(), length);
        // SAFETY: pointer and length are those of the box that `owned` took, and owned memory keeps
        // its length; from the lines above on it isn't this that owns it.
        unsafe { Box::from_raw(whole) }
    }

    /// Where it is.
    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// The part of `length` bytes from `offset` on, for the kernel; `None` if not all is there.
    pub(crate) fn part(&self, offset: usize, length: usize) -> Option<libc::iovec> {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        let base = self.base.as_ptr().wrapping_add(offset);
        inside.then_some(libc::iovec { iov_base: base.cast(), iov_len: length })
    }

    /// Copies bytes out, from `offset` on; gives how many there were.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let count = into.len().min(self.length.saturating_sub(offset));
        if count == 0 {
            return 0;
        }
        let from = self.base.as_ptr().wrapping_add(offset);
        if !self.owned {
            return kernel_copy(into.as_mut_ptr().cast(), from.cast(), count);
        }
        // SAFETY: `offset + count` lies in memory that is ours, by the line above; `into` is a
        // reference, so the two don't overlap. In this process the lock of the holder keeps
        // others from writing; what the kernel writes for other processes is just bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), count) };
        count
    }

    /// Copies bytes in, from `offset` on; gives how many fitted.
    pub(crate) fn write(&mut self, offset: usize, from: &[u8]) -> usize {
        let count = from.len().min(self.length.saturating_sub(offset));
        if count == 0 {
            return 0;
        }
        let into = self.base.as_ptr().wrapping_add(offset);
        if !self.owned {
            return kernel_copy(into.cast(), from.as_ptr().cast_mut().cast(), count);
        }
        // SAFETY: as in `read`, with the roles exchanged.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, count) };
        count
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// Has the kernel copy within this process; gives how many bytes it did.
fn kernel_copy(into: *mut c_void, from: *mut c_void, count: usize) -> usize {
    let local = libc::iovec { iov_base: into, iov_len: count };
    let remote = libc::iovec { iov_base: from, iov_len: count };
    // SAFETY: the kernel checks every range. It writes `count` bytes at `into`, which is either a
    // reference of the caller's of that length, or borrowed memory whose owner agreed to that.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    usize::try_from(copied).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_never_overrun() {
        let mut bytes = *b"....";
        let base = NonNull::from(&mut bytes).cast();
        // SAFETY: the bytes outlive the memory and are not looked at before its end.
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
    fn borrowed_memory_may_vanish_and_ends() {
        // SAFETY: nobody owns the first page of an address space.
        let mut nowhere =
            unsafe { Memory::borrowed(NonNull::without_provenance(8.try_into().unwrap()), 8) };
        assert_eq!((nowhere.read(0, &mut [0; 4]), nowhere.write(0, &[0; 4])), (0, 0));
        let mut bytes = [1; 4];
        // SAFETY: as above.
        let mut memory = unsafe { Memory::borrowed(NonNull::from(&mut bytes).cast(), 4) };
        memory.end();
        assert_eq!((memory.write(0, b"abcd"), memory.part(0, 1).is_none()), (0, true));
        assert_eq!(bytes, [1; 4]);
    }
}
