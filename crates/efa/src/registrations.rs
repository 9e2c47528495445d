//! The registration cache: registered memory that one buffer no longer uses serves the next one.
//!
//! ```text
//!   Domain::registered ─► idle memory of the size? ── yes ─► RegionSlice ─► operation ─► completion
//!            ▲                     │ no                                                      │
//!            │                     └─► register ─► RegionSlice                               │
//!            └──── idle, the newest last ◄── the last handle is dropped ◄────────────────────┘
//!                    │ over a limit, invalidated, or the device or the memory is full
//!                    └─► deregistered
//! ```
//!
//! Registering memory takes longer than copying a short message. libfabric's cache is keyed by address,
//! so it must watch when the program frees memory. Here a region owns its memory, the cache holds
//! regions without handles, and nothing has to be watched.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use efa_device::{Access, DeviceError, Region as _, RegisterError, Shortage};

use crate::device::AnyRegion;
use crate::domain::Domain;
use crate::region::{MemoryRegion, RegionSlice};

/// Limits of the registration cache: of idle regions, which no handle refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrationLimits {
    /// Most idle regions; 0 disables the cache.
    pub count: usize,
    /// Most bytes of all idle regions together.
    pub bytes: usize,
}

impl Default for RegistrationLimits {
    /// 1024 regions of together 1 GiB.
    fn default() -> Self {
        Self { count: 1024, bytes: 1 << 30 }
    }
}

impl RegistrationLimits {
    /// Limits of this many regions and bytes.
    #[must_use]
    pub fn new(count: usize, bytes: usize) -> Self {
        Self { count, bytes }
    }
}

/// Counts of the registration cache of a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrationCounts {
    /// Buffers that were registered anew.
    pub registered: u64,
    /// Buffers that were taken from the cache.
    pub reused: u64,
    /// Idle regions deregistered: over a limit, invalidated, or for lack of space on the device or of memory.
    pub deregistered: u64,
    /// Idle regions.
    pub idle: usize,
    /// Bytes of the idle regions.
    pub idle_bytes: usize,
}

/// The idle registrations of a domain.
#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    limits: RegistrationLimits,
    /// The most recently used one is the last.
    idle: VecDeque<AnyRegion>,
    counts: RegistrationCounts,
}

/// Returns a region to its cache when it is dropped with the last handle.
pub(crate) struct Lease {
    region: AnyRegion,
    cache: Weak<Cache>,
}

/// Regions have this length times a power of two, so that they fit other buffers too, or the longest that
/// the device allows.
const SMALLEST: usize = 4096;

impl Cache {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Removes an idle region with this length and access, the most recently used one.
    fn take(&mut self, length: usize, access: Access) -> Option<AnyRegion> {
        let suits = |region: &AnyRegion| region.length() == length && region.access() == access;
        let index = self.idle.iter().rposition(suits)?;
        let region = self.idle.remove(index)?;
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
            self.deregister_oldest();
        }
    }

    /// Deregisters the least recently used idle region; returns whether there was one.
    fn deregister_oldest(&mut self) -> bool {
        let Some(region) = self.idle.pop_front() else { return false };
        self.counts.idle_bytes -= region.length();
        self.counts.deregistered += 1;
        true
    }

    fn deregister_where(&mut self, condition: impl Fn(&AnyRegion) -> bool) -> usize {
        let before = self.idle.len();
        self.idle.retain(|region| !condition(region));
        let count = before - self.idle.len();
        self.counts.idle_bytes = self.idle.iter().map(efa_device::Region::length).sum();
        self.counts.deregistered += count as u64;
        count
    }
}

impl Domain {
    /// A buffer of registered memory, from the registration cache if that has a region of suitable
    /// length. It returns there with its last handle. Memory from the cache has its old contents; new
    /// memory is zero.
    ///
    /// It is [allocated](Self::allocate) where peers access it best.
    ///
    /// A peer that used the region before knows its key and may use it again, as `access` allows, until
    /// the region is [invalidated](Self::invalidate_registrations).
    ///
    /// # Errors
    /// A limit of the device is reached, and there is no idle region that could be deregistered.
    ///
    /// ```
    /// use efa::{Access, Fabric, LocalOptions};
    ///
    /// let domain = Fabric::local(LocalOptions::default()).domain()?;
    /// for _ in 0..10 {
    ///     let buffer = domain.registered(100_000, Access::default())?;
    ///     assert_eq!(buffer.len(), 100_000);
    ///     // Use it in an operation and drop it after the completion.
    /// }
    /// let counts = domain.registrations();
    /// assert_eq!((counts.registered, counts.reused, counts.idle), (1, 9, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn registered(&self, length: usize, access: Access) -> Result<RegionSlice, DeviceError> {
        let limit = self.device().attributes().max_region_size;
        if length as u64 > limit {
            return Err(DeviceError::TooLong { length: length as u64, limit });
        }
        // The longest region of the device need not be a power of two.
        let rounded = length.max(SMALLEST).checked_next_power_of_two().unwrap_or(usize::MAX);
        let rounded = rounded.min(usize::try_from(limit).unwrap_or(usize::MAX));
        let cached = self.cache().state().take(rounded, access);
        let region = match cached {
            Some(region) => region,
            None => self.register_for_cache(rounded, access)?,
        };
        let lease = Lease { region: region.clone(), cache: Arc::downgrade(self.cache()) };
        Ok(MemoryRegion::leased(self, region, lease).first(length))
    }

    /// Allocates memory for a region that the cache will get.
    fn register_for_cache(&self, length: usize, access: Access) -> Result<AnyRegion, DeviceError> {
        let region = self.with_room(|| self.device().allocate(length, access))?;
        self.cache().state().counts.registered += 1;
        Ok(region)
    }

    /// Makes a region; deregisters idle ones while the device or the memory is full.
    pub(crate) fn with_room(
        &self,
        mut make: impl FnMut() -> Result<AnyRegion, DeviceError>,
    ) -> Result<AnyRegion, DeviceError> {
        loop {
            match make() {
                Err(error) if self.make_room(&error) => {}
                made => return made,
            }
        }
    }

    /// As [`with_room`](Self::with_room), with memory of the program.
    pub(crate) fn register_with_room(
        &self,
        mut memory: Box<[u8]>,
        access: Access,
    ) -> Result<AnyRegion, RegisterError> {
        loop {
            match self.device().register(memory, access) {
                Err(refused) if self.make_room(&refused.error) => memory = refused.memory,
                made => return made,
            }
        }
    }

    /// Deregisters an idle region if a registration that failed with this error may succeed then; returns whether it did.
    fn make_room(&self, error: &DeviceError) -> bool {
        let is_full = matches!(error, DeviceError::LimitReached { .. })
            || error.shortage() == Some(Shortage::Memory);
        is_full && self.cache().state().deregister_oldest()
    }

    /// Counts of the registration cache.
    #[must_use]
    pub fn registrations(&self) -> RegistrationCounts {
        let state = self.cache().state();
        RegistrationCounts { idle: state.idle.len(), ..state.counts }
    }

    /// Sets the limits of the registration cache. Idle regions above them are deregistered at once.
    pub fn limit_registrations(&self, limits: RegistrationLimits) {
        let mut state = self.cache().state();
        state.limits = limits;
        state.keep_to_limits();
    }

    /// Deregisters idle regions that contain one of these [remote
    /// addresses](MemoryRegion::remote_address), so that peers have no access any more; returns their
    /// number. Regions in use stay.
    pub fn invalidate_registrations(&self, addresses: Range<u64>) -> usize {
        self.cache().state().deregister_where(|region| {
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
