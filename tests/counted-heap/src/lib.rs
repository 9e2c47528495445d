//! The system's allocator, with counts for each thread, as tests run in parallel.
//!
//! Programs that use this crate have it as their allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
}

/// How often this thread has asked for memory, also for more of what it had.
#[must_use]
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Bytes that this thread has allocated and not freed.
#[must_use]
pub fn live_bytes() -> i64 {
    LIVE_BYTES.get()
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count_allocation(growth: i64) {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    LIVE_BYTES.set(LIVE_BYTES.get() + growth);
}

// SAFETY: every call goes to the system's allocator unchanged; counting neither allocates (the thread-locals are const and
// need no drop) nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocation(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    // That of the trait would write zeros into what the system gives as zeros.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_allocation(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_allocation(size as i64 - layout.size() as i64);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.set(LIVE_BYTES.get() - layout.size() as i64);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_and_their_bytes_are_counted() {
        let before = (allocations(), live_bytes());
        let mut bytes = std::hint::black_box(vec![0_u8; 100]);
        assert_eq!((allocations(), live_bytes()), (before.0 + 1, before.1 + 100));
        bytes.reserve_exact(300);
        assert_eq!((allocations(), live_bytes()), (before.0 + 2, before.1 + 400));
        drop(bytes);
        assert_eq!((allocations(), live_bytes()), (before.0 + 2, before.1));
    }
}
