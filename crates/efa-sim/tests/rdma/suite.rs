//! What holds on every link.

use efa_device::*;

use crate::pair::{ALL, Done, Link, Options, Pair, READ, WRITE, bytes};

/// Makes a test of each function for each link.
macro_rules! for_each_link {
    ($($link:ident $kind:expr => $tests:tt;)*) => {
        $(mod $link { for_each_link!(@ $kind, $tests); })*
    };
    (@ $kind:expr, { $($test:ident)* }) => {
        $(
            #[test]
            fn $test() {
                super::$test($kind);
            }
        )*
    };
}

macro_rules! suite {
    ($($test:ident)*) => {
        for_each_link! {
            local crate::pair::Link::Local => { $($test)* };
            shm crate::pair::Link::Shm => { $($test)* };
            requests crate::pair::Link::Requests => { $($test)* };
            tcp crate::pair::Link::Tcp => { $($test)* };
        }
    };
}

suite! {
    read_fills_local_range_and_reports_nothing_to_target
    write_changes_the_remote_range_only
    long_operations_are_complete_and_let_datagrams_pass
    operations_in_both_directions_complete_with_their_own_data
    read_completes_while_an_earlier_datagram_waits_for_a_buffer
    access_beyond_the_granted_memory_fails_with_remote_bad_address
    access_without_address_handle_at_the_target_fails_with_unknown_peer
    impossible_request_is_refused_when_posted
    read_from_a_destroyed_queue_pair_fails_with_bad_destination_qpn
    write_with_immediate_data_takes_a_receive_buffer
    unsolicited_immediate_data_takes_no_receive_buffer
    datagram_delivers_immediate_data
}

fn read_fills_local_range_and_reports_nothing_to_target(link: Link) {
    let mut pair = Pair::with(link, Options { access: READ, ..Options::default() });
    pair.requester.post_read(pair.request(1, (8, 4), 60)).unwrap();
    assert_eq!(pair.results(1), [(1, Ok(()))]);
    let mut expected = vec![0xee; 64];
    expected[8..12].copy_from_slice(&[60, 61, 62, 63]);
    assert_eq!(bytes(&pair.local), expected);
}

fn write_changes_the_remote_range_only(link: Link) {
    let mut pair = Pair::with(link, Options { access: WRITE, ..Options::default() });
    pair.requester.post_write(pair.request(1, (0, 3), 5), None).unwrap();
    assert_eq!(pair.results(1), [(1, Ok(()))]);
    assert_eq!(bytes(&pair.remote)[4..9], [4, 0xee, 0xee, 0xee, 8]);
}

fn long_operations_are_complete_and_let_datagrams_pass(link: Link) {
    let mut pair = Pair::new(link);
    let length = (5 << 20) + 77;
    let pattern: Vec<u8> = (0..length as u32).map(|i| (i % 251) as u8).collect();
    pair.remote = pair.target.register(pattern.clone().into(), ALL).unwrap();
    pair.local = pair.requester.register(vec![0; length].into(), Access::default()).unwrap();
    pair.requester.post_read(pair.request(1, (1, length - 1), 1)).unwrap();
    pair.post_receive();
    pair.send(2, 9, None);
    let [done, arrived] = pair.settle([2, 1]);
    let is_read = |done: &Done| matches!(done, Completion::Rdma { id: WorkId(1), result: Ok(()) });
    let is_send =
        |done: &Done| matches!(done, Completion::Send { id: WorkId(2), result: Ok(()), .. });
    // The local link moves the bytes of a read at once.
    let in_order = is_send(&done[0]) && is_read(&done[1]);
    let reversed = is_read(&done[0]) && is_send(&done[1]);
    assert!(in_order || (link == Link::Local && reversed), "{done:?}");
    assert!(matches!(&arrived[..], [Completion::Receive { length: 9, immediate: None, .. }]));
    assert_eq!(bytes(&pair.local)[1..], pattern[1..]);
    // And back, a byte later.
    pair.requester.post_write(pair.request(3, (1, length - 2), 2), None).unwrap();
    assert_eq!(pair.results(1), [(3, Ok(()))]);
    assert_eq!(bytes(&pair.remote)[2..], pattern[1..length - 1]);
}

