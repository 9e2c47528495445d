//! What hostile peers can make an endpoint do: the end of a peer, and each kind of packet while tables are
//! full of what others and former incarnations left.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use efa_device::{
    AddressHandle, Completion as Done, DeviceAttributes, DeviceError, Gid, NoRegion, NoTagList,
    PostError, Qkey, Qpn, QueuePair, QueuePairAddress, SendRequest, Source, Time,
};
use efa_proto::{
    AtomRsp, Connid, Cts, CtsData, Eor, EorForm, ExtraInfo, Handshake, Header, MsgId, OpId,
    PeerError, RawAddress, RawAddressForm, ReadNack, ReadRsp, Receipt, ReqOptions, RmaIov, Rta,
    RtaKind, Rtm, RtmKind, Rtr, RtrKind, Rtw, RtwKind,
};
use efa_rdm::{Accept, Config, Endpoint, PeerId};

use crate::counted;

const MTU: usize = 8928;

/// Packets on their way to the endpoint, and from whom.
type Arrivals = Rc<RefCell<VecDeque<(Vec<u8>, u16)>>>;

/// A device that delivers what it is fed, and completes what is sent at once.
pub(crate) struct Fed {
    attributes: DeviceAttributes,
    arrivals: Arrivals,
    /// Buffers for the engine, so that making them isn't counted.
    spare: Vec<Box<[u8]>>,
    posted: Vec<Box<[u8]>>,
    sent: VecDeque<Done<Box<[u8]>>>,
}

impl QueuePair for Fed {
    type Packet = Box<[u8]>;
    type Region = NoRegion;
    type TagList = NoTagList;
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }
    fn address(&self) -> QueuePairAddress {
        QueuePairAddress { gid: Gid([7; 16]), qpn: Qpn(1), qkey: Qkey(1) }
    }
    fn create_address_handle(&mut self, _: Gid) -> Result<AddressHandle, DeviceError> {
        Ok(AddressHandle(0))
    }
    fn destroy_address_handle(&mut self, _: AddressHandle) {}
    fn allocate_packet(&mut self) -> Result<Box<[u8]>, DeviceError> {
        Ok(self.spare.pop().unwrap_or_else(|| vec![0; MTU].into()))
    }
    fn post_send(&mut self, request: SendRequest<Box<[u8]>>) -> Result<(), PostError<Box<[u8]>>> {
        let SendRequest { id, packet, .. } = request;
        self.sent.push_back(Done::Send { id, packet, result: Ok(()) });
        Ok(())
    }
    fn post_receive(&mut self, packet: Box<[u8]>) -> Result<(), PostError<Box<[u8]>>> {
        self.posted.push(packet);
        Ok(())
    }
    fn poll(&mut self, _: Time) -> Option<Done<Box<[u8]>>> {
        if let Some(sent) = self.sent.pop_front() {
            return Some(sent);
        }
        let (bytes, qpn) = self.arrivals.borrow_mut().pop_front()?;
        let mut packet = self.posted.pop()?;
        packet[..bytes.len()].copy_from_slice(&bytes);
        let (address_handle, gid) = (Some(AddressHandle(0)), None);
        let source = Source { address_handle, qpn: Qpn(qpn), gid };
        Some(Done::Receive { packet, length: bytes.len(), source, immediate: None })
    }
    fn next_event(&self) -> Option<Time> {
        None
    }
}

/// The hostile queue pair, and the one of which unexpected messages are kept.
const HOSTILE: u16 = 10;
const OTHER: u16 = 11;

/// An endpoint in a state that peers have brought about.
pub(crate) struct Stage {
    endpoint: Endpoint<Fed, Vec<u8>>,
    arrivals: Arrivals,
    connid: u32,
    peer: Option<PeerId>,
}

fn options(qpn: u16, connid: u32) -> ReqOptions {
    let address = RawAddress { gid: [9; 16], qpn, connid: Connid(connid) };
    let raw_address = Some((address, RawAddressForm::Padded));
    ReqOptions { raw_address, cq_data: None, connid: None }
}

