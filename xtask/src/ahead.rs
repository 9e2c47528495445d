//! What later steps of `cargo xtask test` run is built beside the earlier ones, at the lowest priority: many tests leave
//! a processor idle.
//!
//! ```text
//!   tests ──► libfabric ──► verbs ──► provider ──► … ──► interop ──► soak ──► fuzz ──► bench
//!     └ the rest of the processors: `checked` ─► `release` ─► wake-ups ─► fuzz targets ─► benches
//! ```
//!
//! A step runs the same commands of cargo itself, and finds their work done, or waits for cargo's lock while it is done.
//! So nothing is reported here: what fails fails again in its step.

use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;

use crate::process::Running;
use crate::steps::Step;
use crate::workspace::Workspace;
use crate::{bench, checked, fuzz, soak, watchdog};

/// Builds one after the other in a thread. Dropped, it ends them.
pub(crate) struct Ahead {
    /// The thread and, as long as it is to go on, the end that it listens to.
    builder: Option<(JoinHandle<()>, Sender<()>)>,
}

impl Ahead {
    /// Starts to build what these steps run, in the order in which they need it. The first is left out, which begins at
    /// once.
    pub(crate) fn start(workspace: &Workspace, steps: &[Step]) -> Result<Self> {
        let builds = builds(workspace, steps.get(1..).unwrap_or_default())?;
        if builds.is_empty() {
            return Ok(Self { builder: None });
        }
        say!("what later steps run is built beside the earlier ones, at the lowest priority");
        let (until, stop) = mpsc::channel();
        let builder = std::thread::spawn(move || build_all(&builds, &stop));
        Ok(Self { builder: Some((builder, until)) })
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if let Some((builder, until)) = self.builder.take() {
            drop(until);
            let _ = builder.join();
        }
    }
}

fn builds(workspace: &Workspace, steps: &[Step]) -> Result<Vec<Command>> {
    let mut builds = Vec::new();
    if steps.iter().any(|step| matches!(step, Step::Verbs | Step::Interop | Step::Soak)) {
        builds.push(checked::build_of_all(workspace));
    }
    if steps.iter().any(|step| matches!(step, Step::Verbs | Step::Provider)) {
        builds.push(bench::counting::build_of_both(workspace));
    }
    if steps.contains(&Step::Soak) {
        builds.push(soak::build_of_wakeups(workspace)?);
    }
    if steps.contains(&Step::Fuzz) {
        builds.push(fuzz::build_of_gate(workspace)?);
    }
    if steps.contains(&Step::Bench) {
        builds.extend(bench::builds_of_gate(workspace)?);
    }
    Ok(builds)
}

fn build_all(builds: &[Command], stop: &Receiver<()>) {
    for build in builds {
        // What can't be started here fails in its step.
        let Ok(mut cargo) = Running::start(&mut at_lowest_priority(build)) else { continue };
        while cargo.is_running().unwrap_or(false) {
            if stop.recv_timeout(Duration::from_millis(200)) != Err(RecvTimeoutError::Timeout) {
                // The compilers that cargo has started; cargo itself ends when it is dropped.
                watchdog::kill_descendants(cargo.id());
                return;
            }
        }
    }
}

/// The same command by `nice`, without input and messages.
fn at_lowest_priority(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        nice.current_dir(directory);
    }
    nice.stdin(Stdio::null()).stderr(Stdio::null());
    nice
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_later_steps_run_is_built_and_nothing_for_the_first() {
        let workspace = Workspace::locate().unwrap();
        let built = |steps: &[Step]| -> Vec<String> {
            let builds = builds(&workspace, steps).unwrap();
            let words = |build: &Command| {
                let words = build.get_args().map(|word| word.to_str().unwrap());
                words.collect::<Vec<_>>().join(" ")
            };
            builds.iter().map(words).collect()
        };
        assert_eq!(built(&[Step::Fmt, Step::Clippy, Step::Tests]), [""; 0]);
        assert_eq!(built(&[Step::Interop]).len(), 1);
        let [checked, ours] = &built(&[Step::Verbs])[..] else { panic!("two builds") };
        assert!(checked.contains("--profile=checked") && checked.ends_with("--bins"), "{checked}");
        assert!(ours.contains("--package efa-bench-vs-libfabric"), "{ours}");
        assert!(Ahead::start(&workspace, &[Step::Verbs]).unwrap().builder.is_none());
    }

    #[test]
    fn build_that_is_dropped_ends_with_all_that_it_has_started() {
        let place = tempfile::tempdir().unwrap();
        let started = place.path().join("started");
        let mut build = Command::new("sh");
        build.args(["-c", "sleep 3600 & echo $! > writing; mv writing started; wait"]);
        let (until, stop) = mpsc::channel();
        let builds = [at_lowest_priority(build.current_dir(place.path()))];
        let builder = std::thread::spawn(move || build_all(&builds, &stop));
        wait_until(|| started.exists());
        drop(Ahead { builder: Some((builder, until)) });
        let compiler = std::fs::read_to_string(started).unwrap();
        let directory = Path::new("/proc").join(compiler.trim());
        // It is gone, or waits for a parent to see that it ended.
        let state = || std::fs::read_to_string(directory.join("stat"));
        wait_until(|| state().map_or(true, |stat| stat.contains(") Z ")));
    }

    fn wait_until(done: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !done() {
            assert!(Instant::now() < deadline, "nothing happened for 20 s");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
