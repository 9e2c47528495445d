//! Registered memory: keys, and reading and writing the memory of other processes.
//!
//! Each opened device has a table of its regions. It is shared with the other processes of the host:
//! whoever wants to read or write finds the table by the target's queue pair number, checks key,
//! bounds and access in it, and has the kernel copy (`process_vm_readv`, `process_vm_writev`). The
//! target takes no part.
//!
//! ```text
//! <host>/mem-<qpn>      hard links to one file a process, locked while that lives
//!    0  magic | process | address of the cookie | the cookie, two words
//! 4096  one bit for each queue pair number that the process has
//! 12288 slots: key | start as peers name it | start in memory | length | access
//! ```
//!
//! Numbers of processes are used again. So the process keeps a random *cookie* in its memory, and
//! whoever reads reads that too, in the same call: if it isn't there, it was another process.
//!
//! Programs read into the same buffers again and again, and two of 1 MiB just about fill the cache of
//! a core. From front to back each time, every line would be gone before its turn comes again. So
//! every other long read copies the [back half first](LONG), which is what the cache still has: the
//! copy of 1 MiB takes an eighth less.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_device::{DeviceError, Qpn, Status};
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, fallocate, flock, linkat};
use rustix::io::Errno as SystemErrno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::abi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE};
use crate::boundary::{FULL, INVALID, Outcome};
use crate::process::lock;

/// Most regions of a process on a device.
pub(crate) const MAX_REGIONS: usize = 1 << INDEX_BITS;
/// Longest region in bytes.
pub(crate) const MAX_REGION: u64 = 1 << 40;

/// Bits of a key that say which slot; those above change each time the slot is used.
const INDEX_BITS: u32 = 14;
const MAGIC: u64 = u64::from_le_bytes(*b"efamem1\n");
const NUMBERS: usize = 4096;
const SLOTS: usize = NUMBERS + (1 << 16) / 8;
const SLOT: usize = 40;
const LENGTH: usize = SLOTS + SLOT * MAX_REGIONS;

/// Bytes from which on a read is one of two halves. Shorter ones stay in the cache in any order.
const LONG: u64 = 256 << 10;
/// Halves begin with a page, because the kernel copies page by page.
const PAGE: u64 = 4096;

/// Most entries of a list for the kernel: the cookie, those of an operation, and one more where a
/// half begins within one.
const MAX_ENTRIES: usize = 1 + crate::device::MAX_SEND_SGE + 1;

/// A range of memory of some process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) address: u64,
    pub(crate) length: u64,
}

/// What somebody wants to do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    LocalRead,
    LocalWrite,
    RemoteRead,
    RemoteWrite,
}

impl Use {
    /// The access flag that it needs.
    fn flag(self) -> u32 {
        match self {
            Self::LocalRead => 0,
            Self::LocalWrite => IBV_ACCESS_LOCAL_WRITE,
            Self::RemoteRead => IBV_ACCESS_REMOTE_READ,
            Self::RemoteWrite => IBV_ACCESS_REMOTE_WRITE,
        }
    }
}

/// A mapping of a table, ours or another process's.
#[derive(Debug)]
struct Map(NonNull<u8>);

// SAFETY: the mapping belongs to the process and not to a thread.
unsafe impl Send for Map {}
// SAFETY: it is reached through atomics alone.
unsafe impl Sync for Map {}

