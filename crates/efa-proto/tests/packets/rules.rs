//! Rules that hold for all packets or for a family: types, flags, padding, counts, lengths.

use efa_proto::{
    BaseHeader, CtsFlags, EmitError, EorForm, ExtraInfo, Handshake, HandshakeFlags, Header,
    MAX_IOV, Packet, PacketFlags, PacketType, PacketTypeError, ParseError, PeerErrorForm, ReqFlags,
    ReqOptions, RmaIov, Rtw, RtwKind,
};

use crate::samples::{self, CONNID, Sample};

/// Flag bits that the parser uses; repeated here independently of the crate.
fn meaningful_flags(packet_type: PacketType) -> u16 {
    use PacketType as T;
    match packet_type {
        T::LongCtsMsgRtm | T::LongCtsTagRtm | T::DcLongCtsMsgRtm | T::DcLongCtsTagRtm => 0xa003,
        T::Cts => 0x8080,
        T::Handshake => 0x800f,
        _ if packet_type.is_req() => 0x8003,
        _ => 0x8000,
    }
}

fn is_control(sample: &Sample) -> bool {
    !sample.header.packet_type().is_req()
}

// conformance: A10 A12 A13 A14 A15 A139
#[test]
fn type_numbers_and_names() {
    let table: Vec<_> = PacketType::ALL
        .iter()
        .map(|t| {
            let tagged = if t.is_tagged() { " tagged" } else { "" };
            format!("{:3} {t}{tagged}", t.as_u8())
        })
        .collect();
    insta::assert_snapshot!(table.join("\n"));
}

// conformance: A10 A11 A12 A14 A16
#[test]
fn each_type_number_is_a_type_or_an_error() {
    for value in 0..=255 {
        match PacketType::try_from(value) {
            Ok(packet_type) => {
                assert_eq!(packet_type.as_u8(), value);
                assert!(PacketType::ALL.contains(&packet_type));
            }
            Err(error) if error.value() != value => panic!("{error} of {value}"),
            Err(PacketTypeError::Deprecated(found)) => assert!(found == value && value <= 2),
            Err(PacketTypeError::Reserved(found)) => {
                assert!(found == value && [6, 131, 132].contains(&value));
            }
            Err(PacketTypeError::Unknown(found)) => {
                let known = [1..=12, 64..=76, 128..=147].iter().any(|range| range.contains(&value));
                assert!(found == value && !known, "{value}");
            }
            Err(error) => panic!("{error:?} of {value}"),
        }
    }
}

/// Each type either parses or has a stated reason for its error.
// conformance: A11 A16
#[test]
fn zeroes_behind_each_type_parse_or_name_the_reason() {
    for value in 0..=255 {
        let mut bytes = [0; 64];
        bytes[..2].copy_from_slice(&[value, 4]);
        let parsed = Packet::parse(&bytes);
        match (PacketType::try_from(value), parsed) {
            (Err(error), parsed) => assert_eq!(parsed, Err(error.into())),
            (Ok(PacketType::Handshake), parsed) => {
                assert_eq!(parsed, Err(ParseError::ExtraInfo { found: 0 }));
            }
            (Ok(t @ (PacketType::CtsData | PacketType::ReadRsp | PacketType::AtomRsp)), parsed) => {
                let (found, payload) = (0, 40);
                let expected = ParseError::SegmentLength { packet_type: t, found, payload };
                assert_eq!(parsed, Err(expected));
            }
            (Ok(packet_type), parsed) => assert_eq!(parsed.unwrap().packet_type(), packet_type),
        }
    }
}

#[test]
fn other_protocol_versions_are_an_error() {
    for sample in samples::all() {
        for found in [0, 3, 5, 255] {
            let mut bytes = sample.bytes();
            bytes[1] = found;
            assert_eq!(Packet::parse(&bytes), Err(ParseError::Version { found }));
        }
    }
}

