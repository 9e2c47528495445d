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
}

impl Silence {
    /// Notes that bytes were written.
    pub(super) fn wrote(&mut self) {
        self.is_over = false;
    }

    /// Whether a look would tell something.
    pub(super) fn is_open(&self) -> bool {
        !self.is_over
    }

    /// Looks at what TCP says. Returns how long the peer has not answered.
    pub(super) fn look(&mut self, traffic: &Traffic, now: Time) -> Duration {
        self.is_over = traffic.is_over();
        let before = self.since.filter(|&since| traffic.heard >= now - since);
        self.since = traffic.asks().then_some(before.unwrap_or(now));
        self.since.map_or(Duration::ZERO, |since| now - since)
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

    /// How long the peer has been silent at the last of these looks, one a second.
    fn silent(looks: impl IntoIterator<Item = Traffic>) -> Duration {
        let mut silence = Silence::default();
        let looks = looks.into_iter().zip(10..);
        looks.map(|(traffic, now)| silence.look(&traffic, Time::ZERO + secs(now))).last().unwrap()
    }

    #[test]
    fn host_that_does_not_answer_is_silent_from_the_first_look_on() {
        // Nothing was under way before that.
        let resent = (0..8).map(|n| Traffic { sent: secs(n % 3), heard: secs(60 + n), ..OPEN });
        assert_eq!(silent(resent), secs(7));
        let probes = (0..8).map(|n| Traffic {
            has_unanswered_probes: n >= 3,
            heard: secs(60 + n),
            sent: secs(90),
            ..FULL
        });
        assert_eq!(silent(probes), secs(4));
        let connects = (0..8).map(|n| Traffic { is_connecting: true, heard: secs(n), ..OPEN });
        assert_eq!(silent(connects), secs(7));
    }

    #[test]
    fn host_that_answers_is_not_silent() {
        let acknowledges = (0..8).map(|_| Traffic { heard: Duration::from_millis(999), ..OPEN });
        assert_eq!(silent(acknowledges), Duration::ZERO);
        let no_room = (0..8).map(|n| Traffic { heard: secs(60 + n), sent: secs(90), ..FULL });
        assert_eq!(silent(no_room), Duration::ZERO, "the next probe is not due");
        let no_room = (0..8).map(|n| Traffic { sent: secs(60 + n), heard: secs(60 + n), ..OPEN });
        assert_eq!(silent(no_room), Duration::ZERO, "the last try was answered");
        let seen_before_the_answer = (0..8).map(|n| Traffic {
            has_unanswered_probes: n % 2 == 0,
            heard: Duration::from_millis(1900),
            ..FULL
        });
        assert_eq!(silent(seen_before_the_answer), Duration::ZERO);
    }

    #[test]
    fn nothing_is_looked_at_from_the_last_acknowledgement_to_the_next_write() {
        let mut silence = Silence::default();
        assert!(silence.is_open(), "it connects");
        silence.look(&FULL, Time::ZERO);
        assert!(silence.is_open());
        silence.look(&Traffic { has_unsent: false, ..FULL }, Time::ZERO);
        assert!(!silence.is_open());
        silence.wrote();
        assert!(silence.is_open());
    }
}
