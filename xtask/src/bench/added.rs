//! What a publication adds to the sends of `efa` that it consists of: the difference of two benches of efa-netio.
//!
//! ```text
//!   publications.to_n − sends.to_n  =  ROUNDS · (publication + n · subscriber)       for n of 8 and 64
//! ```

use std::path::Path;

use anyhow::{Context, Result, ensure};

/// The crate that has the benches, and where its counts are.
pub(super) const PACKAGE: &str = "efa-netio";
const GROUP: &str = "efa-netio/instructions/added";
/// Publications that a bench counts: its `ROUNDS`.
const ROUNDS: f64 = 64.0;
/// Numbers of subscribers.
const FEW: f64 = 8.0;
const MANY: f64 = 64.0;
/// Most instructions that are added for a subscriber; the goal of issue 24.
const SUBSCRIBER: f64 = 120.0;
/// Most that are added for a publication, whatever its subscribers: measured, and a margin.
const PUBLICATION: f64 = 700.0;

/// Instructions that are added.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Added {
    publication: f64,
    subscriber: f64,
}

impl Added {
    /// From the counts of a publication and of sends, to few and to many.
    fn of([few, many]: [(u64, u64); 2]) -> Self {
        let added = |(all, sends): (u64, u64)| (all as f64 - sends as f64) / ROUNDS;
        let subscriber = (added(many) - added(few)) / (MANY - FEW);
        Self { publication: added(few) - FEW * subscriber, subscriber }
    }

    fn hold(self) -> Result<()> {
        let Self { publication, subscriber } = self;
        say!(
            "a publication adds {publication:.0} instructions to its sends (at most {PUBLICATION}), and \
             {subscriber:.0} for each subscriber (at most {SUBSCRIBER})"
        );
        ensure!(
            publication <= PUBLICATION && subscriber <= SUBSCRIBER,
            "a publication adds too many instructions to its sends"
        );
        Ok(())
    }
}

/// Holds the limits of what is added, by the counts in gungraun's results.
pub(super) fn hold(results: &Path) -> Result<()> {
    let count = |bench: &str, to: f64| {
        let name = format!("{bench}.to_{to}");
        let file = results.join(GROUP).join(&name).join(format!("callgrind.{name}.out"));
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        total(&text).with_context(|| format!("{} has no count", file.display()))
    };
    let both = |to| Ok::<_, anyhow::Error>((count("publications", to)?, count("sends", to)?));
    Added::of([both(FEW)?, both(MANY)?]).hold()
}

/// Instructions of the whole program, before other counts.
fn total(file: &str) -> Option<u64> {
    let mut totals = file.lines().filter_map(|line| line.strip_prefix("totals: "));
    totals.next()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_taken_apart_into_publication_and_subscribers() {
        let counts = |to: u64| ((1000 + 650 + 113 * to) * ROUNDS as u64, 1000 * ROUNDS as u64);
        let added = Added::of([counts(8), counts(64)]);
        assert_eq!(added, Added { publication: 650.0, subscriber: 113.0 });
        assert!(added.hold().is_ok());
        assert!(Added { subscriber: 121.0, ..added }.hold().is_err());
        assert!(Added { publication: 701.0, ..added }.hold().is_err());
    }

    #[test]
    fn first_count_is_that_of_instructions() {
        assert_eq!(total("x\ntotals: 12 34 5\n"), Some(12));
        assert_eq!(total("x\n"), None);
    }
}
