//! Completion counters: created, read, changed, attached to queue pairs, destroyed.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::context::device_of;
use super::queue_pair::queue_pair_of;
use super::{not_null, read_sized, write_sized};
use crate::abi::*;
use crate::boundary::{Errno, INVALID, Outcome, UNSUPPORTED, code, pointer};
use crate::counter::{Counted, Counter, MAX_COUNTERS, MAX_VALUE, Value};
use crate::process::{HandleType, process};

/// The object that an `ibv_comp_cntr` is a member of.
#[repr(C)]
struct CounterObject {
    /// First, so that the handle is a pointer to the object.
    ibv: ibv_comp_cntr,
    counter: Arc<Counter>,
}

/// The counter of a handle; fails with `EINVAL` for any other pointer.
fn counter_of(handle: *mut ibv_comp_cntr) -> Outcome<Arc<Counter>> {
    process().check_handle(handle, HandleType::Counter)?;
    // SAFETY: the handle is entered, so the object exists, and no thread destroys it while this one uses it
    // ("Handles").
    Ok(Arc::clone(unsafe { &(*handle.cast::<CounterObject>()).counter }))
}

/// Fails with `EOPNOTSUPP` for a device without counters.
fn check_offered(context: *mut ibv_context) -> Outcome<()> {
    if device_of(context)?.settings.counters { Ok(()) } else { Err(UNSUPPORTED) }
}

/// See `ibv_query_comp_cntr_caps(3)`, which calls it with the length of its structure.
///
/// # Safety
/// `into` must be null or writable for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_comp_cntr_caps(
    context: *mut ibv_context,
    into: *mut ibv_comp_cntr_caps,
    length: usize,
) -> c_int {
    code(|| {
        check_offered(context)?;
        let capabilities = ibv_comp_cntr_caps {
            max_value: MAX_VALUE,
            max_counters: MAX_COUNTERS as u32,
            supported_qp_attach_ops: Counted::flags(),
        };
        // SAFETY: `into` is not null, so writable for `length` bytes, as required above.
        unsafe { write_sized(not_null(into)?, &capabilities, length) };
        Ok(())
    })
}

/// Creates a counter.
///
/// # Safety
/// `attributes` must be null or valid; memory that `efa` names is left to the device until the counter is destroyed.
unsafe fn create(
    context: *mut ibv_context,
    attributes: *mut ibv_comp_cntr_init_attr,
    efa: &efadv_comp_cntr_init_attr,
) -> Outcome<*mut ibv_comp_cntr> {
    check_offered(context)?;
    // SAFETY: `attributes` is not null, so valid for reading, as required above.
    let &ibv_comp_cntr_init_attr { comp_mask, kind, flags } = unsafe { &*not_null(attributes)? };
    let known =
        EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM | EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM;
    if (comp_mask, kind, flags) != (0, IBV_COMP_CNTR_TYPE_WRS, 0)
        || efa.comp_mask != 0
        || efa.flags & !known != 0
    {
        return Err(UNSUPPORTED);
    }
    if process().handles_of::<ibv_comp_cntr>(context, HandleType::Counter)?.len() >= MAX_COUNTERS {
        return Err(Errno(libc::ENOMEM));
    }
    let value = |flag, place| {
        if efa.flags & flag == 0 {
            return Ok(Value::Own(AtomicU64::new(0)));
        }
        // SAFETY: the memory is left to the device, as required above.
        unsafe { Value::at(place) }
    };
    let completed = value(EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM, &efa.comp_cntr_ext_mem)?;
    let failed = value(EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM, &efa.err_cntr_ext_mem)?;
    let counter = Arc::new(Counter::new(completed, failed));
    let object = CounterObject { ibv: ibv_comp_cntr { context, handle: 0 }, counter };
    let handle = Box::into_raw(Box::new(object)).cast();
    process().add_handle(handle, HandleType::Counter, context);
    Ok(handle)
}

/// See `ibv_create_comp_cntr(3)`.
///
/// # Safety
/// `attributes` must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_cntr(
    context: *mut ibv_context,
    attributes: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    // SAFETY: `attributes` is null or valid, as required above; no memory of the program is named.
    pointer(|| unsafe { create(context, attributes, &efadv_comp_cntr_init_attr::default()) })
}

