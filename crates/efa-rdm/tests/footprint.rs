//! Heap bytes for each peer, posted receive and pending send.
//!
//! The tests measure the growth of the heap when the tables are full, just before they would double.
//! The application's handle of a buffer is not included.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod null;

use efa_counted_heap::live_bytes;
use efa_device::{NoRegion, QueuePair};
use efa_proto::{Connid, RawAddress};
use efa_rdm::{Accept, Config, Endpoint, Level, Message, Payload};

use crate::null::{Direct, Order};

/// A buffer of zeros without memory or a handle, which are those of the application.
#[derive(Debug)]
struct Zeros<const LENGTH: u64>;

impl<const LENGTH: u64> Payload<NoRegion> for Zeros<LENGTH> {
    fn length(&self) -> u64 {
        LENGTH
    }
    fn read(&self, _: u64, into: &mut [u8]) {
        into.fill(0);
    }
    fn write(&mut self, _: u64, _: &[u8]) {}
    fn split_to(&mut self, _: u64) -> Self {
        Self
    }
}

type End<const LENGTH: u64> = Endpoint<Direct, Zeros<LENGTH>>;

fn ends<const LENGTH: u64>() -> [End<LENGTH>; 2] {
    null::pair(Order::Sent).map(|queue_pair| {
        let config = Config::default().with(|config| config.max_sends = usize::MAX);
        Endpoint::new(queue_pair, config).unwrap()
    })
}

/// Heap bytes for each of `count` calls, without those that only the first call needs.
fn each(count: u64, mut call: impl FnMut(u64)) -> f64 {
    call(0);
    let before = live_bytes();
    (1..count).for_each(&mut call);
    (live_bytes() - before) as f64 / (count - 1) as f64
}

fn assert_at_most(limit: f64, what: &str, measured: f64) {
    println!("{what}: {measured:.1} bytes of at most {limit}");
    assert!(measured <= limit, "{what}: {measured:.1} bytes, at most {limit}");
    assert!(
        measured > limit / 4.0,
        "{what}: {measured:.1} bytes: too small to be a valid measurement"
    );
}

#[test]
fn idle_peer_takes_at_most_48_bytes() {
    for count in [1 << 17, 1 << 20] {
        let [mut a, _] = ends::<8>();
        let bytes = each(count, |number| {
            let mut gid = [1; 16];
            gid[..8].copy_from_slice(&number.to_le_bytes());
            let connid = Connid(number as u32);
            a.insert_peer(RawAddress { gid, qpn: number as u16, connid }).unwrap();
        });
        assert_at_most(48.0, &format!("one of {count} idle peers"), bytes);
    }
}

#[test]
fn posted_receive_takes_at_most_96_bytes() {
    for tagged in [true, false] {
        let [mut a, _] = ends::<8>();
        let bytes = each(1 << 16, |tag| {
            let accept = match tagged {
                true => Accept::Tagged { source: None, tag, ignore: 0 },
                false => Accept::Untagged { source: None },
            };
            a.receive(accept, Zeros, 0).unwrap();
        });
        assert_at_most(96.0, &format!("a posted receive (tagged: {tagged})"), bytes);
    }
}

/// Heap bytes of a send, without the packet, which belongs to the device.
fn send<const LENGTH: u64>() -> f64 {
    let [mut a, b] = ends::<LENGTH>();
    let peer = a.insert_peer(b.address()).unwrap();
    let bytes = each(2048, |tag| {
        let (tag, level) = (Some(tag), Level::Transmit);
        a.send(Message { peer, tag, cq_data: None, level, buffer: Zeros, context: 0 }).unwrap();
    });
    assert_eq!(a.statistics().sent.iter().map(|(_, count)| count).sum::<u64>(), 2048);
    bytes - a.queue_pair().attributes().mtu as f64
}

#[test]
fn pending_send_takes_at_most_200_bytes() {
    assert_at_most(200.0, "a send of one packet", send::<8>());
    assert_at_most(200.0, "a send that waits for a grant", send::<{ 1 << 20 }>());
}
