//! Writes by packets: eager, long-CTS, and long-read.

use efa_device::{Rdma, RegionRange};
use efa_proto::{Header, OpId, Packet, PacketType, ReadNack, Receipt, ReqOptions, Rtw, RtwKind};
use efa_rdm::{
    Config, Event, Level, OperationError, Read, Remote, RemoteWrite, RmaKind, Subprotocol,
};
use efa_sim::local::LocalOptions;

use super::{BOTH, MTU, ROOM, bytes_of, emulated, expose, part, world_with};
use crate::buffer::Buffer;
use crate::longread::Memory;
use crate::world::{Net, World, pattern};

// conformance: A140
#[test]
fn write_that_fits_a_packet_is_eager() {
    for pieces in 1..=4 {
        let mut world = world_with(emulated(), Config::default());
        let (region, iov) = expose(&world, 1, vec![0; 10_000], BOTH);
        let most = ROOM - 24 * (pieces - 1);
        for (length, how, packet) in [
            (most, Subprotocol::Eager, PacketType::EagerRtw),
            (most + 1, Subprotocol::LongCts, PacketType::LongCtsRtw),
        ] {
            let mut iovs = vec![part(iov, 0, length - 8 * (pieces - 1))];
            for i in 1..pieces {
                iovs.push(part(iov, length - 8 * (pieces - i), 8));
            }
            // The first write elicits the HANDSHAKE; the features of the peer select the subprotocol.
            let bytes = pattern(length, pieces as u64);
            let done = world.write(&iovs, bytes.clone(), None);
            assert_eq!((done.kind, done.context, done.length), (RmaKind::Write, 7, length as u64));
            assert_eq!((done.result, done.subprotocol), (Ok(()), Some(how)));
            assert_eq!(done.buffer, bytes, "the buffer comes back");
            assert_eq!(bytes_of(&region)[..length], bytes);
            assert!(world.types_from(0).contains(&packet), "{:?}", world.types_from(0));
            world.forget_packets();
        }
        world.assert_clean();
    }
}

#[test]
fn first_write_waits_for_the_handshake_and_messages_after_it_follow() {
    let mut world = world_with(emulated(), Config::default());
    let (region, iov) = expose(&world, 1, vec![0; 100], BOTH);
    world.start_write(&[iov], pattern(100, 1), None, Level::Transmit).unwrap();
    world.receive(1, 10, 1);
    world.send(0, 1, pattern(10, 2), 2);
    world.drive();
    let requests = world.types_from(0).into_iter().filter(|of| *of != PacketType::Handshake);
    let expected = [PacketType::EagerRtw, PacketType::EagerRtw, PacketType::EagerMsgRtm];
    assert_eq!(requests.collect::<Vec<_>>(), expected);
    let elicitor = world.packets_from(0).swap_remove(0);
    assert_eq!(elicitor.len(), 48, "an empty write with the raw address");
    assert_eq!(bytes_of(&region), pattern(100, 1));
    world.rma_done();
    world.receive_done(1);
    world.send_done(0);
    world.assert_clean();
}

// conformance: A141 A134 A136
#[test]
fn write_fills_remote_ranges_in_order_and_reports_cq_data() {
    for length in [300, 30_000] {
        let mut world = world_with(emulated(), Config::default());
        let (region, iov) = expose(&world, 1, vec![0xee; 3 * length], BOTH);
        let third = length / 3;
        let pieces = [part(iov, 2 * length, third), part(iov, 0, third), part(iov, length, third)];
        let bytes = pattern(length, 3);
        let done = world.write(&pieces, bytes.clone(), Some(0xdead_beef_0042));
        assert_eq!(done.result, Ok(()));
        let after = bytes_of(&region);
        assert_eq!(after[2 * length..][..third], bytes[..third]);
        assert_eq!(after[..third], bytes[third..2 * third]);
        assert_eq!(after[length..][..third], bytes[2 * third..]);
        assert!(after[third..length].iter().all(|byte| *byte == 0xee), "nothing else is touched");
        let reported = world.ends[1].remote_writes.pop_front().unwrap();
        let peer = Some(world.peer(1, 0));
        let length = length as u64;
        assert_eq!(reported, RemoteWrite { peer, cq_data: 0xdead_beef_0042, length });
        world.assert_clean();
    }
}

