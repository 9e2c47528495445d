//! Packets: buffers of the interface's MTU, in slabs that are registered as a whole.
//!
//! ```text
//!   slab  ┌────────┬────────┬────────┬─ ─ ─      one ibv_reg_mr for all of them
//!         │ packet │ packet │ packet │
//!         └────────┴────────┴────────┴─ ─ ─
//!             ▲ owned by the engine, or by the queue pair while the interface has it
//! ```
//!
//! A slab lives as long as a packet of it. Packets are made and dropped when the engine's stock of
//! them grows and shrinks, which takes the lock of a slab; on their way they are only moved.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use efa_device::{Access, DeviceError};

use crate::domain::ProtectionDomain;
use crate::memory::Registration;

/// Packets in a slab.
const SLAB: usize = 16;
/// A page: what the interface pins.
const PAGE: usize = 4096;
/// Packets begin at multiples of it, so that two never share a cache line.
const LINE: usize = 64;

/// A packet buffer that an EFA interface can reach.
pub struct Packet {
    at: NonNull<u8>,
    length: u32,
    local_key: u32,
    slab: Arc<Slab>,
}

// SAFETY: a packet is memory that it alone owns, as a box is.
unsafe impl Send for Packet {}
// SAFETY: as above; by a shared reference it is only read.
unsafe impl Sync for Packet {}

impl Packet {
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        self.at.as_ptr().addr() as u64
    }

    #[inline]
    pub(crate) fn local_key(&self) -> u32 {
        self.local_key
    }

    /// Whether the interface reaches it by this domain.
    pub(crate) fn is_of(&self, domain: &Arc<ProtectionDomain>) -> bool {
        self.slab.registration.as_ref().is_some_and(|registration| registration.is_of(domain))
    }

    #[inline]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.at.as_ptr()
    }
}

impl AsRef<[u8]> for Packet {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the part of the slab that this packet alone owns; it was zeroed at first. The
        // interface has it only while the queue pair owns the packet, and then nobody calls this.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.length as usize) }
    }
}

impl AsMut<[u8]> for Packet {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.length as usize) }
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packet").field("at", &self.at).field("length", &self.length).finish()
    }
}

impl Drop for Packet {
    // Not among the instructions of those that only move packets.
    #[inline(never)]
    fn drop(&mut self) {
        self.slab.free().push(self.at);
    }
}

#[derive(Debug)]
struct Slab {
    base: NonNull<u8>,
    layout: Layout,
    free: Mutex<Vec<NonNull<u8>>>,
    /// Dropped before the memory goes.
    registration: Option<Registration>,
}

// SAFETY: memory belongs to the process and not to a thread; the list is under a lock.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    fn new(domain: &Arc<ProtectionDomain>, mtu: usize) -> Result<Self, DeviceError> {
        let stride = mtu.max(1).next_multiple_of(LINE);
        let bytes = (stride * SLAB).next_multiple_of(PAGE);
        let layout = Layout::from_size_align(bytes, PAGE)
            .map_err(|_| DeviceError::TooLong { length: mtu as u64, limit: u64::from(u32::MAX) })?;
        // SAFETY: the layout has a length above zero, being a multiple of a page that holds `mtu`.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) });
        let base = base.unwrap_or_else(|| handle_alloc_error(layout));
        // SAFETY: the packets lie within the slab.
        let free = (0..SLAB).rev().map(|place| unsafe { base.add(place * stride) }).collect();
        let mut slab = Self { base, layout, free: Mutex::new(free), registration: None };
        // SAFETY: the memory stays until the drop of the slab, which first ends the registration;
        // the interface writes what is posted to it alone.
        let registered = unsafe { Registration::new(domain, base, bytes, Access::default()) };
        slab.registration = Some(registered?);
        Ok(slab)
    }

    fn free(&self) -> MutexGuard<'_, Vec<NonNull<u8>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn packet(self: &Arc<Self>, mtu: u32) -> Option<Packet> {
        let at = self.free().pop()?;
        let local_key = self.registration.as_ref().map_or(0, Registration::local_key);
        Some(Packet { at, length: mtu, local_key, slab: Arc::clone(self) })
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let ended = self.registration.take().is_none_or(Registration::end);
        // What the interface keeps is left to it.
        if ended {
            // SAFETY: allocated with this layout, and no packet is left, as each holds the slab.
            unsafe { dealloc(self.base.as_ptr(), self.layout) };
        }
    }
}

/// The slabs that a queue pair has packets of.
#[derive(Debug)]
pub(crate) struct PacketPool {
    domain: Arc<ProtectionDomain>,
    mtu: u32,
    slabs: Vec<Weak<Slab>>,
}

impl PacketPool {
    pub(crate) fn new(domain: Arc<ProtectionDomain>, mtu: usize) -> Self {
        Self { domain, mtu: u32::try_from(mtu).unwrap_or(u32::MAX), slabs: Vec::new() }
    }

    /// A packet out of a slab that has one, or of a new one.
    pub(crate) fn allocate(&mut self) -> Result<Packet, DeviceError> {
        // The newest first: while the stock grows, that is the one with room.
        let slabs = self.slabs.iter().rev().filter_map(Weak::upgrade);
        if let Some(packet) = slabs.filter_map(|slab| slab.packet(self.mtu)).next() {
            return Ok(packet);
        }
        self.slabs.retain(|slab| slab.strong_count() > 0);
        let slab = Arc::new(Slab::new(&self.domain, self.mtu as usize)?);
        self.slabs.push(Arc::downgrade(&slab));
        slab.packet(self.mtu).ok_or(DeviceError::LimitReached { object: "packet", limit: SLAB })
    }
}
