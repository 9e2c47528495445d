//! `efa netio bench`: a publisher here, and processes of `efa netio subscribe`.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::builder::RangedU64ValueParser;
use efa_netio::{
    Completion, Message, Netio, Options, PublishOptions, PublishSocket, Published, Tag, Wait,
    WhenFull,
};
use serde::Serialize;

use super::place::{self, LinkArgs, Side, Site};
use super::publish::Audience;
use super::{NetioError, interrupt_of};
use crate::capture::CaptureFile;
use crate::child::read_aside;
use crate::interrupt::Interrupt;
use crate::output;
use crate::pingpong::readable_size;

/// The tag of the messages.
const TAG: Tag = 1;
/// Bytes of all messages under way, but for their least number.
const MEMORY: usize = 32 << 20;
/// How long subscribers may take to come, and to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two looks at whether they have.
const PAUSE: Duration = Duration::from_millis(5);

/// Arguments of `efa netio bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A message counts once for each subscriber that received it. The time is that from the first message until all \
subscribers have all.

  efa netio bench --size 64K --subscribers 4 --seconds 3

Ctrl-C or SIGTERM ends the measurement early, with its result so far.

Exit codes: 0 success, 1 failure, 2 invalid command line, 3 cannot listen on this host, 4 a subscriber failed, 130 \
interrupted by Ctrl-C, 143 by SIGTERM.")]
pub(super) struct Args {
    /// Subscribers, each a process
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = RangedU64ValueParser::<u64>::new().range(1..=256))]
    subscribers: u64,
    /// Bytes of a message
    #[arg(long, value_name = "N", default_value = "64K", value_parser = place::length)]
    size: usize,
    /// From how many bytes on subscribers read messages from the publisher's memory; shorter ones go in packets
    #[arg(long, value_name = "N", default_value = "32K", value_parser = place::length)]
    read_threshold: usize,
    /// How long to publish
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = place::seconds)]
    seconds: Duration,
    #[command(flatten)]
    pub(super) link: LinkArgs,
}

/// The result.
#[derive(Debug, Serialize)]
struct Report {
    size: usize,
    subscribers: u64,
    /// Messages received, by all subscribers.
    messages: u64,
    bytes: u64,
    seconds: f64,
    lost: u64,
    messages_per_second: f64,
    /// 10⁹ bytes.
    gigabytes_per_second: f64,
}

impl Args {
    pub(super) fn conflict(&self) -> Option<String> {
        if self.seconds.is_zero() {
            return Some("--seconds needs more than 0 seconds".into());
        }
        self.link.conflict()
    }
}

/// Runs the command.
pub(super) fn run(args: &Args, capture: Option<&CaptureFile>) -> Result<(), NetioError> {
    let site = Site { host: "127.0.0.1".to_owned(), port: 0 };
    let threshold = args.read_threshold as u64;
    let options = Options::default().with(|options| options.read_threshold = threshold);
    let mut netio = args.link.open_with(Side::Listens(&site), options, capture)?;
    let places = (MEMORY / args.size).clamp(2, 512);
    let pool = netio.allocate(places * args.size)?;
    let options = PublishOptions::default()
        .outstanding(places)
        .completion(Completion::MemoryFree)
        .when_full(WhenFull::Resume);
    let socket = netio.publish_socket(&pool, options)?;
    netio.publish_at(socket, &site.host, site.port)?;
    // Nobody else knows the address yet.
    let (address, _) = place::listens(&mut netio, socket.into(), &site)?;
    let interrupt = interrupt_of(&netio)?;
    let start = || Subscriber::start(args, &address.to_string());
    let mut subscribers = (0..args.subscribers).map(|_| start()).collect::<Result<Vec<_>, _>>()?;
    let mut audience = Audience::default();
    wait_for(args, &mut netio, socket, &interrupt, &mut audience, &mut subscribers)?;

    let parts = (0..places).map(|place| pool.part(place * args.size..(place + 1) * args.size));
    let parts = parts.collect::<Result<Vec<_>, _>>().map_err(efa_netio::Error::from)?;
    let mut free: Vec<_> = parts.into_iter().map(Message::of).collect();
    let begin = Instant::now();
    let mut interrupted = Ok(());
    while interrupted.is_ok()
        && begin.elapsed() < args.seconds
        && audience.here() == args.subscribers
    {
        while let Some(message) = free.pop() {
            match netio.publish(socket, TAG, message) {
                Published::UnderWay | Published::Partial(_) => {}
                Published::Again(message) | Published::NoSubscribers(message) => {
                    free.push(message);
                    break;
                }
                Published::Refused(error, _) => return Err(error.into()),
            }
        }
        let mut wait = Wait::For(PAUSE);
        while let Some(event) = netio.poll(wait)? {
            free.extend(audience.event(event));
            wait = Wait::No;
        }
        interrupted = interrupt.take();
    }
    netio.close(socket);
    let closing = Instant::now();
    while audience.here() > 0 {
        late(closing, "gone")?;
        interrupt.take()?;
        let event = netio.poll(Wait::For(PAUSE))?;
        event.into_iter().for_each(|event| drop(audience.event(event)));
    }
    let time = begin.elapsed();
    let messages = subscribers.iter_mut().map(Subscriber::end).sum::<Result<u64, _>>()?;
    let lost = audience.lost();
    let bytes = messages * args.size as u64;
    let seconds = time.as_secs_f64();
    let report = Report {
        size: args.size,
        subscribers: args.subscribers,
        messages,
        bytes,
        seconds,
        lost,
        messages_per_second: messages as f64 / seconds,
        gigabytes_per_second: bytes as f64 / seconds / 1e9,
    };
    report.print(args.link.json)?;
    interrupted?;
    audience.check()
}

