//! A hostile peer that knows the protocol and deviates from it.
//!
//! It receives the packets that the subject sends to it, and a copy of those between the subject and the
//! honest peer. It uses ids of its own operations, of completed ones and of other peers' operations.
//! Most of its packets are correct except for one field.

use std::collections::VecDeque;

use efa_device::{Gid, Qpn, Region, Status};
use efa_handshake::Extras;
use efa_proto::{
    AtomRsp, Connid, Cts, CtsData, Eor, EorForm, ExtraInfo, Handshake, Header, MsgId, OpId, Packet,
    PacketType, PeerError, RawAddress, RawAddressForm, ReadNack, ReadRsp, Receipt, ReqOptions,
    RmaIov, Rta, RtaKind, Rtm, RtmKind, Rtr, RtrKind, Rtw, RtwKind, UserRecvQp,
};

use crate::device::{ADDRESSES, MTU, interface};
use crate::input::Input;
use crate::world::{OFFERED, World, contains_secret, pattern};

/// Most ids, packets and grants that are recorded, of each.
const NAMES: usize = 8;

/// The state of the hostile peer.
pub(crate) struct HostilePeer {
    gid: Gid,
    qpn: Qpn,
    connid: Connid,
    next_msg_id: u32,
    /// Packets that it sent, to be repeated.
    sent: VecDeque<Vec<u8>>,
    /// The subject's ids of operations whose data it sends, and of those whose data it receives.
    send_ids: VecDeque<u32>,
    recv_ids: VecDeque<u32>,
    /// Id of an operation, offset of its next segment, and bytes granted.
    grants: VecDeque<(u32, u64, u64)>,
    /// Packets of the subject that have no response yet.
    unanswered: VecDeque<Vec<u8>>,
}

fn note<T: PartialEq>(names: &mut VecDeque<T>, name: T) {
    if !names.contains(&name) {
        if names.len() == NAMES {
            names.pop_front();
        }
        names.push_back(name);
    }
}

fn name(names: &VecDeque<u32>, input: &mut Input<'_>) -> OpId {
    let choice = input.byte();
    let newest = names.len().saturating_sub(1);
    let place = if choice < 128 { newest } else { usize::from(choice) % names.len().max(1) };
    OpId(input.about32(names.get(place).copied().unwrap_or(0)))
}

impl HostilePeer {
    pub(crate) fn new() -> Self {
        Self {
            gid: interface(3),
            qpn: Qpn(3),
            connid: Connid(0x3003),
            next_msg_id: 0,
            sent: VecDeque::new(),
            send_ids: VecDeque::new(),
            recv_ids: VecDeque::new(),
            grants: VecDeque::new(),
            unanswered: VecDeque::new(),
        }
    }

    pub(crate) fn address(&self) -> RawAddress {
        RawAddress { gid: self.gid.0, qpn: self.qpn.0, connid: self.connid }
    }

    /// Changes its address: to the next incarnation of its queue pair, or to another queue pair.
    fn change(&mut self, input: &mut Input<'_>) {
        match input.below(4) {
            0 => self.connid = Connid(input.about32(self.connid.0.wrapping_add(1))),
            1 => self.qpn = Qpn(input.pick(&[3, 4, 5, 6])),
            2 => self.gid = interface(input.pick(&[3, 4, 1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14])),
            _ => (self.qpn, self.connid) = (Qpn(input.number(2) as u16 | 8), Connid(7)),
        }
        // A new incarnation starts at message id 0, in most inputs.
        if !input.one_in(4) {
            self.next_msg_id = 0;
        }
    }

    /// Begins messages, writes and reads, and restarts in the midst of them: its queue pair has another
    /// connid.
    fn restart(&mut self, world: &mut World, input: &mut Input<'_>) {
        for _ in 0..=input.below(6) {
            match input.below(6) {
                0..=3 => self.message(world, input),
                4 => self.write(world, input),
                _ => self.read(world, input),
            }
        }
        if !input.one_in(4) {
            world.step();
            self.receive(world);
        }
        self.connid = Connid(self.connid.0.wrapping_add(1));
        self.next_msg_id = 0;
        self.message(world, input);
    }

