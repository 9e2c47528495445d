//! What happens at connections: completions, requests, and the ways in which connections end.

use std::time::Duration;

use efa::{CompletionError, ControlError, ControlEvent, Entry, Kind, OperationError};
use slotmap::KeyData;

use crate::connection::{Arrival, Connection, Op, Owner, Phase};
use crate::context::{Netio, RETRY};
use crate::delivery::Delivery;
use crate::event::{ClosedReason, Event, RefusedReason};
use crate::ids::{AcceptorKey, AnySocket, ConnectionKey, PublicationKey, ReceiveSocket};
use crate::memory::Message;
use crate::shelf::{NoMemory, Shelf};
use crate::sockets::Acceptor;
use crate::timers::Due;
use crate::wire::{Control, Features, Rejection, Role};

impl Netio {
    // ---- completions ----------------------------------------------------------------------------

    /// An operation is complete. Most are messages of publications, so these go the shortest way.
    #[inline]
    pub(crate) fn completed(&mut self, entry: &mut Option<Entry>) {
        let (completion, is_ok) = match &*entry {
            Some(Ok(completion)) => (completion, true),
            Some(Err(failed)) => (&*failed.completion, false),
            None => return,
        };
        // A peer may write to nothing.
        if !matches!(completion.kind, Kind::Send | Kind::Receive) {
            return;
        }
        let Some(index) = completion.context.checked_sub(1) else {
            return self.control_failed(entry);
        };
        let Some(op) = self.operations.try_remove(index as usize) else { return };
        match op {
            Op::Publish { connection, publication } if is_ok => {
                self.message_out(connection, publication);
            }
            op => {
                if let Some(entry) = entry.take() {
                    self.other_completed(op, entry);
                }
            }
        }
    }

    /// A control message has failed: it was injected, has no context, and would have no completion otherwise. The other
    /// side never learns what is in it, and somebody may wait for that.
    #[cold]
    fn control_failed(&mut self, entry: &Option<Entry>) {
        let Some(Err(CompletionError { error, completion, .. })) = entry else { return };
        let is_of = |connection: &Connection| {
            connection
                .endpoint
                .as_ref()
                .is_some_and(|endpoint| endpoint.id() == completion.endpoint)
        };
        let Some(key) = self.connections.iter().find(|(_, it)| is_of(it)).map(|(key, _)| key)
        else {
            return;
        };
        match self.connections[key].failed(*error) {
            Some(ClosedReason::PeerGone) => self.not_reachable(key),
            Some(reason) => self.end_now(key, reason),
            None => {}
        }
    }

    /// The device doesn't reach the other side any more. What has arrived is received. The other side learns it by the end
    /// of the TCP connection, as it may live.
    fn not_reachable(&mut self, key: ConnectionKey) {
        let connection = &self.connections[key];
        if !connection.owner.receives() {
            return self.end_now(key, ClosedReason::PeerGone);
        }
        if !matches!(connection.phase, Phase::Open | Phase::Ending { .. }) {
            return;
        }
        if let Some(endpoint) = &connection.endpoint {
            // What is under way to the other side doesn't arrive, so nothing waits for it.
            let _ = endpoint.shutdown(Duration::ZERO);
        }
        self.peer_gone(key);
    }

    /// A message of a publication is out.
    #[inline]
    fn message_out(&mut self, key: ConnectionKey, publication: PublicationKey) {
        // A connection stays until its last operation.
        let connection = &mut self.connections[key];
        connection.operations -= 1;
        connection.sends.complete();
        let is_plain = connection.is_open() && !connection.waits_for_room();
        self.publication_served(publication, true);
        if !is_plain {
            self.goes_on(key);
            self.forget_ended(key);
        }
    }

