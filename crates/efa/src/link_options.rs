//! Options of the links of the software device.

use std::net::Ipv4Addr;

use efa_sim::shm::ShmOptions;
use efa_sim::tcp::TcpOptions;

/// The name of the shm network that discovery finds.
pub(crate) const SHM_NAME: &str = "efa";

/// Options of the links of the software device, for [`Fabric::open_with`](crate::Fabric::open_with), usually those
/// of [`Environment::links`](crate::Environment#structfield.links).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LinkOptions {
    /// Of the link `shm`; by default the network `efa`.
    pub shm: ShmOptions,
    /// Of the link `tcp`. The address of an entry takes the place of [`TcpOptions::address`].
    pub tcp: TcpOptions,
}

impl LinkOptions {
    /// These options with some changed:
    ///
    /// ```
    /// let options = efa::LinkOptions::default().with(|options| options.tcp.ports = Some(7000..=7015));
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self { shm: ShmOptions::new(SHM_NAME), tcp: TcpOptions::new(Ipv4Addr::LOCALHOST) }
    }
}
