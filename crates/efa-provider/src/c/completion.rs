//! Completions, and messages that were looked for, as libfabric's entries have them.

use std::ffi::c_void;

use efa::{Buffer, Completion, CompletionError, FiAddr, Kind, OperationError, UnexpectedMessage};

use crate::abi::*;
use crate::errors::{self, EntryNumbers};

/// The parts of an entry of every format.
#[inline]
fn entry(completion: &Completion) -> fi_cq_tagged_entry {
    fi_cq_tagged_entry {
        op_context: context(completion.context),
        flags: flags(completion),
        len: length(completion.length),
        buf: match completion.kind {
            Kind::MultiReceive => address(&completion.buffer),
            _ => std::ptr::null_mut(),
        },
        data: completion.cq_data.unwrap_or(0),
        tag: completion.tag.unwrap_or(0),
    }
}

/// The entry, and the peer that sent or wrote.
#[inline]
pub(crate) fn parts(completion: &Completion) -> (fi_cq_tagged_entry, fi_addr_t) {
    let sender = match completion.kind {
        Kind::Receive | Kind::MultiReceive | Kind::RemoteWrite => completion.peer,
        _ => None,
    };
    (entry(completion), address_of(sender))
}

/// The entry for a message that was found (`FI_PEEK`) or discarded, and the sender.
pub(crate) fn of_message(
    message: &UnexpectedMessage,
    op_context: u64,
) -> (fi_cq_tagged_entry, fi_addr_t) {
    let entry = fi_cq_tagged_entry {
        op_context: context(op_context),
        flags: FI_RECV | message_flag(message.tag) | data_flag(message.cq_data),
        len: length(message.length),
        buf: std::ptr::null_mut(),
        data: message.cq_data.unwrap_or(0),
        tag: message.tag.unwrap_or(0),
    };
    (entry, address_of(message.peer))
}

/// The entry of a peek that found nothing. `kind` is `FI_TAGGED` or `FI_MSG`.
pub(crate) fn no_message(kind: u64, op_context: u64) -> fi_cq_err_entry {
    let EntryNumbers { error: err, provider: prov_errno } = errors::NO_MESSAGE;
    let (op_context, flags) = (context(op_context), FI_RECV | kind);
    fi_cq_err_entry { op_context, flags, err, prov_errno, ..zeroed() }
}

/// The entry of a receive that was cancelled before it met its message. `kind` is `FI_TAGGED` or `FI_MSG`.
pub(crate) fn cancelled(kind: u64, op_context: u64) -> fi_cq_err_entry {
    let EntryNumbers { error: err, provider: prov_errno } =
        errors::of_operation(&OperationError::Cancelled);
    let (op_context, flags) = (context(op_context), FI_RECV | kind);
    fi_cq_err_entry { op_context, flags, err, prov_errno, ..zeroed() }
}

/// The context that the operation was started with.
fn context(context: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(context as usize)
}

fn length(length: u64) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}

/// The kind of a message, which has a tag or none.
fn message_flag(tag: Option<u64>) -> u64 {
    if tag.is_some() { FI_TAGGED } else { FI_MSG }
}

fn data_flag(cq_data: Option<u64>) -> u64 {
    if cq_data.is_some() { FI_REMOTE_CQ_DATA } else { 0 }
}

#[inline]
fn flags(completion: &Completion) -> u64 {
    let (message, data) = (message_flag(completion.tag), data_flag(completion.cq_data));
    match completion.kind {
        Kind::Send => FI_SEND | message,
        Kind::Receive | Kind::MultiReceive => FI_RECV | message | data,
        // With `FI_RECV` it would be a message.
        Kind::Released => FI_MULTI_RECV,
        Kind::Write => FI_RMA | FI_WRITE,
        Kind::Read => FI_RMA | FI_READ,
        Kind::Atomic => FI_ATOMIC | FI_WRITE,
        Kind::FetchAtomic => FI_ATOMIC | FI_READ,
        Kind::RemoteWrite => FI_RMA | FI_REMOTE_WRITE | data,
        _ => 0,
    }
}

/// Where the bytes of a buffer of C begin.
fn address(buffer: &Buffer) -> *mut c_void {
    buffer.as_slice().map_or(std::ptr::null_mut(), |bytes| bytes.as_ptr().cast_mut().cast())
}

/// A peer, if it is in the address vector.
fn address_of(peer: Option<FiAddr>) -> fi_addr_t {
    peer.map_or(FI_ADDR_NOTAVAIL, |FiAddr(peer)| peer)
}

/// The entry of a failed operation.
pub(crate) fn error_entry(failed: &CompletionError) -> fi_cq_err_entry {
    let CompletionError { error, completion, .. } = failed;
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
