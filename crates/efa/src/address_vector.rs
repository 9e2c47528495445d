//! The address vector: a table of peers and their indices.
//!
//! ```text
//!   insert(address) ─► FiAddr(0) ─► Endpoint::send(Message::to(FiAddr(0)), …)
//!                                       │ first use
//!                                       ▼
//!                     PeerMap of each endpoint: index to peer of its engine
//! ```
//!
//! Removal ends the peer in every bound endpoint before it frees the index, so an index never stands for
//! two peers at a time. Insertion and removal hold the lock of the list of endpoints throughout, and
//! take that of the table inside it: an address inserted again can't be confused with the one that is
//! being removed.

mod contexts;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use efa_device::{DeviceError, Gid};
use efa_proto::{Connid, RawAddress};
use hashbrown::{DefaultHashBuilder, HashTable};

pub use contexts::ContextError;
use contexts::Contexts;

use crate::address::Address;
use crate::attributes::AddressVectorKind;
use crate::connection::EventQueue;
use crate::domain::Domain;
use crate::endpoint::Shared as EndpointShared;
use crate::error::{Error, Wanted};
use crate::named::{Named, Published};

/// A peer of an address vector (`fi_addr_t`).
///
/// In one of [`AddressVectorKind::Table`] it is an index, and an insertion takes the lowest free one, from 0 on,
/// so a program can compute them. In one of [`AddressVectorKind::Map`] it is opaque, and never stands for another
/// peer later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FiAddr(pub u64);

impl fmt::Display for FiAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

impl FiAddr {
    /// A receive context of this peer, which takes the upper `bits` bits. The caller has checked that it fits.
    const fn receive_context(self, context: u32, bits: u8) -> Self {
        match bits {
            0 => self,
            _ => Self(self.0 | (context as u64) << (64 - bits as u32)),
        }
    }
}

/// Options of an address vector (`fi_av_attr`).
///
/// ```
/// use efa::{AddressVectorKind, AddressVectorOptions};
/// let options = AddressVectorOptions::new().kind(AddressVectorKind::Map).count(1000);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddressVectorOptions {
    /// What it returns for a peer; indices by default.
    pub kind: AddressVectorKind,
    /// Peers that the program expects; space for up to 2^20 of them is allocated at once. Not a limit.
    pub count: usize,
    /// Endpoints of a host that the program expects; 0 if it doesn't know. This crate makes no use of it.
    pub endpoints_per_node: usize,
    /// Upper bits of a [`FiAddr`] that name a receive context of the peer, at most 16; 2 bits for 4 contexts.
    pub receive_context_bits: u8,
    /// A name by which other processes of this user on this host read it: there is one copy, in shared memory. The
    /// process that makes it without [`read_only`](Self#structfield.read_only) alone inserts and removes peers, at
    /// most [`count`](Self#structfield.count) (4096 if that is 0). Receive contexts but the first aren't shared.
    ///
    /// It has 1 to 64 bytes, each a letter or digit of ASCII, a hyphen, an underscore or a point. The name is free again
    /// when the address vector of its writer is dropped, or the writer has exited; readers keep what they have.
    pub name: Option<String>,
    /// Opens the address vector of this [`name`](Self#structfield.name), which another process writes and which must
    /// exist. Its peers can't be inserted or removed here.
    pub read_only: bool,
    /// A number of the program ([`Object::context`](crate::Object::context)).
    pub context: u64,
}

