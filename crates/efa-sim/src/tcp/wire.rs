//! The byte format of a connection. Integers are little-endian.
//!
//! Both sides say the same kinds of things, whoever has connected:
//!
//! ```text
//!  hello      magic 4 | version 2 | qpn 2 | mtu 4 | qkey 4
//!  frame      kind 1 | rnr retry 1 | zero 2 | length 4 | sequence 4 | key 4 | bytes…
//!  response   kind 1 | status 1 | count 2 | first sequence 4 | bytes of a read…
//!  …
//! ```
//!
//! | frame | key | bytes |
//! |---|---|---|
//! | 1 datagram | of the queue pair | the datagram |
//! | 2 datagram with immediate data | of the queue pair | immediate 4, the datagram |
//! | 3 read | of the region | address 8, count 4 |
//! | 4 write | of the region | address 8, the data |
//! | 5 written | of the queue pair | immediate 4, length of the write 8 |
//!
//! A frame reads or writes at most [`CHUNK`] bytes; a longer operation is several frames, of which some are
//! in flight at a time.
//!
//! | response | meaning |
//! |---|---|
//! | 6 acknowledgement | status of `count` frames from a sequence number on |
//! | 7 close | status of all frames without response; nothing follows |
//! | 8 data | `count` bytes for the read with this sequence number |
//! | 9 try again | the connection is closed for want of room or for its slowness; frames without response were not handled, and the sender may send them over a new connection; nothing follows |
//!
//! # Frames without response
//!
//! Frames wait at the receiver while it has no buffer, and responses that come after them don't. So a receiver keeps
//! frames that wait, and the sender has at most [`WINDOW`] bytes of frames without response on the way. Each counts
//! as [`weight`] says.

use std::time::Duration;

use crate::link::Step;

use efa_device::{Qkey, Qpn, Status};

/// Largest datagram of the link in bytes.
pub(super) const MAX_MTU: usize = 1 << 16;
/// Bytes of a hello.
pub(super) const HELLO: usize = 16;
/// Bytes of a frame's header.
pub(super) const HEADER: usize = 16;
/// Most bytes between the header and the payload.
pub(super) const PREFIX: usize = 12;
/// Most bytes that a frame reads or writes.
pub(super) const CHUNK: usize = 1 << 15;
/// Bytes of the longest frame.
pub(super) const LONGEST: usize = HEADER + PREFIX + MAX_MTU;
/// Most bytes of frames without response.
pub(super) const WINDOW: usize = 1 << 18;
/// Bytes of a response without the data of a read.
pub(super) const RESPONSE: usize = 8;

/// The version of the byte format of connections. Both sides need the same.
pub const VERSION: u16 = 5;
const MAGIC: u32 = u32::from_le_bytes(*b"EfaS");
/// Kinds of responses, after those of frames.
const ACKNOWLEDGE: u8 = 6;
const CLOSE: u8 = 7;
const DATA: u8 = 8;
const TRY_AGAIN: u8 = 9;

/// What a frame with so many bytes after its header counts of the [`WINDOW`].
pub(super) fn weight(length: usize) -> usize {
    4 * HEADER + length
}

