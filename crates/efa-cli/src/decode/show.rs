//! One packet as text and as JSON.

use std::fmt;
use std::io::{self, Write};

use efa_proto::{Packet, PacketType};
use efa_sim::record::{PacketEvent, QueuePairId};
use serde::Serialize;

use super::fields::Fields;
use super::remarks::Remarks;
use super::{Content, Entry, Hex};

/// Bytes of a malformed packet that its line shows.
const PREFIX: usize = 24;
/// Bytes in a line of a dump.
const DUMP: usize = 16;

/// Names of an event, short and in full.
fn event_names(event: PacketEvent) -> (&'static str, &'static str) {
    match event {
        PacketEvent::Sent => ("sent", "sent"),
        PacketEvent::Received => ("recv", "received"),
        PacketEvent::Failed(_) => ("fail", "failed"),
    }
}

/// `   0.000012345 sent fe80::1/3 → fe80::2/4 EAGER_TAGRTM msg_id=7 tag=0x2a payload=5`
pub(super) fn line(entry: &Entry<'_>, hex: Hex, out: &mut impl Write) -> io::Result<()> {
    let Entry { record, content, elapsed, .. } = entry;
    let (source, destination) = (record.source, record.destination);
    let (event, _) = event_names(record.event);
    write!(out, "{} {event} {source} → {destination} ", Seconds(*elapsed))?;
    write!(out, "{}", Text(entry))?;
    if let Some(header) = content.header() {
        write!(out, "{}", Remarks::new(header, &record.bytes))?;
    }
    if let Content::Malformed(error) = content {
        let (bytes, rest) = record.bytes.split_at(record.bytes.len().min(PREFIX));
        let more = if rest.is_empty() { "" } else { " …" };
        write!(out, ": {error} [{}{more}]", HexBytes(bytes))?;
    }
    if let PacketEvent::Failed(status) = record.event {
        write!(out, " ({status})")?;
    }
    writeln!(out)?;
    if hex == Hex::Shown {
        for (index, bytes) in record.bytes.chunks(DUMP).enumerate() {
            writeln!(out, "    {:04x}  {}", index * DUMP, HexBytes(bytes))?;
        }
    }
    Ok(())
}

/// What a datagram is, and of one that is cut, how much of it is there:
/// `CTSDATA recv_id=0x1 seg_offset=0 seg_length=8896 payload=8896 (first 40 captured)`.
struct Text<'a, 'b>(&'a Entry<'b>);

impl fmt::Display for Text<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { record, length, content, .. } = self.0;
        let missing = self.0.missing();
        let there = match content {
            Content::Packet(packet) if missing == 0 => return packet.fmt(f),
            Content::Packet(Packet { header, payload }) => {
                write!(f, "{header} payload={}", payload.len() + missing)?;
                payload.len()
            }
            Content::Plain(bytes) => {
                write!(f, "plain payload={length}")?;
                bytes.len()
            }
            Content::Cut(error, header) => {
                match header {
                    Some(header) => header.fmt(f)?,
                    None => f.write_str(error.packet_type().map_or("packet", PacketType::name))?,
                }
                write!(f, " cut in {}, {length} bytes", error.field())?;
                record.bytes.len()
            }
            Content::Malformed(_) => {
                write!(f, "malformed, {length} bytes")?;
                record.bytes.len()
            }
        };
        if missing == 0 { Ok(()) } else { write!(f, " (first {there} captured)") }
    }
}

/// A line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    /// Nanoseconds by the clock of the capture.
    time_ns: u64,
    event: &'static str,
    /// The status of a send that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<StatusLine>,
    source: QueuePairLine,
    destination: QueuePairLine,
    /// Bytes of the datagram.
    length: usize,
    /// Those of them that the capture has, if not all.
    #[serde(skip_serializing_if = "Option::is_none")]
    captured: Option<usize>,
    /// Its name, or `plain`; absent if malformed.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    packet_type: Option<&'static str>,
    #[serde(flatten)]
    fields: Option<Fields<'a>>,
    #[serde(flatten)]
    remarks: Option<Remarks>,
    /// Bytes behind the header.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<usize>,
    /// The packet as in the text output.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// The reason why it is malformed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// All bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

#[derive(Serialize)]
struct StatusLine {
    code: u8,
    text: String,
}

#[derive(Serialize)]
pub(super) struct QueuePairLine {
    gid: String,
    qpn: u16,
}

impl From<QueuePairId> for QueuePairLine {
    fn from(id: QueuePairId) -> Self {
        Self { gid: id.gid.to_string(), qpn: id.qpn.0 }
    }
}

/// One JSON object in one line.
pub(super) fn json(entry: &Entry<'_>, hex: Hex, out: &mut impl Write) -> io::Result<()> {
    let Entry { record, content, .. } = entry;
    let missing = entry.missing();
    let packet_type = match content {
        Content::Plain(_) => Some("plain"),
        content => content.packet_type().map(PacketType::name),
    };
    let payload = match content {
        Content::Packet(packet) => Some(packet.payload.len() + missing),
        Content::Plain(bytes) => Some(bytes.len() + missing),
        Content::Cut(..) | Content::Malformed(_) => None,
    };
    let (text, error) = match content {
        Content::Malformed(error) => (None, Some(error.to_string())),
        _ => (Some(Text(entry).to_string()), None),
    };
    let status = match record.event {
        PacketEvent::Failed(status) => {
            Some(StatusLine { code: status.code(), text: status.to_string() })
        }
        PacketEvent::Sent | PacketEvent::Received => None,
    };
    let line = Line {
        time_ns: record.time.as_nanos(),
        event: event_names(record.event).1,
        status,
        source: record.source.into(),
        destination: record.destination.into(),
        length: entry.length,
        captured: (missing > 0).then_some(record.bytes.len()),
        packet_type,
        fields: content.header().copied().map(Fields),
        remarks: content.header().map(|header| Remarks::new(header, &record.bytes)),
        payload,
        text,
        error,
        hex: (hex == Hex::Shown).then(|| HexBytes(&record.bytes).to_string()),
    };
    serde_json::to_writer(&mut *out, &line)?;
    writeln!(out)
}

/// Nanoseconds, shown as seconds: `    0.000012345`.
pub(super) struct Seconds(pub(super) i128);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, nanos) = (if self.0 < 0 { "-" } else { "" }, self.0.unsigned_abs());
        let text = format!("{sign}{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
        write!(f, "{text:>14}")
    }
}

/// `40 04 00`
struct HexBytes<'a>(&'a [u8]);

impl fmt::Display for HexBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{byte:02x}")?;
        }
        Ok(())
    }
}
