//! Messages from a sender to the completion of a receive. Unless noted, each test runs with a tag list in
//! the device and without one, with the same results.

use efa_proto::tm::{Rvh, Tmh};
use efa_sim::tm::{
    Connection, Link, Memory, Packet, Position, RcEnd, RcEvent, ReceiveError, Received, Region,
    SendError, SgeList, TmInfo, TmSender,
};

use crate::net::{self, BUFFER, CAPS, MTU, Net, header};

/// Two nets: with a device list of 4 entries, and with all matching in software.
fn nets(senders: usize) -> [Net; 2] {
    [4, 0].map(|max_num_tags| Net::new(senders, net::options(max_num_tags), 1))
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7) as u8).collect()
}

/// The context of a completed receive and its bytes.
fn data(received: &Received) -> (u64, Vec<u8>) {
    let (_, len) = received.result.unwrap();
    (received.context, received.buffer.gather(len))
}

fn rendezvous(net: &mut Net, tag: u64, bytes: &[u8], metadata: &[u8]) -> Region {
    let region = net.senders[0].register(bytes.to_vec());
    net.senders[0].rendezvous(header(tag), region, metadata).unwrap();
    region
}

fn info(tag: u64) -> TmInfo {
    TmInfo { tag, app_ctx: header(tag).app_ctx }
}

// conformance: B8 B17 B21 B76
#[test]
fn eager_messages_of_any_length_are_received_expected_or_unexpected() {
    for mut net in nets(1) {
        for len in [0, 1, 48, 49, 400] {
            net.post(1, 7, BUFFER);
            net.eager(0, 7, &payload(len));
            net.eager(0, 7, &payload(len));
            net.settle();
            net.post(2, 7, BUFFER);
            let completed = net.completed();
            assert_eq!(
                completed.iter().map(data).collect::<Vec<_>>(),
                [(1, payload(len)), (2, payload(len))]
            );
            assert_eq!(completed[0].result, Ok((info(7), len)));
        }
    }
}

// conformance: B9 B17 B22 B30
#[test]
fn rendezvous_is_done_after_the_receiver_has_read_it() {
    for mut net in nets(1) {
        for (expected, metadata) in
            [(true, &b""[..]), (true, b"meta"), (false, b""), (false, b"meta")]
        {
            if expected {
                net.post(1, 7, BUFFER);
                net.settle();
            }
            let region = rendezvous(&mut net, 7, &payload(300), metadata);
            if !expected {
                net.settle();
                // The region is in use: the receiver may still read it.
                let busy = Err(SendError::InUse { rkey: region.rkey });
                assert_eq!(net.senders[0].deregister(region.rkey), busy);
                assert_eq!(
                    (net.senders[0].poll_done(), net.senders[0].outstanding_len()),
                    (None, 1)
                );
                net.post(1, 7, BUFFER);
            }
            assert_eq!(net.completed().iter().map(data).collect::<Vec<_>>(), [(1, payload(300))]);
            assert!(net.senders[0].poll_done().is_some());
            assert_eq!(net.senders[0].deregister(region.rkey), Ok(Some(payload(300))));
        }
    }
}

// conformance: B12 B24 B25 B31
#[test]
fn fin_of_device_and_of_software_are_equal() {
    let fins: Vec<Vec<Packet>> = nets(1)
        .map(|mut net| {
            net.post(1, 7, BUFFER);
            net.settle();
            rendezvous(&mut net, 7, &payload(300), b"meta");
            net.settle();
            let link =
                if net.receiver.offload().handled() == 0 { Link::Matching } else { Link::Software };
            let back =
                net.trace.iter().filter(|(to_receiver, used, _)| !to_receiver && *used == link);
            back.map(|(_, _, packet)| packet.clone()).collect()
        })
        .into();
    assert!(matches!(fins[0][..], [Packet::ReadRequest { .. }, Packet::Send(Position::Only, _)]));
    assert_eq!(fins[0], fins[1]);
}

// conformance: B23
#[test]
fn rendezvous_metadata_is_delivered_only_if_unexpected() {
    let mut net = Net::new(1, net::options(4), 1);
    net.post(1, 7, BUFFER);
    net.settle();
    rendezvous(&mut net, 7, &payload(300), b"metadata");
    assert_eq!(net.completed().iter().map(data).collect::<Vec<_>>(), [(1, payload(300))]);
    assert_eq!(net.receiver.unexpected_metadata().count(), 0);
    rendezvous(&mut net, 8, &payload(300), b"metadata");
    net.settle();
    assert_eq!(net.receiver.unexpected_metadata().collect::<Vec<_>>(), [b"metadata"]);
}

