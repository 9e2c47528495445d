//! The direct data path of `libefa_soft`: descriptors with any contents and doorbells with any counts. Each
//! descriptor completes once, a count beyond the ring fails the queue pair, and a correct program works
//! afterwards.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use efa_soft::abi::*;

use crate::c_calls::{
    alone, efadv_create_qp_ex, efadv_query_ah, efadv_query_cq, efadv_query_qp_wqs, ibv_alloc_pd,
    ibv_close_device, ibv_create_ah, ibv_create_cq, ibv_create_qp, ibv_dealloc_pd, ibv_dereg_mr,
    ibv_destroy_ah, ibv_destroy_cq, ibv_destroy_qp, ibv_free_device_list, ibv_get_device_list,
    ibv_modify_qp, ibv_open_device, ibv_query_gid, ibv_query_qp, ibv_reg_mr, zeroed,
};
use crate::input::Input;

/// Most decisions of a program.
const DECISIONS: usize = 200;
/// Bytes of the program's memory.
const MEMORY: usize = 4096;
/// Entries of the rings of requests, and of the completion ring.
const ENTRIES: u32 = 16;
const COMPLETIONS: u32 = 64;
const QKEY: u32 = 7;
/// Limit of a program that makes no progress; it takes milliseconds.
const DEADLINE: Duration = Duration::from_secs(60);

/// A ring of requests, as a program sees it.
struct Queue {
    attributes: efadv_wq_attr,
    /// Requests written so far, and those that the doorbell has counted.
    written: u16,
    rung: u16,
    completed: u16,
}

impl Queue {
    fn new(attributes: efadv_wq_attr) -> Self {
        Self { attributes, written: 0, rung: 0, completed: 0 }
    }

    /// Whether a program that keeps to the rules may write another.
    fn has_room(&self) -> bool {
        u32::from(self.written.wrapping_sub(self.completed)) < ENTRIES
    }

    fn phase(&self) -> u8 {
        (u32::from(self.written) / self.attributes.num_entries) as u8 & 1
    }

    fn write(&mut self, bytes: &[u8]) {
        let index = u32::from(self.written) & (self.attributes.num_entries - 1);
        let at = (index * self.attributes.entry_size) as usize;
        for (offset, byte) in bytes.iter().take(self.attributes.entry_size as usize).enumerate() {
            // SAFETY: within the ring, which exists as long as the queue pair.
            unsafe { self.attributes.buffer.add(at + offset).write_volatile(*byte) };
        }
        self.written = self.written.wrapping_add(1);
    }

    fn ring(&mut self, count: u16) {
        self.rung = count;
        fence(Ordering::SeqCst);
        // SAFETY: the doorbell exists as long as the queue pair.
        unsafe { self.attributes.doorbell.write_volatile(count.into()) };
    }

    /// Whether the doorbell counts more than the ring has, however much of it the device has read.
    fn is_wrong(&self, count: u16) -> bool {
        let (ahead, entries) = (count.wrapping_sub(self.rung), self.attributes.num_entries);
        u32::from(ahead) > entries && u32::from(ahead) < (1 << 16) - entries
    }
}

/// A program with a queue pair that sends to itself.
struct Program {
    context: *mut ibv_context,
    domain: *mut ibv_pd,
    region: *mut ibv_mr,
    handle: *mut ibv_ah,
    handle_number: u16,
    queue: *mut ibv_cq,
    pair: *mut ibv_qp,
    memory: Box<[u8]>,
    send: Queue,
    receive: Queue,
    completions: *mut u8,
    consumed: u32,
    has_failed: bool,
}

