//! A queue pair whose device matches tagged messages, of which EFA has none: the list of a TM-SRQ in
//! front of any other queue pair.
//!
//! ```text
//!                   post_tag_command: ADD DEL SYNC
//!                        │ carried out some time later, in order
//!                        ▼
//!   inner queue pair  ┌───────────┐ ──► Tagged { receive: Some }   fits an entry
//!   ── datagrams ───► │ MatchList │ ──► Tagged { receive: None }   has a tag, is counted
//!                     └───────────┘ ──► Receive                    has no tag
//! ```
//!
//! The inner one must keep the order of each sender ([`Reorder::None`](crate::local::Reorder::None)).

use std::collections::{HashMap, VecDeque};

use efa_device::{
    Access, AddressHandle, Completion, DeviceAttributes, DeviceError, Gid, PostError, QueuePair,
    QueuePairAddress, RdmaRequest, RegisterError, SendRequest, TagChange, TagCommand,
    TagListLimits, Time,
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

/// A queue pair with a list of tags.
#[derive(Debug)]
pub struct TagQueuePair<Q> {
    inner: Q,
    attributes: DeviceAttributes,
    limits: TagListLimits,
    tag_of: TagOf,
    list: MatchList,
    /// The receives of the entries, by handle.
    receives: HashMap<u32, u64>,
    next_handle: u32,
    commands: VecDeque<Posted>,
    /// When commands are carried out, among the datagrams.
    random: fastrand::Rng,
    matched: u64,
    now: Time,
}

impl<Q: QueuePair> TagQueuePair<Q> {
    /// Puts a list in front of a queue pair. The seed decides when commands are carried out.
    pub fn new(inner: Q, limits: TagListLimits, tag_of: TagOf, seed: u64) -> Self {
        let attributes = DeviceAttributes { tag_list: Some(limits), ..inner.attributes().clone() };
        Self {
            inner,
            attributes,
            limits,
            tag_of,
            list: MatchList::new(Synchronisation::Required, 0),
            receives: HashMap::new(),
            next_handle: 0,
            commands: VecDeque::new(),
            random: fastrand::Rng::with_seed(seed),
            matched: 0,
            now: Time::ZERO,
        }
    }

    /// Messages that went to an entry.
    pub fn matched(&self) -> u64 {
        self.matched
    }

    /// The list.
    pub fn list(&self) -> &MatchList {
        &self.list
    }

    /// Carries out the next command; gives its completion, if one is due.
    fn carry_out(&mut self) -> Option<Completion<Q::Packet>> {
        let Posted { command, handle } = self.commands.pop_front()?;
        let TagCommand { id, change, unexpected, signalled } = command;
        let succeeded = match change {
            TagChange::Add { receive, tag, mask } => {
                let has_room = self.list.len() < self.limits.max_tags as usize;
                if has_room {
                    self.receives.insert(handle, receive);
                    self.list.add(Entry { handle, tag, mask }, unexpected);
                } else {
                    self.list.sync(unexpected);
                }
                has_room
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
        let is_due = signalled || !succeeded;
        is_due.then_some(Completion::TagCommand { id, succeeded, sync_required })
    }

    /// Who gets a datagram with this tag.
    fn find(&mut self, tag: u64) -> Option<u64> {
        let entry = self.list.find(tag).and_then(|at| self.list.remove(at));
        let Some(Entry { handle, .. }) = entry else {
            self.list.count_unexpected();
            return None;
        };
        self.matched += 1;
        self.receives.remove(&handle)
    }
}

impl<Q: QueuePair> QueuePair for TagQueuePair<Q> {
    type Packet = Q::Packet;
    type Region = Q::Region;

    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
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

    fn allocate_packet(&mut self) -> Result<Q::Packet, DeviceError> {
        self.inner.allocate_packet()
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

    fn post_tag_command(&mut self, command: TagCommand) -> Result<u32, DeviceError> {
        if self.commands.len() >= self.limits.max_ops as usize {
            return Err(DeviceError::QueueFull { depth: self.limits.max_ops as usize });
        }
        let handle = self.next_handle;
        self.next_handle = handle.wrapping_add(1);
        self.commands.push_back(Posted { command, handle });
        Ok(handle)
    }

    fn poll(&mut self, now: Time) -> Option<Completion<Q::Packet>> {
        self.now = now;
        loop {
            if !self.commands.is_empty() && self.random.bool() {
                if let Some(completion) = self.carry_out() {
                    return Some(completion);
                }
                continue;
            }
            return match self.inner.poll(now) {
                Some(Completion::Receive { packet, length, source, immediate }) => {
                    let bytes = packet.as_ref().get(..length).unwrap_or_default();
                    Some(match (self.tag_of)(bytes) {
                        Some(tag) => {
                            let receive = self.find(tag);
                            Completion::Tagged { packet, length, source, receive }
                        }
                        None => Completion::Receive { packet, length, source, immediate },
                    })
                }
                other => other,
            };
        }
    }

    fn next_event(&self) -> Option<Time> {
        if self.commands.is_empty() { self.inner.next_event() } else { Some(self.now) }
    }
}
