//! The state of one process: its devices and the handles that it was given.
//!
//! Nothing is created when the library is loaded. A forked child forgets the state of its parent and
//! starts with an empty one: files and rings belong to the parent, and locks may have been held by
//! threads that the child doesn't have. The old state is leaked, not freed. Handles of the parent are
//! unknown to the child and refused there.
//!
//! Locks of the standard library can't be forgotten so. Listing devices takes one, as it reads the
//! environment; so a fork waits until no thread lists devices (see [`DEVICE_LISTING`]).

use std::collections::HashMap;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::abi::ibv_context;
use crate::boundary::{BUSY, INVALID, Outcome};
use crate::capture::CaptureFile;
use crate::device::DeviceList;
use crate::direct::trap;
use crate::direct::watcher::Watcher;
use crate::message::Written;
use crate::progress::Progress;
use crate::spin_lock::SpinLock;

/// The type of the object behind a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleType {
    Context,
    Domain,
    Region,
    AddressHandle,
    Channel,
    CompletionQueue,
    Counter,
    QueuePair,
}

#[derive(Clone, Copy, Debug)]
struct HandleEntry {
    of_type: HandleType,
    /// Address of the context that the object was created from; 0 for a context itself.
    context: usize,
}

/// The state of a process.
#[derive(Debug, Default)]
pub(crate) struct Process {
    pub(crate) devices: Mutex<Option<DeviceList>>,
    pub(crate) progress: Progress,
    pub(crate) watcher: Watcher,
    pub(crate) written: Written,
    /// If there is one, since the devices were listed first.
    pub(crate) capture: OnceLock<CaptureFile>,
    /// By address.
    handles: Mutex<HashMap<usize, HandleEntry>>,
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(null_mut());
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Held while devices are listed, and by a thread that forks from before the fork to after it, in
/// the parent and in the child.
pub(crate) static DEVICE_LISTING: SpinLock = SpinLock::new();

/// How many forks lie between the process that loaded the library and this one. Objects of another
/// generation must not be touched.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// The state of this process.
pub(crate) fn process() -> &'static Process {
    let current = CURRENT.load(Ordering::Acquire);
    // SAFETY: a non-null pointer in `CURRENT` comes from `Box::leak` below and is never freed.
    if let Some(process) = unsafe { current.as_ref() } {
        return process;
    }
    let new: *mut Process = Box::leak(Box::default());
    match CURRENT.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: `new` was just leaked, and is never freed now that it is in `CURRENT`.
        Ok(_) => unsafe { &*new },
        Err(other) => {
            // SAFETY: `new` comes from a box, and the failed exchange has not published it.
            drop(unsafe { Box::from_raw(new) });
            // SAFETY: `other` is not null, as the exchange failed; another thread leaked it as above.
            unsafe { &*other }
        }
    }
}

/// Makes this process, a child after a fork, start with an empty state of its own.
pub(crate) fn forget_parent() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    CURRENT.store(null_mut(), Ordering::Release);
    STOPPED.store(false, Ordering::Relaxed);
    trap::forget();
}

/// Locks, also where a holder has panicked: a wrong answer is better than a program that hangs.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the last wait of [`lock_in_time`] was in vain.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// How long calls wait for a lock that may never be free: far longer than any thread holds one while it
/// runs, but not for ever. Its holder may be a thread that never goes on, as its signal handler waits for
/// the end of the process.
#[derive(Debug)]
pub(crate) struct Patience<'a> {
    /// Whether the last wait of this kind was in vain.
    stopped: &'a AtomicBool,
    limit: Duration,
    waited: Duration,
    /// Up to when `waited` counts.
    counted: Instant,
}

impl<'a> Patience<'a> {
    const LONG: Duration = Duration::from_secs(3);
    /// After a wait in vain: the program may have thousands of objects to be closed.
    const SHORT: Duration = Duration::from_millis(1);
    /// Most that counts between two attempts: while the whole process is stopped, as by a debugger, the holder
    /// can't go on either.
    const TURN: Duration = Duration::from_millis(10);
    /// Attempts at least, so that a short wait outlasts that this thread or the holder loses the processor.
    const ATTEMPTS: u32 = 10;

