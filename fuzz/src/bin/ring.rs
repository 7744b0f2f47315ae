//! A ring page that changes while it is read.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fuzz::seeds::write("ring"), |data: &[u8]| fuzz::ring::run(data));
