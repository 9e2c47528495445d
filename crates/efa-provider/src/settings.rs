//! Settings: the variables of the user (`FI_EFARS_…`).

use efa::{Environment, Info};

use crate::abi::{FI_EINVAL, fi_provider};
use crate::boundary::{Errno, Outcome};
use crate::device::Device;
use crate::log;

/// Whether this provider calls itself `efa`, for programs that insist on that name (`EFARS_NAME`).
pub(crate) fn takes_the_place_of_efa() -> bool {
    std::env::var_os("EFARS_NAME").is_some_and(|name| name == "efa")
}

/// What the user set.
pub(crate) struct Settings {
    pub(crate) device: Device,
    pub(crate) environment: Environment,
    in_place: bool,
}

impl Settings {
    /// Tells libfabric which variables there are.
    pub(crate) fn define(_provider: *mut fi_provider) {}

    /// Reads the variables.
    ///
    /// # Errors
    /// `FI_EINVAL` if `FI_EFARS_DEVICE` names no device.
    pub(crate) fn read() -> Outcome<Self> {
        let device = match std::env::var("FI_EFARS_DEVICE") {
            Ok(text) => text.parse().map_err(|error| {
                log::warn(format_args!("{error}"));
                Errno(FI_EINVAL)
            })?,
            Err(_) => Device::of_this_machine(),
        };
        Ok(Self { device, environment: Environment::read(), in_place: takes_the_place_of_efa() })
    }

    /// Whether this provider takes the place of the built-in `efa`.
    pub(crate) fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// The name of an entry's fabric.
    pub(crate) fn fabric_name(&self, entry: &Info) -> String {
        if self.in_place { "efa".to_owned() } else { entry.fabric.clone() }
    }

    /// The name of an entry's domain.
    pub(crate) fn domain_name(&self, entry: &Info) -> String {
        match (self.in_place, entry.endpoint.kind) {
            (true, efa::EndpointKind::ReliableDatagram) => format!("{}-rdm", entry.domain.name),
            _ => entry.domain.name.clone(),
        }
    }
}
