//! Reading and writing the registered memory of other processes.
//!
//! Each opened device has a file with the [table of its keys](crate::keys), which others map for reading. The
//! requester finds it by the target's queue pair number, checks key, bounds and access, and has the kernel
//! copy (`process_vm_readv`, `process_vm_writev`). The target process does nothing.
//!
//! ```text
//! <host>/mem-<nonce>    the file, locked while its process lives
//! <host>/mem-<qpn>      hard links to it, one for each queue pair
//! ```
//!
//! A requester for whose GID the target's process has no address handle is refused, as by hardware. All of a host
//! have the same GID, so the table says it in one word.
//!
//! The file only saves system calls: any process of the user can change it. What counts is the owner's own
//! table, in its memory. A read has the kernel copy the data and then the slot of the key from there; it
//! succeeds only if this slot names the memory that was read, which thus was still registered after the
//! copy, and if the target's queue pair was still there: a process that was stopped in the middle may copy what the
//! owner has written since. A write looks at the owner's slot first, and [pins](crate::pins) the key meanwhile.
//!
//! Process numbers are reused. So each table has a random *cookie*: if it differs, the number belongs to
//! another process.
//!
//! Process numbers mean nothing in another PID namespace, and the kernel may
//! [forbid](super::permission) the copies. Then a copy ends with [`Status::NotPermitted`], the log has the process,
//! and the caller [requests](super::requests) the operation from the process itself.
//!
//! Memory that the device [allocated](HostMemory::allocate) is in the file too, and others [map](super::windows) it.
//!
//! Programs read into the same buffers repeatedly, and two buffers of 1 MiB about fill the cache of a core.
//! If each copy ran from front to back, every cache line would be evicted before it is used again. So
//! every other long read copies the [back half first](LONG), which is still cached: a copy of 1 MiB
//! takes an eighth less time.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use efa_device::{Access, DeviceError, Qpn, RemoteMemory, Status, zeroed};
use fastrand::Rng;
use rustix::fs::{fstatvfs, stat};
use rustix::io::Errno;

use super::directory::{FileName, HostDirectory, allocate, is_locked};
use super::windows::Windows;
use crate::fork::Descriptor;
use crate::keys::{
    HEADER_COOKIE, HEADER_KNOWS_HOST, LENGTH, PeerSlots, Slot, Slots, Use, number_at, slot_at,
};
use crate::map::Map;
use crate::memory::{FilePart, Part, discard, read_process};
use crate::region::{KeyTable, SoftRegion};
use crate::store::Store;

/// With the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"efamem8\n");
/// Reads of at least this many bytes are copied in two halves. Shorter ones stay cached in any order.
const LONG: usize = 256 << 10;
/// The kernel copies page by page.
pub(super) const PAGE: usize = 4096;

/// The regions of this process, and access to those of other processes of the host.
#[derive(Debug)]
pub(super) struct HostMemory {
    directory: Arc<HostDirectory>,
    keys: KeyTable,
    /// The name of the locked file.
    name: FileName,
    /// Holds the lock. Regions that are allocated follow the table.
    file: Arc<Descriptor>,
    /// Where in the file the next region is.
    next: Mutex<u64>,
    /// The PID namespace of this process; 0 if that isn't known.
    namespace: u64,
    /// Whether the kernel copies where it can.
    copies: bool,
    peers: Mutex<HashMap<Qpn, Arc<Peer>>>,
}

/// Another process's table.
#[derive(Debug)]
struct Peer {
    slots: PeerSlots,
    windows: Windows,
    /// Whether the next long read begins with its back half.
    back_first: AtomicBool,
    /// Whether the log has that its memory can't be accessed.
    refusal_told: AtomicBool,
}

/// Why the kernel did not copy.
#[derive(Debug)]
enum Failure {
    /// The process has ended and its number may be another's, or the table may be that of a predecessor.
    Outdated(Status),
    /// The kernel returned an error.
    Refused(Status),
}

const GONE: Failure = Failure::Outdated(Status::UnresponsiveRemote);
/// No such key, or it doesn't allow the copy.
const NOT_ALLOWED: Failure = Failure::Outdated(Status::RemoteBadAddress);

