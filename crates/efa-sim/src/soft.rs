//! One type for all links, so that callers need not be generic over the link.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use efa_device::{
    Access, AddressHandle, Armed, Completion, CopySource, CopyTarget, Destination, Device,
    DeviceAttributes, DeviceError, ForeignMemory, Gid, Lending, NoTagList, PostError, QueuePair,
    QueuePairAddress, QueuePairOptions, RdmaRequest, RegisterError, SendRequest, Time,
};

use crate::local::{LocalDevice, LocalQueuePair};
use crate::region::SoftRegion;
use crate::shm::{ShmDevice, ShmQueuePair};
use crate::tcp::{TcpDevice, TcpQueuePair};

/// A software device of any link.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SoftDevice {
    /// The local link: this process.
    Local(LocalDevice),
    /// The shm link: this host.
    Shm(ShmDevice),
    /// The tcp link: several hosts.
    Tcp(TcpDevice),
}

impl From<LocalDevice> for SoftDevice {
    fn from(device: LocalDevice) -> Self {
        Self::Local(device)
    }
}

impl From<ShmDevice> for SoftDevice {
    fn from(device: ShmDevice) -> Self {
        Self::Shm(device)
    }
}

impl From<TcpDevice> for SoftDevice {
    fn from(device: TcpDevice) -> Self {
        Self::Tcp(device)
    }
}

/// A queue pair of a [`SoftDevice`].
#[derive(Debug)]
#[non_exhaustive]
pub enum SoftQueuePair {
    /// The local link: this process.
    Local(LocalQueuePair),
    /// The shm link; boxed, as it is far larger.
    Shm(Box<ShmQueuePair>),
    /// The tcp link; boxed, as it is far larger.
    Tcp(Box<TcpQueuePair>),
}

/// Calls a method on the device or queue pair of each link.
macro_rules! each {
    ($kind:ident, $on:expr, $name:ident => $call:expr) => {
        match $on {
            $kind::Local($name) => $call,
            $kind::Shm($name) => $call,
            $kind::Tcp($name) => $call,
        }
    };
}

impl Device for SoftDevice {
    type QueuePair = SoftQueuePair;
    type Region = SoftRegion;

    fn attributes(&self) -> &DeviceAttributes {
        each!(SoftDevice, self, device => device.attributes())
    }

    fn gid(&self) -> Gid {
        each!(SoftDevice, self, device => device.gid())
    }

    fn reaches(&self, gid: Gid) -> bool {
        each!(SoftDevice, self, device => device.reaches(gid))
    }

    fn create_queue_pair(&self, options: QueuePairOptions) -> Result<SoftQueuePair, DeviceError> {
        Ok(match self {
            Self::Local(device) => SoftQueuePair::Local(device.create_queue_pair(options)?),
            Self::Shm(device) => SoftQueuePair::Shm(Box::new(device.create_queue_pair(options)?)),
            Self::Tcp(device) => SoftQueuePair::Tcp(Box::new(device.create_queue_pair(options)?)),
        })
    }

    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<SoftRegion, RegisterError> {
        each!(SoftDevice, self, device => device.register(memory, access))
    }

    fn allocate(&self, length: usize, access: Access) -> Result<SoftRegion, DeviceError> {
        each!(SoftDevice, self, device => device.allocate(length, access))
    }

    fn register_foreign(
        &self,
        memory: &ForeignMemory,
        access: Access,
    ) -> Result<SoftRegion, DeviceError> {
        each!(SoftDevice, self, device => device.register_foreign(memory, access))
    }
}

impl SoftQueuePair {
    #[inline(never)]
    fn post_receive_elsewhere(&mut self, packet: Box<[u8]>) -> Result<(), PostError<Box<[u8]>>> {
        each!(SoftQueuePair, self, qp => qp.post_receive(packet))
    }

    #[inline(never)]
    fn has_no_arrivals_elsewhere(&self) -> bool {
        match self {
            Self::Local(qp) => qp.has_no_arrivals(),
            Self::Shm(_) | Self::Tcp(_) => false,
        }
    }
}

impl QueuePair for SoftQueuePair {
    type Packet = Box<[u8]>;
    type Region = SoftRegion;
    type TagList = NoTagList;

    fn attributes(&self) -> &DeviceAttributes {
        each!(SoftQueuePair, self, qp => qp.attributes())
    }

    fn address(&self) -> QueuePairAddress {
        each!(SoftQueuePair, self, qp => qp.address())
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        each!(SoftQueuePair, self, qp => qp.create_address_handle(gid))
    }