// conformance: B10 B16
#[test]
fn sender_sends_the_same_packets_with_and_without_device_matching() {
    let send = |sender: &mut TmSender| {
        sender.eager(header(7), &payload(100));
        let region = sender.register(payload(90));
        sender.rendezvous(header(8), region, b"").unwrap();
        sender.no_tag(b"hello");
    };
    let sent = nets(1).map(|mut net| {
        net.post(1, 7, BUFFER);
        net.post(2, 8, BUFFER);
        net.settle();
        send(&mut net.senders[0]);
        net.settle();
        let sent = net.trace.iter().filter(|traced| matches!(traced, (true, _, Packet::Send(..))));
        sent.map(|(_, link, packet)| (*link, packet.clone())).collect::<Vec<_>>()
    });
    assert_eq!(sent[0], sent[1]);
    // An RC endpoint without tag matching receives the same packets.
    let (mut sender, mut plain) = (TmSender::new(MTU, CAPS.max_rndv_hdr_size), RcEnd::new(MTU));
    send(&mut sender);
    let mut packets = Vec::new();
    while let Some(packet) = sender.poll_transmit(Link::Matching) {
        packets.push((Link::Matching, packet.clone()));
        plain.receive(packet, &Memory::default());
    }
    assert_eq!(packets, sent[0]);
    let messages: Vec<_> = std::iter::from_fn(|| plain.poll_event()).collect();
    assert_eq!((messages.len(), &messages[2]), (3, &RcEvent::Message(b"\0hello".to_vec())));
}

// conformance: B27 B41
#[test]
fn rendezvous_request_beyond_max_rndv_hdr_size_is_refused() {
    let mut sender = TmSender::new(MTU, 40);
    let region = sender.register(payload(10));
    assert!(sender.rendezvous(header(1), region, &[0; 8]).is_ok());
    let refused = sender.rendezvous(header(1), region, &[0; 9]);
    assert_eq!(refused, Err(SendError::Request { len: 41, limit: 40 }));
    assert_eq!(sender.outstanding_len(), 1);
}

// conformance: B28 B29
#[test]
fn rendezvous_needs_registered_memory_below_4_gib() {
    let mut sender = TmSender::new(MTU, 64);
    let region = sender.register(payload(10));
    let mut send = |region| sender.rendezvous(header(1), region, b"").unwrap_err();
    let too_long = Region { len: 1 << 32, ..region };
    assert_eq!(send(too_long), SendError::Payload { len: 1 << 32 });
    // u32::MAX fits the length field but exceeds the region; the others miss the region by one.
    for (len, rkey, va) in [
        (u32::MAX, region.rkey, region.va),
        (11, region.rkey, region.va),
        (10, region.rkey, region.va + 1),
        (10, region.rkey, region.va - 1),
        (10, region.rkey + 1, region.va),
    ] {
        let error = send(Region { va, rkey, len: len.into() });
        assert_eq!(error, SendError::Unregistered { va, rkey, len });
    }
}

// conformance: B24
#[test]
fn fin_without_rvh_completes_an_unambiguous_rendezvous_only() {
    let mut sender = TmSender::new(MTU, 64);
    let region = sender.register(payload(10));
    let ids = [7, 8, 8].map(|tag| sender.rendezvous(header(tag), region, b"").unwrap());
    let mut fin = |header: Tmh, rendezvous: Option<Rvh>| {
        let mut bytes = [0; 32];
        let len = match rendezvous {
            Some(rendezvous) => header.emit_fin(&rendezvous, &mut bytes),
            None => header.emit_short_fin(&mut bytes),
        };
        let packet = Packet::Send(Position::Only, bytes[..len.unwrap()].to_vec());
        sender.receive(Link::Software, packet);
        (sender.poll_done(), sender.stray())
    };
    assert_eq!(fin(header(8), None), (None, 1), "two rendezvous have this tag");
    assert_eq!(fin(header(7), None), (Some(ids[0]), 1));
    assert_eq!(fin(header(7), None), (None, 2), "already completed");
    let rvh = Rvh { va: region.va, rkey: region.rkey, len: 10 };
    assert_eq!(fin(header(8), Some(Rvh { len: 11, ..rvh })), (None, 3));
    assert_eq!(fin(header(8), Some(rvh)), (Some(ids[1]), 3));
    assert_eq!(fin(header(8), None), (Some(ids[2]), 3));
}