impl HostMemory {
    /// A table of at most `limit` regions of at most `max_size` bytes. Without `copies`, none is copied to or from
    /// other processes.
    pub(super) fn new(
        directory: &Arc<HostDirectory>,
        limit: usize,
        max_size: u64,
        copies: bool,
    ) -> Result<Self, DeviceError> {
        let (name, file) = directory.create_locked(FileName::Memory, LENGTH)?;
        let namespace = pid_namespace();
        let slots = Slots::in_file(&file, MAGIC, namespace).map_err(|errno| {
            directory.remove(name);
            crate::link::system(format!("mapping {name}"), errno)
        })?;
        allow_all_to_trace();
        let keys = KeyTable::with_slots(limit, max_size, Rng::new(), Some(slots));
        let (directory, peers) = (Arc::clone(directory), Mutex::default());
        let (file, next) = (Arc::new(file), Mutex::new(LENGTH as u64));
        Ok(Self { directory, keys, name, file, next, namespace, copies, peers })
    }

    /// Why others of the host can't access the memory of this process or it theirs, in whatever way.
    pub(super) fn obstacle(&self) -> Option<String> {
        let tables = self.directory.tables().unwrap_or_default();
        let other = tables.into_iter().find(|table| is_of_another_version(&self.directory, *table));
        other.map(|_| {
            "a process of this host runs another version of efa, which doesn't answer requests"
                .into()
        })
    }

    /// Why the kernel doesn't copy between this process and others of the host, as far as it can be seen now: what
    /// keeps others from this process, and this one from those that are there.
    pub(super) fn copy_obstacle(&self) -> Option<String> {
        if !self.copies {
            return Some("the options of the device ask for requests".into());
        }
        if let Some(obstacle) = super::permission::obstacle() {
            return Some(format!("others can't access the memory of this process: {obstacle}"));
        }
        let tables = self.directory.tables().unwrap_or_default();
        let find = |table| Peer::find(&self.directory, table)?.ok().flatten();
        let mut others = tables.into_iter().filter_map(find);
        others.find_map(|other| match other.check_cookie() {
            _ if self.is_foreign(&other) => {
                Some("a process of this host is in another PID namespace".into())
            }
            Err(Failure::Refused(Status::NotPermitted)) => Some(format!(
                "not permitted to access the memory of process {} of this host",
                other.slots.process
            )),
            _ => None,
        })
    }

    /// Whether a process may be in another PID namespace: its number says nothing then.
    fn is_foreign(&self, peer: &Peer) -> bool {
        self.namespace == 0 || self.namespace != peer.slots.namespace
    }

    /// Whether the kernel is to copy between this process and another.
    fn copies_with(&self, peer: &Peer) -> bool {
        self.copies && !self.is_foreign(peer)
    }

    pub(super) fn keys(&self) -> &KeyTable {
        &self.keys
    }

    /// Allocates and registers memory that the processes of the host map when they read or write it, or in
    /// this process's own memory if the file system has too little.
    pub(super) fn allocate(
        &self,
        length: usize,
        access: Access,
    ) -> Result<SoftRegion, DeviceError> {
        self.keys.check(length)?;
        self.directory.check_process()?;
        match self.reserve(length) {
            Some(part) => self.keys.register_part(part, access),
            None => {
                let registered = self.keys.register(zeroed(length)?, access);
                registered.map_err(|refused| refused.error)
            }
        }
    }

