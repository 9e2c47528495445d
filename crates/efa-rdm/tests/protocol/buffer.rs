//! A buffer as an application has it, and memory that it offers.

use efa_device::{Access, QueuePair, Region, RegionRange, RegisterError};
use efa_rdm::Payload;
use efa_sim::SoftRegion;

use crate::world::Net;

/// A vector that is registered for its operation if the device lets it.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    pub(crate) bytes: Vec<u8>,
    lent: Option<SoftRegion>,
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, lent: None }
    }
}

fn place_of(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

impl Payload<SoftRegion> for Buffer {
    fn length(&self) -> u64 {
        self.lent.as_ref().map_or(self.bytes.len(), Region::length) as u64
    }
    fn read(&self, offset: u64, into: &mut [u8]) {
        match &self.lent {
            Some(region) => assert_eq!(region.read(place_of(offset), into), into.len()),
            None => Payload::<SoftRegion>::read(&self.bytes, offset, into),
        }
    }
    fn write(&mut self, offset: u64, from: &[u8]) {
        match &self.lent {
            Some(region) => assert_eq!(region.write(place_of(offset), from), from.len()),
            None => Payload::<SoftRegion>::write(&mut self.bytes, offset, from),
        }
    }
    fn split_to(&mut self, at: u64) -> Self {
        Payload::<SoftRegion>::split_to(&mut self.bytes, at).into()
    }
    fn registered(&self) -> Option<RegionRange<SoftRegion>> {
        let region = self.lent.clone()?;
        let length = region.length();
        Some(RegionRange { region, offset: 0, length })
    }
    fn register(&mut self, device: &impl QueuePair<Region = SoftRegion>, access: Access) -> bool {
        match device.register(std::mem::take(&mut self.bytes).into(), access) {
            Ok(region) => self.lent = Some(region),
            Err(RegisterError { memory, .. }) => self.bytes = memory.into(),
        }
        self.lent.is_some()
    }
    fn deregister(&mut self) {
        let Some(region) = self.lent.take() else { return };
        self.bytes = match region.reclaim() {
            Ok(memory) => memory.into(),
            Err(region) => {
                let mut copy = vec![0; region.length()];
                region.read(0, &mut copy);
                copy
            }
        };
    }
}

/// Memory of an end that peers may read and write; the device may refuse a few times.
pub(crate) fn expose(world: &Net<Buffer>, end: usize, bytes: Vec<u8>) -> SoftRegion {
    let access = Access { remote_read: true, remote_write: true };
    let mut memory = bytes.into_boxed_slice();
    for _ in 0..1_000 {
        match world.ends[end].endpoint.queue_pair().register(memory, access) {
            Ok(region) => return region,
            Err(refused) => memory = refused.memory,
        }
    }
    panic!("a thousand refusals in a row");
}
