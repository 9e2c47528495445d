//! The path of a completion: how each kind of operation ends, up to the queue that the application polls.
//!
//! ```text
//!   send ─────────────────► send_end ──────────┐
//!   receive, read ────────► receive_end ───────┼─► returned by the `poll` whose device completion ended it
//!   single-packet message ► single_packet_end ─┤
//!   read by one operation ► single_read_end ───┤
//!   write by a peer ──────► written ───────────┴─► complete ─► queue ─► poll, poll_completion
//! ```

use efa_device::{QueuePair, Source};
use efa_proto::OpId;

use crate::completion::{
    AtomicCompletion, Completion, Level, OperationError, ReceiveCompletion, RemoteWrite,
    RmaCompletion, RmaKind, SendCompletion,
};
use crate::core::Core;
use crate::event::{DropReason, Event};
use crate::ids::PeerId;
use crate::matching::{Matching, Waiting};
use crate::memory::Memory;
use crate::operations::{Assembly, Operations, Receive, ReceiveRole, Send, SendRole};
use crate::payload::Payload;
use crate::peer::Begun;
use crate::remote;
use crate::select::Subprotocol;
use crate::work::{SinglePacket, Work};

/// The completion of a receive whose single-packet message fits.
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
    /// Completes a send that is done.
    pub(crate) fn end_send_if_done(&mut self, id: OpId) {
        let completion = self.send_end_if_done(id);
        self.core.complete(completion);
    }

    /// Removes a send that is done; returns its completion.
    #[inline]
    pub(crate) fn send_end_if_done(&mut self, id: OpId) -> Option<Completion<B>> {
        let send = self.sends.get(id)?;
        if let Some(status) = send.given_up {
            self.give_up_if_drained(id, status);
            None
        } else if send.is_done() {
            self.send_end(id, Ok(()))
        } else {
            None
        }
    }

    /// Completes a send with [`Level::Inject`] whose bytes are all in packets. It stays under way, without its
    /// buffer, until these are delivered.
    #[inline]
    pub(crate) fn end_injected_if_copied(&mut self, id: OpId) {
        if self.sends.get(id).is_some_and(|send| send.level == Level::Inject) {
            self.end_injected(id);
        }
    }

    #[cold]
    fn end_injected(&mut self, id: OpId) {
        let Some(send) = self.sends.get_mut(id) else { return };
        let is_copied = send.subprotocol.is_some() && send.sent == send.length;
        if !is_copied || !matches!(send.memory, Memory::Buffer(_)) {
            return;
        }
        send.memory.deregister();
        let Send { context, peer, tag, length, subprotocol, role, .. } = *send;
        let memory = core::mem::replace(&mut send.memory, Memory::Values(Vec::new()));
        let Memory::Buffer(buffer) = memory else { return };
        let result = Ok(());
        match role {
            SendRole::Message => self.core.schedule.complete(Completion::Send(SendCompletion {
                context,
                peer,
                tag,
                length,
                subprotocol,
                buffer: Some(buffer),
                result,
            })),
            _ => {
                let kind = RmaKind::Write;
                self.core.schedule.complete(Completion::Rma(RmaCompletion {
                    kind,
                    context,
                    peer,
                    length,
                    subprotocol,
                    buffer,
                    result,
                }));
            }
        }
    }

    /// Completes a send that failed.
    pub(crate) fn fail_send(&mut self, id: OpId, error: OperationError) {
        let completion = self.send_end(id, Err(error));
        self.core.complete(completion);
    }

    /// Removes a send; returns its completion, if it has one.
    pub(crate) fn send_end(
        &mut self,
        id: OpId,
        result: Result<(), OperationError>,
    ) -> Option<Completion<B>> {
        self.sends.get_mut(id)?.memory.deregister();
        let Send { memory, role, context, peer, tag, length, subprotocol, msg_id, .. } =
            self.take_send(id)?;
        tracing::trace!(peer = peer.0, ?role, msg_id, ?result, "send ended");
        match (role, memory) {
            (SendRole::Message, Memory::Buffer(buffer)) => {
                let buffer = Some(buffer);
                return Some(Completion::Send(SendCompletion {
                    context,
                    peer,
                    tag,
                    length,
                    subprotocol,
                    buffer,
                    result,
                }));
            }
            (SendRole::Write { .. }, Memory::Buffer(buffer)) => {
                let kind = RmaKind::Write;
                return Some(Completion::Rma(RmaCompletion {
                    kind,
                    context,
                    peer,
                    length,
                    subprotocol,
                    buffer,
                    result,
                }));
            }
            // It has completed.
            (SendRole::Message | SendRole::Write { .. }, Memory::Values(_)) => {
                if let Err(error) = result {
                    self.core.events.push(Event::InjectedFailed { peer, context, error });
                }
            }
            (SendRole::Atomic { atomic, .. }, memory) => {
                return self.atomic_end((context, peer), atomic, memory, result);
            }
            (SendRole::AtomicResponse, Memory::Values(values)) => {
                self.recycle_values(values);
                self.core.count_ended(peer, Begun::Request);
            }
            (SendRole::ReadResponse, _) => {
                self.core.statistics.remote_reads += u64::from(result.is_ok());
                self.core.count_ended(peer, Begun::Request);
            }
            _ => {}
        }
        None
    }

    /// Completes a receive operation.
    pub(crate) fn end_receive(&mut self, id: OpId, error: Option<OperationError>) {
        let completion = self.receive_end(id, error);
        self.core.complete(completion);
    }

    /// Removes a receive operation; returns its completion, if it has one.
    pub(crate) fn receive_end(
        &mut self,
        id: OpId,
        error: Option<OperationError>,
    ) -> Option<Completion<B>> {
        let receive = self.receives.get_mut(id)?;
        receive.memory.deregister();
        let (capacity, is_assembled) = (receive.memory.length(), receive.is_assembled());
        let Receive {
            memory,
            coverage,
            role,
            context,
            peer,
            length,
            msg_id,
            tagged,
            tag,
            cq_data,
            subprotocol,
            send_id,
            receipt,
            ..
        } = self.take_receive(id)?;
        if is_assembled {
            self.forget_assembly(peer, msg_id, Assembly::Receiving(id));
        }
        if receipt && error.is_none() {
            self.core.queue_response(peer, Work::Receipt { send_id, msg_id });
        }
        let written = coverage.prefix().min(capacity);
        self.recycle_coverage(coverage);
        match (role, memory) {
            (ReceiveRole::Message, Memory::Buffer(buffer)) => {
                let truncated = OperationError::Truncated { length, capacity };
                let error = error.or((length > capacity).then_some(truncated));
                return Some(self.core.receive_completion(ReceiveCompletion {
                    context,
                    peer: Some(peer),
                    tagged,
                    tag,
                    length: written,
                    cq_data,
                    subprotocol,
                    buffer,
                    result: error.map_or(Ok(()), Err),
                }));
            }
            (ReceiveRole::Read { .. }, Memory::Buffer(buffer)) => {
                self.core.statistics.delivered_bytes += written;
                return Some(Completion::Rma(RmaCompletion {
                    kind: RmaKind::Read,
                    context,
                    peer,
                    length: written,
                    subprotocol,
                    buffer,
                    result: error.map_or(Ok(()), Err),
                }));
            }
            (ReceiveRole::Discarded, _) => self.core.count_ended(peer, Begun::Discarded),
            (ReceiveRole::Written, _) => {
                self.core.count_ended(peer, Begun::Request);
                self.core.written(peer, length, cq_data, error);
            }
            _ => {}
        }
        None
    }

    /// Completes a single-packet message, apart from device completions.
    pub(crate) fn single_packet_ended(
        &mut self,
        peer: PeerId,
        message: SinglePacket<B>,
        result: Result<(), OperationError>,
    ) {
        let completion = self.single_packet_end(peer, message, result);
        self.core.complete(completion);
    }

    /// The completion of a single-packet message; `None` for an injected one that succeeded.
    #[inline(always)]
    pub(crate) fn single_packet_end(
        &mut self,
        peer: PeerId,
        message: SinglePacket<B>,
        result: Result<(), OperationError>,
    ) -> Option<Completion<B>> {
        let SinglePacket { tag, context, length, buffer } = message;
        if buffer.is_some() {
            self.single_packets -= 1;
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

    /// Removes the state of an atomic; returns its completion.
    #[inline(never)]
    fn atomic_end(
        &mut self,
        (context, peer): (u64, PeerId),
        atomic: u32,
        memory: Memory<B, Q::Region>,
        result: Result<(), OperationError>,
    ) -> Option<Completion<B>> {
        let state = self.atomics.try_remove(atomic as usize)?;
        let (operand, comparand) = match memory {
            Memory::Buffer(operand) => (operand, None),
            Memory::Buffers(both) => (both.0, Some(both.1)),
            Memory::Exposed(_) | Memory::Values(_) => return None,
        };
        Some(Completion::Atomic(Box::new(AtomicCompletion {
            context,
            peer,
            length: remote::total(state.remote.pieces()).unwrap_or(0),
            operand,
            comparand,
            fetched: state.fetched,
            result,
        })))
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Completes a receive.
    pub(crate) fn received(&mut self, completion: ReceiveCompletion<B>) {
        let completion = self.receive_completion(completion);
        self.schedule.complete(completion);
    }

    /// Counts a receive that completes.
    pub(crate) fn receive_completion(&mut self, completion: ReceiveCompletion<B>) -> Completion<B> {
        let (tag, length, result) = (completion.tag, completion.length, completion.result);
        tracing::trace!(tag, length, ?result, "receive ended");
        self.statistics.delivered_bytes += length;
        Completion::Receive(completion)
    }

    /// Reports a peer's write that is complete or failed.
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

    /// Completes a write by a peer's device with immediate data.
    pub(crate) fn written_by_device(&mut self, source: Source, data: u32, length: u64) {
        let peer = self.peers.by_source(source);
        if peer.is_none() && self.refuses_strangers() {
            return self.drop_packet_from(source, None, DropReason::Stranger);
        }
        self.statistics.remote_writes += 1;
        let written = RemoteWrite { peer, cq_data: data.into(), length };
        self.schedule.complete(Completion::RemoteWrite(written));
    }

    /// Queues a completion, if there is one.
    pub(crate) fn complete(&mut self, ended: Option<Completion<B>>) {
        if let Some(ended) = ended {
            self.schedule.complete(ended);
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Matching<Q, B> {
    /// Completes a receive that ends without a message.
    pub(crate) fn receive_failed(
        &mut self,
        waiting: Waiting<B>,
        tagged: bool,
        error: OperationError,
    ) {
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
