//! Sections 4.1, 4.5 and 4.7: long-read and runting read messages, READ_NACK.

use std::time::Duration;

use efa_device::{
    Access, QueuePair, QueuePairOptions, Rdma, Region, RegionRange, RegisterError, Status,
};
use efa_handshake::{Extras, Profile, Release};
use efa_proto::{
    Connid, Eor, EorForm, ExtraInfo, Handshake, Header, MsgId, OpId, Packet, PacketType, ReadNack,
    ReqOptions, RmaIov, Rtm, RtmKind,
};
use efa_rdm::{BackoffLimits, Config, DropReason, Event, OperationError, Payload, Subprotocol};
use efa_sim::SoftRegion;
use efa_sim::local::{Faults, LocalOptions, Reorder};

use crate::world::{Net, pattern, place};

/// A buffer, registered or not.
#[derive(Debug)]
pub(crate) enum Memory {
    Heap(Vec<u8>),
    Region(RegionRange<SoftRegion>),
}

impl Memory {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; Payload::<SoftRegion>::length(self) as usize];
        Payload::<SoftRegion>::read(self, 0, &mut bytes);
        bytes
    }
}

impl Payload<SoftRegion> for Memory {
    fn length(&self) -> u64 {
        match self {
            Self::Heap(vector) => vector.len() as u64,
            Self::Region(range) => range.length as u64,
        }
    }
    fn read(&self, offset: u64, into: &mut [u8]) {
        match self {
            Self::Heap(vector) => Payload::<SoftRegion>::read(vector, offset, into),
            Self::Region(range) => {
                assert_eq!(range.region.read(range.offset + offset as usize, into), into.len());
            }
        }
    }
    fn write(&mut self, offset: u64, from: &[u8]) {
        match self {
            Self::Heap(vector) => Payload::<SoftRegion>::write(vector, offset, from),
            Self::Region(range) => {
                assert_eq!(range.region.write(range.offset + offset as usize, from), from.len());
            }
        }
    }
    fn split_to(&mut self, at: u64) -> Self {
        match self {
            Self::Heap(vector) => Self::Heap(Payload::<SoftRegion>::split_to(vector, at)),
            Self::Region(range) => {
                let first = RegionRange { length: at as usize, ..range.clone() };
                range.offset += at as usize;
                range.length -= at as usize;
                Self::Region(first)
            }
        }
    }
    fn registered(&self) -> Option<RegionRange<SoftRegion>> {
        match self {
            Self::Heap(_) => None,
            Self::Region(range) => Some(range.clone()),
        }
    }
}

type World = Net<Memory>;

const READABLE: Access = Access { remote_read: true, remote_write: false };

impl World {
    /// Registered memory in which the buffer begins somewhere.
    fn region(&mut self, end: usize, bytes: &[u8]) -> Memory {
        let memory = [&[0xaa; 100], bytes, &[0xbb; 28]].concat();
        let queue_pair = self.ends[end].endpoint.queue_pair();
        let region = queue_pair.register(memory.into(), READABLE).unwrap();
        Memory::Region(RegionRange { region, offset: 100, length: bytes.len() })
    }

    /// A message of a byte, so that the peers know each other's features.
    fn shake_hands(&mut self) {
        self.acquaint();
        self.receive_into(1, Memory::Heap(vec![0]), 0);
        self.send(0, 1, Memory::Heap(vec![1]), 0);
        self.drive();
        self.receive_done(1);
        self.send_done(0);
        self.forget_packets();
    }
}

/// Reading begins at 100,000 bytes.
fn config() -> Config {
    Config::default().with(|config| config.min_read = 100_000)
}

fn is_untouched_around(memory: &Memory) -> bool {
    let Memory::Region(RegionRange { region, length, .. }) = memory else { return true };
    let (mut before, mut behind) = ([0; 100], [0; 28]);
    region.read(0, &mut before);
    region.read(100 + length, &mut behind);
    before == [0xaa; 100] && behind == [0xbb; 28]
}

fn pair(seed: u64, a: Config, b: Config) -> World {
    let mut world = World::pair_with(seed, a, b);
    world.shake_hands();
    world
}

// conformance: A164 A167 A169
#[test]
fn registered_message_is_read_and_confirmed_by_eor() {
    for (seed, length) in [(1, 100_000), (2, 1 << 20), (3, (3 << 20) + 17)] {
        for registered in [true, false] {
            let mut world = pair(seed, config(), config());
            let buffer = vec![0; length];
            let target = if registered { world.region(1, &buffer) } else { Memory::Heap(buffer) };
            world.receive_into(1, target, 1);
            let bytes = pattern(length, seed);
            let message = world.region(0, &bytes);
            world.send(0, 1, message, 2);
            world.drive();
            let received = world.receive_done(1);
            assert_eq!(received.subprotocol, Some(Subprotocol::LongRead));
            assert_eq!((received.length, received.result), (length as u64, Ok(())));
            assert!(received.buffer.bytes() == bytes);
            assert!(is_untouched_around(&received.buffer));
            let sent = world.send_done(0);
            assert_eq!((sent.context, sent.result), (2, Ok(())));
            assert_eq!(sent.subprotocol, Some(Subprotocol::LongRead));
            assert_eq!(world.types_from(0), [PacketType::LongReadMsgRtm]);
            assert_eq!(world.types_from(1), [PacketType::Eor]);
            let reads = world.endpoint(1).statistics().rdma_reads;
            let bounced = length.div_ceil(Config::default().bounce_size) as u64;
            assert_eq!(reads, if registered { 1 } else { bounced });
            world.assert_clean();
        }
    }
}

