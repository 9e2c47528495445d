//! Restarted peers, and RNR.

use anyhow::{Result, ensure};

use super::{Faults, Known, SIZES, Scenario};
use crate::interop::build::Release;
use crate::interop::matrix::Pair;
use crate::interop::stage::{Message, Receive, Side, Stage};

const fn not_ready(scenario: Scenario, rate: &'static str) -> Scenario {
    Scenario { faults: Faults { receiver_not_ready: Some(rate), ..Faults::NONE }, ..scenario }
}

pub(super) static ALL: &[Scenario] = &[
    Scenario::new(
        "sender-restarts",
        "a new sender with the same queue pair number",
        sender_restarts,
    ),
    Scenario {
        known: CRASHES,
        ..Scenario::new("sender-killed", "the same after a crash", sender_killed)
    },
    Scenario::new("receiver-restarts", "a new receiver with the same number", receiver_restarts),
    not_ready(Scenario::new("not-ready", "every third packet meets RNR", storm), "0.3"),
    Scenario {
        sender: "rnr-retry=0",
        receiver: "receives=64",
        ..Scenario::new(
            "few-buffers",
            "a receiver with 64 buffers, no RNR retries by the device",
            storm,
        )
    },
    Scenario::new("absent", "a receiver that doesn't poll for a while", absent),
];

/// Seen with 1.19 to 2.0.
const CRASHES: &[Known] =
    &[Known::of(Pair::C_RECEIVES, [Release(1, 19), Release(2, 1)], CRASHES_REASON)];
const CRASHES_REASON: &str =
    "libfabric 1.19 to 2.0 crashes when it is closed after a sender was killed within a message";

/// Opens another endpoint at `side`, with the queue pair number of the last, and makes it known.
fn come_back(stage: &mut Stage<'_>, side: Side, other: Side) -> Result<()> {
    let before = stage.queue_pair_number(side)?;
    stage.give_number_again(side)?;
    stage.start(side)?;
    stage.open_endpoint(side, "")?;
    let now = stage.queue_pair_number(side)?;
    ensure!(before == now, "queue pair {now}, not {before}: the restart is none");
    stage.introduce(side, other)?;
    Ok(())
}

fn all_sizes(stage: &mut Stage<'_>, from: u64) -> Result<()> {
    for size in SIZES {
        let message = Message::of(size).tagged(size);
        let receive = stage.receive(Receive::fitting(&message))?;
        let sent = stage.send(message)?;
        stage.expect_sent(&sent)?;
        stage.expect_received_at(Side::Receiver, receive, &sent, from)?;
    }
    Ok(())
}

fn sender_restarts(stage: &mut Stage<'_>) -> Result<()> {
    all_sizes(stage, 0)?;
    stage.sender()?.close()?;
    come_back(stage, Side::Sender, Side::Receiver)?;
    let number = stage.introduce(Side::Receiver, Side::Sender)?;
    all_sizes(stage, number)
}

/// In the middle of a message.
fn sender_killed(stage: &mut Stage<'_>) -> Result<()> {
    all_sizes(stage, 0)?;
    let message = Message::of(300_000).tagged(2);
    stage.send(message)?;
    stage.settle()?;
    stage.kill(Side::Sender)?;
    // Now the receiver grants the rest, which no process sends any more.
    stage.receiver()?.allow_events();
    let receive = stage.receive(Receive::fitting(&message))?;
    come_back(stage, Side::Sender, Side::Receiver)?;
    let number = stage.introduce(Side::Receiver, Side::Sender)?;
    all_sizes(stage, number)?;
    let completion = stage.receiver()?.completion_of(receive)?;
    ensure!(!completion.succeeded(), "expected failure, seen `{}`", completion.record);
    Ok(())
}

fn receiver_restarts(stage: &mut Stage<'_>) -> Result<()> {
    all_sizes(stage, 0)?;
    stage.receiver()?.close()?;
    come_back(stage, Side::Receiver, Side::Sender)?;
    let number = stage.introduce(Side::Sender, Side::Receiver)?;
    for size in SIZES {
        let message = Message::of(size).tagged(size);
        let receive = stage.receive(Receive::fitting(&message))?;
        let sent = stage.send_from(Side::Sender, number, message)?;
        stage.expect_sent(&sent)?;
        stage.expect_received(receive, &sent)?;
    }
    Ok(())
}

/// Many messages at once, and some of each kind.
fn storm(stage: &mut Stage<'_>) -> Result<()> {
    let sizes = (0..300).map(|i| i % 100).chain(SIZES);
    let messages: Vec<_> =
        sizes.zip(0..).map(|(size, tag)| Message::of(size).tagged(tag)).collect();
    let mut receives = Vec::new();
    for message in &messages {
        receives.push(stage.receive(Receive::fitting(message))?);
    }
    let mut all = Vec::new();
    for message in &messages {
        all.push(stage.send(*message)?);
    }
    for (sent, receive) in all.iter().zip(receives) {
        stage.expect_sent(sent)?;
        stage.expect_received(receive, sent)?;
    }
    Ok(())
}

fn absent(stage: &mut Stage<'_>) -> Result<()> {
    for size in SIZES {
        let receive = stage.receive(Receive::of(size))?;
        stage.receiver()?.run_ok("idle")?;
        let mut all = vec![stage.send(Message::of(size))?];
        for size in 0..100 {
            all.push(stage.send(Message::of(size).tagged(size))?);
        }
        stage.sender()?.run_ok("poll rounds=2000")?;
        stage.receiver()?.run_ok("busy")?;
        stage.expect_sent(&all[0])?;
        stage.expect_received(receive, &all[0])?;
        for sent in &all[1..] {
            let receive = stage.receive(Receive::fitting(&sent.message))?;
            stage.expect_sent(sent)?;
            stage.expect_received(receive, sent)?;
        }
    }
    Ok(())
}
