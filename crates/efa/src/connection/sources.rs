//! What an event queue reads, each with a key: listeners, callers that have asked nothing yet, connections.
//!
//! ```text
//!   epoll, deadlines ─► ready ─► run ─┬─► an entry of the queue
//!                        ▲            └─► the next state of the source, or its end
//!                        └── again, if there may be more
//! ```
//!
//! The epoll reports changes only, so a source stays ready until it was run. While the queue is full, none is:
//! what callers and peers send waits in the system.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use efa_connect::{Exchange, Failure, Happening};
use efa_device::Time;
use rustix::event::{Timespec, epoll};
use slab::Slab;

use super::call::Call;
use super::event::{ControlError, ControlEvent};
use super::request::{ConnectionRequest, Waiters};
use super::state::ConnectionState;
use super::stream::{Acceptor, Stream, Watch};

/// Most callers of a listener that have not asked anything yet. For a further one another makes room, of the host that
/// has the most.
const MOST_UNFINISHED: usize = 64;
/// How long a caller may take to ask.
const FIRST_WORD: Duration = Duration::from_secs(5);
/// After how long a listener tries again when the system had no descriptor for a caller.
const PAUSE: Duration = Duration::from_millis(10);
/// Most sources that are run in one read of a queue.
const RUNS: usize = 1024;

pub(super) type Entry = Result<ControlEvent, ControlError>;

#[derive(Debug)]
pub(super) enum Source {
    Listener {
        acceptor: Acceptor,
        waiters: Arc<Waiters>,
        /// Keys of its callers, the oldest first.
        unfinished: VecDeque<usize>,
        again: Option<Time>,
    },
    /// Somebody who has not asked anything yet.
    Caller {
        listener: usize,
        waiters: Arc<Waiters>,
        call: Call,
        from: SocketAddr,
    },
    Connection {
        state: Arc<ConnectionState>,
        call: Call,
    },
    /// A connection that the other side ended, until all that has arrived was taken.
    Ending(Arc<ConnectionState>),
    /// It is being run.
    Running,
}

/// What was removed.
pub(super) type Removed = Source;

/// What becomes of a source that was run.
enum Next {
    Stay(Source),
    /// There may be more.
    Again(Source),
    /// Not before the next read.
    Later(Source),
    Gone,
}

#[derive(Debug)]
struct Slot {
    source: Source,
    is_ready: bool,
    deadline: Option<Time>,
}

/// The sources of one event queue, and the entries that they made.
#[derive(Debug)]
pub(super) struct Sources {
    pub(super) entries: VecDeque<Entry>,
    slots: Slab<Slot>,
    ready: VecDeque<usize>,
    /// To be run in the next read.
    later: Vec<usize>,
    deadlines: BTreeSet<(Time, usize)>,
}

impl Source {
    pub(super) fn listener(acceptor: Acceptor, waiters: Arc<Waiters>) -> Self {
        Self::Listener { acceptor, waiters, unfinished: VecDeque::new(), again: None }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Self::Listener { again, .. } => *again,
            Self::Caller { call, .. } | Self::Connection { call, .. } => {
                call.exchange.next_timeout()
            }
            Self::Ending(_) | Self::Running => None,
        }
    }

    pub(super) fn stream(&self) -> Option<&Stream> {
        match self {
            Self::Caller { call, .. } | Self::Connection { call, .. } => call.stream.as_ref().ok(),
            Self::Listener { .. } | Self::Ending(_) | Self::Running => None,
        }
    }

    /// When a pipe of it has something. TCP reports that.
    #[cfg(feature = "sim")]
    fn next_event(&self) -> Option<Time> {
        match self {
            Self::Listener { acceptor: Acceptor::Pipe(inbox), .. } => inbox.next_event(),
            source => match source.stream()? {
                Stream::Pipe(pipe) => pipe.next_event(),
                Stream::Tcp(_) => None,
            },
        }
    }
}

