//! A whole packet: dispatch by type in both directions, and one line of text for logs.

use core::fmt;

use crate::base::{Base, refuse_base};
use crate::cursor::Cursor;
use crate::value::Fields;
use crate::{
    AtomRsp, Connid, Cts, CtsData, CtsFlags, EmitError, Eor, EorForm, Handshake, HandshakeFlags,
    NeverSent, PacketFlags, PacketType, PacketTypeError, ParseError, PeerError, PeerErrorReport,
    RawAddress, ReadNack, ReadRsp, Receipt, ReqFlags, Rta, Rtm, Rtr, Rtw,
};
use crate::{cts, error_report, handshake, never_sent, response, rta, rtm, rtr, rtw};

/// A parsed packet, borrowing arrays and payload from the bytes it was parsed from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// All fields.
    pub header: Header<'a>,
    /// All bytes behind the header: application data, or bytes without meaning for types that have none.
    pub payload: &'a [u8],
}

/// Prints the header, and how long the payload is: it is the application's.
impl fmt::Debug for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packet")
            .field("header", &self.header)
            .field("payload", &format_args!("{} bytes", self.payload.len()))
            .finish()
    }
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Header<'a> {
    /// Request to send a message.
    Rtm(Rtm<'a>),
    /// Request to write.
    Rtw(Rtw<'a>),
    /// Request to read.
    Rtr(Rtr<'a>),
    /// Request for an atomic.
    Rta(Rta<'a>),
    /// Grant of a receiver.
    Cts(Cts),
    /// Data under a grant.
    CtsData(CtsData),
    /// Data of an emulated read.
    ReadRsp(ReadRsp),
    /// End of read.
    Eor(Eor),
    /// Response to an atomic.
    AtomRsp(AtomRsp),
    /// Extra features and requests.
    Handshake(Handshake<'a>),
    /// Delivery completed.
    Receipt(Receipt),
    /// Read refused.
    ReadNack(ReadNack),
    /// Operation failed at the peer.
    PeerError(PeerError),
    /// PEER_ERROR, in the forms that name the message.
    PeerErrorReport(PeerErrorReport),
    /// A type that no release sends.
    NeverSent(NeverSent<'a>),
}

// Written once for each received packet.
const _: () = assert!(size_of::<Packet<'_>>() <= 144);

impl<'a> Packet<'a> {
    /// Reads a packet, `bytes` being exactly one datagram.
    ///
    /// # Errors
    /// [`ParseError`]: what is wrong, and with which value.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        match Base::read(bytes) {
            Some(base) => PARSERS[usize::from(base.packet_type)](base.flags.get(), bytes),
            None => refuse_base(bytes),
        }
    }

    /// Reads a packet of which only the first `bytes` are there, as in a capture that stores the beginnings of
    /// packets; `length` is that of the whole datagram.
    ///
    /// The header is that of the whole packet, and [`Self::payload`] is what is there of it. A header that isn't
    /// there as a whole is an error with [`ParseError::missing`]; so is every packet that [`Self::parse`] would refuse.
    ///
    /// ```
    /// use efa_proto::{CtsData, Header, OpId, Packet};
    ///
    /// let data = CtsData { connid: None, recv_id: OpId(8), seg_length: 8896, seg_offset: 0 };
    /// let mut datagram = vec![0; data.len() + 8896];
    /// data.emit(&mut datagram)?;
    /// let packet = Packet::parse_cut(&datagram[..64], datagram.len())?;
    /// assert_eq!((packet.header, packet.payload.len()), (Header::CtsData(data), 40));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`parse`](Self::parse).
    pub fn parse_cut(bytes: &'a [u8], length: usize) -> Result<Self, ParseError> {
        use PacketType as T;
        let missing = length.saturating_sub(bytes.len()) as u64;
        let Some(base) = Base::read(bytes).filter(|_| missing > 0) else {
            return Self::parse(bytes);
        };
        // Only these look at the packet's length.
        let packet_type = PacketType::try_from(base.packet_type)?;
        let read = match packet_type {
            T::CtsData => cts::read_ctsdata,
            T::ReadRsp => response::read_readrsp,
            T::Eor => response::read_eor,
            T::AtomRsp => rta::read_atomrsp,
            T::PeerError => error_report::read,
            _ => return Self::parse(bytes),
        };
        let mut rest = Cursor::new(packet_type, bytes);
        let flags = PacketFlags::from_bits_retain(base.flags.get());
        let header = read(&mut rest, flags, missing)?;
        Ok(rest.finish(header))
    }

    /// Type of the packet.
    #[must_use]
    pub const fn packet_type(&self) -> PacketType {
        self.header.packet_type()
    }
}

impl<'a> Header<'a> {
    /// Reads what comes before the optional headers of a request that was cut within them. `None` if that isn't there
    /// as a whole, for packets that are no requests, and for LONGREAD and RUNTREAD, whose `read_iov` is behind the
    /// optional headers.
    #[must_use]
    pub fn parse_mandatory(bytes: &'a [u8]) -> Option<Self> {
        use PacketType as T;
        let base = Base::read(bytes)?;
        let packet_type = PacketType::try_from(base.packet_type).ok()?;
        let is_behind = matches!(
            packet_type,
            T::LongReadMsgRtm
                | T::LongReadTagRtm
                | T::LongReadRtw
                | T::RuntReadMsgRtm
                | T::RuntReadTagRtm
        );
        if is_behind || !packet_type.is_req() {
            return None;
        }
        let flags = base.flags.get() & !ReqFlags::HEADERS.bits();
        Some(PARSERS[usize::from(base.packet_type)](flags, bytes).ok()?.header)
    }
}

/// Parses a packet whose base header is good, given the base header's flags.
type Parser = for<'a> fn(u16, &'a [u8]) -> Result<Packet<'a>, ParseError>;

/// The parser for each value of byte 0.
static PARSERS: [Parser; 256] = {
    let mut parsers: [Parser; 256] = [refuse_type; 256];
    let mut i = 0;
    while i < PacketType::ALL.len() {
        let packet_type = PacketType::ALL[i];
        parsers[packet_type.as_u8() as usize] = parser(packet_type);
        i += 1;
    }
    parsers
};

#[cold]
fn refuse_type(_: u16, bytes: &[u8]) -> Result<Packet<'_>, ParseError> {
    let value = bytes.first().copied().unwrap_or_default();
    Err(PacketType::try_from(value).err().unwrap_or(PacketTypeError::Unknown(value)).into())
}

/// A parser of a type without optional headers: `$read` takes the header off, with type and flags known, and where it looks
/// at the packet's length how many bytes are `$missing`.
macro_rules! plain {
    ($packet_type:ident, $flags:ident, $read:path $(, $missing:literal)?) => {
        |flags, bytes| {
            let mut rest = Cursor::new(PacketType::$packet_type, bytes);
            let header = $read(&mut rest, $flags::from_bits_retain(flags) $(, $missing)?)?;
            Ok(rest.finish(header))
        }
    };
}

/// A parser of a request, with a copy of `$read` for each set of optional headers. In each copy the set is
/// constant, so that it needs neither a stack frame nor saved registers. That halves the instructions for
/// a small message (`benches/instructions.rs`) at the price of code size; a peer sends one or two of
/// these sets.
macro_rules! req {
    ($packet_type:ident, $read:path) => {
        |flags, bytes| {
            const NONE: ReqFlags = ReqFlags::empty();
            const ADDRESS: ReqFlags = ReqFlags::RAW_ADDRESS;
            const CQ_DATA: ReqFlags = ReqFlags::CQ_DATA;
            const CONNID: ReqFlags = ReqFlags::CONNID;

            let flags = ReqFlags::from_bits_retain(flags);
            let others = flags.difference(ReqFlags::HEADERS);
            let mut rest = Cursor::new(PacketType::$packet_type, bytes);
            macro_rules! read_with {
                ($headers:expr) => {{
                    let header = $read(&mut rest, others | $headers)?;
                    Ok(rest.finish(header))
                }};
            }
            if !flags.intersects(ReqFlags::HEADERS) {
                read_with!(NONE)
            } else if !flags.intersects(ADDRESS | CQ_DATA) {
                read_with!(CONNID)
            } else if !flags.intersects(CONNID | CQ_DATA) {
                read_with!(ADDRESS)
            } else if !flags.contains(ADDRESS) {
                if flags.contains(CONNID) {
                    read_with!(CQ_DATA | CONNID)
                } else {
                    read_with!(CQ_DATA)
                }
            } else if !flags.contains(CONNID) {
                read_with!(ADDRESS | CQ_DATA)
            } else if !flags.contains(CQ_DATA) {
                read_with!(ADDRESS | CONNID)
            } else {
                read_with!(ADDRESS | CQ_DATA | CONNID)
            }
        }
    };
}

/// The closures give each type its own copy of its family's parser, with the type known.
const fn parser(packet_type: PacketType) -> Parser {
    use PacketType as T;
    match packet_type {
        T::EagerMsgRtm => req!(EagerMsgRtm, rtm::read_eager),
        T::EagerTagRtm => req!(EagerTagRtm, rtm::read_eager),
        T::MediumMsgRtm => req!(MediumMsgRtm, rtm::read_medium),
        T::MediumTagRtm => req!(MediumTagRtm, rtm::read_medium),
        T::LongCtsMsgRtm => req!(LongCtsMsgRtm, rtm::read_longcts),
        T::LongCtsTagRtm => req!(LongCtsTagRtm, rtm::read_longcts),
        T::LongReadMsgRtm => req!(LongReadMsgRtm, rtm::read_longread),
        T::LongReadTagRtm => req!(LongReadTagRtm, rtm::read_longread),
        T::DcEagerMsgRtm => req!(DcEagerMsgRtm, rtm::read_dc_eager),
        T::DcEagerTagRtm => req!(DcEagerTagRtm, rtm::read_dc_eager),
        T::DcMediumMsgRtm => req!(DcMediumMsgRtm, rtm::read_dc_medium),
        T::DcMediumTagRtm => req!(DcMediumTagRtm, rtm::read_dc_medium),
        T::DcLongCtsMsgRtm => req!(DcLongCtsMsgRtm, rtm::read_dc_longcts),
        T::DcLongCtsTagRtm => req!(DcLongCtsTagRtm, rtm::read_dc_longcts),
        T::RuntReadMsgRtm => req!(RuntReadMsgRtm, rtm::read_runtread),
        T::RuntReadTagRtm => req!(RuntReadTagRtm, rtm::read_runtread),
        T::EagerRtw => req!(EagerRtw, rtw::read_eager),
        T::DcEagerRtw => req!(DcEagerRtw, rtw::read_dc_eager),
        T::LongCtsRtw => req!(LongCtsRtw, rtw::read_longcts),
        T::DcLongCtsRtw => req!(DcLongCtsRtw, rtw::read_dc_longcts),
        T::LongReadRtw => req!(LongReadRtw, rtw::read_longread),
        T::ShortRtr => req!(ShortRtr, rtr::read),
        T::LongCtsRtr => req!(LongCtsRtr, rtr::read),
        T::WriteRta => req!(WriteRta, rta::read),
        T::FetchRta => req!(FetchRta, rta::read),
        T::CompareRta => req!(CompareRta, rta::read),
        T::DcWriteRta => req!(DcWriteRta, rta::read),
        T::CtsData => plain!(CtsData, PacketFlags, cts::read_ctsdata, 0),
        T::ReadRsp => plain!(ReadRsp, PacketFlags, response::read_readrsp, 0),
        T::Eor => plain!(Eor, PacketFlags, response::read_eor, 0),
        T::AtomRsp => plain!(AtomRsp, PacketFlags, rta::read_atomrsp, 0),
        T::Receipt => plain!(Receipt, PacketFlags, response::read_receipt),
        T::ReadNack => plain!(ReadNack, PacketFlags, response::read_read_nack),
        T::PeerError => plain!(PeerError, PacketFlags, error_report::read, 0),
        T::Cts => plain!(Cts, CtsFlags, cts::read_cts),
        T::Handshake => plain!(Handshake, HandshakeFlags, handshake::read),
        T::RuntCtsMsgRtm => plain!(RuntCtsMsgRtm, ReqFlags, never_sent::read),
        T::RuntCtsTagRtm => plain!(RuntCtsTagRtm, ReqFlags, never_sent::read),
        T::RuntCtsRtw => plain!(RuntCtsRtw, ReqFlags, never_sent::read),
        T::RuntReadRtw => plain!(RuntReadRtw, ReqFlags, never_sent::read),
    }
}

impl Header<'_> {
    /// Type of the packet.
    #[must_use]
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
            Self::PeerError(_) | Self::PeerErrorReport(_) => PacketType::PeerError,
            Self::NeverSent(never_sent) => never_sent.packet_type(),
        }
    }

    /// Bytes that [`Self::emit`] writes, optional headers and `read_iov` included.
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    #[must_use]
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
            Self::PeerErrorReport(report) => report.len(),
            Self::NeverSent(never_sent) => never_sent.len(),
        }
    }

    /// Writes the header, to be followed by the payload; returns its length in bytes.
    ///
    /// # Errors
    /// [`EmitError`]: the buffer is too small, or an array too long.
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
            Self::PeerErrorReport(report) => report.emit(buf),
            Self::NeverSent(never_sent) => never_sent.emit(buf),
        }
    }

    /// Incarnation of the sender (section 4.4): the connid header of a request, or else the connid in its
    /// raw address; the field or optional field of other packets.
    #[must_use]
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
            | Self::PeerError(PeerError { connid, .. })
            | Self::PeerErrorReport(PeerErrorReport { connid, .. }) => *connid,
            Self::Eor(Eor { form: EorForm::Short, .. }) | Self::NeverSent(_) => None,
        }
    }

    /// Address of the sender, if this is a request that carries it.
    #[must_use]
    pub fn raw_address(&self) -> Option<&RawAddress> {
        self.options()?.raw_address.as_ref().map(|(address, _)| address)
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
            // It has words of its own.
            Self::NeverSent(never_sent) => never_sent.fmt(f),
            header => header.fmt_line(f, ""),
        }
    }
}
