//! Registered memory.

use std::fmt;

use crate::copies::{CopySource, CopyTarget};
use crate::error::DeviceError;

/// A range of a local memory region.
#[derive(Clone, Debug)]
pub struct RegionRange<R> {
    /// The region.
    pub region: R,
    /// Offset of its first byte.
    pub offset: usize,
    /// Its length in bytes.
    pub length: usize,
}

impl<R: Region> RegionRange<R> {
    /// The same in the terms of remote interfaces.
    pub fn remote(&self) -> RemoteRange {
        RemoteRange::of(&self.region, self.offset, self.length)
    }

    /// Checks that all of it is in the region.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRegion`].
    pub fn check(&self) -> Result<(), DeviceError> {
        let Self { offset, length, .. } = *self;
        let region = self.region.length();
        let fits = offset.checked_add(length).is_some_and(|end| end <= region);
        if fits { Ok(()) } else { Err(DeviceError::OutOfRegion { offset, length, region }) }
    }
}

/// A range of a local memory region, in the terms of remote interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRange {
    /// Its first byte.
    pub memory: RemoteMemory,
    /// Its length in bytes.
    pub length: usize,
    /// What the region grants.
    pub access: Access,
}

impl RemoteRange {
    /// `length` bytes of a region from `offset` on.
    pub fn of(region: &impl Region, offset: usize, length: usize) -> Self {
        let address = region.remote_address().wrapping_add(offset as u64);
        let memory = RemoteMemory { address, key: region.remote_key() };
        Self { memory, length, access: region.access() }
    }
}

/// Memory of a remote interface, in the terms of that interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// Address of the first byte.
    pub address: u64,
    /// Key of its region.
    pub key: u32,
}

/// Remote access to a memory region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access {
    /// Remote interfaces may read the region.
    pub remote_read: bool,
    /// Remote interfaces may write the region.
    pub remote_write: bool,
}

/// A handle of registered memory, which stays registered until the last clone is dropped.
///
/// Remote interfaces may read and write the memory at any time, so it is accessed by copies, never by
/// reference.
pub trait Region: Clone + fmt::Debug {
    /// Length in bytes.
    fn length(&self) -> usize;
    /// Address of the first byte in RDMA requests.
    fn remote_address(&self) -> u64;
    /// The key in RDMA requests.
    fn remote_key(&self) -> u32;
    /// The remote access that was granted.
    fn access(&self) -> Access;
    /// Copies bytes out, from `offset` on. Returns their number.
    fn read(&self, offset: usize, into: &mut [u8]) -> usize;
    /// Copies bytes in, from `offset` on. Returns the number that fitted.
    fn write(&self, offset: usize, from: &[u8]) -> usize;
    /// Copies bytes from `offset` on to `into`, as many as there are and fit. Returns their number.
    fn copy_to(&self, offset: usize, mut into: CopyTarget<'_>) -> usize {
        into.fill_by(|at, slice| self.read(offset.saturating_add(at), slice))
    }
    /// Copies `from` to `offset`, as many bytes as fit. Returns their number.
    fn copy_from(&self, offset: usize, from: CopySource<'_>) -> usize {
        from.pass_to(|at, slice| self.write(offset.saturating_add(at), slice))
    }
    /// Copies `bytes.len()` bytes out, from `offset` on, calls `change` with them, and copies them back if that returns
    /// true. Returns their number: 0, without a call, if there are fewer. It is atomic with respect to other methods of
    /// the region, but not to remote interfaces; with respect to atomics of the program too if the memory is
    /// [foreign](crate::ForeignMemory) and the bytes are an aligned integer, for which `change` may be called again.
    fn update(
        &self,
        offset: usize,
        bytes: &mut [u8],
        change: impl FnMut(&mut [u8]) -> bool,
    ) -> usize;
    /// Whether remote interfaces may have it mapped and copy it themselves, so that
    /// [`mapped_reads_pay_from`](crate::DeviceAttributes::mapped_reads_pay_from) applies: memory that some devices
    /// [allocate](crate::Device::allocate).
    fn is_mapped(&self) -> bool {
        false
    }
    /// Ends the registration and returns the memory.
    ///
    /// # Errors
    /// The handle itself, if a clone of it exists, perhaps in an operation of the device, if a remote
    /// interface doesn't finish an access that it has begun, if somebody else owns the memory, or if the device
    /// [allocated](crate::Device::allocate) it where no box can have it.
    fn reclaim(self) -> Result<Box<[u8]>, Self>;
    /// Ends the registration of [lent](crate::QueuePair::register_lent) or [foreign](crate::Device::register_foreign) memory although
    /// clones of the handle may exist, perhaps in operations of the device, which then fail. Returns whether nothing
    /// accesses the memory any more: it is false if a thread, or another process, doesn't go on in the middle of an
    /// access, and always for memory that belongs to the region, which is the default.
    fn revoke(&self) -> bool {
        false
    }
}

/// The region type of a device without RDMA: it has no values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRegion {}

impl Region for NoRegion {
    fn length(&self) -> usize {
        match *self {}
    }
    fn remote_address(&self) -> u64 {
        match *self {}
    }
    fn remote_key(&self) -> u32 {
        match *self {}
    }
    fn access(&self) -> Access {
        match *self {}
    }
    fn read(&self, _: usize, _: &mut [u8]) -> usize {
        match *self {}
    }
    fn write(&self, _: usize, _: &[u8]) -> usize {
        match *self {}
    }
    fn update(&self, _: usize, _: &mut [u8], _: impl FnMut(&mut [u8]) -> bool) -> usize {
        match *self {}
    }
    fn reclaim(self) -> Result<Box<[u8]>, Self> {
        match self {}
    }
}

/// A registration that failed; the memory comes back.
#[derive(thiserror::Error)]
#[error("registering {} bytes of memory failed: {error}", memory.len())]
pub struct RegisterError {
    /// The reason.
    pub error: DeviceError,
    /// The memory.
    pub memory: Box<[u8]>,
}

/// Prints the memory's length, and none of its bytes.
impl fmt::Debug for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisterError")
            .field("error", &self.error)
            .field("length", &self.memory.len())
            .finish()
    }
}
