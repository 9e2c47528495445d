//! Matcher and window allocate nothing once their tables have grown.

use efa_counted_heap::allocations;
use efa_match::{Admit, Arrived, Matcher, Pattern, Posted, Source, Window};

fn allocations_in(work: impl FnOnce()) -> u64 {
    let before = allocations();
    work();
    allocations() - before
}

/// Receives and messages of three classes, up to some hundred deep on both sides.
fn exercise(matcher: &mut Matcher<u32, u32>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let pattern = |n: u32| {
        let tag = u64::from(n % 256);
        match n % 3 {
            0 => Pattern::exact(Source(n % 4), tag),
            1 => Pattern::any_source(tag),
            _ => Pattern { source: None, tag, ignore: 0x3 },
        }
    };
    for round in 0..20_000 {
        let n = random.u32(..);
        let posts_lead = round / 500 % 2 == 0;
        if random.u32(..4) < if posts_lead { 3 } else { 1 } {
            if let Posted::Waiting(id) = matcher.post(pattern(n), n)
                && random.u32(..8) == 0
            {
                matcher.cancel(id);
            }
        } else if let Arrived::Unexpected(id) = matcher.arrive(Source(n % 4), n as u64 % 256, n)
            && random.u32(..8) == 0
        {
            matcher.withdraw(id);
        }
        if random.u32(..8) == 0 {
            matcher.take(&pattern(random.u32(..)));
        }
    }
}

#[test]
fn matcher_allocates_nothing_on_second_run() {
    let mut matcher = Matcher::with_seed(3);
    exercise(&mut matcher, 3);
    drop(matcher.drain());
    // The same again needs no more space than the first time.
    let calls = allocations_in(|| exercise(&mut matcher, 3));
    assert_eq!(calls, 0);
}

#[test]
fn post_and_match_allocate_nothing_at_any_depth() {
    for depth in [1, 16, 65_536] {
        let mut matcher = Matcher::with_seed(depth);
        let mut next = 0;
        let mut post = |matcher: &mut Matcher<u64, u64>| {
            assert!(matches!(
                matcher.post(Pattern::exact(Source(0), next), next),
                Posted::Waiting(_)
            ));
            next += 1;
        };
        for _ in 0..=depth {
            post(&mut matcher);
        }
        let calls = allocations_in(|| {
            for tag in 0..50_000 {
                assert!(matches!(matcher.arrive(Source(0), tag, 0), Arrived::Matched(_)));
                post(&mut matcher);
            }
        });
        assert_eq!(calls, 0, "depth {depth}");
    }
}

#[test]
fn window_allocates_nothing_in_order_and_only_once_out_of_order() {
    let mut window = Window::new(64);
    let in_order = allocations_in(|| {
        for id in 0..10_000u32 {
            assert_eq!(window.admit(id, id), Admit::InOrder(id));
            assert_eq!(window.pop_ready(), None);
        }
    });
    assert_eq!(in_order, 0);

    let mut reverse_stretches = |from: u32, to: u32| {
        for stretch in from..to {
            for id in (stretch * 50..stretch * 50 + 50).rev() {
                if let Admit::InOrder(_) = window.admit(id, id) {
                    while window.pop_ready().is_some() {}
                }
            }
        }
    };
    reverse_stretches(200, 201);
    assert_eq!(allocations_in(|| reverse_stretches(201, 400)), 0);
    assert_eq!(window.expected(), 400 * 50);
}
