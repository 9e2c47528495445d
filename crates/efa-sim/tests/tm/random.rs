//! Long random runs against a reference matcher: two lists in posting and arrival order, where the first
//! match wins.

use efa_match::Location;
use efa_proto::tm::Tmh;
use efa_sim::tm::{ReceiveError, SgeList, TmReceiverOptions};

use crate::net::{self, Net};

struct Receive {
    tag: u64,
    ignore: u64,
    post: Option<efa_match::PostId>,
}

/// The reference: decides which message goes to which receive.
struct Lists {
    receives: Vec<(u64, Receive)>,
    messages: Vec<(u64, u64)>,
}

impl Lists {
    /// Matches messages with receives, both in order, and removes the matched ones.
    fn pair(&mut self, cancelled: &[u64]) -> Vec<(u64, u64)> {
        self.receives.retain(|(context, _)| !cancelled.contains(context));
        let mut pairs = Vec::new();
        self.messages.retain(|&(message, tag)| {
            let matches = |(_, receive): &(u64, Receive)| {
                (tag | receive.ignore) == (receive.tag | receive.ignore)
            };
            let found = self.receives.iter().position(matches);
            if let Some(at) = found {
                pairs.push((self.receives.remove(at).0, message));
            }
            found.is_none()
        });
        pairs
    }
}

/// Sends messages from one sender, so that they arrive in order. The payload is the message's number,
/// which identifies the message in a completion.
fn run(seed: u64, options: TmReceiverOptions, rounds: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut net = Net::new(1, options, seed);
    let mut lists = Lists { receives: Vec::new(), messages: Vec::new() };
    let (mut next_receive, mut next_message) = (0, 0);
    for round in 0..rounds {
        let mut cancelled = Vec::new();
        let mut completed = Vec::new();
        for _ in 0..random.usize(1..80) {
            match random.u32(..16) {
                0..5 => {
                    let (tag, ignore) =
                        (random.u64(..6), *random.choice(&[0, 0, 0, 1, !0]).unwrap());
                    let buffer = SgeList::zeroed(200);
                    let post = net.receiver.post(next_receive, tag, ignore, buffer).unwrap();
                    lists.receives.push((next_receive, Receive { tag, ignore, post }));
                    next_receive += 1;
                }
                // At most 24 messages wait, fewer than the SRQ buffers, so that no message is refused.
                5..10 if lists.messages.len() < 24 => {
                    let tag = random.u64(..6);
                    let header = Tmh { app_ctx: next_message, tag };
                    let sender = &mut net.senders[0];
                    match random.u32(..4) {
                        0 => {
                            let region = sender.register(vec![next_message as u8; 150]);
                            sender.rendezvous(header, region, b"").unwrap();
                        }
                        1 => sender.eager(header, &[next_message as u8; 150]),
                        _ => sender.eager(header, &[next_message as u8; 20]),
                    }
                    lists.messages.push((next_message.into(), tag));
                    next_message += 1;
                }
                10 => {
                    if let Some((_, Receive { post: Some(post), .. })) =
                        random.choice(&lists.receives)
                    {
                        net.receiver.cancel(*post);
                    }
                }
                _ => {
                    for _ in 0..random.u32(..8) {
                        net.step();
                    }
                }
            }
            let locations = lists.receives.iter().filter_map(|(_, receive)| receive.post);
            let locations = locations.filter_map(|post| net.receiver.offload().location(post));
            assert!(
                locations.is_sorted_by_key(|location| location == Location::Software),
                "seed {seed}, {round}"
            );
        }
        for received in net.completed() {
            match received.result {
                Ok((info, len)) => {
                    assert!(received.buffer.gather(len).iter().all(|&b| b == info.app_ctx as u8));
                    completed.push((received.context, u64::from(info.app_ctx)));
                }
                Err(ReceiveError::Cancelled) => cancelled.push(received.context),
                Err(error) => panic!("{error}"),
            }
        }
        let mut expected = lists.pair(&cancelled);
        completed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(completed, expected, "seed {seed}, round {round}");
        assert_eq!(net.senders[0].stray(), 0);
    }
    assert!(next_message > 1_000);
}

// conformance: B3 B11 B14 B17 B33
#[test]
fn random_runs_match_like_two_lists_with_any_device_list() {
    for (seed, max_num_tags) in [(1, 0), (2, 1), (3, 2), (4, 8), (5, 64), (6, 8), (7, 8)] {
        run(seed, net::options(max_num_tags), 200);
    }
}

// conformance: B63
#[test]
fn random_runs_match_like_two_lists_while_the_count_wraps() {
    let first_count = u32::MAX - 100;
    run(11, TmReceiverOptions { first_count, ..net::options(4) }, 200);
}
