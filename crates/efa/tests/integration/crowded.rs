//! Receivers on the shm link that make no room for packets of long messages.

use std::time::{Duration, Instant};

use efa::{
    AddressVector, CompletionQueue, CompletionQueueOptions, Direction, Domain, Endpoint,
    EndpointOptions, Fabric, FiAddr, Message, Receive, ShmOptions,
};
use efa_device::Rdma;
use tempfile::TempDir;

use crate::world::pattern;

const TIMEOUT: Duration = Duration::from_secs(30);
/// Longer than a packet; [`MANY`] of them fill a ring.
const LENGTH: usize = 64 << 10;
const MANY: u64 = 40;

struct End {
    endpoint: Endpoint,
    queue: CompletionQueue,
    addresses: AddressVector,
    _domain: Domain,
}

impl End {
    /// Without RDMA, so that long messages go in packets.
    fn new(directory: &TempDir) -> Self {
        let fabric = Fabric::shm(ShmOptions::new("test").with(|options| {
            options.directory = Some(directory.path().join("hosts"));
            options.rdma = Rdma::NONE;
        }));
        let domain = fabric.domain().unwrap();
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        let endpoint = domain
            .endpoint(EndpointOptions::default())
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()
            .unwrap();
        Self { endpoint, queue, addresses, _domain: domain }
    }

    fn receive(&self, number: u64) {
        self.endpoint.receive(Receive::untagged(), vec![0; LENGTH], number).unwrap();
    }

    fn send(&self, to: FiAddr, number: u64) {
        self.endpoint.send(Message::to(to), pattern(LENGTH, number), number).unwrap();
    }

    /// The next completion; `other` makes progress meanwhile.
    fn next(&self, other: &Self) -> efa::Completion {
        let begun = Instant::now();
        loop {
            other.queue.progress();
            if let Some(completion) = self.queue.read() {
                return completion.unwrap();
            }
            assert!(begun.elapsed() < TIMEOUT, "nothing completes");
        }
    }

    /// A peer that has heard from this endpoint, and answered.
    fn meet(&self, peer: &Self) -> FiAddr {
        let to = self.addresses.insert(peer.endpoint.address()).unwrap();
        peer.receive(0);
        self.endpoint.send(Message::to(to), "hello", 0).unwrap();
        assert_eq!(peer.next(self).length, 5);
        assert_eq!(self.next(peer).context, 0);
        to
    }
}

#[test]
fn receiver_that_makes_no_room_holds_up_no_message_to_others_and_gets_all_later() {
    let directory = TempDir::new().unwrap();
    let [sender, idle, busy] = [(); 3].map(|()| End::new(&directory));
    let (to_idle, to_busy) = (sender.meet(&idle), sender.meet(&busy));
    (0..MANY).for_each(|number| sender.send(to_idle, number));
    for number in 0..MANY {
        busy.receive(number);
        sender.send(to_busy, number);
        assert_eq!(busy.next(&sender).into_message().into_vec(), pattern(LENGTH, number));
    }
    for number in 0..MANY {
        idle.receive(number);
        assert_eq!(idle.next(&sender).into_message().into_vec(), pattern(LENGTH, number));
    }
    (0..2 * MANY).for_each(|_| drop(sender.next(&idle)));
    assert!(sender.queue.read().is_none());
}

#[test]
fn sends_to_a_receiver_that_made_no_room_end_when_it_is_gone() {
    let directory = TempDir::new().unwrap();
    let [sender, receiver] = [(); 2].map(|()| End::new(&directory));
    let to = sender.meet(&receiver);
    (0..MANY).for_each(|number| sender.send(to, number));
    (0..100).for_each(|_| sender.queue.progress());
    drop(receiver);
    let (begun, mut ended) = (Instant::now(), Vec::new());
    while ended.len() < MANY as usize {
        if let Some(entry) = sender.queue.read() {
            ended.push(entry.map_or_else(|failed| failed.completion.context, |sent| sent.context));
        }
        assert!(begun.elapsed() < TIMEOUT, "{} have ended", ended.len());
    }
    ended.sort_unstable();
    assert_eq!(ended, (0..MANY).collect::<Vec<_>>());
}
