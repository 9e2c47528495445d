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
//!          ◄─ poll(now) ────────────  Completion::{Send, Receive, Rdma, Written}
//! ```
//!
//! # Ownership
//!
//! A packet buffer belongs either to the caller or to the queue pair, never to both: posting
//! moves it in, a completion (or a refused post) moves it back, and dropping the queue pair drops
//! what it still holds. An RDMA operation holds a handle of the local [`Region`] until it completes.
//! So no order of drops can let a device write to freed memory, and users of this crate need no
//! `unsafe`.
//!
//! # What a device promises
//!
//! * A datagram of at most [`DeviceAttributes::mtu`] bytes arrives once or not at all, in any
//!   order relative to others.
//! * Every accepted send completes exactly once, with success or with a [`Status`].
//! * A receiver without a posted buffer makes the send fail with [`Status::ReceiverNotReady`]
//!   after the device's own retries; the datagram was then *not* delivered.
//! * An RDMA read or write touches remote memory after key, bounds and access were checked, or
//!   completes with [`Status::RemoteBadAddress`]. The remote side takes no part and is not told,
//!   except by the immediate data of a write.
//!
//! # Example
//!
//! A device that delivers everything to itself:
//!
//! ```
//! use std::collections::VecDeque;
//! use efa_device::*;
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

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod tag_list;

use alloc::boxed::Box;
use alloc::string::String;
use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

pub use tag_list::{NoTagList, TagChange, TagCommand, TagList, TagListLimits, TagReport};

/// A point in time, in nanoseconds since an origin that the caller chooses.
///
/// Engines and devices have no clock of their own: the caller passes `now`, real or virtual, and
/// it must never go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The origin.
    pub const ZERO: Self = Self(0);

    /// The time `nanoseconds` after the origin.
    #[must_use]
    pub const fn from_nanos(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub for Time {
    type Output = Duration;
    /// The span from `earlier` to `self`, zero if `earlier` is later.
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Global identifier of a network interface: an IPv6-shaped address of 16 bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The all-zero GID, which names no interface.
    pub const ZERO: Self = Self([0; 16]);
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        core::net::Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// Queue pair number, unique on one interface among the queue pairs that live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(pub u16);

/// Queue key: a datagram whose key differs from the target's is not delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qkey(pub u32);

/// Number of an address handle: a remote interface as this device knows it.
///
/// The same GID has the same number for as long as a handle to it lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressHandle(pub u16);

/// The caller's name for a posted send, given back with its completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId(pub u64);

/// Where a queue pair can be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QueuePairAddress {
    /// The interface.
    pub gid: Gid,
    /// The queue pair on it.
    pub qpn: Qpn,
    /// The key that senders must present.
    pub qkey: Qkey,
}

/// The target of a send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The remote interface.
    pub address_handle: AddressHandle,
    /// The queue pair there.
    pub qpn: Qpn,
    /// Its key.
    pub qkey: Qkey,
}

/// Who sent a datagram, as far as the device knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Source {
    /// The sender's interface, if an address handle for it exists here.
    pub address_handle: Option<AddressHandle>,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The sender's interface when no address handle for it exists and the device can tell.
    pub gid: Option<Gid>,
}

/// What a device is and can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Name, unique on this host.
    pub name: String,
    /// Vendor part id, for example `0xefa2`; travels in the HANDSHAKE as device version.
    pub vendor_part_id: u32,
    /// Largest datagram in bytes.
    pub mtu: usize,
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
    /// What it does to memory of remote interfaces.
    pub rdma: Rdma,
    /// Most bytes of one RDMA operation.
    pub max_rdma_size: u64,
}

/// What a device does to memory of remote interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rdma {
    /// It can read.
    pub read: bool,
    /// It can write.
    pub write: bool,
    /// The immediate data of a write takes no receive buffer at the target.
    pub unsolicited_write_receive: bool,
}

impl Rdma {
    /// Neither.
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
            max_send: 4096,
            max_receive: 8192,
            max_address_handles: 65535,
            max_regions: 1 << 14,
            max_region_size: 1 << 40,
            rdma: Rdma::NONE,
            max_rdma_size: 1 << 30,
        }
    }
}

