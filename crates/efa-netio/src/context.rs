//! The context: what drives all sockets.
//!
//! ```text
//!   completion queue ─► operations ─► connection ─► socket ─┐
//!   event queue ──────► requests, connections and ends ─────┼─► events ─► poll, or a Handler
//!   timers, returned buffers and tokens, hosts found ───────┘
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use efa::{
    Access, Clock, CompletionQueue, CompletionQueueOptions, Direction, Domain, EndpointOptions,
    Entry, EventQueue, EventQueueOptions, Fabric, LocalAccess, MsgEndpointBuilder,
    MsgEndpointOptions, Statistics, Time, TryWaitError, WaitSet,
};
use slab::Slab;
use slotmap::{Key, SlotMap};

use crate::connection::{Connection, Op, Owner};
use crate::delivery::{Return, Returns, Signal};
use crate::event::{Error, Event};
use crate::handler::Handler;
use crate::ids::{
    AcceptorKey, AnySocket, ConnectionKey, ListenSocket, PublicationKey, PublishSocket,
    ReceiveSocket, SendSocket, SubscribeSocket, Timer,
};
use crate::memory::Pool;
use crate::options::Options;
use crate::publish::{Publication, Publisher};
use crate::sockets::{Acceptor, Listener, Receiver, Sender};
use crate::subscribe::Subscriber;
use crate::timers::{Due, Timers};

/// How long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// At most this long.
    For(Duration),
    /// Until there is an event.
    Forever,
}

/// Numbers of a context, since it was made or as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Control messages that were ignored: of a wrong length, version or kind, or not for this side.
    pub ignored: u64,
    /// Callers that were refused, by this side: [`Event::CallerRefused`] says why.
    pub rejected: u64,
    /// Connections there are.
    pub connections: usize,
    /// Operations of their endpoints under way.
    pub operations: usize,
    /// Publications under way.
    pub publications: usize,
    /// Tags with subscribers, of all publishers.
    pub tags: usize,
}

/// A context: sockets, and the thread that drives them. It can be sent to another thread, and not be shared; two
/// contexts are independent.
///
/// ```
/// use efa::{Fabric, LocalOptions};
/// use efa_netio::{
///     Event, ListenOptions, Message, Netio, Options, PublishOptions, Published, SubscribeOptions, Wait,
/// };
/// let domain = Fabric::local(LocalOptions::default()).domain()?;
/// let mut netio = Netio::new(&domain, Options::default())?;
///
/// let pool = netio.allocate(1 << 20)?;
/// let publisher = netio.publish_socket(&pool, PublishOptions::default())?;
/// netio.publish_at(publisher, "10.0.0.1", 7000)?;
/// let subscriber = netio.subscribe_socket("10.0.0.1", 7000, SubscribeOptions::default());
/// netio.subscribe(subscriber, 0x17)?;
///
/// loop {
///     match netio.poll(Wait::Forever)? {
///         Some(Event::Subscriber { tag: 0x17, .. }) => {
///             pool.write(0, b"event data");
///             let message = Message::of(pool.part(0..10)?).key(1);
///             assert!(matches!(netio.publish(publisher, 0x17, message), Published::UnderWay));
///         }
///         Some(Event::Message { tag, message, .. }) => {
///             assert_eq!((tag, &message[..]), (0x17, &b"event data"[..]));
///             break;
///         }
///         _ => {}
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Netio {
    pub(crate) link: Link,
    pub(crate) operations: Slab<Op>,
    pub(crate) connections: SlotMap<ConnectionKey, Connection>,
    pub(crate) acceptors: SlotMap<AcceptorKey, Acceptor>,
    pub(crate) senders: SlotMap<SendSocket, Sender>,
    pub(crate) listeners: SlotMap<ListenSocket, Listener>,
    pub(crate) receivers: SlotMap<ReceiveSocket, Receiver>,
    pub(crate) publishers: SlotMap<PublishSocket, Publisher>,
    pub(crate) publications: SlotMap<PublicationKey, Publication>,
    pub(crate) subscribers: SlotMap<SubscribeSocket, Subscriber>,
    pub(crate) timers: Timers,
    pub(crate) returns: Arc<Returns>,
    returned: Vec<Return>,
    /// Connections that wait for room or memory, of which no completion tells.
    pub(crate) stuck: Vec<ConnectionKey>,
    /// How long the context sleeps at most because of them.
    pub(crate) retry: Duration,
    /// Connections that have ended with nothing under way.
    pub(crate) idle: Vec<ConnectionKey>,
    /// Connections that have given the program a message, and have fewer buffers posted than are wanted.
    pub(crate) short_of_buffers: Vec<ConnectionKey>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) counts: Counts,
    stops: bool,
    /// The last round emptied the completion queue, and made events.
    has_looked: bool,
    /// Rounds, so that what is rarely needed is looked at now and then.
    rounds: u32,
    /// The last wait ended within [`Options::look`].
    waits_are_short: bool,
}

