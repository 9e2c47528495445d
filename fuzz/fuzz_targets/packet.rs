//! Any bytes as a packet: parsed, displayed and emitted.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("packet", bytes));
