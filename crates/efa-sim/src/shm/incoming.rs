//! Receiving from one other queue pair: our end of its ring, and how long its packets have waited.

use std::collections::VecDeque;

use efa_device::{Qpn, Status, Time};

use super::directory::{FileName, HostDirectory};
use super::mailbox::Sender;
use super::ring::{Arrived, Broken, Kind, RingReceiver, WRITTEN};
use crate::link::{Delivered, ReceiveQueue};

/// Most packets taken from a ring in one go, so that no sender starves the others.
const BATCH: usize = 16;
/// Empty looks at a ring before it has to ring the bell again.
const DROWSY: u32 = 4096;

/// What a look at a ring found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Something was dealt with, or waits for a buffer.
    Packets,
    /// Nothing, and that for long: watching may end.
    Nothing,
    /// The sender has left, and everything it sent is dealt with.
    End,
}

/// A sender's ring, attached.
#[derive(Debug)]
pub(super) struct Incoming {
    sender: Sender,
    ring: RingReceiver,
    watched: bool,
    empty: u32,
    /// When each packet that found no buffer was first seen, oldest first.
    waiting: VecDeque<Time>,
    /// Whether anything came since the last [`quiet`](Self::quiet).
    active: bool,
}

impl Incoming {
    /// Maps the ring of `nonce` that `sender` announced to `me`; `None` if it isn't one. Its file is
    /// needed no longer then.
    pub(super) fn open(
        directory: &HostDirectory,
        me: Qpn,
        sender: Sender,
        nonce: u64,
    ) -> Option<Self> {
        let name = FileName::Ring { to: me, from: sender.qpn, nonce };
        let file = directory.find(name).ok().flatten()?;
        let ring = RingReceiver::open(&file).ok().flatten();
        directory.remove(name);
        let ring = ring.filter(|ring| ring.from() == sender.qpn)?;
        let waiting = VecDeque::new();
        Some(Self { sender, ring, watched: false, empty: 0, waiting, active: true })
    }

    pub(super) fn sender(&self) -> Sender {
        self.sender
    }

    pub(super) fn is_watched(&self) -> bool {
        self.watched
    }

    pub(super) fn set_watched(&mut self, watched: bool) {
        self.watched = watched;
        self.empty = 0;
        self.ring.set_watched(watched);
    }

    /// Whether nothing came since the last call.
    pub(super) fn quiet(&mut self) -> bool {
        !std::mem::take(&mut self.active)
    }

    /// Whether there is something to [`poll`](Self::poll) for.
    #[inline]
    pub(super) fn wants_poll(&mut self) -> bool {
        self.empty = self.empty.wrapping_add(1);
        self.ring.has_next() || self.empty.is_multiple_of(DROWSY)
    }

    /// Takes packets; `receive` gets each.
    #[inline]
    pub(super) fn poll(
        &mut self,
        queue: &mut ReceiveQueue<'_>,
        receive: impl FnMut(Delivered),
    ) -> Result<Found, Broken> {
        if !self.ring.has_next() {
            return Ok(if self.is_finished() { Found::End } else { Found::Nothing });
        }
        self.empty = 0;
        self.active = true;
        let taken = self.take(queue, receive);
        self.ring.tell();
        taken.map(|()| Found::Packets)
    }

    fn take(
        &mut self,
        queue: &mut ReceiveQueue<'_>,
        mut receive: impl FnMut(Delivered),
    ) -> Result<(), Broken> {
        for _ in 0..BATCH {
            let Some(arrived) = self.ring.peek()? else { break };
            if arrived.kind == Kind::Written {
                let Some(written) = self.take_written(queue, arrived) else { break };
                receive(written);
                continue;
            }
            if arrived.qkey != queue.qkey {
                self.reject(Status::BadDestinationQpn);
                continue;
            }
            let Some(mut buffer) = queue.posted.pop_front() else {
                self.wait(queue);
                break;
            };
            match buffer.get_mut(..arrived.length) {
                Some(bytes) => {
                    self.ring.accept(bytes);
                    self.waiting.pop_front();
                    let immediate = (arrived.kind != Kind::Plain).then_some(arrived.immediate);
                    let length = arrived.length;
                    receive(Delivered::Datagram { packet: buffer, length, immediate });
                }
                None => {
                    queue.posted.push_front(buffer);
                    self.reject(Status::RemoteBadLength);
                }
            }
        }
        Ok(())
    }

    /// Takes the immediate data of a write; `None` if it waits for a buffer.
    #[cold]
    fn take_written(
        &mut self,
        queue: &mut ReceiveQueue<'_>,
        arrived: Arrived,
    ) -> Option<Delivered> {
        let packet = if queue.unsolicited { None } else { queue.posted.pop_front() };
        if packet.is_none() && !queue.unsolicited {
            self.wait(queue);
            return None;
        }
        let mut length = [0; WRITTEN];
        self.ring.accept(&mut length);
        self.waiting.pop_front();
        let (length, immediate) = (u64::from_le_bytes(length), arrived.immediate);
        Some(Delivered::Written { packet, length, immediate })
    }

    fn reject(&mut self, why: Status) {
        self.ring.reject(why);
        self.waiting.pop_front();
    }

    /// Notes which packets wait for a buffer, and rejects those that have waited long enough.
    #[cold]
    fn wait(&mut self, queue: &ReceiveQueue<'_>) {
        let rnr_retry = self.ring.rnr_retry();
        if !queue.has_rnr_timeout(rnr_retry) {
            return;
        }
        while self.ring.has(self.waiting.len()) {
            self.waiting.push_back(queue.now);
        }
        while self.waiting.front().is_some_and(|&since| queue.rnr_expired(rnr_retry, since)) {
            self.reject(Status::ReceiverNotReady);
        }
    }

    /// Whether the sender has left and everything it sent is dealt with.
    pub(super) fn is_finished(&self) -> bool {
        // In this order: what it sent, it sent before it left.
        self.ring.is_abandoned() && !self.ring.has_next()
    }

    /// Whether packets are there.
    pub(super) fn has_packets(&self) -> bool {
        self.ring.has_next()
    }

    /// Rejects what is there and takes nothing more.
    pub(super) fn leave(&mut self) {
        self.ring.leave(Status::BadDestinationQpn);
    }
}