impl AddressVectorOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`kind`](Self#structfield.kind).
    #[must_use]
    pub fn kind(self, kind: AddressVectorKind) -> Self {
        Self { kind, ..self }
    }

    /// Sets [`count`](Self#structfield.count).
    #[must_use]
    pub fn count(self, count: usize) -> Self {
        Self { count, ..self }
    }

    /// Sets [`endpoints_per_node`](Self#structfield.endpoints_per_node).
    #[must_use]
    pub fn endpoints_per_node(self, endpoints_per_node: usize) -> Self {
        Self { endpoints_per_node, ..self }
    }

    /// Sets [`name`](Self#structfield.name).
    #[must_use]
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Sets [`read_only`](Self#structfield.read_only).
    #[must_use]
    pub fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    /// Sets [`receive_context_bits`](Self#structfield.receive_context_bits).
    #[must_use]
    pub fn receive_context_bits(self, receive_context_bits: u8) -> Self {
        Self { receive_context_bits, ..self }
    }

    /// Sets [`context`](Self#structfield.context).
    #[must_use]
    pub fn context(self, context: u64) -> Self {
        Self { context, ..self }
    }
}

/// Most bits for the receive context: the generation keeps as many at least.
const MOST_CONTEXT_BITS: u8 = 16;

/// The peers that endpoints can send to (`fi_av`). Clones are handles to the same address vector.
///
/// It may be bound to any number of endpoints. Endpoints also receive from peers that are not in it:
/// the completion of such a message has an address but no [`FiAddr`].
#[derive(Clone)]
pub struct AddressVector(Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) domain: Domain,
    options: AddressVectorOptions,
    named: Named,
    /// Locked after `endpoints` and after drivers.
    table: Mutex<Table>,
    /// Locked before drivers.
    endpoints: Mutex<Vec<Weak<EndpointShared>>>,
    /// For the events of asynchronous insertions.
    pub(crate) events: OnceLock<EventQueue>,
}

impl fmt::Debug for AddressVector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("AddressVector");
        debug.field("options", &self.options).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Table {
    slots: Vec<Slot>,
    /// Free slots below the end of `slots`.
    free: BTreeSet<u32>,
    /// The taken slots.
    by_address: HashTable<Place>,
    /// Randomly seeded: hostile addresses may be inserted.
    hasher: DefaultHashBuilder,
    generations: Generations,
    /// By slot, if another process writes the address vector: the change by which it put the peer there.
    changes: Vec<u64>,
    /// Peers of such an address vector that an operation has put here, and that other endpoints don't know of.
    unannounced: Vec<(FiAddr, Address)>,
    /// By the index of a peer: its queue pairs but the first.
    contexts: HashMap<u32, Contexts>,
    /// These queue pairs, each with the index of a peer that has it.
    by_context: BTreeSet<(Address, u32)>,
    /// Upper bits of an address that name a receive context.
    context_bits: u32,
    /// Most peers, if that is less than an endpoint can have.
    limit: Option<usize>,
}

/// The upper half of an address, without the bits for a receive context: 0, or of
/// [`AddressVectorKind::Map`] how often the slot has been used.
#[derive(Debug, Default)]
enum Generations {
    #[default]
    None,
    OfSlots(Vec<u32>),
}

/// Where an address is, and its [`hash`], so that the table grows without a look at the addresses.
#[derive(Clone, Copy, Debug)]
struct Place {
    hash: u32,
    index: u32,
}

/// A peer's address. A GID of zeros is of no interface, and stands for slots without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot(Address);

impl Slot {
    const FREE: Self = Self::without_peer(0);
    /// Being removed: in use until all endpoints have ended the peer.
    const REMOVING: Self = Self::without_peer(1);

    const fn without_peer(qpn: u16) -> Self {
        Self(Address::from_raw(RawAddress { gid: Gid::ZERO.0, qpn, connid: Connid(0) }))
    }

    fn peer(self) -> Option<Address> {
        (self.0.gid() != Gid::ZERO).then_some(self.0)
    }
}

const _: () = assert!(size_of::<Slot>() <= 24, "a peer takes at most 24 bytes here");

/// Most peers; that is also the limit of an endpoint.
const MOST_PEERS: usize = 1 << 31;

/// Most peers that space is allocated for before they are inserted.
const MOST_RESERVED: usize = 1 << 20;

