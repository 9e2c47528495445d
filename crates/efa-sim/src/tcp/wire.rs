//! The byte format of a connection. Integers are little-endian.
//!
//! ```text
//!  sender ─► receiver                            receiver ─► sender
//!  hello    magic 4 | version 2 | qpn 2 |        welcome  magic 4 | version 2 | zero 2
//!           mtu 4 | rnr retry 1 | zero 3 |
//!           token 8
//!  frame    kind 1 | zero 3 | length 4 |         response kind 1 | status 1 | count 2 |
//!           sequence 4 | key 4 | bytes…                   first sequence 4 | bytes of a read…
//!  frame    …                                    response … the last may be a close
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
//! Between frames a sender can name packets of the other direction that it has received:
//!
//! ```text
//!  early    kind (6) 1 | zero 1 | count 2 | first sequence 4 | token 8
//! ```
//!
//! It says that these `count` frames, 64 at most, of the connection whose hello has this token ended well. That
//! connection has a response for each of them too, which may come later. A token of no open connection to this sender is
//! ignored, and so are frames that have ended.
//!
//! | response | meaning |
//! |---|---|
//! | 1 acknowledgement | status of `count` frames from a sequence number on |
//! | 2 close | status of all frames without response; nothing follows |
//! | 3 data | `count` bytes for the read with this sequence number |
//! | 4 try again | the connection is closed for want of room or for its slowness; frames without response were not handled, and the sender may send them over a new connection; nothing follows |

use std::time::Duration;

use crate::link::Step;

use efa_device::{Qpn, Status};

/// Largest datagram of the link in bytes.
pub(super) const MAX_MTU: usize = 1 << 16;
/// Bytes of a hello.
pub(super) const HELLO: usize = 24;
/// Bytes of a frame's header.
pub(super) const HEADER: usize = 16;
/// Most bytes between the header and the payload.
pub(super) const PREFIX: usize = 12;
/// Most bytes that a frame reads or writes.
pub(super) const CHUNK: usize = 1 << 15;
/// Bytes of the longest frame.
pub(super) const LONGEST: usize = HEADER + PREFIX + MAX_MTU;
/// Bytes of an early acknowledgement.
pub(super) const EARLY: usize = 16;
/// Most frames that an early acknowledgement names.
pub(super) const MOST_EARLY: u16 = 64;
/// Bytes of a welcome, and of a response without the data of a read.
pub(super) const RESPONSE: usize = 8;

/// The version of the byte format of connections. Both sides need the same.
pub const VERSION: u16 = 4;
const HELLO_MAGIC: u32 = u32::from_le_bytes(*b"EfaS");
const WELCOME_MAGIC: u32 = u32::from_le_bytes(*b"EfaR");
/// The kind of an early acknowledgement, after those of frames.
const EARLY_KIND: u8 = 6;
const ACKNOWLEDGE: u8 = 1;
const CLOSE: u8 = 2;
const DATA: u8 = 3;
const TRY_AGAIN: u8 = 4;

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
    /// An early acknowledgement names no frame, or too many.
    #[error("{count} frames acknowledged early, 1 to {limit} allowed")]
    Early {
        /// How many.
        count: u16,
        /// The most.
        limit: u16,
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

fn check_start<const N: usize>(bytes: &[u8; N], expected: u32) -> Result<(), Violation> {
    let (magic, version) = (u32_at(bytes, 0), u16_at(bytes, 4));
    if magic != expected {
        return Err(Violation::Magic { found: magic, expected });
    }
    if version != VERSION {
        return Err(Violation::Version { found: version, known: VERSION });
    }
    Ok(())
}

/// The first bytes of a sender: it identifies itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) qpn: Qpn,
    /// Its longest datagram.
    pub(super) mtu: u32,
    pub(super) rnr_retry: u8,
    /// Names the connection in early acknowledgements. Nobody but the receiver knows it.
    pub(super) token: u64,
}

