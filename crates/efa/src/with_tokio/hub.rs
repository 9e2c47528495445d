//! The event queue of connections whose ends are futures.
//!
//! ```text
//!   endpoint 1 ─┐                                        ┌─► link 1 ─► connect_async, closed
//!   endpoint 2 ─┼─► EventQueue ─► a task of the runtime ─┼─► link 2
//!   endpoint 3 ─┘   (its own)                            └─► link 3
//! ```
//!
//! All such connections of a fabric in one runtime share a hub, so that a connection takes no descriptors for its
//! events. The context of an event is the number of its link, which no other link of the hub ever has.

use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::endpoint::{EnableAsyncError, Ended};
use super::sleeper::StreamError;
use super::streams::EventStream;
use crate::connection::{ConnectError, ControlEvent, EventQueue, EventQueueOptions};
use crate::fabric::Fabric;

/// Which side has ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ClosedBy {
    /// This one: by [`shutdown`](crate::with_tokio::AsyncMsgEndpoint::shutdown) or
    /// [`close`](crate::with_tokio::AsyncEndpoint::close).
    Local,
    /// The other one shut it down, dropped its endpoint, or is gone (`FI_SHUTDOWN`). Which of these isn't told: a program
    /// that must know whether its peer had finished needs a last message of its own.
    Peer,
}

/// Why a connection is none.
#[derive(Clone, Debug)]
pub(super) enum Over {
    Failed(ConnectError),
    Closed(ClosedBy),
    /// Nobody watches it.
    Unwatched(Ended),
}

/// How far a connection has come. One that was made and ended is both.
#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    /// The data of the answer, once it is made.
    pub(super) connected: Option<Vec<u8>>,
    pub(super) over: Option<Over>,
}

/// The hubs of a fabric: one for each runtime.
#[derive(Default)]
pub(crate) struct Hubs(Mutex<Vec<Weak<Hub>>>);

/// One event queue, and the task that reads it until the hub is dropped.
pub(super) struct Hub {
    runtime: Id,
    events: EventQueue,
    links: Arc<Links>,
    task: AbortHandle,
}

/// A connection's part in a hub: its link, which is removed when this is dropped.
pub(super) struct Member {
    hub: Arc<Hub>,
    number: u64,
    link: watch::Receiver<Link>,
}

#[derive(Default)]
struct Links(Mutex<Table>);

#[derive(Default)]
struct Table {
    links: HashMap<u64, watch::Sender<Link>>,
    numbers: u64,
    /// Why nobody reads the event queue.
    ended: Option<Ended>,
}

impl Hub {
    /// That of this runtime.
    pub(super) fn of(fabric: &Fabric) -> Result<Arc<Self>, EnableAsyncError> {
        let runtime = Handle::try_current().map_err(|_| StreamError::NoRuntime)?;
        let mut hubs = fabric.hubs().0.lock();
        hubs.retain(|hub| hub.strong_count() > 0);
        if let Some(hub) = hubs.iter().filter_map(Weak::upgrade).find(|hub| hub.is_of(&runtime)) {
            return Ok(hub);
        }
        let events = fabric.event_queue(EventQueueOptions::default())?;
        let stream = events.stream()?;
        let links = Arc::new(Links::default());
        let task = runtime.spawn(Watcher(Arc::clone(&links)).run(stream)).abort_handle();
        let hub = Arc::new(Self { runtime: runtime.id(), events, links, task });
        hubs.push(Arc::downgrade(&hub));
        Ok(hub)
    }

    /// Also not one that has failed.
    fn is_of(&self, runtime: &Handle) -> bool {
        self.runtime == runtime.id() && self.links.0.lock().ended.is_none()
    }

