//! Memory regions and the keys of a device, the same on every link.
//!
//! ```text
//!  register ─► SoftRegion ◄── find(key) ── KeyTable ── locate(key, range) ─► Slots
//!                  │                                                   words, without a lock,
//!                  └─► Memory: raw bytes, copied under a lock           on shm for all processes
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use efa_device::{
    Access, CopySource, CopyTarget, DeviceError, ForeignMemory, Lending, Region, RegionRange,
    RegisterError, RemoteMemory, Status,
};
use efa_lock::Mutex as BiasedMutex;
use fastrand::Rng;

use crate::faults::Refusals;
use crate::keys::{Entry, INDEX_BITS, Slots};
pub use crate::keys::{MAX_REGIONS, Use};
use crate::lock::{TIMEOUT, lock_within, within};
use crate::memory::{FilePart, Memory, Part};

/// Registered memory of a software device.
///
/// Dropping the last clone ends the registration and frees the memory.
#[derive(Clone)]
pub struct SoftRegion(Arc<Registered>);

/// Prints no bytes, and takes no lock.
impl fmt::Debug for SoftRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoftRegion")
            .field("length", &self.0.length)
            .field("address", &self.0.address)
            .field("key", &self.0.key)
            .field("access", &self.0.access)
            .finish_non_exhaustive()
    }
}

struct Registered {
    memory: BiasedMutex<Memory>,
    length: usize,
    address: u64,
    key: u32,
    local_write: bool,
    is_mapped: bool,
    access: Access,
    table: KeyTable,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.end();
    }
}

impl Registered {
    /// Ends the registration, if it hasn't ended. If a process may still write to the memory, the memory is
    /// never freed.
    fn end(&self) -> Removal {
        let removal = self.table.remove(self.key);
        if let Removal::InUse | Removal::Locked = removal {
            // Without the lock, `self` is never dropped: its other user has it.
            self.memory_within().iter_mut().for_each(|memory| memory.abandon());
        }
        removal
    }

    /// Whether another process still uses the memory of a registration that has ended.
    fn is_in_use(&self) -> bool {
        self.table.slots().is_some_and(|slots| slots.is_pinned(self.key))
    }

    /// Takes the lock, as [`lock_within`] does.
    fn memory_within(&self) -> Option<efa_lock::MutexGuard<'_, Memory>> {
        within(TIMEOUT, || self.memory.try_lock())
    }
}

/// Memory of a C program, to be registered.
#[derive(Clone, Copy, Debug)]
pub struct RawMemory {
    /// The first byte.
    pub base: NonNull<u8>,
    /// Length in bytes.
    pub length: usize,
    /// Address of the first byte in RDMA requests.
    pub address: u64,
    /// Whether local operations (receives, RDMA reads) may write it.
    pub local_write: bool,
    /// What remote interfaces may do with it.
    pub access: Access,
}

/// The regions of a device by key. Clones are the same table.
#[derive(Clone)]
pub struct KeyTable(Arc<Table>);

impl fmt::Debug for KeyTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyTable").field("limit", &self.0.limit).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Table {
    limit: usize,
    max_size: u64,
    /// For lookups without a lock, and on shm for other processes.
    slots: Option<Slots>,
    unpin_timeout: Duration,
    keys: Mutex<Keys>,
}

#[derive(Debug)]
struct Keys {
    /// The upper bits of the next key.
    next: u32,
    next_address: u64,
    /// By index, the lower bits of the key.
    regions: Vec<Option<(u32, Weak<Registered>)>>,
    /// Free indices, the longest free first, so that a slot is not used again soon.
    free: VecDeque<u32>,
    /// Registrations that are to fail.
    refusals: Option<Refusals>,
}

impl Keys {
    /// An index for another region, of `length` bytes.
    fn place(&mut self, limit: usize, length: usize) -> Option<u32> {
        if self.refusals.as_mut().is_some_and(|refusals| refusals.strike(length)) {
            return None;
        }
        if self.regions.len() < limit {
            self.regions.push(None);
            return u32::try_from(self.regions.len() - 1).ok();
        }
        self.free.pop_front()
    }

