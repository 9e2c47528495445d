//! `efa decode` of any bytes, for `tests/hostile`.

use super::captures::Captures;
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
}

/// The output for a capture, and the error if it is damaged. Notes on it are dropped.
#[must_use]
pub fn decode(form: Form, capture: &[u8]) -> (String, Option<String>) {
    let args = Args {
        hex: matches!(form, Form::Lines | Form::Json),
        json: matches!(form, Form::Json | Form::SummaryJson),
        summary: matches!(form, Form::Summary | Form::SummaryJson),
        count: form == Form::Count,
        ..Args::default()
    };
    let mut out = Vec::new();
    let print = |captures| print(&args, captures, &mut out, &mut Vec::new());
    let printed = Captures::of_bytes(capture).and_then(print);
    let error = printed.err().map(|error| crate::one_line(&error.into()));
    (String::from_utf8_lossy(&out).into_owned(), error)
}
