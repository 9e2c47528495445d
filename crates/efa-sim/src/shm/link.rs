//! The shm link of a queue pair: everything that happens, happens in a poll.
//!
//! ```text
//!  progress ─► next watched ring: take packets into posted buffers
//!    ├─► doorbell rung? attach and watch who rang
//!    ├─► next peer with sends in flight: take acknowledgements
//!    ├─► first RDMA operation: copy a piece, or see whether its target has written one
//!    ├─► operations that the kernel doesn't copy: put requests into rings
//!    └─► once a second: free what dead processes left
//! ```

mod keys;
mod rdma;
mod receiving;
mod sending;

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use efa_device::{
    Armed, CopySource, CopyTarget, Destination, DeviceError, Qpn, QueuePairAddress,
    QueuePairOptions, RdmaRequest, SendRequest, Status, Time,
};
use slab::Slab;

pub(super) use self::keys::Keys;
use self::sending::Sends;
use super::incoming::Incoming;
use super::mailbox::Mailbox;
use super::memory::HostMemory;
use super::operation::Operation;
use super::outgoing::{Local, Outgoing, Polled};
use super::requests::Requests;
use super::ring::Awaited;
use super::sharing::Ticket;
use super::wake::{Fifo, Sleeper};
use super::{ShmDevice, ShmOptions};
use crate::faults::{FaultOptions, Faults};
use crate::link::{
    Direction, KeptNumber, Link, LinkQueuePair, Packet, Path, QueueState, Settings, granted,
};
use crate::record::QueuePairId;
use crate::region::SoftRegion;

/// How often entries of dead senders are looked for. A queue pair that sleeps wakes up as often, which
/// bounds what a neighbour can delay.
pub(super) const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How often a queue pair that sleeps looks at packets for which no buffer is posted.
const LOOK_FOR_BUFFERS: Duration = Duration::from_millis(1);

/// A queue pair of a [`ShmDevice`].
///
/// Dropping it rejects the packets that others have sent to it, so that their sends complete, and
/// removes its file. Its own packets that are in rings are still delivered.
pub type ShmQueuePair = LinkQueuePair<ShmLink>;

/// A request that others may overtake.
#[derive(Debug)]
enum Delayed {
    Send(SendRequest<Packet>),
    Rdma(Operation),
}

/// Rings to and from other queue pairs of the host.
#[derive(Debug)]
pub struct ShmLink {
    memory: Arc<HostMemory>,
    me: QueuePairId,
    next_sweep: Time,

    /// By entry of the mailbox, up to the last that had a ring.
    incoming: Vec<Option<Incoming>>,
    /// Entries whose rings are polled in turn; all others ring the doorbell.
    watched: Vec<usize>,
    next_watched: usize,
    /// What looks look at, of the ring that was the only one that is watched when they were prepared.
    awaited: Option<Awaited>,
    /// Whether the last poll ended after a ring in which packets were. The next one doesn't.
    returns_early: bool,
    /// The ring in which the rest of datagrams is [left](Incoming::take_left).
    left: Option<usize>,

    outgoing: Slab<Outgoing>,
    by_number: Keys,
    /// Keys of those with sends in flight.
    active: Vec<usize>,
    next_active: usize,
    local: Arc<Local>,
    /// RDMA operations that the kernel copies, which count as sends.
    operations: VecDeque<Operation>,
    /// Of the last request to a target to write a part.
    asked: Ticket,
    /// Those that their targets carry out.
    requests: Requests,
    /// Faults to be injected into sends, if any.
    faults: Option<Box<Faults<Delayed>>>,

    /// Whether the ring of a sender could not be attached, for want of descriptors or memory.
    lacks_room: bool,
    /// Of a waitable queue pair.
    sleeper: Option<Sleeper>,

    /// Last, so that rings are left before the file goes.
    mailbox: Mailbox,
}

