//! A listener whose requests are futures.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use tokio::sync::Mutex as AsyncMutex;

use super::endpoint::Ended;
use super::sleeper::StreamError;
use super::streams::EventStream;
use crate::connection::{
    ConnectionRequest, ControlEvent, EventQueueOptions, Listener, PassiveEndpointOptions,
};
use crate::error::Error;
use crate::fabric::Fabric;

/// Why nobody listens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenAsyncError {
    /// The system can't listen there.
    #[error("can't listen at {at}: {error}")]
    Listen {
        /// The address.
        at: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The system has no more file descriptors.
    #[error(transparent)]
    Queue(#[from] Error),
    /// There is no runtime.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

/// A listener in a program of tokio ([`Fabric::listen_async`]; `fi_passive_ep` and `fi_listen`). When it is dropped,
/// nobody listens any more, and requests that weren't taken are rejected without data. Those that were taken can still be
/// answered.
pub struct AsyncListener {
    // Nobody calls once the events are gone.
    listener: Listener,
    events: AsyncMutex<EventStream>,
}

impl Fabric {
    /// Listens at a TCP address of this host for callers that want to be connected, in a program of tokio, in whose runtime
    /// this is called ([`PassiveEndpoint::listen`](crate::PassiveEndpoint::listen)); with port 0 the system chooses one.
    /// Requests come from [`accept`](AsyncListener::accept), and to no event queue of the program.
    ///
    /// # Errors
    /// The system can't listen there, or has no file descriptors left; there is no runtime.
    ///
    /// # Panics
    /// The runtime was built without its I/O driver.
    pub fn listen_async(
        &self,
        at: SocketAddr,
        options: PassiveEndpointOptions,
    ) -> Result<AsyncListener, ListenAsyncError> {
        let events = self.event_queue(EventQueueOptions::default())?;
        let stream = events.stream()?;
        let listening = self.passive_endpoint(&events, options).listen(at);
        let listener = listening.map_err(|error| ListenAsyncError::Listen { at, error })?;
        Ok(AsyncListener { listener, events: AsyncMutex::new(stream) })
    }
}

impl AsyncListener {
    /// Where it listens.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.listener.local_address()
    }

    /// The next request (`FI_CONNREQ`), to be [accepted](crate::MsgEndpointBuilder::accept_async) on a new endpoint or
    /// [rejected](ConnectionRequest::reject). Dropping the future loses none. Several tasks may wait; each request goes to
    /// one of them.
    ///
    /// Callers are heard only while somebody waits here: up to then they wait in the system, as many as the
    /// [backlog](PassiveEndpointOptions#structfield.backlog) says, each until its own timeout.
    ///
    /// # Errors
    /// The runtime was shut down, or the system can't make the task sleep.
    pub async fn accept(&self) -> Result<ConnectionRequest, Ended> {
        let mut events = self.events.lock().await;
        loop {
            // Nothing else is reported to this queue.
            if let Ok(ControlEvent::ConnectionRequest(request)) = events.next_entry().await? {
                return Ok(request);
            }
        }
    }
}

impl fmt::Debug for AsyncListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncListener").field(&self.local_address()).finish()
    }
}
