//! Point to point: send, listen and receive sockets, and what listen sockets share with publishers.

use std::net::SocketAddr;

use efa::{MsgEndpoint, NotAnswered, PassiveEndpointOptions, StartConnectError};
use slotmap::Key;

use crate::connection::{Connection, Op, Owner, Phase, Posted};
use crate::context::Netio;
use crate::event::{ClosedReason, Event, PostRefused, RefusedReason, SendError, Sent, SocketError};
use crate::hosts::{Search, Site};
use crate::ids::{
    AcceptorKey, AnySocket, ConnectionKey, ListenSocket, PublishSocket, ReceiveSocket, SendSocket,
};
use crate::memory::{Message, MessageError};
use crate::options::{ListenOptions, SendOptions};
use crate::shelf::Shelf;
use crate::wire::{Features, Rejection, Role};

pub(crate) struct Sender {
    options: SendOptions,
    pub(crate) site: Site,
    pub(crate) search: Search,
    pub(crate) connection: Option<ConnectionKey>,
    /// It goes with its connection.
    pub(crate) is_closed: bool,
}

pub(crate) struct Listener {
    options: ListenOptions,
    pub(crate) search: Search,
    listening: Option<Listening>,
    pub(crate) connections: usize,
}

/// What listens.
pub(crate) struct Listening {
    acceptor: AcceptorKey,
    listener: efa::Listener,
}

pub(crate) struct Receiver {
    pub(crate) listener: ListenSocket,
    pub(crate) connection: ConnectionKey,
    /// `None` if the program posts buffers.
    pub(crate) shelf: Option<Shelf>,
}

/// The socket that a request is for.
#[derive(Clone, Copy)]
pub(crate) enum Acceptor {
    Listen(ListenSocket),
    Publish(PublishSocket),
}

impl From<Acceptor> for AnySocket {
    fn from(acceptor: Acceptor) -> Self {
        match acceptor {
            Acceptor::Listen(socket) => Self::Listen(socket),
            Acceptor::Publish(socket) => Self::Publish(socket),
        }
    }
}

impl Netio {
    // ---- send sockets ---------------------------------------------------------------------------

    /// A send socket, without a connection.
    pub fn send_socket(&mut self, options: SendOptions) -> SendSocket {
        self.senders.insert(Sender {
            options,
            site: Site::default(),
            search: Search::default(),
            connection: None,
            is_closed: false,
        })
    }

    /// Begins to connect a send socket to a listen socket at a host (name or IP address) and a TCP port.
    /// [`Event::Connected`] or [`Event::Refused`] tells the outcome.
    ///
    /// # Errors
    /// The socket is connected, connecting, or closed.
    pub fn connect(
        &mut self,
        socket: SendSocket,
        host: &str,
        port: u16,
    ) -> Result<(), SocketError> {
        let sender = self.sender(socket)?;
        if sender.connection.is_some() || sender.search.is_under_way {
            return Err(SocketError::Busy);
        }
        sender.site = Site::new(host, port);
        let site = sender.site.clone();
        self.find(socket.into(), &site);
        Ok(())
    }

    /// An open one.
    fn sender(&mut self, socket: SendSocket) -> Result<&mut Sender, SocketError> {
        let sender = self.senders.get_mut(socket).filter(|sender| !sender.is_closed);
        sender.ok_or(SocketError::Closed)
    }

    pub(crate) fn connect_to(&mut self, socket: SendSocket, at: SocketAddr) {
        match self.call(Owner::Send(socket), Role::Send, at) {
            Ok(key) => self.senders[socket].connection = Some(key),
            Err(reason) => self.go_on_or_tell(socket.into(), reason),
        }
    }

