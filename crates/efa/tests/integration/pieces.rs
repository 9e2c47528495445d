//! Buffers of several pieces, and memory registered for some operations only.

use efa::{
    Access, Buffer, Datatype, Event, LocalAccess, Message, Operation, OperationError, Receive,
    ReceiveBuffer, Refused, Rma, StartError, TooManyBuffers,
};
use efa_device::Rdma;

use crate::world::{ALICE, BOB, World, pattern};

const BOTH: Access = Access { remote_read: true, remote_write: true };

/// The bytes cut into so many pieces of different kinds of memory, some of them empty.
fn cut(world: &World, end: usize, bytes: &[u8], count: usize) -> Vec<Buffer> {
    let mut random = fastrand::Rng::with_seed(bytes.len() as u64);
    let mut cuts: Vec<usize> = (1..count).map(|_| random.usize(..=bytes.len())).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    let piece = |(at, range): (usize, &[usize])| {
        let part = &bytes[range[0]..range[1]];
        match at % 3 {
            0 => part.to_vec().into(),
            1 => bytes::BytesMut::from(part).into(),
            _ => {
                let region = world.ends[end].domain.register(part.to_vec(), BOTH).unwrap();
                region.slice(0..part.len()).unwrap().into()
            }
        }
    };
    cuts.windows(2).enumerate().map(piece).collect()
}

fn into_cut(world: &World, end: usize, length: usize, count: usize) -> ReceiveBuffer {
    let pieces = cut(world, end, &vec![0; length], count);
    let pieces = pieces.into_iter().map(|piece| match piece.into_region() {
        Ok(slice) => ReceiveBuffer::from(slice),
        Err(other) => ReceiveBuffer::from(other.into_vec()),
    });
    ReceiveBuffer::pieces(pieces).unwrap()
}

// conformance: C108
#[test]
fn pieces_are_one_message_at_both_sides() {
    for rdma in [Rdma::NONE, Rdma::READ_WRITE] {
        for length in [0, 1, 100, 8_800, 20_000, 65_000, 200_000, 2_000_000] {
            for count in [1, 2, 28] {
                let mut world = World::pair_with_rdma(1, rdma);
                let to_bob = world.introduce(ALICE, BOB);
                let data = pattern(length, 1);
                let from = Buffer::pieces(cut(&world, ALICE, &data, count)).unwrap();
                let into = into_cut(&world, BOB, length + 10, count);
                world.end(BOB).receive(Receive::tagged(1), into, 2).unwrap();
                world.end(ALICE).send(Message::to(to_bob).tagged(1), from, 1).unwrap();
                let sent = world.done(ALICE);
                assert_eq!(sent.buffer.into_pieces().len(), count, "they come back");
                let received = world.done(BOB);
                assert_eq!((received.length, received.context), (length as u64, 2));
                assert_eq!(received.buffer.len(), length + 10);
                assert!(received.into_message().into_vec() == data, "{length} in {count} pieces");
                assert!(world.is_silent(BOB), "one message");
            }
        }
    }
}

#[test]
fn pieces_are_written_from_and_read_into() {
    for rdma in [Rdma::NONE, Rdma::READ_WRITE] {
        for length in [1, 1000, 200_000, 2_000_000] {
            let mut world = World::pair_with_rdma(2, rdma);
            let to_bob = world.introduce(ALICE, BOB);
            let data = pattern(length, 1);
            let memory = world.ends[BOB].domain.register(vec![0; length], BOTH).unwrap();
            let rma = Rma::at(to_bob, memory.remote());
            let from = Buffer::pieces(cut(&world, ALICE, &data, 28)).unwrap();
            world.end(ALICE).write(rma.delivery_complete(), from, 1).unwrap();
            world.done(ALICE);
            let into = into_cut(&world, ALICE, length, 28);
            world.end(ALICE).read(rma, into, 2).unwrap();
            let read = world.done(ALICE);
            assert!(read.buffer.into_vec() == data, "{length} bytes, {rdma:?}");
        }
    }
}

#[test]
fn limit_of_pieces_is_the_attribute_of_the_endpoint() {
    let world = World::pair(3);
    let limit = world.end(ALICE).transmit_attributes().iov_limit;
    let pieces = |count| Buffer::pieces(vec![vec![1_u8]; count]);
    assert_eq!(pieces(limit).unwrap().len(), limit);
    assert_eq!(pieces(limit + 1), Err(TooManyBuffers { count: limit + 1 }));
    assert!(ReceiveBuffer::pieces(vec![vec![1_u8]; limit + 1]).is_err());
}

#[test]
fn multi_receive_buffer_of_pieces_takes_messages_across_them() {
    let mut world = World::pair(4);
    let to_bob = world.introduce(ALICE, BOB);
    let into = ReceiveBuffer::pieces(vec![vec![0_u8; 3000]; 7]).unwrap();
    world.end(BOB).receive_many(None, into, 5).unwrap();
    for i in 0..10 {
        world.end(ALICE).send(Message::to(to_bob), pattern(1300, i), i).unwrap();
    }
    world.drive();
    let mut received = world.ends[BOB].entries.drain(..);
    for i in 0..10 {
        let message = received.next().unwrap().unwrap();
        assert_eq!(message.into_message(), pattern(1300, i));
    }
    let rest = received.next().unwrap().unwrap();
    assert_eq!(rest.buffer.len(), 8000);
}

