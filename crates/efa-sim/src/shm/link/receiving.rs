//! Receiving: which rings are attached and which are polled.

use efa_device::Time;

use super::super::directory::HostDirectory;
use super::super::incoming::{Found, Incoming};
use super::super::mailbox::{EntryState, PeerMailbox, Sender};
use super::{SWEEP_EVERY, ShmLink};
use crate::link::QueueState;
use crate::record::QueuePairId;

impl ShmLink {
    #[inline(always)]
    fn incoming(&self, slot: usize) -> Option<&Incoming> {
        self.incoming.get(slot)?.as_ref()
    }

    /// The next watched ring, if it has packets, or has had none for so long that watching it may
    /// end.
    #[inline]
    pub(super) fn next_ring(&mut self) -> Option<usize> {
        if self.next_watched >= self.watched.len() {
            self.next_watched = 0;
        }
        let &slot = self.watched.get(self.next_watched)?;
        self.next_watched += 1;
        let incoming = self.incoming.get_mut(slot)?.as_mut()?;
        incoming.wants_poll().then_some(slot)
    }

    #[inline(never)]
    pub(super) fn poll_ring(&mut self, state: &mut QueueState, slot: usize) {
        let Some(Some(incoming)) = self.incoming.get_mut(slot) else { return };
        let sender = QueuePairId { gid: self.me.gid, qpn: incoming.sender().qpn };
        let (mut queue, mut deliveries) = state.receiving();
        let source = deliveries.source(sender);
        let found = incoming
            .poll(&self.memory, &mut queue, |delivered| deliveries.push(sender, source, delivered));
        match found {
            Ok(Found::Packets) => {}
            Ok(Found::Left) => self.left = Some(slot),
            // One ring may stay: looking at it costs no more than looking at the doorbell.
            Ok(Found::Nothing) if self.watched.len() > 1 => self.neglect(slot),
            Ok(Found::Nothing) => {}
            Ok(Found::End) => self.detach(slot),
            Err(broken) => {
                tracing::warn!(from = sender.qpn.0, ?broken, "detaching an inconsistent ring");
                self.detach(slot);
            }
        }
    }

    /// Gives up what the program has not taken of datagrams whose completions it has.
    #[cold]
    pub(super) fn end_left(&mut self) {
        if let Some(slot) = self.left.take()
            && let Some(Some(incoming)) = self.incoming.get_mut(slot)
        {
            incoming.end_left();
        }
    }

    fn watch(&mut self, slot: usize) {
        if let Some(Some(incoming)) = self.incoming.get_mut(slot)
            && !incoming.is_watched()
        {
            incoming.set_watched(true);
            if !self.watched.contains(&slot) {
                self.watched.push(slot);
            }
        }
    }

    /// Tells the sender of a ring that has been empty for long to ring the doorbell from now on; the second time, looks at
    /// the ring no longer. A sender that was told too late, and so rang no doorbell, has published its packet by then.
    fn neglect(&mut self, slot: usize) {
        match self.incoming.get_mut(slot) {
            Some(Some(incoming)) if incoming.is_watched() => incoming.set_watched(false),
            _ => self.unwatch(slot),
        }
    }

    fn unwatch(&mut self, slot: usize) {
        self.watched.retain(|&watched| watched != slot);
        if let Some(Some(incoming)) = self.incoming.get_mut(slot) {
            incoming.set_watched(false);
        }
    }

    fn detach(&mut self, slot: usize) {
        self.unwatch(slot);
        self.awaited = None;
        if let Some(mut incoming) = self.incoming.get_mut(slot).and_then(Option::take) {
            incoming.detach();
            self.mailbox.set_entry(slot, EntryState::Free, incoming.sender());
        }
    }

    #[cold]
    pub(super) fn answer_doorbell(&mut self) {
        let mut rang = Vec::new();
        self.mailbox.take_rung(|slot| rang.push(slot));
        for slot in rang {
            self.look_at_entry(slot);
        }
    }

    fn look_at_entry(&mut self, slot: usize) {
        let (state, sender, nonce) = self.mailbox.entry(slot);
        match self.incoming(slot) {
            None if state == EntryState::Announced => self.attach(slot, sender, nonce),
            None => {}
            Some(incoming) => self.repair_entry(slot, incoming.sender(), state, sender),
        }
        if self.incoming(slot).is_some_and(Incoming::is_finished) {
            self.detach(slot);
        } else {
            self.watch(slot);
        }
    }

