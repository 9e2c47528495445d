//! Many peers of an endpoint, each spoken to once.
//!
//! ```text
//!   the endpoint ══► 64 peers, of which each gets one message and says who it is; they end
//!                ══► 64 others …
//! ```
//!
//! The endpoint isn't told that a peer has ended, so it knows all of them in the end.

use std::time::Instant;

use anyhow::{Context, Result};
use efa::{Endpoint, Fabric, FiAddr, Message, Receive, ShmOptions};
use efa_counted_heap::live_bytes;

use crate::endpoints::few_buffers;
use crate::shared::Shared;
use crate::world::{Program, World};
use crate::{counted, say};

const WAVE: usize = 64;
/// Peers of one host: its queue pairs have numbers of 16 bits.
const OF_A_HOST: usize = 1 << 14;
/// Messages that are counted among known peers.
const TIMES: usize = 256;

/// An endpoint, and the program whose endpoints it speaks to.
struct Speaker {
    world: World,
    program: Program,
    endpoint: Endpoint,
    others: Program,
    peers: usize,
}

impl Speaker {
    fn new() -> Result<Self> {
        let world = World::new();
        let (program, others) = (world.program()?, world.program()?);
        let endpoint = program.usual(0)?;
        Ok(Self { world, program, endpoint, others, peers: 0 })
    }

    /// New endpoints that wait for a message each, and how the speaker reaches them.
    fn wave(&mut self, count: usize) -> Result<Vec<(Endpoint, FiAddr)>> {
        if self.peers / OF_A_HOST < (self.peers + count) / OF_A_HOST {
            self.others = self.world.program()?;
        }
        let mut wave = Vec::with_capacity(count);
        for number in self.peers + 1..=self.peers + count {
            let peer = self.others.endpoint(few_buffers(), number)?;
            peer.receive(Receive::tagged(1), vec![0; 8], 0)?;
            let to = self.program.addresses.insert(peer.address())?;
            wave.push((peer, to));
        }
        self.peers += count;
        Ok(wave)
    }

    /// Sends each of them its message, and takes its answer.
    fn speak_to(&self, wave: &[(Endpoint, FiAddr)]) -> Result<()> {
        for (_, to) in wave {
            self.endpoint.send(Message::to(*to).tagged(1), "8 bytes.", 0)?;
        }
        let (ours, theirs) = (&self.program.queue, &self.others.queue);
        self.world.complete(vec![(ours, wave.len()), (theirs, wave.len())])?;
        self.world.settle([ours, theirs])
    }

    /// Speaks to so many peers, in waves; `between` is what speaking is done by.
    fn speak_to_many(
        &mut self,
        count: usize,
        mut by: impl FnMut(&mut dyn FnMut() -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let mut left = count;
        while left > 0 {
            let wave = self.wave(left.min(WAVE))?;
            by(&mut || self.speak_to(&wave))?;
            left -= wave.len();
        }
        Ok(())
    }
}

/// Bytes that an endpoint keeps for a peer that it spoke to, with its address.
pub(crate) fn heap(count: usize) -> Result<()> {
    let mut speaker = Speaker::new()?;
    speaker.speak_to_many(2 * WAVE, |speak| speak())?;
    let live = live_bytes();
    let begin = Instant::now();
    speaker.speak_to_many(count, |speak| speak())?;
    let bytes = (live_bytes() - live) as f64 / count as f64;
    say("peers", count, "bytes", bytes);
    say("peers", count, "microseconds", begin.elapsed().as_secs_f64() * 1e6 / count as f64);
    Ok(())
}

/// Counts first messages: those of both sides, with what the peers say of themselves.
pub(crate) fn speak(count: usize) -> Result<()> {
    let mut speaker = Speaker::new()?;
    speaker.speak_to_many(count, counted)?;
    say("speak", count, "times", count);
    Ok(())
}

/// Counts messages to one peer of so many that are known.
pub(crate) fn known(count: usize) -> Result<()> {
    let mut speaker = Speaker::new()?;
    speaker.speak_to_many(count.saturating_sub(1), |speak| speak())?;
    let wave = speaker.wave(1)?;
    speaker.speak_to(&wave)?;
    let (peer, to) = wave.first().context("a wave of one")?;
    let transfer = |buffer| {
        let at = (peer, &speaker.others.queue);
        speaker.world.message((&speaker.endpoint, &speaker.program.queue), *to, at, buffer)
    };
    (0..TIMES).try_for_each(|_| transfer(vec![0; 8]))?;
    let mut buffers = vec![vec![0; 8]; TIMES];
    counted(&mut || buffers.drain(..).try_for_each(transfer))?;
    say("known", count, "times", TIMES);
    Ok(())
}

/// Bytes of shared memory for a peer that was spoken to on the link `shm`: a ring in each direction.
pub(crate) fn rings(count: usize) -> Result<()> {
    let place = tempfile::tempdir_in("/dev/shm").context("a directory in /dev/shm")?;
    let hosts = place.path().join("hosts");
    let directory = Some(hosts.clone());
    let options = ShmOptions::new("scale").with(|options| options.directory = directory);
    let program = Program::new(Fabric::shm(options).domain()?)?;
    for (what, options) in [("rings", <_>::default()), ("rings-of-connections", few_buffers())] {
        let speaker = program.endpoint(options.clone(), 0)?;
        let mut peers = Vec::new();
        for number in 1..=count {
            let peer = program.endpoint(options.clone(), number)?;
            peer.receive(Receive::tagged(1), vec![0; 8], 0)?;
            let to = program.addresses.insert(peer.address())?;
            peers.push((peer, to));
        }
        while program.queue.read().is_some() {}
        let before = Shared::now(&hosts)?;
        for (_, to) in &peers {
            speaker.send(Message::to(*to).tagged(1), "8 bytes.", 0)?;
        }
        let begin = Instant::now();
        let mut completions = 0;
        let handshakes =
            || speaker.statistics().received.iter().map(|(_, count)| count).sum::<u64>();
        while completions < 2 * count || handshakes() < count as u64 {
            match program.queue.read() {
                Some(entry) => {
                    drop(entry.map_err(|failed| failed.error)?);
                    completions += 1;
                }
                None => anyhow::ensure!(begin.elapsed().as_secs() < 30, "nothing completes"),
            }
        }
        let after = Shared::now(&hosts)?;
        let rings = after.rings - before.rings;
        say(what, count, "rings", rings as f64 / count as f64);
        say(what, count, "shared", (after.bytes - before.bytes) as f64 / rings.max(1) as f64);
    }
    Ok(())
}
