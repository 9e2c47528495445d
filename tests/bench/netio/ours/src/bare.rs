//! The same by `efa` alone: a connection to each subscriber, and a send of registered memory on each. It has no tags, no
//! table and no accounts, and so is the most that NetIO can reach on this device.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use efa::{
    Access, CompletionQueue, CompletionQueueOptions, ControlEvent, Direction, Domain, EventQueue,
    EventQueueOptions, Fabric, Kind, Level, Listener, LocalAccess, MemoryRegion, MsgEndpoint,
    MsgEndpointBuilder, MsgEndpointOptions, PassiveEndpointOptions, Receive, ShmOptions, Wait,
};
use efa_bench_netio_harness::{Job, Publish, Stamp, Subscribe};

use crate::{HOST, PATIENCE, PAUSE};

/// As NetIO's `Options` have it.
const READ_THRESHOLD: u64 = 32 << 10;
const SENDS: usize = 1024;

/// A domain with its queues.
struct Side {
    domain: Domain,
    queue: CompletionQueue,
    events: EventQueue,
}

impl Side {
    fn new(job: &Job) -> Result<Self> {
        let directory = Some(job.directory.join("hosts"));
        let fabric = Fabric::shm(ShmOptions::new("bare").with(|it| it.directory = directory));
        let domain = fabric.domain()?;
        let options = CompletionQueueOptions::default().capacity(1 << 20);
        let queue = domain.waitable_completion_queue(options, Wait::Fd)?;
        let events = fabric.event_queue(EventQueueOptions::default())?;
        Ok(Self { domain, queue, events })
    }

    fn endpoint(&self) -> MsgEndpointBuilder {
        let mut options = MsgEndpointOptions::default();
        options.endpoint.protocol.min_read = Some(READ_THRESHOLD);
        options.endpoint.protocol.messages_after_handshake = true;
        options.endpoint.protocol.max_sends = SENDS;
        self.domain
            .msg_endpoint(options)
            .bind_completion_queue(&self.queue, Direction::Both)
            .bind_event_queue(&self.events)
    }
}

pub(crate) struct Publisher {
    side: Side,
    endpoints: Vec<MsgEndpoint>,
    region: MemoryRegion,
    size: usize,
    /// Slots that are not under way, and of the others how often.
    free: VecDeque<usize>,
    under_way: Vec<usize>,
    subscribers: usize,
    _listener: Listener,
}

impl Publisher {
    pub(crate) fn new(job: &Job) -> Result<Self> {
        let side = Side::new(job)?;
        let at = format!("{HOST}:{}", job.port).parse()?;
        let fabric = side.domain.fabric();
        let passive = fabric.passive_endpoint(&side.events, PassiveEndpointOptions::default());
        let listener = passive.listen(at).context("the port")?;
        let depth = job.depth();
        let access = Access { remote_read: true, remote_write: false };
        let memory = vec![0; depth * job.size];
        let region = side.domain.register_for(memory, access, LocalAccess::SEND)?;
        let mut publisher = Self {
            side,
            endpoints: Vec::new(),
            region,
            size: job.size,
            free: (0..depth).collect(),
            under_way: vec![0; depth],
            subscribers: job.subscribers,
            _listener: listener,
        };
        let (begin, mut connected) = (Instant::now(), 0);
        while connected < publisher.subscribers {
            ensure!(begin.elapsed() < PATIENCE, "the subscribers don't come");
            match publisher.side.events.wait(PAUSE) {
                Ok(ControlEvent::ConnectionRequest(request)) => {
                    publisher.endpoints.push(publisher.side.endpoint().accept(request, b"")?);
                }
                Ok(ControlEvent::Connected { .. }) => connected += 1,
                Ok(other) => bail!("{other:?}"),
                Err(_) => publisher.read()?,
            }
        }
        Ok(publisher)
    }

    /// Takes what has completed.
    fn read(&mut self) -> Result<()> {
        while let Some(entry) = self.side.queue.read() {
            let slot = entry.map_err(|failed| failed.error)?.context as usize;
            self.under_way[slot] -= 1;
            if self.under_way[slot] == 0 {
                self.free.push_back(slot);
            }
        }
        Ok(())
    }
}

impl Publish for Publisher {
    fn publish(&mut self, stamp: &[u8; Stamp::LENGTH]) -> Result<()> {
        let begin = Instant::now();
        let slot = loop {
            match self.free.pop_front() {
                Some(slot) => break slot,
                None => self.read()?,
            }
            ensure!(begin.elapsed() < PATIENCE, "no message comes back");
        };
        let at = slot * self.size;
        self.region.write(at, stamp);
        let slice = self.region.slice(at..at + self.size)?;
        let what = efa::Message::to(MsgEndpoint::PEER).with_data(1).level(Level::Inject);
        for number in 0..self.endpoints.len() {
            self.under_way[slot] += 1;
            while let Err(refused) = self.endpoints[number].send(what, slice.clone(), slot as u64) {
                ensure!(refused.error.is_busy(), "{}", refused.error);
                ensure!(begin.elapsed() < PATIENCE, "a subscriber takes nothing");
                self.read()?;
            }
        }
        Ok(())
    }

    fn rest(&mut self, time: Duration) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < time {
            self.read()?;
            std::thread::yield_now();
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let begin = Instant::now();
        while self.free.len() < self.under_way.len() {
            ensure!(begin.elapsed() < PATIENCE, "messages don't come back");
            self.read()?;
        }
        // The last ones may be on their way.
        self.rest(Duration::from_millis(100))
    }
}

pub(crate) struct Subscriber {
    side: Side,
    endpoint: MsgEndpoint,
}

impl Subscriber {
    pub(crate) fn new(job: &Job) -> Result<Self> {
        let side = Side::new(job)?;
        let at = format!("{HOST}:{}", job.port).parse()?;
        let begin = Instant::now();
        loop {
            ensure!(begin.elapsed() < PATIENCE, "nobody listens");
            let endpoint = side.endpoint().connect(at, b"")?;
            let event = side.events.wait(Duration::from_secs(1));
            if matches!(event, Ok(ControlEvent::Connected { .. })) {
                for _ in 0..job.depth() {
                    endpoint.receive(Receive::untagged(), vec![0; job.size], 0)?;
                }
                return Ok(Self { side, endpoint });
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Subscribe for Subscriber {
    fn receive(&mut self, show: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let completion = match self.side.queue.wait(Duration::from_secs(1)) {
            Ok(completion) if completion.kind == Kind::Receive => completion,
            Ok(_) | Err(efa::WaitError::TimedOut(_)) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let buffer = completion.buffer.into_vec();
        show(&buffer[..completion.length as usize]);
        self.endpoint.receive(Receive::untagged(), buffer, 0)?;
        Ok(true)
    }

    fn is_known(&mut self) -> Result<bool> {
        // A queue is what makes progress. At the end the receives come back, as cancelled.
        let _ = self.side.queue.wait(PAUSE);
        let event = self.side.events.read().transpose()?;
        Ok(matches!(event, Some(ControlEvent::Shutdown { .. })))
    }
}