    /// A part of the file for a region. `None` if it would take more than half of what the file system has left, which
    /// rings need as well.
    fn reserve(&self, length: usize) -> Option<FilePart> {
        let system = fstatvfs(&*self.file).ok()?;
        let left = system.f_bavail.saturating_mul(system.f_bsize);
        if length == 0 || length as u64 > left / 2 {
            return None;
        }
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let part = allocate(&*self.file, *next, length)
            .and_then(|()| FilePart::new(&self.file, *next, length))
            .inspect_err(|error| {
                tracing::debug!(%error, length, "a region in memory of this process alone");
                discard(&*self.file, *next, length);
            });
        // Of pages of any size.
        *next = next.saturating_add(length as u64).next_multiple_of(1 << 16);
        part.ok()
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<Qpn, Arc<Peer>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets other processes find this process's regions by the number.
    pub(super) fn add_queue_pair(&self, qpn: Qpn) -> Result<(), DeviceError> {
        // This process has the number, so an existing file is of a dead process.
        self.directory.remove(FileName::MemoryOf(qpn));
        if let Some(slots) = self.keys.slots() {
            slots.set_queue_pair(qpn, true);
        }
        self.directory.link(self.name, FileName::MemoryOf(qpn))
    }

    /// Ends what [`add_queue_pair`](Self::add_queue_pair) began.
    pub(super) fn remove_queue_pair(&self, qpn: Qpn) {
        self.directory.remove(FileName::MemoryOf(qpn));
        if let Some(slots) = self.keys.slots() {
            slots.set_queue_pair(qpn, false);
        }
    }

    /// Copies from the memory of the process with queue pair `qpn`. `into` is a part that
    /// `SoftRegion::with_part` gave.
    pub(super) fn read(
        &self,
        qpn: Qpn,
        from: RemoteMemory,
        into: Part,
        store: Store,
    ) -> Result<(), Status> {
        let mapped = |window: &Map, at| into.fill(window, at, store);
        let by_kernel = |peer: &Peer| peer.read(from, into.iovec());
        let copied = self.copy(qpn, (from, into.length()), Use::RemoteRead, mapped, by_kernel);
        copied.map_err(|status| which_side(status, into, true))
    }

    /// Copies to the memory of the process with queue pair `qpn`.
    pub(super) fn write(
        &self,
        qpn: Qpn,
        from: Part,
        into: RemoteMemory,
        store: Store,
    ) -> Result<(), Status> {
        let mapped = |window: &Map, at| from.spill(window, at, store);
        let by_kernel = |peer: &Peer| peer.write(from.iovec(), into, Use::RemoteWrite, || true);
        let copied = self.copy(qpn, (into, from.length()), Use::RemoteWrite, mapped, by_kernel);
        copied.map_err(|status| which_side(status, from, false))
    }

    /// Whether the kernel copies for this process from the region of `key` of the process with queue pair `qpn`, as far as
    /// it is known.
    pub(super) fn kernel_copies(&self, qpn: Qpn, key: u32) -> bool {
        let peer = self.peer(qpn);
        peer.is_ok_and(|peer| self.copies_with(&peer) && !peer.slots.may_be_in_file(key))
    }

    /// Copies to a region of the process with queue pair `qpn`, which has asked for it; [`Status::RemoteAbort`] if `take`
    /// returns false, as that process has withdrawn the request.
    pub(super) fn push(
        &self,
        qpn: Qpn,
        from: Part,
        into: RemoteMemory,
        take: impl Fn() -> bool,
    ) -> Result<(), Status> {
        self.with_peer(qpn, |peer| peer.write(from.iovec(), into, Use::Pushed, &take))
    }

    /// Copies from or to a region of the process with queue pair `qpn`, by the kernel unless it is mapped.
    fn copy(
        &self,
        qpn: Qpn,
        there: (RemoteMemory, usize),
        wanted: Use,
        mapped: impl FnOnce(&Map, usize) -> bool,
        by_kernel: impl Fn(&Peer) -> Result<(), Failure>,
    ) -> Result<(), Status> {
        let by_kernel = |peer: &Peer| {
            by_kernel(peer)?;
            // A write may be what the owner has waited for before it ended the queue pair.
            if wanted == Use::RemoteRead { peer.check_end(qpn) } else { Ok(()) }
        };
        let copied = self.copy_mapped(qpn, there, wanted, mapped);
        copied.unwrap_or_else(|| self.with_peer(qpn, by_kernel))
    }

    /// Copies from or to a [mapped](super::windows) region; `None` if it isn't one.
    fn copy_mapped(
        &self,
        qpn: Qpn,
        there: (RemoteMemory, usize),
        wanted: Use,
        copy: impl FnOnce(&Map, usize) -> bool,
    ) -> Option<Result<(), Status>> {
        if !self.directory.opener().is_this() {
            return None;
        }
        let peer = self.peer(qpn).ok()?;
        let key = there.0.key;
        let confirm = || match self.copies_with(&peer) {
            true => match peer.slot(key) {
                Ok(slot) => Some(slot),
                Err(Failure::Refused(Status::NotPermitted)) => Some(peer.slots.slot(key)),
                Err(_) => None,
            },
            false => Some(peer.slots.slot(key)),
        };
        let target = (&*self.directory, qpn);
        peer.windows.copy(target, &peer.slots, there, wanted, confirm, copy)
    }

    fn peer(&self, qpn: Qpn) -> Result<Arc<Peer>, Status> {
        let mut peers = self.peers();
        if let Some(known) = peers.get(&qpn) {
            return Ok(Arc::clone(known));
        }
        let peer = Arc::new(Peer::open(&self.directory, FileName::MemoryOf(qpn))?);
        // Unmaps the tables of processes that have ended before it maps another.
        peers.retain(|qpn, known| {
            known.slots.has(*qpn) && !matches!(known.check_cookie(), Err(Failure::Outdated(_)))
        });
        peers.insert(qpn, Arc::clone(&peer));
        Ok(peer)
    }

    fn with_peer(
        &self,
        qpn: Qpn,
        copy: impl Fn(&Peer) -> Result<(), Failure>,
    ) -> Result<(), Status> {
        // A copy that the parent of this process began.
        if !self.directory.opener().is_this() {
            return Err(Status::QueuePairInternal);
        }
        let mut failure = Status::UnresponsiveRemote;
        // A known table may be of a process that has ended, and the number another's: then tried again.
        for _ in 0..2 {
            let peer = self.peer(qpn)?;
            if !self.copies_with(&peer) {
                return Err(peer.not_permitted());
            }
            match peer.check_target(qpn).and_then(|()| copy(&peer)) {
                Ok(()) => return Ok(()),
                Err(Failure::Refused(Status::NotPermitted)) => return Err(peer.not_permitted()),
                Err(Failure::Refused(status)) => return Err(status),
                Err(Failure::Outdated(status)) => failure = status,
            }
            self.peers().remove(&qpn);
        }
        Err(failure)
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        self.directory.remove(self.name);
    }
}

impl Peer {
    /// # Errors
    /// There is no such table, or this process can't open it.
    fn open(directory: &HostDirectory, name: FileName) -> Result<Self, Status> {
        match Self::find(directory, name) {
            Some(Ok(Some(peer))) => return Ok(peer),
            Some(Ok(None)) => {
                tracing::warn!(%name, "not a table of memory keys of this version of efa");
            }
            // The peer is there: this process lacks descriptors or memory.
            Some(Err(error)) => {
                tracing::warn!(%error, "no table of memory keys");
                return Err(Status::QueuePairInternal);
            }
            None => {}
        }
        Err(Status::BadDestinationQpn)
    }

