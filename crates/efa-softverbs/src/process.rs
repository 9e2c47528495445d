//! What belongs to one process: its devices and the handles that it was given.
//!
//! Nothing is made when the library is loaded. What a process makes is its own: in a forked child
//! all of it is forgotten, not freed, since files and rings belong to the parent, and locks may have
//! been held by threads that the child doesn't have. Handles of the parent are unknown to the child.
//!
//! The child can't forget the locks of the standard library. They are needed while devices are looked
//! for, which reads the environment, so nobody forks just then: a fork waits for [`START`].

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::ibv_context;
use crate::boundary::{INVALID, Outcome};
use crate::device::{DeviceList, complain};
use crate::progress::Progress;

/// What a handle is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Device,
    Context,
    Domain,
    Region,
    AddressHandle,
    CompletionQueue,
    QueuePair,
}

/// What is known of a handle.
#[derive(Clone, Copy, Debug)]
struct Given {
    kind: Kind,
    /// The context that it was made of, if any.
    context: *mut ibv_context,
}

// SAFETY: the pointer is compared and never followed.
unsafe impl Send for Given {}

/// The state of a process.
#[derive(Debug, Default)]
pub(crate) struct Process {
    pub(crate) devices: Mutex<Option<DeviceList>>,
    pub(crate) progress: Progress,
    handles: Mutex<HashMap<usize, Given>>,
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(null_mut());
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Which process this is, counted in forks. An object of another generation is not to be touched.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Held while devices are looked for, and while a thread forks.
pub(crate) static START: Mutex<()> = Mutex::new(());

/// What the thread that forks has of [`START`].
struct Forking(UnsafeCell<Option<MutexGuard<'static, ()>>>);

// SAFETY: only who has the lock touches it.
unsafe impl Sync for Forking {}

static FORKING: Forking = Forking(UnsafeCell::new(None));

/// Runs before a fork, in the thread that forks.
extern "C" fn prepare() {
    let guard = lock(&START);
    // SAFETY: this thread has the lock.
    unsafe { *FORKING.0.get() = Some(guard) };
}

/// Runs after a fork, in the thread that forked.
extern "C" fn resume() {
    // SAFETY: this thread took the lock in `prepare`.
    drop(unsafe { (*FORKING.0.get()).take() });
}

/// Runs in a child after a fork: the thread is that which forked.
extern "C" fn forget() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    CURRENT.store(null_mut(), Ordering::Release);
    resume();
}

/// Runs when the library is loaded: later, a thread could fork while another is at it.
extern "C" fn watch_forks() {
    // SAFETY: the functions do what is allowed around a fork: atomic stores, and a lock that is taken
    // before and given back in the same thread.
    let refused = unsafe { libc::pthread_atfork(Some(prepare), Some(resume), Some(forget)) };
    if refused != 0 {
        complain(&"no room for a fork handler; children must not use the device");
    }
}

// SAFETY: the section holds pointers to functions that the loader calls; arguments are ignored.
#[unsafe(link_section = ".init_array")]
#[used]
static WATCH_FORKS: extern "C" fn() = watch_forks;

/// The state of this process.
pub(crate) fn process() -> &'static Process {
    let current = CURRENT.load(Ordering::Acquire);
    // SAFETY: what is stored came from a leaked box and is never freed.
    if let Some(process) = unsafe { current.as_ref() } {
        return process;
    }
    let new: *mut Process = Box::leak(Box::default());
    let stored = CURRENT.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
    let current = match stored {
        Ok(_) => new,
        Err(other) => {
            // SAFETY: `new` is from a box and was shown to nobody.
            drop(unsafe { Box::from_raw(new) });
            other
        }
    };
    // SAFETY: as above; not null, being either ours or another thread's.
    unsafe { &*current }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    /// Notes a handle that is given out, and of which context it was made; null if of none.
    pub(crate) fn enter<T>(&self, handle: *mut T, kind: Kind, context: *mut ibv_context) {
        lock(&self.handles).insert(handle as usize, Given { kind, context });
    }

    /// The handles of `kind` that were made of a context.
    pub(crate) fn made_of<T>(&self, context: *mut ibv_context, kind: Kind) -> Vec<*mut T> {
        let handles = lock(&self.handles);
        let made =
            handles.iter().filter(|(_, given)| given.kind == kind && given.context == context);
        made.map(|(&handle, _)| std::ptr::with_exposed_provenance_mut(handle)).collect()
    }

    /// Checks that `handle` was given out, is of `kind` and was not destroyed.
    pub(crate) fn check<T>(&self, handle: *const T, kind: Kind) -> Outcome<()> {
        match lock(&self.handles).get(&(handle as usize)) {
            Some(given) if given.kind == kind => Ok(()),
            _ => Err(INVALID),
        }
    }

    /// Checks that `handle` was made of `context`, with which it will end.
    pub(crate) fn check_made_of<T>(
        &self,
        handle: *const T,
        context: *mut ibv_context,
    ) -> Outcome<()> {
        match lock(&self.handles).get(&(handle as usize)) {
            Some(given) if given.context == context => Ok(()),
            _ => Err(INVALID),
        }
    }

    /// Forgets a handle, which is then the caller's to free; fails as [`check`](Self::check).
    pub(crate) fn leave<T>(&self, handle: *const T, kind: Kind) -> Outcome<()> {
        let mut handles = lock(&self.handles);
        match handles.get(&(handle as usize)) {
            Some(given) if given.kind == kind => {
                handles.remove(&(handle as usize));
                Ok(())
            }
            _ => Err(INVALID),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_known_by_kind_until_they_leave() {
        let process = Process::default();
        let mut thing = 0_u8;
        let handle = &raw mut thing;
        assert_eq!(process.check(handle, Kind::Domain), Err(INVALID));
        let mut context = 0_u64;
        let context: *mut ibv_context = (&raw mut context).cast();
        process.enter(handle, Kind::Domain, context);
        assert_eq!(process.check(handle, Kind::Domain), Ok(()));
        assert_eq!(process.check(handle, Kind::Region), Err(INVALID));
        assert_eq!(process.leave(handle, Kind::Region), Err(INVALID));
        assert_eq!(process.made_of(context, Kind::Domain), [handle]);
        assert_eq!(process.check_made_of(handle, context), Ok(()));
        assert_eq!(process.check_made_of(handle, null_mut()), Err(INVALID));
        assert!(process.made_of::<u8>(context, Kind::Region).is_empty());
        assert!(process.made_of::<u8>(null_mut(), Kind::Domain).is_empty());
        assert_eq!(process.leave(handle, Kind::Domain), Ok(()));
        assert!(process.made_of::<u8>(context, Kind::Domain).is_empty());
        assert_eq!(process.leave(handle, Kind::Domain), Err(INVALID));
        assert_eq!(process.check(null_mut::<u8>(), Kind::Domain), Err(INVALID));
    }
}
