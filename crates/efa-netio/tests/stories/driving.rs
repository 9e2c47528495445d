//! Ways to drive a context: events, a handler, timers.

use std::thread::{self, ThreadId};
use std::time::Duration;

use efa_netio::{
    AnySocket, ClosedReason, Delivery, Event, Handler, Message, Netio, Options, PostRefused,
    ReceiveSocket, SendOptions, SendSocket, Sent, SocketError, Timer, Wait,
};

use crate::pairs::{Pair, RECEIVER, SENDER, buffers};
use crate::world::{HOST, World, pattern};

/// Gives a handler what a node has reported.
fn handle(world: &mut World, node: usize, handler: &mut impl Handler) {
    for event in std::mem::take(&mut world.nodes[node].events) {
        handler.event(world.netio(node), event);
    }
}

struct Nothing;

impl Handler for Nothing {}

#[derive(Default)]
struct Plain(Vec<(Vec<u8>, Option<u64>)>);

impl Handler for Plain {
    fn received(&mut self, _: &mut Netio, _: ReceiveSocket, message: Delivery) {
        self.0.push((message.to_vec(), None));
    }
}

#[derive(Default)]
struct WithData(Plain);

impl Handler for WithData {
    fn received(&mut self, netio: &mut Netio, socket: ReceiveSocket, message: Delivery) {
        self.0.received(netio, socket, message);
    }

    fn received_with_data(
        &mut self,
        _: &mut Netio,
        _: ReceiveSocket,
        message: Delivery,
        data: u64,
    ) {
        self.0.0.push((message.to_vec(), Some(data)));
    }
}

fn send_with_and_without_data(pair: &mut Pair) {
    let message = pair.message(0, 3);
    pair.send(message.clone().data(0));
    pair.send(message);
    pair.world.rest();
}

// conformance: D11 D29
#[test]
fn message_with_data_goes_to_the_plain_method_of_a_handler_without_one_for_data() {
    let mut pair = Pair::new(1, buffers(4, 100));
    let bytes = pattern(3);
    send_with_and_without_data(&mut pair);
    let mut plain = Plain::default();
    handle(&mut pair.world, RECEIVER, &mut plain);
    assert_eq!(plain.0, [(bytes.clone(), None), (bytes.clone(), None)]);
    send_with_and_without_data(&mut pair);
    let mut both = WithData::default();
    handle(&mut pair.world, RECEIVER, &mut both);
    assert_eq!(both.0.0, [(bytes.clone(), Some(0)), (bytes, None)]);
}

// conformance: D11
#[test]
fn handler_without_methods_takes_all_events_of_a_connection() {
    let mut pair = Pair::new(1, buffers(4, 100));
    send_with_and_without_data(&mut pair);
    pair.world.netio(SENDER).disconnect(pair.send).unwrap();
    pair.world.rest();
    for node in [SENDER, RECEIVER] {
        assert!(pair.world.nodes[node].events.len() >= 3);
        handle(&mut pair.world, node, &mut Nothing);
    }
    // The buffers of messages that nobody took are posted again.
    pair.world.netio(SENDER).connect(pair.send, HOST, pair.port).unwrap();
    pair.world.rest();
    handle(&mut pair.world, SENDER, &mut Nothing);
    for _ in 0..10 {
        send_with_and_without_data(&mut pair);
        handle(&mut pair.world, RECEIVER, &mut Nothing);
    }
    assert_eq!(pair.world.netio(RECEIVER).counts().connections, 1);
}

/// Answers each message on a connection back, and ends all after some.
struct Answers {
    back: SendSocket,
    message: Message,
    left: u32,
    closed: Vec<AnySocket>,
    threads: Vec<ThreadId>,
}

impl Handler for Answers {
    fn received(&mut self, netio: &mut Netio, _: ReceiveSocket, _: Delivery) {
        self.threads.push(thread::current().id());
        assert!(matches!(netio.send(self.back, self.message.clone()), Sent::Accepted));
        self.left -= 1;
        if self.left == 0 {
            netio.disconnect(self.back).unwrap();
        }
    }

    fn closed(&mut self, netio: &mut Netio, socket: AnySocket, _: ClosedReason) {
        self.threads.push(thread::current().id());
        self.closed.push(socket);
        netio.stop();
    }

    fn send_completed(
        &mut self,
        _: &mut Netio,
        _: SendSocket,
        _: Message,
        result: Result<(), efa::OperationError>,
    ) {
        self.threads.push(thread::current().id());
        assert_eq!(result, Ok(()));
    }
}

// conformance: D4 D6
#[test]
fn handler_sends_and_disconnects_in_its_methods_all_on_one_thread() {
    let mut pair = Pair::new(1, buffers(4, 100));
    // A way back.
    let (_, port) = pair.world.listener(SENDER, buffers(4, 100));
    let (back, _) = pair.world.connection(RECEIVER, SENDER, port, SendOptions::default());
    let of_receiver = crate::pairs::pool(&mut pair.world, RECEIVER, 10);
    let message = Message::of(of_receiver.whole());
    let (closed, threads) = (Vec::new(), Vec::new());
    let mut answers = Answers { back, message, left: 3, closed, threads };
    for _ in 0..3 {
        let message = pair.message(0, 5);
        pair.send(message);
        while pair
            .world
            .take(SENDER, |event| {
                matches!(event, Event::Received { message, .. } if message.len() == 10)
                    .then_some(())
            })
            .is_none()
        {
            pair.world.turn();
            handle(&mut pair.world, RECEIVER, &mut answers);
        }
    }
    pair.world.rest();
    handle(&mut pair.world, RECEIVER, &mut answers);
    assert_eq!(answers.closed, [back.into()]);
    assert_eq!(answers.threads.len(), 3 + 3 + 1);
    assert!(answers.threads.iter().all(|thread| *thread == thread::current().id()));
}

