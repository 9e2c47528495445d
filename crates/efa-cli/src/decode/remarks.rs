//! What a packet's own line leaves out: flags that don't fit, and names of what a HANDSHAKE announces.

use std::fmt;

use efa_handshake::Extras;
use efa_proto::{BaseHeader, Handshake, Header, ReqFlags};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// Remarks on a packet.
#[derive(Clone, Copy, Default)]
pub(super) struct Remarks {
    /// All flags.
    flags: u16,
    /// Kind flags (MSG, TAGGED, …) that the type should have and the packet doesn't, or the reverse.
    mismatch: ReqFlags,
    /// Flags without a meaning.
    unknown: u16,
    /// What a HANDSHAKE announces, as far as bits have names.
    extras: Option<Extras>,
}

impl Remarks {
    /// On the packet that begins with `header`, which was parsed from `bytes`.
    pub(super) fn new(header: &Header<'_>, bytes: &[u8]) -> Self {
        let Ok(base) = BaseHeader::parse(bytes) else { return Self::default() };
        let extras = match header {
            Header::Handshake(Handshake { extra_info, .. }) => {
                Some(Extras::from_bits_retain(extra_info.word(0)))
            }
            _ => None,
        };
        let (mismatch, unknown) = (base.kind_mismatch(), base.unknown_flags());
        Self { flags: base.flags, mismatch, unknown, extras }
    }

    /// Kind flags that are not there, and those that should not be.
    fn kinds(&self) -> [(&'static str, ReqFlags); 2] {
        let found = ReqFlags::from_bits_retain(self.flags);
        [
            ("missing kind flags", self.mismatch.difference(found)),
            ("wrong kind flags", self.mismatch.intersection(found)),
        ]
    }
}

/// Names of the flags that have one.
fn names<F: bitflags::Flags>(flags: F) -> Vec<&'static str> {
    flags.iter_names().map(|(name, _)| name).collect()
}

/// ` (missing kind flags: MSG, TAGGED) (unknown flags: 0x0040)`, or nothing.
impl fmt::Display for Remarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(extras) = self.extras.filter(|extras| !extras.is_empty()) {
            write!(f, " (extras: {})", names(extras).join(", "))?;
        }
        for (what, flags) in self.kinds() {
            if !flags.is_empty() {
                write!(f, " ({what}: {})", names(flags).join(", "))?;
            }
        }
        if self.unknown != 0 {
            write!(f, " (unknown flags: {:#06x})", self.unknown)?;
        }
        Ok(())
    }
}

/// `flags`, and of the others those that there are.
impl Serialize for Remarks {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("flags", &format_args!("{:#06x}", self.flags))?;
        for (name, (_, flags)) in
            ["missing_kind_flags", "wrong_kind_flags"].into_iter().zip(self.kinds())
        {
            if !flags.is_empty() {
                map.serialize_entry(name, &names(flags))?;
            }
        }
        if self.unknown != 0 {
            map.serialize_entry("unknown_flags", &format_args!("{:#06x}", self.unknown))?;
        }
        if let Some(extras) = self.extras {
            map.serialize_entry("extras", &names(extras))?;
        }
        map.end()
    }
}
