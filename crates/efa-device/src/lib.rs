//! The seam between the EFA RDM engine and a device.
//!
//! A [`Device`] is an opened network interface; a [`QueuePair`] is one unordered, reliable
//! datagram endpoint on it (EFA calls the transport SRD); a [`Region`] is registered memory. A queue
//! pair of a device that matches tagged messages itself has a [`TagList`] besides. The crate holds
//! these four traits and plain data, and depends on nothing else in the workspace.
//!
//! ```text
//!   engine ── post_send(packet) ──►  QueuePair  ──► (other queue pairs)
//!          ── post_receive(packet) ►
//!          ── post_read, post_write ►  registered memory of a remote interface
//!          ◄─ poll(now) ────────────  Completion::{Send, Receive, Front, Unfilled, Rdma, Written}
//! ```
//!
//! # Ownership
//!
//! A packet buffer belongs either to the caller or to the queue pair, never to both: posting moves it in,
//! a completion (or a refused post) moves it back, and dropping the queue pair drops the buffers that it
//! holds. An RDMA operation holds a handle of the local [`Region`] until it completes. So no order of
//! drops can let a device write to freed memory, and users of this crate need no `unsafe`.
//!
//! # What a device promises
//!
//! * A datagram of at most [`DeviceAttributes::mtu`] bytes arrives once or not at all, in any
//!   order relative to others.
//! * Every accepted send completes exactly once, with success or with a [`Status`].
//! * Every accepted receive buffer comes back once, with a datagram or [without](Completion::Unfilled), unless the queue
//!   pair is dropped before.
//! * A receiver without a posted buffer makes the send fail with [`Status::ReceiverNotReady`]
//!   after the device's own retries; the datagram was then *not* delivered.
//! * An RDMA read or write accesses remote memory after key, bounds and access were checked, or completes
//!   with [`Status::RemoteBadAddress`]. The remote side gets no completion, except for the immediate data
//!   of a write.
//!
//! # Example
//!
//! A device that delivers everything to itself:
//!
//! ```
//! use std::collections::VecDeque;
//! use efa_device::{
//!     AddressHandle, Completion, Destination, DeviceAttributes, DeviceError, Gid, NoRegion, NoTagList,
//!     PostError, Qkey, Qpn, QueuePair, QueuePairAddress, SendRequest, Source, Time, WorkId,
//! };
//!
//! struct Loopback {
//!     attributes: DeviceAttributes,
//!     sent: VecDeque<SendRequest<Box<[u8]>>>,
//!     posted: VecDeque<Box<[u8]>>,
//!     done: VecDeque<Completion<Box<[u8]>>>,
//! }
//!
//! impl QueuePair for Loopback {
//!     type Packet = Box<[u8]>;
//!     type Region = NoRegion;
//!     type TagList = NoTagList;
//!     fn attributes(&self) -> &DeviceAttributes { &self.attributes }
//!     fn address(&self) -> QueuePairAddress {
//!         QueuePairAddress { gid: Gid([1; 16]), qpn: Qpn(1), qkey: Qkey(7) }
//!     }
//!     fn create_address_handle(&mut self, _: Gid) -> Result<AddressHandle, DeviceError> {
//!         Ok(AddressHandle(0))
//!     }
//!     fn destroy_address_handle(&mut self, _: AddressHandle) {}
//!     fn allocate_packet(&mut self) -> Result<Box<[u8]>, DeviceError> {
//!         Ok(vec![0; self.attributes.mtu].into())
//!     }
//!     fn post_send(&mut self, request: SendRequest<Box<[u8]>>) -> Result<(), PostError<Box<[u8]>>> {
//!         self.sent.push_back(request);
//!         Ok(())
//!     }
//!     fn post_receive(&mut self, packet: Box<[u8]>) -> Result<(), PostError<Box<[u8]>>> {
//!         self.posted.push_back(packet);
//!         Ok(())
//!     }
//!     fn poll(&mut self, _: Time) -> Option<Completion<Box<[u8]>>> {
//!         if let (Some(_), Some(send)) = (self.posted.front(), self.sent.pop_front()) {
//!             let mut packet = self.posted.pop_front()?;
//!             packet[..send.length].copy_from_slice(&send.packet[..send.length]);
//!             let source = Source { address_handle: Some(AddressHandle(0)), qpn: Qpn(1), gid: None };
//!             let (length, immediate) = (send.length, send.immediate);
//!             self.done.push_back(Completion::Receive { packet, length, source, immediate });
//!             self.done.push_back(Completion::Send { id: send.id, packet: send.packet, result: Ok(()) });
//!         }
//!         self.done.pop_front()
//!     }
//!     fn next_event(&self) -> Option<Time> { None }
//! }
//!
//! let mut qp = Loopback {
//!     attributes: DeviceAttributes { mtu: 64, ..DeviceAttributes::default() },
//!     sent: VecDeque::new(), posted: VecDeque::new(), done: VecDeque::new(),
//! };
//! let buffer = qp.allocate_packet()?;
//! qp.post_receive(buffer).map_err(|refused| refused.error)?;
//! let mut packet = qp.allocate_packet()?;
//! packet[..5].copy_from_slice(b"hello");
//! let to = Destination { address_handle: AddressHandle(0), qpn: Qpn(1), qkey: Qkey(7) };
//! qp.post_send(SendRequest { id: WorkId(3), packet, length: 5, destination: to, immediate: None })
//!     .map_err(|refused| refused.error)?;
//! let Some(Completion::Receive { packet, length, .. }) = qp.poll(Time::ZERO) else { panic!() };
//! assert_eq!(&packet[..length], b"hello");
//! # Ok::<(), DeviceError>(())
//! ```