    /// An operation that failed, or that isn't of a publication.
    fn other_completed(&mut self, op: Op, entry: Entry) {
        let (completion, error) = match entry {
            Ok(completion) => (completion, None),
            Err(failed) => (*failed.completion, Some(failed.error)),
        };
        let key = op.connection();
        let connection = &mut self.connections[key];
        connection.operations -= 1;
        match op {
            Op::Publish { publication, .. } => {
                connection.sends.note_failure();
                self.publication_served(publication, false);
                self.sent(key, error);
            }
            Op::Send { key: of_program, data, .. } => {
                if let Owner::Send(socket) = connection.owner {
                    let message = Message::returned(completion.buffer, of_program, data);
                    let result = error.map_or(Ok(()), Err);
                    self.events.push_back(Event::SendCompleted { socket, message, result });
                }
                self.sent(key, error);
            }
            Op::Receive { place, .. } => {
                let result = match error {
                    None => Ok((completion.length as usize, completion.cq_data)),
                    Some(error) => Err(error),
                };
                let buffer = completion.buffer.into_vec();
                connection.receives.arrived(place, Arrival { buffer, result });
                self.deliver(key);
            }
            Op::ReceiveControl { .. } => {
                let buffer = completion.buffer.into_vec();
                self.control_arrived(key, buffer, completion.length as usize, error);
            }
        }
        self.forget_ended(key);
    }

    /// Forgets a connection that has ended, with its last operation.
    #[inline]
    fn forget_ended(&mut self, key: ConnectionKey) {
        let connection = &self.connections[key];
        if connection.endpoint.is_none() && connection.operations == 0 {
            self.forget(key);
        }
    }

    /// A message of a connection is out.
    #[inline]
    fn sent(&mut self, key: ConnectionKey, error: Option<OperationError>) {
        let connection = &mut self.connections[key];
        connection.sends.complete();
        if let Some(error) = error {
            if let Some(reason) = connection.failed(error) {
                self.end_now(key, reason);
            }
            return;
        }
        self.goes_on(key);
    }

    /// A connection with a message less under way goes on, if somebody waits for that.
    #[inline]
    fn goes_on(&mut self, key: ConnectionKey) {
        let connection = &self.connections[key];
        if connection.waits_for_room() || connection.phase != Phase::Open {
            self.has_room(key);
        }
    }

    #[cold]
    fn has_room(&mut self, key: ConnectionKey) {
        let connection = &mut self.connections[key];
        connection.flush_controls();
        connection.post_held(&mut self.operations);
        if std::mem::take(&mut connection.is_full) {
            match connection.owner {
                Owner::Publish(socket) => self.publisher_writable(key, socket),
                owner if connection.is_open() => {
                    self.events.push_back(Event::Writable(owner.into()));
                }
                _ => {}
            }
        }
        self.connections[key].send_end();
    }

    /// Looks whether connections have room, or memory, of which no completion tells.
    pub(crate) fn try_stuck(&mut self) {
        for key in std::mem::take(&mut self.stuck) {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            connection.is_stuck = false;
            if connection.is_unreachable {
                self.not_reachable(key);
                continue;
            }
            connection.flush_controls();
            let waits_to_send = connection.is_full && !connection.sends.are_under_way();
            match (waits_to_send, connection.has_room()) {
                (true, true) => self.has_room(key),
                (true, false) => connection.be_stuck(),
                (false, _) => {
                    connection.post_held(&mut self.operations);
                    connection.send_end();
                }
            }
            self.post_buffers(key);
            if !self.connections.get(key).is_some_and(|connection| connection.is_stuck) {
                self.retry = RETRY;
            }
        }
    }

    /// Gives the program the messages that have arrived, in order.
    fn deliver(&mut self, key: ConnectionKey) {
        let owner = self.connections[key].owner;
        while let Some(Arrival { buffer, result }) = self.connections[key].receives.next_arrival() {
            match result {
                Ok(_) if !self.connections[key].delivers() => {
                    self.buffer_returned(owner.into(), buffer)
                }
                Ok((length, data)) => {
                    self.connections[key].receives.count_message();
                    if let Some(shelf) = self.shelf(owner.into()) {
                        shelf.arrived(length);
                    }
                    match owner {
                        Owner::Receive(socket) => self.deliver_sent(socket, buffer, length, data),
                        // Without a tag it is none of this protocol.
                        Owner::Subscribe(socket) => match data {
                            Some(tag) => self.deliver_published(socket, buffer, length, tag),
                            None => self.buffer_returned(owner.into(), buffer),
                        },
                        Owner::Send(_) | Owner::Publish(_) => {}
                    }
                }
                Err(error) => {
                    self.receive_failed(key, error);
                    self.buffer_returned(owner.into(), buffer);
                }
            }
        }
        if self.wants_buffers(key) {
            self.short_of_buffers.push(key);
        }
        self.end_if_all_arrived(key);
    }

