//! What an endpoint counts.

use core::fmt;

use efa_proto::PacketType;

/// A count for each packet type.
#[derive(Clone, PartialEq, Eq)]
pub struct PacketCounts([u64; 148]);

impl Default for PacketCounts {
    fn default() -> Self {
        Self([0; 148])
    }
}

impl PacketCounts {
    #[inline]
    pub(crate) fn count(&mut self, packet_type: PacketType) {
        self.0[usize::from(packet_type.as_u8())] += 1;
    }

    /// The count of one type.
    #[must_use]
    pub fn of(&self, packet_type: PacketType) -> u64 {
        self.0[usize::from(packet_type.as_u8())]
    }

    /// The types that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (PacketType, u64)> + '_ {
        PacketType::ALL
            .iter()
            .map(|packet_type| (*packet_type, self.of(*packet_type)))
            .filter(|(_, count)| *count > 0)
    }

    /// Packets of all types.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl fmt::Debug for PacketCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Counts since the endpoint was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Packets given to the device, without retransmissions.
    pub sent: PacketCounts,
    /// Well-formed packets of known peers that arrived.
    pub received: PacketCounts,
    /// Bytes given to the device, headers included.
    pub sent_bytes: u64,
    /// Bytes of all packets that arrived.
    pub received_bytes: u64,
    /// Packets that came back since the receiver was not ready.
    pub receiver_not_ready: u64,
    /// Packets sent again after that.
    pub retransmitted: u64,
    /// Pauses so that a receiver with a small window of message ids can't lose any.
    pub pauses: u64,
    /// Packets that failed for good.
    pub send_errors: u64,
    /// Packets that came before their turn and were kept.
    pub reordered: u64,
    /// Messages that came before a receive was posted for them.
    pub unexpected: u64,
    /// How often senders had to wait since too many unexpected messages were kept.
    pub back_pressure: u64,
    /// Peers that were excluded.
    pub excluded: u64,
    /// Packets that were dropped, for whatever reason.
    pub dropped: u64,
    /// Those of them that were no packets of the protocol.
    pub malformed: u64,
    /// Those of them that repeated a message id.
    pub old_message_ids: u64,
    /// Those of them that were of an earlier life of their sender.
    pub stale: u64,
    /// Packets that were taken although they carry no connid to check.
    pub unverified: u64,
    /// Injected messages that arrived: they have no completion.
    pub injected: u64,
    /// Reads of memory of this side by packets that were answered, and atomics that fetched. What the
    /// devices do alone is not told.
    pub remote_reads: u64,
    /// Writes to memory of this side that came in packets or told data, and atomics that didn't fetch.
    pub remote_writes: u64,
    /// Payload bytes copied into receive buffers of the application.
    pub delivered_bytes: u64,
    /// RDMA reads given to the device.
    pub rdma_reads: u64,
    /// RDMA writes given to the device.
    pub rdma_writes: u64,
    /// Requests of peers for memory of this side that they may not have.
    pub access_refused: u64,
    /// Bytes that RDMA operations moved.
    pub rdma_bytes: u64,
    /// Events that were lost because nobody took them.
    pub events_lost: u64,
}

impl Statistics {
    /// Counts a packet that the device took.
    #[inline]
    pub(crate) fn count_sent(&mut self, packet_type: PacketType, length: u32) {
        self.sent.count(packet_type);
        self.sent_bytes += u64::from(length);
        tracing::trace!(packet = %packet_type, length, "sent");
    }
}
