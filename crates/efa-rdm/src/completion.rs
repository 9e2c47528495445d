//! How operations end.

use efa_device::{QueuePair, Source, Status};
use efa_handshake::Extras;
use efa_match::PostId;
use efa_proto::OpId;

use crate::atomic::{AtomicKind, AtomicOp, Datatype};
use crate::bounds::Excess;
use crate::core::Core;
use crate::event::Event;
use crate::matching::{Matching, Waiting};
use crate::memory::Memory;
use crate::operations::{Operations, Receive, ReceiveRole, Send, SendRole};
use crate::payload::Payload;
use crate::peer::PeerId;
use crate::rdma;
use crate::select::Subprotocol;
use crate::work::{Whole, Work};

/// What the completion of a send promises (table 1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Level {
    /// The message lies in the target's device; it may not have met a receive yet.
    #[default]
    Transmit,
    /// The message lies in the buffer of the receive that it matched. The peer must have the
    /// feature "delivery complete"; messages wait for its HANDSHAKE to tell.
    Delivery,
}

/// Names a posted receive until it is matched, for [`Endpoint::cancel`](crate::Endpoint::cancel). From
/// then on the name is stale, and using it is harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiveId {
    pub(crate) post: PostId,
    pub(crate) tagged: bool,
}

impl ReceiveId {
    /// Of a receive that was matched as it was posted.
    pub(crate) const MATCHED: Self = Self { post: PostId::from_bits(u64::MAX), tagged: false };
}

/// An operation that ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Completion<B> {
    /// A send.
    Send(SendCompletion<B>),
    /// A receive, or one message of a multi-receive buffer.
    Receive(ReceiveCompletion<B>),
    /// A multi-receive buffer takes no more messages; what is left of it comes back.
    Released {
        /// The context of the receive.
        context: u64,
        /// What no message used.
        buffer: B,
    },
    /// A write to memory of a peer, or a read of it.
    Rma(RmaCompletion<B>),
    /// An atomic on memory of a peer.
    Atomic(Box<AtomicCompletion<B>>),
    /// A peer wrote to memory of this side, and gave data along.
    RemoteWrite(RemoteWrite),
}

/// What a one-sided operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RmaKind {
    /// It wrote to memory of the peer.
    Write,
    /// It read memory of the peer.
    Read,
}

/// How a write or read ended.
#[derive(Debug, PartialEq, Eq)]
pub struct RmaCompletion<B> {
    /// Which of the two.
    pub kind: RmaKind,
    /// The context of the operation.
    pub context: u64,
    /// The peer.
    pub peer: PeerId,
    /// Its length in bytes.
    pub length: u64,
    /// How it travelled; `None` when nothing of it did.
    pub subprotocol: Option<Subprotocol>,
    /// The buffer.
    pub buffer: B,
    /// `Ok` when what the operation's [`Level`] promises has come true, or all is read.
    pub result: Result<(), OperationError>,
}

/// How an atomic ended.
#[derive(Debug, PartialEq, Eq)]
pub struct AtomicCompletion<B> {
    /// The context of the operation.
    pub context: u64,
    /// The peer.
    pub peer: PeerId,
    /// Bytes of the target.
    pub length: u64,
    /// The operand.
    pub operand: B,
    /// The comparand, of one that compares.
    pub comparand: Option<B>,
    /// The previous values, of one that fetches or compares.
    pub fetched: Option<B>,
    /// `Ok` when what the operation's [`Level`] promises has come true, or the previous values
    /// are here.
    pub result: Result<(), OperationError>,
}

/// A peer's write that was completed here by the data it gave along (section 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteWrite {
    /// Who wrote, if the device knows.
    pub peer: Option<PeerId>,
    /// The data: 64 bits that came in a packet, or 32 by the device.
    pub cq_data: u64,
    /// Bytes that were written.
    pub length: u64,
}

/// How a send ended.
#[derive(Debug, PartialEq, Eq)]
pub struct SendCompletion<B> {
    /// The context of the operation.
    pub context: u64,
    /// The peer.
    pub peer: PeerId,
    /// The tag of a tagged message.
    pub tag: Option<u64>,
    /// Its length in bytes.
    pub length: u64,
    /// How it travelled; `None` when no packet of it was sent.
    pub subprotocol: Option<Subprotocol>,
    /// The buffer; `None` for injected messages.
    pub buffer: Option<B>,
    /// `Ok` when what the operation's [`Level`] promises has come true.
    pub result: Result<(), OperationError>,
}

