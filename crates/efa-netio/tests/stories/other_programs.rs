//! Peers that don't speak the protocol, or abuse it.

use efa::{
    CompletionQueue, CompletionQueueOptions, ConnectError, ControlEvent, Direction, Domain,
    EventQueue, EventQueueOptions, Message, MsgEndpoint, MsgEndpointOptions,
    PassiveEndpointOptions, Receive,
};
use efa_netio::{
    ClosedReason, Event, Options, PublishOptions, RefusedReason, Rejection, SendOptions,
};

use crate::pairs::{closed, pool};
use crate::world::{HOST, World};

/// The tag of control messages, and what a send and a subscribe socket say first.
const CONTROL: u64 = 0x6e65_7469_6f00_0001;
const SENDS: &[u8] = b"nio1\x01\0\x01\0";
const SUBSCRIBES: &[u8] = b"nio1\x01\0\x02\0";

/// A program on `efa` alone.
struct Program {
    domain: Domain,
    queue: CompletionQueue,
    events: EventQueue,
    endpoint: MsgEndpoint,
}

impl Program {
    fn new(world: &World) -> Self {
        Self::with(world, MsgEndpointOptions::default())
    }

    fn with(world: &World, options: MsgEndpointOptions) -> Self {
        let domain = world.domain();
        let queue = domain.completion_queue(CompletionQueueOptions::default().capacity(1 << 20));
        let events = domain.fabric().event_queue(EventQueueOptions::default()).unwrap();
        let endpoint = domain
            .msg_endpoint(options)
            .bind_completion_queue(&queue, Direction::Both)
            .bind_event_queue(&events)
            .enable()
            .unwrap();
        Self { domain, queue, events, endpoint }
    }

    fn connect(&self, port: u16, hello: &[u8]) {
        self.endpoint
            .connect((HOST.parse::<std::net::IpAddr>().unwrap(), port).into(), hello)
            .unwrap();
    }

    /// The next event, while the network goes on.
    fn event(&self, world: &mut World) -> Result<ControlEvent, ConnectError> {
        world.until("an event of a program", |_| {
            while self.queue.read().is_some() {}
            self.events.read().map(|event| event.map_err(|error| error.error))
        })
    }

    /// Says something, when there is room.
    fn say(&self, world: &mut World, message: Message, bytes: &[u8]) {
        world.until("room", |_| {
            while self.queue.read().is_some() {}
            self.endpoint.inject(message, bytes).ok()
        });
    }

    /// A while.
    fn rest(&self, world: &mut World) {
        for _ in 0..3000 {
            while self.queue.read().is_some() {}
            drop(self.events.read());
            world.turn();
        }
    }
}

fn control() -> Message {
    Message::to(MsgEndpoint::PEER).tagged(CONTROL)
}

#[test]
fn program_of_another_protocol_or_version_is_rejected() {
    let mut world = World::new(1, 1);
    let (_, port) = world.listener(0, Default::default());
    let long = [7; 256];
    for (hello, answer) in [
        (&b""[..], 0),
        (b"hello", 0),
        (b"nio2\x01\0\x01\0", 0),
        (&long, 0),
        (b"nio1\x02\0\x01\0", 1),
        (b"nio1\x01\0\x03\0", 2),
        (SUBSCRIBES, 2),
    ] {
        let program = Program::new(&world);
        program.connect(port, hello);
        let refused = program.event(&mut world).unwrap_err();
        assert_eq!(refused, ConnectError::Rejected { data: vec![answer] }, "{hello:?}");
    }
    assert_eq!(world.netio(0).counts().rejected, 7);
    let reasons = world.nodes[0].events.iter().map(|event| match event {
        Event::CallerRefused { reason: RefusedReason::Rejected(reason), .. } => *reason,
        other => panic!("{other:?}"),
    });
    use Rejection::{NotNetio, Version, WrongRole};
    let expected = [NotNetio, NotNetio, NotNetio, NotNetio, Version, WrongRole, WrongRole];
    assert_eq!(reasons.collect::<Vec<_>>(), expected);
}

