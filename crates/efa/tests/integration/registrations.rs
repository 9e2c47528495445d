//! The registration cache.

use efa::{
    Access, DeviceError, Domain, Fabric, LocalAccess, LocalOptions, Message, Receive,
    RegistrationLimits, RegistrationMode, Subprotocol,
};

use crate::world::{ALICE, BOB, World, pattern, with};

const READABLE: Access = Access { remote_read: true, remote_write: false };
const MINE: Access = Access { remote_read: false, remote_write: false };

fn domain(max_regions: usize) -> Domain {
    let options = LocalOptions::default().with(|options| options.max_regions = max_regions);
    Fabric::local(options).domain().unwrap()
}

#[test]
fn registration_cache_reuses_one_region_for_successive_buffers() {
    // The device has no space for a second region.
    let domain = domain(1);
    let mut keys = Vec::new();
    for length in [100_000, 70_000, 131_072, 65_537] {
        let buffer = domain.registered(length, READABLE).unwrap();
        assert_eq!((buffer.len(), buffer.region().access()), (length, READABLE));
        assert_eq!(domain.registrations().idle, 0, "it is in use");
        keys.push(buffer.region().key());
    }
    assert_eq!(keys, [keys[0]; 4]);
    let counts = domain.registrations();
    assert_eq!((counts.registered, counts.reused, counts.deregistered), (1, 3, 0));
    assert_eq!((counts.idle, counts.idle_bytes), (1, 131_072));
}

#[test]
fn registration_cache_reuses_only_idle_regions_of_same_size_and_access() {
    let domain = domain(100);
    let first = domain.registered(5000, MINE).unwrap();
    let part = first.region().slice(10..20).unwrap();
    let second = domain.registered(5000, MINE).unwrap();
    assert_ne!(first.region().key(), second.region().key());
    drop(first);
    assert_eq!(domain.registrations().idle, 0, "a part of it is in use");
    drop(part);
    assert_eq!(domain.registrations().idle, 1);
    for (length, access) in [(5000, READABLE), (9000, MINE), (4096, MINE)] {
        let _other = domain.registered(length, access).unwrap();
    }
    let counts = domain.registrations();
    assert_eq!((counts.registered, counts.reused, counts.idle), (5, 0, 4));
}

#[test]
fn registration_cache_evicts_the_least_recently_used_above_its_limits() {
    let domain = domain(100);
    let some =
        |count| -> Vec<_> { (0..count).map(|_| domain.registered(4096, MINE).unwrap()).collect() };
    domain.limit_registrations(RegistrationLimits::new(3, usize::MAX));
    let buffers = some(5);
    let keys: Vec<u64> = buffers.iter().map(|buffer| buffer.region().key()).collect();
    buffers.into_iter().for_each(drop);
    let counts = domain.registrations();
    assert_eq!((counts.idle, counts.idle_bytes, counts.deregistered), (3, 3 * 4096, 2));
    let again = some(3);
    let newest_first: Vec<u64> = again.iter().map(|buffer| buffer.region().key()).collect();
    assert_eq!(newest_first, [keys[4], keys[3], keys[2]]);
    drop(again);

    domain.limit_registrations(RegistrationLimits::new(3, 2 * 4096));
    assert_eq!(domain.registrations().idle, 2);
    drop(domain.registered(1 << 20, MINE).unwrap());
    assert_eq!(domain.registrations().idle, 0, "it is larger than the limit");
    domain.limit_registrations(RegistrationLimits::new(0, usize::MAX));
    drop(some(2));
    assert_eq!(domain.registrations().idle, 0);
}

#[test]
fn idle_registrations_make_room_for_memory_of_the_program() {
    let fill = |domain: &Domain| {
        let two = [4096, 8192].map(|length| domain.registered(length, MINE).unwrap());
        drop(two);
        assert_eq!(domain.registrations().idle, 2);
    };
    let domain = domain(2);
    fill(&domain);
    let first = domain.register(vec![7; 100], MINE).unwrap();
    let second = domain.allocate(100, MINE, LocalAccess::all()).unwrap();
    let counts = domain.registrations();
    assert_eq!((counts.deregistered, counts.idle), (2, 0));
    let refused = domain.register(vec![7; 100], MINE).unwrap_err();
    assert!(matches!(refused.error, DeviceError::LimitReached { .. }), "{refused}");
    assert_eq!(*refused.memory, [7; 100]);
    drop((first, second));

    let scalable = domain.with_registration(RegistrationMode::Scalable);
    fill(&scalable);
    let regions = [1, 2].map(|key| scalable.register_keyed(vec![0; 100], key, MINE).unwrap());
    assert_eq!(regions.map(|region| region.key()), [1, 2]);
}

