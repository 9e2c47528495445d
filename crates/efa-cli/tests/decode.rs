//! `efa decode` as a user meets it, on captures written for the test.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;

use std::borrow::Cow;
use std::path::Path;

use common::{Outcome, Scratch, efa, run};
use efa_device::{Gid, Qpn, Status, Time};
use efa_proto::{
    Connid, Cts, CtsData, ExtraInfo, Handshake, Header, MsgId, OpId, RawAddress, ReqOptions,
    RmaIov, Rta, RtaKind, Rtm, RtmKind, UserRecvQp,
};
use efa_sim::capture::Capture;
use efa_sim::record::{PacketEvent, QueuePairId, Record};

fn queue_pair(host: u8) -> QueuePairId {
    let mut gid = Gid::ZERO;
    (gid.0[0], gid.0[15]) = (0xfe, host);
    QueuePairId { gid, qpn: Qpn(host.into()) }
}

fn datagram(header: Header<'_>, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; header.len()];
    header.emit(&mut bytes).unwrap();
    bytes.extend(payload);
    bytes
}

fn rtm(msg_id: u32, tag: Option<u64>, kind: RtmKind<'_>, options: ReqOptions) -> Header<'_> {
    Header::Rtm(Rtm { msg_id: MsgId(msg_id), tag, kind, options })
}

/// Two messages, a CTS, malformed packets, and a packet that met a receiver that wasn't ready.
fn packets() -> Vec<(PacketEvent, u8, u8, Vec<u8>)> {
    let address = RawAddress { gid: queue_pair(1).gid.0, qpn: 1, connid: Connid(0x11) };
    let with_address =
        ReqOptions { raw_address: Some((address, Default::default())), ..ReqOptions::NONE };
    let long = RtmKind::LongCts {
        msg_length: 100_000,
        send_id: OpId(0x1234),
        credit_request: 32,
        read_nack: false,
    };
    let hello = datagram(rtm(0, Some(0x2a), RtmKind::Eager, with_address), b"hello");
    let long = datagram(rtm(1, None, long, ReqOptions::NONE), &[7; 100]);
    let cts = Cts {
        connid: None,
        send_id: OpId(0x1234),
        recv_id: OpId(9),
        recv_length: 8192,
        emulated_read: false,
    };
    let lost = datagram(rtm(2, None, RtmKind::Eager, ReqOptions::NONE), &[]);
    vec![
        (PacketEvent::Sent, 1, 2, hello.clone()),
        (PacketEvent::Received, 1, 2, hello),
        (PacketEvent::Sent, 1, 2, long),
        (PacketEvent::Sent, 2, 1, datagram(Header::Cts(cts), &[])),
        (PacketEvent::Sent, 3, 1, vec![64, 4, 0]),
        (PacketEvent::Sent, 3, 1, (200..=255).collect()),
        (PacketEvent::Failed(Status::ReceiverNotReady), 1, 3, lost),
    ]
}

/// A capture of [`packets`].
fn capture(name: &str) -> Scratch {
    let packets = packets().into_iter().enumerate();
    written(
        name,
        packets.map(|(index, (event, source, destination, bytes))| Record {
            time: Time::from_nanos(5_000_000_000 + 1_234 * index as u64),
            event,
            source: queue_pair(source),
            destination: queue_pair(destination),
            bytes: Cow::Owned(bytes),
        }),
    )
}

/// A capture of these.
fn written(name: &str, records: impl Iterator<Item = Record<'static>>) -> Scratch {
    let path = Scratch::new(name);
    let mut capture = Capture::create(&path, "test").unwrap();
    for record in records {
        capture.write(&record).unwrap();
    }
    capture.finish().unwrap();
    path
}

fn decode(file: impl AsRef<Path>, options: &[&str]) -> Outcome {
    let command = ["decode".as_ref(), file.as_ref().as_os_str()];
    run(command.into_iter().chain(options.iter().map(AsRef::as_ref)))
}

/// How many lines the options leave.
#[track_caller]
fn count(file: &Scratch, options: &[&str]) -> usize {
    let lines = decode(file, options).success().lines().count();
    let counted = decode(file, &[options, &["--count"]].concat()).success();
    assert_eq!(counted, format!("{lines}\n"));
    lines
}

#[test]
fn lines_hold_time_event_queue_pairs_and_packet() {
    let text = decode(capture("lines.pcapng"), &[]).success();
    insta::assert_snapshot!(text);
}

#[test]
fn hex_prints_the_bytes_of_each_packet() {
    let text = decode(capture("hex.pcapng"), &["--hex", "--type", "eager", "--peer", "2"]);
    insta::assert_snapshot!(text.success());
}

#[test]
fn summary_counts_packets_by_type() {
    insta::assert_snapshot!(decode(capture("summary.pcapng"), &["--summary"]).success());
    let json = decode(capture("summary-json.pcapng"), &["--summary", "--json"]).success();
    let sent: u64 = json
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|row| row["sent"].as_u64().unwrap())
        .sum();
    assert_eq!(sent, 5);
}