// conformance: A53 A62
#[test]
fn flag_bits_have_the_numbers_of_the_specification() {
    let req = [
        (ReqFlags::RAW_ADDRESS, 0x1),
        (ReqFlags::CQ_DATA, 0x2),
        (ReqFlags::MSG, 0x4),
        (ReqFlags::TAGGED, 0x8),
        (ReqFlags::RMA, 0x10),
        (ReqFlags::ATOMIC, 0x20),
        (ReqFlags::READ_NACK, 0x2000),
        (ReqFlags::CONNID, 0x8000),
    ];
    assert_eq!(req.map(|(flag, _)| flag.bits()), req.map(|(_, bits)| bits));
    assert_eq!(HandshakeFlags::HOST_ID.bits(), 0x1);
    assert_eq!(HandshakeFlags::DEVICE_VERSION.bits(), 0x2);
    assert_eq!(HandshakeFlags::USER_RECV_QP.bits(), 0x4);
    assert_eq!(HandshakeFlags::CONNID.bits(), 0x8000);
    assert_eq!(CtsFlags::EMULATED_READ.bits(), 0x80);
    assert_eq!(CtsFlags::CONNID.bits(), 0x8000);
    assert_eq!(PacketFlags::CONNID.bits(), 0x8000);
}

/// Bit 0 announces an address in a request and a host id in a HANDSHAKE.
// conformance: A18
#[test]
fn flag_bit_0_depends_on_the_packet_category() {
    let request = samples::named("EAGER_TAGRTM, with padded address");
    let handshake = samples::named("HANDSHAKE, host_id");
    assert_eq!(request.header_bytes()[2] & 1, 1);
    assert_eq!(handshake.header_bytes()[2] & 1, 1);
    assert!(request.header.raw_address().is_some() && handshake.header.raw_address().is_none());
}

// conformance: A19
#[test]
fn unknown_flag_bits_are_ignored() {
    for sample in samples::all() {
        let packet_type = sample.header.packet_type();
        for bit in (0..16).map(|bit| 1_u16 << bit) {
            let mut bytes = sample.bytes();
            let flags = u16::from_le_bytes([bytes[2], bytes[3]]);
            let sendable = meaningful_flags(packet_type) | ReqFlags::kind_of(packet_type).bits();
            assert_eq!(flags & !sendable, 0, "{}", sample.name);
            if meaningful_flags(packet_type) & bit != 0 || packet_type.is_never_sent() {
                continue;
            }
            bytes[2..4].copy_from_slice(&(flags ^ bit).to_le_bytes());
            assert_eq!(Packet::parse(&bytes), Ok(sample.packet()), "{} {bit:#x}", sample.name);
        }
    }
}

/// libfabric sends MSG on all RTM, also TAGGED on TAGRTM, ATOMIC on RTA. No release sends RMA, which the
/// specification requires on RTW and RTR; neither does this crate.
// conformance: A63
#[test]
fn kind_flags_are_emitted_as_libfabric_does() {
    for sample in samples::all() {
        let packet_type = sample.header.packet_type();
        let name = packet_type.name();
        if packet_type.is_never_sent() || !packet_type.is_req() {
            continue;
        }
        let expected = match name {
            _ if name.ends_with("MSGRTM") => 0x4,
            _ if name.ends_with("TAGRTM") => 0xc,
            _ if name.ends_with("RTA") => 0x20,
            _ => 0,
        };
        let mut bytes = sample.bytes();
        assert_eq!(bytes[2] & 0x3c, expected, "{name}");
        assert_eq!(BaseHeader::parse(&bytes).unwrap().kind_mismatch(), ReqFlags::empty());
        for (bit, flag) in [(0x4, ReqFlags::MSG), (0x8, ReqFlags::TAGGED), (0x20, ReqFlags::ATOMIC)]
        {
            bytes[2] ^= bit;
            assert_eq!(BaseHeader::parse(&bytes).unwrap().kind_mismatch(), flag, "{name}");
            assert_eq!(Packet::parse(&bytes), Ok(sample.packet()), "{name}");
            bytes[2] ^= bit;
        }
        bytes[2] |= 0x10;
        let rma = if expected == 0 { ReqFlags::empty() } else { ReqFlags::RMA };
        assert_eq!(BaseHeader::parse(&bytes).unwrap().kind_mismatch(), rma, "{name}");
    }
}

