//! Debian's libfabric, unmodified, under `efa soft-efa run`: each option, and two hosts.
//!
//! Needs the packages libfabric1 and libfabric-bin, and runs only with `EFA_INTEROP=1`, which says
//! that they are there, as `cargo xtask test` does: without, the tests say so and pass. Two hosts are
//! two network namespaces, which take root.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;
#[path = "../../efa-sim/tests/common/namespaces.rs"]
mod namespaces;

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::unreadable::{AS_USER, Unreadable};
use common::{Running, Scratch, counter, efa, run, until, with_c_packages};
use namespaces::Namespaces;

/// `efa soft-efa run OPTIONS -- PROGRAM`, in a network namespace perhaps.
fn soft_efa(namespace: Option<&str>, options: &[&str], program: &[&str]) -> Command {
    let inside = namespace.map(|namespace| ["ip", "netns", "exec", namespace]);
    soft_efa_by(inside.as_ref().map_or(&[], |inside| inside), options, program)
}

/// `efa soft-efa run OPTIONS -- PROGRAM`, started by another program perhaps.
fn soft_efa_by(starter: &[&str], options: &[&str], program: &[&str]) -> Command {
    let this = efa([""; 0]);
    let mut command = match starter {
        [] => Command::new(this.get_program()),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(this.get_program());
            command
        }
    };
    command.args(["soft-efa", "run"]).args(options).arg("--").args(program);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("EFA_LOG").env_remove("RUST_LOG");
    command
}

fn fi_info(options: &[&str], arguments: &[&str]) -> String {
    let program = [&["fi_info", "-p", "efa"], arguments].concat();
    Running::start(&mut soft_efa(None, options, &program)).finish().success()
}

#[test]
fn fi_info_lists_both_endpoint_types() {
    if !with_c_packages() {
        return;
    }
    let text = fi_info(&[], &[]);
    for line in ["provider: efa", "domain: efa_soft0-rdm", "domain: efa_soft0-dgrm"] {
        assert!(text.contains(line), "{text}");
    }
    assert_eq!(text.matches("type: FI_EP_RDM").count(), 1, "{text}");
    assert_eq!(text.matches("type: FI_EP_DGRAM").count(), 1, "{text}");
    let text = fi_info(&["--link", "tcp"], &[]);
    assert_eq!(text.matches("type: FI_EP_RDM").count(), 1, "{text}");
}

#[test]
fn devices_and_mtu_options_show_in_fi_info() {
    if !with_c_packages() {
        return;
    }
    let text = fi_info(&["--devices", "3"], &[]);
    assert_eq!(text.matches("type: FI_EP_RDM").count(), 3, "{text}");
    assert!(text.contains("domain: efa_soft2-rdm"), "{text}");
    let text = fi_info(&["--mtu", "4096"], &["-v"]);
    assert!(text.contains("max_msg_size: 4096\n"), "of datagrams: {text}");
}

#[test]
fn address_of_another_host_is_an_error() {
    if !with_c_packages() {
        return;
    }
    // Reserved for documentation.
    let options = ["--link", "tcp", "--address", "192.0.2.1"];
    let mut command = soft_efa(None, &options, &["fi_info", "-p", "efa"]);
    let outcome = Running::start(&mut command).finish();
    assert_ne!(outcome.code, Some(0), "{outcome:?}");
    let error = "efa-soft: no device: 192.0.2.1 is not an address of this host";
    assert!(outcome.stderr.contains(error), "{outcome:?}");
}

/// A port that is free now; if another process takes it meanwhile, the test fails.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// One side of a `fi_pingpong`.
#[derive(Clone, Copy, Default)]
struct Side<'a> {
    /// The program that starts it, with arguments; empty for none.
    starter: &'a [&'a str],
    options: &'a [&'a str],
    /// Another `fi_pingpong` than that in the path.
    program: Option<&'a str>,
}