/// A protocol violation, for which a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The connection doesn't start with the magic number of the link.
    #[error("the connection starts with {found:#010x}, not {expected:#010x}")]
    Magic {
        /// Its first four bytes.
        found: u32,
        /// The magic number.
        expected: u32,
    },
    /// The other side has another version of the link's protocol.
    #[error("version {found} of the link, this is version {known}")]
    Version {
        /// Its version.
        found: u16,
        /// This side's version.
        known: u16,
    },
    /// A frame, or the MTU that was announced, is longer than allowed.
    #[error("{length} bytes announced, at most {limit} allowed")]
    Length {
        /// Its length in bytes.
        length: u32,
        /// The MTU of the sender, or the largest of the link.
        limit: u32,
    },
    /// A frame is too short for its kind.
    #[error("{length} bytes announced, at least {least} needed")]
    Short {
        /// Its length in bytes.
        length: u32,
        /// The shortest of its kind.
        least: u32,
    },
    /// An unknown kind of frame or response.
    #[error("unknown kind {found} of frame or response")]
    Kind {
        /// The kind's number.
        found: u8,
    },
    /// Frames are not numbered consecutively.
    #[error("frame has sequence number {found}, expected {expected}")]
    Sequence {
        /// The frame's number.
        found: u32,
        /// The next number.
        expected: u32,
    },
    /// An unknown status number.
    #[error("unknown status {code}")]
    Status {
        /// The number.
        code: u8,
    },
    /// A response for frames that were not sent or had their response.
    #[error("response for {count} frames from {first} on, not all of which are outstanding")]
    Response {
        /// The first of the frames.
        first: u32,
        /// How many.
        count: u16,
    },
    /// More frames without response than the sender may have on the way.
    #[error("{bytes} bytes of frames wait, at most {limit} allowed")]
    Window {
        /// The bytes of those that wait.
        bytes: usize,
        /// The most.
        limit: usize,
    },
    /// The connection ended within a hello or frame.
    #[error("the connection ended after {bytes} bytes of a hello or frame")]
    Truncated {
        /// Bytes of it that were received.
        bytes: usize,
    },
    /// A hello or a frame was late.
    #[error("a hello or frame was not complete within {limit:?}")]
    Slow {
        /// [`TcpOptions::hello_timeout`](super::TcpOptions::hello_timeout) or
        /// [`TcpOptions::frame_timeout`](super::TcpOptions::frame_timeout).
        limit: Duration,
    },
}

fn u16_at<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The first bytes of each side: it identifies itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) qpn: Qpn,
    /// Its longest datagram.
    pub(super) mtu: u32,
    /// Of the queue pair. Strangers don't know it.
    pub(super) qkey: Qkey,
}

impl Hello {
    pub(super) fn emit(self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.qpn.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.mtu.to_le_bytes());
        bytes[12..].copy_from_slice(&self.qkey.0.to_le_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8; HELLO]) -> Result<Self, Violation> {
        let (found, version) = (u32_at(bytes, 0), u16_at(bytes, 4));
        if found != MAGIC {
            return Err(Violation::Magic { found, expected: MAGIC });
        }
        if version != VERSION {
            return Err(Violation::Version { found: version, known: VERSION });
        }
        let mtu = u32_at(bytes, 8);
        let limit = MAX_MTU as u32;
        if mtu > limit {
            return Err(Violation::Length { length: mtu, limit });
        }
        Ok(Self { qpn: Qpn(u16_at(bytes, 6)), mtu, qkey: Qkey(u32_at(bytes, 12)) })
    }
}

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Datagram,
    Immediate,
    Read,
    Write,
    Written,
}

impl Kind {
    fn number(self) -> u8 {
        match self {
            Self::Datagram => 1,
            Self::Immediate => 2,
            Self::Read => 3,
            Self::Write => 4,
            Self::Written => 5,
        }
    }

    /// Bytes of the prefix, and most bytes of the payload.
    fn sizes(self, mtu: u32) -> (u32, u32) {
        match self {
            Self::Datagram => (0, mtu),
            Self::Immediate => (4, mtu),
            Self::Read | Self::Written => (PREFIX as u32, 0),
            Self::Write => (8, CHUNK as u32),
        }
    }

