//! zenoh: a publisher that listens, and subscribers that connect to it, over a Unix socket (`ZENOH_PEER=tcp`: over TCP).
//! `CongestionControl::Block`, so that the publisher waits for slow subscribers. The bytes behind the stamp are given by
//! reference.

use std::time::Duration;

use anyhow::{Result, anyhow};
use efa_bench_netio_harness::{Job, Publish, Stamp, Subscribe, run};
use zenoh::bytes::ZBytes;
use zenoh::handlers::FifoChannelHandler;
use zenoh::pubsub;
use zenoh::qos::{CongestionControl, Priority, Reliability};
use zenoh::sample::Sample;
use zenoh::{Config, Session, Wait};

const KEY: &str = "bench/netio";

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    run(&words, Publisher::new, Subscriber::new)
}

fn failed(error: zenoh::Error) -> anyhow::Error {
    anyhow!("{error}")
}

fn open(job: &Job, listens: bool) -> Result<Session> {
    let at = match std::env::var("ZENOH_PEER").as_deref() {
        Ok("tcp") => format!("tcp/127.0.0.1:{}", job.port),
        _ => format!("unixsock-stream/{}", job.socket()),
    };
    let mut config = Config::default();
    let mut set = |key: &str, value: &str| {
        config.insert_json5(key, value).map_err(|error| anyhow!("{key}: {error}"))
    };
    set("mode", if listens { "\"peer\"" } else { "\"client\"" })?;
    set("scouting/multicast/enabled", "false")?;
    // It would give up a subscriber that is slow for a second.
    set("transport/link/tx/queue/congestion_control/block/wait_before_close", "20000000")?;
    match listens {
        true => set("listen/endpoints", &format!("[\"{at}\"]"))?,
        false => set("connect/endpoints", &format!("[\"{at}\"]"))?,
    }
    // The publisher may not be there yet.
    let mut tries = 0;
    loop {
        match zenoh::open(config.clone()).wait() {
            Ok(session) => return Ok(session),
            Err(error) if tries == 100 => return Err(failed(error)),
            Err(_) => tries += 1,
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

struct Publisher {
    publisher: pubsub::Publisher<'static>,
    /// All bytes but the stamp, of as many messages as the others have.
    rests: Vec<ZBytes>,
    next: usize,
    _session: Session,
}

impl Publisher {
    fn new(job: &Job) -> Result<Self> {
        let session = open(job, true)?;
        let publisher = session
            .declare_publisher(KEY)
            .congestion_control(CongestionControl::Block)
            .priority(Priority::default())
            .reliability(Reliability::Reliable)
            .wait()
            .map_err(failed)?;
        // Not zeroed pages, which the kernel may share.
        let rest = || ZBytes::from(vec![1; job.size - Stamp::LENGTH]);
        let rests = std::iter::repeat_with(rest).take(job.depth()).collect();
        Ok(Self { publisher, rests, next: 0, _session: session })
    }
}

impl Publish for Publisher {
    fn publish(&mut self, stamp: &[u8; Stamp::LENGTH]) -> Result<()> {
        let mut writer = ZBytes::writer();
        writer.append(ZBytes::from(stamp.to_vec()));
        writer.append(self.rests[self.next].clone());
        self.next = (self.next + 1) % self.rests.len();
        self.publisher.put(writer.finish()).wait().map_err(failed)
    }

    fn finish(&mut self) -> Result<()> {
        // The session sends what is in its queues meanwhile.
        std::thread::sleep(Duration::from_millis(500));
        Ok(())
    }
}

struct Subscriber {
    subscriber: pubsub::Subscriber<FifoChannelHandler<Sample>>,
    /// For a message that comes in pieces.
    whole: Vec<u8>,
    _session: Session,
}

impl Subscriber {
    fn new(job: &Job) -> Result<Self> {
        let session = open(job, false)?;
        let subscriber = session.declare_subscriber(KEY).wait().map_err(failed)?;
        Ok(Self { subscriber, whole: Vec::new(), _session: session })
    }
}

impl Subscribe for Subscriber {
    fn receive(&mut self, show: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let received = self.subscriber.recv_timeout(Duration::from_secs(1)).map_err(failed)?;
        let Some(sample) = received else { return Ok(false) };
        let mut slices = sample.payload().slices();
        let first = slices.next().unwrap_or_default();
        let Some(second) = slices.next() else {
            show(first);
            return Ok(true);
        };
        // Contiguous, as with the others.
        self.whole.clear();
        [first, second].into_iter().chain(slices).for_each(|part| self.whole.extend(part));
        show(&self.whole);
        Ok(true)
    }
}
