//! Packet type numbers (table 1.2 of the specification, and the types it leaves out).
//!
//! ```text
//!    1..=12   responses and control        64..=76   requests that every peer understands
//!  128..=141  requests of extra features  142..=147  runting protocols (145, 146 are used)
//! ```

use core::fmt;

use thiserror::Error;

/// A number that is no packet type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum PacketTypeError {
    /// No release uses this number.
    #[error("packet type {0} is unknown")]
    Unknown(u8),
    /// RTS (1) or CONNACK (2), which no version 4 peer sends.
    #[error("packet type {0} is deprecated")]
    Deprecated(u8),
    /// 6 (used within a process only), 131 or 132 (reserved), which have no layout.
    #[error("packet type {0} is reserved")]
    Reserved(u8),
}

impl PacketTypeError {
    /// The number that was found.
    #[must_use]
    pub const fn value(self) -> u8 {
        match self {
            Self::Unknown(value) | Self::Deprecated(value) | Self::Reserved(value) => value,
        }
    }
}

macro_rules! packet_types {
    ($($variant:ident = $value:literal, $name:literal, $doc:literal;)*) => {
        /// Type of a packet; the number is byte 0 of the packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum PacketType {
            $(#[doc = $doc] $variant = $value,)*
        }

        impl PacketType {
            /// All types in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Name in the specification's spelling, such as `EAGER_TAGRTM`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

        }
    };
}

packet_types! {
    Cts = 3, "CTS", "Clear to send: grants bytes to a long-CTS sender.";
    CtsData = 4, "CTSDATA", "A segment sent under a CTS grant.";
    ReadRsp = 5, "READRSP", "First data of an emulated read.";
    Eor = 7, "EOR", "End of read: the peer has read the source buffer.";
    AtomRsp = 8, "ATOMRSP", "Previous values: response to a fetch or compare atomic.";
    Handshake = 9, "HANDSHAKE", "Extra features and requests of the sender.";
    Receipt = 10, "RECEIPT", "Data of a delivery-complete operation has arrived in the buffer.";
    ReadNack = 11, "READ_NACK", "The receiver cannot read; the sender uses long-CTS instead.";
    PeerError = 12, "PEER_ERROR", "An operation failed at the peer (after release 2.6).";

    EagerMsgRtm = 64, "EAGER_MSGRTM", "Whole message in one packet.";
    EagerTagRtm = 65, "EAGER_TAGRTM", "Whole tagged message in one packet.";
    MediumMsgRtm = 66, "MEDIUM_MSGRTM", "Segment of a message sent without a grant.";
    MediumTagRtm = 67, "MEDIUM_TAGRTM", "Segment of a tagged message sent without a grant.";
    LongCtsMsgRtm = 68, "LONGCTS_MSGRTM", "Announces a message that continues under CTS.";
    LongCtsTagRtm = 69, "LONGCTS_TAGRTM", "Announces a tagged message that continues under CTS.";
    EagerRtw = 70, "EAGER_RTW", "Whole emulated write in one packet.";
    LongCtsRtw = 71, "LONGCTS_RTW", "Announces an emulated write that continues under CTS.";
    ShortRtr = 72, "SHORT_RTR", "Emulated read answered by one packet.";
    LongCtsRtr = 73, "LONGCTS_RTR", "Emulated read answered under CTS.";
    WriteRta = 74, "WRITE_RTA", "Atomic without a response.";
    FetchRta = 75, "FETCH_RTA", "Atomic that returns the previous values.";
    CompareRta = 76, "COMPARE_RTA", "Compare-and-swap family.";

    LongReadMsgRtm = 128, "LONGREAD_MSGRTM", "Message for the receiver to read.";
    LongReadTagRtm = 129, "LONGREAD_TAGRTM", "Tagged message for the receiver to read.";
    LongReadRtw = 130, "LONGREAD_RTW", "Emulated write for the target to read.";
    DcEagerMsgRtm = 133, "DC_EAGER_MSGRTM", "EAGER_MSGRTM that requests a RECEIPT.";
    DcEagerTagRtm = 134, "DC_EAGER_TAGRTM", "EAGER_TAGRTM that requests a RECEIPT.";
    DcMediumMsgRtm = 135, "DC_MEDIUM_MSGRTM", "MEDIUM_MSGRTM that requests a RECEIPT.";
    DcMediumTagRtm = 136, "DC_MEDIUM_TAGRTM", "MEDIUM_TAGRTM that requests a RECEIPT.";
    DcLongCtsMsgRtm = 137, "DC_LONGCTS_MSGRTM", "LONGCTS_MSGRTM that requests a RECEIPT.";
    DcLongCtsTagRtm = 138, "DC_LONGCTS_TAGRTM", "LONGCTS_TAGRTM that requests a RECEIPT.";
    DcEagerRtw = 139, "DC_EAGER_RTW", "EAGER_RTW that requests a RECEIPT.";
    DcLongCtsRtw = 140, "DC_LONGCTS_RTW", "LONGCTS_RTW that requests a RECEIPT.";
    DcWriteRta = 141, "DC_WRITE_RTA", "WRITE_RTA that requests a RECEIPT.";
    RuntCtsMsgRtm = 142, "RUNTCTS_MSGRTM", "Never sent by any release.";
    RuntCtsTagRtm = 143, "RUNTCTS_TAGRTM", "Never sent by any release.";
    RuntCtsRtw = 144, "RUNTCTS_RTW", "Never sent by any release.";
    RuntReadMsgRtm = 145, "RUNTREAD_MSGRTM",
        "Leading part of a message; the receiver reads the rest. The specification omits the number.";
    RuntReadTagRtm = 146, "RUNTREAD_TAGRTM",
        "Leading part of a tagged message; the receiver reads the rest.";
    RuntReadRtw = 147, "RUNTREAD_RTW", "Never sent by any release.";
}

