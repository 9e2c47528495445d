//! Plain messages, without a header, for peers with zero-copy receives on a user queue pair (feature 7,
//! libfabric 1.22 to 2.5).
//!
//! ```text
//!   sender                                           receiver
//!     │◄──── HANDSHAKE (USER_RECV_QP: QPN and key) ─────│
//!     │══ the bytes of a message, without a header ════►│ user queue pair: the posted buffer
//!     │   (CQ data as immediate data)                   │
//! ```
//!
//! There is no tag matching and no order. The user queue pair would receive a header as data.

use efa_device::QueuePair;
use efa_proto::{OpId, PacketType, Tag};

use crate::completion::{Level, OperationError, StartError};
use crate::core::Core;
use crate::ids::PeerId;
use crate::operations::Operations;
use crate::payload::Payload;
use crate::work::{Advance, InFlight, Purpose, SinglePacket};

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Whether a peer takes only plain messages.
    pub(crate) fn takes_plain(&self, peer: PeerId) -> bool {
        self.peers.active(peer).is_some_and(|active| active.user_queue.is_some())
    }

    /// The immediate data of a plain message. `None` if the message can't be plain: it has a tag, more
    /// than 32 bits of CQ data, or more bytes than the MTU.
    fn plain_immediate(
        &self,
        tag: Option<Tag>,
        cq_data: Option<u64>,
        length: u64,
    ) -> Option<Option<u32>> {
        let immediate = match cq_data {
            None => None,
            Some(data) => Some(u32::try_from(data).ok()?),
        };
        let fits = tag.is_none() && length <= self.transmit.mtu() as u64;
        fits.then_some(immediate)
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Sends a message as a plain message; fails it with `PlainOnly` if it can't be plain.
    #[cold]
    pub(crate) fn send_plain(&mut self, id: OpId) -> Advance {
        let Some(send) = self.sends.get(id) else { return Advance::Done };
        let immediate = self.core.plain_immediate(send.tag, send.cq_data, send.length);
        let Some(immediate) = immediate.filter(|_| send.level != Level::Delivery) else {
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

    /// Sends an injected message as a plain message. Fails with `PlainOnly` if it can't be plain.
    #[cold]
    pub(crate) fn inject_plain(
        &mut self,
        peer: PeerId,
        tag: Option<Tag>,
        cq_data: Option<u64>,
        bytes: &[u8],
    ) -> Result<(), StartError> {
        let limit = self.core.transmit.mtu();
        let immediate = self.core.plain_immediate(tag, cq_data, bytes.len() as u64);
        let immediate = immediate.ok_or(StartError::PlainOnly { limit })?;
        let busy = StartError::Busy { limit: self.core.config.max_sends };
        let mut packet = self.core.transmit.packet().map_err(|_| busy)?;
        packet.as_mut()[..bytes.len()].copy_from_slice(bytes);
        let message = SinglePacket { tag, context: 0, length: bytes.len() as u32, buffer: None };
        self.post_or_queue_up(packet, plain(peer, message, immediate));
        Ok(())
    }
}

/// The in-flight record of a plain message, which statistics count as an EAGER_MSGRTM.
fn plain<B>(peer: PeerId, message: SinglePacket<B>, immediate: Option<u32>) -> InFlight<B> {
    let length = message.length;
    let purpose = Purpose::Plain { message, immediate };
    let packet_type = PacketType::EagerMsgRtm;
    InFlight { peer, purpose, packet_type, length, retransmitted: false }
}
