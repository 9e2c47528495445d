//! Any order of events between software and a device with a tag list.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("offload", bytes));