    /// Receives the packets of the subject and the copies of the others, and records their ids.
    pub(crate) fn receive(&mut self, world: &mut World) {
        let (packets_to_hostile, packets_between_endpoints) = {
            let mut net = world.net.borrow_mut();
            (
                std::mem::take(&mut net.packets_to_hostile),
                std::mem::take(&mut net.packets_between_endpoints),
            )
        };
        for bytes in &packets_between_endpoints {
            self.record(bytes);
        }
        for bytes in packets_to_hostile {
            // A peer that announces feature 7 receives messages without a header.
            let Ok(packet) = Packet::parse(&bytes) else { continue };
            world.log_line(|| format!("    subject sends {packet}"));
            if let Header::ReadRsp(_) | Header::AtomRsp(_) | Header::CtsData(_) = packet.header {
                assert!(
                    !contains_secret(packet.payload),
                    "{packet}: contains memory without read access"
                );
            }
            self.record(&bytes);
            note(&mut self.unanswered, bytes);
        }
    }

    fn record(&mut self, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else { return };
        match packet.header {
            Header::Rtm(rtm) => {
                if let Some(id) = rtm.kind.send_id() {
                    note(&mut self.send_ids, id.0);
                }
            }
            Header::Rtw(rtw) => {
                if let Some(id) = rtw.kind.send_id() {
                    note(&mut self.send_ids, id.0);
                }
            }
            Header::Rtr(rtr) => note(&mut self.recv_ids, rtr.recv_id.0),
            Header::Rta(rta) => {
                if let Some(id) = rta.kind.recv_id() {
                    note(&mut self.recv_ids, id.0);
                }
                if let Some(id) = rta.kind.send_id() {
                    note(&mut self.send_ids, id.0);
                }
            }
            Header::Cts(cts) => {
                note(&mut self.recv_ids, cts.recv_id.0);
                let begun = self.grants.iter_mut().find(|grant| grant.0 == cts.recv_id.0);
                match begun {
                    Some(grant) => grant.2 = grant.2.wrapping_add(cts.recv_length),
                    None => note(&mut self.grants, (cts.recv_id.0, 0, cts.recv_length)),
                }
            }
            Header::ReadRsp(response) => note(&mut self.send_ids, response.send_id.0),
            _ => {}
        }
    }

    /// Sends a packet, in most cases unchanged.
    fn send_header(
        &mut self,
        world: &mut World,
        header: Header<'_>,
        payload: &[u8],
        input: &mut Input<'_>,
    ) {
        let mut bytes = vec![0; header.len()];
        header.emit(&mut bytes).expect("the buffer is large enough");
        let room = MTU - bytes.len();
        bytes.extend_from_slice(&payload[..payload.len().min(room)]);
        match input.byte() {
            0..=239 => {}
            240..=245 => {
                let end = input.number(2) as usize % (bytes.len() + 1);
                bytes.truncate(end);
            }
            246..=250 => {
                let place = input.number(2) as usize % bytes.len();
                bytes[place] ^= input.byte();
            }
            _ => bytes.resize((bytes.len() + input.below(40)).min(MTU), 0),
        }
        self.send(world, bytes);
    }

    pub(crate) fn send(&mut self, world: &mut World, bytes: Vec<u8>) {
        world.log_line(|| {
            let text = match Packet::parse(&bytes) {
                Ok(packet) => packet.to_string(),
                Err(error) => format!("invalid packet: {error}: {bytes:02x?}"),
            };
            format!("hostile peer {} sends {text}", self.address())
        });
        if self.sent.len() == NAMES {
            self.sent.pop_front();
        }
        self.sent.push_back(bytes.clone());
        world.hostile_queue_pairs.insert((self.gid, self.qpn));
        world.net.borrow_mut().inject((self.gid, self.qpn), bytes);
    }

