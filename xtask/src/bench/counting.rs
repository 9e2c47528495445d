//! Instructions of a round of a ping-pong: what callgrind counted, and a fit over runs that differ in length.
//!
//! ```text
//!   Y = start + round · N + poll · (C − 3 N)       for several N, by least squares
//! ```
//!
//! N is the number of rounds and C that of calls into the library: three a round (post a receive, inject, read)
//! without empty reads. The number of empty reads varies from run to run; the fit removes it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::vs_libfabric;
use crate::profile::Profile;
use crate::workspace::Workspace;
use crate::{process, provider};

/// How what is counted is built: not by `checked`, whose assertions would be counted.
const PROFILE: Profile = Profile::Release;

/// Calls that a round makes.
const CALLS: f64 = 3.0;

/// What a run of the client came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) rounds: u32,
    pub(super) calls: u64,
    pub(super) instructions: u64,
}

/// Builds our program and our provider for libfabric; returns their directory. Both at once, as each keeps one processor
/// busy while it is optimized.
pub(super) fn build(workspace: &Workspace) -> Result<PathBuf> {
    process::run(&mut build_of_both(workspace))?;
    PROFILE.directory(workspace)
}

/// The command that builds them.
pub(crate) fn build_of_both(workspace: &Workspace) -> Command {
    let mut cargo = PROFILE.build_of(workspace, vs_libfabric::OURS);
    cargo.args(["--package", provider::PACKAGE]);
    cargo
}

/// A directory for one run, removed at the end.
pub(super) struct Place(pub(super) PathBuf);

impl Place {
    pub(super) fn make(scratch: &Path) -> Result<Self> {
        let place = scratch.join(format!("run-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir(&place).with_context(|| format!("cannot make {}", place.display()))?;
        Ok(Self(place))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What calls `main`, in the C library.
const MAIN: [&str; 2] = ["__libc_start", "(below main)"];

/// The C library and its loader, which finds thread-locals.
const C_LIBRARY: [&str; 2] = ["/libc.so", "/ld-linux"];

/// Instructions of the whole program, from a file of callgrind's.
pub(super) fn total(file: &str) -> Option<u64> {
    file.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok())
}

/// Instructions that the objects of interest spent themselves, and inclusively in calls of the C
/// library, from a file of callgrind's.
pub(super) fn cost(file: &str, is_ours: impl Fn(&str) -> bool) -> u64 {
    let (mut objects, mut functions) = (HashMap::new(), HashMap::new());
    let (mut object, mut callee, mut function, mut is_call) = ("", None, "", false);
    let mut sum = 0;
    for line in file.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            object = named(&mut objects, name);
        } else if let Some(name) = line.strip_prefix("cob=") {
            callee = Some(named(&mut objects, name));
        } else if let Some(name) = line.strip_prefix("fn=") {
            named(&mut functions, name);
        } else if let Some(name) = line.strip_prefix("cfn=") {
            function = named(&mut functions, name);
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if let Some(instructions) = cost_of(line) {
            let callee = callee.take_if(|_| is_call);
            let counts = match std::mem::take(&mut is_call) {
                false => true,
                // `main` is called by way of the C library.
                true => {
                    callee.is_some_and(|callee| C_LIBRARY.iter().any(|part| callee.contains(part)))
                        && !MAIN.iter().any(|way| function.starts_with(way))
                }
            };
            if counts && is_ours(object) {
                sum += instructions;
            }
        }
    }
    sum
}

/// `(7) name` says what 7 stands for, and `(7)` is it again.
fn named<'a>(names: &mut HashMap<&'a str, &'a str>, text: &'a str) -> &'a str {
    match text.split_once(' ') {
        Some((number, name)) => {
            names.insert(number, name);
            name
        }
        None => names.get(text).copied().unwrap_or_default(),
    }
}

/// The cost in a line of a position and a cost.
fn cost_of(line: &str) -> Option<u64> {
    let (position, cost) = line.split_once(' ')?;
    let position = position.trim_start_matches(['+', '-', '*']);
    let is_position = position.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'x');
    if is_position { cost.parse().ok() } else { None }
}

/// If the empty reads for each round differ less than this between runs, a round can't be told from them: a few instructions
/// more or less in a run would be thousands in the result. They are counted with the rounds then.
const LEAST_SPREAD: f64 = 0.02;

/// Instructions, by least squares over runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fit {
    pub(super) start: f64,
    pub(super) round: f64,
    /// An empty read; `None` if that can't be told from a round.
    pub(super) poll: Option<f64>,
    /// The largest share that a run is off.
    pub(super) off: f64,
}

