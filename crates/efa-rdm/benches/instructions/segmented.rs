//! Operations of many packets: their kinds, and two endpoints that carry them out.
//!
//! Nothing is copied: buffers and regions have a length and no bytes, so that the engine is counted
//! and not the copying, whose instructions depend on the processor.

use std::collections::VecDeque;

use efa_device::{
    Access, AddressHandle, Completion as Done, DeviceAttributes, DeviceError, Gid, NoTagList,
    PostError, QueuePair, QueuePairAddress, Rdma, RdmaRequest, Region, RegionRange, RegisterError,
    SendRequest, Time,
};
use efa_rdm::{
    Accept, Completion, Config, Endpoint, Level, Message, Payload, PeerId, Read, ReceiveId,
    Refused, Remote, RmaIov, Subprotocol, Write,
};

use crate::counted;
use crate::null::{self, Direct, Order, Packet};

/// Operations of a run, one after the other.
pub(crate) const OPERATIONS: u64 = 64;

/// What is measured: an operation, the subprotocol and the number of work requests (packets and RDMA
/// operations of both sides) that it takes, and the limit of instructions for each of these.
pub(crate) struct Case {
    operation: Operation,
    length: u64,
    subprotocol: Subprotocol,
    rdma: Rdma,
    work_requests: u64,
    instructions: u64,
}

#[derive(Clone, Copy)]
enum Operation {
    Send,
    Write,
    Read,
}

const KIB_64: u64 = 1 << 16;
const MIB_1: u64 = 1 << 20;
/// Bytes of a runting-read message that are sent in packets.
const RUNT: u64 = 1 << 16;

const READ_ONLY: Rdma = Rdma { write: false, ..Rdma::READ_WRITE };

const fn case(
    operation: Operation,
    subprotocol: Subprotocol,
    length: u64,
    rdma: Rdma,
    work_requests: u64,
    instructions: u64,
) -> Case {
    Case { operation, length, subprotocol, rdma, work_requests, instructions }
}

use Operation as O;
use Subprotocol as S;

// The last two numbers are the work requests and the limit for each: what was measured and 1 %.
pub(crate) const MEDIUM_64K: Case = case(O::Send, S::Medium, KIB_64, Rdma::NONE, 8, 819);
pub(crate) const MEDIUM_1M: Case = case(O::Send, S::Medium, MIB_1, Rdma::NONE, 118, 535);
pub(crate) const LONG_CTS_64K: Case = case(O::Send, S::LongCts, KIB_64, Rdma::NONE, 9, 892);
pub(crate) const LONG_CTS_1M: Case = case(O::Send, S::LongCts, MIB_1, Rdma::NONE, 122, 580);
pub(crate) const LONG_READ_64K: Case = case(O::Send, S::LongRead, KIB_64, READ_ONLY, 3, 830);
pub(crate) const LONG_READ_1M: Case = case(O::Send, S::LongRead, MIB_1, READ_ONLY, 3, 830);
pub(crate) const RUNTING_READ_1M: Case = case(O::Send, S::RuntRead, MIB_1, READ_ONLY, 10, 1225);
pub(crate) const EMULATED_WRITE_64K: Case = case(O::Write, S::LongCts, KIB_64, Rdma::NONE, 9, 974);
pub(crate) const EMULATED_WRITE_1M: Case = case(O::Write, S::LongCts, MIB_1, Rdma::NONE, 122, 650);
pub(crate) const LONG_READ_WRITE_64K: Case =
    case(O::Write, S::LongRead, KIB_64, READ_ONLY, 3, 1502);
pub(crate) const LONG_READ_WRITE_1M: Case = case(O::Write, S::LongRead, MIB_1, READ_ONLY, 3, 1502);
pub(crate) const EMULATED_READ_64K: Case = case(O::Read, S::LongCts, KIB_64, Rdma::NONE, 9, 886);
pub(crate) const EMULATED_READ_1M: Case = case(O::Read, S::LongCts, MIB_1, Rdma::NONE, 123, 624);
pub(crate) const DIRECT_WRITE_64K: Case =
    case(O::Write, S::Direct, KIB_64, Rdma::READ_WRITE, 1, 1931);
pub(crate) const DIRECT_WRITE_1M: Case =
    case(O::Write, S::Direct, MIB_1, Rdma::READ_WRITE, 1, 1931);
