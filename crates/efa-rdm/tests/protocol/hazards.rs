//! What went wrong in libfabric's EFA provider over the years, so that it doesn't here: one test for
//! each of the 29 hazards that were found in its history, in their order.
//!
//! |    | what happened there                                                                |
//! |----|------------------------------------------------------------------------------------|
//! |  1 | A RECEIPT before the device's completions: the operation was freed too early       |
//! |  2 | A RECEIPT left a long-CTS message among those that send data                       |
//! |  3 | Early messages kept the device's receive buffers until there was none              |
//! |  4 | Messages beyond the window of ids were lost                                        |
//! |  5 | The empty LONGCTS after a READ_NACK was completed after its operation              |
//! |  6 | A READ_NACK made the sender forget that it wanted delivery complete                |
//! |  7 | … and the receiver never forgot the message                                        |
//! |  8 | Removing an old address cut off the new one on the same queue pair                 |
//! |  9 | Completions of a queue pair that is gone                                           |
//! | 10 | Part of a one-sided operation was posted, then it failed: ended twice              |
//! | 11 | A peer was removed while a packet to it waited to be sent again                    |
//! | 12 | Two states for one peer: two messages with the same id                             |
//! | 13 | Packets of a forgotten peer made it known anew, at id 0                            |
//! | 14 | An address handle was given back while another peer used it                        |
//! | 15 | A packet that could not be handled was given back twice                            |
//! | 16 | One-sided operations ended after their peer was removed                            |
//! | 17 | The packets of an unexpected message were given back twice                         |
//! | 18 | Closed before the last RECEIPT or EOR was out: the sender waits for ever           |
//! | 19 | Who had no room in the device's queue held up everybody                            |
//! | 20 | Patience with receivers that are not ready was never restored                      |
//! | 21 | Immediate data for a receiver that was not ready; its length and sign              |
//! | 22 | A second HANDSHAKE                                                                 |
//! | 23 | A HANDSHAKE lost because its receiver was not ready; data before it                |
//! | 24 | Immediate data: does it take a receive buffer or not?                              |
//! | 25 | Throwing away an unexpected message of several packets                             |
//! | 26 | Injected bytes were read after the call                                            |
//! | 27 | A HANDSHAKE to a peer that is gone was an error of the application                 |
//! | 28 | Data for the receiver's completion cut to 16 bits                                  |
//! | 29 | One-sided operations on nothing, without memory                                    |
//!
//! Of 19 there is another one in `efa`, of two endpoints in one domain.

use std::time::Duration;

use efa_device::{Access, QueuePair, QueuePairOptions, Rdma, RegionRange, Status};
use efa_handshake::Extras;
use efa_proto::{
    Connid, Cts, ExtraInfo, Handshake, Header, MsgId, OpId, Packet, PacketType, RawAddress,
    ReqOptions, RmaIov, Rtm, RtmKind,
};
use efa_rdm::{
    Config, DropReason, Event, Level, Message, OperationError, Payload, Read, Remote, RemoteWrite,
    RmaKind, Subprotocol, Write,
};
use efa_sim::SoftRegion;
use efa_sim::local::LocalOptions;

use crate::longread::Memory;
use crate::rma::{bytes_of, expose};
use crate::world::{Net, World, pattern, place};

/// Two endpoints that know each other's addresses and features.
fn acquainted<B: Payload<SoftRegion> + std::fmt::Debug>(
    options: LocalOptions,
    configs: [Config; 2],
    byte: impl Fn() -> B,
) -> Net<B> {
    let mut world = Net::new(options);
    for config in configs {
        world.add(config);
    }
    world.acquaint();
    world.receive_into(1, byte(), 0);
    world.send(0, 1, byte(), 0);
    world.drive();
    world.receive_done(1);
    world.send_done(0);
    world.forget_packets();
    world
}

fn pair(seed: u64) -> World {
    let options = LocalOptions::default().with(|options| options.seed = seed);
    acquainted(options, [Config::default(), Config::default()], || vec![1])
}

fn send_at<B: Payload<SoftRegion> + std::fmt::Debug>(
    world: &mut Net<B>,
    level: Level,
    buffer: B,
    context: u64,
) {
    let peer = world.peer(0, 1);
    let message = Message { peer, tag: None, cq_data: None, level, buffer, context };
    world.endpoint(0).send(message).unwrap();
}

/// Time passes while everybody polls, whatever is under way.
fn pass<B: Payload<SoftRegion> + std::fmt::Debug>(world: &mut Net<B>, span: Duration) {
    let end = world.now + span;
    while world.now < end {
        let next = world.now + Duration::from_micros(1);
        world.step();
        world.now = next;
    }
}

fn count<B: Payload<SoftRegion> + std::fmt::Debug>(
    world: &mut Net<B>,
    from: usize,
    wanted: PacketType,
) -> usize {
    world.types_from(from).into_iter().filter(|of| *of == wanted).count()
}

const SECOND: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(1);

#[test]
fn hazard_01_receipt_before_device_completions_does_not_complete_the_send() {
    for length in [10, 30_000] {
        for answers_late in [true, false] {
            let mut world = pair(1);
            let me = place(&world.ends[0]);
            let packets = if length == 10 { 1 } else { 4 };
            if answers_late {
                world.network.delay_completions(me, packets, SECOND).unwrap();
            }
            world.receive(1, length, 1);
            send_at(&mut world, Level::Delivery, pattern(length, 1), 1);
            pass(&mut world, SOON);
            assert_eq!(world.endpoint(0).statistics().received.of(PacketType::Receipt), 1);
            assert_eq!(world.take_sends(0).len(), usize::from(!answers_late));
            // Another message, for which no receive is posted. Were the first forgotten already,
            // this one would be taken for it when the device's completions come.
            world.network.delay_completions(me, packets, 2 * SECOND).unwrap();
            send_at(&mut world, Level::Delivery, pattern(length, 2), 2);
            pass(&mut world, SOON);
            world.idle(SECOND);
            let ended = world.take_sends(0);
            assert_eq!(ended.len(), usize::from(answers_late), "after both");
            assert!(ended.iter().all(|send| (send.context, send.result) == (1, Ok(()))));
            world.receive_done(1);
            world.receive(1, length, 3);
            world.drive();
            assert_eq!(world.receive_done(1).buffer, pattern(length, 2));
            assert_eq!(world.send_done(0).context, 2);
            assert_eq!(world.endpoint(0).packets_held().sending, 0);
            world.assert_clean();
        }
    }
}

