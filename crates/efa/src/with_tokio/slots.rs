//! Which future an operation belongs to, and what becomes of a message whose future is gone.
//!
//! ```text
//!   a future starts an operation ─► slot ◄─ completion
//!                                    │ the future is there: it gets the entry
//!                                    └ it is gone, and the entry is a message: a future that waits and matches
//!                                      gets it, or the next that does
//! ```
//!
//! A receive of many messages has a slot too, which collects them: `Future::Collects`.
//!
//! A slot lives until its operation has completed and its future is gone, so its key, which is the context of
//! the operation, stands for nothing else before.
//!
//! Wakers are called and dropped by the callers of this module, after they have unlocked it, and so are entries that
//! nobody wants: wakers and the owners of buffers may run code that drops a future.

use std::collections::VecDeque;
use std::task::{Poll, Waker};

use efa_rdm::OperationError;
use slab::Slab;

use crate::address::Address;
use crate::address_vector::AddressVector;
use crate::completion::{Completion, CompletionError, Kind};
use crate::completion_queue::Entry;
use crate::message::Receive;

#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Slab<Slot>,
    /// Messages whose futures are gone, and that no future waits for.
    kept: VecDeque<(Wanted, Entry)>,
    /// Whether there is one that futures don't know of that have no slot yet.
    is_newly_kept: bool,
    started: u64,
}

/// What a receive matches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    receive: Receive,
    /// The address of its source. It alone names a sender that came into the address vector after its message.
    source: Option<Address>,
}

impl Wanted {
    pub(super) fn new(receive: Receive, addresses: &AddressVector) -> Self {
        Self { receive, source: receive.source.and_then(|source| addresses.address(source)) }
    }
}

#[derive(Debug)]
struct Slot {
    /// Of a receive.
    wanted: Option<Wanted>,
    /// Slots are started in the order of this number.
    number: u64,
    /// The operation has not completed.
    is_under_way: bool,
    future: Future,
}

#[derive(Debug)]
enum Future {
    Waits(Option<Waker>),
    /// It has not taken the entry yet.
    Has(Box<Entry>),
    /// It takes one message after the other.
    Collects(VecDeque<Entry>, Option<Waker>),
    Gone,
}

impl Future {
    /// Takes an entry if it waits for one, or collects them, and returns a waker to be called. Else the entry comes back: it
    /// is gone, or has a message that another receive had matched.
    #[allow(clippy::result_large_err, reason = "the entry comes back")]
    fn take_entry(&mut self, entry: Entry) -> Result<Option<Waker>, Entry> {
        match self {
            Self::Waits(waker) => {
                let waker = waker.take();
                *self = Self::Has(Box::new(entry));
                Ok(waker)
            }
            Self::Collects(entries, waker) => {
                entries.push_back(entry);
                Ok(waker.take())
            }
            Self::Has(_) | Self::Gone => Err(entry),
        }
    }
}

/// Messages of a receive of many that are collected until somebody takes them.
pub(super) const COLLECTED: usize = 1024;

/// Whether an operation whose future is done is still under way: it may have to be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    UnderWay,
    Nothing,
}

/// What is left to do after a change, without the lock.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct After {
    /// A future to be woken.
    woken: Option<Waker>,
    /// To be dropped, as an entry that nobody wants and its buffer are.
    dropped: (Option<Waker>, Option<Box<Entry>>),
}

impl After {
    fn wake(woken: Option<Waker>) -> Self {
        Self { woken, ..Self::default() }
    }

    #[cold]
    fn drop(entry: Box<Entry>) -> Self {
        Self { woken: None, dropped: (None, Some(entry)) }
    }

    pub(super) fn run(self) {
        let Self { woken, dropped } = self;
        woken.into_iter().for_each(Waker::wake);
        drop(dropped);
    }
}

impl Slots {
    /// A message that was kept and that this receive matches.
    pub(super) fn take_kept(&mut self, wanted: &Wanted) -> Option<Entry> {
        let fits = |(old, entry): &(Wanted, Entry)| matches(wanted, old, of(entry));
        let index = self.kept.iter().position(fits)?;
        self.kept.remove(index).map(|(_, entry)| entry)
    }

