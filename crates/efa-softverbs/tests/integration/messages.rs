//! Sends and receives.

use efa_soft::abi::*;

use super::*;

#[test]
fn message_arrives_with_data_length_and_source() {
    let (a, b) = pair(QpOptions::default());
    let sent: Vec<u8> = (0..100).collect();
    let memory = Memory::of(&sent);
    let buffer = Memory::of(&[0; 200]);
    let (from, into) = (a.register(&memory, 0), b.register(&buffer, IBV_ACCESS_LOCAL_WRITE));
    let (handle, back) = (a.handle(b.gid()), b.handle(a.gid()));
    let to = (handle, b.number(), b.qkey);
    assert_eq!(b.post_receive(1, sge(into, 0, 100)), 0);
    assert_eq!(b.post_receive(2, sge(into, 100, 100)), 0);
    assert_eq!(a.post_send(3, to, &[sge(from, 10, 20), sge(from, 50, 5)], 0), 0);
    assert_eq!(a.post_send(4, to, &[inline(b"inline")], IBV_SEND_INLINE), 0);
    let mut ahn = efadv_ah_attr::default();
    // SAFETY: all arguments are valid.
    assert_eq!(unsafe { (verbs().efadv_query_ah)(back, &raw mut ahn, 16) }, 0);
    let receive = |wr_id, length| Completion {
        wr_id,
        status: IBV_WC_SUCCESS,
        vendor: 0,
        opcode: IBV_WC_RECV,
        length,
        qpn: b.number(),
        source: a.number(),
        handle: ahn.ahn.into(),
        gid: None,
        immediate: None,
    };
    assert_eq!(b.wait(), receive(1, 25));
    assert_eq!(b.wait(), receive(2, 6));
    assert_eq!(buffer.bytes()[..25], [&sent[10..30], &sent[50..55]].concat());
    assert_eq!(&buffer.bytes()[100..106], b"inline");
    for wr_id in [3, 4] {
        let seen = a.wait();
        assert_eq!((seen.wr_id, seen.status, seen.opcode), (wr_id, IBV_WC_SUCCESS, IBV_WC_SEND));
        assert_eq!(seen.qpn, a.number());
    }
    assert_eq!((a.poll(), b.poll()), (None, None));
    [handle, back].into_iter().for_each(destroy);
    [from, into].into_iter().for_each(deregister);
}

#[test]
fn receiver_with_posted_buffers_causes_no_rnr() {
    const COUNT: usize = 200;
    let options = QpOptions { rnr_retry: 0, sends: 256, receives: 256, ..QpOptions::default() };
    let (a, b) = pair(options);
    let sent: Vec<u8> = (0..=255).collect();
    let (memory, buffer) = (Memory::of(&sent), Memory::of(&[0; COUNT * 16]));
    let (from, into) = (a.register(&memory, 0), b.register(&buffer, IBV_ACCESS_LOCAL_WRITE));
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    // `rnr_retry` is 0, so a send that finds no buffer fails at once.
    let length = |number: usize| 1 + number * 7 % 16;
    for number in 0..COUNT {
        assert_eq!(b.post_receive(number as u64, sge(into, number * 16, length(number))), 0);
    }
    for number in 0..COUNT {
        assert_eq!(a.post_send(number as u64, to, &[sge(from, number, length(number))], 0), 0);
    }
    for number in 0..COUNT {
        let seen = b.wait();
        let got = (seen.wr_id as usize, seen.status, seen.length as usize);
        assert_eq!(got, (number, IBV_WC_SUCCESS, length(number)));
        let seen = a.wait();
        assert_eq!((seen.wr_id as usize, seen.status), (number, IBV_WC_SUCCESS));
    }
    let bytes = buffer.bytes();
    for number in 0..COUNT {
        let (here, end) = (&bytes[number * 16..][..16], length(number));
        assert_eq!(here[..end], sent[number..][..end]);
        assert!(here[end..].iter().all(|byte| *byte == 0), "behind buffer {number}");
    }
    // One more than there are buffers.
    assert_eq!(a.post_send(1, to, &[sge(from, 0, 1)], 0), 0);
    let refused = loop {
        assert_eq!(b.poll(), None);
        if let Some(seen) = a.poll() {
            break seen;
        }
    };
    assert_eq!(refused.status, IBV_WC_RNR_RETRY_EXC_ERR);
    destroy(handle);
    [from, into].into_iter().for_each(deregister);
}

