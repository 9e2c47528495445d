//! A ring: packets from one queue pair to another, in shared memory that the sender creates.
//!
//! ```text
//!    0  magic | version, retries | slots, MTU | from, may sleep   written once
//!  128  sender has detached                                        written by the sender
//!  256  head: packets acknowledged | of these, not delivered       ┐ written by
//!  384  entry in the mailbox, attached, watched | 1 until detached ┘ the receiver
//!  512  slots: number + 1 | length, kind and gap, queue key | status, immediate data | gap | bytes …
//! ```
//!
//! The sender fills a slot and then writes its number, with release order: the number and a short
//! packet are in one cache line, so a polling receiver gets both in one transfer. Before a long one there is a
//! [gap](Layout::gap), so that what is copied in one go begins with a cache line. The receiver copies the packet to a posted
//! buffer and advances the head, which acknowledges the packet. Of a long one it may copy the front alone, and the rest once
//! it knows where that goes: it takes further packets meanwhile, and acknowledges none. If the packet was not delivered, it
//! writes the slot's status first, and counts it: so the sender looks at a slot again, whose line the receiver has by then,
//! only if there is something to see. Watched is one of two bits: that of a receiver which may sleep makes the sender look
//! whether it does (see [`handover`](super::handover)).
//!
//! Two more kinds of slots [ask](super::requests) the receiver to read or write memory of its process:
//!
//! ```text
//!   read:   length 8, memory key | count | address               answered by the bytes, from the address on
//!   write:  length 8 + n, memory key     | address | n bytes
//! ```
//!
//! and one kind asks it to [write](super::sharing) memory of its process to the sender's:
//!
//! ```text
//!   push:   length 24, memory key        | address | address there | key there, count | 0, taken or withdrawn
//! ```
//!
//! Its last word is the only one that both sides write: whoever changes it from 0 decides whether the memory is
//! written.
//!
//! Neither side trusts the other's words: numbers are checked against what the protocol allows, lengths
//! against the layout that was checked when the file was mapped, and no word is read twice.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use efa_device::{CopySource, CopyTarget, Qkey, Qpn, RemoteMemory, Status};
use rustix::fs::fstat;
use rustix::io::Errno;

use crate::map::{Map, WatchedMap, Word};
use crate::store::LINE;

const MAGIC: u64 = u64::from_le_bytes(*b"efaring\n");
const VERSION: u64 = 6;
const SENDER: usize = 128;
const HEAD: usize = 256;
const RECEIVER: usize = 384;
/// Bits of the receiver's first word, above them the entry.
const ATTACHED: u64 = 1;
const WATCHED: u64 = 1 << 1;
/// In place of `WATCHED` if the receiver may sleep.
const WATCHED_OR_ASLEEP: u64 = 1 << 2;
const ENTRY_SHIFT: u32 = 3;
/// Bit of the sender's word, below it the queue pair number.
const SENDER_SLEEPS: u64 = 1 << 16;
const SLOTS: usize = 512;
/// Bytes of the words in front of a slot's packet.
const SLOT_HEADER: usize = 24;

/// Bytes of a packet in the first line of its slot.
const FIRST: usize = LINE - SLOT_HEADER;

/// A gap is less than a line, and a multiple of this.
const GAP_UNIT: usize = 4;
/// Of the byte with kind and gap.
const GAP_SHIFT: u32 = 4;

/// Bytes of a slot up to which all its lines are [expected](RingSender::expect_another), and only the first two of longer
/// ones: measured on an AMD EPYC, where packets of 4 KiB were slower otherwise.
const EXPECTED: usize = 2176;

/// Bytes from which packets of a stream are copied [by lines](Map::copy_lines_in): measured as above, where lines take long
/// from one processor to the other. Where they don't it makes no difference.
const BY_LINES: usize = 512;

/// Bytes from which packets have a [gap](Layout::gap): measured as above. Shorter ones took longer with one.
const ALIGNED: usize = 4096;

