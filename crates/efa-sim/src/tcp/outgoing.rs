//! Sending to one other queue pair: the connection to it, and the frames in flight.
//!
//! ```text
//!                  base                    unsent
//!  in flight:  ─────┬──────┬──────┬──────┬────┬──────┬──────┬──────┐
//!                   │ sent │ done │ sent │ sent… (offset bytes)  posted
//!              ─────┴──────┴──────┴──────┴───────────┴──────┴──────┘
//!       responses complete sends ─►            ◄─ flush advances by what the socket takes
//! ```
//!
//! A packet stays in its buffer until its response arrives. It is written from there, many with one system
//! call, so there is no other buffer to be bounded. RDMA operations together have a few frames in flight,
//! the oldest operation first, so that datagrams aren't delayed.
//!
//! A receiver that answers names packets early, in front of its own on the other connection. They complete then. Their
//! acknowledgements still come, so nothing depends on the early ones.
//!
//! A receiver without room asks this side to try again. The frames without response were not handled then,
//! so they wait and are sent over a new connection, numbered from 0 again.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io::IoSlice;
use std::time::Duration;

use efa_device::{Qkey, Qpn, Status, Time, WorkId};
use rustix::io::Errno;
use slab::Slab;

use super::socket::{Received, Socket};
use super::wire::{
    EARLY, Early, HEADER, HELLO, Header, Hello, PREFIX, Prefix, RESPONSE, Response, Violation,
    check_welcome,
};
use crate::link::{Piece, RNR_RETRY_INFINITE, RequestedOperation as Operation};
use crate::record::QueuePairId;

/// Most packets written with one system call.
const FRAMES: usize = 32;
/// Most slices of a write: the hello, and header and payload of each packet.
const PARTS: usize = 1 + 2 * FRAMES;

/// Most bytes of a payload that are copied, to write a frame in one piece.
const SHORT: usize = 256;
const LONGEST_HEAD: usize = EARLY + HEADER + PREFIX;

/// Most frames of operations in flight on a connection.
const WINDOW: usize = 16;

/// How long the first wait before another try is at most; each one after it may be twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(5);
/// How long a wait before another try is at most.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// A send that was accepted.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) id: WorkId,
    pub(super) packet: Box<[u8]>,
    pub(super) length: usize,
    pub(super) immediate: Option<u32>,
    pub(super) qkey: Qkey,
    /// Goes in front of it.
    pub(super) early: Option<Early>,
}

/// A frame to be sent, kept until its response.
#[derive(Debug)]
enum Frame {
    Datagram(Posted),
    /// A piece of the operation with this key.
    Piece(usize, Piece),
}

impl Frame {
    fn prefix(&self) -> (Prefix, u32) {
        match self {
            Self::Datagram(Posted { immediate: None, qkey, .. }) => (Prefix::Datagram, qkey.0),
            Self::Datagram(Posted { immediate: Some(immediate), qkey, .. }) => {
                (Prefix::Immediate(*immediate), qkey.0)
            }
            Self::Piece(_, piece) => (piece.step.into(), piece.key),
        }
    }

    fn early(&self) -> Option<Early> {
        match self {
            Self::Datagram(posted) => posted.early,
            Self::Piece(..) => None,
        }
    }

    /// Whether it is responded with data.
    fn is_read(&self) -> bool {
        matches!(self, Self::Piece(_, Piece { wanted: Some(_), .. }))
    }

    fn payload(&self) -> &[u8] {
        match self {
            Self::Datagram(posted) => &posted.packet[..posted.length],
            Self::Piece(_, piece) => &piece.bytes,
        }
    }

    /// Early acknowledgement, header and prefix.
    fn head(&self, sequence: u32) -> Head {
        let (prefix, key) = self.prefix();
        let (prefix_bytes, prefix_length) = prefix.emit();
        // Posts are limited by the MTU and pieces by `CHUNK`, which are smaller.
        let length = u32::try_from(prefix_length + self.payload().len()).unwrap_or(u32::MAX);
        let header = Header { kind: prefix.kind(), length, sequence, key };
        let mut head = Head::NONE;
        if let Some(early) = self.early() {
            head.add(&early.emit());
        }
        head.add(&header.emit());
        head.add(&prefix_bytes[..prefix_length]);
        head
    }

