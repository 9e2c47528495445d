//! MPI's matching order, one case at a time; `oracle.rs` has the long random runs.

use efa_match::{Arrived, Forgotten, Match, Matcher, MessageId, Pattern, PostId, Posted, Source};

const A: Source = Source(0);
const B: Source = Source(1);

type Names = Matcher<&'static str, &'static str>;

fn matcher() -> Names {
    Matcher::with_seed(1)
}

/// Posts a receive that no message waits for.
fn wait(matcher: &mut Names, pattern: Pattern, receive: &'static str) -> PostId {
    match matcher.post(pattern, receive) {
        Posted::Waiting(id) => id,
        Posted::Matched(_, message) => panic!("{receive} got {message}"),
    }
}

/// A message without a posted receive arrives.
fn unexpected(matcher: &mut Names, source: Source, tag: u64, message: &'static str) -> MessageId {
    match matcher.arrive(source, tag, message) {
        Arrived::Unexpected(id) => id,
        Arrived::Matched(found) => panic!("{message} went to {found:?}"),
    }
}

/// A message arrives; returns the receive that gets it.
fn arrive(matcher: &mut Names, source: Source, tag: u64) -> &'static str {
    match matcher.arrive(source, tag, "message") {
        Arrived::Matched(Match::Once(receive)) => receive,
        Arrived::Matched(Match::Lasting(post)) => {
            matcher.receive(post).expect("it is still posted")
        }
        Arrived::Unexpected(_) => panic!("no receive for {tag:#x} from {source:?}"),
    }
}

/// libfabric 2.6-dev's shared matcher gives the first message to the later receive here: with an
/// any-source and a directed receive posted, it compares the address of a queue's head instead of its
/// first entry.
// conformance: B3
#[test]
fn any_source_receive_posted_first_gets_first_tagged_message() {
    let mut matcher = matcher();
    wait(&mut matcher, Pattern::any_source(7), "any, older");
    wait(&mut matcher, Pattern::exact(A, 7), "directed, younger");
    assert_eq!(arrive(&mut matcher, A, 7), "any, older");
    assert_eq!(arrive(&mut matcher, A, 7), "directed, younger");
}

/// The same without tags (all tag bits ignored), on which that matcher crashes.
// conformance: B3
#[test]
fn any_source_receive_posted_first_gets_first_untagged_message() {
    let untagged = |source| Pattern { source, tag: 0, ignore: u64::MAX };
    let mut matcher = matcher();
    wait(&mut matcher, untagged(None), "any, older");
    wait(&mut matcher, untagged(Some(A)), "directed, younger");
    assert_eq!(arrive(&mut matcher, A, 3), "any, older");
    assert_eq!(arrive(&mut matcher, A, 4), "directed, younger");
}

// conformance: B3
#[test]
fn directed_receive_posted_first_gets_first_message() {
    let mut matcher = matcher();
    wait(&mut matcher, Pattern::exact(A, 7), "directed, older");
    wait(&mut matcher, Pattern::any_source(7), "any, younger");
    assert_eq!(arrive(&mut matcher, A, 7), "directed, older");
    assert_eq!(arrive(&mut matcher, A, 7), "any, younger");
}

// conformance: B1 B3
#[test]
fn directed_receive_ignores_messages_of_other_sources() {
    let mut matcher = matcher();
    wait(&mut matcher, Pattern::exact(A, 7), "from a");
    wait(&mut matcher, Pattern::any_source(7), "from any");
    assert_eq!(arrive(&mut matcher, B, 7), "from any");
    unexpected(&mut matcher, B, 7, "left over");
    assert_eq!(arrive(&mut matcher, A, 7), "from a");
}

/// MPI's communicator, source rank and user tag packed into a tag, each with its wildcard as a mask.
// conformance: B1
#[test]
fn communicator_rank_and_user_tag_match_with_wildcards() {
    let packed = |communicator: u64, rank: u64, user: u64| communicator << 48 | rank << 32 | user;
    let (any_rank, any_user) = (0xffff << 32, 0xffff_ffff);
    let receive = |tag, ignore| Pattern { source: None, tag, ignore };
    let mut matcher = matcher();
    wait(&mut matcher, receive(packed(1, 5, 9), 0), "comm 1, rank 5, tag 9");
    wait(&mut matcher, receive(packed(1, 0, 9), any_rank), "comm 1, any rank, tag 9");
    wait(&mut matcher, receive(packed(1, 6, 0), any_user), "comm 1, rank 6, any tag");
    wait(&mut matcher, receive(packed(2, 0, 0), any_rank | any_user), "comm 2, any, any");
    unexpected(&mut matcher, A, packed(3, 5, 9), "of another communicator");
    assert_eq!(arrive(&mut matcher, A, packed(2, 6, 8)), "comm 2, any, any");
    assert_eq!(arrive(&mut matcher, A, packed(1, 6, 8)), "comm 1, rank 6, any tag");
    assert_eq!(arrive(&mut matcher, A, packed(1, 6, 9)), "comm 1, any rank, tag 9");
    assert_eq!(arrive(&mut matcher, A, packed(1, 5, 9)), "comm 1, rank 5, tag 9");
}