    pub(crate) fn new(stopped: &'a AtomicBool) -> Self {
        Self::from(stopped, Instant::now())
    }

    fn from(stopped: &'a AtomicBool, counted: Instant) -> Self {
        let limit = if stopped.load(Ordering::Relaxed) { Self::SHORT } else { Self::LONG };
        Self { stopped, limit, waited: Duration::ZERO, counted }
    }

    /// Whether to wait on, after an attempt that has failed.
    pub(crate) fn lasts(&mut self) -> bool {
        self.lasts_at(Instant::now())
    }

    fn lasts_at(&mut self, now: Instant) -> bool {
        let most = Self::TURN.min(self.limit / Self::ATTEMPTS);
        self.waited += now.saturating_duration_since(self.counted).min(most);
        self.counted = now;
        let lasts = self.waited < self.limit;
        if !lasts {
            self.stopped.store(true, Ordering::Relaxed);
        }
        lasts
    }

    /// The lock was free before this has ended.
    pub(crate) fn succeed(self) {
        self.stopped.store(false, Ordering::Relaxed);
    }
}

/// As [`lock`], but fails with `EBUSY` if another thread holds the lock for [long](Patience).
pub(crate) fn lock_in_time<T>(mutex: &Mutex<T>) -> Outcome<MutexGuard<'_, T>> {
    let attempt = || match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    };
    attempt().or_else(|| wait_in_time(&STOPPED, attempt)).ok_or(BUSY)
}

/// Attempts until there is a result or [patience](Patience) ends.
#[cold]
fn wait_in_time<T>(stopped: &AtomicBool, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let mut patience = Patience::new(stopped);
    loop {
        std::thread::yield_now();
        if let Some(result) = attempt() {
            patience.succeed();
            return Some(result);
        }
        if !patience.lasts() {
            return None;
        }
    }
}

impl Process {
    /// Enters a handle that the program gets, with the context that its object was created from; null
    /// for a context.
    pub(crate) fn add_handle<T>(
        &self,
        handle: *mut T,
        of_type: HandleType,
        context: *mut ibv_context,
    ) {
        let entry = HandleEntry { of_type, context: context.addr() };
        // Exposed, as `handles_of` makes a pointer of the address again.
        lock(&self.handles).insert(handle.expose_provenance(), entry);
    }

    /// The handles of a type whose objects were created from a context.
    pub(crate) fn handles_of<T>(
        &self,
        context: *mut ibv_context,
        of_type: HandleType,
    ) -> Outcome<Vec<*mut T>> {
        let handles = lock_in_time(&self.handles)?;
        let matching = handles
            .iter()
            .filter(|(_, entry)| entry.of_type == of_type && entry.context == context.addr());
        Ok(matching.map(|(&handle, _)| std::ptr::with_exposed_provenance_mut(handle)).collect())
    }

    /// Fails with `EINVAL` unless `handle` has this type and was not removed.
    pub(crate) fn check_handle<T>(&self, handle: *const T, of_type: HandleType) -> Outcome<()> {
        match lock_in_time(&self.handles)?.get(&handle.addr()) {
            Some(entry) if entry.of_type == of_type => Ok(()),
            _ => Err(INVALID),
        }
    }

    /// Fails with `EINVAL` unless the object of `handle` was created from `context`.
    pub(crate) fn check_context_of<T>(
        &self,
        handle: *const T,
        context: *mut ibv_context,
    ) -> Outcome<()> {
        match lock_in_time(&self.handles)?.get(&handle.addr()) {
            Some(entry) if entry.context == context.addr() => Ok(()),
            _ => Err(INVALID),
        }
    }

