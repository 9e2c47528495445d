//! Peers of several queue pairs: scalable endpoints, and their receive contexts.
//!
//! ```text
//!   FiAddr: │ context │ generation or 0 │ index │ ─► Table: address of the first queue pair
//!            upper bits                            Contexts: those of the others
//! ```

use efa_device::{DeviceError, Gid};

use super::{AddressVector, FiAddr, Shared, Table, announce, hash};
use crate::address::Address;
#[cfg(doc)]
use crate::address_vector::AddressVectorOptions;
use crate::scalable_address::ScalableAddress;

/// What an address vector has no space for.
const CONTEXT: &str = "receive context of a peer (AddressVectorOptions::receive_context_bits)";

/// There is no such receive context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContextError {
    /// The address vector has no such peer.
    #[error("no address {0} in the address vector")]
    UnknownAddress(FiAddr),
    /// The number is too great for the bits that are reserved.
    #[error("receive context {context}, {contexts} are possible")]
    TooGreat {
        /// The number.
        context: usize,
        /// How many contexts the reserved bits can name.
        contexts: usize,
    },
}

/// The queue pairs of a peer but the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Contexts {
    pub(super) addresses: Vec<Address>,
    /// How many of them have a receive context; the others only send.
    pub(super) receive: usize,
}

impl Contexts {
    /// The queue pairs, and how they are sent to; those that only send have the name of the peer.
    pub(super) fn named(&self, peer: FiAddr, bits: u8) -> impl Iterator<Item = (FiAddr, Address)> {
        let name = move |number| match number {
            number if number <= self.receive => peer.receive_context(number as u32, bits),
            _ => peer,
        };
        (1..).map(name).zip(self.addresses.iter().copied())
    }
}

impl AddressVector {
    /// Inserts a peer of several endpoints, one for each of its receive contexts, in this order (`fi_av_insert` of a
    /// scalable endpoint). What is sent to its [`receive_context`](Self::receive_context) `n` goes to the n-th
    /// address. If the first address is in the table already, that peer stays as it is.
    ///
    /// # Errors
    /// As for [`insert`](Self::insert); [`DeviceError::LimitReached`] also for more addresses than the
    /// [reserved bits](AddressVectorOptions::receive_context_bits) can name, or none.
    pub fn insert_contexts(&self, addresses: &[Address]) -> Result<FiAddr, DeviceError> {
        self.insert_queue_pairs(addresses, addresses.len())
    }

    /// Inserts a scalable endpoint (`fi_av_insert`): a peer with several receive contexts, which
    /// [`receive_context`](Self::receive_context) names. What is sent to the peer itself goes to its first context.
    ///
    /// Completions of messages name the peer itself, whichever of its contexts sent them. A [directed
    /// receive](crate::Receive::from) takes what one transmit context sent: `receive_context(peer, n)` stands for
    /// number n, and the peer itself for the first. One beyond the receive contexts can't be named.
    ///
    /// # Errors
    /// As for [`insert_contexts`](Self::insert_contexts).
    pub fn insert_scalable(&self, address: &ScalableAddress) -> Result<FiAddr, DeviceError> {
        self.insert_queue_pairs(address.queue_pairs(), address.receive_contexts())
    }

    /// Inserts a peer of several queue pairs, the first `receive` of which have a receive context.
    fn insert_queue_pairs(
        &self,
        addresses: &[Address],
        receive: usize,
    ) -> Result<FiAddr, DeviceError> {
        let limit = 1 << self.0.options.receive_context_bits;
        let [first, others @ ..] = addresses else {
            return Err(DeviceError::LimitReached { object: CONTEXT, limit });
        };
        if receive > limit {
            return Err(DeviceError::LimitReached { object: CONTEXT, limit });
        }
        if let Some(zero) = others.iter().find(|other| other.gid() == Gid::ZERO) {
            return Err(DeviceError::BadAddress { gid: zero.gid() });
        }
        self.0.check_writable()?;
        let endpoints = self.0.endpoints();
        let mut table = self.0.table();
        if let Some(known) = table.find(first) {
            return Ok(known);
        }
        let (peer, _) = self.0.insert(&mut table, *first)?;
        let contexts = Contexts { addresses: others.to_vec(), receive: receive - 1 };
        let mut pairs = vec![(peer, *first)];
        pairs.extend(contexts.named(peer, self.0.options.receive_context_bits));
        table.add_contexts(peer.0 as u32, contexts);
        drop(table);
        announce(&endpoints, &pairs);
        Ok(peer)
    }

    /// The receive context of a peer with this number, for sends (`fi_rx_addr`). Of a peer with fewer contexts it
    /// is an unknown address.
    ///
    /// # Errors
    /// There is no such peer, or the [reserved bits](AddressVectorOptions::receive_context_bits) can't name the
    /// context.
    pub fn receive_context(&self, peer: FiAddr, context: usize) -> Result<FiAddr, ContextError> {
        let bits = self.0.options.receive_context_bits;
        let contexts = 1 << bits;
        if self.address(peer).is_none() {
            return Err(ContextError::UnknownAddress(peer));
        }
        if context >= contexts {
            return Err(ContextError::TooGreat { context, contexts });
        }
        // At most 16 bits are reserved.
        Ok(peer.receive_context(context as u32, bits))
    }
}

impl Shared {
    /// The peer that an address of this vector is a receive context of.
    pub(crate) fn peer_of(&self, addr: FiAddr) -> FiAddr {
        match u32::from(self.options.receive_context_bits) {
            0 => addr,
            bits => FiAddr(addr.0 & u64::MAX >> bits),
        }
    }
}

impl Table {
    /// Adds the queue pairs of a peer but the first.
    pub(super) fn add_contexts(&mut self, index: u32, contexts: Contexts) {
        self.by_context.extend(contexts.addresses.iter().map(|address| (*address, index)));
        if !contexts.addresses.is_empty() {
            self.contexts.insert(index, contexts);
        }
    }

    pub(super) fn remove_contexts(&mut self, index: u32) -> Contexts {
        let contexts = self.contexts.remove(&index).unwrap_or_default();
        for address in &contexts.addresses {
            self.by_context.remove(&(*address, index));
        }
        contexts
    }

    /// The peer with an address, or with a queue pair that has it.
    pub(super) fn find_queue_pair(&self, address: &Address) -> Option<FiAddr> {
        let known = self.find_hashed(address, hash(&self.hasher, address));
        known.or_else(|| {
            let mut peers = self.by_context.range((*address, 0)..=(*address, u32::MAX));
            Some(self.addr(peers.next()?.1))
        })
    }
}
