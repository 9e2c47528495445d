//! What a program has that drives the rings itself.

use std::sync::LazyLock;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use efa_soft::abi::*;

use crate::common::verbs::*;
use crate::common::{directory_of_process, loopback};
use crate::{LINK, direct};

pub(crate) const SEND_QUEUE: u8 = 1;
pub(crate) const RECEIVE_QUEUE: u8 = 2;
pub(crate) const READ: u8 = 1;
pub(crate) const WRITE: u8 = 2;

static HOST: LazyLock<()> = LazyLock::new(|| {
    // SAFETY: every test comes here before it does anything else, and the first one does this while the
    // others wait, so no other thread reads the environment.
    unsafe {
        std::env::set_var("EFA_SOFT_DIRECTORY", directory_of_process().join("hosts"));
        std::env::set_var("EFA_SOFT_LINK", LINK);
        std::env::set_var("EFA_SOFT_DIRECT", direct());
        std::env::set_var("EFA_SOFT_UNSOLICITED", "1");
        std::env::set_var("EFA_SOFT_ADDRESS", loopback(1).to_string());
    }
    // Makes the library read the environment now.
    // SAFETY: the list is freed after its only use.
    unsafe { (verbs().ibv_free_device_list)((verbs().ibv_get_device_list)(null_mut())) };
});

/// To be called before anything else.
pub(crate) fn set_up() {
    LazyLock::force(&HOST);
}

pub(crate) fn handle_number(handle: *mut ibv_ah) -> u16 {
    let mut attributes = efadv_ah_attr::default();
    let length = size_of::<efadv_ah_attr>() as u32;
    // SAFETY: the arguments are valid.
    assert_eq!(unsafe { (verbs().efadv_query_ah)(handle, &raw mut attributes, length) }, 0);
    attributes.ahn
}

/// The descriptor of a send, read or write.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) bytes: [u8; 64],
}

impl Request {
    pub(crate) fn new(id: u16, handle: u16, qpn: u16, qkey: u32) -> Self {
        let mut bytes = [0; 64];
        bytes[..2].copy_from_slice(&id.to_le_bytes());
        bytes[2] = 0x80;
        bytes[3] = 0x1c;
        bytes[4..6].copy_from_slice(&qpn.to_le_bytes());
        bytes[12..14].copy_from_slice(&handle.to_le_bytes());
        bytes[16..20].copy_from_slice(&qkey.to_le_bytes());
        Self { bytes }
    }

    pub(crate) fn with_id(mut self, id: u16) -> Self {
        self.bytes[..2].copy_from_slice(&id.to_le_bytes());
        self
    }

    pub(crate) fn buffers(mut self, entries: &[ibv_sge]) -> Self {
        self.bytes[6] = entries.len() as u8;
        for (index, entry) in entries.iter().enumerate() {
            self.put_buffer(32 + 16 * index, entry);
        }
        self
    }

    pub(crate) fn inline(mut self, data: &[u8]) -> Self {
        self.bytes[2] |= 0x20;
        self.bytes[6] = data.len() as u8;
        self.bytes[32..32 + data.len()].copy_from_slice(data);
        self
    }

    pub(crate) fn immediate(mut self, data: u32) -> Self {
        self.bytes[2] |= 0x10;
        self.bytes[8..12].copy_from_slice(&data.to_le_bytes());
        self
    }

    pub(crate) fn remote(
        mut self,
        operation: u8,
        (address, key): (u64, u32),
        entries: &[ibv_sge],
    ) -> Self {
        self.bytes[2] |= operation;
        self.bytes[6] = entries.len() as u8;
        let length: u32 = entries.iter().map(|entry| entry.length).sum();
        self.bytes[32..36].copy_from_slice(&length.to_le_bytes());
        self.bytes[36..40].copy_from_slice(&key.to_le_bytes());
        self.bytes[40..48].copy_from_slice(&address.to_le_bytes());
        if let [entry] = entries {
            self.put_buffer(48, entry);
        }
        self
    }

    fn put_buffer(&mut self, at: usize, entry: &ibv_sge) {
        self.bytes[at..at + 4].copy_from_slice(&entry.length.to_le_bytes());
        let [a, b, c, _] = entry.lkey.to_le_bytes();
        self.bytes[at + 4..at + 8].copy_from_slice(&[a, b, c, 0]);
        self.bytes[at + 8..at + 16].copy_from_slice(&entry.addr.to_le_bytes());
    }
}

