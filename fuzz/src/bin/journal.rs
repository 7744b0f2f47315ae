//! Journals.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fuzz::seeds::write("journal"), |data: &[u8]| fuzz::journal::run(data));
