//! The filters of `efa decode`.

use std::net::Ipv6Addr;
use std::str::FromStr;

use clap::ValueEnum;
use efa_proto::PacketType;
use efa_sim::record::{PacketEvent, QueuePairId};

use super::operations::Operations;
use super::{Args, Content, Entry};

/// An invalid filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FilterError {
    /// No packet type or family has this name.
    #[error("no packet type or family `{name}`")]
    UnknownType {
        /// What was given.
        name: String,
    },
    /// Neither a GID, nor a queue pair number, nor both.
    #[error("`{text}` is neither a GID (an IPv6 address) nor a QPN (0 to 65535) nor GID/QPN")]
    BadPeer {
        /// What was given.
        text: String,
    },
    /// Not a number of 64 bits.
    #[error("`{text}` is not a tag: a number of 64 bits, decimal or 0x…")]
    BadTag {
        /// What was given.
        text: String,
    },
    /// Not a number of 32 bits.
    #[error("`{text}` is not a number from 0 to 4294967295, decimal or 0x…")]
    BadNumber {
        /// What was given.
        text: String,
    },
}

/// Packet types, or datagrams that are no packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TypeFilter {
    /// Byte 0 of the packet, also of malformed ones.
    Number(u8),
    /// One of these.
    Among(Vec<PacketType>),
    /// Messages without a header, for user queue pairs.
    Plain,
    /// Datagrams that can't be parsed.
    Malformed,
}

impl FromStr for TypeFilter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let unknown = || FilterError::UnknownType { name: text.to_owned() };
        if let Some(number) = number(text) {
            return u8::try_from(number).map(Self::Number).map_err(|_| unknown());
        }
        let name = text.to_ascii_uppercase();
        match name.as_str() {
            "PLAIN" => return Ok(Self::Plain),
            "MALFORMED" => return Ok(Self::Malformed),
            _ => {}
        }
        let types = |belongs: &dyn Fn(PacketType) -> bool| -> Vec<PacketType> {
            PacketType::ALL.iter().copied().filter(|t| belongs(*t)).collect()
        };
        // A name beats a family, so that `cts` is not `ctsdata` and `receipt` is a type.
        let mut found = types(&|t| t.name() == name);
        if found.is_empty() {
            found = types(&|t| in_family(t, &name));
        }
        if found.is_empty() { Err(unknown()) } else { Ok(Self::Among(found)) }
    }
}

/// Whether a type is of a family, by the parts of its name: `DC_EAGER_TAGRTM` is of DC, EAGER, TAGRTM and
/// RTM.
fn in_family(packet_type: PacketType, family: &str) -> bool {
    let is_kind = matches!(family, "RTM" | "RTW" | "RTR" | "RTA");
    packet_type.is_req()
        && (family == "REQ"
            || packet_type.name().split('_').any(|part| part == family)
            || is_kind && packet_type.name().ends_with(family))
}

impl TypeFilter {
    fn matches(&self, entry: &Entry<'_>) -> bool {
        match (self, &entry.content) {
            (Self::Number(_), Content::Plain(_)) => false,
            (Self::Number(number), _) => entry.record.bytes.first() == Some(number),
            (Self::Among(types), content) => {
                content.packet_type().is_some_and(|packet_type| types.contains(&packet_type))
            }
            (Self::Plain, Content::Plain(_)) | (Self::Malformed, Content::Malformed(_)) => true,
            (Self::Plain | Self::Malformed, _) => false,
        }
    }
}

/// A queue pair, or all of an interface, or all with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerFilter {
    gid: Option<[u8; 16]>,
    qpn: Option<u16>,
}

impl FromStr for PeerFilter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let bad = || FilterError::BadPeer { text: text.to_owned() };
        let gid = |text: &str| text.parse::<Ipv6Addr>().ok().map(|gid| gid.octets());
        let qpn = |text: &str| number(text).and_then(|number| u16::try_from(number).ok());
        let (gid, qpn) = match text.split_once('/') {
            Some((left, right)) => {
                (Some(gid(left).ok_or_else(bad)?), Some(qpn(right).ok_or_else(bad)?))
            }
            None => (gid(text), qpn(text)),
        };
        if gid.is_none() && qpn.is_none() { Err(bad()) } else { Ok(Self { gid, qpn }) }
    }
}

impl PeerFilter {
    pub(super) fn matches(&self, id: QueuePairId) -> bool {
        self.gid.is_none_or(|gid| gid == id.gid.0) && self.qpn.is_none_or(|qpn| qpn == id.qpn.0)
    }
}

/// What happened to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EventFilter {
    /// The source posted it, and it left
    Sent,
    /// It is in a receive buffer of the destination
    #[value(alias = "recv")]
    Received,
    /// The send failed, with a status
    #[value(alias = "fail")]
    Failed,
}

impl EventFilter {
    fn matches(self, event: PacketEvent) -> bool {
        match event {
            PacketEvent::Sent => self == Self::Sent,
            PacketEvent::Received => self == Self::Received,
            PacketEvent::Failed(_) => self == Self::Failed,
        }
    }
}

/// A tag, decimal or `0x…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u64);

impl FromStr for Tag {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        number_of_64_bits(text)
            .map(Self)
            .ok_or_else(|| FilterError::BadTag { text: text.to_owned() })
    }
}

/// An id, decimal or `0x…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number(pub(super) u32);

impl FromStr for Number {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        number(text).map(Self).ok_or_else(|| FilterError::BadNumber { text: text.to_owned() })
    }
}

