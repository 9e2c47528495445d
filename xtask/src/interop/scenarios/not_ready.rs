//! RNR for packets of every type: the device refuses the first packets of each type that a peer sends, and the
//! captures must show that.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use super::{Faults, READ_SIZE, Scenario, remote};
use crate::interop::build::Release;
use crate::interop::matrix::{Pair, Rdma};
use crate::interop::packets::Packets;
use crate::interop::stage::{Message, Side, Stage};

pub(super) static ALL: &[Scenario] = &[Scenario {
    // The second RNR in a row starts the backoff.
    faults: Faults { not_ready_of_each: Some("2"), ..Faults::NONE },
    environment: &[("FI_EFA_RUNT_SIZE", "307200")],
    known: remote::UNWRITABLE,
    packets: every_type,
    ..Scenario::new("each-not-ready", "the first two packets of each type meet RNR", all_kinds)
}];

fn all_kinds(stage: &mut Stage<'_>) -> Result<()> {
    for size in [10, 30_000, 200_000, READ_SIZE] {
        for delivery in [false, true] {
            let message = Message { delivery, ..Message::of(size) };
            stage.exchange(message)?;
            stage.exchange(message.tagged(size))?;
        }
    }
    remote::one_of_each(stage)
}

/// What the sender must have sent, without and with device RDMA: messages, then atomics.
const ALWAYS: [&str; 16] = [
    "HANDSHAKE",
    "EAGER_MSGRTM",
    "EAGER_TAGRTM",
    "MEDIUM_MSGRTM",
    "MEDIUM_TAGRTM",
    "LONGCTS_MSGRTM",
    "LONGCTS_TAGRTM",
    "CTSDATA",
    "DC_EAGER_MSGRTM",
    "DC_EAGER_TAGRTM",
    "DC_MEDIUM_MSGRTM",
    "DC_MEDIUM_TAGRTM",
    "DC_LONGCTS_MSGRTM",
    "DC_LONGCTS_TAGRTM",
    "WRITE_RTA",
    "DC_WRITE_RTA",
];
const FETCHING: [&str; 2] = ["FETCH_RTA", "COMPARE_RTA"];
/// Messages that are read.
const READ: [&str; 4] =
    ["LONGREAD_MSGRTM", "LONGREAD_TAGRTM", "RUNTREAD_MSGRTM", "RUNTREAD_TAGRTM"];
/// The first releases of libfabric that receive a runt, and that can be configured
/// to send one.
const TAKES_RUNTS: Release = Release(1, 16);
const SENDS_RUNTS: Release = Release(1, 17);
/// The first release whose device writes, if it was built with headers that have this.
const DEVICE_WRITES: Release = Release(1, 18);
/// Writes in packets.
const WRITES: [&str; 4] = ["EAGER_RTW", "LONGCTS_RTW", "DC_EAGER_RTW", "DC_LONGCTS_RTW"];
/// Reads in packets, and the grants for long ones.
const READS: [&str; 3] = ["SHORT_RTR", "LONGCTS_RTR", "CTS"];
/// What the receiver must have sent, without and with device RDMA.
const ANSWERS: [&str; 4] = ["HANDSHAKE", "CTS", "RECEIPT", "ATOMRSP"];

/// Checks that each type that a peer sent was refused, and that all expected types were sent; returns notes.
fn every_type(packets: &Packets) -> Result<Vec<String>> {
    let mut sender: BTreeSet<&str> = ALWAYS.into_iter().chain(FETCHING).collect();
    let mut receiver = BTreeSet::from(ANSWERS);
    match packets.cell.rdma {
        Rdma::Off => {
            sender.extend(WRITES.into_iter().chain(READS));
            receiver.extend(["READRSP", "CTSDATA"]);
        }
        Rdma::On => {
            let runting = match packets.cell.pair {
                Pair::RustRust => true,
                Pair::RustC => packets.libfabric >= TAKES_RUNTS,
                Pair::CC | Pair::CRust => packets.libfabric >= SENDS_RUNTS,
            };
            sender.extend(READ.into_iter().filter(|name| runting || !name.starts_with("RUNT")));
            receiver.insert("EOR");
            let by_device = packets.libfabric >= DEVICE_WRITES
                && packets.sent(Side::Sender, "LONGREAD_RTW") == 0;
            match packets.cell.pair {
                // Our device writes, but nothing can be written by packets alone.
                Pair::RustRust => sender.extend(["EAGER_RTW", "DC_EAGER_RTW"]),
                Pair::RustC if by_device => sender.extend(["EAGER_RTW", "DC_EAGER_RTW"]),
                // Nothing is written by its device, too.
                Pair::CC | Pair::CRust if by_device => {}
                _ => {
                    sender.extend(WRITES);
                    sender.insert("LONGREAD_RTW");
                }
            }
        }
    }
    let mut notes = Vec::new();
    for (side, expected) in [(Side::Sender, sender), (Side::Receiver, receiver)] {
        let sent: BTreeSet<&str> = packets.types(side).map(|(name, _)| name).collect();
        let (missing, beyond): (Vec<_>, Vec<_>) =
            (expected.difference(&sent).collect(), sent.difference(&expected).collect());
        ensure!(missing.is_empty(), "the {} has sent none of {missing:?}", side.name());
        ensure!(beyond.is_empty(), "the {} has sent {beyond:?}, too", side.name());
        for (name, counts) in packets.types(side) {
            let failed = counts.failed;
            ensure!(failed >= 2, "the {}'s {name} was refused {failed} times", side.name());
        }
        let types: Vec<_> = sent.into_iter().collect();
        let (count, types) = (types.len(), types.join(" "));
        notes.push(format!("{count} types of the {}, each refused twice: {types}", side.name()));
    }
    Ok(notes)
}
