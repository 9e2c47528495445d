//! Sending: which ring leads to a receiver, and how sends complete.

use efa_device::{AddressHandle, DeviceError, Qkey, Qpn, SendRequest, Status, WorkId};

use super::super::outgoing::{Content, Ends, Outgoing, Polled, Posted, Purpose};
use super::super::requests::Requests;
use super::{Delayed, ShmLink};
use crate::link::{Link, Packet, Path, QueueState, RNR_RETRY_INFINITE};
use crate::record::QueuePairId;

impl ShmLink {
    /// Takes the acknowledgements of the next peer with sends in flight.
    #[inline(never)]
    pub(super) fn poll_active(&mut self, state: &mut QueueState) {
        if self.next_active >= self.active.len() {
            self.next_active = 0;
        }
        let Some(&key) = self.active.get(self.next_active) else { return };
        let Some(outgoing) = self.outgoing.get_mut(key) else { return };
        let peer = QueuePairId { gid: self.me.gid, qpn: outgoing.peer() };
        let now = state.now();
        let mut sends = Sends { state, requests: &mut self.requests, peer };
        let polled = outgoing.poll(now, &mut sends);
        if polled == Polled::Stalled {
            sends.relieve(outgoing);
        }
        if polled != Polled::Gone && !outgoing.is_idle() {
            self.next_active += 1;
            return;
        }
        self.active.swap_remove(self.next_active);
        if polled == Polled::Gone {
            self.forget(key);
        }
    }

    /// Drops rings to peers that are gone, and those that are longer than they need be.
    pub(super) fn forget_useless(&mut self) {
        let useless = self.outgoing.iter_mut().filter_map(|(key, outgoing)| {
            (outgoing.is_oversized() || outgoing.is_useless()).then_some(key)
        });
        for key in useless.collect::<Vec<_>>() {
            self.forget(key);
        }
    }

    pub(super) fn forget(&mut self, key: usize) {
        self.active.retain(|&active| active != key);
        if let Some(outgoing) = self.outgoing.try_remove(key) {
            match outgoing.purpose() {
                Purpose::Datagrams => self.by_number.set(outgoing.peer(), None),
                Purpose::Requests => {
                    self.requests.rings.set(outgoing.peer(), None);
                    self.requests.fail(key, Status::UnresponsiveRemote);
                }
            }
        }
    }

    /// The ring to `peer`, created if need be; `None` if there is no such queue pair. Another key
    /// than before may be that of a successor with the same number.
    #[inline]
    pub(super) fn ring_to(
        &mut self,
        state: &mut QueueState,
        peer: Qpn,
        qkey: Option<Qkey>,
    ) -> Result<Option<usize>, DeviceError> {
        let known = self.by_number.get(peer);
        if let Some(key) = known
            && let Some(outgoing) = self.outgoing.get_mut(key)
            && !outgoing.is_detached()
            && outgoing.accepts_key(qkey)
        {
            return Ok(known);
        }
        self.open_ring(state, peer, qkey, known)
    }

    #[cold]
    fn open_ring(
        &mut self,
        state: &mut QueueState,
        peer: Qpn,
        qkey: Option<Qkey>,
        old: Option<usize>,
    ) -> Result<Option<usize>, DeviceError> {
        if let Some(key) = old {
            self.close_ring(state, key);
        }
        self.create_ring(peer, Purpose::Datagrams, qkey)
    }

    /// Completes what is under way in a ring whose receiver is gone, and forgets the ring.
    pub(super) fn close_ring(&mut self, state: &mut QueueState, key: usize) {
        if let Some(outgoing) = self.outgoing.get_mut(key) {
            let peer = QueuePairId { gid: self.me.gid, qpn: outgoing.peer() };
            let mut sends = Sends { state, requests: &mut self.requests, peer };
            outgoing.close(Status::BadDestinationQpn, &mut sends);
        }
        self.forget(key);
    }

    /// Creates a ring to `peer`; `None` if there is no such queue pair.
    pub(super) fn create_ring(
        &mut self,
        peer: Qpn,
        purpose: Purpose,
        qkey: Option<Qkey>,
    ) -> Result<Option<usize>, DeviceError> {
        let outgoing = Outgoing::open(&self.local, peer, purpose, qkey)?;
        let Some(outgoing) = outgoing else { return Ok(None) };
        let key = self.outgoing.insert(outgoing);
        match purpose {
            Purpose::Datagrams => self.by_number.set(peer, Some(key)),
            Purpose::Requests => self.requests.rings.set(peer, Some(key)),
        }
        Ok(Some(key))
    }

