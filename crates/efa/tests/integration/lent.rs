//! Memory that a C program lends for an operation.

#![allow(unsafe_code, reason = "the constructors of lent memory are unsafe")]

use std::ptr::NonNull;

use efa::{
    Access, Buffer, Fabric, LentBytes, LentBytesMut, LocalOptions, Message, OperationError,
    Receive, ReceiveBuffer, Rma, ShmOptions, Subprotocol, TcpOptions,
};

use crate::foreign::{acquainted, done, on_link};
use crate::world::{ALICE, BOB, World, pattern};

const BOTH: Access = Access { remote_read: true, remote_write: true };

/// Lends bytes for reading. The tests drop completions before the bytes, and don't write those before.
pub(crate) fn lend(bytes: &[u8]) -> LentBytes {
    // SAFETY: as the comment above says.
    unsafe { LentBytes::new(NonNull::from(bytes).cast(), bytes.len()) }
}

/// Lends bytes for writing. The tests drop completions before they look at the bytes.
pub(crate) fn lend_mut(bytes: &mut [u8]) -> LentBytesMut {
    // SAFETY: as the comment above says.
    unsafe { LentBytesMut::new(NonNull::from(&mut *bytes).cast(), bytes.len()) }
}

#[test]
fn lent_memory_is_sent_received_written_and_read_where_it_is() {
    for length in [0, 1, 1000, 20_000, 200_000, 1_000_000] {
        let (mut world, to_bob) = acquainted(1);
        let (source, mut target) = (pattern(length, 1), vec![0; length]);
        world.end(BOB).receive(Receive::untagged(), lend_mut(&mut target), 2).unwrap();
        world.end(ALICE).send(Message::to(to_bob), lend(&source), 1).unwrap();
        let (sent, received) = (world.done(ALICE), world.done(BOB));
        assert_eq!(sent.buffer.as_slice().unwrap().as_ptr(), source.as_ptr());
        assert_eq!((sent.buffer.len(), received.length), (length, length as u64));
        drop((sent, received));
        assert!(target == source);

        let memory = world.ends[BOB].domain.register(vec![0; length], BOTH).unwrap();
        let rma = Rma::at(to_bob, memory.remote()).delivery_complete();
        world.end(ALICE).write(rma, lend(&source), 3).unwrap();
        assert_eq!(world.done(ALICE).length, length as u64);
        let mut back = vec![0; length];
        world.end(ALICE).read(rma, lend_mut(&mut back), 4).unwrap();
        assert_eq!(world.done(ALICE).length, length as u64);
        assert!(back == source);
    }
}

#[test]
fn lent_memory_is_a_piece_and_a_multi_receive_buffer_as_any_other() {
    let mut world = World::pair(2);
    let to_bob = world.introduce(ALICE, BOB);
    let (bytes, mut target) = (pattern(4000, 1), vec![0; 20_000]);
    world.end(BOB).receive_many(None, lend_mut(&mut target), 5).unwrap();
    for _ in 0..3 {
        let pieces = [lend(&bytes[..10]), lend(&bytes[100..3100])];
        world.end(ALICE).send(Message::to(to_bob), Buffer::pieces(pieces).unwrap(), 1).unwrap();
    }
    world.drive();
    let expected = [&bytes[..10], &bytes[100..3100]].concat();
    let begins: Vec<usize> = (0..3)
        .map(|_| {
            let received = world.done(BOB).into_message();
            assert!(received == expected);
            received.as_slice().unwrap().as_ptr().addr() - target.as_ptr().addr()
        })
        .collect();
    assert_eq!(begins, [0, 3010, 6020]);
    assert!(target[..9030] == expected.repeat(3));

    let mut into = vec![0; 28 * 200];
    let pieces = ReceiveBuffer::pieces(into.chunks_mut(200).map(lend_mut)).unwrap();
    let source = pattern(28 * 200, 2);
    let from = Buffer::pieces(source.rchunks(200).rev().map(lend)).unwrap();
    world.end(BOB).receive(Receive::tagged(1), pieces, 6).unwrap();
    world.end(ALICE).send(Message::to(to_bob).tagged(1), from, 7).unwrap();
    assert_eq!(world.done(BOB).length, 28 * 200);
    assert!(into == source);
}

