//! Hosts on a simulated network, with a manual clock.

use std::time::Duration;

use efa::{CompletionQueueOptions, EndpointOptions, Entry, Fabric, LocalOptions, ManualClock};
use efa_device::Rdma;

pub(crate) use crate::ends::{ALICE, BOB, End, pattern, with};

/// Options without random values, so that runs can be repeated.
pub(crate) fn options(connid: u32) -> EndpointOptions {
    EndpointOptions::new().connid(connid).hash_seed(connid.into())
}

pub(crate) struct World {
    pub(crate) fabric: Fabric,
    pub(crate) clock: ManualClock,
    pub(crate) ends: Vec<End>,
}

impl World {
    pub(crate) fn new(options: LocalOptions) -> Self {
        let clock = ManualClock::new();
        let fabric = Fabric::local(options).with_clock(&clock);
        Self { fabric, clock, ends: Vec::new() }
    }

    pub(crate) fn pair_with(seed: u64, alice: EndpointOptions, bob: EndpointOptions) -> Self {
        let mut world = Self::new(LocalOptions::default().with(|options| options.seed = seed));
        world.add(alice);
        world.add(bob);
        world
    }

    /// Alice and Bob, with devices that have this RDMA.
    pub(crate) fn pair_with_rdma(seed: u64, rdma: Rdma) -> Self {
        let mut world = Self::new(LocalOptions::default().with(|options| {
            options.seed = seed;
            options.rdma = rdma;
        }));
        world.add(options(1));
        world.add(options(2));
        world
    }

    /// A network without hosts.
    pub(crate) fn empty() -> Self {
        Self::new(LocalOptions::default())
    }

    pub(crate) fn add(&mut self, options: EndpointOptions) -> usize {
        self.add_with(options, CompletionQueueOptions::default())
    }

    pub(crate) fn add_with(
        &mut self,
        options: EndpointOptions,
        queue: CompletionQueueOptions,
    ) -> usize {
        self.ends.push(End::on(self.fabric.domain().unwrap(), options, queue));
        self.ends.len() - 1
    }

    /// Advances the clock to the next event of the network, or by 100 ns if there is none.
    pub(crate) fn tick(&self) {
        let next = self.fabric.as_local().unwrap().next_event();
        let span = next.map_or(Duration::ZERO, |next| next - self.clock.now());
        self.clock.advance(span.max(Duration::from_nanos(100)));
    }

    /// Reads all queues until nothing happens any more.
    pub(crate) fn drive(&mut self) {
        let mut idle = 0;
        while idle < 100 {
            if self.read() || self.fabric.as_local().unwrap().next_event().is_some() {
                idle = 0;
            } else {
                idle += 1;
                self.clock.advance(Duration::from_micros(20));
            }
            self.tick();
        }
    }

    /// Reads all queues for this long.
    pub(crate) fn drive_for(&mut self, span: Duration) {
        let end = self.clock.now() + span;
        while self.clock.now() < end {
            self.read();
            self.tick();
        }
    }

    /// Waits for the next entry of a host's queue.
    pub(crate) fn entry(&mut self, end: usize) -> Entry {
        for _ in 0..1_000_000 {
            if let Some(entry) = self.ends[end].entries.pop_front() {
                return entry;
            }
            self.read();
            self.tick();
        }
        panic!("nothing completes at host {end}");
    }
}
