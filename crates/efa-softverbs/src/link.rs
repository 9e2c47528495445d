//! The link under a device: shared memory between processes of a host, or TCP between hosts.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use efa_device::{
    Access, AddressHandle, Armed, Completion, Destination, Device as _, DeviceAttributes,
    DeviceError, Gid, PostError, Qkey, QueuePair as _, QueuePairAddress, QueuePairOptions, Rdma,
    RdmaRequest, RegisterError, SendRequest, Time,
};
use efa_sim::record::SharedSink;
use efa_sim::region::KeyTable;
use efa_sim::shm::{ShmDevice, ShmOptions, ShmQueuePair};
use efa_sim::tcp::{TcpDevice, TcpOptions, TcpQueuePair};
use efa_sim::{KeptNumber, SoftRegion};

use crate::device::MAX_RECEIVE_ENTRIES;
use crate::settings::{LinkSettings, Settings};

/// Pause before another attempt at a receiver without buffers, once it has had some.
///
/// Programs post their first buffers when they first poll, which takes them long on a busy machine. If
/// a sender's retries ran out by then, it would see an error and might not poll again: `fi_pingpong`
/// waits for something else by then, and its peer would wait without end for the message.
const RNR_DELAY: Duration = Duration::from_millis(200);
/// Most senders to a queue pair of the shm link; one that requests reads or writes from it counts twice. The file of a
/// queue pair has 64 bytes for each.
const SENDERS: usize = 1024;
/// TCP ports of queue pairs, above the ephemeral ports of Linux.
const PORTS: std::ops::RangeInclusive<u16> = 0xefa0..=0xefa0 + 511;
/// The address on the tcp link if the settings have none.
pub(crate) const DEFAULT_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// An opened link.
#[derive(Clone, Debug)]
pub(crate) enum Link {
    Shm(ShmDevice),
    Tcp(TcpDevice),
}

/// A queue pair of a link.
#[derive(Debug)]
pub(crate) enum LinkQueuePair {
    Shm(Box<ShmQueuePair>),
    Tcp(Box<TcpQueuePair>),
}

/// Runs the same expression for each link.
macro_rules! each {
    ($kind:ident, $on:expr, $name:ident => $call:expr) => {
        match $on {
            $kind::Shm($name) => $call,
            $kind::Tcp($name) => $call,
        }
    };
}

impl Link {
    /// Whether what arrives is taken by this process alone, also reads and writes of peers; on others the peers read and
    /// write themselves.
    pub(crate) fn is_served(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// Opens the link of device `index`.
    pub(crate) fn open(
        settings: &Settings,
        index: usize,
        capture: Option<SharedSink>,
    ) -> Result<Self, DeviceError> {
        let (read, write) = (settings.rdma_read, settings.rdma_write);
        let number = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
        let address_handles = number(settings.limits.address_handles);
        // And `Device::empty_region`.
        let regions = number(settings.limits.regions).saturating_add(1);
        let rdma = Rdma { read, write, unsolicited_write_receive: settings.unsolicited_writes };
        match &settings.link {
            LinkSettings::Shm => {
                let mut options = ShmOptions::new(settings.host(index));
                options.directory.clone_from(&settings.directory);
                options.mtu = settings.mtu;
                options.max_peers = SENDERS;
                options.capture = capture;
                options.rnr_delay = RNR_DELAY;
                options.rnr_at_start = false;
                options.rdma = rdma;
                options.max_receive = MAX_RECEIVE_ENTRIES;
                options.max_address_handles = address_handles;
                options.max_regions = regions;
                options.kernel_copies = settings.copies;
                Ok(Self::Shm(ShmDevice::open(options)?))
            }
            LinkSettings::Tcp { address } => {
                let mut options = TcpOptions::new(address.unwrap_or(DEFAULT_ADDRESS));
                options.ports = Some(PORTS);
                options.mtu = settings.mtu;
                options.capture = capture;
                options.rnr_delay = RNR_DELAY;
                options.rnr_at_start = false;
                options.rdma = rdma;
                options.max_receive = MAX_RECEIVE_ENTRIES;
                options.max_address_handles = address_handles;
                options.max_regions = regions;
                Ok(Self::Tcp(TcpDevice::open(options)?))
            }
        }
    }

    pub(crate) fn attributes(&self) -> &DeviceAttributes {
        each!(Self, self, link => link.attributes())
    }

    /// Why the device offers no RDMA although the settings ask for it.
    pub(crate) fn rdma_obstacle(&self) -> Option<&str> {
        match self {
            Self::Shm(link) => link.rdma_obstacle(),
            Self::Tcp(_) => None,
        }
    }

    /// The `max_qp` of the device. Programs find a queue pair in a table of this size by the lower bits
    /// of its number, so it spans all numbers of the link.
    pub(crate) fn max_queue_pairs(&self) -> usize {
        match self {
            Self::Shm(_) => 1 << 16,
            Self::Tcp(_) => PORTS.len(),
        }
    }

    pub(crate) fn gid(&self) -> Gid {
        each!(Self, self, link => link.gid())
    }

    #[inline]
    pub(crate) fn keys(&self) -> &KeyTable {
        each!(Self, self, link => link.keys())
    }

    pub(crate) fn register(
        &self,
        memory: Box<[u8]>,
        access: Access,
    ) -> Result<SoftRegion, RegisterError> {
        each!(Self, self, link => link.register(memory, access))
    }

    /// A protection domain, with address handles of its own.
    pub(crate) fn domain(&self) -> Self {
        match self {
            Self::Shm(link) => Self::Shm(link.domain()),
            Self::Tcp(link) => Self::Tcp(link.domain()),
        }
    }

    pub(crate) fn create_address_handle(&self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        each!(Self, self, link => link.create_address_handle(gid))
    }

    pub(crate) fn destroy_address_handle(&self, handle: AddressHandle) {
        each!(Self, self, link => link.destroy_address_handle(handle));
    }

    /// Creates a queue pair with the number of one that was retired.
    pub(crate) fn create_queue_pair_again(
        &self,
        number: &KeptNumber,
        options: QueuePairOptions,
    ) -> Result<LinkQueuePair, DeviceError> {
        Ok(match self {
            Self::Shm(link) => {
                LinkQueuePair::Shm(Box::new(link.create_queue_pair_again(number, options)?))
            }
            Self::Tcp(link) => {
                LinkQueuePair::Tcp(Box::new(link.create_queue_pair_again(number, options)?))
            }
        })
    }

    pub(crate) fn create_queue_pair(
        &self,
        options: QueuePairOptions,
    ) -> Result<LinkQueuePair, DeviceError> {
        Ok(match self {
            Self::Shm(link) => LinkQueuePair::Shm(Box::new(link.create_queue_pair(options)?)),
            Self::Tcp(link) => LinkQueuePair::Tcp(Box::new(link.create_queue_pair(options)?)),
        })
    }
}

impl LinkQueuePair {
    pub(crate) fn address(&self) -> QueuePairAddress {
        each!(Self, self, link => link.address())
    }

