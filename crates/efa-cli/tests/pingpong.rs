//! `efa pingpong` as a user meets it: alone, by hand, and with the other side misbehaving.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::thread;

use common::unreadable::{AS_USER, Unreadable};
use common::{DEADLINE, Outcome, Running, Scratch, efa, run};
use efa_sim::capture::CaptureReader;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The directory of the software devices of these tests.
const DEVICES: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/efa-devices");

/// `efa pingpong` with these arguments, which contain no blanks.
fn pingpong(arguments: &str) -> Command {
    pingpong_in(DEVICES, arguments)
}

/// The same, with the software device in a directory.
fn pingpong_in(directory: &str, arguments: &str) -> Command {
    let place: &[&str] = match arguments.contains("--link tcp") {
        true => &[],
        false => &["--directory", directory],
    };
    efa(["pingpong"].iter().chain(place).copied().chain(arguments.split_whitespace()))
}

fn run_pingpong(arguments: &str) -> Outcome {
    Running::start(&mut pingpong(arguments)).finish()
}

#[track_caller]
fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A server by hand, and where it listens.
fn server(arguments: &str) -> (Running, String) {
    server_at("127.0.0.1", arguments)
}

/// The same, at an address of this host.
fn server_at(address: &str, arguments: &str) -> (Running, String) {
    let arguments = format!("--listen {address}:0 {arguments}");
    let mut server = Running::start(pingpong(&arguments).env("EFA_LOG", "efa=info"));
    let line = server.stdout_line("listening on ");
    let address = line.strip_prefix("listening on ").unwrap().to_owned();
    (server, address)
}

/// The sizes around the changes of the subprotocol, untagged: the datagram of 8,928 bytes less the
/// header, and the shortest message that is read where reads pay from 12 KiB on.
const SIZES: [(u64, &str); 9] = [
    (0, "eager"),
    (1, "eager"),
    (8915, "eager"),
    (8916, "eager"),
    (8917, "medium"),
    (12287, "medium"),
    (12288, "long-read"),
    (65537, "long-read"),
    (6 << 20, "long-read"),
];

/// The same with reads from 1 MiB on, as on hardware: the longest medium message comes before it.
const SIZES_OF_HARDWARE: [(u64, &str); 6] = [
    (8917, "medium"),
    (65535, "medium"),
    (65536, "medium"),
    (65537, "long-CTS"),
    ((1 << 20) - 1, "long-CTS"),
    (1 << 20, "long-read"),
];

/// Makes messages be read from 1 MiB on.
fn reads_as_hardware(command: &mut Command) -> &mut Command {
    command.env("FI_EFA_INTER_MIN_READ_MESSAGE_SIZE", "1048576")
}

#[test]
fn sizes_select_their_subprotocols() {
    let run = |sizes: &[(u64, &str)], change: fn(&mut Command) -> &mut Command| {
        let words: Vec<_> = sizes.iter().map(|(size, _)| size.to_string()).collect();
        let arguments = format!("--json --iterations 4 --warmup 1 --sizes {}", words.join(","));
        let result = json(&Running::start(change(&mut pingpong(&arguments))).finish().success());
        assert_eq!((&result["mode"], &result["check"]), (&"latency".into(), &true.into()));
        let rows = result["results"].as_array().unwrap();
        assert_eq!(rows.len(), sizes.len());
        for (row, (size, subprotocol)) in rows.iter().zip(sizes) {
            assert_eq!(row["size"], *size);
            assert_eq!(row["iterations"], 4);
            assert_eq!(row["subprotocols"], Value::from(vec![*subprotocol]), "{size}");
            let one_way = |name: &str| row["one_way_seconds"][name].as_f64().unwrap();
            assert!(one_way("min") > 0.0 && one_way("min") <= one_way("median"));
            assert!(one_way("median") <= one_way("max"));
        }
    };
    run(&SIZES, |command| command.env("FI_EFARS_SHM_READS_PAY_FROM", "12288"));
    run(&SIZES_OF_HARDWARE, reads_as_hardware);
}

