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
//! matcher, an `impl Core` no operation.

use efa_device::{QueuePair, QueuePairAddress, Time};
use efa_proto::{Connid, ReqOptions, UserRecvQp};

use crate::completion::StartError;
use crate::config::Config;
use crate::eager::options;
use crate::event::{DropReason, Event, Events};
use crate::payload::Payload;
use crate::peer::{PeerId, Peers, Standing};
use crate::peer_end::EndedPeer;
use crate::schedule::Schedule;
use crate::statistics::Statistics;
use crate::transmit::Transmit;

/// What every other part of an endpoint stands on.
#[derive(Debug)]
pub(crate) struct Core<Q: QueuePair, B> {
    pub(crate) config: Config,
    pub(crate) local: QueuePairAddress,
    pub(crate) transmit: Transmit<Q, B>,
    pub(crate) peers: Peers<Q::Packet, B>,
    pub(crate) schedule: Schedule<B>,
    pub(crate) events: Events,
    pub(crate) statistics: Statistics,
    /// Peers whose end is not settled.
    pub(crate) ended: Vec<EndedPeer<Q::Packet, B>>,
    /// Where peers are to send messages that are received in place, if not to this queue pair.
    pub(crate) user_recv_qp: Option<UserRecvQp>,
    pub(crate) now: Time,
}

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// How requests to a peer tell who sends them, and what they carry along.
    pub(crate) fn request_options(&self, peer: PeerId, cq_data: Option<u64>) -> ReqOptions {
        use efa_handshake::AddressHeader;
        let header = match self.peers.active(peer) {
            Some(active) => active.handshake.address_header(&self.config.profile),
            None => AddressHeader::Raw(self.config.profile.raw_address),
        };
        options(header, &self.local, cq_data)
    }

    pub(crate) fn connid(&self) -> Connid {
        Connid(self.local.qkey.0)
    }

    /// The connid for packets that always have a place for it.
    pub(crate) fn packet_connid(&self) -> Option<Connid> {
        self.config.profile.connid.then(|| self.connid())
    }

    pub(crate) fn check_peer(&self, peer: PeerId) -> Result<(), StartError> {
        match self.peers.standing(peer) {
            Standing::Live => Ok(()),
            Standing::Gone => Err(StartError::PeerGone(peer)),
            Standing::Unknown => Err(StartError::UnknownPeer(peer)),
        }
    }

    /// Counts and reports a packet that is dropped.
    pub(crate) fn drop_packet(&mut self, peer: Option<PeerId>, reason: DropReason) {
        self.statistics.dropped += 1;
        match reason {
            DropReason::Malformed(_) => self.statistics.malformed += 1,
            DropReason::OldMessageId => self.statistics.old_message_ids += 1,
            DropReason::Stale => self.statistics.stale += 1,
            _ => {}
        }
        self.events.push(Event::PacketDropped { peer, reason });
    }
}
