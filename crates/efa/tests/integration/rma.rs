//! Writes, reads and atomics on memory of a peer.

use efa::{
    Access, AtomicKind, AtomicOp, AtomicRefused, Capabilities, Datatype, Event, Kind, MemoryRegion,
    Operation, RemoteMemory, Rma, StartError, Subprotocol,
};
use efa_device::Rdma;

use crate::world::{ALICE, BOB, World, options, pattern};

const BOTH: Access = Access { remote_read: true, remote_write: true };

fn world(rdma: Rdma) -> World {
    World::pair_with_rdma(1, rdma)
}

fn bytes(region: &MemoryRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes);
    bytes
}

fn values(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(8).map(|value| u64::from_ne_bytes(value.try_into().unwrap())).collect()
}

// conformance: C112 C116 A131
#[test]
fn writes_and_reads_work_with_every_kind_of_buffer() {
    for (rdma, how) in [(Rdma::READ_WRITE, Subprotocol::Direct), (Rdma::NONE, Subprotocol::LongCts)]
    {
        let mut world = world(rdma);
        let to_bob = world.introduce(ALICE, BOB);
        let length = 200_000;
        let memory = world.ends[BOB].domain.register(vec![0; length], BOTH).unwrap();
        let own = world.ends[ALICE].domain.register(pattern(length, 1), Access::default()).unwrap();
        let sources: [efa::Buffer; 3] = [
            pattern(length, 1).into(),
            bytes::Bytes::from(pattern(length, 1)).into(),
            own.slice(0..length).unwrap().into(),
        ];
        for source in sources {
            memory.write(0, &vec![0; length]);
            world.end(ALICE).write(Rma::at(to_bob, memory.remote()), source.clone(), 3).unwrap();
            let done = world.done(ALICE);
            assert_eq!((done.kind, done.context, done.length), (Kind::Write, 3, length as u64));
            assert_eq!((done.peer, done.subprotocol), (Some(to_bob), Some(how)));
            assert_eq!((done.buffer, bytes(&memory)), (source, pattern(length, 1)));
        }
        let targets: [efa::ReceiveBuffer; 2] =
            [vec![0; length].into(), own.slice(0..length).unwrap().into()];
        memory.write(0, &pattern(length, 2));
        for target in targets {
            world.end(ALICE).read(Rma::at(to_bob, memory.remote()), target, 4).unwrap();
            let done = world.done(ALICE);
            assert_eq!((done.kind, done.context, done.length), (Kind::Read, 4, length as u64));
            assert_eq!(done.subprotocol, Some(how));
            assert_eq!(done.buffer, pattern(length, 2));
        }
    }
}

// conformance: C112
#[test]
fn write_to_several_pieces_with_cq_data_completes_at_the_peer() {
    for rdma in [Rdma::READ_WRITE, Rdma::NONE] {
        let mut world = world(rdma);
        let to_bob = world.introduce(ALICE, BOB);
        let to_alice = world.introduce(BOB, ALICE);
        let memory = world.ends[BOB].domain.register(vec![0; 100], BOTH).unwrap();
        let upper = memory.slice(60..100).unwrap().remote();
        let pieces = [upper, memory.remote().slice(0..10).unwrap()];
        let rma = Rma::pieces(to_bob, &pieces).unwrap().with_data(0x1234_5678_9abc);
        world.end(ALICE).write(rma, pattern(50, 1), 1).unwrap();
        let written = world.done(BOB);
        assert_eq!((written.kind, written.cq_data), (Kind::RemoteWrite, Some(0x1234_5678_9abc)));
        assert_eq!((written.length, written.peer), (50, Some(to_alice)));
        assert_eq!(world.done(ALICE).kind, Kind::Write);
        let after = bytes(&memory);
        assert_eq!([&after[60..], &after[..10]].concat(), pattern(50, 1));
        assert_eq!(after[10..60], [0; 50]);
        world.end(ALICE).read(Rma::pieces(to_bob, &pieces).unwrap(), vec![0; 50], 2).unwrap();
        assert_eq!(world.done(ALICE).buffer, pattern(50, 1));
        assert!(Rma::pieces(to_bob, &[upper; 5]).is_err());
        let refused = world.end(ALICE).write(Rma::at(to_bob, upper), vec![0; 41], 3).unwrap_err();
        assert_eq!(refused.error, StartError::LengthsDiffer { buffer: 41, remote: 40 });
    }
}

