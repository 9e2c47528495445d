//! The loop: device completions first, then other work that is due.
//!
//! ```text
//!   poll ─► device completion ─► packet sent | packet arrived | RDMA done ─► an operation ended? ─► it
//!             │ none, or many handled
//!             └─► refill ─► what is due ─► what waits to be sent, peer by peer
//! ```

use efa_device::{
    AddressHandle, Completion as DeviceCompletion, Qpn, QueuePair, Source, Time, WorkId,
};

use crate::completion::Completion;
use crate::endpoint::{Endpoint, PROGRESS_BUDGET};
use crate::event::Event;
use crate::payload::Payload;

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// Whether something is due at a known time, so that [`progress`](Self::progress) needs the
    /// exact time. Otherwise a recent one will do.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.core().schedule.next_backoff().is_some()
            || self.core().transmit.device.next_event().is_some_and(|at| at > self.core().now)
            || self.next_user_event().is_some()
    }

    /// Whether only an arrival gives a poll something to do, and [`has_no_arrivals`](Self::has_no_arrivals) tells that
    /// there is none: until the next call, polls that would find nothing may be left out. What devices do at
    /// intervals still needs one now and then.
    #[must_use]
    pub fn await_arrivals(&mut self) -> bool {
        let now = self.core().now;
        self.budget == PROGRESS_BUDGET
            && !Q::IN_PLACE
            && self.device_mut().tag_list().is_none()
            && !self.schedule().is_due(now)
            && self.schedule().next_backoff().is_none()
            && self.device_mut().await_arrivals()
    }

    /// Whether nothing has arrived, by a look that costs a fraction of a poll; `false` if that isn't known.
    #[inline(always)]
    #[must_use]
    pub fn has_no_arrivals(&self) -> bool {
        self.core().transmit.device.has_no_arrivals()
    }

    /// Whether the next poll handles what the device has found already, or returns a completion that waits; `true` if
    /// that isn't known.
    #[must_use]
    pub fn has_found(&self) -> bool {
        Q::IN_PLACE || self.has_completions() || self.core().transmit.device.has_found()
    }

    /// When the second queue pair of an endpoint that receives in place has an event.
    fn next_user_event(&self) -> Option<Time> {
        // Other endpoints have no such queue pair.
        if !Q::IN_PLACE {
            return None;
        }
        self.in_place.as_ref()?.user_queue()?.next_event()
    }

    /// The time at which [`progress`](Self::progress) should be called next even if nothing is
    /// started.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        let backoff = self.core().schedule.next_backoff();
        let device = self.core().transmit.device.next_event();
        let user = self.next_user_event();
        // The device doesn't report when it has memory or space again, so it is asked at
        // intervals.
        let again = self.core().now + self.core().config.backoff.first;
        let at = if self.core().schedule.is_blocked() { again } else { self.core().now };
        let send = self.core().schedule.has_ready().then_some(at);
        let starves = self.in_place.as_ref().is_some_and(|in_place| in_place.starves());
        let refill = (self.inbound.is_empty() || starves).then_some(again);
        // Transfers that wait for memory, with none in flight whose end would free some.
        let waiting = !self.matching.ops.waiting_transfers.is_empty();
        let stuck = waiting && self.core().transmit.rdma_in_flight() == 0;
        let memory = stuck.then_some(self.trim_at);
        let pause = self.core().schedule.has_pausing().then_some(again);
        // HANDSHAKEs are elicited again where other things are done at intervals.
        let elicit = self.core().peers.eliciting.next().map(|at| at.max(self.trim_at));
        [backoff, device, user, send, refill, memory, pause, elicit].into_iter().flatten().min()
    }

    /// Moves everything on to `now`, which must not go back, until an operation ends, and returns its
    /// completion: what the device finished is handled, what can be sent is sent. `None`: nothing
    /// ended, and there is nothing to do for now, or a bounded amount of work was done.
    #[inline(always)]
    pub fn poll(&mut self, now: Time) -> Option<Completion<B>> {
        debug_assert!(self.core().ended.is_empty(), "every call settles before it returns");
        // Most calls find what the device finished and nothing else, or nothing.
        if Q::IN_PLACE || self.device_mut().tag_list().is_some() || self.schedule().is_due(now) {
            return self.poll_due(now);
        }
        self.core_mut().now = now;
        // The two frequent events have calls of their own, which take what they need in registers.
        match self.device_mut().poll(now) {
            Some(DeviceCompletion::Send { id, packet, result: Ok(()) }) => {
                self.poll_delivered(id, packet)
            }
            Some(DeviceCompletion::Receive {
                packet,
                length,
                source: Source { address_handle: Some(handle), qpn, gid: None },
                ..
            }) => self.poll_arrived(packet, length, handle, qpn),
            Some(completion) => self.poll_completed(completion),
            None => {
                if self.budget < PROGRESS_BUDGET {
                    self.end_round();
                }
                None
            }
        }
    }

    /// Ends a message of one packet that was delivered. Goes on if the packet was another.
    #[inline(never)]
    fn poll_delivered(&mut self, id: WorkId, packet: Q::Packet) -> Option<Completion<B>> {
        // Nothing is called on the way to the end of a message, so that no registers have to be saved.
        if let Err(packet) = self.core_mut().transmit.recycle_at_once(packet) {
            return self.poll_completed(DeviceCompletion::Send { id, packet, result: Ok(()) });
        }
        self.count_handled();
        match self.core_mut().transmit.completed_message(id) {
            Some((peer, message)) => {
                match self.matching.ops.single_packet_end(peer, message, Ok(())) {
                    // An injected one.
                    None => self.poll_next(),
                    ended => ended,
                }
            }
            None => self.poll_segment_delivered(id),
        }
    }

    /// Goes on behind an injected message: often what comes next is the answer to it.
    #[inline(never)]
    fn poll_next(&mut self) -> Option<Completion<B>> {
        if self.budget == 0 {
            return self.poll_on();
        }
        let now = self.core().now;
        // As `poll` does. One function for both costs an idle call four instructions.
        match self.device_mut().poll(now) {
            Some(DeviceCompletion::Receive {
                packet,
                length,
                source: Source { address_handle: Some(handle), qpn, gid: None },
                ..
            }) => self.poll_arrived(packet, length, handle, qpn),
            Some(completion) => self.poll_completed(completion),
            None => {
                self.end_round();
                None
            }
        }
    }

    /// Goes on with the operation that a delivered packet was a part of.
    #[inline(never)]
    fn poll_segment_delivered(&mut self, id: WorkId) -> Option<Completion<B>> {
        match self.matching.ops.packet_delivered(id) {
            None => self.poll_on(),
            ended => ended,
        }
    }

    /// Handles a packet of a known sender. Goes on unless an operation ended by that.
    #[inline(never)]
    fn poll_arrived(
        &mut self,
        packet: Q::Packet,
        length: usize,
        handle: AddressHandle,
        qpn: Qpn,
    ) -> Option<Completion<B>> {
        self.count_handled();
        let source = Source { address_handle: Some(handle), qpn, gid: None };
        match self.packet_arrived(packet, length, source) {
            None => self.poll_on(),
            ended => ended,
        }
    }

    /// Handles anything that the device finished. Goes on unless an operation ended by that.
    #[inline(never)]
    fn poll_completed(&mut self, completion: DeviceCompletion<Q::Packet>) -> Option<Completion<B>> {
        self.count_handled();
        let ended = self.handle(completion);
        // An operation may end because its peer does.
        self.settle();
        match ended {
            None => self.poll_on(),
            ended => {
                self.serve_waiting();
                ended
            }
        }
    }

    /// Serves peers that wait for a response before the application gets a completion: it may not call again.
    #[inline(always)]
    fn serve_waiting(&mut self) {
        if self.schedule().has_ready() {
            self.follow_up();
        }
    }

    /// A call in which something is due besides what the device finished.
    #[inline(never)]
    fn poll_due(&mut self, now: Time) -> Option<Completion<B>> {
        self.begin(now);
        if let Some(ended) = self.core_mut().schedule.next_completion() {
            return Some(ended);
        }
        // An application that takes one completion at a time, and always finds one, must not
        // starve peers.
        self.follow_up();
        self.poll_on()
    }

    /// Goes on until an operation ends or nothing is left to do.
    #[inline(never)]
    fn poll_on(&mut self) -> Option<Completion<B>> {
        self.settle();
        while !self.schedule().has_completions() && self.budget > 0 {
            let core = self.core_mut();
            let Some(completion) = core.transmit.device.poll(core.now) else { break };
            self.count_handled();
            // Where the caller wants it, and nowhere else: most packets end no operation.
            let ended = self.handle(completion);
            self.settle();
            if ended.is_some() {
                self.serve_waiting();
                return ended;
            }
        }
        if self.schedule().has_completions() {
            self.serve_waiting();
        } else {
            self.end_round();
        }
        self.poll_completion()
    }

    /// Counts a device completion.
    #[inline(always)]
    fn count_handled(&mut self) {
        self.budget -= 1;
        if self.budget == 0 {
            self.core_mut().schedule.at_once();
        }
    }

    /// Moves everything on to `now`, which must not go back, for a bounded amount of work. The
    /// completions wait for [`poll_completion`](Self::poll_completion).
    pub fn progress(&mut self, now: Time) {
        self.begin(now);
        while self.budget > 0 {
            let core = self.core_mut();
            let Some(completion) = core.transmit.device.poll(core.now) else { break };
            self.count_handled();
            let ended = self.handle(completion);
            self.core_mut().complete(ended);
            self.settle();
        }
        self.end_round();
    }

    /// Begins a call of `poll` or `progress`.
    fn begin(&mut self, now: Time) {
        self.core_mut().now = now;
        if Q::IN_PLACE {
            self.poll_user_queue(now, PROGRESS_BUDGET as usize);
            self.settle();
        }
        if self.budget == 0 {
            self.end_round();
        }
    }

    #[inline(always)]
    fn handle(&mut self, completion: DeviceCompletion<Q::Packet>) -> Option<Completion<B>> {
        match completion {
            DeviceCompletion::Receive { packet, length, source, .. } if Q::IN_PLACE => {
                self.arrived_in_place(packet, length, source);
                None
            }
            DeviceCompletion::Receive { packet, length, source, .. }
                if self.device_mut().tag_list().is_some() =>
            {
                self.packet_matched_by_device(packet, length, source);
                None
            }
            DeviceCompletion::Receive { packet, length, source, .. } => {
                self.packet_arrived(packet, length, source)
            }
            DeviceCompletion::Front { packet, length, source } => {
                self.front_arrived(packet, length, source)
            }
            DeviceCompletion::Send { id, packet, result } => {
                self.matching.ops.packet_sent(id, packet, result)
            }
            DeviceCompletion::Rdma { id, result } => self.matching.ops.rdma_done(id, result),
            DeviceCompletion::Written { immediate, length, source, packet } => {
                self.core_mut().written_by_device(source, immediate, length);
                if let Some(packet) = packet {
                    self.consumed(packet);
                }
                None
            }
            DeviceCompletion::Unfilled { packet, status } => self.unfilled(packet, status),
        }
    }

    /// Takes back a receive buffer that was read.
    #[inline(always)]
    pub(crate) fn consumed(&mut self, packet: Q::Packet) {
        self.inbound.consumed(packet);
        if self.inbound.runs_low() {
            self.refill();
        }
    }

    /// Counts a receive buffer that the application keeps.
    pub(crate) fn handed_over(&mut self) {
        self.inbound.handed_over();
        if self.inbound.runs_low() {
            self.core_mut().schedule.at_once();
        }
    }

    /// Ends a round of device completions: does other work that is due.
    #[inline(never)]
    fn end_round(&mut self) {
        if self.budget < PROGRESS_BUDGET {
            let drained = self.budget > 0;
            self.budget = PROGRESS_BUDGET;
            if drained {
                self.inbound.drained();
            }
        }
        if self.core().schedule.is_due(self.core().now) {
            self.follow_up();
        }
    }

    /// Does work that is due besides device completions.
    #[inline(never)]
    fn follow_up(&mut self) {
        if self.inbound.runs_low() {
            self.refill();
        }
        if self.matching.has_tag_list {
            self.matching.take_tag_reports();
            self.settle();
            self.matching.discard_match_hint();
            self.matching.post_tag_commands();
        }
        let core = self.core_mut();
        while let Some(peer) = core.schedule.end_backoff(core.now) {
            if let Some(active) = core.peers.active_mut(peer)
                && active.backoff.expired(core.now)
            {
                core.schedule.serve_if_due(peer, active);
            }
        }
        if self.core().now >= self.trim_at {
            self.trim();
        }
        if self.core().schedule.has_pausing_or_crowded() {
            self.matching.ops.end_pause();
            self.serve_crowded();
        }
        if self.core().schedule.has_ready() {
            self.core_mut().transmit.device.hold();
            self.serve();
            self.core_mut().transmit.device.release();
        }
        let trim_at = self.trim_at;
        self.core_mut().schedule.update_due(trim_at);
        // A tag list is polled in each call, and so is a device that lacked memory. The call after the last of a round
        // begins another.
        if self.matching.has_tag_list || self.inbound.runs_low() || self.budget == 0 {
            self.core_mut().schedule.at_once();
        }
    }

    pub(crate) fn refill(&mut self) {
        let may_refill = !self.matching.applies_back_pressure();
        let core = &mut self.matching.ops.core;
        if may_refill && let Err(error) = self.inbound.refill(&mut core.transmit.device, core.now) {
            core.events.push(Event::DeviceRefused(error));
        }
        if self.inbound.runs_low() {
            core.schedule.at_once();
        }
    }

    fn trim(&mut self) {
        self.trim_at = self.core().now + self.core().config.trim_interval;
        self.matching.ops.resume_transfers();
        if !self.core().peers.eliciting.is_empty() {
            self.core_mut().elicit_again();
        }
        self.inbound.trim(&mut self.matching.ops.core.transmit.device);
        self.core_mut().transmit.trim();
        self.matching.ops.trim();
        self.matching.held.trim();
        if let Some(in_place) = self.in_place.as_deref_mut() {
            in_place.trim();
        }
    }
}