/// The objects of `efa`.
pub(crate) struct Link {
    pub(crate) fabric: Fabric,
    pub(crate) domain: Domain,
    queue: CompletionQueue,
    pub(crate) control: EventQueue,
    /// What the context sleeps on.
    set: Option<WaitSet>,
    pub(crate) options: Options,
}

/// Completions that one round takes.
const BATCH: usize = 64;
/// Rounds that find something, until the rest is looked at as well.
const ROUNDS: u32 = 64;
/// A wait looks this many times longer before it sleeps if the wait before was short.
const LONG_LOOK: u32 = 5;
/// Longest sleeps while a connection waits for room or memory: the first one, and after many in vain. Room mostly comes with
/// something that arrives, which wakes the context; that memory or descriptors are there again, nothing tells.
pub(crate) const RETRY: Duration = Duration::from_millis(1);
const RETRY_AT_MOST: Duration = Duration::from_millis(16);
/// Bytes of unexpected messages that a side keeps which sends messages.
const UNEXPECTED_CONTROL: usize = 64 << 10;
/// Bytes of unexpected messages that a side keeps beside others while a message is not complete. The rest of that one may be
/// behind them, and its buffer, and those of complete messages after it, come back after it only. It is what fits
/// [`Options::sends`] packets and messages below [`Options::read_threshold`], as these are by default.
const BEHIND: usize = 48 << 20;
/// What arrives beyond the bound of unexpected messages, or before its turn, in packets that were on their way: more would
/// exclude the peer.
const UNDER_WAY: usize = 64 << 20;
/// Room of the completion queue: connections have limits of their own.
const ROOM: usize = 1 << 30;

impl Link {
    fn new(domain: &Domain, options: Options) -> Result<Self, efa::Error> {
        let fabric = domain.fabric().clone();
        let room = CompletionQueueOptions::default().capacity(ROOM);
        let (queue, control, set) = if options.sleeps {
            let set = fabric.wait_set()?;
            let wait = || efa::Wait::Set(set.clone());
            let queue = domain.waitable_completion_queue(room, wait())?;
            let control = fabric.waitable_event_queue(EventQueueOptions::default(), wait())?;
            (queue, control, Some(set))
        } else {
            let control = fabric.event_queue(EventQueueOptions::default())?;
            (domain.completion_queue(room), control, None)
        };
        Ok(Self { fabric, domain: domain.clone(), queue, control, set, options })
    }

    /// Begins an endpoint for a connection.
    pub(crate) fn endpoint(&self, key: ConnectionKey, owner: Owner) -> MsgEndpointBuilder {
        let mut options = MsgEndpointOptions::default()
            .context(key.data().as_ffi())
            .connect_timeout(self.options.timeout);
        let EndpointOptions { protocol, .. } = &mut options.endpoint;
        protocol.min_read = Some(self.options.read_threshold);
        // Before it nobody knows whether the other side's device can read.
        protocol.messages_after_handshake = true;
        protocol.max_sends = self.options.sends;
        // A side that sends messages receives control messages only.
        let unexpected = match owner.receives() {
            true => self.options.unexpected,
            false => self.options.unexpected.min(UNEXPECTED_CONTROL),
        };
        protocol.bounds.unexpected = unexpected;
        protocol.bounds.behind = BEHIND;
        protocol.bounds.unexpected_per_peer = unexpected.saturating_add(BEHIND + UNDER_WAY);
        protocol.bounds.ahead = UNDER_WAY;
        self.domain
            .msg_endpoint(options)
            .bind_completion_queue(&self.queue, Direction::Both)
            .bind_event_queue(&self.control)
    }

