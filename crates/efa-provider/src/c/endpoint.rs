//! Endpoints (`fi_endpoint`): reliable datagrams, and connections.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, OnceLock};

use efa::{
    Claim, ContextOptions, Counted, Direction, EnableError, EndpointBuilder, EndpointOptions,
    FiAddr, Message, MsgEndpoint, MsgEndpointOptions, Receive,
};

use crate::abi::*;
use crate::bits;
use crate::boundary::{Errno, INVALID, Outcome, count, lock, started, status};
use crate::c::av::{self, AddressVector};
use crate::c::cm::{self, Connection};
use crate::c::counter::{self, Counter};
use crate::c::cq::CompletionQueue;
use crate::c::domain::{self, Domain};
use crate::c::eq::EventQueue;
use crate::c::event::{EventSource, Pointer};
use crate::c::shared::{self, SharedReceives, SharedSends};
use crate::c::{atomic, entry, msg, rma, tagged};
use crate::errors;
use crate::info::PIECES;
use crate::lookup::{AddressServer, HostPort};
use crate::memory::MOST_PIECES;
use crate::object::{Class, Object, Pool, Use};
use crate::threads;

/// An endpoint.
pub(crate) struct Endpoint {
    /// Set when it is enabled. The first field, so that it is dropped before what it is bound to.
    enabled: OnceLock<Enabled>,
    /// The bits of a program's address that count: all, or none with a connection, whose only peer is 0.
    addressed: u64,
    /// Most pieces of an operation (`iov_limit`).
    pub(crate) most_pieces: usize,
    /// `None` if it is for reliable datagrams.
    pub(crate) connection: Option<Connection>,
    /// The host and port at which peers ask for its address, if the program's entry has them.
    host_port: Option<HostPort>,
    /// Answers there from the time on at which the address is known.
    address_server: OnceLock<AddressServer>,
    setup: Mutex<Setup>,
    claims: Mutex<HashMap<u64, Claim>>,
    /// Whether it is to have a shared context of sends, and one of receives.
    shares: [bool; 2],
    pub(crate) defaults: Defaults,
    pub(crate) domain: Use<Domain>,
}

/// Retries after RNR without end.
const UNLIMITED_RETRIES: u8 = 7;

/// An endpoint that is enabled.
enum Enabled {
    Datagram(efa::Endpoint),
    Connected(MsgEndpoint),
}

impl Deref for Enabled {
    type Target = efa::Endpoint;

    #[inline(always)]
    fn deref(&self) -> &efa::Endpoint {
        match self {
            Self::Datagram(endpoint) => endpoint,
            Self::Connected(endpoint) => endpoint,
        }
    }
}

/// What operations without flags do beyond the default flags that `efa` knows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Defaults {
    /// Sends are injected.
    pub(crate) inject: bool,
    /// Receives are for many messages.
    pub(crate) receive_many: bool,
    /// All that the program chose (`op_flags`).
    transmit_flags: u64,
    receive_flags: u64,
}

/// What the program sets before it enables the endpoint.
#[derive(Default)]
struct Setup {
    options: EndpointOptions,
    transmit: Option<Use<CompletionQueue>>,
    receive: Option<Use<CompletionQueue>>,
    selective: [bool; 2],
    addresses: Option<Use<AddressVector>>,
    events: Option<Use<EventQueue>>,
    /// The number of the endpoint at its event queue, once it is enabled.
    number: Option<u64>,
    counters: Vec<(Use<Counter>, Counted)>,
    sends: Option<Use<SharedSends>>,
    receives: Option<Use<SharedReceives>>,
    /// Its place in `receives`, once it is enabled.
    member: Option<shared::Member>,
}

impl Setup {
    /// Drops events of the endpoint that the program hasn't read.
    fn forget_events(&mut self) {
        if let (Some(events), Some(number)) = (&self.events, self.number.take()) {
            events.forget(number);
        }
    }
}

