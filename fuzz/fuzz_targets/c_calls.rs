//! Calls of the C library with invalid handles, sizes and pointers.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("c_calls", bytes));
