//! A queue pair whose device matches tagged messages: the tag list of a TM-SRQ in front of any other
//! queue pair.
//!
//! ```text
//!                   TagList::post: ADD DEL SYNC
//!                        │ carried out some time later, in order
//!                        ▼
//!   inner queue pair  ┌───────────┐ ──► Receive, reported as Matched      its tag fits an entry
//!   ── datagrams ───► │ MatchList │ ──► Receive, reported as Unexpected   has a tag, is counted
//!                     └───────────┘ ──► Receive, not reported             has no tag
//! ```
//!
//! The inner one must keep the order of each sender ([`Reorder::None`](crate::local::Reorder::None)).

use std::collections::{HashMap, VecDeque};

use efa_device::{
    Access, AddressHandle, Completion, Destination, DeviceAttributes, DeviceError, Gid, Lending,
    PostError, QueuePair, QueuePairAddress, RdmaRequest, RegisterError, SendRequest, TagChange,
    TagCommand, TagList, TagListLimits, TagReport, Time,
};
use efa_match::{Entry, MatchList, Synchronisation};

/// Finds the tag of a datagram that begins a tagged message. Other datagrams have none.
pub type TagOf = fn(&[u8]) -> Option<u64>;

/// A command that was posted, with its entry's handle.
#[derive(Debug)]
struct Posted {
    command: TagCommand,
    handle: u32,
}

/// The tag list of a [`TagQueuePair`].
#[derive(Debug)]
pub struct ModelTagList {
    limits: TagListLimits,
    list: MatchList,
    /// The receive that each entry was added for, by handle.
    receives: HashMap<u32, u64>,
    next_handle: u32,
    commands: VecDeque<Posted>,
    reports: VecDeque<TagReport>,
    matched: u64,
}

impl ModelTagList {
    fn new(limits: TagListLimits) -> Self {
        Self {
            limits,
            list: MatchList::new(Synchronisation::Required, 0),
            receives: HashMap::new(),
            next_handle: 0,
            commands: VecDeque::new(),
            reports: VecDeque::new(),
            matched: 0,
        }
    }

    /// Carries out the next command.
    fn carry_out(&mut self) {
        let Some(Posted { command, handle }) = self.commands.pop_front() else { return };
        let TagCommand { id, change, unexpected, signalled } = command;
        let succeeded = match change {
            TagChange::Add { receive, tag, mask } => {
                let fits = self.list.len() < self.limits.max_tags as usize;
                if fits {
                    self.receives.insert(handle, receive);
                    self.list.add(Entry { handle, tag, mask }, unexpected);
                } else {
                    self.list.sync(unexpected);
                }
                fits
            }
            TagChange::Delete { handle } => {
                self.receives.remove(&handle);
                self.list.delete(handle, unexpected).is_some()
            }
            TagChange::Sync => {
                self.list.sync(unexpected);
                true
            }
        };
        let sync_required = self.list.sync_required();
        if signalled || !succeeded {
            self.reports.push_back(TagReport::CommandDone { id, succeeded, sync_required });
        }
    }

    /// Searches the list for the tag of a datagram and reports the outcome.
    fn search(&mut self, tag: u64) {
        let entry = self.list.find(tag).and_then(|at| self.list.remove(at));
        let receive = entry.and_then(|entry| self.receives.remove(&entry.handle));
        self.reports.push_back(match receive {
            Some(receive) => {
                self.matched += 1;
                TagReport::Matched { receive }
            }
            None => {
                self.list.count_unexpected();
                TagReport::Unexpected
            }
        });
    }
}

impl TagList for ModelTagList {
    fn limits(&self) -> TagListLimits {
        self.limits
    }

    fn post(&mut self, command: TagCommand) -> Result<u32, DeviceError> {
        let depth = self.limits.max_ops as usize;
        if self.commands.len() >= depth {
            return Err(DeviceError::QueueFull { depth });
        }
        let handle = self.next_handle;
        self.next_handle = handle.wrapping_add(1);
        self.commands.push_back(Posted { command, handle });
        Ok(handle)
    }

