//! A queue pair that leaves what is behind the front of a datagram in its own memory, and wants payloads copied.

use std::ops::Range;

use efa_device::{
    Access, AddressHandle, Completion, CopySource, CopyTarget, Destination, DeviceAttributes,
    DeviceError, Gid, Lending, PostError, QueuePair, QueuePairAddress, RdmaRequest, RegisterError,
    SendRequest, Time,
};
use efa_sim::SoftRegion;
use efa_sim::local::LocalQueuePair;

type Packet = <LocalQueuePair as QueuePair>::Packet;

/// What a packet has instead of the bytes that are left.
const NOT_THERE: u8 = 0xA5;

/// A queue pair of the simulated network, or one that leaves payloads.
#[derive(Debug)]
pub(crate) struct Leaving {
    inner: LocalQueuePair,
    /// Whether it leaves any.
    leaves: bool,
    /// Bytes that are put into a packet, once the engine has asked for that.
    front: Option<usize>,
    /// The datagram of the last completion, if bytes of it were left.
    left: Option<Vec<u8>>,
    /// Datagrams that were posted and have not completed.
    outstanding: usize,
}

/// Most datagrams outstanding for which there is room.
const ROOM: usize = 5;

impl Leaving {
    pub(crate) fn new(inner: LocalQueuePair, leaves: bool) -> Self {
        Self { inner, leaves, front: None, left: None, outstanding: 0 }
    }

    /// Takes what is behind the front out of a packet.
    fn split(&mut self, completion: Completion<Packet>) -> Completion<Packet> {
        match (completion, self.front) {
            (Completion::Receive { mut packet, length, source, immediate: None }, Some(front))
                if length > front =>
            {
                self.left = Some(packet.as_ref()[..length].to_vec());
                packet.as_mut()[front..].fill(NOT_THERE);
                Completion::Front { packet, length, source }
            }
            (other, _) => other,
        }
    }
}

impl QueuePair for Leaving {
    type Packet = Packet;
    type Region = SoftRegion;
    type TagList = <LocalQueuePair as QueuePair>::TagList;

    fn attributes(&self) -> &DeviceAttributes {
        self.inner.attributes()
    }
    fn address(&self) -> QueuePairAddress {
        self.inner.address()
    }
    fn create_address_handle(&mut self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        self.inner.create_address_handle(gid)
    }
    fn destroy_address_handle(&mut self, handle: AddressHandle) {
        self.inner.destroy_address_handle(handle);
    }
    fn gid_of(&self, handle: AddressHandle) -> Option<Gid> {
        self.inner.gid_of(handle)
    }
    fn allocate_packet(&mut self) -> Result<Packet, DeviceError> {
        self.inner.allocate_packet()
    }
    fn prepare(&mut self, to: Destination) -> Result<(), DeviceError> {
        self.inner.prepare(to)
    }
    fn post_send(&mut self, request: SendRequest<Packet>) -> Result<(), PostError<Packet>> {
        self.inner.post_send(request)?;
        self.outstanding += 1;
        Ok(())
    }
    fn has_room(&self, _: Destination) -> bool {
        !self.leaves || self.outstanding < ROOM
    }
    fn payloads_pay_from(&self) -> usize {
        if self.leaves { 0 } else { usize::MAX }
    }
    fn post_send_with(
        &mut self,
        request: SendRequest<Packet>,
        rest: usize,
        fill: impl FnOnce(CopyTarget<'_>),
    ) -> Result<(), PostError<Packet>> {
        self.inner.post_send_with(request, rest, fill)?;
        self.outstanding += 1;
        Ok(())
    }
    fn post_receive(&mut self, packet: Packet) -> Result<(), PostError<Packet>> {
        self.inner.post_receive(packet)
    }
    fn withdraw_receive(&mut self) -> Option<Packet> {
        self.inner.withdraw_receive()
    }
    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<SoftRegion, RegisterError> {
        self.inner.register(memory, access)
    }
    fn register_lent(
        &self,
        memory: Lending<'_>,
        access: Access,
    ) -> Result<SoftRegion, DeviceError> {
        self.inner.register_lent(memory, access)
    }
    fn region(&self, key: u32) -> Option<SoftRegion> {
        self.inner.region(key)
    }
    fn post_read(&mut self, request: RdmaRequest<SoftRegion>) -> Result<(), DeviceError> {
        self.inner.post_read(request)
    }
    fn post_write(
        &mut self,
        request: RdmaRequest<SoftRegion>,
        immediate: Option<u32>,
    ) -> Result<(), DeviceError> {
        self.inner.post_write(request, immediate)
    }
    fn await_arrivals(&mut self) -> bool {
        self.inner.await_arrivals()
    }
    fn has_no_arrivals(&self) -> bool {
        self.inner.has_no_arrivals()
    }
    fn has_found(&self) -> bool {
        self.inner.has_found()
    }
    fn split_headers(&mut self, front: usize) {
        self.front = self.leaves.then_some(front);
    }
    fn take_rest(
        &mut self,
        packet: &Packet,
        part: Range<usize>,
        take: impl FnOnce(CopySource<'_>),
    ) {
        let left = self.left.take().expect("a rest is taken once, before the next poll");
        let front = self.front.unwrap_or_default();
        assert_eq!(packet.as_ref()[..front], left[..front], "the packet of the rest");
        take(left[part].into());
    }
    fn land(&mut self, packet: &mut Packet, length: usize) {
        let left = self.left.take().expect("a rest is taken once, before the next poll");
        assert_eq!(left.len(), length);
        packet.as_mut()[..length].copy_from_slice(&left);
    }
    fn poll(&mut self, now: Time) -> Option<Completion<Packet>> {
        self.left = None;
        let completion = self.inner.poll(now)?;
        self.outstanding -= usize::from(matches!(completion, Completion::Send { .. }));
        Some(self.split(completion))
    }
    fn next_event(&self) -> Option<Time> {
        self.inner.next_event()
    }
}
