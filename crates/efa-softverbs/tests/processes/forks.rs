//! Forks.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use efa_soft::abi::*;

use crate::common::verbs::*;
use crate::{Host, LINKS, begin, reap};

/// The child is refused the handles of its parent, opens a device of its own, and sends to the parent.
#[test]
#[ignore = "a child"]
fn child_forks() {
    begin();
    let end = Endpoint::new(QpOptions::default());
    let buffer = Memory::of(&[0; 64]);
    let region = end.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(end.post_receive(1, sge(region, 0, 64)), 0);
    let v = verbs();
    // SAFETY: the only other thread is the library's, which the library is made for. The child ends by
    // `_exit`, without destructors of the parent's objects.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let passed = std::panic::catch_unwind(|| {
            assert_eq!(end.post_receive(2, sge(region, 0, 64)), libc::EINVAL);
            assert_eq!(end.poll(), None);
            // SAFETY: the child's library looks the handles up and doesn't find them.
            unsafe {
                assert_eq!((v.ibv_destroy_qp)(end.qp), libc::EINVAL);
                assert_eq!((v.ibv_dealloc_pd)(end.pd), libc::EINVAL);
                assert_eq!((v.ibv_close_device)(end.context), libc::EINVAL);
            }
            let own = Endpoint::new(QpOptions::default());
            assert_ne!(own.number(), end.number());
            let handle = own.handle(own.gid());
            let to = (handle, end.number(), end.qkey);
            assert_eq!(own.post_send(3, to, &[inline(b"from the child")], IBV_SEND_INLINE), 0);
            assert_eq!(own.wait().status, IBV_WC_SUCCESS);
            // SAFETY: the object was created here and is not used afterwards.
            assert_eq!(unsafe { (v.ibv_destroy_ah)(handle) }, 0);
        });
        // SAFETY: `_exit` has no preconditions.
        unsafe { libc::_exit(i32::from(passed.is_err())) };
    }
    assert_eq!(end.wait().wr_id, 1);
    assert_eq!(&buffer.bytes()[..14], b"from the child");
    reap(child);
    // SAFETY: the object was created here and is not used afterwards.
    assert_eq!(unsafe { (v.ibv_dereg_mr)(region) }, 0);
}

#[test]
fn forked_child_opens_own_device_and_is_refused_handles_of_parent() {
    for link in LINKS {
        Host::new(link).run("forks::child_forks", &[]);
    }
}

/// Forks while another thread sends and polls. Each child opens devices, sends and polls itself, whatever
/// locks threads of the parent held.
#[test]
#[ignore = "a child"]
fn child_forks_during_traffic() {
    const FORKS: usize = 20;
    begin();
    // Loads the library; children must not do that while a thread of the parent does.
    verbs();
    let exchange = |a: &Endpoint, b: &Endpoint, handle, region, buffer| {
        assert_eq!(b.post_receive(1, sge(region, buffer, 8)), 0);
        let to = (handle, b.number(), b.qkey);
        assert_eq!(a.post_send(2, to, &[inline(b"12345678")], IBV_SEND_INLINE), 0);
        assert_eq!((b.wait().wr_id, a.wait().status), (1, IBV_WC_SUCCESS));
    };
    let work = |more: &dyn Fn() -> bool| {
        let (a, b) = (Endpoint::new(QpOptions::default()), Endpoint::new(QpOptions::default()));
        let memory = Memory::of(&[0; 8]);
        let region = b.register(&memory, IBV_ACCESS_LOCAL_WRITE);
        let handle = a.handle(b.gid());
        while more() {
            exchange(&a, &b, handle, region, 0);
        }
        assert_eq!(memory.bytes(), b"12345678");
        // SAFETY: both objects were created here and are not used afterwards.
        unsafe {
            assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
            assert_eq!((verbs().ibv_dereg_mr)(region), 0);
        }
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(&|| !stop.load(Ordering::Relaxed)));
        for _ in 0..FORKS {
            // SAFETY: after the fork the child calls the library, which is made for this, and the
            // allocator, for which glibc is. It ends by `_exit`, without destructors.
            let child = unsafe { libc::fork() };
            if child == 0 {
                begin();
                let rounds = AtomicUsize::new(0);
                let passed = std::panic::catch_unwind(|| {
                    work(&|| rounds.fetch_add(1, Ordering::Relaxed) < 100);
                });
                // SAFETY: `_exit` has no preconditions.
                unsafe { libc::_exit(i32::from(passed.is_err())) };
            }
            reap(child);
        }
        stop.store(true, Ordering::Relaxed);
        worker.join().unwrap();
    });
}