fn operations_in_both_directions_complete_with_their_own_data(link: Link) {
    let mut pair = Pair::new(link);
    let length = 4 << 17;
    pair.remote = pair.target.register(vec![1; length].into(), ALL).unwrap();
    pair.local = pair.requester.register(vec![2; length].into(), Access::default()).unwrap();
    let quarter = length / 4;
    for id in 0..4 {
        let at = id as usize * quarter;
        let request = pair.request(id, (at, quarter), at as u64);
        match id {
            0 | 2 => pair.requester.post_read(request).unwrap(),
            _ => pair.requester.post_write(request, None).unwrap(),
        }
    }
    assert_eq!(pair.results(4), [0, 1, 2, 3].map(|id| (id, Ok(()))));
    let expected = |values: [u8; 4]| values.map(|value| vec![value; quarter]).concat();
    assert_eq!(bytes(&pair.local), expected([1, 2, 1, 2]));
    assert_eq!(bytes(&pair.remote), expected([1, 2, 1, 2]));
}

fn read_completes_while_an_earlier_datagram_waits_for_a_buffer(link: Link) {
    let mut pair = Pair::with(link, Options { rnr_retry: 7, ..Options::default() });
    pair.send(2, 9, None);
    pair.requester.post_read(pair.request(1, (8, 4), 60)).unwrap();
    assert_eq!(pair.results(1), [(1, Ok(()))]);
    pair.post_receive();
    pair.settle([1, 1]);
}

fn access_without_address_handle_at_the_target_fails_with_unknown_peer(link: Link) {
    let mut pair = Pair::new(link);
    let attempt = |pair: &mut Pair| {
        pair.requester.post_read(pair.request(1, (0, 4), 60)).unwrap();
        pair.requester.post_write(pair.request(2, (4, 4), 0), None).unwrap();
        pair.requester.post_write(pair.request(3, (4, 0), 0), None).unwrap();
        pair.results(3)
    };
    pair.target.destroy_address_handle(pair.requester_at_target);
    let refused = Err(Status::UnknownPeer);
    pair.post_receive();
    pair.requester.post_write(pair.request(0, (4, 4), 0), Some(1)).unwrap();
    assert_eq!(pair.results(1), [(0, refused)]);
    assert_eq!(attempt(&mut pair), [(1, refused), (2, refused), (3, refused)]);
    assert_eq!(bytes(&pair.local), [0xee; 64]);
    assert_eq!(bytes(&pair.remote), (0..64).collect::<Vec<u8>>());
    // Sends need no handle at the target.
    pair.send(4, 9, None);
    pair.settle([1, 1]);
    pair.target.create_address_handle(pair.requester.address().gid).unwrap();
    assert_eq!(attempt(&mut pair), [(1, Ok(())), (2, Ok(())), (3, Ok(()))]);
}

fn access_beyond_the_granted_memory_fails_with_remote_bad_address(link: Link) {
    let refused = Err(Status::RemoteBadAddress);
    for access in [READ, WRITE, Access::default()] {
        let mut pair = Pair::with(link, Options { access, ..Options::default() });
        let revoked = pair.target.register(vec![7; 8].into(), READ).unwrap();
        let mut bad = vec![
            pair.request(1, (0, 5), 60),
            pair.request(2, (0, 1), 64),
            pair.request(3, (0, 1), u64::MAX - pair.remote.remote_address()),
            pair.request(4, (0, 1), u64::MAX),
            pair.request(5, (0, 1), 0),
        ];
        bad[4].remote.key ^= 1;
        for mut request in bad {
            let id = request.id.0;
            pair.requester.post_read(request.clone()).unwrap();
            request.id = WorkId(id + 10);
            pair.requester.post_write(request, None).unwrap();
            assert_eq!(pair.results(2), [(id, refused), (id + 10, refused)]);
        }
        let mut late = pair.request(6, (0, 1), 0);
        late.remote = RemoteMemory { address: revoked.remote_address(), key: revoked.remote_key() };
        pair.requester.post_read(late).unwrap();
        drop(revoked);
        assert_eq!(pair.results(1), [(6, refused)]);
        let allowed = |yes| if yes { Ok(()) } else { refused };
        pair.requester.post_read(pair.request(7, (0, 1), 0)).unwrap();
        assert_eq!(pair.results(1), [(7, allowed(access.remote_read))]);
        pair.requester.post_write(pair.request(8, (9, 1), 9), None).unwrap();
        assert_eq!(pair.results(1), [(8, allowed(access.remote_write))]);
        let mut expected: Vec<u8> = (0..64).collect();
        if access.remote_write {
            expected[9] = 0xee;
        }
        assert_eq!(bytes(&pair.remote), expected);
    }
}

