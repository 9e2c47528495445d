//! Addresses of nodes and services.
//!
//! ```text
//!   node, service ─► an IP address? ── yes ─► SocketAddr
//!                        │ no
//!                        └─► a thread asks the system's resolver ─► the first address of the family
//!                                └─► none, or no answer in time: the reason
//! ```

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::mpsc;
use std::time::Duration;

use crate::error::Wanted;

/// Longest time that the resolution of a node takes.
const DEADLINE: Duration = Duration::from_secs(5);

/// A family of internet addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AddressFamily {
    /// IPv4 (`FI_SOCKADDR_IN`).
    Ipv4,
    /// IPv6 (`FI_SOCKADDR_IN6`).
    Ipv6,
}

impl AddressFamily {
    /// That of an address.
    #[must_use]
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::Ipv4 } else { Self::Ipv6 }
    }

    /// This host, for itself.
    #[must_use]
    pub fn loopback(self) -> IpAddr {
        match self {
            Self::Ipv4 => Ipv4Addr::LOCALHOST.into(),
            Self::Ipv6 => Ipv6Addr::LOCALHOST.into(),
        }
    }

    /// All addresses of a host.
    #[must_use]
    pub fn unspecified(self) -> IpAddr {
        match self {
            Self::Ipv4 => Ipv4Addr::UNSPECIFIED.into(),
            Self::Ipv6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }
}

/// The port that a service stands for.
pub(crate) fn port(service: &str) -> Result<u16, Wanted> {
    service.parse().map_err(|_| Wanted::Service(service.to_owned()))
}

/// The first address of a node, or of the family that is wanted.
pub(crate) fn node(
    node: &str,
    port: u16,
    family: Option<AddressFamily>,
) -> Result<SocketAddr, Wanted> {
    // An address is all the addresses that it has.
    let found = match node.parse::<IpAddr>() {
        Ok(ip) => first_of(family, [SocketAddr::new(ip, port)]).ok_or_else(no_address),
        Err(_) => {
            let name = node.to_owned();
            let look_up = move || Ok(first_of(family, (name.as_str(), port).to_socket_addrs()?));
            first_address(look_up, DEADLINE)
        }
    };
    found.map_err(|reason| Wanted::Node { node: node.to_owned(), reason })
}

/// The first address of the family, if one is wanted.
fn first_of(
    family: Option<AddressFamily>,
    addresses: impl IntoIterator<Item = SocketAddr>,
) -> Option<SocketAddr> {
    let is_wanted = |at: &SocketAddr| family.is_none_or(|it| it == AddressFamily::of(at.ip()));
    addresses.into_iter().find(is_wanted)
}

fn no_address() -> String {
    "it has no address of the family that was asked for".to_owned()
}

/// What `look_up` finds before the deadline. The system's resolver can't be interrupted, so its thread
/// may go on for as long as that takes.
fn first_address(
    look_up: impl FnOnce() -> io::Result<Option<SocketAddr>> + Send + 'static,
    deadline: Duration,
) -> Result<SocketAddr, String> {
    let (answer, answered) = mpsc::channel();
    let thread = std::thread::Builder::new().name("efa-resolve".to_owned());
    // If nobody waits any more, the answer is of no use.
    let started = thread.spawn(move || drop(answer.send(look_up())));
    started.map_err(|error| error.to_string())?;
    match answered.recv_timeout(deadline) {
        Ok(Ok(Some(address))) => Ok(address),
        Ok(Ok(None)) => Err(no_address()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {deadline:?}")),
    }
}

/// Whether this host has an address.
pub(crate) fn is_of_this_host(mut address: SocketAddr) -> bool {
    address.set_port(0);
    UdpSocket::bind(address).is_ok()
}

/// The address of this host from which packets to `destination` would be sent. Sends nothing.
pub(crate) fn address_towards(mut destination: SocketAddr) -> Option<IpAddr> {
    let unspecified = AddressFamily::of(destination.ip()).unspecified();
    let socket = UdpSocket::bind((unspecified, 0)).ok()?;
    // Port 0 is refused by some systems; which one it is doesn't matter.
    destination.set_port(1);
    socket.connect(destination).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn node_whose_resolver_is_silent_fails_at_the_deadline() {
        let (release, silent) = mpsc::channel::<()>();
        let begin = Instant::now();
        let look_up = move || {
            silent.recv().map_err(io::Error::other)?;
            Ok(None)
        };
        let deadline = Duration::from_millis(20);
        let error = first_address(look_up, deadline).unwrap_err();
        assert_eq!(error, "no answer within 20ms");
        assert!(begin.elapsed() >= deadline);
        drop(release);
    }

    #[test]
    fn node_without_an_address_says_so() {
        let error = first_address(|| Ok(None), DEADLINE).unwrap_err();
        assert_eq!(error, no_address());
        let error = first_address(|| Err(io::Error::other("no such node")), DEADLINE).unwrap_err();
        assert_eq!(error, "no such node");
    }

    #[test]
    fn node_with_addresses_of_both_families_is_found_by_the_one_that_is_wanted() {
        let both = ["[::1]:7", "127.0.0.1:7"].map(|text| text.parse::<SocketAddr>().unwrap());
        assert_eq!(first_of(None, both), Some(both[0]));
        assert_eq!(first_of(Some(AddressFamily::Ipv6), both), Some(both[0]));
        assert_eq!(first_of(Some(AddressFamily::Ipv4), both), Some(both[1]));
        assert_eq!(first_of(Some(AddressFamily::Ipv4), [both[0]]), None);
    }

    #[test]
    fn addresses_towards_this_host_are_its_own() {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        assert_eq!(address_towards(loopback), Some(loopback.ip()));
        assert!(is_of_this_host(loopback));
        assert!(!is_of_this_host((Ipv4Addr::new(192, 0, 2, 1), 7).into()), "of documentation");
    }
}
