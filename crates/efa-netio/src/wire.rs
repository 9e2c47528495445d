//! What the two sides of a connection tell each other besides the program's messages.
//!
//! ```text
//!   caller                                      listener
//!   request, HELLO{version, role} ────────────►  accepts, or rejects with a REASON
//!
//!   tagged messages of 24 bytes, all integers little-endian:
//!   byte 0   2   version, 1
//!        2   1   kind
//!        3   1   status of an ANSWER, else 0
//!        4   4   serial of a (un)subscription and of its answer, else 0
//!        8   8   first: tag, count of messages, or length
//!       16   8   second: messages sent before an ANSWER, capacity of a buffer, else 0
//! ```
//!
//! The program's messages are untagged. A published one has its tag as CQ data.

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

/// Why a listener rejects a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// The listener doesn't speak this protocol, or gave no reason.
    #[error("the listener is none of this protocol")]
    NotNetio,
    /// It speaks another version of it.
    #[error("the listener speaks another version of the protocol")]
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
        }]
    }

    pub(crate) fn of(data: &[u8]) -> Self {
        match data {
            [1] => Self::Version,
            [2] => Self::WrongRole,
            [3] => Self::Full,
            [4] => Self::Lacking,
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
    /// Receiver to sender: a message was longer than its buffer, and the connection ends.
    TooLong { length: u64, capacity: u64 },
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
            Self::TooLong { length, capacity } => (5, 0, 0, length, capacity),
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
            (5, 0) => Self::TooLong { length: first, capacity: second },
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
            any::<(u64, u64)>()
                .prop_map(|(length, capacity)| Control::TooLong { length, capacity }),
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
        ] {
            assert_eq!(Rejection::of(&reason.data()), reason);
        }
    }
}
