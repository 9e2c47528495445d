//! Writes and reads by the device (RDMA), and when packets are used instead.

use efa_device::{Access, Rdma, RegionRange, Status};
use efa_proto::{PacketType, RmaIov};
use efa_rdm::{Config, Event, Level, OperationError, RemoteWrite, Subprotocol};
use efa_sim::local::LocalOptions;

use super::{BOTH, bytes_of, expose, part, refusals, world_with};
use crate::buffer::Buffer;
use crate::longread::Memory;
use crate::world::{Net, World, pattern, place};

// conformance: A173 A206 A208
#[test]
fn rma_between_capable_devices_sends_no_packet() {
    for (length, longest) in [(1, 1 << 20), (50_000, 1 << 20), (300_000, 4096), (1 << 20, 99_999)] {
        let options = LocalOptions::default().with(|options| options.max_rdma_size = longest);
        for registered in [true, false] {
            let mut world = Net::<Memory>::new(options.clone());
            world.add(Config::default().with(|config| config.max_rdma = 5));
            world.add(Config::default());
            world.acquaint();
            let (region, iov) = expose(&world, 1, vec![0; length], BOTH);
            let buffer = |world: &Net<Memory>, bytes: Vec<u8>| match registered {
                true => {
                    let region = expose(world, 0, bytes, Access::default()).0;
                    Memory::Region(RegionRange { region, offset: 0, length })
                }
                false => Memory::Heap(bytes),
            };
            let source = buffer(&world, pattern(length, 1));
            let done = world.write(&[iov], source, None);
            assert_eq!((done.result, done.subprotocol), (Ok(()), Some(Subprotocol::Direct)));
            assert_eq!(bytes_of(&region), pattern(length, 1));
            world.forget_packets();
            let target = buffer(&world, vec![0; length]);
            world.start_read(&[iov], target).unwrap();
            world.drive();
            let done = world.rma_done();
            assert_eq!((done.result, done.subprotocol), (Ok(()), Some(Subprotocol::Direct)));
            assert_eq!((done.length, done.buffer.bytes()), (length as u64, pattern(length, 1)));
            assert!(world.all_packets().is_empty());
            let statistics = world.endpoint(0).statistics();
            let pieces = (length as u64).div_ceil(longest);
            assert!(statistics.rdma_writes >= pieces && statistics.rdma_reads >= pieces);
            if registered {
                assert_eq!((statistics.rdma_writes, statistics.rdma_reads), (pieces, pieces));
            }
            world.assert_clean();
        }
    }
}

#[test]
fn cq_data_of_direct_write_is_reported_after_rnr() {
    for unsolicited in [false, true] {
        let rdma = Rdma { unsolicited_write_receive: unsolicited, ..Rdma::READ_WRITE };
        let mut world = world_with(
            LocalOptions::default().with(|options| options.rdma = rdma),
            Config::default(),
        );
        let (region, iov) = expose(&world, 1, vec![0; 1000], BOTH);
        let peer = Some(world.peer(1, 0));
        for round in 0..3 {
            if round > 0 && !unsolicited {
                let to = place(&world.ends[1]);
                world.network.not_ready(to, 3).unwrap();
            }
            let done = world.write(&[iov], pattern(1000, round), Some(0xffff_0000 + round));
            assert_eq!((done.result, done.subprotocol), (Ok(()), Some(Subprotocol::Direct)));
            assert_eq!(bytes_of(&region), pattern(1000, round));
            let reported = world.ends[1].remote_writes.drain(..).collect::<Vec<_>>();
            let cq_data = 0xffff_0000 + round;
            assert_eq!(reported, [RemoteWrite { peer, cq_data, length: 1000 }]);
        }
        world.assert_clean();
    }
}

// conformance: A208
#[test]
fn write_with_cq_data_beyond_the_device_is_sent_in_packets() {
    let options = LocalOptions::default().with(|options| options.max_rdma_size = 500);
    let mut world = world_with(options, Config::default());
    let (region, iov) = expose(&world, 1, vec![0; 1000], BOTH);
    let halves = [part(iov, 0, 250), part(iov, 250, 250)];
    for (pieces, length, data) in [
        // More than 32 bits; more than one device operation; more than one remote range.
        (&[part(iov, 0, 500)][..], 500, 1 << 32),
        (&[iov][..], 1000, 5),
        (&halves[..], 500, 6),
    ] {
        let done = world.write(pieces, pattern(length, data), Some(data));
        assert_eq!((done.result, done.subprotocol), (Ok(()), Some(Subprotocol::Eager)));
        assert_eq!(bytes_of(&region)[..length], pattern(length, data));
        assert_eq!(world.ends[1].remote_writes.pop_front().unwrap().cq_data, data);
    }
    world.assert_clean();
}

#[test]
fn direct_rma_to_unexposed_memory_fails() {
    let mut world = world_with(LocalOptions::default(), Config::default());
    let (region, iov) = expose(&world, 1, vec![7; 1000], BOTH);
    let bad = RmaIov::new(iov.addr() + 1, 1000, iov.key());
    let refused = Err(OperationError::Device(Status::RemoteBadAddress));
    assert_eq!(world.write(&[bad], vec![9; 1000], None).result, refused);
    assert_eq!(world.read(&[bad], 1000).result, refused);
    assert_eq!(bytes_of(&region), [7; 1000]);
    assert_eq!(world.write(&[iov], vec![9; 1000], None).result, Ok(()), "the peer is still there");
}

