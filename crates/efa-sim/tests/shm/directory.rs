//! The files and directories of a host.

use super::*;

#[test]
fn dropped_queue_pairs_leave_no_files() {
    let directory = Directory::new();
    let (mut a, mut b) = pair(&directory);
    let (to_b, to_a) = (destination(&mut a, b.address()), destination(&mut b, a.address()));
    for _ in 0..3 {
        send(&mut a, to_b, 1, b"").unwrap();
        send(&mut b, to_a, 1, b"").unwrap();
    }
    poll(&mut b, at(0));
    drop(a);
    drop(b);
    assert_eq!(files(&directory), ["gid", "next"]);
}

#[test]
fn queue_pair_numbers_are_not_reused_soon() {
    let directory = Directory::new();
    let device = ShmDevice::open(options(&directory)).unwrap();
    let numbers: Vec<Qpn> = (0..50).map(|_| queue_pair(&device).address().qpn).collect();
    let mut distinct = numbers.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), numbers.len());
    assert!(!numbers.contains(&Qpn(0)));
    // After the last number of the range, numbering continues with the first free one.
    std::fs::write(directory.path().join("host/next"), 65535u16.to_le_bytes()).unwrap();
    let qps: Vec<_> = (0..2).map(|_| queue_pair(&device)).collect();
    assert_eq!(qps[0].address().qpn, Qpn(65535));
    assert_eq!(qps[1].address().qpn, Qpn(1));
    std::fs::write(directory.path().join("host/next"), 65535u16.to_le_bytes()).unwrap();
    assert_eq!(queue_pair(&device).address().qpn, Qpn(2));
}

#[test]
fn open_removes_files_of_dead_processes_only() {
    let directory = Directory::new();
    let (mut a, b) = pair(&directory);
    let to = destination(&mut a, b.address());
    send(&mut a, to, 1, b"").unwrap();
    let mut living = files(&directory);
    for name in ["qp-77", "qp-78", "ring-77-5-00000000000000ff", "new-0000000000000001"] {
        std::fs::write(directory.path().join("host").join(name), [0; 100]).unwrap();
    }
    std::fs::write(directory.path().join("host/unrelated"), "").unwrap();
    drop(ShmDevice::open(options(&directory)).unwrap());
    let mut left = files(&directory);
    living.push("unrelated".into());
    living.sort_unstable();
    left.sort_unstable();
    assert_eq!(left, living);
}

/// Its process ended before it announced the ring.
#[test]
fn ring_of_a_dead_sender_that_no_entry_names_is_removed_and_others_stay() {
    let directory = Directory::new();
    let (mut a, b) = pair(&directory);
    let to = destination(&mut a, b.address());
    send(&mut a, to, 1, b"").unwrap();
    let living = files(&directory);
    let (a, b) = (a.address().qpn.0, b.address().qpn.0);
    let write =
        |name: String| std::fs::write(directory.path().join("host").join(name), "").unwrap();
    let of_living = format!("ring-{b}-{a}-00000000000000ff");
    write(of_living.clone());
    write(format!("ring-{b}-77-00000000000000ff"));
    drop(ShmDevice::open(options(&directory)).unwrap());
    let left = files(&directory);
    assert!(living.iter().all(|name| left.contains(name)), "{living:?} {left:?}");
    assert!(left.contains(&of_living) && left.len() == living.len() + 1, "{left:?}");
}

#[test]
fn last_device_of_a_process_removes_files_of_dead_processes() {
    let directory = Directory::new();
    let device = ShmDevice::open(options(&directory)).unwrap();
    for name in ["qp-77", "mem-0000000000000001"] {
        std::fs::write(directory.path().join("host").join(name), [0; 100]).unwrap();
    }
    drop(device);
    assert_eq!(files(&directory), ["gid"]);
}

#[test]
fn error_names_a_file_that_is_not_a_queue_pair() {
    let directory = Directory::new();
    let (mut a, _) = pair(&directory);
    let me = a.address();
    let to = destination(&mut a, me);
    let path = directory.path().join("host/qp-77");
    for length in [0, 1000, 2000, 1_000_000] {
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(length).unwrap();
        // Locked, as if its process were alive.
        file.lock().unwrap();
        let error = send(&mut a, Destination { qpn: Qpn(77), ..to }, 1, b"").unwrap_err();
        let DeviceError::Inconsistent { object, .. } = error else { panic!("{error}") };
        assert_eq!(object, "qp-77");
    }
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(send(&mut a, Destination { qpn: Qpn(77), ..to }, 1, b"").is_err());
    std::fs::remove_dir(&path).unwrap();
    std::os::unix::fs::symlink("/dev/null", &path).unwrap();
    assert!(send(&mut a, Destination { qpn: Qpn(77), ..to }, 1, b"").is_err());
}