/// Runs it; gives what server and client have printed.
fn pingpong(server: Side<'_>, client: Side<'_>, host: &str, arguments: &[&str]) -> [String; 2] {
    let port = free_port();
    let number = port.to_string();
    let start = |side: Side<'_>, place: &[&str]| {
        let options = [side.options, &["--statistics"]].concat();
        let program = side.program.unwrap_or("fi_pingpong");
        let program = [&[program, "-p", "efa", "-c"], arguments, place].concat();
        Running::start(&mut soft_efa_by(side.starter, &options, &program))
    };
    let mut server = start(server, &["-B", &number]);
    until("listening", || {
        assert!(server.is_running(), "the server has ended");
        listens(server.id(), port)
    });
    let client = start(client, &["-P", &number, host]).finish();
    let outcomes = [server.finish(), client];
    outcomes.map(|outcome| {
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        outcome.stdout + &outcome.stderr
    })
}

/// The same between two processes of this host, on devices of their own.
fn pingpong_here(options: &[&str], arguments: &[&str]) -> [String; 2] {
    let directory = Scratch::new("pingpong");
    let options = [&["--directory", directory.as_str()], options].concat();
    let side = Side { options: &options, ..Side::default() };
    pingpong(side, side, "127.0.0.1", arguments)
}

/// Whether a socket listens at `port` where this process is.
fn listens(process: u32, port: u16) -> bool {
    let tables = ["tcp", "tcp6"].map(|name| format!("/proc/{process}/net/{name}"));
    tables.iter().filter_map(|table| std::fs::read_to_string(table).ok()).any(|table| {
        table.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let (local, state) = (fields.next().unwrap_or_default(), fields.nth(1));
            local.ends_with(&format!(":{port:04X}")) && state == Some("0A")
        })
    })
}

/// The sizes in the table that a side printed, each with its `count` answers.
fn rows(text: &str, count: usize) -> usize {
    let answered = format!("={count}");
    text.lines().filter(|line| line.split_whitespace().nth(2) == Some(&answered)).count()
}

/// Sizes that `fi_pingpong` runs by default, and as datagrams up to the MTU.
const SIZES: usize = 6;
const DATAGRAM_SIZES: usize = 4;

#[test]
fn fi_pingpong_passes_with_default_sizes() {
    if !with_c_packages() {
        return;
    }
    let texts = pingpong_here(&[], &["-e", "rdm", "-I", "50"]);
    assert_eq!(texts.each_ref().map(|text| rows(text, 50)), [SIZES; 2], "{texts:?}");
    let texts = pingpong_here(&[], &["-e", "dgram", "-I", "50"]);
    assert_eq!(texts.each_ref().map(|text| rows(text, 50)), [DATAGRAM_SIZES; 2], "{texts:?}");
}

/// Ours and libfabric's, each as server and as client. Its releases since 1.10 are played by their
/// profiles in the tests of `efa-rdm`; this one is the real library.
// conformance: A217
#[test]
fn efa_pingpong_and_fi_pingpong_exchange_messages() {
    if !with_c_packages() {
        return;
    }
    let directory = Scratch::new("ours-and-theirs");
    let options = ["--directory", directory.as_str()];
    let device = ["--directory", directory.as_str(), "--device", "soft"];
    let theirs = ["fi_pingpong", "-p", "efa", "-e", "rdm", "-c", "-I", "20"];
    let ours = ["pingpong", "--fi", "--sizes", "64,256,1k,4k,64k,1M", "--iterations", "20"];
    let host = |port: u16| format!("127.0.0.1:{port}");
    let listening = |server: &mut Running, port| {
        until("listening", || {
            assert!(server.is_running(), "the server has ended");
            listens(server.id(), port)
        });
    };
    let port = free_port();
    let number = port.to_string();
    let program = [&theirs, &["-B", &number][..]].concat();
    let mut server = Running::start(&mut soft_efa(None, &options, &program));
    listening(&mut server, port);
    run([&ours, &device[..], &[&host(port)]].concat()).success();
    assert_eq!(rows(&server.finish().success(), 20), SIZES);

    let port = free_port();
    let (number, here) = (port.to_string(), host(port));
    let arguments = [&ours, &device[..], &["--listen", &here]].concat();
    let mut server = Running::start(&mut efa(arguments));
    listening(&mut server, port);
    let program = [&theirs, &["-P", &number, "127.0.0.1"][..]].concat();
    let client = Running::start(&mut soft_efa(None, &options, &program)).finish();
    assert_eq!(rows(&client.success(), 20), SIZES);
    server.finish().success();
}

