//! A publisher with a hostile subscriber beside an honest one, and a subscriber with a hostile publisher, of
//! `efa-netio` on the simulated network.
//!
//! The hostile side is a plain endpoint of `efa` that knows the hello of the protocol. It says control messages of any
//! bytes, and sends messages with and without a tag, at any time. Whatever it says, the honest subscriber gets each
//! publication once, and nothing is left when the hostile side is gone.

use std::net::SocketAddr;
use std::time::Duration;

use efa::{
    CompletionQueue, CompletionQueueOptions, ControlEvent, Direction, Domain, EventQueue,
    EventQueueOptions, Fabric, Listener, LocalOptions, ManualClock, MsgEndpoint,
    MsgEndpointOptions, PassiveEndpointOptions, Receive,
};
use efa_netio::{
    Event, Message, Netio, Options, Pool, PublishOptions, PublishSocket, Published,
    SubscribeOptions, SubscribeSocket, Wait,
};

use crate::input::Input;

const HOST: &str = "10.0.0.1";
/// Where the hostile publisher listens.
const PORT: u16 = 4321;
/// The tag of control messages.
const CONTROL: u64 = 0x6e65_7469_6f00_0001;
/// What a caller that subscribes says first.
const HELLO: [u8; 8] = *b"nio1\x01\0\x02\0";
/// The tag of the honest subscriber.
const TAG: u64 = 7;
/// A message that a publisher sends; the hostile side takes none.
const LENGTH: usize = 64;

struct World {
    clock: ManualClock,
    publisher: Netio,
    publish: PublishSocket,
    pool: Pool,
    subscriber: Netio,
    subscribe: SubscribeSocket,
    hostile: Hostile,
    published: usize,
    completed: usize,
    arrived: usize,
}

struct Hostile {
    domain: Domain,
    queue: CompletionQueue,
    events: EventQueue,
    endpoint: Option<MsgEndpoint>,
    listener: Option<Listener>,
}

impl Hostile {
    fn new(fabric: &Fabric, domain: Domain) -> Option<Self> {
        let queue = domain.completion_queue(CompletionQueueOptions::default().capacity(1 << 16));
        let events = fabric.event_queue(EventQueueOptions::default()).ok()?;
        Some(Self { domain, queue, events, endpoint: None, listener: None })
    }

    fn endpoint(&self) -> Option<MsgEndpoint> {
        let builder = self.domain.msg_endpoint(MsgEndpointOptions::default());
        let builder = builder.bind_completion_queue(&self.queue, Direction::Both);
        builder.bind_event_queue(&self.events).enable().ok()
    }

    fn call(&mut self, to: SocketAddr) {
        self.endpoint = self.endpoint();
        if let Some(endpoint) = &self.endpoint {
            let _ = endpoint.connect(to, &HELLO);
        }
    }

    fn listen(&mut self, fabric: &Fabric, at: SocketAddr) {
        let passive = fabric.passive_endpoint(&self.events, PassiveEndpointOptions::default());
        self.listener = passive.listen(at).ok();
    }

    fn turn(&mut self) {
        while self.queue.read().is_some() {}
        while let Some(event) = self.events.read() {
            if let Ok(ControlEvent::ConnectionRequest(request)) = event {
                self.endpoint = self.endpoint();
                if let Some(endpoint) = &self.endpoint {
                    let _ = endpoint.accept(request, b"");
                }
            }
        }
    }

    fn send(&self, message: efa::Message, bytes: Vec<u8>) {
        if let Some(endpoint) = &self.endpoint {
            let _ = endpoint.send(message, bytes, 1);
        }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        let peer = efa::Message::to(MsgEndpoint::PEER);
        match input.below(5) {
            // Well formed, with any numbers.
            0 | 1 => {
                let mut bytes = vec![1, 0, input.below(7) as u8, input.below(3) as u8];
                bytes.extend_from_slice(&input.about32(1).to_le_bytes());
                bytes.extend_from_slice(&input.about(TAG).to_le_bytes());
                bytes.extend_from_slice(&input.about(0).to_le_bytes());
                self.send(peer.tagged(CONTROL), bytes);
            }
            2 => {
                let length = input.below(40);
                let bytes = input.take(length).to_vec();
                self.send(peer.tagged(CONTROL), bytes);
            }
            3 => {
                let message = match input.below(3) {
                    0 => peer,
                    1 => peer.with_data(input.about(TAG)),
                    _ => peer.tagged(input.number(8)),
                };
                let length = [0, 1, 100, 70_000][input.below(4)];
                self.send(message, vec![input.byte(); length]);
            }
            _ => {
                if let Some(endpoint) = &self.endpoint {
                    let _ = endpoint.receive(Receive::tagged(CONTROL), vec![0; 24], 1);
                }
            }
        }
    }
}

