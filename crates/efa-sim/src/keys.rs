//! The table of a device's memory keys, as words. On shm, other processes read it.
//!
//! ```text
//!     0  magic | process | its PID namespace | address of the owner's own table | cookie
//!        | whether it has an address handle for its own interface
//!  4096  one bit for each queue pair number that the process has
//! 12288  slots: remote address | address in memory | length | access, cookie | offset in the file | key
//! 851968 pins (in the file only): see `pins`
//! 917504 regions (in the file only) that the device allocated, which others map
//! ```
//!
//! The owner has the table twice: in memory of its own, which counts, and on shm in a file, which others map
//! for reading and can look at without a system call. What they find in the file they check against the
//! owner's own table, which they have the kernel read with the data.
//!
//! The lower bits of a key are the slot's index; the upper bits change with each use of the slot, so that
//! a deregistered key is invalid. The key is the last word of its slot: it is removed before the other words
//! change, and the kernel copies from front to back, so that a copy with the key has its other words too.

#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use efa_device::{Access, Qpn};
use rustix::fs::fstat;
use rustix::io::Errno;

use crate::map::{Map, View};
use crate::pins::{self, Pins};

/// Most regions of a device.
pub const MAX_REGIONS: usize = 1 << INDEX_BITS;

/// Bits of a key that are the slot's index.
pub(crate) const INDEX_BITS: u32 = 14;
pub(crate) const HEADER_PROCESS: usize = 8;
pub(crate) const HEADER_NAMESPACE: usize = 16;
const HEADER_ADDRESS: usize = 24;
/// Offset of the owner's cookie.
pub(crate) const HEADER_COOKIE: usize = 32;
/// Offset of the word that is 1 while the owner has an address handle for its own interface.
pub(crate) const HEADER_KNOWS_HOST: usize = 40;
const NUMBERS: usize = 4096;
const SLOTS: usize = NUMBERS + (1 << 16) / 8;
/// Words of a slot.
pub(crate) const SLOT_WORDS: usize = 6;
const SLOT: usize = 8 * SLOT_WORDS;
/// Bytes of a table.
const TABLE: usize = SLOTS + SLOT * MAX_REGIONS;
/// Pages of up to 64 KiB are either of the table or of the pins.
const PINS: usize = TABLE.next_multiple_of(1 << 16);
/// Bytes of a table and its pins in a file. Regions follow, at offsets that are multiples of the size of a page.
pub(crate) const LENGTH: usize = PINS + (1 << 16);
const _: () = assert!(pins::LENGTH <= 1 << 16);

/// Bits of the access word, numbered as `IBV_ACCESS_*`; the cookie is above them.
const LOCAL_WRITE: u64 = 1;
const REMOTE_WRITE: u64 = 1 << 1;
const REMOTE_READ: u64 = 1 << 2;
/// In the owner's own table only.
const PUSHED: u64 = 1 << 3;
const COOKIE_SHIFT: u32 = 4;

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
    /// Be written by a process that its owner has asked to.
    Pushed,
}

