//! Programs that open libibverbs and libefa at run time find the device, in `efa soft-efa run` and by the variables that
//! `efa soft-efa libraries` prints.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Outcome, Running, Scratch, efa, with_c_packages};
use efa_soft_names::{EFA, IBVERBS, Node};

const EFA_TOOL: &str = env!("CARGO_BIN_EXE_efa");

/// Compiles a program that opens the libraries and sends a message.
fn program_that_opens(directory: &Scratch) -> String {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/opened");
    fs::create_dir(directory).unwrap();
    for (name, nodes) in [("symbols_ibverbs.h", IBVERBS), ("symbols_efa.h", EFA)] {
        fs::write(directory.as_ref().join(name), table(nodes)).unwrap();
    }
    let program = format!("{}/opens", directory.as_str());
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", &program]);
    compiler.arg(sources.join("opens.c")).args(["-I", directory.as_str(), "-ldl"]);
    compiler.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start(&mut compiler).finish().success();
    program
}

/// The symbols as initialisers of C structures.
fn table(nodes: &[Node]) -> String {
    let mut text = String::new();
    for node in nodes {
        for name in node.functions {
            writeln!(text, r#"{{ "{name}", "{}" }},"#, node.version).unwrap();
        }
    }
    text
}

/// Runs a command on a device of its own, in a directory that is removed.
fn on_device(mut command: Command) -> Outcome {
    let directory = Scratch::new("devices");
    command.env("EFA_SOFT_DIRECTORY", directory.as_str()).env("LD_PRELOAD", "");
    Running::start(&mut command).finish()
}

/// `efa soft-efa run`, with the preloaded library taken away if `opened_only`.
fn soft_efa(opened_only: bool, program: &[&str]) -> Outcome {
    let without: &[&str] = if opened_only { &["env", "-u", "LD_PRELOAD"] } else { &[] };
    on_device(efa([&["soft-efa", "run", "--"], without, program].concat()))
}

#[track_caller]
fn assert_sends(outcome: Outcome) {
    let said = outcome.success();
    assert!(said.starts_with("0 missing\ndevice efa_soft0\nmessage sent\n"), "{said}");
    assert!(said.contains("real libibverbs: RNR retry counter exceeded, 10000\n"), "{said}");
}

#[test]
fn c_program_that_opens_the_libraries_sends_a_message() {
    if !with_c_packages() {
        return;
    }
    let directory = Scratch::new("opens");
    let program = program_that_opens(&directory);
    assert_sends(soft_efa(false, &[&program]));
    assert_sends(soft_efa(true, &[&program]));
    // A run within a run finds the real library past the libraries of the outer one.
    assert_sends(soft_efa(false, &[EFA_TOOL, "soft-efa", "run", "--", &program]));

    let libraries = Scratch::new("libraries");
    let printed = efa(["soft-efa", "libraries", libraries.as_str()]).output().unwrap();
    assert!(printed.status.success());
    let printed = String::from_utf8(printed.stdout).unwrap();
    let moved = Scratch::new("moved");
    fs::rename(&libraries, &moved).unwrap();
    let moved_too = printed.replace(libraries.as_str(), moved.as_str());
    for (variables, count) in [(moved_too.as_str(), 2), (moved_too.lines().next().unwrap(), 1)] {
        let variables: Vec<_> =
            variables.lines().map(|line| line.split_once('=').unwrap()).collect();
        assert_eq!(variables.len(), count, "{printed}");
        let mut command = Command::new(&program);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let directory = Scratch::new("devices");
        command.env("EFA_SOFT_DIRECTORY", directory.as_str()).env("LD_PRELOAD", "");
        command.envs(variables);
        assert_sends(Running::start(&mut command).finish());
    }
}

/// `efa-verbs` opens the libraries and looks for versioned symbols. It needs no C compiler.
#[test]
fn rust_program_that_opens_the_libraries_finds_the_device() {
    let info = [EFA_TOOL, "info", "--json", "--device", "verbs"];
    for opened_only in [false, true] {
        let found = soft_efa(opened_only, &info).success();
        let found: serde_json::Value = serde_json::from_str(&found).unwrap();
        assert_eq!(found["device"]["name"], "efa_soft0", "{found}");
    }
    let doctor = soft_efa(true, &[EFA_TOOL, "doctor", "--device", "verbs"]).stdout;
    let line = |what: &str| doctor.lines().find(|line| line.contains(what)).unwrap().to_owned();
    let (ibverbs, efa) = (line("  libibverbs  "), line("  libefa  "));
    assert!(ibverbs.contains("/lib/libibverbs.so.1 (IBVERBS_1.0, IBVERBS_1.1"), "{ibverbs}");
    assert!(efa.contains("/lib/libefa.so.1 (EFA_1.1, EFA_1.2"), "{efa}");
}

#[test]
fn python_finds_the_device_by_ctypes() {
    let script = r#"
import ctypes
verbs, count = ctypes.CDLL("libibverbs.so.1"), ctypes.c_int()
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_get_device_name.restype = ctypes.c_char_p
verbs.ibv_get_device_name.argtypes = [ctypes.c_void_p]
devices = verbs.ibv_get_device_list(ctypes.byref(count))
print(count.value, verbs.ibv_get_device_name(devices[0]).decode())
ctypes.CDLL("libefa.so.1").efadv_query_device
"#;
    let python = Command::new("python3").arg("--version").output();
    if !python.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: python3 is not installed");
    }
    for opened_only in [false, true] {
        let said = soft_efa(opened_only, &["python3", "-c", script]).success();
        assert_eq!(said, "1 efa_soft0\n");
    }
}

/// The libraries of a machine hidden in a mount namespace.
#[test]
fn machine_without_libibverbs_runs_programs_that_open_it() {
    let hide = "for real in /usr/lib/*/libibverbs.so.1 /usr/lib*/libibverbs.so.1; do
            if [ -e $real ]; then mount --bind /dev/null $(readlink -f $real) || exit 9; fi; done
        exec $0 soft-efa run -- env -u LD_PRELOAD $0 info --device verbs --json";
    let allowed = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "true"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !allowed {
        return eprintln!("skipped: unshare (util-linux) can't make a user namespace here");
    }
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", hide, EFA_TOOL]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let outcome = on_device(command);
    if outcome.code == Some(9) {
        return eprintln!("skipped: a file can't be hidden in a mount namespace here: {outcome:?}");
    }
    let found = outcome.success();
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["device"]["name"], "efa_soft0", "{found}");
}

#[test]
fn libraries_refuse_a_directory_that_the_loader_would_split() {
    let error = common::run(["soft-efa", "libraries", "/tmp/a:b"]).failure();
    assert!(error.contains("the path contains a blank or a colon"), "{error}");
    let error = common::run(["soft-efa", "libraries", "/tmp/a b"]).failure();
    assert!(error.contains("/tmp/a b"), "{error}");
}