#![deny(unsafe_code)]

mod copies;
mod error;
mod foreign;
mod lent;
mod region;
mod status;
mod tag_list;
mod time;
mod zeroed;

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;

pub use copies::{CopySource, CopyTarget, copy_apart};
pub use error::{DeviceError, Shortage};
pub use foreign::ForeignMemory;
pub use lent::{Lending, LentBytes, LentBytesMut};
pub use region::{Access, NoRegion, Region, RegionRange, RegisterError, RemoteMemory, RemoteRange};
pub use status::Status;
pub use tag_list::{NoTagList, TagChange, TagCommand, TagList, TagListLimits, TagReport};
pub use time::Time;
pub use zeroed::zeroed;

/// Global identifier of a network interface: an IPv6-shaped address of 16 bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The all-zero GID, which names no interface.
    pub const ZERO: Self = Self([0; 16]);
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// Queue pair number, unique on one interface among its existing queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(pub u16);

/// Queue key: a datagram whose key differs from the target's is not delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qkey(pub u32);

/// Number of an address handle: this device's name of a remote interface.
///
/// A GID keeps its number as long as a handle to it exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressHandle(pub u16);

/// Work request id: chosen by the caller, returned in the completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId(pub u64);

/// The address of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QueuePairAddress {
    /// The interface.
    pub gid: Gid,
    /// The queue pair's number.
    pub qpn: Qpn,
    /// The key that senders must use.
    pub qkey: Qkey,
}

/// The target of a send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The remote interface.
    pub address_handle: AddressHandle,
    /// The remote queue pair.
    pub qpn: Qpn,
    /// Its key.
    pub qkey: Qkey,
}

/// The sender of a datagram, as far as the device knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Source {
    /// The sender's interface, if an address handle for it exists here.
    pub address_handle: Option<AddressHandle>,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The sender's interface if no address handle for it exists and the device reports it.
    pub gid: Option<Gid>,
}

