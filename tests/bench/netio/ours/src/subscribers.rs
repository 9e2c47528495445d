//! What a subscriber that is stopped or killed does to the others and to the publisher, and what idle contexts cost.

use std::collections::VecDeque;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use efa_bench_netio_harness::processor_time;
use efa_netio::{
    Buffers, Event, Lookup, Message, Netio, Pool, PublishOptions, PublishSocket, Published,
    SubscribeOptions, Tag, Wait,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::copy::Copier;
use crate::{HOST, PATIENCE, PAUSE, open};

/// Bytes of a message.
const SIZE: usize = 4096;
/// Messages of a tag under way.
const DEPTH: usize = 256;
/// How long the others are looked at.
const TIME: Duration = Duration::from_secs(2);
/// The tag of the others, and that of the one that is stopped.
const TAGS: [Tag; 2] = [1, 2];

/// A publisher of two tags with subscribers in processes.
struct Stage {
    // Children end before their directory goes.
    children: Vec<Copier>,
    netio: Netio,
    socket: PublishSocket,
    lookups: [Lookup; 2],
    free: [VecDeque<Message>; 2],
    served: [u64; 2],
    lost: u64,
    /// Subscribers that have gone.
    gone: usize,
    _pool: Pool,
    _place: TempDir,
}

impl Stage {
    /// So many subscribers of each tag.
    fn new(subscribers: [usize; 2]) -> Result<Self> {
        let place = tempfile::tempdir()?;
        let mut netio = open(place.path())?;
        let pool = netio.allocate(2 * DEPTH * SIZE)?;
        let socket = netio.publish_socket(&pool, PublishOptions::default())?;
        netio.publish_at(socket, HOST, 0)?;
        let port = netio.local_address(socket).context("it doesn't listen")?.port();
        let mut children = Vec::new();
        for (tag, count) in TAGS.into_iter().zip(subscribers) {
            for _ in 0..count {
                children.push(start(place.path(), port, tag)?);
            }
        }
        let message = |slot: usize| pool.part(slot * SIZE..(slot + 1) * SIZE).map(Message::of);
        let free = [
            (0..DEPTH).map(message).collect::<Result<_, _>>()?,
            (DEPTH..2 * DEPTH).map(message).collect::<Result<_, _>>()?,
        ];
        let lookups = TAGS.map(Lookup::new);
        let (served, lost, gone) = ([0; 2], 0, 0);
        let mut stage = Self {
            children,
            netio,
            socket,
            lookups,
            free,
            served,
            lost,
            gone,
            _pool: pool,
            _place: place,
        };
        let begin = Instant::now();
        for (tag, count) in TAGS.into_iter().zip(subscribers) {
            while stage.netio.subscriber_count(stage.socket, tag) < count {
                ensure!(begin.elapsed() < PATIENCE, "the subscribers don't come");
                stage.poll(PAUSE)?;
            }
        }
        Ok(stage)
    }

    /// What has happened.
    fn poll(&mut self, time: Duration) -> Result<()> {
        let mut wait = Wait::For(time);
        while let Some(event) = self.netio.poll(wait)? {
            match event {
                Event::Published { message, served, lost, .. } => {
                    let which = usize::from(message.parts()[0].range().start >= DEPTH * SIZE);
                    self.served[which] += u64::from(served);
                    self.lost += u64::from(lost);
                    self.free[which].push_back(message);
                }
                Event::SubscriberClosed { .. } => self.gone += 1,
                _ => {}
            }
            wait = Wait::No;
        }
        Ok(())
    }

    /// Publishes a message of a tag, if one is free and there is room.
    fn publish(&mut self, which: usize) -> Result<()> {
        let Some(message) = self.free[which].pop_front() else { return Ok(()) };
        match self.netio.publish_by(self.socket, &mut self.lookups[which], message) {
            Published::UnderWay => {}
            Published::Again(message) | Published::NoSubscribers(message) => {
                self.free[which].push_front(message);
            }
            Published::Partial(mut token) => {
                let begin = Instant::now();
                while let Published::Partial(rest) = self.netio.resume(token) {
                    token = rest;
                    self.poll(PAUSE)?;
                    ensure!(begin.elapsed() < PATIENCE, "a subscriber takes nothing");
                }
            }
            Published::Refused(error, _) => return Err(error.into()),
        }
        Ok(())
    }

    /// Publishes under both tags for a while; returns deliveries of each in a second.
    fn rates(&mut self, time: Duration) -> Result<[f64; 2]> {
        let (begin, before) = (Instant::now(), self.served);
        while begin.elapsed() < time {
            for _ in 0..16 {
                self.publish(0)?;
                self.publish(1)?;
            }
            self.poll(Duration::ZERO)?;
        }
        let seconds = begin.elapsed().as_secs_f64();
        Ok([0, 1].map(|which| (self.served[which] - before[which]) as f64 / seconds))
    }

    fn signal(&self, child: usize, signal: Signal) -> Result<()> {
        let id = Pid::from_child(&self.children[child].0);
        kill_process(id, signal).context("a signal")
    }
}

fn start(place: &Path, port: u16, tag: Tag) -> Result<Copier> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("child").arg(place).args([port.to_string(), tag.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(Copier(command.spawn()?))
}

/// A subscriber in a process: until its publisher has gone. Says how much of the processor it has used after its
/// subscription.
pub(crate) fn child(words: &[String]) -> Result<()> {
    let [place, port, tag] = words else { bail!("DIRECTORY PORT TAG are expected") };
    let mut netio = open(Path::new(place))?;
    let buffers = Buffers { count: DEPTH, size: SIZE };
    let options = SubscribeOptions::default().buffers(buffers);
    let socket = netio.subscribe_socket(HOST, port.parse()?, options);
    netio.subscribe(socket, tag.parse()?)?;
    let mut before = 0;
    loop {
        match netio.poll(Wait::For(PATIENCE))? {
            Some(Event::Subscribed { .. }) => before = processor_time(),
            Some(Event::Message { message, .. }) => drop(message),
            Some(Event::Closed { .. } | Event::Refused { .. }) => break,
            Some(_) => {}
            None => bail!("nothing comes"),
        }
    }
    println!("{}", processor_time() - before);
    Ok(())
}

/// One of eight is stopped, on a tag of its own: deliveries to the others before and after, in a second.
pub(crate) fn stopped() -> Result<()> {
    let mut stage = Stage::new([7, 1])?;
    stage.rates(TIME / 4)?;
    let before = stage.rates(TIME)?;
    stage.signal(7, Signal::STOP)?;
    stage.rates(TIME / 4)?;
    let after = stage.rates(TIME)?;
    stage.signal(7, Signal::CONT)?;
    ensure!(before[1] > 0.0 && after[1] == 0.0, "the other one was not stopped");
    ensure!(stage.lost == 0, "{} messages lost", stage.lost);
    println!("before {:.0} after {:.0}", before[0], after[0]);
    Ok(())
}

/// A subscriber is killed, often: nanoseconds until the publisher has the event.
pub(crate) fn killed() -> Result<()> {
    let mut took = Vec::new();
    for _ in 0..20 {
        let mut stage = Stage::new([2, 0])?;
        stage.rates(Duration::from_millis(50))?;
        let begin = Instant::now();
        stage.signal(0, Signal::KILL)?;
        while stage.gone == 0 {
            stage.publish(0)?;
            stage.poll(Duration::from_millis(1))?;
            ensure!(begin.elapsed() < PATIENCE, "the publisher doesn't learn of it");
        }
        took.push(begin.elapsed().as_nanos());
    }
    took.sort_unstable();
    println!("median {} longest {}", took[took.len() / 2], took[took.len() - 1]);
    Ok(())
}

/// A publisher and eight subscribers without messages: parts in a million of a processor that the publisher takes, and the
/// busiest subscriber.
pub(crate) fn idle() -> Result<()> {
    let mut stage = Stage::new([8, 0])?;
    stage.poll(Duration::from_millis(200))?;
    let (begin, before) = (Instant::now(), processor_time());
    while begin.elapsed() < 2 * TIME {
        stage.poll(2 * TIME)?;
    }
    let (publisher, time) = (processor_time() - before, begin.elapsed().as_nanos() as u64);
    stage.netio.close(stage.socket);
    let until = Instant::now() + PATIENCE;
    while stage.netio.counts().connections > 0 {
        ensure!(Instant::now() < until, "the subscribers don't end");
        stage.poll(PAUSE)?;
    }
    let mut most = 0;
    for child in &mut stage.children {
        most = most.max(child.end(until)?.trim().parse::<u64>()?);
    }
    let millionths = |used: u64| used * 1_000_000 / time;
    println!("publisher {} subscriber {}", millionths(publisher), millionths(most));
    Ok(())
}
