//! One operation as text and as JSON.

use std::io::{self, Write};

use serde::Serialize;

use super::operation::{Operation, Seen, State, Wait};
use crate::decode::operations::OperationId;
use crate::decode::show::{QueuePairLine, Seconds};

/// `   0.000012345    0.000004112 fe80::1/3 → fe80::2/4 LONGCTS_TAGRTM msg_id=7 tag=0x2a … packets=122 complete`
pub(super) fn line(operation: &Operation, state: State, out: &mut impl Write) -> io::Result<()> {
    let Operation { ends, packet_type, msg_id, tag, length, times, not_ready, .. } = operation;
    let [begun, last] = *times;
    write!(out, "{} {} ", Seconds(begun), Seconds(last - begun))?;
    write!(out, "{} → {} {packet_type}", ends.requester, ends.responder)?;
    if let Some(msg_id) = msg_id {
        write!(out, " msg_id={msg_id}")?;
    }
    if let Some(tag) = tag {
        write!(out, " tag={tag:#x}")?;
    }
    for (name, id) in [("send_id", operation.send_id), ("recv_id", operation.recv_id)] {
        if let Some(OperationId { id, .. }) = id {
            write!(out, " {name}={:#x}", id.0)?;
        }
    }
    let packets = packets(operation);
    write!(out, " length={length} packets={packets}")?;
    if *not_ready > 0 {
        write!(out, " not_ready={not_ready}")?;
    }
    writeln!(out, " {state}")
}

/// Packets of both sides, each once.
fn packets(operation: &Operation) -> u64 {
    operation.packets.into_iter().map(Seen::count).sum()
}

/// A line of `--json`.
#[derive(Serialize)]
struct Line {
    /// Nanoseconds since the first packet of the captures.
    begin_ns: i64,
    duration_ns: i64,
    requester: QueuePairLine,
    responder: QueuePairLine,
    /// Of the first request.
    #[serde(rename = "type")]
    packet_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    msg_id: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    send_id: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recv_id: Option<u32>,
    length: u64,
    packets: u64,
    not_ready: u64,
    /// `complete`, `failed`, `refused` or `waits`.
    state: &'static str,
    /// Of one that waits: `resend`, `data`, `delivery`, or a packet type.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<&'static str>,
    /// The state as in the text output.
    text: String,
}

/// One JSON object in one line.
pub(super) fn json(operation: &Operation, state: State, out: &mut impl Write) -> io::Result<()> {
    let Operation { ends, packet_type, msg_id, tag, length, times, not_ready, .. } = operation;
    let [begun, last] = *times;
    let nanos = |time: i128| i64::try_from(time).unwrap_or(i64::MAX);
    let (name, waits_for) = match state {
        State::Complete => ("complete", None),
        State::Failed(_) => ("failed", None),
        State::Refused(_) => ("refused", None),
        State::Waits(Wait::Resend) => ("waits", Some("resend")),
        State::Waits(Wait::Data { .. }) => ("waits", Some("data")),
        State::Waits(Wait::Delivery { .. }) => ("waits", Some("delivery")),
        State::Waits(Wait::Packet(packet_type)) => ("waits", Some(packet_type.name())),
    };
    let line = Line {
        begin_ns: nanos(begun),
        duration_ns: nanos(last - begun),
        requester: ends.requester.into(),
        responder: ends.responder.into(),
        packet_type: packet_type.name(),
        msg_id: *msg_id,
        tag: tag.map(|tag| format!("{tag:#x}")),
        send_id: operation.send_id.map(|of| of.id.0),
        recv_id: operation.recv_id.map(|of| of.id.0),
        length: *length,
        packets: packets(operation),
        not_ready: *not_ready,
        state: name,
        waits_for,
        text: state.to_string(),
    };
    serde_json::to_writer(&mut *out, &line)?;
    writeln!(out)
}
