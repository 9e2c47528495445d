//! The least that a long-read message takes, as [`barest`](crate::barest) says: the receiver reads the message when its
//! request arrives, and confirms that when it is read.

use std::collections::VecDeque;

use efa_device::{
    Completion as Done, Destination, QueuePair, Rdma, RdmaRequest, RegionRange, RemoteMemory, Time,
    WorkId,
};
use efa_proto::{
    Eor, EorForm, Header, MsgId, OpId, Packet as Parsed, ReqOptions, RmaIov, Rtm, RtmKind,
};

use crate::barest::{CONNID, Side};
use crate::null::{self, Order};
use crate::segmented::{Blank, Span, WithRdma};

pub(crate) struct BarestRead {
    sender: Side<WithRdma>,
    receiver: Side<WithRdma>,
    posted: VecDeque<Blank>,
    /// The send and the receive under way.
    sending: Option<Blank>,
    reading: Option<Blank>,
    sent: u32,
    received: u32,
}

const PACKETS: usize = 4;

impl BarestRead {
    pub(crate) fn new() -> Box<Self> {
        let [sender, receiver] = null::pair(Order::Sent)
            .map(|packets| Side::new(WithRdma::new(packets, Rdma::READ_WRITE), PACKETS));
        let posted = VecDeque::with_capacity(PACKETS);
        let (sending, reading) = (None, None);
        Box::new(Self { sender, receiver, posted, sending, reading, sent: 0, received: 0 })
    }

    /// Messages one after the other.
    pub(crate) fn messages(&mut self, count: u64, length: u64) {
        for _ in 0..count {
            counted::receive(self, Blank(length));
            counted::send(self, Blank(length));
            assert!(counted::poll_receiver(self).is_some());
            assert!(counted::poll_sender(self).is_some());
            counted::poll_confirmed(self);
        }
    }
}

/// The calls that are counted, as an application makes them.
pub(crate) mod counted {
    use super::*;

    #[inline(never)]
    pub(crate) fn receive(barest: &mut BarestRead, buffer: Blank) {
        barest.posted.push_back(buffer);
    }

    #[inline(never)]
    pub(crate) fn send(barest: &mut BarestRead, buffer: Blank) {
        let kind = RtmKind::LongRead {
            msg_length: buffer.0,
            send_id: OpId(0),
            read_iov: &[RmaIov::new(0, buffer.0, 1)],
        };
        let options = ReqOptions { connid: Some(CONNID), ..ReqOptions::NONE };
        let request = Rtm { msg_id: MsgId(barest.sent), tag: None, kind, options };
        barest.sent += 1;
        barest.sending = Some(buffer);
        post(&mut barest.sender, |bytes| request.emit(bytes).unwrap());
    }

    /// Reads the message that arrived, and confirms it.
    #[inline(never)]
    pub(crate) fn poll_receiver(barest: &mut BarestRead) -> Option<Blank> {
        while let Some(done) = barest.receiver.queue_pair.poll(Time::ZERO) {
            match done {
                Done::Receive { packet, length, .. } => {
                    begin_read(barest, &packet.as_ref()[..length]);
                    barest.receiver.queue_pair.post_receive(packet).unwrap();
                }
                Done::Rdma { result, .. } => {
                    result.unwrap();
                    let (send_id, recv_id) = (OpId(0), OpId(0));
                    let form = EorForm::Full { connid: Some(CONNID) };
                    let eor = Eor { send_id, recv_id, form };
                    post(&mut barest.receiver, |bytes| eor.emit(bytes).unwrap());
                    return barest.reading.take();
                }
                _ => panic!("the receiver has sent nothing"),
            }
        }
        None
    }

    #[inline(always)]
    fn begin_read(barest: &mut BarestRead, bytes: &[u8]) {
        let Header::Rtm(Rtm {
            msg_id, kind: RtmKind::LongRead { msg_length, read_iov, .. }, ..
        }) = Parsed::parse(bytes).unwrap().header
        else {
            panic!("not a long-read message")
        };
        assert_eq!(msg_id.0, barest.received);
        barest.received += 1;
        let buffer = barest.posted.pop_front().unwrap();
        assert!(msg_length <= buffer.0);
        let local = RegionRange { region: Span, offset: 0, length: msg_length as usize };
        let remote = RemoteMemory { address: read_iov[0].addr(), key: read_iov[0].key() as u32 };
        let (id, destination) = (WorkId(0), Destination::default());
        let read = RdmaRequest { id, local, remote, destination };
        barest.receiver.queue_pair.post_read(read).unwrap();
        barest.reading = Some(buffer);
    }

    /// The message that was confirmed.
    #[inline(never)]
    pub(crate) fn poll_sender(barest: &mut BarestRead) -> Option<Blank> {
        while let Some(done) = barest.sender.queue_pair.poll(Time::ZERO) {
            match done {
                Done::Send { packet, .. } => barest.sender.free.push(packet),
                Done::Receive { packet, length, .. } => {
                    let parsed = Parsed::parse(&packet.as_ref()[..length]).unwrap();
                    assert!(matches!(parsed.header, Header::Eor(Eor { send_id: OpId(0), .. })));
                    barest.sender.queue_pair.post_receive(packet).unwrap();
                    return barest.sending.take();
                }
                _ => panic!("the sender reads nothing"),
            }
        }
        None
    }

    /// Takes back the packet of the confirmation, and the sender's if the confirmation came first.
    #[inline(never)]
    pub(crate) fn poll_confirmed(barest: &mut BarestRead) {
        for side in [&mut barest.sender, &mut barest.receiver] {
            side.take_back();
        }
    }

    #[inline(always)]
    fn post(side: &mut Side<WithRdma>, emit: impl FnOnce(&mut [u8]) -> usize) {
        let mut packet = side.free.pop().unwrap();
        let length = emit(packet.as_mut());
        side.post(packet, length);
    }
}
