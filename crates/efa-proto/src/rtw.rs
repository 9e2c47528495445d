//! RTW, requests to write into the peer's memory (sections 3.3, 4.1, 4.2; tables 3.8, 3.9, 4.3).
//!
//! ```text
//!   EAGER          rma_iov_count@4                                          rma_iov[n]@8    8+24n
//!   DC_EAGER       rma_iov_count@4  send_id@8  pad@12                       rma_iov[n]@16  16+24n
//!   (DC_)LONGCTS   rma_iov_count@4  msg_length@8  send_id@16
//!                                                  credit_request@20        rma_iov[n]@24  24+24n
//!   LONGREAD       as LONGCTS with  read_iov_count@20                       rma_iov[n]@24  24+24n
//! ```
//!
//! There is no `msg_id`: writes are not ordered. `read_iov[]` of LONGREAD follows the
//! optional headers. An EAGER_RTW with no `rma_iov` and no payload elicits a HANDSHAKE.

use core::fmt;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{Immutable, IntoBytes};

use crate::base::{Base, wire};
use crate::cursor::{Cursor, READ_IOV, RMA_IOV, Read};
use crate::value::{FieldValue as Value, Fields, See};
use crate::writer::{self, Writer};
use crate::{EmitError, Header, MAX_IOV, OpId, PacketType, ReqFlags, ReqOptions, RmaIov};

/// A request to write into the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rtw<'a> {
    /// The peer's memory to write to, at most [`MAX_IOV`] pieces.
    pub rma_iov: &'a [RmaIov],
    /// The subprotocol and its fields.
    pub kind: RtwKind<'a>,
    /// Optional headers.
    pub options: ReqOptions,
}

/// Subprotocol of an [`Rtw`]. Lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RtwKind<'a> {
    /// The payload is all the data.
    Eager,
    /// As `Eager`, completed by a RECEIPT.
    DcEager {
        /// The requester's operation.
        send_id: OpId,
    },
    /// The payload is the beginning of the data, the rest comes in CTSDATA.
    LongCts {
        /// Length of all the data.
        msg_length: u64,
        /// The requester's operation.
        send_id: OpId,
        /// Number of CTSDATA packets that the requester asks to be granted.
        credit_request: u32,
    },
    /// As `LongCts`, completed by a RECEIPT.
    DcLongCts {
        /// Length of all the data.
        msg_length: u64,
        /// The requester's operation.
        send_id: OpId,
        /// Number of CTSDATA packets that the requester asks to be granted.
        credit_request: u32,
    },
    /// The responder reads the data from the requester's memory.
    LongRead {
        /// Length of all the data.
        msg_length: u64,
        /// The requester's operation.
        send_id: OpId,
        /// The requester's memory, at most [`MAX_IOV`] pieces.
        read_iov: &'a [RmaIov],
    },
}

impl RtwKind<'_> {
    /// The requester's operation, if the packet names one.
    #[must_use]
    pub const fn send_id(&self) -> Option<OpId> {
        match *self {
            Self::Eager => None,
            Self::DcEager { send_id }
            | Self::LongCts { send_id, .. }
            | Self::DcLongCts { send_id, .. }
            | Self::LongRead { send_id, .. } => Some(send_id),
        }
    }
}

wire!(EagerRtw: 8 { rma_iov_count: U32 });
wire!(DcEagerRtw: 16 { rma_iov_count: U32, send_id: U32, pad: U32 });
wire!(LongCtsRtw: 24 { rma_iov_count: U32, msg_length: U64, send_id: U32, credit_request: U32 });
wire!(LongReadRtw: 24 { rma_iov_count: U32, msg_length: U64, send_id: U32, read_iov_count: U32 });

