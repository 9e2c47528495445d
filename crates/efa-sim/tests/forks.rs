//! Forks without `exec` by a process with open devices, on the shm and the tcp link.
//!
//! Each child ends after [`LIMIT`] seconds at most, and is reaped by its number.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use common::Directory;
use efa_device::*;
use efa_sim::address_table::{TableReader, TableWriter};
use efa_sim::shm::{ShmDevice, ShmOptions};
use efa_sim::tcp::{TcpDevice, TcpOptions};
use efa_sim::{SoftDevice, SoftQueuePair, SoftRegion};

const LIMIT: u32 = 30;
const LENGTH: usize = 20_000;
const ALL: Access = Access { remote_read: true, remote_write: true };

/// Runs `child` in a forked process, and `parent` meanwhile in this one. Returns how the child ended.
fn fork(child: impl FnOnce() -> i32, parent: impl FnOnce()) -> i32 {
    // SAFETY: the child calls this library, which is made for it, and the allocator, for which glibc is. It
    // ends by `_exit` or `exit`.
    let number = unsafe { libc::fork() };
    assert!(number >= 0);
    if number == 0 {
        // SAFETY: it takes no pointer; the signal ends the process.
        unsafe { libc::alarm(LIMIT) };
        let code = catch_unwind(AssertUnwindSafe(child)).unwrap_or(77);
        // SAFETY: `_exit` has no preconditions.
        unsafe { libc::_exit(code) };
    }
    let went = catch_unwind(AssertUnwindSafe(parent));
    let mut status = 0;
    // SAFETY: `status` is writable, and the child was not waited for.
    assert_eq!(unsafe { libc::waitpid(number, &raw mut status, 0) }, number);
    went.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    status
}

/// Two connected queue pairs of two devices.
struct Pair {
    devices: [SoftDevice; 2],
    ends: [SoftQueuePair; 2],
    handles: [AddressHandle; 2],
    offered: SoftRegion,
    start: Instant,
    sent: u64,
}

impl Pair {
    fn new(open: &dyn Fn() -> SoftDevice) -> Self {
        let devices = [open(), open()];
        let mut ends = devices.each_ref().map(|device| {
            let options = QueuePairOptions::default().with(|options| options.rnr_retry = 7);
            device.create_queue_pair(options).unwrap()
        });
        for end in &mut ends {
            for _ in 0..16 {
                let packet = end.allocate_packet().unwrap();
                end.post_receive(packet).unwrap();
            }
        }
        let gids = [devices[1].gid(), devices[0].gid()];
        let handles = [0, 1].map(|at| ends[at].create_address_handle(gids[at]).unwrap());
        let offered = devices[1].register(vec![7; LENGTH].into(), ALL).unwrap();
        Self { devices, ends, handles, offered, start: Instant::now(), sent: 0 }
    }

    fn destination(&self, from: usize) -> Destination {
        let QueuePairAddress { qpn, qkey, .. } = self.ends[1 - from].address();
        Destination { address_handle: self.handles[from], qpn, qkey }
    }

    /// Sends a message of its own from one end to the other.
    fn send(&mut self, from: usize) -> Result<(), DeviceError> {
        let mut packet = self.ends[from].allocate_packet()?;
        packet[..8].copy_from_slice(&self.sent.to_le_bytes());
        let destination = self.destination(from);
        let request =
            SendRequest { id: WorkId(self.sent), packet, length: 8, destination, immediate: None };
        self.ends[from].post_send(request).map_err(|refused| refused.error)?;
        self.sent += 1;
        Ok(())
    }

    fn poll(&mut self, at: usize) -> Option<Completion<Box<[u8]>>> {
        let elapsed = self.start.elapsed();
        assert!(elapsed < Duration::from_secs(LIMIT.into()), "no progress within the limit");
        self.ends[at].poll(Time::ZERO + elapsed)
    }

