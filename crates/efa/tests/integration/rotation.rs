//! Endpoints that are idle leave the rotation of their queue, and nothing is lost by that.

use std::collections::HashSet;
use std::time::Duration;

use efa::{
    CompletionQueue, CompletionQueueOptions, Direction, Endpoint, EndpointOptions, Fabric, FiAddr,
    LocalOptions, ManualClock, Message, Receive,
};

/// Endpoints of one queue, with a peer of another queue that they all send to and hear from.
struct Crowd {
    clock: ManualClock,
    queue: CompletionQueue,
    endpoints: Vec<Endpoint>,
    peers: (CompletionQueue, Endpoint),
    /// The address of the peer, and of the endpoints.
    to: (FiAddr, Vec<FiAddr>),
}

/// Reads after which an endpoint that does nothing rests.
const UNTIL_REST: usize = 2 * 256;

impl Crowd {
    fn new(count: usize) -> Self {
        let clock = ManualClock::new();
        let fabric = Fabric::local(LocalOptions::default()).with_clock(&clock);
        let domain = fabric.domain().unwrap();
        let addresses = domain.address_vector();
        let [queue, other] =
            [0, 1].map(|_| domain.completion_queue(CompletionQueueOptions::default()));
        let enable = |queue: &CompletionQueue| {
            let endpoint = domain.endpoint(EndpointOptions::default());
            let endpoint = endpoint.bind_completion_queue(queue, Direction::Both);
            endpoint.bind_address_vector(&addresses).enable().unwrap()
        };
        let endpoints: Vec<_> = (0..count).map(|_| enable(&queue)).collect();
        let peer = enable(&other);
        let all = endpoints.iter().map(|one| addresses.insert(one.address()).unwrap()).collect();
        let to = (addresses.insert(peer.address()).unwrap(), all);
        Self { clock, queue, endpoints, peers: (other, peer), to }
    }

    /// Reads both queues this often, while time passes.
    fn read(&self, times: usize) -> Vec<efa::Completion> {
        let mut found = Vec::new();
        for _ in 0..times {
            for queue in [&self.queue, &self.peers.0] {
                found.extend(queue.read().map(Result::unwrap));
            }
            self.clock.advance(Duration::from_micros(1));
        }
        found
    }

    /// All endpoints have met, and rest.
    fn rested(count: usize) -> Self {
        let crowd = Self::new(count);
        for (endpoint, to) in crowd.endpoints.iter().zip(&crowd.to.1) {
            endpoint.inject(Message::to(crowd.to.0), b"hello").unwrap();
            crowd.peers.1.inject(Message::to(*to), b"hello").unwrap();
            endpoint.receive(Receive::untagged(), vec![0; 5], 0).unwrap();
            crowd.peers.1.receive(Receive::untagged(), vec![0; 5], 0).unwrap();
        }
        assert_eq!(crowd.read(100 * count).len(), 2 * count);
        crowd.read(2 * UNTIL_REST);
        crowd
    }
}

#[test]
fn messages_for_endpoints_that_rest_are_found_within_eight_reads_for_each() {
    let crowd = Crowd::rested(40);
    for (n, endpoint) in crowd.endpoints.iter().enumerate() {
        endpoint.receive(Receive::untagged(), vec![0; 9], n as u64).unwrap();
    }
    crowd.read(2 * UNTIL_REST);
    for to in &crowd.to.1 {
        crowd.peers.1.inject(Message::to(*to), b"good news").unwrap();
    }
    let found: HashSet<_> = crowd.read(9 * 40).into_iter().map(|found| found.context).collect();
    assert_eq!(found.len(), 40);
}

#[test]
fn operation_of_an_endpoint_that_rests_brings_it_back_into_each_read() {
    let crowd = Crowd::rested(40);
    for endpoint in &crowd.endpoints {
        crowd.peers.1.receive(Receive::untagged(), vec![0; 4], 7).unwrap();
        endpoint.send(Message::to(crowd.to.0), "back", 5).unwrap();
        // As the packet and its acknowledgement take time, but far less than a round of those that rest.
        let done = crowd.read(80);
        assert_eq!(done.len(), 2, "{done:?}");
        crowd.read(2 * UNTIL_REST);
    }
}

#[test]
fn endpoint_that_rests_can_be_closed_and_dropped_and_a_new_one_is_polled() {
    let mut crowd = Crowd::rested(12);
    let closed = crowd.endpoints.swap_remove(3);
    closed.close(Duration::from_secs(1)).unwrap();
    assert!(closed.inject(Message::to(crowd.to.0), b"x").is_err());
    drop(closed);
    crowd.endpoints.truncate(6);
    crowd.read(2 * UNTIL_REST);
    for endpoint in &crowd.endpoints {
        endpoint.inject(Message::to(crowd.to.0), b"alive").unwrap();
        crowd.peers.1.receive(Receive::untagged(), vec![0; 5], 1).unwrap();
    }
    assert_eq!(crowd.read(100).len(), 6);
}

#[test]
fn capabilities_of_an_endpoint_that_rests_are_checked_as_before() {
    let crowd = Crowd::rested(12);
    let error = crowd.endpoints[0].inject(Message::to(FiAddr(999)), b"x").unwrap_err();
    assert_eq!(error, efa::StartError::UnknownAddress(FiAddr(999)));
}
