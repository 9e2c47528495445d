//! Any contents of the files that `efa doctor` reads.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("doctor", bytes));
