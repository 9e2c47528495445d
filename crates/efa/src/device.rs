//! The device under the objects of this crate.
//!
//! Without the feature `verbs` that is the software device, whatever its link. With it there are two
//! kinds, told apart at run time.

use crate::buffer::Slot;

#[cfg(feature = "verbs")]
mod any;

#[cfg(feature = "verbs")]
pub(crate) type Device = any::AnyDevice;
#[cfg(not(feature = "verbs"))]
pub(crate) type Device = efa_sim::SoftDevice;
pub(crate) type QueuePair = <Device as efa_device::Device>::QueuePair;
pub(crate) type Region = <Device as efa_device::Device>::Region;

#[cfg(feature = "verbs")]
mod verbs {
    use efa_device::{Device as _, DeviceAttributes, DeviceError};
    use efa_verbs::VerbsDevice;

    use super::Device;

    /// The interface of this name, or the first.
    pub(crate) fn open(interface: Option<&str>) -> Result<Device, DeviceError> {
        VerbsDevice::open(interface).map(Device::Verbs)
    }

    /// The interface of this name, or all.
    pub(crate) fn find(interface: Option<&str>) -> Result<Vec<DeviceAttributes>, DeviceError> {
        let names = match interface {
            Some(name) => vec![name.to_owned()],
            None => efa_verbs::interfaces()?,
        };
        let open = |name: &String| VerbsDevice::open(Some(name));
        names.iter().map(|name| open(name).map(|device| device.attributes().clone())).collect()
    }
}

/// A build without rdma-core has no such interface.
#[cfg(not(feature = "verbs"))]
mod verbs {
    use efa_device::{DeviceAttributes, DeviceError};

    use super::Device;

    const REASON: &str = "this build knows no rdma-core: it takes the cargo feature `verbs`";

    pub(crate) fn open(_: Option<&str>) -> Result<Device, DeviceError> {
        Err(DeviceError::Absent { reason: REASON.into() })
    }

    pub(crate) fn find(_: Option<&str>) -> Result<Vec<DeviceAttributes>, DeviceError> {
        Err(DeviceError::Absent { reason: REASON.into() })
    }
}

pub(crate) use verbs::{find as find_interfaces, open as open_interface};

/// The protocol engine over that device.
pub(crate) type Engine = efa_rdm::Endpoint<QueuePair, Slot>;
