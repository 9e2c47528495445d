//! The memory that a peer makes an endpoint keep is bounded: the heap is measured during floods of packets.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::time::Duration;

use efa_counted_heap::live_bytes;
use efa_device::{
    Access, Completion as Done, Device, Qkey, QueuePair, QueuePairOptions, Region, Time,
};
use efa_proto::{
    Connid, Header, MsgId, OpId, PeerError, RawAddress, RawAddressForm, ReqOptions, RmaIov, Rta,
    RtaKind, Rtm, RtmKind, Rtr, RtrKind, Rtw, RtwKind,
};
use efa_rdm::{
    Accept, AtomicOp, Bounds, Completion, Config, Datatype, DropReason, Endpoint, Event, Excess,
    Level, Message, Origin, PeerId,
};

use efa_sim::SoftRegion;
use efa_sim::local::{LocalFabric, LocalOptions, LocalQueuePair, Reorder};

/// Key of the hostile queue pair, which is also its true connid.
const KEY: u32 = 1000;

/// An endpoint, and a hostile peer that sends to it.
struct Siege {
    network: LocalFabric,
    endpoint: Endpoint<LocalQueuePair, Vec<u8>>,
    flooder: LocalQueuePair,
    connid: u32,
    now: Time,
    before: i64,
    /// Without repetitions.
    events: Vec<Event>,
}

impl Siege {
    fn new(bounds: Bounds) -> Self {
        let options = LocalOptions::default().with(|options| options.reorder = Reorder::None);
        let network = LocalFabric::new(options);
        let queue_pair = |key| {
            let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(key));
            network.open().create_queue_pair(options).unwrap()
        };
        let mut flooder = queue_pair(KEY);
        // Responses of the endpoint are received.
        for _ in 0..64 {
            let packet = flooder.allocate_packet().unwrap();
            flooder.post_receive(packet).unwrap();
        }
        let config = Config::default().with(|config| {
            config.bounds = bounds;
            config.max_receive_buffers = 64;
        });
        let endpoint = Endpoint::new(queue_pair(2), config).unwrap();
        let (now, before) = (Time::ZERO, live_bytes());
        Self { network, endpoint, flooder, connid: KEY, now, before, events: Vec::new() }
    }

    /// Growth of the heap since the start, in bytes.
    fn grown(&self) -> usize {
        usize::try_from(live_bytes() - self.before).unwrap_or(0)
    }

    fn address(&self) -> RawAddress {
        let address = self.flooder.address();
        RawAddress { gid: address.gid.0, qpn: address.qpn.0, connid: Connid(self.connid) }
    }

    fn options(&self) -> ReqOptions {
        let raw_address = Some((self.address(), RawAddressForm::Padded));
        ReqOptions { raw_address, cq_data: None, connid: None }
    }

    /// A region that the peer may read and write, and all of it as its requests name it.
    fn region(&self, length: usize) -> (SoftRegion, [RmaIov; 1]) {
        let access = Access { remote_read: true, remote_write: true };
        let memory = vec![7; length].into();
        let region = self.endpoint.queue_pair().register(memory, access).unwrap();
        let key = region.remote_key().into();
        let rma_iov = [RmaIov::new(region.remote_address(), length as u64, key)];
        (region, rma_iov)
    }

    fn message(&self, msg_id: u32, kind: RtmKind<'static>) -> Header<'static> {
        Header::Rtm(Rtm { msg_id: MsgId(msg_id), tag: None, kind, options: self.options() })
    }

    fn say(&mut self, header: Header<'_>, payload: usize) {
        let mut bytes = vec![0; header.len() + payload];
        header.emit(&mut bytes).unwrap();
        let (from, to) = (self.flooder.address(), self.endpoint.queue_pair().address());
        self.network.inject(from, to, &bytes);
        self.step();
    }

    fn step(&mut self) {
        self.now += Duration::from_micros(100);
        self.endpoint.progress(self.now);
        while let Some(done) = self.flooder.poll(self.now) {
            if let Done::Receive { packet, .. } = done {
                self.flooder.post_receive(packet).unwrap();
            }
        }
        while let Some(event) = self.endpoint.poll_event() {
            let news = self.events.last() != Some(&event);
            if news && !matches!(event, Event::PeerDiscovered(_) | Event::PeerRestarted { .. }) {
                self.events.push(event);
            }
        }
    }
}

