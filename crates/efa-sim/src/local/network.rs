//! The simulated network: hosts, queue pairs, packets in flight, and scheduled events.
//!
//! ```text
//!  post_send ─► Arrive(t1) ──► buffer posted ─────────► Complete(t2) ─► sender's completions
//!                  │                 ▲                      ▲
//!                  └► none posted: waiting ──► GiveUp(t3) ──┘  (RNR timeout)
//! ```
//!
//! All events are in one ordered map: by time, then by a random key (to shuffle packets due at the same
//! time), then by number. The times of later events are computed from the time of an event, not from that of
//! the poll which ran it. So the frequency of polls doesn't change the events.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use efa_device::{
    AddressHandle, Completion, Destination, DeviceError, Gid, PostError, Qpn, QueuePairOptions,
    RdmaRequest, RegionRange, SendRequest, Source, Status, Time, WorkId, zeroed,
};
use fastrand::Rng;

use super::endpoints::{EndpointId, Endpoints};
use super::flight::{Content, Flight, Stale, rdma_target};
use super::injection::OneShot;
use super::sleep::Bell;
use super::{Faults, LocalOptions, Reorder, Statistics};
use crate::book::{AddressBook, DomainId};
use crate::link::{Packet, RNR_RETRY_INFINITE};
use crate::record::{PacketEvent, QueuePairId, Record, Sink};
use crate::region::{KeyTable, SoftRegion, copy};

/// An opened device: its index in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostId(usize);

/// The order of events; see the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Due {
    time: Time,
    shuffle: u64,
    serial: u64,
}

pub(super) struct Network {
    pub(super) options: LocalOptions,
    pub(super) faults: Faults,
    pub(super) statistics: Statistics,
    pub(super) sink: Option<Box<dyn Sink>>,
    rng: Rng,
    pub(super) now: Time,
    serial: u64,
    hosts: Vec<Host>,
    pub(super) endpoints: Endpoints,
    /// Whether there ever was a queue pair that threads can sleep on.
    pub(super) has_bells: bool,
    pub(super) events: BTreeMap<Due, Event>,
    /// Serial number of the event that was scheduled last, readable without the lock.
    scheduled: Arc<AtomicU64>,
    pub(super) stale: BTreeMap<QueuePairId, VecDeque<Stale>>,
}

struct Host {
    gid: Gid,
    keys: KeyTable,
    book: AddressBook,
    queue_pairs: HashMap<Qpn, EndpointId>,
    next_qpn: u16,
    refused_registrations: u32,
}

pub(super) struct Endpoint {
    id: QueuePairId,
    host: HostId,
    options: QueuePairOptions,
    pub(super) killed: bool,
    /// Memory behind this queue pair can't be accessed by RDMA.
    pub(super) access_forbidden: bool,
    /// Accepted sends whose completion was not taken yet.
    sends: usize,
    /// Posted buffers whose completion was not taken yet.
    pub(super) receives: usize,
    /// Empty while a packet is waiting.
    pub(super) posted: VecDeque<Packet>,
    pub(super) waiting: VecDeque<Waiting>,
    completions: VecDeque<Completion<Packet>>,
    history: VecDeque<Stale>,
    /// Serial number of the latest packet received from each queue pair.
    latest: BTreeMap<QueuePairId, u64>,
    /// With [`Reorder::None`]: the earliest arrival of the next packet to each queue pair.
    not_before: BTreeMap<QueuePairId, Time>,
    /// With [`Reorder::None`]: the earliest completion of the next send.
    completes_not_before: Time,
    pub(super) one_shot: OneShot,
    /// Of a waitable queue pair.
    pub(super) bell: Option<Bell>,
}

pub(super) struct Waiting {
    pub(super) flight: Flight,
    pub(super) give_up: Option<Due>,
}

impl Endpoint {
    /// How completions of this queue pair name a sender.
    fn source(&self, hosts: &[Host], options: &LocalOptions, from: QueuePairId) -> Source {
        let address_handle = hosts[self.host.0].book.handle(DomainId::default(), from.gid);
        let tell_gid = address_handle.is_none() && options.report_unknown_gid;
        Source { address_handle, qpn: from.qpn, gid: tell_gid.then_some(from.gid) }
    }
}

