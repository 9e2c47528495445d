//! A child process for each test, with the software device or other libraries in place of rdma-core.
//!
//! ```text
//!   test ──► on_soft_device ── LD_PRELOAD, the same test again ──► child: the body of the test
//! ```

#![allow(dead_code, reason = "each test program uses a part")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Set to the name of the test in the child.
const CHILD: &str = "EFA_VERBS_TEST";
/// Far longer than any test takes, so that only a hang reaches it.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs the body of a test in a child with the software device preloaded. `name` is that of the test;
/// `settings` are variables of the device.
#[track_caller]
pub(crate) fn on_soft_device(name: &str, settings: &[(&str, &str)], body: fn()) {
    let directory = TempDir::new().unwrap();
    in_child(name, body, |command| {
        command.env("LD_PRELOAD", soft_library()).envs(settings.iter().copied());
        soft_settings(command, directory.path());
    });
}

/// Makes the software device keep its files in a directory.
pub(crate) fn soft_settings(command: &mut Command, directory: &Path) {
    command.env("EFA_SOFT_DIRECTORY", directory.join("hosts")).env("EFA_SOFT_SYSFS", directory);
}

/// Runs the body of a test in a child; `prepare` sets its environment.
#[track_caller]
pub(crate) fn in_child(name: &str, body: fn(), prepare: impl FnOnce(&mut Command)) {
    if std::env::var_os(CHILD).is_some_and(|child| child == name) {
        return body();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, name);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    prepare(&mut command);
    let mut child = Killed(command.spawn().unwrap());
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.0.try_wait().unwrap() {
            break status;
        }
        assert!(begin.elapsed() < DEADLINE, "{name} still runs");
        std::thread::sleep(Duration::from_millis(5));
    };
    let output = std::io::read_to_string(child.0.stdout.take().unwrap()).unwrap();
    assert!(status.success(), "{name}: {status}\n{output}");
    assert!(output.contains("1 passed"), "no test has the name {name}");
}

/// A child process that is killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ends a test that needs something that isn't installed. `EFA_INTEROP=1` says that it is, and then
/// this is a failure.
pub(crate) fn is_missing(what: &str) {
    let required = std::env::var_os("EFA_INTEROP").is_some_and(|value| value == "1");
    assert!(!required, "{what} is missing, and EFA_INTEROP=1 says that it is installed");
    eprintln!("skipped: {what} is not installed");
}

/// The C library of the software device, which cargo builds for these tests.
pub(crate) fn soft_library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap();
    let library = [built, built.parent().unwrap()].map(|place| place.join("libefa_soft.so"));
    library.into_iter().find(|path| path.exists()).expect("libefa_soft.so was not built")
}
