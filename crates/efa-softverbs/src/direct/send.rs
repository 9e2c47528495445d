//! The descriptor of a send, read or write: 64 or 128 bytes of the send ring.
//!
//! ```text
//!   0 request id, bits 0–15        2 operation 0–3 | immediate 4 | inline 5 | extension 6 | metadata 7
//!   4 queue pair of the receiver   3 phase 0 | first 2 | last 3 | completes 4
//!   6 inline: bytes; else buffers  8 immediate data
//!  12 address handle              14 processing hints 0–1
//!  16 queue key                   26 request id, bits 16–63, of queues with 64-bit ids
//!  32 send: two buffers, or 32 (of 128 bytes: 80) inline bytes
//!     read and write: remote length, key, address; then one buffer, or (write, of 128 bytes) 80 inline bytes
//!
//!  a buffer: length | local key, 24 bits | address, low, high       all numbers are little-endian
//! ```

use efa_device::Status;

/// Most buffers of a send.
pub const MAX_BUFFERS: usize = 2;
/// Most inline bytes in a descriptor of 64 bytes.
pub const MAX_INLINE_64: usize = 32;
/// Most inline bytes in a descriptor of 128 bytes.
pub const MAX_INLINE_128: usize = 80;
/// Bits of a local key in a descriptor.
pub const LOCAL_KEY_BITS: u32 = 24;

const OPERATION: u8 = 0x0f;
const HAS_IMMEDIATE: u8 = 1 << 4;
const IS_INLINE: u8 = 1 << 5;
const EXTENSION: u8 = 1 << 6;
const METADATA: u8 = 1 << 7;
const PHASE: u8 = 1;
const FIRST: u8 = 1 << 2;
const LAST: u8 = 1 << 3;
const COMPLETES: u8 = 1 << 4;
const RESERVED: u8 = !(PHASE | FIRST | LAST | COMPLETES);

/// Offset of what follows the metadata.
const BODY: usize = 32;
/// Bytes of a buffer, and of the remote memory of a read or write.
const BUFFER: usize = 16;

/// The size of the descriptors of a send ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorSize {
    /// 64 bytes.
    Short,
    /// 128 bytes.
    Long,
}

impl DescriptorSize {
    /// That of a queue with so many inline bytes in a send.
    #[must_use]
    pub const fn of(max_inline: u32, inline_writes: bool) -> Self {
        if max_inline as usize > MAX_INLINE_64 || inline_writes { Self::Long } else { Self::Short }
    }

    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Short => 64,
            Self::Long => 128,
        }
    }

    /// Most inline bytes of a send.
    #[must_use]
    pub const fn max_inline(self) -> usize {
        match self {
            Self::Short => MAX_INLINE_64,
            Self::Long => MAX_INLINE_128,
        }
    }
}

/// How a ring's descriptors are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendFormat {
    /// The size of descriptors.
    pub size: DescriptorSize,
    /// Whether request ids have 64 bits, not 16.
    pub long_ids: bool,
    /// Whether the data of a write may be inline.
    pub inline_writes: bool,
}

/// Local memory of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    /// The address.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// The lower [`LOCAL_KEY_BITS`] of the local key.
    pub key: u32,
}

/// Remote memory of a read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The address.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// The remote key.
    pub key: u32,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Sends a datagram.
    Send,
    /// Reads remote memory.
    Read(Remote),
    /// Writes remote memory.
    Write(Remote),
}

/// What a request sends, or where a read puts the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Registered memory.
    Buffers {
        /// The buffers.
        list: [Buffer; MAX_BUFFERS],
        /// How many there are.
        count: usize,
    },
    /// Bytes in the descriptor.
    Inline {
        /// The bytes.
        bytes: [u8; MAX_INLINE_128],
        /// How many there are.
        length: usize,
    },
}

