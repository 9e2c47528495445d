//! An endpoint's engine, and what joins it to address vector and completion queues.
//!
//! ```text
//!   FiAddr ─► peers ─► PeerId ─► engine ─► completion ─► held back? ─► completion queue
//! ```

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use efa_device::{QueuePair, Time};
use efa_rdm::{
    Accept, Atomic, AtomicCompletion, AtomicKind, AtomicOp, Completion as Ended, Datatype,
    InPlaceCompletion, InPlaceQueue, Level, Operands, OperationError, PeerId, Read,
    ReceiveCompletion, ReceiveId, Remote, RemoteWrite, RmaCompletion, RmaKind, SendCompletion,
    StartError as EngineError, Statistics, Subprotocol, Write,
};

use crate::address::Address;
use crate::address_vector::{FiAddr, Shared as AddressVector};
use crate::buffer::{Buffer, Parts, Role, Slot};
use crate::clock::Clock;
use crate::completion::{Completion, CompletionError, Kind, Refused, StartError};
use crate::completion_queue::{Entry, Place, Reader, Shared as CompletionQueue};
use crate::counter::Counters;
use crate::device::{Own, OwnPacket};
use crate::event::Event;
use crate::packet::Packet;

/// What an endpoint is bound to.
#[derive(Debug)]
pub(crate) struct Bindings {
    /// Where operations complete. Both may be the same.
    pub(crate) transmit: Arc<CompletionQueue>,
    pub(crate) receive: Arc<CompletionQueue>,
    pub(crate) addresses: Arc<AddressVector>,
    pub(crate) sources: Sources,
    pub(crate) counters: Counters,
}

/// The engine over a queue pair.
pub(crate) type Engine<Q> = efa_rdm::Endpoint<Q, Slot>;

#[derive(Debug)]
pub(crate) struct Driver<Q: QueuePair<Region: Own, Packet: OwnPacket>> {
    /// Dropped before the lanes, and its queue pair with it.
    engine: Engine<Q>,
    addresses: Arc<AddressVector>,
    sources: Sources,
    peers: PeerMap,
    /// Addresses that the engine takes for gone since they were taken out of the address vector.
    left: HashSet<Address>,
    transmit: Lane,
    receive: Lane,
    /// `None`: nobody counts.
    counters: Option<Box<Counters>>,
    /// Ends of multi-receives of which messages are still coming in.
    endings: Vec<(Parts, Entry)>,
    /// When the clock was read last, and looks for something new.
    now: Time,
    looks: u32,
}

/// Looks for something new between two of the host's clock, which takes longer to read than a device
/// that has nothing to tell. When something is timed it is read each time.
const LOOKS: u32 = 8;

/// Whether completions of receives tell who sent the message (`FI_SOURCE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sources {
    Told,
    Untold,
}

/// One direction's way to its completion queue.
#[derive(Debug)]
struct Lane {
    queue: Arc<CompletionQueue>,
    /// Operations under way, each with a place in the queue.
    under_way: usize,
    /// Completions that found no place: the queue is full, and they are of multi-receive or
    /// injected messages, or came behind such.
    held_back: VecDeque<(Place, Entry)>,
    /// The endpoint is being dropped: all completions are held back until its queue pair is gone.
    ends: bool,
}

/// The engine's peers by their index in the address vector, and back. Both are dense.
#[derive(Debug, Default)]
struct PeerMap {
    by_addr: Vec<Option<PeerId>>,
    by_peer: Vec<Option<FiAddr>>,
}

impl Lane {
    fn new(queue: Arc<CompletionQueue>) -> Self {
        Self { queue, under_way: 0, held_back: VecDeque::new(), ends: false }
    }

    /// Takes a place for an operation.
    fn start(&mut self) -> Result<(), StartError> {
        if !self.queue.take_place() {
            return Err(StartError::QueueFull { capacity: self.queue.capacity() });
        }
        self.under_way += 1;
        Ok(())
    }

    /// An operation was not started after all, or ended and has its completion with the reader: it
    /// needs no place any more.
    #[inline]
    fn end(&mut self) {
        self.under_way -= 1;
        self.queue.give_places(1);
    }

