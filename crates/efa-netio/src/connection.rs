//! A connection of any socket: its endpoint, what is under way on it, and its end.
//!
//! ```text
//!   Connecting ─► Open ─┬─ end_softly ─► Ending: what was given is sent, END tells how much it was, and the
//!        │              │                other side closes (or the time runs out)
//!        │              ├─ the other side is gone ─► Draining: what has arrived is received
//!        └──────────────┴─ end_now ─► the endpoint is dropped, its operations come back
//!                                         └─ the last one: the socket learns that it is closed
//! ```

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use efa::{Buffer, MsgEndpoint, OperationError, Receive, Refused, StartError, Status, Time};
use hashbrown::HashSet;
use slab::Slab;

use crate::delivery::{Return, Returns};
use crate::event::{ClosedReason, RefusedReason, Tag};
use crate::ids::{
    AnySocket, ConnectionKey, PublicationKey, PublishSocket, ReceiveSocket, SendSocket,
    SubscribeSocket,
};
use crate::timers::Deadline;
use crate::wire::{CONTROL, Control, LENGTH};

/// The socket of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Send(SendSocket),
    Receive(ReceiveSocket),
    Publish(PublishSocket),
    Subscribe(SubscribeSocket),
}

impl Owner {
    /// Whether the program's messages come in here.
    pub(crate) fn receives(self) -> bool {
        matches!(self, Self::Receive(_) | Self::Subscribe(_))
    }
}

impl From<Owner> for AnySocket {
    fn from(owner: Owner) -> Self {
        match owner {
            Owner::Send(socket) => Self::Send(socket),
            Owner::Receive(socket) => Self::Receive(socket),
            Owner::Publish(socket) => Self::Publish(socket),
            Owner::Subscribe(socket) => Self::Subscribe(socket),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Connecting,
    Open,
    /// No new messages are taken. `is_told`: the other side knows how many there were, or why.
    Ending {
        is_told: bool,
    },
    /// The other side is gone.
    Draining,
}

/// An operation of an endpoint. Its place in the table is the operation's context, less one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// With its place among the receives of the connection.
    Receive {
        connection: ConnectionKey,
        place: u64,
    },
    ReceiveControl {
        connection: ConnectionKey,
    },
    Send {
        connection: ConnectionKey,
        key: u64,
        data: Option<u64>,
    },
    Publish {
        connection: ConnectionKey,
        publication: PublicationKey,
    },
}

impl Op {
    pub(crate) fn connection(&self) -> ConnectionKey {
        match *self {
            Self::Receive { connection, .. }
            | Self::ReceiveControl { connection }
            | Self::Send { connection, .. }
            | Self::Publish { connection, .. } => connection,
        }
    }
}

/// A receive that has completed.
pub(crate) struct Arrival {
    pub(crate) buffer: Vec<u8>,
    /// Length of the message, and what came beside it; or why there is none.
    pub(crate) result: Result<(usize, Option<u64>), OperationError>,
}

/// What became of a send.
pub(crate) enum Posted {
    Done,
    /// The connection takes no more for now.
    Full,
    Failed(StartError),
}

pub(crate) struct Connection {
    key: ConnectionKey,
    returns: Arc<Returns>,
    pub(crate) owner: Owner,
    /// `None` from the end on, while operations come back.
    pub(crate) endpoint: Option<MsgEndpoint>,
    pub(crate) peer: SocketAddr,
    pub(crate) phase: Phase,
    /// All in the context's table.
    pub(crate) operations: u32,
    /// Messages under way.
    pub(crate) sends: u32,
    /// Messages that have arrived.
    pub(crate) received: u64,
    /// Receives for messages of the program, in the order in which they were posted and match messages. Those that have
    /// completed wait for the ones before them.
    pub(crate) receives: VecDeque<Option<Arrival>>,
    /// The place of the first one.
    pub(crate) first: u64,
    /// Of the receives, those that have not completed.
    pub(crate) posted: u32,
    /// How many messages the other side says that it sent in all.
    pub(crate) expected: Option<u64>,
    /// Publications that the connection gets before any other, the oldest first.
    pub(crate) owed: VecDeque<PublicationKey>,
    /// A message found no room.
    pub(crate) is_full: bool,
    /// A publication found others that the connection is owed before it.
    pub(crate) is_awaited: bool,
    /// Control messages that found no room.
    pub(crate) queued_controls: VecDeque<Control>,
    /// The context knows that it waits for room of which no completion tells.
    pub(crate) is_stuck: bool,
    /// Nothing can be sent to the other side any more, as far as the device knows.
    pub(crate) is_unreachable: bool,
    /// Buffers of receives for control messages that are posted when there is room for answers.
    held: Vec<Vec<u8>>,
    /// When its end is due.
    pub(crate) deadline: Option<Deadline>,
    /// Why it ends.
    pub(crate) why: Option<ClosedReason>,
    /// The program never learned of it.
    pub(crate) is_silent: bool,
    /// Why it was never made.
    pub(crate) refused: Option<RefusedReason>,
    /// Tags of a subscriber, at its publisher.
    pub(crate) tags: HashSet<Tag>,
    /// Messages that are complete.
    pub(crate) complete: u64,
    /// How many were when the publisher last looked whether the subscriber takes anything, and since when it has taken
    /// nothing although it could.
    pub(crate) looked_at: u64,
    pub(crate) slow_since: Option<Time>,
    /// How many were when the end was last due.
    pub(crate) complete_before: u64,
}

/// Most receives for control messages that are posted.
pub(crate) const CONTROLS: usize = 8;
/// Most control messages that wait for room. Then no more of the other side's are received until some are sent.
const MAX_QUEUED: usize = 64;

impl Connection {
    pub(crate) fn new(
        (key, returns): (ConnectionKey, &Arc<Returns>),
        owner: Owner,
        endpoint: MsgEndpoint,
        peer: SocketAddr,
        phase: Phase,
    ) -> Self {
        Self {
            key,
            returns: returns.clone(),
            owner,
            endpoint: Some(endpoint),
            peer,
            phase,
            operations: 0,
            sends: 0,
            received: 0,
            receives: VecDeque::new(),
            first: 0,
            posted: 0,
            expected: None,
            owed: VecDeque::new(),
            is_full: false,
            is_awaited: false,
            queued_controls: VecDeque::new(),
            is_stuck: false,
            is_unreachable: false,
            held: Vec::new(),
            deadline: None,
            why: None,
            is_silent: false,
            refused: None,
            tags: HashSet::new(),
            complete: 0,
            looked_at: 0,
            slow_since: None,
            complete_before: 0,
        }
    }

