//! Non-blocking sockets, and the poller (epoll) of a queue pair's sockets.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use efa_device::Gid;
use rustix::event::{Timespec, epoll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    self, AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags,
    SocketType, sockopt,
};

use super::info;
use super::silence::Traffic;
use crate::fork::Descriptor;

/// Most keepalive probes, and most seconds between two, that can be set.
const MOST_PROBES: u64 = 127;
const LONGEST_PROBE: u64 = 32_767;

/// The GID of an address.
pub(super) fn gid_of(address: IpAddr) -> Gid {
    Gid(match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    })
}

/// The address of a GID.
pub(super) fn address_of(gid: Gid) -> IpAddr {
    let address = Ipv6Addr::from(gid.0);
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}

/// The socket address of `address`, with `scope` if it is link-local.
pub(super) fn endpoint(address: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match address {
        IpAddr::V6(address) if address.is_unicast_link_local() => {
            SocketAddrV6::new(address, port, 0, scope).into()
        }
        address => SocketAddr::new(address, port),
    }
}

/// The interval of keepalive probes, in whole seconds, and how many of them are not answered until an idle connection has
/// been silent for `limit`, or a little longer.
fn probes(limit: Duration) -> (Duration, u32) {
    let limit = limit.as_secs().saturating_add(u64::from(limit.subsec_nanos() > 0));
    let interval = limit.div_ceil(4).clamp(1, LONGEST_PROBE);
    // The first one is sent after an interval, too.
    let count = (limit.div_ceil(interval).saturating_sub(1)).clamp(1, MOST_PROBES);
    (Duration::from_secs(interval), count as u32)
}

fn open(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    // On both ends of a connection, so that neither a closed connection (TIME_WAIT) nor a port that the
    // system chose for a connection keeps a queue pair from listening on its number.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(socket)
}

/// The outcome of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// The other side will send nothing more.
    End,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Socket(Descriptor);

impl Socket {
    /// Begins to connect `from` an interface `to` a queue pair. The port of `from` may be that of a [listener](Listener) of
    /// this user, which shows the other side who has connected. Or it is 0.
    pub(super) fn connect(
        from: SocketAddr,
        to: SocketAddr,
        dead_after: Option<Duration>,
    ) -> Result<Self, Errno> {
        let socket = Self(open(from)?.into());
        socket.tune(dead_after)?;
        if from.port() != 0 {
            sockopt::set_socket_reuseport(&socket.0, true)?;
        }
        net::bind(&socket.0, &from)?;
        match net::connect(&socket.0, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
            Err(errno) => Err(errno),
        }
    }

    fn tune(&self, dead_after: Option<Duration>) -> Result<(), Errno> {
        sockopt::set_tcp_nodelay(&self.0, true)?;
        let Some(limit) = dead_after else { return Ok(()) };
        info::limit_waits(self.0.as_fd(), limit / 2);
        let (interval, count) = probes(limit);
        sockopt::set_tcp_keepidle(&self.0, interval)?;
        sockopt::set_tcp_keepintvl(&self.0, interval)?;
        sockopt::set_tcp_keepcnt(&self.0, count)?;
        sockopt::set_socket_keepalive(&self.0, true)
    }

    /// What the system says of what is under way; `None` if it says nothing.
    pub(super) fn traffic(&self) -> Option<Traffic> {
        info::traffic(self.0.as_fd())
    }

    /// Closes the connection by a reset. What was written and did not arrive will not.
    pub(super) fn abort(self) {
        // If this fails the system closes it as any other.
        let _ = sockopt::set_socket_linger(&self.0, Some(Duration::ZERO));
    }

    /// Whether both ends are this socket, which can happen if it connects to a port of the range from which
    /// the system chose its own.
    pub(super) fn is_its_own_peer(&self) -> bool {
        let ends = (net::getsockname(&self.0), net::getpeername(&self.0));
        matches!(ends, (Ok(here), Ok(Some(there))) if here == there)
    }

    /// Receives bytes. If they don't fill `into`, there are no more for now.
    pub(super) fn receive(&self, into: &mut [u8]) -> Result<Received, Errno> {
        match retry_on_intr(|| net::recv(&self.0, &mut *into, RecvFlags::DONTWAIT)) {
            Ok((_, 0)) if !into.is_empty() => Ok(Received::End),
            Ok((_, count)) => Ok(Received::Bytes(count.min(into.len()))),
            Err(Errno::AGAIN) => Ok(Received::Nothing),
            Err(errno) => Err(errno),
        }
    }

