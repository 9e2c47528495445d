//! The devices of each link.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use clap::ValueEnum;
use efa_sim::SoftDevice;
use efa_sim::shm::{ShmDevice, ShmOptions};
use efa_sim::tcp::{TcpDevice, TcpOptions};

use crate::libfabric::Programs;

/// A link of the software device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Link {
    /// One thread, in virtual time
    Local,
    /// The attacker is another process of this host
    Shm,
    /// The attacker connects from another loopback address
    Tcp,
    /// As tcp, over ::1
    Tcp6,
    /// As shm; the victim is a C program on libfabric
    Libfabric,
}

impl Link {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Tcp6 => "tcp6",
            Self::Libfabric => "libfabric",
        }
    }
}

/// Why the link can't be attacked here.
pub(crate) fn absence(link: Link, libfabric: Option<&Programs>) -> Option<String> {
    match link {
        Link::Tcp6 => {
            let bound = std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0));
            bound.err().map(|error| error.to_string())
        }
        Link::Libfabric if libfabric.is_none() => {
            Some("libfabric-dev, libfabric-bin or a C compiler isn't installed".to_owned())
        }
        _ => None,
    }
}

/// A device of the victim and its honest peers, or of an attacker in a process of its own.
pub(crate) fn device(
    link: Link,
    directory: Option<&PathBuf>,
    attacks: bool,
) -> Result<SoftDevice, String> {
    let opened = match link {
        Link::Local => return Err("the local link is within one process".to_owned()),
        Link::Shm | Link::Libfabric => {
            let options = ShmOptions::new("hostile");
            let options = options.with(|options| options.directory = directory.cloned());
            ShmDevice::open(options).map(SoftDevice::from)
        }
        Link::Tcp => {
            let last = if attacks { 66 } else { 1 };
            let address = IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
            TcpDevice::open(TcpOptions::new(address)).map(SoftDevice::from)
        }
        Link::Tcp6 => TcpDevice::open(TcpOptions::new(Ipv6Addr::LOCALHOST)).map(SoftDevice::from),
    };
    opened.map_err(|error| format!("the {} link: {error}", link.name()))
}
