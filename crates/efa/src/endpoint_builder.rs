//! Builds an endpoint: binds it to other objects, then enables it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use efa_device::{Qkey, QueuePairOptions};
use efa_handshake::Extras;
use efa_lock::Mutex as BiasedMutex;
use efa_rdm::{Config, HashSeed};
use parking_lot::Mutex;

use crate::address_vector::AddressVector;
use crate::any_driver::CreatedDriver;
use crate::attributes::{
    EndpointAttributes, EndpointKind, MessageOrder, ReceiveAttributes, TransmitAttributes,
};
use crate::background::Background;
use crate::capabilities::{Capabilities, OperationFlags};
use crate::completion_queue::CompletionQueue;
use crate::connection::EventQueue;
use crate::counter::{Counted, Counter, Counters};
use crate::domain::Domain;
use crate::driver::{Bindings, Sources, Unreported};
use crate::endpoint::{Endpoint, Shared};
use crate::endpoint_options::{ContextOptions, EndpointOptions, Receiving, Side, SideProperties};
use crate::error::{Bound, EnableError};
use crate::reporters::Signal;
use crate::send_budget::SendBudget;
use crate::shared_receive_queue::{Member, SharedReceiveQueue};
use crate::usable::Usable;
use crate::wait::WaitObject;

/// Capabilities that need matching or order, which an endpoint that receives in place lacks.
const NEED_MATCHING: Capabilities = Capabilities::TAGGED
    .union(Capabilities::ATOMIC)
    .union(Capabilities::MULTI_RECV)
    .union(Capabilities::DIRECTED_RECV);

/// Capabilities that receives of a shared queue lack.
const NOT_SHARED: Capabilities = Capabilities::MULTI_RECV.union(Capabilities::DIRECTED_RECV);

/// Binds an object of which an endpoint has one.
fn fill<T>(
    slot: &mut Option<T>,
    object: T,
    is_ours: bool,
    bound: Bound,
) -> Result<(), EnableError> {
    match slot {
        _ if !is_ours => Err(EnableError::OtherDomain(bound)),
        Some(_) => Err(EnableError::Twice(bound)),
        None => {
            *slot = Some(object);
            Ok(())
        }
    }
}

/// Which operations of an endpoint complete on a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Sends, writes, reads and atomics (`FI_TRANSMIT`).
    Transmit,
    /// Receives, and remote writes with data (`FI_RECV`).
    Receive,
    /// All.
    Both,
}

/// An endpoint that is not enabled. It takes completion queues, an address vector and counters, and
/// can't transfer anything: that is what [`Endpoint`] is for.
///
/// ```compile_fail,E0599
/// # use efa::{EndpointOptions, Fabric, LocalOptions, Receive};
/// let domain = Fabric::local(LocalOptions::default()).domain()?;
/// let disabled = domain.endpoint(EndpointOptions::default());
/// disabled.receive(Receive::untagged(), vec![0; 64], 1)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// An enabled endpoint can't be bound to anything:
///
/// ```compile_fail,E0599
/// # use efa::{AddressVector, Endpoint};
/// # fn f(endpoint: Endpoint, addresses: AddressVector) {
/// endpoint.bind_address_vector(&addresses);
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an endpoint does nothing before it is enabled"]
pub struct EndpointBuilder {
    domain: Domain,
    kind: EndpointKind,
    options: EndpointOptions,
    transmit: Option<CompletionQueue>,
    receive: Option<CompletionQueue>,
    addresses: Option<AddressVector>,
    counters: Counters,
    shared_receives: Option<SharedReceiveQueue>,
    send_budget: Option<SendBudget>,
    events: Option<EventQueue>,
    /// What is set at events besides.
    signal: Option<Arc<Signal>>,
    /// Whether operations of the transmit and the receive side complete only if they are signaled.
    selective: [bool; 2],
    /// The first error of a bind call; `enable` returns it.
    error: Option<EnableError>,
}

impl EndpointBuilder {
    pub(crate) fn new(domain: &Domain, options: EndpointOptions) -> Self {
        Self {
            domain: domain.clone(),
            kind: EndpointKind::ReliableDatagram,
            options,
            transmit: None,
            receive: None,
            addresses: None,
            counters: Counters::default(),
            shared_receives: None,
            send_budget: None,
            events: None,
            signal: None,
            selective: [false; 2],
            error: None,
        }
    }

    /// Makes it one with a connection.
    pub(crate) fn connected(self) -> Self {
        Self { kind: EndpointKind::Connected, ..self }
    }

