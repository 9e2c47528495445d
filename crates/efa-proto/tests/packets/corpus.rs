//! Packets that libfabric sent, one of each shape (`tests/corpus`).

use std::fmt::Write;
use std::fs;
use std::path::Path;

use efa_proto::Packet;

/// Name and bytes of each packet, in the order of the names.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/libfabric-1.17");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let packets = files.filter(|file| file.extension().is_some_and(|extension| extension == "bin"));
    let mut corpus: Vec<_> = packets
        .map(|file| {
            (file.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read(&file).unwrap())
        })
        .collect();
    corpus.sort();
    corpus
}

#[test]
fn they_read_as_libfabric_means_them() {
    let mut text = String::new();
    for (name, bytes) in corpus() {
        let packet = Packet::parse(&bytes).unwrap();
        writeln!(text, "{name}: {packet}").unwrap();
    }
    insta::assert_snapshot!(text);
}

#[test]
fn we_write_the_same_bytes() {
    for (name, bytes) in corpus() {
        let packet = Packet::parse(&bytes).unwrap();
        let mut header = vec![0xdd; packet.header.len()];
        packet.header.emit(&mut header).unwrap();
        assert_eq!(header, bytes[..header.len()], "{name}: {packet}");
    }
}

#[test]
fn they_are_named_by_what_they_are() {
    for (name, bytes) in corpus() {
        let packet = Packet::parse(&bytes).unwrap();
        let (kind, flags) = (packet.packet_type().name().to_lowercase(), &bytes[2..4]);
        let shape = format!("{kind}-{:02x}{:02x}-{}", flags[1], flags[0], packet.header.len());
        assert_eq!(name, shape);
    }
}
