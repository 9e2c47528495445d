//! Whether the system of a peer still answers.
//!
//! | TCP has | so it asks by | who notices that nobody answers |
//! |---|---|---|
//! | nothing under way | probes of an idle connection (keepalive) | the system, which ends the connection |
//! | bytes without acknowledgement | sending them again | a look at what TCP says |
//! | bytes for which the peer has no room | probes of its window | a look at what TCP says |
//!
//! The system could notice the last two as well (`TCP_USER_TIMEOUT`). But it then ends a connection also if all probes are
//! answered and there is no room for so long, as while the process of the peer is stopped or computes.

use std::time::Duration;

use efa_device::Time;

/// What TCP says of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traffic {
    /// Whether it is not connected yet.
    pub(super) is_connecting: bool,
    /// Whether bytes that were sent, or the request to connect, have no acknowledgement.
    pub(super) has_unacknowledged: bool,
    /// Whether bytes wait that were not sent at all.
    pub(super) has_unsent: bool,
    /// Whether probes have no answer.
    pub(super) has_unanswered_probes: bool,
    /// How long ago bytes were last sent, also again.
    pub(super) sent: Duration,
    /// How long ago anything last came from the peer.
    pub(super) heard: Duration,
}

impl Traffic {
    /// Whether something was sent that has no answer. The peer may have answered the last try of what has no acknowledgement,
    /// to say that it has no room; the next one may be two minutes later.
    fn asks(&self) -> bool {
        let has_unanswered = self.has_unacknowledged && self.sent < self.heard;
        self.is_connecting || has_unanswered || self.has_unanswered_probes
    }

    /// Whether nothing is under way to the peer.
    fn is_over(&self) -> bool {
        !(self.is_connecting || self.has_unacknowledged || self.has_unsent)
    }
}

/// Since when the system of a peer has not answered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Silence {
    /// Whether nothing was written since TCP had nothing under way.
    is_over: bool,
    /// When a look first found a question, if there has been no answer since.
    since: Option<Time>,
    /// When a look was the last one.
    looked: Option<Time>,
}

/// By how much the system's times may differ from those of looks. An answer that came so soon after a look isn't told from
/// one before it.
const MARGIN: Duration = Duration::from_millis(100);

impl Silence {
    /// Notes that bytes were written.
    pub(super) fn wrote(&mut self) {
        self.is_over = false;
    }

    /// Whether a look would tell something.
    pub(super) fn is_open(&self) -> bool {
        !self.is_over
    }

    /// Looks at what TCP says. Returns whether the peer has not answered for `limit`. What an earlier look has found counts
    /// only if it wasn't longer ago than that: the program may not have polled, and the peer may have answered meanwhile.
    pub(super) fn look(&mut self, traffic: &Traffic, now: Time, limit: Duration) -> bool {
        self.is_over = traffic.is_over();
        let is_recent = self.looked.replace(now).is_some_and(|looked| now - looked <= limit);
        let is_unanswered = |since: &Time| is_recent && traffic.heard >= now - *since + MARGIN;
        let before = self.since.filter(is_unanswered);
        self.since = traffic.asks().then_some(before.unwrap_or(now));
        self.since.is_some_and(|since| now - since >= limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: Traffic = Traffic {
        is_connecting: false,
        has_unacknowledged: true,
        has_unsent: false,
        has_unanswered_probes: false,
        sent: Duration::ZERO,
        heard: Duration::ZERO,
    };
    const FULL: Traffic = Traffic { has_unacknowledged: false, has_unsent: true, ..OPEN };

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    /// For how long the peer has been silent at the last of these looks, one a second.
    fn silent(looks: impl Clone + IntoIterator<Item = Traffic>) -> u64 {
        let is_silent = |limit: &u64| {
            let mut silence = Silence::default();
            let looks = looks.clone().into_iter().zip(10..);
            let looks = looks
                .map(|(traffic, now)| silence.look(&traffic, Time::ZERO + secs(now), secs(*limit)));
            looks.last().unwrap()
        };
        (1..10).take_while(is_silent).last().unwrap_or(0)
    }

    #[test]
    fn host_that_does_not_answer_is_silent_from_the_first_look_on() {
        // Nothing was under way before that.
        let resent = (0..8).map(|n| Traffic { sent: secs(n % 3), heard: secs(60 + n), ..OPEN });
        assert_eq!(silent(resent), 7);
        let probes = (0..8).map(|n| Traffic {
            has_unanswered_probes: n >= 3,
            heard: secs(60 + n),
            sent: secs(90),
            ..FULL
        });
        assert_eq!(silent(probes), 4);
        let connects = (0..8).map(|n| Traffic { is_connecting: true, heard: secs(60 + n), ..OPEN });
        assert_eq!(silent(connects), 7);
        let just_answered = (0..8).map(|n| Traffic { heard: secs(n), ..OPEN });
        assert_eq!(silent(just_answered), 6, "the first look may have been before the answer");
    }

    #[test]
    fn host_that_answers_is_not_silent() {
        let acknowledges = (0..8).map(|_| Traffic { heard: Duration::from_millis(999), ..OPEN });
        assert_eq!(silent(acknowledges), 0);
        let no_room = (0..8).map(|n| Traffic { heard: secs(60 + n), sent: secs(90), ..FULL });
        assert_eq!(silent(no_room), 0, "the next probe is not due");
        let no_room = (0..8).map(|n| Traffic { sent: secs(60 + n), heard: secs(60 + n), ..OPEN });
        assert_eq!(silent(no_room), 0, "the last try was answered");
        let seen_before_the_answer = (0..8).map(|n| Traffic {
            has_unanswered_probes: n % 2 == 0,
            heard: Duration::from_millis(1900),
            ..FULL
        });
        assert_eq!(silent(seen_before_the_answer), 0);
    }

    /// The answer came just after the first look, as the system's clock has it at the time of the look or before.
    #[test]
    fn host_is_not_silent_after_a_time_in_which_nobody_looked() {
        for (pause, heard) in [(20, 20_000), (20, 20_050), (60, 60_000), (60, 61_000)] {
            let mut silence = Silence::default();
            assert!(!silence.look(&OPEN, Time::ZERO, secs(15)));
            let traffic = Traffic { heard: Duration::from_millis(heard), ..OPEN };
            assert!(!silence.look(&traffic, Time::ZERO + secs(pause), secs(15)), "{pause} {heard}");
        }
        let mut silence = Silence::default();
        assert!(!silence.look(&OPEN, Time::ZERO, secs(30)));
        let traffic = Traffic { heard: Duration::from_millis(30_050), ..OPEN };
        assert!(!silence.look(&traffic, Time::ZERO + secs(30), secs(30)), "within the margin");
    }

    #[test]
    fn nothing_is_looked_at_from_the_last_acknowledgement_to_the_next_write() {
        let mut silence = Silence::default();
        assert!(silence.is_open(), "it connects");
        silence.look(&FULL, Time::ZERO, secs(1));
        assert!(silence.is_open());
        silence.look(&Traffic { has_unsent: false, ..FULL }, Time::ZERO, secs(1));
        assert!(!silence.is_open());
        silence.wrote();
        assert!(silence.is_open());
    }
}
