//! Contexts, handles, address handles and memory regions.

use efa_soft::abi::*;

use super::*;

fn number_of(handle: *mut ibv_ah) -> u16 {
    let mut answer = efadv_ah_attr::default();
    // SAFETY: all arguments are valid.
    assert_eq!(unsafe { (verbs().efadv_query_ah)(handle, &raw mut answer, 16) }, 0);
    answer.ahn
}

/// Programs close a device although objects are left, as perftest's `ib_send_bw` does with a completion
/// queue. With a real device the kernel destroys them.
#[test]
fn closing_context_destroys_its_objects_and_no_others() {
    LazyLock::force(&HOST);
    let a = Endpoint::new(QpOptions::default());
    // With a Q_Key of its own, as another test's queue pair may get its number at once.
    let b = Endpoint::new(QpOptions { qkey: 0x4321, ..QpOptions::default() });
    let v = verbs();
    let memory = [0_u8; 64];
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    let b = std::mem::ManuallyDrop::new(b);
    // SAFETY: the objects of the context are not used after it is closed; their handles are looked up.
    unsafe {
        let all = IBV_ACCESS_LOCAL_WRITE.cast_signed();
        let region = (v.ibv_reg_mr)(b.pd, memory.as_ptr().cast_mut().cast(), memory.len(), all);
        let unused = (v.ibv_create_cq)(b.context, 8, null_mut(), null_mut(), 0);
        let channel = (v.ibv_create_comp_channel)(b.context);
        let announced = (v.ibv_create_cq)(b.context, 8, null_mut(), channel, 0);
        assert!(!announced.is_null(), "errno {}", errno());
        let back = b.handle(a.gid());
        assert_eq!((v.ibv_close_device)(b.context), 0);
        assert_eq!((v.ibv_destroy_qp)(b.qp), libc::EINVAL);
        assert_eq!((v.ibv_destroy_ah)(back), libc::EINVAL);
        assert_eq!((v.ibv_dereg_mr)(region), libc::EINVAL);
        for cq in [unused, announced, b.cq.cast()] {
            // Looks up the queue alone, and not its context.
            assert!((v.efadv_cq_from_ibv_cq_ex)(cq.cast()).is_null());
            assert_eq!((v.ibv_destroy_cq)(cq), libc::EINVAL);
        }
        assert_eq!((v.ibv_destroy_comp_channel)(channel), libc::EINVAL);
        assert_eq!((v.ibv_dealloc_pd)(b.pd), libc::EINVAL);
        assert_eq!((v.ibv_close_device)(b.context), libc::EINVAL);
    }
    assert_eq!(a.post_send(1, to, &[inline(b"to an unused number")], IBV_SEND_INLINE), 0);
    assert_eq!(a.wait().vendor, 9, "BAD_DEST_QPN");
    // SAFETY: the object was created here and is not used afterwards.
    assert_eq!(unsafe { (v.ibv_destroy_ah)(handle) }, 0);
}

