//! Sending: which connection leads to a receiver, and how connections are opened and end.

use efa_device::{DeviceError, Qkey, Qpn, Shortage, Status};
use rustix::io::Errno;

use super::super::connection::{Connection, Ending, When, status_of};
use super::super::socket::{Socket, Token, address_of, endpoint};
use super::{TcpLink, complete, flush_later, scratch, serve_later};
use crate::link::{QueueState, system};
use crate::record::QueuePairId;

impl TcpLink {
    pub(super) fn flush_connection(&mut self, state: &mut QueueState, key: usize) {
        let when = if self.attention.waits(key) { When::Soon } else { When::Now };
        let Some(connection) = self.connections.get_mut(key) else { return };
        match connection.flush(when) {
            Ok(calls) => {
                self.statistics.sends += calls;
                if !connection.holds() {
                    self.attention.sent(key);
                }
                if connection.wants_poll() {
                    serve_later(&mut self.ready, key, connection);
                }
            }
            Err(ending) => self.end(state, key, ending),
        }
    }

    /// Opens another connection for the frames on this one, if a queue pair was expected on it whose hello hasn't come.
    #[cold]
    pub(super) fn release(&mut self, state: &QueueState, key: usize) {
        let connection = self.connections.get_mut(key);
        let Some((peer, qkey, outgoing)) = connection.and_then(Connection::take_unconfirmed) else {
            return;
        };
        self.peers.remove(&peer);
        if !outgoing.is_idle() {
            let postponed = Connection::postponed(peer, qkey, self.hello(state), outgoing);
            let key = self.connections.insert(postponed);
            self.peers.insert(peer, key);
            self.schedule.retry_at(state.now(), key);
        }
    }

    #[cold]
    pub(super) fn end(&mut self, state: &mut QueueState, key: usize, ending: Ending) {
        self.release(state, key);
        let Some(connection) = self.connections.get_mut(key) else { return };
        let peer = connection.peer();
        let (status, violation) = match ending {
            Ending::Over(status) => (status, connection.ended()),
            Ending::Broken(violation) => (Status::BadStatus, Some(violation)),
            Ending::TurnedAway => return self.turned_away(state, key),
        };
        match violation {
            Some(violation) => {
                tracing::warn!(%peer, %violation, "closing a connection");
                self.statistics.violations.count(violation);
            }
            None => tracing::debug!(%peer, %status, "a connection ended"),
        }
        connection.outgoing.fail(status, |finished| complete(state, peer, finished));
        if self.peers.get(&peer) == Some(&key) {
            self.peers.remove(&peer);
        }
        let lingers = matches!(ending, Ending::Over(_)) && !connection.is_done();
        if lingers && self.opener.is_this() {
            serve_later(&mut self.ready, key, connection);
            return;
        }
        let status =
            if violation.is_some() { Status::BadStatus } else { Status::BadDestinationQpn };
        self.close_connection(key, status);
    }

    pub(super) fn close_connection(&mut self, key: usize, status: Status) {
        if let Some(mut connection) = self.remove(key) {
            connection.close(status, scratch(&mut self.scratch));
        }
    }

    pub(super) fn remove(&mut self, key: usize) -> Option<Connection> {
        let connection = self.connections.try_remove(key)?;
        self.accepted -= usize::from(connection.was_accepted());
        if self.peers.get(&connection.peer()) == Some(&key) {
            self.peers.remove(&connection.peer());
        }
        self.forget(key);
        Some(connection)
    }

    /// Removes a connection from the lists, as another may soon have its key.
    fn forget(&mut self, key: usize) {
        self.ready.retain(|&ready| ready != key);
        self.dirty.retain(|&dirty| dirty != key);
        self.attention.forget(key);
    }

    /// Waits to connect again, if there is something to send.
    fn turned_away(&mut self, state: &mut QueueState, key: usize) {
        self.statistics.turned_away += 1;
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.outgoing.is_idle() {
            self.remove(key);
            return;
        }
        let peer = connection.peer();
        tracing::debug!(%peer, "turned away for want of room");
        let (now, rnr_delay) = (state.now(), self.options.rnr_delay);
        let finish = |finished| complete(state, peer, finished);
        let at = connection.outgoing.turn_away(now, rnr_delay, finish);
        self.accepted -= usize::from(connection.was_accepted());
        connection.leave();
        self.forget(key);
        self.schedule.retry_at(at, key);
    }

