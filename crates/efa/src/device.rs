//! The device under the objects of this crate: the software device, whatever its link, or with the
//! feature `verbs` an interface of rdma-core. They are told apart at run time.
//!
//! ```text
//!   Endpoint ─► AnyDriver ─┬─ Soft ──► Driver ─► engine ─► queue pair of the software device
//!                          └─ Verbs ─► Driver ─► engine ─► queue pair of rdma-core
//! ```
//!
//! That is once a call: driver and engine are made for each kind, and nothing on the way of a packet
//! asks which it is.

use efa_device::{
    Access, Device as _, DeviceAttributes, DeviceError, QueuePairOptions, RegisterError,
};
use efa_rdm::Config;
use efa_sim::SoftDevice;
use efa_sim::region::SoftRegion;
#[cfg(feature = "verbs")]
use efa_verbs::{VerbsDevice, VerbsRegion};

use crate::driver::{Bindings, Driver};
use crate::error::EnableError;

/// Does the same with whichever it is.
macro_rules! each {
    ($kind:ident in $on:expr, $name:ident => $call:expr) => {
        match $on {
            $kind::Soft($name) => $call,
            #[cfg(feature = "verbs")]
            $kind::Verbs($name) => $call,
        }
    };
}
pub(crate) use each;

/// A device.
#[derive(Clone, Debug)]
pub(crate) enum Device {
    Soft(SoftDevice),
    #[cfg(feature = "verbs")]
    Verbs(VerbsDevice),
}

/// What drives an endpoint.
#[derive(Debug)]
pub(crate) enum AnyDriver {
    Soft(Box<Driver<<SoftDevice as efa_device::Device>::QueuePair>>),
    #[cfg(feature = "verbs")]
    Verbs(Box<Driver<<VerbsDevice as efa_device::Device>::QueuePair>>),
}

impl<S: Into<SoftDevice>> From<S> for Device {
    fn from(device: S) -> Self {
        Self::Soft(device.into())
    }
}

impl Device {
    pub(crate) fn attributes(&self) -> &DeviceAttributes {
        each!(Self in self, device => device.attributes())
    }

    pub(crate) fn register(
        &self,
        memory: Box<[u8]>,
        access: Access,
    ) -> Result<Region, RegisterError> {
        each!(Self in self, device => device.register(memory, access).map(Own::into_any))
    }

    /// An engine on a new queue pair, and what joins it to the other objects.
    pub(crate) fn drive(
        &self,
        options: QueuePairOptions,
        config: Config,
        bindings: Bindings,
    ) -> Result<AnyDriver, EnableError> {
        Ok(match self {
            Self::Soft(device) => {
                let queue_pair = device.create_queue_pair(options)?;
                AnyDriver::Soft(Box::new(Driver::new(queue_pair, config, bindings)?))
            }
            #[cfg(feature = "verbs")]
            Self::Verbs(device) => {
                let queue_pair = device.create_queue_pair(options)?;
                AnyDriver::Verbs(Box::new(Driver::new(queue_pair, config, bindings)?))
            }
        })
    }
}

// ---- registered memory --------------------------------------------------------------------------

/// Registered memory of a device.
#[derive(Clone, Debug)]
pub(crate) enum Region {
    Soft(SoftRegion),
    #[cfg(feature = "verbs")]
    Verbs(VerbsRegion),
}

/// The regions of one kind of device.
pub(crate) trait Own: efa_device::Region {
    /// This one, as one of any.
    fn into_any(self) -> Region;
    /// That one, if it is of this kind.
    fn of(any: Region) -> Option<Self>;
}

impl Own for SoftRegion {
    fn into_any(self) -> Region {
        Region::Soft(self)
    }

    fn of(any: Region) -> Option<Self> {
        match any {
            Region::Soft(region) => Some(region),
            #[cfg(feature = "verbs")]
            Region::Verbs(_) => None,
        }
    }
}

#[cfg(feature = "verbs")]
impl Own for VerbsRegion {
    fn into_any(self) -> Region {
        Region::Verbs(self)
    }

    fn of(any: Region) -> Option<Self> {
        match any {
            Region::Soft(_) => None,
            Region::Verbs(region) => Some(region),
        }
    }
}

impl efa_device::Region for Region {
    fn length(&self) -> usize {
        each!(Self in self, region => region.length())
    }

    fn remote_address(&self) -> u64 {
        each!(Self in self, region => region.remote_address())
    }

    fn remote_key(&self) -> u32 {
        each!(Self in self, region => region.remote_key())
    }

    fn access(&self) -> Access {
        each!(Self in self, region => region.access())
    }

    #[inline(never)]
    fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        each!(Self in self, region => region.read(offset, into))
    }

    #[inline(never)]
    fn write(&self, offset: usize, from: &[u8]) -> usize {
        each!(Self in self, region => region.write(offset, from))
    }

    fn update(&self, offset: usize, bytes: &mut [u8], change: impl FnOnce(&mut [u8])) -> usize {
        each!(Self in self, region => region.update(offset, bytes, change))
    }

    fn reclaim(self) -> Result<Box<[u8]>, Self> {
        each!(Self in self, region => region.reclaim().map_err(Own::into_any))
    }
}

// ---- interfaces ---------------------------------------------------------------------------------

/// The interface of this name, or the first.
#[cfg(feature = "verbs")]
pub(crate) fn open_interface(interface: Option<&str>) -> Result<Device, DeviceError> {
    VerbsDevice::open(interface).map(Device::Verbs)
}

/// The interface of this name, or all.
#[cfg(feature = "verbs")]
pub(crate) fn find_interfaces(
    interface: Option<&str>,
) -> Result<Vec<DeviceAttributes>, DeviceError> {
    let names = match interface {
        Some(name) => vec![name.to_owned()],
        None => efa_verbs::interfaces()?,
    };
    let open = |name: &String| VerbsDevice::open(Some(name));
    names.iter().map(|name| open(name).map(|device| device.attributes().clone())).collect()
}

/// A build without rdma-core has no interface.
#[cfg(not(feature = "verbs"))]
mod without {
    use super::*;

    const REASON: &str = "this build knows no rdma-core: it takes the cargo feature `verbs`";

    pub(crate) fn open_interface(_: Option<&str>) -> Result<Device, DeviceError> {
        Err(DeviceError::Absent { reason: REASON.into() })
    }

    pub(crate) fn find_interfaces(_: Option<&str>) -> Result<Vec<DeviceAttributes>, DeviceError> {
        Err(DeviceError::Absent { reason: REASON.into() })
    }
}

#[cfg(not(feature = "verbs"))]
pub(crate) use without::{find_interfaces, open_interface};
