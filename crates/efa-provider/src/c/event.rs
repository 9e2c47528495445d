//! Events as a program reads them.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use efa::ConnectionRequest;

use crate::abi::*;
use crate::boundary::{Errno, Outcome};
use crate::c::cm;
use crate::libfabric::{self, OwnedInfo};
use crate::socket;

/// The address of an object of libfabric, or a pointer of the program that is only handed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pointer(usize);

impl Pointer {
    pub(crate) const NULL: Self = Self(0);

    pub(crate) fn of<T>(at: *mut T) -> Self {
        Self(at.expose_provenance())
    }

    pub(crate) fn get<T>(self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

/// An object that events are of.
pub(crate) struct EventSource {
    pub(crate) fid: Pointer,
    /// `fid.context`.
    pub(crate) context: Pointer,
    /// The entry of a passive endpoint, of which each request gets a copy.
    pub(crate) info: Option<Arc<OwnedInfo<'static>>>,
    /// Whether it is connected, as far as events said so.
    pub(crate) is_connected: bool,
}

/// An event that a program can read.
pub(crate) struct Event {
    /// The object; [`Pointer::NULL`] if the program wrote the event.
    pub(crate) of: Pointer,
    pub(crate) kind: EventKind,
}

/// What happened.
pub(crate) enum EventKind {
    /// The program wrote it, with this number.
    Written(u32, Vec<u8>),
    /// `FI_CONNREQ`
    Requested(UnreadRequest, Vec<u8>),
    /// `FI_CONNECTED` or `FI_SHUTDOWN`, with the peer's data.
    Changed(u32, Vec<u8>),
    /// `FI_AV_COMPLETE`, with how many addresses were inserted.
    Inserted { context: Pointer, count: u64 },
    /// Something failed, for `fi_eq_readerr`.
    Failed(Failed),
}

/// What `fi_eq_err_entry` says.
pub(crate) struct Failed {
    pub(crate) context: Pointer,
    pub(crate) data: u64,
    pub(crate) errno: c_int,
    pub(crate) err_data: Vec<u8>,
}

impl Event {
    /// Writes the event where there is room for it, and returns its number and length. Data of a peer that doesn't
    /// fit is cut off.
    ///
    /// # Errors
    /// `FI_ETOOSMALL` if the rest doesn't fit; `FI_EAVAIL` if something failed.
    ///
    /// # Safety
    /// `room` bytes can be written to `to`.
    pub(crate) unsafe fn write(&self, to: *mut c_void, room: usize) -> Outcome<(u32, usize)> {
        let fid = self.of.get();
        // SAFETY: the caller's promise.
        unsafe {
            match &self.kind {
                EventKind::Written(_, bytes) if bytes.len() > room => Err(Errno(FI_ETOOSMALL)),
                EventKind::Written(number, bytes) => Ok((*number, put((), bytes, to, room)?)),
                EventKind::Requested(request, data) => {
                    let entry = fi_eq_cm_entry { fid, info: request.info(), data: [] };
                    Ok((FI_CONNREQ, put(entry, data, to, room)?))
                }
                EventKind::Changed(number, data) => {
                    let entry = fi_eq_cm_entry { fid, info: std::ptr::null_mut(), data: [] };
                    Ok((*number, put(entry, data, to, room)?))
                }
                EventKind::Inserted { context, count } => {
                    let entry = fi_eq_entry { fid, context: context.get(), data: *count };
                    Ok((FI_AV_COMPLETE, put(entry, &[], to, room)?))
                }
                EventKind::Failed(_) => Err(Errno(FI_EAVAIL)),
            }
        }
    }

    /// The program has the event now, with all that belongs to it.
    pub(crate) fn delivered(self) {
        if let EventKind::Requested(request, _) = self.kind {
            request.give_away();
        }
    }
}

/// Writes an entry, and as many bytes after it as there is room for; returns the length of all.
///
/// # Errors
/// `FI_ETOOSMALL` if the entry doesn't fit.
///
/// # Safety
/// `room` bytes can be written to `to`.
unsafe fn put<T>(entry: T, bytes: &[u8], to: *mut c_void, room: usize) -> Outcome<usize> {
    let left = room.checked_sub(size_of::<T>()).ok_or(Errno(FI_ETOOSMALL))?;
    let count = bytes.len().min(left);
    // SAFETY: the caller's promise; both fit.
    unsafe {
        to.cast::<T>().write_unaligned(entry);
        to.cast::<T>().add(1).cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), count);
    }
    Ok(size_of::<T>() + count)
}

/// A request that the program doesn't have yet. If it is dropped, the caller is rejected.
pub(crate) struct UnreadRequest(Option<OwnedInfo<'static>>);

impl UnreadRequest {
    /// With a copy of the listener's entry, whose `handle` stands for the request.
    pub(crate) fn new(request: ConnectionRequest, listener: &OwnedInfo<'static>) -> Option<Self> {
        let (source, destination) = (request.listener_address(), request.caller());
        // SAFETY: the listener's entry is one of libfabric.
        let copy = unsafe { libfabric::libfabric()?.copy_info(listener.as_ptr()) }?;
        // SAFETY: libfabric allocated the copy and its addresses, and nobody else has it.
        unsafe {
            let info = &mut *copy.as_ptr();
            let (source, destination) = (socket::bytes(source), socket::bytes(destination));
            libfabric::replace_bytes(&mut info.src_addr, &source);
            libfabric::replace_bytes(&mut info.dest_addr, &destination);
            (info.src_addrlen, info.dest_addrlen) = (source.len(), destination.len());
            info.addr_format = socket::format(&destination);
            info.handle = cm::RequestHandle::create(request);
        }
        Some(Self(Some(copy)))
    }

    fn info(&self) -> *mut fi_info {
        self.0.as_ref().map_or(std::ptr::null_mut(), OwnedInfo::as_ptr)
    }

    fn give_away(mut self) {
        self.0.take().map(OwnedInfo::into_raw);
    }
}

impl Drop for UnreadRequest {
    fn drop(&mut self) {
        if let Some(info) = &self.0 {
            // SAFETY: the entry is valid until it is dropped, and its handle is a request, which nobody else has.
            drop(unsafe { cm::RequestHandle::take((*info.as_ptr()).handle) });
        }
    }
}
