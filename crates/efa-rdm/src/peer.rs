//! The endpoints that this endpoint knows (sections 1.4, 2.2 and 4.4).
//!
//! A peer is one life of a remote endpoint: an address with its connid. When a queue pair number
//! comes back with another connid, the old peer is *gone* and a new one takes its place; the old
//! address is remembered so that late packets of the old life are recognised.
//!
//! ```text
//!   packet ── (address handle, QPN) ──► current peer ── same connid? ──► it
//!                                            │ no
//!                                            └── raw address or connid ──► another peer | stale
//! ```
//!
//! A peer that was never talked to is one small entry; what a conversation needs is made with the
//! first packet.

use std::collections::VecDeque;

use efa_device::{AddressHandle, Destination, Gid, Qkey, Qpn, Source};
use efa_handshake::{Extras, PeerState, Support};
use efa_match::Window;
use efa_proto::{Connid, MsgId, OpId, RawAddress, UserRecvQp};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as HashEntry;
use slab::Slab;

use crate::completion::Level;
use crate::config::Config;
use crate::hash::mix;
use crate::held::Chain;
use crate::ids::PeerId;
use crate::rnr::Backoff;
use crate::send_window::SendWindow;
use crate::work::{InFlight, Work};

/// A peer: its address, and the peer that held the queue pair before it.
#[derive(Debug)]
struct Entry {
    gid: [u8; 16],
    connid: Connid,
    /// Index of the conversation, or [`NONE`].
    active: u32,
    /// Index of the peer that held the queue pair before, or [`NO_LINK`]; and [`GONE`].
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

    fn is_at(&self, place: &Place) -> bool {
        self.gid == place.gid && self.qpn == place.qpn
    }

    fn place(&self) -> Place {
        Place { gid: self.gid, qpn: self.qpn }
    }
}

/// A queue pair of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    gid: [u8; 16],
    qpn: u16,
}

impl Place {
    fn hash(&self, seed: u64) -> u64 {
        let gid = u128::from_le_bytes(self.gid);
        mix(mix(seed, gid as u64, (gid >> 64) as u64), u64::from(self.qpn), 0)
    }
}

const NONE: u32 = u32::MAX;
/// In [`Entry::link`]: the peer is gone.
const GONE: u32 = 1 << 31;
const NO_LINK: u32 = GONE - 1;
/// Lives of a queue pair that are remembered, so that a peer that begins new ones without end
/// doesn't make the search for one long.
const INCARNATIONS: usize = 64;

const _: () = assert!(size_of::<Entry>() <= 32, "an idle peer stays small");

/// What a conversation with a peer needs.
#[derive(Debug)]
pub(crate) struct Active<P, B> {
    pub(crate) handshake: PeerState,
    /// Whether requests to the peer tell the connid of this side and nothing else of it, as most do.
    pub(crate) by_connid: bool,
    pub(crate) next_msg_id: u32,
    /// How far messages may run ahead. Those to a user queue pair never go at once.
    pub(crate) send_window: SendWindow,
    /// Early packets, a chain for each message.
    pub(crate) window: Window<Chain>,
    pub(crate) backoff: Backoff,
    /// What is to be sent and could not be sent at once.
    pub(crate) backlog: VecDeque<Work<P, B>>,
    /// Whether the peer stands in the queue of peers to be served.
    pub(crate) scheduled: bool,
    /// Sends that wait for the peer's HANDSHAKE, and those that were started behind them.
    pub(crate) held: VecDeque<OpId>,
    /// The queue pair that the peer's application receives plain messages on.
    pub(crate) user_queue: Option<UserRecvQp>,
    /// Messages to the peer that it is reading.
    pub(crate) reads_under_way: u32,
    /// What waits for the peer's HANDSHAKE and has no place among the messages.
    pub(crate) awaiting_handshake: Vec<Work<P, B>>,
    /// Bytes that are kept of early packets, and of unexpected messages.
    pub(crate) early: usize,
    pub(crate) unexpected: usize,
    /// Requests of the peer under way.
    pub(crate) requests: usize,
}