    /// Begins a connection to a listener.
    pub(crate) fn call(
        &mut self,
        owner: Owner,
        role: Role,
        at: SocketAddr,
    ) -> Result<ConnectionKey, RefusedReason> {
        let Self { link, connections, operations, returns, .. } = self;
        let key = connections.try_insert_with_key(|key| {
            let endpoint = link.endpoint(key, owner).enable().map_err(StartConnectError::from)?;
            let mut made =
                Connection::new((key, &*returns), owner, endpoint, at, Phase::Connecting);
            made.post_controls(operations);
            Ok::<_, StartConnectError>(made)
        })?;
        let called = connections[key].endpoint.as_ref().map(|it| it.connect(at, &role.hello()));
        if let Some(Err(error)) = called {
            self.forget_silently(key);
            return Err(error.into());
        }
        Ok(key)
    }

    /// Sends a message. It comes back with [`Event::SendCompleted`], or with the answer.
    pub fn send(&mut self, socket: SendSocket, message: Message) -> Sent {
        let sender = match self.sender(socket) {
            Ok(sender) => sender,
            Err(error) => return Sent::Refused(error.into(), message),
        };
        let (options, connection) = (sender.options, sender.connection);
        if let Err(error) = check_sent(&message) {
            return Sent::Refused(error.into(), message);
        }
        let open = connection
            .and_then(|key| self.connections.get_mut(key).map(|connection| (key, connection)))
            .filter(|(_, connection)| connection.is_open());
        let Some((key, connection)) = open else {
            return Sent::Refused(SocketError::NotConnected.into(), message);
        };
        let mut envelope = efa::Message::to(MsgEndpoint::PEER).level(options.completion.into());
        if let Some(data) = message.data {
            envelope = envelope.with_data(data);
        }
        let op = || Op::Send { connection: key, key: message.key, data: message.data };
        let buffer = || message.buffer(None);
        match connection.send(&mut self.operations, op, envelope, buffer) {
            Posted::Done => Sent::Accepted,
            Posted::Full => Sent::Again(message),
            Posted::Failed(error) => Sent::Refused(SendError::Start(error), message),
        }
    }

    /// Sends all of a pool's part that the message names: a shorthand for [`Message::of`] and [`send`](Self::send), with
    /// the address of its first byte as key.
    pub fn send_buffer(&mut self, socket: SendSocket, part: crate::Part) -> Sent {
        self.send(socket, Message::of(part))
    }

    /// Ends the connection of a send socket: what is under way is sent, then both sides get [`Event::Closed`]. The
    /// socket can be connected again.
    ///
    /// # Errors
    /// The socket has no connection and is making none, or is ending it.
    pub fn disconnect(&mut self, socket: SendSocket) -> Result<(), SocketError> {
        self.sender(socket)?;
        let sender = &mut self.senders[socket];
        if sender.search.give_up(&mut self.timers) {
            let (socket, reason) = (socket.into(), ClosedReason::Disconnected);
            self.events.push_back(Event::Closed { socket, reason });
            return Ok(());
        }
        let key = sender.connection.ok_or(SocketError::NotConnected)?;
        let Some(connection) = self.connections.get(key) else {
            return Err(SocketError::NotConnected);
        };
        match connection.phase {
            Phase::Open if connection.is_open() => {
                self.end_softly(key, ClosedReason::Disconnected);
                Ok(())
            }
            Phase::Connecting if connection.endpoint.is_some() => {
                self.end_now(key, ClosedReason::Disconnected);
                Ok(())
            }
            _ => Err(SocketError::Busy),
        }
    }

    // ---- listen sockets -------------------------------------------------------------------------

    /// A listen socket, which doesn't listen yet.
    pub fn listen_socket(&mut self, options: ListenOptions) -> ListenSocket {
        let search = Search::default();
        self.listeners.insert(Listener { options, search, listening: None, connections: 0 })
    }

    /// Listens at a host (name or IP address of this one) and a TCP port; with port 0 the system chooses one, see
    /// [`local_address`](Self::local_address). If that fails, [`Event::BindRefused`] tells why.
    ///
    /// # Errors
    /// The socket listens already, or is closed.
    pub fn listen(
        &mut self,
        socket: ListenSocket,
        host: &str,
        port: u16,
    ) -> Result<(), SocketError> {
        let listener = self.listeners.get(socket).ok_or(SocketError::Closed)?;
        if listener.listening.is_some() || listener.search.is_under_way {
            return Err(SocketError::Listening);
        }
        self.find(socket.into(), &Site::new(host, port));
        Ok(())
    }