    /// The same for a receive of many messages, unless its buffer has come back.
    pub(super) fn take_kept_for(&mut self, key: usize) -> Option<Entry> {
        let slot = self.slots.get(key).filter(|slot| slot.is_under_way)?;
        let wanted = slot.wanted?;
        self.take_kept(&wanted)
    }

    /// Whether a message was kept since the last call: it may be for a receive that has no slot yet.
    pub(super) fn take_newly_kept(&mut self) -> bool {
        std::mem::take(&mut self.is_newly_kept)
    }

    /// A slot for an operation that is about to start, with its key.
    pub(super) fn start(&mut self, wanted: Option<Wanted>) -> usize {
        self.start_with(wanted, Future::Waits(None))
    }

    /// The same for a receive of many messages.
    pub(super) fn start_collecting(&mut self, wanted: Wanted) -> usize {
        self.start_with(Some(wanted), Future::Collects(VecDeque::new(), None))
    }

    fn start_with(&mut self, wanted: Option<Wanted>, future: Future) -> usize {
        self.started += 1;
        self.slots.insert(Slot { wanted, number: self.started, is_under_way: true, future })
    }

    /// Whether a slot has collected so many messages that the next has to wait.
    pub(super) fn is_full(&self, key: usize) -> bool {
        let future = self.slots.get(key).map(|slot| &slot.future);
        matches!(future, Some(Future::Collects(entries, _)) if entries.len() >= COLLECTED)
    }

    /// What a receive of many messages finds when it is polled; `None` once there are no more. Returns a waker to be
    /// dropped, if another takes its place.
    pub(super) fn poll_collected(
        &mut self,
        key: usize,
        waker: &Waker,
    ) -> (Poll<Option<Entry>>, Option<Waker>) {
        let Some(slot) = self.slots.get_mut(key) else { return (Poll::Ready(None), None) };
        match &mut slot.future {
            Future::Collects(entries, old) => match entries.pop_front() {
                Some(entry) => (Poll::Ready(Some(entry)), None),
                None if slot.is_under_way => (Poll::Pending, old.replace(waker.clone())),
                None => (Poll::Ready(None), None),
            },
            _ => (Poll::Ready(None), None),
        }
    }

    /// A receive of many messages is given up. Those that it has collected go to others.
    pub(super) fn stop_collecting(&mut self, key: usize) -> (Left, Vec<After>) {
        let Some(slot) = self.slots.get_mut(key) else { return (Left::Nothing, Vec::new()) };
        let wanted = slot.wanted;
        let future = std::mem::replace(&mut slot.future, Future::Gone);
        let left = self.leave(key);
        match (future, wanted) {
            (Future::Collects(entries, waker), Some(wanted)) => {
                let kept = entries.into_iter().map(|entry| self.keep(wanted, entry.into()));
                let after = After { woken: None, dropped: (waker, None) };
                (left, kept.chain([after]).collect())
            }
            _ => (left, Vec::new()),
        }
    }

    /// The operation did not start. What its future got meanwhile is kept.
    pub(super) fn not_started(&mut self, key: usize) -> After {
        let Some(slot) = self.slots.try_remove(key) else { return After::default() };
        match (slot.future, slot.wanted) {
            (Future::Has(entry), Some(wanted)) => self.keep(wanted, entry),
            _ => After::default(),
        }
    }

    /// An operation has completed.
    pub(super) fn completed(&mut self, key: usize, entry: Entry) -> After {
        let Some(slot) = self.slots.get_mut(key) else {
            tracing::error!(key, "a completion that belongs to no operation");
            return After::drop(entry.into());
        };
        // One message of many is not the last completion of its receive.
        let is_last = of(&entry).kind != Kind::MultiReceive;
        slot.is_under_way = !is_last;
        let wanted = slot.wanted;
        let entry = match slot.future.take_entry(entry) {
            Ok(waker) => return After::wake(waker),
            Err(entry) => entry.into(),
        };
        if is_last && matches!(slot.future, Future::Gone) {
            self.slots.remove(key);
        }
        match wanted {
            Some(wanted) => self.keep(wanted, entry),
            None => After::drop(entry),
        }
    }