#[test]
fn device_rdma_option_sets_the_capabilities() {
    if !with_c_packages() {
        return;
    }
    let arguments = ["-e", "rdm", "-I", "10", "-S", "1048576"];
    for (which, expected) in [("read", 10), ("read,write", 10), ("write", 0), ("none", 0)] {
        let [_, text] = pingpong_here(&["--device-rdma", which], &arguments);
        assert_eq!((rows(&text, 10), counter(&text, "reads")), (1, expected), "{which}: {text}");
    }
}

#[test]
fn libfabric_bypasses_the_device_only_with_shm_transfer() {
    if !with_c_packages() {
        return;
    }
    let arguments = ["-e", "rdm", "-I", "10", "-S", "64"];
    let [_, text] = pingpong_here(&[], &arguments);
    assert!(counter(&text, "sends") >= 10, "{text}");
    let [_, text] = pingpong_here(&["--shm-transfer"], &arguments);
    assert_eq!((rows(&text, 10), counter(&text, "sends")), (1, 0), "{text}");
}

#[test]
fn rnr_option_makes_datagrams_fail() {
    if !with_c_packages() {
        return;
    }
    let arguments = ["-e", "rdm", "-I", "20", "-S", "65536"];
    let [_, text] = pingpong_here(&["--rnr", "0.2"], &arguments);
    assert_eq!(rows(&text, 20), 1, "{text}");
    assert!(counter(&text, "receiver not ready") > 0, "{text}");
}

#[test]
fn reordering_is_captured_and_repeats_with_the_seed() {
    if !with_c_packages() {
        return;
    }
    let arguments = ["-e", "rdm", "-I", "10", "-S", "65536"];
    let in_order = |seed: Option<&str>| {
        let captures = Scratch::new("captures");
        std::fs::create_dir(&captures).unwrap();
        let file = captures.as_ref().join("%p.pcapng");
        let mut options = vec!["--capture", file.to_str().unwrap()];
        options.extend(seed.iter().flat_map(|seed| ["--reorder", seed]));
        let [_, text] = pingpong_here(&options, &arguments);
        assert_eq!(rows(&text, 10), 1, "{text}");
        let files: Vec<_> = captures.as_ref().read_dir().unwrap().map(|e| e.unwrap()).collect();
        assert_eq!(files.len(), 2, "one of each process");
        let path = files[0].path();
        let decode = ["decode", "--type", "medium", "--event", "sent", path.to_str().unwrap()];
        let offsets: Vec<u32> = run(decode)
            .success()
            .lines()
            .map(|line| {
                let (_, rest) = line.split_once("seg_offset=").unwrap();
                rest.split(' ').next().unwrap().parse().unwrap()
            })
            .collect();
        assert_eq!(offsets.len() % 8, 0);
        assert!(offsets.len() >= 80);
        offsets.chunks(8).all(<[u32]>::is_sorted)
    };
    assert!(in_order(None));
    assert!(!in_order(Some("7")));
}

/// The place of a server that is killed while it waits for what its client has to say.
#[test]
fn killed_program_leaves_no_sysfs_tree() {
    if !with_c_packages() {
        return;
    }
    let directory = Scratch::new("killed");
    let options = ["--directory", directory.as_str()];
    let port = free_port();
    let program = ["fi_pingpong", "-p", "efa", "-e", "rdm", "-B", &port.to_string()];
    let mut server = Running::start(&mut soft_efa(None, &options, &program));
    until("listening", || listens(server.id(), port));
    // It looks for devices once a client has connected.
    let _client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let environment = format!("/proc/{}/environ", server.id());
    let mut place = None;
    until("its directory is printed", || {
        let environment = std::fs::read_to_string(&environment).unwrap_or_default();
        let variables = environment.split('\0');
        place =
            variables.filter_map(|v| v.strip_prefix("EFA_SOFT_SYSFS=")).map(PathBuf::from).next();
        place.is_some()
    });
    let place = place.unwrap();
    let tree = || {
        let entries = place.read_dir().into_iter().flatten().flatten();
        entries.into_iter().find(|entry| entry.path().join("class/infiniband").exists())
    };
    until("there", || tree().is_some());
    server.kill();
    until("removed", || !place.exists());
}

