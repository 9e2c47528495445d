//! `efa netio publish`: an input under a tag, to all who have subscribed.

use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use efa_netio::{
    ClosedReason, Completion, Event, Message, Netio, PublishOptions, PublishSocket, Published,
    Slow, SubscriberCounts, Tag, Wait, WhenFull,
};

use super::input::{Feed, InputArgs, Next, Repeat};
use super::place::{self, LinkArgs, Side, Site};
use super::statistics::Statistics;
use super::totals::{Counter, PublisherTotals};
use super::{NetioError, interrupt_of};
use crate::capture::CaptureFile;
use crate::interrupt::Interrupt;

/// Arguments of `efa netio publish`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Where it listens is said on standard error; with port 0 the system chooses one. When all subscribers have \
everything, their connections are ended, and so are they, with success. A message is counted as delivered when it is \
in the subscriber's buffer. Behind one that is too long for that, the subscriber drops those that reach it, and tells how \
many it got. The totals say \"at most\", and \"exact\":false in JSON, if one of another version doesn't tell. With --json \
the lines of --statistics are objects with a list \"statistics\".

Ctrl-C or SIGTERM ends it with its totals. Messages under way may be lost then, and subscribers see that it is not the end of \
the input. With --repeat without N a signal is an end in order: what is under way still arrives, and the exit code is 0.

  efa netio publish 127.0.0.1:7000 --tag 23 FILE
  seq 1000 | efa netio publish 127.0.0.1:7000 --tag 0x17 --lines --rate 100 --wait-for 2

On two hosts:
  here$  efa netio publish HERE:7000 --link tcp --tag 23 FILE
  there$ efa netio subscribe HERE:7000 --link tcp --tag 23 --output COPY

Exit codes: 0 all has arrived, 1 failure, 2 invalid command line, 3 cannot listen there, 4 messages were lost or a \
subscriber was gone before the end, 130 interrupted by Ctrl-C, 143 by SIGTERM.")]
pub(super) struct Args {
    /// Where to listen for subscribers
    #[arg(value_name = "HOST:PORT")]
    site: Site,
    /// The tag, such as 23 or 0x17
    #[arg(long, value_name = "T", value_parser = place::tag)]
    tag: Tag,
    #[command(flatten)]
    input: InputArgs,
    /// Subscribers to wait for before the first message
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = RangedU64ValueParser::<u64>::new().range(0..=4096))]
    wait_for: u64,
    /// Publish FILE so many times; without N, until the last subscriber leaves
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true,
        value_parser = place::count)]
    repeat: Option<Option<u64>>,
    /// Disconnect a subscriber who takes nothing for so long [default: it is waited for]
    #[arg(long, value_name = "SECONDS", value_parser = place::seconds)]
    slow: Option<Duration>,
    /// Print for each subscriber how many messages were sent, delivered, lost, and are queued: at the end, and every so many
    /// SECONDS
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
        value_parser = place::seconds)]
    statistics: Option<Option<Duration>>,
    #[command(flatten)]
    pub(super) link: LinkArgs,
}

impl Args {
    pub(super) fn conflict(&self) -> Option<String> {
        if self.repeat.is_some() && self.input.file().is_none() {
            return Some("--repeat needs a FILE: standard input can be read once".into());
        }
        if self.repeat == Some(None) && self.wait_for == 0 {
            return Some("--repeat without a number needs --wait-for 1 or more".into());
        }
        if self.slow == Some(Duration::ZERO) {
            return Some("--slow needs more than 0 seconds".into());
        }
        if self.statistics == Some(Some(Duration::ZERO)) {
            return Some("--statistics needs more than 0 seconds".into());
        }
        self.link.conflict_at(&self.site)
    }

    fn times(&self) -> Repeat {
        match self.repeat {
            None => Repeat::Times(1),
            Some(None) => Repeat::Forever,
            Some(Some(times)) => Repeat::Times(times),
        }
    }
}

