//! Hazards of messages: order, unexpected messages, READ_NACK and delivery complete.

use std::time::Duration;

use efa_device::{QueuePairOptions, Rdma};
use efa_proto::{Cts, Header, MsgId, OpId, Packet, PacketType, ReqOptions, RmaIov, Rtm, RtmKind};
use efa_rdm::{Config, DropReason, Level, Message, OperationError, Remote, Subprotocol, Write};
use efa_sim::local::LocalOptions;

use super::{BOTH, SECOND, SOON, acquainted, count, pair, pass, registered, send_at};
use crate::longread::Memory;
use crate::rma::expose;
use crate::world::{Net, World, pattern, place};

#[test]
fn hazard_01_receipt_before_device_completions_does_not_complete_the_send() {
    for length in [10, 30_000] {
        for completions_late in [true, false] {
            let mut world = pair(1);
            let me = place(&world.ends[0]);
            let packets = if length == 10 { 1 } else { 4 };
            if completions_late {
                world.network.delay_completions(me, packets, SECOND).unwrap();
            }
            world.receive(1, length, 1);
            send_at(&mut world, Level::Delivery, pattern(length, 1), 1);
            pass(&mut world, SOON);
            assert_eq!(world.endpoint(0).statistics().received.of(PacketType::Receipt), 1);
            assert_eq!(world.take_sends(0).len(), usize::from(!completions_late));
            // Another message, without a posted receive. If the first send were freed already, its late
            // device completions would complete this one.
            world.network.delay_completions(me, packets, 2 * SECOND).unwrap();
            send_at(&mut world, Level::Delivery, pattern(length, 2), 2);
            pass(&mut world, SOON);
            world.idle(SECOND);
            let ended = world.take_sends(0);
            assert_eq!(ended.len(), usize::from(completions_late), "after both");
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
    // An old CTS is dropped, and a new message in the same slot sends only its own data.
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
    // A packet without a posted buffer fails at once with RNR.
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
    assert!(world.take_receives(1).is_empty(), "all messages wait for the first");
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
    // Beyond the largest reorder window of any release.
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

/// Two endpoints that read messages of at least 100,000 bytes. The second cannot register memory, so it
/// sends READ_NACK.
fn nacking(level: Level, seed: u64) -> Net<Memory> {
    let config = Config::default().with(|config| config.min_read = Some(100_000));
    let options = LocalOptions::default().with(|options| options.seed = seed);
    let mut world = acquainted(options, [config.clone(), config], || Memory::Heap(vec![1]));
    world.ends[1].device.refuse_registrations(u32::MAX);
    world.receive_into(1, Memory::Heap(vec![0; 300_000]), 1);
    let message = registered(&world, 0, pattern(300_000, seed), true);
    send_at(&mut world, level, message, 1);
    world
}

/// The type and message id of the request sent after a READ_NACK.
fn request_after_nack(world: &mut Net<Memory>) -> (PacketType, MsgId) {
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
        let mut world = nacking(level, 5);
        let me = place(&world.ends[0]);
        while count(&mut world, 1, PacketType::ReadNack) == 0 {
            pass(&mut world, Duration::from_micros(1));
        }
        world.network.delay_completions(me, 1, SECOND).unwrap();
        pass(&mut world, 10 * SOON);
        request_after_nack(&mut world);
        assert!(world.receive_done(1).buffer.bytes() == pattern(300_000, 5));
        // All data has arrived. Other messages start and complete before the completion of that request.
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
    let mut world = nacking(Level::Delivery, 6);
    // The RECEIPT is delayed.
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
    assert!(world.take_sends(0).is_empty(), "the RECEIPT has not arrived");
    world.drive();
    assert_eq!(world.send_done(0).result, Ok(()));
    assert_eq!(request_after_nack(&mut world), (PacketType::DcLongCtsMsgRtm, MsgId(1)));
    assert_eq!(count(&mut world, 1, PacketType::Receipt), 1);
    world.assert_clean();
}

#[test]
fn hazard_07_nacked_message_is_forgotten_once_complete() {
    for level in [Level::Transmit, Level::Delivery] {
        let mut world = nacking(level, 7);
        world.drive();
        world.receive_done(1);
        assert_eq!(world.send_done(0).result, Ok(()));
        // A repeated request after the READ_NACK finds no such message.
        let connid = Some(world.endpoint(0).address().connid);
        let options = ReqOptions { connid, ..ReqOptions::NONE };
        let (msg_length, send_id, credit_request, read_nack) = (300_000, OpId(0), 32, true);
        let kind = match level {
            Level::Transmit => RtmKind::LongCts { msg_length, send_id, credit_request, read_nack },
            _ => RtmKind::DcLongCts { msg_length, send_id, credit_request, read_nack },
        };
        let again = Rtm { msg_id: MsgId(1), tag: None, kind, options };
        world.inject(0, 1, Header::Rtm(again), &[]);
        world.drive();
        assert_eq!(world.drop_reasons(1).last(), Some(&DropReason::UnknownOperation));
    }
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
    // In order, and out of order, where the packet is kept first.
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
    // A segment that contradicts its message is dropped; the message still arrives.
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
fn hazard_17_packets_of_unexpected_messages_are_released_once() {
    for seed in 0..10 {
        let mut world = World::new(LocalOptions::default().with(|options| options.seed = seed));
        for _ in 0..3 {
            world.add(Config::default());
        }
        // Interleaved packets of two senders.
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
        // Again, with a contradicting segment, and with a sender that is removed before its message is
        // complete.
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

// There is no FI_DISCARD here: a message is discarded by receiving it into an empty buffer.
#[test]
fn hazard_25_message_of_several_packets_can_be_discarded() {
    for (length, runt_size, how, end) in [
        (30_000, 0, Subprotocol::Medium, None),
        (90_000, 0, Subprotocol::LongCts, None),
        (300_000, 0, Subprotocol::LongRead, Some(PacketType::Eor)),
        (300_000, 20_000, Subprotocol::RuntRead, Some(PacketType::Eor)),
    ] {
        let config = Config::default().with(|config| {
            config.min_read = Some(100_000);
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
        let [next, discarded] = [2, 1].map(|of| received.iter().find(|r| r.context == of).unwrap());
        assert_eq!((next.result, next.buffer.bytes()), (Ok(()), pattern(10, 2)));
        let truncated = OperationError::Truncated { length: length as u64, capacity: 0 };
        assert_eq!((discarded.result, discarded.subprotocol), (Err(truncated), Some(how)));
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
    // The device accepts the packets at once, or refuses five times.
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
fn hazard_28_cq_data_keeps_all_its_bits() {
    let config = Config::default().with(|config| config.min_read = Some(100_000));
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
    // Packets carry 64 bits; the device carries 32, so larger data is sent in packets.
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