static FID: fi_ops = fi_ops {
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ..fi_ops::failing::<FI_ENOSYS>()
};
static TABLE: fi_ops_ep = fi_ops_ep {
    cancel: Some(cancel),
    getopt: Some(getopt),
    setopt: Some(setopt),
    rx_size_left: Some(rx_size_left),
    tx_size_left: Some(tx_size_left),
    ..fi_ops_ep::failing::<FI_ENOSYS>()
};
static CLOSED: fi_ops_ep = fi_ops_ep::failing::<FI_EBADF>();
static CLOSED_NAMES: fi_ops_cm = fi_ops_cm::failing::<FI_EBADF>();
static CLOSED_MSG: fi_ops_msg = fi_ops_msg::failing::<FI_EBADF>();
static CLOSED_RMA: fi_ops_rma = fi_ops_rma::failing::<FI_EBADF>();
static CLOSED_TAGGED: fi_ops_tagged = fi_ops_tagged::failing::<FI_EBADF>();
static CLOSED_ATOMIC: fi_ops_atomic = fi_ops_atomic::failing::<FI_EBADF>();
static COLLECTIVE: fi_ops_collective = fi_ops_collective::failing::<FI_ENOSYS>();

// SAFETY: `fid_ep` begins with a `fid`.
unsafe impl Class for Endpoint {
    type C = fid_ep;

    const NUMBER: usize = FI_CLASS_EP;

    const OPS: &'static fi_ops = &FID;

    fn open(fid: fid) -> fid_ep {
        fid_ep {
            fid,
            ops: &TABLE,
            cm: &cm::TABLE,
            msg: &msg::TABLE,
            rma: &rma::TABLE,
            tagged: &tagged::TABLE,
            atomic: &atomic::TABLE,
            collective: &COLLECTIVE,
        }
    }

    fn closed(fid: fid) -> fid_ep {
        fid_ep {
            fid,
            ops: &CLOSED,
            cm: &CLOSED_NAMES,
            msg: &CLOSED_MSG,
            rma: &CLOSED_RMA,
            tagged: &CLOSED_TAGGED,
            atomic: &CLOSED_ATOMIC,
            collective: &COLLECTIVE,
        }
    }

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<Endpoint> = Pool::new();
        &POOL
    }
}

/// `fi_endpoint`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the table is that of a domain; the program passes an entry and a place for the object.
        unsafe {
            let domain = Object::<Domain>::of(domain);
            let info = info.as_ref().ok_or(INVALID)?;
            let to = ep.as_mut().ok_or(INVALID)?;
            let opened = Endpoint::new(domain, info, info.tx_attr.as_ref(), info.rx_attr.as_ref())?;
            *to = Object::create(opened, context).as_ref().address();
        }
        Ok(())
    })
}

