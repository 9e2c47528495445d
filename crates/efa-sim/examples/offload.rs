//! Measures the effect of a device's matching list: message rates with lists of 0, 16 and 256 entries
//! under MPI-like traffic, as a table and as a plot.
//!
//! ```text
//! $ cargo run --release -p efa-sim --example offload [-- FILE.svg]      (target/offload.svg)
//! outstanding  list  by device  commands     syncs    software     device      rate
//!    receives                %  /message     /1000  ns/message ns/message       M/s
//!          64     0        0.0      0.00       0.0        1881        302      0.53
//!          64    16       50.6      0.51       0.1         900        292      1.11
//!          64   256       94.0      0.95       9.5         259        337      3.86
//! plot: target/offload.svg
//! ```
//!
//! These are 3 of the 12 rows, as measured for docs/matching.md.
//!
//! ```text
//!   a step:  post receives (15 of 16) ─► eight ranks send, in bursts ─► post the late receives
//!            from one rank or any         1 of 16 a rendezvous           their messages wait
//!
//!   time of  post, completions, commands        carrying out, matching, scattering, reading
//!            ───────── software ─────────       ───────────────── device ──────────────────
//! ```
//!
//! The device is a model that runs on the same processor. A real device works in parallel with the
//! processor, so the rate is computed from the time of the software part alone; the time of the model is
//! shown separately. The rate excludes the application's own work and cache effects of copies.

#![allow(clippy::unwrap_used, reason = "an example may panic")]

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use efa_match::Envelope;
use efa_plot::{Corner, Plot, Series};
use efa_proto::tm::Tmh;
use efa_sim::tm::{
    Connection, Link, SendId, SgeList, TmCaps, TmDevice, TmLimits, TmReceiver, TmReceiverOptions,
    TmSender,
};

const LISTS: [u32; 3] = [0, 16, 256];
/// Number of receives in a step.
const OUTSTANDING: [usize; 4] = [16, 64, 256, 1024];
const RANKS: usize = 8;
const COMMUNICATOR: u16 = 7;
const MTU: usize = 4096;
/// Bytes of an eager message, and of a rendezvous message.
const EAGER: usize = 1024;
const LARGE: usize = 16 * 1024;
/// Messages that arrive between two polls by software.
const BURST: usize = 16;
/// A debug build only checks that all messages arrive, so it sends fewer.
const MESSAGES: usize = if cfg!(debug_assertions) { 1 << 8 } else { 1 << 16 };

fn main() {
    // `cargo test NAME` runs it with NAME, which is no file.
    let named = std::env::args().nth(1).map(PathBuf::from);
    let named = named.filter(|file| file.extension().is_some_and(|extension| extension == "svg"));
    let file = named.or_else(|| (!cfg!(debug_assertions)).then(|| "target/offload.svg".into()));
    println!(
        "{:>11} {:>5} {:>10} {:>9} {:>9} {:>11} {:>10} {:>9}",
        "outstanding", "list", "by device", "commands", "syncs", "software", "device", "rate"
    );
    println!(
        "{:>11} {:>5} {:>10} {:>9} {:>9} {:>11} {:>10} {:>9}",
        "receives", "", "%", "/message", "/1000", "ns/message", "ns/message", "M/s"
    );
    let mut series = Vec::new();
    for list in LISTS {
        let mut points = Vec::new();
        for outstanding in OUTSTANDING {
            let run = Run::new(list, outstanding).finish();
            println!("{outstanding:>11} {list:>5} {run}");
            points.push((outstanding as f64, run.rate()));
        }
        series.push(Series::new(format!("list of {list}"), points));
    }
    let plot = Plot {
        title: "Messages that software can receive, by the device's list".into(),
        x: "receives outstanding".into(),
        y: "million messages a second".into(),
        legend: Corner::LowerLeft,
        series,
    };
    let Some(file) = file else { return };
    if let Some(directory) = file.parent() {
        std::fs::create_dir_all(directory).unwrap();
    }
    std::fs::write(&file, plot.to_svg().unwrap()).unwrap();
    println!("plot: {}", file.display());
}

