//! A static library without the standard library that parses packets and keeps a peer's state.
//!
//! It has a panic handler of its own, so it links only while no dependency brings `std`, which has one too.

#![no_std]

use core::panic::PanicInfo;

use efa_handshake::PeerState;
use efa_proto::Packet;

/// Whether the bytes of one packet elicit a HANDSHAKE.
#[unsafe(no_mangle)]
pub extern "C" fn efa_elicits_handshake(packet: &[u8; 64]) -> bool {
    Packet::parse(packet).is_ok() && PeerState::new().packet_received().is_some()
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}