impl Program {
    fn new(is_datagram: bool) -> Self {
        let mut memory = vec![0_u8; MEMORY].into_boxed_slice();
        // SAFETY: the functions get live objects and valid structures; the memory lives as long as the region.
        unsafe {
            let list = ibv_get_device_list(null_mut());
            let context = ibv_open_device(*list);
            ibv_free_device_list(list);
            let domain = ibv_alloc_pd(context);
            let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
            let at = memory.as_mut_ptr().cast();
            let region = ibv_reg_mr(domain, at, MEMORY, access as c_int);
            let mut gid = ibv_gid { words: [0; 2] };
            assert_eq!(ibv_query_gid(context, 1, 0, &raw mut gid), 0);
            let mut to: ibv_ah_attr = zeroed();
            (to.grh.dgid, to.is_global, to.port_num) = (gid, 1, 1);
            let handle = ibv_create_ah(domain, &raw mut to);
            let mut of_handle = efadv_ah_attr::default();
            let size = size_of::<efadv_ah_attr>() as u32;
            assert_eq!(efadv_query_ah(handle, &raw mut of_handle, size), 0);
            let queue = ibv_create_cq(context, COMPLETIONS as c_int, null_mut(), null_mut(), 0);
            let mut ring: efadv_cq_attr = zeroed();
            let size = size_of::<efadv_cq_attr>() as u32;
            assert_eq!(efadv_query_cq(queue, &raw mut ring, size), 0);
            assert_eq!((ring.entry_size, ring.num_entries), (32, COMPLETIONS));
            let pair = create_pair(context, domain, queue, is_datagram);
            let (mut send, mut receive): (efadv_wq_attr, efadv_wq_attr) = (zeroed(), zeroed());
            let size = size_of::<efadv_wq_attr>() as u32;
            assert_eq!(efadv_query_qp_wqs(pair, &raw mut send, &raw mut receive, size), 0);
            make_ready(pair);
            Self {
                context,
                domain,
                region,
                handle,
                handle_number: of_handle.ahn,
                queue,
                pair,
                memory,
                send: Queue::new(send),
                receive: Queue::new(receive),
                completions: ring.buffer,
                consumed: 0,
                has_failed: false,
            }
        }
    }

    /// A correct send, write or read of the program's own memory.
    fn correct_send(&self, operation: u8) -> [u8; 64] {
        // SAFETY: the objects are live.
        let (number, key, remote) =
            unsafe { ((*self.pair).qp_num, (*self.region).lkey, (*self.region).rkey) };
        let address = self.memory.as_ptr().addr() as u64;
        let mut bytes = [0; 64];
        bytes[..2].copy_from_slice(&self.send.written.to_le_bytes());
        bytes[2] = 0x80 | operation;
        bytes[3] = 0x1c | self.send.phase();
        bytes[4..6].copy_from_slice(&(number as u16).to_le_bytes());
        bytes[6] = 1;
        bytes[12..14].copy_from_slice(&self.handle_number.to_le_bytes());
        bytes[16..20].copy_from_slice(&QKEY.to_le_bytes());
        let mut at = 32;
        if operation != 0 {
            bytes[32] = 8;
            bytes[36..40].copy_from_slice(&remote.to_le_bytes());
            bytes[40..48].copy_from_slice(&(address + 1024).to_le_bytes());
            at = 48;
        }
        bytes[at] = 8;
        bytes[at + 4..at + 7].copy_from_slice(&key.to_le_bytes()[..3]);
        bytes[at + 8..at + 16].copy_from_slice(&address.to_le_bytes());
        bytes
    }

