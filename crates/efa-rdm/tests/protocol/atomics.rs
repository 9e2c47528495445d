//! Section 3.3: atomics on a peer's memory.

use efa_device::{Access, QueuePair, Status};
use efa_proto::{
    AtomRsp, Header, MsgId, OpId, Packet, PacketType, RawAddressForm, ReqOptions, RmaIov, Rta,
    RtaKind,
};
use efa_rdm::{
    Atomic, AtomicCompletion, AtomicKind, AtomicOp, Bounds, Config, Datatype, DropReason, Event,
    Level, Operands, OperationError, Remote, RemoteUse, StartError,
};
use efa_sim::SoftRegion;
use efa_sim::local::LocalOptions;

use crate::rma::{bytes_of, expose};
use crate::world::{World, pattern};

const BOTH: Access = Access { remote_read: true, remote_write: true };

fn world(seed: u64) -> World {
    let mut world = World::pair(seed);
    world.acquaint();
    world
}

/// Memory of eight-byte counters.
fn counters(world: &World, end: usize, values: &[u64]) -> (SoftRegion, RmaIov) {
    expose(world, end, values.iter().flat_map(|value| value.to_ne_bytes()).collect(), BOTH)
}

fn values(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(8).map(|value| u64::from_ne_bytes(value.try_into().unwrap())).collect()
}

