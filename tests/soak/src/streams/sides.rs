//! What a sender and a receiver do.

use std::collections::{BTreeMap, HashMap};
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use efa::{
    Address, AddressVector, Completion, CompletionQueue, CompletionQueueOptions, Direction,
    Endpoint, EndpointOptions, Fabric, FiAddr, Level, Message, Receive, ShmOptions,
};
use fastrand::Rng;

/// Messages that a sender has under way.
const WINDOW: usize = 16;
/// Receives that are posted, and the longest message.
const RECEIVES: usize = 32;
const LONGEST: usize = 2 << 20;
/// The endpoint's answers to the other side, at the end.
const LAST: Duration = Duration::from_secs(20);
/// How long nothing completes until a sender sends one message more.
const ASK_AFTER: Duration = Duration::from_secs(1);
/// How long a sender waits for a receiver, and one message for its completion.
const PATIENCE: Duration = Duration::from_secs(50);

/// Where the sides of a round meet.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Place {
    pub(crate) directory: PathBuf,
    pub(crate) seed: u64,
}

impl Place {
    /// The file with the address of the receiver.
    pub(crate) fn address(&self) -> PathBuf {
        self.directory.join("receiver")
    }

    fn receiver(&self) -> Option<Address> {
        std::fs::read_to_string(self.address()).ok()?.parse().ok()
    }
}

struct Side {
    queue: CompletionQueue,
    addresses: AddressVector,
    endpoint: Endpoint,
    ends: Arc<AtomicBool>,
}

impl Side {
    fn new(place: &Place) -> Result<Self, String> {
        let directory = Some(place.directory.join("hosts"));
        let options = ShmOptions::new("soak").with(|options| options.directory = directory);
        let domain = Fabric::shm(options).domain().map_err(|error| error.to_string())?;
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        let endpoint = domain
            .endpoint(EndpointOptions::default())
            .bind_address_vector(&addresses)
            .bind_completion_queue(&queue, Direction::Both)
            .enable()
            .map_err(|error| error.to_string())?;
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        // A line, or the end of the conductor.
        std::thread::spawn(move || {
            let _ = std::io::stdin().read(&mut [0; 8]);
            told.store(true, Ordering::Relaxed);
        });
        Ok(Self { queue, addresses, endpoint, ends })
    }

    fn ends(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }
}

/// The bytes of a message: words that count up from a number that its tag gives.
fn fill(buffer: &mut Vec<u8>, tag: u64, length: usize) {
    buffer.clear();
    let first = Rng::with_seed(tag).u64(..);
    let words = (0..length.div_ceil(8) as u64).map(|at| first.wrapping_add(at).to_le_bytes());
    buffer.extend(words.flatten());
    buffer.truncate(length);
}

fn is_filled(bytes: &[u8], tag: u64) -> bool {
    let first = Rng::with_seed(tag).u64(..);
    let word = |at: usize| first.wrapping_add(at as u64).to_le_bytes();
    bytes.chunks(8).enumerate().all(|(at, chunk)| *chunk == word(at)[..chunk.len()])
}

/// All sizes alike: 0, and each power of two with what lies above it.
fn length(random: &mut Rng) -> usize {
    let most = 1_usize << random.u32(..=LONGEST.ilog2());
    match random.u32(..8) {
        0 => most,
        _ => random.usize(..most),
    }
}

/// A stream's number and that of a message in it.
fn tag(stream: u64, number: u64) -> u64 {
    stream << 32 | number
}

