//! A connection to another queue pair: its socket, what is read from it, and what is written to it.
//!
//! ```text
//!  socket ─► buffer ─┬─ frames ────► incoming ─► responses ─┐
//!                    └─ responses ─► outgoing ─► frames ────┴─► socket
//! ```
//!
//! Everything is read that comes, so that responses don't wait behind frames for which no buffer is posted. Responses are
//! written before frames, but never within one. So an answer takes the acknowledgement of what it answers along, in one
//! write; or in two of which the system holds back the first one.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use efa_device::{Gid, Qkey, Qpn, Status, Time};
use rustix::io::Errno;

use super::TcpOptions;
use super::admission::{Held, Standing};
use super::incoming::{FEW_RESPONSES, Incoming, Target};
use super::outgoing::{FRAMES, Finished, Head, LONGEST_HEAD, Outgoing, SHORT};
use super::silence::Silence;
use super::socket::{Received, Socket};
use super::wire::{HELLO, Hello, LONGEST, RESPONSE, Response, Violation};
use crate::link::Delivered;
use crate::record::QueuePairId;

/// Size of the receive buffer: more than the longest frame.
const BUFFER: usize = 2 * LONGEST;
/// Most slices of a write: the hello, the responses, and header and payload of each packet.
const PARTS: usize = 2 + 2 * FRAMES;
/// Most bytes that are copied, to be written in one piece.
const ONE_PIECE: usize = FEW_RESPONSES + LONGEST_HEAD + SHORT;

/// When the system sends what it has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Now,
    /// With what is written next, when it is told to, or after a while.
    Soon,
}

/// Who has connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// This side.
    Opened,
    /// The other side, from this port; and when it was accepted.
    Accepted { port: u16, at: Time },
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The other side closed it, could not be reached, or is gone.
    Over(Status),
    /// The other side violated the protocol.
    Broken(Violation),
    /// The other side has no room now.
    TurnedAway,
}

impl From<Violation> for Ending {
    fn from(violation: Violation) -> Self {
        Self::Broken(violation)
    }
}

/// What the socket is ready for, as far as known.
#[derive(Clone, Copy, Debug)]
struct Readiness {
    readable: bool,
    writable: bool,
    hung_up: bool,
}

/// The connection as the system has it. Another try has another one.
#[derive(Debug)]
struct Stream {
    /// `None` while waiting to try again.
    socket: Option<Socket>,
    /// Whether the socket was connected: it has taken bytes.
    reached: bool,
    /// Bytes of the hello written.
    hello_written: usize,
    ready: Readiness,
    /// When it was opened or accepted, by the system's clock as all that TCP says.
    opened: Instant,
    silence: Silence,
    /// The first error of a write.
    error: Option<Errno>,
    /// Whether the system holds back what was written last.
    holds: bool,
    /// The hello of the other side.
    hello: Option<Hello>,
    /// Empty until bytes arrive.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Stream {
    fn new(socket: Option<Socket>) -> Self {
        let ready = Readiness { readable: false, writable: socket.is_some(), hung_up: false };
        Self {
            socket,
            reached: false,
            hello_written: 0,
            ready,
            opened: Instant::now(),
            silence: Silence::default(),
            error: None,
            holds: false,
            hello: None,
            buffer: Vec::new(),
            start: 0,
            end: 0,
        }
    }

    /// Receives bytes behind those in the buffer. Returns whether there are new ones.
    fn fill(&mut self) -> Result<bool, Errno> {
        if !self.ready.readable {
            return Ok(false);
        }
        let Some(socket) = &self.socket else {
            self.ready.readable = false;
            return Ok(false);
        };
        if self.buffer.is_empty() {
            self.buffer = vec![0; BUFFER];
        }
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        // There is space: the rest in the buffer is less than a frame.
        match socket.receive(&mut self.buffer[self.end..]) {
            Ok(Received::Bytes(count)) => {
                self.end += count;
                // If the buffer isn't full there are no more bytes, unless the end is to be found.
                self.ready.readable = self.end == BUFFER || self.ready.hung_up;
                Ok(true)
            }
            Ok(Received::Nothing) => {
                (self.ready.readable, self.ready.hung_up) = (false, false);
                self.error.map_or(Ok(false), Err)
            }
            Ok(Received::End) => Err(Errno::CONNRESET),
            Err(errno) => Err(errno),
        }
    }