// conformance: A142
#[test]
fn reordered_writes_all_reach_their_memory() {
    let options = emulated();
    let mut world = world_with(options, Config::default());
    let (region, iov) = expose(&world, 1, vec![0; 200 * 500], BOTH);
    for i in 0..200 {
        let piece = part(iov, i * 500, 500);
        world.start_write(&[piece], pattern(500, i as u64), None, Level::Transmit).unwrap();
    }
    world.drive();
    let expected: Vec<u8> = (0..200).flat_map(|i| pattern(500, i)).collect();
    assert_eq!(bytes_of(&region), expected);
    assert_eq!(world.ends[0].rma.drain(..).filter(|done| done.result.is_ok()).count(), 200);
    world.assert_clean();
}

// libfabric 1.11 sends such requests, as its limits for eager and long-CTS packets differ.
#[test]
fn long_write_with_all_bytes_in_its_request_completes() {
    for dc in [false, true] {
        let mut world = world_with(emulated(), Config::default());
        let (region, iov) = expose(&world, 1, vec![0; 8850], BOTH);
        let (msg_length, send_id, credit_request) = (8850, OpId(0), 32);
        let kind = match dc {
            true => RtwKind::DcLongCts { msg_length, send_id, credit_request },
            false => RtwKind::LongCts { msg_length, send_id, credit_request },
        };
        let options = ReqOptions { cq_data: Some(7), ..ReqOptions::NONE };
        let write = Rtw { rma_iov: &[iov], kind, options };
        world.inject(0, 1, Header::Rtw(write), &pattern(8850, 1));
        world.drive();
        assert_eq!(bytes_of(&region), pattern(8850, 1));
        let reported = world.ends[1].remote_writes.pop_front().unwrap();
        assert_eq!((reported.cq_data, reported.length), (7, 8850));
        let types = world.types_from(1);
        assert!(!types.contains(&PacketType::Cts), "nothing is left to be granted");
        assert_eq!(types.contains(&PacketType::Receipt), dc);
        assert_eq!(world.drop_reasons(1), []);
    }
}

// conformance: A144 A145
#[test]
fn long_write_is_sent_in_windows_granted_by_the_target() {
    for (seed, length, window) in [(1, ROOM + 1, 32), (2, 200_000, 3), (3, 1 << 20, 32)] {
        let config = Config::default().with(|config| config.cts_window = window);
        let mut world = world_with(emulated().with(|options| options.seed = seed), config);
        let (region, iov) = expose(&world, 1, vec![0; length], BOTH);
        let done = world.write(&[iov], pattern(length, seed), Some(seed));
        assert_eq!((done.result, done.subprotocol), (Ok(()), Some(Subprotocol::LongCts)));
        assert_eq!(bytes_of(&region), pattern(length, seed));
        for packet in world.packets_from(1) {
            if let Header::Cts(cts) = Packet::parse(&packet).unwrap().header {
                assert!(!cts.emulated_read && cts.recv_length > 0);
            }
        }
        let grants = world.types_from(1).iter().filter(|of| **of == PacketType::Cts).count();
        let left = length - (MTU - 24 - 24 - 4);
        assert_eq!(grants, left.div_ceil(window as usize * (MTU - 32)));
        assert_eq!(world.ends[1].remote_writes.pop_front().unwrap().cq_data, seed);
        world.assert_clean();
    }
}

