//! A device that is nothing but queues in memory, and takes nothing from the heap for a packet.

use std::cell::Cell;
use std::rc::Rc;

use efa_device::{
    AddressHandle, Completion as Done, DeviceAttributes, DeviceError, Gid, NoRegion, PostError,
    Qkey, Qpn, QueuePair, QueuePairAddress, SendRequest, Source, Time, WorkId,
};

/// In which order packets arrive.
#[allow(dead_code, reason = "each user of this module wants one of them")]
#[derive(Clone, Copy)]
pub(crate) enum Order {
    Sent,
    /// Every other packet overtakes the one before it.
    Overtaking,
}

/// A queue of at most [`DEPTH`] items that costs as little as can be.
struct Ring<T> {
    slots: Box<[Cell<Option<T>>; DEPTH]>,
    head: Cell<usize>,
    tail: Cell<usize>,
}

/// As many as the device says that it takes.
const DEPTH: usize = 8192;

impl<T> Ring<T> {
    fn new() -> Self {
        let slots: Vec<_> = (0..DEPTH).map(|_| Cell::new(None)).collect();
        let Ok(slots) = slots.try_into() else { panic!("as many as there are") };
        Self { slots, head: Cell::new(0), tail: Cell::new(0) }
    }
    #[inline(always)]
    fn len(&self) -> usize {
        self.tail.get() - self.head.get()
    }
    #[inline(always)]
    fn push(&self, item: T) {
        let tail = self.tail.get();
        let before = self.slots[tail % DEPTH].replace(Some(item));
        assert!(before.is_none(), "full");
        self.tail.set(tail + 1);
    }
    #[inline(always)]
    fn pop(&self) -> Option<T> {
        let head = self.head.get();
        let item = self.slots[head % DEPTH].take()?;
        self.head.set(head + 1);
        Some(item)
    }
    /// Has the second item overtake the first.
    fn overtake(&self) {
        let head = self.head.get();
        self.slots[head % DEPTH].swap(&self.slots[(head + 1) % DEPTH]);
    }
}

/// One direction, and what its sender is told of it.
struct Wire {
    sent: Ring<(WorkId, Box<[u8]>, usize)>,
    posted: Ring<Box<[u8]>>,
    acknowledged: Ring<(WorkId, Box<[u8]>)>,
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
    let wire = || Wire { sent: Ring::new(), posted: Ring::new(), acknowledged: Ring::new() };
    let wires = [0, 1].map(|_| Rc::new(wire()));
    [0, 1].map(|end| Direct {
        out: wires[end].clone(),
        back: wires[1 - end].clone(),
        attributes: DeviceAttributes::default(),
        end: end as u16,
        order,
    })
}

impl Direct {
    fn qpn(end: u16) -> Qpn {
        Qpn(end + 1)
    }
}

impl QueuePair for Direct {
    type Packet = Box<[u8]>;
    type Region = NoRegion;
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
    fn allocate_packet(&mut self) -> Result<Box<[u8]>, DeviceError> {
        Ok(vec![0; self.attributes.mtu].into())
    }
    #[inline(always)]
    fn post_send(&mut self, request: SendRequest<Box<[u8]>>) -> Result<(), PostError<Box<[u8]>>> {
        self.out.sent.push((request.id, request.packet, request.length));
        Ok(())
    }
    #[inline(always)]
    fn post_receive(&mut self, packet: Box<[u8]>) -> Result<(), PostError<Box<[u8]>>> {
        self.back.posted.push(packet);
        Ok(())
    }
    #[inline(always)]
    fn poll(&mut self, _: Time) -> Option<Done<Box<[u8]>>> {
        if let Some((id, packet)) = self.out.acknowledged.pop() {
            return Some(Done::Send { id, packet, result: Ok(()) });
        }
        let Wire { sent, posted, acknowledged } = &*self.back;
        if posted.len() == 0 {
            return None;
        }
        if matches!(self.order, Order::Overtaking) && sent.len() > 1 {
            sent.overtake();
        }
        let (id, packet, length) = sent.pop()?;
        // Sender and receiver exchange buffers: nothing is copied.
        acknowledged.push((id, posted.pop()?));
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

/// A device that takes everything and never has anything to tell.
#[allow(dead_code, reason = "some users of this module want the others")]
#[derive(Default)]
pub(crate) struct Silent(DeviceAttributes);

impl QueuePair for Silent {
    type Packet = Box<[u8]>;
    type Region = NoRegion;
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
    // A device that the compiler knew would be no device.
    #[inline(never)]
    fn poll(&mut self, _: Time) -> Option<Done<Box<[u8]>>> {
        let nothing = self.0.max_send == 0;
        nothing.then_some(Done::Rdma { id: WorkId(0), result: Ok(()) })
    }
    fn next_event(&self) -> Option<Time> {
        None
    }
}