/// A send, read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendDescriptor {
    /// What the completion repeats.
    pub request_id: u64,
    /// What the request does.
    pub operation: Operation,
    /// Immediate data, in the byte order of this machine.
    pub immediate: Option<u32>,
    /// Number of the receiver's address handle.
    pub address_handle: u16,
    /// Number of the receiver's queue pair.
    pub queue_pair: u16,
    /// The receiver's queue key.
    pub queue_key: u32,
    /// The data.
    pub data: Data,
}

/// What is wrong with the descriptor of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The slice doesn't have the size of the format.
    #[error("a descriptor of {length} bytes in a ring of {expected}-byte descriptors")]
    Size {
        /// Bytes there.
        length: usize,
        /// Bytes expected.
        expected: usize,
    },
    /// The program has not written the descriptor in this turn of the ring.
    #[error("the phase bit is {phase}: not written in this turn of the ring")]
    Phase {
        /// The bit in the descriptor.
        phase: u8,
    },
    /// Bits that must have another value.
    #[error("control bytes {control1:#04x} {control2:#04x} are none of a whole request")]
    Control {
        /// Byte 2.
        control1: u8,
        /// Byte 3.
        control2: u8,
    },
    /// No operation of the device.
    #[error("operation {operation} is unknown")]
    Operation {
        /// The operation.
        operation: u8,
    },
    /// A read with immediate data.
    #[error("a read has no immediate data")]
    ReadWithImmediate,
    /// Inline data that the operation or the ring doesn't allow.
    #[error("operation {operation} with inline data")]
    Inline {
        /// The operation.
        operation: u8,
    },
    /// More inline bytes than the descriptor has.
    #[error("{length} inline bytes of at most {limit}")]
    InlineLength {
        /// Bytes asked for.
        length: u16,
        /// Bytes that there are.
        limit: usize,
    },
    /// More buffers than the operation can have.
    #[error("{count} buffers of at most {limit}")]
    Buffers {
        /// Buffers asked for.
        count: u16,
        /// Most.
        limit: usize,
    },
    /// Bits above the local key.
    #[error("the local key {key:#010x} has more than 24 bits")]
    LocalKey {
        /// The key.
        key: u32,
    },
    /// A read or write of other length on the two sides.
    #[error("{remote} bytes of remote memory, but {local} of local")]
    Lengths {
        /// Remote bytes.
        remote: u32,
        /// Local bytes.
        local: u32,
    },
}

impl SendError {
    /// The status with which the request completes.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Size { .. } | Self::Phase { .. } => Status::QueuePairInternal,
            Self::Control { .. }
            | Self::Operation { .. }
            | Self::ReadWithImmediate
            | Self::Inline { .. } => Status::UnsupportedOperation,
            Self::InlineLength { .. } | Self::Buffers { .. } | Self::Lengths { .. } => {
                Status::BadLength
            }
            Self::LocalKey { .. } => Status::BadLocalKey,
        }
    }
}

/// The bytes at an offset; zeros beyond the end.
fn bytes<const N: usize>(descriptor: &[u8], at: usize) -> [u8; N] {
    descriptor.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

fn u16_at(descriptor: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes(descriptor, at))
}

fn u32_at(descriptor: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes(descriptor, at))
}

fn address_at(descriptor: &[u8], low: usize) -> u64 {
    u64::from_le_bytes(bytes(descriptor, low))
}

/// The request id of a descriptor, which may otherwise be wrong.
#[must_use]
pub fn request_id(descriptor: &[u8], format: SendFormat) -> u64 {
    let short = u64::from(u16_at(descriptor, 0));
    if !format.long_ids {
        return short;
    }
    let [a, b, c, d, e, f] = bytes(descriptor, 26);
    u64::from_le_bytes([0, 0, a, b, c, d, e, f]) | short
}

/// Which operation the descriptor names, as the completion of a wrong one repeats it; a send for an unknown one.
#[must_use]
pub fn operation_number(descriptor: &[u8]) -> u8 {
    let [control] = bytes(descriptor, 2);
    match control & OPERATION {
        operation @ 0..=2 => operation,
        _ => 0,
    }
}

