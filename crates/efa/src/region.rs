//! Memory registered with the device.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bitflags::bitflags;
use efa_device::{
    Access, CopySource, CopyTarget, DeviceError, ForeignMemory, Region as _, RegisterError,
};

use crate::completion::StartError;
use crate::device::AnyRegion;
use crate::domain::Domain;
use crate::keys::{Keys, ReservedKey};
use crate::registrations::Lease;

/// Memory registered with the device of a domain (`fi_mr`). Clones are handles to the same region. It is
/// deregistered when the last handle is dropped; an operation that uses it holds one.
///
/// Peers may read and write it at any time, so a program copies from and to it with
/// [`read`](Self::read) and [`write`](Self::write).
#[derive(Clone)]
pub struct MemoryRegion(Arc<Shared>);

struct Shared {
    region: AnyRegion,
    domain: Domain,
    local: LocalAccess,
    /// Of a domain of [`RegistrationMode::Scalable`](crate::RegistrationMode).
    key: Option<ReservedKey>,
    context: AtomicU64,
    /// Of a region from the registration cache: returns it there when the last handle is dropped.
    _lease: Option<Lease>,
}

bitflags! {
    /// What operations of this process may do with a memory region. Any other is refused
    /// ([`StartError::Access`](crate::StartError::Access)). [`Access`] is what peers may do.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct LocalAccess: u8 {
        /// Messages are sent from it (`FI_SEND`).
        const SEND = 1;
        /// Messages are received into it (`FI_RECV`).
        const RECV = 1 << 1;
        /// Reads, and previous values of atomics, go into it (`FI_READ`).
        const READ = 1 << 2;
        /// Writes are made from it (`FI_WRITE`).
        const WRITE = 1 << 3;
    }
}

impl Default for LocalAccess {
    /// Everything.
    fn default() -> Self {
        Self::all()
    }
}

/// Prints names: `SEND | RECV`.
impl fmt::Display for LocalAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

/// A range that is not within its region.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {} to {} are not within a region of {length} bytes", range.start, range.end)]
#[non_exhaustive]
pub struct OutOfRegion {
    /// The range.
    pub range: Range<usize>,
    /// Length of the region in bytes.
    pub length: usize,
}

impl MemoryRegion {
    pub(crate) fn register(
        domain: &Domain,
        memory: Box<[u8]>,
        access: Access,
        local: LocalAccess,
    ) -> Result<Self, RegisterError> {
        let region = domain.register_with_room(memory, access)?;
        let key = domain.keys().map(Keys::any);
        Ok(Self::new(domain, region, local, key, None))
    }

    pub(crate) fn allocate(
        domain: &Domain,
        length: usize,
        access: Access,
        local: LocalAccess,
    ) -> Result<Self, DeviceError> {
        let region = domain.with_room(|| domain.device().allocate(length, access))?;
        Ok(Self::new(domain, region, local, domain.keys().map(Keys::any), None))
    }

    pub(crate) fn register_foreign(
        domain: &Domain,
        memory: &ForeignMemory,
        access: Access,
        local: LocalAccess,
    ) -> Result<Self, DeviceError> {
        let region = domain.with_room(|| domain.device().register_foreign(memory, access))?;
        Ok(Self::new(domain, region, local, domain.keys().map(Keys::any), None))
    }

    /// A region that is returned to the registration cache.
    pub(crate) fn leased(domain: &Domain, region: AnyRegion, lease: Lease) -> Self {
        let key = domain.keys().map(Keys::any);
        Self::new(domain, region, LocalAccess::all(), key, Some(lease))
    }

    pub(crate) fn new(
        domain: &Domain,
        region: AnyRegion,
        local: LocalAccess,
        key: Option<ReservedKey>,
        lease: Option<Lease>,
    ) -> Self {
        if let Some(key) = &key {
            key.set(region.clone());
        }
        let (domain, context) = (domain.clone(), AtomicU64::new(0));
        Self(Arc::new(Shared { region, domain, local, key, context, _lease: lease }))
    }

    /// The first `length` bytes, which must exist.
    pub(crate) fn first(self, length: usize) -> RegionSlice {
        RegionSlice { region: self, range: 0..length }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.region.length()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key that peers need for access (`fi_mr_key`). It fits
    /// [`DomainAttributes::mr_key_size`](crate::DomainAttributes::mr_key_size) bytes.
    #[must_use]
    pub fn key(&self) -> u64 {
        match &self.0.key {
            Some(key) => key.key(),
            None => self.0.region.remote_key().into(),
        }
    }

    /// The address of the first byte, for operations of peers; 0 in a domain of
    /// [`RegistrationMode::Scalable`](crate::RegistrationMode).
    #[must_use]
    pub fn remote_address(&self) -> u64 {
        match &self.0.key {
            Some(_) => 0,
            None => self.0.region.remote_address(),
        }
    }

    /// Whether receivers on this host may have the memory mapped, so that messages from it are read from
    /// [`mapped_reads_pay_from`](crate::DomainAttributes::mapped_reads_pay_from) bytes on:
    /// [`Domain::allocate`](crate::Domain::allocate) gives such memory on the shm link.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.0.region.is_mapped()
    }

