//! Sending to one other queue pair: the frames in flight.
//!
//! ```text
//!                  base                    unsent
//!  in flight:  ─────┬──────┬──────┬──────┬────┬──────┬──────┬──────┐
//!                   │ sent │ done │ sent │ sent… (offset bytes)  posted
//!              ─────┴──────┴──────┴──────┴───────────┴──────┴──────┘
//!       responses complete sends ─►            ◄─ advances by what the socket takes
//! ```
//!
//! A packet stays in its buffer until its response arrives. It is written from there, many with one system
//! call, so there is no other buffer to be bounded. RDMA operations together have a few frames in flight,
//! the oldest operation first, so that datagrams aren't delayed. Frames without response that are written are at most a
//! [window](WINDOW) full.
//!
//! A receiver without room asks this side to try again. The frames without response were not handled then,
//! so they wait and are sent over a new connection, numbered from 0 again.
//!
//! Frames get their numbers when they are written. So datagrams that were not written at all can be taken back, as they are
//! when they keep others from the send queue.

use std::collections::VecDeque;
use std::time::Duration;

use efa_device::{Qkey, Status, Time, WorkId};
use slab::Slab;

use super::wire::{HEADER, Header, PREFIX, Prefix, Violation, WINDOW, weight};
use crate::link::{Piece, RNR_RETRY_INFINITE, RequestedOperation as Operation};

/// Most packets written with one system call.
pub(super) const FRAMES: usize = 32;
/// Most bytes of a payload that are copied, to write a frame in one piece.
pub(super) const SHORT: usize = 256;
/// Most bytes before a payload.
pub(super) const LONGEST_HEAD: usize = HEADER + PREFIX;

/// Most frames of operations in flight to a peer.
const WINDOW_OF_PIECES: usize = 16;

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

    fn head(&self, sequence: u32, rnr_retry: u8) -> Head {
        let (prefix, key) = self.prefix();
        let (prefix_bytes, prefix_length) = prefix.emit();
        // Posts are limited by the MTU and pieces by `CHUNK`, which are smaller.
        let length = u32::try_from(prefix_length + self.payload().len()).unwrap_or(u32::MAX);
        let header = Header { kind: prefix.kind(), rnr_retry, length, sequence, key };
        let mut head = Head { bytes: [0; LONGEST_HEAD], length: HEADER + prefix_length };
        head.bytes[..HEADER].copy_from_slice(&header.emit());
        head.bytes[HEADER..].copy_from_slice(&prefix_bytes);
        head
    }

    /// Bytes on the wire after the header.
    fn length(&self) -> usize {
        self.prefix().0.emit().1 + self.payload().len()
    }
}

/// The bytes before a payload: header and prefix.
#[derive(Clone, Copy)]
pub(super) struct Head {
    bytes: [u8; LONGEST_HEAD],
    length: usize,
}

impl Head {
    pub(super) const NONE: Self = Self { bytes: [0; LONGEST_HEAD], length: 0 };

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
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

/// Since when a receiver has had no room, and how long the last wait was at most.
#[derive(Clone, Copy, Debug)]
struct TurnedAway {
    since: Time,
    wait: Duration,
}

/// The packets and operations on their way to one peer.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    pub(super) rnr_retry: u8,
    /// `None` from a response on, and from a try that this side could not make.
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
    /// What those count that were written and have no response.
    weight: usize,
    /// Whether a response has come since the last look.
    has_response: bool,
    /// When a look first found frames or operations, if there has been no response since.
    unanswered_since: Option<Time>,

    operations: Slab<Operation>,
    /// Keys of those with frames to begin, in turn.
    beginning: VecDeque<usize>,
    /// Frames of operations in flight.
    pieces: usize,
    /// The read whose data comes next.
    arriving: Option<Arriving>,

    /// The turn of the queue pair in which a packet was last written when it was posted.
    written_in: u64,
}

impl Outgoing {
    pub(super) fn is_idle(&self) -> bool {
        self.outstanding == 0 && self.operations.is_empty()
    }

