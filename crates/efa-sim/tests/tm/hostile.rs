//! Invalid packets never panic, and device and software keep equal counts of unexpected messages.

use efa_sim::tm::{Connection, Link, Packet, Position, SgeList};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::net::{self, BUFFER, MTU, Net};

const ONE: Connection = Connection(0);

fn packet() -> impl Strategy<Value = Packet> {
    let position = prop_oneof![
        4 => Just(Position::Only),
        1 => Just(Position::First),
        1 => Just(Position::Middle),
        1 => Just(Position::Last),
    ];
    // Mostly valid opcodes, and tags that often match.
    let byte = prop_oneof![3 => 0..6_u8, 1 => any::<u8>()];
    let message = vec(byte, 0..MTU);
    prop_oneof![
        8 => (position, message.clone()).prop_map(|(position, bytes)| Packet::Send(position, bytes)),
        1 => (0..3_u32, message).prop_map(|(read, bytes)| Packet::ReadResponse { read, bytes }),
        1 => (0..3_u32).prop_map(|read| Packet::ReadRefused { read }),
        1 => (0..3_u32, any::<u64>(), any::<u32>(), any::<u32>())
            .prop_map(|(read, va, rkey, len)| Packet::ReadRequest { read, va, rkey, len }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1024, ..ProptestConfig::default() })]

    // conformance: B20 B32
    #[test]
    fn any_packets_are_handled_and_counted_alike(packets in vec((packet(), any::<bool>()), 0..30), len in 0..BUFFER) {
        let mut net = Net::new(1, net::options(4), 1);
        for context in 0..6 {
            // The mask ignores all tag bits.
            net.receiver.post(context, 0, u64::MAX, SgeList::zeroed(len)).unwrap();
        }
        net.settle();
        for (packet, software) in packets {
            let link = if software { Link::Software } else { Link::Matching };
            if net.receiver.receive(ONE, link, packet).is_err() {
                break;
            }
            net.settle();
        }
        // An incomplete message is reported when the next one starts.
        let next = Packet::Send(Position::Only, vec![0]);
        if net.receiver.receive(ONE, Link::Matching, next).is_ok() {
            net.settle();
            let list = net.receiver.srq().list();
            prop_assert_eq!(net.receiver.offload().handled(), list.unexpected());
            prop_assert_eq!(list.live_len(), list.len(), "all entries are live again");
        }
        while let Some(received) = net.receiver.poll() {
            prop_assert_eq!(received.buffer.len(), len);
        }
    }
}

// conformance: B20 B32
#[test]
fn invalid_message_is_rejected_and_its_buffer_reposted() {
    let mut net = Net::new(1, net::options(4), 1);
    net.receiver.post(1, 0, u64::MAX, SgeList::zeroed(BUFFER)).unwrap();
    net.settle();
    let short: Vec<Vec<u8>> =
        vec![vec![], vec![3; 15], vec![1; 31], vec![2; 15], vec![4; 64], vec![255]];
    for (n, bytes) in short.into_iter().enumerate() {
        net.receiver.receive(ONE, Link::Matching, Packet::Send(Position::Only, bytes)).unwrap();
        net.settle();
        assert_eq!(
            (net.receiver.malformed(), net.receiver.srq().buffers_len()),
            (n as u64 + 1, 32)
        );
    }
    net.eager(0, 5, b"valid");
    assert_eq!(net.completed()[0].context, 1);
}
