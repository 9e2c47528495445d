//! A table of operations under way. Their identifiers (`send_id`, `recv_id`) travel in packets.
//!
//! An identifier is the index of a slot and its generation. The generation changes when the slot is
//! freed, so that a stale or forged identifier from the network is detected.
//!
//! ```text
//!                   31  30 ...... 22   21    20 ...... 10  9 ... 0
//!   first 1024 slots 0 │ generation │ kind │ generation  │ index │   20 bits of generation
//!   other slots      1 │ generation │ kind │        index        │   9 bits of generation
//! ```

use efa_proto::OpId;

use crate::completion::StartError;
use crate::lists::Lists;
use crate::storage::Table;

/// Bits of index and kind: two million operations of a kind at a time.
const INDEX_BITS: u32 = 22;
/// One less than indices: no identifier is 0xFFFFFFFF, which stands for none in PEER_ERROR after release 2.6.
const MOST: usize = OF_RECEIVE as usize - 1;
/// Bits of the index of one of the first slots.
const FIRST_BITS: u32 = 10;
const FIRST: u32 = 1 << FIRST_BITS;
/// Set in identifiers of slots that aren't among the first.
const OTHER: u32 = 1 << (u32::BITS - 1);

/// Set in identifiers of receives, so that no receive has the identifier of a send: a PEER_ERROR
/// doesn't say which of them it means.
pub(crate) const OF_RECEIVE: u32 = 1 << (INDEX_BITS - 1);

/// The operations of one kind; the bits of `KIND` are set in their identifiers.
#[derive(Debug)]
pub(crate) struct OperationTable<T, const KIND: u32 = 0> {
    operations: Table<T>,
    /// The identifier of the operation in each slot, or of the next one there.
    ids: Vec<OpId>,
    /// The operations with each peer.
    of_peer: Lists,
    most: usize,
}

impl<T, const KIND: u32> OperationTable<T, KIND> {
    pub(crate) fn new() -> Self {
        Self { operations: Table::new(), ids: Vec::new(), of_peer: Lists::default(), most: MOST }
    }

    /// Lowers the maximum number of operations.
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

