//! The device list, and what queries return.

use std::mem::offset_of;
use std::path::Path;

use efa_soft::abi::*;

use super::*;
use crate::{DEVICES, LINK};

#[test]
fn device_list_has_names_guids_and_sysfs_entries() {
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
            assert_eq!((v.ibv_get_device_index)(device), -1, "the kernel doesn't know the device");
            assert_ne!((v.ibv_get_device_guid)(device), 0);
            assert_eq!(text(&(*device).name), name);
            // What libfabric reads from sysfs: a PCI address and a driver.
            let link = Path::new(text(&(*device).ibdev_path)).join("device");
            let pci = link.canonicalize().unwrap();
            let pci = pci.file_name().unwrap().to_str().unwrap();
            let parts: Vec<_> = pci.split([':', '.']).map(|p| u16::from_str_radix(p, 16)).collect();
            assert!(parts.len() == 4 && parts.iter().all(Result::is_ok), "{pci}");
            let machine = Path::new("/sys/bus/pci/devices");
            let count = machine.read_dir().map_or(0, Iterator::count);
            assert!(count < DEVICES || machine.join(pci).exists(), "{pci}");
            assert!(link.join("driver").canonicalize().unwrap().ends_with("efa"));
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
fn queries_return_device_and_port_attributes() {
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
        assert_eq!((device.vendor_id, device.vendor_part_id), (0x1d0f, 0xefa4));
        assert_eq!((device.phys_port_cnt, device.max_sge_rd), (1, 1));
        assert_eq!((v.ibv_query_port)(context, 1, &raw mut port), 0);
        assert_eq!((port.state, port.max_msg_sz, port.gid_tbl_len), (IBV_PORT_ACTIVE, 8928, 1));
        assert_eq!((port.active_width, port.active_speed), (2, 128), "4X, 100 Gbit/s");
        assert_eq!((v.ibv_query_gid)(context, 1, 0, &raw mut gid), 0);
        match LINK {
            "shm" => assert_eq!(gid.raw[..2], [0xfe, 0x80]),
            _ => assert_eq!(gid.raw, loopback(1).to_ipv6_mapped().octets()),
        }
        let mut kind = 7;
        assert_eq!((v.ibv_query_gid_type)(context, 1, 0, &raw mut kind), 0);
        assert_eq!(kind, 0, "InfiniBand");
        assert_eq!((v.ibv_query_pkey)(context, 1, 0, &raw mut pkey), 0);
        assert_eq!((v.ibv_get_pkey_index)(context, 1, pkey), 0);
        assert_eq!((v.efadv_query_device)(context, &raw mut efa, whole), 0);
        assert_eq!(efa.device_caps, 0b11111, "read, RNR, GID of the source, write, unsolicited");
        assert_eq!((efa.max_sq_sge, efa.max_rq_sge, efa.inline_buf_size), (2, 3, 32));
        assert_eq!((efa.max_sq_wr, efa.max_rq_wr), (4096, 32768));
        assert_eq!((device.max_sge, device.max_qp_wr), (2, 4096), "of both queues");
        // Through the context, with a structure longer than this library knows.
        let vctx: *mut verbs_context = context.byte_sub(offset_of!(verbs_context, context)).cast();
        assert_eq!((*vctx).sz, size_of::<verbs_context>());
        assert_eq!((*context).abi_compat as usize, usize::MAX);
        let mut longer = [0xff_u8; size_of::<ibv_port_attr>() + 8];
        let query = (*vctx).query_port.unwrap();
        assert_eq!(query(context, 1, longer.as_mut_ptr().cast(), longer.len()), 0);
        assert_eq!(longer[longer.len() - 8..], [0; 8]);

        // Ports and indices that the device doesn't have, and a structure that is too short.
        assert_eq!((v.ibv_query_port)(context, 2, &raw mut port), libc::EINVAL);
        assert_eq!((v.ibv_query_gid)(context, 1, 1, &raw mut gid), -1);
        assert_eq!((v.ibv_query_gid_type)(context, 1, 1, &raw mut kind), -1);
        assert_eq!((v.ibv_query_gid_type)(context, 2, 0, &raw mut kind), -1);
        assert_eq!((v.ibv_query_pkey)(context, 2, 0, &raw mut pkey), -1);
        assert_eq!((v.ibv_get_pkey_index)(context, 1, 7), -1);
        assert_eq!((v.efadv_query_device)(context, &raw mut efa, 8), libc::EINVAL);
        assert_eq!((v.ibv_query_device)(context, null_mut()), libc::EINVAL);
        assert_eq!((v.ibv_close_device)(context), 0);
        assert_eq!((v.ibv_close_device)(context), libc::EINVAL);
    }
}

