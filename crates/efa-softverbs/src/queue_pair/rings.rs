//! Queue pairs whose requests the program writes to [rings](crate::direct).

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use efa_device::Status;
use efa_sim::region::Use;

use super::{Locked, QpState, QueuePair, RdmaOpcode, Receive};
use crate::abi::{IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE, IBV_WC_SEND, ibv_sge};
use crate::boundary::{Errno, INTERRUPTED, INVALID, Outcome, UNSUPPORTED, value};
use crate::device::Device;
use crate::direct::memory::{Doorbell, Doorbells};
use crate::direct::receive::{self, ReceiveBuffers, ReceiveError};
use crate::direct::ring::{Copied, RequestRing};
use crate::direct::send::{self, Buffer, Data, DescriptorSize, Remote, SendDescriptor, SendFormat};
use crate::direct::trap::{self, Rung};
use crate::memory;
use crate::message::report;
use crate::process::{lock, process};
use crate::settings::DirectPath;
use crate::work_request::{Operation, SendData, Target, WorkRequest};

/// The rings of a queue pair.
#[derive(Debug)]
pub(super) struct Rings {
    send: RequestRing,
    receive: RequestRing,
    /// Of a receive whose last descriptor is still to be read.
    collected: ReceiveBuffers,
    format: SendFormat,
    doorbells: Doorbells,
    use_: RingUse,
    /// Whether a message has told of a wrong request.
    complained: bool,
}

/// Whether the program posts by the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RingUse {
    /// It has the addresses and has not posted.
    Open,
    /// It has rung a doorbell.
    Used,
    /// It posts by calls.
    Left,
}

/// A ring of requests, as the program sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingInfo {
    pub(crate) address: *mut u8,
    /// Bytes of a descriptor.
    pub(crate) size: u32,
    pub(crate) entries: u32,
    pub(crate) doorbell: *mut u32,
    /// Most requests that may be written for one ring of the doorbell.
    pub(crate) max_batch: u32,
    /// Whether request ids have 64 bits.
    pub(crate) long_ids: bool,
}

/// Most sends for one ring of the doorbell, as on the hardware a part of the ring.
const MAX_BATCH: u32 = 32;

impl Rings {
    /// Ids have 64 bits where the generation has them: programs that know 16 only leave the others zero.
    fn new(queue_pair: &QueuePair) -> Outcome<Self> {
        let cap = queue_pair.cap();
        let inline_writes = queue_pair.inline_writes();
        let size = DescriptorSize::of(cap.max_inline_data, inline_writes);
        let long_ids = queue_pair.device().settings.generation.has_long_ids();
        let format = SendFormat { size, long_ids, inline_writes };
        Ok(Self {
            send: RequestRing::new(cap.max_send_wr, size.bytes())?,
            receive: RequestRing::new(
                cap.max_recv_wr.saturating_mul(cap.max_recv_sge.max(1)),
                receive::SIZE,
            )?,
            collected: ReceiveBuffers::default(),
            format,
            doorbells: Doorbells::of(queue_pair.device().settings.direct)?,
            use_: RingUse::Open,
            complained: false,
        })
    }

    /// As they were made: the program begins at their starts again.
    pub(super) fn reset(&mut self) {
        self.send.reset();
        self.receive.reset();
        self.doorbells.reset();
        self.collected = ReceiveBuffers::default();
        self.use_ = RingUse::Open;
        self.complained = false;
    }

    fn info(&self) -> (RingInfo, RingInfo) {
        let info = |ring: &RequestRing, doorbell, max_batch, long_ids| RingInfo {
            address: ring.address(),
            size: u32::try_from(ring.size()).unwrap_or(u32::MAX),
            entries: ring.entries(),
            doorbell: self.doorbells.address(doorbell),
            max_batch,
            long_ids,
        };
        let batch = MAX_BATCH.min(self.send.entries());
        (
            info(&self.send, Doorbell::Send, batch, self.format.long_ids),
            info(&self.receive, Doorbell::Receive, self.receive.entries(), false),
        )
    }
}

