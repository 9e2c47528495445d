//! Regions of another process that this one has mapped, so that it copies from them and to them without a system call.
//!
//! A device [allocates](efa_device::Device::allocate) such regions behind the [table of its keys](crate::keys), in the same
//! file. The slot of a key says where. It is checked with the owner's own table before the region is mapped, where the
//! kernel copies that, and then kept with the mapping. Whether the key is still there is read from the file alone: who
//! can write that can read and write the regions in it as well.
//!
//! While it copies, a process [pins](crate::pins) the key, so that the owner keeps the memory. Owners in another
//! PID namespace can't confirm a pin, and don't wait: then the copy has zeros, and fails, as the key is gone after it.
//! No offset of the file is used for a second region. A read also looks for the queue pair again after the copy.
//!
//! A mapping outlives its owner. So at intervals the reader looks whether the owner still holds the lock of its file.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use efa_device::{Qpn, RemoteMemory, Status};

use super::directory::{FileName, HostDirectory, is_locked};
use crate::keys::{HEADER_COOKIE, PeerSlots, Slot, Use};
use crate::map::Map;

/// The mapped regions of a process, by key.
#[derive(Debug, Default)]
pub(super) struct Windows {
    maps: Mutex<HashMap<u32, Arc<Window>>>,
    /// Copies that were begun.
    copies: AtomicU32,
}

/// Of how many copies one looks whether the process lives, the first of all included.
const LOOK_AFTER: u32 = 256;

/// A mapped region.
#[derive(Debug)]
struct Window {
    map: Map,
    slot: Slot,
}

// SAFETY: a window is copied from and to by raw pointers only, as by other processes at the same time.
unsafe impl Sync for Window {}

impl Windows {
    /// Calls `copy` with the mapping of the region that `there` names, and with the offset of its address, if the
    /// `length` bytes from there on are in a region that can be mapped, and `wanted` is allowed. `None` if not: then the
    /// caller accesses the memory in another way, which finds the reason. `confirm` returns the slot of the key, checked as
    /// far as can be, before the region is mapped.
    pub(super) fn copy(
        &self,
        (directory, qpn): (&HostDirectory, Qpn),
        slots: &PeerSlots,
        (there, length): (RemoteMemory, usize),
        wanted: Use,
        confirm: impl FnOnce() -> Option<Slot>,
        copy: impl FnOnce(&Map, usize) -> bool,
    ) -> Option<Result<(), Status>> {
        let RemoteMemory { address, key } = there;
        if !slots.may_be_in_file(key) || !slots.has(qpn) || !slots.knows_host() {
            return None;
        }
        let copies = self.copies.fetch_add(1, Ordering::Relaxed);
        if copies.is_multiple_of(LOOK_AFTER) && !is_alive(directory, qpn, slots) {
            // Looks again next time.
            self.copies.store(0, Ordering::Relaxed);
            return None;
        }
        let window = self.window(key, slots, || {
            let slot = confirm()?;
            let map = map(directory, qpn, slots, slot.in_file()?)?;
            Some(Window { map, slot })
        })?;
        let Window { map, slot } = &*window;
        let offset = slot.offset_of(slot.locate(key, address, length as u64, wanted)?);
        let is_valid = || wanted != Use::RemoteRead || slots.still_has(qpn);
        let copied = slots.hold(key, || {
            let is_there = || slots.may_be_in_file(key);
            is_there().then(|| copy(map, offset as usize)).filter(|_| is_valid() && is_there())
        })??;
        Some(if copied { Ok(()) } else { Err(Status::BadLocalKey) })
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.maps.lock().unwrap().len()
    }

    fn window(
        &self,
        key: u32,
        slots: &PeerSlots,
        open: impl FnOnce() -> Option<Window>,
    ) -> Option<Arc<Window>> {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(window) = maps.get(&key) {
            return Some(Arc::clone(window));
        }
        // Unmaps regions that have ended before it maps another.
        maps.retain(|&key, _| slots.may_be_in_file(key));
        match maps.entry(key) {
            Entry::Occupied(window) => Some(Arc::clone(window.get())),
            Entry::Vacant(place) => Some(Arc::clone(place.insert(Arc::new(open()?)))),
        }
    }
}

/// Maps a region of the process that has a queue pair. `None` if it isn't there any more, or can't be mapped.
#[cold]
fn map(
    directory: &HostDirectory,
    qpn: Qpn,
    slots: &PeerSlots,
    (start, length): (u64, u64),
) -> Option<Map> {
    let file = directory.find_writable(FileName::MemoryOf(qpn)).ok()??;
    let mut cookie = [0; 8];
    let read = rustix::io::pread(&file, &mut cookie, HEADER_COOKIE as u64);
    if read != Ok(8) || u64::from_ne_bytes(cookie) != slots.cookie {
        return None;
    }
    Map::part(&file, start.try_into().ok()?, length.try_into().ok()?)
        .inspect_err(|error| tracing::debug!(%error, length, "a region can't be mapped"))
        .ok()
}

/// Whether the process with a queue pair lives, and is the one of the table, as far as its file says.
#[cold]
fn is_alive(directory: &HostDirectory, qpn: Qpn, slots: &PeerSlots) -> bool {
    match directory.find(FileName::MemoryOf(qpn)) {
        Ok(Some(file)) => {
            let mut cookie = [0; 8];
            let read = rustix::io::pread(&file, &mut cookie, HEADER_COOKIE as u64);
            read == Ok(8)
                && u64::from_ne_bytes(cookie) == slots.cookie
                && is_locked(&file).unwrap_or(true)
        }
        Ok(None) => false,
        // This process lacks descriptors.
        Err(_) => true,
    }
}