// conformance: A163
#[test]
fn unregistered_short_or_first_message_is_sent_in_packets() {
    // Not registered, too short, and not yet known to be able.
    let mut world = pair(1, config(), config());
    let messages = [
        (Memory::Heap(pattern(200_000, 1)), Subprotocol::LongCts),
        (world.region(0, &pattern(99_999, 2)), Subprotocol::LongCts),
        (world.region(0, &pattern(50_000, 3)), Subprotocol::Medium),
    ];
    for (message, expected) in messages {
        let bytes = message.bytes();
        world.receive_into(1, Memory::Heap(vec![0; bytes.len()]), 1);
        world.send(0, 1, message, 2);
        world.drive();
        let received = world.receive_done(1);
        assert_eq!((received.subprotocol, received.result), (Some(expected), Ok(())));
        assert!(received.buffer.bytes() == bytes);
        world.send_done(0);
    }
    let mut world = World::pair_with(1, config(), config());
    let message = world.region(0, &pattern(200_000, 1));
    world.receive_into(1, Memory::Heap(vec![0; 200_000]), 1);
    world.send(0, 1, message, 2);
    world.drive();
    assert_eq!(world.receive_done(1).subprotocol, Some(Subprotocol::LongCts));
}

#[test]
fn message_is_sent_in_packets_by_devices_without_rdma() {
    let mut world = World::new(LocalOptions::default().with(|options| options.rdma = Rdma::NONE));
    world.add(config());
    world.add(config());
    world.shake_hands();
    let message = world.region(0, &pattern(200_000, 1));
    world.receive_into(1, Memory::Heap(vec![0; 200_000]), 1);
    world.send(0, 1, message, 2);
    world.drive();
    assert_eq!(world.receive_done(1).subprotocol, Some(Subprotocol::LongCts));
    let peer = world.peer(0, 1);
    let extras = world.endpoint(0).peer_extras(peer).unwrap();
    assert!(!extras.contains(Extras::RDMA_READ), "{extras:?}");
}

// The device reads at most 4 KiB at a time, and at most three reads are under way.
// conformance: A6 A168
#[test]
fn reads_keep_to_device_size_and_concurrency_limits() {
    let options = LocalOptions::default().with(|options| {
        options.max_rdma_size = 4096;
        options.seed = 5;
    });
    let mut world = World::new(options);
    world.add(config());
    world.add(config().with(|config| config.max_rdma = 3));
    world.shake_hands();
    for salt in 0..3 {
        let target = world.region(1, &[0; 150_000]);
        world.receive_into(1, target, salt);
        let message = world.region(0, &pattern(150_000, salt));
        world.send(0, 1, message, salt);
    }
    while world.endpoint(1).statistics().rdma_reads == 0 {
        world.step();
    }
    assert_eq!(world.endpoint(1).statistics().rdma_reads, 3, "the others wait until one has ended");
    world.drive();
    for salt in 0..3 {
        let received = world.receive_done(1);
        assert_eq!(received.result, Ok(()));
        assert!(received.buffer.bytes() == pattern(150_000, received.context));
        assert!(is_untouched_around(&received.buffer));
        assert!(world.send_done(0).context < 3, "{salt}");
    }
    let statistics = world.endpoint(1).statistics();
    assert_eq!(statistics.rdma_reads, 3 * 150_000_u64.div_ceil(4096));
    assert_eq!(world.types_from(1), [PacketType::Eor; 3], "one a message");
    world.assert_clean();
}

#[test]
fn short_buffer_reads_what_fits_and_sends_eor() {
    // In one read, and in several.
    let uncut = LocalOptions::default().max_rdma_size;
    for (capacity, max_rdma_size) in [(0, uncut), (1, uncut), (99_999, uncut), (99_999, 10_000)] {
        let options = LocalOptions::default().with(|options| {
            options.max_rdma_size = max_rdma_size;
            options.seed = 7;
        });
        let mut world = World::new(options);
        world.add(config());
        world.add(config());
        world.shake_hands();
        let target = world.region(1, &vec![0; capacity]);
        world.receive_into(1, target, 1);
        let message = world.region(0, &pattern(100_000, 7));
        world.send(0, 1, message, 2);
        world.drive();
        let received = world.receive_done(1);
        let length = 100_000;
        let capacity = capacity as u64;
        let truncated = OperationError::Truncated { length, capacity };
        assert_eq!((received.length, received.result), (capacity, Err(truncated)));
        assert!(received.buffer.bytes() == pattern(100_000, 7)[..capacity as usize]);
        assert!(is_untouched_around(&received.buffer));
        assert_eq!(world.send_done(0).result, Ok(()), "the sender doesn't wait for ever");
        world.assert_clean();
    }
}

#[test]
fn unexpected_long_read_messages_are_read_in_order_once_matched() {
    let mut world = pair(8, config(), config());
    for salt in 0..4 {
        let message = match salt % 2 {
            0 => world.region(0, &pattern(120_000, salt)),
            _ => Memory::Heap(pattern(10, salt)),
        };
        world.send(0, 1, message, salt);
    }
    world.drive();
    assert_eq!(world.endpoint(1).statistics().rdma_reads, 0);
    for salt in 0..4 {
        world.receive_into(1, Memory::Heap(vec![0; 120_000]), salt);
    }
    world.drive();
    let mut received = world.take_receives(1);
    received.sort_by_key(|receive| receive.context);
    for (salt, receive) in received.iter().enumerate() {
        let length = if salt % 2 == 0 { 120_000 } else { 10 };
        assert_eq!((receive.length, receive.result), (length as u64, Ok(())));
        assert!(receive.buffer.bytes()[..length] == pattern(length, salt as u64));
    }
    assert_eq!(world.take_sends(0).len(), 4);
    world.assert_clean();
}

