//! The library as programs use it, within one process: found, asked, made to work, misused.
//!
//! Both ends of every wire are in this process; `processes.rs` has stories of several. Each link has
//! a test program that tells them all: `device_shm.rs`, `device_tcp.rs`.

mod ends;

use std::ffi::CStr;
use std::mem::offset_of;
use std::path::Path;
use std::sync::LazyLock;

use efa_soft::abi::*;

use crate::common::verbs::*;
use crate::common::{Directory, loopback};
use crate::{DEVICES, LINK};

const ALL: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

/// The host of these tests; asked for before the library is.
static HOST: LazyLock<Directory> = LazyLock::new(|| {
    let directory = Directory::new();
    // SAFETY: every test comes here before it does anything else, and the first one does this
    // while the others wait, so nobody reads the environment.
    unsafe {
        std::env::set_var("EFA_SOFT_DIRECTORY", directory.path().join("hosts"));
        std::env::set_var("EFA_SOFT_LINK", LINK);
        // On tcp, nobody else's host.
        std::env::set_var("EFA_SOFT_ADDRESS", loopback(1).to_string());
        std::env::set_var("EFA_SOFT_DEVICES", DEVICES.to_string());
    }
    // The list is made now, with the environment.
    // SAFETY: the list is freed after its only use.
    unsafe { (verbs().ibv_free_device_list)((verbs().ibv_get_device_list)(nothing())) };
    directory
});

fn pair(wish: Wish) -> (End, End) {
    LazyLock::force(&HOST);
    (End::new(wish), End::new(wish))
}

