//! The software device or one of rdma-core, as one type, so that endpoints need not be generic.
//!
//! A packet or a region goes back to the device that it is of; handed to the other kind, which no
//! caller here does, it is refused.

use efa_device::{
    Access, AddressHandle, Completion, Device, DeviceAttributes, DeviceError, Gid, PostError,
    QueuePair, QueuePairAddress, QueuePairOptions, RdmaRequest, Region, RegionRange, RegisterError,
    SendRequest, Time,
};
use efa_sim::region::SoftRegion;
use efa_sim::{SoftDevice, SoftQueuePair};
use efa_verbs::{VerbsDevice, VerbsQueuePair, VerbsRegion};

/// One kind or the other.
#[derive(Clone, Debug)]
pub(crate) enum Either<S, V> {
    Soft(S),
    Verbs(V),
}

/// An interface.
pub(crate) type AnyDevice = Either<SoftDevice, VerbsDevice>;
/// A queue pair; the one on the hot path of a program that has both is likely of rdma-core.
pub(crate) type AnyQueuePair = Either<SoftQueuePair, Box<VerbsQueuePair>>;
/// A packet buffer.
pub(crate) type AnyPacket = Either<Box<[u8]>, efa_verbs::Packet>;
/// Registered memory.
pub(crate) type AnyRegion = Either<SoftRegion, VerbsRegion>;

impl<S: Into<SoftDevice>> From<S> for AnyDevice {
    fn from(device: S) -> Self {
        Self::Soft(device.into())
    }
}

/// Calls the same method on whichever it is.
macro_rules! each {
    ($on:expr, $name:ident => $call:expr) => {
        match $on {
            Either::Soft($name) => $call,
            Either::Verbs($name) => $call,
        }
    };
}

fn foreign() -> DeviceError {
    DeviceError::Unsupported { operation: "use of another device's memory" }
}

impl AsRef<[u8]> for AnyPacket {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        each!(self, packet => packet.as_ref())
    }
}

impl AsMut<[u8]> for AnyPacket {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        each!(self, packet => packet.as_mut())
    }
}

impl Region for AnyRegion {
    fn length(&self) -> usize {
        each!(self, region => region.length())
    }
    fn remote_address(&self) -> u64 {
        each!(self, region => region.remote_address())
    }
    fn remote_key(&self) -> u32 {
        each!(self, region => region.remote_key())
    }
    fn access(&self) -> Access {
        each!(self, region => region.access())
    }
    fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        each!(self, region => region.read(offset, into))
    }
    fn write(&self, offset: usize, from: &[u8]) -> usize {
        each!(self, region => region.write(offset, from))
    }
    fn update(&self, offset: usize, bytes: &mut [u8], change: impl FnOnce(&mut [u8])) -> usize {
        each!(self, region => region.update(offset, bytes, change))
    }
    fn reclaim(self) -> Result<Box<[u8]>, Self> {
        match self {
            Self::Soft(region) => region.reclaim().map_err(Self::Soft),
            Self::Verbs(region) => region.reclaim().map_err(Self::Verbs),
        }
    }
}

impl Device for AnyDevice {
    type QueuePair = AnyQueuePair;
    type Region = AnyRegion;

    fn attributes(&self) -> &DeviceAttributes {
        each!(self, device => device.attributes())
    }

    fn gid(&self) -> Gid {
        each!(self, device => device.gid())
    }

    fn create_queue_pair(&self, options: QueuePairOptions) -> Result<AnyQueuePair, DeviceError> {
        Ok(match self {
            Self::Soft(device) => Either::Soft(device.create_queue_pair(options)?),
            Self::Verbs(device) => Either::Verbs(Box::new(device.create_queue_pair(options)?)),
        })
    }

    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<AnyRegion, RegisterError> {
        match self {
            Self::Soft(device) => device.register(memory, access).map(Either::Soft),
            Self::Verbs(device) => device.register(memory, access).map(Either::Verbs),
        }
    }
}

/// The same completion with its packet of either kind.
#[inline]
fn whichever<P>(
    completion: Completion<P>,
    of: impl FnOnce(P) -> AnyPacket,
) -> Completion<AnyPacket> {
    match completion {
        Completion::Send { id, packet, result } => {
            Completion::Send { id, packet: of(packet), result }
        }
        Completion::Receive { packet, length, source, immediate } => {
            Completion::Receive { packet: of(packet), length, source, immediate }
        }
        Completion::Rdma { id, result } => Completion::Rdma { id, result },
        Completion::Written { immediate, length, source, packet } => {
            Completion::Written { immediate, length, source, packet: packet.map(of) }
        }
        Completion::Tagged { packet, length, source, receive } => {
            Completion::Tagged { packet: of(packet), length, source, receive }
        }
        Completion::TagCommand { id, succeeded, sync_required } => {
            Completion::TagCommand { id, succeeded, sync_required }
        }
    }
}

