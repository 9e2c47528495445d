//! Atomics on a peer's memory (section 3.3).
//!
//! ```text
//!   requester                                        responder
//!     │── WRITE_RTA (msg_id, rma_iov, operand) ────────►│ in msg_id order: check, apply
//!
//!     │── FETCH_RTA (msg_id, recv_id, operand) ────────►│ check, apply
//!     │◄──────────── ATOMRSP (recv_id, previous values) │
//!
//!     │── COMPARE_RTA (…, operand, comparand) ─────────►│ check, apply
//!     │◄──────────── ATOMRSP (recv_id, previous values) │
//!
//!     │── DC_WRITE_RTA (msg_id, send_id, operand) ─────►│ check, apply
//!     │◄───────────────────────────── RECEIPT (send_id) │
//! ```
//!
//! Atomics have message IDs and are ordered with messages. An atomic that the responder refuses still
//! uses up its message ID. As for writes and reads, the requester learns of it by PEER_ERROR alone.

use efa_device::{QueuePair, Status};
use efa_proto::{AtomRsp, MsgId, OpId, PacketType, Rta, RtaKind};

use crate::atomic::{AtomicKind, AtomicOp, Datatype, apply};
use crate::completion::{Level, StartError};
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::event::DropReason;
use crate::ids::PeerId;
use crate::memory::{Memory, RemoteUse};
use crate::operations::{AtomicState, Operations, Send, SendOn, SendRole};
use crate::payload::Payload;
use crate::peer::Begun;
use crate::remote::{self, Remote};
use crate::select::Subprotocol;
use crate::shape::asked_by_atomic;
use crate::work::{Advance, Work};

/// An atomic operation on a peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct Atomic<B> {
    /// The peer.
    pub peer: PeerId,
    /// The target; a compare atomic takes a single piece.
    pub remote: Remote,
    /// The type of the elements.
    pub datatype: Datatype,
    /// The operation on each element.
    pub op: AtomicOp,
    /// The buffers.
    pub operands: Operands<B>,
    /// When the atomic completes; ignored if it returns previous values.
    pub level: Level,
    /// Returned with the completion.
    pub context: u64,
}

/// The buffers of an atomic, each as long as the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands<B> {
    /// For an atomic that returns nothing.
    Write {
        /// The operand.
        operand: B,
    },
    /// For an atomic that returns the target's previous values.
    Fetch {
        /// The operand; it may be empty for [`AtomicOp::Read`].
        operand: B,
        /// Receives the previous values.
        fetched: B,
    },
    /// For an atomic that takes a comparand and returns the target's previous values.
    Compare {
        /// The operand.
        operand: B,
        /// The comparand.
        comparand: B,
        /// Receives the previous values.
        fetched: B,
    },
}

impl<B> Operands<B> {
    /// The kind of atomic that takes these buffers.
    #[must_use]
    pub const fn kind(&self) -> AtomicKind {
        match self {
            Self::Write { .. } => AtomicKind::Write,
            Self::Fetch { .. } => AtomicKind::Fetch,
            Self::Compare { .. } => AtomicKind::Compare,
        }
    }

    /// Applies `f` to each buffer.
    #[must_use]
    pub fn map<T>(self, mut f: impl FnMut(B) -> T) -> Operands<T> {
        match self {
            Self::Write { operand } => Operands::Write { operand: f(operand) },
            Self::Fetch { operand, fetched } => {
                Operands::Fetch { operand: f(operand), fetched: f(fetched) }
            }
            Self::Compare { operand, comparand, fetched } => Operands::Compare {
                operand: f(operand),
                comparand: f(comparand),
                fetched: f(fetched),
            },
        }
    }

    fn all(&self) -> impl Iterator<Item = &B> {
        let (operand, others) = match self {
            Self::Write { operand } => (operand, [None, None]),
            Self::Fetch { operand, fetched } => (operand, [Some(fetched), None]),
            Self::Compare { operand, comparand, fetched } => {
                (operand, [Some(comparand), Some(fetched)])
            }
        };
        core::iter::once(operand).chain(others.into_iter().flatten())
    }
}

/// An atomic was not started; returns the buffers.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct AtomicRefused<B> {
    /// The reason.
    pub error: StartError,
    /// The buffers.
    pub operands: Operands<B>,
}

/// Largest target of an atomic in bytes, on a device with this MTU in bytes: its operands must fit one packet.
#[must_use]
pub const fn atomic_limit(mtu: usize, kind: AtomicKind) -> usize {
    let capacity = mtu.saturating_sub(MAX_RTA_HEADER);
    match kind {
        AtomicKind::Compare => capacity / 2,
        AtomicKind::Write | AtomicKind::Fetch => capacity,
    }
}

