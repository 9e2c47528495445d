//! The matcher compared with lists that are searched from the front (the definition of MPI's order) over
//! long random runs.

use std::rc::Rc;

use efa_match::{Arrived, Forgotten, Match, Matcher, MessageId, Pattern, PostId, Posted, Source};

/// MPI's order, literally: two lists in order of time, and the first that matches.
#[derive(Default)]
struct Lists {
    receives: Vec<Receive>,
    messages: Vec<Message>,
}

struct Receive {
    pattern: Pattern,
    handle: u32,
    /// Its identifier, if it stays after a match.
    lasting: Option<PostId>,
}

struct Message {
    source: Source,
    tag: u64,
    handle: u32,
}

impl Lists {
    fn fitting_message(&self, pattern: &Pattern) -> Option<usize> {
        self.messages.iter().position(|m| {
            (m.tag | pattern.ignore) == (pattern.tag | pattern.ignore)
                && (pattern.source.is_none() || pattern.source == Some(m.source))
        })
    }

    fn take(&mut self, pattern: &Pattern) -> Option<u32> {
        self.fitting_message(pattern).map(|at| self.messages.remove(at).handle)
    }

    fn match_posted(&mut self, source: Source, tag: u64) -> Option<Match<u32>> {
        let fits = |r: &Receive| {
            (tag | r.pattern.ignore) == (r.pattern.tag | r.pattern.ignore)
                && (r.pattern.source.is_none() || r.pattern.source == Some(source))
        };
        let at = self.receives.iter().position(fits)?;
        Some(match self.receives[at].lasting {
            Some(id) => Match::Lasting(id),
            None => Match::Once(self.receives.remove(at).handle),
        })
    }
}

/// The ranges of random patterns and messages.
struct Terms {
    sources: u32,
    tags: u64,
    ignores: &'static [u64],
    /// In 16ths.
    any_source: u32,
    /// Number of operations after which the run changes between more receives and more messages.
    turn: u32,
}

/// Both sides of the comparison, and the identifiers returned so far.
struct Run {
    random: fastrand::Rng,
    matcher: Matcher<u32, u32>,
    lists: Lists,
    posts: Vec<(PostId, u32)>,
    waiting: Vec<(MessageId, u32)>,
    next_handle: u32,
    /// Number of operations on the fast paths.
    at_once: u32,
    terms: Terms,
}

