//! `efa decode FILE…`: the packets of captures, one line each.
//!
//! ```text
//!   files ──► Captures (merged by time) ──► Entry (record + parsed packet) ──► Filter ──► lines │ JSON
//!                                                                                ├──► count │ summary
//!                                                                                └──► messages
//! ```
//!
//! One packet of each file is in memory at a time, so that captures may be of any length. A packet that
//! can't be parsed is shown as malformed, with its first bytes. Packets for a user queue pair have no
//! header; the HANDSHAKE that announces the queue pair identifies them. What `--plain` names has none either.

mod captures;
mod content;
mod fields;
mod filter;
pub(crate) mod hostile;
mod messages;
mod operations;
mod remarks;
mod show;
mod summary;

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use efa_sim::capture::{CaptureError, Captured};
use efa_sim::record::Record;

use self::captures::Captures;
use self::content::{Content, Contents, PlainFilter};
use self::filter::{EventFilter, Filter, Number, PeerFilter, Tag, TypeFilter};
use self::messages::Messages;
use self::operations::OpFilter;
use self::summary::Summary;
use crate::output;

/// Arguments of `efa decode`.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = "\
Each line holds the time since the first packet in seconds, what happened (sent, recv, fail), \
source → destination as GID/QPN, and the packet. A packet is listed once for each event: sent by its \
source, received by its destination. On shm and tcp, a sent packet has the time of the last poll before \
it was posted, others that of the poll that found them: packets posted between two polls have the same \
time. Filters of different kinds must all match; of filters of one kind, one.

Several files are merged by their times; one that is named twice is read once. The captures that \
processes of one host write share a clock, unless a Rust program gives its fabric another one; those of two hosts do not.

With --messages each line is a message, write, read or atomic: when its first packet was seen, seconds from \
there to its last one, requester → responder, its request, the packets of both sides, and how far it is: \
`complete`, `failed (…)`, `refused …`, or what it waits for. It is listed if one of its packets matches the \
filters. RDMA of the device has no packets, so that direct writes and reads are missing.

A send_id is a number of the side that sends the data (the source of the request), a recv_id one of the \
other side.

Of a packet that was cut when it was captured (--capture-bytes, editcap -s), the header is shown \
and the length that the packet had. Records that are none of the software device are skipped and counted.

The file format: docs/capture.md in the repository.")]
pub(crate) struct Args {
    /// Captures, pcapng files written by the software device; `-` reads standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Only packets of this type: a name, a number, a family (rtm, msgrtm, tagrtm, rtw, rtr, rta,
    /// req, eager, medium, longcts, longread, runtread, dc), `plain` (without a header) or `malformed`
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    types: Vec<TypeFilter>,
    /// Only packets from or to this queue pair: GID, QPN or GID/QPN
    #[arg(long = "peer", value_name = "PEER", value_delimiter = ',')]
    peers: Vec<PeerFilter>,
    /// Only packets with this msg_id
    #[arg(long = "msg-id", value_name = "N", value_delimiter = ',')]
    msg_ids: Vec<Number>,
    /// Only packets with this tag, decimal or 0x…
    #[arg(long = "tag", value_name = "TAG", value_delimiter = ',')]
    tags: Vec<Tag>,
    /// Only packets of the operation that has this send_id or recv_id at its queue pair: N, or
    /// N@GID, N@QPN or N@GID/QPN, as other queue pairs have operations of the same number. Packets that
    /// name it by the other side's id are found from the first packet on that has both: CTS, READRSP,
    /// EOR or READ_NACK
    #[arg(long = "op-id", value_name = "OP", value_delimiter = ',')]
    op_ids: Vec<OpFilter>,
    /// Only packets with this event
    #[arg(long = "event", value_name = "EVENT", value_delimiter = ',')]
    events: Vec<EventFilter>,
    /// Datagrams from and to these queue pairs have no header: QPN, GID, GID/QPN or `all`. So are those
    /// of efa-direct and DGRAM endpoints of libfabric, and of UCX. Those to a user queue pair that a
    /// HANDSHAKE announces are recognised without
    #[arg(long = "plain", value_name = "QP", value_delimiter = ',')]
    plain: Vec<PlainFilter>,
    /// Print how many packets match, and nothing else
    #[arg(long, conflicts_with_all = ["summary", "hex", "json"])]
    count: bool,
    /// Print how many packets of each type match
    #[arg(long, conflicts_with = "hex")]
    summary: bool,
    /// List messages, writes, reads and atomics instead of packets
    #[arg(long, conflicts_with_all = ["summary", "hex"])]
    messages: bool,
    /// Only those that are not complete
    #[arg(long, requires = "messages")]
    unfinished: bool,
    /// Print the bytes of each packet too
    #[arg(long)]
    hex: bool,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Why captures can't be printed, or not to their end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecodeError {
    /// The file can't be opened, or doesn't begin as a capture does.
    #[error("{}: not readable as a capture", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// The reason.
        source: CaptureError,
    },
    /// The file can't be read to its end.
    #[error("{}: after {packets} packets", file.display())]
    Packet {
        /// The file.
        file: PathBuf,
        /// Number of packets read from it.
        packets: u64,
        /// The reason.
        source: CaptureError,
    },
    /// The files have records, and none of the software device.
    #[error("no packet of the software device in {skipped}")]
    NoPackets {
        /// The first file, and what it has.
        skipped: String,
    },
    /// The output can't be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

