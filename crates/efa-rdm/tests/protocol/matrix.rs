//! Every release with every release, by every subprotocol, under faults.
//!
//! A cell is a pair of releases, a device and an operation. It ends in the right data, or in the
//! specification's error where the peer lacks what the operation needs (section 2.1, case b); and
//! no feature is used that one of the two has not announced.
//!
//! The cell's number is its seed; a failing one prints it, and `EFA_RDM_CELL=<number>` runs it alone.

use std::time::Duration;

use efa_device::{Rdma, Region};
use efa_handshake::{Extras, Profile, Release};
use efa_rdm::{
    Accept, Atomic, AtomicOp, Config, Datatype, Level, Message, Operands, OperationError, Read,
    Remote, RmaIov, Subprotocol, Write,
};
use efa_sim::local::{Faults, LocalOptions};

use crate::buffer::{Buffer, expose};
use crate::world::{Net, pattern};

#[derive(Clone, Copy, Debug)]
enum Operation {
    Send { tag: Option<u64>, level: Level, size: usize },
    Write { cq_data: Option<u64>, level: Level, size: usize },
    Read { size: usize },
    AtomicWrite { level: Level },
    AtomicFetch,
    AtomicCompare,
}

const LEVELS: [Level; 2] = [Level::Transmit, Level::Delivery];

/// With sizes for each subprotocol: see [`config`].
fn operations() -> Vec<Operation> {
    let mut all = Vec::new();
    for level in LEVELS {
        for tag in [None, Some(7)] {
            for size in [0, 100, 20_000, 60_000, 150_000] {
                all.push(Operation::Send { tag, level, size });
            }
        }
        for size in [0, 100, 20_000, 150_000] {
            for cq_data in [None, Some(0x8765_4321)] {
                all.push(Operation::Write { cq_data, level, size });
            }
        }
        all.push(Operation::AtomicWrite { level });
    }
    all.extend([100, 20_000, 150_000].map(|size| Operation::Read { size }));
    all.extend([Operation::AtomicFetch, Operation::AtomicCompare]);
    all
}

const DEVICES: [Rdma; 2] =
    [Rdma::NONE, Rdma { read: true, write: true, unsolicited_write_receive: true }];

#[derive(Clone, Copy, Debug)]
struct Cell {
    number: u64,
    releases: (Release, Release),
    rdma: Rdma,
    operation: Operation,
}

fn cells() -> Vec<Cell> {
    let mut all = Vec::new();
    for requester in Release::ALL {
        for responder in Release::ALL {
            for rdma in DEVICES {
                for operation in operations() {
                    let (number, releases) = (all.len() as u64, (requester, responder));
                    all.push(Cell { number, releases, rdma, operation });
                }
            }
        }
    }
    all
}

fn config(release: Release, number: u64) -> Config {
    Config::as_release(release).with(|config| {
        config.max_medium = 40_000;
        config.min_read = Some(100_000);
        config.min_read_write = 100_000;
        config.runt_size = if number.is_multiple_of(2) { 30_000 } else { 0 };
    })
}

impl Cell {
    /// The features that both ends have announced.
    fn common(&self) -> Extras {
        let Rdma { read, write, unsolicited_write_receive } = self.rdma;
        let device = efa_handshake::DeviceAbilities {
            rdma_read: read,
            rdma_write: write,
            unsolicited_write_receive,
        };
        let extras = |release| Profile::with_device(release, device).extras;
        extras(self.releases.0).intersection(extras(self.releases.1))
    }

    fn world(&self) -> Net<Buffer> {
        let faults = Faults::default().with(|faults| {
            faults.late = 0.05;
            faults.late_by = Duration::from_micros(500);
            faults.receiver_not_ready = 0.05;
            faults.send_refused = 0.1;
            faults.registration_refused = 0.2;
            faults.allocation_refused = 0.02;
        });
        let (seed, rdma) = (self.number, self.rdma);
        let mut world = Net::new(LocalOptions::default().with(|options| {
            options.seed = seed;
            options.rdma = rdma;
            options.faults = faults;
        }));
        world.add(config(self.releases.0, seed));
        world.add(config(self.releases.1, seed));
        world
    }

