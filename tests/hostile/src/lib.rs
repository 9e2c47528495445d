//! Hostile input for every part that hears strangers.
//!
//! Each fuzz target is a function of bytes here, so that three can drive it: libFuzzer with the
//! coverage of what it runs (`cargo xtask fuzz`), tests that replay every input that ever mattered,
//! and a campaign of random inputs on any toolchain.
//!
//! ```text
//!   fuzz/fuzz_targets/*.rs ─┐
//!   tests/replay.rs ────────┼──► Target::run(bytes) ──► parts of the workspace, and what must hold
//!   main.rs: random, show ──┘
//! ```
//!
//! | target | input | what must hold |
//! |---|---|---|
//! | `packet` | any bytes | parsing answers; what it accepts is shown, emitted and parsed to the same |
//! | `headers` | fields of a header | it is written, read back to the same, and refused where there is no room |
//! | `tag_matching_headers` | any bytes | as `packet`, for TMH and RVH |
//! | `capture` | any bytes | a pcapng file is read or refused; what was read is written and read to the same |
//! | `decode` | any bytes | `efa decode` prints as many packets in each form, or tells what is wrong |
//! | `control` | what the other side of `efa pingpong` says | it is understood or refused, told on one line, and costs no more memory than a plan may |
//! | `doctor` | files of a machine | `efa doctor` tells of them |
//! | `handshake` | packets and calls in any order | the state is what was heard last |
//! | `matcher`, `window`, `offload` | operations in any order | the plainest thing that does the same does the same |
//! | `shm_link` | what the rings of a neighbour hold | no crash; a third queue pair is served |
//! | `tcp_link` | what the other end of a connection says | no panic; what was begun ends; the queue pair lives |
//! | `c_calls` | calls of a C program that holds handles, sizes and pointers wrong | an error number, or what was asked for; all that was made can be given back |
//! | `in_place` | a liar's packets and an honest sender's messages, received in place | honest messages arrive once with their bytes, receives end once |
//! | `lying_peer` | what a peer does that knows the protocol | the [invariants](#a-lying-peer) |
//! | `lying_tag_list` | the same, against a device that matches tagged messages itself | the same, and the list is never in disorder |
//! | `lying_packets` | packets of its making, field by field | the same |
//!
//! # A lying peer
//!
//! A real endpoint, an honest peer at its side, and the liar. No panic; no byte outside of the
//! buffers of an operation, and none of memory that wasn't offered; no operation ends twice, and
//! each ends once the liar is removed; every operation with the honest peer ends well and with its
//! bytes; whoever is blamed in an event is the liar.

#![deny(unsafe_code)]

/// A line on standard output. Nobody may read it any more: what a target comes to doesn't depend on that.
#[doc(hidden)]
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($words)*);
    }};
}

#[allow(unsafe_code, reason = "it plays a C program")]
mod c_calls;
mod capture;
mod device;
mod handshake;
mod headers;
mod in_place;
mod input;
mod liar;
mod links;
mod lying;
mod matching;
mod offloaded;
mod packet;
mod seeds;
mod tool;
mod world;

pub use seeds::{is_seed, seeds};

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// As it is called in `fuzz/`.
    pub name: &'static str,
    /// What it is about, in a line.
    pub about: &'static str,
    /// Panics if something does not hold.
    pub run: fn(&[u8]),
    /// Runs an input that is more than bytes to a reader, and tells the story as it goes.
    show: Option<fn(&[u8])>,
}