    /// The turn of the last post.
    pub(super) fn written_in(&self) -> u64 {
        self.written_in
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
    pub(super) fn begin(&mut self, mut finish: impl FnMut(Finished)) {
        while self.pieces < WINDOW_OF_PIECES
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

    /// Whether there is a frame that may be written.
    pub(super) fn wants_write(&self) -> bool {
        let next = self.in_flight.get(self.unsent).and_then(Option::as_ref);
        next.is_some_and(|frame| self.weight + weight(frame.length()) <= WINDOW)
    }

    /// The frames that may be written, with what precedes their payloads.
    pub(super) fn frames<'a>(
        &'a self,
        heads: &'a mut [Head; FRAMES],
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut total = self.weight;
        let frames = self.in_flight.range(self.unsent..).flatten();
        let may_be_written = frames.take_while(move |frame| {
            total += weight(frame.length());
            total <= WINDOW
        });
        heads.iter_mut().zip(may_be_written).zip(self.unsent..).map(|((head, frame), place)| {
            *head = frame.head(self.base.wrapping_add(place as u32), self.rnr_retry);
            (head.bytes(), frame.payload())
        })
    }

    /// The only frame that is to be written, if it is short and not begun.
    pub(super) fn only_short(&self) -> Option<(Head, &[u8])> {
        let is_only = self.offset == 0 && self.unsent + 1 == self.in_flight.len();
        let frame = self.in_flight.back().filter(|_| is_only)?.as_ref()?;
        let is_short = frame.payload().len() <= SHORT && self.wants_write();
        let sequence = self.base.wrapping_add(self.unsent as u32);
        is_short.then(|| (frame.head(sequence, self.rnr_retry), frame.payload()))
    }

    /// Bytes of the next frame that were written before.
    pub(super) fn begun(&self) -> usize {
        self.offset
    }

    /// Bytes that are missing of a frame that was begun.
    pub(super) fn rest_of_begun(&self) -> usize {
        let begun = self.in_flight.get(self.unsent).and_then(Option::as_ref);
        let begun = begun.filter(|_| self.offset > 0);
        begun.map_or(0, |frame| HEADER + frame.length() - self.offset)
    }

    /// Notes that the socket has taken bytes of frames.
    pub(super) fn wrote(&mut self, count: usize) {
        self.offset += count;
        while let Some(Some(frame)) = self.in_flight.get(self.unsent)
            && let length = frame.length()
            && self.offset >= HEADER + length
        {
            self.offset -= HEADER + length;
            self.unsent += 1;
            self.weight += weight(length);
        }
    }

    /// The data of a read follows: it must have the requested length.
    pub(super) fn expect(&mut self, sequence: u32, count: u16) -> Result<(), Violation> {
        let wrong = Violation::Response { first: sequence, count: 1 };
        let place = self.place_of(sequence).ok_or(wrong)?;
        let Some(Some(Frame::Piece(operation, Piece { wanted: Some((offset, length)), .. }))) =
            self.in_flight.get(place)
        else {
            return Err(wrong);
        };
        if *length != usize::from(count) {
            return Err(wrong);
        }
        let (operation, offset, left) = (*operation, *offset, *length);
        self.arriving = Some(Arriving { sequence, operation, offset, left });
        Ok(())
    }

    /// Whether the data of a read is next.
    pub(super) fn awaits_data(&self) -> bool {
        self.arriving.is_some()
    }

    /// Takes the data of a read, if that is next. Returns the number of bytes that were that.
    pub(super) fn take_data(&mut self, bytes: &[u8], mut finish: impl FnMut(Finished)) -> usize {
        let Some(mut arriving) = self.arriving.take() else { return 0 };
        let data = &bytes[..arriving.left.min(bytes.len())];
        if let Some(operation) = self.operations.get_mut(arriving.operation) {
            operation.take(arriving.offset, data);
        }
        arriving.offset += data.len();
        arriving.left -= data.len();
        if arriving.left > 0 {
            self.arriving = Some(arriving);
        } else {
            self.finish_frames(std::iter::once(arriving.sequence), Ok(()), &mut finish);
        }
        data.len()
    }

    /// Ends frames as the receiver says.
    pub(super) fn settle(
        &mut self,
        first: u32,
        count: u16,
        result: Result<(), Status>,
        mut finish: impl FnMut(Finished),
    ) -> Result<(), Violation> {
        let named = (0..u32::from(count)).map(|n| first.wrapping_add(n));
        let may_end = |sequence| {
            // The response to a successful read is its data.
            let place = self.place_of(sequence);
            place.is_some_and(|place| result.is_err() || !self.is_read(place))
        };
        // Empty ones are wrong too, as there could be any number of them.
        if count == 0 || !named.clone().all(may_end) {
            return Err(Violation::Response { first, count });
        }
        self.finish_frames(named, result, &mut finish);
        Ok(())
    }

    /// The place of a frame that was written and has no response.
    fn place_of(&self, sequence: u32) -> Option<usize> {
        let place = sequence.wrapping_sub(self.base) as usize;
        let frame = self.in_flight.get(place).filter(|_| place < self.unsent)?;
        frame.as_ref().map(|_| place)
    }

    fn is_read(&self, place: usize) -> bool {
        self.in_flight.get(place).and_then(Option::as_ref).is_some_and(Frame::is_read)
    }

    /// Completes frames.
    fn finish_frames(
        &mut self,
        named: impl Iterator<Item = u32>,
        result: Result<(), Status>,
        finish: &mut impl FnMut(Finished),
    ) {
        self.turned_away = None;
        self.has_response = true;
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
        self.weight -= weight(frame.length());
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

    /// Notes that a receiver has no room. Returns when to try again over another connection. What waits until then fails
    /// if the retries for a receiver that is not ready are over, `rnr_delay` each.
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
        self.in_flight.retain(Option::is_some);
        (self.base, self.unsent, self.offset, self.weight) = (0, 0, 0, 0);
        self.arriving = None;
        let patience = rnr_delay.saturating_mul(self.rnr_retry.into());
        if self.rnr_retry < RNR_RETRY_INFINITE && now - since >= patience {
            self.fail(Status::ReceiverNotReady, finish);
        }
        // Senders that were turned away together don't come back together.
        now + wait / 2 + (wait / 2).mul_f64(fastrand::f64())
    }

    /// Notes that this side lacks something to connect. Returns when to try again. What waits until then doesn't fail: the
    /// retries for the receiver count from its next answer.
    pub(super) fn postpone(&mut self, now: Time) -> Time {
        self.turned_away = None;
        now + LONGEST_WAIT
    }

    /// Looks whether responses come. Returns how long there has been none, as far as looks have shown.
    pub(super) fn unanswered(&mut self, now: Time) -> Duration {
        if std::mem::take(&mut self.has_response) {
            self.unanswered_since = None;
        }
        if self.is_idle() {
            self.unanswered_since = None;
            return Duration::ZERO;
        }
        now - *self.unanswered_since.get_or_insert(now)
    }

    /// Completes the datagrams of which nothing was written as if the receiver were not ready, unless retries are without end.
    pub(super) fn take_back(&mut self, mut finish: impl FnMut(Finished)) {
        if self.rnr_retry >= RNR_RETRY_INFINITE {
            return;
        }
        let first = self.unsent + usize::from(self.offset > 0);
        for frame in self.in_flight.split_off(first) {
            match frame {
                Some(Frame::Datagram(posted)) => {
                    self.outstanding -= 1;
                    finish(Finished::Send(posted, Err(Status::ReceiverNotReady)));
                }
                piece => self.in_flight.push_back(piece),
            }
        }
    }

    /// Completes all sends and operations without response.
    pub(super) fn fail(&mut self, status: Status, mut finish: impl FnMut(Finished)) {
        (self.outstanding, self.unsent, self.offset, self.weight, self.pieces) = (0, 0, 0, 0, 0);
        self.arriving = None;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Step;

    fn posted(length: usize) -> Posted {
        let packet = vec![0; length].into();
        Posted { id: WorkId(1), packet, length, immediate: None, qkey: Qkey(0) }
    }

    /// The lengths of the frames that may be written now.
    fn lengths(outgoing: &Outgoing) -> Vec<usize> {
        let mut heads = [Head::NONE; FRAMES];
        outgoing.frames(&mut heads).map(|(head, payload)| head.len() + payload.len()).collect()
    }

    #[test]
    fn frame_that_was_written_in_part_is_completed_or_written_again_on_another_connection() {
        let mut outgoing = Outgoing::default();
        outgoing.push(posted(100));
        outgoing.push(posted(200));
        assert_eq!(lengths(&outgoing), [116, 216]);
        outgoing.wrote(116 + 50);
        assert_eq!(
            (lengths(&outgoing), outgoing.begun(), outgoing.rest_of_begun()),
            (vec![216], 50, 166)
        );
        assert!(outgoing.only_short().is_none(), "it is begun");
        outgoing.turn_away(Time::ZERO, Duration::ZERO, |_| {});
        assert_eq!(
            (lengths(&outgoing), outgoing.begun(), outgoing.rest_of_begun()),
            (vec![], 0, 0)
        );
        let mut outgoing = Outgoing { rnr_retry: RNR_RETRY_INFINITE, ..Outgoing::default() };
        outgoing.push(posted(100));
        outgoing.push(posted(200));
        outgoing.wrote(116 + 50);
        outgoing.turn_away(Time::ZERO, Duration::ZERO, |_| {});
        assert_eq!((lengths(&outgoing), outgoing.begun()), (vec![116, 216], 0));
    }

    #[test]
    fn datagrams_are_taken_back_only_if_nothing_of_them_was_written() {
        let mut outgoing = Outgoing::default();
        (0..5).for_each(|n| outgoing.push(posted(100 + n)));
        outgoing.wrote(116 + 50);
        let step = Step::Read { address: 0, count: 1 };
        let piece = Piece { step, key: 0, wanted: Some((0, 1)), bytes: [].into() };
        outgoing.push_frame(Frame::Piece(0, piece));
        let mut back = Vec::new();
        outgoing.take_back(|finished| match finished {
            Finished::Send(posted, result) => back.push((posted.length, result)),
            other => panic!("{other:?}"),
        });
        let not_ready = Err(Status::ReceiverNotReady);
        assert_eq!(back, [(102, not_ready), (103, not_ready), (104, not_ready)]);
        assert_eq!((outgoing.in_flight.len(), outgoing.rest_of_begun()), (3, 67));
        outgoing.settle(0, 1, Ok(()), |_| {}).unwrap();
        outgoing.wrote(67);
        outgoing.push(posted(1));
        outgoing.rnr_retry = RNR_RETRY_INFINITE;
        outgoing.take_back(|finished| panic!("{finished:?}"));
        let mut heads = [Head::NONE; FRAMES];
        let numbers = outgoing.frames(&mut heads).map(|(head, _)| head[8..12].to_vec());
        assert_eq!(numbers.collect::<Vec<_>>(), [2u32, 3].map(|number| number.to_le_bytes()));
    }

    #[test]
    fn frames_are_written_up_to_the_window_and_again_as_responses_come() {
        let mut outgoing = Outgoing::default();
        let most = WINDOW / weight(1 << 15);
        for _ in 0..most + 3 {
            outgoing.push(posted(1 << 15));
        }
        assert_eq!(lengths(&outgoing).len(), most);
        outgoing.wrote(most * (HEADER + (1 << 15)));
        assert!(lengths(&outgoing).is_empty() && !outgoing.wants_write());
        // A shorter one doesn't overtake.
        outgoing.push(posted(1));
        assert!(!outgoing.wants_write());
        outgoing.settle(1, 2, Ok(()), |_| {}).unwrap();
        assert_eq!(lengths(&outgoing).len(), 2);
        let wrong = Violation::Response { first: 1, count: 1 };
        assert_eq!(outgoing.settle(1, 1, Ok(()), |_| {}), Err(wrong), "it has its response");
        let unwritten = most as u32;
        let wrong = Violation::Response { first: unwritten, count: 1 };
        assert_eq!(outgoing.settle(unwritten, 1, Ok(()), |_| {}), Err(wrong));
    }
}
