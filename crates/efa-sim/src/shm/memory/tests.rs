use efa_device::{Access, Region as _};
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use super::*;
use crate::keys::{HEADER_NAMESPACE, HEADER_PROCESS, SLOT_WORDS};
use crate::map::Map;
use crate::region::SoftRegion;

const ALL: Access = Access { remote_read: true, remote_write: true };

/// A host of its own, removed at the end.
struct Host(TempDir);

impl Host {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn open(&self) -> HostMemory {
        let directory = HostDirectory::open(Some(&self.0.path().join("hosts")), "host").unwrap();
        let memory = HostMemory::new(&Arc::new(directory), 100, 1 << 20, true).unwrap();
        memory.keys().slots().unwrap().set_knows_host(true);
        memory
    }

    /// The number of files with memory keys.
    fn names(&self) -> usize {
        let entries = std::fs::read_dir(self.0.path().join("hosts/host")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("mem-")).count()
    }
}

fn at(region: &SoftRegion, offset: u64) -> RemoteMemory {
    RemoteMemory { address: region.remote_address() + offset, key: region.remote_key() }
}

fn read(
    user: &HostMemory,
    qpn: Qpn,
    from: RemoteMemory,
    into: &SoftRegion,
    length: usize,
) -> Result<(), Status> {
    into.with_part(0, length, |part| user.read(qpn, from, part, Store::Cached))
}

/// The table in the file, as any process of the user can map it.
fn file(memory: &HostMemory) -> Map {
    Map::new(&memory.file, LENGTH).unwrap()
}

fn bytes(region: &SoftRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.length()];
    region.read(0, &mut bytes);
    bytes
}

#[test]
fn peer_memory_is_read_and_written_within_key_bounds_and_access() {
    let host = Host::new();
    let (owner, user) = (host.open(), host.open());
    let register = |bytes: &[u8], access| owner.keys().register(bytes.into(), access).unwrap();
    let source = register(b"0123456789", ALL);
    let target = user.keys().register(vec![0; 10].into(), Access::default()).unwrap();
    let qpn = Qpn(7);
    let nobody = Err(Status::BadDestinationQpn);
    assert_eq!(read(&user, qpn, at(&source, 1), &target, 8), nobody);
    owner.add_queue_pair(qpn).unwrap();
    assert_eq!(read(&user, qpn, at(&source, 1), &target, 8), Ok(()));
    assert_eq!(bytes(&target), b"12345678\0\0");
    let write = |from: &SoftRegion, into, length| {
        from.with_part(0, length, |part| user.write(qpn, part, into, Store::Cached))
    };
    assert_eq!(write(&target, at(&source, 7), 3), Ok(()));
    assert_eq!(bytes(&source), b"0123456123");
    assert_eq!(read(&user, qpn, at(&source, 10), &target, 0), Ok(()));
    // Key, bounds, access.
    let bad = Err(Status::RemoteBadAddress);
    let mut other = at(&source, 0);
    other.key ^= 1;
    assert_eq!(read(&user, qpn, other, &target, 3), bad);
    assert_eq!(read(&user, qpn, at(&source, 8), &target, 3), bad);
    let closed = register(b"abc", Access::default());
    assert_eq!(read(&user, qpn, at(&closed, 0), &target, 3), bad);
    assert_eq!(write(&target, at(&closed, 0), 3), bad);
    let place = at(&closed, 0);
    drop(closed);
    assert_eq!(read(&user, qpn, place, &target, 3), bad);
    owner.remove_queue_pair(qpn);
    assert_eq!(read(&user, qpn, at(&source, 0), &target, 3), nobody);
    drop((owner, source, user));
    assert_eq!(host.names(), 0);
}

#[test]
fn owner_without_address_handle_for_the_host_refuses_with_unknown_peer() {
    let host = Host::new();
    let (owner, user) = (host.open(), host.open());
    owner.add_queue_pair(Qpn(2)).unwrap();
    let memory = owner.keys().register(vec![1; 8].into(), ALL).unwrap();
    let target = user.keys().register(vec![0; 8].into(), ALL).unwrap();
    for (knows, result) in [(false, Err(Status::UnknownPeer)), (true, Ok(()))] {
        owner.keys().slots().unwrap().set_knows_host(knows);
        assert_eq!(read(&user, Qpn(2), at(&memory, 0), &target, 8), result);
        let written =
            target.with_part(0, 8, |part| user.write(Qpn(2), part, at(&memory, 0), Store::Cached));
        assert_eq!(written, result);
    }
    owner.remove_queue_pair(Qpn(2));
}

