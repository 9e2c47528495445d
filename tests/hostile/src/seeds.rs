//! Fuzz seeds made of packets: golden ones, and packets that libfabric sent. A packet becomes a script of
//! the hostile peer, the fields of a header, or the words of a HANDSHAKE.
//!
//! ```text
//!   fuzz/corpus/packet/* ─┬─► lying_peer, lying_tag_list, lying_packets   sent by the hostile peer, with its own addresses
//!                         ├─► headers                                     field by field
//!                         └─► handshake                                   the words of a HANDSHAKE
//! ```
//!
//! In a script the hostile peer sends the packet. Its addresses, connids and message id are replaced by
//! those of the hostile peer, so that the subject accepts it.

use efa_proto::{
    Connid, EorForm, Handshake, Header, MsgId, OpId, Packet, PacketType, PeerErrorForm, RawAddress,
    RawAddressForm, ReqOptions, RmaIov, RtaKind, Rtm, RtmKind, RtrKind, RtwKind,
};

use crate::hostile_peer::HostilePeer;
use crate::input::Input;
use crate::world::World;

/// Whether a file in a corpus is a seed. What libFuzzer finds has a name of 40 hexadecimal digits.
#[must_use]
pub fn is_seed(name: &str) -> bool {
    name.len() != 40 || name.contains(|digit: char| !digit.is_ascii_hexdigit())
}

/// Inputs made of a packet, each with the name of its target.
#[must_use]
pub fn seeds(bytes: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let Ok(packet) = Packet::parse(bytes) else { return Vec::new() };
    let mut seeds = Vec::new();
    let own = from_hostile_peer(packet);
    let plain = settings(|input| drop(World::new(input, false)));
    let listed = settings(|input| drop(World::with_tag_lists(input, false)));
    seeds.push(("lying_peer", [plain.clone(), script(&own)].concat()));
    if matches!(packet.header, Header::Rtm(Rtm { tag: Some(_), .. })) {
        seeds.push(("lying_tag_list", [listed, script(&own)].concat()));
    }
    seeds.push(("lying_packets", [plain, packet_fields(&own)].concat()));
    seeds.push(("headers", fields(&packet.header)));
    if let Header::Handshake(handshake) = packet.header {
        seeds.push(("handshake", handshake_words(&handshake)));
    }
    seeds
}

