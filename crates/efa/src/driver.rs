//! An endpoint's engine, joined to its address vector, completion queues and counters.
//!
//! ```text
//!   start:     FiAddr ─► PeerMap ─► credit of a CqBinding ─► engine
//!   complete:  engine ─► Completion ─► the reader, or the completion queue of a CqBinding
//! ```

mod accounts;
mod claims;
mod complete;
mod connection;
#[cfg(test)]
#[cfg(feature = "sim")]
mod tests;
mod waited;

use std::collections::HashMap;
use std::sync::Arc;

use accounts::Accounts;
use waited::Waiters;
pub(crate) use waited::Waking;

use efa_device::{DeviceError, QueuePair, Time};
use efa_rdm::{
    Accept, Atomic, AtomicKind, AtomicOp, Datatype, InPlaceQueue, Level, Operands, PeerId, Read,
    StartError as EngineError, Statistics, Write,
};

use crate::address::Address;
use crate::address_vector::{FiAddr, Shared as AddressVector};
use crate::buffer::{Buffer, Parts, Slot};
use crate::clock::Clock;
use crate::completion::{Refused, StartError};
use crate::completion_queue::{Entry, Reader, Room, Shared as CompletionQueue};
use crate::counter::Counters;
use crate::cq_binding::CqBinding;
use crate::device::{ConcretePacket, ConcreteRegion};
use crate::endpoint::EndpointId;
use crate::endpoint_options::Side;
use crate::event::Event;
use crate::keys::Keys;
use crate::message::{Message, Receive, ReceiveId};
use crate::named::Published;
use crate::packet::Packet;
use crate::peer_map::PeerMap;
use crate::reporters::Signal;
use crate::rma::{AtomicRefused, Rma};
use crate::send_budget::SendBudget;
use crate::shared_receive_queue::Member;
use crate::wait::WaitObject;

/// The objects that an endpoint is bound to.
#[derive(Debug)]
pub(crate) struct Bindings {
    pub(crate) endpoint: EndpointId,
    /// May be the same queue as `receive`.
    pub(crate) transmit: Arc<CompletionQueue>,
    pub(crate) receive: Arc<CompletionQueue>,
    pub(crate) addresses: Arc<AddressVector>,
    pub(crate) sources: Sources,
    /// The level of operations that don't say it themselves.
    pub(crate) level: Level,
    /// Of the transmit and the receive side.
    pub(crate) unreported: [Unreported; 2],
    pub(crate) counters: Counters,
    pub(crate) send_budget: Option<SendBudget>,
    /// Of a domain of [`RegistrationMode::Scalable`](crate::RegistrationMode).
    pub(crate) keys: Option<Arc<Keys>>,
    /// What threads sleep on that wait for these queues and counters, each once.
    pub(crate) waiters: Vec<Arc<WaitObject>>,
    /// What is set when the endpoint has an event.
    pub(crate) signals: Vec<Arc<Signal>>,
    /// The endpoint's place in a shared receive queue.
    pub(crate) member: Option<Member>,
}

/// The engine over a queue pair.
pub(crate) type Engine<Q> = efa_rdm::Endpoint<Q, Slot>;

#[derive(Debug)]
pub(crate) struct Driver<Q: QueuePair<Region: ConcreteRegion, Packet: ConcretePacket>> {
    /// Dropped before the queue bindings, and the queue pair with it.
    engine: Engine<Q>,
    id: EndpointId,
    addresses: Arc<AddressVector>,
    sources: Sources,
    level: Level,
    unreported: [Unreported; 2],
    peers: PeerMap,
    /// Addresses that were inserted after another incarnation of their queue pair, this one, had been heard, and not used yet:
    /// they are of later ones.
    successors: HashMap<Address, PeerId>,
    transmit: CqBinding,
    receive: CqBinding,
    /// `None` if neither a counter nor a budget is bound.
    accounts: Option<Box<Accounts>>,
    /// `Released` completions of multi-receive buffers, each held until its last message completes.
    releases: Vec<(Parts, Entry)>,
    /// `None` if nobody can sleep until the endpoint has something, or waits for events.
    waiters: Option<Box<Waiters>>,
    /// The time when the clock was last read, and the number of polls since.
    now: Time,
    polls: u32,
    /// One more than the looks that may be made before the next poll. 0 after an operation started or completed.
    looks: u32,
}