/// Most slots of a ring.
pub(super) const MAX_SLOTS: usize = 1 << 16;
/// Largest packet of a ring in bytes.
pub(super) const MAX_MTU: usize = 1 << 20;

/// What a slot contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A datagram.
    Plain = 0,
    /// A datagram with immediate data.
    Immediate = 1,
    /// The immediate data of an RDMA write, whose length in bytes is in the slot.
    Written = 2,
    /// A request for bytes of the receiver's memory, which it puts into the slot.
    Read = 3,
    /// Bytes for the receiver's memory.
    Write = 4,
    /// A request to write bytes of the receiver's memory to the sender's.
    Push = 5,
}

/// The memory that a [`Kind::Push`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Push {
    /// Of the receiver's process.
    pub(super) from: RemoteMemory,
    /// Of the sender's.
    pub(super) into: RemoteMemory,
    /// Bytes.
    pub(super) count: u32,
}

/// Bytes of a [`Kind::Push`] slot.
const PUSH: usize = 24;
/// Where in the slot the word follows that decides.
const DECISION: usize = SLOT_HEADER + PUSH;
const TAKEN: u64 = 1;
const WITHDRAWN: u64 = 2;

/// Bytes of the address in front of a request.
pub(super) const ADDRESS: usize = 8;

/// Bytes of a [`Kind::Written`] slot.
pub(super) const WRITTEN: usize = 8;

/// The other side violated the protocol of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// Number and size of the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    /// A power of two.
    slots: usize,
    mtu: usize,
    stride: usize,
}

impl Layout {
    fn new(slots: usize, mtu: usize) -> Option<Self> {
        let is_valid = slots.is_power_of_two() && slots <= MAX_SLOTS && mtu <= MAX_MTU;
        // Whole cache lines, so that two slots don't share one.
        let stride = |bytes: usize| (SLOT_HEADER + bytes).next_multiple_of(LINE);
        is_valid.then(|| Self { slots, mtu, stride: stride(mtu.max(WRITTEN)) })
    }

    /// Whether a slot has room for a [`Push`] and the word that decides.
    fn holds_push(&self) -> bool {
        self.capacity() >= PUSH + size_of::<u64>()
    }

    /// Most bytes in a slot.
    fn capacity(&self) -> usize {
        self.mtu.max(WRITTEN)
    }

    fn length(&self) -> usize {
        SLOTS + self.slots * self.stride
    }

    #[inline]
    fn slot(&self, number: u64) -> usize {
        SLOTS + (number as usize & (self.slots - 1)) * self.stride
    }

    /// Bytes that are left free before a packet, of which `front` bytes are copied in one go and `rest` in another, so that the
    /// longer part begins with a cache line; 0 if a slot has no room for that.
    #[inline(always)]
    fn gap(&self, front: usize, rest: usize) -> usize {
        if front + rest < ALIGNED {
            return 0;
        }
        let long = SLOT_HEADER + if front < rest { front } else { 0 };
        let gap = (long.next_multiple_of(LINE) - long) / GAP_UNIT * GAP_UNIT;
        if self.has_room(gap, front + rest) { gap } else { 0 }
    }

    /// Whether a slot has room for a packet of this length behind a gap.
    fn has_room(&self, gap: usize, length: usize) -> bool {
        SLOT_HEADER + gap + length <= self.stride
    }
}

impl Kind {
    /// Whether it asks for memory of the receiver's process, and needs no buffer.
    #[inline]
    pub(super) fn is_request(self) -> bool {
        matches!(self, Self::Read | Self::Write | Self::Push)
    }

    #[inline]
    fn encode(self) -> u64 {
        self as u64
    }

    #[inline]
    fn decode(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Plain),
            1 => Some(Self::Immediate),
            2 => Some(Self::Written),
            3 => Some(Self::Read),
            4 => Some(Self::Write),
            5 => Some(Self::Push),
            _ => None,
        }
    }
}