    /// Bytes from which on messages are read, if a read is a copy that this processor makes at once.
    pub(crate) fn long_reads(&self) -> Option<usize> {
        let threshold = self.options.read_threshold;
        let copies = self.domain.attributes().mapped_reads_pay_from <= threshold;
        copies.then(|| usize::try_from(threshold).unwrap_or(usize::MAX))
    }

    pub(crate) fn now(&self) -> Time {
        self.fabric.now()
    }
}

/// Of memory that messages are sent from: peers read long ones out of it.
const READ_BY_PEERS: Access = Access { remote_read: true, remote_write: false };

impl Netio {
    /// A context on a device.
    ///
    /// # Errors
    /// The system has no file descriptors left, or the device can't notify (see [`Options::sleeps`]).
    pub fn new(domain: &Domain, options: Options) -> Result<Self, Error> {
        let link = Link::new(domain, options)?;
        let returns = Arc::new(Returns::new(link.control.clone()));
        Ok(Self {
            link,
            operations: Slab::new(),
            connections: SlotMap::default(),
            acceptors: SlotMap::default(),
            senders: SlotMap::default(),
            listeners: SlotMap::default(),
            receivers: SlotMap::default(),
            publishers: SlotMap::default(),
            publications: SlotMap::default(),
            subscribers: SlotMap::default(),
            timers: Timers::default(),
            returns,
            returned: Vec::new(),
            stuck: Vec::new(),
            retry: RETRY,
            idle: Vec::new(),
            short_of_buffers: Vec::new(),
            events: VecDeque::new(),
            counts: Counts::default(),
            stops: false,
            has_looked: false,
            rounds: 0,
            waits_are_short: false,
        })
    }

    /// Allocates and registers memory to send from, of zeros: on the `shm` link shared memory, out of which receivers copy
    /// long messages sooner than out of memory that was [registered](Self::register).
    ///
    /// # Errors
    /// A limit of the device is reached.
    pub fn allocate(&self, length: usize) -> Result<Pool, Error> {
        Ok(self.link.domain.allocate(length, READ_BY_PEERS, LocalAccess::SEND)?.into())
    }

    /// Registers memory to send from. Memory that others own comes in by [`Pool::from`].
    ///
    /// The devices of peers that get a message of [`Options::read_threshold`] bytes or more from it may read it, also
    /// beyond the message.
    ///
    /// # Errors
    /// A limit of the device is reached; the memory comes back.
    pub fn register(&self, memory: impl Into<Box<[u8]>>) -> Result<Pool, Error> {
        let region = self.link.domain.register_for(memory, READ_BY_PEERS, LocalAccess::SEND)?;
        Ok(region.into())
    }

    /// Does what is due, and returns the next event. `None` if there was none in time.
    ///
    /// With a [`ManualClock`](efa::ManualClock) it doesn't wait: advance the clock, and call it again.
    ///
    /// # Errors
    /// The system can't make the thread sleep.
    pub fn poll(&mut self, wait: Wait) -> Result<Option<Event>, Error> {
        if let Some(event) = self.next_event() {
            return Ok(Some(event));
        }
        match wait {
            Wait::No => Ok(None),
            Wait::For(timeout) => self.wait(Some(self.link.now() + timeout)),
            Wait::Forever => self.wait(None),
        }
    }

    #[inline]
    fn next_event(&mut self) -> Option<Event> {
        if self.events.is_empty() {
            // The program has all that the last look found, which ended with a look in vain.
            if std::mem::take(&mut self.has_looked) {
                return None;
            }
            self.round();
        }
        self.events.pop_front()
    }

