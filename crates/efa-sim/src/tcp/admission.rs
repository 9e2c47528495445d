//! Which connection makes room for a new one when [`max_peers`](super::TcpOptions::max_peers) are open.
//!
//! A sender that has presented a valid key is a peer; before that it may be anybody. A connection that was
//! closed for another costs its sender a new connection and no error, so an idle peer makes room too.
//!
//! | in this order | that was last heard of |
//! |---|---|
//! | a connection that has delivered nothing | [`GRACE`] ago or longer |
//! | while fewer than a quarter have delivered nothing: one that is quiet | [`GRACE`] ago or longer |
//! | one that has delivered nothing | at any time |
//! | one that is quiet, of an address that has at least two more than the new sender's | at any time |
//!
//! Of several, it is the oldest of the address that has the most: first of the IPv6 network (/64) with the
//! most, as somebody who has one address there may have all, then of the address in it.

use std::cmp::Reverse;
use std::net::Ipv6Addr;
use std::time::Duration;

use efa_device::{Gid, Time};

/// How long a connection has at least.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// No frame with a valid key has arrived.
    Unproven,
    /// Frames have arrived, and none waits.
    Quiet,
    /// Frames wait for buffers, or responses for the sender to take them.
    Occupied,
}

/// A connection as seen when room is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) key: usize,
    pub(super) gid: Gid,
    pub(super) standing: Standing,
    /// When it was accepted, or when its last frame arrived.
    pub(super) since: Time,
}

/// The network of an address: /64 of an IPv6 address; an IPv4 address itself.
fn network(gid: Gid) -> u128 {
    let address = Ipv6Addr::from(gid.0);
    match address.to_ipv4_mapped() {
        Some(_) => address.to_bits(),
        None => address.to_bits() >> 64,
    }
}

/// The key of the connection that makes room for one from `newcomer`; `None` if none does.
pub(super) fn to_drop(held: &[Held], newcomer: Gid, now: Time) -> Option<usize> {
    let is_old = |held: &&Held| now - held.since >= GRACE;
    let of = |standing| held.iter().filter(move |held| held.standing == standing);
    let unproven = of(Standing::Unproven).count();
    let may_take_quiet = unproven < (held.len() / 4).max(1);
    let chosen = pick(of(Standing::Unproven).filter(is_old))
        .or_else(|| pick(of(Standing::Quiet).filter(is_old)).filter(|_| may_take_quiet))
        .or_else(|| pick(of(Standing::Unproven)))
        .or_else(|| {
            pick(of(Standing::Quiet)).filter(|held_by| exceeds(held, held_by.gid, newcomer))
        });
    chosen.map(|held| held.key)
}

/// The oldest of the address with the most in the network with the most.
fn pick<'a>(held: impl Iterator<Item = &'a Held>) -> Option<&'a Held> {
    let mut sorted: Vec<_> = held.collect();
    sorted.sort_unstable_by_key(|held| (network(held.gid), held.gid, held.since, held.key));
    let oldest = |held: &[&Held]| held.iter().map(|held| held.since).min();
    let size = |held: &&[&Held]| (held.len(), Reverse(oldest(held)));
    let in_network = sorted.chunk_by(|one, other| network(one.gid) == network(other.gid));
    let most = in_network.max_by_key(size)?;
    let at_address = most.chunk_by(|one, other| one.gid == other.gid);
    at_address.max_by_key(size)?.first().copied()
}

