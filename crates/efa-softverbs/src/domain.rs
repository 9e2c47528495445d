//! Protection domains, address handles and memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use efa_device::{Access, AddressHandle, Gid, Region as _};
use efa_sim::SoftRegion;
use efa_sim::region::RawMemory;

use crate::abi::*;
use crate::boundary::{BUSY, Errno, INVALID, Outcome, UNSUPPORTED, code, pointer};
use crate::context::{Context, check_port, fill, not_null};
use crate::device::Device;
use crate::process::{Kind, process};

// ---- protection domains -------------------------------------------------------------------------

/// A protection domain.
#[repr(C)]
pub(crate) struct Domain {
    /// First, so that a pointer to the one is a pointer to the other; likewise below.
    ibv: ibv_pd,
    shared: Arc<DomainShared>,
}

/// What objects of a domain hold of it.
pub(crate) struct DomainShared {
    pub(crate) device: Arc<Device>,
    members: AtomicUsize,
}

/// One object's part in a domain, which can't be freed meanwhile.
pub(crate) struct Membership(Arc<DomainShared>);

impl Membership {
    pub(crate) fn new(domain: *mut ibv_pd) -> Outcome<Self> {
        process().check(domain, Kind::Domain)?;
        // SAFETY: the handle is one of ours and was not freed, unless the program frees it in
        // another thread at this moment, which C forbids.
        let shared = Arc::clone(unsafe { &(*domain.cast::<Domain>()).shared });
        shared.members.fetch_add(1, Ordering::Relaxed);
        Ok(Self(shared))
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.0.device
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.members.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The context that a domain was made from; `domain` must have been checked.
pub(crate) fn context_of(domain: *mut ibv_pd) -> *mut ibv_context {
    // SAFETY: the handle is one of ours, by the caller's check.
    unsafe { (*domain).context }
}

/// See `ibv_alloc_pd(3)`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    pointer(|| {
        let device = Context::device(context)?;
        let shared = Arc::new(DomainShared { device, members: AtomicUsize::new(0) });
        let ibv = ibv_pd { context, handle: 0 };
        let domain = Box::into_raw(Box::new(Domain { ibv, shared })).cast();
        process().enter(domain, Kind::Domain, context);
        Ok(domain)
    })
}

/// See `ibv_dealloc_pd(3)`; fails with `EBUSY` while anything of the domain exists.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int {
    code(|| {
        process().check(domain, Kind::Domain)?;
        let object: *mut Domain = domain.cast();
        // SAFETY: the handle is one of ours.
        if unsafe { &(*object).shared }.members.load(Ordering::Relaxed) > 0 {
            return Err(BUSY);
        }
        process().leave(domain, Kind::Domain)?;
        // SAFETY: it came from a box and nobody else can take it any more.
        drop(unsafe { Box::from_raw(object) });
        Ok(())
    })
}

// ---- address handles ----------------------------------------------------------------------------

/// An address handle.
#[repr(C)]
pub(crate) struct AddressHandleObject {
    ibv: ibv_ah,
    number: AddressHandle,
    domain: Membership,
}

impl AddressHandleObject {
    /// The number of a handle that a work request names.
    ///
    /// # Safety
    /// `handle` must be null or an address handle that was not destroyed: work requests are not
    /// looked up, as with the real library.
    #[inline]
    pub(crate) unsafe fn number(handle: *mut ibv_ah) -> Outcome<AddressHandle> {
        if handle.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { (*handle.cast::<Self>()).number })
    }
}

/// See `ibv_create_ah(3)`. The address must be global.
///
/// # Safety
/// `attributes` must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(
    domain: *mut ibv_pd,
    attributes: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    pointer(|| {
        let membership = Membership::new(domain)?;
        // SAFETY: not null, so valid by the caller's promise.
        let attributes = unsafe { &*not_null(attributes)? };
        if attributes.is_global == 0 {
            return Err(INVALID);
        }
        check_port(attributes.port_num.into())?;
        // SAFETY: a GID is any 16 bytes.
        let gid = unsafe { attributes.grh.dgid.raw };
        let number = membership.device().link.create_address_handle(Gid(gid))?;
        let context = context_of(domain);
        let ibv = ibv_ah { context, pd: domain, handle: number.0.into() };
        let object = AddressHandleObject { ibv, number, domain: membership };
        let handle = Box::into_raw(Box::new(object)).cast();
        process().enter(handle, Kind::AddressHandle, context);
        Ok(handle)
    })
}

/// See `ibv_destroy_ah(3)`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_destroy_ah(handle: *mut ibv_ah) -> c_int {
    code(|| {
        process().leave(handle, Kind::AddressHandle)?;
        // SAFETY: it came from a box and nobody else can take it any more.
        let object = unsafe { Box::from_raw(handle.cast::<AddressHandleObject>()) };
        object.domain.device().link.destroy_address_handle(object.number);
        Ok(())
    })
}

/// See `efadv_query_ah(3)`.
///
/// # Safety
/// `into` must be null or have room for `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_query_ah(
    handle: *mut ibv_ah,
    into: *mut efadv_ah_attr,
    room: u32,
) -> c_int {
    code(|| {
        process().check(handle, Kind::AddressHandle)?;
        // SAFETY: the handle is one of ours.
        let number = unsafe { AddressHandleObject::number(handle)? };
        let attributes = efadv_ah_attr { ahn: number.0, ..efadv_ah_attr::default() };
        let room = room as usize;
        if room < offset_of!(efadv_ah_attr, reserved) {
            return Err(INVALID);
        }
        // SAFETY: not null, so with this much room by the caller's promise.
        unsafe { fill(not_null(into)?, &attributes, room) };
        Ok(())
    })
}

