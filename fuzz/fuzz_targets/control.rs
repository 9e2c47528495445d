//! Any bytes as the other side of `efa pingpong` before a run.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("control", bytes));