/// A poll that finds nothing reads the host's clock at its end, when no completion waits for that, if there were so many
/// polls since the last reading. A reading costs more than polling an idle device. While the engine has a timeout to watch,
/// every poll begins with one.
const POLLS_PER_CLOCK_READ: u32 = 8;
/// After so many polls, all of which found something, one begins with a reading.
const BUSY_POLLS_PER_CLOCK_READ: u32 = 64;

/// Looks at an idle device after a poll: a look costs a fraction of a poll, but doesn't do what the device does at
/// intervals.
const LOOKS_PER_POLL: u32 = 256;
/// So many looks count as a poll.
const LOOKS_LIKE_A_POLL: u32 = 8;

/// Most completions that one call gives to queues that aren't the reader's. Otherwise a peer whose writes complete here
/// faster than they are handled would keep the call from returning.
const MOST_ELSEWHERE: u32 = 64;

/// Whether completions of receives name the sender (`FI_SOURCE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sources {
    Reported,
    Omitted,
}

/// Which operations of one side complete silently if they succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreported {
    None,
    /// Those that say so: the binding is selective, and the default flags signal.
    OnRequest,
    /// Those that aren't signaled: the binding is selective.
    Unsignaled,
}

impl Unreported {
    pub(crate) fn of(is_selective: bool, is_signaled: bool) -> Self {
        match (is_selective, is_signaled) {
            (false, _) => Self::None,
            (true, true) => Self::OnRequest,
            (true, false) => Self::Unsignaled,
        }
    }

    #[inline(always)]
    fn reports(self, completion: Option<bool>) -> bool {
        self == Self::None || self.reports_one_of_some(completion)
    }

    #[cold]
    fn reports_one_of_some(self, completion: Option<bool>) -> bool {
        match self {
            Self::None => true,
            Self::OnRequest => completion != Some(false),
            Self::Unsignaled => completion == Some(true),
        }
    }
}