    /// How what is under way ends for this error of the socket, if it had none before.
    fn failed(&mut self, errno: Errno) -> Ending {
        self.ready.readable = false;
        Ending::Over(status_of(self.error.unwrap_or(errno), self.reached))
    }
}

/// A connection to another queue pair.
#[derive(Debug)]
pub(super) struct Connection {
    /// Number 0 before its hello, if it has connected and nobody is expected.
    peer: QueuePairId,
    /// The key of the queue pair that the frames on it are for. Another one with its number has another key.
    key: Qkey,
    /// Whether frames wait for a hello that confirms that the queue pair with the number of the [port](Self::by_port) and the
    /// key has connected.
    is_unconfirmed: bool,
    origin: Origin,
    mine: Hello,
    stream: Stream,
    pub(super) outgoing: Outgoing,
    incoming: Incoming,
    /// The hello (`None`) or the number of the frame that is incomplete, and when a sweep first saw that.
    incomplete: Option<(Option<u32>, Time)>,
    /// The turn of the queue pair in which a packet was last delivered.
    delivered_in: u64,
    /// Whether it has ended, and frames that had arrived wait.
    is_over: bool,
    /// Whether it is in the list of connections to be flushed.
    pub(super) dirty: bool,
    /// Whether it is in the list of connections to be served.
    pub(super) queued: bool,
}

impl Connection {
    /// One that this side has begun to open.
    pub(super) fn opened(peer: QueuePairId, key: Qkey, mine: Hello, socket: Socket) -> Self {
        Self { key, ..Self::new(peer, Origin::Opened, mine, Some(socket)) }
    }

    /// One that was accepted.
    pub(super) fn accepted(gid: Gid, port: u16, mine: Hello, socket: Socket, at: Time) -> Self {
        let peer = QueuePairId { gid, qpn: Qpn(0) };
        let mut connection = Self::new(peer, Origin::Accepted { port, at }, mine, Some(socket));
        connection.stream.reached = true;
        connection.stream.ready.readable = true;
        connection
    }

    /// One that is to be [opened](Self::open_again) later, for these frames.
    pub(super) fn postponed(peer: QueuePairId, key: Qkey, mine: Hello, outgoing: Outgoing) -> Self {
        Self { key, outgoing, ..Self::new(peer, Origin::Opened, mine, None) }
    }

    fn new(peer: QueuePairId, origin: Origin, mine: Hello, socket: Option<Socket>) -> Self {
        Self {
            peer,
            key: Qkey(0),
            is_unconfirmed: false,
            origin,
            mine,
            stream: Stream::new(socket),
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            incomplete: None,
            delivered_in: 0,
            is_over: false,
            dirty: false,
            queued: false,
        }
    }

    pub(super) fn peer(&self) -> QueuePairId {
        self.peer
    }

    pub(super) fn was_accepted(&self) -> bool {
        self.origin != Origin::Opened
    }

    /// Whether the frames on it are for the queue pair with this key.
    pub(super) fn is_for(&self, key: Qkey) -> bool {
        self.key == key
    }

    /// Whether frames for `peer` can go on this connection: this side has opened it for that, or `peer` has, from its own
    /// port, and its hello has its number and key, if that has come.
    pub(super) fn leads_to(&self, peer: QueuePairId, key: Qkey) -> bool {
        let leads = match self.by_port() {
            None => self.peer == peer && self.key == key,
            Some(by_port) => {
                let is_its = |hello: Hello| (hello.qpn, hello.qkey) == (peer.qpn, key);
                by_port == peer && self.stream.hello.is_none_or(is_its)
            }
        };
        leads && !self.is_over
    }

