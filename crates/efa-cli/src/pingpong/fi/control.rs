//! The control protocol of libfabric's `fi_pingpong`, on a TCP connection of its own.
//!
//! ```text
//!   client                                          server
//!     │ ◄──────────────── length, format, name ──── │   u32 big-endian, u32 of the host, bytes
//!     │ ── length, format, name ──────────────────► │
//!     │ ── "q" NUL ───────────────────────────────► │ ┐
//!     │ ◄──────────────────────────────── "a" NUL ── │ │ for each
//!     │ ◄════════ messages over the device ═══════► │ │ size
//!     │ ── messages received, 10 bytes: "10" NULs ► │ │
//!     │ ◄─────────────────────────── "cnt ok" NUL ── │ ┘
//! ```
//!
//! It doesn't carry the properties of messages: both sides are started with the same options. Input is not
//! trusted, and every wait has a timeout.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use efa::Address;

use super::super::control::Stream;

/// `FI_ADDR_EFA`.
const FORMAT: u32 = 12;
/// Before each size: the client, then the server, is ready.
const ASK: &[u8; 2] = b"q\0";
const ANSWER: &[u8; 2] = b"a\0";
/// Bytes of the message count.
const COUNT: usize = 10;
/// The server confirms the count.
const COUNTED: &[u8; 7] = b"cnt ok\0";
/// Time between two calls of `idle` during a wait.
const SLICE: Duration = Duration::from_millis(1);
/// Most bytes kept that no call has asked for.
const EARLY: usize = 64;

/// An error of the control protocol.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FiControlError {
    /// The other side closed the channel.
    #[error("the other side closed the control channel")]
    Closed,
    /// Timeout.
    #[error("no answer on the control channel within {waited:?}")]
    Timeout {
        /// The time waited.
        waited: Duration,
    },
    /// The name is not an EFA address.
    #[error(
        "the other side's name has {length} bytes of format {format}, expected {} of format \
         {FORMAT}: is it `fi_pingpong -p efa -e rdm`?",
        Address::SIZE
    )]
    Name {
        /// Length received.
        length: u32,
        /// Format received.
        format: u32,
    },
    /// The bytes are not those expected.
    #[error("expected \"{}\", got \"{found}\"", expected.escape_ascii())]
    Unexpected {
        /// The message expected.
        expected: &'static [u8],
        /// The text received, escaped.
        found: String,
    },
    /// The count is not a number.
    #[error("\"{found}\" is not a number of messages")]
    NoCount {
        /// The text received, escaped.
        found: String,
    },
    /// The client's count differs.
    #[error(
        "the client received {found} answers, {expected} were sent: are the options the same on \
         both sides?"
    )]
    Count {
        /// The value received.
        found: u64,
        /// The expected value.
        expected: u64,
    },
    /// An I/O error.
    #[error("I/O error on the control channel")]
    Io(#[from] io::Error),
}

/// The control channel to the other side.
#[derive(Debug)]
pub(super) struct FiControl {
    stream: Stream,
    /// Bytes received and not yet used.
    received: Vec<u8>,
    closed: bool,
    /// Longest wait for anything.
    timeout: Duration,
}

impl FiControl {
    pub(super) fn new(stream: Stream, timeout: Duration) -> Result<Self, FiControlError> {
        stream.set_write_timeout(timeout)?;
        Ok(Self { stream, received: Vec::new(), closed: false, timeout })
    }