#[test]
fn null_and_foreign_handles_are_refused() {
    LazyLock::force(&HOST);
    let v = verbs();
    let end = Endpoint::in_reset(QpOptions::default());
    let mut attributes: ibv_qp_attr = zeroed();
    let mut ah: ibv_ah_attr = zeroed();
    let mut answer = efadv_ah_attr::default();
    // SAFETY: the library looks handles up before it follows them, and checks for null.
    unsafe {
        for wrong in [null_mut(), end.qp.cast(), 0x10 as *mut ibv_context] {
            assert!((v.ibv_open_device)(wrong.cast()).is_null());
            assert_eq!(errno(), libc::EINVAL);
            assert!((v.ibv_get_device_name)(wrong.cast()).is_null());
            assert_eq!((v.ibv_close_device)(wrong), libc::EINVAL);
            assert!((v.ibv_alloc_pd)(wrong).is_null());
            assert!((v.ibv_create_cq)(wrong, 8, null_mut(), null_mut(), 0).is_null());
            assert_eq!(errno(), libc::EINVAL);
        }
        for wrong in [null_mut(), end.context.cast(), 0x10 as *mut ibv_pd] {
            assert_eq!((v.ibv_dealloc_pd)(wrong), libc::EINVAL);
            assert!((v.ibv_create_ah)(wrong, &raw mut ah).is_null());
            assert!((v.ibv_reg_mr)(wrong, &raw mut ah as *mut _, 8, 1).is_null());
            assert!(create(end.context, wrong, end.cq, QpOptions::default()).is_null());
            assert_eq!((v.ibv_dereg_mr)(wrong.cast()), libc::EINVAL);
            assert_eq!((v.ibv_destroy_ah)(wrong.cast()), libc::EINVAL);
            assert_eq!((v.ibv_destroy_cq)(wrong.cast()), libc::EINVAL);
            assert_eq!((v.ibv_destroy_qp)(wrong.cast()), libc::EINVAL);
            assert_eq!((v.ibv_modify_qp)(wrong.cast(), &raw mut attributes, 1), libc::EINVAL);
            assert!((v.ibv_qp_to_qp_ex)(wrong.cast()).is_null());
            assert!((v.efadv_cq_from_ibv_cq_ex)(wrong.cast()).is_null());
            assert_eq!((v.efadv_query_ah)(wrong.cast(), &raw mut answer, 16), libc::EINVAL);
        }
        // Objects of another context, which may be closed earlier.
        let other = Endpoint::in_reset(QpOptions::default());
        for (context, pd, cq) in [
            (other.context, end.pd, end.cq),
            (end.context, other.pd, end.cq),
            (end.context, end.pd, other.cq),
        ] {
            assert!(create(context, pd, cq, QpOptions::default()).is_null());
            assert_eq!(errno(), libc::EINVAL);
        }
        // An address without `is_global`, and ports that the device doesn't have.
        ah.grh.dgid.raw = end.gid();
        for (is_global, port_num) in [(0, 1), (1, 0), (1, 2)] {
            (ah.is_global, ah.port_num) = (is_global, port_num);
            assert!((v.ibv_create_ah)(end.pd, &raw mut ah).is_null());
            assert_eq!(errno(), libc::EINVAL);
        }
        assert_eq!((v.ibv_modify_qp)(end.qp, null_mut(), 1), libc::EINVAL);
        // The GID of zeros.
        ah = ibv_ah_attr { is_global: 1, port_num: 1, ..zeroed() };
        assert!((v.ibv_create_ah)(end.pd, &raw mut ah).is_null());
        // Null, for functions that are called through structures.
        let ops = &(*end.context).ops;
        assert_eq!(ops.post_send.unwrap()(null_mut(), null_mut(), null_mut()), libc::EINVAL);
        assert_eq!(ops.post_recv.unwrap()(null_mut(), null_mut(), null_mut()), libc::EINVAL);
        assert!(ops.poll_cq.unwrap()(null_mut(), 1, null_mut()) < 0);
        let start = (*end.cq).start_poll.unwrap();
        assert_eq!(start(null_mut(), null_mut()), libc::EINVAL);
        let mut extended = ibv_poll_cq_attr { comp_mask: 1 };
        assert_eq!(start(end.cq, &raw mut extended), libc::EINVAL);
        // Objects in use.
        assert_eq!((v.ibv_dealloc_pd)(end.pd), libc::EBUSY);
        assert_eq!((v.ibv_destroy_cq)(end.cq.cast()), libc::EBUSY);
        // Not offered.
        assert!((v.ibv_create_srq)().is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        assert_eq!((v.ibv_attach_mcast)(), libc::EOPNOTSUPP);
    }
}

#[test]
fn region_with_iova_is_reached_by_that_address() {
    let (a, b) = pair(QpOptions::default());
    let (remote_memory, local_memory) = (Memory::of(b"remote memory"), Memory::of(&[0; 6]));
    let v = verbs();
    let address = remote_memory.address();
    let start = 0x5000 + address.addr() as u64 % 4096;
    // SAFETY: the memory exists until the end of the test.
    let regions = unsafe {
        [
            (v.ibv_reg_mr_iova)(b.pd, address, remote_memory.len(), start, 7),
            (v.ibv_reg_mr_iova2)(b.pd, address, remote_memory.len(), start, 7 | 1 << 20),
        ]
    };
    let local = a.register(&local_memory, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    for region in regions {
        let to = (handle, b.number(), b.qkey);
        let remote = (start + 7, rkey(region));
        assert_eq!(a.post_remote(1, to, false, remote, &[sge(local, 0, 6)]), 0);
        assert_eq!(a.wait().status, IBV_WC_SUCCESS);
        assert_eq!(local_memory.bytes(), b"memory");
        deregister(region);
    }
    // An unknown flag, no bytes, a null address, and a range beyond the address space.
    // SAFETY: the library accesses none of these ranges before it has checked them.
    unsafe {
        for (address, length, access) in
            [(address, 8, 1 << 3), (address, 0, 1), (null_mut(), 8, 1), (address, usize::MAX, 1)]
        {
            assert!((v.ibv_reg_mr)(b.pd, address, length, access).is_null());
        }
        // Remote write or atomics without local write, a flag of no kernel, and then one that the device doesn't offer.
        let refused = [2, 8, 1 << 10, 1 << 31].map(|access| (access, libc::EINVAL));
        for (access, expected) in refused.into_iter().chain([(9, libc::EOPNOTSUPP)]) {
            assert!((v.ibv_reg_mr_iova2)(b.pd, address, 8, address as u64, access).is_null());
            assert_eq!(errno(), expected, "{access:#x}");
        }
        // Another offset in its page.
        assert!((v.ibv_reg_mr_iova)(b.pd, address, 8, start + 1, 1).is_null());
        assert_eq!(errno(), libc::EINVAL);
        // A range with an unmapped page, far from where the system maps memory of other threads.
        let (length, access) = (8 * 4096, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let pages = libc::mmap(0x10_0000_0000 as *mut _, length, access, flags, -1, 0);
        assert_ne!(pages, libc::MAP_FAILED);
        deregister((v.ibv_reg_mr)(b.pd, pages.byte_add(1), length - 1, 1));
        assert_eq!(libc::munmap(pages.byte_add(6 * 4096), 4096), 0);
        assert!((v.ibv_reg_mr)(b.pd, pages.byte_add(1), length - 1, 1).is_null());
        assert_eq!(errno(), libc::EFAULT);
        assert_eq!(libc::munmap(pages, length), 0);
    }
    deregister(local);
    destroy(handle);
}

/// With a real device the kernel pins the pages for the requested access.
#[test]
fn registration_fails_where_page_protection_forbids_access() {
    use libc::{PROT_NONE, PROT_READ, PROT_WRITE};
    const PAGE: usize = 4096;
    let (v, end) = (verbs(), Endpoint::new(QpOptions::default()));
    let write = IBV_ACCESS_LOCAL_WRITE;
    for (first, last, access, allowed) in [
        (PROT_READ, PROT_READ, 0, true),
        (PROT_READ, PROT_READ, IBV_ACCESS_REMOTE_READ, true),
        (PROT_READ, PROT_READ, write, false),
        (PROT_READ, PROT_READ, write | IBV_ACCESS_REMOTE_WRITE, false),
        (PROT_READ | PROT_WRITE, PROT_READ, write, false),
        (PROT_READ, PROT_READ | PROT_WRITE, write, false),
        (PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, write, true),
        (PROT_READ, PROT_NONE, 0, false),
        (PROT_NONE, PROT_READ, IBV_ACCESS_REMOTE_READ, false),
    ] {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the pages are mapped here, and unmapped after the region is deregistered.
        unsafe {
            let pages = libc::mmap(null_mut(), 2 * PAGE, first, flags, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(pages.byte_add(PAGE), PAGE, last), 0);
            // From the end of the first page into the last one.
            let (address, length) = (pages.byte_add(PAGE - 8), 16);
            let region = (v.ibv_reg_mr)(end.pd, address, length, access.cast_signed());
            let seen = if region.is_null() { errno() } else { 0 };
            let expected = if allowed { 0 } else { libc::EFAULT };
            assert_eq!(seen, expected, "protection {first} and {last}, access {access}");
            if allowed {
                deregister(region);
            }
            assert_eq!(libc::munmap(pages, 2 * PAGE), 0);
        }
    }
}

#[test]
fn address_handle_of_a_port_or_gid_index_that_does_not_exist_is_refused() {
    let (a, b) = pair(QpOptions::default());
    let create = |port_num, sgid_index| {
        let mut attributes: ibv_ah_attr = zeroed();
        attributes.grh.dgid = ibv_gid { raw: b.gid() };
        attributes.grh.sgid_index = sgid_index;
        (attributes.is_global, attributes.port_num) = (1, port_num);
        // SAFETY: all arguments are valid.
        unsafe { (verbs().ibv_create_ah)(a.pd, &raw mut attributes) }
    };
    for (port, gid_index) in [(0, 0), (2, 0), (1, 1), (1, 255)] {
        assert!(create(port, gid_index).is_null(), "{port}, {gid_index}");
        assert_eq!(errno(), libc::EINVAL);
    }
    destroy(create(1, 0));
}

/// libfabric finds the sender of a message by this number.
#[test]
fn address_handle_number_is_the_same_for_each_gid() {
    let (a, b) = pair(QpOptions::default());
    let buffer = Memory::of(&[0; 16]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let (to, from) = (a.handle(b.gid()), b.handle(a.gid()));
    let number = number_of(from);
    let seen_handle = |wr_id| {
        assert_eq!(b.post_receive(wr_id, sge(into, 0, 16)), 0);
        let to = (to, b.number(), b.qkey);
        assert_eq!(a.post_send(wr_id, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
        assert_eq!(a.wait().status, IBV_WC_SUCCESS);
        b.wait().handle
    };
    assert_eq!(seen_handle(1), number.into());
    // Other address handles, of the same GID and of others.
    let others: Vec<_> = (1..=100).map(|n| b.handle([n; 16])).collect();
    let mut numbers: Vec<_> = others.iter().map(|&handle| number_of(handle)).collect();
    numbers.push(number);
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 101, "one for each GID");
    let again = b.handle(a.gid());
    assert_eq!(number_of(again), number);
    others.into_iter().for_each(destroy);
    assert_eq!(seen_handle(2), number.into());
    // The number stays while one address handle of the GID exists.
    destroy(from);
    assert_eq!(seen_handle(3), number.into());
    assert_eq!(number_of(again), number);
    [again, to].into_iter().for_each(destroy);
    deregister(into);
}

/// As rdma-core's test of source GIDs asks: a handle for the same interface in another domain, which the sender has,
/// doesn't tell the receiver who it is.
#[test]
fn address_handle_of_another_domain_is_unknown_here() {
    let (a, b) = pair(QpOptions::default());
    let buffer = Memory::of(&[0; 16]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let of_sender = a.handle(b.gid());
    let exchange = |wr_id, to| {
        assert_eq!(b.post_receive(wr_id, sge(into, 0, 16)), 0);
        assert_eq!(
            a.post_send(wr_id, (to, b.number(), b.qkey), &[inline(b"x")], IBV_SEND_INLINE),
            0
        );
        a.wait().status
    };
    assert_eq!(exchange(1, of_sender), IBV_WC_SUCCESS);
    let seen = b.wait();
    assert_eq!((seen.handle, seen.gid), (0xffff, Some(a.gid())));
    let of_receiver = b.handle(a.gid());
    assert_ne!(number_of(of_receiver), number_of(of_sender), "domains share the numbers");
    assert_eq!(exchange(2, of_sender), IBV_WC_SUCCESS);
    let seen = b.wait();
    assert_eq!((seen.handle, seen.gid), (number_of(of_receiver).into(), None));
    // Nor can the sender use it.
    assert_eq!(exchange(3, of_receiver), IBV_WC_LOC_QP_OP_ERR);
    [of_sender, of_receiver].into_iter().for_each(destroy);
    deregister(into);
}
