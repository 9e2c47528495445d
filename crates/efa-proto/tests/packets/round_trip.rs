//! Any header that can be built is parsed from its bytes.

use efa_proto::*;
use proptest::array::uniform16;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// The fields of a header; `variant` selects those that are used.
#[derive(Clone, Debug)]
struct Parts {
    variant: usize,
    tag: Option<u64>,
    options: ReqOptions,
    rma_iov: Vec<RmaIov>,
    read_iov: Vec<RmaIov>,
    lengths: [u64; 3],
    ids: [u32; 4],
    connid: Option<Connid>,
    flag: bool,
    words: Vec<u64>,
    payload: Vec<u8>,
}

const VARIANTS: usize = 28;

fn iov() -> impl Strategy<Value = Vec<RmaIov>> {
    vec(any::<[u64; 3]>().prop_map(|[addr, len, key]| RmaIov::new(addr, len, key)), 0..=MAX_IOV)
}

fn options() -> impl Strategy<Value = ReqOptions> {
    let form = prop_oneof![Just(RawAddressForm::Short), Just(RawAddressForm::Padded)];
    let address = (uniform16(any::<u8>()), any::<u16>(), any::<u32>())
        .prop_map(|(gid, qpn, connid)| RawAddress { gid, qpn, connid: Connid(connid) });
    (option::of((address, form)), option::of(any::<u64>()), option::of(any::<u32>())).prop_map(
        |(raw_address, cq_data, connid)| ReqOptions {
            raw_address,
            cq_data,
            connid: connid.map(Connid),
        },
    )
}

prop_compose! {
    fn parts()(
        variant in 0..VARIANTS,
        tag in any::<Option<u64>>(),
        options in options(),
        rma_iov in iov(),
        read_iov in iov(),
        lengths in any::<[u64; 3]>(),
        ids in any::<[u32; 4]>(),
        connid in any::<Option<u32>>(),
        flag in any::<bool>(),
        words in vec(any::<u64>(), 0..=MAX_IOV),
        payload in vec(any::<u8>(), 0..40),
    ) -> Parts {
        let connid = connid.map(Connid);
        Parts { variant, tag, options, rma_iov, read_iov, lengths, ids, connid, flag, words, payload }
    }
}

