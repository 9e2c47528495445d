//! Any operations of the matcher, compared with two lists.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("matcher", bytes));
