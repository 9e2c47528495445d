//! How the figures of `cargo xtask bench peers` are shown: tables of the terminal and of Markdown, and plots.

use comfy_table::presets::{ASCII_MARKDOWN, UTF8_BORDERS_ONLY};
use comfy_table::{CellAlignment, Table};
use efa_plot::{Corner, Plot, Series};

use super::point::{Form, Kind, Point, STREAMS, readable};
use super::programs::Contestant;
use super::results::Results;

/// From here on a rate is shown in bytes.
const BYTES_FROM: u64 = 4096;

/// Where a table is shown.
#[derive(Clone, Copy)]
pub(super) enum Style {
    Terminal,
    Markdown,
}

impl Style {
    fn table(self) -> Table {
        let mut table = Table::new();
        table.load_preset(match self {
            Self::Terminal => UTF8_BORDERS_ONLY,
            Self::Markdown => ASCII_MARKDOWN,
        });
        table
    }

    fn heading(self, title: &str) -> String {
        match self {
            Self::Terminal => format!("\n{title}\n"),
            Self::Markdown => format!("\n### {title}\n\n"),
        }
    }
}

/// A number with three digits.
fn three_digits(value: f64) -> String {
    match value {
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ if value >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// The figure of a point: microseconds, a million messages or 10⁹ bytes a second.
fn figure(point: Point, seconds: f64) -> f64 {
    match point.kind {
        Kind::Latency => seconds * 1e6,
        Kind::Stream if point.size < BYTES_FROM => 1e-6 / seconds,
        Kind::Stream => point.size as f64 / seconds / 1e9,
    }
}

impl Results {
    fn table(&self, style: Style, points: impl Fn(u64) -> Point) -> Option<Table> {
        let contestants = self.contestants();
        let mut table = style.table();
        let names = contestants.iter().map(ToString::to_string);
        let ours: Vec<_> = contestants.iter().copied().filter(|who| who.is_ours()).collect();
        let ratios = ours.iter().map(|who| format!("{who} of the best peer"));
        table.set_header(std::iter::once("size".to_owned()).chain(names).chain(ratios));
        for size in self.sizes() {
            let point = points(size);
            let times: Vec<_> = contestants.iter().map(|who| self.time(*who, point)).collect();
            if times.iter().all(Option::is_none) {
                continue;
            }
            let shown = times.iter().map(|time| {
                time.map_or_else(String::new, |time| three_digits(figure(point, time)))
            });
            // Of times one way, of rates in a stream.
            let ratios = ours.iter().map(|who| {
                let ratio = self.to_best_peer(*who, point).map(|ratio| match point.kind {
                    Kind::Latency => ratio,
                    Kind::Stream => 1.0 / ratio,
                });
                ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"))
            });
            table.add_row(std::iter::once(readable(size)).chain(shown).chain(ratios));
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        (table.row_count() > 0).then_some(table)
    }

    /// The goals, and how they were met.
    fn goal_table(&self, style: Style) -> Table {
        let mut table = style.table();
        table.set_header(["goal", "", "worst", "at", ""]);
        for goal in self.goals() {
            table.add_row([
                goal.what.clone(),
                goal.bound.shown(),
                format!("{:.2}", goal.worst),
                goal.at.clone(),
                goal.verdict(),
            ]);
        }
        table
    }

    /// For each byte that efa delivers, those in packets, of these those that went to their buffer at once, and those that the
    /// device read.
    fn moved_table(&self, style: Style) -> Option<Table> {
        let mut table = style.table();
        let columns = ["in packets", "placed", "read", "mapped: in packets", "placed", "read"];
        table.set_header(["size", "way"].into_iter().chain(columns));
        for size in self.sizes() {
            for (way, point) in [
                ("one way", Point::latency(size)),
                ("stream, a buffer each", Point::widest(size, Form::Each)),
            ] {
                let moved =
                    [Contestant::Ours, Contestant::Mapped].map(|who| self.moved(who, point));
                if moved.iter().all(Option::is_none) {
                    continue;
                }
                let shares = moved.into_iter().flat_map(|moved| match moved {
                    Some(moved) => moved.map(|share| format!("{share:.2}")),
                    None => Default::default(),
                });
                table.add_row([readable(size), way.into()].into_iter().chain(shares));
            }
        }
        (table.row_count() > 0).then_some(table)
    }

    /// All tables, and the notes.
    pub(super) fn tables(&self, style: Style) -> String {
        let mut text = style.heading("Goals");
        let goals = self.goals();
        if !goals.is_empty() {
            text += &format!("{}\n", self.goal_table(style));
        }
        if let Some(table) = self.table(style, Point::latency) {
            text += &style.heading("One way, µs");
            text += &format!("{table}\n");
        }
        for (window, form) in STREAMS {
            let Some(table) = self.table(style, |size| Point::stream(size, window, form)) else {
                continue;
            };
            let buffers = match form {
                Form::One => "one buffer",
                Form::Each => "a buffer for each message under way",
            };
            text += &style.heading(&format!(
                "Streams, window {window}, {buffers}: million messages/s below 4 KiB, GB/s from 4 KiB on"
            ));
            text += &format!("{table}\n");
        }
        if let Some(table) = self.moved_table(style) {
            text +=
                &style.heading("efa: bytes in packets, and bytes read, for each byte delivered");
            text += &format!("{table}\n");
        }
        if !self.notes.is_empty() {
            text += "\n";
            self.notes.iter().for_each(|note| text += &format!("* {note}\n"));
        }
        text
    }

    /// The section of docs/performance.md.
    pub(super) fn markdown(
        &self,
        date: &str,
        machine: &str,
        command: &str,
        void: Option<&str>,
    ) -> String {
        let void = void.map_or_else(String::new, |why| format!("**Void: {why}.**\n\n"));
        format!(
            "## Figures\n\n{void}{date}, {machine}, by `{command}`; medians of {} rounds. {}.\n{}",
            self.rounds.len(),
            self.tcp_place,
            self.tables(Style::Markdown)
        )
    }

    fn plot(
        &self,
        (title, y): (&str, &str),
        legend: Corner,
        points: impl Fn(u64) -> Point,
    ) -> Plot {
        let unit = |point: Point, time: f64| match point.kind {
            Kind::Latency => time * 1e6,
            Kind::Stream => point.size as f64 / time / 1e9,
        };
        let series = self.contestants().into_iter().map(|who| {
            let of = |size: u64| {
                let point = points(size);
                Some((size as f64, unit(point, self.time(who, point)?)))
            };
            Series::new(who.to_string(), self.sizes().into_iter().filter_map(of))
        });
        let (title, x) = (title.to_owned(), "bytes of a message".to_owned());
        Plot { title, x, y: y.into(), legend, series: series.collect() }
    }

    /// The plots, each with the name of its file.
    pub(super) fn plots(&self) -> Vec<(String, Plot)> {
        let one_way = self.plot(("One way", "µs"), Corner::UpperLeft, Point::latency);
        let streams =
            STREAMS.into_iter().filter(|(window, _)| *window > 1).map(|(window, form)| {
                let (name, buffers) = match form {
                    Form::One => ("one", "one buffer"),
                    Form::Each => ("each", "a buffer for each"),
                };
                let title = format!("Stream, window {window}, {buffers}");
                let points = move |size| Point::stream(size, window, form);
                let plot = self.plot((&title, "GB/s"), Corner::UpperLeft, points);
                (format!("stream-{window}-{name}.svg"), plot)
            });
        std::iter::once(("one-way.svg".to_owned(), one_way)).chain(streams).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::round;
    use super::*;

    fn results() -> Results {
        let rounds = [1e-6, 4e-6, 1e-6].map(|ours| round(ours, 0.0)).to_vec();
        let notes = vec!["UCX: missing; Debian has it in ucx-utils".into()];
        Results { rounds, notes, tcp_place: "TCP: on the moon" }
    }

    #[test]
    fn tables_have_a_row_for_each_size_and_a_column_for_each_program() {
        let mut table = results().table(Style::Terminal, Point::latency).unwrap();
        assert_eq!(table.row_count(), 5);
        assert_eq!(table.column_count(), 3 + Contestant::ALL.len());
        let row: Vec<String> =
            table.row(3).unwrap().cell_iter().map(|cell| cell.content()).collect();
        assert_eq!(
            row,
            [
                "4 KiB", "1.00", "1.00", "2.20", "2.00", "30.0", "2.00", "2.00", "2.00", "2.00",
                "", "2.00", "2.00", "2.00", "0.50", "0.50"
            ]
        );
        let point = |size| Point::stream(size, 64, Form::Each);
        let table = results().table(Style::Terminal, point).unwrap();
        let row = |at| -> Vec<String> {
            table.row(at).unwrap().cell_iter().map(|cell| cell.content()).collect()
        };
        // A million messages, then 10⁹ bytes a second, and the ratio of the rates.
        assert_eq!(row(1)[..5], ["8 B", "1.00", "1.00", "0.455", "0.500"]);
        assert_eq!(row(3)[..5], ["4 KiB", "4.10", "4.10", "1.86", "2.05"]);
        assert_eq!(row(3)[6], "");
        assert_eq!(row(3).last().unwrap(), "2.00");
    }

    #[test]
    fn section_has_date_machine_command_goals_and_notes() {
        let text = results().markdown("2026-11-25", "a machine", "cargo xtask bench peers", None);
        assert!(text.starts_with(
            "## Figures\n\n2026-11-25, a machine, by `cargo xtask bench peers`; medians of 3 rounds. TCP: on the moon.\n\n### Goals\n\n| goal"
        ), "{text}");
        for part in [
            "### One way, µs\n\n| ",
            "### Streams, window 64, a buffer for each message under way",
            "| 4 KiB | one way",
            "\n* UCX: missing; Debian has it in ucx-utils\n",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        let void = results().markdown("", "", "", Some("busy"));
        assert!(void.contains("**Void: busy.**"), "{void}");
    }

    #[test]
    fn plots_have_a_line_for_each_program_that_was_measured() {
        let plots = results().plots();
        let names: Vec<&str> = plots.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "one-way.svg",
                "stream-16-one.svg",
                "stream-16-each.svg",
                "stream-64-one.svg",
                "stream-64-each.svg"
            ]
        );
        for (name, plot) in plots {
            assert_eq!(plot.series.len(), Contestant::ALL.len(), "{name}");
            assert!(plot.to_svg().unwrap().contains("process_vm_readv"), "{name}");
        }
    }

    #[test]
    fn figures_have_three_digits() {
        let shown = [0.0123, 1.234, 12.34, 1234.5].map(three_digits);
        assert_eq!(shown, ["0.012", "1.23", "12.3", "1234"]);
    }
}
