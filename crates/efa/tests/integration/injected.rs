//! Injected writes and atomics, operands that are lent, and regions whose registration ends early.

use efa::{
    Access, AtomicOp, Datatype, Event, ForeignMemory, Kind, LocalAccess, Message, Operation,
    OperationError, Receive, RegistrationMode, Rma, StartError,
};
use efa_device::Rdma;

use crate::lent::{lend, lend_mut};
use crate::world::{ALICE, BOB, World, pattern};

const BOTH: Access = Access { remote_read: true, remote_write: true };

#[test]
fn injected_write_changes_the_memory_and_has_no_completion() {
    for rdma in [Rdma::NONE, Rdma::READ_WRITE] {
        let mut world = World::pair_with_rdma(1, rdma);
        let to_bob = world.introduce(ALICE, BOB);
        let target = world.ends[BOB].domain.register(vec![0; 100], BOTH).unwrap();
        let rma = Rma::at(to_bob, target.remote().slice(10..15).unwrap());
        let mut bytes = *b"hello";
        for with_data in [false, true] {
            let rma = if with_data { rma.with_data(7) } else { rma };
            world.end(ALICE).inject_write(rma, &bytes).unwrap();
            bytes.fill(b'x');
            assert!(world.is_silent(ALICE), "{rdma:?}");
            let mut written = [0; 5];
            target.read(10, &mut written);
            assert_eq!(&written, if with_data { b"xxxxx" } else { b"hello" });
            if with_data {
                let told = world.done(BOB);
                assert_eq!((told.kind, told.cq_data, told.length), (Kind::RemoteWrite, Some(7), 5));
            }
        }
        assert!(world.ends[BOB].entries.is_empty());
    }
}

#[test]
fn injected_operation_that_is_too_long_or_fails_is_an_error() {
    let mut world = World::pair(2);
    let to_bob = world.introduce(ALICE, BOB);
    let limit = world.end(ALICE).transmit_attributes().inject_size;
    let target = world.ends[BOB].domain.register(vec![0; limit + 8], BOTH).unwrap();
    let write = |length: usize| {
        let rma = Rma::at(to_bob, target.remote().slice(0..length as u64).unwrap());
        world.end(ALICE).inject_write(rma, &vec![1; length])
    };
    assert!(write(limit).is_ok());
    let refused = write(limit + 1).unwrap_err();
    assert!(matches!(refused, StartError::TooLongToInject { length, limit: l } if length == l + 1));
    let length = limit.next_multiple_of(8) + 8;
    let sum = Operation::of_bytes(AtomicOp::Sum, Datatype::Uint64, vec![0; length]);
    let refused = world.end(ALICE).inject_atomic(Rma::at(to_bob, target.remote()), sum);
    assert!(matches!(refused, Err(StartError::TooLongToInject { .. })), "{refused:?}");
    world.drive();
    // The peer is gone: both fail later, and only that completes.
    world.ends.truncate(1);
    let one = Operation::new(AtomicOp::Sum, &[1_u64]);
    let rma = Rma::at(to_bob, target.remote().slice(0..8).unwrap());
    world.end(ALICE).inject_write(rma, &[0; 8]).unwrap();
    world.end(ALICE).inject_atomic(rma, one).unwrap();
    let mut kinds = [world.failed(ALICE), world.failed(ALICE)].map(|failed| {
        assert!(matches!(failed.error, OperationError::Device(_)), "{:?}", failed.error);
        format!("{:?}", failed.completion.kind)
    });
    kinds.sort();
    assert_eq!(kinds, ["Atomic", "Write"]);
    assert!(world.is_silent(ALICE));
}

#[test]
fn injected_atomic_changes_the_memory_and_has_no_completion() {
    let mut world = World::pair(3);
    let to_bob = world.introduce(ALICE, BOB);
    let target = world.ends[BOB].domain.register(vec![0; 16], BOTH).unwrap();
    let rma = Rma::at(to_bob, target.remote());
    for _ in 0..3 {
        let mut operand: Vec<u8> = [5_u64, 7].iter().flat_map(|n| n.to_ne_bytes()).collect();
        let sum = Operation::of_bytes(AtomicOp::Sum, Datatype::Uint64, lend(&operand));
        world.end(ALICE).inject_atomic(rma, sum).unwrap();
        operand.fill(0xff);
    }
    assert!(world.is_silent(ALICE) && world.is_silent(BOB));
    let mut sums = [0; 16];
    target.read(0, &mut sums);
    let [first, second] =
        [&sums[..8], &sums[8..]].map(|n| u64::from_ne_bytes(n.try_into().unwrap()));
    assert_eq!((first, second), (15, 21));
}

