//! Regions that the device allocates, and others map.

use super::*;

const LENGTH: usize = 10_000;

/// A region of `owner`, all bytes of it `byte`, that others map.
fn allocate(owner: &HostMemory, byte: u8, access: Access) -> SoftRegion {
    let region = owner.allocate(LENGTH, access).unwrap();
    assert_eq!(bytes(&region), [0; LENGTH]);
    assert!(region.is_mapped());
    region.write(0, &[byte; LENGTH]);
    region
}

fn write(user: &HostMemory, from: &SoftRegion, into: RemoteMemory) -> Result<(), Status> {
    from.with_part(0, from.length(), |part| user.write(Qpn(1), part, into, Store::Cached))
}

/// Owner with the queue pair, user, and a region of the user of so many bytes.
fn pair(host: &Host, length: usize) -> (HostMemory, HostMemory, SoftRegion) {
    let (owner, user) = (host.open(), host.open());
    owner.add_queue_pair(Qpn(1)).unwrap();
    let local = user.keys().register(vec![0; length].into(), ALL).unwrap();
    (owner, user, local)
}

/// As if the owner was in another PID namespace, so that the kernel copies nothing.
fn move_to_another_namespace(owner: &HostMemory) {
    file(owner).words::<1>(HEADER_NAMESPACE)[0].fetch_xor(1, Ordering::Relaxed);
}

#[test]
fn allocated_region_is_copied_without_the_kernel_within_key_bounds_and_access() {
    let host = Host::new();
    let (owner, user, local) = pair(&host, 8);
    move_to_another_namespace(&owner);
    let region = allocate(&owner, 7, ALL);
    assert_eq!(read(&user, Qpn(1), at(&region, LENGTH as u64 - 8), &local, 8), Ok(()));
    assert_eq!(bytes(&local), [7; 8]);
    local.write(0, b"abcdefgh");
    assert_eq!(write(&user, &local, at(&region, 5000)), Ok(()));
    assert_eq!(&bytes(&region)[4999..5009], b"\x07abcdefgh\x07");
    let second = allocate(&owner, 8, Access { remote_read: true, remote_write: false });
    assert_eq!(read(&user, Qpn(1), at(&second, 0), &local, 8), Ok(()));
    assert_eq!(bytes(&local), [8; 8]);
    // What isn't allowed, the target would be asked for.
    let asked = Err(Status::NotPermitted);
    assert_eq!(read(&user, Qpn(1), at(&region, LENGTH as u64 - 7), &local, 8), asked);
    assert_eq!(write(&user, &local, at(&second, 0)), asked);
    assert_eq!(bytes(&second), [8; LENGTH]);
    let place = at(&region, 0);
    drop(region);
    assert_eq!(read(&user, Qpn(1), place, &local, 8), asked);
    owner.keys().slots().unwrap().set_knows_host(false);
    assert_eq!(read(&user, Qpn(1), at(&second, 0), &local, 8), asked);
    owner.remove_queue_pair(Qpn(1));
}

#[test]
fn kernel_copies_an_allocated_region_for_memory_that_may_be_unmapped() {
    let host = Host::new();
    let (owner, user, _) = pair(&host, 0);
    let region = allocate(&owner, 7, ALL);
    let raw = |base| {
        let raw = crate::region::RawMemory {
            base,
            length: 8,
            address: 0x1000,
            local_write: true,
            access: Access::default(),
        };
        // SAFETY: the bytes outlive the region, and aren't accessed before it is dropped.
        unsafe { user.keys().register_raw(raw) }.unwrap()
    };
    let mut there = [0_u8; 8];
    let local = raw(std::ptr::NonNull::from(&mut there).cast());
    assert_eq!(read(&user, Qpn(1), at(&region, 0), &local, 8), Ok(()));
    drop(local);
    assert_eq!(there, [7; 8]);
    // The first page is never mapped.
    let nowhere = raw(std::ptr::NonNull::without_provenance(8.try_into().unwrap()));
    let failed = Err(Status::BadLocalKey);
    assert_eq!(read(&user, Qpn(1), at(&region, 0), &nowhere, 8), failed);
    assert_eq!(write(&user, &nowhere, at(&region, 0)), failed);
    assert_eq!(bytes(&region), [7; LENGTH]);
    owner.remove_queue_pair(Qpn(1));
}

#[test]
fn storage_of_a_region_is_given_back_and_its_place_not_used_again() {
    let host = Host::new();
    let (owner, user, local) = pair(&host, 8);
    let blocks = || rustix::fs::fstat(&*owner.file).unwrap().st_blocks;
    let before = blocks();
    let region = allocate(&owner, 7, ALL);
    assert_eq!(read(&user, Qpn(1), at(&region, 0), &local, 8), Ok(()));
    let (place, used) = (at(&region, 0), blocks());
    assert!(used >= before + LENGTH as i64 / 512, "{before} {used}");
    drop(region);
    assert!(blocks() < used, "{before} {used} {}", blocks());
    let next = allocate(&owner, 9, ALL);
    assert_eq!(read(&user, Qpn(1), at(&next, 0), &local, 8), Ok(()));
    assert_eq!(bytes(&local), [9; 8]);
    assert_eq!(user.peers()[&Qpn(1)].windows.len(), 1, "the mapping of the first is gone");
    assert_eq!(read(&user, Qpn(1), place, &local, 8), Err(Status::RemoteBadAddress));
    owner.remove_queue_pair(Qpn(1));
}

