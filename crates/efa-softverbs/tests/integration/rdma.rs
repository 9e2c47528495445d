//! RDMA reads and writes, and immediate data.

use efa_soft::abi::*;

use super::*;

#[test]
fn rdma_read_and_write_check_keys_bounds_and_access() {
    let (a, b) = pair(QpOptions::default());
    let pattern: Vec<u8> = (0..=255).collect();
    let (remote_memory, local_memory) = (Memory::of(&pattern), Memory::of(&[0; 64]));
    let (open, local) =
        (b.register(&remote_memory, ALL_ACCESS), a.register(&local_memory, IBV_ACCESS_LOCAL_WRITE));
    let closed = b.register(&remote_memory, IBV_ACCESS_LOCAL_WRITE);
    let read_only = a.register(&local_memory, 0);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    let base = remote_memory.address() as u64;
    let run = |wr_id, write, remote, entries: &[ibv_sge]| {
        assert_eq!(a.post_remote(wr_id, to, write, remote, entries), 0);
        let seen = a.wait();
        assert_eq!((seen.wr_id, seen.qpn), (wr_id, a.number()));
        (seen.status, seen.vendor, seen.opcode)
    };
    let piece = [sge(local, 10, 32)];
    let read = (IBV_WC_SUCCESS, 0, IBV_WC_SEND);
    assert_eq!(run(1, false, (base + 100, rkey(open)), &piece), read, "reported as a send");
    assert_eq!(local_memory.bytes(), [&[0; 10], &pattern[100..132], &[0; 22]].concat());
    let written = (IBV_WC_SUCCESS, 0, IBV_WC_RDMA_WRITE);
    assert_eq!(run(2, true, (base, rkey(open)), &[sge(local, 0, 10)]), written);
    assert_eq!(remote_memory.bytes()[..12], [&[0; 10], &pattern[10..12]].concat());
    // No bytes and no region; then more than one range.
    assert_eq!(run(2, true, (base, rkey(open)), &[]), written);
    let two = [sge(local, 0, 10), sge(local, 32, 32)];
    assert_eq!(a.post_remote(3, to, false, (base, rkey(open)), &two), libc::EINVAL);
    // Status 7: remote key, bounds, access. Status 5: local key, access.
    let one = [sge(local, 0, 32)];
    for write in [false, true] {
        for remote in [
            (base + 225, rkey(open)),
            (base - 1, rkey(open)),
            (u64::MAX, rkey(open)),
            (base, rkey(closed)),
            (base, rkey(open) ^ 1),
            (base, 0),
        ] {
            let (status, vendor, _) = run(3, write, remote, &one);
            assert_eq!((status, vendor), (IBV_WC_REM_ACCESS_ERR, 7), "{remote:x?} {write}");
        }
    }
    let (status, vendor, _) = run(4, false, (base, rkey(open)), &[sge(read_only, 0, 8)]);
    assert_eq!((status, vendor), (IBV_WC_LOC_PROT_ERR, 5));
    let to_unused_qpn = (handle, unused_qpn(), b.qkey);
    assert_eq!(a.post_remote(5, to_unused_qpn, false, (base, rkey(open)), &one), 0);
    assert_eq!(a.wait().vendor, 9);
    // A deregistered region.
    let key = rkey(open);
    deregister(open);
    assert_eq!(run(6, false, (base, key), &one).1, 7);
    [local, closed, read_only].into_iter().for_each(deregister);
    destroy(handle);
}

/// The memory on the other side is in order. Without access instead of unmapped, so that no thread maps something there.
#[test]
fn operation_whose_local_memory_is_not_accessible_any_more_fails_with_a_local_error() {
    const PAGE: usize = 4096;
    let (a, b) = pair(QpOptions::default());
    let theirs = Memory::of(&[7; 2 * PAGE]);
    let remote = b.register(&theirs, ALL_ACCESS);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    let at = (theirs.address() as u64, rkey(remote));
    // SAFETY: the pages are mapped here and unmapped after their last use; the system chooses the place.
    unsafe {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let pages = libc::mmap(null_mut(), 2 * PAGE, protection, flags, -1, 0);
        assert_ne!(pages, libc::MAP_FAILED);
        let access = IBV_ACCESS_LOCAL_WRITE.cast_signed();
        let local = (verbs().ibv_reg_mr)(a.pd, pages, 2 * PAGE, access);
        assert!(!local.is_null(), "errno {}", errno());
        let run = |write| {
            assert_eq!(a.post_remote(1, to, write, at, &[sge(local, 0, 2 * PAGE)]), 0);
            // On links where the peer carries it out, it does so when polled.
            loop {
                assert_eq!(b.poll(), None);
                if let Some(seen) = a.poll() {
                    break (seen.status, seen.vendor);
                }
            }
        };
        assert_eq!([run(false), run(true)], [(IBV_WC_SUCCESS, 0); 2]);
        let last = pages.byte_add(PAGE);
        assert_eq!(libc::mprotect(last, PAGE, libc::PROT_READ), 0);
        assert_eq!(run(false), (IBV_WC_LOC_PROT_ERR, 5), "not writable");
        assert_eq!(run(true), (IBV_WC_SUCCESS, 0));
        assert_eq!(libc::mprotect(last, PAGE, libc::PROT_NONE), 0);
        assert_eq!([run(false), run(true)], [(IBV_WC_LOC_PROT_ERR, 5); 2]);
        deregister(local);
        assert_eq!(libc::munmap(pages, 2 * PAGE), 0);
    }
    destroy(handle);
    deregister(remote);
}

