//! Frames, and the decoder that finds them in the bytes of a TCP connection.
//!
//! ```text
//!   0      4        5      6       8
//!   | EfaC | version | kind | length | body: `length` bytes
//!                                     CONNECT, ACCEPT: address (32), data (0 to 256)
//!                                     REJECT: data (0 to 256)      READY, SHUTDOWN: nothing
//! ```
//!
//! `length` is little endian.

use std::fmt;

use crate::Address;

/// First bytes of each frame.
pub const MAGIC: [u8; 4] = *b"EfaC";
/// Version of the frames.
pub const VERSION: u8 = 1;
/// Bytes of a frame before its body.
pub const HEADER: usize = 8;
/// Longest data that goes with a request or its answer, in bytes.
pub const MAX_DATA: usize = 256;
/// Longest frame in bytes.
pub const MAX_FRAME: usize = HEADER + size_of::<Address>() + MAX_DATA;

const _: () = assert!(MAX_FRAME <= 512, "a frame is at most 512 bytes");

/// Data of the program that goes with a request or its answer: up to [`MAX_DATA`] bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Data(Box<[u8]>);

/// Data that doesn't fit a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes of data, a request or answer takes at most {MAX_DATA}")]
pub struct DataTooLong {
    /// Its length in bytes.
    pub length: usize,
}

impl Data {
    /// A copy of these bytes.
    ///
    /// # Errors
    /// They are more than [`MAX_DATA`].
    pub fn new(bytes: &[u8]) -> Result<Self, DataTooLong> {
        match bytes.len() {
            length if length > MAX_DATA => Err(DataTooLong { length }),
            _ => Ok(Self(bytes.into())),
        }
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// The bytes.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.0.into()
    }
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub enum Frame {
    /// The caller asks to be connected.
    Connect { address: Address, data: Data },
    /// The callee agrees, and has inserted the caller's address.
    Accept { address: Address, data: Data },
    /// The caller has inserted the callee's address.
    Ready,
    /// The callee refuses.
    Reject { data: Data },
    /// The sender of this has sent its last message.
    Shutdown,
}

/// Kind of a frame: the number in its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "each is a frame's name")]
pub enum FrameKind {
    Connect = 1,
    Accept = 2,
    Ready = 3,
    Reject = 4,
    Shutdown = 5,
}

impl FrameKind {
    const ALL: [Self; 5] = [Self::Connect, Self::Accept, Self::Ready, Self::Reject, Self::Shutdown];

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Whether the body begins with an address, and the longest data behind it.
    const fn body(self) -> (bool, usize) {
        match self {
            Self::Connect | Self::Accept => (true, MAX_DATA),
            Self::Reject => (false, MAX_DATA),
            Self::Ready | Self::Shutdown => (false, 0),
        }
    }
}

impl fmt::Display for FrameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Connect => "CONNECT",
            Self::Accept => "ACCEPT",
            Self::Ready => "READY",
            Self::Reject => "REJECT",
            Self::Shutdown => "SHUTDOWN",
        })
    }
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// They don't begin with [`MAGIC`].
    #[error("no frame begins with {first:#04x} in byte {at}")]
    Magic {
        /// Which byte differs.
        at: usize,
        /// Its value.
        first: u8,
    },
    /// Another version of the frames.
    #[error("frames of version {theirs}, this is version {VERSION}")]
    Version {
        /// The version.
        theirs: u8,
    },
    /// There is no such kind.
    #[error("no frame has kind {number}")]
    Kind {
        /// The number.
        number: u8,
    },
    /// No frame of this kind has this length.
    #[error("{kind} with a body of {length} bytes, it has {least} to {most}")]
    Length {
        /// The kind.
        kind: FrameKind,
        /// The length in the header.
        length: usize,
        /// The shortest.
        least: usize,
        /// The longest.
        most: usize,
    },
}

impl Frame {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> FrameKind {
        match self {
            Self::Connect { .. } => FrameKind::Connect,
            Self::Accept { .. } => FrameKind::Accept,
            Self::Ready => FrameKind::Ready,
            Self::Reject { .. } => FrameKind::Reject,
            Self::Shutdown => FrameKind::Shutdown,
        }
    }

    /// Appends its bytes.
    pub fn emit(&self, into: &mut Vec<u8>) {
        let (address, data): (&[u8], &[u8]) = match self {
            Self::Connect { address, data } | Self::Accept { address, data } => (address, &data.0),
            Self::Reject { data } => (&[], &data.0),
            Self::Ready | Self::Shutdown => (&[], &[]),
        };
        into.extend_from_slice(&MAGIC);
        into.extend_from_slice(&[VERSION, self.kind() as u8]);
        // At most 288, as `Data` is bounded.
        let length = (address.len() + data.len()) as u16;
        into.extend_from_slice(&length.to_le_bytes());
        into.extend_from_slice(address);
        into.extend_from_slice(data);
    }

    fn of(kind: FrameKind, body: &[u8]) -> Self {
        let (address, data) = match body.split_first_chunk() {
            Some((address, data)) if kind.body().0 => (*address, data),
            _ => ([0; 32], body),
        };
        let data = Data(data.into());
        match kind {
            FrameKind::Connect => Self::Connect { address, data },
            FrameKind::Accept => Self::Accept { address, data },
            FrameKind::Ready => Self::Ready,
            FrameKind::Reject => Self::Reject { data },
            FrameKind::Shutdown => Self::Shutdown,
        }
    }
}

