//! The figures of `cargo xtask bench netio`: table, plots, and what they say about the goals.

use std::collections::BTreeMap;

use anyhow::Result;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};
use efa_plot::{Corner, Plot, Series};

use super::LARGE;
use super::programs::{Contestant, Figures, Run};
use crate::bench::soft::median;

/// Size, subscribers, and whether every byte is read.
type Case = (usize, usize, bool);

pub(super) struct Results {
    rates: BTreeMap<(Case, Contestant), Vec<Figures>>,
    latencies: BTreeMap<(Case, Contestant), Vec<Figures>>,
    notes: Vec<String>,
    /// Deliveries to seven in a second, before and after the eighth is stopped.
    pub(super) stopped: Option<[f64; 2]>,
    /// Milliseconds until the publisher knows of a kill.
    pub(super) killed: Option<[f64; 2]>,
    /// Shares of a processor.
    pub(super) idle: Option<[f64; 2]>,
}

fn case(run: Run) -> Case {
    (run.size, run.subscribers, run.reads)
}

impl Results {
    pub(super) fn new(notes: Vec<String>) -> Self {
        Self {
            rates: BTreeMap::new(),
            latencies: BTreeMap::new(),
            notes,
            stopped: None,
            killed: None,
            idle: None,
        }
    }

    pub(super) fn rate(&mut self, who: Contestant, run: Run, came: Result<Figures>) -> Result<()> {
        if let Some(figures) = self.noted(who, run, came)? {
            self.rates.entry((case(run), who)).or_default().push(figures);
        }
        Ok(())
    }

    pub(super) fn latency(
        &mut self,
        who: Contestant,
        run: Run,
        came: Result<Figures>,
    ) -> Result<()> {
        if let Some(figures) = self.noted(who, run, came)? {
            self.latencies.entry((case(run), who)).or_default().push(figures);
        }
        Ok(())
    }

    /// A failure of a peer is noted; ours is an error.
    fn noted(
        &mut self,
        who: Contestant,
        run: Run,
        came: Result<Figures>,
    ) -> Result<Option<Figures>> {
        let what = format!("{who}, {} to {}", size(run.size), run.subscribers);
        match came {
            Ok(figures) => Ok(Some(figures)),
            Err(error) if matches!(who, Contestant::Ours | Contestant::Efa | Contestant::Copy) => {
                Err(error.context(what))
            }
            Err(error) => {
                self.notes.push(format!("{what}: {error:#}"));
                Ok(None)
            }
        }
    }

    fn figure(
        &self,
        of: &BTreeMap<(Case, Contestant), Vec<Figures>>,
        (case, who): (Case, Contestant),
        figure: impl Fn(&Figures) -> f64,
    ) -> Option<f64> {
        median(of.get(&(case, who))?.iter().map(figure))
    }

    fn gigabytes(&self, case: Case, who: Contestant) -> Option<f64> {
        self.figure(&self.rates, (case, who), |figures| figures.gigabytes)
    }

    /// Ours to another's.
    fn ratio(&self, case: Case, to: Contestant) -> Option<f64> {
        Some(self.gigabytes(case, Contestant::Ours)? / self.gigabytes(case, to)?)
    }