    /// The address in RDMA requests of another region.
    fn address(&mut self, length: usize) -> u64 {
        let address = self.next_address;
        let pages = (length as u64).div_ceil(4096).max(1);
        self.next_address = address.saturating_add(pages.saturating_mul(4096));
        address
    }
}

impl KeyTable {
    /// A table of at most `limit` regions of at most `max_size` bytes; keys are drawn from `rng`.
    pub(crate) fn new(limit: usize, max_size: u64, rng: Rng) -> Self {
        Self::with_slots(limit, max_size, rng, None)
    }

    /// The same with [`Slots`].
    pub(crate) fn with_slots(
        limit: usize,
        max_size: u64,
        mut rng: Rng,
        slots: Option<Slots>,
    ) -> Self {
        let limit = limit.min(MAX_REGIONS);
        let keys = Keys {
            // Random, so that a key of one device is invalid on another.
            next: rng.u32(..),
            next_address: 0x10_0000,
            regions: Vec::new(),
            free: VecDeque::new(),
            refusals: None,
        };
        let keys = Mutex::new(keys);
        Self(Arc::new(Table { limit, max_size, slots, unpin_timeout: UNPIN_TIMEOUT, keys }))
    }

    fn lock(&self) -> MutexGuard<'_, Keys> {
        self.0.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets which registrations fail from now on.
    pub fn refuse(&self, refusals: Option<Refusals>) {
        self.lock().refusals = refusals;
    }

    pub(crate) fn slots(&self) -> Option<&Slots> {
        self.0.slots.as_ref()
    }

    /// Checks that a region may have this length.
    pub(crate) fn check(&self, length: usize) -> Result<(), DeviceError> {
        let (length, limit) = (length as u64, self.0.max_size);
        if length > limit { Err(DeviceError::TooLong { length, limit }) } else { Ok(()) }
    }

    pub(crate) fn register(
        &self,
        memory: Box<[u8]>,
        access: Access,
    ) -> Result<SoftRegion, RegisterError> {
        let length = memory.len();
        if let Err(error) = self.check(length) {
            return Err(RegisterError { error, memory });
        }
        let mut keys = self.lock();
        let Some(place) = keys.place(self.0.limit, length) else {
            return Err(RegisterError { error: self.full(), memory });
        };
        let address = keys.address(length);
        let memory = Memory::owned(memory);
        Ok(self.enter(&mut keys, place, memory, (address, length), true, access))
    }

    /// Registers a part of the file of the table, which others map.
    pub(crate) fn register_part(
        &self,
        part: FilePart,
        access: Access,
    ) -> Result<SoftRegion, DeviceError> {
        let length = part.length();
        let mut keys = self.lock();
        let place = keys.place(self.0.limit, length).ok_or_else(|| self.full())?;
        let address = keys.address(length);
        let memory = Memory::in_file(part);
        Ok(self.enter(&mut keys, place, memory, (address, length), true, access))
    }

    /// Registers memory that somebody else owns, where it is.
    pub(crate) fn register_foreign(
        &self,
        memory: &ForeignMemory,
        access: Access,
    ) -> Result<SoftRegion, DeviceError> {
        let length = memory.len();
        self.check(length)?;
        let mut keys = self.lock();
        let place = keys.place(self.0.limit, length).ok_or_else(|| self.full())?;
        // Peers of a C program name memory by its address there.
        let memory = Memory::foreign(memory);
        let address = memory.address();
        Ok(self.enter(&mut keys, place, memory, (address, length), true, access))
    }

    /// Registers memory that was lent for an operation, until [`SoftRegion::revoke`].
    pub(crate) fn register_lent(
        &self,
        lending: Lending<'_>,
        access: Access,
    ) -> Result<SoftRegion, DeviceError> {
        let (length, may_write) = (lending.len(), lending.may_write());
        if access.remote_write && !may_write {
            let operation = "remote writes of memory that was lent for reading";
            return Err(DeviceError::Unsupported { operation });
        }
        self.check(length)?;
        let mut keys = self.lock();
        let place = keys.place(self.0.limit, length).ok_or_else(|| self.full())?;
        let address = keys.address(length);
        let memory = Memory::lent(lending);
        Ok(self.enter(&mut keys, place, memory, (address, length), may_write, access))
    }