    /// Whether the interface of an address handle can be reached.
    #[inline]
    pub(super) fn check_handle(
        &self,
        state: &QueueState,
        handle: AddressHandle,
    ) -> Result<Result<(), Status>, DeviceError> {
        let book = state.book();
        if book.own() == Some(handle) {
            return Ok(Ok(()));
        }
        match book.gid(handle) {
            Some(_) => Ok(Err(Status::UnreachableRemote)),
            None => Err(DeviceError::BadAddressHandle { handle }),
        }
    }

    #[inline]
    pub(super) fn send_datagram(
        &mut self,
        state: &mut QueueState,
        path: Path,
        request: SendRequest<Packet>,
    ) {
        let SendRequest { id, packet, length, destination, immediate } = request;
        state.record_sent(path.peer, &packet[..length]);
        // A datagram is no longer than the MTU.
        let content = Content::Datagram { packet, length: length as u32, rest: 0 };
        self.post(state, path, Posted { id, content, immediate, qkey: destination.qkey });
    }

    #[cold]
    pub(super) fn send_with_faults(
        &mut self,
        state: &mut QueueState,
        request: SendRequest<Packet>,
    ) {
        match &mut self.faults {
            Some(faults) if faults.reorders() => faults.delay(Delayed::Send(request)),
            _ => self.send_as_drawn(state, request),
        }
        // A thread that sleeps must poll until a delayed send is due.
        if let Some(sleeper) = &self.sleeper {
            sleeper.wake();
        }
    }

    #[cold]
    pub(super) fn send_due(&mut self, state: &mut QueueState) {
        if let Some(faults) = &mut self.faults {
            faults.poll();
        }
        while let Some(request) = self.faults.as_mut().and_then(|faults| faults.due()) {
            match request {
                Delayed::Send(request) => self.send_as_drawn(state, request),
                Delayed::Rdma(operation) => self.operations.push_back(operation),
            }
        }
    }

    fn send_as_drawn(&mut self, state: &mut QueueState, request: SendRequest<Packet>) {
        let datagram = &request.packet[..request.length];
        let not_ready = self.faults.as_mut().is_some_and(|faults| faults.draw_not_ready(datagram));
        let to = request.destination;
        let failed = |status| Path { peer: self.peer(to.qpn), connection: Err(status) };
        let path = match not_ready && self.local.rnr_retry < RNR_RETRY_INFINITE {
            true => failed(Status::ReceiverNotReady),
            // It was accepted, but its address handle may be destroyed by now.
            false => {
                let unreachable = failed(Status::UnreachableRemote);
                self.path_to(state, to).unwrap_or(unreachable)
            }
        };
        self.send_datagram(state, path, request);
    }

    /// Puts a send into the ring to its peer, or completes it.
    #[inline]
    pub(super) fn post(&mut self, state: &mut QueueState, path: Path, posted: Posted) {
        match path.connection {
            Ok(key) => {
                if let Some(outgoing) = self.outgoing.get_mut(key) {
                    if outgoing.is_idle() {
                        self.active.push(key);
                    }
                    outgoing.post(posted);
                }
            }
            Err(status) => {
                let requests = &mut self.requests;
                Sends { state, requests, peer: path.peer }.ended(posted, Err(status));
            }
        }
    }
}

/// Where the sends to one peer end.
pub(super) struct Sends<'a> {
    pub(super) state: &'a mut QueueState,
    pub(super) requests: &'a mut Requests,
    pub(super) peer: QueuePairId,
}

impl Sends<'_> {
    /// Takes packets back from a full send queue that wait for this peer, which stands still.
    #[cold]
    pub(super) fn relieve(&mut self, outgoing: &mut Outgoing) {
        if self.state.is_stuck() {
            outgoing.return_waiting(self);
        }
    }
}

impl Ends for Sends<'_> {
    #[inline(always)]
    fn delivered(&mut self, id: WorkId, packet: Packet) {
        self.state.complete_delivered(id, packet);
    }

    fn ended(&mut self, posted: Posted, result: Result<(), Status>) {
        let Posted { id, content, .. } = posted;
        match content {
            Content::Datagram { packet, length, .. } => {
                self.state.complete_send(self.peer, id, packet, length as usize, result);
            }
            Content::Written(_) => self.state.complete_rdma(id, result),
            Content::Piece { operation, piece } => {
                self.requests.finish(operation, &piece, result);
            }
            // The ring has the answer.
            Content::Push => {}
        }
    }
}
