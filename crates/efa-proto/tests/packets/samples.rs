//! One packet of every type and form, and where its fields are.
//!
//! Each byte of a number is different, so that a swapped or shifted field shows in the dump. `layout` is
//! taken from the specification, not from the crate. A name up to `.`, `[` or `,` is the field that an
//! error names if the packet is cut there.

use efa_proto::*;

/// Field name and length in bytes.
pub(crate) type Field = (&'static str, usize);

/// The fields in wire order.
pub(crate) type Layout = Vec<Field>;

pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) header: Header<'static>,
    pub(crate) payload: &'static [u8],
    pub(crate) layout: Layout,
}

impl Sample {
    /// The header as it is emitted.
    pub(crate) fn header_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0xee; self.header.len()];
        assert_eq!(self.header.emit(&mut bytes), Ok(bytes.len()), "{}", self.name);
        bytes
    }

    /// Header and payload.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        [&self.header_bytes(), self.payload].concat()
    }

    pub(crate) fn packet(&self) -> Packet<'static> {
        Packet { header: self.header, payload: self.payload }
    }
}

pub(crate) const MSG_ID: MsgId = MsgId(0x1112_1314);
pub(crate) const TAG: Tag = 0x2122_2324_2526_2728;
pub(crate) const LENGTH: u64 = 0x3132_3334_3536_3738;
pub(crate) const OFFSET: u64 = 0x4142_4344_4546_4748;
pub(crate) const SEND_ID: OpId = OpId(0x5152_5354);
pub(crate) const RECV_ID: OpId = OpId(0x6162_6364);
pub(crate) const CREDITS: u32 = 0x7172_7374;
pub(crate) const RUNT: u64 = 0x8182_8384_8586_8788;
pub(crate) const CQ_DATA: u64 = 0xc1c2_c3c4_c5c6_c7c8;
pub(crate) const CONNID: Connid = Connid(0x0a0b_0c0d);
pub(crate) const IOV: [RmaIov; 2] = [
    RmaIov::new(0xa1a2_a3a4_a5a6_a7a8, 0xb1b2_b3b4_b5b6_b7b8, 0xd1d2_d3d4_d5d6_d7d8),
    RmaIov::new(0x0102_0304_0506_0708, 0x1000, 0x99),
];
pub(crate) const READ_IOV: [RmaIov; 1] =
    [RmaIov::new(0xe1e2_e3e4_e5e6_e7e8, 0xf1f2_f3f4_f5f6_f7f8, 0x9192_9394_9596_9798)];
pub(crate) const ADDRESS: RawAddress = RawAddress {
    gid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8],
    qpn: 0x1a1b,
    connid: Connid(0x2a2b_2c2d),
};

const DATA: &[u8] = b"data";

const BASE: [(&str, usize); 3] = [("type", 1), ("version", 1), ("flags", 2)];
const IOV_0: [(&str, usize); 3] =
    [("rma_iov[0].addr", 8), ("rma_iov[0].len", 8), ("rma_iov[0].key", 8)];
const IOV_1: [(&str, usize); 3] =
    [("rma_iov[1].addr", 8), ("rma_iov[1].len", 8), ("rma_iov[1].key", 8)];
const READ_IOV_0: [(&str, usize); 3] =
    [("read_iov[0].addr", 8), ("read_iov[0].len", 8), ("read_iov[0].key", 8)];

