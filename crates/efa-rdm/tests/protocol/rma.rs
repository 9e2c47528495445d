//! Section 3.3: writes and reads of a peer's memory. This file holds what the subjects share, and the tests
//! of access, bounds and closed peers.

mod direct;
mod read;
mod write;

use efa_device::{Access, QueuePair, Rdma, Region, Status};
use efa_proto::{Header, OpId, ReqOptions, RmaIov, Rtr, RtrKind, Rtw, RtwKind};
use efa_rdm::{
    Bounds, Config, DropReason, Event, Level, Message, OperationError, Payload, Read, Refused,
    Remote, RemoteUse, RmaCompletion, StartError, Write,
};
use efa_sim::SoftRegion;
use efa_sim::local::LocalOptions;

use crate::world::{Net, World, pattern, place};

const MTU: usize = 8928;
/// Payload of an EAGER_RTW for one remote range: the header takes 8 bytes, 24 per range and 4 for the connid.
const ROOM: usize = MTU - 8 - 24 - 4;
const BOTH: Access = Access { remote_read: true, remote_write: true };

/// A device without RDMA, so that operations are sent in packets.
fn emulated() -> LocalOptions {
    LocalOptions::default().with(|options| options.rdma = Rdma::NONE)
}

fn world_with(options: LocalOptions, config: Config) -> World {
    let mut world = World::new(options);
    world.add(config.clone());
    world.add(config);
    world.acquaint();
    world
}

/// Registers memory of an endpoint; returns it with the address and key for its peers.
pub(crate) fn expose<B: Payload<SoftRegion> + std::fmt::Debug>(
    world: &Net<B>,
    end: usize,
    bytes: Vec<u8>,
    access: Access,
) -> (SoftRegion, RmaIov) {
    let length = bytes.len() as u64;
    let region = world.ends[end].endpoint.queue_pair().register(bytes.into(), access).unwrap();
    let iov = RmaIov::new(region.remote_address(), length, region.remote_key().into());
    (region, iov)
}

pub(crate) fn bytes_of(region: &SoftRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.length()];
    region.read(0, &mut bytes);
    bytes
}

fn part(iov: RmaIov, offset: usize, length: usize) -> RmaIov {
    RmaIov::new(iov.addr() + offset as u64, length as u64, iov.key())
}

impl<B: Payload<SoftRegion> + std::fmt::Debug> Net<B> {
    fn start_write(
        &mut self,
        pieces: &[RmaIov],
        buffer: B,
        cq_data: Option<u64>,
        level: Level,
    ) -> Result<(), Refused<B>> {
        let peer = self.peer(0, 1);
        let remote = Remote::new(pieces).unwrap();
        self.endpoint(0).write(Write { peer, remote, buffer, cq_data, level, context: 7 })
    }

    fn write(&mut self, pieces: &[RmaIov], buffer: B, cq_data: Option<u64>) -> RmaCompletion<B> {
        self.start_write(pieces, buffer, cq_data, Level::Transmit).unwrap();
        self.drive();
        self.rma_done()
    }

    fn start_read(&mut self, pieces: &[RmaIov], buffer: B) -> Result<(), Refused<B>> {
        let peer = self.peer(0, 1);
        let remote = Remote::new(pieces).unwrap();
        self.endpoint(0).read(Read { peer, remote, buffer, context: 8 })
    }

    fn rma_done(&mut self) -> RmaCompletion<B> {
        self.ends[0].rma.pop_front().expect("a write or read has ended")
    }
}

impl World {
    fn read(&mut self, pieces: &[RmaIov], length: usize) -> RmaCompletion<Vec<u8>> {
        self.start_read(pieces, vec![0; length]).unwrap();
        self.drive();
        self.rma_done()
    }
}

fn refusals<B: Payload<SoftRegion> + std::fmt::Debug>(world: &mut Net<B>) -> Vec<RemoteUse> {
    let events = world.ends[1].events.drain(..);
    let refused = events.filter_map(|event| match event {
        Event::AccessRefused { error, .. } => Some(error.wanted),
        _ => None,
    });
    refused.collect()
}

