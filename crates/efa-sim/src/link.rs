//! The queue pair of the shm and the tcp link: one outer half, and a [`Link`] that moves packets.
//!
//! ```text
//!              LinkQueuePair
//!   post ────► │ QueueState: limits, posted receives, completions, address handles, capture
//!              │     ▲
//!   poll ────► │ Link: rings in shared memory, or TCP connections
//! ```

mod in_place;
mod kept_number;
mod pieces;
mod rdma;
mod state;

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use efa_device::{
    Access, AddressHandle, Armed, Completion, CopySource, CopyTarget, Destination,
    DeviceAttributes, DeviceError, Gid, Lending, NoTagList, PostError, Qkey, QueuePair,
    QueuePairAddress, RdmaRequest, RegisterError, SendRequest, Status, Time,
};
use rustix::io::Errno;

pub(crate) use self::in_place::InPlace;
pub use self::kept_number::KeptNumber;
pub(crate) use self::pieces::{Operation as RequestedOperation, Piece, Step};
pub(crate) use self::rdma::{Direction, vendor_part_id};
pub(crate) use self::state::{Delivered, QueueState, ReceiveQueue, Settings, granted};
use crate::record::QueuePairId;
use crate::region::SoftRegion;

/// The error of a system call.
pub(crate) fn system(operation: impl Into<String>, errno: Errno) -> DeviceError {
    let reason = std::io::Error::from(errno).to_string();
    DeviceError::System { operation: operation.into(), errno: errno.raw_os_error(), reason }
}

/// A packet buffer.
pub(crate) type Packet = Box<[u8]>;

/// This number of retries at a receiver that is not ready (RNR) stands for retries without end.
pub(crate) const RNR_RETRY_INFINITE: u8 = 7;

/// Where a destination leads.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub(crate) peer: QueuePairId,
    /// Key of the connection to the peer, or how sends to it complete at once.
    pub(crate) connection: Result<usize, Status>,
}

/// How the packets of a queue pair move.
pub trait Link: fmt::Debug {
    /// As [`QueuePair::payloads_pay_from`].
    const PAYLOADS_PAY_FROM: usize = usize::MAX;
    /// Length of the shortest datagram of which the link [leaves](QueuePair::split_headers) bytes in its own memory, if it
    /// does so.
    const SPLIT_FROM: Option<usize> = None;

    /// The path to a destination, opened if need be.
    ///
    /// # Errors
    /// [`DeviceError::BadAddressHandle`], [`DeviceError::System`].
    fn path_to(&mut self, state: &mut QueueState, to: Destination) -> Result<Path, DeviceError>;

    /// Sends a datagram that was accepted, or completes it.
    fn send(&mut self, state: &mut QueueState, path: Path, request: SendRequest<Packet>);

    /// As [`QueuePair::has_room`].
    fn has_room(&self, to: Destination) -> bool {
        let _ = to;
        true
    }

    /// Sends a datagram within the limits of the device, of which `fill` writes the last `rest` bytes where they leave from;
    /// or returns both, if it can't do so at once.
    ///
    /// # Errors
    /// What it didn't send.
    fn write<F: FnOnce(CopyTarget<'_>)>(
        &mut self,
        state: &mut QueueState,
        request: SendRequest<Packet>,
        rest: usize,
        fill: F,
    ) -> Result<(), (SendRequest<Packet>, F)> {
        let _ = (state, rest);
        Err((request, fill))
    }

    /// Begins an RDMA operation within the limits of the device.
    ///
    /// # Errors
    /// As [`path_to`](Self::path_to).
    fn start_rdma(
        &mut self,
        state: &mut QueueState,
        request: RdmaRequest<SoftRegion>,
        direction: Direction,
    ) -> Result<(), DeviceError>;

    /// As [`QueuePair::await_arrivals`], of what others send.
    fn await_arrivals(&mut self) -> bool {
        false
    }

    /// As [`QueuePair::has_no_arrivals`].
    #[inline(always)]
    fn has_no_arrivals(&self) -> bool {
        false
    }

