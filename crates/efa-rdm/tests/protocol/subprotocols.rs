//! Sections 1.3 and 4.6: every subprotocol begins with a request of its own type, except those of the
//! device alone.

use std::collections::BTreeSet;

use efa_device::{Access, QueuePair, Rdma, RegionRange};
use efa_proto::{Packet, PacketType};
use efa_rdm::{Atomic, AtomicOp, Config, Datatype, Level, Message, Operands, Read, Remote, Write};
use efa_sim::local::LocalOptions;

use crate::longread::Memory;
use crate::rma::expose;
use crate::world::{Net, pattern};

/// Starts an operation of endpoint 0 on `length` bytes of endpoint 1.
#[derive(Clone, Copy, Debug)]
enum Start {
    Message { tagged: bool, level: Level },
    Write(Level),
    Read,
    Atomic(Level),
    Fetch,
    Compare,
}

fn region(world: &Net<Memory>, bytes: Vec<u8>) -> Memory {
    let length = bytes.len();
    let access = Access { remote_read: true, remote_write: false };
    let region = world.ends[0].endpoint.queue_pair().register(bytes.into(), access).unwrap();
    Memory::Region(RegionRange { region, offset: 0, length })
}

/// Does it between endpoints that know each other; gives the packets that the first has sent.
fn run(start: Start, length: usize, rdma: Rdma, runt_size: u64) -> Vec<Vec<u8>> {
    let config = Config::default().with(|config| {
        config.min_read = Some(100_000);
        config.runt_size = runt_size;
    });
    let mut world = Net::<Memory>::new(LocalOptions::default().with(|options| options.rdma = rdma));
    world.add(config.clone());
    world.add(config);
    world.acquaint();
    world.receive_into(1, Memory::Heap(vec![0]), 0);
    world.send(0, 1, Memory::Heap(vec![1]), 0);
    world.drive();
    world.receive_done(1);
    world.send_done(0);
    world.forget_packets();

    let access = Access { remote_read: true, remote_write: true };
    let (_region, iov) = expose(&world, 1, vec![0; length], access);
    let (remote, peer, context) = (Remote::from(iov), world.peer(0, 1), 1);
    let buffer = region(&world, pattern(length, 1));
    let spare = || Memory::Heap(vec![0; length]);
    let (datatype, op) = (Datatype::Uint64, AtomicOp::Sum);
    let mut atomic = |op, operands, level| {
        let atomic = Atomic { peer, remote, datatype, op, operands, level, context };
        world.ends[0].endpoint.atomic(atomic).unwrap();
    };
    match start {
        Start::Message { tagged, level } => {
            let tag = tagged.then_some(7);
            let message = Message { peer, tag, cq_data: None, level, buffer, context };
            world.endpoint(0).send(message).unwrap();
            match tag {
                Some(tag) => {
                    let accept = efa_rdm::Accept::Tagged { source: None, tag, ignore: 0 };
                    world.endpoint(1).receive(accept, spare(), 1).unwrap();
                }
                None => {
                    world.receive_into(1, spare(), 1);
                }
            }
        }
        Start::Write(level) => {
            let write = Write { peer, remote, buffer, cq_data: None, level, context };
            world.endpoint(0).write(write).unwrap();
        }
        Start::Read => {
            let read = Read { peer, remote, buffer: spare(), context };
            world.endpoint(0).read(read).unwrap();
        }
        Start::Atomic(level) => atomic(op, Operands::Write { operand: buffer }, level),
        Start::Fetch => {
            let operands = Operands::Fetch { operand: buffer, fetched: spare() };
            atomic(op, operands, Level::Transmit);
        }
        Start::Compare => {
            let operands =
                Operands::Compare { operand: buffer, comparand: spare(), fetched: spare() };
            atomic(AtomicOp::CompareSwap, operands, Level::Transmit);
        }
    }
    world.drive();
    let end = &world.ends[0];
    assert_eq!(end.sends.len() + end.rma.len() + end.atomics.len(), 1, "{start:?} has ended");
    world.packets_from(0)
}

// conformance: A20 A175
#[test]
fn each_subprotocol_begins_with_its_own_request_type() {
    use Level::{Delivery, Transmit};
    use PacketType::*;
    let message = |tagged, level| Start::Message { tagged, level };
    let table = [
        (message(false, Transmit), 10, 0, EagerMsgRtm),
        (message(true, Transmit), 10, 0, EagerTagRtm),
        (message(false, Transmit), 30_000, 0, MediumMsgRtm),
        (message(true, Transmit), 30_000, 0, MediumTagRtm),
        (message(false, Transmit), 90_000, 0, LongCtsMsgRtm),
        (message(true, Transmit), 90_000, 0, LongCtsTagRtm),
        (message(false, Transmit), 200_000, 0, LongReadMsgRtm),
        (message(true, Transmit), 200_000, 0, LongReadTagRtm),
        (message(false, Transmit), 200_000, 20_000, RuntReadMsgRtm),
        (message(true, Transmit), 200_000, 20_000, RuntReadTagRtm),
        (message(false, Delivery), 10, 0, DcEagerMsgRtm),
        (message(true, Delivery), 10, 0, DcEagerTagRtm),
        (message(false, Delivery), 30_000, 0, DcMediumMsgRtm),
        (message(true, Delivery), 30_000, 0, DcMediumTagRtm),
        (message(false, Delivery), 90_000, 0, DcLongCtsMsgRtm),
        (message(true, Delivery), 90_000, 0, DcLongCtsTagRtm),
        (Start::Write(Transmit), 10, 0, EagerRtw),
        (Start::Write(Transmit), 30_000, 0, LongCtsRtw),
        (Start::Write(Transmit), 200_000, 0, LongReadRtw),
        (Start::Write(Delivery), 10, 0, DcEagerRtw),
        (Start::Write(Delivery), 30_000, 0, DcLongCtsRtw),
        (Start::Read, 10, 0, ShortRtr),
        (Start::Read, 30_000, 0, LongCtsRtr),
        (Start::Atomic(Transmit), 8, 0, WriteRta),
        (Start::Atomic(Delivery), 8, 0, DcWriteRta),
        (Start::Fetch, 8, 0, FetchRta),
        (Start::Compare, 8, 0, CompareRta),
    ];
    let mut types = BTreeSet::new();
    for (start, length, runt_size, expected) in table {
        // A device that reads for messages, but doesn't read or write by itself.
        let rdma = match start {
            Start::Read => Rdma::NONE,
            _ => Rdma { write: false, ..Rdma::READ_WRITE },
        };
        let packets = run(start, length, rdma, runt_size);
        let sent: Vec<_> =
            packets.iter().map(|packet| Packet::parse(packet).unwrap().packet_type()).collect();
        assert_eq!(sent[0], expected, "{start:?} of {length} bytes");
        // What follows is no request, except for further parts of the same kind.
        assert!(sent.iter().all(|of| !of.is_req() || *of == expected), "{sent:?}");
        assert!(expected.is_req() && types.insert(expected.as_u8()), "its own");
    }
    for (start, length) in [
        (Start::Write(Transmit), 10),
        (Start::Write(Transmit), 200_000),
        (Start::Read, 10),
        (Start::Read, 200_000),
    ] {
        assert_eq!(run(start, length, Rdma::READ_WRITE, 0), Vec::<Vec<u8>>::new(), "{start:?}");
    }
}
