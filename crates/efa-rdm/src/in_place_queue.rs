//! The queue pair of an endpoint with zero-copy receives: the type tells it from others.

use std::os::fd::BorrowedFd;

use efa_device::{
    Access, AddressHandle, Armed, Completion, Destination, DeviceAttributes, DeviceError, Gid,
    Lending, NoTagList, PostError, QueuePair, QueuePairAddress, RdmaRequest, RegisterError,
    SendRequest, Time,
};

/// A queue pair for an endpoint with zero-copy receives.
///
/// It forwards every call to the queue pair that it wraps. The type selects zero-copy receives at
/// compile time, so that other endpoints have no cost. With the wire-compatibility profile of
/// libfabric 1.13 to 1.21 one queue pair is enough; with 1.22 to 2.5 messages arrive on a second one.
/// Other releases have no zero-copy receives. Unlike libfabric, such an endpoint doesn't announce
/// delivery complete, because it can't receive messages that ask for it.
///
/// ```
/// use efa_device::{Device, QueuePairOptions, Time};
/// use efa_handshake::Release;
/// use efa_rdm::{Config, Endpoint, InPlaceQueue, Level, Message};
/// use efa_sim::local::{LocalFabric, LocalOptions};
///
/// let network = LocalFabric::new(LocalOptions::default());
/// let queue_pair = || network.open().create_queue_pair(QueuePairOptions::default());
/// let mut alice = Endpoint::new(queue_pair()?, Config::default())?;
/// let config = Config::as_release(Release::V1_20);
/// let mut bob = Endpoint::<_, Vec<u8>>::new(InPlaceQueue(queue_pair()?), config)?;
///
/// let packet = bob.allocate_packet()?;
/// bob.receive_in_place(packet, 1)?;
/// let peer = alice.insert_peer(bob.address())?;
/// let buffer = b"hello".to_vec();
/// alice.send(Message { peer, tag: None, cq_data: None, level: Level::Transmit, buffer, context: 2 })?;
///
/// let mut now = Time::ZERO;
/// let received = loop {
///     alice.progress(now);
///     bob.progress(now);
///     if let Some(received) = bob.poll_in_place() {
///         break received;
///     }
///     now += std::time::Duration::from_micros(1);
/// };
/// let message = received.result?;
/// assert_eq!(message.bytes(), b"hello");
/// assert_eq!(message.into_packet()[bob.in_place_offset()..][..5], *b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct InPlaceQueue<Q>(pub Q);

impl<Q: QueuePair> QueuePair for InPlaceQueue<Q> {
    type Packet = Q::Packet;
    type Region = Q::Region;
    type TagList = NoTagList;

    const IN_PLACE: bool = true;

    fn attributes(&self) -> &DeviceAttributes {
        self.0.attributes()
    }

    fn address(&self) -> QueuePairAddress {
        self.0.address()
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        self.0.create_address_handle(gid)
    }

    fn destroy_address_handle(&mut self, handle: AddressHandle) {
        self.0.destroy_address_handle(handle);
    }

    fn gid_of(&self, handle: AddressHandle) -> Option<Gid> {
        self.0.gid_of(handle)
    }

    fn allocate_packet(&mut self) -> Result<Q::Packet, DeviceError> {
        self.0.allocate_packet()
    }

    fn prepare(&mut self, to: Destination) -> Result<(), DeviceError> {
        self.0.prepare(to)
    }

    fn post_send(&mut self, request: SendRequest<Q::Packet>) -> Result<(), PostError<Q::Packet>> {
        self.0.post_send(request)
    }

    fn post_receive(&mut self, packet: Q::Packet) -> Result<(), PostError<Q::Packet>> {
        self.0.post_receive(packet)
    }

    fn withdraw_receive(&mut self) -> Option<Q::Packet> {
        self.0.withdraw_receive()
    }

    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<Q::Region, RegisterError> {
        self.0.register(memory, access)
    }

    fn register_lent(&self, memory: Lending<'_>, access: Access) -> Result<Q::Region, DeviceError> {
        self.0.register_lent(memory, access)
    }

    fn region(&self, key: u32) -> Option<Q::Region> {
        self.0.region(key)
    }

    fn post_read(&mut self, request: RdmaRequest<Q::Region>) -> Result<(), DeviceError> {
        self.0.post_read(request)
    }

    fn post_write(
        &mut self,
        request: RdmaRequest<Q::Region>,
        immediate: Option<u32>,
    ) -> Result<(), DeviceError> {
        self.0.post_write(request, immediate)
    }

    fn hold(&mut self) {
        self.0.hold();
    }

    fn release(&mut self) {
        self.0.release();
    }

    fn poll(&mut self, now: Time) -> Option<Completion<Q::Packet>> {
        self.0.poll(now)
    }

    fn next_event(&self) -> Option<Time> {
        self.0.next_event()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.wait_fd()
    }

    fn arm(&mut self, now: Time) -> Result<Armed, DeviceError> {
        self.0.arm(now)
    }
}
