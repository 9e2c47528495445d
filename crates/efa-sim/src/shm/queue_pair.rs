//! A queue pair of the shm link: everything that happens, happens in its [`poll`](QueuePair::poll).
//!
//! ```text
//!  poll ─► a completion is there? ─► take it
//!    │ none
//!    ├─► next watched ring: take packets into posted buffers
//!    ├─► bell rings? attach and watch who rang
//!    ├─► next peer with sends under way: take answers
//!    ├─► first RDMA operation: copy a piece
//!    └─► once a second: look after what the dead have left
//! ```

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use efa_device::{
    Access, AddressHandle, Completion, Destination, DeviceAttributes, DeviceError, Gid, NoTagList,
    PostError, Qkey, Qpn, QueuePair, QueuePairAddress, QueuePairOptions, RdmaRequest,
    RegisterError, SendRequest, Source, Status, Time,
};

use super::directory::HostDirectory;
use super::incoming::{Found, Incoming, Judge};
use super::mailbox::{EntryState, Mailbox, PeerMailbox, Sender};
use super::memory::HostMemory;
use super::operation::Operation;
use super::outgoing::{Content, Local, Outgoing, Posted};
use super::{ShmDevice, ShmOptions};
use crate::book::{AddressBook, HeldHandles};
use crate::delivered::Delivered;
use crate::faults::{FaultOptions, Faults};
use crate::kept::KeptNumber;
use crate::rdma::{self, Direction};
use crate::record::{PacketEvent, QueuePairId, Record, SharedSink, Sink};
use crate::region::SoftRegion;

type Packet = Box<[u8]>;

/// This number of retries at a receiver that is not ready means that there is no end of them.
const ENDLESS: u8 = 7;
/// How often entries of dead senders are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The device's address book. Its own interface is the only one that can be reached, so the handle
/// of that one is kept where it can be had without a lock.
#[derive(Debug)]
pub(super) struct Book {
    own_gid: Gid,
    own: AtomicU32,
    entries: Mutex<AddressBook>,
}

impl Book {
    /// No handle has this number.
    const NONE: u32 = u32::MAX;

    pub(super) fn new(own_gid: Gid, limit: usize) -> Self {
        let entries = Mutex::new(AddressBook::new(limit));
        Self { own_gid, own: AtomicU32::new(Self::NONE), entries }
    }

    fn lock(&self) -> MutexGuard<'_, AddressBook> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn acquire(&self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        let mut entries = self.lock();
        let handle = entries.acquire(gid)?;
        if gid == self.own_gid {
            self.own.store(u32::from(handle.0), Ordering::Relaxed);
        }
        Ok(handle)
    }

    pub(super) fn release(&self, handle: AddressHandle, count: u64) {
        let mut entries = self.lock();
        if entries.release(handle, count) && self.own.load(Ordering::Relaxed) == handle.0.into() {
            self.own.store(Self::NONE, Ordering::Relaxed);
        }
    }

    #[inline]
    fn own(&self) -> Option<AddressHandle> {
        u16::try_from(self.own.load(Ordering::Relaxed)).ok().map(AddressHandle)
    }

    fn knows(&self, handle: AddressHandle) -> bool {
        self.lock().gid(handle).is_some()
    }
}

/// Places for things that come and go, numbered from 0.
#[derive(Debug)]
struct Table<T> {
    places: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Table<T> {
    fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    fn insert(&mut self, item: T) -> usize {
        match self.free.pop() {
            Some(at) => {
                self.places[at] = Some(item);
                at
            }
            None => {
                self.places.push(Some(item));
                self.places.len() - 1
            }
        }
    }

    fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.places.get_mut(at)?.as_mut()
    }

    fn remove(&mut self, at: usize) -> Option<T> {
        let item = self.places.get_mut(at)?.take()?;
        self.free.push(at);
        Some(item)
    }
}

/// A queue pair of a [`ShmDevice`].
///
/// Dropping it answers the packets that others have sent to it, so that their sends end, and
/// removes its file. Its own packets that lie in rings are still delivered.
#[derive(Debug)]
pub struct ShmQueuePair {
    memory: Arc<HostMemory>,
    attributes: DeviceAttributes,
    address: QueuePairAddress,
    rnr_delay: Duration,
    tell_unknown_gid: bool,
    book: Arc<Book>,
    held: HeldHandles,
    capture: Option<SharedSink>,
    now: Time,
    next_sweep: Time,
    completions: VecDeque<Completion<Packet>>,

