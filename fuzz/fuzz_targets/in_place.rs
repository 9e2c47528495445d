//! An endpoint that receives in place, an honest sender and a liar.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("in_place", bytes));
