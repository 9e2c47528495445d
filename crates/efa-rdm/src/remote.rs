//! Memory of a peer by address, length and key, as operations and packets name it.

use efa_device::RemoteMemory;
use efa_proto::{MAX_IOV, RmaIov};

/// Memory of a peer: up to [`MAX_IOV`] pieces, used in order as one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    pieces: [RmaIov; MAX_IOV],
    count: u8,
}

impl From<RmaIov> for Remote {
    fn from(piece: RmaIov) -> Self {
        Self::named(&[piece])
    }
}

/// Room for the pieces of a buffer.
pub(crate) const NO_PIECES: [RmaIov; MAX_IOV] = [RmaIov::new(0, 0, 0); MAX_IOV];

/// More than [`MAX_IOV`] pieces of remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{count} pieces of remote memory, the limit is {MAX_IOV}")]
pub struct TooManyPieces {
    /// The number of pieces.
    pub count: usize,
}

impl Remote {
    /// Remote memory made of these pieces.
    ///
    /// # Errors
    /// There are more than [`MAX_IOV`].
    pub fn new(pieces: &[RmaIov]) -> Result<Self, TooManyPieces> {
        let count = pieces.len();
        if count > MAX_IOV { Err(TooManyPieces { count }) } else { Ok(Self::named(pieces)) }
    }

    /// The memory that a packet names. Pieces beyond [`MAX_IOV`], which no packet has, are left out.
    pub(crate) fn named(iov: &[RmaIov]) -> Self {
        let mut pieces = NO_PIECES;
        let count = iov.len().min(MAX_IOV);
        pieces[..count].copy_from_slice(&iov[..count]);
        Self { pieces, count: count as u8 }
    }

    /// The pieces.
    #[must_use]
    pub fn pieces(&self) -> &[RmaIov] {
        &self.pieces[..usize::from(self.count)]
    }

    /// Whether the device can access it: device keys have 32 bits, longer ones are of software.
    pub(crate) fn is_of_device(&self) -> bool {
        self.pieces().iter().all(|piece| u32::try_from(piece.key()).is_ok())
    }

    /// The address and key of byte `offset`, and the number of bytes from there to the end of its piece.
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

/// Total length of the pieces in bytes; `None` if it overflows.
pub(crate) fn total(iov: &[RmaIov]) -> Option<u64> {
    iov.iter().try_fold(0_u64, |sum, piece| sum.checked_add(piece.len()))
}
