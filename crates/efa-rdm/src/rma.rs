//! One-sided operations: writing and reading a peer's memory (sections 3.3, 4.1, 4.2 and 4.6).
//!
//! ```text
//!   requester                                        responder
//!     │════════════ RDMA write or read ════════════════►│ direct: by the devices alone
//!
//!     │── EAGER_RTW (rma_iov, all data) ───────────────►│ check, copy
//!     │── LONGCTS_RTW (rma_iov, first data) ───────────►│ check; CTS, CTSDATA as for messages
//!     │── LONGREAD_RTW (rma_iov, read_iov) ────────────►│ check; RDMA read, EOR
//!
//!     │── SHORT_RTR (rma_iov, recv_id) ────────────────►│ check
//!     │◄─────────────── READRSP (recv_id, all data) ────│
//!     │── LONGCTS_RTR (rma_iov, recv_id, window) ──────►│ check
//!     │◄──── READRSP (recv_id, send_id, first data) ────│
//!     │◄──────────── CTSDATA (recv_id, offset) ─────────│
//!     │── CTS (send_id, flag EMULATED_READ) ───────────►│ the next window
//! ```
//!
//! A request for memory that isn't registered for the access is dropped, with an event at the
//! responder. The requester's operation fails if the device does it (direct) or both sides have
//! [PEER_ERROR](crate::peer_error); the protocol has no other error response.

use efa_device::{Access, QueuePair, Region as _, Status};
use efa_handshake::{Extras, Support};
use efa_proto::{OpId, PacketType, ReadRsp, ReqOptions, RmaIov, Rtr, RtrKind, Rtw, RtwKind};

use crate::completion::{Completion, Level, OperationError, Refused, StartError};
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::event::{DropReason, Event};
use crate::ids::PeerId;
use crate::memory::{Exposed, Memory, RemoteUse};
use crate::operations::{
    Operations, Reading, Receive, ReceiveRole, RemoteId, Send, SendOn, SendRole,
};
use crate::payload::Payload;
use crate::peer::Begun;
use crate::remote::{self, NO_PIECES, Remote};
use crate::segment::Segment;
use crate::select::{self, Inputs, Operation, Subprotocol};
use crate::shape::Shape;
use crate::transfer::{Owner, Transfer};
use crate::work::{Advance, InFlight, Work};

/// A write to memory of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Write<B> {
    /// The peer.
    pub peer: PeerId,
    /// The peer's memory to write to.
    pub remote: Remote,
    /// The data, as long as `remote`.
    pub buffer: B,
    /// Remote CQ data: 64 bits for a completion at the peer. Without it the peer gets none.
    pub cq_data: Option<u64>,
    /// When the write completes.
    pub level: Level,
    /// Returned with the completion.
    pub context: u64,
}

/// A read of memory of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Read<B> {
    /// The peer.
    pub peer: PeerId,
    /// The peer's memory to read.
    pub remote: Remote,
    /// The buffer to read into, as long as `remote`.
    pub buffer: B,
    /// Returned with the completion.
    pub context: u64,
}