    /// Closes the queue pair. No other gets its number while the result exists.
    pub(crate) fn retire(self) -> Result<KeptNumber, DeviceError> {
        match self {
            Self::Shm(link) => Ok(link.retire()),
            Self::Tcp(link) => link.retire(),
        }
    }

    pub(crate) fn set_qkey(&mut self, qkey: Qkey) {
        each!(Self, self, link => link.set_qkey(qkey));
    }

    pub(crate) fn take_buffers_for_writes(&mut self) {
        each!(Self, self, link => link.take_buffers_for_writes());
    }

    pub(crate) fn limit_first_wait(&mut self) {
        each!(Self, self, link => link.limit_first_wait());
    }

    pub(crate) fn set_rnr_retry(&mut self, rnr_retry: u8) {
        each!(Self, self, link => link.set_rnr_retry(rnr_retry));
    }

    /// Prepares for sends to `to`.
    pub(crate) fn prepare(&mut self, to: Destination) -> Result<(), DeviceError> {
        each!(Self, self, link => link.prepare(to))
    }

    #[inline]
    pub(crate) fn post_send(
        &mut self,
        request: SendRequest<Box<[u8]>>,
    ) -> Result<(), PostError<Box<[u8]>>> {
        each!(Self, self, link => link.post_send(request))
    }

    /// Posts a send that is treated as if its receiver had no buffer for it.
    pub(crate) fn bounce(
        &mut self,
        request: SendRequest<Box<[u8]>>,
    ) -> Result<(), PostError<Box<[u8]>>> {
        each!(Self, self, link => link.bounce(request))
    }

    #[inline]
    pub(crate) fn post_receive(&mut self, packet: Box<[u8]>) -> Result<(), PostError<Box<[u8]>>> {
        each!(Self, self, link => link.post_receive(packet))
    }

    pub(crate) fn post_read(
        &mut self,
        request: RdmaRequest<SoftRegion>,
    ) -> Result<(), DeviceError> {
        each!(Self, self, link => link.post_read(request))
    }

    pub(crate) fn post_write(
        &mut self,
        request: RdmaRequest<SoftRegion>,
        immediate: Option<u32>,
    ) -> Result<(), DeviceError> {
        each!(Self, self, link => link.post_write(request, immediate))
    }

    #[inline]
    pub(crate) fn poll(&mut self, now: Time) -> Option<Completion<Box<[u8]>>> {
        each!(Self, self, link => link.poll(now))
    }

    /// Whether a poll is due, so far as a post has left something to do.
    pub(crate) fn is_due(&self) -> bool {
        each!(Self, self, link => link.next_event()).is_some()
    }

    /// The descriptor to sleep on, if the queue pair is waitable.
    pub(crate) fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        each!(Self, self, link => link.wait_fd())
    }

    /// Prepares for sleep.
    pub(crate) fn arm(&mut self, now: Time) -> Result<Armed, DeviceError> {
        each!(Self, self, link => link.arm(now))
    }
}