    /// Returns `Busy` if the table is full.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        let limit = self.most;
        if self.is_full() { Err(StartError::Busy { limit }) } else { Ok(()) }
    }

    /// Whether peers may start no more operations when `count` of theirs are under way: at most half of
    /// the table is for peers.
    pub(crate) fn is_too_many_of_peers(&self, count: usize) -> bool {
        self.is_full() || count >= self.most / 2
    }

    /// The identifier of the first operation in slot `index`.
    const fn first_id(index: u32) -> OpId {
        OpId(if index < FIRST { KIND | index } else { OTHER | KIND | index })
    }

    /// The identifier of the operation after this one in the same slot: that of the next generation.
    #[inline(always)]
    const fn next_id(OpId(id): OpId) -> OpId {
        OpId(if id & OTHER == 0 {
            // The carry of the low part of the generation passes through the kind bit.
            let next = (id | OF_RECEIVE) + (1 << FIRST_BITS);
            next & !(OTHER | OF_RECEIVE) | KIND
        } else {
            id.wrapping_add(1 << INDEX_BITS) | OTHER
        })
    }

    /// The slot of an identifier; `None` if the identifier is stale or forged.
    #[inline(always)]
    fn index(&self, id: OpId) -> Option<u32> {
        let index = id.0 & if id.0 & OTHER == 0 { FIRST - 1 } else { OF_RECEIVE - 1 };
        (*self.ids.get(index as usize)? == id).then_some(index)
    }

    /// Adds an operation to a list. The caller has checked that the table isn't [full](Self::is_full).
    #[inline(always)]
    pub(crate) fn insert(&mut self, list: Option<u32>, operation: T) -> OpId {
        let index = self.operations.insert(operation);
        if let Some(list) = list {
            self.of_peer.push(list, index);
        }
        match self.ids.get(index as usize) {
            Some(id) => *id,
            None => self.grow(index),
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, index: u32) -> OpId {
        let id = Self::first_id(index);
        self.ids.push(id);
        id
    }

    #[inline(always)]
    pub(crate) fn get(&self, id: OpId) -> Option<&T> {
        self.operations.get(self.index(id)?)
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, id: OpId) -> Option<&mut T> {
        let index = self.index(id)?;
        self.operations.get_mut(index)
    }

    #[inline(always)]
    pub(crate) fn remove(&mut self, id: OpId) -> Option<T> {
        let index = self.index(id)?;
        let operation = self.operations.remove(index)?;
        self.of_peer.remove(index);
        if let Some(current) = self.ids.get_mut(index as usize) {
            *current = Self::next_id(id);
        }
        Some(operation)
    }

    /// Empties a list; returns the identifiers of its operations, which stay in the table.
    pub(crate) fn take_list(&mut self, list: u32) -> Vec<OpId> {
        let mut ids = Vec::new();
        while let Some(index) = self.of_peer.first(list) {
            self.of_peer.remove(index);
            ids.extend(self.ids.get(index as usize));
        }
        ids
    }

    /// The identifiers of the operations for which `wanted` returns true, by a search of the table.
    pub(crate) fn find(&self, mut wanted: impl FnMut(&T) -> bool) -> Vec<OpId> {
        let matching = self.operations.iter().filter(|(_, operation)| wanted(operation));
        matching.filter_map(|(index, _)| self.ids.get(index as usize).copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    // conformance: A122
    #[test]
    fn stale_operation_id_is_detected_over_a_million_reuses() {
        let mut table = OperationTable::<_>::new();
        let mut stale: Vec<OpId> = Vec::new();
        for round in 0..1_000_000_u32 {
            let id = table.insert(None, round);
            assert_eq!(table.get(id), Some(&round));
            // The first two identifiers, and the last one.
            for old in &stale {
                assert_ne!(*old, id, "identifier used again in round {round}");
                assert_eq!(table.get(*old), None);
                assert_eq!(table.remove(*old), None);
            }
            assert_eq!(table.remove(id), Some(round));
            assert_eq!(table.get_mut(id), None);
            stale.truncate(2);
            stale.push(id);
        }
        assert_eq!(table.ids.len(), 1, "the slot is used again");
    }

    #[test]
    fn operation_ids_of_first_and_other_slots_are_distinct() {
        let mut receives = OperationTable::<_, OF_RECEIVE>::new();
        let first: Vec<_> = (0..=FIRST).map(|index| receives.insert(None, index)).collect();
        let mut names = first.clone();
        for round in 1..1 << (u32::BITS - 1 - INDEX_BITS) {
            let last = names[names.len() - 1];
            assert!(receives.remove(last).is_some());
            names.push(receives.insert(None, round));
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
    fn operation_id_comes_back_only_after_all_generations_of_its_slot() {
        fn round<const KIND: u32>(index: u32) -> usize {
            let first = OperationTable::<(), KIND>::first_id(index);
            let ids = std::iter::successors(Some(first), |id| {
                assert_eq!(id.0 & OF_RECEIVE, KIND);
                Some(OperationTable::<(), KIND>::next_id(*id)).filter(|next| *next != first)
            });
            ids.count()
        }
        assert_eq!([round::<0>(0), round::<OF_RECEIVE>(FIRST - 1)], [1 << 20; 2]);
        let last = MOST as u32 - 1;
        assert_eq!([round::<0>(FIRST), round::<OF_RECEIVE>(last)], [1 << 9; 2]);
    }

    #[test]
    fn no_operation_has_the_identifier_that_stands_for_none() {
        type Receives = OperationTable<(), OF_RECEIVE>;
        let of_slot = |index: u32| {
            let first = Receives::first_id(index);
            std::iter::successors(Some(first), move |id| {
                Some(Receives::next_id(*id)).filter(|next| *next != first)
            })
        };
        let last = MOST as u32 - 1;
        assert!([FIRST - 1, FIRST, last].into_iter().flat_map(of_slot).all(|id| id.0 != u32::MAX));
        assert!(of_slot(last + 1).any(|id| id.0 == u32::MAX), "the next slot would have it");
    }

    #[test]
    fn operation_ids_of_sends_and_receives_are_disjoint() {
        let (mut sends, mut receives) =
            (OperationTable::<_>::new(), OperationTable::<_, OF_RECEIVE>::new());
        for round in 0..3000 {
            let (send, receive) = (sends.insert(None, round), receives.insert(None, round));
            assert_eq!((sends.get(receive), receives.get(send)), (None, None));
            assert_eq!((sends.get(send), receives.get(receive)), (Some(&round), Some(&round)));
            assert_eq!(receives.find(|_| true), [receive]);
            assert_eq!((sends.remove(send), receives.remove(receive)), (Some(round), Some(round)));
        }
    }

    #[test]
    fn forged_operation_id_finds_nothing() {
        let mut table = OperationTable::<_>::new();
        let ids: Vec<_> = (0..100).map(|i| table.insert(None, i)).collect();
        for (i, id) in ids.iter().enumerate() {
            assert_eq!(table.get(*id), Some(&i));
        }
        for forged in [100, u32::MAX, 1 << INDEX_BITS] {
            assert_eq!(table.get(OpId(forged)), None);
        }
        assert_eq!(table.find(|i| i % 50 == 7), [ids[7], ids[57]]);
        assert_eq!(table.len(), 100);
    }
}
