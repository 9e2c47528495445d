//! The user queue pair of an endpoint that receives in place: peers send messages without headers to it
//! (feature 7 of libfabric 1.22 to 2.5).
//!
//! ```text
//!   application ── packet ─► spare ─► posted ══ message, CQ data as immediate data ══► application
//!                              ▲                              │ no receive is posted
//!                              └──────────── packet ──────────┴──► a copy is an unexpected message
//! ```
//!
//! A packet is posted for each posted receive, so that senders get RNR (receiver not ready) without one.

use efa_device::{Completion as DeviceCompletion, DeviceError, QueuePair, Source, Time};
use efa_proto::{PacketType, UserRecvQp};

use crate::endpoint::Endpoint;
use crate::event::{DropReason, Event};
use crate::in_place::MessageInPlace;
use crate::payload::Payload;
use crate::storage::Pool;

/// The user queue pair.
#[derive(Debug)]
pub(crate) struct UserQueue<Q: QueuePair> {
    pub(crate) queue_pair: Q,
    /// Packets that the application gave and that are not posted.
    spare: Pool<Q::Packet>,
    posted: usize,
}

impl<Q: QueuePair> UserQueue<Q> {
    pub(crate) fn new(queue_pair: Q) -> Self {
        Self { queue_pair, spare: Pool::default(), posted: 0 }
    }

    /// Its address, as the HANDSHAKE announces it.
    pub(crate) fn address(&self) -> UserRecvQp {
        let address = self.queue_pair.address();
        UserRecvQp { qpn: address.qpn.0.into(), qkey: address.qkey.0 }
    }

    /// Whether no packet is posted.
    pub(crate) fn is_empty(&self) -> bool {
        self.posted == 0
    }

    /// Keeps a packet for the next receive.
    pub(crate) fn put(&mut self, packet: Q::Packet) {
        self.spare.put(packet);
    }

    /// A packet that isn't posted.
    pub(crate) fn packet(&mut self) -> Result<Q::Packet, DeviceError> {
        match self.spare.take() {
            Some(packet) => Ok(packet),
            None => self.queue_pair.allocate_packet(),
        }
    }

    /// Ends a period: frees packets that weren't needed in it.
    pub(crate) fn trim(&mut self) {
        self.spare.trim();
    }

    /// Posts packets until there is one for each of so many receives.
    fn refill(&mut self, receives: usize) -> Result<(), DeviceError> {
        let wanted = receives.min(self.queue_pair.attributes().max_receive);
        while self.posted < wanted {
            match self.post() {
                Ok(()) => self.posted += 1,
                Err(DeviceError::QueueFull { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn post(&mut self) -> Result<(), DeviceError> {
        let packet = self.packet()?;
        self.queue_pair.post_receive(packet).map_err(|refused| {
            self.spare.put(refused.packet);
            refused.error
        })
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    fn user_queue(&mut self) -> Option<&mut UserQueue<Q>> {
        self.in_place.as_deref_mut()?.user.as_mut()
    }

    /// Polls the user queue pair, if there is one, for at most `budget` messages.
    pub(crate) fn poll_user_queue(&mut self, now: Time, budget: usize) {
        for _ in 0..budget {
            let Some(user) = self.user_queue() else { return };
            match user.queue_pair.poll(now) {
                Some(DeviceCompletion::Receive { packet, length, source, immediate }) => {
                    user.posted -= 1;
                    self.plain_arrived(packet, length, source, immediate);
                }
                Some(DeviceCompletion::Unfilled { packet, status }) => {
                    user.posted -= 1;
                    user.put(packet);
                    self.receive_failed(status);
                }
                Some(_) => {}
                None => break,
            }
        }
        self.deliver_unexpected_in_place();
        self.refill_user_queue();
    }

    /// Handles a message without a header. The sender is known by its address handle and queue pair
    /// number only, not its incarnation: there is no connid to check.
    fn plain_arrived(
        &mut self,
        packet: Q::Packet,
        length: usize,
        source: Source,
        immediate: Option<u32>,
    ) {
        let core = self.core_mut();
        core.statistics.received_bytes += length as u64;
        let peer = core.peers.by_source(source);
        if peer.is_none() && core.refuses_strangers() {
            core.drop_packet_from(source, None, DropReason::Stranger);
            return self.put_user_packet(packet);
        }
        core.statistics.received.count(PacketType::EagerMsgRtm);
        core.statistics.unverified += 1;
        let cq_data = immediate.map(u64::from);
        let Some(in_place) = self.in_place.as_deref() else { return };
        if in_place.receives.is_empty() {
            // A message on the protocol's queue pair took the receive.
            let bytes = packet.as_ref().get(..length).unwrap_or_default();
            self.store_unexpected_in_place(peer, cq_data, Ok(bytes));
            return self.put_user_packet(packet);
        }
        let message = MessageInPlace { packet, begin: 0, length };
        self.received_in_place(peer, cq_data, Ok(message));
    }

    /// Keeps a packet of the user queue pair that has been read, for the next receive.
    fn put_user_packet(&mut self, packet: Q::Packet) {
        if let Some(user) = self.user_queue() {
            user.put(packet);
        }
    }

    /// Posts packets to the user queue pair, if there is one, one for each posted receive.
    pub(crate) fn refill_user_queue(&mut self) {
        let Some(in_place) = self.in_place.as_deref_mut() else { return };
        let receives = in_place.receives.len();
        let Some(user) = &mut in_place.user else { return };
        if let Err(error) = user.refill(receives) {
            self.core_mut().events.push(Event::DeviceRefused(error));
        }
    }
}
