//! The peers of an endpoint (sections 1.4, 2.2 and 4.4).
//!
//! A peer is one incarnation of a remote endpoint: an address with its connid. When a queue pair
//! number comes back with another connid, and the device [shows](contender) that this one has it, the old peer is *gone* and
//! a new one takes its place; the old address is remembered so that stale packets are recognised.
//!
//! ```text
//!   packet ── (address handle, QPN) ──► current peer ── same connid? ──► it
//!                                            │ no
//!                                            └── raw address or connid ──► another peer | stale
//! ```
//!
//! A peer that was never sent to and sent nothing takes one small entry; its [`Active`] state is
//! made with the first packet.

mod contender;

use std::collections::VecDeque;
use std::num::NonZeroU64;

use efa_device::{AddressHandle, Destination, Gid, Qkey, Qpn, Source, Status};
use efa_handshake::{Extras, PeerState, Support};
use efa_match::Window;
use efa_proto::{Connid, MsgId, OpId, RawAddress, UserRecvQp};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as HashEntry;
use slab::Slab;

use crate::backlog::Backlog;
use crate::charges::{Charged, Charges, QueuePairKey};
use crate::completion::Level;
use crate::config::Config;
use crate::eliciting::Eliciting;
use crate::held::Chain;
use crate::ids::PeerId;
use crate::rnr::Backoff;
use crate::send_window::SendWindow;
use crate::work::{InFlight, Work};

/// A peer: its address, and the peer that had the queue pair before it.
#[derive(Debug)]
struct Entry {
    gid: [u8; 16],
    connid: Connid,
    /// Slot of the [`Active`] state; without one the number of incarnations, with the bit [`IDLE`] and, once it
    /// is gone, perhaps [`RETURNS`].
    active: u32,
    /// Index of the peer that had the queue pair before, or [`NO_LINK`]; with the bit [`GONE`].
    link: u32,
    qpn: u16,
    handle: AddressHandle,
}

impl Entry {
    #[inline]
    fn address(&self) -> RawAddress {
        RawAddress { gid: self.gid, qpn: self.qpn, connid: self.connid }
    }

    #[inline]
    fn is_gone(&self) -> bool {
        self.link & GONE != 0
    }

    fn is_at(&self, place: &QueuePairKey) -> bool {
        self.gid == place.gid && self.qpn == place.qpn
    }

    fn place(&self) -> QueuePairKey {
        QueuePairKey { gid: self.gid, qpn: self.qpn }
    }
}

const NONE: u32 = u32::MAX;
/// In [`Entry::active`]: there is no state.
const IDLE: u32 = 1 << 31;
/// In [`Entry::active`]: the peer is gone, and a first message with its address begins a new peer.
const RETURNS: u32 = 1 << 30;
/// In [`Entry::active`] without state: the number of incarnations.
const COUNT: u32 = !(IDLE | RETURNS);
/// In [`Entry::link`]: the peer is gone.
const GONE: u32 = 1 << 31;
const NO_LINK: u32 = GONE - 1;
/// Incarnations of a queue pair that are searched for a connid, so that a peer that restarts
/// without end doesn't make the search long.
const INCARNATIONS: usize = 64;

const _: () = assert!(size_of::<Entry>() <= 32, "an idle peer stays small");

