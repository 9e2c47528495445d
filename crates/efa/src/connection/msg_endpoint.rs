//! Endpoints with a connection.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use efa_connect::{Data, DataTooLong, Exchange};
use efa_device::DeviceError;

use super::call::Call;
use super::event_queue::EventQueue;
use super::request::{ConnectionRequest, NotAnswered};
use super::sources::Source;
use super::state::{ConnectionState, PEER, Phase};
use super::stream::Watch;
use crate::address_vector::FiAddr;
use crate::completion_queue::CompletionQueue;
use crate::counter::{Counted, Counter};
use crate::domain::Domain;
use crate::endpoint::Endpoint;
use crate::endpoint_builder::{Direction, EndpointBuilder};
use crate::endpoint_options::{EndpointOptions, Receiving};
use crate::error::{Bound, CloseError, EnableError};
use crate::info::Info;
use crate::send_budget::SendBudget;
use crate::shared_receive_queue::SharedReceiveQueue;

/// Options of an endpoint with a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MsgEndpointOptions {
    /// Options of the endpoint on the device. By default it has 4 receive buffers while it is idle, and more
    /// under load. Packets of anyone but its peer are dropped, whatever its
    /// [`Bounds::discovered`](crate::Bounds::discovered) says.
    pub endpoint: EndpointOptions,
    /// How long the other side may take to answer; 10 s by default.
    pub connect_timeout: Duration,
}

/// Receive buffers of an idle connection, each as long as a packet.
const IDLE_BUFFERS: usize = 4;

impl Default for MsgEndpointOptions {
    fn default() -> Self {
        let mut endpoint = EndpointOptions::default();
        endpoint.protocol.min_receive_buffers = IDLE_BUFFERS;
        Self { endpoint, connect_timeout: Duration::from_secs(10) }
    }
}

impl From<&Info> for MsgEndpointOptions {
    /// What an entry says of its endpoints.
    fn from(info: &Info) -> Self {
        let usual = Self::default();
        let mut endpoint = EndpointOptions::from(info);
        endpoint.protocol.min_receive_buffers = usual.endpoint.protocol.min_receive_buffers;
        Self { endpoint, ..usual }
    }
}

impl MsgEndpointOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`endpoint`](Self#structfield.endpoint).
    #[must_use]
    pub fn endpoint(self, endpoint: EndpointOptions) -> Self {
        Self { endpoint, ..self }
    }

    /// Sets [`connect_timeout`](Self#structfield.connect_timeout).
    #[must_use]
    pub fn connect_timeout(self, connect_timeout: Duration) -> Self {
        Self { connect_timeout, ..self }
    }

    /// Sets the [context](EndpointOptions#structfield.context) of the endpoint, which comes back with its events.
    #[must_use]
    pub fn context(self, context: u64) -> Self {
        Self { endpoint: self.endpoint.context(context), ..self }
    }
}

