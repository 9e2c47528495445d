//! Registered memory.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use efa_device::{Access, DeviceError, Region as _};

use crate::device::AnyRegion;
use crate::domain::Domain;
use crate::registrations::Lease;

/// Memory that is registered with the device of a domain, where it stays until the last handle is
/// dropped. An operation holds a handle as well, so no memory is taken from under it.
///
/// Remote interfaces may read and write it at any time, so it is reached by copying.
#[derive(Clone)]
pub struct MemoryRegion(Arc<Shared>);

struct Shared {
    region: AnyRegion,
    domain: Domain,
    /// Brings it back to the domain's cache, if it is of that, when the last handle is dropped.
    _lease: Option<Lease>,
}

/// A registration that was refused; the memory comes back.
#[derive(Debug, thiserror::Error)]
#[error("memory of {} bytes not registered: {error}", memory.len())]
pub struct RegisterError {
    /// Why.
    #[source]
    pub error: DeviceError,
    /// The memory.
    pub memory: Box<[u8]>,
}

/// A part of a region that isn't in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {} to {} are not all in a region of {length} bytes", range.start, range.end)]
pub struct OutOfRegion {
    /// What was asked for.
    pub range: Range<usize>,
    /// Length of the region in bytes.
    pub length: usize,
}

impl MemoryRegion {
    pub(crate) fn register(
        domain: &Domain,
        memory: Box<[u8]>,
        access: Access,
    ) -> Result<Self, RegisterError> {
        match domain.device().register(memory, access) {
            Ok(region) => Ok(Self::new(domain, region, None)),
            Err(efa_device::RegisterError { error, memory }) => {
                Err(RegisterError { error, memory })
            }
        }
    }

    /// One that goes back to the domain's cache.
    pub(crate) fn leased(domain: &Domain, region: AnyRegion, lease: Lease) -> Self {
        Self::new(domain, region, Some(lease))
    }

    fn new(domain: &Domain, region: AnyRegion, lease: Option<Lease>) -> Self {
        Self(Arc::new(Shared { region, domain: domain.clone(), _lease: lease }))
    }

    /// Its first bytes, of which there are as many.
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

    /// The key that remote endpoints present; it fits
    /// [`DomainAttributes::mr_key_size`](crate::DomainAttributes::mr_key_size) bytes.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.0.region.remote_key().into()
    }

    /// The address of the first byte as remote endpoints name it.
    #[must_use]
    pub fn remote_address(&self) -> u64 {
        self.0.region.remote_address()
    }

    /// What remote endpoints may do.
    #[must_use]
    pub fn access(&self) -> Access {
        self.0.region.access()
    }

    /// Copies bytes out, from `offset` on; gives how many there were.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        self.0.region.read(offset, into)
    }

    /// Copies bytes in, from `offset` on; gives how many fitted.
    pub fn write(&self, offset: usize, from: &[u8]) -> usize {
        self.0.region.write(offset, from)
    }

    /// A part of it, to be used as buffer of an operation.
    ///
    /// # Errors
    /// It doesn't lie in the region.
    pub fn slice(&self, range: Range<usize>) -> Result<RegionSlice, OutOfRegion> {
        if range.start > range.end || range.end > self.len() {
            return Err(OutOfRegion { range, length: self.len() });
        }
        Ok(RegionSlice { region: self.clone(), range })
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

/// A part of a memory region, as buffer of an operation.
///
/// Two operations may be given the same bytes; what they hold then depends on which comes last.
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

    /// The region it is of.
    #[must_use]
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Where it lies in the region.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// A copy of the bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.read(0, &mut bytes);
        bytes
    }

    // Out of line, as `write`: buffers that are no regions don't share their instructions.
    #[inline(never)]
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        let count = into.len().min(self.len().saturating_sub(offset));
        self.region.read(self.range.start.saturating_add(offset), &mut into[..count]);
    }

    #[inline(never)]
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        let count = from.len().min(self.len().saturating_sub(offset));
        self.region.write(self.range.start.saturating_add(offset), &from[..count]);
    }

    /// Where it is, for the device: region, offset and length.
    pub(crate) fn place(&self) -> (&AnyRegion, usize, usize) {
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
    /// Whether both are the same part of the same region.
    fn eq(&self, other: &Self) -> bool {
        self.region.key() == other.region.key()
            && self.region.domain().is(other.region.domain())
            && self.range == other.range
    }
}

impl Eq for RegionSlice {}
