//! Our program of `cargo xtask bench netio`, and what it is compared with beside peers.
//!
//! ```text
//! efa-bench-netio publish|subscribe …     as the harness says
//! efa-bench-netio bare publish|subscribe …                         the same by `efa` alone
//! efa-bench-netio copy …                                           processes that copy from one mapping
//! efa-bench-netio stopped|killed|idle     what one subscriber does to the others, and what none costs
//! ```

mod bare;
mod copy;
mod subscribers;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use efa::{Fabric, ShmOptions};
use efa_bench_netio_harness::{Job, Publish, Stamp, Subscribe, run};
use efa_netio::{
    Buffers, ClosedReason, Event, Lookup, Message, Netio, Options, Pool, PublishOptions,
    PublishSocket, Published, SubscribeOptions, SubscribeSocket, Wait,
};

const HOST: &str = "127.0.0.1";
const TAG: u64 = 1;
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(5);

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.split_first() {
        Some((what, rest)) if what == "bare" => {
            run(rest, bare::Publisher::new, bare::Subscriber::new)
        }
        Some((what, rest)) if what == "copy" => copy::run(rest),
        Some((what, rest)) if what == "copy-one" => copy::one(rest),
        Some((what, _)) if what == "stopped" => subscribers::stopped(),
        Some((what, _)) if what == "killed" => subscribers::killed(),
        Some((what, _)) if what == "idle" => subscribers::idle(),
        Some((what, rest)) if what == "child" => subscribers::child(rest),
        _ => run(&words, Publisher::new, Subscriber::new),
    }
}

/// A context on the `shm` link.
fn open(directory: &std::path::Path) -> Result<Netio> {
    let directory = Some(directory.join("hosts"));
    let fabric =
        Fabric::shm(ShmOptions::new("bench").with(|options| options.directory = directory));
    Ok(Netio::new(&fabric.domain()?, Options::default())?)
}

/// A publisher with a ring of messages.
struct Publisher {
    netio: Netio,
    socket: PublishSocket,
    pool: Pool,
    lookup: Lookup,
    /// Messages that are not under way.
    free: VecDeque<Message>,
    subscribers: usize,
}

impl Publisher {
    fn new(job: &Job) -> Result<Self> {
        let mut netio = open(&job.directory)?;
        let depth = job.depth();
        let pool = netio.allocate(depth * job.size)?;
        let options = PublishOptions::default().outstanding(depth);
        let socket = netio.publish_socket(&pool, options)?;
        netio.publish_at(socket, HOST, job.port)?;
        let parts = (0..depth).map(|slot| pool.part(slot * job.size..(slot + 1) * job.size));
        let free = parts.map(|part| part.map(Message::of)).collect::<Result<_, _>>()?;
        Ok(Self { netio, socket, pool, lookup: Lookup::new(TAG), free, subscribers: 0 })
    }

    fn event(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Published { message, lost, .. } => {
                ensure!(lost == 0, "{lost} subscribers lost a message");
                self.free.push_back(message);
            }
            Event::SubscriberConnected { .. } => self.subscribers += 1,
            Event::SubscriberClosed { .. } => self.subscribers -= 1,
            Event::BindRefused { error, .. } => bail!("the port: {error}"),
            _ => {}
        }
        Ok(())
    }

    /// The next event of somebody; then all that there are.
    fn wait(&mut self, time: Duration) -> Result<()> {
        let mut wait = Wait::For(time);
        while let Some(event) = self.netio.poll(wait)? {
            self.event(event)?;
            wait = Wait::No;
        }
        Ok(())
    }
}

impl Publish for Publisher {
    fn publish(&mut self, stamp: &[u8; Stamp::LENGTH]) -> Result<()> {
        let begin = Instant::now();
        loop {
            // The longest unused one, as a ring is filled.
            let Some(message) = self.free.pop_front() else {
                self.wait(Duration::from_secs(1))?;
                ensure!(begin.elapsed() < PATIENCE, "no message comes back");
                continue;
            };
            self.pool.write(message.parts()[0].range().start, stamp);
            match self.netio.publish_by(self.socket, &mut self.lookup, message) {
                Published::UnderWay => return Ok(()),
                Published::NoSubscribers(message) => {
                    self.free.push_front(message);
                    return Ok(());
                }
                Published::Again(message) => {
                    self.free.push_front(message);
                    self.wait(Duration::from_secs(1))?;
                }
                Published::Partial(mut token) => {
                    while let Published::Partial(rest) = self.netio.resume(token) {
                        token = rest;
                        self.wait(Duration::from_secs(1))?;
                        ensure!(begin.elapsed() < PATIENCE, "a subscriber takes nothing");
                    }
                    return Ok(());
                }
                Published::Refused(error, _) => return Err(error.into()),
            }
            ensure!(begin.elapsed() < PATIENCE, "no subscriber takes anything");
        }
    }

    fn rest(&mut self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            self.wait(left)?;
            if left.is_zero() {
                return Ok(());
            }
        }
    }

    fn finish(&mut self) -> Result<()> {
        let begin = Instant::now();
        self.netio.close(self.socket);
        while self.subscribers > 0 {
            ensure!(begin.elapsed() < PATIENCE, "subscribers don't end");
            self.wait(PAUSE)?;
        }
        Ok(())
    }
}

/// A subscriber of one tag.
struct Subscriber {
    netio: Netio,
    socket: SubscribeSocket,
}

impl Subscriber {
    fn new(job: &Job) -> Result<Self> {
        let mut netio = open(&job.directory)?;
        let buffers = Buffers { count: job.depth(), size: job.size };
        let options = SubscribeOptions::default().buffers(buffers);
        let socket = netio.subscribe_socket(HOST, job.port, options);
        netio.subscribe(socket, TAG)?;
        Ok(Self { netio, socket })
    }
}

impl Subscribe for Subscriber {
    #[inline]
    fn receive(&mut self, show: &mut dyn FnMut(&[u8])) -> Result<bool> {
        match self.netio.poll(Wait::For(Duration::from_secs(1)))? {
            Some(Event::Message { message, .. }) => {
                show(&message);
                Ok(true)
            }
            // The publisher may not be there yet.
            Some(Event::Refused { .. }) => {
                std::thread::sleep(PAUSE);
                self.netio.reconnect(self.socket)?;
                Ok(false)
            }
            Some(Event::Closed { reason, .. }) => bail!("closed: {reason:?}"),
            _ => Ok(false),
        }
    }

    fn is_known(&mut self) -> Result<bool> {
        let Some(Event::Closed { reason, .. }) = self.netio.poll(Wait::For(PAUSE))? else {
            return Ok(false);
        };
        ensure!(reason == ClosedReason::DisconnectedByPeer, "closed: {reason:?}");
        Ok(true)
    }
}
