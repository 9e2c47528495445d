//! Sections 2.1 to 2.3: the HANDSHAKE and what depends on it.

use std::time::Duration;

use efa_device::{Access, QueuePair, QueuePairOptions, Rdma, Region};
use efa_handshake::{Extras, Profile, Release};
use efa_proto::{
    Connid, CtsData, ExtraInfo, Handshake, Header, MsgId, OpId, Packet, PacketType, RawAddressForm,
    ReqOptions, RmaIov, Rtm, RtmKind,
};
use efa_rdm::{
    Accept, Atomic, AtomicOp, Config, Datatype, Event, Level, Message, Operands, Read, Remote,
    Write,
};
use efa_sim::local::{Faults, LocalOptions};

use crate::world::{World, pattern, place};

fn handshakes(world: &mut World, from: usize) -> usize {
    world.types_from(from).iter().filter(|t| **t == PacketType::Handshake).count()
}

// conformance: A36 A37
#[test]
fn each_endpoint_sends_one_handshake_per_peer() {
    let mut world = World::pair(1);
    world.add(Config::default());
    for i in 0..1000 {
        world.receive(1, 1, i);
        world.send(0, 1, vec![1], i);
        if i % 10 == 0 {
            world.receive(1, 1, i);
            world.send(2, 1, vec![2], i);
        }
    }
    world.drive();
    assert_eq!(world.ends[1].receives.len(), 1100);
    let (zero, one, two) =
        (handshakes(&mut world, 0), handshakes(&mut world, 1), handshakes(&mut world, 2));
    assert_eq!((zero, one, two), (1, 2, 1));
    let (to_one, back) = (world.peer(0, 1), world.peer(1, 0));
    let extras = Config::default().profile.extras;
    let features = [Extras::RDMA_READ, Extras::CONNID_HEADER, Extras::READ_NACK];
    assert!(features.into_iter().all(|feature| extras.contains(feature)));
    // The devices of the network can read and write, but take no unsolicited immediate data.
    let extras = extras.difference(Extras::UNSOLICITED_WRITE_RECV);
    assert_eq!(world.endpoint(0).peer_extras(to_one), Some(extras));
    assert_eq!(world.endpoint(1).peer_extras(back), Some(extras));
}

// The application has inserted the new incarnation of a queue pair, and a packet of the old one arrives late.
// A HANDSHAKE sent now would be lost, since the new incarnation does not know us, and not be repeated.
#[test]
fn packet_of_a_former_incarnation_elicits_no_handshake() {
    let mut world = World::pair(3);
    world.peer(1, 0);
    let late = CtsData { connid: None, recv_id: OpId(0), seg_length: 3, seg_offset: 0 };
    let mut bytes = vec![0; late.len()];
    late.emit(&mut bytes).unwrap();
    bytes.extend([1, 2, 3]);
    world.inject_bytes(0, 1, &bytes);
    world.drive();
    assert_eq!(world.endpoint(1).statistics().received.of(PacketType::CtsData), 1);
    assert_eq!(handshakes(&mut world, 1), 0);
    world.receive(1, 1, 0);
    world.send(0, 1, vec![1], 0);
    world.drive();
    assert_eq!(handshakes(&mut world, 1), 1);
}

// conformance: A37
#[test]
fn one_message_elicits_one_handshake_from_each_side() {
    let mut world = World::pair(2);
    world.receive(1, 1, 0);
    world.send(0, 1, vec![1], 0);
    world.drive();
    assert_eq!((handshakes(&mut world, 0), handshakes(&mut world, 1)), (1, 1));
}

// conformance: A38
#[test]
fn handshake_waits_for_space_in_the_send_queue() {
    let mut world = World::pair(3);
    let place = place(&world.ends[1]);
    world.receive(1, 1, 0);
    world.send(0, 1, vec![1], 0);
    world.network.refuse_sends(place, 5).unwrap();
    world.drive();
    let peer = world.peer(0, 1);
    assert!(world.endpoint(0).peer_extras(peer).is_some());
    assert_eq!(world.network.statistics().sends_refused, 5);
}