/// Creates a queue pair, with the number of one that was retired if it is `again`.
pub(super) fn create(
    device: &ShmDevice,
    settings: &ShmOptions,
    options: QueuePairOptions,
    again: Option<&KeptNumber>,
) -> Result<ShmQueuePair, DeviceError> {
    let attributes = granted(&device.attributes, &options)?;
    let fifo = options.waitable.then(|| Fifo::create(&device.directory)).transpose()?;
    let nonce = fifo.as_ref().map_or(0, Fifo::nonce);
    let (directory, peers) = (&device.directory, settings.max_peers);
    let again = again.map(KeptNumber::by).transpose()?;
    let mailbox = Mailbox::create(directory, peers, attributes.mtu, nonce, again.as_deref())?;
    let local = Arc::new(Local {
        directory: Arc::clone(&device.directory),
        sender: mailbox.as_sender(),
        mtu: attributes.mtu,
        idle_slots: options
            .idle_packets
            .min(settings.ring_slots)
            .max(1)
            .checked_next_power_of_two()
            .unwrap_or(settings.ring_slots),
        ring_slots: settings.ring_slots,
        rnr_retry: options.rnr_retry,
        probe_after: settings.probe_after,
        attach_timeout: settings.attach_timeout,
        sleeps: options.waitable,
    });
    let (gid, qpn) = (device.directory.gid(), mailbox.qpn());
    device.memory.add_queue_pair(qpn)?;
    let (faults, draws) = (settings.faults, &device.draws);
    let link = ShmLink {
        memory: Arc::clone(&device.memory),
        me: QueuePairId { gid, qpn },
        next_sweep: Time::ZERO,
        incoming: Vec::new(),
        watched: Vec::new(),
        next_watched: 0,
        awaited: None,
        returns_early: false,
        left: None,
        outgoing: Slab::new(),
        by_number: Keys::default(),
        active: Vec::new(),
        next_active: 0,
        local,
        operations: VecDeque::new(),
        asked: Ticket::default(),
        requests: Requests::default(),
        faults: (faults != FaultOptions::NONE).then(|| Box::new(Faults::new(faults, draws))),
        lacks_room: false,
        sleeper: fifo.map(Sleeper::new),
        mailbox,
    };
    let settings = Settings {
        attributes,
        keys: device.keys().clone(),
        book: Arc::clone(&device.book),
        capture: settings.capture.clone(),
        rnr_delay: settings.rnr_delay,
        rnr_at_start: settings.rnr_at_start,
        report_unknown_gid: settings.report_unknown_gid,
        now: options.now,
    };
    let address = QueuePairAddress { gid, qpn, qkey: options.qkey };
    Ok(LinkQueuePair::new(QueueState::new(settings, address), link))
}

impl LinkQueuePair<ShmLink> {
    /// Ends the queue pair as a device ends one that has failed: nobody reaches it any more, and no
    /// other queue pair gets its number before the result is dropped.
    pub fn retire(self) -> KeptNumber {
        let name = self.link.mailbox.name();
        KeptNumber::new(self.link.mailbox.qpn(), name)
    }

    /// Sets how often the device tries again when a receiver is not ready; 7 means without end. It
    /// holds for receivers that nothing was sent to yet.
    pub fn set_rnr_retry(&mut self, rnr_retry: u8) {
        let link = &mut self.link;
        link.local = Arc::new(Local { rnr_retry, ..(*link.local).clone() });
    }
}

impl ShmLink {
    fn peer(&self, qpn: Qpn) -> QueuePairId {
        QueuePairId { gid: self.me.gid, qpn }
    }

    /// Looks at everything that a poll may find something in. Returns `None` if there is something, else
    /// when to look again at what nobody wakes this side for.
    fn look(&mut self, state: &mut QueueState) -> Option<Time> {
        let now = state.now();
        if now >= self.next_sweep {
            self.sweep(now);
        }
        let faults = self.faults.as_ref().is_some_and(|faults| !faults.is_idle());
        if faults || !self.operations.is_empty() || self.mailbox.doorbell_rang() {
            return None;
        }
        let mut until = self.next_sweep;
        if self.incoming.iter().flatten().any(Incoming::has_packets) {
            if state.has_posted() || self.incoming.iter().flatten().any(Incoming::has_request) {
                return None;
            }
            until = until.min(now + LOOK_FOR_BUFFERS);
        }
        for key in self.active.clone() {
            let Some(outgoing) = self.outgoing.get_mut(key) else { continue };
            let peer = QueuePairId { gid: self.me.gid, qpn: outgoing.peer() };
            let mut sends = Sends { state, requests: &mut self.requests, peer };
            match outgoing.poll_before_sleep(now, &mut sends) {
                Polled::There => {}
                Polled::Stalled => sends.relieve(outgoing),
                Polled::Gone => self.forget(key),
            }
        }
        let outgoing = &self.outgoing;
        self.active.retain(|&key| outgoing.get(key).is_some_and(|outgoing| !outgoing.is_idle()));
        self.go_on_with_requests(state);
        (!state.has_completions()).then_some(until)
    }
}

impl Link for ShmLink {
    // Both were measured on an AMD EPYC: all else that they take is longer than the copy of shorter ones.
    const PAYLOADS_PAY_FROM: usize = 2048;
    const SPLIT_FROM: Option<usize> = Some(2048);

    #[inline]
    fn path_to(&mut self, state: &mut QueueState, to: Destination) -> Result<Path, DeviceError> {
        let connection = match self.check_handle(state, to.address_handle)? {
            Ok(()) => self.ring_to(state, to.qpn, Some(to.qkey))?.ok_or(Status::BadDestinationQpn),
            Err(status) => Err(status),
        };
        Ok(Path { peer: self.peer(to.qpn), connection })
    }

    #[inline]
    fn send(&mut self, state: &mut QueueState, path: Path, request: SendRequest<Packet>) {
        match self.faults {
            None => self.send_datagram(state, path, request),
            Some(_) => self.send_with_faults(state, request),
        }
    }