#[test]
fn inline_data_is_written_by_queue_pairs_that_were_created_for_it() {
    let options = QpOptions { max_inline: 80, inline_writes: true, ..QpOptions::default() };
    let (a, b) = pair(options);
    let memory = Memory::of(&[0; 100]);
    let region = b.register(&memory, ALL_ACCESS);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    let base = memory.address() as u64;
    for length in [80, 1, 0] {
        let data = vec![length as u8; length];
        assert_eq!(a.post_inline_write(1, to, (base + 10, rkey(region)), &data), 0);
        let written = a.wait();
        assert_eq!((written.status, written.opcode), (IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE));
        assert_eq!(memory.bytes()[10..10 + length], data);
    }
    assert_eq!(memory.bytes()[89..91], [80, 0]);
    let too_long = a.post_inline_write(1, to, (base, rkey(region)), &[0; 81]);
    assert_eq!(too_long, libc::EINVAL);
    let other = Endpoint::new(QpOptions { inline_writes: false, ..options });
    assert_eq!(other.post_inline_write(1, to, (base, rkey(region)), &[0; 8]), libc::EINVAL);
    deregister(region);
    destroy(handle);
}

/// With both forms of posting and both forms of polling.
#[test]
fn immediate_data_of_sends_and_writes_is_reported() {
    let (a, b) = pair(QpOptions { rnr_retry: 0, ..QpOptions::default() });
    use_up_one_buffer(&b);
    let (remote_memory, local_memory) = (Memory::of(&[0; 64]), Memory::of(b"0123456789"));
    let (open, local) = (b.register(&remote_memory, ALL_ACCESS), a.register(&local_memory, 0));
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    let end = || loop {
        if let Some(seen) = a.poll() {
            return seen;
        }
        assert_eq!(b.poll(), None);
    };
    let remote = (remote_memory.address() as u64 + 40, rkey(open));
    let write = |wr_id, immediate, entries: &[ibv_sge]| {
        assert_eq!(a.post_write_immediate(wr_id, to, remote, entries, immediate), 0);
    };
    // The receiver has no buffer.
    write(1, 7, &[sge(local, 0, 4)]);
    let seen = end();
    assert_eq!((seen.wr_id, seen.opcode), (1, IBV_WC_RDMA_WRITE));
    assert_eq!((seen.status, seen.vendor), (IBV_WC_RNR_RETRY_EXC_ERR, 10));
    // It has one, which is used but not written.
    assert_eq!(b.post_receive(10, sge(open, 0, 32)), 0);
    write(2, u32::MAX, &[sge(local, 2, 8)]);
    let reported = b.wait();
    assert_eq!((reported.wr_id, reported.status), (10, IBV_WC_SUCCESS));
    assert_eq!((reported.opcode, reported.length), (IBV_WC_RECV_RDMA_WITH_IMM, 8));
    assert_eq!((reported.immediate, reported.source), (Some(u32::MAX), a.number()));
    assert_eq!(remote_memory.bytes(), [&[0; 40], &b"23456789"[..], &[0; 16]].concat());
    let seen = a.wait();
    assert_eq!((seen.wr_id, seen.status, seen.opcode), (2, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE));
    assert_eq!(seen.immediate, None);
    // A write of no bytes.
    assert_eq!(b.post_receive(11, sge(open, 0, 32)), 0);
    write(3, 0, &[]);
    let reported = b.wait();
    assert_eq!((reported.wr_id, reported.length, reported.immediate), (11, 0, Some(0)));
    assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    // A refused write is not reported to the receiver.
    let buffers = b.register(&remote_memory, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(b.post_receive(12, sge(buffers, 0, 32)), 0);
    deregister(open);
    write(4, 7, &[sge(local, 0, 4)]);
    assert_eq!(end().vendor, 7);
    // A send, posted by `ibv_post_send` and polled by `ibv_poll_cq`.
    assert_eq!(a.post_send_immediate(5, to, &[inline(b"abc")], 0x0102_0304), 0);
    let mut reported: [ibv_wc; 2] = zeroed();
    // SAFETY: called as C does, through the context.
    unsafe {
        let poll = (*b.context).ops.poll_cq.unwrap();
        while poll(b.cq.cast(), 2, reported.as_mut_ptr()) == 0 {
            std::thread::yield_now();
        }
    }
    assert_eq!((reported[0].wr_id, reported[0].opcode, reported[0].byte_len), (12, IBV_WC_RECV, 3));
    assert_eq!((reported[0].wc_flags, reported[0].imm_data), (IBV_WC_WITH_IMM, 0x0102_0304));
    assert_eq!((a.wait().status, &remote_memory.bytes()[..3]), (IBV_WC_SUCCESS, &b"abc"[..]));
    [local, buffers].into_iter().for_each(deregister);
    destroy(handle);
}