#[test]
fn long_reads_copy_the_same_bytes_in_either_order() {
    let host = Host::new();
    let (owner, user) = (host.open(), host.open());
    let mut rng = Rng::with_seed(1);
    let all: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(2 * LONG).collect();
    let source = owner.keys().register(all.clone().into(), ALL).unwrap();
    owner.add_queue_pair(Qpn(9)).unwrap();
    let lengths = [LONG - 1, LONG, LONG + 1, 2 * LONG - 77];
    for (round, length) in lengths.into_iter().flat_map(|length| [length; 3]).enumerate() {
        let target = vec![0; length + 1].into();
        let target = user.keys().register(target, Access::default()).unwrap();
        let from = at(&source, round as u64);
        assert_eq!(read(&user, Qpn(9), from, &target, length), Ok(()));
        let got = bytes(&target);
        assert!(got[..length] == all[round..][..length], "{length} B in round {round}");
        assert_eq!(got[length], 0);
    }
    owner.remove_queue_pair(Qpn(9));
}

#[test]
fn access_to_unmapped_memory_fails_with_remote_bad_address() {
    let host = Host::new();
    let (owner, user) = (host.open(), host.open());
    owner.add_queue_pair(Qpn(1)).unwrap();
    let base = std::ptr::NonNull::without_provenance(8.try_into().unwrap());
    let raw =
        crate::region::RawMemory { base, length: 8, address: 8, local_write: true, access: ALL };
    // SAFETY: the first page is never mapped, so there is no owner to object.
    let nowhere = unsafe { owner.keys().register_raw(raw) }.unwrap();
    let target = user.keys().register(vec![0; 8].into(), ALL).unwrap();
    let bad = Err(Status::RemoteBadAddress);
    assert_eq!(read(&user, Qpn(1), at(&nowhere, 0), &target, 8), bad);
    let written =
        target.with_part(0, 8, |part| user.write(Qpn(1), part, at(&nowhere, 0), Store::Cached));
    assert_eq!(written, bad);
    owner.remove_queue_pair(Qpn(1));
}

#[test]
fn table_with_foreign_cookie_or_process_fails_as_unresponsive() {
    let host = Host::new();
    let (owner, user) = (host.open(), host.open());
    let memory = owner.keys().register(vec![1; 8].into(), ALL).unwrap();
    owner.add_queue_pair(Qpn(3)).unwrap();
    let target = user.keys().register(vec![0; 8].into(), ALL).unwrap();
    // As if the number of the process were another's now: the cookie is not there.
    let file = file(&owner);
    let cookie = file.words::<1>(HEADER_COOKIE)[0].fetch_xor(1, Ordering::Relaxed);
    let gone = Err(Status::UnresponsiveRemote);
    assert_eq!(read(&user, Qpn(3), at(&memory, 0), &target, 8), gone);
    let written =
        target.with_part(0, 8, |part| user.write(Qpn(3), part, at(&memory, 0), Store::Cached));
    assert_eq!(written, gone);
    assert_eq!(bytes(&memory), [1; 8]);
    // No such process at all.
    file.words::<1>(HEADER_COOKIE)[0].store(cookie, Ordering::Relaxed);
    file.words::<1>(HEADER_PROCESS)[0].store(0x3fff_ffff, Ordering::Relaxed);
    assert_eq!(read(&user, Qpn(3), at(&memory, 0), &target, 8), gone);
    owner.remove_queue_pair(Qpn(3));
}