#[test]
fn handshake_is_sent_again_after_rnr() {
    let mut world = World::pair(4);
    let place = place(&world.ends[0]);
    world.network.not_ready(place, 4).unwrap();
    world.receive(1, 1, 0);
    world.send(0, 1, vec![1], 0);
    world.drive();
    let peer = world.peer(0, 1);
    assert!(world.endpoint(0).peer_extras(peer).is_some());
    assert!(world.endpoint(1).statistics().retransmitted > 0);
}

fn options_of(bytes: &[u8]) -> Option<ReqOptions> {
    match Packet::parse(bytes).unwrap().header {
        Header::Rtm(Rtm { options, .. }) => Some(options),
        _ => None,
    }
}

// conformance: A55
#[test]
fn requests_carry_raw_address_before_and_connid_after_the_handshake() {
    let mut world = World::pair(5);
    let own = world.endpoint(0).address();
    for length in [10, 20_000, 100_000] {
        world.receive(1, length, 0);
        world.send(0, 1, pattern(length, 1), 0);
    }
    let before = world.packets_from(0);
    world.drive();
    assert!(!before.is_empty());
    for options in before.iter().filter_map(|bytes| options_of(bytes)) {
        assert_eq!(options.raw_address, Some((own, RawAddressForm::Padded)));
        assert_eq!(options.connid, None);
    }
    world.forget_packets();
    for length in [10, 20_000, 100_000] {
        world.receive(1, length, 0);
        world.send(0, 1, pattern(length, 1), 0);
    }
    world.drive();
    let after: Vec<_> = world.packets_from(0).iter().filter_map(|b| options_of(b)).collect();
    assert!(!after.is_empty());
    assert!(after.iter().all(|o| o.raw_address.is_none() && o.connid == Some(own.connid)));
}

/// Every pair of releases exchanges all sizes both ways.
// conformance: A33 A46
#[test]
fn handshakes_between_all_releases_are_understood() {
    let sizes = [0, 1, 8_000, 8_870, 8_900, 20_000, 65_536, 65_537, 400_000];
    for (i, a) in Release::ALL.into_iter().enumerate() {
        for (j, b) in Release::ALL.into_iter().enumerate() {
            let seed = (i * 10 + j) as u64;
            let mut world = World::pair_with(seed, of_release(a), of_release(b));
            for round in 0..2 {
                for (from, to) in [(0, 1), (1, 0)] {
                    for (k, size) in sizes.into_iter().enumerate() {
                        let tag = k as u64;
                        if round == 0 {
                            world.tagged_receive(to, tag, size);
                        }
                        world.tagged_send(from, to, tag, pattern(size, tag));
                        if round == 1 {
                            world.tagged_receive(to, tag, size);
                        }
                    }
                }
                world.drive();
                for end in 0..2 {
                    let received: Vec<_> = world.ends[end].receives.drain(..).collect();
                    assert_eq!(received.len(), sizes.len(), "{a} and {b}, seed {seed}");
                    for received in received {
                        assert_eq!(received.result, Ok(()));
                        let size = sizes[received.tag as usize];
                        assert!(received.buffer == pattern(size, received.tag));
                    }
                    assert_eq!(world.ends[end].sends.drain(..).count(), sizes.len());
                }
            }
            world.assert_clean();
        }
    }
}

// conformance: A42 A45
#[test]
fn peer_that_requests_constant_headers_gets_them_where_supported() {
    for (release, complies) in [(Release::V1_10, false), (Release::V2_6, true)] {
        let sender = Profile::of(release).announcing_only(Extras::CONNID_HEADER);
        let mut receiver = Profile::of(Release::V1_13);
        receiver.extras = Extras::CONSTANT_HEADER_LENGTH;
        let config = |profile| Config::default().with(|config| config.profile = profile);
        let mut world = World::pair_with(8, config(sender), config(receiver));
        for i in 0..4 {
            world.forget_packets();
            for (k, length) in [10, 20_000, 100_000].into_iter().enumerate() {
                world.receive(1, 100_000, k as u64);
                world.send(0, 1, pattern(length, i), 0);
            }
            world.drive();
            for _ in 0..3 {
                let received = world.receive_done(1);
                let length = received.length as usize;
                assert!(received.buffer[..length] == pattern(length, i));
            }
        }
        let packets = world.packets_from(0);
        let mut options = packets.iter().filter_map(|bytes| options_of(bytes));
        assert!(options.all(|options| options.raw_address.is_some() == complies));
        world.ends[0].sends.clear();
        world.assert_clean();
    }
}