#[test]
fn json_has_ids_tag_lengths_and_bytes() {
    let json = decode(capture("json.pcapng"), &["--json", "--hex"]).success();
    let lines: Vec<serde_json::Value> =
        json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (line, (_, source, destination, bytes)) in lines.iter().zip(packets()) {
        assert_eq!(line["source"]["qpn"], source);
        assert_eq!(line["destination"]["gid"], queue_pair(destination).gid.to_string());
        assert_eq!(line["length"], bytes.len());
        let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(line["hex"], hex.join(" "));
    }
    assert_eq!(lines.len(), packets().len());
    assert_eq!(lines[2]["type"], "LONGCTS_MSGRTM");
    assert_eq!((&lines[2]["msg_id"], &lines[2]["send_id"]), (&1.into(), &0x1234.into()));
    assert_eq!((&lines[2]["payload"], &lines[2]["msg_length"]), (&100.into(), &100_000.into()));
    assert_eq!((&lines[0]["tag"], &lines[2]["tag"]), (&"0x2a".into(), &serde_json::Value::Null));
    assert!(lines[4].get("type").is_none() && lines[4]["error"].is_string());
    assert_eq!(lines[6]["status"]["code"], 10);
}

/// Each of these sent by 1 to 2, a nanosecond apart.
fn sent(name: &str, packets: impl IntoIterator<Item = Vec<u8>>) -> Scratch {
    let (source, destination) = (queue_pair(1), queue_pair(2));
    let records = packets.into_iter().enumerate().map(|(nanos, bytes)| {
        let (time, bytes) = (Time::from_nanos(nanos as u64), Cow::Owned(bytes));
        Record { time, event: PacketEvent::Sent, source, destination, bytes }
    });
    written(name, records.collect::<Vec<_>>().into_iter())
}

fn json_lines(file: impl AsRef<Path>, options: &[&str]) -> Vec<serde_json::Value> {
    let json = decode(file, &[options, &["--json"]].concat()).success();
    json.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// As the text output has them, but for what serves to compute with.
#[test]
fn json_has_every_field_of_a_header_and_64_bits_that_are_no_length_as_strings() {
    let iov = [RmaIov::new(u64::MAX, 4096, 1 << 60)];
    let address = RawAddress { gid: queue_pair(1).gid.0, qpn: 9, connid: Connid(0x11) };
    let raw_address = Some((address, Default::default()));
    let options = ReqOptions { raw_address, cq_data: Some(u64::MAX), connid: Some(Connid(7)) };
    let (msg_length, send_id, seg_offset, runt_length) = (1 << 20, OpId(3), 8, 16);
    let runt = RtmKind::RuntRead { msg_length, send_id, seg_offset, runt_length, read_iov: &iov };
    let kind = RtmKind::LongCts { msg_length, send_id, credit_request: 32, read_nack: true };
    let handshake = Handshake {
        extra_info: ExtraInfo::new(&[1 << 63, 2]).unwrap(),
        connid: Some(Connid(7)),
        host_id: Some(u64::MAX),
        device_version: Some(0xefa1),
        user_recv_qp: Some(UserRecvQp { qpn: 77, qkey: 5 }),
        hmem_p2p: Some(false),
    };
    let packets = [
        datagram(rtm(7, Some(0x4000_0000_0000_0005), runt, options), &[]),
        datagram(rtm(7, None, kind, ReqOptions::NONE), &[]),
        datagram(Header::Handshake(handshake), &[]),
    ];
    let lines = json_lines(sent("fields.pcapng", packets), &[]);
    let has = |line: &serde_json::Value, expected: serde_json::Value| {
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(&line[name], value, "{name} of {line}");
        }
    };
    has(
        &lines[0],
        serde_json::json!({
            "msg_id": 7, "tag": "0x4000000000000005", "msg_length": 1 << 20, "send_id": 3,
            "seg_offset": 8, "runt_length": 16, "connid": "0x00000007",
            "read_iov": [{"addr": "0xffffffffffffffff", "len": 4096, "key": "0x1000000000000000"}],
            "raw_address": {"gid": "fe00::1", "qpn": 9, "connid": "0x00000011"},
            "cq_data": "0xffffffffffffffff",
        }),
    );
    has(&lines[1], serde_json::json!({"credit_request": 32, "read_nack": true}));
    has(
        &lines[2],
        serde_json::json!({
            "extra_info": ["0x8000000000000000", "0x2"], "connid": "0x00000007",
            "host_id": "0xffffffffffffffff", "device_version": "0xefa1",
            "user_recv_qp": {"qpn": 77, "qkey": "0x00000005"}, "hmem_p2p": 0,
        }),
    );
}