fn bytes(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn fetch(operand: Vec<u8>) -> Operands<Vec<u8>> {
    let fetched = vec![0; operand.len()];
    Operands::Fetch { operand, fetched }
}

impl World {
    fn start_atomic(
        &mut self,
        from: usize,
        to: usize,
        pieces: &[RmaIov],
        op: AtomicOp,
        operands: Operands<Vec<u8>>,
    ) -> Result<(), StartError> {
        let atomic = Atomic {
            peer: self.peer(from, to),
            remote: Remote::new(pieces).unwrap(),
            datatype: Datatype::Uint64,
            op,
            operands,
            level: Level::Transmit,
            context: 5,
        };
        self.endpoint(from).atomic(atomic).map_err(|refused| refused.error)
    }

    fn atomic(
        &mut self,
        pieces: &[RmaIov],
        op: AtomicOp,
        operands: Operands<Vec<u8>>,
    ) -> AtomicCompletion<Vec<u8>> {
        self.start_atomic(0, 1, pieces, op, operands).unwrap();
        self.drive();
        self.ends[0].atomics.pop_front().expect("an atomic has ended")
    }
}

// conformance: A153 A156
#[test]
fn write_atomic_is_one_packet_without_response() {
    let mut world = world(1);
    let (region, iov) = counters(&world, 1, &[10, 20, 30]);
    let done = world.atomic(&[iov], AtomicOp::Sum, Operands::Write { operand: bytes(&[1, 2, 3]) });
    assert_eq!((done.context, done.length, done.result), (5, 24, Ok(())));
    assert_eq!((done.operand, done.comparand, done.fetched), (bytes(&[1, 2, 3]), None, None));
    assert_eq!(values(&bytes_of(&region)), [11, 22, 33]);
    // Atomics are in the baseline, so no HANDSHAKE is needed.
    assert_eq!(world.types_from(0)[0], PacketType::WriteRta);
    assert_eq!(world.types_from(1), [PacketType::Handshake]);
    assert_eq!(world.endpoint(1).statistics().remote_writes, 1);
    world.assert_clean();
}

// conformance: A153 A157
#[test]
fn fetch_atomic_returns_the_previous_values() {
    let mut world = world(2);
    let (region, iov) = counters(&world, 1, &[10, 20, 30]);
    for (op, operand, after) in [
        (AtomicOp::Sum, bytes(&[1, 2, 3]), [11, 22, 33]),
        (AtomicOp::Read, vec![], [11, 22, 33]),
        (AtomicOp::Read, bytes(&[9, 9, 9]), [11, 22, 33]),
        (AtomicOp::Write, bytes(&[7, 8, 9]), [7, 8, 9]),
    ] {
        let before = bytes_of(&region);
        let operands = Operands::Fetch { operand, fetched: vec![0; 24] };
        let done = world.atomic(&[iov], op, operands);
        assert_eq!((done.result, done.fetched), (Ok(()), Some(before)));
        assert_eq!(values(&bytes_of(&region)), after);
        let asked = world.packets_from(0).iter().rev().find_map(|packet| {
            match Packet::parse(packet).unwrap().header {
                Header::Rta(Rta { kind: RtaKind::Fetch { recv_id }, .. }) => Some(recv_id),
                _ => None,
            }
        });
        let answered = world.packets_from(1).pop().unwrap();
        let answer = Packet::parse(&answered).unwrap().header;
        let connid = answer.connid();
        let response = AtomRsp { connid, recv_id: asked.unwrap(), seg_length: 24 };
        assert_eq!(answer, Header::AtomRsp(response));
    }
    world.assert_clean();
}

// conformance: A157 A159
#[test]
fn concurrent_fetch_atomics_of_eight_peers_sum_exactly() {
    let mut world = World::new(LocalOptions::default().with(|options| options.seed = 3));
    for _ in 0..9 {
        world.add(Config::default());
    }
    let (region, iov) = counters(&world, 8, &[0, 0]);
    for round in 0..50 {
        for from in 0..8 {
            world.start_atomic(from, 8, &[iov], AtomicOp::Sum, fetch(bytes(&[1, 3]))).unwrap();
            if round % 7 == from {
                world.step();
            }
        }
    }
    world.drive();
    assert_eq!(values(&bytes_of(&region)), [400, 1200]);
    let mut seen: Vec<u64> = Vec::new();
    for end in &mut world.ends[..8] {
        for done in end.atomics.drain(..) {
            let fetched = values(&done.fetched.unwrap());
            assert_eq!(fetched[1], 3 * fetched[0]);
            seen.push(fetched[0]);
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..400).collect::<Vec<_>>(), "each value was seen once");
    world.assert_clean();
}

// conformance: A153 A158
#[test]
fn compare_atomic_swaps_where_the_comparand_matches() {
    let mut world = world(4);
    let (region, iov) = counters(&world, 1, &[10, 20, 30]);
    let operands = Operands::Compare {
        operand: bytes(&[1, 2, 3]),
        comparand: bytes(&[10, 21, 30]),
        fetched: vec![0; 24],
    };
    let done = world.atomic(&[iov], AtomicOp::CompareSwap, operands);
    assert_eq!((done.result, done.fetched), (Ok(()), Some(bytes(&[10, 20, 30]))));
    assert_eq!((done.operand, done.comparand), (bytes(&[1, 2, 3]), Some(bytes(&[10, 21, 30]))));
    assert_eq!(values(&bytes_of(&region)), [1, 20, 3]);
    let request = world.packets_from(0);
    let payload = request.iter().find_map(|packet| match Packet::parse(packet).unwrap() {
        Packet { header: Header::Rta(_), payload } => Some(payload.to_vec()),
        _ => None,
    });
    assert_eq!(payload.unwrap(), bytes(&[1, 2, 3, 10, 21, 30]), "operand, then comparand");
    world.assert_clean();
}

// conformance: A101 A155
#[test]
fn atomics_and_messages_are_processed_in_send_order() {
    for seed in 0..10 {
        let mut world = world(seed);
        let (region, iov) = counters(&world, 1, &[1]);
        let mut expected = 1_u64;
        let mut log = Vec::new();
        for i in 0..100_u64 {
            // Sums and products don't commute.
            let (op, operand) = if i % 3 == 0 { (AtomicOp::Prod, 3) } else { (AtomicOp::Sum, i) };
            log.push(expected);
            expected = if i % 3 == 0 { expected.wrapping_mul(3) } else { expected.wrapping_add(i) };
            world.start_atomic(0, 1, &[iov], op, fetch(bytes(&[operand]))).unwrap();
            if i % 5 == 0 {
                world.receive(1, 20_000, i);
                world.send(0, 1, pattern(20_000, i), i);
            }
        }
        world.drive();
        assert_eq!(values(&bytes_of(&region)), [expected]);
        let fetched: Vec<u64> =
            world.ends[0].atomics.drain(..).map(|done| values(&done.fetched.unwrap())[0]).collect();
        let mut in_order = fetched;
        in_order.sort_by_key(|value| log.iter().position(|of| of == value));
        assert_eq!(in_order, log);
        for received in world.take_receives(1) {
            assert_eq!(received.buffer, pattern(20_000, received.context));
        }
        world.take_sends(0);
        let ids: Vec<u32> = ids_sent(&mut world);
        assert_eq!(ids, (0..120).collect::<Vec<_>>(), "one sequence");
        world.assert_clean();
    }
}

fn ids_sent(world: &mut World) -> Vec<u32> {
    let mut ids: Vec<u32> = world
        .packets_from(0)
        .iter()
        .filter_map(|packet| match Packet::parse(packet).unwrap().header {
            Header::Rta(rta) => Some(rta.msg_id.0),
            Header::Rtm(rtm) => Some(rtm.msg_id.0),
            _ => None,
        })
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

// conformance: A160
#[test]
fn longest_atomic_is_applied_and_a_longer_one_refused() {
    let mut world = world(6);
    for (kind, op) in [
        (AtomicKind::Write, AtomicOp::Sum),
        (AtomicKind::Fetch, AtomicOp::Sum),
        (AtomicKind::Compare, AtomicOp::CompareSwap),
    ] {
        let limit = world.endpoint(0).atomic_limit(kind) / 8;
        for count in [limit, limit + 1] {
            let (region, iov) = counters(&world, 1, &vec![1; count]);
            let operand = bytes(&vec![5; count]);
            let operands = match kind {
                AtomicKind::Write => Operands::Write { operand },
                AtomicKind::Fetch => fetch(operand),
                AtomicKind::Compare => Operands::Compare {
                    operand,
                    comparand: bytes(&vec![1; count]),
                    fetched: vec![0; 8 * count],
                },
            };
            let pieces = match kind {
                AtomicKind::Compare => vec![iov],
                // The largest header: four remote ranges.
                _ => [0, 1, 2, 3]
                    .map(|i| {
                        let length = if i < 3 { 8 } else { iov.len() - 24 };
                        RmaIov::new(iov.addr() + 8 * i, length, iov.key())
                    })
                    .to_vec(),
            };
            let started = world.start_atomic(0, 1, &pieces, op, operands);
            if count > limit {
                let length = 8 * count as u64;
                let limit = world.endpoint(0).atomic_limit(kind);
                assert_eq!(started, Err(StartError::AtomicTooLong { length, limit }));
                continue;
            }
            assert_eq!(started, Ok(()));
            world.drive();
            assert_eq!(world.ends[0].atomics.pop_front().unwrap().result, Ok(()));
            assert!(values(&bytes_of(&region)).iter().all(|value| *value >= 5));
        }
    }
    world.assert_clean();
}

// conformance: A161
#[test]
fn atomic_target_need_not_be_aligned() {
    let mut world = world(7);
    let (region, whole) = expose(&world, 1, vec![0; 21], BOTH);
    let iov = RmaIov::new(whole.addr() + 3, 16, whole.key());
    world.atomic(&[iov], AtomicOp::Write, Operands::Write { operand: bytes(&[1, u64::MAX]) });
    let done = world.atomic(&[iov], AtomicOp::Sum, fetch(bytes(&[1, 1])));
    assert_eq!(values(&done.fetched.unwrap()), [1, u64::MAX]);
    let after = bytes_of(&region);
    assert_eq!(values(&after[3..19]), [2, 0]);
    assert_eq!((&after[..3], &after[19..]), (&[0; 3][..], &[0; 2][..]));
}

#[test]
fn atomic_applies_to_remote_ranges_in_order() {
    let mut world = world(8);
    let (region, iov) = counters(&world, 1, &[1, 2, 3, 4, 5, 6]);
    let at = |index: u64, count: u64| RmaIov::new(iov.addr() + 8 * index, 8 * count, iov.key());
    let done = world.atomic(&[at(4, 2), at(0, 1)], AtomicOp::Sum, fetch(bytes(&[10, 20, 30])));
    assert_eq!(values(&done.fetched.unwrap()), [5, 6, 1]);
    assert_eq!(values(&bytes_of(&region)), [31, 2, 3, 4, 15, 26]);
}

// conformance: A162
#[test]
fn unknown_atomics_are_refused_by_both_sides() {
    let mut world = world(9);
    let (region, iov) = counters(&world, 1, &[1, 2]);
    let operand = bytes(&[1, 1]);
    let refused = |kind, op| Err(StartError::NoSuchAtomic { kind, op, datatype: Datatype::Uint64 });
    let write = Operands::Write { operand: operand.clone() };
    for op in [AtomicOp::Read, AtomicOp::CompareSwap] {
        let started = world.start_atomic(0, 1, &[iov], op, write.clone());
        assert_eq!(started, refused(AtomicKind::Write, op));
    }
    let halves = [RmaIov::new(iov.addr(), 8, iov.key()), RmaIov::new(iov.addr() + 8, 8, iov.key())];
    let compare = Operands::Compare {
        operand: operand.clone(),
        comparand: operand.clone(),
        fetched: operand.clone(),
    };
    let started = world.start_atomic(0, 1, &halves, AtomicOp::CompareSwap, compare);
    assert_eq!(started, refused(AtomicKind::Compare, AtomicOp::CompareSwap));
    let odd = [RmaIov::new(iov.addr(), 12, iov.key())];
    let started =
        world.start_atomic(0, 1, &odd, AtomicOp::Sum, Operands::Write { operand: vec![0; 12] });
    assert_eq!(started, Err(StartError::NotOfElements { length: 12, size: 8 }));

    let (write, recv_id) = (RtaKind::Write, OpId(1));
    let (fetch, compare) = (RtaKind::Fetch { recv_id }, RtaKind::Compare { recv_id });
    let bad = [
        (write, 14, 2, 16),
        (write, u32::MAX, 2, 16),
        (write, 7, 19, 16),
        (write, 7, u32::MAX, 16),
        (write, 7, 10, 16),
        (write, 7, 12, 16),
        (fetch, 7, 12, 16),
        (compare, 7, 2, 32),
        (write, 9, 6, 16),
        // Lengths that don't fit.
        (write, 7, 2, 15),
        (write, 7, 2, 24),
        (fetch, 7, 10, 8),
        (compare, 7, 12, 31),
        (compare, 7, 12, 16),
        // No number of elements of 32 bytes.
        (write, 13, 2, 16),
    ];
    for (id, (kind, datatype, op, length)) in (0..).zip(bad) {
        let msg_id = MsgId(id);
        let options = ReqOptions::NONE;
        let rta = Rta { msg_id, rma_iov: &[iov], datatype, op, kind, options };
        world.inject(0, 1, Header::Rta(rta), &vec![1; length]);
    }
    world.drive();
    assert_eq!(world.drop_reasons(1), [DropReason::BadAtomic; 15]);
    assert_eq!(values(&bytes_of(&region)), [1, 2]);
    // Their message ids are used up.
    let rta = Rta {
        msg_id: MsgId(15),
        rma_iov: &[iov],
        datatype: 7,
        op: 2,
        kind: RtaKind::Write,
        options: ReqOptions::NONE,
    };
    world.inject(0, 1, Header::Rta(rta), &bytes(&[1, 1]));
    world.drive();
    assert_eq!(values(&bytes_of(&region)), [2, 3]);
}

#[test]
fn atomic_on_unexposed_memory_is_refused_and_messages_continue() {
    let mut world = world(10);
    let readable = Access { remote_read: true, remote_write: false };
    let writable = Access { remote_read: false, remote_write: true };
    let start = || bytes(&[5, 6]);
    let (region, read_only) = expose(&world, 1, start(), readable);
    let (other, write_only) = expose(&world, 1, start(), writable);
    let nowhere = RmaIov::new(1, 16, 99);
    let operand = bytes(&[1, 1]);
    for (iov, op, operands, wanted) in [
        (read_only, AtomicOp::Sum, Operands::Write { operand: operand.clone() }, RemoteUse::Write),
        (read_only, AtomicOp::Sum, fetch(operand.clone()), RemoteUse::ReadWrite),
        (write_only, AtomicOp::Read, fetch(operand.clone()), RemoteUse::Read),
        (write_only, AtomicOp::Sum, fetch(operand.clone()), RemoteUse::ReadWrite),
        (nowhere, AtomicOp::Sum, Operands::Write { operand: operand.clone() }, RemoteUse::Write),
    ] {
        world.start_atomic(0, 1, &[iov], op, operands).unwrap();
        world.drive();
        let refused = world.ends[1].events.drain(..).find_map(|event| match event {
            Event::AccessRefused { error, .. } => Some(error.wanted),
            _ => None,
        });
        assert_eq!(refused, Some(wanted));
    }
    assert_eq!((bytes_of(&region), bytes_of(&other)), (start(), start()));
    world.receive(1, 10, 0);
    world.send(0, 1, pattern(10, 1), 0);
    world.drive();
    assert_eq!(world.receive_done(1).buffer, pattern(10, 1));
    // Permitted atomics are applied.
    let ends: Vec<_> = world.ends[0].atomics.drain(..).map(|done| done.result).collect();
    let refused = OperationError::GivenUp { code: Status::RemoteBadAddress.code().into() };
    assert_eq!(ends.iter().filter(|of| **of == Err(refused)).count(), 3, "those with a response");
    assert!(ends.iter().all(|of| of.is_ok() || *of == Err(refused)), "{ends:?}");
    let done = world.atomic(&[read_only], AtomicOp::Read, fetch(operand.clone()));
    assert_eq!(done.result, Ok(()));
}

// conformance: A175 A182
#[test]
fn delivery_complete_atomic_waits_for_its_receipt() {
    let mut world = world(11);
    let (region, iov) = counters(&world, 1, &[1]);
    for i in 0..3 {
        let atomic = Atomic {
            peer: world.peer(0, 1),
            remote: Remote::new(&[iov]).unwrap(),
            datatype: Datatype::Uint64,
            op: AtomicOp::Sum,
            operands: Operands::Write { operand: bytes(&[1]) },
            level: Level::Delivery,
            context: i,
        };
        world.endpoint(0).atomic(atomic).unwrap();
    }
    while world.ends[0].atomics.is_empty() {
        assert!(world.ends[0].atomics.is_empty());
        world.step();
        let reported = world.types_from(1).contains(&PacketType::Receipt);
        assert!(reported || world.ends[0].atomics.is_empty());
    }
    world.drive();
    assert_eq!(world.ends[0].atomics.drain(..).filter(|done| done.result.is_ok()).count(), 3);
    assert_eq!(values(&bytes_of(&region)), [4]);
    let mut reported: Vec<u32> = world
        .packets_from(1)
        .iter()
        .filter_map(|packet| match Packet::parse(packet).unwrap().header {
            Header::Receipt(receipt) => Some(receipt.msg_id.0),
            _ => None,
        })
        .collect();
    reported.sort_unstable();
    assert_eq!(reported, [0, 1, 2], "the atomics' own");
    let types = world.types_from(0);
    assert_eq!(types.iter().filter(|of| **of == PacketType::DcWriteRta).count(), 3);
    world.assert_clean();
}

#[test]
fn atomic_response_for_unknown_operation_is_dropped() {
    let mut world = world(12);
    let (_region, iov) = counters(&world, 1, &[1]);
    world.atomic(&[iov], AtomicOp::Sum, Operands::Write { operand: bytes(&[1]) });
    for recv_id in [0, 1, u32::MAX] {
        let response = AtomRsp { connid: None, recv_id: OpId(recv_id), seg_length: 8 };
        world.inject(1, 0, Header::AtomRsp(response), &[9; 8]);
    }
    world.drive();
    assert_eq!(world.drop_reasons(0), [DropReason::UnknownOperation; 3]);
}

// conformance: A179
#[test]
fn fetching_atomic_gets_no_receipt() {
    let mut world = world(13);
    let (_region, iov) = counters(&world, 1, &[1]);
    let atomic = Atomic {
        peer: world.peer(0, 1),
        remote: Remote::new(&[iov]).unwrap(),
        datatype: Datatype::Uint64,
        op: AtomicOp::Sum,
        operands: fetch(bytes(&[1])),
        level: Level::Delivery,
        context: 0,
    };
    world.endpoint(0).atomic(atomic).unwrap();
    world.drive();
    assert_eq!(world.ends[0].atomics.pop_front().unwrap().fetched, Some(bytes(&[1])));
    assert_eq!(world.types_from(0)[0], PacketType::FetchRta, "the atomic is sent at once");
    assert!(!world.types_from(1).contains(&PacketType::Receipt));
    world.assert_clean();
}

#[test]
fn atomics_beyond_the_request_bound_of_a_peer_are_dropped() {
    let bounds = Bounds::default().with(|bounds| bounds.requests = 1);
    let config = Config::default().with(|config| config.bounds = bounds);
    let mut world = World::pair_with(1, Config::default(), config);
    world.acquaint();
    let (region, iov) = counters(&world, 1, &[0]);
    for _ in 0..5 {
        world.start_atomic(0, 1, &[iov], AtomicOp::Sum, fetch(bytes(&[1]))).unwrap();
    }
    // An atomic without a response does not count.
    let write = Operands::Write { operand: bytes(&[100]) };
    world.start_atomic(0, 1, &[iov], AtomicOp::Sum, write).unwrap();
    world.drive();
    let ended = |result| world.ends[0].atomics.iter().filter(|of| of.result == result).count();
    let applied = ended(Ok(())) - 1;
    assert_eq!(ended(Err(OperationError::GivenUp { code: 4096 })), 5 - applied);
    assert_eq!(world.drop_reasons(1), vec![DropReason::TooManyOperations; 5 - applied]);
    assert!((1..5).contains(&applied));
    assert_eq!(values(&bytes_of(&region)), [applied as u64 + 100]);
}

#[test]
fn answered_atomics_do_not_count_against_the_request_bound() {
    let bounds = Bounds::default().with(|bounds| bounds.requests = 1);
    let config = Config::default().with(|config| config.bounds = bounds);
    let mut world = World::pair_with(1, Config::default(), config);
    world.acquaint();
    let (_region, iov) = counters(&world, 1, &[0]);
    for before in 0..3 {
        let done = world.atomic(&[iov], AtomicOp::Sum, fetch(bytes(&[1])));
        assert_eq!((done.result, done.fetched), (Ok(()), Some(bytes(&[before]))));
    }
    assert!(world.endpoint(1).is_quiet());
    assert_eq!(world.endpoint(1).statistics().remote_reads, 3);
    world.assert_clean();
}

#[test]
fn atomic_whose_response_exceeds_a_packet_is_dropped() {
    let mut world = world(14);
    let mtu = world.endpoint(0).queue_pair().attributes().mtu as u64;
    // Behind a header of 24 bytes.
    let most = (mtu - 24) / 8 * 8;
    let (_region, iov) = counters(&world, 1, &vec![7; most as usize / 8 + 1]);
    for (msg_id, length) in [(0, most), (1, most + 8)] {
        let (kind, options) = (RtaKind::Fetch { recv_id: OpId(9) }, introduced(&world));
        let rma_iov = [RmaIov::new(iov.addr(), length, iov.key())];
        let (datatype, op) = (Datatype::Uint64.code(), AtomicOp::Read.code());
        let rta = Rta { msg_id: MsgId(msg_id), rma_iov: &rma_iov, datatype, op, kind, options };
        world.inject(0, 1, Header::Rta(rta), &[]);
        world.drive();
    }
    assert_eq!(world.drop_reasons(1), [DropReason::BadAtomic]);
    let answers = world.packets_from(1).into_iter().filter_map(|packet| {
        match Packet::parse(&packet).unwrap().header {
            Header::AtomRsp(response) => Some((response.seg_length, packet.len() as u64)),
            _ => None,
        }
    });
    assert_eq!(answers.collect::<Vec<_>>(), [(most, most + 24)]);
}

fn introduced(world: &World) -> ReqOptions {
    let raw_address = Some((world.ends[0].endpoint.address(), RawAddressForm::Padded));
    ReqOptions { raw_address, ..ReqOptions::NONE }
}

#[test]
fn atomic_with_operands_of_another_length_is_refused() {
    let mut world = world(15);
    let (_region, iov) = counters(&world, 1, &[1, 2]);
    let buffer = |count: usize| vec![0; 8 * count];
    let compare = |operand, comparand, fetched| Operands::Compare {
        operand: buffer(operand),
        comparand: buffer(comparand),
        fetched: buffer(fetched),
    };
    let fetch =
        |operand, fetched| Operands::Fetch { operand: buffer(operand), fetched: buffer(fetched) };
    for (op, operands, buffer) in [
        (AtomicOp::Sum, Operands::Write { operand: buffer(1) }, 8),
        (AtomicOp::Sum, fetch(3, 2), 24),
        (AtomicOp::Sum, fetch(2, 3), 24),
        // A read has no operand, but a buffer for the result.
        (AtomicOp::Sum, fetch(0, 2), 0),
        (AtomicOp::Read, fetch(0, 0), 0),
        (AtomicOp::Read, fetch(1, 2), 8),
        (AtomicOp::CompareSwap, compare(1, 2, 2), 8),
        (AtomicOp::CompareSwap, compare(2, 1, 2), 8),
        (AtomicOp::CompareSwap, compare(2, 2, 1), 8),
    ] {
        let error = StartError::LengthsDiffer { buffer, remote: 16 };
        assert_eq!(world.start_atomic(0, 1, &[iov], op, operands), Err(error));
    }
    assert!(world.all_packets().is_empty());
}
