//! When buffers come back from an endpoint that is dropped, and when a call ends while a peer goes on sending.

use std::sync::Mutex;
use std::time::Duration;

use efa_device::{
    Access, AddressHandle, Completion as DeviceCompletion, Device as _, DeviceAttributes,
    DeviceError, Gid, NoTagList, PostError, Qkey, Qpn, QueuePairAddress, QueuePairOptions,
    RdmaRequest, RegisterError, SendRequest, Source,
};
use efa_rdm::{Config, OperationError};
use efa_sim::SoftQueuePair;
use efa_sim::region::SoftRegion;

use super::*;
use crate::device::Device;
use crate::endpoint::EndpointId;
use crate::{
    AddressVector, CompletionQueueOptions, Domain, Fabric, LocalOptions, ManualClock, MemoryRegion,
};

/// A queue pair that records when it is dropped whether the completion queue had an entry by then.
#[derive(Debug)]
struct RecordingQueuePair {
    real: SoftQueuePair,
    /// Whether somebody sends datagrams of no meaning, as fast as they are taken.
    is_flooded: bool,
    queue: Arc<CompletionQueue>,
    had_entries: Arc<Mutex<Option<bool>>>,
}

impl Drop for RecordingQueuePair {
    fn drop(&mut self) {
        *self.had_entries.lock().unwrap() = Some(self.queue.has_entries());
    }
}

impl QueuePair for RecordingQueuePair {
    type Packet = Box<[u8]>;
    type Region = SoftRegion;
    type TagList = NoTagList;

    fn attributes(&self) -> &DeviceAttributes {
        self.real.attributes()
    }

    fn address(&self) -> QueuePairAddress {
        self.real.address()
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        self.real.create_address_handle(gid)
    }

    fn destroy_address_handle(&mut self, handle: AddressHandle) {
        self.real.destroy_address_handle(handle);
    }

    fn allocate_packet(&mut self) -> Result<Box<[u8]>, DeviceError> {
        self.real.allocate_packet()
    }

    fn post_send(&mut self, request: SendRequest<Box<[u8]>>) -> Result<(), PostError<Box<[u8]>>> {
        self.real.post_send(request)
    }

    fn post_receive(&mut self, packet: Box<[u8]>) -> Result<(), PostError<Box<[u8]>>> {
        self.real.post_receive(packet)
    }

    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<SoftRegion, RegisterError> {
        self.real.register(memory, access)
    }

    fn region(&self, key: u32) -> Option<SoftRegion> {
        self.real.region(key)
    }

    fn post_read(&mut self, request: RdmaRequest<SoftRegion>) -> Result<(), DeviceError> {
        self.real.post_read(request)
    }

    fn poll(&mut self, now: Time) -> Option<DeviceCompletion<Box<[u8]>>> {
        if self.is_flooded {
            let packet = self.real.withdraw_receive()?;
            let source = Source { address_handle: None, qpn: Qpn(1), gid: None };
            return Some(DeviceCompletion::Receive { packet, length: 8, source, immediate: None });
        }
        self.real.poll(now)
    }

    fn next_event(&self) -> Option<Time> {
        self.real.next_event()
    }
}

struct Host {
    domain: Domain,
    addresses: AddressVector,
}

impl Host {
    fn on(fabric: &Fabric) -> Self {
        let domain = fabric.domain().unwrap();
        let addresses = domain.address_vector();
        Self { domain, addresses }
    }

    fn queue(&self) -> crate::CompletionQueue {
        self.domain.completion_queue(CompletionQueueOptions::default())
    }

    fn queue_pair(&self) -> SoftQueuePair {
        self.queue_pair_with(QueuePairOptions::default())
    }

    fn queue_pair_with(&self, options: QueuePairOptions) -> SoftQueuePair {
        match self.domain.device() {
            Device::Soft(device) => device.create_queue_pair(options).unwrap(),
            Device::Verbs(_) => panic!("the local link is software"),
        }
    }

