//! Networks on which packets are late, overtake each other and find their receivers not ready, and stations of a story
//! with several subscribers.

use std::time::Duration;

use efa::sim::Faults;
use efa_netio::{
    AnySocket, Buffers, ClosedReason, Event, Options, Pool, PublishOptions, PublishSocket, Reentry,
    SubscribeOptions, SubscribeSocket, Tag,
};

use crate::world::World;

/// The seeds of a story.
pub(crate) fn seeds() -> std::ops::Range<u64> {
    0..4
}

/// A network that makes it hard. Registrations are refused from [`refuse`] on.
pub(crate) fn hard(seed: u64, nodes: usize, options: Options) -> World {
    World::with(nodes, options, |local| {
        local.seed = seed;
        local.delay = Duration::from_micros(1)..Duration::from_micros(20 + 40 * (seed % 2));
        local.faults = trouble();
    })
}

fn trouble() -> Faults {
    Faults::default().with(|faults| {
        faults.late = 0.05;
        faults.late_by = Duration::from_micros(150);
        faults.receiver_not_ready = 0.05;
        faults.send_refused = 0.05;
    })
}

/// From now on registrations of memory fail now and then as well.
pub(crate) fn refuse(world: &World) {
    let faults = trouble().with(|faults| faults.registration_refused = 0.2);
    world.fabric.as_local().unwrap().set_faults(faults);
}

/// A publisher at node 0 with this pool, and a subscriber of these tags at each other node.
pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) pool: Pool,
    pub(crate) publisher: PublishSocket,
    pub(crate) port: u16,
    /// By node; the first is of no use.
    pub(crate) subscribers: Vec<SubscribeSocket>,
}

/// Buffers for all messages that a story keeps.
fn many() -> SubscribeOptions {
    SubscribeOptions::default().buffers(Buffers { count: 1024, size: 64 << 10 })
}

impl Stage {
    pub(crate) fn new(mut world: World, options: PublishOptions, tags: &[Tag]) -> Self {
        let pool = world.pool(0, 200_000);
        let (publisher, port) = world.publisher(0, &pool, options);
        let mut subscribers = vec![SubscribeSocket::default()];
        for node in 1..world.nodes.len() {
            subscribers.push(world.subscriber(node, port, tags, many()));
        }
        Self { world, pool, publisher, port, subscribers }
    }

    /// Turns in which these nodes do nothing.
    pub(crate) fn turns_without(&mut self, turns: usize, stopped: &[usize]) {
        (0..turns).for_each(|_| self.world.turn_without(stopped));
    }

    /// The messages that a node has reported, which it gives back.
    pub(crate) fn messages(&mut self, node: usize) -> Vec<(Tag, Vec<u8>)> {
        messages(&mut self.world, node)
    }

    /// Nothing of a publication is left, and no connection but those of the subscribers that live.
    pub(crate) fn is_idle_with(&mut self, subscribers: usize) {
        let counts = self.world.netio(0).counts();
        assert_eq!((counts.publications, counts.connections), (0, subscribers));
    }
}

/// The messages that a node has reported, in order.
pub(crate) fn messages(world: &mut World, node: usize) -> Vec<(Tag, Vec<u8>)> {
    let mut found = Vec::new();
    world.nodes[node].events.retain(|event| match event {
        Event::Message { tag, message, .. } => {
            found.push((*tag, message.to_vec()));
            false
        }
        _ => true,
    });
    found
}

/// Publications that node 0 has reported: key, served and lost of each.
pub(crate) fn publications(world: &mut World) -> Vec<(u64, u32, u32)> {
    let mut found = Vec::new();
    world.nodes[0].events.retain(|event| match event {
        Event::Published { message, served, lost, .. } => {
            found.push((message.key, *served, *lost));
            false
        }
        _ => true,
    });
    found
}

/// Waits until a node reports that a connection has ended, and why.
pub(crate) fn closed(world: &mut World, node: usize, of: SubscribeSocket) -> ClosedReason {
    world.event(node, "Closed", |event| match event {
        Event::Closed { socket, reason } if *socket == AnySocket::from(of) => Some(reason.clone()),
        _ => None,
    })
}

/// Waits until a publisher reports that a connection has ended, and why.
pub(crate) fn subscriber_closed(world: &mut World, node: usize) -> ClosedReason {
    world.event(node, "SubscriberClosed", |event| match event {
        Event::SubscriberClosed { reason, .. } => Some(reason.clone()),
        _ => None,
    })
}

pub(crate) fn writable(world: &mut World, of: PublishSocket) {
    world.event(0, "Writable", |event| match event {
        Event::Writable(socket) if *socket == of.into() => Some(()),
        _ => None,
    });
}

/// Resumes a publication at node 0 whenever it is worth it, until it is under way to all.
pub(crate) fn resumed(world: &mut World, of: PublishSocket, mut token: Reentry) {
    loop {
        match world.netio(0).resume(token) {
            efa_netio::Published::UnderWay => return,
            efa_netio::Published::Partial(rest) => token = rest,
            other => panic!("{other:?}"),
        }
        writable(world, of);
    }
}