/// The length in bytes of the largest RTA header: 24 bytes, four pieces of memory, and a raw address.
const MAX_RTA_HEADER: usize = 24 + 4 * 24 + 40;

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// Starts an atomic on a peer's memory. It is ordered with the messages to the peer.
    ///
    /// # Errors
    /// Returns the buffers if the peer is unknown or has ended, too many operations are under way,
    /// lengths differ or exceed [`atomic_limit`](Self::atomic_limit), or kind, operation and datatype
    /// can't be combined.
    pub fn atomic(&mut self, atomic: Atomic<B>) -> Result<(), AtomicRefused<B>> {
        let checked = self.check_atomic(&atomic).and_then(|()| self.matching.ops.check_new_send());
        let Atomic { peer, remote, datatype, op, operands, level, context } = atomic;
        if let Err(error) = checked {
            return Err(AtomicRefused { error, operands });
        }
        let kind = operands.kind();
        let (memory, fetched) = match operands {
            Operands::Write { operand } => (Memory::Buffer(operand), None),
            Operands::Fetch { operand, fetched } => (Memory::Buffer(operand), Some(fetched)),
            Operands::Compare { operand, comparand, fetched } => {
                (Memory::Buffers(Box::new((operand, comparand))), Some(fetched))
            }
        };
        let fetches = fetched.is_some();
        let state = AtomicState { remote, datatype, op, kind, fetched };
        let role =
            SendRole::Atomic { atomic: self.matching.ops.atomics.insert(state) as u32, fetches };
        let length = memory.length();
        let mut send = Send::new(peer, role, memory, length, context);
        send.level = if fetches || level == Level::Inject { Level::Transmit } else { level };
        self.matching.ops.start_ordered(send);
        self.settle();
        Ok(())
    }

    /// Largest target of an atomic in bytes: its operands must fit one packet.
    #[must_use]
    pub fn atomic_limit(&self, kind: AtomicKind) -> usize {
        atomic_limit(self.core().transmit.mtu(), kind)
    }

    fn check_atomic(&mut self, atomic: &Atomic<B>) -> Result<(), StartError> {
        let Atomic { peer, remote, datatype, op, operands, .. } = atomic;
        let kind = operands.kind();
        // libfabric since 2.0 applies all pieces of a compare atomic to the first one.
        let one_piece = kind != AtomicKind::Compare || remote.pieces().len() == 1;
        if !kind.allows(*op, *datatype) || !one_piece {
            return Err(StartError::NoSuchAtomic { kind, op: *op, datatype: *datatype });
        }
        let length = remote::total(remote.pieces()).unwrap_or(u64::MAX);
        for (index, buffer) in operands.all().enumerate() {
            let unused = index == 0 && *op == AtomicOp::Read && buffer.length() == 0;
            if !unused {
                self.core_mut().check_remote(*peer, remote, buffer.length())?;
            }
        }
        let size = datatype.size();
        let mut pieces = remote.pieces().iter().map(|piece| piece.len());
        if let Some(length) = pieces.find(|length| length % size as u64 != 0) {
            return Err(StartError::NotOfElements { length, size });
        }
        let limit = self.atomic_limit(kind);
        if length > limit as u64 {
            return Err(StartError::AtomicTooLong { length, limit });
        }
        Ok(())
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Sends the ATOMRSP with the previous values.
    pub(crate) fn send_atomrsp(&mut self, id: OpId, send: &mut SendOn<Q, B>) -> Advance {
        let (seg_length, before) = (send.length, send.outstanding);
        let response = AtomRsp { connid: self.packet_connid(), recv_id: send.recv_id, seg_length };
        let emit = |packet: &mut [u8]| response.emit(packet);
        let advance = self.post_segment(id, send, PacketType::AtomRsp, seg_length, emit);
        self.note_subprotocol(send, Subprotocol::Eager, before);
        advance
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Sends the RTA.
    pub(crate) fn send_rta(&mut self, id: OpId, atomic: u32) -> Advance {
        let Self { core, sends, atomics, .. } = self;
        let Some(send) = sends.get_mut(id) else { return Advance::Done };
        let Some(state) = atomics.get(atomic as usize) else { return Advance::Done };
        let rta = Rta {
            msg_id: MsgId(send.msg_id),
            rma_iov: state.remote.pieces(),
            datatype: state.datatype.code(),
            op: state.op.code(),
            kind: match (state.kind, send.level) {
                (AtomicKind::Write, Level::Inject | Level::Transmit) => RtaKind::Write,
                (AtomicKind::Write, Level::Delivery) => RtaKind::DcWrite { send_id: id },
                (AtomicKind::Fetch, _) => RtaKind::Fetch { recv_id: id },
                (AtomicKind::Compare, _) => RtaKind::Compare { recv_id: id },
            },
            options: core.request_options(send.peer, None),
        };
        let (length, before) = (send.length, send.outstanding);
        let advance =
            core.post_segment(id, send, rta.packet_type(), length, |packet| rta.emit(packet));
        core.note_subprotocol(send, Subprotocol::Eager, before);
        advance
    }

    /// Handles a peer's RTA, in message ID order: applies it and queues the response.
    pub(crate) fn rta_arrived(&mut self, peer: PeerId, rta: &Rta<'_>, payload: &[u8]) {
        let asked = asked_by_atomic(rta.kind);
        let Some(request) = AtomicRequest::of(rta, payload, self.core.transmit.mtu()) else {
            return self.core.refuse(peer, asked, DropReason::BadAtomic);
        };
        let memory = self.core.exposed(peer, asked, rta.rma_iov, request.access());
        let Some(memory) = memory else { return };
        let has_response = request.kind != AtomicKind::Write;
        if has_response && !(self.may_respond() && self.core.may_begin(peer, Begun::Request)) {
            return self.core.refuse(peer, asked, DropReason::TooManyOperations);
        }
        let AtomicRequest { kind, op, datatype, operand, comparand } = request;
        let size = datatype.size();
        let mut values = self.values();
        let is_there = memory.update(size, |number, target| {
            if kind != AtomicKind::Write {
                values.truncate(number * size);
                values.extend_from_slice(target);
            }
            let part = number * size..(number + 1) * size;
            let operand = operand.get(part.clone()).unwrap_or_default();
            apply(op, datatype, target, operand, comparand.get(part).unwrap_or(operand));
        });
        if !is_there {
            self.recycle_values(values);
            self.core.drop_packet(peer, DropReason::Revoked);
            return self.core.give_up(peer, asked, Status::RemoteBadAddress.code().into());
        }
        match kind {
            AtomicKind::Write => self.core.statistics.remote_writes += 1,
            AtomicKind::Fetch | AtomicKind::Compare => self.core.statistics.remote_reads += 1,
        }
        match rta.kind {
            RtaKind::DcWrite { send_id } => {
                self.recycle_values(values);
                self.core.queue_response(peer, Work::Receipt { send_id, msg_id: rta.msg_id.0 });
            }
            RtaKind::Fetch { recv_id } | RtaKind::Compare { recv_id } => {
                let (role, length) = (SendRole::AtomicResponse, values.len() as u64);
                let mut send = Send::new(peer, role, Memory::Values(values), length, 0);
                send.recv_id = recv_id;
                let id = self.add_send(send);
                self.core.count_begun(peer, Begun::Request);
                self.core.enqueue(peer, Work::Send(id));
            }
            _ => self.recycle_values(values),
        }
    }

    /// Handles an ATOMRSP: copies the previous values to the buffer and completes the atomic.
    pub(crate) fn atomrsp_arrived(&mut self, peer: PeerId, response: &AtomRsp, payload: &[u8]) {
        let id = response.recv_id;
        let send = self.sends.get_mut(id);
        let Some(send) = send.filter(|send| send.peer == peer && send.awaits_values()) else {
            return self.core.drop_packet(peer, DropReason::UnknownOperation);
        };
        let SendRole::Atomic { atomic, .. } = send.role else { return };
        let state = self.atomics.get_mut(atomic as usize);
        let Some(fetched) = state.and_then(|state| state.fetched.as_mut()) else { return };
        let bytes = payload.len() as u64;
        // A response to a request that hasn't been sent is forged.
        if send.subprotocol.is_none() || fetched.length() != bytes {
            return self.core.drop_packet(peer, DropReason::SegmentOutOfRange);
        }
        fetched.write(0, payload);
        send.confirmed = true;
        self.end_send_if_done(id);
    }
}

/// A peer's RTA, checked.
#[derive(Clone, Copy, Debug)]
struct AtomicRequest<'a> {
    kind: AtomicKind,
    op: AtomicOp,
    datatype: Datatype,
    operand: &'a [u8],
    comparand: &'a [u8],
}