    /// Puts a completion into the queue.
    #[inline(never)]
    fn deliver(&mut self, place: Place, entry: Entry) {
        if place == Place::Reserved {
            self.under_way -= 1;
        }
        if self.ends || !self.held_back.is_empty() {
            self.held_back.push_back((place, entry));
        } else if let Some(entry) = self.queue.push(place, entry) {
            self.held_back.push_back((place, entry));
        }
    }

    /// Gives a completion to the reader, if it is for that one, and tells so; otherwise puts it into
    /// the queue.
    fn give(&mut self, reader: &mut Reader<'_>, place: Place, entry: Entry) -> bool {
        if !reader.is_of(&self.queue) {
            self.deliver(place, entry);
            return false;
        }
        *reader.entry = Some(entry);
        if place == Place::Reserved {
            self.end();
        }
        true
    }

    /// Whether nothing waits for room any more.
    #[inline(always)]
    fn is_clear(&mut self) -> bool {
        self.held_back.is_empty() || self.catch_up()
    }

    /// Delivers what there is room for, and tells whether that was all.
    #[cold]
    fn catch_up(&mut self) -> bool {
        while let Some((place, entry)) = self.held_back.pop_front() {
            if let Some(entry) = self.queue.push(place, entry) {
                self.held_back.push_front((place, entry));
                return false;
            }
        }
        true
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Messages that were acknowledged, and buffers: nobody else has them, and no device.
        self.queue.append(self.held_back.drain(..));
        self.queue.give_places(self.under_way);
    }
}

impl<Q: QueuePair<Region: Own, Packet: OwnPacket>> Driver<Q> {
    pub(crate) fn new(engine: Engine<Q>, bindings: Bindings) -> Self {
        let Bindings { transmit, receive, addresses, sources, counters } = bindings;
        Self {
            engine,
            addresses,
            sources,
            peers: PeerMap::default(),
            left: HashSet::new(),
            transmit: Lane::new(transmit),
            receive: Lane::new(receive),
            counters: (!counters.is_empty()).then(|| Box::new(counters)),
            endings: Vec::new(),
            now: Time::ZERO,
            // The first look reads the clock: the fabric may be old.
            looks: LOOKS - 1,
        }
    }

    pub(crate) fn address(&self) -> Address {
        self.engine.address().into()
    }

    pub(crate) fn inject_limit(&self) -> usize {
        self.engine.inject_limit()
    }

    pub(crate) fn send(
        &mut self,
        to: FiAddr,
        tag: Option<u64>,
        cq_data: Option<u64>,
        level: Level,
        buffer: Buffer,
        context: u64,
    ) -> Result<(), Refused> {
        let peer = match self.peer(to).and_then(|peer| self.transmit.start().map(|()| peer)) {
            Ok(peer) => peer,
            Err(error) => return Err(Refused { error, buffer }),
        };
        let buffer = Slot::whole(buffer);
        let message = efa_rdm::Message { peer, tag, cq_data, level, buffer, context };
        let started = self.engine.send(message).map(|_| ());
        started.map_err(|refused| {
            self.transmit.end();
            Refused {
                error: translate(refused.error, Some(to)),
                buffer: refused.buffer.into_buffer(),
            }
        })
    }

    pub(crate) fn inject(
        &mut self,
        to: FiAddr,
        tag: Option<u64>,
        cq_data: Option<u64>,
        buffer: &[u8],
    ) -> Result<(), StartError> {
        let peer = self.peer(to)?;
        let level = Level::Transmit;
        let message = efa_rdm::Message { peer, tag, cq_data, level, buffer, context: 0 };
        self.engine.inject(message).map_err(|error| translate(error, Some(to)))
    }

    pub(crate) fn write(
        &mut self,
        to: FiAddr,
        remote: Remote,
        cq_data: Option<u64>,
        level: Level,
        buffer: Buffer,
        context: u64,
    ) -> Result<(), Refused> {
        self.start_rma(to, buffer, |engine, peer, buffer| {
            engine.write(Write { peer, remote, buffer, cq_data, level, context })
        })
    }

    pub(crate) fn read(
        &mut self,
        from: FiAddr,
        remote: Remote,
        buffer: Buffer,
        context: u64,
    ) -> Result<(), Refused> {
        self.start_rma(from, buffer, |engine, peer, buffer| {
            engine.read(Read { peer, remote, buffer, context })
        })
    }

