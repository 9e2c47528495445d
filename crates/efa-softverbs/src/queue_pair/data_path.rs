//! Posting, the steps in which the link makes progress, and completions.
//!
//! A send is copied when it is posted, so the program's memory is read only during the call. A
//! received datagram is copied from a packet buffer to the program's buffer when its completion is
//! made. Programs post thousands of receives in advance; only the [first few](PREPOSTED) have packet
//! buffers in the link, always the same ones, so they stay in the cache.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use efa_device::{
    Completion as LinkCompletion, Destination, DeviceError, RdmaRequest, SendRequest, Source,
    Status, WorkId,
};
use efa_sim::SoftRegion;

use super::outstanding::OutstandingWork;
use super::{
    Delayed, Locked, Packet, QpState, QueuePair, RETRY_FOREVER, RdmaOpcode, RdmaWork, Receive,
    Serial, Transport,
};
use crate::abi::*;
use crate::boundary::{FULL, INVALID, Outcome};
use crate::clock::now;
use crate::completion::Completion;
use crate::completion_queue::CompletionQueue;
use crate::counter::Counted;
use crate::memory;
use crate::message::{report, reported};
use crate::process::lock;
use crate::work_request::SendData;

/// Most completions that one step takes from the link.
const COMPLETIONS_PER_STEP: usize = 16;
/// Steps that the progress thread takes at a time. Delayed datagrams and sockets need several polls,
/// which a program that polls makes in quick succession.
const BACKGROUND_STEPS: usize = 32;
/// Most receives with a packet buffer in the link. It fills fewer between two polls, and gets a new
/// buffer for each that it has filled, so it runs out only when the program's buffers do.
const PREPOSTED: usize = 64;
/// Bytes that a UD receive leaves free in front, where other devices put the GRH.
const UD_HEADROOM: usize = 40;

impl QueuePair {
    // ---- steps -----------------------------------------------------------------------------------

    /// Takes a step, because the program polled a completion queue.
    #[inline]
    pub(crate) fn poll(&self) {
        if !self.polled.load(Ordering::Relaxed) {
            self.polled.store(true, Ordering::Relaxed);
        }
        self.step(&mut lock(&self.locked));
    }

    /// Takes some steps, unless the program polled since the last call; returns whether anything
    /// completed.
    pub(crate) fn progress_unpolled(&self) -> bool {
        if self.polled.swap(false, Ordering::Relaxed) {
            return false;
        }
        // A thread that holds the lock is making progress itself.
        let Ok(mut locked) = self.locked.try_lock() else { return false };
        let mut progressed = false;
        for _ in 0..BACKGROUND_STEPS {
            progressed |= self.step(&mut locked);
        }
        if !progressed {
            self.fall_asleep(&mut locked);
        }
        if progressed {
            self.device().statistics.progressed_unpolled();
        }
        progressed
    }

    /// Lets the link make progress; returns whether anything completed.
    #[inline]
    pub(super) fn step(&self, locked: &mut Locked) -> bool {
        if locked.state < QpState::Rtr {
            return false;
        }
        locked.faults.poll();
        while let Some(request) = locked.faults.due() {
            self.submit_overtaken(locked, request);
        }
        let now = now();
        let mut progressed = false;
        for _ in 0..COMPLETIONS_PER_STEP {
            let Some(link) = &mut locked.link else { break };
            let Some(completion) = link.poll(now) else { break };
            progressed = true;
            match completion {
                LinkCompletion::Send { id, packet, result } => {
                    locked.free_packets.push(packet);
                    self.complete_outstanding(locked, id, result);
                }
                LinkCompletion::Receive { packet, length, source, immediate } => {
                    self.complete_receive(locked, packet, length, (source, immediate));
                }
                // A link makes it if it was asked to, and this one wasn't.
                LinkCompletion::Front { packet, .. }
                // No link that programs use has queue pairs that fail.
                | LinkCompletion::Unfilled { packet, .. } => locked.free_packets.push(packet),
                LinkCompletion::Rdma { id, result } => {
                    // Programs see it as memory that isn't registered for the access.
                    if let Err(status @ Status::NotPermitted) = result {
                        report(&status);
                    }
                    self.complete_outstanding(locked, id, result)
                }
                LinkCompletion::Written { immediate, length, source, packet } => {
                    self.complete_write_from_peer(locked, packet, length, (source, immediate));
                }
            }
        }
        progressed
    }

