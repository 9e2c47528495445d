//! A device that is nothing but queues in memory, and takes nothing from the heap for a packet.

use std::cell::RefCell;
use std::collections::VecDeque;
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

#[derive(Default)]
struct Wire {
    sent: VecDeque<SendRequest<Box<[u8]>>>,
    posted: VecDeque<Box<[u8]>>,
    acknowledged: VecDeque<(WorkId, Box<[u8]>)>,
}

/// One end of a pair of queues.
pub(crate) struct Direct {
    own: Rc<RefCell<Wire>>,
    other: Rc<RefCell<Wire>>,
    attributes: DeviceAttributes,
    qpn: u16,
    order: Order,
}

/// Two queue pairs that reach each other.
pub(crate) fn pair(order: Order) -> [Direct; 2] {
    let wires: [Rc<RefCell<Wire>>; 2] = Default::default();
    [1, 2].map(|qpn| Direct {
        own: wires[usize::from(qpn - 1)].clone(),
        other: wires[usize::from(2 - qpn)].clone(),
        attributes: DeviceAttributes::default(),
        qpn,
        order,
    })
}

impl QueuePair for Direct {
    type Packet = Box<[u8]>;
    type Region = NoRegion;
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }
    fn address(&self) -> QueuePairAddress {
        QueuePairAddress { gid: Gid([7; 16]), qpn: Qpn(self.qpn), qkey: Qkey(self.qpn.into()) }
    }
    fn create_address_handle(&mut self, _: Gid) -> Result<AddressHandle, DeviceError> {
        Ok(AddressHandle(0))
    }
    fn destroy_address_handle(&mut self, _: AddressHandle) {}
    fn allocate_packet(&mut self) -> Result<Box<[u8]>, DeviceError> {
        Ok(vec![0; self.attributes.mtu].into())
    }
    fn post_send(&mut self, request: SendRequest<Box<[u8]>>) -> Result<(), PostError<Box<[u8]>>> {
        self.own.borrow_mut().sent.push_back(request);
        Ok(())
    }
    fn post_receive(&mut self, packet: Box<[u8]>) -> Result<(), PostError<Box<[u8]>>> {
        self.own.borrow_mut().posted.push_back(packet);
        Ok(())
    }
    fn poll(&mut self, _: Time) -> Option<Done<Box<[u8]>>> {
        let mut own = self.own.borrow_mut();
        if let Some((id, packet)) = own.acknowledged.pop_front() {
            return Some(Done::Send { id, packet, result: Ok(()) });
        }
        let mut other = self.other.borrow_mut();
        if own.posted.is_empty() || other.sent.is_empty() {
            return None;
        }
        let send = match self.order {
            Order::Overtaking if other.sent.len() > 1 => other.sent.remove(1)?,
            _ => other.sent.pop_front()?,
        };
        let mut packet = own.posted.pop_front()?;
        packet[..send.length].copy_from_slice(&send.packet[..send.length]);
        other.acknowledged.push_back((send.id, send.packet));
        let qpn = Qpn(3 - self.qpn);
        let source = Source { address_handle: Some(AddressHandle(0)), qpn, gid: None };
        Some(Done::Receive { packet, length: send.length, source, immediate: send.immediate })
    }
    fn next_event(&self) -> Option<Time> {
        None
    }
}