#[inline(always)]
fn slot_words(map: &Map, at: usize) -> &[AtomicU64; 3] {
    map.words(at)
}

/// The sender's end.
#[derive(Debug)]
pub(super) struct RingSender {
    map: Map,
    layout: Layout,
    /// Packets published.
    tail: u64,
    /// Packets whose acknowledgement was taken.
    acknowledged: u64,
    /// Of these, not delivered.
    failed: u64,
    /// Packets that were not delivered, as the receiver said last.
    rejected: u64,
}

impl RingSender {
    /// The length of the file for a ring.
    pub(super) fn file_length(slots: usize, mtu: usize) -> Option<usize> {
        Layout::new(slots, mtu).map(|layout| layout.length())
    }

    /// Creates a ring in a new file of that length, all zero.
    pub(super) fn create(
        file: impl AsFd,
        slots: usize,
        mtu: usize,
        from: Qpn,
        rnr_retry: u8,
        sleeps: bool,
    ) -> Result<Self, Errno> {
        let layout = Layout::new(slots, mtu).ok_or(Errno::INVAL)?;
        let map = Map::new(file, layout.length())?;
        let [magic, version, sizes, sender] = map.words(0);
        version.store(VERSION | u64::from(rnr_retry) << 32, Ordering::Relaxed);
        sizes.store(slots as u64 | (mtu as u64) << 32, Ordering::Relaxed);
        let sleeps = if sleeps { SENDER_SLEEPS } else { 0 };
        sender.store(u64::from(from.0) | sleeps, Ordering::Relaxed);
        map.words::<2>(RECEIVER)[1].store(1, Ordering::Relaxed);
        magic.store(MAGIC, Ordering::Release);
        Ok(Self { map, layout, tail: 0, acknowledged: 0, failed: 0, rejected: 0 })
    }

    pub(super) fn slots(&self) -> usize {
        self.layout.slots
    }

    /// Packets published so far.
    pub(super) fn published(&self) -> u64 {
        self.tail
    }

    /// Packets whose acknowledgement was not taken.
    #[inline(always)]
    fn under_way(&self) -> u64 {
        self.tail - self.acknowledged
    }

    /// Whether a slot is free.
    #[inline]
    pub(super) fn has_space(&self) -> bool {
        self.under_way() < self.layout.slots as u64
    }

    /// Publishes a packet of at most the MTU. There must be a free slot.
    #[inline(always)]
    pub(super) fn publish(&mut self, kind: Kind, immediate: u32, bytes: &[u8], qkey: Qkey) {
        match bytes.len() < ALIGNED {
            true => self.publish_behind(0, (kind, immediate, qkey), bytes, 0, |_| {}),
            false => self.publish_with(kind, immediate, qkey, bytes, 0, |_| {}),
        }
    }

