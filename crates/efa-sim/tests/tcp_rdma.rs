//! Stories of the tcp link: RDMA reads and writes, and immediate data.
//!
//! Two devices of one host stand for two hosts; what reads and writes is the same.

#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use efa_device::*;
use efa_sim::SoftRegion;
use efa_sim::tcp::{TcpDevice, TcpOptions, TcpQueuePair};

/// A guard against hanging; nothing is expected to take a noticeable part of it.
const DEADLINE: Duration = Duration::from_secs(60);
const READ: Access = Access { remote_read: true, remote_write: false };
const WRITE: Access = Access { remote_read: false, remote_write: true };

/// A requester and a target with a region of 64 bytes that count up.
struct Pair {
    now: Time,
    a: TcpQueuePair,
    target: TcpDevice,
    b: TcpQueuePair,
    to: Destination,
    local: SoftRegion,
    remote: SoftRegion,
}

fn pair_with(access: Access, change: impl Fn(&mut TcpOptions)) -> Pair {
    let open = || {
        let mut options = TcpOptions::new(Ipv4Addr::LOCALHOST);
        options.mtu = 256;
        change(&mut options);
        TcpDevice::open(options).unwrap()
    };
    let (requester, target) = (open(), open());
    let options = QueuePairOptions { send_depth: 4, ..QueuePairOptions::default() };
    let mut a = requester.create_queue_pair(options).unwrap();
    let b = target.create_queue_pair(options).unwrap();
    let to = b.address();
    let address_handle = a.create_address_handle(to.gid).unwrap();
    let to = Destination { address_handle, qpn: to.qpn, qkey: to.qkey };
    let local = a.register(vec![0xee; 64].into(), Access::default()).unwrap();
    let remote = b.register((0..64).collect(), access).unwrap();
    Pair { now: Time::ZERO, a, target, b, to, local, remote }
}

fn pair(access: Access) -> Pair {
    pair_with(access, |_| {})
}

impl Pair {
    fn request(&self, id: u64, local: (usize, usize), remote: u64) -> RdmaRequest<SoftRegion> {
        let (offset, length) = local;
        RdmaRequest {
            id: WorkId(id),
            local: RegionRange { region: self.local.clone(), offset, length },
            remote: RemoteMemory {
                address: self.remote.remote_address().wrapping_add(remote),
                key: self.remote.remote_key(),
            },
            destination: self.to,
        }
    }

    /// Lets things happen until this many were told to the requester and to the target.
    fn settle(&mut self, expected: [usize; 2]) -> [Vec<Completion<Box<[u8]>>>; 2] {
        let start = Instant::now();
        let mut told = [Vec::new(), Vec::new()];
        while told.each_ref().map(Vec::len) != expected {
            assert!(start.elapsed() < DEADLINE, "{told:?}");
            self.now += Duration::from_micros(10);
            for (qp, told) in [&mut self.a, &mut self.b].into_iter().zip(&mut told) {
                told.extend(qp.poll(self.now));
            }
        }
        told
    }

