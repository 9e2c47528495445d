//! Queue pairs of the shm link, with a look at their shared files.

use std::sync::atomic::{AtomicU64, Ordering};

use efa_device::{
    Access, Completion, Destination, Device, QueuePair, Region as _, RegionRange, RemoteMemory,
    WorkId,
};
use rustix::param::page_size;
use tempfile::TempDir;

use super::super::mailbox::{EntryState, PeerMailbox};
use super::*;
use crate::map::Map;

mod sharing;

/// A host for this test, removed at the end.
struct Host(TempDir);

impl Host {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn directory(&self) -> std::path::PathBuf {
        self.0.path().join("hosts")
    }

    fn device(&self) -> ShmDevice {
        let mut options = ShmOptions::new("host");
        options.directory = Some(self.directory());
        options.ring_slots = 4;
        options.mtu = 64;
        options.max_peers = 2;
        ShmDevice::open(options).unwrap()
    }
}

impl Host {
    fn map(&self, name: &str) -> Option<Map> {
        let path = self.directory().join("host").join(name);
        let file = std::fs::File::options().read(true).write(true).open(path).ok()?;
        let length = file.metadata().unwrap().len() as usize;
        Some(Map::new(&file, length).unwrap())
    }

    /// A ring that is not attached yet.
    fn ring(&self) -> Option<Map> {
        let mut entries = std::fs::read_dir(self.directory().join("host")).unwrap();
        entries.find_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.starts_with("ring-").then(|| self.map(&name)).flatten()
        })
    }
}

fn queue_pair(device: &ShmDevice) -> ShmQueuePair {
    device.create_queue_pair(QueuePairOptions::default()).unwrap()
}

/// Where `from` reaches `to`.
fn reach(from: &mut ShmQueuePair, to: &ShmQueuePair) -> Destination {
    let QueuePairAddress { gid, qpn, qkey } = to.address();
    Destination { address_handle: from.create_address_handle(gid).unwrap(), qpn, qkey }
}

/// Posts a send of 5 bytes.
fn send(from: &mut ShmQueuePair, destination: Destination) {
    let packet = from.allocate_packet().unwrap();
    from.post_send(SendRequest { id: WorkId(1), packet, length: 5, destination, immediate: None })
        .unwrap();
}

fn post_buffer(qp: &mut ShmQueuePair) {
    let buffer = qp.allocate_packet().unwrap();
    qp.post_receive(buffer).unwrap();
}

#[test]
fn announced_ring_without_a_file_is_refused() {
    let host = Host::new();
    let device = host.device();
    let mut qp = queue_pair(&device);
    let mailbox = PeerMailbox::open(&device.directory, qp.address().qpn).unwrap().unwrap();
    let other = queue_pair(&device);
    let sender = other.link.mailbox.as_sender();
    let slot = mailbox.claim(sender).unwrap();
    mailbox.announce(slot, sender, 0x1234);
    assert!(qp.poll(Time::ZERO).is_none());
    assert!(mailbox.take_refusal(slot, sender));
    assert_eq!(qp.link.mailbox.entry(slot).0, EntryState::Free);
    // If the sender dies before it takes the refusal, the sweep frees the entry.
    let slot = mailbox.claim(sender).unwrap();
    drop(other);
    assert!(qp.poll(Time::ZERO + SWEEP_EVERY).is_none());
    assert_eq!(qp.link.mailbox.entry(slot).0, EntryState::Free);
}

/// State and nonce of the first entry of a mailbox.
fn first_entry(mailbox: &Map) -> &[AtomicU64; 2] {
    mailbox.words(page_size() + 640)
}

