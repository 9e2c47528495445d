//! RDMA operations of a queue pair: [copied](super::super::operation) by the kernel, or
//! [requested](super::super::requests) from their targets.

use efa_device::{DeviceError, Qkey, Qpn, Status};

use super::super::operation::Operation;
use super::super::outgoing::{Content, Outgoing, Posted, Purpose};
use super::super::requests::Ended;
use super::{ShmLink, complete};
use crate::link::{Direction, Path, QueueState};

impl ShmLink {
    /// Copies a piece for the first operation, or hands it to its target if the kernel doesn't copy.
    #[inline(never)]
    pub(super) fn copy_piece(&mut self, state: &mut QueueState) {
        let Some(operation) = self.operations.front_mut() else { return };
        let result = match operation.step(&self.memory) {
            Ok(true) => return,
            Ok(false) => Ok(()),
            Err(status) => Err(status),
        };
        let Some(operation) = self.operations.pop_front() else { return };
        if result == Err(Status::NotPermitted) {
            self.request(state, operation);
            return;
        }
        let (id, peer, length) = (operation.id, operation.peer(), operation.length());
        let direction = operation.direction;
        self.end_rdma(state, Ended { id, peer, direction, length, result });
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
        let id = self.peer(peer);
        if let Some(key) = self.requests.rings.get(peer)
            && let Some(outgoing) = self.outgoing.get_mut(key)
        {
            if !outgoing.is_detached() {
                return Ok(Some(key));
            }
            outgoing.close(Status::BadDestinationQpn, |finished| {
                complete(state, &mut self.requests, id, finished);
            });
            self.forget(key);
        }
        let outgoing = Outgoing::open(&self.local, peer, Purpose::Requests, None)?;
        let Some(outgoing) = outgoing else { return Ok(None) };
        let key = self.outgoing.insert(outgoing);
        self.requests.rings.set(peer, Some(key));
        Ok(Some(key))
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