    /// Bytes on the wire.
    fn length(&self) -> usize {
        let early = self.early().map_or(0, |_| EARLY);
        early + HEADER + self.prefix().0.emit().1 + self.payload().len()
    }
}

/// The bytes before a payload.
#[derive(Clone, Copy)]
struct Head {
    bytes: [u8; LONGEST_HEAD],
    length: usize,
}

impl Head {
    const NONE: Self = Self { bytes: [0; LONGEST_HEAD], length: 0 };

    fn add(&mut self, bytes: &[u8]) {
        self.bytes[self.length..][..bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }
}

/// A completed send or RDMA operation.
#[derive(Debug)]
pub(super) enum Finished {
    Send(Posted, Result<(), Status>),
    Rdma(WorkId, Result<(), Status>),
}

/// The data of a read that is arriving.
#[derive(Clone, Copy, Debug)]
struct Arriving {
    sequence: u32,
    operation: usize,
    offset: usize,
    left: usize,
}

/// What the socket is ready for, as far as known.
#[derive(Clone, Copy, Debug)]
struct Readiness {
    readable: bool,
    writable: bool,
    hung_up: bool,
}

/// How far the other side's bytes were read.
#[derive(Debug, Default)]
struct Responses {
    /// Whether the other side's welcome was valid.
    is_welcomed: bool,
    /// The first bytes of an incomplete response.
    partial: [u8; RESPONSE],
    partial_length: usize,
    /// The read whose data comes next.
    arriving: Option<Arriving>,
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

/// The connection to a peer as the system has it. Another try has another one.
#[derive(Debug)]
struct Stream {
    /// `None` while waiting to try again.
    socket: Option<Socket>,
    /// Whether the socket was connected: it has taken bytes.
    reached: bool,
    /// Bytes of the hello written.
    hello_written: usize,
    ready: Readiness,
    /// The first error of a write.
    error: Option<Errno>,
    responses: Responses,
}

impl Stream {
    fn new(socket: Option<Socket>) -> Self {
        let ready = Readiness { readable: false, writable: socket.is_some(), hung_up: false };
        let responses = Responses::default();
        Self { socket, reached: false, hello_written: 0, ready, error: None, responses }
    }
}

/// Since when a receiver has had no room, and how long the last wait was at most.
#[derive(Clone, Copy, Debug)]
struct TurnedAway {
    since: Time,
    wait: Duration,
}

/// The packets and operations on their way to one peer, and the connection to it.
#[derive(Debug)]
pub(super) struct Outgoing {
    peer: QueuePairId,
    hello: Hello,
    stream: Stream,
    /// `None` from a response on.
    turned_away: Option<TurnedAway>,

    in_flight: VecDeque<Option<Frame>>,
    /// Frames in flight without response.
    outstanding: usize,
    /// Sequence number of the first in flight.
    base: u32,
    /// Index of the first in flight that is not completely written.
    unsent: usize,
    /// Bytes of it written, with its header.
    offset: usize,
    /// Frames that were acknowledged early, and not yet on this connection.
    early: u64,

    operations: Slab<Operation>,
    /// Keys of those with frames to begin, in turn.
    beginning: VecDeque<usize>,
    /// Frames of operations in flight.
    pieces: usize,

    /// Whether it is in the list of connections to be flushed.
    pub(super) dirty: bool,
    /// Whether it is in the list of connections to be served.
    pub(super) queued: bool,
    /// The turn of the queue pair in which a packet was last written when it was posted.
    written_in: u64,
    /// The turn in which an early acknowledgement last came.
    heard_in: u64,
}

impl Outgoing {
    pub(super) fn new(peer: QueuePairId, socket: Socket, me: Qpn, mtu: u32, rnr_retry: u8) -> Self {
        let hello = Hello { qpn: me, mtu, rnr_retry, token: new_token() };
        Self {
            peer,
            hello,
            stream: Stream::new(Some(socket)),
            turned_away: None,
            in_flight: VecDeque::new(),
            outstanding: 0,
            base: 0,
            unsent: 0,
            offset: 0,
            early: 0,
            operations: Slab::new(),
            beginning: VecDeque::new(),
            pieces: 0,
            dirty: false,
            queued: false,
            written_in: 0,
            heard_in: 0,
        }
    }

