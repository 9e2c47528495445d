//! Messages that are claimed, and received or discarded later.

use efa_rdm::{Accept, ReceiveId};

use super::{Posted, Run, Sent};

impl Run {
    /// Takes an unexpected message, if there is one that a random receive accepts.
    pub(super) fn claim(&mut self) {
        let at = self.random.usize(0..self.incarnations.len());
        let accept = match self.tag() {
            None => Accept::Untagged { source: None },
            Some(tag) => {
                let ignore = [0, 1, u64::MAX][self.random.usize(0..3)];
                Accept::Tagged { source: None, tag, ignore }
            }
        };
        let peeked = self.world.endpoint(at).peek(accept).unwrap();
        let claimed = self.world.endpoint(at).claim(accept).unwrap();
        assert_eq!(peeked, claimed.map(|(_, message)| message));
        if let Some((claim, message)) = claimed {
            let number = message.cq_data.unwrap() as usize;
            let sent = &mut self.sent[number];
            assert!(message.length == sent.size as u64 && message.tag == sent.tag);
            sent.claimed = true;
            self.claims.push((self.incarnations[at], claim, number));
        }
    }

    /// Receives a claimed message, or discards it.
    pub(super) fn end_claim(&mut self) {
        if self.claims.is_empty() {
            return;
        }
        let (at, claim, message) = self.claims.swap_remove(self.random.usize(0..self.claims.len()));
        if self.incarnations[at.end] != at {
            return;
        }
        let Sent { from, to, tag, .. } = self.sent[message];
        if self.random.u8(..) < 100 {
            let there = self.world.endpoint(at.end).discard(claim);
            self.sent[message].discarded |= there;
            assert!(there || self.failing || !self.sound(from, to));
            return;
        }
        let capacity = self.size();
        let context = self.posted.len() as u64;
        let buffer = vec![0; capacity].into();
        match self.world.endpoint(at.end).receive_claimed(claim, buffer, context) {
            Err(refused) => assert!(self.failing || !self.sound(from, to), "{}", refused.error),
            Ok(()) => self.posted.push(Posted {
                at,
                id: ReceiveId::MATCHED,
                source: None,
                tag: tag.map(|tag| (tag, u64::MAX)),
                capacity,
                many: false,
                taken: 0,
                rest: 0,
                cancelled: false,
                ended: false,
            }),
        }
    }
}
