//! In the steady state the engine does not allocate.
//!
//! The device is two packet queues in memory, which do not allocate either.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod null;

use std::time::Duration;

use efa_counted_heap::allocations;
use efa_device::Time;
use efa_rdm::{Accept, Completion, Config, Endpoint, Level, Message, PeerId};

use crate::null::{Direct, Order};

type End = Endpoint<Direct, Vec<u8>>;

/// Sends every buffer as a tagged message and returns the received and sent buffers.
fn round(
    (a, b): (&mut End, &mut End),
    peer: PeerId,
    now: &mut Time,
    sources: &mut Vec<Vec<u8>>,
    targets: &mut Vec<Vec<u8>>,
    expected: bool,
) {
    let count = sources.len();
    let accept = |i| Accept::Tagged { source: None, tag: i as u64, ignore: 0 };
    if expected {
        for i in 0..count {
            b.receive(accept(i), targets.pop().unwrap(), 0).unwrap();
        }
    }
    for i in 0..count {
        let buffer = sources.pop().unwrap();
        let message = Message {
            peer,
            tag: Some(i as u64),
            cq_data: None,
            level: Level::Transmit,
            buffer,
            context: 0,
        };
        a.send(message).unwrap();
    }
    let (mut posted, mut received) = (if expected { count } else { 0 }, 0);
    let all_came = b.statistics().unexpected + count as u64;
    while sources.len() < count || received < count {
        *now += Duration::from_micros(1);
        a.progress(*now);
        b.progress(*now);
        if posted < count && b.statistics().unexpected == all_came {
            b.receive(accept(posted), targets.pop().unwrap(), 0).unwrap();
            posted += 1;
        }
        while let Some(Completion::Send(sent)) = a.poll_completion() {
            assert_eq!(sent.result, Ok(()));
            sources.push(sent.buffer.unwrap());
        }
        while let Some(Completion::Receive(message)) = b.poll_completion() {
            assert_eq!(message.result, Ok(()));
            targets.push(message.buffer);
            received += 1;
        }
    }
}

#[test]
fn steady_state_of_messages_and_rma_allocates_nothing() {
    for length in [8, 4096, 8800, 40_000, 65_536, 300_000] {
        for expected in [true, false] {
            // Without trimming, which frees memory when the endpoint is idle.
            let config = Config::default().with(|config| config.trim_interval = Duration::MAX);
            let [mut a, mut b] = null::pair(Order::Overtaking)
                .map(|queue_pair| Endpoint::new(queue_pair, config.clone()).unwrap());
            let peer = a.insert_peer(b.address()).unwrap();
            let mut sources: Vec<_> = (0..16).map(|i| vec![i; length]).collect();
            let mut targets: Vec<_> = (0..16).map(|_| vec![0; length]).collect();
            let mut now = Time::ZERO;
            let mut run = |rounds| {
                for _ in 0..rounds {
                    let ends = (&mut a, &mut b);
                    round(ends, peer, &mut now, &mut sources, &mut targets, expected);
                }
            };
            run(200);
            let before = allocations();
            run(100);
            assert_eq!(allocations() - before, 0, "{length} bytes, expected: {expected}");
        }
    }
}
