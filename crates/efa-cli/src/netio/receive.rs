//! `efa netio receive`: what one sender sends, into a file or onto standard output.

use std::path::PathBuf;

use efa_netio::{ClosedReason, Event, ListenOptions, Netio, Wait};

use super::output::{Format, Sink};
use super::place::{self, LinkArgs, Side, Site};
use super::subscribe::ReceivingArgs;
use super::totals::Counter;
use super::{NetioError, Peer, interrupt_of};
use crate::capture::CaptureFile;
use crate::interrupt::Interrupt;

/// Arguments of `efa netio receive`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Where it listens is said on standard error; with port 0 the system chooses one. It takes one sender, and ends with it.

  efa netio receive 127.0.0.1:7000 --output COPY &
  efa netio send 127.0.0.1:7000 --retry 5 FILE

Ctrl-C or SIGTERM ends it with its totals. They have the messages that are wholly in the file of --output.

Exit codes: 0 all was received, 1 failure, 2 invalid command line, 3 cannot listen there, 4 the sender was gone before \
the end, 130 interrupted by Ctrl-C, 143 by SIGTERM.")]
pub(super) struct Args {
    /// Where to listen for a sender
    #[arg(value_name = "HOST:PORT")]
    site: Site,
    /// Write the messages into a file [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    receiving: ReceivingArgs,
    #[command(flatten)]
    pub(super) link: LinkArgs,
}

impl Args {
    pub(super) fn conflict(&self) -> Option<String> {
        if self.link.json && self.output.is_none() {
            return Some("--json needs --output: standard output has the messages".into());
        }
        self.link.conflict_at(&self.site)
    }
}

/// Runs the command.
pub(super) fn run(args: &Args, capture: Option<&CaptureFile>) -> Result<(), NetioError> {
    let mut sink = Sink::new(args.output.as_deref(), Format::Bytes)?;
    let mut netio = args.link.open(Side::Listens(&args.site), capture)?;
    let buffers = Some(args.receiving.buffers());
    let socket = netio.listen_socket(ListenOptions::default().buffers(buffers).connections(1));
    netio.listen(socket, &args.site.host, args.site.port)?;
    let (address, early) = place::listens(&mut netio, socket.into(), &args.site)?;
    let interrupt = interrupt_of(&netio)?;
    place::announce(address);
    let mut counter = Counter::new(None);
    if sink.is_stdout() {
        counter = counter.hide_on_terminal();
    }
    let result = receive_all(&mut netio, early, &interrupt, &mut sink, &mut counter);
    let result = sink.end(result);
    counter.remove(sink.unwritten());
    counter.totals(result.is_ok()).print(args.link.json)?;
    result
}

fn receive_all(
    netio: &mut Netio,
    early: Vec<Event>,
    interrupt: &Interrupt,
    sink: &mut Sink,
    counter: &mut Counter,
) -> Result<(), NetioError> {
    let mut early = early.into_iter();
    loop {
        interrupt.take()?;
        let at_once = match early.next() {
            Some(event) => Some(event),
            None => netio.poll(Wait::No)?,
        };
        let event = match at_once {
            Some(event) => Some(event),
            // Nothing comes at once: whoever reads the output gets it.
            None if !sink.flush()? => return Ok(()),
            None => netio.poll(Wait::Forever)?,
        };
        match event {
            // There is no other sender.
            Some(Event::Accepted { listener, from, .. }) => {
                tracing::info!(%from, "a sender is connected");
                netio.close(listener);
            }
            Some(Event::CallerRefused { from, reason, .. }) => {
                place::warn_of_refused(from, &reason);
            }
            Some(Event::Received { message, .. }) => {
                counter.add(message.len());
                if !sink.put(0, &message)? {
                    return Ok(());
                }
            }
            Some(Event::Closed { reason: ClosedReason::DisconnectedByPeer, .. }) => return Ok(()),
            Some(Event::Closed { reason, .. }) => {
                return Err(NetioError::PeerLost { peer: Peer::Sender, reason });
            }
            _ => {}
        }
    }
}
