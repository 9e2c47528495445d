//! Address vectors that processes share by name: one writes, others read.
//!
//! ```text
//!   writer: insert, remove ─► table in shared memory ─► reader: refresh, or the first send to an address
//! ```

use crate::address::Address;
use crate::address_vector::AddressVectorOptions;
use crate::error::Error;

#[cfg(feature = "sim")]
use efa_device::Gid;
#[cfg(feature = "sim")]
use efa_sim::address_table::{Entry, TableReader, TableWriter};
#[cfg(feature = "sim")]
use parking_lot::Mutex;

/// What an address vector shares with other processes.
#[derive(Debug)]
pub(crate) enum Named {
    Nothing,
    #[cfg(feature = "sim")]
    Writes(Mutex<TableWriter>),
    #[cfg(feature = "sim")]
    Reads(TableReader),
}

/// A peer of an address vector that another process writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    /// Of the change that put it there. A peer that was removed and inserted again has another one.
    pub(crate) change: u64,
    /// The upper half of its [`FiAddr`](crate::FiAddr).
    pub(crate) upper: u32,
    pub(crate) address: Address,
}

/// Slots of a named address vector for which no count was given.
#[cfg(feature = "sim")]
const USUAL: usize = 4096;

impl Named {
    #[cfg(feature = "sim")]
    pub(crate) fn open(options: &AddressVectorOptions) -> Result<Self, Error> {
        let Some(name) = &options.name else { return Ok(Self::Nothing) };
        if options.read_only {
            return Ok(Self::Reads(TableReader::open(name)?));
        }
        let count = if options.count == 0 { USUAL } else { options.count };
        Ok(Self::Writes(Mutex::new(TableWriter::create(name, count)?)))
    }

    /// The table in shared memory is part of the software device.
    #[cfg(not(feature = "sim"))]
    pub(crate) fn open(options: &AddressVectorOptions) -> Result<Self, Error> {
        match &options.name {
            None => Ok(Self::Nothing),
            Some(name) => Err(crate::error::Wanted::AddressVectorName(name.clone()).into()),
        }
    }

    /// Most peers, if there is a limit of its own.
    pub(crate) fn capacity(&self) -> Option<usize> {
        match self {
            #[cfg(feature = "sim")]
            Self::Writes(writer) => Some(writer.lock().capacity()),
            _ => None,
        }
    }

    pub(crate) fn is_reader(&self) -> bool {
        match self {
            #[cfg(feature = "sim")]
            Self::Reads(_) => true,
            _ => false,
        }
    }

    /// Tells the readers what a slot holds.
    #[inline(always)]
    pub(crate) fn set(&self, index: u32, entry: impl FnOnce() -> Option<(u32, Address)>) {
        match self {
            #[cfg(feature = "sim")]
            Self::Writes(writer) => {
                let entry =
                    entry().map(|(upper, address)| Entry { upper, address: address.to_bytes() });
                writer.lock().set(index as usize, entry);
            }
            _ => {
                let _ = (index, entry);
            }
        }
    }

    /// What the writer has put into a slot.
    pub(crate) fn get(&self, index: u32) -> Option<Published> {
        match self {
            #[cfg(feature = "sim")]
            Self::Reads(reader) => {
                let (change, Entry { upper, address }) = reader.get(index as usize)?;
                let address = Address::from_bytes(address);
                // No address vector has an address of no interface; only the writer's memory can.
                (address.gid() != Gid::ZERO).then_some(Published { change, upper, address })
            }
            _ => {
                let _ = index;
                None
            }
        }
    }

    /// How many slots the writer may have used.
    pub(crate) fn used(&self) -> u32 {
        match self {
            #[cfg(feature = "sim")]
            Self::Reads(reader) => u32::try_from(reader.used()).unwrap_or(u32::MAX),
            _ => 0,
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;

    #[test]
    fn entry_with_a_gid_of_zeros_is_no_peer_for_readers() {
        let options = AddressVectorOptions::new().name(format!(
            "efa-test-zeros-{}-{:016x}",
            std::process::id(),
            fastrand::u64(..)
        ));
        let writer = Named::open(&options.clone().count(2)).unwrap();
        let reader = Named::open(&options.read_only()).unwrap();
        let mut bytes = [0; Address::SIZE];
        bytes[16] = 1;
        let nowhere = Address::from_bytes(bytes);
        bytes[0] = 1;
        let somewhere = Address::from_bytes(bytes);
        writer.set(0, || Some((0, nowhere)));
        writer.set(1, || Some((0, somewhere)));
        let published = reader.get(1).map(|peer| (peer.upper, peer.address));
        assert_eq!((reader.used(), reader.get(0), published), (2, None, Some((0, somewhere))));
    }
}
