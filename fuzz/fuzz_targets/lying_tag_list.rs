//! A peer that knows the protocol and lies.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("lying_tag_list", bytes));