// conformance: A143
#[test]
fn rma_lengths_that_differ_are_refused_by_both_sides() {
    let mut world = world_with(emulated(), Config::default());
    let (region, iov) = expose(&world, 1, vec![1; 100], BOTH);
    for length in [99, 101] {
        let refused = world.start_write(&[iov], vec![0; length], None, Level::Transmit);
        let error = StartError::LengthsDiffer { buffer: length as u64, remote: 100 };
        assert_eq!(refused, Err(Refused { error, buffer: vec![0; length] }));
        let refused = world.start_read(&[iov], vec![0; length]);
        assert_eq!(refused, Err(Refused { error, buffer: vec![0; length] }));
        let write = Rtw { rma_iov: &[iov], kind: RtwKind::Eager, options: ReqOptions::NONE };
        world.inject(0, 1, Header::Rtw(write), &vec![9; length]);
    }
    let kind = RtwKind::LongCts { msg_length: 101, send_id: OpId(1), credit_request: 1 };
    let write = Rtw { rma_iov: &[iov], kind, options: ReqOptions::NONE };
    world.inject(0, 1, Header::Rtw(write), &[9; 50]);
    // A write of zero bytes in windows would never complete.
    let nothing = [RmaIov::new(iov.addr(), 0, iov.key())];
    let kind = RtwKind::LongCts { msg_length: 0, send_id: OpId(1), credit_request: 1 };
    let write = Rtw { rma_iov: &nothing, kind, options: ReqOptions::NONE };
    world.inject(0, 1, Header::Rtw(write), &[]);
    let overflow = [iov, RmaIov::new(0, u64::MAX, 0)];
    let write = Rtw { rma_iov: &overflow, kind: RtwKind::Eager, options: ReqOptions::NONE };
    world.inject(0, 1, Header::Rtw(write), &[9; 99]);
    // The memory to read has another length, or the request has a payload.
    for (length, payload) in [(99, &[][..]), (100, &[9])] {
        let read_iov = &[RmaIov::new(0, length, 1)];
        let kind = RtwKind::LongRead { msg_length: 100, send_id: OpId(1), read_iov };
        let write = Rtw { rma_iov: &[iov], kind, options: ReqOptions::NONE };
        world.inject(0, 1, Header::Rtw(write), payload);
    }
    let read = Rtr {
        rma_iov: &[iov],
        kind: RtrKind::Short,
        msg_length: 101,
        recv_id: OpId(0),
        recv_length: 101,
        options: ReqOptions::NONE,
    };
    world.inject(0, 1, Header::Rtr(read), &[]);
    world.drive();
    assert_eq!(world.drop_reasons(1), [DropReason::SegmentOutOfRange; 8]);
    assert_eq!(bytes_of(&region), [1; 100]);
    assert_eq!(Remote::new(&[iov; 5]).unwrap_err().count, 5);
}

// conformance: C106 A137 A138
#[test]
fn rma_packet_to_unexposed_memory_is_refused() {
    let mut world = world_with(emulated(), Config::default());
    let readable = Access { remote_read: true, remote_write: false };
    let writable = Access { remote_read: false, remote_write: true };
    let (region, iov) = expose(&world, 1, vec![7; 1000], BOTH);
    let (read_only, no_write) = expose(&world, 1, vec![7; 1000], readable);
    let (write_only, no_read) = expose(&world, 1, vec![7; 1000], writable);
    let (gone, stale) = expose(&world, 1, vec![7; 1000], BOTH);
    drop(gone);
    let bad = [
        RmaIov::new(iov.addr() - 1, 1000, iov.key()),
        RmaIov::new(iov.addr() + 1, 1000, iov.key()),
        RmaIov::new(u64::MAX - 10, 1000, iov.key()),
        RmaIov::new(iov.addr(), 1000, iov.key() + 1),
        RmaIov::new(iov.addr(), 1000, iov.key() | 1 << 40),
        stale,
    ];
    for piece in bad.into_iter().chain([no_write]) {
        world
            .start_write(&[part(iov, 0, 10), piece], vec![9; 1010], None, Level::Transmit)
            .unwrap();
        world.drive();
        assert_eq!(world.rma_done().result, Ok(()), "an eager write gets no response");
        assert_eq!(refusals(&mut world), [RemoteUse::Write]);
    }
    for piece in bad.into_iter().chain([no_read]) {
        world.start_read(&[piece], vec![0; 1000]).unwrap();
        world.drive();
        assert_eq!(refusals(&mut world), [RemoteUse::Read]);
    }
    for region in [&region, &read_only, &write_only] {
        assert_eq!(bytes_of(region), [7; 1000]);
    }
    assert_eq!(world.endpoint(1).statistics().access_refused, 14);
    let code = Status::RemoteBadAddress.code().into();
    assert_eq!(world.ends[0].rma.len(), 7, "the reads");
    for done in world.ends[0].rma.drain(..) {
        assert_eq!(done.result, Err(OperationError::GivenUp { code }));
        assert_eq!(done.buffer, [0; 1000]);
    }
}

