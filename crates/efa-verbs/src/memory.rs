//! Memory regions: memory of an application that the interface reads and writes, and its keys.
//!
//! Remote interfaces may read and write a region at any time. So its bytes are kept as a raw pointer
//! and accessed by copying, and no reference to them exists while it is registered.

use std::collections::HashMap;
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use efa_device::{Access, DeviceError, ForeignMemory, Lending, Rdma, Region, RegisterError};

use crate::abi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, ibv_mr};
use crate::domain::ProtectionDomain;
use crate::failure::{destroy_failed, object};

/// A memory region, deregistered on drop.
#[derive(Debug)]
pub(crate) struct Registration {
    raw: NonNull<ibv_mr>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: libibverbs and libefa have no thread-local state, so any thread may deregister it.
unsafe impl Send for Registration {}
// SAFETY: by a shared reference its keys are read, which nobody writes.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers `length` bytes at `base` for the interface to write if `local_write`, and for remote interfaces as
    /// `access` says.
    ///
    /// # Safety
    /// * `base` to `base + length` must stay allocated until this is dropped or
    ///   [deregistered](Self::deregister).
    /// * Interfaces write to it without synchronization: no reference to it may exist while one may be
    ///   writing.
    pub(crate) unsafe fn new(
        domain: &Arc<ProtectionDomain>,
        base: NonNull<u8>,
        length: usize,
        local_write: bool,
        access: Access,
    ) -> Result<Self, DeviceError> {
        let mut flags = if local_write { IBV_ACCESS_LOCAL_WRITE } else { 0 };
        if access.remote_read {
            flags |= IBV_ACCESS_REMOTE_READ;
        }
        if access.remote_write {
            flags |= IBV_ACCESS_REMOTE_WRITE;
        }
        let (at, flags) = (base.as_ptr().cast(), flags as c_int);
        // SAFETY: the domain is allocated as long as it is held. That the memory stays allocated and is
        // not referenced during writes is promised by the caller of this function.
        let raw =
            unsafe { (domain.libraries().ibverbs.ibv_reg_mr)(domain.raw(), at, length, flags) };
        let raw = object(raw, "ibv_reg_mr", domain.name())?;
        Ok(Self { raw, domain: Arc::clone(domain) })
    }

    pub(crate) fn belongs_to(&self, domain: &Arc<ProtectionDomain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }

    #[inline]
    pub(crate) fn local_key(&self) -> u32 {
        // SAFETY: `raw` is registered until `self` is dropped, and the library writes `lkey` only at
        // the registration.
        unsafe { self.raw.as_ref().lkey }
    }

    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: `raw` is registered until `self` is dropped, and the library writes `rkey` only at
        // the registration.
        unsafe { self.raw.as_ref().rkey }
    }

    /// Returns whether it is deregistered here. A forked child has copies of the memory, which the interface doesn't
    /// access.
    ///
    /// # Safety
    /// It must not be called, nor the registration used, after it has returned `true`.
    unsafe fn deregister_raw(&self) -> bool {
        if self.domain.context().is_inherited() {
            return true;
        }
        // SAFETY: `raw` is of `ibv_reg_mr`, and registered by the caller's promise.
        let code = unsafe { (self.domain.libraries().ibverbs.ibv_dereg_mr)(self.raw.as_ptr()) };
        !destroy_failed(code, "ibv_dereg_mr", self.domain.name())
    }

    /// Deregisters it. Fails with itself if the interface may still access the memory; that can be tried again.
    pub(crate) fn deregister(self) -> Result<(), Self> {
        let mut this = std::mem::ManuallyDrop::new(self);
        // SAFETY: if it is deregistered, `this` is not used afterwards, and its drop, which would deregister again,
        // doesn't run.
        if !unsafe { this.deregister_raw() } {
            return Err(std::mem::ManuallyDrop::into_inner(this));
        }
        // SAFETY: the drop of `this` doesn't run, so the domain is dropped here alone.
        unsafe { std::ptr::drop_in_place(&mut this.domain) };
        Ok(())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: a drop happens once, and not after `deregister` has succeeded.
        unsafe { self.deregister_raw() };
    }
}

/// Registered memory of an EFA interface.
///
/// The drop of the last clone deregisters and frees the memory.
#[derive(Clone, Debug)]
pub struct VerbsRegion(Arc<Registered>);

#[derive(Debug)]
struct Registered {
    memory: Memory,
    length: usize,
    local_key: u32,
    remote_key: u32,
    access: Access,
    /// Held while this process copies from or to the memory, and while lent memory is revoked.
    copying: Mutex<()>,
    table: Arc<RegionTable>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.table.remove(self.remote_key);
    }
}

