//! The devices of each link.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use clap::ValueEnum;
use efa_sim::SoftDevice;
use efa_sim::shm::{ShmDevice, ShmOptions};
use efa_sim::tcp::{TcpDevice, TcpOptions};

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
}

impl Link {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Tcp6 => "tcp6",
        }
    }
}

/// Why this host doesn't have the link.
pub(crate) fn absence(link: Link) -> Option<String> {
    if link != Link::Tcp6 {
        return None;
    }
    std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).err().map(|error| error.to_string())
}

/// A device of the victim and its honest peers, or of an attacker in a process of its own.
pub(crate) fn device(
    link: Link,
    directory: Option<&PathBuf>,
    attacks: bool,
) -> Result<SoftDevice, String> {
    let opened = match link {
        Link::Local => return Err("the local link is within one process".to_owned()),
        Link::Shm => {
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
