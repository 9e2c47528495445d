//! The bottom of an endpoint: what posts packets, queues what waits, and counts.
//!
//! ```text
//!   Endpoint      what the application calls, what comes in, the loop
//!     Matching    posted receives, unexpected messages, packets kept for later
//!       Operations  sends, receives and transfers under way: the subprotocols
//!         Core      peers, packets on their way out, what is due, events, counts
//! ```
//!
//! Each part owns the one below it and knows nothing of those above: an `impl Operations` can't touch the
//! matcher, an `impl Core` finds no operation.

use core::time::Duration;
use std::sync::Arc;

use efa_device::{DeviceError, Gid, QueuePair, QueuePairAddress, Source, Time};
use efa_handshake::{AddressHeader, Extras, Support};
use efa_proto::{Connid, RawAddress, ReqOptions, UserRecvQp};

use crate::bounds::Excess;
use crate::completion::{OperationError, StartError};
use crate::config::{Config, MinRead};
use crate::event::{DropReason, Event, Events, Origin};
use crate::ids::PeerId;
use crate::memory::KeyedRegions;
use crate::payload::Payload;
use crate::peer::{Active, Begun, PeerStatus, Peers};
use crate::schedule::Schedule;
use crate::statistics::Statistics;
use crate::transmit::Transmit;
use crate::work::Work;

/// What every other part of an endpoint stands on.
#[derive(Debug)]
pub(crate) struct Core<Q: QueuePair, B> {
    pub(crate) config: Config,
    pub(crate) min_read: MinRead,
    pub(crate) local: QueuePairAddress,
    pub(crate) transmit: Transmit<Q, B>,
    pub(crate) peers: Peers<Q::Packet, B>,
    pub(crate) schedule: Schedule<B>,
    pub(crate) events: Events,
    pub(crate) statistics: Statistics,
    /// Peers whose end is not settled.
    pub(crate) ended: Vec<EndedPeer>,
    /// Where peers are to send messages that are received in place, if not to this queue pair.
    pub(crate) user_recv_qp: Option<UserRecvQp>,
    pub(crate) now: Time,
    /// The last error of the device for want of something, until an operation could begin after it.
    pub(crate) lack: Option<Box<DeviceError>>,
    /// Local memory that peers access, if the application chose its keys.
    pub(crate) keyed: Option<Arc<dyn KeyedRegions<Q::Region>>>,
}

