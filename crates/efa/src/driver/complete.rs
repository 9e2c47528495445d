//! From a completion of the engine to one of the application.

use std::mem;

use efa_device::QueuePair;
use efa_rdm::{
    AtomicCompletion, Completion as EngineCompletion, InPlaceCompletion, OperationError, PeerId,
    ReceiveCompletion, RemoteWrite, RmaCompletion, RmaKind, SendCompletion, Subprotocol,
};

use super::{Driver, Sources};
use crate::address::Address;
use crate::address_vector::FiAddr;
use crate::buffer::{Buffer, Role, Slot};
use crate::completion::{Completion, CompletionError, Kind};
use crate::completion_queue::{AnyReader, Credit, Entry, Reader, Room};
use crate::device::{ConcretePacket, ConcreteRegion};
use crate::endpoint_options::Side;
use crate::packet::Packet;

/// A peer as completions name it: index in the address vector, if it is there, and address.
type PeerName = (Option<FiAddr>, Option<Address>);

const UNNAMED: PeerName = (None, None);

impl<Q: QueuePair<Region: ConcreteRegion, Packet: ConcretePacket>> Driver<Q> {
    /// Appends the completions that the engine has to the completion queues.
    pub(super) fn deliver(&mut self) {
        loop {
            let completion = self.engine.poll_completion();
            let reader = &mut Reader { queue: None, room: &mut () };
            if self.complete(completion, reader).is_none() {
                break;
            }
        }
        if Q::IN_PLACE {
            self.complete_in_place(&mut Reader { queue: None, room: &mut () });
        }
        if let Some(accounts) = &mut self.accounts {
            accounts.counters.follow(self.engine.statistics());
        }
    }

    /// Gives a completion to the reader if it is for that queue, and returns whether it is; otherwise
    /// appends it to its queue. `None` if there is none: the caller doesn't look, as that would move it.
    #[inline(always)]
    pub(super) fn complete<R: Room>(
        &mut self,
        completion: Option<EngineCompletion<Slot>>,
        reader: &mut Reader<'_, R>,
    ) -> Option<bool> {
        match completion {
            // The most frequent cases, taken apart here so that nothing is moved twice. Their role has nothing to drop, which
            // the compiler doesn't see.
            Some(EngineCompletion::Receive(ReceiveCompletion {
                context,
                peer,
                tagged,
                tag,
                length,
                cq_data,
                subprotocol,
                buffer: Slot { buffer, role: role @ Role::Whole },
                result: Ok(()),
            })) if self.receive.is_read_by(reader) => {
                mem::forget(role);
                self.count(Kind::Receive, &Ok(()));
                let from = self.sender(peer);
                reader.room.put(Ok(Completion {
                    tag: tagged.then_some(tag),
                    cq_data,
                    subprotocol,
                    ..self.completion(Kind::Receive, context, length, buffer, from)
                }));
                self.receive.end();
                Some(true)
            }
            Some(EngineCompletion::Send(SendCompletion {
                context,
                peer,
                tag,
                length,
                subprotocol,
                buffer: Some(Slot { buffer, role: role @ Role::Whole }),
                result: Ok(()),
            })) if self.transmit.is_read_by(reader) => {
                mem::forget(role);
                if let Some(accounts) = &self.accounts {
                    accounts.ended(Kind::Send, true, true);
                }
                let to = self.name(peer);
                reader.room.put(Ok(Completion {
                    tag,
                    subprotocol,
                    ..self.completion(Kind::Send, context, length, buffer, to)
                }));
                self.transmit.end();
                Some(true)
            }
            None => None,
            _ => Some(self.complete_other(completion, &mut reader.any())),
        }
    }

    #[inline(never)]
    fn complete_other(
        &mut self,
        completion: Option<EngineCompletion<Slot>>,
        reader: &mut AnyReader<'_>,
    ) -> bool {
        match completion {
            None => false,
            Some(EngineCompletion::Send(send)) => self.sent(send, reader),
            Some(EngineCompletion::Receive(receive)) => self.received(receive, reader),
            Some(EngineCompletion::Rma(rma)) => self.rma_ended(rma, reader),
            Some(EngineCompletion::Atomic(atomic)) => self.atomic_ended(*atomic, reader),
            Some(EngineCompletion::RemoteWrite(write)) => self.remotely_written(write, reader),
            Some(EngineCompletion::Released { context, buffer }) => {
                let (buffer, role) = buffer.into_parts();
                let completion = self.completion(Kind::Released, context, 0, buffer, UNNAMED);
                self.receive_ended(role, Ok(completion), reader)
            }
        }
    }

