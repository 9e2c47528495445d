//! Results of C calls, as errors that name the call, the interface and the error number.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;

use efa_device::DeviceError;

/// The error of a call that returned an error number.
pub(crate) fn failed(call: &str, interface: &str, errno: c_int) -> DeviceError {
    // Some calls return it negated.
    let errno = errno.abs();
    let reason = io::Error::from_raw_os_error(errno).to_string();
    DeviceError::System { operation: format!("{call} on {interface}"), errno, reason }
}

/// The error of a call that left its number in `errno`.
pub(crate) fn last_error(call: &str, interface: &str) -> DeviceError {
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    failed(call, interface, errno)
}

/// The result of a call that returns 0 or an error number.
#[inline]
pub(crate) fn check(code: c_int, call: &str, interface: &str) -> Result<(), DeviceError> {
    if code == 0 { Ok(()) } else { Err(failed_with(code, call, interface)) }
}

#[cold]
fn failed_with(code: c_int, call: &str, interface: &str) -> DeviceError {
    match code {
        // Some calls return -1 and set `errno`.
        -1 => last_error(call, interface),
        errno => failed(call, interface, errno),
    }
}

/// The result of a call that returns an object, or null and sets `errno`.
pub(crate) fn object<T>(
    pointer: *mut T,
    call: &str,
    interface: &str,
) -> Result<NonNull<T>, DeviceError> {
    NonNull::new(pointer).ok_or_else(|| last_error(call, interface))
}

/// Whether a call that destroys an object failed; then the object still exists, and a warning is
/// logged, as drops can't return errors.
pub(crate) fn destroy_failed(code: c_int, call: &'static str, interface: &str) -> bool {
    if code != 0 {
        tracing::warn!(call, interface, errno = code.abs(), "object not destroyed");
    }
    code != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_call_interface_and_number() {
        let error = check(libc::ENOMEM, "ibv_modify_qp", "efa_0").unwrap_err();
        assert_eq!(
            error.to_string(),
            "ibv_modify_qp on efa_0 failed: Cannot allocate memory (os error 12)"
        );
        assert_eq!(check(-libc::ENOMEM, "ibv_modify_qp", "efa_0"), Err(error));
        assert_eq!(check(0, "ibv_modify_qp", "efa_0"), Ok(()));
    }
}
