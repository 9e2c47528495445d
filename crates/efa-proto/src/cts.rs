//! CTS, the receiver's grant, and CTSDATA, what the sender sends under it (section 3.2, tables 3.6
//! and 3.7).
//!
//! ```text
//!   CTS       connid@4  send_id@8  recv_id@12  recv_length u64@16                        24
//!   CTSDATA   recv_id@4  seg_length u64@8  seg_offset u64@16  [connid@24  pad@28]        24 or 32
//! ```
//!
//! `seg_offset` counts from the start of the whole message. Both forms of CTSDATA occur: with
//! connid (flag 0x8000) since release 1.14, without before.

use core::fmt;

use zerocopy::little_endian::{U32, U64};

use crate::base::{Base, Cursor, Writer, wire};
use crate::{
    Connid, CtsFlags, EmitError, Header, OpId, Packet, PacketFlags, PacketType, ParseError,
};

/// A grant: the receiver lets the sender send `recv_length` more bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cts {
    /// Incarnation of the sender.
    pub connid: Option<Connid>,
    /// The data sender's operation, out of the request (or out of READRSP).
    pub send_id: OpId,
    /// The receiver's operation, to be used in CTSDATA.
    pub recv_id: OpId,
    /// Bytes granted; replaces what is left of an earlier grant.
    pub recv_length: u64,
    /// The data answers an emulated read; old releases look `send_id` up elsewhere then.
    pub emulated_read: bool,
}

/// A segment of a message, as payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CtsData {
    /// Incarnation of the sender; absent, the header is 8 bytes shorter.
    pub connid: Option<Connid>,
    /// The receiver's operation, out of the CTS.
    pub recv_id: OpId,
    /// Length of the payload in bytes.
    pub seg_length: u64,
    /// Where the payload belongs in the whole message, in bytes.
    pub seg_offset: u64,
}

wire!(CtsHead: 24 { connid: U32, send_id: U32, recv_id: U32, recv_length: U64 });
wire!(CtsDataHead: 24 { recv_id: U32, seg_length: U64, seg_offset: U64 });
wire!(CtsDataConnidHead: 32 {
    recv_id: U32, seg_length: U64, seg_offset: U64, connid: U32, pad: U32,
});

impl Cts {
    /// Bytes that [`Self::emit`] writes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub const fn len(&self) -> usize {
        size_of::<CtsHead>()
    }

    /// Writes the packet; returns its length in bytes.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let mut flags = CtsFlags::empty();
        flags.set(CtsFlags::EMULATED_READ, self.emulated_read);
        flags.set(CtsFlags::CONNID, self.connid.is_some());
        let head = CtsHead {
            base: Base::new(PacketType::Cts, flags.bits()),
            connid: U32::new(self.connid.unwrap_or_default().0),
            send_id: U32::new(self.send_id.0),
            recv_id: U32::new(self.recv_id.0),
            recv_length: U64::new(self.recv_length),
        };
        Writer::put_only(PacketType::Cts, &head, buf)
    }
}

pub(crate) fn parse_cts(flags: CtsFlags, bytes: &[u8]) -> Result<Packet<'_>, ParseError> {
    let (head, rest) = Cursor::head::<CtsHead>(PacketType::Cts, bytes)?;
    let cts = Cts {
        connid: flags.contains(CtsFlags::CONNID).then(|| Connid(head.connid.get())),
        send_id: OpId(head.send_id.get()),
        recv_id: OpId(head.recv_id.get()),
        recv_length: head.recv_length.get(),
        emulated_read: flags.contains(CtsFlags::EMULATED_READ),
    };
    Ok(Packet { header: Header::Cts(cts), payload: rest.rest() })
}

/// `send_id=… recv_id=… recv_length=…`, without the type's name.
impl fmt::Display for Cts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { send_id, recv_id, recv_length, .. } = self;
        write!(f, "send_id={send_id} recv_id={recv_id} recv_length={recv_length}")?;
        f.write_str(if self.emulated_read { " emulated_read" } else { "" })?;
        crate::packet::fmt_connid(f, self.connid)
    }
}

impl CtsData {
    /// Bytes that [`Self::emit`] writes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub const fn len(&self) -> usize {
        match self.connid {
            Some(_) => size_of::<CtsDataConnidHead>(),
            None => size_of::<CtsDataHead>(),
        }
    }

    /// Writes the header, to be followed by the payload; returns its length in bytes.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let packet_type = PacketType::CtsData;
        let recv_id = U32::new(self.recv_id.0);
        let (seg_length, seg_offset) = (U64::new(self.seg_length), U64::new(self.seg_offset));
        let (flags, connid) = PacketFlags::with_connid(self.connid);
        let base = Base::new(packet_type, flags.bits());
        if self.connid.is_none() {
            let head = CtsDataHead { base, recv_id, seg_length, seg_offset };
            return Writer::put_only(packet_type, &head, buf);
        }
        let pad = U32::new(0);
        let head = CtsDataConnidHead { base, recv_id, seg_length, seg_offset, connid, pad };
        Writer::put_only(packet_type, &head, buf)
    }
}

pub(crate) fn parse_ctsdata(flags: PacketFlags, bytes: &[u8]) -> Result<Packet<'_>, ParseError> {
    let packet_type = PacketType::CtsData;
    let (ctsdata, payload) = if flags.contains(PacketFlags::CONNID) {
        let (head, rest) = Cursor::head::<CtsDataConnidHead>(packet_type, bytes)?;
        let ctsdata = CtsData {
            connid: Some(Connid(head.connid.get())),
            recv_id: OpId(head.recv_id.get()),
            seg_length: head.seg_length.get(),
            seg_offset: head.seg_offset.get(),
        };
        (ctsdata, rest.segment(ctsdata.seg_length)?)
    } else {
        let (head, rest) = Cursor::head::<CtsDataHead>(packet_type, bytes)?;
        let ctsdata = CtsData {
            connid: None,
            recv_id: OpId(head.recv_id.get()),
            seg_length: head.seg_length.get(),
            seg_offset: head.seg_offset.get(),
        };
        (ctsdata, rest.segment(ctsdata.seg_length)?)
    };
    Ok(Packet { header: Header::CtsData(ctsdata), payload })
}

/// `recv_id=… seg_offset=… seg_length=…`, without the type's name.
impl fmt::Display for CtsData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { recv_id, seg_offset, seg_length, .. } = self;
        write!(f, "recv_id={recv_id} seg_offset={seg_offset} seg_length={seg_length}")?;
        crate::packet::fmt_connid(f, self.connid)
    }
}