const MIB: usize = 1 << 20;

#[test]
fn unexpected_messages_of_a_peer_are_bounded_by_its_share() {
    for payload in [0, 8, 1000, 8000] {
        let share = 4 * MIB;
        let bounds = Bounds::default().with(|bounds| bounds.unexpected_per_peer = share);
        let mut siege = Siege::new(bounds);
        let mut most = 0;
        for msg_id in 0..100_000 {
            siege.say(siege.message(msg_id, RtmKind::Eager), payload);
            most = most.max(siege.grown());
            if siege.endpoint.statistics().excluded > 0 {
                break;
            }
        }
        let [Event::PeerExcluded { excess: Excess::Unexpected { bytes, limit }, .. }] =
            siege.events[..]
        else {
            panic!("{:?}", siege.events)
        };
        assert!(bytes > share && limit == share);
        assert!(most <= share + 2 * MIB, "{payload}: {most} bytes for a share of {share}");
        assert_eq!(siege.endpoint.packets_held().held, 0, "none of its packets is kept");
        // The peer stays excluded.
        siege.say(siege.message(7, RtmKind::Eager), 8);
        let dropped = siege.events.last();
        let reason = DropReason::Stale;
        assert!(
            matches!(dropped, Some(Event::PacketDropped { reason: of, .. }) if *of == reason),
            "{dropped:?}"
        );
    }
}

/// Sends as many messages as the endpoint accepts, up to `end`; returns the number of the next.
fn send_some(
    sender: &mut Endpoint<LocalQueuePair, Vec<u8>>,
    peer: PeerId,
    next: u64,
    end: u64,
) -> u64 {
    for number in next..end {
        let (cq_data, level, buffer) = (Some(number), Level::Transmit, vec![7; 1000]);
        let message = Message { peer, tag: None, cq_data, level, buffer, context: number };
        if sender.send(message).is_err() {
            return number;
        }
    }
    end
}

#[test]
fn unexpected_messages_beyond_the_total_bound_delay_senders() {
    const MESSAGES: u64 = 10_000;
    let bounds = Bounds::default().with(|bounds| {
        bounds.unexpected = 4 * MIB;
        // Nothing that is received lacks packets.
        bounds.behind = 64 * MIB;
    });
    let mut siege = Siege::new(bounds);
    let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(3));
    let queue_pair = siege.network.open().create_queue_pair(options).unwrap();
    let mut sender = Endpoint::new(queue_pair, Config::default()).unwrap();
    let peer = sender.insert_peer(siege.endpoint.address()).unwrap();
    let (mut sent, mut kept) = (0, 0);
    for _ in 0..20_000 {
        sent = send_some(&mut sender, peer, sent, MESSAGES);
        sender.progress(siege.now);
        while sender.poll_completion().is_some() {}
        siege.step();
        kept = kept.max(siege.endpoint.packets_held().unexpected_bytes);
    }
    let [Event::BackPressure { limit, most: Some(_), .. }] = siege.events[..] else {
        panic!("{:?}", siege.events)
    };
    assert_eq!(limit, 4 * MIB);
    // All buffers that were posted when the bound was met may have been filled.
    assert!(kept <= 4 * MIB + 64 * (16_384 + 256), "{kept}");
    assert_eq!(siege.endpoint.packets_held().posted, 0, "the device has no buffer to fill");
    assert!(sender.statistics().receiver_not_ready > 0);

    let mut received = 0;
    for _ in 0..2 * MESSAGES {
        sent = send_some(&mut sender, peer, sent, MESSAGES);
        if received < MESSAGES {
            siege.endpoint.receive(Accept::Untagged { source: None }, vec![0; 1000], 0).unwrap();
        }
        sender.progress(siege.now);
        siege.step();
        while let Some(Completion::Receive(message)) = siege.endpoint.poll_completion() {
            assert_eq!((message.result, message.cq_data), (Ok(()), Some(received)));
            received += 1;
        }
        while sender.poll_completion().is_some() {}
    }
    assert_eq!(received, MESSAGES, "all arrive in order");
    assert_eq!(siege.endpoint.packets_held().unexpected_bytes, 0);
    assert_eq!(siege.endpoint.statistics().dropped, 0);
}

