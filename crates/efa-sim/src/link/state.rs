//! What a queue pair keeps whatever its link: posted receives, completions, counts, address handles.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use efa_device::{
    Completion, DeviceAttributes, DeviceError, Qkey, QueuePairAddress, QueuePairOptions,
    SendRequest, Source, Status, Time, WorkId,
};

use super::in_place::InPlace;
use super::{Packet, RNR_RETRY_INFINITE};
use crate::book::{Book, HeldHandles};
use crate::record::{PacketEvent, QueuePairId, Record, SharedSink, Sink};
use crate::region::KeyTable;

/// What a device gives each of its queue pairs.
#[derive(Debug)]
pub(crate) struct Settings {
    /// As [granted].
    pub(crate) attributes: DeviceAttributes,
    pub(crate) keys: KeyTable,
    pub(crate) book: Arc<Book>,
    pub(crate) capture: Option<SharedSink>,
    /// Time until the first poll.
    pub(crate) now: Time,
    /// Pause between two tries at a queue pair without receive buffers.
    pub(crate) rnr_delay: Duration,
    /// Whether the RNR timeout runs before the first receive buffer was posted.
    pub(crate) rnr_at_start: bool,
    /// Whether a receive reports the sender's GID if there is no address handle for it.
    pub(crate) report_unknown_gid: bool,
}

/// The attributes of a queue pair with these options.
pub(crate) fn granted(
    device: &DeviceAttributes,
    options: &QueuePairOptions,
) -> Result<DeviceAttributes, DeviceError> {
    for (depth, limit) in
        [(options.send_depth, device.max_send), (options.receive_depth, device.max_receive)]
    {
        if depth > limit {
            return Err(DeviceError::TooLong { length: depth as u64, limit: limit as u64 });
        }
    }
    let (max_send, max_receive) = (options.send_depth, options.receive_depth);
    Ok(DeviceAttributes { max_send, max_receive, ..device.clone() })
}

/// The state of a queue pair that is the same for every link.
#[derive(Debug)]
pub struct QueueState {
    pub(super) attributes: DeviceAttributes,
    pub(super) address: QueuePairAddress,
    pub(super) keys: KeyTable,
    pub(super) book: Arc<Book>,
    pub(super) held: HeldHandles,
    pub(super) now: Time,
    pub(super) completions: InPlace<Completion<Packet>>,
    capture: Option<SharedSink>,
    rnr_delay: Duration,
    report_unknown_gid: bool,
    /// Accepted sends and RDMA operations whose completion was not taken yet.
    sends: usize,
    posted: VecDeque<Packet>,
    /// Whether they are filled in the order in which they were posted: one was shorter than the MTU, so that it matters
    /// which is filled. Otherwise the one that was posted last is filled, which is still in the processor's cache.
    in_order: bool,
    /// Posted buffers whose completion was not taken yet.
    receives: usize,
    /// Since when the RNR timeout of senders runs.
    ready_since: Option<Time>,
    split: Split,
}

/// What a link may [leave](efa_device::QueuePair::split_headers) in its own memory.
#[derive(Clone, Copy, Debug)]
struct Split {
    /// Bytes that are put into the packet.
    front: usize,
    /// Length of the shortest datagram whose rest is left.
    from: usize,
}

impl QueueState {
    pub(crate) fn new(settings: Settings, address: QueuePairAddress) -> Self {
        let Settings { attributes, keys, book, capture, now, rnr_delay, .. } = settings;
        Self {
            attributes,
            address,
            keys,
            book,
            held: HeldHandles::default(),
            now,
            completions: InPlace::new(),
            capture,
            rnr_delay,
            report_unknown_gid: settings.report_unknown_gid,
            sends: 0,
            posted: VecDeque::new(),
            in_order: false,
            receives: 0,
            ready_since: settings.rnr_at_start.then_some(now),
            split: Split { front: 0, from: usize::MAX },
        }
    }

    /// Lets the RNR timeout of senders run from now on.
    pub(super) fn limit_first_wait(&mut self) {
        self.ready_since.get_or_insert(self.now);
    }

    /// Lets the link leave what is behind the first `front` bytes of a datagram of `from` bytes or more, unless a capture
    /// needs them.
    pub(super) fn split_headers(&mut self, front: usize, from: usize) {
        if self.capture.is_none() {
            self.split = Split { front, from: from.max(front) };
        }
    }

    /// Bytes of a split datagram that are in its packet.
    pub(super) fn front(&self) -> usize {
        self.split.front
    }

    /// Whether datagrams are recorded.
    pub(crate) fn is_captured(&self) -> bool {
        self.capture.is_some()
    }

    pub(crate) fn qkey(&self) -> Qkey {
        self.address.qkey
    }

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    pub(crate) fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    pub(crate) fn book(&self) -> &Book {
        &self.book
    }

