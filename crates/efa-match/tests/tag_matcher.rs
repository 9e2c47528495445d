//! A matcher in software and one that splits its receives with a device give the same matches. The device
//! model here answers at once, so that the two are compared step by step.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use efa_match::{
    Arrived, Cancelled, Change, Entry, Forgotten, Handled, ListLimits, Location, MatchList,
    Matcher, Outcome, Pattern, PostId, Posted, Source, Synchronisation, TagMatcher,
};

/// A matcher and its device.
struct Pair {
    matcher: TagMatcher<u32, u32>,
    list: MatchList,
    /// The receives by their handles on the device.
    names: Vec<PostId>,
    hits: u32,
    syncs: u32,
}

impl Pair {
    fn new(device: Option<ListLimits>) -> Self {
        Self {
            matcher: TagMatcher::new(device, 1),
            list: MatchList::new(Synchronisation::Required, 0),
            names: Vec::new(),
            hits: 0,
            syncs: 0,
        }
    }

    /// Executes the matcher's commands; returns the outcome.
    fn commands(&mut self) -> Option<Outcome<u32, u32>> {
        let offload = self.matcher.offload()?;
        let mut outcome = None;
        while let Some(command) = offload.poll_command() {
            let mut succeeded = true;
            match command.change {
                Change::Add { post, tag, mask } => {
                    let handle = self.names.len() as u32;
                    self.names.push(post);
                    offload.added(post, handle);
                    self.list.add(Entry { handle, tag, mask }, command.unexpected);
                }
                Change::Delete { handle, .. } => {
                    succeeded = self.list.delete(handle, command.unexpected).is_some();
                }
                Change::Sync => {
                    self.syncs += 1;
                    self.list.sync(command.unexpected);
                }
            }
            if command.signalled || !succeeded {
                let sync_required = self.list.sync_required();
                let came = offload.op_completed(command.op, succeeded, sync_required).unwrap();
                outcome = outcome.or(came);
            }
        }
        outcome
    }

    fn post(&mut self, pattern: Pattern, receive: u32) -> Posted<u32, u32> {
        let posted = self.matcher.post(pattern, receive);
        assert_eq!(self.commands(), None);
        posted
    }

    /// The receive that a message goes to.
    fn arrive(&mut self, source: Source, tag: u64, message: u32) -> Option<u32> {
        if let Some(offload) = self.matcher.offload() {
            if let Some(entry) = self.list.find(tag).and_then(|at| self.list.remove(at)) {
                self.hits += 1;
                let receive = offload.matched(self.names[entry.handle as usize]).unwrap();
                assert_eq!(self.commands(), None);
                return receive;
            }
            self.list.count_unexpected();
        }
        let handled = self.matcher.arrive(source, tag, message);
        let outcome = self.commands();
        match handled {
            Handled::Matched(found) => found.once(),
            Handled::Unexpected(_) => None,
            Handled::Pending => match outcome {
                Some(Outcome::Matched(receive, with)) if with == message => Some(receive),
                other => panic!("{other:?}"),
            },
        }
    }

    fn cancel(&mut self, post: PostId) -> Option<u32> {
        let cancelled = self.matcher.cancel(post);
        let outcome = self.commands();
        match cancelled {
            Cancelled::Now(receive) => Some(receive),
            Cancelled::NotPosted => None,
            Cancelled::Pending => match outcome {
                Some(Outcome::Cancelled(receive)) => Some(receive),
                other => panic!("{other:?}"),
            },
        }
    }
}

/// The receive that a plain matcher gives an arriving message.
fn arrive(matcher: &mut Matcher<u32, u32>, source: Source, tag: u64, message: u32) -> Option<u32> {
    match matcher.arrive(source, tag, message) {
        Arrived::Matched(found) => found.once(),
        Arrived::Unexpected(_) => None,
    }
}

