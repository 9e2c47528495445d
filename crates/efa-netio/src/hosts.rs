//! Hosts that sockets connect to and listen at. A name is looked up by a thread, so that the context goes on meanwhile.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use crate::context::Netio;
use crate::delivery::Return;
use crate::event::{Event, NoThread, RefusedReason};
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Search {
    attempt: u32,
    pub(crate) is_under_way: bool,
    /// When it is given up.
    deadline: Option<Deadline>,
    /// Addresses of the host that were not tried, the last one first.
    others: Vec<SocketAddr>,
}

impl Search {
    fn begin(&mut self) -> u32 {
        self.attempt = self.attempt.wrapping_add(1);
        self.is_under_way = true;
        self.others.clear();
        self.attempt
    }

    /// Ends the attempt that is under way; `false` if none is.
    pub(crate) fn give_up(&mut self, timers: &mut Timers) -> bool {
        timers.remove(self.deadline.take());
        self.others.clear();
        std::mem::take(&mut self.is_under_way)
    }

    /// Keeps the addresses of the host, and returns the first one.
    fn take(&mut self, mut all: Vec<SocketAddr>) -> Option<SocketAddr> {
        all.reverse();
        self.others = all;
        self.next()
    }

    /// The next address to try.
    pub(crate) fn next(&mut self) -> Option<SocketAddr> {
        self.others.pop()
    }

    /// Ends this attempt; `false` if it is another one that is under way, or none.
    fn end(&mut self, attempt: u32) -> bool {
        let is_this = self.is_under_way && self.attempt == attempt;
        self.is_under_way &= !is_this;
        is_this
    }
}

/// Why there is no address of a host.
enum NotFound {
    /// The host has none, in the system's words.
    Unknown(String),
    /// Nobody looks.
    NoThread(NoThread),
}

impl Netio {
    /// Begins to find a site; what follows is in [`host_found`](Self::host_found).
    pub(crate) fn find(&mut self, socket: AnySocket, site: &Site) {
        let Some(search) = self.search_of(socket) else { return };
        let attempt = search.begin();
        if let Ok(ip) = site.host.parse::<IpAddr>() {
            return self.host_found(socket, attempt, Ok(vec![SocketAddr::new(ip, site.port)]));
        }
        let (returns, of_thread) = (self.returns.clone(), site.clone());
        let look_up = move || {
            let found = (of_thread.host.as_str(), of_thread.port).to_socket_addrs();
            let found = found.map_err(|error| error.to_string());
            returns.put(Return::Found(socket, attempt, found.map(Iterator::collect)));
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
            Err(error) => {
                self.search_ends(socket, attempt, Err(NotFound::NoThread(NoThread(error))))
            }
        }
    }

    pub(crate) fn search_of(&mut self, socket: AnySocket) -> Option<&mut Search> {
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
        found: Result<Vec<SocketAddr>, String>,
    ) {
        self.search_ends(socket, attempt, found.map_err(NotFound::Unknown));
    }

    fn search_ends(
        &mut self,
        socket: AnySocket,
        attempt: u32,
        found: Result<Vec<SocketAddr>, NotFound>,
    ) {
        let Some(search) = self.search_of(socket) else { return };
        if !search.end(attempt) {
            return;
        }
        let deadline = search.deadline.take();
        let none = || NotFound::Unknown("it has no address".to_owned());
        let first = found.and_then(|all| search.take(all).ok_or_else(none));
        self.timers.remove(deadline);
        let reason = match first {
            Ok(at) => return self.go_to(socket, at),
            Err(reason) => reason,
        };
        if matches!(socket, AnySocket::Listen(_) | AnySocket::Publish(_)) {
            let error = match reason {
                NotFound::Unknown(reason) => io::Error::new(ErrorKind::AddrNotAvailable, reason),
                NotFound::NoThread(error) => io::Error::other(error),
            };
            return self.events.push_back(Event::BindRefused { socket, error });
        }
        // A subscriber that has given up all tags meanwhile waits for nothing.
        if let AnySocket::Subscribe(socket) = socket
            && self.wants_nothing(socket)
        {
            return;
        }
        let reason = match reason {
            NotFound::Unknown(reason) => {
                let host = self.site_of(socket).map(|site| site.host.clone()).unwrap_or_default();
                RefusedReason::UnknownHost { host, reason }
            }
            NotFound::NoThread(error) => error.into(),
        };
        self.events.push_back(Event::Refused { socket, reason });
    }

    fn go_to(&mut self, socket: AnySocket, at: SocketAddr) {
        match socket {
            AnySocket::Send(socket) => self.connect_to(socket, at),
            AnySocket::Subscribe(socket) => self.connect_subscriber(socket, at),
            AnySocket::Listen(_) | AnySocket::Publish(_) => self.bind(socket, at),
            AnySocket::Receive(_) => {}
        }
    }

    /// A socket was refused at an address of its host: it goes to the next one, if this one may be the wrong one. Returns
    /// whether there is one.
    pub(crate) fn go_on(&mut self, socket: AnySocket, reason: &RefusedReason) -> bool {
        let is_of_address = matches!(reason, RefusedReason::Connect(_) | RefusedReason::Start(_));
        let next = self.search_of(socket).filter(|_| is_of_address).and_then(Search::next);
        next.map(|at| self.go_to(socket, at)).is_some()
    }

