//! The loop: what the device finished, and what is due besides.
//!
//! ```text
//!   poll ─► device completion ─► packet sent | packet arrived | RDMA done ─► an operation ended? ─► it
//!             │ none, or many handled
//!             └─► refill ─► what is due ─► what waits to be sent, peer by peer
//! ```

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use efa_device::{Completion as DeviceCompletion, QueuePair, Time};

use crate::completion::Completion;
use crate::endpoint::Endpoint;
use crate::event::Event;
use crate::payload::Payload;
use crate::peer::PeerId;
use crate::transmit::{Advance, Work};

/// Peers that have something to send.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    ready: VecDeque<PeerId>,
    /// The device took no more when they were served last.
    blocked: bool,
    backing_off: BinaryHeap<Reverse<(Time, PeerId)>>,
    /// When something is to be done whatever the device has to tell.
    pub(crate) due: Time,
    /// Peers whose messages wait until nothing is in flight to them.
    pub(crate) pausing: Vec<PeerId>,
}

impl Schedule {
    /// A peer is to be left alone until then.
    pub(crate) fn leave_alone(&mut self, peer: PeerId, until: Time) {
        self.backing_off.push(Reverse((until, peer)));
        self.due = self.due.min(until);
    }

    /// Something is due at this time, or when the first peer has been left alone for long enough.
    fn set_due(&mut self, at: Time) {
        let backoff = self.backing_off.peek().map(|Reverse((until, _))| *until);
        self.due = backoff.map_or(at, |until| until.min(at));
    }
}

/// Device completions that are handled at most before what is due besides has its turn.
pub(crate) const PROGRESS_BUDGET: u32 = 512;
/// Packets of one peer in a row before others have their turn.
const BURST: usize = 16;