    /// How so many operations of the requester ended; the target was told nothing.
    fn ends(&mut self, count: usize) -> Vec<(u64, Result<(), Status>)> {
        let [told, _] = self.settle([count, 0]);
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
    let mut pair = pair(READ);
    pair.a.post_read(pair.request(1, (8, 4), 60)).unwrap();
    assert_eq!(pair.ends(1), [(1, Ok(()))]);
    let mut expected = vec![0xee; 64];
    expected[8..12].copy_from_slice(&[60, 61, 62, 63]);
    assert_eq!(bytes(&pair.local), expected);
}

#[test]
fn a_write_changes_its_part_of_the_target() {
    let mut pair = pair(WRITE);
    pair.a.post_write(pair.request(1, (0, 3), 5), None).unwrap();
    assert_eq!(pair.ends(1), [(1, Ok(()))]);
    assert_eq!(bytes(&pair.remote)[4..9], [4, 0xee, 0xee, 0xee, 8]);
}

#[test]
fn long_operations_are_whole_and_let_datagrams_through() {
    let all = Access { remote_read: true, remote_write: true };
    let mut pair = pair(all);
    let length = (5 << 20) + 77;
    let pattern: Vec<u8> = (0..length as u32).map(|i| (i % 251) as u8).collect();
    pair.remote = pair.b.register(pattern.clone().into(), all).unwrap();
    pair.local = pair.a.register(vec![0; length].into(), Access::default()).unwrap();
    pair.a.post_read(pair.request(1, (1, length - 1), 1)).unwrap();
    let packet = pair.a.allocate_packet().unwrap();
    let buffer = pair.b.allocate_packet().unwrap();
    pair.b.post_receive(buffer).unwrap();
    let (id, destination) = (WorkId(2), pair.to);
    pair.a.post_send(SendRequest { id, packet, length: 9, destination, immediate: None }).unwrap();
    let [told, arrived] = pair.settle([2, 1]);
    assert!(matches!(
        &told[..],
        [
            Completion::Send { id: WorkId(2), result: Ok(()), .. },
            Completion::Rdma { id: WorkId(1), result: Ok(()) }
        ]
    ));
    assert!(matches!(&arrived[..], [Completion::Receive { length: 9, immediate: None, .. }]));
    assert_eq!(bytes(&pair.local)[1..], pattern[1..]);
    // And back, a byte later.
    pair.a.post_write(pair.request(3, (1, length - 2), 2), None).unwrap();
    assert_eq!(pair.ends(1), [(3, Ok(()))]);
    assert_eq!(bytes(&pair.remote)[2..], pattern[1..length - 1]);
}

/// A datagram without a buffer, in front of the read and for ever.
#[test]
fn a_read_does_not_wait_behind_datagrams() {
    let mut pair = pair(READ);
    pair.a.set_rnr_retry(7);
    let packet = pair.a.allocate_packet().unwrap();
    let (id, destination) = (WorkId(2), pair.to);
    pair.a.post_send(SendRequest { id, packet, length: 9, destination, immediate: None }).unwrap();
    pair.a.post_read(pair.request(1, (8, 4), 60)).unwrap();
    assert_eq!(pair.ends(1), [(1, Ok(()))]);
    let buffer = pair.b.allocate_packet().unwrap();
    pair.b.post_receive(buffer).unwrap();
    pair.settle([1, 1]);
}

/// Several at a time, in both directions, out of order.
#[test]
fn operations_share_a_connection() {
    let all = Access { remote_read: true, remote_write: true };
    let mut pair = pair_with(all, |options| options.reorder = Some(7));
    let length = 4 << 17;
    pair.remote = pair.b.register(vec![1; length].into(), all).unwrap();
    pair.local = pair.a.register(vec![2; length].into(), Access::default()).unwrap();
    let quarter = length / 4;
    for id in 0..4 {
        let at = id as usize * quarter;
        let request = pair.request(id, (at, quarter), at as u64);
        match id {
            0 | 2 => pair.a.post_read(request).unwrap(),
            _ => pair.a.post_write(request, None).unwrap(),
        }
    }
    assert_eq!(pair.ends(4), [0, 1, 2, 3].map(|id| (id, Ok(()))));
    let expected = |values: [u8; 4]| values.map(|value| vec![value; quarter]).concat();
    assert_eq!(bytes(&pair.local), expected([1, 2, 1, 2]));
    assert_eq!(bytes(&pair.remote), expected([1, 2, 1, 2]));
}

#[test]
fn memory_that_was_not_offered_is_not_touched() {
    let refused = Err(Status::RemoteBadAddress);
    for access in [READ, WRITE, Access::default()] {
        let mut pair = pair(access);
        let revoked = pair.b.register(vec![7; 8].into(), READ).unwrap();
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
            pair.a.post_read(request.clone()).unwrap();
            request.id = WorkId(id + 10);
            pair.a.post_write(request, None).unwrap();
            assert_eq!(pair.ends(2), [(id, refused), (id + 10, refused)]);
        }
        let mut late = pair.request(6, (0, 1), 0);
        late.remote = RemoteMemory { address: revoked.remote_address(), key: revoked.remote_key() };
        pair.a.post_read(late).unwrap();
        drop(revoked);
        assert_eq!(pair.ends(1), [(6, refused)]);
        let allowed = |yes| if yes { Ok(()) } else { refused };
        pair.a.post_read(pair.request(7, (0, 1), 0)).unwrap();
        assert_eq!(pair.ends(1), [(7, allowed(access.remote_read))]);
        pair.a.post_write(pair.request(8, (9, 1), 9), None).unwrap();
        assert_eq!(pair.ends(1), [(8, allowed(access.remote_write))]);
        let mut expected: Vec<u8> = (0..64).collect();
        if access.remote_write {
            expected[9] = 0xee;
        }
        assert_eq!(bytes(&pair.remote), expected);
    }
}

