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
//! | `lying_peer` | what a peer does that knows the protocol | the [invariants](#a-lying-peer) |
//! | `lying_packets` | packets of its making, field by field | the same |
//!
//! # A lying peer
//!
//! A real endpoint, an honest peer at its side, and the liar. No panic; no byte outside of the
//! buffers of an operation, and none of memory that wasn't offered; no operation ends twice, and
//! each ends once the liar is removed; every operation with the honest peer ends well and with its
//! bytes; whoever is blamed in an event is the liar.

#![forbid(unsafe_code)]

mod device;
mod input;
mod liar;
mod lying;
mod packet;
mod world;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// As it is called in `fuzz/`.
    pub name: &'static str,
    /// What it is about, in a line.
    pub about: &'static str,
    /// Panics if something does not hold.
    pub run: fn(&[u8]),
    /// An input as a reader wants it. It panics where `run` does, after it has told the story so
    /// far.
    pub show: fn(&[u8]),
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target {
        name: "packet",
        about: "any bytes through the packet parser, and back",
        run: packet::run,
        show: packet::show,
    },
    Target {
        name: "lying_peer",
        about: "a peer that knows the protocol and lies, against an endpoint",
        run: lying::peer,
        show: lying::show_peer,
    },
    Target {
        name: "lying_packets",
        about: "packets field by field, against an endpoint",
        run: lying::packets,
        show: lying::show_packets,
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

/// A random input, of a length that is mostly short.
#[must_use]
pub fn random_input(seed: u64, number: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let most = [16, 48, 128, 384][random.usize(0..4)];
    let length = random.usize(0..=most);
    std::iter::repeat_with(|| random.u8(..)).take(length).collect()
}
