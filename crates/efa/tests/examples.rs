//! Each example prints what its first comment says.
//!
//! The examples are run as processes, so they must have been built: `cargo test -p efa` does so, and so
//! does `cargo build -p efa --examples`.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program of an example, in the directory beside that of this test's program.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is not built: cargo build -p efa --examples", path.display());
    path
}

/// The lines of the session in an example's first comment: commands, which end in the example's name and
/// arguments, and outputs.
fn session(name: &str) -> Vec<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
    let source = std::fs::read_to_string(source.with_extension("rs")).unwrap();
    let comment = source.lines().map_while(|line| line.strip_prefix("//!"));
    let comment = comment.map(|line| line.strip_prefix(' ').unwrap_or(line));
    let session = comment.skip_while(|line| *line != "```text").skip(1);
    session.take_while(|line| *line != "```").map(str::to_owned).collect()
}

/// Replaces addresses of endpoints, which differ from run to run, by `ADDRESS`.
fn without_addresses(line: &str) -> String {
    let is_address = |word: &&str| word.parse::<efa::Address>().is_ok();
    let words = line.split(' ');
    words.map(|word| if is_address(&word) { "ADDRESS" } else { word }).collect::<Vec<_>>().join(" ")
}

fn check(name: &str) {
    check_with(name, "");
}

/// Runs an example whose command names `features`.
fn check_with(name: &str, features: &str) {
    let [command, expected @ ..] = &session(name)[..] else { panic!("{name} shows no session") };
    assert_eq!(*command, format!("$ cargo run -p efa {features}--example {name}"));
    let run = Command::new(program(name)).output().unwrap();
    assert!(run.status.success(), "{name}: {}", String::from_utf8_lossy(&run.stderr));
    let output = String::from_utf8(run.stdout).unwrap();
    assert_eq!(output.lines().collect::<Vec<_>>(), expected, "{name}");
}

#[test]
fn hello_prints_what_its_comment_shows() {
    check("hello");
}

#[test]
fn two_processes_prints_what_its_comment_shows() {
    check("two_processes");
}

#[test]
fn multi_receive_prints_what_its_comment_shows() {
    check("multi_receive");
}

#[test]
fn counters_prints_what_its_comment_shows() {
    check("counters");
}

#[test]
fn errors_prints_what_its_comment_shows() {
    check("errors");
}

#[test]
fn in_place_prints_what_its_comment_shows() {
    check("in_place");
}

#[test]
fn remote_memory_prints_what_its_comment_shows() {
    check("remote_memory");
}

#[test]
fn scalable_prints_what_its_comment_shows() {
    check("scalable");
}

// conformance: C134
#[test]
fn event_loop_prints_what_its_comment_shows() {
    check("event_loop");
}

#[cfg(feature = "tokio")]
#[test]
fn tokio_pingpong_prints_what_its_comment_shows() {
    check_with("tokio_pingpong", "--features tokio ");
}

/// The two programs of `two_hosts`, both with the address of this host.
#[test]
fn two_hosts_print_what_their_comment_shows() {
    let session = session("two_hosts");
    let [first, second] = session.split(|line| line.is_empty()).collect::<Vec<_>>()[..] else {
        panic!("two hosts have two sessions: {session:#?}");
    };
    assert_eq!(first[0], "host-a$ cargo run -p efa --example two_hosts 10.0.0.1");
    assert!(
        second[0].starts_with(
            "host-b$ cargo run -p efa --example two_hosts 10.0.0.2 [::ffff:10.0.0.1]:"
        )
    );

    let program = program("two_hosts");
    let host = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut a = host(&["127.0.0.1"]);
    let mut output = BufReader::new(a.stdout.take().unwrap());
    let mut outputs = [String::new(), String::new()];
    output.read_line(&mut outputs[0]).unwrap();
    let address = outputs[0].trim_end().strip_prefix("address: ").unwrap().to_owned();
    let mut b = host(&["127.0.0.1", &address]);
    output.read_to_string(&mut outputs[0]).unwrap();
    b.stdout.take().unwrap().read_to_string(&mut outputs[1]).unwrap();
    assert!(a.wait().unwrap().success() && b.wait().unwrap().success());
    for (output, shown) in outputs.iter().zip([first, second]) {
        let shown: Vec<_> = shown[1..].iter().map(|line| without_addresses(line)).collect();
        assert_eq!(output.lines().map(without_addresses).collect::<Vec<_>>(), shown);
    }
}

/// The two programs of `msg_pingpong`; the second is given the address that the first prints.
// conformance: C136
#[test]
fn msg_pingpong_prints_what_its_comment_shows() {
    let session = session("msg_pingpong");
    let [server, client] = session.split(|line| line.is_empty()).collect::<Vec<_>>()[..] else {
        panic!("two programs have two sessions: {session:#?}");
    };
    let mut first = Command::new(program("msg_pingpong")).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(first.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("listening at ").unwrap();
    let second = Command::new(program("msg_pingpong")).arg(address).output();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    let ended = first.wait().unwrap();
    let second = second.unwrap();
    assert!(second.status.success(), "{}", String::from_utf8_lossy(&second.stderr));
    assert!(ended.success());
    assert_eq!(rest.lines().collect::<Vec<_>>(), server[2..]);
    let printed = String::from_utf8(second.stdout).unwrap();
    assert_eq!(printed.lines().collect::<Vec<_>>(), client[1..]);
}