    /// Connects again to a receiver that had no room, if there still is something to send.
    pub(super) fn try_again(&mut self, state: &mut QueueState, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let peer = connection.peer();
        if connection.outgoing.is_idle() {
            self.remove(key);
            return;
        }
        match self.open(peer, key) {
            Ok(Ok(socket)) => {
                let Some(connection) = self.connections.get_mut(key) else { return };
                connection.open_again(socket);
                self.flush_connection(state, key);
            }
            Ok(Err(status)) => self.end(state, key, Ending::Over(status)),
            Err(_) if !self.opener.is_this() => {
                self.end(state, key, Ending::Over(Status::UnresponsiveRemote));
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "not connected again yet");
                let Some(connection) = self.connections.get_mut(key) else { return };
                let at = connection.outgoing.postpone(state.now());
                self.schedule.retry_at(at, key);
            }
        }
    }

    /// The connection to `peer`, opened if need be, or how sends to it complete at once.
    pub(super) fn connection_to(
        &mut self,
        state: &mut QueueState,
        peer: QueuePairId,
        qkey: Qkey,
    ) -> Result<Result<usize, Status>, DeviceError> {
        // A connection for another key is to a queue pair that has ended, though it may not have been seen yet.
        if let Some(&key) = self.peers.get(&peer)
            && let Some(connection) = self.connections.get(key)
            && connection.is_for(qkey)
        {
            // An idle one may have been closed.
            let is_idle = connection.outgoing.is_idle() && connection.socket().is_some();
            if is_idle && !connection.is_heard_in(self.turn) {
                self.look_for_end(state, key);
            }
            if self.peers.get(&peer) == Some(&key) {
                return Ok(Ok(key));
            }
        }
        self.connect(state, peer, qkey)
    }

    /// Takes responses and how the connection has ended, if it has. Frames are left to the next poll.
    fn look_for_end(&mut self, state: &mut QueueState, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.note(true, false, false);
        let (peer, now) = (connection.peer(), state.now());
        let calls = &mut self.statistics.receives;
        let read = connection.read(now, calls, |finished| complete(state, peer, finished));
        connection.keep_arrived();
        if connection.wants_poll() {
            serve_later(&mut self.ready, key, connection);
        }
        if connection.has_named_itself() {
            self.release(state, key);
        }
        if let Err(ending) = read {
            self.end(state, key, ending);
        }
    }

    #[cold]
    fn connect(
        &mut self,
        state: &mut QueueState,
        peer: QueuePairId,
        qkey: Qkey,
    ) -> Result<Result<usize, Status>, DeviceError> {
        self.opener.check(|| format!("queue pair {}", self.me))?;
        self.accept(state);
        // It may have connected already, also before it ended and another one got its number, or frames for another queue
        // pair with that number came between.
        while let Some((key, connection)) =
            self.connections.iter_mut().find(|(_, connection)| connection.leads_to(peer, qkey))
        {
            connection.expect(peer, qkey);
            self.peers.insert(peer, key);
            self.look_for_end(state, key);
            if self.peers.get(&peer) == Some(&key) {
                return Ok(Ok(key));
            }
        }
        let opened = match self.open(peer, self.connections.vacant_key()) {
            Err(error)
                if error.shortage() == Some(Shortage::OpenFiles) && self.close_idle(state) =>
            {
                self.open(peer, self.connections.vacant_key())
            }
            opened => opened,
        };
        let socket = match opened? {
            Ok(socket) => socket,
            Err(status) => return Ok(Err(status)),
        };
        let mine = self.hello(state);
        let key = self.connections.insert(Connection::opened(peer, qkey, mine, socket));
        self.peers.insert(peer, key);
        Ok(Ok(key))
    }

    /// Closes the connection that was opened and sent on least recently, if nothing is under way on it, for
    /// its descriptor. A later send connects again. Returns whether there was one.
    pub(super) fn close_idle(&mut self, state: &mut QueueState) -> bool {
        let idle = |(key, connection): (usize, &Connection)| {
            let may_close = !connection.was_accepted() && connection.is_idle();
            may_close.then(|| (connection.outgoing.written_in(), key))
        };
        while let Some((_, key)) = self.connections.iter().filter_map(idle).min() {
            // What has come meanwhile isn't lost.
            self.look_for_end(state, key);
            if self.connections.get(key).is_none_or(Connection::is_idle) {
                if let Some(mut connection) = self.remove(key) {
                    connection.turn_away(scratch(&mut self.scratch));
                }
                return true;
            }
        }
        false
    }

    /// Begins to connect to `peer`, whose connection has this key; or how sends to it complete at once.
    fn open(
        &mut self,
        peer: QueuePairId,
        key: usize,
    ) -> Result<Result<Socket, Status>, DeviceError> {
        self.opener.check(|| format!("queue pair {}", self.me))?;
        let options = &self.options;
        let from = |port| endpoint(options.address, port, options.scope_id);
        let to = endpoint(address_of(peer.gid), peer.qpn.0, options.scope_id);
        if peer.qpn == Qpn(0) {
            return Ok(Err(Status::BadDestinationQpn));
        }
        if from(0).is_ipv4() != to.is_ipv4() {
            return Ok(Err(Status::UnreachableRemote));
        }
        self.statistics.connects += 1;
        // From the port of this queue pair, which shows the peer who it is, so that it sends on this connection as well. That
        // can't be if there is such a connection, or was a minute ago.
        let own = if peer == self.me { 0 } else { self.me.qpn.0 };
        let connected = match Socket::connect(from(own), to, options.dead_after) {
            Err(Errno::ADDRNOTAVAIL | Errno::ADDRINUSE) if own != 0 => {
                Socket::connect(from(0), to, options.dead_after)
            }
            connected => connected,
        };
        let socket = match connected {
            Ok(socket) => socket,
            Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => {
                return Err(system(format!("connecting to {peer}"), errno));
            }
            Err(errno) => {
                tracing::debug!(%peer, %errno, "not connected");
                return Ok(Err(status_of(errno, false)));
            }
        };
        tracing::debug!(%peer, "connecting");
        self.poller
            .add_connection(&socket, Token::Connection(key))
            .map_err(|errno| system(format!("watching {peer}"), errno))?;
        Ok(Ok(socket))
    }

    /// Writes to a peer at once if this is the first write in this turn, or the next turn may be that of
    /// a thread that sleeps; otherwise the next flush does.
    pub(super) fn write_soon(&mut self, state: &mut QueueState, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.outgoing.is_first_in(self.turn) || self.is_armed {
            self.flush_connection(state, key);
        } else {
            flush_later(&mut self.dirty, key, connection);
        }
    }
}
