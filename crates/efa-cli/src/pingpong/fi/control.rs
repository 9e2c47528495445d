//! The control protocol of libfabric's `fi_pingpong`, next to the messages and outside of them.
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
//! Nothing tells what the messages are like: both sides are started with the same options. What
//! the other side sends is not trusted, and every wait has an end.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use efa::Address;

use super::super::control::Stream;

/// `FI_ADDR_EFA`.
const FORMAT: u32 = 12;
/// Before each size: the client is ready, and the server is.
const ASK: &[u8; 2] = b"q\0";
const ANSWER: &[u8; 2] = b"a\0";
/// Bytes of the number of messages.
const COUNT: usize = 10;
/// The server has it.
const COUNTED: &[u8; 7] = b"cnt ok\0";
/// Time between two calls of what is to be done while the other side is waited for.
const SLICE: Duration = Duration::from_millis(1);
/// Most bytes that are kept when nobody has asked for them.
const EARLY: usize = 64;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FiControlError {
    /// The other side is gone.
    #[error("the other side closed the control channel")]
    Closed,
    /// Nothing came in time.
    #[error("no answer on the control channel within {waited:?}")]
    Silent {
        /// How long was waited.
        waited: Duration,
    },
    /// The endpoint is named in another way than EFA's are.
    #[error(
        "the other side's name has {length} bytes of format {format}, expected {} of format \
         {FORMAT}: is it `fi_pingpong -p efa -e rdm`?",
        Address::SIZE
    )]
    Name {
        /// Bytes that the name is said to have.
        length: u32,
        /// The format that it is said to have.
        format: u32,
    },
    /// Something at the wrong time.
    #[error("expected \"{}\", got \"{found}\"", expected.escape_ascii())]
    Unexpected {
        /// What should have come.
        expected: &'static [u8],
        /// What came, escaped.
        found: String,
    },
    /// No number.
    #[error("\"{found}\" is no number of messages")]
    NoCount {
        /// What came, escaped.
        found: String,
    },
    /// The client counts other messages than were sent.
    #[error(
        "the client received {found} answers, {expected} were sent: are the options the same on \
         both sides?"
    )]
    Count {
        /// What it says.
        found: u64,
        /// What it should be.
        expected: u64,
    },
    /// The operating system refused.
    #[error("control channel")]
    Io(#[from] io::Error),
}

/// The control channel to the other side.
#[derive(Debug)]
pub(super) struct FiControl {
    stream: Stream,
    /// What came and isn't wanted yet.
    received: Vec<u8>,
    closed: bool,
    /// How long to wait for anything.
    patience: Duration,
}

impl FiControl {
    pub(super) fn new(stream: Stream, patience: Duration) -> Result<Self, FiControlError> {
        stream.set_write_timeout(patience)?;
        Ok(Self { stream, received: Vec::new(), closed: false, patience })
    }

    /// The address of this side, if the channel is a TCP connection.
    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        self.stream.local_address()
    }

    /// Tells where our endpoint is.
    pub(super) fn send_name(&mut self, address: Address) -> Result<(), FiControlError> {
        let mut message = (Address::SIZE as u32).to_be_bytes().to_vec();
        message.extend(FORMAT.to_ne_bytes());
        message.extend(address.to_bytes());
        self.send(&message)
    }

    /// Hears where the other side's endpoint is.
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

    /// The client: tells how many messages it received.
    pub(super) fn tell_count(
        &mut self,
        count: u64,
        idle: &mut dyn FnMut(),
    ) -> Result<(), FiControlError> {
        let mut message = count.to_string().into_bytes();
        message.resize(COUNT, 0);
        self.send(&message)?;
        self.expect(COUNTED, idle)
    }

    /// The server: hears how many messages the client received, which must be `expected`.
    pub(super) fn hear_count(
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

    /// Looks, without waiting, whether the other side has closed the channel. What it sent stays
    /// for later.
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
            ErrorKind::WouldBlock => FiControlError::Silent { waited: self.patience },
            _ => error.into(),
        })
    }

    /// The next `N` bytes. `idle` is called now and then until they are there.
    fn take<const N: usize>(&mut self, idle: &mut dyn FnMut()) -> Result<[u8; N], FiControlError> {
        let begin = Instant::now();
        loop {
            if let Some(bytes) = self.received.first_chunk().copied() {
                self.received.drain(..N);
                return Ok(bytes);
            }
            if begin.elapsed() >= self.patience {
                return Err(FiControlError::Silent { waited: self.patience });
            }
            idle();
            self.stream.set_read_timeout(SLICE)?;
            match self.read_more(N) {
                Err(FiControlError::Io(error)) if error.kind() == ErrorKind::WouldBlock => {}
                result => result?,
            }
        }
    }

    /// Reads what is there, up to `most` bytes kept.
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