    // ---- posting ---------------------------------------------------------------------------------

    /// Reserves `count` entries of the send queue; fails with `ENOMEM` if fewer are free.
    pub(crate) fn reserve_sends(&self, locked: &mut Locked, count: usize) -> Outcome<()> {
        if locked.state != QpState::Rts {
            return Err(INVALID);
        }
        if locked.rings.is_some() {
            self.leave_rings(locked)?;
        }
        if locked.send_credits < count {
            let used = locked.sends.len() + self.send_queue.unpolled_sends(self.serial);
            locked.send_credits = (self.cap.max_send_wr as usize).saturating_sub(used);
        }
        locked.send_credits = locked.send_credits.checked_sub(count).ok_or(FULL)?;
        Ok(())
    }

    /// Fails with the error number if the link lacks something of the system to send to this destination.
    #[inline]
    pub(crate) fn prepare(&self, locked: &mut Locked, to: Destination) -> Outcome<()> {
        if locked.prepared == Some(to) {
            return Ok(());
        }
        let Some(link) = &mut locked.link else { return Ok(()) };
        match link.prepare(to) {
            Err(error) if error.shortage().is_some() => Err(reported(error)),
            // Any other error is that of the send.
            _ => {
                locked.prepared = Some(to);
                Ok(())
            }
        }
    }

    /// Posts a send; an entry of the send queue must be reserved.
    #[inline]
    pub(crate) fn post_send(
        &self,
        locked: &mut Locked,
        wr_id: u64,
        destination: Destination,
        immediate: Option<u32>,
        data: &SendData,
    ) {
        let mtu = self.device().settings.mtu;
        let mut packet = locked.free_packets.pop().unwrap_or_else(|| vec![0; mtu].into());
        match data.gather(locked, self.device().link.keys(), &mut packet) {
            Ok(length) => {
                self.device().statistics.sent(length);
                let id = locked.sends.insert(wr_id, IBV_WC_SEND);
                let request = SendRequest { id, packet, length, destination, immediate };
                if locked.faults.reorders() {
                    locked.faults.delay(Delayed::Send(request));
                } else {
                    self.submit(locked, request);
                }
            }
            Err(status) => {
                locked.free_packets.push(packet);
                self.complete_send(wr_id, IBV_WC_SEND, Err(status));
            }
        }
    }

    /// Hands a send to the link.
    #[inline]
    fn submit(&self, locked: &mut Locked, request: Packet) {
        let id = request.id;
        let datagram = &request.packet[..request.length];
        let not_ready = locked.rnr_retry < RETRY_FOREVER && locked.faults.draw_not_ready(datagram);
        let Some(link) = &mut locked.link else { return };
        let posted = if not_ready { link.bounce(request) } else { link.post_send(request) };
        if let Err(refused) = posted {
            locked.free_packets.push(refused.packet);
            self.complete_outstanding(locked, id, Err(status_of(&refused.error)));
        }
    }

    /// Hands an RDMA operation to the link.
    fn submit_rdma(
        &self,
        locked: &mut Locked,
        opcode: RdmaOpcode,
        request: RdmaRequest<SoftRegion>,
    ) {
        let id = request.id;
        let Some(link) = &mut locked.link else { return };
        let posted = match opcode {
            RdmaOpcode::Read => link.post_read(request),
            RdmaOpcode::Write { immediate } => link.post_write(request, immediate),
        };
        if let Err(error) = posted {
            self.complete_outstanding(locked, id, Err(status_of(&error)));
        }
    }