impl Rtw<'_> {
    /// Type of the packet.
    #[inline]
    #[must_use]
    pub const fn packet_type(&self) -> PacketType {
        match self.kind {
            RtwKind::Eager => PacketType::EagerRtw,
            RtwKind::DcEager { .. } => PacketType::DcEagerRtw,
            RtwKind::LongCts { .. } => PacketType::LongCtsRtw,
            RtwKind::DcLongCts { .. } => PacketType::DcLongCtsRtw,
            RtwKind::LongRead { .. } => PacketType::LongReadRtw,
        }
    }

    /// Bytes that [`Self::emit`] writes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    #[must_use]
    pub const fn len(&self) -> usize {
        let fixed = match self.kind {
            RtwKind::Eager => size_of::<EagerRtw>(),
            RtwKind::DcEager { .. } => size_of::<DcEagerRtw>(),
            RtwKind::LongCts { .. } | RtwKind::DcLongCts { .. } => size_of::<LongCtsRtw>(),
            RtwKind::LongRead { read_iov, .. } => {
                size_of::<LongReadRtw>() + size_of_val::<[RmaIov]>(read_iov)
            }
        };
        fixed + size_of_val::<[RmaIov]>(self.rma_iov) + self.options.len()
    }

    /// Writes the header, to be followed by the payload; returns its length in bytes.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`]; [`EmitError::Count`] for more than [`MAX_IOV`] memory vectors.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        self.check_count("rma_iov", self.rma_iov)?;
        if let RtwKind::LongRead { read_iov, .. } = self.kind {
            self.check_count("read_iov", read_iov)?;
        }
        let available = buf.len();
        let mut out = Writer::new(buf);
        match self.put(&mut out) {
            Some(()) => Ok(available - out.remaining()),
            None => writer::too_small(self.packet_type(), self.len(), available),
        }
    }

    #[inline(always)]
    fn check_count(&self, field: &'static str, iov: &[RmaIov]) -> Result<(), EmitError> {
        if iov.len() > MAX_IOV {
            let packet_type = self.packet_type();
            return Err(EmitError::Count { packet_type, field, found: iov.len() });
        }
        Ok(())
    }

    #[inline(always)]
    fn put(&self, out: &mut Writer<'_>) -> Option<()> {
        let base = Base::new(self.packet_type(), self.options.flags().bits());
        let rma_iov_count = U32::new(self.rma_iov.len() as u32);
        match self.kind {
            RtwKind::Eager => self.finish(out, &EagerRtw { base, rma_iov_count }, &[]),
            RtwKind::DcEager { send_id } => {
                let (send_id, pad) = (U32::new(send_id.0), U32::new(0));
                self.finish(out, &DcEagerRtw { base, rma_iov_count, send_id, pad }, &[])
            }
            RtwKind::LongCts { msg_length, send_id, credit_request }
            | RtwKind::DcLongCts { msg_length, send_id, credit_request } => {
                let head = LongCtsRtw {
                    base,
                    rma_iov_count,
                    msg_length: U64::new(msg_length),
                    send_id: U32::new(send_id.0),
                    credit_request: U32::new(credit_request),
                };
                self.finish(out, &head, &[])
            }
            RtwKind::LongRead { msg_length, send_id, read_iov } => {
                let head = LongReadRtw {
                    base,
                    rma_iov_count,
                    msg_length: U64::new(msg_length),
                    send_id: U32::new(send_id.0),
                    read_iov_count: U32::new(read_iov.len() as u32),
                };
                self.finish(out, &head, read_iov)
            }
        }
    }

    #[inline(always)]
    fn finish<T>(&self, out: &mut Writer<'_>, head: &T, read_iov: &[RmaIov]) -> Option<()>
    where
        T: IntoBytes + Immutable,
    {
        out.put(head)?;
        out.put(self.rma_iov)?;
        self.options.put(out)?;
        out.put(read_iov)
    }
}

