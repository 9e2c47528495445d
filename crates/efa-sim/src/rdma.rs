//! What is the same of RDMA operations on the shm and the tcp link.

use efa_device::{DeviceAttributes, DeviceError, Rdma, RdmaRequest};

use crate::region::SoftRegion;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    /// With immediate data, which is sent when all is written.
    Write(Option<u32>),
}

/// The generation of the device that this is most like. The first one alone doesn't read remote
/// memory; libfabric from 1.18 on aborts if another doesn't.
pub(crate) fn vendor_part_id(rdma: Rdma) -> u32 {
    if rdma.read { 0xefa2 } else { 0xefa0 }
}

/// Whether a device with these attributes does that.
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
