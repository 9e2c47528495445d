//! Domains: a device of a fabric, and the objects on it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use efa_device::{Access, DeviceError, ForeignMemory, RegisterError};
use efa_rdm::{AtomicKind, AtomicOp, Datatype, atomic_limit};

use crate::address::Address;
use crate::address_vector::{AddressVector, AddressVectorOptions};
use crate::attributes::{
    AtomicAttributes, DomainAttributes, DomainHints, DomainLimits, LocalRegistration, Progress,
    RegistrationMode,
};
use crate::background::Background;
use crate::completion_queue::{CompletionQueue, CompletionQueueOptions};
use crate::counter::{Counter, CounterEvents, CounterOptions};
use crate::device::Device;
use crate::endpoint::EndpointId;
use crate::endpoint_builder::{EndpointBuilder, random};
use crate::endpoint_options::EndpointOptions;
use crate::error::{Error, Wanted};
use crate::fabric::Fabric;
use crate::info::Info;
use crate::keys::Keys;
use crate::region::{LocalAccess, MemoryRegion};
use crate::registrations::Cache;
use crate::send_budget::{SendBudget, SendBudgetOptions};
use crate::shared_receive_queue::{SharedReceiveQueue, SharedReceiveQueueOptions};
use crate::wait::Wait;

/// A device of a fabric (`fi_domain`). Objects of different domains can't be used together. Clones are
/// handles to the same domain.
#[derive(Clone)]
pub struct Domain(Arc<Shared>);

struct Shared {
    /// Automatic progress. First, so that the thread ends before the rest goes.
    background: Option<Background>,
    fabric: Fabric,
    device: Device,
    options: DomainOptions,
    registrations: Arc<Cache>,
    /// Of [`RegistrationMode::Scalable`].
    keys: Option<Arc<Keys>>,
    endpoints: AtomicU64,
}

impl Domain {
    pub(crate) fn new(
        fabric: Fabric,
        device: Device,
        options: DomainOptions,
    ) -> Result<Self, Error> {
        let clock = fabric.clock().clone();
        let background = match options.progress {
            Progress::Manual => None,
            // Nobody wakes the thread when a manual clock is advanced.
            automatic if clock.is_manual() => {
                return Err(Wanted::attribute("domain.progress", &automatic).into());
            }
            _ => {
                device.check_notifies()?;
                Some(Background::start(clock)?)
            }
        };
        Ok(Self::of(fabric, device, background, options))
    }

    fn of(
        fabric: Fabric,
        device: Device,
        background: Option<Background>,
        options: DomainOptions,
    ) -> Self {
        Self(Arc::new(Shared {
            background,
            fabric,
            device,
            registrations: Arc::default(),
            keys: keys_of(options.registration),
            endpoints: AtomicU64::new(0),
            options,
        }))
    }

    /// Another domain on this one's device, whose memory regions are registered in this mode. Objects of the two
    /// can't be used together. Progress is manual.
    #[must_use]
    pub fn with_registration(&self, mode: RegistrationMode) -> Self {
        let options = self.0.options.clone();
        let options = DomainOptions { progress: Progress::Manual, registration: mode, ..options };
        let domain = Self::of(self.0.fabric.clone(), self.0.device.clone(), None, options);
        self.0.fabric.add(&domain);
        domain
    }

    pub(crate) fn background(&self) -> Option<&Background> {
        self.0.background.as_ref()
    }

