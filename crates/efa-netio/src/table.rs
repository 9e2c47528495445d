//! Who has subscribed to what.

use hashbrown::HashMap;
use slotmap::SlotMap;
use smallvec::SmallVec;

use crate::event::Tag;
use crate::ids::ConnectionKey;

slotmap::new_key_type! {
    struct TagKey;
}

/// A tag, and where its subscribers were found the last time. It saves a publication the search for the tag, and never
/// goes stale: what has changed since is noticed by one comparison.
#[derive(Clone, Copy, Debug)]
pub struct Lookup {
    tag: Tag,
    found: TagKey,
}

impl Lookup {
    /// The tag, not looked up yet.
    #[must_use]
    pub fn new(tag: Tag) -> Self {
        Self { tag, found: TagKey::default() }
    }

    /// The tag.
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.tag
    }
}

#[derive(Default)]
pub(crate) struct Table {
    keys: HashMap<Tag, TagKey>,
    entries: SlotMap<TagKey, Entry>,
}

struct Entry {
    tag: Tag,
    subscribers: SmallVec<[ConnectionKey; 4]>,
}

impl Table {
    /// The subscribers of a tag; none if nobody has subscribed.
    #[inline]
    pub(crate) fn find(&self, lookup: &mut Lookup) -> &[ConnectionKey] {
        // A key that another publisher's table gave may exist here, for another tag or for this one.
        if let Some(entry) = self.entries.get(lookup.found)
            && entry.tag == lookup.tag
        {
            return &entry.subscribers;
        }
        self.search(lookup)
    }

    #[cold]
    fn search(&self, lookup: &mut Lookup) -> &[ConnectionKey] {
        let Some(key) = self.keys.get(&lookup.tag) else { return &[] };
        lookup.found = *key;
        &self.entries[*key].subscribers
    }

    /// Adds a subscriber, who isn't there yet.
    pub(crate) fn insert(&mut self, tag: Tag, subscriber: ConnectionKey) {
        let entries = &mut self.entries;
        let key = *self
            .keys
            .entry(tag)
            .or_insert_with(|| entries.insert(Entry { tag, subscribers: SmallVec::new() }));
        entries[key].subscribers.push(subscriber);
    }

    /// Removes a subscriber, if it is there. The others keep their order.
    pub(crate) fn remove(&mut self, tag: Tag, subscriber: ConnectionKey) {
        let Some(key) = self.keys.get(&tag) else { return };
        let subscribers = &mut self.entries[*key].subscribers;
        subscribers.retain(|other| *other != subscriber);
        if subscribers.is_empty() {
            self.entries.remove(*key);
            self.keys.remove(&tag);
        }
    }

    /// How many tags have subscribers.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use slotmap::KeyData;

    use super::*;

    fn subscriber(number: u64) -> ConnectionKey {
        KeyData::from_ffi(1 << 32 | number).into()
    }

    proptest! {
        // conformance: D39 D65
        #[test]
        fn lookups_kept_over_changes_find_what_a_naive_table_has(
            steps in proptest::collection::vec((any::<bool>(), 0..4_u64, 0..4_u64), 0..60),
        ) {
            let mut table = Table::default();
            let mut naive = BTreeMap::<Tag, Vec<u64>>::new();
            let mut kept = [0, 1, 2, 3].map(Lookup::new);
            for (inserts, tag, number) in steps {
                let subscribers = naive.entry(tag).or_default();
                if inserts && !subscribers.contains(&number) {
                    subscribers.push(number);
                    table.insert(tag, subscriber(number));
                } else if !inserts {
                    subscribers.retain(|other| *other != number);
                    table.remove(tag, subscriber(number));
                }
                naive.retain(|_, subscribers| !subscribers.is_empty());
                prop_assert_eq!(table.len(), naive.len());
                for lookup in &mut kept {
                    let expected: Vec<_> = naive
                        .get(&lookup.tag())
                        .into_iter()
                        .flatten()
                        .map(|number| subscriber(*number))
                        .collect();
                    prop_assert_eq!(table.find(lookup), &expected[..]);
                    prop_assert_eq!(table.find(&mut Lookup::new(lookup.tag())), &expected[..]);
                }
            }
        }
    }
}