// conformance: A200 A201 A202 A203
#[test]
fn runting_message_sends_the_runt_and_reads_the_rest() {
    let runting = config().with(|config| config.runt_size = 30_000);
    for seed in 0..20 {
        for registered in [true, false] {
            let mut world = pair(seed, runting.clone(), config());
            let buffer = vec![0; 200_000];
            let target = if registered { world.region(1, &buffer) } else { Memory::Heap(buffer) };
            world.receive_into(1, target, 1);
            let bytes = pattern(200_000, seed);
            let message = world.region(0, &bytes);
            world.send(0, 1, message, 2);
            world.drive();
            let received = world.receive_done(1);
            assert_eq!(received.subprotocol, Some(Subprotocol::RuntRead));
            assert_eq!((received.length, received.result), (200_000, Ok(())));
            assert!(received.buffer.bytes() == bytes);
            assert!(is_untouched_around(&received.buffer));
            assert_eq!(world.send_done(0).result, Ok(()));
            let packets = world.packets_from(0);
            let mut runt = 0;
            for bytes in &packets {
                let packet = Packet::parse(bytes).unwrap();
                let Header::Rtm(Rtm { kind: RtmKind::RuntRead { runt_length, .. }, .. }) =
                    packet.header
                else {
                    panic!("{packet}")
                };
                assert_eq!(runt_length, 30_000);
                runt += packet.payload.len();
            }
            assert_eq!((packets.len(), runt), (4, 30_000));
            assert_eq!(world.types_from(1), [PacketType::Eor]);
            assert_eq!(world.endpoint(1).statistics().rdma_bytes, 170_000);
            world.assert_clean();
        }
    }
}

// conformance: A202
#[test]
fn runt_as_long_as_the_message_needs_no_read() {
    let runting = config().with(|config| config.runt_size = 1 << 20);
    let mut world = pair(3, runting, config());
    world.receive_into(1, Memory::Heap(vec![0; 150_000]), 1);
    let message = world.region(0, &pattern(150_000, 3));
    world.send(0, 1, message, 2);
    world.drive();
    assert!(world.receive_done(1).buffer.bytes() == pattern(150_000, 3));
    assert_eq!(world.send_done(0).result, Ok(()));
    assert_eq!(world.types_from(1), []);
    assert_eq!(world.endpoint(1).statistics().rdma_reads, 0);
    world.assert_clean();
}

// conformance: A199
#[test]
fn message_is_not_runting_while_another_is_read() {
    let runting = config().with(|config| config.runt_size = 30_000);
    let mut world = pair(3, runting, config());
    for salt in 0..3 {
        world.receive_into(1, Memory::Heap(vec![0; 150_000]), salt);
        let message = world.region(0, &pattern(150_000, salt));
        world.send(0, 1, message, salt);
    }
    world.drive();
    let kinds: Vec<_> =
        world.take_sends(0).iter().map(|send| (send.context, send.subprotocol)).collect();
    let count = |wanted| kinds.iter().filter(|kind| kind.1 == Some(wanted)).count();
    assert_eq!((count(Subprotocol::RuntRead), count(Subprotocol::LongRead)), (1, 2));
    for received in world.take_receives(1) {
        assert!(received.buffer.bytes() == pattern(150_000, received.context));
    }
    // All are over: the next one may run again.
    world.receive_into(1, Memory::Heap(vec![0; 150_000]), 9);
    let message = world.region(0, &pattern(150_000, 9));
    world.send(0, 1, message, 9);
    world.drive();
    assert_eq!(world.send_done(0).subprotocol, Some(Subprotocol::RuntRead));
    world.receive_done(1);
    world.assert_clean();
}

// The receiver's device registers nothing, so it has no memory to read into.
// conformance: A209 A210 A211 A212 A213
#[test]
fn message_continues_by_long_cts_after_read_nack() {
    for runt_size in [0, 30_000] {
        for seed in 0..10 {
            for unexpected in [false, true] {
                let sender = config().with(|config| config.runt_size = runt_size);
                let mut world = pair(seed, sender, config());
                world.ends[1].device.refuse_registrations(u32::MAX);
                let target = || Memory::Heap(vec![0; 400_000]);
                if !unexpected {
                    world.receive_into(1, target(), 1);
                }
                let bytes = pattern(400_000, seed);
                let message = world.region(0, &bytes);
                world.send(0, 1, message, 2);
                // Another message behind it keeps its place.
                world.send(0, 1, Memory::Heap(pattern(20, seed)), 3);
                if unexpected {
                    world.drive();
                    world.receive_into(1, target(), 1);
                }
                world.receive_into(1, Memory::Heap(vec![0; 20]), 4);
                world.drive();
                let mut received = world.take_receives(1);
                received.sort_by_key(|receive| receive.context);
                assert_eq!(received.len(), 2);
                assert_eq!((received[0].length, received[0].result), (400_000, Ok(())));
                assert!(received[0].buffer.bytes() == bytes);
                assert!(received[1].buffer.bytes() == pattern(20, seed));
                assert!(world.take_sends(0).iter().all(|send| send.result == Ok(())));
                let nacks = world.types_from(1);
                assert_eq!(nacks.iter().filter(|t| **t == PacketType::ReadNack).count(), 1);
                assert!(!nacks.contains(&PacketType::Eor));
                let again = world.packets_from(0).into_iter().find_map(|bytes| {
                    let packet = Packet::parse(&bytes).unwrap();
                    match packet.header {
                        Header::Rtm(Rtm {
                            kind: RtmKind::LongCts { read_nack, .. },
                            msg_id,
                            ..
                        }) => Some((read_nack, msg_id, packet.payload.len())),
                        _ => None,
                    }
                });
                assert_eq!(again, Some((true, MsgId(1), 0)), "the same message, and no data yet");
                // What went as runt doesn't go again.
                let sent = world.packets_from(0).into_iter().map(|bytes| {
                    let packet = Packet::parse(&bytes).unwrap();
                    match packet.header {
                        Header::Rtm(Rtm { kind: RtmKind::RuntRead { .. }, .. })
                        | Header::CtsData(_) => packet.payload.len(),
                        _ => 0,
                    }
                });
                assert_eq!(sent.sum::<usize>(), 400_000);
                assert_eq!(world.endpoint(1).statistics().rdma_reads, 0);
                world.assert_clean();
            }
        }
    }
}