#[test]
fn hazard_02_long_cts_message_sends_no_data_after_its_receipt() {
    let mut world = pair(2);
    world.receive(1, 700_000, 1);
    send_at(&mut world, Level::Delivery, pattern(700_000, 1), 1);
    world.drive();
    assert_eq!(world.send_done(0).result, Ok(()));
    assert_eq!(count(&mut world, 1, PacketType::Receipt), 1);
    let grants: Vec<Cts> = world
        .packets_from(1)
        .iter()
        .filter_map(|packet| match Packet::parse(packet).unwrap().header {
            Header::Cts(cts) => Some(cts),
            _ => None,
        })
        .collect();
    assert!(grants.len() > 2);
    assert!(world.endpoint(0).is_quiet());
    // A grant of old doesn't wake it, and a new message in its place sends all of its own data.
    world.receive_done(1);
    world.forget_packets();
    send_at(&mut world, Level::Delivery, pattern(700_000, 2), 2);
    for cts in &grants {
        world.inject(1, 0, Header::Cts(*cts), &[]);
    }
    world.drive();
    assert_eq!(world.drop_reasons(0), vec![DropReason::UnknownOperation; grants.len()]);
    assert_eq!(count(&mut world, 0, PacketType::CtsData), 0);
    world.receive(1, 700_000, 2);
    world.drive();
    assert!(world.receive_done(1).buffer == pattern(700_000, 2));
    assert_eq!(world.send_done(0).context, 2);
}

#[test]
fn hazard_03_out_of_order_messages_keep_no_posted_receive_buffers() {
    let mut world = World::new(LocalOptions::default().with(|options| options.seed = 3));
    // The first packet that finds no buffer comes back.
    let options = QueuePairOptions::default().with(|options| {
        options.receive_depth = 16;
        options.rnr_retry = 0;
    });
    for _ in 0..2 {
        world.add_with(Config::default(), options);
    }
    world.acquaint();
    let me = place(&world.ends[0]);
    world.network.delay_sends(me, 1, SECOND).unwrap();
    for i in 0..500 {
        world.receive(1, 100, i);
        world.send(0, 1, pattern(100, i), i);
        if i % 8 == 7 {
            pass(&mut world, Duration::from_micros(40));
        }
    }
    pass(&mut world, SOON);
    assert!(world.take_receives(1).is_empty(), "all wait for the first");
    let held = world.endpoint(1).packets_held();
    assert_eq!((held.held, held.posted), (499, 16));
    assert_eq!(world.network.statistics().receiver_not_ready, 0);
    world.drive();
    let received = world.take_receives(1);
    assert_eq!(received.len(), 500);
    assert!(received.iter().all(|of| of.buffer == pattern(100, of.context)));
    world.take_sends(0);
    world.assert_clean();
}

#[test]
fn hazard_04_messages_far_ahead_of_the_expected_one_are_kept() {
    // Farther than the largest window of any release.
    const COUNT: u64 = 16_384 + 100;
    let config = Config::default().with(|config| {
        config.max_sends = 1 << 20;
        config.old_peer_window = 0;
    });
    let mut world = acquainted(LocalOptions::default(), [config.clone(), config], || vec![1]);
    let me = place(&world.ends[0]);
    world.network.delay_sends(me, 1, 60 * SECOND).unwrap();
    for i in 0..COUNT {
        world.send(0, 1, i.to_le_bytes().to_vec(), i);
        if i % 512 == 511 {
            pass(&mut world, Duration::from_micros(50));
            world.forget_packets();
        }
    }
    pass(&mut world, SOON);
    assert_eq!(world.endpoint(1).packets_held().held as u64, COUNT - 1);
    world.drive();
    for i in 0..COUNT {
        world.receive(1, 8, i);
        let received = world.receive_done(1);
        assert_eq!((received.context, received.buffer), (i, i.to_le_bytes().to_vec()));
    }
    world.take_sends(0);
    world.assert_clean();
}

/// Two endpoints that read messages from 100,000 bytes on; the second can register no memory, and
/// so refuses.
fn refusing(level: Level, seed: u64) -> Net<Memory> {
    let config = Config::default().with(|config| config.min_read = 100_000);
    let options = LocalOptions::default().with(|options| options.seed = seed);
    let mut world = acquainted(options, [config.clone(), config], || Memory::Heap(vec![1]));
    world.ends[1].device.refuse_registrations(u32::MAX);
    world.receive_into(1, Memory::Heap(vec![0; 300_000]), 1);
    let message = registered(&world, 0, pattern(300_000, seed), true);
    send_at(&mut world, level, message, 1);
    world
}

/// A buffer that is all of a region.
fn registered<B: Payload<SoftRegion> + std::fmt::Debug>(
    world: &Net<B>,
    end: usize,
    bytes: Vec<u8>,
    remote: bool,
) -> Memory {
    let length = bytes.len();
    let access = Access { remote_read: remote, remote_write: remote };
    let region = world.ends[end].endpoint.queue_pair().register(bytes.into(), access).unwrap();
    Memory::Region(RegionRange { region, offset: 0, length })
}

/// The request that followed a READ_NACK, and its message id.
fn after_the_refusal(world: &mut Net<Memory>) -> (PacketType, MsgId) {
    let packets = world.packets_from(0);
    let found = packets.iter().find_map(|bytes| {
        let packet = Packet::parse(bytes).unwrap();
        let Header::Rtm(rtm) = packet.header else { return None };
        let refused = match rtm.kind {
            RtmKind::LongCts { read_nack, .. } | RtmKind::DcLongCts { read_nack, .. } => read_nack,
            _ => false,
        };
        if refused {
            assert!(packet.payload.is_empty());
        }
        refused.then_some((rtm.packet_type(), rtm.msg_id))
    });
    found.expect("the message goes on")
}

#[test]
fn hazard_05_long_cts_request_after_read_nack_may_complete_late() {
    for level in [Level::Transmit, Level::Delivery] {
        let mut world = refusing(level, 5);
        let me = place(&world.ends[0]);
        while count(&mut world, 1, PacketType::ReadNack) == 0 {
            pass(&mut world, Duration::from_micros(1));
        }
        world.network.delay_completions(me, 1, SECOND).unwrap();
        pass(&mut world, 10 * SOON);
        after_the_refusal(&mut world);
        assert!(world.receive_done(1).buffer.bytes() == pattern(300_000, 5));
        // All is there. Others begin and end before the device has completed that request.
        for i in 0..20 {
            world.receive_into(1, Memory::Heap(vec![0; 10]), i);
            send_at(&mut world, level, Memory::Heap(pattern(10, i)), 100 + i);
            pass(&mut world, SOON);
        }
        world.drive();
        let mut contexts: Vec<_> = world
            .take_sends(0)
            .into_iter()
            .map(|send| {
                assert_eq!(send.result, Ok(()));
                send.context
            })
            .collect();
        contexts.sort_unstable();
        assert_eq!(contexts, [1].into_iter().chain(100..120).collect::<Vec<_>>(), "each once");
        assert_eq!(world.take_receives(1).len(), 20);
        world.assert_clean();
    }
}