    /// The queue pair that has connected, by the look of its port.
    fn by_port(&self) -> Option<QueuePairId> {
        match self.origin {
            Origin::Opened => None,
            Origin::Accepted { port, .. } => {
                Some(QueuePairId { gid: self.peer.gid, qpn: Qpn(port) })
            }
        }
    }

    /// Notes that frames for this queue pair will be written; on a connection that it seems to have opened, once the hello has
    /// confirmed that.
    pub(super) fn expect(&mut self, peer: QueuePairId, key: Qkey) {
        self.key = key;
        if self.was_accepted() && self.stream.hello.is_none() {
            (self.peer, self.is_unconfirmed) = (peer, true);
        }
    }

    /// Whether a hello has come where one was expected.
    pub(super) fn has_named_itself(&self) -> bool {
        self.is_unconfirmed && self.stream.hello.is_some()
    }

    /// The queue pair that was expected, its key, and the frames for it, of which none was written, unless a hello has
    /// confirmed it.
    pub(super) fn take_unconfirmed(&mut self) -> Option<(QueuePairId, Qkey, Outgoing)> {
        let was_unconfirmed = std::mem::take(&mut self.is_unconfirmed);
        let (key, peer) = (self.key, self.by_port().filter(|_| was_unconfirmed)?);
        let is_confirmed = self.stream.hello.is_some() && self.leads_to(peer, key);
        (!is_confirmed).then(|| (peer, key, std::mem::take(&mut self.outgoing)))
    }

    /// Whether frames may be written.
    fn may_send(&self) -> bool {
        !self.was_accepted() || self.stream.hello.is_some()
    }

    /// `None` while it waits to try again.
    pub(super) fn socket(&self) -> Option<&Socket> {
        self.stream.socket.as_ref()
    }

    pub(super) fn into_socket(self) -> Option<Socket> {
        self.stream.socket
    }

    /// Whether it is connected and nothing is under way in either direction.
    pub(super) fn is_idle(&self) -> bool {
        let is_read = self.stream.start == self.stream.end;
        self.socket().is_some()
            && self.outgoing.is_idle()
            && !self.incoming.is_occupied()
            && is_read
    }

    /// Notes the readiness of the socket.
    pub(super) fn note(&mut self, readable: bool, writable: bool, hung_up: bool) {
        self.stream.ready.readable |= readable;
        self.stream.ready.writable |= writable;
        self.stream.ready.hung_up |= hung_up;
    }

    /// Notes that packets were delivered in this turn.
    pub(super) fn delivered(&mut self, turn: u64) {
        self.delivered_in = turn;
    }

    /// Whether the other side has sent a packet that is delivered in this turn. So it was there just now.
    pub(super) fn is_heard_in(&self, turn: u64) -> bool {
        self.delivered_in == turn
    }

    /// Takes what has arrived: responses complete what `finish` is called with, frames wait to be
    /// [delivered](Self::deliver) or [kept](Self::keep_arrived). Returns whether something has. `calls` counts
    /// those of the system that received something.
    ///
    /// # Errors
    /// How the connection has ended. Frames may have arrived before that.
    pub(super) fn read(
        &mut self,
        now: Time,
        calls: &mut u64,
        mut finish: impl FnMut(Finished),
    ) -> Result<bool, Ending> {
        // It ends connections for which nothing is under way, too.
        if !self.stream.fill().map_err(|errno| self.stream.failed(errno))? {
            return Ok(false);
        }
        *calls += 1;
        while let Some(count) = self.parse_next(now, &mut finish)? {
            self.stream.start += count;
        }
        self.outgoing.begin(finish);
        Ok(true)
    }

