//! Which message goes into which receive: wild cards, sources, cancelled and short receives, and
//! buffers for many messages.

use anyhow::{Context, Result, ensure};

use super::{Known, READ_SIZE, SIZES, Scenario};
use crate::interop::build::Release;
use crate::interop::matrix::{Pair, Stack};
use crate::interop::record::Completion;
use crate::interop::stage::{Message, Receive, Side, Stage, expect_message};

pub(super) static ALL: &[Scenario] = &[
    Scenario::new("ignored-bits", "tagged receives that ignore bits", ignored_bits),
    Scenario::new("classes", "tagged and untagged messages don't mix", classes),
    Scenario::new("any-source", "two senders, receives for anyone", any_source),
    Scenario::new("directed", "two senders, receives for one of them each", directed),
    Scenario::new("truncated", "messages longer than their receive", truncated),
    Scenario::new("truncated-late", "the same, unexpected", truncated_late),
    Scenario {
        known: UNREAD,
        ..Scenario::new("truncated-read", "a message of 1.5 MB, longer than its receive", |stage| {
            truncate(stage, READ_SIZE)
        })
    },
    Scenario {
        known: UNREAD_LATE,
        ..Scenario::new("truncated-read-late", "the same, unexpected", |stage| {
            truncate_late(stage, READ_SIZE)
        })
    },
    Scenario::new("cancel", "cancelled receives take no message", cancel),
    Scenario {
        receiver: "min-multi=4096",
        known: CRASHES,
        ..Scenario::new("multi-receive", "many messages in one buffer", multi_receive)
    },
    Scenario {
        receiver: "min-multi=4096",
        known: CRASHES,
        ..Scenario::new("multi-receive-late", "the same, unexpected", multi_receive_late)
    },
];

fn ignored_bits(stage: &mut Stage<'_>) -> Result<()> {
    let room = |tag, ignore| Receive { size: 100_100, tag: Some(tag), ignore, from: None };
    let exact = stage.receive(room(0x1234, 0))?;
    let low_byte = stage.receive(room(0x1200, 0xff))?;
    let high_bits = stage.receive(room(0x0077, !0xffff))?;
    let anything = stage.receive(room(0, u64::MAX))?;
    let messages = [
        (0xffff_ffff_0000_0077, high_bits),
        (0x12ff, low_byte),
        (0x1234, exact),
        (0xdead_beef_dead_beef, anything),
    ];
    let mut all = Vec::new();
    for (size, (tag, receive)) in [10, 20_000, 100_000, 0].into_iter().zip(messages) {
        all.push((stage.send(Message::of(size).tagged(tag))?, receive));
    }
    for (sent, receive) in all {
        stage.expect_sent(&sent)?;
        stage.expect_received(receive, &sent)?;
    }
    Ok(())
}

fn classes(stage: &mut Stage<'_>) -> Result<()> {
    for size in SIZES {
        let untagged = stage.receive(Receive::of(size + 5))?;
        let anything =
            stage.receive(Receive { ignore: u64::MAX, ..Receive::of(size + 5).tagged(0) })?;
        let tagged = stage.send(Message::of(size).tagged(0))?;
        let plain = stage.send(Message::of(size))?;
        for (sent, receive) in [(tagged, anything), (plain, untagged)] {
            stage.expect_sent(&sent)?;
            stage.expect_received(receive, &sent)?;
        }
    }
    Ok(())
}

/// Brings a second sender in; gives the number by which the receiver knows it.
fn third(stage: &mut Stage<'_>) -> Result<u64> {
    stage.start(Side::Third)?;
    stage.open_endpoint(Side::Third, "")?;
    stage.introduce(Side::Third, Side::Receiver)?;
    stage.introduce(Side::Receiver, Side::Third)
}

fn any_source(stage: &mut Stage<'_>) -> Result<()> {
    let third = third(stage)?;
    for size in SIZES {
        for (from, number) in [(Side::Third, third), (Side::Sender, 0)] {
            let receive = stage.receive(Receive::of(size))?;
            let sent = stage.send_from(from, 0, Message::of(size))?;
            stage.expect_sent(&sent)?;
            stage.expect_received_at(Side::Receiver, receive, &sent, number)?;
        }
    }
    Ok(())
}

