//! A whole packet: dispatch by type in both directions, and one line of text for logs.

use core::fmt;

use crate::base::Base;
use crate::{
    AtomRsp, Connid, Cts, CtsData, CtsFlags, EmitError, Eor, EorForm, Handshake, HandshakeFlags,
    NeverSent, PacketFlags, PacketType, ParseError, PeerError, RawAddress, ReadNack, ReadRsp,
    Receipt, ReqFlags, Rta, Rtm, Rtr, RtrKind, Rtw,
};
use crate::{cts, error_report, handshake, never_sent, response, rta, rtm, rtr, rtw};

/// A parsed packet, borrowing arrays and payload from the bytes it was parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// All fields.
    pub header: Header<'a>,
    /// Everything behind the header. Application data for types that have any, else bytes
    /// without a meaning.
    pub payload: &'a [u8],
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header<'a> {
    /// Request to send a message.
    Rtm(Rtm<'a>),
    /// Request to write.
    Rtw(Rtw<'a>),
    /// Request to read.
    Rtr(Rtr<'a>),
    /// Request for an atomic.
    Rta(Rta<'a>),
    /// Grant.
    Cts(Cts),
    /// Data under a grant.
    CtsData(CtsData),
    /// Data of an emulated read.
    ReadRsp(ReadRsp),
    /// End of read.
    Eor(Eor),
    /// Answer of an atomic.
    AtomRsp(AtomRsp),
    /// Features and requests.
    Handshake(Handshake<'a>),
    /// Delivery completed.
    Receipt(Receipt),
    /// Read refused.
    ReadNack(ReadNack),
    /// Operation failed at the peer.
    PeerError(PeerError),
    /// A type without a sender.
    NeverSent(NeverSent<'a>),
}

impl<'a> Packet<'a> {
    /// Reads a packet, `bytes` being exactly one datagram.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        use PacketType as T;
        let base = Base::read(bytes)?;
        let flags = base.flags.get();
        let (req, other) =
            (ReqFlags::from_bits_retain(flags), PacketFlags::from_bits_retain(flags));
        let packet_type = PacketType::try_from(base.packet_type)?;
        match packet_type {
            T::EagerMsgRtm
            | T::EagerTagRtm
            | T::MediumMsgRtm
            | T::MediumTagRtm
            | T::LongCtsMsgRtm
            | T::LongCtsTagRtm
            | T::LongReadMsgRtm
            | T::LongReadTagRtm
            | T::DcEagerMsgRtm
            | T::DcEagerTagRtm
            | T::DcMediumMsgRtm
            | T::DcMediumTagRtm
            | T::DcLongCtsMsgRtm
            | T::DcLongCtsTagRtm
            | T::RunReadMsgRtm
            | T::RunReadTagRtm => rtm::parse(packet_type, req, bytes),
            T::EagerRtw | T::LongCtsRtw | T::DcEagerRtw | T::DcLongCtsRtw | T::LongReadRtw => {
                rtw::parse(packet_type, req, bytes)
            }
            T::ShortRtr => rtr::parse(RtrKind::Short, req, bytes),
            T::LongCtsRtr => rtr::parse(RtrKind::LongCts, req, bytes),
            T::WriteRta | T::FetchRta | T::CompareRta | T::DcWriteRta => {
                rta::parse(packet_type, req, bytes)
            }
            T::Cts => cts::parse_cts(CtsFlags::from_bits_retain(flags), bytes),
            T::CtsData => cts::parse_ctsdata(other, bytes),
            T::ReadRsp => response::parse_readrsp(other, bytes),
            T::Eor => response::parse_eor(other, bytes),
            T::AtomRsp => rta::parse_atomrsp(other, bytes),
            T::Handshake => handshake::parse(HandshakeFlags::from_bits_retain(flags), bytes),
            T::Receipt => response::parse_receipt(other, bytes),
            T::ReadNack => response::parse_read_nack(other, bytes),
            T::PeerError => error_report::parse(other, bytes),
            T::RunCtsMsgRtm | T::RunCtsTagRtm | T::RunCtsRtw | T::RunReadRtw => {
                never_sent::parse(packet_type, bytes)
            }
        }
    }

    /// Type of the packet.
    pub const fn packet_type(&self) -> PacketType {
        self.header.packet_type()
    }
}

impl Header<'_> {
    /// Type of the packet.
    pub const fn packet_type(&self) -> PacketType {
        match self {
            Self::Rtm(rtm) => rtm.packet_type(),
            Self::Rtw(rtw) => rtw.packet_type(),
            Self::Rtr(rtr) => rtr.packet_type(),
            Self::Rta(rta) => rta.packet_type(),
            Self::Cts(_) => PacketType::Cts,
            Self::CtsData(_) => PacketType::CtsData,
            Self::ReadRsp(_) => PacketType::ReadRsp,
            Self::Eor(_) => PacketType::Eor,
            Self::AtomRsp(_) => PacketType::AtomRsp,
            Self::Handshake(_) => PacketType::Handshake,
            Self::Receipt(_) => PacketType::Receipt,
            Self::ReadNack(_) => PacketType::ReadNack,
            Self::PeerError(_) => PacketType::PeerError,
            Self::NeverSent(never_sent) => never_sent.packet_type(),
        }
    }

    /// Bytes that [`Self::emit`] writes, optional headers and `read_iov` included.
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub fn len(&self) -> usize {
        match self {
            Self::Rtm(rtm) => rtm.len(),
            Self::Rtw(rtw) => rtw.len(),
            Self::Rtr(rtr) => rtr.len(),
            Self::Rta(rta) => rta.len(),
            Self::Cts(cts) => cts.len(),
            Self::CtsData(ctsdata) => ctsdata.len(),
            Self::ReadRsp(readrsp) => readrsp.len(),
            Self::Eor(eor) => eor.len(),
            Self::AtomRsp(atomrsp) => atomrsp.len(),
            Self::Handshake(handshake) => handshake.len(),
            Self::Receipt(receipt) => receipt.len(),
            Self::ReadNack(read_nack) => read_nack.len(),
            Self::PeerError(peer_error) => peer_error.len(),
            Self::NeverSent(never_sent) => never_sent.len(),
        }
    }

    /// Writes the header, to be followed by the payload; returns its length in bytes.
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        match self {
            Self::Rtm(rtm) => rtm.emit(buf),
            Self::Rtw(rtw) => rtw.emit(buf),
            Self::Rtr(rtr) => rtr.emit(buf),
            Self::Rta(rta) => rta.emit(buf),
            Self::Cts(cts) => cts.emit(buf),
            Self::CtsData(ctsdata) => ctsdata.emit(buf),
            Self::ReadRsp(readrsp) => readrsp.emit(buf),
            Self::Eor(eor) => eor.emit(buf),
            Self::AtomRsp(atomrsp) => atomrsp.emit(buf),
            Self::Handshake(handshake) => handshake.emit(buf),
            Self::Receipt(receipt) => receipt.emit(buf),
            Self::ReadNack(read_nack) => read_nack.emit(buf),
            Self::PeerError(peer_error) => peer_error.emit(buf),
            Self::NeverSent(never_sent) => never_sent.emit(buf),
        }
    }

    /// Incarnation of the sender, from wherever this type has it (section 4.4): the optional
    /// header of a request, else its raw address; the field or optional field of other packets.
    pub fn connid(&self) -> Option<Connid> {
        match self {
            Self::Rtm(Rtm { options, .. })
            | Self::Rtw(Rtw { options, .. })
            | Self::Rtr(Rtr { options, .. })
            | Self::Rta(Rta { options, .. }) => options.any_connid(),
            Self::Cts(Cts { connid, .. })
            | Self::CtsData(CtsData { connid, .. })
            | Self::ReadRsp(ReadRsp { connid, .. })
            | Self::Eor(Eor { form: EorForm::Full { connid }, .. })
            | Self::AtomRsp(AtomRsp { connid, .. })
            | Self::Handshake(Handshake { connid, .. })
            | Self::Receipt(Receipt { connid, .. })
            | Self::ReadNack(ReadNack { connid, .. })
            | Self::PeerError(PeerError { connid, .. }) => *connid,
            Self::Eor(Eor { form: EorForm::Short, .. }) | Self::NeverSent(_) => None,
        }
    }

    /// Address of the sender, if this is a request that carries it.
    pub fn raw_address(&self) -> Option<&RawAddress> {
        match self {
            Self::Rtm(Rtm { options, .. })
            | Self::Rtw(Rtw { options, .. })
            | Self::Rtr(Rtr { options, .. })
            | Self::Rta(Rta { options, .. }) => options.raw_address.as_ref().map(|(a, _)| a),
            _ => None,
        }
    }
}

/// One line: `EAGER_TAGRTM msg_id=7 tag=0x2a payload=5`.
impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.header.fmt(f)?;
        if !self.payload.is_empty() {
            write!(f, " payload={}", self.payload.len())?;
        }
        Ok(())
    }
}