    fn options(&self, input: &mut Input<'_>) -> ReqOptions {
        let choice = input.byte();
        let mut address = self.address();
        if choice >= 248 {
            address = RawAddress {
                qpn: input.pick(&[address.qpn, ADDRESSES[0].qpn.0, ADDRESSES[1].qpn.0]),
                gid: input.pick(&[address.gid, ADDRESSES[1].gid.0, [0; 16]]),
                ..address
            };
        }
        let form = if choice & 1 == 0 { RawAddressForm::Padded } else { RawAddressForm::Short };
        ReqOptions {
            raw_address: (choice & 2 == 0).then_some((address, form)),
            cq_data: (choice & 4 == 0).then_some(input.byte().into()),
            connid: (choice & 8 == 0).then_some(Connid(self.own_connid(input).0)),
        }
    }

    fn own_connid(&self, input: &mut Input<'_>) -> Connid {
        match input.byte() {
            0..=247 => self.connid,
            _ => Connid(input.about32(ADDRESSES[1].qkey.0)),
        }
    }

    fn connid(&self, input: &mut Input<'_>) -> Option<Connid> {
        (!input.one_in(8)).then(|| self.own_connid(input))
    }

    fn msg_id(&mut self, input: &mut Input<'_>) -> MsgId {
        let id = self.next_msg_id;
        match input.byte() {
            0..=159 => {
                self.next_msg_id = id.wrapping_add(1);
                MsgId(id)
            }
            // Another packet of the last message.
            160..=207 => MsgId(id.wrapping_sub(1)),
            208..=231 => MsgId(id.wrapping_add(u32::from(input.byte() & 31))),
            _ => MsgId(input.about32(id.wrapping_add(1))),
        }
    }

    /// Memory of the subject.
    fn iov(&self, world: &World, length: u64, input: &mut Input<'_>) -> Vec<RmaIov> {
        let memory = &world.offered;
        let pieces = input.pick(&[1, 1, 1, 2, 4, 0]);
        let mut iov = Vec::new();
        for piece in 0..pieces {
            let region = input.pick(&[
                &memory.open,
                &memory.open,
                &memory.readable,
                &memory.writable,
                &memory.closed,
            ]);
            let key = u64::from(region.remote_key());
            // Keys of memory that is not exposed to this peer are secret: it cannot guess them.
            let key = match input.byte() {
                0..=247 => key,
                248..=250 => key | 1 << 32,
                251..=253 => key ^ 1,
                _ => 0,
            };
            let share = length / pieces.max(1) as u64;
            let share = if piece == 0 { length - share * (pieces as u64 - 1) } else { share };
            let offset = input.pick(&[0, 0, 0, 1, 100, OFFERED as u64 - 8]);
            let address = input.about(region.remote_address().wrapping_add(offset));
            iov.push(RmaIov::new(address, input.about(share), key));
        }
        iov
    }

    /// Memory that it announces as its own.
    fn read_iov(length: u64, input: &mut Input<'_>) -> Vec<RmaIov> {
        let pieces = input.pick(&[1_u64, 1, 2, 4, 0]);
        let share = length / pieces.max(1);
        let rest = length - share * pieces.saturating_sub(1);
        let piece = |number| if number == 0 { rest } else { share };
        (0..pieces)
            .map(|number| RmaIov::new(input.about(0x7000), piece(number), input.about(7)))
            .collect()
    }

    fn length(input: &mut Input<'_>) -> u64 {
        let near = input.pick(&[600, 8, 0, 100, 1500, 5000, 70_000]);
        input.about(near)
    }

