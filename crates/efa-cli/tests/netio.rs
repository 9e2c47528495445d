//! `efa netio` as a user meets it: files arrive whole, losses and refusals have exit codes of their own.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;
#[path = "../../efa-sim/tests/common/namespaces.rs"]
mod namespaces;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Outcome, Running, Scratch, efa, run};
use namespaces::Namespaces;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The directory of the software devices of these tests.
const DEVICES: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/efa-devices");
/// Any port.
const ANY: &str = "127.0.0.1:0";

/// `efa netio` with these arguments, which contain no blanks.
fn netio(arguments: &str) -> Command {
    let place: &[&str] = match arguments.contains("--link tcp") {
        true => &[],
        false => &["--directory", DEVICES],
    };
    efa(["netio"].into_iter().chain(arguments.split_whitespace()).chain(place.iter().copied()))
}

fn start(arguments: &str) -> Running {
    Running::start(&mut netio(arguments))
}

/// A publisher or receiver, and where it listens.
fn listening(command: &mut Command) -> (Running, String) {
    let mut running = Running::start(command);
    let line = running.stderr_line("listening on ");
    let at = line.strip_prefix("listening on ").unwrap().to_owned();
    (running, at)
}

#[track_caller]
fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Standard error of a run with this exit code.
#[track_caller]
fn failed(outcome: Outcome, code: i32) -> String {
    assert_eq!(outcome.code, Some(code), "{outcome:?}");
    assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
    outcome.stderr
}

/// A directory of its own with a file of random bytes.
struct Files {
    scratch: Scratch,
    bytes: Vec<u8>,
}

impl Files {
    fn new(name: &str, length: usize) -> Self {
        let scratch = Scratch::new(name);
        std::fs::create_dir(&scratch).unwrap();
        let mut state = 0x9e37_79b9_u32;
        let bytes = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        let bytes: Vec<u8> = bytes.take(length).collect();
        std::fs::write(scratch.as_ref().join("file"), &bytes).unwrap();
        Self { scratch, bytes }
    }

