//! Endpoints that take their receives from a queue.

use std::sync::{Arc, Mutex};

use efa_rdm::{
    ClaimId, Config, ConfigError, OperationError, ReceiveSource, SharedMessage, SharedPlace,
    SharedPosting, SharedReceive, SharedReceives,
};

use crate::world::{World, pattern};

/// A queue, and the place of one endpoint in it.
#[derive(Debug, Clone)]
struct Place {
    queue: Arc<Mutex<SharedReceives<Vec<u8>>>>,
    endpoint: u32,
}

impl ReceiveSource<Vec<u8>> for Place {
    fn arrive(
        &self,
        tag: Option<u64>,
        message: ClaimId,
    ) -> Result<SharedReceive<Vec<u8>>, SharedPlace> {
        let message = SharedMessage { endpoint: self.endpoint, message };
        self.queue.lock().unwrap().arrive(tag, message)
    }

    fn withdraw(&self, place: SharedPlace) {
        self.queue.lock().unwrap().withdraw(place);
    }
}

/// Ends 0 and 1 share receives; end 2 sends.
fn world(config: Config) -> (World, Arc<Mutex<SharedReceives<Vec<u8>>>>) {
    let mut world = World::pair_with(1, config.clone(), config);
    world.add(Config::default());
    let queue = Arc::new(Mutex::new(SharedReceives::new(1)));
    for end in 0..2 {
        let place = Place { queue: Arc::clone(&queue), endpoint: end as u32 };
        world.endpoint(end).share_receives(Box::new(place), 16).unwrap();
    }
    (world, queue)
}

fn config(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config::default();
    change(&mut config);
    config
}

type Matched = (SharedReceive<Vec<u8>>, SharedMessage);

fn post(queue: &Mutex<SharedReceives<Vec<u8>>>, length: usize, context: u64) -> Option<Matched> {
    let receive = SharedReceive { buffer: vec![0; length], context };
    match queue.lock().unwrap().post(None, receive) {
        SharedPosting::Waiting(_) => None,
        SharedPosting::Matched(receive, message) => Some((receive, message)),
    }
}

/// The receive of a message that ends between the match and the endpoint's turn comes back with its buffer, even if
/// another message has taken the ended one's place.
#[test]
fn receive_for_a_shared_message_that_has_ended_comes_back_and_can_be_posted_anew() {
    let (mut world, queue) = world(Config::default());
    let sender = world.peer(0, 2);
    world.send(2, 0, pattern(500_000, 1), 0);
    world.drive();
    let (receive, message) = post(&queue, 8, 1).unwrap();
    assert_eq!(message.endpoint, 0);
    world.endpoint(0).remove_peer(sender);
    assert_eq!(world.endpoint(0).packets_held().held, 0);
    world.send(1, 0, pattern(8, 2), 0);
    world.drive();
    let returned = world.endpoint(0).receive_shared(message.message, receive).unwrap_err();
    assert_eq!((returned.buffer.len(), returned.context), (8, 1));
    assert!(world.ends[0].receives.is_empty());
    // It gets the message that arrived since.
    let SharedPosting::Matched(receive, message) = queue.lock().unwrap().post(None, returned)
    else {
        panic!("a message waits");
    };
    world.endpoint(0).receive_shared(message.message, receive).unwrap();
    let received = world.receive_done(0);
    assert_eq!((received.context, received.buffer), (1, pattern(8, 2)));
    // Once only.
    let again = SharedReceive { buffer: vec![0; 8], context: 2 };
    assert!(world.endpoint(0).receive_shared(message.message, again).is_err());
}

/// A flood at one endpoint is bounded by that endpoint, and leaves nothing in the queue.
#[test]
fn unexpected_messages_of_an_excluded_peer_leave_the_shared_queue() {
    let config = config(|config| config.bounds.unexpected_per_peer = 20_000);
    let (mut world, queue) = world(config);
    world.send(1, 0, pattern(8, 1), 0);
    world.drive();
    for salt in 0..10 {
        world.send(2, 0, pattern(3000, salt), salt);
        world.drive();
    }
    let held = world.endpoint(0).packets_held();
    assert!(held.unexpected_bytes < 20_000, "{held:?}");
    let (receive, message) = post(&queue, 8, 1).unwrap();
    world.endpoint(0).receive_shared(message.message, receive).unwrap();
    assert_eq!(world.receive_done(0).buffer, pattern(8, 1));
    assert!(post(&queue, 8, 2).is_none(), "nothing of the excluded peer is left");
}

#[test]
fn endpoint_that_leaves_takes_only_its_messages_along() {
    let (mut world, queue) = world(Config::default());
    world.send(2, 0, pattern(8, 1), 0);
    world.send(2, 1, pattern(8, 2), 0);
    world.drive();
    queue.lock().unwrap().leave(0);
    let (receive, message) = post(&queue, 8, 1).unwrap();
    assert_eq!(message.endpoint, 1);
    world.endpoint(1).receive_shared(message.message, receive).unwrap();
    assert_eq!(world.receive_done(1).buffer, pattern(8, 2));
    assert!(post(&queue, 8, 2).is_none());
}

#[test]
fn taken_receive_fails_with_its_peer_and_a_shared_queue_leaves_reads_a_limit() {
    let (mut world, queue) = world(Config::default());
    let sender = world.peer(0, 2);
    assert!(post(&queue, 500_000, 1).is_none());
    world.send(2, 0, pattern(500_000, 1), 0);
    while world.endpoint(0).statistics().received_bytes == 0 {
        world.step();
    }
    world.endpoint(0).remove_peer(sender);
    let failed = world.receive_done(0);
    assert_eq!(failed.result, Err(OperationError::PeerRemoved));
    assert_eq!((failed.context, failed.buffer.len()), (1, 500_000));

    let mut small =
        World::pair_with(2, config(|config| config.max_receives = 16), Config::default());
    let place = Place { queue, endpoint: 5 };
    let error = ConfigError::TooManyShared { receives: 16, limit: 15 };
    let shared = small.endpoint(0).share_receives(Box::new(place.clone()), 16);
    assert_eq!(shared, Err(error));
    assert_eq!(small.endpoint(0).share_receives(Box::new(place), 15), Ok(()));
}