/// Lets a receiver have a buffer and use it up: before its first it is waited for.
fn use_up_a_buffer(end: &End) {
    let sender = End::new(Wish::default());
    let buffer = Memory::of(&[0; 16]);
    let into = end.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = sender.handle(end.gid());
    assert_eq!(end.post_receive(0, part(into, 0, 16)), 0);
    let to = (handle, end.number(), end.qkey);
    assert_eq!(sender.post_send(0, to, &[inline(b"first")], IBV_SEND_INLINE), 0);
    assert_eq!((end.wait().status, sender.wait().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
    destroy(handle);
    deregister(into);
}

fn text(chars: &[std::ffi::c_char]) -> &str {
    // SAFETY: the arrays of a device end with zero.
    unsafe { CStr::from_ptr(chars.as_ptr()) }.to_str().unwrap()
}

fn destroy(handle: *mut ibv_ah) {
    // SAFETY: a handle of the caller's, which gives it up.
    assert_eq!(unsafe { (verbs().ibv_destroy_ah)(handle) }, 0);
}

fn deregister(region: *mut ibv_mr) {
    // SAFETY: a region of the caller's, which gives it up.
    assert_eq!(unsafe { (verbs().ibv_dereg_mr)(region) }, 0);
}

fn rkey(region: *mut ibv_mr) -> u32 {
    // SAFETY: the region is alive.
    unsafe { (*region).rkey }
}

#[test]
fn devices_are_listed_as_programs_expect_them() {
    LazyLock::force(&HOST);
    let v = verbs();
    let mut count = 0;
    // SAFETY: the list has `count` devices and a null, and is freed after its last use.
    unsafe {
        let list = (v.ibv_get_device_list)(&raw mut count);
        assert_eq!(count, DEVICES as i32);
        assert!((*list.add(DEVICES)).is_null());
        for (index, name) in ["efa_soft0", "efa_soft1"].into_iter().enumerate().take(DEVICES) {
            let device = *list.add(index);
            assert_eq!(CStr::from_ptr((v.ibv_get_device_name)(device)).to_str(), Ok(name));
            assert_eq!((v.ibv_get_device_index)(device), index as i32);
            assert_ne!((v.ibv_get_device_guid)(device), 0);
            assert_eq!(text(&(*device).name), name);
            // What libfabric looks at: a PCI address and a driver, found through sysfs.
            let place = Path::new(text(&(*device).ibdev_path)).join("device");
            let pci = place.canonicalize().unwrap();
            let pci = pci.file_name().unwrap().to_str().unwrap();
            let parts: Vec<_> = pci.split([':', '.']).map(|p| u16::from_str_radix(p, 16)).collect();
            assert!(parts.len() == 4 && parts.iter().all(Result::is_ok), "{pci}");
            let machine = Path::new("/sys/bus/pci/devices");
            let has = machine.read_dir().map_or(0, Iterator::count);
            assert!(has < DEVICES || machine.join(pci).exists(), "{pci}");
            assert!(place.join("driver").canonicalize().unwrap().ends_with("efa"));
        }
        if DEVICES > 1 {
            assert_ne!((v.ibv_get_device_guid)(*list), (v.ibv_get_device_guid)(*list.add(1)));
        }
        (v.ibv_free_device_list)(list);
    }
    let sysfs = std::env::var("SYSFS_PATH").unwrap();
    let version = Path::new(&sysfs).join("class/infiniband_verbs/abi_version");
    assert!(std::fs::read_to_string(version).unwrap().trim().parse::<u32>().is_ok());
}

#[test]
fn what_can_be_asked_is_answered() {
    LazyLock::force(&HOST);
    let v = verbs();
    let context = open();
    let mut device: ibv_device_attr = zeroed();
    let mut port: ibv_port_attr = zeroed();
    let mut gid: ibv_gid = zeroed();
    let mut pkey = 0;
    let mut efa = efadv_device_attr::default();
    let whole = size_of::<efadv_device_attr>() as u32;
    // SAFETY: all arguments are valid or what is tested.
    unsafe {
        assert_eq!((v.ibv_query_device)(context, &raw mut device), 0);
        assert_eq!((device.vendor_id, device.vendor_part_id), (0x1d0f, 0xefa2));
        assert_eq!((device.phys_port_cnt, device.max_sge_rd), (1, 1));
        assert_eq!((v.ibv_query_port)(context, 1, &raw mut port), 0);
        assert_eq!((port.state, port.max_msg_sz, port.gid_tbl_len), (IBV_PORT_ACTIVE, 8928, 1));
        assert_eq!((port.active_width, port.active_speed), (2, 32), "4X of 25 Gbit/s");
        assert_eq!((v.ibv_query_gid)(context, 1, 0, &raw mut gid), 0);
        match LINK {
            "shm" => assert_eq!(gid.raw[..2], [0xfe, 0x80]),
            _ => assert_eq!(gid.raw, loopback(1).to_ipv6_mapped().octets()),
        }
        assert_eq!((v.ibv_query_pkey)(context, 1, 0, &raw mut pkey), 0);
        assert_eq!((v.ibv_get_pkey_index)(context, 1, pkey), 0);
        assert_eq!((v.efadv_query_device)(context, &raw mut efa, whole), 0);
        assert_eq!(efa.device_caps, 0b1111, "read, RNR retry, GID of the source, write");
        assert_eq!((efa.max_sq_sge, efa.max_rq_sge, efa.inline_buf_size), (2, 1, 32));
        // Through the table of the context, with a structure from the future.
        let vctx: *mut verbs_context = context.byte_sub(offset_of!(verbs_context, context)).cast();
        assert_eq!((*vctx).sz, size_of::<verbs_context>());
        assert_eq!((*context).abi_compat as usize, usize::MAX);
        let mut longer = [0xff_u8; size_of::<ibv_port_attr>() + 8];
        let query = (*vctx).query_port.unwrap();
        assert_eq!(query(context, 1, longer.as_mut_ptr().cast(), longer.len()), 0);
        assert_eq!(longer[longer.len() - 8..], [0; 8]);

        // Ports, indices and room that there aren't.
        assert_eq!((v.ibv_query_port)(context, 2, &raw mut port), libc::EINVAL);
        assert_eq!((v.ibv_query_gid)(context, 1, 1, &raw mut gid), -1);
        assert_eq!((v.ibv_query_pkey)(context, 2, 0, &raw mut pkey), -1);
        assert_eq!((v.ibv_get_pkey_index)(context, 1, 7), -1);
        assert_eq!((v.efadv_query_device)(context, &raw mut efa, 8), libc::EINVAL);
        assert_eq!((v.ibv_query_device)(context, nothing()), libc::EINVAL);
        assert_eq!((v.ibv_close_device)(context), 0);
        assert_eq!((v.ibv_close_device)(context), libc::EINVAL);
    }
}

#[test]
fn completion_queues_are_made_as_long_as_the_device_says() {
    LazyLock::force(&HOST);
    let (v, context) = (verbs(), open());
    let mut device: ibv_device_attr = zeroed();
    // SAFETY: all arguments are valid or what is tested, and what is made is destroyed.
    unsafe {
        assert_eq!((v.ibv_query_device)(context, &raw mut device), 0);
        for (entries, vector, possible) in [
            (device.max_cqe, 0, true),
            (1, 0, true),
            (device.max_cqe + 1, 0, false),
            (0, 0, false),
            (-1, 0, false),
            (1, 1, false),
        ] {
            let made = (v.ibv_create_cq)(context, entries, nothing(), nothing(), vector);
            assert_eq!(!made.is_null(), possible, "{entries} entries, vector {vector}");
            match possible {
                true => assert_eq!((v.ibv_destroy_cq)(made), 0),
                false => assert_eq!(errno(), libc::EINVAL),
            }
        }
        assert_eq!((v.ibv_close_device)(context), 0);
    }
}

/// Programs find a queue pair in a table of `max_qp` entries by the lower bits of its number.
#[test]
fn numbers_of_queue_pairs_differ_in_the_bits_that_programs_look_at() {
    LazyLock::force(&HOST);
    let end = End::reset(Wish::default());
    let mut device: ibv_device_attr = zeroed();
    // SAFETY: all arguments are valid.
    assert_eq!(unsafe { (verbs().ibv_query_device)(end.context, &raw mut device) }, 0);
    let mask = device.max_qp.cast_unsigned().next_power_of_two() - 1;
    for _ in 0..1200 {
        let other = end.another(Wish { sends: 1, receives: 1, ..Wish::default() });
        assert_ne!(other.number() & mask, end.number() & mask, "of {}", end.number());
        // SAFETY: it is ours and not used afterwards.
        assert_eq!(unsafe { (verbs().ibv_destroy_qp)(other.qp) }, 0);
    }
}

/// How deep queues can be with so many entries and so much inline data, as libfabric 2 asks; negative
/// numbers are errors.
#[test]
fn the_depth_of_queues_is_that_of_what_is_possible() {
    LazyLock::force(&HOST);
    let v = verbs();
    let context = open();
    let mut efa = efadv_device_attr::default();
    let send = |max_send_sge, max_rdma_sge, max_inline_data, length| {
        let mut asked = efadv_sq_depth_attr::default();
        (asked.max_send_sge, asked.max_rdma_sge) = (max_send_sge, max_rdma_sge);
        asked.max_inline_data = max_inline_data;
        // SAFETY: there is room for so much.
        unsafe { (v.efadv_get_max_sq_depth)(context, &raw mut asked, length) }
    };
    let receive = |max_recv_sge, length| {
        let mut asked = efadv_rq_depth_attr { max_recv_sge, ..efadv_rq_depth_attr::default() };
        // SAFETY: as above.
        unsafe { (v.efadv_get_max_rq_depth)(context, &raw mut asked, length) }
    };
    // SAFETY: all arguments are valid, and the context is not used afterwards.
    unsafe {
        assert_eq!((v.efadv_query_device)(context, &raw mut efa, 32), 0);
        let newer = u16::from_ne_bytes(efa.reserved);
        assert_eq!((efa.inline_buf_size, newer), (32, 32), "the same by its newer name");
        assert_eq!(send(2, 1, 32, 24), efa.max_sq_wr.cast_signed());
        assert_eq!(receive(1, 16), efa.max_rq_wr.cast_signed());
        let wrong = [send(3, 1, 0, 24), send(1, 2, 0, 24), send(1, 1, 33, 24), send(1, 1, 0, 16)];
        assert_eq!(wrong, [-libc::EINVAL; 4]);
        assert_eq!([receive(2, 16), receive(1, 8)], [-libc::EINVAL; 2]);
        assert_eq!((v.ibv_close_device)(context), 0);
        assert_eq!(send(1, 1, 0, 24), -libc::EINVAL, "a context that was closed");
    }
}

/// Programs leave things behind, as perftest's `ib_send_bw` a completion queue, and expect that the
/// device can be closed; then the kernel takes them away, and so does this device.
#[test]
fn a_closed_context_takes_away_what_was_made_of_it_and_nothing_else() {
    LazyLock::force(&HOST);
    let a = End::new(Wish::default());
    // A key of its own: another test's queue pair may get its number at once.
    let b = End::new(Wish { qkey: 0x4321, ..Wish::default() });
    let v = verbs();
    let memory = [0_u8; 64];
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    let b = std::mem::ManuallyDrop::new(b);
    // SAFETY: what was made of the context is only asked about afterwards, as handles.
    unsafe {
        let all = IBV_ACCESS_LOCAL_WRITE.cast_signed();
        let region = (v.ibv_reg_mr)(b.pd, memory.as_ptr().cast_mut().cast(), memory.len(), all);
        let unused = (v.ibv_create_cq)(b.context, 8, nothing(), nothing(), 0);
        let back = b.handle(a.gid());
        assert_eq!((v.ibv_close_device)(b.context), 0);
        assert_eq!((v.ibv_destroy_qp)(b.qp), libc::EINVAL);
        assert_eq!((v.ibv_destroy_ah)(back), libc::EINVAL);
        assert_eq!((v.ibv_dereg_mr)(region), libc::EINVAL);
        assert_eq!([unused, b.cq.cast()].map(|cq| (v.ibv_destroy_cq)(cq)), [libc::EINVAL; 2]);
        assert_eq!((v.ibv_dealloc_pd)(b.pd), libc::EINVAL);
        assert_eq!((v.ibv_close_device)(b.context), libc::EINVAL);
    }
    assert_eq!(a.post_send(1, to, &[inline(b"to nobody")], IBV_SEND_INLINE), 0);
    assert_eq!(a.wait().vendor, 9, "no such queue pair");
    // SAFETY: it is ours and not used afterwards.
    assert_eq!(unsafe { (v.ibv_destroy_ah)(handle) }, 0);
}

#[test]
fn null_and_foreign_handles_are_refused() {
    LazyLock::force(&HOST);
    let v = verbs();
    let end = End::reset(Wish::default());
    let mut attributes: ibv_qp_attr = zeroed();
    let mut ah: ibv_ah_attr = zeroed();
    let mut answer = efadv_ah_attr::default();
    // SAFETY: none of these is looked into before it is known to be of the right kind.
    unsafe {
        for wrong in [nothing(), end.qp.cast(), 0x10 as *mut ibv_context] {
            assert!((v.ibv_open_device)(wrong.cast()).is_null());
            assert_eq!(errno(), libc::EINVAL);
            assert!((v.ibv_get_device_name)(wrong.cast()).is_null());
            assert_eq!((v.ibv_close_device)(wrong), libc::EINVAL);
            assert!((v.ibv_alloc_pd)(wrong).is_null());
            assert!((v.ibv_create_cq)(wrong, 8, nothing(), nothing(), 0).is_null());
            assert_eq!(errno(), libc::EINVAL);
        }
        for wrong in [nothing(), end.context.cast(), 0x10 as *mut ibv_pd] {
            assert_eq!((v.ibv_dealloc_pd)(wrong), libc::EINVAL);
            assert!((v.ibv_create_ah)(wrong, &raw mut ah).is_null());
            assert!((v.ibv_reg_mr)(wrong, &raw mut ah as *mut _, 8, 1).is_null());
            assert!(create(end.context, wrong, end.cq, Wish::default()).is_null());
            assert_eq!((v.ibv_dereg_mr)(wrong.cast()), libc::EINVAL);
            assert_eq!((v.ibv_destroy_ah)(wrong.cast()), libc::EINVAL);
            assert_eq!((v.ibv_destroy_cq)(wrong.cast()), libc::EINVAL);
            assert_eq!((v.ibv_destroy_qp)(wrong.cast()), libc::EINVAL);
            assert_eq!((v.ibv_modify_qp)(wrong.cast(), &raw mut attributes, 1), libc::EINVAL);
            assert!((v.ibv_qp_to_qp_ex)(wrong.cast()).is_null());
            assert!((v.efadv_cq_from_ibv_cq_ex)(wrong.cast()).is_null());
            assert_eq!((v.efadv_query_ah)(wrong.cast(), &raw mut answer, 16), libc::EINVAL);
        }
        // What is another context's ends with that.
        let other = End::reset(Wish::default());
        for (context, pd, cq) in [
            (other.context, end.pd, end.cq),
            (end.context, other.pd, end.cq),
            (end.context, end.pd, other.cq),
        ] {
            assert!(create(context, pd, cq, Wish::default()).is_null());
            assert_eq!(errno(), libc::EINVAL);
        }
        // A GID alone is no address: the driver looks at it if it is said to be there.
        ah.grh.dgid.raw = end.gid();
        for (is_global, port_num) in [(0, 1), (1, 0), (1, 2)] {
            (ah.is_global, ah.port_num) = (is_global, port_num);
            assert!((v.ibv_create_ah)(end.pd, &raw mut ah).is_null());
            assert_eq!(errno(), libc::EINVAL);
        }
        assert_eq!((v.ibv_modify_qp)(end.qp, nothing(), 1), libc::EINVAL);
        // The zero GID is nobody's.
        ah = ibv_ah_attr { is_global: 1, port_num: 1, ..zeroed() };
        assert!((v.ibv_create_ah)(end.pd, &raw mut ah).is_null());
        // Null where the queue pair's functions are reached through the context.
        let ops = &(*end.context).ops;
        assert_eq!(ops.post_send.unwrap()(nothing(), nothing(), nothing()), libc::EINVAL);
        assert_eq!(ops.post_recv.unwrap()(nothing(), nothing(), nothing()), libc::EINVAL);
        assert!(ops.poll_cq.unwrap()(nothing(), 1, nothing()) < 0);
        let start = (*end.cq).start_poll.unwrap();
        assert_eq!(start(nothing(), nothing()), libc::EINVAL);
        let mut extended = ibv_poll_cq_attr { comp_mask: 1 };
        assert_eq!(start(end.cq, &raw mut extended), libc::EINVAL);
        // Used by others.
        assert_eq!((v.ibv_dealloc_pd)(end.pd), libc::EBUSY);
        assert_eq!((v.ibv_destroy_cq)(end.cq.cast()), libc::EBUSY);
        // Not offered.
        assert!((v.ibv_create_srq)().is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        assert!((v.ibv_create_comp_channel)().is_null());
        assert_eq!((v.ibv_attach_mcast)(), libc::EOPNOTSUPP);
    }
}

#[test]
fn messages_arrive_with_everything_that_is_told_about_them() {
    let (a, b) = pair(Wish::default());
    let sent: Vec<u8> = (0..100).collect();
    let memory = Memory::of(&sent);
    let buffer = Memory::of(&[0; 200]);
    let (from, into) = (a.register(&memory, 0), b.register(&buffer, IBV_ACCESS_LOCAL_WRITE));
    let (handle, back) = (a.handle(b.gid()), b.handle(a.gid()));
    let to = (handle, b.number(), b.qkey);
    assert_eq!(b.post_receive(1, part(into, 0, 100)), 0);
    assert_eq!(b.post_receive(2, part(into, 100, 100)), 0);
    assert_eq!(a.post_send(3, to, &[part(from, 10, 20), part(from, 50, 5)], 0), 0);
    assert_eq!(a.post_send(4, to, &[inline(b"inline")], IBV_SEND_INLINE), 0);
    let mut ahn = efadv_ah_attr::default();
    // SAFETY: all arguments are valid.
    assert_eq!(unsafe { (verbs().efadv_query_ah)(back, &raw mut ahn, 16) }, 0);
    let receive = |wr_id, length| Seen {
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
fn a_receiver_is_ready_as_long_as_a_buffer_is_posted() {
    const COUNT: usize = 200;
    let wish = Wish { rnr_retry: 0, sends: 256, receives: 256, ..Wish::default() };
    let (a, b) = pair(wish);
    let sent: Vec<u8> = (0..=255).collect();
    let (memory, buffer) = (Memory::of(&sent), Memory::of(&[0; COUNT * 16]));
    let (from, into) = (a.register(&memory, 0), b.register(&buffer, IBV_ACCESS_LOCAL_WRITE));
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    // Nobody tries again here: one that finds no buffer fails at once.
    let length = |number: usize| 1 + number * 7 % 16;
    for number in 0..COUNT {
        assert_eq!(b.post_receive(number as u64, part(into, number * 16, length(number))), 0);
    }
    for number in 0..COUNT {
        assert_eq!(a.post_send(number as u64, to, &[part(from, number, length(number))], 0), 0);
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
    // And one more than there are buffers.
    assert_eq!(a.post_send(1, to, &[part(from, 0, 1)], 0), 0);
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
fn datagrams_leave_room_for_a_header() {
    let (a, b) = pair(Wish { ud: true, ..Wish::default() });
    let buffer = Memory::of(&[9; 100]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    assert_eq!(b.post_receive(1, part(into, 0, 39)), libc::EINVAL);
    assert_eq!(b.post_receive(1, part(into, 0, 46)), 0);
    assert_eq!(a.post_send(2, to, &[inline(b"abcdef")], IBV_SEND_INLINE), 0);
    let seen = b.wait();
    assert_eq!((seen.wr_id, seen.length), (1, 46));
    assert_eq!(buffer.bytes()[..40], [9; 40]);
    assert_eq!(&buffer.bytes()[40..46], b"abcdef");
    assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    destroy(handle);
    deregister(into);
}

/// Reads and writes between two ends, with what can be wrong with them.
#[test]
fn remote_memory_is_read_and_written_within_its_bounds() {
    let (a, b) = pair(Wish::default());
    let pattern: Vec<u8> = (0..=255).collect();
    let (theirs, ours) = (Memory::of(&pattern), Memory::of(&[0; 64]));
    let (open, local) = (b.register(&theirs, ALL), a.register(&ours, IBV_ACCESS_LOCAL_WRITE));
    let closed = b.register(&theirs, IBV_ACCESS_LOCAL_WRITE);
    let read_only = a.register(&ours, 0);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    let base = theirs.address() as u64;
    let run = |wr_id, write, remote, entries: &[ibv_sge]| {
        assert_eq!(a.post_remote(wr_id, to, write, remote, entries), 0);
        let seen = a.wait();
        assert_eq!((seen.wr_id, seen.qpn), (wr_id, a.number()));
        (seen.status, seen.vendor, seen.opcode)
    };
    let piece = [part(local, 10, 32)];
    let read = (IBV_WC_SUCCESS, 0, IBV_WC_SEND);
    assert_eq!(run(1, false, (base + 100, rkey(open)), &piece), read, "told as a send");
    assert_eq!(ours.bytes(), [&[0; 10], &pattern[100..132], &[0; 22]].concat());
    let written = (IBV_WC_SUCCESS, 0, IBV_WC_RDMA_WRITE);
    assert_eq!(run(2, true, (base, rkey(open)), &[part(local, 0, 10)]), written);
    assert_eq!(theirs.bytes()[..12], [&[0; 10], &pattern[10..12]].concat());
    // No bytes, and no region for them; more than one range.
    assert_eq!(run(2, true, (base, rkey(open)), &[]), written);
    let two = [part(local, 0, 10), part(local, 32, 32)];
    assert_eq!(a.post_remote(3, to, false, (base, rkey(open)), &two), libc::EINVAL);
    // Remote key, bounds, access: 7. Our own key and access: 5.
    let one = [part(local, 0, 32)];
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
    let (status, vendor, _) = run(4, false, (base, rkey(open)), &[part(read_only, 0, 8)]);
    assert_eq!((status, vendor), (IBV_WC_LOC_PROT_ERR, 5));
    let to_nobody = (handle, nobody(), b.qkey);
    assert_eq!(a.post_remote(5, to_nobody, false, (base, rkey(open)), &one), 0);
    assert_eq!(a.wait().vendor, 9);
    // A region that is gone.
    let key = rkey(open);
    deregister(open);
    assert_eq!(run(6, false, (base, key), &one).1, 7);
    [local, closed, read_only].into_iter().for_each(deregister);
    destroy(handle);
}

/// Immediate data of sends and of writes, from both forms of posting to both forms of polling.
#[test]
fn immediate_data_is_told_with_what_it_came_with() {
    let (a, b) = pair(Wish { rnr_retry: 0, ..Wish::default() });
    use_up_a_buffer(&b);
    let (theirs, ours) = (Memory::of(&[0; 64]), Memory::of(b"0123456789"));
    let (open, local) = (b.register(&theirs, ALL), a.register(&ours, 0));
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    let end = || loop {
        if let Some(seen) = a.poll() {
            return seen;
        }
        assert_eq!(b.poll(), None);
    };
    let remote = (theirs.address() as u64 + 40, rkey(open));
    let write = |wr_id, immediate, entries: &[ibv_sge]| {
        assert_eq!(a.post_write_immediate(wr_id, to, remote, entries, immediate), 0);
    };
    // Without a buffer there, as a send.
    write(1, 7, &[part(local, 0, 4)]);
    let seen = end();
    assert_eq!((seen.wr_id, seen.opcode), (1, IBV_WC_RDMA_WRITE));
    assert_eq!((seen.status, seen.vendor), (IBV_WC_RNR_RETRY_EXC_ERR, 10));
    // With one: it is taken and nothing is put into it.
    assert_eq!(b.post_receive(10, part(open, 0, 32)), 0);
    write(2, u32::MAX, &[part(local, 2, 8)]);
    let told = b.wait();
    assert_eq!((told.wr_id, told.status), (10, IBV_WC_SUCCESS));
    assert_eq!((told.opcode, told.length), (IBV_WC_RECV_RDMA_WITH_IMM, 8));
    assert_eq!((told.immediate, told.source), (Some(u32::MAX), a.number()));
    assert_eq!(theirs.bytes(), [&[0; 40], &b"23456789"[..], &[0; 16]].concat());
    let seen = a.wait();
    assert_eq!((seen.wr_id, seen.status, seen.opcode), (2, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE));
    assert_eq!(seen.immediate, None);
    // A write of nothing is a way to say something.
    assert_eq!(b.post_receive(11, part(open, 0, 32)), 0);
    write(3, 0, &[]);
    let told = b.wait();
    assert_eq!((told.wr_id, told.length, told.immediate), (11, 0, Some(0)));
    assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    // A write that is refused is not told.
    let buffers = b.register(&theirs, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(b.post_receive(12, part(buffers, 0, 32)), 0);
    deregister(open);
    write(4, 7, &[part(local, 0, 4)]);
    assert_eq!(end().vendor, 7);
    // Sends, posted in the old way and polled in it.
    assert_eq!(a.post_send_immediate(5, to, &[inline(b"abc")], 0x0102_0304), 0);
    let mut told: [ibv_wc; 2] = zeroed();
    // SAFETY: as C does it: through the table of the context.
    unsafe {
        let poll = (*b.context).ops.poll_cq.unwrap();
        while poll(b.cq.cast(), 2, told.as_mut_ptr()) == 0 {
            std::thread::yield_now();
        }
    }
    assert_eq!((told[0].wr_id, told[0].opcode, told[0].byte_len), (12, IBV_WC_RECV, 3));
    assert_eq!((told[0].wc_flags, told[0].imm_data), (IBV_WC_WITH_IMM, 0x0102_0304));
    assert_eq!((a.wait().status, &theirs.bytes()[..3]), (IBV_WC_SUCCESS, &b"abc"[..]));
    [local, buffers].into_iter().for_each(deregister);
    destroy(handle);
}

/// Where there are no bytes, no memory is named: libfabric 1.10 sends datagrams of no payload so.
#[test]
fn entries_of_no_bytes_need_no_key() {
    let (a, b) = pair(Wish::default());
    let buffer = Memory::of(&[0; 16]);
    let into = b.register(&buffer, ALL);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    let nothing_there = ibv_sge { addr: 0, length: 0, lkey: 0 };
    assert_eq!(b.post_receive(1, part(into, 0, 16)), 0);
    assert_eq!(b.post_receive(2, nothing_there), 0);
    for wr_id in 3..5 {
        assert_eq!(a.post_send(wr_id, to, &[nothing_there], 0), 0);
        assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    }
    for wr_id in 1..3 {
        let seen = b.wait();
        assert_eq!((seen.wr_id, seen.status, seen.length), (wr_id, IBV_WC_SUCCESS, 0));
    }
    for write in [false, true] {
        let remote = (buffer.address() as u64, rkey(into));
        assert_eq!(a.post_remote(5, to, write, remote, &[nothing_there]), 0);
        assert_eq!(a.wait().status, IBV_WC_SUCCESS, "{write}");
    }
    destroy(handle);
    deregister(into);
}

#[test]
fn a_region_can_have_addresses_of_its_own() {
    let (a, b) = pair(Wish::default());
    let (theirs, ours) = (Memory::of(b"remote memory"), Memory::of(&[0; 6]));
    let v = verbs();
    let address = theirs.address();
    // SAFETY: the memory lives to the end of the test.
    let regions = unsafe {
        [
            (v.ibv_reg_mr_iova)(b.pd, address, theirs.len(), 0x10, 7),
            (v.ibv_reg_mr_iova2)(b.pd, address, theirs.len(), 0x10, 7 | 1 << 20),
        ]
    };
    let local = a.register(&ours, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    for region in regions {
        let to = (handle, b.number(), b.qkey);
        let remote = (0x10 + 7, rkey(region));
        assert_eq!(a.post_remote(1, to, false, remote, &[part(local, 0, 6)]), 0);
        assert_eq!(a.wait().status, IBV_WC_SUCCESS);
        assert_eq!(ours.bytes(), b"memory");
        deregister(region);
    }
    // Flags that nobody knows, no memory, too much of it.
    // SAFETY: none of these is looked at.
    unsafe {
        for (address, length, access) in
            [(address, 8, 1 << 3), (address, 0, 1), (nothing(), 8, 1), (address, usize::MAX, 1)]
        {
            assert!((v.ibv_reg_mr)(b.pd, address, length, access).is_null());
        }
        // Whom others may write for, may write itself.
        assert!((v.ibv_reg_mr)(b.pd, address, 8, IBV_ACCESS_REMOTE_WRITE.cast_signed()).is_null());
        assert_eq!(errno(), libc::EINVAL);
        // Where there is no memory: far from where the system puts that of other threads.
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

/// Registration pins memory for what the device may do with it, which fails where that isn't allowed.
#[test]
fn memory_is_registered_for_what_its_pages_allow() {
    use libc::{PROT_NONE, PROT_READ, PROT_WRITE};
    const PAGE: usize = 4096;
    let (v, end) = (verbs(), End::new(Wish::default()));
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
        // SAFETY: pages of nobody else's, which are given back after the region is.
        unsafe {
            let pages = libc::mmap(nothing(), 2 * PAGE, first, flags, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(pages.byte_add(PAGE), PAGE, last), 0);
            // From within the first page into the last one.
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
fn sends_that_can_not_arrive_say_why() {
    let (a, b) = pair(Wish { rnr_retry: 0, ..Wish::default() });
    use_up_a_buffer(&b);
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
    run(to, part(from, 0, 8), (IBV_WC_RNR_RETRY_EXC_ERR, 10));
    assert_eq!(b.post_receive(1, part(into, 0, 100)), 0);
    run((handle, b.number(), b.qkey + 1), part(from, 0, 8), (IBV_WC_REM_INV_RD_REQ_ERR, 9));
    run((handle, nobody(), b.qkey), part(from, 0, 8), (IBV_WC_REM_INV_RD_REQ_ERR, 9));
    run((handle, 0x1_0000 | b.number(), b.qkey), part(from, 0, 8), (IBV_WC_REM_INV_RD_REQ_ERR, 9));
    run(to, part(from, 0, 101), (IBV_WC_REM_INV_REQ_ERR, 11));
    run(to, part(from, 0, 8929), (IBV_WC_LOC_LEN_ERR, 6));
    run(to, part(from, 9_999, 2), (IBV_WC_LOC_PROT_ERR, 5));
    run((elsewhere, b.number(), b.qkey), part(from, 0, 8), (IBV_WC_RESP_TIMEOUT_ERR, 13));
    // The buffer is still there.
    assert_eq!(a.post_send(2, to, &[part(from, 0, 100)], 0), 0);
    assert_eq!(b.wait().length, 100);
    assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    [handle, elsewhere].into_iter().for_each(destroy);
    [from, into].into_iter().for_each(deregister);
}

#[test]
fn posts_that_can_not_be_are_refused() {
    let (a, b) = pair(Wish { sends: 2, receives: 2, ..Wish::default() });
    let buffer = Memory::of(&[0; 100]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let read_only = b.register(&buffer, 0);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    let entry = [inline(b"x")];
    for wr_id in 0..2 {
        assert_eq!(a.post_send(wr_id, to, &entry, IBV_SEND_INLINE), 0);
        assert_eq!(b.post_receive(wr_id, part(into, 0, 50)), 0);
    }
    assert_eq!(a.post_send(2, to, &entry, IBV_SEND_INLINE), libc::ENOMEM);
    assert_eq!(a.post_remote(2, to, false, (0, 1), &[]), libc::ENOMEM);
    assert_eq!(b.post_receive(2, part(into, 0, 50)), libc::ENOMEM);
    for _ in 0..2 {
        assert_eq!((b.wait().status, a.wait().status), (0, 0));
    }
    assert_eq!(b.post_receive(3, part(read_only, 0, 50)), libc::EINVAL);
    assert_eq!(a.post_send(3, to, &[inline(&[0; 33])], IBV_SEND_INLINE), libc::EINVAL);
    assert_eq!(a.post_send(3, to, &[part(into, 0, 1); 3], 0), libc::EINVAL);
    assert_eq!(a.post_send(3, (nothing(), 1, 1), &entry, IBV_SEND_INLINE), libc::EINVAL);
    // Too early.
    let early = End::reset(Wish::default());
    assert_eq!(early.post_send(1, to, &entry, IBV_SEND_INLINE), libc::EINVAL);
    assert_eq!(early.post_receive(1, part(into, 0, 1)), libc::EINVAL);
    // Steps out of order, and attributes that there aren't.
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

/// A place in a queue is free again when the program has seen the completion: a program that forgets
/// to look would overrun its queues on hardware.
#[test]
fn queues_are_as_long_as_what_the_program_has_not_seen() {
    let (a, b) = pair(Wish { sends: 2, receives: 2, ..Wish::default() });
    let buffer = Memory::of(&[0; 16]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    for wr_id in 0..2 {
        assert_eq!(b.post_receive(wr_id, part(into, 0, 16)), 0);
        assert_eq!(a.post_send(wr_id, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    }
    for _ in 0..2 {
        assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    }
    assert_eq!(b.post_receive(2, part(into, 0, 16)), libc::ENOMEM, "two have come");
    assert_eq!(b.wait().wr_id, 0);
    assert_eq!(b.post_receive(2, part(into, 0, 16)), 0);
    assert_eq!(b.post_receive(3, part(into, 0, 16)), libc::ENOMEM);
    // These fail at once.
    let nobodys = ibv_sge { addr: 1, length: 1, lkey: 1 };
    for wr_id in 0..2 {
        assert_eq!(a.post_send(wr_id, to, &[nobodys], 0), 0);
    }
    assert_eq!(a.post_send(2, to, &[nobodys], 0), libc::ENOMEM);
    assert_eq!(a.wait().status, IBV_WC_LOC_PROT_ERR);
    assert_eq!(a.post_send(2, to, &[nobodys], 0), 0);
    assert_eq!(a.post_remote(3, to, false, (0, 1), &[]), libc::ENOMEM);
    assert_eq!([a.wait().wr_id, a.wait().wr_id], [1, 2]);
    destroy(handle);
    deregister(into);
}

#[test]
fn each_queue_has_its_own_room_also_where_completions_wait_together() {
    let wish = Wish { sends: 2, receives: 2, ..Wish::default() };
    let (a, b) = pair(wish);
    let other = a.another(wish);
    assert_eq!(ends::connect(&other, 7), 0);
    let buffer = Memory::of(&[0; 16]);
    let into = a.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let (to_b, to_a) = (a.handle(b.gid()), b.handle(a.gid()));
    // They fail at once, and nobody looks.
    let nobodys = ibv_sge { addr: 1, length: 1, lkey: 1 };
    for wr_id in 0..2 {
        assert_eq!(other.post_send(wr_id, (to_b, b.number(), b.qkey), &[nobodys], 0), 0);
    }
    let fill = || {
        for wr_id in 2..4 {
            assert_eq!(a.post_receive(wr_id, part(into, 0, 16)), 0);
        }
        assert_eq!(a.post_receive(4, part(into, 0, 16)), libc::ENOMEM);
    };
    fill();
    for wr_id in 0..2 {
        let to_a = (to_a, a.number(), a.qkey);
        assert_eq!(b.post_send(wr_id, to_a, &[inline(b"x")], IBV_SEND_INLINE), 0);
        assert_eq!(b.wait().status, IBV_WC_SUCCESS);
    }
    // Both receives have ended, unseen too.
    for wr_id in 4..6 {
        assert_eq!(a.post_send(wr_id, (to_b, b.number(), b.qkey), &[nobodys], 0), 0);
    }
    assert_eq!(a.post_send(6, (to_b, b.number(), b.qkey), &[nobodys], 0), libc::ENOMEM);
    assert_eq!(a.post_receive(6, part(into, 0, 16)), libc::ENOMEM);
    let seen: Vec<_> = (0..4).map(|_| a.wait().wr_id).collect();
    assert_eq!(seen, [0, 1, 2, 3]);
    // Its own sends, which have ended and wait to be seen, take no place of a receive.
    fill();
    assert_eq!([a.wait().wr_id, a.wait().wr_id], [4, 5]);
    // SAFETY: it is ours and not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_destroy_qp)(other.qp) }, 0);
    [to_b, to_a].into_iter().for_each(destroy);
    deregister(into);
}

/// Each step has attributes that it needs and others that it may have, by the table of the kernel's
/// driver. A program that forgets one must not get on here, and fail on hardware.
#[test]
fn a_step_of_a_queue_pair_is_made_with_what_it_needs() {
    LazyLock::force(&HOST);
    let end = End::reset(Wish::default());
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
    assert_eq!(step(IBV_QPS_INIT, IBV_QP_QKEY), 0, "the state stays");
    assert_eq!(step(IBV_QPS_RTR, IBV_QP_STATE | IBV_QP_RNR_RETRY), libc::EINVAL);
    assert_eq!(step(IBV_QPS_RTR, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_QKEY), 0);
    assert_eq!(step(IBV_QPS_RTR, IBV_QP_STATE), libc::EINVAL);
    assert_eq!(step(IBV_QPS_RTS, IBV_QP_STATE), libc::EINVAL);
    let current = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_SQ_PSN;
    assert_eq!(step(IBV_QPS_RTS, current), 0);
    assert_eq!(step(IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_CUR_STATE), libc::EINVAL, "it is RTS");
    assert_eq!(step(IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_QKEY), 0);
    assert_eq!(step(IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_RNR_RETRY), libc::EINVAL);
    assert_eq!(step(IBV_QPS_RESET, IBV_QP_STATE), libc::EOPNOTSUPP);
    assert_eq!(step(IBV_QPS_ERR, IBV_QP_STATE), 0);
    assert_eq!(step(IBV_QPS_ERR, IBV_QP_STATE), 0);
    assert_eq!(step(IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN), libc::EINVAL);
}

/// Sends complete all, so the device refuses those that say that they need not.
#[test]
fn sends_have_the_flags_and_lengths_that_the_device_knows() {
    const SIGNALED: u32 = 2;
    let wish = Wish { signals_all: false, max_inline: 16, ..Wish::default() };
    let (a, b) = pair(wish);
    let buffer = Memory::of(&[0; 64]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    for wr_id in 0..4 {
        assert_eq!(b.post_receive(wr_id, part(into, 0, 64)), 0);
    }
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    let built = |flags, bytes: &[u8]| {
        // SAFETY: as C does it: through the functions in the queue pair.
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
    // What is copied can lie in as many places as it likes.
    let pieces = [inline(b"a"), inline(b"b"), inline(b"cd")];
    assert_eq!(a.post_send(1, to, &pieces, IBV_SEND_INLINE | SIGNALED), 0);
    let lengths = [(); 3].map(|()| (a.wait().status, b.wait().length));
    assert_eq!(lengths, [(0, 16), (0, 16), (0, 4)]);
    assert_eq!(&buffer.bytes()[..4], b"abcd");
    assert_eq!((a.poll(), b.poll()), (None, None));
    destroy(handle);
    deregister(into);
}

/// Programs may know structures with more at the end, and of other lengths, than this library.
#[test]
fn what_is_asked_for_beyond_what_is_known_is_refused() {
    LazyLock::force(&HOST);
    let end = End::reset(Wish::default());
    let v = verbs();
    let cq = |extra: [u64; 6], length: u32, comp_mask| {
        let mut attributes: ibv_cq_init_attr_ex = zeroed();
        (attributes.cqe, attributes.comp_mask, attributes.flags) = (8, comp_mask, comp_mask);
        let mut efa = [0_u64; 8];
        efa[2..].copy_from_slice(&extra);
        // SAFETY: there is room for 64 bytes, and the queue is not used afterwards.
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
    assert_eq!(cq([1, 0, 0, 0, 0, 0], 56, 0), libc::EOPNOTSUPP, "memory of the program's");
    assert_eq!(cq([0, 0, 0, 0, 0, 1], 64, 0), libc::EINVAL, "something new");
    assert_eq!(cq([0; 6], 8, 0), libc::EINVAL, "short");
    assert_eq!(cq([0; 6], 16, 2), libc::EOPNOTSUPP, "a parent domain");
    let qp = |words: [u32; 8], length| {
        let mut attributes: ibv_qp_init_attr_ex = zeroed();
        (attributes.send_cq, attributes.recv_cq) = (end.cq.cast(), end.cq.cast());
        (attributes.qp_type, attributes.pd) = (IBV_QPT_DRIVER, end.pd);
        attributes.comp_mask = IBV_QP_INIT_ATTR_PD;
        let mut words = words;
        let efa = words.as_mut_ptr().cast();
        // SAFETY: there is room for 32 bytes, and the queue pair is not used afterwards.
        unsafe {
            let qp = (v.efadv_create_qp_ex)(end.context, &raw mut attributes, efa, length);
            if qp.is_null() { errno() } else { (v.ibv_destroy_qp)(qp) }
        }
    };
    assert_eq!([12, 16, 24, 32].map(|length| qp([0; 8], length)), [0; 4]);
    assert_eq!(qp([0, 0, 0, 0, 1, 0, 0, 0], 24), 0, "hints, as libfabric 2.6 asks for them");
    assert_eq!(qp([0, 0, 0, 0, 2, 0, 0, 0], 24), libc::EOPNOTSUPP);
    assert_eq!(qp([0, 0, 0, 2, 0, 0, 0, 0], 16), libc::EOPNOTSUPP, "writes inline");
    assert_eq!(qp([0, 0, 0, 1 << 24, 0, 0, 0, 0], 16), libc::EINVAL, "reserved");
    assert_eq!(qp([1, 0, 0, 0, 0, 0, 0, 0], 16), libc::EINVAL, "a member that nobody knows");
    assert_eq!(qp([0, 0, 0, 0, 0, 0, 1, 0], 32), libc::EINVAL, "something new");
    assert_eq!(qp([0; 8], 8), libc::EINVAL, "short");
    // SAFETY: all arguments are valid; the hint changes nothing.
    unsafe {
        let efa = (v.efadv_qp_from_ibv_qp_ex)(end.qp.cast());
        ((*efa).wr_set_processing_hints.unwrap())(efa, 1);
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
        let room = size_of::<ibv_device_attr_ex>();
        assert_eq!(query(end.context, std::ptr::null(), &raw mut device, room), 0);
        assert_eq!(device.phys_port_cnt_ex, 1);
    }
}

#[test]
fn everything_posted_completes_when_a_queue_pair_fails() {
    let (a, b) = pair(Wish::default());
    let buffer = Memory::of(&[0; 100]);
    let into = a.register(&buffer, ALL);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    for wr_id in 0..3 {
        assert_eq!(a.post_receive(wr_id, part(into, 0, 10)), 0);
        assert_eq!(a.post_send(10 + wr_id, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    }
    let mut attributes: ibv_qp_attr = zeroed();
    attributes.qp_state = IBV_QPS_ERR;
    assert_eq!(a.modify(&mut attributes, IBV_QP_STATE), 0);
    // Nothing more is taken.
    assert_eq!(a.post_receive(3, part(into, 0, 10)), libc::EINVAL);
    assert_eq!(a.post_send(13, to, &[inline(b"x")], IBV_SEND_INLINE), libc::EINVAL);
    assert_eq!(a.post_remote(14, to, false, (0, 1), &[part(into, 0, 1)]), libc::EINVAL);
    let mut flushed: Vec<_> = std::iter::from_fn(|| a.poll())
        .map(|seen| {
            assert_eq!((seen.status, seen.vendor), (IBV_WC_WR_FLUSH_ERR, 1));
            seen.wr_id
        })
        .collect();
    flushed.sort_unstable();
    assert_eq!(flushed, [0, 1, 2, 10, 11, 12]);
    // Nobody reaches it any more.
    let back = b.handle(a.gid());
    let to = (back, a.number(), a.qkey);
    assert_eq!(b.post_send(1, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    assert_eq!(b.wait().vendor, 9);
    [handle, back].into_iter().for_each(destroy);
    deregister(into);
}

#[test]
fn requests_are_built_by_calls_all_or_none() {
    let (a, b) = pair(Wish { sends: 2, ..Wish::default() });
    let buffer = Memory::of(&[0; 100]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    for wr_id in 0..4 {
        assert_eq!(b.post_receive(wr_id, part(into, 0, 50)), 0);
    }
    let handle = a.handle(b.gid());
    // SAFETY: as C does it: through the functions in the queue pair, between start and complete.
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
        // What this device doesn't do is told at the end, and the next batch starts afresh.
        ((*qp).wr_start.unwrap())(qp);
        ((*qp).wr_local_inv.unwrap())(qp, 7);
        assert_eq!(((*qp).wr_complete.unwrap())(qp), libc::EOPNOTSUPP);
        ((*qp).wr_start.unwrap())(qp);
        ((*qp).wr_send.unwrap())(qp);
        assert_eq!(((*qp).wr_complete.unwrap())(qp), libc::EINVAL, "no target");
        ((*qp).wr_start.unwrap())(qp);
        assert_eq!(((*qp).wr_complete.unwrap())(qp), 0, "nothing to do");
    }
    destroy(handle);
    deregister(into);
}

/// Threads post and poll at once; nothing is lost and nothing comes twice.
#[test]
fn threads_share_a_queue_pair() {
    const EACH: u64 = 500;
    let (a, b) = pair(Wish { sends: 64, receives: 64, ..Wish::default() });
    let buffer = Memory::of(&[0; 64 * 16]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    for place in 0..64 {
        assert_eq!(b.post_receive(place, part(into, 16 * place as usize, 16)), 0);
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
            assert_eq!(b.post_receive(seen.wr_id, part(into, at, 16)), 0);
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

/// While the program waits elsewhere, its peer's sends complete all the same.
#[test]
fn buffers_are_filled_although_nobody_polls() {
    let (a, b) = pair(Wish::default());
    let buffer = Memory::of(&[0; 16]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(b.post_receive(1, part(into, 0, 16)), 0);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    assert_eq!(a.post_send(2, to, &[inline(b"hello")], IBV_SEND_INLINE), 0);
    assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    assert_eq!(b.poll().unwrap().wr_id, 1);
    destroy(handle);
    deregister(into);
}

#[test]
fn a_destroyed_queue_pair_leaves_no_completions() {
    let (a, b) = pair(Wish::default());
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    // Long gone when its end is looked for.
    assert_eq!(a.post_send(1, (handle, nobody(), 1), &[inline(b"x")], IBV_SEND_INLINE), 0);
    let other = create(a.context, a.pd, a.cq, Wish::default());
    assert!(!other.is_null());
    // SAFETY: the queue pair is alive and not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_destroy_qp)(other) }, 0);
    assert_eq!(a.wait().vendor, 9);
    assert_eq!(a.post_send(2, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    drop(b);
    assert_eq!(a.wait().vendor, 9);
    destroy(handle);
}