    /// Sends as much as fits the socket's buffer; `None` if that is full. For one piece the system takes less time than for
    /// several. If more `follows`, the system holds it back until that is sent, until a [`push`](Self::push), for some 200 ms, or
    /// until the socket is closed, as it is when the process ends.
    pub(super) fn send(&self, bytes: &[u8], follows: bool) -> Result<Option<usize>, Errno> {
        let more = if follows { SendFlags::MORE } else { SendFlags::empty() };
        sent(|flags| net::send(&self.0, bytes, flags | more))
    }

    /// Sends as much of several pieces as fits the socket's buffer; `None` if that is full.
    pub(super) fn send_all(&self, parts: &[IoSlice<'_>]) -> Result<Option<usize>, Errno> {
        sent(|flags| net::sendmsg(&self.0, parts, &mut SendAncillaryBuffer::default(), flags))
    }

    /// Extends the buffer for what is written, as far as the system lets it, if that is more than it has.
    pub(super) fn extend(&self) {
        const MOST: usize = 1 << 20;
        if sockopt::socket_send_buffer_size(&self.0).is_ok_and(|size| size < MOST) {
            // What doesn't fit is not sent.
            let _ = sockopt::set_socket_send_buffer_size(&self.0, MOST);
        }
    }

    /// Has the system send now what it holds back, but not what is written later.
    pub(super) fn push(&self) {
        // For this setting it sends what was written, also what it holds back. It fails only for what is no TCP socket.
        let _ = sockopt::set_tcp_nodelay(&self.0, true);
    }

    /// Shuts down the sending side, and reads what has arrived, up to a limit: closing a socket with
    /// unread bytes is a reset, which the system may send before what was written before. If the other side goes on
    /// sending, only a socket that is kept open for a while gets the last words out.
    pub(super) fn close(&self, scratch: &mut [u8]) {
        let _ = net::shutdown(&self.0, Shutdown::Write);
        for _ in 0..16 {
            if !matches!(self.receive(scratch), Ok(Received::Bytes(_))) {
                break;
            }
        }
    }
}

fn sent(send: impl Fn(SendFlags) -> Result<usize, Errno>) -> Result<Option<usize>, Errno> {
    // No SIGPIPE: the program that uses this library may not expect it.
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match retry_on_intr(|| send(flags)) {
        Ok(count) => Ok(Some(count)),
        Err(Errno::AGAIN) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The listening socket of a queue pair.
#[derive(Debug)]
pub(super) struct Listener(Descriptor);

impl Listener {
    pub(super) fn bind(at: SocketAddr, backlog: usize) -> Result<Self, Errno> {
        let socket = open(at)?;
        net::bind(&socket, &at)?;
        net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        // Only now, as the port must be refused to any other listener, also one that reuses ports: connections that this queue
        // pair opens are from its port.
        sockopt::set_socket_reuseport(&socket, true)?;
        Ok(Self(socket.into()))
    }

    pub(super) fn port(&self) -> Result<u16, Errno> {
        let address = net::getsockname(&self.0)?;
        Ok(SocketAddr::try_from(address)?.port())
    }

    /// Accepts no more connections, but keeps the port reserved.
    pub(super) fn close(&self) -> Result<(), Errno> {
        let at = net::getsockname(&self.0)?;
        // In this order: another socket could bind a reusable port as soon as nobody listens.
        sockopt::set_socket_reuseport(&self.0, false)?;
        sockopt::set_socket_reuseaddr(&self.0, false)?;
        net::shutdown(&self.0, Shutdown::Both)?;
        match net::bind(&self.0, &at) {
            // A port that was requested is still bound.
            Err(Errno::INVAL) => Ok(()),
            // One that the system chose was released, and closed connections still use it.
            Err(Errno::ADDRINUSE) => {
                sockopt::set_socket_reuseaddr(&self.0, true)?;
                net::bind(&self.0, &at)?;
                sockopt::set_socket_reuseaddr(&self.0, false)
            }
            rebound => rebound,
        }
    }

    /// Accepts connections again after [`close`](Self::close).
    pub(super) fn reopen(&self, backlog: usize) -> Result<(), Errno> {
        // Closed connections may still use the port.
        sockopt::set_socket_reuseaddr(&self.0, true)?;
        net::listen(&self.0, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        sockopt::set_socket_reuseport(&self.0, true)
    }

    /// The next connection, and the address and port from which it was made; `None` if there is none.
    pub(super) fn accept(
        &self,
        dead_after: Option<Duration>,
    ) -> Result<Option<(Socket, IpAddr, u16)>, Errno> {
        loop {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let (socket, peer) = match net::acceptfrom_with(&self.0, flags) {
                Ok((socket, peer)) => (Socket(socket.into()), peer),
                Err(Errno::AGAIN) => return Ok(None),
                // It was reset before it was accepted.
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => return Err(errno),
            };
            let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
            // Setting options fails for a connection that was already closed.
            if let Some(peer) = peer
                && socket.tune(dead_after).is_ok()
            {
                return Ok(Some((socket, peer.ip().to_canonical(), peer.port())));
            }
        }
    }
}

/// The socket of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Listener,
    /// Key of a connection.
    Connection(usize),
}

impl Token {
    fn data(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
            Self::Listener => 0,
            Self::Connection(key) => key as u64 + 1,
        })
    }

    fn of(data: epoll::EventData) -> Self {
        let key = data.u64().checked_sub(1);
        let key = key.map(|key| usize::try_from(key).unwrap_or(usize::MAX));
        key.map_or(Self::Listener, Self::Connection)
    }
}

/// A socket became ready.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) token: Token,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// The other side sends nothing more, or there was an error.
    pub(super) hung_up: bool,
}

