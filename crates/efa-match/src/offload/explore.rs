//! Model check: the device's list and the software half, in every order of events of small cases.
//!
//! ```text
//!   application      network          device                    software
//!   post, cancel     next message     executes a command        handles a report, sends a command
//!        └───────────────┴─────────────────┴──────────────────────────┘
//!                     any of these may be next, as often as there is one
//! ```
//!
//! The correct result does not depend on the order of events: receives and messages are each in one
//! order, and MPI's rules match two ordered lists in one way. Each complete run is compared with that, and
//! every step is checked.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{
    Cancelled, Change, Command, Deletion, Entry, Handled, Holder, ListLimits, Location, MatchList,
    Offload, Outcome, Outstanding, Reason, Synchronisation, Violation as DeviceViolation,
};
use crate::{Pattern, PostId, Posted, Source};

/// What a receive accepts: all of the message's tag, or none of it.
#[derive(Clone, Copy, Debug)]
enum Accepts {
    Tag(u64),
    Any,
}

use Accepts::{Any, Tag};

impl Accepts {
    fn pattern(self) -> Pattern {
        match self {
            Tag(tag) => Pattern::any_source(tag),
            Any => Pattern { source: None, tag: 0, ignore: u64::MAX },
        }
    }
}

/// A case: what is posted, what arrives, what is cancelled, and how large the device is.
#[derive(Clone, Debug)]
struct Case {
    receives: Vec<Accepts>,
    messages: Vec<u64>,
    /// Receives that the application cancels at some time after posting them.
    cancels: Vec<usize>,
    limits: ListLimits,
    synchronisation: Synchronisation,
    /// First value of the count of unexpected messages.
    count: u32,
}

impl Case {
    fn new(receives: &[Accepts], messages: &[u64], max_tags: u32) -> Self {
        Self {
            receives: receives.to_vec(),
            messages: messages.to_vec(),
            cancels: Vec::new(),
            limits: ListLimits { max_tags, max_ops: 4 },
            synchronisation: Synchronisation::Required,
            count: 0,
        }
    }

    /// The matches by MPI's rules, literally, of the receives that were not cancelled.
    fn pairs(&self, cancelled: &[usize]) -> Vec<Option<usize>> {
        let mut pairs = vec![None; self.receives.len()];
        for (message, &tag) in self.messages.iter().enumerate() {
            let fits = |&receive: &usize| {
                pairs[receive].is_none()
                    && !cancelled.contains(&receive)
                    && self.receives[receive].pattern().accepts(Source(0), tag)
            };
            if let Some(receive) = (0..self.receives.len()).find(fits) {
                pairs[receive] = Some(message);
            }
        }
        pairs
    }
}

/// A report of the device to software.
#[derive(Clone, Copy, Debug, Hash)]
enum Report {
    Matched { receive: usize, message: usize },
    Unexpected { message: usize },
    Done { op: u32, succeeded: bool, sync_required: bool },
}

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Post,
    Cancel,
    Arrive,
    Execute,
    Handle,
    Command,
}

const EVENTS: [Event; 6] =
    [Event::Post, Event::Cancel, Event::Arrive, Event::Execute, Event::Handle, Event::Command];

/// What went wrong.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    Device(DeviceViolation),
    /// A receive or a message was returned twice.
    Twice,
    /// A receive in software was posted before one on the device.
    NotAPrefix,
    /// The matches at the end differ from those of MPI's rules.
    Pairs(Vec<Option<usize>>),
    /// At the end the device holds fewer receives than it could, or holds some back.
    Idle {
        live: usize,
        entries: usize,
    },
}

impl From<DeviceViolation> for Fault {
    fn from(violation: DeviceViolation) -> Self {
        Self::Device(violation)
    }
}

/// The state of application, network, device and software.
#[derive(Clone)]
struct World<'a> {
    case: &'a Case,
    offload: Offload<usize, usize>,
    list: MatchList,
    commands: VecDeque<Command>,
    reports: VecDeque<Report>,
    posts: Vec<Option<PostId>>,
    next_message: usize,
    next_cancel: usize,
    pairs: Vec<Option<usize>>,
    cancelled: Vec<usize>,
}