// conformance: A43
#[test]
fn packets_without_requested_connid_are_accepted() {
    let profile = Profile::of(Release::V1_13).announcing_only(Extras::CONNID_HEADER);
    let config = Config::default().with(|config| config.profile = profile);
    let mut world = World::pair_with(6, config, Config::default());
    for i in 0..2 {
        world.receive(1, 100_000, i);
        world.send(0, 1, pattern(100_000, i), i);
        world.drive();
        assert!(world.receive_done(1).buffer == pattern(100_000, i));
    }
    assert!(world.endpoint(1).statistics().unverified > 10);
}

// conformance: A60
#[test]
fn second_handshake_updates_the_peer_features() {
    let mut world = World::pair(7);
    world.acquaint();
    let peer = world.peer(1, 0);
    world.receive(1, 1, 0);
    world.send(0, 1, vec![1], 0);
    world.drive();
    for bits in [8, 8, 3] {
        let handshake = Handshake {
            extra_info: ExtraInfo::new(&[bits]).unwrap(),
            connid: None,
            host_id: None,
            device_version: None,
            user_recv_qp: None,
            hmem_p2p: None,
        };
        world.inject(0, 1, Header::Handshake(handshake), &[]);
        world.drive();
        assert_eq!(world.endpoint(1).peer_extras(peer).map(|extras| extras.bits()), Some(bits));
    }
    assert_eq!(handshakes(&mut world, 1), 1, "answered once");
}

// conformance: A57
#[test]
fn peer_closed_after_one_message_is_no_error() {
    let mut world = World::pair(8);
    world.add(Config::default());
    world.receive(1, 5, 0);
    world.send(0, 1, pattern(5, 1), 0);
    while world.ends[1].receives.is_empty() {
        // The sender is closed before our HANDSHAKE can reach it.
        world.step();
    }
    let address = world.endpoint(0).address();
    assert!(world.endpoint(1).find_peer(&address).is_some());
    world.ends.remove(0);
    world.drive();
    let one = &mut world.ends[0];
    assert_eq!(one.endpoint.find_peer(&address), None, "it is gone");
    assert_eq!(one.receives.pop_front().unwrap().result, Ok(()));
    assert!(one.sends.is_empty());
    assert!(
        one.events.iter().all(|event| matches!(event, Event::PeerDiscovered(_))),
        "{:?}",
        one.events
    );
    assert_eq!(one.endpoint.statistics().send_errors, 1);
}

// conformance: A58
#[test]
fn endpoint_with_handshake_in_flight_can_be_closed() {
    let mut world = World::pair(9);
    world.receive(1, 5, 0);
    world.send(0, 1, pattern(5, 1), 0);
    while handshakes(&mut world, 1) == 0 {
        world.step();
    }
    world.ends.remove(1);
    world.drive();
    let zero = &mut world.ends[0];
    assert_eq!(zero.sends.pop_front().unwrap().result, Ok(()));
    assert!(zero.endpoint.is_quiet());
}

// CTSDATA before our HANDSHAKE could not be attributed by a receiver since release 1.14.
#[test]
fn ctsdata_is_sent_only_after_the_handshake() {
    for seed in 0..20 {
        // A network that delays some packets very much, so that the CTS overtakes the HANDSHAKE.
        let faults = Faults::default().with(|faults| {
            faults.late = 0.5;
            faults.late_by = Duration::from_millis(1);
        });
        let mut world = World::new(LocalOptions::default().with(|options| {
            options.seed = seed;
            options.faults = faults;
        }));
        world.add(Config::default());
        world.add_with(Config::default(), QueuePairOptions::default());
        world.receive(1, 200_000, 0);
        world.send(0, 1, pattern(200_000, 1), 0);
        let peer = world.peer(0, 1);
        for _ in 0..10_000 {
            world.step();
            if world.endpoint(0).peer_extras(peer).is_none() {
                assert!(!world.types_from(0).contains(&PacketType::CtsData), "seed {seed}");
            }
            if !world.ends[1].receives.is_empty() {
                break;
            }
        }
        assert!(world.receive_done(1).buffer == pattern(200_000, 1));
    }
}

fn of_release(release: Release) -> Config {
    let profile = Profile::of(release).announcing_only(Extras::CONNID_HEADER);
    Config::default().with(|config| config.profile = profile)
}