/// A sender that has forgotten the receiver begins with the first number anew.
#[test]
fn nacked_message_drops_segments_of_another_with_its_id() {
    let mut world = pair(8, config(), config());
    world.ends[1].device.refuse_registrations(u32::MAX);
    world.receive_into(1, Memory::Heap(vec![0; 9_000]), 1);
    let connid = Some(world.ends[0].endpoint.address().connid);
    let options = ReqOptions { raw_address: None, cq_data: None, connid };
    let request = |kind| Header::Rtm(Rtm { msg_id: MsgId(1), tag: None, kind, options });
    let (msg_length, read_iov) = (9_000, [RmaIov::new(0, 9_000, 1)]);
    let kind = RtmKind::LongRead { msg_length, send_id: OpId(0), read_iov: &read_iov };
    world.inject(0, 1, request(kind), &[]);
    world.drive();
    assert_eq!(world.types_from(1), [PacketType::ReadNack]);
    for (seg_offset, length) in [(0, 8_000), (8_000, 1_000)] {
        let segment = request(RtmKind::Medium { msg_length, seg_offset });
        world.inject(0, 1, segment, &vec![7; length]);
    }
    world.drive();
    assert_eq!(world.drop_reasons(1), [DropReason::SegmentOutOfRange; 2]);
    // Nor does it go on with one of another length, nor one with it that wasn't refused.
    world.receive_into(1, Memory::Heap(vec![0; 9_000]), 2);
    let half = RtmKind::Medium { msg_length, seg_offset: 0 };
    let rtm = Rtm { msg_id: MsgId(2), tag: None, kind: half, options };
    world.inject(0, 1, Header::Rtm(rtm), &[7; 8_000]);
    for (msg_id, msg_length) in [(1, msg_length + 1), (2, msg_length)] {
        let (send_id, credit_request) = (OpId(0), 1);
        let kind = RtmKind::LongCts { msg_length, send_id, credit_request, read_nack: true };
        let rtm = Rtm { msg_id: MsgId(msg_id), tag: None, kind, options };
        world.drive();
        world.inject(0, 1, Header::Rtm(rtm), &[]);
    }
    world.drive();
    assert_eq!(world.drop_reasons(1), [DropReason::UnknownOperation; 2]);
    assert!(world.take_receives(1).is_empty());
}

// conformance: A214
#[test]
fn read_from_peer_without_read_nack_waits_for_memory() {
    let old = config().with(|config| config.profile = profile(Release::V1_18));
    let mut world = pair(4, old, config());
    world.ends[1].device.refuse_registrations(3);
    world.receive_into(1, Memory::Heap(vec![0; 150_000]), 1);
    let message = world.region(0, &pattern(150_000, 4));
    world.send(0, 1, message, 2);
    world.drive();
    let received = world.receive_done(1);
    assert_eq!((received.subprotocol, received.result), (Some(Subprotocol::LongRead), Ok(())));
    assert!(received.buffer.bytes() == pattern(150_000, 4));
    assert_eq!(world.send_done(0).result, Ok(()));
    assert!(world.ends[1].events.iter().any(|event| matches!(event, Event::DeviceRefused(_))));
    world.assert_clean();
}

// conformance: A209 A214
#[test]
fn read_nack_is_sent_only_between_releases_that_have_it() {
    for (i, sender) in Release::ALL.into_iter().enumerate() {
        for (j, receiver) in Release::ALL.into_iter().enumerate() {
            let [a, b] =
                [sender, receiver].map(|of| config().with(|config| config.profile = profile(of)));
            let mut world = pair((10 * i + j) as u64, a, b);
            world.ends[1].device.refuse_registrations(3);
            for context in 1..4 {
                world.receive_into(1, Memory::Heap(vec![0; 150_000]), context);
                let message = world.region(0, &pattern(150_000, context));
                world.send(0, 1, message, context);
            }
            world.drive();
            let received = world.take_receives(1);
            assert_eq!(received.len(), 3, "{sender} to {receiver}");
            for received in received {
                assert_eq!(received.result, Ok(()), "{sender} to {receiver}");
                assert!(received.buffer.bytes() == pattern(150_000, received.context));
            }
            assert!(world.take_sends(0).iter().all(|sent| sent.result == Ok(())));
            let nacks =
                world.types_from(1).iter().filter(|of| **of == PacketType::ReadNack).count();
            let both = sender >= Release::V1_20 && receiver >= Release::V1_20;
            assert_eq!(nacks > 0, both, "{sender} to {receiver}");
            world.assert_clean();
        }
    }
}

/// A release that can read.
fn profile(release: Release) -> Profile {
    let abilities = efa_handshake::DeviceAbilities {
        rdma_read: true,
        rdma_write: true,
        unsolicited_write_receive: false,
    };
    Profile::with_device(release, abilities)
}

#[test]
fn eor_has_the_form_of_the_peers_release() {
    let old = config().with(|config| config.profile = profile(Release::V1_12));
    for (a, b, form) in [(config(), old.clone(), 12), (old, config(), 16)] {
        let mut world = pair(5, a, b);
        world.receive_into(1, Memory::Heap(vec![0; 150_000]), 1);
        let message = world.region(0, &pattern(150_000, 4));
        world.send(0, 1, message, 2);
        world.drive();
        assert_eq!(world.receive_done(1).result, Ok(()));
        assert_eq!(world.send_done(0).result, Ok(()));
        let packets = world.packets_from(1);
        assert_eq!(packets.iter().map(Vec::len).collect::<Vec<_>>(), [form]);
    }
}