// conformance: B2 B6
#[test]
fn equal_messages_are_received_in_order_of_arrival() {
    let mut matcher = matcher();
    for message in ["first", "second", "third"] {
        unexpected(&mut matcher, A, 7, message);
    }
    assert_eq!(matcher.post(Pattern::exact(A, 7), "x"), Posted::Matched("x", "first"));
    assert_eq!(matcher.post(Pattern::any_source(7), "y"), Posted::Matched("y", "second"));
    let low_bits = Pattern { source: None, tag: 7, ignore: !0xf };
    assert_eq!(matcher.post(low_bits, "z"), Posted::Matched("z", "third"));
    assert_eq!(matcher.unexpected_len(), 0);
}

/// The earliest of any source, whichever class the receive is of.
// conformance: B3 B6
#[test]
fn any_source_receive_gets_earliest_unexpected_message() {
    let mut matcher = matcher();
    unexpected(&mut matcher, B, 7, "b first");
    unexpected(&mut matcher, A, 7, "a second");
    unexpected(&mut matcher, B, 7, "b third");
    assert_eq!(matcher.post(Pattern::any_source(7), "x"), Posted::Matched("x", "b first"));
    assert_eq!(matcher.post(Pattern::exact(B, 7), "y"), Posted::Matched("y", "b third"));
    assert_eq!(matcher.post(Pattern::any_source(7), "z"), Posted::Matched("z", "a second"));
}

// conformance: B4 B5
#[test]
fn message_goes_to_later_receive_if_earlier_ones_reject_it() {
    let mut matcher = matcher();
    wait(&mut matcher, Pattern::exact(A, 1), "for 1");
    wait(&mut matcher, Pattern::exact(A, 2), "for 2");
    assert_eq!(arrive(&mut matcher, A, 2), "for 2");
    assert_eq!((matcher.posted_len(), matcher.unexpected_len()), (1, 0));
    assert_eq!(arrive(&mut matcher, A, 1), "for 1");
}

/// All combinations of three bits each, compared with the definition in OFI's API.
// conformance: C110 B49
#[test]
fn ignore_is_the_inverse_of_a_mask_of_compared_bits() {
    // The three bits at the bottom, across the middle and at the top of the tag.
    for shift in [0, 31, 61] {
        for bits in 0..512u64 {
            let part = |n: u64| (bits >> (3 * n) & 7) << shift;
            let (sent, tag, ignore) = (part(0), part(1), part(2));
            let ofi = sent | ignore == tag | ignore;
            let mask = !ignore;
            assert_eq!(sent & mask == tag & mask, ofi, "the two definitions");
            let pattern = Pattern { source: None, tag, ignore };
            assert_eq!(pattern.accepts(A, sent), ofi);

            let mut posted_first = matcher();
            wait(&mut posted_first, pattern, "receive");
            assert_eq!(posted_first.match_posted(A, sent).is_some(), ofi, "{pattern:x?} {sent:x}");
            let mut arrived_first = matcher();
            unexpected(&mut arrived_first, A, sent, "message");
            assert_eq!(arrived_first.take(&pattern).is_some(), ofi, "{pattern:x?} {sent:x}");
        }
    }
}

/// For sources and tags.
#[test]
fn pattern_accepts_exactly_what_the_matcher_matches() {
    for only in [None, Some(A), Some(B)] {
        for ignore in [0, 1, 2, !0] {
            let pattern = Pattern { source: only, tag: 2, ignore };
            for source in [A, B] {
                for tag in 0..4 {
                    let fits = only.is_none_or(|only| only == source)
                        && (ignore == !0 || tag == 2 || tag == 2 ^ ignore);
                    assert_eq!(pattern.accepts(source, tag), fits, "{pattern:?}: {source:?} {tag}");
                    let mut matcher = matcher();
                    wait(&mut matcher, pattern, "receive");
                    assert_eq!(matcher.match_posted(source, tag).is_some(), fits);
                }
            }
        }
    }
}

