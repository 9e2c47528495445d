//! Written packets: posting them, and handling their completions from the device.
//!
//! ```text
//!   packet ─► device ─┬─► delivered ─────────► its message or operation goes on
//!                     ├─► receiver not ready ─► kept, sent again after a backoff
//!                     └─► failed ─────────────► its message is given up, or its peer is lost
//! ```

use efa_device::{Destination, QueuePair, Status, WorkId};
use efa_proto::OpId;

use crate::completion::{Completion, OperationError};
use crate::core::Core;
use crate::ids::PeerId;
use crate::operations::{Operations, Reached};
use crate::payload::Payload;
use crate::peer::{Active, PeerStatus};
use crate::transmit::{PostFailure, Unposted};
use crate::work::{Advance, InFlight, Purpose, Work};

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Posts a packet that came back, or that waited in the backlog.
    pub(crate) fn resend(
        &mut self,
        packet: Q::Packet,
        record: InFlight<B>,
    ) -> Result<(), Work<Q::Packet, B>> {
        if self.core.transmit.is_full() {
            return Err(Work::Packet { packet, record });
        }
        let (packet_type, length) = (record.packet_type, record.length);
        let retransmitted = record.retransmitted;
        match self.core.transmit.post(packet, self.core.destination(&record), record) {
            Ok(()) => {
                if retransmitted {
                    self.core.statistics.retransmitted += 1;
                } else {
                    self.core.statistics.count_sent(packet_type, length);
                }
                Ok(())
            }
            Err(unposted) => self.not_taken(unposted).map_or(Ok(()), Err),
        }
    }

    /// Handles a packet that the device didn't take; returns it if it is to be posted later.
    #[cold]
    fn not_taken(&mut self, unposted: Unposted<Q::Packet, B>) -> Option<Work<Q::Packet, B>> {
        let Unposted { packet, record, failure } = unposted;
        match failure {
            PostFailure::Blocked => {}
            PostFailure::Lacking(error) => self.core.lack(record.peer, *error),
            PostFailure::Refused(status) => {
                self.core.transmit.recycle(packet);
                self.packet_failed(record, status);
                return None;
            }
        }
        Some(Work::Packet { packet, record })
    }

    /// Posts a written packet, or puts it first in the backlog.
    #[inline]
    pub(crate) fn post_written(&mut self, packet: Q::Packet, record: InFlight<B>) {
        let (packet_type, length) = (record.packet_type, record.length);
        match self.core.transmit.post(packet, self.core.destination(&record), record) {
            Ok(()) => self.core.statistics.count_sent(packet_type, length),
            Err(unposted) => self.keep_written(unposted),
        }
    }

    #[cold]
    pub(crate) fn keep_written(&mut self, unposted: Unposted<Q::Packet, B>) {
        let peer = unposted.record.peer;
        if let Some(work) = self.not_taken(unposted) {
            self.core.enqueue_first(peer, work);
        }
    }

    /// Posts a written packet, or puts it last in the backlog if anything waits there.
    pub(crate) fn post_or_queue_up(&mut self, packet: Q::Packet, record: InFlight<B>) {
        if self.core.peers.active(record.peer).is_some_and(Active::is_clear) {
            self.post_written(packet, record);
        } else {
            self.core.enqueue(record.peer, Work::Packet { packet, record });
        }
    }

    /// Writes and posts a packet without payload.
    pub(crate) fn post_control(
        &mut self,
        record: impl FnOnce(u32) -> InFlight<B>,
        emit: impl FnOnce(&mut [u8]) -> Result<usize, efa_proto::EmitError>,
    ) -> Advance {
        let Ok(mut packet) = self.core.transmit.packet() else { return Advance::Blocked };
        let Ok(length) = emit(packet.as_mut()) else {
            // Control packets are far shorter than the least MTU.
            self.core.transmit.recycle(packet);
            return Advance::Done;
        };
        let record = record(length as u32);
        let (peer, packet_type, length) = (record.peer, record.packet_type, record.length);
        match self.core.transmit.post(packet, self.core.peers.destination(peer), record) {
            Ok(()) => {
                tracing::trace!(peer = peer.0, packet = %packet_type, length, "sent");
                self.core.statistics.count_sent(packet_type, length);
                Advance::Done
            }
            Err(unposted) => self.core.not_posted(unposted),
        }
    }

    /// Handles the device's completion of a packet.
    #[inline]
    pub(crate) fn packet_sent(
        &mut self,
        id: WorkId,
        packet: Q::Packet,
        result: Result<(), Status>,
    ) -> Option<Completion<B>> {
        // Failures have a path of their own, so that nothing of the record has to be in memory
        // here.
        if let Err(status) = result {
            self.packet_not_sent(id, packet, status);
            return None;
        }
        self.core.transmit.recycle(packet);
        self.packet_delivered(id)
    }

    /// Handles a packet that was delivered: it lies in memory of the receiver's device.
    #[inline(always)]
    pub(crate) fn packet_delivered(&mut self, id: WorkId) -> Option<Completion<B>> {
        // Most are segments.
        match self.core.transmit.completed_segment(id) {
            Some((peer, id, msg_id)) => self.segment_delivered(peer, id, msg_id),
            None => self.other_packet_delivered(id),
        }
    }

    #[inline(never)]
    fn other_packet_delivered(&mut self, id: WorkId) -> Option<Completion<B>> {
        let InFlight { peer, purpose, retransmitted, .. } = self.core.transmit.completed(id)?;
        if retransmitted && let Some(active) = self.core.peers.active_mut(peer) {
            active.backoff.delivered();
        }
        match purpose {
            Purpose::Message(message) => self.single_packet_end(peer, message, Ok(())),
            // One pattern for both costs fifteen instructions a message.
            Purpose::Plain { message, .. } => self.single_packet_end(peer, message, Ok(())),
            Purpose::Send { id, msg_id } => self.segment_delivered(peer, id, msg_id),
            Purpose::Handshake => {
                self.core.handshake_delivered(peer);
                None
            }
            Purpose::Control | Purpose::Abandoned => None,
        }
    }

    /// Counts a delivered packet of a send; returns the completion of the send if it ends by that.
    #[inline(always)]
    fn segment_delivered(&mut self, peer: PeerId, id: OpId, msg_id: u32) -> Option<Completion<B>> {
        let send = self.sends.get_mut(id).filter(|send| send.is(peer, msg_id))?;
        send.outstanding -= 1;
        if send.reached == Reached::Nothing {
            send.reached = Reached::Part;
        }
        if send.outstanding == 0 { self.send_end_if_done(id) } else { None }
    }

    /// Handles a packet that the device failed to deliver.
    #[cold]
    pub(crate) fn packet_not_sent(&mut self, id: WorkId, packet: Q::Packet, status: Status) {
        let Some(record) = self.core.transmit.completed(id) else {
            return self.core.transmit.recycle(packet);
        };
        let live = self.core.peers.status_of(record.peer) == PeerStatus::Live;
        if status == Status::ReceiverNotReady && live {
            self.receiver_not_ready(packet, record);
        } else {
            let msg_id = self.core.single_packet_msg_id(&packet, &record);
            self.core.transmit.recycle(packet);
            self.packet_or_message_failed(record, msg_id, status);
        }
    }

    /// Keeps a packet whose receiver was not ready (RNR), to be sent again.
    pub(crate) fn receiver_not_ready(&mut self, packet: Q::Packet, mut record: InFlight<B>) {
        self.core.statistics.receiver_not_ready += 1;
        record.retransmitted = true;
        self.back_off(record.peer);
        self.core.enqueue_again(record.peer, Work::Packet { packet, record });
    }

    /// Begins or extends the backoff of a peer that was not ready.
    pub(crate) fn back_off(&mut self, peer: PeerId) {
        let active = self.core.peers.activate(peer, &self.core.config);
        let begun = active.backoff.not_ready(self.core.now, &self.core.config.backoff);
        if let Some(until) = begun {
            self.core.schedule.back_off_until(peer, until);
            // A transfer of this peer may have been the one to go on.
            self.resume_transfer();
        }
    }

    /// Ends the peer of a packet that will never arrive: a message id, a grant or a HANDSHAKE is
    /// lost with it.
    #[cold]
    pub(crate) fn packet_failed(&mut self, record: InFlight<B>, status: Status) {
        self.core.lose_peer_of(&record, status);
        let InFlight { peer, purpose, .. } = record;
        // A message of one packet has no operation that could end with its peer.
        if let Some(message) = purpose.message() {
            self.single_packet_ended(peer, message, Err(OperationError::Device(status)));
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Handles a packet that the device didn't take, and that is written again when it can be posted. No message goes with
    /// it.
    #[cold]
    #[inline(never)]
    pub(crate) fn not_posted(&mut self, unposted: Unposted<Q::Packet, B>) -> Advance {
        let Unposted { packet, record, failure } = unposted;
        self.transmit.recycle(packet);
        match failure {
            PostFailure::Blocked => Advance::Blocked,
            PostFailure::Lacking(error) => {
                self.lack(record.peer, *error);
                Advance::Blocked
            }
            PostFailure::Refused(status) => {
                self.lose_peer_of(&record, status);
                Advance::Stopped
            }
        }
    }

    /// Ends the peer of a packet that will never arrive.
    fn lose_peer_of(&mut self, record: &InFlight<B>, status: Status) {
        self.statistics.send_errors += 1;
        // A peer that sent one packet and closed is no error (section 2.3).
        if matches!(record.purpose, Purpose::Handshake) && status.is_peer_gone() {
            self.end_peer(record.peer, OperationError::Device(status));
        } else {
            self.lose_peer(record.peer, status);
        }
    }

    #[inline]
    pub(crate) fn destination(&self, record: &InFlight<B>) -> Destination {
        match record.purpose {
            Purpose::Plain { .. } => self.peers.plain_destination(record.peer),
            _ => self.peers.destination(record.peer),
        }
    }
}