#[test]
fn ring_is_announced_again_when_its_entry_was_overwritten() {
    for (word, nonce) in [(0, 0), (0x0002, 7), (0x0003, 7), (0x0004, 7), (0x9999_0002, 7)] {
        let host = Host::new();
        let device = host.device();
        let (mut a, mut b) = (queue_pair(&device), queue_pair(&device));
        let to = b.address();
        let destination = reach(&mut a, &b);
        send(&mut a, destination);
        let mailbox = host.map(&format!("qp-{}", to.qpn.0)).unwrap();
        let me = a.link.local.sender;
        let sender = u64::from(me.generation) << 32 | u64::from(me.qpn.0) << 16;
        // Low halves are states of the sender's own entry; the last one is another's.
        let forged = if word < 0x1_0000 && word > 0 { word | sender } else { word };
        first_entry(&mailbox)[0].store(forged, Ordering::Relaxed);
        first_entry(&mailbox)[1].store(nonce, Ordering::Relaxed);
        post_buffer(&mut b);
        let mut sent = None;
        for _ in 0..500 {
            b.poll(Time::ZERO);
            sent = sent.or(a.poll(Time::ZERO));
        }
        assert!(
            matches!(sent, Some(Completion::Send { result: Ok(()), .. })),
            "{word:#x} {sent:?}"
        );
    }
}

#[test]
fn entry_of_an_attached_sender_is_restored_and_another_sender_attaches() {
    let host = Host::new();
    let device = host.device();
    let mut b = queue_pair(&device);
    let to = b.address();
    let mailbox = host.map(&format!("qp-{}", to.qpn.0)).unwrap();
    let mut senders = [queue_pair(&device), queue_pair(&device)];
    let mut now = Time::ZERO;
    for round in 0..4 {
        for from in &mut senders {
            let destination = reach(from, &b);
            send(from, destination);
            post_buffer(&mut b);
            let mut sent = None;
            for _ in 0..500 {
                b.poll(now);
                sent = sent.or(from.poll(now));
            }
            let sent = matches!(sent, Some(Completion::Send { result: Ok(()), .. }));
            assert!(sent, "round {round}");
            // The next sender finds the entry free.
            first_entry(&mailbox)[0].store(0, Ordering::Relaxed);
        }
        now += SWEEP_EVERY;
        b.poll(now);
        assert_eq!(b.link.mailbox.entry(0).0, EntryState::Attached);
        assert_eq!(b.link.mailbox.entry(1).0, EntryState::Attached);
    }
}

#[test]
fn ring_with_a_lost_doorbell_is_found_by_the_sweep() {
    let host = Host::new();
    let device = host.device();
    let (mut a, mut b) = (queue_pair(&device), queue_pair(&device));
    assert!(b.poll(Time::ZERO).is_none());
    let destination = reach(&mut a, &b);
    send(&mut a, destination);
    assert!(b.link.mailbox.doorbell_rang());
    b.link.mailbox.take_rung(|_| {});
    post_buffer(&mut b);
    assert!(b.poll(Time::ZERO).is_none(), "the doorbell was cleared and the ring is not watched");
    let later = Time::ZERO + SWEEP_EVERY;
    assert!(b.poll(later).is_none(), "the sweep attaches it");
    assert!(matches!(b.poll(later), Some(Completion::Receive { length: 5, .. })));
}

#[test]
fn idle_ring_is_unwatched_and_rings_the_doorbell_again() {
    let host = Host::new();
    let device = host.device();
    let (mut a, mut b) = (queue_pair(&device), queue_pair(&device));
    let mut c = queue_pair(&device);
    let deliver = |from: &mut ShmQueuePair, c: &mut ShmQueuePair| {
        let destination = reach(from, c);
        send(from, destination);
        post_buffer(c);
        let mut polls = 0;
        while c.poll(Time::ZERO).is_none() {
            polls += 1;
            assert!(polls < 10);
        }
        assert!(matches!(from.poll(Time::ZERO), Some(Completion::Send { result: Ok(()), .. })));
    };
    deliver(&mut a, &mut c);
    deliver(&mut b, &mut c);
    assert_eq!(c.link.watched.len(), 2);
    for _ in 0..20_000 {
        assert!(c.poll(Time::ZERO).is_none());
    }
    assert_eq!(c.link.watched.len(), 1);
    for from in [&mut a, &mut b] {
        deliver(from, &mut c);
    }
    assert_eq!(c.link.watched.len(), 2);
}