/// A device carries the identifier as a number.
#[test]
fn post_id_round_trips_through_bits() {
    let mut matcher = matcher();
    let first = wait(&mut matcher, Pattern::exact(A, 1), "first");
    let second = wait(&mut matcher, Pattern::exact(A, 2), "second");
    assert_eq!(matcher.cancel(PostId::from_bits(second.to_bits())), Some("second"));
    assert_eq!(matcher.cancel(PostId::from_bits(second.to_bits())), None);
    // The same index again.
    let third = wait(&mut matcher, Pattern::exact(A, 3), "third");
    let posts = [first, second, third];
    for (n, post) in posts.into_iter().enumerate() {
        assert_eq!(PostId::from_bits(post.to_bits()), post);
        assert!(posts[..n].iter().all(|other| other.to_bits() != post.to_bits()));
    }
    for bits in [u64::MAX, 7 << 32, 7] {
        assert_eq!(matcher.cancel(PostId::from_bits(bits)), None);
    }
    assert_eq!(matcher.cancel(PostId::from_bits(third.to_bits())), Some("third"));
}

/// Also with duplicate tags.
// conformance: C110
#[test]
fn receive_that_ignores_all_bits_gets_any_message() {
    let everything = Pattern { source: None, tag: 0x1234, ignore: u64::MAX };
    let mut matcher = matcher();
    for tag in [0, 7, 7, u64::MAX] {
        wait(&mut matcher, everything, "receive");
        assert_eq!(arrive(&mut matcher, B, tag), "receive");
    }
}

#[test]
fn lasting_receive_keeps_its_position_until_cancelled() {
    let mut matcher = matcher();
    wait(&mut matcher, Pattern::exact(A, 7), "oldest");
    let lasting = matcher.post_lasting(Pattern::any_source(7), "lasting");
    wait(&mut matcher, Pattern::exact(A, 7), "youngest");
    assert_eq!(arrive(&mut matcher, A, 7), "oldest");
    for source in [A, B, A] {
        let found = matcher.match_posted(source, 7);
        assert_eq!(found, Some(Match::Lasting(lasting)));
        assert_eq!(matcher.receive(lasting), Some(&"lasting"));
    }
    assert_eq!(matcher.cancel(lasting), Some("lasting"));
    assert_eq!(matcher.cancel(lasting), None);
    assert_eq!(matcher.match_posted(A, 7), Some(Match::Once("youngest")));
    assert_eq!(matcher.match_posted(A, 7), None);
}

#[test]
fn lasting_receive_does_not_match_unexpected_messages() {
    let mut matcher = matcher();
    unexpected(&mut matcher, A, 7, "first");
    unexpected(&mut matcher, B, 7, "second");
    let seven = Pattern::any_source(7);
    matcher.post_lasting(seven, "lasting");
    assert_eq!(matcher.take(&seven), Some("first"));
    assert_eq!(matcher.take(&seven), Some("second"));
    assert_eq!(matcher.take(&seven), None);
    assert_eq!(arrive(&mut matcher, A, 7), "lasting");
}

#[test]
fn stale_id_refers_to_nothing_after_its_index_is_reused() {
    let mut matcher = matcher();
    let stale_post = wait(&mut matcher, Pattern::exact(A, 7), "old");
    assert_eq!(arrive(&mut matcher, A, 7), "old");
    assert_eq!(matcher.cancel(stale_post), None);
    let post = wait(&mut matcher, Pattern::exact(A, 7), "new");
    assert_eq!(matcher.cancel(stale_post), None);
    assert_eq!(matcher.cancel(post), Some("new"));

    let stale_message = unexpected(&mut matcher, A, 7, "old");
    assert_eq!(matcher.take(&Pattern::exact(A, 7)), Some("old"));
    assert_eq!(matcher.withdraw(stale_message), None);
    let message = unexpected(&mut matcher, A, 7, "new");
    assert_eq!(matcher.withdraw(stale_message), None);
    assert_eq!(matcher.withdraw(message), Some("new"));
    assert_eq!(matcher.unexpected_len(), 0);
}