/// Runs the command.
pub(super) fn run(args: &Args, capture: Option<&CaptureFile>) -> Result<(), NetioError> {
    let mut netio = args.link.open(Side::Listens(&args.site), capture)?;
    let feed = args.input.open(&netio, args.times())?;
    let options = PublishOptions::default()
        .outstanding(feed.places())
        .completion(Completion::Delivered)
        .when_full(WhenFull::Resume)
        .slow(args.slow.map_or(Slow::Wait, Slow::Disconnect));
    let socket = netio.publish_socket(feed.pool(), options)?;
    netio.publish_at(socket, &args.site.host, args.site.port)?;
    let (address, early) = place::listens(&mut netio, socket.into(), &args.site)?;
    let interrupt = interrupt_of(&netio)?;
    place::announce(address);
    let (counter, audience) = (Counter::new(feed.whole()), Audience::default());
    let every = args.statistics;
    let statistics = every.map(|every| Statistics::new(&mut netio, every, args.link.json));
    let is_heard = false;
    let mut run =
        Run { args, netio, socket, feed, interrupt, counter, audience, statistics, is_heard };
    early.into_iter().try_for_each(|event| run.event(event))?;
    run.run()
}

struct Run<'a> {
    args: &'a Args,
    netio: Netio,
    socket: PublishSocket,
    feed: Feed,
    interrupt: Interrupt,
    counter: Counter,
    audience: Audience,
    statistics: Option<Statistics>,
    /// As many subscribers as asked for have come.
    is_heard: bool,
}

/// Who listens, and what they got.
#[derive(Default)]
pub(super) struct Audience {
    totals: PublisherTotals,
    here: u64,
    messages_lost: u64,
    last_lost: Option<ClosedReason>,
    /// Messages that were delivered to subscribers that are gone, and lost, by the account of each.
    accounts: Deliveries,
    cut_off: CutOff,
}

/// Messages, each at one subscriber.
#[derive(Clone, Copy, Default)]
struct Deliveries {
    delivered: u64,
    lost: u64,
}

impl Deliveries {
    fn add(&mut self, counts: &SubscriberCounts) {
        self.delivered += counts.delivered;
        self.lost += counts.lost;
    }
}

/// Whether a message was too long for a subscriber, which dropped those behind it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum CutOff {
    #[default]
    No,
    /// The subscribers told how many they got, so that the accounts are right. Completions are not.
    Told,
    /// One didn't tell.
    Untold,
}

impl Audience {
    /// Counts. Returns a message that has completed.
    pub(super) fn event(&mut self, event: Event) -> Option<Message> {
        match event {
            Event::SubscriberConnected { peer, .. } => {
                tracing::info!(%peer, "a subscriber is connected");
                self.totals.subscribers += 1;
                self.here += 1;
            }
            Event::SubscriberClosed { reason, counts, .. } => {
                tracing::info!(peer = %counts.peer, %reason, "a subscriber is gone");
                self.here = self.here.saturating_sub(1);
                let in_order =
                    matches!(reason, ClosedReason::Disconnected | ClosedReason::DisconnectedByPeer);
                self.accounts.add(&counts);
                if let ClosedReason::TooLong { lost, .. } = reason {
                    self.cut_off = match (self.cut_off, lost) {
                        (CutOff::Untold, _) | (_, None) => CutOff::Untold,
                        (_, Some(_)) => CutOff::Told,
                    };
                }
                if !in_order {
                    self.totals.subscribers_lost += 1;
                    self.last_lost = Some(reason);
                }
            }
            Event::CallerRefused { from, reason, .. } => place::warn_of_refused(from, &reason),
            Event::Published { message, served, lost, .. } => {
                self.totals.served += u64::from(served);
                self.messages_lost += u64::from(lost);
                return Some(message);
            }
            _ => {}
        }
        None
    }

    /// Subscribers that are connected.
    pub(super) fn here(&self) -> u64 {
        self.here
    }

    /// Messages that didn't arrive, each at one subscriber.
    pub(super) fn lost(&self) -> u64 {
        self.messages_lost
    }

    /// What was delivered and lost, as well as it is known in the end; `left` are the subscribers that are not gone.
    fn settle(&mut self, left: impl Iterator<Item = SubscriberCounts>) {
        if self.cut_off == CutOff::Told {
            left.for_each(|counts| self.accounts.add(&counts));
            (self.totals.served, self.messages_lost) =
                (self.accounts.delivered, self.accounts.lost);
        }
    }

