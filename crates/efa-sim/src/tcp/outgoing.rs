//! Sending to one other queue pair: our connection to it, and the sends not yet answered.
//!
//! ```text
//!                  base                    unsent
//!  in flight:  ─────┬──────┬──────┬──────┬────┬──────┬──────┬──────┐
//!                   │ sent │ done │ sent │ sent… (offset bytes)  posted
//!              ─────┴──────┴──────┴──────┴───────────┴──────┴──────┘
//!       answers take sends out ─►              ◄─ flush moves on by what the socket takes
//! ```
//!
//! A packet stays in its buffer until it is answered, so it is written from there, many with one
//! system call, and there is no other buffer to be bounded.

use std::collections::VecDeque;
use std::io::IoSlice;

use efa_device::{Qkey, Status, WorkId};
use rustix::io::Errno;

use super::socket::{Received, Socket};
use super::wire::{ANSWER, Answer, HEADER, HELLO, Header, Hello, Violation, check_welcome};
use crate::record::QueuePairId;

/// Most packets written with one system call.
const FRAMES: usize = 32;
/// Parts of a write: the hello, and a header and bytes for each packet.
const PARTS: usize = 1 + 2 * FRAMES;

/// A send that was accepted.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) id: WorkId,
    pub(super) packet: Box<[u8]>,
    pub(super) length: usize,
    pub(super) qkey: Qkey,
}

impl Posted {
    fn header(&self, sequence: u32) -> [u8; HEADER] {
        // Posts are limited to the MTU, which is smaller.
        let length = u32::try_from(self.length).unwrap_or(u32::MAX);
        Header { length, sequence, qkey: self.qkey }.emit()
    }
}

/// A send that ended.
pub(super) type Finished = (Posted, Result<(), Status>);

/// Why a connection is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The other side took its leave, or could not be reached, or is gone.
    Over(Status),
    /// It does not keep to the rules.
    Broken(Violation),
}

impl Ending {
    /// How sends end that wait for an answer.
    pub(super) fn status(self) -> Status {
        match self {
            Self::Over(status) => status,
            Self::Broken(_) => Status::BadStatus,
        }
    }
}

impl From<Violation> for Ending {
    fn from(violation: Violation) -> Self {
        Self::Broken(violation)
    }
}

/// The way to one peer.
#[derive(Debug)]
pub(super) struct Outgoing {
    peer: QueuePairId,
    socket: Socket,
    /// The socket was connected, as it has taken bytes.
    reached: bool,
    hello: [u8; HELLO],
    /// Bytes of the hello that were written.
    greeted: usize,
    /// The other side has proved to speak the same language.
    welcomed: bool,

    in_flight: VecDeque<Option<Posted>>,
    /// Those in flight without answer.
    outstanding: usize,
    /// Number of the first in flight.
    base: u32,
    /// Place of the first in flight that is not wholly written.
    unsent: usize,
    /// How many bytes of it are, with its header.
    offset: usize,

    writable: bool,
    readable: bool,
    hung_up: bool,
    /// The first error of a write.
    error: Option<Errno>,
    /// The beginning of an answer.
    partial: [u8; ANSWER],
    partial_length: usize,
    /// Whether it stands in the list of those to be flushed.
    pub(super) dirty: bool,
    /// Whether it stands in the list of those to be looked at.
    pub(super) queued: bool,
    /// When packets were written as they were posted: the turn of the queue pair.
    written_in: u64,
}

impl Outgoing {
    pub(super) fn new(peer: QueuePairId, socket: Socket, hello: Hello) -> Self {
        Self {
            peer,
            socket,
            reached: false,
            hello: hello.emit(),
            greeted: 0,
            welcomed: false,
            in_flight: VecDeque::new(),
            outstanding: 0,
            base: 0,
            unsent: 0,
            offset: 0,
            writable: true,
            readable: false,
            hung_up: false,
            error: None,
            partial: [0; ANSWER],
            partial_length: 0,
            dirty: false,
            queued: false,
            written_in: 0,
        }
    }

