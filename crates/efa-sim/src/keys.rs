//! The table of a device's memory keys, as words that other processes can map.
//!
//! ```text
//!     0  magic | process | its PID namespace | address of the cookie |       ┐ see `shm::memory`
//!        the cookie, two words                                               │
//!  4096  one bit for each queue pair number that the process has             ┘
//! 12288  slots: key | remote address | address in memory | length | access | pins
//! ```
//!
//! The lower bits of a key are the slot's index; the upper bits change with each use of the slot, so that
//! a deregistered key is invalid. Words of another process are not trusted: with false ones it can only
//! direct a copy to other addresses of its own memory.
//!
//! A process that copies pins the slot for that time. The owner removes the key first and then waits until
//! the slot isn't pinned, so that no copy ends up in memory that was freed.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering, fence};

use efa_device::{Access, Qpn};

use crate::map::Map;

/// Most regions of a device.
pub const MAX_REGIONS: usize = 1 << INDEX_BITS;

/// Bits of a key that are the slot's index.
pub(crate) const INDEX_BITS: u32 = 14;
const NUMBERS: usize = 4096;
const SLOTS: usize = NUMBERS + (1 << 16) / 8;
const SLOT: usize = 48;
/// Bytes of a table.
pub(crate) const LENGTH: usize = SLOTS + SLOT * MAX_REGIONS;

/// Bits of the access word, numbered as `IBV_ACCESS_*`.
const LOCAL_WRITE: u64 = 1;
const REMOTE_WRITE: u64 = 1 << 1;
const REMOTE_READ: u64 = 1 << 2;

/// A kind of access to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Send from it, or write it to a remote interface.
    LocalRead,
    /// Receive into it, or read a remote interface's memory into it.
    LocalWrite,
    /// Be read by a remote interface.
    RemoteRead,
    /// Be written by a remote interface.
    RemoteWrite,
}

impl Use {
    fn bit(self) -> u64 {
        match self {
            Self::LocalRead => 0,
            Self::LocalWrite => LOCAL_WRITE,
            Self::RemoteRead => REMOTE_READ,
            Self::RemoteWrite => REMOTE_WRITE,
        }
    }
}

/// The content of a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Address of the first byte in RDMA requests.
    pub(crate) start: u64,
    /// Address of the first byte in the owner's memory.
    pub(crate) memory: u64,
    pub(crate) length: u64,
    pub(crate) local_write: bool,
    pub(crate) access: Access,
}

/// A table of this or another process.
#[derive(Debug)]
pub(crate) struct Slots(Map);

// SAFETY: `Slots` accesses its map through `Map::words` only, that is through atomics; it never calls
// `copy_in` and `copy_out`, which are plain copies.
unsafe impl Sync for Slots {}

impl Slots {
    /// In `map`, which has [`LENGTH`] bytes.
    pub(crate) fn new(map: Map) -> Self {
        Self(map)
    }

    /// The first words, whose meaning `shm::memory` defines.
    pub(crate) fn header(&self) -> &[AtomicU64; 6] {
        self.0.words(0)
    }

    fn slot(&self, index: usize) -> &[AtomicU64; 6] {
        self.0.words(SLOTS + SLOT * (index & (MAX_REGIONS - 1)))
    }

    fn number(&self, qpn: Qpn) -> (&AtomicU64, u64) {
        let at = NUMBERS + usize::from(qpn.0) / 64 * 8;
        (&self.0.words::<1>(at)[0], 1 << (qpn.0 % 64))
    }

    /// Whether the process has this queue pair.
    pub(crate) fn has(&self, qpn: Qpn) -> bool {
        let (word, bit) = self.number(qpn);
        word.load(Ordering::Acquire) & bit != 0
    }

    /// Notes that the process has this queue pair.
    pub(crate) fn add(&self, qpn: Qpn) {
        let (word, bit) = self.number(qpn);
        word.fetch_or(bit, Ordering::Release);
    }

    /// Notes that the process has destroyed this queue pair.
    pub(crate) fn remove(&self, qpn: Qpn) {
        let (word, bit) = self.number(qpn);
        word.fetch_and(!bit, Ordering::Release);
    }

    /// Enters a region into a slot that is free.
    pub(crate) fn enter(&self, key: u32, entry: Entry) {
        let Entry { start, memory, length, local_write, access } = entry;
        let mut bits = 0;
        for (allowed, bit) in [
            (local_write, LOCAL_WRITE),
            (access.remote_write, REMOTE_WRITE),
            (access.remote_read, REMOTE_READ),
        ] {
            bits |= if allowed { bit } else { 0 };
        }
        let [word, rest @ .., _] = self.slot(key as usize);
        for (word, value) in rest.iter().zip([start, memory, length, bits]) {
            word.store(value, Ordering::Relaxed);
        }
        word.store(key.into(), Ordering::Release);
    }