impl<P, B> Active<P, B> {
    fn new(config: &Config) -> Self {
        Self {
            handshake: PeerState::new(),
            by_connid: false,
            next_msg_id: config.first_msg_id,
            send_window: SendWindow::new(config.old_peer_window, config.first_msg_id),
            window: Window::new(WINDOW.min(config.reorder()))
                .with_limit(config.reorder())
                .starting_at(config.first_msg_id),
            backoff: Backoff::default(),
            backlog: VecDeque::new(),
            scheduled: false,
            held: VecDeque::new(),
            user_queue: None,
            reads_under_way: 0,
            awaiting_handshake: Vec::new(),
            early: 0,
            unexpected: 0,
            requests: 0,
        }
    }

    /// Whether new packets may be posted at once: nothing waits before them.
    #[inline]
    pub(crate) fn is_clear(&self) -> bool {
        self.backlog.is_empty() && !self.backoff.is_waiting()
    }

    /// Features that the peer is known to lack for a completion of this level.
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

    /// Whether the next message has to wait until all before it are delivered.
    pub(crate) fn must_pause(&self) -> bool {
        self.user_queue.is_none() && self.send_window.is_over(self.next_msg_id)
    }

    /// The id of a message or atomic that doesn't go at once.
    pub(crate) fn take_ordered_id(&mut self) -> MsgId {
        let id = self.next_id();
        self.keep_from_going_at_once();
        id
    }

    /// Messages to a user queue pair are another matter.
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

/// Slots of the reorder window; ids beyond them are kept in a map.
const WINDOW: u32 = 256;

/// All peers of an endpoint.
#[derive(Debug)]
pub(crate) struct Peers<P, B> {
    entries: Vec<Entry>,
    active: Slab<Active<P, B>>,
    /// By place: the latest peer there. If it isn't gone, it holds the queue pair now.
    latest: HashTable<u32>,
    /// By address handle: the interface that it means.
    interfaces: Vec<[u8; 16]>,
    /// Some of those that aren't gone, to be found without a search.
    recent: Box<[Recent; RECENT]>,
    /// How many of them wrote first.
    pub(crate) discovered: usize,
    seed: u64,
}

/// A peer that packets came from lately, and where from. Its place follows from where.
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

/// Whether there is such a peer.
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

    /// Where plain messages to the peer go, and other packets if it has no queue pair for them.
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

    /// The peer that holds a queue pair now.
    pub(crate) fn by_source(&mut self, handle: AddressHandle, qpn: Qpn) -> Option<PeerId> {
        let gid = *self.interfaces.get(usize::from(handle.0))?;
        let peer = self.latest_at(&Place { gid, qpn: qpn.0 })?;
        let entry = &self.entries[peer as usize];
        if entry.is_gone() || entry.handle != handle {
            return None;
        }
        let source = Recent::source(handle, qpn);
        self.recent[Recent::place(source)] = Recent { source, peer };
        Some(PeerId(peer))
    }

    fn latest_at(&self, place: &Place) -> Option<u32> {
        let is_at = |index: &u32| self.entries[*index as usize].is_at(place);
        self.latest.find(place.hash(self.seed), is_at).copied()
    }

    /// The peer that holds a queue pair now, if it spoke lately and has this connid, and the
    /// conversation with it.
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

    /// A queue pair has another holder, or none.
    fn forget_recent(&mut self, handle: AddressHandle, qpn: Qpn) {
        self.recent[Recent::place(Recent::source(handle, qpn))].peer = NONE;
    }

    /// The latest peer with this address and connid.
    pub(crate) fn by_address(&self, address: &RawAddress) -> Option<PeerId> {
        let mut index = self.latest_at(&Place { gid: address.gid, qpn: address.qpn })?;
        for _ in 0..INCARNATIONS {
            let entry = self.entries.get(index as usize)?;
            if entry.connid == address.connid {
                return Some(PeerId(index));
            }
            index = entry.link & !GONE;
        }
        None
    }