    /// A request to send a message.
    fn message(&mut self, world: &mut World, input: &mut Input<'_>) {
        let tagged = input.one_in(2);
        let tag = tagged.then(|| 1 << 63 | u64::from(input.byte() & 3));
        let msg_length = Self::length(input);
        let send_id = OpId(input.byte().into());
        let credit_request = input.about32(32);
        let segment = input.pick(&[200, 8, 0, 300, 1]);
        let seg_offset = input.pick(&[0, 200, 400, 8, 1]);
        let seg_offset = input.about(seg_offset);
        let runt_length = input.about(200);
        let read_iov = Self::read_iov(msg_length, input);
        let read_iov = &read_iov[..];
        let read_nack = input.one_in(8);
        let kind = match input.below(8) {
            0 => RtmKind::Eager,
            1 => RtmKind::Medium { msg_length, seg_offset },
            2 => RtmKind::LongCts { msg_length, send_id, credit_request, read_nack },
            3 => RtmKind::LongRead { msg_length, send_id, read_iov },
            4 => RtmKind::DcEager { send_id },
            5 => RtmKind::DcMedium { send_id, msg_length, seg_offset },
            6 => RtmKind::DcLongCts { msg_length, send_id, credit_request, read_nack },
            _ => RtmKind::RuntRead { msg_length, send_id, seg_offset, runt_length, read_iov },
        };
        let segment = match kind {
            RtmKind::LongRead { .. } => 0,
            RtmKind::LongCts { .. } | RtmKind::DcLongCts { .. } if read_nack => 0,
            _ => segment,
        };
        let (msg_id, options) = (self.msg_id(input), self.options(input));
        let rtm = Rtm { msg_id, tag, kind, options };
        self.send_header(world, Header::Rtm(rtm), pattern(segment, 3), input);
    }

    fn write(&mut self, world: &mut World, input: &mut Input<'_>) {
        let bytes = input.pick(&[200, 8, 0, 100]);
        let msg_length = Self::length(input);
        let (send_id, credit_request) = (OpId(input.byte().into()), input.about32(32));
        let read_iov = Self::read_iov(msg_length, input);
        let (kind, length) = match input.below(5) {
            0 => (RtwKind::Eager, bytes as u64),
            1 => (RtwKind::DcEager { send_id }, bytes as u64),
            2 => (RtwKind::LongCts { msg_length, send_id, credit_request }, msg_length),
            3 => (RtwKind::DcLongCts { msg_length, send_id, credit_request }, msg_length),
            _ => (RtwKind::LongRead { msg_length, send_id, read_iov: &read_iov }, msg_length),
        };
        let bytes = if let RtwKind::LongRead { .. } = kind { 0 } else { bytes };
        let rma_iov = self.iov(world, length, input);
        let rtw = Rtw { rma_iov: &rma_iov, kind, options: self.options(input) };
        self.send_header(world, Header::Rtw(rtw), pattern(bytes, 4), input);
    }

    fn read(&mut self, world: &mut World, input: &mut Input<'_>) {
        let kind = input.pick(&[RtrKind::Short, RtrKind::LongCts]);
        let near = input.pick(&[200, 8, 1400, 0, 488]);
        let msg_length = input.about(near);
        let rma_iov = self.iov(world, msg_length, input);
        let rtr = Rtr {
            rma_iov: &rma_iov,
            kind,
            msg_length,
            recv_id: OpId(input.byte().into()),
            recv_length: input.about32(msg_length as u32),
            options: self.options(input),
        };
        self.send_header(world, Header::Rtr(rtr), &[], input);
    }

    fn atomic(&mut self, world: &mut World, input: &mut Input<'_>) {
        let id = OpId(input.byte().into());
        let (recv_id, send_id) = (id, id);
        let kind = match input.below(4) {
            0 => RtaKind::Write,
            1 => RtaKind::Fetch { recv_id },
            2 => RtaKind::Compare { recv_id },
            _ => RtaKind::DcWrite { send_id },
        };
        let length = input.pick(&[8_u64, 4, 0, 16, 64, 7]);
        let rma_iov = self.iov(world, length, input);
        let operands = if let RtaKind::Compare { .. } = kind { 2 * length } else { length };
        let (datatype, op) = (input.about32(7), input.about32(2));
        let (datatype, op) = (
            if input.one_in(2) { u32::from(input.byte() & 31) } else { datatype },
            if input.one_in(2) { u32::from(input.byte() & 31) } else { op },
        );
        let (msg_id, options) = (self.msg_id(input), self.options(input));
        let rta = Rta { msg_id, rma_iov: &rma_iov, datatype, op, kind, options };
        let payload = pattern(input.about(operands).min(300) as usize, 5);
        self.send_header(world, Header::Rta(rta), payload, input);
    }

