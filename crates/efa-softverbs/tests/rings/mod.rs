//! The direct data path as programs use it: they write descriptors, ring doorbells and read completions.
//!
//! Test programs run these tests for each way to watch the doorbells: `rings_thread.rs`, `rings_trap.rs`,
//! `rings_tcp.rs`. The descriptors are written here byte by byte, not by the code under test.

mod channels;
mod program;

use std::cell::Cell;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use efa_soft::abi::*;

use self::program::*;
use crate::common::verbs::*;

/// With a completion channel.
const SLEEPING: fn() -> QpOptions = || QpOptions { channel: true, ..QpOptions::default() };
const ALL_ACCESS: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

/// Two queue pairs, with memory of 4096 bytes each.
pub(crate) struct Pair {
    pub(crate) a: Program,
    pub(crate) b: Program,
    memory: [Memory; 2],
    regions: [*mut ibv_mr; 2],
    handle: *mut ibv_ah,
    /// Of `b` for `a`, once it has sent.
    back: Cell<Option<*mut ibv_ah>>,
}

impl Pair {
    pub(crate) fn new(options: QpOptions) -> Self {
        Self::of(Program::new(options), Program::new(options))
    }

    fn of(a: Program, b: Program) -> Self {
        let pattern: Vec<u8> = (0..4096).map(|at| (at % 251) as u8).collect();
        let memory = [Memory::of(&pattern), Memory::of(&[0; 4096])];
        let regions =
            [a.end.register(&memory[0], ALL_ACCESS), b.end.register(&memory[1], ALL_ACCESS)];
        let handle = a.end.handle(b.end.gid());
        Self { a, b, memory, regions, handle, back: Cell::default() }
    }

    /// A request from `a` to `b`.
    pub(crate) fn request(&self, id: u16) -> Request {
        let number = handle_number(self.handle);
        Request::new(id, number, self.b.end.number() as u16, self.b.end.qkey)
    }

    /// A request from `b` to `a`.
    #[allow(dead_code, reason = "one of the test programs uses it")]
    pub(crate) fn request_back(&self, id: u16) -> Request {
        let handle = self.back.get().unwrap_or_else(|| self.b.end.handle(self.a.end.gid()));
        self.back.set(Some(handle));
        let number = handle_number(handle);
        Request::new(id, number, self.a.end.number() as u16, self.a.end.qkey)
    }

    /// Posts a receive of `a`.
    #[allow(dead_code, reason = "one of the test programs uses it")]
    pub(crate) fn receive_back(&mut self, id: u16) {
        let entry = self.local(2048, 64);
        self.a.post_receive(id, entry);
        self.a.ring_receives();
    }

    fn local(&self, from: usize, length: usize) -> ibv_sge {
        sge(self.regions[0], from, length)
    }

    fn peers(&self, from: usize, length: usize) -> ibv_sge {
        sge(self.regions[1], from, length)
    }

    pub(crate) fn receive(&mut self, id: u16, from: usize, length: usize) {
        let entry = self.peers(from, length);
        self.b.post_receive(id, entry);
        self.b.ring_receives();
    }

    pub(crate) fn send(&mut self, request: Request) {
        self.a.post(request);
        self.a.ring_sends();
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: the objects are not used afterwards.
        unsafe {
            for handle in [Some(self.handle), self.back.get()].into_iter().flatten() {
                assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
            }
            for region in self.regions {
                assert_eq!((verbs().ibv_dereg_mr)(region), 0);
            }
        }
    }
}

#[test]
fn message_of_two_buffers_arrives_with_length_sender_and_immediate_data() {
    let mut pair = Pair::new(QpOptions::default());
    pair.receive(0xa123, 100, 1000);
    let entries = [pair.local(1, 10), pair.local(500, 20)];
    pair.send(pair.request(0xb456).buffers(&entries).immediate(0x0102_0304));
    let sent = pair.a.wait();
    assert_eq!((sent.id, sent.status, sent.queue, sent.operation), (0xb456, 0, SEND_QUEUE, 0));
    assert_eq!(u32::from(sent.qpn), pair.a.end.number());
    let received = pair.b.wait();
    assert_eq!((received.id, received.status, received.queue), (0xa123, 0, RECEIVE_QUEUE));
    assert_eq!((received.operation, received.length), (0, 30));
    assert_eq!(received.immediate, Some(0x0102_0304));
    assert_eq!(u32::from(received.source), pair.a.end.number());
    let (from, into) = (pair.memory[0].bytes(), pair.memory[1].bytes());
    assert_eq!(into[100..130], [&from[1..11], &from[500..520]].concat());
    assert_eq!((into[99], into[130]), (0, 0));
}