/// Zeros for as many input bytes as the settings of a run read.
fn settings(read: impl FnOnce(&mut Input<'_>)) -> Vec<u8> {
    let zeros = [0; 256];
    let input = &mut Input::new(&zeros);
    read(input);
    vec![0; zeros.len() - input.take(zeros.len()).len()]
}

/// The packet with the addresses and ids of the hostile peer, as its first packet.
fn from_hostile_peer(Packet { mut header, payload }: Packet<'_>) -> Vec<u8> {
    let address = HostilePeer::new().address();
    let own = |options: &mut ReqOptions| {
        options.raw_address = options.raw_address.map(|(_, form)| (address, form));
        options.connid = options.connid.map(|_| address.connid);
    };
    let ours = Some(address.connid);
    match &mut header {
        Header::Rtm(rtm) => {
            rtm.msg_id = MsgId(0);
            // The receives of the subject accept this tag.
            rtm.tag = rtm.tag.map(|tag| tag | 1 << 63);
            own(&mut rtm.options);
        }
        Header::Rta(rta) => {
            rta.msg_id = MsgId(0);
            own(&mut rta.options);
        }
        Header::Rtw(rtw) => own(&mut rtw.options),
        Header::Rtr(rtr) => own(&mut rtr.options),
        Header::Cts(cts) => cts.connid = cts.connid.and(ours),
        Header::CtsData(data) => data.connid = data.connid.and(ours),
        Header::ReadRsp(response) => response.connid = response.connid.and(ours),
        Header::AtomRsp(response) => response.connid = response.connid.and(ours),
        Header::Receipt(receipt) => receipt.connid = receipt.connid.and(ours),
        Header::ReadNack(nack) => nack.connid = nack.connid.and(ours),
        Header::PeerError(error) => error.connid = error.connid.and(ours),
        Header::PeerErrorReport(report) => report.connid = report.connid.and(ours),
        Header::Handshake(handshake) => handshake.connid = handshake.connid.and(ours),
        Header::Eor(eor) => {
            if let EorForm::Full { connid } = &mut eor.form {
                *connid = connid.and(ours);
            }
        }
        Header::NeverSent(_) => {}
        other => panic!("no seed for {other:?}"),
    }
    let mut bytes = vec![0; header.len()];
    header.emit(&mut bytes).expect("the buffer is large enough");
    bytes.extend_from_slice(payload);
    bytes
}

/// What [`HostilePeer::send_fields`] reads to send this packet; bytes beyond its limit are zero.
fn packet_fields(packet: &[u8]) -> Vec<u8> {
    let place = PacketType::ALL.iter().position(|of| of.as_u8() == packet[0]);
    let length = (packet.len() - 4) as u16;
    let mut input = vec![place.unwrap_or(0) as u8];
    input.extend(length.to_le_bytes());
    input.extend(&packet[2..(usize::from(length).min(64) + 4).min(packet.len())]);
    input
}

/// A script: receives are posted, the packet arrives, and the hostile peer responds as a correct peer would.
fn script(packet: &[u8]) -> Vec<u8> {
    const TAGGED: [u8; 4] = [208, 3, 0, 0];
    const UNTAGGED: [u8; 4] = [208, 3, 0, 1];
    const STEP: u8 = 156;
    let mut input = [TAGGED, UNTAGGED].concat();
    input.extend([0, 232]);
    input.extend(packet_fields(packet));
    // Input beyond the end reads as zero, which selects the correct response.
    input.extend([STEP, 0, 166]);
    input
}

/// The input from which [`crate::headers`] makes this header.
fn fields(header: &Header<'_>) -> Vec<u8> {
    let mut parts = Parts::default();
    let kind = parts.take(header);
    let mut input = vec![0];
    parts.write(&mut input);
    // A payload of 16 bytes, for types that have one.
    input.push(16);
    parts.write_header(kind, &mut input);
    input
}

/// The fields of a header of any type.
#[derive(Default)]
struct Parts {
    iov: [Vec<RmaIov>; 2],
    options: ReqOptions,
    connid: Option<Connid>,
    words: Vec<u64>,
    ids: [OpId; 2],
    msg_length: u64,
    seg_offset: u64,
    credit_request: u32,
    runt_length: u64,
    read_nack: bool,
    msg_id: MsgId,
    tag: Option<u64>,
    /// EOR: whether it has the short form. PEER_ERROR: whether it is not about a HANDSHAKE.
    tagged: bool,
    /// HANDSHAKE: the optional fields that it has.
    has: [bool; 2],
}

impl Parts {
    /// Stores the fields of a header; returns the index of its kind.
    fn take(&mut self, header: &Header<'_>) -> u8 {
        match header {
            Header::Rtm(rtm) => {
                (self.msg_id, self.tag, self.options) = (rtm.msg_id, rtm.tag, rtm.options);
                self.tagged = rtm.tag.is_some();
                self.take_message(&rtm.kind)
            }
            Header::Rtw(rtw) => {
                (self.iov[0], self.options) = (rtw.rma_iov.to_vec(), rtw.options);
                self.take_write(&rtw.kind)
            }
            Header::Rtr(rtr) => {
                (self.iov[0], self.options) = (rtr.rma_iov.to_vec(), rtr.options);
                (self.msg_length, self.ids[1]) = (rtr.msg_length, rtr.recv_id);
                self.credit_request = rtr.recv_length;
                if rtr.kind == RtrKind::Short { 13 } else { 14 }
            }
            Header::Rta(rta) => {
                (self.iov[0], self.options) = (rta.rma_iov.to_vec(), rta.options);
                (self.msg_length, self.seg_offset) = (rta.datatype.into(), rta.op.into());
                self.msg_id = rta.msg_id;
                match rta.kind {
                    RtaKind::Write => 15,
                    RtaKind::Fetch { recv_id } => self.named(1, recv_id, 16),
                    RtaKind::Compare { recv_id } => self.named(1, recv_id, 17),
                    RtaKind::DcWrite { send_id } => self.named(0, send_id, 18),
                    other => panic!("no seed for {other:?}"),
                }
            }
            Header::Cts(cts) => {
                (self.connid, self.ids) = (cts.connid, [cts.send_id, cts.recv_id]);
                (self.msg_length, self.read_nack) = (cts.recv_length, cts.emulated_read);
                19
            }
            Header::CtsData(data) => {
                (self.connid, self.seg_offset) = (data.connid, data.seg_offset);
                self.named(1, data.recv_id, 20)
            }
            Header::ReadRsp(response) => {
                (self.connid, self.ids) = (response.connid, [response.send_id, response.recv_id]);
                21
            }
            Header::Eor(eor) => {
                self.ids = [eor.send_id, eor.recv_id];
                match eor.form {
                    EorForm::Short => self.tagged = true,
                    EorForm::Full { connid } => self.connid = connid,
                }
                22
            }
            Header::AtomRsp(response) => {
                self.connid = response.connid;
                self.named(1, response.recv_id, 23)
            }
            Header::Receipt(receipt) => {
                (self.connid, self.msg_id) = (receipt.connid, receipt.msg_id);
                self.named(0, receipt.send_id, 24)
            }
            Header::ReadNack(nack) => {
                (self.connid, self.ids) = (nack.connid, [nack.send_id, nack.recv_id]);
                25
            }
            Header::PeerError(error) => {
                (self.connid, self.tagged) = (error.connid, true);
                self.ids = [error.op_id, OpId(error.prov_errno)];
                self.credit_request = error.ref_kind.into();
                26
            }
            Header::Handshake(handshake) => {
                self.words = handshake.extra_info.iter().collect();
                (self.connid, self.read_nack) = (handshake.connid, handshake.host_id.is_some());
                self.msg_length = handshake.host_id.unwrap_or(0);
                self.credit_request = handshake.device_version.unwrap_or(0);
                if let Some(queue) = handshake.user_recv_qp {
                    self.ids = [OpId(queue.qpn), OpId(queue.qkey)];
                }
                self.has = [handshake.device_version.is_some(), handshake.user_recv_qp.is_some()];
                self.runt_length =
                    handshake.hmem_p2p.map_or(0, |supported| 1 + u64::from(supported));
                26
            }
            Header::PeerErrorReport(report) => {
                (self.connid, self.tagged, self.msg_id) = (report.connid, true, report.msg_id);
                self.ids = [report.op_id.unwrap_or_default(), OpId(report.prov_errno)];
                (self.read_nack, self.credit_request) = (report.op_id.is_some(), report.emitter);
                self.runt_length = if report.form == PeerErrorForm::Marked { 1 } else { 2 };
                26
            }
            Header::NeverSent(_) => 0,
            other => panic!("no seed for {other:?}"),
        }
    }

    /// Stores an id and returns `kind`.
    fn named(&mut self, place: usize, id: OpId, kind: u8) -> u8 {
        self.ids[place] = id;
        kind
    }

    fn take_message(&mut self, kind: &RtmKind<'_>) -> u8 {
        match *kind {
            RtmKind::Eager => 0,
            RtmKind::Medium { msg_length, seg_offset } => {
                (self.msg_length, self.seg_offset) = (msg_length, seg_offset);
                1
            }
            RtmKind::LongCts { msg_length, send_id, credit_request, read_nack } => {
                (self.msg_length, self.credit_request) = (msg_length, credit_request);
                self.read_nack = read_nack;
                self.named(0, send_id, 2)
            }
            RtmKind::LongRead { msg_length, send_id, read_iov } => {
                (self.msg_length, self.iov[1]) = (msg_length, read_iov.to_vec());
                self.named(0, send_id, 3)
            }
            RtmKind::DcEager { send_id } => self.named(0, send_id, 4),
            RtmKind::DcMedium { send_id, msg_length, seg_offset } => {
                (self.msg_length, self.seg_offset) = (msg_length, seg_offset);
                self.named(0, send_id, 5)
            }
            RtmKind::DcLongCts { msg_length, send_id, credit_request, read_nack } => {
                (self.msg_length, self.credit_request) = (msg_length, credit_request);
                self.read_nack = read_nack;
                self.named(0, send_id, 6)
            }
            RtmKind::RuntRead { msg_length, send_id, seg_offset, runt_length, read_iov } => {
                (self.msg_length, self.seg_offset) = (msg_length, seg_offset);
                (self.runt_length, self.iov[1]) = (runt_length, read_iov.to_vec());
                self.named(0, send_id, 7)
            }
            other => panic!("no seed for {other:?}"),
        }
    }

    fn take_write(&mut self, kind: &RtwKind<'_>) -> u8 {
        match *kind {
            RtwKind::Eager => 8,
            RtwKind::DcEager { send_id } => self.named(0, send_id, 9),
            RtwKind::LongCts { msg_length, send_id, credit_request } => {
                (self.msg_length, self.credit_request) = (msg_length, credit_request);
                self.named(0, send_id, 10)
            }
            RtwKind::DcLongCts { msg_length, send_id, credit_request } => {
                (self.msg_length, self.credit_request) = (msg_length, credit_request);
                self.named(0, send_id, 11)
            }
            RtwKind::LongRead { msg_length, send_id, read_iov } => {
                (self.msg_length, self.iov[1]) = (msg_length, read_iov.to_vec());
                self.named(0, send_id, 12)
            }
            other => panic!("no seed for {other:?}"),
        }
    }

    /// As [`Fields`](crate::headers::Fields) reads them.
    fn write(&self, input: &mut Vec<u8>) {
        for iov in &self.iov {
            input.push(iov.len() as u8);
            for piece in iov {
                for number in [piece.addr(), piece.len(), piece.key()] {
                    input.extend(number.to_le_bytes());
                }
            }
        }
        let ReqOptions { raw_address, cq_data, connid } = self.options;
        let is_short = raw_address.is_some_and(|(_, form)| form == RawAddressForm::Short);
        let flags = [is_short, raw_address.is_none(), cq_data.is_none(), connid.is_none()];
        let flags = flags.into_iter().chain([self.connid.is_none()]);
        input.push((0..).zip(flags).fold(0, |all, (bit, set)| all | u8::from(set) << bit));
        let none = RawAddress { gid: [0; 16], qpn: 0, connid: Connid(0) };
        let RawAddress { gid, qpn, connid: of_address } =
            raw_address.map_or(none, |(address, _)| address);
        let connid = connid.or(self.connid).unwrap_or(of_address);
        input.extend(gid);
        input.extend(connid.0.to_le_bytes());
        input.extend(qpn.to_le_bytes());
        input.extend(cq_data.into_iter().flat_map(u64::to_le_bytes));
        input.push(self.words.len() as u8);
        input.extend(self.words.iter().flat_map(|word| word.to_le_bytes()));
    }

    fn write_header(&self, kind: u8, input: &mut Vec<u8>) {
        for OpId(id) in self.ids {
            input.extend(id.to_le_bytes());
        }
        input.extend(self.msg_length.to_le_bytes());
        input.extend(self.seg_offset.to_le_bytes());
        input.extend(self.credit_request.to_le_bytes());
        input.extend(self.runt_length.to_le_bytes());
        input.extend([u8::from(self.read_nack), u8::from(self.tagged)]);
        input.extend(self.msg_id.0.to_le_bytes());
        if self.tagged {
            input.extend(self.tag.unwrap_or(0).to_le_bytes());
        }
        input.push(kind);
        if kind == 26 && !self.tagged {
            input.extend(self.has.map(u8::from));
        }
    }
}

/// Input of the `handshake` target: the peer's HANDSHAKE after a packet in each direction, then queries.
fn handshake_words(handshake: &Handshake<'_>) -> Vec<u8> {
    let words: Vec<u64> = handshake.extra_info.iter().take(4).collect();
    let mut input = vec![0, 0, 0, 1, 3, words.len() as u8];
    input.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    input.push(handshake.connid.is_some().into());
    input.push(handshake.device_version.is_some().into());
    input.extend(handshake.device_version.into_iter().flat_map(u32::to_le_bytes));
    input.push(5);
    input.extend(words.first().copied().unwrap_or(0).to_le_bytes());
    input.push(4);
    input
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::Fields;

    /// The fields stored for each packet of the corpus give the same header.
    #[test]
    fn fields_of_each_corpus_packet_give_the_same_header() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/packet");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if !is_seed(entry.file_name().to_str().unwrap()) {
                continue;
            }
            let bytes = std::fs::read(entry.path()).unwrap();
            let Ok(Packet { header, .. }) = Packet::parse(&bytes) else { continue };
            let seed = fields(&header);
            let input = &mut Input::new(&seed);
            assert_eq!(input.byte(), 0);
            let fields = Fields::new(input);
            let payload = input.byte().into();
            let mut again = fields.header(payload, input);
            // Its length field refers to a different payload.
            match (&mut again, &header) {
                (Header::CtsData(again), Header::CtsData(of)) => again.seg_length = of.seg_length,
                (Header::ReadRsp(again), Header::ReadRsp(of)) => again.seg_length = of.seg_length,
                (Header::AtomRsp(again), Header::AtomRsp(of)) => again.seg_length = of.seg_length,
                _ => {}
            }
            let mut expected = header;
            same_connid(&mut expected, &again);
            assert_eq!(again, expected);
            count += 1;
        }
        assert!(count > 50, "{count} packets");
    }

    /// Sets all connids of a header to one value, as the target's headers have it.
    fn same_connid(header: &mut Header<'_>, of: &Header<'_>) {
        let options = |header: &Header<'_>| match header {
            Header::Rtm(rtm) => Some(rtm.options),
            Header::Rtw(rtw) => Some(rtw.options),
            Header::Rtr(rtr) => Some(rtr.options),
            Header::Rta(rta) => Some(rta.options),
            _ => None,
        };
        let Some(ReqOptions { raw_address: Some((same, _)), .. }) = options(of) else { return };
        let own = |options: &mut ReqOptions| {
            if let Some((address, _)) = &mut options.raw_address {
                address.connid = same.connid;
            }
        };
        match header {
            Header::Rtm(rtm) => own(&mut rtm.options),
            Header::Rtw(rtw) => own(&mut rtw.options),
            Header::Rtr(rtr) => own(&mut rtr.options),
            Header::Rta(rta) => own(&mut rta.options),
            _ => {}
        }
    }

    #[test]
    fn hostile_peer_sends_the_packet_of_a_script() {
        let bytes = include_bytes!("../../../fuzz/corpus/packet/libfabric-eager_tagrtm-000d-56");
        let own = from_hostile_peer(Packet::parse(bytes).unwrap());
        let seed = [settings(|input| drop(World::new(input, false))), script(&own)].concat();
        let input = &mut Input::new(&seed);
        let mut world = World::new(input, true);
        crate::lying::play(&mut world, input);
        let log = world.log();
        assert!(
            log.contains("hostile peer [fe80::3]:3/0x00003003 sends EAGER_TAGRTM msg_id=0"),
            "{log}"
        );
        assert!(log.contains("subject completes Receive"), "{log}");
    }
}