/// How a receive ended.
#[derive(Debug, PartialEq, Eq)]
pub struct ReceiveCompletion<B> {
    /// The context of the operation.
    pub context: u64,
    /// Who sent the message; `None` for a cancelled receive.
    pub peer: Option<PeerId>,
    /// Whether it was a tagged receive.
    pub tagged: bool,
    /// The tag of the message; of the receive if it was cancelled; 0 if untagged.
    pub tag: u64,
    /// Bytes of the message in the buffer; of one that failed, those at its beginning.
    pub length: u64,
    /// The 64 bits that the sender gave along.
    pub cq_data: Option<u64>,
    /// How the message travelled.
    pub subprotocol: Option<Subprotocol>,
    /// The buffer. Of a multi-receive buffer, the part with this message.
    pub buffer: B,
    /// What came of it.
    pub result: Result<(), OperationError>,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperationError {
    /// The message was longer than the buffer, which holds its beginning.
    #[error("message of {length} bytes truncated to the {capacity} bytes of the buffer")]
    Truncated {
        /// Length of the message.
        length: u64,
        /// Length of the buffer.
        capacity: u64,
    },
    /// The application cancelled it.
    #[error("cancelled")]
    Cancelled,
    /// The device failed to deliver a packet.
    #[error("the device reports: {0}")]
    Device(Status),
    /// The peer made this endpoint keep more than it may.
    #[error("the peer was excluded: {0}")]
    PeerExcluded(Excess),
    /// The peer gave the message up, and told so (feature 9).
    #[error("the peer gave the message up: its error {code}")]
    GivenUp {
        /// The peer's reason: a number of libfabric's provider.
        code: u32,
    },
    /// The peer restarted while the operation was under way.
    #[error("the peer restarted")]
    PeerRestarted,
    /// The application removed the peer.
    #[error("the peer was removed")]
    PeerRemoved,
    /// The message was to be read from the sender's memory, which can't be done here, and the sender
    /// can't send it another way.
    #[error("the sender's memory can't be read, and the sender has no other way")]
    NotReadable,
    /// The peer has not the feature that the operation needs (section 2.1, case b).
    #[error("the peer doesn't support what the operation needs: {missing:?}")]
    PeerLacks {
        /// The features.
        missing: Extras,
    },
    /// The peer takes messages straight into its application's buffers (feature 7): untagged ones of
    /// one packet, without delivery complete, with at most 32 bits of CQ data.
    #[error("the peer takes plain messages only, of at most {limit} bytes")]
    PlainOnly {
        /// The longest.
        limit: usize,
    },
    /// The header of a message that is received in place has not the length that was asked for
    /// (section 4.3), and the message is not to be moved.
    #[error("a header of {found} bytes, {expected} were asked for")]
    UnexpectedHeader {
        /// Its length in bytes.
        found: usize,
        /// What was asked for.
        expected: usize,
    },
    /// There was no room for another operation.
    #[error("too many operations under way")]
    TooManyOperations,
    /// The device matched the receive with something that is no message.
    #[error("the device matched it with what is no message")]
    WronglyMatched,
}

/// Why an operation was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No such peer.
    #[error("no peer {0:?}")]
    UnknownPeer(PeerId),
    /// The peer is gone, because its device stopped answering, it restarted or it was removed.
    /// Inserting its address anew gives a fresh peer.
    #[error("peer {0:?} is gone")]
    PeerGone(PeerId),
    /// As many operations are under way as can be; progress will make room.
    #[error("busy: {limit} operations under way")]
    Busy {
        /// How many can be.
        limit: usize,
    },
    /// Buffer and remote memory differ in length.
    #[error("the buffer has {buffer} bytes and the remote memory {remote}")]
    LengthsDiffer {
        /// Bytes of the buffer.
        buffer: u64,
        /// Bytes of the remote memory.
        remote: u64,
    },
    /// The atomic doesn't fit a packet, and atomics are never divided.
    #[error("an atomic of {length} bytes, at most {limit} fit a packet")]
    AtomicTooLong {
        /// Bytes of the target.
        length: u64,
        /// The most.
        limit: usize,
    },
    /// There is no such atomic.
    #[error("no {kind:?} atomic does {op:?} on {datatype:?}")]
    NoSuchAtomic {
        /// What comes back.
        kind: AtomicKind,
        /// The operation.
        op: AtomicOp,
        /// The type of the elements.
        datatype: Datatype,
    },
    /// The memory doesn't hold whole elements.
    #[error("{length} bytes are not a number of elements of {size} bytes")]
    NotOfElements {
        /// What was given.
        length: u64,
        /// Bytes of an element.
        size: usize,
    },
    /// The peer takes plain messages only: untagged, with at most 32 bits of CQ data.
    #[error("the peer takes plain messages only, of at most {limit} bytes")]
    PlainOnly {
        /// The longest.
        limit: usize,
    },
    /// This endpoint doesn't match messages, nor copy them.
    #[error("the endpoint receives in place only")]
    InPlaceOnly,
    /// The message is too long to be injected.
    #[error("{length} bytes are too many to inject, at most {limit}")]
    TooLongToInject {
        /// What was asked for.
        length: usize,
        /// What can be.
        limit: usize,
    },
}

