//! A limit: the same device as `ours`, the link shm, by the barest program: a message is a packet, without a header and
//! without matching. What it takes, no protocol on this device can save.
//!
//! ```text
//!   send     bytes ─ copied ─► packet ─► device … send completion ─► packet is free again
//!   receive  device ─► packet ─ copied ─► the buffer posted first; the packet is posted again
//! ```

use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use efa_device::{
    Completion, Destination, Device as _, DeviceError, Gid, Qkey, Qpn, QueuePair, QueuePairOptions,
    SendRequest, Time, WorkId,
};
use efa_sim::shm::{ShmDevice, ShmOptions, ShmQueuePair};

use crate::measure::{MAX_WINDOW, Point, SENT, Transport, UNSENT};
use crate::ours::{PATIENCE, meet};

/// Most bytes of a message: it must fit a packet.
pub(crate) const MOST: usize = 8192;
/// Receive buffers that are posted.
const POSTED: usize = 1024;
/// The work ID and immediate data of numbers; those of messages are their slot, and none.
const NUMBER: u64 = u64::MAX;

type Packet = <ShmQueuePair as QueuePair>::Packet;

pub(crate) struct Device {
    queue_pair: ShmQueuePair,
    peer: Destination,
    free: Vec<Packet>,
    out: Vec<u8>,
    into: Vec<u8>,
    /// Where the receives that wait begin, and their slots.
    posted: VecDeque<(usize, usize)>,
    /// Packets for which no receive was posted yet, with their lengths.
    early: VecDeque<(Packet, usize)>,
    received: [bool; MAX_WINDOW],
    sent: [bool; MAX_WINDOW],
    told: bool,
    heard: Option<u64>,
}

impl Device {
    pub(crate) fn open(directory: &Path, role: &str, bytes: usize) -> Result<Self> {
        let hosts = Some(directory.join("hosts"));
        let options = ShmOptions::new("peers").with(|options| options.directory = hosts);
        let device = ShmDevice::open(options)?;
        let mut queue_pair = device.create_queue_pair(QueuePairOptions::default())?;
        for _ in 0..POSTED {
            let packet = queue_pair.allocate_packet()?;
            queue_pair.post_receive(packet).map_err(|refused| refused.error)?;
        }
        let free = (0..2 * MAX_WINDOW).map(|_| queue_pair.allocate_packet());
        let free = free.collect::<Result<_, DeviceError>>()?;
        let ours = queue_pair.address();
        let text = format!("{} {} {}", u128::from_be_bytes(ours.gid.0), ours.qpn.0, ours.qkey.0);
        let theirs = meet(directory, role, &text)?;
        let words: Vec<&str> = theirs.split(' ').collect();
        let [gid, qpn, qkey] = *words else { bail!("`{theirs}` is no address") };
        let gid = Gid(gid.parse::<u128>()?.to_be_bytes());
        let address_handle = queue_pair.create_address_handle(gid)?;
        let peer =
            Destination { address_handle, qpn: Qpn(qpn.parse()?), qkey: Qkey(qkey.parse()?) };
        Ok(Self {
            queue_pair,
            peer,
            free,
            out: vec![SENT; bytes],
            into: vec![UNSENT; bytes],
            posted: VecDeque::with_capacity(MAX_WINDOW),
            early: VecDeque::with_capacity(MAX_WINDOW),
            received: [false; MAX_WINDOW],
            sent: [false; MAX_WINDOW],
            told: false,
            heard: None,
        })
    }

    /// Polls until all that was sent is delivered, as the other side may still wait for it.
    pub(crate) fn close(mut self) -> Result<()> {
        let begin = Instant::now();
        while self.free.len() < 2 * MAX_WINDOW {
            ensure!(begin.elapsed() < PATIENCE, "sends are not delivered");
            self.progress()?;
        }
        Ok(())
    }

    fn progress(&mut self) -> Result<()> {
        match self.queue_pair.poll(Time::ZERO) {
            Some(Completion::Send { id: WorkId(id), packet, result }) => {
                result.ok().context("a send failed")?;
                self.free.push(packet);
                match self.sent.get_mut(id as usize) {
                    Some(sent) => *sent = true,
                    None => self.told = true,
                }
                Ok(())
            }
            Some(Completion::Receive { packet, length, immediate: None, .. }) => {
                match self.posted.pop_front() {
                    Some((at, slot)) => self.deliver(packet, length, at, slot),
                    None => {
                        self.early.push_back((packet, length));
                        Ok(())
                    }
                }
            }
            Some(Completion::Receive { packet, .. }) => {
                let number = packet.as_ref().first_chunk().context("a number of other length")?;
                self.heard = Some(u64::from_le_bytes(*number));
                self.post(packet)
            }
            Some(_) => bail!("a completion of RDMA"),
            None => Ok(()),
        }
    }

    fn deliver(&mut self, packet: Packet, length: usize, at: usize, slot: usize) -> Result<()> {
        self.into[at..at + length].copy_from_slice(&packet.as_ref()[..length]);
        self.received[slot] = true;
        self.post(packet)
    }

    fn post(&mut self, packet: Packet) -> Result<()> {
        Ok(self.queue_pair.post_receive(packet).map_err(|refused| refused.error)?)
    }

    fn packet(&mut self) -> Result<Packet> {
        loop {
            if let Some(packet) = self.free.pop() {
                return Ok(packet);
            }
            self.progress()?;
        }
    }

    fn start(
        &mut self,
        id: u64,
        packet: Packet,
        length: usize,
        immediate: Option<u32>,
    ) -> Result<()> {
        let request =
            SendRequest { id: WorkId(id), packet, length, destination: self.peer, immediate };
        Ok(self.queue_pair.post_send(request).map_err(|refused| refused.error)?)
    }
}

impl Transport for Device {
    fn receive(&mut self, point: Point, slot: usize) -> Result<()> {
        self.received[slot] = false;
        let at = point.offset(slot);
        match self.early.pop_front() {
            Some((packet, length)) => self.deliver(packet, length, at, slot),
            None => {
                self.posted.push_back((at, slot));
                Ok(())
            }
        }
    }

    fn send(&mut self, point: Point, slot: usize) -> Result<()> {
        self.sent[slot] = false;
        let mut packet = self.packet()?;
        let at = point.offset(slot);
        packet.as_mut()[..point.size].copy_from_slice(&self.out[at..at + point.size]);
        self.start(slot as u64, packet, point.size, None)
    }

    fn await_receive(&mut self, _point: Point, slot: usize) -> Result<()> {
        while !self.received[slot] {
            self.progress()?;
        }
        Ok(())
    }

    fn await_send(&mut self, slot: usize) -> Result<()> {
        while !self.sent[slot] {
            self.progress()?;
        }
        Ok(())
    }

    fn tell(&mut self, number: u64) -> Result<()> {
        self.told = false;
        let mut packet = self.packet()?;
        let bytes = number.to_le_bytes();
        packet.as_mut()[..bytes.len()].copy_from_slice(&bytes);
        self.start(NUMBER, packet, bytes.len(), Some(0))?;
        while !self.told {
            self.progress()?;
        }
        Ok(())
    }

    fn hear(&mut self) -> Result<u64> {
        loop {
            if let Some(number) = self.heard.take() {
                return Ok(number);
            }
            self.progress()?;
        }
    }

    fn received_byte(&self, point: Point, slot: usize, at: usize) -> u8 {
        self.into[point.offset(slot) + at]
    }

    fn forget(&mut self, point: Point, slot: usize) {
        let at = point.offset(slot);
        self.into[at..at + point.size].fill(UNSENT);
    }
}
