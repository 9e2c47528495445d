//! `cargo xtask fuzz`: runs the fuzz targets, one or all, for any time.
//!
//! ```text
//!   cargo fuzz build ──► fuzz/target/…/<target> ──► corpus grows │ progress, a line a target
//!                                └── fails ──► the input decoded, how to replay and keep it
//! ```
//!
//! The bodies of the targets are in `tests/hostile`; `cargo test -p efa-hostile` replays their inputs.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::process;
use crate::setup::{self, Tool};
use crate::workspace::Workspace;

/// Arguments of `cargo xtask fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    task: Option<Task>,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// List the targets (the default)
    List,
    /// Run targets, all unless some are named
    Run(Run),
    /// Print an input decoded, and run it
    Show {
        /// The target
        target: String,
        /// The input
        file: PathBuf,
    },
    /// Make inputs for the other targets from the packets in fuzz/corpus/packet
    Seeds,
    /// Reduce a failing input to FILE.min
    Shrink {
        /// The target
        target: String,
        /// The input
        file: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
struct Run {
    /// The targets
    targets: Vec<String>,
    /// How long each target runs
    #[arg(long, value_name = "MINUTES", default_value_t = 1.0)]
    minutes: f64,
    /// How many targets run at a time
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    jobs: usize,
    /// Sanitizer to build with
    #[arg(long, value_name = "WHICH", default_value = "none")]
    sanitizer: Sanitizer,
}

/// Sanitizer of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sanitizer {
    /// Nothing
    None,
    /// AddressSanitizer: memory errors of unsafe code, and leaks
    Address,
}

impl Sanitizer {
    const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Address => "address",
        }
    }

    /// Directory of the built targets, one for each sanitizer.
    fn target_folder(self, fuzz: &Path) -> PathBuf {
        let folder = fuzz.join("target");
        if self == Self::None { folder } else { folder.join(self.name()) }
    }
}

/// What the targets are built with, and libfabric, which one of them calls our provider with.
pub(crate) const TOOLS: [Tool; 3] = [Tool::CxxCompiler, Tool::CargoFuzz, Tool::FiInfo];

/// Seconds of each target in `cargo xtask test`.
const GATE: Duration = Duration::from_secs(5);
/// Most seconds of one run: libFuzzer counts in 32 bits.
const LONGEST_RUN: u64 = 366 * 24 * 3600;
/// Longest input in bytes: enough for a few hundred decisions.
const LONGEST: usize = 1024;

/// `cargo xtask fuzz`
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    match &args.task {
        None | Some(Task::List) => hostile(workspace, &["list"]),
        Some(Task::Show { target, file }) => {
            hostile(workspace, &["show", target, text(&from_here(file)?)?])
        }
        Some(Task::Seeds) => {
            hostile(workspace, &["seeds", text(&workspace.root().join("fuzz/corpus"))?])
        }
        Some(Task::Shrink { target, file }) => {
            hostile(workspace, &["shrink", target, text(&from_here(file)?)?])
        }
        Some(Task::Run(Run { targets, minutes, jobs, sanitizer })) => {
            let time = Duration::try_from_secs_f64(minutes * 60.0)
                .ok()
                .filter(|time| (1..=LONGEST_RUN).contains(&time.as_secs()))
                .with_context(|| format!("--minutes {minutes}: a second to a year is expected"))?;
            // An unknown target is told before anything is installed.
            let fuzzer = Fuzzer::of(workspace, targets, *sanitizer)?;
            setup::provide(workspace, TOOLS)?;
            process::run(&mut fuzzer.build()?)?;
            fuzzer.run(time, (*jobs).max(1), None)
        }
    }
}

