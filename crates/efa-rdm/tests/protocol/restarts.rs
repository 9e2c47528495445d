//! Unexpected messages of former incarnations: they can be received while there is room for them, and
//! are charged to their queue pair.

use std::time::Duration;

use efa_device::{Device, Qkey, Qpn, QueuePair, QueuePairAddress, QueuePairOptions, Time};
use efa_proto::{Connid, Header, MsgId, RawAddress, RawAddressForm, ReqOptions, Rtm, RtmKind};
use efa_rdm::{Accept, Bounds, Completion, Config, DropReason, Endpoint, Event, Excess, PeerId};
use efa_sim::local::{LocalDevice, LocalFabric, LocalOptions, LocalQueuePair, Reorder};

/// What an eager message of up to 64 B of packet is charged with.
const EACH: usize = 320;

/// The number of the queue pair that restarts.
const SENDER: Qpn = Qpn(77);

/// An endpoint, and a queue pair that sends packets as any incarnation.
struct Restarting {
    network: LocalFabric,
    endpoint: Endpoint<LocalQueuePair, Vec<u8>>,
    host: LocalDevice,
    sender: Option<LocalQueuePair>,
    now: Time,
    excluded: Vec<(PeerId, Excess)>,
    /// Message ids of dropped messages.
    dropped: Vec<u32>,
    refused: Vec<DropReason>,
    /// What back-pressure named.
    most: Option<PeerId>,
}

impl Restarting {
    fn new(bounds: Bounds) -> Self {
        let options = LocalOptions::default().with(|options| options.reorder = Reorder::None);
        let network = LocalFabric::new(options);
        let queue_pair = network.open().create_queue_pair(QueuePairOptions::default()).unwrap();
        let config = Config::default().with(|config| config.bounds = bounds);
        let endpoint = Endpoint::new(queue_pair, config).unwrap();
        let (now, excluded, dropped, refused) = (Time::ZERO, Vec::new(), Vec::new(), Vec::new());
        let (host, sender) = (network.open(), None);
        Self { network, endpoint, host, sender, now, excluded, dropped, refused, most: None }
    }

    fn address(&self, connid: u32) -> RawAddress {
        RawAddress { gid: self.host.gid().0, qpn: SENDER.0, connid: Connid(connid) }
    }

    /// The queue pair with this connid: a new one if the last had another.
    fn sender(&mut self, connid: u32) -> QueuePairAddress {
        if self.sender.as_ref().is_none_or(|sender| sender.address().qkey.0 != connid) {
            // Its HANDSHAKE arrives.
            (0..3).for_each(|_| self.step());
            self.sender = None;
            let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(connid));
            let mut sender = self.host.create_queue_pair_at(SENDER, options).unwrap();
            // For the HANDSHAKE.
            let packet = sender.allocate_packet().unwrap();
            sender.post_receive(packet).unwrap();
            self.sender = Some(sender);
        }
        self.sender.as_ref().unwrap().address()
    }

    /// A packet of an incarnation; an eager message has 4 bytes: connid and msg_id, 16 bits of each.
    fn say(&mut self, connid: u32, msg_id: u32, kind: RtmKind<'static>) {
        let from = self.sender(connid);
        let raw_address = Some((self.address(connid), RawAddressForm::Padded));
        let options = ReqOptions { raw_address, cq_data: None, connid: None };
        let header = Header::Rtm(Rtm { msg_id: MsgId(msg_id), tag: None, kind, options });
        let begin = header.len();
        let mut bytes = vec![0; begin + 4];
        header.emit(&mut bytes).unwrap();
        bytes[begin..begin + 2].copy_from_slice(&(connid as u16).to_le_bytes());
        bytes[begin + 2..].copy_from_slice(&(msg_id as u16).to_le_bytes());
        self.network.inject(from, self.endpoint.queue_pair().address(), &bytes);
        self.step();
    }

    fn eager(&mut self, connid: u32, messages: std::ops::Range<u32>) {
        for msg_id in messages {
            self.say(connid, msg_id, RtmKind::Eager);
        }
    }

    fn step(&mut self) {
        self.now += Duration::from_micros(100);
        self.endpoint.progress(self.now);
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::PeerExcluded { peer, excess } => self.excluded.push((peer, excess)),
                Event::LeftMessageDropped { msg_id, .. } => self.dropped.push(msg_id),
                Event::BackPressure { most, .. } => self.most = most,
                Event::PacketDropped { reason, .. } => self.refused.push(reason),
                _ => {}
            }
        }
    }

    /// Receives all messages; returns connid and msg_id of each.
    fn receive_all(&mut self) -> Vec<(u16, u16)> {
        let mut received = Vec::new();
        while self.endpoint.packets_held().unexpected_bytes > 0 {
            self.endpoint.receive(Accept::Untagged { source: None }, vec![0; 64], 0).unwrap();
            self.step();
            while let Some(done) = self.endpoint.poll_completion() {
                let Completion::Receive(done) = done else { panic!("{done:?}") };
                assert_eq!(done.result, Ok(()));
                let word = |at| u16::from_le_bytes([done.buffer[at], done.buffer[at + 1]]);
                received.push((word(0), word(2)));
            }
        }
        received
    }
}