    /// Publishes a packet of these bytes and, behind them, `rest` bytes that `fill` writes; at most the MTU together. There
    /// must be a free slot.
    #[inline(never)]
    pub(super) fn publish_with(
        &mut self,
        kind: Kind,
        immediate: u32,
        qkey: Qkey,
        bytes: &[u8],
        rest: usize,
        fill: impl FnOnce(CopyTarget<'_>),
    ) {
        let gap = self.layout.gap(bytes.len(), rest);
        self.publish_behind(gap, (kind, immediate, qkey), bytes, rest, fill);
    }

    /// The same behind a gap.
    #[inline(always)]
    fn publish_behind(
        &mut self,
        gap: usize,
        (kind, immediate, qkey): (Kind, u32, Qkey),
        bytes: &[u8],
        rest: usize,
        fill: impl FnOnce(CopyTarget<'_>),
    ) {
        let length = bytes.len() + rest;
        debug_assert!(self.has_space() && length <= self.layout.capacity());
        let at = self.layout.slot(self.tail);
        let begin = SLOT_HEADER + gap;
        // The receiver polls the first line, and would take it back while the others come: it is written last, in one go.
        let (first, behind) = match bytes.split_first_chunk::<FIRST>() {
            _ if gap > 0 => (&[][..], bytes),
            Some((first, behind)) => (first.as_slice(), behind),
            None => (bytes, &[][..]),
        };
        if !behind.is_empty() {
            let behind_at = at + begin + first.len();
            // A single one was written just before, which is to be waited for.
            if behind.len() >= BY_LINES && self.under_way() > 1 {
                self.map.copy_lines_in(behind_at, behind);
            } else {
                self.map.copy_in(behind_at, behind);
            }
        }
        if rest > 0 {
            self.map.fill(at + begin + bytes.len(), rest, fill);
        }
        compiler_fence(Ordering::Release);
        let [number, what, status] = slot_words(&self.map, at);
        let kind_and_gap = kind.encode() | ((gap / GAP_UNIT) as u64) << GAP_SHIFT;
        what.store(length as u64 | kind_and_gap << 24 | u64::from(qkey.0) << 32, Ordering::Relaxed);
        status.store(u64::from(immediate) << 32, Ordering::Relaxed);
        self.map.copy_in(at + begin, first);
        self.tail += 1;
        number.store(self.tail, Ordering::Release);
        self.expect_another(begin + length);
    }

    /// Has the processor fetch the lines of a free slot that is filled soon, without the first one unless packets leave
    /// faster than they are acknowledged. The receiver's processor has them, as it read them; whatever waits for all earlier writes, as an
    /// atomic operation does, would wait for them to come. `length` is that of the last packet with its words.
    #[inline(always)]
    fn expect_another(&self, length: usize) {
        let under_way = self.under_way();
        if under_way <= 1 {
            // With one message at a time the receiver looks at the next slot meanwhile, and would take its first line back.
            if (LINE + 1..=EXPECTED).contains(&length) {
                self.map.expect_write(self.layout.slot(self.tail) + LINE, length - LINE);
            }
            return;
        }
        if under_way == self.layout.slots as u64 {
            return;
        }
        // One line comes in less time than a message takes, several come in time for the next.
        if length > LINE {
            let expected = if length <= EXPECTED { length } else { 2 * LINE };
            self.map.expect_write(self.layout.slot(self.tail), expected);
        } else if under_way + 1 < self.layout.slots as u64 {
            self.map.expect_write_of_line(self.layout.slot(self.tail + 1));
        }
    }

    /// Publishes a request for the memory from `address` on, of the region of `key`: to read `count` bytes, which
    /// a slot must hold, or to write `bytes`.
    pub(super) fn publish_request(
        &mut self,
        kind: Kind,
        (address, key): (u64, u32),
        count: u32,
        bytes: &[u8],
    ) {
        let fill = |mut into: CopyTarget<'_>| into.copy_from(0, bytes);
        let words = (kind, count, Qkey(key));
        self.publish_behind(0, words, &address.to_le_bytes(), bytes.len(), fill);
    }

    /// Whether a slot holds a [`Push`].
    pub(super) fn holds_push(&self) -> bool {
        self.layout.holds_push()
    }

    /// Publishes a request to write memory of the receiver's process to this one's. Returns its number, by which it
    /// can be [withdrawn](Self::withdraw).
    pub(super) fn publish_push(&mut self, push: Push) -> u64 {
        debug_assert!(self.has_space() && self.holds_push());
        let number = self.tail;
        let at = self.layout.slot(number);
        self.map.words::<1>(at + DECISION)[0].store(0, Ordering::Relaxed);
        let Push { from, into, count } = push;
        let mut bytes = [0; PUSH];
        let there = u64::from(into.key) | u64::from(count) << 32;
        for (part, word) in bytes.chunks_exact_mut(8).zip([from.address, into.address, there]) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        self.publish(Kind::Push, 0, &bytes, Qkey(from.key));
        number
    }

    /// Withdraws the request with this number, which isn't acknowledged. Returns false if the receiver has begun to carry
    /// it out.
    pub(super) fn withdraw(&self, number: u64) -> bool {
        let word = &self.map.words::<1>(self.layout.slot(number) + DECISION)[0];
        let changed = word.compare_exchange(0, WITHDRAWN, Ordering::AcqRel, Ordering::Acquire);
        matches!(changed, Ok(_) | Err(WITHDRAWN))
    }

    /// The number of the oldest packet, whose acknowledgement is to be [taken](Self::take_acknowledgement) next.
    #[inline(always)]
    pub(super) fn oldest(&self) -> u64 {
        self.acknowledged
    }

    /// Copies what the receiver answered to the request with this number, whose slot no other has used since.
    pub(super) fn copy_answer(&self, number: u64, into: &mut [u8]) {
        let length = into.len().min(self.layout.capacity());
        self.map.copy_out(self.layout.slot(number) + SLOT_HEADER, &mut into[..length]);
    }

    /// Copies the rest of the packet with this number, behind its `front` bytes, from its slot, which no other has used since.
    pub(super) fn copy_rest(&self, number: u64, front: usize, into: &mut [u8]) {
        let gap = self.layout.gap(front, into.len());
        let begin = self.layout.slot(number) + SLOT_HEADER + gap;
        self.map.copy_out(begin + front, into);
    }

    /// Whether the receiver polls this ring, and never sleeps; otherwise it may have to be woken.
    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.map.words::<2>(RECEIVER)[0].load(Ordering::Relaxed) & WATCHED != 0
    }

    /// Whether the receiver's doorbell must be rung.
    pub(super) fn needs_doorbell(&self) -> bool {
        let word = self.map.words::<2>(RECEIVER)[0].load(Ordering::Relaxed);
        word & (WATCHED | WATCHED_OR_ASLEEP) == 0
    }

    /// The entry of the receiver's mailbox to ring for, as the receiver says; `None` if it hasn't attached
    /// yet.
    pub(super) fn attached_entry(&self) -> Option<usize> {
        let word = self.map.words::<2>(RECEIVER)[0].load(Ordering::Relaxed);
        let entry = usize::try_from(word >> ENTRY_SHIFT).ok()?;
        (word & ATTACHED != 0).then_some(entry)
    }

    /// Whether the receiver has detached.
    #[inline]
    pub(super) fn is_detached(&self) -> bool {
        self.map.words::<2>(RECEIVER)[1].load(Ordering::Acquire) == 0
    }

    /// Packets acknowledged and not yet [taken](Self::take_acknowledgement).
    #[inline]
    pub(super) fn acknowledgements(&mut self) -> Result<u64, Broken> {
        let [head, rejected] = self.map.words(HEAD);
        let head = head.load(Ordering::Acquire);
        self.rejected = rejected.load(Ordering::Relaxed);
        if (self.acknowledged..=self.tail).contains(&head) {
            Ok(head - self.acknowledged)
        } else {
            Err(Broken)
        }
    }

    /// The result of the oldest packet.
    #[inline]
    fn oldest_result(&self) -> Result<(), Status> {
        if self.are_delivered() { Ok(()) } else { self.oldest_status() }
    }

    #[cold]
    fn oldest_status(&self) -> Result<(), Status> {
        let [_, _, status] = slot_words(&self.map, self.layout.slot(self.acknowledged));
        match status.load(Ordering::Relaxed) & 0xffff_ffff {
            0 => Ok(()),
            code => Err(u8::try_from(code)
                .ok()
                .and_then(Status::from_code)
                .unwrap_or(Status::BadStatus)),
        }
    }

    /// Whether all packets that [`acknowledgements`](Self::acknowledgements) counted were delivered.
    #[inline(always)]
    pub(super) fn are_delivered(&self) -> bool {
        self.failed == self.rejected
    }

    /// As [`take_acknowledgement`](Self::take_acknowledgement), of one that was delivered as all were.
    #[inline(always)]
    pub(super) fn take_delivered(&mut self) {
        self.acknowledged += 1;
    }

    /// Takes the result of the oldest packet, which [`acknowledgements`](Self::acknowledgements) must have counted.
    #[inline]
    pub(super) fn take_acknowledgement(&mut self) -> Result<(), Status> {
        let result = self.oldest_result();
        self.acknowledged += 1;
        self.failed += u64::from(result.is_err());
        result
    }

    /// Announces that no more packets follow.
    pub(super) fn detach(&self) {
        self.map.words::<1>(SENDER)[0].store(1, Ordering::Release);
    }
}

/// A packet at the receiver's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrived {
    pub(super) length: usize,
    /// Of a read or write the memory key.
    pub(super) qkey: Qkey,
    pub(super) kind: Kind,
    /// Of a read the number of bytes.
    pub(super) immediate: u32,
    /// Length of the [gap](Layout::gap) before it, in units.
    gap: u8,
}

