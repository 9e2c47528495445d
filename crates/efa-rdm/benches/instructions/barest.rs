//! The least that the work of an engine takes over the same seam and with the same packets: programs for one peer, one
//! message at a time and packets in order. They check nothing, count nothing, and end at the first surprise. What the
//! engine takes beyond that is for many peers, any order, hostile bytes, failures and statistics.

use std::collections::VecDeque;

use efa_device::{Completion as Done, Destination, QueuePair, SendRequest, Time, WorkId};
use efa_proto::{Connid, CtsData, EagerConnid, MediumConnid, MsgId, OpId};

use crate::null::{self, Direct, Order, Packet};

/// A side: its queue pair, and packets to send.
pub(crate) struct Side<Q> {
    pub(crate) queue_pair: Q,
    pub(crate) free: Vec<Packet>,
}

impl<Q: QueuePair<Packet = Packet>> Side<Q> {
    /// With so many packets to send, and as many posted.
    pub(crate) fn new(mut queue_pair: Q, packets: usize) -> Self {
        for _ in 0..packets {
            let packet = queue_pair.allocate_packet().unwrap();
            queue_pair.post_receive(packet).unwrap();
        }
        let free = (0..packets).map(|_| queue_pair.allocate_packet().unwrap()).collect();
        Self { queue_pair, free }
    }

    #[inline(always)]
    pub(crate) fn post(&mut self, packet: Packet, length: usize) {
        let (id, destination) = (WorkId(0), Destination::default());
        let request = SendRequest { id, packet, length, destination, immediate: None };
        self.queue_pair.post_send(request).unwrap();
    }

    /// Takes back packets that were delivered; nothing else is under way.
    #[inline(always)]
    pub(crate) fn take_back(&mut self) {
        while let Some(done) = self.queue_pair.poll(Time::ZERO) {
            let packet = match done {
                Done::Send { packet, .. } => packet,
                other => unexpected(other),
            };
            self.free.push(packet);
        }
    }
}

/// Ends the bench: the device has a completion that isn't expected. It isn't dropped, as the code for that takes the others
/// more instructions.
#[cold]
fn unexpected<P: std::fmt::Debug>(done: Done<P>) -> ! {
    let text = format!("{done:?}");
    std::mem::forget(done);
    panic!("not expected: {text}")
}

/// A receive that waits.
struct Posted {
    tag: u64,
    buffer: Vec<u8>,
}

pub(crate) struct Barest {
    sender: Side<Direct>,
    receiver: Side<Direct>,
    posted: VecDeque<Posted>,
    /// Buffers of sends under way, in order.
    sending: VecDeque<Vec<u8>>,
    sent: u32,
    received: u32,
    /// Bytes of the message of many packets that have been sent, and that have arrived.
    progress: [u64; 2],
}

/// A packet of a message of many: its place in the message is in its header.
pub(crate) trait Segment {
    /// Writes the header; returns its length.
    fn emit(place: Place, bytes: &mut [u8]) -> usize;
    /// Number of the message, offset and payload.
    fn peek(bytes: &[u8]) -> (u32, u64, &[u8]);
}

/// What a header may say of its packet.
pub(crate) struct Place {
    message: u32,
    offset: u64,
    length: u64,
    msg_length: u64,
}

/// Of a medium message.
pub(crate) struct Medium;

impl Segment for Medium {
    #[inline(always)]
    fn emit(Place { message, offset, msg_length, .. }: Place, bytes: &mut [u8]) -> usize {
        let (msg_id, seg_offset, connid) = (MsgId(message), offset, CONNID);
        let header =
            MediumConnid { msg_id, tag: None, msg_length, seg_offset, connid, payload: &[] };
        header.emit(bytes).unwrap()
    }
    #[inline(always)]
    fn peek(bytes: &[u8]) -> (u32, u64, &[u8]) {
        let medium = MediumConnid::peek(bytes).unwrap();
        (medium.msg_id.0, medium.seg_offset, medium.payload)
    }
}

/// Of a long-CTS message, for all of which there is a grant.
pub(crate) struct Granted;

impl Segment for Granted {
    #[inline(always)]
    fn emit(Place { message, offset, length, .. }: Place, bytes: &mut [u8]) -> usize {
        let (connid, recv_id) = (Some(CONNID), OpId(message));
        CtsData { connid, recv_id, seg_length: length, seg_offset: offset }.emit(bytes).unwrap()
    }
    #[inline(always)]
    fn peek(bytes: &[u8]) -> (u32, u64, &[u8]) {
        let (data, _, payload) = CtsData::peek(bytes).unwrap();
        (data.recv_id.0, data.seg_offset, payload)
    }
}

pub(crate) const CONNID: Connid = Connid(7);
/// Bytes of payload of a packet of many: what the engine has.
const SEGMENT: u64 = 8928 - 32;
const PACKETS: usize = 64;

impl Barest {
    pub(crate) fn new() -> Box<Self> {
        let [sender, receiver] =
            null::pair(Order::Sent).map(|queue_pair| Side::new(queue_pair, PACKETS));
        Box::new(Self {
            sender,
            receiver,
            posted: VecDeque::with_capacity(PACKETS),
            sending: VecDeque::with_capacity(PACKETS),
            sent: 0,
            received: 0,
            progress: [0; 2],
        })
    }
}

