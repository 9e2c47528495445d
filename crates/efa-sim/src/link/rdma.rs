//! RDMA requests, checked against the device's attributes.

use efa_device::{DeviceAttributes, DeviceError, Rdma, RdmaRequest};

use crate::region::SoftRegion;

/// The direction of an RDMA operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From remote to local memory.
    Read,
    /// From local to remote memory; the immediate data, if any, is sent when all is written.
    Write(Option<u32>),
}

/// The EFA device generation with these abilities. Only the first doesn't read remote memory;
/// libfabric from 1.18 on aborts if a later one doesn't.
pub(crate) fn vendor_part_id(rdma: Rdma) -> u32 {
    if rdma.read { 0xefa2 } else { 0xefa0 }
}

/// Checks that a device with these attributes carries the request out.
pub(crate) fn check(
    attributes: &DeviceAttributes,
    request: &RdmaRequest<SoftRegion>,
    direction: Direction,
) -> Result<(), DeviceError> {
    let (possible, operation) = match direction {
        Direction::Read => (attributes.rdma.read, "RDMA read"),
        Direction::Write(_) => (attributes.rdma.write, "RDMA write"),
    };
    if !possible {
        return Err(DeviceError::Unsupported { operation });
    }
    request.local.check()?;
    let (length, limit) = (request.local.length as u64, attributes.max_rdma_size);
    if length > limit { Err(DeviceError::TooLong { length, limit }) } else { Ok(()) }
}
