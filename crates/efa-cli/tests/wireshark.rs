//! The Wireshark dissector `docs/wireshark/efa.lua`, run by tshark on captures written for the tests: what it shows is
//! what efa-proto parses.
//!
//! Needs the Debian package tshark. Without it the tests are skipped, or fail if `EFA_INTEROP=1` is set. With
//! `EFA_INTEROP=0` all are skipped: they run in the step `libfabric` of `cargo xtask test`.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;
#[path = "wireshark/numbers.rs"]
mod numbers;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Running, Scratch, run};
use efa::{AtomicOp, Datatype};
use efa_device::{Gid, Qpn, Status, Time};
use efa_handshake::Extras;
use efa_proto::{
    BaseHeader, Connid, CtsData, Handshake, Header, MsgId, OpId, Packet, PacketType, ParseError,
    PeerErrorForm, PeerErrorReport, RawAddress, RawAddressForm, ReadNack, Receipt, ReqFlags,
    ReqOptions, Rta, RtaKind, Rtm, RtmKind, UserRecvQp,
};
use efa_sim::capture::{Capture, CaptureReader};
use efa_sim::record::{PacketEvent, QueuePairId, Record};
use numbers::{NUMBERS, Numbers};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/wireshark/efa.lua");
const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/packet");

/// Whether the test can run; says why if not.
fn with_tshark() -> bool {
    let interop = std::env::var("EFA_INTEROP").unwrap_or_default();
    if interop == "0" {
        eprintln!("skipped: EFA_INTEROP=0 says that another step runs it");
        return false;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).any(|folder| folder.join("tshark").is_file());
    assert!(installed || interop != "1", "tshark is missing although EFA_INTEROP=1 is set");
    if !installed {
        eprintln!("skipped: tshark is not installed");
    }
    installed
}

/// What tshark prints of a capture. The settings and plugins of the user have no influence.
fn tshark(script: Option<&str>, capture: impl AsRef<Path>, arguments: &[&str]) -> String {
    let nowhere = Scratch::new("no-settings");
    let mut command = Command::new("tshark");
    command.env("HOME", nowhere.as_str()).env("XDG_CONFIG_HOME", nowhere.as_str());
    command.args(script.map(|script| format!("-Xlua_script:{script}")));
    command.arg("-nr").arg(capture.as_ref()).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start(&mut command).finish().success()
}

/// The values of these fields in each packet; a packet may have a field several times.
fn fields(capture: impl AsRef<Path>, names: &[&str]) -> Vec<Vec<Vec<String>>> {
    let mut arguments = vec!["-Tfields", "-Eseparator=/t", "-Eaggregator=;"];
    arguments.extend(names.iter().flat_map(|name| ["-e", name]));
    let values = |text: &str| match text {
        "" => vec![],
        text => text.split(';').map(canonical).collect(),
    };
    let text = tshark(Some(SCRIPT), capture, &arguments);
    text.lines().map(|line| line.split('\t').map(values).collect()).collect()
}

/// Numbers in decimal; versions of tshark write booleans differently.
fn canonical(text: &str) -> String {
    let number = match (text.strip_prefix("0x"), text) {
        (Some(digits), _) => u64::from_str_radix(digits, 16).ok(),
        (None, "True") => Some(1),
        (None, "False") => Some(0),
        _ => None,
    };
    number.map_or(text.to_owned(), |number| number.to_string())
}

/// The first value of one field of each packet.
fn column(capture: impl AsRef<Path>, name: &str) -> Vec<String> {
    fields(capture, &[name]).into_iter().map(|mut row| row.swap_remove(0).join(";")).collect()
}

fn queue_pair(host: u8) -> QueuePairId {
    let mut gid = Gid::ZERO;
    (gid.0[0], gid.0[15]) = (0xfe, host);
    QueuePairId { gid, qpn: Qpn(0x100 + u16::from(host)) }
}

fn record(event: PacketEvent, (source, destination): (u8, u8), bytes: Vec<u8>) -> Record<'static> {
    let (source, destination) = (queue_pair(source), queue_pair(destination));
    Record { time: Time::from_nanos(1), event, source, destination, bytes: Cow::Owned(bytes) }
}

