//! Which connection a poll looks at without asking the system first, and whose acknowledgements wait for an answer.

use super::socket::Token;
use super::wire::Early;

/// Polls in a row that look at a connection in vain before the system alone is asked.
const LOOKS: u32 = 4096;
/// Polls that find nothing before the system is to send acknowledgements without an answer: in the first the program that
/// got the packet finds that there are no more, so it can answer only after that.
const POLLS: u32 = 2;

/// Polls that find nothing before the system is to send acknowledgements that an answer has named: the other side may not
/// have come to the answer.
const POLLS_AFTER_ANSWER: u32 = 256;

/// After how many answers that name acknowledgements the system is to send these. TCP's own acknowledgements go with them:
/// more packets than the smallest congestion window has, four, would wait for these.
const PUSH_EVERY: u32 = 4;
/// Looks of which one is at acknowledgements when these come early.
const LOOKS_WHEN_EARLY: u32 = 16;

/// Acknowledgements that the system holds back.
#[derive(Debug)]
struct Waiting {
    /// Their connection.
    key: usize,
    /// For how many more polls they wait.
    polls: u32,
    /// The connection on which the answer is awaited.
    answer: usize,
    unnamed: Unnamed,
}

/// Which acknowledgements among those that wait no answer has named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unnamed {
    Nothing,
    These(Early),
    /// Such as an early acknowledgement can't name.
    Others,
}

impl Unnamed {
    fn with(self, early: Option<Early>) -> Self {
        let all = match (self, early) {
            (Self::Nothing, early) => early,
            (Self::These(before), Some(early)) => before.with(early),
            _ => None,
        };
        all.map_or(Self::Others, Self::These)
    }
}

/// The connections of a conversation: the one that delivered last, and the one that was written to last. To receive from
/// one of them costs as much as to ask the system whether it is worth while.
#[derive(Debug, Default)]
pub(super) struct Attention {
    incoming: Option<usize>,
    outgoing: Option<usize>,
    /// How many more looks may be in vain.
    looks: u32,
    waiting: Option<Waiting>,
    /// Whether acknowledgements last waited in vain.
    is_unanswered: bool,
    /// Answers that named acknowledgements since the system was last told to send these.
    named: u32,
    /// Whether acknowledgements last came early.
    are_early: bool,
}

impl Attention {
    pub(super) fn delivered(&mut self, key: usize) {
        self.incoming = Some(key);
        self.looks = LOOKS;
    }

    /// Notes a post to a connection. If it is the answer and `can_name` acknowledgements, returns those that wait for it.
    /// If it can't, they wait no longer than for the next poll.
    pub(super) fn posted(&mut self, key: usize, can_name: bool) -> Option<Early> {
        self.outgoing = Some(key);
        self.looks = LOOKS;
        self.is_unanswered = false;
        let waiting = self.waiting.as_mut()?;
        match waiting.unnamed {
            Unnamed::Nothing => None,
            Unnamed::These(early) if can_name && waiting.answer == key => {
                waiting.unnamed = Unnamed::Nothing;
                self.named = (self.named + 1) % PUSH_EVERY;
                waiting.polls = if self.named == 0 { 0 } else { POLLS_AFTER_ANSWER };
                Some(early)
            }
            _ => {
                waiting.polls = 0;
                None
            }
        }
    }

    /// Notes whether acknowledgements came early, in front of packets of the other side.
    pub(super) fn acknowledged(&mut self, early: bool) {
        self.are_early = early;
    }

    /// The connection that was written to last.
    pub(super) fn written_to(&self) -> Option<usize> {
        self.outgoing
    }

    /// The connection on which an answer is likely: the last that was written to, unless one was awaited in vain since.
    pub(super) fn answers(&self) -> Option<usize> {
        self.outgoing.filter(|_| !self.is_unanswered)
    }

    /// Lets the acknowledgements of a connection wait for an answer, which names `early` if that is all of them. Returns
    /// the connection whose acknowledgements have waited until now, if that is another.
    pub(super) fn wait(
        &mut self,
        key: usize,
        answer: usize,
        early: Option<Early>,
    ) -> Option<usize> {
        self.is_unanswered = true;
        let before = self.waiting.take();
        let same = before.as_ref().filter(|before| before.key == key);
        let unnamed = same.map_or(Unnamed::Nothing, |same| same.unnamed).with(early);
        self.waiting = Some(Waiting { key, polls: POLLS, answer, unnamed });
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
        self.waiting.take().map(|waiting| waiting.key)
    }

