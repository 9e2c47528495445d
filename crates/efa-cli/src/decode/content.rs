//! The parsed content of a datagram.

use std::collections::HashSet;

use efa_device::Qpn;
use efa_proto::{Header, Packet, ParseError};
use efa_sim::record::{QueuePairId, Record};

/// Most user queue pairs remembered, so that a hostile capture can't fill the memory.
const MAX_USER_QUEUES: usize = 4096;

/// The parsed content of a datagram.
pub(super) enum Content<'a> {
    /// A packet of the protocol.
    Packet(Packet<'a>),
    /// A message without a header, to a user queue pair (extra request 7).
    Plain(&'a [u8]),
    /// Not a packet.
    Malformed(ParseError),
}

impl<'a> Content<'a> {
    /// The packet, if it is one.
    pub(super) fn packet(&self) -> Option<&Packet<'a>> {
        match self {
            Self::Packet(packet) => Some(packet),
            Self::Plain(_) | Self::Malformed(_) => None,
        }
    }
}

/// The user queue pairs that HANDSHAKEs of the capture announced.
#[derive(Default)]
pub(super) struct UserQueues(HashSet<QueuePairId>);

impl UserQueues {
    /// Parses the next datagram of a capture.
    pub(super) fn read<'a>(&mut self, record: &'a Record<'_>) -> Content<'a> {
        // User queue pairs don't send: one that sends got the number anew.
        self.0.remove(&record.source);
        if self.0.contains(&record.destination) {
            return Content::Plain(&record.bytes);
        }
        match Packet::parse(&record.bytes) {
            Ok(packet) => {
                self.learn(record, &packet);
                Content::Packet(packet)
            }
            Err(error) => Content::Malformed(error),
        }
    }

    /// Remembers the user queue pair that a HANDSHAKE announces.
    fn learn(&mut self, record: &Record<'_>, packet: &Packet<'_>) {
        if let Header::Handshake(handshake) = packet.header
            && let Some(user) = handshake.user_recv_qp
            && let Ok(qpn) = u16::try_from(user.qpn).map(Qpn)
            && qpn != record.source.qpn
            && self.0.len() < MAX_USER_QUEUES
        {
            self.0.insert(QueuePairId { gid: record.source.gid, qpn });
        }
    }
}
