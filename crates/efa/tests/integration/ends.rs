//! The hosts of a test. `World` in `world.rs` has the network, and lets time pass.

use std::collections::VecDeque;

use efa::{
    AddressVector, Buffer, Completion, CompletionError, CompletionQueue, CompletionQueueOptions,
    Config, Direction, Domain, Endpoint, EndpointOptions, Entry, FiAddr, Message, Receive,
};

use crate::world::{World, options};

/// Random bytes that depend on `salt`.
pub(crate) fn pattern(length: usize, salt: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(salt).fill(&mut bytes);
    bytes
}

/// [`options`] with settings of the engine changed.
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

impl End {
    pub(crate) fn on(
        domain: Domain,
        options: EndpointOptions,
        queue: CompletionQueueOptions,
    ) -> Self {
        let queue = domain.completion_queue(queue);
        let addresses = domain.address_vector();
        let endpoint = domain
            .endpoint(options)
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()
            .unwrap();
        Self { domain, queue, addresses, endpoint, entries: VecDeque::new() }
    }
}

pub(crate) const ALICE: usize = 0;
pub(crate) const BOB: usize = 1;

impl World {
    /// Alice and Bob.
    pub(crate) fn pair(seed: u64) -> Self {
        Self::pair_with(seed, options(1), options(2))
    }

    pub(crate) fn end(&self, end: usize) -> &Endpoint {
        &self.ends[end].endpoint
    }

    /// Inserts `whom` into the address vector of `who`.
    pub(crate) fn introduce(&self, who: usize, whom: usize) -> FiAddr {
        self.ends[who].addresses.insert(self.ends[whom].endpoint.address()).unwrap()
    }

    /// Reads all queues once; returns whether there was an entry.
    pub(crate) fn read(&mut self) -> bool {
        let mut some = false;
        for end in &mut self.ends {
            while let Some(entry) = end.queue.read() {
                some = true;
                end.entries.push_back(entry);
            }
        }
        some
    }

    pub(crate) fn done(&mut self, end: usize) -> Completion {
        self.entry(end).unwrap()
    }

    pub(crate) fn failed(&mut self, end: usize) -> CompletionError {
        self.entry(end).unwrap_err()
    }

    /// Whether a host has no completion after everything is done.
    pub(crate) fn is_silent(&mut self, end: usize) -> bool {
        self.drive();
        self.ends[end].entries.is_empty()
    }

    /// Alice sends to a receive of Bob; returns both completions.
    pub(crate) fn transfer(
        &mut self,
        message: Message,
        data: impl Into<Buffer>,
        receive: Receive,
        capacity: usize,
    ) -> (Completion, Completion) {
        self.end(BOB).receive(receive, vec![0; capacity], 22).unwrap();
        self.end(ALICE).send(message, data, 11).unwrap();
        (self.done(ALICE), self.done(BOB))
    }
}
