//! The driver of an endpoint, whatever its device.
//!
//! ```text
//!   Endpoint ─► AnyDriver ─┬─ Soft ──► Driver ─► engine ─► queue pair of the software device
//!                          ├─ Verbs ─► Driver ─► engine ─► queue pair of rdma-core
//!                          └─ Other ─► the same, receiving in place; or closed
//! ```
//!
//! The kind is looked at once a call. Driver and engine are compiled for each kind of device, so the
//! path of a packet has no dynamic dispatch.

use efa_device::{QueuePair, QueuePairOptions};
use efa_rdm::{Config, ConfigError, InPlaceQueue, ReceiveNeeds, Receiver, Statistics};
#[cfg(feature = "sim")]
use efa_sim::SoftDevice;
use efa_verbs::VerbsDevice;

use crate::address::Address;
use crate::device::{ConcretePacket, ConcreteRegion, Device};
use crate::driver::{Bindings, Driver, Engine};
use crate::endpoint_options::Receiving;
use crate::error::EnableError;

/// The queue pairs of one kind of device.
type QueuePairOf<D> = <D as efa_device::Device>::QueuePair;

#[derive(Debug)]
pub(crate) enum AnyDriver {
    #[cfg(feature = "sim")]
    Soft(Box<Driver<QueuePairOf<SoftDevice>>>),
    Verbs(Box<Driver<QueuePairOf<VerbsDevice>>>),
    /// The less frequent kinds, in an enum of their own: calls of the others compare once less.
    Other(Box<OtherDriver>),
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is boxed")]
pub(crate) enum OtherDriver {
    #[cfg(feature = "sim")]
    SoftInPlace(Driver<InPlaceQueue<QueuePairOf<SoftDevice>>>),
    VerbsInPlace(Driver<InPlaceQueue<QueuePairOf<VerbsDevice>>>),
    /// The endpoint was closed. Its last statistics remain.
    Closed(Statistics),
}

/// Evaluates `$call` with the driver, or `$value` with the last statistics if the endpoint is closed.
macro_rules! each_driver {
    ($on:expr, $name:ident => $call:expr, $closed:pat => $value:expr) => {
        match $on {
            #[cfg(feature = "sim")]
            $crate::any_driver::AnyDriver::Soft(driver) => {
                let $crate::driver::Waking($name) = &mut driver.waking();
                $call
            }
            $crate::any_driver::AnyDriver::Verbs(driver) => {
                let $crate::driver::Waking($name) = &mut driver.waking();
                $call
            }
            $crate::any_driver::AnyDriver::Other(driver) => {
                $crate::any_driver::out_of_line(move || match &mut **driver {
                    #[cfg(feature = "sim")]
                    $crate::any_driver::OtherDriver::SoftInPlace(driver) => {
                        let $crate::driver::Waking($name) = &mut driver.waking();
                        $call
                    }
                    $crate::any_driver::OtherDriver::VerbsInPlace(driver) => {
                        let $crate::driver::Waking($name) = &mut driver.waking();
                        $call
                    }
                    $crate::any_driver::OtherDriver::Closed($closed) => $value,
                })
            }
        }
    };
}
pub(crate) use each_driver;

/// Evaluates `$call` with the driver if it receives in place, else `$value` with the error.
macro_rules! in_place_driver {
    ($on:expr, $name:ident => $call:expr, $error:ident => $value:expr) => {
        match $on {
            $crate::any_driver::AnyDriver::Other(driver) => match &mut **driver {
                #[cfg(feature = "sim")]
                $crate::any_driver::OtherDriver::SoftInPlace(driver) => {
                    let $crate::driver::Waking($name) = &mut driver.waking();
                    $call
                }
                $crate::any_driver::OtherDriver::VerbsInPlace(driver) => {
                    let $crate::driver::Waking($name) = &mut driver.waking();
                    $call
                }
                $crate::any_driver::OtherDriver::Closed(_) => {
                    let $error = $crate::completion::StartError::Closed;
                    $value
                }
            },
            _ => {
                let $error = $crate::completion::StartError::NotInPlace;
                $value
            }
        }
    };
}
pub(crate) use in_place_driver;

/// Keeps code that few endpoints run out of the functions of the others.
#[cold]
#[inline(never)]
pub(crate) fn out_of_line<T>(call: impl FnOnce() -> T) -> T {
    call()
}

impl AnyDriver {
    /// The driver of a closed endpoint.
    pub(crate) fn closed(statistics: Statistics) -> Self {
        Self::Other(Box::new(OtherDriver::Closed(statistics)))
    }

