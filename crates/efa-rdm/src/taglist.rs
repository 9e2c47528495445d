//! Devices that match tagged messages themselves by a tag list; no EFA device does. Here: posting
//! commands to the list and handling its reports. [`efa_match::Offload`] decides which receives are on
//! the list and keeps the matching order between the list and software.
//!
//! ```text
//!   device ── Matched, receive ─────► message begins ──► that receive, no lookup in software
//!          ── Unexpected ───────────► message begins ──► matched in software ─┬► receive
//!          ◄─ ADD DEL SYNC ── after each poll                                 ├► stored
//!          ── CommandDone ─► a waiting message or cancel goes on              └► waits for a DEL
//! ```

use efa_device::{QueuePair, Source, TagChange, TagCommand, TagList, TagReport};
use efa_match::{Change, Command, Outcome, PostId};
use efa_proto::{Header, Packet, Rtm};

use crate::completion::OperationError;
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::event::Event;
use crate::held::Chain;
use crate::ids::PeerId;
use crate::matching::{MatchHint, Matching, Waiting};
use crate::payload::Payload;
use crate::shape::Shape;

/// The tag of a datagram that begins a tagged message, for which a device with a tag list
/// ([`TagList`]) looks. `None` for all other datagrams, further segments of a message included.
#[must_use]
pub fn leading_tag(bytes: &[u8]) -> Option<u64> {
    let Ok(Packet { header: Header::Rtm(rtm), payload }) = Packet::parse(bytes) else {
        return None;
    };
    let shape = Shape::of(&rtm, payload).ok()?;
    rtm.tag.filter(|_| shape.offset == 0 && !shape.read_nack)
}

/// The result of the device's match for a message.
pub(crate) enum DeviceMatch<B> {
    /// The device has no match: the message is to be matched in software.
    LookUp,
    /// The device matched this receive.
    Receive(Waiting<B>),
    /// The device matched a receive that was cancelled with all others.
    Ended,
}