impl AddressVector {
    pub(crate) fn new(domain: &Domain, options: AddressVectorOptions) -> Result<Self, Error> {
        if options.receive_context_bits > MOST_CONTEXT_BITS {
            let wanted = Wanted::ReceiveContextBits(options.receive_context_bits);
            return Err(Error::NoData { wanted });
        }
        if options.read_only && options.name.is_none() {
            return Err(Wanted::ReadOnlyWithoutName.into());
        }
        let named = Named::open(&options)?;
        let mut table = Table::new(&options);
        table.limit = named.capacity();
        let vector = Self::with_table(domain, options, table, named);
        vector.refresh();
        Ok(vector)
    }

    /// One with default options.
    pub(crate) fn table(domain: &Domain) -> Self {
        let options = AddressVectorOptions::default();
        Self::with_table(domain, options, Table::default(), Named::Nothing)
    }

    fn with_table(
        domain: &Domain,
        options: AddressVectorOptions,
        table: Table,
        named: Named,
    ) -> Self {
        let (domain, table) = (domain.clone(), Mutex::new(table));
        let (endpoints, events) = Default::default();
        Self(Arc::new(Shared { domain, options, named, table, endpoints, events }))
    }

    /// Takes over what the writer of a named address vector has inserted and removed. [`address`](Self::address),
    /// [`find`](Self::find) and [`len`](Self::len) do it by themselves.
    ///
    /// An operation with a peer looks for this peer alone: one that begins after [`remove`](Self::remove) has returned
    /// in the other process is refused with [`StartError::UnknownAddress`](crate::StartError::UnknownAddress), and
    /// ends what its endpoint has under way with that peer. What other endpoints have under way goes on until they use
    /// the peer, or this is called.
    pub fn refresh(&self) {
        if !self.0.named.is_reader() {
            return;
        }
        let endpoints = self.0.endpoints();
        let known = self.0.table().slots.len() as u32;
        let mut inserted = std::mem::take(&mut self.0.table().unannounced);
        for index in 0..known.max(self.0.named.used()) {
            let theirs = self.0.named.get(index);
            let ours = self.0.table().published(index);
            if ours == theirs {
                continue;
            }
            if let Some(ours) = ours {
                let peer = self.0.table().addr(index);
                self.0.table().begin_removal(peer);
                for endpoint in endpoints.iter().filter_map(Weak::upgrade) {
                    endpoint.published_peer_changed(peer, ours, theirs);
                }
                self.0.table().slots[index as usize] = Slot::FREE;
            }
            let mut table = self.0.table();
            // An operation may have put a peer there meanwhile. It is announced by the next call, if not by this one.
            if let Some(theirs) = theirs.filter(|_| table.is_free(index)) {
                inserted.push((table.put(index, theirs), theirs.address));
            }
        }
        announce(&endpoints, &inserted);
    }

    /// The options that it was made with.
    #[must_use]
    pub fn options(&self) -> &AddressVectorOptions {
        &self.0.options
    }

    /// Inserts a peer (`fi_av_insert`). An address that is in the table already keeps its index. One that was
    /// removed and is inserted again is a new peer: the endpoint there has to remove this endpoint, too
    /// ([`remove`](Self::remove)).
    ///
    /// # Errors
    /// [`DeviceError::BadAddress`] for an address with GID zero; [`DeviceError::LimitReached`] beyond 2³¹ peers, or the
    /// [`count`](AddressVectorOptions#structfield.count) of a named address vector;
    /// [`DeviceError::Inconsistent`] if it is [read-only](AddressVectorOptions#structfield.read_only).
    pub fn insert(&self, address: Address) -> Result<FiAddr, DeviceError> {
        self.0.check_writable()?;
        let endpoints = self.0.endpoints();
        let (peer, is_new) = self.0.insert(&mut self.0.table(), address)?;
        if is_new {
            announce(&endpoints, &[(peer, address)]);
        }
        Ok(peer)
    }

    /// Inserts many peers and returns a result for each. An error of one does not prevent the others.
    #[must_use]
    pub fn insert_many(&self, addresses: &[Address]) -> Vec<Result<FiAddr, DeviceError>> {
        let endpoints = self.0.endpoints();
        let mut table = self.0.table();
        let mut new = Vec::new();
        let insert = |address: &Address| {
            self.0.check_writable()?;
            let (peer, is_new) = self.0.insert(&mut table, *address)?;
            new.extend(is_new.then_some((peer, *address)));
            Ok(peer)
        };
        let results = addresses.iter().map(insert).collect();
        drop(table);
        announce(&endpoints, &new);
        results
    }