/// Sends until it is asked to end; then finishes what is under way, and says how many messages of its last stream have
/// arrived.
pub(crate) fn send(place: &Place) -> Result<(), String> {
    let side = Side::new(place)?;
    let mut random = Rng::with_seed(place.seed ^ u64::from(std::process::id()) << 32);
    let mut last = None;
    while !side.ends() {
        let begin = Instant::now();
        // The one after a receiver that was killed.
        let receiver = loop {
            match place.receiver() {
                Some(address) if Some(address) != last => break address,
                _ if side.ends() => return Ok(()),
                _ if begin.elapsed() > PATIENCE => return Err("no receiver comes".to_owned()),
                _ => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        last = Some(receiver);
        let to = side.addresses.insert(receiver).map_err(|error| error.to_string())?;
        let number = u64::from(random.u32(1..));
        let stream = Stream { side: &side, to, number, sent: 0, under_way: 0 };
        match stream.run(&mut random)? {
            Some(sent) => {
                println!("sent {number} {sent}");
                return side.endpoint.close(LAST).map_err(|error| error.to_string());
            }
            // The receiver is gone.
            None => drop(side.addresses.remove(to)),
        }
    }
    Ok(())
}

struct Stream<'a> {
    side: &'a Side,
    to: FiAddr,
    number: u64,
    sent: u64,
    under_way: usize,
}

impl Stream<'_> {
    /// The number of messages that have arrived, all of those that were sent; `None` if the receiver went.
    fn run(mut self, random: &mut Rng) -> Result<Option<u64>, String> {
        let mut buffers = vec![Vec::new(); WINDOW];
        let (mut is_lost, mut moved) = (false, Instant::now());
        let (mut asks, mut asked) = (false, Instant::now());
        loop {
            while !is_lost
                && (!self.side.ends() || std::mem::take(&mut asks))
                && let Some(mut buffer) = buffers.pop()
            {
                let tag = tag(self.number, self.sent);
                fill(&mut buffer, tag, length(random));
                let message = Message::to(self.to).tagged(tag).level(Level::Delivery);
                match self.side.endpoint.send(message, buffer, 0) {
                    Ok(()) => (self.sent, self.under_way) = (self.sent + 1, self.under_way + 1),
                    Err(refused) => {
                        is_lost |= !refused.error.is_busy();
                        buffers.push(refused.buffer.into_vec());
                        break;
                    }
                }
            }
            if self.under_way == 0 && (is_lost || self.side.ends()) {
                return Ok((!is_lost).then_some(self.sent));
            }
            match self.side.queue.read() {
                // A receiver that died with all packets in its buffers is noticed by the next send (docs/giving-up.md).
                None if !is_lost && asked.max(moved).elapsed() > ASK_AFTER => {
                    (asked, asks) = (Instant::now(), true);
                    buffers.push(Vec::new());
                }
                None if moved.elapsed() > PATIENCE => {
                    return Err(format!("nothing of {} messages completes", self.under_way));
                }
                None => std::thread::yield_now(),
                Some(entry) => {
                    let completion = entry.unwrap_or_else(|failed| {
                        is_lost = true;
                        *failed.completion
                    });
                    (self.under_way, moved) = (self.under_way - 1, Instant::now());
                    buffers.push(completion.buffer.into_vec());
                }
            }
        }
    }
}

/// Receives until it is asked to end, and says how many messages of each stream came.
pub(crate) fn receive(place: &Place) -> Result<(), String> {
    let side = Side::new(place)?;
    let mut posted = 0;
    let mut post = |buffer: Vec<u8>| {
        posted += 1;
        let any = Receive::masked(0, u64::MAX);
        let post = side.endpoint.receive(any, buffer, posted);
        post.map(drop).map_err(|refused| refused.error.to_string())
    };
    (0..RECEIVES).try_for_each(|_| post(vec![0; LONGEST]))?;
    let unfinished = place.directory.join(format!("receiver-{}", std::process::id()));
    std::fs::write(&unfinished, side.endpoint.address().to_string())
        .and_then(|()| std::fs::rename(&unfinished, place.address()))
        .map_err(|error| format!("can't write the address: {error}"))?;
    let mut streams = HashMap::<u64, Received>::new();
    while !side.ends() {
        let Some(entry) = side.queue.read() else {
            std::thread::yield_now();
            continue;
        };
        match entry {
            Ok(completion) => {
                let stream = completion.tag.unwrap_or(0) >> 32;
                post(streams.entry(stream).or_default().check(completion)?)?;
            }
            // The sender was killed with a part of its message under way.
            Err(failed) => post(failed.completion.buffer.into_vec())?,
        }
    }
    for (stream, received) in streams {
        println!("got {stream} {}", received.count);
    }
    side.endpoint.close(LAST).map_err(|error| error.to_string())
}

/// What came of a stream.
#[derive(Default)]
struct Received {
    /// Messages without a gap, and the receive of the last one.
    count: u64,
    last: u64,
    /// Messages that completed before others that were sent before them, and their receives.
    ahead: BTreeMap<u64, u64>,
}

impl Received {
    /// Checks a message, and returns its buffer.
    fn check(&mut self, completion: Completion) -> Result<Vec<u8>, String> {
        let tag = completion.tag.unwrap_or(0);
        let number = tag & u64::from(u32::MAX);
        if number < self.count || self.ahead.insert(number, completion.context).is_some() {
            return Err(format!("message {tag:#x} came twice"));
        }
        // Messages match the receives in the order in which they were sent, in whatever order they complete.
        while let Some(receive) = self.ahead.remove(&self.count) {
            if receive <= self.last {
                return Err(format!(
                    "before {tag:#x}: receive {} matched before {receive}",
                    self.last
                ));
            }
            (self.count, self.last) = (self.count + 1, receive);
        }
        let length = usize::try_from(completion.length).unwrap_or(usize::MAX);
        let buffer = completion.buffer.into_vec();
        match buffer.get(..length) {
            Some(bytes) if is_filled(bytes, tag) => Ok(buffer),
            _ => Err(format!("message {tag:#x} of {length} bytes has others than were sent")),
        }
    }
}
