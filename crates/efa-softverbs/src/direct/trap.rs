//! Doorbells that trap: the program's write to one faults, and the signal handler rings it.
//!
//! ```text
//!  program: *doorbell = count ──► SIGSEGV, as it may not write that page ──► handler
//!    ▲                                                                        │ decodes the store, writes
//!    └── goes on behind the store ◄── the queue pair has read its rings, ◄────┘ the count to the page
//!                                     or the completion queue is armed
//! ```
//!
//! The handler runs at a point where the program was writing to a doorbell, so in no call of this library, or of
//! any other: it may do what a call may do. If a handler of the program for another signal rings a doorbell in
//! the middle of a call of this library, the count is written, and the next step reads it.
//!
//! A store that can't be decoded makes the page writable, and from then on the
//! [thread](crate::direct::watcher) watches that doorbell. Other faults go to the handler that was there before.
//! A program that replaces the handler while it has such doorbells crashes at its next write to one; with the next
//! queue pair the handler is there again.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::memory::PAGE;
use super::store::{Store, Value};
use crate::boundary::{FULL, Outcome, value};
use crate::completion_queue::CompletionQueue;
use crate::message::report;
use crate::process::process;
use crate::queue_pair::QueuePair;

/// Most queue pairs and completion queues of a process with doorbells that trap.
const MOST: usize = 512;

/// Whose doorbell traps.
pub(crate) enum Rung {
    QueuePair(Arc<QueuePair>),
    CompletionQueue(Arc<CompletionQueue>),
}

impl Rung {
    /// The program writes `word` to the doorbell at `address`.
    fn ring(&self, address: usize, word: u32) {
        match self {
            Self::QueuePair(queue_pair) => queue_pair.ring(address, word),
            Self::CompletionQueue(queue) => queue.ring(address, word),
        }
    }

    /// Has the thread watch the doorbells, which don't trap any more.
    fn release(&self) -> Outcome<()> {
        match self {
            Self::QueuePair(queue_pair) => {
                queue_pair.release_doorbells();
                process().watcher.watch(queue_pair)
            }
            Self::CompletionQueue(queue) => {
                queue.release_doorbell()?;
                process().watcher.watch_completions(queue)
            }
        }
    }
}

/// An owner of doorbells by their page.
struct Slot {
    /// Address of the page; 0 if the slot is free.
    page: AtomicUsize,
    /// From `Box::into_raw`; null while the slot is free, or being filled.
    rung: AtomicPtr<Rung>,
}

static SLOTS: [Slot; MOST] =
    [const { Slot { page: AtomicUsize::new(0), rung: AtomicPtr::new(null_mut()) } }; MOST];

/// The handler that was there before.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(null_mut());

/// Calls `rung` when the program writes to the page at `page`, which it must not be able to. Fails with
/// `ENOMEM` if there are [too many](MOST).
pub(crate) fn add(page: usize, rung: Rung) -> Outcome<()> {
    install()?;
    let is_free = |slot: &&Slot| {
        slot.page.compare_exchange(0, page, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let slot = SLOTS.iter().find(is_free).ok_or(FULL)?;
    slot.rung.store(Box::into_raw(Box::new(rung)), Ordering::Release);
    Ok(())
}

/// Ends that. No thread may be writing to the page.
pub(crate) fn remove(page: usize) {
    let Some(slot) = SLOTS.iter().find(|slot| slot.page.load(Ordering::Acquire) == page) else {
        return;
    };
    let rung = slot.rung.swap(null_mut(), Ordering::AcqRel);
    slot.page.store(0, Ordering::Release);
    if !rung.is_null() {
        // SAFETY: the pointer comes from `Box::into_raw` in `add`, and was just taken out of the slot, once.
        drop(unsafe { Box::from_raw(rung) });
    }
}

/// Forgets all: in a forked child they are the parent's.
pub(crate) fn forget() {
    for slot in &SLOTS {
        // The references are leaked with the rest of the parent's state.
        slot.rung.store(null_mut(), Ordering::Relaxed);
        slot.page.store(0, Ordering::Relaxed);
    }
}

/// Installs the handler, also if the program, or a library that it has loaded, has replaced it since.
fn install() -> Outcome<()> {
    let handler: unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_fault;
    // SAFETY: `sigaction` consists of integers and an optional function, so zeros are a value. The first call
    // writes `before`, the second one reads `action`. The handler has the signature that `SA_SIGINFO` asks for,
    // and stays loaded, as the library is linked with `nodelete`.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut before) != 0 {
            return Err(FULL);
        }
        if before.sa_sigaction == handler as usize {
            return Ok(());
        }
        // Leaked, as a handler that runs may be reading it.
        BEFORE.store(Box::into_raw(Box::new(before)), Ordering::Release);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        // Without a stack of its own, which may be too small for a step of the device. With NODEFER, so
        // that a fault in the handler gets to the handler before.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
        if libc::sigaction(libc::SIGSEGV, &raw const action, null_mut()) != 0 {
            return Err(FULL);
        }
    }
    Ok(())
}

