//! RTR, requests to read from the peer's memory by packets (section 3.3, tables 3.10, 3.12).
//!
//! ```text
//!   SHORT, LONGCTS   rma_iov_count@4  msg_length@8  recv_id@16  recv_length u32@20
//!                                                                rma_iov[n]@24       24+24n
//! ```
//!
//! The specification calls `recv_length` of SHORT_RTR padding; responders take their window from
//! it, so it must be the total length there. An RTR has no application data; trailing bytes are
//! kept as payload and mean nothing (the crate's rule for all such types).

use core::fmt;

use zerocopy::little_endian::{U32, U64};

use crate::base::{Base, wire};
use crate::cursor::{Cursor, RMA_IOV, Read};
use crate::value::{FieldValue as Value, Fields, See};
use crate::writer::{self, Writer};
use crate::{EmitError, Header, MAX_IOV, OpId, PacketType, ReqFlags, ReqOptions, RmaIov};

/// A request to read from the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rtr<'a> {
    /// The peer's memory to read, at most [`MAX_IOV`] pieces.
    pub rma_iov: &'a [RmaIov],
    /// How the data comes back.
    pub kind: RtrKind,
    /// Length of all the data in bytes.
    pub msg_length: u64,
    /// The requester's operation.
    pub recv_id: OpId,
    /// Bytes the responder may send at once: all of them for SHORT, the first window for LONGCTS.
    pub recv_length: u32,
    /// Optional headers.
    pub options: ReqOptions,
}

/// Subprotocol of an [`Rtr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RtrKind {
    /// One READRSP holds all the data.
    Short,
    /// A READRSP begins, CTSDATA follow.
    LongCts,
}

wire!(RtrHead: 24 { rma_iov_count: U32, msg_length: U64, recv_id: U32, recv_length: U32 });

impl Rtr<'_> {
    /// Type of the packet.
    #[inline]
    #[must_use]
    pub const fn packet_type(&self) -> PacketType {
        match self.kind {
            RtrKind::Short => PacketType::ShortRtr,
            RtrKind::LongCts => PacketType::LongCtsRtr,
        }
    }

    /// Bytes that [`Self::emit`] writes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    #[must_use]
    pub const fn len(&self) -> usize {
        size_of::<RtrHead>() + size_of_val::<[RmaIov]>(self.rma_iov) + self.options.len()
    }

    /// Writes the packet; returns its length in bytes.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`]; [`EmitError::Count`] for more than [`MAX_IOV`] memory vectors.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let packet_type = self.packet_type();
        if self.rma_iov.len() > MAX_IOV {
            let found = self.rma_iov.len();
            return Err(EmitError::Count { packet_type, field: "rma_iov", found });
        }
        let available = buf.len();
        let mut out = Writer::new(buf);
        match self.put(&mut out) {
            Some(()) => Ok(available - out.remaining()),
            None => writer::too_small(packet_type, self.len(), available),
        }
    }

    #[inline(always)]
    fn put(&self, out: &mut Writer<'_>) -> Option<()> {
        out.put(&RtrHead {
            base: Base::new(self.packet_type(), self.options.flags().bits()),
            rma_iov_count: U32::new(self.rma_iov.len() as u32),
            msg_length: U64::new(self.msg_length),
            recv_id: U32::new(self.recv_id.0),
            recv_length: U32::new(self.recv_length),
        })?;
        out.put(self.rma_iov)?;
        self.options.put(out)
    }
}

#[inline(always)]
pub(crate) fn read<'a>(rest: &mut Cursor<'a>, flags: ReqFlags) -> Read<'a> {
    let head = rest.take_head::<RtrHead>()?;
    let rma_iov = rest.take_iov(RMA_IOV, head.rma_iov_count)?;
    let options = ReqOptions::take(rest, flags)?;
    let kind = match rest.packet_type() {
        PacketType::ShortRtr => RtrKind::Short,
        _ => RtrKind::LongCts,
    };
    Ok(Header::Rtr(Rtr {
        rma_iov,
        kind,
        msg_length: head.msg_length.get(),
        recv_id: OpId(head.recv_id.get()),
        recv_length: head.recv_length.get(),
        options,
    }))
}

/// `rma_iov=[…] msg_length=… recv_id=… recv_length=…`, without the type's name.
impl fmt::Display for Rtr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_line(f, "")
    }
}

impl<'a> Fields<'a> for Rtr<'a> {
    fn visit(&self, see: &mut See<'_, 'a>) -> fmt::Result {
        see("rma_iov", Value::Iov(self.rma_iov))?;
        see("msg_length", Value::Number(self.msg_length))?;
        see("recv_id", Value::OpId(self.recv_id))?;
        see("recv_length", Value::Number(self.recv_length.into()))?;
        self.options.visit(see)
    }
}