    fn start_rma(
        &mut self,
        to: FiAddr,
        buffer: Buffer,
        start: impl FnOnce(&mut Engine<Q>, PeerId, Slot) -> Result<(), efa_rdm::Refused<Slot>>,
    ) -> Result<(), Refused> {
        let peer = match self.peer(to).and_then(|peer| self.transmit.start().map(|()| peer)) {
            Ok(peer) => peer,
            Err(error) => return Err(Refused { error, buffer }),
        };
        start(&mut self.engine, peer, Slot::whole(buffer)).map_err(|refused| {
            self.transmit.end();
            Refused {
                error: translate(refused.error, Some(to)),
                buffer: refused.buffer.into_buffer(),
            }
        })
    }

    pub(crate) fn atomic(
        &mut self,
        to: FiAddr,
        remote: Remote,
        (op, datatype): (AtomicOp, Datatype),
        level: Level,
        operands: Operands<Buffer>,
        context: u64,
    ) -> Result<(), Refused> {
        let peer = match self.peer(to).and_then(|peer| self.transmit.start().map(|()| peer)) {
            Ok(peer) => peer,
            Err(error) => {
                return Err(Refused { error, buffer: operands.into_fetched().unwrap_or_default() });
            }
        };
        let operands = operands.map(Slot::whole);
        let atomic = Atomic { peer, remote, datatype, op, operands, level, context };
        self.engine.atomic(atomic).map_err(|refused| {
            self.transmit.end();
            let buffer = refused.operands.map(Slot::into_buffer).into_fetched().unwrap_or_default();
            Refused { error: translate(refused.error, Some(to)), buffer }
        })
    }

    pub(crate) fn atomic_limit(&self, kind: AtomicKind) -> usize {
        self.engine.atomic_limit(kind)
    }

    pub(crate) fn receive(
        &mut self,
        source: Option<FiAddr>,
        tag: Option<(u64, u64)>,
        buffer: Buffer,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        self.start_receive(source, Slot::whole(buffer), |engine, source, slot| {
            let accept = match tag {
                Some((tag, ignore)) => Accept::Tagged { source, tag, ignore },
                None => Accept::Untagged { source },
            };
            engine.receive(accept, slot, context)
        })
    }

    pub(crate) fn receive_many(
        &mut self,
        source: Option<FiAddr>,
        buffer: Buffer,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        self.start_receive(source, Slot::for_many(buffer), |engine, source, slot| {
            engine.receive_many(source, slot, context)
        })
    }

    fn start_receive(
        &mut self,
        source: Option<FiAddr>,
        slot: Slot,
        post: impl FnOnce(
            &mut Engine<Q>,
            Option<PeerId>,
            Slot,
        ) -> Result<ReceiveId, efa_rdm::Refused<Slot>>,
    ) -> Result<ReceiveId, Refused> {
        let peer = source.map(|source| self.peer(source)).transpose();
        let peer = match peer.and_then(|peer| self.receive.start().map(|()| peer)) {
            Ok(peer) => peer,
            Err(error) => return Err(Refused { error, buffer: slot.into_buffer() }),
        };
        post(&mut self.engine, peer, slot).map_err(|refused| {
            self.receive.end();
            Refused {
                error: translate(refused.error, source),
                buffer: refused.buffer.into_buffer(),
            }
        })
    }

    pub(crate) fn cancel(&mut self, receive: ReceiveId) -> bool {
        let cancelled = self.engine.cancel(receive);
        self.deliver();
        cancelled
    }

    pub(crate) fn event(&mut self) -> Option<Event> {
        while let Some(event) = self.engine.poll_event() {
            let address = |peer| self.engine.peer_address(peer).map(Address::from);
            if let Some(event) = Event::translate(event, address) {
                return Some(event);
            }
        }
        None
    }

    pub(crate) fn statistics(&mut self) -> Statistics {
        self.engine.statistics().clone()
    }