    /// The buffers that the socket of a connection makes itself.
    fn shelf(&mut self, socket: AnySocket) -> Option<&mut Shelf> {
        match socket {
            AnySocket::Subscribe(socket) => Some(&mut self.subscribers.get_mut(socket)?.shelf),
            AnySocket::Receive(socket) => self.receivers.get_mut(socket)?.shelf.as_mut(),
            _ => None,
        }
    }

    /// Whether fewer of them are posted than are wanted.
    fn wants_buffers(&mut self, key: ConnectionKey) -> bool {
        let Some(connection) = self.connections.get(key) else { return false };
        let (posted, socket) = (connection.receives.posted() as usize, connection.owner.into());
        self.shelf(socket).is_some_and(|shelf| posted < shelf.wanted())
    }

    /// Posts as many of them as are wanted and there.
    pub(crate) fn post_buffers(&mut self, key: ConnectionKey) {
        while self.wants_buffers(key) {
            let socket = self.connections[key].owner.into();
            let buffer = match self.shelf(socket).map(Shelf::take) {
                Some(Ok(Some(buffer))) => buffer,
                Some(Err(NoMemory)) => return self.connections[key].lacks_memory(),
                Some(Ok(None)) | None => return,
            };
            let posted = self.connections[key].post(&mut self.operations, buffer);
            if let (Err(refused), Some(shelf)) = (posted, self.shelf(socket)) {
                return shelf.put(refused.buffer);
            }
        }
    }

    fn deliver_sent(
        &mut self,
        socket: ReceiveSocket,
        buffer: Vec<u8>,
        length: usize,
        data: Option<u64>,
    ) {
        let is_own = self.receivers.get(socket).is_some_and(|found| found.shelf.is_some());
        let home = is_own.then_some((&self.returns, AnySocket::Receive(socket)));
        let message = Delivery::new(buffer, length, home);
        self.events.push_back(Event::Received { socket, message, data });
    }

    fn receive_failed(&mut self, key: ConnectionKey, error: OperationError) {
        let connection = &mut self.connections[key];
        if connection.endpoint.is_none() {
            return;
        }
        match error {
            // The first one counts.
            OperationError::Truncated { .. } if connection.is_cut_off() => {}
            OperationError::Truncated { length, capacity } => {
                let reason = ClosedReason::TooLong { length, capacity, lost: None };
                if connection.phase != Phase::Open {
                    return self.end_now(key, reason);
                }
                let received = connection.features.received_before(connection.receives.received());
                connection.send_control(Control::TooLong { length, capacity, received });
                // The other side closes the connection when it knows.
                connection.phase = Phase::Ending { is_told: true };
                connection.why = Some(reason);
                self.end_later(key);
            }
            error => match connection.failed(error) {
                Some(ClosedReason::PeerGone) => self.not_reachable(key),
                None => {}
                Some(reason) => self.end_now(key, reason),
            },
        }
    }

    /// Ends a receiving connection whose last message was delivered.
    fn end_if_all_arrived(&mut self, key: ConnectionKey) {
        let connection = &self.connections[key];
        if connection.endpoint.is_none() || !connection.owner.receives() {
            return;
        }
        let is_drained = connection.phase == Phase::Draining
            && connection.receives.posted() == 0
            && !connection.has_unexpected();
        if connection.receives.have_all() {
            self.end_now(key, ClosedReason::DisconnectedByPeer);
        } else if is_drained {
            self.end_now(key, ClosedReason::PeerGone);
        }
    }

    fn control_arrived(
        &mut self,
        key: ConnectionKey,
        buffer: Vec<u8>,
        length: usize,
        error: Option<OperationError>,
    ) {
        let control = match error {
            None => Control::parse(&buffer[..length.min(buffer.len())]),
            Some(OperationError::Truncated { .. }) => None,
            Some(_) => return,
        };
        match control {
            Some(control) => self.handle_control(key, control),
            None => self.counts.ignored += 1,
        }
        self.connections[key].post_control(&mut self.operations, buffer);
    }

