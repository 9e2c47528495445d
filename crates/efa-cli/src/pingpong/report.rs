//! The results of a run, as a table and as JSON.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::plan::{Mode, Plan, Step};

/// Version of the JSON form.
const VERSION: u32 = 1;

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    version: u32,
    mode: Mode,
    /// Name of the client's device.
    device: String,
    tagged: bool,
    cq_data: bool,
    check: bool,
    warmup: u64,
    /// Whether there are results for all sizes.
    complete: bool,
    results: Vec<Row>,
}

/// The result for one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    size: u64,
    iterations: u64,
    window: u64,
    /// For latency only.
    #[serde(rename = "one_way_seconds", skip_serializing_if = "Option::is_none")]
    one_way: Option<OneWay>,
    messages_per_second: f64,
    bytes_per_second: f64,
    /// Subprotocols of the client's messages.
    subprotocols: Vec<&'static str>,
}

/// Halves of round trips, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct OneWay {
    min: f64,
    median: f64,
    mean: f64,
    p99: f64,
    max: f64,
}

impl Row {
    /// The statistics of at least one round trip.
    pub(crate) fn of_round_trips(
        step: Step,
        mut round_trips: Vec<Duration>,
        subprotocols: Vec<&'static str>,
    ) -> Self {
        round_trips.sort_unstable();
        let total: Duration = round_trips.iter().sum();
        let count = round_trips.len();
        let one_way = |index: usize| {
            round_trips.get(index).map_or(0.0, |round_trip| round_trip.as_secs_f64() / 2.0)
        };
        let one_way = OneWay {
            min: one_way(0),
            median: one_way(count / 2),
            mean: total.as_secs_f64() / 2.0 / count.max(1) as f64,
            // The least value that 99 of 100 don't exceed.
            p99: one_way((count * 99).div_ceil(100).saturating_sub(1)),
            max: one_way(count.saturating_sub(1)),
        };
        Self { one_way: Some(one_way), ..Self::of(step, 2 * count as u64, total, subprotocols) }
    }

    /// The result for a stream of `step.iterations` messages.
    pub(crate) fn of_stream(
        step: Step,
        elapsed: Duration,
        subprotocols: Vec<&'static str>,
    ) -> Self {
        Self::of(step, step.iterations, elapsed, subprotocols)
    }

    fn of(step: Step, messages: u64, elapsed: Duration, subprotocols: Vec<&'static str>) -> Self {
        let Step { size, iterations, window } = step;
        // The clock may be too coarse for a few short messages.
        let seconds = elapsed.max(Duration::from_nanos(1)).as_secs_f64();
        Self {
            size,
            iterations,
            window,
            one_way: None,
            messages_per_second: messages as f64 / seconds,
            bytes_per_second: (messages as f64 * size as f64) / seconds,
            subprotocols,
        }
    }
}

impl Report {
    pub(crate) fn new(device: String, plan: &Plan, results: Vec<Row>) -> Self {
        let Plan { mode, tagged, cq_data, check, warmup, .. } = *plan;
        let complete = results.len() >= plan.steps.len();
        Self { version: VERSION, mode, device, tagged, cq_data, check, warmup, complete, results }
    }

    /// One JSON object in one line.
    pub(crate) fn json(&self) -> String {
        serde_json::to_value(self).map(|value| value.to_string()).unwrap_or_default()
    }

    /// A table, with an explanation of its columns.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(match self.mode {
            Mode::Latency => LATENCY_HEADER.as_slice(),
            Mode::Bandwidth => BANDWIDTH_HEADER.as_slice(),
        });
        for row in &self.results {
            table.add_row(row.cells());
        }
        let last = table.column_count().saturating_sub(1);
        for column in table.column_iter_mut().take(last) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        format!("{}\n\n{}", table.trim_fmt(), self.legend())
    }

    fn legend(&self) -> String {
        let device = &self.device;
        let kind = if self.tagged { "tagged messages" } else { "messages" };
        let checked = if self.check { "all bytes checked" } else { "bytes not checked" };
        let what = match self.mode {
            Mode::Latency => {
                "µs of one-way latency, half of a round trip; p99 is exceeded by one in a hundred"
            }
            Mode::Bandwidth => "one-way streams, up to the receipt of the last message",
        };
        format!("{kind} between two endpoints of {device}, {checked}\n{what}")
    }
}

