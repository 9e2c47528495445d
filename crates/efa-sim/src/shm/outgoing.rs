//! Sending to one other queue pair: its mailbox, our ring to it, and the sends not yet answered.
//!
//! ```text
//!  post ─► queued ─(room in the ring)─► in flight ─(head moved)─► finished
//!             └──────────(peer closed, dead or broken)──────────────►┘
//! ```
//!
//! While nothing is answered, every [`LOOK_EVERY`]th look is a thorough one: is the entry claimed,
//! is the bell rung if the receiver doesn't watch, has it left, does its process live. So nothing
//! depends on a bell being rung or heard in time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use efa_device::{DeviceError, Qkey, Qpn, Status, Time, WorkId};

use super::directory::{FileName, HostDirectory, system};
use super::mailbox::{PeerMailbox, Sender};
use super::ring::{Kind, RingSender};

/// Fruitless looks between two thorough ones.
const LOOK_EVERY: u32 = 32;

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
    Datagram {
        packet: Box<[u8]>,
        length: usize,
    },
    /// That this many bytes were written into the peer's memory.
    Written(u64),
}

/// A send that ended.
pub(super) type Finished = (Posted, Result<(), Status>);

/// What sending needs to know of us.
#[derive(Clone, Debug)]
pub(super) struct Local {
    pub(super) directory: Arc<HostDirectory>,
    pub(super) sender: Sender,
    pub(super) mtu: usize,
    pub(super) ring_slots: usize,
    pub(super) rnr_retry: u8,
    pub(super) probe_after: Duration,
    pub(super) attach_patience: Duration,
}

/// How a thorough look ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    StillThere,
    Gone(Status),
}

/// The way to one peer. Dropping it tells the peer that nothing more comes.
#[derive(Debug)]
pub(super) struct Outgoing {
    peer: Qpn,
    /// The key that was used last.
    key: Option<Qkey>,
    mailbox: PeerMailbox,
    ring: RingSender,
    nonce: u64,
    local: Arc<Local>,
    /// Our entry in the mailbox.
    entry: Option<usize>,
    in_flight: VecDeque<Posted>,
    queued: VecDeque<Posted>,
    fruitless: u32,
    /// Since when nothing was answered, as far as looked.
    stalled: Option<Time>,
    /// When its process was last looked for.
    probed: Time,
}

impl Outgoing {
    /// The way to `peer`, for what has this key; `None` if there is no such queue pair.
    pub(super) fn open(
        local: &Arc<Local>,
        peer: Qpn,
        key: Option<Qkey>,
    ) -> Result<Option<Self>, DeviceError> {
        let directory = &local.directory;
        let Some(mailbox) = PeerMailbox::open(directory, peer)? else { return Ok(None) };
        if mailbox.is_closed() {
            return Ok(None);
        }
        let nonce = fastrand::u64(..);
        let name = FileName::Ring { to: peer, from: local.sender.qpn, nonce };
        let (slots, mtu) = (local.ring_slots, local.mtu);
        let length = RingSender::file_length(slots, mtu)
            .ok_or(DeviceError::TooLong { length: mtu as u64, limit: super::MAX_MTU as u64 })?;
        let file = directory.create(name, length)?;
        let ring = RingSender::create(&file, slots, mtu, local.sender.qpn, local.rnr_retry)
            .map_err(|errno| {
                directory.remove(name);
                system(format!("mapping {name}"), errno)
            })?;
        let mut outgoing = Self {
            peer,
            key,
            mailbox,
            ring,
            nonce,
            local: Arc::clone(local),
            entry: None,
            in_flight: VecDeque::with_capacity(slots),
            queued: VecDeque::new(),
            fruitless: 0,
            stalled: None,
            probed: Time::ZERO,
        };
        outgoing.claim();
        Ok(Some(outgoing))
    }

    pub(super) fn peer(&self) -> Qpn {
        self.peer
    }

    fn claim(&mut self) {
        if self.entry.is_none()
            && let Some(slot) = self.mailbox.claim(self.local.sender)
        {
            self.mailbox.announce(slot, self.local.sender, self.nonce);
            self.entry = Some(slot);
        }
    }

    /// Whether the peer has left, so that its number may be another's by now.
    #[inline]
    pub(super) fn is_abandoned(&self) -> bool {
        self.ring.is_abandoned() || (self.entry.is_none() && self.mailbox.is_closed())
    }