#[test]
fn hazard_06_delivery_complete_stays_in_force_after_read_nack() {
    let mut world = refusing(Level::Delivery, 6);
    // The RECEIPT takes long.
    let other = place(&world.ends[1]);
    while world.ends[1].receives.is_empty() {
        world.step();
        if world.ends[1].endpoint.statistics().sent.of(PacketType::Cts) > 0 {
            world.network.delay_sends(other, 8, SECOND).unwrap();
        }
    }
    assert!(world.receive_done(1).buffer.bytes() == pattern(300_000, 6));
    pass(&mut world, 10 * SOON);
    assert_eq!(world.endpoint(0).packets_held().sending, 0, "all data has arrived");
    assert!(world.take_sends(0).is_empty(), "nothing tells the sender that it is delivered");
    world.drive();
    assert_eq!(world.send_done(0).result, Ok(()));
    assert_eq!(after_the_refusal(&mut world), (PacketType::DcLongCtsMsgRtm, MsgId(1)));
    assert_eq!(count(&mut world, 1, PacketType::Receipt), 1);
    world.assert_clean();
}

#[test]
fn hazard_07_nacked_message_is_forgotten_once_complete() {
    for level in [Level::Transmit, Level::Delivery] {
        let mut world = refusing(level, 7);
        world.drive();
        world.receive_done(1);
        assert_eq!(world.send_done(0).result, Ok(()));
        // The request that went on with it finds it no more.
        let connid = Some(world.endpoint(0).address().connid);
        let options = ReqOptions { connid, ..ReqOptions::NONE };
        let (msg_length, send_id, credit_request, read_nack) = (300_000, OpId(0), 32, true);
        let kind = match level {
            Level::Transmit => RtmKind::LongCts { msg_length, send_id, credit_request, read_nack },
            Level::Delivery => {
                RtmKind::DcLongCts { msg_length, send_id, credit_request, read_nack }
            }
        };
        let again = Rtm { msg_id: MsgId(1), tag: None, kind, options };
        world.inject(0, 1, Header::Rtm(again), &[]);
        world.drive();
        assert_eq!(world.drop_reasons(1).last(), Some(&DropReason::UnknownOperation));
    }
}

#[test]
fn hazard_08_removing_an_old_address_keeps_the_new_one() {
    let mut world = World::pair(8);
    let own = world.endpoint(0).address();
    let old = RawAddress { connid: Connid(0x5555), ..own };
    let before = world.endpoint(1).insert_peer(old).unwrap();
    let now = world.endpoint(1).insert_peer(own).unwrap();
    assert_ne!(before, now);
    for round in 0..2 {
        for _ in 0..2 {
            world.receive(1, 10, 0);
            world.send(0, 1, pattern(10, round), 0);
            world.receive(0, 10, 0);
            let message = Message {
                peer: now,
                tag: None,
                cq_data: None,
                level: Level::Transmit,
                buffer: pattern(10, round),
                context: 0,
            };
            world.endpoint(1).send(message).unwrap();
            world.drive();
            assert_eq!(world.receive_done(1).peer, Some(now));
            assert_eq!(world.receive_done(0).buffer, pattern(10, round));
            world.send_done(0);
            world.send_done(1);
        }
        world.endpoint(1).remove_peer(before);
        assert_eq!(world.endpoint(1).find_peer(&own), Some(now));
        assert_eq!(world.endpoint(1).find_peer(&old), None);
    }
    world.assert_clean();
}

#[test]
fn hazard_09_completions_of_a_closed_queue_pair_are_ignored() {
    let mut world = pair(9);
    let me = place(&world.ends[0]);
    world.network.delay_completions(me, 10, SECOND).unwrap();
    for i in 0..10 {
        world.receive(1, 10, i);
        world.send(0, 1, pattern(10, i), i);
    }
    pass(&mut world, SOON);
    world.restart(0, 0x7777, Config::default());
    // The work of the new endpoint has the same names, and is completed later still.
    world.network.delay_completions(me, 10, 3 * SECOND).unwrap();
    for i in 0..10 {
        world.receive(1, 10, 20 + i);
        world.send(0, 1, pattern(10, i), 20 + i);
    }
    pass(&mut world, SOON);
    world.idle(2 * SECOND);
    assert!(world.take_sends(0).is_empty(), "the old completions came, and not for these");
    world.drive();
    assert_eq!(world.take_sends(0).iter().filter(|send| send.context >= 20).count(), 10);
    let statistics = world.endpoint(0).statistics();
    assert_eq!((statistics.send_errors, statistics.dropped), (0, 0));
    assert!(world.ends[0].events.iter().all(|of| matches!(of, Event::PeerDiscovered(_))));
    assert_eq!(world.take_receives(1).len(), 20);
}

/// Starts to move 40,000 bytes from or to a buffer of the device's.
fn start(world: &mut Net<Memory>, kind: RmaKind, pieces: &[RmaIov], context: u64) {
    let peer = world.peer(0, 1);
    let remote = Remote::new(pieces).unwrap();
    let length: u64 = pieces.iter().map(RmaIov::len).sum();
    let buffer = registered(world, 0, pattern(length as usize, context), false);
    let (cq_data, level) = (None, Level::Transmit);
    match kind {
        RmaKind::Write => {
            let write = Write { peer, remote, buffer, cq_data, level, context };
            world.endpoint(0).write(write).unwrap();
        }
        RmaKind::Read => {
            world.endpoint(0).read(Read { peer, remote, buffer, context }).unwrap();
        }
    }
}

const BOTH: Access = Access { remote_read: true, remote_write: true };

#[test]
fn hazard_10_partly_posted_rma_operation_that_fails_completes_once() {
    for kind in [RmaKind::Write, RmaKind::Read] {
        for (trouble, expected) in [
            ("a bad piece", Err(OperationError::Device(Status::RemoteBadAddress))),
            ("a failed post", Err(OperationError::Device(Status::BadLocalKey))),
            ("a full queue", Ok(())),
        ] {
            let options = LocalOptions::default().with(|options| {
                options.seed = 10;
                options.max_rdma_size = 4096;
            });
            let config = Config::default().with(|config| config.max_rdma = 4);
            let configs = [config.clone(), config];
            let mut world = acquainted(options, configs, || Memory::Heap(vec![1]));
            let (_region, iov) = expose(&world, 1, vec![7; 40_000], BOTH);
            let me = place(&world.ends[0]);
            let mut pieces =
                [0, 20_000].map(|offset| RmaIov::new(iov.addr() + offset, 20_000, iov.key()));
            if trouble == "a bad piece" {
                pieces[1] = RmaIov::new(iov.addr() + 20_000, 20_000, iov.key() + 1);
            }
            start(&mut world, kind, &pieces, 1);
            let posted = |world: &mut Net<Memory>| {
                let statistics = world.endpoint(0).statistics();
                statistics.rdma_writes + statistics.rdma_reads
            };
            while posted(&mut world) < 4 {
                world.step();
            }
            match trouble {
                "a failed post" => {
                    world.network.fail_sends(me, 1, Status::BadLocalKey).unwrap();
                }
                "a full queue" => world.network.refuse_sends(me, 7).unwrap(),
                _ => {}
            }
            while world.ends[0].rma.is_empty() {
                world.step();
            }
            assert!(world.endpoint(0).is_quiet(), "{trouble}: the device has given all back");
            // Another takes its place among the operations.
            start(&mut world, kind, &[iov], 2);
            world.drive();
            let ended: Vec<_> =
                world.ends[0].rma.drain(..).map(|done| (done.context, done.result)).collect();
            assert_eq!(ended, [(1, expected), (2, Ok(()))], "{kind:?}, {trouble}");
            assert!(world.ends[0].events.is_empty(), "the peer is still there");
        }
    }
}

