//! What the two sides of a connection tell each other besides the program's messages.
//!
//! ```text
//!   caller                                      listener
//!   request, HELLO{version, role, features} ──►  accepts, with its features, or rejects with a REASON
//!
//!   tagged messages of 24 bytes, all integers little-endian:
//!   byte 0   2   version, 1
//!        2   1   kind
//!        3   1   status of an ANSWER, else 0
//!        4   4   serial of a (un)subscription and of its answer, messages received before TOO_LONG, else 0
//!        8   8   first: tag, count of messages, or length
//!       16   8   second: messages sent before an ANSWER, capacity of a buffer, else 0
//! ```
//!
//! The program's messages are untagged. A published one has its tag as CQ data.

use std::num::NonZeroU32;

use efa::{DeviceError, EnableError, StartConnectError};

/// The tag of control messages.
pub(crate) const CONTROL: u64 = 0x6e65_7469_6f00_0001;
/// Bytes of a control message.
pub(crate) const LENGTH: usize = 24;

const VERSION: u16 = 1;
const MAGIC: [u8; 4] = *b"nio1";

/// What a caller wants of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Role {
    Send = 1,
    Subscribe = 2,
}

impl Role {
    /// The data of a request.
    pub(crate) fn hello(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6] = self as u8;
        bytes[7] = Features::OURS.0;
        bytes
    }

    /// The role that a request names.
    pub(crate) fn of(hello: &[u8]) -> Result<Self, Rejection> {
        let Ok(hello) = <[u8; 8]>::try_from(hello) else { return Err(Rejection::NotNetio) };
        let [m0, m1, m2, m3, v0, v1, role, _] = hello;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(Rejection::NotNetio);
        }
        if u16::from_le_bytes([v0, v1]) != VERSION {
            return Err(Rejection::Version);
        }
        match role {
            1 => Ok(Self::Send),
            2 => Ok(Self::Subscribe),
            _ => Err(Rejection::WrongRole),
        }
    }
}

/// What a side of a connection understands besides version 1. The caller says it in its request, the listener as it
/// accepts; sides that know of none say 0, or nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features(u8);

impl Features {
    /// It reads the number of messages in TOO_LONG. Others ignore a TOO_LONG that has one.
    const RECEIVED_BEFORE: u8 = 1;
    const OURS: Self = Self(Self::RECEIVED_BEFORE);

    /// Those of the caller.
    pub(crate) fn of_request(hello: &[u8]) -> Self {
        Self(hello.get(7).copied().unwrap_or_default())
    }

    /// The data of an acceptance.
    pub(crate) fn acceptance() -> [u8; 1] {
        [Self::OURS.0]
    }

    /// Those of the listener.
    pub(crate) fn of_acceptance(data: &[u8]) -> Self {
        Self(data.first().copied().unwrap_or_default())
    }

    /// How many messages were received before TOO_LONG, for a side that reads it.
    pub(crate) fn received_before(self, received: u64) -> Option<ReceivedBefore> {
        (self.0 & Self::RECEIVED_BEFORE != 0).then(|| ReceivedBefore::of(received))
    }
}

/// A number of received messages, of which 32 bits are enough: it is at most the number of sent ones, and far less than
/// 2^32 below it. 0 on the wire means that it isn't told: so the count goes from 1 to 2^32 - 1, and then from 1 on again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedBefore(NonZeroU32);

impl ReceivedBefore {
    const PERIOD: u64 = u32::MAX as u64;

    fn of(received: u64) -> Self {
        Self(NonZeroU32::MIN.saturating_add((received % Self::PERIOD) as u32))
    }

    /// How many of the messages that were `sent` were not received. `None` if that can't be.
    pub(crate) fn lost(self, sent: u64) -> Option<u64> {
        let received = u64::from(self.0.get() - 1);
        let lost = (sent % Self::PERIOD + Self::PERIOD - received) % Self::PERIOD;
        (1..=sent).contains(&lost).then_some(lost)
    }
}

/// Why a listener rejects a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// One side doesn't speak this protocol: for the caller it is the listener, which may also have given no reason; for the
    /// listener it is the caller.
    #[error("the other side does not speak this protocol")]
    NotNetio,
    /// The two sides speak different versions of it.
    #[error("the other side speaks another version of the protocol")]
    Version,
    /// It is a publisher and the caller a send socket, or the other way round.
    #[error(
        "the listener is not of the kind that the socket needs: publisher and listen socket differ"
    )]
    WrongRole,
    /// It has as many connections as it may have.
    #[error("the listener has as many connections as it may have")]
    Full,
    /// It has no memory or descriptor for the connection.
    #[error("the listener lacks memory or descriptors")]
    Lacking,
    /// Its device doesn't reach that of the caller.
    #[error(
        "the listener's device does not reach the caller's: both must be on one host of the link shm (the same name, \
         directory and user), or on the link tcp, at addresses of one family, and of two hosts not at a loopback address"
    )]
    Unreachable,
    /// Its device failed.
    #[error("the listener's device failed")]
    Failed,
}

