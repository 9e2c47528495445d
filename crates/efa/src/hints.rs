//! What a program asks of an entry.

use std::net::SocketAddr;

use crate::attributes::{
    AddressFormat, DomainHints, DomainLimitHints, EndpointHints, Progress, ReceiveHints,
    TransmitHints,
};
use crate::capabilities::{Capabilities, Mode};
use crate::error::Wanted;
use crate::info::{Info, Link};

/// Requested attributes, for [`discover`](crate::discover) and [`info`](crate::info()) (the hints of
/// `fi_getinfo`). By default, none is requested.
///
/// ```
/// use efa::{Capabilities, Hints, Link};
/// let hints = Hints::new().capabilities(Capabilities::TAGGED).link(Link::Shm);
/// let long = Hints::new().with(|hints| hints.endpoint.max_message_size = Some(1 << 30));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hints {
    /// Capabilities.
    pub capabilities: Capabilities,
    /// Demands that the program can meet. An entry that makes another one is left out.
    pub mode: Mode,
    /// Format of endpoint addresses.
    pub address_format: Option<AddressFormat>,
    /// Address of this host, in place of the query's node and service.
    pub source: Option<SocketAddr>,
    /// Address to reach, in place of the query's node and service.
    pub destination: Option<SocketAddr>,
    /// Name of the provider. The only one is `efa`.
    pub provider: Option<String>,
    /// Name of the fabric.
    pub fabric: Option<String>,
    /// Link.
    pub link: Option<Link>,
    /// Name of an EFA interface of this machine.
    pub interface: Option<String>,
    /// Attributes of the transmit side of endpoints.
    pub transmit: TransmitHints,
    /// Attributes of the receive side of endpoints.
    pub receive: ReceiveHints,
    /// Attributes of endpoints.
    pub endpoint: EndpointHints,
    /// Attributes of domains.
    pub domain: DomainHints,
    /// Numbers of objects of a domain.
    pub limits: DomainLimitHints,
}

impl Hints {
    /// No attribute is requested.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// These hints with some changed.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Requests capabilities.
    #[must_use]
    pub fn capabilities(self, capabilities: Capabilities) -> Self {
        Self { capabilities, ..self }
    }

    /// Offers to meet demands.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Requests a provider.
    #[must_use]
    pub fn provider(self, provider: impl Into<String>) -> Self {
        Self { provider: Some(provider.into()), ..self }
    }

    /// Requests a link.
    #[must_use]
    pub fn link(self, link: Link) -> Self {
        Self { link: Some(link), ..self }
    }

    /// Requests an EFA interface of this machine.
    #[must_use]
    pub fn interface(self, interface: impl Into<String>) -> Self {
        Self { interface: Some(interface.into()), ..self }
    }

    /// Requests a progress model.
    #[must_use]
    pub fn progress(self, progress: Progress) -> Self {
        self.with(|hints| hints.domain.progress = Some(progress))
    }

    /// Leaves the entries that meet the hints for their attributes, and fills in what was requested.
    ///
    /// # Errors
    /// The first hint that no entry meets.
    pub(crate) fn narrow(&self, entries: &mut Vec<Info>) -> Result<(), Wanted> {
        entries.narrow(|info| self.mode.contains(info.mode), || Wanted::NoMode(self.mode))?;
        if let Some(fabric) = &self.fabric {
            entries.narrow(|info| info.fabric == *fabric, || Wanted::Fabric(fabric.clone()))?;
        }
        if let Some(format) = &self.address_format {
            entries.narrow(
                |info| info.address_format == *format,
                || Wanted::attribute("address_format", format),
            )?;
        }
        self.endpoint.narrow(entries, |info| &mut info.endpoint)?;
        self.transmit.narrow(entries, |info| &mut info.transmit)?;
        self.receive.narrow(entries, |info| &mut info.receive)?;
        self.domain.narrow(entries, |info| &mut info.domain)?;
        self.limits.narrow(entries, |info| &mut info.limits)
    }
}

impl From<&Info> for Hints {
    /// Requests all attributes of an entry.
    fn from(info: &Info) -> Self {
        Self {
            capabilities: info.capabilities,
            mode: info.mode,
            address_format: Some(info.address_format),
            source: info.source,
            destination: info.destination,
            provider: Some(info.provider.to_owned()),
            fabric: Some(info.fabric.clone()),
            link: Some(info.link),
            interface: None,
            transmit: (&info.transmit).into(),
            receive: (&info.receive).into(),
            endpoint: (&info.endpoint).into(),
            domain: (&info.domain).into(),
            limits: (&info.limits).into(),
        }
    }
}

/// A list of entries that hints make shorter.
pub(crate) trait Narrow<T> {
    /// Leaves the entries that meet a hint.
    ///
    /// # Errors
    /// The hint, if no entry is left.
    fn narrow(
        &mut self,
        meets: impl FnMut(&mut T) -> bool,
        hint: impl FnOnce() -> Wanted,
    ) -> Result<(), Wanted>;
}

impl<T> Narrow<T> for Vec<T> {
    fn narrow(
        &mut self,
        meets: impl FnMut(&mut T) -> bool,
        hint: impl FnOnce() -> Wanted,
    ) -> Result<(), Wanted> {
        self.retain_mut(meets);
        if self.is_empty() { Err(hint()) } else { Ok(()) }
    }
}
