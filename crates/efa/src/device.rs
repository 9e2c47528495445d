//! The device under the objects of this crate, of any kind: the software device, whatever its link
//! (feature `sim`), or an EFA interface of this machine through rdma-core.

use efa_device::{
    Access, CopySource, CopyTarget, Device as _, DeviceAttributes, DeviceError, ForeignMemory, Gid,
    RegisterError,
};
#[cfg(feature = "sim")]
use efa_sim::{SoftDevice, SoftRegion};
use efa_verbs::{Packet as VerbsPacket, VerbsDevice, VerbsRegion};

use crate::packet::Packet;

/// Evaluates `$call` with the value of whichever variant it is.
macro_rules! each {
    ($kind:ident in $on:expr, $name:ident => $call:expr) => {
        match $on {
            #[cfg(feature = "sim")]
            $kind::Soft($name) => $call,
            $kind::Verbs($name) => $call,
        }
    };
}

#[derive(Clone, Debug)]
pub(crate) enum Device {
    #[cfg(feature = "sim")]
    Soft(SoftDevice),
    Verbs(VerbsDevice),
}

#[cfg(feature = "sim")]
impl<S: Into<SoftDevice>> From<S> for Device {
    fn from(device: S) -> Self {
        Self::Soft(device.into())
    }
}

impl Device {
    pub(crate) fn attributes(&self) -> &DeviceAttributes {
        each!(Self in self, device => device.attributes())
    }

    /// Fails if it doesn't reach another interface.
    pub(crate) fn check_reach(&self, theirs: Gid) -> Result<(), DeviceError> {
        each!(Self in self, device => match device.reaches(theirs) {
            true => Ok(()),
            false => Err(DeviceError::Unreachable { ours: device.gid(), theirs }),
        })
    }

    pub(crate) fn register(
        &self,
        memory: Box<[u8]>,
        access: Access,
    ) -> Result<AnyRegion, RegisterError> {
        each!(Self in self, device => {
            device.register(memory, access).map(ConcreteRegion::into_any)
        })
    }

    pub(crate) fn allocate(&self, length: usize, access: Access) -> Result<AnyRegion, DeviceError> {
        each!(Self in self, device => device.allocate(length, access).map(ConcreteRegion::into_any))
    }

    pub(crate) fn register_foreign(
        &self,
        memory: &ForeignMemory,
        access: Access,
    ) -> Result<AnyRegion, DeviceError> {
        each!(Self in self, device => {
            device.register_foreign(memory, access).map(ConcreteRegion::into_any)
        })
    }

    /// Fails if threads can't sleep until the device has something.
    pub(crate) fn check_notifies(&self) -> Result<(), DeviceError> {
        match self {
            #[cfg(feature = "sim")]
            Self::Soft(_) => Ok(()),
            Self::Verbs(device) => device.check_notifies(),
        }
    }

    /// Whether its queue pairs accept a packet.
    pub(crate) fn owns(&self, packet: &Packet) -> bool {
        match (self, packet.memory()) {
            #[cfg(feature = "sim")]
            (Self::Soft(device), AnyPacket::Soft(bytes)) => bytes.len() == device.attributes().mtu,
            (Self::Verbs(device), AnyPacket::Verbs(packet)) => device.owns(packet),
            #[cfg(feature = "sim")]
            _ => false,
        }
    }
}

// ---- packets ------------------------------------------------------------------------------------

/// A packet of a device of any kind.
#[derive(Debug)]
pub(crate) enum AnyPacket {
    #[cfg(feature = "sim")]
    Soft(SoftPacket),
    Verbs(VerbsPacket),
}

#[cfg(feature = "sim")]
type SoftPacket = Box<[u8]>;

/// The packet type of one kind of device.
pub(crate) trait ConcretePacket: AsRef<[u8]> + Sized {
    fn into_any(self) -> AnyPacket;
    /// Returns `any` if it is a packet of another kind of device.
    fn from_any(any: AnyPacket) -> Result<Self, AnyPacket>;
}

#[cfg(feature = "sim")]
impl ConcretePacket for SoftPacket {
    fn into_any(self) -> AnyPacket {
        AnyPacket::Soft(self)
    }

