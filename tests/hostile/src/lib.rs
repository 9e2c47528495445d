//! Fuzz targets for every part that reads input from unknown or hostile peers.
//!
//! Each fuzz target is a function of bytes. It is run by libFuzzer with coverage feedback
//! (`cargo xtask fuzz`), by tests that replay all kept inputs, and by a campaign of random inputs that
//! needs no fuzzer.
//!
//! ```text
//!   fuzz/fuzz_targets/*.rs ─┐
//!   tests/replay.rs ────────┼──► Target::run(bytes) ──► code under test, and its invariants
//!   main.rs: random, show ──┘
//! ```
//!
//! | target | input | what must hold |
//! |---|---|---|
//! | `packet` | any bytes | parses or gives an error; what parses can be displayed, emitted and parsed again to an equal packet; cut off anywhere, it has the same header or an error |
//! | `headers` | fields of a header | they are emitted and parse to an equal header; a short buffer is an error |
//! | `tag_matching_headers` | any bytes | as `packet`, for TMH and RVH |
//! | `capture` | any bytes | a pcapng file is read or gives an error; what was read can be written, whole or the first bytes of each packet, and read again |
//! | `decode` | any bytes | `efa decode` prints the same number of packets in each format, or an error; no more of an operation; messages are no more than packets |
//! | `control` | bytes from the other side of `efa pingpong` or `fi_pingpong` | they are accepted or give an error of one line; memory is bounded |
//! | `doctor` | files of a machine with any contents | `efa doctor` reports without a panic |
//! | `connection` | bytes from the other side of a connection's TCP exchange, its end, and time | a side says how it ended once; it waits for the other side no longer than its deadline |
//! | `handshake` | packets and calls in any order | the state equals that of the last HANDSHAKE |
//! | `matcher`, `window`, `offload` | operations in any order | results equal those of a simple reference implementation |
//! | `shm_link` | contents of the rings of another process | no crash; a third queue pair still works |
//! | `tcp_link` | bytes from the other end of a connection; more connections than there is room for, left in any state while time passes | no panic; every operation completes, also of a sender without room; packets of others arrive once, in order; the queue pair still works |
//! | `subscriptions` | what a hostile subscriber and a hostile publisher say to contexts of `efa-netio`, messages published, and time | no panic; an honest subscriber gets each publication once; nothing is left when the hostile side is gone |
//! | `c_calls` | calls of `libefa_soft` with handles, sizes and pointers of any kind | each call succeeds or returns an error number; every object can be destroyed |
//! | `rings` | descriptors and doorbells of the direct data path of `libefa_soft` with any contents | each descriptor completes once; a count beyond the ring fails the queue pair; a correct program works afterwards |
//! | `provider_calls` | calls of our provider for libfabric through its tables, with objects, sizes, pointers and flags of any kind | the same; a correct program works afterwards |
//! | `in_place` | a hostile peer's packets and an honest sender's messages, received in place | honest messages arrive once and intact; each receive completes once |
//! | `lying_peer` | decisions of a hostile peer that knows the protocol | the [invariants](#hostile-peer) |
//! | `lying_tag_list` | the same decisions, on a device with a tag list | the same, and the list stays in order |
//! | `lying_packets` | packets field by field | the same |
//!
//! # Hostile peer
//!
//! An endpoint exchanges messages with an honest peer while a hostile peer sends to it. Nothing panics; no
//! byte outside of an operation's buffers or of exposed memory is read or written; each operation completes
//! once, at the latest when the hostile peer is removed; all operations with the honest peer succeed with
//! the right bytes; events about faults name only the hostile peer. The hostile peer also restarts in the midst
//! of what it began: the unexpected bytes counted stay within the share of its queue pairs, whatever their
//! incarnations, and are zero once its messages are received.

#![deny(unsafe_code)]

/// Prints a line on standard output and ignores errors: a closed pipe must not fail a run.
#[doc(hidden)]
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($words)*);
    }};
}

#[allow(unsafe_code, reason = "it calls the library as a C program does")]
mod c_calls;
mod capture;
mod connection;
mod device;
mod handshake;
mod headers;
mod hostile_peer;
mod in_place;
mod input;
mod links;
mod lying;
mod matching;
mod offloaded;
mod packet;
#[allow(unsafe_code, reason = "it calls the library as a C program does")]
mod provider_calls;
#[allow(unsafe_code, reason = "it writes to the rings as a C program does")]
mod rings;
mod seeds;
mod subscriptions;
mod tool;
mod world;

pub use seeds::{is_seed, seeds};

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target in `fuzz/`.
    pub name: &'static str,
    /// One line on what is tested.
    pub about: &'static str,
    /// Runs the code under test. Panics if an invariant is violated.
    pub run: fn(&[u8]),
    /// Runs an input and prints its steps, for targets whose input is a list of decisions.
    show: Option<fn(&[u8])>,
}

