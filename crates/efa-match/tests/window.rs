//! The reorder window, with ids in and out of its range.

use std::collections::BTreeMap;

use efa_match::{Admit, Window};

/// Passes items to the window in this order, and returns them in the order in which they leave it.
fn deliver(window: &mut Window<u32>, ids: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut out = Vec::new();
    for id in ids {
        match window.admit(id, id) {
            Admit::InOrder(item) => out.push(item),
            Admit::Kept => continue,
            other => panic!("{id}: {other:?}"),
        }
        while let Some(item) = window.pop_ready() {
            out.push(item);
        }
    }
    out
}

/// `count` ids from `start` on, wrapping at 2^32.
fn ids(start: u32, count: u32) -> Vec<u32> {
    (0..count).map(|n| start.wrapping_add(n)).collect()
}

// conformance: A98
#[test]
fn each_window_expects_id_zero_first() {
    let (mut one, mut other) = (Window::new(16), Window::new(16));
    assert_eq!(deliver(&mut one, 0..10), ids(0, 10));
    assert_eq!((one.expected(), other.expected()), (10, 0));
    assert_eq!(deliver(&mut other, [1, 0]), [0, 1]);
    assert_eq!(one.expected(), 10);
}

/// All 40,320 orders of eight messages.
// conformance: A100
#[test]
fn every_permutation_is_restored_to_order() {
    fn permute(fixed: &mut Vec<u32>, rest: &[u32], check: &mut impl FnMut(&[u32])) {
        if rest.is_empty() {
            check(fixed);
        }
        for at in 0..rest.len() {
            let mut others = rest.to_vec();
            fixed.push(others.remove(at));
            permute(fixed, &others, check);
            fixed.pop();
        }
    }
    let all = ids(u32::MAX - 3, 8);
    let mut orders = 0;
    permute(&mut Vec::new(), &all, &mut |order| {
        let mut window = Window::new(8).starting_at(u32::MAX - 3);
        assert_eq!(deliver(&mut window, order.iter().copied()), all, "{order:?}");
        assert!(window.is_empty());
        orders += 1;
    });
    assert_eq!(orders, 40_320);
}

// conformance: A99
#[test]
fn ids_wrap_to_zero_after_the_largest() {
    let mut window = Window::new(16).starting_at(u32::MAX - 3);
    let mut random = fastrand::Rng::with_seed(99);
    for _ in 0..100 {
        let mut window = Window::new(16).starting_at(u32::MAX - 3);
        let mut order = ids(u32::MAX - 3, 16);
        random.shuffle(&mut order);
        assert_eq!(deliver(&mut window, order), ids(u32::MAX - 3, 16));
        assert_eq!(window.expected(), 12);
    }
    // In order.
    assert_eq!(deliver(&mut window, ids(u32::MAX - 3, 16)), ids(u32::MAX - 3, 16));
    // Ids before the wrap are old, not ahead.
    assert_eq!(window.admit(u32::MAX, 0), Admit::Old(0));
}

/// Messages and atomics take their ids from one sequence.
#[test]
fn messages_and_atomics_in_one_sequence_keep_their_order() {
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Packet {
        Send(u32),
        Atomic(u32),
    }
    let sent: Vec<_> =
        (0..64).map(|id| if id % 3 == 0 { Packet::Atomic(id) } else { Packet::Send(id) }).collect();
    let mut shuffled: Vec<_> = (0u32..).zip(sent.iter().copied()).collect();
    fastrand::Rng::with_seed(101).shuffle(&mut shuffled);
    let mut window = Window::new(64);
    let mut received = Vec::new();
    for (id, packet) in shuffled {
        if let Admit::InOrder(packet) = window.admit(id, packet) {
            received.push(packet);
            while let Some(packet) = window.pop_ready() {
                received.push(packet);
            }
        }
    }
    assert_eq!(received, sent);
}

