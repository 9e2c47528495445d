//! The release lines of libfabric and their wire-compatibility profiles.
//!
//! A [`Profile`] says which bits a release sets, how it writes raw addresses, connids and EOR packets,
//! and how far its receive window reaches. An endpoint follows one profile, so that releases can be
//! tested with each other.

use core::fmt;
use core::str::FromStr;

use efa_proto::RawAddressForm;

use crate::Extras;

/// A release line of libfabric, named by the first release that shows its behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum Release {
    V1_10,
    V1_12,
    V1_13,
    V1_14,
    V1_16,
    V1_18,
    V1_20,
    V1_22,
    V2_0,
    V2_1,
    V2_6,
    V2_7,
}

impl Release {
    /// All release lines, oldest first.
    pub const ALL: [Self; 12] = [
        Self::V1_10,
        Self::V1_12,
        Self::V1_13,
        Self::V1_14,
        Self::V1_16,
        Self::V1_18,
        Self::V1_20,
        Self::V1_22,
        Self::V2_0,
        Self::V2_1,
        Self::V2_6,
        Self::V2_7,
    ];

    /// The release number, for example `"1.14"`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V1_10 => "1.10",
            Self::V1_12 => "1.12",
            Self::V1_13 => "1.13",
            Self::V1_14 => "1.14",
            Self::V1_16 => "1.16",
            Self::V1_18 => "1.18",
            Self::V1_20 => "1.20",
            Self::V1_22 => "1.22",
            Self::V2_0 => "2.0",
            Self::V2_1 => "2.1",
            Self::V2_6 => "2.6",
            Self::V2_7 => "2.7",
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// No release line with a profile has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no such release line; there are 1.10, 1.12, 1.13, 1.14, 1.16, 1.18, 1.20, 1.22, 2.0, 2.1, 2.6, 2.7"
)]
pub struct UnknownRelease;

impl FromStr for Release {
    type Err = UnknownRelease;
    fn from_str(text: &str) -> Result<Self, UnknownRelease> {
        Self::ALL.into_iter().find(|release| release.as_str() == text).ok_or(UnknownRelease)
    }
}

/// The features of an endpoint's device that are announced to peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceAbilities {
    /// RDMA read works.
    pub rdma_read: bool,
    /// RDMA write works.
    pub rdma_write: bool,
    /// RDMA write with immediate needs no receive buffer.
    pub unsolicited_write_receive: bool,
}

/// The layout of EOR packets that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EorLayout {
    /// 12 bytes, up to 1.13.
    Short,
    /// 16 bytes with connid, since 1.14.
    Full,
}

/// The wire-compatibility profile of an endpoint: what it announces, and which of several legal forms it
/// sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The release line with this profile.
    pub release: Release,
    /// The bits that the HANDSHAKE announces.
    pub extras: Extras,
    /// The form of raw addresses in requests.
    pub raw_address: RawAddressForm,
    /// Whether requests keep a constant header length for peers that ask for it.
    pub constant_header: bool,
    /// Whether connids are sent at all: in requests to peers that request them, and in every other packet.
    pub connid: bool,
    /// Whether requests carry the connid even to peers that did not request it.
    pub connid_unasked: bool,
    /// The layout of EOR packets.
    pub eor: EorLayout,
    /// Whether the HANDSHAKE carries the host id.
    pub host_id: bool,
    /// Whether the HANDSHAKE carries the device version.
    pub device_version: bool,
    /// Whether the HANDSHAKE says that memory of accelerators is reached.
    pub hmem_p2p: bool,
    /// Whether CTSDATA is held back until the peer's HANDSHAKE has arrived.
    pub ctsdata_after_handshake: bool,
    /// The receive window: a message this many message ids or more ahead of the expected one is lost, as in
    /// releases up to 1.22. `None` since 2.0, which keeps messages ahead of its window, too.
    pub receive_window: Option<u32>,
}

