//! Plain messages, for peers that receive them straight into their application's buffers (feature 7,
//! libfabric 1.22 to 2.5).
//!
//! ```text
//!   sender                                           receiver
//!     │◄──── HANDSHAKE (USER_RECV_QP: QPN and key) ─────│
//!     │══ the bytes of a message, without a header ════►│ that queue pair: the posted buffer
//!     │   (CQ data beside them, as immediate data)      │
//! ```
//!
//! There is no matching and no order; a message with a header would be dropped there.

use efa_device::QueuePair;
use efa_proto::{OpId, PacketType, Tag};

use crate::completion::{Level, OperationError, StartError};
use crate::core::Core;
use crate::ids::PeerId;
use crate::operations::Operations;
use crate::payload::Payload;
use crate::work::{Advance, InFlight, Purpose, SinglePacket};

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Whether messages to a peer must be plain.
    pub(crate) fn takes_plain(&self, peer: PeerId) -> bool {
        self.peers.active(peer).is_some_and(|active| active.user_queue.is_some())
    }

    /// The data beside a message, if the message can be plain.
    fn beside(&self, tag: Option<Tag>, cq_data: Option<u64>, length: u64) -> Option<Option<u32>> {
        let immediate = match cq_data {
            None => None,
            Some(data) => Some(u32::try_from(data).ok()?),
        };
        let fits = tag.is_none() && length <= self.transmit.mtu() as u64;
        fits.then_some(immediate)
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Sends a message without a header.
    #[cold]
    pub(crate) fn send_plain(&mut self, id: OpId) -> Advance {
        let Some(send) = self.sends.get(id) else { return Advance::Done };
        let beside = self.core.beside(send.tag, send.cq_data, send.length);
        let Some(immediate) = beside.filter(|_| send.level == Level::Transmit) else {
            let limit = self.core.transmit.mtu();
            self.fail_send(id, OperationError::PlainOnly { limit });
            return Advance::Done;
        };
        let Ok(mut packet) = self.core.transmit.packet() else { return Advance::Blocked };
        let Some((peer, message)) = self.take_single_packet(id) else {
            self.core.transmit.recycle(packet);
            return Advance::Done;
        };
        if let Some(buffer) = &message.buffer {
            buffer.read(0, &mut packet.as_mut()[..message.length as usize]);
        }
        self.post_written(packet, plain(peer, message, immediate));
        Advance::Done
    }

    /// Sends a short message without a header and without an operation.
    #[cold]
    pub(crate) fn inject_plain(
        &mut self,
        peer: PeerId,
        tag: Option<Tag>,
        cq_data: Option<u64>,
        bytes: &[u8],
    ) -> Result<(), StartError> {
        let limit = self.core.transmit.mtu();
        let beside = self.core.beside(tag, cq_data, bytes.len() as u64);
        let immediate = beside.ok_or(StartError::PlainOnly { limit })?;
        let busy = StartError::Busy { limit: self.core.config.max_sends };
        let mut packet = self.core.transmit.packet().map_err(|_| busy)?;
        packet.as_mut()[..bytes.len()].copy_from_slice(bytes);
        let message = SinglePacket { tag, context: 0, length: bytes.len() as u32, buffer: None };
        self.post_or_queue_up(packet, plain(peer, message, immediate));
        Ok(())
    }
}

/// A plain message counts as the one with a header that it stands for.
fn plain<B>(peer: PeerId, message: SinglePacket<B>, immediate: Option<u32>) -> InFlight<B> {
    let length = message.length;
    let purpose = Purpose::Plain { message, immediate };
    let packet_type = PacketType::EagerMsgRtm;
    InFlight { peer, purpose, packet_type, length, retransmitted: false }
}
