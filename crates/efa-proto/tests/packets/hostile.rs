//! Any bytes parse or give an error, without a panic; what parses can be emitted again.

use std::sync::LazyLock;

use efa_proto::{
    Connid, CtsData, EagerConnid, EmitError, Header, MediumConnid, MsgId, OpId, Packet, PacketType,
    ReqOptions, RtmKind,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::samples;

static SAMPLES: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| samples::all().iter().map(samples::Sample::bytes).collect());

/// `EagerConnid::peek` returns the same as `Packet::parse`.
fn peek(bytes: &[u8]) {
    let parsed = Packet::parse(bytes).ok();
    let expected = parsed.and_then(|packet| match packet.header {
        Header::Rtm(rtm) if rtm.kind == RtmKind::Eager => match rtm.options {
            ReqOptions { raw_address: None, cq_data: None, connid: Some(_) } => {
                Some((rtm, packet.payload))
            }
            _ => None,
        },
        _ => None,
    });
    let found = EagerConnid::peek(bytes);
    assert_eq!(found.map(|eager| (eager.rtm(), eager.payload)), expected);
    if let Some(eager) = found {
        for length in 0..=eager.rtm().len() {
            let (mut short, mut long) = (vec![0; length], vec![0; length]);
            let written = eager.emit(&mut short);
            assert_eq!(written, eager.rtm().emit(&mut long));
            assert!(written.is_err() || short == long, "{short:?}, {long:?}");
        }
    }
}

#[test]
fn eager_connid_peek_equals_packet_parse() {
    let mut found = 0;
    for sample in SAMPLES.iter() {
        for length in 0..=sample.len() {
            peek(&sample[..length]);
        }
        found += usize::from(EagerConnid::peek(sample).is_some());
    }
    let eager = |tag, payload| {
        let (msg_id, connid) = (MsgId(7), Connid(9));
        let eager = EagerConnid { msg_id, tag, connid, payload };
        let mut bytes = vec![0; 20];
        let length = eager.emit(&mut bytes).unwrap();
        bytes.truncate(length);
        bytes.extend(payload);
        assert_eq!(EagerConnid::peek(&bytes), Some(eager));
        bytes
    };
    for bytes in [eager(None, &[]), eager(Some(5), &[1, 2, 3]), eager(None, &[4; 8])] {
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            peek(&changed);
        }
        (0..bytes.len()).for_each(|length| peek(&bytes[..length]));
    }
    assert!(found > 0, "the samples have such packets");
}

/// `MediumConnid::peek` and `CtsData::peek` return the same as `Packet::parse`.
fn peek_segment(bytes: &[u8]) {
    let (mut medium, mut data) = (None, None);
    if let Ok(packet) = Packet::parse(bytes) {
        match packet.header {
            Header::Rtm(rtm) => {
                let by_connid = matches!(
                    rtm.options,
                    ReqOptions { raw_address: None, cq_data: None, connid: Some(_) }
                );
                let is_medium = matches!(rtm.kind, RtmKind::Medium { .. });
                medium = (by_connid && is_medium).then_some((rtm, packet.payload));
            }
            Header::CtsData(header @ CtsData { connid: Some(connid), .. }) => {
                data = Some((header, connid, packet.payload));
            }
            _ => {}
        }
    }
    assert_eq!(CtsData::peek(bytes), data);
    let found = MediumConnid::peek(bytes);
    assert_eq!(found.map(|medium| (medium.rtm(), medium.payload)), medium);
    if let Some(medium) = found {
        for length in 0..=medium.rtm().len() {
            let (mut short, mut long) = (vec![0; length], vec![0; length]);
            let written = medium.emit(&mut short);
            assert_eq!(written, medium.rtm().emit(&mut long));
            assert!(written.is_err() || short == long, "{short:?}, {long:?}");
        }
    }
}

#[test]
fn segment_peek_equals_packet_parse() {
    let (msg_id, connid, payload) = (MsgId(7), Connid(9), [1, 2, 3].as_slice());
    let medium = |tag| {
        let segment = MediumConnid { msg_id, tag, msg_length: 90, seg_offset: 5, connid, payload };
        let mut bytes = vec![0; segment.rtm().len()];
        segment.emit(&mut bytes).unwrap();
        bytes.extend(payload);
        assert_eq!(MediumConnid::peek(&bytes), Some(segment));
        bytes
    };
    let data = CtsData { connid: Some(connid), recv_id: OpId(4), seg_length: 3, seg_offset: 5 };
    let mut ctsdata = vec![0; data.len()];
    data.emit(&mut ctsdata).unwrap();
    ctsdata.extend(payload);
    assert_eq!(CtsData::peek(&ctsdata), Some((data, connid, payload)));
    for bytes in [medium(None), medium(Some(5)), ctsdata] {
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            peek_segment(&changed);
        }
        (0..bytes.len()).for_each(|length| peek_segment(&bytes[..length]));
    }
}

/// Parses; displays, emits and parses again what was accepted.
fn digest(bytes: &[u8]) {
    peek(bytes);
    peek_segment(bytes);
    match Packet::parse(bytes) {
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(!error.field().is_empty());
            assert_ne!(error.missing(), Some(0));
        }
        Ok(packet) => {
            assert!(!packet.to_string().is_empty());
            let mut again = vec![0; packet.header.len()];
            match packet.header.emit(&mut again) {
                Ok(len) => {
                    assert_eq!(len, again.len());
                    again.extend(packet.payload);
                    assert_eq!(Packet::parse(&again), Ok(packet));
                }
                // It parses, but has more words than may be sent.
                Err(EmitError::Count { packet_type: PacketType::Handshake, .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// A type that exists, version 4, any flags, anything behind.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let types = proptest::sample::select(PacketType::ALL);
    let small = prop_oneof![4 => 0..8_u8, 1 => any::<u8>()];
    (types, any::<[u8; 2]>(), vec(small, 0..220)).prop_map(|(packet_type, flags, rest)| {
        let mut bytes = vec![packet_type.as_u8(), 4, flags[0], flags[1]];
        bytes.extend(rest);
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 8192, ..ProptestConfig::default() })]

    // conformance: A16 A22 A222
    #[test]
    fn random_bytes_parse_or_fail(bytes in vec(any::<u8>(), 0..200)) {
        digest(&bytes);
    }

    // conformance: A16 A22 A222
    #[test]
    fn random_bytes_behind_a_base_header_parse_or_fail(bytes in plausible()) {
        digest(&bytes);
    }

    // conformance: A16 A22 A222
    #[test]
    fn mutated_samples_parse_or_fail(
        sample in any::<Index>(),
        changes in vec((any::<Index>(), any::<u8>()), 0..4),
        len in any::<Index>(),
        extra in vec(any::<u8>(), 0..16),
    ) {
        let mut bytes = sample.get(&SAMPLES).clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        digest(&bytes);
        digest(&bytes[..len.index(bytes.len())]);
        bytes.extend(extra);
        digest(&bytes);
    }
}

/// Each 32-bit and 64-bit field of each sample, set to numbers that overflow.
// conformance: A49 A222
#[test]
fn extreme_numbers_in_any_field_parse_or_fail() {
    for bytes in SAMPLES.iter() {
        for value in
            [0, 1, 0x7fff_ffff, 0x8000_0000, u64::MAX, u64::MAX - 7, 1 << 63, u64::MAX / 24]
        {
            for width in [4, 8] {
                for at in (4..bytes.len().saturating_sub(width)).step_by(4) {
                    let mut bytes = bytes.clone();
                    bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
                    digest(&bytes);
                }
            }
        }
    }
}
