//! Any contents of the rings of the direct data path.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("rings", bytes));
