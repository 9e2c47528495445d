//! `efa decode FILE`: the packets of a capture, one line each.
//!
//! ```text
//!   file ──► CaptureReader ──► Entry (record + what it holds) ──► Filter ──► lines │ JSON
//!                                                                       └──► count │ summary
//! ```
//!
//! One packet is in memory at a time, so that captures may be of any length. The wire is not
//! trusted: a packet that can't be parsed is shown as malformed, with its first bytes. What goes to
//! the queue pair of an application has no header, and is known by the HANDSHAKE that told of it.

mod content;
mod filter;
pub(crate) mod hostile;
mod ids;
mod show;
mod summary;

use std::io::{self, BufWriter, Read, Write};
use std::path::PathBuf;

use efa_sim::capture::{CaptureError, CaptureReader};
use efa_sim::record::Record;

use self::content::{Content, PlainQueues};
use self::filter::{EventFilter, Filter, Number, PeerFilter, TypeFilter};
use self::summary::Summary;
use crate::output;

/// Arguments of `efa decode`.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = "\
Each line holds the time since the first packet in seconds, what happened (sent, recv, fail), \
source → destination as gid/qpn, and the packet. A packet is listed once for each thing that \
happened to it. Filters of different kinds must all match; of filters of one kind, one.")]
pub(crate) struct Args {
    /// The capture, a pcapng file written by the software device; `-` reads standard input
    file: PathBuf,
    /// Only packets of this type: a name, a number, a family (rtm, msgrtm, tagrtm, rtw, rtr, rta,
    /// req, eager, medium, longcts, longread, runtread, dc), `plain` (without a header, for the queue
    /// pair of an application) or `malformed`
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    types: Vec<TypeFilter>,
    /// Only packets from or to this queue pair: GID, QPN or GID/QPN
    #[arg(long = "peer", value_name = "PEER", value_delimiter = ',')]
    peers: Vec<PeerFilter>,
    /// Only packets with this msg_id
    #[arg(long = "msg-id", value_name = "N", value_delimiter = ',')]
    msg_ids: Vec<Number>,
    /// Only packets that name this operation as send_id or recv_id
    #[arg(long = "op-id", value_name = "N", value_delimiter = ',')]
    op_ids: Vec<Number>,
    /// Only packets to which this happened
    #[arg(long = "event", value_name = "EVENT", value_delimiter = ',')]
    events: Vec<EventFilter>,
    /// Print how many packets match, and nothing else
    #[arg(long, conflicts_with_all = ["summary", "hex", "json"])]
    count: bool,
    /// Print how many packets of each type match
    #[arg(long, conflicts_with = "hex")]
    summary: bool,
    /// Print the bytes of each packet too
    #[arg(long)]
    hex: bool,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Why a capture could not be printed, or not to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecodeError {
    /// It can't be opened, or doesn't begin as a capture does.
    #[error("{}: not readable as a capture", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        source: CaptureError,
    },
    /// It can't be read to its end.
    #[error("{}: after {packets} packets", file.display())]
    Packet {
        /// The file.
        file: PathBuf,
        /// Packets that could be read.
        packets: u64,
        /// What is wrong.
        source: CaptureError,
    },
    /// What was read can't be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

/// One thing that happened to one packet.
struct Entry<'a> {
    /// As captured.
    record: &'a Record<'a>,
    /// As parsed.
    content: Content<'a>,
    /// Nanoseconds since the first packet of the capture; processes that write into one file may
    /// do so out of order, so it can be negative.
    elapsed: i128,
}

impl<'a> Entry<'a> {
    fn new(record: &'a Record<'a>, content: Content<'a>, origin: u64) -> Self {
        let elapsed = i128::from(record.time.as_nanos()) - i128::from(origin);
        Self { record, content, elapsed }
    }
}

/// What is made of the entries that match.
enum Report {
    Lines(Hex),
    Json(Hex),
    Count(u64),
    Summary(Summary),
    SummaryJson(Summary),
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
        match args {
            Args { count: true, .. } => Self::Count(0),
            Args { summary: true, json: true, .. } => Self::SummaryJson(Summary::default()),
            Args { summary: true, .. } => Self::Summary(Summary::default()),
            Args { json: true, .. } => Self::Json(hex),
            _ => Self::Lines(hex),
        }
    }

    /// One entry.
    fn take(&mut self, entry: &Entry<'_>, out: &mut impl Write) -> io::Result<()> {
        match self {
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

    /// There are no more.
    fn finish(self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Lines(_) | Self::Json(_) => Ok(()),
            Self::Count(count) => writeln!(out, "{count}"),
            Self::Summary(summary) => summary.table(out),
            Self::SummaryJson(summary) => summary.json(out),
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
    let mut out = BufWriter::new(io::stdout().lock());
    let opened = |source| DecodeError::Open { file: args.file.clone(), source };
    if args.file.as_os_str() == "-" {
        let reader = CaptureReader::new(io::stdin().lock()).map_err(opened)?;
        print(args, reader, &mut out)
    } else {
        let reader = CaptureReader::open(&args.file).map_err(opened)?;
        print(args, reader, &mut out)
    }
}

/// Prints what matches. Damage is reported after the packets before it.
fn print<R: Read>(
    args: &Args,
    reader: CaptureReader<R>,
    out: &mut impl Write,
) -> Result<(), DecodeError> {
    let filter = Filter::new(args);
    let mut report = Report::new(args);
    let mut plain = PlainQueues::default();
    let mut origin = None;
    let mut packets = 0;
    let mut damage = None;
    for record in reader {
        match record {
            Ok(record) => {
                packets += 1;
                let origin = *origin.get_or_insert(record.time.as_nanos());
                let entry = Entry::new(&record, plain.read(&record), origin);
                if filter.matches(&entry) {
                    report.take(&entry, out)?;
                }
            }
            Err(source) => damage = Some(source),
        }
    }
    report.finish(out)?;
    out.flush()?;
    match damage {
        Some(source) => Err(DecodeError::Packet { file: args.file.clone(), packets, source }),
        None => Ok(()),
    }
}
