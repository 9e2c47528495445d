//! The functions that C calls: those that libibverbs and libefa export, those that programs reach
//! through structures, and those that the loader and `fork` call.
//!
//! An entry point checks handles, reads the caller's structures and writes results. What it does
//! beyond that is safe code elsewhere in the crate. Results become error numbers in
//! [`boundary`](crate::boundary).
//!
//! # What C programs promise
//!
//! The manual pages ask the following of programs. Comments on `unsafe` refer to it.
//!
//! * *Pointers*: an argument that points to a structure is null or valid: aligned, and readable or
//!   writable for the length of its type, or for the length that the call passes, until the call
//!   returns.
//! * *Handles* of calls that create, query, modify and destroy are looked up, so any value is safe;
//!   but no thread destroys an object while another thread uses it.
//! * *Data path*: `ibv_post_…`, `ibv_wr_…`, `ibv_poll_cq` and `ibv_start_poll` … look nothing up, as
//!   in rdma-core. Their queue, and the address handles of their requests, are null or an object of
//!   this library that is not destroyed before the call returns.
//! * *Call sequences*: `ibv_next_poll`, `ibv_end_poll` and the functions that read a completion are
//!   called between an `ibv_start_poll` that returned 0 and its `ibv_end_poll`, by the same thread;
//!   `ibv_wr_…` between `ibv_wr_start` and `ibv_wr_complete` or `ibv_wr_abort`.

mod channel;
mod completion_queue;
mod context;
mod counter;
mod direct;
pub(crate) mod domain;
mod hooks;
mod not_offered;
mod post;
mod query;
pub(crate) mod queue_pair;
mod region;
mod table;
#[cfg(test)]
mod test_host;
mod wr;

use std::mem::size_of;

use crate::boundary::{INVALID, Outcome};
#[cfg(test)]
pub(crate) use test_host::TestHost;

/// Fails with `EINVAL` for null.
fn not_null<T>(pointer: *mut T) -> Outcome<*mut T> {
    if pointer.is_null() { Err(INVALID) } else { Ok(pointer) }
}

/// Writes a structure that has grown over time: its first `length` bytes, and zeros where the caller's
/// structure is longer.
///
/// # Safety
/// `into` must be writable for `length` bytes.
unsafe fn write_sized<T>(into: *mut T, value: &T, length: usize) {
    let known = length.min(size_of::<T>());
    let into = into.cast::<u8>();
    // SAFETY: `into` is writable for `length` bytes as required above, and `known` is at most that and
    // at most the length of `value`. The copy is untyped, so padding may be uninitialised.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const *value).cast::<u8>(), into, known);
        std::ptr::write_bytes(into.add(known), 0, length - known);
    }
}

/// Reads a structure that has grown over time; members beyond the caller's `length` are zero.
///
/// # Errors
/// `EINVAL` for null, for a structure shorter than `least`, and for one with bytes set that are beyond
/// `T`: they ask for something unknown here.
///
/// # Safety
/// `from` must be null or readable for `length` bytes, and any bytes must be a value of `T`.
unsafe fn read_sized<T: Default>(from: *mut T, length: u32, least: usize) -> Outcome<T> {
    let from = not_null(from)?.cast::<u8>();
    let length = length as usize;
    let known = length.min(size_of::<T>());
    let mut value = T::default();
    // SAFETY: `from` is readable for `length` bytes as required above; `known` is at most that and at
    // most the length of `value`, of which any bytes are a value.
    let rest = unsafe {
        std::ptr::copy_nonoverlapping(from, (&raw mut value).cast(), known);
        std::slice::from_raw_parts(from.add(known), length - known)
    };
    if length < least || rest.iter().any(|&byte| byte != 0) { Err(INVALID) } else { Ok(value) }
}
