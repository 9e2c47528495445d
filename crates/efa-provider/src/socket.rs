//! Internet addresses of C (`sockaddr_in`, `sockaddr_in6`).

#![allow(unsafe_code)]

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::abi::{FI_SOCKADDR_IN, FI_SOCKADDR_IN6};

/// The address at `at`; `None` if it is of another family, or cut off.
///
/// # Safety
/// `length` bytes at `at` are readable.
pub(crate) unsafe fn read(at: *const u8, length: usize) -> Option<SocketAddr> {
    if length < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: the bytes are readable by the caller's promise, as far as each length is checked; every bit pattern is
    // a valid value of these structures.
    unsafe {
        match i32::from(at.cast::<libc::sa_family_t>().read_unaligned()) {
            libc::AF_INET if length >= size_of::<libc::sockaddr_in>() => {
                let address = at.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
                Some((ip, u16::from_be(address.sin_port)).into())
            }
            libc::AF_INET6 if length >= size_of::<libc::sockaddr_in6>() => {
                let address = at.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
                let port = u16::from_be(address.sin6_port);
                Some(SocketAddrV6::new(ip, port, 0, address.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// The address as C has it.
pub(crate) fn bytes(address: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::new();
    match address {
        SocketAddr::V4(address) => {
            bytes.extend((libc::AF_INET as libc::sa_family_t).to_ne_bytes());
            bytes.extend(address.port().to_be_bytes());
            bytes.extend(address.ip().octets());
            bytes.resize(size_of::<libc::sockaddr_in>(), 0);
        }
        SocketAddr::V6(address) => {
            bytes.extend((libc::AF_INET6 as libc::sa_family_t).to_ne_bytes());
            bytes.extend(address.port().to_be_bytes());
            bytes.extend(0_u32.to_ne_bytes());
            bytes.extend(address.ip().octets());
            bytes.extend(address.scope_id().to_ne_bytes());
        }
    }
    bytes
}

/// The format of an address that [`bytes`] made.
pub(crate) fn format(bytes: &[u8]) -> u32 {
    match bytes.len() == size_of::<libc::sockaddr_in>() {
        true => FI_SOCKADDR_IN,
        false => FI_SOCKADDR_IN6,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

    use super::*;

    #[test]
    fn address_of_either_family_is_written_and_read_back() {
        for text in ["10.1.2.3:70", "[fe80::1%3]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let bytes = bytes(address);
            // SAFETY: the bytes are those of the vector.
            assert_eq!(unsafe { read(bytes.as_ptr(), bytes.len()) }, Some(address));
            // SAFETY: as above.
            assert_eq!(unsafe { read(bytes.as_ptr(), bytes.len() - 1) }, None);
        }
    }
}
