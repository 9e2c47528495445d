//! Any bytes as the other side of a connection's TCP exchange.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("connection", bytes));