pub(super) enum Event {
    Arrive(Flight),
    GiveUp { target: EndpointId, serial: u64 },
    Complete { sender: EndpointId, completion: Completion<Packet> },
}

/// Adds to a queue that keeps the last `limit` items.
fn keep<T>(queue: &mut VecDeque<T>, limit: usize, item: impl FnOnce() -> T) {
    if limit == 0 {
        return;
    }
    while queue.len() >= limit {
        queue.pop_front();
    }
    queue.push_back(item());
}

fn chance(rng: &mut Rng, probability: f64) -> bool {
    probability > 0.0 && rng.f64() < probability
}

impl Network {
    pub(super) fn new(options: LocalOptions) -> Self {
        Self {
            rng: Rng::with_seed(options.seed),
            faults: options.faults.clone(),
            options,
            statistics: Statistics::default(),
            sink: None,
            now: Time::ZERO,
            serial: 0,
            hosts: Vec::new(),
            endpoints: Endpoints::default(),
            has_bells: false,
            events: BTreeMap::new(),
            scheduled: Arc::default(),
            stale: BTreeMap::new(),
        }
    }

    pub(super) fn options(&self) -> &LocalOptions {
        &self.options
    }

    pub(super) fn now(&self) -> Time {
        self.now
    }

    pub(super) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub(super) fn draw_delay(&mut self) -> Duration {
        let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let (start, end) = (nanos(self.options.delay.start), nanos(self.options.delay.end));
        Duration::from_nanos(if start < end { self.rng.u64(start..end) } else { start })
    }

    pub(super) fn schedule(&mut self, time: Time, event: Event) -> Due {
        let shuffle = match self.options.reorder {
            Reorder::Shuffle => self.rng.u64(..),
            Reorder::None => 0,
        };
        if self.has_bells {
            self.wake_for(&event);
        }
        let due = Due { time, shuffle, serial: self.next_serial() };
        self.events.insert(due, event);
        self.scheduled.store(due.serial, Ordering::Release);
        due
    }

    pub(super) fn tap(&mut self, time: Time, event: PacketEvent, flight: &Flight) {
        if let Some(sink) = &mut self.sink
            && matches!(flight.content, Content::Packet { .. })
        {
            sink.record(&Record {
                time,
                event,
                source: flight.source,
                destination: flight.destination,
                bytes: Cow::Borrowed(flight.content.bytes()),
            });
        }
    }

    // ---- hosts -------------------------------------------------------------------------------

    /// A new host.
    pub(super) fn open(&mut self) -> (HostId, Gid, KeyTable) {
        let host = HostId(self.hosts.len());
        let mut gid = [0; 16];
        gid[..2].copy_from_slice(&[0xfe, 0x80]);
        gid[8..].copy_from_slice(&(host.0 as u64 + 1).to_be_bytes());
        let gid = Gid(gid);
        let LocalOptions { max_regions, max_region_size, .. } = self.options;
        let keys = KeyTable::new(max_regions, max_region_size, self.rng.fork());
        self.hosts.push(Host {
            gid,
            keys: keys.clone(),
            book: AddressBook::new(self.options.max_address_handles),
            queue_pairs: HashMap::new(),
            next_qpn: 1,
            refused_registrations: 0,
        });
        (host, gid, keys)
    }

    pub(super) fn find(&self, id: QueuePairId) -> Option<EndpointId> {
        let host = self.hosts.iter().find(|host| host.gid == id.gid)?;
        host.queue_pairs.get(&id.qpn).copied()
    }

    pub(super) fn book(&mut self, host: HostId) -> &mut AddressBook {
        &mut self.hosts[host.0].book
    }

    pub(super) fn refuse_registrations(&mut self, host: HostId, count: u32) {
        self.hosts[host.0].refused_registrations = count;
    }

    /// Whether a fault refuses the next registration.
    pub(super) fn refuses_registration(&mut self, host: HostId) -> bool {
        let refused = chance(&mut self.rng, self.faults.registration_refused);
        let one_shot = &mut self.hosts[host.0].refused_registrations;
        let refused = refused || *one_shot > 0;
        *one_shot = one_shot.saturating_sub(1);
        self.statistics.registrations_refused += u64::from(refused);
        refused
    }

