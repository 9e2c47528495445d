//! The tcp link while the system lacks something: the process has no file descriptors left, or too many sockets are
//! watched. A test program of its own, as the limit holds for the whole process.

#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use efa_device::{
    Completion, Destination, Device, DeviceError, Qkey, QueuePair, QueuePairAddress,
    QueuePairOptions, SendRequest, Shortage, Time, WorkId,
};
use efa_sim::tcp::{TcpDevice, TcpOptions, TcpQueuePair};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Held by each test, as the process has one limit.
static LIMIT: Mutex<()> = Mutex::new(());

fn queue_pair() -> TcpQueuePair {
    queue_pair_for(256)
}

/// One to which so many can be connected. Its sends wait 15 ms for room.
fn queue_pair_for(max_peers: usize) -> TcpQueuePair {
    let options = TcpOptions::new(Ipv4Addr::LOCALHOST);
    let device = TcpDevice::open(options.with(|options| options.max_peers = max_peers)).unwrap();
    let options = QueuePairOptions::default().with(|options| {
        options.qkey = Qkey(1);
        options.rnr_retry = 3;
    });
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

/// Has `epoll_ctl` fail in the calling thread, as it does when the user watches too many descriptors.
fn deny_watching() {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let verdict = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        // The number of the call.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter {
            code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            jt: 1,
            jf: 0,
            k: libc::SYS_epoll_ctl as u32,
        },
        statement(verdict, libc::SECCOMP_RET_ALLOW),
        statement(verdict, libc::SECCOMP_RET_ERRNO | libc::ENOSPC as u32),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the second call reads `program` and the filter behind it, which live until it returns.
    let denied = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(denied, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn sender_whose_connection_cannot_be_watched_tries_again() {
    let _alone = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut sender, mut target) = (queue_pair(), queue_pair());
    post(&mut sender, target.address()).unwrap();
    // Its bytes are there when it is accepted.
    assert!(sender.poll(Time::ZERO).is_none());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            deny_watching();
            let start = Instant::now();
            while target.statistics().failed_accepts == 0 {
                assert!(target.poll(Time::ZERO).is_none());
                assert!(start.elapsed() < Duration::from_secs(60), "nobody connects");
            }
        });
    });
    finish(&mut sender, &mut target);
    assert_eq!(sender.statistics().turned_away, 1);
}

#[test]
fn sender_without_room_waits_on_while_it_has_no_descriptor_to_try_again() {
    let _alone = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut first, mut second, mut target) = (queue_pair(), queue_pair(), queue_pair_for(1));
    post(&mut first, target.address()).unwrap();
    finish(&mut first, &mut target);
    post(&mut second, target.address()).unwrap();
    let start = Instant::now();
    while second.statistics().turned_away == 0 {
        assert!(target.poll(Time::ZERO).is_none() && second.poll(Time::ZERO).is_none());
        assert!(start.elapsed() < Duration::from_secs(60), "there is room");
    }
    let limit = getrlimit(Resource::Nofile);
    let free = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(free), ..limit }).unwrap();
    let before = second.statistics();
    for millis in 0..5000 {
        assert!(second.poll(Time::ZERO + Duration::from_millis(millis)).is_none());
    }
    setrlimit(Resource::Nofile, limit).unwrap();
    let tries = second.statistics().connects - before.connects;
    assert!((5..=20).contains(&tries), "{tries} tries in five seconds");
    assert_eq!(second.statistics().turned_away, before.turned_away);
    drop(first);
    let mut completions = 0;
    while completions < 2 {
        let now = Time::ZERO + Duration::from_secs(5) + start.elapsed();
        for completion in [second.poll(now), target.poll(now)].into_iter().flatten() {
            assert!(!matches!(completion, Completion::Send { result: Err(_), .. }));
            completions += 1;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no progress within the deadline");
    }
}

#[test]
fn idle_connections_make_room_for_others_when_there_are_no_descriptors() {
    let _alone = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
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