    posted: VecDeque<Packet>,
    /// Since when senders count how long it is not ready.
    ready_since: Option<Time>,
    /// Posted buffers whose completion was not taken yet.
    receives: usize,
    /// By entry of the mailbox.
    incoming: Vec<Option<Incoming>>,
    /// Entries that are looked at in turn; all others have to ring.
    watched: Vec<usize>,
    next_watched: usize,

    /// Accepted sends whose completion was not taken yet.
    sends: usize,
    outgoing: Table<Outgoing>,
    /// Place in `outgoing` + 1 by queue pair number, 0 for none.
    by_number: Box<[u16]>,
    /// Places with sends that are not answered.
    active: Vec<usize>,
    next_active: usize,
    local: Arc<Local>,
    /// RDMA operations, which count as sends too.
    operations: VecDeque<Operation>,
    /// What goes wrong with sends, if anything is to.
    faults: Option<Box<Faults<SendRequest<Packet>>>>,

    /// Last, so that rings are left before the file goes.
    mailbox: Mailbox,
}

impl ShmQueuePair {
    pub(super) fn new(
        device: &ShmDevice,
        settings: &ShmOptions,
        options: QueuePairOptions,
    ) -> Result<Self, DeviceError> {
        let mut attributes = device.attributes.clone();
        for (depth, limit) in [
            (options.send_depth, attributes.max_send),
            (options.receive_depth, attributes.max_receive),
        ] {
            if depth > limit {
                return Err(DeviceError::TooLong { length: depth as u64, limit: limit as u64 });
            }
        }
        attributes.max_send = options.send_depth;
        attributes.max_receive = options.receive_depth;
        let mailbox = Mailbox::create(&device.directory, settings.max_peers, attributes.mtu)?;
        let local = Arc::new(Local {
            directory: Arc::clone(&device.directory),
            sender: mailbox.as_sender(),
            mtu: attributes.mtu,
            ring_slots: settings.ring_slots,
            rnr_retry: options.rnr_retry,
            probe_after: settings.probe_after,
            attach_patience: settings.attach_patience,
        });
        let (gid, qpn) = (device.directory.gid(), mailbox.qpn());
        device.memory.add_queue_pair(qpn)?;
        Ok(Self {
            memory: Arc::clone(&device.memory),
            attributes,
            address: QueuePairAddress { gid, qpn, qkey: options.qkey },
            rnr_delay: settings.rnr_delay,
            tell_unknown_gid: settings.tell_unknown_gid,
            book: Arc::clone(&device.book),
            held: HeldHandles::default(),
            capture: settings.capture.clone(),
            now: Time::ZERO,
            next_sweep: Time::ZERO,
            completions: VecDeque::new(),
            posted: VecDeque::new(),
            ready_since: settings.rnr_at_start.then_some(Time::ZERO),
            receives: 0,
            incoming: (0..mailbox.peers()).map(|_| None).collect(),
            watched: Vec::new(),
            next_watched: 0,
            sends: 0,
            outgoing: Table::new(),
            by_number: vec![0; 1 << 16].into(),
            active: Vec::new(),
            next_active: 0,
            local,
            operations: VecDeque::new(),
            faults: (settings.faults != FaultOptions::NONE)
                .then(|| Box::new(Faults::new(settings.faults, qpn))),
            mailbox,
        })
    }

    #[inline(never)]
    fn take_completion(&mut self) -> Option<Completion<Packet>> {
        let completion = self.completions.pop_front()?;
        match &completion {
            Completion::Send { .. } | Completion::Rdma { .. } => self.sends -= 1,
            Completion::Receive { .. } | Completion::Written { packet: Some(_), .. } => {
                self.receives -= 1;
            }
            Completion::Written { packet: None, .. } => {}
        }
        Some(completion)
    }

    /// Sets the key that senders must present from now on.
    pub fn set_qkey(&mut self, qkey: Qkey) {
        self.address.qkey = qkey;
    }

    /// Ends it as a device ends one that has failed: nobody reaches it any more, and no other queue
    /// pair gets its number before the result is dropped.
    pub fn retire(self) -> KeptNumber {
        KeptNumber::new(self.mailbox.name())
    }

    /// Has immediate data of writes take a receive buffer, also on a device that can do without.
    pub fn take_buffers_for_writes(&mut self) {
        self.attributes.rdma.unsolicited_write_receive = false;
    }

    /// Sets how often the device tries again when a receiver is not ready; 7 means for ever. It
    /// holds for receivers that nothing was sent to yet.
    pub fn set_rnr_retry(&mut self, rnr_retry: u8) {
        self.local = Arc::new(Local { rnr_retry, ..(*self.local).clone() });
    }

    // ---- receiving ---------------------------------------------------------------------------