#[test]
fn listener_of_another_protocol_refuses_a_socket_with_a_reason() {
    let mut world = World::new(1, 1);
    let program = Program::new(&world);
    let options = PassiveEndpointOptions::default();
    let passive = program.domain.fabric().passive_endpoint(&program.events, options);
    let listener = passive.listen((HOST.parse::<std::net::IpAddr>().unwrap(), 9).into()).unwrap();
    for (answer, expected) in [
        (&b""[..], Rejection::NotNetio),
        (b"no thanks", Rejection::NotNetio),
        (&[3], Rejection::Full),
        (&[200], Rejection::NotNetio),
    ] {
        let netio = world.netio(0);
        let socket = netio.send_socket(SendOptions::default());
        netio.connect(socket, HOST, listener.local_address().port()).unwrap();
        match program.event(&mut world) {
            Ok(ControlEvent::ConnectionRequest(request)) => request.reject(answer).unwrap(),
            other => panic!("{other:?}"),
        }
        world.event(0, "Refused", |event| match event {
            Event::Refused { reason: RefusedReason::Rejected(found), .. } => {
                assert_eq!(*found, expected);
                Some(())
            }
            _ => None,
        });
    }
}

#[test]
fn control_messages_of_any_bytes_are_ignored_and_counted() {
    let mut world = World::new(1, 1);
    let (_, port) = world.listener(0, Default::default());
    let program = Program::new(&world);
    program.connect(port, SENDS);
    assert!(matches!(program.event(&mut world), Ok(ControlEvent::Connected { .. })));
    let mut random = fastrand::Rng::with_seed(7);
    for number in 0..500 {
        let mut bytes = vec![0; random.usize(0..100)];
        random.fill(&mut bytes);
        program.say(&mut world, control(), &bytes);
        // Well-formed ones that are not for a receiver: a subscription, an answer, a length.
        for kind in [1, 2, 3, 5] {
            let mut bytes = [0; 24];
            (bytes[0], bytes[2]) = (1, kind);
            program.say(&mut world, control(), &bytes);
        }
        program.say(&mut world, Message::to(MsgEndpoint::PEER).tagged(number), b"nobody");
    }
    program.rest(&mut world);
    assert_eq!(world.netio(0).counts().ignored, 5 * 500);
    // Messages of the program still arrive.
    program.say(&mut world, Message::to(MsgEndpoint::PEER), b"hello");
    assert_eq!(world.received(0).0, b"hello");
}

#[test]
fn end_that_promises_more_messages_than_come_waits_for_the_end_of_the_program() {
    let mut world = World::new(1, 1);
    let (_, port) = world.listener(0, Default::default());
    let program = Program::new(&world);
    program.connect(port, SENDS);
    assert!(matches!(program.event(&mut world), Ok(ControlEvent::Connected { .. })));
    let mut end = [0; 24];
    (end[0], end[2], end[8]) = (1, 4, 2);
    program.say(&mut world, control(), &end);
    // Only the first one counts.
    end[8] = 1;
    program.say(&mut world, control(), &end);
    program.say(&mut world, Message::to(MsgEndpoint::PEER), b"hello");
    assert_eq!(world.received(0).0, b"hello");
    program.rest(&mut world);
    assert_eq!(world.netio(0).counts().ignored, 1);
    assert_eq!(world.netio(0).counts().connections, 1);
    drop(program);
    let receive = world.event(0, "Accepted", |event| match event {
        Event::Accepted { socket, .. } => Some(*socket),
        _ => None,
    });
    assert_eq!(closed(&mut world, 0, receive.into()).1, ClosedReason::PeerGone);
}

#[test]
fn message_behind_the_end_that_does_not_fit_is_nothing_to_the_socket() {
    for seed in 0..40 {
        let mut world = World::new(seed, 1);
        let (_, port) = world.listener(0, crate::pairs::buffers(4, 10));
        let program = Program::new(&world);
        program.connect(port, SENDS);
        assert!(matches!(program.event(&mut world), Ok(ControlEvent::Connected { .. })));
        let receive = world.event(0, "Accepted", |event| match event {
            Event::Accepted { socket, .. } => Some(*socket),
            _ => None,
        });
        let mut end = [0; 24];
        (end[0], end[2], end[8]) = (1, 4, 1);
        program.say(&mut world, control(), &end);
        program.rest(&mut world);
        // The context finds both at once.
        program.say(&mut world, Message::to(MsgEndpoint::PEER), b"hello");
        program.say(&mut world, Message::to(MsgEndpoint::PEER), &[0; 100]);
        for _ in 0..1000 {
            while program.queue.read().is_some() {}
            world.turn_without(&[0]);
        }
        let (events, reason) = closed(&mut world, 0, receive.into());
        assert_eq!(reason, ClosedReason::DisconnectedByPeer, "seed {seed}");
        assert_eq!(crate::pairs::messages(&events), [(b"hello".to_vec(), None)]);
        assert_eq!(world.netio(0).next_timeout(), None);
    }
}