/// The calls that are counted, as an application makes them.
pub(crate) mod counted {
    use super::*;

    #[inline(never)]
    pub(crate) fn receive(barest: &mut Barest, tag: u64, buffer: Vec<u8>) {
        barest.posted.push_back(Posted { tag, buffer });
    }

    #[inline(never)]
    pub(crate) fn send(barest: &mut Barest, tag: u64, buffer: Vec<u8>) {
        let mut packet = barest.sender.free.pop().unwrap();
        let msg_id = MsgId(barest.sent);
        barest.sent += 1;
        let header = EagerConnid { msg_id, tag: Some(tag), connid: CONNID, payload: &[] };
        let begin = header.emit(packet.as_mut()).unwrap();
        let length = begin + buffer.len();
        packet.as_mut()[begin..length].copy_from_slice(&buffer);
        barest.sending.push_back(buffer);
        barest.sender.post(packet, length);
    }

    /// The next message that arrived.
    #[inline(never)]
    pub(crate) fn poll_receiver(barest: &mut Barest) -> Option<Vec<u8>> {
        let (packet, length) = match barest.receiver.queue_pair.poll(Time::ZERO)? {
            Done::Receive { packet, length, .. } => (packet, length),
            other => unexpected(other),
        };
        let eager = EagerConnid::peek(&packet.as_ref()[..length]).unwrap();
        assert_eq!(eager.msg_id.0, barest.received);
        barest.received += 1;
        let Posted { tag, mut buffer } = barest.posted.pop_front().unwrap();
        assert_eq!(eager.tag, Some(tag));
        buffer.get_mut(..eager.payload.len()).unwrap().copy_from_slice(eager.payload);
        barest.receiver.queue_pair.post_receive(packet).unwrap();
        Some(buffer)
    }

    /// The next message that was delivered.
    #[inline(never)]
    pub(crate) fn poll_sender(barest: &mut Barest) -> Option<Vec<u8>> {
        let Side { queue_pair, free } = &mut barest.sender;
        let packet = match queue_pair.poll(Time::ZERO)? {
            Done::Send { packet, .. } => packet,
            other => unexpected(other),
        };
        free.push(packet);
        barest.sending.pop_front()
    }

    /// Sends as many segments of a message as there are packets for.
    #[inline(never)]
    pub(crate) fn send_segments<S: Segment>(barest: &mut Barest, msg_length: u64) {
        while barest.progress[0] < msg_length
            && let Some(mut packet) = barest.sender.free.pop()
        {
            let offset = barest.progress[0];
            let length = SEGMENT.min(msg_length - offset);
            let place = Place { message: barest.sent, offset, length, msg_length };
            let begin = S::emit(place, packet.as_mut());
            barest.progress[0] += length;
            barest.sender.post(packet, begin + length as usize);
        }
    }

    /// Counts segments that arrived; whether the message is complete.
    #[inline(never)]
    pub(crate) fn poll_segments<S: Segment>(barest: &mut Barest, msg_length: u64) -> bool {
        while let Some(done) = barest.receiver.queue_pair.poll(Time::ZERO) {
            let (packet, length) = match done {
                Done::Receive { packet, length, .. } => (packet, length),
                other => unexpected(other),
            };
            let (message, offset, payload) = S::peek(&packet.as_ref()[..length]);
            assert_eq!((message, offset), (barest.received, barest.progress[1]));
            barest.progress[1] += payload.len() as u64;
            barest.receiver.queue_pair.post_receive(packet).unwrap();
        }
        barest.progress[1] == msg_length
    }

    /// Takes back packets that were delivered.
    #[inline(never)]
    pub(crate) fn poll_delivered(barest: &mut Barest) {
        barest.sender.take_back();
    }
}

impl Barest {
    /// Messages of 8 bytes, some at a time.
    pub(crate) fn messages(&mut self, count: u64, window: u64) {
        let mut buffers: Vec<_> = (0..2 * window).map(|_| vec![7; 8]).collect();
        for _ in 0..count / window {
            for tag in 0..window {
                counted::receive(self, tag, buffers.pop().unwrap());
            }
            for tag in 0..window {
                counted::send(self, tag, buffers.pop().unwrap());
            }
            while let Some(buffer) = counted::poll_receiver(self) {
                buffers.push(buffer);
            }
            while let Some(buffer) = counted::poll_sender(self) {
                buffers.push(buffer);
            }
        }
    }

    /// Messages of many packets, one after the other; returns how many packets each took.
    pub(crate) fn long_messages<S: Segment>(&mut self, count: u64, length: u64) -> u64 {
        for _ in 0..count {
            self.progress = [0; 2];
            loop {
                counted::send_segments::<S>(self, length);
                let complete = counted::poll_segments::<S>(self, length);
                counted::poll_delivered(self);
                if complete {
                    break;
                }
            }
            self.sent += 1;
            self.received += 1;
        }
        length.div_ceil(SEGMENT)
    }
}