    #[cold]
    fn submit_overtaken(&self, locked: &mut Locked, request: Delayed) {
        match request {
            Delayed::Send(request) => self.submit(locked, request),
            Delayed::Rdma(opcode, request) => self.submit_rdma(locked, opcode, request),
        }
    }

    /// Submits the requests that are delayed to be overtaken.
    pub(super) fn submit_delayed(&self, locked: &mut Locked) {
        let delayed: Vec<_> = locked.faults.take_all().collect();
        delayed.into_iter().for_each(|request| self.submit_overtaken(locked, request));
    }

    /// Posts an RDMA operation; an entry of the send queue must be reserved.
    pub(crate) fn post_rdma(&self, locked: &mut Locked, work: RdmaWork) {
        let RdmaWork { wr_id, opcode, destination, remote, local } = work;
        let completion_opcode = opcode.completion_opcode();
        if locked.link.is_none() {
            return self.complete_send(wr_id, completion_opcode, Err(Status::Flushed));
        }
        let local = match local {
            Ok(local) => local,
            Err(status) => return self.complete_send(wr_id, completion_opcode, Err(status)),
        };
        let length = local.length as u64;
        let id = locked.sends.insert(wr_id, completion_opcode);
        let request = RdmaRequest { id, local, remote, destination };
        match opcode {
            RdmaOpcode::Read => self.device().statistics.read(length),
            RdmaOpcode::Write { .. } => self.device().statistics.wrote(length),
        }
        if locked.faults.reorders() {
            locked.faults.delay(Delayed::Rdma(opcode, request));
        } else {
            self.submit_rdma(locked, opcode, request);
        }
    }

    /// Posts a receive whose key was checked; fails with `ENOMEM` if the receive queue is full.
    #[inline]
    pub(crate) fn post_receive(&self, locked: &mut Locked, receive: Receive) -> Outcome<()> {
        if matches!(locked.state, QpState::Reset | QpState::Error) {
            return Err(INVALID);
        }
        self.capacity(&receive).ok_or(INVALID)?;
        if locked.rings.is_some() {
            self.leave_rings(locked)?;
        }
        if locked.receive_credits == 0 {
            let unpolled = self.receive_queue.unpolled_receives(self.serial);
            let used = locked.receives.len() + unpolled;
            locked.receive_credits = (self.cap.max_recv_wr as usize).saturating_sub(used);
        }
        locked.receive_credits = locked.receive_credits.checked_sub(1).ok_or(FULL)?;
        self.enqueue_receive(locked, receive);
        Ok(())
    }

    /// Appends a receive to the queue.
    #[inline]
    pub(super) fn enqueue_receive(&self, locked: &mut Locked, receive: Receive) {
        locked.receives.push_back(receive);
        self.prepost(locked);
    }

    /// Posts packet buffers to the link for the program's next receives.
    #[inline]
    fn prepost(&self, locked: &mut Locked) {
        let Some(link) = &mut locked.link else { return };
        while locked.preposted < PREPOSTED
            && let Some(capacity) =
                locked.receives.get(locked.preposted).and_then(|next| self.capacity(next))
        {
            // Exactly as long as the program's buffer, so that the link refuses what is longer.
            let free = locked.free_receive_packets.pop().filter(|free| free.len() == capacity);
            let packet = free.unwrap_or_else(|| vec![0; capacity].into());
            if let Err(refused) = link.post_receive(packet) {
                // Unexpected, as the link's queue is as long as ours. The next completion retries.
                locked.free_receive_packets.push(refused.packet);
                return;
            }
            locked.preposted += 1;
        }
    }

    /// The longest datagram in bytes that a receive can take; `None` if it is shorter than the
    /// headroom.
    pub(super) fn capacity(&self, receive: &Receive) -> Option<usize> {
        let capacity = receive.length().checked_sub(self.headroom())?;
        Some(capacity.min(self.device().settings.mtu))
    }

