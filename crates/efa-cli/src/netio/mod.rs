//! `efa netio`: messages by `efa-netio`, from files and into files.
//!
//! ```text
//!   publish ── tag ──► subscribe, subscribe, …        send ──► receive
//!   bench: a publisher, and processes of `subscribe` that it starts
//! ```
//!
//! * `place`: where the other side is, and the device to reach it
//! * `input`, `output`: files as messages, and messages into files
//! * `totals`, `statistics`: what a run has done, and what became of the messages of each subscriber
//! * `publish`, `subscribe`, `send`, `receive`, `bench`: a command each
//!
//! A side that has given everything ends its connections in order, which tells the other side that there is no more.
//! A connection that ends otherwise is a loss.

mod bench;
mod input;
mod output;
mod place;
mod publish;
mod receive;
mod send;
mod statistics;
mod subscribe;
mod totals;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use clap::Subcommand;
use efa::{ConnectError, OperationError, Shortage};
use efa_netio::{ClosedReason, Netio, NoThread, RefusedReason, SendError, SocketError, Tag};

use self::place::{LinkArgs, Site};
use crate::capture::{CaptureFailed, CaptureFile};
use crate::interrupt::{CatchError, Interrupt, Interrupted};

/// Arguments of `efa netio`.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_subcommand = true,
    after_help = "\
A file reaches two subscribers, by shared memory:
  efa netio publish 127.0.0.1:7000 --tag 23 --wait-for 2 FILE &
  efa netio subscribe 127.0.0.1:7000 --tag 23 --retry 5 --output COPY1 &
  efa netio subscribe 127.0.0.1:7000 --tag 23 --retry 5 --output COPY2; wait

Exit codes:
  0  everything was sent, or received, up to its end
  1  failure, of a file or the device
  2  invalid command line
  3  refused: cannot connect, or cannot listen there
  4  lost: messages didn't arrive, or the other side was gone before the end
  130, 143  interrupted by Ctrl-C, by SIGTERM"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Publish a file or standard input under a tag, as messages
    Publish(publish::Args),
    /// Receive what is published under tags
    Subscribe(subscribe::Args),
    /// Send a file or standard input to one receiver
    Send(send::Args),
    /// Receive what one sender sends
    Receive(receive::Args),
    /// Measure how fast messages reach subscribers in processes of their own
    Bench(bench::Args),
}

