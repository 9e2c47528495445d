//! Messages of every size class, one at a time, each with a posted receive.

use anyhow::{Result, ensure};

use super::{Known, SIZES, Scenario};
use crate::interop::build::Release;
use crate::interop::matrix::{Pair, Stack};
use crate::interop::stage::{Message, Receive, Side, Stage};

/// Sizes of one packet.
const SMALL: &[u64] = &[0, 1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 255, 256, 1000, 4096, 8000];
/// Up to the last medium message and the first of flow control, and where the number of packets
/// changes.
const MEDIUM: &[u64] = &[9000, 17_700, 17_856, 26_700, 32_768, 65_535, 65_536];
/// By windows of 32 packets.
const LONG: &[u64] = &[65_537, 100_000, 284_671, 284_672, 284_673, 293_600, 600_000, 1_048_575];
/// From where libfabric reads the message out of the sender's memory, if it can.
const READ: &[u64] = &[1_048_576, 1_048_577, 2_000_003, 4_194_304];

macro_rules! sizes {
    ($name:literal, $what:literal, $sizes:expr) => {
        [
            Scenario::new(concat!("untagged-", $name), concat!("untagged, ", $what), |stage| {
                sizes(stage, $sizes, untagged)
            }),
            Scenario::new(concat!("tagged-", $name), concat!("tagged, ", $what), |stage| {
                sizes(stage, $sizes, tagged)
            }),
            Scenario::new(concat!("data-", $name), concat!("with CQ data, ", $what), |stage| {
                sizes(stage, $sizes, with_data)
            }),
        ]
    };
}

static SMALL_SCENARIOS: [Scenario; 3] = sizes!("small", "one packet", SMALL);
static MEDIUM_SCENARIOS: [Scenario; 3] = sizes!("medium", "up to 65536 bytes", MEDIUM);
static LONG_SCENARIOS: [Scenario; 3] = sizes!("long", "from 65537 bytes", LONG);
static READ_SCENARIOS: [Scenario; 3] = sizes!("read", "from 1 MiB", READ);

static OTHERS: &[Scenario] = &[
    Scenario::new("eager-limit-first", "±1 byte, before the handshake", eager_limit_first),
    Scenario::new("eager-limit-later", "±1 byte, after the handshake", eager_limit_later),
    Scenario::new("inject", "injected up to the limit", inject),
    Scenario {
        known: &[Known::of(Pair::C_SENDS, [Release::FIRST, Release(1, 18)], DATA_32)],
        ..Scenario::new("data-64", "with 64 bits of CQ data", data_64)
    },
    Scenario::new("delivery", "with delivery complete", delivery),
    Scenario {
        environment: &[("FI_EFA_RUNT_SIZE", "307200")],
        ..Scenario::new("runting", "libfabric sends the beginning of what is read", |stage| {
            sizes(stage, READ, untagged)?;
            sizes(stage, READ, tagged)
        })
    },
    Scenario::new("both-ways", "messages of all sizes cross each other", both_ways),
];

pub(super) static ALL: &[&[Scenario]] =
    &[&SMALL_SCENARIOS, &MEDIUM_SCENARIOS, &LONG_SCENARIOS, &READ_SCENARIOS, OTHERS];

fn untagged(size: u64) -> Message {
    Message::of(size)
}

/// With both ends of the tag in use.
fn tagged(size: u64) -> Message {
    Message::of(size).tagged(1 << 63 | size << 1 | 1)
}

/// Tagged or not by turns; 32 bits of data, with both ends in use.
fn with_data(size: u64) -> Message {
    let message = if size.is_multiple_of(2) { untagged(size) } else { tagged(size) };
    message.with_data(1 << 31 | size << 1 | 1)
}

fn sizes(stage: &mut Stage<'_>, sizes: &[u64], message: fn(u64) -> Message) -> Result<()> {
    for size in sizes {
        stage.exchange(message(*size))?;
    }
    stage.answer(message(8))
}

/// The device's datagrams.
const MTU: u64 = 8928;
/// Headers of an eager message, by whether it has a tag: the mandatory part.
const UNTAGGED: u64 = 8;
const TAGGED: u64 = 16;
/// And the optional parts.
const RAW_ADDRESS: u64 = 40;
const CONNID: u64 = 4;
const CQ_DATA: u64 = 8;

/// Messages around the largest that one packet takes beside this optional header.
fn around_eager_limit(header: u64) -> Vec<Message> {
    let mut messages = Vec::new();
    for (mandatory, tag) in [(UNTAGGED, None), (TAGGED, Some(5))] {
        for (optional, data) in [(0, None), (CQ_DATA, Some(6))] {
            let limit = MTU - mandatory - header - optional;
            for size in limit - 1..=limit + 1 {
                messages.push(Message { tag, data, ..Message::of(size) });
            }
        }
    }
    messages
}

/// Only the first message of a pair is sent before the handshake: a pair for each.
fn eager_limit_first(stage: &mut Stage<'_>) -> Result<()> {
    for message in around_eager_limit(RAW_ADDRESS) {
        stage.exchange(message)?;
        stage.begin_anew()?;
    }
    Ok(())
}

fn eager_limit_later(stage: &mut Stage<'_>) -> Result<()> {
    stage.exchange(Message::of(8))?;
    stage.answer(Message::of(8))?;
    for message in around_eager_limit(CONNID) {
        stage.exchange(message)?;
    }
    Ok(())
}

fn inject(stage: &mut Stage<'_>) -> Result<()> {
    let limit = stage.inject_limit();
    for size in [0, 1, 8, 32, 33, 1000, limit.saturating_sub(1), limit] {
        for message in [untagged(size), tagged(size), with_data(size), with_data(size | 1)] {
            let size = message.size.min(limit);
            stage.exchange(Message { size, inject: true, ..message })?;
        }
    }
    Ok(())
}

/// `rxr_msg_construct` of `prov/efa/src/rxr/rxr_msg.c`.
const DATA_32: &str = "libfabric before 1.18 offers 64 bits (cq_data_size 8) and sends only the lower 32, \
    except by fi_sendmsg";

fn data_64(stage: &mut Stage<'_>) -> Result<()> {
    for size in SIZES {
        for message in [untagged(size), tagged(size)] {
            stage.exchange(message.with_data(0xfedc_ba98_7654_3210))?;
        }
    }
    Ok(())
}

/// A send must not complete before its message has a receive.
fn delivery(stage: &mut Stage<'_>) -> Result<()> {
    for size in SIZES {
        for message in [untagged(size), tagged(size), with_data(size)] {
            let message = Message { delivery: true, ..message };
            let sent = stage.send(message)?;
            stage.settle()?;
            stage.sender()?.expect_no_completion()?;
            let receive = stage.receive(Receive::fitting(&message))?;
            stage.expect_sent(&sent)?;
            // The flag is lost on the way: see `unexpected-data`.
            if message.data.is_none() || stage.stack(Side::Receiver) == Stack::Rust {
                stage.expect_received(receive, &sent)?;
            } else {
                let completion = stage.receiver()?.completion_of(receive)?;
                ensure!(completion.succeeded(), "seen `{}`", completion.record);
            }
            stage.exchange(message)?;
        }
    }
    Ok(())
}

fn both_ways(stage: &mut Stage<'_>) -> Result<()> {
    let sizes = SMALL.iter().chain(MEDIUM).chain(LONG).chain(READ).map(|size| tagged(*size));
    let messages: Vec<_> = sizes.collect();
    stage.cross(&messages)
}
