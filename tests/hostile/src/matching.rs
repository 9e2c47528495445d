//! The matcher, the reorder window and the device's tag list, each compared with a simple reference.

use std::collections::{BTreeMap, VecDeque};

use efa_match::{
    Admit, Arrived, Cancelled, Change, Command, Entry, Forgotten, Handled, ListLimits, Location,
    Match, MatchList, Matcher, MessageId, Offload, Outcome, Pattern, PostId, Posted, Source,
    Synchronisation, Window,
};

use crate::input::Input;

/// Two lists in order of time, searched from the oldest entry: the matching order of MPI.
#[derive(Default)]
struct Lists {
    receives: Vec<(Pattern, u32, Option<PostId>)>,
    messages: Vec<(Source, u64, u32)>,
}

fn fits(pattern: &Pattern, source: Source, tag: u64) -> bool {
    (tag | pattern.ignore) == (pattern.tag | pattern.ignore)
        && pattern.source.is_none_or(|of| of == source)
}

impl Lists {
    fn find(&self, pattern: &Pattern) -> Option<usize> {
        self.messages.iter().position(|(source, tag, _)| fits(pattern, *source, *tag))
    }

    fn take(&mut self, pattern: &Pattern) -> Option<u32> {
        self.find(pattern).map(|at| self.messages.remove(at).2)
    }

    fn arrive(&mut self, source: Source, tag: u64) -> Option<Match<u32>> {
        let at = self.receives.iter().position(|(pattern, ..)| fits(pattern, source, tag))?;
        let (.., lasting) = self.receives[at];
        Some(match lasting {
            Some(id) => Match::Lasting(id),
            None => Match::Once(self.receives.remove(at).1),
        })
    }
}

fn source(input: &mut Input<'_>) -> Source {
    Source(input.byte() as u32 % 4)
}

fn tag(input: &mut Input<'_>) -> u64 {
    let tag = u64::from(input.byte() % 16);
    tag | tag << 60
}

fn pattern(input: &mut Input<'_>) -> Pattern {
    const IGNORES: [u64; 12] = [0, 0, 0, 1, 3, 7, 15, 0xf << 60, 1 << 60, !0, 2, 0xff];
    let source = (!input.one_in(3)).then(|| source(input));
    Pattern { source, tag: tag(input), ignore: input.pick(&IGNORES) }
}

pub(crate) fn matcher(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    let mut matcher = Matcher::with_seed(input.byte().into());
    let mut lists = Lists::default();
    let mut posts: Vec<(PostId, u32)> = Vec::new();
    let mut waiting: Vec<(MessageId, u32)> = Vec::new();
    let mut next = 0;
    while !input.is_empty() {
        next += 1;
        match input.byte() {
            0..=99 => {
                let pattern = pattern(input);
                match (matcher.post(pattern, next), lists.take(&pattern)) {
                    (Posted::Matched(receive, message), expected) => {
                        assert_eq!((receive, Some(message)), (next, expected));
                    }
                    (Posted::Waiting(id), expected) => {
                        assert_eq!(expected, None);
                        posts.push((id, next));
                        lists.receives.push((pattern, next, None));
                    }
                }
            }
            100..=189 => {
                let (source, tag) = (source(input), tag(input));
                match (matcher.arrive(source, tag, next), lists.arrive(source, tag)) {
                    (Arrived::Matched(found), expected) => assert_eq!(Some(found), expected),
                    (Arrived::Unexpected(id), expected) => {
                        assert_eq!(expected, None);
                        waiting.push((id, next));
                        lists.messages.push((source, tag, next));
                    }
                }
            }
            190..=201 => {
                let pattern = pattern(input);
                let id = matcher.post_lasting(pattern, next);
                posts.push((id, next));
                lists.receives.push((pattern, next, Some(id)));
            }
            202..=211 => {
                let pattern = pattern(input);
                let expected = lists.find(&pattern).map(|at| lists.messages[at].2);
                assert_eq!(matcher.peek(&pattern), expected);
            }
            212..=221 => {
                let pattern = pattern(input);
                assert_eq!(matcher.take(&pattern), lists.take(&pattern));
            }
            222..=231 if !posts.is_empty() => {
                let (id, handle) = posts[input.below(posts.len())];
                let at = lists.receives.iter().position(|(_, of, _)| *of == handle);
                assert_eq!(matcher.receive(id), at.map(|_| &handle));
                let expected = at.map(|at| lists.receives.remove(at).1);
                assert_eq!(matcher.cancel(id), expected);
            }
            232..=241 if !waiting.is_empty() => {
                let (id, handle) = waiting[input.below(waiting.len())];
                let at = lists.messages.iter().position(|(.., of)| *of == handle);
                let expected = at.map(|at| lists.messages.remove(at).2);
                assert_eq!(matcher.withdraw(id), expected);
            }
            242..=248 => {
                let (source, tag) = (source(input), tag(input));
                assert_eq!(matcher.match_posted(source, tag), lists.arrive(source, tag));
            }
            249..=253 => {
                let gone = source(input);
                let receives = lists.receives.extract_if(.., |(of, ..)| of.source == Some(gone));
                let receives = receives.map(|(_, handle, _)| handle).collect();
                let messages = lists.messages.extract_if(.., |(of, ..)| *of == gone);
                let messages = messages.map(|(.., handle)| handle).collect();
                assert_eq!(matcher.forget_source(gone), Forgotten { receives, messages });
            }
            254 => {
                let receives = lists.receives.drain(..).map(|(_, handle, _)| handle).collect();
                let messages = lists.messages.drain(..).map(|(.., handle)| handle).collect();
                assert_eq!(matcher.drain(), Forgotten { receives, messages });
            }
            _ => {}
        }
        assert_eq!(matcher.posted_len(), lists.receives.len());
        assert_eq!(matcher.unexpected_len(), lists.messages.len());
    }
}

