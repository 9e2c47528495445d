//! Packets that libfabric sent, one of each type, flags and header length (`tests/corpus`).
//!
//! `cargo xtask interop --corpus` records them. After that, write the fuzzer's seeds and review the snapshot:
//! `UPDATE_SEEDS=1 INSTA_UPDATE=always cargo test -p efa-proto corpus`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use efa_proto::{BaseHeader, Packet, PacketType, ReqFlags};

const CORPUS: &str = include_str!("../corpus/libfabric-1.17.txt");

/// Name and bytes of each packet, sorted by name.
fn corpus() -> Vec<(&'static str, Vec<u8>)> {
    let lines = CORPUS.lines().filter(|line| !line.starts_with('#'));
    let packets = lines.map(|line| {
        let (name, hex) = line.split_once(' ').unwrap();
        let digits: Vec<_> = hex.chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
        let (bytes, rest) = digits.as_chunks::<2>();
        assert!(rest.is_empty(), "{name}");
        (name, bytes.iter().map(|[high, low]| high << 4 | low).collect())
    });
    packets.collect()
}

#[test]
fn libfabric_packets_parse_as_recorded() {
    let mut text = String::new();
    for (name, bytes) in corpus() {
        let packet = Packet::parse(&bytes).unwrap();
        writeln!(text, "{name}: {packet}").unwrap();
    }
    insta::assert_snapshot!(text);
}

#[test]
fn libfabric_packets_are_emitted_with_the_same_bytes() {
    for (name, bytes) in corpus() {
        let packet = Packet::parse(&bytes).unwrap();
        let mut header = vec![0xdd; packet.header.len()];
        packet.header.emit(&mut header).unwrap();
        assert_eq!([&header, packet.payload].concat(), bytes, "{name}: {packet}");
    }
}

#[test]
fn libfabric_packets_are_named_by_type_flags_and_length() {
    for (name, bytes) in corpus() {
        let packet = Packet::parse(&bytes).unwrap();
        let (kind, flags) = (packet.packet_type().name().to_lowercase(), &bytes[2..4]);
        let shape = format!("{kind}-{:02x}{:02x}-{}", flags[1], flags[0], packet.header.len());
        assert_eq!(name, shape);
    }
}

#[test]
fn libfabric_packets_have_the_flags_of_their_type_and_no_unknown_ones() {
    for (name, bytes) in corpus() {
        let base = BaseHeader::parse(&bytes).unwrap();
        assert_eq!((base.kind_mismatch(), base.unknown_flags()), (ReqFlags::empty(), 0), "{name}");
    }
}

/// Sent only by later releases than that of the corpus.
const LATER: [PacketType; 2] = [PacketType::ReadNack, PacketType::PeerError];

#[test]
fn libfabric_corpus_has_every_type_that_is_sent() {
    let corpus = corpus();
    let sent: Vec<_> =
        corpus.iter().map(|(_, bytes)| Packet::parse(bytes).unwrap().packet_type()).collect();
    for kind in PacketType::ALL {
        let is_sent = !kind.is_never_sent() && !LATER.contains(kind);
        assert_eq!(sent.contains(kind), is_sent, "{kind:?}");
    }
}

/// Set `UPDATE_SEEDS` to write the seeds after a change.
#[test]
fn libfabric_packets_are_fuzz_seeds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/packet");
    let seeds: BTreeMap<_, _> =
        corpus().into_iter().map(|(name, bytes)| (format!("libfabric-{name}"), bytes)).collect();
    let is_ours = |name: &str| name.starts_with("libfabric-");
    if std::env::var_os("UPDATE_SEEDS").is_some() {
        for entry in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            if is_ours(entry.file_name().to_str().unwrap()) {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
        for (name, bytes) in &seeds {
            std::fs::write(folder.join(name), bytes).unwrap();
        }
    }
    let files = std::fs::read_dir(&folder).unwrap().map(Result::unwrap);
    let found: BTreeMap<_, _> = files
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.path()))
        .filter(|(name, _)| is_ours(name))
        .map(|(name, path)| (name, std::fs::read(path).unwrap()))
        .collect();
    assert!(found == seeds, "UPDATE_SEEDS=1 cargo test -p efa-proto corpus");
}
