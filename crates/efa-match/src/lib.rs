//! The order law of messages.
//!
//! Two parts, each of use alone, and one on top:
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
//! * [`Window`] puts the messages of a peer back in the order in which they were sent, by their
//!   `msg_id` (protocol v4, section 3.2), over a network that keeps no order.
//! * [`Matcher`] brings messages and posted receives together by MPI's rules: tags with ignored
//!   bits, one source or any, earliest first on both sides.
//! * [`Offload`] is a matcher that shares the work with a device's list of tags (RFC "RDMA tag
//!   matching offload"): it decides which receives the device holds, and keeps MPI's order across
//!   both. [`MatchList`] is the device's half, for models of such a device. [`TagMatcher`] is
//!   either, for an engine that serves devices with a list and without. [`Envelope`] puts what MPI
//!   matches by into such a tag.
//!
//! Neither knows packets or addresses. A receive is a value of the caller's choice, such as a buffer,
//! which the matcher keeps until it's matched; a message is a handle, a small `Copy` value such as an
//! index. Costs don't grow with the number of things that wait, and don't depend on which tags a peer
//! chooses.
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
//! // A receive for tag 7 from anybody, then one for the same tag from this peer.
//! let Posted::Waiting(_) = matcher.post(Pattern::any_source(7), "first") else { panic!() };
//! let Posted::Waiting(_) = matcher.post(Pattern::exact(peer, 7), "second") else { panic!() };
//!
//! // The second message overtakes the first: it waits in the window.
//! assert_eq!(window.admit(1, "b"), Admit::Kept);
//! let Admit::InOrder(message) = window.admit(0, "a") else { panic!() };
//! let found = matcher.arrive(peer, 7, message);
//! assert_eq!(found, Arrived::Matched(Match::Once("first")));
//! while let Some(message) = window.pop_ready() {
//!     let found = matcher.arrive(peer, 7, message);
//!     assert_eq!(found, Arrived::Matched(Match::Once("second")));
//! }
//!
//! // A third message finds no receive; the next receive that fits gets it.
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
