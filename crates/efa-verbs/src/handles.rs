//! Address handles: one an interface and domain, however many ask for it.
//!
//! ```text
//!   queue pair ── by number ──► Handle ─┐
//!   queue pair ── by number ──► Handle ─┴─ counts ─► HandleCache ── ibv_create_ah, once a GID
//! ```
//!
//! The cache is under a lock, and asked when a peer comes or goes. Sending looks into the table of
//! its own queue pair, which needs none.

use std::collections::HashMap;
use std::mem::zeroed;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use efa_device::{AddressHandle, DeviceError, Gid};
use rdma_sys::{ibv_ah, ibv_ah_attr, ibv_create_ah, ibv_destroy_ah, ibv_gid};

use crate::domain::ProtectionDomain;
use crate::efadv::{efadv_ah_attr, efadv_query_ah};
use crate::failure::{check, object, stays};

/// What a receive completion says when there is no handle for the sender.
pub(crate) const UNKNOWN: u32 = 0xffff;

/// The address handles of a domain, by GID.
#[derive(Debug)]
pub(crate) struct HandleCache {
    by_gid: Mutex<HashMap<Gid, Cached>>,
    limit: usize,
    domain: Arc<ProtectionDomain>,
}

#[derive(Debug)]
struct Cached {
    handle: Handle,
    count: usize,
}

/// An address handle as sends need it. It is valid until its count in the cache is given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle {
    pub(crate) raw: NonNull<ibv_ah>,
    pub(crate) number: AddressHandle,
    gid: Gid,
}

// SAFETY: libibverbs lets any thread use an address handle.
unsafe impl Send for Handle {}

impl HandleCache {
    /// An empty one, of at most `limit` handles.
    pub(crate) fn new(domain: Arc<ProtectionDomain>, limit: usize) -> Self {
        Self { by_gid: Mutex::default(), limit, domain }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Gid, Cached>> {
        self.by_gid.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle for an interface, counted once more.
    fn take(&self, gid: Gid) -> Result<Handle, DeviceError> {
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
        by_gid.insert(gid, Cached { handle, count: 1 });
        Ok(handle)
    }

    /// Gives a count back; the handle ends with its last.
    fn give_back(&self, gid: Gid) {
        let mut by_gid = self.lock();
        let Some(known) = by_gid.get_mut(&gid) else { return };
        known.count -= 1;
        if known.count == 0 {
            self.destroy(known.handle.raw);
            by_gid.remove(&gid);
        }
    }

    fn create(&self, gid: Gid) -> Result<Handle, DeviceError> {
        let name = self.domain.name();
        // SAFETY: a structure of C for which all zero is valid.
        let mut attributes: ibv_ah_attr = unsafe { zeroed() };
        attributes.grh.dgid = ibv_gid { raw: gid.0 };
        attributes.is_global = 1;
        attributes.port_num = 1;
        // SAFETY: the domain lives, and the attributes are complete.
        let raw = unsafe { ibv_create_ah(self.domain.raw(), &mut attributes) };
        let raw = object(raw, "ibv_create_ah", name)?;
        let mut efa = efadv_ah_attr::default();
        // SAFETY: the handle is new and valid, and there is room for as much as is said.
        let code =
            unsafe { efadv_query_ah(raw.as_ptr(), &mut efa, size_of::<efadv_ah_attr>() as u32) };
        if let Err(error) = check(code, "efadv_query_ah", name) {
            self.destroy(raw);
            return Err(error);
        }
        Ok(Handle { raw, number: AddressHandle(efa.ahn), gid })
    }

    fn destroy(&self, raw: NonNull<ibv_ah>) {
        // SAFETY: it came from `ibv_create_ah`, is destroyed once, and nobody has a count of it.
        stays(unsafe { ibv_destroy_ah(raw.as_ptr()) }, "ibv_destroy_ah", self.domain.name());
    }
}

impl Drop for HandleCache {
    fn drop(&mut self) {
        // Tables hold the cache, so there is none left with a count.
        for cached in std::mem::take(&mut *self.lock()).into_values() {
            self.destroy(cached.handle.raw);
        }
    }
}

/// The handles that a queue pair has counts of, by number.
#[derive(Debug)]
pub(crate) struct HandleTable {
    by_number: Vec<Option<(Handle, usize)>>,
    cache: Arc<HandleCache>,
}

impl HandleTable {
    pub(crate) fn new(cache: Arc<HandleCache>) -> Self {
        Self { by_number: Vec::new(), cache }
    }

    /// The handle of a number, for a send.
    #[inline]
    pub(crate) fn get(&self, number: AddressHandle) -> Option<NonNull<ibv_ah>> {
        match self.by_number.get(usize::from(number.0)) {
            Some(Some((handle, _))) => Some(handle.raw),
            _ => None,
        }
    }

    /// The handle for an interface, counted once more.
    pub(crate) fn add(&mut self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        let handle = self.cache.take(gid)?;
        let place = usize::from(handle.number.0);
        if place >= self.by_number.len() {
            self.by_number.resize_with(place + 1, || None);
        }
        let (_, count) = self.by_number[place].get_or_insert((handle, 0));
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
        self.cache.give_back(gid);
    }
}

impl Drop for HandleTable {
    fn drop(&mut self) {
        for (handle, count) in self.by_number.drain(..).flatten() {
            (0..count).for_each(|_| self.cache.give_back(handle.gid));
        }
    }
}