    /// Where a listen or publish socket listens. `None` if it doesn't.
    #[must_use]
    pub fn local_address(&self, socket: impl Into<AnySocket>) -> Option<SocketAddr> {
        let listening = match socket.into() {
            AnySocket::Listen(socket) => self.listeners.get(socket)?.listening.as_ref(),
            AnySocket::Publish(socket) => self.publishers.get(socket)?.listening.as_ref(),
            _ => None,
        };
        Some(listening?.listener.local_address())
    }

    pub(crate) fn bind(&mut self, socket: AnySocket, at: SocketAddr) {
        let acceptor = match socket {
            AnySocket::Listen(socket) => Acceptor::Listen(socket),
            AnySocket::Publish(socket) => Acceptor::Publish(socket),
            _ => return,
        };
        let key = self.acceptors.insert(acceptor);
        let options = PassiveEndpointOptions::default().context(key.data().as_ffi());
        let passive = self.link.fabric.passive_endpoint(&self.link.control, options);
        match passive.listen(at) {
            Ok(listener) => {
                let listening = Some(Listening { acceptor: key, listener });
                match acceptor {
                    Acceptor::Listen(socket) => self.listeners[socket].listening = listening,
                    Acceptor::Publish(socket) => self.publishers[socket].listening = listening,
                }
            }
            Err(error) => {
                self.acceptors.remove(key);
                // Of another address of the host, which may be this one.
                match self.search_of(socket).and_then(Search::next) {
                    Some(at) => self.bind(socket, at),
                    None => self.events.push_back(Event::BindRefused { socket, error }),
                }
            }
        }
    }

    pub(crate) fn stop_listening(&mut self, listening: Option<Listening>) {
        if let Some(Listening { acceptor, .. }) = listening {
            self.acceptors.remove(acceptor);
        }
    }

    /// A sender wants to be connected to a listen socket.
    pub(crate) fn accept_sender(
        &mut self,
        listener: ListenSocket,
        request: efa::ConnectionRequest,
    ) {
        let Some(found) = self.listeners.get(listener) else { return };
        if found.connections >= found.options.connections {
            return self.reject(listener, request, Rejection::Full);
        }
        let from = request.caller();
        let long = self.link.long_reads();
        let shelf = found.options.buffers.map(|buffers| Shelf::new(buffers, long));
        // The socket and its connection know each other.
        let connection = ConnectionKey::default();
        let socket = self.receivers.insert(Receiver { listener, connection, shelf });
        let key = match self.accept(Owner::Receive(socket), request) {
            Ok(key) => key,
            Err(failed) => {
                self.receivers.remove(socket);
                return self.not_accepted(listener, failed);
            }
        };
        self.receivers[socket].connection = key;
        self.listeners[listener].connections += 1;
        self.post_buffers(key);
        self.events.push_back(Event::Accepted { listener, socket, from });
    }

    /// Accepts a request on a new endpoint, or returns it.
    pub(crate) fn accept(
        &mut self,
        owner: Owner,
        request: efa::ConnectionRequest,
    ) -> Result<ConnectionKey, NotAnswered> {
        let Self { link, connections, operations, returns, .. } = self;
        let (from, features) = (request.caller(), Features::of_request(request.data()));
        let made = connections.try_insert_with_key(|key| {
            let endpoint = link.endpoint(key, owner).enable()?;
            let mut made = Connection::new((key, &*returns), owner, endpoint, from, Phase::Open);
            made.features = features;
            made.post_controls(operations);
            Ok::<_, efa::EnableError>(made)
        });
        let key = match made {
            Ok(key) => key,
            Err(error) => {
                return Err(NotAnswered { error: error.into(), request: Box::new(request) });
            }
        };
        let accepted = connections[key]
            .endpoint
            .as_ref()
            .map(|it| it.accept(request, &Features::acceptance()));
        if let Some(Err(failed)) = accepted {
            self.forget_silently(key);
            return Err(failed);
        }
        Ok(key)
    }