#[test]
fn killed_peer_fails_each_rma_operation_once() {
    for rdma in [Rdma::NONE, Rdma::READ_WRITE] {
        for steps in 0..30 {
            let options = LocalOptions::default().with(|options| {
                options.rdma = rdma;
                options.max_rdma_size = 4096;
            });
            let mut world =
                world_with(options, Config::default().with(|config| config.max_rdma = 2));
            let length = 100_000;
            let (_region, iov) = expose(&world, 1, vec![0; length], BOTH);
            world.start_write(&[iov], vec![1; length], None, Level::Transmit).unwrap();
            world.start_read(&[iov], vec![0; length]).unwrap();
            for _ in 0..steps {
                world.step();
            }
            let target = place(&world.ends[1]);
            world.network.kill(target).unwrap();
            // A killed peer is detected only by packets sent to it.
            world.drive();
            let peer = world.peer(0, 1);
            world.endpoint(0).remove_peer(peer);
            world.drive();
            let mut kinds: Vec<_> =
                world.ends[0].rma.drain(..).map(|done| done.kind as u8).collect();
            kinds.sort_unstable();
            assert_eq!(kinds, [0, 1], "after {steps} steps");
        }
    }
}

#[test]
fn rma_operations_beyond_the_limit_are_refused() {
    let config = Config::default().with(|config| {
        config.max_sends = 3;
        config.max_receives = 3;
        config.bounds = Bounds::default().with(|bounds| bounds.requests = 2);
    });
    let mut world = world_with(emulated(), config);
    let (_region, iov) = expose(&world, 1, pattern(100, 1), BOTH);
    for _ in 0..3 {
        world.start_write(&[iov], vec![1; 100], None, Level::Transmit).unwrap();
        world.start_read(&[iov], vec![0; 100]).unwrap();
    }
    let busy = StartError::Busy { limit: 3 };
    let refused = world.start_write(&[iov], vec![1; 100], None, Level::Transmit);
    assert_eq!(refused.unwrap_err().error, busy);
    assert_eq!(world.start_read(&[iov], vec![1; 100]).unwrap_err().error, busy);
    let peer = world.peer(0, 1);
    world.drive();
    world.endpoint(0).remove_peer(peer);
    world.step();
    assert_eq!(world.ends[0].rma.len(), 6);
}

