//! Memory regions: memory of an application that the interface reads and writes, and its keys.
//!
//! Remote interfaces may read and write a region at any time. So its bytes are kept as a raw pointer
//! and reached by copying, and no reference to them exists while it is registered.

use std::collections::HashMap;
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use efa_device::{Access, DeviceError, Rdma, Region, RegisterError};
use rdma_sys::{ibv_access_flags, ibv_dereg_mr, ibv_mr, ibv_reg_mr};

use crate::domain::ProtectionDomain;
use crate::failure::{object, stays};

/// A registration, ended at the end of this.
#[derive(Debug)]
pub(crate) struct Registration {
    raw: NonNull<ibv_mr>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: libibverbs lets any thread use a memory region, several at a time too.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers `length` bytes at `base` for the interface to write, and for remote interfaces as
    /// `access` says.
    ///
    /// # Safety
    /// The memory must stay until this is dropped or [ended](Self::end), and whoever reads it must
    /// put up with what the interface writes.
    pub(crate) unsafe fn new(
        domain: &Arc<ProtectionDomain>,
        base: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Self, DeviceError> {
        let mut flags = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        if access.remote_read {
            flags |= ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        }
        if access.remote_write {
            flags |= ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        }
        // SAFETY: the domain lives as it is held; the rest is the caller's promise.
        let raw = unsafe { ibv_reg_mr(domain.raw(), base.as_ptr().cast(), length, flags as c_int) };
        let raw = object(raw, "ibv_reg_mr", domain.name())?;
        Ok(Self { raw, domain: Arc::clone(domain) })
    }

    pub(crate) fn is_of(&self, domain: &Arc<ProtectionDomain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }

    #[inline]
    pub(crate) fn local_key(&self) -> u32 {
        // SAFETY: the registration lives; nobody writes these members.
        unsafe { self.raw.as_ref().lkey }
    }

    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.raw.as_ref().rkey }
    }

    fn deregister(&self) -> bool {
        // SAFETY: it came from `ibv_reg_mr`, and callers do this once.
        !stays(unsafe { ibv_dereg_mr(self.raw.as_ptr()) }, "ibv_dereg_mr", self.domain.name())
    }

    /// Ends it; `false` if the interface keeps the memory.
    pub(crate) fn end(self) -> bool {
        let ended = self.deregister();
        let mut this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the domain is dropped here alone, as the drop of the whole doesn't happen.
        unsafe { std::ptr::drop_in_place(&mut this.domain) };
        ended
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.deregister();
    }
}

/// Registered memory of an EFA interface.
///
/// The last clone that is dropped takes the registration and the memory with it.
#[derive(Clone, Debug)]
pub struct VerbsRegion(Arc<Registered>);

#[derive(Debug)]
struct Registered {
    memory: Memory,
    length: usize,
    local_key: u32,
    remote_key: u32,
    access: Access,
    /// One copy at a time, of those that this process makes.
    copying: Mutex<()>,
    table: Arc<RegionTable>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.table.forget(self.remote_key);
    }
}

/// Memory and its registration. An empty region has a byte that nobody reaches, as the interface
/// registers no empty memory.
#[derive(Debug)]
struct Memory {
    base: NonNull<u8>,
    length: usize,
    registration: Option<Registration>,
}

