//! The number of the thread that runs.

#![allow(unsafe_code, reason = "the register that names the thread")]

/// A number that no other living thread of the process has: even, and never 0. A new thread may have that of one which has
/// ended.
///
/// It is the address of what the C library keeps for the thread, in a register; on other processors than x86-64 and
/// AArch64, and on other systems than Linux, that of a variable of the thread.
#[inline(always)]
#[must_use]
pub fn this_thread() -> usize {
    number()
}

#[cfg(all(target_os = "linux", target_arch = "x86_64", target_pointer_width = "64"))]
#[inline(always)]
fn number() -> usize {
    let this;
    // SAFETY: the ABI has the address of the thread's control block in its first word, at `fs:0`; reading it changes
    // nothing.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) this, options(nostack, preserves_flags, pure, readonly));
    }
    this
}

#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
#[inline(always)]
fn number() -> usize {
    let this;
    // SAFETY: reading the register changes nothing.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) this, options(nostack, preserves_flags, pure, nomem));
    }
    this
}

#[cfg(not(any(
    all(target_os = "linux", target_arch = "x86_64", target_pointer_width = "64"),
    all(target_os = "linux", target_arch = "aarch64")
)))]
fn number() -> usize {
    thread_local! {
        static PLACE: u64 = const { 0 };
    }
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}
