//! Transfers: the device reads or writes memory of a peer by one or more RDMA operations.
//!
//! ```text
//!   transfer   |──────────── bytes next .. end of an operation's memory ────────────|
//!   pieces     |───── remote piece 0 ─────|────── piece 1 ──────|──── piece 2 ──────|
//!   posted     |── max_rdma_size ──|──────|── … ──|             bounded: max_rdma of the endpoint
//!                      │                  │
//!                registered buffer:    other buffers:
//!                 in place              through a bounce region, copied
//! ```
//!
//! A transfer ends only when the device has completed all its RDMA operations, even if the message or
//! the peer has ended before: until then the device may access the buffer. The exception is
//! [`end_operations`](crate::Endpoint::end_operations), which doesn't wait.

use efa_device::{QueuePair, Region, RegionRange, Status, WorkId};
use efa_proto::OpId;

use crate::completion::{Completion, OperationError};
use crate::core::Core;
use crate::event::Event;
use crate::memory::Memory;
use crate::operations::Operations;
use crate::payload::Payload;
use crate::peer::Active;
use crate::transfer::{Owner, Transfer};
use crate::transmit::PostFailure;
use crate::work::{Advance, RdmaFlight, TransferPart, Work};

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Starts a transfer, at once if nothing waits to be sent to the peer. An empty one ends at once, and so
    /// may one that fails.
    pub(crate) fn begin_transfer(&mut self, transfer: Transfer) -> OpId {
        let peer = transfer.peer;
        let over = transfer.is_over();
        let list = self.core.operations_of(peer);
        let id = self.transfers.insert(list, transfer);
        let clear = self.core.peers.active(peer).is_some_and(Active::is_clear);
        if over {
            let completion = self.transfer_end(id);
            self.core.complete(completion);
        } else if !clear || self.advance_transfer(id).goes_on() {
            self.core.enqueue(peer, Work::Transfer(id));
        }
        id
    }

    /// Posts RDMA operations of a transfer until all are posted, the device's queue is full, `max_rdma`
    /// are in flight, or there is no bounce region.
    pub(crate) fn advance_transfer(&mut self, id: OpId) -> Advance {
        match self.post_transfer(id) {
            Ok(advance) => advance,
            Err(status) => {
                self.fail_transfer(id, OperationError::Device(status));
                Advance::Done
            }
        }
    }

    /// Posts RDMA operations of a transfer. Fails if the device refuses one, or there is no such remote memory.
    fn post_transfer(&mut self, id: OpId) -> Result<Advance, Status> {
        let Self { core, sends, receives, transfers, waiting_transfers, .. } = self;
        let Some(transfer) = transfers.get_mut(id) else { return Ok(Advance::Done) };
        let (peer, owner) = (transfer.peer, transfer.owner);
        let memory = match owner {
            Owner::Receive(id) => receives.get(id).map(|receive| &receive.memory),
            Owner::Write { send, .. } => sends.get(send).map(|send| &send.memory),
        };
        let Some(memory) = memory else { return Ok(Advance::Done) };
        while transfer.next != transfer.end && transfer.failed.is_none() {
            if core.transmit.rdma_in_flight() >= core.config.max_rdma {
                waiting_transfers.push_back(id);
                return Ok(Advance::Done);
            }
            let offset = transfer.next;
            let (remote, left) = transfer.remote.at(offset).ok_or(Status::RemoteBadAddress)?;
            let length = left.min(transfer.end - offset).min(core.longest_rdma());
            let Some((local, bounce)) = core.local(memory, owner, offset, length) else {
                waiting_transfers.push_back(id);
                return Ok(Advance::Done);
            };
            let length = local.length as u64;
            let part = TransferPart { transfer: id, offset, length, bounce };
            let destination = core.peers.destination(peer);
            let posted = match owner {
                Owner::Receive(_) => core.transmit.post_read(destination, local, remote, part),
                Owner::Write { immediate, .. } => {
                    core.transmit.post_write(destination, local, remote, immediate, part)
                }
            };
            match posted {
                Ok(()) => {
                    match owner {
                        Owner::Receive(_) => core.statistics.rdma_reads += 1,
                        Owner::Write { .. } if transfer.retried => {
                            core.statistics.retransmitted += 1
                        }
                        Owner::Write { .. } => core.statistics.rdma_writes += 1,
                    }
                    transfer.next += length;
                    transfer.outstanding += 1;
                }
                Err(PostFailure::Blocked) => return Ok(Advance::Blocked),
                Err(PostFailure::Lacking(error)) => {
                    core.lack(peer, *error);
                    return Ok(Advance::Blocked);
                }
                Err(PostFailure::Refused(status)) => return Err(status),
            }
        }
        Ok(Advance::Done)
    }

    /// Handles the completion of an RDMA operation. Returns the completion of the operation that ends by that.
    pub(crate) fn rdma_done(
        &mut self,
        id: WorkId,
        result: Result<(), Status>,
    ) -> Option<Completion<B>> {
        let flight = self.core.transmit.rdma_ended(id)?;
        if !self.waiting_transfers.is_empty() {
            self.resume_transfer();
        }
        match flight {
            RdmaFlight::Message(read) => self.single_read_end(read, result),
            RdmaFlight::Part(part) => self.part_done(part, result),
        }
    }

    /// Handles the end of an RDMA operation of a transfer. A write with immediate data that failed with RNR
    /// is posted again after a backoff. Returns the completion of the operation if it ends.
    fn part_done(
        &mut self,
        part: TransferPart<Q::Region>,
        result: Result<(), Status>,
    ) -> Option<Completion<B>> {
        let TransferPart { transfer: id, offset, length, bounce } = part;
        let transfer = self.transfers.get_mut(id)?;
        transfer.outstanding -= 1;
        let (peer, owner, retried) = (transfer.peer, transfer.owner, transfer.retried);
        // Only a write with immediate data can get RNR, and it is a single operation.
        let retry = result == Err(Status::ReceiverNotReady) && transfer.failed.is_none();
        match result {
            Ok(()) => self.core.statistics.rdma_bytes += length,
            Err(_) if retry => (transfer.next, transfer.retried) = (offset, true),
            Err(status) => {
                transfer.failed.get_or_insert(OperationError::Device(status));
            }
        }
        if let Some(region) = bounce {
            if result.is_ok()
                && let Owner::Receive(receive) = owner
                && let Some(receive) = self.receives.get_mut(receive)
                && !copy_out(&region, length as usize, &mut receive.memory, offset)
            {
                let error = OperationError::Device(Status::RemoteBadAddress);
                transfer.failed.get_or_insert(error);
            }
            self.core.transmit.recycle_bounce(region);
        }
        let over = transfer.is_over();
        if result.is_ok()
            && retried
            && let Some(active) = self.core.peers.active_mut(peer)
        {
            active.backoff.delivered();
        }
        if over {
            return self.transfer_end(id);
        }
        if retry {
            self.core.statistics.receiver_not_ready += 1;
            self.back_off(peer);
            self.core.enqueue_first(peer, Work::Transfer(id));
        }
        None
    }

    /// Queues the next waiting transfer. One that belongs to a peer in backoff is queued too, to go on
    /// after the backoff, and the one behind it as well.
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

    /// Queues all waiting transfers, if no RDMA operation is in flight whose completion would.
    pub(crate) fn resume_transfers(&mut self) {
        if self.core.transmit.rdma_in_flight() == 0 {
            for id in core::mem::take(&mut self.waiting_transfers) {
                if let Some(transfer) = self.transfers.get(id) {
                    self.core.enqueue(transfer.peer, Work::Transfer(id));
                }
            }
        }
    }

    /// Fails a transfer; it ends when the device has completed all its operations. `error` replaces an
    /// earlier one: if the sender has abandoned the message, no READ_NACK is sent for it.
    pub(crate) fn fail_transfer(&mut self, id: OpId, error: OperationError) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        transfer.failed = Some(error);
        if transfer.is_over() {
            let completion = self.transfer_end(id);
            self.core.complete(completion);
        }
        // This transfer may have been queued in place of another waiting one.
        self.resume_transfer();
    }

    /// Removes a transfer that is over; returns the completion of its operation if that ends.
    fn transfer_end(&mut self, id: OpId) -> Option<Completion<B>> {
        let transfer = self.transfers.remove(id)?;
        match transfer.owner {
            Owner::Receive(receive) => self.memory_read(receive, transfer.start, transfer.failed),
            Owner::Write { send, .. } => self.memory_written(send, transfer.failed),
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// The local memory of an RDMA operation: the operation's own if it is registered, else a bounce
    /// region, filled for a write. `None` if no bounce region can be registered: the transfer waits.
    #[allow(clippy::type_complexity, reason = "a range, and its region if that is a bounce region")]
    fn local(
        &mut self,
        memory: &Memory<B, Q::Region>,
        owner: Owner,
        offset: u64,
        length: u64,
    ) -> Option<(RegionRange<Q::Region>, Option<Q::Region>)> {
        if let Some(mut range) = memory.registered_from(offset) {
            range.length = range.length.min(length as usize);
            return Some((range, None));
        }
        match self.transmit.bounce(self.config.bounce_size) {
            Ok(region) => {
                let length = (length as usize).min(region.length());
                if let Owner::Write { .. } = owner {
                    copy_in(memory, offset, length, &region);
                }
                let local = RegionRange { region: region.clone(), offset: 0, length };
                Some((local, Some(region)))
            }
            Err(error) => {
                self.events.push(Event::DeviceRefused(error));
                None
            }
        }
    }

    /// Most bytes of one RDMA operation.
    pub(crate) fn longest_rdma(&self) -> u64 {
        self.transmit.device.attributes().max_rdma_size.min(self.config.rdma_segment)
    }
}

/// Bytes copied at a time between a bounce region and a buffer.
const CHUNK: usize = 4096;

/// Returns whether all bytes were copied: the target may have been revoked.
fn copy_out<R: Region, B: Payload<R>>(
    from: &R,
    length: usize,
    into: &mut Memory<B, R>,
    offset: u64,
) -> bool {
    let mut chunk = [0; CHUNK];
    let mut done = 0;
    while done < length {
        let chunk = &mut chunk[..CHUNK.min(length - done)];
        let count = from.read(done, chunk);
        if count == 0 || !into.write(offset + done as u64, &chunk[..count]) {
            return false;
        }
        done += count;
    }
    true
}

fn copy_in<R: Region, B: Payload<R>>(from: &Memory<B, R>, offset: u64, length: usize, into: &R) {
    let mut chunk = [0; CHUNK];
    for done in (0..length).step_by(CHUNK) {
        let chunk = &mut chunk[..CHUNK.min(length - done)];
        if !from.read(offset + done as u64, chunk) {
            return;
        }
        into.write(done, chunk);
    }
}