/// The state of a peer that packets were exchanged with.
#[derive(Debug)]
pub(crate) struct Active<P, B> {
    pub(crate) peer: PeerId,
    /// Incarnations of its queue pair that became known by a packet, up to this one.
    incarnations: u32,
    pub(crate) handshake: PeerState,
    /// Whether requests to the peer carry the connid and no other header option, as most do.
    pub(crate) by_connid: bool,
    /// Length in bytes of the shortest message to the peer that it may read. `None`: the peer and this endpoint can't read
    /// each other's memory, or its HANDSHAKE hasn't arrived.
    pub(crate) reads_from: Option<NonZeroU64>,
    pub(crate) next_msg_id: u32,
    /// The send window. The next message never goes at once to a peer with a user queue pair.
    pub(crate) send_window: SendWindow,
    /// Packets ahead of the expected msg_id, a chain for each message.
    pub(crate) window: Window<Chain>,
    pub(crate) backoff: Backoff,
    /// Whether the device lacked something to send to the peer, and was not asked again by an operation.
    pub(crate) lacking: bool,
    /// Work that could not be done at once.
    pub(crate) backlog: Backlog<P, B>,
    /// Whether the peer is queued to be served.
    pub(crate) scheduled: bool,
    /// Whether it is so as packets to it would wait in the device's queue.
    pub(crate) crowded: bool,
    /// Sends and writes that wait for the peer's HANDSHAKE, and those that were started behind them.
    pub(crate) held: VecDeque<OpId>,
    /// The queue pair on which the peer receives messages without headers (feature 7).
    pub(crate) user_queue: Option<UserRecvQp>,
    /// Messages to the peer that it is reading.
    pub(crate) reads_under_way: u32,
    /// Reads and responses that wait for the peer's HANDSHAKE.
    pub(crate) awaiting_handshake: Vec<Work<P, B>>,
    /// Bytes that are kept of packets ahead.
    pub(crate) ahead: usize,
    /// Bytes that are kept of unexpected messages: see [`Peers::charge`].
    unexpected: usize,
    /// What the peer has begun and has to go on with, by [`Begun`]; each at most [`Bounds::requests`](crate::Bounds).
    pub(crate) under_way: [u32; 2],
}

/// What a peer begins here, and has to go on with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Begun {
    /// A read, write or atomic.
    Request,
    /// A message that the application has discarded.
    Discarded,
}

impl<P, B> Active<P, B> {
    fn new(peer: PeerId, incarnations: u32, config: &Config) -> Self {
        Self {
            peer,
            incarnations,
            handshake: PeerState::new(),
            by_connid: false,
            reads_from: None,
            next_msg_id: config.first_msg_id,
            send_window: SendWindow::new(config.old_peer_window, config.first_msg_id),
            window: Window::new(WINDOW.min(config.reorder()))
                .with_limit(config.reorder())
                .starting_at(config.first_msg_id),
            backoff: Backoff::default(),
            lacking: false,
            backlog: Backlog::default(),
            scheduled: false,
            crowded: false,
            held: VecDeque::new(),
            user_queue: None,
            reads_under_way: 0,
            awaiting_handshake: Vec::new(),
            ahead: 0,
            unexpected: 0,
            under_way: [0; 2],
        }
    }

    /// Whether an operation waits for the peer's HANDSHAKE.
    pub(crate) fn is_held_up(&self) -> bool {
        !self.held.is_empty() || !self.awaiting_handshake.is_empty()
    }

    /// Bytes that are kept of unexpected messages.
    pub(crate) fn unexpected(&self) -> usize {
        self.unexpected
    }

    /// Whether a packet may be posted at once: nothing waits before it.
    #[inline]
    pub(crate) fn is_clear(&self) -> bool {
        self.backlog.is_empty() && !self.backoff.is_waiting()
    }

    /// Whether the next message may be posted at once, if it is one without delivery completion.
    #[inline(always)]
    pub(crate) fn goes_at_once(&self, config: &Config) -> bool {
        self.next_msg_id != self.send_window.stop
            && self.is_clear()
            && !self.must_hold(Level::Transmit, config)
    }

    /// Whether no request was ever posted to the peer, so that no message to it is in flight.
    pub(crate) fn was_never_sent_to(&self, config: &Config) -> bool {
        self.next_msg_id == config.first_msg_id && !self.handshake.was_requested()
    }

    /// Features that this level needs and that the peer is known to lack.
    pub(crate) fn missing(&self, level: Level) -> Extras {
        match level {
            Level::Delivery if self.handshake.supports(NEEDED_TO_DELIVER) == Support::No => {
                NEEDED_TO_DELIVER
            }
            _ => Extras::empty(),
        }
    }

    /// Whether a message has to wait for the peer's HANDSHAKE, or for others that do.
    #[inline]
    pub(crate) fn must_hold(&self, level: Level, config: &Config) -> bool {
        !self.held.is_empty() || self.awaits_handshake(level, config)
    }