/// Identity and limits of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Name, unique on this host.
    pub name: String,
    /// Vendor part id, for example `0xefa2`; travels in the HANDSHAKE as device version.
    pub vendor_part_id: u32,
    /// Largest datagram in bytes.
    pub mtu: usize,
    /// Most queue pairs.
    pub max_queue_pairs: usize,
    /// Most sends outstanding on a queue pair.
    pub max_send: usize,
    /// Most receive buffers posted on a queue pair.
    pub max_receive: usize,
    /// Most address handles.
    pub max_address_handles: usize,
    /// Most memory regions.
    pub max_regions: usize,
    /// Longest memory region in bytes.
    pub max_region_size: u64,
    /// Its RDMA operations.
    pub rdma: Rdma,
    /// Most bytes of one RDMA operation.
    pub max_rdma_size: u64,
    /// Bytes from which on a message arrives sooner if the receiver reads it by RDMA than in datagrams. It says
    /// nothing where `rdma` has no read.
    pub reads_pay_from: u64,
    /// The same for a message in [mapped](Region::is_mapped) memory, at most `reads_pay_from`.
    pub mapped_reads_pay_from: u64,
}

/// RDMA operations of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rdma {
    /// RDMA read.
    pub read: bool,
    /// RDMA write.
    pub write: bool,
    /// Immediate data of a write takes no receive buffer at the target.
    pub unsolicited_write_receive: bool,
}

impl Rdma {
    /// No RDMA.
    pub const NONE: Self = Self { read: false, write: false, unsolicited_write_receive: false };
    /// Reads and writes; immediate data takes a receive buffer.
    pub const READ_WRITE: Self = Self { read: true, write: true, unsolicited_write_receive: false };
}

impl Default for DeviceAttributes {
    fn default() -> Self {
        Self {
            name: String::new(),
            vendor_part_id: 0,
            mtu: 8928,
            max_queue_pairs: 65535,
            max_send: 4096,
            max_receive: 8192,
            max_address_handles: 65535,
            max_regions: 1 << 14,
            max_region_size: 1 << 40,
            rdma: Rdma::NONE,
            max_rdma_size: 1 << 30,
            reads_pay_from: 1 << 20,
            mapped_reads_pay_from: 1 << 20,
        }
    }
}

/// A refused post, with the packet.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct PostError<P> {
    /// The reason.
    pub error: DeviceError,
    /// The packet.
    pub packet: P,
}

/// Prints the reason, and nothing of the packet.
impl<P> fmt::Debug for PostError<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostError").field("error", &self.error).finish_non_exhaustive()
    }
}

/// A datagram to be sent.
#[derive(Debug)]
pub struct SendRequest<P> {
    /// Chosen by the caller, returned in the completion.
    pub id: WorkId,
    /// The buffer; its first `length` bytes are sent.
    pub packet: P,
    /// Bytes to send.
    pub length: usize,
    /// The target.
    pub destination: Destination,
    /// 32 bits that the target's completion carries, beside the datagram.
    pub immediate: Option<u32>,
}

