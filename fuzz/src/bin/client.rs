//! A lying store's answers.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fuzz::seeds::write("client"), |data: &[u8]| fuzz::client::run(data));
