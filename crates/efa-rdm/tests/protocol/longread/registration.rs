//! Buffers that register themselves for the time of a read.

use efa_device::{Access, QueuePair, Region, RegionRange, RegisterError};
use efa_proto::{Header, Packet, PacketType, Rtm, RtmKind};
use efa_rdm::{Config, Payload, Subprotocol};
use efa_sim::SoftRegion;
use efa_sim::local::{Faults, LocalOptions};

use super::{Memory, config, pair, withdraw_rdma_read};
use crate::world::{Net, pattern};

/// A buffer that can be registered, and logs each registration and deregistration.
#[derive(Debug)]
struct Registrable {
    bytes: Vec<u8>,
    region: Option<SoftRegion>,
    log: Log,
}

/// Registrations and deregistrations of a buffer, in order.
type Log = std::rc::Rc<std::cell::RefCell<Vec<&'static str>>>;

impl Payload<SoftRegion> for Registrable {
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
    fn register(&mut self, device: &impl QueuePair<Region = SoftRegion>, access: Access) -> bool {
        match device.register(std::mem::take(&mut self.bytes).into(), access) {
            Ok(region) => {
                self.log.borrow_mut().push("registered");
                self.region = Some(region);
            }
            Err(RegisterError { memory, .. }) => self.bytes = memory.into(),
        }
        self.region.is_some()
    }
    fn deregister(&mut self) {
        if let Some(region) = self.region.take() {
            self.log.borrow_mut().push("deregistered");
            self.bytes = region.reclaim().unwrap().into();
        }
    }
}

fn registrable(bytes: Vec<u8>, log: &Log) -> Registrable {
    Registrable { bytes, region: None, log: log.clone() }
}

/// Two endpoints with registrable buffers that have exchanged HANDSHAKEs.
fn registrable_pair() -> Net<Registrable> {
    registrable_pair_with(&config())
}

fn registrable_pair_with(config: &Config) -> Net<Registrable> {
    let mut world = Net::new(LocalOptions::default());
    world.add(config.clone());
    world.add(config.clone());
    world.acquaint();
    world.receive_into(1, registrable(vec![0], &Log::default()), 0);
    world.send(0, 1, registrable(vec![1], &Log::default()), 0);
    world.drive();
    world.receive_done(1);
    world.send_done(0);
    world
}

// conformance: A216
#[test]
fn sender_deregisters_its_buffer_after_read_nack() {
    let (mut world, log) = (registrable_pair(), Log::default());
    world.ends[1].device.refuse_registrations(u32::MAX);
    world.send(0, 1, registrable(pattern(300_000, 1), &log), 1);
    world.drive();
    assert_eq!(*log.borrow(), ["registered"], "it is exposed for reading");
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
    world.receive_into(1, registrable(vec![0; 300_000], &Log::default()), 1);
    while world.endpoint(0).statistics().received.of(PacketType::ReadNack) == 0 {
        world.step();
    }
    assert_eq!(
        *log.borrow(),
        ["registered", "deregistered"],
        "deregistered before any data is sent"
    );
    assert!(world.ends[0].device.region(key).is_none(), "the key is unknown now");
    assert!(world.take_sends(0).is_empty());
    world.drive();
    assert!(world.receive_done(1).buffer.bytes == pattern(300_000, 1));
    let sent = world.send_done(0);
    assert_eq!(sent.subprotocol, Some(Subprotocol::LongCts));
    assert!(sent.buffer.unwrap().bytes == pattern(300_000, 1));
    assert_eq!(log.borrow().len(), 2, "once");
}

/// A registered or empty buffer needs no bounce memory.
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
    let (mut world, log) = (registrable_pair(), Log::default());
    world.receive_into(1, registrable(vec![0; 300_000], &log), 1);
    world.send(0, 1, registrable(pattern(300_000, 1), &Log::default()), 1);
    world.drive();
    assert!(world.receive_done(1).buffer.bytes == pattern(300_000, 1));
    assert_eq!(*log.borrow(), ["registered", "deregistered"]);
    assert_eq!(world.endpoint(1).statistics().rdma_reads, 1, "nothing is copied");
}

/// The request of a message that fits a packet is refused; a second HANDSHAKE arrives before it is tried again.
#[test]
fn buffer_comes_back_deregistered_if_the_handshake_withdraws_rdma_read_from_a_short_message() {
    let config = config().with(|config| config.min_read = Some(100));
    let (mut world, log) = (registrable_pair_with(&config), Log::default());
    world.receive_into(1, registrable(vec![0; 1000], &Log::default()), 1);
    world.network.set_faults(Faults::default().with(|faults| faults.send_refused = 1.0));
    world.send(0, 1, registrable(pattern(1000, 1), &log), 2);
    assert_eq!(*log.borrow(), ["registered"], "the peer was to read it");
    withdraw_rdma_read(&mut world);
    world.network.set_faults(Faults::default());
    world.drive();
    assert!(world.receive_done(1).buffer.bytes == pattern(1000, 1));
    let sent = world.send_done(0);
    assert_eq!((sent.subprotocol, sent.result), (Some(Subprotocol::Eager), Ok(())));
    assert_eq!(*log.borrow(), ["registered", "deregistered"]);
    assert!(sent.buffer.unwrap().bytes == pattern(1000, 1));
}
