//! Memory regions (`fi_mr`).
//!
//! A region is a [`ForeignMemory`] of the program's memory. Peers name it by its virtual address and the device's key,
//! or by offsets and the program's key if the domain is scalable. Closing it ends every access of peers, also
//! those that are under way. Operations of this process go on, also those that were given its descriptor.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use efa::{Access, ForeignMemory, LocalAccess, MemoryRegion};

use crate::abi::*;
use crate::bits;
use crate::boundary::{Errno, INVALID, Outcome, status};
use crate::c::domain::Domain;
use crate::errors;
use crate::object::{Class, Object, Pool, Use};
use crate::threads;

/// A memory region.
pub(crate) struct Region {
    region: MemoryRegion,
    base: NonNull<u8>,
    /// Whether operations of this process may write to it.
    pub(crate) is_written: bool,
    pub(crate) domain: Use<Domain>,
}

// SAFETY: the address is compared, and nothing is read or written by it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

static FID: fi_ops =
    fi_ops { close: Some(close), control: Some(control), ..fi_ops::failing::<FI_ENOSYS>() };

pub(crate) static TABLE: fi_ops_mr = fi_ops_mr {
    size: size_of::<fi_ops_mr>(),
    reg: Some(reg),
    regv: Some(regv),
    regattr: Some(regattr),
};

// SAFETY: `fid_mr` begins with a `fid`.
unsafe impl Class for Region {
    type C = fid_mr;

    const NUMBER: usize = FI_CLASS_MR;

    const OPS: &'static fi_ops = &FID;

    fn open(fid: fid) -> fid_mr {
        fid_mr { fid, mem_desc: std::ptr::null_mut(), key: FI_KEY_NOTAVAIL }
    }

    fn closed(fid: fid) -> fid_mr {
        fid_mr { fid, mem_desc: std::ptr::null_mut(), key: FI_KEY_NOTAVAIL }
    }

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<Region> = Pool::new();
        &POOL
    }
}

/// The memory that a program registers, and how.
struct RegistrationRequest {
    base: *mut c_void,
    length: usize,
    access: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
}

/// The most bytes of a region.
const LONGEST: usize = isize::MAX as usize;

impl Region {
    fn new(domain: &Object<Domain>, request: &RegistrationRequest) -> Outcome<Self> {
        let (mut remote, local) = accesses(request.access)?;
        let local = granted(remote, local);
        // So that the receiver's interface can read a long message where it lies. From registered memory that it can't
        // read, the message goes in packets.
        remote.remote_read |=
            domain.registers_at_cost() && !domain.is_scalable() && request.access & FI_SEND != 0;
        if request.offset != 0 || request.length > LONGEST {
            return Err(INVALID);
        }
        let base = match NonNull::new(request.base.cast::<u8>()) {
            Some(base) => base,
            None if request.length == 0 => NonNull::dangling(),
            None => return Err(INVALID),
        };
        // SAFETY: the program registers memory in one piece, of at most `LONGEST` bytes, that is mapped until it closes the
        // region, and `close` ends all accesses before it returns. Accesses of the program and of peers may race; the
        // bytes are copied by atomics and by the kernel.
        let memory = unsafe { ForeignMemory::new(base, request.length, ()) };
        // This may take as long as there is much memory, and a thread that closes another object doesn't wait for it. So all
        // that is used here must be counted: the domain is, and counts its fabric.
        let domain = Use::new(domain);
        let region = threads::asleep(|| match domain.is_scalable() {
            true => domain
                .domain
                .register_foreign_keyed(&memory, request.key, remote, local)
                .map_err(|error| errors::of_key(&error)),
            false => domain
                .domain
                .register_foreign(&memory, remote, local)
                .map_err(|error| errors::of_device(&error)),
        })?;
        let is_written = local.contains(LocalAccess::RECV);
        Ok(Self { region, base, is_written, domain })
    }

