//! Waiting for asynchronous events, and unloading the library.

use efa_soft::abi::*;

use crate::common::library;
use crate::common::verbs::*;
use crate::{Host, begin};

type GetAsyncEvent =
    unsafe extern "C-unwind" fn(*mut ibv_context, *mut libc::c_void) -> libc::c_int;

/// Thread function: waits for an event of a context.
extern "C-unwind" fn wait_for_event(context: *mut libc::c_void) -> *mut libc::c_void {
    let mut event = [0_u64; 2];
    // SAFETY: the context is open, and `event` has the length of an `ibv_async_event`. This frame has
    // nothing to drop, so cancellation may unwind it.
    unsafe {
        let wait = libc::dlsym(libc::RTLD_DEFAULT, c"ibv_get_async_event".as_ptr());
        let wait = std::mem::transmute::<*mut libc::c_void, GetAsyncEvent>(wait);
        wait(context.cast(), event.as_mut_ptr().cast());
    }
    null_mut()
}

/// Programs wait for events in a thread, and cancel it before they exit.
#[test]
#[ignore = "a child"]
fn child_waits_for_events() {
    begin();
    let path = std::ffi::CString::new(library().into_os_string().into_encoded_bytes());
    // SAFETY: the initialisers of the library have no preconditions.
    unsafe { libc::dlopen(path.unwrap().as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    let context = open();
    // SAFETY: the thread ends before the context is closed. The two function types differ only in
    // unwinding, which `pthread_cancel` does.
    unsafe {
        let start = std::mem::transmute::<
            extern "C-unwind" fn(*mut libc::c_void) -> *mut libc::c_void,
            extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
        >(wait_for_event);
        let mut thread = std::mem::zeroed();
        assert_eq!(
            libc::pthread_create(&raw mut thread, std::ptr::null(), start, context.cast()),
            0
        );
        assert_eq!(libc::pthread_cancel(thread), 0);
        let mut end = null_mut();
        assert_eq!(libc::pthread_join(thread, &raw mut end), 0);
        assert_eq!(end as usize, usize::MAX, "it waited until it was cancelled");
        // With `O_NONBLOCK` the call doesn't wait.
        let file = (*context).async_fd;
        let flags = libc::fcntl(file, libc::F_GETFL);
        assert_eq!(libc::fcntl(file, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
        assert!(wait_for_event(context.cast()).is_null());
        assert_eq!(errno(), libc::EAGAIN);
        assert_eq!((verbs().ibv_close_device)(context), 0);
    }
}

#[test]
fn get_async_event_waits_until_cancelled() {
    Host::new("shm").run("loading::child_waits_for_events", &[]);
}

/// Loads the library and closes it.
#[test]
#[ignore = "a child"]
fn child_unloads_the_library() {
    begin();
    let path = std::ffi::CString::new(library().into_os_string().into_encoded_bytes());
    let path = path.unwrap();
    // SAFETY: the initialisers of the library have no preconditions.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!handle.is_null());
        assert_eq!(libc::dlclose(handle), 0);
        let still = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        assert!(!still.is_null(), "its thread would run unmapped code");
    }
}

#[test]
fn library_stays_mapped_after_dlclose() {
    Host::new("shm").run("loading::child_unloads_the_library", &[]);
}