impl PacketType {
    /// The number on the wire.
    #[inline]
    #[must_use]
    pub const fn as_u8(self) -> u8 {
        self as u8
    }

    /// Whether this is a request: the first packet of a subprotocol, with optional headers.
    #[inline]
    #[must_use]
    pub const fn is_req(self) -> bool {
        self.as_u8() >= 64
    }

    /// Whether this is a TAGRTM.
    #[inline]
    #[must_use]
    pub const fn is_tagged(self) -> bool {
        matches!(
            self,
            Self::EagerTagRtm
                | Self::MediumTagRtm
                | Self::LongCtsTagRtm
                | Self::LongReadTagRtm
                | Self::DcEagerTagRtm
                | Self::DcMediumTagRtm
                | Self::DcLongCtsTagRtm
                | Self::RuntCtsTagRtm
                | Self::RuntReadTagRtm
        )
    }

    /// Whether the type has a name and a size but no sender in any release.
    #[must_use]
    pub const fn is_never_sent(self) -> bool {
        matches!(
            self,
            Self::RuntCtsMsgRtm | Self::RuntCtsTagRtm | Self::RuntCtsRtw | Self::RuntReadRtw
        )
    }
}

/// The type of each number.
static BY_NUMBER: [Option<PacketType>; 256] = {
    let mut types = [None; 256];
    let mut i = 0;
    while i < PacketType::ALL.len() {
        types[PacketType::ALL[i] as usize] = Some(PacketType::ALL[i]);
        i += 1;
    }
    types
};

impl TryFrom<u8> for PacketType {
    type Error = PacketTypeError;

    #[inline]
    fn try_from(value: u8) -> Result<Self, PacketTypeError> {
        match (BY_NUMBER[usize::from(value)], value) {
            (Some(packet_type), _) => Ok(packet_type),
            (None, 1 | 2) => Err(PacketTypeError::Deprecated(value)),
            (None, 6 | 131 | 132) => Err(PacketTypeError::Reserved(value)),
            (None, _) => Err(PacketTypeError::Unknown(value)),
        }
    }
}

impl fmt::Display for PacketType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
