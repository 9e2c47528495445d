//! Builds a scalable endpoint.

use std::sync::Arc;

use super::{NoSuchContext, ScalableEndpoint};
use crate::address_vector::AddressVector;
use crate::attributes::{EndpointAttributes, EndpointKind};
use crate::completion_queue::CompletionQueue;
use crate::connection::EventQueue;
use crate::counter::{Counted, Counter};
use crate::domain::Domain;
use crate::endpoint::Endpoint;
use crate::endpoint_builder::{Direction, EndpointBuilder};
use crate::endpoint_options::{ContextOptions, EndpointOptions, Receiving};
use crate::error::{Bound, EnableError};
use crate::info::Info;
use crate::scalable_address::ScalableAddress;
use crate::send_budget::SendBudget;
use crate::shared_receive_queue::SharedReceiveQueue;

/// Options of a scalable endpoint.
///
/// ```
/// use efa::ScalableOptions;
/// let options = ScalableOptions::new().transmit_contexts(4).receive_contexts(2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScalableOptions {
    /// Transmit contexts, at least 1 and at most
    /// [`DomainLimits::endpoint_transmit_contexts`](crate::DomainLimits); 1 by default.
    pub transmit_contexts: usize,
    /// Receive contexts, at least 1 and at most
    /// [`DomainLimits::endpoint_receive_contexts`](crate::DomainLimits); 1 by default.
    pub receive_contexts: usize,
    /// Options of each queue pair. `transmit` and `receive` are those of contexts that get none of their own. If a
    /// connid is given, each further queue pair has the next number.
    pub endpoint: EndpointOptions,
}

impl Default for ScalableOptions {
    fn default() -> Self {
        let endpoint = EndpointOptions::default();
        Self { transmit_contexts: 1, receive_contexts: 1, endpoint }
    }
}

impl ScalableOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`transmit_contexts`](Self#structfield.transmit_contexts).
    #[must_use]
    pub fn transmit_contexts(self, transmit_contexts: usize) -> Self {
        Self { transmit_contexts, ..self }
    }

    /// Sets [`receive_contexts`](Self#structfield.receive_contexts).
    #[must_use]
    pub fn receive_contexts(self, receive_contexts: usize) -> Self {
        Self { receive_contexts, ..self }
    }

    /// Sets [`endpoint`](Self#structfield.endpoint).
    #[must_use]
    pub fn endpoint(self, endpoint: EndpointOptions) -> Self {
        Self { endpoint, ..self }
    }
}

impl From<&Info> for ScalableOptions {
    /// Contexts, capabilities and default flags of an entry.
    fn from(info: &Info) -> Self {
        Self::new()
            .transmit_contexts(info.endpoint.transmit_contexts)
            .receive_contexts(info.endpoint.receive_contexts)
            .endpoint(EndpointOptions::from(info))
    }
}

/// What is bound to the contexts of one direction.
#[derive(Debug)]
struct Side {
    direction: &'static str,
    /// Completion queue and options of each context, if it has some of its own.
    contexts: Vec<(Option<CompletionQueue>, Option<ContextOptions>)>,
    /// How many contexts were asked for, and how many there can be.
    asked: usize,
    limit: usize,
    bound: Bound,
}

impl Side {
    fn at(
        &mut self,
        index: usize,
    ) -> Result<&mut (Option<CompletionQueue>, Option<ContextOptions>), EnableError> {
        let (direction, contexts) = (self.direction, self.contexts.len());
        let found = self.contexts.get_mut(index);
        found.ok_or(EnableError::NoSuchContext(NoSuchContext { direction, index, contexts }))
    }

    fn bind(&mut self, index: usize, queue: &CompletionQueue) -> Result<(), EnableError> {
        let bound = self.bound;
        match self.at(index)?.0.replace(queue.bound()) {
            None => Ok(()),
            Some(_) => Err(EnableError::Twice(bound)),
        }
    }

    fn check(&self) -> Result<(), EnableError> {
        let &Self { direction, asked, limit, .. } = self;
        match (1..=limit).contains(&asked) {
            true => Ok(()),
            false => Err(EnableError::ContextCount { direction, asked, limit }),
        }
    }
}