// conformance: A132 A133
#[test]
fn rma_by_packets_needs_progress_of_the_target() {
    for rdma in [Rdma::READ_WRITE, Rdma::NONE] {
        let options = LocalOptions::default().with(|options| options.rdma = rdma);
        let mut world = world_with(options, Config::default());
        let (region, iov) = expose(&world, 1, pattern(100, 1), BOTH);
        // This read exchanges the HANDSHAKEs.
        world.read(&[iov], 100);
        world.start_write(&[part(iov, 0, 50)], pattern(50, 2), None, Level::Transmit).unwrap();
        world.start_read(&[part(iov, 50, 50)], vec![0; 50]).unwrap();
        for _ in 0..1000 {
            let now = world.now;
            world.endpoint(0).progress(now);
            world.now = now + std::time::Duration::from_micros(1);
        }
        let direct = rdma == Rdma::READ_WRITE;
        let expected = if direct { pattern(50, 2) } else { pattern(100, 1)[..50].to_vec() };
        assert_eq!(bytes_of(&region)[..50], expected);
        world.drive();
        assert_eq!(bytes_of(&region)[..50], pattern(50, 2));
        assert_eq!(world.ends[0].rma.drain(..).filter(|done| done.result.is_ok()).count(), 2);
    }
}

// conformance: A205
#[test]
fn direct_write_needs_rdma_write_announced_by_both_sides() {
    let without = || {
        let mut config = Config::default();
        config.profile.extras.remove(efa_handshake::Extras::RDMA_WRITE);
        config
    };
    for (alice, bob, how) in [
        (Config::default(), Config::default(), Subprotocol::Direct),
        (without(), Config::default(), Subprotocol::Eager),
        (Config::default(), without(), Subprotocol::Eager),
    ] {
        let mut world = World::pair_with(1, alice, bob);
        world.acquaint();
        let (region, iov) = expose(&world, 1, vec![0; 100], BOTH);
        let done = world.write(&[iov], pattern(100, 1), None);
        assert_eq!((done.result, done.subprotocol), (Ok(()), Some(how)));
        assert_eq!(bytes_of(&region), pattern(100, 1));
    }
}

// conformance: A207
#[test]
fn cq_data_of_write_is_reported_when_the_target_progresses() {
    for rdma in [Rdma::READ_WRITE, Rdma::NONE] {
        let mut world = world_with(
            LocalOptions::default().with(|options| options.rdma = rdma),
            Config::default(),
        );
        let (region, iov) = expose(&world, 1, pattern(100, 1), BOTH);
        let peer = Some(world.peer(1, 0));
        // This read exchanges the HANDSHAKEs.
        world.read(&[iov], 100);
        world.start_write(&[iov], pattern(100, 2), Some(0xfeed), Level::Transmit).unwrap();
        for _ in 0..1000 {
            let now = world.now;
            world.endpoint(0).progress(now);
            world.now = now + std::time::Duration::from_micros(1);
        }
        // The device has written the data; the CQ data waits for a poll.
        assert_eq!(bytes_of(&region) == pattern(100, 2), rdma == Rdma::READ_WRITE);
        assert!(world.endpoint(1).poll_completion().is_none());
        world.drive();
        let reported: Vec<_> = world.ends[1].remote_writes.drain(..).collect();
        assert_eq!(reported, [RemoteWrite { peer, cq_data: 0xfeed, length: 100 }]);
        assert_eq!(bytes_of(&region), pattern(100, 2));
    }
}

#[test]
fn direct_rma_splits_at_remote_ranges_and_the_segment_limit() {
    let config = Config::default().with(|config| {
        config.rdma_segment = 4096;
        config.max_rdma = 1;
    });
    let mut world = world_with(LocalOptions::default(), config);
    let before = pattern(30_000, 1);
    let (region, iov) = expose(&world, 1, before.clone(), BOTH);
    let pieces = [part(iov, 0, 6000), part(iov, 20_000, 6000), part(iov, 10_000, 6000)];
    let parts = [&before[..6000], &before[20_000..26_000], &before[10_000..16_000]];
    let done = world.read(&pieces, 18_000);
    assert_eq!((done.result, done.subprotocol), (Ok(()), Some(Subprotocol::Direct)));
    assert_eq!(done.buffer, parts.concat());
    assert_eq!(world.endpoint(0).statistics().rdma_reads, 6);

    let bytes = pattern(18_000, 2);
    let done = world.write(&pieces, bytes.clone(), None);
    assert_eq!((done.result, done.subprotocol), (Ok(()), Some(Subprotocol::Direct)));
    assert_eq!(world.endpoint(0).statistics().rdma_writes, 6);
    let mut after = before;
    after[..6000].copy_from_slice(&bytes[..6000]);
    after[20_000..26_000].copy_from_slice(&bytes[6000..12_000]);
    after[10_000..16_000].copy_from_slice(&bytes[12_000..]);
    assert_eq!(bytes_of(&region), after);

    world.start_read(&pieces, vec![0; 18_000]).unwrap();
    world.step();
    assert_eq!(world.endpoint(0).statistics().rdma_reads, 7, "one at a time");
    world.drive();
    world.rma_done();
    world.assert_clean();
}

