//! PEER_ERROR: an operation failed at the peer. No release up to 2.6 has it; libfabric's main branch has,
//! with feature bit 9, and its layout may still change. Only peers with that bit accept it.
//!
//! ```text
//!   op_id@4  ref_kind u8@8  pad@9  prov_errno@12  connid@16      20 bytes
//! ```

use core::fmt;

use zerocopy::little_endian::U32;

use crate::base::{Base, wire};
use crate::cursor::{Cursor, Read};
use crate::{Connid, EmitError, Header, OpId, PacketFlags, PacketType};

/// An operation failed at the sender of this packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerError {
    /// Identifies what failed; `ref_kind` gives its meaning.
    pub op_id: OpId,
    /// Meaning of `op_id`: 0 an operation's id, 1 a `msg_id`, 2 a `msg_id` to be skipped.
    pub ref_kind: u8,
    /// The provider's error number.
    pub prov_errno: u32,
    /// Incarnation of the sender.
    pub connid: Option<Connid>,
}

wire!(PeerErrorHead: 20 { op_id: U32, ref_kind: u8, pad: [u8; 3], prov_errno: U32, connid: U32 });

impl PeerError {
    /// Bytes that [`Self::emit`] writes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub const fn len(&self) -> usize {
        size_of::<PeerErrorHead>()
    }

    /// Writes the packet, for tests and tools; returns its length in bytes.
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let (flags, connid) = PacketFlags::with_connid(self.connid);
        let head = PeerErrorHead {
            base: Base::new(PacketType::PeerError, flags.bits()),
            op_id: U32::new(self.op_id.0),
            ref_kind: self.ref_kind,
            pad: [0; 3],
            prov_errno: U32::new(self.prov_errno),
            connid,
        };
        crate::writer::emit_head(PacketType::PeerError, &head, buf)
    }
}

#[inline]
pub(crate) fn read<'a>(rest: &mut Cursor<'a>, flags: PacketFlags) -> Read<'a> {
    let head = rest.take_head::<PeerErrorHead>()?;
    Ok(Header::PeerError(PeerError {
        op_id: OpId(head.op_id.get()),
        ref_kind: head.ref_kind,
        prov_errno: head.prov_errno.get(),
        connid: flags.connid(head.connid),
    }))
}

/// `op_id=… ref_kind=… prov_errno=…`, without the type's name.
impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op_id, ref_kind, prov_errno, .. } = self;
        write!(f, "op_id={op_id} ref_kind={ref_kind} prov_errno={prov_errno}")?;
        crate::packet::fmt_connid(f, self.connid)
    }
}
