//! One scenario on every link: the contract of the device traits.

#![allow(clippy::unwrap_used)]

mod common;

use std::fmt;
use std::time::Duration;

use common::Directory;
use efa_device::*;
use efa_sim::local::{LocalFabric, LocalOptions};
use efa_sim::shm::{ShmDevice, ShmOptions, ShmQueuePair};
use efa_sim::tcp::{TcpDevice, TcpOptions, TcpQueuePair};
use efa_sim::{KeptNumber, SoftDevice};

/// Polls both in turn, ten microseconds apart, until the first has a completion.
fn wait<Q: QueuePair>(now: &mut Time, qp: &mut Q, other: &mut Q) -> Completion<Q::Packet> {
    for _ in 0..100_000 {
        *now += Duration::from_micros(10);
        if let Some(completion) = qp.poll(*now) {
            return completion;
        }
        assert!(other.poll(*now).is_none());
    }
    panic!("nothing happens");
}

/// A message and its answer between two devices; what is wrong is refused alike.
fn scenario<D>(first: D, second: D)
where
    D: Device<QueuePair: fmt::Debug, Region: fmt::Debug> + fmt::Debug,
{
    let mtu = first.attributes().mtu;
    assert_eq!(first.attributes().vendor_part_id, 0xefa2);
    let options = QueuePairOptions::default().with(|options| {
        options.qkey = Qkey(5);
        options.send_depth = 2;
    });
    let mut a = first.create_queue_pair(options).unwrap();
    let mut b = second.create_queue_pair(options).unwrap();
    assert_eq!((a.address().gid, a.address().qkey), (first.gid(), Qkey(5)));
    assert_eq!((a.attributes().max_send, a.attributes().mtu), (2, mtu));
    assert_eq!((a.next_event(), b.next_event()), (None, None));

    let QueuePairAddress { gid, qpn, qkey } = b.address();
    let address_handle = a.create_address_handle(gid).unwrap();
    assert_eq!(a.create_address_handle(gid), Ok(address_handle));
    let zero = a.create_address_handle(Gid::ZERO);
    assert_eq!(zero, Err(DeviceError::BadAddress { gid: Gid::ZERO }));
    let destination = Destination { address_handle, qpn, qkey };
    let request = |a: &mut D::QueuePair, id, length| {
        let mut packet = a.allocate_packet().unwrap();
        assert_eq!(packet.as_ref().len(), mtu);
        packet.as_mut()[0] = 42;
        SendRequest { id: WorkId(id), packet, length, destination, immediate: None }
    };
    let long = request(&mut a, 1, mtu + 1);
    let limit = mtu as u64;
    let refused = a.post_send(long).unwrap_err();
    assert_eq!(refused.error, DeviceError::TooLong { length: limit + 1, limit });
    assert_eq!(refused.packet.as_ref()[0], 42);
    assert_eq!(refused.to_string(), refused.error.to_string());
    let region = first.register(vec![215; 64].into(), Access::default()).unwrap();
    let objects: [&dyn fmt::Debug; 4] = [&first, &a, &refused, &region];
    for object in objects {
        let text = format!("{object:?}");
        assert!(text.len() < 1024 && !text.contains("215, 215"), "{text}");
    }

    let buffer = b.allocate_packet().unwrap();
    b.post_receive(buffer).unwrap();
    let whole = request(&mut a, 7, mtu);
    a.post_send(whole).unwrap();
    let mut now = Time::ZERO;
    let Completion::Receive { packet, length, source, .. } = wait(&mut now, &mut b, &mut a) else {
        panic!("b has sent nothing");
    };
    assert_eq!((packet.as_ref()[0], length, source.qpn), (42, mtu, a.address().qpn));
    let Completion::Send { id, packet, result } = wait(&mut now, &mut a, &mut b) else {
        panic!("a has no buffers");
    };
    assert_eq!((id, packet.as_ref().len(), result), (WorkId(7), mtu, Ok(())));

    for id in 0..2 {
        let request = request(&mut a, id, 1);
        a.post_send(request).unwrap();
    }
    let third = request(&mut a, 2, 1);
    assert_eq!(a.post_send(third).unwrap_err().error, DeviceError::QueueFull { depth: 2 });
    drop(b);
    let mut other = second.create_queue_pair(options).unwrap();
    for _ in 0..2 {
        let Completion::Send { result, .. } = wait(&mut now, &mut a, &mut other) else {
            panic!("a has no buffers");
        };
        assert_eq!(result, Err(Status::BadDestinationQpn));
    }
    a.destroy_address_handle(address_handle);
    a.destroy_address_handle(address_handle);
    let unknown = request(&mut a, 3, 1);
    let expected = DeviceError::BadAddressHandle { handle: address_handle };
    assert_eq!(a.post_send(unknown).unwrap_err().error, expected);

    let access = Access { remote_read: true, remote_write: true };
    let region = first.register(vec![1, 2, 3].into(), access).unwrap();
    let mut bytes = [0; 3];
    assert_eq!((region.read(0, &mut bytes), bytes, region.access()), (3, [1, 2, 3], access));
}

