//! Any bytes through the packet parser, and back.

use std::fmt::Write;

use efa_proto::{EmitError, Packet, PacketType};

/// Takes text and forgets it.
struct Null;

impl Write for Null {
    fn write_str(&mut self, _: &str) -> std::fmt::Result {
        Ok(())
    }
}

pub(crate) fn run(bytes: &[u8]) {
    let packet = match Packet::parse(bytes) {
        Ok(packet) => packet,
        Err(error) => return write!(Null, "{error}").expect("Null takes everything"),
    };
    // Text takes longer than all else: one packet in eight is shown.
    if bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)).is_multiple_of(8) {
        write!(Null, "{packet} {packet:?}").expect("Null takes everything");
    }
    let length = packet.header.len();
    let mut again = Vec::with_capacity(bytes.len());
    again.resize(length, 0);
    match packet.header.emit(&mut again) {
        Ok(len) => assert_eq!(len, length),
        // A HANDSHAKE may be received with more words than may be sent.
        Err(EmitError::Count { packet_type: PacketType::Handshake, .. }) => return,
        Err(error) => panic!("{error}"),
    }
    again.extend(packet.payload);
    assert_eq!(Packet::parse(&again), Ok(packet));
}

pub(crate) fn show(bytes: &[u8]) {
    match Packet::parse(bytes) {
        Ok(packet) => println!("{packet}"),
        Err(error) => println!("no packet: {error}"),
    }
    run(bytes);
}