/// The peer has no address handle for the sender, so the completion has its GID.
#[test]
fn sender_without_address_handle_is_named_by_its_gid() {
    let options = QpOptions::default();
    let mut pair = Pair::new(options);
    pair.receive(1, 0, 64);
    pair.send(pair.request(2).inline(b"hello"));
    let received = pair.b.wait();
    // The handle for the same interface is of the sender's domain.
    assert_eq!((received.handle, received.gid), (0xffff, pair.a.end.gid()));
    assert_eq!(pair.memory[1].bytes()[..6], *b"hello\0");
    assert_eq!(pair.a.wait().status, 0);
}

/// More messages than any ring has entries, in batches of one doorbell; ids as libfabric makes them: an index
/// below, a generation above.
#[test]
fn phases_and_generations_go_on_over_many_turns_of_all_rings() {
    let mut pair = Pair::new(QpOptions::default());
    let (mut sent, mut seen) = (0_u32, 0_u32);
    let id = |count: u32| (count % 64) as u16 | 0xe540;
    for batch in (1..=32).cycle() {
        for number in 0..batch {
            let entry = pair.peers(8 * number as usize, 8);
            pair.b.post_receive(id(sent + number), entry);
        }
        pair.b.ring_receives();
        for number in 0..batch {
            let bytes = u64::from(sent + number).to_le_bytes();
            let request = pair.request(id(sent + number)).inline(&bytes);
            pair.a.post(request);
        }
        pair.a.ring_sends();
        for _ in 0..batch {
            let (sent, received) = (pair.a.wait(), pair.b.wait());
            assert_eq!((sent.id, sent.status), (id(seen), 0));
            assert_eq!((received.id, received.status, received.length), (id(seen), 0, 8));
            seen += 1;
        }
        sent += batch;
        let last = pair.memory[1].bytes();
        let at = 8 * (batch as usize - 1);
        assert_eq!(last[at..at + 8], u64::from(sent - 1).to_le_bytes());
        // The completion ring has 1024 entries.
        if sent > 2500 {
            return;
        }
    }
}

#[test]
fn remote_memory_is_read_and_written() {
    let mut pair = Pair::new(QpOptions::default());
    let (base, key) = (pair.peers(0, 0).addr, rkey(pair.regions[1]));
    pair.send(pair.request(1).remote(WRITE, (base + 8, key), &[pair.local(100, 2000)]));
    let written = pair.a.wait();
    assert_eq!((written.id, written.status, written.operation), (1, 0, WRITE));
    assert_eq!(pair.memory[1].bytes()[8..2008], pair.memory[0].bytes()[100..2100]);
    pair.send(pair.request(2).remote(READ, (base + 8, key), &[pair.local(3000, 50)]));
    let read = pair.a.wait();
    assert_eq!((read.id, read.status, read.operation), (2, 0, READ));
    let bytes = pair.memory[0].bytes();
    assert_eq!(bytes[3000..3050], bytes[100..150]);
    // No bytes, and no buffer.
    pair.send(pair.request(3).remote(READ, (base, key), &[]));
    assert_eq!(pair.a.wait().status, 0);
    // Beyond the region; a key that isn't there.
    for (id, remote) in [(4, (base + 4090, key)), (5, (base, key ^ 1))] {
        pair.send(pair.request(id).remote(WRITE, remote, &[pair.local(0, 8)]));
        let failed = pair.a.wait();
        assert_eq!((failed.id, failed.status, failed.operation), (id, 7, WRITE));
    }
}

#[test]
fn write_with_immediate_data_uses_a_receive() {
    let mut pair = Pair::new(QpOptions::default());
    let (base, key) = (pair.peers(0, 0).addr, rkey(pair.regions[1]));
    pair.receive(9, 0, 0);
    let request = pair.request(1).remote(WRITE, (base, key), &[pair.local(0, 4096)]);
    pair.send(request.immediate(77));
    assert_eq!(pair.a.wait().status, 0);
    let received = pair.b.wait();
    assert_eq!((received.id, received.status, received.operation), (9, 0, WRITE));
    assert_eq!(
        (received.length, received.immediate, received.unsolicited),
        (4096, Some(77), false)
    );
    assert_eq!(pair.memory[1].bytes(), pair.memory[0].bytes());
}

