//! The address of a scalable endpoint.
//!
//! ```text
//!   0         32        34        36          44
//!   │ Address │ n       │ receive │ 1st of n-1 │ …      n queue pairs, of which the first `receive` have a
//!   │ of 0    │ 2 bytes │ 2 bytes │ QPN 2 bytes, 0, connid 4 bytes       receive context; little endian
//! ```
//!
//! The first 32 bytes are the address of the first queue pair, as libfabric's peers know addresses.

use std::fmt;

use efa_proto::{Connid, RawAddress};

use crate::address::Address;

/// The address of a [`ScalableEndpoint`](crate::ScalableEndpoint): one name for all its contexts, which
/// [`AddressVector::insert_scalable`](crate::AddressVector::insert_scalable) takes. It is a list of queue pairs of one
/// interface.
///
/// Programs exchange [its bytes](Self::to_bytes). The first 32 are an [`Address`] that any peer can send to: that of
/// the first context.
///
/// ```
/// use efa::{Address, ScalableAddress};
///
/// let address: Address = "[fe80::1]:12/0x0000002a".parse()?;
/// let single = ScalableAddress::from(address);
/// assert_eq!(ScalableAddress::from_bytes(&single.to_bytes())?, single);
/// assert_eq!(ScalableAddress::from_bytes(&address.to_bytes())?, single);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ScalableAddress {
    /// At least one, all with the same GID.
    queue_pairs: Vec<Address>,
    /// From 1 to the number of queue pairs.
    receive: usize,
}

/// Bytes that are no scalable address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScalableAddressError {
    /// They are fewer or more than the number of queue pairs says.
    #[error("{length} bytes for the address of {queue_pairs} queue pairs, which has {expected}")]
    Length {
        /// Bytes that there are.
        length: usize,
        /// The number of queue pairs; 1 if the bytes are too few to say.
        queue_pairs: usize,
        /// Bytes of such an address.
        expected: usize,
    },
    /// There is no queue pair or no receive context, or there are more receive contexts than queue pairs.
    #[error("{receive} receive contexts on {queue_pairs} queue pairs")]
    Contexts {
        /// The number of receive contexts.
        receive: usize,
        /// The number of queue pairs.
        queue_pairs: usize,
    },
}

/// Bytes before the list of further queue pairs.
const HEAD: usize = Address::SIZE + 4;

/// Bytes of a further queue pair.
const FURTHER: usize = 8;

impl ScalableAddress {
    /// The queue pairs are of one interface, and fewer than 2¹⁶.
    pub(crate) fn new(queue_pairs: Vec<Address>, receive: usize) -> Self {
        Self { queue_pairs, receive }
    }

    /// Number of receive contexts that peers can send to, at least 1.
    #[must_use]
    pub fn receive_contexts(&self) -> usize {
        self.receive
    }

    /// The addresses of the queue pairs. A queue pair has the transmit and the receive context of its number; beyond
    /// [`receive_contexts`](Self::receive_contexts) only a transmit context.
    #[must_use]
    pub fn queue_pairs(&self) -> &[Address] {
        &self.queue_pairs
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let [first, further @ ..] = &self.queue_pairs[..] else { return Vec::new() };
        let mut bytes = first.to_bytes().to_vec();
        for count in [self.queue_pairs.len(), self.receive] {
            bytes.extend((count as u16).to_le_bytes());
        }
        for address in further {
            bytes.extend(u32::from(address.qpn().0).to_le_bytes());
            bytes.extend(address.connid().to_le_bytes());
        }
        bytes
    }

    /// The address with these bytes. 32 bytes are an [`Address`].
    ///
    /// # Errors
    /// The counts in it don't fit its length or each other. Bytes without a meaning are ignored.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ScalableAddressError> {
        let length = bytes.len();
        if let Ok(address) = bytes.try_into() {
            return Ok(Address::from_bytes(address).into());
        }
        let Some((head, further)) = bytes.split_first_chunk::<HEAD>() else {
            return Err(ScalableAddressError::Length { length, queue_pairs: 1, expected: HEAD });
        };
        let [first @ .., q0, q1, r0, r1] = *head;
        let [queue_pairs, receive] =
            [[q0, q1], [r0, r1]].map(|count| usize::from(u16::from_le_bytes(count)));
        if receive == 0 || receive > queue_pairs {
            return Err(ScalableAddressError::Contexts { receive, queue_pairs });
        }
        let expected = HEAD + FURTHER * (queue_pairs - 1);
        if length != expected {
            return Err(ScalableAddressError::Length { length, queue_pairs, expected });
        }
        let first = Address::from_bytes(first);
        let (further, _) = further.as_chunks::<FURTHER>();
        let further = further.iter().map(|&[q0, q1, _, _, c0, c1, c2, c3]| {
            let qpn = u16::from_le_bytes([q0, q1]);
            let connid = Connid(u32::from_le_bytes([c0, c1, c2, c3]));
            Address::from(RawAddress { gid: first.gid().0, qpn, connid })
        });
        let queue_pairs = std::iter::once(first).chain(further).collect();
        Ok(Self { queue_pairs, receive })
    }
}

impl From<Address> for ScalableAddress {
    /// An endpoint with one context in each direction.
    fn from(address: Address) -> Self {
        Self { queue_pairs: vec![address], receive: 1 }
    }
}

impl fmt::Debug for ScalableAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} with {} receive contexts", self.queue_pairs, self.receive)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(queue_pairs: usize, receive: usize) -> ScalableAddress {
        let at = |n: usize| RawAddress { gid: [7; 16], qpn: n as u16, connid: Connid(n as u32) };
        ScalableAddress::new((0..queue_pairs).map(|n| at(n).into()).collect(), receive)
    }

    #[test]
    fn address_with_wrong_counts_or_length_is_refused_with_them() {
        let bytes = address(3, 2).to_bytes();
        assert_eq!(bytes.len(), 52);
        for length in (0..60).filter(|length| ![32, 52].contains(length)) {
            let mut other = bytes.clone();
            other.resize(length, 0);
            let (queue_pairs, expected) = if length < 36 { (1, 36) } else { (3, 52) };
            let error = ScalableAddressError::Length { length, queue_pairs, expected };
            assert_eq!(ScalableAddress::from_bytes(&other), Err(error));
        }
        for (queue_pairs, receive) in [(0, 0), (0, 1), (3, 0), (3, 4)] {
            let mut other = bytes.clone();
            (other[32], other[34]) = (queue_pairs, receive);
            let (queue_pairs, receive) = (queue_pairs.into(), receive.into());
            let error = ScalableAddressError::Contexts { receive, queue_pairs };
            assert_eq!(ScalableAddress::from_bytes(&other), Err(error));
        }
    }

    proptest! {
        #[test]
        fn address_survives_bytes_and_no_bytes_panic(
            queue_pairs in 1_usize..70,
            receive in 1_usize..70,
            noise in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let address = address(queue_pairs, receive.min(queue_pairs));
            prop_assert_eq!(ScalableAddress::from_bytes(&address.to_bytes()), Ok(address));
            let _ = ScalableAddress::from_bytes(&noise);
        }
    }
}