fn number(text: &str) -> Option<u32> {
    number_of_64_bits(text).and_then(|number| number.try_into().ok())
}

fn number_of_64_bits(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if digits.starts_with('+') => None,
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if text.starts_with('+') => None,
        None => text.parse().ok(),
    }
}

/// All filters of one command.
pub(super) struct Filter<'a> {
    args: &'a Args,
    operations: Operations<'a>,
}

impl<'a> Filter<'a> {
    pub(super) fn new(args: &'a Args) -> Self {
        Self { args, operations: Operations::new(&args.op_ids) }
    }

    /// Whether the next entry of the captures matches a filter of each kind that was given.
    pub(super) fn matches(&mut self, entry: &Entry<'_>) -> bool {
        let Args { types, peers, events, msg_ids, tags, .. } = self.args;
        let record = entry.record;
        let ends = [record.source, record.destination];
        let header = entry.content.header();
        let is_of_operation = self.operations.take(record, header);
        (types.is_empty() || types.iter().any(|filter| filter.matches(entry)))
            && (peers.is_empty()
                || peers.iter().any(|peer| ends.iter().any(|id| peer.matches(*id))))
            && (events.is_empty() || events.iter().any(|event| event.matches(record.event)))
            && (msg_ids.is_empty()
                || header
                    .and_then(|header| header.msg_id())
                    .is_some_and(|id| msg_ids.contains(&Number(id.0))))
            && (tags.is_empty()
                || header
                    .and_then(|header| header.tag())
                    .is_some_and(|tag| tags.contains(&Tag(tag))))
            && is_of_operation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<&'static str> {
        match text.parse() {
            Ok(TypeFilter::Among(types)) => types.into_iter().map(PacketType::name).collect(),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn packet_types_parse_by_name_and_by_number() {
        for packet_type in PacketType::ALL {
            assert_eq!(names(packet_type.name()), [packet_type.name()]);
            assert_eq!(names(&packet_type.name().to_lowercase()), [packet_type.name()]);
        }
        assert_eq!("65".parse(), Ok(TypeFilter::Number(65)));
        assert_eq!("0x41".parse(), Ok(TypeFilter::Number(65)));
        assert_eq!("Malformed".parse(), Ok(TypeFilter::Malformed));
        assert_eq!("plain".parse(), Ok(TypeFilter::Plain));
    }

    #[test]
    fn family_names_stand_for_all_their_types() {
        assert_eq!(names("cts"), ["CTS"]);
        assert_eq!(names("rtr"), ["SHORT_RTR", "LONGCTS_RTR"]);
        assert_eq!(names("runtread"), ["RUNTREAD_MSGRTM", "RUNTREAD_TAGRTM", "RUNTREAD_RTW"]);
        let (messages, tagged) = (names("msgrtm"), names("tagrtm"));
        assert_eq!(names("rtm").len(), messages.len() + tagged.len());
        assert!(tagged.contains(&"DC_EAGER_TAGRTM") && !messages.contains(&"DC_EAGER_TAGRTM"));
        assert!(names("dc").iter().all(|name| name.starts_with("DC_")));
        let requests = PacketType::ALL.iter().filter(|t| t.is_req()).count();
        assert_eq!(names("req").len(), requests);
    }

    #[test]
    fn unknown_type_names_are_refused() {
        for text in ["", "eagre", "256", "-1", "read", "0x", "+3", "rt"] {
            let error = FilterError::UnknownType { name: text.to_owned() };
            assert_eq!(text.parse::<TypeFilter>(), Err(error), "{text}");
        }
    }

    #[test]
    fn peer_filter_matches_gid_or_qpn_or_both() {
        let id = |gid: u8, qpn| {
            let mut id = QueuePairId::default();
            (id.gid.0[0], id.gid.0[15], id.qpn.0) = (0xfe, gid, qpn);
            id
        };
        let by = |text: &str| text.parse::<PeerFilter>().unwrap();
        assert!(by("fe00::1").matches(id(1, 9)) && !by("fe00::1").matches(id(2, 9)));
        assert!(by("9").matches(id(2, 9)) && !by("9").matches(id(2, 8)));
        assert!(by("fe00::1/9").matches(id(1, 9)));
        assert!(!by("fe00::1/9").matches(id(1, 8)) && !by("fe00::1/9").matches(id(2, 9)));
        for text in ["", "fe00::1/", "/9", "65536", "host", "fe00::1/9/9"] {
            let error = FilterError::BadPeer { text: text.to_owned() };
            assert_eq!(text.parse::<PeerFilter>(), Err(error), "{text}");
        }
    }

    #[test]
    fn numbers_parse_in_decimal_and_hexadecimal_within_their_bits() {
        assert_eq!("4294967295".parse(), Ok(Number(u32::MAX)));
        assert_eq!("0X2a".parse(), Ok(Number(42)));
        for text in ["4294967296", "", "x", "-1", "0x+1"] {
            let error = FilterError::BadNumber { text: text.to_owned() };
            assert_eq!(text.parse::<Number>(), Err(error), "{text}");
        }
        assert_eq!("0xffffFFFFffffFFFF".parse(), Ok(Tag(u64::MAX)));
        for text in ["0x10000000000000000", "", "x", "-1", "+1"] {
            let error = FilterError::BadTag { text: text.to_owned() };
            assert_eq!(text.parse::<Tag>(), Err(error), "{text}");
        }
    }
}