// conformance: B73 B74
#[test]
fn rendezvous_longer_than_its_receive_fails_and_completes_the_send() {
    for mut net in nets(1) {
        for available in [8, 40] {
            net.post(1, 7, available);
            net.settle();
            let region = rendezvous(&mut net, 7, &payload(300), b"");
            let completed = net.completed();
            // With 8 bytes available, the device can't store the header that has the length.
            let unknown = available == 8 && net.receiver.offload().handled() == 0;
            let len = (!unknown).then_some(300);
            assert_eq!(completed[0].result, Err(ReceiveError::Truncated { len, available }));
            assert!(net.senders[0].poll_done().is_some(), "{available}");
            assert!(net.senders[0].deregister(region.rkey).is_ok());
        }
    }
}

// conformance: B75
#[test]
fn eager_message_longer_than_its_receive_is_truncated_with_its_length() {
    for mut net in nets(1) {
        for len in [30, 300] {
            net.post(1, 7, 20);
            net.settle();
            net.eager(0, 7, &payload(len));
            let completed = net.completed();
            let truncated = ReceiveError::Truncated { len: Some(len), available: 20 };
            assert_eq!(completed[0].result, Err(truncated));
            assert_eq!(completed[0].buffer.gather(BUFFER), payload(len)[..20]);
        }
    }
}

// conformance: B7
#[test]
fn unexpected_messages_use_no_memory_beyond_the_srq_buffers() {
    for mut net in nets(2) {
        let flood: Vec<u64> = (0..200).collect();
        for &tag in &flood {
            net.eager(tag as usize % 2, tag, &payload(40));
        }
        net.settle();
        assert_eq!(net.receiver.offload().unexpected_len(), 32);
        assert!(net.not_ready > 0);
        // Refused messages are retried, not lost: each matches its receive.
        for &tag in &flood {
            net.post(tag, tag, BUFFER);
            net.settle();
        }
        let completed = net.completed();
        assert_eq!(
            completed.iter().map(data).collect::<Vec<_>>(),
            flood.iter().map(|&tag| (tag, payload(40))).collect::<Vec<_>>()
        );
    }
    // An unexpected rendezvous holds only its request, not its payload.
    let mut net = Net::new(1, net::options(4), 1);
    rendezvous(&mut net, 7, &payload(100_000), b"");
    net.settle();
    let held: usize = net
        .trace
        .iter()
        .map(|(_, _, packet)| match packet {
            Packet::Send(_, bytes) => bytes.len(),
            other => panic!("{other:?}"),
        })
        .sum();
    assert_eq!(held, 32);
}

// conformance: B11 B13
#[test]
fn device_matches_the_first_receives_and_software_the_rest() {
    let mut net = Net::new(1, net::options(4), 1);
    let posts: Vec<_> = (0..10).map(|tag| net.post(tag, tag, BUFFER).unwrap()).collect();
    net.settle();
    assert_eq!((net.receiver.srq().list().len(), net.receiver.offload().posted_len()), (4, 10));
    // The last receive is matched in software, the first on the device.
    net.eager(0, 9, b"nine");
    net.eager(0, 0, b"zero");
    let completed = net.completed();
    assert_eq!(
        completed.iter().map(data).collect::<Vec<_>>(),
        [(9, b"nine".to_vec()), (0, b"zero".to_vec())]
    );
    assert_eq!(net.receiver.offload().handled(), 1);
    let locations: Vec<_> =
        posts.iter().map(|&post| net.receiver.offload().location(post)).collect();
    use efa_match::Location::{Device, Software};
    let expected = [Device, Device, Device, Device, Software, Software, Software, Software];
    assert_eq!(locations[1..9], expected.map(Some));
    assert_eq!((locations[0], locations[9]), (None, None));
}

// conformance: B64
#[test]
fn receive_for_an_unexpected_message_is_not_added_to_the_device() {
    let mut net = Net::new(1, net::options(4), 1);
    net.eager(0, 7, b"unexpected");
    net.settle();
    assert_eq!(net.post(1, 7, BUFFER), None);
    assert_eq!(net.receiver.srq().ops_len(), 0);
    assert_eq!(net.completed().iter().map(data).collect::<Vec<_>>(), [(1, b"unexpected".to_vec())]);
}

/// m1 arrives, b1 is posted before software has polled m1's completion, then m2 arrives.
// conformance: B58 B60 B65
#[test]
fn receive_posted_between_two_messages_gets_the_first() {
    let mut net = Net::new(1, net::options(4), 1);
    net.eager(0, 7, b"m1");
    net.eager(0, 7, b"m2");
    let arrive = |net: &mut Net| {
        let packet = net.senders[0].poll_transmit(Link::Matching).unwrap();
        net.receiver.receive(Connection(0), Link::Matching, packet).unwrap();
    };
    arrive(&mut net);
    net.post(1, 7, BUFFER);
    assert!(net.receiver.carry_out(), "the add of b1 is carried out");
    assert_eq!((net.receiver.srq().list().len(), net.receiver.srq().list().live_len()), (1, 0));
    arrive(&mut net);
    net.post(2, 7, BUFFER);
    assert_eq!(
        net.completed().iter().map(data).collect::<Vec<_>>(),
        [(1, b"m1".to_vec()), (2, b"m2".to_vec())]
    );
}

