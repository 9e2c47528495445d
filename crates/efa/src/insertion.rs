//! Asynchronous insertion into address vectors.
//!
//! ```text
//!   AddressVector::insert_async(addresses, context) ─► waits at the event queue
//!                                                          │ a read of the queue inserts some
//!                                                          ▼ the last one
//!                                             ControlEvent::AddressesInserted{context, results}
//! ```

use std::sync::{Arc, Weak};

use efa_device::DeviceError;

use crate::address::Address;
use crate::address_vector::{AddressVector, FiAddr, Shared};
use crate::connection::{ControlEvent, EventQueue};

/// Most addresses that one read of an event queue inserts.
const AT_ONCE: usize = 1024;

/// Why an address vector has no event queue, or can't have this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InsertionError {
    /// It has no event queue for its events.
    #[error("the address vector has no event queue")]
    NoEventQueue,
    /// It has an event queue already.
    #[error("the address vector has an event queue already")]
    Twice,
    /// The event queue is of another fabric.
    #[error("the event queue is of another fabric")]
    OtherFabric,
}

/// Addresses that are being inserted.
#[derive(Debug)]
pub(crate) struct Insertion {
    vector: Weak<Shared>,
    addresses: Vec<Address>,
    results: Vec<Result<FiAddr, DeviceError>>,
    context: u64,
}

/// What is to be done about an insertion.
pub(crate) enum Progress {
    /// Go on in the next read.
    More,
    /// Report it.
    Done(ControlEvent),
    /// Forget it: the address vector was dropped.
    Ended,
}

impl Insertion {
    /// Inserts the next addresses.
    pub(crate) fn advance(&mut self) -> Progress {
        let Some(vector) = self.vector.upgrade() else { return Progress::Ended };
        let vector = AddressVector::from_shared(vector);
        let rest = &self.addresses[self.results.len()..];
        let next = &rest[..rest.len().min(AT_ONCE)];
        self.results.extend(vector.insert_many(next));
        if self.results.len() < self.addresses.len() {
            return Progress::More;
        }
        let results = std::mem::take(&mut self.results);
        let (vector, context) = (vector.options().context, self.context);
        Progress::Done(ControlEvent::AddressesInserted { vector, context, results })
    }
}

impl AddressVector {
    /// Binds an event queue, for the events of [`insert_async`](Self::insert_async) (`fi_av_bind`).
    ///
    /// # Errors
    /// It has one already, or the queue is of another fabric.
    pub fn bind_event_queue(&self, events: &EventQueue) -> Result<(), InsertionError> {
        if !self.domain().fabric().is(events.fabric()) {
            return Err(InsertionError::OtherFabric);
        }
        self.shared().events.set(events.bound()).map_err(|_| InsertionError::Twice)
    }

    /// Begins to insert peers, and returns at once (`fi_av_insert` with `FI_EVENT`). Reading the event queue inserts
    /// them, in the order of the calls, and then has one
    /// [`AddressesInserted`](ControlEvent::AddressesInserted) for this call, with the `context` and a result for each
    /// address. From then on, or as soon as its [`find`](Self::find) finds them, peers can be sent to.
    ///
    /// If the address vector is dropped before, there is no event.
    ///
    /// ```
    /// use std::time::Duration;
    /// use efa::{ControlEvent, EventQueueOptions, Fabric, LocalOptions};
    ///
    /// let fabric = Fabric::local(LocalOptions::default());
    /// let events = fabric.event_queue(EventQueueOptions::default())?;
    /// let addresses = fabric.domain()?.address_vector();
    /// addresses.bind_event_queue(&events)?;
    /// let raw = [1; 32]; // As peers sent it.
    /// addresses.insert_async(&[efa::Address::from_bytes(raw)], 7)?;
    /// match events.wait(Duration::from_secs(10))? {
    ///     ControlEvent::AddressesInserted { context: 7, results, .. } => {
    ///         let peer = results[0].clone()?; // An error of one is not that of another.
    ///         assert!(addresses.address(peer).is_some());
    ///     }
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// No event queue is bound. Nothing is inserted then.
    pub fn insert_async(&self, addresses: &[Address], context: u64) -> Result<(), InsertionError> {
        let events = self.shared().events.get().ok_or(InsertionError::NoEventQueue)?;
        events.insert_later(Insertion {
            vector: Arc::downgrade(self.shared()),
            addresses: addresses.to_vec(),
            results: Vec::new(),
            context,
        });
        Ok(())
    }
}
