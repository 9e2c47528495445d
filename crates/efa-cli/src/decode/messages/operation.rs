//! One operation, as its packets show it.

use std::fmt;

use efa_device::Status;
use efa_proto::{Header, PacketType, PeerError, PeerErrorReport, Rtm, RtmKind, Rtr};
use efa_sim::record::{PacketEvent, QueuePairId};

use super::{Ends, Key};
use crate::decode::Entry;
use crate::decode::operations::{OperationId, Role, is_repeated};

/// Something that is counted as it was sent, and as it was received.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    sent: u64,
    received: u64,
}

impl Seen {
    /// Adds to what this event counts. What failed was not sent.
    fn add(&mut self, event: PacketEvent, count: u64) {
        match event {
            PacketEvent::Sent => self.sent = self.sent.saturating_add(count),
            PacketEvent::Received => self.received = self.received.saturating_add(count),
            PacketEvent::Failed(_) => self.sent = self.sent.saturating_sub(count),
        }
    }

    fn of(self, event: PacketEvent) -> u64 {
        match event {
            PacketEvent::Sent => self.sent,
            PacketEvent::Received => self.received,
            PacketEvent::Failed(_) => 0,
        }
    }

    /// What there was, as far as either side's capture says.
    pub(super) fn count(self) -> u64 {
        self.sent.max(self.received)
    }
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// All packets that it takes were there.
    Complete,
    /// A packet could not be delivered.
    Failed(Status),
    /// The other side reported an error, with this number.
    Refused(u32),
    /// For what there was not.
    Waits(Wait),
}

/// What an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// A packet that met a receiver that was not ready, to be sent again.
    Resend,
    /// A packet of this type.
    Packet(PacketType),
    /// More bytes to be sent.
    Data { there: u64, of: u64 },
    /// Its receiver to take packets that were sent.
    Delivery { received: u64, sent: u64 },
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Complete => f.write_str("complete"),
            Self::Failed(status) => write!(f, "failed ({status})"),
            Self::Refused(errno) => write!(f, "refused by PEER_ERROR {errno}"),
            Self::Waits(Wait::Resend) => f.write_str("waits to be sent again (receiver not ready)"),
            Self::Waits(Wait::Packet(packet_type)) => write!(f, "waits for {packet_type}"),
            Self::Waits(Wait::Data { there, of }) => {
                write!(f, "waits for data: {there} of {of} bytes")
            }
            Self::Waits(Wait::Delivery { received, sent }) => {
                write!(f, "waits for its receiver: {received} of {sent} packets taken")
            }
        }
    }
}

/// A message, write, read or atomic.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) ends: Ends,
    /// Of the first request.
    pub(super) packet_type: PacketType,
    pub(super) msg_id: Option<u32>,
    pub(super) tag: Option<u64>,
    pub(super) send_id: Option<OperationId>,
    pub(super) recv_id: Option<OperationId>,
    /// Bytes of all its data.
    pub(super) length: u64,
    /// Nanoseconds, from the first packet of the captures to its first one, and to its last.
    pub(super) times: [i128; 2],
    /// Packets of the requester, and of the responder.
    pub(super) packets: [Seen; 2],
    /// Packets that met a receiver that was not ready.
    pub(super) not_ready: u64,
    /// Whether a packet matches the filters.
    pub(super) matches: bool,
    key: Key,
    /// Requests, and bytes of data in them.
    requests: Seen,
    requested: Seen,
    /// Bytes of data in all packets.
    data: Seen,
    /// Bytes granted by CTS, and by the request to read.
    granted: Seen,
    /// Bytes of data that come in packets.
    in_packets: u64,
    answers: Answers,
    /// Packets that were not sent again after their receiver was not ready.
    held_back: u64,
    failure: Option<Status>,
    refusal: Option<u32>,
}

/// Packets that end something.
#[derive(Clone, Copy, Debug, Default)]
struct Answers {
    eor: bool,
    receipt: bool,
    atom_rsp: bool,
    read_nack: bool,
    /// The request was repeated after a READ_NACK.
    repeated: bool,
}

