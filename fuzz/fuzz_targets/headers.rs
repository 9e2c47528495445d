//! Headers of any field values, emitted and parsed.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("headers", bytes));