#[inline(always)]
pub(crate) fn read_eager<'a>(rest: &mut Cursor<'a>, flags: ReqFlags) -> Read<'a> {
    let head = rest.take_head::<EagerRtw>()?;
    let rma_iov = rest.take_iov(RMA_IOV, head.rma_iov_count)?;
    let options = ReqOptions::take(rest, flags)?;
    Ok(Header::Rtw(Rtw { rma_iov, kind: RtwKind::Eager, options }))
}

#[inline(always)]
pub(crate) fn read_dc_eager<'a>(rest: &mut Cursor<'a>, flags: ReqFlags) -> Read<'a> {
    let head = rest.take_head::<DcEagerRtw>()?;
    let rma_iov = rest.take_iov(RMA_IOV, head.rma_iov_count)?;
    let options = ReqOptions::take(rest, flags)?;
    let kind = RtwKind::DcEager { send_id: OpId(head.send_id.get()) };
    Ok(Header::Rtw(Rtw { rma_iov, kind, options }))
}

#[inline(always)]
pub(crate) fn read_longcts<'a>(rest: &mut Cursor<'a>, flags: ReqFlags) -> Read<'a> {
    let head = rest.take_head::<LongCtsRtw>()?;
    let rma_iov = rest.take_iov(RMA_IOV, head.rma_iov_count)?;
    let options = ReqOptions::take(rest, flags)?;
    let kind = RtwKind::LongCts {
        msg_length: head.msg_length.get(),
        send_id: OpId(head.send_id.get()),
        credit_request: head.credit_request.get(),
    };
    Ok(Header::Rtw(Rtw { rma_iov, kind, options }))
}

#[inline(always)]
pub(crate) fn read_dc_longcts<'a>(rest: &mut Cursor<'a>, flags: ReqFlags) -> Read<'a> {
    let head = rest.take_head::<LongCtsRtw>()?;
    let rma_iov = rest.take_iov(RMA_IOV, head.rma_iov_count)?;
    let options = ReqOptions::take(rest, flags)?;
    let kind = RtwKind::DcLongCts {
        msg_length: head.msg_length.get(),
        send_id: OpId(head.send_id.get()),
        credit_request: head.credit_request.get(),
    };
    Ok(Header::Rtw(Rtw { rma_iov, kind, options }))
}

#[inline(always)]
pub(crate) fn read_longread<'a>(rest: &mut Cursor<'a>, flags: ReqFlags) -> Read<'a> {
    let head = rest.take_head::<LongReadRtw>()?;
    let rma_iov = rest.take_iov(RMA_IOV, head.rma_iov_count)?;
    let options = ReqOptions::take(rest, flags)?;
    let kind = RtwKind::LongRead {
        msg_length: head.msg_length.get(),
        send_id: OpId(head.send_id.get()),
        read_iov: rest.take_iov(READ_IOV, head.read_iov_count)?,
    };
    Ok(Header::Rtw(Rtw { rma_iov, kind, options }))
}

/// `rma_iov=[…] send_id=0x1 …`, without the type's name.
impl fmt::Display for Rtw<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_line(f, "")
    }
}

impl<'a> Fields<'a> for Rtw<'a> {
    fn visit(&self, see: &mut See<'_, 'a>) -> fmt::Result {
        see("rma_iov", Value::Iov(self.rma_iov))?;
        match self.kind {
            RtwKind::Eager => {}
            RtwKind::DcEager { send_id } => see("send_id", Value::OpId(send_id))?,
            RtwKind::LongCts { msg_length, send_id, credit_request }
            | RtwKind::DcLongCts { msg_length, send_id, credit_request } => {
                see("msg_length", Value::Number(msg_length))?;
                see("send_id", Value::OpId(send_id))?;
                see("credit_request", Value::Number(credit_request.into()))?;
            }
            RtwKind::LongRead { msg_length, send_id, read_iov } => {
                see("msg_length", Value::Number(msg_length))?;
                see("send_id", Value::OpId(send_id))?;
                see("read_iov", Value::Iov(read_iov))?;
            }
        }
        self.options.visit(see)
    }
}
