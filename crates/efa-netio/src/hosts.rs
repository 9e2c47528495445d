//! Hosts that sockets connect to and listen at. A name is looked up by a thread, so that the context goes on meanwhile.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use crate::context::Netio;
use crate::delivery::Return;
use crate::event::{Event, RefusedReason};
use crate::ids::AnySocket;
use crate::timers::{Deadline, Due, Timers};

/// A host and a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Site {
    pub(crate) fn new(host: &str, port: u16) -> Self {
        Self { host: host.to_owned(), port }
    }
}

/// Attempts of a socket to find a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Search {
    attempt: u32,
    pub(crate) is_under_way: bool,
    /// When it is given up.
    deadline: Option<Deadline>,
}

impl Search {
    fn begin(&mut self) -> u32 {
        self.attempt = self.attempt.wrapping_add(1);
        self.is_under_way = true;
        self.attempt
    }

    /// Ends the attempt that is under way; `false` if none is.
    pub(crate) fn give_up(&mut self, timers: &mut Timers) -> bool {
        timers.remove(self.deadline.take());
        std::mem::take(&mut self.is_under_way)
    }

    /// Ends this attempt; `false` if it is another one that is under way, or none.
    fn end(&mut self, attempt: u32) -> bool {
        let is_this = self.is_under_way && self.attempt == attempt;
        self.is_under_way &= !is_this;
        is_this
    }
}

impl Netio {
    /// Begins to find a site; what follows is in [`host_found`](Self::host_found).
    pub(crate) fn find(&mut self, socket: AnySocket, site: &Site) {
        let Some(search) = self.search_of(socket) else { return };
        let attempt = search.begin();
        if let Ok(ip) = site.host.parse::<IpAddr>() {
            return self.host_found(socket, attempt, Ok(SocketAddr::new(ip, site.port)));
        }
        let (returns, of_thread) = (self.returns.clone(), site.clone());
        let look_up = move || {
            let found = (of_thread.host.as_str(), of_thread.port).to_socket_addrs();
            let found = found.map_err(|error| error.to_string());
            let first = found.and_then(|mut all| all.next().ok_or("it has no address".to_owned()));
            returns.put(Return::Found(socket, attempt, first));
        };
        let thread = std::thread::Builder::new().name("efa-netio-host".to_owned());
        match thread.spawn(look_up) {
            Ok(_) => {
                let at = self.link.now() + self.link.options.timeout;
                let deadline = self.timers.add(at, Due::Lookup(socket, attempt));
                if let Some(search) = self.search_of(socket) {
                    search.deadline = Some(deadline);
                }
            }
            Err(error) => self.host_found(socket, attempt, Err(error.to_string())),
        }
    }

    fn search_of(&mut self, socket: AnySocket) -> Option<&mut Search> {
        match socket {
            AnySocket::Send(socket) => Some(&mut self.senders.get_mut(socket)?.search),
            AnySocket::Listen(socket) => Some(&mut self.listeners.get_mut(socket)?.search),
            AnySocket::Publish(socket) => Some(&mut self.publishers.get_mut(socket)?.search),
            AnySocket::Subscribe(socket) => Some(&mut self.subscribers.get_mut(socket)?.search),
            AnySocket::Receive(_) => None,
        }
    }

    pub(crate) fn lookup_is_due(&mut self, socket: AnySocket, attempt: u32) {
        let reason = format!("no answer within {:?}", self.link.options.timeout);
        self.host_found(socket, attempt, Err(reason));
    }

    /// A host was found, or not: the socket goes on.
    pub(crate) fn host_found(
        &mut self,
        socket: AnySocket,
        attempt: u32,
        found: Result<SocketAddr, String>,
    ) {
        let Some(search) = self.search_of(socket) else { return };
        if !search.end(attempt) {
            return;
        }
        let deadline = search.deadline.take();
        self.timers.remove(deadline);
        match (socket, found) {
            (AnySocket::Send(socket), Ok(at)) => self.connect_to(socket, at),
            (AnySocket::Subscribe(socket), Ok(at)) => self.connect_subscriber(socket, at),
            (AnySocket::Listen(_) | AnySocket::Publish(_), Ok(at)) => self.bind(socket, at),
            (AnySocket::Listen(_) | AnySocket::Publish(_), Err(reason)) => {
                let error = std::io::Error::new(std::io::ErrorKind::AddrNotAvailable, reason);
                self.events.push_back(Event::BindRefused { socket, error });
            }
            (_, Err(reason)) => {
                let host = self.site_of(socket).map(|site| site.host.clone()).unwrap_or_default();
                let reason = RefusedReason::UnknownHost { host, reason };
                self.events.push_back(Event::Refused { socket, reason });
            }
            (AnySocket::Receive(_), Ok(_)) => {}
        }
    }

    fn site_of(&self, socket: AnySocket) -> Option<&Site> {
        match socket {
            AnySocket::Send(socket) => Some(&self.senders.get(socket)?.site),
            AnySocket::Subscribe(socket) => Some(&self.subscribers.get(socket)?.site),
            _ => None,
        }
    }
}