impl Map {
    fn new(file: Option<&File>) -> Result<Self, SystemErrno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: the kernel chooses the address, so no memory in use is replaced.
        let base = unsafe {
            match file {
                Some(file) => mmap(null, LENGTH, access, MapFlags::SHARED, file, 0)?,
                None => mmap_anonymous(null, LENGTH, access, MapFlags::PRIVATE)?,
            }
        };
        NonNull::new(base.cast()).map(Self).ok_or(SystemErrno::NOMEM)
    }

    fn words<const N: usize>(&self, at: usize) -> &[AtomicU64; N] {
        assert!(at.is_multiple_of(8) && at + N * 8 <= LENGTH, "words at {at}");
        // SAFETY: the range lies in the mapping, which lives as long as `self`, is page aligned and
        // reached through atomics alone; every bit pattern is an AtomicU64.
        unsafe { self.0.add(at).cast().as_ref() }
    }

    fn number(&self, qpn: Qpn) -> (&AtomicU64, u64) {
        let at = NUMBERS + usize::from(qpn.0) / 64 * 8;
        (&self.words::<1>(at)[0], 1 << (qpn.0 % 64))
    }

    /// Whether the process has this queue pair.
    fn has(&self, qpn: Qpn) -> bool {
        let (word, bit) = self.number(qpn);
        word.load(Ordering::Acquire) & bit != 0
    }

    /// Where `range` of the region of `key` lies in the memory of its process, if all of it lies in
    /// the region and `wanted` is allowed.
    fn find(&self, key: u32, range: Range, wanted: Use) -> Option<u64> {
        let at = SLOTS + SLOT * (key as usize & (MAX_REGIONS - 1));
        let [slot, start, memory, length, access] = self.words::<5>(at);
        let load = |word: &AtomicU64| word.load(Ordering::Acquire);
        if key == 0 || load(slot) != u64::from(key) {
            return None;
        }
        let (start, memory, length) = (load(start), load(memory), load(length));
        let allowed = load(access) as u32 & wanted.flag() == wanted.flag();
        let offset = range.address.checked_sub(start)?;
        let inside = offset <= length && range.length <= length - offset;
        // Once more: it may have been given to another region meanwhile.
        (allowed && inside && load(slot) == u64::from(key)).then(|| memory.wrapping_add(offset))
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this length, and views borrow `self`.
        let unmapped = unsafe { munmap(self.0.as_ptr().cast::<c_void>(), LENGTH) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// The regions of this process on a device, and the way to those of others.
#[derive(Debug)]
pub(crate) struct MemoryTable {
    map: Map,
    free: Mutex<Free>,
    shared: Option<Shared>,
}

/// Slots that can be given out.
#[derive(Debug)]
struct Free {
    /// Used last, last: so that a key is not valid again soon.
    slots: VecDeque<u16>,
    /// The upper bits of the next key.
    next: u32,
}

/// What there is when other processes may read or write.
#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    /// Holds the lock.
    file: File,
    /// Read by other processes alone.
    _cookie: Box<[u64; 2]>,
    peers: Mutex<HashMap<Qpn, Peer>>,
}

/// Another process's table.
#[derive(Debug)]
struct Peer {
    map: Map,
    process: libc::pid_t,
    cookie_at: u64,
    cookie: [u64; 2],
    /// Whether the next long read begins with its back half.
    back_first: bool,
}

/// Some bytes of an operation, counted from its beginning.
#[derive(Clone, Copy)]
struct Part {
    start: u64,
    length: u64,
}

/// Why the kernel did not copy.
enum Failure {
    /// It isn't the process that we took it for.
    Gone,
    /// It refused.
    Refused(Status),
}

fn name(qpn: Qpn) -> String {
    format!("mem-{}", qpn.0)
}

fn system(operation: &str, path: &Path, errno: SystemErrno) -> DeviceError {
    let operation = format!("{operation} {}", path.display());
    DeviceError::System { operation, errno: errno.raw_os_error() }
}

impl MemoryTable {
    /// An empty table, shared with the processes of the host that has this directory, if any.
    pub(crate) fn new(directory: Option<&Path>) -> Result<Self, DeviceError> {
        let slots = (0..MAX_REGIONS as u16).collect();
        let free = Mutex::new(Free { slots, next: fastrand::u32(..) });
        let Some(directory) = directory else {
            let map = Map::new(None).map_err(|e| system("mapping", Path::new("memory"), e))?;
            return Ok(Self { map, free, shared: None });
        };
        sweep(directory);
        let error = |errno| system("making a memory table in", directory, errno);
        // Without a name, so that nobody sees it before it is complete and locked.
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = File::from(rustix::fs::open(directory, flags, mode).map_err(error)?);
        // With its storage, so that a full file system shows here and not as SIGBUS.
        fallocate(&file, FallocateFlags::empty(), 0, LENGTH as u64).map_err(error)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(error)?;
        let map = Map::new(Some(&file)).map_err(error)?;
        let cookie = Box::new([fastrand::u64(..), fastrand::u64(..)]);
        let [magic, process, at, first, second] = map.words::<5>(0);
        process.store(std::process::id().into(), Ordering::Relaxed);
        at.store((&raw const *cookie) as u64, Ordering::Relaxed);
        first.store(cookie[0], Ordering::Relaxed);
        second.store(cookie[1], Ordering::Relaxed);
        magic.store(MAGIC, Ordering::Release);
        allow_all_to_trace();
        // The first link is never the last: a file without links can't be linked again.
        let base = directory.join(format!("mem-{:016x}", fastrand::u64(..)));
        link(&file, &base).map_err(error)?;
        let directory = directory.to_path_buf();
        let shared = Shared { directory, file, _cookie: cookie, peers: Mutex::default() };
        Ok(Self { map, free, shared: Some(shared) })
    }

    /// Other processes find our regions by this number from now on.
    pub(crate) fn add_queue_pair(&self, qpn: Qpn) -> Result<(), DeviceError> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let path = shared.directory.join(name(qpn));
        // The number is ours, so what has this name is of a dead process.
        let _ = std::fs::remove_file(&path);
        let (word, bit) = self.map.number(qpn);
        word.fetch_or(bit, Ordering::Release);
        link(&shared.file, &path).map_err(|errno| system("naming", &path, errno))
    }

    /// And not any more.
    pub(crate) fn remove_queue_pair(&self, qpn: Qpn) {
        let Some(shared) = &self.shared else { return };
        let _ = std::fs::remove_file(shared.directory.join(name(qpn)));
        let (word, bit) = self.map.number(qpn);
        word.fetch_and(!bit, Ordering::Release);
    }

    /// Registers memory; `start` is its address as keys' users name it. Gives the key.
    pub(crate) fn register(&self, memory: Range, start: u64, access: u32) -> Outcome<u32> {
        let end = memory.address.checked_add(memory.length).and(start.checked_add(memory.length));
        if memory.length == 0 || memory.length > MAX_REGION || end.is_none() {
            return Err(INVALID);
        }
        let mut free = lock(&self.free);
        let index = free.slots.pop_front().ok_or(FULL)?;
        // Never 0, which means none.
        free.next = free.next.wrapping_add(1);
        let mut key = free.next << INDEX_BITS | u32::from(index);
        if key == 0 {
            free.next = 1;
            key = 1 << INDEX_BITS;
        }
        drop(free);
        let words = self.map.words::<5>(SLOTS + SLOT * usize::from(index));
        let values = [start, memory.address, memory.length, access.into()];
        for (word, value) in words[1..].iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
        words[0].store(key.into(), Ordering::Release);
        Ok(key)
    }

    /// Ends a registration.
    pub(crate) fn deregister(&self, key: u32) {
        let index = (key as usize & (MAX_REGIONS - 1)) as u16;
        let [slot] = self.map.words::<1>(SLOTS + SLOT * usize::from(index));
        if slot.compare_exchange(key.into(), 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            lock(&self.free).slots.push_back(index);
        }
    }

    /// Where a range of a region of ours is in memory.
    #[inline]
    pub(crate) fn find(&self, key: u32, range: Range, wanted: Use) -> Option<u64> {
        self.map.find(key, range, wanted)
    }

    /// Copies from the region `key` of whoever has queue pair `qpn`.
    pub(crate) fn read(
        &self,
        qpn: Qpn,
        key: u32,
        from: Range,
        into: &[Range],
    ) -> Result<(), Status> {
        self.with_peer(qpn, key, from, Use::RemoteRead, |peer, address| peer.read(address, into))
    }

    /// Copies to the region `key` of whoever has queue pair `qpn`.
    pub(crate) fn write(
        &self,
        qpn: Qpn,
        key: u32,
        from: &[Range],
        into: Range,
    ) -> Result<(), Status> {
        self.with_peer(qpn, key, into, Use::RemoteWrite, |peer, address| {
            peer.read(address, &[]).and_then(|()| peer.write(from, address))
        })
    }

    fn with_peer(
        &self,
        qpn: Qpn,
        key: u32,
        range: Range,
        wanted: Use,
        copy: impl Fn(&mut Peer, u64) -> Result<(), Failure>,
    ) -> Result<(), Status> {
        let shared = self.shared.as_ref().ok_or(Status::UnsupportedOperation)?;
        let mut peers = lock(&shared.peers);
        // What we know may be of a process that is gone, and the number another's: then once more.
        let mut failure = Status::UnresponsiveRemote;
        for fresh in [false, true] {
            if fresh {
                peers.remove(&qpn);
            }
            let peer = match peers.entry(qpn) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    let peer = Peer::open(&shared.directory, qpn);
                    entry.insert(peer.ok_or(Status::BadDestinationQpn)?)
                }
            };
            if !peer.map.has(qpn) {
                failure = Status::BadDestinationQpn;
                continue;
            }
            let Some(address) = peer.map.find(key, range, wanted) else {
                failure = Status::RemoteBadAddress;
                continue;
            };
            match copy(peer, address) {
                Ok(()) => return Ok(()),
                Err(Failure::Refused(status)) => return Err(status),
                Err(Failure::Gone) => failure = Status::UnresponsiveRemote,
            }
        }
        peers.remove(&qpn);
        Err(failure)
    }
}

