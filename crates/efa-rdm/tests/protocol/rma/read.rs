//! Reads by packets: requests, responses and windows.

use efa_device::{Region, Status};
use efa_proto::{
    Cts, CtsData, Header, OpId, Packet, PacketType, ReadRsp, ReqOptions, RmaIov, Rtr, RtrKind,
};
use efa_rdm::{
    Config, DropReason, OperationError, Payload, Read, Remote, RemoteUse, RmaKind, StartError,
    Subprotocol,
};
use efa_sim::SoftRegion;
use efa_sim::local::Faults;

use super::{BOTH, MTU, emulated, expose, part, refusals, world_with};
use crate::world::{Net, pattern, place};

// conformance: A147 A148
#[test]
fn short_read_is_one_request_and_one_response() {
    let most = MTU - 24;
    for (length, how, request) in [
        (1, Subprotocol::Eager, PacketType::ShortRtr),
        (most - 1, Subprotocol::Eager, PacketType::ShortRtr),
        (most, Subprotocol::LongCts, PacketType::LongCtsRtr),
    ] {
        let mut world = world_with(emulated(), Config::default());
        let (_region, iov) = expose(&world, 1, pattern(length, 4), BOTH);
        let done = world.read(&[iov], length);
        assert_eq!((done.kind, done.context, done.length), (RmaKind::Read, 8, length as u64));
        assert_eq!((done.result, done.subprotocol), (Ok(()), Some(how)));
        assert_eq!(done.buffer, pattern(length, 4));
        let packets = world.packets_from(0);
        let asked = packets.iter().find_map(|packet| match Packet::parse(packet).unwrap().header {
            Header::Rtr(rtr) => Some((rtr.packet_type(), rtr.recv_id, rtr.recv_length as usize)),
            _ => None,
        });
        let (packet_type, recv_id, recv_length) = asked.unwrap();
        assert_eq!((packet_type, recv_length), (request, length));
        let answers: Vec<_> = world
            .packets_from(1)
            .iter()
            .filter_map(|packet| match Packet::parse(packet).unwrap() {
                Packet { header: Header::ReadRsp(response), payload } => {
                    Some((response.recv_id, response.seg_length as usize, payload.len()))
                }
                _ => None,
            })
            .collect();
        assert_eq!(answers, [(recv_id, length, length)]);
        assert!(!world.types_from(1).contains(&PacketType::CtsData));
        world.assert_clean();
    }
}

// conformance: A146 A149
#[test]
fn long_read_is_sent_in_windows_granted_by_the_requester() {
    let window = 4;
    let config = Config::default().with(|config| config.cts_window = window);
    for seed in 1..6 {
        let options = emulated().with(|options| options.seed = seed);
        let mut world = world_with(options, config.clone());
        let length = 3 * window as usize * (MTU - 24);
        let (_region, iov) = expose(&world, 1, pattern(length, seed), BOTH);
        let done = world.read(&[part(iov, 0, 1000), part(iov, 1000, length - 1000)], length);
        assert_eq!((done.result, done.subprotocol), (Ok(()), Some(Subprotocol::LongCts)));
        assert_eq!(done.buffer, pattern(length, seed));
        let mut names = Vec::new();
        for packet in world.packets_from(0) {
            match Packet::parse(&packet).unwrap().header {
                Header::Rtr(rtr) => {
                    assert_eq!(rtr.recv_length as usize, window as usize * (MTU - 24));
                    names.push((rtr.recv_id, None));
                }
                Header::Cts(cts) => {
                    assert!(cts.emulated_read);
                    names.push((cts.recv_id, Some(cts.send_id)));
                }
                _ => {}
            }
        }
        assert_eq!(names.len(), 4, "the request and three further grants");
        let (recv_id, send_id) = (names[0].0, names[1].1);
        assert!(names[1..].iter().all(|name| *name == (recv_id, send_id)));
        for packet in world.packets_from(1) {
            match Packet::parse(&packet).unwrap().header {
                Header::ReadRsp(response) => assert_eq!(Some(response.send_id), send_id),
                Header::CtsData(data) => assert_eq!(data.recv_id, recv_id),
                Header::Handshake(_) => {}
                other => panic!("{other:?}"),
            }
        }
        world.assert_clean();
    }
}