/// A completion, out of its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completed {
    pub(crate) id: u16,
    pub(crate) status: u8,
    pub(crate) queue: u8,
    pub(crate) operation: u8,
    pub(crate) unsolicited: bool,
    pub(crate) qpn: u16,
    pub(crate) length: u32,
    pub(crate) handle: u16,
    pub(crate) source: u16,
    pub(crate) immediate: Option<u32>,
    pub(crate) gid: [u8; 16],
    /// Bits 16 to 63 of the id of a send.
    pub(crate) upper_id: [u8; 6],
}

/// A program with a queue pair and the rings of it.
pub(crate) struct Program {
    send: Queue,
    receive: Queue,
    pub(crate) completions: *const u8,
    entries: u32,
    consumed: u32,
    /// Of the completion queue; null without a channel.
    doorbell: *mut u32,
    // Last, as the rings are the library's.
    pub(crate) end: Endpoint,
}

struct Queue {
    attributes: efadv_wq_attr,
    count: u16,
}

impl Queue {
    /// The phase bit of this turn.
    fn phase(&self) -> u8 {
        (u32::from(self.count) / self.attributes.num_entries) as u8 & 1
    }

    fn write(&mut self, bytes: &[u8]) {
        let size = self.attributes.entry_size as usize;
        assert_eq!(bytes.len(), size);
        let index = u32::from(self.count) & (self.attributes.num_entries - 1);
        for (word, bytes) in bytes.chunks_exact(8).enumerate() {
            let value = u64::from_ne_bytes(bytes.try_into().unwrap());
            // SAFETY: the ring has this many entries, and exists as long as the queue pair.
            unsafe {
                let at = self.attributes.buffer.add(index as usize * size + 8 * word);
                at.cast::<u64>().write_volatile(value);
            }
        }
        self.count = self.count.wrapping_add(1);
    }

    fn ring(&self, count: u16) {
        fence(Ordering::SeqCst);
        // SAFETY: the doorbell exists as long as the queue pair.
        unsafe { self.attributes.doorbell.write_volatile(count.into()) };
    }
}

impl Program {
    pub(crate) fn new(options: QpOptions) -> Self {
        set_up();
        let end = Endpoint::in_reset(options);
        let mut cq: efadv_cq_attr = zeroed();
        let length = size_of::<efadv_cq_attr>() as u32;
        // SAFETY: the arguments are valid.
        let result = unsafe { (verbs().efadv_query_cq)(end.cq.cast(), &raw mut cq, length) };
        assert_eq!((result, cq.entry_size, cq.num_entries), (0, 32, 1024));
        assert_eq!(cq.doorbell.is_null(), !options.channel);
        let (send, receive) = query(&end, size_of::<efadv_wq_attr>() as u32).unwrap();
        let queue = |attributes| Queue { attributes, count: 0 };
        let (send, receive) = (queue(send), queue(receive));
        end.make_ready(options);
        let (completions, entries, doorbell) = (cq.buffer, cq.num_entries, cq.doorbell);
        Self { send, receive, completions, entries, consumed: 0, doorbell, end }
    }

    /// Asks for an event for the next completion.
    pub(crate) fn ask(&self) {
        self.ring_completions(1 << 31 | self.consumed & 0xffff);
    }

    /// Writes to the doorbell of the completion queue.
    pub(crate) fn ring_completions(&self, word: u32) {
        fence(Ordering::SeqCst);
        // SAFETY: the doorbell exists as long as the completion queue, which has a channel.
        unsafe { self.doorbell.write_volatile(word) };
    }