/// As that of a sender that has read just before that the ring is watched.
#[test]
fn packet_without_doorbell_arrives_when_its_ring_has_just_become_idle() {
    let host = Host::new();
    let device = host.device();
    let mut c = queue_pair(&device);
    let mut senders = [queue_pair(&device), queue_pair(&device)];
    for from in &mut senders {
        let destination = reach(from, &c);
        send(from, destination);
        post_buffer(&mut c);
        assert!((0..10).any(|_| c.poll(Time::ZERO).is_some()));
    }
    let is_watched = |c: &ShmQueuePair, slot: usize| {
        c.link.incoming[slot].as_ref().is_some_and(Incoming::is_watched)
    };
    let idle = loop {
        assert!(c.poll(Time::ZERO).is_none());
        if let Some(idle) = (0..2).find(|&slot| !is_watched(&c, slot)) {
            break idle;
        }
    };
    let of_idle = c.link.incoming[idle].as_ref().unwrap().sender().qpn;
    let from = senders.iter_mut().find(|from| from.address().qpn == of_idle).unwrap();
    while from.poll(Time::ZERO).is_none() {}
    let destination = reach(from, &c);
    send(from, destination);
    c.link.mailbox.take_rung(|_| {});
    post_buffer(&mut c);
    assert!((0..10).any(|_| c.poll(Time::ZERO).is_some()));
}

#[test]
fn rings_with_sends_are_listed_once_however_often_a_sleep_is_prepared() {
    let host = Host::new();
    let device = host.device();
    let options = QueuePairOptions::default().with(|options| options.waitable = true);
    let mut a = device.create_queue_pair(options).unwrap();
    let mut b = queue_pair(&device);
    let destination = reach(&mut a, &b);
    for _ in 0..10 {
        send(&mut a, destination);
        post_buffer(&mut b);
        assert!((0..10).any(|_| b.poll(Time::ZERO).is_some()));
        assert_eq!(a.arm(Time::ZERO).unwrap(), Armed::Pending);
        assert!(a.link.active.is_empty());
        assert!(matches!(a.poll(Time::ZERO), Some(Completion::Send { result: Ok(()), .. })));
    }
}

#[test]
fn ring_to_a_dropped_peer_is_dropped_by_the_sweep() {
    let host = Host::new();
    let device = host.device();
    let mut server = queue_pair(&device);
    let address_handle = server.create_address_handle(server.address().gid).unwrap();
    let mut now = Time::ZERO;
    for _ in 0..5 {
        let mut client = queue_pair(&device);
        let QueuePairAddress { qpn, qkey, .. } = client.address();
        let destination = Destination { address_handle, qpn, qkey };
        send(&mut server, destination);
        post_buffer(&mut client);
        assert!((0..10).any(|_| client.poll(now).is_some()));
        assert!(matches!(server.poll(now), Some(Completion::Send { result: Ok(()), .. })));
        drop(client);
        now += SWEEP_EVERY;
        assert!(server.poll(now).is_none());
    }
    assert!(server.link.outgoing.is_empty(), "rings are kept");
}

/// Random words are written to random places of the shared files.
#[test]
fn every_send_completes_whatever_is_written_to_shared_memory() {
    for seed in 0..50 {
        scribble(seed);
    }
}

