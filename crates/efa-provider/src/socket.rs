//! Internet addresses of C (`sockaddr_in`, `sockaddr_in6`).

#![allow(unsafe_code)]

use std::ffi::CString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::ptr::{null, null_mut};

use efa::{AddressFamily, Link};

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

/// The address at `at`, as long as its family says.
///
/// # Safety
/// `at` is null or points to an internet address, or to another whose family is readable.
pub(crate) unsafe fn at(at: *const u8) -> Option<SocketAddr> {
    if at.is_null() {
        return None;
    }
    // SAFETY: the caller's promise; more than the family is read of internet addresses alone.
    unsafe { read(at, size_of::<libc::sockaddr_in6>()) }
}

/// The port of a service that the system knows by this name, as by /etc/services.
pub(crate) fn port_of(service: &str) -> Option<u16> {
    let service = CString::new(service).ok()?;
    let mut found = null_mut();
    // SAFETY: zeros are a valid value: null pointers and numbers. `getaddrinfo` reads the name and the hints, and writes a
    // list that is freed once. Its addresses are internet addresses.
    unsafe {
        let hints = libc::addrinfo {
            ai_family: libc::AF_INET,
            ai_socktype: libc::SOCK_STREAM,
            ..std::mem::zeroed()
        };
        if libc::getaddrinfo(null(), service.as_ptr(), &raw const hints, &raw mut found) != 0 {
            return None;
        }
        let address = at((*found).ai_addr.cast());
        libc::freeaddrinfo(found);
        address.map(|address| address.port())
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

/// Where a program listens whose entry has this source. If it asked for nothing, and reaches only this host, others
/// don't reach it.
pub(crate) fn to_listen_at(source: SocketAddr, link: Link) -> SocketAddr {
    match link {
        Link::Shm | Link::Local if source.ip().is_unspecified() && source.port() == 0 => {
            SocketAddr::new(AddressFamily::of(source.ip()).loopback(), 0)
        }
        _ => source,
    }
}

/// The address by which others reach one of this host: in place of all addresses the one that other networks are
/// reached from.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    /// Addresses outside this host's network, for documentation.
    const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const ELSEWHERE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    if !address.ip().is_unspecified() {
        return address;
    }
    let elsewhere = match address {
        SocketAddr::V4(_) => ELSEWHERE.into(),
        SocketAddr::V6(_) => ELSEWHERE_V6.into(),
    };
    let loopback = || AddressFamily::of(address.ip()).loopback();
    let ip = towards(SocketAddr::new(elsewhere, 1)).unwrap_or_else(loopback);
    SocketAddr::new(ip, address.port())
}

/// The address of this host from which `destination` is reached. Sends nothing.
pub(crate) fn towards(destination: SocketAddr) -> Option<IpAddr> {
    let all = AddressFamily::of(destination.ip()).unspecified();
    let socket = UdpSocket::bind((all, 0)).ok()?;
    socket.connect((destination.ip(), 1)).ok()?;
    Some(socket.local_addr().ok()?.ip())
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
