//! Reading `docs/checklist`: rows, claims, and reasons why a row does not apply.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

const CLAIMED: &str = "claimed.txt";
const NOT_APPLICABLE: &str = "not-applicable.md";
const README: &str = "README.md";

/// The id of a row: the letter of its part and a number, as in `A36`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RowId {
    part: char,
    number: u32,
}

/// A requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) id: RowId,
    /// In Markdown.
    pub(crate) requirement: String,
}

/// Rows under one heading.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) title: String,
    pub(crate) rows: Vec<Row>,
}

/// Everything in `docs/checklist`.
#[derive(Debug, Default)]
pub(crate) struct Checklist {
    pub(crate) sections: Vec<Section>,
    pub(crate) claimed: Vec<RowId>,
    pub(crate) not_applicable: Vec<(RowId, String)>,
    /// What stays absent and why, in Markdown with its heading.
    pub(crate) absent: String,
}

impl RowId {
    /// The row after this one in the same part.
    pub(crate) fn next(self) -> Self {
        Self { number: self.number + 1, ..self }
    }
}

impl FromStr for RowId {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let part = text.chars().next().filter(char::is_ascii_uppercase)?;
            let number = text.get(1..).filter(|digits| !digits.starts_with(['0', '+']))?;
            Some(Self { part, number: number.parse().ok()? })
        };
        parse().with_context(|| format!("`{text}` is not the id of a row, such as A36"))
    }
}

impl fmt::Display for RowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.part, self.number)
    }
}

impl Checklist {
    /// Reads all files of the directory.
    pub(crate) fn read(directory: &Path) -> Result<Self> {
        let mut files = std::fs::read_dir(directory)
            .and_then(|entries| {
                entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()
            })
            .with_context(|| format!("cannot read {}", directory.display()))?;
        files.sort();
        let mut checklist = Self::default();
        for file in files {
            let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let text = || {
                std::fs::read_to_string(&file)
                    .with_context(|| format!("cannot read {}", file.display()))
            };
            let at_file = || format!("in {}", file.display());
            match name {
                README => {}
                CLAIMED => checklist.claimed = claims(&text()?).with_context(at_file)?,
                NOT_APPLICABLE => {
                    let text = text()?;
                    checklist.not_applicable = reasons(&text).with_context(at_file)?;
                    let absent = text.find("\n## ").and_then(|begin| text.get(begin..));
                    checklist.absent = absent.unwrap_or_default().to_owned();
                }
                _ if name.ends_with(".md") => {
                    checklist.sections.extend(sections(&text()?).with_context(at_file)?);
                }
                _ => bail!("{} is not a file of the checklist", file.display()),
            }
        }
        checklist.refuse_duplicates()?;
        Ok(checklist)
    }

    fn refuse_duplicates(&self) -> Result<()> {
        let mut ids: Vec<RowId> =
            self.sections.iter().flat_map(|section| &section.rows).map(|row| row.id).collect();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => bail!("row {} stands in the checklist twice", pair[0]),
            None => Ok(()),
        }
    }
}

/// The sections of a checklist file: `## title`, then a table with id and requirement in front.
fn sections(markdown: &str) -> Result<Vec<Section>> {
    let mut sections: Vec<Section> = Vec::new();
    for line in markdown.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            sections.push(Section { title: title.trim().to_owned(), rows: Vec::new() });
        }
        let Some(cells) = body_cells(line) else { continue };
        let [id, requirement, ..] = cells.as_slice() else {
            bail!("a row needs an id and a requirement: {line}");
        };
        let section = sections.last_mut().context("a row stands before the first `## ` heading")?;
        section.rows.push(Row { id: id.parse()?, requirement: requirement.clone() });
    }
    Ok(sections)
}

/// Reasons why rows do not apply: a table of id and reason.
fn reasons(markdown: &str) -> Result<Vec<(RowId, String)>> {
    markdown
        .lines()
        .filter_map(body_cells)
        .map(|cells| match cells.as_slice() {
            [id, reason] if !reason.is_empty() => Ok((id.parse()?, reason.clone())),
            _ => bail!("a row needs an id and a reason: {}", cells.join(" | ")),
        })
        .collect()
}

