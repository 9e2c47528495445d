//! A network in memory: two endpoints with queue pairs, and a hostile peer without one.
//!
//! ```text
//!   subject ◄── packets ──► honest        delivered in order, acknowledged, RNR without buffers
//!      ▲  │
//!      │  └── packets ──► recorded for the hostile peer, which selects the completion status
//!      └──── any bytes, from any queue pair except that of the honest peer
//! ```
//!
//! The guarantees of a device hold: no peer sends from the queue pair or the interface of another. RDMA
//! between the endpoints is executed when it is posted; the hostile peer selects the status of RDMA to it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use efa_device::{
    Access, AddressHandle, Completion, DeviceAttributes, DeviceError, Gid, NoTagList, PostError,
    Qkey, Qpn, QueuePair, QueuePairAddress, Rdma, RdmaRequest, Region, RegisterError, SendRequest,
    Source, Status, TagListLimits, Time,
};
use efa_sim::tm::{ModelTagList, TagQueuePair};

/// Largest datagram.
pub(crate) const MTU: usize = 512;
/// Capacity of a send queue.
const DEPTH: usize = 64;
/// Most address handles of a device.
const HANDLES: usize = 12;
/// Packets that are recorded for the hostile peer.
const RECORDED_PACKETS: usize = 32;

type Buffer = Box<[u8]>;

/// Registered memory. An access outside of it fails the test.
#[derive(Clone, Debug)]
pub(crate) struct Mem(Rc<Registered>);

#[derive(Debug)]
struct Registered {
    bytes: RefCell<Buffer>,
    address: u64,
    key: u32,
    access: Access,
}

impl Mem {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.bytes.borrow().to_vec()
    }
}

impl Region for Mem {
    fn length(&self) -> usize {
        self.0.bytes.borrow().len()
    }
    fn remote_address(&self) -> u64 {
        self.0.address
    }
    fn remote_key(&self) -> u32 {
        self.0.key
    }
    fn access(&self) -> Access {
        self.0.access
    }
    fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        into.copy_from_slice(&self.0.bytes.borrow()[offset..][..into.len()]);
        into.len()
    }
    fn write(&self, offset: usize, from: &[u8]) -> usize {
        self.0.bytes.borrow_mut()[offset..][..from.len()].copy_from_slice(from);
        from.len()
    }
    fn update(
        &self,
        offset: usize,
        bytes: &mut [u8],
        mut change: impl FnMut(&mut [u8]) -> bool,
    ) -> usize {
        let mut memory = self.0.bytes.borrow_mut();
        let place = &mut memory[offset..][..bytes.len()];
        bytes.copy_from_slice(place);
        if change(bytes) {
            place.copy_from_slice(bytes);
        }
        bytes.len()
    }
    fn reclaim(self) -> Result<Buffer, Self> {
        let registered = Rc::try_unwrap(self.0).map_err(Self)?;
        Ok(registered.bytes.into_inner())
    }
}

/// GID and number of a queue pair.
pub(crate) type Place = (Gid, Qpn);

/// A packet that was not delivered yet.
enum Incoming {
    /// From the endpoint with this index.
    Honest(usize, SendRequest<Buffer>),
    Hostile(Place, Vec<u8>),
}

#[derive(Default)]
struct Node {
    address: QueuePairAddress,
    incoming: VecDeque<Incoming>,
    posted: Vec<Buffer>,
    done: VecDeque<Completion<Buffer>>,
    outstanding: usize,
    /// Interfaces by address handle, with their reference counts.
    handles: Vec<(Gid, usize)>,
    regions: Vec<Weak<Registered>>,
}