    /// Whether what has this key may go this way. It may not if the peer died unnoticed and the key
    /// is not the one that it was sent to with: its number may be another's by now.
    #[inline]
    pub(super) fn leads_to(&mut self, key: Option<Qkey>) -> bool {
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

    /// Whether nothing is under way, and nobody is there who would take what is sent. Of a peer with
    /// sends under way their end tells.
    pub(super) fn is_useless(&self) -> bool {
        self.is_idle()
            && (self.is_abandoned() || self.mailbox.is_closed() || !self.mailbox.is_alive())
    }

    #[inline]
    pub(super) fn post(&mut self, posted: Posted) {
        if self.queued.is_empty() && self.ring.has_room() {
            self.publish(posted);
            if !self.ring.is_watched() {
                self.wake();
            }
        } else {
            self.queued.push_back(posted);
        }
    }

    #[inline]
    fn publish(&mut self, posted: Posted) {
        let Posted { immediate, qkey, .. } = posted;
        match &posted.content {
            Content::Datagram { packet, length } => {
                let kind = if immediate.is_some() { Kind::Immediate } else { Kind::Plain };
                self.ring.publish(kind, immediate.unwrap_or(0), &packet[..*length], qkey);
            }
            Content::Written(length) => {
                let immediate = immediate.unwrap_or(0);
                self.ring.publish(Kind::Written, immediate, &length.to_le_bytes(), qkey);
            }
        }
        self.in_flight.push_back(posted);
    }

    fn wake(&mut self) {
        match self.entry {
            Some(slot) => self.mailbox.ring(slot),
            None => self.claim(),
        }
    }

    /// Takes answers; false if the peer is gone and this way with it.
    #[inline]
    pub(super) fn poll(&mut self, now: Time, mut finish: impl FnMut(Finished)) -> bool {
        let Ok(count) = self.ring.answers() else {
            self.fail(Status::BadStatus, finish);
            return false;
        };
        if count == 0 {
            self.fruitless = self.fruitless.wrapping_add(1);
            return !self.fruitless.is_multiple_of(LOOK_EVERY) || self.look(now, finish);
        }
        self.take_answers(count, &mut finish);
        true
    }

    fn take_answers(&mut self, count: u64, finish: &mut impl FnMut(Finished)) {
        self.fruitless = 0;
        self.stalled = None;
        for _ in 0..count {
            let result = self.ring.take_answer();
            if let Some(posted) = self.in_flight.pop_front() {
                finish((posted, result));
            }
        }
        if self.queued.is_empty() {
            return;
        }
        while self.ring.has_room()
            && let Some(posted) = self.queued.pop_front()
        {
            self.publish(posted);
        }
        if !self.ring.is_watched() {
            self.wake();
        }
    }

    /// The thorough look; false if the peer is gone.
    #[cold]
    fn look(&mut self, now: Time, mut finish: impl FnMut(Finished)) -> bool {
        match self.judge(now) {
            Look::StillThere => true,
            Look::Gone(status) => {
                // The last it did may have been to answer.
                if let Ok(count) = self.ring.answers() {
                    self.take_answers(count, &mut finish);
                }
                self.fail(status, finish);
                false
            }
        }
    }

    fn judge(&mut self, now: Time) -> Look {
        let stalled = *self.stalled.get_or_insert(now);
        if self.ring.is_abandoned() || self.mailbox.is_closed() {
            return Look::Gone(Status::BadDestinationQpn);
        }
        match self.entry {
            Some(slot) if self.mailbox.take_refusal(slot, self.local.sender) => {
                self.entry = None;
                return Look::Gone(Status::UnreachableRemote);
            }
            Some(_) if self.ring.is_watched() => {}
            Some(_) | None => self.wake(),
        }
        if self.entry.is_none() && now - stalled >= self.local.attach_patience {
            return Look::Gone(Status::UnreachableRemote);
        }
        let since = stalled.max(self.probed);
        if now - since >= self.local.probe_after {
            self.probed = now;
            if !self.mailbox.is_alive() {
                return Look::Gone(Status::UnresponsiveRemote);
            }
        }
        Look::StillThere
    }

    /// Takes what was answered and ends all other sends with `status`.
    pub(super) fn end(&mut self, status: Status, mut finish: impl FnMut(Finished)) {
        if let Ok(count) = self.ring.answers() {
            self.take_answers(count, &mut finish);
        }
        self.fail(status, finish);
    }

    fn fail(&mut self, status: Status, mut finish: impl FnMut(Finished)) {
        for posted in self.in_flight.drain(..).chain(self.queued.drain(..)) {
            finish((posted, Err(status)));
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.ring.leave();
        let entry = self.entry.filter(|_| !self.mailbox.is_closed() && self.mailbox.is_alive());
        match entry {
            // The receiver takes what is in the ring, and removes the file if it hasn't yet.
            Some(slot) => self.mailbox.ring(slot),
            None => self.local.directory.remove(FileName::Ring {
                to: self.peer,
                from: self.local.sender.qpn,
                nonce: self.nonce,
            }),
        }
    }
}