// ---- memory regions -----------------------------------------------------------------------------

/// A memory region.
#[repr(C)]
struct Region {
    ibv: ibv_mr,
    memory: SoftRegion,
    /// Kept while the region exists.
    _domain: Membership,
}

/// Pages that the kernel is asked about at a time.
const PAGES: usize = 4096;

/// Refuses memory that isn't there with `EFAULT`, as the kernel does, which pins it. Later on, whoever
/// copies it would crash.
fn check_mapped(base: NonNull<u8>, length: usize, page: usize) -> Outcome<()> {
    let mut states = [0_u8; PAGES];
    let (start, end) = (base.as_ptr().addr(), base.as_ptr().addr() + length);
    for at in (start - start % page..end).step_by(PAGES * page) {
        let count = (end - at).min(PAGES * page);
        // SAFETY: the kernel checks the range, and writes a byte for each page of it.
        let asked = unsafe { libc::mincore(at as *mut c_void, count, states.as_mut_ptr()) };
        if asked != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM) {
            return Err(Errno(libc::EFAULT));
        }
    }
    Ok(())
}

/// The same for memory that may not be read, or not be written, which the device is to do if it `writes`.
///
/// Only the first and the last page are asked for: that brings them into memory, and a program may
/// register much more than it ever uses.
fn check_allowed(base: NonNull<u8>, length: usize, page: usize, writes: bool) -> Outcome<()> {
    let advice = if writes { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let refuses = |address: usize| {
        let at = (address - address % page) as *mut c_void;
        // SAFETY: this touches the page as a program does, and changes nothing in it.
        let asked = unsafe { libc::madvise(at, page, advice) };
        let number = std::io::Error::last_os_error().raw_os_error();
        asked != 0 && matches!(number, Some(libc::EINVAL | libc::EFAULT))
    };
    let (start, mine) = (base.as_ptr().addr(), 0_u8);
    // A kernel before 5.14 doesn't know the question, and refuses our own stack as well.
    if (refuses(start) || refuses(start + length - 1)) && !refuses((&raw const mine).addr()) {
        return Err(Errno(libc::EFAULT));
    }
    Ok(())
}

fn register(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    start: u64,
    access: c_uint,
) -> *mut ibv_mr {
    pointer(|| {
        let membership = Membership::new(domain)?;
        let device = membership.device();
        let mut possible = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_OPTIONAL;
        if device.rdma().read {
            possible |= IBV_ACCESS_REMOTE_READ;
        }
        if device.rdma().write {
            possible |= IBV_ACCESS_REMOTE_WRITE;
        }
        if access & !possible != 0 {
            return Err(UNSUPPORTED);
        }
        if access & IBV_ACCESS_REMOTE_WRITE != 0 && access & IBV_ACCESS_LOCAL_WRITE == 0 {
            return Err(INVALID);
        }
        let base = NonNull::new(address.cast::<u8>()).ok_or(INVALID)?;
        // What is in C is reached from here on.
        let end = (base.as_ptr().expose_provenance() as u64).checked_add(length as u64);
        if length == 0 || end.and(start.checked_add(length as u64)).is_none() {
            return Err(INVALID);
        }
        let has = |flag| access & flag != 0;
        // SAFETY: a question without preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096).cast_unsigned() as usize;
        check_mapped(base, length, page)?;
        check_allowed(base, length, page, has(IBV_ACCESS_LOCAL_WRITE))?;
        let raw = RawMemory {
            base,
            length,
            address: start,
            local_write: has(IBV_ACCESS_LOCAL_WRITE),
            access: Access {
                remote_read: has(IBV_ACCESS_REMOTE_READ),
                remote_write: has(IBV_ACCESS_REMOTE_WRITE),
            },
        };
        // SAFETY: by the contract of the C function the program leaves this memory to the device,
        // as far as `access` says, until it deregisters it.
        let memory = unsafe { device.link.keys().register_raw(raw)? };
        let key = memory.remote_key();
        let context = context_of(domain);
        let ibv = ibv_mr {
            context,
            pd: domain,
            addr: address,
            length,
            handle: key,
            lkey: key,
            rkey: key,
        };
        let region = Box::into_raw(Box::new(Region { ibv, memory, _domain: membership })).cast();
        process().enter(region, Kind::Region, context);
        Ok(region)
    })
}

/// See `ibv_reg_mr(3)`.
#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    register(domain, address, length, address as u64, access.cast_unsigned())
}

/// See `ibv_reg_mr_iova(3)`.
#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    start: u64,
    access: c_int,
) -> *mut ibv_mr {
    register(domain, address, length, start, access.cast_unsigned())
}

/// The same with unsigned access flags.
#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova2(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    start: u64,
    access: c_uint,
) -> *mut ibv_mr {
    register(domain, address, length, start, access)
}

/// See `ibv_dereg_mr(3)`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_dereg_mr(region: *mut ibv_mr) -> c_int {
    code(|| {
        process().leave(region, Kind::Region)?;
        // SAFETY: it came from a box and nobody else can take it any more.
        let object = unsafe { Box::from_raw(region.cast::<Region>()) };
        object.memory.revoke();
        // Whoever copies into a posted buffer of it has begun before.
        process().progress.wait_for_steps();
        Ok(())
    })
}