    /// What peers may do.
    #[must_use]
    pub fn access(&self) -> Access {
        self.0.region.access()
    }

    /// What operations of this process may do.
    #[must_use]
    pub fn local_access(&self) -> LocalAccess {
        self.0.local
    }

    /// Copies bytes from `offset` on; returns their number, which is less than asked for at the end of
    /// the region.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        self.0.region.read(offset, into)
    }

    /// Overwrites bytes from `offset` on; returns their number, which is less than given at the end of
    /// the region.
    pub fn write(&self, offset: usize, from: &[u8]) -> usize {
        self.0.region.write(offset, from)
    }

    /// A range of bytes, as buffer of an operation.
    ///
    /// # Errors
    /// The range is not within the region.
    pub fn slice(&self, range: Range<usize>) -> Result<RegionSlice, OutOfRegion> {
        if range.start > range.end || range.end > self.len() {
            return Err(OutOfRegion { range, length: self.len() });
        }
        Ok(RegionSlice { region: self.clone(), range })
    }

    /// Whether both are handles to the same region.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The region with a number of the program ([`Object::context`](crate::Object::context)), which all its handles
    /// have from then on.
    #[must_use]
    pub fn with_context(self, context: u64) -> Self {
        self.0.context.store(context, Ordering::Relaxed);
        self
    }

    /// Ends the registration of memory that somebody else owns ([`Domain::register_foreign`]) although other handles may
    /// exist, in slices or operations under way (`fi_mr_close`): those of this process fail or move no more bytes, and so
    /// do accesses of peers. Its key is free.
    ///
    /// Returns whether nothing accesses the memory any more. If not, a thread, or another process of the host, doesn't go
    /// on in the middle of an access; or the memory belongs to the region. In the latter case nothing is changed: peers
    /// access it until the last handle of the region is dropped.
    #[must_use = "after `false`, peers may still access the memory"]
    pub fn revoke(&self) -> bool {
        let is_revoked = self.0.region.revoke();
        if let (true, Some(key)) = (is_revoked, &self.0.key) {
            key.free();
        }
        is_revoked
    }

    pub(crate) fn user_context(&self) -> u64 {
        self.0.context.load(Ordering::Relaxed)
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.0.domain
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("len", &self.len())
            .field("key", &self.key())
            .field("access", &self.access())
            .finish()
    }
}

/// A range of bytes of a memory region, as buffer of an operation.
///
/// Slices may overlap. Bytes that several operations write are those of the last.
#[derive(Clone, Debug)]
pub struct RegionSlice {
    region: MemoryRegion,
    range: Range<usize>,
}

impl RegionSlice {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// The range in the region.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// A copy of the bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(0, bytes.as_mut_slice().into());
        bytes
    }

    /// Whether an operation of a domain that needs this access can use it.
    #[inline]
    pub(crate) fn check_use(&self, domain: &Domain, wanted: LocalAccess) -> Result<(), StartError> {
        if !self.region.domain().is(domain) {
            return Err(StartError::OtherDomain);
        }
        let granted = self.region.local_access();
        match granted.contains(wanted) {
            true => Ok(()),
            false => Err(StartError::Access { wanted, granted }),
        }
    }

    #[inline]
    pub(crate) fn copy_to(&self, offset: usize, into: CopyTarget<'_>) {
        let mut into = into.first(self.len().saturating_sub(offset));
        let at = self.range.start.saturating_add(offset);
        let copied = self.region.0.region.copy_to(at, into.reborrow());
        // The region was revoked. What is in the space may be for somebody else.
        if copied < into.len() {
            into.clear_from(copied);
        }
    }

    #[inline]
    pub(crate) fn copy_from(&self, offset: usize, from: CopySource<'_>) {
        let from = from.first(self.len().saturating_sub(offset));
        self.region.0.region.copy_from(self.range.start.saturating_add(offset), from);
    }

    /// Region, offset and length, for the device.
    pub(crate) fn location(&self) -> (&AnyRegion, usize, usize) {
        (&self.region.0.region, self.range.start, self.range.len())
    }

    pub(crate) fn truncate(&mut self, length: usize) {
        self.range.end = self.range.end.min(self.range.start.saturating_add(length));
    }

    pub(crate) fn split_to(&mut self, at: usize) -> Self {
        let middle = self.range.start + at.min(self.len());
        let first = Self { region: self.region.clone(), range: self.range.start..middle };
        self.range.start = middle;
        first
    }
}

impl PartialEq for RegionSlice {
    /// Whether both are the same range of the same region.
    fn eq(&self, other: &Self) -> bool {
        self.region.key() == other.region.key()
            && self.region.domain().is(other.region.domain())
            && self.range == other.range
    }
}

impl Eq for RegionSlice {}
