//! Objects as C sees them: a structure of libfabric with its tables, and behind it what Rust needs.
//!
//! ```text
//!   fid_ep ─► fid { class, context, table } ─► tables ─► functions in c/
//!      └────► Endpoint, or nothing once it is closed
//! ```
//!
//! The memory of an object comes from a pool of its class and goes back there; it is never freed. When an object is
//! closed, its tables become those of a closed object, whose functions fail with `FI_EBADF`. So a program that uses
//! a closed object gets an error, unless a new object of the class has taken its place.
//!
//! An object that others depend on counts them ([`Use`]), and isn't closed before they are.
//!
//! An object may be closed while other threads use it: their calls fail ([`threads`]).
//!
//! A forked child inherits the objects, but neither the threads nor the device of its parent. There they count as
//! closed from the start ([`fork`]), and nothing of them is dropped.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::abi::{FI_EBADF, FI_EBUSY, fi_ops, fid};
use crate::boundary::{Errno, INVALID, Outcome, leave_closed, status};
use crate::{fork, threads};

/// A class of objects.
///
/// # Safety
/// `C` is `repr(C)` and begins with a `fid`, or with a structure that does. The pool is of this class alone.
pub(crate) unsafe trait Class: Send + Sync + Sized + 'static {
    /// The structure of libfabric.
    type C;

    /// `FI_CLASS_…`.
    const NUMBER: usize;

    /// Whether calls use its value that don't close it, for which closing must wait.
    const IS_USED: bool = true;

    /// The table of every open object of this class: no other class has the same.
    const OPS: &'static fi_ops;

    /// The structure of an open object.
    fn open(fid: fid) -> Self::C;

    /// The structure of a closed one: all functions of its tables fail with `FI_EBADF`.
    fn closed(fid: fid) -> Self::C;

    /// Objects that were closed.
    fn pool() -> &'static Pool<Self>;
}

/// All objects of a class.
pub(crate) struct Pool<T: Class> {
    /// The newest, also if it is closed. The others follow.
    newest: AtomicPtr<Object<T>>,
    /// Memory of closed ones.
    free: Mutex<Vec<Shell<T>>>,
}

struct Shell<T: Class>(NonNull<Object<T>>);

// SAFETY: a shell in the pool has no value, and nobody else uses it.
unsafe impl<T: Class> Send for Shell<T> {}

impl<T: Class> Pool<T> {
    pub(crate) const fn new() -> Self {
        Self { newest: AtomicPtr::new(std::ptr::null_mut()), free: Mutex::new(Vec::new()) }
    }

    /// The memory that is free, unless another thread looks there now, or did when this process was forked: then new
    /// memory is taken, or some stays unused.
    fn free(&self) -> Option<MutexGuard<'_, Vec<Shell<T>>>> {
        match self.free.try_lock() {
            Ok(free) => Some(free),
            Err(TryLockError::Poisoned(free)) => Some(free.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Makes an object one of this class for good.
    fn add(&self, object: &'static mut Object<T>) -> NonNull<Object<T>> {
        if self.newest.load(Ordering::Acquire).is_null() {
            fork::closes(close_inherited::<T>);
        }
        let mut newest = self.newest.load(Ordering::Acquire);
        loop {
            object.older = newest;
            let added =
                self.newest.compare_exchange(newest, object, Ordering::AcqRel, Ordering::Acquire);
            match added {
                Ok(_) => return NonNull::from(object),
                Err(other) => newest = other,
            }
        }
    }
}

/// Closes the objects of a class that a forked child inherited, and drops nothing of them.
fn close_inherited<T: Class>() {
    let mut next = T::pool().newest.load(Ordering::Acquire).cast_const();
    // SAFETY: objects are never freed, and this is the only thread. Where they begin, the closed structure may be
    // written at any time: an object that another thread of the parent was making has no user here.
    while let Some(object) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        unsafe { object.c.get().write(closed::<T>()) };
        next = object.older;
    }
}

/// The structure of a closed object of a class.
fn closed<T: Class>() -> T::C {
    static TABLE: fi_ops = fi_ops::failing::<FI_EBADF>();
    T::closed(fid { fclass: T::NUMBER, context: std::ptr::null_mut(), ops: &TABLE })
}

/// What `fi_cq_open`, `fi_cntr_open`, `fi_eq_open`, `fi_wait_open` and `fi_poll_open` do: opens an object on another, as the
/// attributes ask.
///
/// # Safety
/// `on` came through a table of its class. The other pointers are null or valid for the call.
pub(crate) unsafe fn open_on<P: Class, A, T: Class>(
    on: *mut P::C,
    attr: *mut A,
    to: *mut *mut T::C,
    context: *mut c_void,
    open: impl FnOnce(&Object<P>, &mut A) -> Outcome<T>,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let (attr, to) = (attr.as_mut().ok_or(INVALID)?, to.as_mut().ok_or(INVALID)?);
            let opened = open(Object::of(on), attr)?;
            *to = Object::create(opened, context).as_ref().address();
        }
        Ok(())
    })
}

