use tempfile::TempDir;

use super::*;

fn open(base: &TempDir) -> HostDirectory {
    HostDirectory::open(Some(&base.path().join("hosts")), "host").unwrap()
}

#[test]
fn file_names_parse_back() {
    let (to, from) = (Qpn(7), Qpn(65535));
    for name in [
        FileName::QueuePair(to),
        FileName::Ring { to, from, nonce: u64::MAX },
        FileName::New(3),
        FileName::Memory(u64::MAX),
        FileName::MemoryOf(to),
        FileName::Wake(u64::MAX),
    ] {
        assert_eq!(FileName::parse(&name.to_string()), Some(name));
    }
    for other in ["next", "qp-", "qp-65536", "ring-1-2", "ring-1-2-3-4", "new-x", "mem-x", "", "."]
    {
        assert_eq!(FileName::parse(other), None, "{other}");
    }
}

#[test]
fn ring_without_a_receiver_is_removed_after_some_queue_pairs_and_others_are_kept() {
    let base = TempDir::new().unwrap();
    let directory = open(&base);
    let create = || directory.create_queue_pair(4096, |_| Ok(()), |(), _| {}).unwrap();
    let (_file, (), there) = create();
    let gone = Qpn(there.0 ^ 0x8000);
    let rings = [there, gone].map(|to| FileName::Ring { to, from: Qpn(9), nonce: 1 });
    rings.iter().for_each(|ring| drop(directory.create(*ring, 4096).unwrap()));
    (0..=SWEEP_AFTER).for_each(|_| drop(create()));
    let found = rings.map(|ring| directory.find(ring).unwrap().is_some());
    assert_eq!(found, [true, false]);
}

#[test]
fn fifo_of_a_dead_process_is_removed_by_the_next_that_opens_the_host() {
    let base = TempDir::new().unwrap();
    let directory = open(&base);
    let (name, file) = directory.create_fifo().unwrap();
    let again = open(&base);
    assert!(again.find_fifo(name).unwrap().is_some(), "its process lives");
    let wrong = directory.check_kind(FileType::RegularFile, "x", &fstat(&file).unwrap());
    let words = wrong.unwrap_err().to_string();
    assert!(words.ends_with("x: is a FIFO, not a regular file; remove it"), "{words}");
    // The lock ends with the process.
    drop(file);
    let again = open(&base);
    assert!(again.find_fifo(name).unwrap().is_none());
}

#[test]
fn fifo_that_is_not_locked_stays_while_the_file_beside_it_is() {
    let base = TempDir::new().unwrap();
    let directory = open(&base);
    let (beside, guard) = directory.create_locked(FileName::New, 0).unwrap();
    let FileName::New(nonce) = beside else { unreachable!() };
    let fifo = FileName::Wake(nonce);
    mknodat(&directory.file, fifo.to_string(), FileType::Fifo, FILE_MODE, 0).unwrap();
    directory.sweep().unwrap();
    assert!(directory.find_fifo(fifo).unwrap().is_some());
    drop(guard);
    directory.sweep().unwrap();
    assert_eq!(directory.names().unwrap(), []);
}

#[test]
fn fifo_that_another_process_removes_before_it_is_locked_is_made_anew() {
    let base = TempDir::new().unwrap();
    let directory = open(&base);
    let makers = AtomicUsize::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while makers.load(Ordering::Relaxed) > 0 {
                    directory.sweep().unwrap();
                }
            });
            scope.spawn(|| {
                let failed = (0..500).find_map(|_| directory.create_fifo().err());
                makers.fetch_sub(1, Ordering::Relaxed);
                assert_eq!(failed, None);
            });
        }
    });
}

#[test]
fn files_and_fifos_of_two_generators_with_the_same_seed_get_different_numbers() {
    let base = TempDir::new().unwrap();
    let directory = open(&base);
    let made = [(); 2].map(|()| {
        fastrand::seed(7);
        let file = directory.create_locked(FileName::Memory, 4096).unwrap();
        (file, directory.create_fifo().unwrap())
    });
    let [((first, _), (fifo, _)), ((second, _), (other, _))] = &made;
    assert!(first != second && fifo != other, "{made:?}");
}

#[test]
fn host_has_one_gid_by_any_path_and_hosts_of_one_name_in_two_directories_have_two() {
    let base = TempDir::new().unwrap();
    let [real, link] = ["real", "link"].map(|name| base.path().join(name));
    std::fs::create_dir_all(&real).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let gid = |at: PathBuf| HostDirectory::open(Some(&at), "host").unwrap().gid();
    let first = gid(real.join("one"));
    assert_eq!(first.0[..8], [0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
    assert_eq!(gid(link.join("one")), first);
    assert_eq!(gid(real.join("one")), first, "after its last process");
    assert_ne!(gid(real.join("other")), first);
}

#[test]
fn host_names_that_escape_the_directory_are_refused() {
    for name in ["", ".", "..", "a/b", "/", ".hidden", "ä", &"x".repeat(65)] {
        let error = HostDirectory::open(None, name).unwrap_err();
        assert!(matches!(error, DeviceError::Inconsistent { .. }), "{name}: {error}");
    }
}