    /// Whether the next watched ring has packets, or has had none for so long that it should be
    /// thought about.
    #[inline]
    fn next_ring(&mut self) -> Option<usize> {
        if self.next_watched >= self.watched.len() {
            self.next_watched = 0;
        }
        let &slot = self.watched.get(self.next_watched)?;
        self.next_watched += 1;
        let incoming = self.incoming[slot].as_mut()?;
        incoming.wants_poll().then_some(slot)
    }

    #[inline(never)]
    fn poll_ring(&mut self, slot: usize) {
        let Some(incoming) = &mut self.incoming[slot] else { return };
        let source_qpn = incoming.sender().qpn;
        let address_handle = self.book.own();
        let gid = (address_handle.is_none() && self.tell_unknown_gid).then_some(self.address.gid);
        let source = Source { address_handle, qpn: source_qpn, gid };
        if self.ready_since.is_none() && !self.posted.is_empty() {
            self.ready_since = Some(self.now);
        }
        let mut judge = Judge {
            qkey: self.address.qkey,
            rnr_delay: self.rnr_delay,
            ready_since: self.ready_since,
            posted: &mut self.posted,
            now: self.now,
            unsolicited: self.attributes.rdma.unsolicited_write_receive,
        };
        let (completions, capture) = (&mut self.completions, &mut self.capture);
        let (now, me) = (self.now, QueuePairId::from(self.address));
        let found = incoming.poll(&mut judge, |delivered| {
            if let (Delivered::Datagram { packet, length, .. }, Some(sink)) =
                (&delivered, capture.as_mut())
            {
                let source = QueuePairId { gid: me.gid, qpn: source_qpn };
                record(sink, now, PacketEvent::Received, source, me, &packet[..*length]);
            }
            completions.push_back(delivered.completion(source));
        });
        match found {
            Ok(Found::Packets) => {}
            // One ring may stay: looking at it costs no more than looking at the bell.
            Ok(Found::Nothing) if self.watched.len() > 1 => self.unwatch(slot),
            Ok(Found::Nothing) => {}
            Ok(Found::End) => self.detach(slot),
            Err(broken) => {
                tracing::warn!(from = source_qpn.0, ?broken, "leaving a ring that makes no sense");
                self.detach(slot);
            }
        }
    }

    fn watch(&mut self, slot: usize) {
        if let Some(incoming) = &mut self.incoming[slot]
            && !incoming.is_watched()
        {
            incoming.set_watched(true);
            self.watched.push(slot);
        }
    }

    fn unwatch(&mut self, slot: usize) {
        self.watched.retain(|&watched| watched != slot);
        if let Some(incoming) = &mut self.incoming[slot] {
            incoming.set_watched(false);
        }
    }

    fn detach(&mut self, slot: usize) {
        self.unwatch(slot);
        if let Some(mut incoming) = self.incoming[slot].take() {
            incoming.leave();
            self.mailbox.set_entry(slot, EntryState::Free, incoming.sender());
        }
    }

    #[cold]
    fn answer_bell(&mut self) {
        let mut rang = Vec::new();
        self.mailbox.answer(|slot| rang.push(slot));
        for slot in rang {
            self.look_at_entry(slot);
        }
    }

    fn look_at_entry(&mut self, slot: usize) {
        let (state, sender, nonce) = self.mailbox.entry(slot);
        if state == EntryState::Announced && self.incoming[slot].is_none() {
            self.attach(slot, sender, nonce);
        }
        if self.incoming[slot].as_ref().is_some_and(Incoming::is_finished) {
            self.detach(slot);
        } else {
            self.watch(slot);
        }
    }

    fn attach(&mut self, slot: usize, sender: Sender, nonce: u64) {
        let directory = &self.local.directory;
        let incoming = Incoming::open(directory, self.address.qpn, sender, nonce);
        let state = match incoming {
            Some(_) => EntryState::Attached,
            None => EntryState::Refused,
        };
        tracing::debug!(from = sender.qpn.0, ?state, "a sender announced itself");
        self.mailbox.set_entry(slot, state, sender);
        self.incoming[slot] = incoming;
    }