/// Length of a READRSP's header in bytes.
const READRSP_HEADER: usize = 24;

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// Starts a write to a peer's memory (`fi_write`). Writes aren't ordered, neither among each other
    /// nor with messages. Those to a peer whose HANDSHAKE hasn't arrived wait for it, and messages after them too.
    ///
    /// # Errors
    /// Returns the buffer if the peer is unknown or has ended, too many operations are under way, or
    /// buffer and remote memory differ in length.
    pub fn write(&mut self, write: Write<B>) -> Result<(), Refused<B>> {
        let Write { peer, remote, buffer, cq_data, level, context } = write;
        let length = buffer.length();
        let started = self
            .core_mut()
            .check_remote(peer, &remote, length)
            .and_then(|()| self.matching.ops.check_new_send());
        if let Err(error) = started {
            return Err(Refused { error, buffer });
        }
        let role = SendRole::Write { remote: self.matching.ops.remotes.insert(remote) as RemoteId };
        let mut send = Send::new(peer, role, Memory::Buffer(buffer), length, context);
        (send.cq_data, send.level) = (cq_data, level);
        let id = self.matching.ops.add_send(send);
        self.core_mut().start_write(peer, id);
        Ok(())
    }

    /// Starts a read of a peer's memory (`fi_read`). Reads aren't ordered.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read(&mut self, read: Read<B>) -> Result<(), Refused<B>> {
        let Read { peer, remote, buffer, context } = read;
        let length = buffer.length();
        let started = self
            .core_mut()
            .check_remote(peer, &remote, length)
            .and_then(|()| self.matching.check_reads());
        let started = started.and_then(|()| self.matching.ops.receives.check());
        if let Err(error) = started {
            return Err(Refused { error, buffer });
        }
        let role =
            ReceiveRole::Read { remote: self.matching.ops.remotes.insert(remote) as RemoteId };
        let (memory, coverage) = (Memory::Buffer(buffer), self.matching.ops.coverage());
        let receive = Receive { context, ..Receive::new(peer, role, memory, length, coverage) };
        let id = self.matching.ops.add_receive(receive);
        if length == 0 {
            self.matching.ops.end_receive(id, None);
        } else {
            self.core_mut().when_known(peer, Work::Read(id));
        }
        Ok(())
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    pub(crate) fn check_remote(
        &mut self,
        peer: PeerId,
        remote: &Remote,
        buffer: u64,
    ) -> Result<(), StartError> {
        self.check_peer(peer)?;
        let remote = remote::total(remote.pieces()).unwrap_or(u64::MAX);
        if remote == buffer { Ok(()) } else { Err(StartError::LengthsDiffer { buffer, remote }) }
    }

    /// Registers a buffer, without remote access, if it is longer than a bounce region. Returns whether the device reaches
    /// it: it is registered, or there is a bounce region. If not, packets do what the device can't.
    fn reach(&mut self, memory: &mut Memory<B, Q::Region>, length: u64) -> bool {
        let bounce_size = self.config.bounce_size;
        memory.is_registered()
            || (length > bounce_size as u64
                && memory.register(&self.transmit.device, Access::default()))
            || self.transmit.has_bounce(bounce_size)
    }

    /// Whether a write with immediate data may be sent: both sides announce unsolicited write receives,
    /// or neither does.
    fn may_send_immediate(&self, peer: PeerId) -> bool {
        let Some(active) = self.peers.active(peer) else { return false };
        let ours = self.config.profile.extras.contains(Extras::UNSOLICITED_WRITE_RECV);
        let theirs = active.handshake.supports(Extras::UNSOLICITED_WRITE_RECV) == Support::Yes;
        ours == theirs
    }

    /// `Some` if the write can be done by RDMA, with its immediate data if it has any.
    fn direct_immediate(
        &mut self,
        send: &mut SendOn<Q, B>,
        remote: &Remote,
    ) -> Option<Option<u32>> {
        let Send { peer, length, cq_data, .. } = *send;
        if length == 0 || !remote.is_of_device() || !self.both_announce(peer, Extras::RDMA_WRITE) {
            return None;
        }
        let Some(data) = cq_data else {
            return self.reach(&mut send.memory, length).then_some(None);
        };
        // Immediate data needs a single RDMA operation. The buffer is registered last: without remote
        // access, it couldn't be used for a long-read write.
        let single = remote.pieces().len() == 1 && length <= self.longest_rdma();
        let data = u32::try_from(data).ok().filter(|_| single && self.may_send_immediate(peer))?;
        if !self.reach(&mut send.memory, length) {
            return None;
        }
        let range = send.memory.exposed_from(0);
        let most = range.map_or(self.config.bounce_size, |range| range.length);
        let in_one = length <= most as u64;
        in_one.then_some(Some(data))
    }

    /// Looks up local memory that a peer's request names. If access is refused, queues an event, and a
    /// PEER_ERROR for the operation `asked`.
    pub(crate) fn exposed(
        &mut self,
        peer: PeerId,
        asked: Option<OpId>,
        iov: &[RmaIov],
        wanted: RemoteUse,
    ) -> Option<Exposed<Q::Region>> {
        let device = &self.transmit.device;
        let of_device = |key| {
            let region = device.region(u32::try_from(key).ok()?)?;
            let first = region.remote_address();
            Some((region, first))
        };
        let found = match &self.keyed {
            None => Exposed::find(iov, wanted, of_device),
            Some(keyed) => Exposed::find(iov, wanted, |key| keyed.find(key)),
        };
        match found {
            Ok(exposed) => Some(exposed),
            Err(error) => {
                self.statistics.access_refused += 1;
                self.events.push(Event::AccessRefused { peer, error });
                self.give_up(peer, asked, Status::RemoteBadAddress.code().into());
                None
            }
        }
    }

    fn send_longcts_write(
        &mut self,
        id: OpId,
        send: &mut SendOn<Q, B>,
        remote: &Remote,
        options: ReqOptions,
    ) -> Advance {
        let (msg_length, send_id, credit_request) = (send.length, id, self.config.cts_window);
        let kind = match send.level {
            Level::Inject | Level::Transmit => {
                RtwKind::LongCts { msg_length, send_id, credit_request }
            }
            Level::Delivery => RtwKind::DcLongCts { msg_length, send_id, credit_request },
        };
        let rtw = Rtw { rma_iov: remote.pieces(), kind, options };
        // At least one byte must be left for the peer to grant.
        let first = self.left_of_packet(rtw.len()).min(msg_length - 1);
        let advance =
            self.post_segment(id, send, rtw.packet_type(), first, |packet| rtw.emit(packet));
        send.window_end = send.sent;
        advance
    }

    fn send_longread_write(
        &mut self,
        id: OpId,
        send: &mut SendOn<Q, B>,
        remote: &Remote,
        options: ReqOptions,
    ) -> Advance {
        let mut pieces = NO_PIECES;
        let readable = send.memory.read_iov(send.length, &mut pieces);
        let Some(read_iov) = readable else { return Advance::Done };
        send.in_packets = 0;
        let kind = RtwKind::LongRead { msg_length: send.length, send_id: id, read_iov };
        let rtw = Rtw { rma_iov: remote.pieces(), kind, options };
        self.post_segment(id, send, rtw.packet_type(), 0, |packet| rtw.emit(packet))
    }

    /// Sends the READRSP with the first data of a peer's read.
    pub(crate) fn send_readrsp(&mut self, id: OpId, send: &mut SendOn<Q, B>) -> Advance {
        let response = ReadRsp {
            connid: self.packet_connid(),
            recv_id: send.recv_id,
            send_id: id,
            seg_length: self.left_of_packet(READRSP_HEADER).min(send.window_end),
        };
        let emit = |packet: &mut [u8]| response.emit(packet);
        let advance = self.post_segment(id, send, PacketType::ReadRsp, response.seg_length, emit);
        if advance != Advance::Done {
            return advance;
        }
        send.subprotocol = Some(Subprotocol::LongCts);
        let more = send.sent < send.window_end;
        if let Some(active) = self.peers.active_mut(send.peer) {
            active.handshake.request_posted();
        }
        if more { Advance::More } else { Advance::Done }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Selects the subprotocol of a write, and posts its first packet or starts its transfer.
    pub(crate) fn begin_write(&mut self, id: OpId, remote: RemoteId) -> Advance {
        let Some(remote) = self.remotes.get(remote as usize).copied() else {
            return Advance::Done;
        };
        let Self { core, sends, .. } = self;
        let Some(send) = sends.get_mut(id) else { return Advance::Done };
        let Send { peer, length, level, cq_data, read_nack, outstanding: before, .. } = *send;
        let direct = if read_nack { None } else { core.direct_immediate(send, &remote) };
        let inputs = Inputs { direct: direct.is_some(), ..Inputs::default() };
        if let Some(immediate) = direct
            && select::subprotocol(Operation::Write, inputs) == Subprotocol::Direct
        {
            self.write_directly(id, remote, immediate);
            return Advance::Done;
        }
        let options = core.request_options(peer, cq_data);
        let kind = match level {
            Level::Inject | Level::Transmit => RtwKind::Eager,
            Level::Delivery => RtwKind::DcEager { send_id: id },
        };
        let rtw = Rtw { rma_iov: remote.pieces(), kind, options };
        let fits = core.left_of_packet(rtw.len());
        let readable =
            !read_nack && length >= core.config.min_read_write && core.make_readable(send);
        let inputs = Inputs { readable, fits: length <= fits, ..inputs };
        let chosen = select::subprotocol(Operation::Write, inputs);
        let missing = core.peers.active(peer).map(|active| active.missing(level));
        let missing = missing.unwrap_or(Extras::empty());
        if matches!(chosen, Subprotocol::Eager | Subprotocol::LongCts) && !missing.is_empty() {
            self.fail_send(id, OperationError::PeerLacks { missing });
            return Advance::Done;
        }
        let advance = match chosen {
            Subprotocol::LongRead => core.send_longread_write(id, send, &remote, options),
            Subprotocol::Eager => {
                let emit = |packet: &mut [u8]| rtw.emit(packet);
                core.post_segment(id, send, rtw.packet_type(), length, emit)
            }
            _ => core.send_longcts_write(id, send, &remote, options),
        };
        core.note_subprotocol(send, chosen, before);
        advance
    }

    fn write_directly(&mut self, id: OpId, remote: Remote, immediate: Option<u32>) {
        let Some(send) = self.sends.get_mut(id) else { return };
        send.subprotocol = Some(Subprotocol::Direct);
        send.in_packets = 0;
        let (peer, owner) = (send.peer, Owner::Write { send: id, immediate });
        let transfer = Transfer::new(peer, owner, remote, 0, send.length);
        self.begin_transfer(transfer);
    }

    /// Ends a direct write: the device has written everything, or `failed`. Returns its completion.
    pub(crate) fn memory_written(
        &mut self,
        id: OpId,
        failed: Option<OperationError>,
    ) -> Option<Completion<B>> {
        let peer = self.sends.get(id).map(|send| send.peer);
        let completion = self.send_end(id, failed.map_or(Ok(()), Err));
        self.core.lose_if_gone(peer, failed);
        completion
    }

    /// Handles a peer's RTW: checks the request and the memory it names, and starts a receive into it.
    pub(crate) fn rtw_arrived(&mut self, peer: PeerId, rtw: &Rtw<'_>, payload: &[u8]) {
        // An RTW without data and target memory is sent only to elicit our HANDSHAKE, which is queued
        // already. With CQ data it is a write of length 0, which is reported.
        let has_data = !payload.is_empty() || rtw.options.cq_data.is_some();
        if rtw.rma_iov.is_empty() && rtw.kind == RtwKind::Eager && !has_data {
            return;
        }
        let bytes = payload.len() as u64;
        let (shape, checked) = Shape::of_write(rtw, payload);
        let asked = shape.asked();
        if let Err(reason) = checked {
            return self.core.refuse(peer, asked, reason);
        }
        let memory = self.core.exposed(peer, asked, rtw.rma_iov, RemoteUse::Write);
        let Some(memory) = memory else { return };
        if !self.may_be_requested() || !self.core.may_begin(peer, Begun::Request) {
            return self.core.refuse(peer, asked, DropReason::TooManyOperations);
        }
        let (memory, coverage) = (Memory::Exposed(Box::new(memory)), self.coverage());
        let id = self.add_receive(Receive {
            cq_data: rtw.options.cq_data,
            subprotocol: Some(shape.subprotocol),
            granted: bytes,
            send_id: shape.send_id,
            receipt: shape.receipt,
            ..Receive::new(peer, ReceiveRole::Written, memory, shape.length, coverage)
        });
        self.core.count_begun(peer, Begun::Request);
        match rtw.kind {
            RtwKind::LongRead { read_iov, .. } => self.begin_longread(peer, id, &shape, read_iov),
            RtwKind::LongCts { .. } | RtwKind::DcLongCts { .. } => {
                self.begin_longcts(peer, id, payload);
            }
            _ if bytes == 0 => self.end_receive(id, None),
            _ => self.segment_arrived(id, 0, payload),
        }
    }

    /// Selects the subprotocol of a read, and posts its request or starts its transfer.
    pub(crate) fn begin_read(&mut self, id: OpId) -> Advance {
        let Some(receive) = self.receives.get_mut(id) else { return Advance::Done };
        let ReceiveRole::Read { remote } = receive.role else { return Advance::Done };
        let (peer, length) = (receive.peer, receive.length);
        let Some(remote) = self.remotes.get(remote as usize).copied() else {
            return Advance::Done;
        };
        let direct = remote.is_of_device() && self.core.can_read(peer);
        let direct = direct && self.core.reach(&mut receive.memory, length);
        let capacity = self.core.left_of_packet(READRSP_HEADER);
        let inputs = Inputs {
            direct,
            // libfabric uses a LONGCTS_RTR for a read that exactly fills a READRSP, too.
            fits: length < capacity,
            ..Inputs::default()
        };
        let chosen = select::subprotocol(Operation::Read, inputs);
        let (kind, window) = match chosen {
            Subprotocol::Direct => {
                self.read_directly(id, remote);
                return Advance::Done;
            }
            Subprotocol::Eager => (RtrKind::Short, length),
            _ => {
                let window = capacity.saturating_mul(self.core.config.cts_window.into());
                (RtrKind::LongCts, length.min(window))
            }
        };
        let recv_length = u32::try_from(window).unwrap_or(u32::MAX);
        let rtr = Rtr {
            rma_iov: remote.pieces(),
            kind,
            msg_length: length,
            recv_id: id,
            recv_length,
            options: self.core.request_options(peer, None),
        };
        let record = |length| InFlight::control(peer, rtr.packet_type(), length);
        let advance = self.post_control(record, |packet| rtr.emit(packet));
        if advance == Advance::Done
            && let Some(receive) = self.receives.get_mut(id)
        {
            receive.subprotocol = Some(chosen);
            receive.granted = recv_length.into();
        }
        advance
    }

    fn read_directly(&mut self, id: OpId, remote: Remote) {
        let Some(receive) = self.receives.get_mut(id) else { return };
        receive.subprotocol = Some(Subprotocol::Direct);
        let transfer = Transfer::new(receive.peer, Owner::Receive(id), remote, 0, receive.length);
        let transfer = self.begin_transfer(transfer);
        if let Some(receive) = self.receives.get_mut(id) {
            receive.reading = Reading::UnderWay(transfer);
        }
    }

    /// Handles a peer's RTR: checks the request and the memory it names, and starts a send of it.
    pub(crate) fn rtr_arrived(&mut self, peer: PeerId, rtr: &Rtr<'_>) {
        let capacity = self.core.left_of_packet(READRSP_HEADER);
        let valid = match rtr.kind {
            RtrKind::Short => rtr.msg_length <= capacity,
            RtrKind::LongCts => rtr.recv_length > 0,
            _ => false,
        };
        let asked = Some(rtr.recv_id);
        if !valid || remote::total(rtr.rma_iov) != Some(rtr.msg_length) {
            return self.core.refuse(peer, asked, DropReason::SegmentOutOfRange);
        }
        let memory = self.core.exposed(peer, asked, rtr.rma_iov, RemoteUse::Read);
        let Some(memory) = memory else { return };
        if !self.may_respond() || !self.core.may_begin(peer, Begun::Request) {
            return self.core.refuse(peer, asked, DropReason::TooManyOperations);
        }
        let (role, memory) = (SendRole::ReadResponse, Memory::Exposed(Box::new(memory)));
        let mut send = Send::new(peer, role, memory, rtr.msg_length, 0);
        send.recv_id = rtr.recv_id;
        send.window_end = match rtr.kind {
            RtrKind::Short => rtr.msg_length,
            // libfabric asks for the next window only when this one is used up exactly.
            _ => u64::from(rtr.recv_length).min(rtr.msg_length),
        };
        let id = self.add_send(send);
        self.core.count_begun(peer, Begun::Request);
        self.core.enqueue(peer, Work::Send(id));
    }

    /// Handles a READRSP, which carries the first data of a read.
    pub(crate) fn readrsp_arrived(&mut self, peer: PeerId, response: &ReadRsp, payload: &[u8]) {
        let Self { core, receives, .. } = self;
        let id = response.recv_id;
        let is_asked_for = |receive: &&mut Receive<_>| {
            receive.peer == peer
                && matches!(receive.role, ReceiveRole::Read { .. })
                && matches!(receive.subprotocol, Some(Subprotocol::Eager | Subprotocol::LongCts))
        };
        let Some(receive) = receives.get_mut(id).filter(is_asked_for) else {
            return core.drop_packet(peer, DropReason::UnknownOperation);
        };
        let bytes = payload.len() as u64;
        let fits = receive.subprotocol == Some(Subprotocol::LongCts) || bytes == receive.length;
        if bytes == 0 || bytes > receive.length || !fits {
            return core.drop_packet(peer, DropReason::SegmentOutOfRange);
        }
        match core.take_segment(receive, 0, payload) {
            Ok(Segment::Partial) => {
                receive.send_id = response.send_id;
                receive.granted = receive.granted.max(bytes);
                if receive.coverage.bytes() == receive.granted {
                    self.core.enqueue(peer, Work::Cts(id));
                }
            }
            // A repeated READRSP is dropped.
            taken => self.last_or_bad_segment_taken(id, peer, taken),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use efa_device::{Device, QueuePairOptions, Rdma, Region, Time};
    use efa_sim::local::{LocalFabric, LocalOptions};

    use super::*;
    use crate::config::Config;
    use crate::endpoint::Message;

    #[test]
    fn operations_beyond_the_table_limits_are_refused_or_dropped() {
        let network =
            LocalFabric::new(LocalOptions::default().with(|options| options.rdma = Rdma::NONE));
        let endpoint = |qkey| {
            let options =
                QueuePairOptions::default().with(|options| options.qkey = efa_device::Qkey(qkey));
            let device = network.open();
            let config = Config { cts_window: 1, ..Config::default() };
            (device.create_queue_pair(options).unwrap(), device, config)
        };
        let ((queue_pair, _, config), other) = (endpoint(1), endpoint(2));
        let mut requester = Endpoint::<_, Vec<u8>>::new(queue_pair, config).unwrap();
        let mut responder = Endpoint::<_, Vec<u8>>::new(other.0, other.2).unwrap();
        responder.matching.ops.sends.limit(4);
        let length = 100_000;
        let access = Access { remote_read: true, remote_write: true };
        let region = other.1.register(vec![7; length].into(), access).unwrap();
        let (address, key) = (region.remote_address(), region.remote_key().into());
        let remote = Remote::from(RmaIov::new(address, length as u64, key));
        let read = |peer| Read { peer, remote, buffer: vec![0; length], context: 0 };

        // Peers may use half of the responder's four identifiers.
        let peer = requester.insert_peer(responder.address()).unwrap();
        for _ in 0..3 {
            requester.read(read(peer)).unwrap();
        }
        let mut now = Time::ZERO;
        for _ in 0..1000 {
            if responder.statistics().dropped > 0 {
                break;
            }
            requester.progress(now);
            responder.progress(now);
            now += Duration::from_micros(1);
        }
        assert_eq!(responder.matching.ops.sends.len(), 2);
        let events = std::iter::from_fn(|| responder.poll_event());
        let reason = DropReason::TooManyOperations;
        let is_refusal = |event: &Event| matches!(event, Event::PacketDropped { reason: of, .. } if *of == reason);
        assert_eq!(events.filter(is_refusal).count(), 1);

        // The other two are for the responder's own operations.
        let peer_of_responder = responder.find_peer(&requester.address()).unwrap();
        let message = || Message {
            peer: peer_of_responder,
            tag: None,
            cq_data: None,
            level: Level::Transmit,
            buffer: vec![1; length],
            context: 0,
        };
        responder.send(message()).unwrap();
        responder.send(message()).unwrap();
        let busy = StartError::Busy { limit: 4 };
        assert_eq!(responder.send(message()).unwrap_err().error, busy);
        requester.matching.ops.receives.limit(3);
        let busy = StartError::Busy { limit: 3 };
        assert_eq!(requester.read(read(peer)).unwrap_err().error, busy);
    }

    #[test]
    fn completed_writes_and_reads_leave_no_remote_entry() {
        let network = LocalFabric::new(LocalOptions::default());
        let end = |qkey| {
            let options =
                QueuePairOptions::default().with(|options| options.qkey = efa_device::Qkey(qkey));
            let queue_pair = network.open().create_queue_pair(options).unwrap();
            Endpoint::<_, Vec<u8>>::new(queue_pair, Config::default()).unwrap()
        };
        let (mut requester, mut target) = (end(1), end(2));
        let access = Access { remote_read: true, remote_write: true };
        let region = target.queue_pair().register(vec![7; 100].into(), access).unwrap();
        let key = region.remote_key().into();
        let remote = Remote::from(RmaIov::new(region.remote_address(), 100, key));
        let peer = requester.insert_peer(target.address()).unwrap();
        let (buffer, level) = (vec![1; 100], Level::Transmit);
        let write = Write { peer, remote, buffer, cq_data: None, level, context: 0 };
        requester.write(write).unwrap();
        requester.read(Read { peer, remote, buffer: vec![0; 100], context: 0 }).unwrap();
        assert_eq!(requester.matching.ops.remotes.len(), 2);
        let (mut now, mut ended) = (Time::ZERO, 0);
        while ended < 2 {
            now += Duration::from_micros(1);
            requester.progress(now);
            target.progress(now);
            ended += std::iter::from_fn(|| requester.poll_completion()).count();
        }
        assert!(requester.matching.ops.remotes.is_empty());
    }
}