impl Target {
    /// Prints an input in readable form and runs it. Panics where `run` does.
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

/// All fuzz targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "packet",
        about: "packet parser: parse any bytes, emit and parse again",
        run: packet::run,
        show: Some(packet::show),
    },
    Target {
        name: "headers",
        about: "headers of every type from any fields: emit and parse again",
        run: headers::run,
        show: None,
    },
    Target {
        name: "tag_matching_headers",
        about: "TMH and RVH parser: parse any bytes, emit and parse again",
        run: offloaded::run,
        show: None,
    },
    Target {
        name: "capture",
        about: "pcapng reader: read any bytes, write and read again",
        run: capture::run,
        show: Some(capture::show),
    },
    Target {
        name: "decode",
        about: "`efa decode` on a capture of any bytes",
        run: tool::decode,
        show: Some(tool::show_decode),
    },
    Target {
        name: "control",
        about: "`efa pingpong` control channel: any bytes from the other side",
        run: tool::control,
        show: Some(tool::show_control),
    },
    Target {
        name: "doctor",
        about: "`efa doctor` on system files with any contents",
        run: tool::doctor,
        show: None,
    },
    Target {
        name: "connection",
        about: "connection set-up: any bytes from the other side, at any time",
        run: connection::run,
        show: None,
    },
    Target {
        name: "handshake",
        about: "handshake state: any sequence of packets and calls",
        run: handshake::run,
        show: None,
    },
    Target {
        name: "matcher",
        about: "matcher, compared with two linear lists",
        run: matching::matcher,
        show: None,
    },
    Target {
        name: "window",
        about: "reorder window, compared with a map",
        run: matching::window,
        show: None,
    },
    Target {
        name: "offload",
        about: "tag-matching offload, checked against MPI matching order",
        run: matching::offload,
        show: None,
    },
    Target {
        name: "shm_link",
        about: "shm link: rings of another process with any contents",
        run: links::shm,
        show: None,
    },
    Target {
        name: "tcp_link",
        about: "tcp link: any bytes from the other ends of connections, more than there is room for",
        run: links::tcp,
        show: None,
    },
    Target {
        name: "subscriptions",
        about: "efa-netio: a hostile subscriber and a hostile publisher",
        run: subscriptions::run,
        show: None,
    },
    Target {
        name: "c_calls",
        about: "libefa_soft: calls with any handles, sizes and pointers",
        run: c_calls::run,
        show: None,
    },
    Target {
        name: "rings",
        about: "libefa_soft: rings of requests with any contents, doorbells with any counts",
        run: rings::run,
        show: None,
    },
    Target {
        name: "provider_calls",
        about: "libefars-fi: calls with any objects, sizes, pointers and flags",
        run: provider_calls::run,
        show: Some(provider_calls::show),
    },
    Target {
        name: "in_place",
        about: "endpoint that receives in place from an honest and a hostile peer",
        run: in_place::run,
        show: None,
    },
    Target {
        name: "lying_peer",
        about: "endpoint with a hostile peer that knows the protocol",
        run: lying::peer,
        show: Some(lying::show_peer),
    },
    Target {
        name: "lying_tag_list",
        about: "endpoint on a device with a tag list, with the same hostile peer",
        run: lying::peer_of_tag_lists,
        show: Some(lying::show_peer_of_tag_lists),
    },
    Target {
        name: "lying_packets",
        about: "endpoint with a hostile peer that sends packets field by field",
        run: lying::packets,
        show: Some(lying::show_packets),
    },
];

/// The target called `name`.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Runs a target by its name.
///
/// # Panics
/// If an invariant is violated, or there is no such target.
pub fn run(name: &str, bytes: &[u8]) {
    let target = target(name).unwrap_or_else(|| panic!("no target {name}"));
    (target.run)(bytes);
}

/// Generates random inputs, from scratch or by mutating seeds.
#[derive(Debug)]
pub struct Inputs {
    random: fastrand::Rng,
    seeds: Vec<Vec<u8>>,
    bytes: Vec<u8>,
}

impl Inputs {
    /// The inputs of a random seed. If `seeds` is not empty, most inputs are mutations of them.
    #[must_use]
    pub fn new(seed: u64, seeds: Vec<Vec<u8>>) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), seeds, bytes: Vec::new() }
    }

    /// Generates the next input.
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

/// A directory in memory if the system has one, else the directory for temporary files.
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
        // The first bytes decide most.
        5 => {
            let at = at % 12;
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random.u8(..);
            }
        }
        _ => bytes[at] = random.u8(..),
    }
}
