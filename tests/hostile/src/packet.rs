//! Parses any bytes as a packet; what parses is displayed, emitted and parsed again.

use std::fmt::Write;

use efa_proto::{
    BaseHeader, CtsData, EagerConnid, EmitError, Header, MediumConnid, Packet, PacketType,
    ParseError, ReqOptions, Rtm, RtmKind,
};

/// Discards text.
struct Null;

impl Write for Null {
    fn write_str(&mut self, _: &str) -> std::fmt::Result {
        Ok(())
    }
}

/// The error can be displayed, and its count of missing bytes is correct.
fn refused(bytes: &[u8], error: ParseError) {
    write!(Null, "{error}").expect("Null accepts all text");
    assert!(!error.field().is_empty());
    // One byte is enough to read the type.
    if let Ok(base) = BaseHeader::parse(bytes) {
        assert_eq!(error.packet_type(), Some(base.packet_type));
    }
    if let Some(missing @ 1..=4096) = error.missing() {
        let mut longer = bytes.to_vec();
        longer.resize(bytes.len() + missing as usize, 0);
        let same = |again: &ParseError| {
            (again.field(), again.missing()) == (error.field(), error.missing())
        };
        assert!(!Packet::parse(&longer).as_ref().is_err_and(same), "{error}");
    }
}

/// The fast paths for segments give the same result as the parser.
fn peek_segment(bytes: &[u8], packet: Option<&Packet<'_>>) {
    let (mut medium, mut data) = (None, None);
    match packet {
        Some(Packet {
            header: Header::Rtm(rtm @ Rtm { kind: RtmKind::Medium { .. }, options, .. }),
            payload,
        }) if options.raw_address.is_none()
            && options.cq_data.is_none()
            && options.connid.is_some() =>
        {
            medium = Some((*rtm, *payload));
        }
        Some(Packet { header: Header::CtsData(header), payload }) => {
            data = header.connid.map(|connid| (*header, connid, *payload));
        }
        _ => {}
    }
    assert_eq!(CtsData::peek(bytes), data);
    let found = MediumConnid::peek(bytes);
    assert_eq!(found.map(|medium| (medium.rtm(), medium.payload)), medium);
    if let Some(medium) = found {
        let (mut short, mut long) = ([0; 64], [0; 64]);
        assert_eq!(medium.emit(&mut short), medium.rtm().emit(&mut long));
        assert_eq!(short, long);
    }
}

/// The fast path gives the same result as the parser, for the packets that it supports.
fn peek(bytes: &[u8], packet: Option<&Packet<'_>>) {
    const CONNID: fn(&ReqOptions) -> bool =
        |of| of.raw_address.is_none() && of.cq_data.is_none() && of.connid.is_some();
    let expected = match packet {
        Some(Packet {
            header: Header::Rtm(rtm @ Rtm { kind: RtmKind::Eager, options, .. }),
            payload,
        }) if CONNID(options) => Some((*rtm, *payload)),
        _ => None,
    };
    let found = EagerConnid::peek(bytes);
    assert_eq!(found.map(|eager| (eager.rtm(), eager.payload)), expected);
    if let Some(eager) = found {
        let (mut short, mut long) = ([0; 64], [0; 64]);
        assert_eq!(eager.emit(&mut short), eager.rtm().emit(&mut long));
        assert_eq!(short, long);
    }
}

/// A cut packet has the header of the whole one, or an error; an invalid one stays invalid.
fn cut(bytes: &[u8]) {
    // Some length, the same for the same input.
    let sum = bytes.iter().fold(0_usize, |sum, byte| sum.wrapping_mul(31) + usize::from(*byte));
    let length = sum % (bytes.len() + 1);
    let cut = Packet::parse_cut(&bytes[..length], bytes.len());
    if let (Ok(whole), Some(header)) =
        (Packet::parse(bytes), Header::parse_mandatory(&bytes[..length]))
    {
        let fields = |of: &Header<'_>| (of.packet_type(), of.msg_id(), of.tag(), of.msg_length());
        assert_eq!(fields(&header), fields(&whole.header));
    }
    match (Packet::parse(bytes), cut) {
        (Ok(whole), Ok(packet)) => {
            assert_eq!(packet.header, whole.header);
            assert!(whole.payload.starts_with(packet.payload));
        }
        (Ok(_), Err(error)) => assert!(error.missing().is_some(), "{error}"),
        (Err(_), cut) => assert!(cut.is_err(), "{cut:?} of {length} bytes"),
    }
}

/// Each field has a name of its own.
fn fields(header: &Header<'_>) {
    let mut names = Vec::new();
    header.for_each_field(|name, value| {
        assert!(!name.is_empty() && !names.contains(&name), "{name} of {header}");
        names.push(name);
        write!(Null, "{value}").expect("Null accepts all text");
    });
}

pub(crate) fn run(bytes: &[u8]) {
    cut(bytes);
    peek(bytes, Packet::parse(bytes).ok().as_ref());
    peek_segment(bytes, Packet::parse(bytes).ok().as_ref());
    let packet = match Packet::parse(bytes) {
        Ok(packet) => packet,
        Err(error) => return refused(bytes, error),
    };
    let base = BaseHeader::parse(bytes).expect("a valid packet has a valid base header");
    assert_eq!(base.packet_type, packet.packet_type());
    let _ = (base.kind_mismatch(), base.unknown_flags());
    // Formatting is slow: only one packet in eight is displayed.
    if bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)).is_multiple_of(8) {
        write!(Null, "{packet} {packet:?}").expect("Null accepts all text");
        fields(&packet.header);
    }
    let length = packet.header.len();
    let mut again = Vec::with_capacity(bytes.len());
    again.resize(length, 0);
    match packet.header.emit(&mut again) {
        Ok(len) => assert_eq!(len, length),
        // A received HANDSHAKE may have more words than can be sent.
        Err(EmitError::Count { packet_type: PacketType::Handshake, .. }) => return,
        Err(error) => panic!("{error}"),
    }
    again.extend(packet.payload);
    assert_eq!(Packet::parse(&again), Ok(packet));
}

pub(crate) fn show(bytes: &[u8]) {
    match Packet::parse(bytes) {
        Ok(packet) => say!("{packet}"),
        Err(error) => say!("invalid packet: {error}"),
    }
    run(bytes);
}
