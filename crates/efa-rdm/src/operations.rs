//! Operations under way: this endpoint's own, and those of peers on its memory.
//!
//! The side that sends the data has a [`Send`], the side that receives it a [`Receive`]. The role of
//! each says which operation it belongs to.
//!
//! | operation | at the requester       | at the peer              |
//! |-----------|------------------------|--------------------------|
//! | message   | send                   | receive                  |
//! | write     | send                   | receive into its memory  |
//! | read      | receive                | send out of its memory   |
//! | atomic    | send                   | applied at once; the response is a send |

use std::collections::VecDeque;

use efa_device::{QueuePair, Status};
use efa_proto::OpId;
use hashbrown::HashMap;
use slab::Slab;

use crate::atomic::{AtomicKind, AtomicOp, Datatype};
use crate::completion::Level;
use crate::core::Core;
use crate::coverage::Coverage;
use crate::hash::Keyed;
use crate::ids::PeerId;
use crate::memory::Memory;
use crate::operation_table::{OF_RECEIVE, OperationTable};
use crate::payload::Payload;
use crate::remote::Remote;
use crate::select::Subprotocol;
use crate::storage::Pool;
use crate::transfer::Transfer;
use crate::work::SinglePacket;

/// Index in [`Operations::remotes`].
pub(crate) type RemoteId = u32;

/// The operation that a [`Send`] belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendRole {
    /// A message.
    Message,
    /// A write to the peer's memory.
    Write { remote: RemoteId },
    /// The data of the peer's read of local memory.
    ReadResponse,
    /// An atomic on the peer's memory: its index in [`Operations::atomics`], and whether it returns the
    /// previous values.
    Atomic { atomic: u32, fetches: bool },
    /// The previous values for the peer's atomic on local memory.
    AtomicResponse,
}

impl SendRole {
    /// Whether a peer's request started it.
    pub(crate) const fn is_response(self) -> bool {
        matches!(self, Self::ReadResponse | Self::AtomicResponse)
    }

    /// Whether it has a message ID in the order of messages to the peer.
    pub(crate) const fn is_ordered(self) -> bool {
        matches!(self, Self::Message | Self::Atomic { .. })
    }
}

/// How much of a send is known to have reached the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    Nothing,
    /// The device has completed a packet.
    Part,
    /// The peer has sent a CTS.
    Granted,
}

/// An operation that sends data to a peer. Lengths and offsets are in bytes.
#[derive(Debug)]
pub(crate) struct Send<M> {
    pub(crate) peer: PeerId,
    pub(crate) role: SendRole,
    pub(crate) memory: M,
    pub(crate) context: u64,
    pub(crate) tag: Option<u64>,
    pub(crate) cq_data: Option<u64>,
    pub(crate) level: Level,
    pub(crate) length: u64,
    /// Message ID, assigned when the send isn't held any more. An operation that isn't
    /// [ordered](SendRole::is_ordered) has a serial number instead.
    pub(crate) msg_id: u32,
    /// Packets posted that the device has not completed.
    pub(crate) outstanding: u32,
    /// Chosen when the first packet is written.
    pub(crate) subprotocol: Option<Subprotocol>,
    /// Bytes sent in packets so far.
    pub(crate) sent: u64,
    /// Bytes to be sent in packets in all; the receiver reads the others by RDMA.
    pub(crate) in_packets: u64,
    /// The receiver sent a READ_NACK: the rest goes by long-CTS.
    pub(crate) read_nack: bool,
    /// The EOR, RECEIPT or ATOMRSP that it waits for has arrived.
    pub(crate) confirmed: bool,
    pub(crate) reached: Reached,
    /// The status with which the send fails when the device has completed its packets.
    pub(crate) given_up: Option<Status>,
    /// Long-CTS: end of the granted window.
    pub(crate) window_end: u64,
    /// The receiver's identifier of the operation.
    pub(crate) recv_id: OpId,
}

/// A send of an endpoint on such a queue pair, with such buffers.
pub(crate) type SendOn<Q, B> = Send<Memory<B, <Q as QueuePair>::Region>>;

