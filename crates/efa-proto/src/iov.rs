//! `efa_rma_iov`: a piece of registered memory at a peer (section 3.3).
//!
//! ```text
//!   addr u64 @0   len u64 @8   key u64 @16      24 bytes
//! ```

use core::fmt;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A piece of registered memory, in its wire form.
///
/// Slices of it are borrowed from packets, so it has no alignment and keeps little-endian bytes.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct RmaIov {
    addr: U64,
    len: U64,
    key: U64,
}

const _: () = assert!(size_of::<RmaIov>() == RmaIov::SIZE);

impl RmaIov {
    /// Length in bytes on the wire.
    pub const SIZE: usize = 24;

    /// `len` bytes at `addr` of the memory registered under `key`.
    #[inline]
    #[must_use]
    pub const fn new(addr: u64, len: u64, key: u64) -> Self {
        Self { addr: U64::new(addr), len: U64::new(len), key: U64::new(key) }
    }

    /// Start: a virtual address or an offset, depending on the peer's registration mode.
    #[inline]
    #[must_use]
    pub const fn addr(&self) -> u64 {
        self.addr.get()
    }

    /// Length in bytes (the field's name on the wire).
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a field of the packet, not a container")]
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len.get()
    }

    /// The remote key.
    #[inline]
    #[must_use]
    pub const fn key(&self) -> u64 {
        self.key.get()
    }
}

impl fmt::Debug for RmaIov {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RmaIov")
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("len", &self.len())
            .field("key", &format_args!("{:#x}", self.key()))
            .finish()
    }
}

/// `0x7f00+4096 key 0x11`
impl fmt::Display for RmaIov {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{} key {:#x}", self.addr(), self.len(), self.key())
    }
}

/// `[a, b]`, each entry as [`RmaIov`] displays.
pub(crate) struct IovList<'a>(pub(crate) &'a [RmaIov]);

impl fmt::Display for IovList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, iov) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            write!(f, "{separator}{iov}")?;
        }
        f.write_str("]")
    }
}
