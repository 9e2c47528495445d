//! A device of queues in memory, which allocates nothing for a packet.

use std::cell::Cell;
use std::rc::Rc;

use efa_device::{
    AddressHandle, Completion as Done, DeviceAttributes, DeviceError, Gid, NoRegion, NoTagList,
    PostError, Qkey, Qpn, QueuePair, QueuePairAddress, SendRequest, Source, Time, WorkId,
};

/// The order in which packets arrive.
#[allow(dead_code, reason = "each user of this module needs one of them")]
#[derive(Clone, Copy)]
pub(crate) enum Order {
    Sent,
    /// Every other packet overtakes the one before it.
    Overtaking,
}

/// A packet buffer of fixed length, so that a move copies one word.
#[derive(Debug)]
pub(crate) struct Packet(Box<[u8; MTU]>);

const MTU: usize = 8928;

impl Packet {
    fn new() -> Self {
        let Ok(bytes) = vec![0; MTU].into_boxed_slice().try_into() else {
            panic!("the length is MTU")
        };
        Self(bytes)
    }
}

impl AsRef<[u8]> for Packet {
    #[inline(always)]
    fn as_ref(&self) -> &[u8] {
        &self.0[..]
    }
}

impl AsMut<[u8]> for Packet {
    #[inline(always)]
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0[..]
    }
}

/// Queue depth that the device reports.
const DEPTH: usize = 8192;

/// A packet that was sent. On arrival it is exchanged with the receiver's posted buffer, which the sender
/// gets with its completion: nothing is copied.
#[derive(Default)]
struct Slot {
    id: Cell<u64>,
    packet: Cell<Option<Packet>>,
    length: Cell<usize>,
}

/// One direction: a ring of packets (completed, arrived, and sent ones), and the posted receive buffers.
struct Wire {
    slots: Box<[Slot; DEPTH]>,
    completed: Cell<usize>,
    arrived: Cell<usize>,
    sent: Cell<usize>,
    buffers: Box<[Cell<Option<Packet>>; DEPTH]>,
    posted: Cell<usize>,
}

impl Wire {
    fn new() -> Self {
        let (slots, buffers): (Vec<_>, Vec<_>) = (0..DEPTH).map(|_| Default::default()).unzip();
        let (Ok(slots), Ok(buffers)) = (slots.try_into(), buffers.try_into()) else {
            panic!("the number of slots is fixed")
        };
        let [completed, arrived, sent, posted] = [0; 4].map(Cell::new);
        Self { slots, completed, arrived, sent, buffers, posted }
    }

    #[inline(always)]
    fn send(&self, id: WorkId, packet: Packet, length: usize) {
        let sent = self.sent.get();
        let slot = &self.slots[sent % DEPTH];
        let before = slot.packet.replace(Some(packet));
        assert!(before.is_none(), "full");
        slot.id.set(id.0);
        slot.length.set(length);
        self.sent.set(sent + 1);
    }

    #[inline(always)]
    fn post(&self, packet: Packet) {
        let posted = self.posted.get();
        let before = self.buffers[posted % DEPTH].replace(Some(packet));
        assert!(before.is_none(), "full");
        self.posted.set(posted + 1);
    }

    /// The next packet that arrives, if there is one and a buffer for it.
    #[inline(always)]
    fn receive(&self) -> Option<(Packet, usize)> {
        let arrived = self.arrived.get();
        let posted = self.posted.get();
        if arrived == self.sent.get() || posted == 0 {
            return None;
        }
        let slot = &self.slots[arrived % DEPTH];
        let packet = slot.packet.replace(self.buffers[(posted - 1) % DEPTH].take())?;
        self.posted.set(posted - 1);
        self.arrived.set(arrived + 1);
        Some((packet, slot.length.get()))
    }

    /// Completes the oldest send whose packet has arrived.
    #[inline(always)]
    fn complete(&self) -> Option<(WorkId, Packet)> {
        let completed = self.completed.get();
        if completed == self.arrived.get() {
            return None;
        }
        let slot = &self.slots[completed % DEPTH];
        let packet = slot.packet.take()?;
        self.completed.set(completed + 1);
        Some((WorkId(slot.id.get()), packet))
    }

    /// Exchanges the first two packets that have not arrived.
    fn overtake(&self) {
        let arrived = self.arrived.get();
        if self.sent.get() > arrived + 1 {
            let [first, second] = [arrived, arrived + 1].map(|at| &self.slots[at % DEPTH]);
            first.id.swap(&second.id);
            first.packet.swap(&second.packet);
            first.length.swap(&second.length);
        }
    }
}

