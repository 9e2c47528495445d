//! A queue pair of the tcp link: everything that happens, happens in its [`poll`](QueuePair::poll).
//!
//! ```text
//!  poll ─► a completion is there? ─► take it
//!    │ none
//!    ├─► write what was posted and the answers that are owed
//!    ├─► now and then: ask the system which sockets something can be done with
//!    ├─► look at those: take answers, or packets into posted buffers
//!    └─► once a second: close connections whose senders don't say who they are
//! ```

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use efa_device::{
    Access, AddressHandle, Completion, Destination, DeviceAttributes, DeviceError, Gid, NoTagList,
    PostError, Qkey, Qpn, QueuePair, QueuePairAddress, QueuePairOptions, RdmaRequest,
    RegisterError, SendRequest, Source, Status, Time,
};
use fastrand::Rng;
use rustix::io::Errno;
use slab::Slab;

use super::incoming::{Found, Incoming, Judge};
use super::operation::Operation;
use super::outgoing::{Ending, Finished, Outgoing, Posted, status_of};
use super::socket::{Event, Listener, Poller, Socket, Token, address_of, endpoint, gid_of};
use super::statistics::TcpStatistics;
use super::wire::{Hello, Violation};
use super::{Book, TcpDevice, TcpOptions, system};
use crate::book::HeldHandles;
use crate::kept::KeptNumber;
use crate::rdma::{self, Direction};
use crate::record::{PacketEvent, QueuePairId, Record, SharedSink, Sink};
use crate::region::{KeyTable, SoftRegion};

type Packet = Box<[u8]>;

/// How often connections are looked through for such as say nothing.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Polls without anything to do for each at which the system is asked. Asking at each makes an idle
/// poll five times as dear, and ping-pong no faster: with sends outstanding each poll asks anyway.
const LOOK_EVERY: u32 = 8;
/// Most connections taken at a time.
const ACCEPTS: usize = 64;
/// Most connections looked at in a poll.
const SERVES: usize = 32;
/// Bytes of answers received at a time, and of what is read.
const SCRATCH: usize = 1 << 16;

/// A queue pair of a [`TcpDevice`].
///
/// Dropping it answers the packets that others have sent to it, so that their sends end. Its own
/// packets are still delivered as far as the system has taken them.
#[derive(Debug)]
pub struct TcpQueuePair {
    keys: KeyTable,
    attributes: DeviceAttributes,
    address: QueuePairAddress,
    rnr_retry: u8,
    options: Arc<TcpOptions>,
    book: Book,
    held: HeldHandles,
    capture: Option<SharedSink>,
    now: Time,
    next_sweep: Time,
    completions: VecDeque<Completion<Packet>>,
    statistics: TcpStatistics,

    posted: VecDeque<Packet>,
    /// Since when senders count how long it is not ready.
    ready_since: Option<Time>,
    /// Posted buffers whose completion was not taken yet.
    receives: usize,
    reorder: Option<Rng>,
    incoming: Slab<Incoming>,

    /// Accepted sends whose completion was not taken yet.
    sends: usize,
    outgoing: Slab<Outgoing>,
    ways: HashMap<QueuePairId, usize>,

    listener: Arc<Listener>,
    /// Whether connections can be there to be taken.
    knocking: bool,
    poller: Poller,
    /// Connections with something to write.
    dirty: Vec<Token>,
    /// Connections with something to be looked at.
    ready: VecDeque<Token>,
    /// Polls since the system was asked.
    unasked: u32,
    /// Polls that found no completion there already.
    turn: u64,
    scratch: Box<[u8]>,
}

impl TcpQueuePair {
    pub(super) fn new(device: &TcpDevice, options: QueuePairOptions) -> Result<Self, DeviceError> {
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
        let settings = &device.options;
        let listener = listen(settings)?;
        let qpn = listener.port().map_err(|errno| system("getsockname", errno))?;
        let poller = Poller::new().map_err(|errno| system("epoll_create", errno))?;
        poller.add_listener(&listener).map_err(|errno| system("epoll_ctl", errno))?;
        let gid = gid_of(settings.address);
        Ok(Self {
            keys: device.keys.clone(),
            attributes,
            address: QueuePairAddress { gid, qpn: Qpn(qpn), qkey: options.qkey },
            rnr_retry: options.rnr_retry,
            book: device.book.clone(),
            held: HeldHandles::default(),
            capture: settings.capture.clone(),
            now: Time::ZERO,
            next_sweep: Time::ZERO,
            completions: VecDeque::new(),
            statistics: TcpStatistics::default(),
            posted: VecDeque::new(),
            ready_since: settings.rnr_at_start.then_some(Time::ZERO),
            receives: 0,
            reorder: settings.reorder.map(|seed| Rng::with_seed(seed ^ u64::from(qpn))),
            incoming: Slab::new(),
            sends: 0,
            outgoing: Slab::new(),
            ways: HashMap::new(),
            listener: Arc::new(listener),
            knocking: false,
            poller,
            dirty: Vec::new(),
            ready: VecDeque::new(),
            unasked: 0,
            turn: 0,
            scratch: vec![0; SCRATCH].into(),
            options: Arc::clone(settings),
        })
    }

