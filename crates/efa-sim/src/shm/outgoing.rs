//! Sending to one other queue pair: its mailbox, the ring to it, and the sends in flight.
//!
//! ```text
//!  post ─► queued ─(slot is free)─────► in flight ─(head moved)─► completed
//!             └──────────(peer closed, dead or broken)──────────────►┘
//! ```
//!
//! While nothing is acknowledged, every [`CHECK_EVERY`]th poll checks the receiver: that the entry is
//! claimed and as it was written, the doorbell rung if the ring isn't watched, the receiver attached, and its
//! process alive. So a doorbell that was lost, or an entry that another process overwrote, only costs time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use efa_device::{CopyTarget, DeviceError, Qkey, Qpn, SendRequest, Status, Time, WorkId};

use super::directory::{FileName, HostDirectory};
use super::mailbox::{PeerMailbox, Sender};
use super::requests::{CHUNK, REQUESTS};
use super::ring::{ADDRESS, Kind, Push, RingSender};
use super::sharing::{Answer, Asked, Ticket};
use super::wake::Waker;
use crate::link::{InPlace, Piece, RNR_RETRY_INFINITE, Step, system};

/// Polls without acknowledgement between two checks of the receiver.
const CHECK_EVERY: u32 = 32;

/// How long a receiver may acknowledge nothing before packets that wait for space in its ring leave a send queue that is
/// full. One that runs stands still for less.
const PATIENCE: Duration = Duration::from_secs(1);

/// A send that was accepted.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) id: WorkId,
    pub(super) content: Content,
    pub(super) immediate: Option<u32>,
    pub(super) qkey: Qkey,
}

/// What is sent.
#[derive(Debug)]
pub(super) enum Content {
    /// The packet has all of its bytes but the last `rest`, which are in the ring alone.
    Datagram { packet: Box<[u8]>, length: u32, rest: u32 },
    /// The immediate data of a write of this many bytes.
    Written(u64),
    /// A piece of the operation with this key, and the bytes that are written or were read.
    Piece { operation: usize, piece: Box<Piece> },
    /// The request of the ring's [`Asked`].
    Push,
}

// A longer one would make each datagram dearer.
const _: () = assert!(size_of::<Posted>() == 56);

/// Where sends end.
pub(super) trait Ends {
    /// A datagram was delivered.
    fn delivered(&mut self, id: WorkId, packet: Box<[u8]>);

    /// A send ended, perhaps a datagram that wasn't delivered.
    fn ended(&mut self, posted: Posted, result: Result<(), Status>);
}

/// The sending queue pair.
#[derive(Clone, Debug)]
pub(super) struct Local {
    pub(super) directory: Arc<HostDirectory>,
    pub(super) sender: Sender,
    pub(super) mtu: usize,
    /// Slots of a ring at first, and while little is sent.
    pub(super) idle_slots: usize,
    /// Slots of a ring under load.
    pub(super) ring_slots: usize,
    pub(super) rnr_retry: u8,
    pub(super) probe_after: Duration,
    pub(super) attach_timeout: Duration,
    /// Whether the queue pair may sleep.
    pub(super) sleeps: bool,
}

/// What a ring is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Datagrams, and the immediate data of writes.
    Datagrams,
    /// [Requests](super::requests). They don't wait behind datagrams for which no buffer is posted.
    Requests,
}

impl Purpose {
    /// The number of slots at first and under load, and the bytes of a slot.
    fn shape(self, local: &Local) -> (usize, usize, usize) {
        match self {
            Self::Datagrams => (local.idle_slots, local.ring_slots, local.mtu),
            Self::Requests => (REQUESTS, REQUESTS, ADDRESS + CHUNK),
        }
    }
}

/// What a poll found of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    There,
    /// It has acknowledged nothing for [`PATIENCE`], and [packets wait](Outgoing::return_waiting) for space in the ring.
    Stalled,
    /// It is gone, and the ring with it.
    Gone,
}

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    Alive,
    Gone(Status),
}

/// The ring to one peer. Dropping it announces to the peer that no more packets follow.
#[derive(Debug)]
pub(super) struct Outgoing {
    peer: Qpn,
    purpose: Purpose,
    /// The key that was used last.
    key: Option<Qkey>,
    mailbox: PeerMailbox,
    /// Of a peer that may sleep.
    waker: Option<Waker>,
    ring: RingSender,
    nonce: u64,
    local: Arc<Local>,
    /// The claimed entry of the mailbox.
    entry: Option<usize>,
    /// Slots that the ring may have.
    most_slots: usize,
    /// Packets published up to the last sweep.
    swept: u64,
    in_flight: InPlace<Posted>,
    queued: VecDeque<Posted>,
    /// The last request to write memory to this process.
    asked: Asked,
    idle_polls: u32,
    /// When a check first found nothing acknowledged.
    stalled: Option<Time>,
    /// When the peer's process was last checked.
    probed: Time,
}

