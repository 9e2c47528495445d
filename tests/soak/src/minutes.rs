//! Durations on the command line.

use std::time::Duration;

/// Most minutes that are accepted: far below the range of the clock.
const MOST: f64 = 1e6;

/// A number of minutes.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(minutes) if (0.0..=MOST).contains(&minutes) => {
            Ok(Duration::from_secs_f64(minutes * 60.0))
        }
        _ => Err(format!("a number from 0 to {MOST} is expected")),
    }
}
