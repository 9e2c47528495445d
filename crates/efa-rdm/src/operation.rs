//! A table of operations under way, whose identifiers travel on the wire.
//!
//! An identifier is an index and a generation. The generation of an entry changes when it is
//! freed, so that an identifier from the wire that is stale, or made up, is caught.
//!
//! ```text
//!                   31  30 ...... 22   21    20 ...... 10  9 ... 0
//!   first places     0 │ generation │ kind │ generation  │ index │   used most: 20 bits of generation
//!   others           1 │ generation │ kind │        index        │   9 bits
//! ```

use efa_proto::OpId;

use crate::completion::StartError;
use crate::table::Table;

/// Bits of the index: two million operations of a kind at a time.
const INDEX_BITS: u32 = 22;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
const MOST: usize = OF_RECEIVE as usize;
/// Bits of the index of a first place, and of its generation beside it.
const FIRST_BITS: u32 = 10;
const FIRST: u32 = 1 << FIRST_BITS;
const BESIDE_BITS: u32 = INDEX_BITS - 1 - FIRST_BITS;
/// Bits of the generation before the kind.
const BEFORE_BITS: u32 = u32::BITS - 1 - INDEX_BITS;
/// In identifiers of places that are no first ones.
const OTHER: u32 = 1 << (u32::BITS - 1);

/// The generations of a place.
const fn generations(index: u32) -> u32 {
    if index < FIRST { 1 << (BEFORE_BITS + BESIDE_BITS) } else { 1 << BEFORE_BITS }
}

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
        Self::name(index, generation)
    }

    #[inline(always)]
    const fn name(index: u32, generation: u32) -> OpId {
        if index < FIRST {
            let (before, beside) = (generation >> BESIDE_BITS, generation % (1 << BESIDE_BITS));
            OpId(before << INDEX_BITS | KIND | beside << FIRST_BITS | index)
        } else {
            OpId(OTHER | generation << INDEX_BITS | KIND | index)
        }
    }

    /// The place of the operation of this name, if that is not of an earlier one.
    #[inline(always)]
    fn index(&self, id: OpId) -> Option<u32> {
        let of = if id.0 & OTHER == 0 { FIRST - 1 } else { INDEX_MASK };
        let index = (id.0 ^ KIND) & of;
        let generation = *self.generations.get(index as usize)?;
        (Self::name(index, generation) == id).then_some(index)
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
            *generation = (*generation + 1) % generations(index);
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
    use std::collections::HashSet;

    use super::*;

    // conformance: A122
    #[test]
    fn stale_identifiers_are_caught_over_a_million_reuses() {
        let mut table = OperationTable::<_>::new();
        let mut stale: Vec<OpId> = Vec::new();
        for round in 0..1_000_000_u32 {
            let id = table.insert(round);
            assert_eq!(table.get(id), Some(&round));
            // The first ones of all, and the last one.
            for old in &stale {
                assert_ne!(*old, id, "not used again, after {round}");
                assert_eq!(table.get(*old), None);
                assert_eq!(table.remove(*old), None);
            }
            assert_eq!(table.remove(id), Some(round));
            assert_eq!(table.get_mut(id), None);
            stale.truncate(2);
            stale.push(id);
        }
        assert_eq!(table.generations.len(), 1, "places are used again");
    }

    #[test]
    fn names_of_places_beyond_the_first_ones_are_their_own() {
        let mut receives = OperationTable::<_, OF_RECEIVE>::new();
        let first: Vec<_> = (0..=FIRST).map(|index| receives.insert(index)).collect();
        let mut names = first.clone();
        for round in 1..generations(FIRST) {
            let last = names[names.len() - 1];
            assert!(receives.remove(last).is_some());
            names.push(receives.insert(round));
            assert_eq!(receives.get(last), None);
        }
        let different: HashSet<_> = names.iter().collect();
        assert_eq!(different.len(), names.len());
        assert!(names.iter().all(|id| id.0 & OF_RECEIVE != 0));
        for (index, id) in (0..).zip(&first[..FIRST as usize]) {
            assert_eq!(receives.get(*id), Some(&index));
            assert_eq!(receives.get(OpId(id.0 ^ OTHER)), None);
        }
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