#[test]
fn base_header_reports_flags_and_kind_mismatch() {
    let bytes = samples::named("CTS, connid").bytes();
    let base = BaseHeader::parse(&bytes).unwrap();
    assert_eq!(base, BaseHeader { packet_type: PacketType::Cts, flags: 0x8000 });
    assert_eq!(base.kind_mismatch(), ReqFlags::empty());
    // These bits have other meanings in their flags.
    for &packet_type in PacketType::ALL.iter().filter(|packet_type| !packet_type.is_req()) {
        let base = BaseHeader { packet_type, flags: 0xffff };
        assert_eq!(base.kind_mismatch(), ReqFlags::empty(), "{packet_type}");
    }
    for len in 0..4 {
        assert!(BaseHeader::parse(&bytes[..len]).unwrap_err().missing().is_some());
    }
    assert_eq!(BaseHeader::parse(&[3, 5, 0, 0]), Err(ParseError::Version { found: 5 }));
    let unknown = ParseError::PacketType(PacketTypeError::Unknown(99));
    assert_eq!(BaseHeader::parse(&[99, 4, 0, 0]), Err(unknown));
}

#[test]
fn base_header_reports_the_flags_that_have_no_meaning_for_the_category() {
    for (name, meaningful) in [
        ("EAGER_TAGRTM", 0xa03f),
        ("HANDSHAKE, nothing optional", 0x800f),
        ("CTS, connid", 0x8080),
        ("CTSDATA, connid", 0x8000),
        ("EOR, short", 0x8000),
    ] {
        let mut bytes = samples::named(name).bytes();
        assert_eq!(BaseHeader::parse(&bytes).unwrap().unknown_flags(), 0, "{name}");
        bytes[2..4].copy_from_slice(&[0xff; 2]);
        assert_eq!(BaseHeader::parse(&bytes).unwrap().unknown_flags(), !meaningful, "{name}");
    }
}

/// Where the connid of each type is, when flag 0x8000 is set.
// conformance: A17 A192 A193
#[test]
fn connid_is_at_its_offset_in_each_type() {
    for sample in samples::all() {
        let has_connid = sample.header.connid() == Some(CONNID);
        let bytes = sample.bytes();
        let flag = bytes[3] & 0x80 != 0;
        assert_eq!(flag, has_connid, "{}", sample.name);
        if !has_connid {
            continue;
        }
        use PacketType as T;
        let at = match sample.header {
            Header::Cts(_) | Header::ReadRsp(_) | Header::AtomRsp(_) => 4,
            Header::Eor(_) | Header::Receipt(_) | Header::ReadNack(_) => 12,
            Header::PeerError(_) => 16,
            Header::PeerErrorReport(report) => report.len() - 4,
            Header::CtsData(_) => 24,
            Header::Handshake(handshake) => 8 + 8 * handshake.extra_info.len(),
            // The last optional header; only a read_iov can follow.
            _ => {
                let read_iov = match sample.header.packet_type() {
                    T::LongReadTagRtm | T::RuntReadMsgRtm | T::LongReadRtw => RmaIov::SIZE,
                    _ => 0,
                };
                sample.header.len() - 4 - read_iov
            }
        };
        assert_eq!(bytes[at..at + 4], CONNID.0.to_le_bytes(), "{}", sample.name);
    }
}

/// Padding and reserved fields, among them a connid without its flag, are zero when sent and
/// ignored when received.
// conformance: A97 A126
#[test]
fn padding_is_emitted_as_zero_and_ignored() {
    let mut seen = 0;
    for sample in samples::all() {
        let mut at = 0;
        for &(name, size) in &sample.layout {
            let padding = match name {
                "pad" | "reserved" | "id, padding here" => at..at + size,
                "connid, padding" | "device_version, reserved" => at + 4..at + size,
                "raw_address.pad" | "raw_address.reserved" | "raw_address.padding" => at..at + size,
                "connid" if is_control(&sample) && sample.header.connid().is_none() => {
                    at..at + size
                }
                _ => at..at,
            };
            let mut bytes = sample.bytes();
            assert!(bytes[padding.clone()].iter().all(|&byte| byte == 0), "{}", sample.name);
            seen += padding.len();
            bytes[padding].fill(0xff);
            assert_eq!(Packet::parse(&bytes), Ok(sample.packet()), "{} {name}", sample.name);
            at += size;
        }
    }
    assert!(seen > 100, "{seen}");
}