/// Why connecting or accepting did not begin. The endpoint is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartConnectError {
    /// There is too much data for a request or an answer.
    #[error(transparent)]
    DataTooLong(#[from] DataTooLong),
    /// The endpoint is connecting, connected, or was connected once.
    #[error("the endpoint is connecting, connected, or was connected once")]
    NotIdle,
    /// The endpoint can't be enabled.
    #[error(transparent)]
    Enable(#[from] EnableError),
    /// The device can't address the caller's endpoint.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The system has no descriptor or memory for it.
    #[error("TCP connection: {0}")]
    System(io::Error),
}

impl From<io::Error> for StartConnectError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// An endpoint with a connection that is not enabled (`fi_endpoint` of type `FI_EP_MSG`). It takes completion
/// queues, an event queue and counters, and can't transfer anything:
///
/// ```compile_fail,E0599
/// # use efa::{Fabric, LocalOptions, MsgEndpointOptions, Receive};
/// let domain = Fabric::local(LocalOptions::default()).domain()?;
/// let disabled = domain.msg_endpoint(MsgEndpointOptions::default());
/// disabled.receive(Receive::untagged(), vec![0; 64], 1)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "an endpoint does nothing before it is enabled"]
pub struct MsgEndpointBuilder {
    domain: Domain,
    endpoint: EndpointBuilder,
    is_in_place: bool,
    events: Option<EventQueue>,
    bound_twice: bool,
    connect_timeout: Duration,
    context: u64,
}

impl Domain {
    /// Begins an endpoint with a connection, which is then bound, and enabled, connected or accepted.
    pub fn msg_endpoint(&self, options: MsgEndpointOptions) -> MsgEndpointBuilder {
        let MsgEndpointOptions { mut endpoint, connect_timeout } = options;
        let context = endpoint.context;
        endpoint.protocol.bounds.discovered = 0;
        let is_in_place = endpoint.receiving == Receiving::InPlace;
        MsgEndpointBuilder {
            domain: self.clone(),
            endpoint: EndpointBuilder::new(self, endpoint).connected(),
            is_in_place,
            events: None,
            bound_twice: false,
            connect_timeout,
            context,
        }
    }
}

impl MsgEndpointBuilder {
    /// Binds a completion queue. Each direction needs one, even if nothing is ever sent or received.
    pub fn bind_completion_queue(self, queue: &CompletionQueue, direction: Direction) -> Self {
        Self { endpoint: self.endpoint.bind_completion_queue(queue, direction), ..self }
    }

    /// Binds the event queue, to which the connection's events come. For [others](crate::Event) of the endpoint
    /// [bind it with](Self::bind_with) [`EndpointBuilder::bind_event_queue`] as well.
    pub fn bind_event_queue(mut self, events: &EventQueue) -> Self {
        self.bound_twice |= self.events.replace(events.bound()).is_some();
        self
    }

    /// Binds what an endpoint without a connection can be bound to as well, and makes its queues
    /// [selective](EndpointBuilder::selective). An address vector is the endpoint's own, and can't be bound.
    pub fn bind_with(self, bind: impl FnOnce(EndpointBuilder) -> EndpointBuilder) -> Self {
        Self { endpoint: bind(self.endpoint), ..self }
    }

    /// Binds a budget that the endpoint's sends, writes, reads and atomics take a share of.
    pub fn bind_send_budget(self, budget: &SendBudget) -> Self {
        Self { endpoint: self.endpoint.bind_send_budget(budget), ..self }
    }

    /// Binds a queue that the endpoint takes its receives from. Receives that are posted there do not fail when
    /// the connection ends.
    pub fn bind_shared_receive_queue(self, queue: &SharedReceiveQueue) -> Self {
        Self { endpoint: self.endpoint.bind_shared_receive_queue(queue), ..self }
    }

    /// Binds a counter of some kinds of operations, which also complete on their queues.
    pub fn bind_counter(self, counter: &Counter, kinds: Counted) -> Self {
        Self { endpoint: self.endpoint.bind_counter(counter, kinds), ..self }
    }

    /// Enables the endpoint: receives can be posted, and it can [connect](MsgEndpoint::connect) or
    /// [accept](MsgEndpoint::accept).
    ///
    /// # Errors
    /// Something is missing, bound twice or of another domain; an option is invalid; the device fails.
    pub fn enable(self) -> Result<MsgEndpoint, EnableError> {
        let Self { domain, endpoint, is_in_place, events, bound_twice, connect_timeout, context } =
            self;
        let events = events.ok_or(EnableError::Missing(Bound::EventQueue))?;
        if bound_twice {
            return Err(EnableError::Twice(Bound::EventQueue));
        }
        if is_in_place {
            return Err(EnableError::ConnectedInPlace);
        }
        let addresses = domain.address_vector();
        let endpoint = endpoint.bind_address_vector(&addresses).enable()?;
        endpoint.shared.await_connection();
        let state = ConnectionState::new(&endpoint.shared, addresses, context, connect_timeout);
        let attachment = Attachment { events, state: Arc::new(state) };
        Ok(MsgEndpoint { endpoint, attachment })
    }

    /// What is to be bound to the endpoint on the device.
    #[cfg(feature = "tokio")]
    pub(crate) fn endpoint(&self) -> &EndpointBuilder {
        &self.endpoint
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Enables the endpoint. Events of its connection come to this queue, with this number as their context.
    #[cfg(feature = "tokio")]
    pub(crate) fn enable_at(
        self,
        events: &EventQueue,
        context: u64,
    ) -> Result<MsgEndpoint, EnableError> {
        Self { context, ..self.bind_event_queue(events) }.enable()
    }

    /// Enables the endpoint and begins to [connect](MsgEndpoint::connect) it.
    ///
    /// # Errors
    /// As for [`enable`](Self::enable) and [`MsgEndpoint::connect`].
    pub fn connect(self, to: SocketAddr, data: &[u8]) -> Result<MsgEndpoint, StartConnectError> {
        let data = Data::new(data)?;
        let endpoint = self.enable()?;
        endpoint.begin_connect(to, &data)?;
        Ok(endpoint)
    }

    /// Enables the endpoint and [accepts](MsgEndpoint::accept) a request on it.
    ///
    /// # Errors
    /// As for [`enable`](Self::enable) and [`MsgEndpoint::accept`]; the request comes back.
    pub fn accept(
        self,
        request: ConnectionRequest,
        data: &[u8],
    ) -> Result<MsgEndpoint, NotAnswered> {
        match self.enable() {
            Ok(endpoint) => endpoint.accept(request, data).map(|()| endpoint),
            Err(error) => Err(NotAnswered { error: error.into(), request: Box::new(request) }),
        }
    }
}

/// An enabled endpoint with one peer at most (`FI_EP_MSG`): the one that it connected to, or whose request it
/// accepted. It has the operations of an [`Endpoint`]; [`PEER`](Self::PEER) stands for its peer.
///
/// Receives can be posted from the beginning. Sends, writes, reads and atomics fail to start with
/// [`StartError::NotConnected`](crate::StartError::NotConnected) before the connection is made, and after it has ended.
/// They start as soon as the event queue has [`ControlEvent::Connected`](crate::ControlEvent::Connected), or a message
/// of the peer has arrived, which may come first: then the program can answer it.
///
/// When the other side ends the connection, what is under way ends with
/// [`OperationError::ConnectionEnded`](crate::OperationError::ConnectionEnded). Messages that have arrived complete can
/// still be received; a receive that matches none of them ends so at once.
///
/// When it is dropped, what is under way fails, and the other side gets a
/// [`Shutdown`](crate::ControlEvent::Shutdown). [`shutdown`](Self::shutdown) finishes sends before.
pub struct MsgEndpoint {
    // The queue pair is destroyed before the other side learns of the end.
    endpoint: Endpoint,
    attachment: Attachment,
}

/// What joins the endpoint to its event queue. When it is dropped, the connection ends.
pub(crate) struct Attachment {
    events: EventQueue,
    state: Arc<ConnectionState>,
}

impl MsgEndpoint {
    /// The connected peer, for [`Message::to`](crate::Message::to), [`Receive::from`](crate::Receive::from) and
    /// [`Rma`](crate::Rma).
    pub const PEER: FiAddr = PEER;

    /// Begins to connect to a listener, with up to 256 bytes of data for its program (`fi_connect`). The event
    /// queue reports the outcome: [`Connected`](crate::ControlEvent::Connected), or an error, after which the
    /// endpoint may connect again.
    ///
    /// # Errors
    /// There is too much data, the endpoint is or was connected, or the system has no descriptor left.
    pub fn connect(&self, to: SocketAddr, data: &[u8]) -> Result<(), StartConnectError> {
        self.begin_connect(to, &Data::new(data)?)
    }

    pub(crate) fn begin_connect(
        &self,
        to: SocketAddr,
        data: &Data,
    ) -> Result<(), StartConnectError> {
        let Attachment { events, state } = &self.attachment;
        let shared = events.shared();
        let address = self.endpoint.address().to_bytes();
        let exchange = Exchange::caller(address, data, shared.now() + state.timeout);
        self.attach(|watch, key| {
            let call = Call::to(shared.fabric(), to, exchange)?;
            call.register(watch, key)?;
            Ok(call)
        })
    }

    /// Accepts a request, with up to 256 bytes of data for the caller (`fi_accept`). The event queue reports
    /// [`Connected`](crate::ControlEvent::Connected) when the caller is ready; its messages may arrive before.
    ///
    /// # Errors
    /// There is too much data, the endpoint is or was connected, or the caller's address is invalid; the request
    /// comes back.
    pub fn accept(&self, request: ConnectionRequest, data: &[u8]) -> Result<(), NotAnswered> {
        let mut request = Box::new(request);
        let accepted = Data::new(data)
            .map_err(StartConnectError::from)
            .and_then(|data| self.begin_accept(&mut request, &data));
        accepted.map_err(|error| NotAnswered { error, request })
    }

    /// Answers a request, which keeps its call if that fails: then nothing was sent, and no peer is left.
    pub(crate) fn begin_accept(
        &self,
        request: &mut ConnectionRequest,
        data: &Data,
    ) -> Result<(), StartConnectError> {
        let Attachment { events, state } = &self.attachment;
        let address = self.endpoint.address().to_bytes();
        let deadline = events.shared().now() + state.timeout;
        self.attach(|watch, key| {
            // A request that can be passed here has its call.
            let mut call =
                request.take_call().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
            if let Err(error) = state.admit(request.address().to_bytes()) {
                request.put_back(call);
                return Err(error.into());
            }
            if let Err(error) = call.register(watch, key) {
                state.forget_peer();
                request.put_back(call);
                return Err(error.into());
            }
            call.exchange.accept(address, data, deadline);
            call.pump();
            Ok(call)
        })
    }

    /// Gives the event queue a call, which is registered with it.
    fn attach(
        &self,
        call: impl FnOnce(&Watch, u64) -> Result<Call, StartConnectError>,
    ) -> Result<(), StartConnectError> {
        let Attachment { events, state } = &self.attachment;
        events.shared().add(|key, watch| {
            let mut phase = state.phase.lock();
            if *phase != Phase::Idle {
                return Err(StartConnectError::NotIdle);
            }
            let call = call(watch, key)?;
            *phase = Phase::Busy(key as usize);
            Ok(Source::Connection { state: state.clone(), call })
        })?;
        Ok(())
    }

    /// Closes the endpoint: [shuts the connection down](Self::shutdown), then [closes](Endpoint::close) the rest. It
    /// can't connect or accept any more.
    ///
    /// # Errors
    /// Not all was sent in time. The endpoint is closed nevertheless; sends under way fail.
    pub fn close(&self, timeout: Duration) -> Result<(), CloseError> {
        self.attachment.close(&self.endpoint, timeout)
    }

    /// Ends the connection: finishes the sends under way, then tells the other side (`fi_shutdown`). It polls,
    /// and blocks the thread. Receives fail, but for messages that have arrived. There is no event at
    /// this side.
    ///
    /// Without a connection, and after its end, it does nothing.
    ///
    /// # Errors
    /// Not all was sent in time. The connection is ended nevertheless, and sends under way fail.
    pub fn shutdown(&self, timeout: Duration) -> Result<(), CloseError> {
        self.attachment.shutdown(&self.endpoint, timeout)
    }

    /// The endpoint, and what is to be dropped after it.
    #[cfg(feature = "tokio")]
    pub(crate) fn into_parts(self) -> (Endpoint, Attachment) {
        (self.endpoint, self.attachment)
    }
}

impl Attachment {
    /// Whether the connection has ended.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_over(&self) -> bool {
        *self.state.phase.lock() == Phase::Over
    }

    /// [Closes](MsgEndpoint::close) the endpoint that it is of.
    pub(crate) fn close(&self, endpoint: &Endpoint, timeout: Duration) -> Result<(), CloseError> {
        let Self { events, state } = self;
        let clock = endpoint.domain().fabric().clock();
        let begin = clock.now();
        let shut_down = self.shutdown(endpoint, timeout);
        // A connection that another thread has begun meanwhile ends after the rest, as when the endpoint is dropped.
        let begun = events.shared().retire(state);
        // What the shutdown left of the time.
        let closed = endpoint.close(timeout.saturating_sub(clock.now() - begin));
        drop(begun);
        shut_down.and(closed).map_err(|_| CloseError { timeout })
    }

    /// [Shuts down](MsgEndpoint::shutdown) the connection of the endpoint that it is of.
    pub(crate) fn shutdown(
        &self,
        endpoint: &Endpoint,
        timeout: Duration,
    ) -> Result<(), CloseError> {
        let Self { events, state } = self;
        if !matches!(*state.phase.lock(), Phase::Busy(_)) {
            return Ok(());
        }
        state.stop_sending();
        let sent = endpoint.finish_sends(timeout);
        if let Some(removed) = events.shared().detach(state) {
            if let Source::Connection { mut call, .. } = removed {
                call.exchange.shut_down();
                call.pump();
            }
            state.drain();
            state.end();
        }
        sent
    }
}

#[cfg(all(test, feature = "sim"))]
impl MsgEndpoint {
    pub(super) fn state(&self) -> &ConnectionState {
        &self.attachment.state
    }
}

impl Deref for MsgEndpoint {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl fmt::Debug for MsgEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = *self.attachment.state.phase.lock();
        f.debug_struct("MsgEndpoint")
            .field("endpoint", &self.endpoint)
            .field("phase", &phase)
            .finish()
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        drop(self.events.shared().detach(&self.state));
    }
}