    /// Registers memory of a C program, until [`SoftRegion::revoke`].
    ///
    /// # Errors
    /// [`DeviceError::TooLong`], [`DeviceError::LimitReached`].
    ///
    /// # Safety
    /// Until the region is revoked or the last clone of the handle is dropped, the owner of the memory
    /// must allow that it is read and written at any time: by operations of this device if
    /// `local_write`, by other processes as `access` says. The owner may unmap it.
    #[allow(unsafe_code)]
    pub unsafe fn register_raw(&self, raw: RawMemory) -> Result<SoftRegion, DeviceError> {
        let RawMemory { base, length, address, local_write, access } = raw;
        self.check(length)?;
        let mut keys = self.lock();
        let place = keys.place(self.0.limit, length).ok_or_else(|| self.full())?;
        // SAFETY: the caller promises that the owner allows reads and writes until the region is revoked or
        // dropped. `revoke` ends this `Memory`, and the last handle drops it.
        let memory = unsafe { Memory::borrowed(base, length) };
        Ok(self.enter(&mut keys, place, memory, (address, length), local_write, access))
    }

    fn full(&self) -> DeviceError {
        DeviceError::LimitReached { object: "memory region", limit: self.0.limit }
    }

    fn enter(
        &self,
        keys: &mut Keys,
        place: u32,
        memory: Memory,
        (address, length): (u64, usize),
        local_write: bool,
        access: Access,
    ) -> SoftRegion {
        keys.next = keys.next.wrapping_add(1);
        let mut key = keys.next << INDEX_BITS | place;
        if key == 0 {
            // Key 0 is reserved.
            keys.next = 1;
            key = 1 << INDEX_BITS;
        }
        if let Some(slots) = &self.0.slots {
            let (start, length, in_file) = (address, length as u64, memory.offset_in_file());
            let memory = memory.address();
            slots.enter(key, Entry { start, memory, length, in_file, local_write, access });
        }
        let is_mapped = memory.offset_in_file() != 0;
        let (memory, table) = (BiasedMutex::new(memory), self.clone());
        let region =
            Registered { memory, length, address, key, local_write, is_mapped, access, table };
        let region = Arc::new(region);
        if let Some(entry) = keys.regions.get_mut(place as usize) {
            *entry = Some((key, Arc::downgrade(&region)));
        }
        SoftRegion(region)
    }

    /// Removes a key, and waits for other processes that [use](Slots::is_pinned) the memory.
    fn remove(&self, key: u32) -> Removal {
        let Some(mut keys) = lock_within(&self.0.keys) else {
            return Removal::Locked;
        };
        let place = key & (MAX_REGIONS as u32 - 1);
        let Some(entry) = keys.regions.get_mut(place as usize) else { return Removal::Gone };
        if entry.take_if(|(there, _)| *there == key).is_none() {
            return Removal::Gone;
        }
        if let Some(slots) = &self.0.slots {
            slots.clear(key);
            if slots.is_pinned(key) {
                drop(keys);
                if !unpinned(slots, key, self.0.unpin_timeout) {
                    return Removal::InUse;
                }
                keys = match lock_within(&self.0.keys) {
                    Some(keys) => keys,
                    None => return Removal::Unused,
                };
            }
        }
        keys.free.push_back(place);
        Removal::Unused
    }

    /// The region that `key` names.
    #[must_use]
    pub fn find(&self, key: u32) -> Option<SoftRegion> {
        let place = key as usize & (MAX_REGIONS - 1);
        // The lock is released with this statement: the region may be the last handle, and dropping it
        // takes the lock.
        let region = match self.lock().regions.get(place) {
            Some(Some((there, region))) if *there == key => region.upgrade(),
            _ => None,
        };
        region.map(SoftRegion)
    }