impl Hello {
    pub(super) fn emit(self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..4].copy_from_slice(&HELLO_MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.qpn.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.mtu.to_le_bytes());
        bytes[12] = self.rnr_retry;
        bytes[16..].copy_from_slice(&self.token.to_le_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8; HELLO]) -> Result<Self, Violation> {
        check_start(bytes, HELLO_MAGIC)?;
        let mtu = u32_at(bytes, 8);
        let limit = MAX_MTU as u32;
        if mtu > limit {
            return Err(Violation::Length { length: mtu, limit });
        }
        let (qpn, rnr_retry) = (Qpn(u16_at(bytes, 6)), bytes[12]);
        Ok(Self { qpn, mtu, rnr_retry, token: u64_at(bytes, 16) })
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
    /// Bytes of prefix and payload.
    pub(super) length: u32,
    pub(super) sequence: u32,
    pub(super) key: u32,
}

impl Header {
    pub(super) fn emit(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = self.kind.number();
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
        Ok(Self { kind, length, sequence: u32_at(bytes, 8), key: u32_at(bytes, 12) })
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

/// Says early, on the connection of the other direction, that frames ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Early {
    /// Of the hello of the frames' connection.
    pub(super) token: u64,
    pub(super) first: u32,
    pub(super) count: u16,
}

impl Early {
    pub(super) fn emit(self) -> [u8; EARLY] {
        let mut bytes = [0; EARLY];
        bytes[0] = EARLY_KIND;
        bytes[2..4].copy_from_slice(&self.count.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.first.to_le_bytes());
        bytes[8..].copy_from_slice(&self.token.to_le_bytes());
        bytes
    }

    /// `None` if it is something else.
    pub(super) fn parse(bytes: &[u8; EARLY]) -> Result<Option<Self>, Violation> {
        if bytes[0] != EARLY_KIND {
            return Ok(None);
        }
        let (count, limit) = (u16_at(bytes, 2), MOST_EARLY);
        if count == 0 || count > limit {
            return Err(Violation::Early { count, limit });
        }
        Ok(Some(Self { token: u64_at(bytes, 8), first: u32_at(bytes, 4), count }))
    }

