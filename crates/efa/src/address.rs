//! Addresses of endpoints, as programs exchange them (section 1.4 of the protocol).

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use efa_device::{Gid, Qpn};
use efa_proto::{Connid, RawAddress};

/// The address of an endpoint: 32 bytes that a peer needs to send to it (`FI_ADDR_EFA`).
///
/// `Display` and `Debug` print GID, queue pair number and connid: `[fe80::1]:12/0x0000002a`. `FromStr`
/// parses that text.
///
/// ```
/// let address: efa::Address = "[fe80::1]:12/0x0000002a".parse()?;
/// assert_eq!(address.to_string(), "[fe80::1]:12/0x0000002a");
/// assert_eq!(efa::Address::from_bytes(address.to_bytes()), address);
/// # Ok::<(), efa::AddressError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(RawAddress);

/// A text that is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an address; an example of one is [fe80::1]:12/0x0000002a")]
pub struct AddressError(String);

impl Address {
    /// Length in bytes.
    pub const SIZE: usize = RawAddress::SIZE;

    /// The bytes, as in packets.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// The address with these bytes. All bytes are accepted; whether an endpoint has the address shows
    /// when it is used.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        let [gid @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = bytes;
        let [.., q0, q1, _, _, c0, c1, c2, c3, _, _, _, _, _, _, _, _] = bytes;
        let qpn = u16::from_le_bytes([q0, q1]);
        let connid = Connid(u32::from_le_bytes([c0, c1, c2, c3]));
        Self(RawAddress { gid, qpn, connid })
    }

    /// The GID of the interface.
    #[must_use]
    pub fn gid(&self) -> Gid {
        Gid(self.0.gid)
    }

    /// The queue pair number on that interface.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        Qpn(self.0.qpn)
    }

    /// The connection ID, which tells incarnations of the queue pair number apart.
    #[must_use]
    pub fn connid(&self) -> u32 {
        self.0.connid.0
    }

    pub(crate) const fn from_raw(raw: RawAddress) -> Self {
        Self(raw)
    }

    pub(crate) fn raw(&self) -> RawAddress {
        self.0
    }
}

impl From<RawAddress> for Address {
    fn from(raw: RawAddress) -> Self {
        Self(raw)
    }
}

impl From<Address> for RawAddress {
    fn from(address: Address) -> Self {
        address.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The text of `Display`.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        parse(text).map(Self).ok_or_else(|| AddressError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<RawAddress> {
    let (gid, rest) = text.strip_prefix('[')?.split_once("]:")?;
    let (qpn, connid) = rest.split_once("/0x")?;
    let connid = u32::from_str_radix(connid, 16).ok()?;
    Some(RawAddress {
        gid: gid.parse::<Ipv6Addr>().ok()?.octets(),
        qpn: qpn.parse().ok()?,
        connid: Connid(connid),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_that_is_no_address_is_an_error_with_the_text() {
        for text in ["", "[fe80::1]", "[fe80::1]:1", "fe80::1:1/0x1", "[x]:1/0x1", "[::]:70000/0x1"]
        {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.to_string().starts_with(&format!("`{text}` is not an address")));
        }
    }

    proptest! {
        #[test]
        fn address_survives_bytes_and_text(gid: [u8; 16], qpn: u16, connid: u32) {
            let raw = RawAddress { gid, qpn, connid: Connid(connid) };
            let address = Address::from(raw);
            prop_assert_eq!(Address::from_bytes(address.to_bytes()), address);
            prop_assert_eq!(address.to_string().parse::<Address>(), Ok(address));
            prop_assert_eq!(format!("{address:?}"), address.to_string());
            prop_assert_eq!(RawAddress::from_bytes(&address.to_bytes()), Ok(raw));
        }
    }
}
