//! A mutex for what one thread uses nearly always.
//!
//! An object that may be shared by threads needs a mutex even if only one thread uses it. Taking and releasing it costs
//! two atomic read-modify-write instructions, and each of them waits until the stores before it have left the processor:
//! some 10 ns each, more if another processor waits for what was stored. [`Mutex`] costs its **owner** plain loads and
//! stores instead. Owner is the thread that took it 16 times in a row; when another thread takes it, that one ends the
//! bias by a system call (`membarrier`, some 10 µs), and the mutex is one of `parking_lot` until a thread has
//! again taken it often in a row, each time twice as often.
//!
//! A process that never calls [`allow_bias`], or whose system has no `membarrier`, has plain mutexes of `parking_lot`.
//!
//! ```text
//!   Mutex ── RawBiased ─┬─ bias: the owner, and whether it is inside
//!                       └─ parking_lot::RawMutex: all others
//! ```
//!
//! ```
//! use efa_lock::Mutex;
//!
//! efa_lock::allow_bias();
//! let numbers = Mutex::new(vec![1]);
//! numbers.lock().push(2);
//! std::thread::scope(|scope| {
//!     scope.spawn(|| numbers.lock().push(3));
//! });
//! assert_eq!(*numbers.lock(), [1, 2, 3]);
//! ```

#![deny(unsafe_code)]

mod bias;
mod raw;
mod sync;
mod thread;

pub use raw::RawBiased;
pub use thread::this_thread;

/// A mutex that is biased to the thread that takes it most.
pub type Mutex<T> = lock_api::Mutex<RawBiased, T>;

/// A taken [`Mutex`].
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawBiased, T>;

/// Lets the mutexes of this process be biased from now on. Returns whether the system can do that: Linux from 4.14 on
/// can, unless a sandbox forbids `membarrier`.
///
/// The first call takes some 10 ms if the process has several threads, and all others next to nothing. It belongs where
/// a program sets up what it uses later.
pub fn allow_bias() -> bool {
    sync::register()
}
