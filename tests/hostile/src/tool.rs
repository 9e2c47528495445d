//! Untrusted input of the command line tool: the control channel of `efa pingpong`, captures, and the
//! system files that `efa doctor` reads.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_cli::hostile::{self, Form, Selection, Side};
use serde_json::Value;

use crate::input::Input;
use crate::memory;

/// Parts of the messages of both sides, and near misses.
const WORDS: [&[u8]; 20] = [
    b"{\"protocol\":\"efa-pingpong\",\"version\":1}\n",
    b"{\"message\":\"start\",\"plan\":",
    b"{\"mode\":\"latency\",\"tagged\":false,\"cq_data\":false,\"check\":true,\"warmup\":",
    b"{\"mode\":\"bandwidth\",\"tagged\":true,\"cq_data\":true,\"check\":false,\"warmup\":",
    b",\"steps\":[",
    b"{\"size\":",
    b",\"iterations\":",
    b",\"window\":",
    b"},",
    b"}]}",
    b",\"address\":\"",
    b"[fe80::1]:7/0x00000009",
    b"\"}\n",
    b"{\"message\":\"ready\",\"address\":\"",
    b"{\"message\":\"done\"}\n",
    b"{\"message\":\"failed\",\"reason\":\"",
    b"\\u001b[31m",
    b"\0\0\0\x20\x0c\0\0\0\xfe\x80\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\x07\0\0\0\0\0\x09\0\0\0\0\0\0\0\0",
    b"q\0a\0",
    b"10\0\0\0\0\0\0\0\0cnt ok\0",
];

/// Boundary values of the parameters.
const NUMBERS: [u64; 10] = [1, 0, 8, 1024, 1025, 10_000_000, 1 << 30, 1 << 32, 1 << 63, u64::MAX];

/// Limit of the buffers that a server allocates, in bytes.
const MOST: u64 = 4 << 30;

/// Parts of messages and numbers in any order.
fn messages(input: &mut Input<'_>) -> Vec<u8> {
    let mut sent = Vec::new();
    for _ in 0..100 {
        if input.is_empty() {
            break;
        }
        match input.byte() {
            choice @ 0..=159 => sent.extend_from_slice(WORDS[usize::from(choice) % WORDS.len()]),
            160..=207 => sent.extend(input.pick(&NUMBERS).to_string().bytes()),
            208..=223 => sent.extend(input.number(8).to_string().bytes()),
            224..=231 => sent.resize(sent.len() + 256 * usize::from(input.byte()), b' '),
            _ => {
                let count = input.below(16);
                sent.extend_from_slice(input.take(count));
            }
        }
    }
    sent
}

fn is_plain(error: &str) -> bool {
    !error.contains(char::is_control)
}

/// The first byte selects the side under test, and whether the rest is sent as it is or selects the parts.
pub(crate) fn control(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    let choice = input.byte();
    let sides = [Side::Server, Side::Client, Side::FiServer, Side::FiClient];
    let side = sides[usize::from(choice & 3)];
    let sent = if choice & 4 == 0 { messages(input) } else { input.take(bytes.len()).to_vec() };
    match hostile::run_control(side, &sent) {
        Ok(under_way) => assert!(under_way <= MOST, "buffers for {under_way} bytes"),
        Err(error) => assert!(is_plain(&error) && !error.is_empty(), "{error:?}"),
    }
}

pub(crate) fn show_control(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    let choice = input.byte();
    let sent = if choice & 4 == 0 { messages(input) } else { input.take(bytes.len()).to_vec() };
    say!("side {}: {}", choice & 3, sent.escape_ascii());
    control(bytes);
}

/// Number of packets of a capture, if it has a beginning.
fn packets(of: Selection, bytes: &[u8]) -> (Option<usize>, Option<String>) {
    let (count, error) = hostile::decode(Form::Count, of, bytes);
    (count.trim().parse().ok(), error)
}

/// Decodes any bytes as a capture: lines and JSON contain the same number of packets, an operation has some of them,
/// and without headers there are as many.
pub(crate) fn decode(bytes: &[u8]) {
    let all = packets(Selection::All, bytes);
    assert_eq!(packets(Selection::Plain, bytes), all);
    let (of_operation, error) = packets(Selection::Operation(0), bytes);
    assert!(of_operation <= all.0 && error == all.1, "{of_operation:?} of {all:?}");
    decode_forms(bytes);
}

