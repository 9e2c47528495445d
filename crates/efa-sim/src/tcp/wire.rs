//! The bytes on a connection. All numbers are little-endian.
//!
//! ```text
//!  sender ─► receiver                            receiver ─► sender
//!  hello    magic 4 | version 2 | qpn 2 |        welcome  magic 4 | version 2 | zero 2
//!           mtu 4 | rnr retry 1 | zero 3
//!  frame    kind 1 | zero 3 | length 4 |         answer   kind 1 | status 1 | count 2 |
//!           sequence 4 | qkey 4 | bytes…                  first sequence 4
//!  frame    …                                    answer   … the last may be a goodbye
//! ```
//!
//! An answer is for `count` frames from a sequence number on; a goodbye gives the status for all
//! frames that have no answer, and nothing follows it.

use std::time::Duration;

use efa_device::{Qkey, Qpn, Status};

use crate::record::status_from_code;

/// Largest datagram of the link in bytes.
pub(super) const MAX_MTU: usize = 1 << 16;
/// Bytes of a hello.
pub(super) const HELLO: usize = 16;
/// Bytes in front of a datagram.
pub(super) const HEADER: usize = 16;
/// Bytes of a welcome and of an answer.
pub(super) const ANSWER: usize = 8;

const VERSION: u16 = 1;
const HELLO_MAGIC: u32 = u32::from_le_bytes(*b"EfaS");
const WELCOME_MAGIC: u32 = u32::from_le_bytes(*b"EfaR");
const DATAGRAM: u8 = 1;
const VERDICT: u8 = 1;
const GOODBYE: u8 = 2;

/// What was wrong on a connection, which was closed for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// It starts with other bytes than a connection of this link.
    #[error("it starts with {found:#010x}, not with {expected:#010x}")]
    Magic {
        /// What it starts with.
        found: u32,
        /// What such a connection starts with.
        expected: u32,
    },
    /// The other side speaks another version of the link.
    #[error("version {found}, only {known} is known")]
    Version {
        /// Its version.
        found: u16,
        /// Ours.
        known: u16,
    },
    /// A datagram, or the MTU that was announced, is longer than allowed.
    #[error("{length} bytes announced, at most {limit} allowed")]
    Length {
        /// Its length in bytes.
        length: u32,
        /// The MTU of the sender, or the largest of the link.
        limit: u32,
    },
    /// No such kind of frame or answer.
    #[error("kind {found} is not known")]
    Kind {
        /// The number in its place.
        found: u8,
    },
    /// Frames are not numbered one after the other.
    #[error("frame {found} comes where {expected} is next")]
    Sequence {
        /// The number of the frame.
        found: u32,
        /// What its number should have been.
        expected: u32,
    },
    /// No status has this number.
    #[error("status {code} is not known")]
    Status {
        /// The number.
        code: u8,
    },
    /// An answer for frames that were not sent or have their answer.
    #[error("answer for {count} frames from {first} on, of which not all wait for one")]
    Answer {
        /// The first of the frames.
        first: u32,
        /// How many.
        count: u16,
    },
    /// The connection ended within something.
    #[error("it ended after {bytes} bytes of a hello or frame")]
    Truncated {
        /// The bytes of it that came.
        bytes: usize,
    },
    /// A hello or frame took too long to arrive.
    #[error("a hello or frame did not arrive within {limit:?}")]
    Slow {
        /// The patience of the device.
        limit: Duration,
    },
}

fn u16_at<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
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

/// What a sender says of itself, first of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) qpn: Qpn,
    /// Its longest datagram.
    pub(super) mtu: u32,
    pub(super) rnr_retry: u8,
}

impl Hello {
    pub(super) fn emit(self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..4].copy_from_slice(&HELLO_MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.qpn.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.mtu.to_le_bytes());
        bytes[12] = self.rnr_retry;
        bytes
    }

    pub(super) fn parse(bytes: &[u8; HELLO]) -> Result<Self, Violation> {
        check_start(bytes, HELLO_MAGIC)?;
        let mtu = u32_at(bytes, 8);
        let limit = MAX_MTU as u32;
        if mtu > limit {
            return Err(Violation::Length { length: mtu, limit });
        }
        Ok(Self { qpn: Qpn(u16_at(bytes, 6)), mtu, rnr_retry: bytes[12] })
    }
}

/// What stands in front of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) length: u32,
    pub(super) sequence: u32,
    pub(super) qkey: Qkey,
}

impl Header {
    pub(super) fn emit(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = DATAGRAM;
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[12..].copy_from_slice(&self.qkey.0.to_le_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8; HEADER], mtu: u32) -> Result<Self, Violation> {
        if bytes[0] != DATAGRAM {
            return Err(Violation::Kind { found: bytes[0] });
        }
        let length = u32_at(bytes, 4);
        if length > mtu {
            return Err(Violation::Length { length, limit: mtu });
        }
        Ok(Self { length, sequence: u32_at(bytes, 8), qkey: Qkey(u32_at(bytes, 12)) })
    }
}