impl SendDescriptor {
    /// Reads a descriptor; `phase` is the bit of this turn of the ring.
    ///
    /// # Errors
    /// [`SendError`] for what is wrong.
    pub fn parse(descriptor: &[u8], phase: bool, format: SendFormat) -> Result<Self, SendError> {
        let expected = format.size.bytes();
        if descriptor.len() != expected {
            return Err(SendError::Size { length: descriptor.len(), expected });
        }
        let [control1, control2] = bytes(descriptor, 2);
        if control2 & PHASE != u8::from(phase) {
            return Err(SendError::Phase { phase: control2 & PHASE });
        }
        let whole = FIRST | LAST | COMPLETES;
        if control2 & whole != whole
            || control2 & RESERVED != 0
            || control1 & (METADATA | EXTENSION) != METADATA
        {
            return Err(SendError::Control { control1, control2 });
        }
        let operation = control1 & OPERATION;
        let is_inline = control1 & IS_INLINE != 0;
        let immediate = (control1 & HAS_IMMEDIATE != 0).then(|| u32_at(descriptor, 8));
        let remote = || Remote {
            length: u32_at(descriptor, BODY),
            key: u32_at(descriptor, BODY + 4),
            address: address_at(descriptor, BODY + 8),
        };
        let operation = match operation {
            0 => Operation::Send,
            1 if immediate.is_some() => return Err(SendError::ReadWithImmediate),
            1 => Operation::Read(remote()),
            2 => Operation::Write(remote()),
            _ => return Err(SendError::Operation { operation }),
        };
        let data = read_data(descriptor, operation, is_inline, format)?;
        if let Operation::Read(Remote { length: remote, .. })
        | Operation::Write(Remote { length: remote, .. }) = operation
        {
            let local = data.length();
            if local != remote {
                return Err(SendError::Lengths { remote, local });
            }
        }
        Ok(Self {
            request_id: request_id(descriptor, format),
            operation,
            immediate,
            address_handle: u16_at(descriptor, 12),
            queue_pair: u16_at(descriptor, 4),
            queue_key: u32_at(descriptor, 16),
            data,
        })
    }
}

fn read_data(
    descriptor: &[u8],
    operation: Operation,
    is_inline: bool,
    format: SendFormat,
) -> Result<Data, SendError> {
    let count = u16_at(descriptor, 6);
    // The local memory of reads and writes follows the remote memory; there is one buffer.
    let (at, limit) = match operation {
        Operation::Send => (BODY, MAX_BUFFERS),
        Operation::Read(_) | Operation::Write(_) => (BODY + BUFFER, 1),
    };
    if is_inline {
        let limit = match operation {
            Operation::Send => format.size.max_inline(),
            Operation::Write(_) if format.inline_writes && format.size == DescriptorSize::Long => {
                MAX_INLINE_128
            }
            Operation::Write(_) => return Err(SendError::Inline { operation: 2 }),
            Operation::Read(_) => return Err(SendError::Inline { operation: 1 }),
        };
        let length = usize::from(count);
        let mut bytes = [0; MAX_INLINE_128];
        let from = descriptor.get(at..at + length).filter(|_| length <= limit);
        let from = from.ok_or(SendError::InlineLength { length: count, limit })?;
        bytes[..length].copy_from_slice(from);
        return Ok(Data::Inline { bytes, length });
    }
    let length = usize::from(count);
    if length > limit {
        return Err(SendError::Buffers { count, limit });
    }
    let mut list = [Buffer::default(); MAX_BUFFERS];
    for (index, buffer) in list.iter_mut().enumerate().take(length) {
        let at = at + index * BUFFER;
        let key = u32_at(descriptor, at + 4);
        if key >> LOCAL_KEY_BITS != 0 {
            return Err(SendError::LocalKey { key });
        }
        let (length, address) = (u32_at(descriptor, at), address_at(descriptor, at + 8));
        *buffer = Buffer { address, length, key };
    }
    Ok(Data::Buffers { list, count: length })
}