    /// Gives entries of dead senders free, finds rings whose bell was lost, and gives up ways that
    /// lead nowhere any more: each takes a ring's memory and an open file.
    #[cold]
    fn sweep(&mut self) {
        self.next_sweep = self.now + SWEEP_EVERY;
        for place in 0..self.outgoing.places.len() {
            if self.outgoing.get_mut(place).is_some_and(|outgoing| outgoing.is_of_no_use()) {
                self.forget(place);
            }
        }
        for slot in 0..self.mailbox.peers() {
            let (state, sender, _) = self.mailbox.entry(slot);
            match (&mut self.incoming[slot], state) {
                (None, EntryState::Free) => {}
                (None, EntryState::Announced) => self.look_at_entry(slot),
                (None, _) => {
                    if !is_alive(&self.local.directory, sender) {
                        self.mailbox.set_entry(slot, EntryState::Free, sender);
                    }
                }
                (Some(incoming), _) if incoming.has_packets() => self.watch(slot),
                (Some(incoming), _) => {
                    let gone = incoming.is_finished()
                        || (incoming.quiet()
                            && !is_alive(&self.local.directory, incoming.sender()));
                    // Once more: it may have sent just before it died.
                    if gone && !incoming.has_packets() {
                        self.detach(slot);
                    }
                }
            }
        }
    }

    // ---- sending -----------------------------------------------------------------------------

    /// Looks at the next peer that owes answers.
    #[inline(never)]
    fn poll_active(&mut self) {
        if self.next_active >= self.active.len() {
            self.next_active = 0;
        }
        let Some(&place) = self.active.get(self.next_active) else { return };
        let Some(outgoing) = self.outgoing.get_mut(place) else { return };
        let mut finish = Finish {
            completions: &mut self.completions,
            capture: &mut self.capture,
            now: self.now,
            me: self.address.into(),
            peer: outgoing.peer(),
        };
        let there = outgoing.poll(self.now, |(posted, result)| finish.push(posted, result));
        if there && !outgoing.is_idle() {
            self.next_active += 1;
            return;
        }
        self.active.swap_remove(self.next_active);
        if !there {
            self.forget(place);
        }
    }

    fn forget(&mut self, place: usize) {
        if let Some(outgoing) = self.outgoing.remove(place) {
            self.by_number[usize::from(outgoing.peer().0)] = 0;
        }
    }

    /// The way to `peer`, opened if need be; `None` if there is no such queue pair. Another key
    /// than before may be that of a successor with the same number.
    #[inline]
    fn way_to(&mut self, peer: Qpn, key: Option<Qkey>) -> Result<Option<usize>, DeviceError> {
        let known = usize::from(self.by_number[usize::from(peer.0)]);
        if known > 0
            && let Some(outgoing) = self.outgoing.get_mut(known - 1)
            && !outgoing.is_abandoned()
            && outgoing.leads_to(key)
        {
            return Ok(Some(known - 1));
        }
        self.open_way(peer, key, known.checked_sub(1))
    }

    #[cold]
    fn open_way(
        &mut self,
        peer: Qpn,
        key: Option<Qkey>,
        old: Option<usize>,
    ) -> Result<Option<usize>, DeviceError> {
        if let Some(place) = old {
            self.end(place, Status::BadDestinationQpn);
            self.active.retain(|&active| active != place);
            self.forget(place);
        }
        let Some(outgoing) = Outgoing::open(&self.local, peer, key)? else { return Ok(None) };
        let place = self.outgoing.insert(outgoing);
        // There are fewer places than numbers, since 0 is no queue pair's.
        self.by_number[usize::from(peer.0)] = u16::try_from(place + 1).unwrap_or(0);
        Ok(Some(place))
    }

    fn end(&mut self, place: usize, status: Status) {
        let Some(outgoing) = self.outgoing.get_mut(place) else { return };
        let mut finish = Finish {
            completions: &mut self.completions,
            capture: &mut self.capture,
            now: self.now,
            me: self.address.into(),
            peer: outgoing.peer(),
        };
        outgoing.end(status, |(posted, result)| finish.push(posted, result));
    }

    /// Checks a send; gives the place of the way to its target, or how it ends at once.
    #[inline]
    fn admit(
        &mut self,
        request: &SendRequest<Packet>,
    ) -> Result<Result<usize, Status>, DeviceError> {
        let limit = self.attributes.mtu.min(request.packet.len());
        if request.length > limit {
            return Err(DeviceError::TooLong {
                length: request.length as u64,
                limit: limit as u64,
            });
        }
        let depth = self.attributes.max_send;
        if self.sends >= depth {
            return Err(DeviceError::QueueFull { depth });
        }
        self.route(request.destination)
    }

    /// The place of the way to a target, or how sends to it end at once.
    #[inline]
    fn route(&mut self, to: Destination) -> Result<Result<usize, Status>, DeviceError> {
        if let Err(status) = self.check_handle(to.address_handle)? {
            return Ok(Err(status));
        }
        Ok(self.way_to(to.qpn, Some(to.qkey))?.ok_or(Status::BadDestinationQpn))
    }

