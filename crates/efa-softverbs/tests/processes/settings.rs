//! Settings, captures and counters.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::time::{Duration, Instant};

use efa_sim::capture::CaptureReader;
use efa_sim::record::PacketEvent;
use efa_soft::abi::*;

use crate::common::verbs::*;
use crate::{Host, LINKS, begin, print, printed, read, rkey};

/// Prints the number of devices, the limits and capabilities of the first, and `SYSFS_PATH`.
#[test]
#[ignore = "a child"]
fn child_queries_devices() {
    begin();
    let v = verbs();
    let mut count = -1;
    // SAFETY: all arguments are valid, and the list is freed after its last use.
    unsafe {
        let list = (v.ibv_get_device_list)(&raw mut count);
        assert!(!list.is_null());
        assert_eq!((*list).is_null(), count == 0);
        (v.ibv_free_device_list)(list);
    }
    if count == 0 {
        return print(count);
    }
    let context = open();
    let mut port: ibv_port_attr = zeroed();
    let mut efa = efadv_device_attr::default();
    // SAFETY: all arguments are valid, and the context is not used afterwards.
    unsafe {
        assert_eq!((v.ibv_query_port)(context, 1, &raw mut port), 0);
        assert_eq!((v.efadv_query_device)(context, &raw mut efa, 40), 0);
        assert_eq!((v.ibv_close_device)(context), 0);
    }
    print(format!("{count} {} {:#x} {}", port.max_msg_sz, efa.device_caps, efa.max_rdma_size));
    print(std::env::var("SYSFS_PATH").unwrap());
}

#[test]
fn settings_change_devices_mtu_and_capabilities() {
    let host = Host::new("shm");
    let look =
        |settings: &[(&str, &str)]| printed(&host.run("settings::child_queries_devices", settings));
    let lines = look(&[]);
    assert_eq!(lines[0], "1 8928 0x1f 1073741824");
    assert!(!Path::new(&lines[1]).exists(), "{} was not removed", lines[1]);
    let several = [("EFA_SOFT_DEVICES", "3"), ("EFA_SOFT_MTU", "4096")];
    assert_eq!(look(&several)[0], "3 4096 0x1f 1073741824");
    assert_eq!(look(&[("EFA_SOFT_RDMA", "read")])[0], "1 8928 0x7 1073741824");
    assert_eq!(look(&[("EFA_SOFT_RDMA", "none")])[0], "1 8928 0x6 0");
    assert_eq!(look(&[("EFA_SOFT_UNSOLICITED", "0")])[0], "1 8928 0xf 1073741824");
    assert_eq!(look(&[("EFA_SOFT_COUNTERS", "1")])[0], "1 8928 0x5f 1073741824");
    let first = ("EFA_SOFT_GENERATION", "1");
    assert_eq!(look(&[first])[0], "1 8928 0x7 1073741824");
    assert_eq!(look(&[first, ("EFA_SOFT_RDMA", "read,write")])[0], "1 8928 0xf 1073741824");
}