impl Endpoint {
    fn new(
        domain: &Object<Domain>,
        info: &fi_info,
        transmit: Option<&fi_tx_attr>,
        receive: Option<&fi_rx_attr>,
    ) -> Outcome<Self> {
        let receive_flags = receive.map_or(0, |receive| receive.op_flags);
        let capabilities = bits::capabilities(info.caps).ok_or(INVALID)?;
        let capabilities = bits::with_default_flags(capabilities, receive_flags);
        // SAFETY: the program passes an entry of libfabric.
        domain.takes_keys_of(info.caps, unsafe { info.domain_attr.as_ref() })?;
        let mut options = domain.fabric.settings.environment.endpoint.clone();
        if !capabilities.is_empty() {
            options = options.capabilities(capabilities);
        }
        let most_pieces = transmit
            .map_or(0, |transmit| transmit.iov_limit)
            .max(receive.map_or(0, |receive| receive.iov_limit));
        let mut defaults = Defaults::default();
        if let Some(transmit) = transmit {
            let flags = bits::transmit_flags(transmit.op_flags).ok_or(Errno(FI_EBADFLAGS))?;
            options = options.transmit(ContextOptions::new().flags(flags));
            defaults.inject = transmit.op_flags & FI_INJECT != 0;
            defaults.transmit_flags = transmit.op_flags;
        }
        if let Some(receive) = receive {
            let mut flags = efa::OperationFlags::empty();
            flags.set(efa::OperationFlags::COMPLETION, receive.op_flags & FI_COMPLETION != 0);
            options = options.receive(ContextOptions::new().flags(flags));
            defaults.receive_many = receive.op_flags & FI_MULTI_RECV != 0;
            defaults.receive_flags = receive.op_flags;
        }
        // SAFETY: the program passes an entry of libfabric.
        let attr = unsafe { info.ep_attr.as_ref() };
        let shares = attr.map_or([0; 2], |attr| [attr.tx_ctx_cnt, attr.rx_ctx_cnt]);
        let kind = attr.map_or(FI_EP_RDM, |attr| attr.type_);
        let connection = match kind {
            FI_EP_RDM | FI_EP_UNSPEC => None,
            // SAFETY: as above.
            FI_EP_MSG => Some(unsafe { Connection::new(info) }?),
            _ => return Err(INVALID),
        };
        // SAFETY: an entry's address has the length that it says.
        let source = unsafe { entry::address(info.src_addr, info.src_addrlen) };
        let host_port = source.as_ref().and_then(HostPort::from_bytes);
        let host_port = host_port.filter(|host_port| host_port.0.port() != 0);
        let setup = Setup { options, ..Setup::default() };
        Ok(Self {
            enabled: OnceLock::new(),
            most_pieces: most_pieces.clamp(PIECES, MOST_PIECES),
            addressed: if connection.is_none() { u64::MAX } else { 0 },
            connection,
            host_port,
            address_server: OnceLock::new(),
            setup: Mutex::new(setup),
            claims: Mutex::default(),
            shares: shares.map(|contexts| contexts == FI_SHARED_CONTEXT),
            defaults,
            domain: Use::new(domain),
        })
    }