#[test]
fn operands_and_previous_values_of_an_atomic_are_lent() {
    let mut world = World::pair(4);
    let to_bob = world.introduce(ALICE, BOB);
    let target = world.ends[BOB].domain.register(vec![1, 2, 3, 4], BOTH).unwrap();
    let rma = Rma::at(to_bob, target.remote());
    let (operand, comparand, mut before) = ([9_u8; 4], [1_u8, 0, 3, 0], [0_u8; 4]);
    let swap = Operation::of_bytes(AtomicOp::CompareSwap, Datatype::Uint8, lend(&operand));
    let swap = swap.against_bytes(lend(&comparand));
    world.end(ALICE).fetch_atomic(rma, swap, lend_mut(&mut before), 1).unwrap();
    let done = world.done(ALICE);
    assert_eq!(done.buffer.as_slice().unwrap().as_ptr(), before.as_ptr());
    drop(done);
    let mut after = [0; 4];
    target.read(0, &mut after);
    assert_eq!((before, after), ([1, 2, 3, 4], [9, 2, 9, 4]));
}

#[test]
fn revoked_region_is_accessed_by_nobody_and_its_key_is_free() {
    const LENGTH: usize = 300_000;
    for rdma in [Rdma::NONE, Rdma::READ_WRITE] {
        let mut under_way = 0;
        for wait in (0..40).step_by(5) {
            let mut world = World::pair_with_rdma(wait, rdma);
            let to_bob = world.introduce(ALICE, BOB);
            let memory = foreign(LENGTH);
            let domain = &world.ends[BOB].domain;
            let region = domain.register_foreign(&memory, BOTH, LocalAccess::all()).unwrap();
            assert_eq!(region.remote_address(), memory.as_ptr().addr().get() as u64);
            let rma = Rma::at(to_bob, region.remote()).delivery_complete();
            world.end(ALICE).write(rma, pattern(LENGTH, 1), 1).unwrap();
            for _ in 0..wait {
                world.read();
                world.tick();
            }
            let slice = region.slice(0..LENGTH).unwrap();
            assert!(region.revoke() && region.revoke());
            let mut before = vec![0; LENGTH];
            memory.read(0, &mut before);
            under_way += usize::from(before.iter().any(|byte| *byte != 0));
            world.drive_for(std::time::Duration::from_millis(10));
            let mut after = vec![0; LENGTH];
            memory.read(0, &mut after);
            assert!(before == after, "{rdma:?}, after {wait} steps");
            let result = world.entry(ALICE);
            assert_eq!(result.is_ok(), after == pattern(LENGTH, 1), "{rdma:?}, after {wait} steps");
            assert_eq!((slice.to_vec(), region.write(0, &[1])), (vec![0; LENGTH], 0));
        }
        assert!(under_way > 0, "no write had begun");
    }
    let world = World::pair(5);
    let scalable = world.ends[ALICE].domain.with_registration(RegistrationMode::Scalable);
    let register = || scalable.register_foreign_keyed(&foreign(8), 7, BOTH, LocalAccess::all());
    let first = register().unwrap();
    assert!(first.revoke());
    let second = register().unwrap();
    drop(first);
    assert!(register().is_err(), "the key is the second region's");
    drop(second);
    assert!(register().is_ok());
    // Memory that belongs to the region stays.
    let owned = scalable.register(vec![1; 8], BOTH).unwrap();
    assert!(!owned.revoke());
    assert_eq!(owned.slice(0..8).unwrap().to_vec(), [1; 8]);
}

