//! A network in this process with a clock that stands still until it is moved.

use std::collections::VecDeque;
use std::time::Duration;

use efa::{AddressVector, Message, Receive};
use efa::{
    Buffer, Completion, CompletionError, CompletionQueue, CompletionQueueOptions, Config,
    Direction, Domain, Endpoint, EndpointOptions, Entry, Fabric, FiAddr, LocalOptions, ManualClock,
};
use efa_device::Rdma;

/// Bytes that tell their place and message.
pub(crate) fn pattern(length: usize, salt: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(salt);
    std::iter::repeat_with(|| random.u8(..)).take(length).collect()
}

/// Everything that is drawn is given, so that a run can be repeated.
pub(crate) fn options(connid: u32) -> EndpointOptions {
    EndpointOptions {
        connid: Some(connid),
        hash_seed: Some(u64::from(connid)),
        ..EndpointOptions::default()
    }
}

/// Like [`options`], with other settings of the engine.
pub(crate) fn with(connid: u32, set: impl FnOnce(&mut Config)) -> EndpointOptions {
    let mut options = options(connid);
    set(&mut options.protocol);
    options
}

/// A host with one endpoint.
pub(crate) struct End {
    pub(crate) domain: Domain,
    pub(crate) queue: CompletionQueue,
    pub(crate) addresses: AddressVector,
    pub(crate) endpoint: Endpoint,
    pub(crate) entries: VecDeque<Entry>,
}

pub(crate) struct World {
    pub(crate) fabric: Fabric,
    pub(crate) clock: ManualClock,
    pub(crate) ends: Vec<End>,
}

pub(crate) const ALICE: usize = 0;
pub(crate) const BOB: usize = 1;

impl World {
    pub(crate) fn new(options: LocalOptions) -> Self {
        let clock = ManualClock::new();
        let fabric = Fabric::local(options).with_clock(&clock);
        Self { fabric, clock, ends: Vec::new() }
    }

    /// Alice and Bob on a network that reorders.
    pub(crate) fn pair(seed: u64) -> Self {
        Self::pair_with(seed, options(1), options(2))
    }

    pub(crate) fn pair_with(seed: u64, alice: EndpointOptions, bob: EndpointOptions) -> Self {
        let mut world = Self::new(LocalOptions { seed, ..LocalOptions::default() });
        world.add(alice);
        world.add(bob);
        world
    }

    /// Alice and Bob, whose interfaces can do as much to memory of others.
    pub(crate) fn pair_with_rdma(seed: u64, rdma: Rdma) -> Self {
        let mut world = Self::new(LocalOptions { seed, rdma, ..LocalOptions::default() });
        world.add(options(1));
        world.add(options(2));
        world
    }

    /// A network without anybody.
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
        let domain = self.fabric.domain().unwrap();
        let queue = domain.completion_queue(queue);
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

    /// Moves the clock to what is due next, or on if nothing is known to be.
    pub(crate) fn tick(&self) {
        let next = self.fabric.as_local().unwrap().next_event();
        let span = next.map_or(Duration::ZERO, |next| next - self.clock.now());
        self.clock.advance(span.max(Duration::from_nanos(100)));
    }

    /// Goes on until nothing happens any more.
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

    /// The next entry of an end.
    pub(crate) fn entry(&mut self, end: usize) -> Entry {
        for _ in 0..1_000_000 {
            if let Some(entry) = self.ends[end].entries.pop_front() {
                return entry;
            }
            self.read();
            self.tick();
        }
        panic!("nothing completes at end {end}");
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