// conformance: A170
#[test]
fn read_of_deregistered_memory_sends_read_nack() {
    // The key in the request names nothing: as if the sender had deregistered too early.
    let mut world = pair(6, config(), config());
    world.receive_into(1, Memory::Heap(vec![0; 150_000]), 1);
    let source = world.ends[0].endpoint.address();
    let iov = [RmaIov::new(0x1234, 150_000, 77)];
    let kind = RtmKind::LongRead { msg_length: 150_000, send_id: OpId(5), read_iov: &iov };
    let options = ReqOptions { raw_address: None, cq_data: None, connid: Some(source.connid) };
    let rtm = Rtm { msg_id: MsgId(1), tag: None, kind, options };
    world.inject(0, 1, Header::Rtm(rtm), &[]);
    world.drive();
    assert_eq!(world.types_from(1), [PacketType::ReadNack]);
    assert!(world.take_receives(1).is_empty());
}

#[test]
fn sender_killed_during_the_read_fails_the_receive() {
    let options = LocalOptions::default().with(|options| {
        options.max_rdma_size = 4096;
        options.seed = 5;
    });
    let mut world = World::new(options);
    world.add(config());
    world.add(config());
    world.shake_hands();
    world.receive_into(1, Memory::Heap(vec![0; 300_000]), 1);
    let message = world.region(0, &pattern(300_000, 4));
    world.send(0, 1, message, 2);
    while world.endpoint(1).statistics().rdma_bytes < 50_000 {
        world.step();
    }
    let dead = place(&world.ends[0]);
    world.network.kill(dead).unwrap();
    world.drive();
    let received = world.receive_done(1);
    assert_eq!(received.result, Err(OperationError::Device(Status::UnresponsiveRemote)));
    assert_eq!(received.buffer.bytes().len(), 300_000);
    assert!(world.ends[1].events.iter().any(|event| matches!(event, Event::PeerLost { .. })));
    world.ends[0].endpoint.cancel_all();
    assert_eq!(world.send_done(0).result, Err(OperationError::Cancelled));
}

#[test]
fn receive_of_removed_peer_completes_after_its_last_read() {
    let options = LocalOptions::default().with(|options| {
        options.max_rdma_size = 4096;
        options.seed = 5;
    });
    let mut world = World::new(options);
    world.add(config());
    world.add(config().with(|config| config.max_rdma = 4));
    world.shake_hands();
    let target = world.region(1, &[0; 300_000]);
    world.receive_into(1, target, 1);
    let message = world.region(0, &pattern(300_000, 4));
    world.send(0, 1, message, 2);
    while world.endpoint(1).statistics().rdma_bytes < 50_000 {
        world.step();
    }
    let peer = world.peer(1, 0);
    world.endpoint(1).remove_peer(peer);
    assert!(world.take_receives(1).is_empty(), "the device still writes to it");
    world.drive();
    let received = world.receive_done(1);
    assert_eq!(received.result, Err(OperationError::PeerRemoved));
    assert!(world.endpoint(1).is_quiet());
}

#[test]
fn eor_or_read_nack_for_unknown_operation_is_dropped() {
    let mut world = pair(6, config(), config());
    let address = world.ends[1].endpoint.address();
    let message = Memory::Heap(pattern(300_000, 1));
    world.send(0, 1, message, 2);
    world.drive();
    let request = world.packets_from(0).remove(0);
    let Header::Rtm(Rtm { kind: RtmKind::LongCts { send_id, .. }, .. }) =
        Packet::parse(&request).unwrap().header
    else {
        panic!("a message that is not registered is sent")
    };
    let connid = Some(address.connid);
    for send_id in [send_id, OpId(77), OpId(u32::MAX)] {
        let form = EorForm::Full { connid };
        world.inject(1, 0, Header::Eor(Eor { send_id, recv_id: OpId(0), form }), &[]);
        let nack = ReadNack { send_id, recv_id: OpId(0), connid };
        world.inject(1, 0, Header::ReadNack(nack), &[]);
    }
    world.drive();
    assert_eq!(world.drop_reasons(0), [DropReason::UnknownOperation; 6]);
    world.receive_into(1, Memory::Heap(vec![0; 300_000]), 1);
    world.drive();
    assert!(world.receive_done(1).buffer.bytes() == pattern(300_000, 1));
    assert_eq!(world.send_done(0).result, Ok(()));
}

// conformance: A172
#[test]
fn inconsistent_long_read_requests_are_dropped() {
    let mut world =
        World::new(LocalOptions::default().with(|options| options.reorder = Reorder::None));
    world.add(config());
    world.add(config());
    world.shake_hands();
    let connid = Some(Connid(world.ends[0].endpoint.address().connid.0));
    let options = ReqOptions { raw_address: None, cq_data: None, connid };
    let absurd = [RmaIov::new(0, u64::MAX, 1), RmaIov::new(0, 10, 1)];
    let short = [RmaIov::new(0, 99, 1)];
    let (msg_length, send_id) = (100, OpId(0));
    let kinds = [
        RtmKind::LongRead { msg_length, send_id, read_iov: &short },
        RtmKind::LongRead { msg_length, send_id, read_iov: &absurd },
        RtmKind::LongRead { msg_length, send_id, read_iov: &[] },
    ];
    let runt = |msg_length, seg_offset, runt_length| RtmKind::RuntRead {
        msg_length,
        send_id,
        seg_offset,
        runt_length,
        read_iov: &short,
    };
    let runts = [runt(100, 0, 50), runt(99, 0, 100), runt(99, 45, 50), runt(99, u64::MAX, 50)];
    for (kind, payload) in
        kinds.into_iter().map(|kind| (kind, &[][..])).chain(runts.map(|kind| (kind, &[0; 10][..])))
    {
        let rtm = Rtm { msg_id: MsgId(1), tag: None, kind, options };
        world.inject(0, 1, Header::Rtm(rtm), payload);
        world.drive();
        assert_eq!(world.drop_reasons(1), [DropReason::SegmentOutOfRange], "{rtm:?}");
    }
}

