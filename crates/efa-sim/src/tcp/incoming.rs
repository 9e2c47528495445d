//! Receiving from one other queue pair: frames that have arrived, and the pending responses.
//!
//! ```text
//!  the connection's buffer ─► arrived: frame, frame, frame
//!                        │ a buffer is posted: copy it there
//!                        │ RNR timeout, wrong key, buffer too short: fail it
//!                        │ a read or write: at once, if the region allows it
//!                        │ otherwise: keep it
//!                        ▼
//!                     responses, merged, and data of reads ─► socket
//! ```
//!
//! Datagrams that wait for a buffer hold up neither reads and writes nor what else comes on the connection.
//!
//! Nothing is dealt with while the sender doesn't take its responses, and the frames that wait are at most a
//! [window](WINDOW) full. So what a sender can make this side keep is bounded.

use std::collections::VecDeque;

use efa_device::{Gid, Region as _, RegionRange, RemoteMemory, Status, Time};
use fastrand::Rng;

use super::wire::{CHUNK, HEADER, Header, Prefix, RESPONSE, Response, Violation, WINDOW, weight};
use crate::book::Book;
use crate::keys::Use;
use crate::link::{Delivered, ReceiveQueue};
use crate::record::QueuePairId;
use crate::region::SoftRegion;

/// Unwritten bytes of responses at which no more frames are handled.
const MANY_RESPONSES: usize = 8 * (CHUNK + RESPONSE);
/// Bytes of a few acknowledgements; only the shortest reads have as little data.
pub(super) const FEW_RESPONSES: usize = 4 * RESPONSE;

/// Where the payload of a frame is.
#[derive(Debug)]
enum Payload {
    /// In the buffer of the connection, from here on.
    At(usize),
    Kept(Box<[u8]>),
}

/// A frame that has arrived.
#[derive(Debug)]
struct Arrived {
    prefix: Prefix,
    payload: Payload,
    /// Bytes of the payload.
    length: usize,
    weight: usize,
    sequence: u32,
    key: u32,
    rnr_retry: u8,
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

    fn payload<'a>(&'a self, buffer: &'a [u8]) -> &'a [u8] {
        match &self.payload {
            Payload::At(at) => &buffer[*at..][..self.length],
            Payload::Kept(bytes) => bytes,
        }
    }
}

/// Where a sender's packets go.
pub(super) struct Target<'a> {
    pub(super) queue: ReceiveQueue<'a>,
    /// Interfaces that may read and write memory.
    pub(super) book: &'a Book,
    /// Draws which of the packets that have arrived is next.
    pub(super) reorder: Option<&'a mut Rng>,
}

impl Target<'_> {
    /// Checks that this device has an address handle for a requester.
    fn check_known(&self, requester: Gid) -> Result<(), Status> {
        if self.book.knows(requester) { Ok(()) } else { Err(Status::UnknownPeer) }
    }
}

/// Responses on their way to the sender.
#[derive(Debug, Default)]
pub(super) struct Responses {
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
        if self.bytes.len() < self.end + length && self.written > 0 {
            self.bytes.copy_within(self.written..self.end, 0);
            (self.written, self.end) = (0, self.end - self.written);
        }
        let end = self.end + length;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[self.end..end]
    }

    /// The bytes that are to be written. Acknowledgements that could still be merged are among them after
    /// [`end_run`](Self::end_run).
    pub(super) fn unwritten(&self) -> &[u8] {
        &self.bytes[self.written..self.end]
    }

    /// Notes that the socket has taken bytes.
    pub(super) fn wrote(&mut self, count: usize) {
        self.written += count;
        if self.written == self.end {
            (self.written, self.end) = (0, 0);
        }
    }

    pub(super) fn end_run(&mut self) {
        if let Some((first, count, result)) = self.run.take() {
            self.push(Response::Acknowledge { first, count, result });
        }
    }

    pub(super) fn push(&mut self, response: Response) {
        let bytes = response.emit();
        self.room(bytes.len()).copy_from_slice(&bytes);
        self.end += bytes.len();
    }

    /// Forgets those that were not written: nobody waits for them any more.
    pub(super) fn clear(&mut self) {
        (self.written, self.end, self.run) = (0, 0, None);
    }

    /// Frees its memory if there are none.
    pub(super) fn free_memory(&mut self) {
        if self.is_empty() {
            self.bytes = Vec::new();
        }
    }

    /// Whether they must be written before more frames are handled.
    pub(super) fn is_full(&self) -> bool {
        self.end - self.written >= MANY_RESPONSES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.run.is_none() && self.end == 0
    }
}