/// Whether `holder` has more than its share compared with `newcomer`, so that one fewer is still as many.
fn exceeds(held: &[Held], holder: Gid, newcomer: Gid) -> bool {
    let count =
        |is_counted: &dyn Fn(Gid) -> bool| held.iter().filter(|held| is_counted(held.gid)).count();
    let (there, here) = if network(holder) == network(newcomer) {
        (count(&|gid| gid == holder), count(&|gid| gid == newcomer))
    } else {
        let of = |whose| count(&|gid| network(gid) == network(whose));
        (of(holder), of(newcomer))
    };
    there > here + 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Standing::{Occupied, Quiet, Unproven};
    use super::*;

    const MINUTE: u64 = 60_000;

    fn gid(address: &str) -> Gid {
        super::super::socket::gid_of(address.parse().unwrap())
    }

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    /// One connection for each, with its place as its key.
    fn held(all: &[(&str, Standing, u64)]) -> Vec<Held> {
        let all = all.iter().enumerate();
        all.map(|(key, &(address, standing, since))| Held {
            key,
            gid: gid(address),
            standing,
            since: at(since),
        })
        .collect()
    }

    fn dropped(all: &[(&str, Standing, u64)], newcomer: &str) -> Option<usize> {
        to_drop(&held(all), gid(newcomer), at(MINUTE))
    }

    #[test]
    fn oldest_that_delivered_nothing_makes_room_first() {
        let mut all = vec![("10.0.0.1", Quiet, 0); 8];
        all.extend([("10.0.0.1", Unproven, 9), ("10.0.0.1", Unproven, 8)]);
        assert_eq!(dropped(&all, "10.0.0.1"), Some(9));
        all[9].1 = Occupied;
        assert_eq!(dropped(&all, "10.0.0.1"), Some(8));
    }

    #[test]
    fn idle_peer_makes_room_while_new_connections_are_few() {
        let mut all = vec![("10.0.0.1", Quiet, 5); 8];
        all[3].2 = 4;
        all[6].1 = Unproven;
        all[6].2 = MINUTE;
        assert_eq!(dropped(&all, "10.0.0.1"), Some(3));
        all[0] = all[6];
        assert_eq!(dropped(&all, "10.0.0.1"), Some(0), "a quarter has delivered nothing");
    }

    #[test]
    fn busy_peer_makes_room_only_for_an_address_with_at_least_two_fewer() {
        let mut all = vec![("10.0.0.1", Quiet, MINUTE); 4];
        assert_eq!(dropped(&all, "10.0.0.1"), None);
        assert_eq!(dropped(&all, "10.0.0.2"), Some(0));
        all[0].0 = "10.0.0.2";
        assert_eq!(dropped(&all, "10.0.0.2"), Some(1), "three and one become two and two");
        all[1].0 = "10.0.0.2";
        assert_eq!(dropped(&all, "10.0.0.2"), None);
    }

    #[test]
    fn peer_whose_frames_or_responses_wait_is_never_dropped() {
        let all = [("10.0.0.1", Occupied, 0); 4];
        assert_eq!(dropped(&all, "10.0.0.1"), None);
        assert_eq!(dropped(&all, "10.0.0.2"), None);
    }

    #[test]
    fn address_with_the_most_makes_room_first() {
        for (many, one, newcomer) in [
            ("10.0.0.66", "10.0.0.1", "10.0.0.1"),
            // An attacker with another address for each connection, in one /64.
            ("2001:db8:0:1::", "2001:db8:0:2::1", "2001:db8:0:3::1"),
            ("fd77::66", "fd77::1", "fd77::2"),
            ("::1", "10.0.0.1", "10.0.0.2"),
        ] {
            for standing in [Unproven, Quiet] {
                let mut all = held(&[(many, standing, 50); 9]);
                if many.ends_with("::") {
                    (1..).zip(&mut all).for_each(|(n, held)| held.gid.0[15] = n);
                }
                all[7].since = at(49);
                all[2] = Held { key: 2, ..held(&[(one, standing, 0)])[0] };
                for newcomer in [newcomer, one, many] {
                    let dropped = to_drop(&all, gid(newcomer), at(MINUTE));
                    assert_eq!(dropped, Some(7), "{many} for {newcomer}");
                }
            }
        }
    }

    /// However many connections strangers of one address open, and in whatever order: of the peers of
    /// others, whose new connections deliver soon, all stay that are not idle.
    #[test]
    fn storm_of_strangers_takes_at_most_a_quarter_from_idle_peers() {
        let mut all = held(&[("10.0.0.1", Quiet, 0); 256]);
        let mut now = 2000;
        for held in &mut all[..128] {
            held.since = at(now);
        }
        for _ in 0..10_000 {
            let newcomer = gid("10.0.0.66");
            let key = to_drop(&all, newcomer, at(now)).unwrap();
            all[key] = Held { key, gid: newcomer, standing: Unproven, since: at(now) };
            now += 1;
            all[..128].iter_mut().for_each(|held| held.since = at(now));
        }
        let left = all.iter().filter(|held| held.standing == Quiet).count();
        assert_eq!(left, 192);
        // A new peer comes in, and stays until it has delivered, whatever comes meanwhile.
        let key = to_drop(&all, gid("10.0.0.2"), at(now)).unwrap();
        all[key] = Held { key, gid: gid("10.0.0.2"), standing: Unproven, since: at(now) };
        for _ in 0..1000 {
            let other = to_drop(&all, gid("10.0.0.66"), at(now + 999)).unwrap();
            assert_ne!(other, key);
            all[other].since = at(now + 999);
        }
    }

    proptest! {
        /// Nobody gains by more connections: who has most gives way, and an occupied one never.
        #[test]
        fn dropped_connection_is_not_of_a_smaller_address(
            all in prop::collection::vec((0..4_u8, 0..3_u8, 0..3000_u64), 1..40),
            newcomer in 0..5_u8,
        ) {
            let standing = |kind| [Unproven, Quiet, Occupied][usize::from(kind)];
            let named = |n: u8| Gid([[0xfd; 15].as_slice(), &[n]].concat().try_into().unwrap());
            let all: Vec<_> = all
                .iter()
                .enumerate()
                .map(|(key, &(n, kind, since))| {
                    Held { key, gid: named(n), standing: standing(kind), since: at(since) }
                })
                .collect();
            let now = at(3000);
            match to_drop(&all, named(newcomer), now) {
                Some(key) => {
                    let dropped = all[key];
                    prop_assert_ne!(dropped.standing, Occupied);
                    let old = now - dropped.since >= GRACE;
                    let alike = |gid| all.iter().filter(|held| {
                        held.gid == gid
                            && held.standing == dropped.standing
                            && (!old || now - held.since >= GRACE)
                    }).count();
                    for held in &all {
                        prop_assert!(alike(held.gid) <= alike(dropped.gid));
                    }
                }
                None => {
                    let stays = |held: &Held| match held.standing {
                        Unproven => false,
                        Quiet => now - held.since < GRACE,
                        Occupied => true,
                    };
                    prop_assert!(all.iter().all(stays));
                }
            }
        }
    }
}
