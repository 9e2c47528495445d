//! Two endpoints in two threads of a process, on the link `shm`: whether they are twice as fast as one.
//!
//! A thread has an endpoint with a queue of its own, and sends messages of 8 bytes to itself. All are of one domain.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use efa::{CompletionQueueOptions, Direction, Domain, EndpointOptions, Fabric, Message, Receive};
use efa::{Endpoint, Kind, ShmOptions};
use rustix::time::{ClockId, clock_gettime};

use crate::say;

/// Messages between two looks at whether the time is over.
const BATCH: u64 = 64;

/// A thread's endpoint, its queue, and how it reaches itself.
struct Side {
    endpoint: Endpoint,
    queue: efa::CompletionQueue,
    to: efa::FiAddr,
    _addresses: efa::AddressVector,
}

/// What a thread did in its time.
struct Done {
    messages: u64,
    elapsed: f64,
    /// Seconds of a processor.
    used: f64,
}

impl Side {
    fn new(domain: &Domain) -> Result<Self> {
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        let endpoint = domain
            .endpoint(EndpointOptions::default())
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()?;
        let to = addresses.insert(endpoint.address())?;
        let side = Self { endpoint, queue, to, _addresses: addresses };
        let mut buffer = vec![0; 8];
        for _ in 0..BATCH {
            buffer = side.message(buffer)?;
        }
        Ok(side)
    }

    /// Sends a message, and returns the buffer of its receive.
    fn message(&self, buffer: Vec<u8>) -> Result<Vec<u8>> {
        self.endpoint.receive(Receive::tagged(1), buffer, 0)?;
        self.endpoint.send(Message::to(self.to).tagged(1), "8 bytes.", 0)?;
        let (mut received, mut sent) = (None, false);
        loop {
            match (received, sent) {
                (Some(buffer), true) => return Ok(buffer),
                other => (received, sent) = other,
            }
            if let Some(entry) = self.queue.read() {
                let completion = entry.map_err(|failed| failed.error)?;
                match completion.kind {
                    Kind::Send => sent = true,
                    _ => received = Some(completion.buffer.into_vec()),
                }
            }
        }
    }

    fn run(&self, is_over: &AtomicBool) -> Result<Done> {
        let (begin, used) = (Instant::now(), processor_time());
        let (mut messages, mut buffer) = (0, vec![0; 8]);
        while !is_over.load(Ordering::Relaxed) {
            for _ in 0..BATCH {
                buffer = self.message(buffer)?;
            }
            messages += BATCH;
        }
        let (elapsed, used) = (begin.elapsed().as_secs_f64(), processor_time() - used);
        Ok(Done { messages, elapsed, used })
    }
}

/// Seconds that a processor has worked for this thread.
fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Messages in so many threads at once.
fn rates(domain: &Domain, threads: usize, time: Duration) -> Result<(f64, f64)> {
    let sides = (0..threads).map(|_| Side::new(domain)).collect::<Result<Vec<_>>>()?;
    let (is_over, barrier) = (AtomicBool::new(false), Barrier::new(threads + 1));
    let done = std::thread::scope(|scope| {
        let running: Vec<_> = (sides.iter())
            .map(|side| {
                scope.spawn(|| {
                    barrier.wait();
                    side.run(&is_over)
                })
            })
            .collect();
        barrier.wait();
        std::thread::sleep(time);
        is_over.store(true, Ordering::Relaxed);
        let joined = running.into_iter().map(|thread| {
            thread.join().ok().context("a thread has panicked").and_then(|done| done)
        });
        joined.collect::<Result<Vec<Done>>>()
    })?;
    ensure!(done.len() == threads, "a thread is missing");
    let rate = done.iter().map(|done| done.messages as f64 / done.elapsed).sum();
    let used: f64 = done.iter().map(|done| done.used).sum();
    let messages: u64 = done.iter().map(|done| done.messages).sum();
    Ok((rate, used / messages as f64))
}

/// Rates of one thread and of two, in turn.
pub(crate) fn run(time: Duration) -> Result<()> {
    let place = tempfile::tempdir_in("/dev/shm").context("a directory in /dev/shm")?;
    let directory = Some(place.path().join("hosts"));
    let options = ShmOptions::new("scale").with(|options| options.directory = directory);
    let domain = Fabric::shm(options).domain()?;
    for threads in [1, 2] {
        let (rate, used) = rates(&domain, threads, time)?;
        say("threads", threads, "rate", rate);
        say("threads", threads, "nanoseconds", used * 1e9);
    }
    Ok(())
}