// Releases up to 1.13 would take it for data.
// conformance: A68
#[test]
fn peer_without_connid_support_gets_packets_without_connid() {
    for old in [Release::V1_10, Release::V1_12, Release::V1_13] {
        let ours = [Release::V1_14, Release::V2_0].map(of_release);
        for config in ours.into_iter().chain([Config::default()]) {
            let mut world = World::pair_with(1, config, of_release(old));
            for round in 0..2 {
                world.forget_packets();
                for (i, size) in [10, 20_000, 200_000].into_iter().enumerate() {
                    world.tagged_receive(1, i as u64, size);
                    world.tagged_send(0, 1, i as u64, pattern(size, 1));
                }
                world.drive();
                for bytes in world.packets_from(0) {
                    match Packet::parse(&bytes).unwrap().header {
                        Header::Rtm(rtm) => assert_eq!(rtm.options.connid, None),
                        Header::CtsData(data) => assert_eq!(data.connid, None, "round {round}"),
                        _ => {}
                    }
                }
            }
        }
    }
}

/// Every type of packet that two endpoints send after the HANDSHAKEs, with the endpoint that sent it.
fn all_kinds(rdma: Rdma) -> Vec<(Connid, Vec<u8>)> {
    let config = Config::default().with(|config| config.min_read = Some(100_000));
    let mut world = World::new(LocalOptions::default().with(|options| {
        options.rdma = rdma;
        options.seed = 3;
    }));
    world.add(config.clone());
    world.add(config);
    for (from, to) in [(0, 1), (1, 0)] {
        world.receive(to, 1, 0);
        world.send(from, to, vec![1], 0);
        world.drive();
    }
    let peer = world.peer(0, 1);
    let asked = world.endpoint(0).peer_extras(peer).unwrap();
    assert!(asked.contains(Extras::CONNID_HEADER));
    world.forget_packets();

    for level in [Level::Transmit, Level::Delivery] {
        for (tag, length) in [(None, 10), (Some(7), 20_000), (None, 90_000)] {
            let accept = match tag {
                None => Accept::Untagged { source: None },
                Some(tag) => Accept::Tagged { source: None, tag, ignore: 0 },
            };
            world.endpoint(1).receive(accept, vec![0; length], 0).unwrap();
            let buffer = pattern(length, 1);
            let message = Message { peer, tag, cq_data: None, level, buffer, context: 0 };
            world.endpoint(0).send(message).unwrap();
            world.drive();
        }
    }
    let access = Access { remote_read: true, remote_write: true };
    let memory = world.ends[1].endpoint.queue_pair();
    let region = memory.register(vec![0; 100_000].into(), access).unwrap();
    let part = |length| {
        Remote::from(RmaIov::new(region.remote_address(), length, region.remote_key().into()))
    };
    for length in [8, 90_000] {
        for level in [Level::Transmit, Level::Delivery] {
            let (remote, buffer) = (part(length), pattern(length as usize, 2));
            let write = Write { peer, remote, buffer, cq_data: None, level, context: 0 };
            world.endpoint(0).write(write).unwrap();
        }
        let (remote, buffer) = (part(length), vec![0; length as usize]);
        world.endpoint(0).read(Read { peer, remote, buffer, context: 0 }).unwrap();
        world.drive();
    }
    let (datatype, level) = (Datatype::Uint64, Level::Transmit);
    let operand = || vec![1; 8];
    for operands in [
        Operands::Write { operand: operand() },
        Operands::Fetch { operand: operand(), fetched: operand() },
    ] {
        let (op, remote) = (AtomicOp::Sum, part(8));
        let atomic = Atomic { peer, remote, datatype, op, operands, level, context: 0 };
        world.endpoint(0).atomic(atomic).unwrap();
        world.drive();
    }
    // A read is answered by an EOR, a refused read by a READ_NACK.
    let source = world.ends[0].endpoint.queue_pair();
    let region = source.register(vec![3; 100_000].into(), access).unwrap();
    let connid = Some(world.ends[0].endpoint.address().connid);
    let keys = if rdma.read { vec![region.remote_key(), 0xbad] } else { vec![] };
    for (i, key) in keys.into_iter().enumerate() {
        world.receive(1, 100_000, 0);
        let iov = [RmaIov::new(region.remote_address(), 100_000, key.into())];
        let kind = RtmKind::LongRead { msg_length: 100_000, send_id: OpId(0), read_iov: &iov };
        let options = ReqOptions { raw_address: None, cq_data: None, connid };
        // Behind 7 messages and 2 atomics.
        let rtm = Rtm { msg_id: MsgId(9 + i as u32), tag: None, kind, options };
        world.inject(0, 1, Header::Rtm(rtm), &[]);
        world.drive();
    }
    [0, 1]
        .into_iter()
        .flat_map(|end| {
            let connid = world.ends[end].endpoint.address().connid;
            world.packets_from(end).into_iter().map(move |bytes| (connid, bytes))
        })
        .collect()
}

