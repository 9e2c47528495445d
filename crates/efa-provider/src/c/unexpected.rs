//! Messages that arrived before a receive was posted: `FI_PEEK`, `FI_CLAIM` and `FI_DISCARD`.

use efa::{Receive, ReceiveBuffer, StartError, UnexpectedMessage};

use crate::abi::*;
use crate::boundary::{Errno, INVALID, Outcome};
use crate::c::completion;
use crate::c::cq::OwnEntry;
use crate::c::endpoint::Endpoint;
use crate::errors;

/// Looks for a message, and claims or discards it if the flags say so. The answer is an entry of the completion queue.
/// `kind` is `FI_TAGGED` or `FI_MSG`.
///
/// # Errors
/// `FI_EINVAL` if a message was claimed with this context already.
pub(super) fn peek(
    ep: &Endpoint,
    receive: Receive,
    kind: u64,
    looks: u64,
    context: u64,
) -> Outcome<()> {
    let (endpoint, queue) = (ep.endpoint()?, ep.receive_queue()?);
    if looks & FI_CLAIM != 0 && looks & FI_DISCARD != 0 {
        return Err(Errno(FI_EBADFLAGS));
    }
    // A program that only peeks reads no queue meanwhile.
    queue.progress();
    let message = if looks == FI_PEEK {
        endpoint.peek(receive).map_err(|error| errors::of_start(&error))?
    } else {
        let mut claims = ep.claims();
        if looks & FI_CLAIM != 0 && claims.contains_key(&context) {
            return Err(INVALID);
        }
        let claim = endpoint.claim(receive).map_err(|error| errors::of_start(&error))?;
        let message = claim.as_ref().map(|claim| *claim.message());
        match claim {
            // Before the answer: who reads that may receive the message.
            Some(claim) if looks & FI_CLAIM != 0 => drop(claims.insert(context, claim)),
            Some(claim) => claim.discard(),
            None => {}
        }
        message
    };
    queue.append(answer(message.as_ref(), kind, context));
    Ok(())
}

/// Receives a claimed message.
pub(super) fn receive_claimed(ep: &Endpoint, buffer: ReceiveBuffer, context: u64) -> Outcome<()> {
    ep.endpoint()?;
    // The lock is held until it is clear that the claim is gone.
    let mut claims = ep.claims();
    let claim = claims.remove(&context).ok_or(INVALID)?;
    claim.receive(buffer, context).map_err(|refused| {
        if !matches!(refused.error, StartError::ClaimEnded) {
            claims.insert(context, refused.claim);
        }
        errors::of_start(&refused.error)
    })
}

/// Discards a claimed message.
pub(super) fn discard_claimed(ep: &Endpoint, kind: u64, context: u64) -> Outcome<()> {
    let queue = ep.receive_queue()?;
    let claim = ep.claims().remove(&context).ok_or(INVALID)?;
    let message = *claim.message();
    claim.discard();
    queue.append(answer(Some(&message), kind, context));
    Ok(())
}

/// The entry for what was found.
fn answer(found: Option<&UnexpectedMessage>, kind: u64, context: u64) -> OwnEntry {
    match found {
        Some(message) => {
            let (entry, source) = completion::of_message(message, context);
            OwnEntry::Completed(entry, source)
        }
        None => OwnEntry::Failed(completion::no_message(kind, context)),
    }
}