    /// What a future finds when it is polled. Returns a waker to be dropped, if another takes its place.
    pub(super) fn poll(
        &mut self,
        key: usize,
        waker: &Waker,
    ) -> (Poll<(Entry, Left)>, Option<Waker>) {
        let Some(slot) = self.slots.get_mut(key) else { return (Poll::Pending, None) };
        match std::mem::replace(&mut slot.future, Future::Gone) {
            Future::Has(entry) => {
                let left = self.leave(key);
                (Poll::Ready((*entry, left)), None)
            }
            Future::Waits(old) => {
                slot.future = Future::Waits(Some(waker.clone()));
                (Poll::Pending, old)
            }
            // Not polled by this call, or not at all.
            other => {
                slot.future = other;
                (Poll::Pending, None)
            }
        }
    }

    /// A future is dropped that has not got its entry.
    pub(super) fn dropped(&mut self, key: usize) -> (Left, After) {
        let Some(slot) = self.slots.get_mut(key) else { return (Left::Nothing, After::default()) };
        let wanted = slot.wanted;
        let future = std::mem::replace(&mut slot.future, Future::Gone);
        let left = self.leave(key);
        let after = match (future, wanted) {
            (Future::Has(entry), Some(wanted)) => self.keep(wanted, entry),
            (Future::Has(entry), None) => After::drop(entry),
            (Future::Waits(waker), _) => After { woken: None, dropped: (waker, None) },
            _ => After::default(),
        };
        (left, after)
    }

    /// Wakers of all futures that wait.
    pub(super) fn wakers(&mut self) -> Vec<Waker> {
        let waker = |slot: &mut Slot| match &mut slot.future {
            Future::Waits(waker) | Future::Collects(_, waker) => waker.take(),
            Future::Has(_) | Future::Gone => None,
        };
        self.slots.iter_mut().filter_map(|(_, slot)| waker(slot)).collect()
    }

    /// The future of a slot is gone.
    fn leave(&mut self, key: usize) -> Left {
        if self.slots.get(key).is_some_and(|slot| slot.is_under_way) {
            return Left::UnderWay;
        }
        self.slots.try_remove(key);
        Left::Nothing
    }

    /// Gives a message to the receive that has waited longest of those that match it, or keeps it.
    fn keep(&mut self, old: Wanted, entry: Box<Entry>) -> After {
        use OperationError::{Cancelled, Closed, ConnectionEnded};
        if of(&entry).kind == Kind::Released {
            return After::drop(entry);
        }
        if let Err(CompletionError { error: Cancelled | ConnectionEnded | Closed, .. }) = &*entry {
            return After::drop(entry);
        }
        let fits = |slot: &Slot| {
            let waits = match slot.future {
                Future::Waits(_) => true,
                Future::Collects(..) => slot.is_under_way,
                Future::Has(_) | Future::Gone => false,
            };
            waits && slot.wanted.is_some_and(|wanted| matches(&wanted, &old, of(&entry)))
        };
        let waiting = self.slots.iter_mut().map(|(_, slot)| slot).filter(|slot| fits(slot));
        let Some(slot) = waiting.min_by_key(|slot| slot.number) else {
            self.kept.push_back((old, *entry));
            self.is_newly_kept = true;
            return After::default();
        };
        // What fits takes it.
        After::wake(slot.future.take_entry(*entry).unwrap_or_default())
    }
}

/// The properties of an operation that completed or failed.
pub(super) fn of(entry: &Entry) -> &Completion {
    match entry {
        Ok(completion) => completion,
        Err(failed) => &failed.completion,
    }
}

