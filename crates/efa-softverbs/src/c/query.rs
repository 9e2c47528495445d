//! Queries about a device, its port and its limits.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};
use std::sync::Arc;

use super::context::device_of;
use super::{not_null, read_sized, write_sized};
use crate::abi::*;
use crate::attributes::{
    PARTITION_KEY, check_port, device_attributes, efa_attributes, extended_device_attributes,
    gid_entry, max_receive_depth, max_send_depth, port_attributes, port_speed,
};
use crate::boundary::{INVALID, Outcome, code, negative, number};
use crate::device::Device;

/// Writes the port attributes into a structure of `length` bytes.
///
/// # Safety
/// `into` must be null or writable for `length` bytes.
unsafe fn query_port(
    context: *mut ibv_context,
    port: u8,
    into: *mut ibv_port_attr,
    length: usize,
) -> c_int {
    code(|| {
        let device = device_of(context)?;
        check_port(port.into())?;
        let into = not_null(into)?;
        // SAFETY: `into` is not null, so writable for `length` bytes as required above.
        unsafe { write_sized(into, &port_attributes(&device), length) };
        Ok(())
    })
}

/// `ibv_query_port` of new programs, which call it through the context.
///
/// # Safety
/// `into` must be null or writable for `length` bytes.
pub(super) unsafe extern "C" fn query_port_sized(
    context: *mut ibv_context,
    port: u8,
    into: *mut ibv_port_attr,
    length: usize,
) -> c_int {
    // SAFETY: `into` is null or writable for `length` bytes, as required above.
    unsafe { query_port(context, port, into, length) }
}

/// See `ibv_query_port(3)`: the exported function, which old programs call with the shorter structure.
///
/// # Safety
/// `into` must be null or writable for the length of that structure.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    into: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: `into` is null or writable for this length, as required above.
    unsafe { query_port(context, port, into, COMPAT_PORT_ATTR) }
}

/// See `ibv_query_device(3)`.
///
/// # Safety
/// `into` must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    into: *mut ibv_device_attr,
) -> c_int {
    code(|| {
        let device = device_of(context)?;
        // SAFETY: `into` is not null, so valid for writing, as required above.
        unsafe { not_null(into)?.write(device_attributes(&device)) };
        Ok(())
    })
}

/// `ibv_query_device_ex`, which programs call through the context.
///
/// # Safety
/// `into` must be null or writable for `length` bytes.
pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _input: *const c_void,
    into: *mut ibv_device_attr_ex,
    length: usize,
) -> c_int {
    code(|| {
        let device = device_of(context)?;
        let into = not_null(into)?;
        if length < size_of::<ibv_device_attr>() {
            return Err(INVALID);
        }
        // SAFETY: `into` is not null, so writable for `length` bytes, as required above.
        unsafe { write_sized(into, &extended_device_attributes(&device), length) };
        Ok(())
    })
}

/// The device of a context, for a query of a table of one of its ports, which has one entry.
fn device_of_entry(context: *mut ibv_context, port: u32, is_first: bool) -> Outcome<Arc<Device>> {
    let device = device_of(context)?;
    check_port(port)?;
    if is_first { Ok(device) } else { Err(INVALID) }
}

/// See `ibv_query_gid(3)`.
///
/// # Safety
/// `into` must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    into: *mut ibv_gid,
) -> c_int {
    number(|| {
        let device = device_of_entry(context, port.into(), index == 0)?;
        // SAFETY: `into` is not null, so valid for writing, as required above.
        unsafe { not_null(into)?.write(ibv_gid { raw: device.gid().0 }) };
        Ok(0)
    })
}

/// The type of a GID as programs of rdma-core ask for it, out of sysfs: InfiniBand's, whose number is 0.
///
/// # Safety
/// `into` must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: c_uint,
    into: *mut c_uint,
) -> c_int {
    number(|| {
        let device = device_of_entry(context, port.into(), index == 0)?;
        // SAFETY: `into` is not null, so valid for writing, as required above.
        unsafe { not_null(into)?.write(gid_entry(&device).gid_type) };
        Ok(0)
    })
}