    pub(super) fn allocate_packet(&mut self) -> Result<Packet, DeviceError> {
        if chance(&mut self.rng, self.faults.allocation_refused) {
            self.statistics.registrations_refused += 1;
            let limit = self.options.max_regions;
            return Err(DeviceError::LimitReached { object: "packet buffer", limit });
        }
        zeroed(self.options.mtu)
    }

    // ---- queue pairs -------------------------------------------------------------------------

    /// A number that no queue pair of the host has or had recently.
    pub(super) fn free_qpn(&mut self, host: HostId) -> Result<Qpn, DeviceError> {
        let limit = self.options.max_queue_pairs;
        let host = &mut self.hosts[host.0];
        if host.queue_pairs.len() >= limit {
            return Err(DeviceError::LimitReached { object: "queue pair", limit });
        }
        loop {
            let qpn = Qpn(host.next_qpn);
            host.next_qpn = host.next_qpn.checked_add(1).unwrap_or(1);
            if !host.queue_pairs.contains_key(&qpn) {
                return Ok(qpn);
            }
        }
    }

    pub(super) fn create(
        &mut self,
        host: HostId,
        qpn: Qpn,
        options: QueuePairOptions,
    ) -> Result<EndpointId, DeviceError> {
        let serial = self.next_serial();
        let limit = self.options.max_queue_pairs;
        let owner = &mut self.hosts[host.0];
        if owner.queue_pairs.contains_key(&qpn) {
            return Err(DeviceError::Inconsistent {
                object: format!("queue pair {} of {}", qpn.0, owner.gid),
                reason: "the number is taken".into(),
            });
        }
        if owner.queue_pairs.len() >= limit {
            return Err(DeviceError::LimitReached { object: "queue pair", limit });
        }
        // A queue pair without memory for a packet receives nothing. An unused allocation would be optimized away.
        drop(black_box(zeroed(self.options.mtu)?));
        let bell = options.waitable.then(Bell::new).transpose()?;
        self.has_bells |= bell.is_some();
        let id = QueuePairId { gid: owner.gid, qpn };
        let endpoint = self.endpoints.insert(
            serial,
            Endpoint {
                id,
                host,
                options,
                killed: false,
                access_forbidden: false,
                sends: 0,
                receives: 0,
                posted: VecDeque::new(),
                waiting: VecDeque::new(),
                completions: VecDeque::new(),
                history: VecDeque::new(),
                latest: BTreeMap::new(),
                not_before: BTreeMap::new(),
                completes_not_before: Time::ZERO,
                one_shot: OneShot::default(),
                bell,
            },
        );
        owner.queue_pairs.insert(qpn, endpoint);
        Ok(endpoint)
    }

    pub(super) fn destroy(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.remove(id) else { return };
        self.hosts[endpoint.host.0].queue_pairs.remove(&endpoint.id.qpn);
        let limit = self.faults.keep_stale;
        for stale in endpoint.history {
            keep(self.stale.entry(endpoint.id).or_default(), limit, || stale);
        }
        for Waiting { flight, give_up } in endpoint.waiting {
            if let Some(due) = give_up {
                self.events.remove(&due);
            }
            self.statistics.bad_destination += 1;
            self.fail(self.now, flight, Status::BadDestinationQpn);
        }
    }

