//! Fields by their names, whatever the type.

use efa_proto::{
    Header, MsgId, OpId, PacketType, PeerError, PeerErrorForm, PeerErrorReport, RawAddress,
};

use crate::samples::{self, CQ_DATA, LENGTH, MSG_ID, OFFSET, RECV_ID, SEND_ID, Sample, TAG};

/// Whether the layout has the field, by its name or by a remark.
fn has(sample: &Sample, field: &str) -> bool {
    let name = |part: &str| part.trim().trim_start_matches("here ") == field;
    sample.layout.iter().any(|(part, _)| part.split(',').any(name))
}

/// `value` if the layout has the field.
fn expected<T>(sample: &Sample, field: &str, value: T) -> Option<T> {
    has(sample, field).then_some(value)
}

#[test]
fn each_field_of_a_layout_is_returned_by_the_method_of_its_name_and_no_other_is() {
    for sample in samples::all() {
        let (header, name) = (&sample.header, &sample.name);
        if header.packet_type() != PacketType::PeerError {
            let [send_id, recv_id] = [("send_id", SEND_ID), ("recv_id", RECV_ID)]
                .map(|(field, id)| expected(&sample, field, id));
            assert_eq!(header.msg_id(), expected(&sample, "msg_id", MSG_ID), "{name}");
            assert_eq!((header.send_id(), header.recv_id()), (send_id, recv_id), "{name}");
            assert_eq!(header.failed_op_id(), None, "{name}");
        }
        assert_eq!(header.tag(), expected(&sample, "tag", TAG), "{name}");
        assert_eq!(header.msg_length(), expected(&sample, "msg_length", LENGTH), "{name}");
        assert_eq!(header.seg_offset(), expected(&sample, "seg_offset", OFFSET), "{name}");
        assert_eq!(header.cq_data(), expected(&sample, "cq_data", CQ_DATA), "{name}");
        let is_req = header.packet_type().is_req() && !header.packet_type().is_never_sent();
        assert_eq!(header.options().is_some(), is_req, "{name}");
        let address = header.options().and_then(|options| options.raw_address);
        let address: Option<RawAddress> = address.map(|(address, _)| address);
        assert_eq!(header.raw_address(), address.as_ref(), "{name}");
    }
}

#[test]
fn peer_error_names_an_operation_or_a_message_and_the_side_if_it_says_so() {
    let ids = |header: Header<'_>| {
        (header.msg_id(), header.send_id(), header.recv_id(), header.failed_op_id())
    };
    let error = |ref_kind| {
        let (op_id, prov_errno, connid) = (OpId(5), 1, None);
        ids(Header::PeerError(PeerError { op_id, ref_kind, prov_errno, connid }))
    };
    assert_eq!(error(0), (None, None, None, Some(OpId(5))));
    for of_a_message in [1, 2, 255] {
        assert_eq!(error(of_a_message), (Some(MsgId(5)), None, None, None));
    }
    let report = |emitter, op_id| {
        let (msg_id, prov_errno, connid) = (MsgId(7), 1, None);
        let form = PeerErrorForm::Marked;
        let report = PeerErrorReport { msg_id, op_id, emitter, prov_errno, connid, form };
        ids(Header::PeerErrorReport(report))
    };
    let (msg_id, id) = (Some(MsgId(7)), Some(OpId(5)));
    assert_eq!(report(1, id), (msg_id, None, id, id));
    assert_eq!(report(2, id), (msg_id, id, None, id));
    assert_eq!(report(3, id), (msg_id, None, None, id));
    assert_eq!(report(1, None), (msg_id, None, None, None));
}