    /// Whether what an address handle names can be reached.
    #[inline]
    fn check_handle(&self, handle: AddressHandle) -> Result<Result<(), Status>, DeviceError> {
        if self.book.own() == Some(handle) {
            return Ok(Ok(()));
        }
        if self.book.knows(handle) {
            return Ok(Err(Status::UnreachableRemote));
        }
        Err(DeviceError::BadAddressHandle { handle })
    }

    /// Sends a datagram that was admitted.
    #[inline]
    fn send(&mut self, way: Result<usize, Status>, request: SendRequest<Packet>) {
        let SendRequest { id, packet, length, destination, immediate } = request;
        if let Some(sink) = &mut self.capture {
            let to = QueuePairId { gid: self.address.gid, qpn: destination.qpn };
            let me = self.address.into();
            record(sink, self.now, PacketEvent::Sent, me, to, &packet[..length]);
        }
        let content = Content::Datagram { packet, length };
        let posted = Posted { id, content, immediate, qkey: destination.qkey };
        self.launch(way, destination.qpn, posted);
    }

    /// Takes a send as if its target had no buffer for it: it ends with
    /// [`Status::ReceiverNotReady`].
    ///
    /// # Errors
    /// As [`post_send`](QueuePair::post_send).
    pub fn bounce(&mut self, request: SendRequest<Packet>) -> Result<(), PostError<Packet>> {
        if let Err(error) = self.admit(&request) {
            return Err(PostError { error, packet: request.packet });
        }
        self.sends += 1;
        self.send(Err(Status::ReceiverNotReady), request);
        Ok(())
    }

    /// The same when something is to go wrong.
    #[cold]
    fn send_with_faults(&mut self, request: SendRequest<Packet>) {
        if let Some(request) = self.faults.as_mut().and_then(|faults| faults.hold(request)) {
            self.send_as_drawn(request);
        }
    }

    #[cold]
    fn send_due(&mut self) {
        if let Some(faults) = &mut self.faults {
            faults.poll();
        }
        while let Some(request) = self.faults.as_mut().and_then(|faults| faults.due()) {
            self.send_as_drawn(request);
        }
    }

    fn send_as_drawn(&mut self, request: SendRequest<Packet>) {
        let datagram = &request.packet[..request.length];
        let not_ready = self.faults.as_mut().is_some_and(|faults| faults.draw_not_ready(datagram));
        let way = match not_ready && self.local.rnr_retry < ENDLESS {
            true => Err(Status::ReceiverNotReady),
            // It was admitted once, but its address handle may be gone by now.
            false => self.route(request.destination).unwrap_or(Err(Status::UnreachableRemote)),
        };
        self.send(way, request);
    }

    /// Puts a send on its way, or ends it.
    #[inline]
    fn launch(&mut self, way: Result<usize, Status>, peer: Qpn, posted: Posted) {
        match way {
            Ok(place) => {
                if let Some(outgoing) = self.outgoing.get_mut(place) {
                    if outgoing.is_idle() {
                        self.active.push(place);
                    }
                    outgoing.post(posted);
                }
            }
            Err(status) => Finish {
                completions: &mut self.completions,
                capture: &mut self.capture,
                now: self.now,
                me: self.address.into(),
                peer,
            }
            .push(posted, Err(status)),
        }
    }

    // ---- RDMA --------------------------------------------------------------------------------

    fn post_operation(
        &mut self,
        request: RdmaRequest<SoftRegion>,
        direction: Direction,
    ) -> Result<(), DeviceError> {
        rdma::check(&self.attributes, &request, direction)?;
        let depth = self.attributes.max_send;
        if self.sends >= depth {
            return Err(DeviceError::QueueFull { depth });
        }
        let reached = self.check_handle(request.destination.address_handle)?;
        self.sends += 1;
        match reached {
            Ok(()) => self.operations.push_back(Operation::new(request, direction)),
            Err(status) => {
                let (id, result) = (request.id, Err(status));
                self.completions.push_back(Completion::Rdma { id, result });
            }
        }
        Ok(())
    }

    /// Copies a piece for the first operation.
    #[inline(never)]
    fn operate(&mut self) {
        let Some(operation) = self.operations.front_mut() else { return };
        let result = match operation.step(&self.memory) {
            Ok(true) => return,
            Ok(false) => Ok(()),
            Err(status) => Err(status),
        };
        let (id, peer, length) = (operation.id, operation.peer, operation.length());
        let direction = operation.direction;
        self.operations.pop_front();
        match (result, direction) {
            (Ok(()), Direction::Write(Some(immediate))) => {
                let way = match self.way_to(peer, None) {
                    Ok(way) => way.ok_or(Status::BadDestinationQpn),
                    Err(error) => {
                        tracing::warn!(%error, "no way for immediate data");
                        Err(Status::QueuePairInternal)
                    }
                };
                let (content, immediate) = (Content::Written(length), Some(immediate));
                self.launch(way, peer, Posted { id, content, immediate, qkey: Qkey(0) });
            }
            (result, _) => self.completions.push_back(Completion::Rdma { id, result }),
        }
    }
}

