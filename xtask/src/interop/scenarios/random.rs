//! Random operations of two peers on each other, as a seed draws them. However they meet, each message must be in the receive
//! that the rules of matching say, and memory must have what was written to it.
//!
//! ```text
//!   seed ─► messages, receives, cancels, writes, reads and sums of both peers, which don't poll at times
//!                 └─► all completions ─► which receive takes which message ─► flags, lengths, bytes
//! ```

use anyhow::{Context, Result, ensure};
use fastrand::Rng;

use super::matching::{ECANCELED, expect_truncated};
use super::remote::{MARGIN, UNWRITABLE_REASON, hex};
use super::{Faults, Known, Scenario};
use crate::interop::build::Release;
use crate::interop::matrix::{Pair, Stack};
use crate::interop::pattern::pattern;
use crate::interop::record::Completion;
use crate::interop::stage::{Exposed, Message, ROOM, Receive, Sent, Side, Stage, expect_message};

pub(super) static ALL: &[Scenario] = &[
    Scenario {
        known: UNWRITABLE,
        ..Scenario::random("random", "operations that a seed draws (--seed, --seeds)", run)
    },
    Scenario {
        faults: Faults { reorder: Some(9), ..Faults::NONE },
        known: UNWRITABLE,
        ..Scenario::random("random-reordered", "the same, with packets reordered", run)
    },
    Scenario {
        faults: Faults { receiver_not_ready: Some("0.2"), ..Faults::NONE },
        known: UNWRITABLE,
        ..Scenario::random("random-not-ready", "and every fifth meets RNR", run)
    },
    Scenario {
        // Grants of two packets.
        environment: &[("FI_EFA_TX_MIN_CREDITS", "2")],
        sender: "sends=16 receives=64",
        receiver: "sends=16 receives=64",
        known: UNWRITABLE,
        ..Scenario::random("random-narrow", "with short queues and small grants", run)
    },
];

/// As for the scenarios of [`remote`](super::remote), in both directions. Seeds without long writes pass.
const UNWRITABLE: &[Known] = &[Known::with_rdma(
    &[Pair::CC, Pair::CRust, Pair::RustC],
    [Release(1, 19), Release(2, 3)],
    UNWRITABLE_REASON,
)];

/// The longest message of a run, and how many operations that has.
const RUNS: [(u64, usize); 3] = [(9_000, 240), (70_000, 160), (1_500_000, 60)];

/// Lengths around which something changes.
const EDGES: [u64; 12] =
    [0, 8, 32, 1_000, 4_096, 8_192, 8_850, 8_904, 65_536, 131_072, 307_200, 1 << 20];

/// Words of memory that are summed up.
const SUMS: usize = 64;

fn run(stage: &mut Stage<'_>, seed: u64) -> Result<()> {
    let mut rng = Rng::with_seed(seed);
    let (longest, operations) = RUNS[rng.usize(..RUNS.len())];
    // libfabric begins a long write before it knows whether the other side can read it.
    let with_memory = rng.bool();
    if with_memory {
        stage.exchange(Message::of(1))?;
        stage.answer(Message::of(1))?;
        stage.settle()?;
    }
    let halves = [Half::new(stage, Side::Receiver)?, Half::new(stage, Side::Sender)?];
    let mut play = Play { stage, rng, longest, halves };
    if with_memory {
        play.expose()?;
    }
    for _ in 0..operations {
        play.step(with_memory)?;
    }
    play.end()
}

/// What is done at one of the peers, and by the other one to it.
struct Half {
    side: Side,
    /// Messages to it, in order.
    sent: Vec<Sent>,
    /// Its receives, in order.
    receives: Vec<Posted>,
    remote: Vec<Remote>,
    /// Its memory that nobody has written or read so far.
    unused: Vec<Memory>,
    sums: Exposed,
    /// What is in that memory once all sums are done.
    totals: Vec<u64>,
}

struct Posted {
    id: u64,
    receive: Receive,
    is_cancelled: bool,
    /// If it was asked for already.
    completion: Option<Completion>,
}

/// Memory for one operation.
struct Memory {
    exposed: Exposed,
    size: u64,
    /// Of what is there to be read, or `None` if it is to be written, between margins.
    seed: Option<u64>,
}

/// An operation on memory of a peer.
enum Remote {
    Write { id: u64, target: u64, size: u64 },
    Read { id: u64, seed: u64, size: u64 },
    Sum { id: u64 },
}