impl Target {
    /// Shows an input as a reader wants it and runs it. Panics where `run` does.
    pub fn show(&self, bytes: &[u8]) {
        match self.show {
            Some(show) => show(bytes),
            None => {
                say!("{} bytes: {bytes:02x?}", bytes.len());
                (self.run)(bytes);
            }
        }
    }
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target {
        name: "packet",
        about: "any bytes through the packet parser, and back",
        run: packet::run,
        show: Some(packet::show),
    },
    Target {
        name: "headers",
        about: "headers of every type field by field, written and read back",
        run: headers::run,
        show: None,
    },
    Target {
        name: "tag_matching_headers",
        about: "any bytes as TMH and RVH, and back",
        run: offloaded::run,
        show: None,
    },
    Target {
        name: "capture",
        about: "any bytes as a pcapng file",
        run: capture::run,
        show: Some(capture::show),
    },
    Target {
        name: "decode",
        about: "any bytes as a capture, through all of `efa decode`",
        run: tool::decode,
        show: Some(tool::show_decode),
    },
    Target {
        name: "control",
        about: "what the other side of `efa pingpong` says before a run",
        run: tool::control,
        show: Some(tool::show_control),
    },
    Target {
        name: "doctor",
        about: "files of a machine with anything in them, for `efa doctor`",
        run: tool::doctor,
        show: None,
    },
    Target {
        name: "handshake",
        about: "any sequence of packets in the handshake with a peer",
        run: handshake::run,
        show: None,
    },
    Target {
        name: "matcher",
        about: "the matcher against two lists",
        run: matching::matcher,
        show: None,
    },
    Target {
        name: "window",
        about: "the reorder window against a map",
        run: matching::window,
        show: None,
    },
    Target {
        name: "offload",
        about: "software and a device's list of tags against MPI's law",
        run: matching::offload,
        show: None,
    },
    Target {
        name: "shm_link",
        about: "rings of a neighbour on the shm link that hold anything",
        run: links::shm,
        show: None,
    },
    Target {
        name: "tcp_link",
        about: "somebody on the tcp link who says anything",
        run: links::tcp,
        show: None,
    },
    Target {
        name: "c_calls",
        about: "calls of libefa_soft with handles, sizes and pointers of any kind",
        run: c_calls::run,
        show: None,
    },
    Target {
        name: "in_place",
        about: "an endpoint that receives in place, an honest sender and a liar",
        run: in_place::run,
        show: None,
    },
    Target {
        name: "lying_peer",
        about: "a peer that knows the protocol and lies, against an endpoint",
        run: lying::peer,
        show: Some(lying::show_peer),
    },
    Target {
        name: "lying_tag_list",
        about: "the same, against an endpoint on a device with a list of tags",
        run: lying::peer_of_tag_lists,
        show: Some(lying::show_peer_of_tag_lists),
    },
    Target {
        name: "lying_packets",
        about: "packets field by field, against an endpoint",
        run: lying::packets,
        show: Some(lying::show_packets),
    },
];

/// The target of a name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Runs a target by its name.
///
/// # Panics
/// If something does not hold, or there is no such target.
pub fn run(name: &str, bytes: &[u8]) {
    let target = target(name).unwrap_or_else(|| panic!("no target {name}"));
    (target.run)(bytes);
}

/// Random inputs, one after the other: out of nothing, or out of others that they look like.
#[derive(Debug)]
pub struct Inputs {
    random: fastrand::Rng,
    seeds: Vec<Vec<u8>>,
    bytes: Vec<u8>,
}

impl Inputs {
    /// The inputs of a seed. With `seeds`, most of them are made of these.
    #[must_use]
    pub fn new(seed: u64, seeds: Vec<Vec<u8>>) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), seeds, bytes: Vec::new() }
    }

    /// The next one.
    pub fn advance(&mut self) -> &[u8] {
        let Self { random, seeds, bytes } = self;
        bytes.clear();
        if seeds.is_empty() || random.u8(..) < 16 {
            let most = [16, 48, 128, 384][random.usize(0..4)];
            let length = random.usize(0..=most);
            bytes.extend(std::iter::repeat_with(|| random.u8(..)).take(length));
            return bytes;
        }
        bytes.extend_from_slice(&seeds[random.usize(0..seeds.len())]);
        for _ in 0..random.usize(1..6) {
            mutate(bytes, random);
        }
        bytes
    }
}

/// Where files are in memory, if there is such a place.
fn memory() -> std::path::PathBuf {
    let memory = std::path::PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

fn mutate(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    const EDGES: [u64; 8] = [0, 1, 4, 5, 0x7fff_ffff, u32::MAX as u64, i64::MAX as u64, u64::MAX];
    if bytes.is_empty() {
        return bytes.push(random.u8(..));
    }
    let at = random.usize(0..bytes.len());
    match random.u8(0..8) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, random.u8(..)),
        2 => drop(bytes.drain(at..(at + random.usize(1..9)).min(bytes.len()))),
        3 => {
            let width = [1, 2, 4, 8][random.usize(0..4)];
            let edge = EDGES[random.usize(0..EDGES.len())].to_le_bytes();
            let end = (at + width).min(bytes.len());
            bytes[at..end].copy_from_slice(&edge[..end - at]);
        }
        4 => bytes[at] ^= 1 << random.u8(0..8),
        // The head decides most.
        5 => {
            let at = at % 12;
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random.u8(..);
            }
        }
        _ => bytes[at] = random.u8(..),
    }
}