impl Drop for MemoryTable {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            // All numbers are taken back by now; what is left is the first name.
            let _ = flock(&shared.file, FlockOperation::NonBlockingUnlock);
            sweep(&shared.directory);
        }
    }
}

impl Peer {
    fn open(directory: &Path, qpn: Qpn) -> Option<Self> {
        let path = directory.join(name(qpn));
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
        let data = file.metadata().ok()?;
        if !data.is_file() || data.len() != LENGTH as u64 {
            return None;
        }
        let map = Map::new(Some(&file)).ok()?;
        let words = map.words::<5>(0).each_ref().map(|word| word.load(Ordering::Acquire));
        let [magic, process, cookie_at, first, second] = words;
        let process = libc::pid_t::try_from(process).ok()?;
        let cookie = [first, second];
        (magic == MAGIC).then_some(Self { map, process, cookie_at, cookie, back_first: false })
    }

    /// The parts of a read in the order in which to copy them.
    fn order(&mut self, total: u64) -> [Part; 2] {
        if total < LONG {
            return [Part { start: 0, length: total }, Part { start: total, length: 0 }];
        }
        let half = (total / 2).next_multiple_of(PAGE);
        let front = Part { start: 0, length: half };
        let back = Part { start: half, length: total - half };
        let order = if self.back_first { [back, front] } else { [front, back] };
        self.back_first = !self.back_first;
        order
    }

