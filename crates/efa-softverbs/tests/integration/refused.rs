//! What is refused: posts beyond the queues, invalid transitions, unknown flags and members.

use std::mem::offset_of;

use efa_soft::abi::*;

use super::*;

#[test]
fn invalid_post_or_transition_is_refused() {
    let (a, b) = pair(QpOptions { sends: 2, receives: 2, ..QpOptions::default() });
    let buffer = Memory::of(&[0; 100]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let read_only = b.register(&buffer, 0);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    let entry = [inline(b"x")];
    for wr_id in 0..2 {
        assert_eq!(a.post_send(wr_id, to, &entry, IBV_SEND_INLINE), 0);
        assert_eq!(b.post_receive(wr_id, sge(into, 0, 50)), 0);
    }
    assert_eq!(a.post_send(2, to, &entry, IBV_SEND_INLINE), libc::ENOMEM);
    assert_eq!(a.post_remote(2, to, false, (0, 1), &[]), libc::ENOMEM);
    assert_eq!(b.post_receive(2, sge(into, 0, 50)), libc::ENOMEM);
    for _ in 0..2 {
        assert_eq!((b.wait().status, a.wait().status), (0, 0));
    }
    assert_eq!(b.post_receive(3, sge(read_only, 0, 50)), libc::EINVAL);
    assert_eq!(a.post_send(3, to, &[inline(&[0; 33])], IBV_SEND_INLINE), libc::EINVAL);
    assert_eq!(a.post_send(3, to, &[sge(into, 0, 1); 3], 0), libc::EINVAL);
    assert_eq!(a.post_send(3, (null_mut(), 1, 1), &entry, IBV_SEND_INLINE), libc::EINVAL);
    // In the state RESET.
    let early = Endpoint::in_reset(QpOptions::default());
    assert_eq!(early.post_send(1, to, &entry, IBV_SEND_INLINE), libc::EINVAL);
    assert_eq!(early.post_receive(1, sge(into, 0, 1)), libc::EINVAL);
    assert_eq!(early.post_remote(1, to, false, (0, 1), &[]), libc::EINVAL);
    // Transitions out of order, a port and an attribute that the device doesn't have.
    let mut attributes: ibv_qp_attr = zeroed();
    attributes.qp_state = IBV_QPS_RTS;
    assert_eq!(early.modify(&mut attributes, IBV_QP_STATE), libc::EINVAL);
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 2;
    let flags = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    assert_eq!(early.modify(&mut attributes, flags), libc::EINVAL);
    assert_eq!(early.modify(&mut attributes, 1 << 8), libc::EOPNOTSUPP);
    [into, read_only].into_iter().for_each(deregister);
    destroy(handle);
}

/// A program that posts more without polling would overrun its queues on hardware.
#[test]
fn queue_entry_is_free_once_its_completion_is_polled() {
    let (a, b) = pair(QpOptions { sends: 2, receives: 2, ..QpOptions::default() });
    let buffer = Memory::of(&[0; 16]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    for wr_id in 0..2 {
        assert_eq!(b.post_receive(wr_id, sge(into, 0, 16)), 0);
        assert_eq!(a.post_send(wr_id, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    }
    for _ in 0..2 {
        assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    }
    assert_eq!(b.post_receive(2, sge(into, 0, 16)), libc::ENOMEM, "two completed, none polled");
    assert_eq!(b.wait().wr_id, 0);
    assert_eq!(b.post_receive(2, sge(into, 0, 16)), 0);
    assert_eq!(b.post_receive(3, sge(into, 0, 16)), libc::ENOMEM);
    // Sends of unregistered memory complete at once.
    let unregistered = ibv_sge { addr: 1, length: 1, lkey: 1 };
    for wr_id in 0..2 {
        assert_eq!(a.post_send(wr_id, to, &[unregistered], 0), 0);
    }
    assert_eq!(a.post_send(2, to, &[unregistered], 0), libc::ENOMEM);
    assert_eq!(a.wait().status, IBV_WC_LOC_PROT_ERR);
    assert_eq!(a.post_send(2, to, &[unregistered], 0), 0);
    assert_eq!(a.post_remote(3, to, false, (0, 1), &[]), libc::ENOMEM);
    assert_eq!([a.wait().wr_id, a.wait().wr_id], [1, 2]);
    destroy(handle);
    deregister(into);
}

#[test]
fn queues_on_shared_completion_queue_have_separate_entries() {
    let options = QpOptions { sends: 2, receives: 2, ..QpOptions::default() };
    let (a, b) = pair(options);
    let other = a.second_queue_pair(options);
    assert_eq!(connect(&other, 7), 0);
    let buffer = Memory::of(&[0; 16]);
    let into = a.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let (to_b, to_a) = (a.handle(b.gid()), b.handle(a.gid()));
    // Sends of unregistered memory complete at once; they are not polled.
    let unregistered = ibv_sge { addr: 1, length: 1, lkey: 1 };
    for wr_id in 0..2 {
        assert_eq!(other.post_send(wr_id, (to_b, b.number(), b.qkey), &[unregistered], 0), 0);
    }
    let fill = || {
        for wr_id in 2..4 {
            assert_eq!(a.post_receive(wr_id, sge(into, 0, 16)), 0);
        }
        assert_eq!(a.post_receive(4, sge(into, 0, 16)), libc::ENOMEM);
    };
    fill();
    for wr_id in 0..2 {
        let to_a = (to_a, a.number(), a.qkey);
        assert_eq!(b.post_send(wr_id, to_a, &[inline(b"x")], IBV_SEND_INLINE), 0);
        assert_eq!(b.wait().status, IBV_WC_SUCCESS);
    }
    // Both receives have completed, and are not polled either.
    for wr_id in 4..6 {
        assert_eq!(a.post_send(wr_id, (to_b, b.number(), b.qkey), &[unregistered], 0), 0);
    }
    assert_eq!(a.post_send(6, (to_b, b.number(), b.qkey), &[unregistered], 0), libc::ENOMEM);
    assert_eq!(a.post_receive(6, sge(into, 0, 16)), libc::ENOMEM);
    let seen: Vec<_> = (0..4).map(|_| a.wait().wr_id).collect();
    assert_eq!(seen, [0, 1, 2, 3]);
    // Completions of its sends use no entry of the receive queue.
    fill();
    assert_eq!([a.wait().wr_id, a.wait().wr_id], [4, 5]);
    // SAFETY: the object was created here and is not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_destroy_qp)(other.qp) }, 0);
    [to_b, to_a].into_iter().for_each(destroy);
    deregister(into);
}

/// By the table of the kernel's driver. A program that forgets an attribute must not succeed here and fail
/// on hardware.
#[test]
fn state_transition_requires_its_attributes() {
    LazyLock::force(&HOST);
    let end = Endpoint::in_reset(QpOptions::default());
    let step = |state, mask| {
        let mut attributes: ibv_qp_attr = zeroed();
        (attributes.port_num, attributes.qkey, attributes.qp_state) = (1, 7, state);
        attributes.cur_qp_state = IBV_QPS_RTR;
        end.modify(&mut attributes, mask)
    };
    let all = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    for missing in [IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY] {
        assert_eq!(step(IBV_QPS_INIT, all & !missing), libc::EINVAL, "{missing:#x}");
    }
    assert_eq!(step(IBV_QPS_INIT, all | IBV_QP_SQ_PSN), libc::EINVAL);
    assert_eq!(step(IBV_QPS_ERR, IBV_QP_STATE), libc::EINVAL);
    assert_eq!(step(IBV_QPS_RESET, IBV_QP_STATE), 0);
    assert_eq!(step(IBV_QPS_INIT, all), 0);
    assert_eq!(step(IBV_QPS_INIT, IBV_QP_QKEY), 0, "the state doesn't change");
    assert_eq!(step(IBV_QPS_RTR, IBV_QP_STATE | IBV_QP_RNR_RETRY), libc::EINVAL);
    assert_eq!(step(IBV_QPS_RTR, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_QKEY), 0);
    assert_eq!(step(IBV_QPS_RTR, IBV_QP_STATE), libc::EINVAL);
    assert_eq!(step(IBV_QPS_RTS, IBV_QP_STATE), libc::EINVAL);
    let current = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_SQ_PSN;
    assert_eq!(step(IBV_QPS_RTS, current), 0);
    assert_eq!(step(IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_CUR_STATE), libc::EINVAL, "it is RTS");
    assert_eq!(step(IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_QKEY), 0);
    assert_eq!(step(IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_RNR_RETRY), libc::EINVAL);
    assert_eq!(step(IBV_QPS_RESET, IBV_QP_STATE | IBV_QP_QKEY), libc::EINVAL);
    assert_eq!(step(IBV_QPS_ERR, IBV_QP_STATE), 0);
    assert_eq!(step(IBV_QPS_ERR, IBV_QP_STATE), 0);
    assert_eq!(step(IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN), libc::EINVAL);
}

/// The numbers are those of libefa and of the kernel's driver, in the order in which these check.
#[test]
fn queue_pair_or_query_that_efa_does_not_have_fails_with_its_error_number() {
    LazyLock::force(&HOST);
    let (end, v) = (Endpoint::in_reset(QpOptions::default()), verbs());
    let driver = |qp_type, driver_type, srq| {
        let mut attributes: ibv_qp_init_attr = zeroed();
        (attributes.send_cq, attributes.recv_cq) = (end.cq.cast(), end.cq.cast());
        (attributes.qp_type, attributes.srq) = (qp_type, srq);
        // SAFETY: the structure is valid; the queue pair is not used after it is destroyed.
        unsafe {
            let qp = (v.efadv_create_driver_qp)(end.pd, &raw mut attributes, driver_type);
            if qp.is_null() { errno() } else { (v.ibv_destroy_qp)(qp) }
        }
    };
    let srq = std::ptr::without_provenance_mut(8);
    assert_eq!(driver(IBV_QPT_DRIVER, EFADV_QP_DRIVER_TYPE_SRD, null_mut()), 0);
    assert_eq!(driver(IBV_QPT_UD, 7, null_mut()), libc::EINVAL);
    assert_eq!(driver(IBV_QPT_DRIVER, 7, null_mut()), libc::EOPNOTSUPP);
    assert_eq!(driver(IBV_QPT_DRIVER, EFADV_QP_DRIVER_TYPE_SRD, srq), libc::EINVAL);
    let extended = |comp_mask| {
        let mut attributes: ibv_qp_init_attr_ex = zeroed();
        (attributes.qp_type, attributes.comp_mask) = (IBV_QPT_DRIVER, comp_mask);
        let mut efa = efadv_qp_init_attr::default();
        let length = size_of::<efadv_qp_init_attr>() as u32;
        // SAFETY: both structures are valid.
        let qp = unsafe {
            (v.efadv_create_qp_ex)(end.context, &raw mut attributes, &raw mut efa, length)
        };
        assert!(qp.is_null());
        errno()
    };
    assert_eq!([extended(0), extended(2)], [libc::EINVAL, libc::EOPNOTSUPP]);
    let query = |mask| {
        let (mut now, mut made): (ibv_qp_attr, ibv_qp_init_attr) = (zeroed(), zeroed());
        // SAFETY: all arguments are valid.
        unsafe { (v.ibv_query_qp)(end.qp, &raw mut now, mask, &raw mut made) }
    };
    assert_eq!([query(IBV_QP_STATE | IBV_QP_CAP), query(0)], [0; 2]);
    // The path's MTU, a timeout.
    assert_eq!([IBV_QP_CUR_STATE, 1 << 8, 1 << 9].map(query), [libc::EOPNOTSUPP; 3]);
    let mut attributes: ibv_qp_attr = zeroed();
    (attributes.port_num, attributes.qp_state, attributes.pkey_index) = (1, IBV_QPS_INIT, 1);
    let init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    assert_eq!(end.modify(&mut attributes, init), libc::EOPNOTSUPP);
}

/// As the kernel does for programs without `CAP_NET_RAW`; here for all, so that tests by root find it too.
#[test]
fn queue_key_with_the_privileged_bit_is_not_permitted() {
    LazyLock::force(&HOST);
    let end = Endpoint::in_reset(QpOptions::default());
    let step = |qkey, mask| {
        let mut attributes: ibv_qp_attr = zeroed();
        (attributes.port_num, attributes.qkey, attributes.qp_state) = (1, qkey, IBV_QPS_INIT);
        end.modify(&mut attributes, mask)
    };
    let init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    assert_eq!(step(0x8000_0000, init), libc::EPERM);
    assert_eq!(step(0x7fff_ffff, init), 0);
    assert_eq!(step(u32::MAX, IBV_QP_QKEY), libc::EPERM);
}

/// Every send completes, so the device refuses those without `IBV_SEND_SIGNALED`.
#[test]
fn send_with_unknown_flags_or_long_inline_data_is_refused() {
    const SIGNALED: u32 = 2;
    let options = QpOptions { signals_all: false, max_inline: 16, ..QpOptions::default() };
    let (a, b) = pair(options);
    let buffer = Memory::of(&[0; 64]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    for wr_id in 0..4 {
        assert_eq!(b.post_receive(wr_id, sge(into, 0, 64)), 0);
    }
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    let built = |flags, bytes: &[u8]| {
        // SAFETY: called as C does, through the queue pair, between `wr_start` and `wr_complete`.
        unsafe {
            let qp = (verbs().ibv_qp_to_qp_ex)(a.qp);
            ((*qp).wr_start.unwrap())(qp);
            ((*qp).wr_id, (*qp).wr_flags) = (1, flags);
            ((*qp).wr_send.unwrap())(qp);
            let from = bytes.as_ptr().cast_mut().cast();
            ((*qp).wr_set_inline_data.unwrap())(qp, from, bytes.len());
            ((*qp).wr_set_ud_addr.unwrap())(qp, handle, b.number(), b.qkey);
            ((*qp).wr_complete.unwrap())(qp)
        }
    };
    let (fits, long) = ([1; 16], [1; 17]);
    let inlined =
        |flags, bytes: &[u8]| a.post_send(1, to, &[inline(bytes)], IBV_SEND_INLINE | flags);
    for flags in [0, SIGNALED | 1, SIGNALED | 4, SIGNALED | 16] {
        assert_eq!((built(flags, &fits), inlined(flags, &fits)), (libc::EINVAL, libc::EINVAL));
    }
    assert_eq!((built(SIGNALED, &long), inlined(SIGNALED, &long)), (libc::EINVAL, libc::EINVAL));
    assert_eq!((built(SIGNALED, &fits), inlined(SIGNALED, &fits)), (0, 0));
    // Inline data may have more entries than `max_send_sge`.
    let pieces = [inline(b"a"), inline(b"b"), inline(b"cd")];
    assert_eq!(a.post_send(1, to, &pieces, IBV_SEND_INLINE | SIGNALED), 0);
    let lengths = [(); 3].map(|()| (a.wait().status, b.wait().length));
    assert_eq!(lengths, [(0, 16), (0, 16), (0, 4)]);
    assert_eq!(&buffer.bytes()[..4], b"abcd");
    assert_eq!((a.poll(), b.poll()), (None, None));
    destroy(handle);
    deregister(into);
}

/// Programs may use structures that are longer than this library knows.
#[test]
fn unknown_members_of_longer_structures_are_refused() {
    LazyLock::force(&HOST);
    let end = Endpoint::in_reset(QpOptions::default());
    let v = verbs();
    let cq = |extra: [u64; 6], length: u32, comp_mask| {
        let mut attributes: ibv_cq_init_attr_ex = zeroed();
        (attributes.cqe, attributes.comp_mask, attributes.flags) = (8, comp_mask, comp_mask);
        let mut efa = [0_u64; 8];
        efa[2..].copy_from_slice(&extra);
        // SAFETY: `efa` has 64 bytes, and the queue is not used after it is destroyed.
        unsafe {
            let cq = (v.efadv_create_cq)(
                end.context,
                &raw mut attributes,
                efa.as_mut_ptr().cast(),
                length,
            );
            if cq.is_null() { errno() } else { (v.ibv_destroy_cq)(cq.cast()) }
        }
    };
    assert_eq!([cq([0; 6], 16, 0), cq([0; 6], 56, 0), cq([0; 6], 64, 0)], [0; 3]);
    assert_eq!(cq([1, 0, 0, 0, 0, 0], 56, 0), libc::EOPNOTSUPP, "memory of the program");
    assert_eq!(cq([0, 0, 0, 0, 0, 1], 64, 0), libc::EINVAL, "an unknown member");
    assert_eq!(cq([0; 6], 8, 0), libc::EINVAL, "too short");
    assert_eq!(cq([0; 6], 16, 2), libc::EOPNOTSUPP, "a parent domain");
    let qp = |words: [u32; 8], length| {
        let mut attributes: ibv_qp_init_attr_ex = zeroed();
        (attributes.send_cq, attributes.recv_cq) = (end.cq.cast(), end.cq.cast());
        (attributes.qp_type, attributes.pd) = (IBV_QPT_DRIVER, end.pd);
        attributes.comp_mask = IBV_QP_INIT_ATTR_PD;
        let mut words = words;
        let efa = words.as_mut_ptr().cast();
        // SAFETY: `efa` has 32 bytes, and the queue pair is not used after it is destroyed.
        unsafe {
            let qp = (v.efadv_create_qp_ex)(end.context, &raw mut attributes, efa, length);
            if qp.is_null() { errno() } else { (v.ibv_destroy_qp)(qp) }
        }
    };
    assert_eq!([12, 16, 24, 32].map(|length| qp([0; 8], length)), [0; 4]);
    assert_eq!(qp([0, 0, 0, 0, 1, 0, 0, 0], 24), 0, "processing hints, which libfabric 2.6 wants");
    assert_eq!(qp([0, 0, 0, 0, 2, 0, 0, 0], 24), libc::EOPNOTSUPP);
    assert_eq!(qp([0, 0, 0, 2, 0, 0, 0, 0], 16), 0, "inline writes");
    assert_eq!(qp([0, 0, 0, 4, 0, 0, 0, 0], 16), libc::EOPNOTSUPP, "an unknown flag");
    assert_eq!(qp([0, 0, 0, 1 << 24, 0, 0, 0, 0], 16), libc::EINVAL, "reserved");
    assert_eq!(qp([1, 0, 0, 0, 0, 0, 0, 0], 16), libc::EINVAL, "an unknown member");
    assert_eq!(qp([0, 0, 0, 0, 0, 0, 1, 0], 32), libc::EINVAL, "an unknown member");
    assert_eq!(qp([0; 8], 8), libc::EINVAL, "too short");
    // SAFETY: all arguments are valid.
    unsafe {
        let handle = end.handle(end.gid());
        let mut answer = efadv_ah_attr::default();
        assert_eq!((v.efadv_query_ah)(handle, &raw mut answer, 9), libc::EINVAL);
        assert_eq!((v.efadv_query_ah)(handle, &raw mut answer, 10), 0);
        destroy(handle);
        let mut device: ibv_device_attr_ex = zeroed();
        let query =
            (*end.context.byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>())
                .query_device_ex
                .unwrap();
        let length = size_of::<ibv_device_attr_ex>();
        assert_eq!(query(end.context, std::ptr::null(), &raw mut device, length), 0);
        assert_eq!(device.phys_port_cnt_ex, 1);
    }
}

/// A function that the program didn't ask for is null, as in libefa: a call that works here must work on hardware.
#[test]
fn functions_that_were_not_asked_for_are_null() {
    let end = {
        LazyLock::force(&HOST);
        Endpoint::in_reset(QpOptions::default())
    };
    let v = verbs();
    let cq_with = |wc_flags, efa_wc_flags| {
        let mut attributes: ibv_cq_init_attr_ex = zeroed();
        (attributes.cqe, attributes.wc_flags) = (8, wc_flags);
        let mut efa = efadv_cq_init_attr_newer::default();
        efa.first.wc_flags = efa_wc_flags;
        let (efa, length) = ((&raw mut efa).cast(), size_of::<efadv_cq_init_attr>() as u32);
        // SAFETY: the arguments are valid, and the queue is not used after it is destroyed.
        unsafe {
            let cq = (v.efadv_create_cq)(end.context, &raw mut attributes, efa, length);
            let of = &*cq;
            let of_efa = (v.efadv_cq_from_ibv_cq_ex)(cq);
            let newer: *mut efadv_cq_newer = of_efa.cast();
            let has = [
                of.read_byte_len.is_some(),
                of.read_imm_data.is_some(),
                of.read_qp_num.is_some(),
                of.read_src_qp.is_some(),
                of.read_slid.is_some(),
                of.read_sl.is_some(),
                of.read_dlid_path_bits.is_some(),
                (*of_efa).wc_read_sgid.is_some(),
                (*newer).wc_is_unsolicited.is_some(),
            ];
            assert!(of.start_poll.is_some() && of.read_opcode.is_some());
            assert!(of.read_vendor_err.is_some() && of.read_wc_flags.is_some());
            assert_eq!((v.ibv_destroy_cq)(cq.cast()), 0);
            has
        }
    };
    for place in 0..9 {
        let (flag, of_efa) = if place < 7 { (1 << place, 0) } else { (0, 1 << (place - 7)) };
        assert_eq!(cq_with(flag, of_efa), std::array::from_fn(|at| at == place), "{place}");
    }
    let qp_with = |comp_mask, send_ops_flags, wr_flags: u64| {
        let mut attributes: ibv_qp_init_attr_ex = zeroed();
        (attributes.send_cq, attributes.recv_cq) = (end.cq.cast(), end.cq.cast());
        (attributes.qp_type, attributes.pd) = (IBV_QPT_DRIVER, end.pd);
        attributes.comp_mask = IBV_QP_INIT_ATTR_PD | comp_mask;
        attributes.send_ops_flags = send_ops_flags;
        let mut efa = [0, 0, wr_flags];
        // SAFETY: the arguments are valid, and the queue pair is not used after it is destroyed.
        unsafe {
            let efa = efa.as_mut_ptr().cast();
            let qp = (v.efadv_create_qp_ex)(end.context, &raw mut attributes, efa, 24);
            let hints = (*(v.efadv_qp_from_ibv_qp_ex)(qp.cast())).wr_set_processing_hints;
            assert_eq!(hints.is_some(), wr_flags != 0);
            let has = (v.ibv_qp_to_qp_ex)(qp).as_ref().map(|qp| {
                assert!(qp.wr_start.is_some() && qp.wr_set_sge.is_some());
                assert!(qp.wr_local_inv.is_none() && qp.wr_atomic_fetch_add.is_none());
                [
                    qp.wr_rdma_write.is_some(),
                    qp.wr_rdma_write_imm.is_some(),
                    qp.wr_send.is_some(),
                    qp.wr_send_imm.is_some(),
                    qp.wr_rdma_read.is_some(),
                ]
            });
            assert_eq!((v.ibv_destroy_qp)(qp), 0);
            has
        }
    };
    assert_eq!(qp_with(0, 0, 0), None, "it posts lists alone");
    for place in 0..5 {
        let has = qp_with(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, 1 << place, place & 1);
        assert_eq!(has, Some(std::array::from_fn(|at| at == place as usize)), "{place}");
    }
}

/// Programs then use calls, as libfabric does.
#[test]
fn rings_are_refused_unless_the_settings_ask_for_them() {
    let (a, _) = pair(QpOptions::default());
    let (mut send, mut receive): (efadv_wq_attr, efadv_wq_attr) = (zeroed(), zeroed());
    let mut completions: efadv_cq_attr = zeroed();
    let (of_queues, of_completions) =
        (size_of::<efadv_wq_attr>() as u32, size_of::<efadv_cq_attr>() as u32);
    let v = verbs();
    // SAFETY: the arguments are valid.
    let results = unsafe {
        [
            (v.efadv_query_cq)(a.cq.cast(), &raw mut completions, of_completions),
            (v.efadv_query_qp_wqs)(a.qp, &raw mut send, &raw mut receive, of_queues),
        ]
    };
    assert_eq!(results, [libc::EOPNOTSUPP; 2]);
}