impl<Q: QueuePair<Region: ConcreteRegion, Packet: ConcretePacket>> Driver<Q> {
    pub(crate) fn new(mut engine: Engine<Q>, bindings: Bindings) -> Self {
        let Bindings {
            endpoint,
            transmit,
            receive,
            addresses,
            sources,
            level,
            unreported,
            counters,
            send_budget,
            keys,
            waiters,
            signals,
            // The engine has it already.
            member: _,
        } = bindings;
        if let Some(keys) = keys {
            engine.use_keys(keys);
        }
        Self {
            engine,
            id: endpoint,
            addresses,
            sources,
            level,
            unreported,
            peers: PeerMap::default(),
            successors: HashMap::new(),
            transmit: CqBinding::new(transmit),
            receive: CqBinding::new(receive),
            accounts: Accounts::new(counters, send_budget),
            releases: Vec::new(),
            waiters: Waiters::new(waiters, signals),
            now: Time::ZERO,
            // The first poll reads the clock: the fabric may have been open for long.
            polls: BUSY_POLLS_PER_CLOCK_READ,
            looks: 0,
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
        message: Message,
        buffer: Buffer,
        context: u64,
    ) -> Result<(), Refused> {
        let Message { to, tag, cq_data, level, completion } = message;
        let peer = match self.start_transmit(to) {
            Ok(peer) => peer,
            Err(error) => return Err(Refused { error, buffer }),
        };
        let (level, buffer) = (level.unwrap_or(self.level), self.transmit_slot(completion, buffer));
        let message = efa_rdm::Message { peer, tag, cq_data, level, buffer, context };
        let posted = self.engine.send(message).map(|_| ());
        posted.map_err(|refused| self.refused(Side::Transmit, Some(to), refused))
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
        self.engine.inject(message).map_err(|error| self.reason(error, Some(to)))
    }

    /// Writes a copy. Only a failure completes.
    pub(crate) fn inject_write(&mut self, rma: Rma, copy: Buffer) -> Result<(), StartError> {
        let written = self.write(rma.silent(), copy, 0);
        written.map_err(|refused| refused.error)
    }

    pub(crate) fn write(&mut self, rma: Rma, buffer: Buffer, context: u64) -> Result<(), Refused> {
        let Rma { peer: to, remote, cq_data, level, completion, is_silent } = rma;
        let peer = match self.start_transmit(to) {
            Ok(peer) => peer,
            Err(error) => return Err(Refused { error, buffer }),
        };
        let level = level.unwrap_or(self.level);
        let buffer = Slot::reported(!is_silent && self.unreported[0].reports(completion), buffer);
        let posted = self.engine.write(Write { peer, remote, buffer, cq_data, level, context });
        posted.map_err(|refused| self.refused(Side::Transmit, Some(to), refused))
    }

    pub(crate) fn read(&mut self, rma: Rma, buffer: Buffer, context: u64) -> Result<(), Refused> {
        let Rma { peer: from, remote, completion, .. } = rma;
        let peer = match self.start_transmit(from) {
            Ok(peer) => peer,
            Err(error) => return Err(Refused { error, buffer }),
        };
        let buffer = self.transmit_slot(completion, buffer);
        let posted = self.engine.read(Read { peer, remote, buffer, context });
        posted.map_err(|refused| self.refused(Side::Transmit, Some(from), refused))
    }

    #[allow(clippy::result_large_err, reason = "the operands come back, all three of them")]
    pub(crate) fn atomic(
        &mut self,
        rma: Rma,
        (op, datatype): (AtomicOp, Datatype),
        operands: Operands<Buffer>,
        context: u64,
    ) -> Result<(), AtomicRefused> {
        let Rma { peer: to, remote, level, completion, is_silent, .. } = rma;
        let refused = |error, operands| AtomicRefused::new(error, (op, datatype), operands);
        let peer = match self.start_transmit(to) {
            Ok(peer) => peer,
            Err(error) => return Err(refused(error, operands)),
        };
        let level = level.unwrap_or(self.level);
        let is_reported = !is_silent && self.unreported[0].reports(completion);
        let operands = operands.map(|buffer| Slot::reported(is_reported, buffer));
        let atomic = Atomic { peer, remote, datatype, op, operands, level, context };
        self.engine.atomic(atomic).map_err(|efa_rdm::AtomicRefused { error, operands }| {
            let error = self.not_started(Side::Transmit, Some(to), error);
            refused(error, operands.map(Slot::into_buffer))
        })
    }

    pub(crate) fn atomic_limit(&self, kind: AtomicKind) -> usize {
        self.engine.atomic_limit(kind)
    }

    pub(crate) fn receive(
        &mut self,
        receive: Receive,
        buffer: Buffer,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        let Receive { source: from, tag, completion } = receive;
        let source = match self.start_receive(from) {
            Ok(source) => source,
            Err(error) => return Err(Refused { error, buffer }),
        };
        // Apart, as the engine has a matcher for each kind.
        match tag {
            Some((tag, ignore)) => {
                let accept = Accept::Tagged { source, tag, ignore };
                self.post(accept, (from, completion), buffer, context)
            }
            None => self.post(Accept::Untagged { source }, (from, completion), buffer, context),
        }
    }

    #[inline(always)]
    fn post(
        &mut self,
        accept: Accept,
        (from, completion): (Option<FiAddr>, Option<bool>),
        buffer: Buffer,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        let is_reported = self.unreported[1].reports(completion);
        match self.engine.vacancy(accept) {
            Some(vacancy) => {
                Ok(ReceiveId(vacancy.fill(Slot::reported(is_reported, buffer), context)))
            }
            None => {
                let slot = Slot::reported(is_reported, buffer);
                self.receive_otherwise(accept, from, slot, context)
            }
        }
    }

    #[inline(never)]
    fn receive_otherwise(
        &mut self,
        accept: Accept,
        from: Option<FiAddr>,
        slot: Slot,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        let posted = self.engine.receive(accept, slot, context);
        posted.map(ReceiveId).map_err(|refused| self.refused(Side::Receive, from, refused))
    }

    pub(crate) fn receive_many(
        &mut self,
        receive: Receive,
        buffer: Buffer,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        let Receive { source: from, completion, .. } = receive;
        let source = match self.start_receive(from) {
            Ok(source) => source,
            Err(error) => return Err(Refused { error, buffer }),
        };
        let slot = Slot::for_many(self.unreported[1].reports(completion), buffer);
        let posted = self.engine.receive_many(source, slot, context).map(ReceiveId);
        posted.map_err(|refused| self.refused(Side::Receive, from, refused))
    }

    /// How many more operations may start, of so many at most.
    pub(crate) fn left(&self, side: Side, most: usize) -> usize {
        match side {
            Side::Transmit => self.transmit.left(&self.receive, most),
            Side::Receive => self.receive.left(&self.transmit, most),
        }
    }

    /// Has operations complete and count nowhere from now on.
    pub(crate) fn discard_completions(&mut self, unread: &Arc<CompletionQueue>) {
        self.transmit.discard(Arc::clone(unread));
        self.receive.discard(Arc::clone(unread));
        if let Some(accounts) = &mut self.accounts {
            accounts.counters = Counters::default();
        }
    }

    /// Begins or ends to keep credits of a completion queue.
    pub(crate) fn keep_credits(&mut self, queue: &CompletionQueue, keeps: bool) {
        self.transmit.keep_credits(queue, keeps);
        self.receive.keep_credits(queue, keeps);
    }

    pub(crate) fn set_min_multi_receive(&mut self, bytes: u64) {
        self.engine.set_min_multi_receive(bytes);
    }

    /// A buffer of an operation that completes silently unless it is signaled or the queue's binding isn't
    /// selective.
    #[inline(always)]
    fn transmit_slot(&self, completion: Option<bool>, buffer: Buffer) -> Slot {
        Slot::reported(self.unreported[0].reports(completion), buffer)
    }

    /// The engine's peer for an operation that is about to start, and a credit of the completion queue and a share
    /// of the budget.
    #[inline(always)]
    fn start_transmit(&mut self, to: FiAddr) -> Result<PeerId, StartError> {
        let peer = self.peer(to)?;
        self.transmit.start(&mut self.receive)?;
        if let Some(accounts) = &self.accounts
            && let Err(error) = accounts.start()
        {
            self.transmit.end();
            return Err(error);
        }
        Ok(peer)
    }

    #[inline(always)]
    fn start_receive(&mut self, source: Option<FiAddr>) -> Result<Option<PeerId>, StartError> {
        let peer = source.map(|source| self.peer(source)).transpose()?;
        self.receive.start(&mut self.transmit)?;
        Ok(peer)
    }

    /// Returns the credit of an operation.
    fn end(&mut self, side: Side) {
        match side {
            Side::Transmit => self.transmit.end(),
            Side::Receive => self.receive.end(),
        }
    }

    /// Ends an operation that the engine refused.
    #[cold]
    fn not_started(&mut self, side: Side, addr: Option<FiAddr>, error: EngineError) -> StartError {
        self.end(side);
        if let (Side::Transmit, Some(accounts)) = (side, &self.accounts) {
            accounts.end();
        }
        self.reason(error, addr)
    }

    /// The engine's error as the application gets it.
    #[cold]
    fn reason(&self, error: EngineError, addr: Option<FiAddr>) -> StartError {
        match (error, self.engine.failure()) {
            // By that all peers are gone.
            (EngineError::PeerGone(_), Some(status)) => {
                StartError::Device(DeviceError::QueuePairFailed { status })
            }
            _ => translate(error, addr, self.engine.lack()),
        }
    }

    #[cold]
    fn refused(
        &mut self,
        side: Side,
        addr: Option<FiAddr>,
        refused: efa_rdm::Refused<Slot>,
    ) -> Refused {
        let error = self.not_started(side, addr, refused.error);
        Refused { error, buffer: refused.buffer.into_buffer() }
    }

    pub(crate) fn cancel(&mut self, receive: ReceiveId) -> bool {
        let cancelled = self.engine.cancel(receive.0);
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

    /// A number that changes whenever a packet is sent or received.
    pub(crate) fn activity(&mut self) -> u64 {
        let Statistics { sent_bytes, received_bytes, rdma_bytes, .. } = self.engine.statistics();
        sent_bytes.wrapping_add(*received_bytes).wrapping_add(*rdma_bytes)
    }

    /// Whether no send is under way and no packet waits to be sent.
    pub(crate) fn is_quiet(&self) -> bool {
        self.transmit.under_way() == 0 && self.engine.is_quiet()
    }

    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.engine.next_timeout()
    }

    /// Progresses the operations. Completions go to their queues, a bounded number in each call.
    #[inline(never)]
    pub(crate) fn progress(&mut self, clock: &Clock) {
        self.poll(clock, Reader { queue: None, room: &mut () });
    }

    /// Whether the device has found something that was not handled; `true` if that isn't known.
    pub(crate) fn has_found(&self) -> bool {
        self.engine.has_found()
    }

    /// Whether a poll would find nothing, by a look that costs a fraction of a poll; `false` if that isn't known, and
    /// once in so many looks.
    #[inline(always)]
    pub(crate) fn is_idle(&mut self) -> bool {
        if self.looks > 1 {
            self.looks -= 1;
            if self.engine.has_no_arrivals() {
                return true;
            }
        }
        self.end_looks();
        false
    }

    /// Before the poll that comes after looks. It begins with a reading of the clock if none of them found anything.
    #[inline(always)]
    fn end_looks(&mut self) {
        match self.looks {
            0 => {}
            1 => self.polls = BUSY_POLLS_PER_CLOCK_READ,
            looks => self.polls += (LOOKS_PER_POLL - looks) / LOOKS_LIKE_A_POLL,
        }
        self.looks = 0;
    }

    #[inline(never)]
    fn read_clock(&mut self, clock: &Clock) {
        self.now = clock.now();
        self.polls = 0;
    }

    /// After a poll that found nothing: whether only an arrival can change that. A manual clock may be advanced between
    /// two reads, so that each polls.
    fn allow_looks(&mut self, clock: &Clock) {
        let is_clear = !clock.is_manual()
            && self.transmit.has_none_deferred()
            && self.receive.has_none_deferred();
        if is_clear && self.engine.await_arrivals() {
            self.looks = LOOKS_PER_POLL;
        }
    }

    /// Progresses the operations until one completes on the reader's queue; gives the reader that
    /// completion and returns whether there was one. Other completions go to their queues.
    ///
    /// While completions are deferred the endpoint makes no progress, and senders get RNR.
    #[inline(always)]
    pub(crate) fn poll<R: Room>(&mut self, clock: &Clock, mut reader: Reader<'_, R>) -> bool {
        self.begin_poll(clock);
        let found = self.next(&mut reader, &mut 0);
        if !found {
            self.end_poll(clock);
        }
        found
    }

    /// As [`poll`](Self::poll), but appends up to `most` completions of the reader's queue to `into`; returns their
    /// number.
    #[inline(never)]
    pub(crate) fn poll_many(
        &mut self,
        clock: &Clock,
        queue: &CompletionQueue,
        (into, most): (&mut Vec<Entry>, usize),
    ) -> usize {
        self.begin_poll(clock);
        let mut reader = Reader { queue: Some(queue), room: into };
        let (mut count, mut elsewhere) = (0, 0);
        while count < most {
            if !self.next(&mut reader, &mut elsewhere) {
                self.end_poll(clock);
                break;
            }
            count += 1;
        }
        count
    }

    /// Reads the clock if that is due.
    #[inline(always)]
    fn begin_poll(&mut self, clock: &Clock) {
        self.polls += 1;
        if clock.is_manual() || self.polls > BUSY_POLLS_PER_CLOCK_READ || self.engine.is_timed() {
            self.read_clock(clock);
        }
    }

    /// The next completion for the reader, if there is one; `elsewhere` counts those that went to other queues.
    #[inline(always)]
    fn next<R: Room>(&mut self, reader: &mut Reader<'_, R>, elsewhere: &mut u32) -> bool {
        while self.transmit.is_clear() && self.receive.is_clear() && *elsewhere < MOST_ELSEWHERE {
            // Entries in the queue, of this call or of another thread's, are older than the next
            // completion.
            if reader.queue.is_some_and(CompletionQueue::has_entries) {
                break;
            }
            if Q::IN_PLACE && self.complete_in_place(&mut reader.any()) {
                return true;
            }
            let completion = self.engine.poll(self.now);
            match self.complete(completion, reader) {
                Some(true) => return true,
                Some(false) => *elsewhere += 1,
                None if Q::IN_PLACE && self.complete_in_place(&mut reader.any()) => return true,
                None => break,
            }
        }
        false
    }

    /// After a poll that found nothing, or nothing more.
    #[inline(always)]
    fn end_poll(&mut self, clock: &Clock) {
        if let Some(accounts) = &mut self.accounts {
            accounts.counters.follow(self.engine.statistics());
        }
        if self.polls >= POLLS_PER_CLOCK_READ {
            self.read_clock(clock);
        }
        self.allow_looks(clock);
    }

    /// Addresses were inserted into the address vector: the engine again takes packets of those that are gone, unless
    /// another incarnation was heard since. It learns of others when they are first [used](Self::new_peer).
    pub(crate) fn peers_inserted(&mut self, peers: &[(FiAddr, Address)]) {
        for (addr, address) in peers {
            if let Some(before) = self.engine.find_other_incarnation(&address.raw()) {
                self.successors.insert(*address, before);
                continue;
            }
            if !self.engine.is_gone(&address.raw()) {
                continue;
            }
            // It may have been removed again. That takes the lock of this driver, so it can't happen
            // between this check and the end of the call.
            // A queue pair of a scalable endpoint that has no receive context is sent nothing, but has a name.
            let is_sent_to = self.addresses.address(*addr) == Some(*address);
            let is_current = || is_sent_to || self.addresses.find(address) == Some(*addr);
            if is_current() {
                // If the device fails here, the first operation with the peer returns the error.
                if let Ok(peer) = self.engine.insert_peer(address.raw()) {
                    let name = self.addresses.peer_of(*addr);
                    match self.addresses.taken_over(*addr) {
                        Some(published) => self.peers.insert_shared(*addr, published, peer),
                        None if is_sent_to => self.peers.insert(*addr, name, peer),
                        // Its completions look for the name, as the index is of another queue pair.
                        None => {}
                    }
                }
            }
        }
    }

    /// An address is being removed from the address vector.
    pub(crate) fn peer_removed(&mut self, addr: FiAddr, address: &Address) {
        self.successors.remove(address);
        self.peers.remove(addr);
        if let Some(peer) = self.engine.find_peer(&address.raw()) {
            self.engine.remove_peer(peer);
        }
        self.deliver();
    }

    /// An address is being removed from the address vector, which has the queue pair as one of another peer, too.
    pub(crate) fn name_removed(&mut self, name: FiAddr) {
        self.peers.remove(name);
    }

    /// The process that writes the address vector has removed a peer, and may have `another` one in its slot now, which
    /// this endpoint may have noticed.
    pub(crate) fn published_peer_changed(
        &mut self,
        addr: FiAddr,
        removed: Published,
        another: Option<Published>,
    ) {
        match self.peers.shared(addr) {
            Some(known) if Some(known.published) == another => {}
            Some(known) => self.peer_removed(known.addr, &known.published.address),
            None if self.name_of(&removed.address).is_some_and(|name| name != addr) => {}
            None => self.peer_removed(addr, &removed.address),
        }
    }

    /// By which index this endpoint sends to an address, if it does.
    fn name_of(&self, address: &Address) -> Option<FiAddr> {
        self.peers.addr(self.engine.find_peer(&address.raw())?)
    }

    /// The engine's peer for an index of the address vector. It is made on first use.
    #[inline]
    fn peer(&mut self, addr: FiAddr) -> Result<PeerId, StartError> {
        match self.peers.peer(addr) {
            Some(peer) => Ok(peer),
            None => self.new_peer(addr),
        }
    }

    #[cold]
    #[inline(never)]
    fn new_peer(&mut self, addr: FiAddr) -> Result<PeerId, StartError> {
        if self.addresses.is_reader() {
            return self.shared_peer(addr);
        }
        let address = self.addresses.address(addr).ok_or(StartError::UnknownAddress(addr))?;
        // The engine takes the incarnation of a queue pair that it learns of last for the latest one. One that was heard since
        // the address was inserted is later.
        let heard = self.engine.find_other_incarnation(&address.raw());
        if heard.is_some() && self.successors.get(&address) != heard.as_ref() {
            return Err(StartError::PeerGone(addr));
        }
        let peer = self.engine.insert_peer(address.raw())?;
        self.successors.remove(&address);
        self.peers.insert(addr, self.addresses.peer_of(addr), peer);
        Ok(peer)
    }

    /// The engine's peer for an index of an address vector that another process writes. Its table is read each
    /// time, so that nothing is sent to a peer that was removed, or to one whose index has another peer now.
    #[cold]
    fn shared_peer(&mut self, addr: FiAddr) -> Result<PeerId, StartError> {
        let current = self.addresses.published(addr);
        let known = self.peers.shared(addr);
        if let Some(known) = known
            && known.addr == addr
            && current == Some(known.published)
        {
            return Ok(known.peer);
        }
        // What an index of former times stood for doesn't matter to the peer that has its slot now.
        if let Some(known) = known.filter(|known| known.addr == addr || current.is_some()) {
            self.peer_removed(known.addr, &known.published.address);
        }
        let current = current.ok_or(StartError::UnknownAddress(addr))?;
        self.end_former(addr, &current);
        let peer = self.engine.insert_peer(current.address.raw())?;
        self.peers.insert_shared(addr, current, peer);
        Ok(peer)
    }

    /// Ends the peer that had this address before it was removed and inserted again.
    fn end_former(&mut self, addr: FiAddr, current: &Published) {
        let former =
            self.name_of(&current.address).or_else(|| self.addresses.find(&current.address));
        let is_former = |former: FiAddr| {
            former != addr
                || self.addresses.taken_over(addr).is_some_and(|before| before != *current)
        };
        if let Some(former) = former.filter(|former| is_former(*former)) {
            self.peer_removed(former, &current.address);
        }
    }
}

impl<Q: QueuePair<Region: ConcreteRegion, Packet: ConcretePacket>> Drop for Driver<Q> {
    /// Cancels all operations. Their completions stay in the bindings until the queue pair is
    /// destroyed: before that the device may still access the buffers.
    fn drop(&mut self) {
        self.transmit.close();
        self.receive.close();
        self.engine.end_operations();
        self.deliver();
    }
}

impl<Q: QueuePair<Region: ConcreteRegion, Packet: ConcretePacket>> Driver<InPlaceQueue<Q>> {
    pub(crate) fn packet(&mut self) -> Result<Packet, StartError> {
        let packet = self.engine.allocate_packet()?;
        Ok(Packet::new(packet.into_any(), self.engine.in_place_offset(), 0))
    }

