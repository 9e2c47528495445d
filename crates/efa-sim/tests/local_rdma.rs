//! Stories of the local link: RDMA reads and writes, and immediate data.

#![allow(clippy::unwrap_used)]

use efa_device::*;
use efa_sim::SoftRegion;
use efa_sim::local::{LocalDevice, LocalFabric, LocalOptions, LocalQueuePair};

const READ: Access = Access { remote_read: true, remote_write: false };
const WRITE: Access = Access { remote_read: false, remote_write: true };

/// A requester and a target with a region of 64 bytes that count up.
struct Pair {
    fabric: LocalFabric,
    a: LocalQueuePair,
    target: LocalDevice,
    b: LocalQueuePair,
    to: Destination,
    local: SoftRegion,
    remote: SoftRegion,
}

fn pair(options: LocalOptions, access: Access) -> Pair {
    let fabric = LocalFabric::new(options);
    let (requester, target) = (fabric.open(), fabric.open());
    let options = QueuePairOptions { send_depth: 4, ..QueuePairOptions::default() };
    let mut a = requester.create_queue_pair(options).unwrap();
    let b = target.create_queue_pair(options).unwrap();
    let to = b.address();
    let address_handle = a.create_address_handle(to.gid).unwrap();
    let to = Destination { address_handle, qpn: to.qpn, qkey: to.qkey };
    let local = a.register(vec![0xee; 64].into(), Access::default()).unwrap();
    let remote = b.register((0..64).collect(), access).unwrap();
    Pair { fabric, a, target, b, to, local, remote }
}

impl Pair {
    fn request(&self, id: u64, local: (usize, usize), remote: u64) -> RdmaRequest<SoftRegion> {
        let (offset, length) = local;
        RdmaRequest {
            id: WorkId(id),
            local: RegionRange { region: self.local.clone(), offset, length },
            remote: RemoteMemory {
                address: self.remote.remote_address() + remote,
                key: self.remote.remote_key(),
            },
            destination: self.to,
        }
    }

    /// Lets everything happen; gives what the requester and the target were told.
    fn settle(&mut self) -> [Vec<Completion<Box<[u8]>>>; 2] {
        let mut told = [Vec::new(), Vec::new()];
        while let Some(now) = self.fabric.next_event() {
            for (qp, told) in [&mut self.a, &mut self.b].into_iter().zip(&mut told) {
                told.extend(std::iter::from_fn(|| qp.poll(now)));
            }
        }
        told
    }

    /// How the operations of the requester ended; the target was told nothing.
    fn ends(&mut self) -> Vec<(u64, Result<(), Status>)> {
        let [told, nothing] = self.settle();
        assert!(nothing.is_empty(), "{nothing:?}");
        let end = |completion| match completion {
            Completion::Rdma { id, result } => (id.0, result),
            other => panic!("{other:?}"),
        };
        let mut ends: Vec<_> = told.into_iter().map(end).collect();
        ends.sort_by_key(|end| end.0);
        ends
    }
}

fn bytes(region: &SoftRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.length()];
    region.read(0, &mut bytes);
    bytes
}

#[test]
fn a_read_fills_its_part_of_the_region_and_the_target_is_not_told() {
    let mut pair = pair(LocalOptions::default(), READ);
    pair.a.post_read(pair.request(1, (8, 4), 60)).unwrap();
    assert_eq!(pair.ends(), [(1, Ok(()))]);
    let mut expected = vec![0xee; 64];
    expected[8..12].copy_from_slice(&[60, 61, 62, 63]);
    assert_eq!(bytes(&pair.local), expected);
    assert_eq!(pair.fabric.statistics().rdma_bytes, 4);
}

#[test]
fn a_write_changes_its_part_of_the_target() {
    let mut pair = pair(LocalOptions::default(), WRITE);
    pair.a.post_write(pair.request(1, (0, 3), 5), None).unwrap();
    assert_eq!(pair.ends(), [(1, Ok(()))]);
    assert_eq!(bytes(&pair.remote)[4..9], [4, 0xee, 0xee, 0xee, 8]);
}