    fn from_number(found: u8) -> Result<Self, Violation> {
        let all = [Self::Datagram, Self::Immediate, Self::Read, Self::Write, Self::Written];
        let kind = all.into_iter().find(|kind| kind.number() == found);
        kind.ok_or(Violation::Kind { found })
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// How often the sender would try again while the receiver is not ready.
    pub(super) rnr_retry: u8,
    /// Bytes of prefix and payload.
    pub(super) length: u32,
    pub(super) sequence: u32,
    pub(super) key: u32,
}

impl Header {
    pub(super) fn emit(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        (bytes[0], bytes[1]) = (self.kind.number(), self.rnr_retry);
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[12..].copy_from_slice(&self.key.to_le_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8; HEADER], mtu: u32) -> Result<Self, Violation> {
        let kind = Kind::from_number(bytes[0])?;
        let length = u32_at(bytes, 4);
        let (least, payload) = kind.sizes(mtu);
        let limit = least + payload;
        if length > limit {
            return Err(Violation::Length { length, limit });
        }
        if length < least {
            return Err(Violation::Short { length, least });
        }
        let (sequence, key) = (u32_at(bytes, 8), u32_at(bytes, 12));
        Ok(Self { kind, rnr_retry: bytes[1], length, sequence, key })
    }
}

/// The bytes between header and payload, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefix {
    Datagram,
    Immediate(u32),
    Read { address: u64, count: u32 },
    Write { address: u64 },
    Written { immediate: u32, length: u64 },
}

impl From<Step> for Prefix {
    fn from(step: Step) -> Self {
        match step {
            Step::Read { address, count } => Self::Read { address, count },
            Step::Write { address } => Self::Write { address },
            Step::Written { immediate, length } => Self::Written { immediate, length },
        }
    }
}

impl Prefix {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Datagram => Kind::Datagram,
            Self::Immediate(_) => Kind::Immediate,
            Self::Read { .. } => Kind::Read,
            Self::Write { .. } => Kind::Write,
            Self::Written { .. } => Kind::Written,
        }
    }

    /// Its bytes, and their number.
    pub(super) fn emit(self) -> ([u8; PREFIX], usize) {
        let mut bytes = [0; PREFIX];
        let length = match self {
            Self::Datagram => 0,
            Self::Immediate(immediate) => {
                bytes[..4].copy_from_slice(&immediate.to_le_bytes());
                4
            }
            Self::Read { address, count } => {
                bytes[..8].copy_from_slice(&address.to_le_bytes());
                bytes[8..].copy_from_slice(&count.to_le_bytes());
                12
            }
            Self::Write { address } => {
                bytes[..8].copy_from_slice(&address.to_le_bytes());
                8
            }
            Self::Written { immediate, length } => {
                bytes[..4].copy_from_slice(&immediate.to_le_bytes());
                bytes[4..].copy_from_slice(&length.to_le_bytes());
                12
            }
        };
        (bytes, length)
    }

    /// Parses the bytes after a header that [`Header::parse`] accepted. Returns the payload too.
    pub(super) fn parse(kind: Kind, bytes: &[u8]) -> Result<(Self, &[u8]), Violation> {
        let (least, _) = kind.sizes(0);
        let short = Violation::Short { length: bytes.len() as u32, least };
        let (prefix, payload) = bytes.split_at_checked(least as usize).ok_or(short)?;
        let mut whole = [0; PREFIX];
        whole[..prefix.len()].copy_from_slice(prefix);
        let prefix = match kind {
            Kind::Datagram => Self::Datagram,
            Kind::Immediate => Self::Immediate(u32_at(&whole, 0)),
            Kind::Read => {
                let (count, limit) = (u32_at(&whole, 8), CHUNK as u32);
                if count > limit {
                    return Err(Violation::Length { length: count, limit });
                }
                Self::Read { address: u64_at(&whole, 0), count }
            }
            Kind::Write => Self::Write { address: u64_at(&whole, 0) },
            Kind::Written => {
                Self::Written { immediate: u32_at(&whole, 0), length: u64_at(&whole, 4) }
            }
        };
        Ok((prefix, payload))
    }
}

/// How a side answers frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Response {
    /// How `count` frames ended.
    Acknowledge { first: u32, count: u16, result: Result<(), Status> },
    /// How all others end.
    Close(Status),
    /// All others were not handled; a new connection may be accepted later.
    TryAgain,
    /// The bytes that a read asked for follow.
    Data { sequence: u32, count: u16 },
}

