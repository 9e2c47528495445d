//! Any contents of the rings that another process shares on the shm link.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("shm_link", bytes));