pub(crate) fn window(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    let size = input.pick(&[1, 2, 16, 256]);
    let limit = u64::from(input.pick(&[1_u32, 16, 300, 1 << 16, u32::MAX])).clamp(size, 1 << 31);
    let start = input.pick(&[0, u32::MAX - 3, 1 << 31, 7]);
    let mut window = Window::new(size as u32).with_limit(limit as u32).starting_at(start);
    let mut expected = start;
    let mut kept = BTreeMap::new();
    let mut item = 0;
    while !input.is_empty() {
        item += 1;
        match input.byte() {
            0..=191 => {
                let near = expected.wrapping_add(u32::from(input.byte() & 31));
                let msg_id = input.about32(near);
                let ahead = u64::from(msg_id.wrapping_sub(expected));
                let right = if kept.contains_key(&msg_id) && ahead < limit {
                    Admit::Occupied(item)
                } else if ahead == 0 {
                    expected = expected.wrapping_add(1);
                    Admit::InOrder(item)
                } else if ahead < limit {
                    kept.insert(msg_id, item);
                    Admit::Kept
                } else if ahead >= 1 << 31 {
                    Admit::Old(item)
                } else {
                    Admit::Beyond(item)
                };
                assert_eq!(window.admit(msg_id, item), right, "{msg_id} of {expected}");
            }
            192..=239 => {
                let right = kept.remove(&expected);
                assert_eq!(window.pop_ready(), right);
                expected = expected.wrapping_add(u32::from(right.is_some()));
            }
            240..=253 => {
                let msg_id = expected.wrapping_add(input.byte().into());
                assert_eq!(window.get_mut(msg_id).copied(), kept.get(&msg_id).copied());
            }
            _ => {
                let mut right: Vec<_> = std::mem::take(&mut kept).into_iter().collect();
                right.sort_by_key(|(msg_id, _)| msg_id.wrapping_sub(expected));
                assert!(window.drain().eq(right));
            }
        }
        assert_eq!((window.expected(), window.len()), (expected, kept.len()));
    }
}

/// A report of the device that software has not handled yet.
enum Report {
    Matched { receive: u32, message: usize },
    Unexpected { message: usize },
    Done { op: u32, succeeded: bool, sync_required: bool },
}

/// Both halves of the offload, with events in any order, and the pairs that MPI matching order gives.
struct Device {
    offload: Offload<u32, usize>,
    list: MatchList,
    max_tags: usize,
    commands: VecDeque<Command>,
    reports: VecDeque<Report>,
    patterns: Vec<Pattern>,
    posts: Vec<Option<PostId>>,
    tags: Vec<u64>,
    pairs: Vec<Option<usize>>,
    cancelled: Vec<u32>,
}

impl Device {
    fn pair(&mut self, receive: u32, message: usize) {
        assert!(!self.pairs.contains(&Some(message)), "message {message} is matched twice");
        assert!(!self.cancelled.contains(&receive), "receive {receive} was cancelled");
        let before = self.pairs[receive as usize].replace(message);
        assert_eq!(before, None, "receive {receive} is matched twice");
    }

    fn post(&mut self, pattern: Pattern) {
        let receive = self.patterns.len() as u32;
        self.patterns.push(pattern);
        self.pairs.push(None);
        match self.offload.post(pattern, receive) {
            Posted::Waiting(post) => self.posts.push(Some(post)),
            Posted::Matched(receive, message) => {
                self.posts.push(None);
                self.pair(receive, message);
            }
        }
    }

    fn cancel(&mut self, receive: usize) {
        if let Some(post) = self.posts[receive]
            && let Cancelled::Now(receive) = self.offload.cancel(post)
        {
            self.cancelled.push(receive);
        }
    }

    fn arrive(&mut self, tag: u64) {
        let message = self.tags.len();
        self.tags.push(tag);
        let entry = self.list.find(tag).and_then(|at| self.list.remove(at));
        self.reports.push_back(match entry {
            Some(entry) => Report::Matched { receive: entry.handle, message },
            None => {
                self.list.count_unexpected();
                Report::Unexpected { message }
            }
        });
    }