    /// Whether the program can send.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.phase == Phase::Open && self.endpoint.is_some()
    }

    /// Whether somebody waits for room.
    #[inline]
    pub(crate) fn waits_for_room(&self) -> bool {
        self.is_full || !self.queued_controls.is_empty()
    }

    /// Whether a message may still come for a receive.
    fn takes_receives(&self) -> bool {
        match self.phase {
            _ if self.is_cut_off() => false,
            Phase::Draining => self.has_unexpected(),
            _ => true,
        }
    }

    /// Whether the program still gets what arrives. What completes after the end may lack a message before it.
    pub(crate) fn delivers(&self) -> bool {
        self.endpoint.is_some() && !self.is_cut_off()
    }

    /// Whether a message did not fit, so that those behind it aren't received.
    pub(crate) fn is_cut_off(&self) -> bool {
        matches!(self.why, Some(ClosedReason::TooLong { .. }))
    }

    /// Posts a receive for a message of the program. A buffer that can't be posted comes back.
    pub(crate) fn post(
        &mut self,
        operations: &mut Slab<Op>,
        buffer: Vec<u8>,
    ) -> Result<(), Vec<u8>> {
        if !self.takes_receives() {
            return Err(buffer);
        }
        let Some(endpoint) = &self.endpoint else { return Err(buffer) };
        let entry = operations.vacant_entry();
        match endpoint.receive(Receive::untagged(), buffer, entry.key() as u64 + 1) {
            Ok(_) => {
                let place = self.first + self.receives.len() as u64;
                entry.insert(Op::Receive { connection: self.key, place });
                self.receives.push_back(None);
                self.operations += 1;
                self.posted += 1;
                Ok(())
            }
            Err(refused) => Err(refused.buffer.into_vec()),
        }
    }

    /// A receive has completed.
    pub(crate) fn arrived(&mut self, place: u64, arrival: Arrival) {
        self.posted -= 1;
        self.receives[(place - self.first) as usize] = Some(arrival);
    }

    /// The next receive in order, if it has completed.
    pub(crate) fn next_arrival(&mut self) -> Option<Arrival> {
        let arrival = self.receives.front_mut()?.take()?;
        self.receives.pop_front();
        self.first += 1;
        Some(arrival)
    }

    /// Posts a receive for a control message.
    pub(crate) fn post_control(&mut self, operations: &mut Slab<Op>, buffer: Vec<u8>) {
        let Some(endpoint) = &self.endpoint else { return };
        // A subscriber always receives what its publisher sends, so that one of the two goes on.
        if self.queued_controls.len() >= MAX_QUEUED && !self.owner.receives() {
            return self.held.push(buffer);
        }
        let entry = operations.vacant_entry();
        let posted = endpoint.receive(Receive::tagged(CONTROL), buffer, entry.key() as u64 + 1);
        if posted.is_ok() {
            entry.insert(Op::ReceiveControl { connection: self.key });
            self.operations += 1;
        }
    }

