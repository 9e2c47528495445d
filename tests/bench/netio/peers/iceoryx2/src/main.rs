//! iceoryx2: messages in shared memory, which subscribers read where they are. Without overflow, and with a publisher that
//! waits for slow subscribers. At full speed both sides poll, as its benchmarks do; else the publisher notifies, and the
//! subscribers sleep.

use std::time::Duration;

use anyhow::{Result, anyhow};
use efa_bench_netio_harness::{Job, Publish, Stamp, Subscribe, run};
use iceoryx2::port::backpressure_strategy::BackpressureStrategy;
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::{publisher, subscriber};
use iceoryx2::prelude::*;

type Payload = [u8];

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    run(&words, Publisher::new, Subscriber::new)
}

fn failed(error: impl std::fmt::Debug) -> anyhow::Error {
    anyhow!("{error:?}")
}

/// Of this run alone.
fn node(job: &Job) -> Result<Node<ipc::Service>> {
    let mut config = Config::global_config().clone();
    let root = Path::new(job.directory.as_os_str().as_encoded_bytes()).map_err(failed)?;
    config.global.set_root_path(&root);
    NodeBuilder::new().config(&config).create::<ipc::Service>().map_err(failed)
}

macro_rules! messages {
    ($node:expr, $job:expr) => {
        $node
            .service_builder(&"netio".try_into().map_err(failed)?)
            .publish_subscribe::<Payload>()
            .max_publishers(1)
            .max_subscribers($job.subscribers)
            .max_nodes($job.subscribers + 2)
            .history_size(0)
            .subscriber_max_buffer_size($job.depth())
            .enable_safe_overflow(false)
            .open_or_create()
            .map_err(failed)?
    };
}

macro_rules! notices {
    ($node:expr, $job:expr) => {
        $node
            .service_builder(&"netio".try_into().map_err(failed)?)
            .event()
            .max_notifiers(1)
            .max_listeners($job.subscribers)
            .max_nodes($job.subscribers + 2)
            .open_or_create()
            .map_err(failed)?
    };
}

struct Publisher {
    publisher: publisher::Publisher<ipc::Service, Payload, ()>,
    notifier: Option<Notifier<ipc::Service>>,
    size: usize,
    _node: Node<ipc::Service>,
}

impl Publisher {
    fn new(job: &Job) -> Result<Self> {
        let node = node(job)?;
        let publisher = messages!(node, job)
            .publisher_builder()
            .initial_max_slice_len(job.size)
            .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
            .create()
            .map_err(failed)?;
        let notifier = match job.pace {
            0 => None,
            _ => Some(notices!(node, job).notifier_builder().create().map_err(failed)?),
        };
        Ok(Self { publisher, notifier, size: job.size, _node: node })
    }
}

impl Publish for Publisher {
    fn publish(&mut self, stamp: &[u8; Stamp::LENGTH]) -> Result<()> {
        let mut sample = self.publisher.loan_slice_uninit(self.size).map_err(failed)?;
        for (to, from) in sample.payload_mut().iter_mut().zip(stamp) {
            to.write(*from);
        }
        // SAFETY: bytes of shared memory, which any value is one of; hardware would have written the others.
        let sample = unsafe { sample.assume_init() };
        sample.send().map_err(failed)?;
        if let Some(notifier) = &self.notifier {
            notifier.notify().map_err(failed)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        // Subscribers take what they have meanwhile.
        std::thread::sleep(Duration::from_millis(300));
        Ok(())
    }
}

struct Subscriber {
    subscriber: subscriber::Subscriber<ipc::Service, Payload, ()>,
    listener: Option<Listener<ipc::Service>>,
    _node: Node<ipc::Service>,
}

impl Subscriber {
    fn new(job: &Job) -> Result<Self> {
        let node = node(job)?;
        let subscriber = messages!(node, job).subscriber_builder().create().map_err(failed)?;
        let listener = match job.pace {
            0 => None,
            _ => Some(notices!(node, job).listener_builder().create().map_err(failed)?),
        };
        Ok(Self { subscriber, listener, _node: node })
    }
}

impl Subscribe for Subscriber {
    fn receive(&mut self, show: &mut dyn FnMut(&[u8])) -> Result<bool> {
        for _ in 0..64 {
            if let Some(sample) = self.subscriber.receive().map_err(failed)? {
                show(sample.payload());
                return Ok(true);
            }
            if let Some(listener) = &self.listener {
                listener.timed_wait(|_| {}, Duration::from_millis(100)).map_err(failed)?;
            }
        }
        std::thread::yield_now();
        Ok(false)
    }
}
