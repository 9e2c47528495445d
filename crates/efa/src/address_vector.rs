//! The address vector: a table of peers and their indices.
//!
//! ```text
//!   insert(address) ─► FiAddr(0) ─► Endpoint::send(Message::to(FiAddr(0)), …)
//!                                       │ first use
//!                                       ▼
//!                     PeerMap of each endpoint: index to peer of its engine
//! ```
//!
//! Removal ends the peer in every bound endpoint before it frees the index, so an index never stands for
//! two peers at a time. Insertion and removal hold the lock of the list of endpoints throughout, and
//! take that of the table inside it: an address inserted again can't be confused with the one that is
//! being removed.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use efa_device::{DeviceError, Gid};
use hashbrown::{DefaultHashBuilder, HashTable};

use crate::address::Address;
use crate::bound_endpoints::remove;
use crate::domain::Domain;
use crate::endpoint::Shared as EndpointShared;

/// A peer: its index in an address vector of type `FI_AV_TABLE` (`fi_addr_t`).
///
/// An insertion takes the lowest free index, from 0 on, so a program can compute indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FiAddr(pub u64);

impl fmt::Display for FiAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The peers that endpoints can send to (`fi_av`). Clones are handles to the same address vector.
///
/// It may be bound to any number of endpoints. Endpoints also receive from peers that are not in it:
/// the completion of such a message has an address but no [`FiAddr`].
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
    free: BTreeSet<u32>,
    /// Indices of the taken slots.
    by_address: HashTable<u32>,
    /// Randomly seeded: hostile addresses may be inserted.
    hasher: DefaultHashBuilder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Free,
    Taken(Address),
    /// Being removed: in use until all endpoints have ended the peer.
    Removing,
}

const _: () = assert!(size_of::<Slot>() <= 28, "a peer takes at most 28 bytes");

/// Most peers; that is also the limit of an endpoint.
const MOST_PEERS: usize = 1 << 31;

impl AddressVector {
    pub(crate) fn new(domain: &Domain) -> Self {
        Self(Arc::new(Shared {
            domain: domain.clone(),
            table: Mutex::default(),
            endpoints: Mutex::default(),
        }))
    }

    /// Inserts a peer (`fi_av_insert`). An address that is in the table already keeps its index.
    ///
    /// # Errors
    /// [`DeviceError::BadAddress`] for an address with GID zero, [`DeviceError::LimitReached`] beyond 2³¹
    /// peers.
    pub fn insert(&self, address: Address) -> Result<FiAddr, DeviceError> {
        let endpoints = self.0.endpoints();
        let peer = self.0.table().insert(address)?;
        announce(&endpoints, &[(peer, address)]);
        Ok(peer)
    }

    /// Inserts many peers and returns a result for each. An error of one does not prevent the others.
    #[must_use]
    pub fn insert_many(&self, addresses: &[Address]) -> Vec<Result<FiAddr, DeviceError>> {
        let endpoints = self.0.endpoints();
        let mut table = self.0.table();
        let results: Vec<_> = addresses.iter().map(|address| table.insert(*address)).collect();
        drop(table);
        let pairs = results.iter().zip(addresses);
        let pairs = pairs.filter_map(|(peer, address)| Some((*peer.as_ref().ok()?, *address)));
        announce(&endpoints, &pairs.collect::<Vec<_>>());
        results
    }

    /// Removes a peer and returns its address; `None` if there is no such peer (`fi_av_remove`). On every
    /// bound endpoint, operations under way with it fail, and packets that it still sends are dropped.
    ///
    /// Directed receives ([`Receive::from`](crate::Receive::from)) that have not matched a message of it
    /// stay posted and match nothing any more, even if it is inserted again:
    /// [cancel](crate::Endpoint::cancel) them.
    ///
    /// Inserted again, it is a new peer, and message IDs start anew. The protocol can't announce that, so the
    /// other side must start anew too: it restarts, or removes this endpoint from its address vector
    /// while nothing is under way between the two. A peer that does neither takes new messages for
    /// repeated ones and drops them, or completes an interrupted message with bytes of a new one.
    pub fn remove(&self, peer: FiAddr) -> Option<Address> {
        let endpoints = self.0.endpoints();
        let address = self.0.table().begin_removal(peer)?;
        for endpoint in endpoints.iter().filter_map(Weak::upgrade) {
            endpoint.peer_removed(peer, &address);
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

    /// Number of peers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.table().by_address.len()
    }

    /// Whether there are no peers.
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

    pub(crate) fn unbind(&self, endpoint: &Arc<EndpointShared>) {
        remove(&mut self.endpoints(), endpoint);
    }

    pub(crate) fn address(&self, peer: FiAddr) -> Option<Address> {
        self.table().address(peer)
    }

    pub(crate) fn find(&self, address: &Address) -> Option<FiAddr> {
        self.table().find(address)
    }
}

/// Reports inserted peers to the endpoints.
fn announce(endpoints: &[Weak<EndpointShared>], peers: &[(FiAddr, Address)]) {
    for endpoint in endpoints.iter().filter_map(Weak::upgrade) {
        endpoint.peers_inserted(peers);
    }
}

impl Table {
    fn slot(&mut self, peer: FiAddr) -> Option<&mut Slot> {
        self.slots.get_mut(usize::try_from(peer.0).ok()?)
    }