    /// Passes a part of a datagram, the rest of which is left in the link's own memory, to `take`; its front is in the packet
    /// there.
    fn take_left(
        &mut self,
        packet: *const u8,
        part: Range<usize>,
        take: impl FnOnce(CopySource<'_>),
    ) {
        let _ = (packet, part, take);
    }

    /// Moves packets, as long as there are no completions.
    fn progress(&mut self, state: &mut QueueState);

    /// The descriptor to sleep on, if the queue pair is waitable.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Whether a call of [`progress`](Self::progress) has something to do that the descriptor to sleep on
    /// doesn't show.
    fn has_work(&self) -> bool;

    /// Prepares for sleep, as [`QueuePair::arm`] does. There are no completions.
    fn arm(&mut self, state: &mut QueueState) -> Armed;

    /// Ends the sends of others to this queue pair.
    fn close(&mut self, state: &mut QueueState);
}

/// A queue pair of the [shm](crate::shm) or the [tcp link](crate::tcp).
///
/// Dropping it rejects the packets that others have sent to it, so that their sends complete.
pub struct LinkQueuePair<L: Link> {
    state: QueueState,
    pub(crate) link: L,
}

/// Prints the address, and nothing of what is posted or arrives.
impl<L: Link> fmt::Debug for LinkQueuePair<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkQueuePair")
            .field("device", &self.state.attributes.name)
            .field("address", &self.state.address)
            .finish_non_exhaustive()
    }
}

impl<L: Link> LinkQueuePair<L> {
    pub(crate) fn new(state: QueueState, link: L) -> Self {
        Self { state, link }
    }

    /// Sets the key that senders must present from now on.
    pub fn set_qkey(&mut self, qkey: Qkey) {
        self.state.address.qkey = qkey;
    }

    /// Makes immediate data of writes take a receive buffer, even if the device needs none for it.
    pub fn take_buffers_for_writes(&mut self) {
        self.state.attributes.rdma.unsolicited_write_receive = false;
    }

    /// Ends that senders wait for its first buffer: their RNR timeout runs from now on, whatever the device's
    /// options say.
    pub fn limit_first_wait(&mut self) {
        self.state.limit_first_wait();
    }

    /// Accepts a send as if its target had no buffer for it: it completes with
    /// [`Status::ReceiverNotReady`].
    ///
    /// # Errors
    /// As [`post_send`](QueuePair::post_send).
    pub fn bounce(&mut self, request: SendRequest<Packet>) -> Result<(), PostError<Packet>> {
        let path = match self.accept(&request) {
            Ok(path) => path,
            Err(error) => return Err(PostError { error, packet: request.packet }),
        };
        let SendRequest { id, packet, length, .. } = request;
        self.state.record_sent(path.peer, &packet[..length]);
        self.state.complete_send(path.peer, id, packet, length, Err(Status::ReceiverNotReady));
        Ok(())
    }

    /// Checks and counts a send.
    #[inline]
    fn accept(&mut self, request: &SendRequest<Packet>) -> Result<Path, DeviceError> {
        self.state.check_send(request, 0)?;
        let path = self.link.path_to(&mut self.state, request.destination)?;
        self.state.count_send();
        Ok(path)
    }

    /// Sends a datagram at once, if the link can do that.
    #[inline(always)]
    fn write<F: FnOnce(CopyTarget<'_>)>(
        &mut self,
        request: SendRequest<Packet>,
        rest: usize,
        fill: F,
    ) -> Result<(), (SendRequest<Packet>, F)> {
        match self.state.check_send(&request, rest) {
            Ok(()) => self.link.write(&mut self.state, request, rest, fill),
            Err(_) => Err((request, fill)),
        }
    }

    /// Sends a datagram, or queues it up.
    #[inline(never)]
    fn post_otherwise(&mut self, request: SendRequest<Packet>) -> Result<(), PostError<Packet>> {
        match self.accept(&request) {
            Ok(path) => {
                self.link.send(&mut self.state, path, request);
                Ok(())
            }
            Err(error) => Err(PostError { error, packet: request.packet }),
        }
    }

    fn post_rdma(
        &mut self,
        request: RdmaRequest<SoftRegion>,
        direction: Direction,
    ) -> Result<(), DeviceError> {
        rdma::check(&self.state.attributes, &request, direction)?;
        self.state.check_depth()?;
        self.link.start_rdma(&mut self.state, request, direction)
    }
}

impl<L: Link> QueuePair for LinkQueuePair<L> {
    type Packet = Packet;
    type Region = SoftRegion;
    type TagList = NoTagList;

    fn attributes(&self) -> &DeviceAttributes {
        &self.state.attributes
    }

    fn address(&self) -> QueuePairAddress {
        self.state.address
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        let handle = self.state.book.acquire(gid)?;
        self.state.held.add(handle);
        Ok(handle)
    }

    fn destroy_address_handle(&mut self, handle: AddressHandle) {
        if self.state.held.take(handle) {
            self.state.book.release(handle, 1);
        }
    }

    fn gid_of(&self, handle: AddressHandle) -> Option<Gid> {
        self.state.book.gid(handle)
    }

    fn allocate_packet(&mut self) -> Result<Packet, DeviceError> {
        Ok(vec![0; self.state.attributes.mtu].into())
    }