#[test]
fn write_with_immediate_data_to_an_unsolicited_queue_pair_uses_no_receive() {
    let mut pair = Pair::new(QpOptions { unsolicited: true, ..QpOptions::default() });
    pair.receive(9, 0, 64);
    let (base, key) = (pair.peers(0, 0).addr, rkey(pair.regions[1]));
    let request = pair.request(1).remote(WRITE, (base, key), &[pair.local(0, 100)]);
    pair.send(request.immediate(77));
    assert_eq!(pair.a.wait().status, 0);
    let written = pair.b.wait();
    assert_eq!((written.unsolicited, written.status, written.operation), (true, 0, WRITE));
    assert_eq!((written.length, written.immediate), (100, Some(77)));
    pair.send(pair.request(2).inline(b"message"));
    assert_eq!((pair.a.wait().status, pair.b.wait().id), (0, 9));
}

#[test]
fn wrong_descriptor_completes_with_an_error_and_the_next_is_read() {
    let mut pair = Pair::new(QpOptions::default());
    let entry = pair.local(0, 16);
    let good = pair.request(1).buffers(&[entry]);
    type Change = fn(&mut [u8; 64]);
    let wrong: [(&str, u8, Change); 10] = [
        ("phase", 2, |bytes| bytes[3] ^= 1),
        ("not first", 3, |bytes| bytes[3] &= !4),
        ("not last", 3, |bytes| bytes[3] &= !8),
        ("without completion", 3, |bytes| bytes[3] &= !16),
        ("no metadata", 3, |bytes| bytes[2] &= !128),
        ("operation", 3, |bytes| bytes[2] |= 15),
        ("buffers", 6, |bytes| bytes[6] = 3),
        ("inline bytes", 6, |bytes| (bytes[2], bytes[6]) = (0xa0, 33)),
        ("key", 5, |bytes| bytes[36] ^= 1),
        ("bits above the key", 5, |bytes| bytes[39] = 1),
    ];
    for (id, (what, status, change)) in (100..).zip(wrong) {
        let mut request = good.clone().with_id(id);
        pair.a.complete(&mut request);
        change(&mut request.bytes);
        pair.a.post_bytes(&request.bytes);
        pair.a.ring_sends();
        let failed = pair.a.wait();
        assert_eq!((failed.id, failed.status, failed.queue), (id, status, SEND_QUEUE), "{what}");
        pair.receive(id, 0, 64);
        pair.send(good.clone());
        assert_eq!((pair.a.wait().status, pair.b.wait().status), (0, 0), "after {what}");
    }
}

#[test]
fn wrong_receive_completes_with_an_error() {
    let mut pair = Pair::new(QpOptions::default());
    let entry = pair.peers(0, 64);
    pair.b.post_receive_bytes(1, entry, 0x40);
    pair.b.post_receive(2, ibv_sge { lkey: entry.lkey ^ 1, ..entry });
    pair.b.post_receive(3, ibv_sge { addr: entry.addr + 4096, ..entry });
    pair.b.ring_receives();
    for (id, status) in [(1, 3), (2, 5), (3, 5)] {
        let failed = pair.b.wait();
        assert_eq!((failed.id, failed.status, failed.queue), (id, status, RECEIVE_QUEUE));
    }
    pair.receive(4, 0, 64);
    pair.send(pair.request(5).inline(b"after"));
    assert_eq!((pair.a.wait().status, pair.b.wait().id), (0, 4));
}

/// Also if the program rings the doorbell between the descriptors.
#[test]
fn receive_of_three_descriptors_is_filled_in_their_order() {
    let mut pair = Pair::new(QpOptions { receive_entries: 3, ..QpOptions::default() });
    let entries = [pair.peers(100, 4), pair.peers(50, 4), pair.peers(0, 40)];
    for (entry, control) in entries.into_iter().zip([0x40, 0, 0x80]) {
        pair.b.post_receive_bytes(1, entry, control);
        pair.b.ring_receives();
    }
    pair.receive(2, 200, 64);
    pair.send(pair.request(3).inline(b"one, two, three"));
    pair.send(pair.request(4).inline(b"more"));
    for (id, length) in [(1, 15), (2, 4)] {
        let seen = pair.b.wait();
        assert_eq!((seen.id, seen.status, seen.length), (id, 0, length));
        assert_eq!(pair.a.wait().status, 0);
    }
    let into = pair.memory[1].bytes();
    assert_eq!([&into[100..104], &into[50..54], &into[..7]].concat(), b"one, two, three");
    assert_eq!(into[200..204], *b"more");
}

