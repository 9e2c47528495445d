//! Calls of our provider for libfabric with wrong objects, sizes, pointers and flags.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("provider_calls", bytes));
