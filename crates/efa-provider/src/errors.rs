//! Errors of `efa` as error numbers of libfabric.

use std::ffi::{c_char, c_int};

use efa::{DeviceError, EnableError, Error, OperationError, StartError};

use crate::abi::*;
use crate::boundary::{Errno, INVALID};

/// An object couldn't be opened.
pub(crate) fn of_error(error: &Error) -> Errno {
    match error {
        Error::NoData { .. } => Errno(FI_ENODATA),
        Error::Version { .. } => Errno(FI_ENOSYS),
        Error::Device(error) => of_device(error),
        _ => Errno(FI_EOTHER),
    }
}

/// The device failed.
pub(crate) fn of_device(error: &DeviceError) -> Errno {
    match error {
        DeviceError::QueueFull { .. } => Errno(FI_EAGAIN),
        DeviceError::LimitReached { .. } => Errno(FI_ENOMEM),
        DeviceError::System { errno, .. } => Errno(*errno),
        DeviceError::Absent { .. } => Errno(FI_ENODEV),
        DeviceError::Unsupported { .. } => Errno(FI_EOPNOTSUPP),
        _ => INVALID,
    }
}

/// An endpoint couldn't be enabled.
pub(crate) fn of_enable(error: &EnableError) -> Errno {
    match error {
        EnableError::Missing(efa::Bound::AddressVector) => Errno(FI_ENOAV),
        EnableError::Missing(_) => Errno(FI_ENOCQ),
        EnableError::OtherDomain(_) => Errno(FI_EDOMAIN),
        EnableError::Device(error) => of_device(error),
        _ => INVALID,
    }
}

/// An operation couldn't be started.
#[cold]
pub(crate) fn of_start(error: &StartError) -> Errno {
    match error {
        StartError::Busy { .. } | StartError::QueueFull { .. } => Errno(FI_EAGAIN),
        StartError::Closed => Errno(FI_EOPBADSTATE),
        StartError::NotConnected => Errno(FI_ENOTCONN),
        StartError::PeerGone(_) => Errno(FI_ECONNABORTED),
        StartError::TooLong { .. } => Errno(FI_EMSGSIZE),
        StartError::Disabled(_) => Errno(FI_EOPNOTSUPP),
        StartError::Device(error) => of_device(error),
        _ => INVALID,
    }
}

/// An operation failed.
pub(crate) fn of_operation(error: &OperationError) -> Errno {
    Errno(match error {
        OperationError::Truncated { .. } => FI_ETRUNC,
        OperationError::Cancelled => FI_ECANCELED,
        OperationError::PeerExcluded(_) | OperationError::PeerRestarted => FI_ECONNABORTED,
        OperationError::PeerRemoved => FI_EADDRNOTAVAIL,
        OperationError::PeerLacks { .. } => FI_EOPNOTSUPP,
        OperationError::PlainOnly { .. } => FI_EMSGSIZE,
        OperationError::TooManyOperations => FI_ENOBUFS,
        _ => FI_EIO,
    })
}

/// Writes the text of an error number where there is room for it, and returns it.
///
/// # Safety
/// `room` bytes can be written to `to`, unless that is null.
#[allow(unsafe_code)]
pub(crate) unsafe fn text(errno: c_int, to: *mut c_char, room: usize) -> *const c_char {
    let text = crate::libfabric::strerror(errno);
    if !to.is_null() && room > 0 {
        let bytes = text.to_bytes();
        let count = bytes.len().min(room - 1);
        // SAFETY: the caller's promise; `count` is less than `room`.
        unsafe {
            to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), count);
            to.add(count).write(0);
        }
    }
    text.as_ptr()
}