fn share(messages: usize) -> Bounds {
    Bounds::default().with(|bounds| bounds.unexpected_per_peer = messages * EACH)
}

#[test]
fn messages_of_a_former_incarnation_are_received_in_order() {
    let mut world = Restarting::new(Bounds::default());
    world.eager(1, 0..10);
    world.eager(2, 0..5);
    world.eager(3, 0..1);
    let expected = (0..10).map(|id| (1, id)).chain((0..5).map(|id| (2, id))).chain([(3, 0)]);
    assert_eq!(world.receive_all(), expected.collect::<Vec<_>>());
    assert_eq!((world.dropped.len(), world.excluded.len()), (0, 0));
}

#[test]
fn oldest_messages_of_former_incarnations_are_dropped_at_the_bound() {
    let mut world = Restarting::new(share(12));
    world.eager(1, 0..6);
    world.eager(2, 0..6);
    assert_eq!(world.dropped, [0_u32; 0], "the bound isn't exceeded");
    world.eager(3, 0..1);
    assert_eq!(world.dropped, [0_u32; 0], "its first packet doesn't end the one before");
    world.eager(3, 1..8);
    assert_eq!(world.dropped, [0, 1, 2, 3, 4, 5, 0, 1]);
    assert_eq!(world.endpoint.statistics().left_dropped, 8);
    assert_eq!(world.endpoint.packets_held().unexpected_bytes, 12 * EACH);
    let expected: Vec<_> = (2..6).map(|id| (2, id)).chain((0..8).map(|id| (3, id))).collect();
    assert_eq!(world.receive_all(), expected);
    assert_eq!(world.excluded, []);
}

#[test]
fn restarted_peer_is_not_excluded_for_its_former_life() {
    let mut world = Restarting::new(share(100));
    for connid in 1..5 {
        world.eager(connid, 0..100);
    }
    assert_eq!(world.excluded, [], "each sent what the bound allows");
    assert_eq!(world.endpoint.statistics().left_dropped, 300);
    // One more message of the living one is too many.
    world.eager(4, 100..101);
    let peer = world.excluded.first().map(|(_, excess)| *excess);
    let (bytes, limit) = (101 * EACH, 100 * EACH);
    assert_eq!(peer, Some(Excess::Unexpected { bytes, limit }));
    assert_eq!(world.endpoint.packets_held().unexpected_bytes, 0);
}

#[test]
fn messages_that_a_peer_left_stay_without_a_successor() {
    let mut world = Restarting::new(share(10));
    world.eager(1, 0..10);
    let peer = world.endpoint.find_peer(&world.address(1)).unwrap();
    world.endpoint.remove_peer(peer);
    for _ in 0..100 {
        world.step();
    }
    assert_eq!(world.receive_all(), (0..10).map(|id| (1, id)).collect::<Vec<_>>());
    // Its successor begins with an empty charge.
    world.eager(2, 0..10);
    assert_eq!((world.dropped.len(), world.excluded.len()), (0, 0));
}

