//! One-sided operations: what they are about.

use efa_rdm::{AtomicOp, Datatype, Level, Remote, RmaIov, TooManyPieces};

use crate::address_vector::FiAddr;
use crate::region::{MemoryRegion, RegionSlice};

/// Memory of a peer, as it names it: what [`MemoryRegion::remote`] gave there and some message
/// brought here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// The key of its region.
    pub key: u64,
}

impl RemoteMemory {
    /// The part of `length` bytes from `offset` on. Whether it lies in the region is looked at when
    /// it is used.
    #[must_use]
    pub const fn part(self, offset: u64, length: u64) -> Self {
        Self { address: self.address.wrapping_add(offset), length, key: self.key }
    }

    fn iov(self) -> RmaIov {
        RmaIov::new(self.address, self.length, self.key)
    }
}

impl MemoryRegion {
    /// All of it, as peers name it.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory { address: self.remote_address(), length: self.len() as u64, key: self.key() }
    }
}

impl RegionSlice {
    /// The part, as peers name it.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        let range = self.range();
        self.region().remote().part(range.start as u64, range.len() as u64)
    }
}

/// Which memory an operation is about, and how it is to be done.
///
/// ```
/// use efa::{FiAddr, RemoteMemory, Rma};
/// let memory = RemoteMemory { address: 0x1000, length: 64, key: 7 };
/// let whole = Rma::at(FiAddr(0), memory);
/// let told = Rma::at(FiAddr(0), memory).with_data(0xdada);
/// let halves = Rma::pieces(FiAddr(0), &[memory.part(32, 32), memory.part(0, 32)])?;
/// # Ok::<(), efa::TooManyPieces>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Rma {
    pub(crate) peer: FiAddr,
    pub(crate) remote: Remote,
    pub(crate) cq_data: Option<u64>,
    pub(crate) level: Level,
}

impl Rma {
    /// Memory of a peer.
    pub fn at(peer: FiAddr, memory: RemoteMemory) -> Self {
        Self::of(peer, Remote::from(memory.iov()))
    }

    /// Several pieces of memory of a peer, one behind the other.
    ///
    /// # Errors
    /// There are more than four.
    pub fn pieces(peer: FiAddr, pieces: &[RemoteMemory]) -> Result<Self, TooManyPieces> {
        let pieces: Vec<RmaIov> = pieces.iter().map(|piece| piece.iov()).collect();
        Ok(Self::of(peer, Remote::new(&pieces)?))
    }

    fn of(peer: FiAddr, remote: Remote) -> Self {
        Self { peer, remote, cq_data: None, level: Level::Transmit }
    }

    /// Passes data to a completion at the peer, which gets none otherwise (`FI_REMOTE_CQ_DATA`).
    /// It means something to writes only.
    pub fn with_data(self, data: u64) -> Self {
        Self { cq_data: Some(data), ..self }
    }

    /// Has a write, or an atomic without previous values, complete only when it is done at the peer
    /// (`FI_DELIVERY_COMPLETE`).
    pub fn delivery_complete(self) -> Self {
        Self { level: Level::Delivery, ..self }
    }
}

/// A type of elements that atomics work on.
pub trait Element: Copy + sealed::Bytes {
    /// Its name in the protocol.
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

/// What an atomic does to each element: an operation on a type, with its operands.
///
/// ```
/// use efa::{AtomicOp, Datatype, Operation};
/// let add = Operation::new(AtomicOp::Sum, &[1_u64, 2, 3]);
/// let read = Operation::read(Datatype::Double);
/// let swap = Operation::compare(AtomicOp::CompareSwap, &[5_u32], &[4]);
/// let any = Operation::of_bytes(AtomicOp::Prod, Datatype::DoubleComplex, vec![0; 32]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Operation {
    pub(crate) op: AtomicOp,
    pub(crate) datatype: Datatype,
    pub(crate) operand: Vec<u8>,
    pub(crate) comparand: Option<Vec<u8>>,
}

impl Operation {
    /// An operation with an operand for each element.
    pub fn new<T: Element>(op: AtomicOp, operand: &[T]) -> Self {
        Self::of_bytes(op, T::DATATYPE, bytes(operand))
    }

    /// Reads each element.
    pub fn read(datatype: Datatype) -> Self {
        Self::of_bytes(AtomicOp::Read, datatype, Vec::new())
    }

    /// An operation with an operand and a comparand for each element.
    pub fn compare<T: Element>(op: AtomicOp, operand: &[T], comparand: &[T]) -> Self {
        Self::new(op, operand).against(bytes(comparand))
    }

    /// An operation on elements of any type, in the byte order of the host.
    pub fn of_bytes(op: AtomicOp, datatype: Datatype, operand: Vec<u8>) -> Self {
        Self { op, datatype, operand, comparand: None }
    }

    /// The same with a comparand.
    pub fn against(self, comparand: Vec<u8>) -> Self {
        Self { comparand: Some(comparand), ..self }
    }
}

fn bytes<T: Element>(elements: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(elements));
    elements.iter().for_each(|element| element.put(&mut bytes));
    bytes
}
