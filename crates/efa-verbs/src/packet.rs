//! Packets: buffers of the interface's MTU, in slabs that are registered as a whole.
//!
//! ```text
//!   slab  ┌────────┬────────┬────────┬─ ─ ─      one ibv_reg_mr for all of them
//!         │ packet │ packet │ packet │
//!         └────────┴────────┴────────┴─ ─ ─
//!             ▲ owned by the engine, or by the queue pair while it is posted
//! ```
//!
//! A slab is freed with its last packet. Packets are allocated and dropped when the engine's pool of
//! them grows and shrinks, which takes the lock of a slab. Posts and polls only move them.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use efa_device::{Access, DeviceError};

use crate::domain::ProtectionDomain;
use crate::memory::Registration;

/// Packets of a slab.
const SLAB: usize = 16;
/// Bytes of a page, the unit in which the kernel pins memory.
const PAGE: usize = 4096;
/// Bytes of a cache line. Packets begin at multiples of it, so that no two share one.
const LINE: usize = 64;

/// A packet buffer that is registered with an EFA interface.
///
/// It is a single pointer, as it is moved some ten times from one post to the next.
pub struct Packet(Box<Place>);

/// Where the bytes of a packet are.
struct Place {
    at: NonNull<u8>,
    length: u32,
    local_key: u32,
    slab: Arc<Slab>,
}

// SAFETY: a packet owns its bytes as a box does, and the slab it returns them to has a lock.
unsafe impl Send for Place {}
// SAFETY: by a shared reference its bytes are only read.
unsafe impl Sync for Place {}

impl Packet {
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        self.0.at.as_ptr().addr() as u64
    }

    #[inline]
    pub(crate) fn local_key(&self) -> u32 {
        self.0.local_key
    }

    /// Whether it is registered in this domain.
    pub(crate) fn belongs_to(&self, domain: &Arc<ProtectionDomain>) -> bool {
        self.0
            .slab
            .registration
            .as_ref()
            .is_some_and(|registration| registration.belongs_to(domain))
    }

    #[inline]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.at.as_ptr()
    }
}

impl AsRef<[u8]> for Packet {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `at` is the begin of `length` initialized bytes of the slab that this packet alone
        // owns. The interface accesses them only while the packet is posted; then the queue pair owns
        // the packet and makes no reference to its bytes.
        unsafe { std::slice::from_raw_parts(self.0.at.as_ptr(), self.0.length as usize) }
    }
}

impl AsMut<[u8]> for Packet {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: the bytes of `as_ref`, and `&mut self` makes this the only reference to them.
        unsafe { std::slice::from_raw_parts_mut(self.0.at.as_ptr(), self.0.length as usize) }
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packet").field("at", &self.0.at).field("length", &self.0.length).finish()
    }
}

impl Drop for Packet {
    // Out of line, as most code that handles packets only moves them.
    #[inline(never)]
    fn drop(&mut self) {
        self.0.slab.lock_free().push(self.0.at);
    }
}

#[derive(Debug)]
struct Slab {
    base: NonNull<u8>,
    layout: Layout,
    free: Mutex<Vec<NonNull<u8>>>,
    /// Deregistered before the memory is freed.
    registration: Option<Registration>,
}

// SAFETY: any thread may free the memory, and any may deregister it.
unsafe impl Send for Slab {}
// SAFETY: by a shared reference only the list of free packets is changed, which has a lock.
unsafe impl Sync for Slab {}

impl Slab {
    fn new(domain: &Arc<ProtectionDomain>, mtu: usize) -> Result<Self, DeviceError> {
        let stride = mtu.max(1).next_multiple_of(LINE);
        let bytes = (stride * SLAB).next_multiple_of(PAGE);
        let layout = Layout::from_size_align(bytes, PAGE)
            .map_err(|_| DeviceError::TooLong { length: mtu as u64, limit: u64::from(u32::MAX) })?;
        // SAFETY: the size of the layout is not zero: a multiple of a page that holds 16 packets of at
        // least one byte.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) });
        let base = base.unwrap_or_else(|| handle_alloc_error(layout));
        // SAFETY: `index < SLAB`, and the allocation has at least `SLAB * stride` bytes.
        let free = (0..SLAB).rev().map(|index| unsafe { base.add(index * stride) }).collect();
        let mut slab = Self { base, layout, free: Mutex::new(free), registration: None };
        // SAFETY: the memory is freed in the drop of the slab, after it is deregistered. The interface
        // writes to posted packets only, of which no reference exists (see `Packet::as_ref`).
        let registered = unsafe { Registration::new(domain, base, bytes, true, Access::default()) };
        slab.registration = Some(registered?);
        Ok(slab)
    }

    fn lock_free(&self) -> MutexGuard<'_, Vec<NonNull<u8>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn packet(self: &Arc<Self>, mtu: u32) -> Option<Packet> {
        let at = self.lock_free().pop()?;
        let local_key = self.registration.as_ref().map_or(0, Registration::local_key);
        Some(Packet(Box::new(Place { at, length: mtu, local_key, slab: Arc::clone(self) })))
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let registration = self.registration.take().map_or(Ok(()), Registration::deregister);
        let deregistered = registration.map_err(std::mem::forget).is_ok();
        // Otherwise the memory is leaked, as the interface may still access it.
        if deregistered {
            // SAFETY: `base` was allocated with this layout. Each packet holds the slab, so none is left.
            unsafe { dealloc(self.base.as_ptr(), self.layout) };
        }
    }
}

/// The slabs that the packets of a queue pair are in.
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

    /// A packet of a slab that has a free one, or of a new slab.
    pub(crate) fn allocate(&mut self) -> Result<Packet, DeviceError> {
        // The newest first: while the pool grows, that is the one with free packets.
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
