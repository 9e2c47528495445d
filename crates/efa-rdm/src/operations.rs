//! Operations under way: of this endpoint, and of peers on its memory.
//!
//! Whoever has the data has a [`Send`], whoever gets it a [`Receive`]; their roles tell what for.
//!
//! | operation | at the requester       | at the peer              |
//! |-----------|------------------------|--------------------------|
//! | message   | send                   | receive                  |
//! | write     | send                   | receive into its memory  |
//! | read      | receive                | send out of its memory   |
//! | atomic    | send, answered or not  | done at once; the answer is a send |

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
use crate::operation::{OF_RECEIVE, OperationTable};
use crate::pool::Pool;
use crate::remote::Remote;
use crate::select::Subprotocol;
use crate::transfer::Transfer;
use crate::work::SinglePacket;

/// Names an entry of [`Operations::remotes`].
pub(crate) type RemoteId = u32;

/// What a send operation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendRole {
    /// A message.
    Message,
    /// A write to the peer's memory.
    Write { remote: RemoteId },
    /// Memory of this side, which the peer reads.
    ReadResponse,
    /// An atomic on the peer's memory, and whether the previous values come back.
    Atomic { atomic: u32, fetches: bool },
    /// Previous values, which go back to the peer.
    AtomicResponse,
}

impl SendRole {
    /// Whether a peer asked for it.
    pub(crate) const fn is_response(self) -> bool {
        matches!(self, Self::ReadResponse | Self::AtomicResponse)
    }

    /// Whether it has its turn among the messages to the peer.
    pub(crate) const fn is_ordered(self) -> bool {
        matches!(self, Self::Message | Self::Atomic { .. })
    }
}

/// How much a peer has heard of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    Nothing,
    /// A packet arrived.
    Part,
    /// And it was answered by a grant.
    Granted,
}

/// An operation that gives data away.
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
    /// Its place among the messages to the peer; taken when it is released from those held. One
    /// that isn't ordered has a number of its own.
    pub(crate) msg_id: u32,
    /// Packets that the device has not completed.
    pub(crate) outstanding: u32,
    /// Chosen when the first packet is written.
    pub(crate) subprotocol: Option<Subprotocol>,
    /// Bytes that were put into packets.
    pub(crate) sent: u64,
    /// Bytes that are to be put into packets; the receiver reads the others.
    pub(crate) in_packets: u64,
    /// The receiver refused to read: long-CTS is left.
    pub(crate) read_nack: bool,
    /// The receiver has said that it has read all, or that it is delivered, or has answered.
    pub(crate) confirmed: bool,
    pub(crate) reached: Reached,
    /// Why it is given up, as soon as the device is done with its packets.
    pub(crate) given_up: Option<Status>,
    /// Long-CTS: bytes that may be sent, and the receiver's name for the operation.
    pub(crate) window_end: u64,
    pub(crate) recv_id: OpId,
}

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

    /// Whether it sends this message.
    pub(crate) fn is(&self, peer: PeerId, msg_id: u32) -> bool {
        self.msg_id == msg_id && self.peer == peer
    }

    /// Whether the receiver will say when it has read it, and hasn't yet.
    pub(crate) fn is_being_read(&self) -> bool {
        let read = match self.subprotocol {
            Some(Subprotocol::LongRead) => true,
            // A runt that is all of the message leaves nothing to be read.
            Some(Subprotocol::RuntRead) => self.in_packets < self.length,
            _ => false,
        };
        read && !self.confirmed
    }

    /// Whether the receiver will say when it is delivered, and hasn't yet. What was read is
    /// delivered anyway.
    pub(crate) fn awaits_receipt(&self) -> bool {
        self.level == Level::Delivery
            && !self.confirmed
            && self.subprotocol.is_some_and(|by| !by.is_read())
    }

    /// Whether the previous values of an atomic will come, and haven't yet.
    pub(crate) fn awaits_values(&self) -> bool {
        matches!(self.role, SendRole::Atomic { fetches: true, .. }) && !self.confirmed
    }

    /// Whether the device moves the data, without packets.
    pub(crate) fn is_direct(&self) -> bool {
        self.subprotocol == Some(Subprotocol::Direct)
    }

    /// Whether all packets arrived and the receiver has all it wanted. A direct one ends with its
    /// transfer.
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