impl Run {
    fn new(seed: u64, terms: Terms) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            matcher: Matcher::with_seed(seed),
            lists: Lists::default(),
            posts: Vec::new(),
            waiting: Vec::new(),
            next_handle: 0,
            at_once: 0,
            terms,
        }
    }

    fn handle(&mut self) -> u32 {
        self.next_handle += 1;
        self.next_handle
    }

    fn source(&mut self) -> Source {
        Source(self.random.u32(..self.terms.sources))
    }

    fn tag(&mut self) -> u64 {
        // Low and high bits both differ, so that every mask hides some of it.
        let tag = self.random.u64(..self.terms.tags);
        tag | tag << 60
    }

    fn pattern(&mut self) -> Pattern {
        let any = self.random.u32(..16) < self.terms.any_source;
        let source = if any { None } else { Some(self.source()) };
        let ignore = self.terms.ignores[self.random.usize(..self.terms.ignores.len())];
        Pattern { source, tag: self.tag(), ignore }
    }

    fn step(&mut self, receives_lead: bool) {
        let lead = if receives_lead { 5 } else { 3 };
        match self.random.u32(..1000) {
            // forget_source and drain empty the lists: rare.
            0 => self.forget_source(),
            1 if self.random.u32(..8) == 0 => self.drain(),
            2..20 => self.post_lasting(),
            20..60 => self.peek(),
            60..100 => self.take(),
            100..150 => self.withdraw(),
            150..220 => self.cancel(),
            220..260 => self.match_posted(),
            _ if self.random.u32(..8) < lead => self.post(),
            _ => self.arrive(),
        }
        assert_eq!(self.matcher.posted_len(), self.lists.receives.len());
        assert_eq!(self.matcher.unexpected_len(), self.lists.messages.len());
    }

    fn post(&mut self) {
        let (pattern, handle) = (self.pattern(), self.handle());
        if self.random.bool()
            && let Some(vacancy) = self.matcher.vacancy(&pattern)
        {
            let id = vacancy.fill(handle);
            assert_eq!(None, self.lists.take(&pattern));
            self.at_once += 1;
            return self.posted(id, Receive { pattern, handle, lasting: None });
        }
        match (self.matcher.post(pattern, handle), self.lists.take(&pattern)) {
            (Posted::Matched(receive, message), expected) => {
                assert_eq!((receive, Some(message)), (handle, expected));
            }
            (Posted::Waiting(id), None) => {
                self.posted(id, Receive { pattern, handle, lasting: None })
            }
            (Posted::Waiting(_), Some(message)) => panic!("{pattern:?} missed {message}"),
        }
    }

    fn post_lasting(&mut self) {
        let pattern = self.pattern();
        // Usually waiting messages are taken first, but that is not required.
        if self.random.u32(..4) > 0 {
            while let Some(message) = self.matcher.take(&pattern) {
                assert_eq!(Some(message), self.lists.take(&pattern));
            }
            assert_eq!(None, self.lists.take(&pattern));
        }
        let handle = self.handle();
        let id = self.matcher.post_lasting(pattern, handle);
        self.posted(id, Receive { pattern, handle, lasting: Some(id) });
    }

    fn posted(&mut self, id: PostId, receive: Receive) {
        self.posts.push((id, receive.handle));
        self.lists.receives.push(receive);
    }

    fn arrive(&mut self) {
        let (source, tag, handle) = (self.source(), self.tag(), self.handle());
        match (self.matcher.arrive(source, tag, handle), self.lists.match_posted(source, tag)) {
            (Arrived::Matched(found), expected) => assert_eq!(Some(found), expected),
            (Arrived::Unexpected(id), None) => {
                self.lists.messages.push(Message { source, tag, handle });
                self.waiting.push((id, handle));
            }
            (Arrived::Unexpected(_), Some(receive)) => panic!("{source:?} {tag:x} ≠ {receive:?}"),
        }
    }

    fn match_posted(&mut self) {
        let (source, tag) = (self.source(), self.tag());
        if self.random.bool()
            && let Some(receive) = self.matcher.match_at_once(source, tag)
        {
            self.at_once += 1;
            return assert_eq!(Some(Match::Once(receive)), self.lists.match_posted(source, tag));
        }
        let expected = self.lists.match_posted(source, tag);
        assert_eq!(self.matcher.match_posted(source, tag), expected);
    }

    fn peek(&mut self) {
        let pattern = self.pattern();
        let expected = self.lists.fitting_message(&pattern);
        let expected = expected.map(|at| self.lists.messages[at].handle);
        assert_eq!(self.matcher.peek(&pattern), expected);
    }

    fn take(&mut self) {
        let pattern = self.pattern();
        assert_eq!(self.matcher.take(&pattern), self.lists.take(&pattern));
    }

    /// By an identifier that is often stale.
    fn withdraw(&mut self) {
        let Some(&(id, handle)) = self.random.choice(&self.waiting) else { return };
        let at = self.lists.messages.iter().position(|message| message.handle == handle);
        let expected = at.map(|at| self.lists.messages.remove(at).handle);
        assert_eq!(self.matcher.withdraw(id), expected);
    }

    /// By an identifier that is often stale.
    fn cancel(&mut self) {
        let Some(&(id, handle)) = self.random.choice(&self.posts) else { return };
        let at = self.lists.receives.iter().position(|receive| receive.handle == handle);
        assert_eq!(self.matcher.receive(id), at.map(|_| &handle));
        assert_eq!(self.matcher.receive_mut(id), at.map(|_| handle).as_mut());
        let expected = at.map(|at| self.lists.receives.remove(at).handle);
        assert_eq!(self.matcher.cancel(id), expected);
    }

    fn forget_source(&mut self) {
        let source = self.source();
        let receives = self.lists.receives.extract_if(.., |r| r.pattern.source == Some(source));
        let receives = receives.map(|receive| receive.handle).collect();
        let messages = self.lists.messages.extract_if(.., |m| m.source == source);
        let messages = messages.map(|message| message.handle).collect();
        assert_eq!(self.matcher.forget_source(source), Forgotten { receives, messages });
    }

    fn drain(&mut self) {
        let receives = self.lists.receives.drain(..).map(|receive| receive.handle).collect();
        let messages = self.lists.messages.drain(..).map(|message| message.handle).collect();
        assert_eq!(self.matcher.drain(), Forgotten { receives, messages });
    }

    fn go(&mut self, steps: u32) {
        let mut deepest = 0;
        for step in 0..steps {
            self.step((step / self.terms.turn).is_multiple_of(2));
            deepest = deepest.max(self.lists.receives.len().min(self.lists.messages.len()));
            if step % 4096 == 0 {
                // Stale identifiers stay in use for a while, so that some refer to reused indexes.
                self.posts.truncate(0);
                self.waiting.truncate(0);
            }
        }
        assert!(deepest > 0, "receives and messages never waited at the same time");
    }
}