/// The network.
pub(crate) struct Net {
    nodes: [Node; 2],
    /// Completion status of sends to the hostile peer, and of RDMA to it.
    pub(crate) answer: Result<(), Status>,
    pub(crate) rdma_answer: Result<(), Status>,
    /// Whether completions contain the GID of senders without an address handle.
    report_gid: bool,
    /// Whether a packet without a receive buffer blocks the packets behind it.
    keeps_order: bool,
    pub(crate) packets_to_hostile: VecDeque<Vec<u8>>,
    /// Packets between the two endpoints, which the hostile peer reads.
    pub(crate) packets_between_endpoints: VecDeque<Vec<u8>>,
    keys: u32,
}

pub(crate) type Shared = Rc<RefCell<Net>>;

/// Addresses of the two endpoints.
pub(crate) const ADDRESSES: [QueuePairAddress; 2] = [
    QueuePairAddress { gid: interface(1), qpn: Qpn(1), qkey: Qkey(0x1001) },
    QueuePairAddress { gid: interface(2), qpn: Qpn(2), qkey: Qkey(0x1002) },
];

/// The GID of the interface with this number.
pub(crate) const fn interface(number: u8) -> Gid {
    Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, number])
}

/// The queue pairs of the subject and of the honest peer.
pub(crate) fn network(rdma: Rdma, report_gid: bool) -> (Shared, [Wire; 2]) {
    let attributes = DeviceAttributes {
        vendor_part_id: 0xefa2,
        mtu: MTU,
        max_send: DEPTH,
        max_receive: 128,
        max_address_handles: HANDLES,
        max_rdma_size: 1 << 12,
        rdma,
        ..DeviceAttributes::default()
    };
    let node = |address| Node { address, ..Node::default() };
    let net = Rc::new(RefCell::new(Net {
        nodes: ADDRESSES.map(node),
        answer: Ok(()),
        rdma_answer: Ok(()),
        report_gid,
        keeps_order: false,
        packets_to_hostile: VecDeque::new(),
        packets_between_endpoints: VecDeque::new(),
        keys: 0,
    }));
    let wires = [0, 1].map(|node| Wire { net: net.clone(), node, attributes: attributes.clone() });
    (net, wires)
}

impl Net {
    /// Queues a packet of the hostile peer to the subject.
    pub(crate) fn inject(&mut self, from: Place, bytes: Vec<u8>) {
        let of_another = ADDRESSES.iter().any(|address| (address.gid, address.qpn) == from);
        assert!(!of_another, "a packet from the queue pair of another peer");
        self.nodes[0].incoming.push_back(Incoming::Hostile(from, bytes));
    }

    /// Reports an RDMA write with immediate data of the hostile peer at the subject.
    pub(crate) fn write_with_data(&mut self, from: Place, immediate: u32, length: u64) {
        let source = self.source(0, from);
        let packet = self.nodes[0].posted.pop();
        self.nodes[0].done.push_back(Completion::Written { immediate, length, source, packet });
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.nodes.iter().all(|node| node.incoming.is_empty() && node.done.is_empty())
    }

    fn source(&self, at: usize, (gid, qpn): Place) -> Source {
        let handles = &self.nodes[at].handles;
        match handles.iter().position(|(of, count)| *of == gid && *count > 0) {
            Some(handle) => {
                Source { address_handle: Some(AddressHandle(handle as u16)), qpn, gid: None }
            }
            None => Source { address_handle: None, qpn, gid: self.report_gid.then_some(gid) },
        }
    }

    fn deliver(&mut self, at: usize) {
        if self.keeps_order && self.nodes[at].posted.is_empty() {
            return;
        }
        let Some(incoming) = self.nodes[at].incoming.pop_front() else { return };
        match incoming {
            Incoming::Honest(from, request) => {
                let place = (ADDRESSES[from].gid, ADDRESSES[from].qpn);
                let result = self.put(at, place, &request.packet[..request.length]);
                let result = if result { Ok(()) } else { Err(Status::ReceiverNotReady) };
                let SendRequest { id, packet, .. } = request;
                self.nodes[from].done.push_back(Completion::Send { id, packet, result });
            }
            Incoming::Hostile(from, bytes) => {
                // The packet is retried until there is a receive buffer.
                if !self.put(at, from, &bytes) {
                    self.nodes[at].incoming.push_back(Incoming::Hostile(from, bytes));
                }
            }
        }
    }