#[test]
fn bounce_buffers_are_reused() {
    let mut world = world_with(LocalOptions::default(), Config::default());
    let (_region, iov) = expose(&world, 1, pattern(1000, 1), BOTH);
    for _ in 0..10 {
        assert_eq!(world.read(&[iov], 1000).buffer, pattern(1000, 1));
        assert_eq!(world.write(&[iov], pattern(1000, 1), None).result, Ok(()));
        world.ends[0].device.refuse_registrations(u32::MAX);
    }
    world.assert_clean();
}

// conformance: A166
#[test]
fn rma_whose_buffer_the_device_cannot_reach_goes_in_packets() {
    for (length, in_packets) in [(1000, Subprotocol::Eager), (300_000, Subprotocol::LongCts)] {
        for cq_data in [None, Some(5)] {
            let mut world = Net::<Buffer>::new(LocalOptions::default());
            world.add(Config::default());
            world.add(Config::default());
            world.acquaint();
            let (region, iov) = expose(&world, 1, vec![0; length], BOTH);
            // Neither the buffer nor a bounce region can be registered: the program has used up the device's regions.
            world.ends[0].device.refuse_registrations(u32::MAX);
            let done = world.write(&[iov], pattern(length, 1).into(), cq_data);
            assert_eq!((done.result, done.subprotocol), (Ok(()), Some(in_packets)));
            assert_eq!(bytes_of(&region), pattern(length, 1));
            let reported = world.ends[1].remote_writes.pop_front().map(|write| write.cq_data);
            assert_eq!(reported, cq_data);
            world.start_read(&[iov], vec![0; length].into()).unwrap();
            world.drive();
            let done = world.rma_done();
            assert_eq!((done.result, done.subprotocol), (Ok(()), Some(in_packets)));
            assert!(done.buffer.bytes == pattern(length, 1));
            // As soon as there is room the device writes and reads again.
            world.ends[0].device.refuse_registrations(0);
            let done = world.write(&[iov], pattern(length, 2).into(), cq_data);
            assert_eq!((done.result, done.subprotocol), (Ok(()), Some(Subprotocol::Direct)));
            assert_eq!(bytes_of(&region), pattern(length, 2));
            world.ends[1].remote_writes.clear();
            world.assert_clean();
        }
    }
}

#[test]
fn rma_with_registrable_buffer_is_not_copied() {
    let mut world = Net::<Buffer>::new(LocalOptions::default());
    world.add(Config::default());
    world.add(Config::default());
    world.acquaint();
    let length = 300_000;
    let (region, iov) = expose(&world, 1, vec![0; length], BOTH);
    for cq_data in [None, Some(5)] {
        let bytes = pattern(length, cq_data.unwrap_or(0));
        let done = world.write(&[iov], bytes.clone().into(), cq_data);
        assert_eq!((done.result, done.subprotocol), (Ok(()), Some(Subprotocol::Direct)));
        assert!(done.buffer.bytes == bytes && bytes_of(&region) == bytes);
    }
    assert_eq!(world.endpoint(0).statistics().rdma_writes, 2);
    world.start_read(&[iov], vec![0; length].into()).unwrap();
    world.drive();
    let done = world.rma_done();
    assert!(done.result == Ok(()) && done.buffer.bytes == bytes_of(&region));
    assert_eq!(world.endpoint(0).statistics().rdma_reads, 1);
}

#[test]
fn rma_with_a_64_bit_key_is_sent_in_packets() {
    let mut world = world_with(LocalOptions::default(), Config::default());
    let iov = RmaIov::new(0, 100, 1 << 40);
    world.start_read(&[iov], vec![0; 100]).unwrap();
    world.start_write(&[iov], vec![0; 100], None, Level::Transmit).unwrap();
    world.drive();
    let types = world.types_from(0);
    assert!(types.contains(&PacketType::ShortRtr) && types.contains(&PacketType::EagerRtw));
    assert_eq!(refusals(&mut world).len(), 2);
}

#[test]
fn rdma_failure_of_an_unreachable_peer_loses_the_peer() {
    for reads in [false, true] {
        let mut world = world_with(LocalOptions::default(), Config::default());
        let (_region, iov) = expose(&world, 1, vec![0; 100], BOTH);
        assert_eq!(world.write(&[iov], vec![1; 100], None).result, Ok(()));
        world.network.kill(place(&world.ends[1])).unwrap();
        let done = match reads {
            true => world.read(&[iov], 100),
            false => world.write(&[iov], vec![1; 100], None),
        };
        assert_eq!(done.result, Err(OperationError::Device(Status::UnresponsiveRemote)));
        let lost = world.ends[0].events.pop_front();
        assert!(matches!(lost, Some(Event::PeerLost { .. })), "{lost:?}");
    }
}
