//! A buffer of several pieces, which one message fills or comes from.
//!
//! ```text
//!   [piece 0 │ piece 1 │ … up to 28] ─► one message ─► the same pieces come back with the completion
//! ```

use efa_device::Region as _;

use crate::buffer::{Buffer, ReceiveBuffer};
use crate::device::AnyRegion;

/// Most pieces of a buffer.
pub(crate) const MOST_PIECES: usize = 28;

/// More pieces than a buffer can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a buffer of {count} pieces, at most {} are possible", MOST_PIECES)]
pub struct TooManyBuffers {
    /// The number of pieces.
    pub count: usize,
}

/// Pieces in order, used as if they were contiguous. No piece has pieces.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pieces(Vec<Buffer>);

impl Pieces {
    fn new(buffers: impl Iterator<Item = Buffer>) -> Result<Self, TooManyBuffers> {
        let pieces: Vec<Buffer> = buffers.flat_map(Buffer::into_pieces).collect();
        match pieces.len() {
            count if count > MOST_PIECES => Err(TooManyBuffers { count }),
            _ => Ok(Self(pieces)),
        }
    }

    pub(crate) fn as_slice(&self) -> &[Buffer] {
        &self.0
    }

    pub(crate) fn into_vec(self) -> Vec<Buffer> {
        self.0
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(Buffer::len).sum()
    }

    /// The registered range from byte `offset` on: to the end of its piece, or of those after it that follow it in
    /// memory. `None` unless all pieces are registered.
    pub(crate) fn registered_from(&self, offset: usize) -> Option<(&AnyRegion, usize, usize)> {
        let mut skip = offset;
        let mut found: Option<(&AnyRegion, usize, usize)> = None;
        let mut is_open = true;
        for piece in &self.0 {
            if piece.is_empty() {
                continue;
            }
            let (region, first, length) = piece.region()?.location();
            found = match found {
                None if skip >= length => {
                    skip -= length;
                    None
                }
                None => Some((region, first + skip, length - skip)),
                Some((same, start, before))
                    if is_open
                        && start + before == first
                        && same.remote_key() == region.remote_key() =>
                {
                    Some((same, start, before + length))
                }
                other => {
                    is_open = false;
                    other
                }
            };
        }
        found
    }

    /// All bytes, copied.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.read(0, &mut bytes);
        bytes
    }

    pub(crate) fn read(&self, offset: usize, mut into: &mut [u8]) {
        let mut skip = offset;
        for piece in &self.0 {
            let begin = skip.min(piece.len());
            skip -= begin;
            let (part, rest) = into.split_at_mut((piece.len() - begin).min(into.len()));
            piece.read(begin, part);
            into = rest;
        }
    }

    pub(crate) fn write(&mut self, offset: usize, mut from: &[u8]) {
        let mut skip = offset;
        for piece in &mut self.0 {
            let begin = skip.min(piece.len());
            skip -= begin;
            let (part, rest) = from.split_at((piece.len() - begin).min(from.len()));
            piece.write(begin, part);
            from = rest;
        }
    }

    pub(crate) fn truncate(&mut self, mut length: usize) {
        self.0.retain_mut(|piece| {
            let keep = piece.len().min(length);
            length -= keep;
            piece.truncate(keep);
            keep > 0
        });
    }

    /// Splits off the first `at` bytes, of at most all.
    pub(crate) fn split_to(&mut self, mut at: usize) -> Self {
        let mut first = Vec::new();
        while at > 0 && !self.0.is_empty() {
            let length = self.0[0].len();
            if length <= at {
                first.push(self.0.remove(0));
            } else {
                first.push(self.0[0].split_to(at));
            }
            at -= length.min(at);
        }
        Self(first)
    }
}

