//! `efa decode` of any bytes, for `tests/hostile`.

use super::captures::Captures;
use super::content::PlainFilter;
use super::{Args, print};

/// A form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One line a packet, with its bytes.
    Lines,
    /// The same as JSON.
    Json,
    /// A table of packet types.
    Summary,
    /// The same as JSON, one object a row.
    SummaryJson,
    /// The number of packets.
    Count,
    /// One line a message, write, read or atomic.
    Messages,
    /// The same as JSON.
    MessagesJson,
    /// The number of them.
    MessagesCount,
}

/// What the packets are taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All, as they are.
    All,
    /// Those of the operation with this number, of any queue pair.
    Operation(u32),
    /// All, as messages without headers.
    Plain,
}

/// The output for a capture, and the error if it is damaged. Notes on it are dropped.
#[must_use]
pub fn decode(form: Form, of: Selection, capture: &[u8]) -> (String, Option<String>) {
    let op_ids = match of {
        Selection::Operation(id) => id.to_string().parse().ok(),
        Selection::All | Selection::Plain => None,
    };
    let args = Args {
        hex: matches!(form, Form::Lines | Form::Json),
        json: matches!(form, Form::Json | Form::SummaryJson | Form::MessagesJson),
        messages: matches!(form, Form::Messages | Form::MessagesJson | Form::MessagesCount),
        summary: matches!(form, Form::Summary | Form::SummaryJson),
        count: matches!(form, Form::Count | Form::MessagesCount),
        op_ids: op_ids.into_iter().collect(),
        plain: (of == Selection::Plain).then_some(PlainFilter::All).into_iter().collect(),
        ..Args::default()
    };
    let mut out = Vec::new();
    let print = |captures| print(&args, captures, &mut out, &mut Vec::new());
    let printed = Captures::of_bytes(capture).and_then(print);
    let error = printed.err().map(|error| crate::one_line(&error.into()));
    (String::from_utf8_lossy(&out).into_owned(), error)
}
