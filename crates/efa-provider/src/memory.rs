//! Memory of the program, as operations use it. Here is the one promise that the compiler can't check.
//!
//! Memory that a program gives to an operation is mapped, and given up to the operation until its completion: nobody
//! writes what is sent, and nobody reads or writes what is received into. libfabric asks that of its programs
//! (fi_msg(3)), and this library relies on it.
//!
//! Buffers, addresses, entries of queues and values of options may lie at any address. Structures of libfabric that
//! describe an operation (`fi_msg`, `iovec`, `fi_ioc`, `fi_rma_iov`, …) and attributes are aligned, as a C compiler
//! aligns them.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;

use efa::{Buffer, LentBytes, LentBytesMut, ReceiveBuffer, RegionSlice};

use crate::abi::{FI_EDOMAIN, FI_EMSGSIZE};
use crate::boundary::{Errno, INVALID, Outcome};
use crate::c::domain::Domain;
use crate::c::mr::Region;
use crate::object::{Object, Use};

/// The address of memory, which may be null if it is empty.
#[inline(always)]
fn base(at: *const c_void, length: usize) -> Outcome<NonNull<u8>> {
    match NonNull::new(at.cast_mut().cast()) {
        Some(base) if length <= isize::MAX as usize => Ok(base),
        Some(_) => Err(Errno(FI_EMSGSIZE)),
        None if length == 0 => Ok(NonNull::dangling()),
        None => Err(INVALID),
    }
}

/// What is sent from.
///
/// # Safety
/// The program gave up `length` bytes at `at` as said above.
#[inline(always)]
pub(crate) unsafe fn sent(
    domain: &Use<Domain>,
    at: *const c_void,
    length: usize,
    desc: *mut c_void,
) -> Outcome<Buffer> {
    let base = base(at, length)?;
    // SAFETY: the caller's promise.
    unsafe {
        if !desc.is_null()
            && let Some(part) = part(domain, at, length, desc, |_| true)?
        {
            return Ok(part.into());
        }
        Ok(LentBytes::new(base, length).into())
    }
}

/// What is received into.
///
/// # Safety
/// As for [`sent`].
#[inline(always)]
pub(crate) unsafe fn received(
    domain: &Use<Domain>,
    at: *mut c_void,
    length: usize,
    desc: *mut c_void,
) -> Outcome<ReceiveBuffer> {
    let base = base(at, length)?;
    // SAFETY: the caller's promise.
    unsafe {
        if !desc.is_null()
            && let Some(part) = part(domain, at, length, desc, |region| region.is_written)?
        {
            return Ok(part.into());
        }
        Ok(LentBytesMut::new(base, length).into())
    }
}

/// Memory up to this length is used without its descriptor: its bytes are copied anyhow.
const LONGEST_COPIED: usize = 64 << 10;

/// The part of a registered region that a descriptor names. `None` if the bytes are copied anyhow, the device registers
/// memory for an operation at next to no cost, or the region isn't usable for the operation.
///
/// Where it isn't used nothing is read of the descriptor: before release 1.22 providers ignored it, and programs left it
/// undefined.
///
/// # Errors
/// The descriptor is used, and of no open region, of a region without these bytes, or of another domain.
///
/// # Safety
/// Where it is used, `desc` is a descriptor of libfabric's, of an open region if it is one of this provider.
#[cold]
unsafe fn part(
    domain: &Use<Domain>,
    at: *const c_void,
    length: usize,
    desc: *mut c_void,
    is_usable: fn(&Region) -> bool,
) -> Outcome<Option<RegionSlice>> {
    if length <= LONGEST_COPIED || !domain.registers_at_cost() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let region = unsafe { Object::<Region>::argument(desc.cast()) }?;
    if !region.domain.is(domain.object()) {
        return Err(Errno(FI_EDOMAIN));
    }
    let part = region.part(at, length).ok_or(INVALID)?;
    Ok(is_usable(region).then_some(part))
}

/// What is sent from in several pieces, at most `most`.
///
/// # Safety
/// As for [`sent`], for each piece, and `count` pieces are at `iov`.
pub(crate) unsafe fn sent_pieces(
    domain: &Use<Domain>,
    most: usize,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
) -> Outcome<Buffer> {
    // SAFETY: the caller's promise.
    unsafe {
        match pieces(iov, count, most)? {
            [] => Ok(Buffer::default()),
            [one] => sent(domain, one.iov_base, one.iov_len, descriptor(desc, 0)),
            many => {
                let many = many.iter().zip(0..).map(|(piece, index)| {
                    sent(domain, piece.iov_base, piece.iov_len, descriptor(desc, index))
                });
                Buffer::pieces(many.collect::<Outcome<Vec<_>>>()?).map_err(|_| INVALID)
            }
        }
    }
}

