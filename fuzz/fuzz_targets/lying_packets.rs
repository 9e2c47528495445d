//! An endpoint with a hostile peer that chooses every field of its packets.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("lying_packets", bytes));
