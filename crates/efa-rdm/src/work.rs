//! What is to be sent, and what was sent for what.
//!
//! ```text
//!   Work ── the backlog of a peer ──► packet ── posted ──► InFlight, until the device gives it back
//! ```

use efa_proto::{OpId, PacketType};

use crate::ids::PeerId;

/// A message that is all in one packet. What its completion is to tell stays with the packet: there
/// is no operation.
#[derive(Debug)]
pub(crate) struct SinglePacket<B> {
    pub(crate) tag: Option<u64>,
    pub(crate) context: u64,
    pub(crate) length: u32,
    /// `None`: it was injected, and only a failure is told.
    pub(crate) buffer: Option<B>,
}

/// What a packet was sent for.
#[derive(Debug)]
pub(crate) enum Purpose<B> {
    /// A part of a send operation. The message id tells whether the operation of this name is still
    /// the same: a packet may be in flight for long after its operation failed, and names come
    /// again.
    Send { id: OpId, msg_id: u32 },
    /// A whole message.
    Message(SinglePacket<B>),
    /// A whole message for the peer's application, with data beside it.
    Plain { message: SinglePacket<B>, immediate: Option<u32> },
    /// An answer that ends or moves on an operation.
    Control,
    /// Our HANDSHAKE.
    Handshake,
}

impl<B> Purpose<B> {
    /// The message that it is all of.
    pub(crate) fn message(self) -> Option<SinglePacket<B>> {
        match self {
            Self::Message(message) | Self::Plain { message, .. } => Some(message),
            _ => None,
        }
    }

    /// Takes a message whose buffer is to be given back from its packet, which goes on without.
    pub(crate) fn abandon(&mut self) -> Option<SinglePacket<B>> {
        match self {
            Self::Message(message) | Self::Plain { message, .. } if message.buffer.is_some() => {
                core::mem::replace(self, Self::Control).message()
            }
            _ => None,
        }
    }
}

/// A packet that the device has, or had and gave back.
#[derive(Debug)]
pub(crate) struct InFlight<B> {
    pub(crate) peer: PeerId,
    pub(crate) purpose: Purpose<B>,
    pub(crate) packet_type: PacketType,
    pub(crate) length: u32,
    pub(crate) retransmitted: bool,
}

/// Something to be sent to a peer.
#[derive(Debug)]
pub(crate) enum Work<P, B> {
    /// The next packets of a send operation.
    Send(OpId),
    /// The beginning of a read of the peer's memory.
    Read(OpId),
    /// A grant for a receive operation.
    Cts(OpId),
    /// The next operations of a transfer.
    Transfer(OpId),
    /// A message lies in the buffer that it is for.
    Receipt { send_id: OpId, msg_id: u32 },
    /// A request that does nothing but bring the peer's HANDSHAKE.
    ElicitHandshake,
    /// The end of a read.
    Eor { send_id: OpId, recv_id: OpId },
    /// The sender of a message is asked not to have it read.
    ReadNack(OpId),
    /// A message is given up: what names it to the peer, and how.
    PeerError { op_id: OpId, ref_kind: u8, code: u32 },
    /// Our HANDSHAKE.
    Handshake,
    /// A packet that is written already.
    Packet { packet: P, record: InFlight<B> },
}

impl<P, B> Work<P, B> {
    /// Whether the peer waits for it, and nothing of this side bounds how much of it there is.
    pub(crate) fn is_response(&self) -> bool {
        match self {
            Self::Receipt { .. } | Self::Eor { .. } | Self::PeerError { .. } => true,
            Self::Packet { record, .. } => matches!(record.purpose, Purpose::Control),
            _ => false,
        }
    }
}

/// What became of something to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Advance {
    /// The device has all there is for now.
    Done,
    /// There is more, which goes on later to be fair to others.
    More,
    /// The device takes no more at present.
    Blocked,
    /// Its peer has ended.
    Stopped,
    /// A packet of it would be longer than the MTU.
    TooLong,
}

impl Advance {
    /// Whether the rest is to be sent later.
    pub(crate) fn goes_on(self) -> bool {
        matches!(self, Self::More | Self::Blocked)
    }
}

/// What a control packet is in flight for: nothing waits for its end.
impl<B> InFlight<B> {
    pub(crate) fn control(peer: PeerId, packet_type: PacketType, length: u32) -> Self {
        Self { peer, purpose: Purpose::Control, packet_type, length, retransmitted: false }
    }
}

/// Takes the messages whose buffers are to be given back from their packets, which go on without.
pub(crate) fn abandon<'a, B: 'a>(
    packets: impl Iterator<Item = &'a mut InFlight<B>>,
) -> Vec<(PeerId, SinglePacket<B>)> {
    packets.filter_map(|record| Some((record.peer, record.purpose.abandon()?))).collect()
}
