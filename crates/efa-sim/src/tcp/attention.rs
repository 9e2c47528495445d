//! Which connection a poll looks at without asking the system first, and whose acknowledgements wait for an answer.

use super::socket::Token;

/// Polls in a row that look at a connection in vain before the system alone is asked.
const LOOKS: u32 = 4096;
/// Polls that find nothing before the system is to send acknowledgements without an answer: in the first the program that
/// got the packet finds that there are no more, so it can answer only after that.
const POLLS: u32 = 2;

/// The connections of a conversation: the one that delivered last, and the one that was written to last. To receive from
/// one of them costs as much as to ask the system whether it is worth while.
#[derive(Debug, Default)]
pub(super) struct Attention {
    incoming: Option<usize>,
    outgoing: Option<usize>,
    /// How many more looks may be in vain.
    looks: u32,
    /// The connection whose acknowledgements wait, and for how many more polls.
    waiting: Option<(usize, u32)>,
    /// Whether acknowledgements last waited in vain.
    is_unanswered: bool,
}

impl Attention {
    pub(super) fn delivered(&mut self, key: usize) {
        self.incoming = Some(key);
        self.looks = LOOKS;
    }

    /// Notes a post. If it is the answer, acknowledgements wait no longer than for the next poll.
    pub(super) fn posted(&mut self, key: usize) {
        self.outgoing = Some(key);
        self.looks = LOOKS;
        self.is_unanswered = false;
        if let Some((_, polls)) = &mut self.waiting {
            *polls = 0;
        }
    }

    /// The connection on which an answer is likely: the last that was written to, unless one was awaited in vain since.
    pub(super) fn answers(&self) -> Option<usize> {
        self.outgoing.filter(|_| !self.is_unanswered)
    }

    /// Lets the acknowledgements of a connection wait for an answer. Returns the one whose acknowledgements have waited
    /// until now, if that is another.
    pub(super) fn wait(&mut self, key: usize) -> Option<usize> {
        self.is_unanswered = true;
        let before = self.waiting.replace((key, POLLS));
        before.map(|(before, _)| before).filter(|&before| before != key)
    }

    /// Notes a poll. Returns the connection whose acknowledgements have waited long enough.
    #[inline]
    pub(super) fn polled(&mut self) -> Option<usize> {
        let (key, polls) = self.waiting?;
        match polls.checked_sub(1) {
            Some(polls) => {
                self.waiting = Some((key, polls));
                None
            }
            None => self.end_wait(),
        }
    }

    /// The connection whose acknowledgements wait; they wait no longer.
    pub(super) fn end_wait(&mut self) -> Option<usize> {
        self.waiting.take().map(|(key, _)| key)
    }

    /// Whether the acknowledgements of this connection wait for an answer.
    pub(super) fn waits(&self, key: usize) -> bool {
        self.waiting.is_some_and(|(waiting, _)| waiting == key)
    }

    pub(super) fn forget(&mut self, token: Token) {
        match token {
            Token::Incoming(key) if self.incoming == Some(key) => self.incoming = None,
            Token::Outgoing(key) if self.outgoing == Some(key) => self.outgoing = None,
            _ => {}
        }
        if self.waiting.is_some_and(|(key, _)| token == Token::Incoming(key)) {
            self.waiting = None;
        }
    }

    /// The connection to look at, the two in turn while acknowledgements are awaited.
    #[inline]
    pub(super) fn next(&mut self, awaits_acknowledgements: bool) -> Option<Token> {
        self.looks = self.looks.checked_sub(1)?;
        let incoming = self.incoming.map(Token::Incoming);
        let outgoing = self.outgoing.filter(|_| awaits_acknowledgements).map(Token::Outgoing);
        match self.looks.is_multiple_of(2) {
            true => incoming.or(outgoing),
            false => outgoing.or(incoming),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_is_on_both_connections_in_turn_while_acknowledgements_are_awaited() {
        let mut attention = Attention::default();
        assert_eq!(attention.next(true), None);
        attention.delivered(3);
        assert_eq!(attention.next(true), Some(Token::Incoming(3)));
        attention.posted(5);
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
        attention.posted(5);
        assert_eq!(attention.answers(), Some(5));
        assert_eq!(attention.wait(3), None);
        assert_eq!([attention.polled(), attention.polled()], [None, None]);
        assert_eq!([attention.polled(), attention.polled()], [Some(3), None]);
        assert_eq!(attention.answers(), None, "not before the next post");
        attention.posted(5);
        assert_eq!(attention.answers(), Some(5));
        assert_eq!(attention.wait(3), None);
        attention.posted(5);
        assert_eq!([attention.polled(), attention.polled()], [Some(3), None]);
        assert_eq!(attention.answers(), Some(5), "the last wait was not in vain");
    }

    #[test]
    fn acknowledgements_of_one_connection_wait_at_a_time() {
        let mut attention = Attention::default();
        assert_eq!(attention.wait(3), None);
        assert_eq!(attention.wait(4), Some(3));
        assert!(attention.waits(4));
        assert_eq!([attention.end_wait(), attention.end_wait()], [Some(4), None]);
        attention.wait(4);
        attention.forget(Token::Outgoing(4));
        assert!(attention.waits(4));
        attention.forget(Token::Incoming(4));
        assert_eq!(attention.polled(), None);
        assert!(!attention.waits(4));
    }
}
