//! The table of the specifications' requirements and the tests that show them.
//!
//! ```text
//!  docs/checklist/a-protocol.md …  rows      ┐
//!  docs/checklist/claimed.txt      claims    ├─► table ─► docs/conformance.md
//!  docs/checklist/not-applicable.md reasons  │     └────► problems, which fail the task
//!  `// conformance: A1` above tests  tags    ┘
//! ```

mod checklist;
mod report;
mod tags;

use std::path::Path;

use anyhow::{Context, Result, bail};

use self::checklist::Checklist;
use self::report::Table;
use crate::workspace::Workspace;

const CHECKLIST: &str = "docs/checklist";
const REPORT: &str = "docs/conformance.md";
const STALE: &str = "out of date: run `cargo xtask conformance` and commit the result";

/// Arguments of `cargo xtask conformance`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write nothing, and fail if docs/conformance.md is out of date
    #[arg(long)]
    check: bool,
}

/// `cargo xtask conformance`
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if args.check { check(workspace) } else { write(workspace) }
}

/// Writes the report, then checks it.
fn write(workspace: &Workspace) -> Result<()> {
    let table = collect(workspace.root())?;
    let path = workspace.root().join(REPORT);
    std::fs::write(&path, table.to_markdown())
        .with_context(|| format!("cannot write {}", path.display()))?;
    say!("wrote {REPORT}: {}", table.totals());
    judge(&table, None)
}

/// Checks the tree as it is, with the report that is there.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let table = collect(workspace.root())?;
    let path = workspace.root().join(REPORT);
    let stale = match std::fs::read_to_string(&path) {
        Ok(present) => present != table.to_markdown(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(error).context(format!("cannot read {}", path.display())),
    };
    say!("conformance: {}", table.totals());
    judge(&table, stale.then_some(STALE))
}

fn collect(root: &Path) -> Result<Table> {
    let checklist = Checklist::read(&root.join(CHECKLIST))?;
    let tags = tags::collect(root)?;
    Ok(Table::new(checklist, tags))
}

fn judge(table: &Table, stale: Option<&str>) -> Result<()> {
    let mut problems: Vec<String> = table.problems().iter().map(ToString::to_string).collect();
    problems.extend(stale.map(|reason| format!("{REPORT}: {reason}")));
    if problems.is_empty() {
        return Ok(());
    }
    for problem in &problems {
        print_error!("error: {problem}");
    }
    bail!("conformance: {} problems", problems.len());
}