    /// The address of this side, if the channel is a TCP connection.
    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        self.stream.local_address()
    }

    /// Sends this side's address.
    pub(super) fn send_name(&mut self, address: Address) -> Result<(), FiControlError> {
        let mut message = (Address::SIZE as u32).to_be_bytes().to_vec();
        message.extend(FORMAT.to_ne_bytes());
        message.extend(address.to_bytes());
        self.send(&message)
    }

    /// Receives the other side's address.
    pub(super) fn receive_name(&mut self) -> Result<Address, FiControlError> {
        let length = u32::from_be_bytes(self.take(&mut || {})?);
        let format = u32::from_ne_bytes(self.take(&mut || {})?);
        if length as usize != Address::SIZE || format != FORMAT {
            return Err(FiControlError::Name { length, format });
        }
        self.take(&mut || {}).map(Address::from_bytes)
    }

    /// The client: begins a size together with the server.
    pub(super) fn ask(&mut self, idle: &mut dyn FnMut()) -> Result<(), FiControlError> {
        self.send(ASK)?;
        self.expect(ANSWER, idle)
    }

    /// The server: begins a size together with the client.
    pub(super) fn answer(&mut self, idle: &mut dyn FnMut()) -> Result<(), FiControlError> {
        self.expect(ASK, idle)?;
        self.send(ANSWER)
    }

    /// The client: sends the number of messages that it received.
    pub(super) fn send_count(
        &mut self,
        count: u64,
        idle: &mut dyn FnMut(),
    ) -> Result<(), FiControlError> {
        let mut message = count.to_string().into_bytes();
        message.resize(COUNT, 0);
        self.send(&message)?;
        self.expect(COUNTED, idle)
    }

    /// The server: receives the client's count, which must be `expected`.
    pub(super) fn receive_count(
        &mut self,
        expected: u64,
        idle: &mut dyn FnMut(),
    ) -> Result<(), FiControlError> {
        let bytes = self.take::<COUNT>(idle)?;
        let found = count(&bytes)
            .ok_or_else(|| FiControlError::NoCount { found: bytes.escape_ascii().to_string() })?;
        if found != expected {
            return Err(FiControlError::Count { found, expected });
        }
        self.send(COUNTED)
    }

    /// Checks, without waiting, whether the other side has closed the channel. Received bytes stay.
    pub(super) fn is_closed(&mut self) -> Result<bool, FiControlError> {
        if self.closed || self.received.len() >= EARLY {
            return Ok(self.closed);
        }
        self.stream.set_nonblocking(true)?;
        let read = self.read_more(EARLY);
        self.stream.set_nonblocking(false)?;
        match read {
            Err(FiControlError::Io(error)) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(FiControlError::Closed) => Ok(true),
            result => result.map(|()| false),
        }
    }

    fn expect<const N: usize>(
        &mut self,
        expected: &'static [u8; N],
        idle: &mut dyn FnMut(),
    ) -> Result<(), FiControlError> {
        let found = self.take::<N>(idle)?;
        if found == *expected {
            return Ok(());
        }
        Err(FiControlError::Unexpected { expected, found: found.escape_ascii().to_string() })
    }

    fn send(&mut self, message: &[u8]) -> Result<(), FiControlError> {
        self.stream.write_all(message).map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => FiControlError::Closed,
            ErrorKind::WouldBlock => FiControlError::Timeout { waited: self.timeout },
            _ => error.into(),
        })
    }

    /// Returns the next `N` bytes; calls `idle` from time to time until they have arrived.
    fn take<const N: usize>(&mut self, idle: &mut dyn FnMut()) -> Result<[u8; N], FiControlError> {
        let begin = Instant::now();
        loop {
            if let Some(bytes) = self.received.first_chunk().copied() {
                self.received.drain(..N);
                return Ok(bytes);
            }
            if begin.elapsed() >= self.timeout {
                return Err(FiControlError::Timeout { waited: self.timeout });
            }
            idle();
            self.stream.set_read_timeout(SLICE)?;
            match self.read_more(N) {
                Err(FiControlError::Io(error)) if error.kind() == ErrorKind::WouldBlock => {}
                result => result?,
            }
        }
    }

    /// Reads the bytes that have arrived, up to `most` kept.
    fn read_more(&mut self, most: usize) -> Result<(), FiControlError> {
        let mut bytes = [0; EARLY];
        let wanted = bytes.len().min(most.saturating_sub(self.received.len()));
        loop {
            match self.stream.read(&mut bytes[..wanted]) {
                Ok(0) => break,
                Ok(length) => {
                    self.received.extend(&bytes[..length]);
                    return Ok(());
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset => break,
                    _ => return Err(error.into()),
                },
            }
        }
        self.closed = true;
        Err(FiControlError::Closed)
    }
}

