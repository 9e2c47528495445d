//! Sections 4.1, 4.5 and 4.7: long-read messages. Runting read, READ_NACK, buffers that register themselves
//! and the queue of reads have files of their own.

mod nack;
mod queue;
mod registration;
mod runting;

use efa_device::{Access, QueuePair, Rdma, Region, RegionRange};
use efa_handshake::Extras;
use efa_proto::{
    Connid, ExtraInfo, Handshake, Header, MsgId, OpId, PacketType, ReqOptions, RmaIov, Rtm, RtmKind,
};
use efa_rdm::{Config, DropReason, OperationError, Payload, Subprotocol};
use efa_sim::SoftRegion;
use efa_sim::local::{Faults, LocalOptions, Reorder};

use crate::world::{Net, pattern};

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
    /// Registered memory with guard bytes before and behind the buffer.
    fn region(&mut self, end: usize, bytes: &[u8]) -> Memory {
        let memory = [&[0xaa; 100], bytes, &[0xbb; 28]].concat();
        let queue_pair = self.ends[end].endpoint.queue_pair();
        let region = queue_pair.register(memory.into(), READABLE).unwrap();
        Memory::Region(RegionRange { region, offset: 100, length: bytes.len() })
    }

    /// Sends one byte, so that HANDSHAKEs are exchanged.
    fn shake_hands(&mut self) {
        self.acquaint();
        self.send_byte(0, 1);
        self.forget_packets();
    }

    /// Sends one byte, until both ends have completed that.
    fn send_byte(&mut self, from: usize, to: usize) {
        self.receive_into(to, Memory::Heap(vec![0]), 0);
        self.send(from, to, Memory::Heap(vec![1]), 0);
        self.drive();
        self.receive_done(to);
        self.send_done(from);
    }
}

/// Messages of at least 100,000 bytes are read.
fn config() -> Config {
    Config::default().with(|config| config.min_read = Some(100_000))
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
    // Not registered; below the limit; sent before the HANDSHAKE.
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
        assert_eq!(world.send_done(0).result, Ok(()), "the sender gets its EOR");
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

#[test]
fn empty_message_is_received_by_every_subprotocol() {
    for runt_size in [0, 10] {
        for refused in [false, true] {
            let config = Config::default().with(|config| {
                config.min_read = Some(0);
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
            // The next message arrives, too.
            world.receive_into(1, Memory::Heap(vec![0; 5]), 8);
            let buffer = world.region(0, &pattern(5, 1));
            world.send(0, 1, buffer, 9);
            world.drive();
            assert_eq!(world.receive_done(1).buffer.bytes(), pattern(5, 1));
        }
    }
}

/// Another HANDSHAKE of the second endpoint, with these features.
fn second_handshake<B: Payload<SoftRegion> + std::fmt::Debug>(
    world: &mut Net<B>,
    extras: Extras,
) -> Handshake<'static> {
    Handshake {
        extra_info: ExtraInfo::new(&[extras.bits()]).unwrap(),
        connid: Some(world.endpoint(1).address().connid),
        host_id: None,
        device_version: None,
        user_recv_qp: None,
        hmem_p2p: None,
    }
}

/// Has the first endpoint get another HANDSHAKE of the second one, without RDMA_READ.
fn withdraw_rdma_read<B: Payload<SoftRegion> + std::fmt::Debug>(world: &mut Net<B>) {
    let peer = world.peer(0, 1);
    let extras = world.endpoint(0).peer_extras(peer).unwrap() - Extras::RDMA_READ;
    let handshake = second_handshake(world, extras);
    world.inject(1, 0, Header::Handshake(handshake), &[]);
    while world.endpoint(0).peer_extras(peer) != Some(extras) {
        world.step();
    }
}

/// A second HANDSHAKE may arrive between two attempts to send a request.
#[test]
fn message_is_sent_if_the_handshake_withdraws_rdma_read() {
    for runt_size in [0, 60_000] {
        let mut world = pair(1, config().with(|config| config.runt_size = runt_size), config());
        world.receive_into(1, Memory::Heap(vec![0; 200_000]), 1);
        let message = world.region(0, &pattern(200_000, 1));
        world.network.set_faults(Faults::default().with(|faults| faults.send_refused = 1.0));
        world.send(0, 1, message, 2);
        withdraw_rdma_read(&mut world);
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

// conformance: A163
#[test]
fn message_is_sent_in_packets_if_reading_is_not_permitted() {
    // Either side lacks RDMA_READ; the memory is not readable; the devices have different versions.
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
            let handshake = second_handshake(&mut world, extras);
            let handshake = Handshake { device_version: Some(0xefa0), ..handshake };
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
