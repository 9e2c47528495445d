//! How work requests complete: receivers that are not ready, queue pairs and address handles that are
//! destroyed, receivers that don't poll.

use std::time::{Duration, Instant};

use efa_soft::abi::*;

use super::*;

/// Pause between two attempts at a receiver without buffers, as `link.rs` sets it.
const RNR_DELAY: Duration = Duration::from_millis(200);
/// `rnr_retry` for retries without end.
const RETRY_FOREVER: u8 = 7;

#[test]
fn failed_queue_pair_flushes_everything_posted() {
    let (a, b) = pair(QpOptions::default());
    let buffer = Memory::of(&[0; 100]);
    let into = a.register(&buffer, ALL_ACCESS);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    for wr_id in 0..3 {
        assert_eq!(a.post_receive(wr_id, sge(into, 0, 10)), 0);
        assert_eq!(a.post_send(10 + wr_id, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    }
    let mut attributes: ibv_qp_attr = zeroed();
    attributes.qp_state = IBV_QPS_ERR;
    assert_eq!(a.modify(&mut attributes, IBV_QP_STATE), 0);
    // Nothing more can be posted.
    assert_eq!(a.post_receive(3, sge(into, 0, 10)), libc::EINVAL);
    assert_eq!(a.post_send(13, to, &[inline(b"x")], IBV_SEND_INLINE), libc::EINVAL);
    assert_eq!(a.post_remote(14, to, false, (0, 1), &[sge(into, 0, 1)]), libc::EINVAL);
    let mut flushed: Vec<_> = std::iter::from_fn(|| a.poll())
        .map(|seen| {
            assert_eq!((seen.status, seen.vendor), (IBV_WC_WR_FLUSH_ERR, 1));
            seen.wr_id
        })
        .collect();
    flushed.sort_unstable();
    assert_eq!(flushed, [0, 1, 2, 10, 11, 12]);
    // Peers don't reach it any more.
    let back = b.handle(a.gid());
    let to = (back, a.number(), a.qkey);
    assert_eq!(b.post_send(1, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    assert_eq!(b.wait().vendor, 9);
    [handle, back].into_iter().for_each(destroy);
    deregister(into);
}

/// The progress thread takes what arrives, so the sender's sends complete.
#[test]
fn receive_is_filled_although_receiver_does_not_poll() {
    let (a, b) = pair(QpOptions::default());
    let buffer = Memory::of(&[0; 16]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(b.post_receive(1, sge(into, 0, 16)), 0);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    assert_eq!(a.post_send(2, to, &[inline(b"hello")], IBV_SEND_INLINE), 0);
    assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    assert_eq!(b.poll().unwrap().wr_id, 1);
    destroy(handle);
    deregister(into);
}

#[test]
fn destroyed_queue_pair_leaves_no_completions() {
    let (a, b) = pair(QpOptions::default());
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    // Polled only after another queue pair of the completion queue is destroyed.
    assert_eq!(a.post_send(1, (handle, unused_qpn(), 1), &[inline(b"x")], IBV_SEND_INLINE), 0);
    let other = create(a.context, a.pd, a.cq, QpOptions::default());
    assert!(!other.is_null());
    // SAFETY: the queue pair is not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_destroy_qp)(other) }, 0);
    assert_eq!(a.wait().vendor, 9);
    assert_eq!(a.post_send(2, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    drop(b);
    assert_eq!(a.wait().vendor, 9);
    destroy(handle);
}

/// Otherwise `fi_pingpong` hangs at its start on busy machines. Once a receiver has had a buffer,
/// `rnr_retry` applies.
#[test]
fn send_waits_for_first_buffer_of_receiver() {
    let (b, _) = pair(QpOptions::default());
    let a = Endpoint::new(QpOptions { rnr_retry: 0, ..QpOptions::default() });
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    assert_eq!(a.post_send(1, to, &[inline(b"early")], IBV_SEND_INLINE), 0);
    for _ in 0..1000 {
        assert_eq!((a.poll(), b.poll()), (None, None));
    }
    let buffer = Memory::of(&[0; 16]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(b.post_receive(2, sge(into, 0, 16)), 0);
    assert_eq!((b.wait().wr_id, a.wait().status), (2, IBV_WC_SUCCESS));
    assert_eq!(a.post_send(3, to, &[inline(b"more")], IBV_SEND_INLINE), 0);
    assert_eq!(a.wait().status, IBV_WC_RNR_RETRY_EXC_ERR);
    destroy(handle);
    deregister(into);
}

/// libfabric sets `rnr_retry` in the transition to RTS, to 3 by default; 7 stands for retries without end.
#[test]
fn send_fails_with_rnr_after_rnr_retry_attempts() {
    let (b, _) = pair(QpOptions::default());
    use_up_one_buffer(&b);
    let senders: Vec<Endpoint> = (0..=RETRY_FOREVER)
        .map(|rnr_retry| {
            let end = Endpoint::in_reset(QpOptions::default());
            assert_eq!(connect(&end, rnr_retry), 0);
            let (mut now, mut made): (ibv_qp_attr, ibv_qp_init_attr) = (zeroed(), zeroed());
            // SAFETY: all arguments are valid.
            let asked = unsafe {
                (verbs().ibv_query_qp)(end.qp, &raw mut now, IBV_QP_RNR_RETRY, &raw mut made)
            };
            assert_eq!((asked, now.rnr_retry, now.qp_state), (0, rnr_retry, IBV_QPS_RTS));
            // The packet sequence number means nothing here, and is what the program has set.
            assert_eq!(now.sq_psn, 0x12_3456);
            end
        })
        .collect();
    let start = Instant::now();
    let handles: Vec<_> = senders.iter().map(|end| end.handle(b.gid())).collect();
    for (sender, &handle) in senders.iter().zip(&handles) {
        let to = (handle, b.number(), b.qkey);
        assert_eq!(sender.post_send(1, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    }
    let mut ended = Vec::new();
    while ended.len() < usize::from(RETRY_FOREVER) {
        assert_eq!(b.poll(), None);
        for (rnr_retry, sender) in (0..).zip(&senders) {
            let Some(seen) = sender.poll() else { continue };
            assert_eq!((seen.status, seen.vendor), (IBV_WC_RNR_RETRY_EXC_ERR, 10));
            assert!(start.elapsed() >= RNR_DELAY * rnr_retry, "{rnr_retry} is too early");
            ended.push(rnr_retry);
        }
    }
    // The order depends on when each sender is polled.
    ended.sort_unstable();
    assert_eq!(ended, (0..u32::from(RETRY_FOREVER)).collect::<Vec<_>>());
    // The one that retries without end is still outstanding, and arrives.
    let buffer = Memory::of(&[0; 16]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(b.post_receive(2, sge(into, 0, 16)), 0);
    assert_eq!(b.wait().source, senders[7].number());
    assert_eq!(senders[7].wait().status, IBV_WC_SUCCESS);
    handles.into_iter().for_each(destroy);
    deregister(into);
}

#[test]
fn rnr_retry_above_7_or_of_ud_is_refused() {
    let (_, ud) = pair(QpOptions { ud: true, ..QpOptions::default() });
    let end = Endpoint::in_reset(QpOptions::default());
    assert_eq!(connect(&end, RETRY_FOREVER + 1), libc::EINVAL);
    let mut attributes: ibv_qp_attr = zeroed();
    attributes.rnr_retry = 1;
    assert_eq!(ud.modify(&mut attributes, IBV_QP_RNR_RETRY), libc::EINVAL, "UD has no retries");
}

#[test]
fn work_completes_although_its_address_handle_is_destroyed() {
    const COUNT: u64 = 32;
    let (a, b) = pair(QpOptions::default());
    // 64 bytes to be read, then one byte for each receive.
    let (buffer, local_memory) = (Memory::of(&[7; 64 + COUNT as usize]), Memory::of(&[0; 64]));
    let (into, local) =
        (b.register(&buffer, ALL_ACCESS), a.register(&local_memory, IBV_ACCESS_LOCAL_WRITE));
    let handle = a.handle(b.gid());
    // Reads are for peers that the target has a handle for, whenever the device carries them out.
    let handle_of_target = b.handle(a.gid());
    let to = (handle, b.number(), b.qkey);
    for wr_id in 0..COUNT {
        assert_eq!(a.post_send(wr_id, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    }
    let remote = (buffer.address() as u64, rkey(into));
    assert_eq!(a.post_remote(COUNT, to, false, remote, &[sge(local, 0, 64)]), 0);
    // The sends are still waiting for buffers.
    destroy(handle);
    for wr_id in 0..COUNT {
        assert_eq!(b.post_receive(wr_id, sge(into, 64 + wr_id as usize, 1)), 0);
    }
    let ended = (0..=COUNT).map(|_| a.wait());
    let mut ended: Vec<_> = ended.map(|seen| (seen.wr_id, seen.status)).collect();
    ended.sort_unstable();
    assert_eq!(ended, (0..=COUNT).map(|wr_id| (wr_id, IBV_WC_SUCCESS)).collect::<Vec<_>>());
    assert_eq!(local_memory.bytes(), [7; 64]);
    for wr_id in 0..COUNT {
        assert_eq!(b.wait().wr_id, wr_id);
    }
    destroy(handle_of_target);
    [into, local].into_iter().for_each(deregister);
}

/// Its work ends without completions; other queue pairs on the completion queue, and peers, work on.
#[test]
fn destroying_busy_queue_pair_leaves_others_undisturbed() {
    let (a, b) = pair(QpOptions::default());
    let buffer = Memory::of(&[0; 64]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    // Another queue pair of the same device on the same completion queue.
    let other = a.second_queue_pair(QpOptions::default());
    assert_eq!(connect(&other, RETRY_FOREVER), 0);
    for wr_id in 0..8 {
        assert_eq!(other.post_send(wr_id, to, &[inline(b"lost")], IBV_SEND_INLINE), 0);
    }
    assert_eq!(a.post_send(8, to, &[inline(b"kept")], IBV_SEND_INLINE), 0);
    // SAFETY: the queue pair is not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_destroy_qp)(other.qp) }, 0);
    // Messages of the destroyed queue pair may still arrive.
    let mut wr_id = 0;
    loop {
        assert_eq!(b.post_receive(wr_id, sge(into, 0, 64)), 0);
        wr_id += 1;
        let seen = b.wait();
        if seen.source == a.number() {
            break;
        }
        assert_eq!(&buffer.bytes()[..4], b"lost");
    }
    assert_eq!(&buffer.bytes()[..4], b"kept");
    let seen = a.wait();
    assert_eq!((seen.wr_id, seen.qpn, seen.status), (8, a.number(), IBV_WC_SUCCESS));
    assert_eq!(a.poll(), None);
    destroy(handle);
    deregister(into);
}

/// A program may deregister memory of a posted receive and use it for something else.
#[test]
fn deregistered_receive_buffer_is_not_written() {
    let (a, b) = pair(QpOptions::default());
    let (buffer, other) = (Memory::of(&[9; 16]), Memory::of(&[0; 16]));
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let still = b.register(&other, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(b.post_receive(1, sge(into, 0, 16)), 0);
    assert_eq!(b.post_receive(2, sge(still, 0, 16)), 0);
    deregister(into);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    for wr_id in 3..5 {
        assert_eq!(a.post_send(wr_id, to, &[inline(b"data")], IBV_SEND_INLINE), 0);
    }
    let seen = b.wait();
    assert_eq!((seen.wr_id, seen.opcode), (1, IBV_WC_RECV));
    assert_eq!((seen.status, seen.vendor), (IBV_WC_LOC_PROT_ERR, 5));
    assert_eq!(buffer.bytes(), [9; 16]);
    assert_eq!((b.wait().wr_id, &other.bytes()[..4]), (2, &b"data"[..]));
    for _ in 3..5 {
        a.wait();
    }
    destroy(handle);
    deregister(still);
}

/// Programs find a queue pair by its number until they destroy it, also in the state ERR.
#[test]
fn failed_queue_pair_keeps_its_number_until_destroyed() {
    let (_, b) = pair(QpOptions::default());
    let failed = b.second_queue_pair(QpOptions::default());
    assert_eq!(connect(&failed, RETRY_FOREVER), 0);
    let mut attributes: ibv_qp_attr = zeroed();
    attributes.qp_state = IBV_QPS_ERR;
    assert_eq!(failed.modify(&mut attributes, IBV_QP_STATE), 0);
    // The device gives out free numbers in turn, or the lowest first.
    let others: Vec<_> = (0..64).map(|_| b.second_queue_pair(QpOptions::default())).collect();
    assert!(others.iter().all(|other| other.number() != failed.number()));
    let handle = b.handle(b.gid());
    for (wr_id, other) in (0..).zip(&others) {
        assert_eq!(connect(other, RETRY_FOREVER), 0);
        // It completes with an error.
        let to = (handle, unused_qpn(), b.qkey);
        assert_eq!(other.post_send(wr_id, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    }
    // Completions of other queue pairs are in the completion queue meanwhile.
    let mut ended = vec![b.wait().wr_id];
    // SAFETY: the queue pair is not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_destroy_qp)(failed.qp) }, 0);
    while ended.len() < others.len() {
        ended.push(b.wait().wr_id);
    }
    ended.sort_unstable();
    assert_eq!(ended, (0..64).collect::<Vec<_>>());
    for other in others {
        // SAFETY: the queue pair is not used afterwards.
        assert_eq!(unsafe { (verbs().ibv_destroy_qp)(other.qp) }, 0);
    }
    destroy(handle);
}

/// An interface doesn't know what the program has polled: it writes on.
#[test]
fn overrun_of_a_completion_queue_loses_the_oldest_completions() {
    let (a, b) = pair(QpOptions::default());
    let v = verbs();
    // SAFETY: all arguments are valid, and what is made is destroyed and not used afterwards.
    unsafe {
        let small = (v.ibv_create_cq)(a.context, 3, null_mut(), null_mut(), 0);
        assert_eq!((*small).cqe, 4, "a power of two");
        let qp = create_with(a.context, a.pd, [small.cast(), a.cq], QpOptions::default());
        let other = Endpoint { qp, ..a };
        assert_eq!(connect(&other, 7), 0);
        let handle = a.handle(b.gid());
        let to = (handle, b.number(), b.qkey);
        // Sends of unregistered memory complete at once.
        let unregistered = ibv_sge { addr: 1, length: 1, lkey: 1 };
        let poll = || {
            let mut completions: [ibv_wc; 8] = zeroed();
            let poll = (*a.context).ops.poll_cq.unwrap();
            let count = poll(small, 8, completions.as_mut_ptr());
            completions[..count as usize].iter().map(|wc| wc.wr_id).collect::<Vec<_>>()
        };
        for wr_id in 0..4 {
            assert_eq!(other.post_send(wr_id, to, &[unregistered], 0), 0);
        }
        assert_eq!(poll(), [0, 1, 2, 3], "a full queue loses nothing");
        for wr_id in 4..10 {
            assert_eq!(other.post_send(wr_id, to, &[unregistered], 0), 0);
        }
        assert_eq!(poll(), [6, 7, 8, 9]);
        // The queue goes on.
        assert_eq!(other.post_send(10, to, &[unregistered], 0), 0);
        assert_eq!(poll(), [10]);
        // The entries of requests whose completions were lost are free only after a reset.
        let mut posted = (0..=64).map(|_| other.post_send(11, to, &[unregistered], 0));
        let refused = posted.find(|&code| code != 0);
        assert_eq!((refused, poll().len()), (Some(libc::ENOMEM), 4));
        for _ in 0..4 {
            assert_eq!(other.post_send(12, to, &[unregistered], 0), 0);
        }
        assert_eq!(poll(), [12; 4]);
        let mut reset: ibv_qp_attr = zeroed();
        assert_eq!(other.modify(&mut reset, IBV_QP_STATE), 0);
        assert_eq!(connect(&other, 7), 0);
        for _ in 0..64 {
            assert_eq!(other.post_send(13, to, &[unregistered], 0), 0);
        }
        assert_eq!((v.ibv_destroy_qp)(qp), 0);
        std::mem::forget(other);
        assert_eq!((v.ibv_destroy_cq)(small), 0);
        destroy(handle);
    }
}
