//! Doubly linked lists through the slots of a table: what belongs to an owner is found from the owner, and
//! an entry leaves its list without a search.
//!
//! ```text
//!   head of list 3 ⇄ slot 17 ⇄ slot 4 ⇄ slot 250 ⇄ head of list 3
//! ```
//!
//! The lists are circular, so that a removal needs no owner.

/// Set in links that name the head of a list.
const HEAD: u32 = 1 << 31;

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

impl Link {
    /// Of a slot in no list, and of the head of an empty list.
    const fn alone(at: u32) -> Self {
        Self { before: at, after: at }
    }
}

/// Numbered lists. A slot is in one of them or in none. Slots and lists are numbered below 2³¹.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    slots: Vec<Link>,
    heads: Vec<Link>,
}

impl Lists {
    #[inline(always)]
    fn at(&mut self, at: u32) -> &mut Link {
        if at & HEAD == 0 {
            &mut self.slots[at as usize]
        } else {
            &mut self.heads[(at ^ HEAD) as usize]
        }
    }

    /// Appends a slot, which is in no list, to a list.
    #[inline(always)]
    pub(crate) fn push(&mut self, list: u32, slot: u32) {
        if slot as usize >= self.slots.len() || list as usize >= self.heads.len() {
            self.grow(list, slot);
        }
        let head = &mut self.heads[list as usize];
        let before = core::mem::replace(&mut head.before, slot);
        self.slots[slot as usize] = Link { before, after: list | HEAD };
        self.at(before).after = slot;
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, list: u32, slot: u32) {
        let (slots, heads) = (self.slots.len() as u32, self.heads.len() as u32);
        self.slots.extend((slots..=slot).map(Link::alone));
        self.heads.extend((heads..=list).map(|at| Link::alone(at | HEAD)));
    }

    /// Removes a slot from its list, if it is in one.
    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) {
        let Some(link) = self.slots.get_mut(slot as usize) else { return };
        let Link { before, after } = core::mem::replace(link, Link::alone(slot));
        self.at(before).after = after;
        self.at(after).before = before;
    }

    /// The first slot of a list.
    pub(crate) fn first(&self, list: u32) -> Option<u32> {
        self.heads.get(list as usize).map(|head| head.after).filter(|at| at & HEAD == 0)
    }

    /// The slots of a list.
    pub(crate) fn of(&self, list: u32) -> impl Iterator<Item = u32> {
        core::iter::successors(self.first(list), |at| {
            self.slots.get(*at as usize).map(|link| link.after).filter(|at| at & HEAD == 0)
        })
    }

    /// Moves all slots of the list `from` to the end of the list `to`, in constant time.
    pub(crate) fn append(&mut self, from: u32, to: u32) {
        let Some(first) = self.first(from) else { return };
        if to as usize >= self.heads.len() {
            self.grow(to, 0);
        }
        let Link { before: last, .. } =
            core::mem::replace(&mut self.heads[from as usize], Link::alone(from | HEAD));
        let before = core::mem::replace(&mut self.heads[to as usize].before, last);
        self.at(before).after = first;
        self.at(first).before = before;
        self.at(last).after = to | HEAD;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lists_equal_vectors_after_any_changes(
            steps in proptest::collection::vec((0_u32..4, 0_u32..5, 0_u32..20), 1..200)
        ) {
            let mut lists = Lists::default();
            let mut model = vec![Vec::new(); 5];
            for (kind, list, slot) in steps {
                if kind == 3 {
                    let to = slot % 5;
                    if to != list {
                        let moved = std::mem::take(&mut model[list as usize]);
                        model[to as usize].extend(moved);
                        lists.append(list, to);
                    }
                } else {
                    lists.remove(slot);
                    model.iter_mut().for_each(|of| of.retain(|at| *at != slot));
                    if kind > 0 {
                        lists.push(list, slot);
                        model[list as usize].push(slot);
                    }
                }
                for (list, expected) in (0..).zip(&model) {
                    prop_assert_eq!(&lists.of(list).collect::<Vec<_>>(), expected);
                    prop_assert_eq!(lists.first(list), expected.first().copied());
                }
            }
        }
    }
}