#[test]
fn ud_receive_leaves_40_bytes_of_headroom() {
    let (a, b) = pair(QpOptions { ud: true, ..QpOptions::default() });
    let buffer = Memory::of(&[9; 100]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    assert_eq!(b.post_receive(1, sge(into, 0, 39)), libc::EINVAL);
    assert_eq!(b.post_receive(1, sge(into, 0, 46)), 0);
    assert_eq!(a.post_send(2, to, &[inline(b"abcdef")], IBV_SEND_INLINE), 0);
    let seen = b.wait();
    assert_eq!((seen.wr_id, seen.length), (1, 46));
    assert_eq!(buffer.bytes()[..40], [9; 40]);
    assert_eq!(&buffer.bytes()[40..46], b"abcdef");
    assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    destroy(handle);
    deregister(into);
}

/// As UD does everywhere: what happens at the receiver is not reported, and no sender waits for it.
#[test]
fn ud_send_that_nobody_takes_completes_with_success() {
    let (a, b) = pair(QpOptions { ud: true, sends: 1, ..QpOptions::default() });
    let memory = Memory::of(&[1; 100]);
    let (from, into) = (a.register(&memory, 0), b.register(&memory, IBV_ACCESS_LOCAL_WRITE));
    let (handle, elsewhere) = (a.handle(b.gid()), a.handle([7; 16]));
    let to = (handle, b.number(), b.qkey);
    let run = |to, entry, expected| {
        assert_eq!(a.post_send(1, to, &[entry], 0), 0);
        assert_eq!(a.wait().status, expected);
    };
    // It has had no buffer yet.
    run(to, sge(from, 0, 8), IBV_WC_SUCCESS);
    assert_eq!(b.post_receive(2, sge(into, 0, 60)), 0);
    run(to, sge(from, 0, 21), IBV_WC_SUCCESS);
    run((handle, b.number(), b.qkey + 1), sge(from, 0, 8), IBV_WC_SUCCESS);
    run((handle, unused_qpn(), b.qkey), sge(from, 0, 8), IBV_WC_SUCCESS);
    run((elsewhere, b.number(), b.qkey), sge(from, 0, 8), IBV_WC_SUCCESS);
    assert_eq!(b.poll(), None);
    // What is wrong on this side is reported.
    run(to, sge(from, 99, 2), IBV_WC_LOC_PROT_ERR);
    run(to, sge(from, 0, 7), IBV_WC_SUCCESS);
    assert_eq!((b.wait().wr_id, b.poll()), (2, None));
    run(to, sge(from, 0, 8), IBV_WC_SUCCESS);
    [handle, elsewhere].into_iter().for_each(destroy);
    [from, into].into_iter().for_each(deregister);
}

/// libfabric 1.10 posts such entries for datagrams without payload.
#[test]
fn zero_length_entry_needs_no_key() {
    let (a, b) = pair(QpOptions::default());
    let buffer = Memory::of(&[0; 16]);
    let into = b.register(&buffer, ALL_ACCESS);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    let empty = ibv_sge { addr: 0, length: 0, lkey: 0 };
    assert_eq!(b.post_receive(1, sge(into, 0, 16)), 0);
    assert_eq!(b.post_receive(2, empty), 0);
    for wr_id in 3..5 {
        assert_eq!(a.post_send(wr_id, to, &[empty], 0), 0);
        assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    }
    for wr_id in 1..3 {
        let seen = b.wait();
        assert_eq!((seen.wr_id, seen.status, seen.length), (wr_id, IBV_WC_SUCCESS, 0));
    }
    for write in [false, true] {
        let remote = (buffer.address() as u64, rkey(into));
        assert_eq!(a.post_remote(5, to, write, remote, &[empty]), 0);
        assert_eq!(a.wait().status, IBV_WC_SUCCESS, "{write}");
    }
    destroy(handle);
    deregister(into);
}

#[test]
fn undeliverable_send_completes_with_its_reason() {
    let (a, b) = pair(QpOptions { rnr_retry: 0, ..QpOptions::default() });
    use_up_one_buffer(&b);
    let (memory, buffer) = (Memory::of(&[1; 10_000]), Memory::of(&[0; 100]));
    let (from, into) = (a.register(&memory, 0), b.register(&buffer, IBV_ACCESS_LOCAL_WRITE));
    let (handle, elsewhere) = (a.handle(b.gid()), a.handle([7; 16]));
    let to = (handle, b.number(), b.qkey);
    let run = |to, entry, expected: (i32, u32)| {
        assert_eq!(a.post_send(1, to, &[entry], 0), 0);
        let seen = loop {
            if let Some(seen) = a.poll() {
                break seen;
            }
            assert_eq!(b.poll(), None);
        };
        assert_eq!((seen.status, seen.vendor, seen.wr_id), (expected.0, expected.1, 1));
    };
    run(to, sge(from, 0, 8), (IBV_WC_RNR_RETRY_EXC_ERR, 10));
    assert_eq!(b.post_receive(1, sge(into, 0, 100)), 0);
    run((handle, b.number(), b.qkey + 1), sge(from, 0, 8), (IBV_WC_REM_INV_RD_REQ_ERR, 9));
    run((handle, unused_qpn(), b.qkey), sge(from, 0, 8), (IBV_WC_REM_INV_RD_REQ_ERR, 9));
    run((handle, 0x1_0000 | b.number(), b.qkey), sge(from, 0, 8), (IBV_WC_REM_INV_RD_REQ_ERR, 9));
    run(to, sge(from, 0, 101), (IBV_WC_REM_INV_REQ_ERR, 11));
    run(to, sge(from, 0, 8929), (IBV_WC_LOC_LEN_ERR, 6));
    run(to, sge(from, 9_999, 2), (IBV_WC_LOC_PROT_ERR, 5));
    run((elsewhere, b.number(), b.qkey), sge(from, 0, 8), (IBV_WC_RESP_TIMEOUT_ERR, 13));
    // None of these used the buffer.
    assert_eq!(a.post_send(2, to, &[sge(from, 0, 100)], 0), 0);
    assert_eq!(b.wait().length, 100);
    assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    [handle, elsewhere].into_iter().for_each(destroy);
    [from, into].into_iter().for_each(deregister);
}

#[test]
fn request_batch_is_posted_whole_or_not_at_all() {
    let (a, b) = pair(QpOptions { sends: 2, ..QpOptions::default() });
    let buffer = Memory::of(&[0; 100]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    for wr_id in 0..4 {
        assert_eq!(b.post_receive(wr_id, sge(into, 0, 50)), 0);
    }
    let handle = a.handle(b.gid());
    // SAFETY: called as C does, through the queue pair, between `wr_start` and `wr_complete`.
    unsafe {
        let qp = (verbs().ibv_qp_to_qp_ex)(a.qp);
        let send = |count: u64| {
            ((*qp).wr_start.unwrap())(qp);
            for wr_id in 0..count {
                (*qp).wr_id = wr_id;
                ((*qp).wr_send.unwrap())(qp);
                let bytes = b"ab".as_ptr().cast_mut().cast();
                let list = [
                    ibv_data_buf { addr: bytes, length: 1 },
                    ibv_data_buf { addr: bytes, length: 2 },
                ];
                ((*qp).wr_set_inline_data_list.unwrap())(qp, 2, list.as_ptr());
                ((*qp).wr_set_ud_addr.unwrap())(qp, handle, b.number(), b.qkey);
            }
        };
        send(3);
        assert_eq!(((*qp).wr_complete.unwrap())(qp), libc::ENOMEM);
        send(2);
        ((*qp).wr_abort.unwrap())(qp);
        assert_eq!(b.poll(), None, "nothing was posted");
        send(2);
        assert_eq!(((*qp).wr_complete.unwrap())(qp), 0);
        for wr_id in 0..2 {
            assert_eq!((b.wait().wr_id, a.wait().wr_id), (wr_id, wr_id));
        }
        assert_eq!(&buffer.bytes()[..3], b"aab");
        // `wr_complete` returns the error of a request; the next batch is not affected.
        ((*qp).wr_start.unwrap())(qp);
        ((*qp).wr_send.unwrap())(qp);
        assert_eq!(((*qp).wr_complete.unwrap())(qp), libc::EINVAL, "no address");
        ((*qp).wr_start.unwrap())(qp);
        assert_eq!(((*qp).wr_complete.unwrap())(qp), 0, "an empty batch");
    }
    destroy(handle);
    deregister(into);
}

/// Two threads post while two others poll.
#[test]
fn threads_share_queue_pair_without_losing_completions() {
    const EACH: u64 = 500;
    let (a, b) = pair(QpOptions { sends: 64, receives: 64, ..QpOptions::default() });
    let buffer = Memory::of(&[0; 64 * 16]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    for buffer in 0..64 {
        assert_eq!(b.post_receive(buffer, sge(into, 16 * buffer as usize, 16)), 0);
    }
    let handle = a.handle(b.gid());
    let (number, shared) = (b.number(), handle as usize);
    let sender = |first: u64| {
        let a = &a;
        move || {
            for wr_id in first..first + EACH {
                let to = (shared as *mut ibv_ah, number, 0x1234);
                let bytes = wr_id.to_le_bytes();
                while a.post_send(wr_id, to, &[inline(&bytes)], IBV_SEND_INLINE) != 0 {
                    std::thread::yield_now();
                }
            }
        }
    };
    let mut received = Vec::new();
    let sent = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(sender(0));
        scope.spawn(sender(EACH));
        for _ in 0..2 {
            scope.spawn(|| {
                while sent.lock().unwrap().len() < 2 * EACH as usize {
                    if let Some(seen) = a.poll() {
                        assert_eq!(seen.status, IBV_WC_SUCCESS);
                        sent.lock().unwrap().push(seen.wr_id);
                    }
                    std::thread::yield_now();
                }
            });
        }
        while received.len() < 2 * EACH as usize {
            let seen = b.wait();
            let at = 16 * seen.wr_id as usize;
            let bytes = buffer.bytes()[at..][..8].try_into().unwrap();
            received.push(u64::from_le_bytes(bytes));
            assert_eq!(b.post_receive(seen.wr_id, sge(into, at, 16)), 0);
        }
    });
    let mut sent = sent.into_inner().unwrap();
    sent.sort_unstable();
    received.sort_unstable();
    let all: Vec<u64> = (0..2 * EACH).collect();
    assert_eq!((sent, received), (all.clone(), all));
    destroy(handle);
    deregister(into);
}

/// On SRD and on UD, where 40 bytes stay free in front.
#[test]
fn message_of_two_buffers_fills_up_to_three_in_their_order() {
    for ud in [false, true] {
        let options = QpOptions { ud, receive_entries: 3, ..QpOptions::default() };
        let (a, b) = pair(options);
        let headroom = if ud { 40 } else { 0 };
        let (from, into) = (Memory::of(b"....one, two, three"), Memory::of(&[b'.'; 300]));
        let (out, buffers) = (a.register(&from, 0), b.register(&into, IBV_ACCESS_LOCAL_WRITE));
        let handle = a.handle(b.gid());
        let to = (handle, b.number(), b.qkey);
        // The headroom, and the message, go across buffers; the last one isn't filled.
        let entries = [sge(buffers, 200, 30), sge(buffers, 100, 15), sge(buffers, 0, 50)];
        assert_eq!(b.post_receive_list(1, &entries), 0);
        assert_eq!(b.post_receive_list(2, &entries[..0]), if ud { libc::EINVAL } else { 0 });
        assert_eq!(b.post_receive_list(3, &[entries[0]; 4]), libc::EINVAL, "four buffers");
        assert_eq!(a.post_send(1, to, &[sge(out, 4, 5), sge(out, 9, 10)], 0), 0);
        let (seen, sent) = (b.wait(), a.wait());
        assert_eq!((seen.wr_id, seen.status, sent.status), (1, IBV_WC_SUCCESS, IBV_WC_SUCCESS));
        assert_eq!(seen.length, headroom + 15);
        let bytes = into.bytes();
        let order: Vec<_> = [&bytes[200..230], &bytes[100..115], &bytes[..50]].concat();
        let expected = [&vec![b'.'; headroom as usize][..], b"one, two, three"].concat();
        assert_eq!(order[..expected.len()], expected);
        assert_eq!(bytes.iter().filter(|byte| **byte != b'.').count(), 15, "nothing else");
        destroy(handle);
        [out, buffers].into_iter().for_each(deregister);
    }
}

#[test]
fn receive_whose_second_buffer_is_deregistered_completes_with_protection_error() {
    let (a, b) = pair(QpOptions { receive_entries: 2, ..QpOptions::default() });
    let memory = Memory::of(&[0; 16]);
    let kept = b.register(&memory, IBV_ACCESS_LOCAL_WRITE);
    let gone = b.register(&memory, IBV_ACCESS_LOCAL_WRITE);
    let read_only = b.register(&memory, 0);
    let handle = a.handle(b.gid());
    let wrong = [sge(kept, 0, 8), sge(read_only, 8, 8)];
    assert_eq!(b.post_receive_list(1, &wrong), libc::EINVAL);
    assert_eq!(b.post_receive_list(1, &[sge(kept, 0, 8), sge(gone, 8, 8)]), 0);
    deregister(gone);
    let to = (handle, b.number(), b.qkey);
    assert_eq!(a.post_send(1, to, &[inline(&[7; 12])], IBV_SEND_INLINE), 0);
    let seen = b.wait();
    assert_eq!((seen.wr_id, seen.status), (1, IBV_WC_LOC_PROT_ERR));
    assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    destroy(handle);
    [kept, read_only].into_iter().for_each(deregister);
}
