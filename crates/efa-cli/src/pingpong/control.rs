//! The control channel: how client and server agree on a run before the first packet.
//!
//! ```text
//!   client                                      server
//!     │ ── Hello {protocol, version} ──────────► │
//!     │ ◄────────── Hello {protocol, version} ── │
//!     │ ── Start {plan, address} ──────────────► │
//!     │ ◄────────────────── Ready {address} ──── │
//!     │ ◄═══════════ messages of the run ══════► │      (not here: over the device)
//!     │ ── Done ───────────────────────────────► │
//!     │ ◄──────────────────────────────── Done ─ │
//! ```
//!
//! Each message is a line of JSON of at most [`MAX_LINE`] bytes. Either side may send `Failed` with the reason
//! instead. Input is not trusted, and every wait has a timeout.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::plan::Plan;

/// Longest line in bytes, with its end.
pub(crate) const MAX_LINE: usize = 64 << 10;
/// Version of this protocol.
pub(crate) const VERSION: u64 = 1;
/// Name of this protocol.
const PROTOCOL: &str = "efa-pingpong";
/// Bytes of a line shown in errors.
const SHOWN: usize = 40;

/// A message after the hellos.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "lowercase")]
pub(crate) enum Message {
    /// From the client: begin this run.
    Start {
        /// The run.
        plan: Plan,
        /// Address of the client's endpoint.
        address: String,
    },
    /// From the server: receives are posted.
    Ready {
        /// Address of the server's endpoint.
        address: String,
    },
    /// The run succeeded.
    Done,
    /// The run failed, and this side ends.
    Failed {
        /// The error.
        reason: String,
    },
}

impl Message {
    const fn name(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::Ready { .. } => "ready",
            Self::Done => "done",
            Self::Failed { .. } => "failed",
        }
    }
}

/// The first line of both sides. Later versions may add fields, but keep these two.
#[derive(Serialize, Deserialize)]
struct Hello {
    protocol: String,
    version: u64,
}

/// An error of the control channel.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    /// The other side closed the channel.
    #[error("the other side closed the control channel")]
    Closed,
    /// Timeout.
    #[error("no answer on the control channel within {waited:?}")]
    Timeout {
        /// The time waited.
        waited: Duration,
    },
    /// A line is too long.
    #[error("a line of more than {MAX_LINE} bytes on the control channel")]
    TooLong,
    /// A line is not a message of this protocol.
    #[error("not a message of this program: `{line}`")]
    Invalid {
        /// Its beginning.
        line: String,
        /// The cause.
        source: serde_json::Error,
    },
    /// The other side has another protocol.
    #[error("the other side has the protocol `{found}`, not {PROTOCOL}")]
    Protocol {
        /// The value received.
        found: String,
    },
    /// The other side has another version.
    #[error("the other side has version {found} of {PROTOCOL}, this program version {VERSION}")]
    Version {
        /// The value received.
        found: u64,
    },
    /// The message is not the one expected.
    #[error("expected the message `{expected}`, got `{found}`")]
    Unexpected {
        /// The message expected.
        expected: &'static str,
        /// The message received.
        found: &'static str,
    },
    /// The other side reports a failure.
    #[error("the other side failed: {reason}")]
    PeerFailed {
        /// The value received.
        reason: String,
    },
    /// An I/O error.
    #[error("I/O error on the control channel")]
    Io(#[source] io::Error),
}

impl From<io::Error> for ControlError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => {
                Self::Closed
            }
            _ => Self::Io(error),
        }
    }
}

/// The connection of a control channel.
#[derive(Debug)]
pub(crate) enum Stream {
    /// To a server started by hand.
    Tcp(TcpStream),
    /// To a server that this program started.
    Unix(UnixStream),
}

macro_rules! each {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            Stream::Tcp($inner) => $call,
            Stream::Unix($inner) => $call,
        }
    };
}

impl Stream {
    /// Sets the timeout of writes.
    pub(crate) fn set_write_timeout(&self, limit: Duration) -> io::Result<()> {
        each!(self, stream => stream.set_write_timeout(Some(limit)))
    }

