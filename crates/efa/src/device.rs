//! The device under the objects of this crate.

use crate::buffer::Slot;

pub(crate) type Device = efa_sim::SoftDevice;
pub(crate) type QueuePair = <Device as efa_device::Device>::QueuePair;
pub(crate) type Region = <Device as efa_device::Device>::Region;

/// The protocol engine over that device.
pub(crate) type Engine = efa_rdm::Endpoint<QueuePair, Slot>;
