//! Posted receives and unexpected messages: the matchers, and what they find by.

use efa_device::{QueuePair, TagList};
use efa_match::{ListLimits, MessageId, Pattern, PostId, Source, TagMatcher, Vacancy};
use efa_proto::Tag;

use crate::bounds::Unexpected;
use crate::event::Event;
use crate::held::{Chain, Held};
use crate::ids::{PeerId, ReceiveId};
use crate::lists::Lists;
use crate::operations::Operations;
use crate::payload::Payload;
use crate::shared_receives::ReceiveSource;
use crate::unexpected::UnexpectedMessages;

/// A receive as it was posted.
#[derive(Debug)]
pub(crate) struct Posted<B> {
    pub(crate) context: u64,
    pub(crate) buffer: B,
    /// For the completion of a cancelled receive.
    pub(crate) tag: u64,
}

impl<B> Posted<B> {
    /// The target of the message that matched.
    #[inline(always)]
    pub(crate) fn target(self, tagged: bool) -> Target<B> {
        let Self { context, buffer, .. } = self;
        Target { context, buffer, tagged }
    }
}

/// A posted receive in a matcher, counted by [`Matching::begin_wait`] and [`Matching::end_wait`].
#[derive(Debug)]
pub(crate) struct Waiting<B>(Posted<B>);

impl<B> Waiting<B> {
    /// The context that it was posted with.
    pub(crate) fn context(&self) -> u64 {
        self.0.context
    }

    /// The receive, which stays posted.
    pub(crate) fn posted_mut(&mut self) -> &mut Posted<B> {
        &mut self.0
    }
}

/// The buffer that a message goes to.
#[derive(Debug)]
pub(crate) struct Target<B> {
    pub(crate) context: u64,
    pub(crate) buffer: B,
    pub(crate) tagged: bool,
}

/// An unexpected message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) peer: PeerId,
    pub(crate) msg_id: u32,
    pub(crate) tagged: bool,
    pub(crate) held_for: HeldFor,
    pub(crate) packets: Chain,
    /// Bytes that have not arrived, by the length in its first packet.
    pub(crate) missing: u64,
}

/// Who gets an unexpected message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldFor {
    /// Any receive that accepts it: its entry in the matcher.
    Anyone(MessageId),
    /// The receive that has matched it, which the device still has in its tag list.
    Matched,
    /// The application, by the claim with this number.
    Claim(u64),
    /// Any receive of the endpoint's queue that accepts it: its entry there, and the lower bits of its number.
    Queue(MessageId, u32),
}

/// Most receives: the matchers' indices have 32 bits.
const MOST: usize = i32::MAX as usize;

/// The matchers. Tagged and untagged messages never match each other (section 3.1), so each kind
/// has one.
#[derive(Debug)]
pub(crate) struct Matching<Q: QueuePair, B> {
    pub(crate) ops: Operations<Q, B>,
    /// Most receives posted, and most messages being received.
    pub(crate) limit: usize,
    /// Receives in the matchers, including those that wait for the device to give them back.
    pub(crate) waiting: usize,
    tagged: TagMatcher<Waiting<B>, u32>,
    untagged: TagMatcher<Waiting<B>, u32>,
    /// Whether the device has a tag list.
    pub(crate) has_tag_list: bool,
    /// The tag list's report about the packet that is being handled.
    pub(crate) match_hint: MatchHint,
    pub(crate) messages: UnexpectedMessages<Message>,
    /// By the slot of their sender's state: messages of which the first packet didn't carry everything.
    pub(crate) partial: Lists,
    pub(crate) held: Held,
    pub(crate) unexpected: Unexpected,
    /// Number of claims so far; with a queue, also of messages that arrived.
    pub(crate) claims: u64,
    /// The queue that messages take their receives from, if that isn't the matchers.
    pub(crate) queue: Option<Box<dyn ReceiveSource<B>>>,
}

const _: () = assert!(size_of::<HeldFor>() <= 16, "each unexpected message has one");

impl<Q: QueuePair, B> Matching<Q, B> {
    pub(crate) fn new(ops: Operations<Q, B>, tagged: TagMatcher<Waiting<B>, u32>) -> Self {
        let (limit, seed) = (ops.core.config.max_receives, ops.core.config.hash_seed.0);
        Self {
            ops,
            limit: limit.min(MOST),
            waiting: 0,
            has_tag_list: matches!(tagged, TagMatcher::Offloaded(_)),
            tagged,
            untagged: TagMatcher::new(None, seed),
            match_hint: MatchHint::None,
            messages: UnexpectedMessages::default(),
            partial: Lists::default(),
            held: Held::default(),
            unexpected: Unexpected::default(),
            claims: 0,
            queue: None,
        }
    }