    /// Whether the acknowledgements of this connection wait for an answer.
    pub(super) fn waits(&self, key: usize) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.key == key)
    }

    pub(super) fn forget(&mut self, token: Token) {
        match token {
            Token::Incoming(key) if self.incoming == Some(key) => self.incoming = None,
            Token::Outgoing(key) if self.outgoing == Some(key) => self.outgoing = None,
            _ => {}
        }
        match &mut self.waiting {
            Some(waiting) if token == Token::Incoming(waiting.key) => self.waiting = None,
            // Another connection may soon have its key.
            Some(waiting) if token == Token::Outgoing(waiting.answer) => {
                (waiting.polls, waiting.unnamed) = (0, Unnamed::Others);
            }
            _ => {}
        }
    }

    /// The connection to look at, the two in turn while acknowledgements are awaited.
    #[inline]
    pub(super) fn next(&mut self, awaits_acknowledgements: bool) -> Option<Token> {
        self.looks = self.looks.checked_sub(1)?;
        let incoming = self.incoming.map(Token::Incoming);
        let outgoing = self.outgoing.filter(|_| awaits_acknowledgements).map(Token::Outgoing);
        let every = if self.are_early { LOOKS_WHEN_EARLY } else { 2 };
        match self.looks.is_multiple_of(every) {
            true => outgoing.or(incoming),
            false => incoming.or(outgoing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn early(first: u32, count: u16) -> Option<Early> {
        Some(Early { token: 7, first, count })
    }

    #[test]
    fn attention_is_on_both_connections_in_turn_while_acknowledgements_are_awaited() {
        let mut attention = Attention::default();
        assert_eq!(attention.next(true), None);
        attention.delivered(3);
        assert_eq!(attention.next(true), Some(Token::Incoming(3)));
        attention.posted(5, false);
        let both = [attention.next(true), attention.next(true)];
        assert!(
            both.contains(&Some(Token::Incoming(3))) && both.contains(&Some(Token::Outgoing(5)))
        );
        assert_eq!([attention.next(false), attention.next(false)], [Some(Token::Incoming(3)); 2]);
        attention.forget(Token::Incoming(3));
        assert_eq!(attention.next(true), Some(Token::Outgoing(5)));
        assert_eq!(attention.next(false), None);
    }

    #[test]
    fn attention_ends_after_many_looks_in_vain() {
        let mut attention = Attention::default();
        attention.delivered(1);
        assert_eq!((0..10_000).filter_map(|_| attention.next(false)).count(), LOOKS as usize);
    }

    #[test]
    fn acknowledgements_wait_for_the_post_that_answers_or_for_a_few_polls_in_vain() {
        let mut attention = Attention::default();
        assert_eq!(attention.answers(), None);
        attention.posted(5, false);
        assert_eq!(attention.answers(), Some(5));
        assert_eq!(attention.wait(3, 5, None), None);
        assert_eq!([attention.polled(), attention.polled()], [None, None]);
        assert_eq!([attention.polled(), attention.polled()], [Some(3), None]);
        assert_eq!(attention.answers(), None, "not before the next post");
        attention.posted(5, false);
        assert_eq!(attention.answers(), Some(5));
        assert_eq!(attention.wait(3, 5, None), None);
        attention.posted(5, false);
        assert_eq!([attention.polled(), attention.polled()], [Some(3), None]);
        assert_eq!(attention.answers(), Some(5), "the last wait was not in vain");
    }

    #[test]
    fn acknowledgements_of_one_connection_wait_at_a_time() {
        let mut attention = Attention::default();
        assert_eq!(attention.wait(3, 5, None), None);
        assert_eq!(attention.wait(4, 5, None), Some(3));
        assert!(attention.waits(4));
        assert_eq!([attention.end_wait(), attention.end_wait()], [Some(4), None]);
        attention.wait(4, 5, None);
        attention.forget(Token::Outgoing(4));
        assert!(attention.waits(4));
        attention.forget(Token::Incoming(4));
        assert_eq!(attention.polled(), None);
        assert!(!attention.waits(4));
    }

    #[test]
    fn answer_names_the_acknowledgements_that_wait_for_it_once() {
        let mut attention = Attention::default();
        attention.wait(3, 5, early(10, 1));
        attention.wait(3, 5, early(11, 2));
        assert_eq!(attention.posted(5, true), early(10, 3));
        assert_eq!(attention.posted(5, true), None);
        // The next message of the conversation.
        attention.wait(3, 5, early(13, 1));
        assert_eq!(attention.posted(5, true), early(13, 1));
        let polls = (0..).take_while(|_| attention.polled().is_none()).count();
        assert_eq!(polls, POLLS_AFTER_ANSWER as usize, "then the system sends them, too");
    }

    #[test]
    fn acknowledgements_that_no_answer_can_name_are_sent_at_the_poll_after_it() {
        for (what, others, post, can_name) in [
            ("not in a row", early(12, 1), 5, true),
            ("not all of them", None, 5, true),
            ("to another peer", early(11, 1), 6, true),
            ("on a connection that is closed", early(11, 1), 5, false),
        ] {
            let mut attention = Attention::default();
            attention.wait(3, 5, early(10, 1));
            attention.wait(3, 5, others);
            assert_eq!(attention.posted(post, can_name), None, "{what}");
            assert_eq!(attention.polled(), Some(3), "{what}");
        }
        let mut attention = Attention::default();
        attention.wait(3, 5, early(10, 1));
        attention.forget(Token::Outgoing(5));
        assert_eq!(attention.posted(5, true), None, "another connection has the key");
        assert_eq!(attention.polled(), Some(3));
    }
}