    /// The part of a region that a remote interface names for this use.
    ///
    /// # Errors
    /// [`Status::RemoteBadAddress`] if there is no such region, part or permission.
    pub(crate) fn part(
        &self,
        memory: RemoteMemory,
        length: usize,
        wanted: Use,
    ) -> Result<RegionRange<SoftRegion>, Status> {
        let region = self.find(memory.key).ok_or(Status::RemoteBadAddress)?;
        let access = region.access();
        let allowed = match wanted {
            Use::RemoteRead => access.remote_read,
            Use::RemoteWrite => access.remote_write,
            Use::LocalRead | Use::LocalWrite | Use::Pushed => false,
        };
        let part = region.part(memory, length).filter(|_| allowed);
        part.ok_or(Status::RemoteBadAddress)
    }

    /// Copies all of `into` from memory that a remote interface names, to be sent to it.
    ///
    /// # Errors
    /// As [`part`](Self::part), also if the region was revoked meanwhile or isn't mapped.
    pub(crate) fn read_remotely(
        &self,
        memory: RemoteMemory,
        into: &mut [u8],
    ) -> Result<(), Status> {
        let part = self.part(memory, into.len(), Use::RemoteRead)?;
        all_of(part.region.read(part.offset, into), into.len())
    }

    /// Stores bytes of a remote interface in the memory that it names.
    ///
    /// # Errors
    /// As [`read_remotely`](Self::read_remotely).
    pub(crate) fn write_remotely(&self, memory: RemoteMemory, bytes: &[u8]) -> Result<(), Status> {
        let part = self.part(memory, bytes.len(), Use::RemoteWrite)?;
        all_of(part.region.write(part.offset, bytes), bytes.len())
    }

    /// The key with these lower bits, at least those of the index: programs that write descriptors name a key by
    /// 24 bits. `None` if there is none. Takes no lock. Always `None` on the local link.
    #[must_use]
    pub fn with_lower_bits(&self, lower: u32, bits: u32) -> Option<u32> {
        let key = self.0.slots.as_ref()?.key_at(lower)?;
        let mask = 1_u32.checked_shl(bits).map_or(u32::MAX, |bit| bit - 1);
        (bits >= INDEX_BITS && key & mask == lower).then_some(key)
    }

    /// The address of the `length` bytes from `start` of the region of `key`, if all of them are in it
    /// and `wanted` is allowed. Takes no lock. Always `None` on the local link.
    #[inline]
    #[must_use]
    pub fn locate(&self, key: u32, start: u64, length: u64, wanted: Use) -> Option<u64> {
        self.0.slots.as_ref()?.locate(key, start, length, wanted)
    }
}

impl SoftRegion {
    /// Ends the registration now, even if there are clones of the handle. [Raw](KeyTable::register_raw), lent and foreign
    /// memory is not accessed through the handle after this call, unless it returns false: a thread or another process
    /// that is in the middle of an access doesn't go on, perhaps because its signal handler never returns, or it is
    /// stopped. A later call returns true when that access is over.
    #[must_use]
    pub fn revoke(&self) -> bool {
        let removed = match self.0.end() {
            Removal::Unused => true,
            // Perhaps by a call that waits at this moment.
            Removal::Gone => !self.0.is_in_use(),
            Removal::InUse | Removal::Locked => false,
        };
        let ended = self.0.memory_within().map(|mut memory| memory.end());
        removed && ended.is_some()
    }

    /// Lets other processes write it if this one asks them to.
    pub(crate) fn allow_pushes(&self) {
        if let Some(slots) = self.0.table.slots() {
            slots.allow_pushes(self.0.key);
        }
    }

    /// Whether local operations may write it.
    #[must_use]
    pub fn allows_local_write(&self) -> bool {
        self.0.local_write
    }

    /// The `length` bytes from the remote address `start` on, if all of them are in the region.
    #[must_use]
    pub fn part(&self, start: RemoteMemory, length: usize) -> Option<RegionRange<Self>> {
        let offset = start.address.checked_sub(self.0.address)?;
        let offset = usize::try_from(offset).ok()?;
        let part = RegionRange { region: self.clone(), offset, length };
        part.check().is_ok().then_some(part)
    }

