//! The time that the links are given.

use efa_device::Time;

/// The monotonic clock, the same in all processes of the host, so captures can be merged.
pub(crate) fn now() -> Time {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // The C library's function works under valgrind too, where the vDSO is hidden.
    // SAFETY: `time` is writable, and Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Time::from_nanos(time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
}