fn directed(stage: &mut Stage<'_>) -> Result<()> {
    let third = third(stage)?;
    for size in SIZES {
        for tag in [None, Some(9)] {
            let message = Message { tag, ..Message::of(size) };
            let mut all = Vec::new();
            for (from, number) in [(Side::Sender, 0), (Side::Third, third)] {
                let room = Receive { from: Some(number), ..Receive::fitting(&message) };
                all.push((from, number, stage.receive(room)?));
            }
            // The receive that was posted first is for the one that sends last.
            let mut sent = Vec::new();
            for (from, number, receive) in all.into_iter().rev() {
                sent.push((stage.send_from(from, 0, message)?, number, receive));
            }
            for (sent, number, receive) in sent {
                stage.expect_sent(&sent)?;
                stage.expect_received_at(Side::Receiver, receive, &sent, number)?;
            }
        }
    }
    Ok(())
}

/// `FI_ETRUNC`.
const ETRUNC: u64 = 265;
/// `FI_ECANCELED`.
pub(super) const ECANCELED: u64 = 125;

/// The receive must fail for being `missing` bytes too short, and hold the beginning.
fn expect_beginning(
    stage: &mut Stage<'_>,
    id: u64,
    room: u64,
    seed: u64,
    missing: u64,
) -> Result<()> {
    let completion = stage.receiver()?.completion_of(id)?;
    expect_truncated(&completion, stage.stack(Side::Receiver), room, missing)?;
    stage.check(Side::Receiver, &format!("id={id} length={room} seed={seed}"))
}

/// The receive, of `room` bytes, must have failed for being `missing` bytes too short.
pub(super) fn expect_truncated(
    completion: &Completion,
    stack: Stack,
    room: u64,
    missing: u64,
) -> Result<()> {
    ensure!(!completion.succeeded(), "expected truncation, seen `{}`", completion.record);
    completion.expect_number("error", ETRUNC)?;
    completion.expect_number("beyond", missing)?;
    // libfabric 1.17 gives the length of the message, the manual (fi_cq) that of the data.
    let length = match stack {
        Stack::C => room + missing,
        Stack::Rust => room,
    };
    completion.expect_number("length", length)
}

/// The receiver sends nothing. By the specification it sends EOR when it is done.
const UNREAD: &[Known] =
    &[Known::with_rdma(Pair::C_RECEIVES, [Release::FIRST, Release::NEVER], UNREAD_REASON)];
const UNREAD_LATE: &[Known] =
    &[Known::with_rdma(Pair::C_RECEIVES, [Release::FIRST, Release(1, 19)], UNREAD_REASON)];
const UNREAD_REASON: &str = "libfabric refuses to read a message that is longer than its \
    receive, and leaves the sender waiting";

/// Seen with 1.19 to 1.22.
const CRASHES: &[Known] =
    &[Known::of(Pair::C_RECEIVES, [Release(1, 19), Release(2, 0)], CRASHES_REASON)];
const CRASHES_REASON: &str = "libfabric 1.19 to 1.22 crashes when FI_OPT_MIN_MULTI_RECV is set \
    before the endpoint is enabled";

/// Sizes that go without reading.
fn unread_sizes() -> impl Iterator<Item = u64> {
    SIZES.into_iter().filter(|size| (1..READ_SIZE).contains(size))
}

fn truncated(stage: &mut Stage<'_>) -> Result<()> {
    unread_sizes().try_for_each(|size| truncate(stage, size))
}

fn truncated_late(stage: &mut Stage<'_>) -> Result<()> {
    unread_sizes().try_for_each(|size| truncate_late(stage, size))
}

