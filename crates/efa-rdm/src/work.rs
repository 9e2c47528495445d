//! Work: the packets and transfers to be posted for a peer; and the records of packets in flight.
//!
//! ```text
//!   Work ── the backlog of a peer ──► packet ── posted ──► InFlight, until the device completes it
//! ```

use efa_proto::{OpId, PacketType};

use crate::completion::OperationError;
use crate::ids::PeerId;

/// A single-packet message in flight. It has no [`Send`](crate::operations::Send): what its completion
/// needs is stored with the packet.
#[derive(Debug)]
pub(crate) struct SinglePacket<B> {
    pub(crate) tag: Option<u64>,
    pub(crate) context: u64,
    pub(crate) length: u32,
    /// `None` for an injected message, which gets a completion only if it fails.
    pub(crate) buffer: Option<B>,
}

/// What a packet was sent for, and what its completion affects.
#[derive(Debug)]
pub(crate) enum Purpose<B> {
    /// A packet of a send operation. The message ID is compared too: a packet may be in flight long
    /// after its operation failed, and operation identifiers are used again.
    Send { id: OpId, msg_id: u32 },
    /// A single-packet message.
    Message(SinglePacket<B>),
    /// A plain message, without a header, with CQ data as immediate data.
    Plain { message: SinglePacket<B>, immediate: Option<u32> },
    /// A control packet; its completion affects no operation.
    Control,
    /// Our HANDSHAKE.
    Handshake,
    /// A packet of a single-packet message that has failed or was cancelled.
    Abandoned,
}

impl<B> Purpose<B> {
    /// The single-packet message, if it is one.
    pub(crate) fn message(self) -> Option<SinglePacket<B>> {
        match self {
            Self::Message(message) | Self::Plain { message, .. } => Some(message),
            _ => None,
        }
    }

    /// Takes the single-packet message if it has a buffer to return. The packet stays in flight.
    pub(crate) fn abandon(&mut self) -> Option<SinglePacket<B>> {
        match self {
            Self::Message(message) | Self::Plain { message, .. } if message.buffer.is_some() => {
                core::mem::replace(self, Self::Abandoned).message()
            }
            _ => None,
        }
    }
}

/// A message that a single RDMA operation reads. It has no [`Receive`](crate::operations::Receive): what its completion needs
/// is stored with the RDMA operation.
#[derive(Debug)]
pub(crate) struct SingleRead<B> {
    pub(crate) peer: PeerId,
    pub(crate) msg_id: u32,
    pub(crate) context: u64,
    pub(crate) tag: Option<u64>,
    pub(crate) length: u64,
    /// The sender's identifier of the operation.
    pub(crate) send_id: OpId,
    /// `None` if the receive has been cancelled.
    pub(crate) buffer: Option<B>,
    /// Why the receive fails when the device is done, whatever that reports.
    pub(crate) failed: Option<OperationError>,
}

/// An RDMA operation of a transfer.
#[derive(Debug)]
pub(crate) struct TransferPart<R> {
    pub(crate) transfer: OpId,
    /// Offset in the operation's memory, in bytes.
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// The bounce region, if the operation's memory isn't registered.
    pub(crate) bounce: Option<R>,
}

/// The record of an RDMA operation in flight.
#[derive(Debug)]
pub(crate) enum RdmaFlight<R, B> {
    /// It is part of a transfer.
    Part(TransferPart<R>),
    /// It reads a whole message.
    Message(SingleRead<B>),
}

/// The record of a packet in flight, or of one that waits to be retransmitted.
#[derive(Debug)]
pub(crate) struct InFlight<B> {
    pub(crate) peer: PeerId,
    pub(crate) purpose: Purpose<B>,
    pub(crate) packet_type: PacketType,
    pub(crate) length: u32,
    pub(crate) retransmitted: bool,
}

impl<B> InFlight<B> {
    /// The record of a control packet.
    pub(crate) fn control(peer: PeerId, packet_type: PacketType, length: u32) -> Self {
        Self { peer, purpose: Purpose::Control, packet_type, length, retransmitted: false }
    }

    /// Whether the packet is in the order of messages to its peer: RTM and RTA are.
    pub(crate) const fn has_msg_id(&self) -> bool {
        use PacketType as P;
        let of_writes = matches!(
            self.packet_type,
            P::EagerRtw | P::DcEagerRtw | P::LongCtsRtw | P::DcLongCtsRtw | P::LongReadRtw
        );
        let of_reads = matches!(self.packet_type, P::ShortRtr | P::LongCtsRtr);
        self.packet_type.is_req() && !of_writes && !of_reads
    }
}

/// An item of a peer's backlog.
#[derive(Debug)]
pub(crate) enum Work<P, B> {
    /// The next packets of a send operation.
    Send(OpId),
    /// The start of a read of the peer's memory.
    Read(OpId),
    /// A CTS for a receive operation.
    Cts(OpId),
    /// The next RDMA operations of a transfer.
    Transfer(OpId),
    /// A RECEIPT for a delivered message.
    Receipt { send_id: OpId, msg_id: u32 },
    /// An empty request to elicit the peer's HANDSHAKE.
    ElicitHandshake,
    /// An EOR: this endpoint has finished reading a message or write.
    Eor { send_id: OpId, recv_id: OpId },
    /// A READ_NACK for a receive that can't be read.
    ReadNack(OpId),
    /// The refusal of a read, which waits for the peer's HANDSHAKE.
    RefuseReading { id: OpId, error: OperationError },
    /// A PEER_ERROR for an abandoned operation.
    PeerError { op_id: OpId, ref_kind: u8, code: u32 },
    /// Our HANDSHAKE.
    Handshake,
    /// A packet that has been written but not posted.
    Packet { packet: P, record: InFlight<B> },
}

impl<P, B> Work<P, B> {
    /// Whether it holds a written packet, and with it perhaps a buffer of the application.
    pub(crate) fn is_packet(&self) -> bool {
        matches!(self, Self::Packet { .. })
    }

    /// Whether it is a packet that failed with RNR.
    pub(crate) fn is_returned(&self) -> bool {
        matches!(self, Self::Packet { record, .. } if record.retransmitted)
    }

    /// Whether it is a response whose number no limit of this endpoint's operations bounds.
    pub(crate) fn is_response(&self) -> bool {
        match self {
            Self::Receipt { .. } | Self::Eor { .. } | Self::PeerError { .. } => true,
            Self::Packet { record, .. } => matches!(record.purpose, Purpose::Control),
            _ => false,
        }
    }
}

/// The result of handling a [`Work`] item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Advance {
    /// Nothing more is to be posted for now.
    Done,
    /// More is to be posted, after other peers had their turn.
    More,
    /// The device's queue is full.
    Blocked,
    /// A packet to this peer would [wait](efa_device::QueuePair::has_room) in the device's queue.
    Crowded,
    /// The peer has ended.
    Stopped,
    /// The packet would be longer than the MTU.
    TooLong,
    /// The memory was revoked that it should carry bytes of.
    Revoked,
}

impl Advance {
    /// Whether the item stays in the backlog.
    pub(crate) fn goes_on(self) -> bool {
        matches!(self, Self::More | Self::Blocked | Self::Crowded)
    }
}

/// Takes all single-packet messages with a buffer from these packets, which stay in flight.
pub(crate) fn abandon<'a, B: 'a>(
    packets: impl Iterator<Item = &'a mut InFlight<B>>,
) -> Vec<(PeerId, SinglePacket<B>)> {
    packets.filter_map(|record| Some((record.peer, record.purpose.abandon()?))).collect()
}