    /// A control message of the other side has arrived.
    fn handle_control(&mut self, key: ConnectionKey, control: Control) {
        let connection = &mut self.connections[key];
        if connection.endpoint.is_none() {
            return;
        }
        match (connection.owner, control) {
            (owner, Control::End { messages }) if owner.receives() => {
                match connection.receives.expect(messages) {
                    true => self.end_if_all_arrived(key),
                    false => self.counts.ignored += 1,
                }
            }
            (
                Owner::Send(_) | Owner::Publish(_),
                Control::TooLong { length, capacity, received },
            ) => {
                let sent = connection.sends.count();
                let lost = received.and_then(|received| received.lost(sent));
                self.end_now(key, ClosedReason::TooLong { length, capacity, lost });
            }
            (Owner::Publish(socket), control) if connection.phase == Phase::Open => {
                self.control_of_subscriber(key, socket, control);
            }
            // The subscriber learns from END that the connection ends.
            (Owner::Publish(_), Control::Subscribe { .. } | Control::Unsubscribe { .. }) => {}
            (Owner::Subscribe(socket), control) => self.control_of_publisher(socket, control),
            _ => self.counts.ignored += 1,
        }
    }

    // ---- requests, connections, ends ------------------------------------------------------------

    /// An event of connections.
    pub(crate) fn controlled(&mut self, event: Result<ControlEvent, ControlError>) {
        let key = |context| ConnectionKey::from(KeyData::from_ffi(context));
        match event {
            Ok(ControlEvent::ConnectionRequest(request)) => self.requested(request),
            Ok(ControlEvent::Connected { context, data, .. }) => {
                self.connected(key(context), Features::of_acceptance(&data));
            }
            Ok(ControlEvent::Shutdown { context, .. }) => self.peer_gone(key(context)),
            Err(ControlError { context, error, .. }) => {
                let reason = match error {
                    efa::ConnectError::Rejected { data } => {
                        RefusedReason::Rejected(Rejection::of(&data))
                    }
                    error => RefusedReason::Connect(error),
                };
                self.not_connected(key(context), reason);
            }
            // Of this context's own waking.
            Ok(_) => {}
        }
    }

    fn requested(&mut self, request: efa::ConnectionRequest) {
        let key = AcceptorKey::from(KeyData::from_ffi(request.listener_context()));
        let Some(acceptor) = self.acceptors.get(key).copied() else { return };
        match (acceptor, Role::of(request.data())) {
            (Acceptor::Listen(socket), Ok(Role::Send)) => self.accept_sender(socket, request),
            (Acceptor::Publish(socket), Ok(Role::Subscribe)) => {
                self.accept_subscriber(socket, request);
            }
            (acceptor, Ok(_)) => self.reject(acceptor, request, Rejection::WrongRole),
            (acceptor, Err(reason)) => self.reject(acceptor, request, reason),
        }
    }