#[test]
fn piece_of_another_domain_is_refused() {
    let world = World::pair(5);
    let region = world.ends[BOB].domain.register(vec![0; 10], BOTH).unwrap();
    let pieces: [Buffer; 2] = [vec![1].into(), region.slice(0..10).unwrap().into()];
    let to_bob = world.introduce(ALICE, BOB);
    let sent = world.end(ALICE).send(Message::to(to_bob), Buffer::pieces(pieces).unwrap(), 1);
    assert_eq!(sent.unwrap_err().error, StartError::OtherDomain);
}

// conformance: C100
#[test]
fn memory_is_used_only_by_the_operations_that_it_is_registered_for() {
    let mut world = World::pair_with_rdma(6, Rdma::READ_WRITE);
    let to_bob = world.introduce(ALICE, BOB);
    let target = world.ends[BOB].domain.register(vec![3; 8], BOTH).unwrap();
    let rma = Rma::at(to_bob, target.remote());
    let all = [LocalAccess::SEND, LocalAccess::RECV, LocalAccess::READ, LocalAccess::WRITE];
    for bits in 0..16 {
        let granted = LocalAccess::from_bits(bits).unwrap();
        for piecewise in [false, true] {
            for wanted in all {
                let domain = &world.ends[ALICE].domain;
                let region = domain.register_for(vec![1; 8], Access::default(), granted).unwrap();
                assert_eq!(region.local_access(), granted);
                let slice = region.slice(0..8).unwrap();
                let into = match piecewise {
                    true => {
                        let halves = [region.slice(0..4).unwrap(), region.slice(4..8).unwrap()];
                        ReceiveBuffer::pieces(halves).unwrap()
                    }
                    false => slice.into(),
                };
                let alice = world.end(ALICE);
                let from = |into: ReceiveBuffer| Buffer::from(into);
                let fetch = Operation::read(Datatype::Uint64);
                let started = match wanted {
                    LocalAccess::SEND => alice.send(Message::to(to_bob), from(into), 1),
                    LocalAccess::RECV => alice
                        .receive(Receive::untagged(), into, 1)
                        .map(|id| assert!(alice.cancel(id))),
                    LocalAccess::WRITE => alice.write(rma, from(into), 1),
                    _ if bits % 2 == 0 => alice.read(rma, into, 1),
                    _ => alice.fetch_atomic(rma, fetch, into, 1).map_err(|refused| Refused {
                        error: refused.error,
                        buffer: refused.fetched,
                    }),
                };
                let expected = match granted.contains(wanted) {
                    true => Ok(()),
                    false => Err(StartError::Access { wanted, granted }),
                };
                assert_eq!(started.map_err(|refused| refused.error), expected);
                world.drive();
                world.ends[ALICE].entries.clear();
                let mut bytes = [0; 8];
                region.read(0, &mut bytes);
                let is_read = wanted == LocalAccess::READ && granted.contains(wanted);
                assert_eq!(bytes == [1; 8], !is_read || expected.is_err(), "{wanted} {granted}");
                target.write(0, &[3; 8]);
            }
        }
    }
}

// conformance: C100
#[test]
fn peers_do_only_what_the_memory_is_registered_for() {
    for rdma in [Rdma::NONE, Rdma::READ_WRITE] {
        for (read, write) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut world = World::pair_with_rdma(7, rdma);
            let to_bob = world.introduce(ALICE, BOB);
            // HANDSHAKEs, so that a device with RDMA does it itself.
            world.transfer(Message::to(to_bob), vec![1], Receive::untagged(), 1);
            let access = Access { remote_read: read, remote_write: write };
            let target = world.ends[BOB].domain.register(vec![3; 8], access).unwrap();
            let rma = Rma::at(to_bob, target.remote());
            let mut refused = 0;
            let mut outcome = |world: &mut World, allowed: bool| {
                world.drive();
                let entry = world.ends[ALICE].entries.pop_front();
                match entry {
                    Some(Ok(_)) if allowed => {}
                    Some(Err(failed)) if !allowed => assert!(
                        matches!(
                            failed.error,
                            OperationError::Device(_) | OperationError::GivenUp { .. }
                        ),
                        "{:?}",
                        failed.error
                    ),
                    // A write in packets has no answer.
                    Some(Ok(_)) if rdma == Rdma::NONE => refused += 1,
                    other => panic!("{other:?} {access:?} {rdma:?}"),
                }
            };
            world.end(ALICE).write(rma, vec![9; 8], 1).unwrap();
            outcome(&mut world, write);
            let mut bytes = [0; 8];
            target.read(0, &mut bytes);
            assert_eq!(bytes, if write { [9; 8] } else { [3; 8] });
            if rdma == Rdma::NONE || read {
                world.end(ALICE).read(rma, vec![0; 8], 2).unwrap();
                outcome(&mut world, read);
            }
            let refusals = std::iter::from_fn(|| world.end(BOB).event())
                .filter(|event| matches!(event, Event::AccessRefused { .. }))
                .count();
            if rdma == Rdma::NONE {
                assert_eq!(refusals, usize::from(!read) + usize::from(!write));
            }
        }
    }
}
