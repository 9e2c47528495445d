//! Protection domains and address handles.

use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::Arc;

use efa_device::{AddressHandle, Gid};
use efa_soft_names::counters::Word;

use super::context::device_of;
use super::{not_null, write_sized};
use crate::abi::*;
use crate::attributes::check_port;
use crate::boundary::{INVALID, Outcome, code, pointer};
use crate::domain::{Domain, DomainRef};
use crate::limits::Share;
use crate::message::reported;
use crate::process::{HandleType, process};

// ---- protection domains -------------------------------------------------------------------------

/// The object that an `ibv_pd` is a member of.
#[repr(C)]
struct DomainObject {
    /// First, so that the handle is a pointer to the object.
    ibv: ibv_pd,
    domain: Arc<Domain>,
    _share: Share,
}

/// A reference to the domain of a handle, and its context; fails with `EINVAL` for any other pointer.
pub(super) fn domain_of(pd: *mut ibv_pd) -> Outcome<(DomainRef, *mut ibv_context)> {
    process().check_handle(pd, HandleType::Domain)?;
    // SAFETY: the handle is entered, so the object exists, and no thread deallocates the domain while
    // this one uses it ("Handles").
    let object = unsafe { &*pd.cast::<DomainObject>() };
    Ok((DomainRef::new(&object.domain), object.ibv.context))
}

/// See `ibv_alloc_pd(3)`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    pointer(|| {
        let device = device_of(context)?;
        device.statistics.commanded();
        let share = device.quotas.domains.take(1).map_err(reported)?;
        let domain = Domain::new(device);
        let ibv = ibv_pd { context, handle: 0 };
        let pd = Box::into_raw(Box::new(DomainObject { ibv, domain, _share: share })).cast();
        process().add_handle(pd, HandleType::Domain, context);
        Ok(pd)
    })
}

/// See `ibv_dealloc_pd(3)`; fails with `EBUSY` while objects of the domain exist.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    code(|| deallocate(pd))
}

/// As [`ibv_dealloc_pd`].
pub(super) fn deallocate(pd: *mut ibv_pd) -> Outcome<()> {
    process().check_handle(pd, HandleType::Domain)?;
    let object: *mut DomainObject = pd.cast();
    // SAFETY: the handle is entered, so the object exists, and no other thread deallocates the
    // domain at the same time ("Handles").
    let domain = unsafe { &(*object).domain };
    domain.check_unused()?;
    process().remove_handle(pd, HandleType::Domain)?;
    domain.device().statistics.commanded();
    // SAFETY: the object comes from the box in `ibv_alloc_pd`. Its handle was removed just now,
    // which succeeds once, so it is freed once and not found any more.
    drop(unsafe { Box::from_raw(object) });
    Ok(())
}

// ---- address handles ----------------------------------------------------------------------------

/// The object that an `ibv_ah` is a member of.
#[repr(C)]
struct AddressHandleObject {
    /// First, so that the handle is a pointer to the object.
    ibv: ibv_ah,
    number: AddressHandle,
    domain: DomainRef,
}

/// The number of an address handle in a work request, which is not looked up.
///
/// # Safety
/// `ah` must be null or an address handle of this library that is not destroyed.
#[inline]
pub(super) unsafe fn address_handle_number(ah: *mut ibv_ah) -> Outcome<AddressHandle> {
    if ah.is_null() {
        return Err(INVALID);
    }
    // SAFETY: `ah` is not null, so it points to an object that exists, as required above.
    Ok(unsafe { (*ah.cast::<AddressHandleObject>()).number })
}

/// See `ibv_create_ah(3)`. The address must be a GID.
///
/// # Safety
/// `attributes` must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attributes: *mut ibv_ah_attr) -> *mut ibv_ah {
    pointer(|| {
        let (domain, context) = domain_of(pd)?;
        // SAFETY: `attributes` is not null, so valid for reading, as required above.
        let attributes = unsafe { &*not_null(attributes)? };
        // The port has one GID.
        if attributes.is_global == 0 || attributes.grh.sgid_index != 0 {
            return Err(INVALID);
        }
        check_port(attributes.port_num.into())?;
        // SAFETY: both members of the union are 16 bytes of any value.
        let gid = Gid(unsafe { attributes.grh.dgid.raw });
        let device = domain.device();
        let number = domain.link().create_address_handle(gid).map_err(reported);
        let number = device.statistics.created(number, Word::AddressHandleErrors)?;
        let ibv = ibv_ah { context, pd, handle: number.0.into() };
        let object = AddressHandleObject { ibv, number, domain };
        let ah = Box::into_raw(Box::new(object)).cast();
        process().add_handle(ah, HandleType::AddressHandle, context);
        Ok(ah)
    })
}

/// See `ibv_destroy_ah(3)`.
#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    code(|| destroy_address_handle(ah))
}

/// As [`ibv_destroy_ah`].
pub(super) fn destroy_address_handle(ah: *mut ibv_ah) -> Outcome<()> {
    process().remove_handle(ah, HandleType::AddressHandle)?;
    // SAFETY: the object comes from the box in `ibv_create_ah`. Its handle was removed just now,
    // which succeeds once, so it is freed once and not found any more.
    let object = unsafe { Box::from_raw(ah.cast::<AddressHandleObject>()) };
    object.domain.link().destroy_address_handle(object.number);
    object.domain.device().statistics.commanded();
    Ok(())
}

/// See `efadv_query_ah(3)`.
///
/// # Safety
/// `into` must be null or writable for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_query_ah(
    ah: *mut ibv_ah,
    into: *mut efadv_ah_attr,
    length: u32,
) -> c_int {
    code(|| {
        process().check_handle(ah, HandleType::AddressHandle)?;
        // SAFETY: the handle is entered, so the object exists, and no thread destroys it while this one
        // uses it ("Handles").
        let number = unsafe { address_handle_number(ah)? };
        let attributes = efadv_ah_attr { ahn: number.0, ..efadv_ah_attr::default() };
        let length = length as usize;
        if length < offset_of!(efadv_ah_attr, reserved) {
            return Err(INVALID);
        }
        // SAFETY: `into` is not null, so writable for `length` bytes, as required above.
        unsafe { write_sized(not_null(into)?, &attributes, length) };
        Ok(())
    })
}