#[test]
fn operations_longer_than_a_copy_are_whole() {
    let mut pair = pair(LocalOptions::default(), READ);
    let pattern: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
    pair.remote = pair.b.register(pattern.clone().into(), READ).unwrap();
    pair.local = pair.a.register(vec![0; 100_000].into(), Access::default()).unwrap();
    pair.a.post_read(pair.request(1, (1, 99_999), 1)).unwrap();
    assert_eq!(pair.ends(), [(1, Ok(()))]);
    assert_eq!(bytes(&pair.local)[1..], pattern[1..]);
}

#[test]
fn memory_that_was_not_offered_is_not_touched() {
    for access in [READ, WRITE, Access::default()] {
        let mut pair = pair(LocalOptions::default(), access);
        let revoked = pair.b.register(vec![7; 8].into(), READ).unwrap();
        let mut bad = vec![
            pair.request(1, (0, 5), 60),
            pair.request(2, (0, 1), 64),
            pair.request(3, (0, 1), u64::MAX - pair.remote.remote_address()),
            pair.request(4, (0, 1), 0),
        ];
        bad[3].remote.key ^= 1;
        for mut request in bad {
            let id = request.id.0;
            pair.a.post_read(request.clone()).unwrap();
            request.id = WorkId(id + 10);
            pair.a.post_write(request, None).unwrap();
            let refused = Err(Status::RemoteBadAddress);
            assert_eq!(pair.ends(), [(id, refused), (id + 10, refused)]);
        }
        let mut late = pair.request(5, (0, 1), 0);
        late.remote = RemoteMemory { address: revoked.remote_address(), key: revoked.remote_key() };
        pair.a.post_read(late).unwrap();
        drop(revoked);
        assert_eq!(pair.ends(), [(5, Err(Status::RemoteBadAddress))]);
        let allowed = |yes| if yes { Ok(()) } else { Err(Status::RemoteBadAddress) };
        pair.a.post_read(pair.request(6, (0, 1), 0)).unwrap();
        assert_eq!(pair.ends(), [(6, allowed(access.remote_read))]);
        pair.a.post_write(pair.request(7, (9, 1), 9), None).unwrap();
        assert_eq!(pair.ends(), [(7, allowed(access.remote_write))]);
        let mut expected: Vec<u8> = (0..64).collect();
        if access.remote_write {
            expected[9] = 0xee;
        }
        assert_eq!(bytes(&pair.remote), expected);
    }
}

#[test]
fn what_cannot_be_done_is_refused_when_it_is_posted() {
    let options = LocalOptions { max_rdma_size: 16, ..LocalOptions::default() };
    let mut near = pair(options.clone(), READ);
    assert_eq!(
        near.a.post_read(near.request(1, (60, 5), 0)),
        Err(DeviceError::OutOfRegion { offset: 60, length: 5, region: 64 })
    );
    assert_eq!(
        near.a.post_read(near.request(1, (usize::MAX, 2), 0)),
        Err(DeviceError::OutOfRegion { offset: usize::MAX, length: 2, region: 64 })
    );
    let long = near.request(1, (0, 17), 0);
    assert_eq!(near.a.post_read(long), Err(DeviceError::TooLong { length: 17, limit: 16 }));
    let mut nowhere = near.request(1, (0, 1), 0);
    nowhere.destination.address_handle = AddressHandle(99);
    let handle = AddressHandle(99);
    assert_eq!(near.a.post_read(nowhere), Err(DeviceError::BadAddressHandle { handle }));
    for id in 0..4 {
        near.a.post_read(near.request(id, (0, 1), 0)).unwrap();
    }
    let full = near.request(4, (0, 1), 0);
    assert_eq!(near.a.post_read(full), Err(DeviceError::QueueFull { depth: 4 }));
    assert_eq!(near.ends(), [0, 1, 2, 3].map(|id| (id, Ok(()))));

    let mut none = pair(LocalOptions { rdma: Rdma::NONE, ..options }, READ);
    let operation = "RDMA read";
    let read = none.request(1, (0, 1), 0);
    assert_eq!(none.a.post_read(read), Err(DeviceError::Unsupported { operation }));
    let operation = "RDMA write";
    let write = none.request(1, (0, 1), 0);
    assert_eq!(none.a.post_write(write, None), Err(DeviceError::Unsupported { operation }));
    assert_eq!(none.a.attributes().rdma, Rdma::NONE);
}