    /// Removes a peer and returns its address (`fi_av_remove`). On every bound endpoint, operations under way with it
    /// fail, and packets that it still sends are dropped. A queue pair that is also one of [another
    /// peer](Self::insert_contexts) goes on as that.
    ///
    /// Does nothing and returns `None` if there is no such peer, or the address vector is
    /// [read-only](AddressVectorOptions#structfield.read_only): the process that writes it removes its peers.
    ///
    /// Directed receives ([`Receive::from`](crate::Receive::from)) that have not matched a message of it
    /// stay posted and match nothing any more, even if it is inserted again:
    /// [cancel](crate::Endpoint::cancel) them.
    ///
    /// A removed peer that has removed this endpoint too may send before it is inserted again: its first message
    /// is received as that of an unknown sender. That holds if it is the first to arrive, and is no atomic operation and
    /// not delivery complete. What such a peer sends otherwise is dropped, and the connection stops: insert it first.
    ///
    /// Inserted again, it is a new peer, and message IDs start anew. The protocol can't announce that, so the
    /// other side must start anew too: it restarts, or removes this endpoint from its address vector
    /// while nothing is under way between the two. A peer that does neither takes new messages for
    /// repeated ones and drops them, or completes an interrupted message with bytes of a new one.
    pub fn remove(&self, peer: FiAddr) -> Option<Address> {
        let endpoints = self.0.endpoints();
        self.0.check_writable().ok()?;
        let (address, others) = self.0.table().begin_removal(peer)?;
        self.0.named.set(peer.0 as u32, || None);
        let named = others.named(peer, self.0.options.receive_context_bits);
        let named = std::iter::once((peer, address)).chain(named);
        let named: Vec<_> = named.map(|(name, of)| (name, of, self.0.find(&of))).collect();
        for endpoint in endpoints.iter().filter_map(Weak::upgrade) {
            for (name, address, other) in &named {
                match other {
                    None => endpoint.peer_removed(*name, address),
                    Some(_) => endpoint.name_removed(*name),
                }
            }
        }
        self.0.table().free(peer);
        Some(address)
    }

    /// The address of a peer.
    #[must_use]
    pub fn address(&self, peer: FiAddr) -> Option<Address> {
        self.refresh();
        self.0.address(peer)
    }

    /// The peer with an address.
    #[must_use]
    pub fn find(&self, address: &Address) -> Option<FiAddr> {
        self.refresh();
        self.0.find(address)
    }

