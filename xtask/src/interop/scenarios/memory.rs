//! Devices that can register no more memory, when a message is to be read.

use anyhow::{Result, ensure};

use super::{Faults, READ_SIZE, Refused, Scenario};
use crate::interop::build::Release;
use crate::interop::matrix::{Pair, Rdma, Stack};
use crate::interop::packets::Packets;
use crate::interop::stage::{Message, Receive, Side, Stage};

pub(super) static ALL: &[Scenario] = &[
    Scenario {
        faults: Faults {
            // libfabric registers the receive. That of our peer in Rust isn't of a kind that can be registered, and
            // goes by way of memory of the endpoint's. On our provider it is registered, and otherwise goes by way of
            // memory of the endpoint's, which is as long here.
            refused: Some(Refused {
                side: Side::Receiver,
                of_c: "1500000-1600000:20",
                of_rust: "65536-65536:2",
                of_provider: "1500000-1600000:2",
            }),
            // A READ_NACK, too, may find no buffer.
            not_ready_of_each: Some("2"),
            ..Faults::NONE
        },
        environment: &[("FI_EFARS_MAX_MEMCPY_SIZE", "1500000")],
        sender: "unregistered",
        receiver: "unregistered",
        packets: nack_if_known,
        ..Scenario::new("no-memory", "the receiver can register nothing to read into", exchange)
    },
    Scenario {
        faults: Faults {
            refused: Some(Refused {
                side: Side::Sender,
                of_c: "1500000-1600000:20",
                of_rust: "1500000-1600000:2",
                of_provider: "1500000-1600000:2",
            }),
            ..Faults::NONE
        },
        sender: "unregistered",
        receiver: "unregistered",
        packets: no_nack,
        ..Scenario::new("sender-no-memory", "the sender can register nothing to be read", refused)
    },
];

/// Nothing is read before both know that the other can.
fn become_known(stage: &mut Stage<'_>) -> Result<()> {
    stage.exchange(Message::of(1))?;
    stage.answer(Message::of(1))?;
    stage.settle()
}

/// Messages that would be read, with small ones behind them, which keep their turn.
fn exchange(stage: &mut Stage<'_>) -> Result<()> {
    become_known(stage)?;
    for tag in 0..3 {
        let messages = [Message::of(READ_SIZE).tagged(tag), Message::of(100).tagged(tag)];
        let mut receives = Vec::new();
        for message in &messages {
            receives.push(stage.receive(Receive::fitting(message))?);
        }
        let mut all = Vec::new();
        for message in messages {
            all.push(stage.send(message)?);
        }
        for (sent, receive) in all.iter().zip(receives) {
            stage.expect_sent(sent)?;
            stage.expect_received(receive, sent)?;
        }
    }
    Ok(())
}

/// libfabric knows READ_NACK since 1.20, ours always: it is sent only if both do. Otherwise the
/// receiver waits until there is memory.
const KNOWS_NACK: Release = Release(1, 20);

fn nack_if_known(packets: &Packets) -> Result<Vec<String>> {
    let read = packets.cell.rdma == Rdma::On;
    let known = packets.cell.pair == Pair::RustRust || packets.libfabric >= KNOWS_NACK;
    let refused = read && known;
    packets.expect(Side::Receiver, "READ_NACK", refused)?;
    let nacks = packets.types(Side::Receiver).find(|(name, _)| *name == "READ_NACK");
    // Later releases of libfabric have the device try for ever.
    if let Some((_, counts)) = nacks
        && packets.cell.pair.stacks()[1] == Stack::Rust
    {
        ensure!(counts.failed >= 2, "READ_NACK was refused {} times", counts.failed);
    }
    packets.expect(Side::Sender, "LONGREAD_TAGRTM", read)?;
    // Enough of libfabric's registrations fail for all of the messages.
    if !refused || packets.cell.pair.stacks()[1] == Stack::Rust {
        packets.expect(Side::Receiver, "EOR", read)?;
    }
    packets.expect(Side::Sender, "LONGCTS_TAGRTM", refused || !read)?;
    Ok(Vec::new())
}

/// libfabric 1.17 returns an error to its application; later releases and ours send the message in packets.
fn refused(stage: &mut Stage<'_>) -> Result<()> {
    become_known(stage)?;
    let mut refusals = 0;
    for tag in 0..3 {
        let message = Message::of(READ_SIZE).tagged(tag);
        let receive = stage.receive(Receive::fitting(&message))?;
        let sent = loop {
            match stage.try_send(message)? {
                Ok(sent) => break sent,
                Err(error) => {
                    ensure!(error == NO_MEMORY, "`send {message}` is refused with {error}");
                    refusals += 1;
                }
            }
        };
        stage.expect_sent(&sent)?;
        stage.expect_received(receive, &sent)?;
    }
    let old = stage.stack(Side::Sender) == Stack::C && stage.libfabric() < KNOWS_NACK;
    let reports = stage.rdma() == Rdma::On && old;
    ensure!((refusals > 0) == reports, "{refusals} sends were refused");
    Ok(())
}

/// `ENOMEM`.
const NO_MEMORY: u64 = 12;

fn no_nack(packets: &Packets) -> Result<Vec<String>> {
    let read = packets.cell.rdma == Rdma::On;
    let ours = packets.cell.pair.stacks()[0] == Stack::Rust;
    let falls_back = ours || packets.libfabric >= KNOWS_NACK;
    packets.expect(Side::Receiver, "READ_NACK", false)?;
    packets.expect(Side::Sender, "LONGCTS_TAGRTM", falls_back || !read)?;
    // Ours reads again when there is memory; how often libfabric tries is its own affair.
    let reads_again = ours || !falls_back;
    if reads_again {
        packets.expect(Side::Sender, "LONGREAD_TAGRTM", read)?;
    }
    Ok(Vec::new())
}