    #[cold]
    fn wait(&mut self, until: Option<Time>) -> Result<Option<Event>, Error> {
        let (begin, look) = (self.link.now(), self.link.options.look);
        let least = begin + look / LONG_LOOK;
        let looks_until = if self.waits_are_short { begin + look } else { least };
        loop {
            for _ in 0..ROUNDS {
                if let Some(event) = self.next_event() {
                    self.waits_are_short = self.link.now() - begin < look;
                    return Ok(Some(event));
                }
            }
            let now = self.link.now();
            let left = until.map_or(Duration::MAX, |until| until - now);
            if left.is_zero() || matches!(self.link.fabric.clock(), Clock::Manual(_)) {
                return Ok(None);
            }
            match self.link.set.clone() {
                Some(set) if now >= looks_until => {
                    let due = self.timers.next().map(|due| due - now);
                    let longest = self.longest_sleep();
                    let left = left.min(due.unwrap_or(longest)).min(longest);
                    if self.returns.fall_asleep() {
                        set.wait(left)?;
                    }
                    self.returns.wake_up();
                    self.woken();
                }
                // A yield takes longer than a message does to arrive, but others may need the processor.
                Some(_) if now < least => {}
                _ => std::thread::yield_now(),
            }
        }
    }

    /// The next round looks at everything. The sleep after it may be longer, if this one was in vain.
    fn woken(&mut self) {
        self.rounds = 0;
        self.retry = (self.retry * 2).min(RETRY_AT_MOST);
    }

    /// How long the thread may sleep if nothing is due.
    fn longest_sleep(&self) -> Duration {
        match self.stuck.is_empty() {
            true => Duration::from_secs(3600),
            false => self.retry,
        }
    }

    /// Prepares for sleep on [its descriptor](Self::as_fd) in a loop of the program: returns `true` if there is nothing to
    /// do before the descriptor is readable or [`next_timeout`](Self::next_timeout) is over. `false`: call
    /// [`poll`](Self::poll) first, until it has no event.
    ///
    /// # Errors
    /// The context [doesn't sleep](Options::sleeps), or the system fails.
    pub fn try_sleep(&mut self) -> Result<bool, TryWaitError> {
        let set = self.link.set.clone().ok_or(TryWaitError::NotWaitable)?;
        let is_due = !self.idle.is_empty() || !self.short_of_buffers.is_empty();
        if !self.events.is_empty() || is_due || !self.returns.fall_asleep() {
            return Ok(false);
        }
        // Until the next call of `poll` others wake it.
        self.rounds = 0;
        match set.try_wait() {
            Ok(()) => Ok(true),
            Err(TryWaitError::Pending) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// The descriptor of a context that [sleeps](Options::sleeps), `None` of any other: readable when
    /// [`poll`](Self::poll) may have something, after [`try_sleep`](Self::try_sleep) has returned `true`.
    #[must_use]
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.set.as_ref().map(AsFd::as_fd)
    }

    /// How long until something is due that the descriptor doesn't tell. `None` if nothing is.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        let due = self.timers.next().map(|due| due - self.link.now());
        match self.stuck.is_empty() {
            true => due,
            false => Some(due.unwrap_or(self.retry).min(self.retry)),
        }
    }

    /// Gives each event to the handler, until one of its methods calls [`stop`](Self::stop).
    ///
    /// # Errors
    /// The system can't make the thread sleep.
    pub fn run(&mut self, handler: &mut impl Handler) -> Result<(), Error> {
        self.stops = false;
        while !self.stops {
            if let Some(event) = self.poll(Wait::Forever)? {
                handler.event(self, event);
            }
        }
        Ok(())
    }

    /// Ends [`run`](Self::run) after the method that calls it.
    pub fn stop(&mut self) {
        self.stops = true;
    }