#[test]
fn fork_during_traffic_disturbs_neither_process() {
    for link in LINKS {
        Host::new(link).run("forks::child_forks_during_traffic", &[]);
    }
}

/// Forks between `start_poll` and `end_poll`, and between `wr_start` and `wr_complete`, which hold locks.
/// The child doesn't wait for them.
#[test]
#[ignore = "a child"]
fn child_forks_during_poll_and_batch() {
    begin();
    let end = Endpoint::new(QpOptions::default());
    let handle = end.handle(end.gid());
    let to = (handle, unused_qpn(), end.qkey);
    assert_eq!(end.post_send(1, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    // SAFETY: called as C does, through the structures, in the required order.
    unsafe {
        let (cq, qp) = (end.cq, (verbs().ibv_qp_to_qp_ex)(end.qp));
        let mut attributes = ibv_poll_cq_attr { comp_mask: 0 };
        while ((*cq).start_poll.unwrap())(cq, &raw mut attributes) != 0 {}
        ((*qp).wr_start.unwrap())(qp);
        let child = libc::fork();
        if child == 0 {
            begin();
            let passed = std::panic::catch_unwind(|| {
                assert_eq!(end.poll(), None);
                ((*qp).wr_start.unwrap())(qp);
                ((*qp).wr_send.unwrap())(qp);
                ((*qp).wr_set_ud_addr.unwrap())(qp, handle, unused_qpn(), end.qkey);
                assert_eq!(((*qp).wr_complete.unwrap())(qp), libc::EINVAL);
            });
            libc::_exit(i32::from(passed.is_err()));
        }
        reap(child);
        ((*qp).wr_abort.unwrap())(qp);
        ((*cq).end_poll.unwrap())(cq);
        assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
    }
}

#[test]
fn forked_child_does_not_wait_for_locks_of_parent_threads() {
    Host::new("shm").run("forks::child_forks_during_poll_and_batch", &[]);
}

/// Forks a child that ends by `exit`, whose destructors close the device as libfabric's do.
#[test]
#[ignore = "a child"]
fn child_forks_child_that_exits() {
    begin();
    let end = Endpoint::new(QpOptions::default());
    let buffer = Memory::of(&[0; 64]);
    let region = end.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = end.handle(end.gid());
    for id in 0..3 {
        assert_eq!(end.post_receive(id, sge(region, 0, 64)), 0);
        let to = (handle, end.number(), end.qkey);
        assert_eq!(end.post_send(10 + id, to, &[inline(b"to itself")], IBV_SEND_INLINE), 0);
        // SAFETY: the only other thread is the library's, which the library is made for.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the child's library looks the handles up and doesn't find them. The alarm ends a
            // child that hangs.
            unsafe {
                libc::alarm(60);
                let refused = (verbs().ibv_destroy_qp)(end.qp) == libc::EINVAL
                    && (verbs().ibv_close_device)(end.context) == libc::EINVAL;
                libc::exit(i32::from(!refused))
            }
        }
        reap(child);
        let mut ended = [end.wait().wr_id, end.wait().wr_id];
        ended.sort_unstable();
        assert_eq!(ended, [id, 10 + id]);
        assert_eq!(&buffer.bytes()[..9], b"to itself");
    }
    // SAFETY: both objects were created here and are not used afterwards.
    unsafe {
        assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
        assert_eq!((verbs().ibv_dereg_mr)(region), 0);
    }
}

#[test]
fn forked_child_that_exits_with_destructors_leaves_parent_working() {
    for link in LINKS {
        Host::new(link).run("forks::child_forks_child_that_exits", &[]);
    }
}