impl Rejection {
    /// The data of a rejection.
    pub(crate) fn data(self) -> [u8; 1] {
        [match self {
            Self::NotNetio => 0,
            Self::Version => 1,
            Self::WrongRole => 2,
            Self::Full => 3,
            Self::Lacking => 4,
            Self::Unreachable => 5,
            Self::Failed => 6,
        }]
    }

    /// Why a request wasn't accepted.
    pub(crate) fn because(error: &StartConnectError) -> Self {
        let device = match error {
            StartConnectError::Enable(EnableError::Device(error)) => error,
            StartConnectError::Device(error) => error,
            StartConnectError::System(_) => return Self::Lacking,
            _ => return Self::Failed,
        };
        match device {
            DeviceError::BadAddress { .. } => Self::NotNetio,
            DeviceError::Unreachable { .. } => Self::Unreachable,
            DeviceError::LimitReached { .. } => Self::Lacking,
            error if error.shortage().is_some() => Self::Lacking,
            _ => Self::Failed,
        }
    }

    pub(crate) fn of(data: &[u8]) -> Self {
        match data {
            [1] => Self::Version,
            [2] => Self::WrongRole,
            [3] => Self::Full,
            [4] => Self::Lacking,
            [5] => Self::Unreachable,
            [6] => Self::Failed,
            _ => Self::NotNetio,
        }
    }
}

/// What a publisher answers to a subscription or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Answer {
    Done = 0,
    /// The subscriber has as many tags as it may have.
    TooManyTags = 1,
}

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// Subscriber to publisher.
    Subscribe { serial: u32, tag: u64 },
    /// Subscriber to publisher.
    Unsubscribe { serial: u32, tag: u64 },
    /// Publisher to subscriber, for either, with the number of messages sent on this connection before.
    Answer { serial: u32, tag: u64, answer: Answer, messages: u64 },
    /// Sender to receiver: so many messages were sent on this connection, and no more follow. The receiver closes the
    /// connection when it has them.
    End { messages: u64 },
    /// Receiver to sender: a message was longer than its buffer, and the connection ends. Those behind it are dropped.
    TooLong { length: u64, capacity: u64, received: Option<ReceivedBefore> },
}

impl Control {
    pub(crate) fn emit(self) -> [u8; LENGTH] {
        let (kind, status, serial, first, second) = match self {
            Self::Subscribe { serial, tag } => (1, 0, serial, tag, 0),
            Self::Unsubscribe { serial, tag } => (2, 0, serial, tag, 0),
            Self::Answer { serial, tag, answer, messages } => {
                (3, answer as u8, serial, tag, messages)
            }
            Self::End { messages } => (4, 0, 0, messages, 0),
            Self::TooLong { length, capacity, received } => {
                (5, 0, received.map_or(0, |received| received.0.get()), length, capacity)
            }
        };
        let mut bytes = [0; LENGTH];
        bytes[..2].copy_from_slice(&VERSION.to_le_bytes());
        bytes[2] = kind;
        bytes[3] = status;
        bytes[4..8].copy_from_slice(&serial.to_le_bytes());
        bytes[8..16].copy_from_slice(&first.to_le_bytes());
        bytes[16..].copy_from_slice(&second.to_le_bytes());
        bytes
    }