/// What is received into in several pieces, at most `most`.
///
/// # Safety
/// As for [`sent_pieces`].
pub(crate) unsafe fn received_pieces(
    domain: &Use<Domain>,
    most: usize,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
) -> Outcome<ReceiveBuffer> {
    // SAFETY: the caller's promise.
    unsafe {
        match pieces(iov, count, most)? {
            [] => received(domain, std::ptr::null_mut(), 0, std::ptr::null_mut()),
            [one] => received(domain, one.iov_base, one.iov_len, descriptor(desc, 0)),
            many => {
                let many = many.iter().zip(0..).map(|(piece, index)| {
                    received(domain, piece.iov_base, piece.iov_len, descriptor(desc, index))
                });
                ReceiveBuffer::pieces(many.collect::<Outcome<Vec<_>>>()?).map_err(|_| INVALID)
            }
        }
    }
}

/// The bytes of a message that is copied at once.
///
/// # Safety
/// `length` bytes at `at` are readable, and nobody writes them during the call.
#[inline(always)]
pub(crate) unsafe fn copied<'a>(at: *const c_void, length: usize) -> Outcome<&'a [u8]> {
    let base = base(at, length)?;
    // SAFETY: the caller's promise; for no bytes the address is aligned and not null.
    Ok(unsafe { std::slice::from_raw_parts(base.as_ptr(), length) })
}

/// Writes a text where there is room for it, cut off at the end of that, and returns where it is.
///
/// # Safety
/// `room` bytes can be written to `to`, unless that is null.
pub(crate) unsafe fn put_text(text: &'static CStr, to: *mut c_char, room: usize) -> *const c_char {
    if to.is_null() || room == 0 {
        return text.as_ptr();
    }
    let bytes = text.to_bytes();
    let count = bytes.len().min(room - 1);
    // SAFETY: the caller's promise; `count` is less than `room`.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), count);
        to.add(count).write(0);
    }
    to
}

/// The descriptor of a piece, null without descriptors.
///
/// # Safety
/// `descs` is null or has more than `index` descriptors.
unsafe fn descriptor(descs: *mut *mut c_void, index: usize) -> *mut c_void {
    match descs.is_null() {
        true => std::ptr::null_mut(),
        // SAFETY: the caller's promise.
        false => unsafe { descs.add(index).read_unaligned() },
    }
}

/// The pieces of an operation, at most `most`.
///
/// # Safety
/// `count` pieces are at `iov`, and don't change during the call.
unsafe fn pieces<'a>(
    iov: *const libc::iovec,
    count: usize,
    most: usize,
) -> Outcome<&'a [libc::iovec]> {
    match count {
        0 => Ok(&[]),
        _ if iov.is_null() || count > most => Err(INVALID),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(iov, count) }),
    }
}

/// Most pieces of one message (`iov_limit`) that a program may ask for.
pub(crate) const MOST_PIECES: usize = 28;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_refused_unless_nothing_is_there() {
        let null = std::ptr::null_mut();
        assert!(base(null, 0).is_ok());
        assert_eq!(base(null, 1), Err(INVALID));
        assert_eq!(base(null, usize::MAX), Err(INVALID));
        let one = [0_u8];
        assert_eq!(base(one.as_ptr().cast(), usize::MAX), Err(Errno(FI_EMSGSIZE)));
        // SAFETY: nothing is read from null.
        unsafe {
            assert_eq!(pieces(std::ptr::null(), 1, 4).err(), Some(INVALID));
            assert_eq!(copied(null, 3), Err(INVALID));
        }
    }

    #[test]
    fn text_is_cut_to_the_room() {
        let mut room = [7; 10];
        // SAFETY: there is room for 9 bytes, and for none.
        let (cut, none) = unsafe {
            let at = room.as_mut_ptr().cast::<c_char>();
            let text = c"the device reports";
            (put_text(text, at, 9) == at, put_text(text, at, 0) == at)
        };
        assert_eq!((cut, none), (true, false));
        assert_eq!(&room, b"the devi\0\x07");
    }

    #[test]
    fn more_pieces_than_the_limit_are_refused_before_they_are_read() {
        let one = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: the count is refused before the pieces are read.
        unsafe {
            assert_eq!(pieces(&one, 5, 4).err(), Some(INVALID));
            assert_eq!(pieces(&one, usize::MAX, MOST_PIECES).err(), Some(INVALID));
        }
    }
}
