//! The matrix: which cells there are.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use clap::ValueEnum;

use super::build::Release;
use super::scenarios::{self, Scenario};

/// The stack of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stack {
    /// libfabric on the software device.
    C,
    /// The crate `efa`.
    Rust,
}

/// The device of the peers of the crate `efa`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// The software device, by its own interface
    #[default]
    Soft,
    /// The same by the interfaces of rdma-core, as libfabric is
    Verbs,
    /// The peers are C programs on our provider for libfabric, over those interfaces
    Provider,
}

/// The devices of the peers of the crate `efa`: of one that sends, and of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Devices {
    pub(crate) sender: Device,
    pub(crate) receiver: Device,
}

impl Devices {
    /// The same for all.
    pub(crate) const fn all(device: Device) -> Self {
        Self { sender: device, receiver: device }
    }

    /// Whether a peer is on this one.
    pub(crate) fn has(self, device: Device) -> bool {
        self.sender == device || self.receiver == device
    }
}

impl fmt::Display for Devices {
    /// As [`FromStr`] takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |device: Device| {
            device.to_possible_value().map_or_else(String::new, |value| value.get_name().into())
        };
        match self.sender == self.receiver {
            true => f.write_str(&name(self.sender)),
            false => write!(f, "{},{}", name(self.sender), name(self.receiver)),
        }
    }
}

impl FromStr for Devices {
    type Err = String;

    /// One for all, or `SENDER,RECEIVER`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (sender, receiver) = text.split_once(',').unwrap_or((text, text));
        let device = |name| Device::from_str(name, false);
        Ok(Self { sender: device(sender)?, receiver: device(receiver)? })
    }
}

/// The stacks of the two peers; the first sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pair {
    /// libfabric with itself: the control
    #[value(name = "c-c")]
    CC,
    /// libfabric sends to this stack
    #[value(name = "c-rust")]
    CRust,
    /// This stack sends to libfabric
    #[value(name = "rust-c")]
    RustC,
    /// This stack with itself
    #[value(name = "rust-rust")]
    RustRust,
}

impl Pair {
    pub(crate) const ALL: [Self; 4] = [Self::CC, Self::CRust, Self::RustC, Self::RustRust];
    /// Those in which libfabric sends, or receives.
    pub(crate) const C_SENDS: &[Self] = &[Self::CC, Self::CRust];
    pub(crate) const C_RECEIVES: &[Self] = &[Self::CC, Self::RustC];

    /// Sender and receiver.
    pub(crate) const fn stacks(self) -> [Stack; 2] {
        match self {
            Self::CC => [Stack::C, Stack::C],
            Self::CRust => [Stack::C, Stack::Rust],
            Self::RustC => [Stack::Rust, Stack::C],
            Self::RustRust => [Stack::Rust, Stack::Rust],
        }
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::CC => "c-c",
            Self::CRust => "c-rust",
            Self::RustC => "rust-c",
            Self::RustRust => "rust-rust",
        })
    }
}

/// Whether the device has RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rdma {
    /// It does
    On,
    /// It doesn't
    Off,
}

impl Rdma {
    pub(crate) const ALL: [Self; 2] = [Self::Off, Self::On];

    /// As `EFA_SOFT_RDMA` says it.
    pub(crate) const fn setting(self) -> &'static str {
        match self {
            Self::On => "read,write",
            Self::Off => "none",
        }
    }
}

impl fmt::Display for Rdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// A scenario, run by two peers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) scenario: &'static Scenario,
    pub(crate) pair: Pair,
    pub(crate) rdma: Rdma,
    /// Of a random scenario.
    pub(crate) seed: u64,
}

impl Cell {
    /// Why this release of libfabric is known to fail here, if it is.
    pub(crate) fn known(&self, libfabric: Release) -> Option<&'static str> {
        let known = self.scenario.known.iter().find(|known| known.is(self, libfabric));
        known.map(|known| known.reason)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, pair, rdma, seed } = self;
        write!(f, "{}.{pair}.rdma-{rdma}", scenario.name)?;
        if scenario.is_random() { write!(f, ".seed-{seed}") } else { Ok(()) }
    }
}

/// All cells, scenario by scenario; the random ones with each of the seeds.
pub(crate) fn cells(seeds: Range<u64>) -> Vec<Cell> {
    let mut cells = Vec::new();
    for scenario in scenarios::all() {
        let once = seeds.start..seeds.start + 1;
        for seed in if scenario.is_random() { seeds.clone() } else { once } {
            for pair in Pair::ALL {
                for rdma in Rdma::ALL {
                    cells.push(Cell { scenario, pair, rdma, seed });
                }
            }
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_printed_as_they_are_parsed() {
        for text in ["soft", "provider", "provider,verbs"] {
            assert_eq!(Devices::from_str(text).unwrap().to_string(), text);
        }
        assert_eq!(Devices::from_str("verbs,verbs").unwrap().to_string(), "verbs");
        assert!(Devices::from_str("verbs,").is_err());
    }
}
