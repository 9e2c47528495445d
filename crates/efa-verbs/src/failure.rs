//! What a call of rdma-core came to, as an error that names call, interface and error number.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;

use efa_device::DeviceError;

/// The error of a call that returned its error number.
pub(crate) fn failed(verb: &str, interface: &str, errno: c_int) -> DeviceError {
    // Some return it negative.
    DeviceError::System { operation: format!("{verb} on {interface}"), errno: errno.abs() }
}

/// The error of a call that left its number in `errno`.
pub(crate) fn last(verb: &str, interface: &str) -> DeviceError {
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    failed(verb, interface, errno)
}

/// The result of a call that gives 0 or an error number.
#[inline]
pub(crate) fn check(code: c_int, verb: &str, interface: &str) -> Result<(), DeviceError> {
    if code == 0 { Ok(()) } else { Err(refused(code, verb, interface)) }
}

#[cold]
fn refused(code: c_int, verb: &str, interface: &str) -> DeviceError {
    match code {
        // As some old calls do.
        -1 => last(verb, interface),
        errno => failed(verb, interface, errno),
    }
}

/// The result of a call that gives an object, or null with its error number in `errno`.
pub(crate) fn object<T>(
    pointer: *mut T,
    verb: &str,
    interface: &str,
) -> Result<NonNull<T>, DeviceError> {
    NonNull::new(pointer).ok_or_else(|| last(verb, interface))
}

/// An object could not be ended: it stays, as nothing better can be done in a drop.
pub(crate) fn stays(code: c_int, verb: &'static str, interface: &str) -> bool {
    if code != 0 {
        tracing::warn!(verb, interface, errno = code.abs(), "not ended");
    }
    code != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_call_interface_and_number() {
        let error = check(libc::ENOMEM, "ibv_modify_qp", "efa_0").unwrap_err();
        assert_eq!(error.to_string(), "ibv_modify_qp on efa_0 failed: errno 12");
        assert_eq!(check(-libc::ENOMEM, "ibv_modify_qp", "efa_0"), Err(error));
        assert_eq!(check(0, "ibv_modify_qp", "efa_0"), Ok(()));
    }
}
