//! Receiving from one other queue pair: its connection to us, what lies in the buffer, and the
//! answers that it is owed.
//!
//! ```text
//!  socket ─► buffer ─► arrived: frame, frame, frame │ part of one
//!                        │ a buffer is posted: copy it there
//!                        │ none for too long, another key, too short a buffer: leave it
//!                        │ a read or write: at once, if the region allows it
//!                        ▼
//!                     answers, in runs, and what was read ─► socket
//! ```
//!
//! Datagrams that wait for a buffer don't hold up reads and writes that arrived with them.
//!
//! The buffer is filled only when all that arrived was dealt with, and nothing is dealt with while
//! the sender doesn't take its answers. So a sender is slowed down by TCP itself, and what one can
//! make this side keep is bounded.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Duration;

use efa_device::{Gid, Qpn, Region as _, RegionRange, RemoteMemory, Status, Time};
use fastrand::Rng;

use super::socket::{Received, Socket};
use super::wire::{
    ANSWER, Answer, CHUNK, HEADER, HELLO, Header, Hello, LONGEST, Prefix, Violation, emit_welcome,
};
use crate::link::{Delivered, ReceiveQueue};
use crate::record::QueuePairId;
use crate::region::{KeyTable, SoftRegion};

/// Room for what arrives: more than the longest frame there can be.
const BUFFER: usize = 2 * LONGEST;
/// Bytes of answers not taken by the sender at which no more frames are.
const MANY_ANSWERS: usize = 8 * (CHUNK + ANSWER);

/// A frame in the buffer.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    prefix: Prefix,
    /// Where its payload is.
    at: usize,
    length: usize,
    sequence: u32,
    key: u32,
    since: Time,
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

/// What a look at a connection found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// There is more to be done, now or when a buffer is posted or time has passed.
    More,
    /// Nothing to be done until the socket tells.
    Nothing,
    /// The sender has left, and everything it sent is dealt with.
    End,
}

/// Where a sender's packets go.
pub(super) struct Target<'a> {
    pub(super) queue: ReceiveQueue<'a>,
    /// Draws which of the packets that have arrived is next.
    pub(super) reorder: Option<&'a mut Rng>,
}

/// Answers on their way to the sender.
#[derive(Debug)]
struct Answers {
    bytes: Vec<u8>,
    /// How many bytes of them the socket has taken.
    written: usize,
    /// The last, which may still grow.
    run: Option<(u32, u16, Result<(), Status>)>,
}

impl Answers {
    fn new() -> Self {
        Self { bytes: emit_welcome().to_vec(), written: 0, run: None }
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

    /// Answers a read with its bytes.
    fn add_data(&mut self, sequence: u32, part: &RegionRange<SoftRegion>) -> Result<(), Status> {
        let count = u16::try_from(part.length).map_err(|_| Status::BadLength)?;
        self.end_run();
        let start = self.bytes.len();
        self.push(Answer::Data { sequence, count });
        let data = self.bytes.len();
        self.bytes.resize(data + part.length, 0);
        if part.region.read(part.offset, &mut self.bytes[data..]) == part.length {
            return Ok(());
        }
        // It was revoked, or is not there.
        self.bytes.truncate(start);
        Err(Status::RemoteBadAddress)
    }

    fn end_run(&mut self) {
        if let Some((first, count, result)) = self.run.take() {
            self.push(Answer::Verdict { first, count, result });
        }
    }

    fn push(&mut self, answer: Answer) {
        self.bytes.extend_from_slice(&answer.emit());
    }

    fn are_many(&self) -> bool {
        self.bytes.len() - self.written >= MANY_ANSWERS
    }

    fn is_empty(&self) -> bool {
        self.run.is_none() && self.written == self.bytes.len()
    }
}

/// What a frame wants of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Read,
    Write,
}

/// The part of a region that a frame names, if it is allowed.
fn find(
    keys: &KeyTable,
    memory: RemoteMemory,
    length: usize,
    wanted: Wanted,
) -> Result<RegionRange<SoftRegion>, Status> {
    let region = keys.find(memory.key).ok_or(Status::RemoteBadAddress)?;
    let access = region.access();
    let allowed = match wanted {
        Wanted::Read => access.remote_read,
        Wanted::Write => access.remote_write,
    };
    let part = region.part(memory, length).filter(|_| allowed);
    part.ok_or(Status::RemoteBadAddress)
}

