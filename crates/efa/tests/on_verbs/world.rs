//! Hosts on the first interface of this machine. What `stories/world.rs` offers, as far as an interface
//! of rdma-core can.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use efa::{AddressVector, Message, Receive};
use efa::{
    Buffer, Completion, CompletionError, CompletionQueue, CompletionQueueOptions, Config,
    Direction, Domain, Endpoint, EndpointOptions, Entry, Fabric, FiAddr,
};
use efa_device::Rdma;
use efa_handshake::Extras;

/// Far beyond what any story takes, so that only a hang reaches it.
const DEADLINE: Duration = Duration::from_secs(60);
/// Reads of all in vain after which nothing is on its way any more.
const QUIET: u32 = 20_000;

/// Bytes that tell their place and message.
pub(crate) fn pattern(length: usize, salt: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(salt);
    std::iter::repeat_with(|| random.u8(..)).take(length).collect()
}

pub(crate) fn options(connid: u32) -> EndpointOptions {
    EndpointOptions { connid: Some(connid), ..EndpointOptions::default() }
}

/// Like [`options`], with other settings of the engine.
pub(crate) fn with(connid: u32, set: impl FnOnce(&mut Config)) -> EndpointOptions {
    let mut options = options(connid);
    set(&mut options.protocol);
    options
}

/// An endpoint.
pub(crate) struct End {
    pub(crate) domain: Domain,
    pub(crate) queue: CompletionQueue,
    pub(crate) addresses: AddressVector,
    pub(crate) endpoint: Endpoint,
    pub(crate) entries: VecDeque<Entry>,
}

pub(crate) struct World {
    pub(crate) ends: Vec<End>,
}

pub(crate) const ALICE: usize = 0;
pub(crate) const BOB: usize = 1;

impl World {
    /// Nobody.
    pub(crate) fn empty() -> Self {
        Self { ends: Vec::new() }
    }

    /// Alice and Bob.
    pub(crate) fn pair(seed: u64) -> Self {
        Self::pair_with(seed, options(1), options(2))
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
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        let endpoint = domain
            .endpoint(options)
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()
            .unwrap();
        self.ends.push(End { domain, queue, addresses, endpoint, entries: VecDeque::new() });
        self.ends.len() - 1
    }

    pub(crate) fn end(&self, end: usize) -> &Endpoint {
        &self.ends[end].endpoint
    }

    /// `whom` in the address vector of `who`.
    pub(crate) fn introduce(&self, who: usize, whom: usize) -> FiAddr {
        self.ends[who].addresses.insert(self.ends[whom].endpoint.address()).unwrap()
    }

    /// Reads everything once; tells whether there was something.
    fn read(&mut self) -> bool {
        let mut some = false;
        for end in &mut self.ends {
            while let Some(entry) = end.queue.read() {
                some = true;
                end.entries.push_back(entry);
            }
        }
        some
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

    pub(crate) fn done(&mut self, end: usize) -> Completion {
        self.entry(end).unwrap()
    }

    pub(crate) fn failed(&mut self, end: usize) -> CompletionError {
        self.entry(end).unwrap_err()
    }

    /// Whether an end has nothing to read after all is done.
    pub(crate) fn is_silent(&mut self, end: usize) -> bool {
        self.drive();
        self.ends[end].entries.is_empty()
    }

    /// Alice sends, Bob has posted a receive; gives her completion and his.
    pub(crate) fn transfer(
        &mut self,
        message: Message,
        data: impl Into<Buffer>,
        receive: Receive,
        room: usize,
    ) -> (Completion, Completion) {
        self.end(BOB).receive(receive, vec![0; room], 22).unwrap();
        self.end(ALICE).send(message, data, 11).unwrap();
        (self.done(ALICE), self.done(BOB))
    }
}
