//! An attacker on a queue pair of its own: it posts packets as they are, without an engine.

use std::collections::VecDeque;
use std::time::Duration;

use efa_device::{
    Completion, Destination, Device, Gid, Qkey, Qpn, QueuePair, QueuePairAddress, QueuePairOptions,
    SendRequest, Status, Time, WorkId,
};
use efa_proto::{Connid, RawAddress};
use efa_sim::local::LocalDevice;
use efa_sim::{SoftDevice, SoftQueuePair};

use crate::packets::{Maker, Memory, Packets};

/// Packets that it has posted at a time.
const POSTED: usize = 256;

/// The queue pair of an attacker, and what it sends next.
#[derive(Debug)]
pub(crate) struct Attacker {
    queue_pair: SoftQueuePair,
    /// Where it makes a queue pair with the same number for each incarnation. On the other links it only
    /// claims another connid, and lives until the device refuses the HANDSHAKE to that.
    local: Option<LocalDevice>,
    victim: Destination,
    gid: Gid,
    maker: Maker,
    posted: VecDeque<(u64, usize)>,
    next: u64,
    spare: Vec<Box<[u8]>>,
    /// Packets that met a receiver that wasn't ready.
    again: VecDeque<(Box<[u8]>, usize)>,
    pub(crate) sent: u64,
}

/// What an attacker is told about the victim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) address: RawAddress,
    pub(crate) memory: Memory,
    /// Tag of the attacker's messages, if they have one.
    pub(crate) tag: Option<u64>,
    pub(crate) seed: u64,
    /// Messages before the restarts of [`Packets::Restarts`].
    pub(crate) prepared: u64,
}

impl Attacker {
    pub(crate) fn new(device: &SoftDevice, packets: Packets, to: &Target) -> Result<Self, String> {
        let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(0x3000));
        let local = match device {
            SoftDevice::Local(device) if packets == Packets::Connids => Some(device.clone()),
            _ => None,
        };
        let mut queue_pair = device.create_queue_pair(options).map_err(|e| e.to_string())?;
        let Target { address, memory, tag, seed, prepared } = *to;
        let address_handle =
            queue_pair.create_address_handle(Gid(address.gid)).map_err(|e| e.to_string())?;
        let (qpn, qkey) = (Qpn(address.qpn), Qkey(address.connid.0));
        let own = queue_pair.address();
        let own = RawAddress { gid: own.gid.0, qpn: own.qpn.0, connid: Connid(own.qkey.0) };
        Ok(Self {
            queue_pair,
            local,
            victim: Destination { address_handle, qpn, qkey },
            gid: Gid(address.gid),
            maker: Maker::new(packets, prepared, memory, tag, own, seed),
            posted: VecDeque::new(),
            next: 0,
            spare: Vec::new(),
            again: VecDeque::new(),
            sent: 0,
        })
    }

    pub(crate) fn qpn(&self) -> u16 {
        self.queue_pair.address().qpn.0
    }

    pub(crate) fn address(&self) -> QueuePairAddress {
        self.queue_pair.address()
    }

    pub(crate) fn is_prepared(&self) -> bool {
        self.maker.is_prepared()
    }

    /// Makes the queue pair of the next incarnation, with the same number.
    fn restart(&mut self, connid: Connid) -> Option<()> {
        let device = self.local.as_ref()?;
        let QueuePairAddress { qpn, .. } = self.queue_pair.address();
        let options = QueuePairOptions::default();
        // The old one must be gone first.
        self.queue_pair = SoftQueuePair::Local(device.create_queue_pair(options).ok()?);
        let options = options.with(|options| options.qkey = Qkey(connid.0));
        let queue_pair = device.create_queue_pair_at(qpn, options).ok()?;
        self.queue_pair = SoftQueuePair::Local(queue_pair);
        let gid = self.gid;
        self.victim.address_handle = self.queue_pair.create_address_handle(gid).ok()?;
        self.posted.clear();
        Some(())
    }

    /// Posts up to `most` packets, and takes back those that were sent.
    pub(crate) fn run(&mut self, most: usize, now: Time) {
        for _ in 0..most {
            if self.posted.len() >= POSTED || !self.post() {
                break;
            }
        }
        for _ in 0..2 * POSTED {
            match self.queue_pair.poll(now) {
                Some(Completion::Send { id, packet, result }) => {
                    let place = self.posted.iter().position(|(posted, _)| *posted == id.0);
                    let length = place.and_then(|place| self.posted.remove(place));
                    match (result, length) {
                        (Err(Status::ReceiverNotReady), Some((_, length))) => {
                            self.again.push_back((packet, length));
                        }
                        (Ok(()), _) => {
                            self.sent += 1;
                            self.spare.push(packet);
                        }
                        _ => self.spare.push(packet),
                    }
                }
                Some(_) => {}
                None => break,
            }
        }
    }

    fn post(&mut self) -> bool {
        let (packet, length) = match self.again.pop_front() {
            Some(again) => again,
            None => {
                let packet = match self.spare.pop() {
                    Some(packet) => Ok(packet),
                    None => self.queue_pair.allocate_packet(),
                };
                let Ok(mut packet) = packet else { return false };
                let length = self.maker.make(&mut packet);
                if let Some(connid) = self.maker.take_restart() {
                    self.restart(connid);
                }
                (packet, length)
            }
        };
        let id = self.next;
        let destination = self.victim;
        let request = SendRequest { id: WorkId(id), packet, length, destination, immediate: None };
        match self.queue_pair.post_send(request) {
            Ok(()) => {
                self.next += 1;
                self.posted.push_back((id, length));
                true
            }
            Err(refused) => {
                self.again.push_front((refused.packet, length));
                false
            }
        }
    }
}

/// How long an attacker's process lives at most, should nobody end it.
pub(crate) const LIFE: Duration = Duration::from_secs(300);
