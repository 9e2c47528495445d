//! What hostile peers can make an endpoint do: the end of a peer, and each kind of packet while tables are
//! full of what others and former incarnations left.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
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
    let raw_address = Some((address(qpn, connid), RawAddressForm::Padded));
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
    fn others(&mut self, msg_ids: Range<u32>) {
        let end = msg_ids.end;
        for msg_id in msg_ids {
            self.feed(OTHER, &message(options(OTHER, 1), msg_id, RtmKind::Eager), 0);
            if msg_id % BATCH == 0 || msg_id + 1 == end {
                self.poll();
            }
        }
    }

    /// A peer of which nothing is kept, while others' messages are.
    pub(crate) fn with_others(count: u32) -> Box<Self> {
        let mut stage = Self::new();
        let hello = message(options(HOSTILE, 1), 0, RtmKind::Eager);
        stage.endpoint.receive(ANY, vec![0; 8], 0).unwrap();
        stage.say(HOSTILE, &hello, 0);
        stage.others(0..count);
        stage.peer = stage.endpoint.find_peer(&address(HOSTILE, 1));
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

    /// A peer with this many complete messages. The tables that hold what it leaves exist: another peer left a
    /// message.
    pub(crate) fn with_complete(count: u32) -> Box<Self> {
        let mut stage = Self::with_others(1);
        let other = stage.endpoint.find_peer(&address(OTHER, 1)).unwrap();
        stage.endpoint.remove_peer(other);
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

    /// The worst state: messages of another queue pair; 200 former incarnations of the hostile one; a
    /// receive whose ranges can't be more; an unexpected message of 5,000 packets, and a long one; and a
    /// window of messages ahead.
    fn worst(others: u32, window: u32) -> Self {
        let mut stage = Self::new();
        stage.others(0..others / 2);
        for connid in 1..=200 {
            stage.connid = connid;
            stage.say(HOSTILE, &message(options(HOSTILE, connid), 0, RtmKind::Eager), 0);
        }
        let credit_request = 1;
        let length = 1 << 20;
        // A receive with 4,096 ranges: message 1.
        while stage.endpoint.packets_held().held > 0 {
            stage.endpoint.receive(ANY, Vec::new(), 0).unwrap();
            stage.poll();
        }
        stage.endpoint.receive(ANY, Vec::new(), 0).unwrap();
        for range in 0..=4096 {
            stage.rtm(1, RtmKind::Medium { msg_length: length, seg_offset: range * 4 }, 2);
        }
        stage.poll();
        // An unexpected message of many packets: message 2; a long one: message 3.
        for range in 0..5000 {
            stage.rtm(2, RtmKind::Medium { msg_length: length, seg_offset: range * 4 }, 2);
        }
        stage.poll();
        let (msg_length, send_id, read_nack) = (length, OpId(9), false);
        stage.rtm(3, RtmKind::LongCts { msg_length, send_id, credit_request, read_nack }, 8);
        stage.poll();
        stage.others(others / 2..others);
        // All but the expected one.
        for ahead in 1..window {
            stage.rtm(4 + ahead, RtmKind::Eager, 0);
            if ahead % BATCH == 0 {
                stage.poll();
            }
        }
        stage.poll();
        // The queue of events has its room.
        for _ in 0..2 * ROUNDS {
            (MALFORMED.feed)(&mut stage, 0);
        }
        stage.poll();
        stage
    }

    /// The worst state, but small, and packets of one kind that have not arrived. One has: tables that it needs
    /// exist.
    pub(crate) fn with_kind(kind: &Kind) -> Box<Self> {
        let mut stage = Self::worst(2000, 4096);
        (kind.feed)(&mut stage, ROUNDS);
        stage.poll();
        for round in 0..ROUNDS {
            (kind.feed)(&mut stage, round);
        }
        Box::new(stage)
    }

    /// The worst state with so many messages of others, and packets of each kind.
    pub(crate) fn with_each_kind(others: u32) -> Box<Self> {
        let mut stage = Self::worst(others, FULL);
        for round in 0..ROUNDS {
            KINDS.iter().for_each(|kind| (kind.feed)(&mut stage, round));
        }
        Box::new(stage)
    }

    /// A packet of the hostile peer.
    fn own(&mut self, header: &Header<'_>, payload: usize) {
        self.feed(HOSTILE, header, payload);
    }

    /// A message, or a packet of one.
    fn rtm(&mut self, msg_id: u32, kind: RtmKind<'static>, payload: usize) {
        self.own(&message(options(HOSTILE, self.connid), msg_id, kind), payload);
    }

    fn options(&self) -> ReqOptions {
        options(HOSTILE, self.connid)
    }

    fn connid(&self) -> Option<Connid> {
        Some(Connid(self.connid))
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
        let mut stage = Self::worst(OTHERS, FULL);
        let own = options(HOSTILE, stage.connid);
        stage.feed(HOSTILE, &message(own, 4, RtmKind::Eager), 0);
        Box::new(stage)
    }

    /// The worst state, and packets of as many new incarnations.
    pub(crate) fn with_restarts(count: u32) -> Box<Self> {
        let mut stage = Self::worst(OTHERS, FULL);
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

fn address(qpn: u16, connid: u32) -> RawAddress {
    RawAddress { gid: [9; 16], qpn, connid: Connid(connid) }
}

/// Packets that arrive between two calls while a state is made.
const BATCH: u32 = 1024;
/// How often each kind of packet arrives.
pub(crate) const ROUNDS: u64 = 16;
/// Unexpected messages of another queue pair in the worst state.
const OTHERS: u32 = 20_000;
/// Messages ahead of the expected one that a window keeps.
pub(crate) const AHEAD: u64 = FULL as u64 - 1;
/// Messages in a full window, with the expected one.
const FULL: u32 = 1 << 16;

/// A kind of packet, and the limit of instructions for each: what was measured in the worst state, but small, and
/// 1 %.
pub(crate) struct Kind {
    instructions: u64,
    feed: fn(&mut Stage, u64),
}

const fn kind(instructions: u64, feed: fn(&mut Stage, u64)) -> Kind {
    Kind { instructions, feed }
}

impl Kind {
    /// The limit for a run.
    pub(crate) const fn limit(&self) -> u64 {
        self.instructions * ROUNDS
    }
}

const LENGTH: u64 = 1 << 20;
const OP: OpId = OpId(3);
const IOV: [RmaIov; 1] = [RmaIov::new(64, 8, 77)];

const fn longcts(read_nack: bool) -> RtmKind<'static> {
    RtmKind::LongCts { msg_length: 8, send_id: OP, credit_request: 1, read_nack }
}

const fn segment(seg_offset: u64) -> RtmKind<'static> {
    RtmKind::Medium { msg_length: LENGTH, seg_offset }
}

// Messages: ahead and there already, beyond the window, old.
pub(crate) const REPEATED: Kind = kind(1220, |to, _| to.rtm(5, RtmKind::Eager, 0));
pub(crate) const TOO_FAR: Kind = kind(892, |to, _| to.rtm(70_000_000, RtmKind::Eager, 0));
pub(crate) const OLD: Kind = kind(892, |to, _| to.rtm(0, RtmKind::Eager, 0));
pub(crate) const OLD_CONFIRMED: Kind =
    kind(891, |to, _| to.rtm(0, RtmKind::DcEager { send_id: OP }, 0));
pub(crate) const LONG_REPEATED: Kind = kind(1291, |to, _| to.rtm(6, longcts(false), 1));
pub(crate) const LONG_NOT_NACKED: Kind = kind(691, |to, _| to.rtm(3, longcts(true), 0));
// Segments: one range too many; one that closes the first gap, which moves 4,096 ranges (callgrind counts each
// byte of `rep movsb`); of an unexpected message.
pub(crate) const RANGE_TOO_MANY: Kind = kind(1035, |to, _| to.rtm(1, segment(400_001), 1));
pub(crate) const FIRST_GAP: Kind = kind(66_677, |to, round| to.rtm(1, segment(2 + 4 * round), 2));
pub(crate) const UNEXPECTED_SEGMENT: Kind = kind(1113, |to, _| to.rtm(2, segment(30_000), 1));
// Writes, reads and atomics of memory that isn't there.
pub(crate) const WRITE: Kind = kind(673, |to, _| {
    let (kind, options) = (RtwKind::Eager, to.options());
    to.own(&Header::Rtw(Rtw { rma_iov: &IOV, kind, options }), 8);
});
pub(crate) const EMPTY_WRITE: Kind = kind(1629, |to, _| {
    let (kind, options) = (RtwKind::DcEager { send_id: OP }, to.options());
    to.own(&Header::Rtw(Rtw { rma_iov: &[], kind, options }), 0);
});
pub(crate) const LONG_WRITE: Kind = kind(847, |to, _| {
    let kind = RtwKind::LongCts { msg_length: 8, send_id: OP, credit_request: 1 };
    let options = to.options();
    to.own(&Header::Rtw(Rtw { rma_iov: &IOV, kind, options }), 1);
});
pub(crate) const READ: Kind = kind(846, |to, _| {
    let (kind, msg_length, recv_id, recv_length) = (RtrKind::Short, 8, OP, 8);
    let options = to.options();
    let rtr = Rtr { rma_iov: &IOV, kind, msg_length, recv_id, recv_length, options };
    to.own(&Header::Rtr(rtr), 0);
});
pub(crate) const ATOMIC: Kind = kind(1236, |to, _| {
    let (msg_id, datatype, op, kind) = (MsgId(7), 0, 0, RtaKind::Write);
    let options = to.options();
    to.own(&Header::Rta(Rta { msg_id, rma_iov: &IOV, datatype, op, kind, options }), 8);
});
// Answers to operations that aren't.
pub(crate) const CTS: Kind = kind(508, |to, _| {
    let (connid, send_id, recv_id) = (to.connid(), OP, OP);
    let cts = Cts { connid, send_id, recv_id, recv_length: 1, emulated_read: false };
    to.own(&Header::Cts(cts), 0);
});
pub(crate) const CTSDATA: Kind = kind(449, |to, _| {
    let (connid, recv_id) = (to.connid(), OP);
    to.own(&Header::CtsData(CtsData { connid, recv_id, seg_length: 1, seg_offset: 0 }), 1);
});
pub(crate) const READRSP: Kind = kind(514, |to, _| {
    let (connid, recv_id, send_id) = (to.connid(), OP, OP);
    to.own(&Header::ReadRsp(ReadRsp { connid, recv_id, send_id, seg_length: 1 }), 1);
});
pub(crate) const ATOMRSP: Kind = kind(513, |to, _| {
    let (connid, recv_id) = (to.connid(), OP);
    to.own(&Header::AtomRsp(AtomRsp { connid, recv_id, seg_length: 1 }), 1);
});
pub(crate) const EOR: Kind = kind(428, |to, _| {
    let form = EorForm::Full { connid: to.connid() };
    to.own(&Header::Eor(Eor { send_id: OP, recv_id: OP, form }), 0);
});
pub(crate) const RECEIPT: Kind = kind(505, |to, _| to.own(&receipt(to.connid()), 0));
pub(crate) const READ_NACK: Kind = kind(505, |to, _| {
    let connid = to.connid();
    to.own(&Header::ReadNack(ReadNack { send_id: OP, recv_id: OP, connid }), 0);
});
pub(crate) const PEER_ERROR: Kind = kind(712, |to, _| {
    let (op_id, ref_kind, prov_errno, connid) = (OP, 1, 1, to.connid());
    to.own(&Header::PeerError(PeerError { op_id, ref_kind, prov_errno, connid }), 0);
});
pub(crate) const HANDSHAKE: Kind = kind(683, |to, _| {
    let handshake = Handshake {
        extra_info: ExtraInfo::new(&[u64::MAX]).unwrap(),
        connid: to.connid(),
        host_id: None,
        device_version: None,
        user_recv_qp: None,
        hmem_p2p: None,
    };
    to.own(&Header::Handshake(handshake), 0);
});
// Of the incarnation before, of one older than the search, of an unknown queue pair; and no packet.
pub(crate) const STALE: Kind = kind(815, |to, _| {
    to.own(&message(options(HOSTILE, to.connid - 1), 0, RtmKind::Eager), 0);
});
pub(crate) const LONG_STALE: Kind = kind(1437, |to, _| to.own(&receipt(Some(Connid(1))), 0));
pub(crate) const UNKNOWN: Kind = kind(593, |to, _| to.feed(99, &receipt(None), 0));
pub(crate) const MALFORMED: Kind = kind(564, |to, _| {
    to.arrivals.borrow_mut().push_back((vec![0xff; 64], HOSTILE));
});

fn receipt(connid: Option<Connid>) -> Header<'static> {
    Header::Receipt(Receipt { send_id: OP, msg_id: MsgId(1), connid })
}

const KINDS: [&Kind; 27] = [
    &REPEATED,
    &TOO_FAR,
    &OLD,
    &OLD_CONFIRMED,
    &LONG_REPEATED,
    &LONG_NOT_NACKED,
    &RANGE_TOO_MANY,
    &FIRST_GAP,
    &UNEXPECTED_SEGMENT,
    &WRITE,
    &EMPTY_WRITE,
    &LONG_WRITE,
    &READ,
    &ATOMIC,
    &CTS,
    &CTSDATA,
    &READRSP,
    &ATOMRSP,
    &EOR,
    &RECEIPT,
    &READ_NACK,
    &PEER_ERROR,
    &HANDSHAKE,
    &STALE,
    &LONG_STALE,
    &UNKNOWN,
    &MALFORMED,
];