/// What came of asking the device.
enum Step<B> {
    /// It has nothing to tell.
    Idle,
    /// Something was handled, and an operation may have ended by it. Others that did wait in
    /// [`Endpoint::completions`].
    Handled(Option<Completion<B>>),
}

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// Whether something is due at a certain time, so that [`progress`](Self::progress) must be told
    /// the right one. Otherwise one of not long ago will do.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        !self.schedule.backing_off.is_empty() || self.transmit.device.next_event().is_some()
    }

    /// When [`progress`](Self::progress) should be called next although nothing was started.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        let backoff = self.schedule.backing_off.peek().map(|Reverse((at, _))| *at);
        let device = self.transmit.device.next_event();
        let user = self.in_place.as_ref().and_then(|in_place| in_place.next_event());
        // The device doesn't tell when it has memory or room again, so it is asked now and then.
        let again = self.now + self.config.backoff.first;
        let send = (!self.schedule.ready.is_empty()).then_some(if self.schedule.blocked {
            again
        } else {
            self.now
        });
        let refill = (self.inbound.posted() == 0).then_some(again);
        // Transfers that wait for memory, while none is under way whose end would give some back.
        let waiting = !self.operations.waiting_transfers.is_empty();
        let stuck = waiting && self.transmit.rdma_in_flight() == 0;
        let memory = stuck.then_some(self.trim_at);
        let pause = (!self.schedule.pausing.is_empty()).then_some(again);
        [backoff, device, user, send, refill, memory, pause].into_iter().flatten().min()
    }

    /// Moves everything on to `now`, which must not go back, until an operation ends, and tells how it
    /// did: what the device finished is taken, what can be sent is sent. `None`: nothing ended, and
    /// there is nothing to do for now, or a bounded amount of work was done.
    #[inline]
    pub fn poll(&mut self, now: Time) -> Option<Completion<B>> {
        if !self.begin(now) {
            return self.completions.pop_front();
        }
        // An application that takes one completion at a time, and always finds one, must not keep
        // others from being served.
        if !self.schedule.ready.is_empty() || now >= self.schedule.due {
            self.follow_up();
        }
        // Most calls end here, or find nothing.
        match self.step() {
            Step::Handled(None) => self.poll_on(),
            Step::Handled(ended) => ended,
            Step::Idle => {
                if self.end_turn() {
                    return self.poll_completion();
                }
                None
            }
        }
    }

    /// Goes on until an operation has ended.
    #[inline(never)]
    fn poll_on(&mut self) -> Option<Completion<B>> {
        while self.completions.is_empty() && self.turn > 0 {
            match self.step() {
                Step::Handled(None) => {}
                Step::Handled(ended) => return ended,
                Step::Idle => break,
            }
        }
        if self.completions.is_empty() {
            self.end_turn();
        } else if !self.schedule.ready.is_empty() {
            // A peer that waits for an answer needn't wait for the application's next call as well.
            self.follow_up();
        }
        self.poll_completion()
    }

    /// Moves everything on to `now`, which must not go back, for a bounded amount of work. The
    /// completions wait for [`poll_completion`](Self::poll_completion).
    pub fn progress(&mut self, now: Time) {
        self.begin(now);
        while self.turn > 0
            && let Step::Handled(ended) = self.step()
        {
            self.completions.extend(ended);
        }
        self.end_turn();
    }

    /// Begins a call; tells whether no completion waits.
    #[inline(always)]
    fn begin(&mut self, now: Time) -> bool {
        self.now = now;
        if Q::IN_PLACE {
            self.poll_user_queue(now, PROGRESS_BUDGET as usize);
        }
        if self.turn == 0 {
            self.end_turn();
        }
        self.completions.is_empty()
    }

    /// Handles one thing that the device finished.
    #[inline(always)]
    fn step(&mut self) -> Step<B> {
        let Some(completion) = self.transmit.device.poll(self.now) else { return Step::Idle };
        self.turn -= 1;
        Step::Handled(match completion {
            DeviceCompletion::Receive { packet, length, source, .. } if Q::IN_PLACE => {
                self.arrived_in_place(packet, length, source);
                None
            }
            DeviceCompletion::Receive { packet, length, source, .. } => {
                self.packet_arrived(packet, length, source)
            }
            DeviceCompletion::Send { id, packet, result } => self.packet_sent(id, packet, result),
            DeviceCompletion::Rdma { id, result } => {
                self.rdma_done(id, result);
                None
            }
            DeviceCompletion::Written { immediate, length, source, packet } => {
                self.written_by_device(source, immediate, length);
                if let Some(packet) = packet {
                    self.consumed(packet);
                }
                None
            }
            DeviceCompletion::Tagged { packet, length, source, receive } => {
                self.tagged_packet_arrived(packet, length, source, receive);
                None
            }
            DeviceCompletion::TagCommand { id, succeeded, sync_required } => {
                self.tag_command_done(id, succeeded, sync_required);
                None
            }
        })
    }

    /// A receive buffer was used and read.
    #[inline(always)]
    pub(crate) fn consumed(&mut self, packet: Q::Packet) {
        self.inbound.consumed(packet);
        if self.inbound.runs_low() {
            self.refill();
        }
    }

    /// The device has nothing more to tell, or others are to have their turn. Tells whether there was
    /// something to do.
    #[inline(always)]
    fn end_turn(&mut self) -> bool {
        if self.turn < PROGRESS_BUDGET {
            let drained = self.turn > 0;
            self.turn = PROGRESS_BUDGET;
            if drained {
                self.inbound.drained();
            }
        }
        // One comparison each for a call that finds nothing to do.
        let has_work = self.inbound.runs_low()
            || !self.schedule.ready.is_empty()
            || self.matching.has_tag_list
            || self.now >= self.schedule.due;
        if has_work {
            self.follow_up();
        }
        has_work
    }

    /// Does what is due besides the device's completions.
    #[inline(never)]
    fn follow_up(&mut self) {
        if self.inbound.runs_low() {
            self.refill();
        }
        if self.matching.has_tag_list {
            self.post_tag_commands();
        }
        if self.now >= self.schedule.due {
            self.end_backoffs();
            if self.now >= self.trim_at {
                self.trim();
            }
            self.schedule.set_due(self.trim_at);
            if !self.schedule.pausing.is_empty() {
                self.end_pauses();
            }
        }
        if !self.schedule.ready.is_empty() {
            self.transmit.device.hold();
            self.serve();
            self.transmit.device.release();
        }
    }

    pub(crate) fn refill(&mut self) {
        if self.holds_back() {
            return;
        }
        if let Err(error) = self.inbound.refill(&mut self.transmit.device, self.now) {
            self.events.push(Event::DeviceRefused(error));
        }
    }

    fn trim(&mut self) {
        self.trim_at = self.now + self.config.trim_interval;
        self.resume_transfers();
        self.inbound.trim();
        self.transmit.trim();
        self.matching.held.trim();
        if let Some(in_place) = self.in_place.as_deref_mut() {
            in_place.trim();
        }
    }

    /// Puts work at the end of what a live peer is to be sent.
    pub(crate) fn enqueue(&mut self, peer: PeerId, work: Work<Q::Packet, B>) {
        let Some(active) = self.peers.active_mut(peer) else { return };
        active.backlog.push_back(work);
        self.schedule(peer);
    }

    /// Puts work before everything else that a live peer is to be sent.
    pub(crate) fn enqueue_first(&mut self, peer: PeerId, work: Work<Q::Packet, B>) {
        let Some(active) = self.peers.active_mut(peer) else { return };
        active.backlog.push_front(work);
        self.schedule(peer);
    }

    fn schedule(&mut self, peer: PeerId) {
        let Some(active) = self.peers.active_mut(peer) else { return };
        if !active.scheduled && !active.backoff.is_waiting() && !active.backlog.is_empty() {
            active.scheduled = true;
            self.schedule.ready.push_back(peer);
        }
    }

    fn end_backoffs(&mut self) {
        while let Some(Reverse((at, peer))) = self.schedule.backing_off.peek().copied() {
            if at > self.now {
                break;
            }
            self.schedule.backing_off.pop();
            if let Some(active) = self.peers.active_mut(peer)
                && active.backoff.expired(self.now)
            {
                self.schedule(peer);
            }
        }
    }

    /// Sends what waits, peer by peer, until the device takes no more.
    fn serve(&mut self) {
        while let Some(peer) = self.schedule.ready.pop_front() {
            let advance = self.serve_peer(peer);
            self.schedule.blocked = advance == Advance::Blocked;
            if self.schedule.blocked {
                self.schedule.ready.push_front(peer);
                return;
            }
            if let Some(active) = self.peers.active_mut(peer) {
                active.scheduled = false;
            }
            self.schedule(peer);
        }
    }

    fn serve_peer(&mut self, peer: PeerId) -> Advance {
        for _ in 0..BURST {
            let Some(active) = self.peers.active_mut(peer) else { return Advance::Done };
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
                Work::PeerError { op_id, ref_kind, code } => {
                    (self.send_peer_error(peer, op_id, ref_kind, code), work)
                }
                Work::Handshake => (self.send_handshake(peer), work),
                Work::Provoke => (self.send_provocation(peer), work),
                Work::Receipt { send_id, msg_id } => {
                    (self.send_receipt(peer, send_id, msg_id), work)
                }
                Work::Packet { packet, record } => match self.resend(packet, record) {
                    Ok(()) => continue,
                    Err(work) => (Advance::Blocked, work),
                },
            };
            let Some(active) = self.peers.active_mut(peer) else { return Advance::Done };
            match advance {
                Advance::Done => {}
                Advance::More => active.backlog.push_back(work),
                Advance::Blocked => {
                    active.backlog.push_front(work);
                    return Advance::Blocked;
                }
            }
        }
        Advance::More
    }
}
