//! Contexts on one simulated network, in virtual time.

use std::time::Duration;

use efa::{Domain, Fabric, LocalOptions, ManualClock, sim::Faults};
use efa_netio::{
    Event, ListenOptions, ListenSocket, Message, Netio, Options, Pool, PublishOptions,
    PublishSocket, ReceiveSocket, SendOptions, SendSocket, SubscribeOptions, SubscribeSocket, Tag,
    Wait,
};

pub(crate) const HOST: &str = "10.0.0.1";

/// A network, and the contexts on it.
pub(crate) struct World {
    pub(crate) fabric: Fabric,
    clock: ManualClock,
    pub(crate) nodes: Vec<Node>,
}

/// A context, and what it has reported.
pub(crate) struct Node {
    pub(crate) netio: Option<Netio>,
    pub(crate) events: Vec<Event>,
}

/// Faults that the device of every node has.
pub(crate) fn faults() -> Faults {
    Faults::default().with(|faults| faults.receiver_not_ready = 0.1)
}

impl World {
    pub(crate) fn new(seed: u64, nodes: usize) -> Self {
        Self::with(nodes, Options::default(), |options| options.seed = seed)
    }

    pub(crate) fn with(
        nodes: usize,
        options: Options,
        change: impl FnOnce(&mut LocalOptions),
    ) -> Self {
        let clock = ManualClock::new();
        let local = LocalOptions::default().with(change);
        let fabric = Fabric::local(local).with_clock(&clock);
        let mut world = Self { fabric, clock, nodes: Vec::new() };
        for _ in 0..nodes {
            world.add(options);
        }
        world
    }

    /// Adds a context on a device of its own; returns its number.
    pub(crate) fn add(&mut self, options: Options) -> usize {
        let domain = self.fabric.domain().unwrap();
        let netio = Some(Netio::new(&domain, options).unwrap());
        self.nodes.push(Node { netio, events: Vec::new() });
        self.nodes.len() - 1
    }

    /// A device of its own, for a program that isn't a context.
    pub(crate) fn domain(&self) -> Domain {
        self.fabric.domain().unwrap()
    }

    pub(crate) fn netio(&mut self, node: usize) -> &mut Netio {
        self.nodes[node].netio.as_mut().unwrap()
    }

    /// The process of a node dies.
    pub(crate) fn kill(&mut self, node: usize) {
        self.nodes[node].netio = None;
    }

    /// All nodes do what is due, but those that are stopped; then a microsecond passes.
    pub(crate) fn turn_without(&mut self, stopped: &[usize]) {
        for (number, node) in self.nodes.iter_mut().enumerate() {
            let Some(netio) = &mut node.netio else { continue };
            if !stopped.contains(&number) {
                while let Some(event) = netio.poll(Wait::No).unwrap() {
                    node.events.push(event);
                }
            }
        }
        self.clock.advance(Duration::from_micros(1));
    }

    pub(crate) fn turn(&mut self) {
        self.turn_without(&[]);
    }