#[test]
fn rings_begin_at_their_starts_after_a_reset() {
    let options = QpOptions { sends: 4, receives: 4, ..QpOptions::default() };
    let mut pair = Pair::new(options);
    for round in 0..3 {
        // In the middle of a turn; the receives of `a` stay outstanding, and one is half written.
        for id in 0..6 {
            pair.receive(id, 0, 64);
            pair.send(pair.request(id).inline(b"before"));
            assert_eq!((pair.a.wait().id, pair.b.wait().id), (id, id), "round {round}");
        }
        let entry = pair.local(0, 64);
        pair.a.post_receive(7, entry);
        pair.a.post_receive_bytes(8, entry, 0x40);
        pair.a.ring_receives();
        pair.a.reset(options);
        pair.b.reset(options);
        assert_eq!((pair.a.poll(), pair.b.poll()), (None, None));
    }
    pair.receive(9, 100, 64);
    pair.send(pair.request(10).inline(b"after"));
    assert_eq!((pair.a.wait().id, pair.b.wait().id), (10, 9));
    assert_eq!(pair.memory[1].bytes()[100..105], *b"after");
}

#[test]
fn doorbell_beyond_the_ring_fails_the_queue_pair() {
    let mut pair = Pair::new(QpOptions::default());
    pair.receive(7, 0, 64);
    pair.b.ring_sends_with(65);
    let flushed = pair.b.wait();
    assert_eq!((flushed.id, flushed.status, flushed.queue), (7, 1, RECEIVE_QUEUE));
    let mut attributes: ibv_qp_attr = zeroed();
    let mut init: ibv_qp_init_attr = zeroed();
    // SAFETY: all arguments are valid.
    let result = unsafe {
        (verbs().ibv_query_qp)(pair.b.end.qp, &raw mut attributes, IBV_QP_STATE, &raw mut init)
    };
    assert_eq!((result, attributes.qp_state), (0, IBV_QPS_ERR));
    // What comes afterwards is flushed too.
    pair.receive(8, 0, 64);
    assert_eq!((pair.b.wait().status, pair.b.poll().is_none()), (1, true));
}

/// Whatever a program writes: each descriptor completes, and the queue pair works afterwards.
#[test]
fn random_descriptors_complete_and_do_no_harm() {
    let mut pair = Pair::new(QpOptions { rnr_retry: 0, ..QpOptions::default() });
    // The receiver has had a buffer, so that sends aren't kept until it has one.
    pair.receive(0, 0, 64);
    pair.send(pair.request(0).inline(b"first"));
    assert_eq!((pair.a.wait().status, pair.b.wait().status), (0, 0));
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..300_u16 {
        let mut request = pair.request(round).buffers(&[pair.local(0, 8)]);
        pair.a.complete(&mut request);
        // From single bits to noise.
        for _ in 0..1 << random.u32(..8) {
            let at = random.usize(4..64);
            request.bytes[at] ^= 1 << random.u8(..8);
        }
        if random.bool() {
            random.fill(&mut request.bytes[2..]);
        }
        pair.a.post_bytes(&request.bytes);
        pair.a.ring_sends();
        let completed = pair.a.wait();
        assert_eq!((completed.id, completed.queue), (round, SEND_QUEUE));
    }
    pair.receive(1, 0, 64);
    pair.send(pair.request(2).inline(b"last"));
    assert_eq!((pair.a.wait().status, pair.b.wait().length), (0, 4));
}

#[test]
fn rings_have_the_sizes_that_the_queue_pair_was_created_with() {
    let program = Program::new(QpOptions { sends: 100, receives: 33, ..QpOptions::default() });
    let (send, receive) = program.query(size_of::<efadv_wq_attr>() as u32).unwrap();
    assert_eq!((send.entry_size, send.num_entries, send.caps), (64, 128, 1));
    assert_eq!((receive.entry_size, receive.num_entries, receive.max_batch), (16, 64, 64));
    assert!(send.max_batch > 0 && send.max_batch <= 128);
    assert_ne!(send.doorbell, receive.doorbell);
    let again = program.query(size_of::<efadv_wq_attr>() as u32).unwrap();
    assert_eq!((again.0.buffer, again.1.buffer), (send.buffer, receive.buffer));
    // Without `caps`, as rdma-core 60 has it, and less.
    let (send, _) = program.query(36).unwrap();
    assert_eq!((send.num_entries, send.caps), (128, 0));
    assert_eq!(program.query(32).unwrap_err(), libc::EINVAL);
}

