//! The output: progress, table, and a block for each failed cell.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::cell::{CellResult, Failure};
use super::matrix::{Cell, Devices, Pair, Rdma};
use super::scenarios;

/// A bar that moves with the cells, if there is a terminal to show it.
pub(crate) fn progress(cells: usize) -> ProgressBar {
    let target = match io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(cells as u64), target);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar
}

/// Advances the bar; prints a failed cell at once.
pub(crate) fn ended(bar: &ProgressBar, result: &CellResult) {
    bar.inc(1);
    if let Some(failure) = result.failure.as_ref().filter(|_| result.failed()) {
        let line = format!("FAILED {}: {:#}", result.cell, failure.error);
        if bar.is_hidden() { print_error!("{line}") } else { bar.println(line) }
    }
}

/// Prints `--list`; the pipe may be closed early.
pub(crate) fn list(out: &mut impl Write) -> io::Result<()> {
    for scenario in scenarios::all() {
        match writeln!(out, "{:<28} {}", scenario.name, scenario.about) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            result => result?,
        }
    }
    Ok(())
}

/// Everything; `devices` are those of our peers.
pub(crate) fn print(results: &[CellResult], devices: Devices) {
    say!("{}", table(results));
    print_known(results);
    for result in results {
        for note in &result.notes {
            say!("{}: {note}", result.cell);
        }
    }
    for result in results {
        if let Some(failure) = result.failure.as_ref().filter(|_| result.failed()) {
            print_failure(&result.cell, devices, failure);
        }
    }
    let count = |is: fn(&CellResult) -> bool| results.iter().filter(|result| is(result)).count();
    let known = count(|result| result.failure.is_some() && !result.failed());
    let took: Duration = results.iter().map(|result| result.took).sum();
    say!(
        "interop: {} cells, {} passed, {} failed, {known} known to fail, {:.1} s",
        results.len(),
        count(|result| result.failure.is_none()),
        count(CellResult::failed),
        took.as_secs_f64(),
    );
}

/// A line for each scenario, a column for each pair without and with device RDMA.
fn table(results: &[CellResult]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY);
    let columns: Vec<_> =
        Pair::ALL.into_iter().flat_map(|pair| Rdma::ALL.map(|rdma| (pair, rdma))).collect();
    let heads = columns.iter().map(|(pair, rdma)| match rdma {
        Rdma::Off => pair.to_string(),
        Rdma::On => "+rdma".to_owned(),
    });
    table.set_header(["scenario".to_owned()].into_iter().chain(heads).chain(["s".to_owned()]));
    if let Some(column) = table.column_mut(columns.len() + 1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for scenario in scenarios::all() {
        let of: Vec<_> = results.iter().filter(|r| r.cell.scenario.name == scenario.name).collect();
        if of.is_empty() {
            continue;
        }
        let took: Duration = of.iter().map(|result| result.took).sum();
        let word = |(pair, rdma): &(Pair, Rdma)| {
            let found = of.iter().filter(|r| r.cell.pair == *pair && r.cell.rdma == *rdma);
            // The worst of all seeds.
            found.map(|result| verdict(result)).max().map_or("", Verdict::word).to_owned()
        };
        let words = columns.iter().map(word);
        let name = [scenario.name.to_owned()].into_iter();
        table.add_row(name.chain(words).chain([format!("{:.1}", took.as_secs_f64())]));
    }
    table
}

/// From good to bad.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Passed,
    Known,
    Failed,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Passed => "ok",
            Self::Known => "known",
            Self::Failed => "FAILED",
        }
    }
}

fn verdict(result: &CellResult) -> Verdict {
    match (&result.failure, result.known) {
        (None, _) => Verdict::Passed,
        (Some(_), None) => Verdict::Failed,
        (Some(_), Some(_)) => Verdict::Known,
    }
}

fn print_known(results: &[CellResult]) {
    for result in results {
        if let (Some(failure), Some(reason)) = (&result.failure, result.known) {
            say!("known: {}: {reason}\n    seen: {:#}", result.cell, failure.error);
        }
    }
}

fn print_failure(cell: &Cell, devices: Devices, failure: &Failure) {
    say!("\n──── {cell}: {}", cell.scenario.about);
    say!("{:#}", failure.error);
    let Cell { scenario, pair, rdma, seed } = cell;
    let seed = if scenario.is_random() { format!(" --seed {seed}") } else { String::new() };
    let device = match devices == Devices::default() {
        true => String::new(),
        false => format!(" --device {devices}"),
    };
    let name = scenario.name;
    say!("again: cargo xtask interop --only {name} --pair {pair} --rdma {rdma}{seed}{device}");
    say!("files: {}", failure.directory.display());
    for peer in &failure.peers {
        for (what, text) in [("standard error", &peer.stderr), ("last packets", &peer.packets)] {
            say!("{}, {what}:", peer.name);
            for line in text.lines() {
                say!("    {line}");
            }
        }
    }
}