    /// Counts a receive that goes into a matcher.
    pub(crate) fn begin_wait(&mut self, posted: Posted<B>) -> Waiting<B> {
        self.waiting += 1;
        Waiting(posted)
    }

    /// Counts a receive that left a matcher.
    #[inline(always)]
    pub(crate) fn end_wait(&mut self, waiting: Waiting<B>) -> Posted<B> {
        self.waiting -= 1;
        waiting.0
    }

    /// A vacancy for a receive, if no unexpected message can match and no table has to grow.
    #[inline(always)]
    pub(crate) fn vacancy(
        &mut self,
        tagged: bool,
        pattern: &Pattern,
    ) -> Option<ReceiveVacancy<'_, B>> {
        let matcher = if tagged { &mut self.tagged } else { &mut self.untagged };
        let vacancy = matcher.vacancy(pattern)?;
        Some(ReceiveVacancy { vacancy, waiting: &mut self.waiting, tagged, tag: pattern.tag })
    }

    /// Takes the receive that a message matches, if a short search finds it.
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

/// A vacancy for a receive that waits for its message; see [`Endpoint::vacancy`](crate::Endpoint::vacancy).
#[derive(Debug)]
#[must_use = "nothing is posted until it is filled"]
pub struct ReceiveVacancy<'a, B> {
    vacancy: Vacancy<'a, Waiting<B>>,
    waiting: &'a mut usize,
    tagged: bool,
    tag: u64,
}

impl<B> ReceiveVacancy<'_, B> {
    /// Posts the receive.
    #[inline(always)]
    pub fn fill(self, buffer: B, context: u64) -> ReceiveId {
        let tag = self.tag;
        self.fill_with(Posted { context, buffer, tag })
    }

    #[inline(always)]
    pub(crate) fn fill_with(self, posted: Posted<B>) -> ReceiveId {
        *self.waiting += 1;
        let post = self.vacancy.fill(Waiting(posted));
        ReceiveId { post, tagged: self.tagged }
    }
}

/// What a receive accepts.
pub(crate) fn pattern(source: Option<PeerId>, tag: u64, ignore: u64) -> Pattern {
    Pattern { source: source.map(|peer| Source(peer.0)), tag, ignore }
}

/// What the device's tag list reported about the packet that is being handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MatchHint {
    /// Nothing, or the report has been used.
    #[default]
    None,
    /// It matched this receive.
    Receive(PostId),
    /// It matched nothing. The device has counted it, and the matcher must too.
    Unexpected,
}

/// The matcher of tagged messages, which works with the device's tag list if there is one.
pub(crate) fn tagged_matcher<B>(
    queue_pair: &mut impl QueuePair,
    seed: u64,
) -> TagMatcher<Waiting<B>, u32> {
    let limits = queue_pair.tag_list().map(|list| list.limits());
    let limits = limits.map(|list| ListLimits { max_tags: list.max_tags, max_ops: list.max_ops });
    TagMatcher::new(limits, seed)
}

/// Whether a multi-receive buffer has too little space for another message.
pub(crate) fn is_used_up<R>(buffer: &impl Payload<R>, least: u64) -> bool {
    buffer.length() < least
}

impl<Q: QueuePair, B: Payload<Q::Region>> Matching<Q, B> {
    /// Whether no receive buffers may be posted: unexpected messages exceed their bound.
    #[inline]
    pub(crate) fn applies_back_pressure(&mut self) -> bool {
        let bound = self.ops.core.config.bounds.unexpected;
        let over = self.unexpected.bytes > bound && !self.keeps_more();
        if over != self.unexpected.back_pressure {
            self.change_back_pressure(over);
        }
        over
    }

    /// Whether messages beyond the bound are kept, as the rest of something that is being received may be behind them.
    #[cold]
    fn keeps_more(&self) -> bool {
        let bounds = &self.ops.core.config.bounds;
        let most = bounds.unexpected.saturating_add(bounds.behind);
        self.unexpected.bytes <= most && self.ops.own_receives() > 0
    }

    #[cold]
    pub(crate) fn change_back_pressure(&mut self, begins: bool) {
        self.unexpected.back_pressure = begins;
        if begins {
            self.ops.core.statistics.back_pressure += 1;
            let (bytes, limit) = (self.unexpected.bytes, self.ops.core.config.bounds.unexpected);
            let most = self.ops.core.peers.with_most_unexpected();
            // Once, as peers may have it begin again and again.
            if self.ops.core.statistics.back_pressure == 1 {
                tracing::warn!(
                    bytes,
                    limit,
                    "unexpected messages reached their limit: senders wait"
                );
            }
            self.ops.core.events.push(Event::BackPressure { bytes, limit, most });
        }
    }
}
