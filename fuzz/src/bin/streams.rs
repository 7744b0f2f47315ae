//! Streams of saved domains.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fuzz::seeds::write("streams"), |data: &[u8]| fuzz::streams::run(data));
