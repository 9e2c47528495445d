//! `cargo xtask test`: the steps that a change must pass, in order, and a table of their results and
//! durations.

use std::fmt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::ahead::Ahead;
use crate::libtest::{self, TestCount};
use crate::setup::{self, Tool};
use crate::workspace::Workspace;
use crate::{bench, conformance, fuzz, interop, package, process, soak, verbs};

/// Arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run only these steps
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<Step>,
    /// Leave these steps out
    #[arg(long, value_name = "STEP", value_delimiter = ',', hide_possible_values = true)]
    skip: Vec<Step>,
    /// Continue after a failed step, and report all failures at the end
    #[arg(long)]
    keep_going: bool,
}

/// Features that are off by default and have tests, examples or documentation of their own.
pub(crate) const OFF_BY_DEFAULT: &str = "--features=efa/tokio,efa/capture";

/// One step of `cargo xtask test`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    /// The code is formatted
    Fmt,
    /// No warning from the compiler or clippy, in any target
    Clippy,
    /// Unit, property, snapshot and integration tests
    Tests,
    /// Tests of the software device with Debian's libfabric and its programs, and of its captures with tshark
    Libfabric,
    /// efa-verbs against rdma-core, and our stack on it (on the software device)
    Verbs,
    /// C programs, libfabric's own and Open MPI on our provider for libfabric, and its scenarios with libfabric's; the
    /// programs of `cargo xtask bench peers`
    Provider,
    /// The examples in the documentation
    Doctests,
    /// The documentation builds without a warning
    Doc,
    /// Crates for others can be published, and build with the features and toolchain they name
    Package,
    /// Each claimed row of the checklist has a test, and docs/conformance.md is up to date
    Conformance,
    /// The matrix of scenarios between this stack and libfabric
    Interop,
    /// A minute of random operations under faults, a minute or two of attacks on each link and libfabric, some
    /// seconds of sleeping threads
    Soak,
    /// Every fuzz target runs for some seconds
    Fuzz,
    /// The instruction benches keep their limits
    Bench,
}

/// The result of a step.
enum Outcome {
    Passed,
    Skipped(&'static str),
    Failed(anyhow::Error),
}

/// A line of the result table.
struct Report {
    step: Step,
    outcome: Outcome,
    took: Duration,
    tests: TestCount,
}

impl Step {
    pub(crate) const ALL: [Self; 14] = [
        Self::Fmt,
        Self::Clippy,
        Self::Tests,
        Self::Libfabric,
        Self::Verbs,
        Self::Provider,
        Self::Doctests,
        Self::Doc,
        Self::Package,
        Self::Conformance,
        Self::Interop,
        Self::Soak,
        Self::Fuzz,
        Self::Bench,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Clippy => "clippy",
            Self::Tests => "tests",
            Self::Libfabric => "libfabric",
            Self::Verbs => "verbs",
            Self::Provider => "provider",
            Self::Doctests => "doctests",
            Self::Doc => "doc",
            Self::Package => "package",
            Self::Conformance => "conformance",
            Self::Fuzz => "fuzz",
            Self::Interop => "interop",
            Self::Soak => "soak",
            Self::Bench => "bench",
        }
    }

