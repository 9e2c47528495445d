//! A requester and a target on one of the links.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use efa_device::*;
use efa_sim::local::{LocalFabric, LocalOptions};
use efa_sim::shm::{ShmDevice, ShmOptions};
use efa_sim::tcp::{TcpDevice, TcpOptions};
use efa_sim::{SoftDevice, SoftQueuePair, SoftRegion};

use crate::common::Directory;

/// A guard against hanging; nothing is expected to take a noticeable part of it.
const DEADLINE: Duration = Duration::from_secs(60);
/// Polls after the expected completions in which no other may come.
const QUIET_POLLS: u32 = 100;

pub(crate) const READ: Access = Access { remote_read: true, remote_write: false };
pub(crate) const WRITE: Access = Access { remote_read: false, remote_write: true };
pub(crate) const ALL: Access = Access { remote_read: true, remote_write: true };

pub(crate) type Done = Completion<Box<[u8]>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Local,
    Shm,
    /// The shm link without copies by the kernel.
    Requests,
    Tcp,
}

/// Options that all links have, and what the target's memory allows.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    pub(crate) access: Access,
    pub(crate) rdma: Rdma,
    pub(crate) max_rdma_size: u64,
    pub(crate) mtu: usize,
    pub(crate) rnr_retry: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self { access: ALL, rdma: Rdma::READ_WRITE, max_rdma_size: 1 << 30, mtu: 256, rnr_retry: 3 }
    }
}

/// A requester, and a target with a region of 64 bytes that count up.
pub(crate) struct Pair {
    now: Time,
    pub(crate) requester: SoftQueuePair,
    pub(crate) target: SoftQueuePair,
    pub(crate) target_device: SoftDevice,
    pub(crate) to: Destination,
    /// The target's handle for the requester, without which it refuses reads and writes.
    pub(crate) requester_at_target: AddressHandle,
    pub(crate) local: SoftRegion,
    pub(crate) remote: SoftRegion,
    /// Of the local link.
    pub(crate) fabric: Option<LocalFabric>,
    /// Of the shm link.
    pub(crate) directory: Option<Directory>,
}

impl Pair {
    pub(crate) fn new(link: Link) -> Self {
        Self::with(link, Options::default())
    }

    pub(crate) fn with(link: Link, options: Options) -> Self {
        let Options { access, rdma, max_rdma_size, mtu, rnr_retry } = options;
        let (mut fabric, mut directory) = (None, None);
        let devices: [SoftDevice; 2] = match link {
            Link::Local => {
                let options = LocalOptions::default().with(|options| {
                    options.rdma = rdma;
                    options.max_rdma_size = max_rdma_size;
                    options.mtu = mtu;
                });
                let fabric = fabric.insert(LocalFabric::new(options));
                [0, 1].map(|_| fabric.open().into())
            }
            Link::Shm | Link::Requests => {
                let directory = directory.insert(Directory::new());
                [0, 1].map(|_| {
                    let mut options = ShmOptions::new("host");
                    options.directory = Some(directory.path().to_path_buf());
                    (options.rdma, options.max_rdma_size, options.mtu) = (rdma, max_rdma_size, mtu);
                    options.kernel_copies = link == Link::Shm;
                    ShmDevice::open(options).unwrap().into()
                })
            }
            Link::Tcp => [0, 1].map(|_| {
                let mut options = TcpOptions::new(Ipv4Addr::LOCALHOST);
                (options.rdma, options.max_rdma_size, options.mtu) = (rdma, max_rdma_size, mtu);
                options.reorder = Some(7);
                TcpDevice::open(options).unwrap().into()
            }),
        };
        let options = QueuePairOptions::default().with(|options| {
            options.send_depth = 4;
            options.rnr_retry = rnr_retry;
        });
        let mut requester = devices[0].create_queue_pair(options).unwrap();
        let mut target = devices[1].create_queue_pair(options).unwrap();
        let QueuePairAddress { gid, qpn, qkey } = target.address();
        let address_handle = requester.create_address_handle(gid).unwrap();
        let requester_at_target = target.create_address_handle(requester.address().gid).unwrap();
        let local = requester.register(vec![0xee; 64].into(), Access::default()).unwrap();
        let remote = target.register((0..64).collect(), access).unwrap();
        let [_, target_device] = devices;
        Self {
            now: Time::ZERO,
            requester,
            target,
            target_device,
            to: Destination { address_handle, qpn, qkey },
            requester_at_target,
            local,
            remote,
            fabric,
            directory,
        }
    }

    /// A request for `local`, offset and length, and the remote bytes from the offset `remote` on.
    pub(crate) fn request(
        &self,
        id: u64,
        local: (usize, usize),
        remote: u64,
    ) -> RdmaRequest<SoftRegion> {
        let (offset, length) = local;
        RdmaRequest {
            id: WorkId(id),
            local: RegionRange { region: self.local.clone(), offset, length },
            remote: RemoteMemory {
                address: self.remote.remote_address().wrapping_add(remote),
                key: self.remote.remote_key(),
            },
            destination: self.to,
        }
    }

    pub(crate) fn send(&mut self, id: u64, length: usize, immediate: Option<u32>) {
        let packet = self.requester.allocate_packet().unwrap();
        let (id, destination) = (WorkId(id), self.to);
        self.requester
            .post_send(SendRequest { id, packet, length, destination, immediate })
            .unwrap();
    }

    pub(crate) fn post_receive(&mut self) {
        let buffer = self.target.allocate_packet().unwrap();
        self.target.post_receive(buffer).unwrap();
    }

    fn poll(&mut self, done: &mut [Vec<Done>; 2]) {
        self.now += Duration::from_micros(10);
        for (qp, done) in [&mut self.requester, &mut self.target].into_iter().zip(done) {
            done.extend(qp.poll(self.now));
        }
    }

    /// Polls both until the requester and the target have exactly this many completions.
    pub(crate) fn settle(&mut self, expected: [usize; 2]) -> [Vec<Done>; 2] {
        let start = Instant::now();
        let mut done = [Vec::new(), Vec::new()];
        while done.each_ref().map(Vec::len) != expected {
            assert!(start.elapsed() < DEADLINE, "{done:?}");
            self.poll(&mut done);
        }
        (0..QUIET_POLLS).for_each(|_| self.poll(&mut done));
        assert_eq!(done.each_ref().map(Vec::len), expected, "{done:?}");
        done
    }

    /// The results of `count` RDMA operations by id. The target gets no completion.
    pub(crate) fn results(&mut self, count: usize) -> Vec<(u64, Result<(), Status>)> {
        let [done, _] = self.settle([count, 0]);
        let result = |completion| match completion {
            Completion::Rdma { id, result } => (id.0, result),
            other => panic!("{other:?}"),
        };
        let mut results: Vec<_> = done.into_iter().map(result).collect();
        results.sort_by_key(|result| result.0);
        results
    }
}

pub(crate) fn bytes(region: &SoftRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.length()];
    region.read(0, &mut bytes);
    bytes
}