    /// Number of peers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.refresh();
        self.0.table().by_address.len()
    }

    /// Whether there are no peers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn user_context(&self) -> u64 {
        self.0.options.context
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    pub(crate) fn from_shared(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.0.domain
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn endpoints(&self) -> MutexGuard<'_, Vec<Weak<EndpointShared>>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn bind(&self, endpoint: Weak<EndpointShared>) {
        let mut endpoints = self.endpoints();
        endpoints.retain(|endpoint| endpoint.strong_count() > 0);
        endpoints.push(endpoint);
    }

    pub(crate) fn unbind(&self, endpoint: &Arc<EndpointShared>) {
        self.endpoints().retain(|bound| !std::ptr::eq(bound.as_ptr(), Arc::as_ptr(endpoint)));
    }

    pub(crate) fn address(&self, peer: FiAddr) -> Option<Address> {
        self.table().address(peer)
    }

    /// Whether another process writes it.
    pub(crate) fn is_reader(&self) -> bool {
        self.named.is_reader()
    }

    /// The peer as the writer of a named address vector has it now. This process learns of it if it is new; a slot that has
    /// another peer here is for `refresh`, which ends that one.
    pub(crate) fn published(&self, peer: FiAddr) -> Option<Published> {
        let index = peer.0 as u32;
        let found = self.named.get(index).filter(|found| is_upper(found.upper, peer))?;
        let mut table = self.table();
        if table.is_free(index) && table.find(&found.address).is_none() {
            table.put(index, found);
            table.unannounced.push((peer, found.address));
        }
        Some(found)
    }

    /// The peer as this process took it over from the writer of a named address vector.
    pub(crate) fn taken_over(&self, peer: FiAddr) -> Option<Published> {
        self.table().published(peer.0 as u32).filter(|found| is_upper(found.upper, peer))
    }

    fn check_writable(&self) -> Result<(), DeviceError> {
        if !self.named.is_reader() {
            return Ok(());
        }
        let (object, reason) = ("address vector".into(), "another process writes it".into());
        Err(DeviceError::Inconsistent { object, reason })
    }

    /// Inserts a peer; returns whether it is new, too. The readers of a named address vector take every change of a slot for
    /// another peer, so one that is there already is no change.
    #[inline(always)]
    fn insert(&self, table: &mut Table, address: Address) -> Result<(FiAddr, bool), DeviceError> {
        let (peer, is_new) = table.insert(address)?;
        if is_new {
            let index = peer.0 as u32;
            self.named.set(index, || table.entry(index));
        }
        Ok((peer, is_new))
    }

    /// The peer with an address, or with a queue pair that has it.
    pub(crate) fn find(&self, address: &Address) -> Option<FiAddr> {
        self.table().find_queue_pair(address)
    }
}

fn is_upper(upper: u32, peer: FiAddr) -> bool {
    u64::from(upper) == peer.0 >> 32
}

/// Reports inserted peers to the endpoints.
#[inline(always)]
fn announce(endpoints: &[Weak<EndpointShared>], peers: &[(FiAddr, Address)]) {
    for endpoint in endpoints.iter().filter_map(Weak::upgrade) {
        endpoint.peers_inserted(peers);
    }
}

impl Table {
    fn new(options: &AddressVectorOptions) -> Self {
        let mut table = Self {
            context_bits: options.receive_context_bits.into(),
            generations: match options.kind {
                AddressVectorKind::Table if !options.read_only => Generations::None,
                // A reader has those of the writer, which may be of another kind.
                _ => Generations::OfSlots(Vec::new()),
            },
            ..Self::default()
        };
        let count = options.count.min(MOST_RESERVED);
        table.slots.reserve(count);
        table.by_address.reserve(count, |place| spread(place.hash));
        table
    }

    /// The upper half of the address of the peer in a slot.
    fn upper(&self, index: u32) -> u32 {
        match &self.generations {
            Generations::None => 0,
            Generations::OfSlots(generations) => {
                generations.get(index as usize).copied().unwrap_or_default()
            }
        }
    }

    fn addr(&self, index: u32) -> FiAddr {
        FiAddr(u64::from(self.upper(index)) << 32 | u64::from(index))
    }

    /// The upper half of its address, and the peer in a slot.
    fn entry(&self, index: u32) -> Option<(u32, Address)> {
        let address = self.slots.get(index as usize)?.peer()?;
        Some((self.upper(index), address))
    }

    /// Whether a slot has no peer, nor one that is being removed.
    fn is_free(&self, index: u32) -> bool {
        self.slots.get(index as usize).is_none_or(|slot| *slot == Slot::FREE)
    }

    /// The peer in a slot, as another process has put it there.
    fn published(&self, index: u32) -> Option<Published> {
        let (upper, address) = self.entry(index)?;
        let change = *self.changes.get(index as usize)?;
        Some(Published { change, upper, address })
    }

    /// Puts a peer into a free slot, where another process has it.
    fn put(&mut self, index: u32, peer: Published) -> FiAddr {
        let Published { change, upper, address } = peer;
        let length = self.slots.len().max(index as usize + 1);
        self.slots.resize(length, Slot::FREE);
        self.changes.resize(length, 0);
        self.changes[index as usize] = change;
        if let Generations::OfSlots(generations) = &mut self.generations {
            generations.resize(length, 0);
            generations[index as usize] = upper;
        }
        self.take(index, address, hash(&self.hasher, &address));
        self.addr(index)
    }