impl Half {
    fn new(stage: &mut Stage<'_>, side: Side) -> Result<Self> {
        let seed = stage.new_id();
        let sums = stage.expose(side, 8 * SUMS as u64, Some(seed))?;
        let (sent, receives, remote, unused) = Default::default();
        Ok(Self { side, sent, receives, remote, unused, sums, totals: words(seed, SUMS) })
    }

    /// Who sends to it.
    fn other(&self) -> Side {
        if self.side == Side::Receiver { Side::Sender } else { Side::Receiver }
    }
}

struct Play<'a, 'b> {
    stage: &'a mut Stage<'b>,
    rng: Rng,
    longest: u64,
    halves: [Half; 2],
}

impl Play<'_, '_> {
    /// Memory of both peers for some writes and reads: later a peer may not answer before the other one polls.
    fn expose(&mut self) -> Result<()> {
        for at in [0, 1] {
            for _ in 0..20 {
                let size = self.size();
                let seed = self.rng.bool().then(|| self.stage.new_id());
                let length = if seed.is_some() { size } else { size + 2 * MARGIN };
                let half = &mut self.halves[at];
                let exposed = self.stage.expose(half.side, length, seed)?;
                half.unused.push(Memory { exposed, size, seed });
            }
        }
        Ok(())
    }

    /// Has a peer begin with something, which may have to wait for the other one.
    fn give(&mut self, side: Side, command: String) -> Result<()> {
        self.stage.peer(side)?.give(command)
    }

    fn step(&mut self, with_memory: bool) -> Result<()> {
        let at = self.rng.usize(..2);
        match self.rng.u32(..100) {
            0..36 => self.send(at),
            36..72 => self.receive(at),
            72..77 => self.cancel(at),
            77..88 if with_memory => self.write_or_read(at),
            88..94 if with_memory => self.sum(at),
            _ => self.pause(at),
        }
    }

    /// Around a length at which something changes, or any.
    fn size(&mut self) -> u64 {
        let edge = EDGES[self.rng.usize(..EDGES.len())];
        let size = match self.rng.u32(..4) {
            0 => 1 << self.rng.u32(..21) | self.rng.u64(..1_000),
            1 => edge,
            _ => edge.saturating_add_signed(self.rng.i64(-40..=40)),
        };
        size.min(self.longest)
    }

    /// Often the same, so that there is a choice.
    fn tag(&mut self) -> Option<u64> {
        (self.rng.u32(..5) < 3).then(|| 0x10 + self.rng.u64(..4))
    }

    fn send(&mut self, at: usize) -> Result<()> {
        let (size, tag, data) = (self.size(), self.tag(), u64::from(self.rng.u32(..)));
        let [has_data, inject, delivery] = [4, 5, 5].map(|of| self.rng.u32(..of) == 0);
        let half = &mut self.halves[at];
        let from = half.other();
        // libfabric doesn't say so of a message that waited for its receive.
        let reports_data =
            self.stage.stack(half.side) == Stack::Rust || self.stage.libfabric() >= Release(1, 19);
        // The limit is that of the sender.
        let inject = inject && from == Side::Sender && size <= self.stage.inject_limit();
        let message = Message {
            size,
            tag,
            data: (has_data && reports_data).then_some(data),
            inject,
            delivery: delivery && !inject,
        };
        let id = self.stage.new_id();
        half.sent.push(Sent { id, from, message });
        self.give(from, format!("send id={id} to=0 seed={id} {message}"))
    }

    fn receive(&mut self, at: usize) -> Result<()> {
        let (tag, short) = (self.tag(), self.size());
        let ignore = [0, 0, 3, u64::MAX][self.rng.usize(..4)];
        let [is_directed, is_short] = [2, 8].map(|of| self.rng.u32(..of) == 0);
        let half = &mut self.halves[at];
        // libfabric leaves the sender of a message waiting that it would have to read and that is longer than its receive.
        let is_short = is_short && self.stage.stack(half.side) == Stack::Rust;
        let receive = Receive {
            size: if is_short { short } else { self.longest + ROOM },
            tag,
            ignore: if tag.is_some() { ignore } else { 0 },
            from: is_directed.then_some(0),
        };
        let (id, side) = (self.stage.new_id(), half.side);
        half.receives.push(Posted { id, receive, is_cancelled: false, completion: None });
        self.give(side, format!("receive id={id} {receive}"))
    }