    fn poll(&mut self) -> Option<TagReport> {
        self.reports.pop_front()
    }
}

/// A queue pair with a tag list.
#[derive(Debug)]
pub struct TagQueuePair<Q> {
    inner: Q,
    list: ModelTagList,
    tag_of: TagOf,
    /// Decides when commands are carried out, among the datagrams.
    random: fastrand::Rng,
    now: Time,
}

impl<Q: QueuePair> TagQueuePair<Q> {
    /// Puts a tag list in front of a queue pair. The seed decides when commands are carried out.
    pub fn new(inner: Q, limits: TagListLimits, tag_of: TagOf, seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { inner, list: ModelTagList::new(limits), tag_of, random, now: Time::ZERO }
    }

    /// Messages that matched an entry.
    pub fn matched(&self) -> u64 {
        self.list.matched
    }

    /// The entries.
    pub fn list(&self) -> &MatchList {
        &self.list.list
    }
}

impl<Q: QueuePair> QueuePair for TagQueuePair<Q> {
    type Packet = Q::Packet;
    type Region = Q::Region;
    type TagList = ModelTagList;

    fn attributes(&self) -> &DeviceAttributes {
        self.inner.attributes()
    }

    fn address(&self) -> QueuePairAddress {
        self.inner.address()
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        self.inner.create_address_handle(gid)
    }

    fn destroy_address_handle(&mut self, handle: AddressHandle) {
        self.inner.destroy_address_handle(handle);
    }

    fn gid_of(&self, handle: AddressHandle) -> Option<Gid> {
        self.inner.gid_of(handle)
    }

    fn allocate_packet(&mut self) -> Result<Q::Packet, DeviceError> {
        self.inner.allocate_packet()
    }

    fn prepare(&mut self, to: Destination) -> Result<(), DeviceError> {
        self.inner.prepare(to)
    }

    fn post_send(&mut self, request: SendRequest<Q::Packet>) -> Result<(), PostError<Q::Packet>> {
        self.inner.post_send(request)
    }

    fn post_receive(&mut self, packet: Q::Packet) -> Result<(), PostError<Q::Packet>> {
        self.inner.post_receive(packet)
    }

    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<Q::Region, RegisterError> {
        self.inner.register(memory, access)
    }

    fn register_lent(&self, memory: Lending<'_>, access: Access) -> Result<Q::Region, DeviceError> {
        self.inner.register_lent(memory, access)
    }

    fn region(&self, key: u32) -> Option<Q::Region> {
        self.inner.region(key)
    }

    fn post_read(&mut self, request: RdmaRequest<Q::Region>) -> Result<(), DeviceError> {
        self.inner.post_read(request)
    }

    fn post_write(
        &mut self,
        request: RdmaRequest<Q::Region>,
        immediate: Option<u32>,
    ) -> Result<(), DeviceError> {
        self.inner.post_write(request, immediate)
    }

    fn tag_list(&mut self) -> Option<&mut ModelTagList> {
        Some(&mut self.list)
    }

    fn poll(&mut self, now: Time) -> Option<Completion<Q::Packet>> {
        self.now = now;
        while !self.list.commands.is_empty() && self.random.bool() {
            self.list.carry_out();
        }
        let completion = self.inner.poll(now)?;
        if let Completion::Receive { packet, length, .. } = &completion
            && let Some(tag) = (self.tag_of)(packet.as_ref().get(..*length).unwrap_or_default())
        {
            self.list.search(tag);
        }
        Some(completion)
    }

    fn next_event(&self) -> Option<Time> {
        let is_idle = self.list.commands.is_empty() && self.list.reports.is_empty();
        if is_idle { self.inner.next_event() } else { Some(self.now) }
    }
}