// conformance: B62
#[test]
fn sync_is_sent_only_after_unexpected_messages() {
    let mut net = Net::new(1, net::options(16), 1);
    for round in 0..200 {
        net.post(round, 7, BUFFER);
        net.settle();
        net.eager(0, 7, b"expected");
        net.settle();
    }
    assert_eq!(net.receiver.syncs(), 0);
    // The unexpected message may hold back the entry of this receive until a sync.
    net.eager(0, 9, b"unexpected");
    net.post(1, 7, BUFFER);
    net.settle();
    assert!(net.receiver.syncs() <= 1);
    assert_eq!(net.receiver.srq().list().live_len(), 1);
}

// conformance: B51 B76
#[test]
fn receive_completes_once_whether_cancelled_or_matched() {
    for seed in 0..200 {
        let mut net = Net::new(1, net::options(2), seed);
        let posts: Vec<_> = (0..3).map(|context| net.post(context, 7, BUFFER).unwrap()).collect();
        net.eager(0, 7, &payload(200));
        net.eager(0, 7, &payload(20));
        for _ in 0..seed % 40 {
            net.step();
        }
        posts.iter().for_each(|&post| net.receiver.cancel(post));
        let completed = net.completed();
        let mut contexts: Vec<_> = completed.iter().map(|received| received.context).collect();
        contexts.sort_unstable();
        assert_eq!(contexts, [0, 1, 2], "seed {seed}");
        assert!(
            completed.iter().all(|received| received.buffer.len() == BUFFER),
            "all buffers are returned"
        );
        let mut got: Vec<_> =
            completed.iter().filter(|received| received.result.is_ok()).map(data).collect();
        assert_eq!(got.len() + net.receiver.offload().unexpected_len(), 2, "seed {seed}");
        assert!(
            completed.iter().all(|received| received.result.is_ok()
                || received.result == Err(ReceiveError::Cancelled))
        );
        got.sort_by_key(|(context, _)| *context);
        let lens: Vec<_> = got.iter().map(|(_, bytes)| bytes.len()).collect();
        assert_eq!(lens, [200, 20][..lens.len()], "seed {seed}: the first message comes first");
    }
}

#[test]
fn receive_with_too_many_sges_stays_in_software_in_order() {
    let mut net = Net::new(1, net::options(4), 1);
    let pieces = SgeList((0..3).map(|_| vec![0; 2].into()).collect());
    net.receiver.post(1, 7, 0, pieces).unwrap();
    net.post(2, 7, BUFFER);
    net.settle();
    assert_eq!(net.receiver.srq().list().len(), 0, "later receives stay in software too");
    net.eager(0, 7, b"first");
    net.eager(0, 7, b"second");
    let completed = net.completed();
    assert_eq!(
        completed.iter().map(data).collect::<Vec<_>>(),
        [(1, b"first".to_vec()), (2, b"second".to_vec())]
    );
    assert_eq!(completed[0].buffer.0[1][..], b"rs"[..]);
}

// conformance: B26
#[test]
fn no_tag_messages_bypass_matching() {
    for mut net in nets(1) {
        net.receiver.post(1, 0, u64::MAX, SgeList::zeroed(8)).unwrap();
        net.settle();
        net.senders[0].no_tag(b"control");
        net.settle();
        assert_eq!(net.receiver.poll_no_tag(), Some((Connection(0), b"\0control".to_vec())));
        net.eager(0, 5, b"tagged");
        assert_eq!(net.completed().iter().map(data).collect::<Vec<_>>(), [(1, b"tagged".to_vec())]);
    }
}

#[test]
fn no_tag_message_beyond_the_buffer_is_counted_as_malformed_and_the_next_arrives() {
    for mut net in nets(1) {
        net.senders[0].no_tag(&[1; 1 << 16]);
        net.senders[0].no_tag(b"control");
        net.settle();
        assert_eq!(net.receiver.poll_no_tag(), Some((Connection(0), b"\0control".to_vec())));
        assert_eq!((net.receiver.poll_no_tag(), net.receiver.malformed()), (None, 1));
    }
}