    /// Whether no send is under way and no packet is owed to anyone.
    pub(crate) fn is_quiet(&self) -> bool {
        self.transmit.under_way == 0 && self.engine.is_quiet()
    }

    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.engine.next_timeout()
    }

    /// Moves the operations on. Completions go to their queues.
    pub(crate) fn progress(&mut self, clock: &Clock) {
        self.poll(clock, Reader { queue: None, entry: &mut None });
    }

    /// Moves the operations on until one ends whose completion is for the reader, who is given that,
    /// and tells whether one did. Completions that are not for the reader go to their queues.
    ///
    /// While completions wait for room the endpoint rests, and its peers find it not ready.
    #[inline]
    pub(crate) fn poll(&mut self, clock: &Clock, mut reader: Reader<'_>) -> bool {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS) || self.engine.is_timed() || clock.is_manual() {
            self.now = clock.now();
        }
        while self.transmit.is_clear() && self.receive.is_clear() {
            // What lies in the queue by now, by this call or that of another thread, is older than
            // what ends next.
            if reader.queue.is_some_and(CompletionQueue::has_entries) {
                break;
            }
            if Q::IN_PLACE && self.hand_over(&mut reader) {
                return true;
            }
            let Some(ended) = self.engine.poll(self.now) else {
                if Q::IN_PLACE && self.hand_over(&mut reader) {
                    return true;
                }
                break;
            };
            if self.give(ended, &mut reader) {
                return true;
            }
        }
        if let Some(counters) = &mut self.counters {
            counters.follow(self.engine.statistics());
        }
        false
    }

    /// The address vector has new peers: the engine must listen again to those that had left.
    /// Others become known to it when they are used.
    pub(crate) fn welcome(&mut self, peers: &[(FiAddr, Address)]) {
        for (addr, address) in peers {
            // Taken out again meanwhile? Under the lock of this driver that can't go unnoticed.
            let is_in = || self.addresses.address(*addr) == Some(*address);
            if self.left.contains(address) && is_in() {
                self.left.remove(address);
                // If the device refuses now, the first use of the peer will tell.
                if let Ok(peer) = self.engine.insert_peer(address.raw()) {
                    self.peers.insert(*addr, peer);
                }
            }
        }
    }

    /// The address vector takes a peer out.
    pub(crate) fn forget(&mut self, addr: FiAddr, address: &Address) {
        let was_used = self.peers.remove(addr).is_some();
        let known = self.engine.find_peer(&address.raw());
        if let Some(peer) = known {
            self.engine.remove_peer(peer);
        }
        if was_used || known.is_some() {
            self.left.insert(*address);
        }
        self.deliver();
    }

    /// The engine's peer for an index, made known to it if it was not.
    fn peer(&mut self, addr: FiAddr) -> Result<PeerId, StartError> {
        if let Some(peer) = self.peers.peer(addr) {
            return Ok(peer);
        }
        let address = self.addresses.address(addr).ok_or(StartError::UnknownAddress(addr))?;
        let peer = self.engine.insert_peer(address.raw())?;
        self.peers.insert(addr, peer);
        Ok(peer)
    }

    /// Puts what ended in the engine into the completion queues.
    fn deliver(&mut self) {
        while let Some(ended) = self.engine.poll_completion() {
            self.give(ended, &mut Reader { queue: None, entry: &mut None });
        }
        if Q::IN_PLACE {
            self.hand_over(&mut Reader { queue: None, entry: &mut None });
        }
        if let Some(counters) = &mut self.counters {
            counters.follow(self.engine.statistics());
        }
    }

    /// Gives the completion of what ended to the reader, if it is for that one, and tells so; otherwise
    /// puts it into its queue.
    #[inline(always)]
    fn give(&mut self, ended: Ended<Slot>, reader: &mut Reader<'_>) -> bool {
        match ended {
            // As most end: told here, so that nothing of it is moved about.
            Ended::Receive(ReceiveCompletion {
                context,
                peer,
                tagged,
                tag,
                length,
                cq_data,
                subprotocol,
                buffer: Slot { buffer, role: Role::Whole },
                result: Ok(()),
            }) if reader.is_of(&self.receive.queue) => {
                let kind = Kind::Receive;
                self.count(kind, false, &Ok(()));
                let (peer, peer_address) = self.sender(peer);
                let tag = tagged.then_some(tag);
                *reader.entry = Some(Ok(Completion {
                    context,
                    kind,
                    length,
                    buffer,
                    tag,
                    cq_data,
                    peer,
                    peer_address,
                    subprotocol,
                }));
                self.receive.end();
                true
            }
            other => self.give_other(other, reader),
        }
    }

    #[inline(never)]
    fn give_other(&mut self, ended: Ended<Slot>, reader: &mut Reader<'_>) -> bool {
        match ended {
            Ended::Send(send) => self.sent(send, reader),
            Ended::Receive(receive) => self.received(receive, reader),
            Ended::Rma(rma) => self.moved(rma, reader),
            Ended::Atomic(atomic) => self.computed(*atomic, reader),
            Ended::RemoteWrite(write) => self.written(write, reader),
            Ended::Released { context, buffer } => {
                let rest = ReceiveCompletion {
                    context,
                    peer: None,
                    tagged: false,
                    tag: 0,
                    length: 0,
                    cq_data: None,
                    subprotocol: None,
                    buffer,
                    result: Ok(()),
                };
                self.received(rest, reader)
            }
        }
    }

    /// An operation ended, which may be an atomic that fetched.
    fn count(&self, kind: Kind, fetched: bool, result: &Result<(), OperationError>) {
        if let Some(counters) = &self.counters {
            counters.ended(kind, fetched, result.is_ok());
        }
    }

    fn sent(&mut self, send: SendCompletion<Slot>, reader: &mut Reader<'_>) -> bool {
        self.count(Kind::Send, false, &send.result);
        // Only an injected message has no buffer, and it took no place.
        let place = if send.buffer.is_some() { Place::Reserved } else { Place::Spare };
        let (peer, peer_address) = self.name(send.peer);
        let completion = Completion {
            context: send.context,
            kind: Kind::Send,
            length: send.length,
            buffer: send.buffer.map(Slot::into_buffer).unwrap_or_default(),
            tag: send.tag,
            cq_data: None,
            peer,
            peer_address,
            subprotocol: send.subprotocol,
        };
        self.transmit.give(reader, place, entry(completion, send.result))
    }

    fn moved(&mut self, rma: RmaCompletion<Slot>, reader: &mut Reader<'_>) -> bool {
        let kind = match rma.kind {
            RmaKind::Write => Kind::Write,
            RmaKind::Read => Kind::Read,
        };
        self.count(kind, false, &rma.result);
        let (context, length, buffer) = (rma.context, rma.length, rma.buffer.into_buffer());
        let ended = self.one_sided(kind, rma.peer, context, length, buffer, rma.subprotocol);
        self.transmit.give(reader, Place::Reserved, entry(ended, rma.result))
    }

    fn computed(&mut self, atomic: AtomicCompletion<Slot>, reader: &mut Reader<'_>) -> bool {
        self.count(Kind::Atomic, atomic.fetched.is_some(), &atomic.result);
        let buffer = atomic.fetched.map(Slot::into_buffer).unwrap_or_default();
        let (context, length) = (atomic.context, atomic.length);
        let ended = self.one_sided(Kind::Atomic, atomic.peer, context, length, buffer, None);
        self.transmit.give(reader, Place::Reserved, entry(ended, atomic.result))
    }

    fn one_sided(
        &mut self,
        kind: Kind,
        peer: PeerId,
        context: u64,
        length: u64,
        buffer: Buffer,
        subprotocol: Option<Subprotocol>,
    ) -> Completion {
        let (peer, peer_address) = self.name(peer);
        let (tag, cq_data) = (None, None);
        Completion { context, kind, length, buffer, tag, cq_data, peer, peer_address, subprotocol }
    }

    fn written(&mut self, write: RemoteWrite, reader: &mut Reader<'_>) -> bool {
        let (peer, peer_address) = self.sender(write.peer);
        let completion = Completion {
            context: 0,
            kind: Kind::RemoteWrite,
            length: write.length,
            buffer: Buffer::default(),
            tag: None,
            cq_data: Some(write.cq_data),
            peer,
            peer_address,
            subprotocol: None,
        };
        self.receive.give(reader, Place::Spare, Ok(completion))
    }

    /// A receive ended, or something happened to a multi-receive buffer.
    fn received(&mut self, receive: ReceiveCompletion<Slot>, reader: &mut Reader<'_>) -> bool {
        let (buffer, role) = receive.buffer.into_parts();
        let (peer, peer_address) = self.sender(receive.peer);
        let completion = Completion {
            context: receive.context,
            kind: match role {
                Role::Whole | Role::Lent(_) => Kind::Receive,
                Role::Part(_) => Kind::MultiReceive,
                Role::Rest(_) => Kind::Released,
            },
            length: receive.length,
            buffer,
            tag: receive.tagged.then_some(receive.tag),
            cq_data: receive.cq_data,
            peer,
            peer_address,
            subprotocol: receive.subprotocol,
        };
        self.count(completion.kind, false, &receive.result);
        let entry = entry(completion, receive.result);
        match role {
            Role::Whole | Role::Lent(_) => self.receive.give(reader, Place::Reserved, entry),
            Role::Part(parts) => {
                let given = self.receive.give(reader, Place::Spare, entry);
                drop(parts);
                self.end_complete();
                given
            }
            Role::Rest(parts) => {
                self.endings.push((parts, entry));
                self.end_complete();
                false
            }
        }
    }

    /// Gives the completions of receives in place, until one was for the reader, and tells whether one
    /// was.
    fn hand_over(&mut self, reader: &mut Reader<'_>) -> bool {
        while let Some(received) = self.engine.poll_in_place() {
            if self.received_in_place(received, reader) {
                return true;
            }
        }
        false
    }

    fn received_in_place(
        &mut self,
        received: InPlaceCompletion<Q::Packet>,
        reader: &mut Reader<'_>,
    ) -> bool {
        let InPlaceCompletion { context, peer, cq_data, result } = received;
        let (peer, peer_address) = self.sender(peer);
        let (buffer, subprotocol, result) = match result {
            Ok(message) => {
                let range = message.range();
                let packet = message.into_packet().into_any();
                let buffer = Packet::new(packet, range.start, range.len()).into();
                (buffer, Some(Subprotocol::Eager), Ok(()))
            }
            Err(error) => (Buffer::default(), None, Err(error)),
        };
        self.count(Kind::Receive, false, &result);
        let completion = Completion {
            context,
            kind: Kind::Receive,
            length: buffer.len() as u64,
            buffer,
            tag: None,
            cq_data,
            peer,
            peer_address,
            subprotocol,
        };
        self.receive.give(reader, Place::Reserved, entry(completion, result))
    }

    /// Ends multi-receives whose messages have all come in.
    fn end_complete(&mut self) {
        for (_, entry) in self.endings.extract_if(.., |(parts, _)| parts.are_complete()) {
            self.receive.deliver(Place::Reserved, entry);
        }
    }

    /// Who sent something, as far as the application wants to know.
    fn sender(&self, peer: Option<PeerId>) -> (Option<FiAddr>, Option<Address>) {
        match peer {
            Some(peer) if self.sources == Sources::Told => self.name(peer),
            _ => (None, None),
        }
    }

    /// What the application knows a peer as.
    fn name(&self, peer: PeerId) -> (Option<FiAddr>, Option<Address>) {
        (self.known(peer), self.engine.peer_address(peer).map(Address::from))
    }

    /// A peer's index in the address vector.
    #[inline]
    fn known(&self, peer: PeerId) -> Option<FiAddr> {
        self.peers.addr(peer).or_else(|| self.find(peer))
    }

    #[cold]
    fn find(&self, peer: PeerId) -> Option<FiAddr> {
        self.addresses.find(&self.engine.peer_address(peer)?.into())
    }
}

