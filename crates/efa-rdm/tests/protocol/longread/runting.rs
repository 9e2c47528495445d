//! Runting read messages: the first bytes are sent in packets while the rest is read.

use efa_proto::{Header, MsgId, OpId, Packet, PacketType, ReqOptions, RmaIov, Rtm, RtmKind};
use efa_rdm::{OperationError, Subprotocol};
use efa_sim::local::Faults;

use super::{Memory, config, is_untouched_around, pair};
use crate::world::{pattern, place};

// conformance: A200 A201 A202 A203
#[test]
fn runting_message_sends_the_runt_and_reads_the_rest() {
    let runting = config().with(|config| config.runt_size = 30_000);
    for seed in 0..20 {
        for registered in [true, false] {
            let mut world = pair(seed, runting.clone(), config());
            let buffer = vec![0; 200_000];
            let target = if registered { world.region(1, &buffer) } else { Memory::Heap(buffer) };
            world.receive_into(1, target, 1);
            let bytes = pattern(200_000, seed);
            let message = world.region(0, &bytes);
            world.send(0, 1, message, 2);
            world.drive();
            let received = world.receive_done(1);
            assert_eq!(received.subprotocol, Some(Subprotocol::RuntRead));
            assert_eq!((received.length, received.result), (200_000, Ok(())));
            assert!(received.buffer.bytes() == bytes);
            assert!(is_untouched_around(&received.buffer));
            assert_eq!(world.send_done(0).result, Ok(()));
            let packets = world.packets_from(0);
            let mut runt = 0;
            for bytes in &packets {
                let packet = Packet::parse(bytes).unwrap();
                let Header::Rtm(Rtm { kind: RtmKind::RuntRead { runt_length, .. }, .. }) =
                    packet.header
                else {
                    panic!("{packet}")
                };
                assert_eq!(runt_length, 30_000);
                runt += packet.payload.len();
            }
            assert_eq!((packets.len(), runt), (4, 30_000));
            assert_eq!(world.types_from(1), [PacketType::Eor]);
            assert_eq!(world.endpoint(1).statistics().rdma_bytes, 170_000);
            world.assert_clean();
        }
    }
}

// conformance: A202
#[test]
fn runt_as_long_as_the_message_needs_no_read() {
    let runting = config().with(|config| config.runt_size = 1 << 20);
    let mut world = pair(3, runting, config());
    world.receive_into(1, Memory::Heap(vec![0; 150_000]), 1);
    let message = world.region(0, &pattern(150_000, 3));
    world.send(0, 1, message, 2);
    world.drive();
    assert!(world.receive_done(1).buffer.bytes() == pattern(150_000, 3));
    assert_eq!(world.send_done(0).result, Ok(()));
    assert_eq!(world.types_from(1), []);
    assert_eq!(world.endpoint(1).statistics().rdma_reads, 0);
    world.assert_clean();
}

// conformance: A199
#[test]
fn message_is_not_runting_while_another_is_read() {
    let runting = config().with(|config| config.runt_size = 30_000);
    let mut world = pair(3, runting, config());
    for salt in 0..3 {
        world.receive_into(1, Memory::Heap(vec![0; 150_000]), salt);
        let message = world.region(0, &pattern(150_000, salt));
        world.send(0, 1, message, salt);
    }
    world.drive();
    let kinds: Vec<_> =
        world.take_sends(0).iter().map(|send| (send.context, send.subprotocol)).collect();
    let count = |wanted| kinds.iter().filter(|kind| kind.1 == Some(wanted)).count();
    assert_eq!((count(Subprotocol::RuntRead), count(Subprotocol::LongRead)), (1, 2));
    for received in world.take_receives(1) {
        assert!(received.buffer.bytes() == pattern(150_000, received.context));
    }
    // All are complete, so the next message may use a runt again.
    world.receive_into(1, Memory::Heap(vec![0; 150_000]), 9);
    let message = world.region(0, &pattern(150_000, 9));
    world.send(0, 1, message, 9);
    world.drive();
    assert_eq!(world.send_done(0).subprotocol, Some(Subprotocol::RuntRead));
    world.receive_done(1);
    world.assert_clean();
}

// conformance: A204
#[test]
fn full_send_queue_within_a_runt_sends_each_segment_once() {
    for (seed, refused) in (0..20).zip([1, 2, 3, 7].into_iter().cycle()) {
        let runting = config().with(|config| config.runt_size = 60_000);
        let mut world = pair(seed, runting, config());
        world.receive_into(1, Memory::Heap(vec![0; 200_000]), 1);
        let message = world.region(0, &pattern(200_000, seed));
        let me = place(&world.ends[0]);
        let faults = Faults::default().with(|faults| faults.send_limit = Some(2));
        world.network.set_faults(faults);
        world.send(0, 1, message, 2);
        // Two packets of the runt are in flight; posts of the others are refused repeatedly.
        assert_eq!(world.packets_from(0).len(), 2);
        world.network.refuse_sends(me, refused).unwrap();
        world.drive();
        let received = world.receive_done(1);
        assert_eq!((received.subprotocol, received.result), (Some(Subprotocol::RuntRead), Ok(())));
        assert!(received.buffer.bytes() == pattern(200_000, seed));
        assert_eq!(world.send_done(0).result, Ok(()));
        let mut offset = 0;
        for bytes in world.packets_from(0) {
            let packet = Packet::parse(&bytes).unwrap();
            let Header::Rtm(Rtm { kind: RtmKind::RuntRead { seg_offset, .. }, .. }) = packet.header
            else {
                panic!("{packet}")
            };
            assert_eq!(seg_offset, offset, "seed {seed}");
            offset += packet.payload.len() as u64;
        }
        assert_eq!(offset, 60_000);
        world.assert_clean();
    }
}

/// The buffer is shorter than the runt, so nothing is read and the device does not use the buffer.
#[test]
fn receive_shorter_than_the_runt_completes_on_peer_removal() {
    let mut world = pair(6, config(), config());
    world.receive_into(1, Memory::Heap(vec![0; 1500]), 1);
    let connid = Some(world.ends[0].endpoint.address().connid);
    let options = ReqOptions { raw_address: None, cq_data: None, connid };
    let read_iov = [RmaIov::new(0, 300_000, 1)];
    let kind = RtmKind::RuntRead {
        msg_length: 300_000,
        send_id: OpId(0),
        seg_offset: 0,
        runt_length: 2000,
        read_iov: &read_iov,
    };
    let rtm = Rtm { msg_id: MsgId(1), tag: None, kind, options };
    world.inject(0, 1, Header::Rtm(rtm), &[7; 1000]);
    world.drive();
    assert!(world.take_receives(1).is_empty());
    let peer = world.peer(1, 0);
    world.endpoint(1).remove_peer(peer);
    assert_eq!(world.receive_done(1).result, Err(OperationError::PeerRemoved));
}