// conformance: A131
#[test]
fn atomics_change_elements_and_return_previous_values() {
    let mut world = world(Rdma::READ_WRITE);
    let to_bob = world.introduce(ALICE, BOB);
    let memory = world.ends[BOB].domain.register(vec![0; 24], BOTH).unwrap();
    let counters = Rma::at(to_bob, memory.remote());
    let add = Operation::new(AtomicOp::Sum, &[1_u64, 2, 3]);
    world.end(ALICE).atomic(counters, add.clone(), 1).unwrap();
    let done = world.done(ALICE);
    assert_eq!((done.kind, done.context, done.length), (Kind::Atomic, 1, 24));
    assert!(done.buffer.is_empty());
    world.end(ALICE).atomic(counters.delivery_complete(), add.clone(), 2).unwrap();
    world.done(ALICE);
    assert_eq!(values(&bytes(&memory)), [2, 4, 6], "both have been done");
    world.end(ALICE).fetch_atomic(counters, add, vec![0; 24], 3).unwrap();
    assert_eq!(values(&world.done(ALICE).buffer.into_vec()), [2, 4, 6]);
    let swap = Operation::compare_swap(&[3, 0, 9], &[7_u64; 3]);
    world.end(ALICE).fetch_atomic(counters, swap.clone(), vec![0; 24], 4).unwrap();
    assert_eq!(values(&world.done(ALICE).buffer.into_vec()), [3, 6, 9]);
    let read = Operation::read(Datatype::Uint64);
    world.end(ALICE).fetch_atomic(counters, read, vec![0; 24], 5).unwrap();
    assert_eq!(values(&world.done(ALICE).buffer.into_vec()), [7, 6, 7]);
    assert!(
        world.end(ALICE).atomic(counters, swap, 6).is_err(),
        "the previous values would be lost"
    );
    assert!(world.end(ALICE).atomic_limit(AtomicKind::Compare) >= 4000);
}

// conformance: C106
#[test]
fn access_without_permission_changes_nothing_and_is_an_event() {
    let mut world = world(Rdma::NONE);
    let to_bob = world.introduce(ALICE, BOB);
    let to_write = Access { remote_read: false, remote_write: true };
    let memory = world.ends[BOB].domain.register(vec![7; 8], to_write).unwrap();
    let made_up = RemoteMemory { key: memory.key() ^ 1, ..memory.remote() };
    world.end(ALICE).write(Rma::at(to_bob, made_up), vec![1; 8], 1).unwrap();
    assert_eq!(
        world.done(ALICE).kind,
        Kind::Write,
        "the protocol has no response, so the writer gets no error"
    );
    world.end(ALICE).read(Rma::at(to_bob, memory.remote()), vec![0; 8], 2).unwrap();
    world.drive();
    assert_eq!(bytes(&memory), [7; 8]);
    let refused = std::iter::from_fn(|| world.end(BOB).event())
        .filter(|event| matches!(event, Event::AccessRefused { .. }));
    assert_eq!(refused.count(), 2);
}

