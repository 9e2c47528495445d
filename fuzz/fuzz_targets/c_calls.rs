//! A C program that holds everything wrong.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("c_calls", bytes));