    fn setup(&self) -> MutexGuard<'_, Setup> {
        lock(&self.setup)
    }

    /// The endpoint, once it is enabled.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` before.
    #[inline(always)]
    pub(crate) fn endpoint(&self) -> Outcome<&efa::Endpoint> {
        match self.enabled.get() {
            Some(enabled) => Ok(enabled),
            None => Err(Errno(FI_EOPBADSTATE)),
        }
    }

    /// The endpoint, if it is enabled and has a connection.
    pub(crate) fn connected(&self) -> Option<&MsgEndpoint> {
        match self.enabled.get()? {
            Enabled::Connected(endpoint) => Some(endpoint),
            Enabled::Datagram(_) => None,
        }
    }

    /// The peer at an address of the program. With a connection every address stands for the only peer.
    #[inline(always)]
    pub(crate) fn peer(&self, at: fi_addr_t) -> FiAddr {
        FiAddr(at & self.addressed)
    }

    /// A message to a peer.
    #[inline(always)]
    pub(crate) fn message(&self, to: fi_addr_t) -> Message {
        Message::to(self.peer(to))
    }

    /// The source of a receive. It means something to endpoints with `FI_DIRECTED_RECV`; others ignore it.
    #[inline(always)]
    pub(crate) fn source(&self, source: fi_addr_t) -> Option<FiAddr> {
        (source != FI_ADDR_UNSPEC && self.is_directed()).then_some(FiAddr(source))
    }

    /// A receive with its source, if it is to have one.
    #[inline(always)]
    pub(crate) fn from(&self, receive: Receive, source: fi_addr_t) -> Receive {
        match self.source(source) {
            None => receive,
            Some(source) => receive.from(source),
        }
    }

    fn is_directed(&self) -> bool {
        self.connection.is_none()
            && self
                .enabled
                .get()
                .is_some_and(|ep| ep.capabilities().contains(efa::Capabilities::DIRECTED_RECV))
    }

    /// Messages that were claimed, by the contexts of their claims.
    pub(crate) fn claims(&self) -> MutexGuard<'_, HashMap<u64, Claim>> {
        lock(&self.claims)
    }

    /// The completion queue of receives.
    ///
    /// # Errors
    /// `FI_ENOCQ` if there is none.
    pub(crate) fn receive_queue(&self) -> Outcome<Use<CompletionQueue>> {
        self.setup().receive.clone().ok_or(Errno(FI_ENOCQ))
    }

    /// Binds what the program bound to it.
    fn bind_all(&self, setup: &Setup, builder: EndpointBuilder) -> EndpointBuilder {
        let Setup { transmit, receive, selective, addresses, events, counters, .. } = setup;
        let Setup { sends, receives, .. } = setup;
        let builder = match events {
            Some(events) => builder.bind_event_queue(&events.events),
            None => builder,
        };
        let builder = counters.iter().fold(builder, |builder, (counter, kinds)| {
            builder.bind_counter(&counter.counter, *kinds)
        });
        let builder =
            self.bind_queue(builder, transmit.as_deref(), Direction::Transmit, selective[0]);
        let builder =
            self.bind_queue(builder, receive.as_deref(), Direction::Receive, selective[1]);
        let builder = match addresses {
            Some(addresses) => builder.bind_address_vector(&addresses.addresses),
            None => builder,
        };
        let builder = match sends {
            Some(sends) => builder.bind_send_budget(&sends.budget),
            None => builder,
        };
        match receives {
            Some(receives) => builder.bind_shared_receive_queue(&receives.queue),
            None => builder,
        }
    }

    /// Binds a queue. A direction without one is only counted.
    fn bind_queue(
        &self,
        builder: EndpointBuilder,
        queue: Option<&CompletionQueue>,
        direction: Direction,
        is_selective: bool,
    ) -> EndpointBuilder {
        let (builder, is_selective) = match queue {
            Some(queue) => (builder.bind_completion_queue(&queue.queue, direction), is_selective),
            None => {
                let unread = self.domain.domain.unread_completion_queue();
                (builder.bind_completion_queue(&unread, direction), true)
            }
        };
        if is_selective { builder.selective(direction) } else { builder }
    }

    /// An endpoint with a connection.
    fn with_connection(
        &self,
        setup: &Setup,
        mut options: EndpointOptions,
    ) -> Result<MsgEndpoint, EnableError> {
        let usual = MsgEndpointOptions::default();
        options.protocol.min_receive_buffers = usual.endpoint.protocol.min_receive_buffers;
        let mut builder = self.domain.domain.msg_endpoint(usual.endpoint(options));
        if let Some(events) = &setup.events {
            builder = builder.bind_event_queue(&events.events);
        }
        builder.bind_with(|builder| self.bind_all(setup, builder)).enable()
    }

    fn bind(&self, to: *const fid, flags: u64) -> Outcome<()> {
        // SAFETY: a program passes null or an object of libfabric.
        let class = unsafe { to.as_ref() }.ok_or(INVALID)?.fclass;
        if self.enabled.get().is_some() {
            return Err(Errno(FI_EOPBADSTATE));
        }
        // SAFETY: as above.
        unsafe {
            match class {
                FI_CLASS_CQ => self.bind_completion_queue(Object::argument(to)?, flags),
                FI_CLASS_EQ => self.bind_event_queue(Object::argument(to)?),
                FI_CLASS_CNTR => self.bind_counter(Object::argument(to)?, flags),
                FI_CLASS_AV => self.bind_address_vector(Object::argument(to)?, flags),
                FI_CLASS_STX_CTX => self.bind_shared_sends(Object::argument(to)?, flags),
                FI_CLASS_SRX_CTX => self.bind_shared_receives(Object::argument(to)?, flags),
                _ => Err(INVALID),
            }
        }
    }

    fn bind_completion_queue(&self, queue: &Object<CompletionQueue>, flags: u64) -> Outcome<()> {
        const KNOWN: u64 = FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION;
        if flags & !KNOWN != 0 || flags & (FI_TRANSMIT | FI_RECV) == 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        domain::of_same(&self.domain, &queue.domain)?;
        let mut setup = self.setup();
        let Setup { transmit, receive, selective, .. } = &mut *setup;
        let asked = [flags & FI_TRANSMIT != 0, flags & FI_RECV != 0];
        if (asked[0] && transmit.is_some()) || (asked[1] && receive.is_some()) {
            return Err(INVALID);
        }
        for (slot, side) in [transmit, receive].into_iter().zip(0..) {
            if asked[side] {
                *slot = Some(Use::new(queue));
                selective[side] = flags & FI_SELECTIVE_COMPLETION != 0;
            }
        }
        Ok(())
    }

    fn bind_event_queue(&self, events: &Object<EventQueue>) -> Outcome<()> {
        if !self.domain.fabric.is(events.fabric.object()) {
            return Err(INVALID);
        }
        match &mut self.setup().events {
            Some(_) => Err(INVALID),
            slot => {
                *slot = Some(Use::new(events));
                Ok(())
            }
        }
    }

    fn bind_counter(&self, counter: &Object<Counter>, flags: u64) -> Outcome<()> {
        let kinds = counter::counted(flags)?;
        domain::of_same(&self.domain, &counter.domain)?;
        let counters = &mut self.setup().counters;
        if counters.iter().any(|(_, taken)| taken.intersects(kinds)) {
            return Err(INVALID);
        }
        counters.push((Use::new(counter), kinds));
        Ok(())
    }

    fn bind_address_vector(&self, addresses: &Object<AddressVector>, flags: u64) -> Outcome<()> {
        self.bind_only(&mut self.setup().addresses, addresses, &addresses.domain, flags)
    }

    fn bind_shared_sends(&self, sends: &Object<SharedSends>, flags: u64) -> Outcome<()> {
        self.bind_only(&mut self.setup().sends, sends, &sends.domain, flags)
    }

    fn bind_shared_receives(&self, receives: &Object<SharedReceives>, flags: u64) -> Outcome<()> {
        self.bind_only(&mut self.setup().receives, receives, &receives.domain, flags)
    }

    /// Binds an object of which an endpoint has one, and which has no flags.
    fn bind_only<T: Class>(
        &self,
        slot: &mut Option<Use<T>>,
        object: &Object<T>,
        of: &Use<Domain>,
        flags: u64,
    ) -> Outcome<()> {
        if flags != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        domain::of_same(&self.domain, of)?;
        match slot {
            Some(_) => Err(INVALID),
            None => {
                *slot = Some(Use::new(object));
                Ok(())
            }
        }
    }
}