/// Why a posted operation failed, by the numbers of the EFA device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// 1: the queue pair was destroyed or failed with the operation outstanding.
    Flushed,
    /// 2: internal error of the local queue pair.
    QueuePairInternal,
    /// 3: operation not supported.
    UnsupportedOperation,
    /// 4: no such address handle.
    BadAddressHandle,
    /// 5: local memory key not valid.
    BadLocalKey,
    /// 6: local length out of range.
    BadLength,
    /// 7: remote address, key or access not valid.
    RemoteBadAddress,
    /// 8: the remote side was reset.
    RemoteAbort,
    /// 9: no such queue pair at the remote interface.
    BadDestinationQpn,
    /// 10: the receiver had no buffer posted.
    ReceiverNotReady,
    /// 11: the datagram did not fit the receiver's buffer.
    RemoteBadLength,
    /// 12: unexpected answer of the remote side.
    BadStatus,
    /// 13: the remote side stopped answering.
    UnresponsiveRemote,
    /// 14: the remote side does not know the sender.
    UnknownPeer,
    /// 15: the remote side was never reachable.
    UnreachableRemote,
}

impl Status {
    /// The device's number for it.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Flushed => 1,
            Self::QueuePairInternal => 2,
            Self::UnsupportedOperation => 3,
            Self::BadAddressHandle => 4,
            Self::BadLocalKey => 5,
            Self::BadLength => 6,
            Self::RemoteBadAddress => 7,
            Self::RemoteAbort => 8,
            Self::BadDestinationQpn => 9,
            Self::ReceiverNotReady => 10,
            Self::RemoteBadLength => 11,
            Self::BadStatus => 12,
            Self::UnresponsiveRemote => 13,
            Self::UnknownPeer => 14,
            Self::UnreachableRemote => 15,
        }
    }

    /// What the device's number means; `None` for 0, which is success, and for numbers to come.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Flushed,
            2 => Self::QueuePairInternal,
            3 => Self::UnsupportedOperation,
            4 => Self::BadAddressHandle,
            5 => Self::BadLocalKey,
            6 => Self::BadLength,
            7 => Self::RemoteBadAddress,
            8 => Self::RemoteAbort,
            9 => Self::BadDestinationQpn,
            10 => Self::ReceiverNotReady,
            11 => Self::RemoteBadLength,
            12 => Self::BadStatus,
            13 => Self::UnresponsiveRemote,
            14 => Self::UnknownPeer,
            15 => Self::UnreachableRemote,
            _ => return None,
        })
    }

    /// Whether it says that the peer is gone: reset, unknown, silent or never there.
    #[must_use]
    pub const fn is_peer_gone(self) -> bool {
        matches!(
            self,
            Self::RemoteAbort
                | Self::BadDestinationQpn
                | Self::UnresponsiveRemote
                | Self::UnreachableRemote
        )
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flushed => "flushed",
            Self::QueuePairInternal => "internal error of the queue pair",
            Self::UnsupportedOperation => "operation not supported",
            Self::BadAddressHandle => "no such address handle",
            Self::BadLocalKey => "local memory key not valid",
            Self::BadLength => "local length out of range",
            Self::RemoteBadAddress => "remote address, key or access not valid",
            Self::RemoteAbort => "the remote side was reset",
            Self::BadDestinationQpn => "no such queue pair at the remote side",
            Self::ReceiverNotReady => "receiver not ready",
            Self::RemoteBadLength => "the datagram did not fit the receiver's buffer",
            Self::BadStatus => "unexpected answer of the remote side",
            Self::UnresponsiveRemote => "the remote side stopped answering",
            Self::UnknownPeer => "the remote side does not know the sender",
            Self::UnreachableRemote => "the remote side was never reachable",
        })
    }
}