/// Bytes behind the header.
fn payload(entry: &Entry<'_>, header: &Header<'_>) -> u64 {
    entry.length.saturating_sub(header.len()) as u64
}

/// Whether the responder reads data from the requester's memory.
fn is_read(request: PacketType) -> bool {
    use PacketType as T;
    matches!(
        request,
        T::LongReadMsgRtm
            | T::LongReadTagRtm
            | T::LongReadRtw
            | T::RuntReadMsgRtm
            | T::RuntReadTagRtm
    )
}

/// Whether a RECEIPT ends the operation.
fn is_confirmed(request: PacketType) -> bool {
    use PacketType as T;
    matches!(
        request,
        T::DcEagerMsgRtm
            | T::DcEagerTagRtm
            | T::DcMediumMsgRtm
            | T::DcMediumTagRtm
            | T::DcLongCtsMsgRtm
            | T::DcLongCtsTagRtm
            | T::DcEagerRtw
            | T::DcLongCtsRtw
            | T::DcWriteRta
    )
}

impl Operation {
    /// The operation that begins with this request, which is still to be added.
    pub(super) fn new(entry: &Entry<'_>, header: &Header<'_>, ends: Ends, key: Key) -> Self {
        let payload = payload(entry, header);
        let length = header.msg_length().unwrap_or(payload);
        let in_packets = match header {
            Header::Rtm(Rtm { kind: RtmKind::RuntRead { runt_length, .. }, .. }) => *runt_length,
            _ if is_read(header.packet_type()) => 0,
            _ => length,
        };
        let first_grant = match header {
            Header::Rtr(Rtr { recv_length, .. }) => (*recv_length).into(),
            _ => 0,
        };
        Self {
            ends,
            packet_type: header.packet_type(),
            msg_id: header.msg_id().map(|id| id.0),
            tag: header.tag(),
            send_id: None,
            recv_id: None,
            length,
            times: [entry.elapsed; 2],
            packets: [Seen::default(); 2],
            not_ready: 0,
            matches: false,
            key,
            requests: Seen::default(),
            requested: Seen::default(),
            data: Seen::default(),
            granted: Seen { sent: first_grant, received: first_grant },
            in_packets,
            answers: Answers::default(),
            held_back: 0,
            failure: None,
            refusal: None,
        }
    }

    /// Whether a request with the same number or bytes is one of this operation: the first one of this event, a further
    /// segment, or one that is sent again. Otherwise it begins another.
    pub(super) fn takes(&self, entry: &Entry<'_>, header: &Header<'_>) -> bool {
        let event = entry.record.event;
        if is_repeated(header) {
            return true;
        }
        if header.packet_type() != self.packet_type {
            return false;
        }
        match event {
            PacketEvent::Failed(_) => true,
            // Segments are as many as their bytes are.
            _ if header.seg_offset().is_some() && self.in_packets > 0 => {
                self.requested.of(event) < self.in_packets
            }
            _ => self.requests.of(event) == 0,
        }
    }

    /// Adds a packet.
    pub(super) fn add(&mut self, entry: &Entry<'_>, header: &Header<'_>) {
        let record = entry.record;
        let event = record.event;
        let [begun, last] = &mut self.times;
        (*begun, *last) = ((*begun).min(entry.elapsed), (*last).max(entry.elapsed));
        let is_requesters = record.source == self.ends.requester;
        self.packets[usize::from(!is_requesters)].add(event, 1);
        match event {
            PacketEvent::Failed(Status::ReceiverNotReady) => {
                self.not_ready += 1;
                self.held_back += 1;
            }
            PacketEvent::Failed(status) => {
                self.failure.get_or_insert(status);
            }
            PacketEvent::Sent => self.held_back = self.held_back.saturating_sub(1),
            PacketEvent::Received => {}
        }
        let payload = payload(entry, header);
        let was_there = !matches!(event, PacketEvent::Failed(_));
        let answers = &mut self.answers;
        match header {
            Header::Rtm(_) | Header::Rtw(_) | Header::Rta(_) | Header::Rtr(_) => {
                self.requests.add(event, 1);
                self.requested.add(event, payload);
                self.data.add(event, payload);
                if is_repeated(header) {
                    answers.repeated |= was_there;
                    self.in_packets = self.length;
                }
            }
            Header::CtsData(_) | Header::ReadRsp(_) => self.data.add(event, payload),
            Header::Cts(cts) => self.granted.add(event, cts.recv_length),
            Header::Eor(_) => answers.eor |= was_there,
            Header::Receipt(_) => answers.receipt |= was_there,
            Header::AtomRsp(_) => answers.atom_rsp |= was_there,
            Header::ReadNack(_) => answers.read_nack |= was_there,
            Header::PeerError(PeerError { prov_errno, .. })
            | Header::PeerErrorReport(PeerErrorReport { prov_errno, .. }) => {
                self.refusal.get_or_insert(*prov_errno);
            }
            _ => {}
        }
    }

