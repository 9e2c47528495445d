//! Any bytes parse or give an error, without a panic; what parses can be emitted again.

use std::sync::LazyLock;

use efa_proto::{
    Connid, CtsData, EagerConnid, EmitError, Eor, EorForm, Header, LongReadConnid, MediumConnid,
    MsgId, OpId, Packet, PacketType, ReqOptions, RmaIov, Rtm, RtmKind,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::samples;

static SAMPLES: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| samples::all().iter().map(samples::Sample::bytes).collect());

/// `peek` of the frequent packets returns the same as `Packet::parse`.
fn peek(bytes: &[u8]) {
    let (mut eager, mut medium, mut long_read, mut data, mut eor) = Default::default();
    if let Ok(Packet { header, payload }) = Packet::parse(bytes) {
        match header {
            Header::Rtm(rtm) if is_by_connid(&rtm) => match rtm.kind {
                RtmKind::Eager => eager = Some((rtm, payload)),
                RtmKind::Medium { .. } => medium = Some((rtm, payload)),
                RtmKind::LongRead { read_iov: [_], .. } if payload.is_empty() => {
                    long_read = Some(rtm);
                }
                _ => {}
            },
            Header::CtsData(header @ CtsData { connid: Some(connid), .. }) => {
                data = Some((header, connid, payload));
            }
            Header::Eor(header @ Eor { form: EorForm::Full { connid: Some(connid) }, .. }) => {
                eor = payload.is_empty().then_some((header, connid));
            }
            _ => {}
        }
    }
    assert_eq!(CtsData::peek(bytes), data);
    assert_eq!(Eor::peek(bytes), eor);
    let found = EagerConnid::peek(bytes);
    assert_eq!(found.map(|eager| (eager.rtm(), eager.payload)), eager);
    if let Some(eager) = found {
        emits_the_same(&eager.rtm(), |into| eager.emit(into));
    }
    let found = MediumConnid::peek(bytes);
    assert_eq!(found.map(|medium| (medium.rtm(), medium.payload)), medium);
    if let Some(medium) = found {
        emits_the_same(&medium.rtm(), |into| medium.emit(into));
    }
    let found = LongReadConnid::peek(bytes);
    assert_eq!(found.as_ref().map(LongReadConnid::rtm), long_read);
    if let Some(request) = found {
        emits_the_same(&request.rtm(), |into| request.emit(into));
    }
}

fn is_by_connid(rtm: &Rtm<'_>) -> bool {
    matches!(rtm.options, ReqOptions { raw_address: None, cq_data: None, connid: Some(_) })
}

/// `emit` writes what the request writes, or gives the same error.
fn emits_the_same(rtm: &Rtm<'_>, emit: impl Fn(&mut [u8]) -> Result<usize, EmitError>) {
    for length in 0..=rtm.len() {
        let (mut short, mut long) = (vec![0; length], vec![0; length]);
        let written = emit(&mut short);
        assert_eq!(written, rtm.emit(&mut long));
        assert!(written.is_err() || short == long, "{short:?}, {long:?}");
    }
}

/// Bytes of the frequent packets.
fn frequent() -> Vec<Vec<u8>> {
    let (msg_id, connid, payload) = (MsgId(7), Connid(9), [1, 2, 3].as_slice());
    let (send_id, recv_id) = (OpId(3), OpId(4));
    let mut packets = Vec::new();
    let mut add = |emit: &dyn Fn(&mut [u8]) -> Result<usize, EmitError>, payload: &[u8]| {
        let mut bytes = vec![0; 100];
        let length = emit(&mut bytes).unwrap();
        bytes.truncate(length);
        bytes.extend(payload);
        packets.push(bytes.clone());
        bytes
    };
    for (tag, payload) in [(None, [].as_slice()), (Some(5), payload), (None, &[4; 8])] {
        let eager = EagerConnid { msg_id, tag, connid, payload };
        assert_eq!(EagerConnid::peek(&add(&|into| eager.emit(into), payload)), Some(eager));
    }
    for tag in [None, Some(5)] {
        let medium = MediumConnid { msg_id, tag, msg_length: 90, seg_offset: 5, connid, payload };
        assert_eq!(MediumConnid::peek(&add(&|into| medium.emit(into), payload)), Some(medium));
        let memory = RmaIov::new(0x7000, 90, 11);
        let request = LongReadConnid { msg_id, tag, msg_length: 90, send_id, memory, connid };
        let bytes = add(&|into| request.emit(into), &[]);
        assert_eq!(LongReadConnid::peek(&bytes), Some(request));
        let two = [memory; 2];
        let kind = RtmKind::LongRead { msg_length: 180, send_id, read_iov: &two };
        let two = Rtm { kind, ..request.rtm() };
        assert_eq!(LongReadConnid::peek(&add(&|into| two.emit(into), &[])), None);
    }
    let data = CtsData { connid: Some(connid), recv_id, seg_length: 3, seg_offset: 5 };
    let bytes = add(&|into| data.emit(into), payload);
    assert_eq!(CtsData::peek(&bytes), Some((data, connid, payload)));
    let eor = Eor { send_id, recv_id, form: EorForm::Full { connid: Some(connid) } };
    assert_eq!(Eor::peek(&add(&|into| eor.emit(into), &[])), Some((eor, connid)));
    packets
}

