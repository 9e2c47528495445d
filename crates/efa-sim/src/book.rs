//! Address handles of a device: which interfaces it knows, and under which number.
//!
//! Each protection domain has handles of its own: no other can send to them, or receives their numbers with what comes
//! from these interfaces. All domains share the numbers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use efa_device::{AddressHandle, DeviceError, Gid};

use crate::lock::lock_within;
use crate::region::KeyTable;

/// A protection domain of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DomainId(u64);

/// Interfaces of domains by number, counted: a number belongs to its GID until the last count is released.
#[derive(Debug)]
pub(crate) struct AddressBook {
    limit: usize,
    by_gid: BTreeMap<(DomainId, Gid), AddressHandle>,
    entries: BTreeMap<AddressHandle, Entry>,
    next: u16,
    /// The domain that was made last.
    last: DomainId,
}

#[derive(Debug)]
struct Entry {
    of: (DomainId, Gid),
    count: u64,
}

/// The number for "unknown" in the device's completions, which is never assigned.
const UNKNOWN: u16 = 0xffff;

impl AddressBook {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit: limit.min(usize::from(UNKNOWN)),
            by_gid: BTreeMap::new(),
            entries: BTreeMap::new(),
            next: 0,
            last: DomainId::default(),
        }
    }

    fn add_domain(&mut self) -> DomainId {
        self.last.0 += 1;
        self.last
    }

    /// The number of `gid`, counted once more.
    pub(crate) fn acquire(
        &mut self,
        domain: DomainId,
        gid: Gid,
    ) -> Result<AddressHandle, DeviceError> {
        if gid == Gid::ZERO {
            return Err(DeviceError::BadAddress { gid });
        }
        let of = (domain, gid);
        if let Some(&handle) = self.by_gid.get(&of) {
            if let Some(entry) = self.entries.get_mut(&handle) {
                entry.count += 1;
            }
            return Ok(handle);
        }
        if self.entries.len() >= self.limit {
            return Err(DeviceError::LimitReached { object: "address handle", limit: self.limit });
        }
        // Numbers are assigned in turn, so that one just freed is not soon reused.
        while self.next == UNKNOWN || self.entries.contains_key(&AddressHandle(self.next)) {
            self.next = self.next.wrapping_add(1);
        }
        let handle = AddressHandle(self.next);
        self.next = self.next.wrapping_add(1);
        self.by_gid.insert(of, handle);
        self.entries.insert(handle, Entry { of, count: 1 });
        Ok(handle)
    }

    /// Releases `count` counts. Returns whether the number is free now.
    pub(crate) fn release(&mut self, handle: AddressHandle, count: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&handle) else { return false };
        entry.count = entry.count.saturating_sub(count);
        if entry.count > 0 {
            return false;
        }
        self.by_gid.remove(&entry.of);
        self.entries.remove(&handle);
        true
    }

    /// The interface that a handle of the domain stands for.
    pub(crate) fn gid(&self, domain: DomainId, handle: AddressHandle) -> Option<Gid> {
        let entry = self.entries.get(&handle).filter(|entry| entry.of.0 == domain);
        entry.map(|entry| entry.of.1)
    }

    /// Whether any domain has a handle for an interface.
    fn knows(&self, gid: Gid) -> bool {
        self.by_gid.keys().any(|of| of.1 == gid)
    }

    pub(crate) fn handle(&self, domain: DomainId, gid: Gid) -> Option<AddressHandle> {
        self.by_gid.get(&(domain, gid)).copied()
    }
}

/// The address handles of a domain with queue pairs in many threads. The handle of the device's own interface
/// is kept where it is found without a lock.
#[derive(Debug)]
pub(crate) struct Book {
    own_gid: Gid,
    own: AtomicU32,
    domain: DomainId,
    entries: Arc<Mutex<AddressBook>>,
    /// The table that tells other processes whether there is a handle of the device's own interface, in any domain.
    noted_in: Option<KeyTable>,
}

impl Book {
    /// No handle has this number.
    const NONE: u32 = u32::MAX;

    pub(crate) fn new(own_gid: Gid, limit: usize) -> Self {
        let entries = Arc::new(Mutex::new(AddressBook::new(limit)));
        let (own, domain) = (AtomicU32::new(Self::NONE), DomainId::default());
        Self { own_gid, own, domain, entries, noted_in: None }
    }

    /// A book that notes in the table of `keys` whether there is a handle of the device's own interface.
    pub(crate) fn noted_in(keys: KeyTable, own_gid: Gid, limit: usize) -> Self {
        Self { noted_in: Some(keys), ..Self::new(own_gid, limit) }
    }

    /// The handles of another domain of the device, of which there are none yet.
    pub(crate) fn of_another_domain(&self) -> Self {
        Self {
            own_gid: self.own_gid,
            own: AtomicU32::new(Self::NONE),
            domain: self.lock().add_domain(),
            entries: Arc::clone(&self.entries),
            noted_in: self.noted_in.clone(),
        }
    }