impl<P: AsMut<[u8]>> SendRequest<P> {
    /// Appends `rest` bytes, which `fill` writes into the packet. If they don't fit, only the length grows, for which the
    /// device refuses the request.
    pub fn append(&mut self, rest: usize, fill: impl FnOnce(CopyTarget<'_>)) {
        let begin = self.length;
        self.length = begin.saturating_add(rest);
        if let Some(bytes) = self.packet.as_mut().get_mut(begin..self.length) {
            fill(bytes.into());
        }
    }
}

/// An RDMA read or write.
#[derive(Clone, Debug)]
pub struct RdmaRequest<R> {
    /// Chosen by the caller, returned in the completion.
    pub id: WorkId,
    /// The local memory, which the device holds until the operation completes.
    pub local: RegionRange<R>,
    /// The remote memory, of the same length.
    pub remote: RemoteMemory,
    /// A queue pair of the remote interface. Its key is not checked.
    pub destination: Destination,
}

/// A completion queue entry.
#[derive(Debug)]
pub enum Completion<P> {
    /// A send completed; `Ok` means that the datagram is in a receive buffer of the target.
    Send {
        /// [`SendRequest::id`].
        id: WorkId,
        /// The send buffer.
        packet: P,
        /// The result.
        result: Result<(), Status>,
    },
    /// A datagram arrived.
    Receive {
        /// The receive buffer with the datagram.
        packet: P,
        /// Length of the datagram in bytes.
        length: usize,
        /// The sender.
        source: Source,
        /// [`SendRequest::immediate`].
        immediate: Option<u32>,
    },
    /// A datagram arrived, of which the device has [left](QueuePair::split_headers) bytes in its own memory.
    Front {
        /// The receive buffer, with at least as many bytes of the front as were asked for.
        packet: P,
        /// Length of the whole datagram in bytes.
        length: usize,
        /// The sender.
        source: Source,
    },
    /// A receive buffer comes back without a datagram: the device couldn't use it, or refused it after
    /// [`post_receive`](QueuePair::post_receive) had accepted it.
    Unfilled {
        /// The receive buffer.
        packet: P,
        /// Why. [`Status::Flushed`] means that the queue pair failed, and doesn't recover.
        status: Status,
    },
    /// An RDMA read or write completed. A failed one may have copied some of its bytes.
    Rdma {
        /// [`RdmaRequest::id`].
        id: WorkId,
        /// The result.
        result: Result<(), Status>,
    },
    /// A remote interface wrote local memory, with immediate data.
    Written {
        /// The immediate data.
        immediate: u32,
        /// Bytes written.
        length: u64,
        /// The writer.
        source: Source,
        /// The receive buffer that the immediate data took, unless
        /// [`Rdma::unsolicited_write_receive`].
        packet: Option<P>,
    },
}

/// Options of a new queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePairOptions {
    /// The key that senders must use.
    pub qkey: Qkey,
    /// Most sends outstanding, at most [`DeviceAttributes::max_send`].
    pub send_depth: usize,
    /// Most receive buffers posted, at most [`DeviceAttributes::max_receive`].
    pub receive_depth: usize,
    /// How often the device retries when the receiver is not ready (RNR); 7 means without end.
    pub rnr_retry: u8,
    /// Whether a thread can sleep until the queue pair has something to do: see [`QueuePair::arm`]. A
    /// device that can't notify refuses such a queue pair with [`DeviceError::Unsupported`].
    pub waitable: bool,
    /// Packets to a peer for which a device that keeps memory for each should have some while little is sent;
    /// under load it takes more. By default the device decides.
    pub idle_packets: usize,
    /// Whether immediate data of a write takes no receive buffer, where the device has
    /// [that](Rdma::unsolicited_write_receive). Software devices have it for all their queue pairs or for none.
    pub unsolicited_write_receive: bool,
    /// The time at which it is created, on the clock of [`QueuePair::poll`]: what is sent before the first poll bears it in
    /// captures.
    pub now: Time,
}

impl QueuePairOptions {
    /// These options with some changed:
    ///
    /// ```
    /// use efa_device::QueuePairOptions;
    ///
    /// let options = QueuePairOptions::default().with(|options| options.send_depth = 64);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for QueuePairOptions {
    fn default() -> Self {
        Self {
            qkey: Qkey(0),
            send_depth: 1024,
            receive_depth: 1024,
            rnr_retry: 3,
            waitable: false,
            idle_packets: usize::MAX,
            unsolicited_write_receive: true,
            now: Time::ZERO,
        }
    }
}

/// What [`QueuePair::arm`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// [`QueuePair::poll`] may find something now: don't sleep.
    Pending,
    /// Nothing for now. The descriptor becomes readable when `poll` may find something.
    Quiet {
        /// When to poll even if the descriptor isn't readable until then; `None` for never.
        until: Option<Time>,
    },
}

/// One unordered reliable datagram endpoint.
pub trait QueuePair {
    /// A packet buffer of [`DeviceAttributes::mtu`] bytes that the device can reach.
    type Packet: AsRef<[u8]> + AsMut<[u8]> + fmt::Debug;
    /// Memory that the device can read and write.
    type Region: Region;
    /// Its tag list: [`NoTagList`], unless the device matches tagged messages itself.
    type TagList: TagList;

    /// Whether received packets are handed to the application in their buffers. False for devices; an engine
    /// that receives in place wraps a queue pair to set it.
    const IN_PLACE: bool = false;

