//! Receiving from one other queue pair: its connection, the received bytes, and the pending responses.
//!
//! ```text
//!  socket ─► buffer ─► arrived: frame, frame, frame │ part of one
//!                        │ a buffer is posted: copy it there
//!                        │ RNR timeout, wrong key, buffer too short: fail it
//!                        │ a read or write: at once, if the region allows it
//!                        ▼
//!                     responses, merged, and data of reads ─► socket
//! ```
//!
//! Early acknowledgements of packets of the other direction are taken from the buffer at once.
//!
//! Datagrams that wait for a buffer don't hold up reads and writes that arrived with them.
//!
//! The buffer is filled only when all that arrived was dealt with, and nothing is dealt with while
//! the sender doesn't take its responses. So a sender is slowed down by TCP itself, and what one can
//! make this side keep is bounded.

use std::collections::VecDeque;
use std::time::Duration;

use efa_device::{Gid, Qpn, Region as _, RegionRange, RemoteMemory, Status, Time};
use fastrand::Rng;

use super::TcpOptions;
use super::admission::{Held, Standing};
use super::socket::{Received, Socket};
use super::wire::{
    CHUNK, EARLY, Early, HEADER, HELLO, Header, Hello, LONGEST, MOST_EARLY, Prefix, RESPONSE,
    Response, Violation, emit_welcome,
};
use crate::book::Book;
use crate::keys::Use;
use crate::link::{Delivered, ReceiveQueue};
use crate::record::QueuePairId;
use crate::region::SoftRegion;

/// Size of the receive buffer: more than the longest frame.
const BUFFER: usize = 2 * LONGEST;
/// Unwritten bytes of responses at which no more frames are handled.
const MANY_RESPONSES: usize = 8 * (CHUNK + RESPONSE);

/// What is next in the buffer.
enum Next {
    Hello,
    Early(Early),
    Frame(Arrived),
}

/// A frame in the buffer.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    prefix: Prefix,
    /// Offset of its payload.
    at: usize,
    length: usize,
    sequence: u32,
    key: u32,
    since: Time,
}

impl Target<'_> {
    /// Checks that this device has an address handle for a requester.
    fn check_known(&self, requester: Gid) -> Result<(), Status> {
        if self.book.knows(requester) { Ok(()) } else { Err(Status::UnknownPeer) }
    }
}

impl Arrived {
    fn takes_buffer(&self, unsolicited: bool) -> bool {
        match self.prefix {
            Prefix::Datagram | Prefix::Immediate(_) => true,
            Prefix::Written { .. } => !unsolicited,
            Prefix::Read { .. } | Prefix::Write { .. } => false,
        }
    }
}

/// The outcome of a poll of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Frames wait for a buffer or a timeout, or the socket may have more bytes.
    More,
    /// Nothing to do until the socket is ready.
    Nothing,
    /// The sender has closed the connection, and all its frames were handled.
    End,
}

/// When the system sends responses that it has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Now,
    /// When it is told to, or after a while.
    Soon,
}

/// Where a sender's packets go.
pub(super) struct Target<'a> {
    pub(super) queue: ReceiveQueue<'a>,
    /// Interfaces that may read and write memory.
    pub(super) book: &'a Book,
    /// Draws which of the packets that have arrived is next.
    pub(super) reorder: Option<&'a mut Rng>,
    /// Where early acknowledgements go.
    pub(super) early: &'a mut Vec<Early>,
}

/// Responses on their way to the sender.
#[derive(Debug)]
struct Responses {
    /// Memory for them, which is not filled with zeros again for each read.
    bytes: Vec<u8>,
    /// Where they end in it.
    end: usize,
    /// Bytes that the socket has taken.
    written: usize,
    /// The last acknowledgement, to which later frames with the same status are added.
    run: Option<(u32, u16, Result<(), Status>)>,
}

impl Responses {
    fn new() -> Self {
        let bytes = emit_welcome().to_vec();
        Self { end: bytes.len(), bytes, written: 0, run: None }
    }

    fn add(&mut self, sequence: u32, result: Result<(), Status>) {
        match &mut self.run {
            Some((first, count, same))
                if *same == result
                    && *count < u16::MAX
                    && first.wrapping_add(u32::from(*count)) == sequence =>
            {
                *count += 1;
            }
            _ => {
                self.end_run();
                self.run = Some((sequence, 1, result));
            }
        }
    }

    /// Responses a read with its bytes.
    fn add_data(&mut self, sequence: u32, part: &RegionRange<SoftRegion>) -> Result<(), Status> {
        let count = u16::try_from(part.length).map_err(|_| Status::BadLength)?;
        self.end_run();
        let start = self.end;
        self.push(Response::Data { sequence, count });
        if part.region.read(part.offset, self.room(part.length)) == part.length {
            self.end += part.length;
            return Ok(());
        }
        // The region was revoked or is unmapped.
        self.end = start;
        Err(Status::RemoteBadAddress)
    }