/// What a receive operation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveRole {
    /// A message of several packets.
    Message,
    /// Memory of this side, which the peer writes.
    Written,
    /// A read of the peer's memory.
    Read { remote: RemoteId },
}

/// An operation that gets data, in several pieces.
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
    /// `None` for a read that hasn't begun.
    pub(crate) subprotocol: Option<Subprotocol>,
    /// Long-CTS: bytes that the sender may have sent, and its name for the operation.
    pub(crate) granted: u64,
    pub(crate) send_id: OpId,
    /// Runting read: the leading part that comes in packets.
    pub(crate) runt_length: u64,
    pub(crate) reading: Reading,
    /// The sender wants to be told when it is delivered.
    pub(crate) receipt: bool,
}

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

    /// Whether it is found by the id of its message.
    pub(crate) fn is_assembled(&self) -> bool {
        let several = self.subprotocol.is_some_and(Subprotocol::has_several_requests);
        self.role == ReceiveRole::Message && (several || self.reading == Reading::Nacked)
    }
}

/// Operations under way.
#[derive(Debug)]
pub(crate) struct Operations<Q: QueuePair, B> {
    pub(crate) core: Core<Q, B>,
    pub(crate) sends: OperationTable<Send<Memory<B, Q::Region>>>,
    pub(crate) receives: OperationTable<Receive<Memory<B, Q::Region>>, OF_RECEIVE>,
    pub(crate) transfers: OperationTable<Transfer>,
    /// Transfers that wait for others to end, or for memory.
    pub(crate) waiting_transfers: VecDeque<OpId>,
    /// Memory of peers that is written or read.
    pub(crate) remotes: Slab<Remote>,
    /// Atomics of this endpoint.
    pub(crate) atomics: Slab<AtomicState<B>>,
    /// Sends that peers asked for.
    responses: usize,
    /// Receives that peers asked for.
    written: usize,
    /// Messages of several packets whose first one has been seen, by peer and message id.
    pub(crate) assembling: HashMap<(u32, u32), Assembly, Keyed>,
    /// Messages with a buffer that are all in one packet, which have no entry here.
    pub(crate) single_packets: usize,
    /// The number of the next send that isn't ordered.
    serial: u32,
    /// Coverages with memory of their own, to be used again.
    coverages: Pool<Coverage>,
    /// Memory of previous values, to be used again.
    values: Pool<Vec<u8>>,
}

impl<Q: QueuePair, B> Operations<Q, B> {
    pub(crate) fn new(core: Core<Q, B>) -> Self {
        let assembling = HashMap::with_capacity_and_hasher(64, Keyed(core.config.hash_seed));
        Self {
            core,
            sends: OperationTable::new(),
            receives: OperationTable::new(),
            transfers: OperationTable::new(),
            waiting_transfers: VecDeque::new(),
            remotes: Slab::new(),
            atomics: Slab::new(),
            responses: 0,
            written: 0,
            assembling,
            single_packets: 0,
            serial: 0,
            coverages: Pool::default(),
            values: Pool::default(),
        }
    }

    /// Sends of this endpoint's own.
    pub(crate) fn own_sends(&self) -> usize {
        self.sends.len() + self.single_packets - self.responses
    }

    /// Whether there is room for another send that a peer asks for.
    pub(crate) fn may_respond(&self) -> bool {
        !self.sends.is_too_many_of_peers(self.responses)
    }

    /// Receives of this endpoint's own.
    pub(crate) fn own_receives(&self) -> usize {
        self.receives.len() - self.written
    }