/// Both sides run from a file that their user can't read, so that they are not dumpable.
#[test]
fn sides_that_cannot_read_each_other_request_long_messages() {
    let Some(place) = Unreadable::new() else { return };
    let program = place.copy(env!("CARGO_BIN_EXE_efa"));
    let mut command = Command::new(AS_USER[0]);
    command.args(&AS_USER[1..]).args([&program, "pingpong", "--directory", place.devices()]);
    command.args(["--json", "--iterations", "4", "--warmup", "1", "--sizes", "64,1M,6M"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("EFA_LOG").env_remove("RUST_LOG");
    let outcome = Running::start(&mut command).finish();
    assert_eq!(outcome.stderr, "");
    let result = json(&outcome.success());
    let rows = result["results"].as_array().unwrap();
    for (row, subprotocol) in rows.iter().zip(["eager", "long-read", "long-read"]) {
        assert_eq!(row["subprotocols"], Value::from(vec![subprotocol]), "{row}");
    }
    assert_eq!(rows.len(), 3);
}

/// The longest message is read by the device, which polling moves on.
const TCP_SIZES: &str = "--iterations 4 --warmup 1 --sizes 0,8916,20k,128k,1M";

#[test]
fn tcp_link_with_a_server_of_its_own() {
    let result = json(&run_pingpong(&format!("--link tcp --json {TCP_SIZES}")).success());
    assert_eq!(result["device"], "efa-tcp-127.0.0.1");
    let subprotocols = ["eager", "eager", "medium", "long-CTS", "long-read"];
    for (row, subprotocol) in result["results"].as_array().unwrap().iter().zip(subprotocols) {
        assert_eq!(row["subprotocols"], Value::from(vec![subprotocol]));
    }
}

#[test]
fn tcp_link_takes_the_address_of_the_control_connection() {
    let (server, address) = server_at("127.0.0.1", "--link tcp");
    let result = format!("--link tcp --json {TCP_SIZES} {address}");
    assert_eq!(json(&run_pingpong(&result).success())["results"].as_array().unwrap().len(), 5);
    server.finish().success();

    // The whole of 127.0.0.0/8 is this host's: two devices at different addresses.
    let (server, address) = server_at("127.0.0.3", "--link tcp");
    let client = format!("--link tcp --address 127.0.0.2 --json {TCP_SIZES} {address}");
    assert_eq!(json(&run_pingpong(&client).success())["device"], "efa-tcp-127.0.0.2");
    let server = server.finish();
    assert!(server.stderr.is_empty() || !server.stderr.contains("WARN"), "{server:?}");
    server.success();
}

#[test]
fn tcp_link_on_one_side_only_is_refused() {
    let (server, address) = server_at("127.0.0.1", "");
    let error = run_pingpong(&format!("--link tcp --sizes 8 {address}")).failure();
    assert!(
        error.contains("different devices") && error.contains("both with --link tcp"),
        "{error}"
    );
    assert!(server.finish().failure().contains("different devices"));
}

#[test]
fn tcp_link_between_loopback_and_another_address_of_the_host_works_and_between_families_is_refused()
{
    // The address from which others would be reached; nothing is sent.
    let of_host = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.77:9")?;
        socket.local_addr()
    });
    if let Ok(own) = of_host.map(|address| address.ip()) {
        for [there, here] in [["127.0.0.1", &own.to_string()], [&own.to_string(), "127.0.0.1"]] {
            let (server, address) = server(&format!("--link tcp --address {there}"));
            let client = format!("--link tcp --address {here} --sizes 8 --iterations 3 {address}");
            run_pingpong(&client).success();
            server.finish().success();
        }
    } else {
        eprintln!("skipped: this host has no other address than those of loopback");
    }
    let (server, address) = server("--link tcp --address 127.0.0.1");
    if TcpListener::bind("[::1]:0").is_err() {
        return eprintln!("skipped: no IPv6");
    }
    let error = run_pingpong(&format!("--link tcp --address ::1 --sizes 8 {address}")).failure();
    assert!(error.contains("at 127.0.0.1 does not reach the other's at ::1"), "{error}");
    server.finish().failure();
}

#[test]
fn tcp_link_at_the_address_of_another_host_is_refused() {
    let error = run_pingpong("--link tcp --address 192.0.2.1 --sizes 8").failure();
    assert!(error.contains("192.0.2.1 is not an address of this host"), "{error}");
}

