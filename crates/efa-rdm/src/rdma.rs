//! Transfers: the device reads or writes memory of a peer, in as many operations as it takes.
//!
//! ```text
//!   transfer   |──────────── bytes next .. end of an operation's buffer ────────────|
//!   pieces     |───── remote piece 0 ─────|────── piece 1 ──────|──── piece 2 ──────|
//!   posted     |── max_rdma_size ──|──────|── … ──|             bounded: max_rdma of the endpoint
//!                      │                  │
//!                registered buffer:    other buffers:
//!                 in place              by way of a bounce region, copied
//! ```
//!
//! A transfer stays until the device has given all of its operations back, whatever became of the
//! message or the peer meanwhile: until then the device may write to the buffer.

use efa_device::{QueuePair, Region, RegionRange, RemoteMemory, Status, WorkId};
use efa_proto::{MAX_IOV, OpId, RmaIov};

use crate::completion::OperationError;
use crate::endpoint::Endpoint;
use crate::event::Event;
use crate::payload::Payload;
use crate::peer::PeerId;
use crate::transmit::{Advance, PostFailure, RdmaFlight, Work};

/// Memory of a peer in pieces, one behind the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pieces: [RmaIov; MAX_IOV],
    count: u8,
}

impl Remote {
    /// The memory that a packet names. Packets name at most [`MAX_IOV`] pieces.
    pub(crate) fn new(iov: &[RmaIov]) -> Self {
        let mut pieces = [RmaIov::new(0, 0, 0); MAX_IOV];
        let count = iov.len().min(MAX_IOV);
        pieces[..count].copy_from_slice(&iov[..count]);
        Self { pieces, count: count as u8 }
    }

    /// Where byte `offset` lies, and how many follow in the same piece.
    fn at(&self, mut offset: u64) -> Option<(RemoteMemory, u64)> {
        for piece in &self.pieces[..usize::from(self.count)] {
            if offset < piece.len() {
                let address = piece.addr().wrapping_add(offset);
                // Keys beyond 32 bits are software's, which the device can't use.
                let key = u32::try_from(piece.key()).ok()?;
                return Some((RemoteMemory { address, key }, piece.len() - offset));
            }
            offset -= piece.len();
        }
        None
    }
}

/// Length of all pieces, unless that is absurd.
pub(crate) fn total(iov: &[RmaIov]) -> Option<u64> {
    iov.iter().try_fold(0_u64, |sum, piece| sum.checked_add(piece.len()))
}

/// RDMA operations between a buffer and a peer's memory.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) peer: PeerId,
    /// The receive whose buffer is filled.
    pub(crate) receive: OpId,
    pub(crate) remote: Remote,
    /// Where the part of the message that is read begins.
    pub(crate) start: u64,
    /// The next byte to ask for.
    pub(crate) next: u64,
    /// The end of what is to be read.
    pub(crate) end: u64,
    /// Operations that the device has.
    pub(crate) outstanding: u32,
    pub(crate) failed: Option<OperationError>,
}