    /// Waits until `sends` have completed and that many messages were received, from `first` on.
    fn finish(&mut self, first: u64) {
        let expected: Vec<u64> = (first..self.sent).collect();
        let (mut completed, mut received) = (Vec::new(), Vec::new());
        while completed.len() < expected.len() || received.len() < expected.len() {
            for at in 0..2 {
                match self.poll(at) {
                    Some(Completion::Send { id, result, .. }) => {
                        assert_eq!(result, Ok(()));
                        completed.push(id.0);
                    }
                    Some(Completion::Receive { packet, length, .. }) => {
                        received.push(u64::from_le_bytes(packet[..length].try_into().unwrap()));
                        self.ends[at].post_receive(packet).unwrap();
                    }
                    None => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        completed.sort_unstable();
        received.sort_unstable();
        assert_eq!((completed, received), (expected.clone(), expected));
    }

    fn request(&self, local: &SoftRegion) -> RdmaRequest<SoftRegion> {
        let remote =
            RemoteMemory { address: self.offered.remote_address(), key: self.offered.remote_key() };
        RdmaRequest {
            id: WorkId(u64::MAX),
            local: RegionRange { region: local.clone(), offset: 0, length: LENGTH },
            remote,
            destination: self.destination(0),
        }
    }

    /// Messages both ways, a write and a read.
    fn exchange(&mut self) {
        for _ in 0..5 {
            let first = self.sent;
            for from in [0, 1, 1, 0, 0, 1, 0, 1] {
                self.send(from).unwrap();
            }
            self.finish(first);
        }
        let bytes = vec![self.sent as u8; LENGTH];
        let (source, target) = (bytes.clone(), vec![0; LENGTH]);
        let source = self.devices[0].register(source.into(), ALL).unwrap();
        let target = self.devices[0].register(target.into(), ALL).unwrap();
        for (write, local) in [(true, &source), (false, &target)] {
            let request = self.request(local);
            match write {
                true => self.ends[0].post_write(request, None).unwrap(),
                false => self.ends[0].post_read(request).unwrap(),
            }
            loop {
                match [self.poll(0), self.poll(1)] {
                    [None, None] => {}
                    [Some(Completion::Rdma { result: Ok(()), .. }), None] => break,
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(*target.reclaim().unwrap(), bytes);
    }

    /// What a forked child may do with its copy.
    fn use_as_child(mut self, open: &dyn Fn() -> SoftDevice) {
        let mut errors = Vec::new();
        for at in [0, 1] {
            // The first post may be accepted, and complete with an error.
            for _ in 0..4 {
                match self.send(at) {
                    Ok(()) => {}
                    Err(error) => errors.push(error.to_string()),
                }
                for _ in 0..2000 {
                    match self.poll(at) {
                        None | Some(Completion::Send { result: Err(_), .. }) => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
        assert!(errors.len() >= 2, "{errors:?}");
        for device in &self.devices {
            let refused = device.create_queue_pair(QueuePairOptions::default());
            errors.push(refused.unwrap_err().to_string());
        }
        let local = self.devices[0].register(vec![9; LENGTH].into(), ALL).unwrap();
        let request = self.request(&local);
        for posted in
            [self.ends[0].post_write(request.clone(), None), self.ends[0].post_read(request)]
        {
            match posted {
                Ok(()) => (0..2000).for_each(|_| {
                    let done = self.poll(0);
                    let good = matches!(done, Some(Completion::Rdma { result: Ok(()), .. }));
                    assert!(!good, "{done:?}");
                }),
                Err(error) => errors.push(error.to_string()),
            }
        }
        for error in errors {
            assert!(error.contains("forked child"), "{error}");
        }
        drop(self);
        Pair::new(open).exchange();
    }
}

fn shm(directory: &Directory) -> impl Fn() -> SoftDevice {
    let path = directory.path().to_owned();
    move || {
        let options =
            ShmOptions::new("host").with(|options| options.directory = Some(path.clone()));
        ShmDevice::open(options).unwrap().into()
    }
}

fn tcp() -> SoftDevice {
    TcpDevice::open(TcpOptions::new(Ipv4Addr::LOCALHOST)).unwrap().into()
}

/// Forks children that do as `child` says, with messages under way and between exchanges.
fn survives(open: &dyn Fn() -> SoftDevice, child: fn(Pair, &dyn Fn() -> SoftDevice) -> i32) {
    let mut pair = Pair::new(open);
    for _ in 0..3 {
        pair.exchange();
        let first = pair.sent;
        for from in [0, 1, 0, 1] {
            pair.send(from).unwrap();
        }
        let mut pair_of_parent = None;
        let shared = std::cell::Cell::new(Some(pair));
        let status = fork(
            || child(shared.take().unwrap(), open),
            || {
                let mut pair = shared.take().unwrap();
                pair.finish(first);
                pair.exchange();
                pair_of_parent = Some(pair);
            },
        );
        assert_eq!(status, 0, "the child failed");
        pair = pair_of_parent.unwrap();
    }
    pair.exchange();
}

fn uses_its_copy(pair: Pair, open: &dyn Fn() -> SoftDevice) -> i32 {
    pair.use_as_child(open);
    0
}

fn drops_its_copy(pair: Pair, _: &dyn Fn() -> SoftDevice) -> i32 {
    drop(pair);
    0
}

fn exits_with_destructors(pair: Pair, _: &dyn Fn() -> SoftDevice) -> i32 {
    std::mem::forget(pair);
    // SAFETY: no other thread exists in this process.
    unsafe { libc::exit(0) }
}

fn files(directory: &Directory) -> Vec<String> {
    let entries = std::fs::read_dir(directory.path().join("host")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn parent_goes_on_whatever_a_forked_child_does_with_its_copy_on_shm() {
    for child in [uses_its_copy, drops_its_copy, exits_with_destructors] {
        let directory = Directory::new();
        survives(&shm(&directory), child);
        assert_eq!(files(&directory), ["gid", "next"]);
    }
}

#[test]
fn parent_goes_on_whatever_a_forked_child_does_with_its_copy_on_tcp() {
    for child in [uses_its_copy, drops_its_copy, exits_with_destructors] {
        survives(&tcp, child);
    }
}

#[test]
fn address_table_stays_when_a_forked_child_drops_its_copy() {
    let name = format!("test-{}-fork", std::process::id());
    let writer = std::cell::Cell::new(Some(TableWriter::create(&name, 1).unwrap()));
    let status = fork(
        || {
            drop(writer.take());
            0
        },
        || {},
    );
    assert_eq!(status, 0, "the child failed");
    assert!(TableReader::open(&name).is_ok());
    drop(writer);
    assert!(TableReader::open(&name).is_err());
}

/// Killed when dropped; the first process of the system reaps it.
struct Grandchild(i32);

impl Drop for Grandchild {
    fn drop(&mut self) {
        // SAFETY: it takes numbers only.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}

/// A forked child that lives on must not make others believe that its parent does.
#[test]
fn process_that_died_is_found_dead_although_its_forked_child_lives() {
    let directory = Directory::new();
    let open = shm(&directory);
    let device = open();
    let mut sender = device.create_queue_pair(QueuePairOptions::default()).unwrap();
    let handle = sender.create_address_handle(device.gid()).unwrap();
    let (mut here, mut there) = std::io::pipe().unwrap();
    let status = fork(
        || {
            let qp = open().create_queue_pair(QueuePairOptions::default()).unwrap();
            // SAFETY: as in `fork`.
            let grandchild = unsafe { libc::fork() };
            if grandchild == 0 {
                // SAFETY: neither takes a pointer; a signal ends the process.
                unsafe {
                    libc::alarm(LIMIT);
                    libc::pause();
                    libc::_exit(0)
                }
            }
            there.write_all(&grandchild.to_le_bytes()).unwrap();
            there.write_all(&qp.address().qpn.0.to_le_bytes()).unwrap();
            std::mem::forget(qp);
            0
        },
        || {},
    );
    let mut grandchild = [0; 4];
    here.read_exact(&mut grandchild).unwrap();
    let _grandchild = Grandchild(i32::from_le_bytes(grandchild));
    assert_eq!(status, 0);
    let mut number = [0; 2];
    here.read_exact(&mut number).unwrap();
    let qpn = Qpn(u16::from_le_bytes(number));
    let packet = sender.allocate_packet().unwrap();
    let destination = Destination { address_handle: handle, qpn, qkey: Qkey(0) };
    let request = SendRequest { id: WorkId(1), packet, length: 8, destination, immediate: None };
    sender.post_send(request).unwrap();
    let start = Instant::now();
    let result = loop {
        assert!(start.elapsed() < Duration::from_secs(10), "the dead process is taken to be alive");
        match sender.poll(Time::ZERO + start.elapsed()) {
            Some(Completion::Send { result, .. }) => break result,
            other => assert!(other.is_none(), "{other:?}"),
        }
    };
    // The second if the grandchild had not run yet when the message was sent.
    let dead = [Err(Status::BadDestinationQpn), Err(Status::UnresponsiveRemote)];
    assert!(dead.contains(&result), "{result:?}");
}