    /// The fabric.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.0.fabric
    }

    /// Its attributes.
    #[must_use]
    pub fn attributes(&self) -> DomainAttributes {
        DomainAttributes::of(self.0.device.attributes(), &self.0.options)
    }

    /// How many objects it can have.
    #[must_use]
    pub fn limits(&self) -> DomainLimits {
        DomainLimits::of(self.0.device.attributes())
    }

    /// Creates a completion queue (`fi_cq_open`).
    #[must_use]
    pub fn completion_queue(&self, options: CompletionQueueOptions) -> CompletionQueue {
        CompletionQueue::new(self, options)
    }

    /// Creates a completion queue that nobody reads: it drops what it is given, and never fills up. For an endpoint whose
    /// operations are only counted.
    #[must_use]
    pub fn unread_completion_queue(&self) -> CompletionQueue {
        CompletionQueue::unread(self)
    }

    /// Creates a completion queue that threads can sleep on (`fi_cq_open` with a `wait_obj`).
    ///
    /// ```
    /// use std::time::Duration;
    /// use efa::{CompletionQueueOptions, Fabric, LocalOptions, TryWaitError, Wait};
    ///
    /// let fabric = Fabric::local(LocalOptions::default());
    /// let domain = fabric.domain()?;
    /// let queue = domain.waitable_completion_queue(CompletionQueueOptions::new(), Wait::Fd)?;
    /// // … endpoints are bound to it …
    /// match fabric.try_wait(&[&queue]) {
    ///     // Now the thread may sleep in poll, select or epoll on this descriptor.
    ///     Ok(()) => assert!(queue.as_fd().is_some()),
    ///     // There is something to be read.
    ///     Err(TryWaitError::Pending) => assert!(queue.read().is_some()),
    ///     Err(other) => return Err(other.into()),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The device can't notify ([`DeviceError::Unsupported`](crate::DeviceError::Unsupported)), or the system
    /// has no file descriptors left.
    pub fn waitable_completion_queue(
        &self,
        options: CompletionQueueOptions,
        wait: Wait,
    ) -> Result<CompletionQueue, Error> {
        self.0.device.check_notifies()?;
        Ok(CompletionQueue::waitable(self, options, &wait)?)
    }

    /// Creates a counter that threads can sleep on (`fi_cntr_open` with a `wait_obj`).
    ///
    /// # Errors
    /// As for [`counter`](Self::counter) and
    /// [`waitable_completion_queue`](Self::waitable_completion_queue).
    pub fn waitable_counter(&self, options: CounterOptions, wait: Wait) -> Result<Counter, Error> {
        self.0.device.check_notifies()?;
        match options.events {
            CounterEvents::Completions => Ok(Counter::waitable(self, options, &wait)?),
            events => Err(Error::NoData { wanted: Wanted::CounterEvents(events) }),
        }
    }

    /// Creates a counter (`fi_cntr_open`).
    ///
    /// # Errors
    /// [`Error::NoData`] for events other than completions.
    pub fn counter(&self, options: CounterOptions) -> Result<Counter, Error> {
        match options.events {
            CounterEvents::Completions => Ok(Counter::new(self, options)),
            events => Err(Error::NoData { wanted: Wanted::CounterEvents(events) }),
        }
    }

    /// Creates an address vector with default options (`fi_av_open`).
    #[must_use]
    pub fn address_vector(&self) -> AddressVector {
        AddressVector::table(self)
    }

    /// Creates an address vector (`fi_av_open`).
    ///
    /// # Errors
    /// * [`Error::NoData`] for more than 16 bits for receive contexts, or one that is read-only and has no name; without
    ///   the feature `sim`, for any name.
    /// * [`DeviceError::Inconsistent`] for a name that can't be one, or that another address vector has whose writer
    ///   lives; of a read-only one, if others than this user can write it, or it is damaged.
    /// * [`DeviceError::LimitReached`] for a count of more than 2²⁴ of one with a name.
    /// * [`DeviceError::System`] if there is no address vector of the name to be read, or too little shared memory for
    ///   another.
    pub fn address_vector_with(
        &self,
        options: AddressVectorOptions,
    ) -> Result<AddressVector, Error> {
        AddressVector::new(self, options)
    }

    /// Creates a budget of operations under way that several endpoints share (`fi_stx_context`).
    #[must_use]
    pub fn send_budget(&self, options: SendBudgetOptions) -> SendBudget {
        SendBudget::new(self, options)
    }

    /// Creates a queue of receives that several endpoints take from (`fi_srx_context`).
    #[must_use]
    pub fn shared_receive_queue(&self, options: SharedReceiveQueueOptions) -> SharedReceiveQueue {
        SharedReceiveQueue::new(self, options, random())
    }

    /// Begins an endpoint, which is then bound and enabled (`fi_endpoint`).
    pub fn endpoint(&self, options: EndpointOptions) -> EndpointBuilder {
        EndpointBuilder::new(self, options)
    }

    /// Registers memory with the device (`fi_mr_reg`), for these uses by peers. There is nothing like the reserved arguments `offset` and `flags`.
    ///
    /// # Errors
    /// A limit of the device is reached; the memory comes back.
    pub fn register(
        &self,
        memory: impl Into<Box<[u8]>>,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        self.register_for(memory, access, LocalAccess::all())
    }

    /// Registers memory with the device, for some kinds of operations of this process only.
    ///
    /// # Errors
    /// A limit of the device is reached; the memory comes back.
    pub fn register_for(
        &self,
        memory: impl Into<Box<[u8]>>,
        remote: Access,
        local: LocalAccess,
    ) -> Result<MemoryRegion, RegisterError> {
        MemoryRegion::register(self, memory.into(), remote, local)
    }

    /// Allocates and registers memory of zeros, where peers access it best. On the shm link that is shared memory, which the
    /// processes of the host map: they copy from it and to it without the kernel's help, also where that isn't permitted,
    /// and read messages from a shorter length on ([`MemoryRegion::is_mapped`]). Where the file system of the link has too
    /// little left, and on other links, it is memory of the process.
    ///
    /// [`registered`](Self::registered) reuses such memory.
    ///
    /// ```
    /// use efa::{Access, Fabric, LocalAccess, ShmOptions};
    ///
    /// let domain = Fabric::shm(ShmOptions::new("allocate-example")).domain()?;
    /// let access = Access { remote_read: true, remote_write: false };
    /// let region = domain.allocate(1 << 20, access, LocalAccess::SEND)?;
    /// region.write(0, b"hello");
    /// let message = region.slice(0..65536)?; // A buffer of any operation that sends.
    /// assert_eq!(&message.to_vec()[..6], b"hello\0");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A limit of the device is reached.
    pub fn allocate(
        &self,
        length: usize,
        remote: Access,
        local: LocalAccess,
    ) -> Result<MemoryRegion, DeviceError> {
        MemoryRegion::allocate(self, length, remote, local)
    }

    /// Registers memory that somebody else owns, such as a mapped file or the ring of a device, where it is. Slices of
    /// the region are used in place, as those of any other: what goes in packets is copied to or from them, and RDMA
    /// of the device reads and writes them.
    ///
    /// The region holds a handle of the memory, and so does each operation that uses a slice of it: the owner that was
    /// given to [`ForeignMemory::new`] is dropped when the last one is gone.
    ///
    /// ```
    /// use std::ptr::NonNull;
    /// use efa::{Access, Fabric, ForeignMemory, LocalAccess, LocalOptions};
    ///
    /// let base = NonNull::from(Box::leak(vec![7_u8; 4096].into_boxed_slice())).cast();
    /// // SAFETY: the bytes are never freed, and nobody else knows them.
    /// let ring = unsafe { ForeignMemory::new(base, 4096, ()) };
    /// let domain = Fabric::local(LocalOptions::default()).domain()?;
    /// let region = domain.register_foreign(&ring, Access::default(), LocalAccess::SEND)?;
    /// let slot = region.slice(1024..2048)?; // A buffer of any operation that sends.
    /// assert_eq!(slot.to_vec(), [7; 1024]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A limit of the device is reached.
    pub fn register_foreign(
        &self,
        memory: &ForeignMemory,
        remote: Access,
        local: LocalAccess,
    ) -> Result<MemoryRegion, DeviceError> {
        MemoryRegion::register_foreign(self, memory, remote, local)
    }

    /// Whether there is such an atomic, and how many elements it can change (`fi_query_atomic`). `None` if
    /// there is none: [`Endpoint::atomic`](crate::Endpoint::atomic) refuses it.
    ///
    /// ```
    /// # use efa::{AtomicKind, AtomicOp, Datatype, Fabric, LocalOptions};
    /// # let domain = Fabric::local(LocalOptions::default()).domain()?;
    /// let sum = domain.atomic(AtomicOp::Sum, Datatype::Uint64, AtomicKind::Fetch).expect("offered");
    /// assert_eq!(sum.size, 8);
    /// assert!(sum.count > 1000);
    /// assert_eq!(domain.atomic(AtomicOp::Bor, Datatype::Double, AtomicKind::Fetch), None);
    /// # Ok::<(), efa::Error>(())
    /// ```
    #[must_use]
    pub fn atomic(
        &self,
        op: AtomicOp,
        datatype: Datatype,
        kind: AtomicKind,
    ) -> Option<AtomicAttributes> {
        let size = datatype.size();
        let count = atomic_limit(self.0.device.attributes().mtu, kind) / size;
        kind.allows(op, datatype).then_some(AtomicAttributes { size, count })
    }

    /// Fails if the device can't reach the interface of a peer, whatever endpoint the peer is. A device that can't tell
    /// doesn't fail; then messages to the peer do.
    ///
    /// # Errors
    /// [`DeviceError::Unreachable`].
    pub fn check_reach(&self, peer: Address) -> Result<(), DeviceError> {
        self.0.device.check_reach(peer.gid())
    }

    /// Whether both are handles to the same domain.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn next_endpoint_id(&self) -> EndpointId {
        EndpointId(self.0.endpoints.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn keys(&self) -> Option<&Arc<Keys>> {
        self.0.keys.as_ref()
    }

    pub(crate) fn cache(&self) -> &Arc<Cache> {
        &self.0.registrations
    }

    pub(crate) fn local_registration(&self) -> LocalRegistration {
        self.0.options.local_registration
    }

    pub(crate) fn user_context(&self) -> u64 {
        self.0.options.context
    }

    pub(crate) fn downgrade(&self) -> WeakDomain {
        WeakDomain(Arc::downgrade(&self.0))
    }

    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }
}

