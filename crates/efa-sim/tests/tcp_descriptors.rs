//! The tcp link while the process has no file descriptors left. A test program of its own, as the limit holds
//! for the whole process.

#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use efa_device::{
    Completion, Destination, Device, DeviceError, Qkey, QueuePair, QueuePairAddress,
    QueuePairOptions, SendRequest, Shortage, Time, WorkId,
};
use efa_sim::tcp::{TcpDevice, TcpOptions, TcpQueuePair};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn queue_pair() -> TcpQueuePair {
    let device = TcpDevice::open(TcpOptions::new(Ipv4Addr::LOCALHOST)).unwrap();
    let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(1));
    let mut qp = device.create_queue_pair(options).unwrap();
    for _ in 0..4 {
        let packet = qp.allocate_packet().unwrap();
        qp.post_receive(packet).unwrap();
    }
    qp
}

fn post(from: &mut TcpQueuePair, to: QueuePairAddress) -> Result<(), DeviceError> {
    let address_handle = from.create_address_handle(to.gid).unwrap();
    let destination = Destination { address_handle, qpn: to.qpn, qkey: to.qkey };
    let packet = from.allocate_packet().unwrap();
    let request = SendRequest { id: WorkId(1), packet, length: 5, destination, immediate: None };
    from.post_send(request).map_err(|refused| refused.error)
}

/// Polls both until the packet is sent and received.
fn finish(from: &mut TcpQueuePair, to: &mut TcpQueuePair) {
    let start = Instant::now();
    let mut missing = 2;
    while missing > 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "no progress within the deadline");
        let now = Time::ZERO + start.elapsed();
        for completion in [from.poll(now), to.poll(now)].into_iter().flatten() {
            match completion {
                Completion::Send { result, .. } => assert_eq!(result, Ok(())),
                Completion::Receive { packet, .. } => to.post_receive(packet).unwrap(),
                other => panic!("{other:?}"),
            }
            missing -= 1;
        }
    }
}

#[test]
fn idle_connections_make_room_for_others_when_there_are_no_descriptors() {
    let mut sender = queue_pair();
    let mut targets = [(); 3].map(|()| queue_pair());
    for target in &mut targets[..2] {
        post(&mut sender, target.address()).unwrap();
        finish(&mut sender, target);
    }
    assert_eq!(sender.statistics().outgoing, 2);
    let limit = getrlimit(Resource::Nofile);
    // The next one gets the lowest free number, which must be below the limit.
    let free = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(free), ..limit }).unwrap();
    for target in [2, 0] {
        post(&mut sender, targets[target].address()).unwrap();
        assert_eq!(sender.statistics().outgoing, 2, "the oldest idle one is closed");
    }
    let error = post(&mut sender, targets[1].address()).unwrap_err();
    assert_eq!(error.shortage(), Some(Shortage::OpenFiles), "none is idle: {error}");
    setrlimit(Resource::Nofile, limit).unwrap();
    for target in [2, 0] {
        finish(&mut sender, &mut targets[target]);
    }
    post(&mut sender, targets[1].address()).unwrap();
    finish(&mut sender, &mut targets[1]);
    assert_eq!(sender.statistics().violations.total(), 0);
}
