//! Arguments of writes, reads and atomics on memory of a peer.

use std::ops::Range;

use efa_rdm::{AtomicOp, Datatype, Level, Operands, Remote, RmaIov, TooManyPieces};

use crate::address_vector::FiAddr;
use crate::buffer::Buffer;
use crate::capabilities::OperationFlags;
use crate::completion::StartError;
use crate::region::{MemoryRegion, RegionSlice};

/// Memory of a peer: what [`MemoryRegion::remote`] returned there.
///
/// A message can carry it as 24 bytes:
///
/// ```
/// use efa::RemoteMemory;
/// let memory = RemoteMemory { address: 0x1000, length: 64, key: 7 };
/// let bytes = memory.to_bytes();
/// assert_eq!(bytes[..8], [0, 0x10, 0, 0, 0, 0, 0, 0]);
/// assert_eq!(RemoteMemory::from_bytes(&bytes)?, memory);
/// # Ok::<(), efa::RemoteMemoryError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// Address of the first byte, as the peer's device counts.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// The key of its region.
    pub key: u64,
}

impl RemoteMemory {
    /// Length of [`to_bytes`](Self::to_bytes).
    pub const SIZE: usize = 24;

    /// Address, length and key, each as 8 bytes in little-endian order.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        for (into, field) in bytes.chunks_exact_mut(8).zip([self.address, self.length, self.key]) {
            into.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// The memory that [`to_bytes`](Self::to_bytes) described. The peer's device checks key and range
    /// when it is used.
    ///
    /// # Errors
    /// There are not 24 bytes, or the memory would extend past the last address.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RemoteMemoryError> {
        let ([address, length, key], []) = bytes.as_chunks::<8>() else {
            return Err(RemoteMemoryError::WrongLength { length: bytes.len() });
        };
        let [address, length, key] = [address, length, key].map(|field| u64::from_le_bytes(*field));
        match address.checked_add(length) {
            Some(_) => Ok(Self { address, length, key }),
            None => Err(RemoteMemoryError::PastTheEnd { address, length }),
        }
    }

    /// A range of its bytes.
    ///
    /// # Errors
    /// The range is not within this memory.
    pub fn slice(self, range: Range<u64>) -> Result<Self, RemoteMemoryError> {
        let Range { start, end } = range;
        let within = (start <= end && end <= self.length).then(|| self.address.checked_add(start));
        match within.flatten() {
            Some(address) => Ok(Self { address, length: end - start, key: self.key }),
            None => Err(RemoteMemoryError::OutOfRange { start, end, length: self.length }),
        }
    }

    fn iov(self) -> RmaIov {
        RmaIov::new(self.address, self.length, self.key)
    }
}

/// What is no [`RemoteMemory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteMemoryError {
    /// There are fewer or more bytes.
    #[error("remote memory takes 24 bytes, not {length}")]
    WrongLength {
        /// Their number.
        length: usize,
    },
    /// The last byte would have no address.
    #[error("{length} bytes at {address:#x} extend past the last address")]
    PastTheEnd {
        /// Address of the first byte.
        address: u64,
        /// Length in bytes.
        length: u64,
    },
    /// A range isn't within the memory.
    #[error("bytes {start} to {end} are not within remote memory of {length} bytes")]
    OutOfRange {
        /// The first byte.
        start: u64,
        /// The byte behind the last one.
        end: u64,
        /// Length of the memory in bytes.
        length: u64,
    },
}

impl MemoryRegion {
    /// The whole region, for operations of peers.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory { address: self.remote_address(), length: self.len() as u64, key: self.key() }
    }
}

impl RegionSlice {
    /// The slice, for operations of peers.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        let (Range { start, end }, whole) = (self.range(), self.region().remote());
        let (address, length) = (whole.address + start as u64, (end - start) as u64);
        RemoteMemory { address, length, ..whole }
    }
}

