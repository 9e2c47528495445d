//! Posts and polls allocate nothing. The software device is a C library with an allocator of its own, so
//! only the calls of this crate are counted.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]
#![allow(unsafe_code, reason = "an allocator that counts")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::on_soft_device;
use efa_device::{
    Completion, Destination, Device, Qkey, QueuePair, QueuePairOptions, SendRequest, Time, WorkId,
};
use efa_verbs::{Packet, VerbsDevice, VerbsQueuePair};

/// The system allocator, with a count of its calls.
struct Counting;

thread_local! {
    /// Calls of this thread. The thread that the test harness waits in allocates too.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    CALLS.with(|calls| calls.set(calls.get() + 1));
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: both functions forward to `System`, which is a valid allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the layout has a non-zero size, as the caller of `alloc` promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count();
        // SAFETY: `memory` is of `alloc` with this layout, as the caller of `dealloc` promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Sends a packet from `from` to `to`, which posts its buffer again. Returns the sent packet.
fn round(
    from: &mut VerbsQueuePair,
    to: &mut VerbsQueuePair,
    destination: Destination,
    packet: Packet,
    length: usize,
) -> Packet {
    let request = SendRequest { id: WorkId(3), packet, length, destination, immediate: None };
    from.post_send(request).unwrap();
    let (mut sent, mut received) = (None, false);
    loop {
        if let Some(Completion::Receive { packet, .. }) = to.poll(Time::ZERO) {
            to.post_receive(packet).unwrap();
            received = true;
        }
        if let Some(Completion::Send { packet, .. }) = from.poll(Time::ZERO) {
            sent = Some(packet);
        }
        if received && let Some(sent) = sent.take() {
            return sent;
        }
    }
}

#[test]
fn posts_and_polls_allocate_nothing() {
    on_soft_device("posts_and_polls_allocate_nothing", &[], || {
        let device = VerbsDevice::open(None).unwrap();
        let make = |qkey| {
            let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(qkey));
            device.create_queue_pair(options).unwrap()
        };
        let (mut a, mut b) = (make(1), make(2));
        for _ in 0..40 {
            let packet = b.allocate_packet().unwrap();
            b.post_receive(packet).unwrap();
        }
        let there = b.address();
        let address_handle = a.create_address_handle(there.gid).unwrap();
        let to = Destination { address_handle, qpn: there.qpn, qkey: there.qkey };
        let mut packet = a.allocate_packet().unwrap();
        let before = CALLS.with(Cell::get);
        for index in 0..5000 {
            // Inline and not.
            packet = round(&mut a, &mut b, to, packet, if index % 2 == 0 { 8 } else { 3000 });
        }
        let calls = CALLS.with(Cell::get) - before;
        assert_eq!(calls, 0, "allocator calls in 5000 rounds");
        assert!(a.counters().inline_sends == 2500 && b.counters().completions == 5000);
    });
}
