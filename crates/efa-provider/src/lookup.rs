//! Endpoints without a connection that are found by host and port.
//!
//! The address of such an endpoint is known when it is enabled, not before, so what `fi_getinfo` knows of node and
//! service is a [`HostPort`]: host and port in the form of an address. A server whose entry has one as its source
//! answers there; a client that inserts one into an address vector asks there:
//!
//! ```text
//!   server: fi_getinfo(node, service, FI_SOURCE)      client: fi_getinfo(node, service)
//!           fi_enable: listens at the port                    fi_av_insert(dest_addr)
//!                                        ◄─────────── TCP connection
//!           "EfaA" version 0 0 0, address ───────────►        the address is inserted
//! ```

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use efa::Address;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;

use crate::boundary::lock;
use crate::threads::with_signals_blocked;

/// Bytes of an address.
type Bytes = [u8; Address::SIZE];

/// What an answer begins with: a name, the version, and zeros.
const GREETING: [u8; 8] = *b"EfaA\x01\0\0\0";

const ANSWER: usize = GREETING.len() + Address::SIZE;

/// The last bytes of a [`HostPort`], where addresses have zeros.
const MARK: [u8; 8] = *b"EfaSite\x01";

/// How long a client tries to reach servers that aren't there yet.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// How long a client waits before it tries again.
const PAUSE: Duration = Duration::from_millis(10);

/// Host and port of an endpoint, as 32 bytes:
/// IPv6 address or mapped IPv4 address, 2 zeros, port, scope, mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostPort(pub(crate) SocketAddr);

