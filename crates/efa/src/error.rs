//! What can go wrong, apart from operations.

use std::time::Duration;

use efa_device::DeviceError;
use efa_rdm::ConfigError;

use crate::counter::{Counted, CounterEvents};
use crate::info::{Capabilities, Progress};

/// Why an object could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing is as the hints want it (`FI_ENODATA`).
    #[error("nothing offers what the hints ask for: {wanted}")]
    NoData {
        /// The first wish that can't be met.
        wanted: Wanted,
    },
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A wish that can't be met.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Wanted {
    /// Services that are not offered.
    #[error("capabilities {0}")]
    Capabilities(Capabilities),
    /// A provider of another name.
    #[error("provider {0}")]
    Provider(String),
    /// An interface by its name, on a link that has no such.
    #[error("the interface {0}")]
    Interface(String),
    /// A counter of other events than completions.
    #[error("counters of {0:?}")]
    CounterEvents(CounterEvents),
    /// A kind of progress.
    #[error("{0} progress")]
    Progress(Progress),
}

/// Why an endpoint was not enabled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnableError {
    /// Something must be bound first.
    #[error("no {0} is bound")]
    Missing(Bound),
    /// Something was bound twice.
    #[error("a second {0} was bound")]
    Twice(Bound),
    /// A second counter was bound for the same operations.
    #[error("a second counter of {} was bound", names(.0))]
    CountedTwice(Counted),
    /// Something belongs to another domain.
    #[error("the {0} belongs to another domain")]
    OtherDomain(Bound),
    /// Services that are not offered were asked for.
    #[error("capabilities not offered: {0}")]
    NotOffered(Capabilities),
    /// Messages are to be received in place, which these services don't allow.
    #[error("messages can't be received in place by an endpoint with {0}")]
    NotInPlace(Capabilities),
    /// A setting makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Kinds of operations as one reads them.
fn names(kinds: &Counted) -> String {
    kinds.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}

/// What is bound to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
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

/// An endpoint was closed that still owed packets to its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not all packets were delivered within {timeout:?}")]
pub struct CloseError {
    /// How long was waited.
    pub timeout: Duration,
}
