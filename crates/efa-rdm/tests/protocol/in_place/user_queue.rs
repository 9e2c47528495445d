//! Messages received in place on a queue pair of the application.

use std::collections::BTreeSet;
use std::time::Duration;

use efa_device::{
    Device, DeviceError, Qkey, QueuePair, QueuePairAddress, QueuePairOptions, Status,
};
use efa_handshake::Release;
use efa_rdm::{
    Completion, Config, Endpoint, Event, InPlaceQueue, Level, Message, OperationError,
    UnexpectedHeader,
};
use efa_sim::local::{Faults, LocalOptions};

use super::{HEADER, MTU, Setup, at};
use crate::world::pattern;

/// A receiver of a release with a user queue pair, and a sender that waits for its HANDSHAKE.
fn user_queue(unexpected_header: UnexpectedHeader) -> Setup {
    let sender = Config::default().with(|config| config.messages_after_handshake = true);
    Setup::of(sender, at(Release::V1_22, unexpected_header))
}

/// Where the receiver's user queue pair is.
fn user_place(setup: &Setup) -> QueuePairAddress {
    setup.receiver.user_queue_pair().unwrap().address()
}

/// The device aborts a queue pair of the receiver: what is posted to it comes back.
fn abort(setup: &Setup, place: QueuePairAddress) {
    setup.world.network.kill(place).unwrap();
    setup.world.network.fail_receives(place, usize::MAX, Status::Flushed).unwrap();
}

#[test]
fn plain_message_begins_at_the_start_of_the_packet() {
    let mut setup = user_queue(UnexpectedHeader::Refuse);
    assert_eq!(setup.receiver.in_place_offset(), 0);
    setup.post(0..3);
    for (size, cq_data) in [(0, None), (100, Some(0xdead_beef)), (MTU, None)] {
        let message = Message { cq_data, ..setup.message(0, pattern(size, 1)) };
        setup.world.endpoint(0).send(message).unwrap();
        setup.drive();
        let done = setup.received.pop().unwrap();
        let address = setup.world.endpoint(0).address();
        assert_eq!(setup.receiver.peer_address(done.peer.unwrap()), Some(address));
        assert_eq!(done.cq_data, cq_data);
        assert_eq!(done.result.unwrap().into_packet()[..size], pattern(size, 1));
    }
    assert!(!setup.world.packets_from(0).is_empty());
}

#[test]
fn user_queue_pair_without_a_receive_answers_rnr() {
    let mut setup = user_queue(UnexpectedHeader::Refuse);
    setup.send(0, pattern(9, 1));
    setup.idle(Duration::from_millis(5));
    assert!(setup.received.is_empty());
    assert!(setup.world.endpoint(0).statistics().receiver_not_ready > 0);
    assert_eq!(setup.receiver.statistics().unexpected, 0, "nothing is kept");
    setup.post(0..1);
    setup.idle(Duration::from_millis(50));
    assert_eq!(setup.messages(), [pattern(9, 1)]);
}

#[test]
fn plain_packet_under_way_makes_the_endpoint_timed() {
    let mut setup = user_queue(UnexpectedHeader::Refuse);
    setup.post(0..2);
    setup.send(0, pattern(9, 1));
    setup.drive();
    assert!(!setup.receiver.is_timed());
    setup.send(0, pattern(9, 2));
    assert!(setup.receiver.is_timed(), "the next progress call needs the current time");
    setup.drive();
    assert_eq!(setup.messages(), [pattern(9, 1), pattern(9, 2)]);
}

#[test]
fn user_queue_pair_gets_packets_after_refused_allocations() {
    let mut setup = user_queue(UnexpectedHeader::Refuse);
    let device = setup.world.network.open();
    let pair = |qkey, receive_depth| {
        let options = QueuePairOptions::default().with(|options| {
            options.qkey = Qkey(qkey);
            options.receive_depth = receive_depth;
        });
        InPlaceQueue(device.create_queue_pair(options).unwrap())
    };
    let config = at(Release::V1_22, UnexpectedHeader::Refuse);
    setup.receiver = Endpoint::with_user_queue(pair(3, 64), pair(4, 2), config).unwrap();
    let address = setup.receiver.address();
    setup.peers = vec![setup.world.endpoint(0).insert_peer(address).unwrap()];
    setup.post(0..5);
    setup.send(0, pattern(9, 0));
    setup.drive();
    // The packets beyond the depth of the queue pair stayed unused and were released.
    for _ in 0..3 {
        setup.world.now += Duration::from_secs(2);
        setup.step();
    }
    for salt in 1..5 {
        setup.send(0, pattern(9, salt));
    }
    setup
        .world
        .network
        .set_faults(Faults::default().with(|faults| faults.allocation_refused = 1.0));
    // Packets were posted for two messages; the sender backs off from the others.
    while setup.received.len() < 3 || setup.world.network.next_event().is_some() {
        setup.step();
    }
    assert!(setup.receiver.next_timeout().is_some(), "the allocation is to be retried");
    setup.world.network.set_faults(Faults::default());
    setup.idle(Duration::from_millis(50));
    let sent: BTreeSet<_> = (0..5).map(|salt| pattern(9, salt)).collect();
    assert_eq!(setup.messages().into_iter().collect::<BTreeSet<_>>(), sent);
    assert_eq!(setup.receiver.next_timeout(), None);
}