#[test]
fn message_behind_the_total_bound_arrives_after_others_were_discarded_or_without_the_bound() {
    for bound in [MIB, usize::MAX] {
        let bounds = Bounds::default().with(|bounds| bounds.unexpected = bound);
        let mut siege = Siege::new(bounds);
        let mut senders = [3, 4].map(|qkey| {
            let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(qkey));
            let queue_pair = siege.network.open().create_queue_pair(options).unwrap();
            Endpoint::new(queue_pair, Config::default()).unwrap()
        });
        let [to, peer] =
            senders.each_mut().map(|of| of.insert_peer(siege.endpoint.address()).unwrap());
        let awaited = Accept::Tagged { source: None, tag: 5, ignore: 0 };
        siege.endpoint.receive(awaited, vec![0; 1000], 1).unwrap();
        let step = |siege: &mut Siege, senders: &mut [Endpoint<LocalQueuePair, Vec<u8>>; 2]| {
            for sender in senders {
                sender.progress(siege.now);
                while sender.poll_completion().is_some() {}
            }
            siege.step();
            siege.endpoint.poll_completion()
        };
        send_some(&mut senders[0], to, 0, 3000);
        (0..2000).for_each(|_| assert!(step(&mut siege, &mut senders).is_none()));
        let (cq_data, level, buffer) = (None, Level::Transmit, vec![5; 1000]);
        let message = Message { peer, tag: Some(5), cq_data, level, buffer, context: 0 };
        senders[1].send(message).unwrap();
        let arrived = (0..2000).find_map(|_| step(&mut siege, &mut senders));
        assert_eq!(arrived.is_none(), bound == MIB, "{arrived:?}");
        if arrived.is_none() {
            assert!(matches!(siege.events[..], [Event::BackPressure { .. }]), "{:?}", siege.events);
            let any = Accept::Untagged { source: None };
            let arrived = (0..20_000).find_map(|_| {
                if let Some((claim, _)) = siege.endpoint.claim(any).unwrap() {
                    assert!(siege.endpoint.discard(claim));
                }
                step(&mut siege, &mut senders)
            });
            let Some(Completion::Receive(done)) = arrived else { panic!("{arrived:?}") };
            assert_eq!((done.context, done.result, done.buffer), (1, Ok(()), vec![5; 1000]));
        }
    }
}

#[test]
fn out_of_order_packets_of_a_peer_are_bounded_by_its_share() {
    let bounds = Bounds::default().with(|bounds| bounds.ahead = 4 * MIB);
    let mut siege = Siege::new(bounds);
    let mut most = 0;
    for number in 0..60_000 {
        // Packets of one message, or of as many as are kept, but never the expected one.
        let msg_id = if number < 1000 { 1 } else { 1 + number % 60_000 };
        siege.say(siege.message(msg_id, RtmKind::Eager), 500);
        most = most.max(siege.grown());
        if siege.endpoint.statistics().excluded > 0 {
            break;
        }
    }
    let event = siege.events.pop();
    let early = matches!(event, Some(Event::PeerExcluded { excess: Excess::Ahead { .. }, .. }));
    assert!(early, "{event:?}");
    assert!(most <= 7 * MIB, "{most}");
    assert_eq!(siege.endpoint.packets_held().held, 0);
}

#[test]
fn unexpected_message_keeps_no_more_bytes_than_its_length() {
    let mut siege = Siege::new(Bounds::default());
    let kind = RtmKind::Medium { msg_length: 3000, seg_offset: 0 };
    for _ in 0..10_000 {
        siege.say(siege.message(0, kind), 1000);
    }
    assert_eq!(siege.endpoint.packets_held().held, 3);
    assert_eq!(siege.endpoint.statistics().dropped, 9_997);
    assert!(siege.grown() < MIB, "{}", siege.grown());
    let dropped = siege.events.last();
    assert!(matches!(
        dropped,
        Some(Event::PacketDropped { origin: Origin::Peer(_), reason: DropReason::RepeatedSegment })
    ));
}