#[test]
fn device_without_rdma_uses_long_cts() {
    let text = run_pingpong("--device-rdma none --sizes 1M --iterations 2 --json").success();
    assert_eq!(json(&text)["results"][0]["subprotocols"], Value::from(vec!["long-CTS"]));
}

/// Some datagrams come late and some must be sent again, on both sides.
#[test]
fn reordered_and_rnr_datagrams_arrive_intact() {
    let faults = "--reorder 7 --rnr 0.2";
    let text = run_pingpong(&format!("{faults} --sizes 0-64k,2M --iterations 20 --json")).success();
    assert_eq!(json(&text)["results"].as_array().unwrap().len(), 19);
}

#[test]
fn tagged_messages_with_cq_data_arrive_intact() {
    let result = run_pingpong("--tagged --cq-data --iterations 20 --sizes 0,9k,128k --json");
    let result = json(&result.success());
    assert_eq!((&result["tagged"], &result["cq_data"]), (&true.into(), &true.into()));
    assert_eq!(result["results"].as_array().unwrap().len(), 3);
}

#[test]
fn bandwidth_reports_window_and_message_rate() {
    let arguments = "--bandwidth --window 7 --iterations 50 --sizes 0,8,20k,256k --json";
    for options in ["--warmup 3", "--warmup 9 --tagged", "--warmup 0 --no-check"] {
        let result = json(&run_pingpong(&format!("{arguments} {options}")).success());
        assert_eq!(result["mode"], "bandwidth");
        for row in result["results"].as_array().unwrap() {
            assert_eq!((&row["window"], &row["iterations"]), (&7.into(), &50.into()));
            assert!(row["messages_per_second"].as_f64().unwrap() > 0.0);
            assert!(row.get("one_way_seconds").is_none());
        }
    }
}

/// Sends a signal to a program.
fn signal(running: &Running, signal: Signal) {
    let id = Pid::from_raw(running.id().try_into().unwrap()).unwrap();
    kill_process(id, signal).unwrap();
}

/// `efa pingpong` with one size that is soon finished and one that isn't, so that SIGINT ends it: a test that a script runs in
/// the background has it ignored, and its children too.
fn long_run(arguments: &str) -> Command {
    let command = pingpong(&format!("--sizes 8,6M --iterations 5000 --warmup 0 {arguments}"));
    let mut started = Command::new("env");
    started.args(["--default-signal=INT".as_ref(), command.get_program()]);
    started.args(command.get_args()).env("EFA_LOG", "info");
    started.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    started
}

/// That this was interrupted.
#[track_caller]
fn is_interrupted(outcome: &Outcome, code: i32, name: &str) {
    assert_eq!(outcome.code, Some(code), "{outcome:?}");
    let error = format!("error: interrupted by {name}\n");
    assert!(outcome.stderr.ends_with(&error), "{outcome:?}");
    assert!(!outcome.stderr.contains("WARN"), "{outcome:?}");
}

/// That a capture has packets, and ends with a whole one.
#[track_caller]
fn is_whole(capture: &str) {
    let records: Result<Vec<_>, _> = CaptureReader::open(capture).unwrap().collect();
    assert!(records.unwrap().len() > 10_000);
}

#[test]
fn interrupted_client_prints_the_sizes_that_are_finished_and_finishes_its_capture() {
    let directory = Scratch::new("interrupted");
    std::fs::create_dir(&directory).unwrap();
    let capture = format!("{}/client.pcapng", directory.as_str());
    for (number, name, json_or_text) in
        [(Signal::INT, "SIGINT", "--json"), (Signal::TERM, "SIGTERM", "")]
    {
        let mut client =
            Running::start(&mut long_run(&format!("{json_or_text} --capture {capture}")));
        client.stderr_line("a size is finished");
        signal(&client, number);
        let outcome = client.finish();
        is_interrupted(&outcome, 128 + number.as_raw(), name);
        is_whole(&capture);
        if json_or_text.is_empty() {
            let is_row = |line: &&str| line.ends_with("eager");
            assert_eq!(outcome.stdout.lines().filter(is_row).count(), 1, "{outcome:?}");
            continue;
        }
        let result = json(&outcome.stdout);
        assert_eq!(result["complete"], false);
        let rows = result["results"].as_array().unwrap();
        assert_eq!((rows.len(), &rows[0]["size"]), (1, &8.into()), "{result}");
    }
}

