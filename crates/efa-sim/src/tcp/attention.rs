//! Which connection a poll looks at without asking the system first.

use super::socket::Token;

/// Polls in a row that look at a connection in vain before the system alone is asked.
const LOOKS: u32 = 4096;

/// The connections of a conversation: the one that delivered last, and the one that was written to last. To receive from
/// one of them costs as much as to ask the system whether it is worth while.
#[derive(Debug, Default)]
pub(super) struct Attention {
    incoming: Option<usize>,
    outgoing: Option<usize>,
    /// How many more looks may be in vain.
    looks: u32,
}

impl Attention {
    pub(super) fn delivered(&mut self, key: usize) {
        self.incoming = Some(key);
        self.looks = LOOKS;
    }

    pub(super) fn posted(&mut self, key: usize) {
        self.outgoing = Some(key);
        self.looks = LOOKS;
    }

    pub(super) fn forget(&mut self, token: Token) {
        match token {
            Token::Incoming(key) if self.incoming == Some(key) => self.incoming = None,
            Token::Outgoing(key) if self.outgoing == Some(key) => self.outgoing = None,
            _ => {}
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
}
