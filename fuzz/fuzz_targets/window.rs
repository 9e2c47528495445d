//! Any operations of the reorder window, compared with a map.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("window", bytes));
