//! Hosts on the first interface of this machine: the `World` of `integration/world.rs`, as far as an
//! interface of rdma-core can provide it.

use std::time::{Duration, Instant};

use efa::{CompletionQueueOptions, EndpointOptions, Entry, Fabric};
use efa_device::Rdma;
use efa_handshake::Extras;

pub(crate) use crate::ends::{ALICE, BOB, End, pattern, with};

/// Far longer than any test takes, so that only a hang reaches it.
const DEADLINE: Duration = Duration::from_secs(60);
/// Reads without an entry after which nothing is under way any more.
const QUIET: u32 = 20_000;

pub(crate) fn options(connid: u32) -> EndpointOptions {
    EndpointOptions::new().connid(connid)
}

pub(crate) struct World {
    pub(crate) ends: Vec<End>,
}

impl World {
    /// No hosts.
    pub(crate) fn empty() -> Self {
        Self { ends: Vec::new() }
    }

    /// The interface has no seed.
    pub(crate) fn pair_with(_: u64, alice: EndpointOptions, bob: EndpointOptions) -> Self {
        let mut world = Self::empty();
        world.add(alice);
        world.add(bob);
        world
    }

    /// Alice and Bob, who use no more than this RDMA of their interface.
    pub(crate) fn pair_with_rdma(seed: u64, rdma: Rdma) -> Self {
        let [alice, bob] = [1, 2].map(|connid| {
            with(connid, |config| {
                let extras = &mut config.profile.extras;
                extras.set(Extras::RDMA_READ, rdma.read);
                extras.set(Extras::RDMA_WRITE, rdma.write);
            })
        });
        Self::pair_with(seed, alice, bob)
    }

    pub(crate) fn add(&mut self, options: EndpointOptions) -> usize {
        let domain = Fabric::verbs(None).domain().unwrap();
        self.ends.push(End::on(domain, options, CompletionQueueOptions::default()));
        self.ends.len() - 1
    }

    /// Reads all queues until nothing happens any more.
    pub(crate) fn drive(&mut self) {
        let mut idle = 0;
        while idle < QUIET {
            idle = if self.read() { 0 } else { idle + 1 };
        }
    }

    /// Waits for the next entry of a host's queue.
    pub(crate) fn entry(&mut self, end: usize) -> Entry {
        let begin = Instant::now();
        loop {
            if let Some(entry) = self.ends[end].entries.pop_front() {
                return entry;
            }
            assert!(begin.elapsed() < DEADLINE, "nothing completes at host {end}");
            self.read();
        }
    }
}
