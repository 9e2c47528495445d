//! The bytes of every packet, field by field, as snapshots that were compared with the specification by
//! hand; parsing and emitting are inverse to each other on them.

use std::fmt::Write;

use efa_proto::{Header, PacketType, ParseError};

use crate::samples::{self, Sample};

/// Offset, bytes and name of each field; numbers are little-endian.
fn dump(samples: Vec<Sample>) -> String {
    let mut text = String::new();
    for sample in samples {
        let bytes = sample.bytes();
        let header: usize = sample.layout.iter().map(|(_, size)| size).sum();
        assert_eq!(header, sample.header.len(), "{}", sample.name);
        writeln!(text, "{}: {header} + {} bytes", sample.name, sample.payload.len()).unwrap();
        let mut at = 0;
        for (name, size) in sample.layout.iter().copied().chain([("payload", sample.payload.len())])
        {
            for (row, chunk) in bytes[at..at + size].chunks(8).enumerate() {
                let hex: Vec<_> = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
                let name = if row == 0 { name } else { "" };
                let line = format!("{:4}  {:24} {name}", at + 8 * row, hex.join(" "));
                writeln!(text, "{}", line.trim_end()).unwrap();
            }
            at += size;
        }
        text.push('\n');
    }
    text
}

// conformance: A1 A4 A73 A74 A75 A87 A91 A93 A94 A95 A213
#[test]
fn bytes_of_message_requests() {
    insta::assert_snapshot!(dump(samples::messages()));
}

// conformance: A1 A4 A78 A79 A80 A89 A95 A96
#[test]
fn bytes_of_write_requests() {
    insta::assert_snapshot!(dump(samples::writes()));
}

// conformance: A1 A4 A81 A83
#[test]
fn bytes_of_read_requests() {
    insta::assert_snapshot!(dump(samples::reads()));
}

// conformance: A1 A4 A84 A85 A96
#[test]
fn bytes_of_atomics() {
    insta::assert_snapshot!(dump(samples::atomics()));
}

// conformance: A1 A4 A76 A77 A82 A86 A88 A90 A92 A125
#[test]
fn bytes_of_control_packets() {
    insta::assert_snapshot!(dump(samples::control()));
}

// conformance: A1 A4 A47 A51 A52
#[test]
fn bytes_of_handshakes() {
    insta::assert_snapshot!(dump(samples::handshakes()));
}

// conformance: A24 A65 A66 A68 A69
#[test]
fn bytes_of_optional_headers() {
    insta::assert_snapshot!(dump(samples::with_options()));
}

#[test]
fn bytes_of_types_that_are_never_sent() {
    insta::assert_snapshot!(dump(samples::never_sent()));
}

#[test]
fn every_type_has_a_sample() {
    let samples = samples::all();
    for &packet_type in PacketType::ALL {
        let found = samples.iter().any(|sample| sample.header.packet_type() == packet_type);
        assert!(found, "{packet_type}");
    }
}

// conformance: A73 A74 A75 A76 A77 A79 A80 A81 A82 A83 A84 A85 A86 A87 A88 A89 A90 A91 A92 A93 A94 A95 A96
#[test]
fn parse_is_the_inverse_of_emit() {
    for sample in samples::all() {
        let bytes = sample.bytes();
        let packet = efa_proto::Packet::parse(&bytes).unwrap();
        assert_eq!(packet, sample.packet(), "{}", sample.name);
        let mut again = vec![0xdd; packet.header.len()];
        packet.header.emit(&mut again).unwrap();
        assert_eq!(again, sample.header_bytes(), "{}", sample.name);
    }
}

/// For each cut inside the header: the field that is cut, its end, and the number of missing bytes.
// conformance: A1 A22 A73 A74 A75 A76 A77 A79 A80 A81 A82 A83 A84 A85 A86 A87 A88 A89 A90 A91 A92 A93 A94 A95 A96
#[test]
fn truncated_header_is_an_error_that_names_the_field() {
    for sample in samples::all() {
        let header = sample.header_bytes();
        let group = |name: &'static str| name.split(['.', '[', ',']).next().unwrap();
        let mut end = 0;
        let mut fields = Vec::new();
        for chunk in sample.layout.chunk_by(|(a, _), (b, _)| group(a) == group(b)) {
            end += chunk.iter().map(|(_, size)| size).sum::<usize>();
            fields.push((group(chunk[0].0), end));
        }
        if matches!(sample.header, Header::PeerErrorReport(_)) {
            // The length decides the form: each of 20 bytes and more is a good PEER_ERROR.
            let parsed = |len| efa_proto::Packet::parse(&header[..len]).is_ok();
            assert!((0..header.len()).all(|len| parsed(len) == (len >= 20)), "{}", sample.name);
            continue;
        }
        for len in 0..header.len() {
            let cut = &header[..len];
            let (field, end) = *fields.iter().find(|(_, end)| len < *end).unwrap();
            if len == 12 && sample.name == "EOR, no connid" {
                // This is a good EOR of release 1.13 and older.
                assert!(efa_proto::Packet::parse(cut).is_ok());
                continue;
            }
            let error = efa_proto::Packet::parse(cut).unwrap_err();
            let packet_type = (len > 0).then_some(sample.header.packet_type());
            let (needed, available) = (end as u64, len as u64);
            // A type without known fields is one field, base header included.
            if sample.header.packet_type().is_never_sent() && len >= 4 {
                assert_eq!((error.field(), error.missing()), ("header", Some(needed - available)));
                continue;
            }
            let expected = ParseError::Truncated { packet_type, field, needed, available };
            assert_eq!(error, expected, "{}, {len} bytes", sample.name);
            assert_eq!(error.missing(), Some(needed - available));
        }
    }
}

/// For every length below the header's, with the right length in the error.
#[test]
fn emit_into_short_buffer_is_an_error_with_the_length() {
    for sample in samples::all() {
        let needed = sample.header.len();
        for available in 0..needed {
            let packet_type = sample.header.packet_type();
            let expected =
                Err(efa_proto::EmitError::BufferTooSmall { packet_type, needed, available });
            assert_eq!(sample.header.emit(&mut vec![0; available]), expected, "{}", sample.name);
        }
    }
}

/// Set `UPDATE_SEEDS` to write the seeds after a change.
#[test]
fn fuzz_seeds_are_golden_packets() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/packet");
    let seeds = [
        "EAGER_TAGRTM, with padded address",
        "RUNTREAD_MSGRTM, with everything",
        "LONGREAD_RTW, with everything",
        "SHORT_RTR",
        "COMPARE_RTA",
        "CTS, emulated read",
        "CTSDATA, connid",
        "READRSP, connid",
        "EOR, short",
        "HANDSHAKE, connid host_id device_version user_recv_qp",
        "HANDSHAKE, connid host_id device_version user_recv_qp hmem_p2p",
        "PEER_ERROR, connid",
        "PEER_ERROR, 24 bytes connid",
        "PEER_ERROR, 28 bytes connid",
    ];
    for name in seeds {
        let bytes = samples::named(name).bytes();
        let file = name.to_lowercase().replace(", ", "-").replace(' ', "-");
        let path = format!("{folder}/{file}");
        if std::env::var_os("UPDATE_SEEDS").is_some() {
            std::fs::write(&path, &bytes).unwrap();
        }
        assert_eq!(std::fs::read(&path).ok(), Some(bytes), "{path}");
    }
}
