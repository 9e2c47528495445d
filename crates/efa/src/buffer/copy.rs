//! Copies from and to buffers.

use efa_device::{CopySource, CopyTarget};

use super::{Buffer, Memory};

impl Buffer {
    #[inline]
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        self.copy_to(offset, into.into());
    }

    #[inline]
    pub(crate) fn write(&mut self, offset: usize, from: &[u8]) {
        self.copy_from(offset, from.into());
    }

    #[inline(always)]
    pub(crate) fn copy_to(&self, offset: usize, mut into: CopyTarget<'_>) {
        let Some(from) = self.as_slice() else { return self.copy_elsewhere_to(offset, into) };
        let from = from.get(offset..).unwrap_or_default();
        let count = from.len().min(into.len());
        into.copy_from(0, &from[..count]);
    }

    /// Copies memory that is no slice.
    #[inline(never)]
    fn copy_elsewhere_to(&self, offset: usize, mut into: CopyTarget<'_>) {
        match &self.0 {
            Memory::Region(slice) => slice.copy_to(offset, into),
            Memory::Pieces(pieces) => {
                into.fill_by(|at, chunk| {
                    pieces.read(offset.saturating_add(at), chunk);
                    chunk.len()
                });
            }
            Memory::Foreign(memory) => {
                into.fill_by(|at, chunk| memory.read(offset.saturating_add(at), chunk));
            }
            _ => {}
        }
    }

    #[inline(always)]
    pub(crate) fn copy_from(&mut self, offset: usize, from: CopySource<'_>) {
        let into: &mut [u8] = match &mut self.0 {
            Memory::Vec(vec) => vec,
            Memory::BytesMut(bytes) => bytes,
            Memory::LentMut(bytes) => bytes,
            _ => return self.copy_elsewhere_from(offset, from),
        };
        let into = into.get_mut(offset..).unwrap_or_default();
        let count = into.len().min(from.len());
        from.copy_to(0, &mut into[..count]);
    }

    /// Copies to memory that is no slice.
    #[inline(never)]
    fn copy_elsewhere_from(&mut self, offset: usize, from: CopySource<'_>) {
        match &mut self.0 {
            Memory::Region(slice) => slice.copy_from(offset, from),
            Memory::Pieces(pieces) => {
                from.pass_to(|at, chunk| {
                    pieces.write(offset.saturating_add(at), chunk);
                    chunk.len()
                });
            }
            Memory::Foreign(memory) => {
                from.pass_to(|at, chunk| memory.write(offset.saturating_add(at), chunk));
            }
            // Not possible in a `ReceiveBuffer`; ignored, so that shared bytes never change.
            _ => {}
        }
    }
}
