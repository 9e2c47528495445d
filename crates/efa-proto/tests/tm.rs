//! The headers of the tag-matching offload through the public API: golden bytes in both directions, and
//! any bytes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use efa_proto::tm::{Message, Opcode, Rvh, TmEmitError, TmParseError, Tmh};
use proptest::collection::vec;
use proptest::prelude::*;

const TMH: Tmh = Tmh { app_ctx: 0x0102_0304, tag: 0x1112_1314_1516_1718 };
const RVH: Rvh = Rvh { va: 0x2122_2324_2526_2728, rkey: 0x3132_3334, len: 0x4142_4344 };

/// The bytes behind the opcode, from the RFC's figure.
const TMH_REST: [u8; 15] = [
    0, 0, 0, // reserved
    0x01, 0x02, 0x03, 0x04, // app_ctx
    0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, // tag
];
const RVH_BYTES: [u8; 16] = [
    0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, // va
    0x31, 0x32, 0x33, 0x34, // rkey
    0x41, 0x42, 0x43, 0x44, // len
];

fn golden(opcode: u8, behind: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![opcode];
    bytes.extend(TMH_REST);
    bytes.extend(behind.concat());
    bytes
}

fn emitted(message: &Message<'_>) -> Vec<u8> {
    let mut buf = [0xee; Tmh::SIZE + Rvh::SIZE];
    let (len, behind): (usize, &[u8]) = match message {
        Message::NoTag(bytes) => (0, bytes),
        Message::Eager { header, payload } => (header.emit_eager(&mut buf).unwrap(), payload),
        Message::Rndv { header, rendezvous, metadata } => {
            (header.emit_rndv(rendezvous, &mut buf).unwrap(), metadata)
        }
        Message::Fin { header, rendezvous } => {
            let emitted = match rendezvous {
                Some(rendezvous) => header.emit_fin(rendezvous, &mut buf),
                None => header.emit_short_fin(&mut buf),
            };
            (emitted.unwrap(), &[])
        }
    };
    [&buf[..len], behind].concat()
}

// conformance: B20
#[test]
fn opcodes_equal_those_of_rdma_core() {
    let all = [Opcode::NoTag, Opcode::Rndv, Opcode::Fin, Opcode::Eager];
    assert_eq!(all.map(|opcode| opcode as u8), [0, 1, 2, 3]);
    for number in 0..=u8::MAX {
        assert_eq!(
            Opcode::from_u8(number).map(|opcode| opcode as u8),
            (number < 4).then_some(number)
        );
    }
    assert_eq!(Message::parse(&[4; 40]), Err(TmParseError::Opcode { found: 4 }));
}

// conformance: B18 B21
#[test]
fn eager_message_is_tmh_and_payload() {
    let message = Message::Eager { header: TMH, payload: b"hello" };
    assert_eq!(emitted(&message), golden(3, &[b"hello"]));
    assert_eq!(Message::parse(&golden(3, &[b"hello"])), Ok(message));
    let empty = Message::Eager { header: TMH, payload: b"" };
    assert_eq!(Message::parse(&golden(3, &[])), Ok(empty));
}

// conformance: B18 B19 B22
#[test]
fn rendezvous_request_is_tmh_rvh_and_metadata() {
    for metadata in [&b""[..], b"meta"] {
        let message = Message::Rndv { header: TMH, rendezvous: RVH, metadata };
        assert_eq!(emitted(&message), golden(1, &[&RVH_BYTES, metadata]));
        assert_eq!(Message::parse(&golden(1, &[&RVH_BYTES, metadata])), Ok(message));
    }
}

// conformance: B24
#[test]
fn fin_repeats_the_request_and_parses_without_rvh() {
    let message = Message::Fin { header: TMH, rendezvous: Some(RVH) };
    let request = golden(1, &[&RVH_BYTES]);
    let fin = emitted(&message);
    assert_eq!((fin[0], &fin[1..]), (2, &request[1..]));
    assert_eq!(Message::parse(&fin), Ok(message));
    let short = Message::Fin { header: TMH, rendezvous: None };
    assert_eq!(Message::parse(&golden(2, &[])), Ok(short));
    assert_eq!(emitted(&short), golden(2, &[]));
}

// conformance: B26
#[test]
fn message_without_tag_is_one_opcode_byte_and_opaque_bytes() {
    assert_eq!(Message::parse(&[0]), Ok(Message::NoTag(&[0])));
    let bytes = golden(0, &[&RVH_BYTES]);
    assert_eq!(Message::parse(&bytes), Ok(Message::NoTag(&bytes)));
}

// conformance: B32
#[test]
fn truncated_message_is_an_error_with_header_and_length() {
    assert_eq!(Message::parse(&[]), Err(TmParseError::Empty));
    let whole = golden(1, &[&RVH_BYTES]);
    for (opcode, number) in [(Opcode::Rndv, 1), (Opcode::Fin, 2), (Opcode::Eager, 3)] {
        for available in 1..whole.len() {
            let mut bytes = whole[..available].to_vec();
            bytes[0] = number;
            let truncated =
                |field, needed| Err(TmParseError::Truncated { opcode, field, needed, available });
            match Message::parse(&bytes) {
                result if available < 16 => assert_eq!(result, truncated("TMH", 16)),
                result if opcode == Opcode::Rndv => assert_eq!(result, truncated("RVH", 32)),
                result => assert!(result.is_ok()),
            }
        }
    }
    let error = Message::parse(&whole[..20]).unwrap_err().to_string();
    assert_eq!(error, "RNDV: RVH ends at byte 32, the message has 20");
}

#[test]
fn emit_into_short_buffer_is_an_error_with_both_lengths() {
    for available in 0..32 {
        let mut buf = vec![0; available];
        let error = TmEmitError { opcode: Opcode::Rndv, needed: 32, available };
        assert_eq!(TMH.emit_rndv(&RVH, &mut buf), Err(error));
    }
    let error = TMH.emit_eager(&mut [0; 3]).unwrap_err().to_string();
    assert_eq!(error, "EAGER: the headers take 16 bytes, the buffer has 3");
}

#[test]
fn messages_display_their_fields() {
    let shown = |bytes: &[u8]| Message::parse(bytes).unwrap().to_string();
    assert_eq!(shown(&[0, 1]), "NO_TAG bytes=2");
    assert_eq!(
        shown(&golden(3, &[b"hello"])),
        "EAGER tag=0x1112131415161718 app_ctx=16909060 payload=5"
    );
    assert_eq!(
        shown(&golden(1, &[&RVH_BYTES, b"m"])),
        "RNDV tag=0x1112131415161718 app_ctx=16909060 \
         payload at 0x2122232425262728+1094861636 key 0x31323334 metadata=1"
    );
    assert_eq!(shown(&golden(2, &[])), "FIN tag=0x1112131415161718 app_ctx=16909060");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 4096, ..ProptestConfig::default() })]

    /// What is accepted is emitted unchanged, except reserved bytes and the tail of a FIN, which has no
    /// meaning.
    // conformance: B18 B19 B32
    #[test]
    fn any_bytes_parse_or_fail(opcode in 0..6_u8, rest in vec(any::<u8>(), 0..64)) {
        let mut bytes = vec![opcode];
        bytes.extend(rest);
        match Message::parse(&bytes) {
            Err(error) => prop_assert!(!error.to_string().is_empty()),
            Ok(message) => {
                prop_assert!(!message.to_string().is_empty());
                let again = emitted(&message);
                if !matches!(message, Message::NoTag(_)) {
                    bytes[1..4].fill(0);
                }
                bytes.truncate(again.len());
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
