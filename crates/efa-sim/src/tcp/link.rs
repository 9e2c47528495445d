//! The tcp link of a queue pair: everything that happens, happens in a poll.
//!
//! ```text
//!  progress ─► write posted packets and pending acknowledgements
//!    ├─► every few polls: ask the system which sockets are ready
//!    ├─► serve those: take responses, and packets into posted buffers, and acknowledge these
//!    │   (in a conversation the system holds the acknowledgements back until the answer)
//!    ├─► once a second: close connections whose senders don't finish a hello or a frame, or whose hosts don't answer;
//!    │   take packets back from a full send queue
//!    └─► when it is time: connect again to receivers that had no room
//! ```

mod sending;

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use efa_device::{
    Armed, Destination, DeviceError, Gid, Qpn, QueuePairAddress, QueuePairOptions, RdmaRequest,
    SendRequest, Status, Time,
};
use fastrand::Rng;
use rustix::io::Errno;
use slab::Slab;

use super::admission;
use super::attention::Attention;
use super::connection::{Connection, Ending};
use super::incoming::Target;
use super::outgoing::{Finished, Posted};
use super::schedule::{Leaving, Schedule};
use super::socket::{Event, Listener, Poller, Socket, Token, endpoint, gid_of};
use super::statistics::TcpStatistics;
use super::wire::{CHUNK, Hello, Violation};
use super::{TcpDevice, TcpOptions};
use crate::fork::Opener;
use crate::link::{
    Direction, KeptNumber, Link, LinkQueuePair, Packet, Path, QueueState, RequestedOperation,
    Settings, granted, system,
};
use crate::record::QueuePairId;
use crate::region::SoftRegion;

/// Idle polls between two questions to the system. Asking in each makes an idle poll take five times
/// as long, and ping-pong no faster: with sends outstanding each poll asks anyway.
const SOCKET_POLL_INTERVAL: u32 = 8;
/// Time after which an idle poll asks in any case: a program that sleeps or computes between its polls would see what has
/// arrived up to eight polls later. Eight polls in a row take some 2 µs.
const SOCKET_POLL_AFTER: Duration = Duration::from_micros(20);
/// Most connections accepted at a time.
const ACCEPTS: usize = 64;
/// Connections that can wait to be accepted, as far as the system allows. When so many wait, further ones get
/// in late: the system of the sender tries again after a second, then more and more rarely.
const WAITING: usize = 1024;
/// Most connections served in a poll.
const SERVES: usize = 32;
/// How often a queue pair that sleeps looks at packets for which no buffer is posted.
const LOOK_FOR_BUFFERS: Duration = Duration::from_millis(1);
/// How long a receiver may be without response before packets for it are taken back from a full send queue.
const RESPONDS_WITHIN: Duration = Duration::from_secs(1);
/// Bytes received at a time from a connection that is closed.
const SCRATCH: usize = 1 << 16;

/// A queue pair of a [`TcpDevice`].
///
/// Dropping it rejects the packets that others have sent to it, so that their sends complete. Its own
/// packets are still delivered as far as the system has taken them.
pub type TcpQueuePair = LinkQueuePair<TcpLink>;

/// Connections to and from other queue pairs.
#[derive(Debug)]
pub struct TcpLink {
    me: QueuePairId,
    rnr_retry: u8,
    options: Arc<TcpOptions>,
    schedule: Schedule,
    statistics: TcpStatistics,
    reorder: Option<Rng>,

    connections: Slab<Connection>,
    /// How many of them were accepted.
    accepted: usize,
    /// Keys of those on which packets are sent.
    peers: HashMap<QueuePairId, usize>,
    leaving: Leaving,

    /// The process that opened the device.
    opener: Opener,
    listener: Arc<Listener>,
    /// Whether there may be connections to accept.
    accept_pending: bool,
    poller: Poller,
    /// Connections with something to write.
    dirty: Vec<usize>,
    /// Connections to be served.
    ready: VecDeque<usize>,
    asked: Asked,
    /// Polls that found no completion queued.
    turn: u64,
    waitable: bool,
    /// Whether a thread may sleep while another one posts.
    is_armed: bool,
    /// Empty until there is something to receive.
    scratch: Vec<u8>,
    /// Calls that received something up to the last sweep.
    received: u64,
    attention: Attention,
}

