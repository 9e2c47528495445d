//! A table of operations under way, whose identifiers travel on the wire.
//!
//! An identifier is an index and a generation. The generation of an entry changes when it is
//! freed, so that an identifier from the wire that is stale, or made up, is caught.

use efa_proto::OpId;

/// Bits of the index: two million operations of a kind at a time.
const INDEX_BITS: u32 = 22;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
const MOST: usize = OF_RECEIVE as usize;
const GENERATION_MASK: u32 = u32::MAX >> INDEX_BITS;

#[derive(Debug)]
enum Entry<T> {
    Free { next: u32 },
    Live(T),
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    entry: Entry<T>,
}

/// In identifiers of receives, so that none is an identifier of a send, too: a PEER_ERROR doesn't
/// tell which it means.
pub(crate) const OF_RECEIVE: u32 = 1 << (INDEX_BITS - 1);

/// Operations of one kind, with the bits of `KIND` in their identifiers.
#[derive(Debug)]
pub(crate) struct OperationTable<T, const KIND: u32 = 0> {
    slots: Vec<Slot<T>>,
    free: u32,
    live: usize,
    limit: usize,
}

const NONE: u32 = u32::MAX;

impl<T, const KIND: u32> OperationTable<T, KIND> {
    /// An empty table for at most `limit` operations.
    pub(crate) fn new(limit: usize) -> Self {
        Self { slots: Vec::new(), free: NONE, live: 0, limit: limit.min(MOST) }
    }

    pub(crate) fn len(&self) -> usize {
        self.live
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn is_full(&self) -> bool {
        self.live >= self.limit
    }

    /// The identifier that the next operation will have.
    #[inline]
    pub(crate) fn next_id(&self) -> OpId {
        match self.slots.get(self.free as usize) {
            Some(slot) => OpId(slot.generation << INDEX_BITS | self.free | KIND),
            None => OpId(self.slots.len() as u32 | KIND),
        }
    }

    /// Adds an operation. The caller has checked [`is_full`](Self::is_full).
    #[inline(always)]
    pub(crate) fn insert(&mut self, operation: T) -> OpId {
        self.live += 1;
        let index = self.free;
        if let Some(slot) = self.slots.get_mut(index as usize)
            && let Entry::Free { next } = slot.entry
        {
            self.free = next;
            slot.entry = Entry::Live(operation);
            return OpId(slot.generation << INDEX_BITS | index | KIND);
        }
        let index = self.slots.len() as u32;
        self.slots.push(Slot { generation: 0, entry: Entry::Live(operation) });
        OpId(index | KIND)
    }

    fn slot(&self, id: OpId) -> Option<&Slot<T>> {
        let slot = self.slots.get(((id.0 ^ KIND) & INDEX_MASK) as usize)?;
        (slot.generation == id.0 >> INDEX_BITS).then_some(slot)
    }

    pub(crate) fn get(&self, id: OpId) -> Option<&T> {
        match &self.slot(id)?.entry {
            Entry::Live(operation) => Some(operation),
            Entry::Free { .. } => None,
        }
    }

    pub(crate) fn get_mut(&mut self, id: OpId) -> Option<&mut T> {
        let slot = self.slots.get_mut(((id.0 ^ KIND) & INDEX_MASK) as usize)?;
        match &mut slot.entry {
            Entry::Live(operation) if slot.generation == id.0 >> INDEX_BITS => Some(operation),
            _ => None,
        }
    }

    #[inline(always)]
    pub(crate) fn remove(&mut self, id: OpId) -> Option<T> {
        let index = (id.0 ^ KIND) & INDEX_MASK;
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation != id.0 >> INDEX_BITS || matches!(slot.entry, Entry::Free { .. }) {
            return None;
        }
        let entry = core::mem::replace(&mut slot.entry, Entry::Free { next: self.free });
        slot.generation = slot.generation.wrapping_add(1) & GENERATION_MASK;
        self.free = index;
        self.live -= 1;
        match entry {
            Entry::Live(operation) => Some(operation),
            Entry::Free { .. } => None,
        }
    }

    /// The identifiers of the operations for which `wanted` holds.
    pub(crate) fn find(&self, mut wanted: impl FnMut(&T) -> bool) -> Vec<OpId> {
        let ids = self.slots.iter().enumerate().filter_map(|(index, slot)| match &slot.entry {
            Entry::Live(operation) if wanted(operation) => {
                Some(OpId(slot.generation << INDEX_BITS | index as u32 | KIND))
            }
            _ => None,
        });
        ids.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // conformance: A122
    #[test]
    fn stale_identifiers_are_caught_over_a_million_reuses() {
        let mut table = OperationTable::<_>::new(4);
        let mut stale: Vec<OpId> = Vec::new();
        for round in 0..1_000_000_u32 {
            let id = table.insert(round);
            assert_eq!(table.get(id), Some(&round));
            if let Some(old) = stale.last() {
                assert_ne!(*old, id, "not reused at once");
                assert_eq!(table.get(*old), None);
                assert_eq!(table.remove(*old), None);
            }
            assert_eq!(table.remove(id), Some(round));
            assert_eq!(table.get_mut(id), None);
            stale = vec![id];
        }
        assert_eq!(table.slots.len(), 1, "entries are reused");
    }

    #[test]
    fn no_receive_has_the_identifier_of_a_send() {
        let (mut sends, mut receives) =
            (OperationTable::<_>::new(9), OperationTable::<_, OF_RECEIVE>::new(9));
        for round in 0..3000 {
            let (send, receive) = (sends.insert(round), receives.insert(round));
            assert_eq!((sends.get(receive), receives.get(send)), (None, None));
            assert_eq!((sends.get(send), receives.get(receive)), (Some(&round), Some(&round)));
            assert_eq!(receives.find(|_| true), [receive]);
            assert_eq!((sends.remove(send), receives.remove(receive)), (Some(round), Some(round)));
            assert_eq!(receives.next_id(), receives.insert(0));
            receives.remove(receives.find(|_| true)[0]);
        }
    }

    #[test]
    fn live_identifiers_differ_and_made_up_ones_are_refused() {
        let mut table = OperationTable::<_>::new(100);
        let ids: Vec<_> = (0..100).map(|i| table.insert(i)).collect();
        assert!(table.is_full());
        for (i, id) in ids.iter().enumerate() {
            assert_eq!(table.get(*id), Some(&i));
        }
        for made_up in [100, u32::MAX, 1 << INDEX_BITS] {
            assert_eq!(table.get(OpId(made_up)), None);
        }
        assert_eq!(table.find(|i| i % 50 == 7), [ids[7], ids[57]]);
        assert_eq!(table.len(), 100);
    }
}
