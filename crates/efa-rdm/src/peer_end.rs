//! The end of a peer, in two phases.
//!
//! ```text
//!   reason seen (device error, restart, bound, remove_peer)
//!      └─► end_peer: the peer is gone at once, and noted          operations stay as they are
//!             └─► settle, before the call returns: ─┬─► transfers, sends, packets, receives fail
//!                                                   └─► out-of-order and incomplete messages are dropped
//! ```
//!
//! Code that handles a packet may end its peer and go on: the operation in its hands is still there, and
//! what it completes is completed. Only [`settle`](Endpoint::settle) fails operations because their peer
//! ended. Every public call that can end a peer settles before it returns; the loop settles after each
//! completion of the endpoint's queue pair.

use efa_device::{QueuePair, Status};

use crate::bounds::Excess;
use crate::charges::Charged;
use crate::completion::OperationError;
use crate::core::{Core, EndedPeer};
use crate::endpoint::Endpoint;
use crate::event::Event;
use crate::held::Chain;
use crate::ids::PeerId;
use crate::matching::{HeldFor, Matching, Message};
use crate::operations::{Assembly, Reading};
use crate::payload::Payload;
use crate::peer::PeerStatus;
use crate::shape::is_complete;
use crate::work::{Work, abandon};

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Ends a peer, unless it is gone already: nothing is sent to it any more, and what it sends is
    /// dropped. Its operations fail when the end is settled.
    pub(crate) fn end_peer(&mut self, peer: PeerId, error: OperationError) {
        let may_return = matches!(error, OperationError::PeerRemoved);
        let Some((handle, slot)) = self.peers.retire(peer, may_return) else { return };
        self.transmit.device.destroy_address_handle(handle);
        // Without state there were no operations.
        if let Some(slot) = slot {
            self.ended.push(EndedPeer { peer, slot, error });
        }
    }

    /// Ends a peer that the device can't reach.
    pub(crate) fn lose_peer(&mut self, peer: PeerId, status: Status) {
        if self.peers.status_of(peer) == PeerStatus::Live {
            self.end_peer(peer, OperationError::Device(status));
            self.events.push(Event::PeerLost { peer, status });
        }
    }

    /// Ends a peer if a device operation failed in a way that says that it is gone.
    pub(crate) fn lose_if_gone(&mut self, peer: Option<PeerId>, failed: Option<OperationError>) {
        if let (Some(peer), Some(OperationError::Device(status))) = (peer, failed)
            && status.is_peer_gone()
            && self.peers.active(peer).is_some()
        {
            self.lose_peer(peer, status);
        }
    }

    /// Ends a peer that exceeds a bound. Nothing that it sent is kept.
    #[cold]
    pub(crate) fn exclude(&mut self, peer: PeerId, excess: Excess) {
        if self.peers.status_of(peer) == PeerStatus::Live {
            self.statistics.excluded += 1;
            self.end_peer(peer, OperationError::PeerExcluded(excess));
            self.events.push(Event::PeerExcluded { peer, excess });
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// Settles the ends of peers: the only place where operations fail because their peer ended.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if !self.core().ended.is_empty() {
            self.settle_ended();
        }
    }

    #[cold]
    #[inline(never)]
    fn settle_ended(&mut self) {
        // It stays in `ended` meanwhile, where its state is found.
        while let Some(ended) = self.core().ended.first().copied() {
            self.settle_peer(ended);
            self.core_mut().ended.remove(0);
        }
    }

    /// Fails what is under way with a peer and drops what it sent. Complete messages of a peer stay and
    /// can still be received, unless it was excluded.
    fn settle_peer(&mut self, EndedPeer { peer, slot, error }: EndedPeer) {
        // What the device reads or writes ends when the device has given it back.
        for id in self.matching.ops.transfers.take_list(slot) {
            self.matching.ops.fail_transfer(id, error);
        }
        for id in self.matching.ops.sends.take_list(slot) {
            if self.matching.ops.sends.get(id).is_some_and(|send| !send.is_direct()) {
                self.matching.ops.fail_send(id, error);
            }
        }
        self.fail_packets_in_flight(peer, slot, error);
        let receives = self.matching.ops.receives.take_list(slot);
        let mut is_arriving =
            !receives.is_empty() | self.matching.ops.fail_single_reads(peer, error);
        for id in receives {
            let is_read = |reading| matches!(reading, Reading::UnderWay(_));
            if self.matching.ops.receives.get(id).is_some_and(|of| !is_read(of.reading)) {
                self.matching.ops.end_receive(id, Some(error));
            }
        }
        let Some(state) = self.core_mut().peers.at_slot_mut(slot) else { return };
        let (waiting, ahead) = (core::mem::take(&mut state.backlog), state.window.drain());
        for work in waiting {
            if let Work::Packet { packet, record } = work {
                self.core_mut().transmit.recycle(packet);
                if let Some(message) = record.purpose.message() {
                    self.matching.ops.single_packet_ended(peer, message, Err(error));
                }
            }
        }
        for (_, chain) in ahead {
            is_arriving = true;
            self.matching.drop_ahead(chain);
        }
        if let OperationError::PeerExcluded(_) = error {
            self.matching.drop_messages(slot);
            self.drop_unexpected_in_place(slot);
        } else {
            if self.core().refuses_strangers() {
                // Nobody comes in its place: it was a connection, whose receives must not skip a message.
                is_arriving |= self.matching.drop_from_first_incomplete(slot);
            }
            is_arriving |= self.matching.drop_incomplete(slot);
        }
        if is_arriving {
            self.core_mut().peers.forbid_return(peer);
        }
        if let Some(left) = self.core_mut().peers.remove_state(slot) {
            self.matching.messages.leave(slot, left);
            self.leave_unexpected_in_place(slot, left);
        }
    }

    /// Fails the single-packet messages in flight to a peer. Only their packets tell whose they are, at most
    /// as many as the depth of the device's send queue.
    fn fail_packets_in_flight(&mut self, peer: PeerId, slot: u32, error: OperationError) {
        let core = self.core_mut();
        let state = core.peers.at_slot_mut(slot);
        if state.is_some_and(|active| active.was_never_sent_to(&core.config)) {
            return;
        }
        let packets = core.transmit.records_mut().filter(|record| record.peer == peer);
        for (peer, message) in abandon(packets) {
            self.matching.ops.single_packet_ended(peer, message, Err(error));
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Matching<Q, B> {
    /// Drops all unexpected messages of the peer whose state is in this slot.
    fn drop_messages(&mut self, slot: u32) {
        while let Some(key) = self.messages.oldest(Charged::Living(slot)) {
            self.forget_message(key);
        }
    }

    /// Drops the incomplete unexpected messages of the peer whose state is in this slot; returns whether
    /// there were any.
    fn drop_incomplete(&mut self, slot: u32) -> bool {
        let mut is_any = false;
        while let Some(key) = self.partial.first(slot) {
            is_any = true;
            self.partial.remove(key);
            let Some(message) = self.messages.get(key) else { continue };
            let Message { peer, msg_id, .. } = *message;
            if self.has_all_packets(message) {
                self.ops.forget_assembly(peer, msg_id, Assembly::Unexpected(key));
            } else {
                self.forget_message(key);
            }
        }
        is_any
    }

    /// Whether an unexpected message is complete.
    fn has_all_packets(&self, message: &Message) -> bool {
        message.missing == 0 && is_complete(self.held.chain(message.packets))
    }

    /// Drops the first incomplete unexpected message of the peer whose state is in this slot, and those after it, which
    /// a receive would take in its place; returns whether there was one. Claimed messages stay: who claimed an incomplete
    /// one learns of its end.
    fn drop_from_first_incomplete(&mut self, slot: u32) -> bool {
        let is_claimed =
            |message: &Message| matches!(message.held_for, HeldFor::Claim(_) | HeldFor::Matched);
        let mut dropped = self.messages.of(Charged::Living(slot));
        dropped.retain(|key| self.messages.get(*key).is_some_and(|message| !is_claimed(message)));
        let has_all =
            |key: &u32| self.messages.get(*key).is_some_and(|of| self.has_all_packets(of));
        let complete = dropped.iter().take_while(|key| has_all(key)).count();
        for key in &dropped[complete..] {
            self.forget_message(*key);
        }
        dropped.len() > complete
    }

    /// Drops an unexpected message.
    pub(crate) fn forget_message(&mut self, key: u32) {
        let Some(message) = self.messages.get_mut(key) else { return };
        let chain = std::mem::replace(&mut message.packets, Chain::NONE);
        let Message { peer, msg_id, tagged, held_for, .. } = *message;
        self.ops.forget_assembly(peer, msg_id, Assembly::Unexpected(key));
        self.partial.remove(key);
        match held_for {
            HeldFor::Anyone(entry) => {
                self.messages.remove(key);
                self.matcher(tagged).withdraw(entry);
            }
            HeldFor::Claim(_) => {
                self.messages.remove(key);
            }
            HeldFor::Queue(entry, _) => {
                self.messages.remove(key);
                self.withdraw_shared(tagged, entry);
            }
            // It is removed when the device has given the receive back.
            HeldFor::Matched => self.messages.disown(key),
        }
        let freed = self.held.drop_chain(chain);
        self.uncount_unexpected(peer, freed);
    }
}
