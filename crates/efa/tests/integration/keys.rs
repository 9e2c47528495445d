//! Memory registered under keys of the device's and of the application's choosing.

use efa::{
    Access, AtomicOp, CompletionQueueOptions, Event, KeyError, Kind, Message, Operation,
    OperationError, Receive, RegistrationMode, RemoteMemory, Rma, Subprotocol,
};
use efa_device::Rdma;

use crate::ends::End;
use crate::world::{ALICE, BOB, World, options, pattern};

const BOTH: Access = Access { remote_read: true, remote_write: true };

/// Alice, and Bob in a domain of his own keys, on devices that have this RDMA.
fn world(rdma: Rdma) -> World {
    let mut world = World::pair_with_rdma(1, rdma);
    world.ends.truncate(1);
    let domain = world.fabric.domain().unwrap().with_registration(RegistrationMode::Scalable);
    world.ends.push(End::on(domain, options(2), CompletionQueueOptions::default()));
    world
}

fn refusals(world: &World) -> Vec<u64> {
    std::iter::from_fn(|| world.end(BOB).event())
        .filter_map(|event| match event {
            Event::AccessRefused { error, .. } => Some(error.key),
            _ => None,
        })
        .collect()
}

// conformance: C101
#[test]
fn basic_registration_has_keys_of_the_device_and_addresses_of_memory() {
    let world = World::pair_with_rdma(2, Rdma::READ_WRITE);
    let domain = &world.ends[BOB].domain;
    assert_eq!(domain.attributes().registration_mode, RegistrationMode::Basic);
    let one = domain.register(vec![0; 100], BOTH).unwrap();
    let two = domain.register(vec![0; 100], BOTH).unwrap();
    assert_ne!(one.key(), two.key());
    assert!(u32::try_from(one.key()).is_ok(), "it fits the size in the attributes");
    let apart = one.remote_address().abs_diff(two.remote_address());
    assert!(one.remote_address() != 0 && apart >= 100, "addresses of two memories");
    let slice = one.slice(10..20).unwrap().remote();
    assert_eq!(slice.address, one.remote_address() + 10);
    let refused = domain.register_keyed(vec![7; 10], 5, BOTH).unwrap_err();
    assert_eq!((refused.error, &*refused.memory), (KeyError::NotScalable, &[7; 10][..]));
    assert_eq!(domain.reserve(5, 10).unwrap_err(), KeyError::NotScalable);
}

// conformance: C102
#[test]
fn peers_access_memory_by_the_key_that_was_asked_for_and_offsets() {
    for rdma in [Rdma::NONE, Rdma::READ_WRITE] {
        for key in [0, 1, u64::from(u32::MAX), 1 << 32, u64::MAX] {
            for length in [1, 100, 20_000, 200_000] {
                let mut world = world(rdma);
                let to_bob = world.introduce(ALICE, BOB);
                world.transfer(Message::to(to_bob), vec![1], Receive::untagged(), 1);
                let domain = world.ends[BOB].domain.clone();
                let region = domain.register_keyed(vec![0; length + 7], key, BOTH).unwrap();
                assert_eq!((region.key(), region.remote_address()), (key, 0));
                let target = RemoteMemory { address: 7, length: length as u64, key };
                assert_eq!(region.slice(7..length + 7).unwrap().remote(), target);
                let rma = Rma::at(to_bob, target).with_data(5);
                let data = pattern(length, 1);
                world.end(ALICE).write(rma.delivery_complete(), data.clone(), 1).unwrap();
                let written = world.done(ALICE);
                assert_ne!(written.subprotocol, Some(Subprotocol::Direct));
                assert_eq!(world.done(BOB).kind, Kind::RemoteWrite);
                let mut bytes = vec![0; length];
                region.read(7, &mut bytes);
                assert!(bytes == data, "key {key:#x}, {length} bytes");
                world.end(ALICE).read(rma, vec![0; length], 2).unwrap();
                assert!(world.done(ALICE).buffer == data);
                assert_eq!(refusals(&world), [0; 0]);
            }
        }
    }
}

#[test]
fn atomics_and_pieces_reach_memory_by_the_keys_that_were_asked_for() {
    let mut world = world(Rdma::READ_WRITE);
    let to_bob = world.introduce(ALICE, BOB);
    let domain = world.ends[BOB].domain.clone();
    let regions =
        [1 << 40, 1 << 50].map(|key| domain.register_keyed(vec![0; 8], key, BOTH).unwrap());
    let rma = Rma::pieces(to_bob, &regions.each_ref().map(efa::MemoryRegion::remote)).unwrap();
    let add = Operation::new(AtomicOp::Sum, &[5_u64, 6]);
    world.end(ALICE).fetch_atomic(rma, add, vec![9; 16], 1).unwrap();
    assert_eq!(world.done(ALICE).buffer, [0; 16]);
    let value = |region: &efa::MemoryRegion| {
        let mut bytes = [0; 8];
        region.read(0, &mut bytes);
        u64::from_ne_bytes(bytes)
    };
    assert_eq!(regions.each_ref().map(value), [5, 6]);
}