    /// The device's attributes, with `max_send` and `max_receive` as granted to this queue pair.
    fn attributes(&self) -> &DeviceAttributes;

    /// The queue pair's address.
    fn address(&self) -> QueuePairAddress;

    /// The handle for an interface. A second call for the same GID returns the same handle, counted again.
    ///
    /// # Errors
    /// [`DeviceError::BadAddress`] for the zero GID, [`DeviceError::LimitReached`].
    fn create_address_handle(&mut self, gid: Gid) -> Result<AddressHandle, DeviceError>;

    /// Releases one count of a handle. Unknown handles are ignored.
    fn destroy_address_handle(&mut self, handle: AddressHandle);

    /// The interface that a handle stands for, also one of another queue pair of the device. `None` if there is no such
    /// handle, and of a device that can't tell: there, a sender on an interface with a handle may claim the address of a
    /// queue pair of another interface.
    fn gid_of(&self, handle: AddressHandle) -> Option<Gid> {
        let _ = handle;
        None
    }

    /// A new packet buffer. Dropping it frees the memory.
    ///
    /// # Errors
    /// When the device can't register more memory.
    fn allocate_packet(&mut self) -> Result<Self::Packet, DeviceError>;

    /// Prepares for sends to `to`: makes what the first one would make. The target needn't exist. A device
    /// that makes nothing for each target doesn't implement this method.
    ///
    /// # Errors
    /// [`DeviceError::System`], mostly with a [shortage](DeviceError::shortage).
    fn prepare(&mut self, to: Destination) -> Result<(), DeviceError> {
        let _ = to;
        Ok(())
    }

    /// Queues a datagram.
    ///
    /// # Errors
    /// [`DeviceError::QueueFull`] when `max_send` sends are outstanding, [`DeviceError::TooLong`],
    /// [`DeviceError::BadAddressHandle`], and those of [`prepare`](Self::prepare). Nothing was queued then.
    fn post_send(
        &mut self,
        request: SendRequest<Self::Packet>,
    ) -> Result<(), PostError<Self::Packet>>;

    /// Length in bytes of the shortest payload with which [`post_send_with`](Self::post_send_with) saves time; by default
    /// none is long enough.
    fn payloads_pay_from(&self) -> usize {
        usize::MAX
    }

    /// Whether a datagram to `to` would leave at once. `false`: it would wait in the send queue, behind datagrams whose
    /// completions make room. Who keeps what is to be sent until then saves a copy. By default none waits.
    fn has_room(&self, to: Destination) -> bool {
        let _ = to;
        true
    }

