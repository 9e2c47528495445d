//! What messages with and without tags have in common.

use std::ffi::c_void;

use efa::{Buffer, Message, OperationFlags, Receive, ReceiveBuffer, Refused};

use crate::abi::*;
use crate::bits;
use crate::boundary::{Errno, INVALID, Outcome};
use crate::c::endpoint::Endpoint;
use crate::c::unexpected;
use crate::errors;

/// The number that stands for a context.
#[inline(always)]
pub(crate) fn context(context: *mut c_void) -> u64 {
    context.expose_provenance() as u64
}

/// An operation that didn't start.
#[cold]
pub(crate) fn refused(refused: Refused) -> Errno {
    errors::of_start(&refused.error)
}

/// Sends with the default flags.
#[inline(always)]
pub(crate) fn send(ep: &Endpoint, message: Message, buffer: Buffer, context: u64) -> Outcome<()> {
    if ep.defaults.inject {
        return send_injected(ep, message, buffer, context);
    }
    ep.endpoint()?.send(message, buffer, context).map_err(refused)
}

/// Sends with these flags.
pub(crate) fn send_flags(
    ep: &Endpoint,
    message: Message,
    buffer: Buffer,
    flags: u64,
    context: u64,
) -> Outcome<()> {
    let known = bits::transmit_flags(flags).ok_or(Errno(FI_EBADFLAGS))?;
    let message = message.flags(known);
    match flags & FI_INJECT != 0 {
        true => send_injected(ep, message, buffer, context),
        false => ep.endpoint()?.send(message, buffer, context).map_err(refused),
    }
}

/// A copy of what an operation with `FI_INJECT` sends.
///
/// # Errors
/// `FI_EINVAL` if it is longer than `inject_size`.
pub(crate) fn copied(ep: &Endpoint, buffer: &Buffer) -> Outcome<Buffer> {
    ep.endpoint()?.copy_injected(buffer).map_err(|_| INVALID)
}

/// Copies a message and sends the copy, with a completion.
fn send_injected(ep: &Endpoint, message: Message, buffer: Buffer, context: u64) -> Outcome<()> {
    ep.endpoint()?.send(message, copied(ep, &buffer)?, context).map_err(refused)
}

/// Copies a message and sends the copy, without a completion.
#[inline(always)]
pub(crate) fn inject(ep: &Endpoint, message: Message, bytes: &[u8]) -> Outcome<()> {
    ep.endpoint()?.inject(message, bytes).map_err(|error| errors::of_start(&error))
}

/// Receives with the default flags.
#[inline(always)]
pub(crate) fn receive(
    ep: &Endpoint,
    receive: Receive,
    buffer: ReceiveBuffer,
    context: u64,
) -> Outcome<()> {
    ep.endpoint()?.receive(receive, buffer, context).map(drop).map_err(refused)
}

/// Receives a message without a tag, or many, with the default flags.
#[inline(always)]
pub(crate) fn receive_untagged(
    ep: &Endpoint,
    source: fi_addr_t,
    buffer: ReceiveBuffer,
    context: u64,
) -> Outcome<()> {
    if ep.defaults.receive_many {
        let posted = ep.endpoint()?.receive_many(ep.source(source), buffer, context);
        return posted.map(drop).map_err(refused);
    }
    receive(ep, ep.from(Receive::untagged(), source), buffer, context)
}

/// Receives many messages without tags, with these flags.
#[cold]
pub(crate) fn receive_many(
    ep: &Endpoint,
    source: fi_addr_t,
    flags: u64,
    buffer: impl FnOnce() -> Outcome<ReceiveBuffer>,
    context: u64,
) -> Outcome<()> {
    if flags & !(FI_COMPLETION | FI_MORE | LEVELS) != 0 {
        return Err(Errno(FI_EBADFLAGS));
    }
    let (endpoint, source) = (ep.endpoint()?, ep.source(source));
    let posted = endpoint.receive_many_flags(source, reported(flags), buffer()?, context);
    posted.map(drop).map_err(refused)
}

/// Levels of completion, of which receives have one: they complete when the message is in its buffer.
const LEVELS: u64 = FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE;

/// The flags of a receive that `efa` knows.
fn reported(flags: u64) -> OperationFlags {
    match flags & FI_COMPLETION != 0 {
        true => OperationFlags::COMPLETION,
        false => OperationFlags::empty(),
    }
}

/// A receive with these flags.
///
/// # Errors
/// `FI_EBADFLAGS` if they ask for more than its completion.
#[inline(always)]
pub(crate) fn with_flags(receive: Receive, flags: u64) -> Outcome<Receive> {
    match flags & !(FI_COMPLETION | FI_MORE | LEVELS) {
        0 => Ok(receive.flags(reported(flags))),
        _ => Err(Errno(FI_EBADFLAGS)),
    }
}

/// Receives with these flags, or looks at what arrived. `kind` is `FI_TAGGED` or `FI_MSG`.
pub(crate) fn receive_flags(
    ep: &Endpoint,
    receive: Receive,
    kind: u64,
    flags: u64,
    buffer: impl FnOnce() -> Outcome<ReceiveBuffer>,
    context: u64,
) -> Outcome<()> {
    const LOOKS: u64 = FI_PEEK | FI_CLAIM | FI_DISCARD;
    let receive = with_flags(receive, flags & !LOOKS)?;
    match flags & LOOKS {
        0 => self::receive(ep, receive, buffer()?, context),
        FI_CLAIM => unexpected::receive_claimed(ep, buffer()?, context),
        CLAIM_AND_DISCARD => unexpected::discard_claimed(ep, kind, context),
        looks if looks & FI_PEEK != 0 => unexpected::peek(ep, receive, kind, looks, context),
        _ => Err(Errno(FI_EBADFLAGS)),
    }
}

const CLAIM_AND_DISCARD: u64 = FI_CLAIM | FI_DISCARD;