    fn address(&self, peer: FiAddr) -> Option<Address> {
        match self.slots.get(usize::try_from(peer.0).ok()?)? {
            Slot::Taken(address) => Some(*address),
            Slot::Free | Slot::Removing => None,
        }
    }

    fn find(&self, address: &Address) -> Option<FiAddr> {
        self.find_hashed(address, hash(&self.hasher, address))
    }

    fn find_hashed(&self, address: &Address, hash: u64) -> Option<FiAddr> {
        let same = |index: &u32| self.slots[*index as usize] == Slot::Taken(*address);
        self.by_address.find(hash, same).map(|index| FiAddr(u64::from(*index)))
    }

    fn insert(&mut self, address: Address) -> Result<FiAddr, DeviceError> {
        let gid = address.gid();
        if gid == Gid::ZERO {
            return Err(DeviceError::BadAddress { gid });
        }
        let hash_of_address = hash(&self.hasher, &address);
        if let Some(known) = self.find_hashed(&address, hash_of_address) {
            return Ok(known);
        }
        if self.slots.len() >= MOST_PEERS && self.free.is_empty() {
            return Err(DeviceError::LimitReached { object: "peer", limit: MOST_PEERS });
        }
        let index = self.free.pop_first().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            self.slots.len() as u32 - 1
        });
        self.slots[index as usize] = Slot::Taken(address);
        let Self { slots, by_address, hasher, .. } = self;
        by_address.insert_unique(hash_of_address, index, |index| match &slots[*index as usize] {
            Slot::Taken(address) => hash(hasher, address),
            // Only taken slots are in the table.
            Slot::Free | Slot::Removing => 0,
        });
        Ok(FiAddr(u64::from(index)))
    }

    /// Removes a peer from the table; its index stays in use.
    fn begin_removal(&mut self, peer: FiAddr) -> Option<Address> {
        let address = self.address(peer)?;
        let same = |index: &u32| u64::from(*index) == peer.0;
        if let Ok(entry) = self.by_address.find_entry(hash(&self.hasher, &address), same) {
            entry.remove();
        }
        *self.slot(peer)? = Slot::Removing;
        Some(address)
    }

    fn free(&mut self, peer: FiAddr) {
        if let Some(slot) = self.slot(peer) {
            *slot = Slot::Free;
            self.free.insert(peer.0 as u32);
        }
    }
}

fn hash(hasher: &DefaultHashBuilder, address: &Address) -> u64 {
    let gid = u128::from_le_bytes(address.gid().0);
    let incarnation = u64::from(address.connid()) << 16 | u64::from(address.qpn().0);
    hasher.hash_one((gid, incarnation))
}

#[cfg(test)]
mod tests {
    use efa_proto::{Connid, RawAddress};

    use super::*;

    fn address(number: u32) -> Address {
        let mut gid = [1; 16];
        gid[..4].copy_from_slice(&number.to_le_bytes());
        RawAddress { gid, qpn: number as u16, connid: Connid(number) }.into()
    }

    // conformance: C97
    #[test]
    fn million_peers_take_at_most_48_bytes_each_and_are_found() {
        const PEERS: u32 = 1_000_000;
        let mut table = Table::default();
        for number in 0..PEERS {
            assert_eq!(table.insert(address(number)), Ok(FiAddr(u64::from(number))));
        }
        let bytes = table.slots.capacity() * size_of::<Slot>() + table.by_address.allocation_size();
        let each = bytes / PEERS as usize;
        println!("{each} bytes a peer");
        assert!(each <= 48, "{each} bytes a peer");
        for number in (0..PEERS).step_by(997) {
            let peer = FiAddr(u64::from(number));
            assert_eq!(table.address(peer), Some(address(number)));
            assert_eq!(table.find(&address(number)), Some(peer));
        }
        assert_eq!(table.find(&address(PEERS)), None);
    }

    #[test]
    fn index_of_a_removed_peer_is_free_only_after_its_release() {
        let mut table = Table::default();
        let first = table.insert(address(1)).unwrap();
        let second = table.insert(address(2)).unwrap();
        assert_eq!(table.begin_removal(first), Some(address(1)));
        assert_eq!((table.begin_removal(first), table.address(first)), (None, None));
        assert_eq!(table.insert(address(3)), Ok(FiAddr(2)), "the first index is not free yet");
        table.free(first);
        assert_eq!(table.insert(address(1)), Ok(first));
        assert_eq!(table.address(second), Some(address(2)));
    }
}