    /// Tools that the step needs besides cargo.
    pub(crate) fn tools(self) -> &'static [Tool] {
        match self {
            Self::Fmt => &[Tool::Rustfmt],
            Self::Clippy | Self::Package => &[Tool::Clippy],
            Self::Verbs => &verbs::TOOLS,
            Self::Libfabric => &[
                Tool::FiInfo,
                Tool::LibfabricHeaders,
                Tool::VerbsHeaders,
                Tool::VerbsPrograms,
                Tool::CCompiler,
                Tool::OpenMpi,
                Tool::OpenMpiHeaders,
                Tool::PythonVenv,
                Tool::MpichWheel,
                Tool::OpenMpiWheel,
                Tool::Lstopo,
                Tool::Tshark,
            ],
            Self::Provider => &[
                Tool::FiInfo,
                Tool::LibfabricHeaders,
                Tool::VerbsHeaders,
                Tool::CCompiler,
                Tool::OpenMpi,
                Tool::OpenMpiHeaders,
                Tool::Mpi4py,
                Tool::NumPy,
                Tool::NetPipe,
                Tool::Services,
                Tool::UcxPerftest,
                Tool::Valgrind,
            ],
            Self::Fuzz => &fuzz::TOOLS,
            Self::Interop => &interop::TOOLS,
            Self::Bench => &[Tool::Valgrind, Tool::GungraunRunner],
            Self::Soak => &soak::LIBFABRIC,
            Self::Tests | Self::Doctests | Self::Doc | Self::Conformance => &[],
        }
    }

    /// Why the step is skipped in this tree, if it is.
    pub(crate) fn reason_to_skip(self, workspace: &Workspace) -> Result<Option<&'static str>> {
        Ok(match self {
            Self::Fuzz if workspace.fuzz_manifest().is_none() => {
                Some("there is no fuzz/Cargo.toml")
            }
            Self::Bench
                if workspace.metadata()?.packages_with_bench(bench::INSTRUCTIONS).is_empty() =>
            {
                Some("no crate has a bench `instructions`")
            }
            _ => None,
        })
    }

    fn run(self, workspace: &Workspace, tests: &mut TestCount) -> Result<()> {
        let mut cargo = workspace.cargo();
        match self {
            Self::Fmt => {
                process::run(cargo.args(["fmt", "--all", "--check"]))?;
                // Workspaces of their own.
                for (manifest, packages) in [
                    (package::NO_STD, None),
                    (verbs::RDMA_SYS, None),
                    (bench::NETIO_PEERS, Some("--all")),
                ] {
                    let mut cargo = workspace.cargo();
                    cargo.arg("fmt").args(packages).args(["--check", "--manifest-path", manifest]);
                    process::run(&mut cargo)?;
                }
                let Some(fuzz) = workspace.fuzz_manifest() else { return Ok(()) };
                let mut cargo = workspace.cargo();
                process::run(cargo.args(["fmt", "--check", "--manifest-path"]).arg(fuzz))
            }
            Self::Clippy => process::run(cargo.args([
                "clippy",
                "--workspace",
                "--all-targets",
                OFF_BY_DEFAULT,
                "--",
                "--deny=warnings",
            ])),
            // Not --all-targets: that would run the benches too.
            Self::Tests => {
                // Tests run the examples as programs; `cargo test --examples` would build them as tests.
                process::run(workspace.cargo().args([
                    "build",
                    "--workspace",
                    "--examples",
                    OFF_BY_DEFAULT,
                ]))?;
                cargo.args(["test", "--workspace", "--no-fail-fast", "--lib", "--bins", "--tests"]);
                // C programs run in steps of their own.
                cargo.arg(OFF_BY_DEFAULT).env("EFA_INTEROP", "0");
                // A snapshot that differs is a failure.
                run_tests(cargo.env("INSTA_UPDATE", "no"), tests)
            }
            Self::Libfabric => {
                let names = [
                    "libfabric",
                    "rdma_core",
                    "layout",
                    "openmpi",
                    "opened",
                    "wheels",
                    "wireshark",
                ];
                cargo.env("EFA_WHEELS", setup::python_environments(workspace)?);
                run_tests(with_packages(&mut cargo, &names), tests)
            }
            Self::Provider => {
                let names = ["layout", "programs", "provider", "doctor_provider"];
                run_tests(with_packages(&mut cargo, &names), tests)?;
                interop::provider_gate(workspace)?;
                bench::provider::gate(workspace)?;
                bench::peers::smoke(workspace)
            }
            Self::Verbs => verbs::step(workspace, |cargo| run_tests(cargo, tests)),
            Self::Doctests => {
                cargo.args(["test", "--workspace", "--no-fail-fast", OFF_BY_DEFAULT]);
                run_tests(cargo.arg("--doc"), tests)
            }
            Self::Doc => process::run(cargo.env("RUSTDOCFLAGS", "-D warnings").args([
                "doc",
                "--workspace",
                "--no-deps",
                // As docs.rs does.
                "--all-features",
            ])),
            Self::Package => package::step(workspace),
            Self::Conformance => conformance::check(workspace),
            Self::Fuzz => fuzz::gate(workspace),
            Self::Interop => interop::gate(workspace),
            Self::Soak => soak::gate(workspace),
            Self::Bench => bench::gate(workspace),
        }
    }
}