impl QueuePair {
    /// The send and the receive ring, made by the first call. From then on the program may post by them.
    pub(crate) fn open_rings(self: &Arc<Self>) -> Outcome<(RingInfo, RingInfo)> {
        if self.device().settings.direct == DirectPath::Off {
            return Err(UNSUPPORTED);
        }
        if !self.is_ours() {
            return Err(INVALID);
        }
        let mut locked = lock(&self.locked);
        if let Some(rings) = &locked.rings {
            return Ok(rings.info());
        }
        // What was posted by calls would complete as if it had been posted by the rings.
        let has_posted = locked.sends.len() > 0 || !locked.receives.is_empty();
        if has_posted || locked.state == QpState::Error {
            return Err(INVALID);
        }
        let rings = Rings::new(self)?;
        let info = rings.info();
        if rings.doorbells.trap() {
            process().progress.provide_sleepers()?;
            process().progress.run_promptly();
            trap::add(rings.doorbells.page_address(), Rung::QueuePair(Arc::clone(self)))?;
            self.traps.store(true, Ordering::Relaxed);
        } else {
            process().watcher.watch(self)?;
        }
        locked.rings = Some(Box::new(rings));
        self.uses_rings.store(true, Ordering::Relaxed);
        Ok(info)
    }

    /// Ends what [`open_rings`](Self::open_rings) began.
    pub(super) fn close_rings(&self, locked: &Locked) -> Outcome<()> {
        let Some(rings) = &locked.rings else { return Ok(()) };
        // The watcher may look once more before it knows.
        self.uses_rings.store(false, Ordering::Relaxed);
        trap::remove(rings.doorbells.page_address());
        process().watcher.forget(self)
    }

    /// The program writes to its doorbell at `address`, which traps.
    pub(crate) fn ring(&self, address: usize, count: u32) {
        let rung = value(Err(INTERRUPTED), || {
            self.with_lock(|locked| {
                if let Some(rings) = &locked.rings {
                    rings.doorbells.ring(address, count);
                }
                self.serve(locked);
                // From the first doorbell on: what arrives wakes the progress thread at once.
                if !self.is_asleep() {
                    self.sleep_with(locked);
                }
                Ok(())
            })
        });
        // A signal handler of the program, in the middle of a call.
        if rung == Err(INTERRUPTED)
            && let Ok(locked) = self.locked.try_lock()
            && let Some(rings) = &locked.rings
        {
            rings.doorbells.ring(address, count);
        }
    }

    /// Ends that doorbells trap.
    pub(crate) fn release_doorbells(&self) {
        self.traps.store(false, Ordering::Relaxed);
        if let Some(rings) = &lock(&self.locked).rings
            && let Err(Errno(errno)) = rings.doorbells.release()
        {
            report(&format_args!("cannot make a doorbell writable: error {errno}"));
        }
    }

    /// Whether doorbells trap, so that nobody looks at the queue pair unless its link has something.
    pub(super) fn traps(&self) -> bool {
        self.traps.load(Ordering::Relaxed)
    }