    /// Notes what one of its sides calls it. Returns what it was called before, if that is something else.
    pub(super) fn learn(&mut self, id: OperationId) -> Option<OperationId> {
        let known = match id.role {
            Role::Sender => self.send_id.replace(id),
            Role::Receiver => self.recv_id.replace(id),
        };
        known.filter(|known| *known != id)
    }

    /// By what its packets are found.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> + use<> {
        let ids = [self.send_id, self.recv_id].into_iter().flatten().map(Key::Id);
        ids.chain([self.key])
    }

    /// How far it is. `receives` says whether a queue pair has what it receives in the captures.
    pub(super) fn state(&self, receives: impl Fn(QueuePairId) -> bool) -> State {
        match (self.refusal, self.failure) {
            (Some(errno), _) => return State::Refused(errno),
            (None, Some(status)) => return State::Failed(status),
            (None, None) => {}
        }
        self.wait(receives).map_or(State::Complete, State::Waits)
    }

    fn wait(&self, receives: impl Fn(QueuePairId) -> bool) -> Option<Wait> {
        use PacketType as T;
        let Answers { eor, receipt, atom_rsp, read_nack, repeated } = self.answers;
        if self.held_back > 0 {
            return Some(Wait::Resend);
        }
        if read_nack && !repeated {
            let tagged = self.packet_type.is_tagged();
            return Some(Wait::Packet(if tagged { T::LongCtsTagRtm } else { T::LongCtsMsgRtm }));
        }
        let there = self.data.count();
        if there < self.in_packets {
            return Some(self.next_data(there));
        }
        let receivers = [self.ends.responder, self.ends.requester];
        for (Seen { sent, received }, receiver) in self.packets.into_iter().zip(receivers) {
            if received < sent && receives(receiver) {
                return Some(Wait::Delivery { received, sent });
            }
        }
        let missing = [
            (T::Eor, is_read(self.packet_type) && !repeated && !eor),
            (T::Receipt, is_confirmed(self.packet_type) && !receipt),
            (T::AtomRsp, matches!(self.packet_type, T::FetchRta | T::CompareRta) && !atom_rsp),
        ];
        missing.into_iter().find(|(_, is_missing)| *is_missing).map(|(it, _)| Wait::Packet(it))
    }

    /// What is to come before all of its data was in packets.
    fn next_data(&self, there: u64) -> Wait {
        use PacketType as T;
        let of = self.in_packets;
        match self.packet_type {
            T::ShortRtr | T::LongCtsRtr if there == 0 => Wait::Packet(T::ReadRsp),
            T::MediumMsgRtm | T::MediumTagRtm | T::DcMediumMsgRtm | T::DcMediumTagRtm => {
                Wait::Data { there, of }
            }
            // Of a runting read its leading part.
            T::RuntReadMsgRtm | T::RuntReadTagRtm if !self.answers.repeated => {
                Wait::Data { there, of }
            }
            _ => {
                let by_grant = there.saturating_sub(self.requested.count());
                if by_grant >= self.granted.count() {
                    Wait::Packet(T::Cts)
                } else {
                    Wait::Data { there, of }
                }
            }
        }
    }
}