    /// Removes a handle, whose object is then the caller's to free; fails as
    /// [`check_handle`](Self::check_handle) does.
    pub(crate) fn remove_handle<T>(&self, handle: *const T, of_type: HandleType) -> Outcome<()> {
        let mut handles = lock_in_time(&self.handles)?;
        match handles.get(&handle.addr()) {
            Some(entry) if entry.of_type == of_type => {
                handles.remove(&handle.addr());
                Ok(())
            }
            _ => Err(INVALID),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many turns of this length a wait lasts.
    fn turns(stopped: &AtomicBool, turn: Duration) -> u32 {
        let mut now = Instant::now();
        let mut patience = Patience::from(stopped, now);
        let mut lasts = || {
            now += turn;
            patience.lasts_at(now)
        };
        (1..).find(|_| !lasts()).unwrap()
    }

    #[test]
    fn patience_lasts_for_seconds_of_which_a_stop_of_the_process_counts_ten_milliseconds() {
        let turns = |turn| turns(&AtomicBool::new(false), turn);
        assert_eq!(turns(Duration::from_micros(100)), 30_000);
        assert_eq!(turns(Duration::from_millis(10)), 300);
        assert_eq!(turns(Duration::from_secs(3600)), 300);
    }

    #[test]
    fn patience_after_a_wait_in_vain_is_short_until_a_wait_succeeds() {
        let stopped = AtomicBool::new(false);
        let (turn, hour) = (Duration::from_micros(100), Duration::from_secs(3600));
        assert_eq!(turns(&stopped, turn), 30_000);
        assert_eq!((turns(&stopped, turn), turns(&stopped, hour)), (10, 10));
        Patience::new(&stopped).succeed();
        assert_eq!(turns(&stopped, turn), 30_000);
    }

    #[test]
    fn wait_that_succeeds_has_the_lock_and_ends_the_short_patience() {
        let stopped = AtomicBool::new(true);
        assert_eq!(wait_in_time(&stopped, || None::<()>), None);
        assert!(stopped.load(Ordering::Relaxed));
        let mut attempts = 0..2;
        assert_eq!(wait_in_time(&stopped, || attempts.next().filter(|&at| at == 1)), Some(1));
        assert!(!stopped.load(Ordering::Relaxed));
    }

    #[test]
    fn mutex_is_locked_in_time_also_after_a_panic_of_its_holder() {
        let mutex = Mutex::new(());
        let holder = || {
            let _guard = lock(&mutex);
            std::panic::resume_unwind(Box::new(()));
        };
        std::thread::scope(|scope| scope.spawn(holder).join()).unwrap_err();
        assert!(lock_in_time(&mutex).is_ok());
    }

    #[test]
    fn handle_is_valid_for_its_type_until_removed() {
        use HandleType::{Domain, Region};
        let process = Process::default();
        let mut object = 0_u8;
        let handle = &raw mut object;
        assert_eq!(process.check_handle(handle, Domain), Err(INVALID));
        let mut context = 0_u64;
        let context: *mut ibv_context = (&raw mut context).cast();
        process.add_handle(handle, Domain, context);
        assert_eq!(process.check_handle(handle, Domain), Ok(()));
        assert_eq!(process.check_handle(handle, Region), Err(INVALID));
        assert_eq!(process.remove_handle(handle, Region), Err(INVALID));
        assert_eq!(process.handles_of(context, Domain), Ok(vec![handle]));
        assert_eq!(process.check_context_of(handle, context), Ok(()));
        assert_eq!(process.check_context_of(handle, null_mut()), Err(INVALID));
        assert_eq!(process.handles_of::<u8>(context, Region), Ok(vec![]));
        assert_eq!(process.handles_of::<u8>(null_mut(), Domain), Ok(vec![]));
        assert_eq!(process.remove_handle(handle, Domain), Ok(()));
        assert_eq!(process.handles_of::<u8>(context, Domain), Ok(vec![]));
        assert_eq!(process.remove_handle(handle, Domain), Err(INVALID));
        assert_eq!(process.check_handle(null_mut::<u8>(), Domain), Err(INVALID));
    }
}