    /// Whether sends or RDMA operations are outstanding.
    pub(crate) fn has_sends(&self) -> bool {
        self.sends > 0
    }

    pub(crate) fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Whether a packet that arrives finds a buffer.
    pub(crate) fn has_posted(&self) -> bool {
        !self.posted.is_empty()
    }

    #[inline(always)]
    pub(super) fn take_completion(&mut self) -> Option<Completion<Packet>> {
        let completion = self.completions.pop()?;
        match &completion {
            Completion::Send { .. } | Completion::Rdma { .. } => self.sends -= 1,
            Completion::Receive { .. }
            | Completion::Front { .. }
            | Completion::Unfilled { .. }
            | Completion::Written { packet: Some(_), .. } => self.receives -= 1,
            Completion::Written { packet: None, .. } => {}
        }
        Some(completion)
    }

    // ---- receiving ---------------------------------------------------------------------------

    #[inline]
    pub(super) fn post_receive(&mut self, packet: Packet) -> Result<(), (DeviceError, Packet)> {
        let depth = self.attributes.max_receive;
        if self.receives >= depth {
            return Err((DeviceError::QueueFull { depth }, packet));
        }
        self.receives += 1;
        self.in_order |= packet.len() < self.attributes.mtu;
        self.posted.push_back(packet);
        Ok(())
    }

    pub(super) fn withdraw_receive(&mut self) -> Option<Packet> {
        let packet = self.posted.pop_back()?;
        self.receives -= 1;
        self.posted.shrink_to(2 * self.posted.len());
        Some(packet)
    }

    /// The posted buffers, and where what was put into them goes.
    #[inline]
    pub(crate) fn receiving(&mut self) -> (ReceiveQueue<'_>, Deliveries<'_>) {
        if self.ready_since.is_none() && !self.posted.is_empty() {
            self.ready_since = Some(self.now);
        }
        let queue = ReceiveQueue {
            qkey: self.address.qkey,
            rnr_delay: self.rnr_delay,
            ready_since: self.ready_since,
            now: self.now,
            keys: &self.keys,
            posted: &mut self.posted,
            receives: self.receives,
            in_order: self.in_order,
            unsolicited: self.attributes.rdma.unsolicited_write_receive,
            split: &self.split,
        };
        let deliveries = Deliveries {
            book: &self.book,
            report_unknown_gid: self.report_unknown_gid,
            completions: &mut self.completions,
            capture: &mut self.capture,
            now: self.now,
            me: self.address.into(),
        };
        (queue, deliveries)
    }

    // ---- sending -----------------------------------------------------------------------------

    /// Whether a datagram, of `rest` bytes more than the request says, is short enough, and there is space for it in the send
    /// queue.
    #[inline]
    pub(super) fn check_send(
        &self,
        request: &SendRequest<Packet>,
        rest: usize,
    ) -> Result<(), DeviceError> {
        let limit = self.attributes.mtu.min(request.packet.len());
        let length = request.length.saturating_add(rest);
        if length > limit {
            return Err(DeviceError::TooLong { length: length as u64, limit: limit as u64 });
        }
        self.check_depth()
    }

    /// Whether there is space in the send queue.
    #[inline]
    pub(super) fn check_depth(&self) -> Result<(), DeviceError> {
        let depth = self.attributes.max_send;
        if self.sends >= depth { Err(DeviceError::QueueFull { depth }) } else { Ok(()) }
    }

    /// Whether the send queue is full, and the program can't make space in it by taking completions.
    pub(crate) fn is_stuck(&self) -> bool {
        self.check_depth().is_err() && !self.has_completions()
    }

    /// Counts a send or RDMA operation that was accepted.
    #[inline]
    pub(crate) fn count_send(&mut self) {
        self.sends += 1;
    }

    /// Records that a datagram leaves for `peer`.
    #[inline]
    pub(crate) fn record_sent(&mut self, peer: QueuePairId, bytes: &[u8]) {
        if let Some(sink) = &mut self.capture {
            record(sink, self.now, PacketEvent::Sent, self.address.into(), peer, bytes);
        }
    }

    /// Completes the send of the first `length` bytes of `packet` to `peer`.
    #[inline(always)]
    pub(crate) fn complete_send(
        &mut self,
        peer: QueuePairId,
        id: WorkId,
        packet: Packet,
        length: usize,
        result: Result<(), Status>,
    ) {
        if let (Some(sink), Err(status)) = (&mut self.capture, result) {
            let event = PacketEvent::Failed(status);
            record(sink, self.now, event, self.address.into(), peer, &packet[..length]);
        }
        self.completions.push(|| Completion::Send { id, packet, result });
    }

    /// Completes the send of a packet that was delivered.
    #[inline(always)]
    pub(crate) fn complete_delivered(&mut self, id: WorkId, packet: Packet) {
        self.completions.push(|| Completion::Send { id, packet, result: Ok(()) });
    }

