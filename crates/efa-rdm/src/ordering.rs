//! Requests with a message id are handled in the order of the ids; those ahead are kept until
//! their turn (section 1.3).
//!
//! ```text
//!   msg_id    5        6 ── the next: handled, and with it those kept behind it
//!             handled  8 ── ahead: kept in the window of its peer
//!                      5 ── seen: dropped
//! ```

use efa_device::QueuePair;
use efa_match::Admit;
use efa_proto::{Header, Packet, Rtm};

use crate::bounds::Excess;
use crate::core::Core;
use crate::event::DropReason;
use crate::held::{self, Chain};
use crate::ids::PeerId;
use crate::matching::{MatchHint, Matching};
use crate::payload::Payload;
use crate::shape::Shape;

impl<Q: QueuePair, B: Payload<Q::Region>> Matching<Q, B> {
    /// Handles a message's packet: the first in the order of message ids, others when they arrive.
    pub(crate) fn rtm_arrived(
        &mut self,
        peer: PeerId,
        rtm: &Rtm<'_>,
        payload: &[u8],
        bytes: &[u8],
    ) {
        let shape = Shape::of(rtm, payload);
        match shape {
            Ok(shape) if shape.read_nack => {
                return self.ops.nacked_message_arrived(peer, rtm, &shape);
            }
            Ok(shape) if shape.subprotocol.has_several_requests() => {
                if let Some(assembly) = self.ops.assembly(peer, rtm.msg_id.0) {
                    return self.medium_segment(peer, assembly, rtm, &shape, payload, bytes);
                }
                if self.has_tag_list
                    && self.ops.core.begins_without_first_segment(peer, rtm, &shape)
                {
                    return self.ops.core.drop_packet(peer, DropReason::OutOfOrder);
                }
            }
            Ok(_) => {}
            Err(reason) => return self.ops.core.drop_packet(peer, reason),
        }
        self.ordered_arrived(peer, rtm.msg_id.0, bytes, |matching| match shape {
            Ok(shape) => matching.message_begins(peer, rtm, &shape, payload, bytes),
            Err(reason) => matching.ops.core.drop_packet(peer, reason),
        });
    }

    /// Handles a request if its id is the expected one, and then those kept behind it; keeps it if
    /// it is ahead.
    pub(crate) fn ordered_arrived(
        &mut self,
        peer: PeerId,
        msg_id: u32,
        bytes: &[u8],
        handle: impl FnOnce(&mut Self),
    ) {
        let Some(active) = self.ops.core.peers.active_mut(peer) else { return };
        if active.window.expected() != msg_id {
            return self.keep_ahead(peer, msg_id, bytes);
        }
        let Admit::InOrder(_) = active.window.admit(msg_id, Chain::NONE) else { return };
        handle(self);
        self.release_ready(peer);
    }

    /// Keeps a packet that is ahead of the expected message.
    pub(crate) fn keep_ahead(&mut self, peer: PeerId, msg_id: u32, bytes: &[u8]) {
        if let MatchHint::Receive(_) = self.match_hint {
            return self.ops.core.drop_packet(peer, DropReason::OutOfOrder);
        }
        let chain = self.held.hold(bytes);
        let Some(active) = self.ops.core.peers.active_mut(peer) else { return };
        let reason = match active.window.admit(msg_id, chain) {
            Admit::Kept | Admit::InOrder(_) => {
                self.ops.core.statistics.reordered += 1;
                self.defer_match_hint();
                return self.ops.core.count_ahead(peer, bytes);
            }
            Admit::Occupied(chain) => match active.window.get_mut(msg_id) {
                Some(first) if *first != Chain::NONE => {
                    self.held.append(first, chain);
                    self.ops.core.statistics.reordered += 1;
                    return self.ops.core.count_ahead(peer, bytes);
                }
                // Its sender has given the message up.
                _ => DropReason::OldMessageId,
            },
            Admit::Old(_) => DropReason::OldMessageId,
            Admit::Beyond(_) => DropReason::MessageIdTooFar,
        };
        self.held.drop_chain(chain);
        self.ops.core.drop_packet(peer, reason);
    }

    /// Handles kept packets as long as theirs is the expected id.
    #[inline]
    pub(crate) fn release_ready(&mut self, peer: PeerId) {
        while let Some(active) = self.ops.core.peers.active_mut(peer)
            && let Some(chain) = active.window.pop_ready()
        {
            self.release(peer, chain);
        }
    }

    #[inline(never)]
    pub(crate) fn release(&mut self, peer: PeerId, chain: Chain) {
        if chain == Chain::NONE {
            return; // The sender has given this message up.
        }
        let cost = self.replay(chain, |matching, packet, bytes, first| match &packet.header {
            Header::Rta(rta) if first => matching.ops.rta_arrived(peer, rta, packet.payload),
            Header::Rtm(rtm) => match Shape::of(rtm, packet.payload) {
                Ok(shape) if first => {
                    matching.message_begins(peer, rtm, &shape, packet.payload, bytes);
                }
                Ok(shape) => matching.further_segment(peer, rtm, &shape, packet.payload, bytes),
                Err(reason) => matching.ops.core.drop_packet(peer, reason),
            },
            _ => matching.ops.core.drop_packet(peer, DropReason::OldMessageId),
        });
        self.ops.core.uncount_ahead(peer, cost);
    }

    /// Removes kept packets and handles each; returns the bytes that they took.
    pub(crate) fn replay(
        &mut self,
        chain: Chain,
        mut handle: impl FnMut(&mut Self, &Packet<'_>, &[u8], bool),
    ) -> usize {
        let (mut next, mut cost) = (Some(chain.first), 0);
        let mut first = true;
        while let Some(id) = next {
            let held = self.held.take(id);
            next = held.next;
            let bytes = held.bytes();
            cost += held::cost(bytes.len());
            if let Ok(packet) = Packet::parse(bytes) {
                handle(self, &packet, bytes, first);
            }
            first = false;
            self.held.release(held);
        }
        cost
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Counts a packet that is kept ahead of its turn; excludes the peer beyond its bound.
    pub(crate) fn count_ahead(&mut self, peer: PeerId, packet: &[u8]) {
        let limit = self.config.bounds.ahead;
        let Some(active) = self.peers.active_mut(peer) else { return };
        active.ahead += held::cost(packet.len());
        let bytes = active.ahead;
        if bytes > limit {
            self.exclude(peer, Excess::Ahead { bytes, limit });
        }
    }

    /// Counts kept packets back.
    pub(crate) fn uncount_ahead(&mut self, peer: PeerId, bytes: usize) {
        if let Some(active) = self.peers.active_mut(peer) {
            active.ahead -= bytes;
        }
    }
}
