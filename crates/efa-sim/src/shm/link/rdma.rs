//! RDMA operations of a queue pair: [copied](super::super::operation) by the kernel, in part by their
//! [targets](super::super::sharing), or [requested](super::super::requests) from them.

use efa_device::{DeviceError, Qkey, Qpn, Status};

use super::super::operation::Operation;
use super::super::outgoing::{Content, Posted, Purpose};
use super::super::requests::Ended;
use super::super::sharing::{Answer, Shared};
use super::ShmLink;
use crate::link::{Direction, Path, QueueState};
use crate::lock::within;
use crate::region::UNPIN_TIMEOUT;

/// How many polls in a row look for the part of one target while other operations wait.
const PATIENCE: u32 = 256;

impl ShmLink {
    /// Goes on with the first operation, or hands it to its target if the kernel doesn't copy.
    #[inline(never)]
    pub(super) fn copy_piece(&mut self, state: &mut QueueState) {
        let Some(mut operation) = self.operations.pop_front() else { return };
        let copied = match operation.shared {
            None => self.copy_next(&mut operation),
            Some(shared) => self.take_back_part(&mut operation, shared),
        };
        let result = match copied {
            None => return self.wait(operation),
            Some(Ok(())) if !operation.is_done() => return self.operations.push_front(operation),
            Some(result) => result,
        };
        if result == Err(Status::NotPermitted) {
            self.request(state, operation);
            return;
        }
        let (id, peer, length) = (operation.id, operation.peer(), operation.length());
        let direction = operation.direction;
        self.end_rdma(state, Ended { id, peer, direction, length, result });
    }

    /// Keeps an operation whose target writes its part. That takes little longer than the front part took, unless the
    /// target's process doesn't run: then those of other targets go first. Those of one target keep their order.
    fn wait(&mut self, mut operation: Operation) {
        let Some(shared) = &mut operation.shared else { return };
        shared.polls = shared.polls.wrapping_add(1);
        let (is_late, peer) = (shared.polls.is_multiple_of(PATIENCE), operation.peer());
        self.operations.push_front(operation);
        if is_late {
            self.operations.make_contiguous().sort_by_key(|operation| operation.peer() == peer);
        }
    }

    /// Copies the next piece, [shared](super::super::sharing) with the target if it may be. `None` while the target
    /// writes its part.
    fn copy_next(&mut self, operation: &mut Operation) -> Option<Result<(), Status>> {
        let Some(mut shared) = self.ask_for_back_part(operation) else {
            return Some(operation.copy(&self.memory, operation.piece()));
        };
        let front = operation.piece() - shared.length;
        shared.front = operation.copy(&self.memory, front);
        operation.shared = Some(shared);
        self.take_back_part(operation, shared)
    }

    /// Asks the target to write the back part of the next piece.
    pub(super) fn ask_for_back_part(&mut self, operation: &Operation) -> Option<Shared> {
        let (push, peer) = (operation.back_part()?, operation.peer());
        let ring = self.by_number.get(peer)?;
        let outgoing = self.outgoing.get_mut(ring).filter(|outgoing| outgoing.may_ask())?;
        if !self.memory.kernel_copies(peer, push.from.key) {
            return None;
        }
        operation.allow_pushes();
        let ticket = self.asked.next();
        if outgoing.is_idle() {
            self.active.push(ring);
        }
        outgoing.ask(ticket, push);
        Some(Shared { ring, ticket, length: push.count as usize, front: Ok(()), polls: 0 })
    }

    /// Ends a piece whose front part was copied: the target has written the back part, or didn't begin to and
    /// this side copies it. `None` while it writes.
    fn take_back_part(
        &self,
        operation: &mut Operation,
        shared: Shared,
    ) -> Option<Result<(), Status>> {
        let is_written = self.is_written(shared)?;
        operation.shared = None;
        Some(match (shared.front, is_written) {
            (Err(status), _) => Err(status),
            (Ok(()), true) => {
                operation.skip(shared.length);
                Ok(())
            }
            (Ok(()), false) => operation.copy(&self.memory, shared.length),
        })
    }

    /// Whether a target has written its part, or `false` if it never will. `None` while it writes.
    fn is_written(&self, Shared { ring, ticket, .. }: Shared) -> Option<bool> {
        // A ring that is gone has failed the request.
        let Some(outgoing) = self.outgoing.get(ring) else { return Some(false) };
        match outgoing.answer(ticket) {
            Answer::Written => Some(true),
            Answer::Refused => Some(false),
            Answer::Awaited => outgoing.withdraw(ticket).then_some(false),
        }
    }

    /// Withdraws what targets were asked to write, and waits for those that write just now, as
    /// [deregistration](crate::region) does.
    pub(super) fn withdraw_requests(&mut self, state: &mut QueueState) {
        within(UNPIN_TIMEOUT, || {
            let shared = self.operations.iter().filter_map(|operation| operation.shared);
            // Each is looked at, as that withdraws it.
            let writing = shared.filter(|&shared| self.is_written(shared).is_none()).count();
            if writing == 0 {
                return Some(());
            }
            self.poll_active(state);
            None
        });
    }

    /// Completes an operation, after its immediate data were delivered.
    fn end_rdma(&mut self, state: &mut QueueState, ended: Ended) {
        let Ended { id, peer, direction, length, result } = ended;
        match (result, direction) {
            (Ok(()), Direction::Write(Some(immediate))) => {
                let connection = match self.ring_to(state, peer, None) {
                    Ok(ring) => ring.ok_or(Status::BadDestinationQpn),
                    Err(error) => {
                        tracing::warn!(%error, "no ring for immediate data");
                        Err(Status::QueuePairInternal)
                    }
                };
                let path = Path { peer: self.peer(peer), connection };
                let (content, immediate) = (Content::Written(length), Some(immediate));
                self.post(state, path, Posted { id, content, immediate, qkey: Qkey(0) });
            }
            (result, _) => state.complete_rdma(id, result),
        }
    }

    /// Begins to ask the target for an operation.
    #[cold]
    fn request(&mut self, state: &mut QueueState, operation: Operation) {
        let (id, direction) = (operation.id, operation.direction);
        match self.request_ring(state, operation.peer()) {
            Ok(Some(ring)) => self.requests.start(operation.into_request(), direction, ring),
            Ok(None) => state.complete_rdma(id, Err(Status::BadDestinationQpn)),
            Err(error) => {
                tracing::warn!(%error, "no ring for requests");
                state.complete_rdma(id, Err(Status::QueuePairInternal));
            }
        }
    }

    /// The ring for requests to `peer`, created if need be; `None` if there is no such queue pair.
    fn request_ring(
        &mut self,
        state: &mut QueueState,
        peer: Qpn,
    ) -> Result<Option<usize>, DeviceError> {
        if let Some(key) = self.requests.rings.get(peer)
            && let Some(outgoing) = self.outgoing.get(key)
        {
            if !outgoing.is_detached() {
                return Ok(Some(key));
            }
            self.close_ring(state, key);
        }
        self.create_ring(peer, Purpose::Requests, None)
    }

    /// Puts requests into rings that have space, and completes operations that have ended.
    #[inline(never)]
    pub(super) fn go_on_with_requests(&mut self, state: &mut QueueState) {
        while let Some((ring, posted)) = self.requests.next(&self.outgoing) {
            let Some(outgoing) = self.outgoing.get_mut(ring) else { continue };
            if outgoing.is_idle() {
                self.active.push(ring);
            }
            outgoing.post(posted);
        }
        while let Some(ended) = self.requests.take_ended() {
            self.end_rdma(state, ended);
        }
    }
}