fn decode_forms(bytes: &[u8]) {
    let (count, error) = hostile::decode(Form::Count, Selection::All, bytes);
    assert!(error.iter().all(|error| is_plain(error) && !error.is_empty()));
    // Nothing is printed for a file without the header of a capture.
    let Ok(count) = count.trim().parse::<usize>() else { return assert!(error.is_some()) };
    let (lines, _) = hostile::decode(Form::Lines, Selection::All, bytes);
    assert!(lines.lines().all(is_plain), "{lines}");
    // What belongs to a packet is indented farther than any time is.
    let packets = lines.lines().filter(|line| line.contains(" → ")).count();
    assert_eq!(packets, count, "{lines}");
    for (form, rows) in [(Form::Json, Some(count)), (Form::SummaryJson, None)] {
        let (lines, again) = hostile::decode(form, Selection::All, bytes);
        assert_eq!(again, error);
        assert!(rows.is_none_or(|rows| rows == lines.lines().count()), "{lines}");
        for line in lines.lines() {
            let value: Result<Value, _> = serde_json::from_str(line);
            assert!(value.is_ok_and(|value| value.is_object()), "{line}");
        }
    }
    decode_messages(count, bytes);
    let (table, _) = hostile::decode(Form::Summary, Selection::All, bytes);
    assert!(table.lines().all(is_plain), "{table}");
}

/// Messages are no more than packets, and as many in each form.
fn decode_messages(packets: usize, bytes: &[u8]) {
    let of = |form| hostile::decode(form, Selection::All, bytes).0;
    let (lines, objects) = (of(Form::Messages), of(Form::MessagesJson));
    let count = lines.lines().count();
    assert!(lines.lines().all(is_plain) && count <= packets, "{lines}");
    assert_eq!(of(Form::MessagesCount), format!("{count}\n"));
    assert_eq!(objects.lines().count(), count, "{objects}");
    for line in objects.lines() {
        let value: Result<Value, _> = serde_json::from_str(line);
        assert!(value.is_ok_and(|value| value.is_object()), "{line}");
    }
}

pub(crate) fn show_decode(bytes: &[u8]) {
    let (lines, error) = hostile::decode(Form::Lines, Selection::All, bytes);
    say!("{lines}{error:?}");
    decode(bytes);
}

/// Files that `efa doctor` reads.
const FILES: [&str; 14] = [
    "sys/bus/pci/devices/0000:00:06.0/vendor",
    "sys/bus/pci/devices/0000:00:06.0/device",
    "sys/bus/pci/devices/0000:00:05.0/vendor",
    "sys/module/efa/version",
    "sys/class/infiniband/rdmap0s6/node_type",
    "dev/infiniband/uverbs0",
    "dev/infiniband/other",
    "usr/lib64/libibverbs.so.1",
    "opt/amazon/efa/lib64/libefa.so.1",
    "etc/libibverbs.d/efa.driver",
    "proc/meminfo",
    "proc/sys/kernel/osrelease",
    "proc/sys/kernel/yama/ptrace_scope",
    "dev/shm/.keep",
];

/// Typical contents.
const CONTENTS: [&str; 10] = [
    "0x1d0f\n",
    "0xefa2\n",
    "2.13.0\n",
    "HugePages_Total:    64\nHugePages_Free:     60\n",
    "HugePages_Total:",
    "6.1.0-28-cloud-amd64\n",
    "5.11\n",
    "99999999999.1\n",
    "1\n",
    "",
];

/// A temporary root directory, removed on drop.
struct Machine(PathBuf);

impl Machine {
    fn new() -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("efa-hostile-{}-{number}", std::process::id());
        Self(memory().join(name))
    }

    fn write(&self, file: &str, content: &[u8]) {
        let file = self.0.join(file);
        let folder = file.parent().expect("the path has a parent");
        fs::create_dir_all(folder).expect("a write to memory succeeds");
        fs::write(file, content).expect("a write to memory succeeds");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs `efa doctor` on system files with any contents.
pub(crate) fn doctor(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    let machine = Machine::new();
    for file in FILES {
        let content = match input.byte() {
            0..=63 => continue,
            choice @ 64..=191 => CONTENTS[usize::from(choice) % CONTENTS.len()].as_bytes(),
            _ => {
                let count = input.below(64);
                input.take(count)
            }
        };
        machine.write(file, content);
    }
    let (text, json) = hostile::examine(&machine.0);
    let json: Value = serde_json::from_str(&json).expect("the report is JSON");
    let checks = json["checks"].as_array().map_or(0, Vec::len);
    assert!(checks > 0 && text.lines().count() >= checks, "{text}");
}