    pub(super) fn peer(&self) -> QueuePairId {
        self.peer
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(super) fn is_idle(&self) -> bool {
        self.outstanding == 0
    }

    /// Notes what became possible.
    pub(super) fn note(&mut self, readable: bool, writable: bool, hung_up: bool) {
        self.readable |= readable;
        self.writable |= writable;
        self.hung_up |= hung_up;
    }

    pub(super) fn push(&mut self, posted: Posted) {
        self.in_flight.push_back(Some(posted));
        self.outstanding += 1;
    }

    /// Whether nothing was written for a post in this turn of the queue pair yet; from now on, that
    /// was. So a packet alone leaves at once, and of many all but the first leave together.
    pub(super) fn is_first_in(&mut self, turn: u64) -> bool {
        std::mem::replace(&mut self.written_in, turn) != turn
    }

    /// Whether there is something to write and room for it.
    pub(super) fn wants_flush(&self) -> bool {
        self.writable && self.unsent < self.in_flight.len()
    }

    /// Writes what there is room for; gives the number of system calls.
    pub(super) fn flush(&mut self) -> Result<u64, Ending> {
        let mut calls = 0;
        while self.wants_flush() {
            calls += 1;
            match self.write() {
                Ok(Some(count)) => self.advance(count)?,
                Ok(None) => self.writable = false,
                // What the other side said before it went is worth more than this error.
                Err(errno) => {
                    self.error.get_or_insert(errno);
                    self.note(true, false, true);
                    self.writable = false;
                }
            }
        }
        Ok(calls)
    }

    fn write(&mut self) -> Result<Option<usize>, Errno> {
        let mut headers = [[0; HEADER]; FRAMES];
        let first = self.base.wrapping_add(self.unsent as u32);
        let frames = || self.in_flight.range(self.unsent..).flatten().take(FRAMES);
        for ((header, posted), n) in headers.iter_mut().zip(frames()).zip(0..) {
            *header = posted.header(first.wrapping_add(n));
        }
        let mut parts = [IoSlice::new(&[]); PARTS];
        let mut count = 0;
        let mut skip = self.offset;
        let mut add = |part| {
            parts[count] = IoSlice::new(part);
            count += 1;
        };
        if self.greeted < HELLO {
            add(&self.hello[self.greeted..]);
        }
        for (header, posted) in headers.iter().zip(frames()) {
            for part in [&header[..], &posted.packet[..posted.length]] {
                let skipped = skip.min(part.len());
                skip -= skipped;
                if skipped < part.len() {
                    add(&part[skipped..]);
                }
            }
        }
        self.socket.send(&parts[..count])
    }

    fn advance(&mut self, mut count: usize) -> Result<(), Ending> {
        if !self.reached {
            self.reached = true;
            if self.socket.is_its_own_peer() {
                return Err(Ending::Over(Status::BadDestinationQpn));
            }
        }
        let greeting = count.min(HELLO - self.greeted);
        self.greeted += greeting;
        count -= greeting;
        self.offset += count;
        while let Some(Some(posted)) = self.in_flight.get(self.unsent)
            && self.offset >= HEADER + posted.length
        {
            self.offset -= HEADER + posted.length;
            self.unsent += 1;
        }
        Ok(())
    }

    /// Whether answers can have come.
    pub(super) fn wants_poll(&self) -> bool {
        self.readable
    }

    /// Takes answers, if some can have come. `calls` counts system calls.
    pub(super) fn poll(
        &mut self,
        scratch: &mut [u8],
        calls: &mut u64,
        mut finish: impl FnMut(Finished),
    ) -> Result<(), Ending> {
        while self.readable {
            *calls += 1;
            let start = self.partial_length;
            scratch[..start].copy_from_slice(&self.partial[..start]);
            match self.socket.receive(&mut scratch[start..]) {
                Ok(Received::Bytes(count)) => {
                    let end = start + count;
                    // Less than there was room for is all there is, unless an end is to be found.
                    self.readable = end == scratch.len() || self.hung_up;
                    self.take(&scratch[..end], &mut finish)?;
                }
                Ok(Received::Nothing) => {
                    self.readable = false;
                    self.hung_up = false;
                    if let Some(errno) = self.error {
                        return Err(self.failed(errno));
                    }
                }
                Ok(Received::End) => return Err(self.failed(Errno::CONNRESET)),
                Err(errno) => return Err(self.failed(errno)),
            }
        }
        Ok(())
    }

    fn take(&mut self, bytes: &[u8], finish: &mut impl FnMut(Finished)) -> Result<(), Ending> {
        let (answers, rest) = bytes.as_chunks::<ANSWER>();
        self.partial[..rest.len()].copy_from_slice(rest);
        self.partial_length = rest.len();
        for answer in answers {
            if !self.welcomed {
                check_welcome(answer)?;
                self.welcomed = true;
                continue;
            }
            match Answer::parse(answer)? {
                Answer::Verdict { first, count, result } => {
                    self.settle(first, count, result, finish)?;
                }
                Answer::Goodbye(status) => return Err(Ending::Over(status)),
            }
        }
        Ok(())
    }

    fn settle(
        &mut self,
        first: u32,
        count: u16,
        result: Result<(), Status>,
        finish: &mut impl FnMut(Finished),
    ) -> Result<(), Violation> {
        let wrong = Violation::Answer { first, count };
        let from = first.wrapping_sub(self.base) as usize;
        let to = from.saturating_add(usize::from(count));
        // Empty ones are wrong too, as there could be any number of them.
        if count == 0 || to > self.unsent {
            return Err(wrong);
        }
        for place in self.in_flight.range_mut(from..to) {
            let posted = place.take().ok_or(wrong)?;
            self.outstanding -= 1;
            finish((posted, result));
        }
        while let Some(None) = self.in_flight.front() {
            self.in_flight.pop_front();
            self.base = self.base.wrapping_add(1);
            self.unsent -= 1;
        }
        Ok(())
    }

    /// What an error of the socket means, if there was none before.
    fn failed(&self, errno: Errno) -> Ending {
        Ending::Over(status_of(self.error.unwrap_or(errno), self.reached))
    }

    /// Ends all sends that have no answer.
    pub(super) fn fail(&mut self, status: Status, mut finish: impl FnMut(Finished)) {
        self.outstanding = 0;
        self.unsent = 0;
        self.offset = 0;
        for posted in self.in_flight.drain(..).flatten() {
            finish((posted, Err(status)));
        }
    }
}

/// How sends end over a socket with this error.
pub(super) fn status_of(errno: Errno, reached: bool) -> Status {
    match errno {
        Errno::CONNREFUSED => Status::BadDestinationQpn,
        _ if reached => Status::UnresponsiveRemote,
        // These can come only once there was a connection.
        Errno::CONNRESET | Errno::PIPE => Status::UnresponsiveRemote,
        _ => Status::UnreachableRemote,
    }
}