/// How long nothing is sent to a peer after the device lacked something for that.
const LACK_PAUSE: Duration = Duration::from_millis(10);

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// The header options of requests to a peer: address or connid, and CQ data.
    pub(crate) fn request_options(&self, peer: PeerId, cq_data: Option<u64>) -> ReqOptions {
        let header = match self.peers.active(peer) {
            Some(active) => active.handshake.address_header(&self.config.profile),
            None => AddressHeader::Raw(self.config.profile.raw_address),
        };
        options(header, &self.local, cq_data)
    }

    /// Whether a peer and this endpoint both announce a feature.
    pub(crate) fn both_announce(&self, peer: PeerId, feature: Extras) -> bool {
        let support = |active: &Active<_, _>| active.handshake.supports(feature);
        self.config.profile.extras.contains(feature)
            && self.peers.active(peer).is_some_and(|active| support(active) == Support::Yes)
    }

    pub(crate) fn connid(&self) -> Connid {
        Connid(self.local.qkey.0)
    }

    /// The connid for packets that always have a place for it.
    pub(crate) fn packet_connid(&self) -> Option<Connid> {
        self.config.profile.connid.then(|| self.connid())
    }

    /// Fails if an operation with this peer can't begin. Before the first one, and after the device lacked
    /// something to send to the peer, the device prepares for it.
    pub(crate) fn check_peer(&mut self, peer: PeerId) -> Result<(), StartError> {
        match self.peers.status_of(peer) {
            PeerStatus::Live => {}
            PeerStatus::Gone => return Err(StartError::PeerGone(peer)),
            PeerStatus::Unknown => return Err(StartError::UnknownPeer(peer)),
        }
        match self.peers.active(peer) {
            Some(active) if !active.lacking => Ok(()),
            _ => self.prepare(peer),
        }
    }

    #[cold]
    fn prepare(&mut self, peer: PeerId) -> Result<(), StartError> {
        let prepared = self.transmit.device.prepare(self.peers.destination(peer));
        if let Err(error) = prepared
            && let Some(shortage) = error.shortage()
        {
            self.report_lack(error);
            return Err(StartError::Lacking(shortage));
        }
        // Any other error is that of the first packet.
        self.lack = None;
        if let Some(active) = self.peers.active_mut(peer) {
            active.lacking = false;
        }
        Ok(())
    }

    /// Sends nothing to a peer for a while, as the device lacks something for that.
    #[cold]
    pub(crate) fn lack(&mut self, peer: PeerId, error: DeviceError) {
        self.report_lack(error);
        let active = self.peers.activate(peer, &self.config);
        active.lacking = true;
        if !active.backoff.is_waiting() {
            let until = active.backoff.pause(self.now, LACK_PAUSE);
            self.schedule.back_off_until(peer, until);
        }
    }

    /// What receives end with for which no message will come any more.
    pub(crate) fn end_of_receives(&self) -> OperationError {
        self.peers.closed.map_or(OperationError::ConnectionEnded, OperationError::Device)
    }

    /// Reports an error, unless it is the one reported last: the same call is tried again and again.
    fn report_lack(&mut self, error: DeviceError) {
        if self.lack.as_deref() != Some(&error) {
            self.events.push(Event::DeviceRefused(error.clone()));
            self.lack = Some(Box::new(error));
        }
    }

    /// Counts and reports a packet of a peer that is dropped.
    pub(crate) fn drop_packet(&mut self, peer: PeerId, reason: DropReason) {
        self.count_dropped(&reason);
        self.events.push(Event::PacketDropped { origin: Origin::Peer(peer), reason });
    }

    /// The same of a packet of somebody who may be no known peer.
    pub(crate) fn drop_packet_from(
        &mut self,
        source: Source,
        peer: Option<PeerId>,
        reason: DropReason,
    ) {
        self.count_dropped(&reason);
        let unknown = || Origin::Unknown { gid: self.interface_of(source), qpn: source.qpn };
        let origin = peer.map_or_else(unknown, Origin::Peer);
        self.events.push(Event::PacketDropped { origin, reason });
    }

    /// The interface of a sender, if the device knows it. It does, unless the handle of the interface has been destroyed
    /// since the packet arrived. (If another interface has got its number since, it is that one.)
    pub(crate) fn interface_of(&self, source: Source) -> Option<Gid> {
        let by_handle =
            source.address_handle.and_then(|handle| self.transmit.device.gid_of(handle));
        by_handle.or(source.gid)
    }

    fn count_dropped(&mut self, reason: &DropReason) {
        self.statistics.dropped += 1;
        match reason {
            DropReason::Malformed(_) => self.statistics.malformed += 1,
            DropReason::OldMessageId => self.statistics.old_message_ids += 1,
            DropReason::Stale => self.statistics.stale += 1,
            _ => {}
        }
    }

    /// Puts the end of an operation at the end of what a peer is to be sent.
    pub(crate) fn queue_response(&mut self, peer: PeerId, work: Work<Q::Packet, B>) {
        self.enqueue(peer, work);
        let limit = self.config.bounds.responses;
        let Some(active) = self.peers.active(peer) else { return };
        // What this side began waits there as well, and is bounded by itself.
        let packets = active.backlog.responses();
        if packets > limit {
            self.exclude(peer, Excess::Responses { packets, limit });
        }
    }

    /// The slot of the state of a peer that is live, or whose end is not settled.
    #[inline]
    pub(crate) fn unsettled_slot(&self, peer: PeerId) -> Option<u32> {
        let ended = || self.ended.iter().find(|ended| ended.peer == peer).map(|ended| ended.slot);
        self.peers.slot(peer).or_else(ended)
    }

    /// The list of a peer's operations: the slot of its state, which is made if there is none.
    #[inline(always)]
    pub(crate) fn operations_of(&mut self, peer: PeerId) -> Option<u32> {
        match self.peers.slot(peer) {
            Some(slot) => Some(slot),
            None => self.operations_of_idle(peer),
        }
    }

    #[cold]
    #[inline(never)]
    fn operations_of_idle(&mut self, peer: PeerId) -> Option<u32> {
        if self.peers.status_of(peer) == PeerStatus::Live {
            self.peers.activate(peer, &self.config);
        }
        self.unsettled_slot(peer)
    }

    /// Counts and reports a message of a former incarnation that is dropped to keep a bound.
    pub(crate) fn left_message_dropped(&mut self, peer: PeerId, msg_id: u32) {
        self.statistics.left_dropped += 1;
        let limit = self.config.bounds.unexpected_per_peer;
        self.events.push(Event::LeftMessageDropped { peer, msg_id, limit });
    }

    /// Whether a peer may begin another of these.
    pub(crate) fn may_begin(&self, peer: PeerId, what: Begun) -> bool {
        let under_way = self.peers.active(peer).map(|active| active.under_way[what as usize]);
        under_way.is_some_and(|count| (count as usize) < self.config.bounds.requests)
    }

    /// Counts one that a peer has begun.
    pub(crate) fn count_begun(&mut self, peer: PeerId, what: Begun) {
        if let Some(active) = self.peers.active_mut(peer) {
            active.under_way[what as usize] += 1;
        }
    }

    /// Counts one that has ended.
    pub(crate) fn count_ended(&mut self, peer: PeerId, what: Begun) {
        if let Some(active) = self.peers.active_mut(peer) {
            active.under_way[what as usize] -= 1;
        }
    }
}

/// A queue pair's address as packets have it.
pub(crate) fn raw_address(own: &QueuePairAddress) -> RawAddress {
    RawAddress { gid: own.gid.0, qpn: own.qpn.0, connid: Connid(own.qkey.0) }
}

/// The header options of a request whose sender is identified in this way.
pub(crate) fn options(
    header: AddressHeader,
    own: &QueuePairAddress,
    cq_data: Option<u64>,
) -> ReqOptions {
    let connid = Connid(own.qkey.0);
    match header {
        AddressHeader::Raw(form) => {
            ReqOptions { raw_address: Some((raw_address(own), form)), cq_data, connid: None }
        }
        AddressHeader::Connid => ReqOptions { raw_address: None, cq_data, connid: Some(connid) },
        AddressHeader::Absent => ReqOptions { raw_address: None, cq_data, connid: None },
    }
}

/// A peer that is gone, and the slot of its state, which stays until the end is settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedPeer {
    pub(crate) peer: PeerId,
    pub(crate) slot: u32,
    /// What its operations fail with.
    pub(crate) error: OperationError,
}
