//! The packets of a reliable connection (RC): sends and RDMA reads, in order.
//!
//! ```text
//!   SEND        Only │ First Middle* Last      a message in packets of the MTU
//!   READ        request ──►   ◄── response in packets of the MTU, or refused
//! ```
//!
//! An [`RcEnd`] is an end without tag matching: it sends, reads, and serves reads from registered
//! [`Memory`]. It doesn't parse messages.

use std::collections::{HashMap, VecDeque};

use thiserror::Error;

/// A packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// Part of a message.
    Send(Position, Vec<u8>),
    /// Requests memory of the other end.
    ReadRequest {
        /// The requester's id of the read.
        read: u32,
        /// Where.
        va: u64,
        /// The key of the region.
        rkey: u32,
        /// Bytes.
        len: u32,
    },
    /// Part of the requested bytes, in order.
    ReadResponse {
        /// As in the request.
        read: u32,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The request was for memory that isn't registered.
    ReadRefused {
        /// As in the request.
        read: u32,
    },
}

/// The position of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The only packet.
    Only,
    /// The first packet.
    First,
    /// Neither the first nor the last packet.
    Middle,
    /// The last packet.
    Last,
}

impl Position {
    /// Whether a message begins with it.
    #[must_use]
    pub fn begins(self) -> bool {
        matches!(self, Self::Only | Self::First)
    }

    /// Whether a message ends with it.
    #[must_use]
    pub fn ends(self) -> bool {
        matches!(self, Self::Only | Self::Last)
    }
}

/// Splits a message into packets of the MTU.
pub(crate) fn segments(message: &[u8], mtu: usize) -> impl Iterator<Item = Packet> {
    let count = message.len().div_ceil(mtu).max(1);
    (0..count).map(move |n| {
        let position = match (n == 0, n + 1 == count) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, false) => Position::Middle,
            (false, true) => Position::Last,
        };
        let end = message.len().min((n + 1) * mtu);
        Packet::Send(position, message[n * mtu..end].to_vec())
    })
}

/// Registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its address.
    pub va: u64,
    /// Its key.
    pub rkey: u32,
    /// Its length in bytes.
    pub len: u64,
}

/// An event at an end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RcEvent {
    /// A message arrived.
    Message(Vec<u8>),
    /// A read completed.
    Read {
        /// What [`RcEnd::post_read`] returned.
        read: u32,
        /// The bytes, unless the other end refused the read.
        result: Result<Vec<u8>, ReadRefused>,
    },
}

/// The requested memory is not registered at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the other end refused to let its memory be read")]
pub struct ReadRefused;

/// Distance of the virtual addresses of two regions.
const REGION_DISTANCE: u64 = 1 << 40;

/// Registered memory that other ends may read.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    last_key: u32,
    /// Address and bytes, by key.
    regions: HashMap<u32, (u64, Vec<u8>)>,
}

impl Memory {
    /// Registers memory.
    pub fn register(&mut self, bytes: Vec<u8>) -> Region {
        self.last_key += 1;
        let rkey = self.last_key;
        let (va, len) = (u64::from(rkey) * REGION_DISTANCE, bytes.len() as u64);
        self.regions.insert(rkey, (va, bytes));
        Region { va, rkey, len }
    }

    /// Deregisters and returns the memory of a key.
    pub fn deregister(&mut self, rkey: u32) -> Option<Vec<u8>> {
        self.regions.remove(&rkey).map(|(_, bytes)| bytes)
    }

    /// The bytes from `va` on, if all of them are registered.
    #[must_use]
    pub fn get(&self, va: u64, rkey: u32, len: u32) -> Option<&[u8]> {
        let (start, bytes) = self.regions.get(&rkey)?;
        let from = usize::try_from(va.checked_sub(*start)?).ok()?;
        bytes.get(from..from.checked_add(len as usize)?)
    }
}

/// An end of a connection that has no tag matching.
#[derive(Clone, Debug)]
pub struct RcEnd {
    mtu: usize,
    transmit: VecDeque<Packet>,
    assembling: Vec<u8>,
    next_read: u32,
    /// Bytes requested and received.
    reads: HashMap<u32, (u32, Vec<u8>)>,
    events: VecDeque<RcEvent>,
}

impl RcEnd {
    /// An end with packets of at most `mtu` bytes.
    #[must_use]
    pub fn new(mtu: usize) -> Self {
        assert!(mtu > 0, "a packet holds at least one byte");
        Self {
            mtu,
            transmit: VecDeque::new(),
            assembling: Vec::new(),
            next_read: 0,
            reads: HashMap::new(),
            events: VecDeque::new(),
        }
    }

    /// Sends a message.
    pub fn post_send(&mut self, message: &[u8]) {
        self.transmit.extend(segments(message, self.mtu));
    }

    /// Reads memory of the other end; [`RcEvent::Read`] has the result.
    pub fn post_read(&mut self, va: u64, rkey: u32, len: u32) -> u32 {
        let read = self.next_read;
        self.next_read = read.wrapping_add(1);
        self.reads.insert(read, (len, Vec::new()));
        self.transmit.push_back(Packet::ReadRequest { read, va, rkey, len });
        read
    }

    /// Handles a packet of the other end, which may read this memory. An unexpected packet is dropped.
    pub fn receive(&mut self, packet: Packet, memory: &Memory) {
        match packet {
            Packet::Send(position, bytes) => {
                if position.begins() {
                    self.assembling.clear();
                }
                self.assembling.extend(bytes);
                if position.ends() {
                    self.events.push_back(RcEvent::Message(std::mem::take(&mut self.assembling)));
                }
            }
            Packet::ReadRequest { read, va, rkey, len } => {
                let mtu = self.mtu;
                let answers: Vec<Packet> = match memory.get(va, rkey, len) {
                    None => vec![Packet::ReadRefused { read }],
                    Some([]) => vec![Packet::ReadResponse { read, bytes: Vec::new() }],
                    Some(bytes) => bytes
                        .chunks(mtu)
                        .map(|piece| Packet::ReadResponse { read, bytes: piece.to_vec() })
                        .collect(),
                };
                self.transmit.extend(answers);
            }
            Packet::ReadResponse { read, bytes } => {
                let Some((len, received)) = self.reads.get_mut(&read) else { return };
                received.extend(bytes);
                if received.len() >= *len as usize {
                    let result = Ok(std::mem::take(received));
                    self.reads.remove(&read);
                    self.events.push_back(RcEvent::Read { read, result });
                }
            }
            Packet::ReadRefused { read } => {
                if self.reads.remove(&read).is_some() {
                    self.events.push_back(RcEvent::Read { read, result: Err(ReadRefused) });
                }
            }
        }
    }

    /// The next packet for the other end.
    pub fn poll_transmit(&mut self) -> Option<Packet> {
        self.transmit.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<RcEvent> {
        self.events.pop_front()
    }
}