impl Object<Endpoint> {
    /// `fi_enable`.
    pub(crate) fn enable(&self) -> Outcome<()> {
        let mut setup = self.setup();
        if self.enabled.get().is_some() {
            return Err(Errno(FI_EOPBADSTATE));
        }
        if self.connection.is_some() && setup.events.is_none() {
            return Err(Errno(FI_ENOEQ));
        }
        let bound = [setup.sends.is_some(), setup.receives.is_some()];
        if let Some(at) = (0..2).find(|&at| self.shares[at] && !bound[at]) {
            let context = ["transmit", "receive"][at];
            crate::log::warn(format_args!(
                "an endpoint with a shared {context} context can't be enabled before that is bound"
            ));
            return Err(Errno(FI_EOPBADSTATE));
        }
        // Of an attempt that failed after the endpoint was enabled.
        setup.forget_events();
        // Events have the number as their context.
        let mut options = setup.options.clone();
        if let Some(events) = &setup.events {
            let number = events.register_source(EventSource {
                fid: Pointer::of(self.fid()),
                context: Pointer::of(self.context()),
                info: None,
                is_connected: false,
            });
            options = options.context(number);
            setup.number = Some(number);
        }
        let enabled = match &self.connection {
            None => {
                let builder = self.domain.domain.endpoint(options);
                self.bind_all(&setup, builder).enable().map(Enabled::Datagram)
            }
            Some(_) => self.with_connection(&setup, options).map(Enabled::Connected),
        };
        if enabled.is_err() {
            setup.forget_events();
        }
        let enabled = enabled.map_err(|error| {
            crate::log::warn(format_args!("the endpoint can't be enabled: {error}"));
            errors::of_enable(&error)
        })?;
        if let (Some(host_port), Enabled::Datagram(endpoint)) = (self.host_port, &enabled) {
            let started = AddressServer::start(host_port, &endpoint.address().to_bytes());
            let server = started.map_err(|error| {
                crate::log::warn(format_args!("can't answer at {}: {error}", host_port.0));
                errors::of_io(&error)
            })?;
            // The lock is held: nobody else has set it.
            let _ = self.address_server.set(server);
        }
        let Setup { receives, receive, .. } = &*setup;
        let member = receives.as_ref().map(|all| shared::Member::new(all, receive.as_ref()));
        setup.member = member;
        // As above.
        let _ = self.enabled.set(enabled);
        Ok(())
    }

