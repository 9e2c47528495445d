//! An endpoint with a hostile peer that knows the protocol.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("lying_peer", bytes));