    /// Opens a table, if there is a file of this name. `Ok(None)`: it is of another version, or its process is
    /// just making it.
    fn find(
        directory: &HostDirectory,
        name: FileName,
    ) -> Option<Result<Option<Self>, DeviceError>> {
        let (file, writable) = match directory.find_both(name).transpose()? {
            Ok(files) => files,
            Err(error) => return Some(Err(error)),
        };
        let slots = PeerSlots::open(&file, &writable, MAGIC);
        let slots = slots.map_err(|errno| directory.error("mapping", name, errno));
        Some(slots.map(|slots| {
            slots.map(|slots| Self {
                slots,
                windows: Windows::default(),
                back_first: AtomicBool::new(false),
                refusal_told: AtomicBool::new(false),
            })
        }))
    }

    /// Notes in the log, once, that the memory can't be accessed.
    #[cold]
    fn not_permitted(&self) -> Status {
        if !self.refusal_told.swap(true, Ordering::Relaxed) {
            let process = self.slots.process;
            tracing::info!(
                "reads and writes of the memory of process {process} are requested from it: not permitted to \
                 access it (not dumpable, seccomp, ptrace_scope, PID namespace), or not wanted"
            );
        }
        Status::NotPermitted
    }

    /// Reads words of the owner's own table, from byte `at` on.
    fn look(&self, at: usize, into: &mut [u64]) -> Result<(), Failure> {
        let address = self.slots.address.wrapping_add(at as u64);
        read_process(self.slots.process, address, into).map_err(|errno| match errno {
            // Another process, which has no memory there.
            Errno::FAULT => GONE,
            errno => failure(errno),
        })
    }

    /// Checks that the process is alive and the one of the table.
    fn check_cookie(&self) -> Result<(), Failure> {
        let mut cookie = [0];
        self.look(HEADER_COOKIE, &mut cookie)?;
        if cookie[0] == self.slots.cookie { Ok(()) } else { Err(GONE) }
    }

