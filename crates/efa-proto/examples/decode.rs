//! Prints packets in hexadecimal, from its arguments or, one a line, from standard input.
//!
//! ```text
//! cargo run -p efa-proto --example decode -- '41 04 0c00 07000000 2a00000000000000 68656c6c6f'
//! EAGER_TAGRTM msg_id=7 tag=0x2a payload=5
//! ```

use std::io::BufRead;

use efa_proto::{BaseHeader, Packet};

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_some() {
        arguments.for_each(|line| println!("{}", describe(&line)));
        return Ok(());
    }
    for line in std::io::stdin().lock().lines() {
        println!("{}", describe(&line?));
    }
    Ok(())
}

/// One line for a packet, or for the error.
fn describe(hex: &str) -> String {
    let Some(bytes) = bytes(hex) else { return format!("not hexadecimal: {hex}") };
    let packet = match Packet::parse(&bytes) {
        Ok(packet) => packet,
        Err(error) => return format!("malformed: {error}"),
    };
    match BaseHeader::parse(&bytes).map(|base| base.kind_mismatch()) {
        Ok(mismatch) if !mismatch.is_empty() => format!("{packet} (kind flags: {mismatch:?})"),
        _ => packet.to_string(),
    }
}

/// Pairs of digits, with white space anywhere.
fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = hex
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).map(|digit| digit as u8))
        .collect();
    let pairs = digits?;
    let (pairs, []) = pairs.as_chunks::<2>() else { return None };
    Some(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

#[test]
fn packets_and_errors_are_described_line_by_line() {
    assert_eq!(
        describe("41 04 0c00 07000000 2a00000000000000 68656c6c6f"),
        "EAGER_TAGRTM msg_id=7 tag=0x2a payload=5",
    );
    assert_eq!(
        describe("41 04 0400 07000000 2a00000000000000"),
        "EAGER_TAGRTM msg_id=7 tag=0x2a (kind flags: ReqFlags(TAGGED))",
    );
    assert_eq!(
        describe("41 04 0c00 07000000 2a00"),
        "malformed: EAGER_TAGRTM: tag ends at byte 16, the packet has 10",
    );
    assert_eq!(describe("4x"), "not hexadecimal: 4x");
    assert_eq!(describe("410"), "not hexadecimal: 410");
}