    pub(super) fn peer(&self) -> QueuePairId {
        self.peer
    }

    /// `None` while it waits to try again.
    pub(super) fn socket(&self) -> Option<&Socket> {
        self.stream.socket.as_ref()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.outstanding == 0 && self.operations.is_empty()
    }

    /// The turn of the last post; `None` unless it is connected and nothing is under way.
    pub(super) fn idle_since(&self) -> Option<u64> {
        (self.is_idle() && self.socket().is_some()).then_some(self.written_in)
    }

    /// Notes the readiness of the socket.
    pub(super) fn note(&mut self, readable: bool, writable: bool, hung_up: bool) {
        self.stream.ready.readable |= readable;
        self.stream.ready.writable |= writable;
        self.stream.ready.hung_up |= hung_up;
    }

    pub(super) fn push(&mut self, posted: Posted) {
        self.push_frame(Frame::Datagram(posted));
    }

    fn push_frame(&mut self, frame: Frame) {
        self.in_flight.push_back(Some(frame));
        self.outstanding += 1;
    }

    /// Begins an RDMA operation.
    pub(super) fn start(&mut self, operation: Operation, finish: impl FnMut(Finished)) {
        let place = self.operations.insert(operation);
        self.beginning.push_back(place);
        self.begin(finish);
    }

    /// Begins frames of operations, as many as may be in flight.
    fn begin(&mut self, mut finish: impl FnMut(Finished)) {
        while self.pieces < WINDOW
            && let Some(&place) = self.beginning.front()
        {
            match self.operations.get_mut(place).and_then(Operation::begin) {
                Some(piece) => {
                    self.pieces += 1;
                    self.push_frame(Frame::Piece(place, piece));
                }
                None => {
                    self.beginning.pop_front();
                    self.end_operation(place, &mut finish);
                }
            }
        }
    }

    /// Completes an operation if all its frames have responses.
    fn end_operation(&mut self, place: usize, finish: &mut impl FnMut(Finished)) {
        let Some(operation) = self.operations.get(place) else { return };
        if let Some(result) = operation.result() {
            let id = operation.id;
            self.operations.remove(place);
            self.beginning.retain(|&beginning| beginning != place);
            finish(Finished::Rdma(id, result));
        }
    }

    /// Whether this is the first post in this turn of the queue pair, which is then noted. So a single packet
    /// is written at once, and of many all but the first are written together.
    pub(super) fn is_first_in(&mut self, turn: u64) -> bool {
        std::mem::replace(&mut self.written_in, turn) != turn
    }

    /// Notes an early acknowledgement in this turn.
    pub(super) fn heard(&mut self, turn: u64) {
        self.heard_in = turn;
    }

    pub(super) fn is_heard_in(&self, turn: u64) -> bool {
        self.heard_in == turn
    }

    /// Whether there is something to write and the socket is writable.
    pub(super) fn wants_flush(&self) -> bool {
        self.stream.ready.writable && self.unsent < self.in_flight.len()
    }

    /// Writes as much as the socket takes. Returns the number of system calls.
    pub(super) fn flush(&mut self) -> Result<u64, Ending> {
        let mut calls = 0;
        while self.wants_flush() {
            calls += 1;
            match self.write() {
                Ok(Some(count)) => self.advance(count)?,
                Ok(None) => self.stream.ready.writable = false,
                // Responses that arrived before this error are more precise.
                Err(errno) => {
                    self.stream.error.get_or_insert(errno);
                    self.note(true, false, true);
                    self.stream.ready.writable = false;
                }
            }
        }
        Ok(calls)
    }

    fn write(&self) -> Result<Option<usize>, Errno> {
        match self.only_short() {
            Some(frame) => self.write_short(frame),
            None => self.write_all(),
        }
    }

    /// The only frame that is to be written, if it is short and nothing else is.
    fn only_short(&self) -> Option<&Frame> {
        let is_next = self.offset == 0 && self.stream.hello_written == HELLO;
        let is_only = is_next && self.unsent + 1 == self.in_flight.len();
        let frame = self.in_flight.back().filter(|_| is_only)?.as_ref()?;
        (frame.payload().len() <= SHORT).then_some(frame)
    }