    /// Asks, and waits until the device has seen that: it clears the bit.
    pub(crate) fn ask_and_wait(&self) {
        self.ask();
        let begun = Instant::now();
        // SAFETY: as above.
        while unsafe { self.doorbell.read_volatile() } & 1 << 31 != 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody looks at the doorbell");
            std::thread::yield_now();
        }
    }

    /// Moves the queue pair to RESET and back; the program begins at the starts of its rings again.
    pub(crate) fn reset(&mut self, options: QpOptions) {
        let mut attributes: ibv_qp_attr = zeroed();
        attributes.qp_state = IBV_QPS_RESET;
        assert_eq!(self.end.modify(&mut attributes, IBV_QP_STATE), 0);
        (self.send.count, self.receive.count) = (0, 0);
        self.end.make_ready(options);
    }

    /// Destroys the queue pair, and makes one in the state RESET that has no rings.
    pub(crate) fn replace_queue_pair(&mut self, options: QpOptions) {
        let Endpoint { context, pd, cq, qp, .. } = self.end;
        // SAFETY: the queue pair is not used afterwards.
        assert_eq!(unsafe { (verbs().ibv_destroy_qp)(qp) }, 0);
        self.end.qp = create(context, pd, cq, options);
        assert!(!self.end.qp.is_null(), "errno {}", errno());
    }

    pub(crate) fn query(&self, length: u32) -> Result<(efadv_wq_attr, efadv_wq_attr), i32> {
        query(&self.end, length)
    }

    /// The phase bit of the request that is to be written next.
    pub(crate) fn phase(&self) -> u8 {
        self.send.phase()
    }

    /// Sets the phase of a request that is to be written next.
    pub(crate) fn complete(&self, request: &mut Request) {
        request.bytes[3] |= self.phase();
    }

    pub(crate) fn post(&mut self, mut request: Request) {
        self.complete(&mut request);
        self.send.write(&request.bytes);
    }

    pub(crate) fn post_bytes(&mut self, bytes: &[u8]) {
        self.send.write(bytes);
    }

    pub(crate) fn ring_sends(&self) {
        self.send.ring(self.send.count);
    }

    /// Rings the doorbell of sends by an instruction that isn't a plain store.
    #[cfg(target_arch = "x86_64")]
    #[allow(dead_code, reason = "one of the test programs uses it")]
    pub(crate) fn exchange_sends_doorbell(&self) {
        // SAFETY: the doorbell exists as long as the queue pair.
        let doorbell =
            unsafe { std::sync::atomic::AtomicU32::from_ptr(self.send.attributes.doorbell) };
        doorbell.swap(self.send.count.into(), Ordering::SeqCst);
    }

    pub(crate) fn ring_sends_with(&self, count: u16) {
        self.send.ring(count);
    }

    pub(crate) fn post_receive(&mut self, id: u16, entry: ibv_sge) {
        self.post_receive_bytes(id, entry, 0xc0);
    }

    pub(crate) fn post_receive_bytes(&mut self, id: u16, entry: ibv_sge, control: u8) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&entry.addr.to_le_bytes());
        bytes[8..10].copy_from_slice(&id.to_le_bytes());
        bytes[10..12].copy_from_slice(&(entry.length as u16).to_le_bytes());
        let [a, b, c, _] = entry.lkey.to_le_bytes();
        bytes[12..].copy_from_slice(&[a, b, c, control]);
        self.receive.write(&bytes);
    }

    pub(crate) fn ring_receives(&self) {
        self.receive.ring(self.receive.count);
    }

    /// The next completion, if its phase says that it is there.
    pub(crate) fn poll(&mut self) -> Option<Completed> {
        let index = self.consumed & (self.entries - 1);
        let phase = u8::from((self.consumed / self.entries) & 1 == 0);
        let mut bytes = [0; 32];
        // SAFETY: the ring has this many entries, and exists as long as the completion queue.
        unsafe {
            let at = self.completions.add(32 * index as usize);
            if at.add(3).read_volatile() & 1 != phase {
                return None;
            }
            fence(Ordering::Acquire);
            for (byte, into) in bytes.iter_mut().enumerate() {
                *into = at.add(byte).read_volatile();
            }
        }
        self.consumed += 1;
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let flags = bytes[3];
        let operation = flags >> 4 & 7;
        let high = if operation == WRITE { u32::from(short(16)) << 16 } else { 0 };
        Some(Completed {
            id: short(0),
            status: bytes[2],
            queue: flags >> 1 & 3,
            operation,
            unsolicited: flags & 0x80 != 0,
            qpn: short(4),
            length: u32::from(short(6)) | high,
            handle: short(8),
            source: short(10),
            immediate: (flags & 8 != 0)
                .then(|| u32::from_le_bytes(bytes[12..16].try_into().unwrap())),
            gid: bytes[16..].try_into().unwrap(),
            upper_id: bytes[6..12].try_into().unwrap(),
        })
    }

    /// Reads the ring until there is a completion.
    pub(crate) fn wait(&mut self) -> Completed {
        let begun = Instant::now();
        loop {
            if let Some(seen) = self.poll() {
                return seen;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "no completion for a minute");
            std::thread::yield_now();
        }
    }
}

fn query(end: &Endpoint, length: u32) -> Result<(efadv_wq_attr, efadv_wq_attr), i32> {
    let (mut send, mut receive): (efadv_wq_attr, efadv_wq_attr) = (zeroed(), zeroed());
    // SAFETY: the arguments are valid.
    let result =
        unsafe { (verbs().efadv_query_qp_wqs)(end.qp, &raw mut send, &raw mut receive, length) };
    if result == 0 { Ok((send, receive)) } else { Err(result) }
}
