//! The operations that are under way when a peer ends.

use efa_device::{Access, QueuePair, Rdma, RegionRange};
use efa_proto::PacketType;
use efa_rdm::{
    Accept, Atomic, AtomicOp, Bounds, Config, Datatype, Level, Message, Operands, Read, ReceiveId,
    Remote, Write,
};
use efa_sim::SoftRegion;
use efa_sim::local::LocalOptions;

use super::{Reason, config};
use crate::longread::Memory;
use crate::rma::{bytes_of, expose};
use crate::world::{Net, pattern};

type World = Net<Memory>;

/// An operation of end 0 on end 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    pub(crate) length: usize,
    pub(crate) rdma: Rdma,
    pub(crate) runt_size: u64,
    /// The first packet that it sends.
    pub(crate) request: Option<PacketType>,
    /// Packets by which a message is complete without a receive.
    pub(crate) packets: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send(Level),
    Inject,
    Write(Level),
    Read,
    AtomicWrite(Level),
    AtomicFetch,
    AtomicCompare,
}

pub(crate) const EAGER: usize = 100;
pub(crate) const MEDIUM: usize = 30_000;
pub(crate) const LONG: usize = 90_000;
pub(crate) const READABLE: usize = 200_000;
pub(crate) const ATOMIC: usize = 8;

pub(crate) const READ_ONLY: Rdma = Rdma { write: false, ..Rdma::READ_WRITE };

/// All subprotocols, with and without delivery complete.
pub(crate) fn operations() -> Vec<Operation> {
    use Kind::{AtomicCompare, AtomicFetch, AtomicWrite, Inject, Read, Send, Write};
    use Level::{Delivery, Transmit};
    use PacketType as P;
    let packets = |kind, length, request, packets| Operation {
        kind,
        length,
        rdma: Rdma::NONE,
        runt_size: 0,
        request: Some(request),
        packets,
    };
    let read =
        |kind, request| Operation { rdma: READ_ONLY, ..packets(kind, READABLE, request, None) };
    let direct = |kind| Operation {
        rdma: Rdma::READ_WRITE,
        request: None,
        ..packets(kind, READABLE, P::EagerRtw, None)
    };
    vec![
        packets(Send(Transmit), EAGER, P::EagerTagRtm, Some(1)),
        packets(Inject, EAGER, P::EagerTagRtm, Some(1)),
        packets(Send(Delivery), EAGER, P::DcEagerTagRtm, Some(1)),
        packets(Send(Transmit), MEDIUM, P::MediumTagRtm, Some(4)),
        packets(Send(Delivery), MEDIUM, P::DcMediumTagRtm, Some(4)),
        packets(Send(Transmit), LONG, P::LongCtsTagRtm, None),
        packets(Send(Delivery), LONG, P::DcLongCtsTagRtm, None),
        read(Send(Transmit), P::LongReadTagRtm),
        read(Send(Delivery), P::LongReadTagRtm),
        Operation { runt_size: 20_000, ..read(Send(Transmit), P::RuntReadTagRtm) },
        packets(Write(Transmit), EAGER, P::EagerRtw, None),
        packets(Write(Delivery), EAGER, P::DcEagerRtw, None),
        packets(Write(Transmit), LONG, P::LongCtsRtw, None),
        packets(Write(Delivery), LONG, P::DcLongCtsRtw, None),
        read(Write(Transmit), P::LongReadRtw),
        direct(Write(Transmit)),
        packets(Read, EAGER, P::ShortRtr, None),
        packets(Read, LONG, P::LongCtsRtr, None),
        direct(Read),
        packets(AtomicWrite(Transmit), ATOMIC, P::WriteRta, None),
        packets(AtomicWrite(Delivery), ATOMIC, P::DcWriteRta, None),
        packets(AtomicFetch, ATOMIC, P::FetchRta, None),
        packets(AtomicCompare, ATOMIC, P::CompareRta, None),
    ]
}

