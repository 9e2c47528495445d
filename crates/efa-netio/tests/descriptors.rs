//! Open descriptors and memory, which all tests of a process share: so there is one test here.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Duration;

use efa::{Fabric, ShmOptions};
use efa_netio::{
    ClosedReason, Event, ListenOptions, Message, Netio, Options, PublishOptions, PublishSocket,
    Published, SendOptions, Sent, SubscribeOptions, SubscribeSocket, Wait,
};
use tempfile::TempDir;

/// Bytes that are allocated.
static ALLOCATED: AtomicIsize = AtomicIsize::new(0);

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller upholds `alloc`'s contract, which is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    // That of the trait would write zeros into what the system gives as zeros.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the pointer came from `alloc` above, so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// 64 bytes for each of a thousand cycles, less than anything of a connection. The software device's table of keys grows
/// meanwhile: it uses all numbers, of 16 bytes each, before it uses one again.
const GROWTH: isize = 64 << 10;

const HOST: &str = "127.0.0.1";

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Connects, sends, disconnects, and waits for both ends.
fn cycle(netio: &mut Netio, send: efa_netio::SendSocket, port: u16, message: &Message) {
    netio.connect(send, HOST, port).unwrap();
    let (mut received, mut closed) = (0, 0);
    while closed < 2 {
        match netio.poll(Wait::For(Duration::from_secs(60))).unwrap().expect("an event in time") {
            Event::Connected(_) => {
                assert!(matches!(netio.send(send, message.clone()), Sent::Accepted));
                netio.disconnect(send).unwrap();
            }
            Event::Received { .. } => received += 1,
            Event::SendCompleted { result, .. } => assert_eq!(result, Ok(())),
            Event::Closed { reason, .. } => {
                let is_orderly =
                    matches!(reason, ClosedReason::Disconnected | ClosedReason::DisconnectedByPeer);
                assert!(is_orderly, "{reason:?}");
                closed += 1;
            }
            Event::Accepted { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(received, 1);
}

/// Subscribes, gets a message, unsubscribes, and waits for both ends.
fn subscribe(
    netio: &mut Netio,
    (publisher, subscriber): (PublishSocket, SubscribeSocket),
    message: &Message,
) {
    netio.subscribe(subscriber, 7).unwrap();
    let (mut published, mut closed) = (0, 0);
    while closed < 2 || published < 1 {
        match netio.poll(Wait::For(Duration::from_secs(60))).unwrap().expect("an event in time") {
            Event::Subscribed { .. } => {
                let answer = netio.publish(publisher, 7, message.clone());
                assert!(matches!(answer, Published::UnderWay), "{answer:?}");
            }
            Event::Message { tag: 7, .. } => drop(netio.unsubscribe(subscriber, 7).unwrap()),
            Event::Published { served, lost, .. } => {
                assert_eq!((served, lost), (1, 0));
                published += 1;
            }
            Event::Closed { reason, .. } => {
                assert_eq!(reason, ClosedReason::Disconnected);
                closed += 1;
            }
            Event::SubscriberClosed { reason, .. } => {
                assert_eq!(reason, ClosedReason::DisconnectedByPeer);
                closed += 1;
            }
            _ => {}
        }
    }
}

// conformance: D9 D15 D46
#[test]
fn thousand_cycles_over_shm_leave_descriptors_memory_and_counts_as_they_were() {
    let directory = TempDir::new().unwrap();
    let hosts = Some(directory.path().join("hosts"));
    let fabric = Fabric::shm(ShmOptions::new("test").with(|options| options.directory = hosts));
    let mut netio = Netio::new(&fabric.domain().unwrap(), Options::default()).unwrap();
    let listener = netio.listen_socket(ListenOptions::default());
    netio.listen(listener, HOST, 0).unwrap();
    let port = netio.local_address(listener).unwrap().port();
    let send = netio.send_socket(SendOptions::default());
    let pool = netio.allocate(100_000).unwrap();
    let lengths = [10, 60_000];
    let messages = lengths.map(|length| Message::of(pool.part(0..length).unwrap()));
    let publisher = netio.publish_socket(&pool, PublishOptions::default()).unwrap();
    netio.publish_at(publisher, HOST, 0).unwrap();
    let at = netio.local_address(publisher).unwrap().port();
    let sockets = (publisher, netio.subscribe_socket(HOST, at, SubscribeOptions::default()));
    let cycles = |netio: &mut Netio, count: usize| {
        for number in 0..count {
            cycle(netio, send, port, &messages[number % 2]);
            subscribe(netio, sockets, &messages[number % 2]);
        }
    };
    cycles(&mut netio, 50);
    let before = (descriptors(), ALLOCATED.load(Ordering::Relaxed));
    cycles(&mut netio, 1000);
    let counts = netio.counts();
    assert_eq!((counts.connections, counts.operations, counts.ignored), (0, 0, 0));
    assert_eq!((counts.publications, counts.tags), (0, 0));
    assert_eq!(descriptors(), before.0);
    let grown = ALLOCATED.load(Ordering::Relaxed) - before.1;
    assert!(grown < GROWTH, "{grown} bytes more than before");
}