/// Target of a write, read or atomic, and how it completes.
///
/// ```
/// use efa::{FiAddr, RemoteMemory, Rma};
/// let memory = RemoteMemory { address: 0x1000, length: 64, key: 7 };
/// let whole = Rma::at(FiAddr(0), memory);
/// let with_data = Rma::at(FiAddr(0), memory).with_data(0xdada);
/// let halves = Rma::pieces(FiAddr(0), &[memory.slice(32..64)?, memory.slice(0..32)?])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Rma {
    pub(crate) peer: FiAddr,
    pub(crate) remote: Remote,
    pub(crate) cq_data: Option<u64>,
    /// `None`: that of the endpoint's default flags.
    pub(crate) level: Option<Level>,
    /// Whether it is signaled; `None`: as the endpoint's default flags say.
    pub(crate) completion: Option<bool>,
    /// Whether it completes only if it fails.
    pub(crate) is_silent: bool,
}

impl Rma {
    /// Memory of a peer.
    pub fn at(peer: FiAddr, memory: RemoteMemory) -> Self {
        Self::of(peer, Remote::from(memory.iov()))
    }

    /// Several pieces of memory of a peer, used as if they were contiguous.
    ///
    /// # Errors
    /// There are more than four.
    pub fn pieces(peer: FiAddr, pieces: &[RemoteMemory]) -> Result<Self, TooManyPieces> {
        let pieces: Vec<RmaIov> = pieces.iter().map(|piece| piece.iov()).collect();
        Ok(Self::of(peer, Remote::new(&pieces)?))
    }

    fn of(peer: FiAddr, remote: Remote) -> Self {
        Self { peer, remote, cq_data: None, level: None, completion: None, is_silent: false }
    }

    /// Sends data to the peer, which gets a completion with it (`FI_REMOTE_CQ_DATA`). Only for writes;
    /// reads and atomics ignore it.
    pub fn with_data(self, data: u64) -> Self {
        Self { cq_data: Some(data), ..self }
    }

    /// When a write, or an atomic that returns no values, completes, in place of the level of the endpoint's
    /// [default flags](crate::ContextOptions#structfield.flags).
    pub fn level(self, level: Level) -> Self {
        Self { level: Some(level), ..self }
    }

    /// The operation completes on its queue also if that was bound
    /// [selectively](crate::EndpointBuilder::selective) (`FI_COMPLETION`).
    pub fn signaled(self) -> Self {
        Self { completion: Some(true), ..self }
    }

    /// A write, or an atomic that returns no values, completes only when the memory has changed
    /// (`FI_DELIVERY_COMPLETE`).
    pub fn delivery_complete(self) -> Self {
        self.level(Level::Delivery)
    }

    /// The operation completes only if it fails, whatever the binding of its queue.
    pub(crate) fn silent(self) -> Self {
        Self { is_silent: true, level: self.level.or(Some(Level::Transmit)), ..self }
    }

    /// Sets the flags of the operation (those of `fi_writemsg` and `fi_atomicmsg`), in place of the
    /// endpoint's [default flags](crate::ContextOptions#structfield.flags), of which none is used.
    pub fn flags(self, flags: OperationFlags) -> Self {
        let completion = flags.contains(OperationFlags::COMPLETION);
        Self { level: Some(flags.level()), completion: Some(completion), ..self }
    }
}

/// A type that atomics operate on.
pub trait Element: Copy + sealed::Bytes {
    /// The type in the protocol.
    const DATATYPE: Datatype;
}

mod sealed {
    pub trait Bytes {
        fn put(self, into: &mut Vec<u8>);
    }
}

macro_rules! elements {
    ($($type:ty: $datatype:ident)*) => { $(
        impl sealed::Bytes for $type {
            fn put(self, into: &mut Vec<u8>) {
                into.extend_from_slice(&self.to_ne_bytes());
            }
        }

        impl Element for $type {
            const DATATYPE: Datatype = Datatype::$datatype;
        }
    )* };
}

elements! {
    i8: Int8 u8: Uint8 i16: Int16 u16: Uint16 i32: Int32 u32: Uint32 i64: Int64 u64: Uint64
    f32: Float f64: Double
}

/// What an atomic does to each element: operation, type and operands.
///
/// ```
/// use efa::{AtomicOp, Datatype, Operation};
/// let add = Operation::new(AtomicOp::Sum, &[1_u64, 2, 3]);
/// let read = Operation::read(Datatype::Double);
/// let swap = Operation::compare_swap(&[4_u32], &[5]);
/// let other = Operation::new(AtomicOp::CompareSwapNe, &[5_u32]).against(&[4]);
/// let any = Operation::of_bytes(AtomicOp::Prod, Datatype::DoubleComplex, vec![0; 32]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Operation {
    pub(crate) op: AtomicOp,
    pub(crate) datatype: Datatype,
    pub(crate) operand: Buffer,
    pub(crate) comparand: Option<Buffer>,
}

