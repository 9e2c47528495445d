//! `efa decode` of any bytes, for `tests/hostile`.

use efa_sim::capture::CaptureReader;

use super::{Args, DecodeError, print};

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A line a packet, and its bytes.
    Lines,
    /// The same as JSON.
    Json,
    /// A table.
    Summary,
    /// A JSON object a row.
    SummaryJson,
    /// How many there are.
    Count,
}

/// What is printed of a capture, and what the user is told if it is no good one.
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
    let opened = |source| DecodeError::Open { file: args.file.clone(), source };
    let printed = CaptureReader::new(capture)
        .map_err(opened)
        .and_then(|reader| print(&args, reader, &mut out));
    let told = printed.err().map(|error| crate::in_words(&error.into()));
    (String::from_utf8_lossy(&out).into_owned(), told)
}
