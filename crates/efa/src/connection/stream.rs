//! The bytes of a connection: TCP without blocking, or a pipe on a simulated network.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use efa_device::Shortage;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

#[cfg(feature = "sim")]
use super::pipe::{Inbox, Pipe};
use crate::fabric::Fabric;
use crate::wait::WaitObject;

/// After how long without a sign of life a TCP connection ends.
const DEAD_AFTER: Duration = Duration::from_secs(60);
const PROBE: Duration = Duration::from_secs(15);

/// What an event queue sleeps on.
#[derive(Debug)]
pub(super) struct Watch {
    /// Tells which of its TCP streams have changed.
    pub(super) epoll: OwnedFd,
    pub(super) wait: Arc<WaitObject>,
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

/// One side of a connection's stream of bytes.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    #[cfg(feature = "sim")]
    Pipe(Pipe),
}

impl Stream {
    /// Begins to connect.
    pub(super) fn connect(fabric: &Fabric, to: SocketAddr) -> io::Result<Self> {
        #[cfg(feature = "sim")]
        if let Some(switchboard) = fabric.switchboard() {
            return Ok(Self::Pipe(switchboard.connect(to, fabric.clock())));
        }
        let _ = fabric;
        let socket = open(to)?;
        match net::connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno.into()),
        }
        let stream = TcpStream::from(socket);
        tune(&stream)?;
        Ok(Self::Tcp(stream))
    }

    /// Whether bytes can be sent.
    ///
    /// # Errors
    /// The connection could not be made.
    pub(super) fn is_established(&self) -> io::Result<bool> {
        match self {
            Self::Tcp(stream) => match stream.peer_addr() {
                // A port of the range from which the system chose this socket's own, at which nobody listens.
                Ok(peer) if stream.local_addr()? == peer => {
                    Err(ErrorKind::ConnectionRefused.into())
                }
                Ok(_) => Ok(true),
                Err(error) if error.kind() == ErrorKind::NotConnected => {
                    stream.take_error()?.map_or(Ok(false), Err)
                }
                Err(error) => Err(error),
            },
            #[cfg(feature = "sim")]
            Self::Pipe(pipe) => pipe.is_established(),
        }
    }

    pub(super) fn receive(&mut self, into: &mut [u8]) -> io::Result<Received> {
        let received = match self {
            Self::Tcp(stream) => stream.read(into),
            #[cfg(feature = "sim")]
            Self::Pipe(pipe) => pipe.receive(into),
        };
        match received {
            Ok(0) => Ok(Received::End),
            Ok(count) => Ok(Received::Bytes(count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Received::Nothing),
            Err(error) if error.kind() == ErrorKind::Interrupted => self.receive(into),
            Err(error) => Err(error),
        }
    }

    /// Sends as much as fits, and returns how much; 0 if nothing does for now.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = match self {
            // The standard library sends without SIGPIPE.
            Self::Tcp(stream) => stream.write(bytes),
            #[cfg(feature = "sim")]
            Self::Pipe(pipe) => Ok(pipe.send(bytes)),
        };
        match sent {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            Err(error) if error.kind() == ErrorKind::Interrupted => self.send(bytes),
            sent => sent,
        }
    }

    /// Reports changes of this stream from now on: those of TCP under `key`. A pipe is looked at in each read.
    pub(super) fn register(&self, watch: &Watch, key: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP;
        match self {
            Self::Tcp(stream) => add(&watch.epoll, stream, key, flags),
            #[cfg(feature = "sim")]
            Self::Pipe(pipe) => {
                pipe.wakes(Some(&watch.wait));
                Ok(())
            }
        }
    }

    pub(super) fn unregister(&self, watch: &Watch) {
        match self {
            // It fails only if it isn't registered.
            Self::Tcp(stream) => drop(epoll::delete(&watch.epoll, stream)),
            #[cfg(feature = "sim")]
            Self::Pipe(pipe) => pipe.wakes(None),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        match self {
            // A forked child may have the descriptor too.
            Self::Tcp(stream) => drop(stream.shutdown(Shutdown::Write)),
            #[cfg(feature = "sim")]
            Self::Pipe(_) => {}
        }
    }
}

/// Where callers arrive.
#[derive(Debug)]
pub(super) enum Acceptor {
    Tcp(TcpListener),
    #[cfg(feature = "sim")]
    Pipe(Inbox),
}

impl Acceptor {
    /// Listens, with `backlog` connections that may wait in the system.
    pub(super) fn listen(fabric: &Fabric, at: SocketAddr, backlog: usize) -> io::Result<Self> {
        #[cfg(feature = "sim")]
        if let Some(switchboard) = fabric.switchboard() {
            return switchboard.listen(at, backlog, fabric.clock()).map(Self::Pipe);
        }
        let _ = fabric;
        let socket = open(at)?;
        // So that connections that were closed don't keep a new listener from the port.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        net::bind(&socket, &at)?;
        net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        Ok(Self::Tcp(socket.into()))
    }

    pub(super) fn local_address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr(),
            #[cfg(feature = "sim")]
            Self::Pipe(inbox) => Ok(inbox.address()),
        }
    }

    /// The next caller; `None` if there is none.
    pub(super) fn accept(&mut self) -> io::Result<Option<(Stream, SocketAddr)>> {
        match self {
            Self::Tcp(listener) => loop {
                return match listener.accept() {
                    Ok((stream, caller)) => {
                        // Setting options fails for a connection that is closed already.
                        if stream.set_nonblocking(true).and_then(|()| tune(&stream)).is_err() {
                            continue;
                        }
                        Ok(Some((Stream::Tcp(stream), caller)))
                    }
                    Err(error) => match error.kind() {
                        ErrorKind::WouldBlock => Ok(None),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted => continue,
                        _ => Err(error),
                    },
                };
            },
            #[cfg(feature = "sim")]
            Self::Pipe(inbox) => {
                Ok(inbox.accept().map(|(pipe, caller)| (Stream::Pipe(pipe), caller)))
            }
        }
    }

    pub(super) fn register(&self, watch: &Watch, key: u64) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => add(&watch.epoll, listener, key, epoll::EventFlags::IN),
            #[cfg(feature = "sim")]
            Self::Pipe(inbox) => {
                inbox.wakes(&watch.wait);
                Ok(())
            }
        }
    }
}

fn add(
    epoll: &OwnedFd,
    source: impl std::os::fd::AsFd,
    key: u64,
    flags: epoll::EventFlags,
) -> io::Result<()> {
    let data = epoll::EventData::new_u64(key);
    Ok(epoll::add(epoll, source, data, flags | epoll::EventFlags::ET)?)
}

/// Whether the system lacks descriptors or memory.
pub(super) fn is_scarcity(error: &io::Error) -> bool {
    let lacks = error.raw_os_error().and_then(Shortage::of_errno);
    matches!(lacks, Some(Shortage::OpenFiles | Shortage::Memory))
}

fn open(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(net::socket_with(family, SocketType::STREAM, flags, None)?)
}

/// A host that disappears ends the connection; frames are sent at once.
fn tune(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_tcp_user_timeout(stream, DEAD_AFTER.as_millis() as u32)?;
    sockopt::set_tcp_keepidle(stream, PROBE)?;
    sockopt::set_tcp_keepintvl(stream, PROBE)?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}