#[inline]
fn refused<P>(refused: PostError<P>, of: impl FnOnce(P) -> AnyPacket) -> PostError<AnyPacket> {
    PostError { error: refused.error, packet: of(refused.packet) }
}

/// The request for a region of the kind that `of` finds.
fn request<R>(
    request: RdmaRequest<AnyRegion>,
    of: impl FnOnce(AnyRegion) -> Option<R>,
) -> Result<RdmaRequest<R>, DeviceError> {
    let RdmaRequest { id, local: RegionRange { region, offset, length }, remote, destination } =
        request;
    let region = of(region).ok_or_else(foreign)?;
    Ok(RdmaRequest { id, local: RegionRange { region, offset, length }, remote, destination })
}

impl<S, V> Either<S, V> {
    fn soft(self) -> Option<S> {
        match self {
            Self::Soft(soft) => Some(soft),
            Self::Verbs(_) => None,
        }
    }

    fn verbs(self) -> Option<V> {
        match self {
            Self::Soft(_) => None,
            Self::Verbs(verbs) => Some(verbs),
        }
    }
}

impl QueuePair for AnyQueuePair {
    type Packet = AnyPacket;
    type Region = AnyRegion;

    fn attributes(&self) -> &DeviceAttributes {
        each!(self, qp => qp.attributes())
    }

    fn address(&self) -> QueuePairAddress {
        each!(self, qp => qp.address())
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        each!(self, qp => qp.create_address_handle(gid))
    }

    fn destroy_address_handle(&mut self, handle: AddressHandle) {
        each!(self, qp => qp.destroy_address_handle(handle));
    }

    fn allocate_packet(&mut self) -> Result<AnyPacket, DeviceError> {
        match self {
            Self::Soft(qp) => qp.allocate_packet().map(Either::Soft),
            Self::Verbs(qp) => qp.allocate_packet().map(Either::Verbs),
        }
    }

    #[inline]
    fn post_send(&mut self, send: SendRequest<AnyPacket>) -> Result<(), PostError<AnyPacket>> {
        let SendRequest { id, packet, length, destination, immediate } = send;
        match (self, packet) {
            (Self::Soft(qp), Either::Soft(packet)) => {
                let request = SendRequest { id, packet, length, destination, immediate };
                qp.post_send(request).map_err(|error| refused(error, Either::Soft))
            }
            (Self::Verbs(qp), Either::Verbs(packet)) => {
                let request = SendRequest { id, packet, length, destination, immediate };
                qp.post_send(request).map_err(|error| refused(error, Either::Verbs))
            }
            (_, packet) => Err(PostError { error: foreign(), packet }),
        }
    }

    #[inline]
    fn post_receive(&mut self, packet: AnyPacket) -> Result<(), PostError<AnyPacket>> {
        match (self, packet) {
            (Self::Soft(qp), Either::Soft(packet)) => {
                qp.post_receive(packet).map_err(|error| refused(error, Either::Soft))
            }
            (Self::Verbs(qp), Either::Verbs(packet)) => {
                qp.post_receive(packet).map_err(|error| refused(error, Either::Verbs))
            }
            (_, packet) => Err(PostError { error: foreign(), packet }),
        }
    }

    #[inline]
    fn hold(&mut self) {
        each!(self, qp => qp.hold());
    }

    #[inline]
    fn release(&mut self) {
        each!(self, qp => qp.release());
    }

    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<AnyRegion, RegisterError> {
        match self {
            Self::Soft(qp) => qp.register(memory, access).map(Either::Soft),
            Self::Verbs(qp) => qp.register(memory, access).map(Either::Verbs),
        }
    }

    fn region(&self, key: u32) -> Option<AnyRegion> {
        match self {
            Self::Soft(qp) => qp.region(key).map(Either::Soft),
            Self::Verbs(qp) => qp.region(key).map(Either::Verbs),
        }
    }

    fn post_read(&mut self, read: RdmaRequest<AnyRegion>) -> Result<(), DeviceError> {
        match self {
            Self::Soft(qp) => qp.post_read(request(read, Either::soft)?),
            Self::Verbs(qp) => qp.post_read(request(read, Either::verbs)?),
        }
    }

    fn post_write(
        &mut self,
        write: RdmaRequest<AnyRegion>,
        immediate: Option<u32>,
    ) -> Result<(), DeviceError> {
        match self {
            Self::Soft(qp) => qp.post_write(request(write, Either::soft)?, immediate),
            Self::Verbs(qp) => qp.post_write(request(write, Either::verbs)?, immediate),
        }
    }

    #[inline]
    fn poll(&mut self, now: Time) -> Option<Completion<AnyPacket>> {
        match self {
            Self::Soft(qp) => qp.poll(now).map(|completion| whichever(completion, Either::Soft)),
            Self::Verbs(qp) => qp.poll(now).map(|completion| whichever(completion, Either::Verbs)),
        }
    }

    fn next_event(&self) -> Option<Time> {
        each!(self, qp => qp.next_event())
    }
}
