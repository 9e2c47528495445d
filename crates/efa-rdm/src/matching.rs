//! Posted receives and unexpected messages: what stands between the wire and the matcher.

use efa_device::{QueuePair, TagList};
use efa_match::{ListLimits, MessageId, Pattern, PostId, Source, TagMatcher, Vacancy};
use efa_proto::Tag;
use slab::Slab;

use crate::bounds::Unexpected;
use crate::held::{Chain, Held};
use crate::ids::PeerId;
use crate::operations::Operations;
use crate::payload::Payload;

/// A receive as it was posted.
#[derive(Debug)]
pub(crate) struct Posted<B> {
    pub(crate) context: u64,
    pub(crate) buffer: B,
    /// For the report of a cancelled receive.
    pub(crate) tag: u64,
}

impl<B> Posted<B> {
    /// It has its message.
    #[inline(always)]
    pub(crate) fn target(self, tagged: bool) -> Target<B> {
        let Self { context, buffer, .. } = self;
        Target { context, buffer, tagged }
    }
}

/// A receive that waits for a message. It is counted: [`Matching::begin_wait`], [`Matching::end_wait`].
#[derive(Debug)]
pub(crate) struct Waiting<B>(Posted<B>);

impl<B> Waiting<B> {
    /// Of a receive that goes on waiting.
    pub(crate) fn posted_mut(&mut self) -> &mut Posted<B> {
        &mut self.0
    }
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

/// More receives than there is memory for; the matchers' places have 32 bits.
const MOST: usize = i32::MAX as usize;

/// Tagged and untagged messages never match each other (section 3.1), so each has a matcher.
#[derive(Debug)]
pub(crate) struct Matching<Q: QueuePair, B> {
    pub(crate) ops: Operations<Q, B>,
    /// Most receives posted, and most messages being received.
    pub(crate) limit: usize,
    /// Receives that wait, those too which wait for the device to let go of them.
    pub(crate) waiting: usize,
    tagged: TagMatcher<Waiting<B>, u32>,
    untagged: TagMatcher<Waiting<B>, u32>,
    /// Whether the device matches tagged messages itself.
    pub(crate) has_tag_list: bool,
    /// Of the packet in hand, if it does.
    pub(crate) match_hint: MatchHint,
    pub(crate) messages: Slab<Message>,
    pub(crate) held: Held,
    pub(crate) unexpected: Unexpected,
}

impl<Q: QueuePair, B> Matching<Q, B> {
    pub(crate) fn new(ops: Operations<Q, B>, tagged: TagMatcher<Waiting<B>, u32>) -> Self {
        let (limit, seed) = (ops.core.config.max_receives, ops.core.config.hash_seed);
        Self {
            ops,
            limit: limit.min(MOST),
            waiting: 0,
            has_tag_list: matches!(tagged, TagMatcher::Offloaded(_)),
            tagged,
            untagged: TagMatcher::new(None, seed),
            match_hint: MatchHint::None,
            messages: Slab::new(),
            held: Held::default(),
            unexpected: Unexpected::default(),
        }
    }

    /// A receive goes to a matcher.
    pub(crate) fn begin_wait(&mut self, posted: Posted<B>) -> Waiting<B> {
        self.waiting += 1;
        Waiting(posted)
    }

    /// A receive has come from a matcher.
    #[inline(always)]
    pub(crate) fn end_wait(&mut self, waiting: Waiting<B>) -> Posted<B> {
        self.waiting -= 1;
        waiting.0
    }

    /// The place for a receive, if posting it is short work: no message waits, and nothing has to grow.
    #[inline(always)]
    pub(crate) fn vacancy(&mut self, tagged: bool, pattern: &Pattern) -> Option<Place<'_, B>> {
        let matcher = if tagged { &mut self.tagged } else { &mut self.untagged };
        Some(Place { vacancy: matcher.vacancy(pattern)?, waiting: &mut self.waiting })
    }

    /// Takes the receive that a message goes to, if that is short work.
    #[inline(always)]
    pub(crate) fn match_at_once(&mut self, peer: PeerId, tag: Option<Tag>) -> Option<Posted<B>> {
        let source = Source(peer.0);
        let waiting = match tag {
            Some(tag) => self.tagged.match_at_once(source, tag)?,
            None => self.untagged.match_at_once(source, 0)?,
        };
        Some(self.end_wait(waiting))
    }

    /// The matcher for a kind of message.
    pub(crate) fn matcher(&mut self, tagged: bool) -> &mut TagMatcher<Waiting<B>, u32> {
        if tagged { &mut self.tagged } else { &mut self.untagged }
    }
}

/// A place in a matcher.
#[derive(Debug)]
pub(crate) struct Place<'a, B> {
    vacancy: Vacancy<'a, Waiting<B>>,
    waiting: &'a mut usize,
}

impl<B> Place<'_, B> {
    #[inline(always)]
    pub(crate) fn fill(self, posted: Posted<B>) -> PostId {
        *self.waiting += 1;
        self.vacancy.fill(Waiting(posted))
    }
}

/// What a receive accepts.
pub(crate) fn pattern(source: Option<PeerId>, tag: u64, ignore: u64) -> Pattern {
    Pattern { source: source.map(|peer| Source(peer.0)), tag, ignore }
}

/// What the device says of the packet in hand, until the message that it begins has asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MatchHint {
    /// Nothing, or somebody has asked.
    #[default]
    None,
    /// It goes to this receive.
    Receive(PostId),
    /// It fits nothing in the list. The device has counted it, and so must we.
    Unexpected,
}

/// A matcher for a queue pair's tagged messages.
pub(crate) fn tagged_matcher<B>(
    queue_pair: &mut impl QueuePair,
    seed: u64,
) -> TagMatcher<Waiting<B>, u32> {
    let limits = queue_pair.tag_list().map(|list| list.limits());
    let limits = limits.map(|list| ListLimits { max_tags: list.max_tags, max_ops: list.max_ops });
    TagMatcher::new(limits, seed)
}

/// Whether a multi-receive buffer has too little room for another message.
pub(crate) fn is_used_up<R>(buffer: &impl Payload<R>, least: u64) -> bool {
    buffer.length() < least
}
