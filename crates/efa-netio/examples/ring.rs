//! A ring of 64 MiB that a thread fills, as the firmware of a card does, and whose messages are published by tag. A
//! fast, a slow and a killed subscriber are processes on the shm link.
//!
//! ```text
//! $ cargo run -p efa-netio --example ring
//! published 3000 messages, 180 MiB, through a ring of 64 MiB
//! fast subscriber: 3000 messages, all whole and in order
//! slow subscriber: 1500 messages, all whole and in order
//! killed subscriber: gone, and the memory it held is free
//! completions came out of order, the read pointer never did
//! ```
//!
//! ```text
//!              read pointer            write pointer
//!                   ▼                       ▼
//!   ring    ········███ ▓▓▓ ███ ▓▓▓ ▓▓▓ ▓▓▓ ░░░░░░░····       ███ under way   ▓▓▓ complete   ░░░ being filled
//!                   ▲
//!                   an older message is under way: what is complete behind it stays until that is, too
//! ```
//!
//! Completions come out of order: a slow subscriber holds back the messages of its tag, and no others. The read pointer
//! moves over the longest prefix of messages that are complete, and the thread never writes beyond it. A message says its
//! number, length and tag, and its bytes follow from those: a byte overwritten too early would be seen by a subscriber,
//! or by the publisher when the message comes back.

