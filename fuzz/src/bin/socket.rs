//! Bytes of clients and guests.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fuzz::seeds::write("socket"), |data: &[u8]| fuzz::socket::run(data));
