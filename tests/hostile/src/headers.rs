//! Headers of any fields are emitted and parse to an equal header; a short buffer is an error.
//! HANDSHAKEs have any number of feature words.

use efa_proto::{
    AtomRsp, Connid, Cts, CtsData, Eor, EorForm, ExtraInfo, Handshake, Header, MsgId, OpId, Packet,
    PacketType, PeerError, PeerErrorForm, PeerErrorReport, RawAddress, RawAddressForm, ReadNack,
    ReadRsp, Receipt, ReqOptions, RmaIov, Rta, RtaKind, Rtm, RtmKind, Rtr, RtrKind, Rtw, RtwKind,
    UserRecvQp,
};

use crate::input::Input;

/// The fields of a header of any type.
pub(crate) struct Fields {
    iov: [Vec<RmaIov>; 2],
    options: ReqOptions,
    connid: Option<Connid>,
    words: Vec<u64>,
}

impl Fields {
    pub(crate) fn new(input: &mut Input<'_>) -> Self {
        let mut iov = || {
            let count = input.below(5);
            let piece = |_| RmaIov::new(input.number(8), input.number(8), input.number(8));
            (0..count).map(piece).collect()
        };
        let iov = [iov(), iov()];
        let choice = input.byte();
        let form = if choice & 1 == 0 { RawAddressForm::Padded } else { RawAddressForm::Short };
        let mut gid = [0; 16];
        let taken = input.take(16);
        gid[..taken.len()].copy_from_slice(taken);
        let connid = Connid(input.number(4) as u32);
        let address = RawAddress { gid, qpn: input.number(2) as u16, connid };
        let options = ReqOptions {
            raw_address: (choice & 2 == 0).then_some((address, form)),
            cq_data: (choice & 4 == 0).then(|| input.number(8)),
            connid: (choice & 8 == 0).then_some(connid),
        };
        let words = (0..input.below(5)).map(|_| input.number(8)).collect();
        Self { iov, options, connid: (choice & 16 == 0).then_some(connid), words }
    }