    /// Reports at its event queue that it is no longer connected.
    pub(crate) fn report_shutdown(&self) {
        let setup = self.setup();
        if let (Some(events), Some(number)) = (&setup.events, setup.number) {
            events.shut_down(number);
        }
    }

    /// Does what can be done for its connection now, and not only when the event queue is read: a request goes out.
    pub(crate) fn progress_events(&self) {
        if let Some(events) = &self.setup().events {
            // What is found stays in the queue.
            let _ = events.fabric.fabric.try_wait(&[&events.events]);
        }
    }

    /// Ends what is under way, without completions, and its events.
    fn end(&self) {
        let timeout = self.domain.fabric.settings.close_timeout;
        if let Some(enabled) = self.enabled.get() {
            enabled.discard_completions();
        }
        let ended = match self.enabled.get() {
            None => Ok(()),
            Some(Enabled::Datagram(endpoint)) => endpoint.close(timeout),
            Some(Enabled::Connected(endpoint)) => endpoint.close(timeout),
        };
        if let Err(error) = ended {
            crate::log::warn(format_args!("closed an endpoint: {error}"));
        }
        self.setup().forget_events();
    }
}

/// `fi_ep_bind`.
unsafe extern "C" fn bind(fid: *mut fid, bfid: *mut fid, flags: u64) -> c_int {
    // SAFETY: the table is that of an endpoint.
    status(|| unsafe { Object::<Endpoint>::of(fid.cast()) }.bind(bfid, flags))
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: the table is that of an endpoint; with `FI_GETOPSFLAG` the program passes flags.
        unsafe {
            let ep = Object::<Endpoint>::of(fid.cast());
            match command {
                FI_ENABLE => ep.enable(),
                FI_GETOPSFLAG => {
                    let flags = arg.cast::<u64>().as_mut().ok_or(INVALID)?;
                    *flags = match *flags {
                        FI_TRANSMIT => ep.defaults.transmit_flags,
                        FI_RECV => ep.defaults.receive_flags,
                        _ => return Err(INVALID),
                    };
                    Ok(())
                }
                _ => Err(Errno(FI_ENOSYS)),
            }
        }
    })
}

unsafe extern "C" fn rx_size_left(ep: *mut fid_ep) -> isize {
    // SAFETY: the table is that of an endpoint.
    count(|| Ok(unsafe { Object::<Endpoint>::of(ep) }.endpoint()?.receives_left()))
}

