//! Optional headers of requests: sizes of the raw address, alignment, and the fields behind them.

use efa_proto::{
    Connid, Header, Packet, PacketType, ParseError, RawAddress, RawAddressForm, ReqOptions, Rtm,
    RtmKind,
};

use crate::samples::{self, ADDRESS, CONNID, CQ_DATA, MSG_ID, TAG};

/// An EAGER_TAGRTM with a raw address of `size` bytes, cq data, connid and payload.
fn with_address_size(size: u32) -> Vec<u8> {
    let mut bytes = vec![65, 4, 0x0f, 0x80];
    bytes.extend(MSG_ID.0.to_le_bytes());
    bytes.extend(TAG.to_le_bytes());
    bytes.extend(size.to_le_bytes());
    let mut address = ADDRESS.to_bytes().to_vec();
    address.resize(size as usize, 0x77);
    bytes.extend(address);
    bytes.extend(CQ_DATA.to_le_bytes());
    bytes.extend(CONNID.0.to_le_bytes());
    bytes.extend(b"payload");
    bytes
}

// conformance: A25 A65 A66 A70
#[test]
fn raw_address_of_32_bytes_or_more_is_skipped_by_its_size() {
    for size in [32, 33, 34, 35, 36, 37, 40, 64, 1000] {
        let form = if size < 36 { RawAddressForm::Short } else { RawAddressForm::Padded };
        let bytes = with_address_size(size);
        let packet = Packet::parse(&bytes).unwrap();
        let options = ReqOptions {
            raw_address: Some((ADDRESS, form)),
            cq_data: Some(CQ_DATA),
            connid: Some(CONNID),
        };
        let rtm = Rtm { msg_id: MSG_ID, tag: Some(TAG), kind: RtmKind::Eager, options };
        assert_eq!(packet, Packet { header: Header::Rtm(rtm), payload: b"payload" }, "{size}");
    }
}

// conformance: A25
#[test]
fn raw_address_below_32_bytes_is_an_error() {
    for size in [0, 1, 16, 31] {
        let packet_type = PacketType::EagerTagRtm;
        let expected = ParseError::AddressSize { packet_type, found: size };
        assert_eq!(Packet::parse(&with_address_size(size)), Err(expected));
    }
}

#[test]
fn raw_address_size_beyond_the_packet_is_an_error() {
    for size in [u32::MAX, i32::MAX as u32, 1 << 31, 100] {
        let mut bytes = with_address_size(32);
        bytes[16..20].copy_from_slice(&size.to_le_bytes());
        let error = Packet::parse(&bytes).unwrap_err();
        let (needed, available) = (20 + u64::from(size), bytes.len() as u64);
        assert_eq!((error.field(), error.missing()), ("raw_address", Some(needed - available)));
    }
}

// conformance: A70
#[test]
fn packets_parse_at_any_alignment() {
    for sample in samples::all() {
        let bytes = sample.bytes();
        for shift in 0..8 {
            let mut moved = vec![0; shift];
            moved.extend(&bytes);
            assert_eq!(Packet::parse(&moved[shift..]), Ok(sample.packet()), "{}", sample.name);
        }
    }
}

// conformance: A24
#[test]
fn raw_address_round_trips_through_bytes() {
    let bytes = ADDRESS.to_bytes();
    let mut expected = ADDRESS.gid.to_vec();
    expected.extend([0x1b, 0x1a, 0, 0, 0x2d, 0x2c, 0x2b, 0x2a]);
    expected.extend([0; 8]);
    assert_eq!(bytes[..], expected);

    let mut with_garbage = bytes.to_vec();
    with_garbage[18..20].fill(0xff);
    with_garbage[24..].fill(0xff);
    with_garbage.extend([0xff; 9]);
    assert_eq!(RawAddress::from_bytes(&with_garbage), Ok(ADDRESS));

    for len in 0..32 {
        let error = RawAddress::from_bytes(&bytes[..len]).unwrap_err();
        assert_eq!((error.field(), error.missing()), ("raw_address", Some(32 - len as u64)));
    }
}

/// The connid header has precedence over the raw address.
// conformance: A17
#[test]
fn connid_of_request_is_header_or_raw_address() {
    let connid_of = |name: &str| samples::named(name).header.connid();
    assert_eq!(connid_of("EAGER_TAGRTM"), None);
    assert_eq!(connid_of("EAGER_TAGRTM, with connid"), Some(CONNID));
    assert_eq!(connid_of("EAGER_TAGRTM, with short address"), Some(ADDRESS.connid));
    assert_eq!(connid_of("EAGER_TAGRTM, with padded address connid"), Some(CONNID));
    let sample = samples::named("COMPARE_RTA, with everything");
    assert_eq!(sample.header.raw_address(), Some(&ADDRESS));
    assert_ne!(ADDRESS.connid, CONNID);
    assert_eq!(sample.header.connid(), Some(Connid(0x0a0b_0c0d)));
}