/// How many uses a closed object has.
const CLOSED: usize = usize::MAX;

/// An object of C. The program has its address.
#[repr(C)]
pub(crate) struct Object<T: Class> {
    c: UnsafeCell<T::C>,
    uses: AtomicUsize,
    value: UnsafeCell<Option<T>>,
    /// The object of this class that was made before.
    older: *const Self,
}

impl<T: Class> Object<T> {
    /// A new object with this value. It is the program's until [`close`](Self::close).
    pub(crate) fn create(value: T, context: *mut c_void) -> NonNull<Self> {
        let fid = fid { fclass: T::NUMBER, context, ops: T::OPS };
        let free = T::pool().free().and_then(|mut free| free.pop());
        let c = UnsafeCell::new(T::open(fid));
        let value = UnsafeCell::new(Some(value));
        match free {
            Some(Shell(at)) => {
                let object = at.as_ptr();
                // SAFETY: the memory is that of an object of this class, and only the pool had it.
                unsafe {
                    (&raw mut (*object).value).write(value);
                    (*object).uses.store(0, Ordering::Release);
                    (&raw mut (*object).c).write(c);
                }
                at
            }
            None => {
                let object = Self { c, uses: AtomicUsize::new(0), value, older: std::ptr::null() };
                T::pool().add(Box::leak(Box::new(object)))
            }
        }
    }

    /// The object at an address that came through a table of this class.
    ///
    /// # Safety
    /// `at` is the address of an object of this class.
    #[inline(always)]
    pub(crate) unsafe fn of<'a>(at: *const T::C) -> &'a Self {
        // SAFETY: an object begins with its C structure, and the caller promises that there is one.
        unsafe { &*at.cast::<Self>() }
    }

    /// The object that a program passed as an argument.
    ///
    /// # Errors
    /// [`INVALID`] if it is null, of another class or provider, or closed.
    ///
    /// # Safety
    /// `at` is null or points to a `fid`.
    #[inline]
    pub(crate) unsafe fn argument<'a>(at: *const fid) -> Outcome<&'a Self> {
        // SAFETY: the caller promises that it is readable if it isn't null.
        let fid = unsafe { at.as_ref() }.ok_or(INVALID)?;
        if fid.fclass != T::NUMBER || !std::ptr::eq(fid.ops, T::OPS) {
            return Err(INVALID);
        }
        // SAFETY: only open objects of this class have this table.
        Ok(unsafe { Self::of(at.cast()) })
    }

    /// Its value, for this call; `None` if it is closed.
    #[inline(always)]
    pub(crate) fn open(&self) -> Option<&T> {
        if self.uses.load(Ordering::Relaxed) == CLOSED {
            return None;
        }
        // SAFETY: it changes in `close` alone, which waits until this call has returned.
        Some(unsafe { (*self.value.get()).as_ref().unwrap_unchecked() })
    }

    /// Its address, for the program. The pointer is to the whole object, as [`of`](Self::of) needs it, and not only to
    /// the structure at its beginning.
    pub(crate) fn address(&self) -> *mut T::C {
        std::ptr::from_ref(self).cast::<T::C>().cast_mut()
    }

    /// Its address as `fid`.
    pub(crate) fn fid(&self) -> *mut fid {
        self.address().cast()
    }

    /// The number that the program gave it.
    pub(crate) fn context(&self) -> *mut c_void {
        // SAFETY: the structure begins with a `fid`, by the contract of `Class`.
        unsafe { (*self.fid()).context }
    }

    /// Closes it and returns its value, when no other thread uses that any more.
    ///
    /// # Errors
    /// `FI_EBUSY` if others depend on it, or a thread doesn't return from a call in time. Then the object is as before.
    ///
    /// # Safety
    /// No reference to its value is used afterwards.
    pub(crate) unsafe fn close(&self) -> Outcome<T> {
        // SAFETY: the caller's promise.
        unsafe { self.close_after(|_| {}) }
    }