/// One end of a pair of queues.
pub(crate) struct Direct {
    out: Rc<Wire>,
    back: Rc<Wire>,
    attributes: DeviceAttributes,
    end: u16,
    order: Order,
}

/// Two queue pairs that reach each other.
pub(crate) fn pair(order: Order) -> [Direct; 2] {
    let wires = [0, 1].map(|_| Rc::new(Wire::new()));
    [0, 1].map(|end| Direct {
        out: wires[end].clone(),
        back: wires[1 - end].clone(),
        attributes: DeviceAttributes { mtu: MTU, ..DeviceAttributes::default() },
        end: end as u16,
        order,
    })
}

impl Direct {
    /// How many packets were sent.
    #[allow(dead_code, reason = "some users of this module don't count")]
    pub(crate) fn sent(&self) -> usize {
        self.out.sent.get()
    }

    fn qpn(end: u16) -> Qpn {
        Qpn(end + 1)
    }
}

impl QueuePair for Direct {
    type Packet = Packet;
    type Region = NoRegion;
    type TagList = NoTagList;
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }
    fn address(&self) -> QueuePairAddress {
        let qpn = Self::qpn(self.end);
        QueuePairAddress { gid: Gid([7; 16]), qpn, qkey: Qkey(qpn.0.into()) }
    }
    fn create_address_handle(&mut self, _: Gid) -> Result<AddressHandle, DeviceError> {
        Ok(AddressHandle(0))
    }
    fn destroy_address_handle(&mut self, _: AddressHandle) {}
    fn allocate_packet(&mut self) -> Result<Packet, DeviceError> {
        Ok(Packet::new())
    }
    #[inline(always)]
    fn post_send(&mut self, request: SendRequest<Packet>) -> Result<(), PostError<Packet>> {
        self.out.send(request.id, request.packet, request.length);
        Ok(())
    }
    #[inline(always)]
    fn post_receive(&mut self, packet: Packet) -> Result<(), PostError<Packet>> {
        self.back.post(packet);
        Ok(())
    }
    #[inline(always)]
    fn poll(&mut self, _: Time) -> Option<Done<Packet>> {
        if let Some((id, packet)) = self.out.complete() {
            return Some(Done::Send { id, packet, result: Ok(()) });
        }
        if matches!(self.order, Order::Overtaking) {
            self.back.overtake();
        }
        let (packet, length) = self.back.receive()?;
        let source = Source {
            address_handle: Some(AddressHandle(0)),
            qpn: Self::qpn(1 - self.end),
            gid: None,
        };
        Some(Done::Receive { packet, length, source, immediate: None })
    }
    fn next_event(&self) -> Option<Time> {
        None
    }
}

/// A device that accepts all requests and never reports a completion.
#[allow(dead_code, reason = "some users of this module need only the others")]
#[derive(Default)]
pub(crate) struct Silent(DeviceAttributes);

impl QueuePair for Silent {
    type Packet = Box<[u8]>;
    type Region = NoRegion;
    type TagList = NoTagList;
    fn attributes(&self) -> &DeviceAttributes {
        &self.0
    }
    fn address(&self) -> QueuePairAddress {
        QueuePairAddress { gid: Gid([7; 16]), qpn: Qpn(1), qkey: Qkey(1) }
    }
    fn create_address_handle(&mut self, _: Gid) -> Result<AddressHandle, DeviceError> {
        Ok(AddressHandle(0))
    }
    fn destroy_address_handle(&mut self, _: AddressHandle) {}
    fn allocate_packet(&mut self) -> Result<Box<[u8]>, DeviceError> {
        Ok(Box::default())
    }
    fn post_send(&mut self, _: SendRequest<Box<[u8]>>) -> Result<(), PostError<Box<[u8]>>> {
        Ok(())
    }
    fn post_receive(&mut self, _: Box<[u8]>) -> Result<(), PostError<Box<[u8]>>> {
        Ok(())
    }
    // Not inlined, so that the compiler cannot assume that there is never a completion.
    #[inline(never)]
    fn poll(&mut self, _: Time) -> Option<Done<Box<[u8]>>> {
        let nothing = self.0.max_send == 0;
        nothing.then_some(Done::Rdma { id: WorkId(0), result: Ok(()) })
    }
    fn next_event(&self) -> Option<Time> {
        None
    }
}