impl Operation {
    pub(crate) fn is_message(&self) -> bool {
        matches!(self.kind, Kind::Send(_) | Kind::Inject)
    }

    /// Two endpoints that know each other's addresses, and take this operation's subprotocol.
    pub(crate) fn world(&self, bounds: Bounds) -> World {
        self.world_of([0; 2].map(|_| config(self.runt_size).with(|config| config.bounds = bounds)))
    }

    /// The same with endpoints of these settings.
    pub(crate) fn world_of(&self, configs: [Config; 2]) -> World {
        let rdma = self.rdma;
        let options = LocalOptions::default().with(|options| {
            options.seed = 5;
            options.rdma = rdma;
        });
        let mut world = World::new(options);
        for config in configs {
            world.add(config);
        }
        world.acquaint();
        world
    }

    /// Whether it begins before the peer's HANDSHAKE.
    pub(crate) fn needs_no_handshake(&self) -> bool {
        matches!(self.kind, Kind::Send(Level::Transmit) | Kind::Inject) && self.rdma == Rdma::NONE
    }

    /// Whether there is a moment at which the survivor reports it as failed.
    pub(super) fn can_fail(&self, survivor: usize, receive: Receive, reason: Reason) -> bool {
        let one_packet = self.length <= EAGER;
        match (survivor, self.kind) {
            // It is what the device says of its packet, which no operation waits for.
            (0, Kind::Inject) => {
                matches!(reason, Reason::Restarted | Reason::Dead | Reason::RemovedInBackoff)
            }
            (0, _) => true,
            (_, Kind::Send(_) | Kind::Inject) => !one_packet && receive == Receive::Posted,
            (_, Kind::Write(_)) => !one_packet && self.request.is_some(),
            // The responder has nothing to report.
            _ => false,
        }
    }

    /// Starts it.
    pub(crate) fn start(&self, world: &mut World, receive: Receive) -> UnderWay {
        let Self { kind, length, .. } = *self;
        let posted =
            (self.is_message() && receive == Receive::Posted).then(|| post_receive(world, length));
        let access = Access { remote_read: true, remote_write: true };
        let (memory, iov) = expose(world, 1, pattern(length, TARGET), access);
        let peer = world.peer(0, 1);
        let remote = Remote::from(iov);
        let (tag, cq_data, context) = (Some(TAG), None, OPERATION);
        let buffer = registered(world, pattern(length, SOURCE));
        let heap = |salt| Memory::Heap(pattern(length, salt));
        let atomic = |op, operands, level| Atomic {
            peer,
            remote,
            datatype: Datatype::Uint64,
            op,
            operands,
            level,
            context,
        };
        let end = &mut world.ends[0].endpoint;
        match kind {
            Kind::Send(level) => {
                end.send(Message { peer, tag, cq_data, level, buffer, context }).unwrap();
            }
            Kind::Inject => {
                let (level, bytes) = (Level::Transmit, pattern(length, SOURCE));
                end.inject(Message { peer, tag, cq_data, level, buffer: &bytes[..], context: 0 })
                    .unwrap();
            }
            Kind::Write(level) => {
                // Data with a direct write needs a device that both sides know to treat it alike.
                let cq_data = self.request.map(|_| CQ_DATA);
                end.write(Write { peer, remote, buffer, cq_data, level, context }).unwrap();
            }
            Kind::Read => {
                let buffer = registered_at(end.queue_pair(), pattern(length, SOURCE));
                end.read(Read { peer, remote, buffer, context }).unwrap();
            }
            Kind::AtomicWrite(level) => {
                let operands = Operands::Write { operand: heap(SOURCE) };
                end.atomic(atomic(AtomicOp::Write, operands, level)).unwrap();
            }
            Kind::AtomicFetch => {
                let operands = Operands::Fetch { operand: heap(SOURCE), fetched: heap(0) };
                end.atomic(atomic(AtomicOp::Write, operands, Level::Transmit)).unwrap();
            }
            Kind::AtomicCompare => {
                let (operand, comparand) = (heap(SOURCE), heap(TARGET));
                let operands = Operands::Compare { operand, comparand, fetched: heap(0) };
                end.atomic(atomic(AtomicOp::CompareSwap, operands, Level::Transmit)).unwrap();
            }
        }
        UnderWay { posted, memory }
    }