struct Stops(u32);

impl Handler for Stops {
    fn timer(&mut self, netio: &mut Netio, _: Timer) {
        self.0 += 1;
        if self.0 == 3 {
            netio.stop();
        }
    }
}

#[test]
fn run_ends_after_the_method_that_stops_it_and_can_begin_again() {
    let domain = efa::Fabric::local(efa::LocalOptions::default()).domain().unwrap();
    let mut netio = Netio::new(&domain, Options::default()).unwrap();
    netio.timer(Duration::ZERO, Some(Duration::from_micros(10)));
    let mut stops = Stops(0);
    netio.run(&mut stops).unwrap();
    assert_eq!(stops.0, 3);
    stops.0 = 1;
    netio.run(&mut stops).unwrap();
    assert_eq!(stops.0, 3);
}

#[test]
fn timers_come_once_or_repeatedly_until_they_are_cancelled() {
    let mut world = World::new(1, 1);
    let micros = Duration::from_micros;
    let netio = world.netio(0);
    assert_eq!(netio.next_timeout(), None);
    let once = netio.timer(micros(500), None);
    let often = netio.timer(micros(200), Some(micros(300)));
    let never = netio.timer(micros(100), None);
    let at_last = netio.timer(Duration::MAX, Some(Duration::MAX));
    assert!(netio.cancel_timer(never));
    assert!(!netio.cancel_timer(never));
    assert_eq!(netio.next_timeout(), Some(micros(200)));
    let mut came = Vec::new();
    for micro in 0..1500 {
        world.turn();
        for event in world.nodes[0].events.drain(..) {
            match event {
                Event::Timer(timer) => came.push((timer, micro)),
                other => panic!("{other:?}"),
            }
        }
    }
    let of = |timer| came.iter().filter(move |(found, _)| *found == timer);
    assert_eq!(of(once).count(), 1);
    // At 200, 500, 800, 1100 and 1400.
    assert_eq!(of(often).count(), 5);
    assert!(of(often).all(|(_, micro)| (micro + 100) % 300 < 70), "{came:?}");
    assert_eq!(came.len(), 6);
    let netio = world.netio(0);
    assert!(!netio.cancel_timer(once));
    assert!(netio.cancel_timer(often));
    assert!(netio.cancel_timer(at_last));
    world.quiet(0);
}

#[test]
fn timers_that_another_one_cancels_do_not_come_though_they_are_due_at_the_same_time() {
    let mut world = World::new(1, 1);
    let second = Duration::from_secs(1);
    let netio = world.netio(0);
    let first = netio.timer(second, None);
    let others = [netio.timer(second, None), netio.timer(second, Some(second))];
    world.pass(second);
    let netio = world.netio(0);
    assert!(matches!(netio.poll(Wait::No).unwrap(), Some(Event::Timer(timer)) if timer == first));
    for timer in others {
        assert!(netio.cancel_timer(timer));
        assert!(!netio.cancel_timer(timer));
    }
    assert!(!netio.cancel_timer(first));
    world.quiet(0);
}

#[test]
fn poll_with_a_manual_clock_does_not_wait() {
    let mut world = World::new(1, 1);
    let netio = world.netio(0);
    netio.timer(Duration::from_secs(1), None);
    for wait in
        [Wait::No, Wait::For(Duration::from_secs(2)), Wait::For(Duration::MAX), Wait::Forever]
    {
        assert!(netio.poll(wait).unwrap().is_none());
    }
    world.pass(Duration::from_secs(1));
    assert!(matches!(world.netio(0).poll(Wait::Forever).unwrap(), Some(Event::Timer(_))));
}

#[test]
fn signals_raised_by_other_threads_before_one_is_reported_are_one() {
    let mut world = World::new(1, 1);
    let signal = world.netio(0).signal();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| signal.raise());
        }
    });
    world.event(0, "Signal", |event| matches!(event, Event::Signal).then_some(()));
    world.quiet(0);
    signal.raise();
    world.event(0, "Signal", |event| matches!(event, Event::Signal).then_some(()));
    world.kill(0);
    // Of a context that is gone it does nothing.
    signal.raise();
}

fn is_send<T: Send>(value: T) -> T {
    value
}

// conformance: D4
#[test]
fn context_can_be_moved_to_another_thread() {
    let domain = efa::Fabric::local(efa::LocalOptions::default()).domain().unwrap();
    let mut netio = is_send(Netio::new(&domain, Options::default()).unwrap());
    netio.timer(Duration::ZERO, None);
    let thread = thread::spawn(move || netio.poll(Wait::Forever).unwrap());
    assert!(matches!(thread.join().unwrap(), Some(Event::Timer(_))));
}

#[test]
fn debug_output_of_a_context_and_of_a_refused_buffer_is_short() {
    let domain = efa::Fabric::local(efa::LocalOptions::default()).domain().unwrap();
    let netio = Netio::new(&domain, Options::default()).unwrap();
    let error = SocketError::Closed.into();
    let refused = PostRefused { error, buffer: vec![215; 65_536] };
    let objects: [&dyn std::fmt::Debug; 2] = [&netio, &refused];
    for object in objects {
        let text = format!("{object:?}");
        assert!(text.len() < 512, "{} bytes: {}", text.len(), &text[..512]);
    }
}