    /// The frames of both, if those of `other` follow or overlap with this one's and they are not too many.
    pub(super) fn with(self, other: Self) -> Option<Self> {
        let skipped = u16::try_from(other.first.wrapping_sub(self.first)).ok()?;
        let count = self.count.max(skipped.checked_add(other.count)?);
        let is_one = self.token == other.token && skipped <= self.count && count <= MOST_EARLY;
        is_one.then_some(Self { count, ..self })
    }
}

/// What a receiver says first of all.
pub(super) fn emit_welcome() -> [u8; RESPONSE] {
    let mut bytes = [0; RESPONSE];
    bytes[..4].copy_from_slice(&WELCOME_MAGIC.to_le_bytes());
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

pub(super) fn check_welcome(bytes: &[u8; RESPONSE]) -> Result<(), Violation> {
    check_start(bytes, WELCOME_MAGIC)
}

/// What a receiver says then.
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

    pub(super) fn parse(bytes: &[u8; RESPONSE]) -> Result<Self, Violation> {
        let code = bytes[1];
        let status = || Status::from_code(code).ok_or(Violation::Status { code });
        match bytes[0] {
            ACKNOWLEDGE => {
                let result = if code == 0 { Ok(()) } else { Err(status()?) };
                Ok(Self::Acknowledge { first: u32_at(bytes, 4), count: u16_at(bytes, 2), result })
            }
            CLOSE => Ok(Self::Close(status()?)),
            TRY_AGAIN => Ok(Self::TryAgain),
            DATA => Ok(Self::Data { sequence: u32_at(bytes, 4), count: u16_at(bytes, 2) }),
            found => Err(Violation::Kind { found }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_have_the_documented_layout() {
        let hello =
            Hello { qpn: Qpn(0x1234), mtu: 0x22e0, rnr_retry: 3, token: 0x0102_0304_0506_0708 };
        let emitted = *b"EfaS\x04\0\x34\x12\xe0\x22\0\0\x03\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01";
        assert_eq!((hello.emit(), Hello::parse(&emitted)), (emitted, Ok(hello)));
        let early = Early { token: 0x0102_0304_0506_0708, first: 0x090a_0b0c, count: 0x1e };
        let emitted = [6, 0, 0x1e, 0, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1];
        assert_eq!((early.emit(), Early::parse(&emitted)), (emitted, Ok(Some(early))));
        let (kind, length) = (Kind::Datagram, 0x0102);
        let header = Header { kind, length, sequence: 0x0304_0506, key: 0x0708_090a };
        assert_eq!(header.emit(), *b"\x01\0\0\0\x02\x01\0\0\x06\x05\x04\x03\x0a\x09\x08\x07");
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
        assert_eq!(emit_welcome(), *b"EfaR\x04\0\0\0");
        let result = Err(Status::ReceiverNotReady);
        let verdict = Response::Acknowledge { first: 0x0102_0304, count: 0x0506, result };
        assert_eq!(verdict.emit(), [1, 10, 6, 5, 4, 3, 2, 1]);
        let goodbye = Response::Close(Status::BadDestinationQpn);
        assert_eq!(goodbye.emit(), [2, 9, 0, 0, 0, 0, 0, 0]);
        let data = Response::Data { sequence: 0x0102_0304, count: 0x0506 };
        assert_eq!(data.emit(), [3, 0, 6, 5, 4, 3, 2, 1]);
        assert_eq!(Response::TryAgain.emit(), [4, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn each_violation_is_detected() {
        let good = Hello { qpn: Qpn(1), mtu: 65536, rnr_retry: 7, token: 0 }.emit();
        assert!(Hello::parse(&good).is_ok());
        let mut other = good;
        other[..4].copy_from_slice(b"GET ");
        let expected = HELLO_MAGIC;
        let found = u32::from_le_bytes(*b"GET ");
        assert_eq!(Hello::parse(&other), Err(Violation::Magic { found, expected }));
        other = good;
        other[4] = 1;
        assert_eq!(Hello::parse(&other), Err(Violation::Version { found: 1, known: 4 }));
        other = good;
        other[8] = 1;
        let long = Violation::Length { length: 65537, limit: 65536 };
        assert_eq!(Hello::parse(&other), Err(long));
        assert_eq!(
            Response::parse(&[1, 16, 0, 0, 0, 0, 0, 0]),
            Err(Violation::Status { code: 16 })
        );
        assert_eq!(Response::parse(&[2, 0, 0, 0, 0, 0, 0, 0]), Err(Violation::Status { code: 0 }));
        assert_eq!(Response::parse(&[5, 0, 0, 0, 0, 0, 0, 0]), Err(Violation::Kind { found: 5 }));
        let early = |count| Early::parse(&Early { token: 1, first: 2, count }.emit());
        let limit = MOST_EARLY;
        assert!(early(1).is_ok() && early(limit).is_ok());
        for count in [0, limit + 1, u16::MAX] {
            assert_eq!(early(count), Err(Violation::Early { count, limit }));
        }
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

    #[test]
    fn early_acknowledgements_of_frames_in_a_row_become_one_up_to_the_limit() {
        let early = |first, count| Early { token: 1, first, count };
        assert_eq!(early(u32::MAX, 1).with(early(0, 2)), Some(early(u32::MAX, 3)));
        assert_eq!(early(5, 63).with(early(68, 1)), Some(early(5, 64)));
        assert_eq!(early(5, 63).with(early(68, 2)), None);
        assert_eq!(early(5, 1).with(early(5, 3)), Some(early(5, 3)));
        assert_eq!(early(5, 9).with(early(7, 1)), Some(early(5, 9)));
        assert_eq!(early(5, 1).with(early(7, 1)), None);
        assert_eq!(early(5, 1).with(early(4, 3)), None);
        assert_eq!(early(5, 1).with(Early { token: 2, ..early(6, 1) }), None);
    }

    proptest! {
        #[test]
        fn parsed_headers_are_emitted_identically(bytes in any::<[u8; 16]>(), small in any::<u8>(), mtu in 0..=MAX_MTU as u32) {
            let mut near = bytes;
            near[0] = small % 7;
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
                if let Ok(Some(early)) = Early::parse(&bytes) {
                    prop_assert_eq!(Early::parse(&early.emit()), Ok(Some(early)));
                    prop_assert_eq!(Header::parse(&bytes, mtu), Err(Violation::Kind { found: 6 }));
                }
                let [a, b, c, d, e, f, g, h, ..] = bytes;
                if let Ok(response) = Response::parse(&[a, b % 18, c, d, e, f, g, h]) {
                    prop_assert_eq!(Response::parse(&response.emit()), Ok(response));
                }
            }
        }
    }
}
