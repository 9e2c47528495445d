//! Nanoseconds per message at growing depths, which include cache misses that instruction counts do not
//! show. No limits.

// criterion's macros expand to undocumented items.
#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use efa_match::{Admit, Arrived, Match, Matcher, Pattern, Posted, Source, Window};

/// A message matches a random one of `depth` posted receives, which is posted again.
fn match_and_repost(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("match and repost");
    for depth in [16u64, 256, 4_096, 65_536, 1 << 20] {
        let mut random = fastrand::Rng::with_seed(depth);
        let tags: Vec<u64> = (0..depth).map(|_| random.u64(..)).collect();
        let mut matcher = Matcher::new();
        for &tag in &tags {
            let _ = matcher.post(Pattern::exact(Source(1), tag), tag);
        }
        group.bench_function(BenchmarkId::from_parameter(depth), |bencher| {
            bencher.iter(|| {
                let tag = tags[random.usize(..tags.len())];
                let Arrived::Matched(Match::Once(receive)) = matcher.arrive(Source(1), tag, ())
                else {
                    unreachable!("all tags are posted");
                };
                let _ = matcher.post(Pattern::exact(Source(1), tag), receive);
            });
        });
    }
}

/// A receive gets a random one of `depth` unexpected messages, which arrives again.
fn receive_and_rearrive(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("receive and arrive again");
    for depth in [16u64, 256, 4_096, 65_536, 1 << 20] {
        let mut random = fastrand::Rng::with_seed(depth);
        let tags: Vec<u64> = (0..depth).map(|_| random.u64(..)).collect();
        let mut matcher: Matcher<(), u64> = Matcher::new();
        for &tag in &tags {
            let _ = matcher.arrive(Source(1), tag, tag);
        }
        group.bench_function(BenchmarkId::from_parameter(depth), |bencher| {
            bencher.iter(|| {
                let tag = tags[random.usize(..tags.len())];
                let Posted::Matched((), message) = matcher.post(Pattern::exact(Source(1), tag), ())
                else {
                    unreachable!("a message waits for each tag");
                };
                let _ = matcher.arrive(Source(1), tag, message);
            });
        });
    }
}

/// Messages in a random order within each stretch of a window's size.
fn reorder(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("reorder");
    for size in [16u32, 1_024, 16_384] {
        let mut ahead: Vec<u32> = (0..size).collect();
        fastrand::Rng::with_seed(u64::from(size)).shuffle(&mut ahead);
        let mut window = Window::new(size);
        group.throughput(criterion::Throughput::Elements(u64::from(size)));
        group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter(|| {
                let start = window.expected();
                for ahead in &ahead {
                    let id = start.wrapping_add(*ahead);
                    if let Admit::InOrder(_) = window.admit(id, id) {
                        while window.pop_ready().is_some() {}
                    }
                }
            });
        });
    }
}

criterion_group!(benches, match_and_repost, receive_and_rearrive, reorder);
criterion_main!(benches);
