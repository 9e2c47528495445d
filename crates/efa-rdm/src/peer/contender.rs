//! Which of two incarnations has the queue pair (section 4.4).
//!
//! ```text
//!   packet with an unknown connid on the queue pair of a live peer
//!      └─► contender: live, behind the holder ─ HANDSHAKE ─┬─ delivered ─► holder; the other one has restarted
//!                                                          └─ failed ────► gone: its packet was late
//! ```
//!
//! Connids are random, so the packet doesn't tell whether its sender came before the holder or after it. The device does:
//! it delivers a packet with the connid as its queue key to the present holder alone.

use super::{
    AddressHandle, Entry, GONE, IDLE, INCARNATIONS, NO_LINK, PeerId, Peers, Qpn, QueuePairKey,
    RawAddress,
};

impl<P, B> Peers<P, B> {
    /// Adds a peer that a packet introduces. If its queue pair has a live one, that keeps it for now. Returns the new one,
    /// and the former contender.
    pub(crate) fn discover(
        &mut self,
        address: RawAddress,
        handle: AddressHandle,
    ) -> (PeerId, Option<PeerId>) {
        let holder = self.latest_at(&QueuePairKey { gid: address.gid, qpn: address.qpn });
        let live = |peers: &Self, peer: u32| {
            peers.entries.get(peer as usize).is_some_and(|entry| !entry.is_gone())
        };
        let (peer, latest, former) = match holder.filter(|holder| live(self, *holder)) {
            Some(holder) => {
                let behind = self.entries[holder as usize].link;
                let former = Some(PeerId(behind)).filter(|_| live(self, behind));
                (self.insert_behind(holder, address, handle), holder, former)
            }
            None => {
                let (peer, _) = self.insert(address, handle);
                (peer, peer.0, None)
            }
        };
        self.discovered += 1;
        self.set_incarnations(latest, self.incarnations_until(latest) + 1);
        (peer, former)
    }

    /// The number of incarnations is with the holder, until this one takes its place.
    fn insert_behind(&mut self, holder: u32, address: RawAddress, handle: AddressHandle) -> PeerId {
        self.note_interface(handle, address.gid);
        let index = self.entries.len() as u32;
        let RawAddress { gid, qpn, connid } = address;
        let link = self.entries[holder as usize].link;
        self.entries.push(Entry { gid, connid, active: IDLE, link, qpn, handle });
        self.entries[holder as usize].link = index;
        PeerId(index)
    }

    /// A packet was delivered to a peer, so it has its queue pair. Returns the live peer that had it before.
    pub(crate) fn holds_queue_pair(&mut self, peer: PeerId) -> Option<PeerId> {
        let entry = self.entries.get(peer.index()).filter(|entry| !entry.is_gone())?;
        let holder = self.latest_at(&entry.place())?;
        let is_new = holder != peer.0 && self.promote(peer.0, holder);
        (is_new && !self.entries[holder as usize].is_gone()).then_some(PeerId(holder))
    }

    /// A peer ended. If it had its queue pair, that passes to a live peer behind it.
    pub(super) fn pass_queue_pair(&mut self, from: PeerId) {
        let entry = &self.entries[from.index()];
        let is_only = entry.link & !GONE == NO_LINK;
        if is_only || self.latest_at(&entry.place()) != Some(from.0) {
            return;
        }
        let mut index = from.0;
        for _ in 0..INCARNATIONS {
            match self.entries.get(index as usize) {
                Some(entry) if entry.is_gone() => index = entry.link & !GONE,
                Some(_) => {
                    self.promote(index, from.0);
                    return;
                }
                None => return,
            }
        }
    }

    /// Makes a peer the latest one of its queue pair, before the one that is it. Returns whether it was found behind that.
    fn promote(&mut self, index: u32, latest: u32) -> bool {
        let link = |peers: &Self, index: u32| Some(peers.entries.get(index as usize)?.link & !GONE);
        let mut before = latest;
        for _ in 0..INCARNATIONS {
            match link(self, before) {
                Some(next) if next == index => break,
                Some(next) => before = next,
                None => return false,
            }
        }
        let Some(after) = link(self, index).filter(|_| link(self, before) == Some(index)) else {
            return false;
        };
        self.set_incarnations(index, self.incarnations_until(latest));
        let entry = &mut self.entries[before as usize];
        entry.link = after | entry.link & GONE;
        let entry = &mut self.entries[index as usize];
        entry.link = latest | entry.link & GONE;
        let (place, handle, qpn) = (entry.place(), entry.handle, Qpn(entry.qpn));
        if let Some(of) = self.latest.find_mut(place.hash(self.seed), |of| *of == latest) {
            *of = index;
        }
        self.forget_recent(handle, qpn);
        true
    }

    fn set_incarnations(&mut self, index: u32, incarnations: u32) {
        let active = &mut self.entries[index as usize].active;
        match self.active.get_mut(*active as usize) {
            Some(active) => active.incarnations = incarnations,
            None => *active = *active & !super::COUNT | incarnations,
        }
    }
}
