//! An endpoint, its one peer, and the messages between them.
//!
//! Used by both sides of a run: messages with checkable bytes, and waits with a timeout. While nothing completes,
//! the session checks the control channel, so that the failure or end of the peer is noticed at once.

use std::collections::VecDeque;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use efa::{
    Completion, CompletionError, CompletionQueue, Endpoint, FiAddr, Kind, Message, OperationError,
    Receive, StartError,
};

use super::control::{Channel, ControlError};
use super::fi::FiControlError;
use super::pattern::{Mismatch, Pattern};
use super::plan::{Direction, Plan};
use super::report::readable_size;
use crate::interrupt::{Interrupt, Interrupted};

/// Polls of the completion queue between two yields of the processor.
pub(super) const SPINS: u32 = 16;
/// Time between two checks of the control channel.
pub(super) const CHECK: Duration = Duration::from_millis(20);

/// One message of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Index of the size in the plan.
    pub(crate) step: u64,
    /// Number among the messages of this size in this direction, with the warm-up.
    pub(crate) number: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// Its direction.
    pub(crate) direction: Direction,
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = match self.direction {
            Direction::ToServer => "to the server",
            Direction::ToClient => "to the client",
        };
        write!(f, "message {} of size {} {to}", self.number, readable_size(self.size))
    }
}

impl Turn {
    /// The tag, different for all messages of a run in one direction: numbers are below 2^32.
    fn tag(self) -> u64 {
        self.step << 32 | self.number
    }

    pub(super) fn failed(self, source: Problem) -> RunError {
        RunError { turn: self, source }
    }

    fn pattern(self) -> Pattern {
        Pattern::new(self.size, self.number, self.direction)
    }
}

/// An error of one message.
#[derive(Debug, thiserror::Error)]
#[error("{turn}")]
pub(crate) struct RunError {
    /// The message.
    turn: Turn,
    /// The error.
    pub(crate) source: Problem,
}

/// The cause of an error of a message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    /// The operation can't be started.
    #[error(transparent)]
    Start(StartError),
    /// The operation failed.
    #[error(transparent)]
    Operation(OperationError),
    /// Timeout.
    #[error("no completion within {waited:?}")]
    Stalled {
        /// The time waited.
        waited: Duration,
    },
    /// A signal came.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// The peer closed the control channel or failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The peer, `fi_pingpong`, closed the control channel.
    #[error(transparent)]
    FiControl(#[from] FiControlError),
    /// It has another length.
    #[error("{found} bytes arrived")]
    Length {
        /// Its length.
        found: u64,
    },
    /// It is longer than `fi_pingpong` was asked for.
    #[error(
        "{found} bytes arrived, {} more than the message has: from libfabric 2.4 on, fi_pingpong sends the space that it \
         leaves before a message: use --fi-prefix {}",
        found - size, found - size
    )]
    FiPrefix {
        /// Its length.
        found: u64,
        /// The length of the message.
        size: u64,
    },
    /// `fi_pingpong` sends nothing.
    #[error(
        "nothing within {waited:?}: from libfabric 2.1 on, fi_pingpong needs `-f efa`, as it prefers efa-direct, whose \
         messages have no protocol"
    )]
    FiSilent {
        /// The time waited.
        waited: Duration,
    },
    /// It has another tag.
    #[error("its tag is {found:#x?}, expected {expected:#x?}")]
    Tag {
        /// The value found.
        found: Option<u64>,
        /// The expected value.
        expected: Option<u64>,
    },
    /// It has other CQ data.
    #[error("its CQ data is {found:#x?}, expected {expected:#x?}")]
    CqData {
        /// The value found.
        found: Option<u64>,
        /// The expected value.
        expected: Option<u64>,
    },
    /// It has other bytes.
    #[error("byte {} is {:#04x}, expected {:#04x}", .0.offset, .0.found, .0.expected)]
    Bytes(Mismatch),
}

impl From<CompletionError> for Problem {
    /// The message is reported separately.
    fn from(CompletionError { error, .. }: CompletionError) -> Self {
        Self::Operation(error)
    }
}

/// A buffer of this many bytes, all written: the first write to a page of memory takes longer than its message.
pub(super) fn mapped_buffer(size: u64) -> Vec<u8> {
    vec![1; size as usize]
}

/// The parts of a session.
pub(crate) struct Session<'a> {
    pub(crate) endpoint: Endpoint,
    pub(crate) queue: CompletionQueue,
    pub(crate) peer: FiAddr,
    pub(crate) channel: &'a mut Channel,
    pub(crate) plan: Plan,
    /// Signals that end the run.
    pub(crate) interrupt: Interrupt,
    /// Longest wait without a completion.
    pub(crate) timeout: Duration,
    /// Completions that no wait has returned yet.
    pub(crate) early: Early,
}

