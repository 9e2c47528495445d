//! The scenarios, each a story that any pair of peers plays.

mod matching;
mod memory;
mod order;
mod pingpong;
mod rebuffed;
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

/// What two peers do together, and what must come of it.
pub(crate) struct Scenario {
    /// Its name, on the command line too.
    pub(crate) name: &'static str,
    /// In a line.
    pub(crate) about: &'static str,
    /// What is wrong with the device.
    pub(crate) faults: Faults,
    /// Variables for the peers, libfabric's in general.
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// Options of the sender's `open`.
    pub(crate) sender: &'static str,
    /// Options of the receiver's `open`.
    pub(crate) receiver: &'static str,
    /// Cells that are known to fail by libfabric's own fault.
    pub(crate) known: &'static [Known],
    /// What must be in the captures at the end; gives what is to be told of it.
    pub(crate) packets: fn(&Packets) -> Result<Vec<String>>,
    /// The story.
    pub(crate) story: Story,
}

/// A story, by who plays it.
#[derive(Clone, Copy)]
pub(crate) enum Story {
    /// Our peers, command by command.
    Peers(fn(&mut Stage<'_>) -> Result<()>),
    /// Programs that know what to do.
    Programs(fn(&mut Programs<'_>) -> Result<()>),
}

/// What is wrong with the device.
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
}

/// Cells that fail by libfabric's own fault, as the control shows, and why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) pairs: &'static [Pair],
    /// With and without device RDMA if `None`.
    pub(crate) rdma: Option<Rdma>,
    /// The first release that does, and the first after it that doesn't.
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
            story: Story::Peers(run),
        }
    }

    /// One that is played by programs.
    const fn of_programs(
        name: &'static str,
        about: &'static str,
        run: fn(&mut Programs<'_>) -> Result<()>,
    ) -> Self {
        Self { story: Story::Programs(run), ..Self::new(name, about, |_| Ok(())) }
    }
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A size for each way that a message can travel: nothing, one packet, several at once, with flow
/// control, more than a window of that, read by the receiver.
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
        rebuffed::ALL,
        memory::ALL,
        pingpong::ALL,
    ];
    sizes::ALL.iter().copied().chain(rest).flatten()
}