    /// The program posts by a call. Fails with `EINVAL` if it has posted by the rings.
    #[cold]
    pub(super) fn leave_rings(&self, locked: &mut Locked) -> Outcome<()> {
        let Some(rings) = &mut locked.rings else { return Ok(()) };
        if rings.use_ == RingUse::Used {
            return Err(INVALID);
        }
        rings.use_ = RingUse::Left;
        self.uses_rings.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Reads what the program has posted, and takes a step; returns whether there was anything.
    pub(crate) fn serve_rings(&self) -> bool {
        // A thread that holds the lock is making progress itself.
        let Ok(mut locked) = self.locked.try_lock() else { return false };
        if !self.uses_rings.load(Ordering::Relaxed) {
            return false;
        }
        // So that the progress thread leaves it to this one.
        self.polled.store(true, Ordering::Relaxed);
        self.serve(&mut locked)
    }

    /// As [`serve_rings`](Self::serve_rings).
    pub(super) fn serve(&self, locked: &mut Locked) -> bool {
        let posted = self.post_rung(locked);
        self.step(locked) || posted
    }

    /// Posts what the program has rung the doorbells for; returns whether there was anything.
    pub(super) fn post_rung(&self, locked: &mut Locked) -> bool {
        let Some(mut rings) = locked.rings.take() else { return false };
        let posted = rings.use_ != RingUse::Left && self.read_rings(locked, &mut rings);
        locked.rings = Some(rings);
        posted
    }

    /// Posts what is new in the rings; returns whether there was anything.
    fn read_rings(&self, locked: &mut Locked, rings: &mut Rings) -> bool {
        if locked.state == QpState::Reset {
            return false;
        }
        let Rings { send, receive, collected, format, doorbells, use_, complained } = rings;
        let has_failed = locked.state == QpState::Error;
        let receives = receive.count(doorbells.rung(Doorbell::Receive));
        // Sends wait until the queue pair may send.
        let sends = match locked.state {
            QpState::Rts | QpState::Error => send.count(doorbells.rung(Doorbell::Send)),
            _ => Ok(0),
        };
        let (receives, sends) = match (receives, sends) {
            (Ok(receives), Ok(sends)) => (receives, sends),
            // What can be counted is flushed.
            (receives, sends) if has_failed => (receives.unwrap_or(0), sends.unwrap_or(0)),
            (Err(error), _) | (_, Err(error)) => {
                report(&format_args!("queue pair {} fails: {error}", self.number()));
                self.fail(locked);
                return true;
            }
        };
        if (receives, sends) == (0, 0) {
            return false;
        }
        *use_ = RingUse::Used;
        let statistics = &self.device().statistics;
        statistics.rung(u64::from(receives > 0) + u64::from(sends > 0));
        statistics.read_descriptors(u64::from(receives) + u64::from(sends));
        let mut complain = |error: &dyn Display| {
            // Once for each queue pair: a program may write any number of them.
            if !std::mem::replace(complained, true) {
                report(&format_args!(
                    "a wrong request in a ring of queue pair {}: {error}",
                    self.number()
                ));
            }
        };
        for _ in 0..receives {
            let copied = receive.take();
            let Some(bytes) = copied.bytes().first_chunk() else { continue };
            collected.add(bytes, &mut |request_id, buffers| {
                self.post_described_receive(locked, request_id, buffers, &mut complain);
            });
        }
        for _ in 0..sends {
            self.post_described_send(locked, &send.take(), *format, &mut complain);
        }
        true
    }

    fn post_described_receive(
        &self,
        locked: &mut Locked,
        request_id: u16,
        buffers: Result<&[Buffer], ReceiveError>,
        complain: &mut dyn FnMut(&dyn Display),
    ) {
        let receive = match buffers {
            Ok(buffers) => self.receive_into(request_id, buffers),
            Err(error) => {
                complain(&error);
                Err(error.status())
            }
        };
        let result = match receive {
            _ if locked.state == QpState::Error => Err(Status::Flushed),
            Ok(receive) if self.capacity(&receive).is_none() => Err(Status::BadLength),
            Ok(receive) => {
                self.enqueue_receive(locked, receive);
                Ok(())
            }
            Err(status) => Err(status),
        };
        if let Err(status) = result {
            self.fail_receive(request_id.into(), status);
        }
    }

    /// A receive into buffers, whose keys are checked where they have bytes.
    fn receive_into(&self, request_id: u16, buffers: &[Buffer]) -> Result<Receive, Status> {
        let mut receive = Receive::new(request_id.into(), &[]).map_err(|_| Status::BadLength)?;
        for (into, buffer) in receive.entries.iter_mut().zip(buffers) {
            let entry = entry_of(self.device(), buffer)?;
            let keys = self.device().link.keys();
            if entry.length > 0 && memory::locate(keys, &entry, Use::LocalWrite).is_none() {
                return Err(Status::BadLocalKey);
            }
            *into = entry;
        }
        Ok(receive)
    }

    fn post_described_send(
        &self,
        locked: &mut Locked,
        copied: &Copied,
        format: SendFormat,
        complain: &mut dyn FnMut(&dyn Display),
    ) {
        let posted = match SendDescriptor::parse(copied.bytes(), copied.phase, format) {
            _ if locked.state == QpState::Error => Err(Status::Flushed),
            Ok(descriptor) => self.post_descriptor(locked, &descriptor),
            Err(error) => {
                complain(&error);
                Err(error.status())
            }
        };
        if let Err(status) = posted {
            let opcode = match send::operation_number(copied.bytes()) {
                1 => IBV_WC_RDMA_READ,
                2 => IBV_WC_RDMA_WRITE,
                _ => IBV_WC_SEND,
            };
            let request_id = send::request_id(copied.bytes(), format);
            self.complete_send(request_id, opcode, Err(status));
        }
    }

    /// Posts a send, read or write; fails with the status with which it completes instead.
    fn post_descriptor(
        &self,
        locked: &mut Locked,
        descriptor: &SendDescriptor,
    ) -> Result<(), Status> {
        let request = work_request(self.device(), descriptor)?;
        request.check(self).map_err(|Errno(errno)| match errno {
            libc::EOPNOTSUPP => Status::UnsupportedOperation,
            _ => Status::BadLength,
        })?;
        request.prepare(self, locked).map_err(|_| Status::QueuePairInternal)?;
        request.post(self, locked);
        Ok(())
    }
}

/// The entry of a buffer, with its whole key.
fn entry_of(device: &Device, buffer: &Buffer) -> Result<ibv_sge, Status> {
    let &Buffer { address: addr, length, key } = buffer;
    let lkey = if length == 0 {
        key
    } else {
        device.link.keys().with_lower_bits(key, send::LOCAL_KEY_BITS).ok_or(Status::BadLocalKey)?
    };
    Ok(ibv_sge { addr, length, lkey })
}

/// The work request that a descriptor describes.
fn work_request(device: &Device, descriptor: &SendDescriptor) -> Result<WorkRequest, Status> {
    // Requests have immediate data in network byte order, as programs that call see it.
    let immediate = descriptor.immediate.map(u32::to_be);
    let rdma = |opcode, remote: Remote| Operation::Rdma {
        opcode,
        remote: efa_device::RemoteMemory { address: remote.address, key: remote.key },
    };
    let operation = match descriptor.operation {
        send::Operation::Send => Operation::Send { immediate },
        send::Operation::Read(remote) => rdma(RdmaOpcode::Read, remote),
        send::Operation::Write(remote) => rdma(RdmaOpcode::Write { immediate }, remote),
    };
    let data = match &descriptor.data {
        Data::Buffers { list, count } => {
            let mut entries = [ibv_sge { addr: 0, length: 0, lkey: 0 }; send::MAX_BUFFERS];
            for (entry, buffer) in entries.iter_mut().zip(&list[..*count]) {
                *entry = entry_of(device, buffer)?;
            }
            SendData::Registered { entries, count: *count }
        }
        Data::Inline { bytes, length } => {
            SendData::inline(&bytes[..*length]).map_err(|_| Status::BadLength)?
        }
    };
    let target = Target {
        address_handle: efa_device::AddressHandle(descriptor.address_handle),
        qpn: descriptor.queue_pair.into(),
        qkey: descriptor.queue_key,
    };
    Ok(WorkRequest { wr_id: descriptor.request_id, operation, target: Some(target), data })
}