    /// Copies from `address` of the process; with nothing to copy to it only checks who that is.
    fn read(&mut self, address: u64, into: &[Range]) -> Result<(), Failure> {
        let mut done = 0;
        let total: u64 = into.iter().map(|range| range.length).sum();
        let order = self.order(total);
        loop {
            let mut cookie = [0_u64; 2];
            let mut local = Entries::default();
            local.push(Range { address: (&raw mut cookie) as u64, length: 16 });
            let mut remote = Entries::default();
            remote.push(Range { address: self.cookie_at, length: 16 });
            let mut skip = done;
            for part in order {
                let here = skip.min(part.length);
                skip -= here;
                let part = Part { start: part.start + here, length: part.length - here };
                local.push_part(into, part);
                let address = address.wrapping_add(part.start);
                remote.push(Range { address, length: part.length });
            }
            // SAFETY: the kernel checks every range and copies what it can. It writes to `cookie`,
            // and to memory that the program registered for local writing and may not look at
            // before the operation completes.
            let copied = unsafe {
                let (local, remote) = (local.as_iovecs(), remote.as_iovecs());
                libc::process_vm_readv(
                    self.process,
                    local.as_ptr(),
                    local.len() as u64,
                    remote.as_ptr(),
                    remote.len() as u64,
                    0,
                )
            };
            let copied = u64::try_from(copied).map_err(|_| last_failure())?;
            if copied < 16 || cookie != self.cookie {
                return Err(Failure::Gone);
            }
            if copied == 16 && done < total {
                return Err(Failure::Refused(Status::RemoteBadAddress));
            }
            done += copied - 16;
            if done >= total {
                return Ok(());
            }
        }
    }