#[test]
fn hazard_11_peer_is_removed_while_packets_await_retransmission() {
    // While they wait, and while they are on their way once more.
    for (seed, on_their_way) in [(11, false), (12, true)] {
        let mut world = World::pair(seed);
        let target = place(&world.ends[1]);
        world.network.not_ready(target, u32::MAX).unwrap();
        // Another peer of that interface, so that its address handle stays.
        let neighbour = RawAddress { qpn: 77, ..world.endpoint(1).address() };
        world.endpoint(0).insert_peer(neighbour).unwrap();
        world.send(0, 1, pattern(10, 1), 1);
        world.send(0, 1, pattern(30_000, 2), 2);
        let peer = world.peer(0, 1);
        let (tag, cq_data, level) = (None, None, Level::Transmit);
        let injected = Message { peer, tag, cq_data, level, buffer: &[3; 10][..], context: 0 };
        world.endpoint(0).inject(injected).unwrap();
        let wanted = |world: &mut World| {
            let statistics = world.endpoint(0).statistics();
            match on_their_way {
                true => statistics.retransmitted > 0,
                false => statistics.receiver_not_ready == 6 + statistics.retransmitted,
            }
        };
        while !wanted(&mut world) {
            world.step();
        }
        assert_eq!(world.endpoint(0).packets_held().sending > 0, on_their_way);
        world.endpoint(0).remove_peer(peer);
        world.drive();
        let mut ended: Vec<_> =
            world.take_sends(0).iter().map(|of| (of.context, of.result.is_err())).collect();
        ended.sort_unstable();
        assert_eq!(ended, [(0, true), (1, true), (2, true)], "each once");
        assert!(world.endpoint(0).is_quiet());
        assert_eq!(world.endpoint(0).packets_held().sending, 0);
        // Nothing of it arrived: the peers begin anew.
        world.network.not_ready(target, 0).unwrap();
        world.receive(1, 10, 4);
        world.send(0, 1, pattern(10, 4), 4);
        world.drive();
        assert_eq!(world.receive_done(1).buffer, pattern(10, 4));
        world.send_done(0);
        world.assert_clean();
    }
}

/// The ids of the messages that an endpoint has sent.
fn message_ids(world: &mut World, from: usize) -> Vec<u32> {
    let packets = world.packets_from(from);
    let ids = packets.iter().filter_map(|packet| match Packet::parse(packet).unwrap().header {
        Header::Rtm(rtm) => Some(rtm.msg_id.0),
        _ => None,
    });
    ids.collect()
}

#[test]
fn hazard_12_peer_has_one_state_however_it_becomes_known() {
    for seed in 0..20 {
        // Each inserts the other while the other's packets make it known.
        let mut world = World::pair(seed);
        for i in 0..10 {
            for (from, to) in [(0, 1), (1, 0)] {
                world.receive(to, 10, i);
                let address = world.endpoint(to).address();
                let first = world.endpoint(from).insert_peer(address).unwrap();
                assert_eq!(world.endpoint(from).insert_peer(address), Ok(first));
                assert_eq!(first.index(), 0);
                world.send(from, to, pattern(10, i), i);
            }
            world.step();
        }
        world.drive();
        for end in 0..2 {
            let mut ids = message_ids(&mut world, end);
            ids.sort_unstable();
            assert_eq!(ids, (0..10).collect::<Vec<_>>(), "each id once");
            for i in 0..10 {
                assert_eq!(world.receive_done(end).buffer, pattern(10, i));
            }
            world.take_sends(end);
        }
        world.assert_clean();
    }
}

#[test]
fn hazard_13_packets_of_a_removed_peer_do_not_discover_it_again() {
    for knows_us in [true, false] {
        let mut world = World::pair(13);
        let sender = place(&world.ends[0]);
        if !knows_us {
            // It never gets a HANDSHAKE, so that its requests go on to introduce it.
            world.network.not_ready(sender, u32::MAX).unwrap();
        }
        for i in 0..3 {
            world.receive(1, 10, i);
            world.send(0, 1, pattern(10, i), i);
        }
        pass(&mut world, SOON);
        let address = world.endpoint(0).address();
        let peer = world.endpoint(1).find_peer(&address).unwrap();
        assert_eq!(world.take_receives(1).len(), 3);
        world.endpoint(1).remove_peer(peer);
        world.ends[1].events.clear();
        world.forget_packets();
        for i in 0..3 {
            world.receive(1, 10, i);
            world.send(0, 1, pattern(10, i), i);
        }
        pass(&mut world, SOON);
        assert_eq!(world.drop_reasons(1), [DropReason::Stale; 3]);
        assert_eq!(world.endpoint(1).find_peer(&address), None);
        assert!(world.take_receives(1).is_empty());
        assert!(world.packets_from(1).is_empty(), "not even a HANDSHAKE");
        let introduced = world.packets_from(0).iter().all(|packet| {
            Packet::parse(packet).unwrap().header.raw_address().is_some() != knows_us
        });
        assert!(introduced);
    }
}

#[test]
fn hazard_14_address_handle_is_kept_while_a_peer_uses_it() {
    let options = LocalOptions::default().with(|options| {
        options.seed = 14;
        options.max_address_handles = 1;
    });
    let configs = [Config::default(), Config::default()];
    let mut world: World = acquainted(options, configs, || vec![1]);
    world.add(Config::default());
    // Another queue pair of the same interface, which doesn't exist: sends to it fail.
    let other = RawAddress { qpn: 77, ..world.endpoint(1).address() };
    for round in 0..3_u64 {
        let neighbour = world.endpoint(0).insert_peer(other).unwrap();
        let (tag, cq_data, level) = (None, None, Level::Transmit);
        let message =
            Message { peer: neighbour, tag, cq_data, level, buffer: pattern(10, 9), context: 9 };
        if round > 0 {
            world.endpoint(0).send(message).unwrap();
        }
        world.send(0, 1, pattern(30_000, round), round);
        // Once by hand, once while a packet to it is under way, once because it isn't there.
        if round < 2 {
            world.endpoint(0).remove_peer(neighbour);
        }
        world.receive(1, 30_000, round);
        world.drive();
        assert_eq!(world.receive_done(1).buffer, pattern(30_000, round));
        let sends = world.take_sends(0);
        assert_eq!(sends.iter().filter(|of| of.result == Ok(())).count(), 1);
        assert_eq!(sends.len(), if round > 0 { 2 } else { 1 });
    }
    // Nobody uses it any more: there is room for the third host.
    let third = world.endpoint(2).address();
    assert!(world.endpoint(0).insert_peer(third).is_err());
    let last = world.peer(0, 1);
    world.endpoint(0).remove_peer(last);
    world.receive(2, 10, 5);
    world.send(0, 2, pattern(10, 5), 5);
    world.drive();
    assert_eq!(world.receive_done(2).buffer, pattern(10, 5));
}

