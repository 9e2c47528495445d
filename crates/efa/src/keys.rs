//! Memory regions by keys that the application chooses (`FI_MR_SCALABLE`).
//!
//! ```text
//!   Domain::reserve(key, length) ─► Reservation ── back(memory) ─┐
//!   Domain::register_keyed(memory, key) ─────────────────────────┴► MemoryRegion, from offset 0 on
//! ```

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use efa_device::{Access, DeviceError, ForeignMemory};
use efa_rdm::KeyedRegions;
use parking_lot::Mutex;

use crate::device::{AnyRegion, ConcreteRegion};
use crate::domain::Domain;
use crate::region::{LocalAccess, MemoryRegion};

/// Why a key can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Another region has it (`FI_ENOKEY`).
    #[error("the key {key:#x} is taken")]
    Taken {
        /// The key.
        key: u64,
    },
    /// The domain's keys are chosen by the device ([`RegistrationMode::Basic`](crate::RegistrationMode)).
    #[error("the domain's keys are chosen by the device")]
    NotScalable,
    /// The memory doesn't have the length that was reserved.
    #[error("{length} bytes for a key that was reserved for {reserved}")]
    WrongLength {
        /// Bytes of the memory.
        length: usize,
        /// Bytes that were reserved.
        reserved: usize,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A registration by key that failed; the memory comes back.
#[derive(thiserror::Error)]
#[error("registering {} bytes of memory failed: {error}", memory.len())]
pub struct KeyedRegisterError {
    /// Why.
    pub error: KeyError,
    /// The memory.
    pub memory: Box<[u8]>,
}

/// Prints the memory's length, and none of its bytes.
impl fmt::Debug for KeyedRegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedRegisterError")
            .field("error", &self.error)
            .field("length", &self.memory.len())
            .finish()
    }
}

/// The keys of a domain, and the memory of those that have some.
#[derive(Debug)]
pub(crate) struct Keys {
    regions: Mutex<HashMap<u64, Option<AnyRegion>>>,
    next: Mutex<u64>,
}

/// Keys that this crate chooses, for memory that was registered without one.
const OWN: u64 = 1 << 63;

impl Default for Keys {
    fn default() -> Self {
        Self { regions: Mutex::default(), next: Mutex::new(OWN) }
    }
}

impl Keys {
    fn reserve(self: &Arc<Self>, key: u64) -> Result<ReservedKey, KeyError> {
        match self.regions.lock().entry(key) {
            Entry::Occupied(_) => Err(KeyError::Taken { key }),
            Entry::Vacant(entry) => {
                entry.insert(None);
                Ok(ReservedKey { keys: self.clone(), key, is_free: AtomicBool::new(false) })
            }
        }
    }

    /// A key that nobody has.
    pub(crate) fn any(self: &Arc<Self>) -> ReservedKey {
        loop {
            let mut next = self.next.lock();
            let key = *next;
            *next = key.wrapping_add(1).max(OWN);
            drop(next);
            if let Ok(reserved) = self.reserve(key) {
                return reserved;
            }
        }
    }
}

impl<R: ConcreteRegion> KeyedRegions<R> for Keys {
    fn find(&self, key: u64) -> Option<(R, u64)> {
        let region = self.regions.lock().get(&key)?.clone()?;
        Some((R::from_any(region)?, 0))
    }
}

/// A key that is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct ReservedKey {
    keys: Arc<Keys>,
    key: u64,
    is_free: AtomicBool,
}

impl ReservedKey {
    /// Frees the key once: it may be another's afterwards.
    pub(crate) fn free(&self) {
        if !self.is_free.swap(true, Ordering::AcqRel) {
            let region = self.keys.regions.lock().remove(&self.key);
            // It is deregistered without the lock.
            drop(region);
        }
    }

    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// Lets peers access this memory by the key.
    pub(crate) fn set(&self, region: AnyRegion) {
        self.keys.regions.lock().insert(self.key, Some(region));
    }
}

impl Drop for ReservedKey {
    fn drop(&mut self) {
        self.free();
    }
}

/// A key that has no memory yet. Peers' accesses touch nothing and are an
/// [event](crate::Event::AccessRefused); they fail at the peer where the protocol has an answer. Dropping it frees
/// the key.
#[must_use = "dropping it frees the key"]
pub struct Reservation {
    domain: Domain,
    key: ReservedKey,
    length: usize,
}

