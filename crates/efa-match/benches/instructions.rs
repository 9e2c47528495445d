//! Instructions per operation of the matcher and the window, with hard limits.
//!
//! A limit is the project's goal for one operation (or, where there is none or it is not reached, a little
//! above the measured value) plus the loop around the operation, which `nothing` counts. All seeds are
//! fixed, so that the counts repeat.
//!
//! The limits defend `slots.rs` (a table of our own instead of `slab`), and the `inline(always)` of post and
//! match: with `inline` a post takes some 50 % more instructions, a match some 37 %.

// gungraun's macros expand to undocumented items.
#![allow(missing_docs, unused_qualifications)]

use std::hint::black_box;

use efa_match::{
    Admit, Arrived, Change, Handled, ListLimits, Matcher, Offload, Pattern, PostId, Posted, Source,
    Window,
};
use gungraun::{Callgrind, EventKind, LibraryBenchmarkConfig, prelude::*};

/// Operations in a run.
const OPERATIONS: u64 = 1 << 10;

/// Instructions of the loop around an operation.
const LOOP: u64 = 9;
/// Instructions of the loop if each operation is on another matcher.
const OUTER_LOOP: u64 = 21;

/// At most `each` instructions per operation.
fn at_most(each: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    // 200 for the start and end of the run.
    callgrind.hard_limits([(EventKind::Ir, each * OPERATIONS + 200)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

/// At most `each` for operations on one matcher.
fn deep(each: u64) -> LibraryBenchmarkConfig {
    at_most(each + LOOP)
}

/// At most `each` for operations on a matcher each.
fn shallow(each: u64) -> LibraryBenchmarkConfig {
    at_most(each + OUTER_LOOP)
}

/// Prepared matchers, and the steps on each.
type Work = Vec<(Matcher<u32, u32>, Vec<Step>)>;

/// The pattern of a receive, and a message that it accepts.
struct Step {
    pattern: Pattern,
    source: Source,
    tag: u64,
}

/// The choice of tags.
#[derive(Clone, Copy)]
enum Tags {
    Random,
    /// Multiples of this.
    Stride(u64),
    /// All equal.
    One,
}

impl Tags {
    fn nth(self, n: u64) -> u64 {
        match self {
            // A permutation (the factor is odd) that is the same in all runs.
            Self::Random => (n ^ 0x5851_f42d).wrapping_mul(0xda94_2042_e4dd_58b5).rotate_left(29),
            Self::Stride(stride) => n.wrapping_mul(stride),
            Self::One => 7,
        }
    }
}

const SOURCES: u64 = 8;

fn source(n: u64) -> Source {
    Source((n % SOURCES) as u32)
}

fn exact(tags: Tags, n: u64) -> Pattern {
    Pattern::exact(source(n), tags.nth(n))
}

/// Which of the waiting receives or messages is matched.
#[derive(Clone, Copy)]
enum Hit {
    First,
    Last,
    Random,
}

/// `count` different numbers below `depth`.
fn hits(random: &mut fastrand::Rng, depth: u64, hit: Hit, count: usize) -> Vec<u64> {
    match hit {
        Hit::First => (0..depth).take(count).collect(),
        Hit::Last => (0..depth).rev().take(count).collect(),
        Hit::Random => {
            let mut all: Vec<u64> = (0..depth).collect();
            random.shuffle(&mut all);
            all.truncate(count);
            all
        }
    }
}

/// Matchers for all steps, each with few steps, so that the depth stays about `depth`.
fn fill(
    depth: u64,
    hit: Hit,
    mut make: impl FnMut(&mut Matcher<u32, u32>, u64) -> Pattern,
) -> Work {
    let steps_each = (depth / 16).clamp(1, OPERATIONS);
    let mut random = fastrand::Rng::with_seed(depth);
    let mut make_one = |seed| {
        let mut matcher = Matcher::with_seed(seed);
        let patterns: Vec<_> = (0..depth).map(|n| make(&mut matcher, n)).collect();
        let steps = hits(&mut random, depth, hit, steps_each as usize).into_iter().map(|n| {
            let pattern = patterns[n as usize];
            Step { pattern, source: source(n), tag: pattern.tag }
        });
        (matcher, steps.collect())
    };
    (0..OPERATIONS / steps_each).map(&mut make_one).collect()
}

fn posted(depth: u64, hit: Hit, tags: Tags) -> Work {
    fill(depth, hit, |matcher, n| {
        let pattern = exact(tags, n);
        let _ = matcher.post(pattern, n as u32);
        pattern
    })
}

/// Receives that are posted after `rounds` others have been matched.
fn churned(rounds: u64) -> Work {
    let mut work = posted(1 << 16, Hit::Random, Tags::Random);
    let (matcher, steps) = &mut work[0];
    for n in 0..rounds {
        let step = &steps[n as usize % steps.len()];
        let _ = matcher.arrive(step.source, step.tag, 0);
        let _ = matcher.post(step.pattern, 0);
    }
    work
}

/// A pattern of one of `k` classes, every other with any source.
fn of_class(k: u64, n: u64) -> Pattern {
    let class = n % k;
    let mut pattern = exact(Tags::Random, n);
    pattern.ignore = (1 << (class / 2)) - 1;
    if class % 2 == 1 {
        pattern.source = None;
    }
    pattern
}

/// Receives of `k` classes.
fn classes(depth: u64, k: u64) -> Work {
    fill(depth, Hit::Random, |matcher, n| {
        let pattern = of_class(k, n);
        let _ = matcher.post(pattern, n as u32);
        pattern
    })
}

fn unexpected(depth: u64, hit: Hit, tags: Tags, make: fn(Tags, u64) -> Pattern) -> Work {
    indexed(fill(depth, hit, |matcher, n| keep(matcher, tags, n, make(tags, n))))
}

/// Messages, and receives of `k` classes for them.
fn unexpected_classes(depth: u64, k: u64) -> Work {
    let make = |matcher: &mut _, n| keep(matcher, Tags::Random, n, of_class(k, n));
    indexed(fill(depth, Hit::Random, make))
}

/// The nth message arrives, which a receive with this pattern will get.
fn keep(matcher: &mut Matcher<u32, u32>, tags: Tags, n: u64, pattern: Pattern) -> Pattern {
    let Arrived::Unexpected(_) = matcher.arrive(source(n), tags.nth(n), n as u32) else {
        unreachable!("nothing is posted");
    };
    pattern
}

/// With the indexes of the classes and an unused entry from earlier messages.
fn indexed(mut work: Work) -> Work {
    for (matcher, steps) in &mut work {
        for step in steps {
            let Arrived::Unexpected(extra) = matcher.arrive(step.source, step.tag, 0) else {
                unreachable!("nothing is posted");
            };
            // Looking for a missing message extends the index to all messages.
            assert_eq!(matcher.peek(&Pattern { tag: !step.pattern.tag, ..step.pattern }), None);
            matcher.withdraw(extra).expect("it waits");
        }
    }
    work
}

fn any_source(tags: Tags, n: u64) -> Pattern {
    Pattern::any_source(tags.nth(n))
}

fn masked(tags: Tags, n: u64) -> Pattern {
    Pattern { ignore: 0xf, ..any_source(tags, n) }
}

#[library_benchmark]
#[bench::shallow(args = (16, Hit::Random, Tags::Random), setup = posted, config = shallow(0))]
#[bench::deep(args = (1 << 16, Hit::Random, Tags::Random), setup = posted, config = deep(0))]
fn nothing(mut work: Work) -> (Work, u32) {
    let mut sum = 0;
    for (matcher, steps) in &mut work {
        for step in steps {
            let passed = black_box((&mut *matcher, step.source, step.tag));
            sum += passed.2 as u32;
        }
    }
    (work, sum)
}

// Goals: 70 at depths 1 and 16; 1.1 times the cost at depth 16 at any depth and position; 3 times that for
// tags chosen to collide; 60 k + 40 with k classes in use.
#[library_benchmark]
#[bench::depth_1(args = (1, Hit::Random, Tags::Random), setup = posted, config = shallow(70))]
#[bench::depth_16(args = (16, Hit::Random, Tags::Random), setup = posted, config = shallow(70))]
#[bench::depth_256(args = (256, Hit::Random, Tags::Random), setup = posted, config = deep(63))]
#[bench::depth_4096(args = (4096, Hit::Random, Tags::Random), setup = posted, config = deep(63))]
#[bench::depth_65536(args = (1 << 16, Hit::Random, Tags::Random), setup = posted, config = deep(63))]
#[bench::depth_1000000(args = (1_000_000, Hit::Random, Tags::Random), setup = posted, config = deep(63))]
#[bench::first_of_16(args = (16, Hit::First, Tags::Random), setup = posted, config = shallow(70))]
#[bench::first_of_256(args = (256, Hit::First, Tags::Random), setup = posted, config = deep(63))]
#[bench::first_of_4096(args = (4096, Hit::First, Tags::Random), setup = posted, config = deep(63))]
#[bench::first_of_65536(args = (1 << 16, Hit::First, Tags::Random), setup = posted, config = deep(63))]
#[bench::first_of_1000000(args = (1_000_000, Hit::First, Tags::Random), setup = posted, config = deep(63))]
#[bench::last_of_16(args = (16, Hit::Last, Tags::Random), setup = posted, config = shallow(70))]
#[bench::last_of_256(args = (256, Hit::Last, Tags::Random), setup = posted, config = deep(63))]
#[bench::last_of_4096(args = (4096, Hit::Last, Tags::Random), setup = posted, config = deep(63))]
#[bench::last_of_65536(args = (1 << 16, Hit::Last, Tags::Random), setup = posted, config = deep(63))]
#[bench::last_of_1000000(args = (1_000_000, Hit::Last, Tags::Random), setup = posted, config = deep(63))]
#[bench::churned(args = (1 << 20), setup = churned, config = deep(63))]
#[bench::one_key(args = (1 << 16, Hit::Random, Tags::One), setup = posted, config = deep(72))]
#[bench::equal_low_bits(args = (1 << 16, Hit::Random, Tags::Stride(1 << 48)), setup = posted, config = deep(66))]
#[bench::stride_4096(args = (1 << 16, Hit::Random, Tags::Stride(1 << 12)), setup = posted, config = deep(66))]
#[bench::stride_2_32(args = (1 << 16, Hit::Random, Tags::Stride(1 << 32)), setup = posted, config = deep(66))]
#[bench::stride_1021(args = (1 << 16, Hit::Random, Tags::Stride(1021)), setup = posted, config = deep(66))]
#[bench::classes_1(args = (1 << 14, 1), setup = classes, config = deep(63))]
#[bench::classes_2(args = (1 << 14, 2), setup = classes, config = deep(160))]
#[bench::classes_8(args = (1 << 14, 8), setup = classes, config = deep(364))]
#[bench::classes_64(args = (1 << 14, 64), setup = classes, config = deep(2_066))]
#[bench::classes_2_of_1000000(args = (1_000_000, 2), setup = classes, config = deep(160))]
fn match_posted(mut work: Work) -> (Work, u32) {
    let mut sum = 0;
    for (matcher, steps) in &mut work {
        for step in steps {
            match matcher.arrive(step.source, step.tag, 0) {
                Arrived::Matched(found) => sum += found.once().unwrap_or_default(),
                Arrived::Unexpected(_) => unreachable!("it is posted"),
            }
        }
    }
    (work, sum)
}

fn empty(depth: u64) -> Work {
    let mut work = posted(depth, Hit::Random, Tags::Random);
    // The measured posts reuse entries of earlier posts.
    for (matcher, steps) in &mut work {
        for step in steps {
            let _ = matcher.arrive(step.source, step.tag, 0);
        }
    }
    work
}

// No goal of its own: 70 is the goal of a receive in the whole engine.
#[library_benchmark]
#[bench::depth_1(args = (1), setup = empty, config = shallow(98))]
#[bench::depth_16(args = (16), setup = empty, config = shallow(98))]
#[bench::depth_65536(args = (1 << 16), setup = empty, config = deep(97))]
#[bench::beside_16(args = (16), setup = beside, config = shallow(273))]
#[bench::beside_65536(args = (1 << 16), setup = beside, config = deep(273))]
fn post_waiting(mut work: Work) -> (Work, Option<PostId>) {
    let mut last = None;
    for (matcher, steps) in &mut work {
        for step in steps {
            match matcher.post(step.pattern, 0) {
                Posted::Waiting(id) => last = Some(id),
                Posted::Matched(..) => unreachable!("no message has arrived"),
            }
        }
    }
    (work, last)
}

/// Receives for messages that have not arrived, while others of the same class have.
fn beside(depth: u64) -> Work {
    let mut work = unexpected(depth, Hit::Random, Tags::Random, exact);
    for (matcher, steps) in &mut work {
        steps.iter_mut().for_each(|step| step.pattern.tag ^= 1 << 63);
        // With entries and buckets of earlier receives.
        for step in steps.iter() {
            let Posted::Waiting(_) = matcher.post(step.pattern, 0) else {
                unreachable!("it has not arrived");
            };
        }
        for step in steps.iter() {
            matcher.match_posted(step.source, step.pattern.tag).expect("it is posted");
        }
    }
    work
}

// Goal: 120 at any depth and position, for any pattern and any tags. With several classes in use, a message
// is removed from several indexes; no goal of its own.
#[library_benchmark]
#[bench::depth_1(args = (1, Hit::Random, Tags::Random, exact), setup = unexpected, config = shallow(120))]
#[bench::depth_16(args = (16, Hit::Random, Tags::Random, exact), setup = unexpected, config = shallow(120))]
#[bench::depth_256(args = (256, Hit::Random, Tags::Random, exact), setup = unexpected, config = deep(120))]
#[bench::depth_4096(args = (4096, Hit::Random, Tags::Random, exact), setup = unexpected, config = deep(120))]
#[bench::depth_65536(args = (1 << 16, Hit::Random, Tags::Random, exact), setup = unexpected, config = deep(120))]
#[bench::depth_1000000(args = (1_000_000, Hit::Random, Tags::Random, exact), setup = unexpected, config = deep(120))]
#[bench::first_of_16(args = (16, Hit::First, Tags::Random, exact), setup = unexpected, config = shallow(120))]
#[bench::first_of_256(args = (256, Hit::First, Tags::Random, exact), setup = unexpected, config = deep(120))]
#[bench::first_of_4096(args = (4096, Hit::First, Tags::Random, exact), setup = unexpected, config = deep(120))]
#[bench::first_of_65536(args = (1 << 16, Hit::First, Tags::Random, exact), setup = unexpected, config = deep(120))]
#[bench::first_of_1000000(args = (1_000_000, Hit::First, Tags::Random, exact), setup = unexpected, config = deep(120))]
#[bench::last_of_16(args = (16, Hit::Last, Tags::Random, exact), setup = unexpected, config = shallow(120))]
#[bench::last_of_256(args = (256, Hit::Last, Tags::Random, exact), setup = unexpected, config = deep(120))]
#[bench::last_of_4096(args = (4096, Hit::Last, Tags::Random, exact), setup = unexpected, config = deep(120))]
#[bench::last_of_65536(args = (1 << 16, Hit::Last, Tags::Random, exact), setup = unexpected, config = deep(120))]
#[bench::last_of_1000000(args = (1_000_000, Hit::Last, Tags::Random, exact), setup = unexpected, config = deep(120))]
#[bench::one_key(args = (1 << 16, Hit::Random, Tags::One, exact), setup = unexpected, config = deep(120))]
#[bench::equal_low_bits(args = (1 << 16, Hit::Random, Tags::Stride(1 << 48), exact), setup = unexpected, config = deep(120))]
#[bench::stride_4096(args = (1 << 16, Hit::Random, Tags::Stride(1 << 12), exact), setup = unexpected, config = deep(120))]
#[bench::stride_2_32(args = (1 << 16, Hit::Random, Tags::Stride(1 << 32), exact), setup = unexpected, config = deep(120))]
#[bench::stride_1021(args = (1 << 16, Hit::Random, Tags::Stride(1021), exact), setup = unexpected, config = deep(120))]
#[bench::any_source_16(args = (16, Hit::Random, Tags::Random, any_source), setup = unexpected, config = shallow(120))]
#[bench::any_source_65536(args = (1 << 16, Hit::Random, Tags::Random, any_source), setup = unexpected, config = deep(120))]
#[bench::masked_16(args = (16, Hit::Random, Tags::Random, masked), setup = unexpected, config = shallow(120))]
#[bench::masked_65536(args = (1 << 16, Hit::Random, Tags::Random, masked), setup = unexpected, config = deep(120))]
#[bench::classes_2(args = (1 << 14, 2), setup = unexpected_classes, config = deep(263))]
#[bench::classes_8(args = (1 << 14, 8), setup = unexpected_classes, config = deep(592))]
#[bench::classes_64(args = (1 << 14, 64), setup = unexpected_classes, config = deep(3_200))]
fn post_against_unexpected(mut work: Work) -> (Work, u32) {
    let mut sum = 0;
    for (matcher, steps) in &mut work {
        for step in steps {
            match matcher.post(step.pattern, 0) {
                Posted::Matched(_, message) => sum += message,
                Posted::Waiting(_) => unreachable!("it has arrived"),
            }
        }
    }
    (work, sum)
}

// An unexpected message is kept, indexed and claimed.
#[library_benchmark]
#[bench::depth_16(args = (16, Hit::Random, Tags::Random, exact), setup = unexpected, config = shallow(418))]
#[bench::depth_65536(args = (1 << 16, Hit::Random, Tags::Random, exact), setup = unexpected, config = deep(418))]
fn arrive_unexpected_and_take(mut work: Work) -> (Work, u32) {
    let mut sum = 0;
    for (matcher, steps) in &mut work {
        for step in steps {
            // No waiting receive has its key.
            let pattern = Pattern { tag: !step.pattern.tag, ..step.pattern };
            let Arrived::Unexpected(_) = matcher.arrive(step.source, pattern.tag, 0) else {
                unreachable!("nothing is posted");
            };
            sum += matcher.take(&pattern).expect("it has arrived");
        }
    }
    (work, sum)
}

#[library_benchmark]
#[bench::depth_16(args = (16, Hit::Random, Tags::Random, any_source), setup = unexpected, config = shallow(56))]
#[bench::depth_65536(args = (1 << 16, Hit::Random, Tags::Random, any_source), setup = unexpected, config = deep(56))]
fn peek(mut work: Work) -> (Work, u32) {
    let mut sum = 0;
    for (matcher, steps) in &mut work {
        for step in steps {
            sum += matcher.peek(&step.pattern).expect("it has arrived");
        }
    }
    (work, sum)
}

/// The order in which ids arrive, within each stretch of so many.
#[derive(Clone, Copy)]
enum Order {
    Identity,
    Reversed,
    /// The first arrives last, the others in order.
    FirstMissing,
    Random,
}

/// A window that has passed one stretch already, and the ids of the next.
fn window(size: u32, order: Order) -> (Window<u32>, Vec<u32>) {
    let stretches = (OPERATIONS as u32 / size).max(1);
    let mut random = fastrand::Rng::with_seed(u64::from(size));
    let mut ids = Vec::new();
    for stretch in 0..=stretches {
        let mut ahead: Vec<u32> = (0..size).collect();
        match order {
            Order::Identity => {}
            Order::Reversed => ahead.reverse(),
            Order::FirstMissing => ahead.rotate_left(1),
            Order::Random => random.shuffle(&mut ahead),
        }
        ids.extend(ahead.into_iter().map(|ahead| stretch * size + ahead));
    }
    let measured = ids.split_off(size as usize);
    let mut window = Window::new(size);
    for id in ids {
        if let Admit::InOrder(_) = window.admit(id, id) {
            while window.pop_ready().is_some() {}
        }
    }
    (window, measured)
}

#[library_benchmark]
#[bench::in_order(args = (1024, Order::Identity), setup = window, config = at_most(20))]
#[bench::random_16(args = (16, Order::Random), setup = window, config = at_most(45))]
#[bench::random_1024(args = (1024, Order::Random), setup = window, config = at_most(45))]
#[bench::random_16384(args = (16_384, Order::Random), setup = window, config = at_most(45 * 16))]
#[bench::reversed_16384(args = (16_384, Order::Reversed), setup = window, config = at_most(45 * 16))]
#[bench::first_missing_16384(args = (16_384, Order::FirstMissing), setup = window, config = at_most(45 * 16))]
fn reorder((mut window, ids): (Window<u32>, Vec<u32>)) -> Window<u32> {
    for id in ids {
        match window.admit(id, id) {
            Admit::InOrder(item) => {
                black_box(item);
                while let Some(item) = window.pop_ready() {
                    black_box(item);
                }
            }
            Admit::Kept => {}
            _ => unreachable!("each id arrives once"),
        }
    }
    window
}

/// Executes the commands at once; returns the number of receives that were matched or cancelled.
fn commands(offload: &mut Offload<u32, u32>) -> u32 {
    let mut out = 0;
    while let Some(command) = offload.poll_command() {
        if let Change::Add { post, .. } = command.change {
            offload.added(post, post.to_bits() as u32);
        }
        if command.signalled {
            let outcome = offload.op_completed(command.op, true, false);
            out += u32::from(outcome.expect("no violation").is_some());
        }
    }
    out
}

fn offloaded(max_tags: u32, receives: u64) -> (Offload<u32, u32>, Vec<PostId>) {
    let mut offload = Offload::new(ListLimits { max_tags, max_ops: 16 }, 1);
    let post = |n: u64| match offload.post(Pattern::any_source(Tags::Random.nth(n)), n as u32) {
        Posted::Waiting(post) => post,
        Posted::Matched(..) => unreachable!("no message has arrived"),
    };
    let mut posts: Vec<_> = (0..receives).map(post).collect();
    commands(&mut offload);
    posts.truncate(OPERATIONS as usize);
    (offload, posts)
}

/// Receives that the device matches in the order of posting; with `behind` more, each match lets the next
/// one of software be added.
fn in_device(behind: u64) -> (Offload<u32, u32>, Vec<PostId>) {
    offloaded(OPERATIONS as u32, OPERATIONS + behind)
}

// Goal: 120 for handling a match of the device in software.
#[library_benchmark]
#[bench::alone(args = (0), setup = in_device, config = deep(120))]
fn device_hit((mut offload, posts): (Offload<u32, u32>, Vec<PostId>)) -> (Offload<u32, u32>, u32) {
    let mut sum = 0;
    for post in posts {
        sum += offload.matched(post).expect("it is on the device").unwrap_or_default();
        assert!(offload.poll_command().is_none());
    }
    (offload, sum)
}

// No goal of its own: a match, and adding the next receive to the device.
#[library_benchmark]
#[bench::refilled(args = (1 << 16), setup = in_device, config = deep(358))]
fn device_hit_and_refill(
    (mut offload, posts): (Offload<u32, u32>, Vec<PostId>),
) -> (Offload<u32, u32>, u32) {
    let mut sum = 0;
    for post in posts {
        sum += offload.matched(post).expect("it is on the device").unwrap_or_default();
        sum += commands(&mut offload);
    }
    (offload, sum)
}

// Goal: linear. The same limit for each receive at ten times the number.
#[library_benchmark]
#[bench::receives_1024(args = (1024), setup = overflowing, config = at_most(560))]
#[bench::receives_10240(args = (10_240), setup = overflowing, config = at_most(5_600))]
fn resynchronise((mut offload, receives): (Offload<u32, u32>, u64)) -> (Offload<u32, u32>, u32) {
    let mut sum = 0;
    for n in 0..receives {
        // The receive is on the device and held back: it is deleted there, and the next is added.
        let Handled::Pending = offload.unexpected(Source(0), Tags::Random.nth(n), n as u32) else {
            unreachable!("the device holds the first receives");
        };
        sum += commands(&mut offload);
    }
    assert_eq!(u64::from(sum), receives);
    (offload, sum)
}

/// Sixteen receives on the device, the others in software.
fn overflowing(receives: u64) -> (Offload<u32, u32>, u64) {
    (offloaded(16, receives).0, receives)
}

library_benchmark_group!(
    name = matcher,
    benchmarks = [
        nothing,
        match_posted,
        post_waiting,
        post_against_unexpected,
        arrive_unexpected_and_take,
        peek
    ]
);
library_benchmark_group!(name = order, benchmarks = [reorder]);
library_benchmark_group!(
    name = offload,
    benchmarks = [device_hit, device_hit_and_refill, resynchronise]
);
main!(library_benchmark_groups = [matcher, order, offload]);
