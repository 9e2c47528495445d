//! Posted receives and unexpected messages: what stands between the wire and the matcher.

use efa_match::{MessageId, Pattern, PostId, Source, TagMatcher};
use efa_proto::{OpId, Tag};
use hashbrown::HashMap;
use slab::Slab;

use crate::bounds::Unexpected;
use crate::hash::Keyed;
use crate::held::{Chain, Held};
use crate::peer::PeerId;
use crate::table::{Table, Vacancy};
use crate::taglist::Verdict;

/// A receive that waits for a message.
#[derive(Debug)]
pub(crate) struct Posted<B> {
    pub(crate) context: u64,
    pub(crate) buffer: B,
    /// Its entry in the matcher.
    pub(crate) post: PostId,
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
    /// Its entry in the matcher. `None`: it has its receive, which the device still holds.
    pub(crate) entry: Option<MessageId>,
    pub(crate) packets: Chain,
    /// Bytes of it that have not come, as far as its first packet tells.
    pub(crate) missing: u64,
}

/// A message of several packets whose first one has been seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assembly {
    /// It has a receive operation.
    Receiving(OpId),
    /// It is unexpected.
    Unexpected(u32),
}

/// More receives than there is memory for; places have 32 bits.
const MOST: usize = i32::MAX as usize;

/// Tagged and untagged messages never match each other (section 3.1), so each has a matcher.
#[derive(Debug)]
pub(crate) struct Matching<B> {
    /// Receives, whose places the matchers know them by: what a matcher gives out is taken from here.
    pub(crate) posted: Table<Posted<B>>,
    /// Most receives posted, and most messages being received.
    pub(crate) limit: usize,
    tagged: TagMatcher<u32, u32>,
    untagged: TagMatcher<u32, u32>,
    /// Whether the device matches tagged messages itself.
    pub(crate) has_tag_list: bool,
    /// Of the packet in hand, if it does.
    pub(crate) verdict: Verdict,
    pub(crate) messages: Slab<Message>,
    pub(crate) held: Held,
    pub(crate) unexpected: Unexpected,
    /// By peer and message id.
    pub(crate) assembling: HashMap<(u32, u32), Assembly, Keyed>,
}

impl<B> Matching<B> {
    pub(crate) fn new(limit: usize, tagged: TagMatcher<u32, u32>, seed: u64) -> Self {
        Self {
            posted: Table::new(),
            limit: limit.min(MOST),
            has_tag_list: matches!(tagged, TagMatcher::Offloaded(_)),
            tagged,
            untagged: TagMatcher::new(None, seed),
            verdict: Verdict::None,
            messages: Slab::new(),
            held: Held::default(),
            unexpected: Unexpected::default(),
            assembling: HashMap::with_capacity_and_hasher(64, Keyed(seed)),
        }
    }

    /// Posts a receive, if that is short work: no message waits, and nothing has to grow.
    #[inline(always)]
    pub(crate) fn post_at_once(
        &mut self,
        tagged: bool,
        pattern: &Pattern,
    ) -> Option<(PostId, Vacancy<'_, Posted<B>>)> {
        let matcher = if tagged { &mut self.tagged } else { &mut self.untagged };
        let place = self.posted.vacancy()?;
        let post = matcher.post_at_once(pattern, place.index())?;
        Some((post, place))
    }

    /// Takes the receive that a message goes to, if that is short work.
    #[inline(always)]
    pub(crate) fn match_at_once(&mut self, peer: PeerId, tag: Option<Tag>) -> Option<u32> {
        self.matcher(tag.is_some()).match_at_once(Source(peer.0), tag.unwrap_or(0))
    }

    /// The matcher for a kind of message.
    pub(crate) fn matcher(&mut self, tagged: bool) -> &mut TagMatcher<u32, u32> {
        if tagged { &mut self.tagged } else { &mut self.untagged }
    }
}

/// What a receive accepts.
pub(crate) fn pattern(source: Option<PeerId>, tag: u64, ignore: u64) -> Pattern {
    Pattern { source: source.map(|peer| Source(peer.0)), tag, ignore }
}