fn truncate(stage: &mut Stage<'_>, size: u64) -> Result<()> {
    for room in [0, size / 2, size - 1] {
        for tag in [None, Some(3)] {
            let message = Message { tag, ..Message::of(size) };
            let receive = stage.receive(Receive { tag, ..Receive::of(room) })?;
            let sent = stage.send(message)?;
            stage.expect_sent(&sent)?;
            expect_beginning(stage, receive, room, sent.id, size - room)
                .with_context(|| format!("{message} into {room} bytes"))?;
        }
    }
    stage.exchange(Message::of(size))
}

fn truncate_late(stage: &mut Stage<'_>, size: u64) -> Result<()> {
    let room = size / 3;
    let sent = stage.send(Message::of(size).tagged(4))?;
    stage.settle()?;
    let receive = stage.receive(Receive::of(room).tagged(4))?;
    stage.expect_sent(&sent)?;
    expect_beginning(stage, receive, room, sent.id, size - room)
        .with_context(|| format!("{} into {room} bytes", sent.message))?;
    stage.exchange(Message::of(size))
}

fn cancel(stage: &mut Stage<'_>) -> Result<()> {
    for tag in [None, Some(6)] {
        for size in SIZES {
            let message = Message { tag, ..Message::of(size) };
            let cancelled = stage.receive(Receive::fitting(&message))?;
            let other = stage.receive(Receive::fitting(&message))?;
            stage.receiver()?.run_ok(&format!("cancel id={cancelled}"))?;
            let completion = stage.receiver()?.completion_of(cancelled)?;
            ensure!(!completion.succeeded(), "expected an error, seen `{}`", completion.record);
            completion.expect_number("error", ECANCELED)?;
            stage.check(Side::Receiver, &format!("id={cancelled} length=0 seed=0"))?;
            let sent = stage.send(message)?;
            stage.expect_sent(&sent)?;
            stage.expect_received(other, &sent)?;
        }
    }
    Ok(())
}

/// Messages that fill a buffer of 64 KiB so far that less than 4096 bytes are left.
const FILLING: [u64; 9] = [100, 0, 8_000, 12_000, 1, 30_000, 4_000, 5_000, 3_000];
const MULTI_SIZE: u64 = 65_536;

fn expect_multi_received(stage: &mut Stage<'_>, buffer: u64, after: bool) -> Result<()> {
    let mut all = Vec::new();
    for size in FILLING {
        all.push(stage.send(Message::of(size))?);
    }
    if after {
        stage.settle()?;
        stage.receiver()?.run_ok(&format!("receive-many id={buffer} size={MULTI_SIZE}"))?;
    }
    for sent in &all {
        stage.expect_sent(sent)?;
    }
    let mut released = false;
    for (part, sent) in all.iter().enumerate() {
        let completion = stage.receiver()?.completion_of(buffer)?;
        ensure!(!released, "a message behind the last: `{}`", completion.record);
        expect_message(&completion, &sent.message, 0)
            .with_context(|| format!("message {part}, {}", sent.message))?;
        let size = sent.message.size;
        stage.check(
            Side::Receiver,
            &format!("id={buffer} part={part} length={size} seed={}", sent.id),
        )?;
        released = completion.has("multi");
    }
    // In libfabric 1.17 the last message says that the buffer is given back; here, as in newer
    // releases, a completion of its own does.
    if !released {
        let completion = stage.receiver()?.completion_of(buffer)?;
        ensure!(completion.has("multi"), "expected the buffer back, seen `{}`", completion.record);
    }
    stage.check_rest(Side::Receiver, buffer)
}

fn multi_receive(stage: &mut Stage<'_>) -> Result<()> {
    for _ in 0..3 {
        let buffer = stage.new_id();
        stage.receiver()?.run_ok(&format!("receive-many id={buffer} size={MULTI_SIZE}"))?;
        expect_multi_received(stage, buffer, false)?;
    }
    stage.exchange(Message::of(10))
}

fn multi_receive_late(stage: &mut Stage<'_>) -> Result<()> {
    let buffer = stage.new_id();
    expect_multi_received(stage, buffer, true)?;
    stage.exchange(Message::of(10))
}
