//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;

use efa_device::{Access, Region as _};
use efa_sim::SoftRegion;
use efa_sim::region::RawMemory;
use efa_soft_names::counters::Word;

use super::domain::domain_of;
use super::{not_null, write_sized};
use crate::abi::*;
use crate::boundary::{BUSY, Errno, INVALID, Outcome, UNSUPPORTED, code, pointer};
use crate::domain::DomainRef;
use crate::limits::Share;
use crate::memory::{MappedFile, check_accessible};
use crate::message::reported;
use crate::process::{HandleType, process};

/// The page in which memory, or a part of a file, and the addresses that name it must have the same offset.
const PAGE: u64 = 4096;
/// The access flags that the kernel knows.
const KNOWN_ACCESS: c_uint = 0x3ff | IBV_ACCESS_OPTIONAL;

/// The object that an `ibv_mr` is a member of.
#[repr(C)]
struct RegionObject {
    /// First, so that the handle is a pointer to the object.
    ibv: ibv_mr,
    /// The members that follow `ibv` in rdma-core's `verbs_mr`, which code built on its internal headers reads: the
    /// type, 0 for memory of the program and 3 for a file, and the access flags.
    _kind_and_access: [c_uint; 2],
    region: SoftRegion,
    /// What is mapped for it.
    _file: Option<MappedFile>,
    domain: DomainRef,
    /// Of the registered memory of the process.
    _share: Share,
}

/// Where the bytes of a region are.
#[derive(Clone, Copy)]
enum Bytes {
    /// At an address of the program.
    At(*mut c_void),
    /// In a file, from an offset on.
    In { file: c_int, offset: u64 },
}

impl Bytes {
    /// Address of the first byte, which requests name unless the program says otherwise; the `addr` of the region.
    fn start(self) -> *mut c_void {
        match self {
            Self::At(address) => address,
            Self::In { offset, .. } => std::ptr::without_provenance_mut(offset as usize),
        }
    }

    /// The first byte, and what keeps it mapped.
    fn locate(self, length: usize, writes: bool) -> Outcome<(*mut c_void, Option<MappedFile>)> {
        let Self::In { file, offset } = self else { return Ok((self.start(), None)) };
        let mapped = MappedFile::of_descriptor(file, offset, length, writes)?;
        Ok((mapped.base(), Some(mapped)))
    }

    /// The type of the region in `verbs_mr`.
    fn kind(self) -> c_uint {
        match self {
            Self::At(_) => 0,
            Self::In { .. } => 3,
        }
    }
}

/// Registers `length` bytes, which peers and work requests name by addresses from `start` on.
fn register(
    pd: *mut ibv_pd,
    bytes: Bytes,
    length: usize,
    start: u64,
    access: c_uint,
) -> *mut ibv_mr {
    pointer(|| {
        let (domain, context) = domain_of(pd)?;
        let device = domain.device();
        let flags = access;
        let has = |flag| flags & flag != 0;
        let (local_write, remote_write) =
            (has(IBV_ACCESS_LOCAL_WRITE), has(IBV_ACCESS_REMOTE_WRITE));
        // The kernel looks at these before the driver does at what it offers.
        let has_offset_of_page = bytes.start().addr() as u64 % PAGE == start % PAGE;
        let writes_only_remotely = (remote_write || has(IBV_ACCESS_REMOTE_ATOMIC)) && !local_write;
        if !has_offset_of_page || writes_only_remotely || has(!KNOWN_ACCESS) {
            return Err(INVALID);
        }
        let mut offered = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_OPTIONAL;
        if device.rdma().read {
            offered |= IBV_ACCESS_REMOTE_READ;
        }
        if device.rdma().write {
            offered |= IBV_ACCESS_REMOTE_WRITE;
        }
        if access & !offered != 0 {
            return Err(UNSUPPORTED);
        }
        let (address, file) = bytes.locate(length, local_write)?;
        let base = NonNull::new(address.cast::<u8>()).ok_or(INVALID)?;
        // Work requests name the memory by its address from now on.
        let end = (base.as_ptr().expose_provenance() as u64).checked_add(length as u64);
        if length == 0 || end.and(start.checked_add(length as u64)).is_none() {
            return Err(INVALID);
        }
        check_accessible(base, length, local_write)?;
        let access = Access { remote_read: has(IBV_ACCESS_REMOTE_READ), remote_write };
        let share = device.quotas.registered.take(length as u64).map_err(reported)?;
        let raw = RawMemory { base, length, address: start, local_write, access };
        // SAFETY: `ibv_reg_mr(3)` asks the program to keep the memory mapped, and the file as long as it is, and to
        // leave it to the device as far as `access` says, until it deregisters the region; `ibv_dereg_mr` revokes it
        // before it unmaps what was mapped here.
        let region = unsafe { device.link.keys().register_raw(raw) }.map_err(Errno::from);
        let region = device.statistics.created(region, Word::RegionErrors)?;
        let key = region.remote_key();
        let addr = bytes.start();
        let ibv = ibv_mr { context, pd, addr, length, handle: key, lkey: key, rkey: key };
        let kind_and_access = [bytes.kind(), flags];
        let object = Box::new(RegionObject {
            ibv,
            _kind_and_access: kind_and_access,
            region,
            _file: file,
            domain,
            _share: share,
        });
        let mr = Box::into_raw(object).cast();
        process().add_handle(mr, HandleType::Region, context);
        Ok(mr)
    })
}