    /// Checks that the process has the queue pair and an address handle for the host.
    fn check_target(&self, qpn: Qpn) -> Result<(), Failure> {
        if !self.slots.has(qpn) {
            self.confirm_missing(qpn)?;
        }
        if self.slots.knows_host() { Ok(()) } else { self.confirm_unknown() }
    }

    /// Checks that the process had the queue pair until its memory was copied: as soon as it has not, the owner may use the
    /// memory for something else.
    fn check_end(&self, qpn: Qpn) -> Result<(), Failure> {
        if self.slots.still_has(qpn) { Ok(()) } else { self.confirm_missing(qpn) }
    }

    /// Whether the owner has an address handle for the host, though its file says that it doesn't.
    #[cold]
    fn confirm_unknown(&self) -> Result<(), Failure> {
        let mut knows = [0];
        self.check_cookie()?;
        self.look(HEADER_KNOWS_HOST, &mut knows)?;
        if knows[0] != 0 { Ok(()) } else { Err(Failure::Refused(Status::UnknownPeer)) }
    }

    /// Whether the owner has the queue pair, though its file says that it doesn't.
    #[cold]
    fn confirm_missing(&self, qpn: Qpn) -> Result<(), Failure> {
        let (at, bit) = number_at(qpn);
        let mut word = [0];
        let there = self.check_cookie().and_then(|()| self.look(at, &mut word));
        match there {
            Ok(()) if word[0] & bit != 0 => Ok(()),
            _ => Err(Failure::Outdated(Status::BadDestinationQpn)),
        }
    }

    /// The owner's own slot of a key.
    fn slot(&self, key: u32) -> Result<Slot, Failure> {
        let mut slot = Slot::default();
        self.look(slot_at(key), &mut slot.0)?;
        self.check_slot(slot)
    }

    /// Checks that a slot that was copied is of the process of the table.
    fn check_slot(&self, slot: Slot) -> Result<Slot, Failure> {
        if !slot.is_of(self.slots.cookie) {
            self.check_cookie()?;
        }
        Ok(slot)
    }

    /// The parts of a read in the order in which to copy them.
    fn order(&self, length: usize) -> [Range<usize>; 2] {
        let half = match length {
            0..LONG => length,
            _ => (length / 2).next_multiple_of(PAGE),
        };
        let (front, back) = (0..half, half..length);
        match back.is_empty() || !self.back_first.fetch_xor(true, Ordering::Relaxed) {
            true => [front, back],
            false => [back, front],
        }
    }

    fn read(&self, from: RemoteMemory, into: libc::iovec) -> Result<(), Failure> {
        let locate =
            |slot: Slot| slot.locate(from.key, from.address, into.iov_len as u64, Use::RemoteRead);
        let mut address = match locate(self.slots.slot(from.key)) {
            Some(address) => address,
            None => locate(self.slot(from.key)?).ok_or(NOT_ALLOWED)?,
        };
        // Twice if the file has another address than the owner.
        for _ in 0..2 {
            let (copied, slot) = self.copy_with_slot(from.key, address, into)?;
            match locate(slot).ok_or(NOT_ALLOWED)? {
                there if there != address => address = there,
                _ if copied => return Ok(()),
                _ => break,
            }
        }
        Err(Failure::Refused(Status::RemoteBadAddress))
    }

    /// Copies from the owner's memory, and then the slot of the key. Returns whether all of the memory was
    /// there.
    fn copy_with_slot(
        &self,
        key: u32,
        address: u64,
        into: libc::iovec,
    ) -> Result<(bool, Slot), Failure> {
        const SLOT: usize = size_of::<Slot>();
        let mut slot = Slot::default();
        let slot_there = self.slots.address.wrapping_add(slot_at(key) as u64);
        let mut local = [rest((&raw mut slot.0).cast(), 0, SLOT); 3];
        let mut there = [rest(slot_there as usize as *mut c_void, 0, SLOT); 3];
        for (at, part) in self.order(into.iov_len).into_iter().enumerate() {
            local[at] = rest(into.iov_base, part.start, part.len());
            there[at] = rest(address as usize as *mut c_void, part.start, part.len());
        }
        // SAFETY: the kernel checks every range. It writes `slot`, a local variable, and `into`: a part of a
        // region whose lock `SoftRegion::with_part` holds meanwhile.
        let copied = unsafe {
            libc::process_vm_readv(self.slots.process, local.as_ptr(), 3, there.as_ptr(), 3, 0)
        };
        match usize::try_from(copied) {
            Ok(copied) if copied == into.iov_len + SLOT => Ok((true, self.check_slot(slot)?)),
            Ok(_) => Ok((false, self.slot(key)?)),
            Err(_) => match last_failure() {
                Failure::Refused(Status::RemoteBadAddress) => Ok((false, self.slot(key)?)),
                failure => Err(failure),
            },
        }
    }

