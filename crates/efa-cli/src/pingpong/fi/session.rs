//! An endpoint with `fi_pingpong` as its peer.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use efa::{Completion, CompletionError, CompletionQueue, Endpoint, FiAddr, Kind, Message, Receive};

use super::super::plan::{Direction, Plan};
use super::super::session::{CHECK, Problem, RunError, SPINS, Turn};
use super::control::{FiControl, FiControlError};
use super::data;
use crate::interrupt::Interrupt;

/// How long to wait for messages of a peer that has closed the control channel: it closes at its end, when its
/// last message may not have arrived yet.
const GRACE: Duration = Duration::from_secs(1);

/// The parts of a session.
pub(super) struct Session {
    pub(super) endpoint: Endpoint,
    queue: CompletionQueue,
    peer: FiAddr,
    pub(super) control: FiControl,
    pub(super) plan: Plan,
    /// Bytes that arrive before each message. libfabric strips them where it receives, and not where it sends.
    prefix: usize,
    /// Signals that end the run.
    pub(super) interrupt: Interrupt,
    /// Longest wait without a completion.
    timeout: Duration,
    /// Number of messages written, and received, so far.
    filled: u32,
    received: u32,
    /// Completions that no wait has returned yet.
    early: Early,
}

/// Completions that no wait has returned yet.
#[derive(Default)]
struct Early {
    sent: VecDeque<Completion>,
    received: VecDeque<Completion>,
    /// The first error.
    failed: Option<CompletionError>,
}

impl Early {
    /// Reads a completion, if there is one.
    fn read(&mut self, queue: &CompletionQueue) -> bool {
        let Some(entry) = queue.read() else { return false };
        match entry {
            Ok(completion) if completion.kind == Kind::Send => self.sent.push_back(completion),
            Ok(completion) => self.received.push_back(completion),
            Err(error) => {
                self.failed.get_or_insert(error);
            }
        }
        true
    }
}

impl Session {
    /// Creates the session and posts the first receive.
    pub(super) fn new(
        endpoint: Endpoint,
        queue: CompletionQueue,
        peer: FiAddr,
        control: FiControl,
        (plan, prefix): (Plan, u16),
        timeout: Duration,
    ) -> Result<Self, RunError> {
        let longest = plan.steps.iter().map(|step| step.size).max().unwrap_or(0);
        let prefix = usize::from(prefix);
        let room = prefix + longest.max(data::LEAST_ROOM) as usize;
        let (filled, received, early) = (0, 0, Early::default());
        let session = Self {
            endpoint,
            queue,
            peer,
            control,
            plan,
            prefix,
            interrupt: Interrupt::default(),
            timeout,
            filled,
            received,
            early,
        };
        let first = Turn { step: 0, number: 0, size: longest, direction: Direction::ToServer };
        session.post(first, vec![0; room])?;
        Ok(session)
    }

    /// Runs a step of the control protocol, and polls the endpoint meanwhile: the other side may need packets that
    /// met RNR, such as an EOR.
    pub(super) fn control_step(
        &mut self,
        words: impl FnOnce(&mut FiControl, &mut dyn FnMut()) -> Result<(), FiControlError>,
    ) -> Result<(), FiControlError> {
        let Self { control, early, queue, .. } = self;
        words(control, &mut || while early.read(queue) {})
    }

    /// Writes the bytes of the next message, if they are to be checked.
    pub(super) fn fill(&mut self, buffer: &mut [u8]) {
        if self.plan.check {
            data::fill(self.filled, buffer);
            self.filled = self.filled.wrapping_add(1);
        }
    }

    /// Starts to send a message.
    pub(super) fn send(&self, turn: Turn, buffer: Vec<u8>) -> Result<(), RunError> {
        let message = Message::to(self.peer);
        let message = if self.plan.tagged { message.tagged(data::TAG) } else { message };
        let result = self.endpoint.send(message, buffer, turn.number);
        result.map_err(|refused| turn.failed(Problem::Start(refused.error)))
    }