/// EOR has 12 bytes up to release 1.13 and 16 since.
// conformance: A88
#[test]
fn eor_has_12_or_16_bytes() {
    let bytes = samples::named("EOR, no connid").bytes();
    let form = |bytes: &[u8]| match Packet::parse(bytes).unwrap().header {
        Header::Eor(eor) => eor.form,
        other => panic!("{other}"),
    };
    assert_eq!(form(&bytes[..12]), EorForm::Short);
    assert_eq!(form(&bytes), EorForm::Full { connid: None });
    for len in 13..16 {
        assert_eq!(Packet::parse(&bytes[..len]).unwrap_err().field(), "connid");
    }
    // With the flag set, the connid is required.
    let with_flag = [7, 4, 0, 0x80, 1, 0, 0, 0, 2, 0, 0, 0];
    assert_eq!(Packet::parse(&with_flag).unwrap_err().missing(), Some(4));
}

/// They have no meaning.
// conformance: A71
#[test]
fn bytes_behind_read_request_are_no_error() {
    for sample in samples::reads() {
        let mut bytes = sample.bytes();
        bytes.extend(b"trailing");
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(packet.header, sample.header);
        assert_eq!(packet.payload, b"trailing");
    }
}

/// Later revisions may append fields to packets without application data.
#[test]
fn bytes_behind_control_packet_are_no_error() {
    for sample in samples::control().into_iter().chain(samples::handshakes()) {
        let by_length = match sample.header {
            Header::PeerError(_) => true,
            Header::PeerErrorReport(report) => report.form == PeerErrorForm::Marked,
            _ => sample.name == "EOR, short",
        };
        if sample.payload.is_empty() && !by_length {
            let mut bytes = sample.bytes();
            bytes.extend(b"trailing");
            let packet = Packet::parse(&bytes).unwrap();
            assert_eq!((packet.header, packet.payload), (sample.header, &b"trailing"[..]));
        }
    }
}

