//! Zero-copy receives: the application gets the packet that a message arrived in (section 4.3, and
//! feature 7 of libfabric 1.22 to 2.5).
//!
//! ```text
//!   sender                                            receiver
//!     │◄── HANDSHAKE (bit 2: constant header length) ───│   releases 1.13 to 1.21
//!     │── EAGER_MSGRTM │ header │ message │ ───────────►│──► application: that packet
//!
//!     │◄── HANDSHAKE (bit 7: user queue pair and key) ──│   releases 1.22 to 2.5
//!     │══ the message, CQ data as immediate data ══════►│ user queue pair ──► application
//! ```
//!
//! To post a receive the application gives the endpoint an empty packet; the completion returns a
//! filled one, not necessarily the same. Packets on the protocol's own queue pair are handled so:
//!
//! | packet                                                 | handling                              |
//! |--------------------------------------------------------|---------------------------------------|
//! | untagged eager message, header of the requested length | given to the application as it is     |
//! | the same with another header length                    | [`UnexpectedHeader`]                  |
//! | the same, and the receiver has a user queue pair       | as with another header length         |
//! | other messages, atomics                                | dropped: receives here have no order  |
//! | all others                                             | as at any endpoint                    |

use std::collections::VecDeque;
use std::ops::Range;

use efa_device::{DeviceError, QueuePair, Source};
use efa_handshake::{Extras, Release};
use efa_proto::{Connid, Header, MsgId, Packet, RawAddress, ReqOptions, Rtm, RtmKind, UserRecvQp};

use crate::charges::Charged;
use crate::completion::{OperationError, Refused, StartError};
use crate::config::{Config, ConfigError, UnexpectedHeader};
use crate::endpoint::Endpoint;
use crate::event::{DropReason, Event};
use crate::held::{self, Chain};
use crate::ids::PeerId;
use crate::in_place_queue::InPlaceQueue;
use crate::lists::Lists;
use crate::matching::Matching;
use crate::payload::Payload;
use crate::shape::asked;
use crate::unexpected::UnexpectedMessages;
use crate::user_queue::UserQueue;

/// The completion of a zero-copy receive.
#[derive(Debug, PartialEq, Eq)]
pub struct InPlaceCompletion<P> {
    /// The context of the receive.
    pub context: u64,
    /// The sender of the message, if it is known.
    pub peer: Option<PeerId>,
    /// The sender's remote CQ data: 64 bits, or 32 on a user queue pair.
    pub cq_data: Option<u64>,
    /// The message. If the receive failed, the endpoint keeps the packet.
    pub result: Result<MessageInPlace<P>, OperationError>,
}

/// A message in the packet that it arrived in.
#[derive(Debug, PartialEq, Eq)]
pub struct MessageInPlace<P> {
    pub(crate) packet: P,
    pub(crate) begin: usize,
    pub(crate) length: usize,
}

impl<P: AsRef<[u8]>> MessageInPlace<P> {
    /// The bytes of the message.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.packet.as_ref().get(self.range()).unwrap_or_default()
    }

    /// The bytes of the packet that are the message.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.begin..self.begin + self.length
    }

    /// The packet, for the next receive.
    #[must_use]
    pub fn into_packet(self) -> P {
        self.packet
    }
}

/// A message that arrived when no receive was posted, or no packet was free: a copy of it, or the
/// error that the next receive ends with.
#[derive(Clone, Copy, Debug)]
struct StoredMessage {
    peer: Option<PeerId>,
    cq_data: Option<u64>,
    content: Result<Chain, OperationError>,
}

/// The zero-copy receives of an endpoint, and the messages for them.
#[derive(Debug)]
pub(crate) struct InPlace<Q: QueuePair> {
    /// Offset of a message in its packet, in bytes.
    begin: usize,
    /// Contexts of the posted receives, oldest first.
    pub(crate) receives: VecDeque<u64>,
    unexpected: UnexpectedMessages<StoredMessage>,
    /// The unexpected messages in the order of arrival, as one list.
    arrived: Lists,
    completions: VecDeque<InPlaceCompletion<Q::Packet>>,
    pub(crate) user: Option<UserQueue<Q>>,
}

/// The header length in bytes that peers are asked for: that of an untagged eager message with the
/// sender's raw address in the form of 1.13 and later, and without CQ data.
fn header_length() -> usize {
    let address = RawAddress { gid: [0; 16], qpn: 0, connid: Connid(0) };
    let raw_address = Some((address, efa_proto::RawAddressForm::Padded));
    let options = ReqOptions { raw_address, cq_data: None, connid: None };
    Rtm { msg_id: MsgId(0), tag: None, kind: RtmKind::Eager, options }.len()
}