// conformance: A204
#[test]
fn full_send_queue_within_a_runt_sends_each_segment_once() {
    for (seed, refused) in (0..20).zip([1, 2, 3, 7].into_iter().cycle()) {
        let runting = config().with(|config| config.runt_size = 60_000);
        let mut world = pair(seed, runting, config());
        world.receive_into(1, Memory::Heap(vec![0; 200_000]), 1);
        let message = world.region(0, &pattern(200_000, seed));
        let me = place(&world.ends[0]);
        let faults = Faults::default().with(|faults| faults.send_limit = Some(2));
        world.network.set_faults(faults);
        world.send(0, 1, message, 2);
        // Two packets of the runt are under way; for the others there is no room, again and again.
        assert_eq!(world.packets_from(0).len(), 2);
        world.network.refuse_sends(me, refused).unwrap();
        world.drive();
        let received = world.receive_done(1);
        assert_eq!((received.subprotocol, received.result), (Some(Subprotocol::RuntRead), Ok(())));
        assert!(received.buffer.bytes() == pattern(200_000, seed));
        assert_eq!(world.send_done(0).result, Ok(()));
        let mut offset = 0;
        for bytes in world.packets_from(0) {
            let packet = Packet::parse(&bytes).unwrap();
            let Header::Rtm(Rtm { kind: RtmKind::RuntRead { seg_offset, .. }, .. }) = packet.header
            else {
                panic!("{packet}")
            };
            assert_eq!(seg_offset, offset, "seed {seed}");
            offset += packet.payload.len() as u64;
        }
        assert_eq!(offset, 60_000);
        world.assert_clean();
    }
}

/// A buffer that lets itself be registered, and remembers how often it was and was not any more.
#[derive(Debug)]
struct Lent {
    bytes: Vec<u8>,
    region: Option<SoftRegion>,
    log: Log,
}

/// What was done to a buffer, in order.
type Log = std::rc::Rc<std::cell::RefCell<Vec<&'static str>>>;

impl Payload<SoftRegion> for Lent {
    fn length(&self) -> u64 {
        self.region.as_ref().map_or(self.bytes.len(), Region::length) as u64
    }
    fn read(&self, offset: u64, into: &mut [u8]) {
        match &self.region {
            Some(region) => assert_eq!(region.read(offset as usize, into), into.len()),
            None => Payload::<SoftRegion>::read(&self.bytes, offset, into),
        }
    }
    fn write(&mut self, offset: u64, from: &[u8]) {
        Payload::<SoftRegion>::write(&mut self.bytes, offset, from);
    }
    fn split_to(&mut self, _: u64) -> Self {
        unreachable!("no multi-receive buffer")
    }
    fn registered(&self) -> Option<RegionRange<SoftRegion>> {
        let region = self.region.clone()?;
        Some(RegionRange { offset: 0, length: region.length(), region })
    }
    fn register(&mut self, register: impl FnOnce(Box<[u8]>) -> Result<SoftRegion, RegisterError>) {
        let asked = std::mem::take(&mut self.bytes).into();
        match register(asked) {
            Ok(region) => {
                self.log.borrow_mut().push("registered");
                self.region = Some(region);
            }
            Err(RegisterError { memory, .. }) => self.bytes = memory.into(),
        }
    }
    fn deregister(&mut self) {
        if let Some(region) = self.region.take() {
            self.log.borrow_mut().push("given back");
            self.bytes = region.reclaim().unwrap().into();
        }
    }
}

fn lent(bytes: Vec<u8>, log: &Log) -> Lent {
    Lent { bytes, region: None, log: log.clone() }
}

/// Two ends that lend their buffers, and know each other's features.
fn lenders() -> Net<Lent> {
    let mut world = Net::new(LocalOptions::default());
    world.add(config());
    world.add(config());
    world.acquaint();
    world.receive_into(1, lent(vec![0], &Log::default()), 0);
    world.send(0, 1, lent(vec![1], &Log::default()), 0);
    world.drive();
    world.receive_done(1);
    world.send_done(0);
    world
}

// conformance: A216
#[test]
fn sender_deregisters_its_buffer_after_read_nack() {
    let (mut world, log) = (lenders(), Log::default());
    world.ends[1].device.refuse_registrations(u32::MAX);
    world.send(0, 1, lent(pattern(300_000, 1), &log), 1);
    world.drive();
    assert_eq!(*log.borrow(), ["registered"], "it is offered to be read");
    let key = world.packets_from(0).iter().rev().find_map(|bytes| {
        match Packet::parse(bytes).unwrap().header {
            Header::Rtm(Rtm { kind: RtmKind::LongRead { read_iov, .. }, .. }) => {
                Some(read_iov[0].key() as u32)
            }
            _ => None,
        }
    });
    let key = key.unwrap();
    assert!(world.ends[0].device.region(key).is_some());
    world.receive_into(1, lent(vec![0; 300_000], &Log::default()), 1);
    while world.endpoint(0).statistics().received.of(PacketType::ReadNack) == 0 {
        world.step();
    }
    assert_eq!(*log.borrow(), ["registered", "given back"], "before a byte of it is sent");
    assert!(world.ends[0].device.region(key).is_none(), "the key opens nothing any more");
    assert!(world.take_sends(0).is_empty());
    world.drive();
    assert!(world.receive_done(1).buffer.bytes == pattern(300_000, 1));
    let sent = world.send_done(0);
    assert_eq!(sent.subprotocol, Some(Subprotocol::LongCts));
    assert!(sent.buffer.unwrap().bytes == pattern(300_000, 1));
    assert_eq!(log.borrow().len(), 2, "once");
}