#[test]
fn deregistration_waits_for_a_read_of_an_allocated_region() {
    let host = Host::new();
    let (owner, user, _) = pair(&host, 0);
    let region = allocate(&owner, 7, Access { remote_read: true, remote_write: false });
    let (key, slots) = (region.remote_key(), &user.peer(Qpn(1)).unwrap().slots);
    let dropping = slots.hold(key, || {
        let dropping = std::thread::spawn(move || drop(region));
        while slots.may_be_in_file(key) {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!dropping.is_finished());
        dropping
    });
    dropping.unwrap().join().unwrap();
    owner.remove_queue_pair(Qpn(1));
}

#[test]
fn read_of_an_allocated_region_during_which_the_queue_pair_ends_fails_and_a_write_does_not() {
    let host = Host::new();
    let (owner, user, _) = pair(&host, 0);
    let region = allocate(&owner, 7, ALL);
    for (foreign, gone) in [(false, Status::BadDestinationQpn), (true, Status::NotPermitted)] {
        if foreign {
            // The target is asked then, and has no such queue pair.
            move_to_another_namespace(&owner);
            user.peers().clear();
        }
        for (wanted, result) in [(Use::RemoteRead, Err(gone)), (Use::RemoteWrite, Ok(()))] {
            let copy = |mapped: &dyn Fn(&Map, usize) -> bool| {
                let by_kernel = |_: &Peer| unreachable!("the region is mapped");
                user.copy(Qpn(1), (at(&region, 0), 8), wanted, mapped, by_kernel)
            };
            assert_eq!(copy(&|_, _| true), Ok(()), "{wanted:?}");
            let end = |_: &Map, _| {
                owner.remove_queue_pair(Qpn(1));
                true
            };
            assert_eq!(copy(&end), result, "{wanted:?}");
            owner.add_queue_pair(Qpn(1)).unwrap();
        }
    }
    owner.remove_queue_pair(Qpn(1));
}

#[test]
fn mapping_of_a_process_that_has_ended_is_soon_not_read_any_more() {
    let host = Host::new();
    let (owner, user, local) = pair(&host, 8);
    // So that the kernel doesn't copy instead.
    move_to_another_namespace(&owner);
    let region = allocate(&owner, 7, ALL);
    assert_eq!(read(&user, Qpn(1), at(&region, 0), &local, 8), Ok(()));
    // Killed: nothing is taken back, but the lock is gone.
    flock(&*owner.file, FlockOperation::NonBlockingUnlock).unwrap();
    let results: Vec<_> =
        (0..300).map(|_| read(&user, Qpn(1), at(&region, 0), &local, 8)).collect();
    let failed = results.iter().position(Result::is_err).expect("a look at the lock");
    assert!(failed <= 256, "{failed}");
    assert!(results[failed..].iter().all(|result| *result == Err(Status::NotPermitted)));
    owner.remove_queue_pair(Qpn(1));
}

#[test]
fn region_takes_at_most_half_of_what_the_file_system_has_left() {
    let host = Host::new();
    let owner = host.open();
    let system = fstatvfs(&*owner.file).unwrap();
    let half = (system.f_bavail * system.f_bsize / 2) as usize;
    assert!(owner.reserve(half + (64 << 20)).is_none());
    assert!(owner.reserve(LENGTH).is_some());
    assert!(!owner.allocate(0, ALL).unwrap().is_mapped());
    let (length, limit) = (1 << 21, 1 << 20);
    let refused = owner.allocate(length as usize, ALL).unwrap_err();
    assert_eq!(refused, DeviceError::TooLong { length, limit });
}

#[test]
fn allocated_region_is_copied_past_the_caches_byte_by_byte() {
    let host = Host::new();
    let (owner, user, local) = pair(&host, LENGTH);
    let region = allocate(&owner, 0, ALL);
    let sent: Vec<u8> = (0..LENGTH).map(|byte| (byte % 251) as u8).collect();
    region.write(0, &sent);
    let (from, length) = (at(&region, 5), LENGTH - 5);
    let read = |part| user.read(Qpn(1), from, part, Store::Streamed);
    assert_eq!(local.with_part(2, length, read), Ok(()));
    assert_eq!(&bytes(&local)[2..2 + length], &sent[5..]);
    let into = at(&region, 1);
    let write = |part| user.write(Qpn(1), part, into, Store::Streamed);
    assert_eq!(local.with_part(2, length, write), Ok(()));
    assert_eq!(&bytes(&region)[1..1 + length], &sent[5..]);
    owner.remove_queue_pair(Qpn(1));
}