    fn prepare(&mut self, to: Destination) -> Result<(), DeviceError> {
        self.link.path_to(&mut self.state, to).map(drop)
    }

    // One copy of all that this calls, so that it is inlined there.
    #[inline(never)]
    fn post_send(&mut self, request: SendRequest<Packet>) -> Result<(), PostError<Packet>> {
        match self.write(request, 0, |_| {}) {
            Ok(()) => Ok(()),
            Err((request, _)) => self.post_otherwise(request),
        }
    }

    fn payloads_pay_from(&self) -> usize {
        L::PAYLOADS_PAY_FROM
    }

    fn has_room(&self, to: Destination) -> bool {
        self.link.has_room(to)
    }

    fn post_send_with(
        &mut self,
        request: SendRequest<Packet>,
        rest: usize,
        fill: impl FnOnce(CopyTarget<'_>),
    ) -> Result<(), PostError<Packet>> {
        match self.write(request, rest, fill) {
            Ok(()) => Ok(()),
            Err((mut request, fill)) => {
                request.append(rest, fill);
                self.post_otherwise(request)
            }
        }
    }

    #[inline]
    fn post_receive(&mut self, packet: Packet) -> Result<(), PostError<Packet>> {
        self.state.post_receive(packet).map_err(|(error, packet)| PostError { error, packet })
    }

    fn withdraw_receive(&mut self) -> Option<Packet> {
        self.state.withdraw_receive()
    }

    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<SoftRegion, RegisterError> {
        self.state.keys.register(memory, access)
    }

    fn register_lent(
        &self,
        memory: Lending<'_>,
        access: Access,
    ) -> Result<SoftRegion, DeviceError> {
        self.state.keys.register_lent(memory, access)
    }

    fn region(&self, key: u32) -> Option<SoftRegion> {
        self.state.keys.find(key)
    }

    fn post_read(&mut self, request: RdmaRequest<SoftRegion>) -> Result<(), DeviceError> {
        self.post_rdma(request, Direction::Read)
    }

    fn post_write(
        &mut self,
        request: RdmaRequest<SoftRegion>,
        immediate: Option<u32>,
    ) -> Result<(), DeviceError> {
        self.post_rdma(request, Direction::Write(immediate))
    }

    fn await_arrivals(&mut self) -> bool {
        !self.state.has_sends() && !self.state.has_completions() && self.link.await_arrivals()
    }

    #[inline(always)]
    fn has_no_arrivals(&self) -> bool {
        self.link.has_no_arrivals()
    }

    fn has_found(&self) -> bool {
        self.state.has_completions()
    }

    fn split_headers(&mut self, front: usize) {
        if let Some(from) = L::SPLIT_FROM {
            self.state.split_headers(front, from);
        }
    }

    fn take_rest(
        &mut self,
        packet: &Packet,
        part: Range<usize>,
        take: impl FnOnce(CopySource<'_>),
    ) {
        self.link.take_left(packet.as_ptr(), part, take);
    }

    fn land(&mut self, packet: &mut Packet, length: usize) {
        // Of the front, which was looked at, the link's own memory may have other bytes by now.
        let (at, rest) = (packet.as_ptr(), self.state.front()..length);
        self.link.take_left(at, rest.clone(), |bytes| {
            if let Some(packet) = packet.get_mut(rest) {
                bytes.copy_to(0, packet);
            }
        });
    }

    #[inline]
    fn poll(&mut self, now: Time) -> Option<Completion<Packet>> {
        if !self.state.has_completions() {
            self.state.now = now;
            self.link.progress(&mut self.state);
            if !self.state.has_completions() {
                return None;
            }
        }
        self.state.take_completion()
    }

    /// `None` unless a completion is queued: when other processes act is not known.
    #[inline]
    fn next_event(&self) -> Option<Time> {
        (self.state.has_completions() || self.link.has_work()).then_some(self.state.now)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.wait_fd()
    }

    fn arm(&mut self, now: Time) -> Result<Armed, DeviceError> {
        if self.link.wait_fd().is_none() {
            return Err(DeviceError::Unsupported { operation: "waiting" });
        }
        if self.state.has_completions() {
            return Ok(Armed::Pending);
        }
        self.state.now = now;
        let armed = self.link.arm(&mut self.state);
        Ok(if self.state.has_completions() { Armed::Pending } else { armed })
    }
}

impl<L: Link> Drop for LinkQueuePair<L> {
    fn drop(&mut self) {
        for (handle, count) in self.state.held.drain() {
            self.state.book.release(handle, count);
        }
        self.link.close(&mut self.state);
    }
}