    /// Binds a completion queue. Each direction needs one, even if nothing is ever sent or received.
    pub fn bind_completion_queue(mut self, queue: &CompletionQueue, direction: Direction) -> Self {
        let is_ours = queue.shared().domain.is(&self.domain);
        if direction != Direction::Receive {
            let bound = fill(&mut self.transmit, queue.bound(), is_ours, Bound::TransmitQueue);
            self = self.note(bound);
        }
        if direction != Direction::Transmit {
            let bound = fill(&mut self.receive, queue.bound(), is_ours, Bound::ReceiveQueue);
            self = self.note(bound);
        }
        self
    }

    /// Keeps the error of a bind call, if it has one and is the first.
    fn note(mut self, bound: Result<(), EnableError>) -> Self {
        self.error = self.error.or(bound.err());
        self
    }

    /// Binds the queue of this direction selectively (`FI_SELECTIVE_COMPLETION`): operations that succeed have
    /// no completion unless they are signaled ([`Message::signaled`](crate::Message::signaled),
    /// [`Receive::signaled`](crate::Receive::signaled), [`Rma::signaled`](crate::Rma::signaled), or
    /// [`OperationFlags::COMPLETION`] among their flags or the default flags that were
    /// [set](ContextOptions::flags)); their buffers are dropped. Failed ones always have. So have messages in place,
    /// released multi-receive buffers, and peers' writes with data. Counters count all.
    pub fn selective(mut self, direction: Direction) -> Self {
        self.selective[0] |= direction != Direction::Receive;
        self.selective[1] |= direction != Direction::Transmit;
        self
    }

