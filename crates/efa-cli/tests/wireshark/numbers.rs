//! The numbers of a packet by the script's names, out of what efa-proto parsed.

use std::collections::BTreeMap;

use efa_proto::{
    AtomRsp, Cts, CtsData, Eor, Handshake, Header, OpId, Packet, PeerError, PeerErrorForm,
    ReadNack, ReadRsp, Receipt, ReqOptions, RmaIov, Rta, Rtm, RtmKind, Rtr, Rtw, RtwKind,
    UserRecvQp,
};

/// The script's names of the numbers of a packet.
pub(crate) const NUMBERS: [&str; 41] = [
    "cq_data",
    "connid",
    "credit_request",
    "datatype",
    "device_version",
    "emitter",
    "extra_info",
    "flags",
    "hmem_p2p",
    "host_id",
    "msg_id",
    "msg_length",
    "nextra_p3",
    "op",
    "op_id",
    "op_id_valid",
    "payload_length",
    "prov_errno",
    "raw_address.connid",
    "raw_address.qpn",
    "raw_address.size",
    "read_iov.addr",
    "read_iov.key",
    "read_iov.len",
    "read_iov_count",
    "recv_id",
    "recv_length",
    "ref_kind",
    "rma_iov.addr",
    "rma_iov.key",
    "rma_iov.len",
    "rma_iov_count",
    "runt_length",
    "seg_length",
    "seg_offset",
    "send_id",
    "tag",
    "type",
    "user_recv_qp.qkey",
    "user_recv_qp.qpn",
    "version",
];

