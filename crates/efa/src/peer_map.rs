//! The map between address vector indices and an engine's peers, in both directions.

use efa_rdm::PeerId;

use crate::address_vector::FiAddr;

/// Which peer of the engine an index of the address vector stands for, and back. Both numberings are
/// dense, so two vectors do.
#[derive(Debug, Default)]
pub(crate) struct PeerMap {
    by_addr: Vec<Option<PeerId>>,
    by_peer: Vec<Option<FiAddr>>,
}

impl PeerMap {
    pub(crate) fn peer(&self, addr: FiAddr) -> Option<PeerId> {
        *self.by_addr.get(usize::try_from(addr.0).ok()?)?
    }

    pub(crate) fn addr(&self, peer: PeerId) -> Option<FiAddr> {
        *self.by_peer.get(peer.index())?
    }

    /// Adds a pair. `addr` must be an index of the address vector, which bounds the size of the map.
    pub(crate) fn insert(&mut self, addr: FiAddr, peer: PeerId) {
        put(&mut self.by_addr, addr.0 as usize, peer);
        put(&mut self.by_peer, peer.index(), addr);
    }

    /// Removes a pair, and returns the engine's peer if there was one.
    pub(crate) fn remove(&mut self, addr: FiAddr) -> Option<PeerId> {
        let peer = self.by_addr.get_mut(usize::try_from(addr.0).ok()?)?.take()?;
        *self.by_peer.get_mut(peer.index())? = None;
        Some(peer)
    }
}

fn put<T: Clone>(vector: &mut Vec<Option<T>>, index: usize, value: T) {
    if index >= vector.len() {
        vector.resize(index + 1, None);
    }
    vector[index] = Some(value);
}
