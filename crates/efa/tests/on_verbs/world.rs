//! Hosts on the first interface of this machine. What `integration/world.rs` offers, as far as an interface
//! of rdma-core can.

use std::time::{Duration, Instant};

use efa::{CompletionQueueOptions, EndpointOptions, Entry, Fabric};
use efa_device::Rdma;
use efa_handshake::Extras;

pub(crate) use crate::ends::{ALICE, BOB, End, pattern, with};

/// Far beyond what any story takes, so that only a hang reaches it.
const DEADLINE: Duration = Duration::from_secs(60);
/// Reads of all in vain after which nothing is on its way any more.
const QUIET: u32 = 20_000;

pub(crate) fn options(connid: u32) -> EndpointOptions {
    EndpointOptions::new().connid(connid)
}

pub(crate) struct World {
    pub(crate) ends: Vec<End>,
}

impl World {
    /// Nobody.
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

    /// Alice and Bob, who use no more of what their interface can do to memory of others.
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

    /// Goes on until nothing happens any more.
    pub(crate) fn drive(&mut self) {
        let mut idle = 0;
        while idle < QUIET {
            idle = if self.read() { 0 } else { idle + 1 };
        }
    }

    /// The next entry of an end.
    pub(crate) fn entry(&mut self, end: usize) -> Entry {
        let begin = Instant::now();
        loop {
            if let Some(entry) = self.ends[end].entries.pop_front() {
                return entry;
            }
            assert!(begin.elapsed() < DEADLINE, "nothing completes at end {end}");
            self.read();
        }
    }
}
