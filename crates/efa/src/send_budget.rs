//! Sends that several endpoints share.
//!
//! ```text
//!   operation starts ─► a share of the budget ─► operation completes, on its endpoint's queue ─► share returned
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::completion::StartError;
use crate::domain::Domain;

/// Options of a budget of sends.
///
/// ```
/// use efa::SendBudgetOptions;
/// let options = SendBudgetOptions::new().limit(1024);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendBudgetOptions {
    /// Most operations under way of all endpoints together; 4096 by default, at least 1.
    pub limit: usize,
    /// A number of the program ([`Object::context`](crate::Object::context)).
    pub context: u64,
}

impl Default for SendBudgetOptions {
    fn default() -> Self {
        Self { limit: 4096, context: 0 }
    }
}

impl SendBudgetOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`limit`](Self#structfield.limit).
    #[must_use]
    pub fn limit(self, limit: usize) -> Self {
        Self { limit, ..self }
    }

    /// Sets [`context`](Self#structfield.context).
    #[must_use]
    pub fn context(self, context: u64) -> Self {
        Self { context, ..self }
    }
}

/// A budget of operations under way that several endpoints of a domain share (`fi_stx_context`). Clones are handles to
/// the same budget.
///
/// Sends, writes, reads and atomics of all [bound](crate::EndpointBuilder::bind_send_budget) endpoints take a share of
/// it when they start, and return it when they complete, on the completion queue of their endpoint as always. Without
/// a share left, the next one doesn't start, whichever endpoint took the others: [`StartError::Busy`]. Injected
/// messages are not counted.
///
/// Nothing else is shared. EFA devices have no send queue for several queue pairs, so each endpoint keeps its own, and
/// an endpoint with a budget needs as much of the device as one without.
///
/// ```
/// # use std::time::Duration;
/// use efa::{
///     CompletionQueueOptions, Direction, EndpointOptions, Fabric, LocalOptions, Message,
///     SendBudgetOptions, StartError,
/// };
///
/// let domain = Fabric::local(LocalOptions::default()).domain()?;
/// let queue = domain.completion_queue(CompletionQueueOptions::default());
/// let addresses = domain.address_vector();
/// let budget = domain.send_budget(SendBudgetOptions::new().limit(1));
/// let endpoint = || {
///     domain
///         .endpoint(EndpointOptions::default())
///         .bind_completion_queue(&queue, Direction::Both)
///         .bind_address_vector(&addresses)
///         .bind_send_budget(&budget)
///         .enable()
/// };
/// let (alice, bob) = (endpoint()?, endpoint()?);
/// let (to_alice, to_bob) = (addresses.insert(alice.address())?, addresses.insert(bob.address())?);
///
/// alice.send(Message::to(to_bob), "first", 1)?;
/// let refused = bob.send(Message::to(to_alice), "second", 2).unwrap_err();
/// assert_eq!(refused.error, StartError::Busy { limit: 1 });
/// assert_eq!(queue.wait(Duration::from_secs(10))?.context, 1);
/// bob.send(Message::to(to_alice), refused.buffer, 2)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SendBudget(Arc<Shared>);

struct Shared {
    domain: Domain,
    options: SendBudgetOptions,
    under_way: AtomicUsize,
    /// Something has completed on one of the endpoints, so an operation of another may start that found no share.
    #[cfg(feature = "tokio")]
    turn: tokio::sync::Notify,
}

impl SendBudget {
    pub(crate) fn new(domain: &Domain, options: SendBudgetOptions) -> Self {
        let options = SendBudgetOptions { limit: options.limit.max(1), ..options };
        Self(Arc::new(Shared {
            domain: domain.clone(),
            options,
            under_way: AtomicUsize::new(0),
            #[cfg(feature = "tokio")]
            turn: tokio::sync::Notify::new(),
        }))
    }

    /// Most operations under way.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.0.options.limit
    }

    /// Operations under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.0.under_way.load(Ordering::Acquire)
    }

    pub(crate) fn user_context(&self) -> u64 {
        self.0.options.context
    }

    pub(crate) fn is_of(&self, domain: &Domain) -> bool {
        self.0.domain.is(domain)
    }

    /// Takes a share for an operation that is about to start.
    pub(crate) fn start(&self) -> Result<(), StartError> {
        let limit = self.limit();
        let take = |taken| (taken < limit).then_some(taken + 1);
        let taken = self.0.under_way.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        taken.map(|_| ()).map_err(|_| StartError::Busy { limit })
    }

    /// Returns the share of an operation that did not start, or has ended.
    pub(crate) fn end(&self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }

    /// Completes at the next call of [`give_turns`](Self::give_turns).
    #[cfg(feature = "tokio")]
    pub(crate) fn turn(&self) -> tokio::sync::futures::Notified<'_> {
        self.0.turn.notified()
    }

    /// Wakes all that wait for a share. Not with the lock of a driver, as wakers may run code of the program.
    #[cfg(feature = "tokio")]
    pub(crate) fn give_turns(&self) {
        self.0.turn.notify_waiters();
    }
}

impl fmt::Debug for SendBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBudget")
            .field("limit", &self.limit())
            .field("under_way", &self.under_way())
            .finish_non_exhaustive()
    }
}
