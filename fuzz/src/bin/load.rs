//! Records of a saved domain, loaded.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fuzz::seeds::write("load"), |data: &[u8]| fuzz::load::run(data));
