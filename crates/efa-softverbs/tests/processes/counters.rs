//! Completion counters.

use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::FileExt as _;

use efa_soft::abi::*;

use crate::common::verbs::*;
use crate::{Host, LINKS, begin, print, printed, rkey};

const SEND: u32 = IBV_QP_ATTACH_COMP_CNTR_OP_SEND;
const RECEIVE: u32 = IBV_QP_ATTACH_COMP_CNTR_OP_RECV;
const READ: u32 = IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ;
const WRITE: u32 = IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE;
const REMOTE_WRITE: u32 = 32;
/// The largest value; libfabric takes a device with `u64::MAX` for one without counters.
const MOST: u64 = i64::MAX as u64;

fn create(end: &Endpoint) -> *mut ibv_comp_cntr {
    let mut attributes = ibv_comp_cntr_init_attr::default();
    // SAFETY: all arguments are valid.
    unsafe { (verbs().ibv_create_comp_cntr)(end.context, &raw mut attributes) }
}

fn attach(end: &Endpoint, counter: *mut ibv_comp_cntr, op_mask: u32) -> i32 {
    let mut attributes = ibv_qp_attach_comp_cntr_attr { comp_mask: 0, op_mask };
    // SAFETY: all arguments are valid.
    unsafe { (verbs().ibv_qp_attach_comp_cntr)(end.qp, counter, &raw mut attributes) }
}

/// Completed and failed.
fn values(counter: *mut ibv_comp_cntr) -> [u64; 2] {
    let mut values = [u64::MAX; 2];
    // SAFETY: the counter exists, and the numbers are writable.
    unsafe {
        assert_eq!((verbs().ibv_read_comp_cntr)(counter, &raw mut values[0]), 0);
        assert_eq!((verbs().ibv_read_err_comp_cntr)(counter, &raw mut values[1]), 0);
    }
    values
}

fn destroy(counter: *mut ibv_comp_cntr) -> i32 {
    // SAFETY: the counter is not used afterwards, unless this fails.
    unsafe { (verbs().ibv_destroy_comp_cntr)(counter) }
}

