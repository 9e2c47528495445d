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
use crate::completion::OperationError;
use crate::core::{Core, EndedPeer};
use crate::endpoint::Endpoint;
use crate::event::Event;
use crate::held::{Chain, Held};
use crate::ids::PeerId;
use crate::matching::Matching;
use crate::operations::{Assembly, Reading};
use crate::payload::Payload;
use crate::peer::PeerStatus;
use crate::shape::is_complete;
use crate::work::{Work, abandon};

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Ends a peer, unless it is gone already: nothing is sent to it any more, and what it sends is
    /// dropped. Its operations fail when the end is settled.
    pub(crate) fn end_peer(&mut self, peer: PeerId, error: OperationError) {
        let Some((handle, active)) = self.peers.retire(peer) else { return };
        self.transmit.device.destroy_address_handle(handle);
        // Without state there were no operations.
        if let Some(active) = active {
            self.ended.push(EndedPeer { peer, active, error });
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
        while let Some(ended) = self.core_mut().ended.pop() {
            self.settle_peer(ended);
        }
    }

    /// Fails what is under way with a peer and drops what it sent. Complete messages of a peer stay and
    /// can still be received, unless it was excluded.
    fn settle_peer(&mut self, ended: EndedPeer<Q::Packet, B>) {
        let EndedPeer { peer, mut active, error } = ended;
        // What the device reads or writes ends when the device has given it back.
        for id in self.matching.ops.transfers.find(|transfer| transfer.peer == peer) {
            self.matching.ops.fail_transfer(id, error);
        }
        for id in self.matching.ops.sends.find(|send| send.peer == peer && !send.is_direct()) {
            self.matching.ops.fail_send(id, error);
        }
        let packets = self.core_mut().transmit.records_mut().filter(|record| record.peer == peer);
        for (peer, message) in abandon(packets) {
            self.matching.ops.single_packet_ended(peer, message, Err(error));
        }
        let is_read = |reading| matches!(reading, Reading::UnderWay(_));
        for id in self.matching.ops.receives.find(|of| of.peer == peer && !is_read(of.reading)) {
            self.matching.ops.end_receive(id, Some(error));
        }
        for work in active.backlog.drain(..) {
            if let Work::Packet { packet, record } = work {
                self.core_mut().transmit.recycle(packet);
                if let Some(message) = record.purpose.message() {
                    self.matching.ops.single_packet_ended(peer, message, Err(error));
                }
            }
        }
        for (_, chain) in active.window.drain() {
            self.matching.drop_ahead(chain);
        }
        if let OperationError::PeerExcluded(_) = error {
            self.matching.forget_messages(peer, |_, _| true);
            self.drop_unexpected_in_place(peer);
        } else {
            self.matching.forget_messages(peer, |held, packets| !is_complete(held.chain(packets)));
        }
        self.matching.ops.assembling.retain(|(of, _), assembly| {
            *of != peer.0 || matches!(assembly, Assembly::Receiving(_))
        });
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Matching<Q, B> {
    /// Drops unexpected messages of a peer.
    fn forget_messages(&mut self, peer: PeerId, drops: impl Fn(&Held, Chain) -> bool) {
        let held = &self.held;
        let messages = self.messages.iter().filter(|(_, message)| {
            message.peer == peer && message.packets != Chain::NONE && drops(held, message.packets)
        });
        let keys: Vec<usize> = messages.map(|(key, _)| key).collect();
        for key in keys {
            self.forget_message(key);
        }
    }

    /// Drops an unexpected message.
    pub(crate) fn forget_message(&mut self, key: usize) {
        let Some(message) = self.messages.get_mut(key) else { return };
        let chain = std::mem::replace(&mut message.packets, Chain::NONE);
        let (peer, tagged) = (message.peer, message.tagged);
        let of = (peer.0, message.msg_id);
        if self.ops.assembling.get(&of) == Some(&Assembly::Unexpected(key as u32)) {
            self.ops.assembling.remove(&of);
        }
        if let Some(entry) = self.messages[key].entry {
            self.messages.remove(key);
            self.matcher(tagged).withdraw(entry);
        }
        let freed = self.held.drop_chain(chain);
        self.uncount_unexpected(peer, freed);
    }
}