/// A capture of the first bytes of these, each sent by 1 to 2.
fn bounded(name: &str, most: usize, packets: &[Vec<u8>]) -> Scratch {
    let path = Scratch::new(name);
    let mut capture = Capture::create_bounded(&path, "test", most).unwrap();
    for (nanos, bytes) in packets.iter().enumerate() {
        let (time, bytes) = (Time::from_nanos(nanos as u64), Cow::Borrowed(&bytes[..]));
        let (source, destination) = (queue_pair(1), queue_pair(2));
        let record = Record { time, event: PacketEvent::Sent, source, destination, bytes };
        capture.write(&record).unwrap();
    }
    capture.finish().unwrap();
    path
}

#[test]
fn cut_packets_are_decoded_as_far_as_they_go_and_say_so() {
    let data = CtsData { connid: None, recv_id: OpId(8), seg_length: 8896, seg_offset: 0 };
    let medium = RtmKind::Medium { msg_length: 9000, seg_offset: 0 };
    let address = RawAddress { gid: queue_pair(1).gid.0, qpn: 1, connid: Connid(0x11) };
    let raw_address = Some((address, Default::default()));
    let with_address = ReqOptions { raw_address, ..ReqOptions::NONE };
    let packets = [
        datagram(rtm(0, Some(0x2a), RtmKind::Eager, ReqOptions::NONE), b"hello, world, hello, all"),
        datagram(Header::CtsData(data), &[7; 8896]),
        datagram(rtm(1, Some(0x2a), medium, ReqOptions::NONE), &[7; 8000]),
        (200..=255).collect(),
        datagram(rtm(2, None, RtmKind::Eager, ReqOptions::NONE), b"whole"),
        datagram(rtm(3, Some(0x2b), RtmKind::Eager, with_address), b"hello"),
    ];
    let path = &bounded("cut-packets.pcapng", 24, &packets);
    insta::assert_snapshot!(decode(path, &[]).success());
    let lines = json_lines(path, &["--hex"]);
    for (line, bytes) in lines.iter().zip(&packets) {
        assert_eq!(line["length"], bytes.len());
        let stored = bytes.len().min(24);
        let expected = (stored < bytes.len()).then_some(stored as u64);
        assert_eq!(line["captured"].as_u64(), expected, "{line}");
        assert_eq!(line["hex"].as_str().unwrap().len(), 3 * stored - 1);
    }
    assert_eq!((&lines[1]["payload"], &lines[1]["seg_length"]), (&8896.into(), &8896.into()));
    assert_eq!((&lines[2]["type"], &lines[2]["payload"]), (&"MEDIUM_TAGRTM".into(), &().into()));
    assert_eq!(lines[5]["tag"], "0x2b");
    assert_eq!(count(path, &["--tag", "0x2b"]), 1);
    assert_eq!(count(path, &["--type", "rtm"]), 4);
    assert_eq!(count(path, &["--type", "malformed"]), 1);
    let summary = decode(path, &["--summary", "--json"]).success();
    assert!(
        summary
            .contains(r#"{"type":"CTSDATA","sent":1,"received":0,"failed":0,"sent_bytes":8920}"#)
    );

    let nothing = bounded("nothing.pcapng", 0, &packets);
    let outcome = decode(&nothing, &["--summary"]);
    assert_eq!(outcome.stderr, "");
    assert!(outcome.success().contains(" cut "));
}

/// Two packets that are not of the software device, between packets of it.
#[test]
fn records_of_another_kind_are_skipped_and_noted_with_their_number() {
    let whole = std::fs::read(capture("sound.pcapng")).unwrap();
    let expected = decode(capture("sound.pcapng"), &[]).success();
    // An enhanced packet block of an interface that isn't described, twice, behind the interface.
    let mut foreign = vec![];
    let words = [6_u32, 36, 9, 0, 0, 4, 4, 0, 36];
    words.iter().for_each(|word| foreign.extend(word.to_le_bytes()));
    let block = |at: usize| u32::from_le_bytes(whole[at + 4..at + 8].try_into().unwrap()) as usize;
    let behind = block(0) + block(block(0));
    let bytes = [&whole[..behind], &foreign, &foreign, &whole[behind..]].concat();
    let path = Scratch::new("mixed.pcapng");
    std::fs::write(&path, bytes).unwrap();
    let outcome = decode(&path, &[]);
    let note = format!(
        "note: {}: records skipped: 2, the first as: interface 9 is not described\n",
        path.as_str()
    );
    assert!(outcome.stderr.starts_with(&note), "{outcome:?}");
    assert_eq!(outcome.success(), expected);
    std::fs::write(&path, [&whole[..behind], &foreign].concat()).unwrap();
    let outcome = decode(&path, &[]);
    assert!(outcome.stderr.contains("no packet of the software device in"), "{outcome:?}");
    assert_eq!(outcome.code, Some(1));
}

#[test]
fn flags_that_do_not_fit_and_names_of_numbers_are_shown() {
    let with_flags = |header, flags: u16| {
        let mut bytes = datagram(header, b"hello");
        bytes[2..4].copy_from_slice(&flags.to_le_bytes());
        bytes
    };
    let eager = rtm(0, Some(0x2a), RtmKind::Eager, ReqOptions::NONE);
    let extra_info = ExtraInfo::new(&[0x8000_0000_0000_047b, 1]).unwrap();
    let handshake = Handshake {
        extra_info,
        connid: None,
        host_id: None,
        device_version: None,
        user_recv_qp: None,
        hmem_p2p: None,
    };
    let (msg_id, rma_iov, options) = (MsgId(1), &[][..], ReqOptions::NONE);
    let kind = RtaKind::Write;
    let atomic = |datatype, op| Header::Rta(Rta { msg_id, rma_iov, datatype, op, kind, options });
    let packets = [
        datagram(eager, b"hello"),
        with_flags(eager, 0x0040),
        with_flags(eager, 0x002c),
        datagram(Header::Handshake(handshake), &[]),
        datagram(atomic(7, 2), &[0; 8]),
        datagram(atomic(99, 98), &[0; 8]),
    ];
    let path = sent("remarks.pcapng", packets);
    insta::assert_snapshot!(decode(&path, &[]).success());
    let lines = json_lines(&path, &[]);
    assert_eq!(lines[0]["flags"], "0x000c");
    assert!(
        lines[0].get("unknown_flags").is_none() && lines[0].get("missing_kind_flags").is_none()
    );
    assert_eq!(lines[1]["missing_kind_flags"], serde_json::json!(["MSG", "TAGGED"]));
    assert_eq!(lines[1]["unknown_flags"], "0x0040");
    assert_eq!(lines[2]["wrong_kind_flags"], serde_json::json!(["ATOMIC"]));
    assert_eq!(lines[3]["extras"][0], "RDMA_READ");
    assert_eq!(lines[3]["extras"].as_array().unwrap().len(), 7);
}

#[test]
fn filters_of_one_kind_are_alternatives_and_kinds_combine() {
    let file = &capture("filters.pcapng");
    assert_eq!(count(file, &[]), 7);
    assert_eq!(count(file, &["--type", "rtm"]), 4);
    assert_eq!(count(file, &["--type", "cts"]), 1);
    assert_eq!(count(file, &["--type", "cts,EAGER_TAGRTM"]), 3);
    assert_eq!(count(file, &["--type", "cts", "--type", "malformed"]), 3);
    assert_eq!(count(file, &["--type", "64"]), 2, "of which one malformed");
    assert_eq!(count(file, &["--type", "200"]), 1, "a number that is no type");
    assert_eq!(count(file, &["--peer", "3"]), 3);
    assert_eq!(count(file, &["--peer", "fe00::2"]), 4);
    assert_eq!(count(file, &["--peer", "fe00::2/3"]), 0);
    assert_eq!(count(file, &["--msg-id", "0"]), 2);
    assert_eq!(count(file, &["--tag", "0x2a"]), 2);
    assert_eq!(count(file, &["--tag", "42,7", "--event", "sent"]), 1);
    assert_eq!(count(file, &["--op-id", "0x1234"]), 2);
    assert_eq!(count(file, &["--op-id", "9"]), 1);
    assert_eq!(count(file, &["--event", "failed"]), 1);
    assert_eq!(count(file, &["--peer", "3", "--event", "sent", "--type", "malformed"]), 2);
}

#[test]
fn invalid_filters_are_usage_errors() {
    let refused = |option: &str, value: &str| run(["decode", "x", option, value]).usage();
    assert!(refused("--type", "eagre").contains("no packet type or family `eagre`"));
    assert!(refused("--peer", "host").contains("`host` is neither a GID"));
    assert!(refused("--tag", "hello").contains("`hello` is not a tag"));
    assert!(refused("--msg-id", "4294967296").contains("not a number from 0 to 4294967295"));
}

#[test]
fn standard_input_is_read_as_a_capture() {
    let capture = capture("stdin.pcapng");
    let file = std::fs::File::open(&capture).unwrap();
    let output = efa(["decode", "-", "--count"]).stdin(file).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "7\n");
}