#[test]
fn copies_are_right_whatever_is_written_to_the_file_of_the_owner() {
    let host = Host::new();
    let (owner, user) = (host.open(), host.open());
    let memory = owner.keys().register((1..9).collect(), ALL).unwrap();
    let other = owner.keys().register(vec![0xee; 8].into(), ALL).unwrap();
    owner.add_queue_pair(Qpn(3)).unwrap();
    let target = user.keys().register(vec![0; 8].into(), ALL).unwrap();
    assert_eq!(read(&user, Qpn(3), at(&memory, 0), &target, 8), Ok(()));
    let file = file(&owner);
    let slot = file.words::<SLOT_WORDS>(slot_at(memory.remote_key()));
    let elsewhere =
        file.words::<SLOT_WORDS>(slot_at(other.remote_key()))[1].load(Ordering::Relaxed);
    let (word, bit) = number_at(Qpn(3));
    let number = &file.words::<1>(word)[0];
    let knows = &file.words::<1>(HEADER_KNOWS_HOST)[0];
    let mut rng = Rng::with_seed(4);
    for round in 0..300_u32 {
        let at_word = rng.usize(..SLOT_WORDS);
        let random = rng.u64(..);
        let value = rng.choice([0, u64::MAX, elsewhere, elsewhere & !0xfff, random]).unwrap();
        let before = slot[at_word].swap(value, Ordering::Relaxed);
        let number_before = number.load(Ordering::Relaxed);
        if rng.bool() {
            number.store(number_before ^ bit, Ordering::Relaxed);
        }
        knows.store(rng.u64(..2), Ordering::Relaxed);
        let expected: Vec<u8> = (0..8).map(|_| rng.u8(..)).collect();
        target.write(0, &expected);
        let written =
            target.with_part(0, 8, |part| user.write(Qpn(3), part, at(&memory, 0), Store::Cached));
        assert_eq!((written, bytes(&memory)), (Ok(()), expected.clone()), "round {round}");
        target.write(0, &[0; 8]);
        assert_eq!(read(&user, Qpn(3), at(&memory, 0), &target, 8), Ok(()), "round {round}");
        assert_eq!(bytes(&target), expected, "round {round}");
        assert_eq!(bytes(&other), [0xee; 8], "round {round}");
        slot[at_word].store(before, Ordering::Relaxed);
        number.store(number_before, Ordering::Relaxed);
    }
    // A key or a queue pair that the file still has, but not the owner, gives access to nothing.
    let place = at(&memory, 0);
    let old = slot.each_ref().map(|word| word.load(Ordering::Relaxed));
    drop(memory);
    for (word, value) in slot.iter().zip(old) {
        word.store(value, Ordering::Relaxed);
    }
    let bad = Err(Status::RemoteBadAddress);
    assert_eq!(read(&user, Qpn(3), place, &target, 8), bad);
    assert_eq!(target.with_part(0, 8, |part| user.write(Qpn(3), part, place, Store::Cached)), bad);
    owner.remove_queue_pair(Qpn(3));
    assert_eq!(bytes(&other), [0xee; 8]);
}

#[test]
fn table_of_another_or_unknown_pid_namespace_is_not_copied_from() {
    let host = Host::new();
    let (owner, user) = (host.open(), host.open());
    assert_eq!((user.copy_obstacle(), user.obstacle()), (None, None));
    let memory = owner.keys().register(vec![1; 8].into(), ALL).unwrap();
    owner.add_queue_pair(Qpn(3)).unwrap();
    let target = user.keys().register(vec![0; 8].into(), ALL).unwrap();
    let file = file(&owner);
    let namespace = &file.words::<1>(HEADER_NAMESPACE)[0];
    for other in [namespace.load(Ordering::Relaxed) ^ 1, 0] {
        namespace.store(other, Ordering::Relaxed);
        let obstacle = user.copy_obstacle();
        assert!(obstacle.unwrap().ends_with("is in another PID namespace"));
        user.peers().clear();
        let refused = Err(Status::NotPermitted);
        assert_eq!(read(&user, Qpn(3), at(&memory, 0), &target, 8), refused);
        let written =
            target.with_part(0, 8, |part| user.write(Qpn(3), part, at(&memory, 0), Store::Cached));
        assert_eq!(written, refused);
    }
    assert_eq!(user.obstacle(), None, "the process can be asked");
    owner.remove_queue_pair(Qpn(3));
}

#[test]
fn table_of_another_version_is_an_obstacle_while_its_process_lives() {
    let host = Host::new();
    let (owner, user) = (host.open(), host.open());
    let file = file(&owner);
    let magic = &file.words::<1>(0)[0];
    for (word, is_obstacle) in [(MAGIC, false), (0, false), (MAGIC + 1, true)] {
        magic.store(word, Ordering::Relaxed);
        assert_eq!(user.obstacle().is_some(), is_obstacle, "{word:#x}");
    }
    drop(owner);
    assert_eq!(user.obstacle(), None);
}