const LATENCY_HEADER: [&str; 8] =
    ["size", "iterations", "min µs", "median µs", "p99 µs", "messages/s", "MB/s", "subprotocol"];
const BANDWIDTH_HEADER: [&str; 6] =
    ["size", "iterations", "window", "messages/s", "MB/s", "subprotocol"];

impl Row {
    fn cells(&self) -> Vec<String> {
        let mut cells = vec![readable_size(self.size), self.iterations.to_string()];
        match self.one_way {
            Some(OneWay { min, median, p99, .. }) => {
                cells.extend([min, median, p99].map(|seconds| format!("{:.2}", seconds * 1e6)));
            }
            None => cells.push(self.window.to_string()),
        }
        cells.push(format!("{:.0}", self.messages_per_second));
        cells.push(format!("{:.1}", self.bytes_per_second / 1e6));
        cells.push(self.subprotocols.join(", "));
        cells
    }
}

/// `64K` for whole units, else the number of bytes, as `--sizes` takes it.
pub(crate) fn readable_size(size: u64) -> String {
    match size {
        0 => "0".to_owned(),
        _ if size.is_multiple_of(1 << 30) => format!("{}G", size >> 30),
        _ if size.is_multiple_of(1 << 20) => format!("{}M", size >> 20),
        _ if size.is_multiple_of(1 << 10) => format!("{}K", size >> 10),
        _ => size.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(mode: Mode) -> Plan {
        Plan { mode, tagged: true, cq_data: false, check: true, warmup: 1, steps: Vec::new() }
    }

    fn step(size: u64, iterations: u64, window: u64) -> Step {
        Step { size, iterations, window }
    }

    fn latency() -> Report {
        let micros = |range: std::ops::RangeInclusive<u64>| range.map(Duration::from_micros);
        let rows = vec![
            Row::of_round_trips(step(0, 100, 1), micros(1..=100).rev().collect(), vec!["eager"]),
            Row::of_round_trips(step(65537, 1, 1), micros(30..=30).collect(), vec!["long-CTS"]),
            Row::of_round_trips(
                step(6 << 20, 2, 1),
                micros(2000..=2001).collect(),
                vec!["medium", "long-CTS"],
            ),
        ];
        Report::new("efa-shm-default".into(), &plan(Mode::Latency), rows)
    }

    #[test]
    fn latency_report_as_table() {
        insta::assert_snapshot!(latency().table());
    }

    #[test]
    fn bandwidth_report_as_table() {
        let rows = vec![
            Row::of_stream(step(8, 1000, 64), Duration::from_micros(250), vec!["eager"]),
            Row::of_stream(step(1 << 20, 64, 10), Duration::from_millis(8), vec!["long-CTS"]),
        ];
        let report = Report::new("efa-shm-default".into(), &plan(Mode::Bandwidth), rows);
        insta::assert_snapshot!(report.table());
    }

    #[test]
    fn latency_report_as_json() {
        insta::assert_snapshot!(serde_json::to_string_pretty(&latency()).unwrap());
    }

    #[test]
    fn zero_elapsed_time_gives_no_division_by_zero() {
        let row = Row::of_stream(step(8, 1, 1), Duration::ZERO, vec![]);
        assert!(row.bytes_per_second.is_finite() && row.messages_per_second.is_finite());
    }

    #[test]
    fn sizes_are_printed_as_the_sizes_option_takes_them() {
        for size in [0, 1, 1000, 1 << 10, 65537, 3 << 20, 1 << 30] {
            let sizes: super::super::sizes::Sizes = readable_size(size).parse().unwrap();
            assert_eq!(sizes.0, [size]);
        }
    }
}