/// Sends, reads, writes and receives, with success and without, on counters of their own and a shared one.
#[test]
#[ignore = "a child"]
fn child_counts_completions() {
    begin();
    let options = QpOptions::default();
    let (a, b) = (Endpoint::in_reset(options), Endpoint::in_reset(options));
    let [sends, receives, reads] = [&a, &b, &a].map(create);
    for (end, counter, operations) in
        [(&a, sends, SEND), (&b, receives, RECEIVE | WRITE), (&a, reads, READ | WRITE)]
    {
        assert_eq!(attach(end, counter, operations), 0);
        assert_eq!(destroy(counter), libc::EBUSY, "attached");
    }
    a.make_ready(options);
    b.make_ready(options);
    let memory = Memory::of(&[0; 64]);
    let local = a.register(&memory, IBV_ACCESS_LOCAL_WRITE);
    let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    let remote = b.register(&memory, access);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    for wr_id in 0..3 {
        assert_eq!(b.post_receive(wr_id, sge(remote, 0, 32)), 0);
        assert_eq!(a.post_send(wr_id, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
        assert_eq!((a.wait().status, b.wait().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
        assert_eq!((values(sends), values(receives)), ([wr_id + 1, 0], [wr_id + 1, 0]));
    }
    let unregistered = ibv_sge { addr: 1, length: 1, lkey: 1 };
    assert_eq!(a.post_send(3, to, &[unregistered], 0), 0);
    assert_eq!((a.wait().status, values(sends)), (IBV_WC_LOC_PROT_ERR, [3, 1]));
    let at = (memory.address() as u64, rkey(remote));
    for (write, at, expected) in
        [(false, at, [1, 0]), (true, at, [2, 0]), (false, (at.0, at.1 ^ 1), [2, 1])]
    {
        assert_eq!(a.post_remote(4, to, write, at, &[sge(local, 32, 8)]), 0);
        while a.poll().is_none() {
            assert_eq!(b.poll(), None);
        }
        assert_eq!(values(reads), expected);
    }
    // Flushed receives fail; the counters of others stay.
    assert_eq!(b.post_receive(9, sge(remote, 0, 32)), 0);
    let mut attributes: ibv_qp_attr = zeroed();
    attributes.qp_state = IBV_QPS_ERR;
    assert_eq!(b.modify(&mut attributes, IBV_QP_STATE), 0);
    assert_eq!((values(receives), values(sends)), ([3, 1], [3, 1]));
    print("counted");
    // SAFETY: the objects are not used afterwards, except by their destructors.
    unsafe {
        assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
        assert_eq!((verbs().ibv_dereg_mr)(local), 0);
        assert_eq!((verbs().ibv_dereg_mr)(remote), 0);
    }
    let context = open();
    drop((a, b));
    // Their contexts, from which the counters were created, are closed.
    assert_eq!([sends, receives, reads].map(destroy), [libc::EINVAL; 3]);
    // SAFETY: the context is not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_close_device)(context) }, 0);
}

#[test]
fn counter_counts_completions_of_its_operations() {
    for link in LINKS {
        let settings = [("EFA_SOFT_COUNTERS", "1")];
        let output = Host::new(link).run("counters::child_counts_completions", &settings);
        assert_eq!(printed(&output), ["counted"], "{link}");
    }
}

/// Values in memory and in a file of the program, changes of values, and what is refused.
#[test]
#[ignore = "a child"]
fn child_changes_counters() {
    begin();
    let v = verbs();
    let end = Endpoint::in_reset(QpOptions::default());
    // SAFETY: the name is a C string, and the descriptor is nobody else's.
    let file = unsafe {
        std::fs::File::from_raw_fd(libc::memfd_create(c"efa-test".as_ptr(), libc::MFD_CLOEXEC))
    };
    file.write_all_at(&[0xff; 32], 0).unwrap();
    let own = Box::into_raw(Box::new([7_u64; 2]));
    let in_memory = efadv_memory_location { ptr: own as usize, ..Default::default() };
    let in_file = efadv_memory_location {
        offset: 16,
        fd: file.as_raw_fd(),
        kind: EFADV_MEMORY_LOCATION_DMABUF,
        ..Default::default()
    };
    let create_at = |flags, completed, failed, length| {
        let mut attributes = ibv_comp_cntr_init_attr::default();
        let mut efa = efadv_comp_cntr_init_attr {
            flags,
            comp_cntr_ext_mem: completed,
            err_cntr_ext_mem: failed,
            ..Default::default()
        };
        // SAFETY: the memory exists until the counter is destroyed; wrong addresses are checked.
        let counter = unsafe {
            let attributes = &raw mut attributes;
            (v.efadv_create_comp_cntr)(end.context, attributes, &raw mut efa, length)
        };
        if counter.is_null() { Err(errno()) } else { Ok(counter) }
    };
    let length = size_of::<efadv_comp_cntr_init_attr>() as u32;
    let counter = create_at(3, in_memory, in_file, length).unwrap();
    assert_eq!(attach(&end, counter, SEND | RECEIVE), 0);
    // SAFETY: the counter exists, and numbers are readable and writable.
    unsafe {
        assert_eq!(own.read_volatile(), [0, 7], "begins at 0, and no more is written");
        assert_eq!((v.ibv_set_comp_cntr)(counter, MOST + 1), libc::EINVAL);
        assert_eq!((v.ibv_set_comp_cntr)(counter, MOST), 0);
        assert_eq!((v.ibv_inc_comp_cntr)(counter, 3), 0, "wraps");
        assert_eq!((v.ibv_set_err_comp_cntr)(counter, 40), 0);
        assert_eq!((v.ibv_inc_err_comp_cntr)(counter, 2), 0);
        assert_eq!(own.read_volatile(), [2, 7]);
        let mut value = 0;
        assert_eq!((v.ibv_read_comp_cntr)(counter, &raw mut value), 0);
        assert_eq!(value, 2);
        let error = (v.ibv_read_err_comp_cntr)(counter, &raw mut value);
        assert_eq!(error, libc::EOPNOTSUPP, "the program has it in a file alone");
        assert_eq!((v.ibv_read_comp_cntr)(counter, null_mut()), libc::EINVAL);
    }
    let mut bytes = [0; 32];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let expected = [&[0xff; 16][..], &42_u64.to_le_bytes(), &[0xff; 8]].concat();
    assert_eq!(bytes[..], expected);

    let second = create(&end);
    assert_eq!(attach(&end, second, RECEIVE | READ), libc::EBUSY, "receives have a counter");
    assert_eq!(attach(&end, second, READ | REMOTE_WRITE), libc::EOPNOTSUPP);
    assert_eq!(attach(&end, second, 0), libc::EINVAL);
    assert_eq!(attach(&end, second, READ), 0, "what was refused attached nothing");
    let ready = Endpoint::new(QpOptions::default());
    let third = create(&ready);
    assert_eq!(attach(&ready, third, WRITE), libc::EINVAL, "in RTS");
    assert_eq!(attach(&end, third, WRITE), libc::EINVAL, "of another context");
    assert_eq!(destroy(third), 0);
    assert_eq!(destroy(third), libc::EINVAL);
    let elsewhere = |ptr| efadv_memory_location { ptr, ..in_memory };
    let unknown = efadv_memory_location { kind: 2, ..in_memory };
    let beyond = efadv_memory_location { offset: 32, ..in_file };
    for (flags, place, length, error) in [
        (1, elsewhere(0), length, libc::EINVAL),
        (1, elsewhere(own as usize + 4), length, libc::EINVAL),
        (1, elsewhere(8), length, libc::EFAULT),
        (1, unknown, length, libc::EOPNOTSUPP),
        (1, beyond, length, libc::EINVAL),
        (1, efadv_memory_location { offset: 4, ..in_file }, length, libc::EINVAL),
        (1, efadv_memory_location { fd: -1, ..in_file }, length, libc::EBADF),
        (4, in_memory, length, libc::EOPNOTSUPP),
        (0, in_memory, length - 1, libc::EINVAL),
    ] {
        assert_eq!(create_at(flags, place, in_file, length), Err(error), "{flags}");
    }
    let mut bytes = ibv_comp_cntr_init_attr { kind: 1, ..Default::default() };
    let mut capabilities = ibv_comp_cntr_caps::default();
    // SAFETY: all arguments are valid.
    unsafe {
        assert!((v.ibv_create_comp_cntr)(end.context, &raw mut bytes).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP, "bytes");
        let query = v._ibv_query_comp_cntr_caps;
        assert_eq!(query(end.context, &raw mut capabilities, 16), 0);
    }
    assert_eq!(capabilities.max_value, MOST);
    assert_eq!(capabilities.supported_qp_attach_ops, SEND | RECEIVE | READ | WRITE);
    let most = (2..capabilities.max_counters).map(|_| create(&end)).collect::<Vec<_>>();
    assert!(most.iter().all(|counter| !counter.is_null()));
    assert!(create(&end).is_null());
    assert_eq!(errno(), libc::ENOMEM);
    print("changed");
    drop(end);
    // SAFETY: the counter was destroyed with its context.
    drop(unsafe { Box::from_raw(own) });
}

#[test]
fn counter_has_its_values_in_memory_or_a_file_of_the_program() {
    let settings = [("EFA_SOFT_COUNTERS", "1")];
    let output = Host::new("shm").run("counters::child_changes_counters", &settings);
    assert_eq!(printed(&output), ["changed"]);
}

#[test]
#[ignore = "a child"]
fn child_finds_no_counters() {
    begin();
    let end = Endpoint::in_reset(QpOptions::default());
    let mut capabilities = ibv_comp_cntr_caps::default();
    assert!(create(&end).is_null());
    print(errno());
    // SAFETY: all arguments are valid.
    print(unsafe { (verbs()._ibv_query_comp_cntr_caps)(end.context, &raw mut capabilities, 16) });
    print(attach(&end, null_mut(), SEND));
}

#[test]
fn device_without_counters_refuses_them() {
    let output = Host::new("shm").run("counters::child_finds_no_counters", &[]);
    assert_eq!(printed(&output), [(); 3].map(|()| libc::EOPNOTSUPP.to_string()));
}