/// A packet that a receiver looks for without its ring, which may be gone by then.
#[derive(Debug)]
pub(super) struct Awaited {
    /// That of its slot, once it is there.
    word: Word,
    number: u64,
}

impl Awaited {
    /// Whether it has arrived. Never panics.
    #[inline(always)]
    pub(super) fn is_there(&self) -> bool {
        self.word.get().load(Ordering::Acquire) == self.number
    }
}

/// The receiver's end.
#[derive(Debug)]
pub(super) struct RingReceiver {
    /// Watches the number of the next packet's slot.
    map: WatchedMap,
    layout: Layout,
    from: Qpn,
    rnr_retry: u8,
    sender_sleeps: bool,
    /// Packets accepted or rejected.
    next: u64,
    /// Offset of the next packet's slot.
    next_at: usize,
    /// Packets acknowledged to the sender.
    acknowledged: u64,
    /// Packets rejected.
    rejected: u64,
}

impl RingReceiver {
    /// Maps a ring that another process created; `None` if the file isn't a ring.
    pub(super) fn open(file: &OwnedFd) -> Result<Option<Self>, Errno> {
        let size = usize::try_from(fstat(file)?.st_size).unwrap_or(usize::MAX);
        let largest = Layout::new(MAX_SLOTS, MAX_MTU).map_or(0, |layout| layout.length());
        if !(SLOTS..=largest).contains(&size) {
            return Ok(None);
        }
        let map = Map::new(file, size)?;
        let words = map.words::<4>(0).each_ref().map(|word| word.load(Ordering::Acquire));
        let [magic, version, sizes, from] = words;
        let part = |word: u64| usize::try_from(word & 0xffff_ffff).unwrap_or(usize::MAX);
        let layout = Layout::new(part(sizes), part(sizes >> 32));
        let layout = layout.filter(|layout| layout.length() == map.length());
        let sender_sleeps = from & SENDER_SLEEPS != 0;
        let (Some(layout), Ok(from), Ok(rnr_retry)) =
            (layout, u16::try_from(from & !SENDER_SLEEPS), u8::try_from(version >> 32))
        else {
            return Ok(None);
        };
        if magic != MAGIC || version & 0xffff_ffff != VERSION {
            return Ok(None);
        }
        Ok(Some(Self {
            map: WatchedMap::new(map, SLOTS),
            layout,
            from: Qpn(from),
            rnr_retry,
            sender_sleeps,
            next: 0,
            next_at: SLOTS,
            acknowledged: 0,
            rejected: 0,
        }))
    }