    fn destroy_address_handle(&mut self, handle: AddressHandle) {
        each!(SoftQueuePair, self, qp => qp.destroy_address_handle(handle));
    }

    fn gid_of(&self, handle: AddressHandle) -> Option<Gid> {
        each!(SoftQueuePair, self, qp => qp.gid_of(handle))
    }

    fn allocate_packet(&mut self) -> Result<Box<[u8]>, DeviceError> {
        each!(SoftQueuePair, self, qp => qp.allocate_packet())
    }

    fn prepare(&mut self, to: Destination) -> Result<(), DeviceError> {
        each!(SoftQueuePair, self, qp => qp.prepare(to))
    }

    #[inline]
    fn post_send(&mut self, request: SendRequest<Box<[u8]>>) -> Result<(), PostError<Box<[u8]>>> {
        each!(SoftQueuePair, self, qp => qp.post_send(request))
    }

    fn payloads_pay_from(&self) -> usize {
        each!(SoftQueuePair, self, qp => qp.payloads_pay_from())
    }

    fn has_room(&self, to: Destination) -> bool {
        each!(SoftQueuePair, self, qp => qp.has_room(to))
    }

    fn post_send_with(
        &mut self,
        request: SendRequest<Box<[u8]>>,
        rest: usize,
        fill: impl FnOnce(CopyTarget<'_>),
    ) -> Result<(), PostError<Box<[u8]>>> {
        each!(SoftQueuePair, self, qp => qp.post_send_with(request, rest, fill))
    }

    #[inline(always)]
    fn post_receive(&mut self, packet: Box<[u8]>) -> Result<(), PostError<Box<[u8]>>> {
        match self {
            Self::Shm(qp) => qp.post_receive(packet),
            // Apart, as for `has_no_arrivals`.
            _ => self.post_receive_elsewhere(packet),
        }
    }

    fn withdraw_receive(&mut self) -> Option<Box<[u8]>> {
        each!(SoftQueuePair, self, qp => qp.withdraw_receive())
    }

    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<SoftRegion, RegisterError> {
        each!(SoftQueuePair, self, qp => qp.register(memory, access))
    }

    fn register_lent(
        &self,
        memory: Lending<'_>,
        access: Access,
    ) -> Result<SoftRegion, DeviceError> {
        each!(SoftQueuePair, self, qp => qp.register_lent(memory, access))
    }

    fn region(&self, key: u32) -> Option<SoftRegion> {
        each!(SoftQueuePair, self, qp => qp.region(key))
    }

    fn post_read(&mut self, request: RdmaRequest<SoftRegion>) -> Result<(), DeviceError> {
        each!(SoftQueuePair, self, qp => qp.post_read(request))
    }

    fn post_write(
        &mut self,
        request: RdmaRequest<SoftRegion>,
        immediate: Option<u32>,
    ) -> Result<(), DeviceError> {
        each!(SoftQueuePair, self, qp => qp.post_write(request, immediate))
    }

    fn await_arrivals(&mut self) -> bool {
        each!(SoftQueuePair, self, qp => qp.await_arrivals())
    }

    #[inline(always)]
    fn has_no_arrivals(&self) -> bool {
        match self {
            Self::Shm(qp) => qp.has_no_arrivals(),
            // Apart, so that the others cost a look at the shm link nothing.
            _ => self.has_no_arrivals_elsewhere(),
        }
    }

    fn has_found(&self) -> bool {
        each!(SoftQueuePair, self, qp => qp.has_found())
    }

    fn split_headers(&mut self, front: usize) {
        each!(SoftQueuePair, self, qp => qp.split_headers(front));
    }

    fn take_rest(
        &mut self,
        packet: &Box<[u8]>,
        part: Range<usize>,
        take: impl FnOnce(CopySource<'_>),
    ) {
        each!(SoftQueuePair, self, qp => qp.take_rest(packet, part, take));
    }

    fn land(&mut self, packet: &mut Box<[u8]>, length: usize) {
        each!(SoftQueuePair, self, qp => qp.land(packet, length));
    }

    #[inline]
    fn poll(&mut self, now: Time) -> Option<Completion<Box<[u8]>>> {
        each!(SoftQueuePair, self, qp => qp.poll(now))
    }

    #[inline]
    fn next_event(&self) -> Option<Time> {
        each!(SoftQueuePair, self, qp => qp.next_event())
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        each!(SoftQueuePair, self, qp => qp.wait_fd())
    }

    fn arm(&mut self, now: Time) -> Result<Armed, DeviceError> {
        each!(SoftQueuePair, self, qp => qp.arm(now))
    }
}
