//! Delivery complete (sections 4.2 and 2.1): the receiver confirms each message by a RECEIPT.
//!
//! ```text
//!   sender                                           receiver
//!     │── EAGER_RTW (no data, raw address) ────────────►│ only if no packet was sent before
//!     │◄──────────────── HANDSHAKE ─────────────────────│
//!     │── DC_EAGER_RTM (send_id) ──────────────────────►│ match, copy, complete
//!     │◄──────────────── RECEIPT (send_id) ─────────────│
//!   complete when the RECEIPT has arrived and the device has completed all packets
//! ```

use efa_device::QueuePair;
use efa_proto::{MsgId, OpId, PacketType, Receipt};

use crate::event::DropReason;
use crate::ids::PeerId;
use crate::operations::Operations;
use crate::payload::Payload;
use crate::work::{Advance, InFlight};

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    pub(crate) fn send_receipt(&mut self, peer: PeerId, send_id: OpId, msg_id: u32) -> Advance {
        let receipt = Receipt { send_id, msg_id: MsgId(msg_id), connid: self.core.packet_connid() };
        let record = |length| InFlight::control(peer, PacketType::Receipt, length);
        self.post_control(record, |packet| receipt.emit(packet))
    }

    /// Handles a RECEIPT. Its `msg_id` is ignored: some releases of libfabric leave it undefined for
    /// some operations.
    pub(crate) fn receipt_arrived(&mut self, peer: PeerId, receipt: &Receipt) {
        let send = self.sends.get_mut(receipt.send_id);
        let Some(send) = send.filter(|send| send.peer == peer && send.awaits_receipt()) else {
            return self.core.drop_packet(peer, DropReason::UnknownOperation);
        };
        send.confirmed = true;
        self.end_send_if_done(receipt.send_id);
    }
}