/// Puts a datagram into the next posted buffer; there is one, unless its key is wrong.
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
    let mut packet = target.queue.posted.pop_front().ok_or(Status::ReceiverNotReady)?;
    let length = payload.len();
    match packet.get_mut(..length) {
        Some(bytes) => {
            bytes.copy_from_slice(payload);
            receive(Delivered::Datagram { packet, length, immediate });
            Ok(())
        }
        None => {
            target.queue.posted.push_front(packet);
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
    /// Empty until bytes come.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    arrived: VecDeque<Arrived>,
    next_sequence: u32,
    answers: Answers,
    readable: bool,
    writable: bool,
    hung_up: bool,
    ended: bool,
    /// Since when it is known that the sender hasn't said who it is.
    nameless: Option<Time>,
    /// Whether it stands in the list of those to be flushed.
    pub(super) dirty: bool,
    /// Whether it stands in the list of those to be looked at.
    pub(super) queued: bool,
}

impl Incoming {
    pub(super) fn new(gid: Gid, socket: Socket) -> Self {
        Self {
            gid,
            socket,
            hello: None,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            arrived: VecDeque::new(),
            next_sequence: 0,
            answers: Answers::new(),
            readable: true,
            writable: true,
            hung_up: false,
            ended: false,
            nameless: None,
            dirty: false,
            queued: false,
        }
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Who sends; number 0 as long as it hasn't said.
    pub(super) fn sender(&self) -> QueuePairId {
        QueuePairId { gid: self.gid, qpn: self.hello.map_or(Qpn(0), |hello| hello.qpn) }
    }

    /// Notes what became possible.
    pub(super) fn note(&mut self, readable: bool, writable: bool, hung_up: bool) {
        self.readable |= readable;
        self.writable |= writable;
        self.hung_up |= hung_up;
    }

    /// Takes packets; `receive` gets each. `calls` counts system calls.
    pub(super) fn poll(
        &mut self,
        target: &mut Target<'_>,
        calls: &mut u64,
        receive: impl FnMut(QueuePairId, Delivered),
    ) -> Result<Found, Violation> {
        if self.arrived.is_empty() {
            self.fill(calls);
            self.read(target.queue.now)?;
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
        *calls += 1;
        // There is room: what is left here is less than a frame.
        match self.socket.receive(&mut self.buffer[self.end..]) {
            Ok(Received::Bytes(count)) => {
                self.end += count;
                self.readable = self.end == BUFFER || self.hung_up;
            }
            Ok(Received::Nothing) => {
                self.readable = false;
                self.hung_up = false;
            }
            // An error is an end too: nobody is left who could be told.
            Ok(Received::End) | Err(_) => {
                self.readable = false;
                self.ended = true;
            }
        }
    }

    /// Finds the frames in the buffer.
    fn read(&mut self, now: Time) -> Result<(), Violation> {
        while let Some((found, rest)) = self.next(now)? {
            self.start = rest;
            self.arrived.extend(found);
        }
        Ok(())
    }

    /// The next thing in the buffer, if it is whole, and where it ends.
    fn next(&mut self, since: Time) -> Result<Option<(Option<Arrived>, usize)>, Violation> {
        let (at, bytes) = (self.start, &self.buffer[self.start..self.end]);
        let Some(hello) = self.hello else {
            let Some((hello, _)) = bytes.split_first_chunk::<HELLO>() else { return Ok(None) };
            self.hello = Some(Hello::parse(hello)?);
            return Ok(Some((None, at + HELLO)));
        };
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
        Ok(Some((Some(Arrived { prefix, at, length, sequence, key, since }), end)))
    }

    fn take(&mut self, target: &mut Target<'_>, mut receive: impl FnMut(QueuePairId, Delivered)) {
        let sender = self.sender();
        let mut receive = |delivered| receive(sender, delivered);
        let posted = target.queue.posted.len();
        while !self.answers.are_many() {
            let Some(place) = self.next_place(target) else {
                // Whoever gets these may post more, so what is left can wait for the next poll.
                if target.queue.posted.len() == posted {
                    self.wait(target);
                }
                break;
            };
            let Some(&arrived) = self.arrived.get(place) else { break };
            let sequence = arrived.sequence;
            let payload = &self.buffer[arrived.at..arrived.at + arrived.length];
            let result = match arrived.prefix {
                Prefix::Datagram => deliver(target, &arrived, payload, None, &mut receive),
                Prefix::Immediate(immediate) => {
                    deliver(target, &arrived, payload, Some(immediate), &mut receive)
                }
                Prefix::Written { immediate, length } => {
                    let packet = if target.queue.unsolicited {
                        None
                    } else {
                        target.queue.posted.pop_front()
                    };
                    receive(Delivered::Written { packet, length, immediate });
                    Ok(())
                }
                Prefix::Read { address, count } => {
                    let memory = RemoteMemory { address, key: arrived.key };
                    let read = find(target.queue.keys, memory, count as usize, Wanted::Read)
                        .and_then(|part| self.answers.add_data(sequence, &part));
                    match read {
                        Ok(()) => {
                            self.arrived.remove(place);
                            continue;
                        }
                        Err(status) => Err(status),
                    }
                }
                Prefix::Write { address } => {
                    let memory = RemoteMemory { address, key: arrived.key };
                    find(target.queue.keys, memory, payload.len(), Wanted::Write).and_then(|part| {
                        let written = part.region.write(part.offset, payload);
                        let all = written == payload.len();
                        if all { Ok(()) } else { Err(Status::RemoteBadAddress) }
                    })
                }
            };
            self.arrived.remove(place);
            self.answers.add(sequence, result);
        }
    }

    /// Which frame is next, if any can be dealt with.
    fn next_place(&self, target: &mut Target<'_>) -> Option<usize> {
        let waiting = self.arrived.len();
        let place = match &mut target.reorder {
            Some(rng) if waiting > 1 => rng.usize(..waiting),
            _ => 0,
        };
        let first = self.arrived.get(place)?;
        if !target.queue.posted.is_empty() || !first.takes_buffer(target.queue.unsolicited) {
            return Some(place);
        }
        // Another key needs no buffer to be found wrong.
        let mut needing = self.arrived.iter();
        needing.position(|arrived| {
            let datagram = matches!(arrived.prefix, Prefix::Datagram | Prefix::Immediate(_));
            !arrived.takes_buffer(target.queue.unsolicited)
                || (datagram && arrived.key != target.queue.qkey.0)
        })
    }

    /// Gives up what has waited for a buffer long enough.
    #[cold]
    fn wait(&mut self, target: &Target<'_>) {
        let rnr_retry = self.hello.map_or(0, |hello| hello.rnr_retry);
        while let Some(&Arrived { sequence, since, .. }) = self.arrived.front()
            && target.queue.rnr_expired(rnr_retry, since)
        {
            self.arrived.pop_front();
            self.answers.add(sequence, Err(Status::ReceiverNotReady));
        }
    }

    /// How long it is known that the sender hasn't said who it is; from now on, if that is news. Who
    /// was last here long ago can't tell when the connection was made.
    ///
    /// Half a frame is another matter: its sender may be busy with something else, as one may that
    /// has sent all of it.
    pub(super) fn nameless_for(&mut self, now: Time) -> Option<Duration> {
        if self.hello.is_some() {
            return None;
        }
        Some(now - *self.nameless.get_or_insert(now))
    }

    /// Whether there are answers to write and room for them.
    pub(super) fn wants_flush(&self) -> bool {
        self.writable && !self.answers.is_empty()
    }

    /// Writes what answers there is room for; gives the number of system calls.
    pub(super) fn flush(&mut self) -> u64 {
        let mut calls = 0;
        self.answers.end_run();
        while self.wants_flush() {
            calls += 1;
            let answers = &mut self.answers;
            match self.socket.send(&[IoSlice::new(&answers.bytes[answers.written..])]) {
                Ok(Some(count)) => answers.written += count,
                Ok(None) => {
                    self.writable = false;
                    answers.bytes.drain(..answers.written);
                    answers.written = 0;
                    return calls;
                }
                // The sender has gone. What it sent before may still lie in the socket, and nobody
                // waits for the answers.
                Err(_) => answers.written = answers.bytes.len(),
            }
            if answers.written == answers.bytes.len() {
                answers.bytes.clear();
                answers.written = 0;
            }
        }
        calls
    }

    /// Says how everything ends that has no answer, and takes leave.
    pub(super) fn leave(&mut self, status: Status, scratch: &mut [u8]) {
        self.answers.end_run();
        self.answers.push(Answer::Goodbye(status));
        self.flush();
        self.socket.close(scratch);
    }
}