#[test]
fn discovered_peers_are_bounded() {
    let bounds = Bounds::default().with(|bounds| bounds.discovered = KEY as usize);
    let mut siege = Siege::new(bounds);
    for connid in 1..50_000 {
        siege.connid = connid;
        siege.say(siege.message(0, RtmKind::Eager), 0);
    }
    // One message and the table entries of each discovered peer.
    assert!(siege.grown() < 2 * MIB, "{}", siege.grown());
    let [Event::PacketDropped { origin, reason: DropReason::PeerTableFull }] = siege.events[..]
    else {
        panic!("{:?}", siege.events);
    };
    let flooder = siege.flooder.address();
    assert_eq!(origin, Origin::Unknown { gid: Some(flooder.gid), qpn: flooder.qpn });
    assert_eq!(siege.endpoint.statistics().dropped, 49_999 - u64::from(KEY));
    // A discovered peer can still send, and the application may insert any number of peers.
    siege.events.clear();
    siege.connid = KEY;
    siege.say(siege.message(1, RtmKind::Eager), 0);
    assert_eq!(siege.events, []);
    let address = RawAddress { gid: [9; 16], qpn: 9, connid: Connid(9) };
    siege.endpoint.insert_peer(address).unwrap();
}

#[test]
fn queued_responses_of_one_peer_are_bounded() {
    let bounds = Bounds::default().with(|bounds| bounds.responses = 100);
    let mut siege = Siege::new(bounds);
    // Its device receives no more packets.
    siege.network.drop_receive_buffers(siege.flooder.address(), 64).unwrap();
    for number in 0..10_000 {
        let kind = RtwKind::DcEager { send_id: OpId(number) };
        let rtw = Rtw { rma_iov: &[], kind, options: siege.options() };
        siege.say(Header::Rtw(rtw), 0);
        if siege.endpoint.statistics().excluded > 0 {
            break;
        }
    }
    let [Event::PeerExcluded { excess: Excess::Responses { limit: 100, .. }, .. }] =
        siege.events[..]
    else {
        panic!("{:?}", siege.events)
    };
}

#[test]
fn requests_of_a_peer_that_is_rnr_are_bounded() {
    let bounds = Bounds::default().with(|bounds| bounds.requests = 50);
    let mut siege = Siege::new(bounds);
    // The peer sends no CTS beyond the first bytes, and no data of its writes.
    let (region, rma_iov) = siege.region(1 << 16);
    let (msg_length, recv_id, credit_request) = (1 << 16, OpId(1), 1);
    for number in 0..5_000 {
        let options = siege.options();
        let header = if number % 2 == 0 {
            let (kind, recv_length) = (RtrKind::LongCts, 1);
            Header::Rtr(Rtr { rma_iov: &rma_iov, kind, msg_length, recv_id, recv_length, options })
        } else {
            let kind = RtwKind::LongCts { msg_length, send_id: OpId(1), credit_request };
            Header::Rtw(Rtw { rma_iov: &rma_iov, kind, options })
        };
        siege.say(header, 0);
    }
    assert_eq!(siege.endpoint.statistics().dropped, 5_000 - 50);
    let reason = DropReason::TooManyOperations;
    assert!(
        matches!(siege.events[..], [Event::PacketDropped { origin: Origin::Peer(_), reason: of }] if of == reason),
        "{:?}",
        siege.events
    );
    assert!(siege.grown() < MIB, "{}", siege.grown());
    // The requests end when the peer is removed.
    let peer = siege.endpoint.find_peer(&siege.address()).unwrap();
    siege.endpoint.remove_peer(peer);
    siege.step();
    assert_eq!(region.reclaim().map(|memory| memory.len()).ok(), Some(1 << 16));
}

#[test]
fn memory_of_undelivered_responses_is_released() {
    let mut siege = Siege::new(Bounds::default());
    let (_region, rma_iov) = siege.region(8000);
    siege.network.drop_receive_buffers(siege.flooder.address(), 64).unwrap();
    for number in 0..1_000 {
        let kind = RtaKind::Fetch { recv_id: OpId(number) };
        let (datatype, op) = (Datatype::Uint64.code(), AtomicOp::Read.code());
        let (msg_id, options) = (MsgId(number), siege.options());
        let rta = Rta { msg_id, rma_iov: &rma_iov, datatype, op, kind, options };
        siege.say(Header::Rta(rta), 0);
    }
    assert_eq!(siege.endpoint.statistics().remote_reads, 1_000);
    assert!(siege.grown() > 7 * MIB, "the values are kept: {}", siege.grown());
    let peer = siege.endpoint.find_peer(&siege.address()).unwrap();
    siege.endpoint.remove_peer(peer);
    for _ in 0..4 {
        siege.now += Config::default().trim_interval;
        siege.step();
    }
    assert!(siege.grown() < MIB, "{}", siege.grown());
}