fn message(options: ReqOptions, msg_id: u32, kind: RtmKind<'static>) -> Header<'static> {
    Header::Rtm(Rtm { msg_id: MsgId(msg_id), tag: Some(1), kind, options })
}

const ANY: Accept = Accept::Tagged { source: None, tag: 1, ignore: 0 };

impl Stage {
    fn new() -> Self {
        let arrivals = Arrivals::default();
        let fed = Fed {
            attributes: DeviceAttributes { mtu: MTU, ..DeviceAttributes::default() },
            arrivals: arrivals.clone(),
            spare: (0..5000).map(|_| vec![0; MTU].into()).collect(),
            posted: Vec::with_capacity(5000),
            sent: VecDeque::with_capacity(5000),
        };
        let endpoint = Endpoint::new(fed, Config::default()).unwrap();
        Self { endpoint, arrivals, connid: 1, peer: None }
    }

    fn feed(&mut self, qpn: u16, header: &Header<'_>, payload: usize) {
        let mut bytes = vec![0; header.len() + payload];
        header.emit(&mut bytes).unwrap();
        self.arrivals.borrow_mut().push_back((bytes, qpn));
    }

    fn poll(&mut self) {
        while !self.arrivals.borrow().is_empty() {
            let _ = self.endpoint.poll(Time::ZERO);
        }
        while self.endpoint.poll(Time::ZERO).is_some() {}
        while self.endpoint.poll_event().is_some() {}
    }

    fn say(&mut self, qpn: u16, header: &Header<'_>, payload: usize) {
        self.feed(qpn, header, payload);
        self.poll();
    }

    /// Unexpected messages of another queue pair.
    fn others(&mut self, count: u32) {
        for msg_id in 0..count {
            self.say(OTHER, &message(options(OTHER, 1), msg_id, RtmKind::Eager), 0);
        }
    }

    /// A peer of which nothing is kept, while others' messages are.
    pub(crate) fn with_others(count: u32) -> Box<Self> {
        let mut stage = Self::new();
        let hello = message(options(HOSTILE, 1), 0, RtmKind::Eager);
        stage.endpoint.receive(ANY, vec![0; 8], 0).unwrap();
        stage.say(HOSTILE, &hello, 0);
        stage.others(count);
        stage.peer = stage.endpoint.find_peer(&address(1));
        Box::new(stage)
    }

    /// A peer with this many incomplete messages, among as many of another.
    pub(crate) fn with_incomplete(count: u32) -> Box<Self> {
        let mut stage = Self::with_others(count);
        for msg_id in 1..=count {
            let kind = RtmKind::Medium { msg_length: 64, seg_offset: 0 };
            stage.say(HOSTILE, &message(options(HOSTILE, 1), msg_id, kind), 1);
        }
        stage
    }

    /// A peer with this many complete messages.
    pub(crate) fn with_complete(count: u32) -> Box<Self> {
        let mut stage = Self::with_others(0);
        for msg_id in 1..=count {
            stage.say(HOSTILE, &message(options(HOSTILE, 1), msg_id, RtmKind::Eager), 0);
        }
        stage
    }

    /// A peer with this many messages under way to posted receives.
    pub(crate) fn with_receives(count: u32) -> Box<Self> {
        let mut stage = Self::with_others(0);
        for msg_id in 1..=count {
            stage.endpoint.receive(ANY, Vec::new(), 0).unwrap();
            let kind = RtmKind::Medium { msg_length: 64, seg_offset: 0 };
            stage.say(HOSTILE, &message(options(HOSTILE, 1), msg_id, kind), 1);
        }
        stage
    }

    /// The peer is removed.
    pub(crate) fn remove(mut self: Box<Self>) -> Box<Self> {
        let peer = self.peer.unwrap();
        counted::remove_peer(&mut self.endpoint, peer);
        self
    }

    /// The peer restarts: a packet of another incarnation arrives.
    pub(crate) fn restart(mut self: Box<Self>) -> Box<Self> {
        let next = message(options(HOSTILE, 2), 0, RtmKind::Eager);
        self.feed(HOSTILE, &next, 0);
        let _ = counted::poll(&mut self.endpoint, Time::ZERO);
        self
    }

    /// The worst state: 20,000 messages of another queue pair; 200 former incarnations of the hostile one; a
    /// receive whose ranges can't be more; an unexpected message of 5,000 packets, and a long one; and a
    /// full window.
    fn worst() -> Self {
        let mut stage = Self::new();
        stage.others(10_000);
        for connid in 1..=200 {
            stage.connid = connid;
            stage.say(HOSTILE, &message(options(HOSTILE, connid), 0, RtmKind::Eager), 0);
        }
        let own = options(HOSTILE, stage.connid);
        let credit_request = 1;
        let length = 1 << 20;
        // A receive with 4,096 ranges: message 1.
        while stage.endpoint.packets_held().held > 0 {
            stage.endpoint.receive(ANY, Vec::new(), 0).unwrap();
            stage.poll();
        }
        stage.endpoint.receive(ANY, Vec::new(), 0).unwrap();
        for range in 0..=4096 {
            let kind = RtmKind::Medium { msg_length: length, seg_offset: range * 4 };
            stage.say(HOSTILE, &message(own, 1, kind), 2);
        }
        // An unexpected message of many packets: message 2; a long one: message 3.
        for range in 0..5000 {
            let kind = RtmKind::Medium { msg_length: length, seg_offset: range * 4 };
            stage.say(HOSTILE, &message(own, 2, kind), 2);
        }
        let (msg_length, send_id, read_nack) = (length, OpId(9), false);
        let kind = RtmKind::LongCts { msg_length, send_id, credit_request, read_nack };
        stage.say(HOSTILE, &message(own, 3, kind), 8);
        stage.others_again();
        // All that a window keeps, but for the expected one.
        for ahead in 1..(1 << 16) {
            stage.say(HOSTILE, &message(own, 4 + ahead, RtmKind::Eager), 0);
        }
        stage
    }

    fn others_again(&mut self) {
        for msg_id in 10_000..20_000 {
            self.say(OTHER, &message(options(OTHER, 1), msg_id, RtmKind::Eager), 0);
        }
    }

    /// The worst state, and packets of each kind that have not arrived.
    pub(crate) fn with_each_kind() -> Box<Self> {
        let mut stage = Self::worst();
        for round in 0..ROUNDS {
            stage.feed_each_kind(round);
        }
        Box::new(stage)
    }

    fn feed_each_kind(&mut self, round: u64) {
        let own = options(HOSTILE, self.connid);
        let connid = Some(Connid(self.connid));
        let (op, none): (OpId, &[RmaIov]) = (OpId(3), &[]);
        let iov = [RmaIov::new(64, 8, 77)];
        let medium = |seg_offset| RtmKind::Medium { msg_length: 1 << 20, seg_offset };
        let send_id = op;
        let (msg_length, credit_request) = (8, 1);
        let kinds: Vec<(Header<'_>, usize)> = vec![
            // Messages: repeated, ahead and occupied, beyond the window, old.
            (message(own, 5, RtmKind::Eager), 0),
            (message(own, 70_000_000, RtmKind::Eager), 0),
            (message(own, 0, RtmKind::Eager), 0),
            (message(own, 0, RtmKind::DcEager { send_id }), 0),
            // Segments: one range too many, one that closes the first gap, of an unexpected message.
            (message(own, 1, medium(400_001)), 1),
            (message(own, 1, medium(2 + 4 * round)), 2),
            (message(own, 2, medium(30_000)), 1),
            (
                message(
                    own,
                    6,
                    RtmKind::LongCts { msg_length, send_id, credit_request, read_nack: false },
                ),
                1,
            ),
            (
                message(
                    own,
                    3,
                    RtmKind::LongCts { msg_length, send_id, credit_request, read_nack: true },
                ),
                0,
            ),
            // Writes, reads and atomics of memory that isn't there.
            (Header::Rtw(Rtw { rma_iov: &iov, kind: RtwKind::Eager, options: own }), 8),
            (
                Header::Rtw(Rtw {
                    rma_iov: none,
                    kind: RtwKind::DcEager { send_id },
                    options: own,
                }),
                0,
            ),
            (
                Header::Rtw(Rtw {
                    rma_iov: &iov,
                    kind: RtwKind::LongCts { msg_length, send_id, credit_request },
                    options: own,
                }),
                1,
            ),
            (
                Header::Rtr(Rtr {
                    rma_iov: &iov,
                    kind: RtrKind::Short,
                    msg_length,
                    recv_id: op,
                    recv_length: 8,
                    options: own,
                }),
                0,
            ),
            (
                Header::Rta(Rta {
                    msg_id: MsgId(7),
                    rma_iov: &iov,
                    datatype: 0,
                    op: 0,
                    kind: RtaKind::Write,
                    options: own,
                }),
                8,
            ),
            // Answers to operations that aren't.
            (
                Header::Cts(Cts {
                    connid,
                    send_id,
                    recv_id: op,
                    recv_length: 1,
                    emulated_read: false,
                }),
                0,
            ),
            (Header::CtsData(CtsData { connid, recv_id: op, seg_length: 1, seg_offset: 0 }), 1),
            (Header::ReadRsp(ReadRsp { connid, recv_id: op, send_id, seg_length: 1 }), 1),
            (Header::AtomRsp(AtomRsp { connid, recv_id: op, seg_length: 1 }), 1),
            (Header::Eor(Eor { send_id, recv_id: op, form: EorForm::Full { connid } }), 0),
            (Header::Receipt(Receipt { send_id, msg_id: MsgId(1), connid }), 0),
            (Header::ReadNack(ReadNack { send_id, recv_id: op, connid }), 0),
            (Header::PeerError(PeerError { op_id: op, ref_kind: 1, prov_errno: 1, connid }), 0),
            (
                Header::Handshake(Handshake {
                    extra_info: ExtraInfo::new(&[u64::MAX]).unwrap(),
                    connid,
                    host_id: None,
                    device_version: None,
                    user_recv_qp: None,
                }),
                0,
            ),
            // A stale incarnation, one older than the search, and an unknown sender.
            (message(options(HOSTILE, self.connid - 1), 0, RtmKind::Eager), 0),
            (Header::Receipt(Receipt { send_id, msg_id: MsgId(1), connid: Some(Connid(1)) }), 0),
        ];
        for (header, payload) in &kinds {
            self.feed(HOSTILE, header, *payload);
        }
        self.feed(99, &Header::Receipt(Receipt { send_id, msg_id: MsgId(1), connid: None }), 0);
        self.arrivals.borrow_mut().push_back((vec![0xff; 64], HOSTILE));
    }

    /// Handles all that has arrived.
    pub(crate) fn handle(mut self: Box<Self>) -> Box<Self> {
        while !self.arrivals.borrow().is_empty() {
            let _ = counted::poll(&mut self.endpoint, Time::ZERO);
        }
        self
    }

    /// The worst state, and the packet that all in the window wait for.
    pub(crate) fn with_full_window() -> Box<Self> {
        let mut stage = Self::worst();
        let own = options(HOSTILE, stage.connid);
        stage.feed(HOSTILE, &message(own, 4, RtmKind::Eager), 0);
        Box::new(stage)
    }

    /// The worst state, and packets of as many new incarnations.
    pub(crate) fn with_restarts(count: u32) -> Box<Self> {
        let mut stage = Self::worst();
        // The first ends the one whose window is full.
        for connid in 0..=count {
            let hello = message(options(HOSTILE, 1000 + connid), 0, RtmKind::Eager);
            stage.feed(HOSTILE, &hello, 0);
            if connid == 0 {
                stage.poll();
            }
        }
        Box::new(stage)
    }
}

fn address(connid: u32) -> RawAddress {
    RawAddress { gid: [9; 16], qpn: HOSTILE, connid: Connid(connid) }
}

/// How often each kind of packet arrives.
pub(crate) const ROUNDS: u64 = 16;
/// Kinds of packets.
pub(crate) const KINDS: u64 = 27;
/// Messages ahead of the expected one that a window keeps.
pub(crate) const AHEAD: u64 = (1 << 16) - 1;