impl<Q: QueuePair<Region: Own, Packet: OwnPacket>> Drop for Driver<Q> {
    /// Ends all operations. The device may be writing into a buffer or reading one, so their
    /// completions wait in the lanes, which are dropped after the queue pair.
    fn drop(&mut self) {
        (self.transmit.ends, self.receive.ends) = (true, true);
        self.engine.cancel_all();
        self.deliver();
    }
}

impl<Q: QueuePair<Region: Own, Packet: OwnPacket>> Driver<InPlaceQueue<Q>> {
    pub(crate) fn packet(&mut self) -> Result<Packet, StartError> {
        let packet = self.engine.allocate_packet()?;
        Ok(Packet::new(packet.into_any(), self.engine.in_place_offset(), 0))
    }

    /// Posts a packet, which is of this device.
    pub(crate) fn receive_in_place(&mut self, packet: Packet, context: u64) -> Result<(), Refused> {
        let begin = self.engine.in_place_offset();
        let refused =
            |error, packet| Refused { error, buffer: Packet::new(packet, begin, 0).into() };
        let packet = Q::Packet::of(packet.into_memory())
            .map_err(|other| refused(StartError::OtherDomain, other))?;
        if let Err(error) = self.receive.start() {
            return Err(refused(error, packet.into_any()));
        }
        self.engine.receive_in_place(packet, context).map_err(|back| {
            self.receive.end();
            refused(translate(back.error, None), back.buffer.into_any())
        })
    }
}