/// A scalable endpoint that is not enabled. It takes completion queues, an address vector and counters, and can't
/// transfer anything.
#[derive(Debug)]
#[must_use = "an endpoint does nothing before it is enabled"]
pub struct ScalableEndpointBuilder {
    domain: Domain,
    options: EndpointOptions,
    transmit: Side,
    receive: Side,
    queues: Vec<(CompletionQueue, Direction)>,
    selective: Vec<Direction>,
    addresses: Vec<AddressVector>,
    counters: Vec<(Counter, Counted)>,
    shared_receives: Vec<SharedReceiveQueue>,
    send_budgets: Vec<SendBudget>,
    events: Vec<EventQueue>,
    /// The first error of a call; `enable` returns it.
    error: Option<EnableError>,
}

impl Domain {
    /// Begins a scalable endpoint, which is then bound and enabled (`fi_scalable_ep`).
    pub fn scalable_endpoint(&self, options: ScalableOptions) -> ScalableEndpointBuilder {
        let ScalableOptions { transmit_contexts, receive_contexts, endpoint } = options;
        let limits = self.limits();
        let side = |direction, asked: usize, limit: usize, bound| {
            let contexts = vec![(None, None); asked.min(limit)];
            Side { direction, contexts, asked, limit, bound }
        };
        let (most, bound) = (limits.endpoint_transmit_contexts, Bound::TransmitQueue);
        let transmit = side("transmit", transmit_contexts, most, bound);
        let (most, bound) = (limits.endpoint_receive_contexts, Bound::ReceiveQueue);
        let receive = side("receive", receive_contexts, most, bound);
        ScalableEndpointBuilder {
            domain: self.clone(),
            options: endpoint,
            transmit,
            receive,
            queues: Vec::new(),
            selective: Vec::new(),
            addresses: Vec::new(),
            counters: Vec::new(),
            shared_receives: Vec::new(),
            send_budgets: Vec::new(),
            events: Vec::new(),
            error: None,
        }
    }
}

impl ScalableEndpointBuilder {
    /// Binds a completion queue to all contexts of a direction that get none of their own.
    pub fn bind_completion_queue(mut self, queue: &CompletionQueue, direction: Direction) -> Self {
        self.queues.push((queue.bound(), direction));
        self
    }

    /// Binds a completion queue to one transmit context.
    pub fn bind_transmit_queue(mut self, index: usize, queue: &CompletionQueue) -> Self {
        let bound = self.transmit.bind(index, queue);
        self.note(bound)
    }

    /// Binds a completion queue to one receive context.
    pub fn bind_receive_queue(mut self, index: usize, queue: &CompletionQueue) -> Self {
        let bound = self.receive.bind(index, queue);
        self.note(bound)
    }

    /// Gives a transmit context capabilities and default flags of its own. The capabilities must be among those of the
    /// endpoint.
    pub fn transmit_context(mut self, index: usize, options: ContextOptions) -> Self {
        let set = self.transmit.at(index).map(|context| context.1 = Some(options));
        self.note(set)
    }

    /// Gives a receive context capabilities and default flags of its own. The capabilities must be among those of the
    /// endpoint.
    pub fn receive_context(mut self, index: usize, options: ContextOptions) -> Self {
        let set = self.receive.at(index).map(|context| context.1 = Some(options));
        self.note(set)
    }

    /// Binds the queues of this direction selectively: see [`EndpointBuilder::selective`].
    pub fn selective(mut self, direction: Direction) -> Self {
        self.selective.push(direction);
        self
    }

    /// Binds the address vector, which all contexts use.
    pub fn bind_address_vector(mut self, addresses: &AddressVector) -> Self {
        self.addresses.push(addresses.clone());
        self
    }

    /// Binds a counter of some kinds of operations of all contexts.
    pub fn bind_counter(mut self, counter: &Counter, kinds: Counted) -> Self {
        self.counters.push((counter.clone(), kinds));
        self
    }

    /// Binds a queue that all receive contexts take their receives from: see
    /// [`EndpointBuilder::bind_shared_receive_queue`].
    pub fn bind_shared_receive_queue(mut self, queue: &SharedReceiveQueue) -> Self {
        self.shared_receives.push(queue.clone());
        self
    }

    /// Binds a budget that all transmit contexts take shares of: see [`EndpointBuilder::bind_send_budget`].
    pub fn bind_send_budget(mut self, budget: &SendBudget) -> Self {
        self.send_budgets.push(budget.clone());
        self
    }

    /// Binds an event queue, to which events of all queue pairs come: see [`EndpointBuilder::bind_event_queue`].
    pub fn bind_event_queue(mut self, events: &EventQueue) -> Self {
        self.events.push(events.bound());
        self
    }

