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

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use efa_device::{
    AddressHandle, Armed, CopySource, CopyTarget, Destination, DeviceError, Qkey, Qpn,
    QueuePairAddress, QueuePairOptions, RdmaRequest, SendRequest, Status, Time,
};
use slab::Slab;

pub(super) use self::keys::Keys;
use super::directory::HostDirectory;
use super::incoming::{Found, Incoming};
use super::mailbox::{EntryState, Mailbox, PeerMailbox, Sender};
use super::memory::HostMemory;
use super::operation::Operation;
use super::outgoing::{Content, Finished, Local, Outgoing, Posted, Purpose};
use super::requests::Requests;
use super::ring::Awaited;
use super::sharing::Ticket;
use super::wake::{Fifo, Sleeper};
use super::{ShmDevice, ShmOptions};
use crate::faults::{FaultOptions, Faults};
use crate::link::{
    Direction, KeptNumber, Link, LinkQueuePair, Packet, Path, QueueState, RNR_RETRY_INFINITE,
    Settings, granted,
};
use crate::record::QueuePairId;
use crate::region::SoftRegion;

/// How often entries of dead senders are looked for. A queue pair that sleeps wakes up as often, which
/// bounds what a neighbour can delay.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
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

    // ---- receiving ---------------------------------------------------------------------------

    #[inline(always)]
    fn incoming(&self, slot: usize) -> Option<&Incoming> {
        self.incoming.get(slot)?.as_ref()
    }

    /// The next watched ring, if it has packets, or has had none for so long that watching it may
    /// end.
    #[inline]
    fn next_ring(&mut self) -> Option<usize> {
        if self.next_watched >= self.watched.len() {
            self.next_watched = 0;
        }
        let &slot = self.watched.get(self.next_watched)?;
        self.next_watched += 1;
        let incoming = self.incoming.get_mut(slot)?.as_mut()?;
        incoming.wants_poll().then_some(slot)
    }

    #[inline(never)]
    fn poll_ring(&mut self, state: &mut QueueState, slot: usize) {
        let Some(Some(incoming)) = self.incoming.get_mut(slot) else { return };
        let sender = QueuePairId { gid: self.me.gid, qpn: incoming.sender().qpn };
        let (mut queue, mut deliveries) = state.receiving();
        let source = deliveries.source(sender);
        let found = incoming
            .poll(&self.memory, &mut queue, |delivered| deliveries.push(sender, source, delivered));
        match found {
            Ok(Found::Packets) => {}
            Ok(Found::Left) => self.left = Some(slot),
            // One ring may stay: looking at it costs no more than looking at the doorbell.
            Ok(Found::Nothing) if self.watched.len() > 1 => self.unwatch(slot),
            Ok(Found::Nothing) => {}
            Ok(Found::End) => self.detach(slot),
            Err(broken) => {
                tracing::warn!(from = sender.qpn.0, ?broken, "detaching an inconsistent ring");
                self.detach(slot);
            }
        }
    }

    /// Gives up what the program has not taken of datagrams whose completions it has.
    #[cold]
    fn end_left(&mut self) {
        if let Some(slot) = self.left.take()
            && let Some(Some(incoming)) = self.incoming.get_mut(slot)
        {
            incoming.end_left();
        }
    }

    fn watch(&mut self, slot: usize) {
        if let Some(Some(incoming)) = self.incoming.get_mut(slot)
            && !incoming.is_watched()
        {
            incoming.set_watched(true);
            self.watched.push(slot);
        }
    }

    fn unwatch(&mut self, slot: usize) {
        self.watched.retain(|&watched| watched != slot);
        if let Some(Some(incoming)) = self.incoming.get_mut(slot) {
            incoming.set_watched(false);
        }
    }

    fn detach(&mut self, slot: usize) {
        self.unwatch(slot);
        self.awaited = None;
        if let Some(mut incoming) = self.incoming.get_mut(slot).and_then(Option::take) {
            incoming.detach();
            self.mailbox.set_entry(slot, EntryState::Free, incoming.sender());
        }
    }

    #[cold]
    fn answer_doorbell(&mut self) {
        let mut rang = Vec::new();
        self.mailbox.take_rung(|slot| rang.push(slot));
        for slot in rang {
            self.look_at_entry(slot);
        }
    }

    fn look_at_entry(&mut self, slot: usize) {
        let (state, sender, nonce) = self.mailbox.entry(slot);
        match self.incoming(slot) {
            None if state == EntryState::Announced => self.attach(slot, sender, nonce),
            None => {}
            Some(incoming) => self.repair_entry(slot, incoming.sender(), state, sender),
        }
        if self.incoming(slot).is_some_and(Incoming::is_finished) {
            self.detach(slot);
        } else {
            self.watch(slot);
        }
    }

    /// Notes again that `attached` is attached, if another process changed the entry. A sender that took it
    /// for free finds out, and claims another.
    fn repair_entry(&self, slot: usize, attached: Sender, state: EntryState, sender: Sender) {
        if (state, sender) != (EntryState::Attached, attached) {
            self.mailbox.set_entry(slot, EntryState::Attached, attached);
        }
    }

    fn attach(&mut self, slot: usize, sender: Sender, nonce: u64) {
        let (directory, sleeps) = (&self.local.directory, self.local.sleeps);
        let incoming = match Incoming::open(directory, self.me.qpn, slot, sender, nonce, sleeps) {
            Ok(incoming) => incoming,
            Err(error) if error.shortage().is_some() => {
                // The entry stays as it is, for the next sweep; meanwhile the sender waits.
                if !std::mem::replace(&mut self.lacks_room, true) {
                    tracing::warn!(from = sender.qpn.0, %error, "can't attach the ring of a sender yet");
                }
                return;
            }
            Err(error) => {
                tracing::warn!(from = sender.qpn.0, %error, "refusing the ring of a sender");
                None
            }
        };
        self.lacks_room &= incoming.is_none();
        let state = match incoming {
            Some(_) => EntryState::Attached,
            None => EntryState::Refused,
        };
        tracing::debug!(from = sender.qpn.0, ?state, "a sender announced its ring");
        self.mailbox.set_entry(slot, state, sender);
        if slot >= self.incoming.len() {
            self.incoming.resize_with(slot + 1, || None);
        }
        self.incoming[slot] = incoming;
    }

    /// Frees entries of dead senders, finds rings whose doorbell was lost, and drops rings to peers
    /// that are gone: each takes memory and an open file.
    #[cold]
    fn sweep(&mut self, now: Time) {
        self.next_sweep = now + SWEEP_EVERY;
        let useless = self.outgoing.iter_mut().filter_map(|(key, outgoing)| {
            (outgoing.is_oversized() || outgoing.is_useless()).then_some(key)
        });
        for key in useless.collect::<Vec<_>>() {
            self.forget(key);
        }
        for slot in 0..self.mailbox.peers() {
            let (state, sender, _) = self.mailbox.entry(slot);
            match (self.incoming.get_mut(slot).and_then(Option::as_mut), state) {
                (None, EntryState::Free) => {}
                (None, EntryState::Announced) => self.look_at_entry(slot),
                // Of an attached ring there would be an `Incoming`.
                (None, EntryState::Attached) => {
                    self.mailbox.set_entry(slot, EntryState::Free, sender);
                }
                (None, EntryState::Claimed | EntryState::Refused) => {
                    if !is_open(&self.local.directory, sender) {
                        self.mailbox.set_entry(slot, EntryState::Free, sender);
                    }
                }
                (Some(incoming), _) if incoming.has_packets() => self.look_at_entry(slot),
                (Some(incoming), _) => {
                    let attached = incoming.sender();
                    let gone = incoming.is_finished()
                        || (incoming.was_quiet() && !is_alive(&self.local.directory, attached));
                    self.repair_entry(slot, attached, state, sender);
                    let Some(incoming) = self.incoming(slot) else { continue };
                    // Checked again: it may have sent just before it died.
                    if gone && !incoming.has_packets() {
                        self.detach(slot);
                    }
                }
            }
        }
    }

    // ---- sending -----------------------------------------------------------------------------

    /// Takes the acknowledgements of the next peer with sends in flight.
    #[inline(never)]
    fn poll_active(&mut self, state: &mut QueueState) {
        if self.next_active >= self.active.len() {
            self.next_active = 0;
        }
        let Some(&key) = self.active.get(self.next_active) else { return };
        let Some(outgoing) = self.outgoing.get_mut(key) else { return };
        let peer = QueuePairId { gid: self.me.gid, qpn: outgoing.peer() };
        let there = outgoing
            .poll(state.now(), |finished| complete(state, &mut self.requests, peer, finished));
        if there && !outgoing.is_idle() {
            self.next_active += 1;
            return;
        }
        self.active.swap_remove(self.next_active);
        if !there {
            self.forget(key);
        }
    }

    fn forget(&mut self, key: usize) {
        self.active.retain(|&active| active != key);
        if let Some(outgoing) = self.outgoing.try_remove(key) {
            match outgoing.purpose() {
                Purpose::Datagrams => self.by_number.set(outgoing.peer(), None),
                Purpose::Requests => {
                    self.requests.rings.set(outgoing.peer(), None);
                    self.requests.fail(key, Status::UnresponsiveRemote);
                }
            }
        }
    }

    /// The ring to `peer`, created if need be; `None` if there is no such queue pair. Another key
    /// than before may be that of a successor with the same number.
    #[inline]
    fn ring_to(
        &mut self,
        state: &mut QueueState,
        peer: Qpn,
        qkey: Option<Qkey>,
    ) -> Result<Option<usize>, DeviceError> {
        let known = self.by_number.get(peer);
        if let Some(key) = known
            && let Some(outgoing) = self.outgoing.get_mut(key)
            && !outgoing.is_detached()
            && outgoing.accepts_key(qkey)
        {
            return Ok(known);
        }
        self.open_ring(state, peer, qkey, known)
    }

    #[cold]
    fn open_ring(
        &mut self,
        state: &mut QueueState,
        peer: Qpn,
        qkey: Option<Qkey>,
        old: Option<usize>,
    ) -> Result<Option<usize>, DeviceError> {
        if let Some(key) = old {
            let id = self.peer(peer);
            if let Some(outgoing) = self.outgoing.get_mut(key) {
                outgoing.close(Status::BadDestinationQpn, |finished| {
                    complete(state, &mut self.requests, id, finished);
                });
            }
            self.forget(key);
        }
        let outgoing = Outgoing::open(&self.local, peer, Purpose::Datagrams, qkey)?;
        let Some(outgoing) = outgoing else { return Ok(None) };
        let key = self.outgoing.insert(outgoing);
        self.by_number.set(peer, Some(key));
        Ok(Some(key))
    }

    /// Whether the interface of an address handle can be reached.
    #[inline]
    fn check_handle(
        &self,
        state: &QueueState,
        handle: AddressHandle,
    ) -> Result<Result<(), Status>, DeviceError> {
        let book = state.book();
        if book.own() == Some(handle) {
            return Ok(Ok(()));
        }
        match book.gid(handle) {
            Some(_) => Ok(Err(Status::UnreachableRemote)),
            None => Err(DeviceError::BadAddressHandle { handle }),
        }
    }

    #[inline]
    fn send_datagram(&mut self, state: &mut QueueState, path: Path, request: SendRequest<Packet>) {
        let SendRequest { id, packet, length, destination, immediate } = request;
        state.record_sent(path.peer, &packet[..length]);
        // A datagram is no longer than the MTU.
        let content = Content::Datagram { packet, length: length as u32, rest: 0 };
        self.post(state, path, Posted { id, content, immediate, qkey: destination.qkey });
    }

    #[cold]
    fn send_with_faults(&mut self, state: &mut QueueState, request: SendRequest<Packet>) {
        match &mut self.faults {
            Some(faults) if faults.reorders() => faults.delay(Delayed::Send(request)),
            _ => self.send_as_drawn(state, request),
        }
        // A thread that sleeps must poll until a delayed send is due.
        if let Some(sleeper) = &self.sleeper {
            sleeper.wake();
        }
    }

    #[cold]
    fn send_due(&mut self, state: &mut QueueState) {
        if let Some(faults) = &mut self.faults {
            faults.poll();
        }
        while let Some(request) = self.faults.as_mut().and_then(|faults| faults.due()) {
            match request {
                Delayed::Send(request) => self.send_as_drawn(state, request),
                Delayed::Rdma(operation) => self.operations.push_back(operation),
            }
        }
    }

    fn send_as_drawn(&mut self, state: &mut QueueState, request: SendRequest<Packet>) {
        let datagram = &request.packet[..request.length];
        let not_ready = self.faults.as_mut().is_some_and(|faults| faults.draw_not_ready(datagram));
        let to = request.destination;
        let failed = |status| Path { peer: self.peer(to.qpn), connection: Err(status) };
        let path = match not_ready && self.local.rnr_retry < RNR_RETRY_INFINITE {
            true => failed(Status::ReceiverNotReady),
            // It was accepted, but its address handle may be destroyed by now.
            false => {
                let unreachable = failed(Status::UnreachableRemote);
                self.path_to(state, to).unwrap_or(unreachable)
            }
        };
        self.send_datagram(state, path, request);
    }

    /// Puts a send into the ring to its peer, or completes it.
    #[inline]
    fn post(&mut self, state: &mut QueueState, path: Path, posted: Posted) {
        match path.connection {
            Ok(key) => {
                if let Some(outgoing) = self.outgoing.get_mut(key) {
                    if outgoing.is_idle() {
                        self.active.push(key);
                    }
                    outgoing.post(posted);
                }
            }
            Err(status) => {
                complete(state, &mut self.requests, path.peer, (posted, Err(status)));
            }
        }
    }

    // ---- sleep -------------------------------------------------------------------------------

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
            let there = outgoing.poll_before_sleep(now, |finished| {
                complete(state, &mut self.requests, peer, finished)
            });
            if !there {
                self.forget(key);
            }
        }
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
            && let Ok(Ok(())) = self.check_handle(state, to.address_handle)
            && let Some(key) = self.by_number.get(to.qpn)
            && let Some(outgoing) = self.outgoing.get_mut(key)
            && !outgoing.is_detached()
            && outgoing.accepts_key(Some(to.qkey))
            && outgoing.has_space()
        {
            if outgoing.is_idle() {
                self.active.push(key);
            }
            outgoing.post_with(request, rest, fill);
            state.count_send();
            return Ok(());
        }
        Err((request, fill))
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