    /// As [`Driver::is_idle`]; `false` of less frequent kinds.
    #[inline(always)]
    pub(crate) fn is_idle(&mut self) -> bool {
        // Not `each_driver!`, which ends looks.
        match self {
            #[cfg(feature = "sim")]
            Self::Soft(driver) => driver.is_idle(),
            Self::Verbs(driver) => driver.is_idle(),
            Self::Other(_) => false,
        }
    }
}

/// A new driver, and what the endpoint keeps of it.
#[derive(Debug)]
pub(crate) struct CreatedDriver {
    pub(crate) driver: AnyDriver,
    pub(crate) address: Address,
    pub(crate) inject_limit: usize,
}

impl CreatedDriver {
    /// Creates a queue pair, an engine on it, and binds that to the other objects.
    pub(crate) fn new(
        device: &Device,
        options: QueuePairOptions,
        config: Config,
        receiving: Receiving,
        bindings: Bindings,
    ) -> Result<Self, EnableError> {
        match (device, receiving) {
            #[cfg(feature = "sim")]
            (Device::Soft(device), Receiving::Matched) => {
                let driver = matched(device, options, config, bindings)?;
                Self::of(driver, |driver| AnyDriver::Soft(Box::new(driver)))
            }
            #[cfg(feature = "sim")]
            (Device::Soft(device), Receiving::InPlace) => {
                let driver = in_place(device, options, config, bindings)?;
                Self::of(driver, |driver| {
                    AnyDriver::Other(Box::new(OtherDriver::SoftInPlace(driver)))
                })
            }
            (Device::Verbs(device), Receiving::Matched) => {
                let driver = matched(device, options, config, bindings)?;
                Self::of(driver, |driver| AnyDriver::Verbs(Box::new(driver)))
            }
            (Device::Verbs(device), Receiving::InPlace) => {
                let driver = in_place(device, options, config, bindings)?;
                Self::of(driver, |driver| {
                    AnyDriver::Other(Box::new(OtherDriver::VerbsInPlace(driver)))
                })
            }
        }
    }

    fn of<Q>(
        driver: Driver<Q>,
        wrap: impl FnOnce(Driver<Q>) -> AnyDriver,
    ) -> Result<Self, EnableError>
    where
        Q: QueuePair<Region: ConcreteRegion, Packet: ConcretePacket>,
    {
        let (address, inject_limit) = (driver.address(), driver.inject_limit());
        driver.watch()?;
        Ok(Self { driver: wrap(driver), address, inject_limit })
    }
}

fn matched<
    D: efa_device::Device<QueuePair: QueuePair<Region: ConcreteRegion, Packet: ConcretePacket>>,
>(
    device: &D,
    options: QueuePairOptions,
    config: Config,
    mut bindings: Bindings,
) -> Result<Driver<D::QueuePair>, EnableError> {
    let mut engine = Engine::new(device.create_queue_pair(options)?, config)?;
    if let Some(member) = bindings.member.take() {
        let capacity = member.capacity();
        engine.share_receives(Box::new(member), capacity)?;
    }
    Ok(Driver::new(engine, bindings))
}

/// Creates a second queue pair for the messages if the release that `config` follows uses one.
fn in_place<
    D: efa_device::Device<QueuePair: QueuePair<Region: ConcreteRegion, Packet: ConcretePacket>>,
>(
    device: &D,
    options: QueuePairOptions,
    config: Config,
    bindings: Bindings,
) -> Result<Driver<InPlaceQueue<D::QueuePair>>, EnableError> {
    // `EndpointBuilder` has refused capabilities that need more. A message that doesn't fit a packet is
    // refused when it arrives.
    let needs = ReceiveNeeds { ordered: false, tagged: false, directed: false, longest: 0 };
    let release = config.profile.release;
    let queue_pair = device.create_queue_pair(options)?;
    let user = || device.create_queue_pair(options).map_err(EnableError::from);
    match Receiver::new(queue_pair, user, &needs, config)? {
        Receiver::InPlace(engine) => Ok(Driver::new(engine, bindings)),
        Receiver::Copies(_) => Err(ConfigError::NotInPlace { release }.into()),
    }
}
