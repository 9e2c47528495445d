//! Writes and atomics whose operands may be reused when the call returns.

use crate::any_driver::{AnyDriver, OtherDriver, each_driver, out_of_line};
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
        drive!(
            self.shared,
            driver => driver.inject_write(rma, bytes),
            _ => Err(StartError::Closed)
        )
    }

    /// Copies the operands of an atomic and does it (`fi_inject_atomic`). It has no context, and a completion only if it
    /// fails.
    ///
    /// # Errors
    /// As for [`atomic`](Self::atomic), and if the operand is longer than
    /// [`TransmitAttributes::inject_size`](crate::TransmitAttributes::inject_size).
    pub fn inject_atomic(&self, rma: Rma, operation: Operation) -> Result<(), StartError> {
        self.check_injected(operation.operand.len())?;
        let operand = operation.operand.into_vec();
        self.atomic(rma.silent(), Operation { operand: operand.into(), ..operation }, 0)
    }

    fn check_injected(&self, length: usize) -> Result<(), StartError> {
        let limit = self.shared.transmit.inject_size;
        match length <= limit {
            true => Ok(()),
            false => Err(StartError::TooLongToInject { length, limit }),
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
