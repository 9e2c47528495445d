//! Any sequence of packets and calls of the handshake.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("handshake", bytes));