impl Sources {
    pub(super) fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            slots: Slab::new(),
            ready: VecDeque::new(),
            later: Vec::new(),
            deadlines: BTreeSet::new(),
        }
    }

    /// Adds what `make` returns for its key; it is run soon.
    pub(super) fn add<E>(
        &mut self,
        make: impl FnOnce(u64) -> Result<Source, E>,
    ) -> Result<usize, E> {
        let vacant = self.slots.vacant_entry();
        let key = vacant.key();
        let source = make(key as u64)?;
        vacant.insert(Slot { source, is_ready: false, deadline: None });
        self.mark_ready(key);
        Ok(key)
    }

    pub(super) fn remove(&mut self, key: usize, watch: &Watch) -> Option<Removed> {
        let Slot { source, deadline, .. } = self.slots.try_remove(key)?;
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, key));
        }
        if let Some(stream) = source.stream() {
            stream.unregister(watch);
        }
        if let Source::Listener { unfinished, .. } = &source {
            for caller in unfinished {
                self.remove(*caller, watch);
            }
        }
        Some(source)
    }

    fn mark_ready(&mut self, key: usize) {
        if let Some(slot) = self.slots.get_mut(key)
            && !std::mem::replace(&mut slot.is_ready, true)
        {
            self.ready.push_back(key);
        }
    }

    /// Some requests were answered: listeners that had too many go on.
    pub(super) fn resume_listeners(&mut self) {
        let waits =
            |slot: &Slot| matches!(slot.source, Source::Listener { .. } | Source::Caller { .. });
        let keys: Vec<_> =
            self.slots.iter().filter(|(_, slot)| waits(slot)).map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.mark_ready(key));
    }

    /// Whether something is left to be done without waiting.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether something has to be tried again.
    pub(super) fn has_later(&self) -> bool {
        !self.later.is_empty()
    }

    /// Marks what has become ready.
    pub(super) fn collect(&mut self, watch: &Watch, has_pipes: bool, now: Time) {
        for key in std::mem::take(&mut self.later) {
            self.mark_ready(key);
        }
        while let Some(&(deadline, key)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            if let Some(slot) = self.slots.get_mut(key) {
                slot.deadline = None;
            }
            self.mark_ready(key);
        }
        if has_pipes {
            let keys: Vec<_> = self.slots.iter().map(|(key, _)| key).collect();
            keys.into_iter().for_each(|key| self.mark_ready(key));
            return;
        }
        let mut events = [const { MaybeUninit::uninit() }; 64];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // It fails only when interrupted by a signal; the next read gets the events.
        while let Ok((ready, rest)) = epoll::wait(&watch.epoll, &mut events, Some(&at_once)) {
            ready.iter().for_each(|event| self.mark_ready(event.data.u64() as usize));
            if !rest.is_empty() {
                break;
            }
        }
    }

    /// Runs what is ready, until the queue has `capacity` entries.
    pub(super) fn run(&mut self, watch: &Watch, capacity: usize, now: Time) {
        for _ in 0..RUNS {
            if self.entries.len() >= capacity {
                return;
            }
            let Some(key) = self.ready.pop_front() else { return };
            let Some(slot) = self.slots.get_mut(key) else { continue };
            slot.is_ready = false;
            let source = std::mem::replace(&mut slot.source, Source::Running);
            let next = match source {
                Source::Listener { acceptor, waiters, unfinished, again } => {
                    let had_shortage = again.is_some();
                    self.accept(key, (acceptor, waiters, unfinished), had_shortage, watch, now)
                }
                Source::Caller { listener, waiters, call, from } => {
                    let next = self.hear((listener, waiters), call, from, watch, now);
                    if matches!(next, Next::Gone)
                        && let Some(slot) = self.slots.get_mut(listener)
                        && let Source::Listener { unfinished, .. } = &mut slot.source
                    {
                        unfinished.retain(|caller| *caller != key);
                    }
                    next
                }
                Source::Connection { state, call } => self.go_on(state, call, watch, now),
                Source::Ending(state) => self.finish(state),
                Source::Running => Next::Gone,
            };
            match next {
                Next::Stay(source) => self.put_back(key, source),
                Next::Again(source) => {
                    self.put_back(key, source);
                    self.mark_ready(key);
                }
                Next::Later(source) => {
                    self.put_back(key, source);
                    self.later.push(key);
                }
                Next::Gone => drop(self.remove(key, watch)),
            }
        }
    }

    fn put_back(&mut self, key: usize, source: Source) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        let deadline = source.deadline();
        if let Some(old) = std::mem::replace(&mut slot.deadline, deadline) {
            self.deadlines.remove(&(old, key));
        }
        if let Some(new) = deadline {
            self.deadlines.insert((new, key));
        }
        slot.source = source;
    }

    /// Takes one caller from a listener.
    fn accept(
        &mut self,
        key: usize,
        (mut acceptor, waiters, mut unfinished): (Acceptor, Arc<Waiters>, VecDeque<usize>),
        had_shortage: bool,
        watch: &Watch,
        now: Time,
    ) -> Next {
        if waiters.is_full() {
            return Next::Stay(Source::Listener { acceptor, waiters, unfinished, again: None });
        }
        let accepted = acceptor.accept();
        let mut again = None;
        let more = matches!(accepted, Ok(Some(_)));
        match accepted {
            Ok(None) => {}
            Ok(Some((stream, from))) => {
                if unfinished.len() >= MOST_UNFINISHED
                    && let Some(crowding) = unfinished.remove(self.crowding(&unfinished))
                {
                    tracing::debug!(%from, "a caller that asked nothing makes room");
                    drop(self.remove(crowding, watch));
                }
                let call = Call::from(stream, Exchange::callee(now + FIRST_WORD));
                let waiters = waiters.clone();
                let added = self.add(|key_of_caller| {
                    if let Ok(stream) = &call.stream {
                        stream.register(watch, key_of_caller)?;
                    }
                    Ok::<_, io::Error>(Source::Caller { listener: key, waiters, call, from })
                });
                unfinished.extend(added.ok());
            }
            Err(error) => {
                // One warning for each shortage.
                if !had_shortage {
                    tracing::warn!(%error, "a listener can't accept; it tries again");
                }
                again = Some(now + PAUSE);
            }
        }
        let listener = Source::Listener { acceptor, waiters, unfinished, again };
        if more { Next::Again(listener) } else { Next::Stay(listener) }
    }

    /// Which of these callers makes room for another: the oldest of those from the host with the most.
    fn crowding(&self, callers: &VecDeque<usize>) -> usize {
        let hosts: Vec<_> = callers
            .iter()
            .map(|key| match self.slots.get(*key)?.source {
                Source::Caller { from, .. } => Some(host(from.ip())),
                _ => None,
            })
            .collect();
        let count = |host| hosts.iter().filter(|other| *other == host).count();
        // The last of those that are equal, so from the newest to the oldest.
        (0..hosts.len()).rev().max_by_key(|at| count(&hosts[*at])).unwrap_or(0)
    }

    /// Hears what a caller asks.
    fn hear(
        &mut self,
        (listener, waiters): (usize, Arc<Waiters>),
        mut call: Call,
        from: SocketAddr,
        watch: &Watch,
        now: Time,
    ) -> Next {
        call.pump();
        if call.exchange.is_requested() && waiters.is_full() {
            return Next::Stay(Source::Caller { listener, waiters, call, from });
        }
        match call.exchange.next(now) {
            None => Next::Stay(Source::Caller { listener, waiters, call, from }),
            // Unless the caller has given up by now, or has said what comes out of turn.
            Some(Happening::Requested { address, data }) if !call.exchange.is_over() => {
                if let Ok(stream) = &call.stream {
                    stream.unregister(watch);
                }
                let unanswered = waiters.add();
                let request = ConnectionRequest::new(call, address, data, from, unanswered);
                self.entries.push_back(Ok(ControlEvent::ConnectionRequest(request)));
                Next::Gone
            }
            Some(ended) => {
                tracing::debug!(%from, ?ended, "a caller asked for no connection");
                Next::Gone
            }
        }
    }

    /// Goes on with a connection that is being made or has been.
    fn go_on(
        &mut self,
        state: Arc<ConnectionState>,
        mut call: Call,
        watch: &Watch,
        now: Time,
    ) -> Next {
        call.pump();
        let Some(happening) = call.exchange.next(now) else {
            return Next::Stay(Source::Connection { state, call });
        };
        match happening {
            Happening::Accepted { address, data } => match state.admit(address) {
                Ok(()) => {
                    call.exchange.ready();
                    call.pump();
                    if call.exchange.is_over() {
                        let failure = match call.exchange.next(now) {
                            Some(Happening::Failed(failure)) => failure,
                            // The exchange calls it a shutdown, but the program knows of no connection yet.
                            _ => Failure::Ended,
                        };
                        return self.fail(&state, &call, failure, watch);
                    }
                    self.entries.push_back(Ok(state.connected(data.into_vec())));
                    Next::Again(Source::Connection { state, call })
                }
                Err(error) => {
                    self.entries.push_back(Err(state.failed(error.into())));
                    unregister(&call, watch);
                    Next::Gone
                }
            },
            Happening::Connected => {
                self.entries.push_back(Ok(state.connected(Vec::new())));
                Next::Again(Source::Connection { state, call })
            }
            Happening::Shutdown => {
                unregister(&call, watch);
                drop(call);
                self.finish(state)
            }
            Happening::Failed(failure) => self.fail(&state, &call, failure, watch),
            // What only a callee hears.
            Happening::Requested { .. } => Next::Gone,
        }
    }

    /// Reports that an attempt to connect failed.
    fn fail(
        &mut self,
        state: &ConnectionState,
        call: &Call,
        failure: Failure,
        watch: &Watch,
    ) -> Next {
        let error = state.error(failure, call.error());
        self.entries.push_back(Err(state.failed(error)));
        unregister(call, watch);
        Next::Gone
    }

    /// Takes what has arrived of a connection that the other side ended.
    fn finish(&mut self, state: Arc<ConnectionState>) -> Next {
        state.stop_sending();
        match state.drain() {
            Some(true) => {
                self.entries.push_back(Ok(state.end()));
                Next::Gone
            }
            Some(false) => Next::Later(Source::Ending(state)),
            None => Next::Gone,
        }
    }

    /// When something is due even if nothing is reported.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        #[cfg(feature = "sim")]
        let pipes = self.slots.iter().filter_map(|(_, slot)| slot.source.next_event()).min();
        #[cfg(not(feature = "sim"))]
        let pipes = None;
        [deadline, pipes].into_iter().flatten().min()
    }
}

/// What stands for the host of a caller: its address, or the network of 64 bits in which an IPv6 host has any address.
fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

/// A source that is run is not in its slot, so its end can't unregister it.
fn unregister(call: &Call, watch: &Watch) {
    if let Ok(stream) = &call.stream {
        stream.unregister(watch);
    }
}
