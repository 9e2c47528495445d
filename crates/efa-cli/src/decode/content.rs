//! What a datagram holds.

use std::collections::HashSet;

use efa_device::Qpn;
use efa_proto::{Header, Packet, ParseError};
use efa_sim::record::{QueuePairId, Record};

/// Queue pairs of applications that are kept in mind; more are of no honest capture.
const MOST: usize = 4096;

/// What a datagram holds.
pub(super) enum Content<'a> {
    /// A packet of the protocol.
    Packet(Packet<'a>),
    /// Bytes for the queue pair of an application, without a header (feature 7).
    Plain(&'a [u8]),
    /// Neither.
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

/// The queue pairs that applications receive at themselves, as far as the capture has told.
#[derive(Default)]
pub(super) struct PlainQueues(HashSet<QueuePairId>);

impl PlainQueues {
    /// Reads the next datagram of a capture.
    pub(super) fn read<'a>(&mut self, record: &'a Record<'_>) -> Content<'a> {
        // They never send: the number is another's now.
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

    /// A HANDSHAKE tells of the queue pair that messages to its sender are to go to.
    fn learn(&mut self, record: &Record<'_>, packet: &Packet<'_>) {
        if let Header::Handshake(handshake) = packet.header
            && let Some(user) = handshake.user_recv_qp
            && let Ok(qpn) = u16::try_from(user.qpn).map(Qpn)
            && qpn != record.source.qpn
            && self.0.len() < MOST
        {
            self.0.insert(QueuePairId { gid: record.source.gid, qpn });
        }
    }
}