/// Finds frames in bytes that come in pieces. It keeps at most one frame.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The beginning of a frame, checked as far as it goes.
    bytes: Vec<u8>,
}

impl Decoder {
    /// Takes bytes up to the end of a frame, and returns that frame and the rest; `None`: all bytes were
    /// taken, and the frame has no end yet. An empty decoder has no memory of its own.
    ///
    /// # Errors
    /// The bytes are no frame, which shows at the first wrong byte of a header. After that no frame can be
    /// found any more.
    pub fn decode<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<(Frame, &'a [u8])>, FrameError> {
        let mut rest = bytes;
        loop {
            let header = header(&self.bytes)?;
            let wanted = header.map_or(HEADER, |(_, length)| HEADER + length);
            if let Some((kind, _)) = header
                && self.bytes.len() == wanted
            {
                let frame = Frame::of(kind, self.bytes.get(HEADER..).unwrap_or_default());
                self.bytes = Vec::new();
                return Ok(Some((frame, rest)));
            }
            if rest.is_empty() {
                return Ok(None);
            }
            let (taken, left) = rest.split_at(rest.len().min(wanted - self.bytes.len()));
            self.bytes.extend_from_slice(taken);
            rest = left;
        }
    }
}

/// Kind and length of the body, once the header is complete.
fn header(bytes: &[u8]) -> Result<Option<(FrameKind, usize)>, FrameError> {
    let wrong = bytes.iter().zip(MAGIC).position(|(byte, magic)| *byte != magic);
    if let Some(at) = wrong {
        return Err(FrameError::Magic { at, first: bytes[at] });
    }
    if let Some(&theirs) = bytes.get(4)
        && theirs != VERSION
    {
        return Err(FrameError::Version { theirs });
    }
    let Some(&number) = bytes.get(5) else { return Ok(None) };
    let kind = FrameKind::from_number(number).ok_or(FrameError::Kind { number })?;
    let Some(&[low, high]) = bytes.get(6..HEADER) else { return Ok(None) };
    let length = usize::from(u16::from_le_bytes([low, high]));
    let (has_address, data) = kind.body();
    let least = if has_address { size_of::<Address>() } else { 0 };
    let most = least + data;
    match (least..=most).contains(&length) {
        true => Ok(Some((kind, length))),
        false => Err(FrameError::Length { kind, length, least, most }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(frame: &Frame) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame.emit(&mut bytes);
        bytes
    }

    /// One of each kind, with the shortest and the longest data.
    fn samples() -> Vec<Frame> {
        let (address, long) = ([0xa5; 32], Data::new(&[7; MAX_DATA]).unwrap());
        vec![
            Frame::Connect { address, data: Data::default() },
            Frame::Connect { address, data: long.clone() },
            Frame::Accept { address, data: Data::default() },
            Frame::Accept { address, data: long.clone() },
            Frame::Ready,
            Frame::Reject { data: Data::default() },
            Frame::Reject { data: long },
            Frame::Shutdown,
        ]
    }

    #[test]
    fn bytes_of_frames_are_these() {
        let connect = Frame::Connect { address: [9; 32], data: Data::new(b"ab").unwrap() };
        let expected = [b"EfaC\x01\x01\x22\x00".as_slice(), &[9; 32], b"ab"].concat();
        assert_eq!(bytes(&connect), expected);
        assert_eq!(bytes(&Frame::Ready), b"EfaC\x01\x03\x00\x00");
        assert_eq!(bytes(&Frame::Shutdown), b"EfaC\x01\x05\x00\x00");
    }

    #[test]
    fn frames_are_found_in_pieces_of_any_length() {
        let all: Vec<u8> = samples().iter().flat_map(bytes).collect();
        for piece in [1, 2, 7, 8, 9, 100, all.len()] {
            let (mut decoder, mut found) = (Decoder::default(), Vec::new());
            for mut piece in all.chunks(piece) {
                while let Some((frame, rest)) = decoder.decode(piece).unwrap() {
                    found.push(frame);
                    piece = rest;
                }
            }
            assert_eq!(found, samples(), "pieces of {piece}");
        }
    }

    #[test]
    fn wrong_byte_of_a_header_is_an_error_at_that_byte() {
        let cases: [(&[u8], FrameError); 7] = [
            (b"G", FrameError::Magic { at: 0, first: b'G' }),
            (b"EfaX", FrameError::Magic { at: 3, first: b'X' }),
            (b"EfaC\x02", FrameError::Version { theirs: 2 }),
            (b"EfaC\x01\x00", FrameError::Kind { number: 0 }),
            (b"EfaC\x01\x06", FrameError::Kind { number: 6 }),
            (
                b"EfaC\x01\x01\x1f\x00",
                FrameError::Length { kind: FrameKind::Connect, length: 31, least: 32, most: 288 },
            ),
            (
                b"EfaC\x01\x04\x01\x01",
                FrameError::Length { kind: FrameKind::Reject, length: 257, least: 0, most: 256 },
            ),
        ];
        for (bytes, error) in cases {
            for split in 0..bytes.len() {
                let mut decoder = Decoder::default();
                assert_eq!(decoder.decode(&bytes[..split]), Ok(None), "{error}: {split}");
                assert_eq!(decoder.decode(&bytes[split..]), Err(error));
            }
        }
    }

    #[test]
    fn data_beyond_256_bytes_is_refused_with_its_length() {
        assert_eq!(Data::new(&[0; 256]).map(|data| data.as_slice().len()), Ok(256));
        assert_eq!(Data::new(&[0; 257]), Err(DataTooLong { length: 257 }));
    }
}