#[test]
fn interrupted_server_finishes_its_capture_and_its_client_fails() {
    let directory = Scratch::new("interrupted-server");
    std::fs::create_dir(&directory).unwrap();
    let capture = format!("{}/server.pcapng", directory.as_str());
    let (server, at) = server(&format!("--capture {capture}"));
    let mut client = Running::start(&mut long_run(&at));
    client.stderr_line("a size is finished");
    signal(&server, Signal::TERM);
    is_interrupted(&server.finish(), 143, "SIGTERM");
    is_whole(&capture);
    let error = client.finish().failure();
    assert!(error.contains("the other side failed: interrupted by SIGTERM"), "{error}");
}

#[test]
fn window_may_exceed_the_iterations() {
    run_pingpong("--bandwidth --window 1024 --iterations 2 --warmup 0 --sizes 8").success();
}

#[test]
fn window_is_limited_by_the_endpoint() {
    for variable in ["FI_EFA_TX_SIZE", "FI_EFA_RX_SIZE"] {
        let mut command = pingpong("--bandwidth --iterations 20 --sizes 8,20k,2M --json");
        let result = Running::start(command.env(variable, "5")).finish().success();
        assert_eq!(json(&result)["results"][0]["window"], 5, "{variable}");
    }
}

#[test]
fn unlimited_medium_size_is_accepted() {
    let mut command = pingpong("--iterations 1 --warmup 0 --json");
    command.env("FI_EFA_INTER_MAX_MEDIUM_MESSAGE_SIZE", u64::MAX.to_string());
    let result = json(&Running::start(&mut command).finish().success());
    assert_eq!(result["results"].as_array().unwrap().last().unwrap()["size"], 6 << 20);
}

#[test]
fn standard_output_holds_the_table_only() {
    let outcome = run_pingpong("--iterations 3 --sizes 0,4k");
    assert_eq!(outcome.stderr, "", "no progress bar without a terminal");
    let table = outcome.success();
    let first_words: Vec<_> = table.lines().filter_map(|l| l.split_whitespace().next()).collect();
    assert_eq!(first_words, ["size", "0", "4K", "messages", "µs"]);
}

// conformance: C137
#[test]
fn server_and_client_started_by_hand_exchange_messages() {
    let (server, address) = server("");
    let result = run_pingpong(&format!("{address} --json --iterations 5 --sizes 8,100k"));
    assert_eq!(json(&result.success())["results"][1]["size"], 100 << 10);
    server.finish().success();
}

#[test]
fn json_server_announces_its_address_as_json() {
    let mut server = Running::start(&mut pingpong("--listen 127.0.0.1:0 --json"));
    let line = json(&server.stdout_line("listening"));
    let address = line["listening"].as_str().unwrap();
    run_pingpong(&format!("{address} --iterations 1 --sizes 0")).success();
    server.finish().success();
}

#[test]
fn capture_holds_every_packet() {
    let file = Scratch::new("pingpong.pcapng");
    let path = file.as_str();
    let arguments = "--tagged --iterations 10 --warmup 2 --sizes 8,100k --json";
    let mut command = pingpong(&format!("{arguments} --capture {path}"));
    Running::start(reads_as_hardware(&mut command)).finish().success();
    let count = |options: &[&str]| -> u64 {
        let arguments = ["decode", path, "--count"].into_iter().chain(options.iter().copied());
        run(arguments).success().trim().parse().unwrap()
    };
    for event in ["sent", "received"] {
        assert_eq!(count(&["--type", "eager", "--event", event]), 12);
        assert_eq!(count(&["--type", "longcts_tagrtm", "--event", event]), 12);
        assert!(count(&["--type", "ctsdata", "--event", event]) >= 12);
        assert!(count(&["--type", "cts", "--event", event]) >= 12);
    }
    assert_eq!(count(&["--type", "malformed"]), 0);
    assert_eq!(count(&["--event", "failed"]), 0);
    let summary = run(["decode", path, "--summary", "--json"]).success();
    let total: u64 = summary
        .lines()
        .map(json)
        .map(|row| row["sent"].as_u64().unwrap() + row["received"].as_u64().unwrap())
        .sum();
    assert_eq!(total, count(&[]));
}