    fn write_short(&self, frame: &Frame) -> Result<Option<usize>, Errno> {
        let Some(socket) = &self.stream.socket else { return Ok(None) };
        let mut bytes = [0; LONGEST_HEAD + SHORT];
        let (head, payload) = (self.head_of(self.unsent, frame), frame.payload());
        bytes[..head.length].copy_from_slice(&head.bytes[..head.length]);
        let end = head.length + payload.len();
        bytes[head.length..end].copy_from_slice(payload);
        socket.send(&bytes[..end])
    }

    fn write_all(&self) -> Result<Option<usize>, Errno> {
        let mut heads = [Head::NONE; FRAMES];
        let frames = || self.in_flight.range(self.unsent..).flatten().take(FRAMES);
        for ((head, frame), place) in heads.iter_mut().zip(frames()).zip(self.unsent..) {
            *head = self.head_of(place, frame);
        }
        let Some(socket) = &self.stream.socket else { return Ok(None) };
        let hello = self.hello.emit();
        let mut parts = [IoSlice::new(&[]); PARTS];
        let mut count = 0;
        let mut skip = self.offset;
        let mut add = |part| {
            parts[count] = IoSlice::new(part);
            count += 1;
        };
        if self.stream.hello_written < HELLO {
            add(&hello[self.stream.hello_written..]);
        }
        for (head, frame) in heads.iter().zip(frames()) {
            for part in [&head.bytes[..head.length], frame.payload()] {
                let skipped = skip.min(part.len());
                skip -= skipped;
                if skipped < part.len() {
                    add(&part[skipped..]);
                }
            }
        }
        socket.send_all(&parts[..count])
    }

    fn head_of(&self, place: usize, frame: &Frame) -> Head {
        frame.head(self.base.wrapping_add(place as u32))
    }

    fn advance(&mut self, mut count: usize) -> Result<(), Ending> {
        if !self.stream.reached {
            self.stream.reached = true;
            if self.socket().is_some_and(Socket::is_its_own_peer) {
                return Err(Ending::Over(Status::BadDestinationQpn));
            }
        }
        let greeting = count.min(HELLO - self.stream.hello_written);
        self.stream.hello_written += greeting;
        count -= greeting;
        self.offset += count;
        while let Some(Some(frame)) = self.in_flight.get(self.unsent)
            && let length = frame.length()
            && self.offset >= length
        {
            self.offset -= length;
            self.unsent += 1;
        }
        Ok(())
    }

    /// Whether responses may have arrived.
    pub(super) fn wants_poll(&self) -> bool {
        self.stream.ready.readable
    }

    /// Takes responses. `calls` counts those of the system that received something.
    pub(super) fn poll(
        &mut self,
        scratch: &mut [u8],
        calls: &mut u64,
        mut finish: impl FnMut(Finished),
    ) -> Result<(), Ending> {
        while self.stream.ready.readable
            && let Some(socket) = &self.stream.socket
        {
            let start = self.stream.responses.partial_length;
            scratch[..start].copy_from_slice(&self.stream.responses.partial[..start]);
            match socket.receive(&mut scratch[start..]) {
                Ok(Received::Bytes(count)) => {
                    *calls += 1;
                    let end = start + count;
                    // If the buffer isn't full there are no more bytes, unless the end is to be found.
                    self.stream.ready.readable = end == scratch.len() || self.stream.ready.hung_up;
                    self.take(&scratch[..end], &mut finish)?;
                }
                Ok(Received::Nothing) => {
                    self.stream.ready.readable = false;
                    self.stream.ready.hung_up = false;
                    if let Some(errno) = self.stream.error {
                        return Err(self.failed(errno));
                    }
                }
                Ok(Received::End) => return Err(self.failed(Errno::CONNRESET)),
                Err(errno) => return Err(self.failed(errno)),
            }
        }
        Ok(())
    }

