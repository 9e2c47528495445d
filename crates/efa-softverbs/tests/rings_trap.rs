//! The direct data path with doorbells that trap, on the shm link.

#![allow(clippy::unwrap_used)]

mod common;
mod rings;

const LINK: &str = "shm";
fn direct() -> &'static str {
    "trap"
}

use std::ffi::{c_int, c_void};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::verbs::QpOptions;
use rings::Pair;

/// How often the program's own handler was called.
static HANDLED: AtomicUsize = AtomicUsize::new(0);
/// The page of the program at which it expects a fault.
static PAGE: AtomicUsize = AtomicUsize::new(0);
const PAGE_SIZE: usize = 4096;

/// The program's own handler: makes its page writable.
extern "C" fn own_handler(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel has passed a valid `info`.
    let address = unsafe { (*info).si_addr() }.addr();
    let page = PAGE.load(Ordering::Relaxed);
    if address != page {
        // SAFETY: ends the process, which has gone wrong.
        unsafe { libc::abort() };
    }
    let page = std::ptr::with_exposed_provenance_mut(page);
    // SAFETY: the page is the program's.
    unsafe { libc::mprotect(page, PAGE_SIZE, libc::PROT_READ | libc::PROT_WRITE) };
}

fn install_own_handler() {
    // SAFETY: zeros are a value of `sigaction`; the handler has the signature that `SA_SIGINFO` asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = own_handler;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, null_mut()), 0);
    }
}

/// Writes to a page that the program may only read, until its handler makes it writable.
fn fault() {
    // SAFETY: a new mapping; the handler makes it writable before the write is done.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(null_mut(), PAGE_SIZE, libc::PROT_READ, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        PAGE.store(page.expose_provenance(), Ordering::Relaxed);
        page.cast::<u32>().write_volatile(7);
        assert_eq!(page.cast::<u32>().read_volatile(), 7);
    }
}

fn exchange(pair: &mut Pair) {
    pair.receive(1, 0, 64);
    pair.send(pair.request(2).inline(b"message"));
    assert_eq!((pair.a.wait().status, pair.b.wait().length), (0, 7));
}

/// Runs an ignored test of this program in a process of its own, as it changes the handler of a signal.
#[track_caller]
fn run_child(name: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}{text}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn fault_that_is_no_doorbell_goes_to_the_handler_before() {
    run_child("child_with_a_handler_of_its_own");
}

#[test]
#[ignore = "a child"]
fn child_with_a_handler_of_its_own() {
    install_own_handler();
    let mut pair = Pair::new(QpOptions::default());
    exchange(&mut pair);
    assert_eq!(HANDLED.load(Ordering::Relaxed), 0);
    fault();
    assert_eq!(HANDLED.load(Ordering::Relaxed), 1);
    exchange(&mut pair);
    drop(pair);
    // A library that the program loads takes the signal away; with the next queue pair it is there again.
    install_own_handler();
    exchange(&mut Pair::new(QpOptions::default()));
    fault();
    assert_eq!(HANDLED.load(Ordering::Relaxed), 2);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn doorbell_that_is_rung_in_another_way_is_watched_by_a_thread() {
    run_child("child_that_exchanges_with_its_doorbells");
}

#[test]
#[ignore = "a child"]
#[cfg(target_arch = "x86_64")]
fn child_that_exchanges_with_its_doorbells() {
    let mut pair = Pair::new(QpOptions::default());
    exchange(&mut pair);
    assert!(!has_watcher());
    for _ in 0..3 {
        pair.receive(1, 0, 64);
        pair.a.post(pair.request(2).inline(b"message"));
        pair.a.exchange_sends_doorbell();
        assert_eq!((pair.a.wait().status, pair.b.wait().length), (0, 7));
        assert!(has_watcher());
        // The other side still traps.
        pair.b.post(pair.request_back(3).inline(b"answer"));
        pair.receive_back(4);
        pair.b.ring_sends();
        assert_eq!((pair.b.wait().status, pair.a.wait().length), (0, 6));
    }
}

/// Whether this process has the thread that watches doorbells.
#[cfg(target_arch = "x86_64")]
fn has_watcher() -> bool {
    let names = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default());
    names.into_iter().any(|name| name.trim() == "efa-soft-rings")
}