/// Both are compared with a plain matcher.
// conformance: B14 B17
#[test]
fn matches_in_software_equal_matches_split_with_a_device() {
    for (seed, max_tags) in [(1, 1), (2, 4), (3, 16), (4, 256)] {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut plain = Matcher::with_seed(1);
        let mut software = Pair::new(None);
        let mut shared = Pair::new(Some(ListLimits { max_tags, max_ops: 8 }));
        let mut posts = Vec::new();
        // A lasting receive, which only software can match, and when it is cancelled.
        let mut lasting = None;
        for n in 0..60_000 {
            // Some have a source, which only software can match.
            let directed = random.u32(..2000) == 0;
            let source = directed.then(|| Source(random.u32(..3)));
            let ignore = *random.choice(&[0, 0, 0, 0x3]).unwrap();
            let pattern = Pattern { source, tag: random.u64(..32), ignore };
            if random.u32(..2000) == 0 {
                let source = Source(random.u32(..3));
                let forgotten = plain.forget_source(source);
                assert_eq!(forgotten, software.matcher.forget_source(source));
                assert_eq!(forgotten, shared.matcher.forget_source(source));
            }
            if lasting.is_none() && random.u32(..4000) == 0 {
                let pattern = Pattern { source: None, ..pattern };
                let one = software.matcher.post_lasting(pattern, n);
                let other = shared.matcher.post_lasting(pattern, n);
                lasting = Some((plain.post_lasting(pattern, n), one, other, n + 100));
                assert_eq!(shared.commands(), None);
            } else if let Some((post, one, other, until)) = lasting
                && n == until
            {
                let receive = plain.cancel(post);
                assert_eq!(receive, Some(n - 100));
                assert_eq!(receive, software.cancel(one));
                assert_eq!(receive, shared.cancel(other));
                lasting = None;
            }
            if random.u32(..5000) == 0 {
                let receives = plain.drain_receives();
                lasting = None;
                for pair in [&mut software, &mut shared] {
                    let all = Forgotten { receives: receives.clone(), messages: vec![] };
                    assert_eq!(pair.matcher.drain_receives(), all);
                    assert_eq!(pair.commands(), None, "no outcome follows");
                }
            }
            let more_posts = if n / 500 % 2 == 0 { 12 } else { 7 };
            match random.u32(..16) {
                0 => {
                    let message = plain.peek(&pattern);
                    assert_eq!(message, software.matcher.peek(&pattern));
                    assert_eq!(message, shared.matcher.peek(&pattern));
                }
                1 => {
                    let message = plain.take(&pattern);
                    assert_eq!(message, software.matcher.take(&pattern));
                    assert_eq!(message, shared.matcher.take(&pattern));
                }
                2 => {
                    if let Some(&(post, one, other)) = random.choice(&posts) {
                        let receive = plain.cancel(post);
                        assert_eq!(receive, software.cancel(one));
                        assert_eq!(receive, shared.cancel(other));
                    }
                }
                choice if choice < more_posts => {
                    let posted = [software.post(pattern, n), shared.post(pattern, n)];
                    match (plain.post(pattern, n), posted) {
                        (Posted::Waiting(post), [Posted::Waiting(one), Posted::Waiting(other)]) => {
                            posts.push((post, one, other));
                        }
                        (alone, both) => assert_eq!([alone; 2], both),
                    }
                }
                _ => {
                    let (source, tag) = (Source(random.u32(..3)), random.u64(..32));
                    let receive = arrive(&mut plain, source, tag, n);
                    assert_eq!(receive, software.arrive(source, tag, n));
                    assert_eq!(receive, shared.arrive(source, tag, n));
                }
            }
            for pair in [&software, &shared] {
                assert_eq!(pair.matcher.posted_len(), plain.posted_len());
                assert_eq!(pair.matcher.unexpected_len(), plain.unexpected_len());
            }
            if posts.len() > 400 {
                posts.drain(..200);
            }
        }
        let offload = shared.matcher.offload().unwrap();
        assert!(shared.hits > 100, "device matches: {}", shared.hits);
        assert!(shared.syncs > 0, "entries were held back");
        let locations = posts.iter().filter_map(|&(_, _, post)| offload.location(post));
        assert!(locations.is_sorted_by_key(|location| location == Location::Software));
    }
}

/// In software and with a device.
#[test]
fn unexpected_message_can_be_withdrawn_once() {
    for device in [None, Some(ListLimits { max_tags: 4, max_ops: 4 })] {
        let mut pair = Pair::new(device);
        let mut arrive = |message| match pair.matcher.arrive(Source(1), 7, message) {
            Handled::Unexpected(id) => id,
            other => panic!("{other:?}"),
        };
        let (first, second) = (arrive(1), arrive(2));
        assert_eq!(pair.matcher.withdraw(first), Some(1));
        assert_eq!(pair.matcher.withdraw(first), None);
        assert_eq!(pair.matcher.unexpected_len(), 1);
        assert_eq!(pair.matcher.peek(&Pattern::any_source(7)), Some(2));
        assert_eq!(pair.matcher.withdraw(second), Some(2));
        assert_eq!(pair.matcher.unexpected_len(), 0);
    }
}

#[test]
fn matcher_without_device_has_fast_paths_and_no_commands() {
    let mut matcher = TagMatcher::<u32, u32>::new(None, 1);
    assert!(matcher.offload().is_none());
    let first = Pattern::any_source(1);
    let Posted::Waiting(post) = matcher.post(first, 1) else { panic!() };
    assert_eq!(matcher.cancel(post), Cancelled::Now(1));
    // The last pattern was of the same class and no message waits: the fast path.
    assert!(matcher.vacancy(&first).is_some(), "nothing is posted yet");
    assert_eq!(matcher.posted_len(), 0);
    matcher.vacancy(&first).unwrap().fill(2);
    assert_eq!(matcher.match_at_once(Source(1), 1), Some(2));
    assert_eq!(matcher.match_at_once(Source(1), 1), None);
    assert_eq!(matcher.cancel(post), Cancelled::NotPosted);
}

#[test]
fn match_list_reports_entries_and_unexpected_count() {
    let mut list = MatchList::new(Synchronisation::Required, u32::MAX);
    assert!(list.is_empty());
    list.count_unexpected();
    assert_eq!((list.unexpected(), list.sync_required()), (0, true));
    list.add(Entry { handle: 1, tag: 7, mask: u64::MAX }, u32::MAX);
    assert_eq!((list.is_empty(), list.len(), list.live_len()), (false, 1, 0), "held back");
    list.sync(0);
    assert_eq!((list.unexpected(), list.live_len()), (0, 1));
    list.count_unexpected();
    list.count_unexpected();
    assert_eq!(list.unexpected(), 2);
}
