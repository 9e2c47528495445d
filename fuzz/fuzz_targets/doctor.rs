//! Files of a machine with anything in them, for `efa doctor`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("doctor", bytes));