impl Profile {
    /// The profile of a release line on a device without RDMA.
    #[must_use]
    pub fn of(release: Release) -> Self {
        Self::with_device(release, DeviceAbilities::default())
    }

    /// The profile of a release line on a device.
    #[must_use]
    pub fn with_device(release: Release, device: DeviceAbilities) -> Self {
        let since = |first: Release| release >= first;
        let mut extras = Extras::empty();
        extras.set(Extras::RDMA_READ, device.rdma_read);
        extras.set(Extras::DELIVERY_COMPLETE, since(Release::V1_12));
        extras.set(Extras::CONNID_HEADER, since(Release::V1_14));
        extras.set(Extras::RUNTING_READ, since(Release::V1_16));
        extras.set(Extras::RDMA_WRITE, device.rdma_write && since(Release::V1_18));
        extras.set(Extras::READ_NACK, since(Release::V1_20));
        extras.set(
            Extras::UNSOLICITED_WRITE_RECV,
            device.unsolicited_write_receive && since(Release::V2_1),
        );
        Self {
            release,
            extras,
            raw_address: if since(Release::V1_13) {
                RawAddressForm::Padded
            } else {
                RawAddressForm::Short
            },
            constant_header: since(Release::V1_13),
            connid: since(Release::V1_14),
            connid_unasked: since(Release::V2_6),
            eor: if since(Release::V1_14) { EorLayout::Full } else { EorLayout::Short },
            host_id: since(Release::V1_18),
            device_version: since(Release::V1_20),
            hmem_p2p: since(Release::V2_7),
            ctsdata_after_handshake: since(Release::V1_14),
            receive_window: if since(Release::V2_0) { None } else { Some(16384) },
        }
    }

    /// The same profile, announcing only bits of `implemented`.
    #[must_use]
    pub fn announcing_only(mut self, implemented: Extras) -> Self {
        self.extras = self.extras.intersection(implemented);
        self
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    // conformance: A34
    #[test]
    fn extras_have_the_identifiers_kinds_and_releases_of_table_2_1() {
        use crate::ExtraKind::{Feature, Request};
        let bits = [
            (Extras::RDMA_READ, Feature, Some(Release::V1_10)),
            (Extras::DELIVERY_COMPLETE, Feature, Some(Release::V1_12)),
            (Extras::CONSTANT_HEADER_LENGTH, Request, Some(Release::V1_13)),
            (Extras::CONNID_HEADER, Request, Some(Release::V1_14)),
            (Extras::RUNTING_READ, Feature, Some(Release::V1_16)),
            (Extras::RDMA_WRITE, Feature, Some(Release::V1_18)),
            (Extras::READ_NACK, Feature, Some(Release::V1_20)),
            (Extras::USER_RECV_QP, Request, Some(Release::V1_22)),
        ];
        for (id, (bit, kind, release)) in bits.into_iter().enumerate() {
            let row = Extras::TABLE[id];
            assert_eq!(bit.bits(), 1 << id);
            assert_eq!((row.0 as usize, row.2, row.3), (id, kind, release));
        }
    }

    // conformance: A46
    #[test]
    fn each_release_announces_its_features() {
        let with_rdma =
            DeviceAbilities { rdma_read: true, rdma_write: true, unsolicited_write_receive: true };
        let bits = |release| Profile::with_device(release, with_rdma).extras.bits();
        let announced = Release::ALL.map(bits);
        assert_eq!(
            announced,
            [0x1, 0x3, 0x3, 0xb, 0x1b, 0x3b, 0x7b, 0x7b, 0x7b, 0x17b, 0x17b, 0x17b]
        );
        assert_eq!(Profile::of(Release::V1_10).extras, Extras::empty());
    }

    #[test]
    fn release_names_round_trip() {
        for release in Release::ALL {
            assert_eq!(release.as_str().parse(), Ok(release));
            assert_eq!(release.to_string(), release.as_str());
        }
        assert_eq!("1.11".parse::<Release>(), Err(UnknownRelease));
    }
}
