//! PEER_ERROR packets: one side abandons an operation and informs the other, which would wait for ever
//! otherwise (section 4.10 of the specification on libfabric's main branch of July 2026).
//!
//! ```text
//!   sender                                          receiver
//!     │── LONGREAD_RTM (send_id, read_iov) ───────────►│ can't read; sender has no READ_NACK
//!     │◄──────────── PEER_ERROR (0: send_id) ──────────│ the receive fails
//!   the send fails
//!
//!     │── LONGCTS_RTM, CTSDATA ───────────────────────►│
//!     │── PEER_ERROR (0: recv_id) ────────────────────►│ the receive fails
//!     │── LONGCTS_RTM, DC_…_RTM, RTW, RTR, RTA ───────►│ refused: no access, a table is full, …
//!     │◄─── PEER_ERROR (0: send_id, or recv_id) ───────│
//!   the send, write, read or atomic fails
//!
//!     │── MEDIUM_RTM ─────────────────────────────────►│
//!     │── PEER_ERROR (1: msg_id) ─────────────────────►│ the receive fails, or its packets are dropped
//!     │── PEER_ERROR (2: msg_id) ─────────────────────►│ nothing arrived: the msg_id is skipped
//! ```
//!
//! A sender abandons a message when the device fails one of its packets with a status that concerns
//! this packet alone. It sends the PEER_ERROR when the device has completed the message's other packets:
//! then it knows what has arrived, and no packet of the message follows. Without the feature the
//! peer ends instead: the receiver would wait for the message, and for all messages behind it.
//!
//! A receiver abandons what it can't take: it refuses a request whose sender waits for an answer. A request that
//! nobody waits for, such as an eager write, is dropped with an event only. If the sender's HANDSHAKE hasn't
//! arrived, the PEER_ERROR waits for it.
//!
//! A peer that is removed gets no PEER_ERROR: nothing is sent to it any more. Writes have no message ID, so a
//! writer can't abandon one. Who gives up when, and what the other side learns:
//! docs/giving-up.md.
//!
//! Endpoints of this implementation announce it to each other by a bit of their own
//! ([`Extras::PEER_ERROR_20`]), which libfabric ignores: no release up to 2.6 has PEER_ERROR, and its layout
//! on libfabric's main branch (extra feature 9) has changed several times since.

use efa_device::{QueuePair, Status};
use efa_handshake::{Extras, Support};
use efa_match::Admit;
use efa_proto::{Header, OpId, Packet, PacketType, PeerError};

use crate::completion::OperationError;
use crate::core::Core;
use crate::event::{DropReason, Event};
use crate::held::Chain;
use crate::ids::PeerId;
use crate::matching::Matching;
use crate::operations::{Assembly, Operations, Reached, Reading, ReceiveRole};
use crate::payload::Payload;
use crate::select::Subprotocol;
use crate::work::{Advance, InFlight, Purpose, Work};

/// Values of `ref_kind` in a PEER_ERROR: `op_id` is an operation's identifier, the ID of a message of
/// which packets may have arrived, or the ID of a message of which none has.
const OPERATION: u8 = 0;
const MSG_ID: u8 = 1;
const MSG_ID_SKIP: u8 = 2;

/// libfabric's number for provider errors without a number of their own.
const OTHER: u32 = 4096;

