//! Hazards of one-sided operations and of immediate data.

use std::time::Duration;

use efa_device::{QueuePairOptions, Rdma, Status};
use efa_handshake::Extras;
use efa_proto::RmaIov;
use efa_rdm::{
    Config, Level, OperationError, Read, Remote, RemoteWrite, RmaKind, Subprotocol, Write,
};
use efa_sim::local::LocalOptions;

use super::{BOTH, SECOND, SOON, acquainted, assert_backoff, pass, registered};
use crate::longread::Memory;
use crate::rma::{bytes_of, expose};
use crate::world::{Net, World, pattern, place};

/// Starts a write from, or a read into, registered memory.
fn start(world: &mut Net<Memory>, kind: RmaKind, pieces: &[RmaIov], context: u64) {
    let peer = world.peer(0, 1);
    let remote = Remote::new(pieces).unwrap();
    let length: u64 = pieces.iter().map(RmaIov::len).sum();
    let buffer = registered(world, 0, pattern(length as usize, context), false);
    let (cq_data, level) = (None, Level::Transmit);
    match kind {
        RmaKind::Write => {
            let write = Write { peer, remote, buffer, cq_data, level, context };
            world.endpoint(0).write(write).unwrap();
        }
        RmaKind::Read => {
            world.endpoint(0).read(Read { peer, remote, buffer, context }).unwrap();
        }
    }
}

#[test]
fn hazard_10_partly_posted_rma_operation_that_fails_completes_once() {
    for kind in [RmaKind::Write, RmaKind::Read] {
        for (fault, expected) in [
            ("a bad piece", Err(OperationError::Device(Status::RemoteBadAddress))),
            ("a failed post", Err(OperationError::Device(Status::BadLocalKey))),
            ("a full queue", Ok(())),
        ] {
            let options = LocalOptions::default().with(|options| {
                options.seed = 10;
                options.max_rdma_size = 4096;
            });
            let config = Config::default().with(|config| config.max_rdma = 4);
            let configs = [config.clone(), config];
            let mut world = acquainted(options, configs, || Memory::Heap(vec![1]));
            let (_region, iov) = expose(&world, 1, vec![7; 40_000], BOTH);
            let me = place(&world.ends[0]);
            let mut pieces =
                [0, 20_000].map(|offset| RmaIov::new(iov.addr() + offset, 20_000, iov.key()));
            if fault == "a bad piece" {
                pieces[1] = RmaIov::new(iov.addr() + 20_000, 20_000, iov.key() + 1);
            }
            start(&mut world, kind, &pieces, 1);
            let posted = |world: &mut Net<Memory>| {
                let statistics = world.endpoint(0).statistics();
                statistics.rdma_writes + statistics.rdma_reads
            };
            while posted(&mut world) < 4 {
                world.step();
            }
            match fault {
                "a failed post" => {
                    world.network.fail_sends(me, 1, Status::BadLocalKey).unwrap();
                }
                "a full queue" => world.network.refuse_sends(me, 7).unwrap(),
                _ => {}
            }
            while world.ends[0].rma.is_empty() {
                world.step();
            }
            assert!(world.endpoint(0).is_quiet(), "{fault}: the device has completed all its work");
            // Another operation uses the same slot.
            start(&mut world, kind, &[iov], 2);
            world.drive();
            let ended: Vec<_> =
                world.ends[0].rma.drain(..).map(|done| (done.context, done.result)).collect();
            assert_eq!(ended, [(1, expected), (2, Ok(()))], "{kind:?}, {fault}");
            assert!(world.ends[0].events.is_empty(), "the peer is still there");
        }
    }
}