/// Completions that no wait has returned yet.
#[derive(Default)]
pub(crate) struct Early {
    sent: VecDeque<Completion>,
    received: VecDeque<Completion>,
}

impl Session<'_> {
    /// Writes the bytes of a message, if they are to be checked.
    pub(crate) fn fill(&self, turn: Turn, buffer: &mut [u8]) {
        if self.plan.check {
            turn.pattern().fill(buffer);
        }
    }

    /// Starts to send a message.
    pub(crate) fn send(&mut self, turn: Turn, buffer: Vec<u8>) -> Result<(), RunError> {
        let mut message = Message::to(self.peer);
        if self.plan.tagged {
            message = message.tagged(turn.tag());
        }
        if self.plan.cq_data {
            message = message.with_data(turn.pattern().cq_data());
        }
        let result = self.endpoint.send(message, buffer, turn.number);
        result.map_err(|refused| turn.failed(Problem::Start(refused.error)))
    }

    /// Posts the receive for a message; `buffer` has its length.
    pub(crate) fn post(&mut self, turn: Turn, buffer: Vec<u8>) -> Result<(), RunError> {
        let receive =
            if self.plan.tagged { Receive::tagged(turn.tag()) } else { Receive::untagged() };
        let result = self.endpoint.receive(receive.from(self.peer), buffer, turn.number);
        result.map(drop).map_err(|refused| turn.failed(Problem::Start(refused.error)))
    }

    /// Waits for the next send to complete; `turn` is for errors.
    pub(crate) fn sent(&mut self, turn: Turn) -> Result<Completion, RunError> {
        loop {
            if let Some(completion) = self.early.sent.pop_front() {
                return Ok(completion);
            }
            self.wait().map_err(|problem| turn.failed(problem))?;
        }
    }

    /// Waits for the next receive to complete; `turn` is for errors.
    pub(crate) fn received(&mut self, turn: Turn) -> Result<Completion, RunError> {
        loop {
            if let Some(completion) = self.early.received.pop_front() {
                return Ok(completion);
            }
            self.wait().map_err(|problem| turn.failed(problem))?;
        }
    }

    /// Checks a received message, and returns its buffer.
    pub(crate) fn verify(&self, turn: Turn, completion: Completion) -> Result<Vec<u8>, RunError> {
        let Plan { tagged, cq_data, check, .. } = self.plan;
        let Completion { length, tag, cq_data: data, buffer, .. } = completion;
        if length != turn.size {
            return Err(turn.failed(Problem::Length { found: length }));
        }
        let expected = tagged.then(|| turn.tag());
        if tag != expected {
            return Err(turn.failed(Problem::Tag { found: tag, expected }));
        }
        let expected = cq_data.then(|| turn.pattern().cq_data());
        if data != expected {
            return Err(turn.failed(Problem::CqData { found: data, expected }));
        }
        let buffer = buffer.into_vec();
        if check {
            let checked = turn.pattern().check(&buffer);
            checked.map_err(|mismatch| turn.failed(Problem::Bytes(mismatch)))?;
        }
        Ok(buffer)
    }

    /// Waits for the other side's `Done`, and polls the endpoint meanwhile: the other side may still need packets
    /// that met RNR, such as an EOR.
    pub(crate) fn receive_done(&mut self) -> Result<(), ControlError> {
        let begin = Instant::now();
        let mut checked = begin;
        while !self.channel.has_message() {
            // No operation is outstanding, so nothing completes.
            let _ = self.queue.read();
            thread::yield_now();
            let now = Instant::now();
            if now - checked >= CHECK {
                checked = now;
                self.channel.check()?;
            }
            if now - begin > self.timeout {
                return Err(ControlError::Timeout { waited: self.timeout });
            }
        }
        self.channel.receive_done()
    }

    /// Waits for one completion, and adds it to its queue.
    fn wait(&mut self) -> Result<(), Problem> {
        self.interrupt.take()?;
        let mut spins = 0;
        let mut idle = None;
        let completion = loop {
            if let Some(entry) = self.queue.read() {
                break entry?;
            }
            // No `spin_loop` hint: hypervisors may stop the processor for its instruction, which takes many times
            // longer than a message.
            spins += 1;
            if spins % SPINS == 0 {
                idle.get_or_insert_with(Idle::begin).pass(self)?;
            }
        };
        match completion.kind {
            Kind::Send => self.early.sent.push_back(completion),
            _ => self.early.received.push_back(completion),
        }
        Ok(())
    }
}

/// A wait for a completion.
struct Idle {
    begin: Instant,
    checked: Instant,
}