/// Whether a receive matches the message that an `old` one had matched.
fn matches(wanted: &Wanted, old: &Wanted, completion: &Completion) -> bool {
    let (receive, old) = (&wanted.receive, &old.receive);
    let has_tag = match (receive.tag, completion.tag) {
        (None, None) => old.tag.is_none(),
        (Some((tag, ignore)), Some(of_message)) => (tag ^ of_message) & !ignore == 0,
        (Some(_), None) => receive.tag == old.tag,
        (None, Some(_)) => false,
    };
    let is_of = |source| {
        let by_address = wanted.source.is_some() && completion.peer_address == wanted.source;
        completion.peer == Some(source) || old.source == Some(source) || by_address
    };
    has_tag && receive.source.is_none_or(is_of)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

    use super::*;
    use crate::buffer::Buffer;
    use crate::endpoint::EndpointId;

    impl From<Receive> for Wanted {
        fn from(receive: Receive) -> Self {
            Self { receive, source: None }
        }
    }

    fn message(tag: u64, text: &'static str) -> Entry {
        Ok(Completion {
            endpoint: EndpointId(0),
            context: 0,
            kind: Kind::Receive,
            length: text.len() as u64,
            buffer: text.into(),
            tag: Some(tag),
            cq_data: None,
            peer: None,
            peer_address: None,
            subprotocol: None,
        })
    }

    fn one_of_many(text: &'static str) -> Entry {
        message(0, text).map(|one| Completion { kind: Kind::MultiReceive, tag: None, ..one })
    }

    fn released() -> Entry {
        message(0, "").map(|rest| Completion { kind: Kind::Released, tag: None, ..rest })
    }

    fn cancelled() -> Entry {
        let completion = message(0, "").map(|message| Completion { tag: None, ..message });
        Err(CompletionError {
            error: OperationError::Cancelled,
            completion: Box::new(completion.unwrap()),
        })
    }

    fn text(entry: Entry) -> Buffer {
        entry.unwrap().buffer
    }

    fn poll(slots: &mut Slots, key: usize) -> Poll<(Entry, Left)> {
        slots.poll(key, Waker::noop()).0
    }

    fn taken(slots: &mut Slots, key: usize) -> (Buffer, Left) {
        match poll(slots, key) {
            Poll::Ready((entry, left)) => (text(entry), left),
            Poll::Pending => panic!("nothing for {key}"),
        }
    }

    #[test]
    fn key_is_given_again_only_after_completion_and_future_are_gone() {
        let mut slots = Slots::default();
        let first = slots.start(None);
        assert_eq!(slots.dropped(first).0, Left::UnderWay);
        let second = slots.start(None);
        assert_ne!(first, second);
        assert!(slots.completed(first, message(0, "late")).woken.is_none());
        assert!(poll(&mut slots, second).is_pending());
        assert!(slots.completed(second, message(0, "own")).woken.is_some());
        assert_eq!(taken(&mut slots, second), ("own".into(), Left::Nothing));
        assert_eq!(slots.slots.len(), 0);
    }

    #[test]
    fn message_of_a_dropped_future_goes_to_the_one_that_waits_longest_and_matches() {
        let mut slots = Slots::default();
        let [old, other, first, second] =
            [1, 2, 1, 1].map(|tag| slots.start(Some(Receive::tagged(tag).into())));
        for key in [old, other, first, second] {
            assert!(poll(&mut slots, key).is_pending());
        }
        assert_eq!(slots.dropped(old).0, Left::UnderWay);
        assert!(slots.completed(old, message(1, "one")).woken.is_some(), "a future to be woken");
        assert!(poll(&mut slots, other).is_pending() && poll(&mut slots, second).is_pending());
        // Its own receive is still posted, and matches another message before it is cancelled.
        assert!(slots.completed(first, message(1, "two")).woken.is_some());
        assert_eq!(taken(&mut slots, first), ("one".into(), Left::Nothing));
        assert_eq!(taken(&mut slots, second), ("two".into(), Left::UnderWay));
        assert!(slots.completed(second, cancelled()).woken.is_none());
        assert_eq!(slots.slots.len(), 1);
    }

    #[test]
    fn message_that_nobody_waits_for_is_kept_for_the_next_receive_that_matches() {
        let mut slots = Slots::default();
        for (tag, text) in [(1, "one"), (2, "two"), (1, "three")] {
            let key = slots.start(Some(Receive::tagged(tag).into()));
            assert!(slots.completed(key, message(tag, text)).woken.is_none(), "never polled");
            assert_eq!(slots.dropped(key).0, Left::Nothing);
        }
        assert!(slots.take_kept(&Receive::tagged(3).into()).is_none());
        assert!(slots.take_kept(&Receive::untagged().into()).is_none());
        assert_eq!(text(slots.take_kept(&Receive::tagged(2).into()).unwrap()), *b"two");
        assert_eq!(text(slots.take_kept(&Receive::masked(0, 1).into()).unwrap()), *b"one");
        assert_eq!(text(slots.take_kept(&Receive::tagged(1).into()).unwrap()), *b"three");
        assert!(slots.kept.is_empty() && slots.slots.is_empty());
    }

    #[test]
    fn messages_of_many_are_collected_in_order_and_end_with_the_release_of_the_buffer() {
        let mut slots = Slots::default();
        let key = slots.start_collecting(Receive::untagged().into());
        assert!(slots.poll_collected(key, Waker::noop()).0.is_pending());
        assert!(slots.completed(key, one_of_many("one")).woken.is_some(), "a future to be woken");
        assert!(slots.completed(key, one_of_many("two")).woken.is_none());
        let _ = slots.completed(key, released());
        for expected in ["one", "two", ""] {
            let Poll::Ready(Some(entry)) = slots.poll_collected(key, Waker::noop()).0 else {
                panic!("nothing in place of {expected}")
            };
            assert_eq!(text(entry), *expected.as_bytes());
        }
        assert!(matches!(slots.poll_collected(key, Waker::noop()).0, Poll::Ready(None)));
        assert_eq!(slots.stop_collecting(key).0, Left::Nothing);
        assert!(slots.slots.is_empty());
    }

    #[test]
    fn messages_of_many_that_are_given_up_go_to_others_also_those_that_come_later() {
        let mut slots = Slots::default();
        let key = slots.start_collecting(Receive::untagged().into());
        let _ = slots.completed(key, one_of_many("one"));
        assert_eq!(slots.stop_collecting(key).0, Left::UnderWay);
        let _ = slots.completed(key, one_of_many("two"));
        let _ = slots.completed(key, released());
        assert!(slots.slots.is_empty());
        for expected in ["one", "two"] {
            let kept = slots.take_kept(&Receive::untagged().into()).unwrap();
            assert_eq!(text(kept), *expected.as_bytes());
        }
        assert!(slots.kept.is_empty());
    }

    #[test]
    fn slot_of_many_is_full_at_its_limit_until_a_message_is_taken() {
        let mut slots = Slots::default();
        let key = slots.start_collecting(Receive::untagged().into());
        for _ in 0..COLLECTED {
            assert!(!slots.is_full(key));
            let _ = slots.completed(key, one_of_many(""));
        }
        assert!(slots.is_full(key));
        assert!(slots.poll_collected(key, Waker::noop()).0.is_ready());
        assert!(!slots.is_full(key));
    }

    #[test]
    fn cancelled_receive_and_send_without_a_future_leave_nothing() {
        let mut slots = Slots::default();
        let [receive, send] =
            [Some(Receive::untagged().into()), None].map(|wanted| slots.start(wanted));
        for (key, entry) in [(receive, cancelled()), (send, message(0, "sent"))] {
            assert_eq!(slots.dropped(key).0, Left::UnderWay);
            assert!(slots.completed(key, entry).woken.is_none());
        }
        assert!(slots.kept.is_empty() && slots.slots.is_empty());
    }

    #[test]
    fn receive_that_does_not_start_passes_on_the_message_that_it_was_given() {
        let mut slots = Slots::default();
        let [old, starts] = [1, 1].map(|tag| slots.start(Some(Receive::tagged(tag).into())));
        let _ = slots.dropped(old);
        let _ = slots.completed(old, message(1, "one"));
        assert!(slots.not_started(starts).woken.is_none());
        assert_eq!(text(slots.take_kept(&Receive::tagged(1).into()).unwrap()), *b"one");
    }
}