    /// Whether something was lost.
    pub(super) fn check(self) -> Result<(), NetioError> {
        match (self.messages_lost, self.totals.subscribers_lost) {
            (0, 0) => Ok(()),
            (messages, subscribers) => {
                Err(NetioError::Lost { messages, subscribers, last: self.last_lost })
            }
        }
    }
}

impl Run<'_> {
    fn run(mut self) -> Result<(), NetioError> {
        let result = self.publish_all().and_then(|()| self.end());
        let is_complete = result.is_ok();
        let (netio, socket) = (&self.netio, self.socket);
        let statistics = self.statistics.map(|statistics| statistics.end(netio, socket));
        let mut audience = self.audience;
        audience.settle(netio.subscribers(socket));
        let is_whole = audience.messages_lost == 0 && audience.totals.subscribers_lost == 0;
        let mut totals = self.counter.totals(is_complete && is_whole);
        totals.lost = audience.messages_lost;
        totals.exact = audience.cut_off != CutOff::Untold;
        totals.publisher = Some(audience.totals.clone());
        totals.statistics = statistics;
        totals.print(self.args.link.json)?;
        result.and_then(|()| audience.check())
    }

    /// Ends in order, which tells the subscribers that they have everything. After a failure this is left out, so
    /// that they see a loss.
    fn end(&mut self) -> Result<(), NetioError> {
        self.netio.close(self.socket);
        while self.audience.here() > 0 {
            if let Some(event) = self.netio.poll(Wait::Forever)? {
                self.event(event)?;
            }
            self.interrupt.take()?;
        }
        Ok(())
    }

    fn publish_all(&mut self) -> Result<(), NetioError> {
        let mut held: Option<Message> = None;
        loop {
            let count = self.netio.subscriber_count(self.socket, self.args.tag) as u64;
            self.is_heard |= count >= self.args.wait_for;
            if self.is_heard && count == 0 && self.args.repeat == Some(None) {
                self.feed.stop();
                held = None;
            }
            let mut wait = Wait::Forever;
            if self.is_heard {
                let next = match held.take() {
                    Some(message) => Next::Message(message),
                    None => self.feed.next()?,
                };
                match next {
                    Next::Message(message) => {
                        held = self.publish(message)?;
                        // With a message in hand, only room for it is worth waking for.
                        wait = if held.is_some() { Wait::Forever } else { Wait::No };
                    }
                    Next::Later(left) => wait = Wait::For(left),
                    Next::Nothing => {}
                    Next::End if self.feed.is_over() => return Ok(()),
                    Next::End => {}
                }
            }
            if let Some(event) = self.netio.poll(wait)? {
                self.event(event)?;
            }
            match self.interrupt.take() {
                // Input that repeats without end has no last message: a signal is an end in order.
                Err(_) if self.args.repeat == Some(None) => return Ok(()),
                result => result?,
            }
        }
    }

    fn event(&mut self, event: Event) -> Result<(), NetioError> {
        self.note(&event)?;
        if let Some(message) = self.audience.event(event) {
            self.counter.add(message.len());
            self.feed.complete(message.key);
        }
        Ok(())
    }

    fn note(&mut self, event: &Event) -> Result<(), NetioError> {
        let Some(statistics) = &mut self.statistics else { return Ok(()) };
        Ok(statistics.event(event, &self.netio, self.socket)?)
    }

    /// Publishes a message; returns it if there is no room now.
    fn publish(&mut self, message: Message) -> Result<Option<Message>, NetioError> {
        self.counter.begin();
        match self.netio.publish(self.socket, self.args.tag, message) {
            // Partial doesn't come: the context goes on by itself.
            Published::UnderWay | Published::Partial(_) => Ok(None),
            Published::NoSubscribers(message) => {
                self.audience.totals.unheard += 1;
                self.counter.add(message.len());
                self.feed.complete(message.key);
                Ok(None)
            }
            Published::Again(message) => Ok(Some(message)),
            Published::Refused(error, _) => Err(error.into()),
        }
    }
}
