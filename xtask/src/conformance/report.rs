//! Joins rows, claims, reasons and tests: the report, and the problems.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::checklist::{Checklist, Row, RowId, Section};
use super::tags::{MisplacedTag, TaggedTest, Tags};

/// Every row and what shows it.
#[derive(Debug)]
pub(crate) struct Table {
    sections: Vec<Section>,
    claimed: BTreeSet<RowId>,
    reasons: BTreeMap<RowId, String>,
    absent: String,
    tests: BTreeMap<RowId, Vec<TestRef>>,
    misplaced: Vec<MisplacedTag>,
}

/// A test, as the report shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TestRef {
    path: String,
    file: String,
}

/// A problem in the tree.
#[derive(Debug)]
pub(crate) enum Problem<'a> {
    /// A claim without test or reason.
    ClaimWithoutTest(RowId),
    /// A claim of a row that is not in the checklist.
    UnknownClaim(RowId),
    /// A reason for a row that is not in the checklist.
    UnknownReason(RowId),
    /// A tag naming a row that is not in the checklist.
    UnknownTag { row: RowId, test: &'a str, file: &'a str },
    /// A row that doesn't apply and has a test.
    ReasonAndTest { row: RowId, test: &'a str },
    /// An invalid tag.
    Misplaced(&'a MisplacedTag),
}

/// How many rows are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    rows: usize,
    shown: usize,
    not_applicable: usize,
    claimed: usize,
}

impl Table {
    pub(crate) fn new(checklist: Checklist, tags: Tags) -> Self {
        let mut tests: BTreeMap<RowId, Vec<TestRef>> = BTreeMap::new();
        for TaggedTest { path, file, rows } in tags.tests {
            for row in rows {
                let test = TestRef { path: path.clone(), file: file.clone() };
                tests.entry(row).or_default().push(test);
            }
        }
        for tests in tests.values_mut() {
            tests.sort();
            tests.dedup();
        }
        Self {
            sections: checklist.sections,
            claimed: checklist.claimed.into_iter().collect(),
            reasons: checklist.not_applicable.into_iter().collect(),
            absent: checklist.absent,
            tests,
            misplaced: tags.misplaced,
        }
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.sections.iter().flat_map(|section| &section.rows)
    }

    /// All problems, in the order of the rows.
    pub(crate) fn problems(&self) -> Vec<Problem<'_>> {
        let known: BTreeSet<RowId> = self.rows().map(|row| row.id).collect();
        let mut problems: Vec<Problem<'_>> =
            self.misplaced.iter().map(Problem::Misplaced).collect();
        for &row in &self.claimed {
            if !known.contains(&row) {
                problems.push(Problem::UnknownClaim(row));
            } else if !self.tests.contains_key(&row) && !self.reasons.contains_key(&row) {
                problems.push(Problem::ClaimWithoutTest(row));
            }
        }
        for &row in self.reasons.keys() {
            if !known.contains(&row) {
                problems.push(Problem::UnknownReason(row));
            } else if let Some(test) = self.tests.get(&row).and_then(|tests| tests.first()) {
                problems.push(Problem::ReasonAndTest { row, test: &test.path });
            }
        }
        for (&row, tests) in &self.tests {
            if !known.contains(&row) {
                problems.extend(tests.iter().map(|test| Problem::UnknownTag {
                    row,
                    test: &test.path,
                    file: &test.file,
                }));
            }
        }
        problems
    }

    pub(crate) fn totals(&self) -> Totals {
        self.count(self.rows())
    }

    fn count<'a>(&self, rows: impl Iterator<Item = &'a Row>) -> Totals {
        rows.fold(Totals::default(), |sum, row| Totals {
            rows: sum.rows + 1,
            shown: sum.shown + usize::from(self.tests.contains_key(&row.id)),
            not_applicable: sum.not_applicable + usize::from(self.reasons.contains_key(&row.id)),
            claimed: sum.claimed + usize::from(self.claimed.contains(&row.id)),
        })
    }

    /// The whole of docs/conformance.md.
    pub(crate) fn to_markdown(&self) -> String {
        let mut text = String::from(
            "# Conformance\n\n\
             <!-- Written by `cargo xtask conformance`; changes by hand are lost. -->\n\n\
             What the specifications ask ([checklist](checklist/README.md)), and the tests that show that it \
             holds. A row without a test is open.\n\n\
             | section | rows | shown by tests | do not apply | open | claimed |\n|---|--:|--:|--:|--:|--:|\n",
        );
        for section in &self.sections {
            text += &summary_line(&section.title, self.count(section.rows.iter()));
        }
        text += &summary_line("**all**", self.totals());
        text += &format!("\nClaimed rows: {}.\n", ranges(&self.claimed));
        text += &self.absent;
        for section in &self.sections {
            text += &format!("\n## {}\n\n", section.title);
            text += "| row | requirement | shown by |\n|---|---|---|\n";
            for row in &section.rows {
                let shown = self.shown_by(row.id);
                text += &format!("| {} | {} | {shown} |\n", row.id, row.requirement);
            }
        }
        text
    }

    fn shown_by(&self, row: RowId) -> String {
        if let Some(reason) = self.reasons.get(&row) {
            return format!("does not apply: {reason}");
        }
        let tests = self.tests.get(&row).map(Vec::as_slice).unwrap_or_default();
        let links = tests.iter().map(|test| format!("[`{}`](../{})", test.path, test.file));
        links.collect::<Vec<_>>().join("<br>")
    }
}