#[test]
fn hazard_15_undeliverable_packet_is_released_once() {
    let mut world = World::new(LocalOptions::default().with(|options| options.seed = 15));
    let options = QueuePairOptions::default().with(|options| options.receive_depth = 8);
    for _ in 0..2 {
        world.add_with(Config::default(), options);
    }
    world.acquaint();
    let (send_id, credit_request, read_nack, seg_offset) = (OpId(0), 32, false, 90);
    let iov = [RmaIov::new(0, 9, 1)];
    let kinds = [
        RtmKind::Medium { msg_length: 99, seg_offset },
        RtmKind::DcMedium { send_id, msg_length: 99, seg_offset },
        RtmKind::LongCts { msg_length: 9, send_id, credit_request, read_nack },
        RtmKind::LongRead { msg_length: 10, send_id, read_iov: &iov },
        RtmKind::RuntRead { msg_length: 9, send_id, seg_offset, runt_length: 9, read_iov: &iov },
    ];
    // Those that come before their turn are kept first.
    for first in [0, 1] {
        for (i, kind) in kinds.into_iter().enumerate() {
            for posted in [true, false] {
                let receive = posted.then(|| world.receive(1, 100, 1));
                let msg_id = MsgId(first + 2 * i as u32);
                let rtm = Rtm { msg_id, tag: None, kind, options: ReqOptions::NONE };
                world.inject(0, 1, Header::Rtm(rtm), &[0; 10]);
                world.drive();
                assert!(world.take_receives(1).is_empty(), "{kind:?}");
                assert_eq!(world.drop_reasons(1), [DropReason::SegmentOutOfRange], "{kind:?}");
                if let Some(receive) = receive {
                    assert!(world.endpoint(1).cancel(receive));
                    world.receive_done(1);
                }
                let after = world.endpoint(1).packets_held();
                assert_eq!((after.posted + after.receive_pool, after.held), (8, 0));
            }
        }
    }
    // A message with a segment that contradicts it: that one alone is lost.
    let medium = |msg_length, seg_offset, payload: &[u8], world: &mut World| {
        let kind = RtmKind::Medium { msg_length, seg_offset };
        let rtm = Rtm { msg_id: MsgId(0), tag: None, kind, options: ReqOptions::NONE };
        world.inject(0, 1, Header::Rtm(rtm), payload);
        world.drive();
    };
    medium(20, 0, &[1; 10], &mut world);
    medium(25, 10, &[2; 10], &mut world);
    world.receive(1, 100, 1);
    medium(20, 5, &[3; 10], &mut world);
    assert_eq!(world.drop_reasons(1).len(), 2);
    medium(20, 10, &[4; 10], &mut world);
    let received = world.receive_done(1);
    assert_eq!(received.buffer[..20], [[1; 10], [4; 10]].concat());
    assert_eq!(world.endpoint(1).packets_held().held, 0);
}

#[test]
fn hazard_16_rma_operations_of_a_removed_peer_complete_once() {
    let configs = [Config::default(), Config::default()];
    let mut world = acquainted(LocalOptions::default(), configs, || Memory::Heap(vec![1]));
    let (region, iov) = expose(&world, 1, vec![7; 10_000], BOTH);
    let me = place(&world.ends[0]);
    world.network.delay_sends(me, 2, SECOND).unwrap();
    start(&mut world, RmaKind::Write, &[iov], 1);
    start(&mut world, RmaKind::Read, &[iov], 2);
    // One that no peer is removed from: of this endpoint's own memory.
    let (_own, own_iov) = expose(&world, 0, pattern(10_000, 3), BOTH);
    let own = world.peer(0, 0);
    let remote = Remote::from(own_iov);
    let buffer = registered(&world, 0, vec![0; 10_000], false);
    world.endpoint(0).read(Read { peer: own, remote, buffer, context: 3 }).unwrap();
    pass(&mut world, Duration::from_micros(1));
    let peer = world.peer(0, 1);
    world.endpoint(0).remove_peer(peer);
    pass(&mut world, 10 * SOON);
    let done = world.ends[0].rma.pop_front().unwrap();
    assert_eq!((done.context, done.result), (3, Ok(())));
    assert!(done.buffer.bytes() == pattern(10_000, 3));
    // The device still has the others, and may write to the buffer of the read.
    assert!(world.ends[0].rma.is_empty());
    assert!(!world.endpoint(0).is_quiet());
    world.drive();
    let mut ended: Vec<_> =
        world.ends[0].rma.drain(..).map(|done| (done.context, done.result)).collect();
    ended.sort_unstable_by_key(|(context, _)| *context);
    let removed = Err(OperationError::PeerRemoved);
    assert_eq!(ended, [(1, removed), (2, removed)], "each once");
    assert_eq!(bytes_of(&region), pattern(10_000, 1), "what was under way");
    assert!(world.endpoint(0).is_quiet());
}

#[test]
fn hazard_17_packets_of_unexpected_messages_are_released_once() {
    for seed in 0..10 {
        let mut world = World::new(LocalOptions::default().with(|options| options.seed = seed));
        for _ in 0..3 {
            world.add(Config::default());
        }
        // Packets of two senders, mixed.
        let both = |world: &mut World, salt: u64| {
            for from in [0, 2] {
                world.send(from, 1, pattern(30_000, salt + from as u64), 1);
            }
            world.drive();
        };
        let receive = |world: &mut World, salt: u64, expected: usize| {
            for _ in 0..expected {
                world.receive(1, 30_000, 1);
                let received = world.receive_done(1);
                let from = if received.peer == Some(world.peer(1, 0)) { 0 } else { 2 };
                assert_eq!(received.result, Ok(()));
                assert!(received.buffer == pattern(30_000, salt + from));
            }
            assert_eq!(world.endpoint(1).packets_held().held, 0);
        };
        both(&mut world, 10);
        assert_eq!(world.endpoint(1).packets_held().held, 8);
        receive(&mut world, 10, 2);
        // Again, with a packet that doesn't belong to the others, and one sender that goes before
        // its message is whole.
        let kind = RtmKind::Medium { msg_length: 40_000, seg_offset: 0 };
        let options =
            ReqOptions { connid: Some(world.endpoint(0).address().connid), ..ReqOptions::NONE };
        let begin = Rtm { msg_id: MsgId(1), tag: None, kind, options };
        world.inject(0, 1, Header::Rtm(begin), &[9; 5000]);
        let kind = RtmKind::Medium { msg_length: 30_000, seg_offset: 0 };
        world.inject(0, 1, Header::Rtm(Rtm { kind, ..begin }), &[9; 5000]);
        world.send(2, 1, pattern(30_000, 22), 1);
        world.drive();
        assert_eq!(world.endpoint(1).packets_held().held, 6);
        let gone = world.peer(1, 0);
        world.endpoint(1).remove_peer(gone);
        assert_eq!(world.endpoint(1).packets_held().held, 4);
        receive(&mut world, 20, 1);
        world.send(2, 1, pattern(30_000, 32), 1);
        world.drive();
        receive(&mut world, 30, 1);
    }
}

