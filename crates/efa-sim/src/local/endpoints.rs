//! The queue pairs of a network by their ids, found in the same time however many there are.

use slab::Slab;

use super::network::Endpoint;

/// One incarnation of a queue pair: a reused number has another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndpointId {
    slot: usize,
    serial: u64,
}

/// All queue pairs that exist.
#[derive(Default)]
pub(super) struct Endpoints(Slab<(u64, Endpoint)>);

impl Endpoints {
    /// Adds a queue pair. `serial` is of no other.
    pub(super) fn insert(&mut self, serial: u64, endpoint: Endpoint) -> EndpointId {
        EndpointId { slot: self.0.insert((serial, endpoint)), serial }
    }

    pub(super) fn get(&self, id: EndpointId) -> Option<&Endpoint> {
        let (serial, endpoint) = self.0.get(id.slot)?;
        (*serial == id.serial).then_some(endpoint)
    }

    pub(super) fn get_mut(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        let (serial, endpoint) = self.0.get_mut(id.slot)?;
        (*serial == id.serial).then_some(endpoint)
    }

    pub(super) fn contains(&self, id: EndpointId) -> bool {
        self.get(id).is_some()
    }

    pub(super) fn remove(&mut self, id: EndpointId) -> Option<Endpoint> {
        self.get(id)?;
        self.0.try_remove(id.slot).map(|(_, endpoint)| endpoint)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Endpoint> {
        self.0.iter().map(|(_, (_, endpoint))| endpoint)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Endpoint> {
        self.0.iter_mut().map(|(_, (_, endpoint))| endpoint)
    }
}