    /// A queue pair with this number and key. Numbers are given in turn.
    fn queue_pair_at(&self, qpn: Qpn, qkey: u32) -> SoftQueuePair {
        let mut options = QueuePairOptions::default();
        options.qkey = Qkey(qkey);
        loop {
            let queue_pair = self.queue_pair_with(options);
            if queue_pair.address().qpn == qpn {
                return queue_pair;
            }
        }
    }

    fn driver<Q: QueuePair<Region: ConcreteRegion, Packet: ConcretePacket>>(
        &self,
        queue_pair: Q,
        queue: &crate::CompletionQueue,
    ) -> Driver<Q> {
        let bindings = Bindings {
            member: None,
            endpoint: EndpointId(0),
            transmit: queue.shared().clone(),
            receive: queue.shared().clone(),
            addresses: self.addresses.shared().clone(),
            sources: Sources::Reported,
            level: Level::Transmit,
            unreported: [Unreported::None; 2],
            counters: Counters::default(),
            send_budget: None,
            keys: None,
            signals: Vec::new(),
            waiters: Vec::new(),
        };
        Driver::new(Engine::new(queue_pair, Config::default()).unwrap(), bindings)
    }

    fn region(&self, access: Access) -> MemoryRegion {
        self.domain.register(vec![7; 10_000], access).unwrap()
    }
}

#[test]
fn buffer_of_an_rdma_read_returns_after_the_queue_pair_is_destroyed() {
    let clock = ManualClock::new();
    let fabric = Fabric::local(LocalOptions::default()).with_clock(&clock);
    let host = Host::on(&fabric);
    let (queue, had_entries) = (host.queue(), Arc::default());
    let real = host.queue_pair();
    let queue_pair = RecordingQueuePair {
        real,
        is_flooded: false,
        queue: queue.shared().clone(),
        had_entries: Arc::clone(&had_entries),
    };
    let mut reader = host.driver(queue_pair, &queue);
    let mut target = host.driver(host.queue_pair(), &host.queue());
    let to_target = host.addresses.insert(target.address()).unwrap();

    let far = host.region(Access { remote_read: true, ..Access::default() });
    let near = host.region(Access::default());
    let rma = Rma::at(to_target, far.remote());
    reader.read(rma, near.slice(0..10_000).unwrap().into(), 1).unwrap();
    reader.receive(Receive::untagged(), near.slice(0..10).unwrap().into(), 2).unwrap();
    let mut polls = 0;
    while reader.statistics().rdma_reads == 0 {
        reader.progress(fabric.clock());
        target.progress(fabric.clock());
        clock.advance(Duration::from_micros(1));
        polls += 1;
        assert!(polls < 10_000, "no RDMA read was posted");
    }

    drop(reader);
    assert_eq!(
        *had_entries.lock().unwrap(),
        Some(false),
        "a buffer came back while the queue pair existed"
    );
    for _ in 0..2 {
        assert_eq!(queue.read().unwrap().unwrap_err().error, OperationError::Closed);
    }
    assert!(queue.read().is_none());
}

/// A target to whose device `count` writes with data have come.
fn written_to(count: u64) -> (Fabric, Driver<SoftQueuePair>, crate::CompletionQueue) {
    let clock = ManualClock::new();
    let options = LocalOptions::default().with(|options| {
        options.rdma.unsolicited_write_receive = true;
    });
    let fabric = Fabric::local(options).with_clock(&clock);
    let host = Host::on(&fabric);
    let (sent, received) = (host.queue(), host.queue());
    let mut writer = host.driver(host.queue_pair(), &sent);
    let mut target = host.driver(host.queue_pair(), &received);
    let to_target = host.addresses.insert(target.address()).unwrap();
    let far = host.region(Access { remote_write: true, ..Access::default() });
    let near = host.region(Access::default());
    let write = |writer: &mut Driver<SoftQueuePair>, context| {
        let rma = Rma::at(to_target, far.remote().slice(0..8).unwrap()).with_data(context);
        writer.write(rma, near.slice(0..8).unwrap().into(), context).unwrap();
    };
    // The peers get to know each other by the first.
    write(&mut writer, 0);
    let mut told = 0;
    while told < 2 {
        writer.progress(fabric.clock());
        target.progress(fabric.clock());
        clock.advance(Duration::from_micros(1));
        told += [&sent, &received].iter().filter(|queue| queue.read().is_some()).count();
    }
    (1..=count).for_each(|context| write(&mut writer, context));
    for _ in 0..10_000 {
        writer.progress(fabric.clock());
        clock.advance(Duration::from_micros(1));
    }
    (fabric, target, received)
}