/// See `ibv_reg_dmabuf_mr(3)`: memory of a file that can be mapped, such as one of `memfd_create(2)`. The device maps it.
#[unsafe(no_mangle)]
extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    start: u64,
    file: c_int,
    access: c_int,
) -> *mut ibv_mr {
    register(pd, Bytes::In { file, offset }, length, start, access.cast_unsigned())
}

/// See `ibv_reg_mr(3)`.
#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    register(pd, Bytes::At(address), length, address as u64, access.cast_unsigned())
}

/// See `ibv_reg_mr_iova(3)`.
#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    start: u64,
    access: c_int,
) -> *mut ibv_mr {
    register(pd, Bytes::At(address), length, start, access.cast_unsigned())
}

/// As [`ibv_reg_mr_iova`], with unsigned access flags.
#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    start: u64,
    access: c_uint,
) -> *mut ibv_mr {
    register(pd, Bytes::At(address), length, start, access)
}

/// See `efadv_query_mr(3)`. The memory is reached without an interconnect, so none of the numbers is valid.
///
/// # Safety
/// `into` must be null or writable for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_query_mr(
    mr: *mut ibv_mr,
    into: *mut efadv_mr_attr,
    length: u32,
) -> c_int {
    code(|| {
        process().check_handle(mr, HandleType::Region)?;
        let into = not_null(into)?;
        let length = length as usize;
        if length < size_of::<efadv_mr_attr>() {
            return Err(INVALID);
        }
        // SAFETY: `into` is not null, so writable for `length` bytes, as required above.
        unsafe { write_sized(into, &efadv_mr_attr::default(), length) };
        Ok(())
    })
}

/// See `ibv_dereg_mr(3)`.
#[unsafe(no_mangle)]
extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    code(|| deregister(mr))
}

/// As [`ibv_dereg_mr`]. If a thread may still copy to or from the memory and doesn't go on, that fails with `EBUSY`, and
/// can be tried again.
pub(super) fn deregister(mr: *mut ibv_mr) -> Outcome<()> {
    process().remove_handle(mr, HandleType::Region)?;
    // SAFETY: the object comes from the box in `register`. Its handle was removed just now, which
    // succeeds once, so it is freed once and not found any more.
    let object = unsafe { Box::from_raw(mr.cast::<RegionObject>()) };
    let context = object.ibv.context;
    object.domain.device().statistics.commanded();
    // A step that copies to or from the region has found it before.
    let ended = object.region.revoke().then_some(()).ok_or(BUSY);
    let ended = ended.and_then(|()| process().progress.wait_for_steps());
    if ended.is_err() {
        // Its address is the handle.
        let mr = Box::into_raw(object).cast::<ibv_mr>();
        process().add_handle(mr, HandleType::Region, context);
    }
    ended
}