/// Why a run has failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetioError {
    /// The device can't be opened.
    #[error("cannot open the device")]
    Device(#[source] efa::Error),
    /// There is no context, memory or socket.
    #[error("cannot communicate over the device")]
    Context(#[from] efa_netio::Error),
    /// A socket is not as it should be.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A message can't be sent.
    #[error("cannot send a message")]
    Send(#[from] SendError),
    /// The input can't be read.
    #[error("cannot read {name}")]
    Input {
        /// The file.
        name: String,
        /// The reason.
        source: io::Error,
    },
    /// A file can't be written.
    #[error("cannot write {}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The result can't be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
    /// The capture can't be written.
    #[error(transparent)]
    Capture(#[from] CaptureFailed),
    /// A subscriber's process can't be started or watched.
    #[error("cannot run a subscriber")]
    Subscriber(#[source] io::Error),
    /// A thread can't be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// Signals can't be caught.
    #[error(transparent)]
    Signals(#[from] CatchError),
    /// A signal came before the end of the input.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),

    /// The name of a host can't be resolved.
    #[error("cannot resolve {site}")]
    Resolve {
        /// The host.
        site: Site,
        /// The reason.
        source: io::Error,
    },
    /// Nothing can listen there.
    #[error("cannot listen at {site}")]
    Listen {
        /// The place.
        site: Site,
        /// The reason.
        source: io::Error,
    },
    /// There is no connection.
    #[error("cannot connect to {site}{}", who_listens(source))]
    Connect {
        /// The place.
        site: Site,
        /// The reason.
        source: RefusedReason,
    },
    /// No network leads there.
    #[error("cannot reach {site}")]
    Reach {
        /// The place.
        site: Site,
        /// The reason.
        source: io::Error,
    },
    /// A subscription is one too many.
    #[error("the publisher refuses the subscription to tag {tag:#x}: too many tags")]
    Subscription {
        /// The tag.
        tag: Tag,
    },

    /// A connection has ended before the end of the messages.
    #[error("lost the {peer}: {reason}{}", remedy(reason, *peer))]
    PeerLost {
        /// Who was lost.
        peer: Peer,
        /// Why.
        reason: ClosedReason,
    },
    /// Some who had subscribed didn't get everything.
    #[error("lost {}{}", both(*messages, *subscribers), because(last.as_ref()))]
    Lost {
        /// Messages that didn't arrive, each at one subscriber.
        messages: u64,
        /// Subscribers that were gone before the end.
        subscribers: u64,
        /// Why the last one was gone.
        last: Option<ClosedReason>,
    },
    /// A message didn't arrive.
    #[error("a message was lost")]
    NotSent(#[source] OperationError),
    /// The publisher's end came before the last message that was asked for.
    #[error("the publisher ended after {received} of {wanted} messages")]
    TooFew {
        /// Messages received.
        received: u64,
        /// Messages asked for.
        wanted: u64,
    },
    /// A subscriber of the measurement has failed.
    #[error("a subscriber failed, {status}{}{said}", if said.is_empty() { "" } else { ": " })]
    SubscriberFailed {
        /// How it ended.
        status: ExitStatus,
        /// What it said.
        said: String,
    },
    /// Subscribers of the measurement don't come or don't end.
    #[error("the subscribers are not {what} within {seconds} s")]
    SubscribersLate {
        /// What they should be.
        what: &'static str,
        /// The time waited.
        seconds: u64,
    },
}

/// Whom a caller has met, if it was no listener of NetIO.
fn who_listens(reason: &RefusedReason) -> &'static str {
    match reason {
        RefusedReason::Connect(ConnectError::Protocol(_)) => ", where another program listens",
        _ => "",
    }
}

/// Whether this host lacks descriptors, memory or threads.
fn is_scarcity(error: &io::Error) -> bool {
    let lacks = error.raw_os_error().and_then(Shortage::of_errno);
    matches!(lacks, Some(Shortage::OpenFiles | Shortage::Memory))
        || error.get_ref().is_some_and(|inner| inner.is::<NoThread>())
}

fn because(reason: Option<&ClosedReason>) -> String {
    let because = |reason| format!(" ({reason}){}", remedy(reason, Peer::Subscriber));
    reason.map_or_else(String::new, because)
}

/// The other side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Publisher,
    Subscriber,
    Sender,
    Receiver,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Publisher => "publisher",
            Self::Subscriber => "subscriber",
            Self::Sender => "sender",
            Self::Receiver => "receiver",
        })
    }
}

/// What to do about the end of a connection.
fn remedy(reason: &ClosedReason, peer: Peer) -> String {
    let ClosedReason::TooLong { length, capacity: capacity @ 1.., .. } = reason else {
        return String::new();
    };
    let (receiving, sending) = match peer {
        Peer::Publisher | Peer::Subscriber => ("subscribe", "publish"),
        Peer::Sender | Peer::Receiver => ("receive", "send"),
    };
    format!(
        ": use `{receiving} --message-size {length}` or more, or `{sending} --message-size {capacity}` or less"
    )
}

/// `2 messages and 1 subscriber`, without what there is none of.
fn both(messages: u64, subscribers: u64) -> String {
    let count = |count, what| match count {
        0 => None,
        1 => Some(format!("1 {what}")),
        count => Some(format!("{count} {what}s")),
    };
    let counts = [count(messages, "message"), count(subscribers, "subscriber")];
    counts.into_iter().flatten().collect::<Vec<_>>().join(" and ")
}

impl NetioError {
    /// The exit code of the process.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Device(_)
            | Self::Context(_)
            | Self::Socket(_)
            | Self::Send(_)
            | Self::Input { .. }
            | Self::File { .. }
            | Self::Output(_)
            | Self::Capture(_)
            | Self::Subscriber(_)
            | Self::Thread(_)
            | Self::Signals(_)
            | Self::Connect {
                source: RefusedReason::Start(_) | RefusedReason::NoThread(_), ..
            } => 1,
            Self::Resolve { source, .. }
            | Self::Listen { source, .. }
            | Self::Reach { source, .. }
                if is_scarcity(source) =>
            {
                1
            }
            Self::Resolve { .. }
            | Self::Listen { .. }
            | Self::Connect { .. }
            | Self::Reach { .. }
            | Self::Subscription { .. } => 3,
            Self::PeerLost { .. }
            | Self::Lost { .. }
            | Self::NotSent(_)
            | Self::TooFew { .. }
            | Self::SubscriberFailed { .. }
            | Self::SubscribersLate { .. } => 4,
            Self::Interrupted(interrupted) => interrupted.code(),
        }
    }
}