/// Queued responses to a peer are bounded; own requests wait in the same queue.
#[test]
fn own_requests_do_not_count_against_the_peer() {
    for what in ["reads", "injected messages"] {
        let bounds = Bounds::default().with(|bounds| bounds.responses = 4);
        let mut world = world_with(
            LocalOptions::default(),
            Config::default().with(|config| config.bounds = bounds),
        );
        let (_region, iov) = expose(&world, 1, pattern(100, 1), BOTH);
        world.read(&[iov], 100);
        // A delivery-complete message has arrived, which needs a RECEIPT.
        world.receive(0, 10, 1);
        let (peer, level) = (world.peer(1, 0), Level::Delivery);
        let buffer = pattern(10, 1);
        let message = Message { peer, tag: None, cq_data: None, level, buffer, context: 2 };
        world.endpoint(1).send(message).unwrap();
        for _ in 0..100 {
            let now = world.now;
            world.endpoint(1).progress(now);
            world.now = now + std::time::Duration::from_micros(1);
        }
        // Before making progress, this side starts more requests than the bound on responses.
        if what == "reads" {
            for _ in 0..10 {
                world.start_read(&[iov], vec![0; 100]).unwrap();
            }
        } else {
            // The injected messages wait behind a write in progress.
            world.start_write(&[iov], vec![1; 100], None, Level::Transmit).unwrap();
            let (peer, level) = (world.peer(0, 1), Level::Transmit);
            let buffer = &b"short"[..];
            for context in 0..10 {
                let message = Message { peer, tag: None, cq_data: None, level, buffer, context };
                world.endpoint(0).inject(message).unwrap();
            }
        }
        world.drive();
        assert_eq!(world.endpoint(0).statistics().excluded, 0, "{what}");
        assert_eq!(world.send_done(1).result, Ok(()));
        assert!(world.ends[0].rma.iter().all(|done| done.result == Ok(())));
    }
}

#[test]
fn endpoint_is_not_quiet_during_a_peers_read_or_write() {
    for reads in [true, false] {
        let config = Config::default().with(|config| config.cts_window = 1);
        let mut world = world_with(emulated(), config);
        let length = 100_000;
        let (region, iov) = expose(&world, 1, pattern(length, 1), BOTH);
        world.read(&[iov], length);
        world.forget_packets();
        if reads {
            world.start_read(&[iov], vec![0; length]).unwrap();
        } else {
            world.start_write(&[iov], pattern(length, 2), None, Level::Transmit).unwrap();
        }
        // An application may close the endpoint as soon as it is quiet.
        while world.packets_from(1).is_empty() || !world.endpoint(1).is_quiet() {
            world.step();
        }
        let target = place(&world.ends[1]);
        world.network.kill(target).unwrap();
        world.drive();
        let done = world.rma_done();
        assert_eq!(done.result, Ok(()), "{:?}", done.kind);
        let salt = if reads { 1 } else { 2 };
        assert!(done.buffer == pattern(length, salt) && bytes_of(&region) == done.buffer);
    }
}

#[test]
fn rma_to_removed_peer_is_refused() {
    let mut world = world_with(LocalOptions::default(), Config::default());
    let (_region, iov) = expose(&world, 1, vec![0; 8], BOTH);
    let peer = world.peer(0, 1);
    world.endpoint(0).remove_peer(peer);
    let write = |peer| {
        let (buffer, level) = (vec![0; 8], Level::Transmit);
        Write { peer, remote: iov.into(), buffer, cq_data: None, level, context: 7 }
    };
    let read = |peer| Read { peer, remote: iov.into(), buffer: vec![0; 8], context: 8 };
    let error = StartError::PeerGone(peer);
    assert_eq!(world.endpoint(0).write(write(peer)).unwrap_err().error, error);
    assert_eq!(world.endpoint(0).read(read(peer)).unwrap_err().error, error);
}

#[test]
fn written_and_read_bytes_are_counted() {
    let devices = [emulated(), LocalOptions::default()];
    for (options, data) in devices.into_iter().flat_map(|of| [(of.clone(), None), (of, Some(5))]) {
        let mut world = world_with(options, Config::default());
        let (_region, iov) = expose(&world, 1, vec![0; 1000], BOTH);
        world.write(&[iov], pattern(1000, 1), data);
        let direct = world.endpoint(0).statistics().rdma_writes == 1;
        world.read(&[part(iov, 0, 400)], 400);
        let requester = world.endpoint(0).statistics();
        assert_eq!(requester.delivered_bytes, 400, "written bytes do not count as delivered");
        let target = world.endpoint(1).statistics();
        // The target's device reports only writes with immediate data.
        let reported = !direct || data.is_some();
        assert_eq!(
            (target.remote_writes, target.remote_reads),
            (reported.into(), (!direct).into())
        );
    }
}
