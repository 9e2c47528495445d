//! Domains: a device of a fabric, and what shares it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_device::Access;

use crate::address_vector::AddressVector;
use crate::completion_queue::{CompletionQueue, CompletionQueueOptions};
use crate::counter::{Counter, CounterEvents, CounterOptions};
use crate::device::Device;
use crate::endpoint::EndpointId;
use crate::endpoint_builder::EndpointBuilder;
use crate::endpoint_options::EndpointOptions;
use crate::error::{Error, Wanted};
use crate::fabric::Fabric;
use crate::info::DomainAttributes;
use crate::region::{MemoryRegion, RegisterError};
use crate::registrations::Cache;

/// A connection to a fabric: one device of it. Objects of a domain can be used together, and only
/// those. Clones are handles to the same one.
#[derive(Clone)]
pub struct Domain(Arc<Shared>);

struct Shared {
    fabric: Fabric,
    device: Device,
    registrations: Arc<Cache>,
    endpoints: AtomicU64,
}

impl Domain {
    pub(crate) fn new(fabric: Fabric, device: Device) -> Self {
        Self(Arc::new(Shared {
            fabric,
            device,
            registrations: Arc::default(),
            endpoints: AtomicU64::new(0),
        }))
    }

    /// The fabric it is of.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.0.fabric
    }

    /// What it is like.
    #[must_use]
    pub fn attributes(&self) -> DomainAttributes {
        DomainAttributes::of(self.0.device.attributes())
    }

    /// A completion queue.
    #[must_use]
    pub fn completion_queue(&self, options: CompletionQueueOptions) -> CompletionQueue {
        CompletionQueue::new(self, options)
    }

    /// A counter.
    ///
    /// # Errors
    /// [`Error::NoData`]: it is to count other events than completions.
    pub fn counter(&self, options: CounterOptions) -> Result<Counter, Error> {
        match options.events {
            CounterEvents::Completions => Ok(Counter::new(self)),
            events => Err(Error::NoData { wanted: Wanted::CounterEvents(events) }),
        }
    }

    /// An address vector.
    #[must_use]
    pub fn address_vector(&self) -> AddressVector {
        AddressVector::new(self)
    }

    /// An endpoint, not yet enabled.
    pub fn endpoint(&self, options: EndpointOptions) -> EndpointBuilder {
        EndpointBuilder::new(self, options)
    }

    /// Registers memory with the device.
    ///
    /// # Errors
    /// A limit of the device is reached; the memory comes back.
    pub fn register(
        &self,
        memory: impl Into<Box<[u8]>>,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        MemoryRegion::register(self, memory.into(), access)
    }

    /// Whether both are handles to the same domain.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn next_endpoint_id(&self) -> EndpointId {
        EndpointId(self.0.endpoints.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn cache(&self) -> &Arc<Cache> {
        &self.0.registrations
    }

    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Domain").field(&self.0.device.attributes().name).finish()
    }
}