impl Buffer {
    /// Several pieces of memory as one buffer, in this order: one message comes from all of them or fills them
    /// (an `iov` of `fi_sendv`, `fi_writev`). The pieces of a piece count each.
    ///
    /// If all are slices of regions, the device accesses them in place wherever it would a single slice. A packet names
    /// 4 ranges at most, so a longer message of more than 4 is sent in packets; slices that follow each other in a
    /// region are one range.
    ///
    /// ```
    /// use efa::Buffer;
    /// let header = Buffer::from(vec![1, 2]);
    /// let body = Buffer::from("body");
    /// let message = Buffer::pieces([header, body])?;
    /// assert_eq!(message.len(), 6);
    /// assert_eq!(message, *b"\x01\x02body");
    /// # Ok::<(), efa::TooManyBuffers>(())
    /// ```
    ///
    /// # Errors
    /// There are more than [`TransmitAttributes::iov_limit`](crate::TransmitAttributes::iov_limit), 28.
    pub fn pieces<B: Into<Self>>(
        pieces: impl IntoIterator<Item = B>,
    ) -> Result<Self, TooManyBuffers> {
        Ok(Self::of_pieces(Pieces::new(pieces.into_iter().map(Into::into))?))
    }
}

impl ReceiveBuffer {
    /// Several pieces of memory as one buffer, in this order: one message, or the bytes of one read, fill them
    /// (an `iov` of `fi_recvv`, `fi_readv`).
    ///
    /// # Errors
    /// There are more than [`ReceiveAttributes::iov_limit`](crate::ReceiveAttributes::iov_limit), 28.
    pub fn pieces<B: Into<Self>>(
        pieces: impl IntoIterator<Item = B>,
    ) -> Result<Self, TooManyBuffers> {
        let pieces = pieces.into_iter().map(|piece| piece.into().0);
        Ok(Self(Buffer::pieces(pieces)?))
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;

    fn pieces() -> Buffer {
        let mutable = BytesMut::from(&[3, 4, 5][..]);
        let pieces: [Buffer; 4] =
            [vec![0, 1, 2].into(), Vec::new().into(), mutable.into(), vec![6].into()];
        Buffer::pieces(pieces).unwrap()
    }

    #[test]
    fn pieces_are_read_written_and_split_at_every_position() {
        for begin in 0..=7 {
            for end in begin..=7 {
                let mut buffer = pieces();
                let mut bytes = vec![0xff; end - begin];
                buffer.read(begin, &mut bytes);
                assert_eq!(bytes, (begin as u8..end as u8).collect::<Vec<_>>());
                buffer.write(begin, &vec![9; end - begin]);
                let changed = |at: usize| (begin..end).contains(&at);
                let expected = (0..7).map(|at| if changed(at) { 9 } else { at as u8 });
                assert_eq!(buffer, expected.collect::<Vec<_>>());
            }
            let mut buffer = pieces();
            let first = buffer.split_to(begin);
            assert_eq!(first.into_vec(), (0..begin as u8).collect::<Vec<_>>());
            assert_eq!(buffer.into_vec(), (begin as u8..7).collect::<Vec<_>>());
            let mut buffer = pieces();
            buffer.truncate(begin);
            assert_eq!(buffer.into_bytes(), (0..begin as u8).collect::<Vec<_>>());
        }
    }

    #[test]
    fn accesses_past_the_last_piece_are_ignored() {
        let mut buffer = pieces();
        buffer.write(6, &[8, 8, 8]);
        buffer.write(usize::MAX, &[1]);
        assert_eq!(buffer, [0, 1, 2, 3, 4, 5, 8]);
        let mut bytes = [7; 3];
        buffer.read(6, &mut bytes);
        assert_eq!(bytes, [8, 7, 7]);
    }

    #[test]
    fn more_pieces_than_the_limit_are_refused_also_if_they_are_nested() {
        let of = |count| Buffer::pieces(vec![Buffer::default(); count]);
        assert_eq!(of(28).unwrap().into_pieces().len(), 28);
        assert_eq!(of(29), Err(TooManyBuffers { count: 29 }));
        let nested = |last| Buffer::pieces([of(14).unwrap(), of(last).unwrap()]);
        assert_eq!(nested(14).unwrap().into_pieces().len(), 28);
        assert_eq!(nested(15), Err(TooManyBuffers { count: 29 }));
    }
}