    /// Notes again that `attached` is attached, if another process changed the entry. A sender that took it
    /// for free finds out, and claims another.
    fn repair_entry(&self, slot: usize, attached: Sender, state: EntryState, sender: Sender) {
        if (state, sender) != (EntryState::Attached, attached) {
            self.mailbox.set_entry(slot, EntryState::Attached, attached);
        }
    }

    fn attach(&mut self, slot: usize, sender: Sender, nonce: u64) {
        let (directory, sleeps) = (&self.local.directory, self.local.sleeps);
        let incoming = match Incoming::open(directory, self.me.qpn, slot, sender, nonce, sleeps) {
            Ok(incoming) => incoming,
            Err(error) if error.shortage().is_some() => {
                // The entry stays as it is, for the next sweep; meanwhile the sender waits.
                if !std::mem::replace(&mut self.lacks_room, true) {
                    tracing::warn!(from = sender.qpn.0, %error, "can't attach the ring of a sender yet");
                }
                return;
            }
            Err(error) => {
                tracing::warn!(from = sender.qpn.0, %error, "refusing the ring of a sender");
                None
            }
        };
        self.lacks_room &= incoming.is_none();
        let state = match incoming {
            Some(_) => EntryState::Attached,
            None => EntryState::Refused,
        };
        tracing::debug!(from = sender.qpn.0, ?state, "a sender announced its ring");
        self.mailbox.set_entry(slot, state, sender);
        if slot >= self.incoming.len() {
            self.incoming.resize_with(slot + 1, || None);
        }
        self.incoming[slot] = incoming;
    }

    /// Frees entries of dead senders, finds rings whose doorbell was lost, and drops rings to peers
    /// that are gone: each takes memory and an open file.
    #[cold]
    pub(super) fn sweep(&mut self, now: Time) {
        self.next_sweep = now + SWEEP_EVERY;
        self.forget_useless();
        for slot in 0..self.mailbox.peers() {
            let (state, sender, _) = self.mailbox.entry(slot);
            match (self.incoming.get_mut(slot).and_then(Option::as_mut), state) {
                (None, EntryState::Free) => {}
                (None, EntryState::Announced) => self.look_at_entry(slot),
                // Of an attached ring there would be an `Incoming`.
                (None, EntryState::Attached) => {
                    self.mailbox.set_entry(slot, EntryState::Free, sender);
                }
                (None, EntryState::Claimed | EntryState::Refused) => {
                    if !is_open(&self.local.directory, sender) {
                        self.mailbox.set_entry(slot, EntryState::Free, sender);
                    }
                }
                (Some(incoming), _) if incoming.has_packets() => self.look_at_entry(slot),
                (Some(incoming), _) => {
                    let attached = incoming.sender();
                    let is_dead =
                        incoming.was_quiet() && !is_alive(&self.local.directory, attached);
                    let gone = is_dead || incoming.is_finished();
                    if is_dead {
                        self.local.directory.note_dead();
                    }
                    self.repair_entry(slot, attached, state, sender);
                    let Some(incoming) = self.incoming(slot) else { continue };
                    // Checked again: it may have sent just before it died.
                    if gone && !incoming.has_packets() {
                        self.detach(slot);
                    }
                }
            }
        }
        self.local.directory.sweep_after_death(now);
    }
}

/// Whether the queue pair of this sender is still there. If the system can't report it, it is taken to be.
fn is_alive(directory: &HostDirectory, sender: Sender) -> bool {
    there(directory, sender).is_none_or(|mailbox| mailbox.is_some())
}

/// Whether it is, and has not retired.
fn is_open(directory: &HostDirectory, sender: Sender) -> bool {
    there(directory, sender)
        .is_none_or(|mailbox| mailbox.is_some_and(|mailbox| !mailbox.is_closed()))
}

/// The mailbox of a sender, if it has one; `None` if the system can't report it.
fn there(directory: &HostDirectory, sender: Sender) -> Option<Option<PeerMailbox>> {
    let mailbox = PeerMailbox::open(directory, sender.qpn).ok()?;
    Some(mailbox.filter(|mailbox| mailbox.is(sender)))
}
