//! The exchange of HANDSHAKE packets (section 2.1), and the operations that wait for a peer's.
//!
//! ```text
//!   this side                                       peer
//!     │── any request, or EAGER_RTW without data ──►│ the first packet of a peer is answered
//!     │◄──────────────── HANDSHAKE (features) ──────│
//!     │── HANDSHAKE (features) ────────────────────►│
//! ```

use efa_device::QueuePair;
use efa_handshake::{AddressHeader, Extras, Learned};
use efa_proto::{ExtraInfo, Handshake, OpId, PacketType, Rtw, RtwKind, UserRecvQp};

use crate::completion::OperationError;
use crate::core::Core;
use crate::ids::PeerId;
use crate::operations::Operations;
use crate::payload::Payload;
use crate::work::{Advance, InFlight, Purpose, Work};

/// Peers whose HANDSHAKE is elicited again in one call.
const ELICITED_AT_ONCE: usize = 64;

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Holds a send until the peer's HANDSHAKE has announced its features.
    pub(crate) fn hold(&mut self, peer: PeerId, id: OpId) {
        let Some(active) = self.peers.active_mut(peer) else { return };
        active.held.push_back(id);
        self.elicit_handshake(peer);
    }

    /// Queues work that waits for the peer's HANDSHAKE.
    pub(crate) fn await_handshake(&mut self, peer: PeerId, work: Work<Q::Packet, B>) {
        let Some(active) = self.peers.active_mut(peer) else { return };
        active.awaiting_handshake.push(work);
        self.keep_eliciting(peer);
    }

    /// Elicits a peer's HANDSHAKE again after a while, unless it has arrived.
    fn keep_eliciting(&mut self, peer: PeerId) {
        if self.peers.active(peer).is_some_and(|active| !active.handshake.is_known())
            && let Some(slot) = self.peers.slot(peer)
        {
            self.peers.eliciting.begin(slot, self.now);
        }
    }

    /// Queues an empty request to elicit the peer's HANDSHAKE, unless a request was sent before.
    pub(crate) fn elicit_handshake(&mut self, peer: PeerId) {
        let Some(active) = self.peers.active_mut(peer) else { return };
        if active.handshake.must_elicit_handshake() {
            active.handshake.request_posted();
            self.enqueue(peer, Work::ElicitHandshake);
        }
        self.keep_eliciting(peer);
    }

    /// Elicits again the HANDSHAKE that operations wait for: one that died after a request had been
    /// delivered never answers it, and the device reports that only for another packet. A peer that lives
    /// answers once.
    #[cold]
    pub(crate) fn elicit_again(&mut self) {
        for _ in 0..ELICITED_AT_ONCE {
            let Some((slot, pauses)) = self.peers.eliciting.take_due(self.now) else { return };
            let Some(active) = self.peers.at_slot_mut(slot) else { continue };
            let (peer, is_held_up) = (active.peer, active.is_held_up());
            // The first pause begins at the time of the last call, perhaps long ago. What is under way ends with
            // a status.
            if pauses > 0 && active.is_clear() && !self.transmit.is_in_flight_to(peer) {
                self.enqueue(peer, Work::ElicitHandshake);
            }
            // An injected message doesn't wait: the application tries again.
            if is_held_up || pauses == 0 {
                self.peers.eliciting.pause(slot, pauses.saturating_add(1), self.now);
            }
        }
    }

    /// Queues a write if the peer's HANDSHAKE has arrived, else holds it, and with it the messages after it.
    pub(crate) fn start_write(&mut self, peer: PeerId, id: OpId) {
        match self.peers.activate(peer, &self.config).handshake.is_known() {
            true => self.enqueue(peer, Work::Send(id)),
            false => self.hold(peer, id),
        }
    }

    /// Queues `work` now if the peer's HANDSHAKE has arrived, else when it arrives.
    pub(crate) fn when_known(&mut self, peer: PeerId, work: Work<Q::Packet, B>) {
        let active = self.peers.activate(peer, &self.config);
        if active.handshake.is_known() {
            return self.enqueue(peer, work);
        }
        self.await_handshake(peer, work);
        self.elicit_handshake(peer);
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Starts the sends that are held until the peer's HANDSHAKE. Those that need a feature which the
    /// peer lacks fail, without using up a message ID.
    pub(crate) fn release_held(&mut self, peer: PeerId) {
        while let Some(active) = self.core.peers.active_mut(peer)
            && let Some(id) = active.held.pop_front()
        {
            let Some(send) = self.sends.get_mut(id) else { continue };
            let is_write = !send.role.is_ordered();
            let pause = !is_write && active.must_pause();
            let awaits = match is_write {
                true => !active.handshake.is_known(),
                false => active.awaits_handshake(send.level, &self.core.config),
            };
            if pause || awaits {
                active.held.push_front(id);
                if pause {
                    self.core.await_pause(peer);
                }
                return;
            }
            if is_write {
                self.core.enqueue(peer, Work::Send(id));
                continue;
            }
            let missing = active.missing(send.level);
            if missing.is_empty() {
                send.msg_id = active.take_ordered_id().0;
                self.core.enqueue(peer, Work::Send(id));
            } else {
                self.fail_send(id, OperationError::PeerLacks { missing });
            }
        }
    }

    /// Sends an EAGER_RTW with no data and no target memory, which every release of libfabric answers
    /// with its HANDSHAKE.
    pub(crate) fn send_empty_request(&mut self, peer: PeerId) -> Advance {
        let options = self.core.request_options(peer, None);
        let rtw = Rtw { rma_iov: &[], kind: RtwKind::Eager, options };
        let record = |length| InFlight::control(peer, PacketType::EagerRtw, length);
        self.post_control(record, |packet| rtw.emit(packet))
    }

    /// Sends our HANDSHAKE (section 2.1).
    pub(crate) fn send_handshake(&mut self, peer: PeerId) -> Advance {
        let profile = self.core.config.profile;
        let Ok(extra_info) = ExtraInfo::new(&[profile.extras.bits()]) else {
            return Advance::Done;
        };
        let handshake = Handshake {
            extra_info,
            connid: self.core.packet_connid(),
            host_id: (profile.host_id && self.core.config.host_id != 0)
                .then_some(self.core.config.host_id),
            device_version: profile
                .device_version
                .then(|| self.core.transmit.device.attributes().vendor_part_id),
            user_recv_qp: self.core.user_recv_qp,
            hmem_p2p: profile.hmem_p2p.then_some(true),
        };
        let record = |length| InFlight {
            peer,
            purpose: Purpose::Handshake,
            packet_type: PacketType::Handshake,
            length,
            retransmitted: false,
        };
        let advance = self.post_control(record, |packet| handshake.emit(packet));
        if advance == Advance::Done
            && let Some(active) = self.core.peers.active_mut(peer)
        {
            active.handshake.handshake_posted();
        }
        advance
    }

    pub(crate) fn handshake_arrived(&mut self, peer: PeerId, handshake: &Handshake<'_>) {
        let Some(active) = self.core.peers.active_mut(peer) else { return };
        if active.handshake.handshake_received(handshake) == Learned::Changed {
            tracing::info!(peer = peer.0, "a second HANDSHAKE announces other features");
        }
        let known = active.handshake;
        let reads_from = self.core.reads_from(&known);
        let Some(active) = self.core.peers.active_mut(peer) else { return };
        active.by_connid =
            active.handshake.address_header(&self.core.config.profile) == AddressHeader::Connid;
        active.reads_from = reads_from;
        active.user_queue = user_queue(active.handshake.extras(), handshake);
        let extras = active.handshake.extras().unwrap_or_default();
        active.send_window.learn(extras, active.next_msg_id);
        active.keep_from_going_at_once();
        let awaiting = core::mem::take(&mut active.awaiting_handshake);
        if !self.core.peers.eliciting.is_empty()
            && let Some(slot) = self.core.peers.slot(peer)
        {
            self.core.peers.eliciting.stop(slot);
        }
        for work in awaiting {
            self.core.enqueue(peer, work);
        }
        self.release_held(peer);
    }
}

/// The user queue pair to which a peer wants plain messages sent, if it announced one (feature 7).
fn user_queue(extras: Option<Extras>, handshake: &Handshake<'_>) -> Option<UserRecvQp> {
    let announced = extras.is_some_and(|extras| extras.contains(Extras::USER_RECV_QP));
    handshake.user_recv_qp.filter(|queue| announced && u16::try_from(queue.qpn).is_ok())
}
