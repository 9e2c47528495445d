//! What the captures of a cell hold: how many packets of each type.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::build::Release;
use super::cell::Place;
use super::matrix::Cell;
use super::peer::Traces;
use super::stage::Side;

/// The packets of both peers.
pub(crate) struct Packets {
    pub(crate) cell: Cell,
    pub(crate) libfabric: Release,
    sender: Types,
    receiver: Types,
}

/// By name of the type.
type Types = BTreeMap<String, Counts>;

/// What became of the packets of one type.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Those that are sent again count again.
    pub(crate) sent: u64,
    /// Those whose receiver was not ready: nothing else fails in a cell that passes.
    pub(crate) failed: u64,
}

/// A line of `efa decode --summary --json`.
#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    packet_type: String,
    sent: u64,
    failed: u64,
}

impl Packets {
    /// Reads the captures of the peers that were not killed.
    pub(crate) fn read(place: &Place<'_>, cell: Cell, traces: &[Traces]) -> Result<Self> {
        let of = |side: Side| {
            let mut types = Types::new();
            let mine = traces.iter().filter(|of| of.name.starts_with(side.name()) && !of.killed);
            for traces in mine.filter(|traces| traces.capture.exists()) {
                add(&mut types, &place.packet_types(&traces.capture)?)?;
            }
            Ok::<_, anyhow::Error>(types)
        };
        let libfabric = place.libfabric();
        Ok(Self { cell, libfabric, sender: of(Side::Sender)?, receiver: of(Side::Receiver)? })
    }

    fn of(&self, side: Side) -> &Types {
        if side == Side::Receiver { &self.receiver } else { &self.sender }
    }

    /// The types that a peer has sent.
    pub(crate) fn types(&self, side: Side) -> impl Iterator<Item = (&str, Counts)> {
        self.of(side).iter().filter(|(_, of)| of.sent > 0).map(|(name, of)| (name.as_str(), *of))
    }

    /// How many packets of a type a peer has sent.
    pub(crate) fn sent(&self, side: Side, packet_type: &str) -> u64 {
        self.of(side).get(packet_type).map_or(0, |of| of.sent)
    }

    /// A peer must have sent packets of this type, or none.
    pub(crate) fn expect(&self, side: Side, packet_type: &str, any: bool) -> Result<()> {
        let sent = self.sent(side, packet_type);
        let expected = if any { "some" } else { "none" };
        ensure!((sent > 0) == any, "{}: {sent} of {packet_type}, expected {expected}", side.name());
        Ok(())
    }
}

fn add(types: &mut Types, lines: &str) -> Result<()> {
    for line in lines.lines() {
        let Line { packet_type, sent, failed } =
            serde_json::from_str(line).with_context(|| format!("`{line}`"))?;
        let counts = types.entry(packet_type).or_default();
        counts.sent += sent;
        counts.failed += failed;
    }
    Ok(())
}