    /// A feature may be used only if both have it.
    fn check_way(&self, way: Option<Subprotocol>) {
        let needs = match (self.operation, way) {
            (Operation::Write { .. }, Some(Subprotocol::Direct)) => Extras::RDMA_WRITE,
            (_, Some(Subprotocol::Direct | Subprotocol::LongRead)) => Extras::RDMA_READ,
            (_, Some(Subprotocol::RuntRead)) => Extras::RDMA_READ | Extras::RUNTING_READ,
            _ => Extras::empty(),
        };
        assert!(self.common().contains(needs), "{way:?} with {:?}", self.common());
    }

    /// Whether this outcome is the specification's: all is well, or the peer lacks what is needed.
    fn check_outcome(
        &self,
        level: Level,
        way: Option<Subprotocol>,
        result: Result<(), OperationError>,
    ) -> bool {
        self.check_way(way);
        // A write that is read or done by the device is delivered anyway.
        let anyway = matches!(way, Some(Subprotocol::LongRead | Subprotocol::Direct));
        let peer = Profile::of(self.releases.1).extras;
        let lacks = level == Level::Delivery
            && !peer.contains(Extras::DELIVERY_COMPLETE)
            && !(anyway && matches!(self.operation, Operation::Write { .. }));
        let missing = Extras::DELIVERY_COMPLETE;
        let expected = if lacks { Err(OperationError::PeerLacks { missing }) } else { Ok(()) };
        assert_eq!(result, expected, "by {way:?}");
        !lacks
    }

    fn run(&self) {
        let mut world = self.world();
        let peer = world.peer(0, 1);
        world.peer(1, 0);
        match self.operation {
            Operation::Send { tag, level, size } => self.send(&mut world, tag, level, size),
            Operation::Write { cq_data, level, size } => {
                let memory = expose(&world, 1, vec![0; size]);
                let remote = remote(&memory, size);
                let buffer = pattern(size, self.number).into();
                let write = Write { peer, remote, buffer, cq_data, level, context: 1 };
                world.endpoint(0).write(write).unwrap();
                world.drive();
                let done = world.ends[0].rma.pop_front().unwrap();
                assert!(done.buffer.bytes == pattern(size, self.number));
                if self.check_outcome(level, done.subprotocol, done.result) {
                    assert!(bytes_of(&memory) == pattern(size, self.number), "other bytes");
                    let reported = world.ends[1].remote_writes.pop_front().map(|of| of.cq_data);
                    assert_eq!(reported, cq_data);
                }
            }
            Operation::Read { size } => {
                let memory = expose(&world, 1, pattern(size, self.number));
                let remote = remote(&memory, size);
                let buffer = vec![0; size].into();
                world.endpoint(0).read(Read { peer, remote, buffer, context: 1 }).unwrap();
                world.drive();
                let done = world.ends[0].rma.pop_front().unwrap();
                self.check_outcome(Level::Transmit, done.subprotocol, done.result);
                assert!(done.buffer.bytes == pattern(size, self.number), "other bytes");
            }
            Operation::AtomicWrite { level } => {
                self.atomic(&mut world, AtomicOp::Sum, level, |operand, _, _| Operands::Write {
                    operand,
                });
            }
            Operation::AtomicFetch => {
                let fetch = |operand, fetched, _| Operands::Fetch { operand, fetched };
                self.atomic(&mut world, AtomicOp::Sum, Level::Transmit, fetch);
            }
            Operation::AtomicCompare => {
                let compare =
                    |operand, fetched, comparand| Operands::Compare { operand, comparand, fetched };
                self.atomic(&mut world, AtomicOp::CompareSwapNe, Level::Transmit, compare);
            }
        }
        world.assert_clean();
        for end in &mut world.ends {
            assert!(end.endpoint.is_quiet(), "something is under way still");
        }
    }