/// An operation that was not started; the buffer comes back.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Refused<B> {
    /// Why.
    #[source]
    pub error: StartError,
    /// The buffer.
    pub buffer: B,
}

/// The completion of a receive whose message came in one packet, and fits.
#[inline(always)]
pub(crate) fn eager_received<B>(
    context: u64,
    peer: PeerId,
    tag: Option<u64>,
    length: u64,
    buffer: B,
) -> Completion<B> {
    Completion::Receive(ReceiveCompletion {
        context,
        peer: Some(peer),
        tagged: tag.is_some(),
        tag: tag.unwrap_or(0),
        length,
        cq_data: None,
        subprotocol: Some(Subprotocol::Eager),
        buffer,
        result: Ok(()),
    })
}

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    pub(crate) fn end_send_if_done(&mut self, id: OpId) {
        let Some(send) = self.sends.get(id) else { return };
        if let Some(status) = send.given_up {
            self.give_up_if_drained(id, status);
        } else if send.is_done() {
            self.end_send(id, Ok(()));
        }
    }

    pub(crate) fn fail_send(&mut self, id: OpId, error: OperationError) {
        self.end_send(id, Err(error));
    }

    pub(crate) fn end_send(&mut self, id: OpId, result: Result<(), OperationError>) {
        let Some(mut send) = self.take_send(id) else { return };
        send.memory.deregister();
        tracing::trace!(peer = send.peer.0, ?send.role, send.msg_id, ?result, "send ended");
        let Send { context, peer, tag, length, subprotocol, .. } = send;
        match (send.role, send.memory) {
            (SendRole::Message, Memory::Buffer(buffer)) => {
                self.core.schedule.complete(Completion::Send(SendCompletion {
                    context,
                    peer,
                    tag,
                    length,
                    subprotocol,
                    buffer: Some(buffer),
                    result,
                }));
            }
            (SendRole::Write { .. }, Memory::Buffer(buffer)) => {
                let kind = RmaKind::Write;
                self.core.rma_ended(RmaCompletion {
                    kind,
                    context,
                    peer,
                    length,
                    subprotocol,
                    buffer,
                    result,
                });
            }
            (SendRole::Atomic { atomic, .. }, memory) => {
                self.atomic_ended((context, peer), atomic, memory, result);
            }
            (SendRole::AtomicResponse, Memory::Values(values)) => {
                self.recycle_values(values);
                self.core.request_ended(peer);
            }
            (SendRole::ReadResponse, _) => {
                self.core.statistics.remote_reads += u64::from(result.is_ok());
                self.core.request_ended(peer);
            }
            _ => {}
        }
    }

    /// Ends a receive operation.
    pub(crate) fn end_receive(&mut self, id: OpId, error: Option<OperationError>) {
        let Some(mut receive) = self.take_receive(id) else { return };
        receive.memory.deregister();
        if receive.is_assembled() {
            self.assembling.remove(&(receive.peer.0, receive.msg_id));
        }
        if receive.receipt && error.is_none() {
            let (send_id, msg_id) = (receive.send_id, receive.msg_id);
            self.core.owe(receive.peer, Work::Receipt { send_id, msg_id });
        }
        let capacity = receive.memory.length();
        let written = receive.coverage.prefix().min(capacity);
        let Receive { role, context, peer, length, cq_data, subprotocol, .. } = receive;
        self.recycle_coverage(receive.coverage);
        match (role, receive.memory) {
            (ReceiveRole::Message, Memory::Buffer(buffer)) => {
                let truncated = OperationError::Truncated { length, capacity };
                let error = error.or((length > capacity).then_some(truncated));
                self.core.received(ReceiveCompletion {
                    context,
                    peer: Some(peer),
                    tagged: receive.tagged,
                    tag: receive.tag,
                    length: written,
                    cq_data,
                    subprotocol,
                    buffer,
                    result: error.map_or(Ok(()), Err),
                });
            }
            (ReceiveRole::Read { .. }, Memory::Buffer(buffer)) => {
                self.core.rma_ended(RmaCompletion {
                    kind: RmaKind::Read,
                    context,
                    peer,
                    length: written,
                    subprotocol,
                    buffer,
                    result: error.map_or(Ok(()), Err),
                });
            }
            (ReceiveRole::Written, _) => {
                self.core.request_ended(peer);
                self.core.written(peer, length, cq_data, error);
            }
            _ => {}
        }
    }

    /// A message of one packet has ended, besides what the device just told.
    pub(crate) fn message_ended(
        &mut self,
        peer: PeerId,
        message: Whole<B>,
        result: Result<(), OperationError>,
    ) {
        let completion = self.message_end(peer, message, result);
        self.core.complete(completion);
    }

    /// The end of a message of one packet. Of an injected one, only a failure is told.
    #[inline(always)]
    pub(crate) fn message_end(
        &mut self,
        peer: PeerId,
        message: Whole<B>,
        result: Result<(), OperationError>,
    ) -> Option<Completion<B>> {
        let Whole { tag, context, length, buffer } = message;
        if buffer.is_some() {
            self.whole -= 1;
        } else if result.is_ok() {
            self.core.statistics.injected += 1;
            return None;
        }
        Some(Completion::Send(SendCompletion {
            context,
            peer,
            tag,
            length: u64::from(length),
            subprotocol: Some(Subprotocol::Eager),
            buffer,
            result,
        }))
    }

    /// Tells the application of an atomic that ended.
    pub(crate) fn atomic_ended(
        &mut self,
        (context, peer): (u64, PeerId),
        atomic: u32,
        memory: Memory<B, Q::Region>,
        result: Result<(), OperationError>,
    ) {
        let Some(state) = self.atomics.try_remove(atomic as usize) else { return };
        let (operand, comparand) = match memory {
            Memory::Buffer(operand) => (operand, None),
            Memory::Buffers(both) => (both.0, Some(both.1)),
            Memory::Exposed(_) | Memory::Values(_) => return,
        };
        self.core.schedule.complete(Completion::Atomic(Box::new(AtomicCompletion {
            context,
            peer,
            length: rdma::total(state.remote.pieces()).unwrap_or(0),
            operand,
            comparand,
            fetched: state.fetched,
            result,
        })));
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Hands a finished receive to the application.
    pub(crate) fn received(&mut self, completion: ReceiveCompletion<B>) {
        let (tag, length, result) = (completion.tag, completion.length, completion.result);
        tracing::trace!(tag, length, ?result, "receive ended");
        self.statistics.delivered_bytes += completion.length;
        self.schedule.complete(Completion::Receive(completion));
    }

    /// Tells the application of a write or read that ended.
    pub(crate) fn rma_ended(&mut self, completion: RmaCompletion<B>) {
        if completion.kind == RmaKind::Read {
            self.statistics.delivered_bytes += completion.length;
        }
        self.schedule.complete(Completion::Rma(completion));
    }

    /// A peer's write that is all there, or can't be finished.
    pub(crate) fn written(
        &mut self,
        peer: PeerId,
        length: u64,
        cq_data: Option<u64>,
        error: Option<OperationError>,
    ) {
        if let Some(error) = error {
            return self.events.push(Event::WriteFailed { peer, error });
        }
        self.statistics.remote_writes += 1;
        if let Some(cq_data) = cq_data {
            let peer = Some(peer);
            self.schedule.complete(Completion::RemoteWrite(RemoteWrite { peer, cq_data, length }));
        }
    }

    /// A peer's device wrote to memory of this side and sent data along.
    pub(crate) fn written_by_device(&mut self, source: Source, data: u32, length: u64) {
        let peer = source.address_handle.and_then(|h| self.peers.by_source(h, source.qpn));
        self.statistics.remote_writes += 1;
        let (cq_data, written) = (u64::from(data), Completion::RemoteWrite);
        self.schedule.complete(written(RemoteWrite { peer, cq_data, length }));
    }

    /// Keeps the completion of an operation, if one ended.
    pub(crate) fn complete(&mut self, ended: Option<Completion<B>>) {
        if let Some(ended) = ended {
            self.schedule.complete(ended);
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Matching<Q, B> {
    /// A receive ends without a message.
    pub(crate) fn wait_failed(&mut self, waiting: Waiting<B>, tagged: bool, error: OperationError) {
        let posted = self.end_wait(waiting);
        self.ops.core.schedule.complete(Completion::Receive(ReceiveCompletion {
            context: posted.context,
            peer: None,
            tagged,
            tag: posted.tag,
            length: 0,
            cq_data: None,
            subprotocol: None,
            buffer: posted.buffer,
            result: Err(error),
        }));
    }
}
