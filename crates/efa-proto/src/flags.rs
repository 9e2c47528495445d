//! Flag bits, one type for each category of packets, as a bit means different things in each
//! (tables 1.4, 2.3, 3.1 and 3.6 of the specification).
//!
//! ```text
//!   bit   REQ             HANDSHAKE         CTS             others
//!    0    raw address     host id
//!    1    cq data         device version
//!    2    message         user receive QP
//!    3    tagged          memory of devices
//!    4    RMA (unused)
//!    5    atomic
//!    7                                      emulated read
//!   13    read nack
//!   15    connid          connid            connid          connid
//! ```

use bitflags::bitflags;
use zerocopy::little_endian::U32;

use crate::{Connid, PacketType};

bitflags! {
    /// Flags of requests (types 64 and up).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ReqFlags: u16 {
        /// The raw address header is present.
        const RAW_ADDRESS = 0x0001;
        /// The completion data header is present.
        const CQ_DATA = 0x0002;
        /// On every RTM, tagged or not.
        const MSG = 0x0004;
        /// On tagged RTMs, together with [`Self::MSG`].
        const TAGGED = 0x0008;
        /// Meant for RTW and RTR by the specification, set by no release, not sent by us.
        const RMA = 0x0010;
        /// On every RTA.
        const ATOMIC = 0x0020;
        /// On a long-CTS RTM that answers a READ_NACK.
        const READ_NACK = 0x2000;
        /// The connid header is present.
        const CONNID = 0x8000;
    }
}

bitflags! {
    /// Flags of HANDSHAKE.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct HandshakeFlags: u16 {
        /// The host id field is present.
        const HOST_ID = 0x0001;
        /// The device version field is present.
        const DEVICE_VERSION = 0x0002;
        /// The user receive queue pair field is present (releases 1.22 to 2.5).
        const USER_RECV_QP = 0x0004;
        /// The field on memory of devices is present (after release 2.6).
        const HMEM_P2P = 0x0008;
        /// The connid field is present.
        const CONNID = 0x8000;
    }
}

bitflags! {
    /// Flags of CTS.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CtsFlags: u16 {
        /// The grant is for an emulated read.
        const EMULATED_READ = 0x0080;
        /// The connid field is valid.
        const CONNID = 0x8000;
    }
}

bitflags! {
    /// Flags of all other packets.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PacketFlags: u16 {
        /// The connid field is valid; on CTSDATA: is present.
        const CONNID = 0x8000;
    }
}

impl ReqFlags {
    /// Flags that say which kind of request it is and so repeat the packet type.
    pub const KIND: Self = Self::MSG.union(Self::TAGGED).union(Self::RMA).union(Self::ATOMIC);

    /// Flags that announce an optional header.
    pub const HEADERS: Self = Self::RAW_ADDRESS.union(Self::CQ_DATA).union(Self::CONNID);

    /// The kind flags that libfabric sends with `packet_type`: MSG on every RTM, TAGGED as well on
    /// tagged ones, ATOMIC on RTA, none on RTW, RTR and packets that are no requests.
    #[inline]
    #[must_use]
    pub const fn kind_of(packet_type: PacketType) -> Self {
        use PacketType as T;
        match packet_type {
            T::EagerMsgRtm
            | T::MediumMsgRtm
            | T::LongCtsMsgRtm
            | T::LongReadMsgRtm
            | T::DcEagerMsgRtm
            | T::DcMediumMsgRtm
            | T::DcLongCtsMsgRtm
            | T::RuntCtsMsgRtm
            | T::RuntReadMsgRtm => Self::MSG,
            T::EagerTagRtm
            | T::MediumTagRtm
            | T::LongCtsTagRtm
            | T::LongReadTagRtm
            | T::DcEagerTagRtm
            | T::DcMediumTagRtm
            | T::DcLongCtsTagRtm
            | T::RuntCtsTagRtm
            | T::RuntReadTagRtm => Self::MSG.union(Self::TAGGED),
            T::WriteRta | T::FetchRta | T::CompareRta | T::DcWriteRta => Self::ATOMIC,
            _ => Self::empty(),
        }
    }
}

impl PacketFlags {
    /// The flag and the field for a connid that may be absent.
    #[inline(always)]
    pub(crate) fn with_connid(connid: Option<Connid>) -> (Self, U32) {
        match connid {
            Some(connid) => (Self::CONNID, U32::new(connid.0)),
            None => (Self::empty(), U32::new(0)),
        }
    }

    /// The field's value if the flag is set; padding otherwise.
    #[inline]
    pub(crate) fn connid(self, field: U32) -> Option<Connid> {
        self.contains(Self::CONNID).then(|| Connid(field.get()))
    }
}