    /// Takes what is next in the buffer. Returns its length, or `None` if it is incomplete.
    fn parse_next(
        &mut self,
        now: Time,
        finish: &mut impl FnMut(Finished),
    ) -> Result<Option<usize>, Ending> {
        let at = self.stream.start;
        let bytes = &self.stream.buffer[at..self.stream.end];
        if self.outgoing.awaits_data() {
            let taken = self.outgoing.take_data(bytes, finish);
            if self.outgoing.awaits_data() {
                self.stream.start += taken;
                return Ok(None);
            }
            return Ok(Some(taken));
        }
        let Some(hello) = self.stream.hello else {
            let Some(hello) = bytes.first_chunk::<HELLO>() else { return Ok(None) };
            let hello = Hello::parse(hello)?;
            if self.was_accepted() {
                self.peer.qpn = hello.qpn;
            }
            self.stream.hello = Some(hello);
            return Ok(Some(HELLO));
        };
        let Some(response) = bytes.first_chunk::<RESPONSE>() else { return Ok(None) };
        match Response::parse(response)? {
            None => return Ok(self.incoming.arrive(bytes, at, hello.mtu, now)?),
            Some(Response::Acknowledge { first, count, result }) => {
                self.outgoing.settle(first, count, result, finish)?;
            }
            Some(Response::Data { sequence, count }) => self.outgoing.expect(sequence, count)?,
            Some(Response::Close(status)) => {
                // Nothing follows.
                self.stream.start = self.stream.end;
                return Err(Ending::Over(status));
            }
            Some(Response::TryAgain) => return Err(Ending::TurnedAway),
        }
        Ok(Some(RESPONSE))
    }

    /// Leaves the frames that have arrived to a later call of [`deliver`](Self::deliver).
    pub(super) fn keep_arrived(&mut self) {
        self.incoming.keep(&self.stream.buffer);
    }

    /// Handles the frames that have arrived as far as that can be, and passes each packet to `receive`.
    pub(super) fn deliver(&mut self, target: &mut Target<'_>, receive: impl FnMut(Delivered)) {
        if self.is_over && !self.stream.ready.writable {
            // Nobody takes them.
            self.incoming.responses.clear();
        }
        self.incoming.deliver(self.peer, &self.stream.buffer, target, receive);
    }

    /// Whether frames wait for a buffer or a timeout, or the socket may have more bytes. Frames that wait until the socket
    /// takes responses don't count: the system reports when it does.
    pub(super) fn wants_poll(&self) -> bool {
        let may_respond = self.stream.ready.writable || !self.incoming.responses.is_full();
        self.stream.ready.readable || self.incoming.has_arrived() && (may_respond || self.is_over)
    }

    /// Whether there is something to write and the socket is writable.
    pub(super) fn wants_flush(&self) -> bool {
        self.stream.ready.writable
            && (self.may_send() && self.outgoing.wants_write()
                || !self.incoming.responses.is_empty()
                || self.stream.hello_written < HELLO)
    }

    /// Writes as much as the socket takes. Returns the number of system calls. Only a few acknowledgements are sent
    /// [soon](When::Soon); anything else always goes now.
    pub(super) fn flush(&mut self, when: When) -> Result<u64, Ending> {
        self.incoming.responses.end_run();
        self.stream.silence.wrote();
        let mut calls = 0;
        while self.wants_flush() {
            calls += 1;
            match self.write(when) {
                Ok(Some(count)) => self.advance(count)?,
                Ok(None) => self.stream.ready.writable = false,
                // What arrived before this error is still taken, and responses among it are more precise. Nobody waits
                // for those of this side.
                Err(errno) => {
                    self.stream.error.get_or_insert(errno);
                    self.incoming.responses.clear();
                    self.note(true, false, true);
                    self.stream.ready.writable = false;
                }
            }
        }
        Ok(calls)
    }

    /// Whether the system holds back what was written last.
    pub(super) fn holds(&self) -> bool {
        self.stream.holds
    }