    fn write(&self, from: &[Range], address: u64) -> Result<(), Failure> {
        let mut done = 0;
        let total: u64 = from.iter().map(|range| range.length).sum();
        while done < total {
            let mut local = Entries::default();
            local.push_part(from, Part { start: done, length: total - done });
            let mut remote = Entries::default();
            remote.push(Range { address: address.wrapping_add(done), length: total - done });
            // SAFETY: the kernel checks every range. It only reads memory of ours.
            let copied = unsafe {
                let (local, remote) = (local.as_iovecs(), remote.as_iovecs());
                libc::process_vm_writev(
                    self.process,
                    local.as_ptr(),
                    local.len() as u64,
                    remote.as_ptr(),
                    remote.len() as u64,
                    0,
                )
            };
            match u64::try_from(copied) {
                Ok(0) => return Err(Failure::Refused(Status::RemoteBadAddress)),
                Ok(copied) => done += copied,
                Err(_) => return Err(last_failure()),
            }
        }
        Ok(())
    }
}

/// What the last refusal of the kernel means.
fn last_failure() -> Failure {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ESRCH) => Failure::Gone,
        Some(libc::EFAULT) => Failure::Refused(Status::RemoteBadAddress),
        _ => Failure::Refused(Status::RemoteAbort),
    }
}

/// A list of ranges for the kernel.
struct Entries {
    iovecs: [libc::iovec; MAX_ENTRIES],
    count: usize,
}

impl Default for Entries {
    fn default() -> Self {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self { iovecs: [empty; MAX_ENTRIES], count: 0 }
    }
}

impl Entries {
    fn push(&mut self, range: Range) {
        if range.length > 0 {
            let iov_len = usize::try_from(range.length).unwrap_or(usize::MAX);
            let iov_base = range.address as usize as *mut c_void;
            self.iovecs[self.count] = libc::iovec { iov_base, iov_len };
            self.count += 1;
        }
    }

    /// Adds a part of what `ranges` make up one after the other.
    fn push_part(&mut self, ranges: &[Range], Part { mut start, mut length }: Part) {
        for range in ranges {
            let before = start.min(range.length);
            let here = length.min(range.length - before);
            self.push(Range { address: range.address.wrapping_add(before), length: here });
            start -= before;
            length -= here;
        }
    }

    fn as_iovecs(&self) -> &[libc::iovec] {
        &self.iovecs[..self.count]
    }
}

/// Gives the file another name.
fn link(file: &File, path: &Path) -> Result<(), SystemErrno> {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(rustix::fs::CWD, from, rustix::fs::CWD, path, AtFlags::SYMLINK_FOLLOW)
}

