//! Errors other than those of operations.

use std::time::Duration;

use efa_device::DeviceError;
use efa_rdm::ConfigError;

use crate::counter::{Counted, CounterEvents};
use crate::info::{Capabilities, Progress};

/// Why an object could not be opened or created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No provider, device or object has the requested attributes (`FI_ENODATA`).
    #[error("nothing offers the requested {wanted}")]
    NoData {
        /// The first attribute that is not offered.
        wanted: Wanted,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A requested attribute that is not offered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Wanted {
    /// Services.
    #[error("capabilities {0}")]
    Capabilities(Capabilities),
    /// A provider with another name.
    #[error("provider {0}")]
    Provider(String),
    /// An interface that this machine or this link doesn't have.
    #[error("interface {0}")]
    Interface(String),
    /// A counter of events other than completions.
    #[error("counter events: {0:?}")]
    CounterEvents(CounterEvents),
    /// A progress model.
    #[error("{0} progress")]
    Progress(Progress),
}

/// Why an endpoint was not enabled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnableError {
    /// Something is not bound.
    #[error("no {0} is bound")]
    Missing(Bound),
    /// Something is bound twice.
    #[error("a second {0} was bound")]
    Twice(Bound),
    /// Two counters are bound for the same operations.
    #[error("a second counter of {} was bound", names(.0))]
    CountedTwice(Counted),
    /// Something belongs to another domain.
    #[error("the {0} belongs to another domain")]
    OtherDomain(Bound),
    /// Services are not offered.
    #[error("capabilities not offered: {0}")]
    NotOffered(Capabilities),
    /// These services can't be enabled if messages are received in place.
    #[error("messages can't be received in place by an endpoint with {0}")]
    NotInPlace(Capabilities),
    /// A setting is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

fn names(kinds: &Counted) -> String {
    kinds.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}

/// An object that is bound to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Bound {
    /// The completion queue for sends.
    #[error("completion queue for sends")]
    TransmitQueue,
    /// The completion queue for receives.
    #[error("completion queue for receives")]
    ReceiveQueue,
    /// The address vector.
    #[error("address vector")]
    AddressVector,
    /// A counter.
    #[error("counter")]
    Counter,
}

/// An endpoint was closed before all its packets were delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not all packets were delivered within {timeout:?}")]
pub struct CloseError {
    /// The timeout of the call.
    pub timeout: Duration,
}