    /// Sets the timeout of reads, which must not be 0.
    pub(crate) fn set_read_timeout(&self, limit: Duration) -> io::Result<()> {
        each!(self, stream => stream.set_read_timeout(Some(limit)))
    }

    /// The address of this side, on TCP.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    /// Makes reads return at once if there is nothing, or wait for the timeout again.
    pub(crate) fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        each!(self, stream => stream.set_nonblocking(nonblocking))
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        each!(self, stream => stream.read(into))
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        each!(self, stream => stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        each!(self, stream => stream.flush())
    }
}

/// The control channel to the other side.
#[derive(Debug)]
pub(crate) struct Channel {
    stream: Stream,
    /// Bytes received and not yet used.
    received: Vec<u8>,
    /// Longest wait for a line.
    timeout: Duration,
}

impl Channel {
    /// Exchanges hellos with the other side.
    pub(crate) fn open(stream: Stream, timeout: Duration) -> Result<Self, ControlError> {
        stream.set_write_timeout(timeout)?;
        let mut channel = Self { stream, received: Vec::new(), timeout };
        channel.send_line(&Hello { protocol: PROTOCOL.to_owned(), version: VERSION })?;
        let line = channel.receive_line()?;
        match parse(&line)? {
            Hello { protocol, .. } if protocol != PROTOCOL => {
                Err(ControlError::Protocol { found: shorten(&protocol) })
            }
            Hello { version, .. } if version != VERSION => {
                Err(ControlError::Version { found: version })
            }
            Hello { .. } => Ok(channel),
        }
    }

    /// Waits so long from now on.
    pub(crate) fn with_timeout(mut self, timeout: Duration) -> Result<Self, ControlError> {
        self.stream.set_write_timeout(timeout)?;
        self.timeout = timeout;
        Ok(self)
    }