/// Where sends to one peer end.
struct Finish<'a> {
    completions: &'a mut VecDeque<Completion<Packet>>,
    capture: &'a mut Option<SharedSink>,
    now: Time,
    me: QueuePairId,
    peer: Qpn,
}

impl Finish<'_> {
    #[inline]
    fn push(&mut self, posted: Posted, result: Result<(), Status>) {
        let Posted { id, content, .. } = posted;
        let Content::Datagram { packet, length } = content else {
            self.completions.push_back(Completion::Rdma { id, result });
            return;
        };
        if let (Some(sink), Err(status)) = (&mut self.capture, result) {
            let peer = QueuePairId { gid: self.me.gid, qpn: self.peer };
            let event = PacketEvent::Failed(status);
            record(sink, self.now, event, self.me, peer, &packet[..length]);
        }
        self.completions.push_back(Completion::Send { id, packet, result });
    }
}

#[cold]
fn record(
    sink: &mut SharedSink,
    time: Time,
    event: PacketEvent,
    source: QueuePairId,
    destination: QueuePairId,
    bytes: &[u8],
) {
    sink.record(&Record { time, event, source, destination, bytes: Cow::Borrowed(bytes) });
}

/// Whether the queue pair of this sender is still there, and has not retired. If the system can't
/// tell, it is.
fn is_alive(directory: &HostDirectory, sender: Sender) -> bool {
    match PeerMailbox::open(directory, sender.qpn) {
        Ok(Some(mailbox)) => mailbox.is(sender) && !mailbox.is_closed(),
        Ok(None) => false,
        Err(_) => true,
    }
}

impl QueuePair for ShmQueuePair {
    type Packet = Packet;
    type Region = SoftRegion;
    type TagList = NoTagList;

    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn address(&self) -> QueuePairAddress {
        self.address
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        let handle = self.book.acquire(gid)?;
        self.held.add(handle);
        Ok(handle)
    }

    fn destroy_address_handle(&mut self, handle: AddressHandle) {
        if self.held.take(handle) {
            self.book.release(handle, 1);
        }
    }

    fn allocate_packet(&mut self) -> Result<Packet, DeviceError> {
        Ok(vec![0; self.attributes.mtu].into())
    }

    #[inline]
    fn post_send(&mut self, request: SendRequest<Packet>) -> Result<(), PostError<Packet>> {
        let place = match self.admit(&request) {
            Ok(place) => place,
            Err(error) => return Err(PostError { error, packet: request.packet }),
        };
        self.sends += 1;
        match self.faults {
            None => self.send(place, request),
            Some(_) => self.send_with_faults(request),
        }
        Ok(())
    }

    #[inline]
    fn post_receive(&mut self, packet: Packet) -> Result<(), PostError<Packet>> {
        let depth = self.attributes.max_receive;
        if self.receives >= depth {
            return Err(PostError { error: DeviceError::QueueFull { depth }, packet });
        }
        self.receives += 1;
        self.posted.push_back(packet);
        Ok(())
    }

    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<SoftRegion, RegisterError> {
        self.memory.keys().register(memory, access)
    }

    fn region(&self, key: u32) -> Option<SoftRegion> {
        self.memory.keys().find(key)
    }

    fn post_read(&mut self, request: RdmaRequest<SoftRegion>) -> Result<(), DeviceError> {
        self.post_operation(request, Direction::Read)
    }

    fn post_write(
        &mut self,
        request: RdmaRequest<SoftRegion>,
        immediate: Option<u32>,
    ) -> Result<(), DeviceError> {
        self.post_operation(request, Direction::Write(immediate))
    }

    #[inline]
    fn poll(&mut self, now: Time) -> Option<Completion<Packet>> {
        if self.completions.is_empty() {
            self.now = now;
            if self.faults.is_some() {
                self.send_due();
            }
            if let Some(slot) = self.next_ring() {
                self.poll_ring(slot);
            }
            if self.mailbox.rings() {
                self.answer_bell();
            }
            if !self.active.is_empty() {
                self.poll_active();
            }
            if !self.operations.is_empty() {
                self.operate();
            }
            if now >= self.next_sweep {
                self.sweep();
            }
            if self.completions.is_empty() {
                return None;
            }
        }
        self.take_completion()
    }