/// The step of `cargo xtask test`: every target for a short time, from a fixed seed, so that a change doesn't fail
/// by what it didn't do. A target keeps one processor busy, so as many run at a time as there are. The tests replay the
/// regressions. The build is the longer part: it is optimized less than that of a long run, which gives a half of the
/// runs.
pub(crate) fn gate(workspace: &Workspace) -> Result<()> {
    let jobs = std::thread::available_parallelism().map_or(1, NonZero::get);
    let fuzzer = Fuzzer::of(workspace, &[], Sanitizer::None)?;
    process::run(&mut fuzzer.build_for_gate()?)?;
    fuzzer.run(GATE, jobs, Some(1))
}

/// The command that builds the targets for [`gate`].
pub(crate) fn build_of_gate(workspace: &Workspace) -> Result<Command> {
    Fuzzer::of(workspace, &[], Sanitizer::None)?.build_for_gate()
}

/// Runs `efa-hostile`, which has the targets without a fuzzer.
fn hostile(workspace: &Workspace, arguments: &[&str]) -> Result<()> {
    let mut cargo = workspace.cargo();
    cargo.args(["run", "--quiet", "--release", "--package=efa-hostile", "--"]);
    process::run(cargo.args(arguments))
}

/// The absolute path of a file that the user names: the program runs in the root of the repository.
fn from_here(file: &Path) -> Result<PathBuf> {
    std::path::absolute(file).with_context(|| format!("cannot resolve the path {}", file.display()))
}

fn text(file: &Path) -> Result<&str> {
    file.to_str().with_context(|| format!("{} is no text", file.display()))
}

/// Some targets, and how they are built.
struct Fuzzer<'a> {
    workspace: &'a Workspace,
    folder: PathBuf,
    sanitizer: Sanitizer,
    /// Directory of the programs.
    built: PathBuf,
    targets: Vec<String>,
}

/// Lines of a sanitizer's report that are shown.
const REPORT: usize = 16;

impl<'a> Fuzzer<'a> {
    fn of(workspace: &'a Workspace, wanted: &[String], sanitizer: Sanitizer) -> Result<Self> {
        let folder = workspace.root().join("fuzz");
        let targets = targets_among(wanted, &folder)?;
        let built = sanitizer.target_folder(&folder).join(host()?).join("release");
        Ok(Self { workspace, folder, sanitizer, built, targets })
    }

    /// The command that builds them.
    fn build(&self) -> Result<Command> {
        let Self { folder, sanitizer, targets, .. } = self;
        let mut cargo_fuzz = Command::new(setup::cargo_fuzz(self.workspace)?);
        cargo_fuzz.current_dir(folder).args(["fuzz", "build", "--sanitizer", sanitizer.name()]);
        if *sanitizer != Sanitizer::None {
            // The stable compiler includes the sanitizer, but the flag for it is unstable.
            cargo_fuzz.env("RUSTC_BOOTSTRAP", "1");
        }
        cargo_fuzz.arg("--target-dir").arg(sanitizer.target_folder(folder));
        if let [target] = &targets[..] {
            cargo_fuzz.arg(target);
        }
        Ok(cargo_fuzz)
    }

    /// The same, less optimized.
    fn build_for_gate(&self) -> Result<Command> {
        let mut cargo_fuzz = self.build()?;
        cargo_fuzz.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
        cargo_fuzz.env("CARGO_PROFILE_RELEASE_DEBUG", "0");
        Ok(cargo_fuzz)
    }