    /// A completion with what every operation has. The rest is `None`.
    #[inline(always)]
    fn completion(
        &self,
        kind: Kind,
        context: u64,
        length: u64,
        buffer: Buffer,
        (peer, peer_address): PeerName,
    ) -> Completion {
        Completion {
            endpoint: self.id,
            context,
            kind,
            length,
            buffer,
            tag: None,
            cq_data: None,
            peer,
            peer_address,
            subprotocol: None,
        }
    }

    /// Ends an operation without a completion. Always returns false: the reader gets none.
    fn end_silently(&mut self, side: Side) -> bool {
        self.end(side);
        false
    }

    fn sent(&mut self, send: SendCompletion<Slot>, reader: &mut AnyReader<'_>) -> bool {
        if let Some(accounts) = &self.accounts {
            // An injected message has no buffer, and it took no share of a budget.
            accounts.ended(Kind::Send, send.result.is_ok(), send.buffer.is_some());
        }
        if send.result.is_ok() && send.buffer.as_ref().is_some_and(Slot::is_silent) {
            return self.end_silently(Side::Transmit);
        }
        // Only an injected message has no buffer, and it took no credit.
        let credit = if send.buffer.is_some() { Credit::Held } else { Credit::None };
        let to = self.name(send.peer);
        let buffer = send.buffer.map(Slot::into_buffer).unwrap_or_default();
        let completion = Completion {
            tag: send.tag,
            subprotocol: send.subprotocol,
            ..self.completion(Kind::Send, send.context, send.length, buffer, to)
        };
        self.transmit.give(reader, credit, entry(completion, send.result))
    }

    fn rma_ended(&mut self, rma: RmaCompletion<Slot>, reader: &mut AnyReader<'_>) -> bool {
        let kind = match rma.kind {
            RmaKind::Write => Kind::Write,
            RmaKind::Read => Kind::Read,
        };
        if let Some(accounts) = &self.accounts {
            accounts.ended(kind, rma.result.is_ok(), true);
        }
        if rma.result.is_ok() && rma.buffer.is_silent() {
            return self.end_silently(Side::Transmit);
        }
        let (peer, buffer) = (self.name(rma.peer), rma.buffer.into_buffer());
        let completion = Completion {
            subprotocol: rma.subprotocol,
            ..self.completion(kind, rma.context, rma.length, buffer, peer)
        };
        self.transmit.give(reader, Credit::Held, entry(completion, rma.result))
    }

    fn atomic_ended(&mut self, atomic: AtomicCompletion<Slot>, reader: &mut AnyReader<'_>) -> bool {
        let kind = match atomic.fetched {
            Some(_) => Kind::FetchAtomic,
            None => Kind::Atomic,
        };
        if let Some(accounts) = &self.accounts {
            accounts.ended(kind, atomic.result.is_ok(), true);
        }
        if atomic.result.is_ok() && atomic.operand.is_silent() {
            return self.end_silently(Side::Transmit);
        }
        let peer = self.name(atomic.peer);
        let buffer = atomic.fetched.map(Slot::into_buffer).unwrap_or_default();
        let completion = self.completion(kind, atomic.context, atomic.length, buffer, peer);
        self.transmit.give(reader, Credit::Held, entry(completion, atomic.result))
    }

    fn remotely_written(&mut self, write: RemoteWrite, reader: &mut AnyReader<'_>) -> bool {
        let from = self.sender(write.peer);
        let completion = Completion {
            cq_data: Some(write.cq_data),
            ..self.completion(Kind::RemoteWrite, 0, write.length, Buffer::default(), from)
        };
        self.receive.give(reader, Credit::None, Ok(completion))
    }

    fn received(&mut self, receive: ReceiveCompletion<Slot>, reader: &mut AnyReader<'_>) -> bool {
        let (buffer, role) = receive.buffer.into_parts();
        let kind = match role {
            Role::Whole | Role::Silent | Role::Registered(_) | Role::Taken(_) => Kind::Receive,
            Role::Part(_) => Kind::MultiReceive,
            Role::Rest(_) => Kind::Released,
        };
        self.count(kind, &receive.result);
        if receive.result.is_ok() && matches!(role, Role::Silent) {
            return self.end_silently(Side::Receive);
        }
        if let (Ok(()), Role::Taken(taken)) = (&receive.result, &role)
            && !self.unreported[1].reports(taken.completion())
        {
            return false;
        }
        if let (Ok(()), Role::Part(parts)) = (&receive.result, &role)
            && !parts.are_reported()
        {
            drop(role);
            self.release_complete();
            return false;
        }
        let from = self.sender(receive.peer);
        let completion = Completion {
            tag: receive.tagged.then_some(receive.tag),
            cq_data: receive.cq_data,
            subprotocol: receive.subprotocol,
            ..self.completion(kind, receive.context, receive.length, buffer, from)
        };
        self.receive_ended(role, entry(completion, receive.result), reader)
    }

