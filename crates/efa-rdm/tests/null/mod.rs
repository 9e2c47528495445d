//! A device that is nothing but queues in memory, and takes nothing from the heap for a packet.

use std::cell::RefCell;
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
    slots: Box<[Option<T>; DEPTH]>,
    head: usize,
    tail: usize,
}

/// As many as the device says that it takes.
const DEPTH: usize = 8192;

impl<T> Ring<T> {
    fn new() -> Self {
        let slots: Vec<Option<T>> = (0..DEPTH).map(|_| None).collect();
        let Ok(slots) = slots.try_into() else { panic!("as many as there are") };
        Self { slots, head: 0, tail: 0 }
    }
    fn len(&self) -> usize {
        self.tail - self.head
    }
    fn push(&mut self, item: T) {
        let slot = &mut self.slots[self.tail % DEPTH];
        assert!(slot.is_none(), "full");
        *slot = Some(item);
        self.tail += 1;
    }
    fn pop(&mut self) -> Option<T> {
        let item = self.slots[self.head % DEPTH].take()?;
        self.head += 1;
        Some(item)
    }
}

/// One direction, and what the other end is told of it.
struct Wire {
    sent: Ring<SendRequest<Box<[u8]>>>,
    posted: Ring<Box<[u8]>>,
    acknowledged: Ring<(WorkId, Box<[u8]>)>,
}

/// One end of a pair of queues.
pub(crate) struct Direct {
    /// What each of the two ends sends.
    wires: Rc<RefCell<[Wire; 2]>>,
    attributes: DeviceAttributes,
    end: usize,
    order: Order,
}

/// Two queue pairs that reach each other.
pub(crate) fn pair(order: Order) -> [Direct; 2] {
    let wire = || Wire { sent: Ring::new(), posted: Ring::new(), acknowledged: Ring::new() };
    let wires = Rc::new(RefCell::new([wire(), wire()]));
    let attributes = DeviceAttributes::default;
    [0, 1].map(|end| Direct { wires: wires.clone(), attributes: attributes(), end, order })
}

impl Direct {
    fn qpn(end: usize) -> Qpn {
        Qpn(end as u16 + 1)
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
        self.wires.borrow_mut()[self.end].sent.push(request);
        Ok(())
    }
    #[inline(always)]
    fn post_receive(&mut self, packet: Box<[u8]>) -> Result<(), PostError<Box<[u8]>>> {
        self.wires.borrow_mut()[1 - self.end].posted.push(packet);
        Ok(())
    }
    #[inline(always)]
    fn poll(&mut self, _: Time) -> Option<Done<Box<[u8]>>> {
        let mut wires = self.wires.borrow_mut();
        if let Some((id, packet)) = wires[self.end].acknowledged.pop() {
            return Some(Done::Send { id, packet, result: Ok(()) });
        }
        let wire = &mut wires[1 - self.end];
        let waiting = wire.sent.len();
        if waiting == 0 || wire.posted.len() == 0 {
            return None;
        }
        if matches!(self.order, Order::Overtaking) && waiting > 1 {
            wire.sent.slots.swap(wire.sent.head % DEPTH, (wire.sent.head + 1) % DEPTH);
        }
        let SendRequest { id, packet, length, immediate, .. } = wire.sent.pop()?;
        // Sender and receiver exchange buffers: nothing is copied.
        wire.acknowledged.push((id, wire.posted.pop()?));
        let qpn = Self::qpn(1 - self.end);
        let source = Source { address_handle: Some(AddressHandle(0)), qpn, gid: None };
        Some(Done::Receive { packet, length, source, immediate })
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
