//! `--statistics`: what became of the messages of each subscriber.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use efa_netio::{ClosedReason, Event, Netio, PublishSocket, SubscriberCounts, Timer};
use serde::Serialize;

use crate::output;

/// Subscribers that are gone of which each is kept. Of more, the first ones are summed up.
const KEPT: usize = 4096;

/// What became of the messages of one subscriber. The numbers are of messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Row {
    /// Where it is connected from. `None` for several together.
    subscriber: Option<SocketAddr>,
    /// How many subscribers these are.
    subscribers: u64,
    sent: u64,
    delivered: u64,
    lost: u64,
    queued: u64,
    /// Why it was gone before the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    gone: Option<String>,
}

impl Row {
    fn new(counts: SubscriberCounts, gone: Option<String>) -> Self {
        let SubscriberCounts { peer, sent, delivered, lost, queued, .. } = counts;
        Self { subscriber: Some(peer), subscribers: 1, sent, delivered, lost, queued, gone }
    }

    fn add(&mut self, other: &Self) {
        (self.subscriber, self.gone) = (None, None);
        self.subscribers += other.subscribers;
        self.sent += other.sent;
        self.delivered += other.delivered;
        self.lost += other.lost;
    }

    fn text(&self) -> String {
        let Self { subscriber, subscribers, sent, delivered, lost, queued, gone } = self;
        let name = match subscriber {
            Some(address) => format!("subscriber {address}"),
            None => format!("{subscribers} subscribers before"),
        };
        let gone = gone.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
        format!("{name}: {sent} sent, {delivered} delivered, {lost} lost, {queued} queued{gone}")
    }
}

/// Those of all subscribers of a run.
#[derive(Debug)]
pub(super) struct Statistics {
    timer: Option<Timer>,
    json: bool,
    gone: Vec<Row>,
}

#[derive(Serialize)]
struct Report<'a> {
    statistics: &'a [Row],
}

impl Statistics {
    /// They are printed `every` so often, if that is given, and otherwise at the end alone.
    pub(super) fn new(netio: &mut Netio, every: Option<Duration>, json: bool) -> Self {
        let timer = every.map(|every| netio.timer(every, Some(every)));
        Self { timer, json, gone: Vec::new() }
    }

    /// Notes who is gone; prints, if it is time.
    pub(super) fn event(
        &mut self,
        event: &Event,
        netio: &Netio,
        socket: PublishSocket,
    ) -> io::Result<()> {
        match event {
            Event::SubscriberClosed { reason, counts, .. } => self.closed(**counts, reason),
            Event::Timer(timer) if self.timer == Some(*timer) => {
                self.print_now(&rows_now(netio, socket).collect::<Vec<_>>())?;
            }
            _ => {}
        }
        Ok(())
    }

    fn closed(&mut self, counts: SubscriberCounts, reason: &ClosedReason) {
        let is_in_order =
            matches!(reason, ClosedReason::Disconnected | ClosedReason::DisconnectedByPeer);
        let row = Row::new(counts, (!is_in_order).then(|| reason.to_string()));
        match self.gone.len() < KEPT {
            true => self.gone.push(row),
            false => {
                let second = self.gone.remove(1);
                self.gone[0].add(&second);
                self.gone.push(row);
            }
        }
    }

    fn print_now(&self, rows: &[Row]) -> io::Result<()> {
        if self.json {
            return output::print_json(&Report { statistics: rows });
        }
        print(rows);
        Ok(())
    }

    /// Those of all that there were, in the order in which they went; those that are left after a failure come last.
    pub(super) fn end(mut self, netio: &Netio, socket: PublishSocket) -> Vec<Row> {
        self.gone.extend(rows_now(netio, socket));
        self.gone
    }
}

/// Those of the subscribers of the moment.
fn rows_now(netio: &Netio, socket: PublishSocket) -> impl Iterator<Item = Row> {
    netio.subscribers(socket).map(|counts| Row::new(counts, None))
}

/// Prints them for people, a line each.
pub(super) fn print(rows: &[Row]) {
    rows.iter().for_each(|row| output::print_error(format_args!("{}", row.text())));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(delivered: u64, gone: Option<&str>) -> Row {
        Row {
            subscriber: Some(([127, 0, 0, 1], 7).into()),
            subscribers: 1,
            sent: delivered + 1,
            delivered,
            lost: 2,
            queued: 0,
            gone: gone.map(str::to_owned),
        }
    }

    #[test]
    fn row_of_a_subscriber_has_its_address_and_why_it_is_gone() {
        let text = "subscriber 127.0.0.1:7: 4 sent, 3 delivered, 2 lost, 0 queued";
        assert_eq!(row(3, None).text(), text);
        assert_eq!(row(3, Some("slow")).text(), format!("{text} (slow)"));
        let json = serde_json::to_value(row(3, None)).unwrap();
        assert_eq!((&json["subscriber"], &json["lost"]), (&"127.0.0.1:7".into(), &2.into()));
        assert!(json.get("gone").is_none());
    }

    #[test]
    fn rows_that_are_summed_up_have_the_numbers_of_all() {
        let mut sum = row(3, Some("slow"));
        sum.add(&row(10, None));
        let text = "2 subscribers before: 15 sent, 13 delivered, 4 lost, 0 queued";
        assert_eq!(sum.text(), text);
    }
}
