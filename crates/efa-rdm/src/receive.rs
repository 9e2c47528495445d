//! A message meets its receive.
//!
//! ```text
//!   first packet ─► matcher ─┬─► posted receive ─► copied, read or asked for
//!                            └─► unexpected: kept ◄── receive, posted later
//! ```

use efa_device::QueuePair;
use efa_match::{Cancelled, Handled, Match, PostId, Source as MatchSource};
use efa_proto::{EagerConnid, Header, LongReadConnid, Rtm, RtmKind, Tag};
use hashbrown::hash_map::Entry;

use crate::bounds::Excess;
use crate::charges::Charged;
use crate::completion::{Completion, OperationError, ReceiveCompletion};
use crate::event::DropReason;
use crate::held;
use crate::ids::PeerId;
use crate::matching::{HeldFor, MatchHint, Matching, Message, Posted, Target, Waiting, is_used_up};
use crate::memory::Memory;
use crate::operations::{Assembly, Operations, Receive, ReceiveRole};
use crate::payload::Payload;
use crate::peer::Begun;
use crate::shape::Shape;
use crate::taglist::DeviceMatch;
use crate::work::Work;

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// The message with this ID, if it has begun and may get further segments. Of a message that hasn't begun the entry
    /// may be that of an unexpected one whose ID it has again, 2^32 messages later.
    pub(crate) fn assembly(&self, peer: PeerId, msg_id: u32) -> Option<Assembly> {
        let found = self.assembling.get(&(peer.0, msg_id)).copied()?;
        let is_it = match found {
            Assembly::Receiving(_) => true,
            Assembly::Unexpected(_) => self.core.peers.active(peer)?.window.is_behind(msg_id),
        };
        is_it.then_some(found)
    }

    /// Further segments with this ID don't belong to this message any more.
    pub(crate) fn forget_assembly(&mut self, peer: PeerId, msg_id: u32, message: Assembly) {
        if let Entry::Occupied(entry) = self.assembling.entry((peer.0, msg_id))
            && *entry.get() == message
        {
            entry.remove();
        }
    }

    /// Begins a single-packet message that is longer than its receive.
    #[inline(never)]
    pub(crate) fn eager_too_long(&mut self, posted: Posted<B>, peer: PeerId, bytes: &[u8]) {
        let Some(eager) = EagerConnid::peek(bytes) else { return };
        let payload = eager.payload;
        let shape = Shape::eager(payload.len() as u64);
        let target = posted.target(eager.tag.is_some());
        self.begin_receive(target, peer, &eager.rtm(), &shape, payload);
    }

    /// Begins a receive with the first packet of its message.
    pub(crate) fn begin_receive(
        &mut self,
        target: Target<B>,
        peer: PeerId,
        rtm: &Rtm<'_>,
        shape: &Shape,
        payload: &[u8],
    ) {
        if !shape.is_partial(payload) {
            return self.core.receive_single_packet(target, peer, rtm, shape, payload);
        }
        if self.receives.is_full() {
            self.core.refuse(peer, shape.asked(), DropReason::TooManyOperations);
            return self.core.received(ReceiveCompletion {
                context: target.context,
                peer: Some(peer),
                tagged: target.tagged,
                tag: rtm.tag.unwrap_or(0),
                length: 0,
                cq_data: rtm.options.cq_data,
                subprotocol: Some(shape.subprotocol),
                buffer: target.buffer,
                result: Err(OperationError::TooManyOperations),
            });
        }
        let memory = Memory::Buffer(target.buffer);
        self.begin_assembly(
            ReceiveRole::Message,
            target.context,
            memory,
            peer,
            rtm,
            shape,
            payload,
        );
    }

    /// Receives a message, whose first packet this is, and drops it. To its sender that is no different
    /// from a receive whose buffer is too short: it is sent as a whole, and confirmed.
    pub(crate) fn begin_discard(
        &mut self,
        peer: PeerId,
        rtm: &Rtm<'_>,
        shape: &Shape,
        payload: &[u8],
    ) {
        if !shape.is_partial(payload) {
            if shape.receipt {
                let (send_id, msg_id) = (shape.send_id, rtm.msg_id.0);
                self.core.queue_response(peer, Work::Receipt { send_id, msg_id });
            }
            return;
        }
        if !self.may_be_requested() || !self.core.may_begin(peer, Begun::Discarded) {
            return self.core.refuse(peer, shape.asked(), DropReason::TooManyOperations);
        }
        self.core.count_begun(peer, Begun::Discarded);
        let nothing = Memory::Values(Vec::new());
        self.begin_assembly(ReceiveRole::Discarded, 0, nothing, peer, rtm, shape, payload);
    }

    /// Begins an operation that receives a message of several packets. The caller has checked that the
    /// table isn't full.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "what the message says, and what becomes of it")]
    fn begin_assembly(
        &mut self,
        role: ReceiveRole,
        context: u64,
        memory: Memory<B, Q::Region>,
        peer: PeerId,
        rtm: &Rtm<'_>,
        shape: &Shape,
        payload: &[u8],
    ) {
        let coverage = self.coverage();
        let id = self.add_receive(Receive {
            msg_id: rtm.msg_id.0,
            context,
            tagged: rtm.tag.is_some(),
            tag: rtm.tag.unwrap_or(0),
            cq_data: rtm.options.cq_data,
            subprotocol: Some(shape.subprotocol),
            granted: payload.len() as u64,
            send_id: shape.send_id,
            runt_length: shape.runt_length,
            receipt: shape.receipt,
            ..Receive::new(peer, role, memory, shape.length, coverage)
        });
        match rtm.kind {
            RtmKind::LongRead { read_iov, .. } => self.begin_longread(peer, id, shape, read_iov),
            RtmKind::RuntRead { read_iov, .. } => {
                self.begin_medium((peer, rtm.msg_id), id, shape, payload);
                self.begin_longread(peer, id, shape, read_iov);
            }
            RtmKind::LongCts { .. } | RtmKind::DcLongCts { .. } => {
                self.begin_longcts(peer, id, payload);
            }
            _ => self.begin_medium((peer, rtm.msg_id), id, shape, payload),
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Matching<Q, B> {
    /// Handles a kept packet that is not the first of its message, which has begun.
    pub(crate) fn further_segment(
        &mut self,
        peer: PeerId,
        rtm: &Rtm<'_>,
        shape: &Shape,
        payload: &[u8],
        bytes: &[u8],
    ) {
        match self.ops.assembling.get(&(peer.0, rtm.msg_id.0)).copied() {
            Some(assembly) => self.medium_segment(peer, assembly, rtm, shape, payload, bytes),
            None => self.ops.core.drop_packet(peer, DropReason::OldMessageId),
        }
    }

    /// Matches the first packet of the expected message.
    pub(crate) fn message_begins(
        &mut self,
        peer: PeerId,
        rtm: &Rtm<'_>,
        shape: &Shape,
        payload: &[u8],
        bytes: &[u8],
    ) {
        let handled = self.find_receive(peer, rtm.tag);
        self.handled(handled, peer, rtm, shape, payload, bytes);
    }

    /// Matches a single-packet message in the general way.
    #[inline(never)]
    pub(crate) fn eager_arrived(&mut self, peer: PeerId, bytes: &[u8]) {
        let Some(eager) = EagerConnid::peek(bytes) else { return };
        let found = self.find_receive(peer, eager.tag);
        let payload = eager.payload;
        let shape = Shape::eager(payload.len() as u64);
        self.handled(found, peer, &eager.rtm(), &shape, payload, bytes);
    }

    /// Matches a message that is to be read.
    pub(crate) fn longread_arrived(
        &mut self,
        peer: PeerId,
        request: &LongReadConnid,
        shape: &Shape,
        bytes: &[u8],
    ) {
        match self.match_at_once(peer, request.tag) {
            Some(posted) => {
                if let Err(posted) = self.ops.read_at_once(posted, peer, request) {
                    let target = posted.target(request.tag.is_some());
                    self.ops.begin_receive(target, peer, &request.rtm(), shape, &[]);
                }
            }
            None => self.message_begins(peer, &request.rtm(), shape, &[], bytes),
        }
    }

    /// Looks for the receive of a message. `None`: the device matched it with a receive that has
    /// ended.
    #[inline]
    fn find_receive(&mut self, peer: PeerId, tag: Option<Tag>) -> Option<Handled<Waiting<B>>> {
        let tagged = tag.is_some();
        if self.match_hint != MatchHint::None {
            match self.device_match(tagged) {
                DeviceMatch::LookUp => {}
                DeviceMatch::Receive(waiting) => {
                    return Some(Handled::Matched(Match::Once(waiting)));
                }
                DeviceMatch::Ended => return None,
            }
        }
        let key = self.messages.vacant_key();
        if self.queue.is_some() {
            return self.find_shared(tag, key);
        }
        Some(self.matcher(tagged).arrive(MatchSource(peer.0), tag.unwrap_or(0), key))
    }

    /// Gives a message to the receive that matched, or keeps it as unexpected.
    #[inline(never)]
    fn handled(
        &mut self,
        handled: Option<Handled<Waiting<B>>>,
        peer: PeerId,
        rtm: &Rtm<'_>,
        shape: &Shape,
        payload: &[u8],
        bytes: &[u8],
    ) {
        let tagged = rtm.tag.is_some();
        let held_for = match handled {
            None => {
                let reason = DropReason::UnknownOperation;
                return self.ops.core.refuse(peer, shape.asked(), reason);
            }
            Some(Handled::Matched(Match::Once(waiting))) => {
                let posted = self.end_wait(waiting);
                return self.ops.begin_receive(posted.target(tagged), peer, rtm, shape, payload);
            }
            Some(Handled::Matched(Match::Lasting(post))) => {
                if let Some(waiting) = self.matcher(tagged).receive_mut(post) {
                    let Posted { buffer, context, .. } = waiting.posted_mut();
                    let target = part_of(buffer, *context, shape.length);
                    self.ops.begin_receive(target, peer, rtm, shape, payload);
                }
                return self.release_if_used_up(post);
            }
            Some(Handled::Unexpected(entry)) => self.held_for_receive(entry),
            Some(Handled::Pending) => HeldFor::Matched,
        };
        let packets = self.held.hold(bytes);
        let msg_id = rtm.msg_id.0;
        let missing = shape.length - payload.len() as u64;
        let message = Message { peer, msg_id, tagged, held_for, packets, missing };
        let slot = self.ops.core.unsettled_slot(peer);
        let key = self.messages.insert(slot.map(Charged::Living), message);
        if shape.is_partial(payload) {
            if let Some(slot) = slot {
                self.partial.push(slot, key);
            }
            if shape.subprotocol.has_several_requests() {
                self.ops.assembling.insert((peer.0, msg_id), Assembly::Unexpected(key));
            }
        }
        self.ops.core.statistics.unexpected += 1;
        self.count_unexpected(peer, bytes);
    }

    /// Handles a further segment of a message that has begun.
    pub(crate) fn medium_segment(
        &mut self,
        peer: PeerId,
        assembly: Assembly,
        rtm: &Rtm<'_>,
        shape: &Shape,
        payload: &[u8],
        bytes: &[u8],
    ) {
        match assembly {
            Assembly::Receiving(id) => self.ops.medium_arrived(id, rtm, shape, payload),
            Assembly::Unexpected(key) => self.unexpected_segment(peer, key, payload, bytes),
        }
    }

    /// Keeps a further segment of an unexpected message, unless all its bytes have arrived.
    fn unexpected_segment(&mut self, peer: PeerId, key: u32, payload: &[u8], bytes: &[u8]) {
        let Some(message) = self.messages.get_mut(key) else {
            return self.ops.core.drop_packet(peer, DropReason::UnknownOperation);
        };
        let Some(missing) = message.missing.checked_sub(payload.len() as u64) else {
            return self.ops.core.drop_packet(peer, DropReason::RepeatedSegment);
        };
        message.missing = missing;
        let chain = self.held.hold(bytes);
        self.held.append(&mut message.packets, chain);
        self.count_unexpected(peer, bytes);
    }

    /// Releases a multi-receive buffer that has too little space for another message.
    fn release_if_used_up(&mut self, post: PostId) {
        let least = self.ops.core.config.min_multi_receive;
        let matcher = self.matcher(false);
        let waiting = matcher.receive_mut(post);
        if waiting.is_some_and(|waiting| is_used_up(&waiting.posted_mut().buffer, least))
            && let Cancelled::Now(waiting) = matcher.cancel(post)
        {
            let Posted { context, buffer, .. } = self.end_wait(waiting);
            self.ops.core.schedule.complete(Completion::Released { context, buffer });
        }
    }

    /// Gives an unexpected message its part of a multi-receive buffer that is being posted.
    pub(crate) fn receive_unexpected_part(&mut self, buffer: &mut B, context: u64, message: u32) {
        let length = self.describe(message).map_or(0, |described| described.length);
        self.receive_unexpected(part_of(buffer, context, length), message);
    }

    /// Gives an unexpected message to a receive that is being posted.
    pub(crate) fn receive_unexpected(&mut self, target: Target<B>, message: u32) {
        self.end_unexpected(message, |ops, peer, rtm, shape, payload| {
            ops.begin_receive(target, peer, rtm, shape, payload);
        });
    }

    /// Receives an unexpected message without a buffer. One whose sender has ended is dropped.
    pub(crate) fn discard_unexpected(&mut self, message: u32) {
        let peer = self.messages.get(message).map(|message| message.peer);
        if peer.is_some_and(|peer| self.ops.core.peers.active(peer).is_some()) {
            self.end_unexpected(message, Operations::begin_discard);
        } else {
            self.forget_message(message);
        }
    }

    /// Handles the packets of an unexpected message: `begin` gets the first one.
    #[inline]
    fn end_unexpected(
        &mut self,
        key: u32,
        begin: impl FnOnce(&mut Operations<Q, B>, PeerId, &Rtm<'_>, &Shape, &[u8]),
    ) {
        self.partial.remove(key);
        let message = self.messages.remove(key);
        let peer = message.peer;
        let of = (peer.0, message.msg_id);
        let entry = self.ops.assembling.remove(&of);
        let newer = entry.filter(|entry| *entry != Assembly::Unexpected(key));
        let mut begin = Some(begin);
        let cost = self.replay(message.packets, |matching, packet, bytes, _| {
            let (Header::Rtm(rtm), payload) = (&packet.header, packet.payload) else { return };
            match Shape::of(rtm, payload) {
                Ok(shape) => match begin.take() {
                    Some(begin) => begin(&mut matching.ops, peer, rtm, &shape, payload),
                    None => matching.further_segment(peer, rtm, &shape, payload, bytes),
                },
                Err(reason) => matching.ops.core.drop_packet(peer, reason),
            }
        });
        // Of a message with the same ID, and this one gets no further segments.
        if let Some(newer) = newer {
            self.ops.assembling.insert(of, newer);
        }
        self.uncount_unexpected(peer, cost);
    }

    /// Counts a kept packet of an unexpected message. Beyond the bound of its queue pair, drops what
    /// former incarnations left, or excludes the peer if it exceeds the bound alone.
    pub(crate) fn count_unexpected(&mut self, peer: PeerId, packet: &[u8]) {
        let limit = self.ops.core.config.bounds.unexpected_per_peer;
        let cost = held::cost(packet.len());
        self.unexpected.bytes += cost;
        let Some(slot) = self.ops.core.unsettled_slot(peer) else { return };
        let bytes = self.ops.core.peers.charge(slot, cost);
        if bytes > limit {
            self.ops.core.exclude(peer, Excess::Unexpected { bytes, limit });
        } else if !self.ops.core.peers.charges.nothing_left() {
            self.make_room(peer);
        }
    }

    /// Drops the oldest messages that former incarnations of a peer's queue pair left, while these and the
    /// peer's exceed the queue pair's bound.
    fn make_room(&mut self, peer: PeerId) {
        while let Some(left) = self.excess_left_by(peer)
            && let Some(key) = self.messages.oldest(Charged::Left(left))
        {
            if let Some(&Message { peer, msg_id, .. }) = self.messages.get(key) {
                self.ops.core.left_message_dropped(peer, msg_id);
            }
            self.forget_message(key);
        }
    }

    /// What former incarnations of a peer's queue pair left, if that and the peer's own messages exceed the
    /// queue pair's bound.
    pub(crate) fn excess_left_by(&self, peer: PeerId) -> Option<u32> {
        let (left, bytes) = self.ops.core.peers.left_by_queue_pair_of(peer)?;
        let own = self.ops.core.peers.active(peer)?.unexpected();
        (own + bytes > self.ops.core.config.bounds.unexpected_per_peer).then_some(left)
    }

    /// Counts packets of an unexpected message back.
    pub(crate) fn uncount_unexpected(&mut self, peer: PeerId, bytes: usize) {
        self.unexpected.bytes -= bytes;
        let slot = self.ops.core.unsettled_slot(peer);
        self.ops.core.peers.uncharge(peer, slot, bytes);
    }
}

/// A message's part of a multi-receive buffer.
fn part_of<R, B: Payload<R>>(buffer: &mut B, context: u64, length: u64) -> Target<B> {
    let length = length.min(buffer.length());
    Target { context, buffer: buffer.split_to(length), tagged: false }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use efa_device::{Device, QueuePairOptions, Time};
    use efa_sim::local::{LocalFabric, LocalOptions, LocalQueuePair};

    use crate::completion::{Completion, Level};
    use crate::config::Config;
    use crate::endpoint::{Accept, Endpoint, Message};
    use crate::ids::PeerId;

    type End = Endpoint<LocalQueuePair, Vec<u8>>;

    const LENGTH: usize = 30_000;

    /// A sender whose device takes two packets at a time, so that messages of several packets arrive in parts, and a
    /// receiver.
    struct Wrapped {
        ends: [End; 2],
        peer: PeerId,
        now: Time,
    }

    impl Wrapped {
        fn new() -> Self {
            let network = LocalFabric::new(LocalOptions::default());
            let end = |send_depth| {
                let options = QueuePairOptions::default().with(|to| to.send_depth = send_depth);
                let queue_pair = network.open().create_queue_pair(options).unwrap();
                End::new(queue_pair, Config::default()).unwrap()
            };
            let mut ends = [end(2), end(16)];
            let peer = ends[0].insert_peer(ends[1].address()).unwrap();
            Self { ends, peer, now: Time::ZERO }
        }

        fn send(&mut self, tag: u64) {
            let (peer, tag, buffer) = (self.peer, Some(tag), vec![tag as u8; LENGTH]);
            let (cq_data, level, context) = (None, Level::Transmit, 0);
            self.ends[0].send(Message { peer, tag, cq_data, level, buffer, context }).unwrap();
        }

        fn receive(&mut self, tag: u64) {
            let accept = Accept::Tagged { source: None, tag, ignore: 0 };
            self.ends[1].receive(accept, vec![0; LENGTH], tag).unwrap();
        }

        /// Lets both ends progress so many times; returns the contexts of the receives that ended, and whether all that
        /// they received is right.
        fn progress(&mut self, times: u32) -> Vec<(u64, bool)> {
            let mut ended = Vec::new();
            for _ in 0..times {
                self.now += Duration::from_micros(1);
                for end in &mut self.ends {
                    end.progress(self.now);
                    while let Some(completion) = end.poll_completion() {
                        if let Completion::Receive(done) = completion {
                            let sent = vec![done.context as u8; LENGTH];
                            ended.push((done.context, done.result.is_ok() && done.buffer == sent));
                        }
                    }
                }
            }
            ended
        }

        /// As if almost 2^32 other messages had been received: the next message has the ID of the last one again.
        fn repeat_id(&mut self) {
            let [sender, receiver] = &mut self.ends;
            let peer = PeerId(0);
            let next = &mut sender.core_mut().peers.active_mut(peer).unwrap().next_msg_id;
            *next = next.wrapping_sub(1);
            let window = &mut receiver.core_mut().peers.active_mut(peer).unwrap().window;
            let expected = window.expected().wrapping_sub(1);
            *window = efa_match::Window::new(256).starting_at(expected);
        }
    }

    // conformance: A99
    #[test]
    fn message_with_the_id_of_an_unexpected_one_is_received_beside_it() {
        // Whether the receive of the later message is posted when its first packets arrive.
        for posted in [true, false] {
            let mut wrapped = Wrapped::new();
            wrapped.send(1);
            assert_eq!(wrapped.progress(100), []);
            wrapped.repeat_id();
            if posted {
                wrapped.receive(2);
            }
            wrapped.send(2);
            // The first packets have arrived, and others not.
            let before = wrapped.ends[1].statistics().received_bytes;
            while wrapped.ends[1].statistics().received_bytes == before {
                assert_eq!(wrapped.progress(1), [], "{posted}");
            }
            wrapped.receive(1);
            assert_eq!(wrapped.progress(1), [(1, true)], "{posted}");
            assert_eq!(wrapped.progress(100), if posted { vec![(2, true)] } else { vec![] });
            if !posted {
                wrapped.receive(2);
                assert_eq!(wrapped.progress(1), [(2, true)]);
            }
            assert!(wrapped.ends[1].matching.ops.assembling.is_empty(), "{posted}");
        }
    }
}