#[test]
fn charge_of_a_queue_pair_holds_across_a_restart_every_5000_messages() {
    let mut world = Restarting::new(share(6000));
    for connid in 1..20 {
        world.eager(connid, 0..5000);
        assert!(world.endpoint.packets_held().unexpected_bytes <= 6000 * EACH);
    }
    assert_eq!(world.endpoint.statistics().left_dropped, 19 * 5000 - 6000);
    assert_eq!(world.excluded, []);
    assert_eq!(world.receive_all().len(), 6000);
}

#[test]
fn restart_in_each_packet_keeps_the_bound_and_the_newest_messages() {
    let mut world = Restarting::new(share(1000));
    for connid in 1..=3000 {
        world.eager(connid, 0..1);
    }
    // The last one hasn't ended the one before yet, so both are charged.
    let expected: Vec<_> = (2000..=3000).map(|connid| (connid, 0)).collect();
    assert!(world.receive_all() == expected);
    assert_eq!(world.endpoint.statistics().left_dropped, 1999);
}

#[test]
fn messages_received_after_their_successor_ended_are_uncharged() {
    let mut world = Restarting::new(share(20));
    world.eager(1, 0..10);
    world.eager(2, 0..5);
    let peer = world.endpoint.find_peer(&world.address(2)).unwrap();
    world.endpoint.remove_peer(peer);
    assert_eq!(world.receive_all().len(), 15);
    world.eager(3, 0..20);
    assert_eq!((world.dropped.len(), world.excluded.len()), (0, 0));
    assert_eq!(world.receive_all().len(), 20);
}

#[test]
fn removed_incarnation_takes_its_incomplete_messages_alone() {
    let mut world = Restarting::new(share(12));
    world.eager(1, 0..4);
    // The first packet of a long message of which nothing else follows.
    let kind = RtmKind::Medium { msg_length: 64, seg_offset: 0 };
    for msg_id in 0..6 {
        world.say(2, msg_id, kind);
    }
    assert!(world.endpoint.packets_held().unexpected_bytes > 10 * EACH);
    let peer = world.endpoint.find_peer(&world.address(2)).unwrap();
    world.endpoint.remove_peer(peer);
    assert_eq!(world.endpoint.packets_held().unexpected_bytes, 4 * EACH, "incomplete ones");
    assert_eq!(world.receive_all(), (0..4).map(|id| (1, id)).collect::<Vec<_>>());
}

#[test]
fn incarnations_of_a_queue_pair_are_bounded() {
    let bounds = Bounds::default().with(|bounds| bounds.incarnations = 50);
    let mut world = Restarting::new(bounds);
    for connid in 1..=100 {
        world.eager(connid, 0..1);
    }
    assert_eq!(world.refused, [DropReason::TooManyIncarnations; 50]);
    // The last that became known goes on, and the application can insert another.
    world.eager(50, 1..3);
    assert_eq!(world.refused.len(), 50);
    let inserted = world.endpoint.insert_peer(world.address(1000)).unwrap();
    world.eager(1000, 0..1);
    assert_eq!(world.endpoint.find_peer(&world.address(1000)), Some(inserted));
    assert_eq!(world.refused.len(), 50);
    assert_eq!(world.receive_all().len(), 53);
}

#[test]
fn back_pressure_names_the_queue_pair_of_what_former_incarnations_left() {
    let bounds = Bounds::default().with(|bounds| bounds.unexpected = 100 * EACH);
    let mut world = Restarting::new(bounds);
    for connid in 1..=200 {
        world.eager(connid, 0..1);
    }
    let most = world.most.and_then(|most| world.endpoint.peer_address(most)).unwrap();
    assert_eq!((most.gid, most.qpn), (world.host.gid().0, SENDER.0));
}