    fn send(&self, world: &mut Net<Buffer>, tag: Option<u64>, level: Level, size: usize) {
        let peer = world.peer(0, 1);
        let accept = match tag {
            Some(tag) => Accept::Tagged { source: None, tag, ignore: 0 },
            None => Accept::Untagged { source: None },
        };
        // Another message before it, in half of the cells, makes the handshake come first.
        if self.number % 4 < 2 {
            world.receive_into(1, vec![0; 10].into(), 0);
            world.send(0, 1, pattern(10, 3).into(), 0);
            world.drive();
            assert_eq!(world.receive_done(1).buffer.bytes, pattern(10, 3));
            world.send_done(0);
        }
        let buffer = pattern(size, self.number).into();
        let cq_data = Some(self.number);
        let message = Message { peer, tag, cq_data, level, buffer, context: 5 };
        let id = world.endpoint(1).receive(accept, vec![0; size].into(), 6).unwrap();
        world.endpoint(0).send(message).unwrap();
        world.drive();
        let sent = world.send_done(0);
        assert!(sent.buffer.is_some_and(|buffer| buffer.bytes == pattern(size, self.number)));
        if self.check_outcome(level, sent.subprotocol, sent.result) {
            let received = world.receive_done(1);
            assert_eq!((received.result, received.cq_data), (Ok(()), Some(self.number)));
            assert!(received.buffer.bytes == pattern(size, self.number), "other bytes");
        } else {
            assert!(world.endpoint(1).cancel(id));
            world.receive_done(1);
        }
    }

    fn atomic(
        &self,
        world: &mut Net<Buffer>,
        op: AtomicOp,
        level: Level,
        operands: impl FnOnce(Buffer, Buffer, Buffer) -> Operands<Buffer>,
    ) {
        let bytes = |values: [u64; 3]| values.map(u64::to_ne_bytes).concat();
        let memory = expose(world, 1, bytes([10, 20, 30]));
        let operands =
            operands(bytes([1, 2, 3]).into(), vec![0; 24].into(), bytes([10, 0, 0]).into());
        let atomic = Atomic {
            peer: world.peer(0, 1),
            remote: remote(&memory, 24),
            datatype: Datatype::Uint64,
            op,
            operands,
            level,
            context: 9,
        };
        world.endpoint(0).atomic(atomic).unwrap();
        world.drive();
        let done = world.ends[0].atomics.pop_front().unwrap();
        if self.check_outcome(level, None, done.result) {
            let after = match op {
                AtomicOp::Sum => bytes([11, 22, 33]),
                _ => bytes([10, 2, 3]),
            };
            assert_eq!(bytes_of(&memory), after);
            let before = done.fetched.map(|fetched| fetched.bytes);
            assert!(before.is_none_or(|before| before == bytes([10, 20, 30])));
        }
    }
}

fn remote(memory: &efa_sim::SoftRegion, size: usize) -> Remote {
    let (address, key) = (memory.remote_address(), memory.remote_key().into());
    RmaIov::new(address, size as u64, key).into()
}

fn bytes_of(memory: &efa_sim::SoftRegion) -> Vec<u8> {
    let mut bytes = vec![0; memory.length()];
    memory.read(0, &mut bytes);
    bytes
}

/// Prints the number of a failing cell.
struct Telling(Cell);

impl Drop for Telling {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("EFA_RDM_CELL={}: {:?}", self.0.number, self.0);
        }
    }
}

// conformance: A21 A39 A217
#[test]
fn messages_arrive_between_all_pairs_of_releases() {
    let cells = cells();
    assert!(cells.len() >= 5_000, "{} cells", cells.len());
    let chosen = std::env::var("EFA_RDM_CELL").ok().and_then(|number| number.parse::<u64>().ok());
    let wanted = |cell: &Cell| chosen.is_none_or(|number| number == cell.number);
    let wanted: Vec<_> = cells.into_iter().filter(wanted).collect();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for first in 0..threads {
            let part = wanted.iter().skip(first).step_by(threads);
            scope.spawn(|| part.for_each(|cell| Telling(*cell).0.run()));
        }
    });
}