#[test]
fn tables_of_ended_processes_are_unmapped() {
    let host = Host::new();
    let user = host.open();
    let target = user.keys().register(vec![0; 4].into(), ALL).unwrap();
    let read_of_another = |qpn, stays: bool| {
        let owner = host.open();
        owner.add_queue_pair(qpn).unwrap();
        let memory = owner.keys().register(vec![1; 4].into(), ALL).unwrap();
        assert_eq!(read(&user, qpn, at(&memory, 0), &target, 4), Ok(()));
        if !stays {
            owner.remove_queue_pair(qpn);
        }
        owner
    };
    let living = read_of_another(Qpn(1), true);
    for number in 2..7 {
        drop(read_of_another(Qpn(number), false));
    }
    // As if it was killed: nothing is taken back, but the process is another's.
    let killed = read_of_another(Qpn(7), true);
    killed.keys().slots().unwrap().change_cookie();
    let last = read_of_another(Qpn(8), false);
    let mut kept: Vec<_> = user.peers().keys().copied().collect();
    kept.sort_unstable();
    assert_eq!(kept, [Qpn(1), Qpn(8)]);
    living.remove_queue_pair(Qpn(1));
    drop((killed, last));
}

#[test]
fn table_of_a_dead_process_is_replaced_by_its_successor() {
    let host = Host::new();
    let user = host.open();
    let target = user.keys().register(vec![0; 4].into(), ALL).unwrap();
    let dead = host.open();
    dead.add_queue_pair(Qpn(4)).unwrap();
    let old = dead.keys().register(vec![5; 4].into(), ALL).unwrap();
    assert_eq!(read(&user, Qpn(4), at(&old, 0), &target, 4), Ok(()));
    // Killed: nothing is taken back, but the lock is gone and so is the process.
    file(&dead).words::<1>(HEADER_PROCESS)[0].store(0x3fff_ffff, Ordering::Relaxed);
    let dead = std::mem::ManuallyDrop::new(dead);
    flock(&dead.file, FlockOperation::NonBlockingUnlock).unwrap();
    assert_eq!(host.names(), 3);
    let next = host.open();
    assert_eq!(host.names(), 2, "the dead one's names were removed");
    next.add_queue_pair(Qpn(4)).unwrap();
    let memory = next.keys().register(vec![6; 4].into(), ALL).unwrap();
    assert_eq!(read(&user, Qpn(4), at(&memory, 0), &target, 4), Ok(()));
    assert_eq!(bytes(&target), [6; 4]);
    next.remove_queue_pair(Qpn(4));
}

/// As by a process that was stopped in the middle of the copy.
#[test]
fn read_during_which_the_queue_pair_ends_fails_and_a_write_does_not() {
    let host = Host::new();
    let (owner, user) = (host.open(), host.open());
    let memory = owner.keys().register(vec![1; 8].into(), ALL).unwrap();
    let mapped = |_: &Map, _| unreachable!("the region isn't in the file");
    let gone = Err(Status::BadDestinationQpn);
    for (wanted, result) in [(Use::RemoteRead, gone), (Use::RemoteWrite, Ok(()))] {
        owner.add_queue_pair(Qpn(3)).unwrap();
        let copy = |by_kernel: &dyn Fn(&Peer) -> Result<(), Failure>| {
            user.copy(Qpn(3), (at(&memory, 0), 8), wanted, mapped, by_kernel)
        };
        assert_eq!(copy(&|_| Ok(())), Ok(()), "{wanted:?}");
        let end = |_: &Peer| {
            owner.remove_queue_pair(Qpn(3));
            Ok(())
        };
        assert_eq!(copy(&end), result, "{wanted:?}");
    }
}

#[test]
fn read_succeeds_although_the_file_alone_says_that_the_queue_pair_has_ended() {
    let host = Host::new();
    let (owner, user) = (host.open(), host.open());
    let memory = owner.keys().register(vec![1; 8].into(), ALL).unwrap();
    owner.add_queue_pair(Qpn(3)).unwrap();
    let (word, bit) = number_at(Qpn(3));
    let mapped = |_: &Map, _| unreachable!("the region isn't in the file");
    let by_kernel = |_: &Peer| {
        file(&owner).words::<1>(word)[0].fetch_and(!bit, Ordering::Relaxed);
        Ok(())
    };
    let copied = user.copy(Qpn(3), (at(&memory, 0), 8), Use::RemoteRead, mapped, by_kernel);
    assert_eq!(copied, Ok(()));
    owner.remove_queue_pair(Qpn(3));
}

mod mapped;
