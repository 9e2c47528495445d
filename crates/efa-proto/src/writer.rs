//! Writing headers into a buffer, field by field.

use zerocopy::{Immutable, IntoBytes};

use crate::base::Wire;
use crate::{EmitError, PacketType};

/// Appends fields to a buffer; `None` when it is full.
pub(crate) struct Writer<'b> {
    rest: &'b mut [u8],
}

impl<'b> Writer<'b> {
    #[inline(always)]
    pub(crate) fn new(buf: &'b mut [u8]) -> Self {
        Self { rest: buf }
    }

    /// Number of bytes that still fit.
    #[inline(always)]
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    #[inline(always)]
    pub(crate) fn put<T: IntoBytes + Immutable + ?Sized>(&mut self, value: &T) -> Option<()> {
        let bytes = value.as_bytes();
        let (to, rest) = core::mem::take(&mut self.rest).split_at_mut_checked(bytes.len())?;
        to.copy_from_slice(bytes);
        self.rest = rest;
        Some(())
    }
}

/// Writes a header that is nothing but one struct.
#[inline(always)]
pub(crate) fn emit_head<T: Wire>(
    packet_type: PacketType,
    head: &T,
    buf: &mut [u8],
) -> Result<usize, EmitError> {
    let available = buf.len();
    match Writer::new(buf).put(head) {
        Some(()) => Ok(size_of::<T>()),
        None => too_small(packet_type, size_of::<T>(), available),
    }
}

/// The error for a header that does not fit, out of line and with the return type of its callers.
#[cold]
#[inline(never)]
pub(crate) fn too_small(
    packet_type: PacketType,
    needed: usize,
    available: usize,
) -> Result<usize, EmitError> {
    Err(EmitError::BufferTooSmall { packet_type, needed, available })
}
