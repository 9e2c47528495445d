//! Messages that arrived before a receive was posted: `FI_PEEK`, `FI_CLAIM` and `FI_DISCARD`.

use efa::{Claim, FiAddr, Receive, ReceiveBuffer, UnexpectedMessage};

use crate::abi::*;
use crate::boundary::{Errno, INVALID, Outcome};
use crate::c::cq::OwnEntry;
use crate::c::endpoint::Endpoint;
use crate::errors;

/// Looks for a message, and claims or discards it if the flags say so. The answer is an entry of the completion queue.
pub(super) fn peek(ep: &Endpoint, receive: Receive, looks: u64, context: u64) -> Outcome<()> {
    let endpoint = ep.endpoint()?;
    if looks & FI_CLAIM != 0 && looks & FI_DISCARD != 0 {
        return Err(Errno(FI_EBADFLAGS));
    }
    // A program that only peeks reads no queue meanwhile.
    ep.progress();
    if looks == FI_PEEK {
        let found = endpoint.peek(receive).map_err(|error| errors::of_start(&error))?;
        return ep.report(answer(found.as_ref(), context));
    }
    let claim = endpoint.claim(receive).map_err(|error| errors::of_start(&error))?;
    ep.report(answer(claim.as_ref().map(Claim::message), context))?;
    match claim {
        Some(claim) if looks & FI_CLAIM != 0 => drop(ep.claims().insert(context, claim)),
        Some(claim) => claim.discard(),
        None => {}
    }
    Ok(())
}

/// Receives a claimed message.
pub(super) fn receive_claimed(ep: &Endpoint, buffer: ReceiveBuffer, context: u64) -> Outcome<()> {
    ep.endpoint()?;
    let claim = ep.claims().remove(&context).ok_or(INVALID)?;
    claim.receive(buffer, context).map_err(|refused| {
        ep.claims().insert(context, refused.claim);
        errors::of_start(&refused.error)
    })
}

/// Discards a claimed message.
pub(super) fn discard_claimed(ep: &Endpoint, context: u64) -> Outcome<()> {
    let claim = ep.claims().remove(&context).ok_or(INVALID)?;
    let message = *claim.message();
    claim.discard();
    ep.report(answer(Some(&message), context))
}

/// The entry for what was found.
fn answer(found: Option<&UnexpectedMessage>, context: u64) -> OwnEntry {
    let op_context = std::ptr::with_exposed_provenance_mut(context as usize);
    let Some(message) = found else {
        let entry = fi_cq_err_entry {
            op_context,
            flags: FI_RECV,
            err: FI_ENOMSG,
            prov_errno: FI_ENOMSG,
            ..zeroed()
        };
        return OwnEntry::Failed(entry);
    };
    let kind = if message.tag.is_some() { FI_TAGGED } else { FI_MSG };
    let data = if message.cq_data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
    let entry = fi_cq_tagged_entry {
        op_context,
        flags: FI_RECV | kind | data,
        len: usize::try_from(message.length).unwrap_or(usize::MAX),
        buf: std::ptr::null_mut(),
        data: message.cq_data.unwrap_or(0),
        tag: message.tag.unwrap_or(0),
    };
    OwnEntry::Completed(entry, message.peer.map_or(FI_ADDR_NOTAVAIL, |FiAddr(peer)| peer))
}