    /// Whether there is room for another receive that a peer asks for.
    pub(crate) fn may_be_written(&self) -> bool {
        !self.receives.is_too_many_of_peers(self.written)
    }

    /// Adds a send. The caller has checked that there is room.
    #[inline]
    pub(crate) fn add_send(&mut self, mut send: Send<Memory<B, Q::Region>>) -> OpId {
        if !send.role.is_ordered() {
            self.serial = self.serial.wrapping_add(1);
            send.msg_id = self.serial;
        }
        self.responses += usize::from(send.role.is_response());
        self.sends.insert(send)
    }

    /// Takes a send out.
    #[inline]
    pub(crate) fn take_send(&mut self, id: OpId) -> Option<Send<Memory<B, Q::Region>>> {
        let send = self.sends.remove(id)?;
        self.responses -= usize::from(send.role.is_response());
        if let SendRole::Write { remote } = send.role {
            self.remotes.try_remove(remote as usize);
        }
        Some(send)
    }

    /// Takes a message out that goes in one packet after all, which keeps what it needs.
    pub(crate) fn take_single_packet(&mut self, id: OpId) -> Option<(PeerId, SinglePacket<B>)> {
        let send = self.take_send(id)?;
        let Memory::Buffer(buffer) = send.memory else { return None };
        self.single_packets += 1;
        // What is too long for this fits no packet, and is refused as it is written.
        let length = u32::try_from(send.length).unwrap_or(u32::MAX);
        let (tag, context) = (send.tag, send.context);
        Some((send.peer, SinglePacket { tag, context, length, buffer: Some(buffer) }))
    }

    /// Adds a receive. The caller has checked that there is room.
    pub(crate) fn add_receive(&mut self, receive: Receive<Memory<B, Q::Region>>) -> OpId {
        self.written += usize::from(receive.role == ReceiveRole::Written);
        self.receives.insert(receive)
    }

    /// Takes a receive out.
    pub(crate) fn take_receive(&mut self, id: OpId) -> Option<Receive<Memory<B, Q::Region>>> {
        let receive = self.receives.remove(id)?;
        self.written -= usize::from(receive.role == ReceiveRole::Written);
        if let ReceiveRole::Read { remote } = receive.role {
            self.remotes.try_remove(remote as usize);
        }
        Some(receive)
    }

    /// An empty coverage.
    pub(crate) fn coverage(&mut self) -> Coverage {
        self.coverages.take().unwrap_or_default()
    }

    /// Keeps a coverage that is not needed any more.
    pub(crate) fn recycle_coverage(&mut self, mut coverage: Coverage) {
        coverage.clear();
        self.coverages.put(coverage);
    }

    /// Memory for previous values.
    pub(crate) fn values(&mut self) -> Vec<u8> {
        self.values.take().unwrap_or_default()
    }

    /// Keeps memory of previous values that is not needed any more.
    pub(crate) fn recycle_values(&mut self, mut values: Vec<u8>) {
        values.clear();
        self.values.put(values);
    }

    /// Ends a period: gives memory back that was not needed.
    pub(crate) fn trim(&mut self) {
        self.coverages.trim();
        self.values.trim();
    }
}

/// How far the reading of a message is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Nothing is to be read, or all has been.
    #[default]
    No,
    /// The device is at it.
    UnderWay(OpId),
    /// It can't be read; the sender is told when the packets of the runt are here.
    Refused,
    /// The sender was told to send the message.
    Nacked,
}

/// A message of several packets whose first one has been seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assembly {
    /// It has a receive operation.
    Receiving(OpId),
    /// It is unexpected.
    Unexpected(u32),
}

/// What an atomic of this endpoint has beside its send.
#[derive(Debug)]
pub(crate) struct AtomicState<B> {
    pub(crate) remote: Remote,
    pub(crate) datatype: Datatype,
    pub(crate) op: AtomicOp,
    pub(crate) kind: AtomicKind,
    pub(crate) fetched: Option<B>,
}
