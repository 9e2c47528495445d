//! The packets of each attack on the engine.

use clap::ValueEnum;
use efa_proto::{
    Connid, Header, MsgId, OpId, RawAddress, RawAddressForm, ReqOptions, RmaIov, Rtm, RtmKind, Rtr,
    RtrKind, Rtw, RtwKind,
};
use fastrand::Rng;

/// What an attacker sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Packets {
    /// Unexpected messages of 8 kB.
    Flood,
    /// Unexpected messages of 8 kB, and a new connid every 50 of them.
    Connids,
    /// Many unexpected messages of 4 B, then a new connid in each packet.
    Restarts,
    /// Starts of long messages that nobody receives.
    LongStarts,
    /// Writes without their data, and reads whose answers it doesn't grant.
    Requests,
    /// Messages and writes that need a RECEIPT, which it doesn't take.
    Receipts,
    /// Packets of an earlier incarnation.
    Stale,
    /// A random incarnation and message in each packet.
    Lives,
    /// Random bytes behind the first bytes of a packet.
    Garbage,
}

/// Messages of one incarnation of [`Packets::Connids`]. More would be in vain on the links where an
/// incarnation lives only until the victim's HANDSHAKE fails.
const MESSAGES_OF_A_CONNID: u64 = 50;

/// Memory of the victim that peers may read and write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) length: u64,
}

/// Makes the packets of an attack, from a seed.
#[derive(Debug)]
pub(crate) struct Maker {
    packets: Packets,
    /// Unexpected messages before the restarts.
    prepared: u64,
    memory: Memory,
    tag: Option<u64>,
    own: RawAddress,
    connid: u32,
    msg_id: u32,
    made: u64,
    /// Whether the packet made last is the first of an incarnation.
    restarted: bool,
    random: Rng,
}

impl Maker {
    pub(crate) fn new(
        packets: Packets,
        prepared: u64,
        memory: Memory,
        tag: Option<u64>,
        own: RawAddress,
        seed: u64,
    ) -> Self {
        let (connid, random) = (own.connid.0, Rng::with_seed(seed));
        Self {
            packets,
            prepared,
            memory,
            tag,
            own,
            connid,
            msg_id: 0,
            made: 0,
            restarted: false,
            random,
        }
    }

    /// Whether the state that the attack needs has been brought about.
    pub(crate) fn is_prepared(&self) -> bool {
        self.packets != Packets::Restarts || self.made >= self.prepared
    }

    fn restart(&mut self) {
        self.connid = self.connid.wrapping_add(1);
        self.msg_id = 0;
        self.restarted = true;
    }

    /// The connid of the packet made last, if it is the first of an incarnation.
    pub(crate) fn take_restart(&mut self) -> Option<Connid> {
        std::mem::take(&mut self.restarted).then_some(Connid(self.connid))
    }

    fn options(&self) -> ReqOptions {
        let own = RawAddress { connid: Connid(self.connid), ..self.own };
        ReqOptions { raw_address: Some((own, RawAddressForm::Padded)), ..ReqOptions::NONE }
    }

    /// A message.
    fn message(&mut self, kind: RtmKind<'_>, payload: usize, into: &mut [u8]) -> usize {
        let msg_id = MsgId(self.msg_id);
        self.msg_id = self.msg_id.wrapping_add(1);
        let (tag, options) = (self.tag, self.options());
        emit(Header::Rtm(Rtm { msg_id, tag, kind, options }), payload, into)
    }

    fn write(&mut self, kind: RtwKind<'_>, length: u64, payload: usize, into: &mut [u8]) -> usize {
        let rma_iov = [RmaIov::new(self.memory.address, length, self.memory.key.into())];
        let rtw = Rtw { rma_iov: &rma_iov, kind, options: self.options() };
        emit(Header::Rtw(rtw), payload, into)
    }

    fn long_start(&mut self, into: &mut [u8]) -> usize {
        let (msg_length, send_id) = (10_000_000, OpId(self.made as u32));
        let kind = RtmKind::LongCts { msg_length, send_id, credit_request: 32, read_nack: false };
        self.message(kind, 1_000, into)
    }

    fn request(&mut self, into: &mut [u8]) -> usize {
        let (msg_length, id) = (self.memory.length, OpId(self.made as u32));
        if self.made.is_multiple_of(2) {
            let kind = RtwKind::LongCts { msg_length, send_id: id, credit_request: 1 };
            return self.write(kind, msg_length, 0, into);
        }
        let rma_iov = [RmaIov::new(self.memory.address, msg_length, self.memory.key.into())];
        let rtr = Rtr {
            rma_iov: &rma_iov,
            kind: RtrKind::LongCts,
            msg_length,
            recv_id: id,
            recv_length: 1,
            options: self.options(),
        };
        emit(Header::Rtr(rtr), 0, into)
    }

    fn receipt(&mut self, into: &mut [u8]) -> usize {
        let send_id = OpId(self.made as u32);
        if self.made.is_multiple_of(2) {
            return self.message(RtmKind::DcEager { send_id }, 100, into);
        }
        self.write(RtwKind::DcEager { send_id }, 8, 8, into)
    }

    fn garbage(&mut self, into: &mut [u8]) -> usize {
        let length = self.random.usize(4..=300).min(into.len());
        into[..length].iter_mut().for_each(|byte| *byte = self.random.u8(..) & self.random.u8(..));
        // Version 4; the request types, and the control types below them.
        into[0] =
            if self.random.bool() { self.random.u8(64..=147) } else { self.random.u8(1..=16) };
        into[1] = 4;
        length
    }

    /// Writes the next packet, and returns its length.
    pub(crate) fn make(&mut self, into: &mut [u8]) -> usize {
        let number = self.made;
        let length = match self.packets {
            Packets::Flood => self.message(RtmKind::Eager, 8_000, into),
            Packets::Connids => {
                if number > 0 && number.is_multiple_of(MESSAGES_OF_A_CONNID) {
                    self.restart();
                }
                self.message(RtmKind::Eager, 8_000, into)
            }
            Packets::Restarts => {
                if number >= self.prepared {
                    self.restart();
                }
                self.message(RtmKind::Eager, 4, into)
            }
            Packets::LongStarts => self.long_start(into),
            Packets::Requests => self.request(into),
            Packets::Receipts => self.receipt(into),
            Packets::Stale => {
                // The second packet is of the incarnation that makes all others stale.
                self.connid = self.own.connid.0.wrapping_add(u32::from(number == 1));
                self.message(RtmKind::Eager, 100, into)
            }
            Packets::Lives => {
                self.connid = self.random.u32(..);
                self.msg_id = if self.random.bool() { 0 } else { self.random.u32(..4) };
                match self.random.u8(..4) {
                    0 => self.long_start(into),
                    1 => self.receipt(into),
                    2 => {
                        let kind = RtmKind::Medium { msg_length: 3_000, seg_offset: 0 };
                        self.message(kind, 1_000, into)
                    }
                    _ => self.message(RtmKind::Eager, 100, into),
                }
            }
            Packets::Garbage => self.garbage(into),
        };
        self.made += 1;
        length
    }
}

/// Writes a packet with `payload` bytes behind its header, as many as fit.
fn emit(header: Header<'_>, payload: usize, into: &mut [u8]) -> usize {
    let length = header.emit(into).map_or(0, |_| header.len());
    (length + payload).min(into.len())
}