#[test]
fn standard_input_that_is_named_twice_is_refused() {
    let file = std::fs::File::open(capture("twice.pcapng")).unwrap();
    let output = efa(["decode", "-", "-"]).stdin(file).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("standard input is named twice"), "{said}");
}

#[test]
fn file_that_is_named_twice_is_read_once() {
    let file = capture("named-twice.pcapng");
    let other_name = format!("/.{}", file.as_str());
    let arguments = ["decode", "--count", file.as_str(), file.as_str(), &other_name];
    let output = efa(arguments).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "7\n");
}

#[test]
fn several_captures_are_merged_by_time() {
    let part = |name: &str, keep: fn(usize) -> bool| {
        let packets = packets().into_iter().enumerate().filter(|(index, _)| keep(*index));
        let records = packets.map(|(index, (event, source, destination, bytes))| Record {
            time: Time::from_nanos(5_000_000_000 + 1_234 * index as u64),
            event,
            source: queue_pair(source),
            destination: queue_pair(destination),
            bytes: Cow::Owned(bytes),
        });
        written(name, records.collect::<Vec<_>>().into_iter())
    };
    let whole = decode(capture("whole.pcapng"), &[]).success();
    let (odd, even) = (part("odd", |index| index % 2 == 1), part("even", |index| index % 2 == 0));
    assert_eq!(run(["decode", odd.as_str(), even.as_str()]).success(), whole);
    assert_eq!(run(["decode", even.as_str(), odd.as_str(), "--count"]).success(), "7\n");

    // Damage in one of them is reported after all packets of the others.
    let bytes = std::fs::read(&even).unwrap();
    std::fs::write(&even, &bytes[..bytes.len() - 1]).unwrap();
    let outcome = run(["decode", even.as_str(), odd.as_str(), "--count"]);
    assert_eq!(outcome.stdout, "6\n");
    assert!(outcome.failure().contains("even: after 3 packets: "));
}