/// Decimal digits, one at least, with NULs behind them.
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

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Our side, and the bare stream of the other.
    fn pair() -> (FiControl, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_read_timeout(Some(PATIENCE)).unwrap();
        (FiControl::new(Stream::Unix(ours), PATIENCE).unwrap(), theirs)
    }

    /// What our side makes of a peer that says all this at once and hangs up, and what it said.
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
        // A peer that hasn't read everything resets the connection.
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
    fn the_client_says_what_fi_pingpong_hears() {
        let script = [name(0xfe).as_slice(), b"a\0", b"cnt ok\0"].concat();
        let (result, said) = against(&script, |control| {
            let theirs = control.receive_name()?;
            control.send_name(Address::from_bytes(address(0xfd)))?;
            control.ask(&mut || {})?;
            control.tell_count(10, &mut || {})?;
            Ok(theirs)
        });
        assert_eq!(result.unwrap(), Address::from_bytes(address(0xfe)));
        assert_eq!(said, [name(0xfd).as_slice(), b"q\0", b"10\0\0\0\0\0\0\0\0"].concat());
    }

    #[test]
    fn the_server_says_what_fi_pingpong_hears() {
        let script = [name(0xfe).as_slice(), b"q\0", b"1234567890"].concat();
        let (result, said) = against(&script, |control| {
            control.send_name(Address::from_bytes(address(0xfd)))?;
            let theirs = control.receive_name()?;
            control.answer(&mut || {})?;
            control.hear_count(1_234_567_890, &mut || {})?;
            Ok(theirs)
        });
        assert_eq!(result.unwrap(), Address::from_bytes(address(0xfe)));
        assert_eq!(said, [name(0xfd).as_slice(), b"a\0", b"cnt ok\0"].concat());
    }

    #[test]
    fn the_two_roles_agree() {
        let (a, b) = UnixStream::pair().unwrap();
        let client = thread::spawn(move || {
            let mut control = FiControl::new(Stream::Unix(a), PATIENCE).unwrap();
            control.ask(&mut || {}).unwrap();
            control.tell_count(u64::from(u32::MAX), &mut || {}).unwrap();
        });
        let mut control = FiControl::new(Stream::Unix(b), PATIENCE).unwrap();
        control.answer(&mut || {}).unwrap();
        control.hear_count(u64::from(u32::MAX), &mut || {}).unwrap();
        client.join().unwrap();
    }

    #[test]
    fn names_of_others_are_refused() {
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
    fn words_out_of_place_are_shown() {
        let error = against(b"\xff\n", |control| control.answer(&mut || {})).0.unwrap_err();
        assert_eq!(error.to_string(), r#"expected "q\x00", got "\xff\n""#);
        let error =
            against(b"cnt no\0", |control| control.tell_count(1, &mut || {})).0.unwrap_err();
        assert_eq!(error.to_string(), r#"expected "cnt ok\x00", got "cnt no\x00""#);
    }

    #[test]
    fn counts_that_are_none() {
        for bytes in [b"\0\0\0\0\0\0\0\0\0\0", b"-1\0\0\0\0\0\0\0\0", b"1\x002\0\0\0\0\0\0\0"] {
            let error = against(bytes, |control| control.hear_count(1, &mut || {})).0.unwrap_err();
            assert!(matches!(error, FiControlError::NoCount { .. }), "{error}");
        }
        let error =
            against(b"9\0\0\0\0\0\0\0\0\0", |c| c.hear_count(10, &mut || {})).0.unwrap_err();
        assert!(matches!(error, FiControlError::Count { found: 9, expected: 10 }), "{error}");
    }

    #[test]
    fn a_peer_that_is_gone_or_silent() {
        let error = against(b"q", |control| control.answer(&mut || {})).0.unwrap_err();
        assert!(matches!(error, FiControlError::Closed), "{error}");
        let (mut control, peer) = pair();
        control.patience = Duration::from_millis(1);
        let error = control.answer(&mut || {}).unwrap_err();
        assert!(matches!(error, FiControlError::Silent { .. }), "{error}");
        assert!(!control.is_closed().unwrap());
        drop(peer);
        assert!(control.is_closed().unwrap());
    }

    #[test]
    fn what_comes_early_is_kept() {
        let (mut control, mut peer) = pair();
        peer.write_all(b"q").unwrap();
        assert!(!control.is_closed().unwrap());
        peer.write_all(b"\0").unwrap();
        control.answer(&mut || {}).unwrap();
        // More than anybody sends early isn't read at all.
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
                control.hear_count(10, &mut || {})?;
                Ok(theirs)
            });
            let _ = against(&script, |control| control.ask(&mut || {}));
            let _ = against(&script, |control| control.hear_count(1, &mut || {}));
        }

        #[test]
        fn every_count_survives(number in 0..10_000_000_000_u64) {
            let mut bytes = number.to_string().into_bytes();
            bytes.resize(COUNT, 0);
            prop_assert_eq!(count(&bytes.try_into().unwrap()), Some(number));
        }
    }
}