/// What a receiver says first of all.
pub(super) fn emit_welcome() -> [u8; ANSWER] {
    let mut bytes = [0; ANSWER];
    bytes[..4].copy_from_slice(&WELCOME_MAGIC.to_le_bytes());
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

pub(super) fn check_welcome(bytes: &[u8; ANSWER]) -> Result<(), Violation> {
    check_start(bytes, WELCOME_MAGIC)
}

/// What a receiver says then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// How `count` frames ended.
    Verdict { first: u32, count: u16, result: Result<(), Status> },
    /// How all others end.
    Goodbye(Status),
}

impl Answer {
    pub(super) fn emit(self) -> [u8; ANSWER] {
        let mut bytes = [0; ANSWER];
        match self {
            Self::Verdict { first, count, result } => {
                bytes[0] = VERDICT;
                bytes[1] = result.err().map_or(0, Status::code);
                bytes[2..4].copy_from_slice(&count.to_le_bytes());
                bytes[4..].copy_from_slice(&first.to_le_bytes());
            }
            Self::Goodbye(status) => {
                bytes[0] = GOODBYE;
                bytes[1] = status.code();
            }
        }
        bytes
    }

    pub(super) fn parse(bytes: &[u8; ANSWER]) -> Result<Self, Violation> {
        let code = bytes[1];
        let status = || status_from_code(code).ok_or(Violation::Status { code });
        match bytes[0] {
            VERDICT => {
                let result = if code == 0 { Ok(()) } else { Err(status()?) };
                Ok(Self::Verdict { first: u32_at(bytes, 4), count: u16_at(bytes, 2), result })
            }
            GOODBYE => Ok(Self::Goodbye(status()?)),
            found => Err(Violation::Kind { found }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_are_as_drawn_above() {
        let hello = Hello { qpn: Qpn(0x1234), mtu: 0x22e0, rnr_retry: 3 };
        assert_eq!(hello.emit(), *b"EfaS\x01\0\x34\x12\xe0\x22\0\0\x03\0\0\0");
        let header = Header { length: 0x0102, sequence: 0x0304_0506, qkey: Qkey(0x0708_090a) };
        assert_eq!(header.emit(), *b"\x01\0\0\0\x02\x01\0\0\x06\x05\x04\x03\x0a\x09\x08\x07");
        assert_eq!(emit_welcome(), *b"EfaR\x01\0\0\0");
        let result = Err(Status::ReceiverNotReady);
        let verdict = Answer::Verdict { first: 0x0102_0304, count: 0x0506, result };
        assert_eq!(verdict.emit(), [1, 10, 6, 5, 4, 3, 2, 1]);
        let goodbye = Answer::Goodbye(Status::BadDestinationQpn);
        assert_eq!(goodbye.emit(), [2, 9, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let good = Hello { qpn: Qpn(1), mtu: 65536, rnr_retry: 7 }.emit();
        assert!(Hello::parse(&good).is_ok());
        let mut other = good;
        other[..4].copy_from_slice(b"GET ");
        let expected = HELLO_MAGIC;
        let found = u32::from_le_bytes(*b"GET ");
        assert_eq!(Hello::parse(&other), Err(Violation::Magic { found, expected }));
        other = good;
        other[4] = 2;
        assert_eq!(Hello::parse(&other), Err(Violation::Version { found: 2, known: 1 }));
        other = good;
        other[8] = 1;
        let long = Violation::Length { length: 65537, limit: 65536 };
        assert_eq!(Hello::parse(&other), Err(long));
        assert_eq!(Answer::parse(&[1, 16, 0, 0, 0, 0, 0, 0]), Err(Violation::Status { code: 16 }));
        assert_eq!(Answer::parse(&[2, 0, 0, 0, 0, 0, 0, 0]), Err(Violation::Status { code: 0 }));
        assert_eq!(Answer::parse(&[3, 0, 0, 0, 0, 0, 0, 0]), Err(Violation::Kind { found: 3 }));
    }

    proptest! {
        #[test]
        fn what_can_be_read_reads_as_written(bytes: [u8; 16], small: u8, mtu: u32) {
            let mut near = bytes;
            near[0] = small % 4;
            for bytes in [bytes, near] {
                if let Ok(header) = Header::parse(&bytes, mtu) {
                    prop_assert!(header.length <= mtu);
                    prop_assert_eq!(Header::parse(&header.emit(), mtu), Ok(header));
                }
                let [a, b, c, d, e, f, g, h, ..] = bytes;
                if let Ok(answer) = Answer::parse(&[a, b % 18, c, d, e, f, g, h]) {
                    prop_assert_eq!(Answer::parse(&answer.emit()), Ok(answer));
                }
            }
        }
    }
}
