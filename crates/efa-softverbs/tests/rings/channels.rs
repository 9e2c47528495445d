//! Completion queues with a channel: the program asks for events by the doorbell of the ring, and sleeps.

use std::thread;
use std::time::Duration;

use efa_soft::abi::*;

use super::program::*;
use super::{Pair, SLEEPING};
use crate::common::verbs::*;

/// Milliseconds; far longer than anything takes here.
const TIMEOUT: i32 = 30_000;

/// The next completion of `b`, for which the thread sleeps.
fn sleep_for_completion(pair: &mut Pair) -> Completed {
    loop {
        if let Some(seen) = pair.b.poll() {
            return seen;
        }
        pair.b.ask();
        if let Some(seen) = pair.b.poll() {
            return seen;
        }
        assert!(pair.b.end.has_event(TIMEOUT), "no event");
        assert!(pair.b.end.take_event());
    }
}

#[test]
fn program_that_asks_by_the_doorbell_is_woken_by_the_next_completion() {
    let mut pair = Pair::new(SLEEPING());
    assert!(!pair.b.end.has_event(0), "nothing was asked for");
    for id in 0..50 {
        pair.receive(id, 0, 64);
        pair.b.ask_and_wait();
        assert!(!pair.b.end.has_event(0), "nothing has arrived");
        pair.send(pair.request(id).inline(b"event"));
        assert!(pair.b.end.has_event(TIMEOUT));
        assert!(pair.b.end.take_event());
        assert_eq!((pair.b.wait().id, pair.a.wait().status), (id, 0));
    }
}

#[test]
fn thread_that_sleeps_for_each_completion_misses_none() {
    let mut pair = Pair::new(SLEEPING());
    let mut received = 0;
    for batch in (1..=16).cycle().take(200) {
        for id in 0..batch {
            pair.receive(id, 0, 64);
        }
        for id in 0..batch {
            pair.send(pair.request(id).inline(b"event"));
        }
        for _ in 0..batch {
            let seen = sleep_for_completion(&mut pair);
            assert_eq!((seen.status, seen.length), (0, 5));
            received += 1;
        }
        for _ in 0..batch {
            assert_eq!(pair.a.wait().status, 0);
        }
    }
    assert_eq!(received, 200 / 16 * 136 + (1..=200 % 16).sum::<u32>());
}

#[test]
fn program_that_asks_with_completions_left_gets_the_event_at_once() {
    let mut pair = Pair::new(SLEEPING());
    pair.receive(1, 0, 64);
    pair.send(pair.request(2).inline(b"event"));
    assert_eq!(pair.a.wait().status, 0);
    pair.b.ask();
    assert!(pair.b.end.has_event(TIMEOUT), "the completion is there already");
    assert!(pair.b.end.take_event());
    assert_eq!(pair.b.wait().id, 1);
    pair.b.ask_and_wait();
    assert!(!pair.b.end.has_event(0), "it was taken");
}

#[test]
fn event_is_for_the_call_and_the_doorbell_alike() {
    let mut pair = Pair::new(SLEEPING());
    pair.receive(1, 0, 64);
    assert_eq!(pair.b.end.request_event(0), 0);
    pair.send(pair.request(2).inline(b"event"));
    assert!(pair.b.end.has_event(TIMEOUT));
    assert!(pair.b.end.take_event());
    assert_eq!(pair.b.wait().id, 1);
}

#[test]
fn queue_is_destroyed_while_it_is_armed_and_with_unread_events() {
    for asks_late in [false, true] {
        let mut pair = Pair::new(SLEEPING());
        pair.receive(1, 0, 64);
        if asks_late {
            pair.send(pair.request(2).inline(b"event"));
            assert_eq!(pair.a.wait().status, 0);
        }
        pair.b.ask_and_wait();
        if asks_late {
            assert!(pair.b.end.has_event(TIMEOUT));
        }
    }
}