    fn write(&mut self, when: When) -> Result<Option<usize>, Errno> {
        self.stream.holds = false;
        let Some(socket) = &self.stream.socket else { return Ok(None) };
        let responses = self.incoming.responses.unwritten();
        if self.stream.hello_written == HELLO && responses.len() <= FEW_RESPONSES {
            if !(self.may_send() && self.outgoing.wants_write()) {
                self.stream.holds = when == When::Soon;
                return socket.send(responses, self.stream.holds);
            }
            if let Some((head, payload)) = self.outgoing.only_short() {
                let mut bytes = [0; ONE_PIECE];
                let mut end = 0;
                for part in [responses, head.bytes(), payload] {
                    bytes[end..][..part.len()].copy_from_slice(part);
                    end += part.len();
                }
                return socket.send(&bytes[..end], false);
            }
        }
        self.write_all(socket, responses)
    }

    fn write_all(&self, socket: &Socket, responses: &[u8]) -> Result<Option<usize>, Errno> {
        let hello = self.mine.emit();
        let mut heads = [Head::NONE; FRAMES];
        let mut parts = [IoSlice::new(&[]); PARTS];
        let mut count = 0;
        let mut add = |part| {
            parts[count] = IoSlice::new(part);
            count += 1;
        };
        if self.stream.hello_written < HELLO {
            add(&hello[self.stream.hello_written..]);
        }
        let mut skip = self.outgoing.begun();
        // Within a frame nothing else is written.
        let mut responses = Some(responses);
        if skip == 0 {
            responses.take().map(&mut add);
        }
        let frames = self.outgoing.frames(&mut heads);
        for (head, payload) in frames.take_while(|_| self.may_send()) {
            for part in [head, payload] {
                let skipped = skip.min(part.len());
                skip -= skipped;
                add(&part[skipped..]);
            }
            responses.take().map(&mut add);
        }
        socket.send_all(&parts[..count])
    }

    /// Notes that the socket has taken bytes, in the order in which they were given to it.
    fn advance(&mut self, mut count: usize) -> Result<(), Ending> {
        if !self.stream.reached {
            self.stream.reached = true;
            if self.socket().is_some_and(Socket::is_its_own_peer) {
                return Err(Ending::Over(Status::BadDestinationQpn));
            }
        }
        let mut part = |length: usize| {
            let taken = count.min(length);
            count -= taken;
            taken
        };
        self.stream.hello_written += part(HELLO - self.stream.hello_written);
        self.outgoing.wrote(part(self.outgoing.rest_of_begun()));
        self.incoming.responses.wrote(part(self.incoming.responses.unwritten().len()));
        self.outgoing.wrote(count);
        Ok(())
    }

    /// The limit that an incomplete hello or frame has exceeded, if it has. Time counts from the first call
    /// of this that sees it, as polls may be rare. A frame is late only while the sender is what is waited
    /// for: not while earlier frames wait for buffers, or responses for the sender's socket. Neither is one of a queue pair
    /// to which something is under way. One that this side has connected to is never late.
    pub(super) fn exceeded(&mut self, options: &TcpOptions, now: Time) -> Option<Duration> {
        let is_begun = self.stream.end > self.stream.start;
        let is_awaited = is_begun && !self.incoming.is_occupied() && self.outgoing.is_idle();
        let (number, limit) = match self.stream.hello {
            None if self.was_accepted() => (None, options.hello_timeout),
            Some(_) if self.was_accepted() && is_awaited => {
                (Some(self.incoming.next_sequence()), options.frame_timeout)
            }
            _ => {
                self.incomplete = None;
                return None;
            }
        };
        let since = match self.incomplete {
            Some((same, since)) if same == number => since,
            _ => now,
        };
        self.incomplete = Some((number, since));
        (now - since >= limit).then_some(limit)
    }

    /// Whether its host has not answered for so long, though something is under way to it.
    pub(super) fn is_silent(&mut self, limit: Duration, now: Time) -> bool {
        let Stream { socket, silence, opened, .. } = &mut self.stream;
        let socket = socket.as_ref().filter(|_| silence.is_open() && !self.is_over);
        let Some(mut traffic) = socket.and_then(Socket::traffic) else { return false };
        // Of a peer that was never heard, TCP says any time.
        traffic.heard = traffic.heard.min(opened.elapsed());
        silence.look(&traffic, now, limit)
    }