#[test]
fn a_target_that_is_gone_is_noticed() {
    let mut pair = pair(LocalOptions::default(), READ);
    pair.a.post_read(pair.request(1, (0, 1), 0)).unwrap();
    pair.fabric.kill(pair.b.address()).unwrap();
    assert_eq!(pair.ends(), [(1, Err(Status::UnresponsiveRemote))]);
    pair.b = pair.target.create_queue_pair(QueuePairOptions::default()).unwrap();
    pair.a.post_read(pair.request(2, (0, 1), 0)).unwrap();
    assert_eq!(pair.ends(), [(2, Err(Status::BadDestinationQpn))]);
}

/// Its owner has its memory back, and may have put something else there.
#[test]
fn nothing_of_a_queue_pair_that_is_gone_touches_its_memory_any_more() {
    let access = Access { remote_read: true, remote_write: true };
    let mut pair = pair(LocalOptions::default(), access);
    pair.a.post_read(pair.request(1, (0, 8), 0)).unwrap();
    pair.a.post_write(pair.request(2, (8, 8), 8), None).unwrap();
    let Pair { fabric, a, mut b, local, remote, .. } = pair;
    drop(a);
    local.write(0, &[0xaa; 64]);
    while let Some(now) = fabric.next_event() {
        assert!(b.poll(now).is_none());
    }
    assert_eq!(bytes(&local), [0xaa; 64]);
    assert_eq!(bytes(&remote), (0..64).collect::<Vec<u8>>());
}

#[test]
fn immediate_data_of_a_write_takes_a_receive_buffer() {
    let mut pair = pair(LocalOptions::default(), WRITE);
    pair.a.post_write(pair.request(1, (0, 3), 5), Some(0xdead_beef)).unwrap();
    let [ends, none] = pair.settle();
    let not_ready = Err(Status::ReceiverNotReady);
    assert!(
        matches!(&ends[..], [Completion::Rdma { id: WorkId(1), result }] if *result == not_ready)
    );
    assert!(none.is_empty());
    assert_eq!(bytes(&pair.remote)[5], 5, "nothing is written without a buffer");

    let packet = pair.b.allocate_packet().unwrap();
    pair.b.post_receive(packet).unwrap();
    pair.a.post_write(pair.request(2, (0, 3), 5), Some(0xdead_beef)).unwrap();
    let [ends, told] = pair.settle();
    assert!(matches!(&ends[..], [Completion::Rdma { id: WorkId(2), result: Ok(()) }]));
    let [Completion::Written { immediate: 0xdead_beef, length: 3, source, packet: Some(packet) }] =
        &told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!((source.qpn, packet.len()), (pair.a.address().qpn, pair.a.attributes().mtu));
    assert_eq!(bytes(&pair.remote)[5], 0xee);
}

#[test]
fn immediate_data_takes_no_buffer_where_that_is_agreed() {
    let rdma = Rdma { unsolicited_write_receive: true, ..Rdma::READ_WRITE };
    let mut pair = pair(LocalOptions { rdma, ..LocalOptions::default() }, WRITE);
    pair.a.post_write(pair.request(1, (0, 0), 0), Some(7)).unwrap();
    let [ends, told] = pair.settle();
    assert!(matches!(&ends[..], [Completion::Rdma { result: Ok(()), .. }]));
    assert!(matches!(
        &told[..],
        [Completion::Written { immediate: 7, length: 0, packet: None, .. }]
    ));
}

#[test]
fn datagrams_carry_immediate_data() {
    let mut pair = pair(LocalOptions::default(), READ);
    let packet = pair.b.allocate_packet().unwrap();
    pair.b.post_receive(packet).unwrap();
    let packet = pair.a.allocate_packet().unwrap();
    let id = WorkId(1);
    let request =
        SendRequest { id, packet, length: 2, destination: pair.to, immediate: Some(u32::MAX) };
    pair.a.post_send(request).unwrap();
    let [_, told] = pair.settle();
    assert!(matches!(
        &told[..],
        [Completion::Receive { length: 2, immediate: Some(u32::MAX), .. }]
    ));
}
