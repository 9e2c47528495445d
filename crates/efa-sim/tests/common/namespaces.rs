//! Two network namespaces that act as two hosts, for this crate's tests and those of others.
//!
//! ```text
//!   a: 10.77.0.1, fd77::1 ══ veth "efa" ══ b: 10.77.0.2, fd77::2
//! ```
//!
//! Making them takes root and `ip` of iproute2.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Two network namespaces and the cable between them, removed in the end.
pub(crate) struct Namespaces([String; 2]);

impl Namespaces {
    /// Makes them; `None`, and a message, where that can't be done.
    pub(crate) fn new() -> Option<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let id = std::process::id();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let spaces = Self(["a", "b"].map(|end| format!("efa-{id}-{number}-{end}")));
        match spaces.furnish() {
            Ok(()) => Some(spaces),
            Err(reason) => {
                eprintln!("skipped: network namespaces can't be made here: {reason}");
                None
            }
        }
    }

    fn furnish(&self) -> Result<(), String> {
        let [a, b] = &self.0;
        let lines = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
            format!("-n {a} link add efa type veth peer name efa netns {b}"),
            format!("-n {a} address add 10.77.0.1/24 dev efa"),
            format!("-n {b} address add 10.77.0.2/24 dev efa"),
            format!("-n {a} address add fd77::1/64 dev efa nodad"),
            format!("-n {b} address add fd77::2/64 dev efa nodad"),
            format!("-n {a} link set efa up"),
            format!("-n {b} link set efa up"),
        ];
        for line in lines {
            let output = Command::new("ip").args(line.split(' ')).output();
            let output = output.map_err(|error| format!("ip: {error}"))?;
            if !output.status.success() {
                let stderr = String::from_utf8_lossy(&output.stderr);
                return Err(format!("ip {line}: {}", stderr.trim()));
            }
        }
        Ok(())
    }

    /// What they are called.
    pub(crate) fn names(&self) -> &[String; 2] {
        &self.0
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for namespace in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", namespace]).output();
        }
    }
}
