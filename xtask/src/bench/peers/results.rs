//! The figures of `cargo xtask bench peers`: ratios within rounds, their medians, and the goals.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::point::{Form, Kind, Point, readable};
use super::programs::{Contestant, Said};
use crate::bench::soft::median;

/// Share of the processors that others may take in a round that counts.
pub(super) const QUIET: f64 = 0.05;

/// All points of all, measured once.
#[derive(Clone, Debug, Default)]
pub(super) struct Round {
    times: BTreeMap<(Contestant, Point), f64>,
    moved: BTreeMap<(Contestant, Point), [f64; 3]>,
    /// Share of the processors that others took.
    pub(super) others: f64,
}

impl Round {
    pub(super) fn add(&mut self, who: Contestant, said: Vec<Said>) {
        for said in said {
            match said {
                Said::Time(point, seconds) => {
                    self.times.insert((who, point), seconds);
                }
                Said::Moved(point, moved) => {
                    self.moved.insert((who, point), moved);
                }
            }
        }
    }

    fn time(&self, who: Contestant, point: Point) -> Option<f64> {
        self.times.get(&(who, point)).copied()
    }

    fn best_peer(&self, point: Point) -> Option<f64> {
        let peers = Contestant::ALL.into_iter().filter(|who| who.is_peer());
        peers.filter_map(|peer| self.time(peer, point)).min_by(f64::total_cmp)
    }
}

/// A goal, and how it was met.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Goal {
    pub(super) what: String,
    /// The worst of the points, and where it was.
    pub(super) worst: f64,
    pub(super) at: String,
    pub(super) bound: Bound,
    /// Points within the bound, and all.
    pub(super) within: [usize; 2],
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(bound) => value <= bound,
            Self::AtLeast(bound) => value >= bound,
        }
    }

    /// Whether `value` is further from the goal than `other`.
    fn is_worse(self, value: f64, other: f64) -> bool {
        match self {
            Self::AtMost(_) => value > other,
            Self::AtLeast(_) => value < other,
        }
    }

    pub(super) fn shown(self) -> String {
        match self {
            Self::AtMost(bound) => format!("at most {bound}"),
            Self::AtLeast(bound) => format!("at least {bound}"),
        }
    }
}

impl Goal {
    fn of(what: &str, bound: Bound, ratios: impl Iterator<Item = (Point, f64)>) -> Option<Self> {
        let mut goal: Option<Self> = None;
        for (point, ratio) in ratios {
            let fresh = || Self {
                what: what.to_owned(),
                worst: ratio,
                at: shown(point),
                bound,
                within: [0, 0],
            };
            let goal = goal.get_or_insert_with(fresh);
            goal.within[0] += usize::from(bound.holds(ratio));
            goal.within[1] += 1;
            if bound.is_worse(ratio, goal.worst) {
                (goal.worst, goal.at) = (ratio, shown(point));
            }
        }
        goal
    }

    pub(super) fn is_met(&self) -> bool {
        self.within[0] == self.within[1]
    }

    pub(super) fn verdict(&self) -> String {
        match self.is_met() {
            true => "met".into(),
            false => format!("missed: {} of {}", self.within[1] - self.within[0], self.within[1]),
        }
    }
}

/// A point in words.
fn shown(point: Point) -> String {
    let size = readable(point.size);
    match (point.kind, point.form) {
        (Kind::Latency, _) => format!("{size} one way"),
        (Kind::Stream, Form::One) => format!("{size} in a stream, window {}", point.window),
        (Kind::Stream, Form::Each) => {
            format!("{size} in a stream, window {}, a buffer each", point.window)
        }
    }
}

/// The rounds.
#[derive(Clone, Debug, Default)]
pub(super) struct Results {
    pub(super) rounds: Vec<Round>,
    /// What is missing or failed.
    pub(super) notes: Vec<String>,
    /// Between what the programs that use TCP ran.
    pub(super) tcp_place: &'static str,
}