#[test]
fn queue_pair_with_more_inline_data_has_descriptors_of_128_bytes() {
    let mut pair = Pair::new(QpOptions { max_inline: 80, ..QpOptions::default() });
    let (send, _) = pair.a.query(size_of::<efadv_wq_attr>() as u32).unwrap();
    assert_eq!((send.entry_size, send.num_entries), (128, 64));
    // More than one turn.
    for id in 0..100_u16 {
        pair.receive(id, 0, 100);
        let mut bytes = [0; 128];
        bytes[..64].copy_from_slice(&pair.request(id).inline(&[]).bytes);
        bytes[6] = 80;
        bytes[26..32].copy_from_slice(&[1, 2, 3, 4, 5, id as u8]);
        bytes[32..112].copy_from_slice(&[id as u8; 80]);
        bytes[3] |= pair.a.phase();
        pair.a.post_bytes(&bytes);
        pair.a.ring_sends();
        let (sent, received) = (pair.a.wait(), pair.b.wait());
        assert_eq!((sent.id, sent.status, sent.upper_id), (id, 0, [1, 2, 3, 4, 5, id as u8]));
        assert_eq!((received.id, received.length), (id, 80));
        assert_eq!(pair.memory[1].bytes()[..81], [&[id as u8; 80][..], &[0]].concat());
    }
}

#[test]
fn write_with_inline_data_needs_a_queue_pair_that_was_created_for_it() {
    let options = QpOptions { max_inline: 80, inline_writes: true, ..QpOptions::default() };
    for (options, status) in [(options, 0), (QpOptions { inline_writes: false, ..options }, 3)] {
        let mut pair = Pair::new(options);
        let (base, key) = (pair.peers(0, 0).addr, rkey(pair.regions[1]));
        let mut bytes = [0; 128];
        bytes[..64].copy_from_slice(&pair.request(1).inline(&[]).bytes);
        (bytes[2], bytes[6], bytes[32]) = (bytes[2] | WRITE, 80, 80);
        bytes[36..40].copy_from_slice(&key.to_le_bytes());
        bytes[40..48].copy_from_slice(&(base + 10).to_le_bytes());
        bytes[48..].copy_from_slice(&[0x5a; 80]);
        pair.a.post_bytes(&bytes);
        pair.a.ring_sends();
        let written = pair.a.wait();
        assert_eq!((written.id, written.status, written.operation), (1, status, WRITE));
        let expected = if status == 0 { 0x5a } else { 0 };
        assert_eq!(pair.memory[1].bytes()[10..90], [expected; 80]);
    }
}

/// Also where nobody has looked at the doorbell before the call.
#[test]
fn queue_pair_destroyed_with_rung_doorbells_has_sent_and_completes_nothing_afterwards() {
    let options = QpOptions::default();
    for _ in 0..20 {
        let mut pair = Pair::new(options);
        pair.receive(1, 0, 64);
        pair.send(pair.request(2).inline(b"first"));
        assert_eq!((pair.a.wait().status, pair.b.wait().id), (0, 1));
        pair.receive(3, 0, 64);
        let (own, peers) = (pair.local(0, 64), pair.peers(0, 64));
        pair.a.post_receive(4, own);
        pair.a.ring_receives();
        pair.send(pair.request(5).inline(b"last"));
        pair.a.replace_queue_pair(options);
        let received = pair.b.wait();
        assert_eq!((received.id, received.status, received.length), (3, 0, 4));
        // Once this has failed, who watches the doorbells knows what was destroyed before.
        pair.b.post_receive(6, ibv_sge { lkey: peers.lkey ^ 1, ..peers });
        pair.b.ring_receives();
        assert_eq!(pair.b.wait().status, 5);
        while let Some(seen) = pair.a.poll() {
            assert_eq!((seen.id, seen.status), (5, 0), "completed after the queue pair's end");
        }
    }
}

/// A program may look at the rings and post by calls. It may not do both.
#[test]
fn calls_work_after_the_query_but_not_after_the_first_doorbell() {
    let mut pair = Pair::new(QpOptions::default());
    pair.receive(1, 0, 64);
    let to = (pair.handle, pair.b.end.number(), pair.b.end.qkey);
    assert_eq!(pair.a.end.post_send(2, to, &[inline(b"by call")], IBV_SEND_INLINE), 0);
    let sent = pair.a.end.wait();
    assert_eq!((sent.wr_id, sent.status), (2, IBV_WC_SUCCESS));
    assert_eq!((pair.b.wait().id, pair.a.poll().is_none()), (1, true));
    assert_eq!(pair.b.end.post_receive(3, pair.peers(0, 64)), libc::EINVAL);
}