/// The feature that a release requests from its peers for zero-copy receives; `None` if it has none.
const fn request(release: Release) -> Option<Extras> {
    match release {
        Release::V1_13 | Release::V1_14 | Release::V1_16 | Release::V1_18 | Release::V1_20 => {
            Some(Extras::CONSTANT_HEADER_LENGTH)
        }
        Release::V1_22 | Release::V2_0 | Release::V2_1 => Some(Extras::USER_RECV_QP),
        _ => None,
    }
}

impl<Q: QueuePair> InPlace<Q> {
    /// The zero-copy state of an endpoint; `None` if `Q` isn't an [`InPlaceQueue`]. Adds the request to
    /// the profile's features, which the HANDSHAKE announces.
    pub(crate) fn new(
        config: &mut Config,
        user: Option<Q>,
    ) -> Result<Option<Box<Self>>, ConfigError> {
        if !Q::IN_PLACE {
            return Ok(None);
        }
        let release = config.profile.release;
        let request = request(release).ok_or(ConfigError::NotInPlace { release })?;
        if user.is_some() != (request == Extras::USER_RECV_QP) {
            return Err(ConfigError::UserQueue { release });
        }
        config.profile.extras.insert(request);
        // The header of a delivery-complete message has another length.
        config.profile.extras.remove(Extras::DELIVERY_COMPLETE);
        let user = user.map(UserQueue::new);
        Ok(Some(Box::new(Self {
            begin: if user.is_some() { 0 } else { header_length() },
            receives: VecDeque::new(),
            unexpected: UnexpectedMessages::default(),
            arrived: Lists::default(),
            completions: VecDeque::new(),
            user,
        })))
    }

    /// The user queue pair to announce in the HANDSHAKE, if there is one.
    pub(crate) fn user_recv_qp(&self) -> Option<UserRecvQp> {
        self.user.as_ref().map(UserQueue::address)
    }

    pub(crate) fn user_queue(&self) -> Option<&Q> {
        self.user.as_ref().map(|user| &user.queue_pair)
    }

    pub(crate) fn user_queue_mut(&mut self) -> Option<&mut Q> {
        self.user.as_mut().map(|user| &mut user.queue_pair)
    }

    pub(crate) fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Whether receives wait for a packet: nothing is posted to the user queue pair, or an unexpected
    /// message waits for a packet to be copied to.
    pub(crate) fn starves(&self) -> bool {
        let unposted = self.user.as_ref().is_some_and(UserQueue::is_empty);
        !self.receives.is_empty() && (unposted || self.oldest().is_some())
    }

    /// The oldest unexpected message.
    fn oldest(&self) -> Option<u32> {
        self.arrived.first(0)
    }

    fn remove(&mut self, key: u32) -> StoredMessage {
        self.arrived.remove(key);
        self.unexpected.remove(key)
    }

    pub(crate) fn trim(&mut self) {
        if let Some(user) = &mut self.user {
            user.trim();
        }
    }

    /// Completes every posted receive with an error.
    pub(crate) fn end_receives(&mut self, error: OperationError) {
        for context in self.receives.drain(..) {
            let result = Err(error);
            let completion = InPlaceCompletion { context, peer: None, cq_data: None, result };
            self.completions.push_back(completion);
        }
    }
}

/// The application's requirements on receives. Each of `ordered`, `tagged` and `directed` needs tag
/// matching, and so a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiveNeeds {
    /// Messages of a sender are received in the order in which it sent them (`FI_ORDER_SAS`).
    pub ordered: bool,
    /// Messages have tags.
    pub tagged: bool,
    /// Receives can name a sender (`FI_DIRECTED_RECV`).
    pub directed: bool,
    /// Length of the longest message in bytes.
    pub longest: u64,
}

impl ReceiveNeeds {
    /// The offset in bytes of messages in their packets, if zero-copy receives are possible with a
    /// release's wire-compatibility profile and a device MTU of `mtu` bytes (section 4.3). `None`:
    /// messages are copied.
    #[must_use]
    pub fn in_place(&self, release: Release, mtu: usize) -> Option<usize> {
        let begin = match request(release)? {
            Extras::USER_RECV_QP => 0,
            _ => header_length(),
        };
        let one_packet = self.longest <= mtu.saturating_sub(begin) as u64;
        let needs_matching = self.ordered || self.tagged || self.directed;
        (one_packet && !needs_matching).then_some(begin)
    }
}