/// As libfabric does: no call tells the library that the event was taken.
#[test]
fn event_that_is_read_from_the_descriptor_names_the_queue() {
    let mut pair = Pair::new(SLEEPING());
    for id in 0..3 {
        pair.receive(id, 0, 64);
        pair.b.ask_and_wait();
        pair.send(pair.request(id).inline(b"event"));
        let mut event = [0_u8; 16];
        // SAFETY: `event` may be written, and the descriptor is open.
        let read = unsafe { libc::read(pair.b.end.descriptor(), event.as_mut_ptr().cast(), 8) };
        assert_eq!(read, 8);
        assert_eq!(event[..8], pair.b.end.cq.addr().to_ne_bytes());
        assert_eq!((pair.b.wait().id, pair.a.wait().status), (id, 0));
    }
}

/// More events than a pipe has room for.
#[test]
fn channel_that_is_never_read_holds_up_nothing() {
    let mut pair = Pair::new(SLEEPING());
    pair.b.end.set_nonblocking();
    pair.receive(1, 0, 64);
    pair.send(pair.request(2).inline(b"event"));
    assert_eq!(pair.a.wait().status, 0);
    for _ in 0..10_000 {
        pair.b.ask_and_wait();
    }
    assert_eq!(pair.b.wait().id, 1);
    let mut events = 0;
    while pair.b.end.take_event() {
        events += 1;
    }
    assert!((1000..10_000).contains(&events), "{events}");
    pair.receive(3, 0, 64);
    pair.b.ask_and_wait();
    pair.send(pair.request(4).inline(b"event"));
    assert!(pair.b.end.has_event(TIMEOUT), "the channel works again");
    assert!(pair.b.end.take_event());
    assert_eq!(pair.b.wait().id, 3);
}

#[test]
fn random_words_at_the_doorbell_do_no_harm() {
    let seed = fastrand::u64(..);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut pair = Pair::new(SLEEPING());
    pair.b.end.set_nonblocking();
    for id in 0..500 {
        for _ in 0..rng.u32(0..4) {
            pair.b.ring_completions(rng.u32(..));
        }
        pair.receive(id, 0, 64);
        pair.send(pair.request(id).inline(b"event"));
        assert_eq!((pair.a.wait().status, pair.b.wait().id), (0, id), "seed {seed}");
    }
    while pair.b.end.take_event() {}
    pair.receive(1, 0, 64);
    pair.b.ask_and_wait();
    pair.send(pair.request(1).inline(b"event"));
    assert!(pair.b.end.has_event(TIMEOUT), "seed {seed}");
    assert!(pair.b.end.take_event());
}

/// A sleeping thread in the middle of other work: the other side takes its time.
#[test]
fn sleeper_is_woken_by_a_message_that_comes_late() {
    let mut pair = Pair::new(SLEEPING());
    pair.receive(1, 0, 64);
    pair.b.ask();
    thread::sleep(Duration::from_millis(50));
    assert!(!pair.b.end.has_event(0));
    pair.send(pair.request(2).inline(b"event"));
    assert!(pair.b.end.has_event(TIMEOUT));
    assert!(pair.b.end.take_event());
    assert_eq!((pair.b.wait().id, pair.a.wait().status), (1, 0));
}

/// A program whose structure has no room for the doorbell couldn't sleep.
#[test]
fn ring_of_a_queue_with_a_channel_is_refused_to_a_program_that_takes_no_doorbell() {
    set_up();
    let end = Endpoint::in_reset(SLEEPING());
    let mut attributes: efadv_cq_attr = zeroed();
    let length = std::mem::offset_of!(efadv_cq_attr, doorbell) as u32;
    // SAFETY: the arguments are valid.
    let result = unsafe { (verbs().efadv_query_cq)(end.cq.cast(), &raw mut attributes, length) };
    assert_eq!(result, libc::EOPNOTSUPP);
}
