//! Limits on what peers can make an endpoint keep.
//!
//! ```text
//!   packet of a peer ─┬─ msg_id ahead of the expected ─► ahead ──────── over: the peer is excluded
//!                     ├─ no receive posted ────────────► unexpected ─── of all peers: back-pressure (RNR)
//!                     │                                          └───── of one queue pair: excluded
//!                     ├─ asks for memory ──────────────► requests ───── over: dropped
//!                     ├─ needs a response ─────────────► responses ──── over: the peer is excluded
//!                     └─ from an unknown sender ─┬─────► discovered ─── over: dropped
//!                                                └─────► incarnations ─ over: dropped
//! ```
//!
//! The protocol can't tell a sender to slow down for messages of a few packets. Back-pressure is what
//! the device offers: an endpoint that keeps too many unexpected messages posts no receive buffers, and
//! the devices of all senders report that the receiver is not ready (RNR). No message is lost by that.
//! The other bounds are higher than anything a correct peer reaches.

/// Limits on what peers can make an endpoint keep. Bytes are those of kept packets with their headers
/// and of the entries that find them; the memory behind is up to twice as much.
///
/// All peers together can make an endpoint keep
/// `unexpected` + receive buffers · 2 MTU (those already posted when the bound is met)
/// + peers · (`ahead` + 2 · `requests` · 64 KiB + `responses` · 64 B).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bounds {
    /// Bytes of packets of one peer that are kept because their msg_id is ahead of the expected one.
    /// A peer beyond is excluded. Set it to at least what the peer's send queue holds.
    pub ahead: usize,
    /// Bytes of unexpected messages of all peers. Beyond, the endpoint posts no receive buffers until
    /// the application has received some of them: every sender waits, and so do the peers' answers to this endpoint.
    ///
    /// So an application that waits for other messages alone, or for an operation that needs an answer, waits for ever.
    /// [`Event::BackPressure`](crate::Event::BackPressure) tells it so. It goes on after it has received some of the
    /// unexpected messages, or [claimed](crate::Endpoint::claim) and [discarded](crate::Endpoint::discard) them. The endpoint
    /// doesn't choose: it can't know whether the application is only late, and then excluding a peer would lose
    /// messages. Give the bound the memory that all peers may send ahead together, or `usize::MAX` for none, as libfabric has
    /// none; each queue pair is still bounded by [`unexpected_per_peer`](Self::unexpected_per_peer).
    pub unexpected: usize,
    /// Bytes of unexpected messages beyond [`unexpected`](Self::unexpected), while an operation of this endpoint receives
    /// something in several packets: the rest of it may be behind them, and arrives only if they are kept. An application that
    /// receives no more before that operation is complete would wait for ever otherwise.
    pub behind: usize,
    /// Bytes of unexpected messages of one queue pair: those of the peer that has it now, and the complete
    /// ones that former incarnations left. Beyond, the oldest of these are dropped, each with an event. A
    /// peer whose own messages exceed it is excluded.
    ///
    /// So a restarted peer pays nothing for its former life, whose messages can be received as long as
    /// there is room for them. No queue pair can make all others wait as long as this is well below
    /// [`unexpected`](Self::unexpected).
    ///
    /// Of the MPI programs that were tried (HPCC, LAMMPS, NetPIPE, parts of ScaLAPACK, and patterns that leave
    /// much unreceived), none makes a receiver keep more than about a tenth of the default of one sender:
    /// docs/security.md#bounds.
    pub unexpected_per_peer: usize,
    /// Reads, writes and atomics of one peer under way on memory of this endpoint. Those beyond are
    /// dropped. The peer learns of it by PEER_ERROR alone, if both sides have that.
    ///
    /// As many messages of one peer that don't fit one packet may be arriving after they were
    /// [discarded](crate::Endpoint::discard), besides. Those beyond are dropped in the same way.
    pub requests: usize,
    /// Responses (RECEIPT, EOR, PEER_ERROR, …) queued for one peer. A peer beyond, which takes none
    /// of them, is excluded.
    pub responses: usize,
    /// Peers that became known by a packet, gone ones included: their connids tell stale packets from
    /// those of a new incarnation. Packets of senders beyond are dropped. Peers that the application
    /// inserts don't count. 0: packets of anyone but those are dropped
    /// ([`DropReason::Stranger`](crate::DropReason::Stranger)).
    pub discovered: usize,
    /// Incarnations of one queue pair that became known by a packet. Packets of further ones are dropped,
    /// unless the application inserts them. An endpoint that restarts each minute and gets the same
    /// queue pair number each time reaches the default after 45 days.
    pub incarnations: usize,
}

impl Bounds {
    /// These bounds with some changed:
    ///
    /// ```
    /// let bounds = efa_rdm::Bounds::default().with(|bounds| bounds.requests = 1024);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for Bounds {
    /// 128 MiB ahead of each peer; unexpected messages of 1 GiB in all, none behind that, and 512 MiB of each queue pair;
    /// 65,536 requests and as many responses of each peer; four million peers, 65,536 of each queue pair.
    fn default() -> Self {
        Self {
            ahead: 128 << 20,
            unexpected: 1 << 30,
            behind: 0,
            unexpected_per_peer: 512 << 20,
            requests: 1 << 16,
            responses: 1 << 16,
            discovered: 1 << 22,
            incarnations: 1 << 16,
        }
    }
}

/// Why a peer was excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Excess {
    /// Too many bytes of packets ahead of the expected msg_id.
    #[error("{bytes} bytes ahead of the expected message, at most {limit} are kept")]
    Ahead {
        /// How many bytes.
        bytes: usize,
        /// [`Bounds::ahead`].
        limit: usize,
    },
    /// Too many bytes of unexpected messages.
    #[error("{bytes} bytes of unexpected messages, at most {limit} are kept of a peer")]
    Unexpected {
        /// How many bytes.
        bytes: usize,
        /// [`Bounds::unexpected_per_peer`].
        limit: usize,
    },
    /// Too many responses that it doesn't take.
    #[error("{packets} responses are queued, at most {limit} are kept for a peer")]
    Responses {
        /// How many packets.
        packets: usize,
        /// [`Bounds::responses`].
        limit: usize,
    },
}

/// What unexpected messages take.
#[derive(Debug, Default)]
pub(crate) struct Unexpected {
    pub(crate) bytes: usize,
    /// Whether no receive buffers are posted because of them.
    pub(crate) back_pressure: bool,
}
