//! The C boundary: results become error numbers, panics never cross, handles are known or refused.
//!
//! | the C function gives | on failure | here |
//! |---|---|---|
//! | `int` | the error number | [`code`] |
//! | a pointer | null, and `errno` is set | [`pointer`] |
//! | `int`, a number | −1, and `errno` is set | [`number`] |

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use efa_device::DeviceError;

/// An error number of the operating system, as C knows errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

/// A null or foreign handle, a value out of range.
pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
/// Something that this device doesn't have.
pub(crate) const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
/// Something that others still use.
pub(crate) const BUSY: Errno = Errno(libc::EBUSY);
/// A queue or a table is full.
pub(crate) const FULL: Errno = Errno(libc::ENOMEM);

pub(crate) type Outcome<T> = Result<T, Errno>;

impl From<DeviceError> for Errno {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::QueueFull { .. } | DeviceError::LimitReached { .. } => FULL,
            DeviceError::System { errno, .. } => Self(errno),
            DeviceError::Absent { .. } => Self(libc::ENODEV),
            _ => INVALID,
        }
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}

/// Runs `f`; a panic, which is a fault of ours, becomes EIO.
fn run<T>(f: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    // The state behind locks is left as the panic found it. Locks are taken over from a panicked
    // holder everywhere, so that the worst is a wrong answer and never a hang.
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(Err(Errno(libc::EIO)))
}

fn set_errno(Errno(errno): Errno) {
    // SAFETY: the address is that of this thread's errno, valid while the thread lives.
    unsafe { *libc::__errno_location() = errno };
}

/// 0 or the error number.
#[inline]
pub(crate) fn code(f: impl FnOnce() -> Outcome<()>) -> c_int {
    match run(f) {
        Ok(()) => 0,
        Err(Errno(errno)) => errno,
    }
}

/// The pointer, or null with `errno` set.
pub(crate) fn pointer<T>(f: impl FnOnce() -> Outcome<*mut T>) -> *mut T {
    run(f).unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

/// The number, or −1 with `errno` set.
pub(crate) fn number(f: impl FnOnce() -> Outcome<c_int>) -> c_int {
    run(f).unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// The value, or `otherwise` if `f` panics.
#[inline]
pub(crate) fn value<T>(otherwise: T, f: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(otherwise)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet<T>(f: impl FnOnce() -> T) -> T {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let result = f();
        std::panic::set_hook(hook);
        result
    }

    #[test]
    fn panics_stay_inside() {
        quiet(|| {
            assert_eq!(code(|| panic!()), libc::EIO);
            assert!(pointer::<u8>(|| panic!()).is_null());
            assert_eq!(number(|| panic!()), -1);
            assert_eq!(value(7, || panic!()), 7);
        });
    }

    #[test]
    fn errors_become_numbers() {
        assert_eq!(code(|| Err(BUSY)), libc::EBUSY);
        assert_eq!(code(|| Ok(())), 0);
        assert!(pointer::<u8>(|| Err(FULL)).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
        assert_eq!(Errno::from(DeviceError::QueueFull { depth: 1 }), FULL);
        let error = DeviceError::System { operation: String::new(), errno: 5 };
        assert_eq!(Errno::from(error), Errno(5));
    }
}