#[test]
fn empty_message_is_received_by_every_subprotocol() {
    for runt_size in [0, 10] {
        for refused in [false, true] {
            let config = Config::default().with(|config| {
                config.min_read = 0;
                config.runt_size = runt_size;
            });
            let mut world = pair(1, config.clone(), config);
            if refused {
                world.ends[1].device.refuse_registrations(u32::MAX);
            }
            let buffer = world.region(0, &[]);
            world.send(0, 1, buffer, 7);
            world.drive();
            world.receive_into(1, Memory::Heap(Vec::new()), 8);
            world.drive();
            let received = world.receive_done(1);
            assert_eq!((received.length, received.result), (0, Ok(())), "{runt_size} {refused}");
            assert_eq!(world.send_done(0).result, Ok(()));
            // The one behind it comes.
            world.receive_into(1, Memory::Heap(vec![0; 5]), 8);
            let buffer = world.region(0, &pattern(5, 1));
            world.send(0, 1, buffer, 9);
            world.drive();
            assert_eq!(world.receive_done(1).buffer.bytes(), pattern(5, 1));
        }
    }
}

/// A second HANDSHAKE may come between the first try to send a request and the next one.
#[test]
fn message_is_sent_if_the_handshake_withdraws_rdma_read() {
    for runt_size in [0, 60_000] {
        let mut world = pair(1, config().with(|config| config.runt_size = runt_size), config());
        world.receive_into(1, Memory::Heap(vec![0; 200_000]), 1);
        let message = world.region(0, &pattern(200_000, 1));
        world.network.set_faults(Faults::default().with(|faults| faults.send_refused = 1.0));
        world.send(0, 1, message, 2);
        let peer = world.peer(0, 1);
        let extras = world.endpoint(0).peer_extras(peer).unwrap() - Extras::RDMA_READ;
        let handshake = Handshake {
            extra_info: ExtraInfo::new(&[extras.bits()]).unwrap(),
            connid: Some(world.endpoint(1).address().connid),
            host_id: None,
            device_version: None,
            user_recv_qp: None,
        };
        world.inject(1, 0, Header::Handshake(handshake), &[]);
        while world.endpoint(0).peer_extras(peer) != Some(extras) {
            world.step();
        }
        world.network.set_faults(Faults::default());
        world.drive();
        let received = world.receive_done(1);
        assert_eq!((received.subprotocol, received.result), (Some(Subprotocol::LongCts), Ok(())));
        assert!(received.buffer.bytes() == pattern(200_000, 1));
        let sent = world.send_done(0);
        assert_eq!((sent.subprotocol, sent.result), (Some(Subprotocol::LongCts), Ok(())));
        world.assert_clean();
    }
}

/// Reads take turns at the device, and one that can't go when its turn has come keeps nobody waiting.
#[test]
fn failed_read_does_not_delay_queued_reads() {
    let mut world = World::new(LocalOptions::default().with(|options| options.seed = 7));
    world.add(config());
    world.add(config().with(|config| config.max_rdma = 1));
    world.add(config());
    world.shake_hands();
    // End 2 tells by a message who it is.
    world.receive_into(1, Memory::Heap(vec![0]), 0);
    world.send(2, 1, Memory::Heap(vec![1]), 0);
    world.drive();
    world.receive_done(1);
    for context in 1..4 {
        world.receive_into(1, Memory::Heap(vec![0; 200_000]), context);
    }
    let start = world.now;
    let message = world.region(0, &pattern(200_000, 1));
    world.send(0, 1, message, 2);
    while world.endpoint(1).statistics().rdma_reads == 0 {
        world.step();
    }
    // No device has such a key.
    let (msg_length, send_id) = (200_000, OpId(0));
    let read_iov = [RmaIov::new(0, msg_length, 1 << 40)];
    let kind = RtmKind::LongRead { msg_length, send_id, read_iov: &read_iov };
    let connid = Some(world.endpoint(2).address().connid);
    let options = ReqOptions { raw_address: None, cq_data: None, connid };
    let rtm = Rtm { msg_id: MsgId(1), tag: None, kind, options };
    world.inject(2, 1, Header::Rtm(rtm), &[]);
    let message = world.region(0, &pattern(200_000, 3));
    world.send(0, 1, message, 4);
    while world.ends[1].receives.iter().filter(|of| of.result.is_ok()).count() < 2 {
        world.step();
    }
    // Once in a trim interval, which is a second, all that wait are looked after.
    let took = world.now - start;
    assert!(took < Duration::from_millis(100), "{took:?}");
}

/// As above: who is left alone for a while can have no turn.
#[test]
fn read_from_peer_in_backoff_does_not_delay_others() {
    // With room for one, the interval begins while it is the peer's turn.
    for send_depth in [1024, 1] {
        reads_beside_a_peer_in_backoff(send_depth);
    }
}

fn reads_beside_a_peer_in_backoff(send_depth: usize) {
    const LONG: usize = 8 << 20;
    let mut world = World::new(LocalOptions::default().with(|options| options.seed = 7));
    let once = QueuePairOptions::default().with(|options| {
        options.rnr_retry = 0;
        options.send_depth = send_depth;
    });
    let second = Duration::from_secs(1);
    let backoff = BackoffLimits::default().with(|backoff| {
        backoff.first = second;
        backoff.longest = second;
    });
    world.add(config());
    world.add_with(
        config().with(|config| {
            config.max_rdma = 1;
            config.backoff = backoff;
            config.trim_interval = second;
        }),
        once,
    );
    world.add(config());
    world.acquaint();
    for (from, context) in [(0, 0), (2, 0)] {
        world.receive_into(1, Memory::Heap(vec![0]), context);
        world.send(from, 1, Memory::Heap(vec![1]), context);
        world.drive();
        world.receive_done(1);
    }
    let start = world.now;
    for from in [2, 0, 2] {
        world.receive_into(1, Memory::Heap(vec![0; LONG]), 1);
        let message = world.region(from, &pattern(LONG, 1));
        world.send(from, 1, message, 1);
    }
    while world.endpoint(1).statistics().rdma_reads < 3 {
        world.step();
    }
    // End 1 has a packet for end 0 that comes back again and again.
    let target = place(&world.ends[0]);
    world.network.not_ready(target, u32::MAX).unwrap();
    world.send(1, 0, Memory::Heap(vec![1]), 0);
    while world.endpoint(1).statistics().receiver_not_ready < 2 {
        world.step();
    }
    assert!(world.ends[1].receives.is_empty());
    while world.ends[1].receives.len() < 2 {
        world.step();
    }
    let took = world.now - start;
    assert!(took < Duration::from_millis(100), "{took:?}");
    world.network.not_ready(target, 0).unwrap();
    world.receive_into(0, Memory::Heap(vec![0]), 0);
    world.drive();
    assert_eq!(world.ends[1].receives.len(), 3);
    for end in 0..3 {
        world.take_sends(end);
        world.take_receives(end);
    }
    world.assert_clean();
}

