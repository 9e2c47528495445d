//! Feature 7: a peer with a user queue pair, which receives plain messages (without a header) straight into
//! buffers of its application.

use efa_device::{Completion as DeviceCompletion, Device, Qkey, QueuePair, QueuePairOptions};
use efa_handshake::Extras;
use efa_proto::{Connid, ExtraInfo, Handshake, Header, PacketType, UserRecvQp};
use efa_rdm::{Config, Level, Message, OperationError, StartError};
use efa_sim::local::{LocalOptions, LocalQueuePair};

use crate::world::{World, pattern};

const MTU: usize = 8928;

/// Two endpoints, and a user queue pair that the second announces by [`introduce`].
fn world(config: Config) -> (World, LocalQueuePair) {
    let mut world = World::new(LocalOptions::default());
    world.add(config);
    world.add(Config::default());
    let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(0x77));
    let mut user = world.ends[1].device.create_queue_pair(options).unwrap();
    for _ in 0..32 {
        let buffer = user.allocate_packet().unwrap();
        user.post_receive(buffer).unwrap();
    }
    world.acquaint();
    (world, user)
}

fn introduce(world: &mut World, user: &LocalQueuePair) {
    let words = [(Extras::USER_RECV_QP | Extras::CONNID_HEADER).bits()];
    let handshake = Handshake {
        extra_info: ExtraInfo::new(&words).unwrap(),
        connid: Some(Connid(world.ends[1].endpoint.address().connid.0)),
        host_id: None,
        device_version: None,
        user_recv_qp: Some(UserRecvQp { qpn: user.address().qpn.0.into(), qkey: 0x77 }),
        hmem_p2p: None,
    };
    world.inject(1, 0, Header::Handshake(handshake), &[]);
    // The receiver makes no progress, as its own HANDSHAKE would announce no user queue pair.
    for _ in 0..100 {
        let now = world.now;
        world.endpoint(0).progress(now);
        world.now = now + std::time::Duration::from_micros(1);
    }
}

/// The messages on the user queue pair, with their immediate data.
fn arrived(world: &mut World, user: &mut LocalQueuePair) -> Vec<(Vec<u8>, Option<u32>)> {
    let mut all = Vec::new();
    for _ in 0..5_000 {
        let now = world.now;
        world.endpoint(0).progress(now);
        while let Some(completion) = user.poll(now) {
            if let DeviceCompletion::Receive { packet, length, immediate, .. } = completion {
                all.push((packet[..length].to_vec(), immediate));
            }
        }
        world.now = now + std::time::Duration::from_micros(1);
    }
    all
}

fn send(world: &mut World, tag: Option<u64>, cq_data: Option<u64>, level: Level, size: usize) {
    let peer = world.peer(0, 1);
    let buffer = pattern(size, 1);
    let message = Message { peer, tag, cq_data, level, buffer, context: 3 };
    world.endpoint(0).send(message).unwrap();
}

fn inject(world: &mut World) -> Result<(), StartError> {
    let (peer, level) = (world.peer(0, 1), Level::Transmit);
    let buffer = &b"short"[..];
    let message = Message { peer, tag: None, cq_data: None, level, buffer, context: 0 };
    world.endpoint(0).inject(message)
}

#[test]
fn plain_message_has_no_header_and_immediate_cq_data() {
    let (mut world, mut user) = world(Config::default());
    introduce(&mut world, &user);
    for (size, cq_data) in [(0, None), (100, Some(0xdead_beef)), (MTU, None)] {
        send(&mut world, None, cq_data, Level::Transmit, size);
        let expected = (pattern(size, 1), cq_data.map(|data| data as u32));
        assert_eq!(arrived(&mut world, &mut user), [expected]);
        let sent = world.send_done(0);
        assert_eq!((sent.result, sent.length), (Ok(()), size as u64));
    }
    let peer = world.peer(0, 1);
    let level = Level::Transmit;
    let message =
        Message { peer, tag: None, cq_data: Some(9), level, buffer: &b"short"[..], context: 0 };
    world.endpoint(0).inject(message).unwrap();
    assert_eq!(arrived(&mut world, &mut user), [(b"short".to_vec(), Some(9))]);
    let refused = world.endpoint(0).inject(Message { tag: Some(1), ..message });
    assert_eq!(refused, Err(StartError::PlainOnly { limit: MTU }));
}