    pub(super) fn from(&self) -> Qpn {
        self.from
    }

    pub(super) fn rnr_retry(&self) -> u8 {
        self.rnr_retry
    }

    /// Whether the sender may sleep until packets are acknowledged.
    pub(super) fn sender_sleeps(&self) -> bool {
        self.sender_sleeps
    }

    /// Whether the packet `ahead` positions after the next one has arrived.
    #[inline]
    pub(super) fn has(&self, ahead: usize) -> bool {
        let number = self.next + ahead as u64;
        let [there, ..] = slot_words(&self.map, self.layout.slot(number));
        ahead < self.layout.slots && there.load(Ordering::Acquire) == number + 1
    }

    /// Whether the next packet has arrived.
    #[inline(always)]
    pub(super) fn has_next(&self) -> bool {
        self.map.word().load(Ordering::Acquire) == self.next + 1
    }

    /// Prepares looks at whether the next packet has arrived.
    pub(super) fn await_next(&self, awaited: &mut Option<Awaited>) {
        let number = self.next + 1;
        match awaited {
            Some(awaited) => {
                awaited.word.follow(&self.map);
                awaited.number = number;
            }
            None => *awaited = Some(Awaited { word: self.map.handle(), number }),
        }
    }

    #[inline]
    fn step(&mut self) {
        self.next += 1;
        self.next_at = self.layout.slot(self.next);
        self.map.watch(self.next_at);
    }