    /// Of a receive that waits, or has its message by then.
    fn cancel(&mut self, at: usize) -> Result<()> {
        let half = &mut self.halves[at];
        let count = half.receives.len();
        let late = count.saturating_sub(1 + self.rng.usize(..10));
        match half.receives.get_mut(late) {
            Some(posted) if !posted.is_cancelled => {
                posted.is_cancelled = true;
                let (side, id) = (half.side, posted.id);
                self.give(side, format!("cancel id={id}"))
            }
            _ => Ok(()),
        }
    }

    fn write_or_read(&mut self, at: usize) -> Result<()> {
        let level = if self.rng.bool() { "delivery" } else { "" };
        let half = &mut self.halves[at];
        let Some(Memory { exposed, size, seed }) = half.unused.pop() else { return Ok(()) };
        let Exposed { id: target, address, key } = exposed;
        let (id, requester) = (self.stage.new_id(), half.other());
        let place = |address| format!("id={id} to=0 size={size} address={address:#x} key={key:#x}");
        let (command, operation) = match seed {
            None => (
                format!("write {} seed={id} {level}", place(address + MARGIN)),
                Remote::Write { id, target, size },
            ),
            Some(seed) => (format!("read {}", place(address)), Remote::Read { id, seed, size }),
        };
        half.remote.push(operation);
        self.give(requester, command)
    }

    fn sum(&mut self, at: usize) -> Result<()> {
        let first = self.rng.usize(..SUMS);
        let count = 1 + self.rng.usize(..SUMS - first);
        let form = ["", "delivery", "fetch"][self.rng.usize(..3)];
        let half = &mut self.halves[at];
        let (id, Exposed { address, key, .. }) = (self.stage.new_id(), half.sums);
        let (size, address) = (8 * count, address + 8 * first as u64);
        let command = format!(
            "atomic id={id} to=0 size={size} seed={id} address={address:#x} key={key:#x} type=7 op=2 \
             width=8 {form}"
        );
        for (total, operand) in half.totals[first..].iter_mut().zip(words(id, count)) {
            *total = total.wrapping_add(operand);
        }
        half.remote.push(Remote::Sum { id });
        let requester = half.other();
        self.give(requester, command)
    }

    /// Lets a peer poll for a while, or no more for now.
    fn pause(&mut self, at: usize) -> Result<()> {
        let command = ["idle", "busy", "poll rounds=10", "poll rounds=300"][self.rng.usize(..4)];
        self.give(self.halves[at].side, command.to_owned())
    }

    /// Has all operations complete, and checks them.
    fn end(self) -> Result<()> {
        let Self { stage, halves, .. } = self;
        for half in &halves {
            stage.peer(half.side)?.give("busy".to_owned())?;
        }
        for mut half in halves {
            let to = half.side.name();
            end_receives(stage, &mut half).with_context(|| format!("messages to the {to}"))?;
            end_remote(stage, &half).with_context(|| format!("operations on the {to}"))?;
        }
        Ok(())
    }
}

fn end_receives(stage: &mut Stage<'_>, half: &mut Half) -> Result<()> {
    let Half { side, sent, receives, .. } = half;
    let side = *side;
    // Which were cancelled in time is up to the peers. They took no message.
    for posted in receives.iter_mut().filter(|posted| posted.is_cancelled) {
        posted.completion = Some(stage.peer(side)?.completion_of(posted.id)?);
    }
    receives.retain(|posted| posted.completion.as_ref().is_none_or(|seen| !is_cancelled(seen)));
    let (taken, left) = matched(receives, sent);
    for (posted, message) in receives.iter().zip(taken) {
        match message {
            Some(message) => expect(stage, side, posted, message)?,
            None => {
                stage.peer(side)?.run_ok(&format!("cancel id={}", posted.id))?;
                let seen = stage.peer(side)?.completion_of(posted.id)?;
                ensure!(is_cancelled(&seen), "no message fits: seen `{}`", seen.record);
            }
        }
    }
    for sent in left {
        let id = stage.receive_at(side, Receive::fitting(&sent.message))?;
        stage.expect_received_at(side, id, sent, 0)?;
    }
    sent.iter().try_for_each(|sent| stage.expect_sent(sent))
}

/// By the rules of MPI: for each receive its message, if any fits, and the messages for which there is no receive.
fn matched<'a>(receives: &[Posted], sent: &'a [Sent]) -> (Vec<Option<&'a Sent>>, Vec<&'a Sent>) {
    let mut left: Vec<_> = sent.iter().collect();
    let taken = receives.iter().map(|posted| {
        let at = left.iter().position(|sent| accepts(&posted.receive, &sent.message))?;
        Some(left.remove(at))
    });
    (taken.collect(), left)
}

