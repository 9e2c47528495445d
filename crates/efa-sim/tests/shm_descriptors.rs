//! The shm link while the process has no file descriptors left. A test program of its own, as the limit holds
//! for the whole process.

#![allow(clippy::unwrap_used)]

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use efa_device::{
    Completion, Destination, Device, Qkey, QueuePair, QueuePairOptions, SendRequest, Shortage,
    Time, WorkId,
};
use efa_sim::shm::{ShmDevice, ShmOptions, ShmQueuePair};
use tempfile::TempDir;

/// Sets how many descriptors the process may have; `None`: no more than it has.
#[allow(unsafe_code, reason = "calls of the C library")]
fn limit_descriptors(limit: Option<u64>) {
    // The next one gets the lowest free number, which must be below the limit.
    let free = || std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limits` is valid; a lower limit closes nothing.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits), 0);
        limits.rlim_cur = limit.unwrap_or_else(free);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limits), 0);
    }
}

fn send(from: &mut ShmQueuePair, to: &ShmQueuePair) -> Result<(), efa_device::DeviceError> {
    let address = to.address();
    let address_handle = from.create_address_handle(address.gid).unwrap();
    let destination = Destination { address_handle, qpn: address.qpn, qkey: address.qkey };
    from.prepare(destination)?;
    let packet = from.allocate_packet().unwrap();
    let request = SendRequest { id: WorkId(1), packet, length: 5, destination, immediate: None };
    from.post_send(request).map_err(|refused| refused.error)
}

#[test]
fn queue_pairs_without_descriptors_try_again_when_there_are_some() {
    let base = TempDir::new().unwrap();
    let options = || {
        ShmOptions::new("host").with(|options| options.directory = Some(base.path().join("hosts")))
    };
    let [one, two] = std::array::from_fn(|_| ShmDevice::open(options()).unwrap());
    let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(1));
    let mut sender = one.create_queue_pair(options).unwrap();
    let mut receiver = two.create_queue_pair(options).unwrap();
    let packet = receiver.allocate_packet().unwrap();
    receiver.post_receive(packet).unwrap();

    // The sender makes a ring.
    limit_descriptors(None);
    for _ in 0..3 {
        let error = send(&mut sender, &receiver).unwrap_err();
        assert_eq!(error.shortage(), Some(Shortage::OpenFiles), "{error}");
        let words = error.to_string();
        assert!(words.ends_with("Too many open files (os error 24)"), "{words}");
    }
    let error = one.create_queue_pair(options).unwrap_err();
    assert_eq!(error.shortage(), Some(Shortage::OpenFiles), "{error}");
    limit_descriptors(Some(256));
    send(&mut sender, &receiver).unwrap();

    // The receiver attaches it.
    limit_descriptors(None);
    let begun = Instant::now();
    let mut now = Time::ZERO;
    let mut arrived = false;
    while begun.elapsed() < Duration::from_secs(60) && !arrived {
        now += Duration::from_millis(100);
        if now == Time::from_nanos(3_000_000_000) {
            limit_descriptors(Some(256));
        }
        arrived = matches!(receiver.poll(now), Some(Completion::Receive { length: 5, .. }));
        assert!(!arrived || now >= Time::from_nanos(3_000_000_000), "without a descriptor");
        let sent = sender.poll(now);
        let failed = matches!(sent, Some(Completion::Send { result: Err(_), .. }));
        assert!(!failed, "{sent:?}");
    }
    assert!(arrived);
}