    fn put(&mut self, at: usize, from: Place, bytes: &[u8]) -> bool {
        let source = self.source(at, from);
        let node = &mut self.nodes[at];
        let Some(mut packet) = node.posted.pop() else { return false };
        packet[..bytes.len()].copy_from_slice(bytes);
        let (length, immediate) = (bytes.len(), None);
        node.done.push_back(Completion::Receive { packet, length, source, immediate });
        true
    }

    fn remember(record: &mut VecDeque<Vec<u8>>, bytes: &[u8]) {
        if record.len() == RECORDED_PACKETS {
            record.pop_front();
        }
        record.push_back(bytes.to_vec());
    }

    /// Registered memory of the endpoint at this GID.
    fn region(&self, gid: Gid, key: u32) -> Option<Mem> {
        let node = self.nodes.iter().find(|node| node.address.gid == gid)?;
        let mut regions = node.regions.iter().filter_map(Weak::upgrade);
        regions.find(|region| region.key == key).map(Mem)
    }

    fn rdma(&mut self, node: usize, request: RdmaRequest<Mem>, write: bool) {
        let RdmaRequest { id, local, remote, destination } = request;
        let gid = self.nodes[node].handles[usize::from(destination.address_handle.0)].0;
        let length = local.length;
        let is_ours = self.nodes.iter().any(|node| node.address.gid == gid);
        let result = if is_ours {
            self.region(gid, remote.key).ok_or(Status::RemoteBadAddress).and_then(|region| {
                let access = region.access();
                let offset = remote.address.checked_sub(region.remote_address());
                let offset = offset.and_then(|offset| usize::try_from(offset).ok());
                let fits = |offset: &usize| {
                    offset.checked_add(length).is_some_and(|end| end <= region.length())
                };
                let allowed = if write { access.remote_write } else { access.remote_read };
                let offset = offset.filter(fits).filter(|_| allowed);
                let offset = offset.ok_or(Status::RemoteBadAddress)?;
                let (from, to) = ((&region, offset), (&local.region, local.offset));
                let (from, to) = if write { (to, from) } else { (from, to) };
                let mut bytes = vec![0; length];
                from.0.read(from.1, &mut bytes);
                to.0.write(to.1, &bytes);
                Ok(())
            })
        } else {
            self.rdma_answer
        };
        self.nodes[node].done.push_back(Completion::Rdma { id, result });
    }
}

/// A queue pair.
#[derive(Clone)]
pub(crate) struct Wire {
    net: Shared,
    node: usize,
    attributes: DeviceAttributes,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Wire({})", self.node)
    }
}

impl QueuePair for Wire {
    type Packet = Buffer;
    type Region = Mem;
    type TagList = NoTagList;

    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn address(&self) -> QueuePairAddress {
        ADDRESSES[self.node]
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        let mut net = self.net.borrow_mut();
        let handles = &mut net.nodes[self.node].handles;
        if gid == Gid::ZERO {
            return Err(DeviceError::BadAddress { gid });
        }
        let known = handles.iter().position(|(of, count)| *of == gid && *count > 0);
        let free = handles.iter().position(|(_, count)| *count == 0);
        let place = match known.or(free) {
            Some(place) => place,
            None if handles.len() == HANDLES => {
                return Err(DeviceError::LimitReached { object: "address handle", limit: HANDLES });
            }
            None => {
                handles.push((gid, 0));
                handles.len() - 1
            }
        };
        handles[place] = (gid, handles[place].1 + 1);
        Ok(AddressHandle(place as u16))
    }

    fn destroy_address_handle(&mut self, handle: AddressHandle) {
        let mut net = self.net.borrow_mut();
        let count = &mut net.nodes[self.node].handles[usize::from(handle.0)].1;
        *count = count.checked_sub(1).expect("an address handle is destroyed once");
    }

