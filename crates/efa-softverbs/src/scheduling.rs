//! How the kernel schedules the threads of the library.

use crate::message::report;

/// The shortest time slice that Linux allows, in nanoseconds.
const SHORTEST_SLICE: u64 = 100_000;

/// `struct sched_attr` of Linux, in its first version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// Of ordinary threads since Linux 6.12: the time slice in nanoseconds.
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Asks that this thread runs as soon as it is woken, also where a program polls without end on the only free
/// processor: since Linux 6.12 a thread with a shorter time slice interrupts one with a longer one. Where the
/// kernel can't, all stays as it is.
pub(crate) fn run_promptly() {
    let mut attributes =
        Attributes { size: size_of::<Attributes>() as u32, ..Attributes::default() };
    let size = attributes.size;
    // SAFETY: the kernel writes `size` bytes, the length of the structure, and reads as many. Thread 0 is the
    // caller.
    let result = unsafe {
        match libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) {
            0 if attributes.policy == libc::SCHED_OTHER as u32 => {
                attributes.runtime = SHORTEST_SLICE;
                libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0)
            }
            result => result,
        }
    };
    // Sleeps of microseconds then take microseconds, not 50 more.
    // SAFETY: this option has one argument, a number.
    let slack = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    if result != 0 || slack != 0 {
        let error = std::io::Error::last_os_error();
        report(&format_args!("a thread that watches the device isn't scheduled promptly: {error}"));
    }
}

/// How often the kernel has taken the processor from this thread although it wanted to go on.
pub(crate) fn forced_switches() -> libc::c_long {
    // SAFETY: zeros are a value of `rusage`, which consists of numbers; the kernel writes it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nivcsw
    }
}