/// `cargo xtask test`
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let started = Instant::now();
    let steps = args.steps()?;

    let mut runnable = Vec::new();
    let mut reports = Vec::new();
    for step in steps {
        match step.reason_to_skip(workspace)? {
            None => runnable.push(step),
            Some(reason) => reports.push(Report::skipped(step, reason)),
        }
    }
    setup::provide(workspace, runnable.iter().flat_map(|step| step.tools().iter().copied()))?;

    let ahead = Ahead::start(workspace, &runnable)?;
    for (index, step) in runnable.iter().enumerate() {
        say!("\n==> [{}/{}] {}", index + 1, runnable.len(), step.name());
        let report = Report::of(*step, workspace);
        say!("<== {}: {report}", step.name());
        let failed = report.failed();
        reports.push(report);
        if failed && !args.keep_going {
            break;
        }
    }
    drop(ahead);
    conclude(&mut reports, runnable.len(), started.elapsed())
}

impl Args {
    /// The selected steps, in order.
    fn steps(&self) -> Result<Vec<Step>> {
        let steps: Vec<Step> = Step::ALL
            .into_iter()
            .filter(|step| self.only.is_empty() || self.only.contains(step))
            .filter(|step| !self.skip.contains(step))
            .collect();
        if steps.is_empty() {
            bail!("--only and --skip leave no step to run");
        }
        Ok(steps)
    }
}

/// Prints the result table, and fails if a step failed.
fn conclude(reports: &mut [Report], planned: usize, took: Duration) -> Result<()> {
    reports.sort_by_key(|report| Step::ALL.iter().position(|step| *step == report.step));
    say!("\n{:<12} result", "step");
    for report in &*reports {
        say!("{:<12} {report}", report.step.name());
    }
    say!("");

    let passed = reports.iter().filter(|report| report.passed()).count();
    let mut failed = Vec::new();
    for report in &*reports {
        if let Outcome::Failed(error) = &report.outcome {
            let step = report.step.name();
            say!("step {step} failed: {error:#}");
            say!("    run it alone with: cargo xtask test --only {step}");
            failed.push(step);
        }
    }
    if passed + failed.len() < planned {
        say!("later steps were not run; --keep-going runs them");
    }
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    let tests = reports.iter().fold(TestCount::default(), |sum, report| sum + report.tests);
    let tests = if tests == TestCount::default() { String::new() } else { format!("{tests}, ") };
    let took = Seconds(took);
    say!("xtask test: {verdict}, {passed} of {planned} steps passed, {tests}{took}");
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

impl Report {
    fn of(step: Step, workspace: &Workspace) -> Self {
        let started = Instant::now();
        let mut tests = TestCount::default();
        let outcome = match step.run(workspace, &mut tests) {
            Ok(()) => Outcome::Passed,
            Err(error) => Outcome::Failed(error),
        };
        Self { step, outcome, took: started.elapsed(), tests }
    }

    fn skipped(step: Step, reason: &'static str) -> Self {
        let outcome = Outcome::Skipped(reason);
        Self { step, outcome, took: Duration::ZERO, tests: TestCount::default() }
    }

    fn failed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed(_))
    }

    fn passed(&self) -> bool {
        matches!(self.outcome, Outcome::Passed)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Passed => write!(f, "ok      {:>9}", Seconds(self.took))?,
            Outcome::Skipped(reason) => write!(f, "skipped            {reason}")?,
            Outcome::Failed(_) => write!(f, "FAILED  {:>9}", Seconds(self.took))?,
        }
        if self.tests != TestCount::default() {
            write!(f, "  {}", self.tests)?;
        }
        Ok(())
    }
}