pub(crate) const DIRECT_READ_64K: Case =
    case(O::Read, S::Direct, KIB_64, Rdma::READ_WRITE, 1, 1942);
pub(crate) const DIRECT_READ_1M: Case = case(O::Read, S::Direct, MIB_1, Rdma::READ_WRITE, 1, 1942);

impl Case {
    /// The limit for a run.
    pub(crate) const fn limit(&self) -> u64 {
        self.instructions * self.work_requests * OPERATIONS
    }

    /// Settings by which the operation takes its subprotocol.
    fn config(&self) -> Config {
        Config::default().with(|config| {
            config.max_medium =
                if self.subprotocol == Subprotocol::Medium { self.length } else { 0 };
            config.min_read = Some(KIB_64);
            config.min_read_write = KIB_64;
            config.runt_size = if self.subprotocol == Subprotocol::RuntRead { RUNT } else { 0 };
        })
    }
}

/// A buffer without bytes, in registered memory.
#[derive(Debug)]
pub(crate) struct Blank(pub(crate) u64);

impl Payload<Span> for Blank {
    fn length(&self) -> u64 {
        self.0
    }
    fn read(&self, _: u64, _: &mut [u8]) {}
    fn write(&mut self, _: u64, _: &[u8]) {}
    fn split_to(&mut self, at: u64) -> Self {
        self.0 -= at;
        Self(at)
    }
    fn registered(&self) -> Option<RegionRange<Span>> {
        Some(RegionRange { region: Span, offset: 0, length: self.0 as usize })
    }
}

/// The only region there is: memory without bytes that peers may read and write.
#[derive(Clone, Debug)]
pub(crate) struct Span;

impl Region for Span {
    fn length(&self) -> usize {
        MIB_1 as usize
    }
    fn remote_address(&self) -> u64 {
        0
    }
    fn remote_key(&self) -> u32 {
        1
    }
    fn access(&self) -> Access {
        Access { remote_read: true, remote_write: true }
    }
    fn read(&self, _: usize, into: &mut [u8]) -> usize {
        into.len()
    }
    fn write(&self, _: usize, from: &[u8]) -> usize {
        from.len()
    }
    fn update(&self, _: usize, bytes: &mut [u8], _: impl FnMut(&mut [u8]) -> bool) -> usize {
        bytes.len()
    }
    fn reclaim(self) -> Result<Box<[u8]>, Self> {
        Err(self)
    }
}

/// A [`Direct`] with RDMA, whose operations are done at once.
pub(crate) struct WithRdma {
    packets: Direct,
    attributes: DeviceAttributes,
    done: VecDeque<Done<Packet>>,
    rdma_operations: u64,
}

impl WithRdma {
    pub(crate) fn new(packets: Direct, rdma: Rdma) -> Self {
        let attributes = DeviceAttributes { rdma, ..packets.attributes().clone() };
        Self { packets, attributes, done: VecDeque::with_capacity(64), rdma_operations: 0 }
    }

    fn finish(&mut self, request: &RdmaRequest<Span>) {
        self.rdma_operations += 1;
        self.done.push_back(Done::Rdma { id: request.id, result: Ok(()) });
    }

    fn work_requests(&self) -> u64 {
        self.packets.sent() as u64 + self.rdma_operations
    }
}

impl QueuePair for WithRdma {
    type Packet = Packet;
    type Region = Span;
    type TagList = NoTagList;
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }
    fn address(&self) -> QueuePairAddress {
        self.packets.address()
    }
    fn create_address_handle(&mut self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        self.packets.create_address_handle(gid)
    }
    fn destroy_address_handle(&mut self, _: AddressHandle) {}
    fn allocate_packet(&mut self) -> Result<Packet, DeviceError> {
        self.packets.allocate_packet()
    }
    fn post_send(&mut self, request: SendRequest<Packet>) -> Result<(), PostError<Packet>> {
        self.packets.post_send(request)
    }
    fn post_receive(&mut self, packet: Packet) -> Result<(), PostError<Packet>> {
        self.packets.post_receive(packet)
    }
    fn register(&self, _: Box<[u8]>, _: Access) -> Result<Span, RegisterError> {
        Ok(Span)
    }
    fn region(&self, _: u32) -> Option<Span> {
        Some(Span)
    }
    fn post_read(&mut self, request: RdmaRequest<Span>) -> Result<(), DeviceError> {
        self.finish(&request);
        Ok(())
    }
    fn post_write(
        &mut self,
        request: RdmaRequest<Span>,
        _: Option<u32>,
    ) -> Result<(), DeviceError> {
        self.finish(&request);
        Ok(())
    }
    fn poll(&mut self, now: Time) -> Option<Done<Packet>> {
        match self.done.pop_front() {
            None => self.packets.poll(now),
            done => done,
        }
    }
    fn next_event(&self) -> Option<Time> {
        None
    }
}