/// Tries each RDMA operation, offered or not; prints the capabilities.
#[test]
#[ignore = "a child"]
fn child_tries_each_capability() {
    begin();
    let v = verbs();
    let context = open();
    let mut efa = efadv_device_attr::default();
    // SAFETY: all arguments are valid.
    unsafe { assert_eq!((v.efadv_query_device)(context, &raw mut efa, 40), 0) };
    let (read, write) = (EFADV_DEVICE_ATTR_CAPS_RDMA_READ, EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE);
    let others = EFADV_DEVICE_ATTR_CAPS_RNR_RETRY | EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID;
    // Each `Endpoint` uses the others: a completion queue with the sender's GID, and RNR retries.
    let unsolicited = EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV;
    assert_eq!(efa.device_caps & !(read | write | unsolicited), others);
    assert_eq!(efa.max_rdma_size > 0, efa.device_caps & (read | write) != 0);
    let sends = QpOptions { operations: IBV_QP_EX_WITH_SEND, ..QpOptions::default() };
    let (plain, b) = (Endpoint::new(sends), Endpoint::new(sends));
    let (remote_memory, local_memory) = (Memory::of(b"theirs"), Memory::of(b"ours??"));
    let local = plain.register(&local_memory, IBV_ACCESS_LOCAL_WRITE);
    let handle = plain.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    for (bit, access, operations, is_write) in [
        (read, IBV_ACCESS_REMOTE_READ, IBV_QP_EX_WITH_RDMA_READ, false),
        (write, IBV_ACCESS_REMOTE_WRITE, IBV_QP_EX_WITH_RDMA_WRITE, true),
        (
            write,
            IBV_ACCESS_REMOTE_WRITE,
            IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
            true,
        ),
    ] {
        let has = efa.device_caps & bit != 0;
        let (address, length) = (remote_memory.address(), remote_memory.len());
        let access = (access | IBV_ACCESS_LOCAL_WRITE).cast_signed();
        // SAFETY: the memory exists until the end of this function.
        let region = unsafe { (v.ibv_reg_mr)(b.pd, address, length, access) };
        assert_eq!(region.is_null(), !has, "registration");
        let qp = create(plain.context, plain.pd, plain.cq, QpOptions { operations, ..sends });
        assert_eq!(qp.is_null(), !has, "creation of a queue pair");
        if has {
            let &Endpoint { context, pd, channel, cq, qkey, .. } = &plain;
            let able = ManuallyDrop::new(Endpoint { context, pd, channel, cq, qp, qkey });
            able.make_ready(sends);
            let remote = (address as u64, rkey(region));
            assert_eq!(able.post_remote(1, to, is_write, remote, &[sge(local, 0, 6)]), 0);
            assert_eq!(able.wait().status, IBV_WC_SUCCESS);
            assert_eq!(local_memory.bytes(), remote_memory.bytes());
            // SAFETY: both objects were created here and are not used afterwards.
            unsafe {
                assert_eq!((v.ibv_destroy_qp)(qp), 0);
                assert_eq!((v.ibv_dereg_mr)(region), 0);
            }
        }
    }
    print(efa.device_caps);
    // SAFETY: the objects were created here and are not used afterwards.
    unsafe {
        assert_eq!((v.ibv_destroy_ah)(handle), 0);
        assert_eq!((v.ibv_dereg_mr)(local), 0);
        assert_eq!((v.ibv_close_device)(context), 0);
    }
}

#[test]
fn device_offers_exactly_its_capabilities() {
    for link in LINKS {
        let host = Host::new(link);
        for (which, caps) in [("read,write", 31), ("read", 7), ("write", 30), ("none", 6)] {
            let output =
                host.run("settings::child_tries_each_capability", &[("EFA_SOFT_RDMA", which)]);
            assert_eq!(printed(&output), [caps.to_string()], "{link} {which}");
        }
    }
}

/// Prints what tells generations apart, and tries what only some offer.
#[test]
#[ignore = "a child"]
fn child_looks_at_its_generation() {
    begin();
    let v = verbs();
    let end = Endpoint::in_reset(QpOptions {
        operations: IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ,
        ..QpOptions::default()
    });
    let mut device: ibv_device_attr = zeroed();
    let mut port: ibv_port_attr = zeroed();
    let mut efa = efadv_device_attr::default();
    // SAFETY: all arguments are valid.
    unsafe {
        assert_eq!((v.ibv_query_device)(end.context, &raw mut device), 0);
        assert_eq!((v.ibv_query_port)(end.context, 1, &raw mut port), 0);
        assert_eq!((v.efadv_query_device)(end.context, &raw mut efa, 40), 0);
    }
    let most_inline: u32 = u16::from_ne_bytes(efa.reserved).into();
    assert_eq!(device.hw_ver, device.vendor_part_id);
    print(format!(
        "{:#x} {} {:#x} {most_inline}",
        device.vendor_part_id, port.active_speed, efa.device_caps
    ));
    let sends = QpOptions { operations: IBV_QP_EX_WITH_SEND, ..QpOptions::default() };
    let create = |options| {
        let qp = create(end.context, end.pd, end.cq, options);
        if qp.is_null() {
            return errno();
        }
        // SAFETY: the queue pair was created here and is not used afterwards.
        unsafe { (v.ibv_destroy_qp)(qp) }
    };
    assert_eq!(create(QpOptions { max_inline: most_inline, ..sends }), 0);
    assert_eq!(create(QpOptions { max_inline: most_inline + 1, ..sends }), libc::EINVAL);
    print(create(QpOptions { operations: IBV_QP_EX_WITH_RDMA_WRITE, ..sends }));
    print(create(QpOptions { unsolicited: true, ..sends }));
    print(create(QpOptions { inline_writes: true, ..sends }));
}

