//! A publication allocates nothing in the steady state.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use efa::{Fabric, ManualClock, ShmOptions};
use efa_counted_heap as heap;
use efa_netio::{
    Buffers, Event, Lookup, Message, Netio, Options, PublishOptions, Published, SubscribeOptions,
    Wait,
};
use tempfile::TempDir;

const HOST: &str = "127.0.0.1";
const TAG: u64 = 9;
const SUBSCRIBERS: usize = 8;
/// Publications in which tables grow to their size, and then such that count.
const PUBLICATIONS: u32 = 1000;

fn all(netio: &mut Netio) -> Vec<Event> {
    std::iter::from_fn(|| netio.poll(Wait::No).unwrap()).collect()
}

/// Publishes messages of such a length to eight subscribers; returns the allocations in publications, and in the polls of
/// the publisher until they are complete, after the first ones.
fn allocations(length: usize) -> u64 {
    let directory = TempDir::new().unwrap();
    let hosts = Some(directory.path().join("hosts"));
    // Its time stands still: now and then the engine gives back memory that it hasn't used for a while.
    let fabric = Fabric::shm(ShmOptions::new("test").with(|options| options.directory = hosts))
        .with_clock(&ManualClock::new());
    let [mut publisher, mut others] =
        [0; 2].map(|_| Netio::new(&fabric.domain().unwrap(), Options::default()).unwrap());
    let pool = publisher.allocate(length).unwrap();
    let socket = publisher.publish_socket(&pool, PublishOptions::default()).unwrap();
    publisher.publish_at(socket, HOST, 0).unwrap();
    let port = publisher.local_address(socket).unwrap().port();
    for _ in 0..SUBSCRIBERS {
        let buffers = Buffers { count: 4, size: length };
        let options = SubscribeOptions::default().buffers(buffers);
        let subscriber = others.subscribe_socket(HOST, port, options);
        others.subscribe(subscriber, TAG).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while publisher.subscriber_count(socket, TAG) < SUBSCRIBERS {
        assert!(Instant::now() < deadline, "the subscribers don't come");
        drop((all(&mut publisher), all(&mut others)));
    }
    let mut message = Some(Message::of(pool.whole()));
    let mut lookup = Lookup::new(TAG);
    let mut calls = 0;
    for number in 0..2 * PUBLICATIONS {
        let before = heap::allocations();
        let published = publisher.publish_by(socket, &mut lookup, message.take().unwrap());
        assert!(matches!(published, Published::UnderWay));
        let mut received = 0;
        calls += if number >= PUBLICATIONS { heap::allocations() - before } else { 0 };
        while message.is_none() || received < SUBSCRIBERS {
            assert!(Instant::now() < deadline, "a publication doesn't end");
            let of_others = all(&mut others).into_iter();
            received += of_others.filter(|it| matches!(it, Event::Message { .. })).count();
            let before = heap::allocations();
            while let Some(event) = publisher.poll(Wait::No).unwrap() {
                if let Event::Published { message: back, lost: 0, .. } = event {
                    message = Some(back);
                }
            }
            calls += if number >= PUBLICATIONS { heap::allocations() - before } else { 0 };
        }
    }
    calls
}

#[test]
fn publication_in_packets_allocates_nothing() {
    assert_eq!(allocations(64), 0);
}

#[test]
fn publication_that_is_read_allocates_nothing() {
    assert_eq!(allocations(100_000), 0);
}
