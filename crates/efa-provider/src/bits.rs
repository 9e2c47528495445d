//! Flags of libfabric and of `efa`.

use efa::{Capabilities, Mode, OperationFlags};

use crate::abi::*;

const CAPABILITIES: [(u64, Capabilities); 9] = [
    (FI_MSG, Capabilities::MSG),
    (FI_TAGGED, Capabilities::TAGGED),
    (FI_RMA, Capabilities::RMA),
    (FI_ATOMIC, Capabilities::ATOMIC),
    (FI_SEND, Capabilities::SEND),
    (FI_RECV, Capabilities::RECV),
    (FI_MULTI_RECV, Capabilities::MULTI_RECV),
    (FI_SOURCE, Capabilities::SOURCE),
    (FI_DIRECTED_RECV, Capabilities::DIRECTED_RECV),
];

/// Capabilities that a shared receive context lacks: an address means another peer to each address vector, and a buffer
/// for many messages would have those of several endpoints.
pub(crate) const NOT_SHARED: Capabilities =
    Capabilities::MULTI_RECV.union(Capabilities::DIRECTED_RECV);

/// What every entry offers also if the hints don't ask for it: the directions of remote memory, and which peers are
/// reached.
const IMPLIED_CAPS: u64 = REMOTE_MEMORY | FI_LOCAL_COMM | FI_REMOTE_COMM;

/// The directions of `FI_RMA` and `FI_ATOMIC`.
const REMOTE_MEMORY: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

/// Capabilities of the domain and of every entry, which an endpoint doesn't have by itself: they are no
/// [`Capabilities`] of `efa`.
const DOMAIN_CAPS: u64 = IMPLIED_CAPS | FI_NAMED_RX_CTX | FI_SHARED_AV;

/// What the bits of libfabric are by a table; `None` if there is a bit that the table doesn't have.
pub(crate) fn translate<T: Copy + FromIterator<T>>(bits: u64, table: &[(u64, T)]) -> Option<T> {
    let known = table.iter().fold(0, |known, (bit, _)| known | bit);
    let set = table.iter().filter(|(bit, _)| bits & bit != 0);
    (bits & !known == 0).then(|| set.map(|(_, meaning)| *meaning).collect())
}

/// The capabilities of `efa` among these; `None` if there is one that isn't offered.
pub(crate) fn capabilities(caps: u64) -> Option<Capabilities> {
    translate(caps & !DOMAIN_CAPS, &CAPABILITIES)
}

/// These capabilities, and buffers for many messages if receives are for many by their default flags: a program may ask
/// for them by the flag alone.
pub(crate) fn with_default_flags(capabilities: Capabilities, receive_flags: u64) -> Capabilities {
    let receives = capabilities.enabled().contains(Capabilities::MSG | Capabilities::RECV);
    match receives && receive_flags & FI_MULTI_RECV != 0 {
        true => capabilities | Capabilities::MULTI_RECV,
        false => capabilities,
    }
}

/// The capabilities of an entry. `asked` are those of the hints.
pub(crate) fn caps(capabilities: Capabilities, asked: u64) -> u64 {
    let named = CAPABILITIES.iter().filter(|(_, one)| capabilities.contains(*one));
    let mut caps = named.fold(0, |caps, (bit, _)| caps | bit);
    if capabilities.intersects(Capabilities::RMA | Capabilities::ATOMIC) {
        let directions = asked & REMOTE_MEMORY;
        caps |= if directions == 0 { REMOTE_MEMORY } else { directions };
    }
    caps | FI_LOCAL_COMM | FI_REMOTE_COMM | (asked & (FI_NAMED_RX_CTX | FI_SHARED_AV))
}

/// Those of one side: without what only the other can do, and without those of the domain.
pub(crate) fn side_caps(capabilities: Capabilities, entry: u64, own: u64) -> u64 {
    let all = REMOTE_MEMORY | FI_NAMED_RX_CTX;
    caps(capabilities, 0) & !(all | FI_LOCAL_COMM | FI_REMOTE_COMM) | entry & all & own
}

/// What a program offers. The mode bits that ask nothing of us are left out.
pub(crate) fn mode(mode: u64) -> Mode {
    let mut found = Mode::empty();
    found.set(Mode::CONTEXT, mode & (FI_CONTEXT | FI_CONTEXT2) != 0);
    found.set(Mode::LOCAL_MR, mode & FI_LOCAL_MR != 0);
    found
}

const FLAGS: [(u64, OperationFlags); 4] = [
    (FI_COMPLETION, OperationFlags::COMPLETION),
    (FI_INJECT_COMPLETE, OperationFlags::INJECT_COMPLETE),
    (FI_TRANSMIT_COMPLETE, OperationFlags::TRANSMIT_COMPLETE),
    (FI_DELIVERY_COMPLETE, OperationFlags::DELIVERY_COMPLETE),
];

/// Flags of operations that send; `None` if there is one that they can't have. `FI_INJECT` and `FI_MORE` are left
/// to the caller.
pub(crate) fn transmit_flags(flags: u64) -> Option<OperationFlags> {
    translate(flags & !(FI_INJECT | FI_MORE), &FLAGS)
}

/// The same of libfabric.
pub(crate) fn op_flags(flags: OperationFlags) -> u64 {
    let named = FLAGS.iter().filter(|(_, one)| flags.contains(*one));
    named.fold(0, |flags, (bit, _)| flags | bit)
}
