//! Bytes of unexpected messages, charged to the queue pairs that sent them.
//!
//! ```text
//!   queue pair ─┬─ living incarnation ──► in its state: counted for each packet
//!               └─ former incarnations ─► Left: exists while messages of theirs are kept
//! ```

use hashbrown::HashTable;
use slab::Slab;

use crate::hash::mix;
use crate::lists::Lists;

/// A queue pair of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuePairKey {
    pub(crate) gid: [u8; 16],
    pub(crate) qpn: u16,
}

impl QueuePairKey {
    pub(crate) fn hash(&self, seed: u64) -> u64 {
        let gid = u128::from_le_bytes(self.gid);
        mix(mix(seed, gid as u64, (gid >> 64) as u64), u64::from(self.qpn), 0)
    }
}

/// What former incarnations of a queue pair left: complete messages that nobody has received.
#[derive(Debug)]
struct Left {
    queue_pair: QueuePairKey,
    bytes: usize,
}

/// Who is charged: a slot of a living peer's state, or what former incarnations left, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charged {
    Living(u32),
    Left(u32),
}

impl Charged {
    /// A number of its own for each, for [`Lists`].
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::Living(slot) => slot * 2,
            Self::Left(index) => index * 2 + 1,
        }
    }

    const fn of_number(number: u32) -> Self {
        if number & 1 == 0 { Self::Living(number / 2) } else { Self::Left(number / 2) }
    }
}

/// The charges of all queue pairs. Those of living incarnations are in their states.
#[derive(Debug)]
pub(crate) struct Charges {
    left: Slab<Left>,
    by_queue_pair: HashTable<u32>,
    /// Everyone charged, by the number of bits of their bytes.
    by_size: Lists,
    seed: u64,
}

impl Charges {
    pub(crate) fn new(seed: u64) -> Self {
        Self { left: Slab::new(), by_queue_pair: HashTable::new(), by_size: Lists::default(), seed }
    }

    /// Whether no former incarnation of any queue pair left messages.
    #[inline]
    pub(crate) fn nothing_left(&self) -> bool {
        self.left.is_empty()
    }

    /// What former incarnations of a queue pair left: its index, and its bytes.
    pub(crate) fn left_by(&self, queue_pair: &QueuePairKey) -> Option<(u32, usize)> {
        let is_it = |index: &u32| self.left[*index as usize].queue_pair == *queue_pair;
        let index = *self.by_queue_pair.find(queue_pair.hash(self.seed), is_it)?;
        Some((index, self.left[index as usize].bytes))
    }

    /// A former incarnation leaves messages of so many bytes.
    pub(crate) fn leave(&mut self, queue_pair: QueuePairKey, bytes: usize) -> u32 {
        let Self { left, by_queue_pair, seed, .. } = self;
        let entry = by_queue_pair.entry(
            queue_pair.hash(*seed),
            |of| left[*of as usize].queue_pair == queue_pair,
            |of| left[*of as usize].queue_pair.hash(*seed),
        );
        let index =
            *entry.or_insert_with(|| left.insert(Left { queue_pair, bytes: 0 }) as u32).get();
        let left = &mut left[index as usize].bytes;
        let before = *left;
        *left += bytes;
        self.changed(Charged::Left(index), before, before + bytes);
        index
    }

    /// A message that a former incarnation left is gone.
    pub(crate) fn left_is_gone(&mut self, queue_pair: &QueuePairKey, bytes: usize) {
        let Some((index, before)) = self.left_by(queue_pair) else {
            return debug_assert_eq!(bytes, 0, "not charged");
        };
        let after = before - bytes;
        self.left[index as usize].bytes = after;
        self.changed(Charged::Left(index), before, after);
        if after == 0 {
            self.left.remove(index as usize);
            let entry =
                self.by_queue_pair.find_entry(queue_pair.hash(self.seed), |of| *of == index);
            if let Ok(entry) = entry {
                entry.remove();
            }
        }
    }

    /// The bytes of one charged have changed.
    #[inline]
    pub(crate) fn changed(&mut self, charged: Charged, before: usize, after: usize) {
        let to = size(after);
        if size(before) != to {
            self.resized(charged, to);
        }
    }

    /// The bytes of one charged have now so many bits.
    #[inline(never)]
    fn resized(&mut self, charged: Charged, to: u32) {
        self.by_size.remove(charged.number());
        if to > 0 {
            self.by_size.push(to, charged.number());
        }
    }

    /// One who is charged with more than half as much as any other.
    pub(crate) fn most(&self) -> Option<Charged> {
        (1..=usize::BITS).rev().find_map(|size| self.by_size.first(size)).map(Charged::of_number)
    }