    /// Whether a message has to wait for the peer's HANDSHAKE.
    #[inline]
    pub(crate) fn awaits_handshake(&self, level: Level, config: &Config) -> bool {
        let asks = level == Level::Delivery || config.messages_after_handshake;
        asks && !self.handshake.is_known()
    }

    /// Whether the send window is used up: the next message waits until all before it are
    /// delivered.
    pub(crate) fn must_pause(&self) -> bool {
        self.user_queue.is_none() && self.send_window.is_over(self.next_msg_id)
    }

    /// Takes the id of a message or atomic that doesn't go at once.
    pub(crate) fn take_ordered_id(&mut self) -> MsgId {
        let id = self.next_id();
        self.keep_from_going_at_once();
        id
    }

    /// Closes the fast path for the next message, if messages to the peer have no headers.
    pub(crate) fn keep_from_going_at_once(&mut self) {
        if self.user_queue.is_some() {
            self.send_window.stop = self.next_msg_id;
        }
    }

    pub(crate) fn next_id(&mut self) -> MsgId {
        let id = self.next_msg_id;
        self.next_msg_id = id.wrapping_add(1);
        MsgId(id)
    }
}

const NEEDED_TO_DELIVER: Extras = Extras::DELIVERY_COMPLETE;

/// Slots of the receive window; ids beyond them are kept in a map.
const WINDOW: u32 = 256;

/// All peers of an endpoint.
#[derive(Debug)]
pub(crate) struct Peers<P, B> {
    entries: Vec<Entry>,
    active: Slab<Active<P, B>>,
    /// By queue pair: the latest peer. If it isn't gone, it has the queue pair now.
    latest: HashTable<u32>,
    /// By address handle: the GID of the interface.
    interfaces: Vec<[u8; 16]>,
    /// Live peers that packets came from lately, found without hashing.
    recent: Box<[Recent; RECENT]>,
    /// Peers that became known by a packet.
    pub(crate) discovered: usize,
    /// Why there are no peers any more, if the queue pair failed.
    pub(crate) closed: Option<Status>,
    /// What queue pairs are charged with for unexpected messages.
    pub(crate) charges: Charges,
    /// The peers whose HANDSHAKE operations wait for.
    pub(crate) eliciting: Eliciting,
    seed: u64,
}

/// A peer that packets came from lately, and their source. The slot follows from the source.
#[derive(Clone, Copy, Debug)]
struct Recent {
    source: u32,
    peer: u32,
}

const RECENT: usize = 64;

impl Recent {
    /// The address handle and QPN in one word.
    #[inline]
    fn source(handle: AddressHandle, qpn: Qpn) -> u32 {
        u32::from(handle.0) << 16 | u32::from(qpn.0)
    }

    #[inline]
    fn place(source: u32) -> usize {
        (source.wrapping_mul(0x9e37_79b9) >> (u32::BITS - RECENT.ilog2())) as usize
    }
}

/// Whether a peer exists and is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerStatus {
    Live,
    Gone,
    Unknown,
}