#[test]
fn bounded_capture_has_all_headers_and_little_else() {
    let path = Scratch::new("bounded.pcapng");
    let arguments =
        format!("--sizes 100k --iterations 3 --capture {} --capture-bytes 100", path.as_str());
    run_pingpong(&arguments).success();
    let length = std::fs::metadata(&path).unwrap().len();
    let rows = run(["decode", path.as_str(), "--summary", "--json"]).success();
    let rows = rows.lines().map(json);
    let mut packets = 0;
    for row in rows {
        assert!(!["malformed", "cut"].contains(&row["type"].as_str().unwrap()), "{row}");
        packets +=
            ["sent", "received"].map(|event| row[event].as_u64().unwrap()).iter().sum::<u64>();
    }
    assert!(packets > 0 && length <= 500 + 180 * packets, "{length} bytes, {packets} packets");
    let error = run(["pingpong", "--sizes", "0", "--capture-bytes", "100"]).usage();
    assert!(error.contains("--capture <FILE>"), "{error}");
}

#[test]
fn capture_of_a_run_whose_device_fails_to_open_keeps_what_it_had() {
    let file = Scratch::new("kept.pcapng");
    std::fs::write(&file, "before").unwrap();
    let arguments = ["pingpong", "--sizes", "0", "--directory", "/nonexistent/devices"];
    let error = run(arguments.into_iter().chain(["--capture", file.as_str()])).failure();
    assert!(error.contains("cannot open the device"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "before");
}

#[test]
fn unwritable_capture_is_an_error() {
    let error = run_pingpong("--sizes 0 --capture /nonexistent/file").failure();
    assert!(error.contains("/nonexistent/file: cannot write the capture"), "{error}");
}

#[test]
fn result_of_a_run_whose_capture_ends_on_a_full_disk_is_printed_before_the_error() {
    let outcome = run_pingpong("--sizes 8 --iterations 3 --json --capture /dev/full");
    assert_eq!(json(&outcome.stdout)["results"].as_array().unwrap().len(), 1, "{outcome:?}");
    let error = outcome.failure();
    assert!(error.contains("/dev/full: cannot write the capture"), "{error}");
}

#[test]
fn invalid_pingpong_command_lines_are_usage_errors() {
    let usage = |arguments: &str| run_pingpong(arguments).usage();
    assert!(usage("--sizes 8,7q").contains("`7q` is not a size"));
    assert!(usage("--sizes 8k-4k").contains("range `8k-4k` ends before it begins"));
    assert!(usage("--sizes 2G").contains("`2G` is above the largest size"));
    assert!(usage("--iterations 0").contains("0 is not in 1.."));
    assert!(usage("--window 4").contains("--bandwidth"));
    assert!(usage("--listen 127.0.0.1:0 --tagged").contains("cannot be used with"));
    assert!(usage("host:port").contains("neither HOST nor HOST:PORT"));
}

#[test]
fn absent_server_is_an_error() {
    let unused = unused(3);
    let error = run_pingpong(&unused).failure();
    assert!(error.contains(&format!("cannot connect to a server at {unused}")), "{error}");
}

/// An address where no process listens. Of the loopback network each test takes another host, so that
/// none is given the port of another.
fn unused(host: u8) -> String {
    TcpListener::bind((Ipv4Addr::new(127, 0, 1, host), 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string()
}

#[test]
fn client_waits_for_a_starting_server() {
    let address = unused(1);
    let mut client = pingpong(&format!("{address} --iterations 1 --sizes 0"));
    let mut client = Running::start(client.env("EFA_LOG", "efa=debug"));
    client.stderr_line("the server refuses the connection; trying again");
    let server = Running::start(&mut pingpong(&format!("--listen {address}")));
    client.finish().success();
    server.finish().success();
}

#[test]
fn server_with_closed_standard_output_serves() {
    let address = unused(2);
    let mut server = pingpong(&format!("--listen {address}")).spawn().unwrap();
    drop(server.stdout.take());
    run_pingpong(&format!("{address} --iterations 1 --sizes 0")).success();
    assert_eq!(server.wait().unwrap().code(), Some(0));

    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let error = pingpong("--listen 127.0.0.1:0").stdout(full).output().unwrap();
    let said = String::from_utf8(error.stderr).unwrap();
    assert!(said.starts_with("error: cannot write the output: No space"), "{said}");
}

#[test]
fn sides_on_different_devices_are_refused() {
    let (server, address) = server("--device-name one");
    let error = run_pingpong(&format!("{address} --device-name other --sizes 8")).failure();
    assert!(error.contains("both must run on one host"), "{error}");
    server.finish().failure();
}

#[test]
fn sides_with_the_same_device_name_in_different_directories_are_refused() {
    let other = Scratch::new("other");
    let (server, address) = server("");
    let mut client = pingpong_in(other.as_str(), &format!("{address} --sizes 8"));
    let error = Running::start(&mut client).finish().failure();
    assert!(error.contains("both must run on one host"), "{error}");
    server.finish().failure();
}

#[test]
fn inaccessible_directory_is_an_error() {
    let error = run(["pingpong", "--directory", "/nonexistent/devices"]).failure();
    assert!(error.contains("/nonexistent/devices"), "{error}");
}

/// What a client makes of a server that says `greeting` and hangs up.
fn client_of(greeting: &'static [u8], options: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
        stream.write_all(greeting).unwrap();
        stream
    });
    let error = run_pingpong(&format!("{address} {options}")).failure();
    server.join().unwrap();
    error
}

const HELLO: &[u8] = b"{\"protocol\":\"efa-pingpong\",\"version\":1}\n";

#[test]
fn client_refuses_other_programs_as_servers() {
    let newer = client_of(b"{\"protocol\":\"efa-pingpong\",\"version\":9}\n", "");
    assert!(newer.contains("the other side has version 9"), "{newer}");
    let other = client_of(b"SSH-2.0-OpenSSH_9.2\r\n", "");
    assert!(other.contains("not a message of this program: `SSH-2.0-OpenSSH_9.2"), "{other}");
    let silent = client_of(b"", "--timeout 1");
    assert!(silent.contains("no answer on the control channel within 1s"), "{silent}");
    let mute = client_of(HELLO, "--timeout 1 --sizes 8");
    assert!(mute.contains("no answer on the control channel within 1s"), "{mute}");
}

#[test]
fn name_of_a_device_that_begins_with_a_dash_reaches_the_server_process() {
    run_pingpong("--device-name=-x --sizes 8").success();
}

/// The server's replies to a client that sends `lines`, and its own error.
fn server_of(lines: &[&[u8]]) -> (String, String) {
    let (server, address) = server("");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    let mut answer = String::new();
    for line in lines {
        stream.write_all(line).unwrap();
        answer.clear();
        answers.read_line(&mut answer).unwrap();
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    (answer, server.finish().failure())
}

#[test]
fn server_goes_on_after_connections_of_other_programs() {
    let (mut server, address) = server("");
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let warning = server.stderr_line("warning: a connection of no client: ");
    assert!(warning.contains("not a message of this program: `GET / HTTP/1.1"), "{warning}");
    drop(TcpStream::connect(&address).unwrap());
    let warning = server.stderr_line("warning: a connection of no client: ");
    assert!(warning.contains("the other side closed the control channel"), "{warning}");
    run_pingpong(&format!("{address} --iterations 1 --sizes 8")).success();
    server.finish().success();
}

#[test]
fn server_refuses_clients_that_break_the_protocol() {
    let (_, error) = server_of(&[b"{\"protocol\":\"efa-pingpong\",\"version\":2}\n"]);
    assert!(error.contains("version 2"), "{error}");
    let (_, error) = server_of(&[HELLO]);
    assert!(error.contains("closed the control channel"), "{error}");
    let (answer, error) = server_of(&[HELLO, b"{\"message\":\"done\"}\n"]);
    assert!(error.contains("expected the message `start`, got `done`"), "{error}");
    assert_eq!(json(&answer)["message"], "failed");
}

#[test]
fn plans_out_of_bounds_are_refused() {
    let start = br#"{"message":"start","address":"[fe80::1]:1/0x1","plan":{"mode":"latency",
        "tagged":false,"cq_data":false,"check":true,"warmup":0,
        "steps":[{"size":1099511627776,"iterations":1,"window":1}]}}"#;
    let mut start: Vec<u8> = start.iter().copied().filter(|byte| *byte != b'\n').collect();
    start.push(b'\n');
    let (answer, error) = server_of(&[HELLO, &start]);
    let expected = "the plan is out of bounds: size is 1099511627776";
    assert!(error.contains(expected), "{error}");
    assert!(json(&answer)["reason"].as_str().unwrap().contains(expected), "{answer}");
}