#[test]
fn peeked_message_stays_and_taken_message_matches_no_receive() {
    let mut matcher = matcher();
    let seven = Pattern::exact(A, 7);
    assert_eq!(matcher.peek(&seven), None);
    unexpected(&mut matcher, A, 7, "first");
    unexpected(&mut matcher, A, 7, "second");
    assert_eq!(matcher.peek(&seven), Some("first"));
    assert_eq!(matcher.peek(&seven), Some("first"));
    assert_eq!(matcher.take(&seven), Some("first"));
    assert_eq!(matcher.post(seven, "receive"), Posted::Matched("receive", "second"));
}

#[test]
fn match_posted_does_not_keep_the_message() {
    let mut matcher = matcher();
    assert_eq!(matcher.match_posted(A, 7), None);
    assert_eq!(matcher.unexpected_len(), 0);
    wait(&mut matcher, Pattern::exact(A, 7), "receive");
    assert_eq!(matcher.match_posted(A, 7), Some(Match::Once("receive")));
}

#[test]
fn forgetting_a_source_keeps_other_sources_and_any_source_receives() {
    let mut matcher = matcher();
    wait(&mut matcher, Pattern::exact(A, 1), "a1");
    wait(&mut matcher, Pattern::any_source(2), "any2");
    wait(&mut matcher, Pattern { source: Some(A), tag: 3, ignore: 0xff }, "a3");
    wait(&mut matcher, Pattern::exact(B, 1), "b1");
    unexpected(&mut matcher, A, 0x900, "a first");
    unexpected(&mut matcher, B, 0x900, "b first");
    unexpected(&mut matcher, A, 0x901, "a second");
    let gone = matcher.forget_source(A);
    let receives = vec!["a1", "a3"];
    assert_eq!(gone, Forgotten { receives, messages: vec!["a first", "a second"] });
    assert_eq!((matcher.posted_len(), matcher.unexpected_len()), (2, 1));
    assert_eq!(arrive(&mut matcher, A, 2), "any2");
    assert_eq!(arrive(&mut matcher, B, 1), "b1");
    assert_eq!(matcher.take(&Pattern::any_source(0x900)), Some("b first"));
}

/// Source 0 is not "any source".
#[test]
fn forgetting_source_zero_keeps_any_source_receives() {
    let mut matcher = matcher();
    wait(&mut matcher, Pattern::any_source(7), "any");
    let nothing = Forgotten { receives: vec![], messages: vec![] };
    assert_eq!(matcher.forget_source(A), nothing);
    assert_eq!(arrive(&mut matcher, B, 7), "any");
}

/// The fast path does not pass over a waiting message.
#[test]
fn vacancy_is_none_while_a_message_is_unexpected() {
    let mut matcher = matcher();
    let pattern = Pattern::any_source(7);
    let first = wait(&mut matcher, pattern, "first");
    // No table has to grow for two more.
    for gone in [(); 2].map(|()| wait(&mut matcher, pattern, "gone")) {
        assert_eq!(matcher.cancel(gone), Some("gone"));
    }
    matcher.vacancy(&pattern).unwrap().fill("second");
    unexpected(&mut matcher, A, 8, "another");
    assert!(matcher.vacancy(&pattern).is_none());
    assert_eq!(matcher.take(&Pattern::any_source(8)), Some("another"));
    assert_eq!(matcher.cancel(first), Some("first"));
    assert_eq!(arrive(&mut matcher, A, 7), "second");
    assert_eq!(matcher.posted_len(), 0, "a vacancy that is not filled posts nothing");
}

#[test]
fn receive_matched_at_once_is_no_longer_posted() {
    let mut matcher = matcher();
    for _ in 0..3 {
        wait(&mut matcher, Pattern::any_source(7), "receive");
        assert_eq!(matcher.posted_len(), 1);
        assert_eq!(matcher.match_at_once(A, 7), Some("receive"));
        assert_eq!(matcher.posted_len(), 0);
    }
}

/// Also if a receive reuses the index of an earlier one.
#[test]
fn receives_are_drained_in_order_of_posting() {
    let mut matcher = matcher();
    let first = wait(&mut matcher, Pattern::any_source(1), "first");
    wait(&mut matcher, Pattern::any_source(2), "second");
    wait(&mut matcher, Pattern::exact(A, 2), "third");
    assert_eq!(matcher.cancel(first), Some("first"));
    wait(&mut matcher, Pattern::exact(A, 3), "fourth");
    wait(&mut matcher, Pattern::any_source(3), "fifth");
    assert_eq!(matcher.forget_source(A).receives, ["third", "fourth"]);
    assert_eq!(matcher.drain().receives, ["second", "fifth"]);
}