    /// The part of the region that these bytes are, as a buffer of an operation; `None` if not all of them are in it.
    pub(crate) fn part(&self, at: *const c_void, length: usize) -> Option<efa::RegionSlice> {
        let offset = at.addr().checked_sub(self.base.addr().get())?;
        self.region.slice(offset..offset.checked_add(length)?).ok()
    }
}

/// What peers and what operations of this process may do.
fn accesses(access: u64) -> Outcome<(Access, LocalAccess)> {
    const LOCAL: [(u64, LocalAccess); 4] = [
        (FI_SEND, LocalAccess::SEND),
        (FI_RECV, LocalAccess::RECV),
        (FI_READ, LocalAccess::READ),
        (FI_WRITE, LocalAccess::WRITE),
    ];
    const REMOTE: u64 = FI_REMOTE_READ | FI_REMOTE_WRITE;
    let local = bits::translate(access & !REMOTE, &LOCAL).ok_or(INVALID)?;
    let remote = Access {
        remote_read: access & FI_REMOTE_READ != 0,
        remote_write: access & FI_REMOTE_WRITE != 0,
    };
    Ok((remote, local))
}

/// What operations of this process may do. Local memory needs no registration, so programs register what peers
/// access, and give operations of any kind its descriptor: reading is granted, and writing if the memory is to be
/// written at all.
fn granted(remote: Access, local: LocalAccess) -> LocalAccess {
    let written = LocalAccess::RECV | LocalAccess::READ;
    let read = local | LocalAccess::SEND | LocalAccess::WRITE;
    if remote.remote_write || local.intersects(written) { read | written } else { read }
}

/// Registers, and gives the program the object.
///
/// # Safety
/// The table that was called is that of a domain, and `mr` is null or a place for the object.
unsafe fn register(
    domain: *mut fid,
    request: &RegistrationRequest,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let domain = Object::<Domain>::of(domain.cast());
        let to = mr.as_mut().ok_or(INVALID)?;
        if flags != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        let region = Region::new(domain, request)?;
        let key = region.region.key();
        let object = Object::create(region, request.context).as_ref().address();
        (*object).mem_desc = object.cast();
        (*object).key = key;
        *to = object;
    }
    Ok(())
}

/// `fi_mr_reg`.
unsafe extern "C" fn reg(
    fid: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let (base, key) = (buf.cast_mut(), requested_key);
    let request = RegistrationRequest { base, length: len, access, offset, key, context };
    // SAFETY: the table is that of a domain.
    status(|| unsafe { register(fid, &request, flags, mr) })
}

/// `fi_mr_regv`.
unsafe extern "C" fn regv(
    fid: *mut fid,
    iov: *const libc::iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the table is that of a domain; the program passes `count` pieces.
    status(|| unsafe {
        let piece = only(iov, count)?;
        let (base, length) = (piece.iov_base, piece.iov_len);
        let request =
            RegistrationRequest { base, length, access, offset, key: requested_key, context };
        register(fid, &request, flags, mr)
    })
}

/// The first release whose `fi_mr_attr` says which kind of memory is registered (`iface`).
const HMEM: u32 = FI_VERSION(1, 9);

/// `fi_mr_regattr`.
unsafe extern "C" fn regattr(
    fid: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    // SAFETY: the table is that of a domain; the program passes attributes as its version knows them.
    status(|| unsafe {
        if attr.is_null() {
            return Err(INVALID);
        }
        let domain = Object::<Domain>::of(fid.cast());
        // `fi_mr_attr` of older programs ends before `iface`.
        if domain.api_version >= HMEM && (*attr).iface != FI_HMEM_SYSTEM {
            return Err(Errno(FI_ENOSYS));
        }
        let piece = only((*attr).mr_iov, (*attr).iov_count)?;
        let request = RegistrationRequest {
            base: piece.iov_base,
            length: piece.iov_len,
            access: (*attr).access,
            offset: (*attr).offset,
            key: (*attr).requested_key,
            context: (*attr).context,
        };
        register(fid, &request, flags, mr)
    })
}