// conformance: A171 A215 A134
#[test]
fn long_write_is_read_by_a_capable_target() {
    // The devices support RDMA read, but not RDMA write.
    let rdma = Rdma { write: false, ..Rdma::READ_WRITE };
    for (cq_data, refused) in [(None, 0), (Some(5), 0), (None, 2)] {
        let mut world =
            Net::<Memory>::new(LocalOptions::default().with(|options| options.rdma = rdma));
        world.add(Config::default().with(|config| config.min_read_write = 100_000));
        world.add(Config::default());
        world.acquaint();
        let length = 300_000;
        let source = expose(&world, 0, pattern(length, 1), BOTH).0;
        let buffer = Memory::Region(RegionRange { region: source, offset: 0, length });
        let (region, iov) = expose(&world, 1, vec![0; length], BOTH);
        // The written memory is registered already, so the target reads even if registrations are refused.
        world.ends[1].device.refuse_registrations(refused);
        let done = world.write(&[iov], buffer, cq_data);
        assert_eq!((done.result, done.subprotocol), (Ok(()), Some(Subprotocol::LongRead)));
        assert_eq!(bytes_of(&region), pattern(length, 1));
        assert!(world.types_from(0).contains(&PacketType::LongReadRtw));
        assert!(world.types_from(1).contains(&PacketType::Eor));
        assert!(!world.types_from(1).contains(&PacketType::ReadNack));
        let reported = world.ends[1].remote_writes.drain(..).map(|write| write.cq_data).next();
        assert_eq!(reported, cq_data, "reported only with CQ data");
        world.assert_clean();
    }
}

#[test]
fn long_write_continues_in_packets_after_read_nack() {
    let rdma = Rdma { write: false, ..Rdma::READ_WRITE };
    let mut world = Net::<Memory>::new(LocalOptions::default().with(|options| options.rdma = rdma));
    world.add(Config::default().with(|config| config.min_read_write = 100_000));
    world.add(Config::default());
    world.acquaint();
    let length = 300_000;
    let source = expose(&world, 0, pattern(length, 1), BOTH).0;
    let buffer = Memory::Region(RegionRange { region: source, offset: 0, length });
    let (region, iov) = expose(&world, 1, vec![0; length], BOTH);
    world.start_write(&[iov], buffer, None, Level::Transmit).unwrap();
    // libfabric sends this READ_NACK since 2.0. Here the target also reads, but its EOR arrives too late.
    let send_id = loop {
        world.step();
        let sent = world.packets_from(0);
        let request = sent.iter().find_map(|packet| match Packet::parse(packet).unwrap().header {
            Header::Rtw(Rtw { kind: RtwKind::LongRead { send_id, .. }, .. }) => Some(send_id),
            _ => None,
        });
        if let Some(send_id) = request {
            break send_id;
        }
    };
    let nack = ReadNack { send_id, recv_id: OpId(99), connid: None };
    world.inject(1, 0, Header::ReadNack(nack), &[]);
    world.drive();
    let done = world.rma_done();
    assert_eq!((done.result, done.subprotocol), (Ok(()), Some(Subprotocol::LongCts)));
    assert_eq!(bytes_of(&region), pattern(length, 1));
    let again = world.packets_from(0).into_iter().find_map(|packet| {
        let packet = Packet::parse(&packet).unwrap();
        match packet.header {
            Header::Rtw(Rtw { kind: RtwKind::LongCts { msg_length, .. }, .. }) => {
                Some((msg_length, packet.payload.len() > 8000))
            }
            _ => None,
        }
    });
    assert_eq!(again, Some((length as u64, true)), "an ordinary request, with data");
}

// conformance: A182
#[test]
fn delivery_complete_write_waits_for_its_receipt() {
    for (length, packet) in [
        (0, PacketType::DcEagerRtw),
        (1000, PacketType::DcEagerRtw),
        (50_000, PacketType::DcLongCtsRtw),
    ] {
        let mut world = world_with(emulated(), Config::default());
        let (region, iov) = expose(&world, 1, vec![0; length.max(1)], BOTH);
        let bytes = pattern(length, 1);
        world.start_write(&[part(iov, 0, length)], bytes.clone(), None, Level::Delivery).unwrap();
        while world.ends[0].rma.is_empty() {
            let reported = world.types_from(1).contains(&PacketType::Receipt);
            assert!(reported || world.ends[0].rma.is_empty());
            world.step();
        }
        assert_eq!(world.rma_done().result, Ok(()));
        assert_eq!(bytes_of(&region)[..length], bytes);
        assert!(world.types_from(0).contains(&packet));
        let receipts: Vec<_> = world
            .packets_from(1)
            .iter()
            .filter_map(|packet| match Packet::parse(packet).unwrap().header {
                Header::Receipt(Receipt { msg_id, .. }) => Some(msg_id.0),
                _ => None,
            })
            .collect();
        assert_eq!(receipts, [0]);
        world.drive();
        world.assert_clean();
    }
}