    /// The slot of a peer, and the number of its receive context.
    fn locate(&self, peer: FiAddr) -> Option<(u32, u32)> {
        let index = peer.0 as u32;
        let upper = peer.0 >> 32;
        let context = upper.checked_shr(32 - self.context_bits).filter(|_| self.context_bits > 0);
        let context = context.unwrap_or(0);
        let generation = upper - (context << (32 - self.context_bits));
        (generation == u64::from(self.upper(index))).then_some((index, context as u32))
    }

    fn address(&self, peer: FiAddr) -> Option<Address> {
        let (index, context) = self.locate(peer)?;
        let first = self.slots.get(index as usize)?.peer()?;
        match context.checked_sub(1) {
            None => Some(first),
            Some(other) => {
                let contexts = self.contexts.get(&index)?;
                contexts.addresses[..contexts.receive].get(other as usize).copied()
            }
        }
    }

    fn find(&self, address: &Address) -> Option<FiAddr> {
        self.find_hashed(address, hash(&self.hasher, address))
    }

    #[inline(always)]
    fn find_hashed(&self, address: &Address, hash: u32) -> Option<FiAddr> {
        let same = |place: &Place| {
            place.hash == hash && self.slots[place.index as usize] == Slot(*address)
        };
        self.by_address.find(spread(hash), same).map(|place| self.addr(place.index))
    }

    /// Inserts a peer; returns whether it is new, too.
    #[inline(always)]
    fn insert(&mut self, address: Address) -> Result<(FiAddr, bool), DeviceError> {
        let gid = address.gid();
        if gid == Gid::ZERO {
            return Err(DeviceError::BadAddress { gid });
        }
        let hash_of_address = hash(&self.hasher, &address);
        if let Some(known) = self.find_hashed(&address, hash_of_address) {
            return Ok((known, false));
        }
        let limit = self.limit.unwrap_or(MOST_PEERS);
        if self.slots.len() >= limit && self.free.is_empty() {
            return Err(DeviceError::LimitReached { object: "peer", limit });
        }
        let index = self.free.pop_first().unwrap_or_else(|| {
            self.slots.push(Slot::FREE);
            if let Generations::OfSlots(generations) = &mut self.generations {
                generations.push(1);
            }
            self.slots.len() as u32 - 1
        });
        self.take(index, address, hash_of_address);
        Ok((self.addr(index), true))
    }

    #[inline(always)]
    fn take(&mut self, index: u32, address: Address, hash: u32) {
        self.slots[index as usize] = Slot(address);
        let place = Place { hash, index };
        self.by_address.insert_unique(spread(hash), place, |place| spread(place.hash));
    }

    /// Removes a peer from the table; its index stays in use. Returns its address, and its other queue pairs.
    fn begin_removal(&mut self, peer: FiAddr) -> Option<(Address, Contexts)> {
        let (index, 0) = self.locate(peer)? else { return None };
        let address = self.slots.get(index as usize)?.peer()?;
        let same = |other: &Place| other.index == index;
        let hash = spread(hash(&self.hasher, &address));
        if let Ok(entry) = self.by_address.find_entry(hash, same) {
            entry.remove();
        }
        self.slots[index as usize] = Slot::REMOVING;
        Some((address, self.remove_contexts(index)))
    }

    fn free(&mut self, peer: FiAddr) {
        let Some((index, _)) = self.locate(peer) else { return };
        self.slots[index as usize] = Slot::FREE;
        self.free.insert(index);
        if let Generations::OfSlots(generations) = &mut self.generations {
            let last = u32::MAX >> self.context_bits;
            let generation = &mut generations[index as usize];
            *generation = if *generation == last { 1 } else { *generation + 1 };
        }
    }
}

