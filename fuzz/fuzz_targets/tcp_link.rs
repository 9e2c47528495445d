//! Somebody on the tcp link who says anything.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("tcp_link", bytes));