    /// As [`close`](Self::close), but does `last` before a new object may take the memory, and with it the address.
    ///
    /// # Errors
    /// As for [`close`](Self::close).
    ///
    /// # Safety
    /// As for [`close`](Self::close).
    pub(crate) unsafe fn close_after(&self, last: impl FnOnce(&T)) -> Outcome<T> {
        let free = self.uses.compare_exchange(0, CLOSED, Ordering::SeqCst, Ordering::Acquire);
        free.map_err(|uses| Errno(if uses == CLOSED { FI_EBADF } else { FI_EBUSY }))?;
        if T::IS_USED && !threads::wait_for_others() {
            // It still has its value and its tables. Who found it closed meanwhile has got an error.
            self.uses.store(0, Ordering::Release);
            crate::log::warn(format_args!(
                "a thread doesn't return from a call: the object stays open"
            ));
            return Err(Errno(FI_EBUSY));
        }
        // SAFETY: only this call closes the object. Another that reads the tables meanwhile finds either.
        unsafe { self.c.get().write(closed::<T>()) };
        // SAFETY: nobody depends on the object, who used it has returned, and who comes later finds it closed.
        let value = unsafe { (*self.value.get()).take() };
        if let Some(value) = &value {
            last(value);
        }
        if let Some(mut free) = T::pool().free() {
            free.push(Shell(NonNull::from(self)));
        }
        value.ok_or(INVALID)
    }
}

impl<T: Class> Deref for Object<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.open().unwrap_or_else(|| leave_closed())
    }
}

/// An object that depends on another, which can't be closed before this is dropped.
pub(crate) struct Use<T: Class>(NonNull<Object<T>>);

// SAFETY: it is a reference to an object whose value is `Sync`, by the contract of `Class`.
unsafe impl<T: Class> Send for Use<T> {}

// SAFETY: as above.
unsafe impl<T: Class> Sync for Use<T> {}

impl<T: Class> Use<T> {
    pub(crate) fn new(object: &Object<T>) -> Self {
        let add = |uses| (uses != CLOSED).then(|| uses + 1);
        if object.uses.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_err() {
            leave_closed();
        }
        Self(NonNull::from(object))
    }

    pub(crate) fn object(&self) -> &Object<T> {
        // SAFETY: the object isn't closed while it is counted, and its memory is never freed.
        unsafe { self.0.as_ref() }
    }

    /// Whether it is this object.
    pub(crate) fn is(&self, object: &Object<T>) -> bool {
        std::ptr::eq(self.0.as_ptr(), object)
    }
}

impl<T: Class> Clone for Use<T> {
    fn clone(&self) -> Self {
        Self::new(self.object())
    }
}

impl<T: Class> Drop for Use<T> {
    fn drop(&mut self) {
        self.object().uses.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<T: Class> Deref for Use<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.object()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

    use super::*;
    use crate::abi::FI_ENOSYS;

    struct Number(u32);

    static TABLE: fi_ops = fi_ops::failing::<FI_ENOSYS>();

    // SAFETY: its structure is a `fid`.
    unsafe impl Class for Number {
        type C = fid;

        const NUMBER: usize = 99;

        const OPS: &'static fi_ops = &TABLE;

        fn open(fid: fid) -> fid {
            fid
        }

        fn closed(fid: fid) -> fid {
            fid
        }

        fn pool() -> &'static Pool<Self> {
            static POOL: Pool<Number> = Pool::new();
            &POOL
        }
    }

    fn create(value: u32) -> &'static Object<Number> {
        let object = Object::create(Number(value), std::ptr::null_mut());
        // SAFETY: objects are never freed.
        unsafe { object.as_ref() }
    }

    #[test]
    fn memory_of_an_object_has_no_other_before_its_last_action_is_over() {
        let first = create(3);
        let mut second = None;
        let last = |_: &Number| second = Some(create(4));
        // SAFETY: nobody else has the object.
        let closed = unsafe { first.close_after(last) };
        let (closed, second) = (closed.unwrap(), second.unwrap());
        assert!(!std::ptr::eq(first, second));
        assert_eq!((closed.0, second.0), (3, 4));
        let third = create(5);
        assert!(std::ptr::eq(first, third));
    }
}