fn scribble(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let host = Host::new();
    let device = host.device();
    let (mut a, mut b) = (queue_pair(&device), queue_pair(&device));
    let to = b.address();
    let destination = reach(&mut a, &b);
    let mut now = Time::ZERO;
    let mut maps = vec![host.map(&format!("qp-{}", to.qpn.0)).unwrap()];
    let (mut posted, mut ended) = (0, 0);
    for _ in 0..300 {
        if rng.u8(..) < 60 {
            let map = &maps[rng.usize(..maps.len())];
            // Most control words are near the front, of a ring, or of either part of a mailbox, and small
            // numbers are the most plausible values.
            let words = map.length() / 8;
            let front = rng.choice([0, page_size() / 8]).unwrap() + rng.usize(..100);
            let at = if rng.bool() { rng.usize(..words) } else { front.min(words - 1) };
            let value = if rng.bool() { rng.u64(..) } else { rng.u64(..8) };
            map.words::<1>(at * 8)[0].store(value, Ordering::Relaxed);
        }
        let packet = a.allocate_packet().unwrap();
        let request =
            SendRequest { id: WorkId(0), packet, length: 64, destination, immediate: None };
        posted += usize::from(a.post_send(request).is_ok());
        // Each new ring at once: its file is removed when it is attached.
        maps.extend(host.ring());
        let buffer = b.allocate_packet().unwrap();
        let _ = b.post_receive(buffer);
        for _ in 0..rng.u8(..40) {
            now += Duration::from_micros(rng.u64(..200_000));
            if let Some(Completion::Receive { length, .. }) = b.poll(now) {
                assert!(length <= 64);
            }
            ended += usize::from(matches!(a.poll(now), Some(Completion::Send { .. })));
        }
    }
    drop(b);
    for _ in 0..100_000 {
        now += Duration::from_millis(1);
        ended += usize::from(matches!(a.poll(now), Some(Completion::Send { .. })));
    }
    assert_eq!(ended, posted, "seed {seed}");
}

/// A process of the same user may write anything into a ring that it has opened.
#[test]
fn forged_requests_end_and_reach_no_memory_without_access() {
    let host = Host::new();
    let mut options = ShmOptions::new("host");
    (options.directory, options.kernel_copies) = (Some(host.directory()), false);
    let device = ShmDevice::open(options).unwrap();
    let mut rng = fastrand::Rng::with_seed(3);
    for round in 0..100 {
        let (mut a, mut b) = (queue_pair(&device), queue_pair(&device));
        let destination = reach(&mut a, &b);
        let access = Access { remote_read: true, remote_write: true };
        let open = b.register(vec![1; 4096].into(), access).unwrap();
        let closed = b.register(vec![2; 4096].into(), Access::default()).unwrap();
        let local = a.register(vec![3; 4096].into(), Access::default()).unwrap();
        let request = |length| RdmaRequest {
            id: WorkId(1),
            local: RegionRange { region: local.clone(), offset: 0, length },
            remote: RemoteMemory { address: open.remote_address(), key: open.remote_key() },
            destination,
        };
        match rng.bool() {
            true => a.post_read(request(rng.usize(..4096))).unwrap(),
            false => a.post_write(request(rng.usize(..4096)), None).unwrap(),
        }
        assert!(a.poll(Time::ZERO).is_none());
        let ring = host.ring().unwrap();
        // Length, kind and key; count; address.
        let [_, what, status, address] = ring.words::<4>(512);
        let key = u64::from(closed.remote_key()) << 32;
        let kind = rng.u64(..7) << 24;
        let forged = [
            (what, rng.u64(..)),
            (what, key | kind | 8),
            (what, key | kind | rng.u64(..70_000)),
            (status, rng.u64(..)),
            (address, rng.u64(..)),
            (address, closed.remote_address() + rng.u64(..8192) - 4096),
        ];
        for _ in 0..rng.usize(1..4) {
            let (word, value) = rng.choice(&forged).unwrap();
            word.store(*value, Ordering::Relaxed);
        }
        let mut ended = 0;
        for _ in 0..200 {
            assert!(b.poll(Time::ZERO).is_none(), "round {round}");
            ended += usize::from(a.poll(Time::ZERO).is_some());
        }
        // A datagram in place of a request waits for a buffer.
        drop(b);
        for _ in 0..200 {
            ended += usize::from(a.poll(Time::ZERO).is_some());
        }
        assert_eq!(ended, 1, "round {round}");
        let mut bytes = vec![0; 4096];
        closed.read(0, &mut bytes);
        assert_eq!(bytes, [2; 4096], "round {round}");
    }
}