impl<M> Send<M> {
    #[inline]
    pub(crate) fn new(peer: PeerId, role: SendRole, memory: M, length: u64, context: u64) -> Self {
        Self {
            peer,
            role,
            memory,
            context,
            tag: None,
            cq_data: None,
            level: Level::Transmit,
            length,
            msg_id: 0,
            outstanding: 0,
            subprotocol: None,
            sent: 0,
            in_packets: length,
            read_nack: false,
            confirmed: false,
            reached: Reached::Nothing,
            given_up: None,
            window_end: 0,
            recv_id: OpId(0),
        }
    }

    /// Whether it is the message `msg_id` to `peer`.
    pub(crate) fn is(&self, peer: PeerId, msg_id: u32) -> bool {
        self.msg_id == msg_id && self.peer == peer
    }

    /// Whether an EOR is to come.
    pub(crate) fn is_being_read(&self) -> bool {
        let read = match self.subprotocol {
            Some(Subprotocol::LongRead) => true,
            // If the runt is the complete message, nothing is read.
            Some(Subprotocol::RuntRead) => self.in_packets < self.length,
            _ => false,
        };
        read && !self.confirmed
    }

    /// Whether a RECEIPT is to come. A message that is read by RDMA has none, as its EOR confirms the
    /// delivery; nor has a direct write.
    pub(crate) fn awaits_receipt(&self) -> bool {
        self.level == Level::Delivery
            && !self.confirmed
            && !self.is_direct()
            && self.subprotocol.is_some_and(|by| !by.is_read())
    }

    /// Whether an ATOMRSP with the previous values is to come.
    pub(crate) fn awaits_values(&self) -> bool {
        matches!(self.role, SendRole::Atomic { fetches: true, .. }) && !self.confirmed
    }

    /// Whether it is an operation of this endpoint whose request was posted, and that waits for an answer of
    /// the peer.
    pub(crate) fn is_asked(&self) -> bool {
        let needs_grant =
            self.subprotocol == Some(Subprotocol::LongCts) && self.sent < self.in_packets;
        let waits = needs_grant || self.is_being_read() || self.awaits_receipt();
        let fetches = self.subprotocol.is_some() && self.awaits_values();
        !self.role.is_response() && (waits || fetches)
    }

    /// Whether the device moves the data by RDMA, without packets of the protocol.
    pub(crate) fn is_direct(&self) -> bool {
        self.subprotocol == Some(Subprotocol::Direct)
    }

    /// Whether the device has completed all packets and no response is to come. A direct operation is
    /// done when its transfer is.
    pub(crate) fn is_done(&self) -> bool {
        self.outstanding == 0
            && self.subprotocol.is_some()
            && self.sent == self.in_packets
            && !self.is_being_read()
            && !self.awaits_receipt()
            && !self.awaits_values()
            && !self.is_direct()
    }
}

/// The operation that a [`Receive`] belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveRole {
    /// A message of several packets.
    Message,
    /// A message of several packets that is received and dropped.
    Discarded,
    /// The peer's write to local memory.
    Written,
    /// A read of the peer's memory.
    Read { remote: RemoteId },
}

impl ReceiveRole {
    /// Whether no operation of this endpoint waits for it: [`Bounds::requests`](crate::Bounds) bounds those
    /// of one peer.
    pub(crate) const fn is_requested(self) -> bool {
        matches!(self, Self::Discarded | Self::Written)
    }
}

/// An operation that receives data in several pieces. Lengths and offsets are in bytes.
#[derive(Debug)]
pub(crate) struct Receive<M> {
    pub(crate) peer: PeerId,
    pub(crate) role: ReceiveRole,
    pub(crate) msg_id: u32,
    pub(crate) context: u64,
    pub(crate) memory: M,
    pub(crate) tagged: bool,
    pub(crate) tag: u64,
    pub(crate) cq_data: Option<u64>,
    pub(crate) length: u64,
    pub(crate) coverage: Coverage,
    /// `None` for a read whose request hasn't been sent.
    pub(crate) subprotocol: Option<Subprotocol>,
    /// Long-CTS: end of the granted window.
    pub(crate) granted: u64,
    /// The sender's identifier of the operation.
    pub(crate) send_id: OpId,
    /// Runting read: length of the leading part that arrives in packets.
    pub(crate) runt_length: u64,
    pub(crate) reading: Reading,
    /// The sender asked for a RECEIPT.
    pub(crate) receipt: bool,
}