/// Why a call of the device failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The queue holds as much as it can; try again after completions.
    #[error("queue full: {depth} outstanding")]
    QueueFull {
        /// Its depth.
        depth: usize,
    },
    /// A length is out of range.
    #[error("{length} bytes given, at most {limit} allowed")]
    TooLong {
        /// What was asked for.
        length: u64,
        /// What the device allows.
        limit: u64,
    },
    /// The address names no interface.
    #[error("not an address of an interface: {gid}")]
    BadAddress {
        /// The address.
        gid: Gid,
    },
    /// No such address handle.
    #[error("no address handle {handle:?}")]
    BadAddressHandle {
        /// The handle.
        handle: AddressHandle,
    },
    /// A range is not all in its memory region.
    #[error("bytes {offset} to {offset}+{length} are not all in a region of {region} bytes")]
    OutOfRegion {
        /// Where the range begins.
        offset: usize,
        /// Its length.
        length: usize,
        /// Length of the region.
        region: usize,
    },
    /// The device can't do this.
    #[error("the device has no {operation}")]
    Unsupported {
        /// What was asked for.
        operation: &'static str,
    },
    /// A table of the device is full.
    #[error("no room for another {object}: the limit is {limit}")]
    LimitReached {
        /// What there would be too many of.
        object: &'static str,
        /// How many there can be.
        limit: usize,
    },
    /// The device is not there.
    #[error("no device: {reason}")]
    Absent {
        /// What was looked for and not found.
        reason: String,
    },
    /// The operating system refused.
    #[error("{operation} failed: {reason}")]
    System {
        /// The call and its object.
        operation: String,
        /// The error number of the operating system.
        errno: i32,
        /// The operating system's words for it, with the number.
        reason: String,
    },
    /// Something on the host is not as this device left it.
    #[error("{object}: {reason}")]
    Inconsistent {
        /// The file or object.
        object: String,
        /// What is wrong.
        reason: String,
    },
}

/// A post that was refused; the packet comes back.
#[derive(Debug)]
pub struct PostError<P> {
    /// Why.
    pub error: DeviceError,
    /// The packet.
    pub packet: P,
}

/// A datagram to be sent.
#[derive(Debug)]
pub struct SendRequest<P> {
    /// The caller's name for it.
    pub id: WorkId,
    /// The buffer; its first `length` bytes are sent.
    pub packet: P,
    /// Bytes to send.
    pub length: usize,
    /// Where to.
    pub destination: Destination,
    /// 32 bits that the target's completion tells, beside the datagram.
    pub immediate: Option<u32>,
}

/// A part of a memory region on this side.
#[derive(Clone, Debug)]
pub struct RegionRange<R> {
    /// The region.
    pub region: R,
    /// Where the part begins.
    pub offset: usize,
    /// Its length in bytes.
    pub length: usize,
}

impl<R: Region> RegionRange<R> {
    /// Whether all of it lies in the region.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRegion`].
    pub fn check(&self) -> Result<(), DeviceError> {
        let Self { offset, length, .. } = *self;
        let region = self.region.length();
        let fits = offset.checked_add(length).is_some_and(|end| end <= region);
        if fits { Ok(()) } else { Err(DeviceError::OutOfRegion { offset, length, region }) }
    }
}

/// Memory of a remote interface, as it names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// Address of the first byte.
    pub address: u64,
    /// Key of the region that it lies in.
    pub key: u32,
}

/// An RDMA read or write.
#[derive(Clone, Debug)]
pub struct RdmaRequest<R> {
    /// The caller's name for it.
    pub id: WorkId,
    /// The memory on this side, which the device holds until the operation completes.
    pub local: RegionRange<R>,
    /// As many bytes on the other side.
    pub remote: RemoteMemory,
    /// A queue pair on the other side. Its key is not checked.
    pub destination: Destination,
}

/// Something that a queue pair finished.
#[derive(Debug)]
pub enum Completion<P> {
    /// A send ended; `Ok` means that the datagram lies in a receive buffer of the target.
    Send {
        /// The name given when it was posted.
        id: WorkId,
        /// Its buffer.
        packet: P,
        /// How it ended.
        result: Result<(), Status>,
    },
    /// A datagram arrived.
    Receive {
        /// The buffer it lies in.
        packet: P,
        /// Its length in bytes.
        length: usize,
        /// Who sent it.
        source: Source,
        /// What was sent beside it.
        immediate: Option<u32>,
    },
    /// An RDMA read or write ended. After a failure any part of it may have been done.
    Rdma {
        /// The name given when it was posted.
        id: WorkId,
        /// How it ended.
        result: Result<(), Status>,
    },
    /// A remote interface wrote into memory here and sent immediate data with that.
    Written {
        /// The immediate data.
        immediate: u32,
        /// Bytes written.
        length: u64,
        /// Who wrote.
        source: Source,
        /// The receive buffer that it took, unless [`Rdma::unsolicited_write_receive`].
        packet: Option<P>,
    },
}

/// How a queue pair is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairOptions {
    /// The key that senders must present.
    pub qkey: Qkey,
    /// Most sends outstanding, at most [`DeviceAttributes::max_send`].
    pub send_depth: usize,
    /// Most receive buffers posted, at most [`DeviceAttributes::max_receive`].
    pub receive_depth: usize,
    /// How often the device tries again when the receiver is not ready; 7 means for ever.
    pub rnr_retry: u8,
}

