//! One line for each packet and each error, as a log shows them.

use efa_proto::{
    EmitError, MsgId, Packet, PacketType, PacketTypeError, ParseError, ReqOptions, Rta, RtaKind,
};

use crate::samples;

#[test]
fn each_packet_displays_as_one_line() {
    let lines: Vec<_> = samples::all().iter().map(|sample| sample.packet().to_string()).collect();
    for line in &lines {
        assert!(!line.contains('\n') && line.trim() == line, "{line}");
    }
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn data_type_and_operation_of_an_atomic_display_as_names_if_they_have_one() {
    let (msg_id, rma_iov, options) = (MsgId(7), &[][..], ReqOptions::NONE);
    let rta = |datatype, op| Rta { msg_id, rma_iov, datatype, op, kind: RtaKind::Write, options };
    assert_eq!(rta(7, 2).to_string(), "msg_id=7 rma_iov=[] datatype=UINT64 op=SUM");
    assert_eq!(
        rta(13, 18).to_string(),
        "msg_id=7 rma_iov=[] datatype=LONG_DOUBLE_COMPLEX op=MSWAP"
    );
    assert_eq!(rta(14, 19).to_string(), "msg_id=7 rma_iov=[] datatype=14 op=19");
    assert_eq!((rta(14, 0).datatype_name(), rta(0, u32::MAX).op_name()), (None, None));
}

#[test]
fn each_error_displays_as_one_line() {
    let eager = samples::named("EAGER_TAGRTM").bytes();
    let write = samples::named("EAGER_RTW").bytes();
    let with = |bytes: &[u8], at: usize, value: u8| {
        let mut bytes = bytes.to_vec();
        bytes[at] = value;
        Packet::parse(&bytes).unwrap_err().to_string()
    };
    let packet_type = PacketType::EagerRtw;
    let lines = [
        Packet::parse(&[]).unwrap_err().to_string(),
        Packet::parse(&eager[..3]).unwrap_err().to_string(),
        Packet::parse(&eager[..12]).unwrap_err().to_string(),
        with(&eager, 1, 3),
        with(&eager, 0, 1),
        with(&eager, 0, 132),
        with(&eager, 0, 200),
        with(&write, 4, 5),
        with(&samples::named("EAGER_TAGRTM, with short address").bytes(), 16, 31),
        with(&samples::named("HANDSHAKE, nothing optional").bytes(), 4, 2),
        with(&samples::named("READRSP, connid").bytes(), 16, 9),
        EmitError::BufferTooSmall { packet_type, needed: 32, available: 31 }.to_string(),
        EmitError::Count { packet_type, field: "rma_iov", found: 5 }.to_string(),
    ];
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn errors_return_packet_type_field_and_missing_bytes() {
    let error = ParseError::from(PacketTypeError::Reserved(6));
    assert_eq!((error.packet_type(), error.field(), error.missing()), (None, "type", None));
    let error = Packet::parse(&samples::named("EAGER_TAGRTM").bytes()[..12]).unwrap_err();
    assert_eq!(error.packet_type(), Some(PacketType::EagerTagRtm));
    assert_eq!((error.field(), error.missing()), ("tag", Some(4)));
}

#[test]
fn debug_output_of_a_packet_has_the_length_of_its_payload_and_no_byte_of_it() {
    for sample in samples::all() {
        let packet = sample.packet();
        let packet = Packet { payload: &[215; 300], ..packet };
        let text = format!("{packet:?}");
        assert!(text.ends_with(", payload: 300 bytes }"), "{text}");
    }
}