impl Data {
    /// The bytes of all.
    fn length(&self) -> u32 {
        match self {
            Self::Buffers { list, count } => {
                list[..*count].iter().fold(0, |sum, buffer| buffer.length.saturating_add(sum))
            }
            Self::Inline { length, .. } => u32::try_from(*length).unwrap_or(u32::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: SendFormat =
        SendFormat { size: DescriptorSize::Short, long_ids: false, inline_writes: false };
    const LONG: SendFormat =
        SendFormat { size: DescriptorSize::Long, long_ids: true, inline_writes: true };

    /// A send of two buffers with immediate data, in the second turn of the ring.
    #[rustfmt::skip]
    const SEND: [u8; 64] = [
        0x34, 0x12, 0x90, 0x1d,             // request 0x1234; send, immediate; phase 1
        0x07, 0x00, 0x02, 0x00,             // to queue pair 7; two buffers
        0xef, 0xbe, 0xad, 0xde,             // immediate data
        0x05, 0x00, 0x00, 0x00,             // address handle 5
        0x78, 0x56, 0x34, 0x12,             // queue key
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0x10, 0, 0, 0,  0x01, 0x02, 0x03, 0,  0x00, 0x10, 0, 0,  0x7f, 0, 0, 0,
        0x20, 0, 0, 0,  0x04, 0x05, 0x06, 0,  0x00, 0x20, 0, 0,  0x00, 0, 0, 0,
    ];

    /// A read of 4096 bytes.
    #[rustfmt::skip]
    const READ: [u8; 64] = [
        0x01, 0x00, 0x81, 0x1c,  0x09, 0x00, 0x01, 0x00,  0, 0, 0, 0,  0x02, 0x00, 0, 0,
        0x11, 0x22, 0x33, 0x44,  0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0x00, 0x10, 0, 0,  0xaa, 0xbb, 0xcc, 0xdd,  0x00, 0x00, 0x01, 0x00,  0x01, 0, 0, 0,
        0x00, 0x10, 0, 0,  0x07, 0x00, 0x00, 0x00,  0x00, 0x00, 0x02, 0x00,  0x00, 0, 0, 0,
    ];

    #[test]
    fn send_with_two_buffers_and_immediate_data_is_read() {
        let send = SendDescriptor::parse(&SEND, true, SHORT).unwrap();
        let first = Buffer { address: 0x7f_0000_1000, length: 16, key: 0x03_0201 };
        let second = Buffer { address: 0x2000, length: 32, key: 0x06_0504 };
        let expected = SendDescriptor {
            request_id: 0x1234,
            operation: Operation::Send,
            immediate: Some(0xdead_beef),
            address_handle: 5,
            queue_pair: 7,
            queue_key: 0x1234_5678,
            data: Data::Buffers { list: [first, second], count: 2 },
        };
        assert_eq!(send, expected);
    }

    #[test]
    fn read_and_write_have_remote_memory_and_one_buffer() {
        let remote = Remote { address: 0x1_0001_0000, length: 4096, key: 0xddcc_bbaa };
        let read = SendDescriptor::parse(&READ, false, SHORT).unwrap();
        assert_eq!(read.operation, Operation::Read(remote));
        let local = Buffer { address: 0x2_0000, length: 4096, key: 7 };
        let list = [local, Buffer::default()];
        assert_eq!(read.data, Data::Buffers { list, count: 1 });
        let mut write = READ;
        write[2] = 0x92;
        let write = SendDescriptor::parse(&write, false, SHORT).unwrap();
        assert_eq!((write.operation, write.immediate), (Operation::Write(remote), Some(0)));
    }

    #[test]
    fn inline_bytes_fill_what_the_descriptor_has() {
        let mut send = [0; 64];
        send[..8].copy_from_slice(&[1, 0, 0xa0, 0x1c, 7, 0, 32, 0]);
        send[32..].copy_from_slice(&[0x5a; 32]);
        let parsed = SendDescriptor::parse(&send, false, SHORT).unwrap();
        let Data::Inline { bytes, length } = parsed.data else { panic!("{parsed:?}") };
        assert_eq!((&bytes[..length], length), (&[0x5a; 32][..], 32));
        send[6] = 33;
        let error = SendDescriptor::parse(&send, false, SHORT).unwrap_err();
        assert_eq!(error, SendError::InlineLength { length: 33, limit: 32 });
    }

    #[test]
    fn long_descriptor_has_eighty_inline_bytes_and_an_id_of_64_bits() {
        let mut write = [0; 128];
        write[..8].copy_from_slice(&[0x34, 0x12, 0xa2, 0x1c, 7, 0, 80, 0]);
        write[26..32].copy_from_slice(&[0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0]);
        write[32] = 80;
        write[48..].copy_from_slice(&[0xa5; 80]);
        let parsed = SendDescriptor::parse(&write, false, LONG).unwrap();
        assert_eq!(parsed.request_id, 0xf0de_bc9a_7856_1234);
        let Data::Inline { bytes, length: 80 } = parsed.data else { panic!("{parsed:?}") };
        assert_eq!(bytes, [0xa5; 80]);
        let without = SendFormat { inline_writes: false, ..LONG };
        let error = SendDescriptor::parse(&write, false, without).unwrap_err();
        assert_eq!(error, SendError::Inline { operation: 2 });
        write[6] = 81;
        write[32] = 81;
        let error = SendDescriptor::parse(&write, false, LONG).unwrap_err();
        assert_eq!(error, SendError::InlineLength { length: 81, limit: 80 });
    }

    #[test]
    fn wrong_descriptor_is_an_error_with_the_value_and_a_status() {
        let changed = |at: usize, value: u8| {
            let mut send = SEND;
            send[at] = value;
            SendDescriptor::parse(&send, true, SHORT).unwrap_err()
        };
        let control = |control1, control2| SendError::Control { control1, control2 };
        for (error, expected, status) in [
            (changed(3, 0x1c), SendError::Phase { phase: 0 }, Status::QueuePairInternal),
            (changed(3, 0x0d), control(0x90, 0x0d), Status::UnsupportedOperation),
            (changed(3, 0x15), control(0x90, 0x15), Status::UnsupportedOperation),
            (changed(3, 0x9d), control(0x90, 0x9d), Status::UnsupportedOperation),
            (changed(2, 0x10), control(0x10, 0x1d), Status::UnsupportedOperation),
            (changed(2, 0xd0), control(0xd0, 0x1d), Status::UnsupportedOperation),
            (changed(2, 0x83), SendError::Operation { operation: 3 }, Status::UnsupportedOperation),
            (changed(2, 0x91), SendError::ReadWithImmediate, Status::UnsupportedOperation),
            (changed(6, 3), SendError::Buffers { count: 3, limit: 2 }, Status::BadLength),
            (changed(39, 1), SendError::LocalKey { key: 0x0103_0201 }, Status::BadLocalKey),
        ] {
            assert_eq!((error, error.status()), (expected, status));
        }
        let error = SendDescriptor::parse(&SEND, true, LONG).unwrap_err();
        assert_eq!(error, SendError::Size { length: 64, expected: 128 });
        let mut read = READ;
        read[33] = 0x20;
        let error = SendDescriptor::parse(&read, false, SHORT).unwrap_err();
        assert_eq!(error, SendError::Lengths { remote: 8192, local: 4096 });
        read[6] = 2;
        let error = SendDescriptor::parse(&read, false, SHORT).unwrap_err();
        assert_eq!(error, SendError::Buffers { count: 2, limit: 1 });
    }

    #[test]
    fn operation_and_id_of_a_wrong_descriptor_are_found() {
        assert_eq!((request_id(&READ, SHORT), operation_number(&READ)), (1, 1));
        assert_eq!((request_id(&[7], SHORT), operation_number(&[])), (0, 0));
        assert_eq!(operation_number(&[0, 0, 0x8f]), 0);
    }
}