    fn from_any(any: AnyPacket) -> Result<Self, AnyPacket> {
        match any {
            AnyPacket::Soft(packet) => Ok(packet),
            other => Err(other),
        }
    }
}

impl ConcretePacket for VerbsPacket {
    fn into_any(self) -> AnyPacket {
        AnyPacket::Verbs(self)
    }

    fn from_any(any: AnyPacket) -> Result<Self, AnyPacket> {
        match any {
            AnyPacket::Verbs(packet) => Ok(packet),
            #[cfg(feature = "sim")]
            other => Err(other),
        }
    }
}

impl AsRef<[u8]> for AnyPacket {
    fn as_ref(&self) -> &[u8] {
        each!(Self in self, packet => packet.as_ref())
    }
}

// ---- registered memory --------------------------------------------------------------------------

/// Registered memory of a device of any kind.
#[derive(Clone, Debug)]
pub(crate) enum AnyRegion {
    #[cfg(feature = "sim")]
    Soft(SoftRegion),
    Verbs(VerbsRegion),
}

/// The region type of one kind of device.
pub(crate) trait ConcreteRegion: efa_device::Region {
    fn into_any(self) -> AnyRegion;
    /// `None` if it is a region of another kind of device.
    fn from_any(any: AnyRegion) -> Option<Self>;
}

#[cfg(feature = "sim")]
impl ConcreteRegion for SoftRegion {
    fn into_any(self) -> AnyRegion {
        AnyRegion::Soft(self)
    }

    fn from_any(any: AnyRegion) -> Option<Self> {
        match any {
            AnyRegion::Soft(region) => Some(region),
            AnyRegion::Verbs(_) => None,
        }
    }
}

impl ConcreteRegion for VerbsRegion {
    fn into_any(self) -> AnyRegion {
        AnyRegion::Verbs(self)
    }

    fn from_any(any: AnyRegion) -> Option<Self> {
        match any {
            #[cfg(feature = "sim")]
            AnyRegion::Soft(_) => None,
            AnyRegion::Verbs(region) => Some(region),
        }
    }
}

impl efa_device::Region for AnyRegion {
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

    fn is_mapped(&self) -> bool {
        each!(Self in self, region => region.is_mapped())
    }

    #[inline]
    fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        each!(Self in self, region => region.read(offset, into))
    }

    #[inline]
    fn write(&self, offset: usize, from: &[u8]) -> usize {
        each!(Self in self, region => region.write(offset, from))
    }

    #[inline]
    fn copy_to(&self, offset: usize, into: CopyTarget<'_>) -> usize {
        each!(Self in self, region => region.copy_to(offset, into))
    }

    #[inline]
    fn copy_from(&self, offset: usize, from: CopySource<'_>) -> usize {
        each!(Self in self, region => region.copy_from(offset, from))
    }

    fn update(
        &self,
        offset: usize,
        bytes: &mut [u8],
        change: impl FnMut(&mut [u8]) -> bool,
    ) -> usize {
        each!(Self in self, region => region.update(offset, bytes, change))
    }

    fn reclaim(self) -> Result<Box<[u8]>, Self> {
        each!(Self in self, region => region.reclaim().map_err(ConcreteRegion::into_any))
    }

    fn revoke(&self) -> bool {
        each!(Self in self, region => efa_device::Region::revoke(region))
    }
}

// ---- interfaces ---------------------------------------------------------------------------------

/// Opens the interface with this name, or the first.
pub(crate) fn open_interface(interface: Option<&str>) -> Result<Device, DeviceError> {
    VerbsDevice::open(interface).map(Device::Verbs)
}

/// A device that discovery found.
pub(crate) struct Found {
    pub(crate) attributes: DeviceAttributes,
    /// Whether threads can sleep until it has something.
    pub(crate) notifies: bool,
}

/// The interface with this name, or all.
pub(crate) fn find_interfaces(interface: Option<&str>) -> Result<Vec<Found>, DeviceError> {
    let names = match interface {
        Some(name) => vec![name.to_owned()],
        None => efa_verbs::interfaces()?,
    };
    let find = |name: &String| {
        let device = VerbsDevice::open(Some(name))?;
        let notifies = device.check_notifies().is_ok();
        Ok(Found { attributes: device.attributes().clone(), notifies })
    };
    names.iter().map(find).collect()
}
