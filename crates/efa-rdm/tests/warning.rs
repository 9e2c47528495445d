//! What is logged for the user to mend.
//!
//! It has a process of its own: `tracing` remembers whether somebody listened when a place logged first, and that may be in
//! another test.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use efa_device::{Device, Qkey, QueuePairOptions, Time};
use efa_rdm::{Accept, Config, Endpoint, Level, Message};
use efa_sim::local::{LocalFabric, LocalOptions, LocalQueuePair};
use tracing::Subscriber;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

/// Counts warnings.
struct Warnings(Arc<AtomicU32>);

impl<S: Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() == tracing::Level::WARN {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn bound_of_all_unexpected_messages_is_logged_as_a_warning_when_it_is_met_first() {
    let warnings = Arc::new(AtomicU32::new(0));
    let _guard = tracing::subscriber::set_default(
        tracing_subscriber::registry().with(Warnings(Arc::clone(&warnings))),
    );
    let network = LocalFabric::new(LocalOptions::default());
    let open = |qkey, config| {
        let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(qkey));
        Endpoint::new(network.open().create_queue_pair(options).unwrap(), config).unwrap()
    };
    let mut sender: Endpoint<LocalQueuePair, Vec<u8>> = open(1, Config::default());
    let mut receiver: Endpoint<LocalQueuePair, Vec<u8>> =
        open(2, Config::default().with(|config| config.bounds.unexpected = 100_000));
    let peer = sender.insert_peer(receiver.address()).unwrap();
    let mut now = Time::ZERO;
    let mut step = |receiver: &mut Endpoint<LocalQueuePair, Vec<u8>>| {
        let (tag, cq_data, level) = (None, None, Level::Transmit);
        let message = Message { peer, tag, cq_data, level, buffer: vec![7; 4096], context: 0 };
        // One that is busy takes the next later.
        let _ = sender.send(message);
        now += Duration::from_micros(100);
        sender.progress(now);
        while sender.poll_completion().is_some() {}
        receiver.progress(now);
    };
    for round in 1..=3 {
        for _ in 0..10_000 {
            if receiver.statistics().back_pressure == round {
                break;
            }
            step(&mut receiver);
        }
        assert_eq!(receiver.statistics().back_pressure, round);
        assert_eq!(warnings.load(Ordering::Relaxed), 1, "round {round}");
        let any = Accept::Untagged { source: None };
        while let Some((claim, _)) = receiver.claim(any).unwrap() {
            assert!(receiver.discard(claim));
        }
    }
}