/// Started by an ordinary user from a file that this user can't read, a program is not dumpable.
#[test]
fn fi_pingpong_passes_with_default_sizes_if_memory_is_not_readable() {
    let Some(place) = Unreadable::new() else { return };
    if !with_c_packages() {
        return;
    }
    let program = place.copy("/usr/bin/fi_pingpong");
    let options = ["--directory", place.devices()];
    let side = Side { starter: &AS_USER, options: &options, program: Some(&program) };
    let texts = pingpong(side, side, "127.0.0.1", &["-e", "rdm", "-I", "20"]);
    assert_eq!(texts.each_ref().map(|text| rows(text, 20)), [SIZES; 2], "{texts:?}");
    for text in &texts {
        assert!(counter(text, "reads") >= 20, "{text}");
        assert!(!text.contains("offers no RDMA"), "{text}");
    }
}

/// As in containers that share `/dev/shm`: the server in one PID namespace, the client in another, and perhaps as
/// another user, by number, with another `/proc`.
#[test]
fn fi_pingpong_passes_with_default_sizes_between_pid_namespaces() {
    if !with_c_packages() {
        return;
    }
    let pid = ["unshare", "--pid", "--fork", "--kill-child"];
    let user = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "--mount-proc",
        "--pid",
        "--fork",
        "--kill-child",
    ];
    for starter in [&pid[..], &user] {
        let possible = Command::new(starter[0]).args(&starter[1..]).arg("true").output();
        if !possible.as_ref().is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: no namespaces by {starter:?} here: {possible:?}");
            continue;
        }
        let directory = Scratch::new("namespaces");
        let options = ["--directory", directory.as_str()];
        let here = Side { starter: &[], options: &options, program: None };
        let there = Side { starter, ..here };
        for [server, client] in [[here, there], [there, here], [there, there]] {
            let texts = pingpong(server, client, "127.0.0.1", &["-e", "rdm", "-I", "20"]);
            assert_eq!(texts.each_ref().map(|text| rows(text, 20)), [SIZES; 2], "{texts:?}");
            for text in &texts {
                assert!(counter(text, "reads") >= 20, "{text}");
            }
        }
    }
}

/// Two hosts, each a network namespace, with nothing between them but the tcp link.
#[test]
fn two_network_namespaces_exchange_messages_over_tcp() {
    if !with_c_packages() {
        return;
    }
    let Some(namespaces) = Namespaces::new() else { return };
    let [a, b] = namespaces.names();
    let run = |rdma: &str, arguments: &[&str]| {
        let options = |address| ["--link", "tcp", "--address", address, "--device-rdma", rdma];
        let (there, here) = (options("10.77.0.1"), options("10.77.0.2"));
        let [a, b] = [a, b].map(|namespace| ["ip", "netns", "exec", namespace]);
        let server = Side { starter: &a, options: &there, program: None };
        let client = Side { starter: &b, options: &here, program: None };
        let texts = pingpong(server, client, "10.77.0.1", arguments);
        for text in &texts {
            assert!(counter(text, "sends") > 0, "by the device: {text}");
        }
        texts
    };
    let rdm = ["-e", "rdm", "-I", "20"];
    let texts = run("read,write", &rdm);
    assert_eq!(texts.each_ref().map(|text| rows(text, 20)), [SIZES; 2], "{texts:?}");
    assert_eq!(counter(&texts[1], "reads"), 20, "the longest of the sizes: {}", texts[1]);
    let texts = run("none", &rdm);
    assert_eq!(texts.each_ref().map(|text| rows(text, 20)), [SIZES; 2], "{texts:?}");
    assert_eq!(counter(&texts[1], "reads"), 0, "{}", texts[1]);
    let texts = run("none", &["-e", "dgram", "-I", "20"]);
    assert_eq!(texts.each_ref().map(|text| rows(text, 20)), [DATAGRAM_SIZES; 2], "{texts:?}");
}