impl Idle {
    fn begin() -> Self {
        let begin = Instant::now();
        Self { begin, checked: begin }
    }

    /// Yields the processor; from time to time checks timeout and control channel.
    fn pass(&mut self, session: &mut Session<'_>) -> Result<(), Problem> {
        thread::yield_now();
        let now = Instant::now();
        if now - self.checked < CHECK {
            return Ok(());
        }
        self.checked = now;
        session.interrupt.take()?;
        session.channel.check()?;
        if now - self.begin > session.timeout {
            return Err(Problem::Stalled { waited: session.timeout });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use efa::{AddressVector, Fabric, LocalOptions};

    use super::super::control::Stream;
    use super::super::plan::{Mode, Step};
    use super::*;
    use crate::device::Objects;

    const TIMEOUT: Duration = Duration::from_secs(60);
    const TURN: Turn = Turn { step: 3, number: 5, size: 100, direction: Direction::ToServer };

    fn plan(check: bool, cq_data: bool) -> Plan {
        let steps = vec![Step { size: TURN.size, iterations: 1, window: 1 }];
        Plan { mode: Mode::Latency, tagged: true, cq_data, check, warmup: 0, steps }
    }

    /// The receiver's result for a message of a sender with another plan or length.
    fn received(sender: Plan, length: usize, receiver: Plan) -> Result<Vec<u8>, RunError> {
        let fabric = Fabric::local(LocalOptions::default());
        let (a, b) = UnixStream::pair().unwrap();
        let opened = thread::spawn(|| Channel::open(Stream::Unix(a), TIMEOUT).unwrap());
        let mut to_sender = Channel::open(Stream::Unix(b), TIMEOUT).unwrap();
        let mut to_receiver = opened.join().unwrap();
        let objects = || Objects::new(&fabric.domain().unwrap(), 8).unwrap();
        let (from, to) = (objects(), objects());
        let addresses = (from.endpoint.address(), to.endpoint.address());
        let session = |Objects { endpoint, queue, addresses, .. }, other, channel, plan| {
            let peer = AddressVector::insert(&addresses, other).unwrap();
            Session {
                endpoint,
                queue,
                peer,
                channel,
                plan,
                interrupt: Interrupt::default(),
                timeout: TIMEOUT,
                early: Early::default(),
            }
        };
        let mut sender = session(from, addresses.1, &mut to_receiver, sender);
        let mut receiver = session(to, addresses.0, &mut to_sender, receiver);
        receiver.post(TURN, vec![0; TURN.size as usize])?;
        let mut message = vec![0; length];
        sender.fill(TURN, &mut message);
        sender.send(TURN, message)?;
        let completion = receiver.received(TURN)?;
        receiver.verify(TURN, completion)
    }

    #[test]
    fn unchanged_message_passes_the_check() {
        let mut expected = vec![0; 100];
        TURN.pattern().fill(&mut expected);
        assert_eq!(received(plan(true, true), 100, plan(true, true)).unwrap(), expected);
    }

    #[test]
    fn changed_length_tag_data_or_byte_is_reported() {
        let error = |sender, length, receiver| match received(sender, length, receiver) {
            Ok(_) => panic!("no error"),
            Err(error) => error.source,
        };
        let bytes = error(plan(false, false), 100, plan(true, false));
        assert!(matches!(bytes, Problem::Bytes(Mismatch { offset: 0, found: 0, .. })), "{bytes}");
        let length = error(plan(true, false), 99, plan(true, false));
        assert!(matches!(length, Problem::Length { found: 99 }), "{length}");
        let data = error(plan(true, false), 100, plan(true, true));
        assert!(matches!(data, Problem::CqData { found: None, expected: Some(_) }), "{data}");
    }

    #[test]
    fn closed_control_channel_ends_the_wait() {
        let (a, b) = UnixStream::pair().unwrap();
        let opened = thread::spawn(|| Channel::open(Stream::Unix(a), TIMEOUT).unwrap());
        let mut channel = Channel::open(Stream::Unix(b), TIMEOUT).unwrap();
        let objects = Objects::new(&Fabric::local(LocalOptions::default()).domain().unwrap(), 8);
        let Objects { endpoint, queue, addresses, .. } = objects.unwrap();
        let peer = addresses.insert(endpoint.address()).unwrap();
        let (channel, plan) = (&mut channel, plan(true, false));
        let (timeout, early) = (TIMEOUT, Early::default());
        let interrupt = Interrupt::default();
        let mut session =
            Session { endpoint, queue, peer, channel, plan, interrupt, timeout, early };
        drop(opened.join().unwrap());
        let error = session.received(TURN).unwrap_err().source;
        assert!(matches!(error, Problem::Control(ControlError::Closed)), "{error}");
    }
}