impl Use {
    fn bit(self) -> u64 {
        match self {
            Self::LocalRead => 0,
            Self::LocalWrite => LOCAL_WRITE,
            Self::RemoteRead => REMOTE_READ,
            Self::RemoteWrite => REMOTE_WRITE,
            Self::Pushed => PUSHED,
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
    /// Offset of the first byte in the file; 0 if it isn't there.
    pub(crate) in_file: u64,
    pub(crate) local_write: bool,
    pub(crate) access: Access,
}

/// The words of a slot, copied.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slot(pub(crate) [u64; SLOT_WORDS]);

impl Slot {
    /// Whether the table is that of the process with this cookie. The slot of a key that was never used
    /// is nobody's.
    pub(crate) fn is_of(&self, cookie: u64) -> bool {
        self.0[3] >> COOKIE_SHIFT == cookie
    }

    /// The address, in its process, of the `length` bytes from `start` of the region of `key`, if all of
    /// them are in the region and `wanted` is allowed.
    #[inline]
    pub(crate) fn locate(&self, key: u32, start: u64, length: u64, wanted: Use) -> Option<u64> {
        let Self([first, memory, size, access, _, there]) = *self;
        let allowed = access & wanted.bit() == wanted.bit();
        let offset = start.checked_sub(first)?;
        let inside = offset <= size && length <= size - offset;
        let is_there = key != 0 && there == u64::from(key);
        (is_there && allowed && inside).then(|| memory.wrapping_add(offset))
    }

    /// Where in the file the region begins, and its length, if it is there.
    pub(crate) fn in_file(&self) -> Option<(u64, u64)> {
        let Self([_, _, size, _, at, _]) = *self;
        (at != 0).then_some((at, size))
    }

    /// The offset in the region of an address that [`locate`](Self::locate) returned.
    pub(crate) fn offset_of(&self, address: u64) -> u64 {
        address.wrapping_sub(self.0[1])
    }
}

/// Offset of a key's slot in a table.
pub(crate) fn slot_at(key: u32) -> usize {
    SLOTS + SLOT * (key as usize & (MAX_REGIONS - 1))
}

/// Offset of the word with the bit of a queue pair, and the bit.
pub(crate) fn number_at(qpn: Qpn) -> (usize, u64) {
    (NUMBERS + usize::from(qpn.0) / 64 * 8, 1 << (qpn.0 % 64))
}

/// The table of this process.
#[derive(Debug)]
pub(crate) struct Slots {
    own: Map,
    cookie: u64,
    shared: Option<Shared>,
}

/// The file that other processes see.
#[derive(Debug)]
struct Shared {
    table: Map,
    pins: Pins,
}

// SAFETY: `Slots` accesses its maps through `Map::words` only, that is through atomics; it never calls
// `copy_in` and `copy_out`, which are plain copies.
unsafe impl Sync for Slots {}

impl Slots {
    /// A table that only this process has.
    pub(crate) fn new() -> Result<Self, Errno> {
        let cookie = fastrand::u64(1..1 << (64 - COOKIE_SHIFT));
        Ok(Self { own: Map::anonymous(TABLE)?, cookie, shared: None })
    }

    /// A table that is also in `file`, of [`LENGTH`] bytes, all zero. Its first word is `magic` as soon as
    /// others may use it. `namespace` is the PID namespace of this process.
    pub(crate) fn in_file(file: impl AsFd, magic: u64, namespace: u64) -> Result<Self, Errno> {
        let table = Map::new(&file, TABLE)?;
        let pins = Pins::new(Map::part(&file, PINS, pins::LENGTH)?);
        let slots = Self { shared: Some(Shared { table, pins }), ..Self::new()? };
        for (at, value) in [
            (HEADER_PROCESS, std::process::id().into()),
            (HEADER_NAMESPACE, namespace),
            (HEADER_ADDRESS, slots.own.address()),
            (HEADER_COOKIE, slots.cookie),
            (0, magic),
        ] {
            slots.store(at, value);
        }
        Ok(slots)
    }

    /// As if the number of this process were another's.
    #[cfg(test)]
    pub(crate) fn change_cookie(&self) {
        self.own.words::<1>(HEADER_COOKIE)[0].fetch_xor(1, Ordering::Relaxed);
    }

    fn tables(&self) -> impl Iterator<Item = &Map> {
        std::iter::once(&self.own).chain(self.shared.as_ref().map(|file| &file.table))
    }

    fn store(&self, at: usize, value: u64) {
        for table in self.tables() {
            table.words::<1>(at)[0].store(value, Ordering::Release);
        }
    }

    fn slot(&self, key: u32) -> &[AtomicU64; SLOT_WORDS] {
        self.own.words(slot_at(key))
    }

    /// Notes whether the process has this queue pair. From its end on no read through it succeeds.
    pub(crate) fn set_queue_pair(&self, qpn: Qpn, there: bool) {
        let (at, bit) = number_at(qpn);
        for table in self.tables() {
            let word = &table.words::<1>(at)[0];
            if there {
                word.fetch_or(bit, Ordering::Release);
            } else {
                word.fetch_and(!bit, Ordering::Release);
            }
        }
        // Pairs with the fence in `PeerSlots::still_has`: who has read what the caller writes from now on sees the end.
        fence(Ordering::SeqCst);
    }

    /// Notes whether the process has an address handle for its own interface, by which all of the host reach it.
    pub(crate) fn set_knows_host(&self, knows: bool) {
        self.store(HEADER_KNOWS_HOST, knows.into());
    }

    /// Whether the process has an address handle for its own interface.
    pub(crate) fn knows_host(&self) -> bool {
        self.own.words::<1>(HEADER_KNOWS_HOST)[0].load(Ordering::Relaxed) != 0
    }

    /// Enters a region into a slot that is free.
    pub(crate) fn enter(&self, key: u32, entry: Entry) {
        let Entry { start, memory, length, in_file, local_write, access } = entry;
        let mut bits = self.cookie << COOKIE_SHIFT;
        for (allowed, bit) in [
            (local_write, LOCAL_WRITE),
            (access.remote_write, REMOTE_WRITE),
            (access.remote_read, REMOTE_READ),
        ] {
            bits |= if allowed { bit } else { 0 };
        }
        for (at, value) in (0..).zip([start, memory, length, bits, in_file, key.into()]) {
            self.store(slot_at(key) + 8 * at, value);
        }
    }

    /// Ends what [`enter`](Self::enter) began: nobody begins to write to the region from now on, and no
    /// read of it succeeds.
    pub(crate) fn clear(&self, key: u32) {
        self.store(slot_at(key) + 8 * (SLOT_WORDS - 1), 0);
        // Pairs with the fence in `Pins::hold`: either that process sees the removed key, or the caller sees
        // its pin.
        fence(Ordering::SeqCst);
    }

    /// Lets other processes write the region of `key` if they are asked to.
    pub(crate) fn allow_pushes(&self, key: u32) {
        let [_, _, _, access, _, there] = self.slot(key);
        if there.load(Ordering::Acquire) == u64::from(key) {
            access.fetch_or(PUSHED, Ordering::Relaxed);
        }
    }

    /// The key in the slot with the index of `key`.
    #[inline]
    pub(crate) fn key_at(&self, key: u32) -> Option<u32> {
        let there = self.slot(key)[SLOT_WORDS - 1].load(Ordering::Acquire);
        u32::try_from(there).ok().filter(|&there| there != 0)
    }

    /// Whether a process may be writing to the region of a cleared key, or reading it where it has it mapped.
    pub(crate) fn is_pinned(&self, key: u32) -> bool {
        let [_, _, _, access, in_file, _] = self.slot(key);
        let writable = access.load(Ordering::Relaxed) & (REMOTE_WRITE | PUSHED) != 0;
        (writable || in_file.load(Ordering::Relaxed) != 0)
            && self.shared.as_ref().is_some_and(|file| file.pins.has(self.cookie, key))
    }

    /// [Finds](Slot::locate) memory of this process.
    #[inline]
    pub(crate) fn locate(&self, key: u32, start: u64, length: u64, wanted: Use) -> Option<u64> {
        let words = self.slot(key);
        // First the key: if it is still there after the other words, they are its.
        let there = words[SLOT_WORDS - 1].load(Ordering::Acquire);
        let slot = Slot(words.each_ref().map(|word| word.load(Ordering::Acquire)));
        slot.locate(key, start, length, wanted).filter(|_| there == u64::from(key))
    }
}

/// The table of another process: what its file says, which is to be checked.
#[derive(Debug)]
pub(crate) struct PeerSlots {
    view: View,
    pins: Pins,
    /// The process.
    pub(crate) process: libc::pid_t,
    /// Its PID namespace; 0 if that isn't known.
    pub(crate) namespace: u64,
    /// Address of its own table.
    pub(crate) address: u64,
    pub(crate) cookie: u64,
}

impl PeerSlots {
    /// In a file that the owner opened for [`Slots::in_file`] with the same magic. `None` if it isn't such a
    /// file. `file` is to be open for reading and `writable`, the same file, for reading and writing.
    pub(crate) fn open(
        file: impl AsFd,
        writable: impl AsFd,
        magic: u64,
    ) -> Result<Option<Self>, Errno> {
        if fstat(&file)?.st_size < LENGTH as i64 {
            return Ok(None);
        }
        let view = View::new(file, TABLE)?;
        if view.load(0) != magic {
            return Ok(None);
        }
        let (address, cookie) = (view.load(HEADER_ADDRESS), view.load(HEADER_COOKIE));
        let namespace = view.load(HEADER_NAMESPACE);
        let Ok(process) = libc::pid_t::try_from(view.load(HEADER_PROCESS)) else { return Ok(None) };
        let pins = Pins::new(Map::part(writable, PINS, pins::LENGTH)?);
        Ok(Some(Self { view, pins, process, namespace, address, cookie }))
    }

    /// Whether the process has this queue pair.
    pub(crate) fn has(&self, qpn: Qpn) -> bool {
        let (at, bit) = number_at(qpn);
        self.view.load(at) & bit != 0
    }

    /// As [`has`](Self::has), after memory of the process was copied.
    pub(crate) fn still_has(&self, qpn: Qpn) -> bool {
        // First the copy, then the bit.
        fence(Ordering::Acquire);
        self.has(qpn)
    }

    /// Whether the process has an address handle for its own interface.
    pub(crate) fn knows_host(&self) -> bool {
        self.view.load(HEADER_KNOWS_HOST) != 0
    }

    pub(crate) fn slot(&self, key: u32) -> Slot {
        let at = slot_at(key);
        Slot(std::array::from_fn(|word| self.view.load(at + 8 * word)))
    }

    /// Whether the file has the key, of a region that is in the file.
    #[inline]
    pub(crate) fn may_be_in_file(&self, key: u32) -> bool {
        let at = slot_at(key) + 8 * (SLOT_WORDS - 2);
        self.view.load(at) != 0 && self.view.load(at + 8) == u64::from(key)
    }

    /// Keeps the region of `key` from being freed while `copy` runs; see [`Pins::hold`].
    pub(crate) fn hold<T>(&self, key: u32, copy: impl FnOnce() -> T) -> Option<T> {
        self.pins.hold(self.cookie, key, copy)
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn key_locates_its_region_within_bounds_and_access() {
        let slots = Slots::new().unwrap();
        let access = Access { remote_read: true, remote_write: false };
        let entry = Entry {
            start: 0x5000,
            memory: 0x1000,
            length: 100,
            in_file: 0,
            local_write: false,
            access,
        };
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
    fn others_see_queue_pairs_and_regions_in_the_file() {
        let file = memfd_create("efa-keys", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, LENGTH as u64).unwrap();
        assert!(PeerSlots::open(&file, &file, 7).unwrap().is_none(), "all zero");
        let slots = Slots::in_file(&file, 7, 9).unwrap();
        assert!(PeerSlots::open(&file, &file, 8).unwrap().is_none(), "another version");
        let peer = PeerSlots::open(&file, &file, 7).unwrap().unwrap();
        assert_eq!((peer.cookie, peer.address), (slots.cookie, slots.own.address()));
        assert_eq!((peer.process as u32, peer.namespace), (std::process::id(), 9));
        for qpn in [Qpn(0), Qpn(63), Qpn(64), Qpn(65535)] {
            assert!(!peer.has(qpn));
            slots.set_queue_pair(qpn, true);
            assert!(peer.has(qpn));
        }
        slots.set_queue_pair(Qpn(63), false);
        assert_eq!([0, 63, 64].map(|qpn| peer.has(Qpn(qpn))), [true, false, true]);
        let access = Access { remote_read: true, remote_write: false };
        let entry =
            Entry { start: 10, memory: 20, length: 5, in_file: 4096, local_write: true, access };
        for key in [3, MAX_REGIONS as u32 - 1] {
            slots.enter(key, entry);
            let slot = peer.slot(key);
            assert!(slot.is_of(slots.cookie) && !slot.is_of(slots.cookie + 1));
            assert_eq!(slot.locate(key, 12, 3, Use::RemoteRead), Some(22));
            assert_eq!((slot.in_file(), slot.offset_of(22)), (Some((4096, 5)), 2));
            slots.clear(key);
            assert_eq!(peer.slot(key).locate(key, 12, 3, Use::RemoteRead), None);
        }
        ftruncate(&file, LENGTH as u64 - 1).unwrap();
        assert!(PeerSlots::open(&file, &file, 7).unwrap().is_none(), "too short");
    }
}