/// Whether a status concerns the failed packet alone, and neither the peer, nor the path to it, nor
/// the queue pair.
fn is_of_packet(status: Status) -> bool {
    matches!(status, Status::BadLocalKey | Status::BadLength | Status::RemoteBadLength)
}

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    fn has_peer_error(&self) -> bool {
        self.config.profile.extras.contains(Extras::PEER_ERROR_20)
    }

    /// Whether a peer and this endpoint both announce PEER_ERROR.
    fn takes_peer_error(&self, peer: PeerId) -> bool {
        self.both_announce(peer, Extras::PEER_ERROR_20)
    }

    /// Drops a request that can't be taken, and tells its sender. `asked` is the sender's identifier of its
    /// operation if that waits for an answer.
    #[cold]
    pub(crate) fn refuse(&mut self, peer: PeerId, asked: Option<OpId>, reason: DropReason) {
        self.drop_packet(peer, reason);
        let code = match reason {
            DropReason::SegmentOutOfRange => Status::BadLength.code().into(),
            DropReason::BadAtomic | DropReason::NotInPlace(_) => {
                Status::UnsupportedOperation.code().into()
            }
            _ => OTHER,
        };
        self.give_up(peer, asked, code);
    }

    /// Queues a PEER_ERROR for an operation of a peer that waits for an answer, if there is one. Without the
    /// peer's HANDSHAKE, it waits for that.
    #[cold]
    pub(crate) fn give_up(&mut self, peer: PeerId, asked: Option<OpId>, code: u32) {
        let Some(op_id) = asked.filter(|_| self.has_peer_error()) else { return };
        let work = Work::PeerError { op_id, ref_kind: OPERATION, code };
        let limit = self.config.bounds.responses;
        let Some(active) = self.peers.active_mut(peer) else { return };
        match active.handshake.supports(Extras::PEER_ERROR_20) {
            Support::Yes => self.queue_response(peer, work),
            Support::Unknown if active.awaiting_handshake.len() < limit => {
                active.awaiting_handshake.push(work);
            }
            _ => {}
        }
    }

    /// The message ID in a single-packet message's packet.
    #[cold]
    pub(crate) fn single_packet_msg_id(
        &self,
        packet: &Q::Packet,
        record: &InFlight<B>,
    ) -> Option<u32> {
        let bytes = packet.as_ref().get(..record.length as usize)?;
        match (&record.purpose, Packet::parse(bytes).ok()?.header) {
            (Purpose::Message(_), Header::Rtm(rtm)) => Some(rtm.msg_id.0),
            _ => None,
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Sends a PEER_ERROR to the sender of a message or write that can't be read, if the sender supports it.
    #[cold]
    pub(crate) fn give_up_reading(&mut self, id: OpId, error: OperationError) {
        let Some(receive) = self.receives.get(id) else { return };
        let code = match error {
            OperationError::Device(status) => status.code().into(),
            _ => OTHER,
        };
        self.core.give_up(receive.peer, Some(receive.send_id), code);
    }

    /// Ends a peer's write to memory that was revoked meanwhile, and tells the peer if it waits for an answer.
    #[cold]
    pub(crate) fn give_up_writing(&mut self, id: OpId) {
        let Some(receive) = self.receives.get(id) else { return };
        let error = OperationError::Device(Status::RemoteBadAddress);
        if receive.receipt || receive.subprotocol == Some(Subprotocol::LongCts) {
            self.give_up_reading(id, error);
        }
        self.end_receive(id, Some(error));
    }

    /// Ends the response to a read of memory that was revoked meanwhile, and tells the reader if it supports that.
    #[cold]
    pub(crate) fn give_up_response(&mut self, id: OpId) {
        let Some(send) = self.sends.get(id) else { return };
        let status = Status::RemoteBadAddress;
        self.core.give_up(send.peer, Some(send.recv_id), status.code().into());
        self.fail_send(id, OperationError::Device(status));
    }

    /// Handles a packet that the device failed. If the status concerns the packet alone and the peer
    /// supports PEER_ERROR, abandons the message; else fails the packet as
    /// [`packet_failed`](Self::packet_failed) does.
    #[cold]
    pub(crate) fn packet_or_message_failed(
        &mut self,
        record: InFlight<B>,
        msg_id: Option<u32>,
        status: Status,
    ) {
        let InFlight { peer, packet_type, length, retransmitted, .. } = record;
        let gives_up = is_of_packet(status) && self.core.takes_peer_error(peer);
        match (record.purpose, msg_id) {
            (Purpose::Message(message), Some(msg_id)) if gives_up => {
                self.core.statistics.send_errors += 1;
                self.single_packet_ended(peer, message, Err(OperationError::Device(status)));
                let (op_id, ref_kind, code) = (OpId(msg_id), MSG_ID_SKIP, status.code().into());
                self.core.enqueue(peer, Work::PeerError { op_id, ref_kind, code });
            }
            (Purpose::Send { id, msg_id }, _)
                if gives_up && self.part_of_message(id, peer, msg_id) =>
            {
                self.core.statistics.send_errors += 1;
                if let Some(send) = self.sends.get_mut(id) {
                    send.outstanding -= 1;
                    send.given_up.get_or_insert(status);
                }
                self.end_send_if_done(id);
            }
            (purpose, _) => {
                let record = InFlight { peer, purpose, packet_type, length, retransmitted };
                self.packet_failed(record, status);
            }
        }
    }

    /// Whether `id` is still the send of this message.
    fn part_of_message(&self, id: OpId, peer: PeerId, msg_id: u32) -> bool {
        let send = self.sends.get(id);
        send.is_some_and(|send| send.is(peer, msg_id) && send.role.is_ordered())
    }

    /// Fails an abandoned send and queues its PEER_ERROR, if the device has completed all its packets.
    #[cold]
    pub(crate) fn give_up_if_drained(&mut self, id: OpId, status: Status) {
        let Some(send) = self.sends.get(id) else { return };
        if send.outstanding > 0 {
            return;
        }
        let peer = send.peer;
        let (op_id, ref_kind) = match send.reached {
            Reached::Nothing => (OpId(send.msg_id), MSG_ID_SKIP),
            Reached::Part => (OpId(send.msg_id), MSG_ID),
            Reached::Granted => (send.recv_id, OPERATION),
        };
        if send.is_being_read() {
            self.core.read_is_over(peer);
        }
        let code = status.code().into();
        self.core.enqueue(peer, Work::PeerError { op_id, ref_kind, code });
        self.fail_send(id, OperationError::Device(status));
    }

    pub(crate) fn send_peer_error(
        &mut self,
        peer: PeerId,
        op_id: OpId,
        ref_kind: u8,
        code: u32,
    ) -> Advance {
        // It may have waited for a HANDSHAKE that doesn't announce the feature.
        if !self.core.takes_peer_error(peer) {
            return Advance::Done;
        }
        let connid = self.core.packet_connid();
        let error = PeerError { op_id, ref_kind, prov_errno: code, connid };
        let record = |length| InFlight::control(peer, PacketType::PeerError, length);
        self.post_control(record, |packet| error.emit(packet))
    }

    fn operation_given_up(&mut self, peer: PeerId, id: OpId, code: u32) {
        let error = OperationError::GivenUp { code };
        if let Some(send) = self.sends.get(id).filter(|send| send.peer == peer && send.is_asked()) {
            if send.is_being_read() {
                self.core.read_is_over(peer);
            }
            return self.fail_send(id, error);
        }
        let receive = self.receives.get(id).filter(|receive| receive.peer == peer);
        match receive.map(|receive| (receive.role, receive.subprotocol)) {
            Some((ReceiveRole::Message | ReceiveRole::Discarded, _)) => self.fail_message(id, code),
            Some((ReceiveRole::Read { .. }, Some(Subprotocol::Eager | Subprotocol::LongCts))) => {
                self.end_receive(id, Some(error))
            }
            _ => self.core.drop_packet(peer, DropReason::UnknownOperation),
        }
    }

    /// Fails a receive; if the device is reading into its memory, when the transfer ends.
    fn fail_message(&mut self, id: OpId, code: u32) {
        let error = OperationError::GivenUp { code };
        let reading = self.receives.get(id).map(|receive| receive.reading);
        match reading {
            Some(Reading::UnderWay(transfer)) => {
                self.fail_transfer(transfer, error);
            }
            _ => self.end_receive(id, Some(error)),
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Matching<Q, B> {
    /// Handles a PEER_ERROR.
    #[cold]
    pub(crate) fn peer_error_arrived(&mut self, peer: PeerId, error: &PeerError) {
        if !self.ops.core.has_peer_error() {
            let reason = DropReason::Unsupported(PacketType::PeerError);
            return self.ops.core.drop_packet(peer, reason);
        }
        let PeerError { op_id, ref_kind, prov_errno: code, .. } = *error;
        match ref_kind {
            OPERATION => self.ops.operation_given_up(peer, op_id, code),
            MSG_ID => self.message_given_up(peer, op_id.0, code),
            MSG_ID_SKIP => self.message_skipped(peer, op_id.0, code),
            _ => self.ops.core.drop_packet(peer, DropReason::UnknownOperation),
        }
    }

    /// Handles a PEER_ERROR for a message of which packets may have arrived.
    fn message_given_up(&mut self, peer: PeerId, msg_id: u32, code: u32) {
        match self.ops.assembly(peer, msg_id) {
            Some(Assembly::Receiving(id)) => self.ops.fail_message(id, code),
            Some(Assembly::Unexpected(key)) => {
                self.forget_message(key);
                self.ops.core.events.push(Event::MessageAbandoned { peer, msg_id, code });
            }
            None => self.message_skipped(peer, msg_id, code),
        }
    }

    /// Skips a message ID: the message won't arrive, and the messages behind it are handled.
    fn message_skipped(&mut self, peer: PeerId, msg_id: u32, code: u32) {
        let Some(active) = self.ops.core.peers.active_mut(peer) else { return };
        match active.window.admit(msg_id, Chain::NONE) {
            Admit::InOrder(_) => self.release_ready(peer),
            Admit::Kept => {}
            Admit::Occupied(_) => match active.window.get_mut(msg_id) {
                Some(held) if *held != Chain::NONE => {
                    let chain = core::mem::replace(held, Chain::NONE);
                    let freed = self.drop_ahead(chain);
                    self.ops.core.uncount_ahead(peer, freed);
                }
                _ => return self.ops.core.drop_packet(peer, DropReason::OldMessageId),
            },
            Admit::Old(_) => {
                return self.ops.core.drop_packet(peer, DropReason::OldMessageId);
            }
            Admit::Beyond(_) => {
                return self.ops.core.drop_packet(peer, DropReason::MessageIdTooFar);
            }
        }
        self.ops.core.events.push(Event::MessageAbandoned { peer, msg_id, code });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use efa_device::{Device, QueuePairOptions, Time};
    use efa_sim::local::{LocalFabric, LocalOptions};

    use super::*;
    use crate::completion::{Completion, Level};
    use crate::config::Config;
    use crate::endpoint::{Accept, Endpoint, Message};

    #[test]
    fn message_without_place_in_the_table_fails_on_both_sides() {
        let end = |network: &LocalFabric, qkey| {
            let options =
                QueuePairOptions::default().with(|options| options.qkey = efa_device::Qkey(qkey));
            let queue_pair = network.open().create_queue_pair(options).unwrap();
            let mut config = Config::default();
            config.profile.extras.insert(Extras::PEER_ERROR_20);
            Endpoint::<_, Vec<u8>>::new(queue_pair, config).unwrap()
        };
        for (level, length) in
            [(Level::Transmit, 100_000), (Level::Delivery, 100_000), (Level::Delivery, 20_000)]
        {
            let network = LocalFabric::new(LocalOptions::default());
            let (mut sender, mut receiver) = (end(&network, 1), end(&network, 2));
            receiver.matching.ops.receives.limit(0);
            receiver.receive(Accept::Untagged { source: None }, vec![0; length], 1).unwrap();
            let peer = sender.insert_peer(receiver.address()).unwrap();
            let (buffer, context) = (vec![1; length], 2);
            let message = Message { peer, tag: None, cq_data: None, level, buffer, context };
            sender.send(message).unwrap();
            let (mut now, mut sent, mut received) = (Time::ZERO, None, None);
            for _ in 0..10_000 {
                now += Duration::from_micros(1);
                sender.progress(now);
                receiver.progress(now);
                if let Some(Completion::Send(done)) = sender.poll_completion() {
                    sent = Some(done.result);
                }
                if let Some(Completion::Receive(done)) = receiver.poll_completion() {
                    received = Some(done.result);
                }
            }
            assert_eq!(received, Some(Err(OperationError::TooManyOperations)));
            assert_eq!(sent, Some(Err(OperationError::GivenUp { code: OTHER })), "{level:?}");
        }
    }
}