fn rkey(region: *mut ibv_mr) -> u32 {
    // SAFETY: the region is not deregistered yet.
    unsafe { (*region).rkey }
}

/// A file in memory, with a ring of 1,024 completions behind its first page.
struct RingFile {
    descriptor: OwnedFd,
    mapped: *mut u8,
}

impl RingFile {
    const OFFSET: usize = 4096;
    const LENGTH: usize = 1024 * 32;

    fn new() -> Self {
        let length = Self::OFFSET + Self::LENGTH;
        // SAFETY: the name is a C string, the descriptor that is returned is nobody else's, and the mapping is new.
        let (descriptor, mapped) = unsafe {
            let descriptor = libc::memfd_create(c"efa-test".as_ptr(), libc::MFD_CLOEXEC);
            assert!(descriptor >= 0, "errno {}", errno());
            assert_eq!(libc::ftruncate(descriptor, length as libc::off_t), 0);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let mapped = libc::mmap(null_mut(), length, access, libc::MAP_SHARED, descriptor, 0);
            assert_ne!(mapped, libc::MAP_FAILED);
            (OwnedFd::from_raw_fd(descriptor), mapped.cast())
        };
        Self { descriptor, mapped }
    }

    fn ring(&self) -> *mut u8 {
        self.mapped.wrapping_add(Self::OFFSET)
    }

    fn memory(&self, buffer: *mut u8) -> efadv_cq_memory {
        efadv_cq_memory {
            buffer: buffer.expose_provenance(),
            length: Self::LENGTH as u64,
            offset: Self::OFFSET as u64,
            fd: self.descriptor.as_raw_fd(),
            reserved: [0; 4],
        }
    }
}

impl Drop for RingFile {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's.
        unsafe { libc::munmap(self.mapped.cast(), Self::OFFSET + Self::LENGTH) };
    }
}

/// As programs do whose completions are read by a GPU: the device may be all that has the memory mapped.
#[test]
fn completions_are_written_to_the_part_of_a_file_that_the_program_names() {
    let file = RingFile::new();
    for buffer in [file.ring(), null_mut()] {
        // SAFETY: the mapping has these bytes, and no queue has its ring there now.
        unsafe { file.ring().write_bytes(0, RingFile::LENGTH) };
        let options = QpOptions { ring: Some(file.memory(buffer)), ..QpOptions::default() };
        let mut a = Program::new(options);
        assert_eq!(a.completions, buffer.cast_const());
        a.completions = file.ring();
        let mut pair = Pair::of(a, Program::new(QpOptions::default()));
        // More than a turn of the ring.
        for id in 0..1100 {
            pair.receive(id, 0, 64);
            pair.send(pair.request(id).inline(b"message"));
            let seen = pair.a.wait();
            assert_eq!((seen.id, seen.status, seen.queue), (id, 0, SEND_QUEUE));
            assert_eq!(pair.b.wait().length, 7);
        }
    }
}

#[test]
fn file_that_has_no_room_for_the_ring_of_completions_is_refused() {
    let file = RingFile::new();
    let good = file.memory(null_mut());
    let short = efadv_cq_memory { length: good.length - 1, ..good };
    let beyond = efadv_cq_memory { offset: good.offset + 8, ..good };
    let odd = efadv_cq_memory { offset: good.offset - 4, ..good };
    let none = efadv_cq_memory { fd: -1, ..good };
    let context = Program::new(QpOptions::default());
    for (memory, expected) in [
        (good, 0),
        (short, libc::EINVAL),
        (beyond, libc::EINVAL),
        (odd, libc::EINVAL),
        (none, libc::EBADF),
    ] {
        let mut attributes: ibv_cq_init_attr_ex = zeroed();
        attributes.cqe = 1024;
        let mut efa = efadv_cq_init_attr_newer::default();
        (efa.flags, efa.ext_mem_dmabuf) = (EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF, memory);
        let length = size_of::<efadv_cq_init_attr_newer>() as u32;
        let efa = (&raw mut efa).cast();
        // SAFETY: the arguments are valid, and the queue is not used after it is destroyed.
        let result = unsafe {
            let cq =
                (verbs().efadv_create_cq)(context.end.context, &raw mut attributes, efa, length);
            if cq.is_null() { errno() } else { (verbs().ibv_destroy_cq)(cq.cast()) }
        };
        assert_eq!(result, expected, "{memory:?}");
    }
}
