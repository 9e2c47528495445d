//! Attackers, a victim and honest peers with checked bytes: `cargo xtask soak --hostile`.
//!
//! ```text
//!   scenario × link ─► HonestSide: victim, honest peers, one thread ─┐
//!                  └─► Attacker: this thread (local), a process ─────┴─► Row: rates, bytes, errors
//!   on libfabric: honest peers, a process of the victim, one of the attacker
//! ```

#![forbid(unsafe_code)]

mod attacker;
mod connections;
mod honest_side;
mod libfabric;
mod links;
#[path = "../minutes.rs"]
mod minutes;
mod packets;
mod process;
mod rings;
mod scenario;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use crate::libfabric::Programs;
use crate::links::Link;
use crate::scenario::{ALL, Row, Scenario};

/// Prints a line; a closed standard output is no error.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($words)*);
    }};
}

/// Run attacks on an endpoint while honest peers send to it, and check that they go on: every byte of
/// theirs, their order, their rate during the attack and a second after it, and the memory it takes.
#[derive(Parser)]
#[command(name = "efa-soak-hostile", bin_name = "cargo xtask soak --hostile", version)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    process: Option<Attacker>,

    /// Only this scenario; --list names them
    #[arg(long, value_name = "NAME", value_parser = scenario_named)]
    scenario: Option<&'static Scenario>,

    /// Only on this link
    #[arg(long)]
    link: Option<Link>,

    /// Seed of the attackers' choices and of the local link
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Repeat, with the seeds that follow, until this time is over [default: once]
    #[arg(long, value_parser = minutes::parse)]
    minutes: Option<Duration>,

    /// Print the scenarios and their links, and run nothing
    #[arg(long)]
    list: bool,

    /// The C peer of `cargo xtask interop`, a victim on libfabric
    #[arg(long, value_name = "PROGRAM", hide = true, requires = "soft_device")]
    libfabric_peer: Option<PathBuf>,

    /// The software device for that
    #[arg(long, value_name = "LIBRARY", hide = true)]
    soft_device: Option<PathBuf>,
}

impl Arguments {
    /// What a victim on libfabric needs, if `cargo xtask` found libfabric.
    fn programs(&self) -> Option<Programs> {
        let (peer, device) = (self.libfabric_peer.clone()?, self.soft_device.clone()?);
        Some(Programs { peer, device })
    }
}

#[derive(Subcommand)]
enum Attacker {
    /// The process of an attacker
    #[command(hide = true)]
    Attack(process::Arguments),
}

/// Parses the name of a scenario.
fn scenario_named(name: &str) -> Result<&'static Scenario, String> {
    let names = || ALL.iter().map(|scenario| scenario.name).collect::<Vec<_>>().join(", ");
    Scenario::named(name).ok_or_else(|| format!("there are: {}", names()))
}

fn list() {
    for scenario in ALL {
        let links: Vec<_> = scenario.links.iter().map(|link| link.name()).collect();
        say!("{:<13} {:<28} {}", scenario.name, links.join(" "), scenario.about);
    }
}

/// A line of the summary, and of the errors.
fn print(row: &Row) {
    let [before, during, after] = row.rates;
    let verdict = if row.errors.is_empty() { "ok" } else { "FAILED" };
    say!(
        "{:<13} {:<9} {:>11.0} {before:>10.0} {during:>10.0} {after:>10.0} {:>8.1} {:>6} {:>4} {:>6} {:>6}  {verdict}",
        row.scenario,
        row.link.name(),
        row.attack,
        row.work / 1e3,
        row.bytes >> 20,
        row.excluded,
        row.kept >> 20,
        row.grown >> 20,
    );
    for error in &row.errors {
        say!("    {error}");
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(Attacker::Attack(arguments)) = &arguments.process {
        return match process::run(arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::FAILURE
            }
        };
    }
    if arguments.list {
        list();
        return ExitCode::SUCCESS;
    }
    let chosen: Vec<(&'static Scenario, Link)> = ALL
        .iter()
        .filter(|scenario| arguments.scenario.is_none_or(|only| only.name == scenario.name))
        .flat_map(|scenario| scenario.links.iter().map(move |link| (scenario, *link)))
        .filter(|(_, link)| arguments.link.is_none_or(|only| only == *link))
        .collect();
    if chosen.is_empty() {
        eprintln!("error: this scenario doesn't run on this link; see --list");
        return ExitCode::FAILURE;
    }
    run(&arguments, &chosen)
}

fn run(arguments: &Arguments, chosen: &[(&'static Scenario, Link)]) -> ExitCode {
    let style = ProgressStyle::with_template("{elapsed_precise} {bar:40} {msg}");
    let progress = ProgressBar::new(chosen.len() as u64);
    progress.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    say!(
        "honest messages per second of virtual time (local), of CPU time of victim and honest peers (shm, tcp), of the victim (libfabric)"
    );
    say!(
        "{:<13} {:<9} {:>11} {:>10} {:>10} {:>10} {:>8} {:>6} {:>4} {:>6} {:>6}",
        "scenario",
        "link",
        "attacks/s",
        "before",
        "during",
        "1 s after",
        "work µs",
        "MiB",
        "excl",
        "kept",
        "grown"
    );
    let programs = arguments.programs();
    let start = Instant::now();
    let (mut runs, mut failed) = (0, 0);
    let mut seed = arguments.seed;
    loop {
        progress.set_position(0);
        for (scenario, link) in chosen {
            if let Some(reason) = links::absence(*link, programs.as_ref()) {
                progress.suspend(|| {
                    say!("{:<13} {:<9} skipped: {reason}", scenario.name, link.name());
                });
                progress.inc(1);
                continue;
            }
            progress.set_message(format!("{} on {}, seed {seed}", scenario.name, link.name()));
            runs += 1;
            let result = match (link, &programs) {
                (Link::Libfabric, Some(programs)) => libfabric::run(scenario, seed, programs),
                _ => scenario.run(*link, seed),
            };
            let failure = progress.suspend(|| match result {
                Ok(row) => {
                    print(&row);
                    !row.errors.is_empty()
                }
                Err(error) => {
                    say!("{:<13} {:<9} can't run: {error}", scenario.name, link.name());
                    true
                }
            });
            if failure {
                failed += 1;
                let (name, link) = (scenario.name, link.name());
                progress.suspend(|| {
                    say!("    cargo xtask soak --hostile --scenario {name} --link {link} --seed {seed}");
                });
            }
            progress.inc(1);
        }
        seed += 1;
        if arguments.minutes.is_none_or(|minutes| start.elapsed() >= minutes) {
            break;
        }
    }
    progress.finish_and_clear();
    let seconds = start.elapsed().as_secs();
    say!("soak --hostile: {} of {runs} runs passed, in {seconds} s", runs - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
