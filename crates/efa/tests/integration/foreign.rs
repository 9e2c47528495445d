//! Memory that somebody else owns, as buffer of operations.

#![allow(unsafe_code, reason = "the constructor of foreign memory is unsafe")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use efa::{Access, Buffer, ForeignMemory, Message, Receive, ReceiveBuffer, Rma};

use crate::world::{ALICE, BOB, World, pattern};

const LENGTHS: [usize; 4] = [1, 1000, 20_000, 200_000];

/// A shared mapping of a file, which the program can also write through the file.
struct Mapping {
    address: usize,
    length: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` mapped it, and the handles are gone.
        unsafe { libc::munmap(self.address as *mut libc::c_void, self.length) };
    }
}

fn map(file: &File, length: usize) -> ForeignMemory {
    file.set_len(length as u64).unwrap();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses an unused range.
    let base = unsafe {
        libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(base, libc::MAP_FAILED);
    let owner = Mapping { address: base.expose_provenance(), length };
    // SAFETY: the mapping lasts until the owner is dropped, and only the kernel accesses its bytes besides.
    unsafe { ForeignMemory::new(NonNull::new(base.cast()).unwrap(), length, owner) }
}

fn file(bytes: &[u8]) -> File {
    use std::os::unix::fs::FileExt;
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file
}

fn content(file: &File, length: usize) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn mapped_file_is_sent_received_written_and_read() {
    for length in LENGTHS {
        let mut world = World::pair(1);
        let to_bob = world.introduce(ALICE, BOB);
        let (source, target) = (file(&pattern(length, 1)), file(&[]));
        let (from, into) = (map(&source, length), map(&target, length));
        world.end(BOB).receive(Receive::untagged(), into.clone(), 2).unwrap();
        world.end(ALICE).send(Message::to(to_bob), from.clone(), 1).unwrap();
        assert!(world.done(ALICE).buffer.into_foreign().unwrap().is(&from));
        let received = world.done(BOB);
        assert_eq!(received.length, length as u64);
        assert!(received.buffer.into_foreign().unwrap().is(&into));
        assert!(content(&target, length) == pattern(length, 1));
        let both = Access { remote_read: true, remote_write: true };
        let memory = world.ends[BOB].domain.register(vec![0; length], both).unwrap();
        let rma = Rma::at(to_bob, memory.remote()).delivery_complete();
        world.end(ALICE).write(rma, from, 3).unwrap();
        world.done(ALICE);
        let other = file(&[]);
        world.end(ALICE).read(rma, map(&other, length), 4).unwrap();
        world.done(ALICE);
        assert!(content(&other, length) == pattern(length, 1));
    }
}

#[test]
fn foreign_memory_is_a_piece_and_a_multi_receive_buffer_as_any_other() {
    let mut world = World::pair(2);
    let to_bob = world.introduce(ALICE, BOB);
    let target = file(&[]);
    world.end(BOB).receive_many(None, map(&target, 20_000), 5).unwrap();
    let header: Buffer = vec![1, 2, 3].into();
    let body: Buffer = map(&file(&pattern(4000, 1)), 4000).slice(100..3100).into();
    let message = Buffer::pieces([header, body]).unwrap();
    for _ in 0..3 {
        world.end(ALICE).send(Message::to(to_bob), message.clone(), 1).unwrap();
    }
    world.drive();
    let expected = [&[1, 2, 3][..], &pattern(4000, 1)[100..3100]].concat();
    for _ in 0..3 {
        let received = world.done(BOB);
        assert!(received.into_message() == expected);
    }
    assert!(content(&target, 9009) == expected.repeat(3));
    let pieces = ReceiveBuffer::pieces([map(&target, 20_000).slice(0..10)]).unwrap();
    world.end(BOB).receive(Receive::tagged(1), pieces, 6).unwrap();
    world.end(ALICE).send(Message::to(to_bob).tagged(1), "0123456789", 7).unwrap();
    world.done(BOB);
    assert_eq!(content(&target, 10), b"0123456789");
}