    /// Gives its host up: it gets nothing more, and nothing is taken from it.
    pub(super) fn give_up(&mut self) -> Ending {
        let ending = self.stream.failed(Errno::TIMEDOUT);
        self.stream.ready = Readiness { readable: false, writable: false, hung_up: false };
        if let Some(socket) = self.stream.socket.take() {
            socket.abort();
        }
        ending
    }

    /// What decides whether it makes room for another connection, if it was accepted.
    pub(super) fn held(&self, key: usize) -> Option<Held> {
        let Origin::Accepted { at, .. } = self.origin else { return None };
        let waits = self.incoming.is_occupied() || !self.outgoing.is_idle();
        let (standing, since) = match self.incoming.delivered() {
            Some(delivered) if waits => (Standing::Occupied, delivered),
            None if !self.outgoing.is_idle() => (Standing::Occupied, at),
            None => (Standing::Unproven, at),
            Some(delivered) => (Standing::Quiet, delivered),
        };
        Some(Held { key, gid: self.peer.gid, standing, since })
    }

    /// Frees its memory if nothing is in it.
    pub(super) fn free_memory(&mut self) {
        let Stream { buffer, start, end, .. } = &mut self.stream;
        if start == end {
            (*buffer, *start, *end) = (Vec::new(), 0, 0);
        }
        self.incoming.responses.free_memory();
    }

    /// Notes that it has ended: only frames that arrived before are handled. Returns the violation if that was within a hello
    /// or frame.
    pub(super) fn ended(&mut self) -> Option<Violation> {
        self.is_over = true;
        let bytes = self.stream.end - self.stream.start;
        self.stream.start = self.stream.end;
        (bytes > 0).then_some(Violation::Truncated { bytes })
    }

    /// Whether it has ended, and all frames that arrived before were handled.
    pub(super) fn is_done(&self) -> bool {
        self.is_over && !self.incoming.has_arrived()
    }

    /// Writes what there is as far as the socket takes it, completes all frames without response with `status`, and closes
    /// the connection.
    pub(super) fn close(&mut self, status: Status, scratch: &mut [u8]) {
        self.end_with(Response::Close(status), scratch);
    }

    /// Closes the connection; the other side may send the frames without response over a new one.
    pub(super) fn turn_away(&mut self, scratch: &mut [u8]) {
        self.end_with(Response::TryAgain, scratch);
    }

    fn end_with(&mut self, last: Response, scratch: &mut [u8]) {
        // Errors end it as well.
        let _ = self.flush(When::Now);
        if let (Some(socket), false) = (&self.stream.socket, self.stream.ready.writable) {
            // For the rest of a frame and the last response.
            socket.extend();
            self.stream.ready.writable = true;
            let _ = self.flush(When::Now);
        }
        if self.outgoing.begun() == 0 {
            self.incoming.responses.push(last);
            let _ = self.flush(When::Now);
        }
        if let Some(socket) = self.socket() {
            socket.close(scratch);
        }
    }

    /// Leaves the connection, to [open](Self::open_again) another one later.
    pub(super) fn leave(&mut self) {
        self.origin = Origin::Opened;
        (self.stream, self.incoming) = (Stream::new(None), Incoming::default());
        (self.dirty, self.queued, self.is_over) = (false, false, false);
    }

    /// Continues over a new connection.
    pub(super) fn open_again(&mut self, socket: Socket) {
        self.stream = Stream::new(Some(socket));
    }
}

/// The status of sends over a socket with this error.
pub(super) fn status_of(errno: Errno, reached: bool) -> Status {
    match errno {
        Errno::CONNREFUSED => Status::BadDestinationQpn,
        _ if reached => Status::UnresponsiveRemote,
        // These errors occur only after a connection was established.
        Errno::CONNRESET | Errno::PIPE => Status::UnresponsiveRemote,
        _ => Status::UnreachableRemote,
    }
}