/// When the system was last asked which sockets are ready.
#[derive(Debug)]
struct Asked {
    /// Read from the system: the time that a poll is given may be that of an earlier poll.
    at: Instant,
    /// Polls since then.
    polls: u32,
}

impl Asked {
    fn now() -> Self {
        Self { at: Instant::now(), polls: 0 }
    }

    /// Whether it is to be asked again. In a poll that has found something the time isn't looked at.
    fn is_long_ago(&self, found_nothing: bool) -> bool {
        self.polls >= SOCKET_POLL_INTERVAL
            || found_nothing && self.at.elapsed() >= SOCKET_POLL_AFTER
    }
}

/// Creates a queue pair, with the number of one that was retired if it is `again`.
pub(super) fn create(
    device: &TcpDevice,
    options: QueuePairOptions,
    again: Option<&KeptNumber>,
) -> Result<TcpQueuePair, DeviceError> {
    device.opener.check(|| device.attributes.name.clone())?;
    let attributes = granted(&device.attributes, &options)?;
    let settings = &device.options;
    let listener = match again {
        None => Arc::new(listen(settings)?),
        Some(number) => {
            let listener: Arc<Listener> = number.by()?;
            listener.reopen(WAITING).map_err(|errno| system("listening again", errno))?;
            listener
        }
    };
    let qpn = listener.port().map_err(|errno| system("getsockname", errno))?;
    let poller = Poller::new().map_err(|errno| system("epoll_create", errno))?;
    poller.add_listener(&listener).map_err(|errno| system("epoll_ctl", errno))?;
    let (gid, qpn) = (gid_of(settings.address), Qpn(qpn));
    let link = TcpLink {
        opener: device.opener,
        me: QueuePairId { gid, qpn },
        rnr_retry: options.rnr_retry,
        options: Arc::clone(settings),
        schedule: Schedule::new(settings.dead_after),
        statistics: TcpStatistics::default(),
        reorder: settings.reorder.map(|seed| device.draws.next(seed)),
        connections: Slab::new(),
        accepted: 0,
        peers: HashMap::new(),
        leaving: Leaving::default(),
        listener,
        accept_pending: false,
        poller,
        dirty: Vec::new(),
        ready: VecDeque::new(),
        asked: Asked::now(),
        turn: 1,
        waitable: options.waitable,
        is_armed: false,
        scratch: Vec::new(),
        received: 0,
        attention: Attention::default(),
    };
    let settings = Settings {
        attributes,
        keys: device.keys.clone(),
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

impl LinkQueuePair<TcpLink> {
    /// Sets how often the device tries again when a receiver is not ready; 7 means without end. For a receiver that
    /// packets are on the way to it may hold for these, too.
    pub fn set_rnr_retry(&mut self, rnr_retry: u8) {
        self.link.rnr_retry = rnr_retry;
    }

    /// Ends the queue pair as a device ends one that has failed: nobody reaches it any more, and no
    /// other queue pair gets its number before the result is dropped.
    ///
    /// # Errors
    /// [`DeviceError::System`] if the port can't be reserved. The queue pair has ended all the same.
    pub fn retire(self) -> Result<KeptNumber, DeviceError> {
        let (listener, qpn) = (Arc::clone(&self.link.listener), self.link.me.qpn);
        drop(self);
        listener.close().map_err(|errno| system("keeping a port", errno))?;
        Ok(KeptNumber::new(qpn, listener))
    }

    /// Counts since the queue pair was created.
    #[must_use]
    pub fn statistics(&self) -> TcpStatistics {
        let link = &self.link;
        let (outgoing, incoming) = (link.connections.len() - link.accepted, link.accepted);
        TcpStatistics { outgoing, incoming, ..link.statistics }
    }
}

impl TcpLink {
    /// Asks the system which sockets are ready.
    #[inline(never)]
    fn poll_sockets(&mut self, state: &mut QueueState) {
        self.asked = Asked::now();
        self.statistics.epoll_waits += 1;
        let Self { poller, connections, ready, dirty, accept_pending, .. } = self;
        poller.poll(|Event { token, readable, writable, hung_up }| {
            let Token::Connection(key) = token else {
                *accept_pending = true;
                return;
            };
            let Some(connection) = connections.get_mut(key) else { return };
            connection.note(readable, writable, hung_up);
            if readable {
                serve_later(ready, key, connection);
            }
            flush_later(dirty, key, connection);
        });
        if self.accept_pending {
            self.accept(state);
        }
        if !self.dirty.is_empty() {
            self.flush(state);
        }
    }

    /// Serves ready connections in turn, each once at most, until there is a completion.
    #[inline(never)]
    fn serve(&mut self, state: &mut QueueState) {
        for _ in 0..self.ready.len().min(SERVES) {
            if let Some(key) = self.ready.pop_front() {
                self.serve_connection(state, key);
            }
            if state.has_completions() {
                break;
            }
        }
    }

    /// Writes posted packets and pending responses.
    #[inline(never)]
    fn flush(&mut self, state: &mut QueueState) {
        while let Some(key) = self.dirty.pop() {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.dirty = false;
                self.flush_connection(state, key);
            }
        }
    }

    /// Has the system send the acknowledgements of a connection that have waited for an answer.
    #[inline]
    fn push(&mut self, waited: Option<usize>) {
        let waited = waited.and_then(|key| self.connections.get(key));
        if let Some(socket) = waited.and_then(Connection::socket) {
            socket.push();
        }
    }

    #[cold]
    fn accept(&mut self, state: &mut QueueState) {
        for _ in 0..ACCEPTS {
            match self.listener.accept(self.options.dead_after) {
                Ok(Some((socket, address, port))) => {
                    self.accepted(state, socket, gid_of(address), port);
                }
                Ok(None) => {
                    self.accept_pending = false;
                    return;
                }
                Err(Errno::MFILE | Errno::NFILE)
                    if self.leaving.close_oldest() || self.close_idle(state) => {}
                Err(errno) => {
                    // Tried again in the next sweep: the system doesn't report when it can.
                    self.accept_pending = false;
                    self.statistics.failed_accepts += 1;
                    tracing::warn!(%errno, "a connection could not be accepted");
                    return;
                }
            }
        }
    }

    fn accepted(&mut self, state: &QueueState, socket: Socket, gid: Gid, port: u16) {
        let mine = self.hello(state);
        let mut connection = Connection::accepted(gid, port, mine, socket, state.now());
        if self.accepted >= self.options.max_peers && !self.make_room(gid, state.now()) {
            self.statistics.rejected += 1;
            connection.turn_away(scratch(&mut self.scratch));
            self.leave(connection, state.now());
            return;
        }
        let key = self.connections.vacant_key();
        let Some(socket) = connection.socket() else { return };
        if let Err(errno) = self.poller.add_connection(socket, Token::Connection(key)) {
            self.statistics.failed_accepts += 1;
            tracing::warn!(%errno, %gid, "a connection could not be watched");
            connection.turn_away(scratch(&mut self.scratch));
            self.leave(connection, state.now());
            return;
        }
        self.statistics.accepts += 1;
        self.accepted += 1;
        tracing::debug!(%gid, port, "accepted a connection");
        (connection.dirty, connection.queued) = (true, true);
        self.connections.insert(connection);
        self.dirty.push(key);
        self.ready.push_back(key);
    }

    /// What this queue pair says first on a connection.
    fn hello(&self, state: &QueueState) -> Hello {
        let mtu = u32::try_from(state.attributes().mtu).unwrap_or(u32::MAX);
        Hello { qpn: self.me.qpn, mtu, qkey: state.qkey() }
    }

    /// Closes a connection so that one from `newcomer` can be accepted. Returns whether there was one to close.
    fn make_room(&mut self, newcomer: Gid, now: Time) -> bool {
        let held = self.connections.iter().filter_map(|(key, connection)| connection.held(key));
        let held: Vec<_> = held.collect();
        let Some(key) = admission::to_drop(&held, newcomer, now) else { return false };
        self.statistics.evicted += 1;
        self.turn_away(key, now);
        true
    }

    /// Closes a connection; its sender may come back.
    fn turn_away(&mut self, key: usize, now: Time) {
        if let Some(mut connection) = self.remove(key) {
            tracing::debug!(peer = %connection.peer(), "closing a connection, to be tried again");
            connection.turn_away(scratch(&mut self.scratch));
            self.leave(connection, now);
        }
    }

    /// Keeps the socket of a connection that was closed, until its last words have arrived.
    fn leave(&mut self, connection: Connection, now: Time) {
        if let Some(socket) = connection.into_socket() {
            self.poller.remove(&socket);
            self.leaving.add(socket, now);
        }
    }

    /// Looks whether something has arrived on a connection, though the system has reported nothing.
    fn look(&mut self, state: &mut QueueState, key: usize) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.note(true, false, false);
            self.serve_connection(state, key);
        }
    }

    fn serve_connection(&mut self, state: &mut QueueState, key: usize) {
        if !self.opener.is_this() {
            // A forked child has no socket. What had arrived before is its parent's.
            return self.end(state, key, Ending::Over(Status::UnresponsiveRemote));
        }
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.queued = false;
        let (now, turn, before) = (state.now(), self.turn, connection.peer());
        let calls = &mut self.statistics.receives;
        let finish = |finished| complete(state, before, finished);
        let read = connection.read(now, calls, finish);
        if matches!(read, Ok(false)) && !connection.wants_poll() {
            return;
        }
        let sender = connection.peer();
        let (queue, mut deliveries) = state.receiving();
        let reorder = self.reorder.as_mut();
        let mut target = Target { queue, book: deliveries.book(), reorder };
        let mut known = None;
        connection.deliver(&mut target, |delivered| {
            let source = *known.get_or_insert_with(|| deliveries.source(sender));
            deliveries.push(sender, source, delivered);
        });
        if connection.has_named_itself() {
            self.release(state, key);
        }
        if let Err(ending) = read {
            self.end(state, key, ending);
            return;
        }
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.is_done() {
            self.close_connection(key, Status::BadDestinationQpn);
            return;
        }
        let flushes = flush_later(&mut self.dirty, key, connection);
        if connection.wants_poll() {
            serve_later(&mut self.ready, key, connection);
        }
        if known.is_some() {
            connection.delivered(turn);
            self.attention.delivered(key, now);
        }
        if known.is_some() && self.attention.expects_answer() {
            let before = self.attention.wait(key);
            self.push(before);
        } else if flushes && self.attention.waits(key) {
            // They go now, and those that wait with them.
            self.attention.end_wait();
        }
    }

    /// Does what is due at this time.
    #[cold]
    fn due(&mut self, state: &mut QueueState) {
        let now = state.now();
        if self.schedule.take_sweep(now) {
            self.sweep(state);
        }
        while let Some(key) = self.schedule.take_retry(now) {
            self.try_again(state, key);
        }
    }

    /// Accepts connections, closes those whose senders don't finish a hello or a frame, or whose hosts don't answer, and takes
    /// packets back from a full send queue.
    fn sweep(&mut self, state: &mut QueueState) {
        if std::mem::replace(&mut self.received, self.statistics.receives) == self.received {
            self.scratch = Vec::new();
            self.connections.iter_mut().for_each(|(_, connection)| connection.free_memory());
        }
        self.leaving.close(state.now());
        self.accept_pending = true;
        self.accept(state);
        self.give_up_silent(state);
        self.relieve(state);
        let (now, options) = (state.now(), Arc::clone(&self.options));
        let all = self.connections.iter_mut();
        let late =
            all.filter_map(|(key, connection)| connection.exceeded(&options, now).map(|_| key));
        for key in late.collect::<Vec<_>>() {
            // The rest may have arrived since the socket was last read.
            let Some(connection) = self.look_now(state, key) else { continue };
            if let Some(limit) = connection.exceeded(&options, now) {
                let violation = Violation::Slow { limit };
                tracing::warn!(peer = %connection.peer(), %violation, "closing a connection");
                self.statistics.violations.count(violation);
                self.release(state, key);
                self.turn_away(key, now);
            }
        }
    }

    /// Looks at a connection out of turn. `None` if it is gone then.
    fn look_now(&mut self, state: &mut QueueState, key: usize) -> Option<&mut Connection> {
        self.ready.retain(|&ready| ready != key);
        self.look(state, key);
        self.connections.get_mut(key)
    }

    /// If the send queue is full, takes packets back from it that wait for receivers without response, as those keep others
    /// from it that have receivers that respond.
    fn relieve(&mut self, state: &mut QueueState) {
        let now = state.now();
        let unanswered =
            |connection: &mut Connection| connection.outgoing.unanswered(now) >= RESPONDS_WITHIN;
        let all = self.connections.iter_mut();
        let stalled = all.filter_map(|(key, connection)| unanswered(connection).then_some(key));
        for key in stalled.collect::<Vec<_>>() {
            if !state.is_stuck() {
                return;
            }
            // A response may have arrived since the socket was last read.
            if let Some(connection) = self.look_now(state, key)
                && unanswered(connection)
                && state.is_stuck()
            {
                let peer = connection.peer();
                tracing::debug!(%peer, "the send queue is full, and it doesn't respond");
                connection.outgoing.take_back(|finished| complete(state, peer, finished));
            }
        }
    }

    /// Ends connections whose hosts have not answered for so long that they are taken for dead.
    fn give_up_silent(&mut self, state: &mut QueueState) {
        let (now, limit) = (state.now(), self.options.dead_after);
        let Some(limit) = limit.filter(|_| self.opener.is_this()) else { return };
        let all = self.connections.iter_mut();
        let silent =
            all.filter_map(|(key, connection)| connection.is_silent(limit, now).then_some(key));
        for key in silent.collect::<Vec<_>>() {
            // Something may have arrived before that, since the socket was last read.
            if let Some(connection) = self.look_now(state, key)
                && connection.is_silent(limit, now)
            {
                tracing::debug!(peer = %connection.peer(), ?limit, "no answer");
                let ending = connection.give_up();
                self.end(state, key, ending);
            }
        }
    }
}