    /// Writes to a region that allows what is `wanted`, if `begin` still holds once its key is pinned.
    fn write(
        &self,
        from: libc::iovec,
        into: RemoteMemory,
        wanted: Use,
        begin: impl FnOnce() -> bool,
    ) -> Result<(), Failure> {
        const ABORTED: Failure = Failure::Refused(Status::RemoteAbort);
        let RemoteMemory { address, key } = into;
        let written = self.slots.hold(key, || {
            if !begin() {
                return Err(ABORTED);
            }
            let slot = self.slot(key)?;
            let address = slot.locate(key, address, from.iov_len as u64, wanted);
            self.copy_to(from, address.ok_or(NOT_ALLOWED)?)
        });
        written.unwrap_or(Err(ABORTED))
    }

    fn copy_to(&self, from: libc::iovec, address: u64) -> Result<(), Failure> {
        let mut done = 0;
        while done < from.iov_len {
            let left = from.iov_len - done;
            let local = rest(from.iov_base, done, left);
            let there = rest(address as usize as *mut c_void, done, left);
            // SAFETY: the kernel checks both ranges. In this process it only reads `from`, a part of a region
            // whose lock `SoftRegion::with_part` holds meanwhile.
            let copied =
                unsafe { libc::process_vm_writev(self.slots.process, &local, 1, &there, 1, 0) };
            match usize::try_from(copied) {
                Ok(0) => return Err(Failure::Refused(Status::RemoteBadAddress)),
                Ok(copied) => done += copied,
                Err(_) => return Err(last_failure()),
            }
        }
        Ok(())
    }
}

/// The status of a copy that failed: the kernel doesn't tell which side's memory isn't mapped, and this side's, which the
/// copy `writes` or reads, may be the one.
#[cold]
fn which_side(status: Status, local: Part, writes: bool) -> Status {
    match status {
        Status::RemoteBadAddress if !local.is_accessible(writes) => Status::BadLocalKey,
        status => status,
    }
}

/// `left` bytes from `done` after `base` on.
fn rest(base: *mut c_void, done: usize, left: usize) -> libc::iovec {
    libc::iovec { iov_base: base.wrapping_byte_add(done), iov_len: left }
}

/// What the last error of the kernel stands for.
fn last_failure() -> Failure {
    let error = std::io::Error::last_os_error();
    failure(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// What an error of the kernel stands for.
fn failure(errno: Errno) -> Failure {
    match errno {
        Errno::SRCH => GONE,
        Errno::FAULT => Failure::Refused(Status::RemoteBadAddress),
        // ENOSYS and EACCES are the choice of some seccomp filters.
        Errno::PERM | Errno::ACCESS | Errno::NOSYS => Failure::Refused(Status::NotPermitted),
        _ => Failure::Refused(Status::BadStatus),
    }
}

/// Whether a table is of a living process with another version of this layout.
fn is_of_another_version(directory: &HostDirectory, table: FileName) -> bool {
    let Ok(Some(file)) = directory.find(table) else { return false };
    let mut magic = [0; 8];
    let magic = match rustix::io::pread(&file, &mut magic, 0) {
        Ok(8) => u64::from_le_bytes(magic),
        _ => 0,
    };
    // 0: its process is just making it.
    magic != 0 && magic != MAGIC && is_locked(&file).unwrap_or(false)
}

/// The PID namespace of this process; 0 if `/proc` doesn't tell.
fn pid_namespace() -> u64 {
    stat("/proc/self/ns/pid").map_or(0, |found| found.st_ino)
}

/// Allows all processes of the user to access this one's memory, where the Yama module restricts that.
fn allow_all_to_trace() {
    // SAFETY: `PR_SET_PTRACER` takes a process number and no pointer: it sets an attribute of this process.
    // Without Yama it fails, and nothing is restricted.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

#[cfg(test)]
mod tests;