    /// Adds a peer; gives it and the one whose queue pair it takes over.
    pub(crate) fn insert(
        &mut self,
        address: RawAddress,
        handle: AddressHandle,
    ) -> (PeerId, Option<PeerId>) {
        let RawAddress { gid, qpn, connid } = address;
        self.forget_recent(handle, Qpn(qpn));
        let interface = usize::from(handle.0);
        if self.interfaces.len() <= interface {
            self.interfaces.resize(interface + 1, [0; 16]);
        }
        self.interfaces[interface] = gid;

        let Self { entries, latest, seed, .. } = self;
        let index = entries.len() as u32;
        let place = Place { gid, qpn };
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
        let link = before.unwrap_or(NO_LINK);
        entries.push(Entry { gid, connid, active: NONE, link, qpn, handle });
        let replaced = before.filter(|before| !entries[*before as usize].is_gone());
        (PeerId(index), replaced.map(PeerId))
    }

    /// Marks a peer as gone; gives its address handle and conversation back.
    ///
    /// The handle's number may come to mean another interface, so that the peer is found by its
    /// address alone from now on.
    pub(crate) fn retire(&mut self, peer: PeerId) -> Option<(AddressHandle, Option<Active<P, B>>)> {
        let entry = self.entries.get_mut(peer.index()).filter(|entry| !entry.is_gone())?;
        entry.link |= GONE;
        let (handle, qpn) = (entry.handle, Qpn(entry.qpn));
        let active = core::mem::replace(&mut entry.active, NONE);
        self.forget_recent(handle, qpn);
        Some((handle, self.active.try_remove(active as usize)))
    }

    /// The conversation with a peer, if there is one.
    pub(crate) fn active(&self, peer: PeerId) -> Option<&Active<P, B>> {
        self.active.get(self.entries.get(peer.index())?.active as usize)
    }

    /// The conversation with a peer, if there is one.
    #[inline]
    pub(crate) fn active_mut(&mut self, peer: PeerId) -> Option<&mut Active<P, B>> {
        self.active.get_mut(self.entries.get(peer.index())?.active as usize)
    }

    /// The conversation with a live peer, begun if there is none.
    #[inline(always)]
    pub(crate) fn activate(&mut self, peer: PeerId, config: &Config) -> &mut Active<P, B> {
        if self.entries[peer.index()].active == NONE {
            self.begin_active(peer, config);
        }
        &mut self.active[self.entries[peer.index()].active as usize]
    }

    #[cold]
    fn begin_active(&mut self, peer: PeerId, config: &Config) {
        self.entries[peer.index()].active = self.active.insert(Active::new(config)) as u32;
    }

    /// The packets that wait to be sent.
    pub(crate) fn queued_packets_mut(&mut self) -> impl Iterator<Item = &mut InFlight<B>> {
        let queued = self.active.iter_mut().flat_map(|(_, active)| &mut active.backlog);
        queued.filter_map(|work| match work {
            Work::Packet { record, .. } => Some(record),
            _ => None,
        })
    }

    /// The live peer with most bytes of unexpected messages.
    pub(crate) fn with_most_unexpected(&self) -> Option<PeerId> {
        let bytes = |entry: &Entry| Some(self.active.get(entry.active as usize)?.unexpected);
        let known = self.entries.iter().enumerate();
        let kept = known.filter_map(|(index, entry)| Some((bytes(entry)?, index)));
        let most = kept.filter(|(bytes, _)| *bytes > 0).max_by_key(|(bytes, _)| *bytes);
        most.map(|(_, index)| PeerId(index as u32))
    }

    /// Whether nothing waits to be sent to any peer, and no request of one is under way: what the
    /// peer hears of that next may be a while off.
    pub(crate) fn all_clear(&self) -> bool {
        self.active.iter().all(|(_, active)| active.backlog.is_empty() && active.requests == 0)
    }
}

/// The interface part of an address.
pub(crate) fn gid(address: &RawAddress) -> Gid {
    Gid(address.gid)
}
