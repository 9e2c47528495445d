//! `efa soft-efa run` as a user meets it. That libfabric finds the device: `tests/libfabric.rs`.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::{Outcome, Running, Scratch, efa, run, until};

/// The beginning of a library, which is enough for `efa`.
const STAND_IN: &[u8] = b"\x7fELF";

/// `efa soft-efa run` with a stand-in for the library, which the loader complains about and leaves.
fn soft_efa(options: &[&str], program: &[&str]) -> Outcome {
    let library = Scratch::new("libefa_soft.so");
    std::fs::write(&library, STAND_IN).unwrap();
    let start = ["soft-efa", "run", "--library", library.as_str()];
    let arguments = start.iter().chain(options).chain(&["--"]).chain(program);
    Running::start(efa(arguments).env("LD_PRELOAD", "")).finish()
}

/// The same with these variables, whose values a shell prints as `script` says.
fn printed(variables: &[(&str, &str)], options: &[&str], script: &str) -> String {
    let library = Scratch::new("libefa_soft.so");
    std::fs::write(&library, STAND_IN).unwrap();
    let start = ["soft-efa", "run", "--library", library.as_str()];
    let program = ["--", "sh", "-c", script];
    let mut command = efa(start.iter().chain(options).chain(&program));
    Running::start(command.envs(variables.iter().copied()).env("LD_PRELOAD", "")).finish().success()
}

#[test]
fn name_and_directory_of_the_environment_hold_unless_options_replace_them() {
    let script = "echo $EFA_SOFT_NAME $EFA_SOFT_DIRECTORY";
    let given = [("EFA_SOFT_NAME", "mine"), ("EFA_SOFT_DIRECTORY", "/mine")];
    assert_eq!(printed(&given, &[], script), "mine /mine\n");
    let options = ["--device-name", "other", "--directory", "/other"];
    assert_eq!(printed(&given, &options, script), "other /other\n");
    assert_eq!(printed(&[("EFA_SOFT_NAME", "")], &[], script), "efa\n");
    let of_links = [("FI_EFARS_SHM_DIRECTORY", "/links"), ("FI_EFARS_SHM_NAME", "links")];
    assert_eq!(printed(&of_links, &[], script), "links /links\n");
    assert_eq!(printed(&[&of_links[..], &given].concat(), &[], script), "mine /mine\n");
    assert_eq!(printed(&of_links, &options, script), "other /other\n");
}

#[test]
fn shm_transfer_is_on_by_its_option_and_else_off_whatever_the_environment_says() {
    for value in ["0", "1"] {
        let inherited = [("FI_EFA_ENABLE_SHM_TRANSFER", value)];
        let script = "echo $FI_EFA_ENABLE_SHM_TRANSFER";
        assert_eq!(printed(&inherited, &["--shm-transfer"], script), "1\n", "{value}");
        assert_eq!(printed(&inherited, &[], script), "0\n", "{value}");
    }
}

#[test]
fn program_gets_the_settings_as_variables() {
    let script =
        "echo $EFA_SOFT_NAME $EFA_SOFT_MTU $FI_EFA_ENABLE_SHM_TRANSFER $1; echo $LD_PRELOAD";
    let program = ["sh", "-c", script, "sh", "last words"];
    let output = soft_efa(&["--name", "other", "--mtu", "4096"], &program).success();
    assert!(output.starts_with("other 4096 0 last words\n"), "{output}");
    assert!(output.contains("libefa_soft.so"), "{output}");
}

#[test]
fn tcp_link_without_address_warns_once_and_names_loopback() {
    let program = ["sh", "-c", "echo at $EFA_SOFT_ADDRESS"];
    let outcome = soft_efa(&["--link", "tcp"], &program);
    let warning = "warning: --link tcp without --address: the device has the address 127.0.0.1";
    assert_eq!(outcome.stderr.matches(warning).count(), 1, "{outcome:?}");
    assert_eq!(outcome.success(), "at 127.0.0.1\n");
    let outcome = soft_efa(&["--link", "tcp", "--address", "127.0.0.2"], &program);
    assert!(!outcome.stderr.contains("warning"), "{outcome:?}");
    assert_eq!(outcome.success(), "at 127.0.0.2\n");
}