/// Memory and its registration. An empty region has one byte that is out of everybody's bounds, as the
/// interface can't register empty memory.
#[derive(Debug)]
struct Memory {
    base: NonNull<u8>,
    length: usize,
    /// `None` once it is deregistered. To be used under `Registered::copying`.
    registration: Mutex<Option<Registration>>,
    /// Whether it was given back to its owner, or that was tried and the interface didn't let go of it.
    is_revoked: AtomicBool,
    owner: Owner,
}

#[derive(Debug)]
enum Owner {
    /// It is a leaked box, which this frees.
    This,
    /// Somebody else, who gets it back by the drop of this handle.
    Handle(ForeignMemory),
    /// A C program, which lent it; whether it may be written.
    Lender { may_write: bool },
}

// SAFETY: the memory is the heap allocation of a box, which any thread may free, foreign memory, whose handle is
// `Send`, or lent memory, which is valid for the process.
unsafe impl Send for Memory {}
// SAFETY: by a shared reference the memory is accessed only under `Registered::copying`, or by a handle that is
// `Sync`.
unsafe impl Sync for Memory {}

impl Memory {
    /// Deregisters the memory and returns it; `None` if it was deregistered before, or if that fails, and then the
    /// memory is leaked, as the interface may still access it. `None` for memory of others; the handle of foreign memory
    /// is dropped or leaked.
    fn take(&mut self) -> Option<Box<[u8]>> {
        let registration = self.registration().take()?;
        let owner = std::mem::replace(&mut self.owner, Owner::Lender { may_write: false });
        if let Err(stuck) = registration.deregister() {
            std::mem::forget((stuck, owner));
            return None;
        }
        let Owner::This = owner else { return None };
        let whole = std::ptr::slice_from_raw_parts_mut(self.base.as_ptr(), self.length);
        // SAFETY: pointer and length are those of the box that `RegionTable::register` leaked. The
        // interface doesn't access it any more, and `registration` was taken, so this happens once.
        Some(unsafe { Box::from_raw(whole) })
    }
}

