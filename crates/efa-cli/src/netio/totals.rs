//! What a run has done: counted, shown while it goes on, and printed at its end.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use super::statistics::{self, Row};
use crate::output;

/// Totals of a run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Totals {
    /// Messages, each counted once.
    pub(super) messages: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// From the first message to the last.
    pub(super) seconds: f64,
    /// Messages that didn't arrive, each at one receiver.
    pub(super) lost: u64,
    /// Messages of the input that were not sent, of a sender.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unsent: Option<Unsent>,
    /// Whether it is known which messages arrived. After one that was too long for a receiver's buffer, some of those
    /// behind it count as arrived although the receiver dropped them.
    pub(super) exact: bool,
    /// Whether everything was given or received, up to the end.
    pub(super) complete: bool,
    #[serde(flatten)]
    pub(super) publisher: Option<PublisherTotals>,
    /// Of each subscriber, if that is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) statistics: Option<Vec<Row>>,
}

/// Messages of an input that were not sent. `None` if the input's end was not reached, so that nobody knows how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Unsent(pub(super) Option<u64>);

/// What only a publisher has.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct PublisherTotals {
    /// Messages that arrived, each at one subscriber.
    pub(super) served: u64,
    /// Messages that nobody had subscribed to.
    pub(super) unheard: u64,
    /// Subscribers there were.
    pub(super) subscribers: u64,
    /// Of them, those that were gone before the end.
    pub(super) subscribers_lost: u64,
}

/// Counts, and shows progress on a terminal.
pub(super) struct Counter {
    messages: u64,
    bytes: u64,
    first: Option<Instant>,
    last: Option<Instant>,
    bar: ProgressBar,
}

impl Counter {
    /// A counter of bytes of which there are `all`, if that is known.
    pub(super) fn new(all: Option<u64>) -> Self {
        let (bar, template) = match all {
            Some(all) => {
                (ProgressBar::new(all), "{bar:30} {bytes} of {total_bytes}, {binary_bytes_per_sec}")
            }
            None => (ProgressBar::new_spinner(), "{spinner} {bytes}, {binary_bytes_per_sec}"),
        };
        let bar = match ProgressStyle::with_template(template) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        Self { messages: 0, bytes: 0, first: None, last: None, bar }
    }

    /// The time begins, unless it has begun.
    pub(super) fn begin(&mut self) {
        self.first.get_or_insert_with(Instant::now);
    }

    /// Shows nothing, as the messages go to the same terminal.
    pub(super) fn hide_on_terminal(self) -> Self {
        if io::stdout().is_terminal() {
            self.bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        self
    }

    /// A message more.
    pub(super) fn add(&mut self, bytes: usize) {
        self.begin();
        self.messages += 1;
        self.bytes += bytes as u64;
        self.last = Some(Instant::now());
        self.bar.set_position(self.bytes);
    }

    /// Messages that were added, and their bytes, don't count after all.
    pub(super) fn remove(&mut self, (messages, bytes): (u64, u64)) {
        self.messages -= messages;
        self.bytes -= bytes;
    }

    pub(super) fn messages(&self) -> u64 {
        self.messages
    }

    fn time(&self) -> Duration {
        let times = self.first.zip(self.last);
        times.map_or(Duration::ZERO, |(first, last)| last - first)
    }

    /// Ends it.
    pub(super) fn totals(&self, complete: bool) -> Totals {
        self.bar.finish_and_clear();
        let (messages, bytes) = (self.messages, self.bytes);
        let seconds = self.time().as_secs_f64();
        Totals {
            messages,
            bytes,
            seconds,
            lost: 0,
            unsent: None,
            exact: true,
            complete,
            publisher: None,
            statistics: None,
        }
    }
}

impl Totals {
    /// Prints them: on standard error for people, on standard output as JSON.
    pub(super) fn print(&self, json: bool) -> io::Result<()> {
        if json {
            return output::print_json(self);
        }
        output::print_error(format_args!("{}", self.text()));
        statistics::print(self.statistics.as_deref().unwrap_or_default());
        Ok(())
    }

    fn text(&self) -> String {
        let Self { messages, bytes, seconds, lost, exact, .. } = self;
        let (most, least) = if *exact { ("", "") } else { ("at most ", "at least ") };
        let unsent = match self.unsent {
            None | Some(Unsent(Some(0))) => String::new(),
            Some(Unsent(Some(unsent))) => format!(", {unsent} not sent"),
            Some(Unsent(None)) => ", the rest of the input not sent".to_owned(),
        };
        let numbers = format!("{bytes} bytes in {seconds:.3} s, {least}{lost} lost{unsent}");
        match &self.publisher {
            None => format!("{most}{messages} messages, {numbers}"),
            Some(PublisherTotals { served, unheard, subscribers, subscribers_lost }) => format!(
                "{messages} messages, {numbers}; {most}{served} deliveries to {subscribers} subscribers \
                 ({subscribers_lost} lost), {unheard} messages unheard"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_that_are_not_exact_are_bounds() {
        let totals = Totals { seconds: 1.0, exact: false, ..Counter::new(None).totals(false) };
        assert_eq!(totals.text(), "at most 0 messages, 0 bytes in 1.000 s, at least 0 lost");
        let publisher = Some(PublisherTotals { served: 3, subscribers: 2, ..Default::default() });
        let text = Totals { publisher, ..totals }.text();
        assert!(text.starts_with("0 messages, 0 bytes in 1.000 s, at least 0 lost; "), "{text}");
        assert!(text.contains("; at most 3 deliveries to 2 subscribers"), "{text}");
    }

    #[test]
    fn totals_of_a_sender_have_what_was_not_sent() {
        let totals = |unsent| Totals {
            unsent: Some(Unsent(unsent)),
            seconds: 1.0,
            ..Counter::new(None).totals(false)
        };
        let text = "0 messages, 0 bytes in 1.000 s, 0 lost";
        assert_eq!(totals(Some(0)).text(), text);
        assert_eq!(totals(Some(7)).text(), format!("{text}, 7 not sent"));
        assert_eq!(totals(None).text(), format!("{text}, the rest of the input not sent"));
        let json = |unsent| serde_json::to_value(totals(unsent)).unwrap();
        assert_eq!(json(Some(7))["unsent"], 7);
        assert!(json(None)["unsent"].is_null() && json(None).get("unsent").is_some());
    }

    #[test]
    fn totals_of_a_publisher_are_one_flat_object() {
        let mut counter = Counter::new(Some(10));
        counter.add(4);
        counter.add(6);
        let mut totals = counter.totals(true);
        assert!(totals.seconds < 60.0);
        totals.publisher = Some(PublisherTotals { served: 6, ..PublisherTotals::default() });
        let json = serde_json::to_value(&totals).unwrap();
        assert_eq!((&json["messages"], &json["bytes"]), (&2.into(), &10.into()));
        assert_eq!((&json["served"], &json["complete"]), (&6.into(), &true.into()));
        let plain = serde_json::to_value(counter.totals(false)).unwrap();
        assert!(plain.get("served").is_none());
    }
}