/// Completes a send to `peer`, or takes the result of a request.
#[inline(always)]
fn complete(
    state: &mut QueueState,
    requests: &mut Requests,
    peer: QueuePairId,
    (posted, result): Finished,
) {
    match posted {
        Posted { id, content: Content::Datagram { packet, length, .. }, .. } => {
            state.complete_send(peer, id, packet, length as usize, result);
        }
        posted => complete_other(state, requests, (posted, result)),
    }
}

#[cold]
fn complete_other(state: &mut QueueState, requests: &mut Requests, (posted, result): Finished) {
    let Posted { id, content, .. } = posted;
    match content {
        // The caller completes datagrams, and the ring has the answer to a push.
        Content::Datagram { .. } | Content::Push => {}
        Content::Written(_) => state.complete_rdma(id, result),
        Content::Piece { operation, piece } => requests.finish(operation, &piece, result),
    }
}

/// Whether the queue pair of this sender is still there. If the system can't report it, it is taken to be.
fn is_alive(directory: &HostDirectory, sender: Sender) -> bool {
    there(directory, sender).is_none_or(|mailbox| mailbox.is_some())
}

/// Whether it is, and has not retired.
fn is_open(directory: &HostDirectory, sender: Sender) -> bool {
    there(directory, sender)
        .is_none_or(|mailbox| mailbox.is_some_and(|mailbox| !mailbox.is_closed()))
}

/// The mailbox of a sender, if it has one; `None` if the system can't report it.
fn there(directory: &HostDirectory, sender: Sender) -> Option<Option<PeerMailbox>> {
    let mailbox = PeerMailbox::open(directory, sender.qpn).ok()?;
    Some(mailbox.filter(|mailbox| mailbox.is(sender)))
}

#[cfg(test)]
mod tests;