/// A capture of these.
fn written(name: &str, records: &[Record<'_>]) -> Scratch {
    let path = Scratch::new(name);
    let mut capture = Capture::create(&path, "test").unwrap();
    for record in records {
        capture.write(record).unwrap();
    }
    capture.finish().unwrap();
    path
}

/// A capture of these, as sent.
fn sent(name: &str, packets: &[Vec<u8>]) -> Scratch {
    let of = |bytes: &Vec<u8>| record(PacketEvent::Sent, (1, 2), bytes.clone());
    written(name, &packets.iter().map(of).collect::<Vec<_>>())
}

fn datagram(header: Header<'_>, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; header.len()];
    header.emit(&mut bytes).unwrap();
    bytes.extend(payload);
    bytes
}

/// The fuzzer's seeds, which libfabric sent or this stack emitted.
fn corpus() -> Vec<Vec<u8>> {
    let mut files: Vec<_> =
        std::fs::read_dir(CORPUS).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Packets of every type.
fn packets() -> Vec<Vec<u8>> {
    let mut packets = corpus();
    for connid in [None, Some(Connid(0x0a0b_0c0d))] {
        let (send_id, recv_id) = (OpId(0x5152_5354), OpId(7));
        let data = CtsData { connid, recv_id, seg_length: 4, seg_offset: 1 << 40 };
        packets.push(datagram(Header::CtsData(data), b"data"));
        packets.push(datagram(Header::ReadNack(ReadNack { send_id, recv_id, connid }), b""));
        let receipt = Receipt { send_id, msg_id: MsgId(u32::MAX), connid };
        packets.push(datagram(Header::Receipt(receipt), b"beyond the header"));
        for (op_id, emitter) in [(None, 1), (Some(send_id), 3)] {
            for form in [PeerErrorForm::Marked, PeerErrorForm::Flagged] {
                let (msg_id, prov_errno) = (MsgId(7), 4107);
                let report = PeerErrorReport { msg_id, op_id, emitter, prov_errno, connid, form };
                packets.push(datagram(Header::PeerErrorReport(report), b""));
            }
        }
    }
    let kind = RtmKind::DcLongCts {
        msg_length: u64::MAX,
        send_id: OpId(1),
        credit_request: 2,
        read_nack: true,
    };
    let address = RawAddress { gid: queue_pair(9).gid.0, qpn: 0xfffe, connid: Connid(3) };
    let options = ReqOptions {
        raw_address: Some((address, RawAddressForm::Short)),
        cq_data: Some(1 << 63),
        connid: None,
    };
    let rtm = Rtm { msg_id: MsgId(0), tag: Some(u64::MAX), kind, options };
    packets.push(datagram(Header::Rtm(rtm), b"data"));
    let handshake = Handshake {
        extra_info: efa_proto::ExtraInfo::new(&[0, u64::MAX, 1 << 63]).unwrap(),
        connid: None,
        host_id: Some(0),
        device_version: None,
        user_recv_qp: None,
        hmem_p2p: Some(false),
    };
    packets.push(datagram(Header::Handshake(handshake), b""));
    for packet_type in PacketType::ALL.iter().filter(|packet_type| packet_type.is_never_sent()) {
        packets.push([packet_type.as_u8(), 4, 0, 0].into_iter().chain(4..60).collect());
    }
    packets
}

/// What the expert info says of a packet that isn't malformed.
fn remarks(bytes: &[u8], packet: &Packet<'_>) -> Vec<String> {
    let base = BaseHeader::parse(bytes).unwrap();
    let (found, mismatch) = (ReqFlags::from_bits_retain(base.flags), base.kind_mismatch());
    let names = |flags: ReqFlags| flags.iter_names().map(|(name, _)| name).collect::<Vec<_>>();
    let mut remarks = Vec::new();
    for (what, flags) in
        [("missing", mismatch.difference(found)), ("wrong", mismatch.intersection(found))]
    {
        if !flags.is_empty() {
            remarks.push(format!("{what} kind flags: {}", names(flags).join(", ")));
        }
    }
    if base.unknown_flags() != 0 {
        remarks.push(format!("unknown flags: {:#06x}", base.unknown_flags()));
    }
    if packet.packet_type() == PacketType::PeerError {
        remarks.push("Operation failed at the peer".to_owned());
    }
    remarks
}

/// The Info column of a record.
fn info(record: &Record<'_>) -> String {
    let (event, status) = match record.event {
        PacketEvent::Sent => ("sent", String::new()),
        PacketEvent::Received => ("recv", String::new()),
        PacketEvent::Failed(status) => ("fail", format!(" ({status})")),
    };
    let text = match Packet::parse(&record.bytes) {
        Ok(packet) => packet.to_string(),
        Err(error) => format!("malformed, {} bytes: {error}", record.bytes.len()),
    };
    format!("{event} {} → {} {text}{status}", record.source.qpn.0, record.destination.qpn.0)
}

#[track_caller]
fn assert_infos(capture: impl AsRef<Path>, records: &[Record<'_>]) {
    let infos = column(capture, "_ws.col.Info");
    assert_eq!(infos.len(), records.len());
    for (info, record) in infos.iter().zip(records) {
        assert_eq!(*info, self::info(record));
    }
}

#[test]
fn wireshark_shows_the_fields_of_each_packet_type() {
    if !with_tshark() {
        return;
    }
    let packets = packets();
    let types: BTreeSet<_> =
        packets.iter().map(|bytes| Packet::parse(bytes).unwrap().packet_type()).collect();
    assert_eq!(types, PacketType::ALL.iter().copied().collect(), "a packet of each type");

    let capture = sent("wireshark-fields.pcapng", &packets);
    let names: Vec<_> = NUMBERS.iter().map(|name| format!("efa.{name}")).collect();
    let mut names: Vec<_> = names.iter().map(String::as_str).collect();
    names.extend(["efa.raw_address.gid", "_ws.expert.message"]);
    let rows = fields(&capture, &names);
    assert_eq!(rows.len(), packets.len());
    for (bytes, row) in packets.iter().zip(&rows) {
        let packet = Packet::parse(bytes).unwrap();
        let numbers = Numbers::of(bytes, &packet);
        for (name, found) in NUMBERS.iter().zip(row) {
            let (mut found, mut expected) = (found.clone(), numbers.get(name));
            if *name == "op_id" {
                found.sort();
                expected.sort();
            }
            assert_eq!(found, expected, "{name} of {packet}");
        }
        let gid =
            packet.header.raw_address().map(|address| Ipv6Addr::from(address.gid).to_string());
        assert_eq!(row[NUMBERS.len()], gid.as_slice(), "{packet}");
        assert_eq!(row[NUMBERS.len() + 1], remarks(bytes, &packet), "{packet}");
    }
}

#[test]
fn wireshark_shows_the_text_event_status_and_queue_pairs_of_each_packet() {
    if !with_tshark() {
        return;
    }
    let statuses = (1..=u8::MAX).filter_map(Status::from_code).map(PacketEvent::Failed);
    let mut events: Vec<_> = statuses.collect();
    events.extend([PacketEvent::Sent, PacketEvent::Received]);
    let packets = packets().into_iter().zip(events.into_iter().cycle());
    let records: Vec<_> = packets.map(|(bytes, event)| record(event, (1, 2), bytes)).collect();
    let capture = written("wireshark-texts.pcapng", &records);
    assert_infos(&capture, &records);

    let names = ["event", "status", "src_qpn", "dst_qpn", "src_gid", "dst_gid"];
    let names = names.map(|name| format!("efa.{name}"));
    let mut names: Vec<_> = names.iter().map(String::as_str).collect();
    names.extend(["_ws.col.Protocol", "_ws.col.Source", "_ws.col.Destination"]);
    for (row, record) in fields(&capture, &names).iter().zip(&records) {
        let (event, status) = match record.event {
            PacketEvent::Sent => (0, 0),
            PacketEvent::Received => (1, 0),
            PacketEvent::Failed(status) => (2, status.code()),
        };
        let (source, destination) = (record.source, record.destination);
        let gids = [source.gid.to_string(), destination.gid.to_string()];
        let qpns = [source.qpn.0.to_string(), destination.qpn.0.to_string()];
        let numbers = [event.to_string(), status.to_string()].into_iter().chain(qpns);
        let expected: Vec<_> =
            numbers.chain(gids.clone()).chain(["EFA".to_owned()]).chain(gids).collect();
        assert_eq!(row.concat(), expected);
    }
}

#[test]
fn wireshark_names_each_datatype_and_operation_of_atomics() {
    if !with_tshark() {
        return;
    }
    let rta = |datatype, op| {
        let (kind, options) = (RtaKind::Write, ReqOptions::NONE);
        Rta { msg_id: MsgId(1), rma_iov: &[], datatype, op, kind, options }
    };
    // And the first number that has no name.
    let (datatypes, operations) = (Datatype::ALL.len() as u32, AtomicOp::ALL.len() as u32);
    let atomics: Vec<_> = (0..=operations).map(|op| rta(op.min(datatypes), op)).collect();
    for atomic in &atomics {
        assert_eq!(atomic.datatype_name().is_some(), atomic.datatype < datatypes);
        assert_eq!(atomic.op_name().is_some(), atomic.op < operations);
    }
    let sent = |atomic: &Rta<'static>| {
        record(PacketEvent::Sent, (1, 2), datagram(Header::Rta(*atomic), b""))
    };
    let records: Vec<_> = atomics.iter().map(sent).collect();
    let capture = written("wireshark-atomics.pcapng", &records);
    assert_infos(&capture, &records);
}

#[test]
fn wireshark_names_the_bits_of_extra_info_as_efa_handshake_does() {
    if !with_tshark() {
        return;
    }
    let bits: Vec<_> = Extras::TABLE.iter().map(|(bit, name, ..)| (*bit, *name)).collect();
    let of = |&(bit, _): &(u32, &str)| {
        let handshake = Handshake {
            extra_info: (1 << bit).into(),
            connid: None,
            host_id: None,
            device_version: None,
            user_recv_qp: None,
            hmem_p2p: None,
        };
        datagram(Header::Handshake(handshake), b"")
    };
    let capture = sent("wireshark-extras.pcapng", &bits.iter().map(of).collect::<Vec<_>>());
    let abbreviation = |name: &str| format!("efa.extra.{}", name.to_lowercase().replace(' ', "_"));
    let names: Vec<_> = bits.iter().map(|(_, name)| abbreviation(name)).collect();
    let rows = fields(&capture, &names.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(rows.len(), bits.len());
    for (index, row) in rows.iter().enumerate() {
        let expected: Vec<_> =
            (0..bits.len()).map(|bit| u8::from(bit == index).to_string()).collect();
        assert_eq!(row.concat(), expected, "{}", names[index]);
    }
}

#[test]
fn malformed_packet_in_wireshark_has_the_error_of_efa_proto() {
    if !with_tshark() {
        return;
    }
    // Each beginning of each packet, and each byte of the fixed headers changed.
    let mut packets = Vec::new();
    for packet in self::packets() {
        let changeable = packet.len().min(48);
        packets.extend((0..packet.len().min(180)).map(|length| packet[..length].to_vec()));
        for (at, value) in (0..changeable).flat_map(|at| [0, 1, 5, 200].map(|value| (at, value))) {
            let mut changed = packet.clone();
            changed[at] = value;
            packets.push(changed);
        }
    }
    let errors: Vec<Option<ParseError>> =
        packets.iter().map(|bytes| Packet::parse(bytes).err()).collect();
    let seen = |is: fn(&ParseError) -> bool| errors.iter().flatten().any(is);
    assert!(seen(|error| matches!(error, ParseError::Truncated { .. })));
    assert!(seen(|error| matches!(error, ParseError::Version { .. })));
    assert!(seen(|error| matches!(error, ParseError::PacketType(_))));
    assert!(seen(|error| matches!(error, ParseError::Count { .. })));
    assert!(seen(|error| matches!(error, ParseError::AddressSize { .. })));
    assert!(seen(|error| matches!(error, ParseError::ExtraInfo { .. })));
    assert!(seen(|error| matches!(error, ParseError::SegmentLength { .. })));

    let capture = sent("wireshark-malformed.pcapng", &packets);
    let rows = fields(&capture, &["_ws.expert.message", "_ws.col.Info"]);
    assert_eq!(rows.len(), packets.len());
    for ((row, bytes), error) in rows.iter().zip(&packets).zip(&errors) {
        match error {
            // Remarks on the flags may precede it.
            Some(error) => assert_eq!(row[0].last(), Some(&error.to_string()), "{bytes:02x?}"),
            None => assert_eq!(row[0], remarks(bytes, &Packet::parse(bytes).unwrap())),
        }
        let record = record(PacketEvent::Sent, (1, 2), bytes.clone());
        assert_eq!(row[1].join(";"), info(&record), "{bytes:02x?}");
    }
}

#[test]
fn packet_cut_by_the_capture_in_wireshark_is_not_malformed() {
    if !with_tshark() {
        return;
    }
    let packets = [
        datagram(
            Header::Receipt(Receipt { send_id: OpId(1), msg_id: MsgId(2), connid: None }),
            b"",
        ),
        datagram(
            Header::CtsData(CtsData {
                connid: None,
                recv_id: OpId(1),
                seg_length: 9000,
                seg_offset: 0,
            }),
            &[1; 9000],
        ),
        datagram(
            Header::Rtm(Rtm {
                msg_id: MsgId(1),
                tag: None,
                kind: RtmKind::DcMedium { send_id: OpId(1), msg_length: 9000, seg_offset: 0 },
                options: ReqOptions::NONE,
            }),
            b"data",
        ),
    ];
    let whole = sent("wireshark-whole.pcapng", &packets);
    let cut = Scratch::new("wireshark-cut.pcapng");
    let mut editcap = Command::new("editcap");
    editcap.args(["-s", "68", whole.as_str(), cut.as_str()]);
    editcap.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start(&mut editcap).finish().success();
    let rows = fields(&cut, &["efa.payload_length", "_ws.expert.message"]);
    let expected = [
        ["0", ""],
        ["9000", ""],
        ["", "DC_MEDIUM_MSGRTM: seg_offset ends at byte 32, 28 of the packet's 36 were captured"],
    ];
    assert_eq!(
        rows.iter().map(|row| [row[0].concat(), row[1].concat()]).collect::<Vec<_>>(),
        expected
    );
}

#[test]
fn message_to_an_announced_user_queue_pair_in_wireshark_is_plain() {
    if !with_tshark() {
        return;
    }
    let user = queue_pair(1).qpn.0 + 1;
    let handshake = Handshake {
        extra_info: 0.into(),
        connid: None,
        host_id: None,
        device_version: None,
        user_recv_qp: Some(UserRecvQp { qpn: user.into(), qkey: 5 }),
        hmem_p2p: None,
    };
    let message = |event| {
        let mut message = record(event, (2, 1), b"hello".to_vec());
        message.destination.qpn = Qpn(user);
        message
    };
    let mut reused = record(PacketEvent::Sent, (1, 2), b"".to_vec());
    reused.source.qpn = Qpn(user);
    let records = [
        message(PacketEvent::Sent),
        record(PacketEvent::Received, (1, 2), datagram(Header::Handshake(handshake), b"")),
        message(PacketEvent::Sent),
        message(PacketEvent::Received),
        reused,
        message(PacketEvent::Sent),
    ];
    let capture = written("wireshark-plain.pcapng", &records);
    let plain = [false, false, true, true, false, false];
    // Also in two passes, the second of which finds what the first decided.
    for passes in [&[][..], &["-2"]] {
        let arguments = [passes, &["-Tfields", "-eefa.plain", "-eefa.event"]].concat();
        let text = tshark(Some(SCRIPT), &capture, &arguments);
        let found: Vec<_> = text.lines().map(|line| !line.starts_with('\t')).collect();
        assert_eq!(found, plain, "{text}");
    }
}

#[test]
fn frame_of_another_program_in_wireshark_goes_to_the_dissector_before() {
    if !with_tshark() {
        return;
    }
    let capture = sent("wireshark-foreign.pcapng", &[b"hello".to_vec(), b"hello".to_vec()]);
    let mut bytes = std::fs::read(&capture).unwrap();
    // The pseudo headers begin 8 bytes before the sender's GID. Another version, and another event.
    let gid = queue_pair(1).gid.0;
    let at: Vec<_> = (8..bytes.len()).filter(|&at| bytes[at..].starts_with(&gid)).collect();
    assert_eq!(at.len(), 2);
    bytes[at[0] - 8] = 2;
    bytes[at[1] - 7] = 3;
    std::fs::write(&capture, bytes).unwrap();
    let preference = r#"-ouat:user_dlts:"User 0 (DLT=147)","data","0","","0","""#;
    for preferences in [&[][..], &[preference]] {
        let arguments = [preferences, &["-Tfields", "-euser_dlt", "-edata.len"]].concat();
        let (with, without) =
            (tshark(Some(SCRIPT), &capture, &arguments), tshark(None, &capture, &arguments));
        assert_eq!(with.lines().count(), 2);
        assert!(preferences.is_empty() || with.contains("45"), "data dissector: {with}");
        assert_eq!(with, without);
    }
    assert_eq!(tshark(Some(SCRIPT), &capture, &["-Yefa"]), "");
}

#[test]
fn wireshark_shows_the_packets_of_a_pingpong() {
    if !with_tshark() {
        return;
    }
    let capture = Scratch::new("wireshark-pingpong.pcapng");
    let directory = Scratch::new("wireshark-pingpong-devices");
    let sizes = "--sizes=0,5000,20k,300k,1M";
    let arguments =
        ["pingpong", "--device=soft", "--tagged", "--iterations=2", "--warmup=1", sizes];
    let (directory, file) = (["--directory", directory.as_str()], ["--capture", capture.as_str()]);
    run([&arguments[..], &directory, &file].concat()).success();
    let records: Result<Vec<_>, _> = CaptureReader::open(&capture).unwrap().collect();
    let records = records.unwrap();
    assert!(records.len() > 20);
    assert_infos(&capture, &records);
}