/// The numbers that a packet has.
#[derive(Default)]
pub(crate) struct Numbers(BTreeMap<&'static str, Vec<u64>>);

impl Numbers {
    pub(crate) fn of(bytes: &[u8], packet: &Packet<'_>) -> Self {
        let mut numbers = Self::default();
        numbers.put("type", bytes[0]);
        numbers.put("version", bytes[1]);
        numbers.put("flags", u16::from_le_bytes([bytes[2], bytes[3]]));
        numbers.put("payload_length", packet.payload.len() as u64);
        if let Some(connid) = packet.header.connid() {
            numbers.put("connid", connid.0);
        }
        numbers.header(packet.header);
        numbers
    }

    fn put(&mut self, name: &'static str, value: impl Into<u64>) {
        assert!(NUMBERS.contains(&name), "{name}");
        self.0.entry(name).or_default().push(value.into());
    }

    fn send_id(&mut self, OpId(id): OpId) {
        self.put("send_id", id);
        self.put("op_id", id);
    }

    fn recv_id(&mut self, OpId(id): OpId) {
        self.put("recv_id", id);
        self.put("op_id", id);
    }

    fn rma_iov(&mut self, vectors: &[RmaIov]) {
        self.put("rma_iov_count", vectors.len() as u64);
        for vector in vectors {
            self.put("rma_iov.addr", vector.addr());
            self.put("rma_iov.len", vector.len());
            self.put("rma_iov.key", vector.key());
        }
    }

    fn read_iov(&mut self, vectors: &[RmaIov]) {
        self.put("read_iov_count", vectors.len() as u64);
        for vector in vectors {
            self.put("read_iov.addr", vector.addr());
            self.put("read_iov.len", vector.len());
            self.put("read_iov.key", vector.key());
        }
    }

    fn options(&mut self, options: ReqOptions) {
        if let Some((address, form)) = options.raw_address {
            self.put("raw_address.size", form.header_len() as u64 - 4);
            self.put("raw_address.qpn", address.qpn);
            self.put("raw_address.connid", address.connid.0);
        }
        if let Some(cq_data) = options.cq_data {
            self.put("cq_data", cq_data);
        }
    }

    fn header(&mut self, header: Header<'_>) {
        match header {
            Header::Rtm(rtm) => self.rtm(rtm),
            Header::Rtw(Rtw { rma_iov, kind, options }) => {
                self.rma_iov(rma_iov);
                kind.send_id().into_iter().for_each(|id| self.send_id(id));
                match kind {
                    RtwKind::LongCts { msg_length, credit_request, .. }
                    | RtwKind::DcLongCts { msg_length, credit_request, .. } => {
                        self.put("msg_length", msg_length);
                        self.put("credit_request", credit_request);
                    }
                    RtwKind::LongRead { msg_length, read_iov, .. } => {
                        self.put("msg_length", msg_length);
                        self.read_iov(read_iov);
                    }
                    _ => {}
                }
                self.options(options);
            }
            Header::Rtr(Rtr { rma_iov, msg_length, recv_id, recv_length, options, .. }) => {
                self.rma_iov(rma_iov);
                self.put("msg_length", msg_length);
                self.recv_id(recv_id);
                self.put("recv_length", recv_length);
                self.options(options);
            }
            Header::Rta(Rta { msg_id, rma_iov, datatype, op, kind, options }) => {
                self.put("msg_id", msg_id.0);
                self.rma_iov(rma_iov);
                self.put("datatype", datatype);
                self.put("op", op);
                kind.send_id().into_iter().for_each(|id| self.send_id(id));
                kind.recv_id().into_iter().for_each(|id| self.recv_id(id));
                self.options(options);
            }
            Header::Cts(Cts { send_id, recv_id, recv_length, .. }) => {
                self.send_id(send_id);
                self.recv_id(recv_id);
                self.put("recv_length", recv_length);
            }
            Header::CtsData(CtsData { recv_id, seg_length, seg_offset, .. }) => {
                self.recv_id(recv_id);
                self.put("seg_length", seg_length);
                self.put("seg_offset", seg_offset);
            }
            Header::ReadRsp(ReadRsp { recv_id, send_id, seg_length, .. }) => {
                self.recv_id(recv_id);
                self.send_id(send_id);
                self.put("seg_length", seg_length);
            }
            Header::AtomRsp(AtomRsp { recv_id, seg_length, .. }) => {
                self.recv_id(recv_id);
                self.put("seg_length", seg_length);
            }
            Header::Eor(Eor { send_id, recv_id, .. })
            | Header::ReadNack(ReadNack { send_id, recv_id, .. }) => {
                self.send_id(send_id);
                self.recv_id(recv_id);
            }
            Header::Receipt(Receipt { send_id, msg_id, .. }) => {
                self.send_id(send_id);
                self.put("msg_id", msg_id.0);
            }
            Header::PeerError(PeerError { op_id, ref_kind, prov_errno, .. }) => {
                self.put("op_id", op_id.0);
                self.put("ref_kind", ref_kind);
                self.put("prov_errno", prov_errno);
            }
            Header::PeerErrorReport(report) => {
                self.put("msg_id", report.msg_id.0);
                self.put("op_id", report.op_id.map_or(u32::MAX, |id| id.0));
                if report.form == PeerErrorForm::Flagged {
                    self.put("op_id_valid", u8::from(report.op_id.is_some()));
                }
                self.put("emitter", report.emitter);
                self.put("prov_errno", report.prov_errno);
            }
            Header::Handshake(handshake) => self.handshake(handshake),
            Header::NeverSent(_) => {}
            other => panic!("a header that this test doesn't know: {other}"),
        }
    }

    fn rtm(&mut self, Rtm { msg_id, tag, kind, options }: Rtm<'_>) {
        self.put("msg_id", msg_id.0);
        tag.into_iter().for_each(|tag| self.put("tag", tag));
        kind.send_id().into_iter().for_each(|id| self.send_id(id));
        match kind {
            RtmKind::Medium { msg_length, seg_offset }
            | RtmKind::DcMedium { msg_length, seg_offset, .. } => {
                self.put("msg_length", msg_length);
                self.put("seg_offset", seg_offset);
            }
            RtmKind::LongCts { msg_length, credit_request, .. }
            | RtmKind::DcLongCts { msg_length, credit_request, .. } => {
                self.put("msg_length", msg_length);
                self.put("credit_request", credit_request);
            }
            RtmKind::LongRead { msg_length, read_iov, .. } => {
                self.put("msg_length", msg_length);
                self.read_iov(read_iov);
            }
            RtmKind::RuntRead { msg_length, seg_offset, runt_length, read_iov, .. } => {
                self.put("msg_length", msg_length);
                self.put("seg_offset", seg_offset);
                self.put("runt_length", runt_length);
                self.read_iov(read_iov);
            }
            _ => {}
        }
        self.options(options);
    }

    fn handshake(&mut self, handshake: Handshake<'_>) {
        self.put("nextra_p3", handshake.extra_info.len() as u64 + 3);
        handshake.extra_info.iter().for_each(|word| self.put("extra_info", word));
        handshake.host_id.into_iter().for_each(|id| self.put("host_id", id));
        let device_version = handshake.device_version;
        device_version.into_iter().for_each(|version| self.put("device_version", version));
        if let Some(UserRecvQp { qpn, qkey }) = handshake.user_recv_qp {
            self.put("user_recv_qp.qpn", qpn);
            self.put("user_recv_qp.qkey", qkey);
        }
        let hmem_p2p = handshake.hmem_p2p;
        hmem_p2p.into_iter().for_each(|supported| self.put("hmem_p2p", u8::from(supported)));
    }

    pub(crate) fn get(&self, name: &str) -> Vec<String> {
        self.0.get(name).into_iter().flatten().map(u64::to_string).collect()
    }
}
