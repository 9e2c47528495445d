//! Threads that sleep until a queue pair has something, on the software device through its C functions.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use common::on_soft_device;
use efa_device::{
    Armed, Completion, Destination, Device, DeviceError, Qkey, QueuePair, QueuePairOptions,
    SendRequest, Time, WorkId,
};
use efa_verbs::{VerbsDevice, VerbsQueuePair};

const QUIET: Armed = Armed::Quiet { until: None };

fn options(waitable: bool) -> QueuePairOptions {
    QueuePairOptions::default().with(|options| {
        options.qkey = Qkey(7);
        options.waitable = waitable;
    })
}

fn create(waitable: bool) -> VerbsQueuePair {
    VerbsDevice::open(None).unwrap().create_queue_pair(options(waitable)).unwrap()
}

fn post_receive(pair: &mut VerbsQueuePair) {
    let packet = pair.allocate_packet().unwrap();
    pair.post_receive(packet).unwrap();
}

/// Whether the descriptor is readable, or becomes so within this time.
fn readable(pair: &VerbsQueuePair, timeout: Duration) -> bool {
    let fd = pair.wait_fd().unwrap().as_raw_fd();
    let mut file = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: `file` may be written.
    unsafe { libc::poll(&raw mut file, 1, i32::try_from(timeout.as_millis()).unwrap()) == 1 }
}

/// Arms the queue pair, taking what it has until it has nothing; returns how many were received.
fn settle(pair: &mut VerbsQueuePair) -> usize {
    let mut received = 0;
    while pair.arm(Time::ZERO).unwrap() == Armed::Pending {
        while let Some(done) = pair.poll(Time::ZERO) {
            received += usize::from(matches!(done, Completion::Receive { .. }));
        }
    }
    received
}

/// More rounds than there are events that are acknowledged at once. Were one not acknowledged, the drop would
/// not return.
#[test]
fn armed_queue_pair_becomes_readable_when_a_datagram_arrives() {
    const ROUNDS: usize = 300;
    on_soft_device("armed_queue_pair_becomes_readable_when_a_datagram_arrives", &[], || {
        let (mut a, mut b) = (create(true), create(true));
        let to = b.address();
        let address_handle = a.create_address_handle(to.gid).unwrap();
        let to = Destination { address_handle, qpn: to.qpn, qkey: to.qkey };
        for round in 0..ROUNDS {
            post_receive(&mut b);
            assert_eq!(b.arm(Time::ZERO), Ok(QUIET), "round {round}");
            assert!(!readable(&b, Duration::ZERO));
            let begin = Instant::now();
            let (id, packet) = (WorkId(1), a.allocate_packet().unwrap());
            let request = SendRequest { id, packet, length: 8, destination: to, immediate: None };
            a.post_send(request).unwrap();
            let mut received = 0;
            while received == 0 {
                assert!(readable(&b, Duration::from_secs(20)));
                received = settle(&mut b);
            }
            assert_eq!(received, 1);
            while !a.poll(Time::ZERO).is_some_and(|done| matches!(done, Completion::Send { .. })) {}
            // The device looks by itself once a second.
            assert!(begin.elapsed() < Duration::from_millis(950), "round {round}");
        }
        // What has completed before is found by arming itself.
        assert_eq!(settle(&mut a), 0);
    });
}

#[test]
fn queue_pair_that_is_not_waitable_has_no_descriptor() {
    on_soft_device("queue_pair_that_is_not_waitable_has_no_descriptor", &[], || {
        let mut pair = create(false);
        assert!(pair.wait_fd().is_none());
        let refused = DeviceError::Unsupported { operation: "waiting" };
        assert_eq!(pair.arm(Time::ZERO), Err(refused));
    });
}

#[test]
fn waitable_queue_pair_is_refused_where_the_interface_does_not_notify() {
    let name = "waitable_queue_pair_is_refused_where_the_interface_does_not_notify";
    on_soft_device(name, &[("EFA_SOFT_NOTIFICATIONS", "0")], || {
        let refused = DeviceError::Unsupported { operation: "waiting" };
        let device = VerbsDevice::open(None).unwrap();
        assert_eq!(device.check_notifies(), Err(refused.clone()));
        assert_eq!(device.create_queue_pair(options(true)).unwrap_err(), refused);
        assert!(device.create_queue_pair(options(false)).is_ok());
    });
}