impl Event {
    fn of(event: &epoll::Event) -> Self {
        use epoll::EventFlags;
        let flags = event.flags;
        let hung_up = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        Self {
            token: Token::of(event.data),
            readable: hung_up || flags.contains(EventFlags::IN),
            writable: flags.contains(EventFlags::OUT),
            hung_up,
        }
    }
}

/// Most events taken with one system call.
const EVENTS: usize = 64;

/// Reports, once for each change (edge-triggered), which sockets are ready.
#[derive(Debug)]
pub(super) struct Poller(Descriptor);

impl Poller {
    pub(super) fn new() -> Result<Self, Errno> {
        epoll::create(epoll::CreateFlags::CLOEXEC).map(|file| Self(file.into()))
    }

    /// Readable when a socket has become ready.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn add(&self, socket: impl AsFd, token: Token) -> Result<(), Errno> {
        use epoll::EventFlags;
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.0, socket, token.data(), flags)
    }

    pub(super) fn add_connection(&self, socket: &Socket, token: Token) -> Result<(), Errno> {
        self.add(&socket.0, token)
    }

    /// Reports nothing more of it.
    pub(super) fn remove(&self, socket: &Socket) {
        // It fails only for a socket that was never added.
        let _ = epoll::delete(&self.0, &socket.0);
    }

    pub(super) fn add_listener(&self, listener: &Listener) -> Result<(), Errno> {
        self.add(&listener.0, Token::Listener)
    }

    /// Calls `report` with the sockets that became ready since the last call.
    pub(super) fn poll(&self, report: impl FnMut(Event)) {
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // It fails only when interrupted by a signal; the next call reports the events.
        let Ok((ready, _)) = epoll::wait(&self.0, &mut events, Some(&at_once)) else { return };
        ready.iter().map(Event::of).for_each(report);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_and_address_convert_both_ways() {
        for address in ["127.0.0.1", "10.1.2.3", "::1", "fe80::17"] {
            let address = address.parse().unwrap();
            assert_eq!(address_of(gid_of(address)), address);
        }
        let gid = gid_of([10, 1, 2, 3].into());
        assert_eq!(gid.to_string(), "::ffff:10.1.2.3");
    }

    #[test]
    fn token_survives_epoll_data() {
        for token in [Token::Listener, Token::Connection(0), Token::Connection(9)] {
            assert_eq!(Token::of(token.data()), token);
        }
    }

    #[test]
    fn probes_find_a_silent_host_after_its_limit() {
        for (millis, seconds) in
            [(1, 2), (1000, 2), (2000, 2), (3500, 4), (5000, 6), (10_000, 12), (30_000, 32)]
        {
            let (interval, count) = probes(Duration::from_millis(millis));
            assert_eq!(interval * (1 + count), Duration::from_secs(seconds), "{millis} ms");
        }
        let longest = Duration::from_secs(32_767);
        assert_eq!(probes(Duration::from_secs(200_000)), (longest, 6));
        assert_eq!(probes(Duration::from_secs(u64::MAX)), (longest, 127));
    }

    /// The system chooses ports of sockets from the same range as those of queue pairs.
    #[test]
    fn socket_connected_to_itself_is_detected() {
        let here: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let socket = Socket(open(here).unwrap().into());
        net::bind(&socket.0, &here).unwrap();
        let own = SocketAddr::try_from(net::getsockname(&socket.0).unwrap()).unwrap();
        let _ = net::connect(&socket.0, &own);
        assert!(socket.is_its_own_peer());
        let listener = Listener::bind(here, 1).unwrap();
        let there = SocketAddr::new(here.ip(), listener.port().unwrap());
        let other = Socket::connect(here, there, None).unwrap();
        assert!(!other.is_its_own_peer());
    }
}
