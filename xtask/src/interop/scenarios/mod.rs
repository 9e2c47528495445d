//! The scenarios; each can be run by any pair of peers.

mod matching;
mod memory;
mod not_ready;
mod order;
mod pingpong;
mod random;
mod remote;
mod sizes;
mod trouble;
mod unexpected;

use std::fmt;

use anyhow::Result;

use super::build::Release;
use super::matrix::{Cell, Pair, Rdma};
use super::packets::Packets;
use super::programs::Programs;
use super::stage::{Side, Stage};

/// What two peers do, and what must complete.
pub(crate) struct Scenario {
    /// Its name, on the command line too.
    pub(crate) name: &'static str,
    /// In a line.
    pub(crate) about: &'static str,
    /// Faults of the device.
    pub(crate) faults: Faults,
    /// Variables for the peers, libfabric's in general.
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// Options of the sender's `open`.
    pub(crate) sender: &'static str,
    /// Options of the receiver's `open`.
    pub(crate) receiver: &'static str,
    /// Cells that are known to fail because of libfabric.
    pub(crate) known: &'static [Known],
    /// Checks the captures at the end; returns notes for the report.
    pub(crate) packets: fn(&Packets) -> Result<Vec<String>>,
    /// The program of the scenario.
    pub(crate) script: Script,
}

/// The program of a scenario.
#[derive(Clone, Copy)]
pub(crate) enum Script {
    /// Commands to our peers.
    Peers(fn(&mut Stage<'_>) -> Result<()>),
    /// The same, as a seed draws them.
    Random(fn(&mut Stage<'_>, u64) -> Result<()>),
    /// Complete programs.
    Programs(fn(&mut Programs<'_>) -> Result<()>),
}

/// Faults of the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// Packets overtake each other, as this seed says.
    pub(crate) reorder: Option<u64>,
    /// Chance that a packet finds the receiver not ready, from 0 to 1.
    pub(crate) receiver_not_ready: Option<&'static str>,
    /// How many packets of each type find the receiver not ready before one gets through.
    pub(crate) not_ready_of_each: Option<&'static str>,
    /// Registrations of memory that fail.
    pub(crate) refused: Option<Refused>,
}

/// Registrations that fail at one of the peers, as `EFA_SOFT_REFUSE` says it: `LEAST-MOST:COUNT`. The
/// stacks register memory of other lengths for the same message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    pub(crate) side: Side,
    pub(crate) of_c: &'static str,
    pub(crate) of_rust: &'static str,
    /// Of a C program on our provider.
    pub(crate) of_provider: &'static str,
}

/// Cells that fail because of libfabric, as the control shows, and why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) pairs: &'static [Pair],
    /// With and without device RDMA if `None`.
    pub(crate) rdma: Option<Rdma>,
    /// The first release that fails, and the first after it that doesn't.
    pub(crate) releases: [Release; 2],
    pub(crate) reason: &'static str,
}

impl Faults {
    const NONE: Self =
        Self { reorder: None, receiver_not_ready: None, not_ready_of_each: None, refused: None };
}

impl Known {
    /// With and without device RDMA.
    const fn of(pairs: &'static [Pair], releases: [Release; 2], reason: &'static str) -> Self {
        Self { pairs, rdma: None, releases, reason }
    }

    /// Where there is device RDMA.
    const fn with_rdma(
        pairs: &'static [Pair],
        releases: [Release; 2],
        reason: &'static str,
    ) -> Self {
        Self { pairs, rdma: Some(Rdma::On), releases, reason }
    }

    pub(crate) fn is(&self, cell: &Cell, libfabric: Release) -> bool {
        let [first, fixed] = self.releases;
        self.pairs.contains(&cell.pair)
            && self.rdma.is_none_or(|rdma| rdma == cell.rdma)
            && (first..fixed).contains(&libfabric)
    }
}

impl Scenario {
    /// A scenario on a device without faults.
    const fn new(
        name: &'static str,
        about: &'static str,
        run: fn(&mut Stage<'_>) -> Result<()>,
    ) -> Self {
        Self {
            name,
            about,
            faults: Faults::NONE,
            environment: &[],
            sender: "",
            receiver: "",
            known: &[],
            packets: |_| Ok(Vec::new()),
            script: Script::Peers(run),
        }
    }

    /// A scenario that a seed draws.
    const fn random(
        name: &'static str,
        about: &'static str,
        run: fn(&mut Stage<'_>, u64) -> Result<()>,
    ) -> Self {
        Self { script: Script::Random(run), ..Self::new(name, about, |_| Ok(())) }
    }

    /// Whether a seed draws it.
    pub(crate) fn is_random(&self) -> bool {
        matches!(self.script, Script::Random(_))
    }

    /// A scenario of complete programs.
    const fn of_programs(
        name: &'static str,
        about: &'static str,
        run: fn(&mut Programs<'_>) -> Result<()>,
    ) -> Self {
        Self { script: Script::Programs(run), ..Self::new(name, about, |_| Ok(())) }
    }
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A size for each subprotocol: empty, eager, medium, long-CTS, long-CTS beyond a window, long-read.
const SIZES: [u64; 7] = [0, 1, 8_000, 30_000, 200_000, 400_000, READ_SIZE];
const READ_SIZE: u64 = 1_500_000;

/// All of them, in the order of the table.
pub(crate) fn all() -> impl Iterator<Item = &'static Scenario> {
    let rest = [
        unexpected::ALL,
        order::ALL,
        matching::ALL,
        trouble::ALL,
        remote::ALL,
        not_ready::ALL,
        memory::ALL,
        random::ALL,
        pingpong::ALL,
    ];
    sizes::ALL.iter().copied().chain(rest).flatten()
}