/// One line: `EAGER_TAGRTM msg_id=7 tag=0x2a`.
impl fmt::Display for Header<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.packet_type())?;
        match self {
            Self::Rtm(rtm) => rtm.fmt(f),
            Self::Rtw(rtw) => rtw.fmt(f),
            Self::Rtr(rtr) => rtr.fmt(f),
            Self::Rta(rta) => rta.fmt(f),
            Self::Cts(cts) => cts.fmt(f),
            Self::CtsData(ctsdata) => ctsdata.fmt(f),
            Self::ReadRsp(readrsp) => readrsp.fmt(f),
            Self::Eor(eor) => eor.fmt(f),
            Self::AtomRsp(atomrsp) => atomrsp.fmt(f),
            Self::Handshake(handshake) => handshake.fmt(f),
            Self::Receipt(receipt) => receipt.fmt(f),
            Self::ReadNack(read_nack) => read_nack.fmt(f),
            Self::PeerError(peer_error) => peer_error.fmt(f),
            Self::NeverSent(never_sent) => never_sent.fmt(f),
        }
    }
}

/// ` connid=…` if there is one.
pub(crate) fn fmt_connid(f: &mut fmt::Formatter<'_>, connid: Option<Connid>) -> fmt::Result {
    connid.map_or(Ok(()), |connid| write!(f, " connid={connid}"))
}
