//! Extra features and requests, specification table 2.1 and what came after it.

use core::fmt;

use crate::Release;

bitflags::bitflags! {
    /// Extra features and requests; identifier `i` is bit `i % 64` of word `i / 64`.
    ///
    /// Unknown bits are kept, so that tools can show them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Extras: u64 {
        /// 0, feature: RDMA read, hence LONGREAD packets.
        const RDMA_READ = 1 << 0;
        /// 1, feature: delivery-complete packets and RECEIPT.
        const DELIVERY_COMPLETE = 1 << 1;
        /// 2, request: keep the header length of requests constant (zero-copy receive).
        const CONSTANT_HEADER_LENGTH = 1 << 2;
        /// 3, request: put the connid in every packet.
        const CONNID_HEADER = 1 << 3;
        /// 4, feature: runting read.
        const RUNTING_READ = 1 << 4;
        /// 5, feature: RDMA write.
        const RDMA_WRITE = 1 << 5;
        /// 6, feature: READ_NACK packets.
        const READ_NACK = 1 << 6;
        /// 7, request: send messages to the user receive queue pair.
        const USER_RECV_QP = 1 << 7;
        /// 8, feature: RDMA write with immediate needs no receive buffer.
        const UNSOLICITED_WRITE_RECV = 1 << 8;
        /// 9, feature: PEER_ERROR packets, in a layout that no release of libfabric up to 2.6 has.
        const PEER_ERROR = 1 << 9;
        /// 63, feature of this implementation, which libfabric ignores: PEER_ERROR packets of 20 bytes
        /// (`efa_proto::PeerError`).
        const PEER_ERROR_20 = 1 << 63;
        const _ = !0;
    }
}

/// Whether a bit announces a feature or makes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraKind {
    /// "I can": use it only with peers that announce it.
    Feature,
    /// "Please do": a peer may ignore it.
    Request,
}

impl Extras {
    /// The known bits: identifier, name, kind, and the first libfabric release that has it (`None`: none).
    pub const TABLE: &'static [(u32, &'static str, ExtraKind, Option<Release>)] = &[
        (0, "RDMA read", ExtraKind::Feature, Some(Release::V1_10)),
        (1, "delivery complete", ExtraKind::Feature, Some(Release::V1_12)),
        (2, "constant header length", ExtraKind::Request, Some(Release::V1_13)),
        (3, "connid header", ExtraKind::Request, Some(Release::V1_14)),
        (4, "runting read", ExtraKind::Feature, Some(Release::V1_16)),
        (5, "RDMA write", ExtraKind::Feature, Some(Release::V1_18)),
        (6, "read nack", ExtraKind::Feature, Some(Release::V1_20)),
        (7, "user receive QP", ExtraKind::Request, Some(Release::V1_22)),
        (8, "unsolicited write receive", ExtraKind::Feature, Some(Release::V2_1)),
        (9, "peer error", ExtraKind::Feature, None),
        (63, "peer error of 20 bytes", ExtraKind::Feature, None),
    ];
}

/// Prints the names of [`Extras::TABLE`]: `RDMA read, delivery complete`. An unknown bit has its number.
impl fmt::Display for Extras {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = (0..u64::BITS).filter(|bit| self.bits() >> bit & 1 != 0);
        for (n, bit) in bits.enumerate() {
            if n > 0 {
                f.write_str(", ")?;
            }
            match Self::TABLE.iter().find(|(known, ..)| *known == bit) {
                Some((_, name, ..)) => f.write_str(name)?,
                None => write!(f, "bit {bit}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn features_are_printed_by_their_names_and_unknown_bits_by_their_numbers() {
        assert_eq!(Extras::empty().to_string(), "");
        assert_eq!(Extras::DELIVERY_COMPLETE.to_string(), "delivery complete");
        let several = Extras::from_bits_retain(1 << 40 | 1) | Extras::READ_NACK;
        assert_eq!(several.to_string(), "RDMA read, read nack, bit 40");
    }
}