/// Puts a datagram into the next posted buffer.
fn deliver(
    target: &mut Target<'_>,
    key: u32,
    payload: &[u8],
    immediate: Option<u32>,
    receive: &mut impl FnMut(Delivered),
) -> Result<(), Status> {
    if key != target.queue.qkey.0 {
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

/// What one other queue pair sends.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    arrived: VecDeque<Arrived>,
    /// What they count.
    weight: usize,
    next_sequence: u32,
    pub(super) responses: Responses,
    /// When a frame last arrived that presented a valid key.
    delivered: Option<Time>,
}

impl Incoming {
    /// Whether frames wait.
    pub(super) fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Whether frames wait, or responses to them.
    pub(super) fn is_occupied(&self) -> bool {
        self.has_arrived() || !self.responses.is_empty()
    }

    pub(super) fn delivered(&self) -> Option<Time> {
        self.delivered
    }

    pub(super) fn next_sequence(&self) -> u32 {
        self.next_sequence
    }

    /// Takes the frame with which `bytes` begin, which are in the connection's buffer from `at` on. Returns its length;
    /// `None` if it is incomplete.
    pub(super) fn arrive(
        &mut self,
        bytes: &[u8],
        at: usize,
        mtu: u32,
        since: Time,
    ) -> Result<Option<usize>, Violation> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
        let Header { kind, rnr_retry, length, sequence, key } = Header::parse(header, mtu)?;
        let expected = self.next_sequence;
        if sequence != expected {
            return Err(Violation::Sequence { found: sequence, expected });
        }
        let Some(rest) = rest.get(..length as usize) else { return Ok(None) };
        let (prefix, payload) = Prefix::parse(kind, rest)?;
        let weight = weight(rest.len());
        let (bytes, limit) = (self.weight + weight, WINDOW);
        if bytes > limit {
            return Err(Violation::Window { bytes, limit });
        }
        self.weight = bytes;
        self.next_sequence = expected.wrapping_add(1);
        let (end, length) = (HEADER + rest.len(), payload.len());
        let payload = Payload::At(at + end - length);
        self.arrived.push_back(Arrived {
            prefix,
            payload,
            length,
            weight,
            sequence,
            key,
            rnr_retry,
            since,
        });
        Ok(Some(end))
    }

    /// Handles what has arrived as far as that can be, and passes each packet to `receive`.
    pub(super) fn deliver(
        &mut self,
        sender: QueuePairId,
        buffer: &[u8],
        target: &mut Target<'_>,
        mut receive: impl FnMut(Delivered),
    ) {
        while !self.responses.is_full() {
            let Some(index) = self.next_index(target) else {
                self.wait(target);
                break;
            };
            let Some(arrived) = self.arrived.remove(index) else { break };
            self.weight -= arrived.weight;
            let sequence = arrived.sequence;
            let result = match arrived.prefix {
                Prefix::Read { address, count } => {
                    let memory = RemoteMemory { address, key: arrived.key };
                    let known = target.check_known(sender.gid);
                    let part = known.and_then(|()| {
                        target.queue.keys.part(memory, count as usize, Use::RemoteRead)
                    });
                    match part.and_then(|part| self.responses.add_data(sequence, &part)) {
                        // The data is the response.
                        Ok(()) => {
                            self.delivered = Some(target.queue.now);
                            continue;
                        }
                        Err(status) => Err(status),
                    }
                }
                Prefix::Datagram => {
                    deliver(target, arrived.key, arrived.payload(buffer), None, &mut receive)
                }
                Prefix::Immediate(immediate) => {
                    let payload = arrived.payload(buffer);
                    deliver(target, arrived.key, payload, Some(immediate), &mut receive)
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
                Prefix::Write { address } => {
                    let memory = RemoteMemory { address, key: arrived.key };
                    let payload = arrived.payload(buffer);
                    let known = target.check_known(sender.gid);
                    known.and_then(|()| target.queue.keys.write_remotely(memory, payload))
                }
            };
            if result.is_ok() {
                self.delivered = Some(target.queue.now);
            }
            self.responses.add(sequence, result);
        }
        self.keep(buffer);
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
        while let Some(&Arrived { sequence, since, rnr_retry, weight, .. }) = self.arrived.front()
            && target.queue.rnr_expired(rnr_retry, since)
        {
            self.arrived.pop_front();
            self.weight -= weight;
            self.responses.add(sequence, Err(Status::ReceiverNotReady));
        }
    }

    /// Copies the frames that wait, as the buffer is used again.
    pub(super) fn keep(&mut self, buffer: &[u8]) {
        // Those that were kept before are in front.
        for arrived in self.arrived.iter_mut().rev() {
            let Payload::At(at) = arrived.payload else { break };
            arrived.payload = Payload::Kept(buffer[at..][..arrived.length].into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_that_are_never_all_written_take_bounded_memory() {
        let mut responses = Responses::default();
        for n in 0..10_000_u16 {
            while !responses.is_full() {
                responses.push(Response::Data { sequence: n.into(), count: n });
            }
            responses.wrote(5 * RESPONSE);
            let first = u32::from_le_bytes(responses.unwritten()[4..8].try_into().unwrap());
            assert!(first <= n.into());
        }
        assert!(responses.bytes.len() <= 2 * MANY_RESPONSES, "{} bytes", responses.bytes.len());
    }
}