/// Claimed rows, one a line: `A7`, or a range with both ends, `A1-A23`. `#` starts a comment.
fn claims(text: &str) -> Result<Vec<RowId>> {
    let mut claimed = Vec::new();
    for line in text.lines() {
        let entry = line.split('#').next().unwrap_or_default().trim();
        if entry.is_empty() {
            continue;
        }
        let (first, last) = match entry.split_once('-') {
            Some((first, last)) => (first.parse::<RowId>()?, last.parse::<RowId>()?),
            None => (entry.parse()?, entry.parse()?),
        };
        if first.part != last.part || first > last {
            bail!("`{entry}` is not a range of rows");
        }
        claimed.extend((first.number..=last.number).map(|number| RowId { number, ..first }));
    }
    claimed.sort_unstable();
    claimed.dedup();
    Ok(claimed)
}

/// The cells of a table line, unless it is the heading or the rule below it.
fn body_cells(line: &str) -> Option<Vec<String>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let mut cells = vec![String::new()];
    let mut escaped = false;
    for character in inner.chars() {
        match (character, cells.last_mut()) {
            ('|', _) if !escaped => cells.push(String::new()),
            (_, Some(cell)) => cell.push(character),
            (_, None) => {}
        }
        escaped = character == '\\';
    }
    let cells: Vec<String> = cells.iter().map(|cell| cell.trim().to_owned()).collect();
    let first = cells.first()?;
    (first != "row" && !first.starts_with("---")).then_some(cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> RowId {
        text.parse().unwrap()
    }

    #[test]
    fn row_ids_are_a_letter_and_a_number() {
        assert_eq!(id("A36"), RowId { part: 'A', number: 36 });
        assert_eq!(id("C139").to_string(), "C139");
        for wrong in ["", "A", "a1", "1", "A01", "A0", "A+1", "A-1", "A1x", "ÄA1", "A99999999999"]
        {
            assert!(wrong.parse::<RowId>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn row_ids_sort_by_number_within_a_part() {
        assert!(id("A9") < id("A10"));
        assert!(id("A223") < id("B1"));
        assert_eq!(id("A9").next(), id("A10"));
    }

    #[test]
    fn checklist_sections_hold_the_rows_of_their_tables() {
        let text = "# A. Protocol\n\nprose | with a bar\n\n## A.1 Framing\n\n\
                    | row | requirement | section |\n|---|---|---|\n\
                    | A1 | `type` u8 @0 | 1.3 |\n| A2 | (a \\| b) | 1.3 |\n\n## A.2 Address\n";
        let found = sections(text).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].title, "A.1 Framing");
        assert_eq!(found[0].rows[0], Row { id: id("A1"), requirement: "`type` u8 @0".into() });
        assert_eq!(found[0].rows[1].requirement, r"(a \| b)");
        assert!(found[1].rows.is_empty());
    }

    #[test]
    fn malformed_checklist_row_is_an_error() {
        assert!(sections("## S\n| A1x | requirement |\n").is_err());
        assert!(sections("## S\n| A1 |\n").is_err());
        assert!(sections("| A1 | before any heading |\n").is_err());
    }

    #[test]
    fn claims_parse_as_rows_and_ranges() {
        let text = "# comment\nA1-A3\n\nB7   # because\nA2\n";
        assert_eq!(claims(text).unwrap(), ["A1", "A2", "A3", "B7"].map(id));
        for wrong in ["A3-A1", "A1-B2", "A1 A2", "A1-", "all"] {
            assert!(claims(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn not_applicable_row_needs_a_reason() {
        let table = "| row | reason |\n|---|---|\n| A135 | no events |\n";
        assert_eq!(reasons(table).unwrap(), [(id("A135"), "no events".to_owned())]);
        assert!(reasons("| A135 | |\n").is_err());
    }

    #[test]
    fn duplicate_checklist_row_is_an_error() {
        let sections = sections("## S\n| A1 | a |\n| A2 | b |\n| A1 | c |\n").unwrap();
        let checklist = Checklist { sections, ..Checklist::default() };
        let error = checklist.refuse_duplicates().unwrap_err();
        assert_eq!(error.to_string(), "row A1 stands in the checklist twice");
    }
}
