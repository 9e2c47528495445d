//! A process of its own for each test, with the software device under it.
//!
//! ```text
//!   test ──► on_soft_device ── LD_PRELOAD, the same test again ──► child: the story itself
//! ```

#![allow(dead_code, reason = "each test program uses a part")]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Says that this process is the child.
const CHILD: &str = "EFA_VERBS_STORY";
/// Far beyond what any story takes, so that only a hang reaches it.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs a story in a child with the software device preloaded. `name` is that of the test that
/// calls this; `settings` are variables of the device.
#[track_caller]
pub(crate) fn on_soft_device(name: &str, settings: &[(&str, &str)], story: fn()) {
    if std::env::var_os(CHILD).is_some_and(|child| child == name) {
        return story();
    }
    let directory = Directory::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, name).env("LD_PRELOAD", library());
    command.env("EFA_SOFT_DIRECTORY", directory.0.join("hosts"));
    command.env("EFA_SOFT_SYSFS", &directory.0);
    command.envs(settings.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped());
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

/// A child that doesn't outlive its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory of its own, removed at the end.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        let name = format!("efa-verbs-{}-{:016x}", std::process::id(), fastrand::u64(..));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The C library, which cargo has built for these tests.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap();
    let library = [built, built.parent().unwrap()].map(|place| place.join("libefa_soft.so"));
    library.into_iter().find(|path| path.exists()).expect("libefa_soft.so was not built")
}
