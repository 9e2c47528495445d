//! Buffers for which there is no memory at first. All tests of a process share the allocator: so there is one test here.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use efa::{Fabric, LocalOptions};
use efa_netio::{
    Buffers, Event, ListenOptions, Message, Netio, Options, PublishOptions, Published, SendOptions,
    Sent, SubscribeOptions, Wait,
};

/// Bytes of a buffer, more than of anything else here.
const HUGE: usize = 1 << 26;

/// Whether there is no memory for such a buffer.
static IS_SHORT: AtomicBool = AtomicBool::new(true);

fn is_refused(layout: Layout) -> bool {
    layout.size() >= HUGE && IS_SHORT.load(Ordering::Relaxed)
}

struct Short;

// SAFETY: every call goes to the system's allocator unchanged, or is refused as the trait allows; neither unwinds.
unsafe impl GlobalAlloc for Short {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout) {
            return null_mut();
        }
        // SAFETY: the caller upholds `alloc`'s contract, which is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    // That of the trait would write zeros into what the system gives as zeros.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout) {
            return null_mut();
        }
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Short = Short;

const HOST: &str = "127.0.0.1";
const TAG: u64 = 9;

/// Polls until `is` accepts an event.
fn until(netio: &mut Netio, is: impl Fn(&Event) -> bool) -> Event {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        assert!(Instant::now() < deadline, "the event doesn't come");
        match netio.poll(Wait::For(Duration::from_secs(1))).unwrap() {
            Some(event) if is(&event) => return event,
            _ => {}
        }
    }
}

#[test]
fn sockets_without_memory_for_a_buffer_receive_as_soon_as_there_is_some() {
    let domain = Fabric::local(LocalOptions::default()).domain().unwrap();
    let mut netio = Netio::new(&domain, Options::default()).unwrap();
    let pool = netio.register(b"bytes".to_vec()).unwrap();
    let buffers = Buffers { count: 1, size: HUGE };

    let listener = netio.listen_socket(ListenOptions::default().buffers(Some(buffers)));
    netio.listen(listener, HOST, 0).unwrap();
    let port = netio.local_address(listener).unwrap().port();
    let send = netio.send_socket(SendOptions::default());
    netio.connect(send, HOST, port).unwrap();
    until(&mut netio, |event| matches!(event, Event::Connected(_)));

    let publisher = netio.publish_socket(&pool, PublishOptions::default()).unwrap();
    netio.publish_at(publisher, HOST, 0).unwrap();
    let port = netio.local_address(publisher).unwrap().port();
    let options = SubscribeOptions::default().buffers(buffers);
    let subscriber = netio.subscribe_socket(HOST, port, options);
    netio.subscribe(subscriber, TAG).unwrap();
    until(&mut netio, |event| matches!(event, Event::Subscribed { .. }));

    assert!(matches!(netio.send_buffer(send, pool.whole()), Sent::Accepted));
    let published = netio.publish(publisher, TAG, Message::of(pool.whole()));
    assert!(matches!(published, Published::UnderWay));
    // Both messages have arrived, and wait.
    while let Some(event) = netio.poll(Wait::For(Duration::from_millis(100))).unwrap() {
        assert!(!matches!(event, Event::Received { .. } | Event::Message { .. }));
    }
    assert!(netio.next_timeout().is_some_and(|timeout| timeout <= Duration::from_millis(16)));

    IS_SHORT.store(false, Ordering::Relaxed);
    let (mut received, mut delivered) = (false, false);
    while !(received && delivered) {
        let is = |event: &Event| matches!(event, Event::Received { .. } | Event::Message { .. });
        match until(&mut netio, is) {
            Event::Received { message, .. } => received = message[..] == *b"bytes",
            Event::Message { message, .. } => delivered = message[..] == *b"bytes",
            _ => {}
        }
    }
    // Nothing is left to be tried again.
    while netio.poll(Wait::For(Duration::from_millis(100))).unwrap().is_some() {}
    assert_eq!(netio.next_timeout(), None);
}