    /// Turns until `found` has something.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut found: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        for _ in 0..200_000 {
            if let Some(found) = found(self) {
                return found;
            }
            self.turn();
        }
        let events: Vec<_> = self.nodes.iter().map(|node| &node.events).collect();
        panic!("{what} doesn't come: {events:#?}");
    }

    /// Turns until a node has reported an event that `is` accepts, and takes it.
    pub(crate) fn event<T>(
        &mut self,
        node: usize,
        what: &str,
        is: impl Fn(&Event) -> Option<T>,
    ) -> T {
        self.until(what, |world| world.take(node, &is).map(|(_, found)| found))
    }

    /// An event that a node has reported, and what `is` makes of it.
    pub(crate) fn take<T>(
        &mut self,
        node: usize,
        is: impl Fn(&Event) -> Option<T>,
    ) -> Option<(Event, T)> {
        let events = &mut self.nodes[node].events;
        let (index, found) =
            events.iter().enumerate().find_map(|(index, event)| Some((index, is(event)?)))?;
        Some((events.remove(index), found))
    }

    /// Turns for a while; nothing new may come to this node.
    pub(crate) fn quiet(&mut self, node: usize) {
        (0..3000).for_each(|_| self.turn());
        assert!(self.nodes[node].events.is_empty(), "{:?}", self.nodes[node].events);
    }

    pub(crate) fn rest(&mut self) {
        (0..3000).for_each(|_| self.turn());
    }

    /// Lets time pass, of which nobody knows before its next turn.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.clock.advance(time);
    }

    // ---- sockets --------------------------------------------------------------------------------

    pub(crate) fn listener(&mut self, node: usize, options: ListenOptions) -> (ListenSocket, u16) {
        let netio = self.netio(node);
        let socket = netio.listen_socket(options);
        netio.listen(socket, HOST, 0).unwrap();
        let port = netio.local_address(socket).unwrap().port();
        (socket, port)
    }

    /// A connection from one node to a listener at another.
    pub(crate) fn connection(
        &mut self,
        from: usize,
        to: usize,
        port: u16,
        options: SendOptions,
    ) -> (SendSocket, ReceiveSocket) {
        let netio = self.netio(from);
        let send = netio.send_socket(options);
        netio.connect(send, HOST, port).unwrap();
        self.event(from, "Connected", |event| {
            matches!(event, Event::Connected(socket) if *socket == send.into()).then_some(())
        });
        let receive = self.event(to, "Accepted", |event| match event {
            Event::Accepted { socket, .. } => Some(*socket),
            _ => None,
        });
        (send, receive)
    }

    pub(crate) fn publisher(
        &mut self,
        node: usize,
        pool: &Pool,
        options: PublishOptions,
    ) -> (PublishSocket, u16) {
        let netio = self.netio(node);
        let socket = netio.publish_socket(pool, options).unwrap();
        netio.publish_at(socket, HOST, 0).unwrap();
        let port = netio.local_address(socket).unwrap().port();
        (socket, port)
    }

    /// A subscriber at a node, which the publisher knows.
    pub(crate) fn subscriber(
        &mut self,
        node: usize,
        port: u16,
        tags: &[Tag],
        options: SubscribeOptions,
    ) -> SubscribeSocket {
        let netio = self.netio(node);
        let socket = netio.subscribe_socket(HOST, port, options);
        for tag in tags {
            netio.subscribe(socket, *tag).unwrap();
        }
        for tag in tags {
            self.subscribed(node, socket, *tag);
        }
        socket
    }

    pub(crate) fn subscribed(&mut self, node: usize, of: SubscribeSocket, tag: Tag) {
        self.event(node, "Subscribed", |event| match event {
            Event::Subscribed { socket, tag: found } if *socket == of && *found == tag => Some(()),
            _ => None,
        });
    }

    /// The next message of a subscribe socket.
    pub(crate) fn message(&mut self, node: usize) -> (Tag, Vec<u8>) {
        self.event(node, "Message", |event| match event {
            Event::Message { tag, message, .. } => Some((*tag, message.to_vec())),
            _ => None,
        })
    }

    /// The next publication that is complete: key, served, lost.
    pub(crate) fn published(&mut self, node: usize) -> (u64, u32, u32) {
        self.event(node, "Published", |event| match event {
            Event::Published { message, served, lost, .. } => Some((message.key, *served, *lost)),
            _ => None,
        })
    }

    /// The next message of a receive socket, with its data.
    pub(crate) fn received(&mut self, node: usize) -> (Vec<u8>, Option<u64>) {
        self.event(node, "Received", |event| match event {
            Event::Received { message, data, .. } => Some((message.to_vec(), *data)),
            _ => None,
        })
    }

    /// The next send that is complete.
    pub(crate) fn send_completed(&mut self, node: usize) -> (u64, Result<(), efa::OperationError>) {
        self.event(node, "SendCompleted", |event| match event {
            Event::SendCompleted { message, result, .. } => Some((message.key, *result)),
            _ => None,
        })
    }

    /// A pool of a node, with bytes that tell where they are.
    pub(crate) fn pool(&mut self, node: usize, length: usize) -> Pool {
        self.netio(node).register(pattern(length)).unwrap()
    }
}

pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

pub(crate) fn part(pool: &Pool, begin: usize, length: usize) -> Message {
    Message::of(pool.part(begin..begin + length).unwrap())
}