/// Removes the tables of processes that are gone.
fn sweep(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with("mem-"));
        if !ours {
            continue;
        }
        let path = entry.path();
        if let Ok(file) = File::open(&path)
            && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
            && is_named(&file, &path)
        {
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Whether the name still leads to this file.
fn is_named(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |data: std::fs::Metadata| (data.dev(), data.ino());
    file.metadata().ok().map(id) == std::fs::symlink_metadata(path).ok().map(id)
}

/// Where the Yama module restricts who may read whose memory: lets every process of the user.
fn allow_all_to_trace() {
    // SAFETY: the call changes an attribute of this process and touches no memory. Without the
    // module it fails, and nothing is restricted.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: u32 = IBV_ACCESS_LOCAL_WRITE;
    const ALL: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

    struct Host(PathBuf);

    impl Host {
        fn new() -> Self {
            let name = format!("efa-memory-{:016x}", fastrand::u64(..));
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> usize {
            std::fs::read_dir(&self.0).unwrap().count()
        }
    }

    impl Drop for Host {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn range(bytes: &[u8]) -> Range {
        Range { address: bytes.as_ptr() as u64, length: bytes.len() as u64 }
    }

    fn part(of: Range, from: u64, length: u64) -> Range {
        Range { address: of.address + from, length }
    }

    #[test]
    fn a_key_opens_its_region_and_no_more() {
        let table = MemoryTable::new(None).unwrap();
        let memory = Range { address: 0x1000, length: 100 };
        let key = table.register(memory, 0x5000, IBV_ACCESS_REMOTE_READ).unwrap();
        let at = |address, length, wanted| table.find(key, Range { address, length }, wanted);
        assert_eq!(at(0x5000, 100, Use::RemoteRead), Some(0x1000));
        assert_eq!(at(0x5000 + 99, 1, Use::LocalRead), Some(0x1000 + 99));
        assert_eq!(at(0x5000 + 100, 0, Use::LocalRead), Some(0x1000 + 100));
        for (address, length) in [(0x4fff, 1), (0x5000, 101), (0x5064, 1), (u64::MAX, 2)] {
            assert_eq!(at(address, length, Use::RemoteRead), None, "{address:#x} {length}");
        }
        assert_eq!(at(0x5000, 1, Use::RemoteWrite), None);
        assert_eq!(at(0x5000, 1, Use::LocalWrite), None);
        let whole = Range { address: 0x5000, length: 100 };
        assert_eq!(table.find(key ^ 1 << INDEX_BITS, whole, Use::LocalRead), None);
        assert_eq!(table.find(key ^ 1, whole, Use::LocalRead), None);
        assert_eq!(table.find(0, whole, Use::LocalRead), None);
        table.deregister(key);
        assert_eq!(table.find(key, whole, Use::LocalRead), None);
    }

    #[test]
    fn keys_are_unique_and_end() {
        let table = MemoryTable::new(None).unwrap();
        let memory = Range { address: 0x1000, length: 1 };
        let keys: std::collections::HashSet<u32> =
            (0..MAX_REGIONS).map(|_| table.register(memory, 0, LOCAL).unwrap()).collect();
        assert_eq!(keys.len(), MAX_REGIONS);
        assert!(!keys.contains(&0));
        assert_eq!(table.register(memory, 0, LOCAL), Err(FULL));
        let key = *keys.iter().next().unwrap();
        table.deregister(key);
        table.deregister(key);
        assert!(!keys.contains(&table.register(memory, 0, LOCAL).unwrap()));
        assert_eq!(table.register(memory, 0, LOCAL), Err(FULL));
        for (address, length) in [(0, 0), (u64::MAX, 2), (0, MAX_REGION + 1)] {
            let bad = table.register(Range { address, length }, 0, LOCAL);
            assert_eq!(bad, Err(INVALID), "{address:#x} {length}");
        }
    }

    #[test]
    fn memory_of_a_process_is_read_and_written() {
        let host = Host::new();
        let (owner, user) =
            (MemoryTable::new(Some(&host.0)).unwrap(), MemoryTable::new(Some(&host.0)).unwrap());
        let (source, target) = (b"0123456789".to_vec(), vec![0_u8; 10]);
        let key = owner.register(range(&source), range(&source).address, ALL).unwrap();
        let qpn = Qpn(7);
        let (from, into) = (range(&source), range(&target));
        let pieces = [part(into, 0, 3), part(into, 5, 5)];
        assert_eq!(user.read(qpn, key, part(from, 1, 8), &pieces), Err(Status::BadDestinationQpn));
        owner.add_queue_pair(qpn).unwrap();
        assert_eq!(user.read(qpn, key, part(from, 1, 8), &pieces), Ok(()));
        assert_eq!(target, b"123\0\x0045678");
        let pieces = [part(into, 0, 2), part(into, 5, 1)];
        assert_eq!(user.write(qpn, key, &pieces, part(from, 7, 3)), Ok(()));
        assert_eq!(source, b"0123456124");
        assert_eq!(user.read(qpn, key, part(from, 5, 0), &[]), Ok(()));
        // Key, bounds, access.
        let bad = Err(Status::RemoteBadAddress);
        assert_eq!(user.read(qpn, key + 1, part(from, 0, 3), &[part(into, 0, 3)]), bad);
        assert_eq!(user.read(qpn, key, part(from, 8, 3), &[part(into, 0, 3)]), bad);
        let closed = owner.register(from, from.address, LOCAL).unwrap();
        assert_eq!(user.read(qpn, closed, part(from, 0, 3), &[part(into, 0, 3)]), bad);
        assert_eq!(user.write(qpn, closed, &[part(into, 0, 3)], part(from, 0, 3)), bad);
        // A region whose memory is gone.
        let nowhere = Range { address: 8, length: 8 };
        let key = owner.register(nowhere, 8, ALL).unwrap();
        assert_eq!(user.read(qpn, key, nowhere, &[part(into, 0, 8)]), bad);
        assert_eq!(user.write(qpn, key, &[part(into, 0, 8)], nowhere), bad);
        owner.remove_queue_pair(qpn);
        assert_eq!(
            user.read(qpn, key, nowhere, &[part(into, 0, 8)]),
            Err(Status::BadDestinationQpn)
        );
        drop((owner, user));
        assert_eq!(host.names(), 0);
    }

    #[test]
    fn long_reads_are_the_same_in_either_order() {
        let host = Host::new();
        let (owner, user) =
            (MemoryTable::new(Some(&host.0)).unwrap(), MemoryTable::new(Some(&host.0)).unwrap());
        let mut rng = fastrand::Rng::with_seed(1);
        let source: Vec<u8> =
            std::iter::repeat_with(|| rng.u8(..)).take(3 * LONG as usize).collect();
        let key = owner.register(range(&source), 0, ALL).unwrap();
        owner.add_queue_pair(Qpn(9)).unwrap();
        for (from, length) in [(0, LONG), (1, LONG + 1), (77, 2 * LONG - 5), (0, 3 * LONG)] {
            // Where a scatter entry ends, before, in and after the place where the halves meet.
            for first in [0, 1, length / 2, length - 1, length] {
                for _ in 0..2 {
                    let target = vec![0_u8; length as usize];
                    let into = range(&target);
                    let pieces = [part(into, 0, first), part(into, first, length - first)];
                    let remote = Range { address: from, length };
                    assert_eq!(user.read(Qpn(9), key, remote, &pieces), Ok(()));
                    let expected = &source[from as usize..][..length as usize];
                    assert!(target == expected, "{length} from {from}, pieces at {first}");
                }
            }
        }
        owner.remove_queue_pair(Qpn(9));
    }

    #[test]
    fn a_table_of_another_process_is_not_mistaken() {
        let host = Host::new();
        let owner = MemoryTable::new(Some(&host.0)).unwrap();
        let user = MemoryTable::new(Some(&host.0)).unwrap();
        let memory = vec![1_u8; 8];
        let key = owner.register(range(&memory), range(&memory).address, ALL).unwrap();
        owner.add_queue_pair(Qpn(3)).unwrap();
        let target = vec![0_u8; 8];
        // As if the number of the process were another's now: the cookie is not there.
        let [.., first, _] = owner.map.words::<5>(0);
        let cookie = first.load(Ordering::Relaxed);
        first.store(!cookie, Ordering::Relaxed);
        let gone = Err(Status::UnresponsiveRemote);
        assert_eq!(user.read(Qpn(3), key, range(&memory), &[range(&target)]), gone);
        assert_eq!(user.write(Qpn(3), key, &[range(&target)], range(&memory)), gone);
        assert_eq!(memory, [1; 8]);
        // No such process at all.
        first.store(cookie, Ordering::Relaxed);
        owner.map.words::<2>(0)[1].store(0x3fff_ffff, Ordering::Relaxed);
        assert_eq!(user.read(Qpn(3), key, range(&memory), &[range(&target)]), gone);
    }

    #[test]
    fn a_stale_table_gives_way() {
        let host = Host::new();
        let user = MemoryTable::new(Some(&host.0)).unwrap();
        let (memory, target) = (vec![5_u8; 4], vec![0_u8; 4]);
        let dead = MemoryTable::new(Some(&host.0)).unwrap();
        dead.add_queue_pair(Qpn(4)).unwrap();
        let old = dead.register(range(&memory), 0, ALL).unwrap();
        let whole = Range { address: 0, length: 4 };
        assert_eq!(user.read(Qpn(4), old, whole, &[range(&target)]), Ok(()));
        // Killed: nothing is taken back, but the lock is gone and so is the process.
        dead.map.words::<2>(0)[1].store(0x3fff_ffff, Ordering::Relaxed);
        let dead = std::mem::ManuallyDrop::new(dead);
        let file = &dead.shared.as_ref().unwrap().file;
        flock(file, FlockOperation::NonBlockingUnlock).unwrap();
        assert_eq!(host.names(), 3);
        let next = MemoryTable::new(Some(&host.0)).unwrap();
        assert_eq!(host.names(), 2, "the dead one's names were removed");
        next.add_queue_pair(Qpn(4)).unwrap();
        let key = next.register(range(&memory), 0, ALL).unwrap();
        assert_eq!(user.read(Qpn(4), key, whole, &[range(&target)]), Ok(()));
        assert_eq!(target, [5; 4]);
        next.remove_queue_pair(Qpn(4));
    }
}