    /// Memory for more bytes.
    fn room(&mut self, length: usize) -> &mut [u8] {
        let end = self.end + length;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[self.end..end]
    }

    /// Notes that the socket has taken bytes.
    fn wrote(&mut self, count: usize) {
        self.written += count;
        if self.written == self.end {
            (self.written, self.end) = (0, 0);
        }
    }

    fn end_run(&mut self) {
        if let Some((first, count, result)) = self.run.take() {
            self.push(Response::Acknowledge { first, count, result });
        }
    }

    fn push(&mut self, response: Response) {
        let bytes = response.emit();
        self.room(bytes.len()).copy_from_slice(&bytes);
        self.end += bytes.len();
    }

    /// Whether there are a few acknowledgements and no data of reads, but perhaps of the shortest.
    fn is_short(&self) -> bool {
        self.end - self.written <= 4 * RESPONSE
    }

    fn is_full(&self) -> bool {
        self.end - self.written >= MANY_RESPONSES
    }

    fn is_empty(&self) -> bool {
        self.run.is_none() && self.end == 0
    }
}

/// Puts a datagram into the next posted buffer.
fn deliver(
    target: &mut Target<'_>,
    arrived: &Arrived,
    payload: &[u8],
    immediate: Option<u32>,
    receive: &mut impl FnMut(Delivered),
) -> Result<(), Status> {
    if arrived.key != target.queue.qkey.0 {
        return Err(Status::BadDestinationQpn);
    }
    let mut packet = target.queue.take_posted().ok_or(Status::ReceiverNotReady)?;
    let length = payload.len();
    match packet.get_mut(..length) {
        Some(bytes) => {
            bytes.copy_from_slice(payload);
            receive(Delivered::Datagram { packet, length, immediate });
            Ok(())
        }
        None => {
            target.queue.put_back(packet);
            Err(Status::RemoteBadLength)
        }
    }
}

/// A sender's connection.
#[derive(Debug)]
pub(super) struct Incoming {
    gid: Gid,
    socket: Socket,
    hello: Option<Hello>,
    /// Empty until bytes arrive.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    arrived: VecDeque<Arrived>,
    next_sequence: u32,
    responses: Responses,
    readable: bool,
    writable: bool,
    hung_up: bool,
    ended: bool,
    /// Whether the system holds back what is written.
    holds: bool,
    /// When it was accepted.
    accepted: Time,
    /// When a frame last arrived that presented a valid key.
    delivered: Option<Time>,
    /// The hello (`None`) or the number of the frame that is incomplete, and when a sweep first saw that.
    incomplete: Option<(Option<u32>, Time)>,
    /// Whether it is in the list of connections to be flushed.
    pub(super) dirty: bool,
    /// Whether it is in the list of connections to be served.
    pub(super) queued: bool,
}

