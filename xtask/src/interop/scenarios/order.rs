//! Many messages under way at once, in order and out of it.

use anyhow::Result;

use super::{Faults, SIZES, Scenario};
use crate::interop::stage::{Message, Receive, Stage};

const fn reordered(scenario: Scenario, seed: u64) -> Scenario {
    Scenario { faults: Faults { reorder: Some(seed), ..Faults::NONE }, ..scenario }
}

pub(super) static ALL: &[Scenario] = &[
    Scenario::new("many", "200 messages of all sizes under way", many),
    reordered(
        Scenario::new("many-reordered", "the same while packets overtake each other", many),
        1,
    ),
    reordered(Scenario::new("small-reordered", "1000 messages of one packet", many_small), 2),
    Scenario::new("tags-reversed", "receives wait in the reverse order of the messages", reversed),
    reordered(Scenario::new("reversed-reordered", "with packets reordered", reversed), 3),
    reordered(Scenario::new("cross-reordered", "many in both directions", cross), 4),
    reordered(Scenario::new("late-reordered", "half of the receives come late", late), 5),
];

/// Untagged messages must arrive in the receives in their order.
fn in_order(stage: &mut Stage<'_>, messages: &[Message]) -> Result<()> {
    let mut receives = Vec::new();
    for message in messages {
        receives.push(stage.receive(Receive::fitting(message))?);
    }
    let mut all = Vec::new();
    for message in messages {
        all.push(stage.send(*message)?);
    }
    for (sent, receive) in all.iter().zip(receives) {
        stage.expect_sent(sent)?;
        stage.expect_received(receive, sent)?;
    }
    Ok(())
}

fn many(stage: &mut Stage<'_>) -> Result<()> {
    // Short ones prevail, and no two neighbours are of the same kind.
    let sizes = [3, 9_000, 200, 70_000, 0, 30_000, 8_000, 300_000, 64, 1_100_000];
    let messages: Vec<_> = (0..200).map(|i| Message::of(sizes[i % 10] + i as u64)).collect();
    // Long messages at a fifth of the places are enough.
    let messages: Vec<_> = messages
        .into_iter()
        .enumerate()
        .map(
            |(i, message)| if i >= 40 && message.size > 70_300 { Message::of(20) } else { message },
        )
        .collect();
    in_order(stage, &messages)
}

fn many_small(stage: &mut Stage<'_>) -> Result<()> {
    let messages: Vec<_> = (0..1000).map(|i| Message::of(i * 7 % 500)).collect();
    in_order(stage, &messages)
}

fn reversed(stage: &mut Stage<'_>) -> Result<()> {
    let messages: Vec<_> =
        (0..100).map(|i| Message::of(SIZES[i % 5] + i as u64).tagged(i as u64)).collect();
    let mut receives = Vec::new();
    for message in messages.iter().rev() {
        receives.push(stage.receive(Receive::fitting(message))?);
    }
    let mut all = Vec::new();
    for message in &messages {
        all.push(stage.send(*message)?);
    }
    for (sent, receive) in all.iter().zip(receives.into_iter().rev()) {
        stage.expect_sent(sent)?;
        stage.expect_received(receive, sent)?;
    }
    Ok(())
}

fn cross(stage: &mut Stage<'_>) -> Result<()> {
    let messages: Vec<_> =
        (0..60).map(|i| Message::of(SIZES[i % 6] + i as u64).tagged(i as u64)).collect();
    stage.cross(&messages)
}

/// Half of the messages find a receive, the others wait for one.
fn late(stage: &mut Stage<'_>) -> Result<()> {
    let messages: Vec<_> = (0..80).map(|i| Message::of(SIZES[i % 6] + i as u64)).collect();
    let (early, late) = messages.split_at(40);
    let mut receives = Vec::new();
    for message in early {
        receives.push(stage.receive(Receive::fitting(message))?);
    }
    let mut all = Vec::new();
    for message in &messages {
        all.push(stage.send(*message)?);
    }
    stage.settle()?;
    for message in late {
        receives.push(stage.receive(Receive::fitting(message))?);
    }
    for (sent, receive) in all.iter().zip(receives) {
        stage.expect_sent(sent)?;
        stage.expect_received(receive, sent)?;
    }
    Ok(())
}
