//! Which connection a poll looks at without asking the system first, and whose acknowledgements wait for an answer.

use std::time::Duration;

use efa_device::Time;

/// Polls in a row that look at a connection in vain before the system alone is asked.
const LOOKS: u32 = 4096;
/// Polls that find nothing before the system is to send acknowledgements without an answer: in the first the program that
/// got the packet finds that there are no more, so it can answer only after that.
const POLLS: u32 = 2;

/// How soon one packet follows another that was answered, at most, if this is a conversation.
const SOON: Duration = Duration::from_micros(200);
/// After how many such packets in a row an answer is expected. A program that computes between an answer and the next packet
/// would keep acknowledgements waiting for as long as the system holds them back.
const ANSWERS: u32 = 4;

/// Acknowledgements that the system holds back.
#[derive(Debug)]
struct Waiting {
    /// Their connection.
    key: usize,
    /// For how many more polls they wait.
    polls: u32,
}

/// The connections of a conversation: the one that delivered last, and the one that was written to last; mostly they are
/// the same. To receive from one of them costs as much as to ask the system whether it is worth while.
#[derive(Debug, Default)]
pub(super) struct Attention {
    delivered: Option<usize>,
    written: Option<usize>,
    /// How many more looks may be in vain.
    looks: u32,
    waiting: Option<Waiting>,
    /// When it delivered last.
    delivered_at: Time,
    /// Whether that was answered.
    is_answered: bool,
    /// Packets in a row that came soon after an answer.
    answers: u32,
}

impl Attention {
    pub(super) fn delivered(&mut self, key: usize, now: Time) {
        let is_next = self.delivered == Some(key) && self.is_answered;
        let is_soon = is_next && now - self.delivered_at <= SOON;
        self.answers = if is_soon { self.answers.saturating_add(1) } else { 0 };
        (self.delivered, self.delivered_at, self.is_answered) = (Some(key), now, false);
        self.looks = LOOKS;
    }

    /// Notes a post to a connection.
    pub(super) fn posted(&mut self, key: usize) {
        self.written = Some(key);
        self.looks = LOOKS;
        self.is_answered |= self.delivered == Some(key);
    }

    /// Notes that the system sends what was written to a connection, and the acknowledgements that waited with it.
    #[inline]
    pub(super) fn sent(&mut self, key: usize) {
        if self.waits(key) {
            self.waiting = None;
        }
    }

    /// Whether an answer to what was delivered last is likely.
    pub(super) fn expects_answer(&self) -> bool {
        self.answers >= ANSWERS
    }

    /// Lets the acknowledgements of a connection wait for an answer. Returns the connection whose acknowledgements have waited
    /// until now, if that is another.
    pub(super) fn wait(&mut self, key: usize) -> Option<usize> {
        let before = self.waiting.replace(Waiting { key, polls: POLLS });
        before.map(|before| before.key).filter(|&before| before != key)
    }

    /// Notes a poll. Returns the connection whose acknowledgements have waited long enough.
    #[inline]
    pub(super) fn polled(&mut self) -> Option<usize> {
        let waiting = self.waiting.as_mut()?;
        match waiting.polls.checked_sub(1) {
            Some(polls) => {
                waiting.polls = polls;
                None
            }
            None => self.end_wait(),
        }
    }

    /// The connection whose acknowledgements wait; they wait no longer.
    pub(super) fn end_wait(&mut self) -> Option<usize> {
        self.answers = 0;
        self.waiting.take().map(|waiting| waiting.key)
    }

    /// Whether the acknowledgements of this connection wait for an answer.
    pub(super) fn waits(&self, key: usize) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.key == key)
    }

    /// Another connection may soon have this key.
    pub(super) fn forget(&mut self, key: usize) {
        self.delivered.take_if(|delivered| *delivered == key);
        self.written.take_if(|written| *written == key);
        self.waiting.take_if(|waiting| waiting.key == key);
    }

    /// The connection to look at, the two in turn while responses are awaited.
    #[inline]
    pub(super) fn next(&mut self, awaits_responses: bool) -> Option<usize> {
        self.looks = self.looks.checked_sub(1)?;
        let written = self.written.filter(|_| awaits_responses);
        match self.looks.is_multiple_of(2) {
            true => written.or(self.delivered),
            false => self.delivered.or(written),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::ZERO + Duration::from_micros(micros)
    }

    /// A packet on connection 5 every `micros`, all of them answered.
    fn conversation(packets: u64, micros: u64) -> Attention {
        let mut attention = Attention::default();
        for n in 0..packets {
            attention.delivered(5, at(n * micros));
            attention.posted(5);
        }
        attention
    }

    #[test]
    fn attention_is_on_both_connections_in_turn_while_responses_are_awaited() {
        let mut attention = Attention::default();
        assert_eq!(attention.next(true), None);
        attention.delivered(3, at(0));
        assert_eq!(attention.next(true), Some(3));
        attention.posted(5);
        let both = [attention.next(true), attention.next(true)];
        assert!(both.contains(&Some(3)) && both.contains(&Some(5)));
        assert_eq!([attention.next(false), attention.next(false)], [Some(3); 2]);
        attention.forget(3);
        assert_eq!(attention.next(true), Some(5));
        assert_eq!(attention.next(false), None);
    }

    #[test]
    fn attention_ends_after_many_looks_in_vain() {
        let mut attention = Attention::default();
        attention.delivered(1, at(0));
        assert_eq!((0..10_000).filter_map(|_| attention.next(false)).count(), LOOKS as usize);
    }

    #[test]
    fn answer_is_expected_after_four_packets_that_came_soon_after_answers() {
        assert!(!conversation(4, 200).expects_answer());
        assert!(conversation(5, 200).expects_answer());
        assert!(!conversation(100, 201).expects_answer(), "it computes in between");
        let mut attention = conversation(5, 10);
        attention.delivered(5, at(100));
        assert!(attention.expects_answer());
        attention.delivered(5, at(110));
        assert!(!attention.expects_answer(), "two packets, one answer");
        let mut attention = conversation(5, 10);
        attention.delivered(3, at(100));
        assert!(!attention.expects_answer(), "another connection");
        let mut attention = conversation(5, 10);
        attention.posted(3);
        assert!(attention.expects_answer(), "a post to somebody else in between");
    }

    #[test]
    fn acknowledgements_wait_for_the_answer_or_for_a_few_polls_in_vain() {
        let mut attention = conversation(5, 10);
        assert_eq!(attention.wait(5), None);
        assert_eq!([attention.polled(), attention.polled()], [None, None]);
        assert_eq!([attention.polled(), attention.polled()], [Some(5), None]);
        assert!(!attention.expects_answer(), "one was awaited in vain");
        attention = conversation(5, 10);
        assert_eq!(attention.wait(5), None);
        attention.posted(5);
        attention.sent(3);
        assert!(attention.waits(5), "the answer isn't written yet");
        attention.sent(5);
        assert!(!attention.waits(5), "the answer takes them along");
        assert!(attention.expects_answer());
    }

    #[test]
    fn acknowledgements_of_one_connection_wait_at_a_time() {
        let mut attention = Attention::default();
        assert_eq!(attention.wait(3), None);
        assert_eq!(attention.wait(4), Some(3));
        attention.sent(3);
        assert!(attention.waits(4));
        assert_eq!([attention.end_wait(), attention.end_wait()], [Some(4), None]);
        attention.wait(4);
        attention.forget(4);
        assert_eq!(attention.polled(), None);
        assert!(!attention.waits(4));
    }
}
