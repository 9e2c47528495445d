//! Where the other side is, and the device by which it is reached.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::str::FromStr;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use efa::Domain;
use efa_netio::{AnySocket, Event, Netio, Options, RefusedReason, Tag, Wait};

use super::NetioError;
use crate::capture::{CaptureArgs, CaptureFile};
use crate::child::option;
use crate::device::{DeviceArgs, Kind, PropertyArgs, SoftLink, TcpHost, host_address};
use crate::output;
use crate::pingpong::{size, why_no_port};

/// A host's name or IP address, and a TCP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// The text names no host and port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not HOST:PORT{}", .0, why_no_port(.0))]
pub(crate) struct SiteError(String);

impl FromStr for Site {
    type Err = SiteError;

    fn from_str(text: &str) -> Result<Self, SiteError> {
        let parse = || {
            let (host, port) = match text.strip_prefix('[') {
                Some(rest) => rest.split_once("]:")?,
                None => text.split_once(':').filter(|(_, port)| !port.contains(':'))?,
            };
            let port =
                port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse().ok())??;
            (!host.is_empty()).then(|| Self { host: host.to_owned(), port })
        };
        parse().ok_or_else(|| SiteError(text.to_owned()))
    }
}

impl Site {
    /// Its first address.
    fn resolve(&self) -> Result<SocketAddr, NetioError> {
        let found = (self.host.as_str(), self.port).to_socket_addrs();
        let first = found.and_then(|mut all| {
            all.next().ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))
        });
        first.map_err(|source| NetioError::Resolve { site: self.clone(), source })
    }
}

/// Parses a tag.
pub(super) fn tag(text: &str) -> Result<Tag, String> {
    let parsed = match text.strip_prefix("0x") {
        // A sign is no digit.
        Some(digits) if digits.starts_with('+') => None,
        Some(digits) => Tag::from_str_radix(digits, 16).ok(),
        None if text.starts_with('+') => None,
        None => text.parse().ok(),
    };
    parsed.ok_or_else(|| "a number of 64 bits is expected, such as 23 or 0x17".to_owned())
}

/// Parses a length of messages.
pub(super) fn length(text: &str) -> Result<usize, String> {
    let parsed = size(text).map_err(|error| error.to_string())?;
    match usize::try_from(parsed) {
        Ok(length @ 1..) => Ok(length),
        _ => Err("at least 1 byte is expected".to_owned()),
    }
}

/// Parses how many there are, of what there is one at least.
pub(super) fn count(text: &str) -> Result<u64, String> {
    let parsed = text.parse().ok().filter(|count| *count > 0);
    parsed.ok_or_else(|| "a whole number from 1 on is expected".to_owned())
}

/// Parses a number of seconds.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let parsed = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let in_range = parsed.filter(|parsed| *parsed <= Duration::from_secs(86400));
    in_range.ok_or_else(|| "a number of seconds from 0 to 86400 is expected".to_owned())
}

/// Options of the device and the connections.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct LinkArgs {
    /// What connects the software devices of the two sides: shared memory of this host, or TCP [default: shm]
    #[arg(long)]
    link: Option<SoftLink>,
    /// With --link tcp, the address by which the other side reaches this host [default: the one to listen at, or the
    /// one from which HOST is reached]
    #[arg(long, value_name = "IP", requires = "link", value_parser = host_address)]
    address: Option<IpAddr>,
    #[command(flatten)]
    pub(super) capture: CaptureArgs,
    /// Print the totals as JSON on standard output
    #[arg(long)]
    pub(super) json: bool,
    /// Seconds to wait for an answer to a request to connect, and for the end of a connection
    #[arg(long, value_name = "SECONDS", default_value = "5",
        value_parser = RangedU64ValueParser::<u64>::new().range(1..=86400))]
    timeout: u64,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    properties: PropertyArgs,
}

