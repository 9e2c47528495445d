//! Senders, a receiver and the links between them; a seed decides the order of all actions.

use std::collections::VecDeque;

use efa_match::PostId;
use efa_proto::tm::Tmh;
use efa_sim::tm::{
    Connection, Link, Packet, Received, SgeList, TmCaps, TmDevice, TmLimits, TmReceiver,
    TmReceiverOptions, TmSender,
};

pub(crate) const MTU: usize = 64;
pub(crate) const CAPS: TmCaps =
    TmCaps { max_rndv_hdr_size: 64, max_num_tags: 64, max_ops: 16, max_sge: 2, rc: true };
pub(crate) const BUFFER: usize = 512;

/// Options of a receiver with a device list of `max_num_tags` entries (0: all matching in software) and 32
/// SRQ buffers.
pub(crate) fn options(max_num_tags: u32) -> TmReceiverOptions {
    TmReceiverOptions {
        list: (max_num_tags > 0).then_some(TmLimits { max_num_tags, max_ops: 16 }),
        buffers: 32,
        buffer_len: BUFFER,
        mtu: MTU,
        first_count: 0,
        seed: 3,
    }
}

/// A delivered packet and its link; `true` for packets to the receiver.
pub(crate) type Traced = (bool, Link, Packet);

pub(crate) struct Net {
    pub(crate) senders: Vec<TmSender>,
    pub(crate) receiver: TmReceiver,
    /// Packets in flight by sender, link and direction (0: to the receiver, 1: to the sender).
    wires: Vec<[[VecDeque<Packet>; 2]; 2]>,
    pub(crate) trace: Vec<Traced>,
    random: fastrand::Rng,
    /// How often the receiver refused a packet as not ready (RNR).
    pub(crate) not_ready: u64,
}

const LINKS: [Link; 2] = [Link::Matching, Link::Software];

impl Net {
    pub(crate) fn new(senders: usize, options: TmReceiverOptions, seed: u64) -> Self {
        let device = TmDevice::new(CAPS, MTU);
        let mut receiver = TmReceiver::new(&device, options).unwrap();
        for n in 0..senders {
            assert_eq!(receiver.connect(), Ok(Connection(n as u32)));
        }
        Self {
            senders: vec![TmSender::new(MTU, CAPS.max_rndv_hdr_size); senders],
            receiver,
            wires: vec![Default::default(); senders],
            trace: Vec::new(),
            random: fastrand::Rng::with_seed(seed),
            not_ready: 0,
        }
    }

    pub(crate) fn post(&mut self, context: u64, tag: u64, len: usize) -> Option<PostId> {
        self.receiver.post(context, tag, 0, SgeList::zeroed(len)).unwrap()
    }

    pub(crate) fn eager(&mut self, sender: usize, tag: u64, payload: &[u8]) {
        self.senders[sender].eager(header(tag), payload);
    }

    /// Does one random possible action; `false` if none is possible.
    pub(crate) fn step(&mut self) -> bool {
        let actions = self.senders.len() * 4 + 3;
        let first = self.random.usize(..actions);
        (0..actions).any(|n| self.act((first + n) % actions))
    }

    fn act(&mut self, action: usize) -> bool {
        match action {
            0 => self.receiver.carry_out(),
            1 => self.receiver.handle_completion().unwrap(),
            2 => {
                let before = self.receiver.srq().ops_len();
                self.receiver.command();
                self.receiver.srq().ops_len() != before
            }
            wire => {
                let (wire, sender) = ((wire - 3) % 4, (wire - 3) / 4);
                self.move_one(sender, wire % 2, wire / 2)
            }
        }
    }

    fn move_one(&mut self, sender: usize, link_at: usize, direction: usize) -> bool {
        let (link, connection) = (LINKS[link_at], Connection(sender as u32));
        let wire = &mut self.wires[sender][link_at][direction];
        wire.extend(std::iter::from_fn(|| match direction {
            0 => self.senders[sender].poll_transmit(link),
            _ => self.receiver.poll_transmit(connection, link),
        }));
        let Some(packet) = wire.pop_front() else { return false };
        if direction == 1 {
            self.trace.push((false, link, packet.clone()));
            self.senders[sender].receive(link, packet);
            return true;
        }
        match self.receiver.receive(connection, link, packet.clone()) {
            Ok(()) => {
                self.trace.push((true, link, packet));
                true
            }
            Err(refused) => {
                self.not_ready += 1;
                wire.push_front(refused.0);
                false
            }
        }
    }

    /// Steps until no action is possible.
    pub(crate) fn settle(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("still active after 1,000,000 steps");
    }

    /// Settles, and returns the receives that completed.
    pub(crate) fn completed(&mut self) -> Vec<Received> {
        self.settle();
        std::iter::from_fn(|| self.receiver.poll()).collect()
    }
}

pub(crate) fn header(tag: u64) -> Tmh {
    Tmh { app_ctx: !tag as u32, tag }
}
