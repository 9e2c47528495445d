//! What a forked child doesn't get from its parent.
//!
//! After a fork without `exec`, parent and child have the same rings, sockets and locks, and both would take
//! packets from them. So the child gets others in their place: zeros for a shared mapping, `/dev/null` for a
//! descriptor. Whatever it calls, then or when it ends, reaches nothing of its parent's; the parent notices
//! nothing. Rings of zeros are detached ones, so the next post fails with the [reason](Opener::check).
//!
//! ```text
//!  Shared (of a mapping or descriptor) ─► entry of the list ◄── child: replaces what each entry names
//! ```
//!
//! The child waits for no lock, since a thread that holds it may not exist there. An entry that is no longer
//! used stays in the list, for another mapping or descriptor.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use efa_device::DeviceError;

/// How many forks lie between the program's start and this process.
static GENERATION: AtomicU32 = AtomicU32::new(0);
static LIST: AtomicPtr<Entry> = AtomicPtr::new(null_mut());

const NO_DESCRIPTOR: i32 = -1;

/// A mapping or a descriptor; neither if the entry is free.
#[derive(Debug)]
struct Entry {
    next: *const Entry,
    address: AtomicUsize,
    /// 0 if there is no mapping.
    length: AtomicUsize,
    descriptor: AtomicI32,
}

// SAFETY: all that changes of an entry is atomic; `next` is set before the entry is published.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

/// Keeps a mapping or descriptor in the list. To be dropped before what it names.
#[derive(Debug)]
pub(crate) struct Shared(&'static Entry);

impl Shared {
    /// The child gets private zeros in place of this mapping, whole pages from `address` on. The caller owns
    /// it, and uses it by raw pointers or atomics only.
    pub(crate) fn mapping(address: usize, length: usize) -> Self {
        let entry = Self::entry();
        entry.address.store(address, Ordering::Relaxed);
        // The entry counts from here on.
        entry.length.store(length, Ordering::Release);
        Self(entry)
    }

    fn descriptor(descriptor: BorrowedFd<'_>) -> Self {
        let entry = Self::entry();
        entry.descriptor.store(descriptor.as_raw_fd(), Ordering::Release);
        Self(entry)
    }

    fn entry() -> &'static Entry {
        static REGISTERED: AtomicBool = AtomicBool::new(false);
        if !REGISTERED.swap(true, Ordering::Relaxed) {
            register();
        }
        if let Some(free) = free_entries().and_then(|mut free| free.pop()) {
            return free;
        }
        let entry = Box::leak(Box::new(Entry {
            next: LIST.load(Ordering::Acquire),
            address: AtomicUsize::new(0),
            length: AtomicUsize::new(0),
            descriptor: AtomicI32::new(NO_DESCRIPTOR),
        }));
        while let Err(first) =
            LIST.compare_exchange(entry.next.cast_mut(), entry, Ordering::AcqRel, Ordering::Acquire)
        {
            entry.next = first;
        }
        entry
    }
}

/// The entries that are free, unless another thread has them now, or had them when this process was forked:
/// then a new one is made, or one stays unused.
fn free_entries() -> Option<MutexGuard<'static, Vec<&'static Entry>>> {
    static FREE: Mutex<Vec<&'static Entry>> = Mutex::new(Vec::new());
    match FREE.try_lock() {
        Ok(free) => Some(free),
        Err(TryLockError::Poisoned(free)) => Some(free.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.0.length.store(0, Ordering::Relaxed);
        self.0.descriptor.store(NO_DESCRIPTOR, Ordering::Release);
        if let Some(mut free) = free_entries() {
            free.push(self.0);
        }
    }
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    let mut next: *const Entry = LIST.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: entries in the list were leaked, and `next` of one is set before it is published.
        let entry = unsafe { next.as_ref() }?;
        next = entry.next;
        Some(entry)
    })
}

/// An open file or socket that a forked child doesn't get.
#[derive(Debug)]
pub(crate) struct Descriptor {
    /// First, so that it is dropped first: once the descriptor is closed, its number may be another's.
    _shared: Shared,
    file: OwnedFd,
}

