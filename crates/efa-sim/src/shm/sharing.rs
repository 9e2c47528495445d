//! Long reads are shared: the target's process writes the back part while the requester reads the front part.
//!
//! The kernel copies as fast as one processor does. The one of a target that waits until its message was read is
//! free; so two copy at a time, and a long read takes half the time.
//!
//! ```text
//!   requester                                             target
//!   asks for the back part          ══ ring ══►           polls
//!   reads the front part                                  takes the request, pins the key,
//!     not taken by now? withdraws it,                     writes the back part
//!       and reads the back part too
//!     taken? goes on when it is     ◄── acknowledgement ──
//! ```
//!
//! A target need not poll, and may refuse: then the requester has read all by itself. It asks a peer that polls its ring,
//! or may sleep, and has answered the last request. So one that doesn't poll has one request that was withdrawn, which it
//! answers at its next poll.
//!
//! One word of the request decides who copies: the target changes it to *taken* or the requester to *withdrawn*,
//! whoever is first. What was taken is written before the requester goes on with the operation, or its target is
//! gone. The target writes only to a region for which requests were made ([`Use::Pushed`](crate::keys::Use)), and pins
//! its key meanwhile as other writers do; so a region that is deregistered, or a queue pair that is closed, waits for it.
//! An operation that waits for long is put behind those of other targets. Operations of one target end in their order,
//! as they do without sharing.

use std::ops::Range;

use efa_device::Status;

use super::memory::PAGE;

/// Reads of at least this many bytes are shared.
pub(super) const SHARED_FROM: usize = 64 << 10;
/// By how many bytes the part of the requester is longer, as the target begins later.
pub(super) const LATER: usize = 24 << 10;

/// Tells the requests of a queue pair apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ticket(u64);

impl Ticket {
    /// The one after this.
    pub(super) fn next(&mut self) -> Self {
        self.0 += 1;
        *self
    }
}

/// The back part of a piece, for which a peer was asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared {
    /// The ring to the peer.
    pub(super) ring: usize,
    pub(super) ticket: Ticket,
    pub(super) length: usize,
    /// What became of the front part.
    pub(super) front: Result<(), Status>,
    /// How often it was waited for.
    pub(super) polls: u32,
}

/// What a peer has answered to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Awaited,
    Written,
    Refused,
}

/// The last request to a peer.
#[derive(Debug, Default)]
pub(super) struct Asked {
    ticket: Ticket,
    /// Of the packet with the request, while it isn't acknowledged.
    number: Option<u64>,
    is_written: bool,
    /// Whether the peer can't write the memory of this process.
    is_forbidden: bool,
}

impl Asked {
    pub(super) fn begin(&mut self, ticket: Ticket, number: u64) {
        (self.ticket, self.number, self.is_written) = (ticket, Some(number), false);
    }

    /// Notes the answer.
    pub(super) fn end(&mut self, result: Result<(), Status>) {
        (self.number, self.is_written) = (None, result.is_ok());
        self.is_forbidden |= result == Err(Status::NotPermitted);
    }

    /// Whether another request makes sense.
    pub(super) fn may_ask(&self) -> bool {
        self.number.is_none() && !self.is_forbidden
    }

    /// The number of the packet with this ticket, if it isn't acknowledged.
    pub(super) fn awaited(&self, ticket: Ticket) -> Option<u64> {
        self.number.filter(|_| self.ticket == ticket)
    }

    pub(super) fn answer(&self, ticket: Ticket) -> Answer {
        match self.number {
            _ if self.ticket != ticket => Answer::Refused,
            Some(_) => Answer::Awaited,
            None if self.is_written => Answer::Written,
            None => Answer::Refused,
        }
    }
}

/// The back part of `length` bytes that are read from `address` on; empty if they are too few.
pub(super) fn back_part(address: u64, length: usize) -> Range<usize> {
    if length < SHARED_FROM {
        return length..length;
    }
    let middle = (length + LATER) / 2;
    // The front part ends with a page of the target.
    let excess = address.wrapping_add(middle as u64) % PAGE as u64;
    middle - excess as usize..length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_part_begins_with_a_page_and_is_the_shorter_one() {
        for (address, length) in
            [(0, SHARED_FROM), (4095, 1 << 20), (1, 70_001), (u64::MAX, 1 << 16)]
        {
            let back = back_part(address, length);
            assert_eq!(
                address.wrapping_add(back.start as u64) % PAGE as u64,
                0,
                "{address} {length}"
            );
            assert!(back.len() <= length / 2 && back.len() > length / 4, "{back:?} of {length}");
        }
        assert!(back_part(0, SHARED_FROM - 1).is_empty());
        assert!(back_part(0, 0).is_empty());
    }

    #[test]
    fn answer_is_that_of_the_request_with_the_ticket() {
        let (mut asked, mut tickets) = (Asked::default(), Ticket::default());
        let first = tickets.next();
        assert!(asked.may_ask());
        asked.begin(first, 7);
        assert_eq!((asked.answer(first), asked.awaited(first)), (Answer::Awaited, Some(7)));
        assert!(!asked.may_ask());
        asked.end(Ok(()));
        assert_eq!((asked.answer(first), asked.awaited(first)), (Answer::Written, None));
        let second = tickets.next();
        asked.begin(second, 9);
        assert_eq!((asked.answer(first), asked.awaited(first)), (Answer::Refused, None));
        asked.end(Err(Status::RemoteBadAddress));
        assert_eq!(asked.answer(second), Answer::Refused);
        assert!(asked.may_ask());
        asked.begin(tickets.next(), 10);
        asked.end(Err(Status::NotPermitted));
        assert!(!asked.may_ask(), "the peer is never asked again");
    }
}
