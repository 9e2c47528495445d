//! Messages that arrive before their receive is posted.

use anyhow::Result;

use super::{Known, SIZES, Scenario};
use crate::interop::build::Release;
use crate::interop::matrix::Pair;
use crate::interop::stage::{Message, Receive, Stage};

pub(super) static ALL: &[Scenario] = &[
    Scenario::new("unexpected", "the message arrives before its receive is posted", untagged),
    Scenario::new("unexpected-tagged", "the same, tagged", tagged),
    Scenario {
        known: &[Known::of(Pair::C_RECEIVES, [Release::FIRST, Release(1, 19)], NO_FLAG)],
        ..Scenario::new("unexpected-data", "the same with CQ data", with_data)
    },
    Scenario::new("unexpected-many", "messages of all kinds are taken in reverse", many),
    Scenario::new("unexpected-any", "a wild-card receive takes the first that arrived", any),
];

/// Seen.
const NO_FLAG: &str = "libfabric before 1.19 completes a message that was unexpected with its data, but \
    without FI_REMOTE_CQ_DATA";

fn untagged(stage: &mut Stage<'_>) -> Result<()> {
    one_by_one(stage, Message::of)
}

fn tagged(stage: &mut Stage<'_>) -> Result<()> {
    one_by_one(stage, |size| Message::of(size).tagged(7))
}

fn with_data(stage: &mut Stage<'_>) -> Result<()> {
    one_by_one(stage, |size| Message::of(size).with_data(8))
}

fn one_by_one(stage: &mut Stage<'_>, message: fn(u64) -> Message) -> Result<()> {
    for size in SIZES {
        let message = message(size);
        let sent = stage.send(message)?;
        stage.settle()?;
        let receive = stage.receive(Receive::fitting(&message))?;
        stage.expect_sent(&sent)?;
        stage.expect_received(receive, &sent)?;
    }
    Ok(())
}

fn many(stage: &mut Stage<'_>) -> Result<()> {
    let mut all = Vec::new();
    for (tag, size) in (0..).zip(SIZES) {
        all.push(stage.send(Message::of(size).tagged(tag))?);
    }
    stage.settle()?;
    for sent in all.iter().rev() {
        let receive = stage.receive(Receive::fitting(&sent.message))?;
        stage.expect_sent(sent)?;
        stage.expect_received(receive, sent)?;
    }
    Ok(())
}

fn any(stage: &mut Stage<'_>) -> Result<()> {
    let mut all = Vec::new();
    for (tag, size) in (0x10..).zip(SIZES) {
        all.push(stage.send(Message::of(size).tagged(tag))?);
    }
    stage.settle()?;
    for sent in &all {
        let room = Receive::fitting(&sent.message);
        let receive = stage.receive(Receive { ignore: 0xf, tag: Some(0x1f), ..room })?;
        stage.expect_sent(sent)?;
        stage.expect_received(receive, sent)?;
    }
    Ok(())
}