#[test]
fn clone_of_lent_memory_is_a_copy_and_equals_it() {
    let mut bytes = pattern(100, 1);
    let copies = [Buffer::from(lend(&bytes)), lend_mut(&mut bytes).into()].map(|buffer| {
        assert!(buffer == buffer.clone() && buffer.clone() == buffer);
        assert!(format!("{buffer:?}").starts_with("Buffer(LentBytes"));
        buffer.clone()
    });
    bytes.fill(0);
    for copy in copies {
        assert_eq!(copy, pattern(100, 1));
        assert_eq!(
            (copy.clone().into_vec(), copy.into_bytes()),
            (pattern(100, 1), pattern(100, 1).into())
        );
    }
}

fn long_message_is_read_from_lent_memory_into_lent_memory(fabric: &Fabric) {
    const LENGTH: usize = 1_000_000;
    let (mut ends, [to_bob, _]) = on_link(fabric);
    ends[BOB].endpoint.receive(Receive::tagged(1), vec![0; 1], 0).unwrap();
    ends[ALICE].endpoint.send(Message::to(to_bob).tagged(1).delivery_complete(), "x", 0).unwrap();
    done(&mut ends, ALICE);
    done(&mut ends, BOB);
    // As many times as exhaust the keys, if registrations stayed.
    let mut target = vec![0; LENGTH];
    for round in 0..40 {
        let source = pattern(LENGTH, round);
        ends[BOB].endpoint.receive(Receive::untagged(), lend_mut(&mut target), 2).unwrap();
        ends[ALICE].endpoint.send(Message::to(to_bob), lend(&source), 1).unwrap();
        let sent = done(&mut ends, ALICE);
        assert_eq!(sent.subprotocol, Some(Subprotocol::LongRead));
        assert_eq!(sent.buffer.as_slice().unwrap().as_ptr(), source.as_ptr());
        drop((sent, done(&mut ends, BOB)));
        assert!(target == source);
        assert_eq!(ends[BOB].endpoint.statistics().rdma_bytes, (round + 1) * LENGTH as u64);
    }
    let (from, mut into) = (pattern(LENGTH, 99), vec![0; LENGTH]);
    let region = ends[BOB].domain.register(vec![0; LENGTH], BOTH).unwrap();
    let rma = Rma::at(to_bob, region.remote()).delivery_complete();
    ends[ALICE].endpoint.write(rma, lend(&from), 3).unwrap();
    done(&mut ends, ALICE);
    ends[ALICE].endpoint.read(rma, lend_mut(&mut into), 4).unwrap();
    done(&mut ends, ALICE);
    assert!(into == from);
}

#[test]
fn long_message_is_read_from_lent_memory_into_lent_memory_on_the_local_link() {
    let options = LocalOptions::default().with(|options| options.max_regions = 8);
    long_message_is_read_from_lent_memory_into_lent_memory(&Fabric::local(options));
}

#[test]
fn long_message_is_read_from_lent_memory_into_lent_memory_over_shm() {
    let directory = tempfile::TempDir::new().unwrap();
    let options = ShmOptions::new("lent");
    let directory = Some(directory.path().join("hosts"));
    let fabric = Fabric::shm(options.with(|options| options.directory = directory));
    long_message_is_read_from_lent_memory_into_lent_memory(&fabric);
}

#[test]
fn long_message_is_read_from_lent_memory_into_lent_memory_over_tcp() {
    let fabric = Fabric::tcp(TcpOptions::new([127, 0, 0, 1]));
    long_message_is_read_from_lent_memory_into_lent_memory(&fabric);
}

/// After the completion of a receive whose peer ended, the device, which was reading into the buffer, leaves it alone.
#[test]
fn lent_memory_is_not_written_after_its_receive_failed() {
    const LENGTH: usize = 1_000_000;
    let mut under_way = 0;
    for wait in 0..60 {
        let (mut world, to_bob) = acquainted(wait);
        let (source, mut target) = (pattern(LENGTH, 1), vec![0; LENGTH]);
        world.end(BOB).receive(Receive::untagged(), lend_mut(&mut target), 2).unwrap();
        world.end(ALICE).send(Message::to(to_bob), lend(&source), 1).unwrap();
        for _ in 0..wait {
            world.read();
            world.tick();
        }
        let from_alice = world.ends[BOB].addresses.insert(world.end(ALICE).address()).unwrap();
        world.ends[BOB].addresses.remove(from_alice).unwrap();
        world.read();
        let Some(Err(failed)) = world.ends[BOB].entries.pop_front() else { continue };
        assert_eq!(failed.error, OperationError::PeerRemoved);
        under_way += 1;
        drop(failed);
        let before = target.clone();
        world.drive();
        assert!(target == before, "after {wait} steps");
    }
    assert!(under_way > 0, "no receive was under way");
}