    /// Calls `f` with a part of the memory to be copied from or to. No other thread of this process
    /// accesses the region meanwhile. [`Status::BadLocalKey`] if it was revoked.
    pub(crate) fn with_part<T>(
        &self,
        offset: usize,
        length: usize,
        f: impl FnOnce(Part) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let memory = self.0.memory.lock();
        f(memory.part(offset, length).ok_or(Status::BadLocalKey)?)
    }
}

/// How the removal of a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    /// Nobody uses the memory any more.
    Unused,
    /// The key had been removed before.
    Gone,
    /// An access of another process didn't end in time, perhaps because the process died. The key's index isn't
    /// used again.
    InUse,
    /// A thread doesn't release the lock of the table. Nothing was removed.
    Locked,
}

/// How long a deregistration waits for accesses of other processes.
pub(crate) const UNPIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Waits until no process uses the region of a cleared key.
#[cold]
fn unpinned(slots: &Slots, key: u32, timeout: Duration) -> bool {
    within(timeout, || (!slots.is_pinned(key)).then_some(())).is_some()
}

/// Bytes that [`copy`] copies at a time.
const CHUNK: usize = 8192;

/// Copies a part of a region into a part of the same length, of the same region or another.
pub(crate) fn copy(from: &RegionRange<SoftRegion>, into: &RegionRange<SoftRegion>) {
    let mut chunk = [0; CHUNK];
    let mut done = 0;
    while done < from.length.min(into.length) {
        let chunk = &mut chunk[..CHUNK.min(from.length - done).min(into.length - done)];
        let count = from.region.read(from.offset + done, chunk);
        if count == 0 {
            return;
        }
        into.region.write(into.offset + done, &chunk[..count]);
        done += count;
    }
}

impl Region for SoftRegion {
    fn length(&self) -> usize {
        self.0.length
    }

    fn remote_address(&self) -> u64 {
        self.0.address
    }

    fn remote_key(&self) -> u32 {
        self.0.key
    }

    fn access(&self) -> Access {
        self.0.access
    }

    fn is_mapped(&self) -> bool {
        self.0.is_mapped
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        self.0.memory.lock().read(offset, into)
    }

    fn write(&self, offset: usize, from: &[u8]) -> usize {
        self.0.memory.lock().write(offset, from)
    }

    #[inline(never)]
    fn copy_to(&self, offset: usize, into: CopyTarget<'_>) -> usize {
        self.0.memory.lock().copy_to(offset, into)
    }

    #[inline(never)]
    fn copy_from(&self, offset: usize, from: CopySource<'_>) -> usize {
        self.0.memory.lock().copy_from(offset, from)
    }

    fn update(
        &self,
        offset: usize,
        bytes: &mut [u8],
        change: impl FnMut(&mut [u8]) -> bool,
    ) -> usize {
        self.0.memory.lock().update(offset, bytes, change)
    }

    fn reclaim(self) -> Result<Box<[u8]>, Self> {
        if !self.0.memory.lock().is_owned() {
            return Err(self);
        }
        let registered = Arc::try_unwrap(self.0).map_err(Self)?;
        // First nobody else must access the memory.
        if let Removal::InUse | Removal::Locked = registered.end() {
            return Err(Self(Arc::new(registered)));
        }
        let memory = registered.memory.lock().take();
        Ok(memory)
    }

    fn revoke(&self) -> bool {
        self.0.memory_within().is_some_and(|memory| memory.is_of_others()) && Self::revoke(self)
    }
}