#[test]
fn hazard_18_endpoint_with_a_queued_response_is_not_quiet() {
    for packet in [PacketType::Receipt, PacketType::Eor] {
        let config = Config::default().with(|config| config.min_read = 100_000);
        let configs = [config.clone(), config];
        let mut world = acquainted(LocalOptions::default(), configs, || Memory::Heap(vec![1]));
        let length = if packet == PacketType::Eor { 100_000 } else { 10 };
        world.receive_into(1, Memory::Heap(vec![0; length]), 1);
        let message = registered(&world, 0, pattern(length, 18), true);
        send_at(&mut world, Level::Delivery, message, 1);
        // The receiver has it, but its device takes nothing more.
        let target = place(&world.ends[1]);
        while packet == PacketType::Eor && world.endpoint(1).statistics().rdma_reads == 0 {
            world.step();
        }
        world.network.refuse_sends(target, u32::MAX).unwrap();
        while world.ends[1].receives.is_empty() {
            world.step();
        }
        pass(&mut world, SOON);
        assert_eq!(world.receive_done(1).result, Ok(()), "{packet}");
        assert_eq!(count(&mut world, 1, packet), 0);
        assert!(!world.endpoint(1).is_quiet(), "{packet} is owed");
        world.network.refuse_sends(target, 0).unwrap();
        while !world.endpoint(1).is_quiet() {
            let now = world.now;
            world.endpoint(1).progress(now);
            world.now = now + Duration::from_micros(1);
        }
        world.network.kill(target).unwrap();
        world.drive();
        assert_eq!(world.send_done(0).result, Ok(()), "{packet} came before it left");
    }
}

#[test]
fn hazard_19_endpoint_with_full_send_queue_delays_no_other() {
    let mut world = World::new(LocalOptions::default().with(|options| options.seed = 19));
    for _ in 0..3 {
        world.add(Config::default());
    }
    let stuck = place(&world.ends[0]);
    world.network.refuse_sends(stuck, u32::MAX).unwrap();
    for i in 0..100 {
        world.send(0, 1, pattern(10, i), i);
        world.receive(1, 200_000, i);
        world.send(2, 1, pattern(200_000, i), i);
    }
    pass(&mut world, 20 * SOON);
    assert_eq!(world.take_receives(1).len(), 100);
    assert_eq!(world.take_sends(2).len(), 100);
    assert!(world.take_sends(0).is_empty());
    // It can still receive, and goes on as soon as there is room.
    world.receive(0, 10, 1);
    world.send(2, 0, pattern(10, 1), 1);
    pass(&mut world, SOON);
    assert_eq!(world.receive_done(0).buffer, pattern(10, 1));
    world.network.refuse_sends(stuck, 0).unwrap();
    for i in 0..100 {
        world.receive(1, 10, i);
    }
    world.drive();
    assert_eq!(world.take_receives(1).len(), 100);
}

#[test]
fn hazard_20_rnr_backoff_is_reset_when_a_packet_arrives() {
    let mut world = World::new(LocalOptions::default().with(|options| options.seed = 20));
    let options = QueuePairOptions::default().with(|options| options.rnr_retry = 0);
    for _ in 0..2 {
        world.add_with(Config::default(), options);
    }
    let target = place(&world.ends[1]);
    let took = |times: u32| {
        world.network.not_ready(target, times).unwrap();
        let start = world.now;
        world.receive(1, 10, 1);
        world.send(0, 1, pattern(10, 1), 1);
        while world.ends[1].receives.is_empty() {
            world.step();
        }
        world.drive();
        world.receive_done(1);
        world.now - start
    };
    assert_patience(took);
}

/// What finds its receiver not ready for so many times takes 80 µs, 160, 320, … after the first that is sent
/// again at once, each time anew.
fn assert_patience(mut took: impl FnMut(u32) -> Duration) {
    let micros = Duration::from_micros;
    assert!(took(9) > micros(80 * 255));
    for _ in 0..5 {
        let once = took(2);
        assert!(once > micros(80) && once < micros(80 + 200), "{once:?}");
    }
}

#[test]
fn hazard_21_immediate_data_is_sent_again_after_rnr_unchanged() {
    let rdma = Rdma { unsolicited_write_receive: false, ..Rdma::READ_WRITE };
    let mut world = World::new(LocalOptions::default().with(|options| {
        options.seed = 21;
        options.rdma = rdma;
    }));
    let options = QueuePairOptions::default().with(|options| options.rnr_retry = 0);
    for _ in 0..2 {
        world.add_with(Config::default(), options);
    }
    world.acquaint();
    let (region, iov) = expose(&world, 1, vec![0; 777], BOTH);
    let (peer, back) = (world.peer(0, 1), world.peer(1, 0));
    let target = place(&world.ends[1]);
    for cq_data in [0xffff_fff0, 0x8000_0000, 0x7fff_ffff, 0] {
        let buffer = pattern(777, cq_data);
        let (remote, level) = (Remote::from(iov), Level::Transmit);
        let write = Write { peer, remote, buffer, cq_data: Some(cq_data), level, context: 1 };
        world.endpoint(0).write(write).unwrap();
        if cq_data != 0xffff_fff0 {
            world.network.not_ready(target, 3).unwrap();
        }
        world.drive();
        let done = world.ends[0].rma.pop_front().unwrap();
        assert_eq!((done.result, done.subprotocol), (Ok(()), Some(Subprotocol::Direct)));
        let told: Vec<_> = world.ends[1].remote_writes.drain(..).collect();
        assert_eq!(told, [RemoteWrite { peer: Some(back), cq_data, length: 777 }]);
        assert_eq!(bytes_of(&region), pattern(777, cq_data));
    }
    assert_eq!(world.network.statistics().receiver_not_ready, 9);
    assert!(world.ends[0].events.is_empty(), "and nobody is lost");
    // The patience is that of packets.
    let took = |times: u32| {
        world.network.not_ready(target, times).unwrap();
        let (start, remote, level) = (world.now, Remote::from(iov), Level::Transmit);
        let buffer = pattern(777, 1);
        let write = Write { peer, remote, buffer, cq_data: Some(1), level, context: 1 };
        world.endpoint(0).write(write).unwrap();
        while world.ends[0].rma.is_empty() {
            world.step();
        }
        assert_eq!(world.ends[0].rma.pop_front().unwrap().result, Ok(()));
        world.now - start
    };
    assert_patience(took);
}

fn handshake(extras: Extras) -> Header<'static> {
    let words: &'static [u64] = vec![extras.bits()].leak();
    Header::Handshake(Handshake {
        extra_info: ExtraInfo::new(words).unwrap(),
        connid: None,
        host_id: None,
        device_version: None,
        user_recv_qp: None,
    })
}

