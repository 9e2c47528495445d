//! Reads of which the target writes a part. What happens between the parts is put in order by hand.

use std::time::Instant;

use super::*;
use crate::shm::sharing::{Answer, Shared, back_part};

const LENGTH: usize = 200_000;
const READ: Access = Access { remote_read: true, remote_write: false };

/// Where the word is that decides, in the second slot of a ring.
fn decision(ring: &Map) -> &AtomicU64 {
    &ring.words::<1>(512 + 128 + 48)[0]
}

/// A requester and a target that has one datagram of it, and the ring between them.
struct Pair {
    a: ShmQueuePair,
    b: ShmQueuePair,
    ring: Map,
    destination: Destination,
    local: SoftRegion,
    remote: SoftRegion,
}

fn device(host: &Host) -> ShmDevice {
    let mut options = ShmOptions::new("host");
    (options.directory, options.mtu) = (Some(host.directory()), 64);
    ShmDevice::open(options).unwrap()
}

fn register(qp: &mut ShmQueuePair, byte: u8, access: Access) -> SoftRegion {
    qp.register(vec![byte; LENGTH].into(), access).unwrap()
}

/// A read of all of `remote` into `local`.
fn read(
    id: u64,
    local: &SoftRegion,
    remote: &SoftRegion,
    destination: Destination,
) -> RdmaRequest<SoftRegion> {
    RdmaRequest {
        id: WorkId(id),
        local: RegionRange { region: local.clone(), offset: 0, length: LENGTH },
        remote: RemoteMemory { address: remote.remote_address(), key: remote.remote_key() },
        destination,
    }
}

/// Bytes of the last read from `remote` that its target wrote, as the requester knows.
fn pushed(requester: &ShmQueuePair, remote: &SoftRegion) -> u64 {
    let ShmLink { outgoing, asked, .. } = &requester.link;
    match outgoing.iter().any(|(_, ring)| ring.answer(*asked) == Answer::Written) {
        true => back_part(remote.remote_address(), LENGTH).len() as u64,
        false => 0,
    }
}

/// A ring from `a` to `b`, which polls it.
fn connect(host: &Host, a: &mut ShmQueuePair, b: &mut ShmQueuePair) -> (Map, Destination) {
    // A device answers reads and writes of those that it knows.
    reach(b, a);
    let destination = reach(a, b);
    send(a, destination);
    let ring = host.ring().unwrap();
    post_buffer(b);
    assert!((0..9).any(|_| b.poll(Time::ZERO).is_some()));
    assert!(matches!(a.poll(Time::ZERO), Some(Completion::Send { result: Ok(()), .. })));
    (ring, destination)
}

impl Pair {
    fn new(host: &Host) -> Self {
        let (one, other) = (device(host), device(host));
        let (mut a, mut b) = (queue_pair(&one), queue_pair(&other));
        let (ring, destination) = connect(host, &mut a, &mut b);
        let local = register(&mut a, 0, Access::default());
        let remote = register(&mut b, 7, READ);
        Self { a, b, ring, destination, local, remote }
    }

    /// With a read of which the target has taken the back part.
    fn with_taken_part(host: &Host) -> Self {
        let mut pair = Self::new(host);
        pair.post(1);
        pair.begin();
        pair.take();
        assert_eq!(pair.end(1), None);
        pair
    }

    fn post(&mut self, id: u64) {
        self.a.post_read(read(id, &self.local, &self.remote, self.destination)).unwrap();
    }

    /// Asks for the back part of the read that was posted, and reads the front part.
    fn begin(&mut self) -> Shared {
        self.begin_from(None)
    }

    /// The same; the front part fails with `status`.
    fn begin_from(&mut self, status: Option<Status>) -> Shared {
        let mut operation = self.a.link.operations.pop_front().unwrap();
        let mut shared = self.a.link.ask_for_back_part(&operation).expect("the peer may be asked");
        assert!((LENGTH / 4..LENGTH / 2).contains(&shared.length));
        match status {
            None => operation.copy(&self.a.link.memory, LENGTH - shared.length).unwrap(),
            Some(status) => shared.front = Err(status),
        }
        operation.shared = Some(shared);
        self.a.link.operations.push_front(operation);
        shared
    }