/// One event of one packet.
struct Entry<'a> {
    /// As captured.
    record: &'a Record<'a>,
    /// Bytes of the whole datagram.
    length: usize,
    /// As parsed.
    content: Content<'a>,
    /// Nanoseconds since the first packet of the captures; negative if the records of a file are out of
    /// order.
    elapsed: i128,
}

impl<'a> Entry<'a> {
    fn new(captured: &'a Captured, content: Content<'a>, origin: u64) -> Self {
        let Captured { record, length, .. } = captured;
        let elapsed = i128::from(record.time.as_nanos()) - i128::from(origin);
        Self { record, length: *length, content, elapsed }
    }

    /// Bytes at the end of the datagram that the capture doesn't have.
    fn missing(&self) -> usize {
        self.length.saturating_sub(self.record.bytes.len())
    }
}

/// The output for the entries that match.
enum Report {
    Lines(Hex),
    Json(Hex),
    Count(u64),
    Summary(Summary),
    SummaryJson(Summary),
    Messages(Messages),
}

/// Whether the bytes of each packet are printed too.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hex {
    Shown,
    Hidden,
}

impl Report {
    fn new(args: &Args) -> Self {
        let hex = if args.hex { Hex::Shown } else { Hex::Hidden };
        let messages = |form| Self::Messages(Messages::new(form, args.unfinished));
        match args {
            Args { messages: true, count: true, .. } => messages(messages::Form::Count),
            Args { messages: true, json: true, .. } => messages(messages::Form::Json),
            Args { messages: true, .. } => messages(messages::Form::Lines),
            Args { count: true, .. } => Self::Count(0),
            Args { summary: true, json: true, .. } => Self::SummaryJson(Summary::default()),
            Args { summary: true, .. } => Self::Summary(Summary::default()),
            Args { json: true, .. } => Self::Json(hex),
            _ => Self::Lines(hex),
        }
    }

    /// Adds the next entry, which `matches` the filters or not.
    fn take(&mut self, entry: &Entry<'_>, matches: bool, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Messages(messages) => messages.take(entry, matches, out),
            _ if !matches => Ok(()),
            Self::Lines(hex) => show::line(entry, *hex, out),
            Self::Json(hex) => show::json(entry, *hex, out),
            Self::Count(count) => {
                *count += 1;
                Ok(())
            }
            Self::Summary(summary) | Self::SummaryJson(summary) => {
                summary.add(entry);
                Ok(())
            }
        }
    }

    /// Ends the output. `notes` gets what is to be said about the captures as a whole.
    fn finish(self, out: &mut impl Write, notes: &mut Vec<String>) -> io::Result<()> {
        match self {
            Self::Lines(_) | Self::Json(_) => Ok(()),
            Self::Count(count) => writeln!(out, "{count}"),
            Self::Summary(summary) => summary.table(out),
            Self::SummaryJson(summary) => summary.json(out),
            Self::Messages(messages) => messages.finish(out, notes),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), DecodeError> {
    match decode(args) {
        Err(DecodeError::Output(error)) => Ok(output::tolerate_closed(Err(error))?),
        result => result,
    }
}

fn decode(args: &Args) -> Result<(), DecodeError> {
    let captures = Captures::open(&args.files)?;
    let mut notes = Vec::new();
    let result = print(args, captures, &mut BufWriter::new(io::stdout().lock()), &mut notes);
    for note in notes {
        output::print_error(format_args!("note: {note}"));
    }
    result
}

/// Prints the packets that match. Damage is reported after the packets before it. `notes` gets what is
/// to be said about the captures as a whole.
fn print(
    args: &Args,
    mut captures: Captures,
    out: &mut impl Write,
    notes: &mut Vec<String>,
) -> Result<(), DecodeError> {
    let mut filter = Filter::new(args);
    let mut report = Report::new(args);
    let mut contents = Contents::new(&args.plain);
    let mut origin = None;
    while let Some(captured) = captures.next() {
        let origin = *origin.get_or_insert(captured.record.time.as_nanos());
        let entry = Entry::new(&captured, contents.read(&captured), origin);
        report.take(&entry, filter.matches(&entry), out)?;
    }
    report.finish(out, notes)?;
    out.flush()?;
    if origin.is_none()
        && let Some(skipped) = captures.skipped().next()
    {
        return Err(DecodeError::NoPackets { skipped });
    }
    notes.extend(captures.skipped());
    notes.extend(contents.hint());
    captures.finish()
}