fn hosts() -> (Directory, ShmDevice, ShmDevice) {
    let directory = Directory::new();
    let open = || {
        let mut options = ShmOptions::new("host");
        options.directory = Some(directory.path().to_path_buf());
        ShmDevice::open(options).unwrap()
    };
    let (first, second) = (open(), open());
    (directory, first, second)
}

fn tcp_hosts() -> [TcpDevice; 2] {
    [1, 2].map(|host| TcpDevice::open(TcpOptions::new([127, 0, 0, host])).unwrap())
}

#[test]
fn local_link_implements_the_device_traits() {
    let fabric = LocalFabric::new(LocalOptions::default());
    scenario(fabric.open(), fabric.open());
}

#[test]
fn shm_link_implements_the_device_traits() {
    let (_directory, first, second) = hosts();
    scenario(first, second);
}

#[test]
fn tcp_link_implements_the_device_traits() {
    let [first, second] = tcp_hosts();
    scenario(first, second);
}

#[test]
fn soft_device_implements_the_device_traits_for_each_link() {
    let fabric = LocalFabric::new(LocalOptions::default());
    scenario(SoftDevice::from(fabric.open()), SoftDevice::from(fabric.open()));
    let (_directory, first, second) = hosts();
    scenario(SoftDevice::from(first), SoftDevice::from(second));
    let [first, second] = tcp_hosts();
    scenario(SoftDevice::from(first), SoftDevice::from(second));
}

/// From 1.18 on libfabric aborts on a device of a later generation that doesn't read.
#[test]
fn device_without_rdma_read_has_the_first_vendor_part_id() {
    for (rdma, part) in [(Rdma::NONE, 0xefa0), (Rdma::READ_WRITE, 0xefa2)] {
        let directory = Directory::new();
        let mut shm = ShmOptions::new("host");
        (shm.directory, shm.rdma) = (Some(directory.path().to_path_buf()), rdma);
        let mut tcp = TcpOptions::new([127, 0, 0, 3]);
        tcp.rdma = rdma;
        let devices: [SoftDevice; 2] =
            [ShmDevice::open(shm).unwrap().into(), TcpDevice::open(tcp).unwrap().into()];
        assert_eq!(devices.map(|device| device.attributes().vendor_part_id), [part; 2]);
    }
}

#[test]
fn queue_pairs_move_to_other_threads() {
    fn check<T: Send>() {}
    check::<LocalFabric>();
    check::<SoftDevice>();
    check::<efa_sim::SoftQueuePair>();
    check::<efa_sim::SoftRegion>();
}