    /// Posts a packet.
    pub(crate) fn receive_in_place(&mut self, packet: Packet, context: u64) -> Result<(), Refused> {
        let begin = self.engine.in_place_offset();
        let refused =
            |error, packet| Refused { error, buffer: Packet::new(packet, begin, 0).into() };
        let packet = Q::Packet::from_any(packet.into_memory())
            .map_err(|other| refused(StartError::OtherDomain, other))?;
        if let Err(error) = self.receive.start(&mut self.transmit) {
            return Err(refused(error, packet.into_any()));
        }
        self.engine.receive_in_place(packet, context).map_err(|packet| {
            let error = self.not_started(Side::Receive, None, packet.error);
            refused(error, packet.buffer.into_any())
        })
    }
}

/// The engine's error, with the peer as the application names it, and the device's words for what it `lacks`.
fn translate(error: EngineError, addr: Option<FiAddr>, lacks: Option<&DeviceError>) -> StartError {
    match (error, addr) {
        (EngineError::Lacking(_), _) => {
            lacks.map_or(StartError::Engine(error), |lacks| StartError::Device(lacks.clone()))
        }
        (EngineError::UnknownPeer(_), Some(addr)) => StartError::UnknownAddress(addr),
        (EngineError::PeerGone(_), Some(addr)) => StartError::PeerGone(addr),
        (EngineError::Busy { limit }, _) => StartError::Busy { limit },
        (EngineError::LengthsDiffer { buffer, remote }, _) => {
            StartError::LengthsDiffer { buffer, remote }
        }
        (EngineError::TooLongToInject { length, limit }, _) => {
            StartError::TooLongToInject { length, limit }
        }
        (EngineError::ClaimEnded, _) => StartError::ClaimEnded,
        (other, _) => StartError::Engine(other),
    }
}