fn hash(hasher: &DefaultHashBuilder, address: &Address) -> u32 {
    let gid = u128::from_le_bytes(address.gid().0);
    let incarnation = u64::from(address.connid()) << 16 | u64::from(address.qpn().0);
    let hash = hasher.hash_one((gid, incarnation));
    (hash ^ hash >> 32) as u32
}

/// A hash of as many bits as the table wants: it takes the place from the lower ones, which stay different, and compares the
/// upper ones.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> Address {
        let mut gid = [1; 16];
        gid[..4].copy_from_slice(&number.to_le_bytes());
        RawAddress { gid, qpn: number as u16, connid: Connid(number) }.into()
    }

    // conformance: C97
    #[test]
    fn million_peers_take_at_most_48_bytes_each_and_are_found() {
        const PEERS: u32 = 1_000_000;
        let mut table = Table::default();
        for number in 0..PEERS {
            assert_eq!(table.insert(address(number)), Ok((FiAddr(u64::from(number)), true)));
        }
        let bytes = table.slots.capacity() * size_of::<Slot>() + table.by_address.allocation_size();
        let each = bytes / PEERS as usize;
        println!("{each} bytes a peer");
        assert!(each <= 48, "{each} bytes a peer");
        for number in (0..PEERS).step_by(997) {
            let peer = FiAddr(u64::from(number));
            assert_eq!(table.address(peer), Some(address(number)));
            assert_eq!(table.find(&address(number)), Some(peer));
        }
        assert_eq!(table.find(&address(PEERS)), None);
    }

    #[test]
    fn index_of_a_removed_peer_is_free_only_after_its_release() {
        let mut table = Table::default();
        let (first, _) = table.insert(address(1)).unwrap();
        let (second, _) = table.insert(address(2)).unwrap();
        assert_eq!(table.begin_removal(first), Some((address(1), Contexts::default())));
        assert_eq!((table.begin_removal(first), table.address(first)), (None, None));
        assert_eq!(
            table.insert(address(3)),
            Ok((FiAddr(2), true)),
            "the first index is not free yet"
        );
        table.free(first);
        assert_eq!(table.insert(address(1)), Ok((first, true)));
        assert_eq!(table.insert(address(1)), Ok((first, false)));
        assert_eq!(table.address(second), Some(address(2)));
    }

    #[cfg(feature = "sim")]
    #[test]
    fn operation_puts_no_peer_of_another_process_into_a_slot_that_is_being_freed() {
        let domain = crate::Fabric::local(crate::LocalOptions::default()).domain().unwrap();
        let options =
            AddressVectorOptions::new().name(format!("efa-test-freed-{}", std::process::id()));
        let writer = AddressVector::new(&domain, options.clone()).unwrap();
        let reader = AddressVector::new(&domain, options.read_only()).unwrap();
        let peer = writer.insert(address(1)).unwrap();
        assert_eq!(reader.len(), 1);
        // As `refresh` in another thread does it, before and after it tells the endpoints.
        reader.0.table().begin_removal(peer).unwrap();
        assert!(reader.0.published(peer).is_some());
        reader.0.table().slots[0] = Slot::FREE;
        assert_eq!(reader.len(), 1);
        writer.remove(peer).unwrap();
        assert_eq!(reader.len(), 0);
    }

    // conformance: C89
    #[test]
    fn generations_of_a_map_wrap_around_within_their_bits() {
        for bits in [0, 16] {
            let options =
                AddressVectorOptions::new().kind(AddressVectorKind::Map).receive_context_bits(bits);
            let mut table = Table::new(&options);
            let (first, _) = table.insert(address(1)).unwrap();
            assert_eq!(first, FiAddr(1 << 32));
            let last = u32::MAX >> bits;
            if let Generations::OfSlots(generations) = &mut table.generations {
                generations[0] = last;
            }
            let peer = table.find(&address(1)).unwrap();
            assert_eq!(peer, FiAddr(u64::from(last) << 32));
            assert_eq!((table.address(first), table.address(peer)), (None, Some(address(1))));
            table.begin_removal(peer).unwrap();
            table.free(peer);
            assert_eq!(table.insert(address(2)), Ok((first, true)));
        }
    }
}