#[test]
fn damage_of_each_file_is_an_error_line_of_its_own() {
    let (first, second, sound) =
        (capture("first.pcapng"), capture("second.pcapng"), capture("good.pcapng"));
    let whole = std::fs::read(&sound).unwrap();
    for damaged in [&first, &second] {
        std::fs::write(damaged, &whole[..whole.len() - 1]).unwrap();
    }
    let files = [&first, &sound, &second].map(Scratch::as_str);
    let outcome = run(["decode", "--count"].into_iter().chain(files));
    assert_eq!(outcome.stdout, "19\n");
    let error = outcome.failure();
    let errors: Vec<&str> = error.lines().filter(|line| line.starts_with("error: ")).collect();
    for (line, name) in errors.iter().zip(["first", "second"]) {
        assert!(line.contains(name) && line.contains(".pcapng: after 6 packets: "), "{error}");
    }
    assert_eq!(errors.len(), 2, "{error}");
}

#[test]
fn closed_output_pipe_is_no_error() {
    // More than a pipe holds, so that the program meets the closed end.
    let path = Scratch::new("pipe.pcapng");
    let mut capture = Capture::create(&path, "test").unwrap();
    let bytes: Cow<'_, [u8]> = Cow::Owned(vec![64; 100]);
    let (source, destination) = (queue_pair(1), queue_pair(2));
    for nanos in 0..2_000 {
        let (time, event) = (Time::from_nanos(nanos), PacketEvent::Sent);
        let record = Record { time, event, source, destination, bytes: bytes.clone() };
        capture.write(&record).unwrap();
    }
    capture.finish().unwrap();
    let mut child = efa(["decode", path.as_str()]).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn files_that_are_no_captures_are_errors_that_say_what_they_are() {
    let absent = decode(Scratch::new("absent.pcapng"), &[]).failure();
    assert!(absent.contains("absent.pcapng: not readable as a capture"), "{absent}");

    let pcap = [&[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0][..], &[0; 1000]].concat();
    for (name, bytes, says) in [
        ("empty", vec![], "it is empty"),
        ("text", b"hello, world\n".repeat(40), "it begins with [68, 65, 6c, 6c]"),
        ("pcap", pcap, "it is of the older format pcap"),
    ] {
        let path = Scratch::new(name);
        std::fs::write(&path, bytes).unwrap();
        let error = decode(path, &[]).failure();
        let expected = format!("not readable as a capture: not a valid pcapng file: {says}\n");
        assert!(error.ends_with(&expected), "{error}");
    }

    let directory = decode(env!("CARGO_TARGET_TMPDIR"), &[]).failure();
    assert!(directory.contains("not readable as a capture: Is a directory"), "{directory}");
    assert_eq!(directory.matches("Is a directory").count(), 1, "{directory}");
}

/// And an error, wherever the file is cut.
#[test]
fn cut_file_prints_the_packets_before_the_cut() {
    let whole = std::fs::read(capture("whole.pcapng")).unwrap();
    for length in (0..whole.len()).step_by(41).chain([whole.len() - 1]) {
        let path = Scratch::new("cut.pcapng");
        std::fs::write(&path, &whole[..length]).unwrap();
        let outcome = decode(path, &[]);
        let lines = outcome.stdout.lines().count();
        assert!(lines < packets().len());
        if outcome.code == Some(0) {
            // Cut between two packets: the end is not recognisable.
            continue;
        }
        let error = outcome.failure();
        let expected = format!("cut.pcapng: after {lines} packets: ");
        let known = error.contains(&expected) || error.contains("not readable as a capture: ");
        assert!(known, "{length}: {error}");
    }
}

#[test]
fn file_with_a_damaged_byte_is_decoded_or_refused() {
    let whole = std::fs::read(capture("sound.pcapng")).unwrap();
    for at in (0..whole.len()).step_by(13) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xff;
        let path = Scratch::new("damaged.pcapng");
        std::fs::write(&path, damaged).unwrap();
        let outcome = decode(path, &["--json"]);
        assert!(matches!(outcome.code, Some(0 | 1)), "{at}: {outcome:?}");
    }
}