    fn correct_receive(&self) -> [u8; 16] {
        // SAFETY: the region is live.
        let key = unsafe { (*self.region).lkey };
        let address = self.memory.as_ptr().addr() as u64 + 2048;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.receive.written.to_le_bytes());
        bytes[10..12].copy_from_slice(&1024_u16.to_le_bytes());
        bytes[12..15].copy_from_slice(&key.to_le_bytes()[..3]);
        bytes[15] = 0xc0;
        bytes
    }

    fn decide(&mut self, input: &mut Input<'_>) {
        match input.byte() {
            0..=79 if self.send.has_room() => {
                let mut bytes = self.correct_send(input.byte() % 3);
                spoil(&mut bytes, input);
                // The id stays, so that completions can be told apart.
                bytes[..2].copy_from_slice(&self.send.written.to_le_bytes());
                self.send.write(&bytes);
            }
            80..=149 if self.receive.has_room() => {
                let mut bytes = self.correct_receive();
                spoil(&mut bytes, input);
                bytes[8..10].copy_from_slice(&self.receive.written.to_le_bytes());
                self.receive.write(&bytes);
            }
            150..=189 => {
                let count = input.about(self.send.written.into()) as u16;
                // What wasn't written has descriptors of earlier turns, which complete too.
                self.ring(true, count);
            }
            190..=229 => {
                let count = input.about(self.receive.written.into()) as u16;
                self.ring(false, count);
            }
            230..=235 => {
                // A program that writes where it should only read harms itself alone.
                let at = input.below(COMPLETIONS as usize) * 32 + 8;
                // SAFETY: within the ring, behind the word with the phase of an entry.
                unsafe { self.completions.add(at).write_volatile(input.byte()) };
            }
            _ => self.poll(),
        }
    }

    fn ring(&mut self, is_send: bool, count: u16) {
        let queue = if is_send { &mut self.send } else { &mut self.receive };
        if !self.has_failed && queue.is_wrong(count) {
            queue.ring(count);
            self.has_failed = true;
            let begun = Instant::now();
            while self.state() != IBV_QPS_ERR {
                assert!(begun.elapsed() < DEADLINE, "a count beyond the ring fails the queue pair");
                std::thread::yield_now();
            }
        } else if !self.has_failed {
            // Within the rules for what is written: a program that counts others can't tell what completes.
            let count = queue.written.min(count.max(queue.rung));
            queue.ring(count);
        }
    }

    fn state(&self) -> c_int {
        let (mut attributes, mut init): (ibv_qp_attr, ibv_qp_init_attr) = (zeroed(), zeroed());
        // SAFETY: the queue pair is live, and the structures are valid.
        let result =
            unsafe { ibv_query_qp(self.pair, &raw mut attributes, IBV_QP_STATE, &raw mut init) };
        assert_eq!(result, 0);
        attributes.qp_state
    }

    /// Reads the completions that are there.
    fn poll(&mut self) {
        while let Some(bytes) = self.next() {
            // SAFETY: the queue pair is live.
            let number = unsafe { (*self.pair).qp_num };
            assert_eq!(u32::from(u16::from_le_bytes([bytes[4], bytes[5]])), number);
            let queue = match bytes[3] >> 1 & 3 {
                1 => &mut self.send,
                2 => &mut self.receive,
                other => panic!("a completion of queue {other}"),
            };
            queue.completed = queue.completed.wrapping_add(1);
            let outstanding = queue.rung.wrapping_sub(queue.completed);
            assert!(self.has_failed || u32::from(outstanding) <= ENTRIES, "completed twice");
        }
    }

    fn next(&mut self) -> Option<[u8; 32]> {
        let index = (self.consumed & (COMPLETIONS - 1)) as usize;
        let phase = u8::from((self.consumed / COMPLETIONS) & 1 == 0);
        let mut bytes = [0; 32];
        // SAFETY: within the ring, which exists as long as the completion queue.
        unsafe {
            let at = self.completions.add(32 * index);
            if at.add(3).read_volatile() & 1 != phase {
                return None;
            }
            fence(Ordering::Acquire);
            for (offset, byte) in bytes.iter_mut().enumerate() {
                *byte = at.add(offset).read_volatile();
            }
        }
        self.consumed += 1;
        Some(bytes)
    }

    /// Waits until all sends that were rung have completed, if the queue pair works.
    fn settle(&mut self) {
        let begun = Instant::now();
        while !self.has_failed && self.send.completed != self.send.rung {
            // Sends wait for a buffer of the receiver.
            while self.receive.has_room() {
                let bytes = self.correct_receive();
                self.receive.write(&bytes);
            }
            let written = self.receive.written;
            self.receive.ring(written);
            self.poll();
            assert!(begun.elapsed() < DEADLINE, "a send doesn't complete");
            std::thread::yield_now();
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: the objects are live and not used afterwards.
        unsafe {
            assert_eq!(ibv_destroy_qp(self.pair), 0);
            assert_eq!(ibv_destroy_cq(self.queue), 0);
            assert_eq!(ibv_destroy_ah(self.handle), 0);
            assert_eq!(ibv_dereg_mr(self.region), 0);
            assert_eq!(ibv_dealloc_pd(self.domain), 0);
            assert_eq!(ibv_close_device(self.context), 0);
        }
    }
}

