//! Messages received in place on a queue pair of the application.

use std::collections::BTreeSet;
use std::time::Duration;

use efa_device::{Device, Qkey, QueuePairOptions};
use efa_handshake::Release;
use efa_rdm::{Config, Endpoint, InPlaceQueue, Message, OperationError, UnexpectedHeader};
use efa_sim::local::{Faults, LocalOptions};

use super::{HEADER, MTU, Story, at};
use crate::world::pattern;

/// A story at a release with a user queue pair, whose sender has its HANDSHAKE.
fn user_queue(unexpected_header: UnexpectedHeader) -> Story {
    let sender = Config::default().with(|config| config.messages_after_handshake = true);
    Story::of(sender, at(Release::V1_22, unexpected_header))
}

#[test]
fn plain_message_begins_at_the_start_of_the_packet() {
    let mut story = user_queue(UnexpectedHeader::Refuse);
    assert_eq!(story.receiver.in_place_offset(), 0);
    story.post(0..3);
    for (size, cq_data) in [(0, None), (100, Some(0xdead_beef)), (MTU, None)] {
        let message = Message { cq_data, ..story.message(0, pattern(size, 1)) };
        story.world.endpoint(0).send(message).unwrap();
        story.drive();
        let done = story.received.pop().unwrap();
        let address = story.world.endpoint(0).address();
        assert_eq!(story.receiver.peer_address(done.peer.unwrap()), Some(address));
        assert_eq!(done.cq_data, cq_data);
        assert_eq!(done.result.unwrap().into_packet()[..size], pattern(size, 1));
    }
    assert!(!story.world.packets_from(0).is_empty());
}

#[test]
fn user_queue_pair_without_a_receive_answers_rnr() {
    let mut story = user_queue(UnexpectedHeader::Refuse);
    story.send(0, pattern(9, 1));
    story.idle(Duration::from_millis(5));
    assert!(story.received.is_empty());
    assert!(story.world.endpoint(0).statistics().receiver_not_ready > 0);
    assert_eq!(story.receiver.statistics().unexpected, 0, "it keeps nothing");
    story.post(0..1);
    story.idle(Duration::from_millis(50));
    assert_eq!(story.messages(), [pattern(9, 1)]);
}

#[test]
fn plain_packet_under_way_makes_the_endpoint_timed() {
    let mut story = user_queue(UnexpectedHeader::Refuse);
    story.post(0..2);
    story.send(0, pattern(9, 1));
    story.drive();
    assert!(!story.receiver.is_timed());
    story.send(0, pattern(9, 2));
    assert!(story.receiver.is_timed(), "a clock that isn't looked at would make it late");
    story.drive();
    assert_eq!(story.messages(), [pattern(9, 1), pattern(9, 2)]);
}

#[test]
fn user_queue_pair_gets_packets_after_refused_allocations() {
    let mut story = user_queue(UnexpectedHeader::Refuse);
    let device = story.world.network.open();
    let pair = |qkey, receive_depth| {
        let options = QueuePairOptions::default().with(|options| {
            options.qkey = Qkey(qkey);
            options.receive_depth = receive_depth;
        });
        InPlaceQueue(device.create_queue_pair(options).unwrap())
    };
    let config = at(Release::V1_22, UnexpectedHeader::Refuse);
    story.receiver = Endpoint::with_user_queue(pair(3, 64), pair(4, 2), config).unwrap();
    let address = story.receiver.address();
    story.peers = vec![story.world.endpoint(0).insert_peer(address).unwrap()];
    story.post(0..5);
    story.send(0, pattern(9, 0));
    story.drive();
    // The packets for which the queue pair had no room lay unused, and were given back.
    for _ in 0..3 {
        story.world.now += Duration::from_secs(2);
        story.step();
    }
    for salt in 1..5 {
        story.send(0, pattern(9, salt));
    }
    story
        .world
        .network
        .set_faults(Faults::default().with(|faults| faults.allocation_refused = 1.0));
    // Packets were posted for two of them; the sender leaves it alone for now.
    while story.received.len() < 3 || story.world.network.next_event().is_some() {
        story.step();
    }
    assert!(story.receiver.next_timeout().is_some(), "it is to be asked again");
    story.world.network.set_faults(Faults::default());
    story.idle(Duration::from_millis(50));
    let sent: BTreeSet<_> = (0..5).map(|salt| pattern(9, salt)).collect();
    assert_eq!(story.messages().into_iter().collect::<BTreeSet<_>>(), sent);
    assert_eq!(story.receiver.next_timeout(), None);
}

#[test]
fn message_with_header_beside_user_queue_is_refused_or_copied() {
    // This sender doesn't wait for the HANDSHAKE, and so doesn't know of the queue pair.
    for unexpected_header in [UnexpectedHeader::Refuse, UnexpectedHeader::Move] {
        let mut story = Story::of(Config::default(), at(Release::V2_0, unexpected_header));
        story.post(0..2);
        let message = Message { cq_data: Some(1 << 40), ..story.message(0, pattern(80, 1)) };
        story.world.endpoint(0).send(message).unwrap();
        story.drive();
        let done = story.received.pop().unwrap();
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
        // It took a receive that had a packet at the user queue pair. The next one is for that.
        for i in 2..5 {
            story.send(0, pattern(90, i));
        }
        story.idle(Duration::from_millis(1));
        assert!(story.received.len() < 3);
        story.post(5..7);
        story.idle(Duration::from_millis(50));
        let expected = BTreeSet::from([pattern(90, 2), pattern(90, 3), pattern(90, 4)]);
        assert_eq!(BTreeSet::from_iter(story.messages()), expected);
        assert_eq!(story.drops(), []);
        assert_eq!(story.receiver.packets_held().held, 0);
    }
}

#[test]
fn message_with_header_waits_for_a_user_packet() {
    let mut story = Story::of(Config::default(), at(Release::V2_0, UnexpectedHeader::Move));
    story.post(7..9);
    story.step();
    story.send(0, pattern(80, 1));
    story.send(0, pattern(80, 2));
    story
        .world
        .network
        .set_faults(Faults::default().with(|faults| faults.allocation_refused = 1.0));
    story.idle(Duration::from_micros(50));
    assert!(story.received.is_empty());
    assert!(story.receiver.next_timeout().is_some(), "it is to be asked again");
    story.world.network.set_faults(Faults::default());
    story.idle(Duration::from_millis(1));
    assert_eq!(story.received.iter().map(|done| done.context).collect::<Vec<_>>(), [7, 8]);
    assert_eq!(BTreeSet::from_iter(story.messages()), [pattern(80, 1), pattern(80, 2)].into());
    assert_eq!(story.receiver.next_timeout(), None);
    assert_eq!(story.receiver.packets_held().held, 0);
}

#[test]
fn packets_of_copied_messages_are_posted_again() {
    let config = at(Release::V2_0, UnexpectedHeader::Move).with(|config| {
        config.min_receive_buffers = 1;
        config.max_receive_buffers = 8;
    });
    // Before the HANDSHAKE has come they don't know of the queue pair.
    let mut story = Story::new(LocalOptions::default(), &vec![Config::default(); 40], config);
    for from in 0..40 {
        story.post(0..1);
        story.send(from, pattern(80, from as u64));
        story.idle(Duration::from_millis(1));
        assert_eq!(story.messages(), [pattern(80, from as u64)], "of sender {from}");
    }
    assert_eq!(story.receiver.statistics().unexpected, 0);
}