fn layout(parts: &[&[(&'static str, usize)]]) -> Layout {
    let mut layout = BASE.to_vec();
    layout.extend(parts.concat());
    layout
}

fn sample(header: Header<'static>, payload: &'static [u8], layout: Layout) -> Sample {
    Sample { name: header.packet_type().to_string(), header, payload, layout }
}

impl Sample {
    fn named(self, what: &str) -> Self {
        Self { name: format!("{}, {what}", self.name), ..self }
    }
}

/// All samples.
pub(crate) fn all() -> Vec<Sample> {
    [
        messages(),
        writes(),
        reads(),
        atomics(),
        control(),
        handshakes(),
        with_options(),
        never_sent(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The sample of this name.
pub(crate) fn named(name: &str) -> Sample {
    all().into_iter().find(|sample| sample.name == name).unwrap_or_else(|| panic!("no {name}"))
}

pub(crate) fn messages() -> Vec<Sample> {
    let longcts = [("msg_id", 4), ("msg_length", 8), ("send_id", 4), ("credit_request", 4)];
    let longread = [("msg_id", 4), ("msg_length", 8), ("send_id", 4), ("read_iov_count", 4)];
    let runt = [("seg_offset", 8), ("runt_length", 8)];
    let (msg_length, seg_offset, send_id, credit_request) = (LENGTH, OFFSET, SEND_ID, CREDITS);
    let (read_nack, runt_length, read_iov) = (false, RUNT, &READ_IOV[..]);
    let kinds: [(RtmKind<'_>, Layout, &[Field]); 8] = [
        (RtmKind::Eager, layout(&[&[("msg_id", 4)]]), &[]),
        (
            RtmKind::Medium { msg_length, seg_offset },
            layout(&[&[("msg_id", 4), ("msg_length", 8), ("seg_offset", 8)]]),
            &[],
        ),
        (
            RtmKind::LongCts { msg_length, send_id, credit_request, read_nack },
            layout(&[&longcts]),
            &[],
        ),
        (RtmKind::LongRead { msg_length, send_id, read_iov }, layout(&[&longread]), &READ_IOV_0),
        (
            RtmKind::DcEager { send_id },
            layout(&[&[("msg_id", 4), ("send_id", 4), ("pad", 4)]]),
            &[],
        ),
        (
            RtmKind::DcMedium { send_id, msg_length, seg_offset },
            layout(&[&[
                ("msg_id", 4),
                ("send_id", 4),
                ("pad", 4),
                ("msg_length", 8),
                ("seg_offset", 8),
            ]]),
            &[],
        ),
        (
            RtmKind::DcLongCts { msg_length, send_id, credit_request, read_nack },
            layout(&[&longcts]),
            &[],
        ),
        (
            RtmKind::RuntRead { msg_length, send_id, seg_offset, runt_length, read_iov },
            layout(&[&longread, &runt]),
            &READ_IOV_0,
        ),
    ];
    let mut samples = Vec::new();
    for (kind, fixed, behind_options) in kinds {
        for tag in [None, Some(TAG)] {
            let mut layout = fixed.clone();
            layout.extend(tag.map(|_| ("tag", 8)));
            layout.extend(behind_options);
            let rtm = Rtm { msg_id: MSG_ID, tag, kind, options: ReqOptions::NONE };
            samples.push(sample(Header::Rtm(rtm), DATA, layout));
        }
    }
    let read_nack = true;
    let answer = RtmKind::LongCts { msg_length, send_id, credit_request, read_nack };
    let dc_answer = RtmKind::DcLongCts { msg_length, send_id, credit_request, read_nack };
    for kind in [answer, dc_answer] {
        let rtm = Rtm { msg_id: MSG_ID, tag: None, kind, options: ReqOptions::NONE };
        let sample = sample(Header::Rtm(rtm), b"", layout(&[&longcts]));
        samples.push(sample.named("after READ_NACK"));
    }
    samples
}

pub(crate) fn writes() -> Vec<Sample> {
    let (rma_iov, options) = (&IOV[..], ReqOptions::NONE);
    let (msg_length, send_id, credit_request, read_iov) = (LENGTH, SEND_ID, CREDITS, &READ_IOV[..]);
    let count = [("rma_iov_count", 4)];
    let long = [("rma_iov_count", 4), ("msg_length", 8), ("send_id", 4)];
    let credits = [("credit_request", 4)];
    let rtw = |kind, rma_iov| Header::Rtw(Rtw { rma_iov, kind, options });
    let longcts = RtwKind::LongCts { msg_length, send_id, credit_request };
    let dc_longcts = RtwKind::DcLongCts { msg_length, send_id, credit_request };
    let longread = RtwKind::LongRead { msg_length, send_id, read_iov };
    vec![
        sample(rtw(RtwKind::Eager, &[]), b"", layout(&[&count])).named("no rma_iov, no data"),
        sample(rtw(RtwKind::Eager, &IOV[..1]), DATA, layout(&[&count, &IOV_0])),
        sample(rtw(RtwKind::Eager, rma_iov), DATA, layout(&[&count, &IOV_0, &IOV_1]))
            .named("two rma_iov"),
        sample(
            rtw(RtwKind::DcEager { send_id }, rma_iov),
            DATA,
            layout(&[&count, &[("send_id", 4), ("pad", 4)], &IOV_0, &IOV_1]),
        ),
        sample(rtw(longcts, rma_iov), DATA, layout(&[&long, &credits, &IOV_0, &IOV_1])),
        sample(rtw(dc_longcts, rma_iov), DATA, layout(&[&long, &credits, &IOV_0, &IOV_1])),
        sample(
            rtw(longread, rma_iov),
            b"",
            layout(&[&long, &[("read_iov_count", 4)], &IOV_0, &IOV_1, &READ_IOV_0]),
        ),
    ]
}

pub(crate) fn reads() -> Vec<Sample> {
    let fixed = [("rma_iov_count", 4), ("msg_length", 8), ("recv_id", 4), ("recv_length", 4)];
    let rtr = |kind| {
        Header::Rtr(Rtr {
            rma_iov: &IOV,
            kind,
            msg_length: LENGTH,
            recv_id: RECV_ID,
            recv_length: CREDITS,
            options: ReqOptions::NONE,
        })
    };
    vec![
        sample(rtr(RtrKind::Short), b"", layout(&[&fixed, &IOV_0, &IOV_1])),
        sample(rtr(RtrKind::LongCts), b"", layout(&[&fixed, &IOV_0, &IOV_1])),
    ]
}

pub(crate) fn atomics() -> Vec<Sample> {
    let fixed = [("msg_id", 4), ("rma_iov_count", 4), ("datatype", 4), ("op", 4)];
    // The error names the shared field `id`.
    let kinds = [
        (RtaKind::Write, "id, padding here"),
        (RtaKind::Fetch { recv_id: RECV_ID }, "id, here recv_id"),
        (RtaKind::Compare { recv_id: RECV_ID }, "id, here recv_id"),
        (RtaKind::DcWrite { send_id: SEND_ID }, "id, here send_id"),
    ];
    let mut samples = Vec::new();
    for (kind, id) in kinds {
        let rta = Rta {
            msg_id: MSG_ID,
            rma_iov: &IOV[..1],
            datatype: 0x0708_090a,
            op: 0x0b0c_0d0e,
            kind,
            options: ReqOptions::NONE,
        };
        samples.push(sample(Header::Rta(rta), DATA, layout(&[&fixed, &[(id, 4)], &IOV_0])));
    }
    samples
}

/// All packets that are not requests, except HANDSHAKE; with and without connid.
pub(crate) fn control() -> Vec<Sample> {
    let mut samples = Vec::new();
    for connid in [None, Some(CONNID)] {
        let word = ("connid", 4);
        let forms = [
            sample(
                Header::Cts(Cts {
                    connid,
                    send_id: SEND_ID,
                    recv_id: RECV_ID,
                    recv_length: LENGTH,
                    emulated_read: false,
                }),
                b"",
                layout(&[&[word, ("send_id", 4), ("recv_id", 4), ("recv_length", 8)]]),
            ),
            sample(
                Header::CtsData(CtsData {
                    connid,
                    recv_id: RECV_ID,
                    seg_length: DATA.len() as u64,
                    seg_offset: OFFSET,
                }),
                DATA,
                {
                    let mut layout =
                        layout(&[&[("recv_id", 4), ("seg_length", 8), ("seg_offset", 8)]]);
                    layout.extend(connid.map(|_| ("connid, padding", 8)));
                    layout
                },
            ),
            sample(
                Header::ReadRsp(ReadRsp {
                    connid,
                    recv_id: RECV_ID,
                    send_id: SEND_ID,
                    seg_length: DATA.len() as u64,
                }),
                DATA,
                layout(&[&[word, ("recv_id", 4), ("send_id", 4), ("seg_length", 8)]]),
            ),
            sample(
                Header::Eor(Eor {
                    send_id: SEND_ID,
                    recv_id: RECV_ID,
                    form: EorForm::Full { connid },
                }),
                b"",
                layout(&[&[("send_id", 4), ("recv_id", 4), word]]),
            ),
            sample(
                Header::AtomRsp(AtomRsp {
                    connid,
                    recv_id: RECV_ID,
                    seg_length: DATA.len() as u64,
                }),
                DATA,
                layout(&[&[word, ("reserved", 4), ("recv_id", 4), ("seg_length", 8)]]),
            ),
            sample(
                Header::Receipt(Receipt { send_id: SEND_ID, msg_id: MSG_ID, connid }),
                b"",
                layout(&[&[("send_id", 4), ("msg_id", 4), word]]),
            ),
            sample(
                Header::ReadNack(ReadNack { send_id: SEND_ID, recv_id: RECV_ID, connid }),
                b"",
                layout(&[&[("send_id", 4), ("recv_id", 4), word]]),
            ),
            sample(
                Header::PeerError(PeerError {
                    op_id: SEND_ID,
                    ref_kind: 2,
                    prov_errno: 0x0000_100b,
                    connid,
                }),
                b"",
                layout(&[&[("op_id", 4), ("ref_kind", 1), ("pad", 3), ("prov_errno", 4), word]]),
            ),
        ];
        let what = if connid.is_some() { "connid" } else { "no connid" };
        samples.extend(forms.map(|sample| sample.named(what)));
        samples.extend(peer_error_reports(connid));
    }
    samples.push(
        sample(
            Header::Cts(Cts {
                connid: Some(CONNID),
                send_id: SEND_ID,
                recv_id: RECV_ID,
                recv_length: LENGTH,
                emulated_read: true,
            }),
            b"",
            layout(&[&[("connid", 4), ("send_id", 4), ("recv_id", 4), ("recv_length", 8)]]),
        )
        .named("emulated read"),
    );
    samples.push(
        sample(
            Header::Eor(Eor { send_id: SEND_ID, recv_id: RECV_ID, form: EorForm::Short }),
            b"",
            layout(&[&[("send_id", 4), ("recv_id", 4)]]),
        )
        .named("short"),
    );
    samples
}

/// Both later forms of PEER_ERROR, with and without an operation.
fn peer_error_reports(connid: Option<Connid>) -> Vec<Sample> {
    let mut samples = Vec::new();
    for op_id in [Some(SEND_ID), None] {
        for form in [PeerErrorForm::Marked, PeerErrorForm::Flagged] {
            let flagged = form == PeerErrorForm::Flagged;
            let mut fields = layout(&[&[("msg_id", 4), ("op_id", 4)]]);
            fields.extend(flagged.then_some(("op_id_valid", 4)));
            fields.extend([("emitter", 4), ("prov_errno", 4), ("connid", 4)]);
            let (msg_id, emitter, prov_errno) = (MSG_ID, 2, 0x0000_100b);
            let report = PeerErrorReport { msg_id, op_id, emitter, prov_errno, connid, form };
            let what = format!(
                "{} bytes{}{}",
                report.len(),
                op_id.map_or(" no operation", |_| ""),
                connid.map_or("", |_| " connid"),
            );
            samples.push(sample(Header::PeerErrorReport(report), b"", fields).named(&what));
        }
    }
    samples
}

/// Each set of optional fields, with one word; then other numbers of words.
pub(crate) fn handshakes() -> Vec<Sample> {
    let word = 0x0000_0000_0000_017b_u64;
    let mut samples = Vec::new();
    for set in 0..32 {
        let has = |bit: u8| set >> bit & 1 == 1;
        let mut fields = layout(&[&[("nextra_p3", 4), ("extra_info[0]", 8)]]);
        fields.extend(has(3).then_some(("connid, padding", 8)));
        fields.extend(has(2).then_some(("host_id", 8)));
        fields.extend(has(1).then_some(("device_version, reserved", 8)));
        fields.extend(
            has(0)
                .then_some([("user_recv_qp.qpn", 4), ("user_recv_qp.qkey", 4)])
                .into_iter()
                .flatten(),
        );
        fields.extend(has(4).then_some(("hmem_p2p, reserved", 8)));
        let handshake = Handshake {
            extra_info: word.into(),
            connid: has(3).then_some(CONNID),
            host_id: has(2).then_some(0x5b5c_5d5e_5f60_6162),
            device_version: has(1).then_some(0x0000_efa1),
            user_recv_qp: has(0).then_some(UserRecvQp { qpn: 0x6b6c, qkey: 0x7b7c_7d7e }),
            hmem_p2p: has(4).then_some(true),
        };
        let names = ["user_recv_qp", "device_version", "host_id", "connid", "hmem_p2p"];
        let present: Vec<_> = [3, 2, 1, 0, 4]
            .into_iter()
            .filter(|&bit| has(bit))
            .map(|b| names[b as usize])
            .collect();
        let what = if present.is_empty() { "nothing optional".into() } else { present.join(" ") };
        samples.push(sample(Header::Handshake(handshake), b"", fields).named(&what));
    }
    let words: [(&[u64], &[Field]); 3] = [
        (&[], &[]),
        (&[word, 0x1], &[("extra_info[0]", 8), ("extra_info[1]", 8)]),
        (
            &[1, 2, 3, 4],
            &[
                ("extra_info[0]", 8),
                ("extra_info[1]", 8),
                ("extra_info[2]", 8),
                ("extra_info[3]", 8),
            ],
        ),
    ];
    for (words, fields) in words {
        let handshake = Handshake {
            extra_info: ExtraInfo::new(words).unwrap(),
            connid: None,
            host_id: None,
            device_version: None,
            user_recv_qp: None,
            hmem_p2p: None,
        };
        let layout = layout(&[&[("nextra_p3", 4)], fields]);
        let what = format!("{} words", words.len());
        samples.push(sample(Header::Handshake(handshake), b"", layout).named(&what));
    }
    samples
}

/// EAGER_TAGRTM with every set of optional headers and both lengths of raw address, and one
/// request of each other family with all of them, to show where they go.
pub(crate) fn with_options() -> Vec<Sample> {
    let mut samples = Vec::new();
    for form in [None, Some(RawAddressForm::Short), Some(RawAddressForm::Padded)] {
        for cq_data in [None, Some(CQ_DATA)] {
            for connid in [None, Some(CONNID)] {
                let options =
                    ReqOptions { raw_address: form.map(|form| (ADDRESS, form)), cq_data, connid };
                let rtm = Rtm { msg_id: MSG_ID, tag: Some(TAG), kind: RtmKind::Eager, options };
                let mut fields = layout(&[&[("msg_id", 4), ("tag", 8)]]);
                fields.extend(option_layout(&options));
                let what = match form {
                    None => "",
                    Some(RawAddressForm::Short) => " short address",
                    Some(RawAddressForm::Padded) => " padded address",
                };
                let what = format!(
                    "with{what}{}{}",
                    cq_data.map_or("", |_| " cq_data"),
                    connid.map_or("", |_| " connid"),
                );
                if !options.is_empty() {
                    samples.push(sample(Header::Rtm(rtm), DATA, fields).named(&what));
                }
            }
        }
    }
    let everything = ReqOptions {
        raw_address: Some((ADDRESS, RawAddressForm::Padded)),
        cq_data: Some(CQ_DATA),
        connid: Some(CONNID),
    };
    for (mut sample, behind) in [
        (messages().swap_remove(7), 3),
        (messages().swap_remove(14), 3),
        (writes().swap_remove(6), 3),
        (reads().swap_remove(0), 0),
        (atomics().swap_remove(2), 0),
    ] {
        match &mut sample.header {
            Header::Rtm(Rtm { options, .. })
            | Header::Rtw(Rtw { options, .. })
            | Header::Rtr(Rtr { options, .. })
            | Header::Rta(Rta { options, .. }) => *options = everything,
            other => unreachable!("{other}"),
        }
        let at = sample.layout.len() - behind;
        sample.layout.splice(at..at, option_layout(&everything));
        samples.push(sample.named("with everything"));
    }
    samples
}

fn option_layout(options: &ReqOptions) -> Layout {
    let mut fields = Layout::new();
    if let Some((_, form)) = options.raw_address {
        fields.extend([
            ("raw_address_size", 4),
            ("raw_address.gid", 16),
            ("raw_address.qpn", 2),
            ("raw_address.pad", 2),
            ("raw_address.connid", 4),
            ("raw_address.reserved", 8),
        ]);
        fields.extend((form == RawAddressForm::Padded).then_some(("raw_address.padding", 4)));
    }
    fields.extend(options.cq_data.map(|_| ("cq_data", 8)));
    fields.extend(options.connid.map(|_| ("connid", 4)));
    fields
}

/// Packets that no release sends. They can be made from bytes only.
pub(crate) fn never_sent() -> Vec<Sample> {
    let sizes = [
        (PacketType::RuntCtsMsgRtm, 40),
        (PacketType::RuntCtsTagRtm, 48),
        (PacketType::RuntCtsRtw, 40),
        (PacketType::RuntReadRtw, 40),
    ];
    let mut samples = Vec::new();
    for (packet_type, size) in sizes {
        let bytes: Vec<u8> =
            [packet_type.as_u8(), 4, 0, 0].into_iter().chain(4..).take(size).collect();
        let header = Packet::parse(bytes.leak()).unwrap().header;
        samples.push(sample(header, DATA, layout(&[&[("header", size - 4)]])));
    }
    samples
}
