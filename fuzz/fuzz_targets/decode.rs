//! Any bytes as a capture, through all of `efa decode`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("decode", bytes));