#[test]
fn queue_pair_of_another_layout_is_refused_with_both_versions() {
    let directory = Directory::new();
    let (mut a, _) = pair(&directory);
    let me = a.address();
    let to = destination(&mut a, me);
    let mut file = vec![0; 100_000];
    file[..8].copy_from_slice(b"efa-qp\r\n");
    file[8] = 1;
    let path = directory.path().join("host/qp-77");
    std::fs::write(&path, file).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    file.lock().unwrap();
    let error = send(&mut a, Destination { qpn: Qpn(77), ..to }, 1, b"").unwrap_err();
    let expected = "made by another version of efa: its layout has version 1, not 3";
    assert!(error.to_string().contains(expected), "{error}");
}

fn inconsistent(result: Result<ShmDevice, DeviceError>) -> (String, String) {
    match result {
        Err(DeviceError::Inconsistent { object, reason }) => (object, reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn directory_with_other_mode_than_700_is_refused() {
    let directory = Directory::new();
    drop(ShmDevice::open(options(&directory)).unwrap());
    for path in [directory.path().to_path_buf(), directory.path().join("host")] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        let (object, reason) = inconsistent(ShmDevice::open(options(&directory)));
        assert_eq!((Path::new(&object), &*reason), (&*path, "has mode 755, not 700"));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
    }
    ShmDevice::open(options(&directory)).unwrap();
}

#[test]
fn directory_of_another_user_is_refused() {
    let directory = Directory::new();
    let mut settings = options(&directory);
    let me = std::fs::metadata(directory.path()).unwrap().uid();
    let (other, path) = if me == 0 {
        std::os::unix::fs::chown(directory.path(), Some(12345), None).unwrap();
        (12345, directory.path().to_path_buf())
    } else {
        (0, "/".into())
    };
    settings.directory = Some(path.clone());
    let (object, reason) = inconsistent(ShmDevice::open(settings));
    assert_eq!(Path::new(&object), path);
    let owner = format!("belongs to user {other}, not to user {me}; choose another directory ");
    assert!(reason.starts_with(&owner), "{reason}");
}

#[test]
fn missing_parent_file_or_symlink_as_directory_is_refused() {
    let directory = Directory::new();
    let mut settings = options(&directory);
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    settings.directory = Some(file.clone());
    assert_eq!(inconsistent(ShmDevice::open(settings.clone())).1, "not a directory");
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(directory.path(), &link).unwrap();
    settings.directory = Some(link);
    assert_eq!(inconsistent(ShmDevice::open(settings.clone())).1, "not a directory");
    settings.directory = Some(directory.path().join("no/such"));
    assert!(matches!(ShmDevice::open(settings), Err(DeviceError::System { errno: 2, .. })));
}

#[test]
fn options_out_of_range_are_refused() {
    let directory = Directory::new();
    let open = |change: &dyn Fn(&mut ShmOptions)| {
        let mut options = options(&directory);
        change(&mut options);
        ShmDevice::open(options).unwrap_err()
    };
    let too_long = |length, limit| DeviceError::TooLong { length, limit };
    assert_eq!(open(&|o| o.mtu = (1 << 20) + 1), too_long((1 << 20) + 1, 1 << 20));
    assert_eq!(open(&|o| o.ring_slots = 1 << 17), too_long(1 << 17, 1 << 16));
    assert_eq!(open(&|o| o.max_peers = 5000), too_long(5000, 4096));
    assert!(matches!(open(&|o| o.ring_slots = 3), DeviceError::Inconsistent { .. }));
}

#[test]
fn hosts_with_different_names_are_separate() {
    let directory = Directory::new();
    let mut settings = options(&directory);
    let a = ShmDevice::open(settings.clone()).unwrap();
    settings.name = "other".into();
    let b = ShmDevice::open(settings).unwrap();
    assert_ne!(a.gid(), b.gid());
    assert_eq!(
        (a.attributes().name.as_str(), a.attributes().vendor_part_id),
        ("efa-shm-host", 0xefa2)
    );
}