/// libfabric with `FI_EFA_TX_MIN_CREDITS=1` grants the payload of one CTSDATA, which is less than that of a READRSP, and
/// waits for ever if it gets more.
// conformance: A149
#[test]
fn read_response_stays_within_the_granted_window() {
    let mut world = world_with(emulated(), Config::default());
    let (_region, iov) = expose(&world, 1, pattern(20_000, 1), BOTH);
    world.read(&[iov], 20_000);
    world.forget_packets();
    let window = MTU - 32;
    let request = Rtr {
        rma_iov: &[iov],
        kind: RtrKind::LongCts,
        msg_length: 20_000,
        recv_id: OpId(1),
        recv_length: window as u32,
        options: ReqOptions::NONE,
    };
    world.inject(0, 1, Header::Rtr(request), &[]);
    world.drive();
    let answers: Vec<_> = world
        .packets_from(1)
        .iter()
        .map(|packet| match Packet::parse(packet).unwrap() {
            Packet { header: Header::ReadRsp(_), payload } => payload.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(answers, [window]);
}

// conformance: A150
#[test]
fn read_window_of_zero_is_dropped_and_largest_accepted() {
    let mut world =
        world_with(emulated(), Config::default().with(|config| config.cts_window = u32::MAX));
    // This memory does not exist: only the request is checked.
    world.receive(1, 1, 0);
    world.send(0, 1, vec![1], 0);
    world.drive();
    let length = 1_u64 << 33;
    let peer = world.peer(0, 1);
    let remote = Remote::new(&[RmaIov::new(0x10, length, 1)]).unwrap();
    let refused = world.endpoint(0).read(Read { peer, remote, buffer: vec![], context: 0 });
    let error = StartError::LengthsDiffer { buffer: 0, remote: length };
    assert_eq!(refused.unwrap_err().error, error);
    let (_region, iov) = expose(&world, 1, vec![0; 20_000], BOTH);
    let none = Rtr {
        rma_iov: &[iov],
        kind: RtrKind::LongCts,
        msg_length: 20_000,
        recv_id: OpId(1),
        recv_length: 0,
        options: ReqOptions::NONE,
    };
    world.inject(0, 1, Header::Rtr(none), &[]);
    world.drive();
    assert_eq!(world.drop_reasons(1), [DropReason::SegmentOutOfRange]);
    // A window of 2^32 packets is cut to the 32-bit field.
    let done = world.read(&[iov], 20_000);
    assert_eq!(done.result, Ok(()));
}

/// A virtual buffer of any length, filled with zeros.
#[derive(Debug)]
struct Virtual(u64);

impl Payload<SoftRegion> for Virtual {
    fn length(&self) -> u64 {
        self.0
    }
    fn read(&self, _: u64, into: &mut [u8]) {
        into.fill(0);
    }
    fn write(&mut self, _: u64, _: &[u8]) {}
    fn split_to(&mut self, at: u64) -> Self {
        Self(at)
    }
}

// conformance: A150
#[test]
fn read_window_is_capped_at_32_bits() {
    let config = Config::default().with(|config| config.cts_window = u32::MAX);
    let mut world = Net::<Virtual>::new(emulated());
    world.add(config.clone());
    world.add(config);
    world.acquaint();
    let peer = world.peer(0, 1);
    let length = 8_u64 << 30;
    let remote = Remote::new(&[RmaIov::new(0x10, length, 1)]).unwrap();
    let buffer = Virtual(length);
    world.endpoint(0).read(Read { peer, remote, buffer, context: 0 }).unwrap();
    world.drive();
    let packets = world.packets_from(0);
    let granted = packets.iter().find_map(|packet| match Packet::parse(packet).unwrap().header {
        Header::Rtr(rtr) => Some((rtr.recv_length, rtr.msg_length)),
        _ => None,
    });
    assert_eq!(granted, Some((u32::MAX, length)));
    assert_eq!(refusals(&mut world), [RemoteUse::Read], "the memory does not exist");
    let code = Status::RemoteBadAddress.code().into();
    assert_eq!(world.rma_done().result, Err(OperationError::GivenUp { code }));
}

// conformance: A151
#[test]
fn cts_of_reads_and_messages_with_equal_ids_are_distinguished() {
    // Both ends have a long message and a long read in progress with equal operation ids.
    let config = Config::default().with(|config| config.cts_window = 1);
    let mut world = world_with(emulated(), config);
    let length = 100_000;
    let (_region, iov) = expose(&world, 1, pattern(length, 1), BOTH);
    world.receive(0, length, 0);
    world.receive(1, length, 0);
    world.start_read(&[iov], vec![0; length]).unwrap();
    world.send(1, 0, pattern(length, 2), 0);
    world.send(0, 1, pattern(length, 3), 0);
    world.drive();
    assert_eq!(world.rma_done().buffer, pattern(length, 1));
    assert_eq!(world.receive_done(0).buffer, pattern(length, 2));
    assert_eq!(world.receive_done(1).buffer, pattern(length, 3));
    world.take_sends(0);
    world.take_sends(1);
    world.assert_clean();
}

// conformance: A151
#[test]
fn cts_with_the_wrong_read_flag_is_dropped() {
    let mut world = world_with(emulated(), Config::default());
    world.receive(1, 1, 0);
    world.send(0, 1, vec![1], 0);
    world.drive();
    world.take_sends(0);
    world.receive_done(1);
    // An unmatched long message waits for its CTS.
    world.send(0, 1, pattern(100_000, 1), 1);
    world.step();
    let packets = world.packets_from(0);
    let send_id = packets.iter().find_map(|packet| match Packet::parse(packet).unwrap().header {
        Header::Rtm(rtm) => match rtm.kind {
            efa_proto::RtmKind::LongCts { send_id, .. } => Some(send_id),
            _ => None,
        },
        _ => None,
    });
    let send_id = send_id.unwrap();
    let grant =
        Cts { connid: None, send_id, recv_id: OpId(0), recv_length: 1000, emulated_read: true };
    world.inject(1, 0, Header::Cts(grant), &[]);
    world.drive();
    assert_eq!(world.drop_reasons(0), [DropReason::BadCts]);
    world.receive(1, 100_000, 2);
    world.drive();
    assert_eq!(world.receive_done(1).buffer, pattern(100_000, 1));
}

// conformance: A152
#[test]
fn inconsistent_read_responses_are_dropped() {
    let mut world = world_with(emulated(), Config::default());
    let (_region, iov) = expose(&world, 1, pattern(100, 1), BOTH);
    // The target is not ready, so the first responses are those injected here.
    world.receive(1, 1, 0);
    world.send(0, 1, vec![1], 0);
    world.drive();
    world.take_sends(0);
    world.receive_done(1);
    let to = place(&world.ends[1]);
    world.network.not_ready(to, 1).unwrap();
    world.start_read(&[iov], vec![0; 100]).unwrap();
    world.endpoint(0).progress(efa_device::Time::ZERO);
    let request = world.packets_from(0).pop().unwrap();
    let Header::Rtr(rtr) = Packet::parse(&request).unwrap().header else { panic!() };
    let recv_id = rtr.recv_id;
    for (name, announced, bytes) in [
        (recv_id, 99, 100),
        (recv_id, 101, 100),
        (recv_id, 99, 99),
        (recv_id, 101, 101),
        (recv_id, 0, 0),
        (OpId(recv_id.0 + 1), 100, 100),
    ] {
        let response =
            ReadRsp { connid: None, recv_id: name, send_id: OpId(3), seg_length: announced };
        world.inject(1, 0, Header::ReadRsp(response), &vec![9; bytes]);
    }
    let data = CtsData { connid: None, recv_id, seg_length: 100, seg_offset: 0 };
    world.inject(1, 0, Header::CtsData(data), &[9; 100]);
    world.drive();
    let reasons = world.drop_reasons(0);
    let count = |wanted: fn(&DropReason) -> bool| reasons.iter().filter(|of| wanted(of)).count();
    assert_eq!(count(|of| matches!(of, DropReason::Malformed(_))), 2);
    assert_eq!(count(|of| *of == DropReason::SegmentOutOfRange), 3);
    assert_eq!(count(|of| *of == DropReason::UnknownOperation), 2);
    assert_eq!(world.rma_done().buffer, pattern(100, 1));
}

/// A window is granted once, even if the response that completed the last one is repeated.
#[test]
fn repeated_read_response_grants_no_window() {
    let mut world = world_with(emulated(), Config::default().with(|config| config.cts_window = 1));
    let (_region, iov) = expose(&world, 1, pattern(100_000, 1), BOTH);
    // This read exchanges the HANDSHAKEs.
    world.read(&[iov], 100_000);
    world.forget_packets();
    world.start_read(&[iov], vec![0; 100_000]).unwrap();
    let now = world.now;
    world.endpoint(0).progress(now);
    let request = world.packets_from(0).pop().unwrap();
    let Header::Rtr(rtr) = Packet::parse(&request).unwrap().header else { panic!("no RTR") };
    let payload = vec![0; MTU - 24];
    let answer = ReadRsp {
        connid: Some(world.endpoint(1).address().connid),
        recv_id: rtr.recv_id,
        send_id: OpId(5),
        seg_length: payload.len() as u64,
    };
    for _ in 0..3 {
        world.inject(1, 0, Header::ReadRsp(answer), &payload);
    }
    let later = now + std::time::Duration::from_millis(1);
    world.endpoint(0).progress(later);
    let types = world.types_from(0);
    let grants = types.iter().filter(|packet_type| **packet_type == PacketType::Cts).count();
    assert_eq!(grants, 1, "{types:?}");
    assert_eq!(world.endpoint(0).statistics().dropped, 2);
}

/// Packets may still be in flight after two endpoints have removed and reinserted each other.
#[test]
fn late_response_to_an_old_read_is_dropped() {
    let mut world = world_with(emulated(), Config::default());
    let (region, iov) = expose(&world, 1, pattern(100, 1), BOTH);
    world.read(&[iov], 100);
    let late_by = |seconds| {
        Faults::default().with(|faults| {
            faults.late = 1.0;
            faults.late_by = std::time::Duration::from_secs(seconds);
        })
    };
    world.start_read(&[iov], vec![0; 100]).unwrap();
    let now = world.now;
    world.endpoint(0).progress(now);
    world.network.set_faults(late_by(1));
    while world.types_from(1).iter().filter(|of| **of == PacketType::ReadRsp).count() < 2 {
        world.step();
    }
    world.network.set_faults(Faults::default());
    for (end, other) in [(0, 1), (1, 0)] {
        let peer = world.peer(end, other);
        world.endpoint(end).remove_peer(peer);
        world.peer(end, other);
    }
    world.ends[0].collect();
    assert_eq!(world.rma_done().result, Err(OperationError::PeerRemoved));
    region.write(0, &pattern(100, 2));
    for _ in 1..1024 {
        world.start_read(&[iov], vec![0; 100]).unwrap();
        while world.ends[0].rma.is_empty() {
            world.step();
        }
        assert_eq!(world.rma_done().buffer, pattern(100, 2));
    }
    // The late response arrives while another read is in progress.
    world.network.set_faults(late_by(5));
    world.start_read(&[iov], vec![0; 100]).unwrap();
    world.drive();
    assert_eq!(world.rma_done().buffer, pattern(100, 2));
    assert_eq!(world.drop_reasons(0), [DropReason::UnknownOperation]);
}

#[test]
fn short_read_longer_than_a_packet_is_dropped() {
    let mut world = world_with(emulated(), Config::default());
    let most = MTU - 24;
    let (_region, iov) = expose(&world, 1, pattern(most + 1, 1), BOTH);
    for length in [most, most + 1] {
        let rtr = Rtr {
            rma_iov: &[part(iov, 0, length)],
            kind: RtrKind::Short,
            msg_length: length as u64,
            recv_id: OpId(1),
            recv_length: length as u32,
            options: ReqOptions::NONE,
        };
        world.inject(0, 1, Header::Rtr(rtr), &[]);
        world.drive();
    }
    assert_eq!(world.drop_reasons(1), [DropReason::SegmentOutOfRange]);
    let answers = world
        .packets_from(1)
        .into_iter()
        .filter(|packet| matches!(Packet::parse(packet).unwrap().header, Header::ReadRsp(_)));
    assert_eq!(answers.map(|packet| packet.len()).collect::<Vec<_>>(), [MTU]);
}

#[test]
fn long_read_drops_empty_response_and_grants_the_remainder() {
    let config = Config::default().with(|config| config.cts_window = 1);
    let mut world = world_with(emulated(), config);
    let length = MTU - 20;
    let (_region, iov) = expose(&world, 1, pattern(length, 1), BOTH);
    world.receive(1, 1, 0);
    world.send(0, 1, vec![1], 0);
    world.drive();
    world.take_sends(0);
    world.receive_done(1);
    world.start_read(&[iov], vec![0; length]).unwrap();
    let recv_id = loop {
        world.step();
        let request = world.packets_from(0).pop().unwrap();
        if let Header::Rtr(rtr) = Packet::parse(&request).unwrap().header {
            assert_eq!(rtr.kind, RtrKind::LongCts);
            break rtr.recv_id;
        }
    };
    world.forget_packets();
    let response = ReadRsp { connid: None, recv_id, send_id: OpId(3), seg_length: 0 };
    world.inject(1, 0, Header::ReadRsp(response), &[]);
    world.drive();
    assert_eq!(world.drop_reasons(0), [DropReason::SegmentOutOfRange]);
    let done = world.rma_done();
    assert_eq!((done.result, done.buffer), (Ok(()), pattern(length, 1)));
    let grants = world.packets_from(0).into_iter().filter_map(|packet| {
        match Packet::parse(&packet).unwrap().header {
            Header::Cts(cts) => Some(cts.recv_length),
            _ => None,
        }
    });
    assert_eq!(grants.collect::<Vec<_>>(), [4], "one grant, of the remainder");
}