impl Incoming {
    pub(super) fn new(gid: Gid, socket: Socket, now: Time) -> Self {
        Self {
            gid,
            socket,
            hello: None,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            arrived: VecDeque::new(),
            next_sequence: 0,
            responses: Responses::new(),
            readable: true,
            writable: true,
            hung_up: false,
            ended: false,
            holds: false,
            accepted: now,
            delivered: None,
            incomplete: None,
            dirty: false,
            queued: false,
        }
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(super) fn into_socket(self) -> Socket {
        self.socket
    }

    /// The sender; number 0 before its hello.
    pub(super) fn sender(&self) -> QueuePairId {
        QueuePairId { gid: self.gid, qpn: self.hello.map_or(Qpn(0), |hello| hello.qpn) }
    }

    /// Notes the readiness of the socket.
    pub(super) fn note(&mut self, readable: bool, writable: bool, hung_up: bool) {
        self.readable |= readable;
        self.writable |= writable;
        self.hung_up |= hung_up;
    }

    /// Takes packets and passes each to `receive`. `calls` counts those of the system that received something.
    pub(super) fn poll(
        &mut self,
        target: &mut Target<'_>,
        calls: &mut u64,
        receive: impl FnMut(QueuePairId, Delivered),
    ) -> Result<Found, Violation> {
        if self.arrived.is_empty() {
            self.fill(calls);
            self.read(target)?;
        }
        self.take(target, receive);
        if !self.arrived.is_empty() || self.readable {
            return Ok(Found::More);
        }
        if !self.ended {
            return Ok(Found::Nothing);
        }
        match self.end - self.start {
            0 => Ok(Found::End),
            bytes => Err(Violation::Truncated { bytes }),
        }
    }

    /// Frees its memory if nothing is in it.
    pub(super) fn free_memory(&mut self) {
        if self.start == self.end && self.arrived.is_empty() {
            (self.buffer, self.start, self.end) = (Vec::new(), 0, 0);
        }
        if self.responses.is_empty() {
            self.responses.bytes = Vec::new();
        }
    }

    fn fill(&mut self, calls: &mut u64) {
        if !self.readable {
            return;
        }
        if self.buffer.is_empty() {
            self.buffer = vec![0; BUFFER];
        }
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        // There is space: the rest in the buffer is less than a frame.
        match self.socket.receive(&mut self.buffer[self.end..]) {
            Ok(Received::Bytes(count)) => {
                *calls += 1;
                self.end += count;
                self.readable = self.end == BUFFER || self.hung_up;
            }
            Ok(Received::Nothing) => {
                self.readable = false;
                self.hung_up = false;
            }
            // An error ends the connection, too.
            Ok(Received::End) | Err(_) => {
                self.readable = false;
                self.ended = true;
            }
        }
    }

    /// Finds the frames in the buffer.
    fn read(&mut self, target: &mut Target<'_>) -> Result<(), Violation> {
        while let Some((next, rest)) = self.next(target.queue.now)? {
            self.start = rest;
            match next {
                Next::Hello => {}
                Next::Early(early) => target.early.push(early),
                Next::Frame(arrived) => self.arrived.push_back(arrived),
            }
        }
        Ok(())
    }

    /// What is next in the buffer, if it is complete, and its end.
    fn next(&mut self, since: Time) -> Result<Option<(Next, usize)>, Violation> {
        let (at, bytes) = (self.start, &self.buffer[self.start..self.end]);
        let Some(hello) = self.hello else {
            let Some((hello, _)) = bytes.split_first_chunk::<HELLO>() else { return Ok(None) };
            self.hello = Some(Hello::parse(hello)?);
            return Ok(Some((Next::Hello, at + HELLO)));
        };
        if let Some((early, _)) = bytes.split_first_chunk::<EARLY>()
            && let Some(early) = Early::parse(early)?
        {
            return Ok(Some((Next::Early(early), at + EARLY)));
        }
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
        let header = Header::parse(header, hello.mtu)?;
        let (found, expected) = (header.sequence, self.next_sequence);
        if found != expected {
            return Err(Violation::Sequence { found, expected });
        }
        let length = header.length as usize;
        if rest.len() < length {
            return Ok(None);
        }
        self.next_sequence = expected.wrapping_add(1);
        let Header { sequence, key, .. } = header;
        let (prefix, payload) = Prefix::parse(header.kind, &rest[..length])?;
        let end = at + HEADER + length;
        let (at, length) = (end - payload.len(), payload.len());
        Ok(Some((Next::Frame(Arrived { prefix, at, length, sequence, key, since }), end)))
    }

    fn take(&mut self, target: &mut Target<'_>, mut receive: impl FnMut(QueuePairId, Delivered)) {
        let sender = self.sender();
        let mut receive = |delivered| receive(sender, delivered);
        while !self.responses.is_full() {
            let Some(index) = self.next_index(target) else {
                self.wait(target);
                break;
            };
            let Some(&arrived) = self.arrived.get(index) else { break };
            let sequence = arrived.sequence;
            let payload = &self.buffer[arrived.at..arrived.at + arrived.length];
            let result = match arrived.prefix {
                Prefix::Datagram => deliver(target, &arrived, payload, None, &mut receive),
                Prefix::Immediate(immediate) => {
                    deliver(target, &arrived, payload, Some(immediate), &mut receive)
                }
                Prefix::Written { .. } if arrived.key != target.queue.qkey.0 => {
                    Err(Status::BadDestinationQpn)
                }
                Prefix::Written { immediate, length } => {
                    let packet =
                        if target.queue.unsolicited { None } else { target.queue.take_posted() };
                    receive(Delivered::Written { packet, length, immediate });
                    Ok(())
                }
                Prefix::Read { address, count } => {
                    let memory = RemoteMemory { address, key: arrived.key };
                    let read = target
                        .check_known(self.gid)
                        .and_then(|()| {
                            target.queue.keys.part(memory, count as usize, Use::RemoteRead)
                        })
                        .and_then(|part| self.responses.add_data(sequence, &part));
                    match read {
                        Ok(()) => {
                            self.delivered = Some(target.queue.now);
                            self.arrived.remove(index);
                            continue;
                        }
                        Err(status) => Err(status),
                    }
                }
                Prefix::Write { address } => {
                    let memory = RemoteMemory { address, key: arrived.key };
                    let known = target.check_known(self.gid);
                    known.and_then(|()| target.queue.keys.write_remotely(memory, payload))
                }
            };
            if result.is_ok() {
                self.delivered = Some(target.queue.now);
            }
            self.arrived.remove(index);
            self.responses.add(sequence, result);
        }
    }

    /// Index of the next frame that can be handled.
    fn next_index(&self, target: &mut Target<'_>) -> Option<usize> {
        let waiting = self.arrived.len();
        let index = match &mut target.reorder {
            Some(rng) if waiting > 1 => rng.usize(..waiting),
            _ => 0,
        };
        let first = self.arrived.get(index)?;
        if !target.queue.posted.is_empty() || !first.takes_buffer(target.queue.unsolicited) {
            return Some(index);
        }
        // One with a wrong key fails without a buffer.
        let mut needing = self.arrived.iter();
        needing.position(|arrived| {
            !arrived.takes_buffer(target.queue.unsolicited) || arrived.key != target.queue.qkey.0
        })
    }

    /// Fails datagrams whose RNR timeout has expired. All that wait have the key of the queue pair.
    #[cold]
    fn wait(&mut self, target: &Target<'_>) {
        if !self.arrived.is_empty() {
            self.delivered.get_or_insert(target.queue.now);
        }
        let rnr_retry = self.hello.map_or(0, |hello| hello.rnr_retry);
        while let Some(&Arrived { sequence, since, .. }) = self.arrived.front()
            && target.queue.rnr_expired(rnr_retry, since)
        {
            self.arrived.pop_front();
            self.responses.add(sequence, Err(Status::ReceiverNotReady));
        }
    }

    /// The limit that an incomplete hello or frame has exceeded, if it has. Time counts from the first call
    /// of this that sees it, as polls may be rare. A frame is late only while the sender is what is waited
    /// for: not while earlier frames wait for buffers, or responses for the sender's socket.
    pub(super) fn exceeded(&mut self, options: &TcpOptions, now: Time) -> Option<Duration> {
        let waits = self.arrived.is_empty() && self.responses.is_empty();
        let (number, limit) = match self.hello {
            None => (None, options.hello_timeout),
            Some(_) if waits && self.end > self.start => {
                (Some(self.next_sequence), options.frame_timeout)
            }
            Some(_) => {
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

    /// What decides whether it makes room for another connection.
    pub(super) fn held(&self, key: usize) -> Held {
        let waits = !self.arrived.is_empty() || !self.responses.is_empty();
        let (standing, since) = match self.delivered {
            None => (Standing::Unproven, self.accepted),
            Some(delivered) if waits => (Standing::Occupied, delivered),
            Some(delivered) => (Standing::Quiet, delivered),
        };
        Held { key, gid: self.gid, standing, since }
    }

    /// The acknowledgements that wait to be written, if all of them are of frames in a row that ended well, and few.
    pub(super) fn early(&self) -> Option<Early> {
        let (first, count, result) = self.responses.run?;
        let is_all = self.responses.end == 0 && result.is_ok() && count <= MOST_EARLY;
        let token = self.hello.filter(|_| is_all)?.token;
        Some(Early { token, first, count })
    }

    /// Whether there are responses to write and the socket is writable.
    pub(super) fn wants_flush(&self) -> bool {
        self.writable && !self.responses.is_empty()
    }

    /// Writes responses as far as the socket takes them. Returns the number of system calls that send. Only a few
    /// acknowledgements are sent [soon](When::Soon); more responses always go now.
    pub(super) fn flush(&mut self, when: When) -> u64 {
        self.responses.end_run();
        let holds = when == When::Soon && self.responses.is_short();
        let changes = std::mem::replace(&mut self.holds, holds) != holds;
        if changes && holds {
            self.socket.hold(true);
        }
        let calls = self.write();
        if changes && !holds {
            self.socket.hold(false);
        }
        calls
    }

    fn write(&mut self) -> u64 {
        let mut calls = 0;
        while self.wants_flush() {
            calls += 1;
            let responses = &mut self.responses;
            let bytes = &responses.bytes[responses.written..responses.end];
            match self.socket.send(bytes) {
                Ok(Some(count)) => responses.wrote(count),
                Ok(None) => {
                    self.writable = false;
                    responses.bytes.copy_within(responses.written..responses.end, 0);
                    responses.end -= responses.written;
                    responses.written = 0;
                }
                // The sender has gone. What it sent before may still lie in the socket, and nobody
                // waits for the responses.
                Err(_) => (responses.written, responses.end) = (0, 0),
            }
        }
        calls
    }

    /// Completes all frames without response with `status`, and closes the connection.
    pub(super) fn close(&mut self, status: Status, scratch: &mut [u8]) {
        self.end_with(Response::Close(status), scratch);
    }

    /// Closes the connection; the sender may send the frames without response over a new one.
    pub(super) fn turn_away(&mut self, scratch: &mut [u8]) {
        self.end_with(Response::TryAgain, scratch);
    }

    fn end_with(&mut self, last: Response, scratch: &mut [u8]) {
        self.responses.end_run();
        self.responses.push(last);
        self.flush(When::Now);
        self.socket.close(scratch);
    }
}
