//! Transfers: the device reads or writes memory of a peer, in as many operations as it takes.
//!
//! ```text
//!   transfer   |──────────── bytes next .. end of an operation's memory ────────────|
//!   pieces     |───── remote piece 0 ─────|────── piece 1 ──────|──── piece 2 ──────|
//!   posted     |── max_rdma_size ──|──────|── … ──|             bounded: max_rdma of the endpoint
//!                      │                  │
//!                registered buffer:    other buffers:
//!                 in place              by way of a bounce region, copied
//! ```
//!
//! A transfer stays until the device has given all of its operations back, whatever became of the
//! message or the peer meanwhile: until then the device may write to the buffer. Only
//! [`cancel_all`](Endpoint::cancel_all) doesn't wait.

use efa_device::{QueuePair, Region, RegionRange, Status, WorkId};
use efa_proto::OpId;

use crate::completion::OperationError;
use crate::core::Core;
use crate::event::Event;
use crate::memory::Memory;
use crate::operations::Operations;
use crate::payload::Payload;
use crate::transfer::{Owner, Transfer};
use crate::transmit::{PostFailure, RdmaFlight};
use crate::work::{Advance, Work};

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Begins a transfer; it may be over at once.
    pub(crate) fn begin_transfer(&mut self, transfer: Transfer) -> OpId {
        let peer = transfer.peer;
        let over = transfer.is_over();
        let id = self.transfers.insert(transfer);
        if over {
            self.end_transfer(id);
        } else {
            self.core.enqueue(peer, Work::Transfer(id));
        }
        id
    }

    /// Posts what the device takes.
    pub(crate) fn advance_transfer(&mut self, id: OpId) -> Advance {
        loop {
            let Some(transfer) = self.transfers.get(id) else { return Advance::Done };
            if transfer.next == transfer.end || transfer.failed.is_some() {
                return Advance::Done;
            }
            if self.core.transmit.rdma_in_flight() >= self.core.config.max_rdma {
                self.waiting_transfers.push_back(id);
                return Advance::Done;
            }
            let Some((remote, left)) = transfer.remote.at(transfer.next) else {
                self.fail_transfer(id, OperationError::Device(Status::RemoteBadAddress));
                return Advance::Done;
            };
            let (peer, offset, owner) = (transfer.peer, transfer.next, transfer.owner);
            let length = left.min(transfer.end - offset).min(self.core.longest_rdma());
            let Some((local, bounce)) = self.local(id, owner, offset, length) else {
                return Advance::Done;
            };
            let length = local.length as u64;
            let flight = RdmaFlight { transfer: id, offset, length, bounce };
            let destination = self.core.peers.destination(peer);
            let posted = match owner {
                Owner::Receive(_) => {
                    self.core.transmit.post_read(destination, local, remote, flight)
                }
                Owner::Write { immediate, .. } => {
                    self.core.transmit.post_write(destination, local, remote, immediate, flight)
                }
            };
            match posted {
                Ok(()) => {
                    match owner {
                        Owner::Receive(_) => self.core.statistics.rdma_reads += 1,
                        Owner::Write { .. } => self.core.statistics.rdma_writes += 1,
                    }
                    if let Some(transfer) = self.transfers.get_mut(id) {
                        transfer.next += length;
                        transfer.outstanding += 1;
                    }
                }
                Err(PostFailure::Blocked) => return Advance::Blocked,
                Err(PostFailure::Refused(status)) => {
                    self.fail_transfer(id, OperationError::Device(status));
                    return Advance::Done;
                }
            }
        }
    }

    fn memory_of(&self, owner: Owner) -> Option<&Memory<B, Q::Region>> {
        match owner {
            Owner::Receive(id) => Some(&self.receives.get(id)?.memory),
            Owner::Write { send, .. } => Some(&self.sends.get(send)?.memory),
        }
    }

    /// Memory for the device: that of the operation itself, or a bounce region. `None` if there is
    /// none now.
    #[allow(clippy::type_complexity, reason = "a range, and what it is of if it is no buffer")]
    fn local(
        &mut self,
        transfer: OpId,
        owner: Owner,
        offset: u64,
        length: u64,
    ) -> Option<(RegionRange<Q::Region>, Option<Q::Region>)> {
        if let Some(place) = self.memory_of(owner)?.registered() {
            let (offset, length) = (place.offset + offset as usize, length as usize);
            return Some((RegionRange { region: place.region, offset, length }, None));
        }
        match self.core.transmit.bounce(self.core.config.bounce_size) {
            Ok(region) => {
                let length = (length as usize).min(region.length());
                if let Owner::Write { .. } = owner {
                    copy_in(self.memory_of(owner)?, offset, length, &region);
                }
                let local = RegionRange { region: region.clone(), offset: 0, length };
                Some((local, Some(region)))
            }
            Err(error) => {
                self.core.events.push(Event::DeviceRefused(error));
                self.waiting_transfers.push_back(transfer);
                None
            }
        }
    }

    /// The device ended an RDMA operation.
    pub(crate) fn rdma_done(&mut self, id: WorkId, result: Result<(), Status>) {
        let Some(RdmaFlight { transfer: id, offset, length, bounce }) =
            self.core.transmit.rdma_ended(id)
        else {
            return;
        };
        if !self.waiting_transfers.is_empty() {
            self.resume_transfer();
        }
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        transfer.outstanding -= 1;
        let (peer, owner, retried) = (transfer.peer, transfer.owner, transfer.retried);
        // Only immediate data needs a receiver, and it goes with a single operation.
        let again = result == Err(Status::ReceiverNotReady) && transfer.failed.is_none();
        match result {
            Ok(()) => self.core.statistics.rdma_bytes += length,
            Err(_) if again => (transfer.next, transfer.retried) = (offset, true),
            Err(status) => {
                transfer.failed.get_or_insert(OperationError::Device(status));
            }
        }
        let over = transfer.is_over();
        if let Some(region) = bounce {
            if result.is_ok()
                && let Owner::Receive(receive) = owner
                && let Some(receive) = self.receives.get_mut(receive)
            {
                copy_out(&region, length as usize, &mut receive.memory, offset);
            }
            self.core.transmit.recycle_bounce(region);
        }
        if over {
            self.end_transfer(id);
        } else if again {
            self.back_off(peer);
            self.core.enqueue_first(peer, Work::Transfer(id));
        }
        if result.is_ok()
            && retried
            && let Some(active) = self.core.peers.active_mut(peer)
        {
            active.backoff.delivered();
        }
    }

    /// Goes on with a transfer that waits for others to end, or for memory. Those that are over
    /// meanwhile are passed by, and so are those of peers that are left alone for a while: they go on
    /// after that.
    pub(crate) fn resume_transfer(&mut self) {
        while let Some(id) = self.waiting_transfers.pop_front() {
            let Some(transfer) = self.transfers.get(id) else { continue };
            let peer = transfer.peer;
            self.core.enqueue(peer, Work::Transfer(id));
            if self.core.peers.active(peer).is_some_and(|active| !active.backoff.is_waiting()) {
                return;
            }
        }
    }

    /// Goes on with all of them, if none is under way whose end would do that.
    pub(crate) fn resume_transfers(&mut self) {
        if self.core.transmit.rdma_in_flight() == 0 {
            for id in core::mem::take(&mut self.waiting_transfers) {
                if let Some(transfer) = self.transfers.get(id) {
                    self.core.enqueue(transfer.peer, Work::Transfer(id));
                }
            }
        }
    }

    /// Gives a transfer up; it ends when the device has given everything back. Why it is given up counts
    /// more than a failure before that: who won't send a message otherwise isn't asked for it.
    pub(crate) fn fail_transfer(&mut self, id: OpId, error: OperationError) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        transfer.failed = Some(error);
        if transfer.is_over() {
            self.end_transfer(id);
        }
        // It may have been its turn.
        self.resume_transfer();
    }

    fn end_transfer(&mut self, id: OpId) {
        let Some(transfer) = self.transfers.remove(id) else { return };
        match transfer.owner {
            Owner::Receive(receive) => {
                self.memory_read(receive, transfer.start, transfer.failed);
            }
            Owner::Write { send, .. } => self.memory_written(send, transfer.failed),
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Most bytes of one device operation.
    pub(crate) fn longest_rdma(&self) -> u64 {
        self.transmit.device.attributes().max_rdma_size.min(self.config.rdma_segment)
    }
}

/// Bytes that are copied at a time.
const CHUNK: usize = 4096;

fn copy_out<R: Region, B: Payload<R>>(
    from: &R,
    length: usize,
    into: &mut Memory<B, R>,
    offset: u64,
) {
    let mut chunk = [0; CHUNK];
    let mut done = 0;
    while done < length {
        let chunk = &mut chunk[..CHUNK.min(length - done)];
        let count = from.read(done, chunk);
        if count == 0 {
            return;
        }
        into.write(offset + done as u64, &chunk[..count]);
        done += count;
    }
}

fn copy_in<R: Region, B: Payload<R>>(from: &Memory<B, R>, offset: u64, length: usize, into: &R) {
    let mut chunk = [0; CHUNK];
    for done in (0..length).step_by(CHUNK) {
        let chunk = &mut chunk[..CHUNK.min(length - done)];
        from.read(offset + done as u64, chunk);
        into.write(done, chunk);
    }
}
