//! A table of operations under way, whose identifiers travel on the wire.
//!
//! An identifier is an index and a generation. The generation of an entry changes when it is
//! freed, so that an identifier from the wire that is stale, or made up, is caught.

use efa_proto::OpId;

use crate::completion::StartError;
use crate::table::Table;

/// Bits of the index: two million operations of a kind at a time.
const INDEX_BITS: u32 = 22;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
const MOST: usize = OF_RECEIVE as usize;
const GENERATION_MASK: u32 = u32::MAX >> INDEX_BITS;

/// In identifiers of receives, so that none is an identifier of a send, too: a PEER_ERROR doesn't
/// tell which it means.
pub(crate) const OF_RECEIVE: u32 = 1 << (INDEX_BITS - 1);

/// Operations of one kind, with the bits of `KIND` in their identifiers.
#[derive(Debug)]
pub(crate) struct OperationTable<T, const KIND: u32 = 0> {
    operations: Table<T>,
    /// Of each place.
    generations: Vec<u32>,
    most: usize,
}

impl<T, const KIND: u32> OperationTable<T, KIND> {
    pub(crate) fn new() -> Self {
        Self { operations: Table::new(), generations: Vec::new(), most: MOST }
    }

    /// Has names for fewer.
    #[cfg(test)]
    pub(crate) fn limit(&mut self, most: usize) {
        self.most = most;
    }

    pub(crate) fn len(&self) -> usize {
        self.operations.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.most
    }

    /// Whether there is a name for another operation of this endpoint.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        let limit = self.most;
        if self.is_full() { Err(StartError::Busy { limit }) } else { Ok(()) }
    }

    /// Whether `count` operations are as many as peers may ask for: half of the names are for this
    /// endpoint's own.
    pub(crate) fn is_too_many_of_peers(&self, count: usize) -> bool {
        self.is_full() || count >= self.most / 2
    }

    /// The identifier of an operation at a place.
    #[inline(always)]
    fn id(&self, index: u32) -> OpId {
        let generation = self.generations.get(index as usize).copied().unwrap_or(0);
        OpId(generation << INDEX_BITS | index | KIND)
    }

    /// The place of the operation of this name, if that is not of an earlier one.
    #[inline(always)]
    fn index(&self, id: OpId) -> Option<u32> {
        let index = (id.0 ^ KIND) & INDEX_MASK;
        let generation = *self.generations.get(index as usize)?;
        (generation == id.0 >> INDEX_BITS).then_some(index)
    }

    /// Adds an operation. The caller has [checked](Self::is_full) that there is room.
    #[inline(always)]
    pub(crate) fn insert(&mut self, operation: T) -> OpId {
        let index = self.operations.insert(operation);
        if index as usize >= self.generations.len() {
            self.generations.push(0);
        }
        self.id(index)
    }

    pub(crate) fn get(&self, id: OpId) -> Option<&T> {
        self.operations.get(self.index(id)?)
    }

    pub(crate) fn get_mut(&mut self, id: OpId) -> Option<&mut T> {
        let index = self.index(id)?;
        self.operations.get_mut(index)
    }

    #[inline(always)]
    pub(crate) fn remove(&mut self, id: OpId) -> Option<T> {
        let index = self.index(id)?;
        let operation = self.operations.remove(index)?;
        if let Some(generation) = self.generations.get_mut(index as usize) {
            *generation = generation.wrapping_add(1) & GENERATION_MASK;
        }
        Some(operation)
    }

    /// The identifiers of the operations for which `wanted` holds.
    pub(crate) fn find(&self, mut wanted: impl FnMut(&T) -> bool) -> Vec<OpId> {
        let of = self.operations.iter().filter(|(_, operation)| wanted(operation));
        of.map(|(index, _)| self.id(index)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // conformance: A122
    #[test]
    fn stale_identifiers_are_caught_over_a_million_reuses() {
        let mut table = OperationTable::<_>::new();
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
        assert_eq!(table.generations.len(), 1, "places are used again");
    }

    #[test]
    fn no_receive_has_the_identifier_of_a_send() {
        let (mut sends, mut receives) =
            (OperationTable::<_>::new(), OperationTable::<_, OF_RECEIVE>::new());
        for round in 0..3000 {
            let (send, receive) = (sends.insert(round), receives.insert(round));
            assert_eq!((sends.get(receive), receives.get(send)), (None, None));
            assert_eq!((sends.get(send), receives.get(receive)), (Some(&round), Some(&round)));
            assert_eq!(receives.find(|_| true), [receive]);
            assert_eq!((sends.remove(send), receives.remove(receive)), (Some(round), Some(round)));
        }
    }

    #[test]
    fn live_identifiers_differ_and_made_up_ones_are_refused() {
        let mut table = OperationTable::<_>::new();
        let ids: Vec<_> = (0..100).map(|i| table.insert(i)).collect();
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
