//! Memory of a peer, as operations and packets name it.

use efa_device::RemoteMemory;
use efa_proto::{MAX_IOV, RmaIov};

/// Memory of a peer in pieces, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    pieces: [RmaIov; MAX_IOV],
    count: u8,
}

impl From<RmaIov> for Remote {
    fn from(piece: RmaIov) -> Self {
        Self::named(&[piece])
    }
}

/// More pieces of remote memory than a packet can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{count} pieces of remote memory, at most {MAX_IOV} can be named")]
pub struct TooManyPieces {
    /// How many were given.
    pub count: usize,
}

impl Remote {
    /// Pieces of memory by address, length and key.
    ///
    /// # Errors
    /// There are more than four.
    pub fn new(pieces: &[RmaIov]) -> Result<Self, TooManyPieces> {
        let count = pieces.len();
        if count > MAX_IOV { Err(TooManyPieces { count }) } else { Ok(Self::named(pieces)) }
    }

    /// The memory that a packet names. Packets name at most [`MAX_IOV`] pieces.
    pub(crate) fn named(iov: &[RmaIov]) -> Self {
        let mut pieces = [RmaIov::new(0, 0, 0); MAX_IOV];
        let count = iov.len().min(MAX_IOV);
        pieces[..count].copy_from_slice(&iov[..count]);
        Self { pieces, count: count as u8 }
    }

    /// The pieces.
    #[must_use]
    pub fn pieces(&self) -> &[RmaIov] {
        &self.pieces[..usize::from(self.count)]
    }

    /// Whether the device can reach it: keys beyond 32 bits are software's.
    pub(crate) fn is_of_device(&self) -> bool {
        self.pieces().iter().all(|piece| u32::try_from(piece.key()).is_ok())
    }

    /// Where byte `offset` lies, and how many follow in the same piece.
    pub(crate) fn at(&self, mut offset: u64) -> Option<(RemoteMemory, u64)> {
        for piece in self.pieces() {
            if offset < piece.len() {
                let address = piece.addr().wrapping_add(offset);
                let key = u32::try_from(piece.key()).ok()?;
                return Some((RemoteMemory { address, key }, piece.len() - offset));
            }
            offset -= piece.len();
        }
        None
    }
}

/// Length of all pieces, unless that is absurd.
pub(crate) fn total(iov: &[RmaIov]) -> Option<u64> {
    iov.iter().try_fold(0_u64, |sum, piece| sum.checked_add(piece.len()))
}