impl<'a> AtomicRequest<'a> {
    /// `None` if kind, operation and datatype can't be combined, or the lengths don't fit.
    fn of(rta: &Rta<'_>, payload: &'a [u8], mtu: usize) -> Option<Self> {
        let datatype = Datatype::from_code(rta.datatype)?;
        let op = AtomicOp::from_code(rta.op)?;
        let kind = match rta.kind {
            RtaKind::Write | RtaKind::DcWrite { .. } => AtomicKind::Write,
            RtaKind::Fetch { .. } => AtomicKind::Fetch,
            RtaKind::Compare { .. } => AtomicKind::Compare,
            _ => return None,
        };
        let size = datatype.size() as u64;
        let of_elements = rta.rma_iov.iter().all(|piece| piece.len().is_multiple_of(size));
        let length = usize::try_from(remote::total(rta.rma_iov)?).ok()?;
        let response_fits = kind == AtomicKind::Write || length <= mtu - ATOMRSP_HEADER;
        if !kind.allows(op, datatype) || !of_elements || !response_fits {
            return None;
        }
        let (operand, comparand) = match kind {
            AtomicKind::Compare => payload.split_at_checked(length)?,
            _ => (payload, &payload[..0]),
        };
        let unused = op == AtomicOp::Read && operand.is_empty();
        let fits = (operand.len() == length || unused)
            && (kind != AtomicKind::Compare || comparand.len() == length);
        fits.then_some(Self { kind, op, datatype, operand, comparand })
    }

    fn access(&self) -> RemoteUse {
        match (self.kind, self.op) {
            (AtomicKind::Write, _) => RemoteUse::Write,
            (_, AtomicOp::Read) => RemoteUse::Read,
            _ => RemoteUse::ReadWrite,
        }
    }
}

/// Length of an ATOMRSP's header in bytes.
const ATOMRSP_HEADER: usize = 24;