    pub(super) fn post_send(
        &mut self,
        id: EndpointId,
        request: SendRequest<Packet>,
    ) -> Result<(), PostError<Packet>> {
        let SendRequest { id: work, packet, length, destination: to, immediate } = request;
        let limit = self.options.mtu.min(packet.len());
        let accepted = if length > limit {
            Err(DeviceError::TooLong { length: length as u64, limit: limit as u64 })
        } else {
            self.accept(id, to)
        };
        let (source, destination, rnr_retry) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => return Err(PostError { error, packet }),
        };
        self.statistics.sent += 1;
        let serial = self.next_serial();
        self.launch(Flight {
            serial,
            source,
            destination,
            qkey: Some(to.qkey),
            content: Content::Packet { packet, length, immediate },
            rnr_retry,
            completes_late: Duration::ZERO,
            sender: Some((id, work)),
        });
        Ok(())
    }

    pub(super) fn post_read(
        &mut self,
        id: EndpointId,
        request: RdmaRequest<SoftRegion>,
    ) -> Result<(), DeviceError> {
        if !self.options.rdma.read {
            return Err(DeviceError::Unsupported { operation: "RDMA read" });
        }
        let RdmaRequest { id: work, local, remote, destination } = request;
        self.post_rdma(id, work, destination, local.clone(), Content::Read { local, remote })
    }

    pub(super) fn post_write(
        &mut self,
        id: EndpointId,
        request: RdmaRequest<SoftRegion>,
        immediate: Option<u32>,
    ) -> Result<(), DeviceError> {
        if !self.options.rdma.write {
            return Err(DeviceError::Unsupported { operation: "RDMA write" });
        }
        let RdmaRequest { id: work, local, remote, destination } = request;
        let content = Content::Write { local: local.clone(), remote, immediate };
        self.post_rdma(id, work, destination, local, content)
    }

    fn post_rdma(
        &mut self,
        id: EndpointId,
        work: WorkId,
        to: Destination,
        local: RegionRange<SoftRegion>,
        content: Content,
    ) -> Result<(), DeviceError> {
        local.check()?;
        let (length, limit) = (local.length as u64, self.options.max_rdma_size);
        if length > limit {
            return Err(DeviceError::TooLong { length, limit });
        }
        let (source, destination, rnr_retry) = self.accept(id, to)?;
        self.statistics.rdma += 1;
        let serial = self.next_serial();
        self.launch(Flight {
            serial,
            source,
            destination,
            qkey: None,
            content,
            rnr_retry,
            completes_late: Duration::ZERO,
            sender: Some((id, work)),
        });
        Ok(())
    }

    /// Puts an accepted packet or operation in flight.
    fn launch(&mut self, mut flight: Flight) {
        let Some((id, _)) = flight.sender else { return };
        let now = self.now;
        let delay = self.draw_delay();
        let late = chance(&mut self.rng, self.faults.late);
        let mut arrival = now + delay;
        if late {
            arrival += self.faults.late_by;
        }
        self.tap(now, PacketEvent::Sent, &flight);
        let in_order = self.options.reorder == Reorder::None;
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        endpoint.sends += 1;
        let one_shot = &mut endpoint.one_shot;
        let failing = if endpoint.killed {
            Some(Status::Flushed)
        } else {
            one_shot.failing.take().map(|(count, status)| {
                one_shot.failing = (count > 1).then_some((count - 1, status));
                status
            })
        };
        if let Some(status) = failing {
            return self.fail(now, flight, status);
        }
        if one_shot.late.0 > 0 {
            one_shot.late.0 -= 1;
            arrival += one_shot.late.1;
        }
        if one_shot.completes_late.0 > 0 {
            one_shot.completes_late.0 -= 1;
            flight.completes_late = one_shot.completes_late.1;
        }
        if in_order {
            let not_before = endpoint.not_before.entry(flight.destination).or_default();
            arrival = arrival.max(*not_before);
            *not_before = arrival;
        }
        self.schedule(arrival, Event::Arrive(flight));
    }

    /// Fails with what the queue pair lacks, if a fault says so.
    pub(super) fn prepare(&self, id: EndpointId) -> Result<(), DeviceError> {
        let lack = self.endpoints.get(id).and_then(|endpoint| endpoint.one_shot.lack.clone());
        lack.map_or(Ok(()), Err)
    }

    /// Checks a send. Returns its source, destination and `rnr_retry`.
    fn accept(
        &mut self,
        id: EndpointId,
        to: Destination,
    ) -> Result<(QueuePairId, QueuePairId, u8), DeviceError> {
        let refused = chance(&mut self.rng, self.faults.send_refused);
        let Some(endpoint) = self.endpoints.get_mut(id) else {
            return Err(DeviceError::Absent { reason: "the queue pair is gone".into() });
        };
        let handle = to.address_handle;
        let Some(gid) = self.hosts[endpoint.host.0].book.gid(DomainId::default(), handle) else {
            return Err(DeviceError::BadAddressHandle { handle });
        };
        let depth = endpoint.options.send_depth.min(self.faults.send_limit.unwrap_or(usize::MAX));
        if endpoint.sends >= depth {
            return Err(DeviceError::QueueFull { depth });
        }
        if let Some(error) = &endpoint.one_shot.lack {
            return Err(error.clone());
        }
        if refused || endpoint.one_shot.refused > 0 {
            endpoint.one_shot.refused = endpoint.one_shot.refused.saturating_sub(1);
            self.statistics.sends_refused += 1;
            return Err(DeviceError::QueueFull { depth });
        }
        let destination = QueuePairId { gid, qpn: to.qpn };
        Ok((endpoint.id, destination, endpoint.options.rnr_retry))
    }

    pub(super) fn withdraw_receive(&mut self, id: EndpointId) -> Option<Packet> {
        let endpoint = self.endpoints.get_mut(id)?;
        let packet = endpoint.posted.pop_back()?;
        endpoint.receives -= 1;
        endpoint.posted.shrink_to(2 * endpoint.posted.len());
        Some(packet)
    }

    pub(super) fn post_receive(
        &mut self,
        id: EndpointId,
        packet: Packet,
    ) -> Result<(), PostError<Packet>> {
        let Some(endpoint) = self.endpoints.get_mut(id) else {
            let error = DeviceError::Absent { reason: "the queue pair is gone".into() };
            return Err(PostError { error, packet });
        };
        let depth = endpoint.options.receive_depth;
        if endpoint.receives >= depth {
            return Err(PostError { error: DeviceError::QueueFull { depth }, packet });
        }
        endpoint.receives += 1;
        endpoint.posted.push_back(packet);
        // One that fails, as for a longer buffer, leaves this one to the next.
        while let Some(endpoint) = self.endpoints.get_mut(id)
            && !(endpoint.killed || endpoint.posted.is_empty())
            && let Some(Waiting { flight, give_up }) = endpoint.waiting.pop_front()
        {
            if let Some(due) = give_up {
                self.events.remove(&due);
            }
            self.deliver(self.now, id, flight);
        }
        Ok(())
    }

    pub(super) fn poll(&mut self, id: EndpointId, now: Time) -> Option<Completion<Packet>> {
        self.advance(now);
        let endpoint = self.endpoints.get_mut(id)?;
        let completion = endpoint.completions.pop_front()?;
        match &completion {
            Completion::Send { .. } | Completion::Rdma { .. } => endpoint.sends -= 1,
            Completion::Receive { .. } | Completion::Front { .. } | Completion::Unfilled { .. } => {
                endpoint.receives -= 1
            }
            Completion::Written { packet, .. } => {
                endpoint.receives -= usize::from(packet.is_some())
            }
        }
        Some(completion)
    }

    pub(super) fn scheduled(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.scheduled)
    }

    /// The serial number of the last event, if nothing happens to this queue pair before another one is scheduled.
    pub(super) fn await_event(&self, id: EndpointId) -> Option<u64> {
        let is_quiet = self.events.is_empty()
            && self.endpoints.get(id).is_some_and(|endpoint| endpoint.completions.is_empty());
        is_quiet.then(|| self.scheduled.load(Ordering::Acquire))
    }

    pub(super) fn next_event(&self) -> Option<Time> {
        if self.endpoints.iter().any(|endpoint| !endpoint.completions.is_empty()) {
            return Some(self.now);
        }
        self.events.keys().next().map(|due| due.time)
    }

    pub(super) fn next_event_of(&self, id: EndpointId) -> Option<Time> {
        let endpoint = self.endpoints.get(id)?;
        if !endpoint.completions.is_empty() {
            return Some(self.now);
        }
        let concerns = |event: &Event| match event {
            Event::Arrive(flight) => {
                flight.destination == endpoint.id || flight.sender.is_some_and(|s| s.0 == id)
            }
            Event::GiveUp { target, serial } => {
                *target == id || self.sender_of(*target, *serial) == Some(id)
            }
            Event::Complete { sender, .. } => *sender == id,
        };
        self.events.iter().find(|(_, event)| concerns(event)).map(|(due, _)| due.time)
    }

    pub(super) fn sender_of(&self, target: EndpointId, serial: u64) -> Option<EndpointId> {
        let waiting = &self.endpoints.get(target)?.waiting;
        let waiting = waiting.iter().find(|waiting| waiting.flight.serial == serial)?;
        waiting.flight.sender.map(|(sender, _)| sender)
    }

    // ---- events ------------------------------------------------------------------------------

    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        while let Some(entry) = self.events.first_entry() {
            if entry.key().time > self.now {
                break;
            }
            let (due, event) = entry.remove_entry();
            self.run(due.time, event);
        }
    }

    fn run(&mut self, time: Time, event: Event) {
        match event {
            Event::Arrive(flight) => self.arrive(time, flight),
            Event::GiveUp { target, serial } => {
                let Some(endpoint) = self.endpoints.get_mut(target) else { return };
                let waiting = &mut endpoint.waiting;
                let Some(at) = waiting.iter().position(|w| w.flight.serial == serial) else {
                    return;
                };
                if let Some(Waiting { flight, .. }) = waiting.remove(at) {
                    self.fail(time, flight, Status::ReceiverNotReady);
                }
            }
            Event::Complete { sender, completion } => {
                if let Some(endpoint) = self.endpoints.get_mut(sender) {
                    endpoint.completions.push_back(completion);
                }
                self.wake(sender);
            }
        }
    }

    fn arrive(&mut self, time: Time, flight: Flight) {
        let target = self.find(flight.destination);
        let Some((target, endpoint)) =
            target.and_then(|id| self.endpoints.get_mut(id).map(|endpoint| (id, endpoint)))
        else {
            self.statistics.bad_destination += 1;
            self.keep_as_stale(&flight);
            self.fail(time, flight, Status::BadDestinationQpn);
            return;
        };
        if flight.qkey.is_some_and(|qkey| qkey != endpoint.options.qkey) {
            self.statistics.bad_key += 1;
            self.keep_as_stale(&flight);
            self.fail(time, flight, Status::BadDestinationQpn);
            return;
        }
        if endpoint.killed {
            self.fail(time + self.options.unresponsive_after, flight, Status::UnresponsiveRemote);
            return;
        }
        let refused = match &flight.content {
            Content::Packet { .. } => None,
            _ if endpoint.access_forbidden => Some(Status::NotPermitted),
            Content::Read { .. } | Content::Write { .. } => {
                let Host { book, keys, .. } = &self.hosts[endpoint.host.0];
                if book.handle(DomainId::default(), flight.source.gid).is_none() {
                    Some(Status::UnknownPeer)
                } else {
                    let target = rdma_target(keys, &flight.content);
                    target.is_none().then_some(Status::RemoteBadAddress)
                }
            }
        };
        if let Some(status) = refused {
            return self.fail(time, flight, status);
        }
        if !flight.content.takes_buffer(self.options.rdma) {
            return self.deliver_rdma(time, target, flight);
        }
        let rnr_timeout = self.options.rnr_delay.saturating_mul(u32::from(flight.rnr_retry));
        let not_ready = endpoint.one_shot.not_ready > 0;
        endpoint.one_shot.not_ready -= u32::from(not_ready);
        if not_ready || chance(&mut self.rng, self.faults.receiver_not_ready) {
            self.statistics.waited += 1;
            if flight.rnr_retry >= RNR_RETRY_INFINITE {
                self.schedule(time + self.options.rnr_delay, Event::Arrive(flight));
            } else {
                self.fail(time + rnr_timeout, flight, Status::ReceiverNotReady);
            }
            return;
        }
        if flight.sender.is_some() && matches!(flight.content, Content::Packet { .. }) {
            keep(&mut endpoint.history, self.faults.keep_stale, || Stale::of(&flight));
        }
        if endpoint.posted.is_empty() {
            self.statistics.waited += 1;
            self.wait(time + rnr_timeout, target, flight);
        } else {
            self.deliver(time, target, flight);
        }
    }

    fn wait(&mut self, until: Time, target: EndpointId, flight: Flight) {
        let serial = flight.serial;
        let give_up = (flight.rnr_retry < RNR_RETRY_INFINITE)
            .then(|| self.schedule(until, Event::GiveUp { target, serial }));
        if let Some(endpoint) = self.endpoints.get_mut(target) {
            endpoint.waiting.push_back(Waiting { flight, give_up });
        }
    }

    /// Delivers a packet, or an operation that takes a buffer, to a queue pair with a posted buffer.
    fn deliver(&mut self, time: Time, target: EndpointId, flight: Flight) {
        let Some(endpoint) = self.endpoints.get_mut(target) else { return };
        let Content::Packet { length, immediate, .. } = flight.content else {
            return self.deliver_rdma(time, target, flight);
        };
        let Some(mut packet) = endpoint.posted.pop_front() else { return };
        if packet.len() < length {
            endpoint.posted.push_front(packet);
            self.fail(time, flight, Status::RemoteBadLength);
            return;
        }
        packet[..length].copy_from_slice(flight.content.bytes());
        let source = endpoint.source(&self.hosts, &self.options, flight.source);
        endpoint.completions.push_back(Completion::Receive { packet, length, source, immediate });
        let latest = endpoint.latest.entry(flight.source).or_default();
        if flight.serial < *latest {
            self.statistics.overtaken += 1;
        }
        *latest = flight.serial.max(*latest);
        self.wake(target);
        self.statistics.received += 1;
        self.statistics.received_bytes += length as u64;
        self.tap(time, PacketEvent::Received, &flight);
        self.complete(time, flight, Ok(()));
    }

    /// Carries out an RDMA operation whose target was checked when it arrived.
    fn deliver_rdma(&mut self, time: Time, target: EndpointId, flight: Flight) {
        // The device must not access the memory of a requester whose queue pair is gone.
        if flight.sender.is_none_or(|(sender, _)| !self.endpoints.contains(sender)) {
            return;
        }
        let Some(endpoint) = self.endpoints.get_mut(target) else { return };
        // Checked again: it may have waited for a buffer, and the region may be gone.
        let Some(remote) = rdma_target(&self.hosts[endpoint.host.0].keys, &flight.content) else {
            return self.fail(time, flight, Status::RemoteBadAddress);
        };
        match &flight.content {
            Content::Packet { .. } => return,
            Content::Read { local, .. } => copy(&remote, local),
            Content::Write { local, immediate, .. } => {
                copy(local, &remote);
                if let Some(immediate) = *immediate {
                    let taken = flight.content.takes_buffer(self.options.rdma);
                    let packet = taken.then(|| endpoint.posted.pop_front()).flatten();
                    let source = endpoint.source(&self.hosts, &self.options, flight.source);
                    let length = local.length as u64;
                    let written = Completion::Written { immediate, length, source, packet };
                    endpoint.completions.push_back(written);
                }
            }
        }
        self.wake(target);
        self.statistics.rdma_bytes += remote.length as u64;
        self.complete(time, flight, Ok(()));
    }

    pub(super) fn fail(&mut self, time: Time, flight: Flight, status: Status) {
        self.statistics.failed += 1;
        if status == Status::ReceiverNotReady {
            self.statistics.receiver_not_ready += 1;
        }
        self.tap(time, PacketEvent::Failed(status), &flight);
        self.complete(time, flight, Err(status));
    }

    /// Completes a send after another latency.
    fn complete(&mut self, time: Time, flight: Flight, result: Result<(), Status>) {
        let Some((sender, id)) = flight.sender else { return };
        let mut time = time + self.draw_delay() + flight.completes_late;
        if self.options.reorder == Reorder::None
            && let Some(endpoint) = self.endpoints.get_mut(sender)
        {
            time = time.max(endpoint.completes_not_before);
            endpoint.completes_not_before = time;
        }
        let completion = flight.content.completion(id, result);
        self.schedule(time, Event::Complete { sender, completion });
    }

    fn keep_as_stale(&mut self, flight: &Flight) {
        if self.faults.keep_stale > 0 && flight.sender.is_some() {
            let packets = self.stale.entry(flight.destination).or_default();
            keep(packets, self.faults.keep_stale, || Stale::of(flight));
        }
    }

    pub(super) fn address_handle(&mut self, host: HostId, gid: Gid) -> Option<AddressHandle> {
        self.book(host).handle(DomainId::default(), gid)
    }
}