/// Changes some bytes of a descriptor, none or all of them.
fn spoil(bytes: &mut [u8], input: &mut Input<'_>) {
    match input.below(4) {
        0 => {}
        1 => {
            let from = input.take(bytes.len());
            bytes[..from.len()].copy_from_slice(from);
        }
        _ => {
            for _ in 0..=input.below(3) {
                let at = input.below(bytes.len());
                bytes[at] ^= input.byte();
            }
        }
    }
}

/// # Safety
/// The objects must be live.
unsafe fn create_pair(
    context: *mut ibv_context,
    domain: *mut ibv_pd,
    queue: *mut ibv_cq,
    is_datagram: bool,
) -> *mut ibv_qp {
    let mut attributes: ibv_qp_init_attr_ex = zeroed();
    attributes.cap = ibv_qp_cap {
        max_send_wr: ENTRIES,
        max_recv_wr: ENTRIES,
        max_send_sge: 2,
        max_recv_sge: 1,
        max_inline_data: 32,
    };
    (attributes.send_cq, attributes.recv_cq, attributes.sq_sig_all) = (queue, queue, 1);
    // SAFETY: live objects, as required above, and valid structures.
    unsafe {
        if is_datagram {
            let mut attributes = ibv_qp_init_attr {
                qp_context: null_mut(),
                send_cq: queue,
                recv_cq: queue,
                srq: null_mut(),
                cap: attributes.cap,
                qp_type: IBV_QPT_UD,
                sq_sig_all: 1,
            };
            return ibv_create_qp(domain, &raw mut attributes);
        }
        attributes.qp_type = IBV_QPT_DRIVER;
        attributes.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attributes.pd = domain;
        attributes.send_ops_flags =
            IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_RDMA_WRITE;
        let mut efa = efadv_qp_init_attr::default();
        let size = size_of::<efadv_qp_init_attr>() as u32;
        efadv_create_qp_ex(context, &raw mut attributes, &raw mut efa, size)
    }
}

/// # Safety
/// The queue pair must be live.
unsafe fn make_ready(pair: *mut ibv_qp) {
    let mut attributes: ibv_qp_attr = zeroed();
    (attributes.port_num, attributes.qkey, attributes.rnr_retry) = (1, QKEY, 7);
    let steps = [
        (IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
        (IBV_QPS_RTR, 0),
        (IBV_QPS_RTS, IBV_QP_SQ_PSN),
    ];
    for (state, mask) in steps {
        attributes.qp_state = state;
        // SAFETY: a live queue pair, as required above, and a valid structure.
        assert_eq!(unsafe { ibv_modify_qp(pair, &raw mut attributes, IBV_QP_STATE | mask) }, 0);
    }
}

/// A message to the own queue pair arrives, and its send completes.
fn run_correct_program() {
    let mut program = Program::new(false);
    program.memory[..8].copy_from_slice(b"messages");
    let (send, receive) = (program.correct_send(0), program.correct_receive());
    program.receive.write(&receive);
    program.receive.ring(1);
    program.send.write(&send);
    program.send.ring(1);
    let begun = Instant::now();
    while (program.send.completed, program.receive.completed) != (1, 1) {
        program.poll();
        assert!(begun.elapsed() < DEADLINE, "a correct program receives no completions");
        std::thread::yield_now();
    }
    // SAFETY: the device has written there; read as memory that another thread may write.
    let received = unsafe { program.memory.as_ptr().add(2048).cast::<[u8; 8]>().read_volatile() };
    assert_eq!(&received, b"messages");
}

pub(crate) fn run(bytes: &[u8]) {
    alone(|| {
        let mut input = Input::new(bytes);
        let mut program = Program::new(input.one_in(4));
        for _ in 0..DECISIONS {
            if input.is_empty() {
                break;
            }
            program.decide(&mut input);
        }
        program.settle();
        drop(program);
        run_correct_program();
    });
}