impl Outgoing {
    /// Creates a ring to `peer`, for sends with this key; `None` if there is no such queue pair.
    pub(super) fn open(
        local: &Arc<Local>,
        peer: Qpn,
        purpose: Purpose,
        key: Option<Qkey>,
    ) -> Result<Option<Self>, DeviceError> {
        let directory = &local.directory;
        let Some(mailbox) = PeerMailbox::open(directory, peer)? else { return Ok(None) };
        if mailbox.is_closed() {
            return Ok(None);
        }
        let waker = match mailbox.sleeps() {
            Some(generation) => Waker::open(directory, peer, generation)?,
            None => None,
        };
        let (slots, most_slots, mtu) = purpose.shape(local);
        let (ring, nonce) = create_ring(local, peer, slots, mtu)?;
        let mut outgoing = Self {
            peer,
            purpose,
            key,
            mailbox,
            waker,
            ring,
            nonce,
            local: Arc::clone(local),
            entry: None,
            most_slots,
            swept: 0,
            in_flight: InPlace::with_capacity(slots),
            queued: VecDeque::new(),
            asked: Asked::default(),
            idle_polls: 0,
            stalled: None,
            probed: Time::ZERO,
        };
        outgoing.claim();
        Ok(Some(outgoing))
    }

    pub(super) fn peer(&self) -> Qpn {
        self.peer
    }

    pub(super) fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Whether what is posted next leaves at once.
    pub(super) fn has_space(&self) -> bool {
        self.queued.is_empty() && self.ring.has_space()
    }

    fn claim(&mut self) {
        if self.entry.is_none()
            && let Some(slot) = self.mailbox.claim(self.local.sender)
        {
            self.mailbox.announce(slot, self.local.sender, self.nonce);
            self.entry = Some(slot);
        }
    }

    /// Whether the peer has detached, so that its number may be reused.
    #[inline]
    pub(super) fn is_detached(&self) -> bool {
        self.ring.is_detached() || (self.entry.is_none() && self.mailbox.is_closed())
    }

    /// Whether the last send had this key.
    #[inline]
    pub(super) fn has_key(&self, key: Qkey) -> bool {
        self.key == Some(key)
    }

    /// Whether a send with this key may use the ring. It may not if the key differs from the last one and the
    /// peer's process has died: its number may be reused.
    #[inline]
    pub(super) fn accepts_key(&mut self, key: Option<Qkey>) -> bool {
        key.is_none() || self.key == key || self.change_key(key)
    }