    fn gid_of(&self, handle: AddressHandle) -> Option<Gid> {
        let net = self.net.borrow();
        let (gid, count) = net.nodes[self.node].handles.get(usize::from(handle.0))?;
        (*count > 0).then_some(*gid)
    }

    fn allocate_packet(&mut self) -> Result<Buffer, DeviceError> {
        Ok(vec![0; MTU].into())
    }

    fn post_send(&mut self, request: SendRequest<Buffer>) -> Result<(), PostError<Buffer>> {
        let net = &mut *self.net.borrow_mut();
        let node = &mut net.nodes[self.node];
        if node.outstanding == DEPTH {
            let error = DeviceError::QueueFull { depth: DEPTH };
            return Err(PostError { error, packet: request.packet });
        }
        assert!(request.length <= MTU, "a datagram of {} bytes", request.length);
        node.outstanding += 1;
        let (gid, count) = node.handles[usize::from(request.destination.address_handle.0)];
        assert!(count > 0, "use of a destroyed address handle");
        let qpn = request.destination.qpn;
        let bytes = &request.packet[..request.length];
        let target = ADDRESSES.iter().position(|place| (place.gid, place.qpn) == (gid, qpn));
        match target {
            Some(target) if ADDRESSES[target].qkey == request.destination.qkey => {
                Net::remember(&mut net.packets_between_endpoints, bytes);
                net.nodes[target].incoming.push_back(Incoming::Honest(self.node, request));
            }
            _ => {
                Net::remember(&mut net.packets_to_hostile, bytes);
                let (result, SendRequest { id, packet, .. }) = (net.answer, request);
                let done = Completion::Send { id, packet, result };
                net.nodes[self.node].done.push_back(done);
            }
        }
        Ok(())
    }

    fn post_receive(&mut self, packet: Buffer) -> Result<(), PostError<Buffer>> {
        self.net.borrow_mut().nodes[self.node].posted.push(packet);
        Ok(())
    }

    fn register(&self, memory: Buffer, access: Access) -> Result<Mem, RegisterError> {
        let mut net = self.net.borrow_mut();
        net.keys += 1;
        // Keys that cannot be guessed by counting.
        let key = net.keys.wrapping_mul(0x9e37_79b1) ^ 0x55aa_0ff0;
        let address = u64::from(net.keys) << 32 | 0x1000;
        let registered = Rc::new(Registered { bytes: memory.into(), address, key, access });
        let regions = &mut net.nodes[self.node].regions;
        regions.retain(|region| region.strong_count() > 0);
        regions.push(Rc::downgrade(&registered));
        Ok(Mem(registered))
    }

    fn region(&self, key: u32) -> Option<Mem> {
        self.net.borrow().region(ADDRESSES[self.node].gid, key)
    }

    fn post_read(&mut self, request: RdmaRequest<Mem>) -> Result<(), DeviceError> {
        self.net.borrow_mut().rdma(self.node, request, false);
        Ok(())
    }

    fn post_write(
        &mut self,
        request: RdmaRequest<Mem>,
        immediate: Option<u32>,
    ) -> Result<(), DeviceError> {
        let mut net = self.net.borrow_mut();
        let (length, destination) = (request.local.length as u64, request.destination);
        net.rdma(self.node, request, true);
        let gid = net.nodes[self.node].handles[usize::from(destination.address_handle.0)].0;
        let target = ADDRESSES.iter().position(|address| address.gid == gid);
        if let (Some(target), Some(immediate)) = (target, immediate) {
            let from = ADDRESSES[self.node];
            let source = net.source(target, (from.gid, from.qpn));
            let written = Completion::Written { immediate, length, source, packet: None };
            net.nodes[target].done.push_back(written);
        }
        Ok(())
    }

