//! The network interfaces that peers are on. The device has an address handle for each, and not many of these.
//!
//! ```text
//!   a peer that sent first ──► interface of strangers ─── three quarters of the handles: dropped
//!   insert_peer ─────────────► interface that the application named ─── as many as there are handles
//! ```

use efa_device::{AddressHandle, Gid};

use crate::peer::Known;

/// The interfaces of live peers, by address handle.
#[derive(Debug)]
pub(crate) struct Interfaces {
    by_handle: Vec<Interface>,
    /// Those with live peers, none of which the application inserted.
    of_strangers: usize,
    /// Most of these: the rest of the device's handles is for peers that the application inserts.
    most_of_strangers: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Interface {
    gid: Gid,
    /// Live peers.
    peers: u32,
    /// Whether the application inserted none of the peers that have been live since there was none.
    of_strangers: bool,
}

impl Interfaces {
    /// None yet, on a device with so many address handles.
    pub(crate) fn new(handles: usize) -> Self {
        let most_of_strangers = handles - handles / 4;
        Self { by_handle: Vec::new(), of_strangers: 0, most_of_strangers }
    }

    /// The interface that had this handle last.
    pub(crate) fn gid(&self, handle: AddressHandle) -> Option<Gid> {
        Some(self.by_handle.get(usize::from(handle.0))?.gid)
    }

    /// Whether a stranger may be added whose packet came by this handle; without one its interface is new.
    pub(crate) fn has_room_for_stranger(&self, handle: Option<AddressHandle>) -> bool {
        let interface = handle.and_then(|handle| self.by_handle.get(usize::from(handle.0)));
        interface.is_some_and(|interface| interface.peers > 0)
            || self.of_strangers < self.most_of_strangers
    }

    /// Counts another live peer.
    #[inline]
    pub(crate) fn peer_added(&mut self, handle: AddressHandle, gid: Gid, known: Known) {
        let index = usize::from(handle.0);
        if self.by_handle.len() <= index {
            self.by_handle.resize(index + 1, Interface::default());
        }
        let interface = &mut self.by_handle[index];
        if interface.peers == 0 {
            *interface = Interface { gid, peers: 0, of_strangers: true };
            self.of_strangers += 1;
        }
        interface.peers += 1;
        if known == Known::ByApplication {
            self.known_by_application(handle);
        }
    }

    /// Notes that the application knows a live peer on an interface.
    #[inline]
    pub(crate) fn known_by_application(&mut self, handle: AddressHandle) {
        let interface = &mut self.by_handle[usize::from(handle.0)];
        self.of_strangers -= usize::from(interface.of_strangers);
        interface.of_strangers = false;
    }

    /// Counts a live peer less.
    pub(crate) fn peer_gone(&mut self, handle: AddressHandle) {
        let interface = &mut self.by_handle[usize::from(handle.0)];
        interface.peers -= 1;
        if interface.peers == 0 {
            self.of_strangers -= usize::from(interface.of_strangers);
        }
    }
}
