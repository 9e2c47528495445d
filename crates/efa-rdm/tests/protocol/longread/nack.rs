//! READ_NACK and EOR: reads that the receiver refuses, and the ends of reads.

use efa_device::Rdma;
use efa_handshake::{Profile, Release};
use efa_proto::{
    Eor, EorForm, Header, MsgId, OpId, Packet, PacketType, ReadNack, ReqOptions, RmaIov, Rtm,
    RtmKind,
};
use efa_rdm::{DropReason, Event, Subprotocol};
use efa_sim::local::LocalOptions;

use super::{Memory, World, config, pair};
use crate::world::pattern;

// The receiver's device refuses registrations, so there is no memory to read into.
// conformance: A209 A210 A211 A212 A213
#[test]
fn message_continues_by_long_cts_after_read_nack() {
    for runt_size in [0, 30_000] {
        for seed in 0..10 {
            for unexpected in [false, true] {
                let sender = config().with(|config| config.runt_size = runt_size);
                let mut world = pair(seed, sender, config());
                world.ends[1].device.refuse_registrations(u32::MAX);
                let target = || Memory::Heap(vec![0; 400_000]);
                if !unexpected {
                    world.receive_into(1, target(), 1);
                }
                let bytes = pattern(400_000, seed);
                let message = world.region(0, &bytes);
                world.send(0, 1, message, 2);
                // The next message stays in order.
                world.send(0, 1, Memory::Heap(pattern(20, seed)), 3);
                if unexpected {
                    world.drive();
                    world.receive_into(1, target(), 1);
                }
                world.receive_into(1, Memory::Heap(vec![0; 20]), 4);
                world.drive();
                let mut received = world.take_receives(1);
                received.sort_by_key(|receive| receive.context);
                assert_eq!(received.len(), 2);
                assert_eq!((received[0].length, received[0].result), (400_000, Ok(())));
                assert!(received[0].buffer.bytes() == bytes);
                assert!(received[1].buffer.bytes() == pattern(20, seed));
                assert!(world.take_sends(0).iter().all(|send| send.result == Ok(())));
                let nacks = world.types_from(1);
                assert_eq!(nacks.iter().filter(|t| **t == PacketType::ReadNack).count(), 1);
                assert!(!nacks.contains(&PacketType::Eor));
                let again = world.packets_from(0).into_iter().find_map(|bytes| {
                    let packet = Packet::parse(&bytes).unwrap();
                    match packet.header {
                        Header::Rtm(Rtm {
                            kind: RtmKind::LongCts { read_nack, .. },
                            msg_id,
                            ..
                        }) => Some((read_nack, msg_id, packet.payload.len())),
                        _ => None,
                    }
                });
                assert_eq!(again, Some((true, MsgId(1), 0)), "the same message, without data");
                // The runt is not sent again.
                let sent = world.packets_from(0).into_iter().map(|bytes| {
                    let packet = Packet::parse(&bytes).unwrap();
                    match packet.header {
                        Header::Rtm(Rtm { kind: RtmKind::RuntRead { .. }, .. })
                        | Header::CtsData(_) => packet.payload.len(),
                        _ => 0,
                    }
                });
                assert_eq!(sent.sum::<usize>(), 400_000);
                assert_eq!(world.endpoint(1).statistics().rdma_reads, 0);
                world.assert_clean();
            }
        }
    }
}