    /// Runs all, `jobs` at a time.
    fn run(&self, time: Duration, jobs: usize, seed: Option<u32>) -> Result<()> {
        let bars = MultiProgress::new();
        let next = AtomicUsize::new(0);
        let failures = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..jobs.min(self.targets.len()) {
                scope.spawn(|| {
                    while let Some(target) = self.targets.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        let outcome = self.run_one(target, time, seed, &bars);
                        if let (Err(error), Ok(mut failures)) = (outcome, failures.lock()) {
                            failures.push((target, error));
                        }
                    }
                });
            }
        });
        let failures = failures.into_inner().unwrap_or_default();
        for (target, error) in &failures {
            say!("\n{target} failed: {error:#}");
        }
        match &failures[..] {
            [] => Ok(()),
            some => bail!("{} of {} targets failed", some.len(), self.targets.len()),
        }
    }

    fn run_one(
        &self,
        target: &str,
        time: Duration,
        seed: Option<u32>,
        bars: &MultiProgress,
    ) -> Result<()> {
        let bar = bars.add(ProgressBar::new(time.as_secs()));
        let style = "{prefix:<22} {wide_msg} {elapsed:>4} of {len} s";
        bar.set_style(ProgressStyle::with_template(style)?);
        bar.set_prefix(target.to_owned());
        bar.enable_steady_tick(Duration::from_secs(1));

        let corpus = self.folder.join("corpus").join(target);
        let artifacts = self.folder.join("artifacts").join(target);
        for folder in [&corpus, &artifacts] {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let mut command = Command::new(self.built.join(target));
        command.current_dir(&self.folder);
        command.arg(format!("-max_total_time={}", time.as_secs()));
        command.arg(format!("-max_len={LONGEST}"));
        command.arg(format!("-artifact_prefix={}/", artifacts.display()));
        if let Some(seed) = seed {
            command.arg(format!("-seed={seed}"));
        }
        let dictionary = self.folder.join("dictionaries").join(target).with_extension("dict");
        if dictionary.is_file() {
            command.arg(format!("-dict={}", dictionary.display()));
        }
        // The gate doesn't keep what it finds: the next one starts from the same corpus.
        let scratch = self.folder.join("target/scratch").join(target);
        if seed.is_some() {
            // Of a gate that was interrupted.
            let _ = std::fs::remove_dir_all(&scratch);
            std::fs::create_dir_all(&scratch)
                .with_context(|| format!("cannot make {}", scratch.display()))?;
            command.arg(&scratch);
        }
        command.arg(&corpus);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child =
            command.spawn().with_context(|| format!("cannot start the fuzzer of {target}"))?;
        let output = child.stderr.take().context("the fuzzer has no output")?;
        let mut last = Progress::default();
        let mut culprit = None;
        let (mut tail, mut report) = (Vec::new(), Vec::new());
        for line in process::lines_of(output) {
            if let Some(progress) = Progress::of_line(&line) {
                bar.set_message(progress.to_string());
                last = progress;
            } else if let Some((_, file)) = line.split_once("Test unit written to ") {
                culprit = Some(PathBuf::from(file.trim()));
            } else if let Some(runs) = runs_done(&line) {
                last.executions = runs;
            }
            if line.contains("Sanitizer: ") && line.contains("ERROR") || !report.is_empty() {
                report.push(line.clone());
            }
            if tail.len() == 30 {
                tail.remove(0);
            }
            tail.push(line);
        }
        let status = child.wait()?;
        let _ = std::fs::remove_dir_all(&scratch);
        bar.finish_and_clear();
        if status.success() {
            say!("{target:<22} {last}, no failure");
            return Ok(());
        }
        let Some(culprit) = culprit else {
            bail!("the fuzzer ended with {status}:\n{}", tail.join("\n"));
        };
        report.truncate(REPORT);
        self.explain(target, &culprit, &report)
    }

    /// Prints all about a failed input, with the sanitizer's report if there is one.
    fn explain(&self, target: &str, culprit: &Path, report: &[String]) -> Result<()> {
        say!("\n{target} fails. The input, decoded:\n");
        let shown = hostile(self.workspace, &["show", target, text(culprit)?]);
        let file = culprit.display();
        if shown.is_ok() && report.is_empty() {
            say!("The target doesn't fail on it alone: it takes too long, or too much memory.");
        } else if shown.is_ok() {
            say!("It fails with the sanitizer alone:\n{}", report.join("\n"));
            say!("\nreplay it so: {} {file}", self.built.join(target).display());
        }
        say!("\nreplay it:  cargo xtask fuzz show {target} {file}");
        say!("shorten it: cargo xtask fuzz shrink {target} {file}");
        say!("keep it:    cp {file}.min fuzz/regressions/{target}/what-is-wrong");
        say!("            cargo test -p efa-hostile runs it from then on");
        bail!("{file}")
    }
}

