//! The mutex, by threads of this process.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use efa_lock::Mutex;

/// A mutex that this thread owns, if the system allows it.
fn owned<T>(value: T) -> Mutex<T> {
    efa_lock::allow_bias();
    let mutex = Mutex::new(value);
    (0..100).for_each(|_| drop(mutex.lock()));
    mutex
}

#[test]
fn owner_inside_finds_the_mutex_taken() {
    let mutex = owned(());
    let guard = mutex.lock();
    assert!(mutex.try_lock().is_none());
    assert!(mutex.is_locked());
    drop(guard);
    assert!(!mutex.is_locked());
    assert!(mutex.try_lock().is_some());
}

#[test]
fn other_thread_waits_for_the_owner_inside() {
    let mutex = owned(0);
    let is_tried = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut guard = mutex.lock();
        scope.spawn(|| {
            assert!(mutex.try_lock().is_none());
            is_tried.store(true, Ordering::Release);
            *mutex.lock() *= 10;
        });
        while !is_tried.load(Ordering::Acquire) {
            thread::yield_now();
        }
        *guard = 7;
    });
    assert_eq!(*mutex.lock(), 70);
}

#[test]
fn owner_that_lost_the_bias_while_inside_leaves_the_mutex_free() {
    let mutex = owned(());
    let guard = mutex.lock();
    thread::scope(|scope| assert!(scope.spawn(|| mutex.try_lock().is_none()).join().unwrap()));
    drop(guard);
    assert!(!mutex.is_locked());
    thread::scope(|scope| assert!(scope.spawn(|| mutex.try_lock().is_some()).join().unwrap()));
}

#[test]
fn each_of_many_threads_in_turn_may_become_the_owner() {
    let mutex = owned(0_u64);
    for _ in 0..8 {
        thread::scope(|scope| {
            scope.spawn(|| (0..5_000).for_each(|_| *mutex.lock() += 1)).join().unwrap();
        });
    }
    assert_eq!(*mutex.lock(), 40_000);
}

/// Biases begin and end all the time: each thread goes on until it has been alone for a while.
#[test]
fn threads_at_once_lose_no_change() {
    const THREADS: u64 = 4;
    const CHANGES: u64 = 50_000;
    for _ in 0..20 {
        let mutex = owned((0_u64, 0_u64));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..CHANGES {
                        let mut counts = mutex.lock();
                        counts.0 += 1;
                        counts.1 += 1;
                        assert_eq!(counts.0, counts.1);
                    }
                });
            }
        });
        assert_eq!(*mutex.lock(), (THREADS * CHANGES, THREADS * CHANGES));
    }
}

#[test]
fn guard_that_a_panic_drops_frees_the_mutex() {
    let mutex = owned(());
    let guard = std::panic::AssertUnwindSafe(&mutex);
    let result = std::panic::catch_unwind(|| {
        let _guard = guard.lock();
        panic!("inside");
    });
    assert!(result.is_err());
    assert!(mutex.try_lock().is_some());
}
