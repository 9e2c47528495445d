//! The device's half: the matching list of a TM-SRQ, which finds the entry for a tag and holds entries
//! back ("RDMA tag matching offload", sections "RDMA tag-matching offload" and "Managing TM receive
//! buffers").
//!
//! ```text
//!   oldest                      live │ held back          youngest
//!     e1  e2  e3  e4  e5  e6  e7  e8 │ e9  e10  e11
//!     ──► messages match here        │ added while software had not handled all
//!                                    │ unexpected messages; live once it has
//! ```
//!
//! The search is linear, as in a device with a few thousand entries.

use std::collections::VecDeque;

/// Whether entries are held back until software has handled all unexpected messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Synchronisation {
    /// They are, as the proposal requires.
    #[default]
    Required,
    /// They are live at once: a broken device, to show what the rule is for.
    Ignored,
}

/// An entry of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The device's handle of it.
    pub handle: u32,
    /// The tag.
    pub tag: u64,
    /// The tag bits compared.
    pub mask: u64,
}

impl Entry {
    /// Whether it accepts a message with this tag: all bits in the mask are equal.
    #[must_use]
    pub fn accepts(&self, tag: u64) -> bool {
        (self.tag ^ tag) & self.mask == 0
    }
}

/// The entries in the order in which they were added, and the count of unexpected messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MatchList {
    synchronisation: Synchronisation,
    entries: VecDeque<Entry>,
    /// Entries from here on are held back.
    live: usize,
    /// Number of unexpected messages, wrapping.
    unexpected: u32,
    /// How many of them software has reported as handled.
    reported: u32,
}

impl MatchList {
    /// An empty list, whose count of unexpected messages starts at `count`.
    #[must_use]
    pub fn new(synchronisation: Synchronisation, count: u32) -> Self {
        let entries = VecDeque::new();
        Self { synchronisation, entries, live: 0, unexpected: count, reported: count }
    }

    /// Appends an entry; software has handled `handled` unexpected messages.
    pub fn add(&mut self, entry: Entry, handled: u32) {
        self.entries.push_back(entry);
        self.sync(handled);
    }

    /// Removes and returns the entry with this handle, if there is one; software has handled `handled`
    /// unexpected messages.
    pub fn delete(&mut self, handle: u32, handled: u32) -> Option<Entry> {
        let found = self.entries.iter().position(|entry| entry.handle == handle);
        let entry = found.and_then(|at| self.remove(at));
        self.sync(handled);
        entry
    }

    /// Software has handled `handled` unexpected messages. If these are all, all entries become live.
    pub fn sync(&mut self, handled: u32) {
        self.reported = handled;
        if !self.sync_required() || self.synchronisation == Synchronisation::Ignored {
            self.live = self.entries.len();
        }
    }

    /// Whether software has yet to report unexpected messages.
    #[must_use]
    pub fn sync_required(&self) -> bool {
        self.reported != self.unexpected
    }

    /// Position of the entry for a message with this tag: the oldest live one that accepts it.
    #[must_use]
    pub fn find(&self, tag: u64) -> Option<usize> {
        self.entries.iter().take(self.live).position(|entry| entry.accepts(tag))
    }

    /// Removes the entry at this position.
    pub fn remove(&mut self, at: usize) -> Option<Entry> {
        let entry = self.entries.remove(at)?;
        if at < self.live {
            self.live -= 1;
        }
        Some(entry)
    }

    /// Counts a message without an entry.
    pub fn count_unexpected(&mut self) {
        self.unexpected = self.unexpected.wrapping_add(1);
    }

    /// Number of entries, live or held back.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of live entries.
    #[must_use]
    pub fn live_len(&self) -> usize {
        self.live
    }

    /// Number of unexpected messages, wrapping.
    #[must_use]
    pub fn unexpected(&self) -> u32 {
        self.unexpected
    }
}
