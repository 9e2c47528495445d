//! Receiving from one other queue pair: the receiving end of its ring, and how long its packets have
//! waited for a buffer.

use std::collections::VecDeque;
use std::ops::Range;

use efa_device::{CopySource, DeviceError, Qpn, RemoteMemory, Status, Time};

use super::directory::{FileName, HostDirectory};
use super::mailbox::Sender;
use super::memory::HostMemory;
use super::operation::PIECE;
use super::requests::CHUNK;
use super::ring::{ADDRESS, Arrived, Awaited, Broken, Kind, Push, RingReceiver, WRITTEN};
use super::wake::Waker;
use crate::keys::{Slots, Use};
use crate::link::{Delivered, ReceiveQueue};

/// Most packets taken from a ring in one poll, so that no sender starves the others.
const BATCH: usize = 16;
/// Empty polls of a ring before it is watched no longer.
const UNWATCH_AFTER: u32 = 4096;

/// The outcome of a poll of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Packets were taken, or wait for a buffer.
    Packets,
    /// The same, and the rest of some was [left](Incoming::take_left) in the ring.
    Left,
    /// No packets for long: watching may end.
    Nothing,
    /// The sender has detached, and all its packets were taken.
    End,
}

/// An attached ring of a sender.
#[derive(Debug)]
pub(super) struct Incoming {
    sender: Sender,
    /// Of the mailbox.
    entry: usize,
    ring: RingReceiver,
    watched: bool,
    /// Whether this queue pair may sleep.
    sleeps: bool,
    /// Of a sender that may sleep.
    waker: Option<Waker>,
    empty: u32,
    /// When each packet without a buffer was first seen, oldest first.
    waiting: VecDeque<Time>,
    /// Packets that were taken and whose rest is in the ring still, oldest first: where the packet buffers are, and where they
    /// are in the ring. None is acknowledged.
    left: VecDeque<(usize, Range<usize>)>,
    /// Bytes of a request on their way between ring and region.
    passing: Vec<u8>,
    /// Whether packets arrived since the last [`was_quiet`](Self::was_quiet).
    active: bool,
}

impl Incoming {
    /// Maps the ring `nonce` that `sender` announced to `me` by an entry of the mailbox, and removes its file;
    /// `None` if it isn't a ring. After a [shortage](DeviceError::shortage) this can be tried again.
    pub(super) fn open(
        directory: &HostDirectory,
        me: Qpn,
        entry: usize,
        sender: Sender,
        nonce: u64,
        sleeps: bool,
    ) -> Result<Option<Self>, DeviceError> {
        let name = FileName::Ring { to: me, from: sender.qpn, nonce };
        let Some(file) = directory.find_writable(name)? else { return Ok(None) };
        let ring =
            RingReceiver::open(&file).map_err(|errno| directory.error("mapping", name, errno))?;
        let waker = match &ring {
            Some(ring) if ring.sender_sleeps() => {
                Waker::open(directory, sender.qpn, sender.generation)?
            }
            _ => None,
        };
        directory.remove(name);
        let Some(ring) = ring.filter(|ring| ring.from() == sender.qpn) else { return Ok(None) };
        ring.set_watched(entry, false, sleeps);
        Ok(Some(Self {
            sender,
            entry,
            ring,
            watched: false,
            sleeps,
            waker,
            empty: 0,
            waiting: VecDeque::new(),
            left: VecDeque::new(),
            passing: Vec::new(),
            active: true,
        }))
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
        self.ring.set_watched(self.entry, watched, self.sleeps);
    }

    /// Whether nothing arrived since the last call.
    pub(super) fn was_quiet(&mut self) -> bool {
        !std::mem::take(&mut self.active)
    }

    /// Whether [`poll`](Self::poll) has something to do.
    #[inline]
    pub(super) fn wants_poll(&mut self) -> bool {
        self.empty = self.empty.wrapping_add(1);
        self.ring.has_next() || self.empty.is_multiple_of(UNWATCH_AFTER)
    }