    /// Completes an RDMA operation.
    pub(crate) fn complete_rdma(&mut self, id: WorkId, result: Result<(), Status>) {
        self.completions.push(|| Completion::Rdma { id, result });
    }
}

/// The receive queue while packets of a sender are looked at.
pub(crate) struct ReceiveQueue<'a> {
    pub(crate) qkey: Qkey,
    /// The memory that senders may read and write.
    pub(crate) keys: &'a KeyTable,
    pub(crate) posted: &'a mut VecDeque<Packet>,
    /// Posted buffers whose completion was not taken yet.
    receives: usize,
    in_order: bool,
    pub(crate) now: Time,
    /// Whether the immediate data of a write takes no buffer.
    pub(crate) unsolicited: bool,
    rnr_delay: Duration,
    ready_since: Option<Time>,
    split: &'a Split,
}

impl ReceiveQueue<'_> {
    /// Whether the link may leave the rest of a datagram of this length in its own memory.
    #[inline(always)]
    pub(crate) fn leaves(&self, length: usize) -> bool {
        length >= self.split.from
    }

    /// Those bytes of a datagram that are put into the packet all the same.
    pub(crate) fn front_of<'a>(&self, bytes: &'a mut [u8]) -> &'a mut [u8] {
        let front = self.split.front.min(bytes.len());
        &mut bytes[..front]
    }

    /// The buffer to be filled next.
    #[inline(always)]
    pub(crate) fn take_posted(&mut self) -> Option<Packet> {
        match self.in_order {
            true => self.posted.pop_front(),
            false => self.posted.pop_back(),
        }
    }

    /// A buffer that was not filled is the next one again.
    pub(crate) fn put_back(&mut self, packet: Packet) {
        match self.in_order {
            true => self.posted.push_front(packet),
            false => self.posted.push_back(packet),
        }
    }

    /// Whether the RNR timeout of senders with this number of retries can expire.
    pub(crate) fn has_rnr_timeout(&self, rnr_retry: u8) -> bool {
        rnr_retry < RNR_RETRY_INFINITE && self.ready_since.is_some()
    }

    /// Whether the RNR timeout of a packet has expired that has waited for a buffer since `since`. It does not while the
    /// program has yet to take completions of receives: it may post a buffer for each of them.
    pub(crate) fn rnr_expired(&self, rnr_retry: u8, since: Time) -> bool {
        let Some(ready_since) = self.ready_since else { return false };
        if self.posted.len() < self.receives {
            return false;
        }
        let timeout = self.rnr_delay.saturating_mul(rnr_retry.into());
        rnr_retry < RNR_RETRY_INFINITE && self.now - since.max(ready_since) >= timeout
    }
}

/// What was put into a posted buffer, or took one.
#[derive(Debug)]
pub(crate) enum Delivered {
    Datagram {
        packet: Packet,
        length: usize,
        immediate: Option<u32>,
    },
    /// A datagram of which the link has bytes in its own memory.
    Front {
        packet: Packet,
        length: usize,
    },
    /// Memory was written, with immediate data.
    Written {
        packet: Option<Packet>,
        length: u64,
        immediate: u32,
    },
}

/// Where what was received goes: the completions, and the capture.
pub(crate) struct Deliveries<'a> {
    book: &'a Book,
    report_unknown_gid: bool,
    completions: &'a mut InPlace<Completion<Packet>>,
    capture: &'a mut Option<SharedSink>,
    now: Time,
    me: QueuePairId,
}

impl<'a> Deliveries<'a> {
    /// The address handles of the device.
    pub(crate) fn book(&self) -> &'a Book {
        self.book
    }

    /// How completions name this sender.
    #[inline(always)]
    pub(crate) fn source(&self, sender: QueuePairId) -> Source {
        let address_handle = self.book.handle(sender.gid);
        let gid = (address_handle.is_none() && self.report_unknown_gid).then_some(sender.gid);
        Source { address_handle, qpn: sender.qpn, gid }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, sender: QueuePairId, source: Source, delivered: Delivered) {
        match delivered {
            Delivered::Datagram { packet, length, immediate } => {
                if let Some(sink) = &mut self.capture {
                    let bytes = &packet[..length];
                    record(sink, self.now, PacketEvent::Received, sender, self.me, bytes);
                }
                self.completions.push(|| Completion::Receive { packet, length, source, immediate });
            }
            // Only without a capture.
            Delivered::Front { packet, length } => {
                self.completions.push(|| Completion::Front { packet, length, source });
            }
            Delivered::Written { packet, length, immediate } => {
                self.completions.push(|| Completion::Written { immediate, length, source, packet });
            }
        }
    }
}

#[cold]
fn record(
    sink: &mut SharedSink,
    time: Time,
    event: PacketEvent,
    source: QueuePairId,
    destination: QueuePairId,
    bytes: &[u8],
) {
    sink.record(&Record { time, event, source, destination, bytes: Cow::Borrowed(bytes) });
}
