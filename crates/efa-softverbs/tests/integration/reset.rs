//! Queue pairs that are moved back to RESET.

use efa_soft::abi::*;

use super::*;

fn reset(end: &Endpoint) {
    let mut attributes: ibv_qp_attr = zeroed();
    attributes.qp_state = IBV_QPS_RESET;
    assert_eq!(end.modify(&mut attributes, IBV_QP_STATE), 0);
    // SAFETY: the queue pair exists.
    assert_eq!(unsafe { (*end.qp).state }, IBV_QPS_RESET);
}

/// A message from `a` to `b`, which is received in a buffer of its own.
fn exchange(a: &Endpoint, b: &Endpoint, wr_id: u64) {
    let buffer = Memory::of(&[0; 64]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    assert_eq!(b.post_receive(wr_id, sge(into, 0, 64)), 0);
    let text = format!("message {wr_id}");
    let to = (handle, b.number(), b.qkey);
    assert_eq!(a.post_send(wr_id, to, &[inline(text.as_bytes())], IBV_SEND_INLINE), 0);
    let (received, sent) = (b.wait(), a.wait());
    assert_eq!((received.wr_id, received.status), (wr_id, IBV_WC_SUCCESS));
    assert_eq!((sent.wr_id, sent.status), (wr_id, IBV_WC_SUCCESS));
    assert_eq!(&buffer.bytes()[..text.len()], text.as_bytes());
    destroy(handle);
    deregister(into);
}

#[test]
fn queue_pair_that_was_reset_works_again_with_its_number() {
    let (a, b) = pair(QpOptions::default());
    let numbers = [a.number(), b.number()];
    exchange(&a, &b, 1);
    for round in 2..6 {
        let which = if round % 2 == 0 { &a } else { &b };
        reset(which);
        assert_eq!(connect(which, 7), 0);
        assert_eq!([a.number(), b.number()], numbers);
        exchange(&a, &b, round);
        exchange(&b, &a, round);
    }
    assert_eq!((a.poll(), b.poll()), (None, None));
}

#[test]
fn reset_ends_what_is_outstanding_without_completions() {
    let options = QpOptions { sends: 4, receives: 4, ..QpOptions::default() };
    let (a, b) = pair(options);
    let buffer = Memory::of(&[0; 64]);
    let into = a.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    // These wait for buffers of `b`, whose number they fill the queue with; receives wait for messages.
    for wr_id in 0..4 {
        assert_eq!(a.post_send(wr_id, to, &[inline(b"lost")], IBV_SEND_INLINE), 0);
        assert_eq!(a.post_receive(wr_id, sge(into, 0, 64)), 0);
    }
    assert_eq!(a.post_send(4, to, &[inline(b"lost")], IBV_SEND_INLINE), libc::ENOMEM);
    reset(&a);
    assert_eq!(a.post_send(4, to, &[inline(b"x")], IBV_SEND_INLINE), libc::EINVAL, "in RESET");
    assert_eq!(a.poll(), None);
    assert_eq!(connect(&a, 7), 0);
    assert_eq!(a.poll(), None, "no completion of before");
    // All entries of the queues are free.
    for wr_id in 10..14 {
        assert_eq!(a.post_receive(wr_id, sge(into, 0, 64)), 0);
    }
    let from = b.handle(a.gid());
    let back = (from, a.number(), a.qkey);
    assert_eq!(b.post_send(1, back, &[inline(b"first")], IBV_SEND_INLINE), 0);
    let seen = a.wait();
    assert_eq!((seen.wr_id, seen.status, seen.length), (10, IBV_WC_SUCCESS, 5));
    assert_eq!(b.wait().status, IBV_WC_SUCCESS);
    assert_eq!(&buffer.bytes()[..5], b"first");
    [handle, from].into_iter().for_each(destroy);
    deregister(into);
}

/// In the state ERR with flushed completions that nobody has polled.
#[test]
fn completions_of_before_the_reset_are_gone_and_those_of_others_stay() {
    let options = QpOptions { sends: 2, receives: 2, ..QpOptions::default() };
    let (a, b) = pair(options);
    let other = a.second_queue_pair(options);
    assert_eq!(connect(&other, 7), 0);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    // Sends of unregistered memory complete at once.
    let unregistered = ibv_sge { addr: 1, length: 1, lkey: 1 };
    for wr_id in 0..2 {
        assert_eq!(a.post_send(wr_id, to, &[unregistered], 0), 0);
    }
    assert_eq!(other.post_send(7, to, &[unregistered], 0), 0);
    let buffer = Memory::of(&[0; 64]);
    let into = a.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(a.post_receive(8, sge(into, 0, 64)), 0);
    let mut attributes: ibv_qp_attr = zeroed();
    attributes.qp_state = IBV_QPS_ERR;
    assert_eq!(a.modify(&mut attributes, IBV_QP_STATE), 0);
    reset(&a);
    assert_eq!((a.wait().wr_id, a.poll()), (7, None), "that of the other queue pair alone");
    assert_eq!(connect(&a, 7), 0);
    exchange(&a, &b, 9);
    // SAFETY: the object was created here and is not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_destroy_qp)(other.qp) }, 0);
    destroy(handle);
    deregister(into);
}

/// The number is the address of memory for peers: reads and writes go on too.
#[test]
fn peers_read_and_write_memory_of_a_queue_pair_that_was_reset() {
    let (a, b) = pair(QpOptions::default());
    let (theirs, ours) = (Memory::of(b"theirs"), Memory::of(b"......"));
    let remote = b.register(&theirs, ALL_ACCESS);
    let local = a.register(&ours, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    let at = (theirs.address() as u64, rkey(remote));
    for round in 0..2 {
        assert_eq!(a.post_remote(round, to, false, at, &[sge(local, 0, 6)]), 0);
        // On links where the peer carries it out, it does so when polled.
        let seen = loop {
            assert_eq!(b.poll(), None);
            if let Some(seen) = a.poll() {
                break seen;
            }
        };
        assert_eq!((seen.wr_id, seen.status), (round, IBV_WC_SUCCESS));
        assert_eq!(ours.bytes(), b"theirs");
        reset(&b);
        assert_eq!(connect(&b, 7), 0);
    }
    destroy(handle);
    [remote, local].into_iter().for_each(deregister);
}

/// A thread that sleeps on the channel is woken by what arrives after the reset.
#[test]
fn queue_pair_with_a_channel_wakes_its_program_after_a_reset() {
    let options = QpOptions { channel: true, ..QpOptions::default() };
    let (a, b) = pair(options);
    exchange(&a, &b, 1);
    assert_eq!(b.request_event(0), 0);
    reset(&b);
    assert_eq!(connect(&b, 7), 0);
    let buffer = Memory::of(&[0; 64]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    assert_eq!(b.post_receive(2, sge(into, 0, 64)), 0);
    let to = (handle, b.number(), b.qkey);
    assert_eq!(a.post_send(2, to, &[inline(b"wake up")], IBV_SEND_INLINE), 0);
    assert!(b.has_event(30_000), "no event");
    assert!(b.take_event());
    assert_eq!(b.wait().wr_id, 2);
    assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    destroy(handle);
    deregister(into);
}