/// What this side does at a place.
#[derive(Clone, Copy)]
pub(super) enum Side<'a> {
    Listens(&'a Site),
    Connects(&'a Site),
}

impl LinkArgs {
    /// A message about options that exclude each other.
    pub(super) fn conflict(&self) -> Option<String> {
        let of_link = self.device.conflict_of_link(self.link, self.address, &self.properties);
        of_link.or_else(|| self.device.conflict(&self.properties, self.of_soft()))
    }

    /// The same, of a side that listens.
    pub(super) fn conflict_at(&self, site: &Site) -> Option<String> {
        let is_any = site.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
        let lacks = is_any && self.link == Some(SoftLink::Tcp) && self.address.is_none();
        lacks
            .then(|| format!("with --link tcp, {site} needs --address"))
            .or_else(|| self.conflict())
    }

    fn of_soft(&self) -> Option<&'static str> {
        self.capture.given().or(self.link.map(|_| "--link"))
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// A context on the device, whose packets are captured.
    pub(super) fn open(
        &self,
        side: Side<'_>,
        capture: Option<&CaptureFile>,
    ) -> Result<Netio, NetioError> {
        self.open_with(side, Options::default(), capture)
    }

    /// The same, with options of which the timeout is replaced.
    pub(super) fn open_with(
        &self,
        side: Side<'_>,
        options: Options,
        capture: Option<&CaptureFile>,
    ) -> Result<Netio, NetioError> {
        let domain = self.domain(side, capture)?;
        // There is no endpoint yet, and so no packet.
        if let Some(capture) = capture {
            capture.start(&self.device.soft.name())?;
        }
        let options = options.with(|options| options.timeout = self.timeout());
        match Netio::new(&domain, options) {
            Ok(netio) => Ok(netio),
            Err(error) => {
                tracing::debug!(%error, "the device can't notify; polling instead");
                Ok(Netio::new(&domain, options.with(|options| options.sleeps = false))?)
            }
        }
    }

    fn domain(&self, side: Side<'_>, capture: Option<&CaptureFile>) -> Result<Domain, NetioError> {
        let opened = match (self.device.kind(&self.properties, self.of_soft()), self.link) {
            (Kind::Verbs, _) => self.device.open_interface(),
            (_, Some(SoftLink::Tcp)) => self.host(side)?.open(&self.properties, capture),
            _ => self.device.soft.open(&self.properties, capture),
        };
        opened.map_err(NetioError::Device)
    }

    /// This host, as the other side reaches it.
    fn host(&self, side: Side<'_>) -> Result<TcpHost, NetioError> {
        match (self.address, side) {
            (Some(address), _) => Ok(TcpHost::from(address)),
            (None, Side::Listens(site)) => Ok(TcpHost::from(site.resolve()?)),
            (None, Side::Connects(site)) => {
                let there = site.resolve()?;
                let any: IpAddr = match there {
                    SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
                    SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
                };
                // Nothing is sent: the system only chooses this side's address.
                let chosen = UdpSocket::bind((any, 0)).and_then(|socket| {
                    socket.connect(there)?;
                    socket.local_addr()
                });
                let source = |source| NetioError::Reach { site: site.clone(), source };
                chosen.map(TcpHost::from).map_err(source)
            }
        }
    }

    /// The options for a process that uses the same device.
    pub(super) fn for_child(&self) -> Vec<OsString> {
        let kind = self.device.kind(&self.properties, self.of_soft());
        let mut arguments = self.device.for_child(kind, self.link, self.address, &self.properties);
        arguments.push(option("--timeout", self.timeout.to_string()));
        arguments
    }
}

/// Waits until a socket listens, after the call that asked for it. Returns where, and what has happened on it already.
pub(super) fn listens(
    netio: &mut Netio,
    socket: AnySocket,
    site: &Site,
) -> Result<(SocketAddr, Vec<Event>), NetioError> {
    let mut early = Vec::new();
    loop {
        if let Some(address) = netio.local_address(socket) {
            return Ok((address, early));
        }
        // A name takes a while; nothing tells that it was found but the address.
        match netio.poll(Wait::For(Duration::from_millis(10)))? {
            Some(Event::BindRefused { error: source, .. }) => {
                return Err(NetioError::Listen { site: site.clone(), source });
            }
            other => early.extend(other),
        }
    }
}

/// Says where this side listens.
pub(super) fn announce(address: SocketAddr) {
    output::print_error(format_args!("listening on {address}"));
}

/// Says that this side refused a caller.
pub(super) fn warn_of_refused(from: SocketAddr, reason: &RefusedReason) {
    output::print_error(format_args!("warning: refused a caller at {from}: {reason}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_a_host_and_a_port() {
        let parse = |text: &str| text.parse::<Site>();
        let site = |host: &str, port| Ok(Site { host: host.to_owned(), port });
        assert_eq!(parse("daq:7000"), site("daq", 7000));
        assert_eq!(parse("10.0.0.1:0"), site("10.0.0.1", 0));
        assert_eq!(parse("[fe80::1%eth0]:7"), site("fe80::1%eth0", 7));
        assert_eq!(parse("[::1]:7").unwrap().to_string(), "[::1]:7");
        for wrong in ["", "daq", ":7000", "daq:", "daq:x", "daq:+7", "daq:65536", "::1:7", "[::1]"]
        {
            assert_eq!(parse(wrong), Err(SiteError(wrong.to_owned())), "{wrong}");
        }
    }

    #[test]
    fn tags_are_decimal_or_hexadecimal() {
        assert_eq!(tag("23"), Ok(23));
        assert_eq!(tag("0x17"), Ok(23));
        assert_eq!(tag("18446744073709551615"), Ok(u64::MAX));
        for wrong in ["", "-1", "+1", "0x", "0x+1", "18446744073709551616", "a"] {
            assert!(tag(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lengths_and_times_have_bounds() {
        assert_eq!(length("64k"), Ok(65536));
        assert!(length("0").is_err() && length("2G").is_err() && length("x").is_err());
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["-1", "nan", "inf", "86401", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