#[test]
fn hazard_22_second_handshake_is_accepted_and_not_answered() {
    let mut world = pair(22);
    let peer = world.peer(0, 1);
    world.send(0, 1, pattern(300_000, 1), 1);
    send_at(&mut world, Level::Delivery, pattern(30_000, 2), 2);
    // The same again, and one that takes something back, while messages are under way.
    let known = world.endpoint(0).peer_extras(peer).unwrap();
    let without = known - Extras::DELIVERY_COMPLETE;
    for extras in [known, known, without] {
        world.inject(1, 0, handshake(extras), &[]);
        pass(&mut world, Duration::from_micros(40));
        assert_eq!(world.endpoint(0).peer_extras(peer), Some(extras));
    }
    world.receive(1, 300_000, 1);
    world.receive(1, 30_000, 2);
    world.drive();
    let received = world.take_receives(1);
    for received in &received {
        assert!(received.buffer == pattern(received.buffer.len(), received.context));
    }
    assert_eq!((received.len(), world.take_sends(0).len()), (2, 2), "begun is begun");
    send_at(&mut world, Level::Delivery, pattern(10, 3), 3);
    world.drive();
    let missing = Extras::DELIVERY_COMPLETE;
    assert_eq!(world.send_done(0).result, Err(OperationError::PeerLacks { missing }));
    assert_eq!(count(&mut world, 0, PacketType::Handshake), 0);
    assert_eq!(world.drop_reasons(0), []);
    world.assert_clean();
}

#[test]
fn hazard_23_handshake_is_resent_after_rnr_and_precedes_ctsdata() {
    for seed in 0..10 {
        let mut world = World::new(LocalOptions::default().with(|options| options.seed = seed));
        let options = QueuePairOptions::default().with(|options| options.rnr_retry = 0);
        for _ in 0..2 {
            world.add_with(Config::default(), options);
        }
        let [sender, receiver] = [0, 1].map(|end| place(&world.ends[end]));
        world.receive(1, 200_000, 1);
        // The receiver's HANDSHAKE comes back again and again, and is long under way at last; its
        // grant overtakes it.
        world.network.not_ready(sender, 5).unwrap();
        world.network.delay_sends(receiver, 1, 10 * SOON).unwrap();
        world.send(0, 1, pattern(200_000, seed), 1);
        let peer = world.peer(0, 1);
        while world.ends[1].receives.is_empty() {
            let known = world.endpoint(0).peer_extras(peer).is_some();
            let sent = count(&mut world, 0, PacketType::CtsData);
            assert!(known || sent == 0, "seed {seed}");
            world.step();
        }
        assert_eq!(world.network.statistics().receiver_not_ready, 5);
        assert!(world.receive_done(1).buffer == pattern(200_000, seed));
        assert_eq!(world.endpoint(0).statistics().received.of(PacketType::Handshake), 1);
    }
}

#[test]
fn hazard_24_immediate_data_may_consume_a_receive_buffer_or_not() {
    for unsolicited in [false, true] {
        let rdma = Rdma { unsolicited_write_receive: unsolicited, ..Rdma::READ_WRITE };
        let mut world = World::new(LocalOptions::default().with(|options| {
            options.seed = 24;
            options.rdma = rdma;
        }));
        let options = QueuePairOptions::default().with(|options| {
            options.receive_depth = 8;
            options.rnr_retry = 0;
        });
        for _ in 0..2 {
            world.add_with(Config::default(), options);
        }
        world.acquaint();
        let (_region, iov) = expose(&world, 1, vec![0; 10], BOTH);
        let peer = world.peer(0, 1);
        // Many times as many as there are buffers.
        for round in 0..40_u64 {
            for cq_data in 4 * round..4 * round + 4 {
                let (remote, level) = (Remote::from(iov), Level::Transmit);
                let (buffer, cq_data) = (vec![1; 10], Some(cq_data));
                let write = Write { peer, remote, buffer, cq_data, level, context: 1 };
                world.endpoint(0).write(write).unwrap();
            }
            world.receive(1, 10, round);
            world.send(0, 1, pattern(10, round), round);
            world.drive();
            assert_eq!(world.receive_done(1).buffer, pattern(10, round));
            let held = world.endpoint(1).packets_held();
            assert_eq!(held.posted + held.receive_pool, 8);
        }
        let told: Vec<_> = world.ends[1].remote_writes.drain(..).map(|of| of.cq_data).collect();
        assert_eq!(told.len(), 160);
        assert_eq!(world.network.statistics().receiver_not_ready, 0);
        let received = world.network.statistics().received;
        assert_eq!(received, world.network.statistics().sent, "none but packets of the protocol");
    }
    // One side takes it so, the other not: it goes in packets, whichever of the two it is.
    for deaf in 0..2 {
        let rdma = Rdma { unsolicited_write_receive: true, ..Rdma::READ_WRITE };
        let mut configs = [Config::default(), Config::default()];
        configs[deaf].profile.extras.remove(Extras::UNSOLICITED_WRITE_RECV);
        let options = LocalOptions::default().with(|options| options.rdma = rdma);
        let mut world: World = acquainted(options, configs, || vec![1]);
        let (region, iov) = expose(&world, 1, vec![0; 10], BOTH);
        let (peer, back) = (world.peer(0, 1), world.peer(1, 0));
        let (remote, buffer, level) = (Remote::from(iov), pattern(10, 1), Level::Transmit);
        let write = Write { peer, remote, buffer, cq_data: Some(5), level, context: 1 };
        world.endpoint(0).write(write).unwrap();
        world.drive();
        let done = world.ends[0].rma.pop_front().unwrap();
        assert_eq!((done.result, done.subprotocol), (Ok(()), Some(Subprotocol::Eager)));
        let told: Vec<_> = world.ends[1].remote_writes.drain(..).collect();
        assert_eq!(told, [RemoteWrite { peer: Some(back), cq_data: 5, length: 10 }]);
        assert_eq!(bytes_of(&region), pattern(10, 1));
    }
}

// This engine has no FI_DISCARD: to throw a message away is to receive it into nothing.
#[test]
fn hazard_25_message_of_several_packets_can_be_discarded() {
    for (length, runt_size, how, end) in [
        (30_000, 0, Subprotocol::Medium, None),
        (90_000, 0, Subprotocol::LongCts, None),
        (300_000, 0, Subprotocol::LongRead, Some(PacketType::Eor)),
        (300_000, 20_000, Subprotocol::RuntRead, Some(PacketType::Eor)),
    ] {
        let config = Config::default().with(|config| {
            config.min_read = 100_000;
            config.runt_size = runt_size;
        });
        let configs = [config.clone(), config];
        let mut world = acquainted(LocalOptions::default(), configs, || Memory::Heap(vec![1]));
        let message = registered(&world, 0, pattern(length, 1), true);
        world.send(0, 1, message, 1);
        world.send(0, 1, Memory::Heap(pattern(10, 2)), 2);
        world.drive();
        assert!(world.endpoint(1).packets_held().held > 1);
        world.receive_into(1, Memory::Heap(vec![]), 1);
        world.receive_into(1, Memory::Heap(vec![0; 10]), 2);
        world.drive();
        let received = world.take_receives(1);
        let [next, thrown] = [2, 1].map(|of| received.iter().find(|r| r.context == of).unwrap());
        assert_eq!((next.result, next.buffer.bytes()), (Ok(()), pattern(10, 2)));
        let truncated = OperationError::Truncated { length: length as u64, capacity: 0 };
        assert_eq!((thrown.result, thrown.subprotocol), (Err(truncated), Some(how)));
        let sends = world.take_sends(0);
        assert!(sends.len() == 2 && sends.iter().all(|send| send.result == Ok(())), "{how:?}");
        assert!(end.is_none_or(|end| count(&mut world, 1, end) == 1));
        world.assert_clean();
    }
}

