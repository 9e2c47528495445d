//! The device under the objects of this crate: the software device, whatever its link, or with the
//! feature `verbs` an interface of rdma-core. They are told apart at run time.
//!
//! ```text
//!   Endpoint ─► AnyDriver ─┬─ Soft ──► Driver ─► engine ─► queue pair of the software device
//!                          └─ Verbs ─► Driver ─► engine ─► queue pair of rdma-core
//! ```
//!
//! That is once a call: driver and engine are made for each kind, and nothing on the way of a packet
//! asks which it is. Endpoints that receive in place have drivers of their own, so that the others don't
//! pay for the question.

use efa_device::{
    Access, Device as _, DeviceAttributes, DeviceError, QueuePairOptions, RegisterError,
};
use efa_rdm::{Config, ConfigError, InPlaceQueue, ReceiveNeeds, Receiver};
use efa_sim::SoftDevice;
use efa_sim::region::SoftRegion;
#[cfg(feature = "verbs")]
use efa_verbs::{Packet as VerbsPacket, VerbsDevice, VerbsRegion};

use crate::driver::{Bindings, Driver, Engine};
use crate::endpoint::Receiving;
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

/// The queue pairs of one kind of device.
type QueuePairOf<D> = <D as efa_device::Device>::QueuePair;

/// What drives an endpoint.
#[derive(Debug)]
pub(crate) enum AnyDriver {
    Soft(Box<Driver<QueuePairOf<SoftDevice>>>),
    #[cfg(feature = "verbs")]
    Verbs(Box<Driver<QueuePairOf<VerbsDevice>>>),
    /// One kind more and not two: the others look for theirs with one comparison less.
    InPlace(Box<InPlaceDriver>),
}

/// What drives an endpoint that receives in place.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it lies in a box")]
pub(crate) enum InPlaceDriver {
    Soft(Driver<InPlaceQueue<QueuePairOf<SoftDevice>>>),
    #[cfg(feature = "verbs")]
    Verbs(Driver<InPlaceQueue<QueuePairOf<VerbsDevice>>>),
}

/// Does the same with whatever drives an endpoint.
macro_rules! each_driver {
    ($on:expr, $name:ident => $call:expr) => {
        match $on {
            AnyDriver::Soft($name) => $call,
            #[cfg(feature = "verbs")]
            AnyDriver::Verbs($name) => $call,
            AnyDriver::InPlace(driver) => {
                aside(move || each!(InPlaceDriver in &mut **driver, $name => $call))
            }
        }
    };
}
pub(crate) use each_driver;

/// Keeps what few endpoints do out of the instructions of the others.
#[cold]
#[inline(never)]
pub(crate) fn aside<T>(call: impl FnOnce() -> T) -> T {
    call()
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
        receiving: Receiving,
        bindings: Bindings,
    ) -> Result<AnyDriver, EnableError> {
        Ok(match (self, receiving) {
            (Self::Soft(device), Receiving::Matched) => {
                let engine = Engine::new(device.create_queue_pair(options)?, config)?;
                AnyDriver::Soft(Box::new(Driver::new(engine, bindings)))
            }
            (Self::Soft(device), Receiving::InPlace) => {
                let engine = engine_in_place(device, options, config)?;
                let driver = InPlaceDriver::Soft(Driver::new(engine, bindings));
                AnyDriver::InPlace(Box::new(driver))
            }
            #[cfg(feature = "verbs")]
            (Self::Verbs(device), Receiving::Matched) => {
                let engine = Engine::new(device.create_queue_pair(options)?, config)?;
                AnyDriver::Verbs(Box::new(Driver::new(engine, bindings)))
            }
            #[cfg(feature = "verbs")]
            (Self::Verbs(device), Receiving::InPlace) => {
                let engine = engine_in_place(device, options, config)?;
                let driver = InPlaceDriver::Verbs(Driver::new(engine, bindings));
                AnyDriver::InPlace(Box::new(driver))
            }
        })
    }

    /// Whether a packet is one that its queue pairs take.
    pub(crate) fn owns(&self, packet: &Packet) -> bool {
        match (self, packet) {
            (Self::Soft(device), Packet::Soft(bytes)) => bytes.len() == device.attributes().mtu,
            #[cfg(feature = "verbs")]
            (Self::Verbs(device), Packet::Verbs(packet)) => device.owns(packet),
            #[cfg(feature = "verbs")]
            _ => false,
        }
    }
}

/// An engine that receives in place, with a second queue pair for the messages if its release takes one.
fn engine_in_place<D: efa_device::Device<QueuePair: efa_device::QueuePair<Region: Own>>>(
    device: &D,
    options: QueuePairOptions,
    config: Config,
) -> Result<Engine<InPlaceQueue<D::QueuePair>>, EnableError> {
    // What else would need a match has been refused; messages that don't fit a packet are when they come.
    let needs = ReceiveNeeds { ordered: false, tagged: false, directed: false, longest: 0 };
    let release = config.profile.release;
    let queue_pair = device.create_queue_pair(options)?;
    let user = || device.create_queue_pair(options).map_err(EnableError::from);
    match Receiver::new(queue_pair, user, &needs, config)? {
        Receiver::InPlace(engine) => Ok(engine),
        Receiver::Copies(_) => Err(ConfigError::NotInPlace { release }.into()),
    }
}

// ---- packets ------------------------------------------------------------------------------------

/// A packet of a device.
#[derive(Debug)]
pub(crate) enum Packet {
    Soft(SoftPacket),
    #[cfg(feature = "verbs")]
    Verbs(VerbsPacket),
}

/// A packet of the software device.
type SoftPacket = Box<[u8]>;

/// The packets of one kind of device.
pub(crate) trait OwnPacket: AsRef<[u8]> + Sized {
    /// This one, as one of any.
    fn into_any(self) -> Packet;
    /// That one, if it is of this kind.
    fn of(any: Packet) -> Result<Self, Packet>;
}

impl OwnPacket for SoftPacket {
    fn into_any(self) -> Packet {
        Packet::Soft(self)
    }

    fn of(any: Packet) -> Result<Self, Packet> {
        match any {
            Packet::Soft(packet) => Ok(packet),
            #[cfg(feature = "verbs")]
            other => Err(other),
        }
    }
}

#[cfg(feature = "verbs")]
impl OwnPacket for VerbsPacket {
    fn into_any(self) -> Packet {
        Packet::Verbs(self)
    }

    fn of(any: Packet) -> Result<Self, Packet> {
        match any {
            Packet::Verbs(packet) => Ok(packet),
            other => Err(other),
        }
    }
}

impl AsRef<[u8]> for Packet {
    fn as_ref(&self) -> &[u8] {
        each!(Self in self, packet => packet.as_ref())
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