    /// Sets the key that senders must present from now on.
    pub fn set_qkey(&mut self, qkey: Qkey) {
        self.address.qkey = qkey;
    }

    /// Has immediate data of writes take a receive buffer, also on a device that can do without.
    pub fn take_buffers_for_writes(&mut self) {
        self.attributes.rdma.unsolicited_write_receive = false;
    }

    /// Sets how often the device tries again when a receiver is not ready; 7 means for ever. It
    /// holds for receivers that nothing was sent to yet.
    pub fn set_rnr_retry(&mut self, rnr_retry: u8) {
        self.rnr_retry = rnr_retry;
    }

    /// Ends it as a device ends one that has failed: nobody reaches it any more, and no other queue
    /// pair gets its number before the result is dropped.
    ///
    /// # Errors
    /// [`DeviceError::System`] if the port can't be kept. The queue pair has ended all the same.
    pub fn retire(self) -> Result<KeptNumber, DeviceError> {
        let listener = Arc::clone(&self.listener);
        drop(self);
        listener.close().map_err(|errno| system("keeping a port", errno))?;
        Ok(KeptNumber::new(listener))
    }

    /// What happened so far.
    #[must_use]
    pub fn statistics(&self) -> TcpStatistics {
        let (outgoing, incoming) = (self.outgoing.len(), self.incoming.len());
        TcpStatistics { outgoing, incoming, ..self.statistics }
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

    // ---- the turn of a poll ------------------------------------------------------------------

    fn work(&mut self) {
        if !self.dirty.is_empty() {
            self.flush();
        }
        self.turn += 1;
        self.unasked += 1;
        if self.unasked >= LOOK_EVERY || (self.sends > 0 && self.ready.is_empty()) {
            self.look();
        }
        if !self.ready.is_empty() {
            self.serve();
        }
        if self.now >= self.next_sweep {
            self.sweep();
        }
    }

    /// Asks the system which sockets something can be done with.
    #[inline(never)]
    fn look(&mut self) {
        self.unasked = 0;
        self.statistics.looks += 1;
        let Self { poller, incoming, outgoing, ready, dirty, knocking, .. } = self;
        poller.look(|Event { token, readable, writable, hung_up }| {
            let (wants_flush, is_dirty, is_queued) = match token {
                Token::Listener => {
                    *knocking = true;
                    return;
                }
                Token::Outgoing(place) => {
                    let Some(connection) = outgoing.get_mut(place) else { return };
                    connection.note(readable, writable, hung_up);
                    (connection.wants_flush(), &mut connection.dirty, &mut connection.queued)
                }
                Token::Incoming(place) => {
                    let Some(connection) = incoming.get_mut(place) else { return };
                    connection.note(readable, writable, hung_up);
                    (connection.wants_flush(), &mut connection.dirty, &mut connection.queued)
                }
            };
            if readable && !std::mem::replace(is_queued, true) {
                ready.push_back(token);
            }
            if wants_flush && !std::mem::replace(is_dirty, true) {
                dirty.push(token);
            }
        });
        if self.knocking {
            self.accept();
        }
        if !self.dirty.is_empty() {
            self.flush();
        }
    }

    /// Looks at some connections in turn, at each once at most, until there is a completion.
    #[inline(never)]
    fn serve(&mut self) {
        for _ in 0..self.ready.len().min(SERVES) {
            match self.ready.pop_front() {
                Some(Token::Incoming(place)) => self.serve_incoming(place),
                Some(Token::Outgoing(place)) => self.serve_outgoing(place),
                Some(Token::Listener) | None => {}
            }
            if !self.completions.is_empty() {
                break;
            }
        }
    }

    /// Writes what was posted and the answers that are owed.
    #[inline(never)]
    fn flush(&mut self) {
        while let Some(token) = self.dirty.pop() {
            match token {
                Token::Incoming(place) => {
                    if let Some(incoming) = self.incoming.get_mut(place) {
                        incoming.dirty = false;
                        self.statistics.sends += incoming.flush();
                    }
                }
                Token::Outgoing(place) => {
                    if let Some(outgoing) = self.outgoing.get_mut(place) {
                        outgoing.dirty = false;
                        self.flush_outgoing(place);
                    }
                }
                Token::Listener => {}
            }
        }
    }

    // ---- receiving ---------------------------------------------------------------------------

    #[cold]
    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            match self.listener.accept(self.options.dead_after) {
                Ok(Some((socket, address))) => self.welcome(socket, gid_of(address)),
                Ok(None) => {
                    self.knocking = false;
                    return;
                }
                Err(errno) => {
                    // Once more in the next sweep: nothing tells when there is room again.
                    self.knocking = false;
                    self.statistics.failed_accepts += 1;
                    tracing::warn!(%errno, "a connection could not be taken");
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, socket: Socket, gid: Gid) {
        let mut incoming = Incoming::new(gid, socket);
        if self.incoming.len() >= self.options.max_peers {
            self.statistics.turned_away += 1;
            incoming.leave(Status::UnreachableRemote, &mut self.scratch);
            return;
        }
        let entry = self.incoming.vacant_entry();
        let token = Token::Incoming(entry.key());
        if let Err(errno) = self.poller.add_connection(incoming.socket(), token) {
            self.statistics.failed_accepts += 1;
            tracing::warn!(%errno, %gid, "a connection could not be watched");
            return;
        }
        self.statistics.accepts += 1;
        tracing::debug!(%gid, "a connection was taken");
        incoming.dirty = true;
        incoming.queued = true;
        entry.insert(incoming);
        self.dirty.push(token);
        self.ready.push_back(token);
    }

    fn serve_incoming(&mut self, place: usize) {
        let Some(incoming) = self.incoming.get_mut(place) else { return };
        if self.ready_since.is_none() && !self.posted.is_empty() {
            self.ready_since = Some(self.now);
        }
        let mut judge = Judge {
            qkey: self.address.qkey,
            rnr_delay: self.options.rnr_delay,
            ready_since: self.ready_since,
            posted: &mut self.posted,
            now: self.now,
            keys: &self.keys,
            unsolicited: self.attributes.rdma.unsolicited_write_receive,
            reorder: self.reorder.as_mut(),
        };
        let (now, me) = (self.now, QueuePairId::from(self.address));
        let (completions, capture) = (&mut self.completions, &mut self.capture);
        let first = completions.len();
        let calls = &mut self.statistics.receives;
        let source = Source::default();
        let found = incoming.poll(&mut judge, calls, |delivered| {
            completions.push_back(delivered.completion(source));
        });
        let sender = incoming.sender();
        if completions.len() > first {
            let book = self.book.lock();
            let address_handle = book.handle(sender.gid);
            let tell = address_handle.is_none() && self.options.tell_unknown_gid;
            let gid = tell.then_some(sender.gid);
            for completion in completions.range_mut(first..) {
                let of_sender = Source { address_handle, qpn: sender.qpn, gid };
                match completion {
                    Completion::Receive { packet, length, source, .. } => {
                        *source = of_sender;
                        if let Some(sink) = capture {
                            let bytes = &packet[..*length];
                            record(sink, now, PacketEvent::Received, sender, me, bytes);
                        }
                    }
                    Completion::Written { source, .. } => *source = of_sender,
                    Completion::Send { .. } | Completion::Rdma { .. } => {}
                }
            }
        }
        match found {
            Ok(found) => {
                // Later, so that what is posted in reply leaves first.
                let token = Token::Incoming(place);
                if incoming.wants_flush() && !std::mem::replace(&mut incoming.dirty, true) {
                    self.dirty.push(token);
                }
                incoming.queued = found == Found::More;
                match found {
                    Found::More => self.ready.push_back(token),
                    Found::Nothing => {}
                    Found::End => {
                        tracing::debug!(%sender, "a sender has left");
                        self.part(place, Status::BadDestinationQpn);
                    }
                }
            }
            Err(violation) => self.expel(place, violation),
        }
    }

    #[cold]
    fn expel(&mut self, place: usize, violation: Violation) {
        let sender = self.incoming.get(place).map(Incoming::sender).unwrap_or_default();
        tracing::warn!(%sender, %violation, "closing a connection");
        self.statistics.violations.count(violation);
        self.part(place, Status::BadStatus);
    }

    fn part(&mut self, place: usize, status: Status) {
        if let Some(mut incoming) = self.incoming.try_remove(place) {
            incoming.leave(status, &mut self.scratch);
            self.forget(Token::Incoming(place));
        }
    }

    /// Takes a connection from the lists, as its place may soon be another's.
    fn forget(&mut self, token: Token) {
        self.ready.retain(|&ready| ready != token);
        self.dirty.retain(|&dirty| dirty != token);
    }

    /// Closes connections whose senders don't say who they are.
    #[cold]
    fn sweep(&mut self) {
        self.next_sweep = self.now + SWEEP_EVERY;
        self.knocking = true;
        self.accept();
        let (now, limit) = (self.now, self.options.patience);
        let late = |incoming: &mut Incoming| {
            incoming.nameless_for(now).is_some_and(|waited| waited >= limit)
        };
        let all = self.incoming.iter_mut();
        let slow = all.filter_map(|(place, incoming)| late(incoming).then_some(place));
        for place in slow.collect::<Vec<_>>() {
            // The rest may have come meanwhile, and nobody looked.
            if let Some(incoming) = self.incoming.get_mut(place) {
                incoming.note(true, false, false);
                self.ready.retain(|&token| token != Token::Incoming(place));
                self.serve_incoming(place);
            }
            if self.incoming.get_mut(place).is_some_and(late) {
                self.expel(place, Violation::Slow { limit });
            }
        }
    }

    // ---- sending -----------------------------------------------------------------------------

    fn flush_outgoing(&mut self, place: usize) {
        let Some(outgoing) = self.outgoing.get_mut(place) else { return };
        match outgoing.flush() {
            Ok(calls) => {
                self.statistics.sends += calls;
                if outgoing.wants_poll() && !std::mem::replace(&mut outgoing.queued, true) {
                    self.ready.push_back(Token::Outgoing(place));
                }
            }
            Err(ending) => self.end(place, ending),
        }
    }

    fn serve_outgoing(&mut self, place: usize) {
        let Some(outgoing) = self.outgoing.get_mut(place) else { return };
        outgoing.queued = false;
        let mut finish = Finish {
            completions: &mut self.completions,
            capture: &mut self.capture,
            now: self.now,
            me: self.address.into(),
            peer: outgoing.peer(),
        };
        let calls = &mut self.statistics.receives;
        match outgoing.poll(&mut self.scratch, calls, |finished| finish.push(finished)) {
            Ok(()) => {
                if outgoing.wants_flush() && !std::mem::replace(&mut outgoing.dirty, true) {
                    self.dirty.push(Token::Outgoing(place));
                }
            }
            Err(ending) => self.end(place, ending),
        }
    }

    #[cold]
    fn end(&mut self, place: usize, ending: Ending) {
        let Some(mut outgoing) = self.outgoing.try_remove(place) else { return };
        let peer = outgoing.peer();
        self.ways.remove(&peer);
        self.forget(Token::Outgoing(place));
        match ending {
            Ending::Over(status) => tracing::debug!(%peer, %status, "a connection ended"),
            Ending::Broken(violation) => {
                tracing::warn!(%peer, %violation, "closing a connection");
                self.statistics.violations.count(violation);
            }
        }
        let mut finish = Finish {
            completions: &mut self.completions,
            capture: &mut self.capture,
            now: self.now,
            me: self.address.into(),
            peer,
        };
        outgoing.fail(ending.status(), |finished| finish.push(finished));
    }

    /// The way to `peer`, opened if need be, or how sends to it end at once.
    fn way_to(&mut self, peer: QueuePairId) -> Result<Result<usize, Status>, DeviceError> {
        if let Some(&place) = self.ways.get(&peer) {
            // One without traffic may have ended, and `peer` be another by now.
            if self.outgoing.get(place).is_some_and(Outgoing::is_idle) {
                if let Some(outgoing) = self.outgoing.get_mut(place) {
                    outgoing.note(true, false, false);
                }
                self.ready.retain(|&ready| ready != Token::Outgoing(place));
                self.serve_outgoing(place);
            }
            if self.outgoing.contains(place) && self.ways.contains_key(&peer) {
                return Ok(Ok(place));
            }
        }
        self.open_way(peer)
    }

    #[cold]
    fn open_way(&mut self, peer: QueuePairId) -> Result<Result<usize, Status>, DeviceError> {
        let options = &self.options;
        let from = endpoint(options.address, 0, options.scope_id);
        let to = endpoint(address_of(peer.gid), peer.qpn.0, options.scope_id);
        if peer.qpn == Qpn(0) {
            return Ok(Err(Status::BadDestinationQpn));
        }
        if from.is_ipv4() != to.is_ipv4() {
            return Ok(Err(Status::UnreachableRemote));
        }
        self.statistics.connects += 1;
        let socket = match Socket::connect(from, to, options.dead_after) {
            Ok(socket) => socket,
            Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => {
                return Err(system(format!("connecting to {peer}"), errno));
            }
            Err(errno) => {
                tracing::debug!(%peer, %errno, "not connected");
                return Ok(Err(status_of(errno, false)));
            }
        };
        tracing::debug!(%peer, "connecting");
        let mtu = u32::try_from(self.attributes.mtu).unwrap_or(u32::MAX);
        let hello = Hello { qpn: self.address.qpn, mtu, rnr_retry: self.rnr_retry };
        let entry = self.outgoing.vacant_entry();
        let place = entry.key();
        self.poller
            .add_connection(&socket, Token::Outgoing(place))
            .map_err(|errno| system(format!("watching {peer}"), errno))?;
        entry.insert(Outgoing::new(peer, socket, hello));
        self.ways.insert(peer, place);
        Ok(Ok(place))
    }

    /// Takes a send as if its target had no buffer for it: it ends with
    /// [`Status::ReceiverNotReady`].
    ///
    /// # Errors
    /// As [`post_send`](QueuePair::post_send).
    pub fn bounce(&mut self, request: SendRequest<Packet>) -> Result<(), PostError<Packet>> {
        match self.admit(&request) {
            Ok(Admitted { peer, .. }) => {
                self.send(Admitted { peer, way: Err(Status::ReceiverNotReady) }, request);
                Ok(())
            }
            Err(error) => Err(PostError { error, packet: request.packet }),
        }
    }

    /// Puts a send that was admitted on its way, or ends it.
    fn send(&mut self, Admitted { peer, way }: Admitted, request: SendRequest<Packet>) {
        let SendRequest { id, packet, length, destination, immediate } = request;
        self.sends += 1;
        if let Some(sink) = &mut self.capture {
            let me = self.address.into();
            record(sink, self.now, PacketEvent::Sent, me, peer, &packet[..length]);
        }
        let posted = Posted { id, packet, length, immediate, qkey: destination.qkey };
        match way {
            Ok(place) => {
                let Some(outgoing) = self.outgoing.get_mut(place) else { return };
                outgoing.push(posted);
                self.write_soon(place);
            }
            Err(status) => Finish {
                completions: &mut self.completions,
                capture: &mut self.capture,
                now: self.now,
                me: self.address.into(),
                peer,
            }
            .push(Finished::Send(posted, Err(status))),
        }
    }

    /// Checks a send; gives its target, and the way there or how it ends at once.
    fn admit(&mut self, request: &SendRequest<Packet>) -> Result<Admitted, DeviceError> {
        let limit = self.attributes.mtu.min(request.packet.len());
        if request.length > limit {
            return Err(DeviceError::TooLong {
                length: request.length as u64,
                limit: limit as u64,
            });
        }
        self.admit_to(request.destination)
    }

    /// Checks where something is to go.
    fn admit_to(&mut self, destination: Destination) -> Result<Admitted, DeviceError> {
        let depth = self.attributes.max_send;
        if self.sends >= depth {
            return Err(DeviceError::QueueFull { depth });
        }
        let handle = destination.address_handle;
        let gid = self.book.lock().gid(handle).ok_or(DeviceError::BadAddressHandle { handle })?;
        let peer = QueuePairId { gid, qpn: destination.qpn };
        Ok(Admitted { peer, way: self.way_to(peer)? })
    }

    /// Writes to a peer for the first time in this turn, or notes that there is something to write.
    fn write_soon(&mut self, place: usize) {
        let Some(outgoing) = self.outgoing.get_mut(place) else { return };
        if outgoing.is_first_in(self.turn) {
            self.flush_outgoing(place);
        } else if outgoing.wants_flush() && !std::mem::replace(&mut outgoing.dirty, true) {
            self.dirty.push(Token::Outgoing(place));
        }
    }

    fn post_operation(
        &mut self,
        request: RdmaRequest<SoftRegion>,
        direction: Direction,
    ) -> Result<(), DeviceError> {
        rdma::check(&self.attributes, &request, direction)?;
        let Admitted { peer, way } = self.admit_to(request.destination)?;
        self.sends += 1;
        let mut finish = Finish {
            completions: &mut self.completions,
            capture: &mut self.capture,
            now: self.now,
            me: self.address.into(),
            peer,
        };
        match way {
            Ok(place) => {
                let Some(outgoing) = self.outgoing.get_mut(place) else { return Ok(()) };
                let operation = Operation::new(request, direction);
                outgoing.start(operation, |finished| finish.push(finished));
                self.write_soon(place);
            }
            Err(status) => finish.push(Finished::Rdma(request.id, Err(status))),
        }
        Ok(())
    }
}

/// A send or operation that was found good.
struct Admitted {
    peer: QueuePairId,
    way: Result<usize, Status>,
}

/// Listens on the first free port of those allowed.
fn listen(options: &TcpOptions) -> Result<Listener, DeviceError> {
    let mut refused = Errno::ADDRINUSE;
    let at = |port| endpoint(options.address, port, options.scope_id);
    let ports = options.ports.clone().unwrap_or(0..=0);
    for port in ports {
        match Listener::bind(at(port), options.max_peers) {
            Ok(listener) => return Ok(listener),
            Err(errno) => refused = errno,
        }
        if refused != Errno::ADDRINUSE {
            break;
        }
    }
    Err(system(format!("listening on {}", options.address), refused))
}

/// Where sends to one peer end.
struct Finish<'a> {
    completions: &'a mut VecDeque<Completion<Packet>>,
    capture: &'a mut Option<SharedSink>,
    now: Time,
    me: QueuePairId,
    peer: QueuePairId,
}

impl Finish<'_> {
    fn push(&mut self, finished: Finished) {
        let (posted, result) = match finished {
            Finished::Send(posted, result) => (posted, result),
            Finished::Rdma(id, result) => {
                self.completions.push_back(Completion::Rdma { id, result });
                return;
            }
        };
        let Posted { id, packet, length, .. } = posted;
        if let (Some(sink), Err(status)) = (&mut self.capture, result) {
            let event = PacketEvent::Failed(status);
            record(sink, self.now, event, self.me, self.peer, &packet[..length]);
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

impl QueuePair for TcpQueuePair {
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
        let handle = self.book.lock().acquire(gid)?;
        self.held.add(handle);
        Ok(handle)
    }

    fn destroy_address_handle(&mut self, handle: AddressHandle) {
        if self.held.take(handle) {
            self.book.lock().release(handle, 1);
        }
    }

    fn allocate_packet(&mut self) -> Result<Packet, DeviceError> {
        Ok(vec![0; self.attributes.mtu].into())
    }

    fn post_send(&mut self, request: SendRequest<Packet>) -> Result<(), PostError<Packet>> {
        let admitted = match self.admit(&request) {
            Ok(admitted) => admitted,
            Err(error) => return Err(PostError { error, packet: request.packet }),
        };
        self.send(admitted, request);
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
        self.keys.register(memory, access)
    }

    fn region(&self, key: u32) -> Option<SoftRegion> {
        self.keys.find(key)
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
            self.work();
            if self.completions.is_empty() {
                return None;
            }
        }
        self.take_completion()
    }

    /// `None` unless a completion is there: when others act is not known.
    fn next_event(&self) -> Option<Time> {
        (!self.completions.is_empty()).then_some(self.now)
    }
}

impl Drop for TcpQueuePair {
    fn drop(&mut self) {
        for (handle, count) in self.held.drain() {
            self.book.lock().release(handle, count);
        }
        for (_, outgoing) in &mut self.outgoing {
            let _ = outgoing.flush();
            outgoing.socket().part(&mut self.scratch);
        }
        // Those as well that have connected and were not taken yet, as many as can be waiting.
        for _ in 0..=self.options.max_peers / ACCEPTS {
            self.accept();
        }
        for (_, incoming) in &mut self.incoming {
            incoming.leave(Status::BadDestinationQpn, &mut self.scratch);
        }
    }
}