#[test]
fn hazard_16_rma_operations_of_a_removed_peer_complete_once() {
    let configs = [Config::default(), Config::default()];
    let mut world = acquainted(LocalOptions::default(), configs, || Memory::Heap(vec![1]));
    let (region, iov) = expose(&world, 1, vec![7; 10_000], BOTH);
    let me = place(&world.ends[0]);
    world.network.delay_sends(me, 2, SECOND).unwrap();
    start(&mut world, RmaKind::Write, &[iov], 1);
    start(&mut world, RmaKind::Read, &[iov], 2);
    // A read of the endpoint's own memory, whose peer is not removed.
    let (_own, own_iov) = expose(&world, 0, pattern(10_000, 3), BOTH);
    let own = world.peer(0, 0);
    let remote = Remote::from(own_iov);
    let buffer = registered(&world, 0, vec![0; 10_000], false);
    world.endpoint(0).read(Read { peer: own, remote, buffer, context: 3 }).unwrap();
    pass(&mut world, Duration::from_micros(1));
    let peer = world.peer(0, 1);
    world.endpoint(0).remove_peer(peer);
    pass(&mut world, 10 * SOON);
    let done = world.ends[0].rma.pop_front().unwrap();
    assert_eq!((done.context, done.result), (3, Ok(())));
    assert!(done.buffer.bytes() == pattern(10_000, 3));
    // The other operations are still on the device, which may write to the buffer of the read.
    assert!(world.ends[0].rma.is_empty());
    assert!(!world.endpoint(0).is_quiet());
    world.drive();
    let mut ended: Vec<_> =
        world.ends[0].rma.drain(..).map(|done| (done.context, done.result)).collect();
    ended.sort_unstable_by_key(|(context, _)| *context);
    let removed = Err(OperationError::PeerRemoved);
    assert_eq!(ended, [(1, removed), (2, removed)], "each once");
    assert_eq!(bytes_of(&region), pattern(10_000, 1), "the write was in flight");
    assert!(world.endpoint(0).is_quiet());
}

#[test]
fn hazard_21_immediate_data_is_sent_again_after_rnr_unchanged() {
    let rdma = Rdma { unsolicited_write_receive: false, ..Rdma::READ_WRITE };
    let mut world = World::new(LocalOptions::default().with(|options| {
        options.seed = 21;
        options.rdma = rdma;
    }));
    let options = QueuePairOptions::default().with(|options| options.rnr_retry = 0);
    for _ in 0..2 {
        world.add_with(Config::default(), options);
    }
    world.acquaint();
    let (region, iov) = expose(&world, 1, vec![0; 777], BOTH);
    let (peer, back) = (world.peer(0, 1), world.peer(1, 0));
    let target = place(&world.ends[1]);
    for cq_data in [0xffff_fff0, 0x8000_0000, 0x7fff_ffff, 0] {
        let buffer = pattern(777, cq_data);
        let (remote, level) = (Remote::from(iov), Level::Transmit);
        let write = Write { peer, remote, buffer, cq_data: Some(cq_data), level, context: 1 };
        world.endpoint(0).write(write).unwrap();
        if cq_data != 0xffff_fff0 {
            world.network.not_ready(target, 3).unwrap();
        }
        world.drive();
        let done = world.ends[0].rma.pop_front().unwrap();
        assert_eq!((done.result, done.subprotocol), (Ok(()), Some(Subprotocol::Direct)));
        let reported: Vec<_> = world.ends[1].remote_writes.drain(..).collect();
        assert_eq!(reported, [RemoteWrite { peer: Some(back), cq_data, length: 777 }]);
        assert_eq!(bytes_of(&region), pattern(777, cq_data));
    }
    assert_eq!(world.network.statistics().receiver_not_ready, 9);
    let statistics = world.endpoint(0).statistics();
    let counted = (statistics.rdma_writes, statistics.receiver_not_ready, statistics.retransmitted);
    assert_eq!(counted, (4, 9, 9), "each write once, and each RNR");
    assert!(world.ends[0].events.is_empty(), "no peer is lost");
    // The RNR backoff is the same as for packets.
    let took = |times: u32| {
        world.network.not_ready(target, times).unwrap();
        let (start, remote, level) = (world.now, Remote::from(iov), Level::Transmit);
        let buffer = pattern(777, 1);
        let write = Write { peer, remote, buffer, cq_data: Some(1), level, context: 1 };
        world.endpoint(0).write(write).unwrap();
        while world.ends[0].rma.is_empty() {
            world.step();
        }
        assert_eq!(world.ends[0].rma.pop_front().unwrap().result, Ok(()));
        world.now - start
    };
    assert_backoff(took);
}

