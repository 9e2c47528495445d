//! A hostile subscriber and a hostile publisher of efa-netio.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| efa_hostile::run("subscriptions", bytes));
