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
use efa_proto::UserRecvQp;

use crate::config::Config;
use crate::event::Events;
use crate::peer::Peers;
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