    /// Sends a packet that refers to an operation, which may belong to another peer.
    fn about_operation(&mut self, world: &mut World, input: &mut Input<'_>) {
        let connid = self.connid(input);
        let choice = input.below(8);
        let send_id = name(&self.send_ids, input);
        let recv_id = name(&self.recv_ids, input);
        let bytes = input.pick(&[300, 8, 1, 0, 480]);
        let payload = pattern(bytes, 6);
        let seg_length = bytes as u64;
        let header = match choice {
            0 => {
                let own = OpId(input.byte().into());
                let (recv_length, emulated_read) = (input.about(480 * 4), input.one_in(2));
                Header::Cts(Cts { connid, send_id, recv_id: own, recv_length, emulated_read })
            }
            1 => {
                let offset = self.grants.back().map_or(0, |grant| grant.1);
                let seg_offset = input.about(offset);
                Header::CtsData(CtsData { connid, recv_id, seg_length, seg_offset })
            }
            2 => {
                let own = OpId(input.byte().into());
                Header::ReadRsp(ReadRsp { connid, recv_id, send_id: own, seg_length })
            }
            3 => Header::Eor(Eor { send_id, recv_id: OpId(1), form: EorForm::Full { connid } }),
            4 => Header::AtomRsp(AtomRsp { connid, recv_id, seg_length }),
            5 => Header::Receipt(Receipt { send_id, msg_id: MsgId(input.byte().into()), connid }),
            6 => Header::ReadNack(ReadNack { send_id, recv_id: OpId(1), connid }),
            _ => {
                let prov_errno = input.number(4) as u32;
                let ref_kind = input.pick(&[0, 1, 2, 3, 0, 1, 2]);
                let of_message = OpId(self.msg_id(input).0);
                let op_id = match ref_kind {
                    0 => input.pick(&[send_id, recv_id]),
                    _ => of_message,
                };
                Header::PeerError(PeerError { op_id, ref_kind, prov_errno, connid })
            }
        };
        let carries = matches!(choice, 1 | 2 | 4);
        self.send_header(world, header, if carries { payload } else { &[] }, input);
    }

    fn handshake(&mut self, world: &mut World, input: &mut Input<'_>) {
        let bits = match input.byte() {
            0..=111 => Extras::all().bits() & !Extras::USER_RECV_QP.bits(),
            112..=127 => Extras::all().bits(),
            128..=191 => input.byte().into(),
            _ => input.number(8),
        };
        let words = [bits, 0, u64::MAX, 1];
        let count = input.pick(&[1, 1, 1, 0, 2, 4]);
        let handshake = Handshake {
            extra_info: ExtraInfo::new(&words[..count]).expect("at most four"),
            connid: self.connid(input),
            host_id: input.one_in(2).then_some(9),
            device_version: (!input.one_in(4)).then_some(input.pick(&[0xefa2, 0xefa0])),
            user_recv_qp: input.one_in(2).then(|| UserRecvQp {
                qpn: input.about32(u32::from(self.qpn.0)),
                qkey: input.about32(self.connid.0),
            }),
            hmem_p2p: None,
        };
        self.send_header(world, Header::Handshake(handshake), &[], input);
    }

