//! Which threads are in a call, and how threads of this library start.
//!
//! A thread may close an object while another uses it. The call that uses it looks whether it is closed; the call that
//! closes it marks it first, and then waits until the others that may have missed that have returned:
//!
//! ```text
//!   user     begin (odd) ─► is it closed? ─► use ─► end (even)
//!   closer   mark it closed ─► barrier in all threads ─► each count that is odd has changed? ─► drop it
//! ```
//!
//! So a call costs two stores and no barrier. The thread that joined the list last is found by its number; the others look
//! into a variable of their own, which a library that is loaded late finds by a call of the loader's. A thread that sleeps uses only what is counted
//! ([`Use`](crate::object::Use)), and nobody waits for it.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, compiler_fence};
use std::time::{Duration, Instant};

use crate::fork;

/// A thread that has made a call. It is never freed: another thread takes it over.
struct Thread {
    /// How many calls have begun and ended: odd in a call.
    calls: AtomicU64,
    /// Of the thread whose place this is, or 0 if that may have ended.
    number: AtomicUsize,
    is_asleep: AtomicBool,
    is_taken: AtomicBool,
    next: *const Self,
}

static LIST: AtomicPtr<Thread> = AtomicPtr::new(null_mut());

thread_local! {
    static THIS: Cell<*const Thread> = const { Cell::new(null()) };
    static RELEASE: Release = const { Release };
}

/// Gives up this thread's place when it ends. In a call that happens if a signal handler interrupted the call and exits:
/// then the thread stays in it.
struct Release;

impl Drop for Release {
    fn drop(&mut self) {
        // SAFETY: threads in the list are never freed.
        let Some(thread) = (unsafe { THIS.get().as_ref() }) else { return };
        thread.number.store(0, Ordering::Relaxed);
        if thread.calls.load(Ordering::Relaxed) & 1 == 0 {
            THIS.set(null());
            thread.is_taken.store(false, Ordering::Release);
        }
    }
}

/// This thread is in a call, until this is dropped.
pub(crate) struct InCall(&'static Thread);

impl InCall {
    /// `None` if this thread is in a call already.
    #[inline(always)]
    pub(crate) fn begin() -> Option<Self> {
        let thread = this();
        let calls = thread.calls.load(Ordering::Relaxed);
        if calls & 1 == 1 {
            return None;
        }
        thread.calls.store(calls + 1, Ordering::Relaxed);
        // Before any lock is taken, as a signal handler reads it, and before any object is looked at.
        compiler_fence(Ordering::SeqCst);
        Some(Self(thread))
    }
}

impl Drop for InCall {
    #[inline(always)]
    fn drop(&mut self) {
        // Only this thread changes it.
        let calls = self.0.calls.load(Ordering::Relaxed);
        self.0.calls.store(calls + 1, Ordering::Release);
    }
}

/// This thread's place in the list.
#[inline(always)]
fn this() -> &'static Thread {
    // SAFETY: threads in the list are never freed.
    let last = unsafe { LIST.load(Ordering::Acquire).as_ref() };
    match last {
        Some(last) if last.number.load(Ordering::Relaxed) == efa_lock::this_thread() => last,
        // SAFETY: as above.
        _ => match unsafe { THIS.get().as_ref() } {
            Some(thread) => thread,
            None => join(),
        },
    }
}

fn threads() -> impl Iterator<Item = &'static Thread> {
    let mut next = LIST.load(Ordering::Acquire).cast_const();
    std::iter::from_fn(move || {
        // SAFETY: threads in the list are never freed, and `next` of one is set before it is published.
        let thread = unsafe { next.as_ref() }?;
        next = thread.next;
        Some(thread)
    })
}

/// Takes a place in the list for this thread.
#[cold]
fn join() -> &'static Thread {
    let is_free = |thread: &&Thread| !thread.is_taken.swap(true, Ordering::AcqRel);
    let thread = threads().find(is_free).unwrap_or_else(|| {
        static IN_CHILD: OnceLock<()> = OnceLock::new();
        IN_CHILD.get_or_init(|| fork::closes(forget_others));
        let thread = Box::leak(Box::new(Thread {
            calls: AtomicU64::new(0),
            number: AtomicUsize::new(0),
            is_asleep: AtomicBool::new(false),
            is_taken: AtomicBool::new(true),
            next: LIST.load(Ordering::Acquire),
        }));
        while let Err(first) = LIST.compare_exchange(
            thread.next.cast_mut(),
            thread,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            thread.next = first;
        }
        thread
    });
    THIS.set(thread);
    // If this thread ends already, its place is never free again.
    if RELEASE.try_with(|_| ()).is_ok() {
        thread.number.store(efa_lock::this_thread(), Ordering::Relaxed);
    }
    thread
}

/// In a forked child there is this thread alone.
fn forget_others() {
    let this = THIS.get();
    for other in threads().filter(|thread| !std::ptr::eq(*thread, this)) {
        let calls = other.calls.load(Ordering::Relaxed);
        other.calls.store(calls + (calls & 1), Ordering::Relaxed);
        other.number.store(0, Ordering::Relaxed);
        other.is_asleep.store(false, Ordering::Relaxed);
        other.is_taken.store(false, Ordering::Relaxed);
    }
}