/// The selected targets: all unless some are named.
fn targets_among(wanted: &[String], folder: &Path) -> Result<Vec<String>> {
    let all = targets_in(folder)?;
    if let Some(unknown) = wanted.iter().find(|target| !all.contains(target)) {
        bail!("no target {unknown}; there are {}", all.join(", "));
    }
    Ok(if wanted.is_empty() { all } else { wanted.to_vec() })
}

/// The targets by their files.
fn targets_in(folder: &Path) -> Result<Vec<String>> {
    let sources = folder.join("fuzz_targets");
    let entries =
        sources.read_dir().with_context(|| format!("cannot read {}", sources.display()))?;
    let mut targets = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if let (Some(name), Some("rs")) = (
            path.file_stem().and_then(|name| name.to_str()),
            path.extension().and_then(|extension| extension.to_str()),
        ) {
            targets.push(name.to_owned());
        }
    }
    targets.sort();
    Ok(targets)
}

/// The triple that cargo-fuzz builds for.
fn host() -> Result<String> {
    let said = process::output_of(Command::new("rustc").arg("-vV"))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say what it builds for")?.to_owned())
}

/// How far a fuzzer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    executions: u64,
    /// Edges that were reached.
    covered: u64,
    /// Inputs that are kept.
    corpus: u64,
}

impl Progress {
    /// Of a line such as `#512 pulse  cov: 40 ft: 50 corp: 7/99b exec/s: 256 rss: 30Mb`.
    fn of_line(line: &str) -> Option<Self> {
        let executions = line.strip_prefix('#')?.split_whitespace().next()?.parse().ok()?;
        let after = |name| {
            let mut words = line.split_whitespace().skip_while(|word| *word != name).skip(1);
            let digits = words.next()?.split('/').next()?;
            digits.parse().ok()
        };
        Some(Self {
            executions,
            covered: after("cov:").unwrap_or(0),
            corpus: after("corp:").unwrap_or(0),
        })
    }
}

/// Of the last line of a fuzzer, `Done 1258826 runs in 11 second(s)`.
fn runs_done(line: &str) -> Option<u64> {
    line.strip_prefix("Done ")?.split_whitespace().next()?.parse().ok()
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { executions, covered, corpus } = self;
        write!(f, "{executions} executions, {covered} edges, {corpus} inputs")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_parsed_from_libfuzzer_output() {
        let line = "#8192\tpulse  cov: 412 ft: 993 corp: 88/5013b lim: 17 exec/s: 4096 rss: 40Mb";
        let progress = Progress::of_line(line).unwrap();
        assert_eq!(progress, Progress { executions: 8192, covered: 412, corpus: 88 });
        assert_eq!(progress.to_string(), "8192 executions, 412 edges, 88 inputs");
        assert_eq!(Progress::of_line("INFO: seed corpus: files: 7"), None);
        assert_eq!(runs_done("Done 1258826 runs in 11 second(s)"), Some(1_258_826));
    }

    #[test]
    fn fuzz_programs_with_sanitizer_have_another_path() {
        let folder = |sanitizer: Sanitizer| sanitizer.target_folder(Path::new("fuzz"));
        assert_eq!(folder(Sanitizer::None), Path::new("fuzz/target"));
        assert_eq!(folder(Sanitizer::Address), Path::new("fuzz/target/address"));
    }

    #[test]
    fn every_fuzz_target_has_corpus_and_dictionary() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
        let targets = targets_in(&folder).unwrap();
        assert!(targets.len() >= 10, "{targets:?}");
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        for target in targets {
            assert!(manifest.contains(&format!("name = {target:?}")), "{target} is not built");
            let dictionary = folder.join("dictionaries").join(&target).with_extension("dict");
            assert!(dictionary.is_file(), "{}", dictionary.display());
            assert!(folder.join("corpus").join(&target).is_dir(), "{target} has no corpus");
        }
    }
}
