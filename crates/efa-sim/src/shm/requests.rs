//! RDMA where the kernel doesn't copy between the processes: the target's process carries it out.
//!
//! ```text
//!   requester                                       target
//!   operation ─► pieces of CHUNK bytes
//!      read:  address, key, count  ══ ring ══►  checks key, bounds, access; puts the bytes into the slot
//!      write: address, key, bytes  ══ ring ══►  checks the same; stores the bytes
//!   result    ◄─────────────────── acknowledgement of the slot: done, or the status
//! ```
//!
//! Requests have a ring of their own to each peer, so that they don't wait behind datagrams for which no buffer is
//! posted, and nor do these behind them. What is in flight is bounded by its slots on both sides: an answer is in
//! the slot of its request. As on the tcp link, operations go on while the target polls.

use std::collections::VecDeque;

use efa_device::{Qpn, RdmaRequest, Status, WorkId};
use slab::Slab;

use super::link::Keys;
use super::outgoing::{Content, Outgoing, Posted};
use crate::link::{Direction, Piece, RequestedOperation};
use crate::region::SoftRegion;

/// Most bytes of a request.
pub(super) const CHUNK: usize = 64 << 10;
/// Most requests in flight to one peer, the slots of the ring: a power of two.
pub(super) const REQUESTS: usize = 16;

/// An operation in requests.
#[derive(Debug)]
struct Requested {
    operation: RequestedOperation,
    /// The ring.
    ring: usize,
    peer: Qpn,
    direction: Direction,
    length: u64,
}

/// An operation that ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) id: WorkId,
    pub(super) peer: Qpn,
    pub(super) direction: Direction,
    pub(super) length: u64,
    pub(super) result: Result<(), Status>,
}

/// The operations of a queue pair that are carried out by their targets.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Rings for requests, by peer.
    pub(super) rings: Keys,
    operations: Slab<Requested>,
    /// Operations that have pieces to be requested, the oldest first.
    beginning: VecDeque<usize>,
    ended: VecDeque<Ended>,
}

impl Requests {
    /// Begins an operation by the ring with this key.
    pub(super) fn start(
        &mut self,
        request: RdmaRequest<SoftRegion>,
        direction: Direction,
        ring: usize,
    ) {
        let (peer, length) = (request.destination.qpn, request.local.length as u64);
        // Its immediate data follow as in other operations.
        let without = match direction {
            Direction::Read => Direction::Read,
            Direction::Write(_) => Direction::Write(None),
        };
        let operation = RequestedOperation::new(request, without, CHUNK);
        let requested = Requested { operation, ring, peer, direction, length };
        self.beginning.push_back(self.operations.insert(requested));
    }

    /// Whether there is something to be requested, or an operation that has ended.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        !self.beginning.is_empty() || !self.ended.is_empty()
    }

    /// The next request that has space in its ring, and the ring. An operation of which there are no more is left.
    pub(super) fn next(&mut self, rings: &Slab<Outgoing>) -> Option<(usize, Posted)> {
        let mut at = 0;
        while let Some(&key) = self.beginning.get(at) {
            let Some(requested) = self.operations.get_mut(key) else {
                self.beginning.remove(at);
                continue;
            };
            let ring = requested.ring;
            if !rings.get(ring).is_some_and(Outgoing::has_space) {
                at += 1;
                continue;
            }
            match requested.operation.begin() {
                Some(piece) => {
                    let id = requested.operation.id;
                    let content = Content::Piece { operation: key, piece: Box::new(piece) };
                    let qkey = efa_device::Qkey(0);
                    return Some((ring, Posted { id, content, immediate: None, qkey }));
                }
                None => {
                    self.beginning.remove(at);
                    self.end(key);
                }
            }
        }
        None
    }

    /// Takes the result of a request.
    pub(super) fn finish(&mut self, key: usize, piece: &Piece, result: Result<(), Status>) {
        let Some(requested) = self.operations.get_mut(key) else { return };
        if let (Ok(()), Some((offset, _))) = (result, piece.wanted) {
            requested.operation.take(offset, &piece.bytes);
        }
        requested.operation.end(result);
        self.end(key);
    }

    /// Ends an operation if it has its result.
    fn end(&mut self, key: usize) {
        let requested = self.operations.get(key);
        if let Some(result) = requested.and_then(|requested| requested.operation.result()) {
            self.end_with(key, result);
        }
    }

    fn end_with(&mut self, key: usize, result: Result<(), Status>) {
        let Requested { operation, peer, direction, length, .. } = self.operations.remove(key);
        self.beginning.retain(|&beginning| beginning != key);
        self.ended.push_back(Ended { id: operation.id, peer, direction, length, result });
    }

    /// An operation that ended.
    #[inline]
    pub(super) fn take_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    /// Fails the operations of a ring that is gone. Those of its requests that are in flight have failed already.
    pub(super) fn fail(&mut self, ring: usize, status: Status) {
        let of_ring = self.operations.iter().filter(|(_, requested)| requested.ring == ring);
        for key in of_ring.map(|(key, _)| key).collect::<Vec<_>>() {
            self.end_with(key, Err(status));
        }
    }
}
