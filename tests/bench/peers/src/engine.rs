//! A limit: the engine of `ours`, `efa-rdm`, on the same device, without the facade: tagged messages from and into vectors,
//! by one thread that polls. What it takes less is what locks, completion queues, address vectors and the kinds of memory
//! that the facade takes cost.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use efa::Address;
use efa_device::{Device as _, QueuePairOptions, Time};
use efa_rdm::{Accept, Completion, Config, Endpoint, Level, Message, PeerId, StartError};
use efa_sim::shm::{ShmDevice, ShmOptions, ShmQueuePair};

use crate::measure::{MAX_WINDOW, Point, SENT, Transport, UNSENT};
use crate::ours::{CONTROL, DATA, INJECT, NUMBER, PATIENCE, meet};

/// Polls until the clock is read again.
const POLLS: u32 = 64;

/// Whether the point can be measured: an operation owns its buffer.
pub(crate) fn can(point: Point) -> bool {
    point.has_each || point.window == 1
}

/// The buffers of one direction that their operations have returned, by slot.
type Slots = [Option<Vec<u8>>; MAX_WINDOW];

pub(crate) struct Engine {
    endpoint: Endpoint<ShmQueuePair, Vec<u8>>,
    peer: PeerId,
    received: Slots,
    sent: Slots,
    told: bool,
    heard: Option<u64>,
    begin: Instant,
    now: Time,
    polls: u32,
}

impl Engine {
    pub(crate) fn open(directory: &Path, role: &str, bytes: usize) -> Result<Self> {
        let hosts = Some(directory.join("hosts"));
        let options = ShmOptions::new("peers").with(|options| options.directory = hosts);
        let queue_pair = ShmDevice::open(options)?.create_queue_pair(QueuePairOptions::default())?;
        let mut endpoint = Endpoint::new(queue_pair, Config::default())?;
        let ours = Address::from(endpoint.address());
        let theirs: Address = meet(directory, role, &ours.to_string())?.parse()?;
        let peer = endpoint.insert_peer(theirs.into())?;
        let slots = |byte| std::array::from_fn(|_| Some(vec![byte; bytes]));
        Ok(Self {
            endpoint,
            peer,
            received: slots(UNSENT),
            sent: slots(SENT),
            told: false,
            heard: None,
            begin: Instant::now(),
            now: Time::ZERO,
            polls: 0,
        })
    }

    /// Polls until all that was sent is delivered, as the other side may still wait for it.
    pub(crate) fn close(mut self) -> Result<()> {
        let begin = Instant::now();
        while !self.endpoint.is_quiet() {
            ensure!(begin.elapsed() < PATIENCE, "sends are not delivered");
            self.progress()?;
        }
        Ok(())
    }

    #[inline(always)]
    fn progress(&mut self) -> Result<()> {
        self.polls += 1;
        if self.polls == POLLS {
            self.polls = 0;
            self.now = Time::ZERO + self.begin.elapsed();
        }
        match self.endpoint.poll(self.now) {
            None => Ok(()),
            Some(Completion::Receive(received)) => {
                received.result.context("a receive failed")?;
                match received.context {
                    NUMBER => {
                        let number = received.buffer.first_chunk().context("a short number")?;
                        self.heard = Some(u64::from_le_bytes(*number));
                    }
                    slot => self.received[slot as usize] = Some(received.buffer),
                }
                Ok(())
            }
            Some(Completion::Send(sent)) => {
                sent.result.context("a send failed")?;
                match sent.context {
                    NUMBER => self.told = true,
                    slot => self.sent[slot as usize] = sent.buffer,
                }
                Ok(())
            }
            Some(other) => bail!("not expected: {other:?}"),
        }
    }

    fn post(&mut self, tag: u64, buffer: Vec<u8>, context: u64) -> Result<()> {
        let accept = Accept::Tagged { source: None, tag, ignore: 0 };
        self.endpoint.receive(accept, buffer, context).map_err(|refused| refused.error)?;
        Ok(())
    }

    fn message<B>(&self, tag: u64, buffer: B, context: u64) -> Message<B> {
        let (peer, tag, level) = (self.peer, Some(tag), Level::Transmit);
        Message { peer, tag, cq_data: None, level, buffer, context }
    }
}

/// The buffer of a slot, whose operation is about to start.
fn take(slots: &mut Slots, slot: usize, length: usize, byte: u8) -> Result<Vec<u8>> {
    let mut buffer = slots[slot].take().context("the buffer of the slot is away")?;
    if buffer.len() != length {
        buffer.resize(length, byte);
    }
    Ok(buffer)
}

impl Transport for Engine {
    fn receive(&mut self, point: Point, slot: usize) -> Result<()> {
        let buffer = take(&mut self.received, slot, point.size, UNSENT)?;
        self.post(DATA, buffer, slot as u64)
    }

    fn send(&mut self, point: Point, slot: usize) -> Result<()> {
        let mut buffer = take(&mut self.sent, slot, point.size, SENT)?;
        if point.size <= INJECT {
            while let Err(error) = self.endpoint.inject(self.message(DATA, &*buffer, 0)) {
                ensure!(matches!(error, StartError::Busy { .. }), "{error}");
                self.progress()?;
            }
            self.sent[slot] = Some(buffer);
            return Ok(());
        }
        while let Err(refused) = self.endpoint.send(self.message(DATA, buffer, slot as u64)) {
            ensure!(matches!(refused.error, StartError::Busy { .. }), "{}", refused.error);
            buffer = refused.buffer;
            self.progress()?;
        }
        Ok(())
    }

    fn await_receive(&mut self, _point: Point, slot: usize) -> Result<()> {
        while self.received[slot].is_none() {
            self.progress()?;
        }
        Ok(())
    }

    fn await_send(&mut self, slot: usize) -> Result<()> {
        while self.sent[slot].is_none() {
            self.progress()?;
        }
        Ok(())
    }

    fn tell(&mut self, number: u64) -> Result<()> {
        self.told = false;
        let message = self.message(CONTROL, number.to_le_bytes().to_vec(), NUMBER);
        self.endpoint.send(message).map_err(|refused| refused.error)?;
        while !self.told {
            self.progress()?;
        }
        Ok(())
    }

    fn hear(&mut self) -> Result<u64> {
        self.post(CONTROL, vec![0; size_of::<u64>()], NUMBER)?;
        loop {
            if let Some(number) = self.heard.take() {
                return Ok(number);
            }
            self.progress()?;
        }
    }

    fn received_byte(&self, _point: Point, slot: usize, at: usize) -> u8 {
        self.received[slot].as_ref().map_or(UNSENT, |buffer| buffer[at])
    }

    fn forget(&mut self, _point: Point, slot: usize) {
        if let Some(buffer) = &mut self.received[slot] {
            buffer.fill(UNSENT);
        }
    }
}