impl PeerMap {
    fn peer(&self, addr: FiAddr) -> Option<PeerId> {
        *self.by_addr.get(usize::try_from(addr.0).ok()?)?
    }

    fn addr(&self, peer: PeerId) -> Option<FiAddr> {
        *self.by_peer.get(peer.index())?
    }

    /// Remembers both. The index is one of the address vector, so the map grows no larger than
    /// that.
    fn insert(&mut self, addr: FiAddr, peer: PeerId) {
        put(&mut self.by_addr, addr.0 as usize, peer);
        put(&mut self.by_peer, peer.index(), addr);
    }

    fn remove(&mut self, addr: FiAddr) -> Option<PeerId> {
        let peer = self.by_addr.get_mut(usize::try_from(addr.0).ok()?)?.take()?;
        *self.by_peer.get_mut(peer.index())? = None;
        Some(peer)
    }
}

fn put<T: Clone>(places: &mut Vec<Option<T>>, index: usize, value: T) {
    if index >= places.len() {
        places.resize(index + 1, None);
    }
    places[index] = Some(value);
}

#[inline(always)]
fn entry(completion: Completion, result: Result<(), OperationError>) -> Entry {
    match result {
        Ok(()) => Ok(completion),
        Err(error) => Err(CompletionError { error, completion: Box::new(completion) }),
    }
}

