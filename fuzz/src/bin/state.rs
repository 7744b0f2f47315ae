//! State streams.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fuzz::seeds::write("state"), |data: &[u8]| fuzz::state::run(data));