impl HostPort {
    pub(crate) fn to_bytes(self) -> Bytes {
        let (ip, scope) = match self.0 {
            SocketAddr::V4(address) => (address.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(address) => (*address.ip(), address.scope_id()),
        };
        let mut bytes = [0; Address::SIZE];
        bytes[..16].copy_from_slice(&ip.octets());
        bytes[18..20].copy_from_slice(&self.0.port().to_be_bytes());
        bytes[20..24].copy_from_slice(&scope.to_be_bytes());
        bytes[24..].copy_from_slice(&MARK);
        bytes
    }

    /// `None` if the bytes are an address.
    pub(crate) fn from_bytes(bytes: &Bytes) -> Option<Self> {
        let [ip @ .., _, _, p0, p1, s0, s1, s2, s3, _, _, _, _, _, _, _, _] = *bytes;
        if bytes[24..] != MARK {
            return None;
        }
        let ip = Ipv6Addr::from(ip);
        let port = u16::from_be_bytes([p0, p1]);
        Some(Self(match ip.to_ipv4_mapped() {
            Some(ip) => (ip, port).into(),
            None => SocketAddrV6::new(ip, port, 0, u32::from_be_bytes([s0, s1, s2, s3])).into(),
        }))
    }
}

/// Most servers that are asked at the same time.
const MOST_AT_ONCE: usize = 64;

/// Asks for the addresses of the endpoints there, of all within this time. Servers that aren't there yet are
/// waited for.
///
/// A result is an error if nobody has answered in time, or something else than such an endpoint has.
pub(crate) fn look_up(servers: &[HostPort], patience: Duration) -> Vec<io::Result<Bytes>> {
    let end = Instant::now() + patience;
    let waiting = Mutex::new((0..servers.len()).collect::<VecDeque<_>>());
    let answers = Mutex::new((0..servers.len()).map(|_| None).collect::<Vec<_>>());
    let ask_each = || {
        loop {
            let Some(index) = lock(&waiting).pop_front() else { return };
            let left = end.saturating_duration_since(Instant::now());
            match ask(servers[index].0, end) {
                // Others take their turn meanwhile.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused && left > PAUSE => {
                    std::thread::sleep(PAUSE);
                    lock(&waiting).push_back(index);
                }
                answer => lock(&answers)[index] = Some(answer),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..servers.len().min(MOST_AT_ONCE) {
            // Without a further thread the others ask.
            let _ = with_signals_blocked(|| {
                std::thread::Builder::new().spawn_scoped(scope, ask_each).map(drop)
            });
        }
        ask_each();
    });
    let answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
    let answers = answers.into_iter();
    answers.map(|answer| answer.unwrap_or_else(|| Err(ErrorKind::TimedOut.into()))).collect()
}

fn ask(at: SocketAddr, end: Instant) -> io::Result<Bytes> {
    let mut stream = TcpStream::connect_timeout(&at, time_until(end)?)?;
    let mut answer = [0; ANSWER];
    let mut length = 0;
    while length < ANSWER {
        // Each time anew: a server may send a byte now and then.
        stream.set_read_timeout(Some(time_until(end)?))?;
        match stream.read(&mut answer[length..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => length += count,
            // The time is over, or a signal came.
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    match (answer.first_chunk(), answer.last_chunk()) {
        (Some(&GREETING), Some(address)) => Ok(*address),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

/// The time until `end`; an error if there is none.
fn time_until(end: Instant) -> io::Result<Duration> {
    match end.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

/// Answers all who ask at a port, until it is dropped.
#[derive(Debug)]
pub(crate) struct AddressServer {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl AddressServer {
    /// Answers with this address.
    ///
    /// # Errors
    /// If the IP address isn't one of this host, or its port is used.
    pub(crate) fn start(at: HostPort, address: &Bytes) -> io::Result<Self> {
        Self::on(TcpListener::bind(at.0)?, address)
    }

    fn on(listener: TcpListener, address: &Bytes) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let mut answer = [0; ANSWER];
        answer[..GREETING.len()].copy_from_slice(&GREETING);
        answer[GREETING.len()..].copy_from_slice(address);
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let stopped = stop.try_clone()?;
        let thread = std::thread::Builder::new().name("efars-address".to_owned());
        let serves = move || serve(&listener, &stopped, &answer);
        let thread = with_signals_blocked(|| thread.spawn(serves))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for AddressServer {
    fn drop(&mut self) {
        // An eventfd of its own takes a one at any time.
        let told = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let (Ok(_), Some(thread)) = (told, self.thread.take()) {
            // It ends after at most one answer, and has nothing to tell.
            drop(thread.join());
        }
    }
}

/// Answers until `stop` is readable.
fn serve(listener: &TcpListener, stop: &OwnedFd, answer: &[u8; ANSWER]) {
    loop {
        let mut wanted = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut wanted, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
            Ok(_) if !wanted[1].revents().is_empty() => return,
            Ok(_) => {}
        }
        match listener.accept() {
            // An answer is shorter than any socket's buffer; who doesn't take it gets none.
            Ok((mut stream, _)) => {
                drop(stream.set_nonblocking(true).and_then(|()| stream.write_all(answer)))
            }
            // Without descriptors `poll` would return at once again and again.
            Err(error) if error.kind() != ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

    use std::net::Ipv4Addr;

    use super::*;

    fn here(port: u16) -> HostPort {
        HostPort((Ipv4Addr::LOCALHOST, port).into())
    }

    fn answer_of(at: HostPort, patience: Duration) -> io::Result<Bytes> {
        look_up(&[at], patience).pop().unwrap()
    }

    #[test]
    fn host_and_port_of_either_family_is_written_and_read_back() {
        for text in ["10.1.2.3:70", "0.0.0.0:9228", "[fe80::1%3]:65535", "[::1]:0"] {
            let at = HostPort(text.parse().unwrap());
            assert_eq!(HostPort::from_bytes(&at.to_bytes()), Some(at), "{text}");
        }
    }

    #[test]
    fn address_is_no_host_and_port() {
        let address: Address = "[fe80::1]:12/0x0000002a".parse().unwrap();
        assert_eq!(HostPort::from_bytes(&address.to_bytes()), None);
    }

    #[test]
    fn everyone_who_asks_gets_the_address() {
        let listener = TcpListener::bind(here(0).0).unwrap();
        let at = HostPort(listener.local_addr().unwrap());
        let server = AddressServer::on(listener, &[7; 32]).unwrap();
        // Says nothing and takes nothing.
        let _silent = TcpStream::connect(at.0).unwrap();
        for _ in 0..3 {
            assert_eq!(answer_of(at, PATIENCE).unwrap(), [7; 32]);
        }
        drop(server);
        let begin = Instant::now();
        answer_of(at, Duration::from_millis(20)).unwrap_err();
        assert!(begin.elapsed() < PATIENCE);
    }

    #[test]
    fn client_waits_for_a_server_that_is_late() {
        let port = TcpListener::bind(here(0).0).unwrap().local_addr().unwrap().port();
        let client = std::thread::spawn(move || answer_of(here(port), Duration::from_secs(20)));
        let _server = AddressServer::start(here(port), &[9; 32]).unwrap();
        assert_eq!(client.join().unwrap().unwrap(), [9; 32]);
    }

    #[test]
    fn server_behind_more_that_never_answer_than_are_asked_at_once_is_found_within_the_time_of_one()
    {
        // Nobody listens there, and no other server gets one of the ports.
        let bound = || {
            use rustix::net::{AddressFamily, SocketType, bind, socket};
            let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            bind(&socket, &here(0).0).unwrap();
            socket
        };
        let bound: Vec<_> = (0..MOST_AT_ONCE + 10).map(|_| bound()).collect();
        let at = |socket| SocketAddr::try_from(rustix::net::getsockname(socket).unwrap()).unwrap();
        let mut servers: Vec<_> = bound.iter().map(|socket| HostPort(at(socket))).collect();
        let listener = TcpListener::bind(here(0).0).unwrap();
        servers.push(HostPort(listener.local_addr().unwrap()));
        let _server = AddressServer::on(listener, &[5; 32]).unwrap();
        let begin = Instant::now();
        let mut answers = look_up(&servers, PATIENCE);
        assert!(begin.elapsed() < 3 * PATIENCE);
        assert_eq!(answers.pop().unwrap().unwrap(), [5; 32]);
        assert!(answers.into_iter().all(|answer| answer.is_err()));
    }

    #[test]
    fn other_server_and_short_answer_are_errors() {
        for (answer, kind) in [
            (&[b'x'; ANSWER][..], ErrorKind::InvalidData),
            (&GREETING[..], ErrorKind::UnexpectedEof),
        ] {
            let other = TcpListener::bind(here(0).0).unwrap();
            let at = here(other.local_addr().unwrap().port());
            let client = std::thread::spawn(move || answer_of(at, PATIENCE));
            other.accept().unwrap().0.write_all(answer).unwrap();
            assert_eq!(client.join().unwrap().unwrap_err().kind(), kind);
        }
    }

    #[test]
    fn server_that_sends_its_answer_byte_by_byte_is_given_up_when_the_time_is_over() {
        const PATIENCE: Duration = Duration::from_secs(1);
        let slow = TcpListener::bind(here(0).0).unwrap();
        let at = here(slow.local_addr().unwrap().port());
        let client = std::thread::spawn(move || answer_of(at, PATIENCE));
        let mut stream = slow.accept().unwrap().0;
        // All of it takes 8 s; no byte takes as long as the client waits.
        let mut sent = 0;
        for byte in GREETING.into_iter().chain([3; Address::SIZE]) {
            if client.is_finished() || stream.write_all(&[byte]).is_err() {
                break;
            }
            sent += 1;
            std::thread::sleep(PATIENCE / 5);
        }
        assert_eq!(client.join().unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(sent < ANSWER);
    }

    #[test]
    fn port_that_is_used_is_an_error() {
        let first = TcpListener::bind(here(0).0).unwrap();
        let at = HostPort(first.local_addr().unwrap());
        let error = AddressServer::start(at, &[2; 32]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    }
}