impl Default for QueuePairOptions {
    fn default() -> Self {
        Self { qkey: Qkey(0), send_depth: 1024, receive_depth: 1024, rnr_retry: 3 }
    }
}

/// One unordered reliable datagram endpoint.
pub trait QueuePair {
    /// A packet buffer of [`DeviceAttributes::mtu`] bytes that the device can reach.
    type Packet: AsRef<[u8]> + AsMut<[u8]> + fmt::Debug;
    /// Memory that the device can read and write.
    type Region: Region;
    /// Its tag list: [`NoTagList`], unless the device matches tagged messages itself.
    type TagList: TagList;

    /// Whether the receive buffers are the application's, which gets them with the messages in them.
    /// No device says so, but a caller that wraps a queue pair may, for an engine that knows of it.
    const IN_PLACE: bool = false;

    /// The device's attributes, with `max_send` and `max_receive` as granted to this queue pair.
    fn attributes(&self) -> &DeviceAttributes;

    /// Where this queue pair can be reached.
    fn address(&self) -> QueuePairAddress;

    /// The handle for an interface; a second call for one GID gives the same handle and counts it.
    ///
    /// # Errors
    /// [`DeviceError::BadAddress`] for the zero GID, [`DeviceError::LimitReached`].
    fn create_address_handle(&mut self, gid: Gid) -> Result<AddressHandle, DeviceError>;

    /// Gives one count of a handle back. Unknown handles are ignored.
    fn destroy_address_handle(&mut self, handle: AddressHandle);

    /// A new packet buffer. Dropping it gives the memory back.
    ///
    /// # Errors
    /// When the device can't register more memory.
    fn allocate_packet(&mut self) -> Result<Self::Packet, DeviceError>;

    /// Queues a datagram.
    ///
    /// # Errors
    /// [`DeviceError::QueueFull`] when `max_send` sends are outstanding, [`DeviceError::TooLong`],
    /// [`DeviceError::BadAddressHandle`]. Nothing was queued then.
    fn post_send(
        &mut self,
        request: SendRequest<Self::Packet>,
    ) -> Result<(), PostError<Self::Packet>>;

    /// Queues a buffer for a datagram to come.
    ///
    /// # Errors
    /// [`DeviceError::QueueFull`] when `max_receive` buffers are posted.
    fn post_receive(&mut self, packet: Self::Packet) -> Result<(), PostError<Self::Packet>>;

    /// Registers memory, which belongs to the region from then on.
    ///
    /// # Errors
    /// [`DeviceError::LimitReached`], [`DeviceError::TooLong`], [`DeviceError::Unsupported`]; the
    /// memory comes back. A device without RDMA needs no method of its own, here and in the three
    /// that follow.
    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<Self::Region, RegisterError> {
        let _ = access;
        Err(RegisterError { error: DeviceError::Unsupported { operation: "registration" }, memory })
    }

    /// The registered memory that remote interfaces name by `key`, whichever handle of the device
    /// registered it.
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

    /// Queues a write of `local` into remote memory. It counts as a send. With `immediate` the
    /// target is told by a [`Completion::Written`].
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

    /// From here to [`release`](Self::release) the device may keep posts back, so that several go with
    /// one doorbell. Only a caller that releases soon may call it. Posts are accepted or refused as
    /// ever; one that was accepted and can't be done after all completes with a failure. A device that
    /// gains nothing by it needs no method of its own, here and in the next.
    fn hold(&mut self) {}

    /// Posts that were kept back since [`hold`](Self::hold) go now.
    fn release(&mut self) {}

    /// The tag list of a device that matches tagged messages itself; `None` for all others.
    fn tag_list(&mut self) -> Option<&mut Self::TagList> {
        None
    }

    /// Moves the device on to `now` and takes one completion.
    fn poll(&mut self, now: Time) -> Option<Completion<Self::Packet>>;

    /// When [`poll`](Self::poll) should next be called although nothing was posted, if that is
    /// known; devices with a clock of their own answer `None`.
    fn next_event(&self) -> Option<Time>;
}

/// What may be done with a memory region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access {
    /// Remote interfaces may read it.
    pub remote_read: bool,
    /// Remote interfaces may write it.
    pub remote_write: bool,
}