#[test]
fn progress_ends_after_64_completions_though_the_device_has_more() {
    let (fabric, mut target, queue) = written_to(200);
    for expected in [64, 64, 64, 8, 0] {
        target.progress(fabric.clock());
        let entries: Vec<_> = std::iter::from_fn(|| queue.read()).collect();
        assert_eq!(entries.len(), expected);
        assert!(entries.iter().all(Result::is_ok));
    }
}

#[test]
fn drain_ends_though_datagrams_go_on_arriving() {
    let fabric = Fabric::local(LocalOptions::default()).with_clock(&ManualClock::new());
    let host = Host::on(&fabric);
    let queue = host.queue();
    let queue_pair = RecordingQueuePair {
        real: host.queue_pair(),
        is_flooded: true,
        queue: queue.shared().clone(),
        had_entries: Arc::default(),
    };
    let mut target = host.driver(queue_pair, &queue);
    assert!(target.drain(fabric.clock()));
    assert!(target.statistics().received_bytes > 100_000, "it was flooded");
}

#[test]
fn address_of_a_later_incarnation_is_refused_after_a_still_later_one_was_heard() {
    let clock = ManualClock::new();
    let fabric = Fabric::local(LocalOptions::default()).with_clock(&clock);
    let (host, other) = (Host::on(&fabric), Host::on(&fabric));
    let queues = [host.queue(), other.queue()];
    let mut receiver = host.driver(host.queue_pair(), &queues[0]);
    let to_receiver = other.addresses.insert(receiver.address()).unwrap();
    let insert = |receiver: &mut Driver<SoftQueuePair>, address| {
        let peer = host.addresses.insert(address).unwrap();
        receiver.peers_inserted(&[(peer, address)]);
        peer
    };
    let mut addresses = [None; 3];
    for (context, connid) in [(0, 70), (2, 72)] {
        let mut sender = other.driver(other.queue_pair_at(Qpn(9), connid), &queues[1]);
        addresses[context] = Some(insert(&mut receiver, sender.address()));
        receiver.receive(Receive::untagged(), vec![0; 8].into(), context as u64).unwrap();
        sender.send(Message::to(to_receiver), b"hello".to_vec().into(), 1).unwrap();
        let received = loop {
            receiver.progress(fabric.clock());
            sender.progress(fabric.clock());
            clock.advance(Duration::from_micros(1));
            match queues[0].read() {
                Some(received) => break received.unwrap(),
                None => assert!(clock.now() < Time::ZERO + Duration::from_secs(1)),
            }
        };
        assert_eq!(received.peer, addresses[context]);
        // The HANDSHAKE is delivered to the sender.
        for _ in 0..100 {
            receiver.progress(fabric.clock());
            sender.progress(fabric.clock());
            clock.advance(Duration::from_micros(1));
        }
        if context == 0 {
            let mut next = sender.address().raw();
            next.connid.0 = 71;
            addresses[1] = Some(insert(&mut receiver, next.into()));
        }
    }
    let mut send = |to: Option<FiAddr>| {
        let sent = receiver.send(Message::to(to.unwrap()), b"x".to_vec().into(), 1);
        sent.map_err(|refused| refused.error)
    };
    for earlier in &addresses[..2] {
        assert_eq!(send(*earlier), Err(StartError::PeerGone(earlier.unwrap())));
    }
    assert_eq!(send(addresses[2]), Ok(()), "what was refused did not end the latest one");
}
