//! `efa netio subscribe`: what is published under tags, into a file or onto standard output.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use efa_netio::{
    Buffers, ClosedReason, Event, Netio, RefusedReason, SubscribeOptions, SubscribeSocket, Tag,
    Wait,
};

use super::output::{Format, Sink};
use super::place::{self, LinkArgs, Side, Site};
use super::totals::Counter;
use super::{NetioError, Peer, interrupt_of};
use crate::capture::CaptureFile;
use crate::interrupt::Interrupt;

/// Pause before a refused connection is tried again.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// Arguments of `efa netio subscribe`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Messages of all tags are written in the order of their arrival. It ends when the publisher ends, or after --count \
messages.

  efa netio subscribe 127.0.0.1:7000 --tag 23 --output COPY
  efa netio subscribe 127.0.0.1:7000 --tag 0x17 --tag 0x18 --count 10 --hex

--hex prints a line for each message: tag, length and bytes. --json prints an object for each, and in the end one with \
the totals; with --output or --discard that one alone.

Ctrl-C or SIGTERM ends it with its totals. They have the messages that are wholly in the file of --output.

Exit codes: 0 all was received, 1 failure, 2 invalid command line, 3 refused: cannot connect, or too many tags, 4 the \
publisher was gone before the end, or ended before --count messages, 130 interrupted by Ctrl-C, 143 by SIGTERM.")]
pub(super) struct Args {
    /// Where the publisher listens
    #[arg(value_name = "HOST:PORT")]
    site: Site,
    /// A tag to subscribe to, such as 23 or 0x17; may be given several times
    #[arg(long = "tag", value_name = "T", required = true, value_parser = place::tag)]
    tags: Vec<Tag>,
    /// End after so many messages
    #[arg(long, value_name = "N", value_parser = place::count)]
    count: Option<u64>,
    /// Write the messages into a file [default: standard output]
    #[arg(long, value_name = "FILE", group = "sink")]
    output: Option<PathBuf>,
    /// Print the messages in hexadecimal, a line each
    #[arg(long, group = "sink", conflicts_with = "json")]
    hex: bool,
    /// Only count the messages
    #[arg(long, group = "sink")]
    discard: bool,
    #[command(flatten)]
    receiving: ReceivingArgs,
    /// While nobody listens there, try again for so long
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = place::seconds)]
    retry: Duration,
    #[command(flatten)]
    pub(super) link: LinkArgs,
}

/// Options of buffers.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct ReceivingArgs {
    /// Bytes of the longest message that can be received
    #[arg(long, value_name = "N", default_value = "1M", value_parser = place::length)]
    message_size: usize,
}

impl ReceivingArgs {
    /// Buffers of 64 MiB in all, as far as their number allows.
    pub(super) fn buffers(self) -> Buffers {
        let size = self.message_size;
        Buffers { count: ((64 << 20) / size).clamp(4, 256), size }
    }
}

impl Args {
    pub(super) fn conflict(&self) -> Option<String> {
        self.link.conflict()
    }

    fn sink(&self) -> Result<Sink, NetioError> {
        let format = match (self.link.json, self.hex) {
            (true, _) => Format::Json,
            (false, true) => Format::Hex,
            (false, false) => Format::Bytes,
        };
        if self.discard { Ok(Sink::Nowhere) } else { Sink::new(self.output.as_deref(), format) }
    }
}

/// Attempts to connect.
pub(super) struct Attempts {
    until: Instant,
}

impl Attempts {
    /// For so long from now on.
    pub(super) fn new(retry: Duration) -> Self {
        Self { until: Instant::now() + retry }
    }

    /// Waits before the next attempt, or returns why there is none.
    pub(super) fn again(&self, site: &Site, reason: RefusedReason) -> Result<(), NetioError> {
        // A rejection or an unknown host stays one.
        let may_come = matches!(&reason, RefusedReason::Connect(_));
        if !may_come || Instant::now() >= self.until {
            return Err(NetioError::Connect { site: site.clone(), source: reason });
        }
        tracing::debug!(%site, %reason, "trying again");
        std::thread::sleep(PAUSE);
        Ok(())
    }
}

/// Runs the command.
pub(super) fn run(args: &Args, capture: Option<&CaptureFile>) -> Result<(), NetioError> {
    let sink = args.sink()?;
    let mut netio = args.link.open(Side::Connects(&args.site), capture)?;
    let options = SubscribeOptions::default().buffers(args.receiving.buffers());
    let socket = netio.subscribe_socket(&args.site.host, args.site.port, options);
    for tag in &args.tags {
        netio.subscribe(socket, *tag)?;
    }
    let interrupt = interrupt_of(&netio)?;
    let attempts = Attempts::new(args.retry);
    let mut counter = Counter::new(None);
    if sink.is_stdout() {
        counter = counter.hide_on_terminal();
    }
    let mut run =
        Run { args, netio, socket, sink, interrupt, counter, attempts, is_leaving: false };
    let received = run.receive_all();
    let result = run.sink.end(received);
    run.counter.remove(run.sink.unwritten());
    if !matches!(result, Err(NetioError::Connect { .. })) {
        run.counter.totals(result.is_ok()).print(args.link.json)?;
    }
    result
}

struct Run<'a> {
    args: &'a Args,
    netio: Netio,
    socket: SubscribeSocket,
    sink: Sink,
    interrupt: Interrupt,
    counter: Counter,
    attempts: Attempts,
    is_leaving: bool,
}

impl Run<'_> {
    fn receive_all(&mut self) -> Result<(), NetioError> {
        loop {
            self.interrupt.take()?;
            let event = match self.netio.poll(Wait::No)? {
                Some(event) => event,
                None => {
                    // Nothing comes at once: whoever reads the output gets it.
                    if !self.sink.flush()? {
                        self.leave()?;
                    }
                    let Some(event) = self.netio.poll(Wait::Forever)? else { continue };
                    event
                }
            };
            match event {
                Event::Message { tag, message, .. } if !self.is_leaving => {
                    self.counter.add(message.len());
                    let is_read = self.sink.put(tag, &message)?;
                    if !is_read || self.args.count == Some(self.counter.messages()) {
                        self.leave()?;
                    }
                }
                Event::Refused { reason, .. } => {
                    self.attempts.again(&self.args.site, reason)?;
                    self.netio.reconnect(self.socket)?;
                }
                Event::SubscriptionRefused { tag, .. } => {
                    return Err(NetioError::Subscription { tag });
                }
                Event::Closed { reason, .. } => return self.closed(reason),
                _ => {}
            }
        }
    }

    /// Ends the subscriptions, so that the publisher loses nobody.
    fn leave(&mut self) -> Result<(), NetioError> {
        self.is_leaving = true;
        for tag in &self.args.tags {
            self.netio.unsubscribe(self.socket, *tag)?;
        }
        Ok(())
    }

    fn closed(&self, reason: ClosedReason) -> Result<(), NetioError> {
        let received = self.counter.messages();
        match (reason, self.args.count) {
            // It has what was asked for.
            _ if self.is_leaving => Ok(()),
            (ClosedReason::DisconnectedByPeer, None) => Ok(()),
            (ClosedReason::DisconnectedByPeer, Some(wanted)) => {
                Err(NetioError::TooFew { received, wanted })
            }
            (reason, _) => Err(NetioError::PeerLost { peer: Peer::Publisher, reason }),
        }
    }
}
