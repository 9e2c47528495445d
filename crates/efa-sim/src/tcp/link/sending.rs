//! Sending: the connections to receivers.

use efa_device::{DeviceError, Qpn, Shortage, Status};
use rustix::io::Errno;

use super::super::outgoing::{Ending, Outgoing, status_of};
use super::super::socket::{Socket, Token, address_of, endpoint};
use super::{TcpLink, complete, leads_to, scratch};
use crate::link::{QueueState, system};
use crate::record::QueuePairId;

impl TcpLink {
    pub(super) fn flush_outgoing(&mut self, state: &mut QueueState, key: usize) {
        let Some(outgoing) = self.outgoing.get_mut(key) else { return };
        match outgoing.flush() {
            Ok(calls) => {
                self.statistics.sends += calls;
                if outgoing.wants_poll() && !std::mem::replace(&mut outgoing.queued, true) {
                    self.ready.push_back(Token::Outgoing(key));
                }
            }
            Err(ending) => self.end(state, key, ending),
        }
    }

    pub(super) fn serve_outgoing(&mut self, state: &mut QueueState, key: usize) {
        let Some(outgoing) = self.outgoing.get_mut(key) else { return };
        outgoing.queued = false;
        let peer = outgoing.peer();
        let calls = &mut self.statistics.receives;
        let attention = &mut self.attention;
        let finish = |finished| {
            attention.acknowledged(false);
            complete(state, peer, finished);
        };
        match outgoing.poll(scratch(&mut self.scratch), calls, finish) {
            Ok(()) => self.write_later(key),
            Err(ending) => self.end(state, key, ending),
        }
    }

    #[cold]
    fn end(&mut self, state: &mut QueueState, key: usize, ending: Ending) {
        let Some(outgoing) = self.outgoing.get(key) else { return };
        let peer = outgoing.peer();
        let status = match ending {
            Ending::Over(status) => {
                tracing::debug!(%peer, %status, "a connection ended");
                status
            }
            Ending::Broken(violation) => {
                tracing::warn!(%peer, %violation, "closing a connection");
                self.statistics.violations.count(violation);
                Status::BadStatus
            }
            Ending::TurnedAway => return self.turned_away(state, key),
        };
        if let Some(mut outgoing) = self.remove_outgoing(key) {
            outgoing.fail(status, |finished| complete(state, peer, finished));
        }
    }

    fn remove_outgoing(&mut self, key: usize) -> Option<Outgoing> {
        let outgoing = self.outgoing.try_remove(key)?;
        self.connections.remove(&outgoing.peer());
        self.forget(Token::Outgoing(key));
        Some(outgoing)
    }

    /// Waits to connect again, if there is something to send.
    fn turned_away(&mut self, state: &mut QueueState, key: usize) {
        self.statistics.turned_away += 1;
        let Some(outgoing) = self.outgoing.get_mut(key) else { return };
        if outgoing.is_idle() {
            self.remove_outgoing(key);
            return;
        }
        let peer = outgoing.peer();
        tracing::debug!(%peer, "turned away for want of room");
        let (now, rnr_delay) = (state.now(), self.options.rnr_delay);
        let at = outgoing.turn_away(now, rnr_delay, |finished| complete(state, peer, finished));
        self.forget(Token::Outgoing(key));
        self.schedule.retry_at(at, key);
    }

    /// Connects again to a receiver that had no room, if there still is something to send.
    pub(super) fn try_again(&mut self, state: &mut QueueState, key: usize) {
        let Some(outgoing) = self.outgoing.get_mut(key) else { return };
        let peer = outgoing.peer();
        if outgoing.is_idle() {
            self.remove_outgoing(key);
            return;
        }
        match self.open(peer, key) {
            Ok(Ok(socket)) => {
                let Some(outgoing) = self.outgoing.get_mut(key) else { return };
                outgoing.try_again(socket);
                self.flush_outgoing(state, key);
            }
            Ok(Err(status)) => self.end(state, key, Ending::Over(status)),
            // The system lacks something; what was sent waits on.
            Err(_) => self.turned_away(state, key),
        }
    }