/// Whether all bytes were copied.
fn all_of(copied: usize, wanted: usize) -> Result<(), Status> {
    if copied == wanted { Ok(()) } else { Err(Status::RemoteBadAddress) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{LENGTH, PeerSlots};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn table(limit: usize) -> KeyTable {
        KeyTable::new(limit, 10, Rng::with_seed(1))
    }

    fn memory(length: usize) -> Box<[u8]> {
        vec![0; length].into()
    }

    #[test]
    fn registration_beyond_limits_returns_the_memory() {
        let table = table(1);
        let long = table.register(memory(11), Access::default()).unwrap_err();
        assert_eq!(long.error, DeviceError::TooLong { length: 11, limit: 10 });
        assert_eq!(long.memory.len(), 11);
        let region = table.register(memory(10), Access::default()).unwrap();
        let clone = region.clone();
        drop(region);
        let second = table.register(memory(3), Access::default()).unwrap_err();
        let limit_reached = DeviceError::LimitReached { object: "memory region", limit: 1 };
        assert_eq!((second.error, second.memory.len()), (limit_reached, 3));
        drop(clone);
        table.register(second.memory, Access::default()).unwrap();
    }

    #[test]
    fn reclaim_needs_the_only_handle() {
        let table = table(2);
        let region = table.register(vec![1, 2, 3].into(), Access::default()).unwrap();
        let key = region.remote_key();
        let clone = region.clone();
        let region = region.reclaim().unwrap_err();
        assert!(table.find(key).is_some());
        drop(clone);
        assert_eq!(*region.reclaim().unwrap(), [1, 2, 3]);
        assert!(table.find(key).is_none());
    }

    #[test]
    fn key_finds_its_region_until_it_is_dropped() {
        let table = table(2);
        let access = Access { remote_read: true, remote_write: false };
        let region = table.register(memory(4), access).unwrap();
        let other = table.register(memory(4), access).unwrap();
        let (key, address) = (region.remote_key(), region.remote_address());
        assert_ne!((key, address), (other.remote_key(), other.remote_address()));
        let found = table.find(key).unwrap();
        region.write(0, b"abcd");
        drop(region);
        let mut bytes = [0; 4];
        assert_eq!((found.length(), found.access()), (4, access));
        assert_eq!((found.read(0, &mut bytes), &bytes), (4, b"abcd"));
        drop(found);
        assert!(table.find(key).is_none());
    }

    #[test]
    fn keys_are_unique_and_not_soon_reused() {
        let table = KeyTable::new(usize::MAX, 10, Rng::with_seed(2));
        let regions: Vec<_> = (0..MAX_REGIONS)
            .map(|_| table.register(memory(1), Access::default()).unwrap())
            .collect();
        let keys: std::collections::HashSet<u32> = regions.iter().map(Region::remote_key).collect();
        assert_eq!(keys.len(), MAX_REGIONS);
        assert!(!keys.contains(&0));
        assert!(table.register(memory(1), Access::default()).is_err());
        drop(regions);
        for _ in 0..MAX_REGIONS {
            let next = table.register(memory(1), Access::default()).unwrap();
            assert!(!keys.contains(&next.remote_key()));
        }
    }

    /// A table that another has as well, and how long it waits for it.
    fn shared(limit: usize, unpin_timeout: Duration) -> (KeyTable, PeerSlots) {
        let file = memfd_create("efa-keys", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, LENGTH as u64).unwrap();
        let slots = Slots::in_file(&file, 1, 0).unwrap();
        let mut table = KeyTable::with_slots(limit, 10, Rng::with_seed(3), Some(slots));
        Arc::get_mut(&mut table.0).unwrap().unpin_timeout = unpin_timeout;
        (table, PeerSlots::open(&file, &file, 1).unwrap().unwrap())
    }

    const WRITTEN: Access = Access { remote_read: false, remote_write: true };

    #[test]
    fn deregistration_waits_for_writes_of_other_processes() {
        let (table, peer) = shared(1, Duration::MAX);
        let region = table.register(memory(4), WRITTEN).unwrap();
        let (key, at) = (region.remote_key(), region.remote_address());
        let there = || peer.slot(key).locate(key, at, 4, Use::RemoteWrite).is_some();
        let held = peer.hold(key, || {
            assert!(there());
            let owner = std::thread::spawn(move || region.reclaim());
            while there() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            assert!(!owner.is_finished());
            owner
        });
        assert_eq!(held.unwrap().join().unwrap().unwrap().len(), 4);
        table.register(memory(4), WRITTEN).unwrap();
    }

    #[test]
    fn deregistration_waits_for_writes_of_processes_that_were_asked_to() {
        for asked in [false, true] {
            let (table, peer) = shared(1, Duration::ZERO);
            let region = table.register(memory(4), Access::default()).unwrap();
            if asked {
                region.allow_pushes();
            }
            let reclaimed = peer.hold(region.remote_key(), || region.reclaim());
            assert_eq!(reclaimed.unwrap().is_err(), asked);
        }
    }

    #[test]
    fn deregistration_waits_for_no_reads() {
        let (table, peer) = shared(1, Duration::MAX);
        let access = Access { remote_read: true, remote_write: false };
        let region = table.register(memory(4), access).unwrap();
        let reclaimed = peer.hold(region.remote_key(), || region.reclaim());
        assert_eq!(reclaimed.unwrap().unwrap().len(), 4);
    }

    #[test]
    fn memory_with_a_write_that_never_ends_is_not_freed() {
        let (table, peer) = shared(2, Duration::ZERO);
        let region = table.register(vec![7; 4].into(), WRITTEN).unwrap();
        let key = region.remote_key();
        peer.hold(key, || {
            let region = region.reclaim().unwrap_err();
            assert!(table.find(key).is_none());
            let mut bytes = [0; 4];
            assert_eq!((region.read(0, &mut bytes), bytes), (4, [7; 4]));
            drop(region);
        });
        let other = table.register(memory(4), WRITTEN).unwrap();
        let full = DeviceError::LimitReached { object: "memory region", limit: 2 };
        assert_eq!(table.register(memory(4), WRITTEN).unwrap_err().error, full);
        drop(other);
        table.register(memory(4), WRITTEN).unwrap();
    }

    #[test]
    #[allow(unsafe_code)]
    fn revocation_fails_until_the_write_of_another_process_is_over() {
        let (table, peer) = shared(2, Duration::ZERO);
        let mut bytes = [7; 4];
        let base = NonNull::from(&mut bytes).cast();
        let raw = RawMemory { base, length: 4, address: 0x77, local_write: true, access: WRITTEN };
        // SAFETY: the bytes outlive both registrations, and are accessed by these alone until then.
        let (raw, foreign) =
            unsafe { (table.register_raw(raw).unwrap(), ForeignMemory::new(base, 4, ())) };
        let foreign = table.register_foreign(&foreign, WRITTEN).unwrap();
        for region in [raw, foreign] {
            peer.hold(region.remote_key(), || {
                assert!(!region.revoke() && !region.revoke());
                assert_eq!((region.read(0, &mut [0; 4]), region.write(0, b"x")), (0, 0));
            });
            assert!(region.revoke());
        }
        assert_eq!(bytes, [7; 4]);
    }

    #[test]
    #[allow(unsafe_code)]
    fn revoked_region_is_not_accessed() {
        let (table, _) = shared(2, UNPIN_TIMEOUT);
        let mut bytes = *b"0123";
        let access = Access { remote_read: true, remote_write: false };
        let base = NonNull::from(&mut bytes).cast();
        let raw = RawMemory { base, length: 4, address: 0x77, local_write: false, access };
        // SAFETY: the bytes outlive the registration and are not accessed before `revoke`.
        let region = unsafe { table.register_raw(raw) }.unwrap();
        let (key, at) = (region.remote_key(), base.as_ptr() as u64);
        assert_eq!(table.locate(key, 0x78, 3, Use::RemoteRead), Some(at + 1));
        assert_eq!(table.locate(key, 0x78, 3, Use::LocalWrite), None);
        assert_eq!((region.write(0, b"ab"), region.allows_local_write()), (2, false));
        let found = table.find(key).unwrap();
        assert!(region.revoke());
        assert!(region.revoke());
        assert_eq!(table.locate(key, 0x78, 3, Use::RemoteRead), None);
        assert!(table.find(key).is_none());
        assert_eq!((found.read(0, &mut [0; 4]), found.write(0, b"x")), (0, 0));
        assert_eq!(found.with_part(0, 1, |_| Ok(())), Err(Status::BadLocalKey));
        assert_eq!(&bytes, b"ab23");
        // Its place is given out once.
        let next = [(); 2].map(|()| table.register(memory(1), access).unwrap());
        assert_ne!(next[0].remote_key(), next[1].remote_key());
        assert!(table.register(memory(1), access).is_err());
    }
}