impl<'a> World<'a> {
    fn new(case: &'a Case) -> Self {
        Self {
            case,
            offload: Offload::new(case.limits, 1).counting_from(case.count),
            list: MatchList::new(case.synchronisation, case.count),
            commands: VecDeque::new(),
            reports: VecDeque::new(),
            posts: Vec::new(),
            next_message: 0,
            next_cancel: 0,
            pairs: vec![None; case.receives.len()],
            cancelled: Vec::new(),
        }
    }

    /// The index of a posted receive, which is its handle on the device.
    fn number(&self, post: PostId) -> usize {
        self.posts.iter().position(|&posted| posted == Some(post)).expect("it was posted")
    }

    /// A hash that identifies this state. Numbers that depend on the path to it and have no influence on
    /// later steps are left out: indexes in the matcher, and their generations.
    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let Offload { queue, holders, deletions, ops, next_op, last_add, live_to, .. } =
            &self.offload;
        let first_op = *next_op - ops.len() as u64;
        for (receive, post) in self.posts.iter().enumerate() {
            let Some(post) = post.filter(|&post| self.offload.location(post).is_some()) else {
                continue;
            };
            let add = match holders[post.index as usize] {
                Holder::Software => None,
                Holder::Device { add, .. } => Some(add == *last_add),
            };
            (receive, add).hash(&mut hasher);
        }
        let waiting = queue.iter().filter(|queued| self.offload.location(queued.post).is_some());
        waiting.for_each(|queued| self.number(queued.post).hash(&mut hasher));
        let deletion_key = |deletion: &Deletion<usize, usize>| {
            let reason = match deletion.reason {
                Reason::Matched(_, message) => (0, message),
                Reason::Cancelled(_) => (1, 0),
                Reason::AlreadyMatched => (2, 0),
                Reason::Drained => (3, 0),
            };
            (self.number(deletion.post), reason)
        };
        deletions.iter().for_each(|deletion| deletion_key(deletion).hash(&mut hasher));
        for op in ops {
            match op {
                Outstanding::Add(post) => (0, self.number(*post)).hash(&mut hasher),
                Outstanding::Delete(deletion) => (1, deletion_key(deletion)).hash(&mut hasher),
                Outstanding::Sync => 2.hash(&mut hasher),
            }
        }
        let unsure = last_add > live_to;
        unsure.then(|| last_add.saturating_sub(first_op)).hash(&mut hasher);
        let Offload { in_device, unsignalled, handled, reported, .. } = self.offload;
        (in_device, unsignalled, handled, reported, &self.list).hash(&mut hasher);
        for command in &self.commands {
            let change = match command.change {
                Change::Add { post, .. } => (0, self.number(post)),
                Change::Delete { handle, .. } => (1, handle as usize),
                Change::Sync => (2, 0),
            };
            (change, command.unexpected, command.signalled).hash(&mut hasher);
        }
        for &report in &self.reports {
            match report {
                Report::Done { op, succeeded, sync_required } => {
                    (u64::from(op) - first_op, succeeded, sync_required).hash(&mut hasher);
                }
                matched_or_unexpected => matched_or_unexpected.hash(&mut hasher),
            }
        }
        let progress = (self.posts.len(), self.next_message, self.next_cancel);
        (progress, &self.pairs, &self.cancelled).hash(&mut hasher);
        hasher.finish()
    }

    /// Performs the event, if it is possible.
    fn step(&mut self, event: Event) -> Result<bool, Fault> {
        match event {
            Event::Post => self.post(),
            Event::Cancel => Ok(self.cancel()),
            Event::Arrive => Ok(self.arrive()),
            Event::Execute => Ok(self.execute()),
            Event::Handle => self.handle(),
            Event::Command => Ok(self.command()),
        }
    }

    fn post(&mut self) -> Result<bool, Fault> {
        let receive = self.posts.len();
        let Some(accepts) = self.case.receives.get(receive) else { return Ok(false) };
        match self.offload.post(accepts.pattern(), receive) {
            Posted::Waiting(post) => self.posts.push(Some(post)),
            Posted::Matched(receive, message) => {
                self.posts.push(None);
                self.pair(receive, message)?;
            }
        }
        Ok(true)
    }

    fn cancel(&mut self) -> bool {
        let Some(&receive) = self.case.cancels.get(self.next_cancel) else { return false };
        let Some(&post) = self.posts.get(receive) else { return false };
        self.next_cancel += 1;
        if let Some(post) = post
            && let Cancelled::Now(receive) = self.offload.cancel(post)
        {
            self.cancelled.push(receive);
        }
        true
    }

    fn arrive(&mut self) -> bool {
        let message = self.next_message;
        let Some(&tag) = self.case.messages.get(message) else { return false };
        self.next_message += 1;
        let entry = self.list.find(tag).and_then(|at| self.list.remove(at));
        self.reports.push_back(match entry {
            Some(entry) => Report::Matched { receive: entry.handle as usize, message },
            None => {
                self.list.count_unexpected();
                Report::Unexpected { message }
            }
        });
        true
    }

    fn execute(&mut self) -> bool {
        let Some(command) = self.commands.pop_front() else { return false };
        let Command { op, change, unexpected, signalled } = command;
        let mut succeeded = true;
        match change {
            Change::Add { post, tag, mask } => {
                let handle = self.number(post) as u32;
                assert!(self.list.len() < self.case.limits.max_tags as usize, "the list is full");
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

    fn handle(&mut self) -> Result<bool, Fault> {
        let Some(report) = self.reports.pop_front() else { return Ok(false) };
        match report {
            Report::Matched { receive, message } => {
                let post = self.posts[receive].expect("it was on the device");
                assert_eq!(self.offload.matched(post)?, Some(receive));
                self.pair(receive, message)?;
            }
            Report::Unexpected { message } => {
                let tag = self.case.messages[message];
                if let Handled::Matched(found) = self.offload.unexpected(Source(0), tag, message) {
                    self.pair(found.once().expect("none is lasting"), message)?;
                }
            }
            Report::Done { op, succeeded, sync_required } => {
                match self.offload.op_completed(op, succeeded, sync_required)? {
                    None => {}
                    Some(Outcome::Matched(receive, message)) => self.pair(receive, message)?,
                    Some(Outcome::Cancelled(receive)) => self.cancelled.push(receive),
                }
            }
        }
        Ok(true)
    }

    fn command(&mut self) -> bool {
        let Some(command) = self.offload.poll_command() else { return false };
        if let Change::Add { post, .. } = command.change {
            self.offload.added(post, self.number(post) as u32);
        }
        self.commands.push_back(command);
        assert!(self.commands.len() <= self.case.limits.max_ops as usize, "max_ops");
        true
    }

    fn pair(&mut self, receive: usize, message: usize) -> Result<(), Fault> {
        if self.pairs.contains(&Some(message)) || self.cancelled.contains(&receive) {
            return Err(Fault::Twice);
        }
        match self.pairs[receive].replace(message) {
            Some(_) => Err(Fault::Twice),
            None => Ok(()),
        }
    }

    /// Checks what holds in every state.
    fn check(&self) -> Result<(), Fault> {
        let locations = self.posts.iter().flatten().filter_map(|&post| self.offload.location(post));
        let prefix = locations.is_sorted_by_key(|location| location == Location::Software);
        if prefix { Ok(()) } else { Err(Fault::NotAPrefix) }
    }

    /// Checks what holds when no event is possible any more.
    fn check_end(&self) -> Result<(), Fault> {
        if self.pairs != self.case.pairs(&self.cancelled) {
            return Err(Fault::Pairs(self.pairs.clone()));
        }
        let (live, entries) = (self.list.live_len(), self.list.len());
        let wanted = self.offload.posted_len().min(self.case.limits.max_tags as usize);
        match live == wanted && entries == wanted {
            true => Ok(()),
            false => Err(Fault::Idle { live, entries }),
        }
    }
}

/// The result of an exploration.
struct Explored {
    states: usize,
    /// The events that lead to a violation.
    violation: Option<(Vec<Event>, Fault)>,
}

/// Visits every state that the case can reach, breadth first.
fn explore(case: &Case) -> Explored {
    let mut seen = HashSet::new();
    let mut open = VecDeque::from([(World::new(case), Vec::new())]);
    while let Some((world, trace)) = open.pop_front() {
        let mut ended = true;
        for event in EVENTS {
            let mut next = world.clone();
            let step = next.step(event);
            if step == Ok(false) {
                continue;
            }
            ended = false;
            let mut trace = trace.clone();
            trace.push(event);
            if let Err(violation) = step.and_then(|_| next.check()) {
                return Explored { states: seen.len(), violation: Some((trace, violation)) };
            }
            if seen.insert(next.key()) {
                open.push_back((next, trace));
            }
        }
        if ended && let Err(violation) = world.check_end() {
            return Explored { states: seen.len(), violation: Some((trace, violation)) };
        }
    }
    Explored { states: seen.len(), violation: None }
}

/// Explores a case that must hold, and returns the number of its states.
fn holds(case: &Case) -> usize {
    let Explored { states, violation } = explore(case);
    if let Some((trace, violation)) = violation {
        panic!("{case:?}\n{trace:?}\n{violation:?}");
    }
    states
}

/// Every list of `len` elements of `of`.
fn lists<T: Copy>(of: &[T], len: usize) -> Vec<Vec<T>> {
    (0..len).fold(vec![Vec::new()], |lists, _| {
        lists.iter().flat_map(|list| of.iter().map(|&last| [&list[..], &[last]].concat())).collect()
    })
}

/// Every case with this many receives and messages. The first message's tag is 1.
fn cases(receives: usize, messages: usize, max_tags: u32) -> impl Iterator<Item = Case> {
    let messages = lists(&[1, 2], messages).into_iter().filter(|messages| messages[0] == 1);
    let messages: Vec<_> = messages.collect();
    lists(&[Tag(1), Tag(2), Any], receives).into_iter().flat_map(move |receives| {
        let case = |messages: &Vec<u64>| Case::new(&receives, messages, max_tags);
        messages.iter().map(case).collect::<Vec<_>>()
    })
}

/// Messages m1 and m2 arrive, receives b1 and b2 are posted, and each accepts each.
fn literal(synchronisation: Synchronisation) -> Case {
    Case { synchronisation, ..Case::new(&[Any, Any], &[1, 1], 2) }
}

/// Without holding entries back the race of the proposal occurs: b1 is added after m1 arrived and before
/// m2, and m2 overtakes m1. This is the shortest trace.
// conformance: B58
#[test]
fn second_message_overtakes_first_without_synchronisation() {
    use Event::{Arrive, Command, Execute, Handle, Post};
    let explored = explore(&literal(Synchronisation::Ignored));
    let (mut trace, violation) = explored.violation.expect("the race of the proposal");
    assert!(
        matches!(violation, Fault::Device(DeviceViolation::OutOfOrder { .. })),
        "{violation:?}"
    );
    // Software handles m1, which b1 accepts, and then the report that b1 has matched m2.
    assert_eq!(trace.split_off(trace.len() - 2), [Handle, Handle]);
    let position = |event| trace.iter().position(|&at| at == event).expect("it is needed");
    assert!(position(Post) < position(Command) && position(Command) < position(Execute));
    assert_eq!(trace.iter().filter(|&&event| event == Arrive).count(), 2);
    assert_eq!(trace.len(), 5);
    assert_eq!(trace.last(), Some(&Arrive), "m2 arrives when b1 is in the list");
    assert!(position(Arrive) < position(Execute), "m1 arrived before");
}

/// The same case with synchronisation.
// conformance: B58 B65
#[test]
fn second_message_does_not_overtake_first_with_synchronisation() {
    assert!(holds(&literal(Synchronisation::Required)) > 100);
}

/// All small cases, with lists of one, two and three entries.
// conformance: B11 B14 B58 B60
#[test]
fn all_event_orders_of_two_receives_and_three_messages_match_like_mpi() {
    let states: usize = [1, 2, 3]
        .into_iter()
        .flat_map(|max_tags| cases(2, 3, max_tags).chain(cases(3, 2, max_tags)))
        .map(|case| holds(&case))
        .sum();
    assert!(states > 10_000, "{states} states");
}

/// Every other case of this size.
// conformance: B11 B14 B58 B60 B61
#[test]
fn all_event_orders_of_three_receives_and_messages_match_like_mpi() {
    let states: usize = cases(3, 3, 2).step_by(2).map(|case| holds(&case)).sum();
    assert!(states > 50_000, "{states} states");
}

/// Of the cases with four receives and four messages, those with wildcards before and behind exact tags.
// conformance: B11 B14 B58
#[test]
fn all_event_orders_of_four_receives_and_messages_match_like_mpi() {
    for (receives, messages) in [
        ([Any, Tag(1), Any, Tag(2)], [1, 2, 1, 2]),
        ([Tag(1), Any, Tag(1), Any], [1, 2, 1, 1]),
        ([Any, Any, Any, Any], [1, 1, 1, 1]),
    ] {
        let states: usize = [1, 2, 4]
            .map(|max_tags| holds(&Case::new(&receives, &messages, max_tags)))
            .into_iter()
            .sum();
        assert!(states > 10_000, "{states} states");
    }
}

/// Each receive ends in exactly one way: matched, or cancelled and deleted.
// conformance: B50 B51
#[test]
fn all_event_orders_with_cancelled_receives_match_like_mpi() {
    for cancels in [vec![0], vec![1], vec![2, 0], vec![0, 1, 2]] {
        for (receives, messages) in [
            ([Any, Tag(1), Tag(1)], [1, 1, 2]),
            ([Tag(1), Any, Tag(2)], [1, 2, 1]),
            ([Tag(1), Tag(1), Any], [1, 1, 1]),
        ] {
            for max_tags in [1, 3] {
                let cancels = cancels.clone();
                holds(&Case { cancels, ..Case::new(&receives, &messages, max_tags) });
            }
        }
    }
}

/// Four of each: receives, messages, deletes, and as many commands as that takes.
// conformance: B50 B51 B58
#[test]
fn all_event_orders_of_four_receives_messages_and_cancels_match_like_mpi() {
    for (receives, messages) in
        [([Any, Tag(1), Any, Tag(2)], [1, 2, 1, 2]), ([Tag(1), Any, Tag(1), Any], [1, 2, 1, 1])]
    {
        let cancels = vec![3, 0, 2, 1];
        let states = holds(&Case { cancels, ..Case::new(&receives, &messages, 2) });
        assert!(states > 80_000, "{states} states");
    }
}

/// The device takes one or two commands at a time, so deletes and adds wait in software.
// conformance: B43
#[test]
fn all_event_orders_with_one_or_two_outstanding_commands_match_like_mpi() {
    for max_ops in [1, 2] {
        for case in cases(3, 3, 3).step_by(19) {
            let limits = ListLimits { max_tags: 3, max_ops };
            holds(&Case { limits, cancels: vec![1], ..case });
        }
    }
}

/// The count of unexpected messages wraps at 2^32.
// conformance: B63
#[test]
fn all_event_orders_with_wrapping_unexpected_count_match_like_mpi() {
    for case in cases(3, 3, 2).step_by(9) {
        holds(&Case { count: u32::MAX - 1, ..case });
    }
}

/// Every case of four receives and four messages.
#[test]
#[ignore = "takes minutes: cargo test --release -p efa-match explore -- --ignored --nocapture"]
fn all_event_orders_of_every_case_of_four_match_like_mpi() {
    for max_tags in [1, 2, 4] {
        let (mut count, mut states) = (0, 0);
        for case in cases(4, 4, max_tags) {
            count += 1;
            states += holds(&case);
        }
        println!("list of {max_tags}: {count} cases, {states} states");
    }
}