    fn poll(&mut self, _: Time) -> Option<Completion<Buffer>> {
        let net = &mut *self.net.borrow_mut();
        if net.nodes[self.node].done.is_empty() {
            net.deliver(self.node);
        }
        let node = &mut net.nodes[self.node];
        let done = node.done.pop_front()?;
        if let Completion::Send { .. } = done {
            node.outstanding -= 1;
        }
        Some(done)
    }

    fn next_event(&self) -> Option<Time> {
        None
    }
}

/// A queue pair, with or without a tag list.
#[derive(Debug)]
pub(crate) enum Port {
    Plain(Wire),
    Listed(Box<TagQueuePair<Wire>>),
}

impl Port {
    /// A device with a tag list delivers packets in order. The seed decides when the commands of the list
    /// are executed.
    pub(crate) fn listed(wire: Wire, limits: TagListLimits, seed: u64) -> Self {
        wire.net.borrow_mut().keeps_order = true;
        Self::Listed(TagQueuePair::new(wire, limits, efa_rdm::leading_tag, seed).into())
    }

    /// Whether no entry of the tag list is held back.
    pub(crate) fn is_live(&self) -> bool {
        match self {
            Self::Plain(_) => true,
            Self::Listed(listed) => listed.list().live_len() == listed.list().len(),
        }
    }
}

macro_rules! either {
    ($port:expr, $queue_pair:ident => $call:expr) => {
        match $port {
            Port::Plain($queue_pair) => $call,
            Port::Listed($queue_pair) => $call,
        }
    };
}

impl QueuePair for Port {
    type Packet = Buffer;
    type Region = Mem;
    type TagList = ModelTagList;

    fn attributes(&self) -> &DeviceAttributes {
        either!(self, queue_pair => queue_pair.attributes())
    }

    fn address(&self) -> QueuePairAddress {
        either!(self, queue_pair => queue_pair.address())
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        either!(self, queue_pair => queue_pair.create_address_handle(gid))
    }

    fn destroy_address_handle(&mut self, handle: AddressHandle) {
        either!(self, queue_pair => queue_pair.destroy_address_handle(handle));
    }

    fn gid_of(&self, handle: AddressHandle) -> Option<Gid> {
        either!(self, queue_pair => queue_pair.gid_of(handle))
    }

    fn allocate_packet(&mut self) -> Result<Buffer, DeviceError> {
        either!(self, queue_pair => queue_pair.allocate_packet())
    }

    fn post_send(&mut self, request: SendRequest<Buffer>) -> Result<(), PostError<Buffer>> {
        either!(self, queue_pair => queue_pair.post_send(request))
    }

    fn post_receive(&mut self, packet: Buffer) -> Result<(), PostError<Buffer>> {
        either!(self, queue_pair => queue_pair.post_receive(packet))
    }

    fn register(&self, memory: Buffer, access: Access) -> Result<Mem, RegisterError> {
        either!(self, queue_pair => queue_pair.register(memory, access))
    }

    fn region(&self, key: u32) -> Option<Mem> {
        either!(self, queue_pair => queue_pair.region(key))
    }

    fn post_read(&mut self, request: RdmaRequest<Mem>) -> Result<(), DeviceError> {
        either!(self, queue_pair => queue_pair.post_read(request))
    }

    fn post_write(
        &mut self,
        request: RdmaRequest<Mem>,
        immediate: Option<u32>,
    ) -> Result<(), DeviceError> {
        either!(self, queue_pair => queue_pair.post_write(request, immediate))
    }

    fn tag_list(&mut self) -> Option<&mut ModelTagList> {
        match self {
            Self::Plain(_) => None,
            Self::Listed(listed) => listed.tag_list(),
        }
    }

    fn poll(&mut self, now: Time) -> Option<Completion<Buffer>> {
        either!(self, queue_pair => queue_pair.poll(now))
    }

    fn next_event(&self) -> Option<Time> {
        either!(self, queue_pair => queue_pair.next_event())
    }
}