/// The figures of a run.
struct Outcome {
    messages: usize,
    by_device: u64,
    commands: u64,
    syncs: u64,
    /// Nanoseconds per message, one entry per step.
    software: Vec<f64>,
    device: Vec<f64>,
}

impl Outcome {
    /// Million messages per second, from the time of software alone.
    fn rate(&self) -> f64 {
        1e3 / median(&self.software)
    }
}

/// The median, which other load on the machine disturbs less than the mean.
fn median(steps: &[f64]) -> f64 {
    let mut steps = steps.to_vec();
    steps.sort_by(f64::total_cmp);
    steps[steps.len() / 2]
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let messages = self.messages as f64;
        write!(
            f,
            "{:>10.1} {:>9.2} {:>9.1} {:>11.0} {:>10.0} {:>9.2}",
            100.0 * self.by_device as f64 / messages,
            self.commands as f64 / messages,
            1e3 * self.syncs as f64 / messages,
            median(&self.software),
            median(&self.device),
            self.rate()
        )
    }
}

/// A message of a step and its matching receive.
struct Exchange {
    rank: usize,
    tag: u32,
    /// The receive matches any rank.
    any_rank: bool,
    /// The receive is posted after the message has arrived.
    late: bool,
    large: bool,
}

struct Run {
    receiver: TmReceiver,
    senders: Vec<TmSender>,
    /// Keys of the regions of rendezvous sends in progress.
    in_use: HashMap<(usize, SendId), u32>,
    random: fastrand::Rng,
    outstanding: usize,
    /// Time spent in the current step.
    software: Duration,
    device: Duration,
    outcome: Outcome,
}

impl Run {
    fn new(list: u32, outstanding: usize) -> Self {
        let caps =
            TmCaps { max_rndv_hdr_size: 64, max_num_tags: 256, max_ops: 64, max_sge: 1, rc: true };
        let options = TmReceiverOptions {
            list: (list > 0).then_some(TmLimits { max_num_tags: list, max_ops: caps.max_ops }),
            // With a short list, nearly all messages of a step can be unexpected for the device.
            buffers: outstanding + BURST,
            buffer_len: Tmh::SIZE + EAGER,
            mtu: MTU,
            first_count: 0,
            seed: 1,
        };
        let mut receiver = TmReceiver::new(&TmDevice::new(caps, MTU), options).unwrap();
        for _ in 0..RANKS {
            receiver.connect().unwrap();
        }
        Self {
            receiver,
            senders: vec![TmSender::new(MTU, caps.max_rndv_hdr_size); RANKS],
            in_use: HashMap::new(),
            random: fastrand::Rng::with_seed(u64::from(list) + outstanding as u64),
            outstanding,
            software: Duration::ZERO,
            device: Duration::ZERO,
            outcome: Outcome {
                messages: 0,
                by_device: 0,
                commands: 0,
                syncs: 0,
                software: Vec::new(),
                device: Vec::new(),
            },
        }
    }

    fn finish(mut self) -> Outcome {
        while self.outcome.messages < MESSAGES {
            self.step();
        }
        self.outcome.syncs = self.receiver.syncs();
        self.outcome
    }

    /// Runs one step: all its receives, and a message for each.
    fn step(&mut self) {
        let exchanges: Vec<Exchange> = (0..self.outstanding)
            .map(|n| Exchange {
                rank: n % RANKS,
                tag: n as u32,
                any_rank: self.random.u32(..16) == 0,
                late: self.random.u32(..16) == 0,
                large: self.random.u32(..16) == 0,
            })
            .collect();
        let in_time: Vec<usize> = (0..exchanges.len()).filter(|&n| !exchanges[n].late).collect();
        self.post(&exchanges, &in_time);
        self.settle();
        // Messages of the ranks arrive in random order.
        let mut order: Vec<usize> = (0..exchanges.len()).collect();
        self.random.shuffle(&mut order);
        for burst in order.chunks(BURST) {
            for &n in burst {
                self.send(&exchanges[n]);
            }
            self.settle();
            let late: Vec<usize> = burst.iter().copied().filter(|&n| exchanges[n].late).collect();
            self.post(&exchanges, &late);
            self.settle();
        }
        self.check(&exchanges);
        let each =
            |time: &mut Duration| std::mem::take(time).as_nanos() as f64 / exchanges.len() as f64;
        self.outcome.software.push(each(&mut self.software));
        self.outcome.device.push(each(&mut self.device));
    }