#[test]
fn hazard_24_immediate_data_may_consume_a_receive_buffer_or_not() {
    for unsolicited in [false, true] {
        let rdma = Rdma { unsolicited_write_receive: unsolicited, ..Rdma::READ_WRITE };
        let mut world = World::new(LocalOptions::default().with(|options| {
            options.seed = 24;
            options.rdma = rdma;
        }));
        let options = QueuePairOptions::default().with(|options| {
            options.receive_depth = 8;
            options.rnr_retry = 0;
        });
        for _ in 0..2 {
            world.add_with(Config::default(), options);
        }
        world.acquaint();
        let (_region, iov) = expose(&world, 1, vec![0; 10], BOTH);
        let peer = world.peer(0, 1);
        // Many times the number of receive buffers.
        for round in 0..40_u64 {
            for cq_data in 4 * round..4 * round + 4 {
                let (remote, level) = (Remote::from(iov), Level::Transmit);
                let (buffer, cq_data) = (vec![1; 10], Some(cq_data));
                let write = Write { peer, remote, buffer, cq_data, level, context: 1 };
                world.endpoint(0).write(write).unwrap();
            }
            world.receive(1, 10, round);
            world.send(0, 1, pattern(10, round), round);
            world.drive();
            assert_eq!(world.receive_done(1).buffer, pattern(10, round));
            let held = world.endpoint(1).packets_held();
            assert_eq!(held.posted + held.receive_pool, 8);
        }
        let reported: Vec<_> = world.ends[1].remote_writes.drain(..).map(|of| of.cq_data).collect();
        assert_eq!(reported.len(), 160);
        assert_eq!(world.network.statistics().receiver_not_ready, 0);
        let received = world.network.statistics().received;
        assert_eq!(
            received,
            world.network.statistics().sent,
            "only protocol packets use receive buffers"
        );
    }
    // If only one side supports unsolicited receives, the write is sent in packets.
    for without in 0..2 {
        let rdma = Rdma { unsolicited_write_receive: true, ..Rdma::READ_WRITE };
        let mut configs = [Config::default(), Config::default()];
        configs[without].profile.extras.remove(Extras::UNSOLICITED_WRITE_RECV);
        let options = LocalOptions::default().with(|options| options.rdma = rdma);
        let mut world: World = acquainted(options, configs, || vec![1]);
        let (region, iov) = expose(&world, 1, vec![0; 10], BOTH);
        let (peer, back) = (world.peer(0, 1), world.peer(1, 0));
        let (remote, buffer, level) = (Remote::from(iov), pattern(10, 1), Level::Transmit);
        let write = Write { peer, remote, buffer, cq_data: Some(5), level, context: 1 };
        world.endpoint(0).write(write).unwrap();
        world.drive();
        let done = world.ends[0].rma.pop_front().unwrap();
        assert_eq!((done.result, done.subprotocol), (Ok(()), Some(Subprotocol::Eager)));
        let reported: Vec<_> = world.ends[1].remote_writes.drain(..).collect();
        assert_eq!(reported, [RemoteWrite { peer: Some(back), cq_data: 5, length: 10 }]);
        assert_eq!(bytes_of(&region), pattern(10, 1));
    }
}

#[test]
fn hazard_29_empty_rma_operations_need_no_memory() {
    for rdma in [Rdma::NONE, Rdma::READ_WRITE] {
        let options = LocalOptions::default().with(|options| options.rdma = rdma);
        let configs = [Config::default(), Config::default()];
        let mut world: World = acquainted(options, configs, || vec![1]);
        let peer = world.peer(0, 1);
        let nothing = RmaIov::new(0, 0, 0);
        for pieces in [&[][..], &[nothing], &[nothing, nothing]] {
            let remote = Remote::new(pieces).unwrap();
            for level in [Level::Transmit, Level::Delivery] {
                for cq_data in [None, Some(9)] {
                    let write = Write { peer, remote, buffer: vec![], cq_data, level, context: 1 };
                    world.endpoint(0).write(write).unwrap();
                    world.drive();
                    let done = world.ends[0].rma.pop_front().unwrap();
                    assert_eq!((done.kind, done.length), (RmaKind::Write, 0));
                    assert_eq!(done.result, Ok(()), "{pieces:?} {level:?} {cq_data:?}");
                    let reported = world.ends[1].remote_writes.drain(..).map(|of| of.cq_data);
                    assert_eq!(reported.collect::<Vec<_>>(), Vec::from_iter(cq_data));
                }
            }
            world.endpoint(0).read(Read { peer, remote, buffer: vec![], context: 2 }).unwrap();
            world.drive();
            let done = world.ends[0].rma.pop_front().unwrap();
            assert_eq!((done.kind, done.length, done.result), (RmaKind::Read, 0, Ok(())));
        }
        assert_eq!(world.endpoint(1).statistics().access_refused, 0);
        world.assert_clean();
    }
}
