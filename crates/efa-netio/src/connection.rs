//! A connection of any socket: its endpoint, what is under way on it, and its end.
//!
//! ```text
//!   Connecting ─► Open ─┬─ end_softly ─► Ending: what was given is sent, END tells how much it was, and the
//!        │              │                other side closes (or the time runs out)
//!        │              ├─ the other side is gone ─► Draining: what has arrived is received
//!        └──────────────┴─ end_now ─► the endpoint is dropped, its operations come back
//!                                         └─ the last one: the socket learns that it is closed
//! ```

mod controls;
mod receives;
mod sends;
mod subscriptions;

use std::net::SocketAddr;
use std::sync::Arc;

use efa::{Buffer, MsgEndpoint, OperationError, Receive, Refused, StartError, Status};
use slab::Slab;

use controls::Controls;
pub(crate) use receives::Arrival;
use receives::Receives;
use sends::Sends;
use subscriptions::Subscriptions;

use crate::delivery::{Return, Returns};
use crate::event::{ClosedReason, PostRefused, RefusedReason, SocketError};
use crate::ids::{
    AnySocket, ConnectionKey, PublicationKey, PublishSocket, ReceiveSocket, SendSocket,
    SubscribeSocket,
};
use crate::timers::Deadline;
use crate::wire::{CONTROL, Control, Features, LENGTH};

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
    /// Of the other side; none before the connection is made.
    pub(crate) features: Features,
    pub(crate) phase: Phase,
    /// All in the context's table.
    pub(crate) operations: u32,
    /// Messages of the program, out.
    pub(crate) sends: Sends,
    /// Messages of the program, in.
    pub(crate) receives: Receives,
    pub(crate) controls: Controls,
    /// Of a subscriber, at its publisher.
    pub(crate) subscriptions: Subscriptions,
    /// A message found no room.
    pub(crate) is_full: bool,
    /// The context knows that it waits for room, or for memory of a buffer, of which no completion tells.
    pub(crate) is_stuck: bool,
    /// Nothing can be sent to the other side any more, as far as the device knows.
    pub(crate) is_unreachable: bool,
    /// When its end is due.
    pub(crate) deadline: Option<Deadline>,
    /// Why it ends.
    pub(crate) why: Option<ClosedReason>,
    /// The program never learned of it.
    pub(crate) is_silent: bool,
    /// Why it was never made.
    pub(crate) refused: Option<RefusedReason>,
}

/// Most receives for control messages that are posted.
pub(crate) const CONTROLS: usize = 8;

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
            features: Features::default(),
            phase,
            operations: 0,
            sends: Sends::default(),
            receives: Receives::default(),
            controls: Controls::default(),
            subscriptions: Subscriptions::default(),
            is_full: false,
            is_stuck: false,
            is_unreachable: false,
            deadline: None,
            why: None,
            is_silent: false,
            refused: None,
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
        self.is_full || !self.controls.is_empty()
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
    ) -> Result<(), PostRefused> {
        let endpoint = match &self.endpoint {
            Some(endpoint) if self.takes_receives() => endpoint,
            _ => return Err(PostRefused { error: SocketError::NotConnected.into(), buffer }),
        };
        let entry = operations.vacant_entry();
        match endpoint.receive(Receive::untagged(), buffer, entry.key() as u64 + 1) {
            Ok(_) => {
                entry.insert(Op::Receive { connection: self.key, place: self.receives.post() });
                self.operations += 1;
                Ok(())
            }
            Err(Refused { error, buffer }) => {
                Err(PostRefused { error: error.into(), buffer: buffer.into_vec() })
            }
        }
    }

    /// Posts a receive for a control message.
    pub(crate) fn post_control(&mut self, operations: &mut Slab<Op>, buffer: Vec<u8>) {
        let Some(endpoint) = &self.endpoint else { return };
        // A subscriber always receives what its publisher sends, so that one of the two goes on.
        if self.controls.is_full() && !self.owner.receives() {
            return self.controls.hold(buffer);
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
        for buffer in self.controls.take_held() {
            self.post_control(operations, buffer);
        }
    }

    pub(crate) fn post_controls(&mut self, operations: &mut Slab<Op>) {
        for _ in 0..CONTROLS {
            self.post_control(operations, vec![0; LENGTH]);
        }
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
                self.sends.begin();
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
                if !self.sends.are_under_way() {
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

    /// There is no memory for a buffer. If none is posted, nothing arrives after which it would be made.
    #[cold]
    pub(crate) fn lacks_memory(&mut self) {
        if self.receives.posted() == 0 && self.takes_receives() {
            self.be_stuck();
        }
    }

    /// Whether another message of the program may start.
    pub(crate) fn has_room(&self) -> bool {
        self.endpoint.as_ref().is_some_and(|endpoint| endpoint.transmits_left() > 0)
    }

    /// Sends a control message, now or when there is room.
    pub(crate) fn send_control(&mut self, control: Control) {
        self.controls.queue(control);
        self.flush_controls();
    }

    /// Sends control messages for which there was no room.
    pub(crate) fn flush_controls(&mut self) {
        let Some(endpoint) = &self.endpoint else { return self.controls.clear() };
        while let Some(control) = self.controls.next() {
            let to = efa::Message::to(MsgEndpoint::PEER).tagged(CONTROL);
            match endpoint.inject(to, &control.emit()) {
                Ok(()) => self.controls.sent(),
                // A caller may not have heard yet that it was accepted.
                Err(StartError::NotConnected) if self.phase != Phase::Draining => {
                    return self.be_stuck();
                }
                Err(error) if error.is_busy() || error.shortage().is_some() => {
                    return self.be_stuck();
                }
                Err(error) => {
                    tracing::debug!(%error, ?control, "a control message is not sent");
                    self.controls.clear();
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
            && !self.sends.are_under_way()
            && !self.subscriptions.are_owed()
        {
            self.phase = Phase::Ending { is_told: true };
            self.send_control(Control::End { messages: self.sends.count() });
        }
    }

    /// The reason of an operation that failed while the connection was open.
    pub(crate) fn failed(&self, error: OperationError) -> Option<ClosedReason> {
        match error {
            OperationError::Cancelled
            | OperationError::ConnectionEnded
            | OperationError::Closed => None,
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