    /// Sends the response that a correct peer would send to the oldest packet without one, in most cases.
    fn respond(&mut self, world: &mut World, input: &mut Input<'_>) {
        let Some(bytes) = self.unanswered.pop_front() else { return };
        let Ok(packet) = Packet::parse(&bytes) else { return };
        let connid = Some(self.connid);
        let own = OpId(9);
        let grant = |send_id, emulated_read, input: &mut Input<'_>| {
            let recv_length = input.about(1200);
            Header::Cts(Cts { connid, send_id, recv_id: own, recv_length, emulated_read })
        };
        match packet.header {
            Header::Rtm(rtm) => {
                let Some(send_id) = rtm.kind.send_id() else { return };
                let header = match rtm.kind {
                    RtmKind::LongCts { .. } => grant(send_id, false, input),
                    RtmKind::DcLongCts { .. } if !input.one_in(4) => grant(send_id, false, input),
                    RtmKind::LongRead { .. } | RtmKind::RuntRead { .. } if input.one_in(2) => {
                        Header::ReadNack(ReadNack { send_id, recv_id: own, connid })
                    }
                    RtmKind::LongRead { .. } | RtmKind::RuntRead { .. } => {
                        Header::Eor(Eor { send_id, recv_id: own, form: EorForm::Full { connid } })
                    }
                    _ => Header::Receipt(Receipt { send_id, msg_id: rtm.msg_id, connid }),
                };
                self.send_header(world, header, &[], input);
            }
            Header::Rtw(rtw) => match rtw.kind {
                RtwKind::Eager => self.handshake(world, input),
                RtwKind::DcEager { send_id } => {
                    let msg_id = MsgId(0);
                    let header = Header::Receipt(Receipt { send_id, msg_id, connid });
                    self.send_header(world, header, &[], input);
                }
                RtwKind::LongCts { send_id, .. } | RtwKind::DcLongCts { send_id, .. } => {
                    let header = grant(send_id, false, input);
                    self.send_header(world, header, &[], input);
                }
                RtwKind::LongRead { send_id, .. } => {
                    let form = EorForm::Full { connid };
                    let header = Header::Eor(Eor { send_id, recv_id: own, form });
                    self.send_header(world, header, &[], input);
                }
                _ => {}
            },
            Header::Rtr(rtr) => {
                let bytes = input.about(rtr.msg_length.min(480)).min(480) as usize;
                let response = ReadRsp {
                    connid,
                    recv_id: rtr.recv_id,
                    send_id: own,
                    seg_length: bytes as u64,
                };
                note(&mut self.grants, (rtr.recv_id.0, bytes as u64, rtr.recv_length.into()));
                self.send_header(world, Header::ReadRsp(response), pattern(bytes, 7), input);
                self.data(world, rtr.recv_id.0, input);
            }
            Header::Rta(rta) => match rta.kind {
                RtaKind::DcWrite { send_id } => {
                    let header = Header::Receipt(Receipt { send_id, msg_id: rta.msg_id, connid });
                    self.send_header(world, header, &[], input);
                }
                RtaKind::Fetch { recv_id } | RtaKind::Compare { recv_id } => {
                    let bytes = input.about(8).min(480);
                    let header = Header::AtomRsp(AtomRsp { connid, recv_id, seg_length: bytes });
                    self.send_header(world, header, pattern(bytes as usize, 8), input);
                }
                _ => {}
            },
            Header::Cts(cts) => self.data(world, cts.recv_id.0, input),
            Header::ReadNack(nack) => {
                let msg_length = Self::length(input);
                let (send_id, credit_request) = (nack.send_id, 32);
                let kind =
                    RtmKind::LongCts { msg_length, send_id, credit_request, read_nack: true };
                let tag = input.one_in(2).then_some(1 << 63);
                let (msg_id, options) = (self.msg_id(input), self.options(input));
                self.send_header(
                    world,
                    Header::Rtm(Rtm { msg_id, tag, kind, options }),
                    &[],
                    input,
                );
            }
            Header::ReadRsp(response) => {
                let header = grant(response.send_id, true, input);
                self.send_header(world, header, &[], input);
            }
            _ => {}
        }
    }

    /// Sends all bytes that were granted.
    fn data(&mut self, world: &mut World, recv_id: u32, input: &mut Input<'_>) {
        let Some(grant) = self.grants.iter_mut().find(|grant| grant.0 == recv_id) else { return };
        let (_, mut offset, end) = *grant;
        let size = input.pick(&[480, 200, 1]);
        for _ in 0..20 {
            let bytes = end.saturating_sub(offset).min(size);
            if bytes == 0 {
                break;
            }
            let (connid, recv_id) = (Some(self.connid), OpId(recv_id));
            let seg_offset = input.about(offset);
            let data = CtsData { connid, recv_id, seg_length: bytes, seg_offset };
            self.send_header(world, Header::CtsData(data), pattern(bytes as usize, 9), input);
            offset += bytes;
        }
        if let Some(grant) = self.grants.iter_mut().find(|grant| grant.0 == recv_id) {
            grant.1 = offset;
        }
    }

    /// Repeats a packet, possibly from another address.
    fn repeat(&mut self, world: &mut World, input: &mut Input<'_>) {
        if !self.sent.is_empty() {
            let bytes = self.sent[input.below(self.sent.len())].clone();
            self.send(world, bytes);
        }
    }

    /// Sends a packet of the subject back to it.
    fn reflect(&mut self, world: &mut World) {
        if let Some(bytes) = self.unanswered.front().cloned() {
            self.send(world, bytes);
        }
    }

    /// Sends a packet whose fields come from the input.
    pub(crate) fn send_fields(&mut self, world: &mut World, input: &mut Input<'_>) {
        let packet_type = PacketType::ALL[input.below(PacketType::ALL.len())];
        let length = input.number(2) as usize % (MTU - 4);
        let mut bytes = vec![packet_type.as_u8(), 4];
        bytes.extend_from_slice(input.take(length.min(64) + 2));
        bytes.resize((length + 4).max(bytes.len()), 0);
        self.send(world, bytes);
    }

    /// Reports an RDMA write of the hostile peer with immediate data, to memory whose key it has.
    fn device_writes(&mut self, world: &mut World, input: &mut Input<'_>) {
        let data = input.number(4) as u32;
        let place = (self.gid, self.qpn);
        world.log_line(|| format!("hostile peer's device writes with immediate data {data}"));
        world.net.borrow_mut().write_with_data(place, data, 8);
    }

    fn set_device_statuses(world: &mut World, input: &mut Input<'_>) {
        const ANSWERS: [Result<(), Status>; 6] = [
            Ok(()),
            Err(Status::ReceiverNotReady),
            Err(Status::RemoteBadAddress),
            Err(Status::BadDestinationQpn),
            Err(Status::UnresponsiveRemote),
            Err(Status::Flushed),
        ];
        let (answer, rdma_answer) = (input.pick(&ANSWERS), input.pick(&ANSWERS));
        world.log_line(|| {
            format!(
                "hostile peer's device completes sends with {answer:?}, RDMA with {rdma_answer:?}"
            )
        });
        let mut net = world.net.borrow_mut();
        net.answer = answer;
        // Only sends need receive buffers.
        net.rdma_answer = match rdma_answer {
            Err(Status::ReceiverNotReady) => Ok(()),
            other => other,
        };
    }

    /// Performs one action that the input selects.
    pub(crate) fn act(&mut self, world: &mut World, input: &mut Input<'_>) {
        match input.byte() {
            0..=63 => self.message(world, input),
            64..=83 => self.write(world, input),
            84..=99 => self.read(world, input),
            100..=115 => self.atomic(world, input),
            116..=155 => self.about_operation(world, input),
            156..=165 => self.handshake(world, input),
            166..=219 => self.respond(world, input),
            220..=227 => self.repeat(world, input),
            228..=231 => self.reflect(world),
            232..=237 => self.send_fields(world, input),
            238..=243 => self.change(input),
            244..=247 => self.restart(world, input),
            248..=251 => Self::set_device_statuses(world, input),
            _ => self.device_writes(world, input),
        }
    }
}