    /// Posts the receives for control messages that were held back, if there is room for answers.
    pub(crate) fn post_held(&mut self, operations: &mut Slab<Op>) {
        if self.queued_controls.len() < MAX_QUEUED {
            for buffer in std::mem::take(&mut self.held) {
                self.post_control(operations, buffer);
            }
        }
    }

    pub(crate) fn post_controls(&mut self, operations: &mut Slab<Op>) {
        for _ in 0..CONTROLS {
            self.post_control(operations, vec![0; LENGTH]);
        }
    }

    /// Messages of the program so far.
    pub(crate) fn sent(&self) -> u64 {
        self.complete + u64::from(self.sends)
    }

    /// Sends a message of the program.
    // Inline, so that a publication passes nothing by memory: 40 instructions for each subscriber.
    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        operations: &mut Slab<Op>,
        op: impl FnOnce() -> Op,
        message: efa::Message,
        buffer: impl FnOnce() -> Buffer,
    ) -> Posted {
        let Some(endpoint) = &self.endpoint else {
            return Posted::Failed(StartError::Closed);
        };
        let entry = operations.vacant_entry();
        match endpoint.send(message, buffer(), entry.key() as u64 + 1) {
            Ok(()) => {
                entry.insert(op());
                self.operations += 1;
                self.sends += 1;
                Posted::Done
            }
            Err(Refused { error, .. }) => self.not_sent(error),
        }
    }

    #[cold]
    fn not_sent(&mut self, error: StartError) -> Posted {
        match error.is_busy() || error.shortage().is_some() {
            true => {
                self.is_full = true;
                if self.sends == 0 {
                    self.be_stuck();
                }
                Posted::Full
            }
            false => {
                self.not_reached(&error);
                Posted::Failed(error)
            }
        }
    }

    /// The context has to look whether there is room: no completion of a message will tell.
    #[cold]
    pub(crate) fn be_stuck(&mut self) {
        if !std::mem::replace(&mut self.is_stuck, true) {
            self.returns.put(Return::Stuck(self.key));
        }
    }

    /// Whether another message of the program may start.
    pub(crate) fn has_room(&self) -> bool {
        self.endpoint.as_ref().is_some_and(|endpoint| endpoint.transmits_left() > 0)
    }

    /// Sends a control message, now or when there is room.
    pub(crate) fn send_control(&mut self, control: Control) {
        self.queued_controls.push_back(control);
        self.flush_controls();
    }

    /// Sends control messages for which there was no room.
    pub(crate) fn flush_controls(&mut self) {
        let Some(endpoint) = &self.endpoint else { return self.queued_controls.clear() };
        while let Some(control) = self.queued_controls.front() {
            let to = efa::Message::to(MsgEndpoint::PEER).tagged(CONTROL);
            match endpoint.inject(to, &control.emit()) {
                Ok(()) => drop(self.queued_controls.pop_front()),
                // A caller may not have heard yet that it was accepted.
                Err(StartError::NotConnected) if self.phase != Phase::Draining => {
                    return self.be_stuck();
                }
                Err(error) if error.is_busy() || error.shortage().is_some() => {
                    return self.be_stuck();
                }
                Err(error) => {
                    tracing::debug!(%error, ?control, "a control message is not sent");
                    self.queued_controls.clear();
                    return self.not_reached(&error);
                }
            }
        }
    }

    /// The context ends a connection on which nothing can be sent any more.
    fn not_reached(&mut self, error: &StartError) {
        if matches!(error, StartError::PeerGone(_)) {
            self.is_unreachable = true;
            self.be_stuck();
        }
    }

    /// Whether a message has arrived that no receive has taken. `false` also if the endpoint is gone.
    pub(crate) fn has_unexpected(&self) -> bool {
        let found = self.endpoint.as_ref().map(|endpoint| endpoint.peek(Receive::untagged()));
        matches!(found, Some(Ok(Some(_))))
    }

    /// Sends END, which has the number of messages, once all are out.
    pub(crate) fn send_end(&mut self) {
        if self.phase == (Phase::Ending { is_told: false })
            && self.sends == 0
            && self.owed.is_empty()
        {
            self.phase = Phase::Ending { is_told: true };
            self.send_control(Control::End { messages: self.sent() });
        }
    }

    /// The reason of an operation that failed while the connection was open.
    pub(crate) fn failed(&self, error: OperationError) -> Option<ClosedReason> {
        match error {
            OperationError::Cancelled => None,
            _ if self.endpoint.is_none() => None,
            error if is_of_peer(error) => Some(ClosedReason::PeerGone),
            error => Some(ClosedReason::Failed(error)),
        }
    }
}

/// Whether an operation failed because the other side is gone. The device may know it before the event queue does.
fn is_of_peer(error: OperationError) -> bool {
    match error {
        OperationError::Device(status) => status.is_peer_gone() || status == Status::UnknownPeer,
        OperationError::PeerRestarted | OperationError::PeerRemoved => true,
        _ => false,
    }
}
