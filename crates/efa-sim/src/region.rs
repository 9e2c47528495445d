//! Memory regions and the table of their keys, the same on every link.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use efa_device::{Access, DeviceError, Region, RegionRange, RegisterError, RemoteMemory};
use fastrand::Rng;

/// Registered memory of a software device.
///
/// The last clone that is dropped takes the registration and the memory with it.
#[derive(Clone, Debug)]
pub struct SoftRegion(Arc<Registered>);

#[derive(Debug)]
struct Registered {
    memory: Mutex<Box<[u8]>>,
    length: usize,
    address: u64,
    key: u32,
    access: Access,
    table: KeyTable,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.table.lock().regions.remove(&self.key);
    }
}

impl Registered {
    fn memory(&self) -> MutexGuard<'_, Box<[u8]>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The regions of a device by key. Clones are the same table.
#[derive(Clone, Debug)]
pub(crate) struct KeyTable(Arc<Mutex<Keys>>);

#[derive(Debug)]
struct Keys {
    limit: usize,
    max_size: u64,
    rng: Rng,
    next_address: u64,
    regions: BTreeMap<u32, Weak<Registered>>,
}

impl KeyTable {
    /// A table of at most `limit` regions of at most `max_size` bytes; keys are drawn from `rng`.
    pub(crate) fn new(limit: usize, max_size: u64, rng: Rng) -> Self {
        let regions = BTreeMap::new();
        Self(Arc::new(Mutex::new(Keys { limit, max_size, rng, next_address: 0x10_0000, regions })))
    }

    fn lock(&self) -> MutexGuard<'_, Keys> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn register(
        &self,
        memory: Box<[u8]>,
        access: Access,
    ) -> Result<SoftRegion, RegisterError> {
        let mut keys = self.lock();
        let length = memory.len();
        if length as u64 > keys.max_size {
            let error = DeviceError::TooLong { length: length as u64, limit: keys.max_size };
            return Err(RegisterError { error, memory });
        }
        if keys.regions.len() >= keys.limit {
            let error = DeviceError::LimitReached { object: "memory region", limit: keys.limit };
            return Err(RegisterError { error, memory });
        }
        // Drawn and not counted, so that a key of one device opens nothing on another.
        let key = loop {
            let key = keys.rng.u32(1..);
            if !keys.regions.contains_key(&key) {
                break key;
            }
        };
        let address = keys.next_address;
        let pages = (length as u64).div_ceil(4096).max(1);
        keys.next_address = address.saturating_add(pages.saturating_mul(4096));
        let memory = Mutex::new(memory);
        let table = self.clone();
        let region = Arc::new(Registered { memory, length, address, key, access, table });
        keys.regions.insert(key, Arc::downgrade(&region));
        Ok(SoftRegion(region))
    }

    /// The region that `key` names.
    pub(crate) fn find(&self, key: u32) -> Option<SoftRegion> {
        // The guard ends with this statement: the region could be the last handle, and dropping it
        // locks the table.
        let region = self.lock().regions.get(&key).and_then(Weak::upgrade);
        region.map(SoftRegion)
    }
}

impl SoftRegion {
    /// The part of this region that remote interfaces name so, if all of it lies in the region.
    pub(crate) fn part(&self, start: RemoteMemory, length: usize) -> Option<RegionRange<Self>> {
        let offset = start.address.checked_sub(self.0.address)?;
        let offset = usize::try_from(offset).ok()?;
        let part = RegionRange { region: self.clone(), offset, length };
        part.check().is_ok().then_some(part)
    }
}

/// Bytes that [`copy`] moves at a time.
const CHUNK: usize = 8192;

/// Copies a part of a region into a part of the same length, of the same region or another.
pub(crate) fn copy(from: &RegionRange<SoftRegion>, into: &RegionRange<SoftRegion>) {
    let mut chunk = [0; CHUNK];
    let mut done = 0;
    while done < from.length.min(into.length) {
        let chunk = &mut chunk[..CHUNK.min(from.length - done).min(into.length - done)];
        let count = from.region.read(from.offset + done, chunk);
        if count == 0 {
            return;
        }
        into.region.write(into.offset + done, &chunk[..count]);
        done += count;
    }
}

impl Region for SoftRegion {
    fn length(&self) -> usize {
        self.0.length
    }

    fn remote_address(&self) -> u64 {
        self.0.address
    }

    fn remote_key(&self) -> u32 {
        self.0.key
    }

    fn access(&self) -> Access {
        self.0.access
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let memory = self.0.memory();
        let from = memory.get(offset..).unwrap_or_default();
        let count = from.len().min(into.len());
        into[..count].copy_from_slice(&from[..count]);
        count
    }

    fn write(&self, offset: usize, from: &[u8]) -> usize {
        let mut memory = self.0.memory();
        let into = memory.get_mut(offset..).unwrap_or_default();
        let count = into.len().min(from.len());
        into[..count].copy_from_slice(&from[..count]);
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(limit: usize) -> KeyTable {
        KeyTable::new(limit, 10, Rng::with_seed(1))
    }

    fn memory(length: usize) -> Box<[u8]> {
        vec![0; length].into()
    }

    #[test]
    fn limits_give_the_memory_back() {
        let table = table(1);
        let long = table.register(memory(11), Access::default()).unwrap_err();
        assert_eq!(long.error, DeviceError::TooLong { length: 11, limit: 10 });
        assert_eq!(long.memory.len(), 11);
        let region = table.register(memory(10), Access::default()).unwrap();
        let clone = region.clone();
        drop(region);
        let second = table.register(memory(3), Access::default()).unwrap_err();
        let limit_reached = DeviceError::LimitReached { object: "memory region", limit: 1 };
        assert_eq!((second.error, second.memory.len()), (limit_reached, 3));
        drop(clone);
        table.register(second.memory, Access::default()).unwrap();
    }

    #[test]
    fn a_key_finds_its_region_while_that_lives() {
        let table = table(2);
        let access = Access { remote_read: true, remote_write: false };
        let region = table.register(memory(4), access).unwrap();
        let other = table.register(memory(4), access).unwrap();
        let (key, address) = (region.remote_key(), region.remote_address());
        assert_ne!((key, address), (other.remote_key(), other.remote_address()));
        let found = table.find(key).unwrap();
        region.write(0, b"abcd");
        drop(region);
        let mut bytes = [0; 4];
        assert_eq!((found.length(), found.access()), (4, access));
        assert_eq!((found.read(0, &mut bytes), &bytes), (4, b"abcd"));
        drop(found);
        assert!(table.find(key).is_none());
    }

    #[test]
    fn copies_never_overrun() {
        let region = table(1).register(memory(4), Access::default()).unwrap();
        assert_eq!(region.write(2, b"abc"), 2);
        assert_eq!(region.write(4, b"abc"), 0);
        assert_eq!(region.write(usize::MAX, b"abc"), 0);
        let mut bytes = [9; 6];
        assert_eq!(region.read(0, &mut bytes), 4);
        assert_eq!(bytes, [0, 0, b'a', b'b', 9, 9]);
        assert_eq!(region.read(5, &mut bytes), 0);
        assert_eq!(region.read(usize::MAX, &mut bytes), 0);
    }
}