/// No interface has it, and programs go on without.
#[test]
fn resizing_a_completion_queue_is_refused() {
    LazyLock::force(&HOST);
    let end = Endpoint::in_reset(QpOptions::default());
    // SAFETY: all arguments are valid.
    let result = unsafe { (verbs().ibv_resize_cq)(end.cq.cast(), 2048) };
    assert_eq!(result, libc::EOPNOTSUPP);
    // SAFETY: the queue exists.
    assert_eq!(unsafe { (*end.cq).cq_base.cqe }, 1024, "as it was");
}

#[test]
fn completion_queue_has_at_most_max_cqe_entries() {
    LazyLock::force(&HOST);
    let (v, context) = (verbs(), open());
    let mut device: ibv_device_attr = zeroed();
    // SAFETY: all arguments are valid or what is tested, and what is made is destroyed.
    unsafe {
        assert_eq!((v.ibv_query_device)(context, &raw mut device), 0);
        let vectors = (*context).num_comp_vectors;
        for (entries, vector, possible) in [
            (device.max_cqe, 0, true),
            (1, 0, true),
            (device.max_cqe + 1, 0, false),
            (0, 0, false),
            (-1, 0, false),
            (1, vectors - 1, true),
            (1, vectors, false),
            (1, -1, false),
        ] {
            let made = (v.ibv_create_cq)(context, entries, null_mut(), null_mut(), vector);
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
fn queue_pair_numbers_differ_in_lower_bits_of_max_qp() {
    LazyLock::force(&HOST);
    let end = Endpoint::in_reset(QpOptions::default());
    let mut device: ibv_device_attr = zeroed();
    // SAFETY: all arguments are valid.
    assert_eq!(unsafe { (verbs().ibv_query_device)(end.context, &raw mut device) }, 0);
    let mask = device.max_qp.cast_unsigned().next_power_of_two() - 1;
    for _ in 0..1200 {
        let other =
            end.second_queue_pair(QpOptions { sends: 1, receives: 1, ..QpOptions::default() });
        assert_ne!(other.number() & mask, end.number() & mask, "of {}", end.number());
        // SAFETY: the object was created here and is not used afterwards.
        assert_eq!(unsafe { (verbs().ibv_destroy_qp)(other.qp) }, 0);
    }
}

/// Queues of the depths that `efadv_get_max_…_depth` reports can be created, deeper ones not.
#[test]
fn queue_pair_has_at_most_the_depths_that_are_reported() {
    LazyLock::force(&HOST);
    let end = Endpoint::in_reset(QpOptions::default());
    for (sends, max_inline, inline_writes, receives, receive_entries) in
        [(4096, 32, false, 32768, 1), (2048, 33, false, 16384, 2), (2048, 0, true, 10922, 3)]
    {
        let deepest = QpOptions {
            sends,
            max_inline,
            inline_writes,
            receives,
            receive_entries,
            ..QpOptions::default()
        };
        for (options, possible) in [
            (deepest, true),
            (QpOptions { sends: sends + 1, ..deepest }, false),
            (QpOptions { receives: receives + 1, ..deepest }, false),
            (QpOptions { receives: 1, receive_entries: 4, ..deepest }, false),
        ] {
            let qp = create(end.context, end.pd, end.cq, options);
            assert_eq!(!qp.is_null(), possible, "{sends} sends, {receives} receives");
            match possible {
                // SAFETY: the queue pair was created here and is not used afterwards.
                true => assert_eq!(unsafe { (verbs().ibv_destroy_qp)(qp) }, 0),
                false => assert_eq!(errno(), libc::EINVAL),
            }
        }
    }
}

#[test]
fn port_speed_is_in_units_of_100_megabits() {
    LazyLock::force(&HOST);
    let (v, context, mut speed) = (verbs(), open(), 0);
    // SAFETY: all arguments are valid or what is tested.
    unsafe {
        assert_eq!((v.ibv_query_port_speed)(context, 1, &raw mut speed), 0);
        assert_eq!(speed, 4000, "4 lanes of 100 Gbit/s");
        assert_eq!((v.ibv_query_port_speed)(context, 2, &raw mut speed), libc::EINVAL);
        assert_eq!((v.ibv_query_port_speed)(context, 1, null_mut()), libc::EINVAL);
        assert_eq!((v.ibv_close_device)(context), 0);
        assert_eq!((v.ibv_query_port_speed)(context, 1, &raw mut speed), libc::EINVAL);
    }
}

/// A program sees by the validity that there is no interconnect with a number.
#[test]
fn query_of_a_region_reports_no_interconnects() {
    LazyLock::force(&HOST);
    let (v, end) = (verbs(), Endpoint::in_reset(QpOptions::default()));
    let memory = Memory::of(&[0; 8]);
    let region = end.register(&memory, IBV_ACCESS_LOCAL_WRITE);
    let unset = efadv_mr_attr { ic_id_validity: 7, recv_ic_id: 7, ..efadv_mr_attr::default() };
    let mut longer = [unset; 2];
    // SAFETY: all arguments are valid or what is tested.
    unsafe {
        assert_eq!((v.efadv_query_mr)(region, longer.as_mut_ptr(), 32), 0);
        assert_eq!(longer, [efadv_mr_attr::default(); 2]);
        assert_eq!((v.efadv_query_mr)(region, longer.as_mut_ptr(), 15), libc::EINVAL);
        assert_eq!((v.efadv_query_mr)(region, null_mut(), 16), libc::EINVAL);
        deregister(region);
        assert_eq!((v.efadv_query_mr)(region, longer.as_mut_ptr(), 16), libc::EINVAL);
    }
}

/// `efadv_get_max_sq_depth` and `efadv_get_max_rq_depth`, which libfabric 2 calls, return negative error
/// numbers.
#[test]
fn max_queue_depth_is_reported_for_possible_attributes() {
    LazyLock::force(&HOST);
    let v = verbs();
    let context = open();
    let mut efa = efadv_device_attr::default();
    let send = |max_send_sge, max_rdma_sge, max_inline_data, length| {
        let mut asked = efadv_sq_depth_attr::default();
        (asked.max_send_sge, asked.max_rdma_sge) = (max_send_sge, max_rdma_sge);
        asked.max_inline_data = max_inline_data;
        // SAFETY: the structure is valid for these lengths.
        unsafe { (v.efadv_get_max_sq_depth)(context, &raw mut asked, length) }
    };
    let receive = |max_recv_sge, length| {
        let mut asked = efadv_rq_depth_attr { max_recv_sge, ..efadv_rq_depth_attr::default() };
        // SAFETY: the structure is valid for these lengths.
        unsafe { (v.efadv_get_max_rq_depth)(context, &raw mut asked, length) }
    };
    // SAFETY: all arguments are valid, and the context is not used afterwards.
    unsafe {
        assert_eq!((v.efadv_query_device)(context, &raw mut efa, 32), 0);
        let newer = u16::from_ne_bytes(efa.reserved);
        assert_eq!((efa.inline_buf_size, newer), (32, 80), "inline_buf_size_ex of newer releases");
        assert_eq!(send(2, 1, 32, 24), efa.max_sq_wr.cast_signed());
        assert_eq!([send(2, 1, 33, 24), send(2, 1, 80, 24)], [2048; 2], "128 bytes each");
        assert_eq!([0, 1, 2, 3].map(|entries| receive(entries, 16)), [32768, 32768, 16384, 10922]);
        let mut inline_writes = efadv_sq_depth_attr { flags: 1, ..efadv_sq_depth_attr::default() };
        assert_eq!((v.efadv_get_max_sq_depth)(context, &raw mut inline_writes, 24), 2048);
        inline_writes.flags = 2;
        assert_eq!((v.efadv_get_max_sq_depth)(context, &raw mut inline_writes, 24), -libc::EINVAL);
        let wrong = [send(3, 1, 0, 24), send(1, 2, 0, 24), send(1, 1, 81, 24), send(1, 1, 0, 16)];
        assert_eq!(wrong, [-libc::EINVAL; 4]);
        assert_eq!([receive(4, 16), receive(1, 8)], [-libc::EINVAL; 2]);
        assert_eq!((v.ibv_close_device)(context), 0);
        assert_eq!(send(1, 1, 0, 24), -libc::EINVAL, "of a closed context");
    }
}