    /// The target takes the request, and goes on later.
    fn take(&self) {
        decision(&self.ring).compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).unwrap();
    }

    fn pushed(&self) -> u64 {
        pushed(&self.a, &self.remote)
    }

    fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; LENGTH];
        self.local.read(0, &mut bytes);
        bytes
    }

    /// The end of read `id` in the next polls, if it ends.
    fn end(&mut self, id: u64) -> Option<Result<(), Status>> {
        match (0..1000).find_map(|_| self.a.poll(Time::ZERO))? {
            Completion::Rdma { id: ended, result, .. } if ended == WorkId(id) => Some(result),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn back_part_that_the_target_takes_is_written_by_it() {
    let host = Host::new();
    let mut pair = Pair::new(&host);
    pair.post(1);
    let shared = pair.begin();
    assert_eq!(pair.read()[LENGTH - shared.length..], vec![0; shared.length]);
    assert!(pair.b.poll(Time::ZERO).is_none());
    assert_eq!(pair.read(), vec![7; LENGTH]);
    assert_eq!((pair.end(1), pair.pushed()), (Some(Ok(())), shared.length as u64));
    assert!(pair.a.link.active.is_empty());
}

#[test]
fn target_that_does_not_poll_is_asked_once_and_writes_nothing_later() {
    let host = Host::new();
    let mut pair = Pair::new(&host);
    for id in 1..5 {
        pair.local.write(0, &vec![0; LENGTH]);
        pair.post(id);
        assert_eq!(pair.end(id), Some(Ok(())));
        assert_eq!(pair.read(), vec![7; LENGTH]);
    }
    pair.local.write(0, &vec![9; LENGTH]);
    assert!(pair.b.poll(Time::ZERO).is_none());
    assert_eq!((pair.read(), pair.pushed()), (vec![9; LENGTH], 0));
    let mut expected = Ticket::default();
    assert_eq!(pair.a.link.asked, expected.next());
    // It has answered now, and is asked again.
    assert!(pair.a.poll(Time::ZERO).is_none());
    assert_eq!(pair.pushed(), 0);
    pair.post(5);
    assert_eq!(pair.end(5), Some(Ok(())));
    assert_eq!(pair.a.link.asked, expected.next());
}

#[test]
fn read_waits_for_a_part_that_was_taken_and_those_of_other_targets_pass_it() {
    let host = Host::new();
    let mut pair = Pair::with_taken_part(&host);
    let third = device(&host);
    let mut c = queue_pair(&third);
    let (_, destination) = connect(&host, &mut pair.a, &mut c);
    let region = register(&mut c, 8, READ);
    let local = RegionRange { region: pair.local.clone(), offset: 0, length: 1000 };
    let remote = RemoteMemory { address: region.remote_address(), key: region.remote_key() };
    pair.a.post_read(RdmaRequest { id: WorkId(2), local, remote, destination }).unwrap();
    assert_eq!(pair.end(2), Some(Ok(())));
    assert_eq!(pair.end(1), None);
    pair.b.poll(Time::ZERO);
    assert_eq!(pair.end(1), Some(Ok(())));
    assert_eq!(pair.read()[1000..], vec![7; LENGTH - 1000]);
}

#[test]
fn reads_of_a_target_end_in_their_order_while_the_first_waits_for_its_part() {
    let host = Host::new();
    let mut pair = Pair::with_taken_part(&host);
    let (other, short) = (register(&mut pair.a, 0, Access::default()), 1000);
    let mut second = read(2, &other, &pair.remote, pair.destination);
    second.local.length = short;
    pair.a.post_read(second).unwrap();
    assert_eq!(pair.end(2), None, "it waits behind the first");
    pair.b.poll(Time::ZERO);
    assert_eq!((pair.end(1), pair.end(2)), (Some(Ok(())), Some(Ok(()))));
    let mut bytes = vec![0; LENGTH];
    other.read(0, &mut bytes);
    assert_eq!((&bytes[..short], bytes[short]), (&[7; 1000][..], 0));
}

#[test]
fn part_of_a_target_that_is_dropped_after_it_took_it_is_read_or_fails() {
    let host = Host::new();
    let Pair { mut a, b, remote, .. } = Pair::with_taken_part(&host);
    drop(b);
    let ended = (0..50).find_map(|_| a.poll(Time::ZERO));
    let gone = Err(Status::BadDestinationQpn);
    let is_gone = matches!(ended, Some(Completion::Rdma { result, .. }) if result == gone);
    assert!(is_gone, "{ended:?}");
    drop(remote);
}

#[test]
fn read_whose_front_part_fails_ends_when_the_back_part_is_settled() {
    for taken in [false, true] {
        let host = Host::new();
        let mut pair = Pair::new(&host);
        pair.post(1);
        pair.begin_from(Some(Status::RemoteBadAddress));
        if taken {
            pair.take();
            assert_eq!(pair.end(1), None);
            pair.b.poll(Time::ZERO);
        }
        assert_eq!(pair.end(1), Some(Err(Status::RemoteBadAddress)), "{taken}");
    }
}

#[test]
fn queue_pair_that_is_dropped_withdraws_what_nobody_took() {
    let host = Host::new();
    let mut pair = Pair::new(&host);
    pair.post(1);
    let shared = pair.begin();
    let front = LENGTH - shared.length;
    let Pair { a, mut b, local, .. } = pair;
    drop(a);
    for _ in 0..9 {
        assert!(b.poll(Time::ZERO).is_none());
    }
    let mut bytes = vec![1; LENGTH];
    local.read(0, &mut bytes);
    assert_eq!(bytes[front..], vec![0; shared.length]);
}

#[test]
fn queue_pair_that_is_dropped_waits_a_second_for_a_part_that_was_taken() {
    let host = Host::new();
    let pair = Pair::with_taken_part(&host);
    let begun = Instant::now();
    drop(pair.a);
    assert!(begun.elapsed() >= Duration::from_secs(1));
}

#[test]
fn forged_push_reaches_no_memory_that_its_sender_may_not_read_or_has_not_asked_for() {
    let host = Host::new();
    let mut rng = fastrand::Rng::with_seed(5);
    for round in 0..200 {
        let mut pair = Pair::new(&host);
        let closed = register(&mut pair.b, 3, Access::default());
        let unasked = register(&mut pair.a, 4, Access::default());
        pair.post(1);
        pair.begin();
        // Length, kind and key; address; address there; key there and count.
        let [what, _, from, into, rest] = pair.ring.words::<5>(512 + 128 + 8);
        let count = rest.load(Ordering::Relaxed) >> 32 << 32;
        let changes = [
            (what, 24 | 5 << 24 | u64::from(closed.remote_key()) << 32),
            (what, 24 | 5 << 24 | rng.u64(..) << 32),
            (what, rng.u64(..32) | 5 << 24 | u64::from(pair.remote.remote_key()) << 32),
            (from, closed.remote_address()),
            (from, rng.u64(..)),
            (from, pair.remote.remote_address() + LENGTH as u64 - rng.u64(..1000)),
            (into, rng.u64(..)),
            (into, pair.local.remote_address() + LENGTH as u64 - rng.u64(..1000)),
            (rest, count | u64::from(unasked.remote_key())),
            (rest, rng.u64(..)),
        ];
        let changed = rng.usize(1..4);
        for (word, value) in rng.choose_multiple(changes, changed) {
            word.store(value, Ordering::Relaxed);
        }
        assert!((0..9).all(|_| pair.b.poll(Time::ZERO).is_none()), "round {round}");
        let mut bytes = vec![0; LENGTH];
        unasked.read(0, &mut bytes);
        assert_eq!(bytes, vec![4; LENGTH], "round {round}");
        assert!(!pair.read().contains(&3), "round {round}");
    }
}

/// With a thread that polls, as between processes.
#[test]
fn reads_while_the_target_polls_are_complete_and_some_are_shared() {
    let host = Host::new();
    let Pair { mut a, mut b, destination, local, remote, .. } = Pair::new(&host);
    let stop = AtomicU64::new(0);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let target = scope.spawn(|| {
            while stop.load(Ordering::Acquire) == 0 {
                assert!(b.poll(Time::ZERO).is_none());
            }
        });
        let (mut reads, mut written) = (0_u64, 0);
        while written < 10 * LENGTH as u64 || reads < 100 {
            let byte = (reads % 250) as u8;
            remote.write(0, &vec![byte; LENGTH]);
            a.post_read(read(reads, &local, &remote, destination)).unwrap();
            while a.poll(Time::ZERO).is_none() {}
            let mut bytes = vec![0; LENGTH];
            local.read(0, &mut bytes);
            assert_eq!(bytes, vec![byte; LENGTH], "read {reads}");
            reads += 1;
            written += pushed(&a, &remote);
            assert!(begun.elapsed() < Duration::from_secs(60), "{reads} reads, none shared");
        }
        stop.store(1, Ordering::Release);
        target.join().unwrap();
    });
}