    fn connected(&mut self, key: ConnectionKey, features: Features) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.endpoint.is_none() {
            return;
        }
        if connection.phase != Phase::Connecting {
            // Control messages that were queued before the caller was ready.
            return connection.flush_controls();
        }
        connection.phase = Phase::Open;
        connection.features = features;
        let owner = connection.owner;
        self.events.push_back(Event::Connected(owner.into()));
        if let Owner::Subscribe(socket) = owner {
            self.subscriber_connected(socket, key);
        }
    }

    fn not_connected(&mut self, key: ConnectionKey, reason: RefusedReason) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.endpoint.is_none() {
            return;
        }
        match connection.phase {
            Phase::Connecting => {
                connection.refused = Some(reason);
                self.drop_endpoint(key);
            }
            // A caller that was accepted and didn't stay.
            _ => self.end_now(key, ClosedReason::PeerGone),
        }
    }

    fn peer_gone(&mut self, key: ConnectionKey) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.endpoint.is_none() {
            return;
        }
        let was_told = connection.phase != Phase::Ending { is_told: false };
        let reason = connection.why.clone().filter(|_| was_told).unwrap_or(ClosedReason::PeerGone);
        if !connection.owner.receives() || connection.is_cut_off() {
            return self.end_now(key, reason);
        }
        connection.phase = Phase::Draining;
        connection.controls.clear();
        self.end_if_all_arrived(key);
    }

    /// Ends a connection after what was given to it, which it tells the other side.
    pub(crate) fn end_softly(&mut self, key: ConnectionKey, reason: ClosedReason) {
        let connection = &mut self.connections[key];
        if !connection.is_open() {
            return;
        }
        connection.phase = Phase::Ending { is_told: false };
        connection.why = Some(reason);
        connection.sends.note_deadline();
        connection.send_end();
        if let Owner::Publish(socket) = connection.owner {
            self.unsubscribe_all(key, socket);
        }
        self.end_later(key);
    }

    /// The other side has some time to end a connection.
    fn end_later(&mut self, key: ConnectionKey) {
        let connection = &mut self.connections[key];
        self.timers.remove(connection.deadline.take());
        let at = self.link.now() + self.link.options.timeout;
        connection.deadline = Some(self.timers.add(at, Due::End(key)));
    }

    pub(crate) fn end_is_due(&mut self, key: ConnectionKey) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.phase == Phase::Draining {
            return;
        }
        // While messages go on to complete, the other side goes on.
        if connection.sends.note_deadline() {
            return self.end_later(key);
        }
        match connection.why.clone() {
            Some(reason @ ClosedReason::TooLong { .. }) => self.end_now(key, reason),
            _ => self.end_now(key, ClosedReason::TimedOut),
        }
    }

    /// Ends a connection at once. What is under way comes back; the socket learns it after that.
    pub(crate) fn end_now(&mut self, key: ConnectionKey, reason: ClosedReason) {
        let connection = &mut self.connections[key];
        if connection.endpoint.is_none() {
            return;
        }
        connection.why = Some(reason);
        self.drop_endpoint(key);
    }

    fn drop_endpoint(&mut self, key: ConnectionKey) {
        let connection = &mut self.connections[key];
        drop(connection.endpoint.take());
        connection.controls.clear();
        self.timers.remove(connection.deadline.take());
        let owner = connection.owner;
        if let Owner::Publish(socket) = owner {
            self.subscriber_ends(key, socket);
        }
        // While a completion of this connection is handled, it is forgotten after that.
        if self.connections[key].operations == 0 {
            self.idle.push(key);
        }
    }

    /// Forgets connections that ended without operations under way.
    pub(crate) fn forget_idle(&mut self) {
        while let Some(key) = self.idle.pop() {
            if self.connections.get(key).is_some_and(|found| found.operations == 0) {
                self.forget(key);
            }
        }
    }

    /// Forgets a connection that was never shown to the program.
    pub(crate) fn forget_silently(&mut self, key: ConnectionKey) {
        let connection = &mut self.connections[key];
        connection.is_silent = true;
        self.drop_endpoint(key);
    }

    /// The last operation has come back: the socket learns that it has no connection.
    fn forget(&mut self, key: ConnectionKey) {
        let Some(mut connection) = self.connections.remove(key) else { return };
        if connection.is_silent {
            return;
        }
        let reason = connection.why.clone().unwrap_or(ClosedReason::PeerGone);
        let socket = AnySocket::from(connection.owner);
        match (connection.owner, connection.refused.take()) {
            (Owner::Send(send), refused) => {
                let Some(sender) = self.senders.get_mut(send) else { return };
                sender.connection = None;
                let is_closed = sender.is_closed;
                if !is_closed && refused.as_ref().is_some_and(|reason| self.go_on(socket, reason)) {
                    return;
                }
                self.events.push_back(match refused {
                    Some(reason) => Event::Refused { socket, reason },
                    None => Event::Closed { socket, reason },
                });
                if is_closed {
                    self.senders.remove(send);
                }
            }
            (Owner::Receive(receive), _) => {
                let Some(receiver) = self.receivers.remove(receive) else { return };
                if let Some(listener) = self.listeners.get_mut(receiver.listener) {
                    listener.connections -= 1;
                }
                self.events.push_back(Event::Closed { socket, reason });
            }
            (Owner::Publish(socket), _) => {
                let Some(publisher) = self.publishers.get_mut(socket) else { return };
                publisher.subscribers.retain(|other| *other != key);
                let counts = Box::new(connection.counts());
                self.events.push_back(Event::SubscriberClosed { socket, reason, counts });
                self.forget_publisher(socket);
            }
            (Owner::Subscribe(socket), refused) => {
                self.subscriber_closed(socket, reason, refused);
            }
        }
    }

    /// A buffer comes back to its socket.
    pub(crate) fn buffer_returned(&mut self, socket: AnySocket, buffer: Vec<u8>) {
        let Some(shelf) = self.shelf(socket) else { return };
        shelf.put(buffer);
        let connection = match socket {
            AnySocket::Subscribe(socket) => self.subscribers[socket].connection,
            AnySocket::Receive(socket) => Some(self.receivers[socket].connection),
            _ => None,
        };
        if let Some(key) = connection {
            self.post_buffers(key);
        }
    }
}