impl Memory {
    fn registration(&self) -> MutexGuard<'_, Option<Registration>> {
        self.registration.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// The regions of a device, by remote key.
#[derive(Debug)]
pub(crate) struct RegionTable {
    by_key: Mutex<HashMap<u32, Weak<Registered>>>,
    limit: usize,
    max_size: u64,
    rdma: Rdma,
    domain: Arc<ProtectionDomain>,
}

impl RegionTable {
    /// An empty table, for at most `limit` regions of at most `max_size` bytes each.
    pub(crate) fn new(
        domain: Arc<ProtectionDomain>,
        limit: usize,
        max_size: u64,
        rdma: Rdma,
    ) -> Self {
        Self { by_key: Mutex::default(), limit, max_size, rdma, domain }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Weak<Registered>>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the region of a key, unless the interface has given the key to another region
    /// meanwhile, as it may once the memory is reclaimed.
    fn remove(&self, key: u32) {
        let mut by_key = self.lock();
        if by_key.get(&key).is_some_and(|region| region.strong_count() == 0) {
            by_key.remove(&key);
        }
    }

    pub(crate) fn find(&self, key: u32) -> Option<VerbsRegion> {
        // The guard is dropped with this statement: `region` could become the last handle, and its drop
        // locks the table.
        let region = self.lock().get(&key).and_then(Weak::upgrade);
        region.map(VerbsRegion)
    }

    pub(crate) fn register(
        self: &Arc<Self>,
        memory: Box<[u8]>,
        access: Access,
    ) -> Result<VerbsRegion, RegisterError> {
        let length = memory.len();
        if let Err(error) = self.check(length) {
            return Err(RegisterError { error, memory });
        }
        let offered = self.offered(access);
        let memory = if length == 0 { Box::from([0]) } else { memory };
        let whole = memory.len();
        let base: NonNull<u8> = NonNull::from(Box::leak(memory)).cast();
        // Remote peers name it by its address.
        base.as_ptr().expose_provenance();
        // SAFETY: the memory is leaked, and `Memory::take` takes it back only after deregistering it.
        // No reference to it exists until then: `Registered` copies by raw pointers.
        let registration = unsafe { Registration::new(&self.domain, base, whole, true, offered) };
        let registration = match registration {
            Ok(registration) => registration,
            Err(error) => {
                let whole = std::ptr::slice_from_raw_parts_mut(base.as_ptr(), whole);
                // SAFETY: pointer and length are those of the box leaked above; it is not registered.
                let leaked = unsafe { Box::from_raw(whole) };
                let memory = if length == 0 { Box::default() } else { leaked };
                return Err(RegisterError { error, memory });
            }
        };
        Ok(self.enter((base, whole, length), registration, Owner::This, access))
    }

    /// Registers memory that somebody else owns, where it is.
    pub(crate) fn register_foreign(
        self: &Arc<Self>,
        memory: &ForeignMemory,
        access: Access,
    ) -> Result<VerbsRegion, DeviceError> {
        let length = memory.len();
        if length == 0 {
            return self.register(Box::default(), access).map_err(|refused| refused.error);
        }
        self.check(length)?;
        let base = memory.as_ptr();
        base.as_ptr().expose_provenance();
        // SAFETY: the memory is mapped as long as a handle exists, and `Memory` drops its handle only after
        // deregistering. No reference to foreign memory exists.
        let registration =
            unsafe { Registration::new(&self.domain, base, length, true, self.offered(access)) }?;
        let owner = Owner::Handle(memory.clone());
        Ok(self.enter((base, length, length), registration, owner, access))
    }

    /// Registers memory that was lent for an operation, where it is.
    pub(crate) fn register_lent(
        self: &Arc<Self>,
        lending: Lending<'_>,
        access: Access,
    ) -> Result<VerbsRegion, DeviceError> {
        let (length, may_write) = (lending.len(), lending.may_write());
        if access.remote_write && !may_write {
            let operation = "remote writes of memory that was lent for reading";
            return Err(DeviceError::Unsupported { operation });
        }
        if length == 0 {
            return self.register(Box::default(), access).map_err(|refused| refused.error);
        }
        self.check(length)?;
        let (base, offered) = (lending.as_ptr(), self.offered(access));
        base.as_ptr().expose_provenance();
        // SAFETY: lent memory stays mapped until the region is dropped or revoked, and both deregister it. No
        // reference to memory that was lent for writing exists while it is registered.
        let registration =
            unsafe { Registration::new(&self.domain, base, length, may_write, offered) }?;
        Ok(self.enter((base, length, length), registration, Owner::Lender { may_write }, access))
    }

    fn check(&self, length: usize) -> Result<(), DeviceError> {
        if length as u64 > self.max_size {
            return Err(DeviceError::TooLong { length: length as u64, limit: self.max_size });
        }
        if self.lock().len() >= self.limit {
            let limit = self.limit;
            return Err(DeviceError::LimitReached { object: "memory region", limit });
        }
        Ok(())
    }

    /// The remote access that the interface is asked for: it refuses what it has no RDMA for. Accesses that the
    /// engine emulates are checked by the engine.
    fn offered(&self, access: Access) -> Access {
        Access {
            remote_read: access.remote_read && self.rdma.read,
            remote_write: access.remote_write && self.rdma.write,
        }
    }

    /// Adds a region of `length` bytes, of `whole` registered ones.
    fn enter(
        self: &Arc<Self>,
        (base, whole, length): (NonNull<u8>, usize, usize),
        registration: Registration,
        owner: Owner,
        access: Access,
    ) -> VerbsRegion {
        let (local_key, remote_key) = (registration.local_key(), registration.remote_key());
        let (registration, is_revoked) = (Mutex::new(Some(registration)), AtomicBool::new(false));
        let region = Arc::new(Registered {
            memory: Memory { base, length: whole, registration, is_revoked, owner },
            length,
            local_key,
            remote_key,
            access,
            copying: Mutex::default(),
            table: Arc::clone(self),
        });
        self.lock().insert(remote_key, Arc::downgrade(&region));
        VerbsRegion(region)
    }
}

impl Registered {
    fn copying(&self) -> MutexGuard<'_, ()> {
        self.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether memory of others was given back, or was to be. To be used under the lock.
    fn is_revoked(&self) -> bool {
        self.memory.is_revoked.load(Ordering::Relaxed)
    }

    fn is_read_only(&self) -> bool {
        matches!(self.memory.owner, Owner::Lender { may_write: false })
    }

    /// Address of the byte at `offset`, and how many of the `wanted` bytes there the region has. To be
    /// used under the lock.
    fn range(&self, offset: usize, wanted: usize) -> (*mut u8, usize) {
        let count = wanted.min(self.length.saturating_sub(offset));
        let offset = offset.min(self.length);
        (self.memory.base.as_ptr().wrapping_add(offset), count)
    }
}

impl VerbsRegion {
    #[inline]
    pub(crate) fn local_key(&self) -> u32 {
        self.0.local_key
    }

    /// Address of the byte at `offset`, which must be in the region.
    #[inline]
    pub(crate) fn address(&self, offset: usize) -> u64 {
        self.0.memory.base.as_ptr().addr().wrapping_add(offset) as u64
    }
}

impl Region for VerbsRegion {
    fn length(&self) -> usize {
        self.0.length
    }

    fn remote_address(&self) -> u64 {
        self.address(0)
    }

    fn remote_key(&self) -> u32 {
        self.0.remote_key
    }