    /// The next packet, if it has arrived.
    #[inline]
    pub(super) fn peek(&self) -> Result<Option<Arrived>, Broken> {
        if !self.has_next() {
            return Ok(None);
        }
        let [_, what, _] = slot_words(&self.map, self.next_at);
        let what = what.load(Ordering::Relaxed);
        let (length, qkey) = ((what & 0xff_ffff) as usize, Qkey((what >> 32) as u32));
        let kind_and_gap = (what >> 24) as u8;
        let plain = Arrived { length, qkey, kind: Kind::Plain, immediate: 0, gap: 0 };
        if kind_and_gap == 0 && length <= self.layout.mtu {
            return Ok(Some(plain));
        }
        self.peek_other(kind_and_gap, plain).map(Some)
    }

    /// The next packet, which isn't a plain datagram, or has a gap, or is too long for one.
    #[inline(never)]
    fn peek_other(&self, kind_and_gap: u8, plain: Arrived) -> Result<Arrived, Broken> {
        let kind = Kind::decode(kind_and_gap & ((1 << GAP_SHIFT) - 1)).ok_or(Broken)?;
        let (length, gap) = (plain.length, kind_and_gap >> GAP_SHIFT);
        let has_room = self.layout.has_room(usize::from(gap) * GAP_UNIT, length);
        let [_, _, status] = slot_words(&self.map, self.next_at);
        let immediate = (status.load(Ordering::Relaxed) >> 32) as u32;
        let capacity = self.layout.capacity();
        let (good, immediate) = match kind {
            Kind::Plain => (length <= self.layout.mtu, 0),
            Kind::Immediate => (length <= self.layout.mtu, immediate),
            Kind::Written => (length == WRITTEN, immediate),
            Kind::Read => (length == ADDRESS && immediate as usize <= capacity, immediate),
            Kind::Write => ((ADDRESS..=capacity).contains(&length), 0),
            Kind::Push => (length == PUSH && self.layout.holds_push(), 0),
        };
        let arrived = Arrived { kind, immediate, gap, ..plain };
        if good && has_room { Ok(arrived) } else { Err(Broken) }
    }

    /// Where the next packet is in the ring.
    #[inline(always)]
    pub(super) fn place(&self, arrived: Arrived) -> Range<usize> {
        let begin = self.next_at + SLOT_HEADER + usize::from(arrived.gap) * GAP_UNIT;
        begin..begin + arrived.length
    }

    /// Takes the next packet's bytes, or its first ones; `into` has at most the length that [`peek`](Self::peek) returned.
    #[inline]
    pub(super) fn accept(&mut self, arrived: Arrived, into: &mut [u8]) {
        self.copy(self.place(arrived).start, into);
        self.step();
    }

    /// Copies bytes of the next packet, or of a request, from `at` in the ring on, and leaves it.
    #[inline]
    fn copy(&self, at: usize, into: &mut [u8]) {
        let length = into.len().min(self.layout.capacity());
        self.map.copy_out(at, &mut into[..length]);
    }