    /// The connection to `peer`, opened if need be, or how sends to it complete at once.
    pub(super) fn connection_to(
        &mut self,
        state: &mut QueueState,
        peer: QueuePairId,
    ) -> Result<Result<usize, Status>, DeviceError> {
        if let Some(&key) = self.connections.get(&peer) {
            // An idle one may have been closed, and `peer` be another queue pair by now.
            let turn = self.turn;
            let is_open = |outgoing: &Outgoing| {
                outgoing.is_idle() && outgoing.socket().is_some() && !outgoing.is_heard_in(turn)
            };
            if self.outgoing.get(key).is_some_and(is_open) {
                if let Some(outgoing) = self.outgoing.get_mut(key) {
                    outgoing.note(true, false, false);
                }
                self.ready.retain(|&ready| ready != Token::Outgoing(key));
                self.serve_outgoing(state, key);
            }
            if self.outgoing.contains(key) && self.connections.contains_key(&peer) {
                return Ok(Ok(key));
            }
        }
        self.connect(state, peer)
    }

    #[cold]
    fn connect(
        &mut self,
        state: &QueueState,
        peer: QueuePairId,
    ) -> Result<Result<usize, Status>, DeviceError> {
        let opened = match self.open(peer, self.outgoing.vacant_key()) {
            Err(error) if error.shortage() == Some(Shortage::OpenFiles) && self.close_idle() => {
                self.open(peer, self.outgoing.vacant_key())
            }
            opened => opened,
        };
        let socket = match opened? {
            Ok(socket) => socket,
            Err(status) => return Ok(Err(status)),
        };
        let key = self.outgoing.vacant_key();
        let mtu = u32::try_from(state.attributes().mtu).unwrap_or(u32::MAX);
        let outgoing = Outgoing::new(peer, socket, self.me.qpn, mtu, self.rnr_retry);
        self.outgoing.insert(outgoing);
        self.connections.insert(peer, key);
        Ok(Ok(key))
    }

    /// Closes the connection to a receiver that was sent to least recently, if nothing is under way to it, for
    /// its descriptor. A later send connects again. Returns whether there was one.
    pub(super) fn close_idle(&mut self) -> bool {
        let idle = |(key, outgoing): (usize, &Outgoing)| Some((outgoing.idle_since()?, key));
        let oldest = self.outgoing.iter().filter_map(idle).min();
        oldest.and_then(|(_, key)| self.remove_outgoing(key)).is_some()
    }

    /// Begins to connect to `peer`, whose connection has this key; or how sends to it complete at once.
    fn open(
        &mut self,
        peer: QueuePairId,
        key: usize,
    ) -> Result<Result<Socket, Status>, DeviceError> {
        self.opener.check(|| format!("queue pair {}", self.me))?;
        let options = &self.options;
        let from = endpoint(options.address, 0, options.scope_id);
        let to = endpoint(address_of(peer.gid), peer.qpn.0, options.scope_id);
        if peer.qpn == Qpn(0) {
            return Ok(Err(Status::BadDestinationQpn));
        }
        if from.is_ipv4() != to.is_ipv4() {
            return Ok(Err(Status::UnreachableRemote));
        }
        self.statistics.connects += 1;
        let socket = match Socket::connect(from, to, options.dead_after) {
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
            .add_connection(&socket, Token::Outgoing(key))
            .map_err(|errno| system(format!("watching {peer}"), errno))?;
        Ok(Ok(socket))
    }

    /// Writes to a peer at once if this is the first write in this turn, or the next turn may be that of
    /// a thread that sleeps; otherwise the next flush does.
    pub(super) fn write_soon(&mut self, state: &mut QueueState, key: usize) {
        let Some(outgoing) = self.outgoing.get_mut(key) else { return };
        if outgoing.is_first_in(self.turn) || self.is_armed {
            self.flush_outgoing(state, key);
        } else {
            self.write_later(key);
        }
    }

    /// Leaves to the next flush what there is to write to a peer.
    fn write_later(&mut self, key: usize) {
        if let Some(outgoing) = self.outgoing.get_mut(key)
            && outgoing.wants_flush()
            && !std::mem::replace(&mut outgoing.dirty, true)
        {
            self.dirty.push(Token::Outgoing(key));
        }
    }

    /// Takes acknowledgements that came in front of packets of `peer`.
    pub(super) fn serve_early(&mut self, state: &mut QueueState, peer: QueuePairId) {
        let last = self.attention.written_to();
        let last = last.filter(|&key| leads_to(&self.outgoing, key, peer));
        let key = last.or_else(|| self.connections.get(&peer).copied());
        if let Some(key) = key
            && let Some(outgoing) = self.outgoing.get_mut(key)
        {
            let before = self.statistics.acknowledged_early;
            for &early in &self.early {
                let finish = |finished| complete(state, peer, finished);
                self.statistics.acknowledged_early += outgoing.settle_early(early, finish);
            }
            if self.statistics.acknowledged_early > before {
                self.attention.acknowledged(true);
                outgoing.heard(self.turn);
            }
            self.write_later(key);
        }
        self.early.clear();
    }
}
