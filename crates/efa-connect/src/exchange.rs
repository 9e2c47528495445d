//! One side of the exchange over one TCP connection.
//!
//! | state | this side | ends by |
//! |---|---|---|
//! | `Asked` | has sent CONNECT | ACCEPT, REJECT, deadline |
//! | `Answered` | has the ACCEPT, and inserts the address | `ready` |
//! | `Silent` | has heard nothing yet | CONNECT, deadline |
//! | `Requested` | has the request | `accept`, `reject` |
//! | `Accepted` | has sent ACCEPT | READY, deadline |
//! | `Connected` | | SHUTDOWN, end |
//! | `Over` | | |
//!
//! The end of the TCP connection, and a frame that doesn't fit the state, end every state. While the
//! program decides (`Answered`, `Requested`) nothing is expected of the other side; what it sends
//! nevertheless is an error.

use efa_device::Time;

use crate::Address;
use crate::frame::{Data, Decoder, Frame, FrameError, FrameKind, MAX_FRAME};

/// One side of the exchange over one TCP connection. Calls that don't fit its state do nothing.
#[derive(Debug)]
pub struct Exchange {
    state: State,
    /// When this state ends by itself.
    deadline: Option<Time>,
    decoder: Decoder,
    to_send: Vec<u8>,
    /// Happened, and not taken yet.
    happened: Option<Happening>,
    /// How it ended; taken after `happened`.
    end: Option<Happening>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asked,
    Answered,
    Silent,
    Requested,
    Accepted,
    Connected,
    Over,
}

/// What happened, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub enum Happening {
    /// Callee: somebody asks to be connected. [`accept`](Exchange::accept) or
    /// [`reject`](Exchange::reject).
    Requested { address: Address, data: Data },
    /// Caller: the callee agrees. Insert the address, then call [`ready`](Exchange::ready).
    Accepted { address: Address, data: Data },
    /// Callee: the caller is ready.
    Connected,
    /// The other side of a connection shut it down, or is gone. The exchange is over.
    Shutdown,
    /// There is no connection. The exchange is over.
    Failed(Failure),
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The callee rejected the request, with this data.
    #[error("rejected, with {} bytes of data", .0.as_slice().len())]
    Rejected(Data),
    /// The other side said nothing in time.
    #[error("no answer in time")]
    TimedOut,
    /// The TCP connection ended.
    #[error("the other side closed the TCP connection before it was connected")]
    Ended,
    /// The other side sent something that doesn't belong there.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

/// Something that the other side should not have sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// It is no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// It is a frame that comes at another time, or from the other side.
    #[error("{0} out of turn")]
    OutOfTurn(FrameKind),
}

impl Exchange {
    fn new(state: State, deadline: Time, first: Option<Frame>) -> Self {
        let mut to_send = Vec::new();
        if let Some(frame) = first {
            frame.emit(&mut to_send);
        }
        let deadline = Some(deadline);
        Self { state, deadline, decoder: Decoder::default(), to_send, happened: None, end: None }
    }

    /// The side that asks to be connected. It fails if it isn't by the deadline.
    #[must_use]
    pub fn caller(address: Address, data: &Data, deadline: Time) -> Self {
        let connect = Frame::Connect { address, data: data.clone() };
        Self::new(State::Asked, deadline, Some(connect))
    }

    /// The side that is asked. It fails if nothing is asked by the deadline.
    #[must_use]
    pub fn callee(deadline: Time) -> Self {
        Self::new(State::Silent, deadline, None)
    }

    // ---- bytes ----

    /// Most bytes that [`received`](Self::received) should be given at a time. An exchange keeps less than
    /// a frame, and is over if it gets more than fits its state.
    pub const MOST: usize = MAX_FRAME;

    /// The TCP connection delivered bytes.
    pub fn received(&mut self, mut bytes: &[u8]) {
        while self.state != State::Over {
            match self.decoder.decode(bytes) {
                Ok(None) => return,
                Ok(Some((frame, rest))) => {
                    self.frame_arrived(frame);
                    bytes = rest;
                }
                Err(error) => self.fail(ProtocolError::Frame(error).into()),
            }
        }
    }

    /// The TCP connection ended or failed.
    pub fn ended(&mut self) {
        self.fail(Failure::Ended);
    }

    /// Bytes for the TCP connection.
    #[must_use]
    pub fn to_send(&self) -> &[u8] {
        &self.to_send
    }

    /// The TCP connection took this many of the bytes.
    pub fn sent(&mut self, count: usize) {
        if count >= self.to_send.len() {
            self.to_send = Vec::new();
        } else {
            self.to_send.drain(..count);
        }
    }

    // ---- what happened ----

    /// The next thing that happened, up to `now`.
    pub fn next(&mut self, now: Time) -> Option<Happening> {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.fail(Failure::TimedOut);
        }
        self.happened.take().or_else(|| self.end.take())
    }

    /// When [`next`](Self::next) has to be called even if nothing arrives.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        self.deadline
    }

    /// Whether it is over: nothing of the TCP connection matters any more but [`to_send`](Self::to_send).
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Whether it has a request that the program has not answered.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.state == State::Requested
    }

    // ---- decisions of the program ----

    /// Caller: the callee's address is inserted. From now on it is connected.
    pub fn ready(&mut self) {
        if self.state == State::Answered {
            Frame::Ready.emit(&mut self.to_send);
            self.enter(State::Connected, None);
        }
    }

    /// Callee: agrees to a request, after the caller's address was inserted. It fails if the caller isn't
    /// ready by the deadline.
    pub fn accept(&mut self, address: Address, data: &Data, deadline: Time) {
        if self.state == State::Requested {
            Frame::Accept { address, data: data.clone() }.emit(&mut self.to_send);
            self.enter(State::Accepted, Some(deadline));
        }
    }

    /// Callee: refuses a request.
    pub fn reject(&mut self, data: &Data) {
        if self.state == State::Requested {
            Frame::Reject { data: data.clone() }.emit(&mut self.to_send);
            self.enter(State::Over, None);
        }
    }

    /// Ends a connection, after the last message was delivered.
    pub fn shut_down(&mut self) {
        if self.state == State::Connected {
            Frame::Shutdown.emit(&mut self.to_send);
        }
        self.enter(State::Over, None);
    }

    // ---- states ----

    fn enter(&mut self, state: State, deadline: Option<Time>) {
        self.state = state;
        self.deadline = deadline;
    }

    fn fail(&mut self, failure: Failure) {
        let end = match self.state {
            State::Over => return,
            // Whatever the reason, the other side of the connection is no use any more.
            State::Connected => Happening::Shutdown,
            _ => Happening::Failed(failure),
        };
        self.end = Some(end);
        self.enter(State::Over, None);
    }

    fn frame_arrived(&mut self, frame: Frame) {
        let (next, happened) = match (self.state, frame) {
            (State::Silent, Frame::Connect { address, data }) => {
                (State::Requested, Happening::Requested { address, data })
            }
            (State::Asked, Frame::Accept { address, data }) => {
                (State::Answered, Happening::Accepted { address, data })
            }
            (State::Asked, Frame::Reject { data }) => return self.fail(Failure::Rejected(data)),
            (State::Accepted, Frame::Ready) => (State::Connected, Happening::Connected),
            (State::Connected, Frame::Shutdown) => return self.fail(Failure::Ended),
            (_, frame) => return self.fail(ProtocolError::OutOfTurn(frame.kind()).into()),
        };
        self.happened = Some(happened);
        self.enter(next, None);
    }
}