impl Response {
    pub(super) fn emit(self) -> [u8; RESPONSE] {
        let mut bytes = [0; RESPONSE];
        match self {
            Self::Acknowledge { first, count, result } => {
                bytes[0] = ACKNOWLEDGE;
                bytes[1] = result.err().map_or(0, Status::code);
                bytes[2..4].copy_from_slice(&count.to_le_bytes());
                bytes[4..].copy_from_slice(&first.to_le_bytes());
            }
            Self::Close(status) => {
                bytes[0] = CLOSE;
                bytes[1] = status.code();
            }
            Self::TryAgain => bytes[0] = TRY_AGAIN,
            Self::Data { sequence, count } => {
                bytes[0] = DATA;
                bytes[2..4].copy_from_slice(&count.to_le_bytes());
                bytes[4..].copy_from_slice(&sequence.to_le_bytes());
            }
        }
        bytes
    }

    /// `None` for a frame.
    pub(super) fn parse(bytes: &[u8; RESPONSE]) -> Result<Option<Self>, Violation> {
        let code = bytes[1];
        let status = || Status::from_code(code).ok_or(Violation::Status { code });
        Ok(Some(match bytes[0] {
            ACKNOWLEDGE => {
                let result = if code == 0 { Ok(()) } else { Err(status()?) };
                Self::Acknowledge { first: u32_at(bytes, 4), count: u16_at(bytes, 2), result }
            }
            CLOSE => Self::Close(status()?),
            TRY_AGAIN => Self::TryAgain,
            DATA => Self::Data { sequence: u32_at(bytes, 4), count: u16_at(bytes, 2) },
            other => return Kind::from_number(other).map(|_| None),
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_have_the_documented_layout() {
        let hello = Hello { qpn: Qpn(0x1234), mtu: 0x22e0, qkey: Qkey(0x0102_0304) };
        let emitted = *b"EfaS\x05\0\x34\x12\xe0\x22\0\0\x04\x03\x02\x01";
        assert_eq!((hello.emit(), Hello::parse(&emitted)), (emitted, Ok(hello)));
        let (kind, length) = (Kind::Datagram, 0x0102);
        let header = Header { kind, rnr_retry: 3, length, sequence: 0x0304_0506, key: 0x0708_090a };
        assert_eq!(header.emit(), *b"\x01\x03\0\0\x02\x01\0\0\x06\x05\x04\x03\x0a\x09\x08\x07");
        let prefix = |prefix: Prefix| {
            let (bytes, length) = prefix.emit();
            bytes[..length].to_vec()
        };
        assert_eq!(prefix(Prefix::Datagram), []);
        assert_eq!(prefix(Prefix::Immediate(0x0102_0304)), [4, 3, 2, 1]);
        let (address, count) = (0x0102_0304_0506_0708, 0x090a_0b0c);
        let read = [8, 7, 6, 5, 4, 3, 2, 1, 12, 11, 10, 9];
        assert_eq!(prefix(Prefix::Read { address, count }), read);
        assert_eq!(prefix(Prefix::Write { address }), read[..8]);
        let written = Prefix::Written { immediate: count, length: address };
        assert_eq!(prefix(written), [12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1]);
        let result = Err(Status::ReceiverNotReady);
        let verdict = Response::Acknowledge { first: 0x0102_0304, count: 0x0506, result };
        assert_eq!(verdict.emit(), [6, 10, 6, 5, 4, 3, 2, 1]);
        let goodbye = Response::Close(Status::BadDestinationQpn);
        assert_eq!(goodbye.emit(), [7, 9, 0, 0, 0, 0, 0, 0]);
        let data = Response::Data { sequence: 0x0102_0304, count: 0x0506 };
        assert_eq!(data.emit(), [8, 0, 6, 5, 4, 3, 2, 1]);
        assert_eq!(Response::TryAgain.emit(), [9, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn each_violation_is_detected() {
        let good = Hello { qpn: Qpn(1), mtu: 65536, qkey: Qkey(0) }.emit();
        assert!(Hello::parse(&good).is_ok());
        let mut other = good;
        other[..4].copy_from_slice(b"GET ");
        let expected = MAGIC;
        let found = u32::from_le_bytes(*b"GET ");
        assert_eq!(Hello::parse(&other), Err(Violation::Magic { found, expected }));
        other = good;
        other[4] = 1;
        assert_eq!(Hello::parse(&other), Err(Violation::Version { found: 1, known: 5 }));
        other = good;
        other[8] = 1;
        let long = Violation::Length { length: 65537, limit: 65536 };
        assert_eq!(Hello::parse(&other), Err(long));
        let parse = |bytes| Response::parse(&bytes);
        assert_eq!(parse([6, 16, 0, 0, 0, 0, 0, 0]), Err(Violation::Status { code: 16 }));
        assert_eq!(parse([7, 0, 0, 0, 0, 0, 0, 0]), Err(Violation::Status { code: 0 }));
        assert_eq!(parse([5, 0, 0, 0, 0, 0, 0, 0]), Ok(None));
        assert_eq!(parse([10, 0, 0, 0, 0, 0, 0, 0]), Err(Violation::Kind { found: 10 }));
        let unknown = [10; HEADER];
        assert_eq!(Header::parse(&unknown, 100), Err(Violation::Kind { found: 10 }));
        // The shortest and the longest of each kind, and one beyond.
        for (kind, least, limit) in
            [(1, 0, 100), (2, 4, 104), (3, 12, 12), (4, 8, 8 + CHUNK as u32), (5, 12, 12)]
        {
            let parse = |length: u32| {
                let mut bytes = [0; HEADER];
                bytes[0] = kind;
                bytes[4..8].copy_from_slice(&length.to_le_bytes());
                Header::parse(&bytes, 100).map(|header| header.length)
            };
            assert_eq!((parse(least), parse(limit)), (Ok(least), Ok(limit)));
            let length = limit + 1;
            assert_eq!(parse(length), Err(Violation::Length { length, limit }));
            if let Some(length) = least.checked_sub(1) {
                assert_eq!(parse(length), Err(Violation::Short { length, least }));
            }
        }
        let (greedy, _) = Prefix::Read { address: 0, count: CHUNK as u32 + 1 }.emit();
        assert!(matches!(Prefix::parse(Kind::Read, &greedy), Err(Violation::Length { .. })));
        let short = Violation::Short { length: 11, least: 12 };
        assert_eq!(Prefix::parse(Kind::Written, &greedy[..11]), Err(short));
    }

    proptest! {
        #[test]
        fn parsed_headers_are_emitted_identically(bytes in any::<[u8; 16]>(), small in any::<u8>(), mtu in 0..=MAX_MTU as u32) {
            let mut near = bytes;
            near[0] = small % 11;
            for kind in [Kind::Datagram, Kind::Immediate, Kind::Read, Kind::Write, Kind::Written] {
                if let Ok((prefix, payload)) = Prefix::parse(kind, &bytes) {
                    let (written, length) = prefix.emit();
                    prop_assert_eq!(&[&written[..length], payload].concat(), &bytes);
                    prop_assert_eq!(prefix.kind(), kind);
                }
            }
            for bytes in [bytes, near] {
                if let Ok(header) = Header::parse(&bytes, mtu) {
                    prop_assert!(header.length <= mtu.max(CHUNK as u32) + PREFIX as u32);
                    prop_assert_eq!(Header::parse(&header.emit(), mtu), Ok(header));
                }
                let [a, b, c, d, e, f, g, h, ..] = bytes;
                if let Ok(Some(response)) = Response::parse(&[a, b % 18, c, d, e, f, g, h]) {
                    prop_assert_eq!(Response::parse(&response.emit()), Ok(Some(response)));
                    prop_assert_eq!(Header::parse(&bytes, mtu), Err(Violation::Kind { found: a }));
                }
            }
        }
    }
}