    fn carry_out(&mut self) -> bool {
        let Some(Command { op, change, unexpected, signalled }) = self.commands.pop_front() else {
            return false;
        };
        let mut succeeded = true;
        match change {
            Change::Add { post, tag, mask } => {
                assert!(self.list.len() < self.max_tags, "the tag list is full");
                let handle = self.posts.iter().position(|of| *of == Some(post));
                let handle = handle.expect("the receive was posted") as u32;
                self.list.add(Entry { handle, tag, mask }, unexpected);
            }
            Change::Delete { handle, .. } => {
                succeeded = self.list.delete(handle, unexpected).is_some();
            }
            Change::Sync => self.list.sync(unexpected),
        }
        if signalled || !succeeded {
            let sync_required = self.list.sync_required();
            self.reports.push_back(Report::Done { op, succeeded, sync_required });
        }
        true
    }

    fn handle(&mut self) -> bool {
        let Some(report) = self.reports.pop_front() else { return false };
        match report {
            Report::Matched { receive, message } => {
                let post = self.posts[receive as usize].expect("the receive was in the tag list");
                let matched =
                    self.offload.matched(post).expect("the report of the device is valid");
                assert_eq!(matched, Some(receive));
                self.pair(receive, message);
            }
            Report::Unexpected { message } => {
                let tag = self.tags[message];
                if let Handled::Matched(found) = self.offload.unexpected(Source(0), tag, message) {
                    self.pair(found.once().expect("no receive is persistent"), message);
                }
            }
            Report::Done { op, succeeded, sync_required } => {
                let done = self.offload.op_completed(op, succeeded, sync_required);
                match done.expect("the report of the device is valid") {
                    None => {}
                    Some(Outcome::Matched(receive, message)) => self.pair(receive, message),
                    Some(Outcome::Cancelled(receive)) => self.cancelled.push(receive),
                }
            }
        }
        true
    }

    fn command(&mut self) -> bool {
        let Some(command) = self.offload.poll_command() else { return false };
        if let Change::Add { post, .. } = command.change {
            let handle = self.posts.iter().position(|of| *of == Some(post));
            self.offload.added(post, handle.expect("the receive was posted") as u32);
        }
        self.commands.push_back(command);
        true
    }

    /// The pairs that MPI matching order gives for the receives that were not cancelled.
    fn right(&self) -> Vec<Option<usize>> {
        let mut pairs = vec![None; self.patterns.len()];
        for (message, tag) in self.tags.iter().enumerate() {
            let free = |receive: &usize| {
                pairs[*receive].is_none()
                    && !self.cancelled.contains(&(*receive as u32))
                    && fits(&self.patterns[*receive], Source(0), *tag)
            };
            if let Some(receive) = (0..pairs.len()).find(free) {
                pairs[receive] = Some(message);
            }
        }
        pairs
    }
}

pub(crate) fn offload(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    let (max_tags, max_ops) = (input.pick(&[2, 0, 1, 4]), input.pick(&[4, 1, 2]));
    let count = input.pick(&[0, u32::MAX - 1]);
    let mut device = Device {
        offload: Offload::new(ListLimits { max_tags, max_ops }, 1).counting_from(count),
        list: MatchList::new(Synchronisation::Required, count),
        max_tags: max_tags as usize,
        commands: VecDeque::new(),
        reports: VecDeque::new(),
        patterns: Vec::new(),
        posts: Vec::new(),
        tags: Vec::new(),
        pairs: Vec::new(),
        cancelled: Vec::new(),
    };
    // The reference takes quadratic time.
    for _ in 0..200 {
        if input.is_empty() {
            break;
        }
        match input.below(8) {
            0 | 1 => {
                let ignore = input.pick(&[0, 0, 1, u64::MAX]);
                let source = input.one_in(8).then_some(Source(0));
                device.post(Pattern { source, tag: u64::from(input.byte() % 3), ignore });
            }
            2 | 3 => device.arrive(u64::from(input.byte() % 3)),
            4 => _ = device.carry_out(),
            5 => _ = device.handle(),
            6 => _ = device.command(),
            _ if !device.posts.is_empty() => {
                let receive = input.below(device.posts.len());
                // A second cancellation of a receive changes nothing.
                device.cancel(receive);
            }
            _ => {}
        }
        let locations =
            device.posts.iter().flatten().filter_map(|post| device.offload.location(*post));
        assert!(
            locations.is_sorted_by_key(|location| location == Location::Software),
            "not a prefix"
        );
        assert!(device.commands.len() <= max_ops as usize);
    }
    while device.handle() || device.command() || device.carry_out() {}
    assert_eq!(device.pairs, device.right());
    // A receive that does not fit in the tag list keeps all later receives in software.
    if device.patterns.iter().all(|pattern| pattern.source.is_none()) {
        let waiting = device.offload.posted_len().min(device.max_tags);
        assert_eq!((device.list.live_len(), device.list.len()), (waiting, waiting));
    }
}