impl Fit {
    pub(super) fn of(runs: &[Run]) -> Option<Self> {
        let in_vain = |run: &Run| run.calls as f64 - CALLS * f64::from(run.rounds);
        let share = |run: &Run| in_vain(run) / f64::from(run.rounds);
        let least = runs.iter().map(share).fold(f64::INFINITY, f64::min);
        let most = runs.iter().map(share).fold(f64::NEG_INFINITY, f64::max);
        let polled = most - least >= LEAST_SPREAD;
        let row = |run: &Run| [1.0, f64::from(run.rounds), in_vain(run)];
        let unknowns = if polled { 3 } else { 2 };
        let mut equations = [[0.0; 4]; 3];
        for run in runs {
            let row = row(run);
            for (equation, factor) in equations.iter_mut().zip(row).take(unknowns) {
                for (sum, term) in equation.iter_mut().zip(row).take(unknowns) {
                    *sum += factor * term;
                }
                equation[3] += factor * run.instructions as f64;
            }
        }
        let [start, round, poll] = solve(equations, unknowns)?;
        let off = runs.iter().map(|run| {
            let [one, rounds, in_vain] = row(run);
            let expected = start * one + round * rounds + poll * in_vain;
            (expected / run.instructions as f64 - 1.0).abs()
        });
        let off = off.fold(0.0, f64::max);
        Some(Self { start, round, poll: polled.then_some(poll), off })
    }
}

/// The unknowns of so many equations, by Gauss; the right side stands last.
fn solve(mut rows: [[f64; 4]; 3], unknowns: usize) -> Option<[f64; 3]> {
    for pivot in 0..unknowns {
        let size = |row: &usize| rows[*row][pivot].abs();
        let best = (pivot..unknowns).max_by(|a, b| size(a).total_cmp(&size(b)))?;
        rows.swap(pivot, best);
        let scale = rows[pivot][pivot];
        if scale.abs() < 1e-9 {
            return None;
        }
        rows[pivot].iter_mut().for_each(|value| *value /= scale);
        let pivot_row = rows[pivot];
        for (index, row) in rows.iter_mut().enumerate().take(unknowns) {
            if index != pivot {
                let factor = row[pivot];
                row.iter_mut().zip(pivot_row).for_each(|(value, by)| *value -= factor * by);
            }
        }
    }
    Some(rows.map(|row| row[3]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn self_cost_and_c_library_calls_count() {
        let file = "\
version: 1
events: Ir
ob=(1) /lib/libfabric.so.1
fl=(1) ???
fn=(1) fi_read
0 100
+3 20
cob=(2) /lib/libc.so.6
cfn=(2) memcpy
calls=1 0
0 7
cob=(6) /lib64/ld-linux-x86-64.so.2
cfn=(6) __tls_get_addr
calls=1 0
0 11
cob=(2)
cfn=(5) __libc_start_main@@GLIBC_2.34
calls=1 0
0 70000
cob=(3) /t/libefa_soft.so
cfn=(3) start_poll
calls=1 0
0 5000
cfn=(4) another
calls=2 0
* 300
0 1

ob=(3)
fn=(3)
0 4000
cob=(1)
cfn=(1)
calls=1 0
0 9999
ob=(1)
fn=(4)
0 150
totals: 4278
";
        assert_eq!(total(file), Some(4278));
        assert_eq!(
            cost(file, |object| object.contains("/libfabric.so")),
            100 + 20 + 7 + 11 + 1 + 150
        );
        assert_eq!(cost(file, |object| object.contains("efa_soft")), 4000);
    }

    fn run(rounds: u32, in_vain: u64) -> Run {
        let calls = 3 * u64::from(rounds) + in_vain;
        let instructions = 1_000_000 + 2000 * u64::from(rounds) + 90 * in_vain;
        Run { rounds, calls, instructions }
    }

    #[test]
    fn fit_removes_empty_polls() {
        let runs = [run(2000, 17), run(3000, 900), run(6000, 40), run(9000, 12_000)];
        let fit = Fit::of(&runs).unwrap();
        assert!((fit.round - 2000.0).abs() < 1e-3, "{fit:?}");
        assert!((fit.start - 1e6).abs() < 1.0 && (fit.poll.unwrap() - 90.0).abs() < 1e-3);
        assert!(fit.off < 1e-6);
        let fit = Fit::of(&[run(2000, 0), run(3000, 0)]).unwrap();
        assert!((fit.round - 2000.0).abs() < 1e-6 && fit.poll.is_none(), "{fit:?}");
        assert_eq!(Fit::of(&[run(2000, 0), run(2000, 0)]), None);
    }

    #[test]
    fn fit_counts_empty_polls_with_the_rounds_if_both_grow_alike() {
        let run = |rounds, calls, instructions| Run { rounds, calls, instructions };
        let runs = [(1000, 3029, 3_520_697), (3000, 9100, 7_295_304), (6000, 18_219, 12_957_090)];
        let fit =
            Fit::of(&runs.map(|(rounds, calls, counted)| run(rounds, calls, counted))).unwrap();
        assert!((fit.round - 1887.0).abs() < 2.0 && fit.poll.is_none(), "{fit:?}");
    }
}