impl Transfer {
    fn is_over(&self) -> bool {
        self.outstanding == 0 && (self.next == self.end || self.failed.is_some())
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// Begins a transfer; it may be over at once.
    pub(crate) fn begin_transfer(&mut self, transfer: Transfer) -> OpId {
        let peer = transfer.peer;
        let over = transfer.is_over();
        let id = self.operations.transfers.insert(transfer);
        if over {
            self.end_transfer(id);
        } else {
            self.enqueue(peer, Work::Transfer(id));
        }
        id
    }

    /// Posts what the device takes.
    pub(crate) fn advance_transfer(&mut self, id: OpId) -> Advance {
        loop {
            let Some(transfer) = self.operations.transfers.get(id) else { return Advance::Done };
            if transfer.next == transfer.end || transfer.failed.is_some() {
                return Advance::Done;
            }
            if self.transmit.rdma_in_flight() >= self.config.max_rdma {
                self.operations.waiting_transfers.push_back(id);
                return Advance::Done;
            }
            let Some((remote, left)) = transfer.remote.at(transfer.next) else {
                self.fail_transfer(id, OperationError::Device(Status::RemoteBadAddress));
                return Advance::Done;
            };
            let (peer, offset, receive) = (transfer.peer, transfer.next, transfer.receive);
            let longest = self.transmit.device.attributes().max_rdma_size;
            let length = left.min(transfer.end - offset).min(longest).min(self.config.rdma_segment);
            let (local, bounce) = match self.local(id, receive, offset, length) {
                Ok(local) => local,
                Err(advance) => return advance,
            };
            let length = local.length as u64;
            let flight = RdmaFlight { transfer: id, offset, length, bounce };
            let destination = self.peers.destination(peer);
            match self.transmit.post_read(destination, local, remote, flight) {
                Ok(()) => {
                    self.statistics.rdma_reads += 1;
                    if let Some(transfer) = self.operations.transfers.get_mut(id) {
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

    /// Memory for the device to read into: the buffer itself, or a bounce region.
    #[allow(clippy::type_complexity, reason = "a range, and what it is of if it is no buffer")]
    fn local(
        &mut self,
        transfer: OpId,
        receive: OpId,
        offset: u64,
        length: u64,
    ) -> Result<(RegionRange<Q::Region>, Option<Q::Region>), Advance> {
        let Some(receive) = self.operations.receives.get(receive) else {
            return Err(Advance::Done);
        };
        if let Some(buffer) = receive.buffer.registered() {
            let place = buffer.offset + offset as usize;
            let local =
                RegionRange { region: buffer.region, offset: place, length: length as usize };
            return Ok((local, None));
        }
        match self.transmit.bounce(self.config.bounce_size) {
            Ok(region) => {
                let length = (length as usize).min(region.length());
                let local = RegionRange { region: region.clone(), offset: 0, length };
                Ok((local, Some(region)))
            }
            Err(error) => {
                self.events.push(Event::DeviceRefused(error));
                self.operations.waiting_transfers.push_back(transfer);
                Err(Advance::Done)
            }
        }
    }

    /// The device ended an RDMA operation.
    pub(crate) fn rdma_done(&mut self, id: WorkId, result: Result<(), Status>) {
        let Some(RdmaFlight { transfer: id, offset, length, bounce }) =
            self.transmit.rdma_ended(id)
        else {
            return;
        };
        self.resume_transfer();
        let Some(transfer) = self.operations.transfers.get_mut(id) else { return };
        transfer.outstanding -= 1;
        match result {
            Ok(()) => self.statistics.rdma_bytes += length,
            Err(status) => {
                transfer.failed.get_or_insert(OperationError::Device(status));
            }
        }
        let (over, receive) = (transfer.is_over(), transfer.receive);
        if let Some(region) = bounce {
            if result.is_ok()
                && let Some(receive) = self.operations.receives.get_mut(receive)
            {
                copy_out(&region, length as usize, &mut receive.buffer, offset);
            }
            self.transmit.recycle_bounce(region);
        }
        if over {
            self.end_transfer(id);
        }
    }

    /// Goes on with a transfer that waits for others to end, or for memory. Those that are over
    /// meanwhile are passed by.
    fn resume_transfer(&mut self) {
        while let Some(id) = self.operations.waiting_transfers.pop_front() {
            if let Some(transfer) = self.operations.transfers.get(id) {
                return self.enqueue(transfer.peer, Work::Transfer(id));
            }
        }
    }

    /// Goes on with all of them, if none is under way whose end would do that.
    pub(crate) fn resume_transfers(&mut self) {
        if self.transmit.rdma_in_flight() == 0 {
            for id in core::mem::take(&mut self.operations.waiting_transfers) {
                if let Some(transfer) = self.operations.transfers.get(id) {
                    self.enqueue(transfer.peer, Work::Transfer(id));
                }
            }
        }
    }

    /// Gives a transfer up; it ends when the device has given everything back.
    pub(crate) fn fail_transfer(&mut self, id: OpId, error: OperationError) {
        let Some(transfer) = self.operations.transfers.get_mut(id) else { return };
        transfer.failed.get_or_insert(error);
        if transfer.is_over() {
            self.end_transfer(id);
        }
    }

    fn end_transfer(&mut self, id: OpId) {
        let Some(transfer) = self.operations.transfers.remove(id) else { return };
        self.message_read(transfer.receive, transfer.start, transfer.failed);
    }
}

/// Bytes that are copied at a time.
const CHUNK: usize = 4096;

fn copy_out<R: Region, B: Payload<R>>(from: &R, length: usize, into: &mut B, offset: u64) {
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