    /// Into the ring, if it has a free slot and nobody else needs the bytes.
    #[inline(always)]
    fn write<F: FnOnce(CopyTarget<'_>)>(
        &mut self,
        state: &mut QueueState,
        request: SendRequest<Packet>,
        rest: usize,
        fill: F,
    ) -> Result<(), (SendRequest<Packet>, F)> {
        let to = request.destination;
        if self.faults.is_none()
            && !state.is_captured()
            && state.book().own() == Some(to.address_handle)
            && let Some(key) = self.by_number.get(to.qpn)
            && let Some(outgoing) = self.outgoing.get_mut(key)
            && !outgoing.is_detached()
            && outgoing.has_key(to.qkey)
            && let is_idle = outgoing.is_idle()
            && (outgoing.has_space() || {
                let peer = QueuePairId { gid: self.me.gid, qpn: to.qpn };
                outgoing.make_space(&mut Sends { state, requests: &mut self.requests, peer })
            })
        {
            if is_idle {
                self.active.push(key);
            }
            outgoing.post_with(request, rest, fill);
            state.count_send();
            return Ok(());
        }
        Err((request, fill))
    }

    fn has_room(&self, to: Destination) -> bool {
        let outgoing = self.by_number.get(to.qpn).and_then(|key| self.outgoing.get(key));
        outgoing.is_none_or(|outgoing| outgoing.has_space() || outgoing.is_detached())
    }

    fn start_rdma(
        &mut self,
        state: &mut QueueState,
        request: RdmaRequest<SoftRegion>,
        direction: Direction,
    ) -> Result<(), DeviceError> {
        self.local.directory.check_process()?;
        let reached = self.check_handle(state, request.destination.address_handle)?;
        if let (Ok(()), Direction::Write(Some(_))) = (reached, direction) {
            // The ring for the immediate data, as an error can be returned now.
            self.ring_to(state, request.destination.qpn, None)?;
        }
        state.count_send();
        match reached {
            Ok(()) => {
                let operation = Operation::new(request, direction);
                match &mut self.faults {
                    Some(faults) if faults.reorders() => faults.delay(Delayed::Rdma(operation)),
                    _ => self.operations.push_back(operation),
                }
                // A thread that sleeps must copy it.
                if let Some(sleeper) = &self.sleeper {
                    sleeper.wake();
                }
            }
            Err(status) => state.complete_rdma(request.id, Err(status)),
        }
        Ok(())
    }

    /// If one ring is watched. Of several, each poll looks at another.
    fn await_arrivals(&mut self) -> bool {
        let [slot] = *self.watched else { return false };
        let Some(Some(incoming)) = self.incoming.get(slot) else { return false };
        incoming.await_next(&mut self.awaited);
        self.has_no_arrivals()
    }

    #[inline(always)]
    fn has_no_arrivals(&self) -> bool {
        let Some(awaited) = &self.awaited else { return false };
        !awaited.is_there() && !self.mailbox.doorbell_rang()
    }

    fn take_left(
        &mut self,
        packet: *const u8,
        part: Range<usize>,
        take: impl FnOnce(CopySource<'_>),
    ) {
        if let Some(slot) = self.left
            && let Some(Some(incoming)) = self.incoming.get_mut(slot)
            && !incoming.take_left(packet, part, take)
        {
            self.left = None;
        }
    }

    #[inline]
    fn progress(&mut self, state: &mut QueueState) {
        if self.left.is_some() {
            self.end_left();
        }
        if self.faults.is_some() {
            self.send_due(state);
        }
        if let Some(slot) = self.next_ring() {
            self.poll_ring(state, slot);
            // Who waits for a packet need not wait until the line with acknowledgements has come.
            self.returns_early = !self.returns_early && state.has_completions();
            if self.returns_early {
                return;
            }
        }
        if self.mailbox.doorbell_rang() {
            self.answer_doorbell();
        }
        if !self.active.is_empty() {
            self.poll_active(state);
        }
        if !self.operations.is_empty() {
            self.copy_piece(state);
        }
        if self.requests.has_work() {
            self.go_on_with_requests(state);
        }
        if state.now() >= self.next_sweep {
            self.sweep(state.now());
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.sleeper.as_ref().map(Sleeper::descriptor)
    }

    /// Whatever there is to do, the FIFO has a byte then.
    #[inline]
    fn has_work(&self) -> bool {
        false
    }

    fn arm(&mut self, state: &mut QueueState) -> Armed {
        self.end_left();
        if let Some(sleeper) = &mut self.sleeper {
            sleeper.announce(&self.mailbox);
        }
        let until = self.look(state);
        match (until, &mut self.sleeper) {
            (Some(_), _) => Armed::Quiet { until },
            (None, sleeper) => {
                if let Some(sleeper) = sleeper {
                    sleeper.withdraw(&self.mailbox);
                }
                Armed::Pending
            }
        }
    }

    fn close(&mut self, state: &mut QueueState) {
        self.withdraw_requests(state);
        self.memory.remove_queue_pair(self.me.qpn);
        // First no more senders, then the end of those that are there.
        self.mailbox.close();
        for incoming in self.incoming.iter_mut().flatten() {
            incoming.detach();
        }
    }
}

#[cfg(test)]
mod tests;