/// A handle that doesn't keep its domain open.
pub(crate) struct WeakDomain(Weak<Shared>);

impl WeakDomain {
    pub(crate) fn upgrade(&self) -> Option<Domain> {
        self.0.upgrade().map(Domain)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.0.strong_count() > 0
    }
}

fn keys_of(mode: RegistrationMode) -> Option<Arc<Keys>> {
    match mode {
        RegistrationMode::Basic => None,
        RegistrationMode::Scalable => Some(Arc::default()),
    }
}

/// Options of a domain.
///
/// ```
/// use efa::{DomainOptions, LocalRegistration};
/// let options = DomainOptions::new().local_registration(LocalRegistration::Required).context(7);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DomainOptions {
    /// Whether buffers of operations must be registered memory.
    pub local_registration: LocalRegistration,
    /// Who moves operations on: calls of the program (manual, the default), or also a thread of the domain
    /// (automatic), which sleeps while nothing happens.
    pub progress: Progress,
    /// How peers name memory regions.
    pub registration: RegistrationMode,
    /// On a fabric of EFA interfaces, the interface of this domain instead of the fabric's.
    pub interface: Option<String>,
    /// A number of the program ([`Object::context`](crate::Object::context)).
    pub context: u64,
}

impl DomainOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`local_registration`](Self#structfield.local_registration).
    #[must_use]
    pub fn local_registration(self, local_registration: LocalRegistration) -> Self {
        Self { local_registration, ..self }
    }

    /// Sets [`progress`](Self#structfield.progress).
    #[must_use]
    pub fn progress(self, progress: Progress) -> Self {
        Self { progress, ..self }
    }

    /// Sets [`registration`](Self#structfield.registration).
    #[must_use]
    pub fn registration(self, registration: RegistrationMode) -> Self {
        Self { registration, ..self }
    }

    /// Sets [`interface`](Self#structfield.interface).
    #[must_use]
    pub fn interface(self, interface: &str) -> Self {
        Self { interface: Some(interface.to_owned()), ..self }
    }

    /// Sets [`context`](Self#structfield.context).
    #[must_use]
    pub fn context(self, context: u64) -> Self {
        Self { context, ..self }
    }

    /// What hints ask for, as far as the device can do it.
    pub(crate) fn wanted(hints: &DomainHints, notifies: bool) -> Self {
        let progress = hints.progress.filter(|_| notifies);
        Self {
            local_registration: hints.local_registration.unwrap_or_default(),
            progress: progress.unwrap_or_default(),
            registration: hints.registration_mode.unwrap_or_default(),
            ..Self::default()
        }
    }
}

impl From<&Info> for DomainOptions {
    /// What an entry says of its domain.
    fn from(info: &Info) -> Self {
        Self {
            local_registration: info.domain.local_registration,
            progress: info.domain.progress,
            registration: info.domain.registration_mode,
            ..Self::default()
        }
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Domain").field(&self.0.device.attributes().name).finish()
    }
}
