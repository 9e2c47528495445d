//! What holds on one link only.

use efa_device::*;

use crate::pair::{Link, Pair, bytes};

#[test]
fn local_link_counts_rdma_bytes() {
    let mut pair = Pair::new(Link::Local);
    pair.requester.post_read(pair.request(1, (8, 4), 60)).unwrap();
    assert_eq!(pair.results(1), [(1, Ok(()))]);
    assert_eq!(pair.fabric.unwrap().statistics().rdma_bytes, 4);
}

#[test]
fn local_read_from_a_killed_peer_fails_as_unresponsive() {
    let mut pair = Pair::new(Link::Local);
    pair.requester.post_read(pair.request(1, (0, 1), 0)).unwrap();
    pair.fabric.as_ref().unwrap().kill(pair.target.address()).unwrap();
    assert_eq!(pair.results(1), [(1, Err(Status::UnresponsiveRemote))]);
}

/// The owner has the memory back, and may have put something else there.
#[test]
fn local_operations_of_a_dropped_requester_touch_no_memory() {
    let mut pair = Pair::new(Link::Local);
    pair.requester.post_read(pair.request(1, (0, 8), 0)).unwrap();
    pair.requester.post_write(pair.request(2, (8, 8), 8), None).unwrap();
    let Pair { fabric: Some(fabric), requester, mut target, local, remote, .. } = pair else {
        panic!()
    };
    drop(requester);
    local.write(0, &[0xaa; 64]);
    while let Some(now) = fabric.next_event() {
        assert!(target.poll(now).is_none());
    }
    assert_eq!(bytes(&local), [0xaa; 64]);
    assert_eq!(bytes(&remote), (0..64).collect::<Vec<u8>>());
}

#[test]
fn shm_read_completes_without_polls_of_the_target() {
    let mut pair = Pair::new(Link::Shm);
    pair.requester.post_read(pair.request(1, (8, 4), 60)).unwrap();
    let done = (0..10).find_map(|_| pair.requester.poll(Time::ZERO));
    assert!(matches!(done, Some(Completion::Rdma { id: WorkId(1), result: Ok(()) })), "{done:?}");
    assert_eq!(bytes(&pair.local)[8..12], [60, 61, 62, 63]);
}

/// On tcp the address is one for documentation, to which the loopback interface has no route.
#[test]
fn read_from_an_unreachable_interface_fails_as_unreachable_on_shm_and_tcp() {
    let elsewhere = Gid("2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    for link in [Link::Shm, Link::Tcp] {
        let mut pair = Pair::new(link);
        let mut request = pair.request(1, (0, 1), 0);
        let handle = pair.requester.create_address_handle(elsewhere).unwrap();
        request.destination.address_handle = handle;
        pair.requester.post_read(request).unwrap();
        assert_eq!(pair.results(1), [(1, Err(Status::UnreachableRemote))], "{link:?}");
    }
}

#[test]
fn shm_regions_outlive_their_device_and_leave_no_files() {
    let Pair { requester, target, target_device, local, remote, directory, .. } =
        Pair::new(Link::Shm);
    drop((requester, target, target_device));
    let left = std::fs::read_dir(directory.as_ref().unwrap().path().join("host")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["gid", "next"]);
    assert_eq!((bytes(&local)[0], bytes(&remote)[1]), (0xee, 1));
}
