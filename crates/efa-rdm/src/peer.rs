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
use crate::rnr::Backoff;
use crate::transmit::{InFlight, Work};

/// Names a peer of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub(crate) u32);

impl PeerId {
    /// Its number: peers are numbered from 0 in the order in which they became known.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug)]
struct Entry {
    address: RawAddress,
    handle: AddressHandle,
    gone: bool,
    /// Index of the conversation, or [`NONE`].
    active: u32,
}

impl Entry {
    fn is_at(&self, handle: AddressHandle, qpn: Qpn) -> bool {
        self.handle == handle && self.address.qpn == qpn.0
    }
}

const NONE: u32 = u32::MAX;

const _: () = assert!(size_of::<Entry>() <= 32, "an idle peer stays small");

/// What a conversation with a peer needs.
#[derive(Debug)]
pub(crate) struct Active<P, B> {
    pub(crate) handshake: PeerState,
    pub(crate) next_msg_id: u32,
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
}

impl<P, B> Active<P, B> {
    fn new(config: &Config) -> Self {
        Self {
            handshake: PeerState::new(),
            next_msg_id: config.first_msg_id,
            window: Window::new(WINDOW.min(config.max_reorder))
                .with_limit(config.max_reorder)
                .starting_at(config.first_msg_id),
            backoff: Backoff::default(),
            backlog: VecDeque::new(),
            scheduled: false,
            held: VecDeque::new(),
            user_queue: None,
            reads_under_way: 0,
            awaiting_handshake: Vec::new(),
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
        let asks = level == Level::Delivery || config.messages_after_handshake;
        !self.held.is_empty() || (asks && !self.handshake.is_known())
    }

    pub(crate) fn take_msg_id(&mut self) -> MsgId {
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
    by_address: HashTable<u32>,
    /// By address handle and QPN: the peer that holds the queue pair now, which is never gone.
    current: HashTable<u32>,
    /// Some of `current`, to be found without a search.
    recent: Box<[Recent; RECENT]>,
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
pub(crate) enum Standing {
    Live,
    Gone,
    Unknown,
}

impl<P, B> Peers<P, B> {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            entries: Vec::new(),
            active: Slab::new(),
            by_address: HashTable::new(),
            current: HashTable::new(),
            recent: Box::new([Recent { source: 0, peer: NONE }; RECENT]),
            seed,
        }
    }

    #[inline]
    pub(crate) fn standing(&self, peer: PeerId) -> Standing {
        match self.entries.get(peer.index()) {
            Some(entry) if entry.gone => Standing::Gone,
            Some(_) => Standing::Live,
            None => Standing::Unknown,
        }
    }

    pub(crate) fn address(&self, peer: PeerId) -> Option<&RawAddress> {
        Some(&self.entries.get(peer.index())?.address)
    }

    /// Where packets to the peer go.
    #[inline]
    pub(crate) fn destination(&self, peer: PeerId) -> Destination {
        let entry = &self.entries[peer.index()];
        Destination {
            address_handle: entry.handle,
            qpn: Qpn(entry.address.qpn),
            qkey: Qkey(entry.address.connid.0),
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
        let peer = *self.current.find(hash_source(self.seed, handle, qpn), |index| {
            self.entries[*index as usize].is_at(handle, qpn)
        })?;
        let source = Recent::source(handle, qpn);
        self.recent[Recent::place(source)] = Recent { source, peer };
        Some(PeerId(peer))
    }

    /// The peer that holds a queue pair now, if it spoke lately and has this connid, and the
    /// conversation with it.
    #[inline(always)]
    pub(crate) fn recognise(
        &mut self,
        source: Source,
        connid: Option<Connid>,
    ) -> Option<(PeerId, &mut Active<P, B>)> {
        let place = Recent::source(source.address_handle?, source.qpn);
        let recent = self.recent[Recent::place(place)];
        let entry = self.entries.get(recent.peer as usize)?;
        if recent.source != place || Some(entry.address.connid) != connid {
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
        let found = self.by_address.find(hash_address(self.seed, address), |index| {
            self.entries[*index as usize].address == *address
        });
        found.map(|index| PeerId(*index))
    }

    /// Adds a peer; gives it and the one whose queue pair it takes over.
    pub(crate) fn insert(
        &mut self,
        address: RawAddress,
        handle: AddressHandle,
    ) -> (PeerId, Option<PeerId>) {
        self.forget_recent(handle, Qpn(address.qpn));
        let Self { entries, by_address, current, seed, .. } = self;
        let seed = *seed;
        let index = entries.len() as u32;
        entries.push(Entry { address, handle, gone: false, active: NONE });

        let known = by_address.entry(
            hash_address(seed, &address),
            |other| entries[*other as usize].address == address,
            |other| hash_address(seed, &entries[*other as usize].address),
        );
        match known {
            HashEntry::Occupied(mut known) => *known.get_mut() = index,
            HashEntry::Vacant(place) => {
                place.insert(index);
            }
        }

        let qpn = Qpn(address.qpn);
        let holder = current.entry(
            hash_source(seed, handle, qpn),
            |other| entries[*other as usize].is_at(handle, qpn),
            |other| {
                let entry = &entries[*other as usize];
                hash_source(seed, entry.handle, Qpn(entry.address.qpn))
            },
        );
        let replaced = match holder {
            HashEntry::Occupied(mut holder) => {
                Some(PeerId(core::mem::replace(holder.get_mut(), index)))
            }
            HashEntry::Vacant(place) => {
                place.insert(index);
                None
            }
        };
        (PeerId(index), replaced)
    }

    /// Marks a peer as gone; gives its address handle and conversation back.
    ///
    /// The handle's number may come to mean another interface, so that the peer is found by its
    /// address alone from now on.
    pub(crate) fn retire(&mut self, peer: PeerId) -> Option<(AddressHandle, Option<Active<P, B>>)> {
        let entry = self.entries.get_mut(peer.index()).filter(|entry| !entry.gone)?;
        entry.gone = true;
        let handle = entry.handle;
        let source = hash_source(self.seed, handle, Qpn(entry.address.qpn));
        let active = core::mem::replace(&mut entry.active, NONE);
        let qpn = Qpn(entry.address.qpn);
        if let Ok(current) = self.current.find_entry(source, |index| *index == peer.0) {
            current.remove();
        }
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
    pub(crate) fn converse(&mut self, peer: PeerId, config: &Config) -> &mut Active<P, B> {
        if self.entries[peer.index()].active == NONE {
            self.begin_conversation(peer, config);
        }
        &mut self.active[self.entries[peer.index()].active as usize]
    }

    #[cold]
    fn begin_conversation(&mut self, peer: PeerId, config: &Config) {
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

    /// Whether nothing waits to be sent to any peer.
    pub(crate) fn all_clear(&self) -> bool {
        self.active.iter().all(|(_, active)| active.backlog.is_empty())
    }
}

fn hash_source(seed: u64, handle: AddressHandle, qpn: Qpn) -> u64 {
    mix(seed, u64::from(handle.0) << 16 | u64::from(qpn.0), 0)
}

fn hash_address(seed: u64, address: &RawAddress) -> u64 {
    let gid = u128::from_le_bytes(address.gid);
    let queue = u64::from(address.connid.0) << 16 | u64::from(address.qpn);
    mix(mix(seed, gid as u64, (gid >> 64) as u64), queue, 0)
}

/// The interface part of an address.
pub(crate) fn gid(address: &RawAddress) -> Gid {
    Gid(address.gid)
}