/// An endpoint with zero-copy receives if the application's requirements allow them.
#[derive(Debug)]
pub enum Receiver<Q: QueuePair, B> {
    /// Zero-copy receives.
    InPlace(Endpoint<InPlaceQueue<Q>, B>),
    /// Messages are matched with receives and copied, as at any endpoint.
    Copies(Endpoint<Q, B>),
}

impl<Q: QueuePair, B: Payload<Q::Region>> Receiver<Q, B> {
    /// Creates an endpoint, with zero-copy receives if `needs` allows them. `user` is called to create
    /// the user queue pair if the release uses one.
    ///
    /// # Errors
    /// As [`Endpoint::new`], or the error of `user`.
    pub fn new<E: From<ConfigError>>(
        queue_pair: Q,
        user: impl FnOnce() -> Result<Q, E>,
        needs: &ReceiveNeeds,
        config: Config,
    ) -> Result<Self, E> {
        let release = config.profile.release;
        if needs.in_place(release, queue_pair.attributes().mtu).is_none() {
            return Ok(Self::Copies(Endpoint::new(queue_pair, config)?));
        }
        let user = match request(release) {
            Some(Extras::USER_RECV_QP) => Some(InPlaceQueue(user()?)),
            _ => None,
        };
        Ok(Self::InPlace(Endpoint::assemble(InPlaceQueue(queue_pair), user, config)?))
    }