impl Parts {
    fn rtm<'a>(&self, kind: RtmKind<'a>) -> Header<'a> {
        Header::Rtm(Rtm { msg_id: MsgId(self.ids[0]), tag: self.tag, kind, options: self.options })
    }

    fn rtw<'a>(&'a self, kind: RtwKind<'a>) -> Header<'a> {
        Header::Rtw(Rtw { rma_iov: &self.rma_iov, kind, options: self.options })
    }

    fn rta(&self, kind: RtaKind) -> Header<'_> {
        let [msg_id, datatype, op, _] = self.ids;
        let (msg_id, rma_iov, options) = (MsgId(msg_id), &self.rma_iov[..], self.options);
        Header::Rta(Rta { msg_id, rma_iov, datatype, op, kind, options })
    }

    fn rtr(&self, kind: RtrKind) -> Header<'_> {
        Header::Rtr(Rtr {
            rma_iov: &self.rma_iov,
            kind,
            msg_length: self.lengths[0],
            recv_id: OpId(self.ids[0]),
            recv_length: self.ids[1],
            options: self.options,
        })
    }

    fn header(&self) -> Header<'_> {
        let [msg_length, seg_offset, runt_length] = self.lengths;
        let (send_id, recv_id) = (OpId(self.ids[1]), OpId(self.ids[2]));
        let (credit_request, read_nack, read_iov) = (self.ids[3], self.flag, &self.read_iov[..]);
        let (connid, seg_length) = (self.connid, self.payload.len() as u64);
        match self.variant {
            0 => self.rtm(RtmKind::Eager),
            1 => self.rtm(RtmKind::Medium { msg_length, seg_offset }),
            2 => self.rtm(RtmKind::LongCts { msg_length, send_id, credit_request, read_nack }),
            3 => self.rtm(RtmKind::LongRead { msg_length, send_id, read_iov }),
            4 => self.rtm(RtmKind::DcEager { send_id }),
            5 => self.rtm(RtmKind::DcMedium { send_id, msg_length, seg_offset }),
            6 => self.rtm(RtmKind::DcLongCts { msg_length, send_id, credit_request, read_nack }),
            7 => {
                let (seg_offset, runt_length) = (seg_offset, runt_length);
                let kind =
                    RtmKind::RuntRead { msg_length, send_id, seg_offset, runt_length, read_iov };
                self.rtm(kind)
            }
            8 => self.rtw(RtwKind::Eager),
            9 => self.rtw(RtwKind::DcEager { send_id }),
            10 => self.rtw(RtwKind::LongCts { msg_length, send_id, credit_request }),
            11 => self.rtw(RtwKind::DcLongCts { msg_length, send_id, credit_request }),
            12 => self.rtw(RtwKind::LongRead { msg_length, send_id, read_iov }),
            13 => self.rtr(RtrKind::Short),
            14 => self.rtr(RtrKind::LongCts),
            15 => self.rta(RtaKind::Write),
            16 => self.rta(RtaKind::Fetch { recv_id }),
            17 => self.rta(RtaKind::Compare { recv_id }),
            18 => self.rta(RtaKind::DcWrite { send_id }),
            19 => Header::Cts(Cts {
                connid,
                send_id,
                recv_id,
                recv_length: msg_length,
                emulated_read: self.flag,
            }),
            20 => Header::CtsData(CtsData { connid, recv_id, seg_length, seg_offset }),
            21 => Header::ReadRsp(ReadRsp { connid, recv_id, send_id, seg_length }),
            22 => {
                let short = self.flag && self.payload.is_empty();
                let form = if short { EorForm::Short } else { EorForm::Full { connid } };
                Header::Eor(Eor { send_id, recv_id, form })
            }
            23 => Header::AtomRsp(AtomRsp { connid, recv_id, seg_length }),
            24 => Header::Handshake(Handshake {
                extra_info: ExtraInfo::new(&self.words).unwrap(),
                connid,
                host_id: self.tag,
                device_version: self.flag.then_some(self.ids[0]),
                user_recv_qp: self
                    .options
                    .cq_data
                    .map(|_| UserRecvQp { qpn: self.ids[2], qkey: self.ids[3] }),
                hmem_p2p: self.options.connid.map(|_| self.flag),
            }),
            25 => Header::Receipt(Receipt { send_id, msg_id: MsgId(self.ids[0]), connid }),
            26 => Header::ReadNack(ReadNack { send_id, recv_id, connid }),
            _ => Header::PeerError(PeerError {
                op_id: send_id,
                ref_kind: self.ids[0] as u8,
                prov_errno: self.ids[3],
                connid,
            }),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 4096, ..ProptestConfig::default() })]

    /// `emit` writes `len` bytes and nothing behind them; parsing returns an equal header and the payload.
    // conformance: A61 A73 A74 A75 A76 A77 A79 A80 A81 A82 A83 A84 A85 A86 A87 A88 A89 A90 A91 A92 A93 A94 A95 A96 A105
    #[test]
    fn any_header_round_trips(parts in parts()) {
        let header = parts.header();
        // Bytes behind a PEER_ERROR would make it another form.
        let payload = if matches!(header, Header::PeerError(_)) { &[] } else { &parts.payload[..] };
        let mut buf = vec![0xee; header.len() + payload.len() + 8];
        let len = header.emit(&mut buf).unwrap();
        prop_assert_eq!(len, header.len());
        prop_assert!(buf[len..].iter().all(|&byte| byte == 0xee));
        buf.truncate(len);
        buf.extend(payload);

        let packet = Packet::parse(&buf).unwrap();
        prop_assert_eq!(packet.header, header);
        prop_assert_eq!(packet.packet_type(), header.packet_type());
        prop_assert_eq!(packet.payload, payload);
        prop_assert_eq!(packet.payload.as_ptr(), buf[len..].as_ptr());
        prop_assert_eq!(len + packet.payload.len(), buf.len());
        prop_assert_eq!(buf[1], VERSION);
    }

    /// The connid flag is set if and only if the packet has a connid.
    // conformance: A192
    #[test]
    fn connid_flag_is_set_only_with_a_connid(parts in parts()) {
        let header = parts.header();
        let mut buf = vec![0; header.len()];
        header.emit(&mut buf).unwrap();
        let in_address = header.raw_address().map(|address| address.connid);
        let found = if buf[3] & 0x80 != 0 { header.connid().is_some() } else { header.connid() == in_address };
        prop_assert!(found);
    }
}
