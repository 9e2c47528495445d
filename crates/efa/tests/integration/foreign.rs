//! Memory that somebody else owns, as buffer of operations.

#![allow(unsafe_code, reason = "the constructor of foreign memory is unsafe")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use efa::{
    Access, Buffer, Completion, CompletionQueueOptions, DeviceError, Fabric, FiAddr, ForeignMemory,
    KeyError, LocalAccess, LocalOptions, Message, Receive, ReceiveBuffer, RegistrationMode, Rma,
    ShmOptions, StartError, Subprotocol,
};

use crate::world::{ALICE, BOB, End, World, pattern, with};

const BOTH: Access = Access { remote_read: true, remote_write: true };
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

/// Notes that it is dropped.
struct Noticed(Arc<AtomicBool>);

impl Drop for Noticed {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Two endpoints on two devices of a link, with a queue each.
pub(crate) fn on_link(fabric: &Fabric) -> (Vec<End>, [FiAddr; 2]) {
    let options = || with(1, |config| config.min_read = Some(50_000));
    let end = || End::on(fabric.domain().unwrap(), options(), CompletionQueueOptions::default());
    let ends = vec![end(), end()];
    let address =
        |end: usize, of: usize| ends[end].addresses.insert(ends[of].endpoint.address()).unwrap();
    let addresses = [address(ALICE, BOB), address(BOB, ALICE)];
    (ends, addresses)
}

/// Reads both queues until this one has a completion.
pub(crate) fn done(ends: &mut [End], end: usize) -> Completion {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(30) {
        for end in ends.iter_mut() {
            end.entries.extend(end.queue.read());
        }
        if let Some(entry) = ends[end].entries.pop_front() {
            return entry.unwrap();
        }
    }
    panic!("nothing completes at {end}");
}

fn registered_mapping_is_used_in_place(fabric: &Fabric) {
    const LENGTH: usize = 1_000_000;
    let (mut ends, [to_bob, _]) = on_link(fabric);
    let (source, target) = (file(&pattern(LENGTH, 1)), file(&[]));
    let region = |end: &End, memory: &ForeignMemory| {
        end.domain.register_foreign(memory, BOTH, LocalAccess::all()).unwrap()
    };
    let (from, into) = (map(&source, LENGTH), map(&target, LENGTH));
    let (from, into) = (region(&ends[ALICE], &from), region(&ends[BOB], &into));
    let warm = |ends: &mut [End]| {
        ends[BOB].endpoint.receive(Receive::tagged(1), vec![0; 1], 0).unwrap();
        let message = Message::to(to_bob).tagged(1).delivery_complete();
        ends[ALICE].endpoint.send(message, "x", 0).unwrap();
        done(ends, ALICE);
        done(ends, BOB);
    };
    // Afterwards both know what the other's device can do.
    warm(&mut ends);
    let before = ends[ALICE].endpoint.statistics();
    ends[BOB].endpoint.receive(Receive::untagged(), into.slice(0..LENGTH).unwrap(), 2).unwrap();
    ends[ALICE].endpoint.send(Message::to(to_bob), from.slice(0..LENGTH).unwrap(), 1).unwrap();
    assert_eq!(done(&mut ends, ALICE).subprotocol, Some(Subprotocol::LongRead));
    assert_eq!(done(&mut ends, BOB).length, LENGTH as u64);
    assert!(content(&target, LENGTH) == pattern(LENGTH, 1));
    assert_eq!(ends[BOB].endpoint.statistics().rdma_bytes, LENGTH as u64);
    let in_packets = ends[ALICE].endpoint.statistics().sent_bytes - before.sent_bytes;
    assert!(in_packets < 1000, "{in_packets} bytes in packets");

    // The owner of the file changes it; the next transfers have the new bytes.
    rewrite(&source, &pattern(LENGTH, 2));
    let rma = Rma::at(to_bob, into.remote()).delivery_complete();
    ends[ALICE].endpoint.write(rma, from.slice(0..LENGTH).unwrap(), 3).unwrap();
    done(&mut ends, ALICE);
    assert!(content(&target, LENGTH) == pattern(LENGTH, 2));
    rewrite(&target, &pattern(LENGTH, 3));
    ends[ALICE].endpoint.read(rma, from.slice(0..LENGTH).unwrap(), 4).unwrap();
    done(&mut ends, ALICE);
    assert!(content(&source, LENGTH) == pattern(LENGTH, 3));
    let in_packets = ends[ALICE].endpoint.statistics().sent_bytes - before.sent_bytes;
    assert!(in_packets < 3000, "{in_packets} bytes in packets");
}

fn rewrite(file: &File, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    file.write_all_at(bytes, 0).unwrap();
}

#[test]
fn registered_mapping_is_used_in_place_on_the_local_link() {
    registered_mapping_is_used_in_place(&Fabric::local(LocalOptions::default()));
}

#[test]
fn registered_mapping_is_used_in_place_by_another_device_over_shm() {
    let directory = tempfile::TempDir::new().unwrap();
    let options = ShmOptions::new("foreign");
    let directory = Some(directory.path().join("hosts"));
    registered_mapping_is_used_in_place(&Fabric::shm(options.with(|o| o.directory = directory)));
}

#[test]
fn slots_of_a_registered_ring_are_sent_again_and_again() {
    const SLOT: usize = 3000;
    const SLOTS: usize = 8;
    let mut world = World::pair(3);
    let to_bob = world.introduce(ALICE, BOB);
    let ring = file(&[]);
    let memory = map(&ring, SLOTS * SLOT);
    let domain = &world.ends[ALICE].domain;
    let region = domain.register_foreign(&memory, BOTH, LocalAccess::SEND).unwrap();
    for round in 0..5 * SLOTS {
        let slot = round % SLOTS;
        // Who fills the ring knows nothing of regions.
        let bytes = pattern(SLOT, round as u64);
        memory.slice(slot * SLOT..(slot + 1) * SLOT).write(0, &bytes);
        let sent = region.slice(slot * SLOT..(slot + 1) * SLOT).unwrap();
        world.end(BOB).receive(Receive::untagged(), vec![0; SLOT], 1).unwrap();
        world.end(ALICE).send(Message::to(to_bob), sent.clone(), 2).unwrap();
        assert!(world.done(BOB).into_message() == bytes);
        assert_eq!(world.done(ALICE).buffer, Buffer::from(sent), "it comes back");
    }
    let slot = region.slice(0..SLOT).unwrap();
    let refused = world.end(BOB).receive(Receive::untagged(), slot.clone(), 1).unwrap_err();
    assert!(matches!(refused.error, StartError::OtherDomain), "{:?}", refused.error);
    let refused = world.end(ALICE).receive(Receive::untagged(), slot, 1).unwrap_err();
    assert!(matches!(refused.error, StartError::Access { .. }), "{:?}", refused.error);
}

/// Alice and Bob, who know what the other's device can do.
pub(crate) fn acquainted(seed: u64) -> (World, FiAddr) {
    let options = |connid| with(connid, |config| config.min_read = Some(50_000));
    let mut world = World::pair_with(seed, options(1), options(2));
    let to_bob = world.introduce(ALICE, BOB);
    let message = Message::to(to_bob).delivery_complete();
    world.transfer(message, "x", Receive::untagged(), 1);
    (world, to_bob)
}

#[test]
fn parts_of_registered_memory_are_sent_and_received_in_place_as_one_message() {
    const LENGTH: usize = 600_000;
    /// Bytes between two parts.
    const GAP: usize = 64;
    let expected = pattern(LENGTH, 9);
    // How many parts, whether there are gaps between them, and whether the device moves their bytes: a packet names
    // 4 ranges at most, and parts that touch each other are one.
    for (count, gap, in_place) in
        [(1, 0, true), (4, GAP, true), (5, GAP, false), (28, 0, true), (28, GAP, false)]
    {
        let (mut world, to_bob) = acquainted(5);
        let length = LENGTH / count;
        let whole = (length + gap) * count;
        let parts = |at: usize, memory: &ForeignMemory| {
            let region =
                world.ends[at].domain.register_foreign(memory, BOTH, LocalAccess::all()).unwrap();
            let part = |n: usize| n * (length + gap)..n * (length + gap) + length;
            (0..count).map(|n| region.slice(part(n)).unwrap()).collect::<Vec<_>>()
        };
        let (from, into) = (map(&file(&[]), whole), map(&file(&[]), whole));
        let (from, into) = (parts(ALICE, &from), parts(BOB, &into));
        for round in 0..3 {
            let sent = Buffer::pieces(from.clone()).unwrap();
            for (part, bytes) in from.iter().zip(expected.chunks(length)) {
                assert_eq!(part.region().write(part.range().start, bytes), bytes.len());
            }
            let before = world.end(BOB).statistics().rdma_bytes;
            let received = ReceiveBuffer::pieces(into.clone()).unwrap();
            world.end(BOB).receive(Receive::untagged(), received, 1).unwrap();
            world.end(ALICE).send(Message::to(to_bob), sent.clone(), 2).unwrap();
            let message = world.done(BOB);
            assert_eq!(message.length, (length * count) as u64);
            assert!(message.into_message() == expected[..length * count]);
            let done = world.done(ALICE);
            assert!(done.buffer == sent, "it comes back");
            assert_eq!(done.subprotocol == Some(Subprotocol::LongRead), in_place, "{count} {gap}");
            let moved = world.end(BOB).statistics().rdma_bytes - before;
            assert_eq!(moved > 0, in_place, "{count} parts, round {round}");
            assert!(moved == 0 || moved == (length * count) as u64);
        }
    }
}

#[test]
fn parts_of_registered_memory_are_written_and_read_by_the_device() {
    const LENGTH: usize = 28 * 3000;
    let (mut world, to_bob) = acquainted(6);
    let target = world.ends[BOB].domain.register(vec![0; LENGTH], BOTH).unwrap();
    let rma = Rma::at(to_bob, target.remote());
    let source = map(&file(&[]), LENGTH + 28);
    let domain = &world.ends[ALICE].domain;
    let region = domain.register_foreign(&source, Access::default(), LocalAccess::all()).unwrap();
    let part = |n: usize| region.slice(n * 3001..n * 3001 + 3000).unwrap();
    let parts = || Buffer::pieces((0..28).map(part)).unwrap();
    source.write(0, &pattern(LENGTH + 28, 1));
    let written: Vec<u8> =
        pattern(LENGTH + 28, 1).chunks(3001).flat_map(|part| part[..3000].to_vec()).collect();
    // Immediate data needs a single operation of the device.
    for (rma, by_device) in [(rma, true), (rma.with_data(7), false)] {
        let before = world.end(ALICE).statistics().rdma_writes;
        world.end(ALICE).write(rma, parts(), 1).unwrap();
        world.done(ALICE);
        world.drive();
        let mut bytes = vec![0; LENGTH];
        target.read(0, &mut bytes);
        assert!(bytes == written);
        let operations = world.end(ALICE).statistics().rdma_writes - before;
        assert_eq!(operations, if by_device { 28 } else { 0 });
        target.write(0, &vec![0; LENGTH]);
    }
    assert_eq!(world.done(BOB).cq_data, Some(7));
    target.write(0, &pattern(LENGTH, 2));
    source.write(0, &vec![0xee; LENGTH + 28]);
    let parts = ReceiveBuffer::pieces((0..28).map(part)).unwrap();
    world.end(ALICE).read(rma, parts, 1).unwrap();
    assert!(world.done(ALICE).buffer == pattern(LENGTH, 2));
    let mut gaps = [0; 28];
    for (n, gap) in gaps.iter_mut().enumerate() {
        source.read(n * 3001 + 3000, std::slice::from_mut(gap));
    }
    assert_eq!(gaps, [0xee; 28], "bytes between the parts are untouched");
}

#[test]
fn owner_of_registered_memory_is_dropped_after_the_last_operation() {
    let mut world = World::pair(4);
    let to_bob = world.introduce(ALICE, BOB);
    let gone = Arc::new(AtomicBool::new(false));
    let base = NonNull::from(Box::leak(vec![7_u8; 200_000].into_boxed_slice())).cast();
    // SAFETY: the bytes are never freed, and nobody else knows them.
    let memory = unsafe { ForeignMemory::new(base, 200_000, Noticed(gone.clone())) };
    let region = world.ends[ALICE].domain.register_foreign(&memory, BOTH, LocalAccess::all());
    let region = region.unwrap();
    let is_gone = || gone.load(Ordering::SeqCst);
    let slice = region.slice(0..100_000).unwrap();
    drop((memory, region));
    assert!(!is_gone());
    world.end(ALICE).send(Message::to(to_bob), slice, 1).unwrap();
    world.drive();
    assert!(!is_gone(), "nobody has received the message");
    world.end(BOB).receive(Receive::untagged(), vec![0; 100_000], 2).unwrap();
    let message = world.done(BOB).into_message().into_vec();
    assert!(message[..] == [7; 100_000]);
    let completion = world.done(ALICE);
    assert!(!is_gone(), "the completion has the buffer");
    drop(completion);
    world.drive();
    assert!(is_gone());
}

#[test]
fn foreign_memory_beyond_limits_of_the_device_is_refused() {
    let limits = LocalOptions::default().with(|options| {
        options.max_regions = 1;
        options.max_region_size = 100;
    });
    let domain = Fabric::local(limits).domain().unwrap();
    let memory = map(&file(&[]), 200);
    let register =
        |length| domain.register_foreign(&memory.slice(0..length), BOTH, LocalAccess::all());
    assert_eq!(register(101).unwrap_err(), DeviceError::TooLong { length: 101, limit: 100 });
    let region = register(100).unwrap();
    let full = DeviceError::LimitReached { object: "memory region", limit: 1 };
    assert_eq!(register(1).unwrap_err(), full);
    drop(region);
    assert!(register(0).unwrap().is_empty());
    // Under a key of the program's.
    assert_eq!(
        domain.register_foreign_keyed(&memory, 1, BOTH, LocalAccess::all()).unwrap_err(),
        KeyError::NotScalable
    );
    let scalable = domain.with_registration(RegistrationMode::Scalable);
    let small = memory.slice(50..150);
    let keyed = scalable.register_foreign_keyed(&small, 77, BOTH, LocalAccess::all()).unwrap();
    assert_eq!((keyed.key(), keyed.len()), (77, 100));
    let taken = scalable.register_foreign_keyed(&small, 77, BOTH, LocalAccess::all());
    assert_eq!(taken.unwrap_err(), KeyError::Taken { key: 77 });
}