#[test]
fn what_cannot_be_done_is_refused_when_it_is_posted() {
    let mut near = pair_with(READ, |options| options.max_rdma_size = 16);
    assert_eq!(
        near.a.post_read(near.request(1, (60, 5), 0)),
        Err(DeviceError::OutOfRegion { offset: 60, length: 5, region: 64 })
    );
    let long = near.request(1, (0, 17), 0);
    assert_eq!(near.a.post_read(long), Err(DeviceError::TooLong { length: 17, limit: 16 }));
    let mut nowhere = near.request(1, (0, 1), 0);
    let handle = AddressHandle(99);
    nowhere.destination.address_handle = handle;
    assert_eq!(near.a.post_read(nowhere), Err(DeviceError::BadAddressHandle { handle }));
    for id in 0..4 {
        near.a.post_read(near.request(id, (0, 1), 0)).unwrap();
    }
    let full = near.request(4, (0, 1), 0);
    assert_eq!(near.a.post_read(full), Err(DeviceError::QueueFull { depth: 4 }));
    assert_eq!(near.ends(4), [0, 1, 2, 3].map(|id| (id, Ok(()))));

    let mut none = pair_with(READ, |options| options.rdma = Rdma::NONE);
    let read = none.request(1, (0, 1), 0);
    let refused = |operation| Err(DeviceError::Unsupported { operation });
    assert_eq!(none.a.post_read(read.clone()), refused("RDMA read"));
    assert_eq!(none.a.post_write(read, None), refused("RDMA write"));
    assert_eq!(none.a.attributes().rdma, Rdma::NONE);
}

#[test]
fn a_target_that_is_gone_is_noticed() {
    let mut pair = pair(READ);
    let mut elsewhere = pair.request(1, (0, 1), 0);
    // No route: an address for documentation, from the loopback interface.
    let other = Gid("2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    elsewhere.destination.address_handle = pair.a.create_address_handle(other).unwrap();
    pair.a.post_read(elsewhere).unwrap();
    assert_eq!(pair.ends(1), [(1, Err(Status::UnreachableRemote))]);
    pair.a.post_read(pair.request(2, (0, 1), 0)).unwrap();
    assert_eq!(pair.ends(1), [(2, Ok(()))]);
    pair.b = pair.target.create_queue_pair(QueuePairOptions::default()).unwrap();
    pair.a.post_read(pair.request(3, (0, 1), 0)).unwrap();
    assert_eq!(pair.ends(1), [(3, Err(Status::BadDestinationQpn))]);
}

#[test]
fn immediate_data_of_a_write_takes_a_receive_buffer() {
    let mut pair = pair(WRITE);
    pair.a.post_write(pair.request(1, (0, 3), 5), Some(0xdead_beef)).unwrap();
    assert_eq!(pair.ends(1), [(1, Err(Status::ReceiverNotReady))]);

    let packet = pair.b.allocate_packet().unwrap();
    pair.b.post_receive(packet).unwrap();
    pair.a.post_write(pair.request(2, (0, 3), 9), Some(0xdead_beef)).unwrap();
    let [ends, told] = pair.settle([1, 1]);
    assert!(matches!(&ends[..], [Completion::Rdma { id: WorkId(2), result: Ok(()) }]));
    let [Completion::Written { immediate: 0xdead_beef, length: 3, source, packet: Some(packet) }] =
        &told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!((source.qpn, packet.len()), (pair.a.address().qpn, pair.a.attributes().mtu));
    assert_eq!(bytes(&pair.remote)[9..12], [0xee; 3]);
    // A refused write is not announced.
    let packet = pair.b.allocate_packet().unwrap();
    pair.b.post_receive(packet).unwrap();
    pair.a.post_write(pair.request(3, (0, 3), 62), Some(1)).unwrap();
    assert_eq!(pair.ends(1), [(3, Err(Status::RemoteBadAddress))]);
}

#[test]
fn immediate_data_takes_no_buffer_where_that_is_agreed() {
    let rdma = Rdma { unsolicited_write_receive: true, ..Rdma::READ_WRITE };
    // Even where a datagram has less room than the length of a write.
    let mut pair = pair_with(WRITE, |options| (options.rdma, options.mtu) = (rdma, 4));
    pair.a.post_write(pair.request(1, (0, 0), 0), Some(7)).unwrap();
    let [ends, told] = pair.settle([1, 1]);
    assert!(matches!(&ends[..], [Completion::Rdma { result: Ok(()), .. }]));
    assert!(matches!(
        &told[..],
        [Completion::Written { immediate: 7, length: 0, packet: None, .. }]
    ));
}

#[test]
fn datagrams_carry_immediate_data() {
    let mut pair = pair(READ);
    let packet = pair.b.allocate_packet().unwrap();
    pair.b.post_receive(packet).unwrap();
    let packet = pair.a.allocate_packet().unwrap();
    let id = WorkId(1);
    let request =
        SendRequest { id, packet, length: 2, destination: pair.to, immediate: Some(u32::MAX) };
    pair.a.post_send(request).unwrap();
    let [_, told] = pair.settle([1, 1]);
    assert!(matches!(
        &told[..],
        [Completion::Receive { length: 2, immediate: Some(u32::MAX), .. }]
    ));
}