    /// The address of this side, if the channel is a TCP connection.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        self.stream.local_address()
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, message: &Message) -> Result<(), ControlError> {
        self.send_line(message)
    }

    /// Waits for the client's `Start`.
    pub(crate) fn receive_start(&mut self) -> Result<(Plan, String), ControlError> {
        match self.receive()? {
            Message::Start { plan, address } => Ok((plan, address)),
            other => Err(unexpected("start", &other)),
        }
    }

    /// Waits for the server's `Ready`.
    pub(crate) fn receive_ready(&mut self) -> Result<String, ControlError> {
        match self.receive()? {
            Message::Ready { address } => Ok(address),
            other => Err(unexpected("ready", &other)),
        }
    }

    /// Waits for the other side's `Done`.
    pub(crate) fn receive_done(&mut self) -> Result<(), ControlError> {
        match self.receive()? {
            Message::Done => Ok(()),
            other => Err(unexpected("done", &other)),
        }
    }

    /// Whether a message was seen by [`check`](Self::check) and is to be received.
    pub(crate) fn has_message(&self) -> bool {
        self.line_end().is_some()
    }

    /// Checks, without waiting, that the other side has neither closed the channel nor failed. Other messages
    /// stay to be received.
    pub(crate) fn check(&mut self) -> Result<(), ControlError> {
        self.stream.set_nonblocking(true)?;
        let read = self.read_more();
        self.stream.set_nonblocking(false)?;
        match read {
            Err(ControlError::Io(error)) if error.kind() == ErrorKind::WouldBlock => {}
            // A message sent before the end says more than the end.
            Err(ControlError::Closed) if self.line_end().is_some() => {}
            Err(error) => return Err(error),
            Ok(()) => {}
        }
        match self.line_end().map(|end| parse(&self.received[..end])) {
            Some(Ok(Message::Failed { reason })) => Err(ControlError::PeerFailed { reason }),
            Some(Err(error)) => Err(error),
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// Waits for the other side to report a failure or close the channel.
    pub(crate) fn wait_for_failure(&mut self, timeout: Duration) -> Option<ControlError> {
        let usual = std::mem::replace(&mut self.timeout, timeout);
        let news = self.receive();
        self.timeout = usual;
        match news {
            Err(error @ (ControlError::Closed | ControlError::PeerFailed { .. })) => Some(error),
            _ => None,
        }
    }

    fn receive(&mut self) -> Result<Message, ControlError> {
        match parse(&self.receive_line()?)? {
            Message::Failed { reason } => Err(ControlError::PeerFailed { reason }),
            message => Ok(message),
        }
    }

    fn send_line(&mut self, value: &impl Serialize) -> Result<(), ControlError> {
        let mut line = serde_json::to_vec(value).map_err(io::Error::from)?;
        line.push(b'\n');
        Ok(self.stream.write_all(&line)?)
    }

    /// Returns the next line without its end.
    fn receive_line(&mut self) -> Result<Vec<u8>, ControlError> {
        let begin = Instant::now();
        loop {
            if let Some(end) = self.line_end() {
                let rest = self.received.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.received, rest);
                line.truncate(end);
                return Ok(line);
            }
            let silent = ControlError::Timeout { waited: self.timeout };
            let left = self.timeout.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(silent);
            }
            self.stream.set_read_timeout(left)?;
            match self.read_more() {
                Err(ControlError::Io(error)) if error.kind() == ErrorKind::WouldBlock => {
                    return Err(silent);
                }
                result => result?,
            }
        }
    }

    fn line_end(&self) -> Option<usize> {
        self.received.iter().position(|byte| *byte == b'\n')
    }

    /// Reads the bytes that have arrived.
    fn read_more(&mut self) -> Result<(), ControlError> {
        if self.received.len() >= MAX_LINE {
            return Err(ControlError::TooLong);
        }
        let mut bytes = [0; 4096];
        let wanted = bytes.len().min(MAX_LINE - self.received.len());
        loop {
            match self.stream.read(&mut bytes[..wanted]) {
                Ok(0) => return Err(ControlError::Closed),
                Ok(length) => {
                    self.received.extend(&bytes[..length]);
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn unexpected(expected: &'static str, found: &Message) -> ControlError {
    ControlError::Unexpected { expected, found: found.name() }
}

fn parse<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, ControlError> {
    serde_json::from_slice(line).map_err(|source| {
        let line = shorten(&String::from_utf8_lossy(line));
        ControlError::Invalid { line, source }
    })
}

/// The beginning of received text, escaped for terminals.
fn shorten(text: &str) -> String {
    let shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() { shown + "…" } else { shown }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// The result of opening a channel whose other side sends this line.
    fn opened(by: &[u8]) -> Result<Channel, ControlError> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(by).unwrap();
        theirs.shutdown(Shutdown::Write).unwrap();
        Channel::open(Stream::Unix(ours), TIMEOUT)
    }

    fn pair() -> (Channel, Channel) {
        let (a, b) = UnixStream::pair().unwrap();
        let other = thread::spawn(|| Channel::open(Stream::Unix(a), TIMEOUT).unwrap());
        let channel = Channel::open(Stream::Unix(b), TIMEOUT).unwrap();
        (channel, other.join().unwrap())
    }

    #[test]
    fn messages_are_received_in_order() {
        let (mut a, mut b) = pair();
        b.check().unwrap();
        a.send(&Message::Ready { address: "here".into() }).unwrap();
        a.send(&Message::Done).unwrap();
        b.check().unwrap();
        assert!(b.has_message());
        assert_eq!(b.receive_ready().unwrap(), "here");
        b.receive_done().unwrap();
        assert!(!b.has_message());
    }

    #[test]
    fn hellos_of_other_protocols_or_versions_are_refused() {
        let error = |by: &[u8]| opened(by).unwrap_err();
        let version = error(b"{\"protocol\":\"efa-pingpong\",\"version\":2,\"new\":[]}\n");
        assert!(matches!(version, ControlError::Version { found: 2 }), "{version}");
        let protocol = error(b"{\"protocol\":\"iperf\",\"version\":1}\n");
        assert!(matches!(protocol, ControlError::Protocol { .. }), "{protocol}");
        let http = error(b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(http.to_string(), "not a message of this program: `GET / HTTP/1.1\\r`");
        let control = error(b"\x1b[31m\xff\n");
        assert_eq!(control.to_string(), "not a message of this program: `\\u{1b}[31m\u{fffd}`");
        assert!(matches!(error(b"{\"protocol\":"), ControlError::Closed));
        assert!(matches!(error(b""), ControlError::Closed));
        assert!(matches!(error(&[b'x'; MAX_LINE]), ControlError::TooLong));
    }

    #[test]
    fn receive_without_message_times_out() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let error = Channel::open(Stream::Unix(ours), Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, ControlError::Timeout { .. }), "{error}");
    }

    #[test]
    fn failures_and_unexpected_messages_are_errors() {
        let (mut a, mut b) = pair();
        a.send(&Message::Done).unwrap();
        let error = b.receive_ready().unwrap_err();
        assert_eq!(error.to_string(), "expected the message `ready`, got `done`");
        a.send(&Message::Failed { reason: "no memory".into() }).unwrap();
        drop(a);
        for error in [b.check(), b.receive_done()] {
            let error = error.unwrap_err().to_string();
            assert_eq!(error, "the other side failed: no memory");
        }
        assert!(matches!(b.check(), Err(ControlError::Closed)));
    }

    fn start_line(number: &str, flag: bool) -> String {
        format!(
            r#"{{"message":"start","plan":{{"mode":"latency","tagged":{flag},"cq_data":{flag},"check":{flag},"warmup":{number},"steps":[{{"size":{number},"iterations":1,"window":1}}]}},"address":"x"}}"#
        )
    }

    #[test]
    fn line_like_those_that_are_tried_is_a_plan() {
        let said =
            format!("{{\"protocol\":\"efa-pingpong\",\"version\":1}}\n{}\n", start_line("1", true));
        let (plan, address) = opened(said.as_bytes()).unwrap().receive_start().unwrap();
        assert_eq!((plan.steps.len(), address.as_str()), (1, "x"));
    }

    /// A line that is a message, or similar to one.
    fn line() -> impl Strategy<Value = Vec<u8>> {
        let number = prop_oneof![any::<u64>().prop_map(|n| n.to_string()), "[-0-9.e]{1,30}"];
        let message = prop_oneof![
            Just(r#"{"protocol":"efa-pingpong","version":1}"#.to_owned()),
            Just(r#"{"message":"done"}"#.to_owned()),
            "[a-z\u{1b}\"\\\\{}]{0,20}"
                .prop_map(|text| format!(r#"{{"message":"ready","address":"{text}"}}"#)),
            (number, any::<bool>()).prop_map(|(number, flag)| start_line(&number, flag)),
        ];
        prop_oneof![
            3 => message.prop_map(String::into_bytes),
            1 => proptest::collection::vec(any::<u8>(), 0..200),
        ]
    }

    proptest! {
        // Every line is parsed or refused with an error of one line.
        #[test]
        fn any_bytes_are_messages_or_errors(
            lines in proptest::collection::vec(line(), 0..6),
            honest in any::<bool>(),
        ) {
            let mut said = Vec::new();
            if honest {
                said.extend_from_slice(b"{\"protocol\":\"efa-pingpong\",\"version\":1}\n");
            }
            for line in lines {
                said.extend(line);
                said.push(b'\n');
            }
            let mut channel = match opened(&said) {
                Ok(channel) => channel,
                Err(error) => {
                    let shown = error.to_string();
                    prop_assert!(!shown.contains(char::is_control), "{}", shown);
                    return Ok(());
                }
            };
            for _ in 0..8 {
                match channel.receive_start() {
                    Ok((plan, _)) => {
                        let _ = plan.check_bounds();
                    }
                    Err(ControlError::PeerFailed { .. }) => {}
                    Err(error) => {
                        let shown = error.to_string();
                        prop_assert!(!shown.contains(char::is_control), "{}", shown);
                    }
                }
                let _ = channel.check();
            }
        }
    }
}
