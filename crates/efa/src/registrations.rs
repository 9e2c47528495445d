//! A cache of registrations: memory that was registered for a buffer serves the next one.
//!
//! ```text
//!   Domain::registered ─► idle memory of the size? ── yes ─► RegionSlice ─► operation ─► completion
//!            ▲                     │ no                                                      │
//!            │                     └─► register ─► RegionSlice                               │
//!            └──── idle, the newest last ◄── the last handle is dropped ◄────────────────────┘
//!                    │ too many, too large, invalidated, or the device has no room
//!                    └─► deregistered
//! ```
//!
//! To register memory takes longer than to copy some. A cache by address, as libfabric has it, must
//! know when memory is freed behind its back; here memory belongs to its registration, so that nothing
//! can be freed under it, and what is cached is in nobody's hands.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use efa_device::{Access, DeviceError, Region as _};

use crate::device::AnyRegion;
use crate::domain::Domain;
use crate::region::{MemoryRegion, RegionSlice, RegisterError};

/// How much registered memory is kept that nobody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistrationLimits {
    /// Most regions; with 0 none are kept.
    pub count: usize,
    /// Most bytes of all of them.
    pub bytes: usize,
}

impl Default for RegistrationLimits {
    /// 1024 regions of together 1 GiB.
    fn default() -> Self {
        Self { count: 1024, bytes: 1 << 30 }
    }
}

/// What the cache of a domain has done, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrationCounts {
    /// Buffers for which memory was registered.
    pub registered: u64,
    /// Buffers for which it was there.
    pub reused: u64,
    /// Registrations that were ended: over the limits, invalidated, or to make room.
    pub ended: u64,
    /// Regions that nobody uses.
    pub idle: usize,
    /// Their bytes.
    pub idle_bytes: usize,
}

/// The idle registrations of a domain.
#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    limits: RegistrationLimits,
    /// The one used last is the last.
    idle: VecDeque<AnyRegion>,
    counts: RegistrationCounts,
}

/// Brings a region back to its cache with the last handle to it.
pub(crate) struct Lease {
    region: AnyRegion,
    cache: Weak<Cache>,
}

/// Regions are this long or a power of two times as long, so that they suit other buffers, too; or as
/// long as the device allows.
const SMALLEST: usize = 4096;

impl Cache {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes idle memory of this length out, the one that was used last.
    fn take(&mut self, length: usize, access: Access) -> Option<AnyRegion> {
        let suits = |region: &AnyRegion| region.length() == length && region.access() == access;
        let place = self.idle.iter().rposition(suits)?;
        let region = self.idle.remove(place)?;
        self.counts.idle_bytes -= length;
        self.counts.reused += 1;
        Some(region)
    }

    fn put(&mut self, region: AnyRegion) {
        self.counts.idle_bytes += region.length();
        self.idle.push_back(region);
        self.keep_to_limits();
    }

    fn keep_to_limits(&mut self) {
        let RegistrationLimits { count, bytes } = self.limits;
        while self.idle.len() > count || self.counts.idle_bytes > bytes {
            self.end_oldest();
        }
    }

    /// Deregisters what was unused for longest; tells whether there was something.
    fn end_oldest(&mut self) -> bool {
        let Some(region) = self.idle.pop_front() else { return false };
        self.counts.idle_bytes -= region.length();
        self.counts.ended += 1;
        true
    }

    fn end_where(&mut self, doomed: impl Fn(&AnyRegion) -> bool) -> usize {
        let before = self.idle.len();
        self.idle.retain(|region| !doomed(region));
        let ended = before - self.idle.len();
        self.counts.idle_bytes = self.idle.iter().map(efa_device::Region::length).sum();
        self.counts.ended += ended as u64;
        ended
    }
}

impl Domain {
    /// A buffer of registered memory, out of the domain's cache if there is one of about its size.
    /// It goes back there when nobody has it any more. It holds what it held when it was last used;
    /// new memory is zero.
    ///
    /// Remote endpoints that have used the memory know its key and may use it again, as `access`
    /// lets them, until it is [invalidated](Self::invalidate_registrations).
    ///
    /// # Errors
    /// A limit of the device is reached, and nothing is cached whose place could be taken.
    ///
    /// ```
    /// use efa::*;
    ///
    /// let domain = Fabric::local(LocalOptions::default()).domain()?;
    /// for _ in 0..10 {
    ///     let buffer = domain.registered(100_000, Access::default())?;
    ///     assert_eq!(buffer.len(), 100_000);
    ///     // It goes into an operation, comes out of a completion, and is dropped.
    /// }
    /// let counts = domain.registrations();
    /// assert_eq!((counts.registered, counts.reused, counts.idle), (1, 9, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn registered(&self, length: usize, access: Access) -> Result<RegionSlice, RegisterError> {
        let limit = self.device().attributes().max_region_size;
        if length as u64 > limit {
            let error = DeviceError::TooLong { length: length as u64, limit };
            return Err(RegisterError { error, memory: Box::default() });
        }
        // The device's longest need not be a power of two.
        let whole = length.max(SMALLEST).checked_next_power_of_two().unwrap_or(usize::MAX);
        let whole = whole.min(usize::try_from(limit).unwrap_or(usize::MAX));
        let known = self.cache().state().take(whole, access);
        let region = match known {
            Some(region) => region,
            None => self.register_for_cache(whole, access)?,
        };
        let lease = Lease { region: region.clone(), cache: Arc::downgrade(self.cache()) };
        Ok(MemoryRegion::leased(self, region, lease).first(length))
    }

    /// Registers new memory, in the place of idle memory if the device has no room.
    fn register_for_cache(
        &self,
        length: usize,
        access: Access,
    ) -> Result<AnyRegion, RegisterError> {
        let mut memory = vec![0; length].into_boxed_slice();
        loop {
            match self.device().register(memory, access) {
                Ok(region) => {
                    self.cache().state().counts.registered += 1;
                    return Ok(region);
                }
                Err(efa_device::RegisterError { error, memory: back }) => {
                    let full = matches!(error, DeviceError::LimitReached { .. });
                    if !full || !self.cache().state().end_oldest() {
                        return Err(RegisterError { error, memory: back });
                    }
                    memory = back;
                }
            }
        }
    }

    /// What the cache has done, and what it holds.
    #[must_use]
    pub fn registrations(&self) -> RegistrationCounts {
        let state = self.cache().state();
        RegistrationCounts { idle: state.idle.len(), ..state.counts }
    }

    /// Keeps less idle memory, or more, from now on.
    pub fn limit_registrations(&self, limits: RegistrationLimits) {
        let mut state = self.cache().state();
        state.limits = limits;
        state.keep_to_limits();
    }

    /// Ends the registrations of idle memory at these addresses, as remote endpoints name them, so
    /// that nobody reaches it any more; gives how many there were. Memory in use stays.
    pub fn invalidate_registrations(&self, addresses: Range<u64>) -> usize {
        self.cache().state().end_where(|region| {
            let begin = region.remote_address();
            let end = begin.saturating_add(region.length() as u64);
            begin < addresses.end && addresses.start < end
        })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(cache) = self.cache.upgrade() {
            cache.state().put(self.region.clone());
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.region).finish()
    }
}