/// The files of tests with these names. All packages are selected, as in the step `tests`, whose build is theirs then:
/// features depend on the selection.
fn with_packages<'a>(cargo: &'a mut Command, files: &[&str]) -> &'a mut Command {
    cargo.args(["test", "--workspace", "--no-fail-fast", OFF_BY_DEFAULT]);
    cargo.args(files.iter().map(|file| format!("--test={file}")));
    // The Debian packages are installed, so no test is skipped.
    cargo.env("EFA_INTEROP", "1")
}

/// Test programs that print nothing for so long are killed. The longest tests take a minute, but cargo prints nothing on
/// standard output while it compiles them.
const PATIENCE: Duration = Duration::from_secs(1200);

/// Runs tests and counts them. No test at all is a failure.
fn run_tests(command: &mut Command, tests: &mut TestCount) -> Result<()> {
    // Arguments of libtest stand behind two hyphens.
    let hyphens = (!command.get_args().any(|argument| argument == "--")).then_some("--");
    run_tests_within(PATIENCE, command.args(hyphens).arg(libtest::SHOW_OUTPUT), tests)
}

/// Runs tests that may print nothing for any time. No test at all is a failure.
pub(crate) fn run_long_tests(command: &mut Command) -> Result<()> {
    run_tests_within(Duration::MAX, command, &mut TestCount::default())
}

fn run_tests_within(
    patience: Duration,
    command: &mut Command,
    tests: &mut TestCount,
) -> Result<()> {
    let mut reader = libtest::Reader::default();
    let result = process::run_inspecting(command, patience, |line| reader.take(line));
    for (test, reason) in &reader.skipped {
        say!("skipped {test}: {reason}");
    }
    *tests = *tests + reader.count;
    result?;
    if reader.count.passed == 0 {
        bail!("cargo ran no test");
    }
    Ok(())
}

/// A duration for people: `4.2 s`, `3 min 07 s`.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0.as_secs() {
            0..60 => format!("{:.1} s", self.0.as_secs_f64()),
            seconds => format!("{} min {:02} s", seconds / 60, seconds % 60),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_names_on_the_command_line_are_those_printed() {
        for step in Step::ALL {
            let value = step.to_possible_value().unwrap();
            assert_eq!(value.get_name(), step.name());
        }
        assert_eq!(Step::value_variants(), Step::ALL);
    }

    #[test]
    fn only_and_skip_keep_the_order_of_steps() {
        let args = |only: &[Step], skip: &[Step]| Args {
            only: only.to_vec(),
            skip: skip.to_vec(),
            keep_going: false,
        };
        assert_eq!(args(&[], &[]).steps().unwrap(), Step::ALL);
        assert_eq!(
            args(&[Step::Doc, Step::Fmt, Step::Fuzz], &[Step::Fuzz]).steps().unwrap(),
            [Step::Fmt, Step::Doc]
        );
        assert!(args(&[Step::Doc], &[Step::Doc]).steps().is_err());
    }

    #[test]
    fn step_that_runs_no_test_fails() {
        let mut tests = TestCount::default();
        let mut nothing = Command::new("echo");
        nothing.arg("test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured");
        assert!(run_tests(&mut nothing, &mut tests).is_err());
        let mut some = Command::new("echo");
        some.arg("test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured");
        assert!(run_tests(&mut some, &mut tests).is_ok());
        assert!(run_tests(&mut nothing, &mut tests).is_err(), "after others that ran some");
    }

    #[test]
    fn failed_step_fails_the_run() {
        let report = |step, outcome| Report {
            step,
            outcome,
            took: Duration::from_secs(187),
            tests: TestCount::default(),
        };
        let failed = report(Step::Doc, Outcome::Failed(anyhow::anyhow!("no")));
        assert_eq!(failed.to_string(), "FAILED  3 min 07 s");
        let mut reports =
            [failed, report(Step::Fmt, Outcome::Passed), Report::skipped(Step::Fuzz, "none")];
        let error = conclude(&mut reports, 2, Duration::ZERO).unwrap_err();
        assert_eq!(error.to_string(), "failed: doc");
        assert!(conclude(&mut reports[..1], 1, Duration::ZERO).is_ok(), "fmt, sorted to the front");
    }
}