    pub(super) fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(UTF8_HORIZONTAL_ONLY);
        table.set_header([
            "size",
            "to",
            "by",
            "messages/s",
            "GB/s",
            "CPU µs",
            "lost %",
            "median µs",
            "99 % µs",
            "ours/it",
        ]);
        for &(case, who) in self.rates.keys() {
            let rate = |figure: fn(&Figures) -> f64| self.figure(&self.rates, (case, who), figure);
            let late =
                |figure: fn(&Figures) -> f64| self.figure(&self.latencies, (case, who), figure);
            let reads = if case.2 { ", every byte read" } else { "" };
            table.add_row([
                size(case.0),
                case.1.to_string(),
                format!("{who}{reads}"),
                shown(rate(|it| it.rate), 0),
                shown(rate(|it| it.gigabytes), 3),
                shown(rate(|it| it.processor), 2),
                shown(rate(|it| it.lost).map(|lost| lost * 100.0), 1),
                shown(late(|it| it.median), 1),
                shown(late(|it| it.late), 1),
                shown(self.ratio(case, who).filter(|_| who != Contestant::Ours), 2),
            ]);
        }
        for column in table.column_iter_mut().filter(|column| column.index != 2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    /// Bytes in a second by the size of messages.
    pub(super) fn plot(&self, subscribers: usize) -> Plot {
        let series = Contestant::ALL.into_iter().filter_map(|who| {
            let points: Vec<_> = self
                .rates
                .keys()
                .filter(|(case, other)| *other == who && case.1 == subscribers && !case.2)
                .filter_map(|(case, _)| Some((case.0 as f64, self.gigabytes(*case, who)?)))
                .collect();
            (!points.is_empty()).then(|| Series::new(who.to_string(), points))
        });
        let to = if subscribers == 1 {
            "1 subscriber".to_owned()
        } else {
            format!("{subscribers} subscribers")
        };
        Plot {
            title: format!("Publish/subscribe to {to}"),
            x: "bytes of a message".into(),
            y: "10⁹ bytes/s, at all subscribers".into(),
            legend: Corner::UpperLeft,
            series: series.collect(),
        }
    }

    /// What was to be reached.
    pub(super) fn goals(&self) -> String {
        use Contestant::{Copy, Iceoryx, Zenoh, ZeroMq};
        let mut text = String::new();
        let mut goal = |what: String, figure: Option<f64>, least: f64| {
            let Some(figure) = figure else { return };
            let is_met = if figure >= least { "met" } else { "missed" };
            text += &format!("{what}: {figure:.2}, goal at least {least}: {is_met}\n");
        };
        goal("64 B to 1, of ZeroMQ".into(), self.ratio((64, 1, false), ZeroMq), 1.5);
        goal("64 B to 1, of zenoh".into(), self.ratio((64, 1, false), Zenoh), 1.0);
        for bytes in [64 << 10, LARGE] {
            for to in [1, 8] {
                for (peer, name) in [(ZeroMq, "ZeroMQ"), (Zenoh, "zenoh")] {
                    let what = format!("{} to {to}, of {name}", size(bytes));
                    goal(what, self.ratio((bytes, to, false), peer), 2.0);
                }
            }
        }
        let read = self.ratio((LARGE, 1, true), Iceoryx);
        goal("1 MiB to 1, every byte read, of iceoryx2".into(), read, 0.4);
        let copied = self.ratio((LARGE, 8, false), Copy);
        goal("1 MiB to 8, of eight processes that copy".into(), copied, 0.8);
        let stopped = self.stopped.map(|[before, after]| after / before);
        goal("one of 8 stopped, the others after it, of before".into(), stopped, 0.95);
        if let Some([median, longest]) = self.killed {
            text += &format!(
                "from SIGKILL to the event: {median:.2} ms in the median, {longest:.2} at most; goal at most 50\n"
            );
        }
        if let Some([publisher, subscriber]) = self.idle {
            text += &format!(
                "idle: publisher {:.4} % of a processor, subscriber {:.4} %; goal below 0.1 %\n",
                publisher * 100.0,
                subscriber * 100.0
            );
        }
        self.notes.iter().for_each(|note| text += &format!("{note}\n"));
        text
    }
}

fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 if bytes.is_multiple_of(1024) => format!("{} KiB", bytes >> 10),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ => format!("{bytes} B"),
    }
}

fn shown(figure: Option<f64>, digits: usize) -> String {
    figure.map_or_else(String::new, |figure| format!("{figure:.digits$}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn ratios_are_of_medians_and_goals_are_judged() {
        let run = |size, subscribers, reads| Run {
            size,
            subscribers,
            time: Duration::ZERO,
            pace: 0,
            reads,
        };
        let figures = |gigabytes| Ok(Figures { gigabytes, ..Figures::default() });
        let mut results = Results::new(vec!["NNG: missing".into()]);
        for (ours, zeromq) in [(1.0, 2.0), (30.0, 2.0), (2.0, 1.0)] {
            results.rate(Contestant::Ours, run(64, 1, false), figures(ours)).unwrap();
            results.rate(Contestant::ZeroMq, run(64, 1, false), figures(zeromq)).unwrap();
        }
        let failed = results.rate(Contestant::Nng, run(64, 1, false), Err(anyhow::anyhow!("no")));
        assert!(failed.is_ok());
        assert!(
            results
                .latency(Contestant::Ours, run(64, 1, false), Err(anyhow::anyhow!("no")))
                .is_err()
        );
        results.stopped = Some([100.0, 96.0]);
        let goals = results.goals();
        assert!(
            goals.contains("64 B to 1, of ZeroMQ: 1.00, goal at least 1.5: missed\n"),
            "{goals}"
        );
        assert!(goals.contains("of before: 0.96, goal at least 0.95: met\n"), "{goals}");
        assert!(goals.ends_with("NNG: missing\nNNG, ipc, 64 B to 1: no\n"), "{goals}");
        let table = results.table().to_string();
        assert!(table.contains("1.00"), "{table}");
        assert_eq!(results.plot(1).series.len(), 2);
        assert_eq!(
            (size(64), size(65_536), size(1 << 20)),
            ("64 B".into(), "64 KiB".into(), "1 MiB".into())
        );
    }
}