    /// Copies the bytes that the next packet, a request, has behind the address.
    pub(super) fn requested_bytes(&self, into: &mut [u8]) {
        self.copy(self.next_at + SLOT_HEADER + ADDRESS, into);
    }

    /// Has the processor fetch what follows the first line of the packet in this place, whose front was taken.
    #[inline(always)]
    pub(super) fn expect_rest(&self, place: &Range<usize>) {
        self.map.expect_read(place.start.next_multiple_of(LINE), EXPECTED);
    }

    /// Passes a part of the packet in this place, which was not acknowledged, to `take`, if it has such a part.
    pub(super) fn pass(
        &self,
        place: &Range<usize>,
        part: Range<usize>,
        take: impl FnOnce(CopySource<'_>),
    ) {
        if part.start <= part.end && part.end <= place.len() {
            self.map.take(place.start + part.start, part.len(), take);
        }
    }

    /// The address that the next packet, a request, names.
    pub(super) fn requested_address(&self) -> u64 {
        let mut address = [0; ADDRESS];
        self.copy(self.next_at + SLOT_HEADER, &mut address);
        u64::from_le_bytes(address)
    }

    /// What the next packet, a push, asks for.
    pub(super) fn push(&self, arrived: Arrived) -> Push {
        let mut words = [[0; 8]; 3];
        self.copy(self.place(arrived).start, words.as_flattened_mut());
        let [address, there, rest] = words.map(u64::from_le_bytes);
        Push {
            from: RemoteMemory { address, key: arrived.qkey.0 },
            into: RemoteMemory { address: there, key: rest as u32 },
            count: (rest >> 32) as u32,
        }
    }

    /// Begins to carry out the next packet, a push. Returns false if it was withdrawn.
    pub(super) fn take_push(&self) -> bool {
        let word = &self.map.words::<1>(self.next_at + DECISION)[0];
        let changed = word.compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Acquire);
        matches!(changed, Ok(_) | Err(TAKEN))
    }

    /// Completes the next packet, a request; a read with its bytes.
    pub(super) fn answer(&mut self, bytes: &[u8]) {
        let length = bytes.len().min(self.layout.capacity());
        self.map.copy_in(self.next_at + SLOT_HEADER, &bytes[..length]);
        self.step();
    }

    /// Completes the next packet with a failure.
    pub(super) fn reject(&mut self, why: Status) {
        let [_, _, status] = slot_words(&self.map, self.next_at);
        status.store(u64::from(why.code()), Ordering::Relaxed);
        self.rejected += 1;
        self.map.words::<2>(HEAD)[1].store(self.rejected, Ordering::Relaxed);
        self.step();
    }

    /// Acknowledges all packets accepted and rejected so far.
    #[inline]
    pub(super) fn acknowledge(&mut self) {
        if self.acknowledged != self.next {
            self.acknowledged = self.next;
            self.map.words::<1>(HEAD)[0].store(self.next, Ordering::Release);
        }
    }

    /// Tells the sender that the ring is attached under `entry` of the mailbox, and whether it is watched
    /// by a receiver that `sleeps` at times.
    pub(super) fn set_watched(&self, entry: usize, watched: bool, sleeps: bool) {
        let watched = match (watched, sleeps) {
            (true, false) => WATCHED,
            (true, true) => WATCHED_OR_ASLEEP,
            (false, _) => 0,
        };
        let word = (entry as u64) << ENTRY_SHIFT | ATTACHED | watched;
        self.map.words::<2>(RECEIVER)[0].store(word, Ordering::Relaxed);
    }

    pub(super) fn is_detached(&self) -> bool {
        self.map.words::<1>(SENDER)[0].load(Ordering::Acquire) != 0
    }

    /// Rejects the packets that have arrived, and takes no more.
    pub(super) fn detach(&mut self, why: Status) {
        for _ in 0..self.layout.slots {
            if !self.has_next() {
                break;
            }
            self.reject(why);
        }
        self.acknowledge();
        self.map.words::<2>(RECEIVER)[1].store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