/// The peer gives up messages of which its HANDSHAKE would tell how to refuse them.
#[test]
fn refusals_of_reads_that_wait_for_a_handshake_are_bounded() {
    let bounds = Bounds::default().with(|bounds| bounds.responses = 100);
    let mut siege = Siege::new(bounds);
    let mut ended = 0;
    for msg_id in 0..5_000 {
        let accept = Accept::Untagged { source: None };
        siege.endpoint.receive(accept, vec![0; 200], 0).unwrap();
        const IOV: &[RmaIov] = &[RmaIov::new(8, 200, 1)];
        let (msg_length, send_id, seg_offset, runt_length) = (200, OpId(1), 0, 100);
        let kind =
            RtmKind::RuntRead { msg_length, send_id, seg_offset, runt_length, read_iov: IOV };
        siege.say(siege.message(msg_id, kind), 8);
        // The read fails.
        (0..3).for_each(|_| siege.step());
        let connid = Some(siege.address().connid);
        let error = PeerError { op_id: OpId(msg_id), ref_kind: 1, prov_errno: 1, connid };
        siege.say(Header::PeerError(error), 0);
        ended += std::iter::from_fn(|| siege.endpoint.poll_completion()).count();
    }
    assert_eq!(ended, 5_000, "receives fail by the PEER_ERROR, or beyond the bound at once");
    assert!(siege.grown() < MIB / 8, "{} bytes", siege.grown());
}

/// The peer begins long messages and sends no more of them; the application discards each.
#[test]
fn discarded_messages_that_their_peer_does_not_finish_are_bounded() {
    let bounds = Bounds::default().with(|bounds| (bounds.requests, bounds.responses) = (50, 50));
    let mut siege = Siege::new(bounds);
    let accept = Accept::Untagged { source: None };
    let (msg_length, send_id, credit_request) = (10_000, OpId(1), 1);
    let kind = RtmKind::LongCts { msg_length, send_id, credit_request, read_nack: false };
    for msg_id in 0..20_000 {
        siege.say(siege.message(msg_id, kind), 8);
        let (claim, _) = siege.endpoint.claim(accept).unwrap().unwrap();
        assert!(siege.endpoint.discard(claim));
    }
    assert_eq!(siege.endpoint.statistics().dropped, 20_000 - 50);
    assert!(siege.grown() < MIB / 8, "{} bytes", siege.grown());
    // The application's own receives have their places.
    for context in 0..Config::default().max_receives as u64 {
        siege.endpoint.receive(accept, Vec::new(), context).unwrap();
    }
}

#[test]
fn requests_and_discarded_messages_of_a_peer_have_a_bound_each() {
    for discards_first in [false, true] {
        let bounds = Bounds::default().with(|bounds| bounds.requests = 50);
        let mut siege = Siege::new(bounds);
        let (_region, rma_iov) = siege.region(1 << 16);
        let (msg_length, send_id, credit_request) = (1 << 16, OpId(1), 1);
        for number in 0..100 {
            if (number < 50) == discards_first {
                let read_nack = false;
                let kind = RtmKind::LongCts { msg_length, send_id, credit_request, read_nack };
                siege.say(siege.message(number % 50, kind), 8);
                let accept = Accept::Untagged { source: None };
                let (claim, _) = siege.endpoint.claim(accept).unwrap().unwrap();
                assert!(siege.endpoint.discard(claim));
            } else {
                let kind = RtwKind::LongCts { msg_length, send_id, credit_request };
                let options = siege.options();
                siege.say(Header::Rtw(Rtw { rma_iov: &rma_iov, kind, options }), 0);
            }
        }
        assert_eq!(siege.endpoint.statistics().dropped, 0);
    }
}