    fn post(&mut self, exchanges: &[Exchange], which: &[usize]) {
        let posts: Vec<_> = which
            .iter()
            .map(|&n| {
                let Exchange { rank, tag, any_rank, large, .. } = exchanges[n];
                let rank = (!any_rank).then_some(rank as u32);
                let pattern = Envelope::pattern(COMMUNICATOR, rank, Some(tag)).unwrap();
                (n as u64, pattern, SgeList::zeroed(if large { LARGE } else { EAGER }))
            })
            .collect();
        let start = Instant::now();
        for (context, pattern, buffer) in posts {
            self.receiver.post(context, pattern.tag, pattern.ignore, buffer).unwrap();
        }
        self.software += start.elapsed();
    }

    fn send(&mut self, exchange: &Exchange) {
        let &Exchange { rank, tag, large, .. } = exchange;
        let envelope = Envelope::new(COMMUNICATOR, rank as u32, tag).unwrap();
        let header = Tmh { app_ctx: tag, tag: envelope.to_tag() };
        let sender = &mut self.senders[rank];
        if large {
            let region = sender.register(vec![tag as u8; LARGE]);
            let send = sender.rendezvous(header, region, b"").unwrap();
            self.in_use.insert((rank, send), region.rkey);
        } else {
            sender.eager(header, &[tag as u8; EAGER]);
        }
    }

    /// Runs device and software alternately until both are idle, and adds up their times.
    fn settle(&mut self) {
        loop {
            let start = Instant::now();
            let mut moved = self.device();
            let between = Instant::now();
            let before = self.receiver.srq().ops_len();
            while self.receiver.handle_completion().unwrap() {
                moved = true;
            }
            self.receiver.command();
            moved |= self.receiver.srq().ops_len() != before;
            self.software += between.elapsed();
            self.device += between - start;
            if !moved {
                return;
            }
        }
    }

    /// Carries out the device's commands and delivers the packets of all links.
    fn device(&mut self) -> bool {
        let mut moved = false;
        while self.receiver.carry_out() {
            self.outcome.commands += 1;
            moved = true;
        }
        for (rank, sender) in self.senders.iter_mut().enumerate() {
            let connection = Connection(rank as u32);
            for link in [Link::Matching, Link::Software] {
                while let Some(packet) = sender.poll_transmit(link) {
                    self.receiver.receive(connection, link, packet).unwrap();
                    moved = true;
                }
                while let Some(packet) = self.receiver.poll_transmit(connection, link) {
                    sender.receive(link, packet);
                    moved = true;
                }
            }
        }
        moved
    }

    /// Asserts that each receive got its complete message and that all send regions are released.
    fn check(&mut self, exchanges: &[Exchange]) {
        for _ in 0..exchanges.len() {
            let received = self.receiver.poll().expect("a completion for each receive");
            let exchange = &exchanges[received.context as usize];
            let (info, len) = received.result.unwrap();
            assert_eq!(info.app_ctx, exchange.tag);
            assert_eq!(len, if exchange.large { LARGE } else { EAGER });
            assert!(received.buffer.gather(len).iter().all(|&byte| byte == exchange.tag as u8));
        }
        assert!(self.receiver.poll().is_none());
        for (rank, sender) in self.senders.iter_mut().enumerate() {
            while let Some(send) = sender.poll_done() {
                let rkey = self.in_use.remove(&(rank, send)).unwrap();
                assert_eq!(sender.deregister(rkey).unwrap().unwrap().len(), LARGE);
            }
        }
        assert!(self.in_use.is_empty());
        self.outcome.messages += exchanges.len();
        self.outcome.by_device =
            self.outcome.messages as u64 - u64::from(self.receiver.offload().handled());
    }
}