/// Waits until all have subscribed.
fn wait_for(
    args: &Args,
    netio: &mut Netio,
    socket: PublishSocket,
    interrupt: &Interrupt,
    audience: &mut Audience,
    subscribers: &mut [Subscriber],
) -> Result<(), NetioError> {
    let begin = Instant::now();
    while netio.subscriber_count(socket, TAG) < subscribers.len() {
        late(begin, "there")?;
        interrupt.take()?;
        for subscriber in &mut *subscribers {
            subscriber.is_running()?;
        }
        let event = netio.poll(Wait::For(PAUSE))?;
        event.into_iter().for_each(|event| drop(audience.event(event)));
    }
    tracing::info!(subscribers = args.subscribers, "all have subscribed");
    Ok(())
}

/// Fails if it has taken too long since then.
fn late(since: Instant, what: &'static str) -> Result<(), NetioError> {
    match since.elapsed() < PATIENCE {
        true => Ok(()),
        false => Err(NetioError::SubscribersLate { what, seconds: PATIENCE.as_secs() }),
    }
}

impl Report {
    fn print(&self, json: bool) -> io::Result<()> {
        let text = if json {
            serde_json::to_string(self)?
        } else {
            let Self { size, subscribers, messages, seconds, lost, .. } = self;
            format!(
                "{} to {subscribers} subscribers: {messages} messages in {seconds:.3} s, {:.0} messages/s, {:.3} \
                 GB/s, {lost} lost",
                readable_size(*size as u64),
                self.messages_per_second,
                self.gigabytes_per_second,
            )
        };
        output::tolerate_closed(writeln!(io::stdout(), "{text}"))
    }
}

/// A process that subscribes; killed and reaped when dropped.
struct Subscriber {
    child: Child,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl Subscriber {
    fn start(args: &Args, address: &str) -> Result<Self, NetioError> {
        let start = || {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["netio", "subscribe", address, "--discard", "--json"]);
            command.args(["--tag", &TAG.to_string(), "--message-size", &args.size.to_string()]);
            command.args(args.link.for_child());
            // Of a process group of its own: Ctrl-C ends the publisher, and then it ends as well.
            command.process_group(0).stdin(Stdio::null());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        let child = start().map_err(NetioError::Subscriber)?;
        // Ended by this if a thread doesn't start.
        let mut started = Self { child, stdout: None, stderr: None };
        let (stdout, stderr) = (started.child.stdout.take(), started.child.stderr.take());
        started.stdout = Some(read_aside(stdout).map_err(NetioError::Thread)?);
        started.stderr = Some(read_aside(stderr).map_err(NetioError::Thread)?);
        Ok(started)
    }

    /// Fails if it has ended.
    fn is_running(&mut self) -> Result<(), NetioError> {
        match self.child.try_wait().map_err(NetioError::Subscriber)? {
            None => Ok(()),
            Some(status) => {
                Err(NetioError::SubscriberFailed { status, said: text(&mut self.stderr) })
            }
        }
    }

    /// Waits for its end; returns how many messages it received.
    fn end(&mut self) -> Result<u64, NetioError> {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().map_err(NetioError::Subscriber)? {
                break status;
            }
            late(begin, "at their end")?;
            thread::sleep(PAUSE);
        };
        let totals: Option<serde_json::Value> = serde_json::from_str(&text(&mut self.stdout)).ok();
        match totals.as_ref().and_then(|totals| totals["messages"].as_u64()) {
            Some(messages) if status.success() => Ok(messages),
            _ => Err(NetioError::SubscriberFailed { status, said: text(&mut self.stderr) }),
        }
    }
}

/// What a process that has ended has printed.
fn text(printed: &mut Option<JoinHandle<Vec<u8>>>) -> String {
    let bytes = printed.take().and_then(|reader| reader.join().ok()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        // Both fail only if the child is reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
