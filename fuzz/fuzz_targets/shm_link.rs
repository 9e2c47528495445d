//! Rings of a neighbour on the shm link that hold anything.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("shm_link", bytes));