    /// Adds a link.
    pub(super) fn join(hub: Arc<Self>) -> Member {
        let mut table = hub.links.0.lock();
        table.numbers += 1;
        let (number, over) = (table.numbers, table.ended.clone().map(Over::Unwatched));
        let is_watched = over.is_none();
        let (sender, link) = watch::channel(Link { connected: None, over });
        if is_watched {
            table.links.insert(number, sender);
        }
        drop(table);
        Member { hub, number, link }
    }
}

impl Member {
    pub(super) fn events(&self) -> &EventQueue {
        &self.hub.events
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn link(&self) -> watch::Receiver<Link> {
        self.link.clone()
    }

    /// The connection was ended by this side or the other, unless it had ended before.
    pub(super) fn end(&self, by: ClosedBy) {
        self.hub.links.end(self.number, Over::Closed(by));
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end(ClosedBy::Local);
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// Those who wait are woken while the table is not locked: a waker may drop a connection.
impl Links {
    fn connected(&self, number: u64, data: Vec<u8>) {
        let link = self.0.lock().links.get(&number).cloned();
        if let Some(link) = link {
            link.send_modify(|link| link.connected = Some(data));
        }
    }

    fn end(&self, number: u64, over: Over) {
        let link = self.0.lock().links.remove(&number);
        if let Some(link) = link {
            link.send_modify(|link| link.over = Some(over));
        }
    }

    fn end_all(&self, why: &Ended) {
        let mut table = self.0.lock();
        table.ended.get_or_insert_with(|| why.clone());
        let links = std::mem::take(&mut table.links);
        drop(table);
        for link in links.into_values() {
            link.send_modify(|link| link.over = Some(Over::Unwatched(why.clone())));
        }
    }
}

/// The task that reads the events.
struct Watcher(Arc<Links>);

impl Watcher {
    async fn run(self, mut events: EventStream) {
        let Self(links) = &self;
        loop {
            match events.next_entry().await {
                Ok(Ok(ControlEvent::Connected { context, data, .. })) => {
                    links.connected(context, data);
                }
                Ok(Ok(ControlEvent::Shutdown { context, .. })) => {
                    links.end(context, Over::Closed(ClosedBy::Peer));
                }
                // Nobody else has the queue.
                Ok(Ok(_)) => {}
                Ok(Err(failed)) => links.end(failed.context, Over::Failed(failed.error)),
                Err(error) => return links.end_all(&error.into()),
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.0.end_all(&Ended::Runtime);
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

    use efa_sim::local::LocalOptions;
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_io().build().unwrap()
    }

    #[test]
    fn connections_share_the_hub_of_their_fabric_and_runtime_while_there_are_some() {
        let fabric = Fabric::local(LocalOptions::default());
        let (first, second) = (runtime(), runtime());
        let hub = |of: &Runtime, fabric: &Fabric| of.block_on(async { Hub::of(fabric) }).unwrap();
        let shared = hub(&first, &fabric);
        assert!(Arc::ptr_eq(&shared, &hub(&first, &fabric)));
        assert!(!Arc::ptr_eq(&shared, &hub(&second, &fabric)));
        let other = Fabric::local(LocalOptions::default());
        assert!(!Arc::ptr_eq(&shared, &hub(&first, &other)));
        let weak = Arc::downgrade(&shared);
        let task = shared.task.clone();
        drop(shared);
        assert!(weak.upgrade().is_none());
        first.block_on(tokio::task::yield_now());
        assert!(task.is_finished());
        assert_eq!(fabric.hubs().0.lock().iter().filter_map(Weak::upgrade).count(), 0);
    }

    #[test]
    fn hub_whose_runtime_was_shut_down_tells_its_members() {
        let fabric = Fabric::local(LocalOptions::default());
        let of = runtime();
        let hub = of.block_on(async { Hub::of(&fabric) }).unwrap();
        let before = Hub::join(Arc::clone(&hub));
        drop(of);
        for member in [before, Hub::join(hub)] {
            let over = member.link().borrow().over.clone();
            assert!(matches!(over, Some(Over::Unwatched(Ended::Runtime))), "{over:?}");
        }
    }
}