#[test]
fn peek_equals_packet_parse_of_all_samples_and_all_of_their_prefixes() {
    let mut found = 0;
    for sample in SAMPLES.iter() {
        (0..=sample.len()).for_each(|length| peek(&sample[..length]));
        found += usize::from(EagerConnid::peek(sample).is_some());
    }
    assert!(found > 0, "the samples have such packets");
}

#[test]
fn peek_equals_packet_parse_of_frequent_packets_with_a_bit_changed_or_bytes_missing_or_added() {
    for bytes in frequent() {
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            peek(&changed);
        }
        (0..bytes.len()).for_each(|length| peek(&bytes[..length]));
        peek(&[&bytes[..], &[0]].concat());
    }
}

/// A packet that is cut has the same header as the whole one, or an error, and an invalid one stays invalid.
fn cut(bytes: &[u8], length: usize) {
    let cut = Packet::parse_cut(&bytes[..length], bytes.len());
    match (Packet::parse(bytes), cut) {
        (Ok(whole), Ok(packet)) => {
            assert_eq!(packet.header, whole.header);
            assert_eq!(length - packet.payload.len(), bytes.len() - whole.payload.len());
        }
        (Ok(whole), Err(error)) => {
            assert!(error.missing().is_some(), "{error}");
            assert!(length < bytes.len() - whole.payload.len(), "{error}: {whole}");
        }
        (Err(_), cut) => assert!(cut.is_err(), "{cut:?} of {bytes:02x?}"),
    }
}

#[test]
fn cut_sample_has_the_header_of_the_whole_one_if_all_of_it_is_there() {
    for sample in SAMPLES.iter() {
        (0..=sample.len()).for_each(|length| cut(sample, length));
        let longer = [sample, &[0; 40][..]].concat();
        (0..=longer.len()).for_each(|length| cut(&longer, length));
    }
    let eager = &samples::named("EAGER_TAGRTM").bytes();
    assert_eq!(Packet::parse_cut(eager, 0), Packet::parse(eager), "a length that is too short");
    assert!(Packet::parse_cut(eager, usize::MAX).is_ok());
}

#[test]
fn request_that_is_cut_in_its_optional_headers_has_its_mandatory_fields() {
    let mut found = 0;
    for sample in samples::all() {
        let Some(&options) = sample.header.options().filter(|options| !options.is_empty()) else {
            continue;
        };
        let (bytes, header) = (sample.bytes(), sample.header);
        let has_read_iov = sample.layout.iter().any(|(field, _)| field.starts_with("read_iov"));
        let mandatory = header.len() - options.len();
        for length in 0..header.len() {
            let parsed = Header::parse_mandatory(&bytes[..length]);
            assert_eq!(parsed.is_some(), !has_read_iov && length >= mandatory, "{}", sample.name);
            let Some(parsed) = parsed else { continue };
            assert_eq!(parsed.packet_type(), header.packet_type());
            let fields = |of: &Header<'_>| (of.msg_id(), of.tag(), of.msg_length(), of.recv_id());
            assert_eq!(fields(&parsed), fields(&header));
            assert!(parsed.options().is_some_and(ReqOptions::is_empty));
            found += 1;
        }
    }
    assert!(found > 0);
    assert_eq!(Header::parse_mandatory(&samples::named("CTS, connid").bytes()), None);
}

#[test]
fn segment_length_of_a_cut_packet_is_compared_with_the_whole_packet() {
    let sample = samples::named("READRSP, connid").bytes();
    let error = Packet::parse_cut(&sample[..26], sample.len() + 1).unwrap_err().to_string();
    assert_eq!(error, "READRSP: seg_length is 4, the packet carries 5 bytes");
}

/// Parses; displays, emits and parses again what was accepted.
fn digest(bytes: &[u8]) {
    peek(bytes);
    for length in [bytes.len() / 4, bytes.len() / 2, bytes.len().saturating_sub(1)] {
        cut(bytes, length);
    }
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