    fn take(&mut self, mut bytes: &[u8], finish: &mut impl FnMut(Finished)) -> Result<(), Ending> {
        loop {
            bytes = self.take_data(bytes, finish);
            let Some((response, rest)) = bytes.split_first_chunk::<RESPONSE>() else { break };
            bytes = rest;
            if !self.stream.responses.is_welcomed {
                check_welcome(response)?;
                self.stream.responses.is_welcomed = true;
                continue;
            }
            match Response::parse(response)? {
                Response::Acknowledge { first, count, result } => {
                    self.settle(first, count, result, finish)?;
                }
                Response::Data { sequence, count } => self.expect(sequence, count)?,
                Response::Close(status) => return Err(Ending::Over(status)),
                Response::TryAgain => return Err(Ending::TurnedAway),
            }
        }
        self.stream.responses.partial[..bytes.len()].copy_from_slice(bytes);
        self.stream.responses.partial_length = bytes.len();
        self.begin(finish);
        Ok(())
    }

    /// The data of a read follows: it must have the requested length.
    fn expect(&mut self, sequence: u32, count: u16) -> Result<(), Violation> {
        let wrong = Violation::Response { first: sequence, count: 1 };
        let place = sequence.wrapping_sub(self.base) as usize;
        let frame = self.in_flight.get(place).filter(|_| place < self.unsent).ok_or(wrong)?;
        let Some(Frame::Piece(operation, Piece { wanted: Some((offset, length)), .. })) = frame
        else {
            return Err(wrong);
        };
        if *length != usize::from(count) {
            return Err(wrong);
        }
        let (operation, offset, left) = (*operation, *offset, *length);
        self.stream.responses.arriving = Some(Arriving { sequence, operation, offset, left });
        Ok(())
    }

    /// Takes the data of a read, if that is next. Returns the bytes that follow.
    fn take_data<'a>(&mut self, bytes: &'a [u8], finish: &mut impl FnMut(Finished)) -> &'a [u8] {
        let Some(mut arriving) = self.stream.responses.arriving.take() else { return bytes };
        let (data, rest) = bytes.split_at(arriving.left.min(bytes.len()));
        if let Some(operation) = self.operations.get_mut(arriving.operation) {
            operation.take(arriving.offset, data);
        }
        arriving.offset += data.len();
        arriving.left -= data.len();
        if arriving.left > 0 {
            self.stream.responses.arriving = Some(arriving);
        } else {
            self.finish_frames(std::iter::once(arriving.sequence), Ok(()), finish);
        }
        rest
    }

    fn settle(
        &mut self,
        first: u32,
        count: u16,
        result: Result<(), Status>,
        finish: &mut impl FnMut(Finished),
    ) -> Result<(), Violation> {
        let wrong = Violation::Response { first, count };
        // Empty ones are wrong too, as there could be any number of them.
        if count == 0 {
            return Err(wrong);
        }
        let named = (0..u32::from(count)).map(|n| first.wrapping_add(n));
        let mut early = 0;
        for sequence in named.clone() {
            match self.place_of(sequence) {
                // The response to a successful read is its data.
                Some(place) if result.is_ok() && self.is_read(place) => return Err(wrong),
                Some(_) => {}
                None if self.was_written(sequence) => early += 1,
                None => return Err(wrong),
            }
        }
        self.early = self.early.checked_sub(early).ok_or(wrong)?;
        self.finish_frames(named, result, finish);
        Ok(())
    }

    /// Completes frames that the receiver says in front of a packet to have received. Returns their number.
    pub(super) fn settle_early(&mut self, early: Early, mut finish: impl FnMut(Finished)) -> u64 {
        // Its connection may have ended, or somebody pretends to be the receiver.
        if early.token != self.hello.token {
            return 0;
        }
        self.turned_away = None;
        let before = self.early;
        for n in 0..u32::from(early.count) {
            if let Some(place) = self.place_of(early.first.wrapping_add(n))
                && !self.is_read(place)
            {
                self.finish_frame(place, Ok(()), &mut finish);
                self.early += 1;
            }
        }
        self.pop_finished();
        self.begin(finish);
        self.early - before
    }

    /// The place of a frame that was written and has no response.
    fn place_of(&self, sequence: u32) -> Option<usize> {
        let place = sequence.wrapping_sub(self.base) as usize;
        let frame = self.in_flight.get(place).filter(|_| place < self.unsent)?;
        frame.as_ref().map(|_| place)
    }

