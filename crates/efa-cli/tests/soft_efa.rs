//! `efa soft-efa run` as a user meets it. That libfabric finds the device: `tests/libfabric.rs`.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Outcome, Running, Scratch, efa, run};

/// `efa soft-efa run` with a stand-in for the library, which the loader complains about and leaves.
fn soft_efa(options: &[&str], program: &[&str]) -> Outcome {
    // Tests run side by side, and each removes its own.
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let library = Scratch::new(&format!("{number}-libefa_soft.so"));
    std::fs::write(&library, "").unwrap();
    let start = ["soft-efa", "run", "--library", library.as_str()];
    let arguments = start.iter().chain(options).chain(&["--"]).chain(program);
    Running::start(efa(arguments).env("LD_PRELOAD", "")).finish()
}

#[test]
fn the_program_sees_the_settings() {
    let script =
        "echo $EFA_SOFT_NAME $EFA_SOFT_MTU $FI_EFA_ENABLE_SHM_TRANSFER $1; echo $LD_PRELOAD";
    let program = ["sh", "-c", script, "sh", "last words"];
    let output = soft_efa(&["--name", "other", "--mtu", "4096"], &program).success();
    assert!(output.starts_with("other 4096 0 last words\n"), "{output}");
    assert!(output.contains("libefa_soft.so"), "{output}");
}

#[test]
fn the_end_of_the_program_is_the_end_of_the_command() {
    assert_eq!(soft_efa(&[], &["sh", "-c", "exit 7"]).code, Some(7));
    let killed = soft_efa(&[], &["sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.code, None, "{killed:?}");
}

#[test]
fn no_program() {
    let error = soft_efa(&[], &["/nonexistent/program"]).failure();
    assert!(error.contains("cannot run /nonexistent/program"), "{error}");
}

#[test]
fn no_library() {
    let error = run(["soft-efa", "run", "--library", "/nonexistent/l.so", "--", "true"]).failure();
    assert!(error.contains("cannot read the library /nonexistent/l.so"), "{error}");
    // The program in a place where no library is. A link: a fork of another test could hold a copy
    // open for writing, which can't be run then.
    let place = Scratch::new("alone");
    let bin = place.as_ref().join("some/bin");
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::hard_link(env!("CARGO_BIN_EXE_efa"), bin.join("efa")).unwrap();
    let mut command = std::process::Command::new(bin.join("efa"));
    let output = command.args(["soft-efa", "run", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("some/bin/../release"), "{error}");
    assert!(error.contains("cargo build --release -p efa-softverbs"), "{error}");
}

#[test]
fn command_lines_without_sense() {
    let usage = |options: &[&str]| soft_efa(options, &["true"]).usage();
    assert!(usage(&["--mtu", "1023"]).contains("1023 is not in 1024..=32768"));
    assert!(usage(&["--rnr", "1.5"]).contains("a number from 0 to 1"));
    assert!(usage(&["--device-rdma", "reads"]).contains("possible values: read,write"));
    assert!(usage(&["--devices", "0"]).contains("0 is not in 1..=16"));
    assert!(run(["soft-efa", "run"]).usage().contains("<PROGRAM>"));
}