impl Link for TcpLink {
    fn path_to(&mut self, state: &mut QueueState, to: Destination) -> Result<Path, DeviceError> {
        let handle = to.address_handle;
        let gid = state.book().gid(handle).ok_or(DeviceError::BadAddressHandle { handle })?;
        let peer = QueuePairId { gid, qpn: to.qpn };
        Ok(Path { peer, connection: self.connection_to(state, peer, to.qkey)? })
    }

    fn send(&mut self, state: &mut QueueState, path: Path, request: SendRequest<Packet>) {
        let SendRequest { id, packet, length, destination, immediate } = request;
        state.record_sent(path.peer, &packet[..length]);
        let qkey = destination.qkey;
        let posted = Posted { id, packet, length, immediate, qkey };
        match path.connection {
            Ok(key) => {
                let Some(connection) = self.connections.get_mut(key) else { return };
                self.attention.posted(key);
                connection.outgoing.rnr_retry = self.rnr_retry;
                connection.outgoing.push(posted);
                self.write_soon(state, key);
            }
            Err(status) => complete(state, path.peer, Finished::Send(posted, Err(status))),
        }
    }

    fn start_rdma(
        &mut self,
        state: &mut QueueState,
        request: RdmaRequest<SoftRegion>,
        direction: Direction,
    ) -> Result<(), DeviceError> {
        let path = self.path_to(state, request.destination)?;
        state.count_send();
        match path.connection {
            Ok(key) => {
                let Some(connection) = self.connections.get_mut(key) else { return Ok(()) };
                let operation = RequestedOperation::new(request, direction, CHUNK);
                self.attention.posted(key);
                connection.outgoing.rnr_retry = self.rnr_retry;
                connection
                    .outgoing
                    .start(operation, |finished| complete(state, path.peer, finished));
                self.write_soon(state, key);
            }
            Err(status) => state.complete_rdma(request.id, Err(status)),
        }
        Ok(())
    }