#[test]
fn program_that_does_not_read_counts_gets_none_with_a_message_too_long() {
    // A caller that names no features, and one that reads counts.
    for (hello, expected) in [(SENDS, 0), (&b"nio1\x01\0\x01\x01"[..], 3)] {
        let mut world = World::new(1, 1);
        let (_, port) = world.listener(0, crate::pairs::buffers(4, 10));
        let program = Program::new(&world);
        program.connect(port, hello);
        assert!(matches!(program.event(&mut world), Ok(ControlEvent::Connected { .. })));
        program.endpoint.receive(Receive::tagged(CONTROL), vec![0; 24], 1).unwrap();
        for bytes in [&b"one"[..], b"two", &[0; 11], b"behind"] {
            program.say(&mut world, Message::to(MsgEndpoint::PEER), bytes);
        }
        let too_long = world.until("TOO_LONG", |_| {
            let completion = program.queue.read()?.ok()?;
            (completion.context == 1).then(|| completion.buffer.into_vec())
        });
        let mut bytes = [0; 24];
        (bytes[0], bytes[2], bytes[4], bytes[8], bytes[16]) = (1, 5, expected, 11, 10);
        assert_eq!(too_long, bytes, "{hello:?}");
    }
}

#[test]
fn receiver_that_tells_no_count_leaves_the_number_of_lost_messages_open() {
    let mut world = World::new(1, 1);
    let program = Program::new(&world);
    let options = PassiveEndpointOptions::default();
    let passive = program.domain.fabric().passive_endpoint(&program.events, options);
    let listener = passive.listen((HOST.parse::<std::net::IpAddr>().unwrap(), 9).into()).unwrap();
    let netio = world.netio(0);
    let socket = netio.send_socket(SendOptions::default());
    netio.connect(socket, HOST, listener.local_address().port()).unwrap();
    match program.event(&mut world) {
        Ok(ControlEvent::ConnectionRequest(request)) => {
            program.endpoint.accept(request, b"").unwrap();
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(program.event(&mut world), Ok(ControlEvent::Connected { .. })));
    let mut too_long = [0; 24];
    (too_long[0], too_long[2], too_long[8], too_long[16]) = (1, 5, 11, 10);
    program.say(&mut world, control(), &too_long);
    let reason = ClosedReason::TooLong { length: 11, capacity: 10, lost: None };
    assert_eq!(closed(&mut world, 0, socket.into()).1, reason);
}

#[test]
fn subscriber_that_takes_no_answers_has_to_wait_with_what_it_says() {
    let options = Options::default().with(|options| options.sends = 16);
    let mut world = World::with(1, options, |options| options.seed = 1);
    let pool = pool(&mut world, 0, 10);
    let (publisher, port) = world.publisher(0, &pool, PublishOptions::default());
    let mut options = MsgEndpointOptions::default();
    options.endpoint.protocol.bounds.unexpected = 1000;
    let program = Program::with(&world, options);
    program.connect(port, SUBSCRIBES);
    assert!(matches!(program.event(&mut world), Ok(ControlEvent::Connected { .. })));
    let mut subscribe = [0; 24];
    (subscribe[0], subscribe[2]) = (1, 1);
    // It speaks, and posts no receive for the answers.
    let mut said = 0_u32;
    for _ in 0..20_000 {
        subscribe[8..12].copy_from_slice(&said.to_le_bytes());
        said += u32::from(program.endpoint.inject(control(), &subscribe).is_ok());
        while program.queue.read().is_some() {}
        world.turn();
    }
    let taken = world.netio(0).counts().tags;
    assert!(taken < 2_000 && said > 3_000, "{taken} of {said} were taken");
    // When it takes the answers, all is heard.
    for answer in 0..u64::from(said) {
        let buffer = vec![0; 24];
        program.endpoint.receive(Receive::tagged(CONTROL), buffer, answer).unwrap();
    }
    for _ in 0..20 {
        program.rest(&mut world);
    }
    assert_eq!(world.netio(0).counts().tags, said as usize);
    world.netio(0).close(publisher);
    drop(program);
    world.rest();
    let counts = world.netio(0).counts();
    assert_eq!((counts.connections, counts.operations), (0, 0));
}
