//! Which subprotocol sends an operation, and when: work that waits is served peer by peer.
//!
//! ```text
//!   send ── started ─┬─► select ─► eager │ medium │ long-CTS │ long-read │ runting read ─► device
//!                    └─► backlog of its peer ─► serve: each peer in turn, a few packets at a time
//! ```

use efa_device::{QueuePair, Status};
use efa_proto::{MsgId, OpId, Rtm, RtmKind};

use crate::backlog::Backlog;
use crate::completion::{Level, OperationError};
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::ids::PeerId;
use crate::operations::{Operations, SendOn, SendRole};
use crate::payload::Payload;
use crate::select::{self, Inputs, Operation, Subprotocol};
use crate::work::{Advance, Work};

/// Work items of one peer in a row before others are served.
const BURST: usize = 16;
/// Peers to which packets would have waited that are tried again in one call.
const CROWDED_AT_ONCE: usize = 4;

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Starts a message or atomic, which takes the next message id of its peer.
    pub(crate) fn start_ordered(&mut self, mut send: SendOn<Q, B>) -> OpId {
        let peer = send.peer;
        let active = self.core.peers.activate(peer, &self.core.config);
        let pause = active.must_pause();
        let hold = pause || active.must_hold(send.level, &self.core.config);
        let clear = active.is_clear();
        let missing = active.missing(send.level);
        if !hold && missing.is_empty() {
            send.msg_id = active.take_ordered_id().0;
        }
        let id = self.add_send(send);
        if hold {
            self.core.hold(peer, id);
            if pause {
                self.core.await_pause(peer);
            }
        } else if !missing.is_empty() {
            self.fail_send(id, OperationError::PeerLacks { missing });
        } else if !clear || self.advance_send(id).goes_on() {
            self.core.enqueue(peer, Work::Send(id));
        }
        id
    }

    /// Selects the subprotocol of a message and writes its first packets.
    fn begin_send(&mut self, id: OpId) -> Advance {
        let Self { core, sends, .. } = self;
        let Some(send) = sends.get_mut(id) else { return Advance::Done };
        if core.takes_plain(send.peer) {
            return self.send_plain(id);
        }
        let options = core.request_options(send.peer, send.cq_data);
        let rtm = Rtm {
            msg_id: MsgId(send.msg_id),
            tag: send.tag,
            kind: match send.level {
                Level::Inject | Level::Transmit => RtmKind::Eager,
                Level::Delivery => RtmKind::DcEager { send_id: id },
            },
            options,
        };
        let before = send.outstanding;
        let subprotocol = core.select_for(send, &rtm);
        let advance = match subprotocol {
            // One that has completed before its packet is delivered stays an operation until then.
            Subprotocol::Eager if send.level == Level::Transmit => {
                return self.send_single_packet(id, &rtm);
            }
            Subprotocol::Eager => core.send_eager(id, send, &rtm),
            Subprotocol::Medium => core.send_medium(id, send, options),
            Subprotocol::LongCts => core.send_longcts(id, send, options),
            Subprotocol::LongRead => core.send_longread(id, send, options),
            Subprotocol::RuntRead => core.send_runtread(id, send, options),
            // The device alone never transfers a message.
            Subprotocol::Direct => Advance::Done,
        };
        core.note_subprotocol(send, subprotocol, before);
        advance
    }

    /// Posts packets of a send as far as the device allows.
    pub(crate) fn advance_send(&mut self, id: OpId) -> Advance {
        let advance = self.post_send(id);
        match advance {
            Advance::Done => self.end_injected_if_copied(id),
            // Every subprotocol leaves room for its header.
            Advance::TooLong => self.fail_send(id, OperationError::Device(Status::BadLength)),
            Advance::Revoked => self.give_up_response(id),
            Advance::More | Advance::Blocked | Advance::Crowded | Advance::Stopped => {}
        }
        advance
    }

    fn post_send(&mut self, id: OpId) -> Advance {
        let Self { core, sends, .. } = self;
        let Some(send) = sends.get_mut(id) else { return Advance::Done };
        if send.given_up.is_some() {
            return Advance::Done;
        }
        match send.subprotocol {
            None => match send.role {
                SendRole::Message => self.begin_send(id),
                SendRole::Write { remote } => self.begin_write(id, remote),
                SendRole::ReadResponse => core.send_readrsp(id, send),
                SendRole::Atomic { atomic, .. } => self.send_rta(id, atomic),
                SendRole::AtomicResponse => core.send_atomrsp(id, send),
            },
            Some(Subprotocol::Medium) => {
                let options = core.request_options(send.peer, send.cq_data);
                core.send_medium(id, send, options)
            }
            Some(Subprotocol::LongCts) => core.send_ctsdata(id, send),
            Some(Subprotocol::RuntRead) => {
                let options = core.request_options(send.peer, send.cq_data);
                core.send_runtread(id, send, options)
            }
            Some(Subprotocol::Eager | Subprotocol::LongRead | Subprotocol::Direct) => Advance::Done,
        }
    }

    pub(crate) fn serve_peer(&mut self, peer: PeerId) -> Advance {
        for _ in 0..BURST {
            let Some(active) = self.core.peers.active_mut(peer) else { return Advance::Done };
            if active.backoff.is_waiting() {
                return Advance::Done;
            }
            let Some(work) = active.backlog.pop_front() else { return Advance::Done };
            let (advance, work) = match work {
                Work::Send(id) => (self.advance_send(id), work),
                Work::Read(id) => (self.begin_read(id), work),
                Work::Cts(id) => (self.send_cts(peer, id), work),
                Work::Transfer(id) => (self.advance_transfer(id), work),
                Work::Eor { send_id, recv_id } => (self.send_eor(peer, send_id, recv_id), work),
                Work::ReadNack(id) => (self.send_read_nack(peer, id), work),
                Work::RefuseReading { id, error } => {
                    self.refuse_reading(id, error);
                    (Advance::Done, work)
                }
                Work::PeerError { op_id, ref_kind, code } => {
                    (self.send_peer_error(peer, op_id, ref_kind, code), work)
                }
                Work::Handshake => (self.send_handshake(peer), work),
                Work::ElicitHandshake => (self.send_empty_request(peer), work),
                Work::Receipt { send_id, msg_id } => {
                    (self.send_receipt(peer, send_id, msg_id), work)
                }
                Work::Packet { packet, record } => match self.resend(packet, record) {
                    Ok(()) => continue,
                    Err(work) => (Advance::Blocked, work),
                },
            };
            let Some(active) = self.core.peers.active_mut(peer) else { return Advance::Done };
            match advance {
                Advance::Done | Advance::Stopped | Advance::TooLong | Advance::Revoked => {}
                Advance::More => active.backlog.push_back(work),
                Advance::Crowded => {
                    active.backlog.push_front(work);
                    return Advance::Crowded;
                }
                Advance::Blocked => {
                    active.backlog.push_front(work);
                    if !active.backoff.is_waiting() {
                        return Advance::Blocked;
                    }
                    // Only this peer waits. A transfer of it may have been the one to go on.
                    self.resume_transfer();
                    return Advance::Done;
                }
            }
        }
        Advance::More
    }

    /// Continues with the next peer whose send window was used up, if no message and atomic is on its way to it. Writes,
    /// reads, responses and the data of long-CTS messages have no place in the receiver's window, and may go on without end.
    /// One peer at a time: the search is as long as its backlog and the device's send queue.
    #[cold]
    pub(crate) fn end_pause(&mut self) {
        let Some(peer) = self.core.schedule.take_pausing() else { return };
        let Some(active) = self.core.peers.active_mut(peer) else { return };
        let sends = &self.sends;
        let waits = active.backlog.iter().any(|work| match work {
            Work::Packet { record, .. } => record.has_msg_id(),
            // The request of a long-CTS message is posted when its subprotocol is set.
            Work::Send(id) => sends.get(*id).is_some_and(|send| {
                send.role.is_ordered() && send.subprotocol != Some(Subprotocol::LongCts)
            }),
            _ => false,
        });
        if waits || self.core.transmit.is_msg_id_in_flight_to(peer) {
            return self.core.schedule.pause(peer);
        }
        active.send_window.paused(active.next_msg_id);
        // The peer's HANDSHAKE may have come meanwhile.
        active.keep_from_going_at_once();
        self.release_held(peer);
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Selects the subprotocol of a message, which has this header if it fits a packet. Registers its buffer if the peer is
    /// to read it.
    fn select_for(&mut self, send: &mut SendOn<Q, B>, eager: &Rtm<'_>) -> Subprotocol {
        if send.read_nack {
            return Subprotocol::LongCts;
        }
        let (peer, length) = (send.peer, send.length);
        let readable = self.may_be_read(send) && self.make_readable(send);
        let message = Inputs {
            direct: false,
            readable,
            runting: readable && send.level != Level::Delivery && self.may_runt(peer),
            fits: length <= self.left_of_packet(eager.len()),
            medium: length <= self.config.max_medium,
        };
        select::subprotocol(Operation::Message, message)
    }

    /// Notes the subprotocol of a send, if packets of it were posted. One that was blocked is selected
    /// anew: its header may have become shorter, or more be known of the peer.
    pub(crate) fn note_subprotocol(
        &mut self,
        send: &mut SendOn<Q, B>,
        subprotocol: Subprotocol,
        outstanding_before: u32,
    ) {
        if send.outstanding == outstanding_before {
            send.in_packets = send.length;
            return;
        }
        send.subprotocol = Some(subprotocol);
        if let Some(active) = self.peers.active_mut(send.peer) {
            active.handshake.request_posted();
            active.reads_under_way += u32::from(send.is_being_read());
        }
    }

    /// Puts work at the end of the backlog of a live peer.
    #[inline]
    pub(crate) fn enqueue(&mut self, peer: PeerId, work: Work<Q::Packet, B>) {
        let Some(active) = self.peers.active_mut(peer) else {
            return debug_assert!(!work.is_packet(), "its buffer would be lost");
        };
        active.backlog.push_back(work);
        self.schedule.serve_if_due(peer, active);
    }

    /// Puts work before all else in the backlog of a live peer.
    pub(crate) fn enqueue_first(&mut self, peer: PeerId, work: Work<Q::Packet, B>) {
        self.put_back(peer, work, Backlog::push_front);
    }

    /// Puts a packet that failed with RNR behind others of these, before all else in the backlog of a live peer.
    pub(crate) fn enqueue_again(&mut self, peer: PeerId, work: Work<Q::Packet, B>) {
        self.put_back(peer, work, Backlog::push_returned);
    }

    fn put_back(
        &mut self,
        peer: PeerId,
        work: Work<Q::Packet, B>,
        put: impl FnOnce(&mut Backlog<Q::Packet, B>, Work<Q::Packet, B>),
    ) {
        let Some(active) = self.peers.active_mut(peer) else {
            return debug_assert!(!work.is_packet(), "its buffer would be lost");
        };
        put(&mut active.backlog, work);
        self.schedule.serve_if_due(peer, active);
    }

    /// Waits until nothing is in flight to a peer, whose send window is used up.
    #[cold]
    pub(crate) fn await_pause(&mut self, peer: PeerId) {
        let Some(active) = self.peers.active_mut(peer) else { return };
        if !core::mem::replace(&mut active.send_window.waits, true) {
            self.statistics.pauses += 1;
            self.schedule.pause(peer);
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// Serves peers in turn until the device takes no more.
    pub(crate) fn serve(&mut self) {
        while let Some(peer) = self.core_mut().schedule.next_ready() {
            let served = self.matching.ops.serve_peer(peer);
            self.settle();
            if served == Advance::Blocked {
                return self.core_mut().schedule.put_back(peer);
            }
            let core = self.core_mut();
            let Some(active) = core.peers.active_mut(peer) else { continue };
            if served == Advance::Crowded {
                core.schedule.crowd(peer, active);
            } else {
                active.scheduled = false;
                core.schedule.serve_if_due(peer, active);
            }
        }
    }

    /// Has peers served to which packets would have waited in the device's queue, some in each call: a call should take no
    /// longer if there are many.
    #[cold]
    pub(crate) fn serve_crowded(&mut self) {
        let core = self.core_mut();
        for _ in 0..CROWDED_AT_ONCE {
            let Some(peer) = core.schedule.take_crowded() else { return };
            // It may have ended, and come back, since.
            if let Some(active) = core.peers.active_mut(peer)
                && core::mem::take(&mut active.crowded)
            {
                active.scheduled = false;
                core.schedule.serve_if_due(peer, active);
            }
        }
    }
}