    /// Tells a caller why it gets no connection.
    pub(crate) fn reject(
        &mut self,
        socket: impl Into<AnySocket>,
        request: efa::ConnectionRequest,
        reason: Rejection,
    ) {
        self.refuse(socket.into(), request, reason, RefusedReason::Rejected(reason));
    }

    /// Tells a caller that no connection can begin.
    pub(crate) fn not_accepted(&mut self, socket: impl Into<AnySocket>, failed: NotAnswered) {
        let NotAnswered { error, request } = failed;
        self.refuse(socket.into(), *request, Rejection::because(&error), error.into());
    }

    fn refuse(
        &mut self,
        socket: AnySocket,
        request: efa::ConnectionRequest,
        rejection: Rejection,
        reason: RefusedReason,
    ) {
        self.counts.rejected += 1;
        let from = request.caller();
        // One byte is never too much.
        let _ = request.reject(&rejection.data());
        tracing::debug!(%from, %reason, "a caller is refused");
        self.events.push_back(Event::CallerRefused { socket, from, reason });
    }

    // ---- receive sockets ------------------------------------------------------------------------

    /// Posts a buffer to a receive socket whose listen socket makes none ([`ListenOptions::buffers`]). It receives one
    /// message, and belongs to the program again with [`Event::Received`].
    ///
    /// # Errors
    /// The socket is closed, makes its buffers itself, or gets no more messages; the endpoint has as many receives as it may
    /// have. The buffer comes back.
    pub fn post(&mut self, socket: ReceiveSocket, buffer: Vec<u8>) -> Result<(), PostRefused> {
        let refused = |error: SocketError, buffer| PostRefused { error: error.into(), buffer };
        let Some(receiver) = self.receivers.get(socket) else {
            return Err(refused(SocketError::Closed, buffer));
        };
        if receiver.shelf.is_some() {
            return Err(refused(SocketError::OwnBuffers, buffer));
        }
        let key = receiver.connection;
        self.connections[key].post(&mut self.operations, buffer)
    }

    // ---- all ------------------------------------------------------------------------------------

    /// Closes a socket for good. A send or publish socket first sends what is under way, and its events come until
    /// then; a receive or subscribe socket drops what it has not received. Closing a listen socket leaves its receive
    /// sockets as they are. Closing a closed socket does nothing.
    pub fn close(&mut self, socket: impl Into<AnySocket>) {
        match socket.into() {
            AnySocket::Send(socket) => {
                let Some(sender) = self.senders.get_mut(socket) else { return };
                sender.is_closed = true;
                sender.search.give_up(&mut self.timers);
                match sender.connection {
                    Some(key) => match self.connections[key].phase {
                        Phase::Open => self.end_softly(key, ClosedReason::Disconnected),
                        Phase::Connecting => self.end_now(key, ClosedReason::Disconnected),
                        Phase::Ending { .. } | Phase::Draining => {}
                    },
                    None => drop(self.senders.remove(socket)),
                }
            }
            AnySocket::Listen(socket) => {
                let Some(mut listener) = self.listeners.remove(socket) else { return };
                listener.search.give_up(&mut self.timers);
                self.stop_listening(listener.listening);
            }
            AnySocket::Receive(socket) => {
                if let Some(receiver) = self.receivers.get(socket) {
                    self.end_now(receiver.connection, ClosedReason::Disconnected);
                }
            }
            AnySocket::Publish(socket) => self.close_publisher(socket),
            AnySocket::Subscribe(socket) => self.close_subscriber(socket),
        }
    }
}

fn check_sent(message: &Message) -> Result<(), MessageError> {
    if !message.header.as_slice().is_empty() {
        return Err(MessageError::HasHeader);
    }
    message.check()
}