// conformance: A191
#[test]
fn peer_that_requests_connids_gets_them_in_every_packet_type() {
    let packets: Vec<_> = [Rdma::NONE, Rdma::READ_WRITE].into_iter().flat_map(all_kinds).collect();
    let mut kinds = std::collections::BTreeSet::new();
    for (connid, bytes) in &packets {
        let packet = Packet::parse(bytes).unwrap();
        assert!(packet.header.raw_address().is_none(), "{packet}");
        assert_eq!(packet.header.connid(), Some(*connid), "{packet}");
        kinds.insert(packet.packet_type().as_u8());
    }
    use PacketType as T;
    for kind in [
        T::EagerMsgRtm,
        T::MediumTagRtm,
        T::LongCtsMsgRtm,
        T::DcEagerMsgRtm,
        T::DcMediumTagRtm,
        T::DcLongCtsMsgRtm,
        T::Cts,
        T::CtsData,
        T::Receipt,
        T::EagerRtw,
        T::LongCtsRtw,
        T::DcEagerRtw,
        T::DcLongCtsRtw,
        T::ShortRtr,
        T::LongCtsRtr,
        T::ReadRsp,
        T::WriteRta,
        T::FetchRta,
        T::AtomRsp,
        T::Eor,
        T::ReadNack,
    ] {
        assert!(kinds.contains(&kind.as_u8()), "no {kind:?}");
    }
}

/// What an endpoint with this configuration answers to the first packet of a peer.
fn first_answer(config: Config) -> Vec<u8> {
    let mut world = World::pair_with(1, Config::default(), config);
    world.receive(1, 1, 0);
    world.send(0, 1, vec![1], 0);
    world.drive();
    world.packets_from(1).swap_remove(0)
}

fn handshake_in(packet: &[u8]) -> Handshake<'_> {
    match Packet::parse(packet).unwrap().header {
        Header::Handshake(handshake) => handshake,
        other => panic!("the HANDSHAKE is the answer to the first packet, not {other}"),
    }
}

#[test]
fn host_id_is_announced_by_releases_that_have_it() {
    for (host_id, tells) in [(0x0123_4567_89ab_cdef, true), (0x0123, false), (0, true)] {
        let mut config = Config::default().with(|config| config.host_id = host_id);
        config.profile.host_id = tells;
        let packet = first_answer(config);
        assert_eq!(handshake_in(&packet).host_id, (tells && host_id != 0).then_some(host_id));
    }
}

#[test]
fn memory_of_accelerators_is_announced_by_releases_after_2_6() {
    for (release, tells) in [(Release::V2_6, None), (Release::V2_7, Some(true))] {
        let packet = first_answer(Config::as_release(release));
        assert_eq!(handshake_in(&packet).hmem_p2p, tells, "{release}");
    }
}

/// The peer's program may have read all that it wanted, and not poll again.
#[test]
fn endpoint_whose_handshake_is_not_taken_is_quiet() {
    let long = Duration::from_secs(1_000);
    let mut world = World::pair(1);
    let me = place(&world.ends[0]);
    world.network.delay_completions(me, 2, long).unwrap();
    world.receive(0, 8, 0);
    world.send(1, 0, pattern(8, 0), 0);
    world.idle(Duration::from_millis(50));
    assert_eq!(world.types_from(0), [PacketType::Handshake]);
    assert_eq!(world.endpoint(0).packets_held().sending, 1);
    assert!(world.endpoint(0).is_quiet());
    world.send(0, 1, pattern(8, 0), 0);
    world.idle(Duration::from_millis(50));
    assert!(!world.endpoint(0).is_quiet(), "a message is in flight");
}