/// Registered memory. It stays registered until the last clone of its handle is dropped.
///
/// Remote interfaces may read and write it at any time, so it is reached by copying and never by
/// reference.
pub trait Region: Clone + fmt::Debug {
    /// Length in bytes.
    fn length(&self) -> usize;
    /// Address of the first byte as remote interfaces name it.
    fn remote_address(&self) -> u64;
    /// The key that remote interfaces present.
    fn remote_key(&self) -> u32;
    /// What was allowed.
    fn access(&self) -> Access;
    /// Copies bytes out, from `offset` on; gives how many there were.
    fn read(&self, offset: usize, into: &mut [u8]) -> usize;
    /// Copies bytes in, from `offset` on; gives how many fitted.
    fn write(&self, offset: usize, from: &[u8]) -> usize;
    /// Copies `bytes.len()` bytes out, from `offset` on, has them changed and copies them back;
    /// gives how many there were. No other call of a method of the region comes in between. What
    /// remote interfaces do may.
    fn update(&self, offset: usize, bytes: &mut [u8], change: impl FnOnce(&mut [u8])) -> usize;
    /// Ends the registration and gives the memory back.
    ///
    /// # Errors
    /// The handle itself, if it isn't the only one: another clone, or an operation of the device,
    /// has one too. Likewise if a remote interface doesn't come to an end with what it has begun.
    fn reclaim(self) -> Result<Box<[u8]>, Self>;
}

/// The regions of a device without RDMA: there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRegion {}

impl Region for NoRegion {
    fn length(&self) -> usize {
        match *self {}
    }
    fn remote_address(&self) -> u64 {
        match *self {}
    }
    fn remote_key(&self) -> u32 {
        match *self {}
    }
    fn access(&self) -> Access {
        match *self {}
    }
    fn read(&self, _: usize, _: &mut [u8]) -> usize {
        match *self {}
    }
    fn write(&self, _: usize, _: &[u8]) -> usize {
        match *self {}
    }
    fn update(&self, _: usize, _: &mut [u8], _: impl FnOnce(&mut [u8])) -> usize {
        match *self {}
    }
    fn reclaim(self) -> Result<Box<[u8]>, Self> {
        match self {}
    }
}

/// A registration that was refused; the memory comes back.
#[derive(Debug)]
pub struct RegisterError {
    /// Why.
    pub error: DeviceError,
    /// The memory.
    pub memory: Box<[u8]>,
}

/// An opened network interface.
pub trait Device {
    /// Its queue pairs.
    type QueuePair: QueuePair<Region = Self::Region>;
    /// Its memory regions.
    type Region: Region;

    /// What it is and can do.
    fn attributes(&self) -> &DeviceAttributes;

    /// Its global identifier.
    fn gid(&self) -> Gid;

    /// Makes a queue pair.
    ///
    /// # Errors
    /// [`DeviceError::LimitReached`], [`DeviceError::TooLong`] for a depth above the attributes',
    /// [`DeviceError::System`].
    fn create_queue_pair(&self, options: QueuePairOptions) -> Result<Self::QueuePair, DeviceError>;

    /// Registers memory, which belongs to the region from then on.
    ///
    /// # Errors
    /// [`DeviceError::LimitReached`], [`DeviceError::TooLong`]; the memory comes back.
    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<Self::Region, RegisterError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_saturates() {
        let end = Time::from_nanos(u64::MAX);
        assert_eq!(end + Duration::from_secs(1), end);
        assert_eq!(Time::ZERO - end, Duration::ZERO);
        assert_eq!(Time::from_nanos(7) - Time::from_nanos(4), Duration::from_nanos(3));
    }

    #[test]
    fn gid_reads_as_ipv6() {
        let mut gid = Gid::ZERO;
        gid.0[0] = 0xfe;
        gid.0[1] = 0x80;
        gid.0[15] = 1;
        assert_eq!(alloc::format!("{gid}"), "fe80::1");
    }

    #[test]
    fn every_number_has_its_status() {
        for code in 1..=15 {
            assert_eq!(Status::from_code(code).map(Status::code), Some(code));
        }
        assert_eq!((Status::from_code(0), Status::from_code(16)), (None, None));
    }

    #[test]
    fn gone_peers() {
        assert!(Status::BadDestinationQpn.is_peer_gone());
        assert!(!Status::ReceiverNotReady.is_peer_gone());
    }
}