impl Command {
    fn link(&self) -> &LinkArgs {
        match self {
            Self::Publish(args) => &args.link,
            Self::Subscribe(args) => &args.link,
            Self::Send(args) => &args.link,
            Self::Receive(args) => &args.link,
            Self::Bench(args) => &args.link,
        }
    }
}

impl Args {
    /// A message about options that exclude each other, beyond what clap checks.
    pub(crate) fn conflict(&self) -> Option<String> {
        match &self.command {
            Command::Publish(args) => args.conflict(),
            Command::Subscribe(args) => args.conflict(),
            Command::Send(args) => args.conflict(),
            Command::Receive(args) => args.conflict(),
            Command::Bench(args) => args.conflict(),
        }
    }
}

/// From now on signals wake the context.
fn interrupt_of(netio: &Netio) -> Result<Interrupt, CatchError> {
    let signal = netio.signal();
    Interrupt::catch(move || signal.raise())
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), NetioError> {
    let file = args.command.link().capture.file();
    let capture = file.as_ref();
    let result = match &args.command {
        Command::Publish(args) => publish::run(args, capture),
        Command::Subscribe(args) => subscribe::run(args, capture),
        Command::Send(args) => send::run(args, capture),
        Command::Receive(args) => receive::run(args, capture),
        Command::Bench(args) => bench::run(args, capture),
    };
    // The endpoints are closed, so that their last packets are in the capture.
    match (result, capture.map_or(Ok(()), CaptureFile::finish)) {
        (Err(error), Err(lost)) => {
            crate::output::print_error(format_args!("warning: {lost}"));
            Err(error)
        }
        (result, captured) => result.and(Ok(captured?)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use efa::StartConnectError;
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn subscriber_that_was_killed_has_said_nothing() {
        let killed = ExitStatus::from_raw(9);
        let failed = |said: &str| {
            NetioError::SubscriberFailed { status: killed, said: said.to_owned() }.to_string()
        };
        assert_eq!(failed(""), "a subscriber failed, signal: 9 (SIGKILL)");
        assert_eq!(failed("why"), "a subscriber failed, signal: 9 (SIGKILL): why");
    }

    #[test]
    fn failures_of_the_own_host_are_no_refusals() {
        let site: Site = "127.0.0.1:7000".parse().unwrap();
        let connect = |source| NetioError::Connect { site: site.clone(), source }.code();
        assert_eq!(connect(RefusedReason::Start(StartConnectError::NotIdle)), 1);
        assert_eq!(connect(RefusedReason::Connect(ConnectError::Refused)), 3);
        let listen =
            |errno: Errno| NetioError::Listen { site: site.clone(), source: errno.into() }.code();
        assert_eq!((listen(Errno::MFILE), listen(Errno::ADDRINUSE)), (1, 3));
    }

    #[test]
    fn usage_refusal_and_loss_have_exit_codes_of_their_own() {
        let site: Site = "127.0.0.1:7000".parse().unwrap();
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(NetioError::Output(refused()).code(), 1);
        assert_eq!(NetioError::Listen { site, source: refused() }.code(), 3);
        let lost =
            NetioError::Lost { messages: 2, subscribers: 1, last: Some(ClosedReason::PeerGone) };
        assert_eq!(lost.code(), 4);
        let text = "lost 2 messages and 1 subscriber (the other side is gone)";
        assert_eq!(lost.to_string(), text);
        let subscriber = NetioError::Lost { messages: 0, subscribers: 2, last: None };
        assert_eq!(subscriber.to_string(), "lost 2 subscribers");
        let message = NetioError::Lost { messages: 1, subscribers: 0, last: None };
        assert_eq!(message.to_string(), "lost 1 message");
    }

    #[test]
    fn message_that_is_too_long_for_its_buffer_is_told_with_both_remedies() {
        let told = |peer| {
            let reason = ClosedReason::TooLong { length: 2048, capacity: 1024, lost: None };
            NetioError::PeerLost { peer, reason }.to_string()
        };
        let text = "a message of 2048 bytes for a buffer of 1024 bytes: use `subscribe --message-size 2048` or more, or \
                    `publish --message-size 1024` or less";
        assert_eq!(told(Peer::Publisher), format!("lost the publisher: {text}"));
        let other = text.replace("subscribe", "receive").replace("publish", "send");
        assert_eq!(told(Peer::Sender), format!("lost the sender: {other}"));
    }
}
