//! Posts and polls allocate nothing. The software device is a C library with an allocator of its own, so
//! only the calls of this crate are counted.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;

use common::on_soft_device;
use efa_counted_heap::allocations;
use efa_device::{
    Completion, Destination, Device, Qkey, QueuePair, QueuePairOptions, SendRequest, Time, WorkId,
};
use efa_verbs::{Packet, VerbsDevice, VerbsQueuePair};

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
        let before = allocations();
        for index in 0..5000 {
            // Inline and not.
            packet = round(&mut a, &mut b, to, packet, if index % 2 == 0 { 8 } else { 3000 });
        }
        let count = allocations() - before;
        assert_eq!(count, 0, "allocations in 5000 rounds");
        assert!(a.counters().inline_sends == 2500 && b.counters().completions == 5000);
    });
}