/// What a peer sent before is gone or fails; what it sends afterwards arrives.
fn number_is_used_again<D: Device>(
    device: D,
    retire: impl Fn(D::QueuePair) -> KeptNumber,
    again: impl Fn(&KeptNumber, QueuePairOptions) -> Result<D::QueuePair, DeviceError>,
) {
    let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(5));
    let mut a = device.create_queue_pair(options).unwrap();
    let mut b = device.create_queue_pair(options).unwrap();
    let QueuePairAddress { gid, qpn, qkey } = b.address();
    let address_handle = a.create_address_handle(gid).unwrap();
    let destination = Destination { address_handle, qpn, qkey };
    let mut now = Time::ZERO;
    for round in 0..3 {
        let mut packet = a.allocate_packet().unwrap();
        packet.as_mut()[0] = round;
        let id = WorkId(round.into());
        let request = SendRequest { id, packet, length: 1, destination, immediate: None };
        let buffer = b.allocate_packet().unwrap();
        b.post_receive(buffer).unwrap();
        a.post_send(request).unwrap();
        let (mut sent, mut received) = (false, false);
        for _ in 0..100_000 {
            now += Duration::from_micros(10);
            match a.poll(now) {
                Some(Completion::Send { id: of, result: Ok(()), .. }) if of == id => sent = true,
                None => {}
                Some(_) => panic!("another completion"),
            }
            match b.poll(now) {
                Some(Completion::Receive { packet, length: 1, .. }) => {
                    received = packet.as_ref()[0] == round;
                }
                None => {}
                Some(_) => panic!("another completion"),
            }
            if sent && received {
                break;
            }
        }
        assert!(sent && received, "round {round}");
        let number = retire(b);
        b = again(&number, options).unwrap();
        drop(number);
        assert_eq!(b.address().qpn, qpn);
        let other = device.create_queue_pair(options).unwrap();
        assert_ne!(other.address().qpn, qpn);
    }
}

#[test]
fn queue_pair_with_the_number_of_a_retired_one_exchanges_messages() {
    let directory = Directory::new();
    let options = ShmOptions::new("host").with(|o| o.directory = Some(directory.path().into()));
    let shm = ShmDevice::open(options).unwrap();
    let of = shm.clone();
    number_is_used_again(shm, ShmQueuePair::retire, |number, options| {
        of.create_queue_pair_again(number, options)
    });
    drop(of);
    let tcp = TcpDevice::open(TcpOptions::new([127, 0, 0, 1])).unwrap();
    let of = tcp.clone();
    let retire = |queue_pair: TcpQueuePair| queue_pair.retire().unwrap();
    number_is_used_again(tcp, retire, |number, options| {
        of.create_queue_pair_again(number, options)
    });
}

#[test]
fn number_of_another_link_is_refused() {
    let directory = Directory::new();
    let options = ShmOptions::new("host").with(|o| o.directory = Some(directory.path().into()));
    let shm = ShmDevice::open(options).unwrap();
    let tcp = TcpDevice::open(TcpOptions::new([127, 0, 0, 1])).unwrap();
    let number = shm.create_queue_pair(QueuePairOptions::default()).unwrap().retire();
    let refused = tcp.create_queue_pair_again(&number, QueuePairOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("it is of another link"), "{refused}");
    drop(number);
}

#[test]
fn device_tells_which_interfaces_it_certainly_does_not_reach() {
    let directories = [Directory::new(), Directory::new()];
    let shm_in = |directory: &Directory, name: &str| {
        let options = ShmOptions::new(name)
            .with(|options| options.directory = Some(directory.path().to_owned()));
        ShmDevice::open(options).unwrap()
    };
    let shm = |name: &str| shm_in(&directories[0], name);
    let gid = |address: &str| {
        let address: std::net::Ipv4Addr = address.parse().unwrap();
        Gid(address.to_ipv6_mapped().octets())
    };
    let (one, other, loopback) =
        (shm("one"), shm("other"), TcpDevice::open(TcpOptions::new([127, 0, 0, 1])).unwrap());
    assert!(one.reaches(shm("one").gid()) && !one.reaches(other.gid()));
    assert!(!one.reaches(shm_in(&directories[1], "one").gid()), "in another directory");
    assert!(!one.reaches(loopback.gid()) && !loopback.reaches(one.gid()));
    assert!(loopback.reaches(gid("127.0.0.2")));
    // An address that nobody has, and what hosts of a network have.
    assert!(!loopback.reaches(gid("192.0.2.1")));
    let six = Gid(std::net::Ipv6Addr::LOCALHOST.octets());
    assert!(!loopback.reaches(six), "::1 from 127.0.0.1");
    let local = LocalFabric::new(LocalOptions::default());
    assert!(local.open().reaches(local.open().gid()));
}