    /// Whether this is the number of a frame that was written, perhaps long ago.
    fn was_written(&self, sequence: u32) -> bool {
        let place = sequence.wrapping_sub(self.base);
        place > u32::MAX / 2 || (place as usize) < self.unsent
    }

    fn is_read(&self, place: usize) -> bool {
        self.in_flight.get(place).and_then(Option::as_ref).is_some_and(Frame::is_read)
    }

    /// Completes those of the frames that have no response yet.
    fn finish_frames(
        &mut self,
        named: impl Iterator<Item = u32>,
        result: Result<(), Status>,
        finish: &mut impl FnMut(Finished),
    ) {
        self.turned_away = None;
        for sequence in named {
            if let Some(place) = self.place_of(sequence) {
                self.finish_frame(place, result, finish);
            }
        }
        self.pop_finished();
    }

    fn finish_frame(
        &mut self,
        place: usize,
        result: Result<(), Status>,
        finish: &mut impl FnMut(Finished),
    ) {
        let Some(frame) = self.in_flight.get_mut(place).and_then(Option::take) else { return };
        self.outstanding -= 1;
        match frame {
            Frame::Datagram(posted) => finish(Finished::Send(posted, result)),
            Frame::Piece(place, _) => {
                self.pieces -= 1;
                if let Some(operation) = self.operations.get_mut(place) {
                    operation.end(result);
                    // After the last response of a write its immediate data is sent.
                    if operation.result().is_none() && !self.beginning.contains(&place) {
                        self.beginning.push_front(place);
                    }
                }
                self.end_operation(place, finish);
            }
        }
    }

    /// Forgets the frames up to the first without response.
    fn pop_finished(&mut self) {
        while let Some(None) = self.in_flight.front() {
            self.in_flight.pop_front();
            self.base = self.base.wrapping_add(1);
            self.unsent -= 1;
        }
    }

    /// The end of the connection for its first socket error.
    fn failed(&self, errno: Errno) -> Ending {
        Ending::Over(status_of(self.stream.error.unwrap_or(errno), self.stream.reached))
    }

    /// Leaves the connection, to try again at the returned time. What waits until then fails if the retries
    /// for a receiver that is not ready are over, `rnr_delay` each.
    pub(super) fn turn_away(
        &mut self,
        now: Time,
        rnr_delay: Duration,
        finish: impl FnMut(Finished),
    ) -> Time {
        let before = self.turned_away;
        let since = before.map_or(now, |before| before.since);
        let wait = before.map_or(FIRST_WAIT, |before| (before.wait * 2).min(LONGEST_WAIT));
        self.turned_away = Some(TurnedAway { since, wait });
        self.stream = Stream::new(None);
        self.in_flight.retain(Option::is_some);
        (self.base, self.unsent, self.offset, self.early) = (0, 0, 0, 0);
        self.hello.token = new_token();
        (self.dirty, self.queued) = (false, false);
        let rnr_retry = self.hello.rnr_retry;
        let patience = rnr_delay.saturating_mul(rnr_retry.into());
        if rnr_retry < RNR_RETRY_INFINITE && now - since >= patience {
            self.fail(Status::ReceiverNotReady, finish);
        }
        // Senders that were turned away together don't come back together.
        now + wait / 2 + (wait / 2).mul_f64(fastrand::f64())
    }

    /// Tries again over a new connection.
    pub(super) fn try_again(&mut self, socket: Socket) {
        self.stream = Stream::new(Some(socket));
    }

    /// Completes all sends and operations without response.
    pub(super) fn fail(&mut self, status: Status, mut finish: impl FnMut(Finished)) {
        (self.outstanding, self.unsent, self.offset, self.pieces) = (0, 0, 0, 0);
        self.beginning.clear();
        for frame in self.in_flight.drain(..).flatten() {
            if let Frame::Datagram(posted) = frame {
                finish(Finished::Send(posted, Err(status)));
            }
        }
        for operation in self.operations.drain() {
            finish(Finished::Rdma(operation.id, Err(status)));
        }
    }
}

/// A number that others can't guess.
fn new_token() -> u64 {
    RandomState::new().hash_one(())
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