// conformance: C7
#[test]
fn rma_and_atomics_are_refused_unless_enabled() {
    let mut world = World::empty();
    let messages = Capabilities::MSG;
    world.add(options(1).capabilities(messages));
    world.add(options(2));
    let to_bob = world.introduce(ALICE, BOB);
    let memory = RemoteMemory { address: 0, length: 8, key: 0 };
    let rma = Rma::at(to_bob, memory);
    let alice = world.end(ALICE);
    let disabled = StartError::Disabled(Capabilities::RMA);
    assert_eq!(alice.write(rma, vec![0; 8], 1).unwrap_err().error, disabled);
    assert_eq!(alice.read(rma, vec![0; 8], 1).unwrap_err().error, disabled);
    let add = Operation::new(AtomicOp::Sum, &[1_u64]);
    let disabled = StartError::Disabled(Capabilities::ATOMIC);
    let expected = |fetched: Vec<u8>| AtomicRefused {
        error: disabled.clone(),
        operation: Box::new(add.clone()),
        fetched: fetched.into(),
    };
    assert_eq!(alice.atomic(rma, add.clone(), 1), Err(expected(Vec::new())));
    assert_eq!(alice.fetch_atomic(rma, add.clone(), vec![0; 8], 1), Err(expected(vec![0; 8])));
    // All that it needs to be started again comes back, comparands too.
    let swap = Operation::compare_swap(&[1_u64], &[2]);
    let refused = alice.fetch_atomic(rma, swap.clone(), vec![0; 8], 1).unwrap_err();
    assert_eq!(*refused.operation, swap);
    assert_eq!(*alice.atomic(rma, swap.clone(), 1).unwrap_err().operation, swap);
}

/// Does this atomic on so many elements.
fn do_atomic(
    world: &mut World,
    rma: Rma,
    (op, datatype, kind): (AtomicOp, Datatype, AtomicKind),
    length: usize,
) -> Result<(), StartError> {
    let operand = Operation::of_bytes(op, datatype, vec![1; length]);
    let alice = world.end(ALICE);
    let started = match kind {
        AtomicKind::Write => alice.atomic(rma, operand, 1),
        AtomicKind::Fetch => alice.fetch_atomic(rma, operand, vec![0; length], 1),
        AtomicKind::Compare => {
            let operand = operand.against_bytes(vec![1; length]);
            alice.fetch_atomic(rma, operand, vec![0; length], 1)
        }
    };
    let started = started.map_err(|refused| refused.error);
    if started.is_ok() {
        let done = world.done(ALICE);
        let expected = match kind {
            AtomicKind::Write => Kind::Atomic,
            AtomicKind::Fetch | AtomicKind::Compare => Kind::FetchAtomic,
        };
        assert_eq!((done.kind, done.length), (expected, length as u64));
    }
    started
}

// conformance: C113
#[test]
fn atomics_are_possible_exactly_up_to_the_attributes_that_the_domain_tells() {
    let mut world = world(Rdma::READ_WRITE);
    let to_bob = world.introduce(ALICE, BOB);
    let memory = world.ends[BOB].domain.register(vec![0; 20_000], BOTH).unwrap();
    let domain = world.ends[ALICE].domain.clone();
    let mut offered = 0;
    for kind in [AtomicKind::Write, AtomicKind::Fetch, AtomicKind::Compare] {
        let of_op = |&op| Datatype::ALL.iter().map(move |&datatype| (op, datatype));
        for (op, datatype) in AtomicOp::ALL.iter().flat_map(of_op) {
            let what = (op, datatype, kind);
            let mut with = |length| {
                let rma = Rma::at(to_bob, memory.remote().slice(0..length as u64).unwrap());
                do_atomic(&mut world, rma, what, length)
            };
            let size = datatype.size();
            let Some(attributes) = domain.atomic(op, datatype, kind) else {
                let error = efa_rdm::StartError::NoSuchAtomic { kind, op, datatype };
                assert_eq!(with(size), Err(error.into()));
                continue;
            };
            offered += 1;
            assert_eq!(attributes.size, size);
            let most = attributes.count * size;
            assert_eq!(with(size), Ok(()), "{what:?}");
            assert_eq!(with(most), Ok(()), "{what:?}");
            let beyond = with(most + size);
            let too_long = matches!(
                beyond,
                Err(StartError::Engine(efa_rdm::StartError::AtomicTooLong { length, .. }))
                    if length == (most + size) as u64
            );
            assert!(too_long, "{what:?}: {beyond:?}");
        }
    }
    // The guide's table: of 19 operations and 14 types.
    assert!((300..798).contains(&offered), "{offered} combinations");
}
