//! `efa netio send`: an input to one receiver.

use std::time::Duration;

use efa_netio::{
    ClosedReason, Completion, Event, Message, Netio, SendOptions, SendSocket, Sent, Wait,
};

use super::input::{Feed, InputArgs, Next, Repeat};
use super::place::{self, LinkArgs, Side, Site};
use super::subscribe::Attempts;
use super::totals::{Counter, Unsent};
use super::{NetioError, Peer, interrupt_of};
use crate::capture::CaptureFile;
use crate::interrupt::Interrupt;

/// Arguments of `efa netio send`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A message counts as sent when it is in the receiver's buffer. After one that is too long for that, those behind it count \
too if they reached the receiver, which drops them; the totals then say \"at most\", and \"exact\":false in JSON.

  efa netio receive 127.0.0.1:7000 --output COPY &
  efa netio send 127.0.0.1:7000 --retry 5 FILE

If it ends early, its totals say how many messages of the input were not sent; of --lines and of an input that is no file \
that is unknown (\"unsent\":null in JSON) before it was read to its end.

Ctrl-C or SIGTERM ends it with its totals. Messages under way may be lost then, and the receiver sees that it is not the \
end of the input.

Exit codes: 0 all has arrived, 1 failure, 2 invalid command line, 3 cannot connect, 4 messages were lost or the \
receiver was gone before the end, 130 interrupted by Ctrl-C, 143 by SIGTERM.")]
pub(super) struct Args {
    /// Where the receiver listens
    #[arg(value_name = "HOST:PORT")]
    site: Site,
    #[command(flatten)]
    input: InputArgs,
    /// While nobody listens there, try again for so long
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = place::seconds)]
    retry: Duration,
    #[command(flatten)]
    pub(super) link: LinkArgs,
}

impl Args {
    pub(super) fn conflict(&self) -> Option<String> {
        self.link.conflict()
    }
}

/// Runs the command.
pub(super) fn run(args: &Args, capture: Option<&CaptureFile>) -> Result<(), NetioError> {
    let mut netio = args.link.open(Side::Connects(&args.site), capture)?;
    let feed = args.input.open(&netio, Repeat::Times(1))?;
    let socket = netio.send_socket(SendOptions::default().completion(Completion::Delivered));
    netio.connect(socket, &args.site.host, args.site.port)?;
    let interrupt = interrupt_of(&netio)?;
    let counter = Counter::new(feed.whole());
    let attempts = Attempts::new(args.retry);
    let (is_connected, is_held, lost) = (false, false, 0);
    let mut run = Run {
        args,
        netio,
        socket,
        feed,
        interrupt,
        counter,
        attempts,
        is_connected,
        is_held,
        lost,
    };
    let result = run.send_all();
    if !matches!(result, Err(NetioError::Connect { .. })) {
        let mut totals = run.counter.totals(result.is_ok());
        totals.lost = run.lost;
        totals.unsent = Some(Unsent(run.feed.left().map(|left| left + u64::from(run.is_held))));
        totals.exact = !matches!(
            result,
            Err(NetioError::PeerLost { reason: ClosedReason::TooLong { .. }, .. })
        );
        totals.print(args.link.json)?;
    }
    result
}

struct Run<'a> {
    args: &'a Args,
    netio: Netio,
    socket: SendSocket,
    feed: Feed,
    interrupt: Interrupt,
    counter: Counter,
    attempts: Attempts,
    is_connected: bool,
    /// A message of the input waits to be sent.
    is_held: bool,
    lost: u64,
}

impl Run<'_> {
    fn send_all(&mut self) -> Result<(), NetioError> {
        let mut held: Option<Message> = None;
        let mut failed = None;
        let mut is_ending = false;
        loop {
            self.interrupt.take()?;
            let mut wait = Wait::Forever;
            if self.is_connected && !is_ending && failed.is_none() {
                let next = match held.take() {
                    Some(message) => Next::Message(message),
                    None => self.feed.next()?,
                };
                match next {
                    Next::Message(message) => {
                        held = self.send(message)?;
                        self.is_held = held.is_some();
                        wait = if held.is_some() { Wait::Forever } else { Wait::No };
                    }
                    Next::Later(left) => wait = Wait::For(left),
                    Next::Nothing => {}
                    Next::End if self.feed.is_over() => {
                        is_ending = true;
                        // It fails only if the connection ends already, which an event tells.
                        let _ = self.netio.disconnect(self.socket);
                    }
                    Next::End => {}
                }
            }
            match self.netio.poll(wait)? {
                Some(Event::Connected(_)) => self.is_connected = true,
                Some(Event::Refused { reason, .. }) => {
                    self.attempts.again(&self.args.site, reason)?;
                    self.netio.connect(self.socket, &self.args.site.host, self.args.site.port)?;
                }
                Some(Event::SendCompleted { message, result: Ok(()), .. }) => {
                    self.counter.add(message.len());
                    self.feed.complete(message.key);
                }
                Some(Event::SendCompleted { result: Err(error), .. }) => {
                    self.lost += 1;
                    failed.get_or_insert(error);
                }
                Some(Event::Closed { reason, .. }) => {
                    return match (reason, failed) {
                        (ClosedReason::Disconnected, None) if is_ending => Ok(()),
                        (ClosedReason::Disconnected, Some(error)) => {
                            Err(NetioError::NotSent(error))
                        }
                        (reason, _) => Err(NetioError::PeerLost { peer: Peer::Receiver, reason }),
                    };
                }
                _ => {}
            }
        }
    }

    /// Sends a message; returns it if there is no room now, or no connection any more.
    fn send(&mut self, message: Message) -> Result<Option<Message>, NetioError> {
        self.counter.begin();
        match self.netio.send(self.socket, message) {
            Sent::Accepted => Ok(None),
            Sent::Again(message) => Ok(Some(message)),
            Sent::Refused(efa_netio::SendError::Message(error), _) => {
                Err(NetioError::Send(error.into()))
            }
            // The event that says why is to come.
            Sent::Refused(error, message) => {
                tracing::debug!(%error, "not sent");
                Ok(Some(message))
            }
        }
    }
}