    /// Takes packets and passes each to `receive`. None must be left in the ring.
    #[inline]
    pub(super) fn poll(
        &mut self,
        memory: &HostMemory,
        queue: &mut ReceiveQueue<'_>,
        receive: impl FnMut(Delivered),
    ) -> Result<Found, Broken> {
        if !self.ring.has_next() {
            return Ok(if self.is_finished() { Found::End } else { Found::Nothing });
        }
        self.empty = 0;
        self.active = true;
        let taken = self.take(memory, queue, receive);
        if !self.left.is_empty() {
            if let (1, Some((_, place))) = (self.left.len(), self.left.front()) {
                // Of several the first is copied at once, and the processor sees which lines follow.
                self.ring.expect_rest(place);
            }
            // What broke the ring is still there once the others are taken.
            return Ok(Found::Left);
        }
        self.acknowledge();
        taken.map(|()| Found::Packets)
    }

    #[inline]
    fn acknowledge(&mut self) {
        self.ring.acknowledge();
        if self.waker.is_some() {
            self.wake_sender();
        }
    }

    /// Passes a part of a datagram whose rest was left in the ring to `take`; its front is in the packet there. Gives up those
    /// before it. Returns whether any is left.
    pub(super) fn take_left(
        &mut self,
        packet: *const u8,
        part: Range<usize>,
        take: impl FnOnce(CopySource<'_>),
    ) -> bool {
        let at = packet.addr();
        while let Some((packet, place)) = self.left.pop_front() {
            if packet == at {
                self.ring.pass(&place, part, take);
                break;
            }
        }
        if self.left.is_empty() {
            self.end_left();
        }
        !self.left.is_empty()
    }

    /// Leaves nothing in the ring.
    pub(super) fn end_left(&mut self) {
        self.left.clear();
        self.acknowledge();
        if self.ring.is_detached() {
            // Whoever looked whether this is finished while something was left looks no more.
            self.empty = UNWATCH_AFTER - 1;
        }
    }

    #[cold]
    fn wake_sender(&mut self) {
        if let Some(waker) = &mut self.waker {
            waker.wake();
        }
    }

    fn take(
        &mut self,
        memory: &HostMemory,
        queue: &mut ReceiveQueue<'_>,
        mut receive: impl FnMut(Delivered),
    ) -> Result<(), Broken> {
        for _ in 0..BATCH {
            let Some(arrived) = self.ring.peek()? else { break };
            let delivered = match arrived.kind {
                Kind::Read | Kind::Write => {
                    self.serve(queue, arrived);
                    continue;
                }
                Kind::Push => {
                    self.push(memory, queue, arrived);
                    // It may have been long.
                    break;
                }
                Kind::Plain if queue.leaves(arrived.length) && arrived.qkey == queue.qkey => {
                    match self.take_front(queue, arrived) {
                        Some(front) => front,
                        None => break,
                    }
                }
                Kind::Plain | Kind::Immediate => {
                    if arrived.qkey != queue.qkey {
                        self.reject(Status::BadDestinationQpn);
                        continue;
                    }
                    let Some(mut packet) = queue.take_posted() else {
                        self.wait(queue);
                        break;
                    };
                    let Some(bytes) = packet.get_mut(..arrived.length) else {
                        queue.put_back(packet);
                        self.reject(Status::RemoteBadLength);
                        continue;
                    };
                    self.ring.accept(arrived, bytes);
                    self.waiting.pop_front();
                    let immediate = (arrived.kind == Kind::Immediate).then_some(arrived.immediate);
                    Delivered::Datagram { packet, length: arrived.length, immediate }
                }
                Kind::Written => match self.take_written(queue, arrived) {
                    Some(written) => written,
                    None => break,
                },
            };
            receive(delivered);
        }
        Ok(())
    }

    /// Takes a datagram, of which only the front is copied. `None` if it was rejected, or has to wait for a buffer.
    #[inline(never)]
    fn take_front(&mut self, queue: &mut ReceiveQueue<'_>, arrived: Arrived) -> Option<Delivered> {
        let (length, place) = (arrived.length, self.ring.place(arrived));
        let Some(mut packet) = queue.take_posted() else {
            self.wait(queue);
            return None;
        };
        let Some(bytes) = packet.get_mut(..length) else {
            queue.put_back(packet);
            self.reject(Status::RemoteBadLength);
            return None;
        };
        let front = queue.front_of(bytes);
        self.ring.accept(arrived, front);
        self.left.push_back((front.as_ptr().addr(), place));
        self.waiting.pop_front();
        Some(Delivered::Front { packet, length })
    }

    /// Takes the immediate data of a write; `None` if it has to wait for a buffer.
    #[cold]
    fn take_written(
        &mut self,
        queue: &mut ReceiveQueue<'_>,
        arrived: Arrived,
    ) -> Option<Delivered> {
        let packet = if queue.unsolicited { None } else { queue.take_posted() };
        if packet.is_none() && !queue.unsolicited {
            self.wait(queue);
            return None;
        }
        let mut length = [0; WRITTEN];
        self.ring.accept(arrived, &mut length);
        self.waiting.pop_front();
        let (length, immediate) = (u64::from_le_bytes(length), arrived.immediate);
        Some(Delivered::Written { packet, length, immediate })
    }

    /// Carries out a request to read or write memory of this process.
    #[cold]
    fn serve(&mut self, queue: &ReceiveQueue<'_>, arrived: Arrived) {
        let memory = RemoteMemory { address: self.ring.requested_address(), key: arrived.qkey.0 };
        let is_read = arrived.kind == Kind::Read;
        let length = if is_read { arrived.immediate as usize } else { arrived.length - ADDRESS };
        if length > CHUNK {
            return self.reject(Status::RemoteBadLength);
        }
        let bytes = &mut self.passing;
        bytes.resize(length, 0);
        // All of a host have the same GID.
        let known = queue.keys.slots().is_some_and(Slots::knows_host);
        let served = if !known {
            Err(Status::UnknownPeer)
        } else if is_read {
            queue.keys.read_remotely(memory, bytes)
        } else {
            self.ring.requested_bytes(bytes);
            queue.keys.write_remotely(memory, bytes)
        };
        if let Err(status) = served {
            return self.reject(status);
        }
        self.ring.answer(if is_read { bytes } else { &[] });
        self.waiting.pop_front();
    }

    /// Writes memory of this process to the sender's.
    #[cold]
    fn push(&mut self, memory: &HostMemory, queue: &ReceiveQueue<'_>, arrived: Arrived) {
        let Push { from, into, count } = self.ring.push(arrived);
        let length = count as usize;
        let pushed = match queue.keys.part(from, length, Use::RemoteRead) {
            Ok(part) if length <= PIECE => part.region.with_part(part.offset, length, |bytes| {
                memory.push(self.sender.qpn, bytes, into, || self.ring.take_push())
            }),
            _ => Err(Status::RemoteBadAddress),
        };
        match pushed {
            Ok(()) => {
                self.ring.answer(&[]);
                self.waiting.pop_front();
            }
            Err(status) => self.reject(status),
        }
    }

    fn reject(&mut self, why: Status) {
        self.ring.reject(why);
        self.waiting.pop_front();
    }

    /// Notes since when packets wait for a buffer, and rejects those whose RNR timeout has expired.
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

    /// Whether the sender has detached and all its packets were taken, with what was left of them.
    pub(super) fn is_finished(&self) -> bool {
        // In this order: it published its packets before it detached.
        self.ring.is_detached() && !self.ring.has_next() && self.left.is_empty()
    }

    /// Prepares looks at whether the next packet has arrived.
    pub(super) fn await_next(&self, awaited: &mut Option<Awaited>) {
        self.ring.await_next(awaited);
    }

    /// Whether the next packet has arrived and needs no buffer.
    pub(super) fn has_request(&self) -> bool {
        let next = self.ring.peek().ok().flatten();
        next.is_some_and(|arrived| arrived.kind.is_request())
    }

    /// Whether packets have arrived.
    pub(super) fn has_packets(&self) -> bool {
        self.ring.has_next()
    }

    /// Rejects the packets that have arrived, and takes no more.
    pub(super) fn detach(&mut self) {
        self.end_left();
        self.ring.detach(Status::BadDestinationQpn);
        self.wake_sender();
    }
}