    fn path(&self, name: &str) -> PathBuf {
        let directory: &Path = self.scratch.as_ref();
        directory.join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// The file is there, the same.
    #[track_caller]
    fn check(&self, name: &str) {
        let found = std::fs::read(self.path(name)).unwrap();
        assert!(found == self.bytes, "{name}: {} of {} bytes", found.len(), self.bytes.len());
    }
}

const COPIES: [&str; 3] = ["copy1", "copy2", "copy3"];

#[test]
fn published_file_arrives_identical_at_three_subscribers_on_shm() {
    let files = Files::new("three", 5_000_001);
    let file = files.text("file");
    let (publisher, at) =
        listening(&mut netio(&format!("publish {ANY} --tag 23 --wait-for 3 --json {file}")));
    let subscribers = COPIES.map(|copy| {
        start(&format!("subscribe {at} --tag 0x17 --json --output {}", files.text(copy)))
    });
    for (subscriber, copy) in subscribers.into_iter().zip(COPIES) {
        let totals = json(&subscriber.finish().success());
        assert_eq!((&totals["messages"], &totals["bytes"]), (&77.into(), &5_000_001.into()));
        assert_eq!((&totals["complete"], &totals["lost"]), (&true.into(), &0.into()));
        files.check(copy);
    }
    let totals = json(&publisher.finish().success());
    assert_eq!((&totals["messages"], &totals["served"]), (&77.into(), &(3 * 77).into()));
    assert_eq!((&totals["subscribers"], &totals["subscribers_lost"]), (&3.into(), &0.into()));
    assert_eq!((&totals["unheard"], &totals["lost"]), (&0.into(), &0.into()));
}

/// Two hosts, each a network namespace, with nothing between them but TCP.
#[test]
fn published_and_sent_files_arrive_identical_in_another_network_namespace_on_tcp() {
    let Some(namespaces) = Namespaces::new() else { return };
    let [here, there] = namespaces.names();
    let inside = |namespace: &str, arguments: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, env!("CARGO_BIN_EXE_efa"), "netio"]);
        command.args(arguments.split_whitespace()).args(["--link", "tcp"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let files = Files::new("hosts", 3_000_017);
    let file = files.text("file");
    let publish = format!("publish 10.77.0.1:0 --tag 23 --wait-for 3 {file}");
    let (publisher, at) = listening(&mut inside(here, &publish));
    let subscribers = COPIES.map(|copy| {
        let copy = files.text(copy);
        let subscribe = format!("subscribe {at} --tag 23 --output {copy}");
        Running::start(&mut inside(there, &subscribe))
    });
    subscribers.into_iter().for_each(|subscriber| drop(subscriber.finish().success()));
    publisher.finish().success();
    COPIES.iter().for_each(|copy| files.check(copy));

    let receive = format!("receive [fd77::1]:0 --output {}", files.text("sent"));
    let (receiver, at) = listening(&mut inside(here, &receive));
    Running::start(&mut inside(there, &format!("send {at} {file}"))).finish().success();
    receiver.finish().success();
    files.check("sent");
}

#[test]
fn sent_file_arrives_identical_on_shm_and_tcp() {
    let files = Files::new("sent", 2_000_003);
    for link in ["shm", "tcp"] {
        let (file, copy) = (files.text("file"), files.text(link));
        let receive = format!("receive {ANY} --link {link} --json --output {copy}");
        let (receiver, at) = listening(&mut netio(&receive));
        let send = format!("send {at} --link {link} --message-size 10000 --json {file}");
        let totals = json(&start(&send).finish().success());
        assert_eq!((&totals["messages"], &totals["lost"]), (&201.into(), &0.into()), "{link}");
        let totals = json(&receiver.finish().success());
        assert_eq!((&totals["messages"], &totals["bytes"]), (&201.into(), &2_000_003.into()));
        files.check(link);
    }
}

#[test]
fn captures_of_both_sides_have_the_packets_of_a_run() {
    let files = Files::new("captured", 20_000);
    let [file, sent, received] =
        ["file", "sent.pcapng", "received.pcapng"].map(|of| files.text(of));
    for link in ["shm", "tcp"] {
        let receive = format!("receive {ANY} --link {link} --output {}", files.text(link));
        let (receiver, at) = listening(&mut netio(&format!("{receive} --capture {received}")));
        let send = format!("send {at} --link {link} --capture {sent} --capture-bytes 64 {file}");
        start(&send).finish().success();
        receiver.finish().success();
        files.check(link);
        for (capture, event) in [(&sent, "sent"), (&received, "received")] {
            let lines = run(["decode", capture, "--event", event, "--type", "rtm"]).success();
            assert_ne!(lines, "", "{link}: {event}");
        }
    }
    let nowhere = format!("bench --capture {}/none/f", files.text("file"));
    let said = failed(start(&nowhere).finish(), 1);
    assert!(said.contains("none/f: cannot write the capture: Not a directory"), "{said}");
}

#[test]
fn lines_of_standard_input_arrive_as_messages_while_it_is_open() {
    let (mut input, ours) = {
        let (theirs, ours) = std::io::pipe().unwrap();
        (Some(ours), theirs)
    };
    let mut command = netio(&format!("publish {ANY} --tag 5 --lines --message-size 8"));
    let (publisher, at) = listening(command.stdin(ours));
    drop(command);
    let mut subscriber = start(&format!("subscribe {at} --tag 5 --hex"));
    let mut say = |text: &[u8]| input.as_mut().unwrap().write_all(text).unwrap();
    say(b"one\n");
    assert_eq!(subscriber.stdout_line("0x5"), "0x5 4 6f6e650a");
    say(b"\nlonger than eight\nno end");
    drop(input);
    let lines = subscriber.finish().success();
    let expected: String = ["\n", "longer t", "han eigh", "t\n", "no end"]
        .map(|text| {
            let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
            format!("0x5 {} {hex}\n", text.len())
        })
        .concat();
    assert_eq!(lines, format!("0x5 4 6f6e650a\n{expected}"));
    publisher.finish().success();
}

#[test]
fn json_of_a_subscriber_is_an_object_for_each_message_and_the_totals() {
    let files = Files::new("json", 300);
    let file = files.text("file");
    let (publisher, at) =
        listening(&mut netio(&format!("publish {ANY} --tag 7 --message-size 100 {file}")));
    let text = start(&format!("subscribe {at} --tag 7 --tag 8 --json")).finish().success();
    publisher.finish().success();
    let lines: Vec<_> = text.lines().map(json).collect();
    let [messages @ .., totals] = &lines[..] else { panic!("{text}") };
    assert_eq!(messages.len(), 3);
    let mut hex = String::new();
    for message in messages {
        assert_eq!((&message["tag"], &message["length"]), (&7.into(), &100.into()));
        hex += message["hex"].as_str().unwrap();
    }
    assert_eq!(hex, files.bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    assert_eq!((&totals["messages"], &totals["bytes"]), (&3.into(), &300.into()));
}

#[test]
fn publisher_at_the_name_of_a_host_counts_a_subscriber_that_is_there_before_it_listens() {
    let files = Files::new("early", 5000);
    let file = files.text("file");
    for _ in 0..5 {
        // A port that nobody has, as far as that can be known.
        let port = TcpListener::bind(ANY).unwrap().local_addr().unwrap().port();
        let at = format!("localhost:{port}");
        let subscriber = start(&format!("subscribe {at} --tag 1 --retry 20 --discard"));
        let publisher = start(&format!("publish {at} --tag 1 --wait-for 1 --json {file}"));
        subscriber.finish().success();
        let totals = json(&publisher.finish().success());
        assert_eq!((&totals["subscribers"], &totals["served"]), (&1.into(), &1.into()));
    }
}

#[test]
fn subscriber_that_has_its_count_leaves_and_nothing_is_lost() {
    let files = Files::new("count", 1_000_000);
    let file = files.text("file");
    let publish = format!("publish {ANY} --tag 1 --wait-for 2 --message-size 10000 {file}");
    let (publisher, at) = listening(&mut netio(&format!("{publish} --json")));
    let all = start(&format!("subscribe {at} --tag 1 --output {}", files.text("all")));
    let few = start(&format!("subscribe {at} --tag 1 --discard --json --count 3"));
    assert_eq!(json(&few.finish().success())["messages"], 3);
    all.finish().success();
    files.check("all");
    let totals = json(&publisher.finish().success());
    assert_eq!((&totals["lost"], &totals["subscribers_lost"]), (&0.into(), &0.into()));

    let (publisher, at) = listening(&mut netio(&format!("publish {ANY} --tag 1 {file}")));
    let outcome = start(&format!("subscribe {at} --tag 1 --discard --count 1000")).finish();
    let said = failed(outcome, 4);
    assert!(said.contains("the publisher ended after 16 of 1000 messages"), "{said}");
    publisher.finish().success();
}

#[test]
fn publisher_that_repeats_ends_when_its_last_subscriber_leaves() {
    let files = Files::new("repeat", 5000);
    let file = files.text("file");
    let (publisher, at) = listening(&mut netio(&format!("publish {ANY} --tag 1 --repeat {file}")));
    let subscribe = format!("subscribe {at} --tag 1 --count 40 --output {}", files.text("copies"));
    start(&subscribe).finish().success();
    publisher.finish().success();
    assert_eq!(std::fs::read(files.path("copies")).unwrap(), files.bytes.repeat(40));

    let publish = format!("publish {ANY} --tag 1 --repeat=3 --rate 20 --json {file}");
    let (publisher, at) = listening(&mut netio(&publish));
    start(&format!("subscribe {at} --tag 1 --output {}", files.text("three"))).finish().success();
    assert_eq!(std::fs::read(files.path("three")).unwrap(), files.bytes.repeat(3));
    let seconds = json(&publisher.finish().success())["seconds"].as_f64().unwrap();
    assert!(seconds >= 0.09, "the third of 20 a second is due after 0.1 s: {seconds}");
}

#[test]
fn killed_subscriber_is_a_loss_of_the_publisher_and_of_nobody_else() {
    let files = Files::new("killed-subscriber", 400_000);
    let file = files.text("file");
    let publish =
        format!("publish {ANY} --tag 1 --wait-for 2 --message-size 1000 --rate 400 --json {file}");
    let (publisher, at) = listening(&mut netio(&publish));
    let survivor = start(&format!("subscribe {at} --tag 1 --output {}", files.text("copy")));
    let mut victim = start(&format!("subscribe {at} --tag 1 --hex"));
    victim.stdout_line("0x1 1000");
    victim.kill();
    survivor.finish().success();
    files.check("copy");
    let outcome = publisher.finish();
    let totals = json(&outcome.stdout);
    assert_eq!(totals["complete"], false);
    assert_eq!((&totals["messages"], &totals["subscribers_lost"]), (&400.into(), &1.into()));
    let said = failed(outcome, 4);
    assert!(said.contains("1 subscriber (the other side is gone)"), "{said}");
}

#[test]
fn statistics_tell_what_each_subscriber_got_and_lost_though_one_was_killed() {
    let (theirs, ours) = std::io::pipe().unwrap();
    let mut input = Some(ours);
    let mut command =
        netio(&format!("publish {ANY} --tag 1 --wait-for 2 --lines --statistics=0.01 --json"));
    let (mut publisher, at) = listening(command.stdin(theirs));
    drop(command);
    let survivor = start(&format!("subscribe {at} --tag 1 --hex"));
    let mut victim = start(&format!("subscribe {at} --tag 1 --hex"));
    let mut say = |text: &str| input.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    say("first\n");
    victim.stdout_line("0x1 6");
    // While they run.
    publisher.stdout_line("\"delivered\":1,\"lost\":0,\"queued\":0");
    victim.kill();
    say(&"next\n".repeat(100));
    drop(input);
    assert_eq!(survivor.finish().success().lines().count(), 101);
    let outcome = publisher.finish();
    assert_eq!(outcome.code, Some(4), "{outcome:?}");
    let totals = json(outcome.stdout.lines().last().unwrap());
    let rows = totals["statistics"].as_array().unwrap();
    let is_whole = |row: &&Value| row.get("gone").is_none();
    let (whole, lost): (Vec<_>, Vec<_>) = rows.iter().partition(is_whole);
    let ([whole], [lost]) = (&whole[..], &lost[..]) else { panic!("{totals}") };
    let numbers = ["sent", "delivered", "lost", "queued"].map(|name| whole[name].as_u64());
    assert_eq!(numbers, [101, 101, 0, 0].map(Some), "{totals}");
    assert_ne!(whole["subscriber"], lost["subscriber"]);
    assert_eq!(lost["gone"], "the other side is gone");
    assert_eq!((&lost["lost"], &lost["queued"]), (&totals["lost"], &0.into()), "{totals}");
    let delivered = lost["delivered"].as_u64().unwrap();
    assert_eq!(totals["served"].as_u64(), Some(delivered + 101), "{totals}");
}

/// Sends a signal to a program.
fn signal(running: &Running, signal: Signal) {
    let id = Pid::from_raw(running.id().try_into().unwrap()).unwrap();
    kill_process(id, signal).unwrap();
}

/// [`netio`], started by these words.
fn started_by(words: &[&str], arguments: &str) -> Command {
    let command = netio(arguments);
    let mut started = Command::new(words[0]);
    started.args(&words[1..]).arg(command.get_program()).args(command.get_args());
    started.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    started.env_remove("EFA_LOG").env_remove("RUST_LOG");
    started
}

/// [`netio`], so that SIGINT ends it: a test that a script runs in the background has it ignored, and its children too.
fn interruptible(arguments: &str) -> Command {
    started_by(&["env", "--default-signal=INT"], arguments)
}

#[test]
fn interrupted_publisher_prints_its_totals_and_is_a_loss_of_its_subscribers() {
    for (number, name, sent) in [(Signal::INT, "SIGINT", 2), (Signal::TERM, "SIGTERM", 0)] {
        let (theirs, mut input) = std::io::pipe().unwrap();
        let mut command =
            interruptible(&format!("publish {ANY} --tag 1 --lines --statistics --json"));
        let (mut publisher, at) = listening(command.stdin(theirs));
        drop(command);
        // Before the first subscriber comes as well.
        let subscriber = (sent > 0).then(|| {
            let mut subscriber = start(&format!("subscribe {at} --tag 1 --hex"));
            input.write_all(b"one\ntwo\n").unwrap();
            subscriber.stdout_line("0x1 4 74776f0a");
            subscriber
        });
        assert!(publisher.is_running());
        signal(&publisher, number);
        let outcome = publisher.finish();
        assert_eq!(outcome.code, Some(128 + number.as_raw()), "{outcome:?}");
        assert!(
            outcome.stderr.ends_with(&format!("error: interrupted by {name}\n")),
            "{outcome:?}"
        );
        let totals = json(&outcome.stdout);
        assert_eq!((&totals["complete"], &totals["lost"]), (&false.into(), &0.into()), "{totals}");
        let rows = totals["statistics"].as_array().unwrap();
        assert_eq!(rows.len(), usize::from(sent > 0), "{totals}");
        for row in rows {
            assert_eq!((&row["sent"], &row["lost"]), (&sent.into(), &0.into()), "{totals}");
            let known = row["delivered"].as_u64().unwrap() + row["queued"].as_u64().unwrap();
            assert_eq!(known, sent, "{totals}");
        }
        if let Some(subscriber) = subscriber {
            let said = failed(subscriber.finish(), 4);
            assert!(said.contains("error: lost the publisher: the other side is gone"), "{said}");
        }
    }
}

/// That this was interrupted by SIGTERM and has printed these totals.
#[track_caller]
fn is_interrupted(outcome: &Outcome, totals: &str) {
    assert_eq!(outcome.code, Some(143), "{outcome:?}");
    assert!(outcome.stderr.ends_with("error: interrupted by SIGTERM\n"), "{outcome:?}");
    assert!(outcome.stderr.contains(totals), "{outcome:?}");
}

#[test]
fn interrupted_subscriber_sender_and_receiver_print_their_totals() {
    let (theirs, mut input) = std::io::pipe().unwrap();
    let publish = format!("publish {ANY} --tag 1 --lines");
    let (_publisher, at) = listening(netio(&publish).stdin(theirs));
    let mut subscriber = start(&format!("subscribe {at} --tag 1 --hex"));
    input.write_all(b"one\ntwo\n").unwrap();
    subscriber.stdout_line("0x1 4 74776f0a");
    signal(&subscriber, Signal::TERM);
    is_interrupted(&subscriber.finish(), "2 messages");

    // The input stays open.
    let transfer = || {
        let (theirs, mut input) = std::io::pipe().unwrap();
        let (mut receiver, at) = listening(&mut netio(&format!("receive {ANY}")));
        let sender = Running::start(netio(&format!("send {at} --lines")).stdin(theirs));
        input.write_all(b"one\ntwo\n").unwrap();
        receiver.stdout_line("two");
        (sender, receiver, input)
    };
    let (sender, receiver, _input) = transfer();
    signal(&receiver, Signal::TERM);
    is_interrupted(&receiver.finish(), "2 messages");
    failed(sender.finish(), 4);

    let (sender, receiver, _input) = transfer();
    signal(&sender, Signal::TERM);
    is_interrupted(&sender.finish(), " messages");
    failed(receiver.finish(), 4);
}

#[test]
fn interrupted_bench_reports_what_it_has_measured() {
    let mut command = interruptible("bench --size 1000 --seconds 3600 --json");
    let mut bench = Running::start(command.env("EFA_LOG", "info"));
    bench.stderr_line("all have subscribed");
    signal(&bench, Signal::INT);
    let outcome = bench.finish();
    assert_eq!(outcome.code, Some(130), "{outcome:?}");
    let report = json(&outcome.stdout);
    assert_eq!(report["lost"], 0, "{report}");
    assert!(report["seconds"].as_f64().unwrap() < 3600.0, "{report}");
}

#[test]
fn signal_that_was_ignored_at_the_start_remains_ignored() {
    let (theirs, mut input) = std::io::pipe().unwrap();
    let ignoring = ["sh", "-c", r#"trap "" INT; exec "$0" "$@""#];
    let mut command = started_by(&ignoring, &format!("publish {ANY} --tag 1 --lines"));
    let (publisher, at) = listening(command.stdin(theirs));
    drop(command);
    signal(&publisher, Signal::INT);
    let mut subscriber = start(&format!("subscribe {at} --tag 1 --hex"));
    input.write_all(b"one\n").unwrap();
    subscriber.stdout_line("0x1 4 6f6e650a");
    drop(input);
    publisher.finish().success();
    subscriber.finish().success();
}

#[test]
fn publisher_that_repeats_without_end_is_complete_when_it_is_interrupted() {
    let files = Files::new("interrupted", 5000);
    let publish = format!("publish {ANY} --tag 1 --repeat --json {}", files.text("file"));
    let (publisher, at) = listening(&mut interruptible(&publish));
    let output = files.text("copies");
    let subscriber = start(&format!("subscribe {at} --tag 1 --json --output {output}"));
    common::until("under way", || std::fs::metadata(&output).is_ok_and(|data| data.len() > 5000));
    signal(&publisher, Signal::INT);
    let totals = json(&publisher.finish().success());
    assert_eq!((&totals["complete"], &totals["lost"]), (&true.into(), &0.into()), "{totals}");
    let received = json(&subscriber.finish().success());
    for sent in ["messages", "served"] {
        assert_eq!(received["messages"], totals[sent], "{received} {totals}");
    }
}

#[test]
fn killed_publisher_is_a_loss_of_its_subscribers() {
    let files = Files::new("killed-publisher", 400_000);
    let file = files.text("file");
    let publish = format!("publish {ANY} --tag 1 --message-size 1000 --rate 100 {file}");
    let (mut publisher, at) = listening(&mut netio(&publish));
    let mut subscriber = start(&format!("subscribe {at} --tag 1 --hex"));
    subscriber.stdout_line("0x1 1000");
    publisher.kill();
    let said = failed(subscriber.finish(), 4);
    assert!(said.contains("error: lost the publisher: the other side is gone"), "{said}");
}

#[test]
fn killed_receiver_or_sender_is_a_loss_of_the_other() {
    let files = Files::new("killed-receiver", 400_000);
    let send =
        |at: &str| format!("send {at} --message-size 1000 --rate 100 {}", files.text("file"));
    let received = |name: &str| {
        common::until("something is received", || {
            std::fs::metadata(files.path(name)).is_ok_and(|found| found.len() > 0)
        });
    };
    let (mut receiver, at) =
        listening(&mut netio(&format!("receive {ANY} --output {}", files.text("a"))));
    let sender = start(&send(&at));
    received("a");
    receiver.kill();
    let said = failed(sender.finish(), 4);
    assert!(
        said.contains("error: lost the receiver: ") || said.contains("a message was lost"),
        "{said}"
    );

    let (receiver, at) =
        listening(&mut netio(&format!("receive {ANY} --output {}", files.text("b"))));
    let mut sender = start(&send(&at));
    received("b");
    sender.kill();
    let said = failed(receiver.finish(), 4);
    assert!(said.contains("error: lost the sender: the other side is gone"), "{said}");
}

#[test]
fn message_longer_than_the_buffer_is_a_loss_of_both_sides() {
    let files = Files::new("long", 30_000);
    let file = files.text("file");
    let publish = format!("publish {ANY} --tag 1 --message-size 2000 --statistics {file}");
    let (publisher, at) = listening(&mut netio(&publish));
    let subscribe = format!("subscribe {at} --tag 1 --discard --message-size 1000");
    let problem = "a message of 2000 bytes for a buffer of 1000 bytes";
    let remedies =
        "use `subscribe --message-size 2000` or more, or `publish --message-size 1000` or less";
    let said = failed(start(&subscribe).finish(), 4);
    assert!(said.contains(&format!("{problem}: {remedies}")), "{said}");
    let said = failed(publisher.finish(), 4);
    assert!(said.contains(&format!("({problem}): {remedies}")), "{said}");
    // Receipts come also for messages that are dropped behind it. What the subscriber tells is exact.
    assert!(!said.contains(" at least ") && !said.contains("; at most "), "{said}");
    let number = |after: &str, before: &str| -> u64 {
        let (_, rest) = said.split_once(after).unwrap_or_else(|| panic!("{after}: {said}"));
        let (number, _) = rest.split_once(before).unwrap_or_else(|| panic!("{before}: {said}"));
        number.parse().unwrap_or_else(|error| panic!("{number}: {error}: {said}"))
    };
    let lost = number(" s, ", " lost; 0 deliveries to 1 subscribers (1 lost)");
    assert_eq!(number(" 0 delivered, ", " lost, 0 queued"), lost, "{said}");
    assert!(lost > 0 && number("error: lost ", " message") == lost, "{said}");
    let (receiver, at) = listening(&mut netio(&format!("receive {ANY} --message-size 1000")));
    let sender = start(&format!("send {at} --message-size 2000 {file}"));
    let said = failed(sender.finish(), 4);
    assert!(said.contains("at most ") && said.contains(" at least "), "{said}");
    failed(receiver.finish(), 4);
}

#[test]
fn sender_that_ends_early_says_how_many_messages_it_has_not_sent() {
    let files = Files::new("unsent", 400_000);
    let copy = files.text("copy");
    let (_receiver, at) = listening(&mut netio(&format!("receive {ANY} --output {copy}")));
    let options = "--message-size 1000 --rate 2 --json";
    let sender = start(&format!("send {at} {options} {}", files.text("file")));
    common::until("the first one there", || {
        std::fs::metadata(&copy).is_ok_and(|data| data.len() > 0)
    });
    signal(&sender, Signal::TERM);
    let outcome = sender.finish();
    assert_eq!(outcome.code, Some(143), "{outcome:?}");
    let totals = json(&outcome.stdout);
    let number = |name: &str| totals[name].as_u64().unwrap();
    // One may be under way.
    let under_way = 400 - number("messages") - number("unsent");
    assert!(under_way <= 1 && number("unsent") >= 300, "{totals}");
}

#[test]
fn input_that_cannot_be_read_is_a_failure_and_no_end_of_messages() {
    // Its first page is nothing that a process has.
    let file = "/proc/self/mem";
    let (publisher, at) = listening(&mut netio(&format!("publish {ANY} --tag 1 {file}")));
    let subscriber = start(&format!("subscribe {at} --tag 1 --discard"));
    let said = publisher.finish().failure();
    assert!(said.contains(&format!("error: cannot read {file}: ")), "{said}");
    failed(subscriber.finish(), 4);
    let directory = env!("CARGO_TARGET_TMPDIR");
    let said = start(&format!("publish {ANY} --tag 1 {directory}")).finish().failure();
    assert!(said.starts_with(&format!("error: cannot read {directory}: Is a dir")), "{said}");
    let said = start(&format!("publish {ANY} --tag 1 /nonexistent")).finish().failure();
    assert!(said.starts_with("error: cannot read /nonexistent: "), "{said}");
    let said = start(&format!("receive {ANY} --output /nonexistent/file")).finish().failure();
    assert!(said.starts_with("error: cannot write /nonexistent/file: "), "{said}");
}

#[test]
fn messages_that_a_full_disk_does_not_take_are_not_in_the_totals() {
    let files = Files::new("full", 3000);
    let file = files.text("file");
    let is_none = |outcome: Outcome| {
        let totals = json(&outcome.stdout);
        assert_eq!((&totals["messages"], &totals["bytes"]), (&0.into(), &0.into()), "{totals}");
        let said = failed(outcome, 1);
        assert!(said.contains("error: cannot write /dev/full: No space"), "{said}");
    };
    let (receiver, at) = listening(&mut netio(&format!("receive {ANY} --json --output /dev/full")));
    let _sender = start(&format!("send {at} --message-size 1000 {file}"));
    is_none(receiver.finish());
    let (_publisher, at) =
        listening(&mut netio(&format!("publish {ANY} --tag 1 --message-size 1000 {file}")));
    is_none(start(&format!("subscribe {at} --tag 1 --json --output /dev/full")).finish());
}

/// A port of the loopback address at which nobody listens, and the socket that keeps it from others.
fn refusing_port() -> (OwnedFd, SocketAddr) {
    let socket =
        net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let socket = socket.unwrap();
    net::bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = net::getsockname(&socket).unwrap().try_into().unwrap();
    (socket, address)
}

#[test]
fn output_of_a_refused_subscriber_keeps_what_it_had_and_that_of_an_empty_file_is_empty() {
    let files = Files::new("kept", 0);
    let copy = files.text("copy");
    std::fs::write(&copy, "before").unwrap();
    let (_held, unused) = refusing_port();
    let refused = start(&format!("subscribe {unused} --tag 1 --output {copy}")).finish();
    failed(refused, 3);
    assert_eq!(std::fs::read_to_string(&copy).unwrap(), "before");
    let (receiver, at) = listening(&mut netio(&format!("receive {ANY} --output {copy}")));
    start(&format!("send {at} {}", files.text("file"))).finish().success();
    receiver.finish().success();
    assert_eq!(std::fs::read_to_string(&copy).unwrap(), "");
}

#[test]
fn refusals_have_an_exit_code_of_their_own() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for line in ["publish 127.0.0.1:PORT --tag 1", "receive 127.0.0.1:PORT"] {
        let said = failed(start(&line.replace("PORT", &port.to_string())).finish(), 3);
        assert!(said.contains(&format!("error: cannot listen at 127.0.0.1:{port}: ")), "{said}");
    }
    let (_held, unused) = refusing_port();
    for line in ["subscribe 127.0.0.1:PORT --tag 1", "send 127.0.0.1:PORT"] {
        let line = line.replace("127.0.0.1:PORT", &unused.to_string());
        let said = failed(start(&line).finish(), 3);
        assert!(said.contains(&format!("error: cannot connect to {unused}: ")), "{said}");
        assert!(said.contains("nobody listens there"), "{said}");
    }
    // By the empty label no name of DNS: there are resolvers that answer all of those.
    let unknown = "no-such-host..invalid:7000";
    for line in ["subscribe HOST --tag 1", "publish HOST --tag 1", "send HOST --link tcp"] {
        let said = failed(start(&line.replace("HOST", unknown)).finish(), 3);
        assert!(said.contains("no-such-host..invalid"), "{said}");
    }
    // A subscriber at a receiver.
    let (mut receiver, at) = listening(&mut netio(&format!("receive {ANY}")));
    let said = failed(start(&format!("subscribe {at} --tag 1 --retry 20")).finish(), 3);
    assert!(said.contains("the listener is not of the kind that the socket needs"), "{said}");
    let warning = "warning: refused a caller at 127.0.0.1:";
    receiver.stderr_line(warning);
    assert!(receiver.is_running());
    // A sender at a publisher.
    let (mut publisher, at) = listening(&mut netio(&format!("publish {ANY} --tag 1")));
    failed(start(&format!("send {at} --retry 20")).finish(), 3);
    assert!(publisher.stderr_line(warning).ends_with("publisher and listen socket differ"));
    assert!(publisher.is_running());
}

#[test]
fn connection_to_another_program_is_refused_in_words() {
    let listener = TcpListener::bind(ANY).unwrap();
    let at = listener.local_addr().unwrap();
    let subscriber = start(&format!("subscribe {at} --tag 1"));
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
    let said = failed(subscriber.finish(), 3);
    assert!(said.contains(&format!("{at}, where another program listens: ")), "{said}");
}

#[test]
fn invalid_command_lines_are_usage_errors() {
    for (line, says) in [
        ("", "Usage: efa netio <COMMAND>"),
        ("publish 127.0.0.1:7000", "--tag <T>"),
        ("publish 127.0.0.1 --tag 1", "`127.0.0.1` is not HOST:PORT"),
        ("publish 127.0.0.1:99999 --tag 1", "is not HOST:PORT: the port is above 65535"),
        ("publish 127.0.0.1:7000 --tag x", "a number of 64 bits is expected"),
        ("publish 127.0.0.1:7000 --tag 1 --repeat", "--repeat needs a FILE"),
        ("publish 127.0.0.1:7000 --tag 1 --repeat -", "--repeat needs a FILE"),
        ("publish 127.0.0.1:7000 --tag 1 --repeat --wait-for 0 f", "--wait-for 1"),
        ("publish 127.0.0.1:7000 --tag 1 --message-size 0", "at least 1 byte"),
        ("publish 127.0.0.1:7000 --tag 1 --slow 0", "--slow needs more than 0"),
        ("publish 127.0.0.1:7000 --tag 1 --rate 0", "a number from 0.001"),
        ("publish 127.0.0.1:7000 --tag 1 --statistics=0", "--statistics needs more than 0"),
        ("publish 127.0.0.1:7000 --tag 1 --address 10.0.0.1", "--link <LINK>"),
        ("publish 0.0.0.0:7000 --tag 1 --link tcp", "0.0.0.0:7000 needs --address"),
        ("subscribe 127.0.0.1:7000", "--tag <T>"),
        ("subscribe 127.0.0.1:7000 --tag 1 --hex --json", "cannot be used with"),
        ("subscribe 127.0.0.1:7000 --tag 1 --hex --output f", "cannot be used with"),
        ("subscribe 127.0.0.1:7000 --tag 1 --count 0", "a whole number from 1 on"),
        ("receive 127.0.0.1:7000 --json", "--json needs --output"),
        ("send 127.0.0.1:7000 --link shm --address 10.0.0.1", "--address needs --link tcp"),
        ("bench --subscribers 0", "--subscribers <N>"),
        ("bench --seconds 0", "--seconds needs more than 0"),
        ("bench --link tcp --rnr 0.1", "--rnr needs --link shm"),
        ("receive 127.0.0.1:0 --link tcp --device-name a", "--device-name needs --link shm"),
        ("bench --link tcp --directory /x", "--directory needs --link shm"),
        ("bench --capture-bytes 64", "--capture <FILE>"),
        ("bench --device verbs --capture f", "--capture is an option of the software device"),
    ] {
        let error = run(["netio"].into_iter().chain(line.split_whitespace())).usage();
        assert!(error.contains(says), "{line}: {error}");
    }
}

#[test]
fn bench_counts_the_messages_that_subscribers_received() {
    for link in ["shm", "tcp"] {
        let line = format!("bench --link {link} --subscribers 2 --size 1000 --seconds 0.2 --json");
        let report = json(&start(&line).finish().success());
        assert_eq!((&report["size"], &report["subscribers"]), (&1000.into(), &2.into()));
        let messages = report["messages"].as_u64().unwrap();
        assert!(messages > 0 && messages.is_multiple_of(2), "{report}");
        assert_eq!((&report["bytes"], &report["lost"]), (&(messages * 1000).into(), &0.into()));
        let seconds = report["seconds"].as_f64().unwrap();
        assert!(seconds >= 0.2, "{report}");
        let rate = report["messages_per_second"].as_f64().unwrap();
        assert!((rate - messages as f64 / seconds).abs() < 1.0, "{report}");
    }
}

/// The commands that a help text shows, indented by two.
fn examples(command: &[&str]) -> Vec<String> {
    let text = run([&["netio"], command, &["--help"]].concat()).success();
    let lines = text.lines().filter_map(|line| line.strip_prefix("  "));
    lines.filter(|line| line.starts_with("efa netio ")).map(str::to_owned).collect()
}

#[test]
fn examples_of_help_texts_work_as_they_are_shown() {
    let of_all = examples(&[]);
    assert_eq!(of_all.len(), 3, "{of_all:?}");
    let of_send = examples(&["send"]);
    assert_eq!((of_send.len(), &of_send), (2, &examples(&["receive"])));
    let of_bench = examples(&["bench"]);
    assert_eq!(of_bench.len(), 1);
    for (lines, copies) in
        [(of_all, &["COPY1", "COPY2"][..]), (of_send, &["COPY"]), (of_bench, &[])]
    {
        let files = Files::new("help", 200_000);
        std::fs::rename(files.path("file"), files.path("FILE")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let script = lines.join("\n").replace(":7000", &format!(":{port}"));
        // The device is that of the tests, and nothing outlives them.
        let efa = format!(
            "efa() {{ command=$2; shift 2; \
             timeout 100 {} netio $command --directory {DEVICES} \"$@\" || echo $command: $? >&2; }}",
            env!("CARGO_BIN_EXE_efa"),
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{efa}\n{script}\nwait")]).current_dir(files.path(""));
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let outcome = Running::start(&mut shell).finish();
        let failures: Vec<_> = ["publish", "subscribe", "send", "receive", "bench"]
            .into_iter()
            .filter(|command| outcome.stderr.contains(&format!("{command}: ")))
            .collect();
        assert!(outcome.code == Some(0) && failures.is_empty(), "{script}: {outcome:?}");
        copies.iter().for_each(|copy| files.check(copy));
    }
}
