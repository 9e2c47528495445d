//! Operations whose buffers may be reused when the call returns.
//!
//! ```text
//!   bytes ─► copy in a block of the endpoint ─► operation ─► dropped
//!                 └── full: the other block, if all of its copies were dropped, else a new one
//! ```

use bytes::BytesMut;

use crate::buffer::Buffer;
use crate::capabilities::Capabilities;
use crate::completion::StartError;
use crate::endpoint::{Endpoint, Shared, drive};
use crate::region::LocalAccess;
use crate::rma::{Operation, Rma};

use efa_rdm::Operands;

impl Endpoint {
    /// Copies some bytes and writes them to memory of a peer (`fi_inject_write`, `fi_inject_writedata`). It has no
    /// context, and a completion only if it fails.
    ///
    /// # Errors
    /// As for [`write`](Self::write), and if they are more than
    /// [`TransmitAttributes::inject_size`](crate::TransmitAttributes::inject_size).
    pub fn inject_write(&self, rma: Rma, bytes: &[u8]) -> Result<(), StartError> {
        self.require_to_transmit(Capabilities::RMA)?;
        self.check_injected(bytes.len())?;
        let copy = self.shared.copies.lock().copy(bytes.len(), |to| to.copy_from_slice(bytes));
        drive!(
            self.shared,
            driver => driver.inject_write(rma, copy),
            _ => Err(StartError::Closed)
        )
    }

    /// A copy of some bytes for an operation that is to leave them alone once it has started (`FI_INJECT`). The next
    /// copies use the same memory again, so that no allocation is needed if operations end.
    ///
    /// # Errors
    /// They are more than [`TransmitAttributes::inject_size`](crate::TransmitAttributes::inject_size).
    pub fn copy_injected(&self, buffer: &Buffer) -> Result<Buffer, StartError> {
        let length = buffer.len();
        self.check_injected(length)?;
        Ok(self.shared.copies.lock().copy(length, |to| buffer.read(0, to)))
    }

    /// Copies the operands of an atomic and does it (`fi_inject_atomic`). It has no context, and a completion only if it
    /// fails.
    ///
    /// # Errors
    /// As for [`atomic`](Self::atomic), and if the operand is longer than
    /// [`TransmitAttributes::inject_size`](crate::TransmitAttributes::inject_size).
    pub fn inject_atomic(&self, rma: Rma, operation: Operation) -> Result<(), StartError> {
        let operand = self.copy_injected(&operation.operand)?;
        let started = self.atomic(rma.silent(), Operation { operand, ..operation }, 0);
        started.map_err(|refused| refused.error)
    }

    fn check_injected(&self, length: usize) -> Result<(), StartError> {
        let limit = self.shared.transmit.inject_size;
        match length <= limit {
            true => Ok(()),
            false => Err(StartError::TooLongToInject { length, limit }),
        }
    }
}

/// Bytes of a block of copies.
const BLOCK: usize = 64 << 10;

/// Copies of the bytes of operations, one behind the other in blocks that are used in turn.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    block: BytesMut,
    other: BytesMut,
}

impl Copies {
    fn copy(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) -> Buffer {
        if self.block.capacity() < length {
            self.next_block(length);
        }
        self.block.resize(length, 0);
        fill(&mut self.block);
        self.block.split().freeze().into()
    }

    #[cold]
    fn next_block(&mut self, length: usize) {
        std::mem::swap(&mut self.block, &mut self.other);
        if self.block.capacity() < length && !self.block.try_reclaim(length) {
            self.block = BytesMut::with_capacity(BLOCK.max(length));
        }
    }
}

impl Shared {
    /// Whether an atomic can use its buffers. Operands needn't be registered: the packet has a copy of them.
    pub(crate) fn check_operands(&self, operands: &Operands<Buffer>) -> Result<(), StartError> {
        let (operand, comparand, fetched) = match operands {
            Operands::Write { operand } => (operand, None, None),
            Operands::Fetch { operand, fetched } => (operand, None, Some(fetched)),
            Operands::Compare { operand, comparand, fetched } => {
                (operand, Some(comparand), Some(fetched))
            }
        };
        for operand in [Some(operand), comparand].into_iter().flatten() {
            if operand.has_regions() {
                self.check_buffer(operand, LocalAccess::WRITE)?;
            }
        }
        fetched.map_or(Ok(()), |fetched| self.check_buffer(fetched, LocalAccess::READ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(copies: &mut Copies, byte: u8) -> Buffer {
        copies.copy(1000, |to| to.fill(byte))
    }

    fn address(buffer: &Buffer) -> *const u8 {
        buffer.as_slice().unwrap().as_ptr()
    }

    #[test]
    fn blocks_of_copies_that_were_dropped_are_used_again() {
        let mut copies = Copies::default();
        let mut seen = std::collections::HashSet::new();
        for round in 0..10_000 {
            seen.insert(address(&copy(&mut copies, round as u8)));
        }
        assert!(seen.len() <= 2 * BLOCK / 1000, "{} places", seen.len());
    }

    #[test]
    fn copy_stays_as_it_is_while_others_are_made() {
        let mut copies = Copies::default();
        let kept: Vec<_> = (0..=255).map(|byte| copy(&mut copies, byte)).collect();
        for (byte, buffer) in (0..=255).zip(&kept) {
            assert_eq!(buffer.as_slice(), Some([byte; 1000].as_slice()));
        }
        assert_eq!(copies.copy(0, |_| {}).len(), 0);
    }
}