/// The piece of a registration, of which there is one (`mr_iov_limit`).
///
/// # Safety
/// `count` pieces are at `iov`.
unsafe fn only(iov: *const libc::iovec, count: usize) -> Outcome<libc::iovec> {
    // SAFETY: the caller's promise.
    let first = unsafe { iov.as_ref() };
    first.filter(|_| count == 1).copied().ok_or(INVALID)
}

/// Bytes of a key in the raw form, by which programs exchange keys of any provider. It is the key itself.
const RAW_KEY: usize = size_of::<u64>();

/// `fi_mr_raw_attr`.
unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: the table is that of a region; `FI_GET_RAW_MR` has this argument.
    status(|| unsafe {
        if command != FI_GET_RAW_MR {
            return Err(Errno(FI_ENOSYS));
        }
        let attr = arg.cast::<fi_mr_raw_attr>().as_ref().ok_or(INVALID)?;
        let (base, size) = (attr.base_addr, attr.key_size.as_mut().ok_or(INVALID)?);
        let room = std::mem::replace(size, RAW_KEY);
        if attr.flags != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        if room < RAW_KEY {
            return Err(Errno(FI_ETOOSMALL));
        }
        if base.is_null() || attr.raw_key.is_null() {
            return Err(INVALID);
        }
        let region = Object::<Region>::of(fid.cast());
        base.write_unaligned(region.region.remote_address());
        attr.raw_key.cast::<u64>().write_unaligned(region.region.key());
        Ok(())
    })
}

/// `fi_mr_map_raw`, and `fi_mr_unmap_key`, which has nothing to release.
///
/// # Safety
/// `arg` is null or as the command has it.
pub(crate) unsafe fn map_raw(command: c_int, arg: *mut c_void) -> Outcome<()> {
    if command == FI_UNMAP_KEY {
        return Ok(());
    }
    if command != FI_MAP_RAW_MR {
        return Err(Errno(FI_ENOSYS));
    }
    // SAFETY: the caller's promise.
    unsafe {
        let map = arg.cast::<fi_mr_map_raw>().as_ref().ok_or(INVALID)?;
        if map.flags != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        if map.raw_key.is_null() || map.key.is_null() || map.key_size != RAW_KEY {
            return Err(INVALID);
        }
        map.key.write_unaligned(map.raw_key.cast::<u64>().read_unaligned());
    }
    Ok(())
}

/// `fi_close` of a region: when it returns, no peer accesses the memory any more.
unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    status(|| {
        // SAFETY: the table is that of a region.
        let region = unsafe { Object::<Region>::of(fid.cast()) };
        {
            // As in `Region::new`: the region is counted, and counts its domain.
            let used = Use::new(region);
            if !threads::asleep(|| used.region.is_empty() || used.region.revoke()) {
                return Err(Errno(FI_EBUSY));
            }
        }
        // SAFETY: as above; the value isn't used afterwards.
        unsafe { region.close() }.map(drop)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_that_isnt_known_is_refused() {
        let (remote, local) = accesses(FI_SEND | FI_READ | FI_REMOTE_WRITE).unwrap();
        assert_eq!(remote, Access { remote_read: false, remote_write: true });
        assert_eq!(local, LocalAccess::SEND | LocalAccess::READ);
        assert_eq!(accesses(FI_SEND | FI_TAGGED), Err(INVALID));
    }

    #[test]
    fn region_for_peers_alone_may_be_used_by_operations_and_is_written_only_if_peers_may() {
        let granted = |access| accesses(access).map(|(remote, local)| granted(remote, local));
        let read = LocalAccess::SEND | LocalAccess::WRITE;
        assert_eq!(granted(FI_REMOTE_READ), Ok(read));
        assert_eq!(granted(FI_SEND), Ok(read));
        let all = read | LocalAccess::RECV | LocalAccess::READ;
        assert_eq!(granted(FI_REMOTE_WRITE), Ok(all));
        assert_eq!(granted(FI_READ), Ok(all));
    }
}