fn accepts(receive: &Receive, message: &Message) -> bool {
    match (receive.tag, message.tag) {
        (Some(wanted), Some(tag)) => (wanted ^ tag) & !receive.ignore == 0,
        (None, None) => true,
        _ => false,
    }
}

/// The receive must have taken this message.
fn expect(stage: &mut Stage<'_>, side: Side, posted: &Posted, sent: &Sent) -> Result<()> {
    let Posted { id, receive, completion, .. } = posted;
    let (message, room) = (sent.message, receive.size);
    let seen = match completion {
        Some(seen) => seen.clone(),
        None => stage.peer(side)?.completion_of(*id)?,
    };
    let described = || format!("{message} in the receive of {receive}");
    match message.size.checked_sub(room).filter(|missing| *missing > 0) {
        Some(missing) => expect_truncated(&seen, stage.stack(side), room, missing),
        None => expect_message(&seen, &message, 0),
    }
    .with_context(described)?;
    let length = message.size.min(room);
    stage.check(side, &format!("id={id} length={length} seed={}", sent.id)).with_context(described)
}

fn is_cancelled(completion: &Completion) -> bool {
    !completion.succeeded() && completion.expect_number("error", ECANCELED).is_ok()
}

fn end_remote(stage: &mut Stage<'_>, half: &Half) -> Result<()> {
    let Half { side, remote, sums, totals, .. } = half;
    let requester = half.other();
    for operation in remote {
        match *operation {
            Remote::Write { id, .. } => {
                stage.peer(requester)?.completion_of(id)?.expect(&["rma", "write"])?;
            }
            Remote::Read { id, seed, size } => {
                stage.peer(requester)?.completion_of(id)?.expect(&["rma", "read"])?;
                stage.check(requester, &format!("id={id} length={size} seed={seed}"))?;
            }
            Remote::Sum { id } => {
                let seen = stage.peer(requester)?.completion_of(id)?;
                ensure!(seen.succeeded() && seen.has("atomic"), "seen `{}`", seen.record);
            }
        }
    }
    for operation in remote {
        if let Remote::Write { id, target, size } = *operation {
            let what = format!("id={target} from={MARGIN} length={size} seed={id}");
            arrives(stage, |stage| stage.check(*side, &what))?;
        }
    }
    let bytes: Vec<_> = totals.iter().flat_map(|total| total.to_le_bytes()).collect();
    let expected = hex(&bytes);
    arrives(stage, |stage| {
        let seen = stage.show(*side, &format!("id={}", sums.id))?;
        ensure!(seen == expected, "sums:\nexpected {expected}\nseen     {seen}");
        Ok(())
    })
}

/// An operation may complete before it is done at the other side.
fn arrives(stage: &mut Stage<'_>, check: impl Fn(&mut Stage<'_>) -> Result<()>) -> Result<()> {
    for _ in 0..50 {
        if check(stage).is_ok() {
            return Ok(());
        }
        stage.settle()?;
    }
    check(stage)
}

/// The first words of the pattern of a seed.
fn words(seed: u64, count: usize) -> Vec<u64> {
    let bytes = pattern(seed, 8 * count);
    let words = bytes.chunks_exact(8).map(|word| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        u64::from_le_bytes(bytes)
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_receive_takes_the_first_message_that_it_accepts_and_no_earlier_one_took() {
        let sent =
            |id, tag| Sent { id, from: Side::Sender, message: Message { tag, ..Message::of(1) } };
        let sent = [sent(1, Some(4)), sent(2, None), sent(3, Some(5)), sent(4, Some(4))];
        let posted = |tag, ignore| Posted {
            id: 0,
            receive: Receive { tag, ignore, ..Receive::of(1) },
            is_cancelled: false,
            completion: None,
        };
        let receives =
            [posted(Some(5), 1), posted(Some(5), 0), posted(Some(6), 0), posted(None, 0)];
        let (taken, left) = matched(&receives, &sent);
        let taken: Vec<_> = taken.iter().map(|sent| sent.map(|sent| sent.id)).collect();
        assert_eq!(taken, [Some(1), Some(3), None, Some(2)]);
        assert_eq!(left.iter().map(|sent| sent.id).collect::<Vec<_>>(), [4]);
    }
}