/// The engine's reason, with the application's name for the peer.
fn translate(error: EngineError, addr: Option<FiAddr>) -> StartError {
    match (error, addr) {
        (EngineError::UnknownPeer(_), Some(addr)) => StartError::UnknownAddress(addr),
        (EngineError::PeerGone(_), Some(addr)) => StartError::PeerGone(addr),
        (EngineError::Busy { limit }, _) => StartError::Busy { limit },
        (EngineError::LengthsDiffer { buffer, remote }, _) => {
            StartError::LengthsDiffer { buffer, remote }
        }
        (EngineError::TooLongToInject { length, limit }, _) => {
            StartError::TooLongToInject { length, limit }
        }
        (other, _) => StartError::Engine(other),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use efa_device::{
        Access, AddressHandle, Completion as DeviceCompletion, Device as _, DeviceAttributes,
        DeviceError, Gid, NoTagList, PostError, QueuePairAddress, QueuePairOptions, RdmaRequest,
        RegisterError, SendRequest,
    };
    use efa_proto::RmaIov;
    use efa_rdm::Config;
    use efa_sim::SoftQueuePair;
    use efa_sim::region::SoftRegion;

    use super::*;
    use crate::device::Device;
    use crate::{
        AddressVector, CompletionQueueOptions, Domain, Fabric, LocalOptions, ManualClock,
        MemoryRegion,
    };

    /// A queue pair that notes when it ends whether its endpoint has given anything back by then.
    #[derive(Debug)]
    struct Witness {
        real: SoftQueuePair,
        queue: Arc<CompletionQueue>,
        had_entries: Arc<Mutex<Option<bool>>>,
    }

    impl Drop for Witness {
        fn drop(&mut self) {
            *self.had_entries.lock().unwrap() = Some(self.queue.has_entries());
        }
    }

    impl QueuePair for Witness {
        type Packet = Box<[u8]>;
        type Region = SoftRegion;
        type TagList = NoTagList;

        fn attributes(&self) -> &DeviceAttributes {
            self.real.attributes()
        }

        fn address(&self) -> QueuePairAddress {
            self.real.address()
        }

        fn create_address_handle(&mut self, gid: Gid) -> Result<AddressHandle, DeviceError> {
            self.real.create_address_handle(gid)
        }

        fn destroy_address_handle(&mut self, handle: AddressHandle) {
            self.real.destroy_address_handle(handle);
        }

        fn allocate_packet(&mut self) -> Result<Box<[u8]>, DeviceError> {
            self.real.allocate_packet()
        }

        fn post_send(
            &mut self,
            request: SendRequest<Box<[u8]>>,
        ) -> Result<(), PostError<Box<[u8]>>> {
            self.real.post_send(request)
        }

        fn post_receive(&mut self, packet: Box<[u8]>) -> Result<(), PostError<Box<[u8]>>> {
            self.real.post_receive(packet)
        }

        fn register(&self, memory: Box<[u8]>, access: Access) -> Result<SoftRegion, RegisterError> {
            self.real.register(memory, access)
        }

        fn region(&self, key: u32) -> Option<SoftRegion> {
            self.real.region(key)
        }

        fn post_read(&mut self, request: RdmaRequest<SoftRegion>) -> Result<(), DeviceError> {
            self.real.post_read(request)
        }

        fn poll(&mut self, now: Time) -> Option<DeviceCompletion<Box<[u8]>>> {
            self.real.poll(now)
        }

        fn next_event(&self) -> Option<Time> {
            self.real.next_event()
        }
    }

    struct Place {
        domain: Domain,
        addresses: AddressVector,
    }

    impl Place {
        fn queue(&self) -> crate::CompletionQueue {
            self.domain.completion_queue(CompletionQueueOptions::default())
        }

        fn queue_pair(&self) -> SoftQueuePair {
            match self.domain.device() {
                Device::Soft(device) => {
                    device.create_queue_pair(QueuePairOptions::default()).unwrap()
                }
                #[cfg(feature = "verbs")]
                Device::Verbs(_) => panic!("the local link is software"),
            }
        }

        fn driver<Q: QueuePair<Region: Own, Packet: OwnPacket>>(
            &self,
            queue_pair: Q,
            queue: &crate::CompletionQueue,
        ) -> Driver<Q> {
            let bindings = Bindings {
                transmit: queue.shared().clone(),
                receive: queue.shared().clone(),
                addresses: self.addresses.shared().clone(),
                sources: Sources::Told,
                counters: Counters::default(),
            };
            Driver::new(Engine::new(queue_pair, Config::default()).unwrap(), bindings)
        }

        fn region(&self, access: Access) -> MemoryRegion {
            self.domain.register(vec![7; 10_000], access).unwrap()
        }
    }

    #[test]
    fn what_the_device_writes_into_comes_back_after_the_queue_pair_is_gone() {
        let clock = ManualClock::new();
        let fabric = Fabric::local(LocalOptions::default()).with_clock(&clock);
        let domain = fabric.domain().unwrap();
        let addresses = domain.address_vector();
        let place = Place { domain, addresses };
        let (queue, had_entries) = (place.queue(), Arc::default());
        let real = place.queue_pair();
        let witness =
            Witness { real, queue: queue.shared().clone(), had_entries: Arc::clone(&had_entries) };
        let mut reader = place.driver(witness, &queue);
        let mut target = place.driver(place.queue_pair(), &place.queue());
        let to_target = place.addresses.insert(target.address()).unwrap();

        let far = place.region(Access { remote_read: true, ..Access::default() });
        let near = place.region(Access::default());
        let remote = RmaIov::new(far.remote_address(), 10_000, far.key()).into();
        reader.read(to_target, remote, near.slice(0..10_000).unwrap().into(), 1).unwrap();
        reader.receive(None, None, near.slice(0..10).unwrap().into(), 2).unwrap();
        let mut looks = 0;
        while reader.statistics().rdma_reads == 0 {
            reader.progress(fabric.clock());
            target.progress(fabric.clock());
            clock.advance(Duration::from_micros(1));
            looks += 1;
            assert!(looks < 10_000, "the device was not asked to read");
        }

        drop(reader);
        assert_eq!(
            *had_entries.lock().unwrap(),
            Some(false),
            "handed back before the device let go"
        );
        for _ in 0..2 {
            assert_eq!(queue.read().unwrap().unwrap_err().error, OperationError::Cancelled);
        }
        assert!(queue.read().is_none());
    }
}