    #[cold]
    fn change_key(&mut self, key: Option<Qkey>) -> bool {
        std::mem::replace(&mut self.key, key).is_none() || self.mailbox.is_alive()
    }

    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.queued.is_empty()
    }

    /// Whether the peer takes no more packets, though its process may live. Once attached, the ring alone
    /// says so: nobody else can change it.
    fn is_closed(&self) -> bool {
        self.ring.is_detached()
            || (self.ring.attached_entry().is_none() && self.mailbox.is_closed())
    }

    /// Whether nothing is in flight and the peer is gone. (With sends in flight, their completion shows
    /// it.)
    pub(super) fn is_useless(&self) -> bool {
        if !self.is_idle() || self.is_closed() {
            return self.is_idle();
        }
        let is_dead = !self.mailbox.is_alive();
        if is_dead {
            self.local.directory.note_dead();
        }
        is_dead
    }

    /// Puts a send into the ring; if there is no space, it waits.
    #[inline]
    pub(super) fn post(&mut self, posted: Posted) {
        if self.has_space() {
            self.publish(posted);
            if !self.ring.is_watched() {
                self.wake();
            }
        } else {
            self.queued.push_back(posted);
        }
    }

    /// Takes the acknowledgements that have come since the last poll, and puts what waits into the ring. Returns whether there
    /// is space then.
    #[cold]
    pub(super) fn make_space(&mut self, ends: &mut impl Ends) -> bool {
        // What is broken, the next poll ends.
        if let Ok(count @ 1..) = self.ring.acknowledgements() {
            self.take_acknowledgements(count, ends);
        }
        self.has_space()
    }

    /// Posts a datagram of which `fill` writes the last `rest` bytes into the ring, which [has space](Self::has_space).
    #[inline(always)]
    pub(super) fn post_with(
        &mut self,
        request: SendRequest<Box<[u8]>>,
        rest: usize,
        fill: impl FnOnce(CopyTarget<'_>),
    ) {
        let SendRequest { id, packet, length: front, destination, immediate } = request;
        let kind = if immediate.is_some() { Kind::Immediate } else { Kind::Plain };
        let (bytes, qkey) = (&packet[..front], destination.qkey);
        let immediate_word = immediate.unwrap_or(0);
        match rest {
            0 => self.ring.publish(kind, immediate_word, bytes, qkey),
            _ => self.ring.publish_with(kind, immediate_word, qkey, bytes, rest, fill),
        }
        // A datagram is no longer than the MTU.
        let (length, rest) = ((front + rest) as u32, rest as u32);
        self.in_flight.push(|| {
            let content = Content::Datagram { packet, length, rest };
            Posted { id, content, immediate, qkey }
        });
        if !self.ring.is_watched() {
            self.wake();
        }
    }

    #[inline]
    fn publish(&mut self, posted: Posted) {
        let Posted { immediate, qkey, .. } = posted;
        match &posted.content {
            Content::Datagram { packet, length, .. } => {
                let kind = if immediate.is_some() { Kind::Immediate } else { Kind::Plain };
                let bytes = &packet[..*length as usize];
                self.ring.publish(kind, immediate.unwrap_or(0), bytes, qkey);
            }
            Content::Written(length) => {
                let immediate = immediate.unwrap_or(0);
                self.ring.publish(Kind::Written, immediate, &length.to_le_bytes(), qkey);
            }
            Content::Piece { piece, .. } => match piece.step {
                Step::Read { address, count } => {
                    self.ring.publish_request(Kind::Read, (address, piece.key), count, &[]);
                }
                // A piece is no longer than a slot.
                Step::Write { address } => {
                    let memory = (address, piece.key);
                    self.ring.publish_request(Kind::Write, memory, 0, &piece.bytes);
                }
                Step::Written { immediate, length } => {
                    let key = Qkey(piece.key);
                    self.ring.publish(Kind::Written, immediate, &length.to_le_bytes(), key);
                }
            },
            // Published by `ask` alone.
            Content::Push => {}
        }
        self.in_flight.push(|| posted);
    }

    /// Whether the peer is likely to carry out a request at once: it polls this ring, and has answered the last
    /// request.
    pub(super) fn may_ask(&self) -> bool {
        self.purpose == Purpose::Datagrams
            && self.has_space()
            && self.ring.holds_push()
            && !self.ring.needs_doorbell()
            && !self.ring.is_detached()
            && self.asked.may_ask()
    }

    /// Asks the peer to write memory to this process, if it [may](Self::may_ask) be asked.
    pub(super) fn ask(&mut self, ticket: Ticket, push: Push) {
        let number = self.ring.publish_push(push);
        self.asked.begin(ticket, number);
        let (id, content) = (WorkId(number), Content::Push);
        self.in_flight.push(|| Posted { id, content, immediate: None, qkey: Qkey(0) });
    }

    /// What the peer has answered to the request with this ticket.
    pub(super) fn answer(&self, ticket: Ticket) -> Answer {
        self.asked.answer(ticket)
    }

    /// Withdraws the request with this ticket. Returns false if the peer has begun to carry it out.
    pub(super) fn withdraw(&self, ticket: Ticket) -> bool {
        match self.asked.awaited(ticket) {
            Some(number) => self.ring.withdraw(number),
            None => true,
        }
    }

    /// Makes a receiver look that doesn't poll this ring, or may sleep.
    fn wake(&mut self) {
        if self.ring.needs_doorbell() {
            match self.ring.attached_entry().or(self.entry) {
                Some(slot) => self.mailbox.ring_doorbell(slot),
                None => self.claim(),
            }
        }
        if let Some(waker) = &mut self.waker {
            waker.wake();
        }
    }

    /// Takes acknowledgements.
    #[inline]
    pub(super) fn poll(&mut self, now: Time, ends: &mut impl Ends) -> Polled {
        let Ok(count) = self.ring.acknowledgements() else {
            self.fail(Status::BadStatus, ends);
            return Polled::Gone;
        };
        if count == 0 {
            self.idle_polls = self.idle_polls.wrapping_add(1);
            return match self.idle_polls.is_multiple_of(CHECK_EVERY) {
                true => self.check(now, ends),
                false => Polled::There,
            };
        }
        self.take_acknowledgements(count, ends);
        Polled::There
    }

    #[inline(always)]
    fn take_acknowledgements(&mut self, count: u64, ends: &mut impl Ends) {
        self.idle_polls = 0;
        self.stalled = None;
        let delivered = self.ring.are_delivered();
        for _ in 0..count {
            match self.in_flight.front_mut() {
                Some(Posted { id, content: Content::Datagram { packet, .. }, .. }) if delivered => {
                    ends.delivered(*id, std::mem::take(packet));
                    // What it owned was taken.
                    self.in_flight.forget_front();
                    self.ring.take_delivered();
                }
                _ => self.take_other(ends),
            }
        }
        if !self.queued.is_empty() {
            self.publish_queued();
        }
    }

    /// Takes the acknowledgement of what isn't a datagram, or wasn't delivered.
    #[cold]
    fn take_other(&mut self, ends: &mut impl Ends) {
        let posted = self.in_flight.pop();
        let result = self.ring.take_acknowledgement();
        if let Some(mut posted) = posted {
            self.take_answer(&mut posted.content, result);
            ends.ended(posted, result);
        }
    }

    /// Takes what the receiver answered to the packet whose acknowledgement was taken last.
    fn take_answer(&mut self, content: &mut Content, result: Result<(), Status>) {
        let number = self.ring.oldest() - 1;
        match content {
            Content::Piece { piece, .. } => {
                if let Some((_, length)) = piece.wanted {
                    piece.bytes = vec![0; length].into();
                    self.ring.copy_answer(number, &mut piece.bytes);
                }
            }
            Content::Push => self.asked.end(result),
            Content::Datagram { .. } if result.is_err() => self.complete_packet(number, content),
            Content::Datagram { .. } | Content::Written(_) => {}
        }
    }

    /// Copies what a datagram has in the ring alone, under this number, into its packet, which can be sent again then.
    fn complete_packet(&self, number: u64, content: &mut Content) {
        if let Content::Datagram { packet, length, rest } = content {
            let front = (*length - std::mem::take(rest)) as usize;
            self.ring.copy_rest(number, front, &mut packet[front..*length as usize]);
        }
    }

    /// Publishes what waits for free slots.
    #[inline(never)]
    fn publish_queued(&mut self) {
        if self.ring.slots() < self.most_slots {
            if !self.in_flight.is_empty() {
                return;
            }
            self.lengthen();
        }
        while self.ring.has_space()
            && let Some(posted) = self.queued.pop_front()
        {
            self.publish(posted);
        }
        if !self.ring.is_watched() {
            self.wake();
        }
    }

    /// Replaces the ring, all of whose packets are acknowledged, by one for load.
    #[cold]
    fn lengthen(&mut self) {
        let (.., mtu) = self.purpose.shape(&self.local);
        match create_ring(&self.local, self.peer, self.most_slots, mtu) {
            Ok((ring, nonce)) => {
                self.leave();
                (self.ring, self.nonce, self.entry) = (ring, nonce, None);
                self.swept = 0;
                self.claim();
            }
            Err(error) => {
                tracing::warn!(to = self.peer.0, %error, "no longer ring for load, going on with this one");
                self.most_slots = self.ring.slots();
            }
        }
    }

    /// Whether the ring is one for load or for requests, and nothing was sent since the last call. Then the next
    /// send may as well make a new one.
    pub(super) fn is_oversized(&mut self) -> bool {
        let published = self.ring.published();
        let unused = std::mem::replace(&mut self.swept, published) == published;
        let is_small =
            self.purpose == Purpose::Datagrams && self.ring.slots() <= self.local.idle_slots;
        unused && self.is_idle() && !is_small
    }

    /// Announces that no more packets follow in the ring.
    fn leave(&mut self) {
        self.ring.detach();
        let entry = self.ring.attached_entry().or(self.entry);
        let entry = entry.filter(|_| !self.is_closed() && self.mailbox.is_alive());
        match entry {
            // The receiver takes the packets in the ring, and removes the file if it hasn't yet.
            Some(slot) => self.mailbox.ring_doorbell(slot),
            None => self.local.directory.remove(ring_name(&self.local, self.peer, self.nonce)),
        }
    }

    /// Takes acknowledgements, and checks the receiver if there is none, as this side may sleep next.
    pub(super) fn poll_before_sleep(&mut self, now: Time, ends: &mut impl Ends) -> Polled {
        self.idle_polls = CHECK_EVERY - 1;
        self.poll(now, ends)
    }

    /// Checks the receiver.
    #[cold]
    fn check(&mut self, now: Time, ends: &mut impl Ends) -> Polled {
        match self.check_peer(now) {
            Check::Alive if self.is_stalled(now) => Polled::Stalled,
            Check::Alive => Polled::There,
            Check::Gone(status) => {
                // It may have acknowledged packets before it ended.
                if let Ok(count) = self.ring.acknowledgements() {
                    self.take_acknowledgements(count, ends);
                }
                self.fail(status, ends);
                Polled::Gone
            }
        }
    }

    fn is_stalled(&self, now: Time) -> bool {
        self.purpose == Purpose::Datagrams
            && self.local.rnr_retry < RNR_RETRY_INFINITE
            && !self.queued.is_empty()
            && self.stalled.is_some_and(|since| now - since >= PATIENCE)
    }

    /// Ends packets that wait for space in the ring as those of a receiver that is not ready.
    #[cold]
    pub(super) fn return_waiting(&mut self, ends: &mut impl Ends) {
        for posted in self.queued.drain(..) {
            ends.ended(posted, Err(Status::ReceiverNotReady));
        }
    }

    fn check_peer(&mut self, now: Time) -> Check {
        let stalled = *self.stalled.get_or_insert(now);
        if self.is_closed() {
            return Check::Gone(Status::BadDestinationQpn);
        }
        if self.ring.attached_entry().is_none() {
            self.check_entry();
            if self.entry.is_none() && now - stalled >= self.local.attach_timeout {
                return Check::Gone(Status::UnreachableRemote);
            }
        }
        if !self.ring.is_watched() {
            self.wake();
        }
        let since = stalled.max(self.probed);
        if now - since >= self.local.probe_after {
            self.probed = now;
            if !self.mailbox.is_alive() {
                self.local.directory.note_dead();
                return Check::Gone(Status::UnresponsiveRemote);
            }
        }
        Check::Alive
    }

    /// Gives up the entry if the receiver refused the ring, or if another process changed it; then the ring
    /// is announced again.
    fn check_entry(&mut self) {
        let Some(slot) = self.entry else { return };
        let sender = self.local.sender;
        if self.mailbox.take_refusal(slot, sender)
            || !self.mailbox.has_entry(slot, sender, self.nonce)
        {
            self.entry = None;
        }
    }

    /// Takes acknowledgements and completes all other sends with `status`.
    pub(super) fn close(&mut self, status: Status, ends: &mut impl Ends) {
        if let Ok(count) = self.ring.acknowledgements() {
            self.take_acknowledgements(count, ends);
        }
        self.fail(status, ends);
    }

    fn fail(&mut self, status: Status, ends: &mut impl Ends) {
        let mut number = self.ring.oldest();
        while let Some(mut posted) = self.in_flight.pop() {
            self.complete_packet(number, &mut posted.content);
            number += 1;
            if let Content::Push = posted.content {
                self.asked.end(Err(status));
            }
            ends.ended(posted, Err(status));
        }
        // None of these is a push, which is published at once or not at all.
        for posted in self.queued.drain(..) {
            ends.ended(posted, Err(status));
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.leave();
    }
}

fn ring_name(local: &Local, peer: Qpn, nonce: u64) -> FileName {
    FileName::Ring { to: peer, from: local.sender.qpn, nonce }
}

/// A ring of this length to `peer`, and the nonce in its name.
fn create_ring(
    local: &Local,
    peer: Qpn,
    slots: usize,
    mtu: usize,
) -> Result<(RingSender, u64), DeviceError> {
    let (directory, from) = (&local.directory, local.sender.qpn);
    let nonce = fastrand::u64(..);
    let name = ring_name(local, peer, nonce);
    let length = RingSender::file_length(slots, mtu)
        .ok_or(DeviceError::TooLong { length: mtu as u64, limit: super::MAX_MTU as u64 })?;
    let file = directory.create(name, length)?;
    match RingSender::create(&file, slots, mtu, from, local.rnr_retry, local.sleeps) {
        Ok(ring) => Ok((ring, nonce)),
        Err(errno) => {
            directory.remove(name);
            Err(system(format!("mapping {name}"), errno))
        }
    }
}
