//! Posted receives and unexpected messages: what stands between the wire and the matcher.

use efa_match::{Matcher, MessageId, Pattern, PostId, Source};
use efa_proto::OpId;
use hashbrown::HashMap;
use slab::Slab;

use crate::hash::Keyed;
use crate::held::{Chain, Held};
use crate::operation::OperationTable;
use crate::peer::PeerId;

/// A receive that waits for a message.
#[derive(Debug)]
pub(crate) struct Posted<B> {
    pub(crate) context: u64,
    pub(crate) buffer: B,
    /// Its entry in the matcher.
    pub(crate) post: Option<PostId>,
    pub(crate) tagged: bool,
    /// For the report of a cancelled receive.
    pub(crate) tag: u64,
}

/// Where a message goes.
#[derive(Debug)]
pub(crate) struct Target<B> {
    pub(crate) context: u64,
    pub(crate) buffer: B,
    pub(crate) tagged: bool,
}

/// A message that nobody waited for.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) peer: PeerId,
    pub(crate) msg_id: u32,
    pub(crate) tagged: bool,
    /// Its entry in the matcher.
    pub(crate) entry: MessageId,
    pub(crate) packets: Chain,
}

/// A message of several packets whose first one has been seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assembly {
    /// It has a receive operation.
    Receiving(OpId),
    /// It is unexpected.
    Unexpected(u32),
}

/// Tagged and untagged messages never match each other (section 3.1), so each has a matcher.
#[derive(Debug)]
pub(crate) struct Matching<B> {
    pub(crate) posted: OperationTable<Posted<B>>,
    tagged: Matcher<OpId, u32>,
    untagged: Matcher<OpId, u32>,
    pub(crate) messages: Slab<Message>,
    pub(crate) held: Held,
    /// By peer and message id.
    pub(crate) assembling: HashMap<(u32, u32), Assembly, Keyed>,
}

impl<B> Matching<B> {
    pub(crate) fn new(limit: usize, seed: u64) -> Self {
        Self {
            posted: OperationTable::new(limit),
            tagged: Matcher::with_seed(seed),
            untagged: Matcher::with_seed(seed),
            messages: Slab::new(),
            held: Held::default(),
            assembling: HashMap::with_capacity_and_hasher(64, Keyed(seed)),
        }
    }

    /// The matcher for a kind of message.
    pub(crate) fn matcher(&mut self, tagged: bool) -> &mut Matcher<OpId, u32> {
        if tagged { &mut self.tagged } else { &mut self.untagged }
    }
}

/// What a receive accepts.
pub(crate) fn pattern(source: Option<PeerId>, tag: u64, ignore: u64) -> Pattern {
    Pattern { source: source.map(|peer| Source(peer.0)), tag, ignore }
}