impl From<OwnedFd> for Descriptor {
    fn from(file: OwnedFd) -> Self {
        Self { _shared: Shared::descriptor(file.as_fd()), file }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The process that opened a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opener {
    generation: u32,
    process: u32,
}

impl Opener {
    /// This process.
    pub(crate) fn this() -> Self {
        let generation = GENERATION.load(Ordering::Relaxed);
        Self { generation, process: std::process::id() }
    }

    /// Whether this is that process, and not a forked child.
    #[inline]
    pub(crate) fn is_this(self) -> bool {
        self.generation == GENERATION.load(Ordering::Relaxed)
    }

    /// Fails in a forked child.
    pub(crate) fn check(self, device: impl FnOnce() -> String) -> Result<(), DeviceError> {
        if self.is_this() {
            return Ok(());
        }
        let reason = format!(
            "opened by process {}, of which this is a forked child: open the device again",
            self.process
        );
        Err(DeviceError::Inconsistent { object: device(), reason })
    }
}

#[cold]
fn register() {
    // SAFETY: the handler is a function of this library. If that is unloaded, glibc forgets the handler.
    let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    if refused != 0 {
        let reason = std::io::Error::from_raw_os_error(refused);
        tracing::warn!(%reason, "forked children must not use the device");
    }
}

/// Runs in a forked child, in its only thread. It calls only what POSIX allows there.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // Parent and child would give their files the same names.
    let process = u64::from(std::process::id());
    fastrand::seed(fastrand::u64(..) ^ process << 32);
    let mut null = NO_DESCRIPTOR;
    for entry in entries() {
        let length = entry.length.load(Ordering::Acquire);
        if length > 0 {
            replace_mapping(entry.address.load(Ordering::Relaxed), length);
        }
        let descriptor = entry.descriptor.load(Ordering::Acquire);
        if descriptor == NO_DESCRIPTOR {
            continue;
        }
        if null == NO_DESCRIPTOR {
            null = open_null(descriptor);
        }
        if null != descriptor && null != NO_DESCRIPTOR {
            // SAFETY: it takes numbers only. `descriptor` is of a `Descriptor`, which nobody else closes.
            unsafe { libc::dup3(null, descriptor, libc::O_CLOEXEC) };
        }
    }
    if null != NO_DESCRIPTOR
        && entries().all(|entry| entry.descriptor.load(Ordering::Relaxed) != null)
    {
        // SAFETY: `open_null` opened it, and no `Descriptor` has its number.
        unsafe { libc::close(null) };
    }
}

fn replace_mapping(address: usize, length: usize) {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the range is a mapping that its owner has put in the list and uses by raw pointers or atomics
    // only, for which zeros are as good as any content. No other thread exists in the child.
    unsafe {
        let base = std::ptr::without_provenance_mut(address);
        libc::mmap(base, length, access, flags, -1, 0);
    }
}

/// Opens `/dev/null`, in place of `descriptor` if no other number is free.
fn open_null(descriptor: i32) -> i32 {
    let open = || {
        // SAFETY: the path is a C string.
        unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) }
    };
    match open() {
        NO_DESCRIPTOR => {
            // SAFETY: as in `in_child`; the number is taken again at once, in the only thread.
            unsafe { libc::close(descriptor) };
            open()
        }
        null => null,
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn descriptor_is_in_the_list_until_it_is_dropped() {
        let listed =
            |number| entries().any(|entry| entry.descriptor.load(Ordering::Relaxed) == number);
        // No other test has such a number.
        let file = memfd_create("efa-test", MemfdFlags::CLOEXEC).unwrap();
        let file = rustix::io::fcntl_dupfd_cloexec(&file, 700).unwrap();
        let file: Descriptor = file.into();
        let number = file.as_fd().as_raw_fd();
        assert!(number >= 700 && listed(number));
        drop(file);
        assert!(!listed(number));
    }

    #[test]
    fn opener_is_this_process() {
        let opener = Opener::this();
        assert!(opener.is_this());
        assert_eq!(opener.check(String::new), Ok(()));
        let parent = Opener { generation: opener.generation.wrapping_sub(1), process: 77 };
        let error = parent.check(|| "efa-shm-x".into()).unwrap_err().to_string();
        assert!(error.contains("opened by process 77, of which this is a forked child"), "{error}");
    }
}