impl Results {
    /// Leaves out the rounds in which others took too much, unless that are too many: then the run is void, and all stay.
    pub(super) fn judge(&mut self) -> Option<String> {
        let all = self.rounds.len();
        let quiet = self.rounds.iter().filter(|round| round.others <= QUIET).count();
        if quiet * 2 > all {
            self.rounds.retain(|round| round.others <= QUIET);
            return None;
        }
        let most = self.rounds.iter().map(|round| round.others).fold(0.0, f64::max);
        Some(format!(
            "the machine is too busy: others took more than {:.0} % of the processors in {} of {all} rounds, at most {:.0} %",
            QUIET * 100.0,
            all - quiet,
            most * 100.0
        ))
    }

    pub(super) fn sizes(&self) -> Vec<u64> {
        let points = self.rounds.iter().flat_map(|round| round.times.keys());
        let mut sizes: Vec<u64> = points.map(|(_, point)| point.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    pub(super) fn contestants(&self) -> Vec<Contestant> {
        let is_there = |who: &Contestant| {
            self.rounds.iter().flat_map(|round| round.times.keys()).any(|(other, _)| other == who)
        };
        Contestant::ALL.into_iter().filter(is_there).collect()
    }

    /// Seconds of a message.
    pub(super) fn time(&self, who: Contestant, point: Point) -> Option<f64> {
        median(self.rounds.iter().filter_map(|round| round.time(who, point)))
    }

    /// A median of ratios of the rounds.
    fn ratio(
        &self,
        one: impl Fn(&Round) -> Option<f64>,
        other: impl Fn(&Round) -> Option<f64>,
    ) -> Option<f64> {
        median(self.rounds.iter().filter_map(|round| {
            let (one, other) = (one(round)?, other(round)?);
            (other > 0.0).then_some(one / other)
        }))
    }

    /// The time of a message to that of the best peer.
    pub(super) fn to_best_peer(&self, who: Contestant, point: Point) -> Option<f64> {
        self.ratio(|round| round.time(who, point), |round| round.best_peer(point))
    }

    /// The time of a message to that of another.
    fn to(&self, who: Contestant, other: Contestant, point: Point) -> Option<f64> {
        self.ratio(|round| round.time(who, point), |round| round.time(other, point))
    }

    /// For each byte delivered, those that came in packets, of these those that went to their buffer at once, and those that
    /// were read.
    pub(super) fn moved(&self, who: Contestant, point: Point) -> Option<[f64; 3]> {
        let part = |part: usize| {
            median(
                self.rounds.iter().filter_map(|round| Some(round.moved.get(&(who, point))?[part])),
            )
        };
        Some([part(0)?, part(1)?, part(2)?])
    }

    pub(super) fn goals(&self) -> Vec<Goal> {
        let within = |least: u64, most: u64| {
            self.sizes().into_iter().filter(move |size| (least..=most).contains(size))
        };
        let wide = |least, most| {
            within(least, most)
                .flat_map(|size| [Form::One, Form::Each].map(|form| Point::widest(size, form)))
        };
        let rate = |ratio: Option<f64>| ratio.map(|ratio| 1.0 / ratio);
        const KIB: u64 = 1 << 10;
        const MIB: u64 = 1 << 20;
        const LAST: u64 = 64 * MIB;
        let long = || within(MIB, LAST).map(Point::latency).chain(wide(MIB, LAST));
        let to_bound = |who, bound| {
            long().filter_map(move |point| Some((point, rate(self.to(who, bound, point))?)))
        };
        let one_way = |who, what| {
            let points = within(8, LAST).map(Point::latency);
            let ratios = points.filter_map(|point| Some((point, self.to_best_peer(who, point)?)));
            Goal::of(what, Bound::AtMost(0.9), ratios)
        };
        let stream = |who, what| {
            let ratio = |point| Some((point, rate(self.to_best_peer(who, point))?));
            Goal::of(what, Bound::AtLeast(1.0), wide(4 * KIB, MIB).filter_map(ratio))
        };
        let again = |who, what| {
            let [stream, latency] = [Point::widest(MIB, Form::One), Point::latency(MIB)];
            let time = |point| move |round: &Round| round.time(who, point);
            let ratio = within(MIB, MIB)
                .filter_map(|_| Some((stream, self.ratio(time(stream), time(latency))?)));
            Goal::of(what, Bound::AtMost(1.1), ratio)
        };
        let over_tcp = |what, bound, point: Point, other| {
            let time = self.to(Contestant::OverTcp, other, point);
            let ratio = if matches!(bound, Bound::AtMost(_)) { time } else { rate(time) };
            Goal::of(what, bound, ratio.map(|ratio| (point, ratio)).into_iter())
        };
        let (own, mapped) = (Contestant::Ours, Contestant::Mapped);
        [
            one_way(
                own,
                "one way, 8 B to 64 MiB, registered memory: time to that of the best peer",
            ),
            one_way(mapped, "one way, 8 B to 64 MiB, mapped memory: time to that of the best peer"),
            Goal::of(
                "one way, 8 B: time to that of the bare ring",
                Bound::AtMost(1.6),
                within(8, 8)
                    .map(Point::latency)
                    .filter_map(|point| Some((point, self.to(own, Contestant::Ring, point)?))),
            ),
            Goal::of(
                "stream, 8 B and 64 B: rate to that of the best peer",
                Bound::AtLeast(1.2),
                wide(8, 8)
                    .chain(wide(64, 64))
                    .filter_map(|point| Some((point, rate(self.to_best_peer(own, point))?))),
            ),
            stream(own, "stream, 4 KiB to 1 MiB, registered memory: rate to that of the best peer"),
            stream(mapped, "stream, 4 KiB to 1 MiB, mapped memory: rate to that of the best peer"),
            Goal::of(
                "from 1 MiB, mapped memory: rate to that of memcpy",
                Bound::AtLeast(0.9),
                to_bound(mapped, Contestant::Memcpy),
            ),
            Goal::of(
                "from 1 MiB, registered memory: rate to that of process_vm_readv",
                Bound::AtLeast(0.95),
                to_bound(own, Contestant::Readv),
            ),
            again(
                own,
                "1 MiB, registered memory: time in a stream to that one way, the same buffers",
            ),
            again(
                mapped,
                "1 MiB, mapped memory: time in a stream to that one way, the same buffers",
            ),
            over_tcp(
                "tcp, one way, 8 B: time to that of bare TCP",
                Bound::AtMost(1.25),
                Point::latency(8),
                Contestant::BareTcp,
            ),
            over_tcp(
                "tcp, one way, 8 B: time to that of libfabric tcp",
                Bound::AtMost(1.0),
                Point::latency(8),
                Contestant::Tcp,
            ),
            over_tcp(
                "tcp, stream of 1 MiB, one buffer: rate to that of bare TCP",
                Bound::AtLeast(0.9),
                Point::widest(MIB, Form::One),
                Contestant::BareTcp,
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Everything that was measured.
    pub(super) fn json(&self, date: &str, machine: &str, void: Option<&str>) -> Value {
        let mut keys: Vec<_> =
            self.rounds.iter().flat_map(|round| round.times.keys().copied()).collect();
        keys.sort_unstable();
        keys.dedup();
        let figures = keys.into_iter().map(|(who, point)| {
            let seconds = self.rounds.iter().map(|round| round.time(who, point));
            json!({
                "who": who.name(),
                "kind": if point.kind == Kind::Latency { "latency" } else { "stream" },
                "size": point.size,
                "window": point.window,
                "buffers": if point.form == Form::One { "one" } else { "each" },
                "seconds": seconds.collect::<Vec<_>>(),
                "of_best_peer": self.to_best_peer(who, point).filter(|_| who.is_ours()),
                "bytes_in_packets_placed_and_read": self.moved(who, point),
            })
        });
        let goals = self.goals().into_iter().map(|goal| {
            json!({
                "what": goal.what, "worst": goal.worst, "at": goal.at, "goal": goal.bound.shown(),
                "met": goal.is_met(), "within": goal.within[0], "of": goal.within[1],
            })
        });
        json!({
            "date": date,
            "machine": machine,
            "void": void,
            "others": self.rounds.iter().map(|round| round.others).collect::<Vec<_>>(),
            "notes": self.notes,
            "tcp": self.tcp_place,
            "goals": goals.collect::<Vec<_>>(),
            "figures": figures.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A quiet round in which everybody takes this many microseconds for every message of these sizes, and we a share.
    pub(in super::super) fn round(ours: f64, others: f64) -> Round {
        let mut round = Round { others, ..Round::default() };
        for size in [0, 8, 64, 4096, 1 << 20] {
            for point in Point::all_of(size) {
                for who in Contestant::ALL.into_iter().filter(|who| who.can(point)) {
                    let time = match who {
                        who if who.is_ours() => ours,
                        Contestant::OverTcp => 2.2e-6,
                        Contestant::Tcp => 30e-6,
                        _ => 2e-6,
                    };
                    round.add(who, vec![Said::Time(point, time)]);
                }
                round.add(Contestant::Mapped, vec![Said::Moved(point, [1.5, 1.0, 0.25])]);
            }
        }
        round
    }

    fn results(ours: [f64; 3]) -> Results {
        let rounds = ours.map(|ours| round(ours, 0.0)).to_vec();
        Results { rounds, ..Results::default() }
    }

    #[test]
    fn ratios_are_those_of_rounds_to_the_best_peer_of_each() {
        let results = results([1e-6, 9e-6, 2e-6]);
        let point = Point::stream(8, 64, Form::Each);
        assert_eq!(results.to_best_peer(Contestant::Ours, point), Some(1.0));
        assert_eq!(results.time(Contestant::Tcp, point), Some(30e-6));
        assert_eq!(results.time(Contestant::Ucx, point), None);
        assert_eq!(results.moved(Contestant::Mapped, point), Some([1.5, 1.0, 0.25]));
        assert_eq!(results.moved(Contestant::Ours, point), None);
        assert_eq!(results.sizes(), [0, 8, 64, 4096, 1 << 20]);
    }

    #[test]
    fn goals_are_met_by_all_points_or_missed_with_the_worst() {
        let met = results([1e-6; 3]).goals();
        assert_eq!(met.len(), 13);
        assert!(met.iter().all(|goal| goal.verdict() == "met"), "{met:?}");
        let mut slow = results([1e-6; 3]);
        for round in &mut slow.rounds {
            let point = Point::latency(4096);
            round.add(Contestant::Ours, vec![Said::Time(point, 3e-6)]);
        }
        let goal = slow.goals().remove(0);
        assert_eq!((goal.worst, &*goal.at), (1.5, "4 KiB one way"));
        assert_eq!((goal.within, goal.verdict()), ([3, 4], "missed: 1 of 4".into()));
        let slow = results([2e-6; 3]).goals();
        // At the times of all: one way of both memories, the rate of streams of few bytes, and no other goal.
        let missed = slow.iter().filter(|goal| !goal.is_met()).count();
        assert_eq!(missed, 3, "{slow:?}");
    }

    #[test]
    fn busy_rounds_are_left_out_and_a_run_with_too_many_is_void() {
        let mut results = results([1e-6; 3]);
        results.rounds[1].others = 0.2;
        assert_eq!(results.judge(), None);
        assert_eq!(results.rounds.len(), 2);
        results.rounds[0].others = 0.3;
        let why = results.judge().unwrap();
        assert!(why.ends_with("5 % of the processors in 1 of 2 rounds, at most 30 %"), "{why}");
        assert_eq!(results.rounds.len(), 2);
    }

    #[test]
    fn json_has_the_seconds_of_every_round() {
        let json = results([1e-6, 2e-6, 3e-6]).json("2026-11-25", "a machine", Some("busy"));
        let text = json.to_string();
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((json["void"].as_str(), json["others"][2].as_f64()), (Some("busy"), Some(0.0)));
        let figures = json["figures"].as_array().unwrap();
        let ours = figures.iter().find(|figure| {
            figure["who"] == "ours" && figure["size"] == 4096 && figure["window"] == 64
        });
        let ours = ours.unwrap();
        assert_eq!(ours["seconds"], json!([1e-6, 2e-6, 3e-6]));
        assert_eq!(ours["of_best_peer"], json!(1.0));
        assert_eq!(json["goals"].as_array().unwrap().len(), 13);
    }
}