#[test]
fn packets_that_the_user_queue_pair_could_not_use_are_posted_again() {
    let mut setup = user_queue(UnexpectedHeader::Refuse);
    let user = user_place(&setup);
    setup.post(0..3);
    assert_eq!(setup.world.network.fail_receives(user, 3, Status::BadLength), Ok(3));
    setup.drive();
    for salt in 0..3 {
        setup.send(0, pattern(9, salt));
    }
    setup.idle(Duration::from_millis(50));
    let sent: BTreeSet<_> = (0..3).map(|salt| pattern(9, salt)).collect();
    assert_eq!(setup.messages().into_iter().collect::<BTreeSet<_>>(), sent);
}

#[test]
fn aborted_user_queue_pair_ends_every_operation_with_its_status() {
    let mut setup = user_queue(UnexpectedHeader::Refuse);
    let user = user_place(&setup);
    let address = setup.world.endpoint(0).address();
    let peer = setup.receiver.insert_peer(address).unwrap();
    // It waits for a CTS, as nothing is posted for it.
    let (tag, cq_data, level, buffer) = (None, None, Level::Transmit, pattern(400_000, 1));
    setup.receiver.send(Message { peer, tag, cq_data, level, buffer, context: 7 }).unwrap();
    setup.post(0..3);
    setup.drive();
    abort(&setup, user);
    setup.drive();
    let status = Status::Flushed;
    let flushed = OperationError::Device(status);
    let received = setup.received.drain(..).map(|done| (done.context, done.result.unwrap_err()));
    assert_eq!(received.collect::<Vec<_>>(), [0, 1, 2].map(|context| (context, flushed)));
    let sent = match setup.receiver.poll_completion() {
        Some(Completion::Send(sent)) => (sent.context, sent.result),
        other => panic!("{other:?}"),
    };
    assert_eq!(sent, (7, Err(flushed)));
    let failed = setup.events.iter().filter(|event| matches!(event, Event::QueuePairFailed(_)));
    assert_eq!(failed.collect::<Vec<_>>(), [&Event::QueuePairFailed(status)]);
    assert_eq!(setup.receiver.failure(), Some(status));
    assert_eq!(setup.receiver.next_timeout(), None, "nothing is tried again");
}

#[test]
fn nothing_starts_after_the_user_queue_pair_was_aborted() {
    let mut setup = user_queue(UnexpectedHeader::Refuse);
    let user = user_place(&setup);
    setup.post(0..1);
    abort(&setup, user);
    setup.drive();
    let status = Status::Flushed;
    setup.post(1..4);
    setup.drive();
    assert_eq!(setup.errors(), [OperationError::Device(status); 4]);
    assert_eq!(
        setup.world.network.fail_receives(user, usize::MAX, status),
        Ok(0),
        "none is posted"
    );
    let address = setup.world.endpoint(0).address();
    let inserted = setup.receiver.insert_peer(address);
    assert_eq!(inserted, Err(DeviceError::QueuePairFailed { status }));
    assert_eq!(setup.receiver.next_timeout(), None);
}

#[test]
fn user_queue_pair_that_was_aborted_with_nothing_posted_ends_the_next_receive() {
    let mut setup = user_queue(UnexpectedHeader::Refuse);
    let user = user_place(&setup);
    abort(&setup, user);
    setup.drive();
    assert_eq!(setup.receiver.failure(), None, "nothing says so");
    setup.post(5..6);
    // As an aborted queue pair does with what is posted to it.
    abort(&setup, user);
    setup.drive();
    assert_eq!(setup.errors(), [OperationError::Device(Status::Flushed)]);
    assert_eq!(setup.receiver.failure(), Some(Status::Flushed));
}

