//! The parsed content of a datagram.

use std::collections::{HashMap, HashSet};
use std::str::FromStr;

use efa_device::Qpn;
use efa_proto::{Header, Packet, PacketType, ParseError};
use efa_sim::capture::Captured;
use efa_sim::record::{QueuePairId, Record};

use super::filter::{FilterError, PeerFilter};

/// Most queue pairs remembered of each kind, so that a hostile capture can't fill the memory.
const MAX_QUEUE_PAIRS: usize = 4096;

/// Queue pairs whose datagrams have no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlainFilter {
    /// All of them.
    All,
    /// These.
    Peer(PeerFilter),
}

impl FromStr for PlainFilter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        if text.eq_ignore_ascii_case("all") { Ok(Self::All) } else { text.parse().map(Self::Peer) }
    }
}

impl PlainFilter {
    fn matches(self, record: &Record<'_>) -> bool {
        match self {
            Self::All => true,
            Self::Peer(peer) => peer.matches(record.source) || peer.matches(record.destination),
        }
    }
}

/// The parsed content of a datagram.
pub(super) enum Content<'a> {
    /// A packet of the protocol.
    Packet(Packet<'a>),
    /// A message without a header: to a user queue pair (extra request 7), or as the user says.
    Plain(&'a [u8]),
    /// A packet of whose header the capture has only a part: where it ends, and what comes before the optional headers
    /// if that is there.
    Cut(ParseError, Option<Header<'a>>),
    /// Not a packet.
    Malformed(ParseError),
}

impl<'a> Content<'a> {
    /// The header, as far as it is known.
    pub(super) fn header(&self) -> Option<&Header<'a>> {
        match self {
            Self::Packet(packet) => Some(&packet.header),
            Self::Cut(_, header) => header.as_ref(),
            Self::Plain(_) | Self::Malformed(_) => None,
        }
    }

    /// Its type, as far as it is known.
    pub(super) fn packet_type(&self) -> Option<PacketType> {
        match self {
            Self::Packet(packet) => Some(packet.packet_type()),
            Self::Cut(error, _) => error.packet_type(),
            Self::Plain(_) | Self::Malformed(_) => None,
        }
    }
}

/// What the datagrams of a capture are, by what its queue pairs have sent so far.
pub(super) struct Contents<'a> {
    plain: &'a [PlainFilter],
    /// The user queue pairs that HANDSHAKEs announced.
    user_queues: HashSet<QueuePairId>,
    senders: HashMap<QueuePairId, Sender>,
}

/// What a queue pair has sent.
#[derive(Default)]
struct Sender {
    datagrams: u64,
    /// A HANDSHAKE or a request, one of which every endpoint of the protocol begins with.
    introduced: bool,
}

impl<'a> Contents<'a> {
    /// Datagrams from and to the queue pairs `plain` have no header.
    pub(super) fn new(plain: &'a [PlainFilter]) -> Self {
        Self { plain, user_queues: HashSet::new(), senders: HashMap::new() }
    }

    /// Parses the next datagram of a capture.
    pub(super) fn read<'b>(&mut self, captured: &'b Captured) -> Content<'b> {
        let record = &captured.record;
        // User queue pairs don't send: one that sends got the number anew.
        self.user_queues.remove(&record.source);
        let is_plain = self.plain.iter().any(|filter| filter.matches(record));
        if is_plain || self.user_queues.contains(&record.destination) {
            return Content::Plain(&record.bytes);
        }
        let content = match Packet::parse_cut(&record.bytes, captured.length) {
            Ok(packet) => Content::Packet(packet),
            // With what was cut off, the field may have been there.
            Err(error)
                if error.missing().is_some_and(|bytes| bytes <= captured.missing() as u64) =>
            {
                Content::Cut(error, Header::parse_mandatory(&record.bytes))
            }
            Err(error) => Content::Malformed(error),
        };
        self.count(record, &content);
        if let Content::Packet(packet) = &content {
            self.learn(record, packet);
        }
        content
    }

    /// Counts the datagram as one of its source, unless so little of it is there that it may be anything.
    fn count(&mut self, record: &Record<'_>, content: &Content<'_>) {
        let packet_type = content.packet_type();
        if matches!(content, Content::Cut(..)) && packet_type.is_none() {
            return;
        }
        let room = self.senders.len() < MAX_QUEUE_PAIRS;
        if !room && !self.senders.contains_key(&record.source) {
            return;
        }
        let sender = self.senders.entry(record.source).or_default();
        sender.datagrams += 1;
        sender.introduced |= packet_type.is_some_and(|packet_type| {
            packet_type.is_req() || packet_type == PacketType::Handshake
        });
    }

    /// Remembers the user queue pair that a HANDSHAKE announces.
    fn learn(&mut self, record: &Record<'_>, packet: &Packet<'_>) {
        if let Header::Handshake(handshake) = packet.header
            && let Some(user) = handshake.user_recv_qp
            && let Ok(qpn) = u16::try_from(user.qpn).map(Qpn)
            && qpn != record.source.qpn
            && self.user_queues.len() < MAX_QUEUE_PAIRS
        {
            self.user_queues.insert(QueuePairId { gid: record.source.gid, qpn });
        }
    }

    /// A line on queue pairs that seem not to speak the protocol, if there are any.
    pub(super) fn hint(&self) -> Option<String> {
        let strange = || self.senders.iter().filter(|(_, sender)| !sender.introduced);
        let (id, sender) = strange().min_by_key(|(id, _)| **id)?;
        let others = match strange().count() - 1 {
            0 => String::new(),
            others => format!(" (nor did {others} more)"),
        };
        Some(format!(
            "{id} sent neither a HANDSHAKE nor a request among {} datagrams{others}; if its program uses no EFA RDM \
             headers (efa-direct, DGRAM endpoints, UCX), add --plain {id}, or --plain all",
            sender.datagrams,
        ))
    }
}
