//! Little of what the system gives: file descriptors, memory, threads; and a umask that takes every permission.
//! Each run works, or says in words what is missing.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::{Command, Stdio};

use common::{Outcome, Running, Scratch};

/// Runs `efa pingpong` on a link, with `setup` of the shell before it.
fn pingpong(setup: &str, link: &str, directory: &str) -> Outcome {
    let script = format!("{setup}; shift; exec \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", directory, env!("CARGO_BIN_EXE_efa"), "pingpong"]);
    command.args(["--sizes", "8,64k", "--iterations", "3", "--timeout", "20", "--link", link]);
    if link == "shm" {
        command.args(["--directory", &format!("{directory}/hosts")]);
    }
    command.env_remove("EFA_LOG").env_remove("RUST_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start(&mut command).finish()
}

/// Lets the shell's `count` descriptors be opened. The limit is one of numbers: those that the program inherits, besides
/// the first three, are not counted.
const LIMIT_DESCRIPTORS: &str = "free=0; n=0; while test $free -lt $count; do \
    test $n -gt 2 -a -e /proc/$$/fd/$n || free=$((free + 1)); n=$((n + 1)); done; ulimit -n $n";

/// Whether the system starts the program at all after `setup` of the shell.
fn starts(setup: &str) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{setup}; exec \"$0\" --version"), env!("CARGO_BIN_EXE_efa")]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start(&mut command).finish().code.is_some()
}

#[test]
fn run_without_descriptors_says_so_and_twelve_are_enough() {
    let scratch = Scratch::new("descriptors");
    std::fs::create_dir(&scratch).unwrap();
    for link in ["shm", "tcp"] {
        for count in 3..=12 {
            let outcome =
                pingpong(&format!("count={count}; {LIMIT_DESCRIPTORS}"), link, scratch.as_str());
            if outcome.code == Some(0) {
                continue;
            }
            assert!(count < 12, "{link}, {count}: {outcome:?}");
            // With the fewest the loader finds no library: its words, with the same number.
            let named = ["Too many open files", "Error 24"];
            let clear = named.iter().any(|words| outcome.stderr.contains(words));
            assert!(clear, "{link}, {count}: {outcome:?}");
        }
    }
}

#[test]
fn netio_that_lacks_descriptors_for_its_connection_exits_with_1_and_refused_with_3() {
    let scratch = Scratch::new("connection");
    std::fs::create_dir(&scratch).unwrap();
    for link in ["shm", "tcp"] {
        let mut lacked = 0;
        for count in 3..=20 {
            let script =
                format!("count={count}; {LIMIT_DESCRIPTORS}; cd \"$1\"; shift; exec \"$@\"");
            let mut command = Command::new("sh");
            command.args([
                "-c",
                &script,
                "sh",
                scratch.as_str(),
                env!("CARGO_BIN_EXE_efa"),
                "netio",
            ]);
            // Nobody listens there.
            command.args(["send", "127.0.1.9:1", "--link", link]);
            command.env("FI_EFARS_SHM_DIRECTORY", "hosts");
            command.env_remove("EFA_LOG").env_remove("RUST_LOG");
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let Outcome { code, stderr, .. } = Running::start(&mut command).finish();
            // The reason is said once.
            let lacks = stderr.ends_with(": TCP connection: Too many open files (os error 24)\n");
            lacked += u32::from(lacks);
            match code {
                Some(3) => assert!(stderr.contains("nobody listens there"), "{count}: {stderr}"),
                // The loader's words, or the program's.
                Some(1 | 127) => assert!(
                    ["Too many open files", "Error 24"].iter().any(|words| stderr.contains(words)),
                    "{count}: {stderr}"
                ),
                code => panic!("{link}, {count}: {code:?} {stderr}"),
            }
        }
        assert!(lacked > 0, "{link}");
    }
}

#[test]
fn run_without_address_space_says_so_and_256_mib_are_enough() {
    let scratch = Scratch::new("memory");
    std::fs::create_dir(&scratch).unwrap();
    for megabytes in [16, 24, 32, 48, 64, 256] {
        let setup = format!("ulimit -c 0; ulimit -v {}", megabytes << 10);
        if !starts(&setup) {
            // A debug build takes some 15 MiB: the kernel can't map it, and kills it without a word.
            assert!(megabytes < 64, "{megabytes} MiB");
            continue;
        }
        let outcome = pingpong(&setup, "shm", scratch.as_str());
        if outcome.code == Some(0) {
            continue;
        }
        assert!(megabytes < 256, "{outcome:?}");
        // With the least the loader maps no library, and the standard library's words are its own.
        let named = ["Cannot allocate memory", "memory allocation of", "failed to map segment"];
        let clear = named.iter().any(|words| outcome.stderr.contains(words));
        assert!(clear, "{megabytes} MiB: {outcome:?}");
    }
}

/// Whether a user without privileges can run the program, and enter the directory. Root may do everything, and so
/// becomes another user for that.
fn other_user_can_run(scratch: &Scratch) -> bool {
    let probe = Command::new("sh")
        .args([
            "-c",
            "test $(id -u) -ne 0 || \
                setpriv --reuid 65534 --clear-groups test -x \"$1\" -a -x \"$2\"",
            "sh",
            env!("CARGO_BIN_EXE_efa"),
            scratch.as_str(),
        ])
        .status();
    let can = probe.is_ok_and(|status| status.success());
    if !can {
        eprintln!("skipped: no other user can run the program here, or use its directory");
    }
    can
}

#[test]
fn netio_that_cannot_start_a_thread_or_process_says_so() {
    let scratch = Scratch::new("threads");
    std::fs::create_dir(&scratch).unwrap();
    if !other_user_can_run(&scratch) {
        return;
    }
    let said = |count: u32, arguments: &[&str]| {
        let script = "d=$1; n=$2; shift 2; test $(id -u) -ne 0 || { chmod 777 \"$d\"; \
            set -- setpriv --reuid 65534 --clear-groups prlimit --nproc=$n \"$@\"; }; \
            test $(id -u) -eq 0 || ulimit -u $n; exec \"$@\" --directory \"$d/hosts\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", scratch.as_str(), &count.to_string()]);
        command.args([env!("CARGO_BIN_EXE_efa"), "netio"]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::start(&mut command).finish().failure()
    };
    let lacks = "cannot start a thread: Resource temporarily unavailable";
    for socket in [&["publish", "127.0.0.1:0"][..], &["subscribe", "localhost:1"]] {
        let said = said(1, &[socket, &["--tag", "1"]].concat());
        assert!(said.contains(lacks), "{said}");
    }
    let receive = said(1, &["receive", "localhost:0"]);
    assert!(receive.contains(&format!("localhost:0: {lacks}")), "{receive}");
    // Processes of the same user elsewhere may leave none for the subscriber.
    let bench = said(2, &["bench", "--seconds", "0.1"]);
    assert!(bench.contains(lacks) || bench.contains("cannot run a subscriber: "), "{bench}");
}

#[test]
fn run_with_a_umask_that_takes_all_permissions_works_and_can_be_repeated() {
    let scratch = Scratch::new("umask");
    std::fs::create_dir(&scratch).unwrap();
    if !other_user_can_run(&scratch) {
        return;
    }
    for _ in 0..2 {
        let setup = "umask 0777; test $(id -u) -ne 0 || { chmod 777 \"$1\"; d=$1; shift; \
            set -- \"$d\" setpriv --reuid 65534 --clear-groups \"$@\"; }";
        pingpong(setup, "shm", scratch.as_str()).success();
    }
}