/// Parses one or more decimal digits, padded with NULs.
fn count(bytes: &[u8; COUNT]) -> Option<u64> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(COUNT);
    let (digits, rest) = bytes.split_at(end);
    let good = digits.iter().all(u8::is_ascii_digit) && rest.iter().all(|byte| *byte == 0);
    let digits = std::str::from_utf8(digits).ok().filter(|_| good)?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// This side, and the stream of the other.
    fn pair() -> (FiControl, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_read_timeout(Some(TIMEOUT)).unwrap();
        (FiControl::new(Stream::Unix(ours), TIMEOUT).unwrap(), theirs)
    }

    /// The result of this side for a peer that sends all this and closes, and what this side sent.
    fn against<T>(
        script: &[u8],
        ours: impl FnOnce(&mut FiControl) -> Result<T, FiControlError>,
    ) -> (Result<T, FiControlError>, Vec<u8>) {
        let (mut control, mut peer) = pair();
        peer.write_all(script).unwrap();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        let result = ours(&mut control);
        drop(control);
        let mut said = Vec::new();
        // A side that closes with unread bytes resets the connection.
        let _ = peer.read_to_end(&mut said);
        (result, said)
    }

    fn address(first: u8) -> [u8; 32] {
        let mut bytes = [0; 32];
        (bytes[0], bytes[16], bytes[20]) = (first, 7, 9);
        bytes
    }

    fn name(first: u8) -> Vec<u8> {
        [[0, 0, 0, 32].as_slice(), &12_u32.to_ne_bytes(), &address(first)].concat()
    }

    #[test]
    fn client_sends_the_bytes_that_fi_pingpong_expects() {
        let script = [name(0xfe).as_slice(), b"a\0", b"cnt ok\0"].concat();
        let (result, said) = against(&script, |control| {
            let theirs = control.receive_name()?;
            control.send_name(Address::from_bytes(address(0xfd)))?;
            control.ask(&mut || {})?;
            control.send_count(10, &mut || {})?;
            Ok(theirs)
        });
        assert_eq!(result.unwrap(), Address::from_bytes(address(0xfe)));
        assert_eq!(said, [name(0xfd).as_slice(), b"q\0", b"10\0\0\0\0\0\0\0\0"].concat());
    }

    #[test]
    fn server_sends_the_bytes_that_fi_pingpong_expects() {
        let script = [name(0xfe).as_slice(), b"q\0", b"1234567890"].concat();
        let (result, said) = against(&script, |control| {
            control.send_name(Address::from_bytes(address(0xfd)))?;
            let theirs = control.receive_name()?;
            control.answer(&mut || {})?;
            control.receive_count(1_234_567_890, &mut || {})?;
            Ok(theirs)
        });
        assert_eq!(result.unwrap(), Address::from_bytes(address(0xfe)));
        assert_eq!(said, [name(0xfd).as_slice(), b"a\0", b"cnt ok\0"].concat());
    }

    #[test]
    fn client_and_server_complete_with_each_other() {
        let (a, b) = UnixStream::pair().unwrap();
        let client = thread::spawn(move || {
            let mut control = FiControl::new(Stream::Unix(a), TIMEOUT).unwrap();
            control.ask(&mut || {}).unwrap();
            control.send_count(u64::from(u32::MAX), &mut || {}).unwrap();
        });
        let mut control = FiControl::new(Stream::Unix(b), TIMEOUT).unwrap();
        control.answer(&mut || {}).unwrap();
        control.receive_count(u64::from(u32::MAX), &mut || {}).unwrap();
        client.join().unwrap();
    }

    #[test]
    fn names_of_other_formats_are_refused() {
        let refused = |length: u32, format: u32| {
            let script = [length.to_be_bytes(), format.to_ne_bytes(), [0; 4]].concat();
            let error = against(&script, FiControl::receive_name).0.unwrap_err();
            let expected = (length, format);
            assert!(
                matches!(error, FiControlError::Name { length, format }
                    if (length, format) == expected),
                "{error}"
            );
        };
        refused(16, 2);
        refused(u32::MAX, 12);
        refused(32, 0);
        refused(0, 12);
    }

    #[test]
    fn unexpected_bytes_are_shown_in_the_error() {
        let error = against(b"\xff\n", |control| control.answer(&mut || {})).0.unwrap_err();
        assert_eq!(error.to_string(), r#"expected "q\x00", got "\xff\n""#);
        let error =
            against(b"cnt no\0", |control| control.send_count(1, &mut || {})).0.unwrap_err();
        assert_eq!(error.to_string(), r#"expected "cnt ok\x00", got "cnt no\x00""#);
    }

    #[test]
    fn invalid_counts_are_refused() {
        for bytes in [b"\0\0\0\0\0\0\0\0\0\0", b"-1\0\0\0\0\0\0\0\0", b"1\x002\0\0\0\0\0\0\0"] {
            let error =
                against(bytes, |control| control.receive_count(1, &mut || {})).0.unwrap_err();
            assert!(matches!(error, FiControlError::NoCount { .. }), "{error}");
        }
        let error =
            against(b"9\0\0\0\0\0\0\0\0\0", |c| c.receive_count(10, &mut || {})).0.unwrap_err();
        assert!(matches!(error, FiControlError::Count { found: 9, expected: 10 }), "{error}");
    }

    #[test]
    fn closed_or_silent_peer_is_an_error() {
        let error = against(b"q", |control| control.answer(&mut || {})).0.unwrap_err();
        assert!(matches!(error, FiControlError::Closed), "{error}");
        let (mut control, peer) = pair();
        control.timeout = Duration::from_millis(1);
        let error = control.answer(&mut || {}).unwrap_err();
        assert!(matches!(error, FiControlError::Timeout { .. }), "{error}");
        assert!(!control.is_closed().unwrap());
        drop(peer);
        assert!(control.is_closed().unwrap());
    }

    #[test]
    fn bytes_that_arrive_early_are_kept() {
        let (mut control, mut peer) = pair();
        peer.write_all(b"q").unwrap();
        assert!(!control.is_closed().unwrap());
        peer.write_all(b"\0").unwrap();
        control.answer(&mut || {}).unwrap();
        // Beyond the bytes kept, nothing is read.
        peer.write_all(&[0; 10 * EARLY]).unwrap();
        for _ in 0..20 {
            assert!(!control.is_closed().unwrap());
        }
        assert_eq!(control.received.len(), EARLY);
    }

    proptest! {
        #[test]
        fn hostile_bytes_end_in_an_error_or_a_result(
            script in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let _ = against(&script, |control| {
                let theirs = control.receive_name()?;
                control.answer(&mut || {})?;
                control.receive_count(10, &mut || {})?;
                Ok(theirs)
            });
            let _ = against(&script, |control| control.ask(&mut || {}));
            let _ = against(&script, |control| control.receive_count(1, &mut || {}));
        }

        #[test]
        fn every_count_survives(number in 0..10_000_000_000_u64) {
            let mut bytes = number.to_string().into_bytes();
            bytes.resize(COUNT, 0);
            prop_assert_eq!(count(&bytes.try_into().unwrap()), Some(number));
        }
    }
}
