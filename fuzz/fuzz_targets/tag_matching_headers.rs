//! Any bytes as TMH and RVH.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("tag_matching_headers", bytes));
