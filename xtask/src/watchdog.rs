//! An end for test programs that hang: what a command has started is killed when it prints nothing for long.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Kills the descendants of process `parent`, not itself, whenever nothing was `heard` for as long as `patience`. Ends
/// when the sender is dropped.
///
/// A `cargo test --no-fail-fast` whose test program was killed goes on with the next, and fails at the end.
pub(crate) fn watch(parent: u32, patience: Duration, heard: &Receiver<()>) {
    loop {
        match heard.recv_timeout(patience) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => {
                say!(
                    "no output for {} s: killing what process {parent} started",
                    patience.as_secs()
                );
                kill_descendants(parent);
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Kills what the process has started, and what these have, not itself.
pub(crate) fn kill_descendants(parent: u32) {
    for pid in descendants(parent, &parents()) {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            // It may have ended by now.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// All processes, with those that started them.
fn parents() -> HashMap<u32, u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, parent_of(&stat(pid)?)?))).collect()
}

fn stat(pid: u32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The fourth field of `/proc/PID/stat`. The second is the name in parentheses, which may have spaces and parentheses.
fn parent_of(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(1)?.parse().ok()
}

fn descendants(ancestor: u32, parents: &HashMap<u32, u32>) -> Vec<u32> {
    let descends = |mut pid: u32| {
        // No process has more ancestors than there are processes.
        (0..parents.len()).any(|_| {
            pid = parents.get(&pid).copied().unwrap_or(0);
            pid == ancestor
        })
    };
    parents.keys().copied().filter(|&pid| descends(pid)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_is_read_behind_a_name_with_spaces_and_parentheses() {
        assert_eq!(parent_of("17 (a) b (c)) S 5 17 17 0"), Some(5));
        assert_eq!(parent_of("17 (cargo) R 1 17"), Some(1));
        assert_eq!(parent_of("17 (cargo"), None);
        assert_eq!(parent_of(""), None);
    }

    #[test]
    fn descendants_are_children_and_theirs_but_not_the_process_itself_or_others() {
        let parents = HashMap::from([(2, 1), (3, 2), (4, 3), (5, 1), (6, 6)]);
        let mut found = descendants(2, &parents);
        found.sort_unstable();
        assert_eq!(found, [3, 4]);
    }
}