    /// The offset in bytes of messages in their packets; `None` if messages are copied.
    #[must_use]
    pub fn in_place_offset(&self) -> Option<usize> {
        match self {
            Self::InPlace(endpoint) => Some(endpoint.in_place_offset()),
            Self::Copies(_) => None,
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<InPlaceQueue<Q>, B> {
    /// Creates an endpoint that receives messages on the user queue pair `user`, as libfabric 1.22 to
    /// 2.5 does.
    ///
    /// # Errors
    /// As [`new`](Self::new), or the profile's release has no user queue pair.
    pub fn with_user_queue(
        queue_pair: InPlaceQueue<Q>,
        user: InPlaceQueue<Q>,
        config: Config,
    ) -> Result<Self, ConfigError> {
        Self::assemble(queue_pair, Some(user), config)
    }

    /// The user queue pair, on which messages arrive, if there is one.
    #[must_use]
    pub fn user_queue_pair(&self) -> Option<&InPlaceQueue<Q>> {
        self.in_place.as_ref()?.user_queue()
    }

    /// The offset in bytes of a message in its packet: the header length that peers are asked for.
    #[must_use]
    pub fn in_place_offset(&self) -> usize {
        self.in_place.as_ref().map_or(0, |in_place| in_place.begin)
    }

    /// Returns a packet to receive into.
    ///
    /// # Errors
    /// The device can't allocate or register one.
    pub fn allocate_packet(&mut self) -> Result<Q::Packet, DeviceError> {
        self.packet_in_place()
    }

    /// Posts a receive for one untagged message from any peer, in no order. `packet` must be of this
    /// endpoint; [`poll_in_place`](Self::poll_in_place) returns the completion.
    ///
    /// # Errors
    /// Returns the packet if `max_receives` receives are posted.
    pub fn receive_in_place(
        &mut self,
        packet: Q::Packet,
        context: u64,
    ) -> Result<(), Refused<Q::Packet>> {
        let limit = self.core().config.max_receives;
        let Some(in_place) =
            self.in_place.as_deref_mut().filter(|in_place| in_place.receives.len() < limit)
        else {
            return Err(Refused { error: StartError::Busy { limit }, buffer: packet });
        };
        in_place.receives.push_back(context);
        match &mut in_place.user {
            Some(user) => user.put(packet),
            None => self.inbound.put_spare(packet),
        }
        self.deliver_unexpected_in_place();
        self.end_receives_in_place();
        self.refill_user_queue();
        Ok(())
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// Takes the next completion of a zero-copy receive. Endpoints without zero-copy receives have the
    /// method too, for callers that are generic over the queue pair; it returns `None`.
    pub fn poll_in_place(&mut self) -> Option<InPlaceCompletion<Q::Packet>> {
        self.in_place.as_deref_mut()?.completions.pop_front()
    }

    /// A packet of the queue pair on which messages arrive.
    fn packet_in_place(&mut self) -> Result<Q::Packet, DeviceError> {
        match self.in_place.as_deref_mut() {
            Some(InPlace { user: Some(user), .. }) => user.packet(),
            _ => match self.inbound.take_spare() {
                Some(packet) => Ok(packet),
                None => self.device_mut().allocate_packet(),
            },
        }
    }

    /// Completes posted receives with stored unexpected messages, while there are packets to copy to.
    pub(crate) fn deliver_unexpected_in_place(&mut self) {
        while let Some(in_place) = self.in_place.as_deref()
            && !in_place.receives.is_empty()
            && let Some(key) = in_place.oldest()
            && let Some(&StoredMessage { peer, cq_data, content }) = in_place.unexpected.get(key)
        {
            let begin = in_place.begin;
            let result = match content {
                Ok(chain) => {
                    let packet = match self.packet_in_place() {
                        Ok(packet) => packet,
                        Err(error) => {
                            return self.core_mut().events.push(Event::DeviceRefused(error));
                        }
                    };
                    let held = self.matching.held.take(chain.first);
                    let message = copy(packet, begin, held.bytes());
                    self.matching.held.release(held);
                    Ok(message)
                }
                Err(error) => Err(error),
            };
            if let Some(in_place) = self.in_place.as_deref_mut() {
                in_place.remove(key);
            }
            let length = result.as_ref().map_or(0, |message| message.length);
            self.received_in_place(peer, cq_data, result);
            self.matching.uncount_unexpected_in_place(peer, held::cost(length));
        }
    }

    /// Handles a datagram that arrived on the protocol's queue pair.
    pub(crate) fn arrived_in_place(&mut self, packet: Q::Packet, length: usize, source: Source) {
        let bytes = packet.as_ref().get(..length).unwrap_or_default();
        let parsed = match Packet::parse(bytes) {
            Ok(parsed) if matches!(parsed.header, Header::Rtm(_) | Header::Rta(_)) => parsed,
            _ => {
                let ended = self.packet_arrived(packet, length, source);
                return self.core_mut().complete(ended);
            }
        };
        self.core_mut().statistics.received_bytes += length as u64;
        let begin = length - parsed.payload.len();
        let peer = self.core_mut().identify_sender(&parsed, bytes, source);
        self.settle();
        let Header::Rtm(Rtm { kind: RtmKind::Eager, tag: None, options, .. }) = parsed.header
        else {
            if let Some(peer) = peer {
                let asked = asked(&parsed);
                let reason = DropReason::NotInPlace(parsed.packet_type());
                self.core_mut().refuse(peer, asked, reason);
                self.settle();
            }
            return self.consumed(packet);
        };
        match peer {
            Some(peer) => self.message_in_place(packet, begin..length, peer, options.cq_data),
            None => self.consumed(packet),
        }
    }

    /// Handles an eager message with a header; `range` is the message in its packet.
    fn message_in_place(
        &mut self,
        packet: Q::Packet,
        range: Range<usize>,
        peer: PeerId,
        cq_data: Option<u64>,
    ) {
        let Some(in_place) = self.in_place.as_deref() else { return };
        let (found, expected) = (range.start, in_place.begin);
        let (length, capacity) = (range.len(), packet.as_ref().len().saturating_sub(expected));
        let error = if found != expected
            && self.core().config.unexpected_header == UnexpectedHeader::Refuse
        {
            Some(OperationError::UnexpectedHeader { found, expected })
        } else if length > capacity {
            let (length, capacity) = (length as u64, capacity as u64);
            Some(OperationError::Truncated { length, capacity })
        } else {
            None
        };
        let (posted, user) = (!in_place.receives.is_empty(), in_place.user.is_some());
        let result = match error {
            Some(error) => {
                self.consumed(packet);
                Err(error)
            }
            // The application's packets belong to the user queue pair.
            None if posted && user => match self.packet_in_place() {
                Ok(own) => {
                    let message = copy(own, expected, &packet.as_ref()[range]);
                    self.consumed(packet);
                    Ok(message)
                }
                // No packet is free: store the message until one is.
                Err(error) => {
                    self.core_mut().events.push(Event::DeviceRefused(error));
                    self.store_unexpected_in_place(
                        Some(peer),
                        cq_data,
                        Ok(&packet.as_ref()[range]),
                    );
                    return self.consumed(packet);
                }
            },
            None if posted => {
                self.handed_over();
                Ok(moved(packet, range, expected))
            }
            None => {
                self.store_unexpected_in_place(Some(peer), cq_data, Ok(&packet.as_ref()[range]));
                return self.consumed(packet);
            }
        };
        match result {
            Err(error) if !posted => {
                self.store_unexpected_in_place(Some(peer), cq_data, Err(error))
            }
            result => self.received_in_place(Some(peer), cq_data, result),
        }
    }

    /// Stores a message or its error until there is a receive and a packet for it.
    pub(crate) fn store_unexpected_in_place(
        &mut self,
        peer: Option<PeerId>,
        cq_data: Option<u64>,
        content: Result<&[u8], OperationError>,
    ) {
        self.core_mut().statistics.unexpected += 1;
        let core = self.core_mut();
        // Nothing else of the peer may have come, and what is counted for it is counted back.
        let slot = peer.and_then(|peer| {
            core.peers.activate(peer, &core.config);
            core.peers.slot(peer)
        });
        let Some(in_place) = self.in_place.as_deref_mut() else { return };
        let kept = content.map(|bytes| self.matching.held.hold(bytes));
        let message = StoredMessage { peer, cq_data, content: kept };
        let key = in_place.unexpected.insert(slot.map(Charged::Living), message);
        in_place.arrived.push(0, key);
        let bytes = content.unwrap_or_default();
        match peer {
            Some(peer) => {
                self.matching.count_unexpected(peer, bytes);
                self.make_room_in_place(peer);
            }
            None => self.matching.unexpected.bytes += held::cost(bytes.len()),
        }
    }

    /// Drops the oldest messages that former incarnations of a peer's queue pair left, while these and the
    /// peer's exceed the queue pair's bound.
    fn make_room_in_place(&mut self, peer: PeerId) {
        while let Some(left) = self.matching.excess_left_by(peer)
            && let Some(in_place) = self.in_place.as_deref()
            && let Some(key) = in_place.unexpected.oldest(Charged::Left(left))
        {
            let former = in_place.unexpected.get(key).and_then(|message| message.peer);
            self.matching.ops.core.left_message_dropped(former.unwrap_or(peer), 0);
            self.drop_in_place(key);
        }
    }

    /// Drops the stored unexpected messages of the peer whose state is in this slot.
    pub(crate) fn drop_unexpected_in_place(&mut self, slot: u32) {
        while let Some(in_place) = self.in_place.as_deref()
            && let Some(key) = in_place.unexpected.oldest(Charged::Living(slot))
        {
            self.drop_in_place(key);
        }
    }

    fn drop_in_place(&mut self, key: u32) {
        let Some(in_place) = self.in_place.as_deref_mut() else { return };
        let StoredMessage { peer, content, .. } = in_place.remove(key);
        let freed = match content {
            Ok(chain) => self.matching.held.drop_chain(chain),
            Err(_) => held::cost(0),
        };
        self.matching.uncount_unexpected_in_place(peer, freed);
    }

    /// The stored unexpected messages of a peer that ended pass to what its queue pair's former
    /// incarnations left.
    pub(crate) fn leave_unexpected_in_place(&mut self, slot: u32, left: u32) {
        if let Some(in_place) = self.in_place.as_deref_mut() {
            in_place.unexpected.leave(slot, left);
        }
    }

    /// Completes the oldest posted receive.
    pub(crate) fn received_in_place(
        &mut self,
        peer: Option<PeerId>,
        cq_data: Option<u64>,
        result: Result<MessageInPlace<Q::Packet>, OperationError>,
    ) {
        self.core_mut().statistics.delivered_bytes +=
            result.as_ref().map_or(0, |m| m.length as u64);
        let Some(in_place) = self.in_place.as_deref_mut() else { return };
        if let Some(context) = in_place.receives.pop_front() {
            in_place.completions.push_back(InPlaceCompletion { context, peer, cq_data, result });
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Matching<Q, B> {
    /// Subtracts a stored message that was received from the memory of unexpected messages.
    fn uncount_unexpected_in_place(&mut self, peer: Option<PeerId>, cost: usize) {
        match peer {
            Some(peer) => self.uncount_unexpected(peer, cost),
            None => self.unexpected.bytes -= cost,
        }
    }
}

/// Copies a message into a packet at offset `begin`.
fn copy<P: AsRef<[u8]> + AsMut<[u8]>>(
    mut packet: P,
    begin: usize,
    bytes: &[u8],
) -> MessageInPlace<P> {
    // A message that doesn't fit was refused as `Truncated` when it arrived.
    let length = bytes.len().min(packet.as_ref().len().saturating_sub(begin));
    packet.as_mut()[begin..begin + length].copy_from_slice(&bytes[..length]);
    MessageInPlace { packet, begin, length }
}

/// Moves a message to offset `begin` of its packet, if it isn't there.
fn moved<P: AsRef<[u8]> + AsMut<[u8]>>(
    mut packet: P,
    range: Range<usize>,
    begin: usize,
) -> MessageInPlace<P> {
    let length = range.len();
    if range.start != begin {
        packet.as_mut().copy_within(range, begin);
    }
    MessageInPlace { packet, begin, length }
}
