//! A completion as libfabric's entries have it.

use std::ffi::c_void;

use efa::{Buffer, Completion, CompletionError, FiAddr, Kind, OperationError};

use crate::abi::*;
use crate::errors::{self, EntryNumbers};

/// The parts of an entry of every format.
#[inline]
fn entry(completion: &Completion) -> fi_cq_tagged_entry {
    fi_cq_tagged_entry {
        op_context: context(completion),
        flags: flags(completion),
        len: usize::try_from(completion.length).unwrap_or(usize::MAX),
        buf: match completion.kind {
            Kind::MultiReceive => address(&completion.buffer),
            _ => std::ptr::null_mut(),
        },
        data: completion.cq_data.unwrap_or(0),
        tag: completion.tag.unwrap_or(0),
    }
}

/// The entry, and the sender.
#[inline]
pub(crate) fn parts(completion: &Completion) -> (fi_cq_tagged_entry, fi_addr_t) {
    (entry(completion), source(completion))
}

/// The context that the operation was started with.
fn context(completion: &Completion) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(completion.context as usize)
}

#[inline]
fn flags(completion: &Completion) -> u64 {
    let message = if completion.tag.is_some() { FI_TAGGED } else { FI_MSG };
    let data = if completion.cq_data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
    match completion.kind {
        Kind::Send => FI_SEND | message,
        Kind::Receive | Kind::MultiReceive => FI_RECV | message | data,
        // With `FI_RECV` it would be a message.
        Kind::Released => FI_MULTI_RECV,
        Kind::Write => FI_RMA | FI_WRITE,
        Kind::Read => FI_RMA | FI_READ,
        Kind::Atomic if completion.buffer.is_empty() => FI_ATOMIC | FI_WRITE,
        // It has returned previous values.
        Kind::Atomic => FI_ATOMIC | FI_READ,
        Kind::RemoteWrite => FI_RMA | FI_REMOTE_WRITE | data,
        _ => 0,
    }
}

/// Where the bytes of a buffer of C begin.
fn address(buffer: &Buffer) -> *mut c_void {
    buffer.as_slice().map_or(std::ptr::null_mut(), |bytes| bytes.as_ptr().cast_mut().cast())
}

/// The peer that sent or wrote, if it is in the address vector.
fn source(completion: &Completion) -> fi_addr_t {
    match completion.kind {
        Kind::Receive | Kind::MultiReceive | Kind::RemoteWrite => {
            completion.peer.map_or(FI_ADDR_NOTAVAIL, |FiAddr(peer)| peer)
        }
        _ => FI_ADDR_NOTAVAIL,
    }
}

/// The entry of a failed operation.
pub(crate) fn error_entry(failed: &CompletionError) -> fi_cq_err_entry {
    let CompletionError { error, completion } = failed;
    let fi_cq_tagged_entry { op_context, flags, len, buf, data, tag } = entry(completion);
    let (len, olen) = match error {
        OperationError::Truncated { length, capacity } => {
            (*capacity as usize, length.saturating_sub(*capacity) as usize)
        }
        _ => (len, 0),
    };
    let EntryNumbers { error: err, provider: prov_errno } = errors::of_operation(error);
    fi_cq_err_entry { op_context, flags, len, buf, data, tag, olen, err, prov_errno, ..zeroed() }
}