fn summary_line(title: &str, totals: Totals) -> String {
    let Totals { rows, shown, not_applicable, claimed } = totals;
    let open = totals.open();
    format!("| {title} | {rows} | {shown} | {not_applicable} | {open} | {claimed} |\n")
}

/// `A1–A23, A25`
fn ranges(rows: &BTreeSet<RowId>) -> String {
    let mut ranges: Vec<(RowId, RowId)> = Vec::new();
    for &row in rows {
        match ranges.last_mut() {
            Some((_, last)) if last.next() == row => *last = row,
            _ => ranges.push((row, row)),
        }
    }
    if ranges.is_empty() {
        return "none yet".to_owned();
    }
    let shown = ranges.into_iter().map(|(first, last)| {
        if first == last { first.to_string() } else { format!("{first}–{last}") }
    });
    shown.collect::<Vec<_>>().join(", ")
}

impl Totals {
    fn open(self) -> usize {
        // A row may wrongly be both; that is reported as a problem, not as a crash.
        self.rows.saturating_sub(self.shown + self.not_applicable)
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, shown, not_applicable, claimed } = self;
        write!(
            f,
            "{rows} rows, {shown} shown by tests, {not_applicable} do not apply, {} open; \
             {claimed} claimed",
            self.open()
        )
    }
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClaimWithoutTest(row) => {
                write!(f, "{row}: claimed, but no test has it in a `// conformance:` line")
            }
            Self::UnknownClaim(row) => write!(f, "{row}: claimed, but not in the checklist"),
            Self::UnknownReason(row) => {
                write!(f, "{row}: said not to apply, but not in the checklist")
            }
            Self::UnknownTag { row, test, file } => {
                write!(f, "{row}: named by {test} in {file}, but not in the checklist")
            }
            Self::ReasonAndTest { row, test } => {
                write!(f, "{row}: said not to apply, but shown by {test}")
            }
            Self::Misplaced(tag) => write!(f, "{tag}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> RowId {
        text.parse().unwrap()
    }

    /// Rows A1 to A4 in one section.
    fn table(claimed: &[&str], not_applicable: &[&str], tests: &[(&str, &[&str])]) -> Table {
        let row = |name| Row { id: id(name), requirement: format!("requirement of {name}") };
        let rows = ["A1", "A2", "A3", "A4"].map(row).into();
        let checklist = Checklist {
            sections: vec![Section { title: "A.1 Framing".to_owned(), rows }],
            claimed: claimed.iter().map(|row| id(row)).collect(),
            not_applicable: not_applicable.iter().map(|row| (id(row), "why".to_owned())).collect(),
            absent: "\n## What stays absent\n\n* all else\n".to_owned(),
        };
        let tests = tests.iter().map(|(path, rows)| TaggedTest {
            path: (*path).to_owned(),
            file: "crates/x/src/lib.rs".to_owned(),
            rows: rows.iter().map(|row| id(row)).collect(),
        });
        Table::new(checklist, Tags { tests: tests.collect(), misplaced: Vec::new() })
    }

    fn problems(table: &Table) -> Vec<String> {
        table.problems().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn claimed_row_needs_a_test_or_a_reason() {
        let tests: &[(&str, &[&str])] = &[("x::t", &["A1"])];
        assert_eq!(problems(&table(&["A1", "A2"], &["A2"], tests)), [""; 0]);
        assert_eq!(
            problems(&table(&["A1", "A3"], &[], tests)),
            ["A3: claimed, but no test has it in a `// conformance:` line"]
        );
    }

    #[test]
    fn tags_of_absent_rows_are_reported() {
        assert_eq!(
            problems(&table(&["A5"], &["A6"], &[("x::t", &["A1", "A7"])])),
            [
                "A5: claimed, but not in the checklist",
                "A6: said not to apply, but not in the checklist",
                "A7: named by x::t in crates/x/src/lib.rs, but not in the checklist",
            ]
        );
    }

    #[test]
    fn row_cannot_be_claimed_by_test_and_not_applicable() {
        assert_eq!(
            problems(&table(&[], &["A1"], &[("x::t", &["A1"])])),
            ["A1: said not to apply, but shown by x::t"]
        );
    }

    #[test]
    fn report_shows_tests_reasons_and_open_rows() {
        let table = table(
            &["A1", "A2", "A4"],
            &["A4"],
            &[("x::b", &["A1", "A1"]), ("x::a", &["A1"]), ("x::c", &["A2"])],
        );
        let text = table.to_markdown();
        let (_, text) = text.split_once("|--:|\n").unwrap();
        assert_eq!(
            text,
            "| A.1 Framing | 4 | 2 | 1 | 1 | 3 |\n\
             | **all** | 4 | 2 | 1 | 1 | 3 |\n\
             \n\
             Claimed rows: A1–A2, A4.\n\
             \n\
             ## What stays absent\n\
             \n\
             * all else\n\
             \n\
             ## A.1 Framing\n\
             \n\
             | row | requirement | shown by |\n\
             |---|---|---|\n\
             | A1 | requirement of A1 | [`x::a`](../crates/x/src/lib.rs)<br>[`x::b`](../crates/x/src/lib.rs) |\n\
             | A2 | requirement of A2 | [`x::c`](../crates/x/src/lib.rs) |\n\
             | A3 | requirement of A3 |  |\n\
             | A4 | requirement of A4 | does not apply: why |\n"
        );
        assert_eq!(
            table.totals().to_string(),
            "4 rows, 2 shown by tests, 1 do not apply, 1 open; 3 claimed"
        );
    }

    #[test]
    fn report_without_claims_says_none() {
        assert!(table(&[], &[], &[]).to_markdown().contains("Claimed rows: none yet.\n"));
    }

    // Wrap, unexpected messages, partial sends, grants of nothing, errors of a HANDSHAKE, a
    // registration that fails.
    // conformance: A221
    #[test]
    fn every_tip_for_implementers_has_a_test() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let table = crate::conformance::collect(root).unwrap();
        for tip in ["A99", "A106", "A112", "A120", "A57", "A58", "A166"] {
            assert!(table.tests.contains_key(&id(tip)), "{tip} has no test");
        }
    }
}
