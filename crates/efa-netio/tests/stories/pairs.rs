//! A sender at node 0 and a receiver at node 1, with a connection between them.

use std::time::Duration;

use efa::LocalOptions;
use efa_netio::{
    AnySocket, Buffers, ClosedReason, Event, ListenOptions, ListenSocket, Message, Options, Pool,
    ReceiveSocket, SendOptions, SendSocket, Sent,
};

use crate::world::{World, faults, pattern};

pub(crate) const SENDER: usize = 0;
pub(crate) const RECEIVER: usize = 1;

pub(crate) struct Pair {
    pub(crate) world: World,
    pub(crate) send: SendSocket,
    pub(crate) receive: ReceiveSocket,
    pub(crate) listener: ListenSocket,
    pub(crate) port: u16,
    pub(crate) pool: Pool,
}

/// A network that reorders and delays packets, whose receivers are not ready now and then, and whose devices refuse
/// some sends and registrations.
pub(crate) fn rough(seed: u64) -> impl FnOnce(&mut LocalOptions) {
    move |options| {
        options.seed = seed;
        options.faults = faults().with(|faults| {
            faults.late = 0.1;
            faults.late_by = Duration::from_micros(300);
            faults.send_refused = 0.05;
            faults.registration_refused = 0.1;
        });
    }
}

/// That each receive socket makes so many buffers of this size.
pub(crate) fn buffers(count: usize, size: usize) -> ListenOptions {
    ListenOptions::default().buffers(Some(Buffers { count, size }))
}

/// That the program posts the buffers.
pub(crate) fn posted() -> ListenOptions {
    ListenOptions::default().buffers(None)
}

/// Registered memory, also if the device refuses at first.
pub(crate) fn pool(world: &mut World, node: usize, length: usize) -> Pool {
    let bytes = pattern(length);
    world.until("a registration", |world| world.netio(node).register(bytes.clone()).ok())
}

impl Pair {
    pub(crate) fn new(seed: u64, listens: ListenOptions) -> Self {
        Self::with(seed, Options::default(), listens, SendOptions::default())
    }

    pub(crate) fn with(
        seed: u64,
        options: Options,
        listens: ListenOptions,
        sends: SendOptions,
    ) -> Self {
        let mut world = World::with(2, options, rough(seed));
        let (listener, port) = world.listener(RECEIVER, listens);
        let (send, receive) = world.connection(SENDER, RECEIVER, port, sends);
        let pool = pool(&mut world, SENDER, 4 << 20);
        Self { world, send, receive, listener, port, pool }
    }

    /// The message of these bytes of the pool.
    pub(crate) fn message(&self, begin: usize, length: usize) -> Message {
        crate::world::part(&self.pool, begin, length)
    }

    /// Sends a message that has to be accepted.
    pub(crate) fn send(&mut self, message: Message) {
        let sent = self.world.netio(SENDER).send(self.send, message);
        assert!(matches!(sent, Sent::Accepted), "{sent:?}");
    }

    /// A connected socket has an end: what this node has reported before it, and why.
    pub(crate) fn closed(
        &mut self,
        node: usize,
        of: impl Into<AnySocket>,
    ) -> (Vec<Event>, ClosedReason) {
        let of = of.into();
        closed(&mut self.world, node, of)
    }

    /// No connection and nothing under way is left at either side.
    pub(crate) fn nothing_is_left(&mut self) {
        self.world.rest();
        for node in 0..self.world.nodes.len() {
            if let Some(netio) = &self.world.nodes[node].netio {
                let counts = netio.counts();
                assert_eq!((counts.connections, counts.operations), (0, 0), "node {node}");
                assert_eq!(netio.next_timeout(), None, "node {node}");
            }
        }
    }
}

pub(crate) fn closed(world: &mut World, node: usize, of: AnySocket) -> (Vec<Event>, ClosedReason) {
    let (index, reason) = world.until("Closed", |world| {
        world.nodes[node].events.iter().enumerate().find_map(|(index, event)| match event {
            Event::Closed { socket, reason } if *socket == of => Some((index, reason.clone())),
            _ => None,
        })
    });
    let mut before: Vec<_> = world.nodes[node].events.drain(..=index).collect();
    before.pop();
    (before, reason)
}

/// The keys and results of the completions among these events.
pub(crate) fn completions(events: &[Event]) -> Vec<(u64, bool)> {
    events
        .iter()
        .filter_map(|event| match event {
            Event::SendCompleted { message, result, .. } => Some((message.key, result.is_ok())),
            _ => None,
        })
        .collect()
}

/// The messages among these events.
pub(crate) fn messages(events: &[Event]) -> Vec<(Vec<u8>, Option<u64>)> {
    events
        .iter()
        .filter_map(|event| match event {
            Event::Received { message, data, .. } => Some((message.to_vec(), *data)),
            _ => None,
        })
        .collect()
}