unsafe extern "C" fn tx_size_left(ep: *mut fid_ep) -> isize {
    // SAFETY: the table is that of an endpoint.
    count(|| Ok(unsafe { Object::<Endpoint>::of(ep) }.endpoint()?.transmits_left()))
}

/// `fi_cancel`: a success even if no receive with this context waits, as with libfabric's providers.
unsafe extern "C" fn cancel(fid: fid_t, context: *mut c_void) -> isize {
    started(|| {
        // SAFETY: the table is that of an endpoint.
        let ep = unsafe { Object::<Endpoint>::of(fid.cast()) };
        let _found = ep.endpoint()?.cancel_context(context.expose_provenance() as u64);
        Ok(())
    })
}

unsafe extern "C" fn getopt(
    fid: fid_t,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut usize,
) -> c_int {
    status(|| {
        if level != FI_OPT_ENDPOINT {
            return Err(Errno(FI_ENOPROTOOPT));
        }
        // SAFETY: the table is that of an endpoint; `optlen` says how many bytes there are room for.
        unsafe {
            let ep = Object::<Endpoint>::of(fid.cast());
            let number = match optname {
                FI_OPT_CM_DATA_SIZE if ep.connection.is_some() => cm::MOST_DATA as u64,
                FI_OPT_MIN_MULTI_RECV => ep.setup().options.protocol.min_multi_receive,
                FI_OPT_EFA_RNR_RETRY => ep.setup().options.rnr_retry.into(),
                _ => return Err(Errno(FI_ENOPROTOOPT)),
            };
            let number = usize::try_from(number).unwrap_or(usize::MAX);
            av::copy_name(&number.to_ne_bytes(), optval, optlen)
        }
    })
}

unsafe extern "C" fn setopt(
    fid: fid_t,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: usize,
) -> c_int {
    status(|| {
        if level != FI_OPT_ENDPOINT {
            return Err(Errno(FI_ENOPROTOOPT));
        }
        // SAFETY: the table is that of an endpoint; the program passes `optlen` bytes.
        unsafe {
            let ep = Object::<Endpoint>::of(fid.cast());
            if !matches!(optname, FI_OPT_MIN_MULTI_RECV | FI_OPT_EFA_RNR_RETRY) {
                return Err(Errno(FI_ENOPROTOOPT));
            }
            if optval.is_null() || optlen != size_of::<usize>() {
                return Err(INVALID);
            }
            let number = optval.cast::<usize>().read_unaligned();
            let options = &mut ep.setup().options;
            match (optname, ep.enabled.get()) {
                (FI_OPT_EFA_RNR_RETRY, None) => options.rnr_retry = rnr_retry(number)?,
                (FI_OPT_EFA_RNR_RETRY, Some(_)) => return Err(Errno(FI_EOPBADSTATE)),
                (_, enabled) => {
                    let number = number.max(1) as u64;
                    options.protocol.min_multi_receive = number;
                    if let Some(endpoint) = enabled {
                        endpoint.set_min_multi_receive(number);
                    }
                }
            }
            Ok(())
        }
    })
}

/// How often the device sends again after RNR; more than the device knows is invalid.
fn rnr_retry(number: usize) -> Outcome<u8> {
    u8::try_from(number).ok().filter(|&retries| retries <= UNLIMITED_RETRIES).ok_or(INVALID)
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    status(|| {
        // SAFETY: the table is that of an endpoint.
        let ep = unsafe { Object::<Endpoint>::of(fid.cast()) };
        {
            // This takes as long as peers let it, and a thread that closes another object doesn't wait for it. So all that
            // is used here must be counted: the endpoint is, and counts its domain, its queues, that of events included, its
            // counters and its address vector.
            let used = Use::new(ep);
            threads::asleep(|| used.object().end());
        }
        // SAFETY: as above; the value isn't used afterwards.
        unsafe { ep.close() }.map(drop)
    })
}