// conformance: A163
#[test]
fn message_is_sent_in_packets_if_reading_is_not_permitted() {
    // One side doesn't announce it; the memory is not for that; the devices are no kin.
    for case in 0..4 {
        let mut configs = [config(), config()];
        if case < 2 {
            configs[case].profile.extras.remove(Extras::RDMA_READ);
        }
        let [a, b] = configs;
        let mut world = pair(1, a, b);
        let access = Access { remote_read: case != 2, remote_write: true };
        let source = world.ends[0].endpoint.queue_pair();
        let region = source.register(pattern(200_000, 1).into(), access).unwrap();
        if case == 3 {
            let peer = world.peer(0, 1);
            let extras = world.endpoint(0).peer_extras(peer).unwrap();
            let handshake = Handshake {
                extra_info: ExtraInfo::new(&[extras.bits()]).unwrap(),
                connid: Some(world.endpoint(1).address().connid),
                host_id: None,
                device_version: Some(0xefa0),
                user_recv_qp: None,
            };
            world.inject(1, 0, Header::Handshake(handshake), &[]);
            world.drive();
        }
        world.receive_into(1, Memory::Heap(vec![0; 200_000]), 1);
        let message = Memory::Region(RegionRange { region, offset: 0, length: 200_000 });
        world.send(0, 1, message, 2);
        world.drive();
        let received = world.receive_done(1);
        let expected = (Some(Subprotocol::LongCts), Ok(()));
        assert_eq!((received.subprotocol, received.result), expected, "case {case}");
        assert!(received.buffer.bytes() == pattern(200_000, 1));
        assert_eq!(world.types_from(0)[0], PacketType::LongCtsMsgRtm, "case {case}");
    }
}

#[test]
fn long_read_request_to_device_without_rdma_gets_read_nack() {
    let mut world = World::new(LocalOptions::default().with(|options| options.rdma = Rdma::NONE));
    world.add(config());
    world.add(config());
    world.shake_hands();
    world.receive_into(1, Memory::Heap(vec![0; 9_000]), 1);
    let connid = Some(world.ends[0].endpoint.address().connid);
    let options = ReqOptions { raw_address: None, cq_data: None, connid };
    let read_iov = [RmaIov::new(0, 9_000, 1)];
    let kind = RtmKind::LongRead { msg_length: 9_000, send_id: OpId(0), read_iov: &read_iov };
    let rtm = Rtm { msg_id: MsgId(1), tag: None, kind, options };
    world.inject(0, 1, Header::Rtm(rtm), &[]);
    world.drive();
    assert_eq!(world.types_from(1), [PacketType::ReadNack]);
}

/// What is registered, or is none, takes no other memory.
#[test]
fn registered_or_empty_receive_buffer_needs_no_registration() {
    for length in [0, 150_000] {
        let mut world = pair(1, config(), config());
        let target = match length {
            0 => Memory::Heap(Vec::new()),
            _ => world.region(1, &vec![0; length]),
        };
        world.ends[1].device.refuse_registrations(u32::MAX);
        world.receive_into(1, target, 1);
        let message = world.region(0, &pattern(150_000, 1));
        world.send(0, 1, message, 2);
        world.drive();
        assert_eq!(world.types_from(1), [PacketType::Eor]);
        assert!(world.receive_done(1).buffer.bytes() == pattern(150_000, 1)[..length]);
        assert_eq!(world.send_done(0).result, Ok(()));
    }
}

#[test]
fn long_read_registers_the_receive_buffer_without_copying() {
    let (mut world, log) = (lenders(), Log::default());
    world.receive_into(1, lent(vec![0; 300_000], &log), 1);
    world.send(0, 1, lent(pattern(300_000, 1), &Log::default()), 1);
    world.drive();
    assert!(world.receive_done(1).buffer.bytes == pattern(300_000, 1));
    assert_eq!(*log.borrow(), ["registered", "given back"]);
    assert_eq!(world.endpoint(1).statistics().rdma_reads, 1, "nothing is copied");
}

/// Nothing is left to be read, so the device has nothing to do with the buffer.
#[test]
fn receive_shorter_than_the_runt_completes_on_peer_removal() {
    let mut world = pair(6, config(), config());
    world.receive_into(1, Memory::Heap(vec![0; 1500]), 1);
    let connid = Some(world.ends[0].endpoint.address().connid);
    let options = ReqOptions { raw_address: None, cq_data: None, connid };
    let read_iov = [RmaIov::new(0, 300_000, 1)];
    let kind = RtmKind::RuntRead {
        msg_length: 300_000,
        send_id: OpId(0),
        seg_offset: 0,
        runt_length: 2000,
        read_iov: &read_iov,
    };
    let rtm = Rtm { msg_id: MsgId(1), tag: None, kind, options };
    world.inject(0, 1, Header::Rtm(rtm), &[7; 1000]);
    world.drive();
    assert!(world.take_receives(1).is_empty());
    let peer = world.peer(1, 0);
    world.endpoint(1).remove_peer(peer);
    assert_eq!(world.receive_done(1).result, Err(OperationError::PeerRemoved));
}
