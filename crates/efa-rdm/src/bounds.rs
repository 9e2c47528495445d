//! What peers may make this endpoint keep, and what happens at the bounds.
//!
//! ```text
//!   packet of a peer ─┬─ before its turn ────► early ──────── over: the peer is excluded
//!                     ├─ nobody waits for it ► unexpected ─── of all: the device says "not ready"
//!                     │                                └───── of one, if set: it is excluded
//!                     ├─ asks for memory ────► requests ───── over: dropped
//!                     ├─ is to be answered ──► owed ───────── over: the peer is excluded
//!                     └─ of nobody known ────► discovered ─── over: dropped
//! ```
//!
//! Nothing in the protocol tells a peer to send less of what fits in a few packets, and what the
//! device has delivered can't be given back. So a peer that keeps to the protocol loses nothing by
//! the bound on unexpected messages: the endpoint posts no more receive buffers, senders are told by
//! the device and wait. The other bounds are beyond what such a peer comes to.

/// What peers may make an endpoint keep. Bytes are those of kept packets with their headers, in
/// memory of up to twice their size, and of what it takes to find them again.
///
/// All peers together can make an endpoint keep
/// `unexpected` + receive buffers · 2 MTU (those already posted when the bound is met)
/// + peers · (`early` + `requests` · 64 KiB + `owed` · 64 B).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of the packets of one peer that came before their turn. At least as many as a peer's
    /// queue holds: it can't be farther ahead.
    pub early: usize,
    /// Bytes of the messages of all peers that no receive was posted for. Beyond, the endpoint posts
    /// no receive buffers until the application has received some: every sender waits.
    pub unexpected: usize,
    /// The same of one peer. Beyond, the peer is excluded: set it below
    /// [`unexpected`](Self::unexpected) where strangers can send, so that none of them keeps the
    /// others waiting.
    pub unexpected_per_peer: usize,
    /// Reads, writes and atomics of one peer on memory of this side under way. The protocol has no
    /// way to refuse those beyond: they are dropped.
    pub requests: usize,
    /// Receipts and other ends of operations that one peer is owed and doesn't take.
    pub owed: usize,
    /// Peers that are known because they wrote, gone ones included: what tells late packets of old
    /// lives from new ones. Those that the application inserts don't count.
    pub discovered: usize,
}

impl Default for Bounds {
    /// 128 MiB early of each, 1 GiB unexpected of all, 65,536 requests and as many answers of each,
    /// four million peers.
    fn default() -> Self {
        Self {
            early: 128 << 20,
            unexpected: 1 << 30,
            unexpected_per_peer: usize::MAX,
            requests: 1 << 16,
            owed: 1 << 16,
            discovered: 1 << 22,
        }
    }
}

/// Why a peer was excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Excess {
    /// Of its packets that came before their turn.
    #[error("{bytes} bytes came before their turn, at most {limit} are kept")]
    Early {
        /// How many bytes.
        bytes: usize,
        /// [`Bounds::early`].
        limit: usize,
    },
    /// Of messages that no receive was posted for.
    #[error("{bytes} bytes of unexpected messages, at most {limit} are kept of a peer")]
    Unexpected {
        /// How many bytes.
        bytes: usize,
        /// [`Bounds::unexpected_per_peer`].
        limit: usize,
    },
    /// Of packets that it is owed and doesn't take.
    #[error("{packets} packets are owed, at most {limit} are kept for a peer")]
    Owed {
        /// How many packets.
        packets: usize,
        /// [`Bounds::owed`].
        limit: usize,
    },
}

/// Bytes that are kept of unexpected messages.
#[derive(Debug, Default)]
pub(crate) struct Unexpected {
    pub(crate) bytes: usize,
    /// Whether senders are kept waiting.
    pub(crate) back_pressure: bool,
}
