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

use std::time::Duration;

use efa_device::{Access, QueuePair, QueuePairOptions, RegionRange};
use efa_proto::{
    Connid, Cts, Header, MsgId, OpId, Packet, PacketType, RawAddress, ReqOptions, Rtm, RtmKind,
};
use efa_rdm::{Config, DropReason, Level, Message, Payload};
use efa_sim::SoftRegion;
use efa_sim::local::LocalOptions;

use crate::longread::Memory;
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
    let options = LocalOptions { seed, ..LocalOptions::default() };
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
fn hazard_01_a_receipt_before_the_devices_completions() {
    for length in [10, 30_000] {
        for answers_late in [true, false] {
            let mut world = pair(1);
            let me = place(&world.ends[0]);
            let packets = if length == 10 { 1 } else { 4 };
            if answers_late {
                world.network.delay_answers(me, packets, SECOND).unwrap();
            }
            world.receive(1, length, 1);
            send_at(&mut world, Level::Delivery, pattern(length, 1), 1);
            pass(&mut world, SOON);
            assert_eq!(world.endpoint(0).statistics().received.of(PacketType::Receipt), 1);
            assert_eq!(world.take_sends(0).len(), usize::from(!answers_late));
            // Another message, for which no receive is posted. Were the first forgotten already,
            // this one would be taken for it when the device's completions come.
            world.network.delay_answers(me, packets, 2 * SECOND).unwrap();
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
fn hazard_02_after_the_receipt_a_long_message_sends_nothing_more() {
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
fn hazard_03_early_messages_keep_no_receive_buffers() {
    let mut world = World::new(LocalOptions { seed: 3, ..LocalOptions::default() });
    // The first packet that finds no buffer comes back.
    let options = QueuePairOptions { receive_depth: 16, rnr_retry: 0, ..Default::default() };
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
fn hazard_04_messages_far_beyond_the_expected_one_are_kept() {
    // Farther than the largest window of any release.
    const COUNT: u64 = 16_384 + 100;
    let config = Config { max_sends: 1 << 20, ..Config::default() };
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
    let config = Config { min_read: 100_000, ..Config::default() };
    let options = LocalOptions { seed, ..LocalOptions::default() };
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
fn hazard_05_the_empty_request_after_a_refusal_is_completed_late() {
    for level in [Level::Transmit, Level::Delivery] {
        let mut world = refusing(level, 5);
        let me = place(&world.ends[0]);
        while count(&mut world, 1, PacketType::ReadNack) == 0 {
            pass(&mut world, Duration::from_micros(1));
        }
        world.network.delay_answers(me, 1, SECOND).unwrap();
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
fn hazard_06_a_refusal_leaves_delivery_complete_in_force() {
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
fn hazard_07_a_refused_message_is_forgotten_when_it_is_over() {
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
fn hazard_08_removing_an_old_address_leaves_the_new_one_alone() {
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