    fn headroom(&self) -> usize {
        match self.transport {
            Transport::Srd => 0,
            Transport::Ud => UD_HEADROOM,
        }
    }

    // ---- completions -----------------------------------------------------------------------------

    /// Queues a completion, where the program looks for it.
    #[inline]
    fn push(&self, queue: &CompletionQueue, completion: Completion) {
        if self.uses_rings.load(Ordering::Relaxed) {
            queue.push_to_ring(completion);
        } else {
            queue.push(completion);
        }
    }

    fn id(&self) -> (u32, Serial) {
        (self.number(), self.serial)
    }

    /// Completes a send, read or write.
    #[inline]
    pub(super) fn complete_send(&self, wr_id: u64, opcode: c_int, result: Result<(), Status>) {
        let result = result.or_else(|status| self.fail_send(opcode, status));
        let counted = match opcode {
            IBV_WC_RDMA_READ => Counted::Read,
            IBV_WC_RDMA_WRITE => Counted::Write,
            _ => Counted::Send,
        };
        self.count(counted, result.is_ok());
        self.push(&self.send_queue, Completion::without_data(self.id(), wr_id, opcode, result));
    }

    /// Counts a failure. The program isn't told of one at the receiver if the transport is unreliable.
    #[cold]
    fn fail_send(&self, opcode: c_int, status: Status) -> Result<(), Status> {
        self.device().statistics.completed(opcode, Err(status));
        let is_local = matches!(
            status,
            Status::Flushed
                | Status::QueuePairInternal
                | Status::UnsupportedOperation
                | Status::BadAddressHandle
                | Status::BadLocalKey
                | Status::BadLength
        );
        if self.transport == Transport::Ud && !is_local { Ok(()) } else { Err(status) }
    }

    #[inline]
    fn complete_outstanding(&self, locked: &mut Locked, id: WorkId, result: Result<(), Status>) {
        if let Some(OutstandingWork { wr_id, opcode }) = locked.sends.remove(id) {
            self.complete_send(wr_id, opcode, result);
        }
    }

    /// Takes the receive that the link filled, or used, and posts packet buffers for others.
    #[inline]
    fn take_receive(&self, locked: &mut Locked, packet: Box<[u8]>) -> Option<Receive> {
        let receive = locked.receives.pop_front()?;
        locked.free_receive_packets.push(packet);
        locked.preposted -= 1;
        self.prepost(locked);
        Some(receive)
    }

    #[inline]
    fn complete_receive(
        &self,
        locked: &mut Locked,
        packet: Box<[u8]>,
        length: usize,
        (source, immediate): (Source, Option<u32>),
    ) {
        let Some(&Receive { wr_id, entries }) = locked.receives.front() else { return };
        let (keys, headroom) = (self.device().link.keys(), self.headroom());
        let copied = memory::scatter(locked, keys, &entries, headroom, &packet[..length]);
        self.take_receive(locked, packet);
        if copied.is_none() {
            // The program has deregistered a buffer.
            return self.fail_receive(wr_id, Status::BadLocalKey);
        }
        self.device().statistics.received(length);
        self.count(Counted::Receive, true);
        let length = length + headroom;
        self.push(
            &self.receive_queue,
            Completion::received(self.id(), wr_id, length, source, immediate),
        );
    }

    /// Completes a peer's write with immediate data. It uses a receive, whose buffer stays as it is,
    /// unless the link returns no packet buffer for it.
    #[cold]
    fn complete_write_from_peer(
        &self,
        locked: &mut Locked,
        packet: Option<Box<[u8]>>,
        length: u64,
        (source, immediate): (Source, u32),
    ) {
        let wr_id = match packet.map(|packet| self.take_receive(locked, packet)) {
            None => None,
            Some(Some(receive)) => Some(receive.wr_id),
            Some(None) => return,
        };
        self.device().statistics.received(0);
        self.push(
            &self.receive_queue,
            Completion::written(self.id(), wr_id, length, source, immediate),
        );
    }

