//! Packets that are stored until they can be handled: out-of-order packets and unexpected messages.
//!
//! They are copied from the receive buffers into memory of about their size, so that a peer that
//! sends far ahead can't use up the device's receive buffers. The packets of a message form a chain.

use slab::Slab;

use crate::storage::Pool;

/// The index of a held packet in [`Held`].
pub(crate) type HeldId = u32;

/// The held packets of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) first: HeldId,
    last: HeldId,
}

impl Chain {
    /// The empty chain.
    pub(crate) const NONE: Self = Self { first: HeldId::MAX, last: HeldId::MAX };
}

/// A copy of a packet, header included.
#[derive(Debug)]
pub(crate) struct HeldPacket {
    memory: Box<[u8]>,
    length: usize,
    /// The next packet of the chain.
    pub(crate) next: Option<HeldId>,
}

impl HeldPacket {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[..self.length]
    }
}

/// The number of size classes. The first is of [`SMALLEST`] bytes, each next one twice as large.
const CLASSES: usize = 12;
const SMALLEST: usize = 64;

/// Bytes that the tables use for a held packet and its message, spare capacity included.
const ENTRIES: usize = 256;

/// Bytes of memory that holding a packet of `length` bytes takes.
pub(crate) fn cost(length: usize) -> usize {
    (SMALLEST << class(length)) + ENTRIES
}

/// All held packets, and free memory by size class.
#[derive(Debug, Default)]
pub(crate) struct Held {
    packets: Slab<HeldPacket>,
    classes: [Pool<Box<[u8]>>; CLASSES],
}

/// The size class for a length in bytes. Memory of a class beyond the last is not pooled.
fn class(length: usize) -> usize {
    (length.max(SMALLEST).next_power_of_two() / SMALLEST).trailing_zeros() as usize
}

impl Held {
    /// Stores a copy of a packet, as a chain of one.
    pub(crate) fn hold(&mut self, bytes: &[u8]) -> Chain {
        let class = class(bytes.len());
        let pooled = self.classes.get_mut(class).and_then(Pool::take);
        let mut memory = pooled.unwrap_or_else(|| vec![0; SMALLEST << class].into());
        memory[..bytes.len()].copy_from_slice(bytes);
        let id = self.packets.insert(HeldPacket { memory, length: bytes.len(), next: None });
        Chain { first: id as HeldId, last: id as HeldId }
    }

    /// Appends the chain `more` to `chain`.
    pub(crate) fn append(&mut self, chain: &mut Chain, more: Chain) {
        self.packets[chain.last as usize].next = Some(more.first);
        chain.last = more.last;
    }

    pub(crate) fn bytes(&self, id: HeldId) -> &[u8] {
        self.packets[id as usize].bytes()
    }

    /// The packets of a chain.
    pub(crate) fn chain(&self, chain: Chain) -> impl Iterator<Item = &[u8]> {
        let first = self.packets.get(chain.first as usize);
        let packets =
            core::iter::successors(first, |packet| self.packets.get(packet.next? as usize));
        packets.map(HeldPacket::bytes)
    }

    /// Removes a packet. The caller [releases](Self::release) it when it has been handled.
    pub(crate) fn take(&mut self, id: HeldId) -> HeldPacket {
        self.packets.remove(id as usize)
    }

    pub(crate) fn release(&mut self, packet: HeldPacket) {
        if let Some(pool) = self.classes.get_mut(class(packet.memory.len())) {
            pool.put(packet.memory);
        }
    }

    /// Removes and releases all packets of a chain; returns the sum of their [`cost`]s.
    pub(crate) fn drop_chain(&mut self, chain: Chain) -> usize {
        let (mut next, mut freed) = ((chain != Chain::NONE).then_some(chain.first), 0);
        while let Some(id) = next {
            let packet = self.take(id);
            next = packet.next;
            freed += cost(packet.length);
            self.release(packet);
        }
        freed
    }

    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    pub(crate) fn trim(&mut self) {
        self.classes.iter_mut().for_each(Pool::trim);
        if self.packets.is_empty() {
            self.packets.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_packets_use_memory_of_the_next_power_of_two() {
        let mut held = Held::default();
        for (length, memory) in [(0, 64), (64, 64), (65, 128), (8928, 16384)] {
            let chain = held.hold(&vec![7; length]);
            let packet = held.take(chain.first);
            assert_eq!((packet.bytes().len(), packet.memory.len()), (length, memory));
            held.release(packet);
        }
    }

    #[test]
    fn held_packets_of_a_chain_keep_their_order() {
        let mut held = Held::default();
        let mut chain = held.hold(&[0]);
        for byte in 1..4 {
            let more = held.hold(&[byte]);
            held.append(&mut chain, more);
        }
        let mut seen = Vec::new();
        let mut next = Some(chain.first);
        while let Some(id) = next {
            seen.push(held.bytes(id)[0]);
            next = held.packets[id as usize].next;
        }
        assert_eq!(seen, [0, 1, 2, 3]);
        held.drop_chain(chain);
        assert_eq!(held.len(), 0);
    }
}
