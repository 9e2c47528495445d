//! Messages that come before there is a receive for them.

use anyhow::Result;

use super::{SIZES, Scenario};
use crate::interop::stage::{Message, Receive, Stage};

pub(super) static ALL: &[Scenario] = &[
    Scenario::new("unexpected", "the message is there before its receive", one_by_one),
    Scenario::new(
        "unexpected-many",
        "messages of all kinds are there, and are taken in reverse",
        many,
    ),
    Scenario::new("unexpected-any", "a wild-card receive takes the first that is there", any),
];

fn one_by_one(stage: &mut Stage<'_>) -> Result<()> {
    for size in SIZES {
        for message in [Message::of(size), Message::of(size).tagged(7).with_data(8)] {
            let sent = stage.send(message)?;
            stage.settle()?;
            let receive = stage.receive(Receive::fitting(&message))?;
            stage.expect_sent(&sent)?;
            stage.expect_received(receive, &sent)?;
        }
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