/// More than is done before a process is killed.
const ENDLESS: &str = "--sizes 8,100k --iterations 10000000";

#[test]
fn killed_server_is_an_error_of_the_client() {
    let (mut server, address) = server("");
    let client = Running::start(&mut pingpong(&format!("{address} {ENDLESS}")));
    server.stderr_line("the run begins");
    server.kill();
    let error = client.finish().failure();
    assert!(error.contains("the other side closed the control channel"), "{error}");
}

#[test]
fn killed_own_server_is_an_error_of_the_client() {
    let mut client = Running::start(pingpong(ENDLESS).env("EFA_LOG", "efa=info"));
    let line = client.stderr_line("the server process started");
    let pid = line.split("pid=").nth(1).unwrap();
    client.stderr_line("the run begins");
    assert!(Command::new("kill").args(["-KILL", pid]).status().unwrap().success());
    let error = client.finish().failure();
    assert!(error.contains("the server process ended early: signal: 9"), "{error}");
}

fn is_queue_pair(file: &std::fs::DirEntry) -> bool {
    file.file_name().to_string_lossy().starts_with("qp-")
}

/// The server ends too: it holds the standard error that `finish` reads to its end.
#[test]
fn killed_client_leaves_no_server_and_no_files() {
    let devices = Scratch::new("killed");
    let mut client = pingpong_in(devices.as_str(), ENDLESS);
    let mut client = Running::start(client.env("EFA_LOG", "efa=info"));
    client.stderr_line("the run begins");
    let files = || std::fs::read_dir(devices.as_ref().join("efa")).unwrap();
    let queue_pairs = || files().filter(|f| is_queue_pair(f.as_ref().unwrap())).count();
    assert_eq!(queue_pairs(), 2);
    client.kill();
    let outcome = client.finish();
    assert_eq!(outcome.code, None, "{outcome:?}");
    assert_eq!(queue_pairs(), 0);
}