/// A sender that removed and reinserted the receiver starts at the first message id again.
#[test]
fn nacked_message_drops_segments_of_another_with_its_id() {
    let mut world = pair(8, config(), config());
    world.ends[1].device.refuse_registrations(u32::MAX);
    world.receive_into(1, Memory::Heap(vec![0; 9_000]), 1);
    let connid = Some(world.ends[0].endpoint.address().connid);
    let options = ReqOptions { raw_address: None, cq_data: None, connid };
    let request = |kind| Header::Rtm(Rtm { msg_id: MsgId(1), tag: None, kind, options });
    let (msg_length, read_iov) = (9_000, [RmaIov::new(0, 9_000, 1)]);
    let kind = RtmKind::LongRead { msg_length, send_id: OpId(0), read_iov: &read_iov };
    world.inject(0, 1, request(kind), &[]);
    world.drive();
    assert_eq!(world.types_from(1), [PacketType::ReadNack]);
    for (seg_offset, length) in [(0, 8_000), (8_000, 1_000)] {
        let segment = request(RtmKind::Medium { msg_length, seg_offset });
        world.inject(0, 1, segment, &vec![7; length]);
    }
    world.drive();
    assert_eq!(world.drop_reasons(1), [DropReason::SegmentOutOfRange; 2]);
    // LONGCTS with `read_nack` is dropped if its length differs, or if its message got no READ_NACK.
    world.receive_into(1, Memory::Heap(vec![0; 9_000]), 2);
    let half = RtmKind::Medium { msg_length, seg_offset: 0 };
    let rtm = Rtm { msg_id: MsgId(2), tag: None, kind: half, options };
    world.inject(0, 1, Header::Rtm(rtm), &[7; 8_000]);
    for (msg_id, msg_length) in [(1, msg_length + 1), (2, msg_length)] {
        let (send_id, credit_request) = (OpId(0), 1);
        let kind = RtmKind::LongCts { msg_length, send_id, credit_request, read_nack: true };
        let rtm = Rtm { msg_id: MsgId(msg_id), tag: None, kind, options };
        world.drive();
        world.inject(0, 1, Header::Rtm(rtm), &[]);
    }
    world.drive();
    assert_eq!(world.drop_reasons(1), [DropReason::UnknownOperation; 2]);
    assert!(world.take_receives(1).is_empty());
}

// conformance: A214
#[test]
fn read_from_peer_without_read_nack_waits_for_memory() {
    let old = config().with(|config| config.profile = profile(Release::V1_18));
    let mut world = pair(4, old, config());
    world.ends[1].device.refuse_registrations(3);
    world.receive_into(1, Memory::Heap(vec![0; 150_000]), 1);
    let message = world.region(0, &pattern(150_000, 4));
    world.send(0, 1, message, 2);
    world.drive();
    let received = world.receive_done(1);
    assert_eq!((received.subprotocol, received.result), (Some(Subprotocol::LongRead), Ok(())));
    assert!(received.buffer.bytes() == pattern(150_000, 4));
    assert_eq!(world.send_done(0).result, Ok(()));
    assert!(world.ends[1].events.iter().any(|event| matches!(event, Event::DeviceRefused(_))));
    world.assert_clean();
}

// conformance: A209 A214
#[test]
fn read_nack_is_sent_only_between_releases_that_have_it() {
    for (i, sender) in Release::ALL.into_iter().enumerate() {
        for (j, receiver) in Release::ALL.into_iter().enumerate() {
            let [a, b] =
                [sender, receiver].map(|of| config().with(|config| config.profile = profile(of)));
            let mut world = pair((10 * i + j) as u64, a, b);
            world.ends[1].device.refuse_registrations(3);
            for context in 1..4 {
                world.receive_into(1, Memory::Heap(vec![0; 150_000]), context);
                let message = world.region(0, &pattern(150_000, context));
                world.send(0, 1, message, context);
            }
            world.drive();
            let received = world.take_receives(1);
            assert_eq!(received.len(), 3, "{sender} to {receiver}");
            for received in received {
                assert_eq!(received.result, Ok(()), "{sender} to {receiver}");
                assert!(received.buffer.bytes() == pattern(150_000, received.context));
            }
            assert!(world.take_sends(0).iter().all(|sent| sent.result == Ok(())));
            let nacks =
                world.types_from(1).iter().filter(|of| **of == PacketType::ReadNack).count();
            let both = sender >= Release::V1_20 && receiver >= Release::V1_20;
            assert_eq!(nacks > 0, both, "{sender} to {receiver}");
            world.assert_clean();
        }
    }
}

/// The profile of a release on a device with RDMA.
fn profile(release: Release) -> Profile {
    let abilities = efa_handshake::DeviceAbilities {
        rdma_read: true,
        rdma_write: true,
        unsolicited_write_receive: false,
    };
    Profile::with_device(release, abilities)
}