/// Sleeps, or does what takes its time, in a call. `sleep` uses only objects that are counted.
pub(crate) fn asleep<T>(sleep: impl FnOnce() -> T) -> T {
    struct Awake(Option<&'static Thread>);
    impl Drop for Awake {
        fn drop(&mut self) {
            if let Some(thread) = self.0 {
                thread.is_asleep.store(false, Ordering::Release);
            }
        }
    }
    // SAFETY: threads in the list are never freed.
    let thread = Awake(unsafe { THIS.get().as_ref() });
    if let Some(thread) = thread.0 {
        thread.is_asleep.store(true, Ordering::Release);
    }
    sleep()
}

/// How long others may take to return, in the time in which this thread looks.
struct Patience {
    left: Duration,
    looked: Option<Instant>,
}

impl Patience {
    /// The most that counts between two looks. More has passed if this process was stopped, or the processor was with others:
    /// then the others may not have run either.
    const LONGEST_PAUSE: Duration = Duration::from_millis(10);

    const fn new() -> Self {
        Self { left: Duration::from_secs(5), looked: None }
    }

    /// Whether a look at this time was the last.
    fn is_over(&mut self, now: Instant) -> bool {
        if let Some(before) = self.looked.replace(now) {
            self.left = self.left.saturating_sub((now - before).min(Self::LONGEST_PAUSE));
        }
        self.left.is_zero()
    }
}

/// Waits until each call of another thread has returned that began before this. Returns whether it has in time: a thread
/// whose signal handler doesn't return never does.
pub(crate) fn wait_for_others() -> bool {
    let this = THIS.get();
    let in_call = |thread: &&Thread| {
        !std::ptr::eq(*thread, this) && thread.calls.load(Ordering::Acquire) & 1 == 1
    };
    barrier();
    let mut patience = Patience::new();
    asleep(|| {
        threads().filter(in_call).all(|thread| {
            let calls = thread.calls.load(Ordering::Acquire);
            let mut looks = 0_u32;
            while calls & 1 == 1
                && thread.calls.load(Ordering::Acquire) == calls
                && !thread.is_asleep.load(Ordering::Acquire)
            {
                if patience.is_over(Instant::now()) {
                    return false;
                }
                looks = looks.saturating_add(1);
                match looks {
                    0..1000 => std::thread::yield_now(),
                    _ => std::thread::sleep(Duration::from_micros(100)),
                }
            }
            true
        })
    })
}

/// Starts threads of this library, with all signals blocked: those are the program's. A handler that ran on one of these
/// threads, and exited, would wait for locks that the thread holds.
pub(crate) fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    struct Before(libc::sigset_t);
    impl Drop for Before {
        fn drop(&mut self) {
            // SAFETY: it reads the set.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, null_mut()) };
        }
    }
    // SAFETY: `sigset_t` is an array of integers, so zeros are a value. `sigfillset` writes `all`; `pthread_sigmask` reads
    // that and writes `before`.
    let _before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        Before(before)
    };
    start()
}

/// What this thread wrote before is seen by all others after this, and what they wrote before by this.
fn barrier() {
    const EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_EXPEDITED: libc::c_int = 1 << 4;
    static IS_THERE: OnceLock<bool> = OnceLock::new();
    // SAFETY: it takes numbers only.
    let call =
        |command: libc::c_int| unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } == 0;
    std::sync::atomic::fence(Ordering::SeqCst);
    if !*IS_THERE.get_or_init(|| call(REGISTER_EXPEDITED)) || !call(EXPEDITED) {
        // No processor keeps a store to itself for so long.
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

    use std::sync::mpsc;

    use super::*;

    #[test]
    fn time_in_which_nobody_looked_hardly_counts() {
        let (mut patience, mut now) = (Patience::new(), Instant::now());
        assert!(!patience.is_over(now));
        // As after a stop of the process.
        now += Duration::from_secs(3600);
        assert!(!patience.is_over(now));
        for _ in 0..4980 {
            now += Duration::from_millis(1);
            assert!(!patience.is_over(now));
        }
        now += Duration::from_millis(10);
        assert!(patience.is_over(now));
    }

    #[test]
    fn call_of_another_thread_is_waited_for_unless_it_sleeps() {
        let (tell, told) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let has_ended = &has_ended;
            scope.spawn(move || {
                let call = InCall::begin().unwrap();
                tell.send(()).unwrap();
                asleep(|| wait.recv().unwrap());
                tell.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(30));
                has_ended.store(true, Ordering::Release);
                drop(call);
            });
            told.recv().unwrap();
            assert!(wait_for_others());
            assert!(!has_ended.load(Ordering::Acquire));
            go.send(()).unwrap();
            told.recv().unwrap();
            assert!(wait_for_others());
            assert!(has_ended.load(Ordering::Acquire));
        });
    }
}