/// Less and more memory for the device than a run needs, in a mount namespace of the run's own.
#[test]
fn full_shared_memory_is_an_error_and_leaves_no_files() {
    let devices = Scratch::new("small");
    std::fs::create_dir(&devices).unwrap();
    let sizes = ["4k", "64k", "600k", "1200k", "1800k", "2200k", "2500k", "3m", "4m", "20m"];
    for size in sizes {
        let run = pingpong_in(devices.as_str(), "--sizes 8,64k --iterations 3");
        let script = "mount -t tmpfs -o size=$1,mode=700 tmpfs $2 || exit 99; place=$2; shift 2; \
            \"$@\"; code=$?; find $place -name 'qp-*' -o -name 'mem-*'; exit $code";
        let mut alone = Command::new("unshare");
        alone.args(["--mount", "sh", "-c", script, "sh", size, devices.as_str()]);
        alone.arg(run.get_program()).args(run.get_args()).env_remove("EFA_LOG");
        alone.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let outcome = Running::start(&mut alone).finish();
        if outcome.code != Some(0) && !outcome.stderr.starts_with("error: ") {
            eprintln!("skipped: memory of little room takes rights: {outcome:?}");
            return;
        }
        let left = outcome.stdout.contains("qp-") || outcome.stdout.contains("mem-");
        assert!(!left, "{size}: {outcome:?}");
        // Also where the first send finds no room for its ring.
        if outcome.code == Some(0) {
            assert!(!["4k", "64k", "600k", "1200k"].contains(&size), "{size}: {outcome:?}");
            continue;
        }
        assert_ne!(size, "20m", "{outcome:?}");
        let words = outcome.failure();
        assert!(words.contains("No space left on device (os error 28)"), "{size}: {words}");
        assert!(words.contains("allocating ") && words.contains(" bytes in "), "{size}: {words}");
    }
}

#[test]
fn killed_client_ends_its_server() {
    let (mut server, address) = server("");
    let mut client = Running::start(&mut pingpong(&format!("{address} {ENDLESS}")));
    server.stderr_line("the run begins");
    client.kill();
    let error = server.finish().failure();
    assert!(error.contains("the other side closed the control channel"), "{error}");
}