/// See `efadv_create_comp_cntr(3)`.
///
/// # Safety
/// `attributes` must be null or valid, `efa` null or readable for `length` bytes; the memory that it names is left to
/// the device until the counter is destroyed.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_create_comp_cntr(
    context: *mut ibv_context,
    attributes: *mut ibv_comp_cntr_init_attr,
    efa: *mut efadv_comp_cntr_init_attr,
    length: u32,
) -> *mut ibv_comp_cntr {
    pointer(|| {
        check_offered(context)?;
        // SAFETY: `efa` is null or readable for `length` bytes, as required above; it consists of numbers.
        let efa = unsafe { read_sized(efa, length, size_of::<efadv_comp_cntr_init_attr>())? };
        // SAFETY: as required above.
        unsafe { create(context, attributes, &efa) }
    })
}

/// See `ibv_destroy_comp_cntr(3)`; fails with `EBUSY` while a queue pair counts there.
#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_comp_cntr(handle: *mut ibv_comp_cntr) -> c_int {
    code(|| destroy(handle))
}

/// As [`ibv_destroy_comp_cntr`].
pub(super) fn destroy(handle: *mut ibv_comp_cntr) -> Outcome<()> {
    counter_of(handle)?.check_unused()?;
    process().remove_handle(handle, HandleType::Counter)?;
    // SAFETY: the object comes from the box in `create`. Its handle was removed just now, which succeeds once, so it is
    // freed once and not found any more.
    drop(unsafe { Box::from_raw(handle.cast::<CounterObject>()) });
    Ok(())
}

/// See `ibv_qp_attach_comp_cntr(3)`.
///
/// # Safety
/// `attributes` must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_attach_comp_cntr(
    qp: *mut ibv_qp,
    handle: *mut ibv_comp_cntr,
    attributes: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    code(|| {
        let queue_pair = queue_pair_of(qp)?;
        if !queue_pair.device().settings.counters {
            return Err(UNSUPPORTED);
        }
        let counter = counter_of(handle)?;
        // SAFETY: both handles are entered, so the objects exist; these members don't change while they do.
        let contexts = unsafe { ((*qp).context, (*handle).context) };
        // SAFETY: `attributes` is not null, so valid for reading, as required above.
        let &ibv_qp_attach_comp_cntr_attr { comp_mask, op_mask } =
            unsafe { &*not_null(attributes)? };
        if contexts.0 != contexts.1 || comp_mask != 0 || op_mask == 0 {
            return Err(INVALID);
        }
        queue_pair.attach(&counter, op_mask)
    })
}

/// Defines functions that write a value of a counter.
macro_rules! change {
    ($($page:literal $name:ident: $value:ident, $change:expr;)*) => {
        $(
            #[doc = $page]
            #[unsafe(no_mangle)]
            extern "C" fn $name(handle: *mut ibv_comp_cntr, number: u64) -> c_int {
                code(|| {
                    let change: fn(&Value, u64) -> Outcome<()> = $change;
                    change(&counter_of(handle)?.$value, number)
                })
            }
        )*
    };
}

fn add(value: &Value, number: u64) -> Outcome<()> {
    value.add(number);
    Ok(())
}

change! {
    "See `ibv_set_comp_cntr(3)`; fails with `EINVAL` beyond the largest value." ibv_set_comp_cntr: completed, Value::set;
    "See `ibv_set_err_comp_cntr(3)`; fails with `EINVAL` beyond the largest value." ibv_set_err_comp_cntr: failed, Value::set;
    "See `ibv_inc_comp_cntr(3)`." ibv_inc_comp_cntr: completed, add;
    "See `ibv_inc_err_comp_cntr(3)`." ibv_inc_err_comp_cntr: failed, add;
}

/// Defines functions that read a value of a counter.
macro_rules! read_value {
    ($($page:literal $name:ident: $value:ident;)*) => {
        $(
            #[doc = $page]
            ///
            /// # Safety
            /// `into` must be null or valid.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(handle: *mut ibv_comp_cntr, into: *mut u64) -> c_int {
                code(|| {
                    let number = counter_of(handle)?.$value.read()?;
                    // SAFETY: `into` is not null, so valid for writing, as required above.
                    unsafe { not_null(into)?.write(number) };
                    Ok(())
                })
            }
        )*
    };
}

read_value! {
    "See `ibv_read_comp_cntr(3)`." ibv_read_comp_cntr: completed;
    "See `ibv_read_err_comp_cntr(3)`." ibv_read_err_comp_cntr: failed;
}
