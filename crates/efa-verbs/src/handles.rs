//! Address handles: one per remote interface and domain, counted by the queue pairs that use it.
//!
//! ```text
//!   HandleTable of a queue pair ─┐
//!   HandleTable of a queue pair ─┴─ counts ─► HandleCache ── ibv_create_ah, once per GID
//! ```
//!
//! The cache has a lock, taken when a peer is added or removed. Sends look into the table of their
//! own queue pair, which needs none.

use std::collections::HashMap;
use std::mem::zeroed;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use efa_device::{AddressHandle, DeviceError, Gid};

use crate::abi::{efadv_ah_attr, ibv_ah, ibv_ah_attr, ibv_gid};
use crate::domain::ProtectionDomain;
use crate::failure::{check, destroy_failed, object};

/// The handle number in a receive completion whose sender has no address handle here.
pub(crate) const UNKNOWN: u32 = 0xffff;

/// The address handles of a domain, by GID.
#[derive(Debug)]
pub(crate) struct HandleCache {
    by_gid: Mutex<HashMap<Gid, Counted>>,
    limit: usize,
    domain: Arc<ProtectionDomain>,
}

#[derive(Debug)]
struct Counted {
    handle: Handle,
    count: usize,
}

/// An address handle, valid until its count in the cache is given back.
#[derive(Clone, Copy, Debug)]
struct Handle {
    raw: NonNull<ibv_ah>,
    number: AddressHandle,
    gid: Gid,
}

// SAFETY: libibverbs and libefa have no thread-local state, so any thread may use the handle.
unsafe impl Send for Handle {}

impl HandleCache {
    /// An empty cache of at most `limit` handles.
    pub(crate) fn new(domain: Arc<ProtectionDomain>, limit: usize) -> Self {
        Self { by_gid: Mutex::default(), limit, domain }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Gid, Counted>> {
        self.by_gid.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle for an interface, counted once more.
    fn acquire(&self, gid: Gid) -> Result<Handle, DeviceError> {
        if gid == Gid::ZERO {
            return Err(DeviceError::BadAddress { gid });
        }
        let mut by_gid = self.lock();
        if let Some(known) = by_gid.get_mut(&gid) {
            known.count += 1;
            return Ok(known.handle);
        }
        if by_gid.len() >= self.limit {
            return Err(DeviceError::LimitReached { object: "address handle", limit: self.limit });
        }
        let handle = self.create(gid)?;
        by_gid.insert(gid, Counted { handle, count: 1 });
        Ok(handle)
    }

    /// The interface that a handle stands for.
    fn gid_of(&self, number: AddressHandle) -> Option<Gid> {
        self.lock().values().find(|of| of.handle.number == number).map(|of| of.handle.gid)
    }

    /// Gives a count back; the last one destroys the handle.
    fn release(&self, gid: Gid) {
        let mut by_gid = self.lock();
        let Some(known) = by_gid.get_mut(&gid) else { return };
        known.count -= 1;
        if known.count == 0 {
            self.destroy(known.handle.raw);
            by_gid.remove(&gid);
        }
    }

    fn create(&self, gid: Gid) -> Result<Handle, DeviceError> {
        let (name, libraries) = (self.domain.name(), self.domain.libraries());
        // SAFETY: a structure of numbers, for which zeros are valid.
        let mut attributes: ibv_ah_attr = unsafe { zeroed() };
        attributes.grh.dgid = ibv_gid { raw: gid.0 };
        attributes.is_global = 1;
        attributes.port_num = 1;
        // SAFETY: the domain is allocated as long as it is held, and `attributes` is complete.
        let raw = unsafe { (libraries.ibverbs.ibv_create_ah)(self.domain.raw(), &mut attributes) };
        let raw = object(raw, "ibv_create_ah", name)?;
        let mut efa = efadv_ah_attr::default();
        let length = size_of::<efadv_ah_attr>() as u32;
        // SAFETY: `raw` was made above, and `efa` has room for the `length` bytes that may be written.
        let code = unsafe { (libraries.efa.efadv_query_ah)(raw.as_ptr(), &mut efa, length) };
        if let Err(error) = check(code, "efadv_query_ah", name) {
            self.destroy(raw);
            return Err(error);
        }
        Ok(Handle { raw, number: AddressHandle(efa.ahn), gid })
    }

    fn destroy(&self, raw: NonNull<ibv_ah>) {
        if self.domain.context().is_inherited() {
            return;
        }
        // SAFETY: `raw` is of `ibv_create_ah`. Callers drop their last copy of it: it has no count, or
        // was never put into the cache.
        let code = unsafe { (self.domain.libraries().ibverbs.ibv_destroy_ah)(raw.as_ptr()) };
        destroy_failed(code, "ibv_destroy_ah", self.domain.name());
    }
}

impl Drop for HandleCache {
    fn drop(&mut self) {
        // Tables hold the cache, so no handle has a count any more.
        for known in std::mem::take(&mut *self.lock()).into_values() {
            self.destroy(known.handle.raw);
        }
    }
}

/// The handles that a queue pair uses, by number, each with the queue pair's share of its count.
#[derive(Debug)]
pub(crate) struct HandleTable {
    by_number: Vec<Option<(Handle, usize)>>,
    cache: Arc<HandleCache>,
}

impl HandleTable {
    pub(crate) fn new(cache: Arc<HandleCache>) -> Self {
        Self { by_number: Vec::new(), cache }
    }

    /// The interface that a handle stands for, also one that only other queue pairs of the domain use.
    pub(crate) fn gid_of(&self, number: AddressHandle) -> Option<Gid> {
        let own = self.by_number.get(usize::from(number.0)).and_then(Option::as_ref);
        own.map(|(handle, _)| handle.gid).or_else(|| self.cache.gid_of(number))
    }

    /// The handle of this number, for a send.
    #[inline]
    pub(crate) fn get(&self, number: AddressHandle) -> Option<NonNull<ibv_ah>> {
        match self.by_number.get(usize::from(number.0)) {
            Some(Some((handle, _))) => Some(handle.raw),
            _ => None,
        }
    }

    /// The number of the handle for an interface, counted once more.
    pub(crate) fn add(&mut self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        let handle = self.cache.acquire(gid)?;
        let index = usize::from(handle.number.0);
        if index >= self.by_number.len() {
            self.by_number.resize_with(index + 1, || None);
        }
        let (_, count) = self.by_number[index].get_or_insert((handle, 0));
        *count += 1;
        Ok(handle.number)
    }

    /// Gives one count back.
    pub(crate) fn remove(&mut self, number: AddressHandle) {
        let Some(entry) = self.by_number.get_mut(usize::from(number.0)) else { return };
        let Some((handle, count)) = entry else { return };
        let gid = handle.gid;
        *count -= 1;
        if *count == 0 {
            *entry = None;
        }
        self.cache.release(gid);
    }
}

impl Drop for HandleTable {
    fn drop(&mut self) {
        for (handle, count) in self.by_number.drain(..).flatten() {
            (0..count).for_each(|_| self.cache.release(handle.gid));
        }
    }
}