impl World {
    fn new(fabric: &Fabric, clock: ManualClock, publishes: bool) -> Option<Self> {
        let domain = || fabric.domain().ok();
        let mut publisher = Netio::new(&domain()?, Options::default()).ok()?;
        let mut subscriber = Netio::new(&domain()?, Options::default()).ok()?;
        let pool = publisher.allocate(LENGTH).ok()?;
        let options = PublishOptions::default().outstanding(4).tags(8);
        let publish = publisher.publish_socket(&pool, options).ok()?;
        publisher.publish_at(publish, HOST, 0).ok()?;
        let at = publisher.local_address(publish)?;
        let mut hostile = Hostile::new(fabric, domain()?)?;
        if publishes {
            hostile.listen(fabric, SocketAddr::new(at.ip(), PORT));
            let socket = subscriber.subscribe_socket(HOST, PORT, SubscribeOptions::default());
            subscriber.subscribe(socket, TAG).ok()?;
        } else {
            hostile.call(at);
        }
        let subscribe = subscriber.subscribe_socket(HOST, at.port(), SubscribeOptions::default());
        subscriber.subscribe(subscribe, TAG).ok()?;
        let (published, completed, arrived) = (0, 0, 0);
        Some(Self {
            clock,
            publisher,
            publish,
            pool,
            subscriber,
            subscribe,
            hostile,
            published,
            completed,
            arrived,
        })
    }

    fn turn(&mut self) {
        while let Ok(Some(event)) = self.publisher.poll(Wait::No) {
            if let Event::Published { .. } = event {
                self.completed += 1;
            }
        }
        while let Ok(Some(event)) = self.subscriber.poll(Wait::No) {
            if let Event::Message { socket, tag, .. } = event
                && socket == self.subscribe
            {
                assert_eq!(tag, TAG);
                self.arrived += 1;
            }
        }
        self.hostile.turn();
        self.clock.advance(Duration::from_micros(5));
    }

    fn publish(&mut self, tag: u64) {
        let message = Message::of(self.pool.whole());
        match self.publisher.publish(self.publish, tag, message) {
            Published::UnderWay if tag == TAG => self.published += 1,
            Published::Partial(token) => {
                self.published += usize::from(tag == TAG);
                // The honest subscriber, which takes all, is not among those owed.
                drop(token);
            }
            _ => {}
        }
    }
}

/// The first byte selects the hostile side. Then it says anything, messages are published, and time passes.
pub(crate) fn run(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    let clock = ManualClock::new();
    let fabric = Fabric::local(LocalOptions::default()).with_clock(&clock);
    let publishes = input.below(2) == 1;
    let world = World::new(&fabric, clock, publishes);
    let mut world = world.unwrap_or_else(|| unreachable!("the simulated network has all"));
    // Two subscriptions of which one may be hostile.
    for _ in 0..1_000 {
        world.turn();
        if world.publisher.subscriber_count(world.publish, TAG) > 0 {
            break;
        }
    }
    while !input.is_empty() {
        match input.below(8) {
            0..=4 => world.hostile.act(input),
            5 => world.publish([TAG, 8][input.below(2)]),
            _ => (0..input.below(64)).for_each(|_| world.turn()),
        }
    }
    (0..100).for_each(|_| world.turn());
    world.hostile.endpoint = None;
    world.hostile.listener = None;
    for _ in 0..20_000 {
        world.turn();
        let counts = world.publisher.counts();
        let is_over = counts.publications == 0 && counts.connections == 1;
        if is_over && world.arrived == world.published && world.subscriber.counts().connections == 1
        {
            break;
        }
    }
    assert_eq!(world.arrived, world.published, "the honest subscriber gets each once");
    let counts = world.publisher.counts();
    assert_eq!((counts.publications, counts.connections, counts.tags), (0, 1, 1));
    assert!(world.completed >= world.published);
    assert_eq!(world.subscriber.counts().connections, 1);
}
