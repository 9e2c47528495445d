//! The map between address vector indices and an engine's peers, in both directions.

use std::collections::HashMap;

use efa_rdm::PeerId;

use crate::address_vector::FiAddr;
use crate::named::Published;

/// Which peer of the engine an address of the address vector stands for, and back. Indices of a table and the
/// engine's numbers are dense, so two vectors do; others are looked up by their lower half.
#[derive(Debug, Default)]
pub(crate) struct PeerMap {
    by_addr: Vec<Option<PeerId>>,
    by_peer: Vec<Option<FiAddr>>,
    /// Addresses with an upper half, by the lower one.
    by_lower: Vec<Option<(FiAddr, PeerId)>>,
    /// Those whose lower half another address has: receive contexts.
    others: HashMap<FiAddr, PeerId>,
    /// Those of an address vector that another process writes, by the lower half. [`peer`](Self::peer) doesn't find them:
    /// each use looks whether they are still there.
    shared: HashMap<u32, Shared>,
}

/// A peer of an address vector that another process writes, as it was when it was used first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    pub(crate) addr: FiAddr,
    pub(crate) published: Published,
    pub(crate) peer: PeerId,
}

impl PeerMap {
    #[inline]
    pub(crate) fn peer(&self, addr: FiAddr) -> Option<PeerId> {
        match self.by_addr.get(usize::try_from(addr.0).ok()?) {
            Some(known) => *known,
            None => self.peer_otherwise(addr),
        }
    }

    #[inline(never)]
    fn peer_otherwise(&self, addr: FiAddr) -> Option<PeerId> {
        match self.by_lower.get(lower(addr)) {
            Some(Some((of, peer))) if *of == addr => Some(*peer),
            _ => self.others.get(&addr).copied(),
        }
    }

    pub(crate) fn addr(&self, peer: PeerId) -> Option<FiAddr> {
        *self.by_peer.get(peer.index())?
    }

    /// Names a peer in completions.
    fn name(&mut self, peer: PeerId, name: FiAddr) {
        put(&mut self.by_peer, peer.index(), name);
    }

    /// Adds a pair; completions have the `name`. `addr` must be of the address vector, which bounds the size of the
    /// map.
    pub(crate) fn insert(&mut self, addr: FiAddr, name: FiAddr, peer: PeerId) {
        self.name(peer, name);
        if u32::try_from(addr.0).is_ok() {
            return put(&mut self.by_addr, addr.0 as usize, peer);
        }
        match self.by_lower.get(lower(addr)) {
            Some(Some((other, _))) if *other != addr => {
                self.others.insert(addr, peer);
            }
            _ => put(&mut self.by_lower, lower(addr), (addr, peer)),
        }
    }

    /// Adds a pair of an address vector that another process writes.
    pub(crate) fn insert_shared(&mut self, addr: FiAddr, published: Published, peer: PeerId) {
        self.name(peer, addr);
        self.shared.insert(addr.0 as u32, Shared { addr, published, peer });
    }

    /// The pair of an address vector that another process writes which has the slot of `addr`.
    pub(crate) fn shared(&self, addr: FiAddr) -> Option<Shared> {
        self.shared.get(&(addr.0 as u32)).copied()
    }

    /// Removes a pair, and returns the engine's peer if there was one.
    pub(crate) fn remove(&mut self, addr: FiAddr) -> Option<PeerId> {
        let peer = match self.shared(addr) {
            Some(shared) if shared.addr == addr => {
                self.shared.remove(&(addr.0 as u32));
                shared.peer
            }
            _ => self.remove_own(addr)?,
        };
        *self.by_peer.get_mut(peer.index())? = None;
        Some(peer)
    }

    /// Removes a pair of an address vector of this process.
    fn remove_own(&mut self, addr: FiAddr) -> Option<PeerId> {
        let peer = self.peer(addr)?;
        if u32::try_from(addr.0).is_ok() {
            self.by_addr[addr.0 as usize] = None;
        } else if self.others.remove(&addr).is_none() {
            self.by_lower[lower(addr)] = None;
        }
        Some(peer)
    }
}

/// The lower half of an address: the index in the address vector.
fn lower(addr: FiAddr) -> usize {
    addr.0 as u32 as usize
}

fn put<T: Clone>(vector: &mut Vec<Option<T>>, index: usize, value: T) {
    if index >= vector.len() {
        vector.resize(index + 1, None);
    }
    vector[index] = Some(value);
}