    /// Completes a receive without a message.
    #[cold]
    pub(super) fn fail_receive(&self, wr_id: u64, status: Status) {
        self.count(Counted::Receive, false);
        let completion = Completion::without_data(self.id(), wr_id, IBV_WC_RECV, Err(status));
        self.push(&self.receive_queue, completion);
    }

    /// Ends everything that is outstanding, without completions.
    pub(super) fn abandon(&self, locked: &mut Locked) {
        locked.faults.take_all().for_each(drop);
        for OutstandingWork { opcode, .. } in locked.sends.drain() {
            self.device().statistics.completed(opcode, Err(Status::Flushed));
        }
        locked.preposted = 0;
        locked.receives.clear();
    }

    /// Completes everything that is outstanding as flushed.
    pub(super) fn flush(&self, locked: &mut Locked) {
        locked.faults.take_all().for_each(drop);
        for OutstandingWork { wr_id, opcode } in locked.sends.drain() {
            self.complete_send(wr_id, opcode, Err(Status::Flushed));
        }
        locked.preposted = 0;
        for receive in locked.receives.drain(..) {
            self.fail_receive(receive.wr_id, Status::Flushed);
        }
    }
}

/// The status with which a request completes that the link refused. For errors without a status of
/// their own, a message has the reason.
fn status_of(error: &DeviceError) -> Status {
    match error {
        DeviceError::BadAddressHandle { .. } => Status::BadAddressHandle,
        DeviceError::TooLong { .. } => Status::BadLength,
        DeviceError::OutOfRegion { .. } => Status::BadLocalKey,
        DeviceError::Unsupported { .. } => Status::UnsupportedOperation,
        other => {
            report(&format_args!("the link refused a request: {other}"));
            Status::QueuePairInternal
        }
    }
}

#[cfg(test)]
mod tests {
    use efa_sim::faults::{Draws, FaultOptions, Faults};

    use super::*;
    use crate::c::TestHost;
    use crate::c::domain::ibv_dealloc_pd;
    use crate::c::queue_pair::ibv_destroy_qp;

    /// One test, as a process reads its settings once.
    #[test]
    fn queue_pair_without_polls_progresses_and_leaves_nothing_when_destroyed() {
        let host = TestHost::new();
        progress_thread_submits_delayed_sends_at_once(&host);
        destroyed_queue_pair_frees_domain_and_number_although_referenced(&host);
    }

    /// Delays are counted in polls. One look of the progress thread is worth as many polls as the
    /// longest delay, or a send of a program that doesn't poll would take half a second.
    fn progress_thread_submits_delayed_sends_at_once(host: &TestHost) {
        let (_, qp, queue_pair) = host.create_queue_pair();
        {
            let mut locked = lock(&queue_pair.locked);
            // Not by `ibv_modify_qp`, after which the progress thread would look at it.
            locked.state = QpState::Rts;
            let reorder = FaultOptions::NONE.with(|faults| faults.reorder = Some(1));
            locked.faults = Faults::new(reorder, &Draws::default());
            for wr_id in 0..16 {
                let to = Destination::default();
                queue_pair.post_send(&mut locked, wr_id, to, None, &SendData::EMPTY);
            }
        }
        queue_pair.progress_unpolled();
        assert_eq!(lock(&queue_pair.locked).faults.take_all().count(), 0);
        assert_eq!(ibv_destroy_qp(qp), 0);
    }

    /// The progress thread may hold a queue pair when the program destroys it and then deallocates its
    /// domain, as libfabric does.
    fn destroyed_queue_pair_frees_domain_and_number_although_referenced(host: &TestHost) {
        let (domain, qp, referenced) = host.create_queue_pair();
        assert_eq!(ibv_dealloc_pd(domain), libc::EBUSY);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_dealloc_pd(domain), 0);
        assert!(!referenced.progress_unpolled(), "nothing is left to do");
        assert!(lock(&referenced.locked).kept_number.is_none());
    }
}
