//! Optional headers of requests (section 3.1, table 3.2).
//!
//! They follow the mandatory header in the order of their flag bits, without padding in between,
//! so that nothing behind them is aligned:
//!
//! ```text
//!   0x0001  size u32, address [u8; size]   raw address   36 or 40 bytes, or more in future
//!   0x0002  u64                            cq data        8 bytes
//!   0x8000  u32                            connid         4 bytes
//! ```

use core::fmt;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::address::AddressBytes;
use crate::cursor::Cursor;
use crate::value::{FieldValue as Value, Fields, See, visit_connid};
use crate::writer::Writer;
use crate::{Connid, ParseError, RawAddress, RawAddressForm, ReqFlags};

/// Optional headers of a request. Peers send the raw address or the connid; a request with both parses,
/// too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReqOptions {
    /// Address of the sender, sent until the receiver's HANDSHAKE has arrived.
    pub raw_address: Option<(RawAddress, RawAddressForm)>,
    /// Data for the completion at the target.
    pub cq_data: Option<u64>,
    /// Incarnation of the sender.
    pub connid: Option<Connid>,
}

impl ReqOptions {
    /// No optional header.
    pub const NONE: Self = Self { raw_address: None, cq_data: None, connid: None };

    /// Bytes that the headers take.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        let raw_address = match self.raw_address {
            Some((_, form)) => form.header_len(),
            None => 0,
        };
        let cq_data = if self.cq_data.is_some() { 8 } else { 0 };
        let connid = if self.connid.is_some() { 4 } else { 0 };
        raw_address + cq_data + connid
    }

    /// Whether there is no header at all.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.raw_address.is_none() && self.cq_data.is_none() && self.connid.is_none()
    }

    /// The flags that announce these headers.
    #[inline(always)]
    pub(crate) fn flags(&self) -> ReqFlags {
        let mut flags = ReqFlags::empty();
        flags.set(ReqFlags::RAW_ADDRESS, self.raw_address.is_some());
        flags.set(ReqFlags::CQ_DATA, self.cq_data.is_some());
        flags.set(ReqFlags::CONNID, self.connid.is_some());
        flags
    }

    /// The connid header's value, else the one in the raw address.
    pub(crate) fn any_connid(&self) -> Option<Connid> {
        self.connid.or(self.raw_address.map(|(address, _)| address.connid))
    }

    /// Takes the headers that `flags` announces.
    #[inline(always)]
    pub(crate) fn take(rest: &mut Cursor<'_>, flags: ReqFlags) -> Result<Self, ParseError> {
        let raw_address = if flags.contains(ReqFlags::RAW_ADDRESS) {
            let size = rest.take::<U32>("raw_address_size")?.get();
            let form = if size < 36 { RawAddressForm::Short } else { RawAddressForm::Padded };
            Some((rest.take_address(size)?.get(), form))
        } else {
            None
        };
        let cq_data = if flags.contains(ReqFlags::CQ_DATA) {
            Some(rest.take::<U64>("cq_data")?.get())
        } else {
            None
        };
        let connid = if flags.contains(ReqFlags::CONNID) {
            Some(Connid(rest.take::<U32>("connid")?.get()))
        } else {
            None
        };
        Ok(Self { raw_address, cq_data, connid })
    }

    #[inline(always)]
    pub(crate) fn put(&self, out: &mut Writer<'_>) -> Option<()> {
        match &self.raw_address {
            None => {}
            Some((address, RawAddressForm::Padded)) => {
                let (size, address, pad) = (PADDED, AddressBytes::new(address), U32::new(0));
                out.put(&PaddedAddress { size, address, pad })?;
            }
            Some((address, RawAddressForm::Short)) => {
                out.put(&U32::new(RawAddress::SIZE as u32))?;
                out.put(&AddressBytes::new(address))?;
            }
        }
        if let Some(cq_data) = self.cq_data {
            out.put(&U64::new(cq_data))?;
        }
        if let Some(connid) = self.connid {
            out.put(&U32::new(connid.0))?;
        }
        Some(())
    }
}

/// The raw address header that all releases since 1.13 send.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PaddedAddress {
    size: U32,
    address: AddressBytes,
    pad: U32,
}

const PADDED: U32 = U32::new(36);
const _: () = assert!(size_of::<PaddedAddress>() == PADDED.get() as usize + 4);

/// ` raw_address=… cq_data=… connid=…`, each only if present.
impl fmt::Display for ReqOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_line(f, " ")
    }
}

impl<'a> Fields<'a> for ReqOptions {
    fn visit(&self, see: &mut See<'_, 'a>) -> fmt::Result {
        if let Some((address, _)) = self.raw_address {
            see("raw_address", Value::Address(address))?;
        }
        if let Some(cq_data) = self.cq_data {
            see("cq_data", Value::Bits(cq_data))?;
        }
        visit_connid(self.connid, see)
    }
}