    fn progress(&mut self, state: &mut QueueState) {
        let waited = self.attention.polled();
        self.push(waited);
        if !self.dirty.is_empty() {
            self.flush(state);
        }
        self.is_armed = false;
        self.turn += 1;
        self.asked.polls += 1;
        let looks_at = match self.ready.is_empty() {
            true => self.attention.next(state.has_sends()),
            false => None,
        };
        if let Some(key) = looks_at {
            self.look(state, key);
        }
        let asks = state.has_sends() && looks_at.is_none() && self.ready.is_empty();
        if asks || self.asked.is_long_ago(self.ready.is_empty()) {
            self.poll_sockets(state);
        }
        if !self.ready.is_empty() {
            self.serve(state);
        }
        if state.now() >= self.schedule.next() {
            self.due(state);
        }
        // What was received is acknowledged at once: the program may not poll again.
        if !self.dirty.is_empty() {
            self.flush(state);
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.waitable.then(|| self.poller.descriptor())
    }

    /// Sockets whose readiness was taken from the system, as it reports each change once.
    fn has_work(&self) -> bool {
        self.waitable && !(self.ready.is_empty() && self.dirty.is_empty())
    }

    fn arm(&mut self, state: &mut QueueState) -> Armed {
        if !self.dirty.is_empty() {
            self.flush(state);
        }
        // What becomes ready from now on makes the poller's descriptor readable.
        self.poll_sockets(state);
        if !self.ready.is_empty() {
            self.serve(state);
        }
        if state.now() >= self.schedule.next() {
            self.due(state);
        }
        if !self.dirty.is_empty() {
            self.flush(state);
        }
        let waited = self.attention.end_wait();
        self.push(waited);
        self.is_armed = true;
        let until = match self.ready.is_empty() && self.dirty.is_empty() {
            true => self.schedule.next(),
            false if state.has_posted() => return Armed::Pending,
            false => self.schedule.next().min(state.now() + LOOK_FOR_BUFFERS),
        };
        Armed::Quiet { until: Some(until) }
    }

    fn close(&mut self, state: &mut QueueState) {
        // Those that have connected and were not accepted yet, as many as can be waiting.
        for _ in 0..=WAITING {
            let Ok(Some((socket, address, port))) = self.listener.accept(None) else { break };
            let (mine, now) = (self.hello(state), state.now());
            let mut connection = Connection::accepted(gid_of(address), port, mine, socket, now);
            connection.close(Status::BadDestinationQpn, scratch(&mut self.scratch));
        }
        for (_, connection) in &mut self.connections {
            connection.close(Status::BadDestinationQpn, scratch(&mut self.scratch));
        }
    }
}

/// Lists a connection among those to be served, if it isn't there.
fn serve_later(ready: &mut VecDeque<usize>, key: usize, connection: &mut Connection) {
    if !std::mem::replace(&mut connection.queued, true) {
        ready.push_back(key);
    }
}

/// Lists a connection among those with something to write, if it isn't there. Returns whether there is something.
fn flush_later(dirty: &mut Vec<usize>, key: usize, connection: &mut Connection) -> bool {
    let flushes = connection.wants_flush();
    if flushes && !std::mem::replace(&mut connection.dirty, true) {
        dirty.push(key);
    }
    flushes
}

/// Memory to receive into.
#[inline]
fn scratch(scratch: &mut Vec<u8>) -> &mut [u8] {
    if scratch.is_empty() {
        *scratch = vec![0; SCRATCH];
    }
    scratch
}

/// Completes a send or RDMA operation to `peer`.
fn complete(state: &mut QueueState, peer: QueuePairId, finished: Finished) {
    match finished {
        Finished::Send(Posted { id, packet, length, .. }, result) => {
            state.complete_send(peer, id, packet, length, result);
        }
        Finished::Rdma(id, result) => state.complete_rdma(id, result),
    }
}

/// Listens on the first free port of those allowed.
fn listen(options: &TcpOptions) -> Result<Listener, DeviceError> {
    let mut refused = Errno::ADDRINUSE;
    let at = |port| endpoint(options.address, port, options.scope_id);
    let ports = options.ports.clone().unwrap_or(0..=0);
    if ports.is_empty() {
        return Err(DeviceError::LimitReached {
            object: "queue pair (TcpOptions::ports is empty)",
            limit: 0,
        });
    }
    for port in ports {
        match Listener::bind(at(port), WAITING) {
            Ok(listener) => return Ok(listener),
            Err(errno) => refused = errno,
        }
        if refused != Errno::ADDRINUSE {
            break;
        }
    }
    let place = match &options.ports {
        Some(ports) => format!("{}, ports {} to {}", options.address, ports.start(), ports.end()),
        None => options.address.to_string(),
    };
    Err(system(format!("listening on {place}"), refused))
}