#[test]
fn generation_decides_attributes_and_refusals() {
    const NO: i32 = libc::EOPNOTSUPP;
    for (number, attributes, refusals) in [
        ("1", "0xefa1 32 0x7 32", [NO, NO, NO]),
        ("2", "0xefa2 32 0xf 32", [0, NO, NO]),
        ("3", "0xefa3 64 0x1f 32", [0, 0, NO]),
        ("4", "0xefa4 128 0x1f 80", [0, 0, 0]),
    ] {
        let settings = [("EFA_SOFT_GENERATION", number)];
        let output = Host::new("shm").run("settings::child_looks_at_its_generation", &settings);
        let expected: Vec<_> =
            [attributes.to_owned()].into_iter().chain(refusals.map(|r| r.to_string())).collect();
        assert_eq!(printed(&output), expected, "generation {number}");
    }
}

#[test]
fn invalid_setting_is_reported_and_no_device_listed() {
    let bad = [("EFA_SOFT_MTU", "many")];
    let output = Host::new("shm").run("settings::child_queries_devices", &bad);
    assert_eq!(printed(&output), ["0"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected = "efa-soft: EFA_SOFT_MTU=\"many\" is not a number from 1024 to 32768";
    assert!(errors.contains(expected), "{errors}");
}

#[test]
fn too_long_sysfs_path_is_reported_and_no_device_listed() {
    let host = Host::new("shm");
    let deep = host.sysfs().join("d".repeat(200));
    std::fs::create_dir(&deep).unwrap();
    let settings = [("EFA_SOFT_SYSFS", deep.to_str().unwrap())];
    let output = host.run("settings::child_queries_devices", &settings);
    assert_eq!(printed(&output), ["0"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("is longer than 255 bytes"), "{errors}");
    assert_eq!(std::fs::read_dir(&deep).unwrap().count(), 0, "the unfinished tree is removed");
}

/// A program may change its working directory before it reads sysfs.
#[test]
fn sysfs_path_is_absolute() {
    let host = Host::new("shm");
    let mut command = host.command("settings::child_queries_devices", &[("TMPDIR", ".")]);
    command.env_remove("EFA_SOFT_SYSFS").current_dir(host.sysfs());
    let output = command.output().unwrap();
    let path = printed(&output).remove(1);
    assert!(path.starts_with(host.sysfs().to_str().unwrap()), "{path}");
}

/// Writes with immediate data to queue pairs created with the flag, which need no buffer, and without.
#[test]
#[ignore = "a child"]
fn child_receives_unsolicited_writes() {
    begin();
    let (a, b) = (Endpoint::new(QpOptions::default()), Endpoint::new(QpOptions::default()));
    let unsolicited = Endpoint::new(QpOptions { unsolicited: true, ..QpOptions::default() });
    for (number, end, uses_buffer) in
        [(1, &unsolicited, false), (2, &b, true), (3, &unsolicited, false)]
    {
        let memory = Memory::of(&[0; 64]);
        let region = end.register(&memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        let handle = a.handle(end.gid());
        if uses_buffer {
            assert_eq!(end.post_receive(10, sge(region, 0, 64)), 0);
        }
        let to = (handle, end.number(), end.qkey);
        let remote = (memory.address() as u64, rkey(region));
        assert_eq!(a.post_write_immediate(number.into(), to, remote, &[], number), 0);
        let seen = end.wait();
        assert_eq!((seen.opcode, seen.status), (IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SUCCESS));
        assert_eq!((seen.immediate, seen.wr_id == 10), (Some(number), uses_buffer));
        assert_eq!(a.wait().status, IBV_WC_SUCCESS);
        // SAFETY: both objects were created here and are not used afterwards.
        unsafe {
            assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
            assert_eq!((verbs().ibv_dereg_mr)(region), 0);
        }
    }
}

#[test]
fn unsolicited_write_uses_no_receive_buffer() {
    for link in LINKS {
        Host::new(link)
            .run("settings::child_receives_unsolicited_writes", &[("EFA_SOFT_UNSOLICITED", "1")]);
    }
}

#[test]
fn capture_is_complete_when_process_exits() {
    let host = Host::new("shm");
    let file = host.directory.path().join("%p.pcapng");
    let settings = [("EFA_SOFT_CAPTURE", file.to_str().unwrap())];
    host.run("settings::child_queries_devices", &settings);
    let captures = || {
        let entries = std::fs::read_dir(host.directory.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|e| e == "pcapng")).collect::<Vec<_>>()
    };
    assert!(captures().is_empty(), "there is no file without packets");
    host.run("faults::child_sends_100_messages", &settings);
    let [path] = &captures()[..] else { panic!("{:?}", captures()) };
    let records: Vec<_> = CaptureReader::open(path).unwrap().collect::<Result<_, _>>().unwrap();
    let count = |event| records.iter().filter(|record| record.event == event).count();
    assert_eq!((count(PacketEvent::Sent), count(PacketEvent::Received)), (100, 100));
}

#[test]
fn bounded_capture_has_the_beginning_of_each_packet_and_its_length() {
    let host = Host::new("shm");
    let file = host.directory.path().join("bounded.pcapng");
    let bytes = ("EFA_SOFT_CAPTURE_BYTES", "0");
    let settings = [("EFA_SOFT_CAPTURE", file.to_str().unwrap()), bytes];
    host.run("faults::child_sends_100_messages", &settings);
    let mut reader = CaptureReader::open(&file).unwrap();
    let mut count = 0;
    while let Some(captured) = reader.next_captured() {
        let captured = captured.unwrap();
        assert_eq!((captured.record.bytes.len(), captured.length), (0, 1));
        count += 1;
    }
    assert_eq!(count, 200);
}

#[test]
#[ignore = "a child"]
fn child_hangs_after_100_messages() {
    begin();
    let _endpoints = crate::faults::send_100_messages();
    read();
}

#[test]
fn capture_of_a_process_that_hangs_has_all_its_packets() {
    for link in LINKS {
        let host = Host::new(link);
        let file = host.directory.path().join("hangs.pcapng");
        let settings = [("EFA_SOFT_CAPTURE", file.to_str().unwrap())];
        let mut child = host.start_with("settings::child_hangs_after_100_messages", &settings);
        child.receive();
        let deadline = Instant::now() + Duration::from_secs(60);
        let records = || {
            let records = CaptureReader::open(&file).ok()?.collect::<Result<Vec<_>, _>>();
            records.ok().map(|records| records.len())
        };
        while records() != Some(200) {
            assert!(Instant::now() < deadline, "{link}: {:?} of 200 records", records());
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill();
        assert_eq!(records(), Some(200), "{link}: a killed process loses none of them");
    }
}

#[test]
fn counters_of_used_devices_are_printed() {
    let counters = |child| {
        let host = Host::new("shm");
        let output = host.run(child, &[("EFA_SOFT_STATISTICS", "1")]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        errors.lines().filter(|line| line.starts_with("efa-soft: ")).map(String::from).collect()
    };
    let used: Vec<_> = counters("faults::child_sends_100_messages");
    let [line] = &used[..] else { panic!("{used:?}") };
    assert!(line.starts_with("efa-soft: efa_soft0 of process "), "{line}");
    let expected = ", closed: sends 100 of 100 B, receives 100 of 100 B, reads 0 of 0 B";
    assert!(line.contains(expected), "{line}");
    let unused: Vec<String> = counters("settings::child_queries_devices");
    assert!(unused.is_empty(), "{unused:?}");
}

/// Tries to open a device twice, as libfabric does.
#[test]
#[ignore = "a child"]
fn child_fails_to_open_device() {
    begin();
    let v = verbs();
    // SAFETY: the list is freed after its last use.
    unsafe {
        let list = (v.ibv_get_device_list)(null_mut());
        for _ in 0..2 {
            assert!((v.ibv_open_device)(*list).is_null());
            print(errno());
        }
        (v.ibv_free_device_list)(list);
    }
}

#[test]
fn device_that_cannot_be_opened_is_reported_once_in_words() {
    let host = Host::new("shm");
    let file = host.directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let below = file.join("hosts");
    let settings = [("EFA_SOFT_DIRECTORY", below.to_str().unwrap())];
    let output = host.run("settings::child_fails_to_open_device", &settings);
    assert_eq!(printed(&output), [libc::ENOTDIR.to_string(), libc::ENOTDIR.to_string()]);
    let errors = String::from_utf8_lossy(&output.stderr);
    let expected = format!("efa-soft: creating {} failed: Not a directory", below.display());
    assert_eq!(errors.matches(&expected).count(), 1, "{errors}");
}

#[test]
fn tcp_link_without_address_is_warned_about_once() {
    let host = Host::new("tcp");
    let warnings = |settings: &[(&str, &str)]| {
        let output = host.run("settings::child_queries_devices", settings);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        errors.matches("efa-soft: EFA_SOFT_LINK=tcp without EFA_SOFT_ADDRESS").count()
    };
    assert_eq!(warnings(&[("EFA_SOFT_ADDRESS", "")]), 1);
    assert_eq!(warnings(&[]), 0);
}
