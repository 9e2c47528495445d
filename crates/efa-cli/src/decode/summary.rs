//! `--summary`: how many packets of each type.

use std::collections::BTreeMap;
use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use efa_proto::PacketType;
use efa_sim::record::PacketEvent;
use serde::Serialize;

use super::{Content, Entry};

/// Counts by kind.
#[derive(Default)]
pub(super) struct Summary(BTreeMap<Kind, Counts>);

/// A row of the table; the order is that of the rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Packet(PacketType),
    Plain,
    Cut,
    Malformed,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Packet(packet_type) => packet_type.name(),
            Self::Plain => "plain",
            Self::Cut => "cut",
            Self::Malformed => "malformed",
        }
    }
}

#[derive(Clone, Copy, Default, Serialize)]
struct Counts {
    sent: u64,
    received: u64,
    failed: u64,
    /// Bytes of the packets sent, with headers.
    sent_bytes: u64,
}

impl Counts {
    fn add(&mut self, event: PacketEvent, length: u64) {
        match event {
            PacketEvent::Sent => {
                self.sent += 1;
                self.sent_bytes += length;
            }
            PacketEvent::Received => self.received += 1,
            PacketEvent::Failed(_) => self.failed += 1,
        }
    }
}

impl Summary {
    pub(super) fn add(&mut self, entry: &Entry<'_>) {
        let kind = match &entry.content {
            Content::Packet(packet) => Kind::Packet(packet.packet_type()),
            Content::Plain(_) => Kind::Plain,
            // A cut one whose type is there counts as such.
            Content::Cut(..) => entry.content.packet_type().map_or(Kind::Cut, Kind::Packet),
            Content::Malformed(_) => Kind::Malformed,
        };
        let counts = self.0.entry(kind).or_default();
        counts.add(entry.record.event, entry.length as u64);
    }

    /// The types in the order of their numbers, then plain and malformed.
    fn rows(&self) -> impl Iterator<Item = (&'static str, &Counts)> {
        self.0.iter().map(|(kind, counts)| (kind.name(), counts))
    }

    pub(super) fn table(&self, out: &mut impl Write) -> io::Result<()> {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(["type", "sent", "received", "failed", "bytes sent"]);
        let mut total = Counts::default();
        for (name, counts) in self.rows() {
            table.add_row(cells(name, counts));
            total.sent += counts.sent;
            total.received += counts.received;
            total.failed += counts.failed;
            total.sent_bytes += counts.sent_bytes;
        }
        table.add_row(cells("total", &total));
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        writeln!(out, "{}", table.trim_fmt())
    }

    /// One object a line.
    pub(super) fn json(&self, out: &mut impl Write) -> io::Result<()> {
        #[derive(Serialize)]
        struct Row<'a> {
            #[serde(rename = "type")]
            packet_type: &'a str,
            #[serde(flatten)]
            counts: Counts,
        }
        for (packet_type, &counts) in self.rows() {
            serde_json::to_writer(&mut *out, &Row { packet_type, counts })?;
            writeln!(out)?;
        }
        Ok(())
    }
}

fn cells(name: &str, counts: &Counts) -> [String; 5] {
    let Counts { sent, received, failed, sent_bytes } = counts;
    [
        name.to_owned(),
        sent.to_string(),
        received.to_string(),
        failed.to_string(),
        sent_bytes.to_string(),
    ]
}