// conformance: A100
#[test]
fn old_and_duplicate_ids_are_returned() {
    let mut window = Window::new(16);
    assert_eq!(window.admit(0, "zero"), Admit::InOrder("zero"));
    assert_eq!(window.admit(0, "again"), Admit::Old("again"));
    assert_eq!(window.admit(2, "two"), Admit::Kept);
    assert_eq!(window.admit(2, "again"), Admit::Occupied("again"));
    assert_eq!(window.get_mut(2), Some(&mut "two"));
    assert_eq!(window.get_mut(1), None);
    assert_eq!(window.len(), 1);
    assert_eq!(window.admit(1, "one"), Admit::InOrder("one"));
    // It is ready but has not been popped: another item with its id is refused.
    assert_eq!(window.admit(2, "again"), Admit::Occupied("again"));
    assert_eq!(window.pop_ready(), Some("two"));
    assert_eq!(window.pop_ready(), None);
    assert_eq!(window.admit(2, "again"), Admit::Old("again"));
    assert_eq!(window.expected(), 3);
}

/// All segments of a message have its id; the caller chains them to the first.
#[test]
fn later_segments_of_a_kept_message_find_the_first() {
    let mut window = Window::new(16);
    for segment in ["b0", "b1", "b2"] {
        match window.admit(1, vec![segment]) {
            Admit::Kept => {}
            Admit::Occupied(more) => window.get_mut(1).unwrap().extend(more),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(window.admit(0, vec!["a"]), Admit::InOrder(vec!["a"]));
    assert_eq!(window.pop_ready(), Some(vec!["b0", "b1", "b2"]));
}

/// Old libfabric loses messages beyond its window; here even a window of size one loses nothing.
// conformance: A100
#[test]
fn ids_beyond_the_size_but_below_the_limit_are_kept() {
    for size in [1, 2, 16] {
        let mut window = Window::new(size);
        let all = ids(0, 5_000);
        assert_eq!(deliver(&mut window, all.iter().copied().rev()), all, "size {size}");
        assert!(window.is_empty());
    }
}

// conformance: A100
#[test]
fn ids_at_the_limit_are_returned_and_change_nothing() {
    let mut window = Window::new(16).with_limit(1_000).starting_at(u32::MAX - 1);
    let ahead = |n: u32| (u32::MAX - 1).wrapping_add(n);
    assert_eq!(window.admit(ahead(999), 'k'), Admit::Kept);
    assert_eq!(window.admit(ahead(1_000), 'x'), Admit::Beyond('x'));
    assert_eq!(window.admit(ahead((1 << 31) - 1), 'x'), Admit::Beyond('x'));
    assert_eq!(window.admit(ahead(1 << 31), 'x'), Admit::Old('x'));
    assert_eq!(window.admit(ahead(u32::MAX), 'x'), Admit::Old('x'));
    assert_eq!(window.len(), 1);
    assert_eq!(window.admit(ahead(0), 'a'), Admit::InOrder('a'));
    assert_eq!(
        window.admit(ahead(1_000), 'y'),
        Admit::Kept,
        "the limit is relative to the expected id"
    );
}

// conformance: A100
#[test]
fn hostile_ids_keep_at_most_limit_items() {
    let mut window = Window::new(16).with_limit(64);
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..100_000 {
        // Never the expected id.
        let id = random.u32(1..);
        let _ = window.admit(id, id);
    }
    assert!(window.len() <= 63);
    let mut expected = 1;
    for (id, item) in window.drain() {
        assert!(id == item && id >= expected && id < 64);
        expected = id + 1;
    }
}

#[test]
fn drain_returns_items_of_ring_and_map_in_order() {
    let start = u32::MAX - 20;
    let mut window = Window::new(16).starting_at(start);
    let kept = [40, 3, 17, 15, 1, 900, 16].map(|n| start.wrapping_add(n));
    for id in kept {
        assert_eq!(window.admit(id, ()), Admit::Kept);
    }
    let drained: Vec<u32> = window.drain().map(|(id, ())| id.wrapping_sub(start)).collect();
    assert_eq!(drained, [1, 3, 15, 16, 17, 40, 900]);
    assert!(window.is_empty());
    assert_eq!(window.expected(), start);
    assert_eq!(window.admit(start.wrapping_add(3), ()), Admit::Kept);
    assert_eq!(window.admit(start, ()), Admit::InOrder(()));
}

/// For any distance of the first item from the expected id.
#[test]
fn ring_grows_with_its_items() {
    for size in [16, 64] {
        for (first, rest) in (1..70).flat_map(|first| (1..70).map(move |rest| (first, rest))) {
            let mut window = Window::new(size).starting_at(u32::MAX - 30);
            let id = |ahead: u32| (u32::MAX - 30).wrapping_add(ahead);
            if first == rest {
                continue;
            }
            for ahead in [first, rest] {
                assert_eq!(window.admit(id(ahead), id(ahead)), Admit::Kept);
            }
            let between = (0..70).filter(|ahead| ![first, rest].contains(ahead)).map(id);
            assert_eq!(deliver(&mut window, between), ids(u32::MAX - 30, 70), "{first} {rest}");
        }
    }
}

/// For items in order the fast path does the same as the slow one; for others it does nothing.
#[test]
fn pass_accepts_only_the_expected_id_while_nothing_is_kept() {
    let mut window = Window::new(16).starting_at(u32::MAX);
    assert!(!window.pass(0) && !window.pass(u32::MAX - 1));
    assert!(window.pass(u32::MAX));
    assert_eq!(window.expected(), 0);
    assert!(!window.pass(u32::MAX));
    assert_eq!(window.admit(1, 'b'), Admit::Kept);
    assert!(!window.pass(0), "an item is kept");
    assert_eq!(window.admit(0, 'a'), Admit::InOrder('a'));
    assert!(!window.pass(1) && !window.pass(2));
    assert_eq!(window.pop_ready(), Some('b'));
    assert!(window.pass(2));
    assert_eq!(window.expected(), 3);
}

/// Ids in any order, with duplicates, old ones and ones far ahead, popped at once or later.
// conformance: A100
#[test]
fn long_random_runs_equal_a_reference_map() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let size = 1 << random.u32(..8);
        let limit = random.u32(size..=8 * size);
        let mut expected = u32::MAX.wrapping_sub(random.u32(..2_000));
        let mut window = Window::new(size).with_limit(limit).starting_at(expected);
        let mut map = BTreeMap::new();
        for item in 0..8_000u32 {
            // Mostly near, so that the window moves.
            let reach = if random.u32(..4) == 0 { 2 * limit } else { 4 };
            let id = expected.wrapping_add(random.u32(..reach + 2)).wrapping_sub(2);
            let ahead = id.wrapping_sub(expected);
            let is_held = map.contains_key(&id);
            let outcome = if ahead >= 1 << 31 {
                Admit::Old(item)
            } else if ahead >= limit {
                Admit::Beyond(item)
            } else if is_held {
                Admit::Occupied(item)
            } else if ahead == 0 {
                expected = expected.wrapping_add(1);
                Admit::InOrder(item)
            } else {
                map.insert(id, item);
                Admit::Kept
            };
            assert_eq!(window.admit(id, item), outcome, "seed {seed}, id {id}");
            let probe = expected.wrapping_add(random.u32(..2 * limit));
            assert_eq!(window.get_mut(probe), map.get_mut(&probe));
            while random.u32(..8) != 0 {
                let ready = map.remove(&expected);
                expected = expected.wrapping_add(u32::from(ready.is_some()));
                assert_eq!(window.pop_ready(), ready, "seed {seed}");
                if ready.is_none() {
                    break;
                }
            }
            assert_eq!((window.expected(), window.len()), (expected, map.len()));
        }
    }
}

#[test]
fn half_of_all_ids_are_behind_the_expected_one() {
    let window = Window::<()>::new(16).starting_at(5);
    let behind = [4, 0, u32::MAX, (1 << 31) + 5];
    assert!(behind.into_iter().all(|id| window.is_behind(id)));
    assert!([5, 6, (1 << 31) + 4].into_iter().all(|id| !window.is_behind(id)));
}
