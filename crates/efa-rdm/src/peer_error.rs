//! PEER_ERROR: one side gives a message up and tells the other, which would wait for ever otherwise
//! (feature 9, section 4.10 of the specification on libfabric's main branch).
//!
//! ```text
//!   sender                                          receiver
//!     │── LONGREAD_RTM (send_id, read_iov) ───────────►│ can't read, and READ_NACK isn't known
//!     │◄──────────── PEER_ERROR (0: send_id) ──────────│ fails
//!   fails
//!
//!     │── LONGCTS_RTM, CTSDATA ───────────────────────►│
//!     │── PEER_ERROR (0: recv_id) ────────────────────►│ the receive fails
//!     │── MEDIUM_RTM ─────────────────────────────────►│
//!     │── PEER_ERROR (1: msg_id) ─────────────────────►│ the receive fails, or what came is dropped
//!     │── PEER_ERROR (2: msg_id) ─────────────────────►│ nothing came: messages behind it go on
//! ```
//!
//! Only the receiver's half is ever sent from here: buffers of this endpoint's sends are its own, and
//! can't be taken from under a message. No release has the feature, so it is used only when both
//! sides announce it.

use efa_device::QueuePair;
use efa_handshake::{Extras, Support};
use efa_match::Admit;
use efa_proto::{OpId, PacketType, PeerError};

use crate::completion::OperationError;
use crate::endpoint::Endpoint;
use crate::event::{DropReason, Event};
use crate::held::Chain;
use crate::matching::Assembly;
use crate::operations::ReceiveRole;
use crate::payload::Payload;
use crate::peer::PeerId;
use crate::transmit::{Advance, InFlight, Work};

/// What `op_id` of a PEER_ERROR means.
const OPERATION: u8 = 0;
const MSG_ID: u8 = 1;
const MSG_ID_SKIP: u8 = 2;

/// libfabric's number for errors of its provider that have no other.
const OTHER: u32 = 4096;

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    fn has_peer_error(&self) -> bool {
        self.config.profile.extras.contains(Extras::PEER_ERROR)
    }

    /// Tells the sender of a message that it won't be read, if it understands that.
    #[cold]
    pub(crate) fn give_up_reading(&mut self, id: OpId, error: OperationError) {
        let Some(receive) = self.operations.receives.get(id) else { return };
        let (peer, send_id) = (receive.peer, receive.send_id);
        let understands = self
            .peers
            .active(peer)
            .is_some_and(|active| active.handshake.supports(Extras::PEER_ERROR) == Support::Yes);
        if receive.role == ReceiveRole::Message && self.has_peer_error() && understands {
            let code = match error {
                OperationError::Device(status) => status.code().into(),
                _ => OTHER,
            };
            self.enqueue(peer, Work::PeerError { send_id, code });
        }
    }

    pub(crate) fn send_peer_error(&mut self, peer: PeerId, send_id: OpId, code: u32) -> Advance {
        let connid = self.packet_connid();
        let error = PeerError { op_id: send_id, ref_kind: OPERATION, prov_errno: code, connid };
        let record = |length| InFlight::control(peer, PacketType::PeerError, length);
        self.post_control(record, |packet| error.emit(packet))
    }

    /// A peer gave a message up.
    #[cold]
    pub(crate) fn peer_error_arrived(&mut self, peer: PeerId, error: &PeerError) {
        if !self.has_peer_error() {
            let reason = DropReason::Unsupported(PacketType::PeerError);
            return self.drop_packet(Some(peer), reason);
        }
        let PeerError { op_id, ref_kind, prov_errno: code, .. } = *error;
        match ref_kind {
            OPERATION => self.operation_given_up(peer, op_id, code),
            MSG_ID => self.message_given_up(peer, op_id.0, code),
            MSG_ID_SKIP => self.message_skipped(peer, op_id.0, code),
            _ => self.drop_packet(Some(peer), DropReason::UnknownOperation),
        }
    }

    fn operation_given_up(&mut self, peer: PeerId, id: OpId, code: u32) {
        let send = self.operations.sends.get(id);
        if send.is_some_and(|send| send.peer == peer && send.is_being_read()) {
            self.read_is_over(peer);
            return self.fail_send(id, OperationError::GivenUp { code });
        }
        let receive = self.operations.receives.get(id);
        let is_message = receive
            .is_some_and(|receive| receive.peer == peer && receive.role == ReceiveRole::Message);
        if is_message {
            self.fail_message(id, code);
        } else {
            self.drop_packet(Some(peer), DropReason::UnknownOperation);
        }
    }

    /// Some of the message may have come, in its turn or before.
    fn message_given_up(&mut self, peer: PeerId, msg_id: u32, code: u32) {
        match self.matching.assembling.get(&(peer.0, msg_id)).copied() {
            Some(Assembly::Receiving(id)) => self.fail_message(id, code),
            Some(Assembly::Unexpected(key)) => {
                self.matching.assembling.remove(&(peer.0, msg_id));
                self.forget_message(key as usize);
                self.events.push(Event::MessageAbandoned { peer, msg_id, code });
            }
            None => self.message_skipped(peer, msg_id, code),
        }
    }

    /// A receive under way fails; one whose memory the device is reading into, when that ends.
    fn fail_message(&mut self, id: OpId, code: u32) {
        let error = OperationError::GivenUp { code };
        let reading = self.operations.receives.get(id).map(|receive| receive.reading);
        match reading {
            Some(crate::longread::Reading::UnderWay(transfer)) => {
                self.fail_transfer(transfer, error);
            }
            _ => self.end_receive(id, Some(error)),
        }
    }

    /// The message will never come, be it its turn or not: those behind it go on.
    fn message_skipped(&mut self, peer: PeerId, msg_id: u32, code: u32) {
        let Some(active) = self.peers.active_mut(peer) else { return };
        match active.window.admit(msg_id, Chain::NONE) {
            Admit::InOrder(_) => self.release_early(peer),
            Admit::Kept => {}
            Admit::Occupied(_) => match active.window.get_mut(msg_id) {
                Some(early) if *early != Chain::NONE => {
                    let chain = core::mem::replace(early, Chain::NONE);
                    let freed = self.drop_early(chain);
                    self.had_early(peer, freed);
                }
                _ => return self.drop_packet(Some(peer), DropReason::OldMessageId),
            },
            Admit::Old(_) => return self.drop_packet(Some(peer), DropReason::OldMessageId),
            Admit::Beyond(_) => return self.drop_packet(Some(peer), DropReason::MessageIdTooFar),
        }
        self.events.push(Event::MessageAbandoned { peer, msg_id, code });
    }
}
