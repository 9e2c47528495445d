//! The plan of a run: the client makes it, the server checks it, and both follow it.

use efa_proto::{Connid, MsgId, ReqOptions, Rtm, RtmKind};
use serde::{Deserialize, Serialize};

use super::sizes::{MAX_SIZE, MAX_SIZES};

/// Most repetitions of one size.
pub(crate) const MAX_ITERATIONS: u64 = 10_000_000;
/// Most messages under way at a time.
pub(crate) const MAX_WINDOW: u64 = 1024;
/// Most bytes of messages under way at a time: the server has a buffer for each.
pub(crate) const MAX_UNDER_WAY: u64 = 4 << 30;

/// Bytes sent for each size by default.
const VOLUME: u64 = 64 << 20;
/// Bounds of the repetitions that result.
const ITERATIONS: (u64, u64) = (20, 5000);
/// Default window for short messages.
const WINDOW: u64 = 64;

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToServer,
    ToClient,
}

/// The quantity measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Round trips of a message.
    Latency,
    /// One-way streams with a window of messages under way.
    Bandwidth,
}

/// A whole run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    /// Messages are tagged, each with a different tag.
    pub(crate) tagged: bool,
    /// Messages have CQ data.
    pub(crate) cq_data: bool,
    /// The bytes of each message are written and checked.
    pub(crate) check: bool,
    /// Repetitions of each size before the measured ones.
    pub(crate) warmup: u64,
    pub(crate) steps: Vec<Step>,
}

/// The repetitions of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Bytes of a message.
    pub(crate) size: u64,
    /// Measured repetitions.
    pub(crate) iterations: u64,
    /// Messages under way at a time; 1 when latency is measured.
    pub(crate) window: u64,
}

/// A plan that a server refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the plan is out of bounds: {field} is {value}, allowed is {least} to {most}")]
pub(crate) struct PlanError {
    field: &'static str,
    value: u64,
    least: u64,
    most: u64,
}

impl Plan {
    /// Checks the bounds of all numbers: a plan is received from the network.
    pub(crate) fn check_bounds(&self) -> Result<(), PlanError> {
        let one = |step: &Step| {
            [
                ("size", step.size, 0, MAX_SIZE),
                ("iterations", step.iterations, 1, MAX_ITERATIONS),
                ("window", step.window, 1, MAX_WINDOW),
                ("size × window", step.size.saturating_mul(step.window), 0, MAX_UNDER_WAY),
            ]
        };
        let whole = [
            ("number of sizes", self.steps.len() as u64, 1, MAX_SIZES as u64),
            ("warmup", self.warmup, 0, MAX_ITERATIONS),
        ];
        let numbers = whole.into_iter().chain(self.steps.iter().flat_map(one));
        let mut bad = numbers.filter(|(_, value, least, most)| !(least..=most).contains(&value));
        match bad.next() {
            Some((field, value, least, most)) => Err(PlanError { field, value, least, most }),
            None => Ok(()),
        }
    }
}

/// Default repetitions of a size: many for short messages, few for long ones.
pub(crate) fn usual_iterations(size: u64) -> u64 {
    (VOLUME / size.max(1)).clamp(ITERATIONS.0, ITERATIONS.1)
}

/// Default window for a size: smaller for long messages, to save memory.
pub(crate) fn usual_window(size: u64) -> u64 {
    (VOLUME / size.max(1)).clamp(2, WINDOW)
}

/// Sizes from nothing to 6 MiB, with those at which another subprotocol begins, `changes`, and their
/// neighbours.
pub(crate) fn usual_sizes(changes: [u64; 3]) -> Vec<u64> {
    let steps = [0, 1, 8, 64, 512, 4 << 10, 16 << 10, 256 << 10, 1 << 20, 6 << 20];
    let around = |size: u64| [size.saturating_sub(1), size, size.saturating_add(1)];
    let changes = changes.into_iter().flat_map(around);
    let mut sizes: Vec<u64> = steps.into_iter().chain(changes).collect();
    // Limits may be set to the largest number.
    sizes.retain(|size| *size <= MAX_SIZE);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// The longest message that fits one packet of `mtu` bytes, to a peer that knows the sender.
pub(crate) fn longest_eager(mtu: u64, tagged: bool, cq_data: bool) -> u64 {
    let options =
        ReqOptions { raw_address: None, cq_data: cq_data.then_some(0), connid: Some(Connid(0)) };
    let (msg_id, tag) = (MsgId(0), tagged.then_some(0));
    let header = Rtm { msg_id, tag, kind: RtmKind::Eager, options };
    mtu.saturating_sub(header.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let step = Step { size: 8, iterations: 1, window: 1 };
        let (tagged, cq_data, check) = (false, false, true);
        Plan { mode: Mode::Latency, tagged, cq_data, check, warmup: 0, steps: vec![step] }
    }

    #[test]
    fn plans_out_of_bounds_are_refused() {
        assert_eq!(plan().check_bounds(), Ok(()));
        let bad = |change: fn(&mut Plan)| {
            let mut plan = plan();
            change(&mut plan);
            let PlanError { field, value, .. } = plan.check_bounds().unwrap_err();
            (field, value)
        };
        assert_eq!(bad(|plan| plan.steps.clear()), ("number of sizes", 0));
        assert_eq!(bad(|plan| plan.steps[0].size = MAX_SIZE + 1), ("size", MAX_SIZE + 1));
        assert_eq!(bad(|plan| plan.steps[0].iterations = 0), ("iterations", 0));
        assert_eq!(bad(|plan| plan.steps[0].window = 1025), ("window", 1025));
        let large = |plan: &mut Plan| {
            (plan.steps[0].size, plan.steps[0].window) = (MAX_SIZE, MAX_WINDOW);
        };
        assert_eq!(bad(large), ("size × window", MAX_SIZE * MAX_WINDOW));
        assert_eq!(bad(|plan| plan.warmup = u64::MAX), ("warmup", u64::MAX));
        let many = |plan: &mut Plan| plan.steps = vec![plan.steps[0]; 257];
        assert_eq!(bad(many), ("number of sizes", 257));
    }

    #[test]
    fn default_sizes_surround_the_subprotocol_thresholds() {
        // The base and the msg_id with the connid, a tag, completion data.
        assert_eq!(longest_eager(8928, false, false), 8928 - 12);
        assert_eq!(longest_eager(8928, true, true), 8928 - 12 - 8 - 8);
        let sizes = usual_sizes([8916, 12288, 65536]);
        assert_eq!((sizes.first(), sizes.last()), (Some(&0), Some(&(6 << 20))));
        for size in [8915, 8916, 8917, 12287, 12288, 12289, 65535, 65536, 65537] {
            assert!(sizes.contains(&size), "{size}");
        }
        assert!(sizes.is_sorted() && sizes.len() <= MAX_SIZES);
        assert_eq!(usual_sizes([8916, 12288, u64::MAX]).last(), Some(&(6 << 20)));
        assert_eq!(usual_sizes([8916, MAX_SIZE, 65536]).last(), Some(&MAX_SIZE));
    }

    #[test]
    fn default_repetitions_fall_with_size() {
        assert_eq!([0, 1, 64 << 10, 6 << 20].map(usual_iterations), [5000, 5000, 1024, 20]);
        assert_eq!([0, 1 << 20, 6 << 20, MAX_SIZE].map(usual_window), [64, 64, 10, 2]);
    }
}