    /// Sets a timer: [`Event::Timer`] comes `after` this time, and then `every` so often.
    pub fn timer(&mut self, after: Duration, every: Option<Duration>) -> Timer {
        let every = every.map(|every| every.max(Duration::from_nanos(1)));
        self.timers.timer(self.link.now() + after, every)
    }

    /// Ends a timer: no [`Event::Timer`] of it comes any more. Returns whether one was still to come.
    pub fn cancel_timer(&mut self, timer: Timer) -> bool {
        let events = self.events.len();
        // One that is due already, and waits behind the event that the program handles.
        self.events.retain(|event| !matches!(event, Event::Timer(due) if *due == timer));
        self.timers.cancel(timer) || self.events.len() < events
    }

    /// What other threads wake the context with.
    #[must_use]
    pub fn signal(&self) -> Signal {
        Signal(self.returns.clone())
    }

    /// Its numbers.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            connections: self.connections.len(),
            operations: self.operations.len(),
            publications: self.publications.len(),
            tags: self.publishers.values().map(Publisher::tags).sum(),
            ..self.counts
        }
    }

    /// The statistics of the endpoints of a socket, one for each connection.
    #[must_use]
    pub fn statistics(&self, socket: impl Into<AnySocket>) -> Vec<Statistics> {
        let socket = socket.into();
        let of_socket = self
            .connections
            .values()
            .filter(|connection| AnySocket::from(connection.owner) == socket);
        of_socket.filter_map(|found| found.endpoint.as_ref()).map(|it| it.statistics()).collect()
    }

    /// Takes what has completed, and now and then the rest.
    fn round(&mut self) {
        if !self.idle.is_empty() {
            self.forget_idle();
        }
        if !self.short_of_buffers.is_empty() {
            self.post_returned();
        }
        let mut entry: Option<Entry> = None;
        let mut found = 0;
        while found < BATCH && self.link.queue.read_into(&mut entry) {
            self.completed(&mut entry);
            found += 1;
        }
        self.has_looked = found < BATCH && !self.events.is_empty();
        if found > 0 && self.rounds > 0 {
            self.rounds -= 1;
            return;
        }
        // A look at the event queue is a system call; a context that finds nothing makes one of `ROUNDS`.
        if self.rounds > 0 {
            self.rounds -= 1;
            return self.take_returns();
        }
        self.rounds = ROUNDS;
        self.returns.wake_up();
        self.take_returns();
        while let Some(event) = self.link.control.read() {
            self.controlled(event);
        }
        if !self.timers.is_empty() {
            self.pass_time();
        }
        if !self.stuck.is_empty() {
            self.try_stuck();
        }
    }

    /// Posts buffers: those that the program has given back by now before others, which left the processor's cache.
    #[inline(never)]
    fn post_returned(&mut self) {
        self.take_returns();
        while let Some(key) = self.short_of_buffers.pop() {
            self.post_buffers(key);
        }
    }

    #[inline]
    fn take_returns(&mut self) {
        self.returns.take(&mut self.returned);
        if !self.returned.is_empty() {
            self.take_returned();
        }
        if self.returns.take_signal() {
            self.events.push_back(Event::Signal);
        }
    }

    #[cold]
    fn take_returned(&mut self) {
        for back in std::mem::take(&mut self.returned) {
            match back {
                Return::Buffer(socket, buffer) => self.buffer_returned(socket, buffer),
                Return::GivenUp(publication) => self.give_up(publication),
                Return::Found(socket, attempt, found) => self.host_found(socket, attempt, found),
                Return::Stuck(connection) => self.stuck.push(connection),
            }
        }
    }

    fn pass_time(&mut self) {
        let now = self.link.now();
        while let Some(due) = self.timers.take_due(now) {
            match due {
                Due::Timer(timer) => self.events.push_back(Event::Timer(timer)),
                Due::End(connection) => self.end_is_due(connection),
                Due::Slow(publisher) => self.look_for_slow(publisher),
                Due::Lookup(socket, attempt) => self.lookup_is_due(socket, attempt),
            }
        }
    }
}

impl fmt::Debug for Netio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Netio")
            .field("domain", &self.link.domain)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}
