//! Connecting to the other side: TCP for the control channel.

use std::fmt;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use super::control::Stream;

/// Default port; that of `fi_pingpong`.
const DEFAULT_PORT: u16 = 47592;
/// How long a refused connection is tried again: the server may just have been started.
const STARTING: Duration = Duration::from_secs(3);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// A host's name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostPort {
    host: String,
    port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// The text is no host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is neither HOST nor HOST:PORT{}", why_no_port(text))]
pub(crate) struct HostPortError {
    text: String,
}

impl FromStr for HostPort {
    type Err = HostPortError;

    fn from_str(text: &str) -> Result<Self, HostPortError> {
        let of = |host: &str, port| Self { host: host.to_owned(), port };
        let bracketed = text.strip_prefix('[').and_then(|text| text.split_once(']'));
        let parsed = match (bracketed, text.split_once(':')) {
            (Some((host, "")), _) => is_ipv6(host).then(|| of(host, DEFAULT_PORT)),
            (Some((host, port)), _) => {
                let port = port.strip_prefix(':').and_then(|port| port.parse().ok());
                port.filter(|_| is_ipv6(host)).map(|port| of(host, port))
            }
            (None, _) if is_ipv6(text) => Some(of(text, DEFAULT_PORT)),
            (None, None) => Some(of(text, DEFAULT_PORT)),
            (None, Some((host, port))) => port.parse().ok().map(|port| of(host, port)),
        };
        let named = parsed.filter(|parsed| !parsed.host.is_empty());
        named.ok_or_else(|| HostPortError { text: text.to_owned() })
    }
}

/// What to add to an error about `HOST:PORT`, if only the port is wrong: it is a number that is too high.
pub(crate) fn why_no_port(text: &str) -> &'static str {
    let (host, port) = text.rsplit_once(':').unwrap_or_default();
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_host = !host.is_empty() && (!host.contains(':') || host.ends_with(']'));
    match is_number && is_host && port.parse::<u16>().is_err() {
        true => ": the port is above 65535",
        false => "",
    }
}

/// Whether it is an IPv6 address, with or without zone: `fe80::1%eth0`.
fn is_ipv6(text: &str) -> bool {
    let address = text.split_once('%').map_or(text, |(address, _)| address);
    address.parse::<Ipv6Addr>().is_ok()
}

/// Why there is no control channel.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// The name can't be resolved.
    #[error("cannot resolve {host}")]
    Resolve {
        /// The host.
        host: HostPort,
        /// The reason.
        source: io::Error,
    },
    /// The connection fails.
    #[error("cannot connect to a server at {host}")]
    Connect {
        /// The host.
        host: HostPort,
        /// The reason.
        source: io::Error,
    },
    /// The server can't listen at the address.
    #[error("cannot listen at {host}")]
    Listen {
        /// The address.
        host: HostPort,
        /// The reason.
        source: io::Error,
    },
}

/// Connects to a server; one that refuses may be starting, and is tried again for a while.
pub(super) fn connect(host: &HostPort, timeout: Duration) -> Result<Stream, ConnectError> {
    let resolved = (host.host.as_str(), host.port).to_socket_addrs();
    let addresses: Vec<_> =
        resolved.map_err(|source| ConnectError::Resolve { host: host.clone(), source })?.collect();
    let begin = Instant::now();
    loop {
        match connect_to_any(&addresses, timeout) {
            Ok(stream) => return Ok(Stream::Tcp(stream)),
            Err(error)
                if error.kind() == io::ErrorKind::ConnectionRefused
                    && begin.elapsed() < STARTING.min(timeout) =>
            {
                tracing::debug!(%host, "the server refuses the connection; trying again");
                thread::sleep(PAUSE);
            }
            Err(source) => return Err(ConnectError::Connect { host: host.clone(), source }),
        }
    }
}

fn connect_to_any(addresses: &[SocketAddr], timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A listening server.
pub(super) struct Listening<'a> {
    host: &'a HostPort,
    listener: TcpListener,
    /// The address, with the port chosen by the system for port 0.
    pub(super) address: SocketAddr,
}

impl<'a> Listening<'a> {
    pub(super) fn at(host: &'a HostPort) -> Result<Self, ConnectError> {
        let listen = || {
            let listener = TcpListener::bind((host.host.as_str(), host.port))?;
            let address = listener.local_addr()?;
            Ok(Self { host, listener, address })
        };
        listen().map_err(|source| ConnectError::Listen { host: host.clone(), source })
    }

    /// Waits for a connection, without a timeout.
    pub(super) fn accept(&self) -> Result<Stream, ConnectError> {
        let Self { host, listener, .. } = self;
        let failed = |source| ConnectError::Listen { host: (*host).clone(), source };
        let (stream, client) = listener.accept().map_err(failed)?;
        tracing::info!(%client, "connected");
        Ok(Stream::Tcp(stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_parse_with_and_without_port() {
        let parsed = |text: &str| text.parse::<HostPort>().unwrap().to_string();
        assert_eq!(parsed("node7"), "node7:47592");
        assert_eq!(parsed("node7:80"), "node7:80");
        assert_eq!(parsed("127.0.0.1:0"), "127.0.0.1:0");
        assert_eq!(parsed("10.0.0.1"), "10.0.0.1:47592");
        assert_eq!(parsed("::1"), "[::1]:47592");
        assert_eq!(parsed("[::1]:80"), "[::1]:80");
        assert_eq!(parsed("[::1]"), "[::1]:47592");
        assert_eq!(parsed("fe80::1%eth0"), "[fe80::1%eth0]:47592");
        assert_eq!(parsed("[fe80::1%2]:80"), "[fe80::1%2]:80");
        for text in [
            "",
            ":80",
            "node7:",
            "node7:http",
            "node7:65536",
            "[::1]:x",
            "[::1]80",
            "[]",
            "[node7]:80",
            "::x",
        ] {
            let error = HostPortError { text: text.to_owned() };
            assert_eq!(text.parse::<HostPort>(), Err(error), "{text}");
        }
    }

    #[test]
    fn port_that_is_too_high_is_named_as_the_mistake() {
        for text in ["node7:65536", "127.0.0.1:99999", "[::1]:123456789"] {
            let error = text.parse::<HostPort>().unwrap_err().to_string();
            assert!(error.ends_with("HOST:PORT: the port is above 65535"), "{error}");
        }
        for text in ["", ":99999", "node7:", "node7:http", "::1:99999:", "node7:7"] {
            assert_eq!(why_no_port(text), "", "{text}");
        }
    }
}