    /// A socket can't go to an address of its host: it goes to the next one, or the program learns why.
    pub(crate) fn go_on_or_tell(&mut self, socket: AnySocket, reason: RefusedReason) {
        if !self.go_on(socket, &reason) {
            self.events.push_back(Event::Refused { socket, reason });
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use efa::{Fabric, LocalOptions, ManualClock};

    use super::*;
    use crate::context::Wait;
    use crate::{ListenOptions, Options, PublishOptions, SendOptions, SubscribeOptions};

    const HERE: &str = "10.0.0.1";

    fn context() -> (Netio, ManualClock) {
        let clock = ManualClock::new();
        let fabric = Fabric::local(LocalOptions::default()).with_clock(&clock);
        (Netio::new(&fabric.domain().unwrap(), Options::default()).unwrap(), clock)
    }

    /// Events that come within a while.
    fn events(netio: &mut Netio, clock: &ManualClock) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..3000 {
            events.extend(std::iter::from_fn(|| netio.poll(Wait::No).unwrap()));
            clock.advance(Duration::from_micros(1));
        }
        events
    }

    /// The socket's host is found at these addresses.
    fn found(netio: &mut Netio, socket: AnySocket, at: &[SocketAddr]) {
        let attempt = netio.search_of(socket).unwrap().begin();
        netio.host_found(socket, attempt, Ok(at.to_vec()));
    }

    fn at(host: &str, port: u16) -> SocketAddr {
        SocketAddr::new(host.parse().unwrap(), port)
    }

    fn counts(events: &[Event]) -> (usize, usize) {
        let count = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
        (
            count(|event| matches!(event, Event::Connected(_))),
            count(|event| matches!(event, Event::Refused { .. })),
        )
    }

    #[test]
    fn addresses_of_a_host_are_tried_until_somebody_answers() {
        let (mut netio, clock) = context();
        let listener = netio.listen_socket(ListenOptions::default());
        netio.listen(listener, HERE, 0).unwrap();
        let port = netio.local_address(listener).unwrap().port();
        let nobody = [at(HERE, port + 1), at(HERE, port + 2)];
        for (addresses, expected) in [
            (vec![nobody[0], nobody[1], at(HERE, port)], (1, 0)),
            (nobody.to_vec(), (0, 1)),
            (Vec::new(), (0, 1)),
            (vec![at(HERE, port), nobody[0]], (1, 0)),
        ] {
            let socket = netio.send_socket(SendOptions::default());
            found(&mut netio, socket.into(), &addresses);
            assert_eq!(counts(&events(&mut netio, &clock)), expected, "{addresses:?}");
        }
    }

    #[test]
    fn subscriber_tries_all_addresses_and_no_other_one_after_a_rejection() {
        let (mut netio, clock) = context();
        let pool = netio.allocate(10).unwrap();
        let publisher = netio.publish_socket(&pool, PublishOptions::default()).unwrap();
        netio.publish_at(publisher, HERE, 0).unwrap();
        let listener = netio.listen_socket(ListenOptions::default());
        netio.listen(listener, HERE, 0).unwrap();
        let port = netio.local_address(publisher).unwrap().port();
        let wrong = netio.local_address(listener).unwrap().port();
        for (addresses, expected) in [
            ([at(HERE, port + 10), at(HERE, port)], (1, 0)),
            ([at(HERE, wrong), at(HERE, port)], (0, 1)),
        ] {
            let socket = netio.subscribe_socket("a name", 1, SubscribeOptions::default());
            // What `subscribe` does but for the look-up, which would be one of the system.
            let search = netio.search_of(socket.into()).unwrap();
            search.begin();
            netio.subscribe(socket, 1).unwrap();
            found(&mut netio, socket.into(), &addresses);
            assert_eq!(counts(&events(&mut netio, &clock)), expected, "{addresses:?}");
        }
    }

    #[test]
    fn subscriber_without_tags_learns_of_no_look_up_in_vain() {
        let (mut netio, clock) = context();
        let socket = netio.subscribe_socket("a name", 1, SubscribeOptions::default()).into();
        let attempt = netio.search_of(socket).unwrap().begin();
        netio.lookup_is_due(socket, attempt);
        assert!(events(&mut netio, &clock).is_empty());
    }

    #[test]
    fn listener_takes_the_first_address_that_is_free() {
        let (mut netio, _) = context();
        let [first, second, third] = [0; 3].map(|_| netio.listen_socket(ListenOptions::default()));
        netio.listen(first, HERE, 0).unwrap();
        let taken = netio.local_address(first).unwrap();
        let free = at(HERE, taken.port() + 1);
        found(&mut netio, second.into(), &[taken, free]);
        assert_eq!(netio.local_address(second), Some(free));
        found(&mut netio, third.into(), &[taken, free]);
        assert_eq!(netio.local_address(third), None);
        let event = netio.poll(Wait::No).unwrap();
        assert!(matches!(event, Some(Event::BindRefused { .. })), "{event:?}");
        assert!(netio.poll(Wait::No).unwrap().is_none(), "one event");
    }
}