    fn access(&self) -> Access {
        self.0.access
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let _alone = self.0.copying();
        if self.0.is_revoked() {
            return 0;
        }
        if let Owner::Handle(foreign) = &self.0.memory.owner {
            return foreign.read(offset, into);
        }
        let (from, count) = self.0.range(offset, into.len());
        // SAFETY: `count` bytes at `from` are in the region, and `into` has as many. They don't overlap:
        // no reference to registered memory exists. The lock excludes other copies of this process;
        // remote interfaces may change bytes meanwhile, and any byte is a valid `u8`.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), count) };
        count
    }

    fn write(&self, offset: usize, from: &[u8]) -> usize {
        let _alone = self.0.copying();
        if self.0.is_revoked() || self.0.is_read_only() {
            return 0;
        }
        if let Owner::Handle(foreign) = &self.0.memory.owner {
            return foreign.write(offset, from);
        }
        let (into, count) = self.0.range(offset, from.len());
        // SAFETY: `count` bytes at `into` are in the region, and `from` has as many. They don't overlap:
        // no reference to registered memory exists. The lock excludes other copies of this process.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, count) };
        count
    }

    fn update(
        &self,
        offset: usize,
        bytes: &mut [u8],
        mut change: impl FnMut(&mut [u8]) -> bool,
    ) -> usize {
        let _alone = self.0.copying();
        if self.0.is_revoked() || self.0.is_read_only() {
            return 0;
        }
        if let Owner::Handle(foreign) = &self.0.memory.owner {
            return foreign.update(offset, bytes, change);
        }
        let (place, count) = self.0.range(offset, bytes.len());
        if count < bytes.len() {
            return 0;
        }
        // SAFETY: `count` bytes at `place` are in the region, `bytes` has as many, and they don't
        // overlap, as no reference to registered memory exists. The lock excludes other copies.
        unsafe { std::ptr::copy_nonoverlapping(place, bytes.as_mut_ptr(), count) };
        if !change(bytes) {
            return count;
        }
        // SAFETY: the same `count` bytes, the other way; the lock is still held.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, count) };
        count
    }

    fn reclaim(self) -> Result<Box<[u8]>, Self> {
        if !matches!(self.0.memory.owner, Owner::This) {
            return Err(self);
        }
        let mut registered = Arc::try_unwrap(self.0).map_err(Self)?;
        let length = registered.length;
        // Removed first, so that nobody finds the region while its memory is handed out.
        registered.table.remove(registered.remote_key);
        match registered.memory.take() {
            Some(_) if length == 0 => Ok(Box::default()),
            Some(memory) => Ok(memory),
            None => {
                // Not deregistered: the memory stays leaked, and the application gets a copy.
                let mut copy = vec![0; length];
                let from = registered.memory.base.as_ptr();
                // SAFETY: the leaked memory is never freed and at least `length` bytes long, and `copy`
                // is other memory of `length` bytes.
                unsafe { std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), length) };
                Ok(copy.into())
            }
        }
    }

    fn revoke(&self) -> bool {
        let _alone = self.0.copying();
        if let Owner::This = self.0.memory.owner {
            return false;
        }
        self.0.memory.is_revoked.store(true, Ordering::Relaxed);
        let mut place = self.0.memory.registration();
        // By now the interface may have given the key of a region that was revoked before to another.
        let Some(registration) = place.take() else { return true };
        // Peers don't find it any more; operations of the interface that use it fail.
        self.0.table.lock().remove(&self.0.remote_key);
        match registration.deregister() {
            Ok(()) => true,
            Err(again) => {
                *place = Some(again);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use efa_device::Device as _;

    use super::*;
    use crate::VerbsDevice;
    use crate::common::on_soft_device;

    #[test]
    fn second_revoke_of_a_region_leaves_another_with_its_key_in_the_table() {
        let name =
            "memory::tests::second_revoke_of_a_region_leaves_another_with_its_key_in_the_table";
        on_soft_device(name, &[], || {
            let device = VerbsDevice::open(None).unwrap();
            let (base, owner) = (NonNull::from(Box::leak(Box::new([0; 8]))).cast(), Arc::new(()));
            // SAFETY: the bytes are never freed, and nobody else knows them.
            let memory = unsafe { ForeignMemory::new(base, 8, owner) };
            let access = Access::default();
            let revoked = device.register_foreign(&memory, access).unwrap();
            assert!(revoked.revoke());
            let other = device.register(vec![0; 3].into(), access).unwrap();
            // As an interface may that uses the key again.
            let (key, table) = (revoked.remote_key(), &revoked.0.table);
            table.lock().insert(key, Arc::downgrade(&other.0));
            assert!(revoked.revoke());
            assert_eq!(table.find(key).map(|found| found.length()), Some(3));
        });
    }
}