    fn post(&self, turn: Turn, buffer: Vec<u8>) -> Result<(), RunError> {
        let receive =
            if self.plan.tagged { Receive::tagged(data::TAG) } else { Receive::untagged() };
        let result = self.endpoint.receive(receive, buffer, turn.number);
        result.map(drop).map_err(|refused| turn.failed(Problem::Start(refused.error)))
    }

    /// Waits for the next send to complete; `turn` is for errors.
    pub(super) fn sent(&mut self, turn: Turn) -> Result<Completion, RunError> {
        loop {
            if let Some(completion) = self.early.sent.pop_front() {
                return Ok(completion);
            }
            self.wait().map_err(|problem| turn.failed(problem))?;
        }
    }

    /// Waits for the next message; `turn` is for errors.
    pub(super) fn received(&mut self, turn: Turn) -> Result<Completion, RunError> {
        loop {
            if let Some(completion) = self.early.received.pop_front() {
                return Ok(completion);
            }
            self.wait().map_err(|problem| turn.failed(problem))?;
        }
    }

    /// Checks a received message, and posts its buffer for the next one.
    pub(super) fn verify(&mut self, turn: Turn, completion: Completion) -> Result<(), RunError> {
        let buffer = self.envelope(turn, completion)?;
        if self.plan.check {
            let checked = data::check(self.received, &buffer[self.prefix..][..turn.size as usize]);
            checked.map_err(|mismatch| turn.failed(Problem::Bytes(mismatch)))?;
        }
        self.received = self.received.wrapping_add(1);
        self.post(turn, buffer)
    }

    /// Exchanges `fin` messages; `ours` is the direction of this side's.
    pub(super) fn exchange_fin(&mut self, ours: Direction) -> Result<(), RunError> {
        let steps = self.plan.steps.len() as u64;
        let size = data::CLOSE_TIMEOUT.len() as u64;
        let turn = |direction| Turn { step: steps, number: 0, size, direction };
        let theirs = match ours {
            Direction::ToServer => Direction::ToClient,
            Direction::ToClient => Direction::ToServer,
        };
        self.send(turn(ours), data::CLOSE_TIMEOUT.to_vec())?;
        self.sent(turn(ours))?;
        let received = self.received(turn(theirs))?;
        // Its bytes aren't checked: `fi_pingpong` writes `fin` into the prefix that the provider reserves, so what is
        // sent is the beginning of its previous message.
        self.envelope(turn(theirs), received).map(drop)
    }

    /// Checks length and tag of a message, and returns its buffer, which may be longer.
    fn envelope(&self, turn: Turn, completion: Completion) -> Result<Vec<u8>, RunError> {
        let Completion { length, tag, buffer, .. } = completion;
        let expected = self.prefix as u64 + turn.size;
        if length > expected && self.prefix == 0 {
            return Err(turn.failed(Problem::FiPrefix { found: length, size: turn.size }));
        }
        if length != expected {
            return Err(turn.failed(Problem::Length { found: length }));
        }
        let expected = self.plan.tagged.then_some(data::TAG);
        if tag != expected {
            return Err(turn.failed(Problem::Tag { found: tag, expected }));
        }
        Ok(buffer.into_vec())
    }

    /// Waits for one completion, and adds it to its queue.
    fn wait(&mut self) -> Result<(), Problem> {
        self.interrupt.take()?;
        let begin = Instant::now();
        let (mut spins, mut looked, mut gone) = (0_u32, begin, None);
        while !self.early.read(&self.queue) {
            spins = spins.wrapping_add(1);
            if !spins.is_multiple_of(SPINS) {
                continue;
            }
            thread::yield_now();
            let now = Instant::now();
            if now - looked < CHECK {
                continue;
            }
            looked = now;
            self.interrupt.take()?;
            if gone.is_none() && self.control.is_closed()? {
                gone = Some(now);
            }
            if gone.is_some_and(|since| now - since > GRACE) {
                return Err(FiControlError::Closed.into());
            }
            if now - begin > self.timeout {
                return Err(match self.received {
                    0 => Problem::FiSilent { waited: self.timeout },
                    _ => Problem::Stalled { waited: self.timeout },
                });
            }
        }
        self.early.failed.take().map_or(Ok(()), |error| Err(error.into()))
    }
}