#[test]
fn hazard_26_injected_buffer_may_be_changed_at_once() {
    let mut world = pair(26);
    let me = place(&world.ends[0]);
    let peer = world.peer(0, 1);
    // The device takes them, and it does not.
    for refused in [0, 5] {
        world.network.refuse_sends(me, refused).unwrap();
        for i in 0..4 {
            world.receive(1, 100, i);
            let mut bytes = pattern(100, i);
            let (tag, cq_data, level) = (None, None, Level::Transmit);
            let buffer = &bytes[..];
            let message = Message { peer, tag, cq_data, level, buffer, context: 0 };
            world.endpoint(0).inject(message).unwrap();
            bytes.fill(0xff);
        }
        world.drive();
        for i in 0..4 {
            assert_eq!(world.receive_done(1).buffer, pattern(100, i));
        }
        world.assert_clean();
    }
}

#[test]
fn hazard_27_undeliverable_handshake_is_no_error() {
    let gone = [
        Status::RemoteAbort,
        Status::BadDestinationQpn,
        Status::UnresponsiveRemote,
        Status::UnreachableRemote,
    ];
    for status in gone {
        let mut world = World::pair(27);
        let receiver = place(&world.ends[1]);
        world.network.fail_sends(receiver, 1, status).unwrap();
        world.receive(1, 10, 1);
        world.send(0, 1, pattern(10, 1), 1);
        world.drive();
        assert_eq!(world.receive_done(1).result, Ok(()));
        assert_eq!(world.types_from(1), [PacketType::Handshake]);
        let events: Vec<_> = world.ends[1].events.drain(..).collect();
        assert!(matches!(events[..], [Event::PeerDiscovered(_)]), "{status}: {events:?}");
        assert!(world.take_sends(1).is_empty());
        assert_eq!(world.endpoint(1).statistics().send_errors, 1, "it is counted");
    }
}

#[test]
fn hazard_28_cq_data_keeps_all_its_bits() {
    let config = Config::default().with(|config| config.min_read = 100_000);
    for (length, runt_size, how) in [
        (10, 0, Subprotocol::Eager),
        (30_000, 0, Subprotocol::Medium),
        (90_000, 0, Subprotocol::LongCts),
        (300_000, 0, Subprotocol::LongRead),
        (300_000, 20_000, Subprotocol::RuntRead),
    ] {
        let configs = [config.clone().with(|config| config.runt_size = runt_size), config.clone()];
        let mut world = acquainted(LocalOptions::default(), configs, || Memory::Heap(vec![1]));
        let peer = world.peer(0, 1);
        for level in [Level::Transmit, Level::Delivery] {
            for cq_data in [u64::MAX, 0x1234_5678_9abc_def0, 0x1_0000, 0] {
                world.receive_into(1, Memory::Heap(vec![0; length]), 1);
                let buffer = registered(&world, 0, pattern(length, 1), true);
                let cq_data = Some(cq_data);
                let message = Message { peer, tag: None, cq_data, level, buffer, context: 1 };
                world.endpoint(0).send(message).unwrap();
                world.drive();
                assert_eq!(world.receive_done(1).cq_data, cq_data);
                let sent = world.send_done(0);
                assert!(sent.subprotocol == Some(how) || level == Level::Delivery);
            }
        }
        world.assert_clean();
    }
    // By packets 64 bits, by the device 32 (larger data goes in packets).
    for rdma in [Rdma::NONE, Rdma::READ_WRITE] {
        let options = LocalOptions::default().with(|options| options.rdma = rdma);
        let configs = [Config::default(), Config::default()];
        let mut world: World = acquainted(options, configs, || vec![1]);
        let (_region, iov) = expose(&world, 1, vec![0; 10], BOTH);
        let peer = world.peer(0, 1);
        for cq_data in [0xffff_ffff, 0x1234_5678, 0x1_0000, u64::MAX] {
            let (remote, buffer, level) = (Remote::from(iov), vec![1; 10], Level::Transmit);
            let write = Write { peer, remote, buffer, cq_data: Some(cq_data), level, context: 1 };
            world.endpoint(0).write(write).unwrap();
            world.drive();
            let direct = world.ends[0].rma.pop_front().unwrap().subprotocol;
            let fits = rdma == Rdma::READ_WRITE && cq_data <= u32::MAX.into();
            assert_eq!(direct == Some(Subprotocol::Direct), fits);
            assert_eq!(world.ends[1].remote_writes.pop_front().unwrap().cq_data, cq_data);
        }
    }
}

#[test]
fn hazard_29_empty_rma_operations_need_no_memory() {
    for rdma in [Rdma::NONE, Rdma::READ_WRITE] {
        let options = LocalOptions::default().with(|options| options.rdma = rdma);
        let configs = [Config::default(), Config::default()];
        let mut world: World = acquainted(options, configs, || vec![1]);
        let peer = world.peer(0, 1);
        let nothing = RmaIov::new(0, 0, 0);
        for pieces in [&[][..], &[nothing], &[nothing, nothing]] {
            let remote = Remote::new(pieces).unwrap();
            for level in [Level::Transmit, Level::Delivery] {
                for cq_data in [None, Some(9)] {
                    let write = Write { peer, remote, buffer: vec![], cq_data, level, context: 1 };
                    world.endpoint(0).write(write).unwrap();
                    world.drive();
                    let done = world.ends[0].rma.pop_front().unwrap();
                    assert_eq!((done.kind, done.length), (RmaKind::Write, 0));
                    assert_eq!(done.result, Ok(()), "{pieces:?} {level:?} {cq_data:?}");
                    let told = world.ends[1].remote_writes.drain(..).map(|of| of.cq_data);
                    assert_eq!(told.collect::<Vec<_>>(), Vec::from_iter(cq_data));
                }
            }
            world.endpoint(0).read(Read { peer, remote, buffer: vec![], context: 2 }).unwrap();
            world.drive();
            let done = world.ends[0].rma.pop_front().unwrap();
            assert_eq!((done.kind, done.length, done.result), (RmaKind::Read, 0, Ok(())));
        }
        assert_eq!(world.endpoint(1).statistics().access_refused, 0);
        world.assert_clean();
    }
}