    /// Sets the domain's handle of the device's own interface.
    fn set_own(&self, entries: &AddressBook, handle: Option<AddressHandle>) {
        self.own.store(handle.map_or(Self::NONE, |handle| handle.0.into()), Ordering::Relaxed);
        if let Some(slots) = self.noted_in.as_ref().and_then(KeyTable::slots) {
            slots.set_knows_host(entries.knows(self.own_gid));
        }
    }

    fn lock(&self) -> MutexGuard<'_, AddressBook> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn acquire(&self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        let mut entries = self.lock();
        let handle = entries.acquire(self.domain, gid)?;
        if gid == self.own_gid {
            self.set_own(&entries, Some(handle));
        }
        Ok(handle)
    }

    pub(crate) fn release(&self, handle: AddressHandle, count: u64) {
        // A handle that is left takes one of many numbers.
        let Some(mut entries) = lock_within(&self.entries) else { return };
        if entries.release(handle, count) && self.own.load(Ordering::Relaxed) == handle.0.into() {
            self.set_own(&entries, None);
        }
    }

    /// The handle for the device's own interface, if there is one.
    #[inline]
    pub(crate) fn own(&self) -> Option<AddressHandle> {
        u16::try_from(self.own.load(Ordering::Relaxed)).ok().map(AddressHandle)
    }

    /// The interface that a handle stands for.
    pub(crate) fn gid(&self, handle: AddressHandle) -> Option<Gid> {
        if self.own() == Some(handle) {
            Some(self.own_gid)
        } else {
            self.lock().gid(self.domain, handle)
        }
    }

    /// Whether any domain of the device has a handle for an interface.
    pub(crate) fn knows(&self, gid: Gid) -> bool {
        self.handle(gid).is_some() || self.lock().knows(gid)
    }

    /// The handle for an interface, if there is one.
    #[inline(always)]
    pub(crate) fn handle(&self, gid: Gid) -> Option<AddressHandle> {
        if gid == self.own_gid { self.own() } else { self.lock().handle(self.domain, gid) }
    }
}

/// The counts that one queue pair holds; it releases all when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct HeldHandles(BTreeMap<AddressHandle, u64>);

impl HeldHandles {
    pub(crate) fn add(&mut self, handle: AddressHandle) {
        *self.0.entry(handle).or_default() += 1;
    }

    /// Removes a count. Returns whether one was held.
    pub(crate) fn take(&mut self, handle: AddressHandle) -> bool {
        let Some(count) = self.0.get_mut(&handle) else { return false };
        *count -= 1;
        if *count == 0 {
            self.0.remove(&handle);
        }
        true
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (AddressHandle, u64)> {
        std::mem::take(&mut self.0).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Gid = Gid([1; 16]);
    const B: Gid = Gid([2; 16]);

    #[test]
    fn number_belongs_to_its_gid_until_the_last_release() {
        let mut book = AddressBook::new(1);
        let domain = DomainId::default();
        let a = book.acquire(domain, A).unwrap();
        assert_eq!(book.acquire(domain, A), Ok(a));
        assert_eq!(
            book.acquire(domain, B),
            Err(DeviceError::LimitReached { object: "address handle", limit: 1 })
        );
        assert!(!book.release(a, 1));
        assert_eq!(book.handle(domain, A), Some(a));
        assert!(book.release(a, 1));
        assert_eq!((book.handle(domain, A), book.gid(domain, a)), (None, None));
        let b = book.acquire(domain, B).unwrap();
        assert_ne!(b, a);
    }

    #[test]
    fn zero_gid_is_refused_and_unknown_number_is_never_assigned() {
        let mut book = AddressBook::new(usize::MAX);
        let domain = DomainId::default();
        let zero = book.acquire(domain, Gid::ZERO);
        assert_eq!(zero, Err(DeviceError::BadAddress { gid: Gid::ZERO }));
        for n in 0..u32::from(UNKNOWN) {
            let mut gid = [0xfe; 16];
            gid[..4].copy_from_slice(&n.to_le_bytes());
            assert_ne!(book.acquire(domain, Gid(gid)).unwrap(), AddressHandle(UNKNOWN));
        }
        let more = book.acquire(domain, A);
        assert!(matches!(more, Err(DeviceError::LimitReached { limit: 65535, .. })));
    }

    #[test]
    fn handles_of_a_domain_are_unknown_in_others_which_share_the_numbers() {
        for gid in [A, B] {
            let first = Book::new(A, 3);
            let second = first.of_another_domain();
            let handle = first.acquire(gid).unwrap();
            assert_eq!((first.handle(gid), first.gid(handle)), (Some(handle), Some(gid)));
            assert_eq!((second.handle(gid), second.gid(handle)), (None, None));
            let other = second.acquire(gid).unwrap();
            assert_ne!(other, handle);
            second.release(other, 1);
            assert_eq!((first.handle(gid), second.handle(gid)), (Some(handle), None));
        }
    }
}
