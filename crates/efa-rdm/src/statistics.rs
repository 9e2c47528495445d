//! The counters of an endpoint.

use core::fmt;

use efa_proto::PacketType;

/// One more than the highest number of a packet type.
const TYPES: usize = PacketType::ALL[PacketType::ALL.len() - 1].as_u8() as usize + 1;

/// A count for each packet type.
#[derive(Clone, PartialEq, Eq)]
pub struct PacketCounts([u64; TYPES]);

impl Default for PacketCounts {
    fn default() -> Self {
        Self([0; TYPES])
    }
}

impl PacketCounts {
    #[inline]
    pub(crate) fn count(&mut self, packet_type: PacketType) {
        self.0[usize::from(packet_type.as_u8())] += 1;
    }

    /// Counts a packet that was parsed from these bytes.
    #[inline]
    pub(crate) fn count_type_of(&mut self, bytes: &[u8]) {
        if let Some(count) = bytes.first().and_then(|first| self.0.get_mut(usize::from(*first))) {
            *count += 1;
        }
    }

    /// The number of packets of one type.
    #[must_use]
    pub fn of(&self, packet_type: PacketType) -> u64 {
        self.0[usize::from(packet_type.as_u8())]
    }

    /// The types with a nonzero count, and their counts.
    pub fn iter(&self) -> impl Iterator<Item = (PacketType, u64)> + '_ {
        PacketType::ALL
            .iter()
            .map(|packet_type| (*packet_type, self.of(*packet_type)))
            .filter(|(_, count)| *count > 0)
    }

    /// The number of packets of all types.
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

/// Counts since the endpoint was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Packets posted to the device, without retransmissions.
    pub sent: PacketCounts,
    /// Well-formed packets received from known peers.
    pub received: PacketCounts,
    /// Bytes of packets posted to the device, headers included, without retransmissions.
    pub sent_bytes: u64,
    /// Bytes of all packets received, headers included.
    pub received_bytes: u64,
    /// Packets, and RDMA writes with immediate data, that the device completed with RNR (receiver not ready), and that
    /// are tried again.
    pub receiver_not_ready: u64,
    /// Of these, what was posted again.
    pub retransmitted: u64,
    /// Pauses of the send window for peers that may be of a release of libfabric before 2.0.
    pub pauses: u64,
    /// Packets that the device failed for good.
    pub send_errors: u64,
    /// Out-of-order packets that were stored.
    pub reordered: u64,
    /// Messages that arrived before a receive was posted for them.
    pub unexpected: u64,
    /// How often back-pressure began: receive buffers weren't reposted because the memory limit of
    /// unexpected messages was reached.
    pub back_pressure: u64,
    /// Peers that were excluded.
    pub excluded: u64,
    /// Messages of former incarnations that were dropped because their queue pair exceeded its bound.
    pub left_dropped: u64,
    /// Packets that were dropped, for any reason; those below are among them.
    pub dropped: u64,
    /// Dropped packets that weren't of the protocol.
    pub malformed: u64,
    /// Dropped packets that repeated a message ID.
    pub old_message_ids: u64,
    /// Dropped packets of an earlier incarnation of their sender.
    pub stale: u64,
    /// Packets that were handled, not dropped, although they carry no connid to check.
    pub unverified: u64,
    /// Injected messages that were delivered; they have no completion.
    pub injected: u64,
    /// Peers' reads of local memory that were done by packets, and peers' fetching atomics. RDMA reads
    /// by a peer's device aren't seen here.
    pub remote_reads: u64,
    /// Peers' writes to local memory that came in packets or with CQ data, and peers' atomics that
    /// don't fetch.
    pub remote_writes: u64,
    /// Payload bytes delivered to receives and RMA reads of the application.
    pub delivered_bytes: u64,
    /// Of these, bytes of packets that were copied from the device's own memory to the buffer of their receive at once
    /// ([`QueuePair::take_rest`](efa_device::QueuePair::take_rest)).
    pub placed_bytes: u64,
    /// RDMA reads posted to the device.
    pub rdma_reads: u64,
    /// RDMA writes posted to the device, without repetitions after an RNR.
    pub rdma_writes: u64,
    /// Peers' requests whose access to local memory was refused.
    pub access_refused: u64,
    /// Bytes that RDMA operations of this endpoint transferred.
    pub rdma_bytes: u64,
    /// Events that were dropped because the event queue was full.
    pub events_lost: u64,
}

impl Statistics {
    /// Counts a packet that the device took.
    #[inline]
    pub(crate) fn count_sent(&mut self, packet_type: PacketType, length: u32) {
        self.sent.count(packet_type);
        self.sent_bytes += u64::from(length);
    }
}
