//! A device that matches tagged messages itself, of which EFA has none: what the engine does about
//! its list of tags. Which receives the list holds, and that the order holds across both, is
//! [`efa_match::Offload`]'s business.
//!
//! ```text
//!   device ── Matched, receive ─────► message begins ──► that receive, nothing is looked up
//!          ── Unexpected ───────────► message begins ──► looked up here ─┬► receive
//!          ◄─ ADD DEL SYNC ── after each round                           ├► kept
//!          ── CommandDone ─► a message or a cancel that waited           └► waits for a DEL
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

/// The tag of a datagram that begins a tagged message: what a device with a list of tags
/// ([`TagList`]) is to look for. A segment that goes on with a message has none.
#[must_use]
pub fn leading_tag(bytes: &[u8]) -> Option<u64> {
    let Ok(Packet { header: Header::Rtm(rtm), payload }) = Packet::parse(bytes) else {
        return None;
    };
    let shape = Shape::of(&rtm, payload).ok()?;
    rtm.tag.filter(|_| shape.offset == 0 && !shape.read_nack)
}

/// What follows from the device's word on a message.
pub(crate) enum DeviceMatch<B> {
    /// It is to be looked up.
    LookUp,
    /// It goes to this receive.
    Receive(Waiting<B>),
    /// It goes to a receive that has ended with all others.
    Ended,
}

impl<Q: QueuePair, B> Matching<Q, B> {
    /// Who gets a message by the device's word.
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
    /// Handles what the tag list reports. The last report is about the packet in hand.
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

    /// The packet in hand is kept until its turn, when it is looked up and counted.
    pub(crate) fn defer_match_hint(&mut self) {
        if self.match_hint == MatchHint::Unexpected {
            self.match_hint = MatchHint::None;
        }
    }

    /// Drops packets whose turn doesn't come any more, and counts what the device has counted.
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

    /// No message begins with the packet in hand: it is dropped.
    pub(crate) fn discard_match_hint(&mut self) {
        match std::mem::take(&mut self.match_hint) {
            MatchHint::None => {}
            MatchHint::Unexpected => {
                if let Some(offload) = self.matcher(true).offload() {
                    offload.unexpected_other();
                }
            }
            // The device took a receive for what is no message here, or none whose turn it is. It can't
            // go back to its place.
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

    /// A command for the list ended.
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

    /// The device has let go of a receive that a message waited for.
    fn receive_awaited(&mut self, waiting: Waiting<B>, key: u32) {
        if self.messages[key as usize].packets != Chain::NONE {
            let posted = self.end_wait(waiting);
            return self.receive_unexpected(posted.target(true), key);
        }
        // The message was dropped.
        self.messages.remove(key as usize);
        self.receive_failed(waiting, true, OperationError::PeerRemoved);
    }

    /// Posts the commands that are due.
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
                // It has room for as many as are sent, by its own word.
                (Err(error), _) => self.ops.core.events.push(Event::DeviceRefused(error)),
            }
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Whether a message would begin with a segment that isn't its first, for which the device
    /// doesn't look and which it doesn't count. It delivers in order, so that no honest sender's
    /// does; looked up here, such a message could take a receive that the device gives to another.
    #[cold]
    pub(crate) fn begins_without_first_segment(
        &mut self,
        peer: PeerId,
        rtm: &Rtm<'_>,
        shape: &Shape,
    ) -> bool {
        let active = self.peers.active_mut(peer);
        let is_kept = active.is_some_and(|of| of.window.get_mut(rtm.msg_id.0).is_some());
        rtm.tag.is_some() && shape.offset > 0 && !is_kept
    }
}
