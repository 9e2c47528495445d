//! The device that the program's user chose (`FI_EFARS_DEVICE`), and the names that libfabric sees.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use efa::{
    AddressFamily, Environment, Fabric, Hints, Info, Link, Query, Version, discover, interfaces,
};

use crate::abi::FI_ENODATA;
use crate::boundary::{Errno, Outcome};

/// The value of `FI_EFARS_DEVICE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// Processes of this host that use the same name.
    Shm(Option<String>),
    /// This host at an address.
    Tcp(Ipv4Addr),
    /// An EFA interface, or the first.
    Verbs(Option<String>),
}

/// A value that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("FI_EFARS_DEVICE={0}: expected shm, shm:NAME, tcp:IP, verbs or verbs:INTERFACE")]
pub(crate) struct NoDevice(String);

impl FromStr for Device {
    type Err = NoDevice;

    fn from_str(text: &str) -> Result<Self, NoDevice> {
        let (kind, rest) = match text.split_once(':') {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (text, None),
        };
        match (kind, rest) {
            (_, Some("")) => Err(NoDevice(text.to_owned())),
            ("shm", name) => Ok(Self::Shm(name.map(str::to_owned))),
            ("verbs", name) => Ok(Self::Verbs(name.map(str::to_owned))),
            ("tcp", Some(ip)) => match ip.parse() {
                Ok(ip) => Ok(Self::Tcp(ip)),
                Err(_) => Err(NoDevice(text.to_owned())),
            },
            _ => Err(NoDevice(text.to_owned())),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm(None) => f.write_str("shm"),
            Self::Shm(Some(name)) => write!(f, "shm:{name}"),
            Self::Tcp(ip) => write!(f, "tcp:{ip}"),
            Self::Verbs(None) => f.write_str("verbs"),
            Self::Verbs(Some(name)) => write!(f, "verbs:{name}"),
        }
    }
}

/// Whether connections are to go by IPv6, for which the address of the device `tcp` is no source.
fn asks_for_ipv6(query: &Query) -> bool {
    let node = query.node.as_ref().and_then(|node| node.parse::<IpAddr>().ok());
    query.family == Some(AddressFamily::Ipv6)
        || node.is_some_and(|ip| ip.is_ipv6())
        || query.hints.destination.is_some_and(|address| address.is_ipv6())
}

impl Device {
    /// An interface of this machine if there is one, else shared memory.
    pub(crate) fn of_this_machine() -> Self {
        match interfaces() {
            Ok(found) if !found.is_empty() => Self::Verbs(None),
            _ => Self::Shm(None),
        }
    }

    fn link(&self) -> Link {
        match self {
            Self::Shm(_) => Link::Shm,
            Self::Tcp(_) => Link::Tcp,
            Self::Verbs(_) => Link::Verbs,
        }
    }

    /// The entries of this device.
    pub(crate) fn discover(&self, mut query: Query) -> Outcome<Vec<Info>> {
        let is_ipv6 = asks_for_ipv6(&query);
        let hints = &mut query.hints;
        hints.link = Some(self.link());
        match self {
            Self::Verbs(name) => hints.interface.clone_from(name),
            Self::Tcp(ip) if !is_ipv6 => {
                hints.source.get_or_insert((*ip, 0).into());
                query.family = Some(AddressFamily::Ipv4);
            }
            _ => {}
        }
        discover(&query).map_err(|error| {
            crate::log::info(format_args!("no entry: {error}"));
            Errno(FI_ENODATA)
        })
    }

    /// The fabric with this name.
    pub(crate) fn open(&self, name: Option<&str>, environment: &Environment) -> Outcome<Fabric> {
        let hints = Hints::new().with(|hints| hints.fabric = name.map(str::to_owned));
        let entries = self.discover(Query::new(Version::NEWEST).hints(hints))?;
        let entry = entries.first().ok_or(Errno(FI_ENODATA))?;
        let mut links = environment.links.clone();
        if let Self::Shm(Some(name)) = self {
            links.shm.name.clone_from(name);
        }
        Ok(Fabric::open_with(entry, links))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

    use super::*;

    #[test]
    fn every_form_of_a_device_is_parsed_and_written_the_same() {
        for text in ["shm", "shm:job7", "tcp:10.0.0.3", "verbs", "verbs:rdmap0s6"] {
            assert_eq!(text.parse::<Device>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_text_is_refused_with_the_text() {
        for text in ["", "tcp", "tcp:", "tcp:here", "shm:", "verbs:", "udp:1.2.3.4"] {
            let refused = text.parse::<Device>().unwrap_err();
            assert!(refused.to_string().contains(&format!("DEVICE={text}:")), "{refused}");
        }
    }
}
