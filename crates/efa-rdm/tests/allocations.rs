//! In the steady state the engine takes nothing from the heap.
//!
//! The device under it is two queues of packets that allocate nothing themselves.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use efa_device::{
    AddressHandle, Completion as Done, DeviceAttributes, DeviceError, Gid, PostError, Qkey, Qpn,
    QueuePair, QueuePairAddress, SendRequest, Source, Time, WorkId,
};
use efa_rdm::{Accept, Completion, Config, Endpoint, Message, PeerId};

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.with(|calls| calls.set(calls.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn calls() -> u64 {
    CALLS.with(Cell::get)
}

#[derive(Default)]
struct Wire {
    sent: VecDeque<SendRequest<Box<[u8]>>>,
    posted: VecDeque<Box<[u8]>>,
    acknowledged: VecDeque<(WorkId, Box<[u8]>)>,
}

/// One end of a pair of queues.
struct Direct {
    own: Rc<RefCell<Wire>>,
    other: Rc<RefCell<Wire>>,
    attributes: DeviceAttributes,
    qpn: u16,
}

impl QueuePair for Direct {
    type Packet = Box<[u8]>;
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
        // Every other packet overtakes the one before it.
        let at = usize::from(other.sent.len() > 1);
        let send = other.sent.remove(at)?;
        let mut packet = own.posted.pop_front()?;
        packet[..send.length].copy_from_slice(&send.packet[..send.length]);
        other.acknowledged.push_back((send.id, send.packet));
        let qpn = Qpn(3 - self.qpn);
        let source = Source { address_handle: Some(AddressHandle(0)), qpn, gid: None };
        Some(Done::Receive { packet, length: send.length, source })
    }
    fn next_event(&self) -> Option<Time> {
        None
    }
}

type Direct2 = Endpoint<Direct, Vec<u8>>;

/// Sends every buffer as a tagged message and gives the buffers back, received and sent.
fn round(
    (a, b): (&mut Direct2, &mut Direct2),
    peer: PeerId,
    now: &mut Time,
    sources: &mut Vec<Vec<u8>>,
    targets: &mut Vec<Vec<u8>>,
    expected: bool,
) {
    let count = sources.len();
    let accept = |i| Accept::Tagged { source: None, tag: i as u64, ignore: 0 };
    if expected {
        for i in 0..count {
            b.receive(accept(i), targets.pop().unwrap(), 0).unwrap();
        }
    }
    for i in 0..count {
        let buffer = sources.pop().unwrap();
        let message = Message { peer, tag: Some(i as u64), cq_data: None, buffer, context: 0 };
        a.send(message).unwrap();
    }
    let (mut posted, mut received) = (if expected { count } else { 0 }, 0);
    let all_came = b.statistics().unexpected + count as u64;
    while sources.len() < count || received < count {
        *now += Duration::from_micros(1);
        a.progress(*now);
        b.progress(*now);
        if posted < count && b.statistics().unexpected == all_came {
            b.receive(accept(posted), targets.pop().unwrap(), 0).unwrap();
            posted += 1;
        }
        while let Some(Completion::Send(sent)) = a.poll_completion() {
            assert_eq!(sent.result, Ok(()));
            sources.push(sent.buffer.unwrap());
        }
        while let Some(Completion::Receive(message)) = b.poll_completion() {
            assert_eq!(message.result, Ok(()));
            targets.push(message.buffer);
            received += 1;
        }
    }
}

#[test]
fn the_steady_state_allocates_nothing() {
    for length in [8, 4096, 8800, 40_000, 65_536, 300_000] {
        for expected in [true, false] {
            let wires: [Rc<RefCell<Wire>>; 2] = Default::default();
            let endpoint = |qpn: u16| {
                let own = wires[usize::from(qpn - 1)].clone();
                let other = wires[usize::from(2 - qpn)].clone();
                let attributes = DeviceAttributes::default();
                // Trimming gives memory back when it is idle, which this is not about.
                let config = Config { trim_interval: Duration::MAX, ..Config::default() };
                Endpoint::new(Direct { own, other, attributes, qpn }, config).unwrap()
            };
            let (mut a, mut b) = (endpoint(1), endpoint(2));
            let peer = a.insert_peer(b.address()).unwrap();
            let mut sources: Vec<_> = (0..16).map(|i| vec![i; length]).collect();
            let mut targets: Vec<_> = (0..16).map(|_| vec![0; length]).collect();
            let mut now = Time::ZERO;
            let mut run = |rounds| {
                for _ in 0..rounds {
                    let ends = (&mut a, &mut b);
                    round(ends, peer, &mut now, &mut sources, &mut targets, expected);
                }
            };
            run(200);
            let before = calls();
            run(100);
            assert_eq!(calls() - before, 0, "{length} bytes, expected: {expected}");
        }
    }
}
