//! An endpoint that receives in place, with an honest and a hostile sender.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("in_place", bytes));