    /// `None` for anything that [`emit`](Self::emit) doesn't make.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = <&[u8; LENGTH]>::try_from(bytes).ok()?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let serial = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let (first, second) = (word(8), word(16));
        let found = match (bytes[2], bytes[3]) {
            (1, 0) => Self::Subscribe { serial, tag: first },
            (2, 0) => Self::Unsubscribe { serial, tag: first },
            (3, 0 | 1) => {
                let answer = if bytes[3] == 0 { Answer::Done } else { Answer::TooManyTags };
                Self::Answer { serial, tag: first, answer, messages: second }
            }
            (4, 0) => Self::End { messages: first },
            (5, 0) => {
                let received = NonZeroU32::new(serial).map(ReceivedBefore);
                Self::TooLong { length: first, capacity: second, received }
            }
            _ => return None,
        };
        (found.emit() == *bytes).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn controls() -> impl Strategy<Value = Control> {
        let answer = prop_oneof![Just(Answer::Done), Just(Answer::TooManyTags)];
        prop_oneof![
            any::<(u32, u64)>().prop_map(|(serial, tag)| Control::Subscribe { serial, tag }),
            any::<(u32, u64)>().prop_map(|(serial, tag)| Control::Unsubscribe { serial, tag }),
            (any::<(u32, u64, u64)>(), answer).prop_map(|((serial, tag, messages), answer)| {
                Control::Answer { serial, tag, answer, messages }
            }),
            any::<u64>().prop_map(|messages| Control::End { messages }),
            any::<(u64, u64, u32)>().prop_map(|(length, capacity, received)| {
                let received = NonZeroU32::new(received).map(ReceivedBefore);
                Control::TooLong { length, capacity, received }
            }),
        ]
    }

    proptest! {
        #[test]
        fn control_message_is_parsed_as_it_was_emitted(control in controls()) {
            prop_assert_eq!(Control::parse(&control.emit()), Some(control));
        }

        #[test]
        fn any_bytes_are_refused_or_emitted_again_as_they_are(
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            if let Some(control) = Control::parse(&bytes) {
                prop_assert_eq!(&control.emit()[..], &bytes[..]);
            }
        }

        #[test]
        fn changed_byte_of_a_control_message_never_makes_the_same_message(
            control in controls(), at in 0..LENGTH, change in 1..=u8::MAX,
        ) {
            let mut bytes = control.emit();
            bytes[at] ^= change;
            prop_assert_ne!(Control::parse(&bytes), Some(control));
        }
    }

    proptest! {
        #[test]
        fn count_of_received_messages_in_32_bits_tells_how_many_were_lost(
            received in prop_oneof![0..10_u64, u64::from(u32::MAX) - 5..u64::from(u32::MAX) + 5, any::<u64>()],
            lost in 1..u64::from(u32::MAX),
        ) {
            let sent = received.saturating_add(lost);
            prop_assert_eq!(ReceivedBefore::of(received).lost(sent), Some(sent - received).filter(|lost| *lost > 0));
        }
    }

    #[test]
    fn count_of_more_received_messages_than_were_sent_tells_nothing() {
        assert_eq!(ReceivedBefore::of(3).lost(2), None);
        assert_eq!(ReceivedBefore::of(3).lost(3), None, "one was too long");
        assert_eq!(ReceivedBefore::of(3).lost(4), Some(1));
    }

    #[test]
    fn side_that_names_no_features_gets_no_count() {
        for old in [Features::of_request(b"nio1\x01\0\x01\0"), Features::of_acceptance(b"")] {
            assert_eq!(old.received_before(7), None);
        }
        for new in [
            Features::of_request(&Role::Send.hello()),
            Features::of_acceptance(&Features::acceptance()),
        ] {
            assert_eq!(new.received_before(7), Some(ReceivedBefore::of(7)));
        }
    }

    // conformance: D47
    #[test]
    fn subscription_message_has_its_documented_bytes() {
        let subscribe = Control::Subscribe { serial: 0x0403_0201, tag: 0x1122_3344_5566_7788 };
        let bytes = [
            1, 0, 1, 0, 1, 2, 3, 4, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0, 0, 0, 0, 0,
            0, 0, 0,
        ];
        assert_eq!(subscribe.emit(), bytes);
    }

    #[test]
    fn request_of_another_protocol_version_or_role_is_rejected_by_name() {
        assert_eq!(Role::of(&Role::Send.hello()), Ok(Role::Send));
        assert_eq!(Role::of(&Role::Subscribe.hello()), Ok(Role::Subscribe));
        let changed = |at: usize| {
            let mut hello = Role::Send.hello();
            hello[at] ^= 0x10;
            Role::of(&hello)
        };
        assert_eq!(changed(0), Err(Rejection::NotNetio));
        assert_eq!(changed(4), Err(Rejection::Version));
        assert_eq!(changed(6), Err(Rejection::WrongRole));
        assert_eq!(Role::of(b""), Err(Rejection::NotNetio));
        for reason in [
            Rejection::NotNetio,
            Rejection::Version,
            Rejection::WrongRole,
            Rejection::Full,
            Rejection::Lacking,
            Rejection::Unreachable,
            Rejection::Failed,
        ] {
            assert_eq!(Rejection::of(&reason.data()), reason);
        }
    }
}