/// A receive of an endpoint on such a queue pair, with such buffers.
pub(crate) type ReceiveOn<Q, B> = Receive<Memory<B, <Q as QueuePair>::Region>>;

impl<M> Receive<M> {
    pub(crate) fn new(
        peer: PeerId,
        role: ReceiveRole,
        memory: M,
        length: u64,
        coverage: Coverage,
    ) -> Self {
        Self {
            peer,
            role,
            msg_id: 0,
            context: 0,
            memory,
            tagged: false,
            tag: 0,
            cq_data: None,
            length,
            coverage,
            subprotocol: None,
            granted: 0,
            send_id: OpId(0),
            runt_length: 0,
            reading: Reading::No,
            receipt: false,
        }
    }

    /// Whether it has an entry in [`Operations::assembling`].
    pub(crate) fn is_assembled(&self) -> bool {
        let several = self.subprotocol.is_some_and(Subprotocol::has_several_requests);
        let is_message = matches!(self.role, ReceiveRole::Message | ReceiveRole::Discarded);
        is_message && (several || self.reading == Reading::Nacked)
    }
}

/// Operations under way.
#[derive(Debug)]
pub(crate) struct Operations<Q: QueuePair, B> {
    pub(crate) core: Core<Q, B>,
    pub(crate) sends: OperationTable<SendOn<Q, B>>,
    pub(crate) receives: OperationTable<ReceiveOn<Q, B>, OF_RECEIVE>,
    pub(crate) transfers: OperationTable<Transfer>,
    /// Transfers that wait for other transfers to end, or for a bounce region.
    pub(crate) waiting_transfers: VecDeque<OpId>,
    /// Peers' memory that this endpoint's writes and reads access.
    pub(crate) remotes: Slab<Remote>,
    /// Atomics of this endpoint.
    pub(crate) atomics: Slab<AtomicState<B>>,
    /// Number of sends that peers' requests started.
    responses: usize,
    /// Number of receives that only peers' requests keep under way.
    requested: usize,
    /// Messages of several packets of which one has been matched or is unexpected, by peer and message
    /// ID.
    pub(crate) assembling: HashMap<(u32, u32), Assembly, Keyed>,
    /// The receive that got the last segment of a medium message. It may have ended.
    pub(crate) last_medium: OpId,
    /// Number of single-packet messages in flight with a buffer; they have no [`Send`].
    pub(crate) single_packets: usize,
    /// Number of messages that single RDMA operations read; they have no [`Receive`].
    pub(crate) single_reads: usize,
    /// Serial number of the last send that isn't ordered.
    serial: u32,
    /// Free coverages, which keep their allocation.
    coverages: Pool<Coverage>,
    /// Free vectors for previous values.
    values: Pool<Vec<u8>>,
}

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    pub(crate) fn new(core: Core<Q, B>) -> Self {
        let assembling = HashMap::with_capacity_and_hasher(64, Keyed(core.config.hash_seed.0));
        Self {
            core,
            sends: OperationTable::new(),
            receives: OperationTable::new(),
            transfers: OperationTable::new(),
            waiting_transfers: VecDeque::new(),
            remotes: Slab::new(),
            atomics: Slab::new(),
            responses: 0,
            requested: 0,
            assembling,
            last_medium: OpId(u32::MAX),
            single_packets: 0,
            single_reads: 0,
            serial: 0,
            coverages: Pool::default(),
            values: Pool::default(),
        }
    }

    /// Number of this endpoint's own sends, single-packet messages included.
    pub(crate) fn own_sends(&self) -> usize {
        self.sends.len() + self.single_packets - self.responses
    }

    /// Whether a peer's request may start another send.
    pub(crate) fn may_respond(&self) -> bool {
        !self.sends.is_too_many_of_peers(self.responses)
    }

    /// Number of this endpoint's own receives, messages that single RDMA operations read included.
    pub(crate) fn own_receives(&self) -> usize {
        self.receives.len() + self.single_reads - self.requested
    }

    /// Whether a peer's request may start another receive.
    pub(crate) fn may_be_requested(&self) -> bool {
        !self.receives.is_too_many_of_peers(self.requested)
    }

    /// Adds a send. The caller has checked that the table isn't full.
    #[inline(always)]
    pub(crate) fn add_send(&mut self, mut send: SendOn<Q, B>) -> OpId {
        if !send.role.is_ordered() {
            self.serial = self.serial.wrapping_add(1);
            send.msg_id = self.serial;
        }
        self.responses += usize::from(send.role.is_response());
        let list = self.core.operations_of(send.peer);
        self.sends.insert(list, send)
    }

    /// Removes a send.
    #[inline(always)]
    pub(crate) fn take_send(&mut self, id: OpId) -> Option<SendOn<Q, B>> {
        let send = self.sends.remove(id)?;
        self.responses -= usize::from(send.role.is_response());
        if let SendRole::Write { remote } = send.role {
            self.remotes.try_remove(remote as usize);
        }
        Some(send)
    }

    /// Removes a send that goes as a single packet; what its completion needs stays with the packet.
    pub(crate) fn take_single_packet(&mut self, id: OpId) -> Option<(PeerId, SinglePacket<B>)> {
        let send = self.take_send(id)?;
        let Memory::Buffer(mut buffer) = send.memory else { return None };
        // It is registered if the peer was to read it, and a second HANDSHAKE withdrew that before its request was posted.
        buffer.deregister();
        self.single_packets += 1;
        // A length beyond `u32` fits no packet: the message is refused when it is written.
        let length = u32::try_from(send.length).unwrap_or(u32::MAX);
        let (tag, context) = (send.tag, send.context);
        Some((send.peer, SinglePacket { tag, context, length, buffer: Some(buffer) }))
    }

    /// Adds a receive. The caller has checked that the table isn't full.
    #[inline(always)]
    pub(crate) fn add_receive(&mut self, receive: ReceiveOn<Q, B>) -> OpId {
        self.requested += usize::from(receive.role.is_requested());
        let list = self.core.operations_of(receive.peer);
        self.receives.insert(list, receive)
    }

    /// Removes a receive.
    #[inline(always)]
    pub(crate) fn take_receive(&mut self, id: OpId) -> Option<ReceiveOn<Q, B>> {
        let receive = self.receives.remove(id)?;
        self.requested -= usize::from(receive.role.is_requested());
        if let ReceiveRole::Read { remote } = receive.role {
            self.remotes.try_remove(remote as usize);
        }
        Some(receive)
    }

    /// An empty coverage.
    pub(crate) fn coverage(&mut self) -> Coverage {
        self.coverages.take().unwrap_or_default()
    }

    /// Returns a coverage to the pool, if it has memory to be used again.
    #[inline(always)]
    pub(crate) fn recycle_coverage(&mut self, mut coverage: Coverage) {
        if coverage.has_memory() {
            coverage.clear();
            self.coverages.put(coverage);
        }
    }

    /// An empty vector for previous values.
    pub(crate) fn values(&mut self) -> Vec<u8> {
        self.values.take().unwrap_or_default()
    }

    /// Returns a vector of previous values to the pool.
    pub(crate) fn recycle_values(&mut self, mut values: Vec<u8>) {
        values.clear();
        self.values.put(values);
    }

    /// Ends a period: frees pooled memory that wasn't needed in it.
    pub(crate) fn trim(&mut self) {
        self.coverages.trim();
        self.values.trim();
    }
}

/// The state of the RDMA read of a receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Nothing is to be read, or the read is finished.
    #[default]
    No,
    /// The device is reading; the identifier is the transfer's.
    UnderWay(OpId),
    /// The message can't be read; a READ_NACK is sent when the whole runt has arrived.
    Refused,
    /// A READ_NACK was queued; the sender continues by long-CTS.
    Nacked,
}

/// Where the further packets of a message go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assembly {
    /// To this receive operation.
    Receiving(OpId),
    /// To the unexpected message with this key.
    Unexpected(u32),
}

/// The state of an atomic of this endpoint, beside its [`Send`].
#[derive(Debug)]
pub(crate) struct AtomicState<B> {
    pub(crate) remote: Remote,
    pub(crate) datatype: Datatype,
    pub(crate) op: AtomicOp,
    pub(crate) kind: AtomicKind,
    pub(crate) fetched: Option<B>,
}
