//! Which capabilities the operations of an endpoint may use now.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::capabilities::Capabilities;
use crate::completion::StartError;

/// Set until the endpoint is being closed; a bit that no capability has.
const OPEN: u32 = 1 << 31;
/// Set, in place of all capabilities, while the endpoint may be out of the rotation of a queue.
const RESTS: u32 = 1 << 30;
/// Set, in place of all capabilities, until an endpoint with a connection is connected for the first time.
const AWAITS: u32 = 1 << 29;

const _: () = assert!(Capabilities::all().bits() & (OPEN | RESTS | AWAITS) == 0);

/// The capabilities that operations of one side may use now: all that were enabled, none once the endpoint is
/// being closed, and none of the transmit side while an endpoint with a connection is not connected. While it
/// rests there is none either, so that the first operation finds out, and the others need not look.
#[derive(Debug)]
pub(crate) struct Usable(AtomicU32);

impl Usable {
    pub(crate) fn new(capabilities: Capabilities) -> Self {
        Self(AtomicU32::new(capabilities.bits() | OPEN))
    }

    /// Forbids all capabilities until the endpoint is connected.
    pub(crate) fn await_connection(&self) {
        self.put(AWAITS);
    }

    /// Forbids all capabilities, with this bit. A closed endpoint stays closed.
    fn put(&self, bit: u32) {
        let change = |usable: u32| (usable & OPEN != 0).then_some(bit | OPEN);
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Forbids all capabilities for good, unless a connection is awaited anew.
    pub(crate) fn forbid(&self) {
        self.put(0);
    }

    pub(crate) fn awaits(&self) -> bool {
        self.0.load(Ordering::Relaxed) & AWAITS != 0
    }

    /// Allows all capabilities if the connection was awaited.
    pub(crate) fn establish(&self) {
        // It may be out of the rotation by now.
        let change = |usable: u32| (usable & AWAITS != 0).then_some(RESTS | OPEN);
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// The endpoint rests: the next operation recalls it.
    pub(crate) fn rest(&self, all: Capabilities) {
        let (usable, rests) = (all.bits() | OPEN, OPEN | RESTS);
        let _ = self.0.compare_exchange(usable, rests, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Allows all capabilities again if the endpoint may rest, and returns whether it may.
    pub(crate) fn recall(&self, all: Capabilities) -> bool {
        let change = |usable: u32| (usable & RESTS != 0).then_some(all.bits() | OPEN);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok()
    }

    #[cold]
    fn why_not(&self, needed: Capabilities, enabled: Capabilities) -> StartError {
        match needed - enabled {
            missing if !missing.is_empty() => StartError::Disabled(missing),
            _ if self.0.load(Ordering::Relaxed) & OPEN != 0 => StartError::NotConnected,
            _ => StartError::Closed,
        }
    }

    /// Refuses an operation that needs other capabilities than the side, which was enabled with some, has now.
    #[inline(always)]
    pub(crate) fn require(
        &self,
        needed: Capabilities,
        enabled: Capabilities,
    ) -> Result<(), StartError> {
        match self.allows(needed) {
            true => Ok(()),
            false => Err(self.why_not(needed, enabled)),
        }
    }

    #[inline(always)]
    pub(crate) fn allows(&self, needed: Capabilities) -> bool {
        Capabilities::from_bits_retain(self.0.load(Ordering::Relaxed)).contains(needed)
    }

    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