impl Reservation {
    /// The key.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.key.key()
    }

    /// The length in bytes of the memory to come.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// What peers need for access, as [`MemoryRegion::remote`] of the memory to come.
    #[must_use]
    pub fn remote(&self) -> crate::rma::RemoteMemory {
        let (length, key) = (self.length as u64, self.key.key());
        crate::rma::RemoteMemory { address: 0, length, key }
    }

    /// Gives the key its memory.
    ///
    /// # Errors
    /// The memory doesn't have the reserved length, or a limit of the device is reached. The memory comes back;
    /// the key is free.
    pub fn back(
        self,
        memory: impl Into<Box<[u8]>>,
        access: Access,
    ) -> Result<MemoryRegion, KeyedRegisterError> {
        let Self { domain, key, length: reserved } = self;
        let memory = memory.into();
        if memory.len() != reserved {
            let error = KeyError::WrongLength { length: memory.len(), reserved };
            return Err(KeyedRegisterError { error, memory });
        }
        register(&domain, key, memory, access)
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("key", &self.key())
            .field("length", &self.length)
            .finish()
    }
}

fn register(
    domain: &Domain,
    key: ReservedKey,
    memory: Box<[u8]>,
    access: Access,
) -> Result<MemoryRegion, KeyedRegisterError> {
    match domain.register_with_room(memory, access) {
        Ok(region) => Ok(MemoryRegion::new(domain, region, LocalAccess::all(), Some(key), None)),
        Err(efa_device::RegisterError { error, memory }) => {
            Err(KeyedRegisterError { error: error.into(), memory })
        }
    }
}

impl Domain {
    /// Registers memory under a key of the application's choosing, in a domain of
    /// [`RegistrationMode::Scalable`](crate::RegistrationMode) (`fi_mr_reg` with `requested_key`). Peers use offsets from 0 on.
    ///
    /// ```
    /// use efa::{Access, Fabric, KeyError, LocalOptions, RegistrationMode};
    /// let domain = Fabric::local(LocalOptions::default()).domain()?;
    /// let domain = domain.with_registration(RegistrationMode::Scalable);
    /// let access = Access { remote_read: true, remote_write: true };
    /// let region = domain.register_keyed(vec![0; 100], 0xfeed_0000_0001, access)?;
    /// assert_eq!((region.key(), region.remote_address()), (0xfeed_0000_0001, 0));
    /// let again = domain.register_keyed(vec![0; 100], 0xfeed_0000_0001, access).unwrap_err();
    /// assert_eq!(again.error, KeyError::Taken { key: 0xfeed_0000_0001 });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The key is taken, the domain isn't scalable, or a limit of the device is reached. The memory comes back.
    pub fn register_keyed(
        &self,
        memory: impl Into<Box<[u8]>>,
        key: u64,
        access: Access,
    ) -> Result<MemoryRegion, KeyedRegisterError> {
        let memory = memory.into();
        match self.reserved(key) {
            Ok(key) => register(self, key, memory, access),
            Err(error) => Err(KeyedRegisterError { error, memory }),
        }
    }

    /// Registers memory that somebody else owns under a key of the application's choosing; see
    /// [`register_foreign`](Self::register_foreign).
    ///
    /// # Errors
    /// As for [`register_keyed`](Self::register_keyed).
    pub fn register_foreign_keyed(
        &self,
        memory: &ForeignMemory,
        key: u64,
        remote: Access,
        local: LocalAccess,
    ) -> Result<MemoryRegion, KeyError> {
        let key = self.reserved(key)?;
        let region = self.with_room(|| self.device().register_foreign(memory, remote))?;
        Ok(MemoryRegion::new(self, region, local, Some(key), None))
    }

    /// Reserves a key for memory of this length that comes later.
    ///
    /// # Errors
    /// The key is taken, or the domain isn't scalable.
    pub fn reserve(&self, key: u64, length: usize) -> Result<Reservation, KeyError> {
        Ok(Reservation { domain: self.clone(), key: self.reserved(key)?, length })
    }

    fn reserved(&self, key: u64) -> Result<ReservedKey, KeyError> {
        self.keys().ok_or(KeyError::NotScalable)?.reserve(key)
    }
}