/// Whose doorbells are at this address.
fn find(address: usize) -> Option<&'static Rung> {
    let page = address - address % PAGE;
    let slot = SLOTS.iter().find(|slot| page != 0 && slot.page.load(Ordering::Acquire) == page)?;
    // SAFETY: null, or from `Box::into_raw`: the slot has the box until `remove`, which the program causes
    // by destroying the object, not while a thread writes to its doorbell ("Handles" in `crate::c`).
    unsafe { slot.rung.load(Ordering::Acquire).as_ref() }
}

/// Handles SIGSEGV.
///
/// # Safety
/// The kernel must call it for a signal, with the arguments of `SA_SIGINFO`.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: `__errno_location` returns the address of this thread's `errno`; `info` is valid.
    let (errno, address) = unsafe { (libc::__errno_location(), (*info).si_addr().addr()) };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    match find(address) {
        Some(rung) => {
            // SAFETY: `context` is that of the signal, as required above.
            match unsafe { emulate(context) } {
                Some(word) => rung.ring(address, word),
                None => release(rung),
            }
        }
        // SAFETY: the arguments are those of this call.
        None => unsafe { pass_on(signal, info, context) },
    }
    // SAFETY: as above.
    unsafe { *errno = saved };
}

/// Makes the page writable, so that the program's store is done when the handler returns.
#[cold]
fn release(rung: &Rung) {
    report(&format_args!(
        "EFA_SOFT_DIRECT=trap can't decode the program's write to a doorbell; a thread watches it instead"
    ));
    if value(Ok(()), || rung.release()).is_err() {
        report(&format_args!("no thread watches a doorbell"));
    }
}

/// Has the handler before handle the signal.
///
/// # Safety
/// The arguments must be those of a handler with `SA_SIGINFO`.
#[cold]
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: null, or of a box that is never freed.
    let Some(before) = (unsafe { BEFORE.load(Ordering::Acquire).as_ref() }) else { return };
    match before.sa_sigaction {
        // The instruction faults again, and the process ends.
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: a signal and an action that exist.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the program had installed a function of this type, as its flag says.
            unsafe {
                let handler: unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
        handler => {
            // SAFETY: the program had installed a function of this type, as the missing flag says.
            unsafe {
                let handler: unsafe extern "C" fn(c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

/// Decodes the store that faulted, and continues the program behind it; returns what it stores.
///
/// # Safety
/// `context` must be that of a signal of this thread.
#[cfg(target_arch = "x86_64")]
unsafe fn emulate(context: *mut c_void) -> Option<u32> {
    use libc::{
        REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RAX, REG_RBP,
        REG_RBX, REG_RCX, REG_RDI, REG_RDX, REG_RIP, REG_RSI, REG_RSP,
    };
    const ORDER: [c_int; 16] = [
        REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI, REG_R8, REG_R9,
        REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15,
    ];
    // SAFETY: the kernel has written the context, as required above.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = registers[REG_RIP as usize] as usize;
    // SAFETY: the processor has just read this instruction, and the decoder reads no byte behind its end.
    let byte =
        |offset| unsafe { std::ptr::with_exposed_provenance::<u8>(at + offset).read_unaligned() };
    let Store { value, length } = super::store::x86_64(byte)?;
    let stored = match value {
        Value::Constant(constant) => constant,
        Value::Register(number) => registers[*ORDER.get(usize::from(number))? as usize] as u32,
    };
    registers[REG_RIP as usize] += length as i64;
    Some(stored)
}

/// Decodes the store that faulted, and continues the program behind it; returns what it stores.
///
/// # Safety
/// `context` must be that of a signal of this thread.
#[cfg(target_arch = "aarch64")]
unsafe fn emulate(context: *mut c_void) -> Option<u32> {
    // SAFETY: the kernel has written the context, as required above.
    let machine = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    // SAFETY: the processor has just read this instruction, of four aligned bytes.
    let instruction =
        unsafe { std::ptr::with_exposed_provenance::<u32>(machine.pc as usize).read() };
    let Store { value, length } = super::store::aarch64(instruction)?;
    let stored = match value {
        Value::Constant(constant) => constant,
        Value::Register(number) => *machine.regs.get(usize::from(number))? as u32,
    };
    machine.pc += length as u64;
    Some(stored)
}

/// Nothing is decoded on other processors.
///
/// # Safety
/// None.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn emulate(_context: *mut c_void) -> Option<u32> {
    None
}