#[test]
fn messages_that_arrived_before_the_queue_pairs_were_aborted_are_received_in_place() {
    // The user queue pair has nothing posted, so the failure of the protocol's says it.
    let mut setup = Setup::of(Config::default(), at(Release::V1_22, UnexpectedHeader::Move));
    let (protocol, user) = (setup.receiver.queue_pair().address(), user_place(&setup));
    setup.send(0, pattern(80, 1));
    setup.idle(Duration::from_millis(1));
    assert_eq!(setup.receiver.statistics().unexpected, 1);
    abort(&setup, protocol);
    abort(&setup, user);
    setup.drive();
    assert_eq!(setup.receiver.failure(), Some(Status::Flushed));
    setup.post(0..2);
    setup.drive();
    let last = setup.received.pop().map(|done| (done.context, done.result.unwrap_err()));
    assert_eq!(last, Some((1, OperationError::Device(Status::Flushed))));
    assert_eq!(setup.messages(), [pattern(80, 1)]);
}

#[test]
fn message_with_header_beside_user_queue_is_refused_or_copied() {
    // This sender does not wait for the HANDSHAKE, so it does not know the user queue pair.
    for unexpected_header in [UnexpectedHeader::Refuse, UnexpectedHeader::Move] {
        let mut setup = Setup::of(Config::default(), at(Release::V2_0, unexpected_header));
        setup.post(0..2);
        let message = Message { cq_data: Some(1 << 40), ..setup.message(0, pattern(80, 1)) };
        setup.world.endpoint(0).send(message).unwrap();
        setup.drive();
        let done = setup.received.pop().unwrap();
        assert_eq!((done.context, done.cq_data), (0, Some(1 << 40)));
        match unexpected_header {
            UnexpectedHeader::Refuse => {
                let error = OperationError::UnexpectedHeader { found: HEADER + 8, expected: 0 };
                assert_eq!(done.result, Err(error));
            }
            UnexpectedHeader::Move => {
                assert_eq!(done.result.unwrap().into_packet()[..80], pattern(80, 1));
            }
        }
        // The message used a receive whose packet is posted to the user queue pair. That packet serves the
        // next receive.
        for i in 2..5 {
            setup.send(0, pattern(90, i));
        }
        setup.idle(Duration::from_millis(1));
        assert!(setup.received.len() < 3);
        setup.post(5..7);
        setup.idle(Duration::from_millis(50));
        let expected = BTreeSet::from([pattern(90, 2), pattern(90, 3), pattern(90, 4)]);
        assert_eq!(BTreeSet::from_iter(setup.messages()), expected);
        assert_eq!(setup.drops(), []);
        assert_eq!(setup.receiver.packets_held().held, 0);
    }
}

#[test]
fn message_with_header_waits_for_a_user_packet() {
    let mut setup = Setup::of(Config::default(), at(Release::V2_0, UnexpectedHeader::Move));
    setup.post(7..9);
    setup.step();
    setup.send(0, pattern(80, 1));
    setup.send(0, pattern(80, 2));
    setup
        .world
        .network
        .set_faults(Faults::default().with(|faults| faults.allocation_refused = 1.0));
    setup.idle(Duration::from_micros(50));
    assert!(setup.received.is_empty());
    assert!(setup.receiver.next_timeout().is_some(), "the allocation is to be retried");
    setup.world.network.set_faults(Faults::default());
    setup.idle(Duration::from_millis(1));
    assert_eq!(setup.received.iter().map(|done| done.context).collect::<Vec<_>>(), [7, 8]);
    assert_eq!(BTreeSet::from_iter(setup.messages()), [pattern(80, 1), pattern(80, 2)].into());
    assert_eq!(setup.receiver.next_timeout(), None);
    assert_eq!(setup.receiver.packets_held().held, 0);
}

#[test]
fn packets_of_copied_messages_are_posted_again() {
    let config = at(Release::V2_0, UnexpectedHeader::Move).with(|config| {
        config.min_receive_buffers = 1;
        config.max_receive_buffers = 8;
    });
    // Before the HANDSHAKE the senders do not know the user queue pair.
    let mut setup = Setup::new(LocalOptions::default(), &vec![Config::default(); 12], config);
    for from in 0..12 {
        setup.post(0..1);
        setup.send(from, pattern(80, from as u64));
        setup.idle(Duration::from_millis(1));
        assert_eq!(setup.messages(), [pattern(80, from as u64)], "of sender {from}");
    }
    assert_eq!(setup.receiver.statistics().unexpected, 0);
}