// conformance: A44
#[test]
fn delivery_complete_write_fails_at_a_peer_without_the_feature() {
    let mut world = World::new(emulated());
    world.add(Config::default());
    let mut old = Config::default();
    old.profile.extras.remove(efa_handshake::Extras::DELIVERY_COMPLETE);
    world.add(old);
    world.acquaint();
    let (region, iov) = expose(&world, 1, vec![7; 10], BOTH);
    world.start_write(&[iov], vec![1; 10], None, Level::Delivery).unwrap();
    world.drive();
    let missing = efa_handshake::Extras::DELIVERY_COMPLETE;
    assert_eq!(world.rma_done().result, Err(OperationError::PeerLacks { missing }));
    assert_eq!(bytes_of(&region), [7; 10]);
    world.assert_clean();
}

/// Writes of peers do not use the receive slots of the application.
#[test]
fn incoming_writes_do_not_count_against_posted_receives() {
    let config = Config::default().with(|config| {
        config.max_receives = 3;
        config.cts_window = 1;
    });
    let mut world = world_with(emulated(), config);
    let (region, iov) = expose(&world, 1, vec![0; 100_000], BOTH);
    let (_own, readable) = expose(&world, 0, pattern(100, 1), BOTH);
    for i in 0..5 {
        world.start_write(&[iov], pattern(100_000, i), None, Level::Transmit).unwrap();
    }
    // All five writes have been granted a window and have not sent data yet.
    let peer = world.peer(1, 0);
    while world.types_from(1).iter().filter(|of| **of == PacketType::Cts).count() < 5 {
        world.step();
    }
    for context in 0..2 {
        world.receive(1, 100, context);
    }
    let read = Read { peer, remote: Remote::from(readable), buffer: vec![0; 100], context: 9 };
    world.endpoint(1).read(read).unwrap();
    world.drive();
    assert_eq!(world.ends[1].rma.pop_front().unwrap().buffer, pattern(100, 1));
    assert_eq!(world.ends[0].rma.drain(..).filter(|done| done.result.is_ok()).count(), 5);
    assert!(bytes_of(&region).iter().any(|byte| *byte != 0));
}

/// CQ data beyond 32 bits does not prevent the target from reading the data.
#[test]
fn long_write_with_64_bit_cq_data_is_read_by_the_target() {
    let mut world = Net::<Buffer>::pair(1);
    world.acquaint();
    let (region, iov) = expose(&world, 1, vec![0; 1 << 20], BOTH);
    let buffer = Buffer::from(pattern(1 << 20, 1));
    let done = world.write(&[iov], buffer, Some(1 << 40));
    assert_eq!((done.result, done.subprotocol), (Ok(()), Some(Subprotocol::LongRead)));
    assert_eq!(world.ends[1].remote_writes.pop_front().unwrap().cq_data, 1 << 40);
    assert_eq!(bytes_of(&region), pattern(1 << 20, 1));
}

#[test]
fn incomplete_write_of_removed_peer_is_reported_as_failed() {
    let mut world = world_with(emulated(), Config::default().with(|config| config.cts_window = 1));
    let (_region, iov) = expose(&world, 1, vec![0; 100_000], BOTH);
    world.start_write(&[iov], pattern(100_000, 1), Some(5), Level::Transmit).unwrap();
    while world.endpoint(1).statistics().sent.of(PacketType::Cts) < 2 {
        world.step();
    }
    world.ends[1].events.clear();
    let peer = world.peer(1, 0);
    world.endpoint(1).remove_peer(peer);
    world.ends[1].collect();
    let error = OperationError::PeerRemoved;
    assert_eq!(world.ends[1].events.pop_front(), Some(Event::WriteFailed { peer, error }));
    assert!(world.ends[1].remote_writes.is_empty());
}