/// An author of libfabric has a CTS with the `msg_id` behind it.
#[test]
fn cts_of_32_bytes_is_read_as_one_of_24() {
    let sample = samples::named("CTS, connid");
    let mut bytes = sample.bytes();
    bytes.extend([7, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes.len(), 32);
    assert_eq!(Packet::parse(&bytes).unwrap().header, sample.header);
}

// conformance: A79
#[test]
fn count_of_more_than_four_vectors_is_an_error() {
    let iov = [RmaIov::new(1, 2, 3); 6];
    for n in 0..=iov.len() {
        let rtw = Rtw { rma_iov: &iov[..n], kind: RtwKind::Eager, options: ReqOptions::NONE };
        let mut bytes = vec![70, 4, 0, 0, n as u8, 0, 0, 0];
        bytes.extend(
            [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0].repeat(n),
        );
        let mut buf = [0; 200];
        if n <= MAX_IOV {
            assert_eq!(rtw.emit(&mut buf), Ok(8 + 24 * n));
            assert_eq!(buf[..8 + 24 * n], bytes);
            assert_eq!(Packet::parse(&bytes).unwrap().header, Header::Rtw(rtw));
        } else {
            let packet_type = PacketType::EagerRtw;
            let error = EmitError::Count { packet_type, field: "rma_iov", found: n };
            assert_eq!(rtw.emit(&mut buf), Err(error));
            let found = n as u32;
            let error = ParseError::Count { packet_type, field: "rma_iov_count", found };
            assert_eq!(Packet::parse(&bytes), Err(error));
        }
    }
}

/// Every count field, with values from just too large to the largest.
// conformance: A79
#[test]
fn vector_count_beyond_the_packet_is_an_error() {
    for sample in samples::all() {
        let mut at = 0;
        for &(name, size) in &sample.layout {
            if name.ends_with("iov_count") {
                for found in [5, 0x0aaa_aaab, 1 << 31, u32::MAX] {
                    let mut bytes = sample.bytes();
                    bytes[at..at + 4].copy_from_slice(&found.to_le_bytes());
                    let packet_type = sample.header.packet_type();
                    let expected = ParseError::Count { packet_type, field: name, found };
                    assert_eq!(Packet::parse(&bytes), Err(expected), "{}", sample.name);
                }
                // An allowed count, beyond the packet.
                let mut bytes = sample.header_bytes();
                bytes[at..at + 4].copy_from_slice(&4_u32.to_le_bytes());
                assert!(Packet::parse(&bytes).unwrap_err().missing().is_some(), "{}", sample.name);
            }
            at += size;
        }
    }
}

/// For `rma_iov`, too.
#[test]
fn emit_of_more_than_four_read_vectors_is_an_error() {
    let iov = [RmaIov::new(1, 2, 3); 5];
    let mut buf = [0; 400];
    for mut sample in samples::all() {
        match &mut sample.header {
            Header::Rtm(rtm) => match &mut rtm.kind {
                efa_proto::RtmKind::LongRead { read_iov, .. }
                | efa_proto::RtmKind::RuntRead { read_iov, .. } => *read_iov = iov.to_vec().leak(),
                _ => continue,
            },
            Header::Rtw(Rtw { kind: RtwKind::LongRead { read_iov, .. }, .. }) => {
                *read_iov = iov.to_vec().leak();
            }
            _ => continue,
        }
        let packet_type = sample.header.packet_type();
        let error = EmitError::Count { packet_type, field: "read_iov", found: 5 };
        assert_eq!(sample.header.emit(&mut buf), Err(error));
    }
}

/// The same in every request that has vectors to write to or read from.
#[test]
fn emit_of_more_than_four_rma_vectors_is_an_error() {
    let iov = [RmaIov::new(1, 2, 3); 5];
    let mut types = 0;
    for mut sample in samples::all() {
        match &mut sample.header {
            Header::Rtw(rtw) => rtw.rma_iov = iov.to_vec().leak(),
            Header::Rtr(rtr) => rtr.rma_iov = iov.to_vec().leak(),
            Header::Rta(rta) => rta.rma_iov = iov.to_vec().leak(),
            _ => continue,
        }
        types |= 1 << (sample.header.packet_type().as_u8() - 64);
        let packet_type = sample.header.packet_type();
        let error = EmitError::Count { packet_type, field: "rma_iov", found: 5 };
        assert_eq!(sample.header.emit(&mut [0; 400]), Err(error));
    }
    let all = [70, 71, 72, 73, 74, 75, 76, 130, 139, 140, 141];
    assert_eq!(types, all.iter().fold(0_u128, |types, number| types | 1 << (number - 64)));
}

/// Too large and too small.
// conformance: A124
#[test]
fn segment_length_must_equal_the_payload() {
    for sample in samples::control() {
        if sample.payload.is_empty() {
            continue;
        }
        let packet_type = sample.header.packet_type();
        let found = sample.payload.len() as u64;
        let mut longer = sample.bytes();
        longer.push(0);
        let expected = ParseError::SegmentLength { packet_type, found, payload: found + 1 };
        assert_eq!(Packet::parse(&longer), Err(expected));
        let shorter = &longer[..longer.len() - 2];
        let expected = ParseError::SegmentLength { packet_type, found, payload: found - 1 };
        assert_eq!(Packet::parse(shorter), Err(expected));
    }
}

/// Segments of one message may come with and without connid.
// conformance: A125
#[test]
fn ctsdata_parses_with_and_without_connid() {
    let with = samples::named("CTSDATA, connid");
    let without = samples::named("CTSDATA, no connid");
    assert_eq!((with.header.len(), without.header.len()), (32, 24));
    assert_eq!((with.header.connid(), without.header.connid()), (Some(CONNID), None));
    assert_eq!(Packet::parse(&with.bytes()).unwrap().payload, without.payload);
}

// conformance: A48
#[test]
fn nextra_p3_counts_words_plus_three() {
    let nextra_p3 = |words: usize| {
        let words = vec![0; words];
        let extra_info = ExtraInfo::new(&words).unwrap();
        let handshake = Handshake {
            extra_info,
            connid: None,
            host_id: None,
            device_version: None,
            user_recv_qp: None,
            hmem_p2p: None,
        };
        let mut buf = [0; 64];
        assert_eq!(handshake.emit(&mut buf), Ok(8 + 8 * words.len()));
        buf[4]
    };
    // Seven features take one word, sixty-five take two.
    assert_eq!(nextra_p3(7_usize.div_ceil(64)), 4);
    assert_eq!(nextra_p3(65_usize.div_ceil(64)), 5);
    let received = |nextra_p3: u8| [9, 4, 0, 0, nextra_p3, 0, 0, 0];
    assert!(Packet::parse(&received(3)).is_ok());
    for found in 0..3 {
        let error = ParseError::ExtraInfo { found };
        assert_eq!(Packet::parse(&received(found as u8)), Err(error));
    }
}

// conformance: A49
#[test]
fn handshake_parses_any_number_of_words() {
    let mut bytes = vec![9, 4, 0, 0, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0];
    let error = Packet::parse(&bytes).unwrap_err();
    let needed = 8 + 8 * (u64::from(u32::MAX) - 3);
    assert_eq!((error.field(), error.missing()), ("extra_info", Some(needed - 16)));

    for words in [3_u8, 4, 5, 100] {
        bytes[4..8].copy_from_slice(&[words + 3, 0, 0, 0]);
        bytes.resize(8 + 8 * usize::from(words), 0xaa);
        let Header::Handshake(handshake) = Packet::parse(&bytes).unwrap().header else { panic!() };
        assert_eq!(handshake.extra_info.len(), usize::from(words));
        assert_eq!(handshake.extra_info.word(2), 0xaaaa_aaaa_aaaa_aaaa);
        assert!(handshake.to_string().contains("0xaaaaaaaaaaaaaaaa"));
        // C receivers copy the words into an array of four.
        let emitted = handshake.emit(&mut [0; 1000]);
        assert_eq!(emitted.is_ok(), words <= 4, "{words}");
    }
    assert!(ExtraInfo::new(&[0; 5]).is_err());
}

// conformance: A50
#[test]
fn feature_id_selects_bit_of_word() {
    for id in 0..256 {
        let mut words = [0; 4];
        words[id / 64] = 1 << (id % 64);
        let extra_info = ExtraInfo::new(&words).unwrap();
        let set: Vec<_> = (0..300).filter(|&other| extra_info.has_bit(other)).collect();
        assert_eq!(set, [id]);
        assert!(extra_info.iter().eq(words));
    }
    assert!(ExtraInfo::new(&[]).unwrap().is_empty());
    let five = ExtraInfo::from(5);
    assert_eq!(five, ExtraInfo::new(&[5]).unwrap());
    assert!(!five.is_empty());
    // A missing word reads as zero, but is not equal to a zero word.
    for other in [&[][..], &[4], &[5, 0], &[0, 5]] {
        assert_ne!(five, ExtraInfo::new(other).unwrap());
    }
    assert_eq!(format!("{five:?}"), "ExtraInfo([0x5])");
}

/// It depends on no crate of this workspace and not on the standard library.
// conformance: A23
#[test]
fn crate_is_no_std_and_depends_on_no_other_efa_crate() {
    let manifest = include_str!("../../Cargo.toml");
    let dependencies = manifest.split("[dependencies]").nth(1).unwrap();
    let dependencies = dependencies.split("[").next().unwrap();
    assert!(!dependencies.contains("efa"), "{dependencies}");
    assert!(include_str!("../../src/lib.rs").contains("\n#![no_std]\n"));
}