/// See `ibv_query_gid_ex(3)`, which calls it with the length of its structure.
///
/// # Safety
/// `into` must be null or writable for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    into: *mut ibv_gid_entry,
    flags: u32,
    length: usize,
) -> c_int {
    code(|| {
        let device = device_of_entry(context, port, index == 0 && flags == 0)?;
        // SAFETY: `into` is not null, so writable for `length` bytes, as required above.
        unsafe { write_sized(not_null(into)?, &gid_entry(&device), length) };
        Ok(())
    })
}

/// See `ibv_query_gid_table(3)`, which calls it with the length of an entry.
///
/// # Safety
/// `into` must be null or writable for `count` entries of `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    into: *mut ibv_gid_entry,
    count: usize,
    flags: u32,
    length: usize,
) -> isize {
    // The result is the number of entries or a negative error number.
    let error = code(|| {
        let device = device_of(context)?;
        if count == 0 || flags != 0 {
            return Err(INVALID);
        }
        // SAFETY: `into` is not null, so writable for at least one entry of `length` bytes, as required
        // above.
        unsafe { write_sized(not_null(into)?, &gid_entry(&device), length) };
        Ok(())
    });
    if error == 0 { 1 } else { -(error as isize) }
}

/// See `ibv_query_pkey(3)`.
///
/// # Safety
/// `into` must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    into: *mut u16,
) -> c_int {
    number(|| {
        device_of_entry(context, port.into(), index == 0)?;
        // SAFETY: `into` is not null, so valid for writing, as required above.
        unsafe { not_null(into)?.write(PARTITION_KEY) };
        Ok(0)
    })
}

/// See `ibv_get_pkey_index(3)`.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    number(|| {
        device_of(context)?;
        check_port(port.into())?;
        if pkey == PARTITION_KEY { Ok(0) } else { Err(INVALID) }
    })
}

/// See `ibv_query_port_speed(3)`: in units of 100 Mbit/s.
///
/// # Safety
/// `into` must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port: u32,
    into: *mut u64,
) -> c_int {
    code(|| {
        let device = device_of(context)?;
        check_port(port)?;
        // SAFETY: `into` is not null, so valid for writing, as required above.
        unsafe { not_null(into)?.write(port_speed(&device)) };
        Ok(())
    })
}

/// See `efadv_query_device(3)`.
///
/// # Safety
/// `into` must be null or writable for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_query_device(
    context: *mut ibv_context,
    into: *mut efadv_device_attr,
    length: u32,
) -> c_int {
    code(|| {
        let device = device_of(context)?;
        let into = not_null(into)?;
        if (length as usize) < offset_of!(efadv_device_attr, device_caps) {
            return Err(INVALID);
        }
        // SAFETY: `into` is not null, so writable for `length` bytes, as required above.
        unsafe { write_sized(into, &efa_attributes(&device), length as usize) };
        Ok(())
    })
}

/// See `efadv_get_max_sq_depth(3)`.
///
/// # Safety
/// `wanted` must be null or readable for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_get_max_sq_depth(
    context: *mut ibv_context,
    wanted: *mut efadv_sq_depth_attr,
    length: u32,
) -> c_int {
    negative(|| {
        // SAFETY: `wanted` is null or readable for `length` bytes, as required above; it consists of
        // numbers.
        let wanted = unsafe { read_sized(wanted, length, size_of::<efadv_sq_depth_attr>())? };
        max_send_depth(&*device_of(context)?, &wanted)
    })
}

/// See `efadv_get_max_rq_depth(3)`.
///
/// # Safety
/// `wanted` must be null or readable for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_get_max_rq_depth(
    context: *mut ibv_context,
    wanted: *mut efadv_rq_depth_attr,
    length: u32,
) -> c_int {
    negative(|| {
        // SAFETY: `wanted` is null or readable for `length` bytes, as required above; it consists of
        // numbers.
        let wanted = unsafe { read_sized(wanted, length, offset_of!(efadv_rq_depth_attr, _end))? };
        max_receive_depth(&*device_of(context)?, &wanted)
    })
}