#[test]
fn operation_that_needs_a_header_fails_to_a_plain_receiver() {
    let (mut world, mut user) = world(Config::default());
    introduce(&mut world, &user);
    for (tag, cq_data, level, size) in [
        (Some(1), None, Level::Transmit, 10),
        (None, Some(1 << 32), Level::Transmit, 10),
        (None, None, Level::Transmit, MTU + 1),
    ] {
        send(&mut world, tag, cq_data, level, size);
        assert_eq!(arrived(&mut world, &mut user), []);
        let sent = world.send_done(0);
        assert_eq!(sent.result, Err(OperationError::PlainOnly { limit: MTU }));
        assert_eq!(sent.buffer, Some(pattern(size, 1)));
    }
    let missing = Extras::DELIVERY_COMPLETE;
    send(&mut world, None, None, Level::Delivery, 10);
    assert_eq!(world.send_done(0).result, Err(OperationError::PeerLacks { missing }));
}

#[test]
fn plain_message_is_sent_again_after_rnr() {
    let (mut world, mut user) = world(Config::default());
    introduce(&mut world, &user);
    world.network.not_ready(user.address(), 3).unwrap();
    send(&mut world, None, Some(5), Level::Transmit, 50);
    assert_eq!(arrived(&mut world, &mut user), [(pattern(50, 1), Some(5))]);
    assert!(world.endpoint(0).statistics().receiver_not_ready > 0);
}

#[test]
fn messages_wait_for_the_handshake_if_configured() {
    let config = Config::default().with(|config| config.messages_after_handshake = true);
    let (mut world, mut user) = world(config);
    send(&mut world, None, None, Level::Transmit, 10);
    let refused = inject(&mut world);
    assert!(
        matches!(refused, Err(StartError::Busy { .. })),
        "an injected message cannot be queued"
    );
    let now = world.now;
    world.endpoint(0).progress(now);
    assert_eq!(
        world.types_from(0),
        [PacketType::EagerRtw],
        "only the empty write that elicits the HANDSHAKE"
    );
    introduce(&mut world, &user);
    assert_eq!(arrived(&mut world, &mut user), [(pattern(10, 1), None)]);
}

#[test]
fn injected_message_is_busy_until_the_handshake() {
    let config = Config::default().with(|config| config.messages_after_handshake = true);
    let (mut world, mut user) = world(config);
    let refused = inject(&mut world);
    assert!(matches!(refused, Err(StartError::Busy { .. })), "{refused:?}");
    let now = world.now;
    world.endpoint(0).progress(now);
    assert_eq!(
        world.types_from(0),
        [PacketType::EagerRtw],
        "only the empty write that elicits the HANDSHAKE"
    );
    introduce(&mut world, &user);
    inject(&mut world).unwrap();
    assert_eq!(arrived(&mut world, &mut user), [(b"short".to_vec(), None)]);
}

#[test]
fn send_window_ends_when_the_handshake_announces_plain_messages() {
    let config = Config::default().with(|config| config.old_peer_window = 2);
    let (mut world, mut user) = world(config);
    // The first messages meet RNR for a while.
    let queue = world.ends[1].endpoint.queue_pair().address();
    world.network.not_ready(queue, 8).unwrap();
    for _ in 0..3 {
        send(&mut world, None, None, Level::Transmit, 10);
    }
    introduce(&mut world, &user);
    assert_eq!(world.endpoint(0).statistics().pauses, 1);
    assert_eq!(arrived(&mut world, &mut user), [(pattern(10, 1), None)], "the third message");
    assert!(world.endpoint(0).is_quiet(), "the send window is open");
    send(&mut world, None, None, Level::Transmit, 20);
    assert_eq!(arrived(&mut world, &mut user), [(pattern(20, 1), None)]);
}
