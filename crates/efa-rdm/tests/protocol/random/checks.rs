//! What holds at the end of a run.

use std::collections::BTreeSet;

use efa_device::Region;

use super::{Disaster, OneSided, Run, What};
use crate::world::pattern;

impl Run {
    pub(super) fn assert_all_ended(&mut self) {
        for (id, sent) in self.sent.iter().enumerate() {
            assert!(
                sent.ended || self.incarnations[sent.from.end] != sent.from,
                "send {id}: {sent:?}"
            );
        }
        for (id, operation) in self.one_sided.iter().enumerate() {
            let OneSided { from, to, what, size, cq_data, ended, reported, .. } = operation;
            if self.incarnations[from.end] != *from {
                continue;
            }
            assert!(ended.is_some(), "{id} has not ended: {operation:?}");
            if *what == What::Write && *ended == Some(Ok(())) && self.sound(*from, *to) {
                let mut bytes = vec![0; *size];
                operation.memory.read(0, &mut bytes);
                assert!(bytes == pattern(*size, id as u64), "{id} was not written");
                assert_eq!(reported, cq_data, "{id}: {operation:?}");
            }
        }
        if self.disaster == Disaster::None && !self.failing {
            for (end, counter) in self.counters.iter().enumerate() {
                let of = |operation: &&OneSided| {
                    operation.what == What::Count
                        && operation.to.end == end
                        && operation.ended == Some(Ok(()))
                };
                let mut value = [0; 8];
                counter.read(0, &mut value);
                let counted = self.one_sided.iter().filter(of).count() as u64;
                assert_eq!(u64::from_ne_bytes(value), counted, "the counter of {end}");
            }
        }
        for (id, posted) in self.posted.iter().enumerate() {
            if self.incarnations[posted.at.end] == posted.at {
                assert!(posted.ended, "receive {id}: {posted:?}");
                let parts = posted.taken + posted.rest;
                assert!(!posted.many || parts == posted.capacity, "receive {id}: {posted:?}");
            }
        }
        for end in 0..self.incarnations.len() {
            let held = self.world.endpoint(end).packets_held();
            assert!(self.world.endpoint(end).is_quiet() && held.sending == 0, "{held:?}");
            if self.disaster == Disaster::None && !self.failing {
                assert_eq!(held.held, 0, "end {end}");
                assert_eq!(self.world.endpoint(end).statistics().dropped, 0, "end {end}");
            }
        }
    }

    /// No message passed by a receive that waited to the end to one posted later.
    pub(super) fn assert_posted_order(&self, waited: &BTreeSet<usize>) {
        for message in &self.sent {
            let Some(later) = message.went_to.filter(|_| !message.claimed) else { continue };
            for (id, earlier) in self.posted[..later].iter().enumerate() {
                let passed = waited.contains(&id) && earlier.accepts(message);
                assert!(!passed, "{message:?} passed by {id}: {earlier:?}");
            }
        }
    }

    /// Of two messages of one sender and two receives that take both, the first went to the first.
    pub(super) fn assert_sending_order(&self) {
        for (second, b) in self.sent.iter().enumerate() {
            let Some(receive_b) = b.went_to.filter(|_| !b.claimed) else { continue };
            if self.broken.contains(&Self::pair(b.from, b.to)) {
                continue;
            }
            for (first, a) in self.sent[..second].iter().enumerate() {
                let Some(receive_a) = a.went_to.filter(|_| !a.claimed) else { continue };
                let comparable = a.from == b.from
                    && self.posted[receive_a].accepts(b)
                    && self.posted[receive_b].accepts(a);
                assert!(
                    !comparable || receive_a <= receive_b,
                    "messages {first} and {second} went to {receive_a} and {receive_b}"
                );
            }
        }
    }
}