/// Few tags, sources and masks, so that queues of equal keys are long.
// conformance: B2 B3 B4 B5 B6 C110
#[test]
fn long_run_with_many_waiting_equals_reference_lists() {
    for seed in 0..12 {
        let ignores = &[0, 0, 1, 0xf << 60, !0];
        Run::new(seed, Terms { sources: 3, tags: 8, ignores, any_source: 6, turn: 300 })
            .go(120_000);
    }
}

/// More tags than receives and messages, so that most wait long and both sides are deep.
#[test]
fn run_with_few_waiting_equals_reference_lists() {
    for seed in 100..104 {
        let ignores = &[0, 0, 0, 0, 1, 6];
        let terms = Terms { sources: 8, tags: 1 << 12, ignores, any_source: 2, turn: 3_000 };
        Run::new(seed, terms).go(60_000);
    }
}

/// Directed receives with full tags, as in most programs.
#[test]
fn exact_patterns_equal_reference_lists() {
    for seed in 200..204 {
        let terms = Terms { sources: 4, tags: 64, ignores: &[0], any_source: 0, turn: 500 };
        let mut run = Run::new(seed, terms);
        run.go(180_000);
        assert!(run.at_once > 0, "the fast paths were never taken");
    }
}

/// Full tags from one source or any source: the two classes of MPI programs.
#[test]
fn directed_and_any_source_patterns_equal_reference_lists() {
    for seed in 400..404 {
        let terms = Terms { sources: 3, tags: 24, ignores: &[0], any_source: 8, turn: 400 };
        Run::new(seed, terms).go(120_000);
    }
}

/// More masks than the matcher keeps empty classes for, so that classes are created and dropped often.
#[test]
fn many_ignore_masks_equal_reference_lists() {
    const IGNORES: [u64; 40] = {
        let mut ignores = [0; 40];
        let mut bits = 0;
        while bits < 40 {
            ignores[bits] = ((bits as u64) << 58) | (bits as u64 % 8);
            bits += 1;
        }
        ignores
    };
    for seed in 300..306 {
        let terms = Terms { sources: 3, tags: 16, ignores: &IGNORES, any_source: 8, turn: 40 };
        Run::new(seed, terms).go(120_000);
    }
}

/// Receives that are matched, cancelled, forgotten, drained, dropped with the matcher, or replaced at their
/// index.
#[test]
fn every_receive_is_dropped_exactly_once() {
    let receive = Rc::new(());
    let mut random = fastrand::Rng::with_seed(1);
    let mut matcher = Matcher::<Rc<()>, u32>::with_seed(1);
    let mut posts = Vec::new();
    for _ in 0..20_000 {
        let source = Source(random.u32(..2));
        let tag = random.u64(..8);
        let pattern = match random.bool() {
            true => Pattern::exact(source, tag),
            false => Pattern::any_source(tag),
        };
        match random.u32(..1000) {
            0 => drop(matcher.drain()),
            1 => drop(matcher.drain_receives()),
            2..10 => drop(matcher.forget_source(source)),
            10..50 => posts.push(matcher.post_lasting(pattern, receive.clone())),
            50..200 => {
                if let Some(at) = random.usize(..=posts.len()).checked_sub(1) {
                    matcher.cancel(posts.swap_remove(at));
                }
            }
            200..300 => drop(matcher.match_at_once(source, tag)),
            300..600 => drop(matcher.arrive(source, tag, 0)),
            600..700 => {
                if let Some(vacancy) = matcher.vacancy(&pattern) {
                    posts.push(vacancy.fill(receive.clone()));
                }
            }
            _ => {
                if let Posted::Waiting(post) = matcher.post(pattern, receive.clone()) {
                    posts.push(post);
                }
            }
        }
        assert_eq!(Rc::strong_count(&receive), 1 + matcher.posted_len());
    }
    assert!(matcher.posted_len() > 0);
    drop(matcher);
    assert_eq!(Rc::strong_count(&receive), 1);
}