    /// Gives the completion of a receive, of one message in a multi-receive buffer, or of the release
    /// of such a buffer, which comes after those of its messages.
    fn receive_ended(&mut self, role: Role, entry: Entry, reader: &mut AnyReader<'_>) -> bool {
        match role {
            Role::Whole | Role::Silent | Role::Registered(_) => {
                self.receive.give(reader, Credit::Held, entry)
            }
            // No queue had a credit for it, as it was posted to none.
            Role::Taken(_) => self.receive.give(reader, Credit::None, entry),
            Role::Part(parts) => {
                let given = self.receive.give(reader, Credit::None, entry);
                drop(parts);
                self.release_complete();
                given
            }
            Role::Rest(parts) => {
                self.releases.push((parts, entry));
                self.release_complete();
                false
            }
        }
    }

    /// Releases the multi-receive buffers whose messages have all completed.
    fn release_complete(&mut self) {
        for (_, entry) in self.releases.extract_if(.., |(parts, _)| parts.are_complete()) {
            self.receive.deliver(Credit::Held, entry);
        }
    }

    /// Gives completions of receives in place until one is for the reader, and returns whether one was.
    pub(super) fn complete_in_place(&mut self, reader: &mut AnyReader<'_>) -> bool {
        while let Some(received) = self.engine.poll_in_place() {
            if self.received_in_place(received, reader) {
                return true;
            }
        }
        false
    }

    fn received_in_place(
        &mut self,
        received: InPlaceCompletion<Q::Packet>,
        reader: &mut AnyReader<'_>,
    ) -> bool {
        let InPlaceCompletion { context, peer, cq_data, result } = received;
        let (buffer, subprotocol, result) = match result {
            Ok(message) => {
                let range = message.range();
                let packet = message.into_packet().into_any();
                let buffer = Packet::new(packet, range.start, range.len()).into();
                (buffer, Some(Subprotocol::Eager), Ok(()))
            }
            Err(error) => (Buffer::default(), None, Err(error)),
        };
        self.count(Kind::Receive, &result);
        let (length, from) = (buffer.len() as u64, self.sender(peer));
        let completion = Completion {
            cq_data,
            subprotocol,
            ..self.completion(Kind::Receive, context, length, buffer, from)
        };
        self.receive.give(reader, Credit::Held, entry(completion, result))
    }

    /// Counts a receive that ended.
    fn count(&self, kind: Kind, result: &Result<(), OperationError>) {
        if let Some(accounts) = &self.accounts {
            accounts.counters.ended(kind, result.is_ok());
        }
    }

    /// The sender of a message, if completions are to name it.
    pub(super) fn sender(&mut self, peer: Option<PeerId>) -> PeerName {
        match peer {
            Some(peer) if self.sources == Sources::Reported => self.name(peer),
            _ => UNNAMED,
        }
    }

    fn name(&mut self, peer: PeerId) -> PeerName {
        (self.addr(peer), self.engine.peer_address(peer).map(Address::from))
    }

    /// A peer's index in the address vector.
    #[inline]
    fn addr(&mut self, peer: PeerId) -> Option<FiAddr> {
        self.peers.addr(peer).or_else(|| self.find_addr(peer))
    }

    /// Finds the index of a peer that nothing was sent to, and notes it as a send would.
    #[cold]
    fn find_addr(&mut self, peer: PeerId) -> Option<FiAddr> {
        let address = Address::from(self.engine.peer_address(peer)?);
        let found = self.addresses.find(&address)?;
        if self.addresses.is_reader() {
            // Another process doesn't tell of the removal of a peer: its index may have the next one already.
            let current = self.addresses.published(found);
            return current.is_some_and(|current| current.address == address).then_some(found);
        }
        // What a peer left that was removed, and inserted again since, has the index of the new one, which alone is sent to.
        let is_live = self.engine.find_peer(&address.raw()) == Some(peer);
        // A further context of a scalable endpoint isn't what its index stands for.
        if is_live && self.addresses.address(found) == Some(address) {
            self.peers.insert(found, found, peer);
        }
        Some(found)
    }
}

#[inline(always)]
fn entry(completion: Completion, result: Result<(), OperationError>) -> Entry {
    match result {
        Ok(()) => Ok(completion),
        Err(error) => Err(CompletionError { error, completion: Box::new(completion) }),
    }
}
