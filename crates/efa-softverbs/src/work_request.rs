//! Work requests of the send queue, once they are read from the program's structures.

use efa_device::{
    Access, AddressHandle, Destination, Qkey, Qpn, Region as _, RegionRange, RemoteMemory, Status,
};
use efa_sim::SoftRegion;
use efa_sim::region::KeyTable;

use crate::abi::*;
use crate::boundary::{INVALID, Outcome, UNSUPPORTED};
use crate::device::{Device, MAX_INLINE, MAX_SEND_SGE};
use crate::memory;
use crate::message::report;
use crate::queue_pair::{Locked, QueuePair, RdmaOpcode, RdmaWork, Transport};

/// What a request does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Send { immediate: Option<u32> },
    Rdma { opcode: RdmaOpcode, remote: RemoteMemory },
}

/// Memory with inline data, registered until the operation has completed.
#[cold]
fn inline_range(device: &Device, bytes: &[u8]) -> Result<RegionRange<SoftRegion>, Status> {
    let region = device.link.register(bytes.into(), Access::default());
    let region = region.map_err(|refused| {
        report(&format_args!("no memory for the inline data of a write: {}", refused.error));
        Status::QueuePairInternal
    })?;
    Ok(RegionRange { region, offset: 0, length: bytes.len() })
}

/// What a request sends, or for a read where the data goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SendData {
    /// Registered memory.
    Registered { entries: [ibv_sge; MAX_SEND_SGE], count: usize },
    /// Bytes that were copied when the request was made.
    Inline { bytes: [u8; MAX_INLINE], length: usize },
}

impl SendData {
    pub(crate) const EMPTY: Self = {
        let empty = ibv_sge { addr: 0, length: 0, lkey: 0 };
        Self::Registered { entries: [empty; MAX_SEND_SGE], count: 0 }
    };

    /// Fails with `EINVAL` for more entries than the device allows.
    pub(crate) fn registered(list: &[ibv_sge]) -> Outcome<Self> {
        let mut entries = [ibv_sge { addr: 0, length: 0, lkey: 0 }; MAX_SEND_SGE];
        entries.get_mut(..list.len()).ok_or(INVALID)?.copy_from_slice(list);
        Ok(Self::Registered { entries, count: list.len() })
    }

    /// Fails with `EINVAL` for more inline bytes than the device allows.
    pub(crate) fn inline(data: &[u8]) -> Outcome<Self> {
        let mut bytes = [0; MAX_INLINE];
        bytes.get_mut(..data.len()).ok_or(INVALID)?.copy_from_slice(data);
        Ok(Self::Inline { bytes, length: data.len() })
    }

    /// Copies the data into a packet buffer; returns its length in bytes.
    #[inline]
    pub(crate) fn gather(
        &self,
        locked: &Locked,
        keys: &KeyTable,
        packet: &mut [u8],
    ) -> Result<usize, Status> {
        match self {
            Self::Inline { bytes, length } => {
                let into = packet.get_mut(..*length).ok_or(Status::BadLength)?;
                into.copy_from_slice(&bytes[..*length]);
                Ok(*length)
            }
            Self::Registered { entries, count } => {
                let mut length = 0;
                // An entry without bytes needs no valid key.
                for entry in entries[..*count].iter().filter(|entry| entry.length > 0) {
                    let rest = packet.get_mut(length..).ok_or(Status::BadLength)?;
                    let into = rest.get_mut(..entry.length as usize).ok_or(Status::BadLength)?;
                    memory::copy_from(locked, keys, entry, into).ok_or(Status::BadLocalKey)?;
                    length += entry.length as usize;
                }
                Ok(length)
            }
        }
    }
}

/// The receiver of a request, as `ibv_wr_set_ud_addr` or `ibv_send_wr` name it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) address_handle: AddressHandle,
    /// Of 32 bits, as in C; numbers of EFA queue pairs have 16.
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
}

impl Target {
    fn destination(self) -> Destination {
        let Self { address_handle, qpn, qkey } = self;
        // No queue pair has the number 0, so the request completes with BAD_DEST_QPN.
        let qpn = Qpn(u16::try_from(qpn).unwrap_or(0));
        Destination { address_handle, qpn, qkey: Qkey(qkey) }
    }
}

/// A work request of the send queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkRequest {
    pub(crate) wr_id: u64,
    pub(crate) operation: Operation,
    /// `None` until it is set.
    pub(crate) target: Option<Target>,
    pub(crate) data: SendData,
}

impl WorkRequest {
    /// Fails where posting does: without a target, or with an operation that the queue pair doesn't
    /// offer.
    pub(crate) fn check(&self, queue_pair: &QueuePair) -> Outcome<()> {
        self.target.ok_or(INVALID)?;
        let Operation::Rdma { opcode, .. } = self.operation else { return Ok(()) };
        let rdma = queue_pair.device().rdma();
        let offered = match opcode {
            RdmaOpcode::Read => rdma.read,
            RdmaOpcode::Write { .. } => rdma.write,
        };
        if !offered || queue_pair.transport() != Transport::Srd {
            return Err(UNSUPPORTED);
        }
        let allowed = match self.data {
            // One range, as `max_sge_rd` says.
            SendData::Registered { count, .. } => count <= 1,
            SendData::Inline { .. } => opcode != RdmaOpcode::Read && queue_pair.inline_writes(),
        };
        if allowed { Ok(()) } else { Err(INVALID) }
    }

    /// Fails with the error number if the link lacks something of the system for the target.
    #[inline]
    pub(crate) fn prepare(&self, queue_pair: &QueuePair, locked: &mut Locked) -> Outcome<()> {
        self.target.map_or(Ok(()), |target| queue_pair.prepare(locked, target.destination()))
    }

    /// Posts the request. It must have passed [`check`](Self::check), and an entry of the send queue
    /// must be reserved.
    #[inline]
    pub(crate) fn post(&self, queue_pair: &QueuePair, locked: &mut Locked) {
        let Some(target) = self.target else { return };
        let (wr_id, destination) = (self.wr_id, target.destination());
        match self.operation {
            Operation::Send { immediate } => {
                queue_pair.post_send(locked, wr_id, destination, immediate, &self.data);
            }
            Operation::Rdma { opcode, remote } => {
                let local = self.local_range(queue_pair.device(), opcode);
                let work = RdmaWork { wr_id, opcode, destination, remote, local };
                queue_pair.post_rdma(locked, work);
            }
        }
    }

    /// The memory of this side of an RDMA operation.
    fn local_range(
        &self,
        device: &Device,
        opcode: RdmaOpcode,
    ) -> Result<RegionRange<SoftRegion>, Status> {
        let entry = match &self.data {
            SendData::Registered { entries: [entry, ..], count: 1 } if entry.length > 0 => entry,
            SendData::Inline { bytes, length: length @ 1.. } => {
                return inline_range(device, &bytes[..*length]);
            }
            _ => {
                let region = device.empty_region.clone();
                return Ok(RegionRange { region, offset: 0, length: 0 });
            }
        };
        let region = device.link.keys().find(entry.lkey).ok_or(Status::BadLocalKey)?;
        if opcode == RdmaOpcode::Read && !region.allows_local_write() {
            return Err(Status::BadLocalKey);
        }
        let start = RemoteMemory { address: entry.addr, key: region.remote_key() };
        region.part(start, entry.length as usize).ok_or(Status::BadLocalKey)
    }
}