fn impossible_request_is_refused_when_posted(link: Link) {
    let mut pair = Pair::with(link, Options { max_rdma_size: 16, ..Options::default() });
    for offset in [60, usize::MAX] {
        assert_eq!(
            pair.requester.post_read(pair.request(1, (offset, 5), 0)),
            Err(DeviceError::OutOfRegion { offset, length: 5, region: 64 })
        );
    }
    let long = pair.request(1, (0, 17), 0);
    let too_long = Err(DeviceError::TooLong { length: 17, limit: 16 });
    assert_eq!(pair.requester.post_read(long), too_long);
    let mut nowhere = pair.request(1, (0, 1), 0);
    let handle = AddressHandle(99);
    nowhere.destination.address_handle = handle;
    let unknown = Err(DeviceError::BadAddressHandle { handle });
    assert_eq!(pair.requester.post_read(nowhere), unknown);
    for id in 0..4 {
        pair.requester.post_read(pair.request(id, (0, 1), 0)).unwrap();
    }
    let fifth = pair.request(4, (0, 1), 0);
    assert_eq!(pair.requester.post_read(fifth), Err(DeviceError::QueueFull { depth: 4 }));
    assert_eq!(pair.results(4), [0, 1, 2, 3].map(|id| (id, Ok(()))));

    let mut without = Pair::with(link, Options { rdma: Rdma::NONE, ..Options::default() });
    let request = without.request(1, (0, 1), 0);
    let unsupported = |operation| Err(DeviceError::Unsupported { operation });
    assert_eq!(without.requester.post_read(request.clone()), unsupported("RDMA read"));
    assert_eq!(without.requester.post_write(request, None), unsupported("RDMA write"));
    assert_eq!(without.requester.attributes().rdma, Rdma::NONE);
}

fn read_from_a_destroyed_queue_pair_fails_with_bad_destination_qpn(link: Link) {
    let mut pair = Pair::new(link);
    pair.requester.post_read(pair.request(1, (0, 1), 0)).unwrap();
    assert_eq!(pair.results(1), [(1, Ok(()))]);
    pair.target = pair.target_device.create_queue_pair(QueuePairOptions::default()).unwrap();
    pair.requester.post_read(pair.request(2, (0, 1), 0)).unwrap();
    assert_eq!(pair.results(1), [(2, Err(Status::BadDestinationQpn))]);
}

fn write_with_immediate_data_takes_a_receive_buffer(link: Link) {
    let mut pair = Pair::with(link, Options { access: WRITE, ..Options::default() });
    pair.requester.post_write(pair.request(1, (0, 3), 5), Some(0xdead_beef)).unwrap();
    assert_eq!(pair.results(1), [(1, Err(Status::ReceiverNotReady))]);
    // On the other links the data precedes its announcement.
    let is_written = bytes(&pair.remote)[5] == 0xee;
    assert_eq!(is_written, link != Link::Local);

    pair.post_receive();
    pair.requester.post_write(pair.request(2, (0, 3), 9), Some(0xdead_beef)).unwrap();
    let [done, arrived] = pair.settle([1, 1]);
    assert!(matches!(&done[..], [Completion::Rdma { id: WorkId(2), result: Ok(()) }]));
    let [Completion::Written { immediate: 0xdead_beef, length: 3, source, packet: Some(packet) }] =
        &arrived[..]
    else {
        panic!("{arrived:?}")
    };
    assert_eq!(source.qpn, pair.requester.address().qpn);
    assert_eq!(packet.len(), pair.requester.attributes().mtu);
    assert_eq!(bytes(&pair.remote)[9..12], [0xee; 3]);
    // A refused write is not announced.
    pair.post_receive();
    pair.requester.post_write(pair.request(3, (0, 3), 62), Some(1)).unwrap();
    assert_eq!(pair.results(1), [(3, Err(Status::RemoteBadAddress))]);
}

fn unsolicited_immediate_data_takes_no_receive_buffer(link: Link) {
    let rdma = Rdma { unsolicited_write_receive: true, ..Rdma::READ_WRITE };
    // Even if a datagram is too short for the length of a write.
    let mut pair = Pair::with(link, Options { rdma, mtu: 4, ..Options::default() });
    pair.requester.post_write(pair.request(1, (0, 0), 0), Some(7)).unwrap();
    let [done, arrived] = pair.settle([1, 1]);
    assert!(matches!(&done[..], [Completion::Rdma { result: Ok(()), .. }]));
    assert!(matches!(
        &arrived[..],
        [Completion::Written { immediate: 7, length: 0, packet: None, .. }]
    ));
}

fn datagram_delivers_immediate_data(link: Link) {
    let mut pair = Pair::new(link);
    pair.post_receive();
    pair.send(1, 2, Some(u32::MAX));
    let [_, arrived] = pair.settle([1, 1]);
    assert!(matches!(
        &arrived[..],
        [Completion::Receive { length: 2, immediate: Some(u32::MAX), .. }]
    ));
}
