//! Endpoints with a connection: futures that connect and accept, and that end with the connection.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use efa_connect::{Data, DataTooLong};
use tokio::sync::watch;

use super::endpoint::{AsyncEndpoint, EnableAsyncError, Ended, Futures};
use super::hub::{ClosedBy, Hub, Link, Member, Over};
use crate::address_vector::FiAddr;
use crate::connection::{
    Attachment, ConnectError, ConnectionRequest, MsgEndpoint, MsgEndpointBuilder, StartConnectError,
};
use crate::endpoint::Endpoint;
use crate::error::CloseError;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectAsyncError {
    /// The endpoint can't be enabled.
    #[error(transparent)]
    Enable(#[from] EnableAsyncError),
    /// The attempt did not begin.
    #[error(transparent)]
    Start(#[from] StartConnectError),
    /// The attempt failed: it was refused or rejected, timed out, or the other side gave it up.
    #[error(transparent)]
    Failed(#[from] ConnectError),
    /// Nobody watches the attempt any more. It was given up.
    #[error("the connection is watched no more: {0}")]
    Ended(Ended),
}

// Not `#[from]`, as in `AsyncError`.
impl From<Ended> for ConnectAsyncError {
    fn from(ended: Ended) -> Self {
        Self::Ended(ended)
    }
}

/// A request that was to be accepted, and led to no connection.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotAccepted {
    /// Why.
    pub error: ConnectAsyncError,
    /// The request, if nothing was sent to the caller: it can still be answered.
    pub request: Option<Box<ConnectionRequest>>,
}

/// An endpoint with a connection, whose operations are futures: an [`AsyncEndpoint`] with one peer, which
/// [`PEER`](Self::PEER) stands for (`FI_EP_MSG`). [`connect_async`](MsgEndpointBuilder::connect_async) and
/// [`accept_async`](MsgEndpointBuilder::accept_async) make one. What is said of a [`MsgEndpoint`] holds here too.
///
/// Clones are handles to the same endpoint, and so are those of the [`AsyncEndpoint`] in it. When the last one is dropped,
/// what is under way fails, and the other side gets a [`Shutdown`](crate::ControlEvent::Shutdown).
/// [`shutdown`](Self::shutdown) finishes sends before.
///
/// After the end of the connection, messages that have arrived complete can still be received. Other operations are
/// refused or fail with [`ConnectionEnded`](crate::OperationError::ConnectionEnded).
///
/// ```
/// use std::time::Duration;
/// use efa::with_tokio::{AsyncMsgEndpoint, ClosedBy};
/// use efa::{Fabric, LocalOptions, Message, MsgEndpointOptions, PassiveEndpointOptions, Receive};
///
/// const PEER: efa::FiAddr = AsyncMsgEndpoint::PEER;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let fabric = Fabric::local(LocalOptions::default());
/// let domain = fabric.domain()?;
/// let endpoint = || domain.msg_endpoint(MsgEndpointOptions::default());
/// let listener = fabric.listen_async("127.0.0.1:0".parse()?, PassiveEndpointOptions::default())?;
/// let at = listener.local_address();
///
/// let server = async {
///     let request = listener.accept().await?;
///     assert_eq!(request.data(), b"may I?");
///     let server = endpoint().accept_async(request, b"please").await?;
///     let message = server.receive(Receive::untagged(), vec![0; 64]).await?.into_message();
///     server.send(Message::to(PEER), message).await?;
///     assert_eq!(server.closed().await?, ClosedBy::Peer);
///     Ok::<_, Box<dyn std::error::Error>>(())
/// };
/// let client = async {
///     let client = endpoint().connect_async(at, b"may I?").await?;
///     assert_eq!(client.data(), b"please");
///     client.send(Message::to(PEER), "hello").await?;
///     let echo = client.receive(Receive::untagged(), vec![0; 64]).await?;
///     assert_eq!(echo.into_message(), *b"hello");
///     client.shutdown(Duration::from_secs(10)).await?;
///     Ok::<_, Box<dyn std::error::Error>>(())
/// };
/// let (served, called) = tokio::join!(server, client);
/// served?;
/// called?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AsyncMsgEndpoint {
    endpoint: AsyncEndpoint,
    data: Arc<[u8]>,
}

/// What joins an endpoint to its connection. When it is dropped, the connection ends.
pub(super) struct Connection {
    attachment: Attachment,
    member: Member,
}

/// The end of a connection, to be waited for.
pub(super) struct End(watch::Receiver<Link>);

impl End {
    /// Whether it is there. Fails if nobody watches the connection any more.
    pub(super) fn is_there(&self) -> Result<bool, Ended> {
        match &self.0.borrow().over {
            Some(Over::Unwatched(ended)) => Err(ended.clone()),
            over => Ok(over.is_some()),
        }
    }

    pub(super) async fn comes(&mut self) {
        // It doesn't fail: the sender notes an end before it is dropped.
        drop(self.0.wait_for(|link| link.over.is_some()).await);
    }
}

/// An enabled endpoint that may begin a connection.
struct Opened {
    endpoint: MsgEndpoint,
    futures: Futures,
    member: Member,
}

impl MsgEndpointBuilder {
    /// Enables the endpoint for a program of tokio, in whose runtime this is awaited, and connects it to a listener, with up
    /// to 256 bytes of data for its program ([`MsgEndpoint::connect`], `fi_connect`). The future completes once it is
    /// connected (`FI_CONNECTED`), or the attempt has failed. The timeout is
    /// [that of the endpoint](crate::MsgEndpointOptions::connect_timeout).
    ///
    /// The endpoint has a completion queue of its own, as one of [`enable_async`](crate::EndpointBuilder::enable_async).
    /// Events of its connection come to futures: an event queue can't be [bound](Self::bind_event_queue) for them. Other
    /// [events](crate::Event) come to [`next_event`](AsyncEndpoint::next_event), and to an event queue that was
    /// [bound for these](crate::EndpointBuilder::bind_event_queue); each goes to one of the two.
    ///
    /// A future that is dropped gives the attempt up: the listener's program finds that the caller has gone, also if it has
    /// accepted meanwhile.
    ///
    /// # Errors
    /// [`Failed`](ConnectAsyncError::Failed): nobody listens there, the listener's program rejected the request, or there
    /// was no answer in time. [`Start`](ConnectAsyncError::Start): there is too much data, or the system has no descriptor
    /// left. [`Enable`](ConnectAsyncError::Enable): as for `enable_async`, and if an event queue is bound.
    /// [`Ended`](ConnectAsyncError::Ended): the runtime was shut down.
    ///
    /// # Panics
    /// The runtime was built without its I/O driver.
    pub fn connect_async(
        self,
        to: SocketAddr,
        data: &[u8],
    ) -> impl Future<Output = Result<AsyncMsgEndpoint, ConnectAsyncError>> + Send + use<> {
        let data = Data::new(data);
        async move {
            let data = data.map_err(StartConnectError::from)?;
            let opened = Opened::new(self)?;
            opened.endpoint.begin_connect(to, &data)?;
            opened.connected().await
        }
    }

    /// The same for a request, which is [accepted](MsgEndpoint::accept) with up to 256 bytes of data for the caller
    /// (`fi_accept`). The future completes once the caller is ready (`FI_CONNECTED`).
    ///
    /// A future that is dropped before it is first polled rejects the request without data; later it ends the connection,
    /// or the attempt.
    ///
    /// # Errors
    /// As for [`connect_async`](Self::connect_async). The request comes back if it was not answered.
    ///
    /// # Panics
    /// The runtime was built without its I/O driver.
    pub fn accept_async(
        self,
        request: ConnectionRequest,
        data: &[u8],
    ) -> impl Future<Output = Result<AsyncMsgEndpoint, NotAccepted>> + Send + use<> {
        let data = Data::new(data);
        async move {
            let mut request = Box::new(request);
            match begin_accept(self, &mut request, data) {
                Ok(opened) => {
                    let connected = opened.connected().await;
                    connected.map_err(|error| NotAccepted { error, request: None })
                }
                Err(error) => Err(NotAccepted { error, request: Some(request) }),
            }
        }
    }
}

fn begin_accept(
    builder: MsgEndpointBuilder,
    request: &mut ConnectionRequest,
    data: Result<Data, DataTooLong>,
) -> Result<Opened, ConnectAsyncError> {
    let data = data.map_err(StartConnectError::from)?;
    let opened = Opened::new(builder)?;
    opened.endpoint.begin_accept(request, &data)?;
    Ok(opened)
}

impl Opened {
    fn new(builder: MsgEndpointBuilder) -> Result<Self, EnableAsyncError> {
        let hub = Hub::of(builder.domain().fabric())?;
        let futures = Futures::new(builder.endpoint())?;
        let member = Hub::join(hub);
        let bound = builder.bind_with(|endpoint| futures.bind(endpoint));
        let endpoint = bound.enable_at(member.events(), member.number())?;
        Ok(Self { endpoint, futures, member })
    }

    /// Waits until it is connected.
    async fn connected(self) -> Result<AsyncMsgEndpoint, ConnectAsyncError> {
        let Self { endpoint, futures, member } = self;
        let mut link = member.link();
        let (endpoint, attachment) = endpoint.into_parts();
        let connection = Connection { attachment, member };
        // What arrives before the event is taken from the device.
        let endpoint = futures.start(endpoint, Some(Box::new(connection)));
        let made = link.wait_for(|link| link.connected.is_some() || link.over.is_some()).await;
        let Link { connected, over } = made.map_err(|_| Ended::Runtime)?.clone();
        match (connected, over) {
            (Some(data), _) => Ok(AsyncMsgEndpoint { endpoint, data: data.into() }),
            (None, Some(Over::Failed(error))) => Err(error.into()),
            (None, Some(Over::Unwatched(ended))) => Err(ended.into()),
            // The endpoint is closed by nobody else.
            (None, _) => Err(Ended::Closed.into()),
        }
    }
}

impl AsyncMsgEndpoint {
    /// The connected peer, for [`Message::to`](crate::Message::to), [`Receive::from`](crate::Receive::from) and
    /// [`Rma`](crate::Rma).
    pub const PEER: FiAddr = MsgEndpoint::PEER;

    /// What the other side gave to `accept`; nothing at the side that accepted.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Waits for the end of the connection (`FI_SHUTDOWN`), and returns which side ended it. If the other one did, all that
    /// has arrived has completed, or can be received; receives that no message has matched have failed, or fail a moment
    /// before this. Any number of tasks may wait, also later. Dropping the future does nothing.
    ///
    /// If nobody takes [what was not asked for](AsyncEndpoint::unasked) and the endpoint makes no progress for that, the end
    /// is not seen before somebody does.
    ///
    /// # Errors
    /// The runtime in which the endpoint was connected was shut down, so that nobody watches the connection; or the system
    /// can't make tasks sleep.
    pub async fn closed(&self) -> Result<ClosedBy, Ended> {
        let mut link = match &self.endpoint.0.connection {
            Some(connection) => connection.member.link(),
            None => return Err(Ended::Closed),
        };
        let ended = link.wait_for(|link| link.over.is_some()).await;
        match &ended.map_err(|_| Ended::Runtime)?.over {
            Some(Over::Closed(by)) => Ok(*by),
            Some(Over::Unwatched(ended)) => Err(ended.clone()),
            // Not of one that was connected.
            Some(Over::Failed(_)) | None => Err(Ended::Closed),
        }
    }

    /// Ends the connection: finishes the sends under way, then tells the other side ([`MsgEndpoint::shutdown`],
    /// `fi_shutdown`). Receives fail, but for messages that have arrived. A thread of the runtime for blocking
    /// calls polls meanwhile. If this future is dropped after it was polled, the connection is ended all the same. If the
    /// runtime was shut down, it is ended without waiting.
    ///
    /// After the end of the connection it does nothing. [`close`](AsyncEndpoint::close) shuts down too, and then closes the
    /// endpoint.
    ///
    /// # Errors
    /// Not all was sent in time. The connection is ended nevertheless, and sends under way fail.
    pub async fn shutdown(&self, timeout: Duration) -> Result<(), CloseError> {
        self.endpoint
            .0
            .block(timeout, |inner, timeout| match &inner.connection {
                Some(connection) => connection.shutdown(&inner.endpoint, timeout),
                None => Ok(()),
            })
            .await
    }
}

impl Connection {
    pub(super) fn end(&self) -> End {
        End(self.member.link())
    }

    /// Closes the endpoint, which is the one that this is of.
    pub(super) fn close(&self, endpoint: &Endpoint, timeout: Duration) -> Result<(), CloseError> {
        let ends = self.ends();
        let closed = self.attachment.close(endpoint, timeout);
        self.member.end(ends);
        closed
    }

    fn shutdown(&self, endpoint: &Endpoint, timeout: Duration) -> Result<(), CloseError> {
        let ends = self.ends();
        let shut_down = self.attachment.shutdown(endpoint, timeout);
        self.member.end(ends);
        shut_down
    }

    /// Who ends the connection, or has ended it, if this side does now. What the other side did may not have been read yet.
    fn ends(&self) -> ClosedBy {
        if self.attachment.is_over() { ClosedBy::Peer } else { ClosedBy::Local }
    }
}

impl Deref for AsyncMsgEndpoint {
    type Target = AsyncEndpoint;

    fn deref(&self) -> &AsyncEndpoint {
        &self.endpoint
    }
}

impl fmt::Debug for AsyncMsgEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncMsgEndpoint").field(&self.address()).finish()
    }
}