// conformance: C102
#[test]
fn key_that_is_taken_is_refused_until_its_region_is_gone() {
    let world = world(Rdma::NONE);
    let domain = &world.ends[BOB].domain;
    assert_eq!(domain.attributes().registration_mode, RegistrationMode::Scalable);
    assert_eq!(domain.attributes().mr_key_size, 8);
    let region = domain.register_keyed(vec![0; 8], 77, BOTH).unwrap();
    let refused = domain.register_keyed(vec![7; 10], 77, BOTH).unwrap_err();
    assert_eq!((refused.error, &*refused.memory), (KeyError::Taken { key: 77 }, &[7; 10][..]));
    assert_eq!(domain.reserve(77, 1).unwrap_err(), KeyError::Taken { key: 77 });
    let slice = region.slice(0..1).unwrap();
    drop(region);
    assert!(domain.reserve(77, 1).is_err(), "a slice still uses it");
    drop(slice);
    let reserved = domain.reserve(77, 1).unwrap();
    assert_eq!((reserved.key(), reserved.length()), (77, 1));
    assert!(domain.register_keyed(vec![0; 8], 77, BOTH).is_err(), "reserved");
    drop(reserved);
    let _region = domain.register_keyed(vec![0; 8], 77, BOTH).unwrap();
    // Another domain has keys of its own, and memory without a chosen key gets one that is free.
    let other = domain.with_registration(RegistrationMode::Scalable);
    let _same = other.register_keyed(vec![0; 8], 77, BOTH).unwrap();
    let _taken = other.register_keyed(vec![0; 8], (1 << 63) + 1, BOTH).unwrap();
    let keys = [(); 3].map(|()| other.register(vec![0; 8], BOTH).unwrap());
    assert_eq!(keys.map(|region| region.key()), [1 << 63, (1 << 63) + 2, (1 << 63) + 3]);
}

// conformance: C102
#[test]
fn access_by_a_key_without_memory_touches_nothing_and_fails_where_there_is_an_answer() {
    let mut world = world(Rdma::READ_WRITE);
    let to_bob = world.introduce(ALICE, BOB);
    world.transfer(Message::to(to_bob), vec![1], Receive::untagged(), 1);
    let domain = world.ends[BOB].domain.clone();
    let key = 0xfeed_0000_0007;
    let reserved = domain.reserve(key, 100).unwrap();
    let rma = Rma::at(to_bob, reserved.remote());
    world.end(ALICE).read(rma, vec![0; 100], 1).unwrap();
    let failed = world.failed(ALICE);
    assert!(matches!(failed.error, OperationError::GivenUp { .. }), "{failed:?}");
    world.end(ALICE).write(rma.delivery_complete(), vec![1; 100], 2).unwrap();
    assert!(matches!(world.failed(ALICE).error, OperationError::GivenUp { .. }));
    let fetch = Operation::new(AtomicOp::Sum, &[1_u8; 100]);
    world.end(ALICE).fetch_atomic(rma, fetch, vec![0; 100], 3).unwrap();
    assert!(matches!(world.failed(ALICE).error, OperationError::GivenUp { .. }));
    assert_eq!(refusals(&world), [key; 3]);
    let refused = domain.reserve(1, 5).unwrap().back(vec![0; 6], BOTH).unwrap_err();
    assert_eq!(refused.error, KeyError::WrongLength { length: 6, reserved: 5 });
    let region = reserved.back(vec![3; 100], BOTH).unwrap();
    world.end(ALICE).read(rma, vec![0; 100], 4).unwrap();
    assert_eq!(world.done(ALICE).buffer, [3; 100]);
    // The end of the region is checked, also by hostile offsets.
    for (address, length) in [(1, 100), (100, 1), (u64::MAX, 1), (u64::MAX - 10, 100)] {
        let beyond = RemoteMemory { address, length, key };
        world.end(ALICE).read(Rma::at(to_bob, beyond), vec![0; length as usize], 5).unwrap();
        assert!(matches!(world.failed(ALICE).error, OperationError::GivenUp { .. }));
    }
    drop(region);
    world.end(ALICE).read(rma, vec![0; 100], 6).unwrap();
    assert!(matches!(world.failed(ALICE).error, OperationError::GivenUp { .. }));
}
