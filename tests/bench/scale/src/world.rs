//! Endpoints on a simulated network, in virtual time and on one thread.

use std::time::Duration;

use anyhow::{Result, ensure};
use efa::{
    AddressVector, Completion, CompletionQueue, CompletionQueueOptions, Direction, Domain,
    Endpoint, EndpointOptions, Fabric, FiAddr, LocalOptions, ManualClock, Message, Receive,
};

const STEP: Duration = Duration::from_micros(10);
/// Reads of a queue without a completion after which something is wrong.
const PATIENCE: u32 = 1_000_000;

/// A network, and its clock.
pub(crate) struct World {
    pub(crate) fabric: Fabric,
    pub(crate) clock: ManualClock,
}

/// A program: a host on the network, with a queue and an address vector.
pub(crate) struct Program {
    pub(crate) domain: Domain,
    pub(crate) queue: CompletionQueue,
    pub(crate) addresses: AddressVector,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = ManualClock::new();
        let fabric = Fabric::local(
            LocalOptions::default().with(|options| options.max_queue_pairs = 1 << 14),
        )
        .with_clock(&clock);
        Self { fabric, clock }
    }

    pub(crate) fn program(&self) -> Result<Program> {
        Program::new(self.fabric.domain()?)
    }

    /// Reads the queues until all have been read this often.
    pub(crate) fn complete(&self, mut wanted: Vec<(&CompletionQueue, usize)>) -> Result<()> {
        let mut in_vain = 0;
        while wanted.iter().any(|(_, count)| *count > 0) {
            for (queue, count) in &mut wanted {
                while *count > 0
                    && let Some(entry) = queue.read()
                {
                    drop::<Completion>(entry.map_err(|failed| failed.error)?);
                    *count -= 1;
                    in_vain = 0;
                }
            }
            self.clock.advance(STEP);
            in_vain += 1;
            ensure!(in_vain < PATIENCE, "nothing completes");
        }
        Ok(())
    }

    /// Reads the queues until nothing is under way on the network.
    pub(crate) fn settle(&self, queues: [&CompletionQueue; 2]) -> Result<()> {
        for _ in 0..PATIENCE {
            for queue in queues {
                ensure!(queue.read().is_none(), "a completion of nothing");
            }
            let next = self.fabric.as_local().and_then(|network| network.next_event());
            if next.is_none() {
                return Ok(());
            }
            self.clock.advance(STEP);
        }
        anyhow::bail!("the network doesn't come to rest")
    }

    /// A message of 8 bytes, with both completions.
    pub(crate) fn message(
        &self,
        (from, sent): (&Endpoint, &CompletionQueue),
        to: FiAddr,
        (at, received): (&Endpoint, &CompletionQueue),
        buffer: Vec<u8>,
    ) -> Result<()> {
        at.receive(Receive::tagged(1), buffer, 0)?;
        from.send(Message::to(to).tagged(1), "8 bytes.", 0)?;
        self.complete(vec![(received, 1), (sent, 1)])
    }
}

impl Program {
    pub(crate) fn new(domain: Domain) -> Result<Self> {
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        Ok(Self { domain, queue, addresses })
    }

    /// Fixed seeds, so that counts are the same in each run.
    pub(crate) fn endpoint(&self, options: EndpointOptions, number: usize) -> Result<Endpoint> {
        let options = options.connid(number as u32 + 1).hash_seed(1);
        Ok(self
            .domain
            .endpoint(options)
            .bind_completion_queue(&self.queue, Direction::Both)
            .bind_address_vector(&self.addresses)
            .enable()?)
    }

    /// A usual endpoint.
    pub(crate) fn usual(&self, number: usize) -> Result<Endpoint> {
        self.endpoint(EndpointOptions::default(), number)
    }
}
