//! Tag matching by MPI's rules, and message reordering.
//!
//! Two parts that can be used alone, and one that combines matching in software and on a device:
//!
//! ```text
//!   packets of one peer,            messages of all peers,
//!   in any order                    in order of each peer
//!          │                               │
//!          ▼                               ▼
//!     ┌─────────┐  in msg_id order   ┌──────────┐  ◄── post(pattern, receive)
//!     │ Window  │ ─────────────────► │ Matcher  │
//!     └─────────┘                    └──────────┘  ──► (receive, message)
//!     one a peer                     one an endpoint
//! ```
//!
//! * [`Window`] restores the order in which a peer sent its messages, by their `msg_id` ([EFA RDM
//!   protocol v4][specification], section 3.2), over a network that keeps no order.
//! * [`Matcher`] matches messages with posted receives by MPI's rules: tags with ignored bits, one
//!   source or any, earliest first on both sides. A message without a receive is *unexpected*.
//! * [`Offload`] is a matcher that shares its receives with a device's tag list (RFC "RDMA tag
//!   matching offload" on the linux-rdma mailing list; [tag_matching.md] of rdma-core): it decides
//!   which receives the device holds, and keeps MPI's order across both. [`MatchList`] is
//!   the device's half, for models of such a device. [`TagMatcher`] is a [`Matcher`] or an
//!   [`Offload`], for an engine that serves devices with and without a tag list. [`Envelope`] packs
//!   MPI's communicator, rank and tag into one 64-bit tag.
//!
//! [specification]: https://github.com/ofiwg/libfabric/blob/main/prov/efa/docs/efa_rdm_protocol_v4.md
//! [tag_matching.md]: https://github.com/linux-rdma/rdma-core/blob/master/Documentation/tag_matching.md
//!
//! The crate knows no packets and no addresses. A receive is any value, such as a buffer, which the
//! matcher owns until it is matched; a message is a handle, a small `Copy` value such as an index. The
//! cost of an operation does not grow with the number of receives and messages that wait, whichever
//! tags a peer chooses.
//!
//! # Example
//!
//! ```
//! use efa_match::{Admit, Arrived, Match, Matcher, Pattern, Posted, Source, Window};
//!
//! let peer = Source(3);
//! let mut window = Window::new(16);
//! let mut matcher = Matcher::new();
//!
//! // A receive for tag 7 from any source, then one for the same tag from this peer.
//! let Posted::Waiting(_) = matcher.post(Pattern::any_source(7), "first") else { panic!() };
//! let Posted::Waiting(_) = matcher.post(Pattern::exact(peer, 7), "second") else { panic!() };
//!
//! // The second message arrives before the first: the window keeps it.
//! assert_eq!(window.admit(1, "b"), Admit::Kept);
//! let Admit::InOrder(message) = window.admit(0, "a") else { panic!() };
//! let found = matcher.arrive(peer, 7, message);
//! assert_eq!(found, Arrived::Matched(Match::Once("first")));
//! while let Some(message) = window.pop_ready() {
//!     let found = matcher.arrive(peer, 7, message);
//!     assert_eq!(found, Arrived::Matched(Match::Once("second")));
//! }
//!
//! // A third message has no receive; it goes to the next receive that accepts it.
//! let Arrived::Unexpected(_) = matcher.arrive(peer, 0x0107, "c") else { panic!() };
//! let low_byte = Pattern { source: None, tag: 7, ignore: !0xff };
//! assert_eq!(matcher.post(low_byte, "third"), Posted::Matched("third", "c"));
//! ```

#![forbid(unsafe_code)]

mod class;
mod envelope;
mod matcher;
mod offload;
mod posted;
mod queues;
mod slots;
mod tag_matcher;
mod unexpected;
mod window;

pub use envelope::{Envelope, EnvelopeError};
pub use matcher::{
    Arrived, Forgotten, Match, Matcher, MessageId, Pattern, PostId, Posted, Source, Vacancy,
};
pub use offload::{
    Cancelled, Change, Command, Entry, Handled, ListLimits, Location, MatchList, Offload, Outcome,
    Synchronisation, Violation,
};
pub use tag_matcher::TagMatcher;
pub use window::{Admit, Window};