    /// Queues a datagram of the first [`length`](SendRequest::length) bytes of the packet and, behind them, `rest` bytes
    /// that `fill` writes where the device wants them, before this returns. A packet that comes back without being
    /// delivered has all of these bytes, so that [`post_send`](Self::post_send) can send it, unless it is too short for
    /// them. By default they are written into the packet.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send).
    fn post_send_with(
        &mut self,
        mut request: SendRequest<Self::Packet>,
        rest: usize,
        fill: impl FnOnce(CopyTarget<'_>),
    ) -> Result<(), PostError<Self::Packet>> {
        request.append(rest, fill);
        self.post_send(request)
    }

    /// Queues a buffer for a datagram to be received.
    ///
    /// # Errors
    /// [`DeviceError::QueueFull`] when `max_receive` buffers are posted.
    fn post_receive(&mut self, packet: Self::Packet) -> Result<(), PostError<Self::Packet>>;

    /// Takes back the receive buffer that was posted last and is still empty. `None` if there is none, and of a
    /// device that gives none back, as hardware does: the buffers stay posted until packets fill them.
    fn withdraw_receive(&mut self) -> Option<Self::Packet> {
        None
    }

    /// Registers memory, which then belongs to the region.
    ///
    /// # Errors
    /// [`DeviceError::LimitReached`], [`DeviceError::TooLong`], [`DeviceError::Unsupported`], with the
    /// memory. A device without RDMA doesn't implement this method and the next three.
    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<Self::Region, RegisterError> {
        let _ = access;
        Err(RegisterError { error: DeviceError::Unsupported { operation: "registration" }, memory })
    }

    /// Registers memory that was lent for an operation, where it is, until the region is
    /// [revoked](Region::revoke) or dropped.
    ///
    /// # Errors
    /// As for [`register`](Self::register). [`DeviceError::Unsupported`] is the default, and the answer to remote
    /// writes of memory that was lent for reading.
    fn register_lent(
        &self,
        memory: Lending<'_>,
        access: Access,
    ) -> Result<Self::Region, DeviceError> {
        let _ = (memory, access);
        Err(DeviceError::Unsupported { operation: "registration of lent memory" })
    }

    /// The memory region with this remote key, also if another queue pair of the device registered it.
    fn region(&self, key: u32) -> Option<Self::Region> {
        let _ = key;
        None
    }

    /// Queues a read of remote memory into `local`. It counts as a send.
    ///
    /// # Errors
    /// [`DeviceError::QueueFull`], [`DeviceError::TooLong`] for more than
    /// [`DeviceAttributes::max_rdma_size`], [`DeviceError::OutOfRegion`],
    /// [`DeviceError::BadAddressHandle`], [`DeviceError::Unsupported`]. Nothing was queued then.
    fn post_read(&mut self, request: RdmaRequest<Self::Region>) -> Result<(), DeviceError> {
        let _ = request;
        Err(DeviceError::Unsupported { operation: "RDMA read" })
    }

    /// Queues a write of `local` into remote memory. It counts as a send. With `immediate` the target gets
    /// a [`Completion::Written`].
    ///
    /// # Errors
    /// As [`post_read`](Self::post_read).
    fn post_write(
        &mut self,
        request: RdmaRequest<Self::Region>,
        immediate: Option<u32>,
    ) -> Result<(), DeviceError> {
        let _ = (request, immediate);
        Err(DeviceError::Unsupported { operation: "RDMA write" })
    }

    /// Until [`release`](Self::release) the device may hold posts back, to start several with one doorbell.
    /// The caller must release soon. Posts are accepted or refused as usual; an accepted post that can't be
    /// started later completes with a failure. A device without doorbells to save doesn't implement this
    /// method and the next.
    fn hold(&mut self) {}

    /// Starts the posts held back since [`hold`](Self::hold).
    fn release(&mut self) {}

    /// The tag list of a device that matches tagged messages itself; `None` for all others.
    fn tag_list(&mut self) -> Option<&mut Self::TagList> {
        None
    }

    /// Prepares [looks](Self::has_no_arrivals) at what arrives. Returns whether, until the next post or poll, a poll has
    /// nothing to do but to take what looks tell of. What the device does at intervals is done by polls that are made
    /// now and then all the same.
    fn await_arrivals(&mut self) -> bool {
        false
    }

    /// Whether nothing has arrived since [`await_arrivals`](Self::await_arrivals) returned `true`, by a look that costs
    /// a fraction of what a poll does. `false` if it returned something else. Never panics.
    #[inline(always)]
    fn has_no_arrivals(&self) -> bool {
        false
    }

    /// Whether the device has found completions already that the next polls return; `true` if that isn't known.
    fn has_found(&self) -> bool {
        true
    }

    /// Lets the device leave in its own memory what long datagrams have behind their first `front` bytes, the rest. They
    /// complete as [`Completion::Front`]; one call of [`take_rest`](Self::take_rest) or [`land`](Self::land) copies the
    /// rest, before the next call of [`poll`](Self::poll) or [`arm`](Self::arm), which gives it up. A device that puts
    /// all bytes into the packet doesn't implement these three methods.
    fn split_headers(&mut self, front: usize) {
        let _ = front;
    }

    /// Calls `take` with bytes of the datagram of the last completion, a [`Completion::Front`] with this packet: those of
    /// `part`, which lies within the datagram. Doesn't call it if the rest was given up, or `part` lies elsewhere.
    fn take_rest(
        &mut self,
        packet: &Self::Packet,
        part: Range<usize>,
        take: impl FnOnce(CopySource<'_>),
    ) {
        take(packet.as_ref().get(part).unwrap_or_default().into());
    }

    /// Copies the rest of the datagram of the last completion, a [`Completion::Front`] of this length, behind the front in its
    /// packet, which stays.
    fn land(&mut self, packet: &mut Self::Packet, length: usize) {
        let _ = (packet, length);
    }

    /// Advances the device to `now` and takes one completion.
    fn poll(&mut self, now: Time) -> Option<Completion<Self::Packet>>;

    /// When [`poll`](Self::poll) should next be called if nothing is posted before, if that is known.
    /// Devices with a clock of their own return `None`.
    fn next_event(&self) -> Option<Time>;

    /// The descriptor of a [waitable](QueuePairOptions::waitable) queue pair, for poll, select and epoll;
    /// `None` for any other. It is readable when [`poll`](Self::poll) may find something that
    /// [`arm`](Self::arm) has not seen. The caller only waits for it, and neither reads nor writes it.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Prepares for sleep. After [`Armed::Quiet`] a thread may sleep on [`wait_fd`](Self::wait_fd): from now
    /// on, the descriptor becomes readable when a completion, a datagram or an answer arrives. It may
    /// also become readable without a reason, and then stays so until the next call of `arm`.
    ///
    /// It holds until the next call of `arm`, whatever else is called meanwhile. If a post leaves
    /// something for [`poll`](Self::poll) to do, either the descriptor becomes readable or
    /// [`next_event`](Self::next_event) is due.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] if the queue pair isn't waitable; [`DeviceError::System`].
    fn arm(&mut self, now: Time) -> Result<Armed, DeviceError> {
        let _ = now;
        Err(DeviceError::Unsupported { operation: "waiting" })
    }
}

/// An opened network interface.
pub trait Device {
    /// Its queue pairs.
    type QueuePair: QueuePair<Region = Self::Region>;
    /// Its memory regions.
    type Region: Region;

    /// Its identity and limits.
    fn attributes(&self) -> &DeviceAttributes;

    /// Its global identifier.
    fn gid(&self) -> Gid;

    /// Whether it may reach another interface; `false` if it certainly doesn't, as one of another link.
    fn reaches(&self, gid: Gid) -> bool {
        let _ = gid;
        true
    }

    /// Creates a queue pair.
    ///
    /// # Errors
    /// [`DeviceError::LimitReached`], [`DeviceError::TooLong`] for a depth above the device's,
    /// [`DeviceError::System`].
    fn create_queue_pair(&self, options: QueuePairOptions) -> Result<Self::QueuePair, DeviceError>;

    /// Registers memory, which then belongs to the region.
    ///
    /// # Errors
    /// [`DeviceError::LimitReached`], [`DeviceError::TooLong`], with the memory.
    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<Self::Region, RegisterError>;

    /// Allocates memory, all zero, and registers it: where remote interfaces access it best, if the device knows of
    /// such memory, as the box of [`register`](Self::register) otherwise.
    ///
    /// # Errors
    /// As for [`register`](Self::register); [`DeviceError::System`] for want of memory.
    fn allocate(&self, length: usize, access: Access) -> Result<Self::Region, DeviceError> {
        self.register(zeroed(length)?, access).map_err(|refused| refused.error)
    }

    /// Registers memory that somebody else owns, where it is. The region holds a handle of it.
    ///
    /// # Errors
    /// As for [`register`](Self::register); [`DeviceError::Unsupported`], which is the default.
    fn register_foreign(
        &self,
        memory: &ForeignMemory,
        access: Access,
    ) -> Result<Self::Region, DeviceError> {
        let _ = (memory, access);
        Err(DeviceError::Unsupported { operation: "registration of foreign memory" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_displays_as_ipv6() {
        let mut gid = Gid::ZERO;
        gid.0[0] = 0xfe;
        gid.0[1] = 0x80;
        gid.0[15] = 1;
        assert_eq!(format!("{gid}"), "fe80::1");
    }
}