    /// As if [`selective`](Self::selective) had not been called.
    #[cfg(feature = "tokio")]
    pub(crate) fn report_all(self) -> Self {
        Self { selective: [false; 2], ..self }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn shares_receives(&self) -> bool {
        self.shared_receives.is_some()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn has_completion_queue(&self) -> bool {
        self.transmit.is_some() || self.receive.is_some()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn send_budget(&self) -> Option<&SendBudget> {
        self.send_budget.as_ref()
    }

    /// Has this signal set by events.
    #[cfg(feature = "tokio")]
    pub(crate) fn signal_events(self, signal: &Arc<Signal>) -> Self {
        Self { signal: Some(Arc::clone(signal)), ..self }
    }

    /// Binds an event queue of the fabric (`fi_ep_bind` of an `fi_eq`): the endpoint's [events](crate::Event) come to it as
    /// [`ControlEvent::Endpoint`](crate::ControlEvent::Endpoint), and wake who waits for it.
    ///
    /// Events come up while the endpoint is progressed: by reads of its completion queues and counters, by its
    /// operations, or by the thread of a domain with [automatic progress](crate::Progress::Automatic). Reading the event
    /// queue doesn't progress it. So a program with one thread waits for a completion queue as well: both can be in a
    /// [wait set](crate::WaitSet), or have descriptors for one call of poll.
    pub fn bind_event_queue(mut self, events: &EventQueue) -> Self {
        let bound = match self.domain.fabric().is(events.fabric()) {
            true => fill(&mut self.events, events.bound(), true, Bound::EventQueue),
            false => Err(EnableError::OtherFabric(Bound::EventQueue)),
        };
        self.note(bound)
    }

    /// Binds the address vector.
    pub fn bind_address_vector(mut self, addresses: &AddressVector) -> Self {
        let is_ours = addresses.shared().domain.is(&self.domain);
        let bound = fill(&mut self.addresses, addresses.clone(), is_ours, Bound::AddressVector);
        self.note(bound)
    }

    /// Binds a queue that the endpoint takes its receives from. Receives are posted to that queue, and not to the
    /// endpoint.
    pub fn bind_shared_receive_queue(mut self, queue: &SharedReceiveQueue) -> Self {
        let is_ours = queue.is_of(&self.domain);
        let bound =
            fill(&mut self.shared_receives, queue.clone(), is_ours, Bound::SharedReceiveQueue);
        self.note(bound)
    }

    /// Binds a budget that the endpoint's sends, writes, reads and atomics take a share of.
    pub fn bind_send_budget(mut self, budget: &SendBudget) -> Self {
        let is_ours = budget.is_of(&self.domain);
        let bound = fill(&mut self.send_budget, budget.clone(), is_ours, Bound::SendBudget);
        self.note(bound)
    }

    /// Binds a counter of some kinds of operations, which also complete on their queues.
    pub fn bind_counter(mut self, counter: &Counter, kinds: Counted) -> Self {
        if !counter.is_of(&self.domain) {
            self.error.get_or_insert(EnableError::OtherDomain(Bound::Counter));
        } else if !self.counters.add(counter, kinds) {
            self.error.get_or_insert(EnableError::CountedTwice(kinds));
        }
        self
    }

    /// Enables the endpoint: from now on it sends and receives.
    ///
    /// # Errors
    /// Something is missing, bound twice or of another domain; an option is invalid; the device fails.
    pub fn enable(mut self) -> Result<Endpoint, EnableError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let transmit = self.transmit.take().ok_or(EnableError::Missing(Bound::TransmitQueue))?;
        let receive = self.receive.take().ok_or(EnableError::Missing(Bound::ReceiveQueue))?;
        let addresses = self.addresses.take().ok_or(EnableError::Missing(Bound::AddressVector))?;
        self.check()?;
        let sides = self.sides()?;
        let counters: Vec<Counter> = self.counters.iter().cloned().collect();
        let background = self.domain.background().map(Background::wait_object);
        let waiters = waiters(&transmit, &receive, &counters, background);
        let queue_pair = self.queue_pair(!waiters.is_empty());
        let config = self.config();
        let id = self.domain.next_endpoint_id();
        let member = self.shared_receives.as_ref().map(SharedReceiveQueue::join);
        let number = member.as_ref().map(Member::number);
        let bindings = Bindings {
            endpoint: id,
            transmit: transmit.shared().clone(),
            receive: receive.shared().clone(),
            addresses: addresses.shared().clone(),
            sources: sides.sources(),
            level: sides.transmit.flags.level(),
            unreported: self.unreported(),
            counters: std::mem::take(&mut self.counters),
            send_budget: self.send_budget.clone(),
            keys: self.domain.keys().cloned(),
            waiters,
            signals: self.signals(),
            member,
        };
        let device = self.domain.device();
        let receiving = self.options.receiving;
        let created = CreatedDriver::new(device, queue_pair, config.clone(), receiving, bindings)?;
        let shared = Arc::new(Shared {
            id,
            address: created.address,
            capabilities: sides.endpoint,
            transmittable: Usable::new(sides.transmit.capabilities),
            receivable: Usable::new(self.receivable(&sides)),
            local_registration: self.domain.local_registration(),
            context: self.options.context,
            attributes: EndpointAttributes::of(self.kind, &config, self.options.max_message_size),
            transmit: self.transmit_attributes(&sides, &config, created.inject_limit),
            receive: self.receive_attributes(&sides, &config),
            driver: BiasedMutex::new(created.driver),
            copies: Mutex::default(),
            domain: self.domain,
        });
        let shared_receives = self.shared_receives;
        let endpoint = Endpoint { shared, transmit, receive, addresses, counters, shared_receives };
        endpoint.introduce(number);
        if let Some(events) = &self.events {
            events.reporters().add(&endpoint.shared);
        }
        Ok(endpoint)
    }

    /// Whether the options can be met together.
    fn check(&self) -> Result<(), EnableError> {
        let capabilities = self.options.capabilities;
        let not_offered = capabilities - Capabilities::OFFERED;
        if !not_offered.is_empty() {
            return Err(EnableError::NotOffered(not_offered));
        }
        let is_in_place = self.options.receiving == Receiving::InPlace;
        let need_matching = capabilities & NEED_MATCHING;
        if is_in_place && !need_matching.is_empty() {
            return Err(EnableError::NotInPlace(need_matching));
        }
        if is_in_place && self.shared_receives.is_some() {
            return Err(EnableError::SharedInPlace);
        }
        let (options, device) = (&self.options, self.domain.device().attributes());
        for (option, value, most) in [
            ("send_depth", options.send_depth, device.max_send),
            ("receive_depth", options.receive_depth, device.max_receive),
        ] {
            if !(1..=most).contains(&value) {
                return Err(EnableError::OutOfRange { option, value, most });
            }
        }
        if let Some(connid) = options.connid.filter(|connid| *connid > CONNID_MASK) {
            return Err(EnableError::ConnidOutOfRange { connid });
        }
        Ok(())
    }

    fn sides(&self) -> Result<Sides, EnableError> {
        let endpoint = self.options.capabilities.enabled();
        let transmit = self.options.transmit.resolve(Side::Transmit, endpoint)?;
        let mut receive = self.options.receive.resolve(Side::Receive, endpoint)?;
        if self.shared_receives.is_some() {
            receive.capabilities -= NOT_SHARED;
        }
        Ok(Sides { endpoint, transmit, receive })
    }

    fn queue_pair(&self, is_waitable: bool) -> QueuePairOptions {
        let options = &self.options;
        QueuePairOptions::default().with(|queue_pair| {
            queue_pair.qkey = Qkey(options.connid.unwrap_or_else(|| random() as u32 & CONNID_MASK));
            queue_pair.send_depth = options.send_depth;
            queue_pair.receive_depth = options.receive_depth;
            queue_pair.rnr_retry = options.rnr_retry;
            queue_pair.waitable = is_waitable;
            queue_pair.now = self.domain.fabric().now();
            queue_pair.idle_packets = options.protocol.min_receive_buffers;
            let extras = options.protocol.profile.extras;
            queue_pair.unsolicited_write_receive = extras.contains(Extras::UNSOLICITED_WRITE_RECV);
        })
    }

    fn config(&self) -> Config {
        let hash_seed = self.options.hash_seed.unwrap_or_else(|| HashSeed(random()));
        self.options.protocol.clone().with(|config| config.hash_seed = hash_seed)
    }

    fn signals(&self) -> Vec<Arc<Signal>> {
        let of_queue = self.events.as_ref().map(|events| events.reporters().signal());
        of_queue.into_iter().chain(&self.signal).cloned().collect()
    }

    /// Of the transmit and the receive side.
    fn unreported(&self) -> [Unreported; 2] {
        let is_signaled = |options: &ContextOptions| {
            options.flags.is_some_and(|flags| flags.contains(OperationFlags::COMPLETION))
        };
        [
            Unreported::of(self.selective[0], is_signaled(&self.options.transmit)),
            Unreported::of(self.selective[1], is_signaled(&self.options.receive)),
        ]
    }

    /// What receives of the endpoint itself can do: nothing, if it has a shared queue.
    fn receivable(&self, sides: &Sides) -> Capabilities {
        match &self.shared_receives {
            None => sides.receive.capabilities,
            Some(_) => Capabilities::empty(),
        }
    }

    fn transmit_attributes(
        &self,
        sides: &Sides,
        config: &Config,
        inject_limit: usize,
    ) -> TransmitAttributes {
        let most_sends = self.send_budget.as_ref().map_or(usize::MAX, SendBudget::limit);
        TransmitAttributes {
            capabilities: sides.transmit.capabilities,
            flags: sides.transmit.flags,
            size: config.max_sends.min(most_sends),
            ..TransmitAttributes::of(sides.endpoint, config, inject_limit)
        }
    }

    fn receive_attributes(&self, sides: &Sides, config: &Config) -> ReceiveAttributes {
        ReceiveAttributes {
            capabilities: sides.receive.capabilities,
            flags: sides.receive.flags,
            message_order: match self.options.receiving {
                Receiving::Matched => MessageOrder::SendAfterSend,
                Receiving::InPlace => MessageOrder::Unordered,
            },
            size: match &self.shared_receives {
                None => config.max_receives,
                Some(queue) => queue.capacity(),
            },
            ..ReceiveAttributes::of(sides.endpoint, config)
        }
    }
}

/// Capabilities of an endpoint, and of its sides with their default flags.
#[derive(Debug)]
struct Sides {
    endpoint: Capabilities,
    transmit: SideProperties,
    receive: SideProperties,
}

impl Sides {
    fn sources(&self) -> Sources {
        match self.endpoint.contains(Capabilities::SOURCE) {
            true => Sources::Reported,
            false => Sources::Omitted,
        }
    }
}

impl Endpoint {
    /// Adds a new endpoint to the objects that progress it or inform it. `member` is its number in a shared receive queue.
    fn introduce(&self, member: Option<u32>) {
        let Self { shared, transmit, receive, addresses, counters, shared_receives } = self;
        // A counter of several kinds is bound as many times, and progresses the endpoint as often.
        for counter in counters {
            counter.bind(Arc::clone(shared));
        }
        if let Some(background) = shared.domain.background() {
            background.bind(Arc::clone(shared));
        }
        addresses.shared().bind(Arc::downgrade(shared));
        transmit.shared().bind(Arc::clone(shared));
        if !Arc::ptr_eq(transmit.shared(), receive.shared()) {
            receive.shared().bind(Arc::clone(shared));
        }
        if let (Some(queue), Some(number)) = (shared_receives, member) {
            queue.introduce(number, Arc::downgrade(shared));
        }
    }
}

/// What threads sleep on that wait for these objects, each once.
fn waiters(
    transmit: &CompletionQueue,
    receive: &CompletionQueue,
    counters: &[Counter],
    background: Option<&Arc<WaitObject>>,
) -> Vec<Arc<WaitObject>> {
    let queues = [transmit, receive].map(|queue| queue.shared().wait_object());
    let mut waiters: Vec<Arc<WaitObject>> = Vec::new();
    for object in queues
        .into_iter()
        .chain(counters.iter().map(Counter::wait_object))
        .chain([background])
        .flatten()
    {
        if !waiters.iter().any(|waiter| Arc::ptr_eq(waiter, object)) {
            waiters.push(Arc::clone(object));
        }
    }
    waiters
}

/// Connids have 31 bits, as those of libfabric: the queue keys of EFA interfaces for programs without privileges.
const CONNID_MASK: u32 = u32::MAX >> 1;

/// A random number: the standard library seeds its hash tables from the operating system. A forked child has the seed
/// of its parent, but another number as a process.
pub(crate) fn random() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}