type End = Endpoint<WithRdma, Blank>;

type ReceiveCall = fn(&mut End, Accept, Blank, u64) -> Result<ReceiveId, Refused<Blank>>;

/// The calls of an exchange.
pub(crate) struct Calls {
    send: fn(&mut End, Message<Blank>) -> Result<(), Refused<Blank>>,
    receive: ReceiveCall,
    write: fn(&mut End, Write<Blank>) -> Result<(), Refused<Blank>>,
    read: fn(&mut End, Read<Blank>) -> Result<(), Refused<Blank>>,
    poll: fn(&mut End, Time) -> Option<Completion<Blank>>,
}

pub(crate) const COUNTED: Calls = Calls {
    send: counted::send,
    receive: counted::receive,
    write: counted::write,
    read: counted::read,
    poll: counted::poll,
};

const NOT_COUNTED: Calls = Calls {
    send: End::send,
    receive: End::receive,
    write: End::write,
    read: End::read,
    poll: End::poll,
};

/// Two endpoints that have exchanged HANDSHAKEs, and an operation of the first.
pub(crate) struct Exchange {
    ends: [End; 2],
    peer: PeerId,
    case: &'static Case,
}

impl Exchange {
    /// Has carried the operation out a few times.
    pub(crate) fn new(case: &'static Case) -> Box<Self> {
        let mut ends = null::pair(Order::Sent).map(|packets| {
            Endpoint::new(WithRdma::new(packets, case.rdma), case.config()).unwrap()
        });
        let address = ends[1].address();
        let peer = ends[0].insert_peer(address).unwrap();
        let mut exchange = Box::new(Self { ends, peer, case });
        for _ in 0..8 {
            exchange.run(&NOT_COUNTED);
        }
        let before = exchange.work_requests();
        assert_eq!(exchange.run(&NOT_COUNTED), Some(case.subprotocol));
        assert_eq!(exchange.work_requests() - before, case.work_requests, "work requests");
        exchange
    }

    fn work_requests(&self) -> u64 {
        self.ends.iter().map(|end| end.queue_pair().work_requests()).sum()
    }

    /// Carries the operation out once, until nothing is left of it on either side; gives the
    /// subprotocol that it took.
    pub(crate) fn run(&mut self, calls: &Calls) -> Option<Subprotocol> {
        let (peer, buffer) = (self.peer, Blank(self.case.length));
        let remote = Remote::from(RmaIov::new(0, self.case.length, 1));
        let [requester, responder] = &mut self.ends;
        let (level, cq_data, context, tag) = (Level::Transmit, None, 0, None);
        let expected = match self.case.operation {
            Operation::Send => {
                let accept = Accept::Untagged { source: None };
                (calls.receive)(responder, accept, Blank(self.case.length), 0).unwrap();
                let message = Message { peer, tag, cq_data, level, buffer, context };
                (calls.send)(requester, message).unwrap();
                2
            }
            Operation::Write => {
                let write = Write { peer, remote, buffer, cq_data, level, context };
                (calls.write)(requester, write).unwrap();
                1
            }
            Operation::Read => {
                (calls.read)(requester, Read { peer, remote, buffer, context }).unwrap();
                1
            }
        };
        let mut ended = 0;
        let mut subprotocol = None;
        loop {
            let before = self.work_requests();
            for end in &mut self.ends {
                while let Some(completion) = (calls.poll)(end, Time::ZERO) {
                    let result = match completion {
                        Completion::Send(send) => {
                            subprotocol = send.subprotocol;
                            send.result
                        }
                        Completion::Rma(rma) => {
                            subprotocol = rma.subprotocol;
                            rma.result
                        }
                        Completion::Receive(receive) => receive.result,
                        _ => panic!("not a completion of this operation"),
                    };
                    result.unwrap();
                    ended += 1;
                }
            }
            if ended == expected && self.work_requests() == before {
                return subprotocol;
            }
        }
    }
}