impl<Q: QueuePair, B> Matching<Q, B> {
    /// Takes the device's match for the message that begins with the current packet.
    #[cold]
    pub(crate) fn device_match(&mut self, tagged: bool) -> DeviceMatch<B> {
        if !tagged {
            return DeviceMatch::LookUp;
        }
        let MatchHint::Receive(post) = std::mem::take(&mut self.match_hint) else {
            return DeviceMatch::LookUp;
        };
        match self.matcher(true).offload().map(|list| list.matched(post)) {
            Some(Ok(Some(waiting))) => DeviceMatch::Receive(waiting),
            Some(Ok(None)) => DeviceMatch::Ended,
            Some(Err(breach)) => {
                self.ops.core.events.push(Event::TagListBroken(breach));
                DeviceMatch::LookUp
            }
            None => DeviceMatch::LookUp,
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// Handles a datagram that a device with a tag list delivered.
    #[inline(never)]
    pub(crate) fn packet_matched_by_device(
        &mut self,
        packet: Q::Packet,
        length: usize,
        source: Source,
    ) {
        self.matching.take_tag_reports();
        let ended = self.packet_arrived(packet, length, source);
        self.core_mut().complete(ended);
        self.matching.discard_match_hint();
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Matching<Q, B> {
    /// Handles the tag list's reports. The last match report is about the current packet.
    pub(crate) fn take_tag_reports(&mut self) {
        while let Some(report) = self.ops.core.transmit.device.tag_list().and_then(TagList::poll) {
            match report {
                TagReport::Matched { receive } => {
                    self.match_hint = MatchHint::Receive(PostId::from_bits(receive));
                }
                TagReport::Unexpected => self.match_hint = MatchHint::Unexpected,
                TagReport::CommandDone { id, succeeded, sync_required } => {
                    self.tag_command_done(id, succeeded, sync_required);
                }
            }
        }
    }

    /// Clears an `Unexpected` hint: the current packet is out of order, and is matched and counted when
    /// it is handled.
    pub(crate) fn defer_match_hint(&mut self) {
        if self.match_hint == MatchHint::Unexpected {
            self.match_hint = MatchHint::None;
        }
    }

    /// Drops a chain of out-of-order packets. If the device counted it as an unexpected message, counts
    /// it too. Returns the bytes freed.
    pub(crate) fn drop_ahead(&mut self, chain: Chain) -> usize {
        if self.has_tag_list
            && chain != Chain::NONE
            && leading_tag(self.held.bytes(chain.first)).is_some()
            && let Some(offload) = self.matcher(true).offload()
        {
            offload.unexpected_other();
        }
        self.held.drop_chain(chain)
    }

    /// Undoes the device's match of the current packet if no message began with it.
    pub(crate) fn discard_match_hint(&mut self) {
        match std::mem::take(&mut self.match_hint) {
            MatchHint::None => {}
            MatchHint::Unexpected => {
                if let Some(offload) = self.matcher(true).offload() {
                    offload.unexpected_other();
                }
            }
            // The device took a receive off its list for a packet that was dropped or is out of order.
            // The receive can't be put back at its position in the list.
            MatchHint::Receive(post) => {
                let matched = self.matcher(true).offload().map(|list| list.matched(post));
                match matched {
                    Some(Ok(Some(waiting))) => {
                        self.receive_failed(waiting, true, OperationError::WronglyMatched);
                    }
                    Some(Err(breach)) => self.ops.core.events.push(Event::TagListBroken(breach)),
                    Some(Ok(None)) | None => {}
                }
            }
        }
    }

    /// Handles the completion of a command for the list.
    fn tag_command_done(&mut self, id: u32, succeeded: bool, sync_required: bool) {
        let Some(offload) = self.matcher(true).offload() else { return };
        match offload.op_completed(id, succeeded, sync_required) {
            Ok(None) => {}
            Ok(Some(Outcome::Cancelled(waiting))) => {
                self.receive_failed(waiting, true, OperationError::Cancelled);
            }
            Ok(Some(Outcome::Matched(waiting, key))) => self.receive_awaited(waiting, key),
            Err(breach) => self.ops.core.events.push(Event::TagListBroken(breach)),
        }
    }

    /// Completes a receive that a message waited for: the device has removed it from its list.
    fn receive_awaited(&mut self, waiting: Waiting<B>, key: u32) {
        if self.messages.get(key).is_some_and(|message| message.packets != Chain::NONE) {
            let posted = self.end_wait(waiting);
            return self.receive_unexpected(posted.target(true), key);
        }
        // The message was dropped meanwhile.
        self.messages.remove(key);
        self.receive_failed(waiting, true, OperationError::PeerRemoved);
    }

    /// Posts the commands that the matcher has queued.
    pub(crate) fn post_tag_commands(&mut self) {
        while let Some(offload) = self.matcher(true).offload()
            && let Some(Command { op, change, unexpected, signalled }) = offload.poll_command()
        {
            let (post, change) = match change {
                Change::Add { post, tag, mask } => {
                    (Some(post), TagChange::Add { receive: post.to_bits(), tag, mask })
                }
                Change::Delete { handle, .. } => (None, TagChange::Delete { handle }),
                Change::Sync => (None, TagChange::Sync),
            };
            let command = TagCommand { id: op, change, unexpected, signalled };
            let Some(list) = self.ops.core.transmit.device.tag_list() else { return };
            match (list.post(command), post) {
                (Ok(handle), Some(post)) => {
                    if let Some(offload) = self.matcher(true).offload() {
                        offload.added(post, handle);
                    }
                }
                (Ok(_), None) => {}
                // Can't occur: no more commands are queued than the device's queue holds.
                (Err(error), _) => self.ops.core.events.push(Event::DeviceRefused(error)),
            }
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Whether the first packet to arrive of a message isn't its first segment. The device neither
    /// matches nor counts such a packet; matched in software it could take a receive that the device
    /// gives to another message. The device delivers in order, so only a hostile sender causes this.
    #[cold]
    pub(crate) fn begins_without_first_segment(
        &mut self,
        peer: PeerId,
        rtm: &Rtm<'_>,
        shape: &Shape,
    ) -> bool {
        let active = self.peers.active_mut(peer);
        let is_held = active.is_some_and(|of| of.window.get_mut(rtm.msg_id.0).is_some());
        rtm.tag.is_some() && shape.offset > 0 && !is_held
    }
}