    /// Whether both sides have reported all that there is to report.
    pub(crate) fn is_complete(&self, world: &World, receive: Receive) -> bool {
        let [requester, responder] = &world.ends[..] else { unreachable!() };
        let sent = self.kind == Kind::Inject
            || requester.sends.len() + requester.rma.len() + requester.atomics.len() == 1;
        let with_receive = self.is_message() && receive == Receive::Posted;
        sent && responder.receives.len() == usize::from(with_receive)
    }

    /// Carries it out between two live endpoints.
    pub(crate) fn carry_out(&self, world: &mut World) {
        let under_way = self.start(world, Receive::Posted);
        world.drive();
        let (expected, found) = (pattern(self.length, SOURCE), bytes_of(&under_way.memory));
        match self.kind {
            Kind::Inject => assert!(world.take_sends(0).is_empty()),
            Kind::Send(_) => assert_eq!(world.send_done(0).result, Ok(())),
            Kind::Write(_) => {
                assert_eq!(world.ends[0].rma.pop_front().unwrap().result, Ok(()));
                assert!(found == expected, "other bytes");
                assert_eq!(
                    world.ends[1].remote_writes.drain(..).count(),
                    self.request.iter().count()
                );
            }
            Kind::Read => {
                let done = world.ends[0].rma.pop_front().unwrap();
                assert_eq!(done.result, Ok(()));
                assert!(done.buffer.bytes() == pattern(self.length, TARGET), "other bytes");
            }
            Kind::AtomicWrite(_) | Kind::AtomicFetch | Kind::AtomicCompare => {
                let done = world.ends[0].atomics.pop_front().unwrap();
                assert_eq!(done.result, Ok(()));
                assert!(found == expected, "other bytes");
                let fetched = done.fetched.map(|fetched| fetched.bytes());
                assert!(fetched.is_none_or(|fetched| fetched == pattern(self.length, TARGET)));
            }
        }
        if self.is_message() {
            let received = world.receive_done(1);
            assert_eq!(received.result, Ok(()));
            assert!(received.buffer.bytes() == expected, "other bytes");
        }
    }
}

/// Whether a receive is posted for a message before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receive {
    Posted,
    None,
}

pub(crate) struct UnderWay {
    pub(crate) posted: Option<ReceiveId>,
    pub(crate) memory: SoftRegion,
}

pub(crate) const TAG: u64 = 7;
pub(crate) const CQ_DATA: u64 = 0x1234;
/// Salts of the bytes at both sides.
pub(crate) const SOURCE: u64 = 1;
pub(crate) const TARGET: u64 = 2;
/// Contexts.
pub(crate) const OPERATION: u64 = 10;
pub(crate) const RECEIVE: u64 = 11;
pub(crate) const PROBE: u64 = 12;

pub(crate) fn registered_at(
    queue_pair: &impl QueuePair<Region = SoftRegion>,
    bytes: Vec<u8>,
) -> Memory {
    let length = bytes.len();
    let access = Access { remote_read: true, remote_write: false };
    let region = queue_pair.register(bytes.into(), access).unwrap();
    Memory::Region(RegionRange { region, offset: 0, length })
}

pub(crate) fn registered(world: &World, bytes: Vec<u8>) -> Memory {
    registered_at(world.ends[0].endpoint.queue_pair(), bytes)
}

pub(crate) fn post_receive(world: &mut World, length: usize) -> ReceiveId {
    let accept = Accept::Tagged { source: None, tag: TAG, ignore: 0 };
    world.endpoint(1).receive(accept, Memory::Heap(vec![0; length]), RECEIVE).unwrap()
}