/// Packets are used again, so one whose bytes couldn't be copied has those of a message to somebody else.
#[test]
fn read_of_a_region_that_is_revoked_meanwhile_fails_and_gives_none_but_its_bytes() {
    const LENGTH: usize = 300_000;
    const SECRET: u8 = 0xee;
    let (mut failed, mut begun) = (0, 0);
    for wait in (0..40).step_by(5) {
        let mut world = World::pair_with_rdma(wait, Rdma::NONE);
        let (to_bob, to_alice) = (world.introduce(ALICE, BOB), world.introduce(BOB, ALICE));
        world.end(ALICE).receive(Receive::untagged(), vec![0; LENGTH], 0).unwrap();
        world.end(BOB).send(Message::to(to_alice), vec![SECRET; LENGTH], 0).unwrap();
        world.drive();
        let (_, _) = (world.done(ALICE), world.done(BOB));

        let memory = foreign(LENGTH);
        memory.write(0, &[1; LENGTH]);
        let domain = &world.ends[BOB].domain;
        let region = domain.register_foreign(&memory, BOTH, LocalAccess::all()).unwrap();
        let rma = Rma::at(to_bob, region.remote());
        world.end(ALICE).read(rma, vec![0; LENGTH], 1).unwrap();
        for _ in 0..wait {
            world.read();
            world.tick();
        }
        assert!(region.revoke());
        world.drive_for(std::time::Duration::from_millis(10));
        let (error, done) = match world.entry(ALICE) {
            Ok(done) => (None, done),
            Err(failed) => (Some(failed.error), *failed.completion),
        };
        let bytes = done.buffer.into_vec();
        assert!(bytes.iter().all(|byte| *byte <= 1), "after {wait} steps");
        let read = bytes.iter().filter(|byte| **byte == 1).count();
        assert_eq!(error.is_none(), read == LENGTH, "after {wait} steps: {error:?}");
        begun += usize::from(error.is_some() && read > 0);
        failed += usize::from(error.is_some());
    }
    assert!(begun > 0 && failed > begun, "{failed} failed, {begun} of them had begun");
}

#[test]
fn message_from_a_revoked_region_has_none_but_its_bytes() {
    const LENGTH: usize = 100_000;
    let mut world = World::pair_with_rdma(8, Rdma::NONE);
    let to_bob = world.introduce(ALICE, BOB);
    for (secret, context) in [(true, 0), (false, 1)] {
        world.end(BOB).receive(Receive::untagged(), vec![0; LENGTH], context).unwrap();
        let domain = &world.ends[ALICE].domain;
        if secret {
            world.end(ALICE).send(Message::to(to_bob), vec![0xee; LENGTH], context).unwrap();
        } else {
            let region = domain.register_foreign(&foreign(LENGTH), BOTH, LocalAccess::all());
            let region = region.unwrap();
            world
                .end(ALICE)
                .send(Message::to(to_bob), region.slice(0..LENGTH).unwrap(), context)
                .unwrap();
            assert!(region.revoke());
        }
        world.drive();
        let (received, _) = (world.done(BOB).buffer.into_vec(), world.done(ALICE));
        let wanted = if secret { 0xee } else { 0 };
        assert!(received.iter().all(|byte| *byte == wanted));
    }
}

#[test]
fn access_to_a_revoked_region_is_refused_and_told() {
    let mut world = World::pair_with_rdma(6, Rdma::NONE);
    let to_bob = world.introduce(ALICE, BOB);
    let region = world.ends[BOB].domain.register_foreign(&foreign(8), BOTH, LocalAccess::all());
    let region = region.unwrap();
    let rma = Rma::at(to_bob, region.remote());
    assert!(region.revoke());
    world.end(ALICE).inject_write(rma, &[1; 8]).unwrap();
    world.drive();
    let mut events = std::iter::from_fn(|| world.end(BOB).event());
    assert!(events.any(|event| matches!(event, Event::AccessRefused { .. })));
}

#[allow(unsafe_code, reason = "the constructor of foreign memory is unsafe")]
fn foreign(length: usize) -> ForeignMemory {
    let base = std::ptr::NonNull::from(Box::leak(vec![0_u8; length].into_boxed_slice())).cast();
    // SAFETY: the bytes are never freed, and nobody else knows them.
    unsafe { ForeignMemory::new(base, length, ()) }
}
