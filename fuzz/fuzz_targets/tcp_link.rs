//! Any bytes from the other end of a connection on the tcp link.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("tcp_link", bytes));