use std::collections::VecDeque;
use std::error::Error;
use std::io::Read;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use efa::{Fabric, ShmOptions};
use efa_netio::{
    Buffers, ClosedReason, Event, Message, Netio, Options, Pool, PublishOptions, PublishSocket,
    Published, Signal, SubscribeOptions, Tag, Wait, WhenFull,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const RING: u64 = 64 << 20;
const MESSAGES: u64 = 3000;
/// Messages have these tags in turn.
const TAGS: [Tag; 2] = [0x10, 0x11];
/// In words of 8 bytes.
const SHORTEST: u64 = 512;
const LONGEST: u64 = 15_500;
/// The slow subscriber takes so long for each message.
const PAUSE: Duration = Duration::from_millis(1);
/// After so many publications one subscriber is killed.
const KILLED_AT: u64 = 200;
/// A bound for everything.
const DEADLINE: Duration = Duration::from_secs(100);

// ---- messages ---------------------------------------------------------------------------------------

fn mixed(number: u64) -> u64 {
    let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (number ^ (number >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Bytes of a message.
fn length(number: u64) -> u64 {
    8 * (SHORTEST + mixed(number) % (LONGEST - SHORTEST))
}

fn tag(number: u64) -> Tag {
    TAGS[(number % 2) as usize]
}

/// What a message says of itself: number, length and tag.
fn title(number: u64) -> [u8; 24] {
    let mut title = [0; 24];
    for (bytes, word) in title.chunks_exact_mut(8).zip([number, length(number), tag(number)]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    title
}

/// What follows in a message, again and again.
fn pattern(number: u64) -> [u8; 4096] {
    let mut pattern = [0; 4096];
    for (bytes, place) in pattern.chunks_exact_mut(8).zip(0..) {
        bytes.copy_from_slice(&(mixed(!number) ^ place).to_le_bytes());
    }
    pattern
}

/// Writes a message to where it belongs.
fn fill(into: &mut Vec<u8>, number: u64) {
    into.clear();
    into.extend_from_slice(&title(number));
    let pattern = pattern(number);
    while let left @ 1.. = length(number) as usize - into.len() {
        into.extend_from_slice(&pattern[..left.min(pattern.len())]);
    }
}

/// Returns the number of a message if all of its bytes are right.
fn check(message: &[u8]) -> Option<u64> {
    let (found, rest) = message.split_at_checked(24)?;
    let number = u64::from_le_bytes(found[..8].try_into().ok()?);
    let pattern = pattern(number);
    let is_right = number < MESSAGES
        && found == title(number)
        && message.len() as u64 == length(number)
        && rest.chunks(pattern.len()).all(|bytes| *bytes == pattern[..bytes.len()]);
    is_right.then_some(number)
}

// ---- the thread that fills the ring -----------------------------------------------------------------

/// What it and the publisher know of the ring: pointers that only grow.
struct Pointers {
    read: AtomicU64,
    stops: AtomicBool,
}

/// Fills the ring with all messages, each when there is room.
fn firmware(ring: &Pool, pointers: &Pointers, filled: &Sender<u64>, signal: &Signal) {
    let (mut write, mut bytes) = (0, Vec::new());
    for number in 0..MESSAGES {
        let end = write + length(number);
        while end - pointers.read.load(Ordering::Acquire) > RING {
            if pointers.stops.load(Ordering::Relaxed) {
                return;
            }
            thread::sleep(Duration::from_micros(50));
        }
        fill(&mut bytes, number);
        let begin = write % RING;
        let at_end = ring.write(begin as usize, &bytes);
        ring.write(0, &bytes[at_end..]);
        write = end;
        if filled.send(number).is_err() {
            return;
        }
        signal.raise();
    }
}

// ---- the publisher ----------------------------------------------------------------------------------

/// Messages of the ring from the read pointer on.
#[derive(Default)]
struct Tail {
    /// Where each ends, and whether it is complete. The first one is that of the number `first`.
    messages: VecDeque<(u64, bool)>,
    first: u64,
    read: u64,
    write: u64,
    out_of_order: u64,
}

impl Tail {
    /// The next message. Returns where it begins.
    fn push(&mut self, length: u64) -> u64 {
        let begin = self.write;
        self.write += length;
        self.messages.push_back((self.write, false));
        begin
    }

    /// A message is complete. The read pointer moves over the longest prefix of such.
    fn complete(&mut self, number: u64) -> Result<()> {
        let place = number.checked_sub(self.first).ok_or("a message completed twice")?;
        let found = self.messages.get_mut(place as usize).ok_or("an unknown message completed")?;
        if std::mem::replace(&mut found.1, true) {
            return Err("a message completed twice".into());
        }
        self.out_of_order += u64::from(place > 0);
        while let Some((end, true)) = self.messages.front().copied() {
            self.read = end;
            self.first += 1;
            self.messages.pop_front();
        }
        Ok(())
    }
}

struct Publisher {
    netio: Netio,
    socket: PublishSocket,
    ring: Pool,
    pointers: Arc<Pointers>,
    filled: Receiver<u64>,
    tail: Tail,
    published: u64,
    /// Subscribers there are, and messages of killed ones.
    here: u32,
    lost: u64,
    killed: Vec<ClosedReason>,
    begin: Instant,
}

impl Publisher {
    fn new() -> Result<(Self, u16)> {
        let domain = Fabric::shm(ShmOptions::new(network(std::process::id()))).domain()?;
        let mut netio = Netio::new(&domain, Options::default())?;
        let ring = netio.allocate(RING as usize)?;
        let options = PublishOptions::default().when_full(WhenFull::Resume);
        let socket = netio.publish_socket(&ring, options)?;
        netio.publish_at(socket, "127.0.0.1", 0)?;
        let port = netio.local_address(socket).ok_or("the publisher doesn't listen")?.port();
        let pointers =
            Arc::new(Pointers { read: AtomicU64::new(0), stops: AtomicBool::new(false) });
        let (filler, filled) = channel();
        let of_thread = (ring.clone(), pointers.clone(), netio.signal());
        thread::spawn(move || firmware(&of_thread.0, &of_thread.1, &filler, &of_thread.2));
        let publisher = Self {
            netio,
            socket,
            ring,
            pointers,
            filled,
            tail: Tail::default(),
            published: 0,
            here: 0,
            lost: 0,
            killed: Vec::new(),
            begin: Instant::now(),
        };
        Ok((publisher, port))
    }

    /// Waits until there are this many subscriptions to the tags.
    fn wait_for(&mut self, counts: [usize; 2]) -> Result<()> {
        while TAGS.map(|tag| self.netio.subscriber_count(self.socket, tag)) != counts {
            self.event()?;
        }
        Ok(())
    }

    /// Takes an event.
    fn event(&mut self) -> Result<()> {
        if self.begin.elapsed() > DEADLINE {
            let Self { netio, tail, published, here, .. } = self;
            let (first, write) = (tail.first, tail.write - tail.read);
            return Err(format!(
                "not done within {DEADLINE:?}: {published} published, {first} complete in order, {write} bytes under \
                 way, {here} subscribers, {:?}",
                netio.counts()
            )
            .into());
        }
        match self.netio.poll(Wait::For(Duration::from_millis(100)))? {
            Some(Event::SubscriberConnected { .. }) => self.here += 1,
            Some(Event::SubscriberClosed { reason, .. }) => {
                self.here -= 1;
                if reason != ClosedReason::Disconnected {
                    self.killed.push(reason);
                }
            }
            Some(Event::Published { message, lost, .. }) => {
                self.lost += u64::from(lost);
                self.complete(&message)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// All subscribers of a message have it, or are gone: its memory is free.
    fn complete(&mut self, message: &Message) -> Result<()> {
        let bytes: Vec<u8> = message.parts().iter().flat_map(|part| part.to_vec()).collect();
        if check(&bytes) != Some(message.key) {
            return Err(format!("message {} was overwritten too early", message.key).into());
        }
        self.tail.complete(message.key)?;
        self.pointers.read.store(self.tail.read, Ordering::Release);
        Ok(())
    }

    /// The next message, if the thread has filled one. At the ring's end it goes on at its begin: in two parts.
    fn next(&mut self) -> Result<Option<Message>> {
        let number = match self.filled.try_recv() {
            Ok(number) => number,
            Err(TryRecvError::Empty) => return Ok(None),
            Err(TryRecvError::Disconnected) => return Err("the thread has ended".into()),
        };
        let length = length(number);
        let begin = self.tail.push(length) % RING;
        let end = begin + length;
        let part = |from: u64, to: u64| self.ring.part(from as usize..to as usize);
        let message = match end.checked_sub(RING) {
            None | Some(0) => Message::of(part(begin, end)?),
            Some(rest) => Message::gather([part(begin, RING)?, part(0, rest)?]),
        };
        Ok(Some(message.key(number)))
    }

    /// Publishes all messages. `at` is called once, after some of them.
    fn publish_all(&mut self, mut at: impl FnMut() -> Result<()>) -> Result<()> {
        let mut held = None;
        while self.tail.first < MESSAGES {
            let next = match held.take() {
                None if self.published < MESSAGES => self.next()?,
                held => held,
            };
            let Some(message) = next else {
                self.event()?;
                continue;
            };
            match self.netio.publish(self.socket, tag(message.key), message) {
                Published::UnderWay => {
                    self.published += 1;
                    if self.published == KILLED_AT {
                        at()?;
                    }
                    // Without waiting, so that memory comes back while there is something to publish.
                    self.events_there_are()?;
                }
                Published::Again(message) => {
                    held = Some(message);
                    self.event()?;
                }
                other => return Err(format!("not published: {other:?}").into()),
            }
        }
        Ok(())
    }

    fn events_there_are(&mut self) -> Result<()> {
        while let Some(event) = self.netio.poll(Wait::No)? {
            match event {
                Event::Published { message, lost, .. } => {
                    self.lost += u64::from(lost);
                    self.complete(&message)?;
                }
                Event::SubscriberClosed { reason, .. } => {
                    self.here -= 1;
                    self.killed.push(reason);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Ends: subscribers are told, and end as well.
    fn end(&mut self) -> Result<()> {
        self.netio.close(self.socket);
        while self.here > 0 {
            self.event()?;
        }
        Ok(())
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.pointers.stops.store(true, Ordering::Relaxed);
    }
}

fn publish() -> Result<()> {
    let (mut publisher, port) = Publisher::new()?;
    let fast = Subscriber::start("fast", port)?;
    let slow = Subscriber::start("slow", port)?;
    let mut killed = Subscriber::start("killed", port)?;
    publisher.wait_for([2, 2])?;
    publisher.publish_all(|| Ok(killed.0.kill()?))?;
    publisher.end()?;

    let mib = publisher.tail.write >> 20;
    println!("published {MESSAGES} messages, {mib} MiB, through a ring of {} MiB", RING >> 20);
    println!("fast subscriber: {}", fast.outcome()?);
    println!("slow subscriber: {}", slow.outcome()?);
    if publisher.killed.len() != 1 || publisher.tail.read != publisher.tail.write {
        return Err(format!("one subscriber was killed, but {:?}", publisher.killed).into());
    }
    println!("killed subscriber: gone, and the memory it held is free");
    if publisher.tail.out_of_order == 0 {
        return Err("all completions came in order".into());
    }
    println!("completions came out of order, the read pointer never did");
    Ok(())
}

// ---- subscribers ------------------------------------------------------------------------------------

/// A process that subscribes; killed and reaped when dropped.
struct Subscriber(Child);

impl Subscriber {
    fn start(role: &str, port: u16) -> Result<Self> {
        let parent = std::process::id();
        let mut command = Command::new(std::env::current_exe()?);
        command.args([role, &port.to_string(), &parent.to_string()]);
        Ok(Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?))
    }

    /// What it says at its end.
    fn outcome(mut self) -> Result<String> {
        let mut text = String::new();
        if let Some(mut stdout) = self.0.stdout.take() {
            stdout.read_to_string(&mut text)?;
        }
        match self.0.wait()?.success() {
            true => Ok(text.trim().to_owned()),
            false => Err(format!("a subscriber failed: {text}").into()),
        }
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        // Both fail only if it is reaped already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The network that a publisher and its subscribers share.
fn network(publisher: u32) -> String {
    format!("ring-{publisher}")
}

/// A subscriber: the slow one has the second tag, the killed one the first, the fast one both.
fn subscribe(role: &str, port: u16, publisher: u32) -> Result<String> {
    let tags = match role {
        "fast" => &TAGS[..],
        "slow" => &TAGS[1..],
        _ => &TAGS[..1],
    };
    let domain = Fabric::shm(ShmOptions::new(network(publisher))).domain()?;
    let mut netio = Netio::new(&domain, Options::default())?;
    let buffers = Buffers { count: 64, size: 8 * LONGEST as usize };
    let options = SubscribeOptions::default().buffers(buffers);
    let socket = netio.subscribe_socket("127.0.0.1", port, options);
    for tag in tags {
        netio.subscribe(socket, *tag)?;
    }
    let step = if tags.len() == 1 { 2 } else { 1 };
    let mut expected =
        (0..MESSAGES).skip_while(|number| !tags.contains(&tag(*number))).step_by(step);
    let mut count = 0;
    let begin = Instant::now();
    while begin.elapsed() < DEADLINE {
        match netio.poll(Wait::For(Duration::from_millis(100)))? {
            Some(Event::Message { message, .. }) => {
                let number = check(&message).ok_or("a message with wrong bytes")?;
                if expected.next() != Some(number) {
                    return Err(format!("message {number} out of order").into());
                }
                count += 1;
                if role == "slow" {
                    thread::sleep(PAUSE);
                }
            }
            Some(Event::Closed { reason: ClosedReason::DisconnectedByPeer, .. }) => {
                return match expected.next() {
                    None => Ok(format!("{count} messages, all whole and in order")),
                    Some(number) => Err(format!("message {number} is lost").into()),
                };
            }
            Some(event @ (Event::Closed { .. } | Event::Refused { .. })) => {
                return Err(format!("{event:?}").into());
            }
            _ => {}
        }
    }
    Err(format!("not done within {DEADLINE:?}").into())
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => publish(),
        [role, port, publisher] => {
            println!("{}", subscribe(role, port.parse()?, publisher.parse()?)?);
            Ok(())
        }
        _ => Err("the example has no arguments".into()),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