    /// `None` unless a completion is there: when other processes act is not known.
    fn next_event(&self) -> Option<Time> {
        (!self.completions.is_empty()).then_some(self.now)
    }
}

impl Drop for ShmQueuePair {
    fn drop(&mut self) {
        for (handle, count) in self.held.drain() {
            self.book.release(handle, count);
        }
        self.memory.remove_queue_pair(self.address.qpn);
        // First no more senders, then the end of those that are there.
        self.mailbox.close();
        for incoming in self.incoming.iter_mut().flatten() {
            incoming.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use efa_device::{Destination, Device, WorkId};

    use super::*;
    use crate::map::Map;

    /// A host of its own, removed at the end.
    struct Host(std::path::PathBuf);

    impl Host {
        fn new() -> Self {
            let name = format!("efa-sim-{}-{:016x}", std::process::id(), fastrand::u64(..));
            Self(std::env::temp_dir().join(name))
        }

        fn device(&self) -> ShmDevice {
            let mut options = ShmOptions::new("host");
            options.directory = Some(self.0.clone());
            options.ring_slots = 4;
            options.mtu = 64;
            options.max_peers = 2;
            ShmDevice::open(options).unwrap()
        }
    }

    impl Host {
        fn map(&self, name: &str) -> Option<Map> {
            let path = self.0.join("host").join(name);
            let file = std::fs::File::options().read(true).write(true).open(path).ok()?;
            let length = file.metadata().unwrap().len() as usize;
            Some(Map::new(&file, length).unwrap())
        }

        /// A ring that nobody has attached yet.
        fn ring(&self) -> Option<Map> {
            let mut entries = std::fs::read_dir(self.0.join("host")).unwrap();
            entries.find_map(|entry| {
                let name = entry.unwrap().file_name().into_string().unwrap();
                name.starts_with("ring-").then(|| self.map(&name)).flatten()
            })
        }
    }

    impl Drop for Host {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn queue_pair(device: &ShmDevice) -> ShmQueuePair {
        device.create_queue_pair(QueuePairOptions::default()).unwrap()
    }

    #[test]
    fn a_ring_that_is_none_is_refused() {
        let host = Host::new();
        let device = host.device();
        let mut qp = queue_pair(&device);
        let mailbox = PeerMailbox::open(&device.directory, qp.address().qpn).unwrap().unwrap();
        let other = queue_pair(&device);
        let sender = other.mailbox.as_sender();
        let slot = mailbox.claim(sender).unwrap();
        mailbox.announce(slot, sender, 0x1234);
        assert!(qp.poll(Time::ZERO).is_none());
        assert!(mailbox.take_refusal(slot, sender));
        assert_eq!(qp.mailbox.entry(slot).0, EntryState::Free);
        // One that dies before it takes the refusal leaves the entry to the sweep.
        let slot = mailbox.claim(sender).unwrap();
        drop(other);
        assert!(qp.poll(Time::ZERO + SWEEP_EVERY).is_none());
        assert_eq!(qp.mailbox.entry(slot).0, EntryState::Free);
    }

    #[test]
    fn a_lost_bell_is_made_good() {
        let host = Host::new();
        let device = host.device();
        let (mut a, mut b) = (queue_pair(&device), queue_pair(&device));
        assert!(b.poll(Time::ZERO).is_none());
        let to = b.address();
        let handle = a.create_address_handle(to.gid).unwrap();
        let destination = Destination { address_handle: handle, qpn: to.qpn, qkey: Qkey(0) };
        let packet = a.allocate_packet().unwrap();
        a.post_send(SendRequest { id: WorkId(1), packet, length: 5, destination, immediate: None })
            .unwrap();
        assert!(b.mailbox.rings());
        b.mailbox.answer(|_| {});
        let buffer = b.allocate_packet().unwrap();
        b.post_receive(buffer).unwrap();
        assert!(b.poll(Time::ZERO).is_none(), "nobody rang and nothing is watched");
        let later = Time::ZERO + SWEEP_EVERY;
        assert!(b.poll(later).is_none(), "now it is attached");
        assert!(matches!(b.poll(later), Some(Completion::Receive { length: 5, .. })));
    }

    #[test]
    fn a_ring_without_traffic_is_watched_no_longer_and_rings_again() {
        let host = Host::new();
        let device = host.device();
        let (mut a, mut b) = (queue_pair(&device), queue_pair(&device));
        let mut c = queue_pair(&device);
        let to = c.address();
        let send = |from: &mut ShmQueuePair, c: &mut ShmQueuePair| {
            let address_handle = from.create_address_handle(to.gid).unwrap();
            let destination = Destination { address_handle, qpn: to.qpn, qkey: Qkey(0) };
            let packet = from.allocate_packet().unwrap();
            from.post_send(SendRequest {
                id: WorkId(1),
                packet,
                length: 5,
                destination,
                immediate: None,
            })
            .unwrap();
            let buffer = c.allocate_packet().unwrap();
            c.post_receive(buffer).unwrap();
            let mut polls = 0;
            while c.poll(Time::ZERO).is_none() {
                polls += 1;
                assert!(polls < 10);
            }
            assert!(matches!(from.poll(Time::ZERO), Some(Completion::Send { result: Ok(()), .. })));
        };
        send(&mut a, &mut c);
        send(&mut b, &mut c);
        assert_eq!(c.watched.len(), 2);
        for _ in 0..10_000 {
            assert!(c.poll(Time::ZERO).is_none());
        }
        assert_eq!(c.watched.len(), 1);
        for from in [&mut a, &mut b] {
            send(from, &mut c);
        }
        assert_eq!(c.watched.len(), 2);
    }

    #[test]
    fn the_way_to_a_peer_that_has_left_is_given_up() {
        let host = Host::new();
        let device = host.device();
        let mut server = queue_pair(&device);
        let address_handle = server.create_address_handle(server.address().gid).unwrap();
        let mut now = Time::ZERO;
        for _ in 0..5 {
            let mut client = queue_pair(&device);
            let QueuePairAddress { qpn, qkey, .. } = client.address();
            let destination = Destination { address_handle, qpn, qkey };
            let packet = server.allocate_packet().unwrap();
            let request =
                SendRequest { id: WorkId(1), packet, length: 5, destination, immediate: None };
            server.post_send(request).unwrap();
            let buffer = client.allocate_packet().unwrap();
            client.post_receive(buffer).unwrap();
            assert!((0..10).any(|_| client.poll(now).is_some()));
            assert!(matches!(server.poll(now), Some(Completion::Send { result: Ok(()), .. })));
            drop(client);
            now += SWEEP_EVERY;
            assert!(server.poll(now).is_none());
        }
        assert_eq!(server.outgoing.free.len(), server.outgoing.places.len(), "rings are kept");
    }

    /// Somebody writes anything anywhere into the shared files, all the time.
    #[test]
    fn whatever_is_in_shared_memory_nothing_panics_and_every_send_ends() {
        for seed in 0..50 {
            scribble(seed);
        }
    }

    fn scribble(seed: u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let host = Host::new();
        let device = host.device();
        let (mut a, mut b) = (queue_pair(&device), queue_pair(&device));
        let to = b.address();
        let address_handle = a.create_address_handle(to.gid).unwrap();
        let destination = Destination { address_handle, qpn: to.qpn, qkey: Qkey(0) };
        let mut now = Time::ZERO;
        let mut maps = vec![host.map(&format!("qp-{}", to.qpn.0)).unwrap()];
        let (mut posted, mut ended) = (0, 0);
        for _ in 0..300 {
            if rng.u8(..) < 60 {
                let map = &maps[rng.usize(..maps.len())];
                // Most words of interest are near the front; small numbers are the likely lies.
                let words = map.length() / 8;
                let at = if rng.bool() { rng.usize(..words) } else { rng.usize(..words.min(80)) };
                let value = if rng.bool() { rng.u64(..) } else { rng.u64(..8) };
                map.words::<1>(at * 8)[0].store(value, Ordering::Relaxed);
            }
            let packet = a.allocate_packet().unwrap();
            let request =
                SendRequest { id: WorkId(0), packet, length: 64, destination, immediate: None };
            posted += usize::from(a.post_send(request).is_ok());
            // Each ring as soon as it is made; attached, its file is gone.
            maps.extend(host.ring());
            let buffer = b.allocate_packet().unwrap();
            let _ = b.post_receive(buffer);
            for _ in 0..rng.u8(..40) {
                now += Duration::from_micros(rng.u64(..200_000));
                if let Some(Completion::Receive { length, .. }) = b.poll(now) {
                    assert!(length <= 64);
                }
                ended += usize::from(matches!(a.poll(now), Some(Completion::Send { .. })));
            }
        }
        drop(b);
        for _ in 0..100_000 {
            now += Duration::from_millis(1);
            ended += usize::from(matches!(a.poll(now), Some(Completion::Send { .. })));
        }
        assert_eq!(ended, posted, "seed {seed}");
    }
}
