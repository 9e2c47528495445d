//! The automation of this repository: `cargo xtask <task>`.
//!
//! ```text
//!  main ──► steps        the steps of `test` in order, and the result table
//!       ──► setup        Debian packages, rustup components, gungraun-runner
//!       ──► install      the tool and the C library, where the tool finds it
//!       ──► provider     the library for programs that use libfabric
//!       ──► bench        instruction counts (gungraun) and wall clock (criterion)
//!       ──► interop      scenarios between libfabric and this stack
//!       ──► soak         random operations under faults, for minutes or hours
//!       ──► fuzz         hostile input for every part that reads untrusted bytes
//!       ──► aarch64      the workspace for 64-bit ARM, and tests under emulation
//!       ──► conformance  checklist rows and the tests that show them
//!       ──► verbs        efa-verbs with rdma-core, and on the software device
//!       ──► package      crates can be published; their oldest Rust; `no_std`
//!            tests:   libtest (what `cargo test` prints)
//!            all use: workspace (paths, packages), process (child processes),
//!                     output (which may be closed)
//! ```
#![forbid(unsafe_code)]

#[macro_use]
mod output;

mod aarch64;
mod ahead;
mod bench;
mod checked;
mod conformance;
mod fuzz;
mod install;
mod interop;
mod libtest;
mod package;
mod process;
mod profile;
mod provider;
mod setup;
mod soak;
mod steps;
mod verbs;
mod watchdog;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};

use crate::workspace::Workspace;

/// Automation of the efa repository
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    disable_help_subcommand = true,
    after_help = "`cargo xtask <TASK> --help` describes one task."
)]
struct Cli {
    #[command(subcommand)]
    task: Option<Task>,
}

#[derive(Debug, Subcommand)]
#[command(subcommand_value_name = "TASK", subcommand_help_heading = "Tasks")]
enum Task {
    /// Install what is needed, and run every check that a change must pass
    Test(steps::Args),
    /// Install what the other tasks need, and do nothing else
    Setup,
    /// Install the tool `efa` and the C library that `efa soft-efa run` preloads
    Install(install::Args),
    /// Build the library by which programs that use libfabric run on this stack
    Provider(provider::Args),
    /// Count instructions of the benches (gungraun), or measure wall clock (criterion)
    Bench(bench::Args),
    /// Run scenarios between libfabric and this stack
    Interop(interop::Args),
    /// Run random operations under faults, and compare with a model
    Soak(soak::Args),
    /// Fuzz every part that reads untrusted bytes
    Fuzz(fuzz::Args),
    /// Build for 64-bit ARM, and run tests under emulation
    Aarch64(aarch64::Args),
    /// Collect the tests of each checklist row into docs/conformance.md
    Conformance(conformance::Args),
}

fn main() -> ExitCode {
    match run(Cli::parse()).and_then(|()| output::all_written()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    let Some(task) = cli.task else {
        output::keep(Cli::command().print_help());
        return Ok(());
    };
    let workspace = Workspace::locate()?;
    match task {
        Task::Test(args) => steps::run(&workspace, &args),
        Task::Setup => setup::provide_all(&workspace),
        Task::Install(args) => install::run(&workspace, &args),
        Task::Provider(args) => provider::run(&workspace, &args),
        Task::Bench(args) => bench::run(&workspace, &args),
        Task::Interop(args) => interop::run(&workspace, &args),
        Task::Soak(args) => soak::run(&workspace, &args),
        Task::Fuzz(args) => fuzz::run(&workspace, &args),
        Task::Aarch64(args) => aarch64::run(&workspace, &args),
        Task::Conformance(args) => conformance::run(&workspace, &args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn deadlines_out_of_range_are_refused() {
        for task in [
            "interop",
            "bench soft",
            "bench match",
            "bench vs-libfabric",
            "bench netio",
            "bench peers",
        ] {
            let parsed = |seconds: u64| {
                let line = format!("xtask {task} --deadline {seconds}");
                Cli::try_parse_from(line.split(' ')).is_ok()
            };
            assert!(parsed(60), "{task}");
            assert!(!parsed(0) && !parsed(u64::MAX), "{task}");
        }
    }
}
