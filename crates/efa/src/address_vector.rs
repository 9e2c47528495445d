//! The address vector: a table that gives peers small numbers.
//!
//! ```text
//!   insert(address) ─► FiAddr(0) ─► Endpoint::send(Message::to(FiAddr(0)), …)
//!                                       │ first use
//!                                       ▼
//!                     each endpoint's map from index to engine peer, made lazily
//! ```
//!
//! Removal first ends the peer in every endpoint and then frees the index, so that an index never
//! means two peers at a time.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use efa_device::{DeviceError, Gid};

use crate::address::Address;
use crate::domain::Domain;
use crate::endpoint::Shared as EndpointShared;

/// A peer: its index in an address vector of type `FI_AV_TABLE`.
///
/// Indices are dealt from 0 on, the lowest free one first, so a program may compute them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FiAddr(pub u64);

impl fmt::Display for FiAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The peers that the endpoints of a domain send to. Clones are handles to the same one.
///
/// It may be bound to any number of endpoints. Endpoints receive from peers that are not in it as
/// well; such a message's completion has an address but no [`FiAddr`].
#[derive(Clone, Debug)]
pub struct AddressVector(Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) domain: Domain,
    table: Mutex<Table>,
    endpoints: Mutex<Vec<Weak<EndpointShared>>>,
}

#[derive(Debug, Default)]
struct Table {
    slots: Vec<Slot>,
    /// Free slots below the end of `slots`.
    free: BTreeSet<u64>,
    by_address: HashMap<Address, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Free,
    Taken(Address),
    /// The endpoints are being told; the index is not to be used until they have been.
    Leaving,
}

impl AddressVector {
    pub(crate) fn new(domain: &Domain) -> Self {
        Self(Arc::new(Shared {
            domain: domain.clone(),
            table: Mutex::default(),
            endpoints: Mutex::default(),
        }))
    }

    /// Adds a peer. An address that is known keeps its index.
    ///
    /// # Errors
    /// [`DeviceError::BadAddress`] for an address without interface.
    pub fn insert(&self, address: Address) -> Result<FiAddr, DeviceError> {
        let gid = Gid(address.raw().gid);
        if gid == Gid::ZERO {
            return Err(DeviceError::BadAddress { gid });
        }
        Ok(self.0.table().insert(address))
    }

    /// Takes a peer out and gives its address. Operations with it fail on every endpoint that is
    /// bound, and what it still sends is dropped. Inserted again, it is a new peer.
    ///
    /// `None` if there is no such peer.
    pub fn remove(&self, peer: FiAddr) -> Option<Address> {
        let address = self.0.table().leave(peer)?;
        for endpoint in self.0.endpoints().iter().filter_map(Weak::upgrade) {
            endpoint.forget(peer, &address);
        }
        self.0.table().free(peer);
        Some(address)
    }

    /// The address of a peer.
    #[must_use]
    pub fn address(&self, peer: FiAddr) -> Option<Address> {
        self.0.address(peer)
    }

    /// The peer with an address.
    #[must_use]
    pub fn find(&self, address: &Address) -> Option<FiAddr> {
        self.0.find(address)
    }

    /// How many peers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.table().by_address.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn endpoints(&self) -> MutexGuard<'_, Vec<Weak<EndpointShared>>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn bind(&self, endpoint: Weak<EndpointShared>) {
        let mut endpoints = self.endpoints();
        endpoints.retain(|endpoint| endpoint.strong_count() > 0);
        endpoints.push(endpoint);
    }

    pub(crate) fn address(&self, peer: FiAddr) -> Option<Address> {
        self.table().address(peer)
    }

    pub(crate) fn find(&self, address: &Address) -> Option<FiAddr> {
        self.table().by_address.get(address).map(|index| FiAddr(*index))
    }
}

impl Table {
    fn slot(&mut self, peer: FiAddr) -> Option<&mut Slot> {
        self.slots.get_mut(usize::try_from(peer.0).ok()?)
    }

    fn address(&self, peer: FiAddr) -> Option<Address> {
        match self.slots.get(usize::try_from(peer.0).ok()?)? {
            Slot::Taken(address) => Some(*address),
            Slot::Free | Slot::Leaving => None,
        }
    }

    fn insert(&mut self, address: Address) -> FiAddr {
        if let Some(known) = self.by_address.get(&address) {
            return FiAddr(*known);
        }
        let index = self.free.pop_first().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            self.slots.len() as u64 - 1
        });
        if let Some(slot) = self.slot(FiAddr(index)) {
            *slot = Slot::Taken(address);
        }
        self.by_address.insert(address, index);
        FiAddr(index)
    }

    fn leave(&mut self, peer: FiAddr) -> Option<Address> {
        let address = self.address(peer)?;
        *self.slot(peer)? = Slot::Leaving;
        self.by_address.remove(&address);
        Some(address)
    }

    fn free(&mut self, peer: FiAddr) {
        if let Some(slot) = self.slot(peer) {
            *slot = Slot::Free;
            self.free.insert(peer.0);
        }
    }
}
