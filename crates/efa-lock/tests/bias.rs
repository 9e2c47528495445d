//! A model of the hand-over of a biased section: loom tries its interleavings, with all values that the memory model
//! allows each load to read, and fails if an access inside doesn't happen before or after each other one.
//!
//! Both fences are those of a thread here. The system's fence in all threads is at least as strong as that: each thread
//! passes one, and where it does so, [`fence_here`](sync::fence_here) may be.

#![allow(unsafe_code, reason = "what the section guards")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

/// What `bias.rs` is compiled against here.
mod sync {
    use loom::sync::atomic::fence;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

    pub(super) fn fence_here() {
        fence(Ordering::SeqCst);
    }

    pub(super) fn fence_everywhere() {
        fence(Ordering::SeqCst);
    }
}

#[path = "../src/bias.rs"]
#[allow(unreachable_pub, dead_code)]
mod bias;

use bias::Bias;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

/// Numbers of threads.
const FIRST: usize = 2;
const SECOND: usize = 4;
const THIRD: usize = 6;

/// What `raw.rs` does, with a mutex of loom, and what it guards.
struct Section {
    bias: Bias,
    raw: Mutex<()>,
    entries: UnsafeCell<usize>,
}

// SAFETY: `entries` is accessed inside only. Loom reports it if that isn't enough.
unsafe impl Sync for Section {}

impl Section {
    /// A section that is biased to the first thread.
    fn new() -> Arc<Self> {
        let section =
            Self { bias: Bias::default(), raw: Mutex::new(()), entries: UnsafeCell::new(0) };
        section.enter(FIRST, Then::Own);
        Arc::new(section)
    }

    fn enter(&self, me: usize, then: Then) {
        let mut guard = None;
        if !self.bias.enter(me) {
            guard = Some(self.raw.lock().unwrap());
            self.bias.enter_with_raw(me, || {
                thread::yield_now();
                true
            });
            if then == Then::Own && self.bias.settle(me) {
                guard = None;
            }
        }
        self.visit();
        assert_eq!(self.bias.leave(), guard.is_some());
    }

    /// Enters unless another thread is inside.
    fn try_enter(&self, me: usize) -> bool {
        if self.bias.enter(me) {
            self.visit();
            assert!(!self.bias.leave());
            return true;
        }
        let guard = self.raw.lock().unwrap();
        let is_inside = self.bias.enter_with_raw(me, || false);
        if is_inside {
            self.visit();
            assert!(self.bias.leave());
        }
        drop(guard);
        is_inside
    }

    fn visit(&self) {
        // SAFETY: this thread is inside.
        self.entries.with_mut(|entries| unsafe { *entries += 1 });
    }

    /// Checks how often threads were inside, after all have ended.
    fn check(&self, entries: usize) {
        // SAFETY: no other thread is left.
        assert_eq!(self.entries.with(|entries| unsafe { *entries }), entries);
    }
}

/// What a thread does that has entered with the raw mutex.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    /// It becomes the owner.
    Own,
    /// It leaves.
    Leave,
}

/// Has `threads` enter one section, each as often as it has a [`Then`], and the first one on the thread of the test.
fn check(bound: Option<usize>, threads: &[(usize, &'static [Then])]) {
    let all = threads.iter().map(|(_, entries)| entries.len()).sum::<usize>();
    let threads = threads.to_vec();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = bound;
    model.check(move || {
        let section = Section::new();
        let run = |section: &Section, (me, entries): (usize, &[Then])| {
            entries.iter().for_each(|then| section.enter(me, *then));
        };
        let others: Vec<_> = threads[1..]
            .iter()
            .map(|thread| {
                let (section, thread) = (Arc::clone(&section), *thread);
                thread::spawn(move || run(&section, thread))
            })
            .collect();
        run(&section, threads[0]);
        others.into_iter().for_each(|other| other.join().unwrap());
        section.check(all + 1);
    });
}

#[test]
fn owner_and_a_thread_that_ends_the_bias_are_inside_one_after_the_other() {
    check(None, &[(FIRST, &[Then::Leave]), (SECOND, &[Then::Leave])]);
    check(Some(3), &[(FIRST, &[Then::Leave; 2]), (SECOND, &[Then::Leave; 2])]);
}

#[test]
fn former_owner_that_is_late_and_the_new_owner_are_inside_one_after_the_other() {
    check(Some(3), &[(FIRST, &[Then::Leave; 2]), (SECOND, &[Then::Own, Then::Leave])]);
    check(Some(3), &[(FIRST, &[Then::Own; 2]), (SECOND, &[Then::Own, Then::Leave])]);
}

/// The third thread has no seat.
#[test]
fn third_thread_and_the_two_that_were_owners_are_inside_one_after_another() {
    let threads: [(usize, &[Then]); 3] =
        [(FIRST, &[Then::Leave]), (SECOND, &[Then::Own]), (THIRD, &[Then::Own])];
    check(Some(2), &threads);
}

#[test]
fn thread_that_tries_is_inside_or_finds_the_owner_there() {
    loom::model(|| {
        let section = Section::new();
        let there = Arc::clone(&section);
        let other = thread::spawn(move || there.try_enter(SECOND));
        section.enter(FIRST, Then::Leave);
        let was_inside = other.join().unwrap();
        section.check(2 + usize::from(was_inside));
    });
}