// SAFETY: memory belongs to the process and not to a thread, and is copied under a lock.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Ends the registration and gives the memory back; `None` if the interface keeps it.
    fn take(&mut self) -> Option<Box<[u8]>> {
        let registration = self.registration.take()?;
        if !registration.end() {
            return None;
        }
        let whole = std::ptr::slice_from_raw_parts_mut(self.base.as_ptr(), self.length);
        // SAFETY: pointer and length are those of the box that was registered. The interface has it
        // no more, and this was the one registration that there was.
        Some(unsafe { Box::from_raw(whole) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// The regions of an interface by key.
#[derive(Debug)]
pub(crate) struct RegionTable {
    by_key: Mutex<HashMap<u32, Weak<Registered>>>,
    limit: usize,
    max_size: u64,
    rdma: Rdma,
    domain: Arc<ProtectionDomain>,
}

impl RegionTable {
    /// An empty one, of at most `limit` regions of at most `max_size` bytes.
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

    /// Forgets the region of a key, unless the interface has given the key to another one meanwhile,
    /// as it may when the memory was reclaimed.
    fn forget(&self, key: u32) {
        let mut by_key = self.lock();
        if by_key.get(&key).is_some_and(|region| region.strong_count() == 0) {
            by_key.remove(&key);
        }
    }

    pub(crate) fn find(&self, key: u32) -> Option<VerbsRegion> {
        // The guard ends with this statement: the region could be the last handle, and dropping it
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
        let checked = || {
            if length as u64 > self.max_size {
                return Err(DeviceError::TooLong { length: length as u64, limit: self.max_size });
            }
            if self.lock().len() >= self.limit {
                let limit = self.limit;
                return Err(DeviceError::LimitReached { object: "memory region", limit });
            }
            Ok(())
        };
        if let Err(error) = checked() {
            return Err(RegisterError { error, memory });
        }
        // The interface refuses access that it never makes; the engine checks what it does itself.
        let offered = Access {
            remote_read: access.remote_read && self.rdma.read,
            remote_write: access.remote_write && self.rdma.write,
        };
        let memory = if length == 0 { Box::from([0]) } else { memory };
        let whole = memory.len();
        let base: NonNull<u8> = NonNull::from(Box::leak(memory)).cast();
        // Others name it by its address.
        base.as_ptr().expose_provenance();
        // SAFETY: the memory is leaked, and taken back after the registration has ended.
        let registration = unsafe { Registration::new(&self.domain, base, whole, offered) };
        let registration = match registration {
            Ok(registration) => registration,
            Err(error) => {
                let whole = std::ptr::slice_from_raw_parts_mut(base.as_ptr(), whole);
                // SAFETY: it came from the box above, and was not registered.
                let registered = unsafe { Box::from_raw(whole) };
                let memory = if length == 0 { Box::default() } else { registered };
                return Err(RegisterError { error, memory });
            }
        };
        let (local_key, remote_key) = (registration.local_key(), registration.remote_key());
        let registration = Some(registration);
        let region = Arc::new(Registered {
            memory: Memory { base, length: whole, registration },
            length,
            local_key,
            remote_key,
            access,
            copying: Mutex::default(),
            table: Arc::clone(self),
        });
        self.lock().insert(remote_key, Arc::downgrade(&region));
        Ok(VerbsRegion(region))
    }
}

impl Registered {
    fn copying(&self) -> MutexGuard<'_, ()> {
        self.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many of `wanted` bytes there are from `offset` on, and where; under the lock.
    fn part(&self, offset: usize, wanted: usize) -> (*mut u8, usize) {
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
        let (from, count) = self.0.part(offset, into.len());
        // SAFETY: so many bytes are there, and `into` is a reference of the caller's to other memory.
        // In this process the lock keeps others from writing; what the interface writes is bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), count) };
        count
    }

    fn write(&self, offset: usize, from: &[u8]) -> usize {
        let _alone = self.0.copying();
        let (into, count) = self.0.part(offset, from.len());
        // SAFETY: as in `read`, with the roles exchanged.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, count) };
        count
    }

    fn update(&self, offset: usize, bytes: &mut [u8], change: impl FnOnce(&mut [u8])) -> usize {
        let _alone = self.0.copying();
        let (place, count) = self.0.part(offset, bytes.len());
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(place, bytes.as_mut_ptr(), count) };
        change(&mut bytes[..count]);
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, count) };
        count
    }

    fn reclaim(self) -> Result<Box<[u8]>, Self> {
        let mut registered = Arc::try_unwrap(self.0).map_err(Self)?;
        let length = registered.length;
        // Before the memory is somebody's again, nobody finds it any more.
        registered.table.forget(registered.remote_key);
        match registered.memory.take() {
            Some(_) if length == 0 => Ok(Box::default()),
            Some(memory) => Ok(memory),
            None => {
                // The interface keeps it: it stays leaked, and the application gets a copy.
                let mut copy = vec![0; length];
                let from = registered.memory.base.as_ptr();
                // SAFETY: the memory is there for good, and as long as the copy.
                unsafe { std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), length) };
                Ok(copy.into())
            }
        }
    }
}