#[test]
fn packets_to_an_announced_user_queue_pair_are_plain() {
    let user = UserRecvQp { qpn: 77, qkey: 5 };
    let handshake = Handshake {
        extra_info: ExtraInfo::new(&[1 << 7]).unwrap(),
        connid: None,
        host_id: None,
        device_version: None,
        user_recv_qp: Some(user),
        hmem_p2p: None,
    };
    let handshake = datagram(Header::Handshake(handshake), &[]);
    let to_user = QueuePairId { qpn: Qpn(77), ..queue_pair(1) };
    let eager = datagram(rtm(0, None, RtmKind::Eager, ReqOptions::NONE), b"x");
    let packets = [
        (queue_pair(2), to_user, b"nobody told".to_vec()),
        (queue_pair(1), queue_pair(2), handshake.clone()),
        (queue_pair(2), to_user, b"told".to_vec()),
        // What looks like a packet is none there, and other queue pairs take no plain messages.
        (queue_pair(2), to_user, eager.clone()),
        (queue_pair(2), queue_pair(1), b"?".to_vec()),
        // The queue pair was made anew: it sends.
        (to_user, queue_pair(2), eager.clone()),
        (queue_pair(2), to_user, eager.clone()),
    ];
    let records = packets.into_iter().enumerate().map(|(nanos, (source, destination, bytes))| {
        let (time, bytes) = (Time::from_nanos(nanos as u64), Cow::Owned(bytes));
        Record { time, event: PacketEvent::Sent, source, destination, bytes }
    });
    let path = written("plain.pcapng", records);
    insta::assert_snapshot!(decode(&path, &[]).success());
    assert_eq!(count(&path, &["--type", "plain"]), 2);
    assert_eq!(count(&path, &["--type", "malformed"]), 2);
    assert_eq!(count(&path, &["--type", "64"]), 2, "the first byte of a plain message is no type");
    let json = decode(&path, &["--json", "--type", "plain"]).success();
    assert!(json.lines().next().unwrap().contains(r#""type":"plain","payload":4,"#), "{json}");
    let summary = decode(&path, &["--summary"]).success();
    assert!(summary.lines().any(|line| line.trim().starts_with("plain ")), "{summary}");
}

/// Messages of a DGRAM endpoint, one of which looks like a CTS, and an endpoint that speaks the protocol.
fn without_headers(name: &str) -> Scratch {
    let eager = datagram(rtm(0, None, RtmKind::Eager, ReqOptions::NONE), b"x");
    let like_cts = [&[3, 4, 0, 0][..], &[7; 40]].concat();
    let packets = [
        (4, 5, b"hello world".to_vec()),
        (5, 4, like_cts.clone()),
        (4, 5, like_cts),
        (1, 2, eager),
    ];
    let records = packets.into_iter().enumerate().map(|(nanos, (source, destination, bytes))| {
        let (time, bytes) = (Time::from_nanos(nanos as u64), Cow::Owned(bytes));
        let (source, destination) = (queue_pair(source), queue_pair(destination));
        Record { time, event: PacketEvent::Sent, source, destination, bytes }
    });
    written(name, records)
}

#[test]
fn datagrams_of_queue_pairs_named_as_plain_are_not_parsed() {
    let path = &without_headers("dgram.pcapng");
    let plain = |options: &[&str]| count(path, &[options, &["--type", "plain"]].concat());
    assert_eq!(plain(&[]), 0);
    assert_eq!(plain(&["--plain", "4"]), 3);
    assert_eq!(plain(&["--plain", "fe00::5/5"]), 3);
    assert_eq!(plain(&["--plain", "2,fe00::4"]), 4);
    assert_eq!(plain(&["--plain", "all"]), 4);
    assert_eq!(plain(&["--plain", "9"]), 0);
    assert!(run(["decode", "x", "--plain", "some"]).usage().contains("`some` is neither a GID"));
}

#[test]
fn queue_pairs_that_never_introduce_themselves_are_noted_once() {
    let path = &without_headers("hint.pcapng");
    let notes = |options: &[&str]| {
        let outcome = decode(path, options);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        outcome.stderr
    };
    assert_eq!(
        notes(&[]),
        "note: fe00::4/4 sent neither a HANDSHAKE nor a request among 2 datagrams (nor did 1 more); if its program uses no \
         EFA RDM headers (efa-direct, DGRAM endpoints, UCX), add --plain fe00::4/4, or --plain all\n"
    );
    assert_eq!(notes(&["--plain", "4"]), "");
    assert_eq!(notes(&["--plain", "all", "--count"]), "");
}