#[test]
fn invalidated_registrations_are_deregistered() {
    let domain = domain(100);
    let buffers: Vec<_> = (0..3).map(|_| domain.registered(4096, READABLE).unwrap()).collect();
    let remote: Vec<_> = buffers.iter().map(|buffer| buffer.region().remote()).collect();
    let [_, kept, used] = <[_; 3]>::try_from(buffers).unwrap();
    drop(kept);
    let one = remote[0].address + 4095..remote[0].address + 4096;
    assert_eq!(domain.invalidate_registrations(one.clone()), 1);
    assert_eq!(domain.invalidate_registrations(one), 0);
    let end = remote[1].address + 4096;
    assert_eq!(domain.invalidate_registrations(end..end), 0, "an empty range");
    assert_eq!(domain.registrations().idle, 1);
    // A region in use stays, and is idle later.
    assert_eq!(domain.invalidate_registrations(0..u64::MAX), 1);
    drop(used);
    assert_eq!(domain.registrations().idle, 1);
    assert_eq!(domain.invalidate_registrations(0..u64::MAX), 1);
    assert_eq!(domain.registrations().idle_bytes, 0);
}

#[test]
fn registration_cache_deregisters_idle_regions_when_the_device_is_full() {
    let domain = domain(2);
    drop(domain.registered(4096, MINE).unwrap());
    let large = domain.registered(10_000, MINE).unwrap();
    let larger = domain.registered(100_000, MINE).unwrap();
    let counts = domain.registrations();
    assert_eq!((counts.registered, counts.deregistered, counts.idle), (3, 1, 0));
    let refused = domain.registered(1000, MINE).unwrap_err();
    assert!(matches!(refused, DeviceError::LimitReached { .. }), "{refused}");
    drop((large, larger));
    assert_eq!(domain.registrations().idle, 2);
    drop(domain);
}

#[test]
fn long_read_messages_use_cached_registrations() {
    let options = |connid| with(connid, |config| config.min_read = Some(100_000));
    let mut world = World::pair_with(1, options(1), options(2));
    world.drive();
    let to_bob = world.introduce(ALICE, BOB);
    world.transfer(Message::to(to_bob), "hello", Receive::untagged(), 10);
    world.drive();
    for round in 0..5 {
        let source = world.ends[ALICE].domain.registered(200_000, READABLE).unwrap();
        source.region().write(0, &pattern(200_000, round));
        let target = world.ends[BOB].domain.registered(200_000, MINE).unwrap();
        world.end(BOB).receive(Receive::untagged(), target, round).unwrap();
        world.end(ALICE).send(Message::to(to_bob), source, round).unwrap();
        let (sent, received) = (world.done(ALICE), world.done(BOB));
        assert_eq!(sent.subprotocol, Some(Subprotocol::LongRead));
        assert_eq!(received.into_message(), pattern(200_000, round));
    }
    for end in [ALICE, BOB] {
        let counts = world.ends[end].domain.registrations();
        assert_eq!((counts.registered, counts.reused, counts.idle), (1, 4, 1));
    }
}

#[test]
fn registered_buffer_beyond_the_device_limit_is_an_error() {
    const LIMIT: usize = 10_000;
    let options = LocalOptions::default().with(|options| options.max_region_size = LIMIT as u64);
    let domain = Fabric::local(options).domain().unwrap();
    for length in [0, 1, 5_000, 9_000, LIMIT] {
        let buffer = domain.registered(length, Access::default()).unwrap();
        assert_eq!(buffer.to_vec(), vec![0; length]);
    }
    let counts = domain.registrations();
    assert_eq!((counts.registered, counts.reused), (3, 2), "of 4,096, 8,192 and 10,000 bytes");
    for length in [LIMIT + 1, 1 << 50, usize::MAX] {
        let refused = domain.registered(length, Access::default()).unwrap_err();
        let (length, limit) = (length as u64, LIMIT as u64);
        assert_eq!(refused, DeviceError::TooLong { length, limit });
    }
}