#[test]
fn exit_code_and_signal_of_the_program_are_those_of_the_command() {
    assert_eq!(soft_efa(&[], &["sh", "-c", "exit 7"]).code, Some(7));
    let killed = soft_efa(&[], &["sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.code, None, "{killed:?}");
}

/// Starts a program that prints its private directory, and returns that.
fn start_and_read_directory(then: &str) -> (Running, PathBuf) {
    let script = format!("echo place $EFA_SOFT_SYSFS; touch $EFA_SOFT_SYSFS/litter; {then}");
    let library = Scratch::new("libefa_soft.so");
    std::fs::write(&library, STAND_IN).unwrap();
    let arguments = ["soft-efa", "run", "--library", library.as_str(), "--", "sh", "-c", &script];
    let mut command = efa(arguments);
    let mut running = Running::start(command.stdin(Stdio::piped()));
    let line = running.stdout_line("place /");
    (running, PathBuf::from(line.strip_prefix("place ").unwrap()))
}

#[test]
fn private_directory_is_removed_when_the_program_ends() {
    // By itself, and by a signal that can't be caught.
    let (running, place) = start_and_read_directory("exit 3");
    assert_eq!(running.finish().code, Some(3));
    until("removed", || !place.exists());
    let (mut running, place) = start_and_read_directory("read never");
    let data = std::fs::metadata(&place).unwrap();
    assert_eq!(data.permissions().mode() & 0o777, 0o700, "only its user may enter it");
    running.kill();
    assert_eq!(running.finish().code, None);
    until("removed", || !place.exists());
}

#[test]
fn private_directory_in_a_relative_tmpdir_is_removed() {
    let directory = Scratch::new("relative");
    std::fs::create_dir_all(directory.as_ref().join("tmp")).unwrap();
    let library = directory.as_ref().join("libefa_soft.so");
    std::fs::write(&library, STAND_IN).unwrap();
    let mut command = efa(["soft-efa", "run", "--library", "libefa_soft.so", "--"]);
    command.args(["sh", "-c", "cd /; echo place $EFA_SOFT_SYSFS; ls -d $EFA_SOFT_SYSFS"]);
    command.current_dir(&directory).env("TMPDIR", "tmp").env("LD_PRELOAD", "");
    let output = Running::start(&mut command).finish().success();
    let place = output.lines().next().unwrap().strip_prefix("place ").unwrap();
    assert!(PathBuf::from(place).starts_with(&directory), "{place}");
    until("removed", || !PathBuf::from(place).exists());
}

#[test]
fn private_directory_stays_for_background_processes() {
    let fifo = Scratch::new("fifo");
    let made = Command::new("mkfifo").arg(fifo.as_str()).status().unwrap();
    assert!(made.success());
    // The one in the background ends when the pipe is closed.
    let behind = format!("cat {} >/dev/null 2>&1 & exit 0", fifo.as_str());
    let (running, place) = start_and_read_directory(&behind);
    assert_eq!(running.finish().code, Some(0));
    // Opening it waits for the reader, so it is there, and has the place.
    let writer = File::options().write(true).open(fifo.as_str()).unwrap();
    assert!(place.join("litter").exists());
    drop(writer);
    until("removed", || !place.exists());
}

#[test]
fn private_directories_of_runs_with_few_descriptors_are_removed_by_the_next_run() {
    let base = Scratch::new("few");
    std::fs::create_dir(&base).unwrap();
    let run = |limit: &str| {
        let library = Scratch::new("libefa_soft.so");
        std::fs::write(&library, STAND_IN).unwrap();
        let script = format!("{limit}; exec \"$0\" soft-efa run --library \"$1\" -- true");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_efa"), library.as_str()]);
        command.env("TMPDIR", base.as_str()).env("LD_PRELOAD", "");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::start(&mut command).finish()
    };
    // From too few for a run to enough for removing all.
    (3..=14).for_each(|count| drop(run(&format!("ulimit -n {count}"))));
    let entries = |base: &Scratch| {
        let entries = std::fs::read_dir(base).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
    };
    let left = entries(&base);
    until("removed", || {
        assert_eq!(run(":").code, Some(0));
        let now = entries(&base);
        left.iter().all(|name| !now.contains(name))
    });
}

#[test]
fn library_that_cannot_be_copied_whole_is_named_and_leaves_nothing() {
    let (directory, library) = (Scratch::new("export"), Scratch::new("libefa_soft.so"));
    std::fs::write(&library, [STAND_IN, &[0; 100_000]].concat()).unwrap();
    let script =
        "trap '' XFSZ; ulimit -f 8; exec \"$0\" soft-efa libraries --library \"$1\" \"$2\"";
    let arguments = [env!("CARGO_BIN_EXE_efa"), library.as_str(), directory.as_str()];
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let error = Running::start(&mut command).finish().failure();
    let expected = format!("cannot write {}/libefa_soft.so: ", directory.as_str());
    assert!(error.contains(&expected), "{error}");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
}

#[test]
fn absent_program_is_an_error() {
    let error = soft_efa(&[], &["/nonexistent/program"]).failure();
    assert!(error.contains("cannot run /nonexistent/program"), "{error}");
}

#[test]
fn unwritable_capture_is_refused_before_the_program_runs() {
    let here = env!("CARGO_MANIFEST_DIR");
    let no_directory = format!("{here}/Cargo.toml/%p.pcapng");
    for (file, reason) in [
        ("/nonexistent/%p.pcapng", "No such file or directory"),
        (&no_directory, "Not a directory"),
        (here, "it is not a regular file"),
        ("/dev/null", "it is not a regular file"),
    ] {
        let error = soft_efa(&["--capture", file], &["echo", "runs"]);
        assert_eq!(error.stdout, "");
        let error = error.failure();
        assert!(error.contains(&format!("cannot write the capture {file}")), "{error}");
        assert!(error.contains(reason), "{error}");
    }
}

/// The program has the process ID of the command, so a script that starts the command knows it.
#[test]
fn capture_directory_may_contain_the_process_id() {
    let (directory, library) = (Scratch::new("captures"), Scratch::new("libefa_soft.so"));
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(&library, STAND_IN).unwrap();
    let script = r#"mkdir "$1/$$"
        exec "$0" soft-efa run --library "$2" --capture "$1/%p/packets" -- echo runs"#;
    let arguments = [env!("CARGO_BIN_EXE_efa"), directory.as_str(), library.as_str()];
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).args(arguments).env("LD_PRELOAD", "");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    assert_eq!(Running::start(&mut command).finish().success(), "runs\n");
}

#[test]
fn private_directory_is_in_tmp_if_tmpdir_is_empty() {
    let place = printed(&[("TMPDIR", "")], &[], "echo $EFA_SOFT_SYSFS");
    assert!(place.starts_with("/tmp/efa-run-"), "{place}");
}

#[test]
fn library_that_was_named_and_is_no_library_is_an_error() {
    let empty = Scratch::new("empty");
    std::fs::write(&empty, "").unwrap();
    for file in ["/etc/passwd", empty.as_str()] {
        let error = run(["soft-efa", "run", "--library", file, "--", "true"]).failure();
        let expected = format!("cannot read the library {file}: it is not an ELF file");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn library_that_was_named_and_is_absent_is_an_error() {
    let error = run(["soft-efa", "run", "--library", "/nonexistent/l.so", "--", "true"]).failure();
    assert!(error.contains("cannot read the library /nonexistent/l.so"), "{error}");
}

/// The program under another path. A link: a fork of another test could hold a copy open for writing,
/// which can't be run then.
fn installed(prefix: &Scratch) -> PathBuf {
    let bin = prefix.as_ref().join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let program = bin.join("efa");
    std::fs::hard_link(env!("CARGO_BIN_EXE_efa"), &program).unwrap();
    program
}

#[test]
fn without_library_the_error_names_the_command_that_installs_it() {
    let prefix = Scratch::new("alone");
    let mut command = Command::new(installed(&prefix));
    let output = command.args(["soft-efa", "run", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("bin/../release"), "{error}");
    assert!(error.contains("`cargo xtask install`"), "{error}");
}

#[test]
fn installed_tool_finds_the_library_in_lib() {
    let prefix = Scratch::new("installed");
    let program = installed(&prefix);
    let lib = prefix.as_ref().join("lib");
    std::fs::create_dir(&lib).unwrap();
    let library = lib.join("libefa_soft.so");
    std::fs::write(&library, STAND_IN).unwrap();
    let mut command = Command::new(program);
    command.args(["soft-efa", "run", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let output = command.env("LD_PRELOAD", "").output().unwrap();
    let library = library.canonicalize().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), library.to_str().unwrap());
}

#[test]
fn invalid_soft_efa_command_lines_are_usage_errors() {
    let usage = |options: &[&str]| soft_efa(options, &["true"]).usage();
    assert!(usage(&["--mtu", "1023"]).contains("1023 is not in 1024..=32768"));
    assert!(usage(&["--rnr", "1.5"]).contains("a number from 0 to 1"));
    assert!(usage(&["--device-rdma", "reads"]).contains("possible values: read,write"));
    assert!(usage(&["--devices", "0"]).contains("0 is not in 1..=16"));
    assert!(usage(&["--link", "udp"]).contains("possible values: shm, tcp"));
    assert!(
        usage(&["--link", "tcp", "--address", "0.0.0.0"]).contains("the IP address of one host")
    );
    assert!(usage(&["--link", "tcp", "--address", "host"]).contains("the IP address of one host"));
    assert!(usage(&["--address", "10.0.0.1"]).contains("--link <LINK>"));
    let shm = usage(&["--link", "shm", "--address", "10.0.0.1"]);
    assert!(shm.contains("--address needs --link tcp"), "{shm}");
    let devices = usage(&["--link", "tcp", "--devices", "2"]);
    assert!(devices.contains("on the tcp link a host has one address"), "{devices}");
    for option in ["--device-name", "--directory"] {
        let shm = usage(&["--link", "tcp", option, "x"]);
        assert!(shm.contains(&format!("{option} needs --link shm")), "{shm}");
    }
    assert!(run(["soft-efa", "run"]).usage().contains("<PROGRAM>"));
}

/// Its rule is that of the library in the program.
#[test]
fn device_name_that_the_library_does_not_take_is_a_usage_error() {
    for name in ["a/b", ".hidden", "", &"a".repeat(61)] {
        let usage = soft_efa(&["--device-name", name], &["true"]).usage();
        let says = format!("--device-name {name:?} is not 1 to 60 letters, digits");
        assert!(usage.contains(&says), "{usage}");
    }
}

/// What a monitor reads where libibverbs looks for the device: the sums of all processes of the run, also of those that
/// have ended.
#[test]
fn files_in_hw_counters_move_with_the_traffic_of_the_run() {
    let directory = Scratch::new("counters");
    let script = r#"
        cd $EFA_SOFT_SYSFS/class/infiniband/efa_soft0
        cat ports/1/hw_counters/tx_bytes hw_counters/submitted_cmds
        "$0" pingpong --device verbs --iterations 100 --warmup 0 --sizes 1000 >&2 || exit 1
        until [ "$(cat ports/1/hw_counters/send_bytes)" -ge 200000 ]; do sleep 0.01; done
        for name in recv_wrs rx_drops rdma_read_wr_err retrans_bytes; do cat ports/1/hw_counters/$name; done
        ls ports/1/hw_counters | wc -l; ls hw_counters | wc -l; cat hw_counters/submitted_cmds
    "#;
    let tool = env!("CARGO_BIN_EXE_efa");
    let run =
        ["soft-efa", "run", "--directory", directory.as_str(), "--", "sh", "-c", script, tool];
    let output = Running::start(&mut efa(run)).finish().success();
    let numbers: Vec<u64> = output.lines().map(|line| line.trim().parse().unwrap()).collect();
    let [0, 0, received, 0, 0, 0, 22, 12, commands] = numbers[..] else { panic!("{output}") };
    assert!(received >= 200 && commands > 10, "{output}");
}