impl<P, B> Peers<P, B> {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            entries: Vec::new(),
            active: Slab::new(),
            latest: HashTable::new(),
            interfaces: Vec::new(),
            recent: Box::new([Recent { source: 0, peer: NONE }; RECENT]),
            discovered: 0,
            closed: None,
            charges: Charges::new(seed),
            eliciting: Eliciting::default(),
            seed,
        }
    }

    #[inline]
    pub(crate) fn status_of(&self, peer: PeerId) -> PeerStatus {
        match self.entries.get(peer.index()) {
            Some(entry) if entry.is_gone() => PeerStatus::Gone,
            Some(_) => PeerStatus::Live,
            None => PeerStatus::Unknown,
        }
    }

    pub(crate) fn address(&self, peer: PeerId) -> Option<RawAddress> {
        Some(self.entries.get(peer.index())?.address())
    }

    /// Where packets to the peer go.
    #[inline]
    pub(crate) fn destination(&self, peer: PeerId) -> Destination {
        let entry = &self.entries[peer.index()];
        Destination {
            address_handle: entry.handle,
            qpn: Qpn(entry.qpn),
            qkey: Qkey(entry.connid.0),
        }
    }

    /// The destination of messages without headers, or of other packets if the peer has no queue
    /// pair for them.
    #[cold]
    pub(crate) fn plain_destination(&self, peer: PeerId) -> Destination {
        let destination = self.destination(peer);
        match self.active(peer).and_then(|active| active.user_queue) {
            Some(UserRecvQp { qpn, qkey }) => {
                Destination { qpn: Qpn(qpn as u16), qkey: Qkey(qkey), ..destination }
            }
            None => destination,
        }
    }

    /// The live peer on a queue pair, if the device has a handle for its interface.
    pub(crate) fn by_source(&mut self, source: Source) -> Option<PeerId> {
        let (handle, qpn) = (source.address_handle?, source.qpn);
        let gid = *self.interfaces.get(usize::from(handle.0))?;
        let peer = self.latest_at(&QueuePairKey { gid, qpn: qpn.0 })?;
        let entry = &self.entries[peer as usize];
        if entry.is_gone() || entry.handle != handle {
            return None;
        }
        let source = Recent::source(handle, qpn);
        self.recent[Recent::place(source)] = Recent { source, peer };
        Some(PeerId(peer))
    }

    fn latest_at(&self, place: &QueuePairKey) -> Option<u32> {
        let is_at = |index: &u32| self.entries[*index as usize].is_at(place);
        self.latest.find(place.hash(self.seed), is_at).copied()
    }

    /// The live peer on a queue pair and its state, if packets came from it lately and it has this
    /// connid.
    #[inline(always)]
    pub(crate) fn recognise(
        &mut self,
        source: Source,
        connid: Connid,
    ) -> Option<(PeerId, &mut Active<P, B>)> {
        let place = Recent::source(source.address_handle?, source.qpn);
        let recent = self.recent[Recent::place(place)];
        let entry = self.entries.get(recent.peer as usize)?;
        if recent.source != place || entry.connid != connid {
            return None;
        }
        Some((PeerId(recent.peer), self.active.get_mut(entry.active as usize)?))
    }

    /// Forgets the recent sender on a queue pair: the peer there changes or ends.
    fn forget_recent(&mut self, handle: AddressHandle, qpn: Qpn) {
        self.recent[Recent::place(Recent::source(handle, qpn))].peer = NONE;
    }

    /// The live peer on the queue pair of an address that has another connid, if a packet of it has arrived and the
    /// address is of no live peer.
    pub(crate) fn heard_other_incarnation(&self, address: &RawAddress) -> Option<PeerId> {
        let latest = self.latest_at(&QueuePairKey { gid: address.gid, qpn: address.qpn })?;
        let entry = &self.entries[latest as usize];
        let is_heard =
            self.active(PeerId(latest)).is_some_and(|active| active.handshake.is_answered());
        let is_other = !entry.is_gone() && entry.connid != address.connid && is_heard;
        let known = || self.by_address(address).map(|peer| self.status_of(peer));
        (is_other && known() != Some(PeerStatus::Live)).then_some(PeerId(latest))
    }

    /// The latest peer with this address and connid.
    pub(crate) fn by_address(&self, address: &RawAddress) -> Option<PeerId> {
        let mut index = self.latest_at(&QueuePairKey { gid: address.gid, qpn: address.qpn })?;
        for _ in 0..INCARNATIONS {
            let entry = self.entries.get(index as usize)?;
            if entry.connid == address.connid {
                return Some(PeerId(index));
            }
            index = entry.link & !GONE;
        }
        None
    }

    /// Adds a peer; returns it and the peer whose queue pair it takes.
    pub(crate) fn insert(
        &mut self,
        address: RawAddress,
        handle: AddressHandle,
    ) -> (PeerId, Option<PeerId>) {
        let RawAddress { gid, qpn, connid } = address;
        self.forget_recent(handle, Qpn(qpn));
        self.note_interface(handle, gid);
        let Self { entries, latest, seed, .. } = self;
        let index = entries.len() as u32;
        let place = QueuePairKey { gid, qpn };
        let before = match latest.entry(
            place.hash(*seed),
            |other| entries[*other as usize].is_at(&place),
            |other| entries[*other as usize].place().hash(*seed),
        ) {
            HashEntry::Occupied(mut latest) => Some(core::mem::replace(latest.get_mut(), index)),
            HashEntry::Vacant(vacant) => {
                vacant.insert(index);
                None
            }
        };
        let incarnations = before.map_or(0, |before| self.incarnations_until(before));
        let (active, link) = (IDLE | incarnations, before.unwrap_or(NO_LINK));
        let entries = &mut self.entries;
        entries.push(Entry { gid, connid, active, link, qpn, handle });
        let replaced = before.filter(|before| !entries[*before as usize].is_gone());
        (PeerId(index), replaced.map(PeerId))
    }

    #[inline(always)]
    fn note_interface(&mut self, handle: AddressHandle, gid: [u8; 16]) {
        let interface = usize::from(handle.0);
        if self.interfaces.len() <= interface {
            self.interfaces.resize(interface + 1, [0; 16]);
        }
        self.interfaces[interface] = gid;
    }

    /// Incarnations of a queue pair that became known by a packet, up to this entry.
    fn incarnations_until(&self, index: u32) -> u32 {
        let active = self.entries[index as usize].active;
        let count = active & COUNT;
        self.active.get(active as usize).map_or(count, |active| active.incarnations)
    }

    /// The latest peer on the queue pair of an address, and the number of its incarnations that became
    /// known by a packet.
    pub(crate) fn incarnations(&self, address: &RawAddress) -> Option<(PeerId, usize)> {
        let latest = self.latest_at(&QueuePairKey { gid: address.gid, qpn: address.qpn })?;
        Some((PeerId(latest), self.incarnations_until(latest) as usize))
    }

    /// Marks a peer as gone. With `may_return` its first message begins a new peer. Returns its address handle, and the
    /// slot of its state, which stays until it is [removed](Self::remove_state).
    ///
    /// The device may use the handle's number for another interface, so from now on the peer is
    /// found by its address alone.
    pub(crate) fn retire(
        &mut self,
        peer: PeerId,
        may_return: bool,
    ) -> Option<(AddressHandle, Option<u32>)> {
        let incarnations =
            self.entries.get(peer.index()).map(|_| self.incarnations_until(peer.0))?;
        let entry = self.entries.get_mut(peer.index()).filter(|entry| !entry.is_gone())?;
        entry.link |= GONE;
        let (handle, qpn) = (entry.handle, Qpn(entry.qpn));
        let returns = if may_return { RETURNS } else { 0 };
        let slot = core::mem::replace(&mut entry.active, IDLE | returns | incarnations);
        self.forget_recent(handle, qpn);
        self.pass_queue_pair(peer);
        Some((handle, (slot & IDLE == 0).then_some(slot)))
    }

    /// Keeps a peer that is gone from beginning anew with its first message.
    pub(crate) fn forbid_return(&mut self, peer: PeerId) {
        self.entries[peer.index()].active &= !RETURNS;
    }

    /// Whether a peer is gone and may begin anew.
    pub(crate) fn may_return(&self, peer: PeerId) -> bool {
        let entry = &self.entries[peer.index()];
        entry.is_gone() && entry.active & RETURNS != 0
    }

    /// The slot of the state of a peer.
    #[inline]
    pub(crate) fn slot(&self, peer: PeerId) -> Option<u32> {
        self.entries.get(peer.index()).map(|entry| entry.active).filter(|slot| slot & IDLE == 0)
    }

    /// The state in a slot.
    pub(crate) fn at_slot_mut(&mut self, slot: u32) -> Option<&mut Active<P, B>> {
        self.active.get_mut(slot as usize)
    }

    /// Removes the state of a peer that is gone. What its unexpected messages are charged with passes to
    /// its queue pair; returns the index of that charge, if there is any.
    pub(crate) fn remove_state(&mut self, slot: u32) -> Option<u32> {
        let Active { peer, unexpected, .. } = self.active.try_remove(slot as usize)?;
        self.eliciting.stop(slot);
        self.charges.changed(Charged::Living(slot), unexpected, 0);
        (unexpected > 0).then(|| self.charges.leave(self.entries[peer.index()].place(), unexpected))
    }

    /// Charges the peer whose state is in this slot; returns the bytes that it is charged with.
    #[inline]
    pub(crate) fn charge(&mut self, slot: u32, bytes: usize) -> usize {
        let Some(active) = self.active.get_mut(slot as usize) else { return 0 };
        let before = active.unexpected;
        active.unexpected += bytes;
        self.charges.changed(Charged::Living(slot), before, before + bytes);
        before + bytes
    }

    /// Takes a charge back: of the peer whose state is in `slot`, or of what a peer left that has none.
    pub(crate) fn uncharge(&mut self, peer: PeerId, slot: Option<u32>, bytes: usize) {
        match slot.and_then(|slot| Some((slot, self.active.get_mut(slot as usize)?))) {
            Some((slot, active)) => {
                let before = active.unexpected;
                active.unexpected -= bytes;
                self.charges.changed(Charged::Living(slot), before, before - bytes);
            }
            None => {
                let queue_pair = self.entries[peer.index()].place();
                self.charges.left_is_gone(&queue_pair, bytes);
            }
        }
    }

    /// What former incarnations of a peer's queue pair left: the index of the charge, and its bytes.
    pub(crate) fn left_by_queue_pair_of(&self, peer: PeerId) -> Option<(u32, usize)> {
        self.charges.left_by(&self.entries.get(peer.index())?.place())
    }

    /// The state of a peer, if packets were exchanged with it.
    pub(crate) fn active(&self, peer: PeerId) -> Option<&Active<P, B>> {
        self.active.get(self.entries.get(peer.index())?.active as usize)
    }

    /// The state of a peer, if packets were exchanged with it.
    #[inline]
    pub(crate) fn active_mut(&mut self, peer: PeerId) -> Option<&mut Active<P, B>> {
        self.active.get_mut(self.entries.get(peer.index())?.active as usize)
    }

    /// The state of a live peer, made if there is none.
    #[inline(always)]
    pub(crate) fn activate(&mut self, peer: PeerId, config: &Config) -> &mut Active<P, B> {
        debug_assert!(!self.entries[peer.index()].is_gone());
        if self.entries[peer.index()].active & IDLE != 0 {
            self.begin_active(peer, config);
        }
        &mut self.active[self.entries[peer.index()].active as usize]
    }

    #[cold]
    fn begin_active(&mut self, peer: PeerId, config: &Config) {
        let entry = &mut self.entries[peer.index()];
        let active = Active::new(peer, entry.active & !IDLE, config);
        entry.active = self.active.insert(active) as u32;
    }

    /// Everyone charged for unexpected messages, and their bytes.
    #[cfg(test)]
    pub(crate) fn all_charged(&self) -> Vec<(Charged, usize)> {
        let living = self.active.iter();
        let living = living.map(|(slot, active)| (Charged::Living(slot as u32), active.unexpected));
        living.chain(self.charges.all_left()).collect()
    }

    /// All peers, gone ones included.
    pub(crate) fn all(&self) -> impl Iterator<Item = PeerId> + use<P, B> {
        (0..self.entries.len() as u32).map(PeerId)
    }

    /// Number of peers, gone ones included.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The written packets in backlogs.
    pub(crate) fn queued_packets_mut(&mut self) -> impl Iterator<Item = &mut InFlight<B>> {
        self.active.iter_mut().flat_map(|(_, active)| active.backlog.packets_mut())
    }

    /// The latest peer on a queue pair whose incarnations sent more than a quarter as many bytes of
    /// unexpected messages as those of any other.
    pub(crate) fn with_most_unexpected(&self) -> Option<PeerId> {
        match self.charges.most()? {
            Charged::Living(slot) => self.active.get(slot as usize).map(|active| active.peer),
            Charged::Left(index) => self.latest_at(&self.charges.left_at(index)).map(PeerId),
        }
    }

    /// Whether nothing waits to be sent to any peer, and no request of a peer is under way.
    pub(crate) fn all_clear(&self) -> bool {
        self.active
            .iter()
            .all(|(_, active)| active.backlog.is_empty() && active.under_way == [0; 2])
    }
}

/// The interface part of an address.
pub(crate) fn gid(address: &RawAddress) -> Gid {
    Gid(address.gid)
}