    /// The queue pair whose former incarnations left this.
    pub(crate) fn left_at(&self, index: u32) -> QueuePairKey {
        self.left[index as usize].queue_pair
    }

    /// Bytes of all that former incarnations left.
    #[cfg(test)]
    pub(crate) fn all_left(&self) -> impl Iterator<Item = (Charged, usize)> {
        self.left.iter().map(|(index, left)| (Charged::Left(index as u32), left.bytes))
    }
}

/// The number of bits of a number of bytes.
const fn size(bytes: usize) -> u32 {
    usize::BITS - bytes.leading_zeros()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use efa_device::{Device, Qkey, Qpn, QueuePair, QueuePairAddress, QueuePairOptions, Time};
    use efa_proto::{
        Connid, Header, MsgId, OpId, RawAddress, RawAddressForm, ReqOptions, Rtm, RtmKind,
    };
    use efa_sim::local::{LocalFabric, LocalOptions, LocalQueuePair, Reorder};
    use proptest::prelude::*;

    use crate::bounds::Bounds;
    use crate::config::Config;
    use crate::endpoint::{Accept, Endpoint};
    use crate::held;

    type End = Endpoint<LocalQueuePair, Vec<u8>>;

    /// The bytes of kept packets equal the sum of all charges, and those of each peer its charge.
    fn check(end: &mut End) -> usize {
        let cost = |end: &End, key: u32| -> usize {
            let chain = end.matching.messages.get(key).unwrap().packets;
            end.matching.held.chain(chain).map(|bytes| held::cost(bytes.len())).sum()
        };
        let kept: usize = end.matching.messages.keys().iter().map(|key| cost(end, *key)).sum();
        assert_eq!(kept, end.matching.unexpected.bytes);
        let mut charged = 0;
        for (sender, bytes) in end.core().peers.all_charged() {
            let of_sender = end.matching.messages.of(sender);
            assert_eq!(of_sender.into_iter().map(|key| cost(end, key)).sum::<usize>(), bytes);
            charged += bytes;
        }
        assert_eq!(charged, kept);
        kept
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// The next message of a queue pair, of one packet or the first of several.
        Begin {
            qpn: u16,
            length: u64,
            kind: u8,
        },
        /// A packet of a message that has begun.
        Segment {
            qpn: u16,
            msg_id: u32,
            offset: u64,
        },
        /// A packet ahead.
        Ahead {
            qpn: u16,
        },
        Restart {
            qpn: u16,
        },
        Receive {
            times: u8,
        },
        Remove {
            qpn: u16,
        },
        /// The application claims a message.
        Claim,
        /// It receives or discards what it claimed, oldest first.
        EndClaim {
            discard: bool,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        let qpn = 10_u16..13;
        prop_oneof![
            6 => (qpn.clone(), 0_u64..3000, 0_u8..4)
                .prop_map(|(qpn, length, kind)| Step::Begin { qpn, length, kind }),
            4 => (qpn.clone(), 0_u32..4, 0_u64..3)
                .prop_map(|(qpn, msg_id, offset)| Step::Segment { qpn, msg_id, offset }),
            1 => qpn.clone().prop_map(|qpn| Step::Ahead { qpn }),
            2 => qpn.clone().prop_map(|qpn| Step::Restart { qpn }),
            2 => (1_u8..4).prop_map(|times| Step::Receive { times }),
            1 => qpn.prop_map(|qpn| Step::Remove { qpn }),
            2 => Just(Step::Claim),
            1 => any::<bool>().prop_map(|discard| Step::EndClaim { discard }),
        ]
    }

    proptest! {
        #[test]
        fn charged_bytes_equal_kept_bytes_in_any_history(
            steps in proptest::collection::vec(step(), 1..150)
        ) {
            let options = LocalOptions::default().with(|options| options.reorder = Reorder::None);
            let network = LocalFabric::new(options);
            let queue_pair = network.open().create_queue_pair(QueuePairOptions::default()).unwrap();
            let config = Config::default().with(|config| {
                config.bounds = Bounds::default().with(|bounds| bounds.unexpected_per_peer = 12_000);
            });
            let mut end = End::new(queue_pair, config).unwrap();
            let to = end.queue_pair().address();
            let host = network.open();
            let sender = |qpn, connid| {
                let options = QueuePairOptions::default().with(|of| of.qkey = Qkey(connid));
                let mut sender = host.create_queue_pair_at(Qpn(qpn), options).unwrap();
                // For the HANDSHAKE, and some answers.
                for _ in 0..4 {
                    let packet = sender.allocate_packet().unwrap();
                    sender.post_receive(packet).unwrap();
                }
                sender
            };
            // By queue pair: connid, next msg_id.
            let mut senders = [(1_u32, 0_u32); 3];
            let mut queue_pairs = [10, 11, 12].map(|qpn| Some(sender(qpn, 1)));
            let gid = host.gid();
            let mut now = Time::ZERO;
            let accept = Accept::Tagged { source: None, tag: 1, ignore: 0 };
            let mut claims = std::collections::VecDeque::new();
            let at = |qpn: u16| usize::from(qpn - 10);
            let from = |qpn| QueuePairAddress { gid, qpn: Qpn(qpn), ..to };
            for step in steps {
                let packet = |qpn: u16, connid, msg_id, kind, payload: usize| {
                    let address = RawAddress { gid: gid.0, qpn, connid: Connid(connid) };
                    let raw_address = Some((address, RawAddressForm::Padded));
                    let options = ReqOptions { raw_address, cq_data: None, connid: None };
                    let rtm = Rtm { msg_id: MsgId(msg_id), tag: Some(1), kind, options };
                    let header = Header::Rtm(rtm);
                    let mut bytes = vec![0; header.len() + payload];
                    header.emit(&mut bytes).unwrap();
                    network.inject(from(qpn), to, &bytes);
                };
                match step {
                    Step::Begin { qpn, length, kind } => {
                        let (connid, next) = &mut senders[at(qpn)];
                        let (send_id, credit_request) = (OpId(1), 1);
                        let msg_length = length + 1000;
                        let (kind, payload) = match kind {
                            0 | 1 => (RtmKind::Eager, length as usize),
                            2 => (RtmKind::Medium { msg_length: 3000, seg_offset: 0 }, 1000),
                            _ => (
                                RtmKind::LongCts {
                                    msg_length, send_id, credit_request, read_nack: false,
                                },
                                1000,
                            ),
                        };
                        packet(qpn, *connid, *next, kind, payload);
                        *next += 1;
                    }
                    Step::Segment { qpn, msg_id, offset } => {
                        let (connid, next) = senders[at(qpn)];
                        let kind =
                            RtmKind::Medium { msg_length: 3000, seg_offset: offset * 1000 };
                        packet(qpn, connid, next.saturating_sub(msg_id), kind, 1000);
                    }
                    Step::Ahead { qpn } => {
                        let (connid, next) = senders[at(qpn)];
                        packet(qpn, connid, next + 2, RtmKind::Eager, 100);
                    }
                    Step::Restart { qpn } => {
                        let (connid, _) = senders[at(qpn)];
                        senders[at(qpn)] = (connid + 1, 0);
                        queue_pairs[at(qpn)] = None;
                        queue_pairs[at(qpn)] = Some(sender(qpn, connid + 1));
                    }
                    Step::Receive { times } => {
                        for _ in 0..times {
                            end.receive(accept, vec![0; 4000], 0).unwrap();
                        }
                    }
                    Step::Claim => claims.extend(end.claim(accept).unwrap()),
                    Step::EndClaim { discard } => match claims.pop_front() {
                        Some((claim, _)) if discard => {
                            end.discard(claim);
                        }
                        // It may have ended with its sender.
                        Some((claim, _)) => drop(end.receive_claimed(claim, vec![0; 4000], 0)),
                        None => {}
                    },
                    Step::Remove { qpn } => {
                        let (connid, _) = senders[at(qpn)];
                        let address = RawAddress { gid: gid.0, qpn, connid: Connid(connid) };
                        if let Some(peer) = end.find_peer(&address) {
                            end.remove_peer(peer);
                        }
                    }
                }
                for _ in 0..3 {
                    now += Duration::from_micros(100);
                    end.progress(now);
                }
                check(&mut end);
            }
            end.end_operations();
            for (claim, _) in claims {
                end.discard(claim);
            }
            check(&mut end);
            while end.matching.unexpected.bytes > 0 {
                end.receive(accept, vec![0; 4000], 0).unwrap();
                end.progress(now);
                check(&mut end);
            }
            for peer in 0..end.core().peers.len() {
                end.remove_peer(crate::ids::PeerId(peer as u32));
            }
            prop_assert_eq!(check(&mut end), 0);
            prop_assert!(end.core().peers.charges.nothing_left());
            prop_assert_eq!(end.matching.ops.assembling.len(), 0);
            prop_assert_eq!(end.matching.held.len(), 0);
        }
    }
}