    /// Ends what [`enter`](Self::enter) began: nobody [pins](Self::pin) the region from now on.
    pub(crate) fn clear(&self, key: u32) {
        self.slot(key as usize)[0].store(0, Ordering::Release);
        // Pairs with the fence in `pin`: either that process sees the cleared key, or the caller sees its
        // pin.
        fence(Ordering::SeqCst);
    }

    /// The number of processes that copy to or from the region, or check whether they may.
    fn pins(&self, key: u32) -> &AtomicU64 {
        let [.., pins] = self.slot(key as usize);
        pins
    }

    /// Whether a process may be copying to or from the region of a cleared key.
    pub(crate) fn is_pinned(&self, key: u32) -> bool {
        self.pins(key).load(Ordering::Acquire) != 0
    }

    /// [Finds](Self::locate) memory and keeps it where it is until the pin is dropped.
    pub(crate) fn pin(&self, key: u32, start: u64, length: u64, wanted: Use) -> Option<Pin<'_>> {
        let pins = self.pins(key);
        pins.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut pin = Pin { pins, address: 0 };
        pin.address = self.locate(key, start, length, wanted)?;
        Some(pin)
    }

    /// The address, in its process, of the `length` bytes from `start` of the region of `key`, if all of
    /// them are in the region and `wanted` is allowed.
    #[inline]
    pub(crate) fn locate(&self, key: u32, start: u64, length: u64, wanted: Use) -> Option<u64> {
        let [slot, first, memory, size, access, _] = self.slot(key as usize);
        let load = |word: &AtomicU64| word.load(Ordering::Acquire);
        if key == 0 || load(slot) != u64::from(key) {
            return None;
        }
        let (first, memory, size) = (load(first), load(memory), load(size));
        let allowed = load(access) & wanted.bit() == wanted.bit();
        let offset = start.checked_sub(first)?;
        let inside = offset <= size && length <= size - offset;
        // Checked again: the slot may have been given to another region meanwhile.
        (allowed && inside && load(slot) == u64::from(key)).then(|| memory.wrapping_add(offset))
    }
}

/// Keeps memory registered during a copy.
#[derive(Debug)]
pub(crate) struct Pin<'a> {
    pins: &'a AtomicU64,
    /// Its address in its process.
    pub(crate) address: u64,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.pins.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_locates_its_region_within_bounds_and_access() {
        let slots = Slots::new(Map::anonymous(LENGTH).unwrap());
        let access = Access { remote_read: true, remote_write: false };
        let entry =
            Entry { start: 0x5000, memory: 0x1000, length: 100, local_write: false, access };
        let key = 7 << INDEX_BITS | 3;
        slots.enter(key, entry);
        let at = |address, length, wanted| slots.locate(key, address, length, wanted);
        assert_eq!(at(0x5000, 100, Use::RemoteRead), Some(0x1000));
        assert_eq!(at(0x5000 + 99, 1, Use::LocalRead), Some(0x1000 + 99));
        assert_eq!(at(0x5000 + 100, 0, Use::LocalRead), Some(0x1000 + 100));
        for (address, length) in [(0x4fff, 1), (0x5000, 101), (0x5064, 1), (u64::MAX, 2)] {
            assert_eq!(at(address, length, Use::RemoteRead), None, "{address:#x} {length}");
        }
        assert_eq!(at(0x5000, 1, Use::RemoteWrite), None);
        assert_eq!(at(0x5000, 1, Use::LocalWrite), None);
        for other in [key ^ 1 << INDEX_BITS, key ^ 1, 0] {
            assert_eq!(slots.locate(other, 0x5000, 1, Use::LocalRead), None);
        }
        slots.clear(key);
        assert_eq!(at(0x5000, 100, Use::LocalRead), None);
    }

    #[test]
    fn queue_pair_numbers_are_added_and_removed() {
        let slots = Slots::new(Map::anonymous(LENGTH).unwrap());
        for qpn in [Qpn(0), Qpn(63), Qpn(64), Qpn(65535)] {
            assert!(!slots.has(qpn));
            slots.add(qpn);
            assert!(slots.has(qpn));
        }
        slots.remove(Qpn(63));
        assert_eq!([0, 63, 64].map(|qpn| slots.has(Qpn(qpn))), [true, false, true]);
    }
}