    fn note(mut self, result: Result<(), EnableError>) -> Self {
        if let Err(error) = result {
            self.error.get_or_insert(error);
        }
        self
    }

    /// Enables the endpoint with all its contexts: from now on it sends and receives.
    ///
    /// # Errors
    /// As for [`EndpointBuilder::enable`]; [`EnableError::NoSuchContext`] for an index that was out of range in an
    /// earlier call, [`EnableError::ContextCount`] for fewer or more contexts than there can be.
    pub fn enable(self) -> Result<ScalableEndpoint, EnableError> {
        self.transmit.check()?;
        self.receive.check()?;
        if self.options.receiving == Receiving::InPlace {
            return Err(EnableError::ScalableInPlace);
        }
        if let Some(error) = self.error {
            return Err(error);
        }
        let (transmit, receive) = (self.transmit.contexts.len(), self.receive.contexts.len());
        let queue_pairs = (0..transmit.max(receive)).map(|index| self.queue_pair(index));
        let queue_pairs: Vec<Arc<Endpoint>> = queue_pairs.collect::<Result<_, _>>()?;
        let addresses = queue_pairs.iter().map(|pair| pair.address()).collect();
        let address = ScalableAddress::new(addresses, receive);
        let EndpointOptions { protocol, max_message_size, .. } = &self.options;
        let kind = EndpointKind::ReliableDatagram;
        let attributes = EndpointAttributes {
            address_size: address.to_bytes().len(),
            transmit_contexts: transmit,
            receive_contexts: receive,
            ..EndpointAttributes::of(kind, protocol, *max_message_size)
        };
        let context = self.options.context;
        let capabilities = self.options.capabilities.enabled();
        let domain = self.domain;
        Ok(ScalableEndpoint { domain, capabilities, address, attributes, queue_pairs, context })
    }

    /// Enables the queue pair of the contexts with this index.
    fn queue_pair(&self, index: usize) -> Result<Arc<Endpoint>, EnableError> {
        let mut options = self.options.clone();
        options.connid = options.connid.map(|connid| connid.wrapping_add(index as u32));
        for (side, own) in
            [(&self.transmit, &mut options.transmit), (&self.receive, &mut options.receive)]
        {
            if let Some((_, Some(options))) = side.contexts.get(index) {
                own.clone_from(options);
            }
        }
        let sends = self.queue(&self.transmit, index, Direction::Receive)?;
        let receives = self.queue(&self.receive, index, Direction::Transmit)?;
        // A direction without a context has no operations of the program's, and completes nothing.
        let (sends, receives) =
            match (index < self.transmit.contexts.len(), index < self.receive.contexts.len()) {
                (true, false) => (sends, sends),
                (false, true) => (receives, receives),
                _ => (sends, receives),
            };
        let mut builder = EndpointBuilder::new(&self.domain, options);
        for (queue, direction) in [(sends, Direction::Transmit), (receives, Direction::Receive)] {
            if let Some(queue) = queue {
                builder = builder.bind_completion_queue(queue, direction);
            }
        }
        for direction in &self.selective {
            builder = builder.selective(*direction);
        }
        for addresses in &self.addresses {
            builder = builder.bind_address_vector(addresses);
        }
        for (counter, kinds) in &self.counters {
            builder = builder.bind_counter(counter, *kinds);
        }
        if index < self.receive.contexts.len() {
            for queue in &self.shared_receives {
                builder = builder.bind_shared_receive_queue(queue);
            }
        }
        for budget in &self.send_budgets {
            builder = builder.bind_send_budget(budget);
        }
        for events in &self.events {
            builder = builder.bind_event_queue(events);
        }
        builder.enable().map(Arc::new)
    }

    /// The queue of a context: its own, or that of its direction, which isn't `other`.
    fn queue<'a>(
        &'a self,
        side: &'a Side,
        index: usize,
        other: Direction,
    ) -> Result<Option<&'a CompletionQueue>, EnableError> {
        let mut common = self.queues.iter().filter(|(_, direction)| *direction != other);
        let (first, second) = (common.next(), common.next());
        if second.is_some() {
            return Err(EnableError::Twice(side.bound));
        }
        let own = side.contexts.get(index).and_then(|(own, _)| own.as_ref());
        Ok(own.or(first.map(|(queue, _)| queue)))
    }
}