#[test]
fn eor_has_the_form_of_the_peers_release() {
    let old = config().with(|config| config.profile = profile(Release::V1_12));
    for (a, b, form) in [(config(), old.clone(), 12), (old, config(), 16)] {
        let mut world = pair(5, a, b);
        world.receive_into(1, Memory::Heap(vec![0; 150_000]), 1);
        let message = world.region(0, &pattern(150_000, 4));
        world.send(0, 1, message, 2);
        world.drive();
        assert_eq!(world.receive_done(1).result, Ok(()));
        assert_eq!(world.send_done(0).result, Ok(()));
        let packets = world.packets_from(1);
        assert_eq!(packets.iter().map(Vec::len).collect::<Vec<_>>(), [form]);
    }
}

// conformance: A170
#[test]
fn read_of_deregistered_memory_sends_read_nack() {
    // The key in the request is unknown, as if the sender had deregistered its memory too early.
    let mut world = pair(6, config(), config());
    world.receive_into(1, Memory::Heap(vec![0; 150_000]), 1);
    let source = world.ends[0].endpoint.address();
    let iov = [RmaIov::new(0x1234, 150_000, 77)];
    let kind = RtmKind::LongRead { msg_length: 150_000, send_id: OpId(5), read_iov: &iov };
    let options = ReqOptions { raw_address: None, cq_data: None, connid: Some(source.connid) };
    let rtm = Rtm { msg_id: MsgId(1), tag: None, kind, options };
    world.inject(0, 1, Header::Rtm(rtm), &[]);
    world.drive();
    assert_eq!(world.types_from(1), [PacketType::ReadNack]);
    assert!(world.take_receives(1).is_empty());
}

#[test]
fn eor_or_read_nack_for_unknown_operation_is_dropped() {
    let mut world = pair(6, config(), config());
    let address = world.ends[1].endpoint.address();
    let message = Memory::Heap(pattern(300_000, 1));
    world.send(0, 1, message, 2);
    world.drive();
    let request = world.packets_from(0).remove(0);
    let Header::Rtm(Rtm { kind: RtmKind::LongCts { send_id, .. }, .. }) =
        Packet::parse(&request).unwrap().header
    else {
        panic!("a message that is not registered is sent")
    };
    let connid = Some(address.connid);
    for send_id in [send_id, OpId(77), OpId(u32::MAX)] {
        let form = EorForm::Full { connid };
        world.inject(1, 0, Header::Eor(Eor { send_id, recv_id: OpId(0), form }), &[]);
        let nack = ReadNack { send_id, recv_id: OpId(0), connid };
        world.inject(1, 0, Header::ReadNack(nack), &[]);
    }
    world.drive();
    assert_eq!(world.drop_reasons(0), [DropReason::UnknownOperation; 6]);
    world.receive_into(1, Memory::Heap(vec![0; 300_000]), 1);
    world.drive();
    assert!(world.receive_done(1).buffer.bytes() == pattern(300_000, 1));
    assert_eq!(world.send_done(0).result, Ok(()));
}

#[test]
fn long_read_request_to_device_without_rdma_gets_read_nack() {
    let mut world = World::new(LocalOptions::default().with(|options| options.rdma = Rdma::NONE));
    world.add(config());
    world.add(config());
    world.shake_hands();
    world.receive_into(1, Memory::Heap(vec![0; 9_000]), 1);
    let connid = Some(world.ends[0].endpoint.address().connid);
    let options = ReqOptions { raw_address: None, cq_data: None, connid };
    let read_iov = [RmaIov::new(0, 9_000, 1)];
    let kind = RtmKind::LongRead { msg_length: 9_000, send_id: OpId(0), read_iov: &read_iov };
    let rtm = Rtm { msg_id: MsgId(1), tag: None, kind, options };
    world.inject(0, 1, Header::Rtm(rtm), &[]);
    world.drive();
    assert_eq!(world.types_from(1), [PacketType::ReadNack]);
}