    pub(crate) fn header(&self, bytes: u64, input: &mut Input<'_>) -> Header<'_> {
        let Self { iov: [rma_iov, read_iov], options, connid, .. } = self;
        let (connid, options) = (*connid, *options);
        let (send_id, recv_id) = (OpId(input.number(4) as u32), OpId(input.number(4) as u32));
        let (msg_length, seg_offset) = (input.number(8), input.number(8));
        let (credit_request, runt_length) = (input.number(4) as u32, input.number(8));
        let (read_nack, tagged) = (input.one_in(2), input.one_in(2));
        let msg_id = MsgId(input.number(4) as u32);
        let tag = tagged.then(|| input.number(8));
        let read_iov = &read_iov[..];
        let rtm = |kind| Header::Rtm(Rtm { msg_id, tag, kind, options });
        let rtw = |kind| Header::Rtw(Rtw { rma_iov, kind, options });
        let (datatype, op) = (msg_length as u32, seg_offset as u32);
        let rta = |kind| Header::Rta(Rta { msg_id, rma_iov, datatype, op, kind, options });
        let recv_length = credit_request;
        let rtr =
            |kind| Header::Rtr(Rtr { rma_iov, kind, msg_length, recv_id, recv_length, options });
        let seg_length = bytes;
        match input.below(27) {
            0 => rtm(RtmKind::Eager),
            1 => rtm(RtmKind::Medium { msg_length, seg_offset }),
            2 => rtm(RtmKind::LongCts { msg_length, send_id, credit_request, read_nack }),
            3 => rtm(RtmKind::LongRead { msg_length, send_id, read_iov }),
            4 => rtm(RtmKind::DcEager { send_id }),
            5 => rtm(RtmKind::DcMedium { send_id, msg_length, seg_offset }),
            6 => rtm(RtmKind::DcLongCts { msg_length, send_id, credit_request, read_nack }),
            7 => rtm(RtmKind::RuntRead { msg_length, send_id, seg_offset, runt_length, read_iov }),
            8 => rtw(RtwKind::Eager),
            9 => rtw(RtwKind::DcEager { send_id }),
            10 => rtw(RtwKind::LongCts { msg_length, send_id, credit_request }),
            11 => rtw(RtwKind::DcLongCts { msg_length, send_id, credit_request }),
            12 => rtw(RtwKind::LongRead { msg_length, send_id, read_iov }),
            13 => rtr(RtrKind::Short),
            14 => rtr(RtrKind::LongCts),
            15 => rta(RtaKind::Write),
            16 => rta(RtaKind::Fetch { recv_id }),
            17 => rta(RtaKind::Compare { recv_id }),
            18 => rta(RtaKind::DcWrite { send_id }),
            19 => Header::Cts(Cts {
                connid,
                send_id,
                recv_id,
                recv_length: msg_length,
                emulated_read: read_nack,
            }),
            20 => Header::CtsData(CtsData { connid, recv_id, seg_length, seg_offset }),
            21 => Header::ReadRsp(ReadRsp { connid, recv_id, send_id, seg_length }),
            22 => {
                let form = if tagged { EorForm::Short } else { EorForm::Full { connid } };
                Header::Eor(Eor { send_id, recv_id, form })
            }
            23 => Header::AtomRsp(AtomRsp { connid, recv_id, seg_length }),
            24 => Header::Receipt(Receipt { send_id, msg_id, connid }),
            25 => Header::ReadNack(ReadNack { send_id, recv_id, connid }),
            _ if tagged && runt_length == 0 => Header::PeerError(PeerError {
                op_id: send_id,
                ref_kind: credit_request as u8,
                prov_errno: recv_id.0,
                connid,
            }),
            _ if tagged => Header::PeerErrorReport(PeerErrorReport {
                msg_id,
                op_id: (read_nack && send_id.0 != u32::MAX).then_some(send_id),
                emitter: credit_request,
                prov_errno: recv_id.0,
                connid,
                form: match runt_length {
                    1 => PeerErrorForm::Marked,
                    _ => PeerErrorForm::Flagged,
                },
            }),
            _ => Header::Handshake(Handshake {
                extra_info: ExtraInfo::new(&self.words).expect("at most four"),
                connid,
                host_id: read_nack.then_some(msg_length),
                device_version: input.one_in(2).then_some(credit_request),
                user_recv_qp: input
                    .one_in(2)
                    .then_some(UserRecvQp { qpn: send_id.0, qkey: recv_id.0 }),
                hmem_p2p: (runt_length > 0).then_some(runt_length > 1),
            }),
        }
    }
}

pub(crate) fn run(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    if input.one_in(8) {
        return any_count(input);
    }
    let fields = Fields::new(input);
    let payload = &[0x77; 64][..input.below(65)];
    let header = fields.header(payload.len() as u64, input);
    // The forms of an EOR and of a PEER_ERROR differ only in length.
    let (by_length, least) = match header {
        Header::Eor(_) => (true, 12),
        Header::PeerError(_) => (true, 20),
        Header::PeerErrorReport(report) => (report.form == PeerErrorForm::Marked, 20),
        _ => (false, header.len()),
    };
    let payload = if by_length { &[] } else { payload };
    let mut written = vec![0xee; header.len()];
    assert_eq!(header.emit(&mut written), Ok(header.len()), "{header:?}");
    // The first bytes of a longer form are a valid shorter one.
    let short = input.below(256) % least;
    assert!(header.emit(&mut vec![0; short]).is_err(), "{header:?} in {short} bytes");
    written.extend_from_slice(payload);
    let packet = Packet::parse(&written).unwrap_or_else(|error| panic!("{header:?}: {error}"));
    assert_eq!((packet.header, packet.payload), (header, payload));
    // A truncated header is an error.
    let error = Packet::parse(&written[..short]).expect_err("a truncated packet is an error");
    assert!(!error.to_string().is_empty());
}

/// A HANDSHAKE with any number of words, whose count field may be wrong.
fn any_count(input: &mut Input<'_>) {
    let announced = input.about32(input.clone().byte().into());
    let words: Vec<u64> = (0..input.below(64)).map(|_| input.number(8)).collect();
    let mut bytes = vec![PacketType::Handshake.as_u8(), 4, 0, 0];
    bytes.extend_from_slice(&announced.to_le_bytes());
    words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    let count = u64::from(announced).checked_sub(3);
    let fits = count.is_some_and(|count| count <= words.len() as u64);
    match Packet::parse(&bytes) {
        Ok(Packet { header: Header::Handshake(handshake), payload }) => {
            assert!(fits, "{handshake} of {} words", words.len());
            let found: Vec<u64> = handshake.extra_info.iter().collect();
            assert_eq!(found, words[..found.len()]);
            assert_eq!(payload.len(), 8 * (words.len() - found.len()));
            assert_eq!(handshake.extra_info.word(found.len()), 0);
        }
        Ok(packet) => panic!("{packet}"),
        Err(error) => assert!(!fits, "{error}: {announced} for {} words", words.len()),
    }
}