impl Operation {
    /// An operation with an operand for each element.
    pub fn new<T: Element>(op: AtomicOp, operand: &[T]) -> Self {
        Self::of_bytes(op, T::DATATYPE, bytes(operand))
    }

    /// Reads each element.
    pub fn read(datatype: Datatype) -> Self {
        Self::of_bytes(AtomicOp::Read, datatype, Buffer::default())
    }

    /// Gives each element that has its `current` value the `new` one, as
    /// [`compare_exchange`](std::sync::atomic::AtomicU64::compare_exchange) does ([`AtomicOp::CompareSwap`]).
    pub fn compare_swap<T: Element>(current: &[T], new: &[T]) -> Self {
        Self::new(AtomicOp::CompareSwap, new).against(current)
    }

    /// An operation on elements of any type, with operands in the byte order of the host.
    pub fn of_bytes(op: AtomicOp, datatype: Datatype, operand: impl Into<Buffer>) -> Self {
        Self { op, datatype, operand: operand.into(), comparand: None }
    }

    /// Adds a comparand for each element, of the type of the operands.
    pub fn against<T: Element>(self, comparand: &[T]) -> Self {
        self.against_bytes(bytes(comparand))
    }

    /// Adds a comparand for each element of any type, in the byte order of the host.
    pub fn against_bytes(self, comparand: impl Into<Buffer>) -> Self {
        Self { comparand: Some(comparand.into()), ..self }
    }
}

/// An atomic that was not started; what it was given comes back.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct AtomicRefused {
    /// Why.
    pub error: StartError,
    /// What it was to do, with its operands.
    pub operation: Box<Operation>,
    /// The buffer for the previous values; an empty one if it returns none.
    pub fetched: Buffer,
}

impl AtomicRefused {
    #[cold]
    pub(crate) fn new(
        error: StartError,
        (op, datatype): (AtomicOp, Datatype),
        operands: Operands<Buffer>,
    ) -> Self {
        let (operand, comparand, fetched) = match operands {
            Operands::Write { operand } => (operand, None, Buffer::default()),
            Operands::Fetch { operand, fetched } => (operand, None, fetched),
            Operands::Compare { operand, comparand, fetched } => {
                (operand, Some(comparand), fetched)
            }
        };
        Self { error, operation: Box::new(Operation { op, datatype, operand, comparand }), fetched }
    }
}

fn bytes<T: Element>(elements: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(elements));
    elements.iter().for_each(|element| element.put(&mut bytes));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_memory_of_wrong_bytes_or_beyond_its_end_is_an_error() {
        let memory = RemoteMemory { address: u64::MAX - 3, length: 3, key: 9 };
        let bytes = memory.to_bytes();
        assert_eq!(RemoteMemory::from_bytes(&bytes), Ok(memory));
        for length in [0, 23] {
            let error = RemoteMemoryError::WrongLength { length };
            assert_eq!(RemoteMemory::from_bytes(&bytes[..length]), Err(error));
        }
        let long = [&bytes[..], &[0]].concat();
        let error = RemoteMemory::from_bytes(&long).unwrap_err();
        assert_eq!(error.to_string(), "remote memory takes 24 bytes, not 25");
        assert_eq!(
            memory.slice(1..3),
            Ok(RemoteMemory { address: u64::MAX - 2, length: 2, key: 9 })
        );
        assert_eq!(memory.slice(3..3).map(|empty| empty.length), Ok(0));
        for (start, end) in [(2, 4), (4, 4), (2, 1), (0, u64::MAX)] {
            let error = RemoteMemoryError::OutOfRange { start, end, length: 3 };
            assert_eq!(memory.slice(Range { start, end }), Err(error));
        }
        let past = RemoteMemory { length: 4, ..memory };
        let error = RemoteMemoryError::PastTheEnd { address: u64::MAX - 3, length: 4 };
        assert_eq!(RemoteMemory::from_bytes(&past.to_bytes()), Err(error));
    }
}
